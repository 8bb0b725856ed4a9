//! Writers without a lock: each step of one may come between any two steps of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use tamis::vfs::{FileSystem, MemoryFileSystem};
use tamis::{Db, Error, Options, WriteBatch};
use tamis_backup::{Repository, Storage};

use crate::memory::{MemoryStorage, Trouble, Turns};

fn store() -> Db {
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
    Options::new().file_system(fs).memtable_size(32 << 10).open("/db").unwrap()
}

/// Adds a batch; a store that has a prefix of them has as many keys as `last` says.
fn write(db: &Db, n: u64) {
    let mut batch = WriteBatch::new();
    batch.put(format!("k{n:04}"), "v");
    batch.put("last", (n + 1).to_string());
    db.write(batch).unwrap();
}

#[track_caller]
fn check_store(db: &Db) -> u64 {
    let last = db.get("last").unwrap().map_or(0, |last| std::str::from_utf8(&last).unwrap().parse().unwrap());
    assert_eq!(db.prefix("k").count() as u64, last);
    last
}

fn open(storage: &MemoryStorage) -> Repository {
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
    let storage: Arc<dyn Storage> = Arc::new(storage.clone());
    Repository::create_in(fs, storage).unwrap()
}

/// Every generation restores to a prefix of what was written to its store.
#[track_caller]
fn check_all(storage: &MemoryStorage) -> usize {
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
    let repository = Repository::open_in(Arc::clone(&fs), Arc::new(storage.clone())).unwrap();
    let generations = repository.generations().unwrap();
    for generation in &generations {
        let dir = format!("/{}", generation.number);
        repository.restore(generation.number, &dir).unwrap();
        check_store(&Options::new().file_system(Arc::clone(&fs)).paranoid(true).open(&dir).unwrap());
    }
    generations.len()
}

#[test]
fn no_generation_ever_lacks_a_file() {
    const WRITERS: usize = 4;
    let seeds = std::env::var("TAMIS_SEEDS").map_or(40, |text| text.parse().unwrap());
    let repeated = AtomicUsize::new(0);
    for seed in 0..seeds {
        let mut rng = fastrand::Rng::with_seed(seed);
        // What no generation names is removed by the next prune, even if a backup is under way.
        let storage = MemoryStorage::written_at(SystemTime::UNIX_EPOCH);
        open(&storage);
        let (turns, shared) = (Arc::new(Turns::default()), store());
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (turns, storage, shared) = (&turns, storage.of_writer(&turns, writer), &shared);
                let repeated = &repeated;
                let keep = rng.usize(1..4);
                scope.spawn(move || {
                    let _writing = turns.writer(writer);
                    let repository = open(&storage);
                    // Two of them back up one store.
                    let db = if writer < 2 { shared.clone() } else { store() };
                    for round in 0..3 {
                        if writer == 3 {
                            repository.prune(keep).unwrap();
                            continue;
                        }
                        let n = check_store(&db);
                        write(&db, n);
                        if round != 1 {
                            db.flush().unwrap();
                        }
                        let made = repository.backup(&db).unwrap();
                        // Some had to copy files again that a prune had named meanwhile.
                        repeated.fetch_add(usize::from(made.copied_files > made.files), Ordering::Relaxed);
                        if writer == 2 {
                            repository.prune(keep).unwrap();
                        }
                    }
                });
            }
            let reader = Repository::open_in(Arc::new(MemoryFileSystem::new()), Arc::new(storage.clone())).unwrap();
            // One writer after the other stalls for a while.
            let (mut stalled, mut left) = (0, 0);
            while turns.step(WRITERS, |waiting| {
                reader.verify(&mut |fault| panic!("seed {seed}: {fault}")).unwrap();
                if left == 0 {
                    (stalled, left) = (rng.usize(0..WRITERS), rng.usize(1..60));
                }
                left -= 1;
                let ready: Vec<usize> = waiting.iter().copied().filter(|writer| *writer != stalled).collect();
                *rng.choice(if ready.is_empty() { waiting } else { &ready }).unwrap()
            }) {}
        });
        assert!(check_all(&storage) > 0);
        // A last prune leaves what one generation of each of the two stores needs, and its own
        // record.
        let repository = open(&storage);
        repository.prune(1).unwrap();
        let files: usize = repository.generations().unwrap().iter().map(|generation| generation.files.len()).sum();
        let data = storage.names().iter().filter(|name| name.starts_with("data/")).count();
        assert_eq!((data, check_all(&storage)), (files, 2), "seed {seed}");
    }
    assert!(repeated.into_inner() > 0);
}

#[test]
fn any_call_may_fail_or_lose_its_reply() {
    for trouble in [Trouble::Nothing, Trouble::Done, Trouble::Conflict, Trouble::LostReply] {
        for at in 1.. {
            let (storage, db) = (MemoryStorage::default(), store());
            let repository = open(&storage);
            for n in 0..3 {
                write(&db, n);
                db.flush().unwrap();
                repository.backup(&db).unwrap();
            }
            write(&db, 3);
            storage.set_trouble(at, trouble);
            let done = repository.backup(&db).and_then(|_| repository.prune(2));
            let is_hit = storage.end_trouble();
            if let Err(error) = &done {
                assert!(is_hit && matches!(error, Error::Io { .. }), "{trouble:?} {at}: {error}");
            }
            let generations = check_all(&storage);
            let most = if done.is_ok() { 2 } else { 4 };
            assert!((2..=most).contains(&generations), "{trouble:?} {at}: {generations}");
            let made = repository.backup(&db).unwrap();
            repository.prune(1).unwrap();
            assert_eq!(check_all(&storage), 1);
            assert_eq!(repository.generations().unwrap()[0].number, made.generation);
            if !is_hit {
                done.unwrap();
                assert!(at > 10);
                break;
            }
        }
    }
}

#[test]
fn a_writer_that_wakes_up_late_knows_that_its_number_is_gone() {
    // Its record was to be number 1, and since then that was written and removed.
    let (storage, db) = (MemoryStorage::default(), store());
    write(&db, 0);
    let turns = Arc::new(Turns::default());
    let mut numbers = Vec::new();
    std::thread::scope(|scope| {
        let of_late = storage.of_writer(&turns, 0);
        let (late_turns, late_db) = (Arc::clone(&turns), db.clone());
        open(&storage);
        let late = scope.spawn(move || {
            let _writing = late_turns.writer(0);
            open(&of_late).backup(&late_db).unwrap().generation
        });
        // It has read that there is no record, and has uploaded all files.
        let is_uploaded = || {
            drop(turns.settle(1));
            storage.names().iter().filter(|name| name.starts_with("data/")).count() >= 3
        };
        while !is_uploaded() {
            assert!(turns.step(1, |_| 0));
        }
        let repository = open(&storage);
        for n in 1..4 {
            write(&db, n);
            numbers.push(repository.backup(&db).unwrap().generation);
        }
        repository.prune(1).unwrap();
        assert!(!storage.names().contains(&"gen/00000001".to_owned()));
        while turns.step(1, |_| 0) {}
        assert_eq!(late.join().unwrap(), 5, "after three generations and a prune");
    });
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(check_all(&storage), 2);
}

#[test]
fn stores_of_one_hash_seed_do_not_share_a_repository() {
    let seeded = || {
        let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
        Options::new().file_system(fs).hash_seed(7).open("/db").unwrap()
    };
    let (one, other, storage) = (seeded(), seeded(), MemoryStorage::default());
    let repository = open(&storage);
    for (db, value) in [(&one, "one"), (&other, "other value")] {
        db.put("key", value).unwrap();
        db.flush().unwrap();
    }
    repository.backup(&one).unwrap();
    match repository.backup(&other) {
        Err(Error::InvalidArgument(what)) => assert!(what.contains("hash seed"), "{what}"),
        other => panic!("{other:?}"),
    }
    repository.backup(&one).unwrap();
    assert_eq!(repository.verify(&mut |fault| panic!("{fault}")).unwrap().generations, 2);
}
