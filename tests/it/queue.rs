//! Does a scan over deleted keys cost no more than the entries it finds?
//!
//! The tests count tombstones that scans step over, never time.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use tamis::vfs::SimFileSystem;
use tamis::{Db, Executor, Iter, Options, Snapshot};

use crate::support::{count_from_env, for_each_seed, stepped_options, tiny_keyspace, tiny_options};

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

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The key whose number is `count` above that of `key`.
fn key_behind(key: &[u8], count: u32) -> Vec<u8> {
    let number: u32 = std::str::from_utf8(&key[2..]).unwrap().parse().unwrap();
    [&key[..2], format!("{:05}", number + count).as_bytes()].concat()
}

/// Several queues in one keyspace, and what they should hold.
struct TestQueues {
    rng: fastrand::Rng,
    fs: SimFileSystem,
    db: Option<Db>,
    executor: Arc<dyn Executor>,
    model: Map,
    snapshots: Vec<(Snapshot, Map)>,
    /// Iterators begun earlier, and what they must still return.
    iters: Vec<(Iter, std::collections::VecDeque<Vec<u8>>)>,
    /// The next number to be pushed, over all queues.
    next: u32,
    /// Up to where range deletes have purged each queue.
    purged: [u32; QUEUES as usize],
}

/// Number of queues; each has a prefix of its own.
const QUEUES: u8 = 3;

impl TestQueues {
    fn new(seed: u64) -> TestQueues {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = SimFileSystem::new();
        let (options, executor) = tiny_options(&fs, &mut rng);
        let db = options.default_keyspace(tiny_keyspace(&mut rng)).open("/db").unwrap();
        let (model, snapshots, iters) = Default::default();
        let purged = [1000; QUEUES as usize];
        TestQueues { rng, fs, db: Some(db), executor, model, snapshots, iters, next: 1000, purged }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn key(&mut self, number: u32) -> Vec<u8> {
        format!("q{}{:05}", self.rng.u8(0..QUEUES), number).into_bytes()
    }

    /// A key that may have existed.
    fn any_key(&mut self) -> Vec<u8> {
        let number = self.rng.u32(1000..=self.next);
        self.key(number)
    }

    fn put(&mut self, key: Vec<u8>) {
        let value = vec![self.rng.u8(..); self.rng.usize(0..20)];
        self.db().put(&key, &value).unwrap();
        self.model.insert(key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.db().delete(key).unwrap();
        self.model.remove(key);
    }

    fn delete_range(&mut self, range: Range<Vec<u8>>) {
        self.db().delete_range(range.clone()).unwrap();
        self.model.retain(|key, _| !range.contains(key));
    }

    /// Purges a queue from its front, in several ranges without a gap between them.
    fn purge(&mut self) {
        let queue = self.rng.u8(0..QUEUES);
        let key = |number: u32| format!("q{queue}{number:05}").into_bytes();
        for _ in 0..self.rng.u32(1..12) {
            let from = self.purged[usize::from(queue)];
            let to = from + self.rng.u32(1..12);
            self.purged[usize::from(queue)] = to;
            self.delete_range(key(from)..key(to));
        }
    }

    fn step(&mut self) {
        match self.rng.u8(0..100) {
            0..25 => {
                self.next += 1;
                let key = self.key(self.next);
                self.put(key);
            }
            25..45 => self.pop(true),
            45..50 => self.pop(false),
            50..53 => self.purge(),
            53..58 => {
                let key = self.any_key();
                self.put(key);
            }
            58..62 => {
                // All of a stretch, or all but some keys in it, one by one or as ranges.
                let (first, kept, len) = (self.any_key(), self.rng.u32(1..60), self.rng.u32(20..120));
                let step = self.rng.u32(0..5);
                for i in (0..len).filter(|i| i % kept != kept - 1).step_by(step.max(1) as usize) {
                    match step {
                        0 => self.delete(&key_behind(&first, i)),
                        _ => self.delete_range(key_behind(&first, i)..key_behind(&first, i + step)),
                    }
                }
            }
            62..74 => self.scan(),
            74..79 => self.walk(),
            79..82 => {
                let snapshot = self.db().snapshot();
                self.snapshots.push((snapshot, self.model.clone()));
            }
            82..85 if !self.snapshots.is_empty() => {
                let at = self.rng.usize(0..self.snapshots.len());
                self.snapshots.swap_remove(at);
            }
            85..90 => self.iterate(),
            90..95 => drop(self.executor.step()),
            95..97 => self.db().flush().unwrap(),
            97 => self.compact(),
            98 if self.rng.bool() => {
                let (a, b) = (self.any_key(), self.any_key());
                self.db().compact_range(a.clone().min(b.clone())..=a.max(b)).unwrap();
            }
            98 => self.reopen(),
            _ => self.put(Vec::new()),
        }
    }

    /// Deletes a few keys and compacts them, so that only older iterators still hold them.
    fn compact(&mut self) {
        for _ in 0..self.rng.u32(1..4) {
            let first = self.any_key();
            let end = key_behind(&first, self.rng.u32(1..30));
            if self.rng.bool() {
                let keys: Vec<Vec<u8>> =
                    self.model.range(first.clone()..end.clone()).map(|(key, _)| key.clone()).collect();
                keys.iter().for_each(|key| self.delete(key));
            }
            self.db().compact_range(first..end).unwrap();
            if self.rng.bool() {
                self.iterate();
            }
        }
    }

    /// Pops the first or the last entry of a queue, or of all queues.
    fn pop(&mut self, front: bool) {
        let prefix = format!("q{}", self.rng.u8(0..=QUEUES)).into_bytes();
        let found = match (self.rng.u8(0..3), front) {
            (0, true) => self.db().prefix(&prefix).next().map(|entry| entry.unwrap().0.to_vec()),
            (0, false) => self.db().prefix(&prefix).next_back().map(|entry| entry.unwrap().0.to_vec()),
            (1, true) => self.db().range(&prefix[..]..).next().map(|entry| entry.unwrap().0.to_vec()),
            (1, false) => self.db().range(..&prefix[..]).next_back().map(|entry| entry.unwrap().0.to_vec()),
            (_, true) => {
                let mut cursor = self.db().cursor().unwrap();
                cursor.seek(&prefix).unwrap().then(|| cursor.key().unwrap().to_vec())
            }
            (_, false) => {
                let mut cursor = self.db().cursor().unwrap();
                cursor.seek_to_last().unwrap().then(|| cursor.key().unwrap().to_vec())
            }
        };
        if let Some(key) = found {
            assert!(self.model.contains_key(&key), "{key:?} was popped before");
            self.delete(&key);
        }
    }

    /// Scans a range from both ends at once, now or in a snapshot, perhaps not to the end.
    fn scan(&mut self) {
        let (a, b) = (self.any_key(), self.any_key());
        let bounds = match self.rng.u8(0..5) {
            0 => (Bound::Unbounded, Bound::Unbounded),
            1 => (Bound::Included(b"q1".to_vec()), Bound::Excluded(b"q2".to_vec())),
            2 => (Bound::Included(a), Bound::Unbounded),
            3 => (Bound::Unbounded, Bound::Excluded(a)),
            _ => (Bound::Included(a.clone().min(b.clone())), Bound::Included(a.max(b))),
        };
        let at = self.rng.usize(0..=self.snapshots.len());
        let (iter, model) = match self.snapshots.get(at) {
            Some((snapshot, model)) => (snapshot.range(bounds.clone()), model),
            None => (self.db().range(bounds.clone()), &self.model),
        };
        let expected = model.range(bounds).map(|(key, _)| key.clone()).collect();
        self.iters.push((iter, expected));
        // Some iterators begin later.
        if self.rng.u8(0..3) > 0 {
            self.iterate();
        }
        if self.iters.len() > 6 {
            let at = self.rng.usize(0..self.iters.len());
            self.iters.swap_remove(at);
        }
    }

    /// Continues an iterator.
    fn iterate(&mut self) {
        if self.iters.is_empty() {
            return;
        }
        let at = if self.rng.bool() { self.iters.len() - 1 } else { self.rng.usize(0..self.iters.len()) };
        let (iter, expected) = &mut self.iters[at];
        let (most, bias) = (self.rng.usize(1..300), self.rng.u8(0..=4));
        for _ in 0..most {
            let forward = self.rng.u8(0..4) < bias;
            let found = if forward { iter.next() } else { iter.next_back() };
            let wanted = if forward { expected.pop_front() } else { expected.pop_back() };
            assert_eq!(found.map(|entry| entry.unwrap().0.to_vec()), wanted);
        }
    }

    /// Moves a cursor beside a position in a sorted list.
    fn walk(&mut self) {
        let at = self.rng.usize(0..=self.snapshots.len());
        let (mut cursor, model) = match self.snapshots.get(at) {
            Some((snapshot, model)) => (snapshot.cursor().unwrap(), model.clone()),
            None => (self.db().cursor().unwrap(), self.model.clone()),
        };
        let keys: Vec<Vec<u8>> = model.into_keys().collect();
        let mut at = None;
        for _ in 0..self.rng.u32(1..60) {
            let valid = match self.rng.u8(0..12) {
                0 => {
                    at = (!keys.is_empty()).then_some(0);
                    cursor.seek_to_first()
                }
                1 => {
                    at = keys.len().checked_sub(1);
                    cursor.seek_to_last()
                }
                2 => {
                    let key = self.any_key();
                    at = keys.iter().position(|k| *k >= key);
                    cursor.seek(&key)
                }
                3 => {
                    let key = self.any_key();
                    at = keys.iter().rposition(|k| *k <= key);
                    cursor.seek_for_prev(&key)
                }
                4..8 => {
                    at = at.and_then(|at: usize| (at + 1 < keys.len()).then_some(at + 1));
                    cursor.next()
                }
                _ => {
                    at = at.and_then(|at| at.checked_sub(1));
                    cursor.prev()
                }
            };
            assert_eq!(valid.unwrap(), at.is_some());
            assert_eq!(cursor.key(), at.map(|at| &keys[at][..]));
        }
    }

    fn reopen(&mut self) {
        (self.snapshots, self.iters) = Default::default();
        let db = self.db.take().unwrap();
        if self.rng.bool() {
            db.close().unwrap();
        } else {
            let killed = self.fs.kill();
            drop(db);
            self.fs = killed;
        }
        let (options, executor) = tiny_options(&self.fs, &mut self.rng);
        self.executor = executor;
        self.db = Some(options.open("/db").unwrap());
    }
}

#[test]
fn queues_agree_with_a_map() {
    let cases = count_from_env("TAMIS_CASES", 400);
    for_each_seed(cases, |seed| {
        let mut queues = TestQueues::new(seed);
        for _ in 0..queues.rng.u32(100..1500) {
            queues.step();
        }
        (queues.snapshots, queues.iters) = Default::default();
        for forward in [true, false] {
            let iter = queues.db().iter();
            let keys = |iter: &mut dyn Iterator<Item = tamis::Result<(tamis::Value, tamis::Value)>>| -> Vec<Vec<u8>> {
                iter.map(|entry| entry.unwrap().0.to_vec()).collect()
            };
            let found = if forward { keys(&mut { iter }) } else { keys(&mut iter.rev()) };
            let expected: Vec<Vec<u8>> = queues.model.keys().cloned().collect();
            assert!(if forward { found == expected } else { found.iter().rev().eq(&expected) });
        }
    });
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
