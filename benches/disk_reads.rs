//! How many disk reads filters save: missing and existing keys, filters used and ignored, on one
//! settled store.
//!
//! Counts come from the engine's counters and, on Linux, from the kernel's for this process
//! (`/proc/self/io`). Both are printed before the times, and the program fails if they disagree.
//! The store caches nothing, so every block access is a read; the system's page cache is used.
//!
//! `cargo bench --bench disk_reads`. `TAMIS_KEYS` sets the number of keys (default 1,000,000).
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use tamis::{Compression, Db, FilterMode, KeyspaceOptions, Options, ReadMode, ReadOptions, ReadStats};
use tamis_figures::{Table, command};

const SEED: u64 = 42;
/// Look-ups per count.
const LOOKUPS: u64 = 100_000;

/// A store with keys in two levels: most in the last one, and a newer tenth in level 0.
struct BenchStore {
    _dir: tempfile::TempDir,
    db: Db,
    keys: u64,
}

/// Even numbers are existing keys, odd ones missing keys: all lie within the range of every large
/// table.
fn key(number: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    let digits = number.to_string();
    key[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    key
}

impl BenchStore {
    fn new(keys: u64) -> BenchStore {
        let dir = tempfile::tempdir().unwrap();
        let db = Options::new()
            .cache_size(0)
            // So that the kernel counts every read.
            .read_mode(ReadMode::Pread)
            .hash_seed(SEED)
            .default_keyspace(KeyspaceOptions::new().compression(Compression::None))
            .open(dir.path().join("db"))
            .unwrap();
        let value = [7u8; 100];
        for i in (0..keys).filter(|i| i % 10 != 0) {
            db.put(key(2 * i), value).unwrap();
        }
        db.compact_range(..).unwrap();
        for i in (0..keys).filter(|i| i % 10 == 0) {
            db.put(key(2 * i), value).unwrap();
        }
        db.flush().unwrap();
        BenchStore { _dir: dir, db, keys }
    }

    /// A random key, existing or missing.
    fn draw(&self, rng: &mut fastrand::Rng, existing: bool) -> [u8; 16] {
        key(2 * rng.u64(0..self.keys) + u64::from(!existing))
    }
}

/// Read calls of this process so far, and the bytes they returned.
#[cfg(target_os = "linux")]
fn process_reads() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("syscr:")?, field("rchar:")?))
}

#[cfg(not(target_os = "linux"))]
fn process_reads() -> Option<(u64, u64)> {
    None
}

/// The cost of `LOOKUPS` look-ups, by the store's counters and the kernel's.
fn count(store: &BenchStore, existing: bool, filters: FilterMode) -> (ReadStats, Option<(u64, u64)>) {
    let options = ReadOptions::new().filters(filters);
    let mut rng = fastrand::Rng::with_seed(SEED);
    // The kernel also counts the reads of its own counters; they are subtracted.
    let overhead = process_reads().zip(process_reads()).map(|(a, b)| (b.0 - a.0, b.1 - a.1));
    let (stats, process) = (store.db.stats().reads(), process_reads());
    for _ in 0..LOOKUPS {
        let found = store.db.get_with(store.draw(&mut rng, existing), options).unwrap();
        assert_eq!(found.is_some(), existing);
    }
    let process = process_reads().zip(process).zip(overhead).map(|((after, before), overhead)| {
        ((after.0 - before.0).saturating_sub(overhead.0), (after.1 - before.1).saturating_sub(overhead.1))
    });
    (store.db.stats().reads() - stats, process)
}

fn disk_reads(criterion: &mut Criterion) {
    let keys = std::env::var("TAMIS_KEYS").map_or(1_000_000, |text| text.parse().unwrap());
    let store = BenchStore::new(keys);
    let cases = [
        ("missing, filters used", false, FilterMode::Use),
        ("missing, filters ignored", false, FilterMode::Ignore),
        ("existing, filters used", true, FilterMode::Use),
        ("existing, filters ignored", true, FilterMode::Ignore),
    ];
    // The first look-ups load filters and indexes; these reads are not of data blocks.
    count(&store, true, FilterMode::Use);

    println!("{keys} keys, {LOOKUPS} look-ups each, nothing cached by the store");
    let heads = ["get", "blocks read", "read calls of the process", "filters wrong", "blocks per key", "µs per key"];
    let mut table = Table::new("disk_reads/gets", &command("cargo bench --bench disk_reads", &["TAMIS_KEYS"]), &heads);
    for (name, existing, filters) in cases {
        let begin = Instant::now();
        let (stats, process) = count(&store, existing, filters);
        let micros = begin.elapsed().as_secs_f64() * 1e6 / LOOKUPS as f64;
        let calls = process.map_or("-".to_owned(), |(calls, _)| calls.to_string());
        let per_key = stats.block_reads as f64 / LOOKUPS as f64;
        let [blocks, wrong] = [stats.block_reads, stats.false_positives].map(|count| count.to_string());
        table.row([name.to_owned(), blocks, calls, wrong, format!("{per_key:.4}"), format!("{micros:.2}")]);
        if let Some((calls, bytes)) = process {
            assert_eq!(calls, stats.block_reads, "the kernel's number of read calls differs");
            assert_eq!(bytes, stats.block_bytes, "the kernel's number of bytes differs");
        }
    }

    table.show();

    let mut group = criterion.benchmark_group("get");
    for (name, existing, filters) in cases {
        let options = ReadOptions::new().filters(filters);
        let mut rng = fastrand::Rng::with_seed(SEED);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let key = store.draw(&mut rng, existing);
                black_box(store.db.get_with(key, options).unwrap())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, disk_reads);
criterion_main!(benches);
