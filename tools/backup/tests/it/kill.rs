//! Does a kill at any moment of a backup, a restore or a prune leave whole generations?
//!
//! A child process, this binary again, works until it is killed: it writes to a store, backs it up,
//! prunes and restores, one after the other; or it only restores; or it follows a store that it
//! writes to. `TAMIS_KILLS` sets the number of kills.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tamis::{Db, Error, KeyspaceOptions, Options, WriteBatch};
use tamis_backup::{Base, FollowOptions, Point, Repository};

/// Where the child works.
const DIR: &str = "TAMIS_BACKUP_KILL_DIR";
/// What it does.
const WORK: &str = "TAMIS_BACKUP_KILL_WORK";
/// Address of the bucket, if the repository is in one.
const ADDRESS: &str = "TAMIS_BACKUP_KILL_ADDRESS";

/// What the child tells first, when it has opened everything.
const BEGUN: &str = "begun";

fn options() -> Options {
    let separate = KeyspaceOptions::new().separate_values(64);
    Options::new().memtable_size(16 << 10).table_size(64 << 10).default_keyspace(separate)
}

/// A store that has a prefix of the batches has as many keys as `last` says.
fn last(db: &Db) -> u64 {
    let last = db.get("last").unwrap().map_or(0, |last| std::str::from_utf8(&last).unwrap().parse().unwrap());
    assert_eq!(db.prefix("k").count() as u64, last);
    last
}

/// Opens the repository, or creates it.
fn repository(dir: &Path) -> Repository {
    match std::env::var(ADDRESS) {
        #[cfg(feature = "object-store")]
        Ok(address) => Repository::create_in_bucket(&address).unwrap(),
        _ => Repository::create(dir.join("backups")).unwrap(),
    }
}

/// Adds a batch, and counts it.
fn write(db: &Db, n: &mut u64) {
    *n += 1;
    let mut batch = WriteBatch::new();
    batch.put(format!("k{n:08}"), "v".repeat(usize::try_from(*n % 100).unwrap()));
    batch.put("last", n.to_string());
    db.write(batch).unwrap();
}

/// Tells the parent what has been done, in one write.
fn tell(what: &str) {
    std::io::stderr().write_all(format!("{what}\n").as_bytes()).unwrap();
}

/// A directory for the next restore: an interrupted one is left as it is.
fn target(dir: &Path, round: u64) -> std::path::PathBuf {
    let target = dir.join(format!("restored{}", round % 2));
    if target.exists() && !target.join("PARTIAL").exists() {
        std::fs::remove_dir_all(&target).unwrap();
    }
    target
}

#[test]
#[ignore = "the process that the other tests of this module kill; cargo test -p tamis-backup kill"]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = Path::new(&dir);
    match std::env::var(WORK).as_deref() {
        Ok("restore") => restore(dir),
        Ok("follow") => follow(dir),
        _ => back_up(dir),
    }
}

fn back_up(dir: &Path) {
    let db = options().open(dir.join("db")).unwrap();
    let repository = repository(dir);
    tell(BEGUN);
    let mut n = last(&db);
    for round in 0u64.. {
        (0..30).for_each(|_| write(&db, &mut n));
        let made = repository.backup(&db).unwrap();
        tell(&format!("{} {n}", made.generation));
        repository.restore(made.generation, target(dir, round)).unwrap();
        if round % 4 == 3 {
            repository.prune(3).unwrap();
        }
    }
}

fn restore(dir: &Path) {
    let repository = repository(dir);
    tell(BEGUN);
    let point = Point::Time(std::time::SystemTime::now());
    for round in 0u64.. {
        repository.restore_to(point, Base::OnlyStore, target(dir, round)).unwrap();
    }
}

fn follow(dir: &Path) {
    let db = options().open(dir.join("db")).unwrap();
    let every = FollowOptions::new().generation_every(Duration::from_millis(30)).keep(3);
    let follower = repository(dir).follow(&db, every.segments(Duration::from_millis(5), 1 << 20)).unwrap();
    tell(BEGUN);
    let (mut n, mut told) = (last(&db), 0);
    loop {
        write(&db, &mut n);
        let followed = follower.status().seqno;
        if followed > told {
            told = followed;
            tell(&format!("{followed} {n}"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Starts the child, and kills it at most `longest` milliseconds after its work has begun, or in
/// some cases after its start: a busy machine then kills it no earlier in its work than an idle
/// one. Returns the last of what it has told.
fn kill_one(
    dir: &Path,
    work: &str,
    address: Option<&str>,
    rng: &mut fastrand::Rng,
    longest: u64,
) -> Option<(u64, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "kill::child", "--test-threads=1"])
        .env(DIR, dir)
        .env(WORK, work)
        .envs(address.map(|address| (ADDRESS, address)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let waits = usize::from(rng.u8(0..4) > 0);
    let begun: Vec<String> = output.by_ref().take(waits).collect();
    assert!(begun.iter().all(|line| line == BEGUN), "{begun:?}");
    std::thread::sleep(Duration::from_micros(rng.u64(1_000..longest * 1000)));
    child.kill().unwrap();
    child.wait().unwrap();
    let said: Vec<String> = output.collect();
    assert!(!said.iter().any(|line| line.contains("panicked")), "{said:?}");
    let (number, n) = said.last()?.split_once(' ')?;
    Some((number.parse().unwrap(), n.parse().unwrap()))
}

fn kills(default: u64) -> u64 {
    std::env::var("TAMIS_KILLS").map_or(default, |text| text.parse().unwrap())
}

/// Counts the restores that are whole, and those that are refused.
fn check_restored(dir: &Path, whole: &mut usize, refused: &mut usize, expected: Option<u64>) {
    for restored in ["restored0", "restored1"] {
        match options().paranoid(true).open_read_only(dir.join(restored)) {
            Ok(store) => {
                *whole += 1;
                let found = last(&store);
                assert!(expected.map_or(found > 0, |expected| found == expected), "{found}, not {expected:?}");
            }
            Err(Error::Incomplete(_)) => *refused += 1,
            // Not begun, or the child was removing a finished one.
            Err(error) => assert!(matches!(error, Error::NotFound(_)) || error.is_corruption(), "{error}"),
        }
    }
}

/// Kills backups to a directory, or to a bucket.
pub(crate) fn kill_backups(address: Option<&str>, open: impl Fn(&Path) -> tamis::Result<Repository>, count: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut whole, mut refused, mut newest) = (0, 0, 0);
    for round in 0..kills(count) {
        let longest = [50, 200, 800][rng.usize(0..3)];
        let said = kill_one(dir.path(), "backup", address, &mut rng, longest);
        let Ok(repository) = open(dir.path()) else {
            assert!(newest == 0 && said.is_none());
            continue;
        };
        let verified = repository.verify(&mut |fault| panic!("round {round}: {fault}")).unwrap();
        let generations = repository.generations().unwrap();
        assert_eq!(verified.generations, generations.len());
        let last_number = generations.last().map_or(0, |last| last.number);
        newest = said.map_or(newest, |(number, _)| number);
        assert!(last_number >= newest, "round {round}: {last_number} of {newest}");
        newest = last_number;
        check_restored(dir.path(), &mut whole, &mut refused, None);
        if round % 10 == 9
            && let Some(generation) = generations.last()
        {
            let target = dir.path().join(format!("check{round}"));
            repository.restore(generation.number, &target).unwrap();
            let found = last(&options().paranoid(true).open(&target).unwrap());
            if let Some((_, n)) = said.filter(|(number, _)| *number == generation.number) {
                assert_eq!(found, n, "generation {}", generation.number);
            }
            std::fs::remove_dir_all(target).unwrap();
        }
    }
    assert!(newest > 0);
    // In a short run, none may have been killed within a restore.
    assert!(count < 100 || whole > 0 && refused > 0, "{whole} restores were whole and {refused} refused");
}

#[test]
fn a_kill_leaves_whole_generations() {
    kill_backups(None, |dir| Repository::open(dir.join("backups")), 100);
}

#[test]
fn a_kill_of_a_restore_leaves_a_whole_store_or_one_that_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path().join("db")).unwrap();
    let follower = repository(dir.path()).follow(&db, FollowOptions::new()).unwrap();
    let mut n = 0;
    (0..2000).for_each(|_| write(&db, &mut n));
    follower.stop().unwrap();
    db.close().unwrap();
    let mut rng = fastrand::Rng::with_seed(6);
    let (mut whole, mut refused) = (0, 0);
    for _ in 0..kills(100) {
        kill_one(dir.path(), "restore", None, &mut rng, 150);
        check_restored(dir.path(), &mut whole, &mut refused, Some(n));
    }
    assert!(whole > 0 && refused > 0, "{whole} restores were whole and {refused} refused");
}

#[test]
fn a_kill_of_a_follower_loses_nothing_that_it_has_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut followed = 0;
    for round in 0..kills(30) {
        let said = kill_one(dir.path(), "follow", None, &mut rng, 400);
        let Ok(repository) = Repository::open(dir.path().join("backups")) else {
            assert!(said.is_none() && followed == 0);
            continue;
        };
        repository.verify(&mut |fault| panic!("round {round}: {fault}")).unwrap();
        followed = said.map_or(followed, |(seqno, _)| seqno);
        if followed == 0 {
            continue;
        }
        let target = dir.path().join("check");
        let point = Point::Time(std::time::SystemTime::now());
        let restored = repository.restore_to(point, Base::OnlyStore, &target).unwrap();
        assert!(restored.seqno >= followed, "round {round}: {} of {followed}", restored.seqno);
        last(&options().paranoid(true).open(&target).unwrap());
        std::fs::remove_dir_all(target).unwrap();
    }
    assert!(followed > 0);
}
