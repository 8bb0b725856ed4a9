//! Seeks with ten steps, gets, and gets of absent keys: right after a load, while compactions run;
//! later, in a store that nobody writes to, which merges what it can (`db/work/quiet.rs`); and once
//! everything is flushed and the store has settled.
//!
//! ```text
//! cargo bench --bench unsettled
//! ```
//!
//! `TAMIS_KEYS` sets the number of keys (default 5,000,000; 100,000,000 take 12 GB of disk and two
//! minutes), of 16 bytes with values of 100. The cache has 53 bytes per key, 1 GiB at most.
//! `TAMIS_BENCH_DIR` names a directory for the store. No figure makes this program fail.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use tamis::{Compression, Db, KeyspaceOptions, Options};

const SEED: u64 = 42;
/// How long each read is measured.
const TIME: Duration = Duration::from_secs(3);
/// After this, the store has found that it is quiet.
const QUIET: Duration = Duration::from_secs(15);

fn main() {
    let keys = std::env::var("TAMIS_KEYS").map_or(5_000_000, |keys| keys.parse().expect("a number"));
    let dir = match std::env::var("TAMIS_BENCH_DIR") {
        Ok(dir) => tempfile::tempdir_in(dir).unwrap(),
        Err(_) => tempfile::tempdir().unwrap(),
    };
    let cache = usize::try_from(keys * 53).unwrap().min(1 << 30);
    let keyspace = KeyspaceOptions::new().compression(Compression::None);
    let db = Options::new().cache_size(cache).default_keyspace(keyspace).open(dir.path().join("db")).unwrap();

    let begun = Instant::now();
    load(&db, keys);
    println!("load: {:.1?}", begun.elapsed());
    measure(&db, keys, "at once");
    std::thread::sleep(QUIET);
    measure(&db, keys, "quiet");
    let begun = Instant::now();
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    println!("settling: {:.1?}", begun.elapsed());
    measure(&db, keys, "settled");
    db.close().unwrap();
}

/// Puts each key once, in an order without runs: steps of about 0.62 of all keys, around and
/// around.
fn load(db: &Db, keys: u64) {
    let step = (1..).map(|odd| 61_803_399 % keys + odd).find(|step| is_coprime(*step, keys)).unwrap();
    let (mut rng, mut value, mut at) = (fastrand::Rng::with_seed(SEED), [0; 100], 0);
    for _ in 0..keys {
        at = (at + step) % keys;
        rng.fill(&mut value);
        db.put(key(at), value).unwrap();
    }
}

fn is_coprime(a: u64, b: u64) -> bool {
    if b == 0 { a == 1 } else { is_coprime(b, a % b) }
}

fn key(i: u64) -> [u8; 16] {
    format!("{i:016}").into_bytes().try_into().unwrap()
}

fn measure(db: &Db, keys: u64, state: &str) {
    measure_read(db, keys, state, "seek and ten steps", |key| {
        let mut cursor = db.cursor().unwrap();
        let mut is_there = cursor.seek(key).unwrap();
        for _ in 0..10 {
            if !is_there {
                break;
            }
            black_box(cursor.value());
            is_there = cursor.next().unwrap();
        }
    });
    measure_read(db, keys, state, "get", |key| assert!(db.get(key).unwrap().is_some()));
    measure_read(db, keys, state, "get of an absent key", |key| {
        assert!(db.get([&key[..], b"x"].concat()).unwrap().is_none());
    });
}

/// Prints the median and the slowest hundredth of reads of random keys.
fn measure_read(db: &Db, keys: u64, state: &str, name: &str, read: impl Fn([u8; 16])) {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let blocks = || db.stats().reads().block_reads;
    let (begun, before, mut times) = (Instant::now(), blocks(), Vec::new());
    while begun.elapsed() < TIME {
        let key = key(rng.u64(..keys));
        let started = Instant::now();
        read(key);
        times.push(started.elapsed().as_nanos() as u32);
    }
    let reads = (blocks() - before) as f64 / times.len() as f64;
    times.sort_unstable();
    let (median, slow) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("{state}, {name}: {median} ns, p99 {slow} ns, {reads:.2} blocks read");
}
