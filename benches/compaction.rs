//! The cost of flushes and compactions: nanoseconds per entry, on the thread that runs them.
//!
//! The store runs on a stepped executor, so each flush and each compaction is one call that this
//! program times. It measures wall clock and, on Linux, the thread's processor time, which excludes
//! waiting for the device.
//!
//! `cargo bench --bench compaction`. `TAMIS_KEYS` sets the number of keys (default 5,000,000).
//! `TAMIS_DIR` sets the directory of the store; a directory in memory excludes the device.
//! `TAMIS_ORDER=sequential` sets the order of the keys (default random).
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tamis::{Compression, Db, Executor, KeyspaceOptions, Options, SteppedExecutor};

const KEY_LEN: usize = 16;
const VALUE_LEN: usize = 100;

/// The numbers below `keys` in a scattered order, each once: steps of a length coprime to `keys`.
struct Shuffled {
    keys: u64,
    step: u64,
    at: u64,
}

impl Shuffled {
    fn new(keys: u64, random: bool) -> Shuffled {
        let coprime = |step: &u64| {
            let (mut a, mut b) = (*step, keys);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a == 1
        };
        // The golden section puts successive numbers far apart.
        let golden = ((u128::from(keys) * 0x9e37_79b9_7f4a_7c15) >> 64) as u64;
        let step = if random { (golden.max(1)..).find(coprime).unwrap() } else { 1 };
        Shuffled { keys, step, at: 0 }
    }

    fn next(&mut self) -> u64 {
        self.at = (self.at + self.step) % self.keys;
        self.at
    }
}

/// Wall clock and processor time of this thread for some jobs.
#[derive(Clone, Copy, Default)]
struct Spent {
    wall: Duration,
    cpu: Duration,
    jobs: u64,
    /// Bytes of the tables read; for a flush, of the table written.
    bytes: u64,
}

impl Spent {
    fn add(&mut self, other: Spent) {
        self.wall += other.wall;
        self.cpu += other.cpu;
        self.jobs += other.jobs;
        self.bytes += other.bytes;
    }

    fn print(&self, what: &str, bytes_per_entry: f64) {
        let entries = self.bytes as f64 / bytes_per_entry;
        let each = |time: Duration| time.as_nanos() as f64 / entries;
        println!(
            "{what:<18} {:>4} jobs {:>9.0} entries {:>8.1} ns/entry {:>8.1} ns of processor",
            self.jobs,
            entries,
            each(self.wall),
            each(self.cpu)
        );
    }
}

/// Processor time of this thread so far; zero where the system does not report it.
fn thread_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

struct Bench {
    db: Db,
    executor: Arc<SteppedExecutor>,
    flushes: Spent,
    compactions: Spent,
    moves: u64,
}

impl Bench {
    /// Runs all queued background work.
    fn run_queued(&mut self) {
        while self.executor.pending() > 0 {
            let before = self.db.stats();
            let (wall, cpu) = (Instant::now(), thread_cpu());
            self.executor.step();
            let spent = Spent { wall: wall.elapsed(), cpu: thread_cpu() - cpu, jobs: 1, bytes: 0 };
            let after = self.db.stats();
            if after.flushes > before.flushes {
                self.flushes.add(Spent { bytes: after.flushed_bytes - before.flushed_bytes, ..spent });
            } else if after.compactions > before.compactions {
                self.compactions.add(Spent { bytes: after.compacted_bytes_in - before.compacted_bytes_in, ..spent });
            }
            self.moves = after.moves;
        }
    }
}

fn main() {
    let keys: u64 = std::env::var("TAMIS_KEYS").map_or(5_000_000, |keys| keys.parse().unwrap());
    let random = std::env::var("TAMIS_ORDER").map_or(true, |order| order != "sequential");
    let dir = std::env::var("TAMIS_DIR").map_or_else(|_| tempfile::tempdir(), tempfile::tempdir_in).unwrap();
    let executor = Arc::new(SteppedExecutor::new());
    let db = Options::new()
        .hash_seed(42)
        .executor(Arc::clone(&executor) as Arc<dyn Executor>)
        .default_keyspace(KeyspaceOptions::new().compression(Compression::None))
        .open(dir.path().join("db"))
        .unwrap();
    let mut bench = Bench { db, executor, flushes: Spent::default(), compactions: Spent::default(), moves: 0 };

    let mut rng = fastrand::Rng::with_seed(42);
    let values: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take((1 << 20) + VALUE_LEN).collect();
    let mut order = Shuffled::new(keys, random);
    let start = Instant::now();
    for _ in 0..keys {
        let number = order.next();
        let at = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as usize;
        bench.db.put(format!("{number:016}"), &values[at..at + VALUE_LEN]).unwrap();
        bench.run_queued();
    }
    println!("{keys} keys of {KEY_LEN} bytes and values of {VALUE_LEN}: {:.2?} in all", start.elapsed());
    let stats = bench.db.stats();
    let entries: u64 = stats.keyspaces[0].levels.iter().map(|level| level.entries()).sum();
    let bytes: u64 = stats.keyspaces[0].levels.iter().map(|level| level.size()).sum();
    let bytes_per_entry = bytes as f64 / entries as f64;
    bench.flushes.print("flush", bytes_per_entry);
    bench.compactions.print("compaction", bytes_per_entry);
    println!("{} moves, {bytes_per_entry:.1} bytes per entry", bench.moves);

    let (before, wall, cpu) = (bench.db.stats(), Instant::now(), thread_cpu());
    bench.db.compact_range(..).unwrap();
    let (wall, cpu) = (wall.elapsed(), thread_cpu() - cpu);
    let after = bench.db.stats();
    let jobs = after.compactions - before.compactions;
    let bytes = after.compacted_bytes_in - before.compacted_bytes_in;
    Spent { wall, cpu, jobs, bytes }.print("compact_range", bytes_per_entry);
    let written = after.flushed_bytes + after.compacted_bytes_out;
    let user = keys as usize * (KEY_LEN + VALUE_LEN);
    println!("written to tables: {:.2} times what was put", written as f64 / user as f64);
}
