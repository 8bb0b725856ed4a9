//! Is one keyspace backed up alone, and brought back whole or not at all, beside the others?

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tamis::operator::{Append, MergeError, MergeOperator};
use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{
    Db, Error, Expiry, IngestOptions, Keyspace, KeyspaceOptions, Options, PrefixExtractor, ProgressListener, SstWriter,
    WriteOptions,
};
use tamis_backup::{Base, Follow, FollowOptions, KeyspaceAt, Point, Repository};

const SCRATCH: &str = "/scratch";

/// An operator of a program.
#[derive(Debug)]
struct Longest;

impl MergeOperator for Longest {
    fn name(&self) -> &str {
        "test.longest"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        out.extend_from_slice(operands.iter().max_by_key(|bytes| bytes.len()).unwrap_or(&&b""[..]));
        Ok(())
    }
}

fn users_options() -> KeyspaceOptions {
    KeyspaceOptions::new()
        .separate_values(64)
        .ttl(Duration::from_secs(3600))
        .prefix(PrefixExtractor::Fixed(2))
        .block_size(512)
        .merge_operator(Append)
}

fn open(fs: &SimFileSystem, dir: &str) -> Db {
    Options::new().file_system(Arc::new(fs.clone())).memtable_size(64 << 10).open(dir).unwrap()
}

fn repository(fs: &SimFileSystem) -> Repository {
    Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap()
}

/// A store with entries of all kinds in the keyspace `users`, in tables and in the log, and with
/// other keyspaces.
fn sample(fs: &SimFileSystem) -> (Db, Keyspace) {
    let db = open(fs, "/db");
    let users = db.keyspace_with("users", users_options()).unwrap();
    let unlogged = db.keyspace_with("unlogged", KeyspaceOptions::new().wal(false)).unwrap();
    let hour = SystemTime::now() + Duration::from_secs(3600);
    for round in 0..3 {
        for i in 0..40 {
            users.put(format!("k{i:03}"), format!("value {round} of {i}")).unwrap();
            db.put(format!("k{i:03}"), "the secret of another one").unwrap();
            unlogged.put(format!("k{i:03}"), "unlogged").unwrap();
        }
        users.put(format!("long{round}"), "l".repeat(300)).unwrap();
        users.put_with_expiry(format!("until{round}"), "later", hour).unwrap();
        users.put_with_expiry(format!("past{round}"), "gone", SystemTime::UNIX_EPOCH).unwrap();
        users.put_with(format!("for ever{round}"), "x", WriteOptions::new().expiry(Expiry::Never)).unwrap();
        users.merge("k001", ", merged").unwrap();
        users.merge("merged alone", "a").unwrap();
        users.merge("until0", " than that").unwrap();
        users.delete("k002").unwrap();
        users.delete_range("k010".."k020").unwrap();
        if round < 2 {
            db.flush().unwrap();
        }
    }
    // What each backup finds must not be merged meanwhile.
    db.wait_for_compactions().unwrap();
    (db, users)
}

type Entries = Vec<(Vec<u8>, Vec<u8>, Option<SystemTime>)>;

fn entries(keyspace: &Keyspace) -> Entries {
    let mut cursor = keyspace.cursor().unwrap();
    let (mut found, mut valid) = (Entries::new(), cursor.seek_to_first().unwrap());
    while valid {
        found.push((cursor.key().unwrap().to_vec(), cursor.value().unwrap().to_vec(), cursor.deadline()));
        valid = cursor.next().unwrap();
    }
    found
}

fn names(db: &Db) -> Vec<String> {
    let mut names = db.keyspace_names().unwrap();
    names.sort();
    names
}

/// Nothing is left of a restore.
#[track_caller]
fn check_scratch(fs: &SimFileSystem) {
    let left: Vec<PathBuf> = fs.paths().into_iter().filter(|path| path.starts_with(SCRATCH)).collect();
    assert!(left.iter().all(|path| path.ends_with("LOCK")), "{left:?}");
}

#[test]
fn all_entries_and_options_come_back_beside_what_has_gone_on() {
    let fs = SimFileSystem::new();
    let (db, users) = sample(&fs);
    let repository = repository(&fs);
    let (first, expected) = (repository.backup(&db).unwrap().generation, entries(&users));
    assert!(expected.len() > 30 && expected.iter().any(|(.., deadline)| deadline.is_none()));
    users.clear().unwrap();
    users.put("k", "second").unwrap();
    db.put("later", "than both").unwrap();
    let second = repository.backup(&db).unwrap().generation;
    for (number, name, expected) in [(first, "first", expected), (second, "second", entries(&users))] {
        let from = KeyspaceAt::generation(number, "users");
        let (restored, copied) = repository.restore_keyspace(from, &db, name, SCRATCH).unwrap();
        assert_eq!((restored.generation.number, copied.keys), (number, expected.len() as u64));
        let keyspace = db.existing_keyspace(name).unwrap().unwrap();
        assert_eq!(entries(&keyspace), expected);
        assert_eq!(keyspace.options().unwrap(), users.options().unwrap());
        check_scratch(&fs);
    }
    assert_eq!(names(&db), ["default", "first", "second", "unlogged", "users"]);
    assert_eq!(db.get("later").unwrap().unwrap(), "than both");
    assert_eq!(users.get("k").unwrap().unwrap(), "second");
    // It is durable.
    let db = open(&fs.crash(1), "/db");
    assert_eq!(names(&db), ["default", "first", "second", "unlogged", "users"]);
    assert!(db.keyspace("first").unwrap().contains_key("k001").unwrap());
}

#[test]
fn what_is_there_is_refused_and_what_is_not_there_too() {
    let fs = SimFileSystem::new();
    let (db, users) = sample(&fs);
    let repository = repository(&fs);
    let number = repository.backup(&db).unwrap().generation;
    let (before, expected) = (names(&db), entries(&users));
    for (keyspace, name) in [("users", "users"), ("users", "default"), ("absent", "new"), ("users", "")] {
        let from = KeyspaceAt::generation(number, keyspace);
        let error = repository.restore_keyspace(from, &db, name, SCRATCH).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    let from = KeyspaceAt::generation(99, "users");
    repository.restore_keyspace(from, &db, "new", SCRATCH).unwrap_err();
    assert_eq!((names(&db), entries(&users)), (before, expected));
    check_scratch(&fs);
    // The longest name.
    let name = "é".repeat(127);
    repository.restore_keyspace(KeyspaceAt::generation(number, "users"), &db, &name, SCRATCH).unwrap();
    assert!(db.existing_keyspace(&name).unwrap().is_some());
}

#[test]
fn the_default_keyspace_and_empty_ones_come_back() {
    let fs = SimFileSystem::new();
    let (db, _users) = sample(&fs);
    db.keyspace("empty").unwrap();
    let repository = repository(&fs);
    repository.backup(&db).unwrap();
    let expected = entries(db.default_keyspace());
    db.clear().unwrap();
    for (keyspace, count) in [("default", expected.len()), ("empty", 0)] {
        let (from, name) = (KeyspaceAt::last(Base::OnlyStore, keyspace), format!("old {keyspace}"));
        repository.restore_keyspace(from, &db, &name, SCRATCH).unwrap();
        assert_eq!(entries(&db.keyspace(&name).unwrap()), expected[..count]);
    }
}

#[test]
fn operands_of_an_unknown_operator_come_back_as_they_are() {
    let fs = SimFileSystem::new();
    let options = || Options::new().file_system(Arc::new(fs.clone()));
    let longest = || KeyspaceOptions::new().merge_operator(Longest);
    let db = options().open("/program").unwrap();
    let keyspace = db.keyspace_with("words", longest()).unwrap();
    keyspace.put("k", "four").unwrap();
    for operand in ["a", "longer than four", "b"] {
        keyspace.merge("k", operand).unwrap();
        keyspace.merge("alone", operand).unwrap();
    }
    let repository = repository(&fs);
    repository.backup_keyspace(&db, &keyspace).unwrap();
    let other = open(&fs, "/other");
    repository.restore_keyspace(KeyspaceAt::last(Base::OnlyStore, "words"), &other, "words", SCRATCH).unwrap();
    assert!(other.keyspace("words").unwrap().get("k").is_err(), "the operator is not known here");
    other.close().unwrap();
    let other = options().open("/other").unwrap();
    let words = other.keyspace_with("words", longest()).unwrap();
    for key in ["k", "alone"] {
        assert_eq!(words.get(key).unwrap().unwrap(), "longer than four");
    }
}

#[test]
fn a_point_in_time_of_one_keyspace_comes_back() {
    let fs = SimFileSystem::new();
    let (db, users) = sample(&fs);
    let repository = repository(&fs);
    let mut follow = Follow::begin(&repository, &db, FollowOptions::new()).unwrap();
    let (mut seqno, mut expected) = (0, Entries::new());
    for i in 0..10 {
        let last = users.put("followed", format!("{i}")).unwrap();
        db.put("other", format!("{i}")).unwrap();
        if i == 4 {
            (seqno, expected) = (last, entries(&users));
        }
    }
    db.sync().unwrap();
    follow.step(Duration::from_millis(1)).unwrap();
    let from = KeyspaceAt::point(Point::Seqno(seqno), Base::OnlyStore, "users");
    let (restored, _) = repository.restore_keyspace(from, &db, "then", SCRATCH).unwrap();
    assert_eq!(restored.seqno, seqno);
    assert_eq!(entries(&db.keyspace("then").unwrap()), expected);
}

#[test]
fn a_generation_of_one_keyspace_holds_it_alone_and_shares_its_tables() {
    let fs = SimFileSystem::new();
    let (db, users) = sample(&fs);
    let repository = repository(&fs);
    let whole = repository.backup(&db).unwrap();
    let made = repository.backup_keyspace(&db, &users).unwrap();
    // Of its own, it has CURRENT, the manifest and its part of the log.
    assert_eq!(made.copied_files, 3);
    assert!(made.files > 4 && made.files < whole.files, "{made:?}");
    let generation = repository.generation(made.generation).unwrap();
    assert_eq!(generation.keyspace.as_deref(), Some("users"));
    assert_ne!(made.store, whole.store);
    let expected = entries(&users);
    users.put("k999", "new").unwrap();
    users.flush().unwrap();
    let second = repository.backup_keyspace(&db, &users).unwrap();
    assert_eq!(second.store, made.store);
    let again = repository.backup_keyspace(&db, &users).unwrap();
    assert!(again.copied_files <= 3 && again.files == second.files, "{again:?}");
    repository.prune_store(made.store, 3).unwrap();
    // Each is pruned apart.
    repository.prune_store(whole.store, 0).unwrap();
    assert_eq!(repository.verify(&mut |fault| panic!("{fault}")).unwrap().generations, 3);
    repository.restore(made.generation, "/alone").unwrap();
    for path in fs.paths().iter().filter(|path| path.starts_with("/alone")) {
        let bytes = fs.read(path).unwrap();
        assert!(!bytes.windows(6).any(|part| part == b"secret"), "{}", path.display());
    }
    let alone = open(&fs, "/alone");
    assert_eq!(names(&alone), ["default", "users"]);
    assert!(alone.is_empty().unwrap());
    assert_eq!(entries(&alone.keyspace("users").unwrap()), expected);
    assert_eq!(alone.last_seqno(), made.seqno);
    alone.put("k", "v").unwrap();
    // The last one of the only store that is left.
    assert_eq!(repository.last(Base::OnlyStore).unwrap().number, again.generation);
}

#[test]
fn the_default_keyspace_alone_and_keyspaces_without_a_log_are_backed_up() {
    let fs = SimFileSystem::new();
    let (db, _users) = sample(&fs);
    let repository = repository(&fs);
    for (name, target) in [("default", "/of default"), ("unlogged", "/of unlogged")] {
        let keyspace = db.keyspace(name).unwrap();
        keyspace.flush().unwrap();
        let made = repository.backup_keyspace(&db, &keyspace).unwrap();
        repository.restore(made.generation, target).unwrap();
        let alone = open(&fs, target);
        assert_eq!(entries(&alone.keyspace(name).unwrap()), entries(&keyspace));
        assert!(alone.existing_keyspace("users").unwrap().is_none());
    }
}

/// Its log has what no flush has written, and an ingest.
#[test]
fn a_keyspace_is_backed_up_beside_the_process_that_writes() {
    let fs = SimFileSystem::new();
    let (db, users) = sample(&fs);
    for keyspace in [&users, db.default_keyspace()] {
        let table = Path::new("/new.sst");
        let mut writer = SstWriter::create_in(Arc::new(fs.clone()), table, &keyspace.sst_format().unwrap()).unwrap();
        writer.put("ingested", "x").unwrap();
        writer.finish().unwrap();
        keyspace.ingest([table], IngestOptions::new()).unwrap();
        fs.remove(table).unwrap();
    }
    users.put("at last", "x").unwrap();
    let reader = Options::new().file_system(Arc::new(fs.clone())).open_read_only("/db").unwrap();
    let made = repository(&fs).backup_keyspace(&reader, &reader.keyspace("users").unwrap()).unwrap();
    repository(&fs).restore(made.generation, "/alone").unwrap();
    let alone = open(&fs, "/alone");
    assert_eq!(entries(&alone.keyspace("users").unwrap()), entries(&users));
    assert!(alone.is_empty().unwrap());
}

/// After an interruption the keyspace is whole or absent, and a retry succeeds.
fn check_and_retry(fs: &SimFileSystem, expected: &Entries, before: &[String]) {
    let db = open(fs, "/db");
    if let Some(restored) = db.existing_keyspace("restored").unwrap() {
        assert_eq!(entries(&restored), *expected);
    } else {
        let from = KeyspaceAt::generation(1, "users");
        Repository::open_on(Arc::new(fs.clone()), "/backups")
            .unwrap()
            .restore_keyspace(from, &db, "restored", SCRATCH)
            .unwrap();
        check_scratch(fs);
    }
    assert_eq!(entries(&db.keyspace("restored").unwrap()), *expected);
    let mut all = [before, &["restored".to_owned()]].concat();
    all.sort();
    assert_eq!(names(&db), all);
}

#[test]
fn any_call_of_a_restore_may_fail() {
    for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ReadError] {
        for at in 1.. {
            let fs = SimFileSystem::new();
            let (db, users) = sample(&fs);
            let repository = repository(&fs);
            repository.backup(&db).unwrap();
            let (before, expected) = (names(&db), entries(&users));
            fs.set_fault(Some(Fault { at, mode, sticky: false }));
            let done = repository.restore_keyspace(KeyspaceAt::generation(1, "users"), &db, "restored", SCRATCH);
            let is_hit = fs.fault_hit();
            fs.set_fault(None);
            drop(users);
            let _ = db.close();
            check_and_retry(&fs, &expected, &before);
            if !is_hit {
                done.unwrap();
                assert!(at > 20, "{mode:?}");
                break;
            }
        }
    }
}

#[test]
fn the_power_may_fail_at_any_call_of_a_restore() {
    for at in 1.. {
        let fs = SimFileSystem::new();
        let (db, users) = sample(&fs);
        let repository = repository(&fs);
        repository.backup(&db).unwrap();
        db.sync().unwrap();
        db.flush().unwrap();
        let (before, expected) = (names(&db), entries(&users));
        fs.crash_at(Some(at));
        let done = repository.restore_keyspace(KeyspaceAt::generation(1, "users"), &db, "restored", SCRATCH);
        let Some(cut) = fs.crash_point() else {
            done.unwrap();
            let crashed = fs.crash(1);
            assert_eq!(entries(&open(&crashed, "/db").keyspace("restored").unwrap()), expected);
            assert!(at > 20);
            break;
        };
        check_and_retry(&cut.kill(), &expected, &before);
        check_and_retry(&cut.crash(at), &expected, &before);
    }
}

#[test]
fn a_restore_of_a_keyspace_tells_its_progress() {
    let fs = SimFileSystem::new();
    let (db, _users) = sample(&fs);
    db.keyspace("empty").unwrap();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let listener = {
        let told = Arc::clone(&told);
        ProgressListener::new(move |progress| told.lock().unwrap().push((progress.done, progress.total)))
    };
    let repository = repository(&fs).on_progress(listener);
    repository.backup(&db).unwrap();
    for (keyspace, steps) in [("users", 4), ("empty", 0)] {
        told.lock().unwrap().clear();
        let from = KeyspaceAt::generation(1, keyspace);
        repository.restore_keyspace(from, &db, &format!("old {keyspace}"), SCRATCH).unwrap();
        let told = told.lock().unwrap();
        assert!(told.len() > steps && told.is_sorted(), "{told:?}");
        let (done, total) = told[told.len() - 1];
        assert!(done == total && told.iter().all(|(_, of)| *of == total), "{told:?}");
    }
}
