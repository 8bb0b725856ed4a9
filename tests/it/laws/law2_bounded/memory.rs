//! One limit for memory: it holds under every load, and what is reported is the sum of its parts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tamis::{Db, Environment, EnvironmentOptions, FilterPolicy, KeyspaceOptions, MemoryUsage, Options};

const MIB: usize = 1 << 20;
/// What uses may seem to exceed the limit by, as a divisor: they are read one after the other while
/// threads move memory from one to the next.
const SLACK: usize = 32;
const KEYS: u32 = 6_000;

fn key(i: u32) -> Vec<u8> {
    format!("key{:08}", i * 7919 % KEYS).into_bytes()
}

fn value(i: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| at.to_le_bytes()[0] ^ i.wrapping_mul(97).to_le_bytes()[0]).collect()
}

/// A load: its name, and what it does to a store that has `KEYS` entries.
type Load = (&'static str, fn(&Db));

fn gets(db: &Db) {
    for i in 0..KEYS {
        assert!(db.get(key(i)).unwrap().is_some());
        assert!(db.get([&key(i)[..], b"-"].concat()).unwrap().is_none());
    }
}

fn writes(db: &Db) {
    for i in 0..KEYS {
        db.put(key(i), value(i, 800)).unwrap();
    }
    db.flush().unwrap();
}

fn compactions(db: &Db) {
    writes(db);
    db.compact_range(..).unwrap();
}

fn scans(db: &Db) {
    assert_eq!(db.iter().count(), KEYS as usize);
    assert_eq!(db.iter().rev().count(), KEYS as usize);
}

/// Iterators that stay where they are, each with its blocks and what it has read ahead.
fn open_iterators(db: &Db) {
    let mut open: Vec<_> = (0..60).map(|_| db.iter()).collect();
    for _ in 0..200 {
        for entries in &mut open {
            entries.next().unwrap().unwrap();
        }
    }
}

fn range_deletes(db: &Db) {
    for i in 0..400 {
        db.delete_range(key(i)..[&key(i)[..], b"0"].concat()).unwrap();
        if i % 100 == 0 {
            db.flush().unwrap();
        }
    }
    assert!(db.get(key(0)).unwrap().is_none());
    writes(db);
}

const LOADS: [Load; 6] = [
    ("gets", gets),
    ("writes", writes),
    ("compactions", compactions),
    ("scans", scans),
    ("open iterators", open_iterators),
    ("range deletes", range_deletes),
];

/// The usage of most bytes that a thread has seen while `work` ran.
fn peak(usage: impl Fn() -> MemoryUsage + Sync, work: impl FnOnce()) -> MemoryUsage {
    /// Also if the work fails.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = usage();
            while !done.load(Ordering::Relaxed) {
                let now = usage();
                if now.total() > most.total() {
                    most = now;
                }
                std::thread::sleep(Duration::from_micros(300));
            }
            most
        });
        let ends = Done(&done);
        work();
        drop(ends);
        watching.join().unwrap()
    })
}

/// Every load, within a limit that the data exceeds: with values in tables and apart.
#[test]
fn all_that_a_store_keeps_in_memory_stays_within_the_limit() {
    for limit in [6 * MIB, 10 * MIB] {
        for separate in [None, Some(256)] {
            let dir = tempfile::tempdir().unwrap();
            let environment = Environment::new(EnvironmentOptions::new().memory(limit)).unwrap();
            let keyspace = KeyspaceOptions::new().separate_values(separate);
            let options = Options::new().environment(&environment).default_keyspace(keyspace);
            let db = options.open(dir.path()).unwrap();
            writes(&db);
            for (name, load) in LOADS {
                let most = peak(|| environment.stats().usage, || load(&db));
                assert_eq!(most.limit, limit);
                assert!(most.total() <= limit + limit / SLACK, "{name}, {limit}, {separate:?}: {most:?}");
                let now = db.stats().memory.usage;
                assert_eq!(now.total(), now.uses().iter().map(|(_, bytes)| bytes).sum::<usize>());
            }
            assert_eq!(db.iter().count(), KEYS as usize, "{limit}");
        }
    }
}

/// Filters that exceed the limit are read in pages: every key is found, hardly any block is read
/// for one that is absent, and the limit holds.
#[test]
fn filters_beyond_the_limit_are_read_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let environment = Environment::new(EnvironmentOptions::new().memory(2 * MIB).background_threads(1)).unwrap();
    let count = 400_000u32;
    let filter = FilterPolicy::Bloom { bits_per_key: 24.0 };
    let keyspace = KeyspaceOptions::new().filter(filter).block_size(16 << 10);
    let db = Options::new().environment(&environment).default_keyspace(keyspace).open(dir.path()).unwrap();
    let reads = || db.stats().reads();
    let load = || {
        for i in 0..count {
            db.put((2 * i).to_be_bytes(), "").unwrap();
        }
        db.compact_range(..).unwrap();
        (0..count).step_by(19).for_each(|i| assert!(db.get((2 * i).to_be_bytes()).unwrap().is_some()));
        let before = reads();
        (0..count).step_by(19).for_each(|i| assert!(db.get((2 * i + 1).to_be_bytes()).unwrap().is_none()));
        let after = reads();
        assert!(after.block_reads - before.block_reads < u64::from(count) / 19 / 50, "{before:?} {after:?}");
    };
    let most = peak(|| environment.stats().usage, load);
    assert!(most.total() <= 2 * MIB + 2 * MIB / SLACK, "{most:?}");
    assert!(reads().filter_reads > 0, "{:?}", environment.stats());
    assert_eq!(db.keys(..).count(), count as usize);
}

/// Reads fill the room for indexes and filters; writes that come afterwards find theirs.
#[test]
fn writes_stay_within_the_limit_where_indexes_came_first() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 4 * MIB;
    let environment = Environment::new(EnvironmentOptions::new().memory(limit).background_threads(1)).unwrap();
    let count = 300_000u32;
    let filter = FilterPolicy::Bloom { bits_per_key: 24.0 };
    let keyspace = KeyspaceOptions::new().filter(filter).block_size(512);
    let options = Options::new().environment(&environment).default_keyspace(keyspace);
    let db = options.clone().open(dir.path()).unwrap();
    (0..count).for_each(|i| _ = db.put(i.to_be_bytes(), value(i, 60)).unwrap());
    db.compact_range(..).unwrap();
    db.close().unwrap();
    let db = options.open(dir.path()).unwrap();
    (0..count).step_by(7).for_each(|i| assert!(db.get(i.to_be_bytes()).unwrap().is_some()));
    let read = environment.stats().usage;
    assert!(read.indexes + read.filters > limit / 8 * 3, "{read:?}");
    let memtables = AtomicUsize::new(0);
    let usage = || {
        let usage = environment.stats().usage;
        memtables.fetch_max(usage.memtables, Ordering::Relaxed);
        usage
    };
    let most = peak(usage, || {
        // Tables over each other: what merges them holds the hashes of its keys.
        for i in (0..count).map(|i| i * 7919 % count) {
            db.put(i.to_be_bytes(), value(i, 70)).unwrap();
        }
        db.compact_range(..).unwrap();
    });
    assert!(most.total() <= limit + limit / SLACK, "{most:?}");
    assert!(memtables.into_inner() > limit / 16, "{most:?}");
    assert_eq!(db.keys(..).count(), count as usize);
}

/// What a memtable keeps of range deletes, and a copy with another filter, count like all else.
#[test]
fn range_deletes_and_new_filters_are_charged() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing is flushed meanwhile.
    let db = Options::new().memory(256 * MIB).open(dir.path()).unwrap();
    let before = db.stats().memory.usage.memtables;
    (0..20_000u32).for_each(|i| _ = db.delete_range((2 * i).to_be_bytes()..(2 * i + 1).to_be_bytes()).unwrap());
    let memory = db.stats().memory;
    assert!(memory.memtables > before + MIB, "{memory:?}");
    assert!(memory.usage.memtables >= memory.memtables, "{memory:?}");
    (0..200_000u32).for_each(|i| _ = db.put(i.to_be_bytes(), "").unwrap());
    db.compact_range(..).unwrap();
    let jobs = AtomicUsize::new(0);
    let usage = || {
        let usage = db.stats().memory.usage;
        jobs.fetch_max(usage.jobs, Ordering::Relaxed);
        usage
    };
    let remake = || {
        // Each takes tens of milliseconds.
        for _ in 0..100 {
            if jobs.load(Ordering::Relaxed) == 0 {
                db.remake_filters(|_| ()).unwrap();
            }
        }
    };
    peak(usage, remake);
    assert!(jobs.into_inner() > 200_000, "a hash of 8 bytes for each key of a table");
}

/// Stores of one environment, all within its limit, whatever each of them asks for.
#[test]
fn stores_of_one_environment_share_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let environment = Environment::new(EnvironmentOptions::new().memory(16 * MIB)).unwrap();
    let open = |n: usize| Options::new().environment(&environment).open(dir.path().join(n.to_string())).unwrap();
    let stores: Vec<Db> = (0..4).map(open).collect();
    let loads = [writes, gets, compactions, scans];
    stores.iter().for_each(writes);
    let most = peak(
        || environment.stats().usage,
        || {
            std::thread::scope(|scope| {
                for (db, load) in stores.iter().zip(loads) {
                    scope.spawn(move || load(db));
                }
            });
        },
    );
    assert!(most.total() <= 16 * MIB + 16 * MIB / SLACK, "{most:?}");
    let own: usize = stores.iter().map(|db| db.stats().memory.cache).sum();
    assert!(own <= environment.stats().usage.cache);
    drop(stores);
    let left = environment.stats().usage;
    assert_eq!((left.indexes, left.filters, left.scans, left.jobs, left.ranges), (0, 0, 0, 0, 0), "{left:?}");
}

#[test]
fn too_small_a_limit_is_refused() {
    for result in [
        Options::new().memory(MIB / 16 - 1).open_in_memory().map(drop),
        Environment::new(EnvironmentOptions::new().memory(0)).map(drop),
    ] {
        assert_eq!(result.unwrap_err().to_string(), "invalid argument: memory must be at least 64 KiB");
    }
    for limit in [MIB / 16, MIB] {
        let db = Options::new().memory(limit).open_in_memory().unwrap();
        writes(&db);
        gets(&db);
    }
}
