//! Does the store keep its promises when many threads use it at once?
//!
//! Real threads, on the simulated file system and on the real one. Each test runs until every
//! thread has done its share, however slow the machine is; the watchdog ends a test that hangs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tamis::ReadMode;
use tamis::vfs::{Fault, FaultMode, FileSystem, OsFileSystem, SimFileSystem};
use tamis::{Compression, Db, Error, Keyspace, KeyspaceOptions, Options, Result, Snapshot, WriteBatch, WriteOptions};

use crate::support::{Watchdog, count_entries};

mod handles;
mod reads;

fn options(fs: Arc<dyn FileSystem>) -> Options {
    let small = KeyspaceOptions::new().block_size(512);
    Options::new()
        .file_system(fs)
        .memtable_size(16 << 10)
        .table_size(16 << 10)
        .cache_size(64 << 10)
        .max_open_files(16)
        .default_keyspace(small)
}

/// A stop flag. A panicking thread sets it too, so that the others end.
struct StopFlag(AtomicBool);

impl StopFlag {
    fn new() -> StopFlag {
        StopFlag(AtomicBool::new(false))
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn guard(&self) -> StopOnDrop<'_> {
        StopOnDrop(self)
    }

    /// Waits until `done`, or until a thread has panicked.
    fn wait_until(&self, done: impl Fn() -> bool) {
        while !self.is_set() && !done() {
            std::thread::yield_now();
        }
    }
}

struct StopOnDrop<'a>(&'a StopFlag);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

const ACCOUNTS: u32 = 200;
const EACH: i64 = 100;
const WRITERS: u32 = 2;

fn account(writer: u32, n: u32) -> String {
    format!("account {writer} {n:04}")
}

fn amount(value: &[u8]) -> i64 {
    i64::from_le_bytes(value[..8].try_into().unwrap())
}

/// An amount, followed by filler.
fn value(amount: i64, rng: &mut fastrand::Rng) -> Vec<u8> {
    [&amount.to_le_bytes()[..], &vec![7; rng.usize(0..60)]].concat()
}

/// Two keyspaces with accounts; money moves between them, and the sum stays constant.
struct Bank {
    db: Db,
    sides: [Keyspace; 2],
    /// Transfers, readers' rounds and rounds of [`Bank::churn`] so far.
    done: [AtomicU64; 3],
}

/// The minimum of each in [`Bank::done`].
const SHARE: [u64; 3] = [1000, 60, 60];

impl Bank {
    fn open(db: Db) -> Bank {
        let sides = ["left", "right"].map(|name| db.keyspace(name).unwrap());
        let mut batch = WriteBatch::new();
        for side in &sides {
            for (writer, n) in (0..WRITERS).flat_map(|w| (0..ACCOUNTS).map(move |n| (w, n))) {
                batch.put_in(side, account(writer, n), EACH.to_le_bytes());
            }
        }
        db.write(batch).unwrap();
        Bank { db, sides, done: Default::default() }
    }

    fn count(&self, kind: usize) {
        self.done[kind].fetch_add(1, Ordering::Relaxed);
    }

    fn is_done(&self) -> bool {
        self.done.iter().zip(SHARE).all(|(done, share)| done.load(Ordering::Relaxed) >= share)
    }

    /// Moves money between accounts of one writer, in batches that leave the sum unchanged.
    fn transfer(&self, writer: u32, stop: &StopFlag) {
        let _stop = stop.guard();
        let mut rng = fastrand::Rng::with_seed(writer.into());
        while !stop.is_set() {
            let mut batch = WriteBatch::new();
            let (a, b) = (rng.u32(0..ACCOUNTS), rng.u32(0..ACCOUNTS));
            let (from, to) = (account(writer, a), account(writer, b));
            let moved = rng.i64(0..50);
            let [left, right] = &self.sides;
            let get = |side: &Keyspace, key: &str| amount(&side.get(key).unwrap().expect("every account exists"));
            let (have, had) = (get(left, &from), get(right, &to));
            batch.delete_in(left, &from);
            batch.put_in(left, &from, value(have - moved, &mut rng));
            batch.put_in(right, &to, value(had + moved, &mut rng));
            let sync = rng.u8(0..64) == 0;
            let seqno = self.db.write_with(batch, WriteOptions::new().sync(sync)).unwrap();
            assert!(!sync || self.db.synced_seqno() >= seqno);
            assert_eq!(get(left, &from), have - moved, "a writer reads what it wrote");
            self.count(0);
        }
    }

    fn read(&self, seed: u64, stop: &StopFlag) {
        let _stop = stop.guard();
        let mut rng = fastrand::Rng::with_seed(seed);
        while !stop.is_set() {
            let snapshot = self.db.snapshot();
            let views = [0, 1].map(|side: usize| snapshot.keyspace(&self.sides[side]));
            let first = views.each_ref().map(|view| contents(view, rng.u8(0..4)));
            let total: i64 = first.iter().flat_map(|side| side.values()).map(|value| amount(value)).sum();
            assert_eq!(total, i64::from(2 * WRITERS * ACCOUNTS) * EACH, "part of a batch is seen");
            let again = views.each_ref().map(|view| contents(view, rng.u8(0..4)));
            assert!(first == again, "a snapshot has changed");
            let key = account(rng.u32(0..WRITERS), rng.u32(0..ACCOUNTS));
            assert_eq!(views[0].get(&key).unwrap().as_deref(), Some(&first[0][key.as_bytes()][..]));
            assert_eq!(views[0].get(format!("{key}x")).unwrap(), None);
            self.count(1);
        }
    }

    /// Flushes, compactions, keyspaces created and dropped, statistics.
    fn churn(&self, stop: &StopFlag) {
        let _stop = stop.guard();
        let mut rng = fastrand::Rng::with_seed(9);
        let (mut synced, mut flushed) = (0, 0);
        while !stop.is_set() {
            match rng.u8(0..6) {
                0 => self.db.flush().unwrap(),
                1 => self.sides[rng.usize(0..2)].compact_range(account(0, 50)..account(1, 20)).unwrap(),
                2 => self.db.sync().unwrap(),
                3 => {
                    let keyspace = self.db.keyspace("passing").unwrap();
                    for n in 0..50u32 {
                        keyspace.put(n.to_be_bytes(), [1; 100]).unwrap();
                    }
                    let iter = keyspace.iter();
                    assert!(self.db.drop_keyspace("passing").unwrap());
                    assert!(matches!(keyspace.get("k"), Err(Error::KeyspaceDropped(_))));
                    assert!(matches!(keyspace.put("k", "v"), Err(Error::KeyspaceDropped(_))));
                    assert_eq!(count_entries(iter), 50, "an open iterator continues");
                }
                _ => std::thread::yield_now(),
            }
            let stats = self.db.stats();
            for reads in stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.reads()) {
                assert_eq!(reads.probes, reads.negatives + reads.true_positives + reads.false_positives);
            }
            assert!(stats.background_error.is_none(), "{:?}", stats.background_error);
            assert!(stats.synced_seqno >= synced && stats.flushed_seqno >= flushed, "durable seqnos never fall");
            (synced, flushed) = (stats.synced_seqno, stats.flushed_seqno);
            self.count(2);
        }
    }
}

/// Everything in a snapshot of a keyspace, read in one of four ways.
fn contents(view: &Snapshot, way: u8) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let owned = |entry: Result<(tamis::Value, tamis::Value)>| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap();
    match way {
        0 => view.iter().map(owned).collect(),
        1 => view.iter().rev().map(owned).collect(),
        2 => {
            let mut iter = view.iter();
            let mut map = BTreeMap::new();
            while let Some(front) = iter.next() {
                map.extend([owned(front)]);
                map.extend(iter.next_back().map(owned));
            }
            map
        }
        _ => {
            let mut cursor = view.cursor().unwrap();
            let mut map = BTreeMap::new();
            let mut valid = cursor.seek_to_last().unwrap();
            while valid {
                let entry = cursor.key().zip(cursor.value()).unwrap();
                map.insert(entry.0.to_vec(), entry.1.to_vec());
                // Back and forth.
                cursor.prev().unwrap();
                valid = cursor.is_valid() && cursor.next().unwrap() && cursor.prev().unwrap();
            }
            map
        }
    }
}

fn run_bank(options: Options, dir: &Path) {
    let db = options.clone().open(dir).unwrap();
    let bank = Bank::open(db);
    let stop = StopFlag::new();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (bank, stop) = (&bank, &stop);
            scope.spawn(move || bank.transfer(writer, stop));
        }
        for seed in [1, 2] {
            let (bank, stop) = (&bank, &stop);
            scope.spawn(move || bank.read(seed, stop));
        }
        scope.spawn(|| bank.churn(&stop));
        stop.wait_until(|| bank.is_done());
        drop(stop.guard());
    });
    let stats = bank.db.stats();
    assert!(stats.flushes > 3 && stats.compactions > 0, "{stats:?}");
    // The store on disk holds the same.
    let Bank { db, sides, .. } = bank;
    let before = sides.each_ref().map(|side| contents(&side.snapshot(), 0));
    drop(sides);
    db.close().unwrap();
    let db = options.paranoid(true).open(dir).unwrap();
    let after = ["left", "right"].map(|name| contents(&db.keyspace(name).unwrap().snapshot(), 0));
    assert!(before == after);
}

#[test]
fn readers_see_whole_batches_and_snapshots_stay_on_the_simulated_file_system() {
    let _watchdog = Watchdog::new("the bank");
    run_bank(options(Arc::new(SimFileSystem::new())), Path::new("/db"));
}

#[test]
fn readers_see_whole_batches_and_snapshots_stay_on_the_real_file_system() {
    let _watchdog = Watchdog::new("the bank");
    let dir = tempfile::tempdir().unwrap();
    run_bank(options(Arc::new(OsFileSystem::new())), &dir.path().join("db"));
}

#[test]
fn readers_see_whole_batches_and_snapshots_stay_in_mapped_files() {
    let _watchdog = Watchdog::new("the bank");
    let dir = tempfile::tempdir().unwrap();
    run_bank(in_mapped_files(), &dir.path().join("db"));
}

/// Options of a store that maps all tables of the default keyspace.
fn in_mapped_files() -> Options {
    let plain = KeyspaceOptions::new().block_size(512).compression(Compression::None);
    options(Arc::new(OsFileSystem::new())).read_mode(ReadMode::Mmap).default_keyspace(plain)
}

/// A key of a thread that counts: each write sets one of 20 keys to the next number.
fn counter_key(thread: usize, n: u64) -> String {
    format!("{thread}/{}", n % 20)
}

/// The highest number that a thread has stored. It stands for all earlier writes of the thread.
fn count_of(db: &Db, thread: usize) -> u64 {
    let mut numbers: Vec<u64> = (0..20)
        .filter_map(|n| db.get(counter_key(thread, n)).unwrap())
        .map(|value| u64::from_le_bytes(value[..8].try_into().unwrap()))
        .collect();
    numbers.sort_unstable();
    let last = numbers.last().copied().unwrap_or(0);
    let expected: Vec<u64> = (last.saturating_sub(20) + 1..=last).collect();
    assert_eq!(numbers, expected, "thread {thread} left a hole");
    last
}

fn put_count(db: &Db, thread: usize, n: u64) -> Result<u64> {
    db.put(counter_key(thread, n), [&n.to_le_bytes()[..], &[1; 40]].concat())
}

#[test]
fn synced_writes_of_many_threads_survive_a_power_cut_at_any_moment() {
    let _watchdog = Watchdog::new("syncs");
    let fs = SimFileSystem::new();
    let db = options(Arc::new(fs.clone())).open("/db").unwrap();
    let stop = StopFlag::new();
    let acknowledged: [AtomicU64; 3] = Default::default();
    std::thread::scope(|scope| {
        let _stop = stop.guard();
        for (thread, acknowledged) in acknowledged.iter().enumerate() {
            let (db, stop) = (&db, &stop);
            scope.spawn(move || {
                let _stop = stop.guard();
                let mut synced = 0;
                for n in 1.. {
                    let seqno = put_count(db, thread, n).unwrap();
                    if n % 4 == 0 {
                        db.sync().unwrap();
                        let now = db.synced_seqno();
                        assert!(now >= seqno && now >= synced);
                        synced = now;
                        acknowledged.store(n, Ordering::SeqCst);
                    }
                    if stop.is_set() {
                        break;
                    }
                }
            });
        }
        let has_synced = |least| acknowledged.iter().all(|n| n.load(Ordering::SeqCst) > least);
        let mut seed = 0;
        while (seed < 60 || !has_synced(100)) && !stop.is_set() {
            seed += 1;
            let before = acknowledged.each_ref().map(|n| n.load(Ordering::SeqCst));
            let crashed = fs.crash(seed);
            let db = options(Arc::new(crashed)).open("/db").unwrap();
            for (thread, &n) in before.iter().enumerate() {
                let left = count_of(&db, thread);
                assert!(left >= n, "seed {seed}: thread {thread} has synced {n}, and {left} is left");
            }
        }
    });
}

#[test]
fn threads_that_sync_while_a_sync_fails_all_get_the_error_and_none_hangs() {
    // Issue 13: a thread that the failed sync had counted led next, and its count fell below zero.
    let _watchdog = Watchdog::new("failing syncs");
    for round in 0..20 {
        let fs = SimFileSystem::new();
        // Large, so that no put has to begin a log: that fails without harm, and then no thread
        // syncs.
        let db = options(Arc::new(fs.clone())).memtable_size(64 << 20).open("/db").unwrap();
        let synced = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (db, synced) = (&db, &synced);
                scope.spawn(move || {
                    let error = (1..).find_map(|n| {
                        let result = put_count(db, thread, n).and_then(|_| db.sync());
                        synced.fetch_add(1, Ordering::SeqCst);
                        result.err()
                    });
                    let error = error.expect("an endless range");
                    assert!(matches!(error, Error::Io { .. } | Error::Poisoned(_)), "{error}");
                });
            }
            while synced.load(Ordering::SeqCst) < 20 {
                std::thread::yield_now();
            }
            // Sticky: the first failing call may be one whose failure is harmless, such as
            // preparing a log.
            fs.set_fault(Some(Fault { at: 1 + round % 4, mode: FaultMode::Io, sticky: true }));
        });
        fs.set_fault(None);
        assert!(fs.fault_hit());
        assert!(matches!(db.sync(), Err(Error::Poisoned(_))));
    }
}

#[test]
fn two_callers_may_compact_the_same_range_while_others_write() {
    let _watchdog = Watchdog::new("compactions");
    let db = options(Arc::new(SimFileSystem::new())).open("/db").unwrap();
    let stop = StopFlag::new();
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (db, stop, total) = (&db, &stop, &total);
            scope.spawn(move || {
                let _stop = stop.guard();
                for n in 1.. {
                    put_count(db, thread, n).unwrap();
                    total.fetch_add(1, Ordering::Relaxed);
                    if stop.is_set() {
                        break;
                    }
                }
            });
        }
        let callers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let _stop = stop.guard();
                    // At least 40 rounds, and until the writers have come far, however slow they
                    // are.
                    let mut round = 0;
                    while round < 40 || total.load(Ordering::Relaxed) <= 1000 {
                        db.compact_range(..).unwrap();
                        round += 1;
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
    });
    assert!(total.load(Ordering::Relaxed) > 1000);
}

#[test]
fn read_only_handle_beside_a_writer_sees_everything_from_before_it_was_opened() {
    let _watchdog = Watchdog::new("read-only handles");
    let fs = SimFileSystem::new();
    let db = options(Arc::new(fs.clone())).open("/db").unwrap();
    let stop = StopFlag::new();
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stop = stop.guard();
            for n in 1.. {
                put_count(&db, 0, n).unwrap();
                acknowledged.store(n, Ordering::SeqCst);
                if stop.is_set() {
                    break;
                }
            }
        });
        let _stop = stop.guard();
        let mut read = 0;
        while read < 30 && !stop.is_set() {
            let before = acknowledged.load(Ordering::SeqCst);
            let reader = options(Arc::new(fs.clone())).open_read_only("/db").unwrap();
            assert!(reader.last_seqno() >= before, "{} of {before}", reader.last_seqno());
            // The reader misses, by name, tables that the writer has removed meanwhile.
            match reader.iter().collect::<Result<Vec<_>>>() {
                Ok(_) => read += 1,
                Err(Error::Io { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}
