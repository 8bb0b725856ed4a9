//! Does a scan over deleted keys cost no more than the entries it finds?
//!
//! The tests count tombstones that scans step over, never time.

use std::sync::Arc;

use tamis::vfs::SimFileSystem;
use tamis::{Db, Executor, Iter, Options};

use crate::support::{count_from_env, stepped_options};

/// Tombstones that one pop may step over: twice as many as a cursor passes before it looks for a
/// gap to jump, and those of pops since the last claim.
const MOST_PASSED: u64 = 64;

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// A queue in the default keyspace.
struct TestQueue {
    db: Db,
    executor: Arc<dyn Executor>,
    live: std::collections::VecDeque<u64>,
    next: u64,
}

impl TestQueue {
    fn new(options: impl FnOnce(Options) -> Options) -> TestQueue {
        let (plain, executor) = stepped_options(&SimFileSystem::new());
        TestQueue { db: options(plain).open("/db").unwrap(), executor, live: Default::default(), next: 0 }
    }

    fn push(&mut self) {
        self.db.put(key(self.next), b"value").unwrap();
        self.live.push_back(self.next);
        self.next += 1;
    }

    /// Pops the entry that `iter` finds, which must be `expected`.
    fn take(&mut self, mut iter: Iter, forward: bool, expected: u64) {
        let entry = if forward { iter.next() } else { iter.next_back() };
        let (found, _) = entry.expect("the queue is not empty").unwrap();
        assert_eq!(*found, key(expected));
        self.db.delete(found).unwrap();
    }

    fn pop_front(&mut self) {
        let expected = self.live.pop_front().unwrap();
        self.take(self.db.iter(), true, expected);
    }

    fn pop_back(&mut self) {
        let expected = self.live.pop_back().unwrap();
        self.take(self.db.range(..key(u64::MAX)), false, expected);
    }

    fn passed(&self) -> u64 {
        self.db.stats().reads().tombstones_passed
    }

    /// Runs `step` `count` times, and returns the average number of tombstones that each of the
    /// next hundred steps passes.
    fn passed_by(&mut self, count: u64, mut step: impl FnMut(&mut TestQueue)) -> u64 {
        (0..count).for_each(|_| step(self));
        let before = self.passed();
        (0..100).for_each(|_| step(self));
        (self.passed() - before) / 100
    }
}

/// Pops before a test measures the cost of one.
const POPS: u64 = 50_000;

#[test]
fn a_pop_from_a_memtable_passes_few_tombstones_however_many_were_popped() {
    let mut queue = TestQueue::new(|options| options);
    (0..1000).for_each(|_| queue.push());
    let passed = queue.passed_by(POPS, |queue| {
        queue.push();
        queue.pop_front();
    });
    assert!((1..MOST_PASSED).contains(&passed), "a pop passes {passed} tombstones");
}

#[test]
fn a_pop_from_either_end_passes_few_tombstones_in_memtables_and_tables() {
    // Small memtables: most popped entries are in tables, in level 0 and below.
    let mut queue = TestQueue::new(|options| options.memtable_size(64 << 10).table_size(64 << 10));
    (0..1000).for_each(|_| queue.push());
    for (end, pop) in [("front", TestQueue::pop_front as fn(&mut TestQueue)), ("back", TestQueue::pop_back)] {
        let passed = queue.passed_by(POPS / 5, |queue| {
            queue.push();
            pop(queue);
            queue.executor.step();
        });
        assert!(passed < MOST_PASSED, "a pop from the {end} passes {passed} tombstones");
    }
    assert!(queue.db.stats().flushes > 10);
}

/// The queues of one keyspace take turns, so that the next queue is always the least recently used.
#[test]
fn a_pop_passes_few_tombstones_whatever_the_number_of_queues() {
    const QUEUES: u32 = 300;
    let (options, _executor) = stepped_options(&SimFileSystem::new());
    let db = options.open("/db").unwrap();
    let key = |queue: u32, i: u32| [queue.to_be_bytes(), i.to_be_bytes()].concat();
    for queue in 0..QUEUES {
        db.put(key(queue, 0), "").unwrap();
    }
    let turn = |i: u32| {
        for queue in 0..QUEUES {
            db.put(key(queue, i + 1), "").unwrap();
            let (first, _) = db.prefix(queue.to_be_bytes()).next().unwrap().unwrap();
            assert_eq!(*first, *key(queue, i));
            db.delete(first).unwrap();
        }
    };
    (0..200).for_each(turn);
    let passed = || db.stats().reads().tombstones_passed;
    let before = passed();
    (200..220).for_each(turn);
    let each = (passed() - before) / u64::from(20 * QUEUES);
    assert!(each < MOST_PASSED, "a pop passes {each} tombstones");
}

#[test]
fn a_scan_of_deleted_keys_that_a_snapshot_keeps_passes_few_the_second_time() {
    let mut queue = TestQueue::new(|options| options);
    (0..2000).for_each(|_| queue.push());
    let (snapshot, older) = (queue.db.snapshot(), queue.live.clone());
    (0..1999).for_each(|_| queue.pop_front());
    queue.db.flush().unwrap();
    queue.db.compact_range(..).unwrap();
    let passed_by = |scan: &dyn Fn() -> usize, expected: usize| {
        let before = queue.passed();
        assert_eq!(scan(), expected);
        queue.passed() - before
    };
    let now = || queue.db.iter().count();
    let backward = || queue.db.iter().rev().count();
    let bounded = || queue.db.range(key(100)..key(1500)).count();
    let then = || snapshot.iter().count();
    now();
    backward();
    for scan in [&now as &dyn Fn() -> usize, &backward] {
        let passed = passed_by(scan, 1);
        assert!((1..MOST_PASSED).contains(&passed), "{passed}");
    }
    assert!(passed_by(&bounded, 0) < MOST_PASSED);
    assert_eq!(passed_by(&then, older.len()), 0);
}

#[test]
fn a_scan_of_a_range_passes_no_tombstones_behind_it() {
    let queue = TestQueue::new(|options| options);
    for i in 0..10_000 {
        queue.db.delete(key(i)).unwrap();
    }
    assert!(queue.db.range(key(0)..key(10)).next().is_none());
    assert!(queue.db.range(key(9_990)..).next_back().is_none());
    assert!(queue.passed() < MOST_PASSED, "{}", queue.passed());
}

/// A compaction drops an entry together with the tombstone that hides it. An iterator that is older
/// than both still holds the entry, and must ignore the note of a scan that has seen neither.
#[test]
fn an_old_iterator_sees_entries_that_a_compaction_has_dropped_since() {
    for (forward, confirmed) in [(true, false), (false, false), (true, true), (false, true)] {
        let (options, _executor) = stepped_options(&SimFileSystem::new());
        let db = options.open("/db").unwrap();
        let first = |mut iter: Iter| {
            let entry = if forward { iter.next() } else { iter.next_back() };
            entry.map(|entry| entry.unwrap().0.to_vec())
        };
        let (passed, dropped, last) = if forward { ("a", "b", "c") } else { ("c", "b", "a") };
        let put = || {
            db.put(dropped, "1").unwrap();
            db.flush().unwrap();
            db.compact_range(dropped..=dropped).unwrap();
        };
        db.put(last, "1").unwrap();
        if !confirmed {
            put();
        }
        db.compact_range(..).unwrap();
        // They stay in level 0.
        (0..40).for_each(|i| assert!(db.delete(format!("{passed}{i:02}")).is_ok()));
        db.flush().unwrap();
        if confirmed {
            // A later scan confirms this one's note.
            assert_eq!(first(db.iter()).as_deref(), Some(last.as_bytes()));
            put();
        }
        let (old, as_old) = (db.iter(), db.iter());
        db.delete(dropped).unwrap();
        db.compact_range(dropped..=dropped).unwrap();
        let entries: u64 =
            db.stats().keyspaces[0].levels.iter().flat_map(|level| &level.tables).map(|table| table.entries).sum();
        assert_eq!(entries, 41, "both entry and tombstone are dropped");
        assert_eq!(first(db.iter()).as_deref(), Some(last.as_bytes()));
        assert_eq!(first(old).as_deref(), Some(dropped.as_bytes()), "forward {forward}, confirmed {confirmed}");
        assert_eq!(as_old.count(), 2);
    }
}

/// A writer advances a queue, one entry in and one out at once, while others read it from both
/// ends. Memtables are switched all the time: a reader's snapshot may be newer than the memtables
/// that it reads.
#[test]
fn readers_beside_a_queue_see_one_moment_of_it() {
    const LIVE: u64 = 20;
    let moves = count_from_env("TAMIS_CASES", 30_000);
    let options = Options::new().file_system(Arc::new(SimFileSystem::new())).memtable_size(16 << 10);
    let db = options.background_threads(2).open("/db").unwrap();
    for i in 0..LIVE {
        db.put(key(i), b"").unwrap();
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for forward in [true, false] {
            let (db, done) = (&db, &done);
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let iter = db.iter();
                    let number = |entry: tamis::Result<(tamis::Value, tamis::Value)>| {
                        u64::from_be_bytes(entry.unwrap().0[..].try_into().unwrap())
                    };
                    let mut found: Vec<u64> = match forward {
                        true => iter.map(number).collect(),
                        false => iter.rev().map(number).collect(),
                    };
                    if !forward {
                        found.reverse();
                    }
                    let expected: Vec<u64> = (found[0]..found[0] + LIVE).collect();
                    assert_eq!(found, expected);
                }
            });
        }
        let mut written = Ok(());
        for i in 0..moves {
            let mut batch = tamis::WriteBatch::new();
            batch.delete(key(i));
            batch.put(key(i + LIVE), b"");
            written = written.and(db.write(batch).map(drop));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        written.unwrap();
    });
}
