//! Read, modify, write: `cargo bench --bench updates [-- DIRECTORY]`.
//!
//! Counters are incremented, and money moves between accounts, by one thread and by several, with
//! the store's own operations and with what applications write without them: a mutex around get and
//! put. The ways take turns, round by round, on one store. Figures are medians over the rounds, in
//! nanoseconds per operation of all threads together.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tamis::operator::Add;
use tamis::{ByteOrder, Change, Db, Error, KeyspaceOptions, Options, WriteBatch};

const ROUNDS: usize = 5;
/// Per round and way.
const OPS: u64 = 200_000;

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"account 00000000";
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

fn number(value: Option<impl AsRef<[u8]>>) -> u64 {
    value.map_or(0, |bytes| u64::from_le_bytes(bytes.as_ref().try_into().unwrap()))
}

type Operation = fn(&Db, &Mutex<()>, &mut fastrand::Rng, u64);

fn put(db: &Db, _: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    db.put(key(rng.u64(0..keys)), 1u64.to_le_bytes()).unwrap();
}

fn locked_increment(db: &Db, mutex: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    let key = key(rng.u64(0..keys));
    let _guard = mutex.lock().unwrap();
    let sum = number(db.get(key).unwrap()) + 1;
    db.put(key, sum.to_le_bytes()).unwrap();
}

fn update(db: &Db, _: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    db.update(key(rng.u64(0..keys)), |value| Change::Put((number(value) + 1).to_le_bytes().to_vec())).unwrap();
}

fn fetch_add(db: &Db, _: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    db.fetch_add(key(rng.u64(0..keys)), 1u64, ByteOrder::Little).unwrap();
}

fn merge(db: &Db, _: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    db.merge(key(rng.u64(0..keys)), 1u64.to_le_bytes()).unwrap();
}

fn compare_and_swap(db: &Db, _: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    let key = key(rng.u64(0..keys));
    loop {
        let current = db.get(key).unwrap();
        let next = number(current.as_ref()) + 1;
        if db.compare_and_swap(key, current, Some(next.to_le_bytes())).unwrap().is_ok() {
            return;
        }
    }
}

/// Two keys, and what moves from the first to the second.
fn movement(rng: &mut fastrand::Rng, keys: u64) -> ([u8; 16], [u8; 16], u64) {
    let from = rng.u64(0..keys);
    (key(from), key((from + rng.u64(1..keys)) % keys), rng.u64(0..5))
}

fn unchecked_transfer(db: &Db, _: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    let (from, to, amount) = movement(rng, keys);
    let balances = (number(db.get(from).unwrap()), number(db.get(to).unwrap()));
    let mut batch = WriteBatch::new();
    batch.put(from, balances.0.wrapping_sub(amount).to_le_bytes());
    batch.put(to, balances.1.wrapping_add(amount).to_le_bytes());
    db.write(batch).unwrap();
}

fn locked_transfer(db: &Db, mutex: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    let _guard = mutex.lock().unwrap();
    unchecked_transfer(db, mutex, rng, keys);
}

fn transfer(db: &Db, _: &Mutex<()>, rng: &mut fastrand::Rng, keys: u64) {
    let (from, to, amount) = movement(rng, keys);
    db.transact(|tx| {
        let balances = (number(tx.get(from)?), number(tx.get(to)?));
        tx.put(from, balances.0.wrapping_sub(amount).to_le_bytes());
        tx.put(to, balances.1.wrapping_add(amount).to_le_bytes());
        Ok::<_, Error>(())
    })
    .unwrap();
}

const INCREMENTS: [(&str, Operation); 6] = [
    ("put", put),
    ("merge", merge),
    ("mutex, get, put", locked_increment),
    ("update", update),
    ("fetch_add", fetch_add),
    ("compare_and_swap", compare_and_swap),
];
const TRANSFERS: [(&str, Operation); 3] = [
    ("gets and a batch, unsafe", unchecked_transfer),
    ("mutex, gets, a batch", locked_transfer),
    ("transact", transfer),
];

/// Nanoseconds per operation.
fn time(db: &Db, operation: Operation, keys: u64, threads: u64, ops: u64) -> f64 {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let mutex = Mutex::new(());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let mutex = &mutex;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(SEED.fetch_add(1, Ordering::Relaxed));
                (0..ops / threads).for_each(|_| operation(db, mutex, &mut rng, keys));
            });
        }
    });
    start.elapsed().as_secs_f64() * 1e9 / ops as f64
}

fn compare(db: &Db, what: &str, ways: &[(&str, Operation)], keys: u64) {
    for threads in [1, 2, 4, 8] {
        let mut figures = vec![Vec::new(); ways.len()];
        for _ in 0..ROUNDS {
            for ((_, operation), figures) in ways.iter().zip(&mut figures) {
                figures.push(time(db, *operation, keys, threads, OPS));
            }
        }
        print!("{what}, {keys} keys, {threads} threads:");
        for ((name, _), figures) in ways.iter().zip(&mut figures) {
            figures.sort_by(f64::total_cmp);
            print!("  {name} {:.0}", figures[ROUNDS / 2]);
        }
        println!();
    }
}

/// Increments of counters in tables, which do not fit the cache: a merge does not read them.
fn compare_cold(dir: &Path) {
    const COUNTERS: u64 = 4_000_000;
    const COLD_OPS: u64 = 50_000;
    let counters = KeyspaceOptions::new().merge_operator(Add::LITTLE);
    let db = Options::new().cache_size(8 << 20).default_keyspace(counters).open(dir.join("cold")).unwrap();
    for first in (0..COUNTERS).step_by(1000) {
        let mut batch = WriteBatch::new();
        (first..first + 1000).for_each(|n| batch.put(key(n), 1000u64.to_le_bytes()));
        db.write(batch).unwrap();
    }
    db.compact_range(..).unwrap();
    let ways: [(&str, Operation); 3] = [("merge", merge), ("update", update), ("fetch_add", fetch_add)];
    for threads in [1, 4] {
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..3 {
            for ((_, operation), figures) in ways.iter().zip(&mut figures) {
                figures.push(time(&db, *operation, COUNTERS, threads, COLD_OPS));
            }
        }
        print!("increment, {COUNTERS} keys in tables, {threads} threads:");
        for ((name, _), figures) in ways.iter().zip(&mut figures) {
            figures.sort_by(f64::total_cmp);
            print!("  {name} {:.0}", figures[1]);
        }
        println!();
    }
}

fn main() {
    let arg = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    let dir = match arg {
        Some(dir) => tempfile::tempdir_in(Path::new(&dir)),
        None => tempfile::tempdir(),
    };
    let dir = dir.unwrap();
    let counters = KeyspaceOptions::new().merge_operator(Add::LITTLE);
    let db = Options::new().default_keyspace(counters).open(dir.path().join("db")).unwrap();
    for first in (0..1_000_000).step_by(1000) {
        let mut batch = WriteBatch::new();
        (first..first + 1000).for_each(|n| batch.put(key(n), 1000u64.to_le_bytes()));
        db.write(batch).unwrap();
    }
    for keys in [1, 1000, 1_000_000] {
        compare(&db, "increment", &INCREMENTS, keys);
    }
    for keys in [10, 1000, 1_000_000] {
        compare(&db, "transfer", &TRANSFERS, keys);
    }
    drop(db);
    compare_cold(dir.path());
}
