//! Repositories in the simulated file system.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tamis::vfs::{Fault, FaultMode, FileSystem, MemoryFileSystem, SimFileSystem};
use tamis::{Db, Error, Executor, KeyspaceOptions, Options, SteppedExecutor, WriteBatch};
use tamis_backup::{Repository, StoreId};

const REPOSITORY: &str = "/backups";
const TARGET: &str = "/restored";

type Contents = BTreeMap<(String, Vec<u8>), Vec<u8>>;

fn contents(db: &Db) -> Contents {
    let mut contents = Contents::new();
    for name in db.keyspace_names().unwrap() {
        for entry in db.existing_keyspace(&name).unwrap().unwrap().iter() {
            let (key, value) = entry.unwrap();
            contents.insert((name.clone(), key.to_vec()), value.to_vec());
        }
    }
    contents
}

fn options(fs: &SimFileSystem) -> (Options, Arc<SteppedExecutor>) {
    let executor = Arc::new(SteppedExecutor::new());
    let shared: Arc<dyn Executor> = executor.clone();
    let options = Options::new().file_system(Arc::new(fs.clone())).executor(shared).hash_seed(7);
    (options.memtable_size(8 << 10).table_size(8 << 10).paranoid(true), executor)
}

fn churn(db: &Db, executor: &SteppedExecutor, rng: &mut fastrand::Rng, steps: usize) {
    let values = db.keyspace_with("values", KeyspaceOptions::new().separate_values(16)).unwrap();
    for _ in 0..steps {
        let (key, value) = (format!("k{:03}", rng.u32(0..400)), "v".repeat(rng.usize(0..120)));
        match rng.u32(0..40) {
            0 => drop(db.delete_range(key.clone()..format!("{key}9")).unwrap()),
            1 => drop(db.drop_keyspace("passing").unwrap()),
            2..5 => drop(db.keyspace("passing").unwrap().put(key, value).unwrap()),
            5..8 => drop(db.delete(key).unwrap()),
            8 => db.flush().unwrap(),
            9 if rng.u8(0..4) == 0 => db.compact_range(..).unwrap(),
            10..16 => drop(executor.step()),
            _ => {
                let mut batch = WriteBatch::new();
                batch.put(&key, &value);
                batch.put_in(&values, &key, &value);
                db.write(batch).unwrap();
            }
        }
    }
}

fn repository(fs: &SimFileSystem) -> Repository {
    Repository::create_on(Arc::new(fs.clone()), REPOSITORY).unwrap()
}

fn open(fs: &SimFileSystem, dir: &str) -> tamis::Result<Db> {
    options(fs).0.create_if_missing(false).open(dir)
}

/// Every generation verifies and restores to what `expected` says of it.
#[track_caller]
fn check(fs: &SimFileSystem, expected: &BTreeMap<u64, Contents>) {
    let repository = Repository::open_on(Arc::new(fs.clone()), REPOSITORY).unwrap();
    let verified = repository.verify(&mut |fault| panic!("{fault}")).unwrap();
    let generations = repository.generations().unwrap();
    let numbers: Vec<u64> = generations.iter().map(|generation| generation.number).collect();
    assert_eq!(numbers, expected.keys().copied().collect::<Vec<_>>());
    assert_eq!(verified.generations, numbers.len());
    for (number, contents_then) in expected {
        let target = format!("/check/{number}");
        let restored = repository.restore(*number, &target).unwrap();
        let copy = open(fs, &target).unwrap();
        assert_eq!(
            (contents(&copy), copy.last_seqno()),
            (contents_then.clone(), restored.seqno),
            "generation {number}"
        );
        copy.close().unwrap();
        remove(fs, &target);
    }
}

fn remove(fs: &SimFileSystem, dir: &str) {
    for path in fs.paths().iter().filter(|path| path.starts_with(dir)) {
        fs.remove(path).unwrap();
    }
    if fs.list(Path::new(dir)).is_ok() {
        fs.sync_dir(Path::new(dir)).unwrap();
    }
}

#[test]
fn every_generation_restores_to_what_it_was() {
    for seed in 0..25 {
        let (fs, mut rng) = (SimFileSystem::new(), fastrand::Rng::with_seed(seed));
        let (options, executor) = options(&fs);
        let mut db = options.clone().open("/db").unwrap();
        let (repository, mut expected) = (repository(&fs), BTreeMap::new());
        // Which store each generation is of: a restored one is another.
        let mut stores: BTreeMap<u64, StoreId> = BTreeMap::new();
        for _ in 0..8 {
            let steps = rng.usize(0..200);
            churn(&db, &executor, &mut rng, steps);
            let made = repository.backup(&db).unwrap();
            assert_eq!(made.seqno, db.last_seqno());
            expected.insert(made.generation, contents(&db));
            stores.insert(made.generation, made.store);
            match rng.u8(0..6) {
                0 => {
                    let keep = rng.usize(1..4);
                    repository.prune(keep).unwrap();
                    let later = |of: &u64| stores.range(of + 1..).filter(|(_, store)| **store == stores[of]).count();
                    expected.retain(|number, _| later(number) < keep);
                }
                1 => {
                    db.close().unwrap();
                    db = options.clone().open("/db").unwrap();
                }
                // The store goes on from an earlier generation, beside or instead of the first one.
                2 => {
                    let number = *expected.keys().nth(rng.usize(0..expected.len())).unwrap();
                    let dir = format!("/db{}", made.generation);
                    repository.restore(number, &dir).unwrap();
                    db = options.clone().open(&dir).unwrap();
                    assert_eq!(contents(&db), expected[&number]);
                }
                _ => {}
            }
            check(&fs, &expected);
        }
        check(&fs.crash(seed), &expected);
    }
}

#[test]
fn each_table_is_stored_once() {
    let fs = SimFileSystem::new();
    let db = options(&fs).0.open("/db").unwrap();
    let repository = repository(&fs);
    for i in 0..100 {
        db.put(format!("{i:03}"), "v".repeat(500)).unwrap();
    }
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    let first = repository.backup(&db).unwrap();
    assert_eq!((first.copied_files, first.copied_bytes), (first.files, first.bytes));
    let again = repository.backup(&db).unwrap();
    assert_eq!((again.files, again.files - again.copied_files), (first.files, 1));
    assert!(again.copied_bytes < 1000, "CURRENT, manifest and a log with one marker");
    // A restored store shares what it has not rewritten.
    repository.restore(1, TARGET).unwrap();
    let copy = open(&fs, TARGET).unwrap();
    copy.put("new", "value").unwrap();
    copy.flush().unwrap();
    let of_copy = repository.backup(&copy).unwrap();
    assert_eq!(of_copy.files - of_copy.copied_files, 1);
    // The original's next table has the number of the copy's, and other content.
    db.put("new", "other").unwrap();
    db.flush().unwrap();
    let of_original = repository.backup(&db).unwrap();
    assert_eq!(of_original.files - of_original.copied_files, 1);
    let numbers = [(1, None), (2, None), (3, Some("value")), (4, Some("other"))];
    for (number, value) in numbers {
        let dir = format!("/restored{number}");
        repository.restore(number, &dir).unwrap();
        let found = open(&fs, &dir).unwrap().get("new").unwrap();
        assert_eq!(found.as_deref(), value.map(str::as_bytes));
    }
}

/// A store, and a repository with two generations of it, of which the second is the store as it is.
fn sample(fs: &SimFileSystem) -> (Db, Repository, BTreeMap<u64, Contents>) {
    let (options, executor) = options(fs);
    let db = options.open("/db").unwrap();
    let (repository, mut expected) = (repository(fs), BTreeMap::new());
    let mut rng = fastrand::Rng::with_seed(4);
    for number in 1..=2 {
        churn(&db, &executor, &mut rng, 60);
        db.flush().unwrap();
        db.sync().unwrap();
        assert_eq!(repository.backup(&db).unwrap().generation, number);
        expected.insert(number, contents(&db));
    }
    (db, repository, expected)
}

/// What is interrupted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Create,
    Backup,
    Restore,
    Prune,
}

const WORK: [Work; 4] = [Work::Create, Work::Backup, Work::Restore, Work::Prune];

impl Work {
    fn run(self, fs: &SimFileSystem, db: &Db, repository: &Repository) -> tamis::Result<()> {
        match self {
            Work::Create => Repository::create_on(Arc::new(fs.clone()), "/others").map(drop),
            Work::Backup => repository.backup(db).map(drop),
            Work::Restore => repository.restore(1, TARGET).map(drop),
            Work::Prune => repository.prune(1).map(drop),
        }
    }

    /// After an interruption: what was there is there, and a retry succeeds.
    fn check_and_retry(self, fs: &SimFileSystem, before: &BTreeMap<u64, Contents>, now: &Contents) {
        let repository = Repository::open_on(Arc::new(fs.clone()), REPOSITORY).unwrap();
        let numbers: Vec<u64> = repository.generations().unwrap().iter().map(|of| of.number).collect();
        let mut expected = before.clone();
        match self {
            Work::Backup if numbers == [1, 2, 3] => drop(expected.insert(3, now.clone())),
            Work::Prune if numbers == [2] => drop(expected.remove(&1)),
            _ => {}
        }
        check(fs, &expected);
        match self {
            Work::Create => drop(Repository::create_on(Arc::new(fs.clone()), "/others").unwrap()),
            Work::Backup => {
                let db = open(fs, "/db").unwrap();
                assert_eq!(contents(&db), *now);
                let made = repository.backup(&db).unwrap();
                expected.insert(made.generation, now.clone());
            }
            Work::Restore => {
                match open(fs, TARGET) {
                    Err(Error::Incomplete(_) | Error::NotFound(_)) => drop(repository.restore(1, TARGET).unwrap()),
                    found => drop(found.unwrap()),
                }
                assert_eq!(contents(&open(fs, TARGET).unwrap()), before[&1]);
            }
            Work::Prune => {
                repository.prune(1).unwrap();
                expected.remove(&1);
                // What was to be removed is gone.
                let left = fs.paths().into_iter().filter(|path| path.starts_with("/backups/data")).count();
                assert_eq!(left, repository.generation(2).unwrap().files.len());
            }
        }
        check(fs, &expected);
    }
}

#[test]
fn any_call_may_fail_once() {
    for work in WORK {
        for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ReadError] {
            for at in 1.. {
                let fs = SimFileSystem::new();
                let (db, repository, before) = sample(&fs);
                db.put("last", format!("{at}")).unwrap();
                let now = contents(&db);
                fs.set_fault(Some(Fault { at, mode, sticky: false }));
                let done = work.run(&fs, &db, &repository);
                let is_hit = fs.fault_hit();
                fs.set_fault(None);
                if let Err(error) = &done {
                    assert!(is_hit && matches!(error, Error::Io { .. }), "{work:?} {mode:?} {at}: {error}");
                }
                db.put("last", format!("{at}")).unwrap();
                db.close().unwrap();
                work.check_and_retry(&fs, &before, &now);
                if !is_hit {
                    done.unwrap();
                    assert!(at > 1, "{work:?} {mode:?}");
                    break;
                }
            }
        }
    }
}

#[test]
fn the_power_may_fail_at_any_call() {
    for work in WORK {
        for at in 1.. {
            let fs = SimFileSystem::new();
            let (db, repository, before) = sample(&fs);
            db.put("last", "value").unwrap();
            db.sync().unwrap();
            let now = contents(&db);
            fs.crash_at(Some(at));
            let done = work.run(&fs, &db, &repository);
            let Some(cut) = fs.crash_point() else {
                done.unwrap();
                // What has returned is durable.
                for seed in 0..5 {
                    let crashed = fs.crash(seed);
                    work.check_and_retry(&crashed, &before, &now);
                    let repository = Repository::open_on(Arc::new(crashed.clone()), REPOSITORY).unwrap();
                    let count = repository.generations().unwrap().len();
                    assert_eq!(count, [2, 4, 2, 1][WORK.iter().position(|other| *other == work).unwrap()]);
                }
                assert!(at > 3);
                break;
            };
            for seed in 0..5 {
                work.check_and_retry(&cut.crash(seed), &before, &now);
            }
        }
    }
}

#[test]
fn a_full_disk_fails_the_backup_and_harms_no_generation() {
    let fs = SimFileSystem::new();
    let (db, repository, before) = sample(&fs);
    db.put("last", "value").unwrap();
    let now = contents(&db);
    let used: u64 = fs.paths().iter().map(|path| fs.file_len(path).unwrap()).sum();
    for more in (0..).step_by(100) {
        fs.set_capacity(Some(used + more));
        match repository.backup(&db) {
            Ok(_) => break,
            Err(error) => assert!(error.is_no_space(), "{error}"),
        }
    }
    fs.set_capacity(None);
    check(&fs, &before.into_iter().chain([(3, now)]).collect());
}

#[test]
fn damage_is_found_and_never_restored() {
    let fs = SimFileSystem::new();
    let (db, repository, expected) = sample(&fs);
    let paths: Vec<PathBuf> = fs.paths().into_iter().filter(|path| path.starts_with(REPOSITORY)).collect();
    for path in paths {
        let whole = fs.read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "LOCK" {
            continue;
        }
        for damage in 0..3 {
            match damage {
                0 => fs.corrupt(&path, whole.len() as u64 / 2, 4).unwrap(),
                1 => fs.truncate(&path, whole.len() as u64 / 2).unwrap(),
                _ => fs.remove(&path).unwrap(),
            }
            if name == "REPOSITORY" {
                assert!(Repository::open_on(Arc::new(fs.clone()), REPOSITORY).is_err());
            } else {
                let is_gone = damage == 2 && path.starts_with("/backups/gen");
                let mut hurt = Vec::new();
                let verified = repository.verify(&mut |fault| hurt.extend(fault.generations.clone())).unwrap();
                // Nothing tells of the last record that it was there.
                let is_last = name == "00000002";
                assert_eq!(verified.faults, usize::from(!(is_gone && is_last)), "{name} {damage}");
                for (number, contents_then) in &expected {
                    match repository.restore(*number, TARGET) {
                        Ok(_) => {
                            assert!(!hurt.contains(number), "{name} {damage}");
                            assert_eq!(contents(&open(&fs, TARGET).unwrap()), *contents_then);
                        }
                        Err(error) => {
                            let is_missing = matches!(error, Error::Io { .. } | Error::InvalidArgument(_));
                            assert!(is_missing == (damage == 2) && (is_gone || hurt.contains(number)), "{error}");
                        }
                    }
                    remove(&fs, TARGET);
                }
            }
            fs.write(&path, whole.clone()).unwrap();
        }
    }
    // A backup writes a file again that was cut short or is missing.
    let shared = |name: &Path| name.to_str().unwrap().contains(".sst");
    let tables: Vec<PathBuf> =
        fs.paths().into_iter().filter(|path| shared(path) && path.starts_with(REPOSITORY)).collect();
    let image: Vec<String> = db.image().unwrap().files().map(|file| file.kind.name()).collect();
    let live =
        tables.iter().find(|path| image.iter().any(|name| path.to_str().unwrap().contains(name.as_str()))).unwrap();
    fs.truncate(live, 10).unwrap();
    let now = contents(&db);
    repository.backup(&db).unwrap();
    check(&fs, &expected.into_iter().chain([(3, now)]).collect());
}

#[test]
fn what_an_interrupted_backup_left_is_used_only_if_it_is_whole() {
    let fs = SimFileSystem::new();
    let (db, first, _) = sample(&fs);
    let other = Repository::create_on(Arc::new(fs.clone()), "/others").unwrap();
    // Each file that generations share: one whole, one with other content, and so on.
    let shared = fs.paths().into_iter().filter(|path| path.starts_with("/backups/data"));
    let shared: Vec<PathBuf> =
        shared.filter(|path| [".sst-", ".val-"].iter().any(|kind| path.to_str().unwrap().contains(kind))).collect();
    for (at, path) in shared.iter().enumerate() {
        let mut bytes = fs.read(path).unwrap();
        if at % 2 == 0 {
            bytes.fill(7);
        }
        // As of a backup that had read no record.
        let name = path.file_name().unwrap().to_str().unwrap();
        let name = format!("{}-0", name.rsplit_once('-').unwrap().0);
        fs.write(Path::new("/others/data").join(name), bytes).unwrap();
    }
    let made = other.backup(&db).unwrap();
    let of_first = first.backup(&db).unwrap();
    assert!(made.copied_files > of_first.copied_files && made.copied_files < made.files, "{made:?}");
    assert_eq!(other.verify(&mut |fault| panic!("{fault}")).unwrap().faults, 0);
    other.restore(1, TARGET).unwrap();
    assert_eq!(contents(&open(&fs, TARGET).unwrap()), contents(&db));
}

#[test]
fn a_directory_of_others_is_left_alone() {
    let fs = SimFileSystem::new();
    let db = options(&fs).0.open("/db").unwrap();
    fs.write("/full/notes.txt", "mine").unwrap();
    fs.write("/marked/REPOSITORY", "of books").unwrap();
    fs.write("/half/data/notes.txt", "mine").unwrap();
    let before = fs.paths();
    for dir in ["/db", "/full", "/marked", "/half"] {
        assert!(Repository::create_on(Arc::new(fs.clone()), dir).is_err(), "{dir}");
        assert!(Repository::open_on(Arc::new(fs.clone()), dir).is_err(), "{dir}");
    }
    assert!(Repository::open_on(Arc::new(fs.clone()), "/nowhere").is_err());
    assert_eq!(fs.paths(), before);
    // One writer at a time; readers need no lock.
    let repository = repository(&fs);
    repository.backup(&db).unwrap();
    let lock = fs.lock(Path::new("/backups/LOCK")).unwrap();
    assert!(matches!(repository.backup(&db), Err(Error::Locked { .. })));
    assert!(matches!(repository.prune(1), Err(Error::Locked { .. })));
    repository.restore(1, TARGET).unwrap();
    drop(lock);
    // A store is not restored over another one.
    assert!(matches!(repository.restore(1, TARGET), Err(Error::InvalidArgument(_))));
    assert!(matches!(repository.restore(2, "/none"), Err(Error::InvalidArgument(_))));
}

#[test]
fn readers_beside_backups_and_prunes_see_whole_generations() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
    let options = Options::new().file_system(Arc::clone(&fs)).memtable_size(32 << 10);
    let db = options.clone().open("/db").unwrap();
    let repository = Repository::create_on(Arc::clone(&fs), REPOSITORY).unwrap();
    let (is_done, restored) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u64.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                let mut batch = WriteBatch::new();
                batch.put(format!("k{n:08}"), "v".repeat(100));
                batch.put("count", (n + 1).to_string());
                db.write(batch).unwrap();
            }
        });
        for reader in 0..2 {
            let (repository, options, is_done, restored) = (&repository, &options, &is_done, &restored);
            scope.spawn(move || {
                for round in 0.. {
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                    let Ok(generations) = repository.generations() else { continue };
                    let Some(last) = generations.last() else { continue };
                    let dir = format!("/reader{reader}/{round}");
                    if repository.restore(last.number, &dir).is_err() {
                        continue;
                    }
                    let copy = options.clone().open(&dir).unwrap();
                    let count =
                        copy.get("count").unwrap().map_or(0, |n| std::str::from_utf8(&n).unwrap().parse().unwrap());
                    assert_eq!(copy.prefix("k").count(), count);
                    restored.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut round = 0;
        while round < 20 || restored.load(Ordering::Relaxed) < 10 {
            repository.backup(&db).unwrap();
            round += 1;
            if round % 3 == 0 {
                repository.prune(3).unwrap();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(repository.verify(&mut |fault| panic!("{fault}")).unwrap().faults, 0);
}
