//! The cost of point reads in memory: hits, hits in a hot set, and missing keys, on one settled
//! store.
//!
//! `cargo bench --bench reads -- DIR [WORKLOAD]...`. Creates the store in `DIR` if there is none:
//! 5,000,000 keys of 16 digits (or `TAMIS_KEYS`), values of 100 bytes, in one level. Existing keys
//! are even, missing ones odd. `TAMIS_CACHE` is the cache in MiB (default 1024), `TAMIS_ROUNDS` the
//! number of rounds over all workloads (default 3). Prints nanoseconds per read for each workload:
//! least and median.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use tamis::{Compression, Db, KeyspaceOptions, Options};

/// Keys of the hot set: adjacent ones, as in LevelDB's benchmark.
const HOT: u64 = 50_000;
/// Keys per multi-get.
const BATCH: u64 = 100;

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    let mut rest = number;
    for digit in key.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap();
        rest /= 10;
    }
    key
}

fn open(dir: &Path) -> Db {
    let cache = usize::try_from(from_env("TAMIS_CACHE", 1024)).unwrap() << 20;
    let keyspace = KeyspaceOptions::new().compression(Compression::None);
    Options::new().cache_size(cache).hash_seed(42).default_keyspace(keyspace).open(dir).unwrap()
}

fn fill(db: &Db, keys: u64) {
    let mut value = [0; 100];
    for i in 0..keys {
        value[..8].copy_from_slice(&(2 * i).to_le_bytes());
        db.put(key(2 * i), value).unwrap();
    }
    db.compact_range(..).unwrap();
}

/// Which keys a workload reads, and how.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    among: u64,
    missing: bool,
    read: fn(&Db, &mut dyn FnMut() -> u64, u64),
}

fn get(db: &Db, next: &mut dyn FnMut() -> u64, count: u64) {
    for _ in 0..count {
        let number = next();
        let value = db.get(key(number)).unwrap();
        assert_eq!(value.is_some(), number.is_multiple_of(2));
        black_box(value);
    }
}

fn get_into(db: &Db, next: &mut dyn FnMut() -> u64, count: u64) {
    let mut value = Vec::new();
    for _ in 0..count {
        let number = next();
        assert_eq!(db.get_into(key(number), &mut value).unwrap(), number.is_multiple_of(2));
        black_box(&value);
    }
}

fn multi_get(db: &Db, next: &mut dyn FnMut() -> u64, count: u64) {
    let mut keys = Vec::new();
    for _ in 0..count / BATCH {
        keys.clear();
        keys.extend((0..BATCH).map(|_| key(next())));
        let values = db.multi_get(&keys).unwrap();
        assert!(values.iter().all(Option::is_some));
        black_box(values);
    }
}

/// Runs `count` reads in each of `threads` threads; returns nanoseconds per read and thread.
fn run(db: &Db, workload: Workload, threads: u64, count: u64, seed: u64) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed * 64 + thread);
                let mut next = || rng.u64(0..workload.among) * 2 + u64::from(workload.missing);
                (workload.read)(db, &mut next, count);
            });
        }
    });
    start.elapsed().as_nanos() as f64 / count as f64
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let Some(dir) = arguments.next() else {
        println!("usage: cargo bench --bench reads -- DIR [WORKLOAD]...");
        return;
    };
    let wanted: Vec<String> = arguments.collect();
    let keys = from_env("TAMIS_KEYS", 5_000_000);
    let db = open(Path::new(&dir));
    if db.get(key(0)).unwrap().is_none() {
        fill(&db, keys);
    }
    let workload = |name, among, missing, read| Workload { name, among, missing, read };
    let workloads = [
        workload("readrandom", keys, false, get),
        workload("readhot", HOT, false, get),
        workload("readmissing", keys, true, get),
        workload("getinto", keys, false, get_into),
        workload("multiget100", keys, false, multi_get),
    ];
    let wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let workloads = workloads.into_iter().filter(|workload| wanted(workload.name));
    // Opens every table, and caches every block if the cache is large enough.
    for number in 0..keys {
        black_box(db.get(key(2 * number)).unwrap());
    }
    let count = from_env("TAMIS_COUNT", 1_000_000);
    let mut times: BTreeMap<(&str, u64), Vec<f64>> = BTreeMap::new();
    for round in 0..from_env("TAMIS_ROUNDS", 3) {
        for workload in workloads.clone() {
            for threads in [1, 2] {
                let time = run(&db, workload, threads, count, round);
                times.entry((workload.name, threads)).or_default().push(time);
            }
        }
    }
    for ((name, threads), mut times) in times {
        times.sort_by(f64::total_cmp);
        println!("{name:16} {threads} threads: {:7.1} ns least, {:7.1} ns median", times[0], times[times.len() / 2]);
    }
}
