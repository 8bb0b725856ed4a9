//! The cost of scans and seeks over one run, over two levels, and over a tree that is being written
//! to; and the cost of merging alone.
//!
//! ```text
//! cargo bench --bench scans [-- WORD...]
//! ```
//!
//! Measures the cases whose names contain one of the words; all without words. `TAMIS_KEYS` sets
//! the number of keys (default 5,000,000). `TAMIS_BENCH_DIR` names a directory that keeps the
//! stores for the next run, so that two builds can be measured in turn on the same files. A figure
//! is the median of its rounds (and the least). No figure makes this program fail.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark"
)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tamis::{Compression, Cursor, Db, Executor, Job, KeyspaceOptions, Options, Priority};

const SEED: u64 = 42;
const ROUNDS: usize = 5;
const VALUE_LEN: usize = 100;
/// Seeks per round.
const SEEKS: u64 = 100_000;
/// Total entries in all runs of a merge.
const MERGED: u64 = 1_000_000;

/// Runs flushes, and compactions if enabled, on the thread that waits for them.
#[derive(Default)]
struct Stepper {
    high: Mutex<VecDeque<Job>>,
    low: Mutex<VecDeque<Job>>,
    compacting: AtomicBool,
}

impl Executor for Stepper {
    fn spawn(&self, priority: Priority, job: Job) {
        let queue = if priority == Priority::High { &self.high } else { &self.low };
        queue.lock().unwrap().push_back(job);
    }

    fn parallelism(&self) -> usize {
        1
    }

    fn step(&self) -> bool {
        let high = self.high.lock().unwrap().pop_front();
        let low = || self.low.lock().unwrap().pop_front();
        let job = high.or_else(|| self.compacting.load(Ordering::Relaxed).then(low).flatten());
        job.map(|job| job()).is_some()
    }
}

/// An open store and its executor.
struct BenchStore {
    db: Db,
    executor: Arc<Stepper>,
}

impl BenchStore {
    fn open(path: &Path, memtable_size: usize, cache_size: usize) -> BenchStore {
        let executor = Arc::new(Stepper::default());
        let options = Options::new()
            .memtable_size(memtable_size)
            .cache_size(cache_size)
            .hash_seed(SEED)
            .default_keyspace(KeyspaceOptions::new().compression(Compression::None));
        BenchStore { db: options.executor(executor.clone()).open(path).unwrap(), executor }
    }

    fn compacting(self, compacting: bool) -> BenchStore {
        self.executor.compacting.store(compacting, Ordering::Relaxed);
        self
    }

    fn put(&self, numbers: &[u64]) {
        for &number in numbers {
            self.db.put(key(number), [7; VALUE_LEN]).unwrap();
            while self.executor.step() {}
        }
    }

    fn run_count(&self) -> usize {
        self.db.stats().keyspaces[0].levels[0].tables.len()
    }

    /// Drops the remaining compactions: their jobs see that the store closes.
    fn close(self) {
        let BenchStore { db, executor } = self;
        executor.compacting.store(true, Ordering::Relaxed);
        db.close().unwrap();
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    let digits = number.to_string();
    key[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    key
}

#[derive(Clone, Copy, PartialEq)]
enum TreeShape {
    /// All keys in the last level.
    OneRun,
    /// A tenth of the keys in the level above the last.
    TwoLevels,
    /// Like `TwoLevels`, plus three runs of level 0 and a memtable with a hundredth of the keys
    /// each.
    Tree,
    /// A number of runs in level 0. If true, each has keys from the whole range; otherwise a range
    /// of its own.
    Runs(usize, bool),
}

/// Creates a store of the shape, unless it exists, and opens it.
fn store(dir: &Path, temporary: &Path, shape: TreeShape, keys: u64, cache_size: usize) -> BenchStore {
    const LARGE: usize = 256 << 20;
    let (name, keys) = match shape {
        TreeShape::OneRun => ("one".to_owned(), keys),
        TreeShape::TwoLevels => ("two".to_owned(), keys),
        TreeShape::Tree => ("tree".to_owned(), keys),
        TreeShape::Runs(n, scattered) => (format!("runs-{n}-{scattered}"), MERGED),
    };
    let mut path = dir.join(name);
    let mut numbers: Vec<u64> = (0..keys).collect();
    if !matches!(shape, TreeShape::Runs(_, false)) {
        fastrand::Rng::with_seed(SEED).shuffle(&mut numbers);
    }
    let share = |percent: u64| usize::try_from(keys * percent / 100).unwrap();
    let fresh = !path.exists();
    let in_memory = share(1);
    match shape {
        _ if !fresh => {}
        TreeShape::Runs(n, _) => {
            let store = BenchStore::open(&path, LARGE, 0);
            for run in numbers.chunks(numbers.len().div_ceil(n)) {
                store.put(run);
                store.db.flush().unwrap();
            }
            store.close();
        }
        TreeShape::OneRun | TreeShape::TwoLevels | TreeShape::Tree => {
            let upper = if shape == TreeShape::OneRun { 0 } else { share(10) };
            let newest = if shape == TreeShape::Tree { 3 * share(1) + in_memory } else { 0 };
            let (lower, rest) = numbers.split_at(numbers.len() - upper - newest);
            let store = BenchStore::open(&path, LARGE, 0).compacting(true);
            store.put(lower);
            store.db.compact_range(..).unwrap();
            let size = store.db.stats().keyspaces[0].size();
            store.close();
            // A smaller memtable makes the tree have more levels.
            let store = BenchStore::open(&path, usize::try_from(size / 64).unwrap(), 0).compacting(true);
            let (upper, newest) = rest.split_at(upper);
            store.put(upper);
            store.db.flush().unwrap();
            while store.run_count() > 0 && upper.len() > 1 {
                // Four runs of level 0 start a compaction.
                store.put(&upper[..1]);
                store.db.flush().unwrap();
                while store.executor.step() {}
            }
            let store = store.compacting(false);
            for run in newest[..newest.len().saturating_sub(in_memory)].chunks(share(1)) {
                store.put(run);
                store.db.flush().unwrap();
            }
            store.close();
        }
    }
    if shape == TreeShape::Tree {
        // The original is not written to: entries in its memtable would become another run when it
        // is reopened.
        path = copy(&path, &temporary.join(format!("tree-{cache_size}")));
    }
    let store = BenchStore::open(&path, LARGE, cache_size);
    if shape == TreeShape::Tree {
        store.put(&numbers[numbers.len() - in_memory..]);
    }
    store
}

fn copy(from: &Path, to: &Path) -> PathBuf {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    to.to_owned()
}

/// The median and the least time.
fn summary(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

fn report(name: &str, unit: &str, mut per_round: impl FnMut() -> (u64, f64)) {
    let times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (count, seconds) = per_round();
            seconds * 1e9 / count as f64
        })
        .collect();
    let (median, least) = summary(times);
    println!("{name:<44} {median:>9.1} ns/{unit:<6} (least {least:>8.1}) {:>9.3} M/s", 1e3 / median);
}

fn timed(work: impl FnOnce() -> u64) -> (u64, f64) {
    let start = Instant::now();
    let count = work();
    (count, start.elapsed().as_secs_f64())
}

/// Scans all entries, reading each key and value.
fn scan(cursor: &mut Cursor, forward: bool) -> u64 {
    let (mut count, mut bytes) = (0, 0);
    let mut valid = if forward { cursor.seek_to_first() } else { cursor.seek_to_last() }.unwrap();
    while valid {
        count += 1;
        bytes += cursor.key().unwrap().len() + cursor.value().unwrap().len();
        valid = if forward { cursor.next() } else { cursor.prev() }.unwrap();
    }
    black_box(bytes);
    count
}

/// Seeks random keys with one cursor, and reads up to `len` entries from each.
fn seeks(cursor: &mut Cursor, keys: u64, seeks: u64, len: u64, forward: bool) -> u64 {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut bytes = 0;
    for _ in 0..seeks {
        let key = key(rng.u64(0..keys));
        let mut valid = if forward { cursor.seek(key) } else { cursor.seek_for_prev(key) }.unwrap();
        for _ in 0..len {
            if !valid {
                break;
            }
            bytes += cursor.key().unwrap().len() + cursor.value().unwrap().len();
            valid = if forward { cursor.next() } else { cursor.prev() }.unwrap();
        }
    }
    black_box(bytes);
    seeks
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let keys = std::env::var("TAMIS_KEYS").map_or(5_000_000, |text| text.parse().unwrap());
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("TAMIS_BENCH_DIR");
    let dir = kept.as_deref().map_or(temporary.path(), Path::new);

    for (shape, shape_name) in [
        (TreeShape::OneRun, "one run"),
        (TreeShape::TwoLevels, "two levels"),
        (TreeShape::Tree, "3 L0, 2 levels, memtable"),
    ] {
        for (cache_size, cache_name) in [(1 << 30, "in cache"), (256 << 20, "cache 256 MiB")] {
            let name = |what: &str| format!("{shape_name}, {cache_name}: {what}");
            let cases = ["readseq", "readreverse", "iter", "seek", "seek+10", "seek+10 back", "scan100"];
            if !cases.iter().any(|what| wanted(&name(what))) {
                continue;
            }
            let store = store(dir, temporary.path(), shape, keys, cache_size);
            // Warm the cache by seeks: a long scan would not fill it.
            let mut cursor = store.db.cursor().unwrap();
            for number in (0..keys).step_by(10) {
                cursor.seek(key(number)).unwrap();
            }
            for forward in [true, false] {
                let name = name(if forward { "readseq" } else { "readreverse" });
                if wanted(&name) {
                    report(&name, "entry", || {
                        let mut cursor = store.db.cursor().unwrap();
                        timed(|| scan(&mut cursor, forward))
                    });
                }
            }
            if wanted(&name("iter")) {
                report(&name("iter"), "entry", || timed(|| store.db.iter().map(Result::unwrap).count() as u64));
            }
            for (what, len, forward) in
                [("seek", 1, true), ("seek+10", 11, true), ("seek+10 back", 11, false), ("scan100", 100, true)]
            {
                if wanted(&name(what)) {
                    let count = SEEKS.min(SEEKS * 10 / len);
                    report(&name(what), "seek", || {
                        let mut cursor = store.db.cursor().unwrap();
                        timed(|| seeks(&mut cursor, keys, count, len, forward))
                    });
                }
            }
            store.close();
        }
    }
    for (ways, scattered) in [(1, true), (2, true), (4, true), (8, true), (4, false)] {
        let name = format!("merge, {ways} runs, {}", if scattered { "random" } else { "disjoint" });
        if wanted(&name) {
            let store = store(dir, temporary.path(), TreeShape::Runs(ways, scattered), keys, 1 << 30);
            let mut cursor = store.db.cursor().unwrap();
            for number in (0..MERGED).step_by(5) {
                cursor.seek(key(number)).unwrap();
            }
            report(&name, "entry", || timed(|| scan(&mut cursor, true)));
            store.close();
        }
    }
}
