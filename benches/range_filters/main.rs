//! How many blocks seeks and scans read with range filters and without: over eight sets of keys, on
//! real files, with twelve runs in level 0 and three levels below, and nothing cached.
//!
//! Blocks are counted by the store and, on Linux, by the kernel (read calls of this process); the
//! program fails if they differ.
//!
//! `cargo bench --bench range_filters`. `TAMIS_KEYS` sets the number of keys (default 3,000,000),
//! `TAMIS_SETS` the sets (default all).
#![allow(missing_docs, reason = "a benchmark")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::cast_possible_truncation, reason = "a benchmark")]

#[path = "../../crates/filter/examples/range_codes/sets.rs"]
mod sets;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use sets::{Key, KeySet, SETS, Words};
use tamis::{
    Compression, Db, FilterLedger, KeyspaceOptions, Options, RangeFilterPolicy, ReadMode, ReadStats, SteppedExecutor,
};
use tamis_figures::{Table, command};

/// Runs in level 0.
const RUNS: usize = 12;
/// Questions of each kind.
const QUESTIONS: usize = 4000;
/// Short ranges: so many, that the rate of false positives is known to a twentieth.
const SHORT_RANGES: usize = 40_000;
/// Entries of a short scan.
const SHORT: usize = 10;
/// Lengths of empty ranges: one unit of the set, or mean gaps between neighbours.
const LENGTHS: [f64; 5] = [0.0, 1.0, 32.0, 1024.0, 1e6];
/// Of some sets, empty ranges are rare: fewer say nothing.
const LEAST: usize = 200;
const BITS: [f32; 4] = [0.0, 10.0, 12.0, 14.0];

/// A store of the keys with range filters of a policy, and the ledger's and the kernel's counts.
struct Store {
    _dir: tempfile::TempDir,
    db: Db,
    /// Bits per key of all range filters.
    bits: f64,
    /// Nanoseconds per key that the flushes to level 0 took.
    flush: f64,
}

impl Store {
    /// Seven tenths of the keys in the last level, half of the others in levels between, and the
    /// rest in level 0: runs of about 37,000 keys.
    fn new(keys: &[Key], bits: f32) -> Store {
        let dir = tempfile::tempdir().unwrap();
        let ranges =
            if bits > 0.0 { RangeFilterPolicy::Ordered { bits_per_key: bits } } else { RangeFilterPolicy::None };
        let keyspace = KeyspaceOptions::new().compression(Compression::None).range_filter(ranges);
        // The kernel is to count every read.
        let options = Options::new().cache_size(0).read_mode(ReadMode::Pread).hash_seed(7).default_keyspace(keyspace);
        let options = options.table_size(keys.len() as u64 * 4);
        let (last, rest) = keys.split_at(keys.len() * 70 / 100);
        let (middle, top) = rest.split_at(rest.len() / 2);
        let path = dir.path().join("db");
        let value = [7u8; 100];
        let put = |db: &Db, key: &Key| _ = db.put(key, value).unwrap();
        let db = options.clone().memtable_size(keys.len() / 2).open(&path).unwrap();
        last.iter().for_each(|key| put(&db, key));
        db.compact_range(..).unwrap();
        middle.iter().for_each(|key| put(&db, key));
        db.flush().unwrap();
        while db.stats().compaction_debt > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        db.close().unwrap();
        // Nothing compacts what this one flushes.
        let options = options.memtable_size(keys.len() * 4).executor(Arc::new(SteppedExecutor::new()));
        let db = options.open(&path).unwrap();
        let mut flushes = Duration::ZERO;
        for run in top.chunks(top.len().div_ceil(RUNS)) {
            run.iter().for_each(|key| put(&db, key));
            let begun = Instant::now();
            db.flush().unwrap();
            flushes += begun.elapsed();
        }
        // Opens every table.
        assert_eq!(db.iter().filter(|entry| entry.is_ok()).count(), keys.len());
        let stats = db.stats();
        let tables = || stats.keyspaces[0].levels.iter().flat_map(|level| &level.tables);
        let bytes: u64 = tables().filter_map(|table| table.range_filter.as_ref()?.info()).map(|info| info.bytes).sum();
        let flush = flushes.as_nanos() as f64 / top.len() as f64;
        Store { _dir: dir, db, bits: bytes as f64 * 8.0 / keys.len() as f64, flush }
    }

    fn shape(&self) -> String {
        let levels = self.db.stats().keyspaces[0].levels.iter().map(|level| level.tables.len()).collect::<Vec<_>>();
        levels.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    /// What `ask` reads, and nanoseconds for each of `count`.
    fn measure(&self, count: usize, ask: impl FnOnce()) -> (FilterLedger, f64, f64) {
        let overhead = read_calls().zip(read_calls()).map(|(a, b)| b - a);
        let (before, calls) = (self.db.stats().ledger(), read_calls());
        let begun = Instant::now();
        ask();
        let nanos = begun.elapsed().as_nanos() as f64 / count as f64;
        let calls = read_calls().zip(calls).zip(overhead).map(|((after, before), overhead)| after - before - overhead);
        let after = self.db.stats().ledger();
        let reads: ReadStats = after.reads - before.reads;
        if let Some(calls) = calls {
            assert_eq!(calls, reads.block_reads, "the kernel's number of read calls differs");
        }
        let predicted = after.expected_range_false_positives - before.expected_range_false_positives;
        let mut ledger = FilterLedger::default();
        (ledger.reads, ledger.expected_range_false_positives) = (reads, predicted);
        (ledger, reads.block_reads as f64 / count as f64, nanos)
    }
}

/// Read calls of this process so far.
fn read_calls() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("syscr:")?.trim().parse().ok())
}

/// Empty ranges of one length, at keys of the set, or near existing ones. Fewer than wanted if such
/// are rare.
fn empty_ranges(set: &KeySet, sorted: &[Key], near: bool, units: u64, words: &Words, rng: &mut Rng) -> Vec<(Key, Key)> {
    let gap = (set.gap)(sorted);
    let count = if units == 0 { SHORT_RANGES } else { QUESTIONS };
    let mut ranges = Vec::new();
    for tried in 0..200 * count {
        if ranges.len() == count || (tried > 20_000 && ranges.len() * 100 < tried) {
            break;
        }
        let from = match near {
            true => (set.add)(&sorted[rng.usize(..sorted.len())], ((gap / 10.0) as u64).max(1)),
            false => (set.make)(words, rng),
        };
        let until = (set.add)(&from, units.max(1));
        let next = sorted.partition_point(|key| *key < from);
        if until > from && next > 0 && sorted.get(next).is_some_and(|next| *next >= until) {
            ranges.push((from, until));
        }
    }
    ranges
}

/// What was measured with one size of the filter.
struct Measured {
    /// Blocks per empty range: of the first length at fresh starts, walked forward and back, and
    /// near keys; and at the worst.
    empty: [f64; 4],
    /// Blocks per seek that finds something, and per short scan.
    found: [f64; 2],
    /// Rate of false positives of short fresh ranges, predicted and measured.
    rates: [f64; 2],
    /// Microseconds per short empty range, and per seek that finds something.
    micros: [f64; 2],
}

/// Questions to all stores of one set of keys.
struct Questions {
    /// By start, fresh and near, and by length.
    empty: [Vec<Vec<(Key, Key)>>; 2],
    starts: Vec<Key>,
}

fn ask(store: &Store, sorted: &[Key], questions: &Questions) -> Measured {
    let none = || [f64::NAN; 2];
    let mut measured =
        Measured { empty: [f64::NAN, f64::NAN, f64::NAN, 0.0], found: none(), rates: none(), micros: none() };
    for (start, by_length) in questions.empty.iter().enumerate() {
        for (length, ranges) in by_length.iter().enumerate().filter(|(_, ranges)| ranges.len() >= LEAST) {
            let (ledger, blocks, nanos) = store.measure(ranges.len(), || {
                for (from, until) in ranges {
                    assert!(store.db.range(from..until).next().is_none());
                }
            });
            measured.empty[3] = measured.empty[3].max(blocks);
            if length == 0 {
                measured.empty[2 * start] = blocks;
            }
            if (start, length) == (0, 0) {
                let back = |(from, until): &(Key, Key)| store.db.range(from..until).next_back().is_none();
                (_, measured.empty[1], _) = store.measure(ranges.len(), || assert!(ranges.iter().all(back)));
                measured.micros[0] = nanos / 1000.0;
                let rates = [ledger.predicted_range_rate(), ledger.reads.range_false_positive_rate()];
                measured.rates = rates.map(|rate| rate.unwrap_or(f64::NAN) * 100.0);
            }
        }
    }
    let starts = &questions.starts;
    let (_, blocks, nanos) = store.measure(starts.len(), || {
        for from in starts {
            let found = store.db.range(from..).next().map(|entry| entry.unwrap().0.to_vec());
            assert_eq!(found.as_ref(), sorted.get(sorted.partition_point(|key| key < from)));
        }
    });
    (measured.found[0], measured.micros[1]) = (blocks, nanos / 1000.0);
    (_, measured.found[1], _) = store.measure(starts.len(), || {
        for from in starts {
            assert!(store.db.range(from..).take(SHORT).all(|entry| entry.is_ok()));
        }
    });
    measured
}

fn show(number: f64) -> String {
    if number.is_nan() { "-".to_owned() } else { format!("{number:.3}") }
}

fn main() {
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let keys = std::env::var("TAMIS_KEYS").map_or(3_000_000, |text| text.parse().unwrap());
    let sets = std::env::var("TAMIS_SETS").unwrap_or_default();
    let command = command("cargo bench --bench range_filters", &["TAMIS_KEYS", "TAMIS_SETS"]);
    let heads = ["keys", "bits", "empty", "back", "near", "worst", "seek", "ten", "predicted %", "measured %"];
    let mut blocks = Table::new("range_filters/blocks", &command, &heads).text_columns(2);
    let heads = ["keys", "bits", "µs, empty", "µs, seek", "ns, flush", "ns, compaction"];
    let mut times = Table::new("range_filters/times", &command, &heads).text_columns(2);
    let mut rng = Rng::with_seed(7);
    let words = Words::new(&mut rng);
    for set in SETS.iter().filter(|set| sets.is_empty() || sets.split(',').any(|name| name == set.name)) {
        let mut all: Vec<Key> = (0..keys).map(|_| (set.make)(&words, &mut rng)).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        // Some sets have few keys: each is written once.
        if sorted.len() < all.len() {
            all.clone_from(&sorted);
            rng.shuffle(&mut all);
        }
        let gap = (set.gap)(&sorted);
        let empty = [false, true].map(|near| {
            let of = |gaps| empty_ranges(set, &sorted, near, (gap * gaps) as u64, &words, &mut rng);
            LENGTHS.map(of).to_vec()
        });
        let starts = (0..QUESTIONS).map(|_| (set.make)(&words, &mut rng)).collect();
        let questions = Questions { empty, starts };
        for bits in BITS {
            let store = Store::new(&all, bits);
            println!("{} at {bits} bits: {:.2} used, tables per level {}", set.name, store.bits, store.shape());
            let measured = ask(&store, &sorted, &questions);
            let bits = if bits > 0.0 { format!("{bits}") } else { "none".to_owned() };
            let head = [set.name.to_owned(), bits];
            let rates = measured.rates.map(show);
            let counts = measured.empty.into_iter().chain(measured.found).map(show);
            blocks.row(head.clone().into_iter().chain(counts).chain(rates));
            let begun = Instant::now();
            store.db.compact_range(..).unwrap();
            let nanos = [store.flush, begun.elapsed().as_nanos() as f64 / sorted.len() as f64];
            let micros = measured.micros.map(|micros| format!("{micros:.1}"));
            times.row(head.into_iter().chain(micros).chain(nanos.map(|nanos| format!("{nanos:.0}"))));
        }
    }
    println!(
        "blocks per empty range of one unit, forward and back, and near keys, and at the worst of {LENGTHS:?} mean gaps; per seek \
         that finds something, and per scan of {SHORT}"
    );
    blocks.show();
    times.show();
}
