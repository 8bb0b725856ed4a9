//! The cost of a write to its caller, by the way the log is written: `cargo bench --bench writes
//! [-- DIRECTORY]`.
//!
//! The modes take turns, round by round, each in a store of its own, so that a slow phase of the
//! machine affects all. Figures are medians over the rounds. Keys are 16 bytes and random, values
//! 100 bytes. DIRECTORY should be on the device to measure.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

use std::path::Path;
use std::time::Instant;

use tamis::{Db, KeyspaceOptions, Options, WalMode, WriteBatch, WriteOptions};
use tamis_figures::median;

const ROUNDS: usize = 7;
const PUTS: u64 = 300_000;
const SYNCED: u64 = 2_000;
const RECOVERED: u64 = 361_577;

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"0000000000000000";
    let digits = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24).to_string();
    key[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    key
}

/// Nanoseconds per operation.
fn per_op(ops: u64, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e9 / ops as f64
}

fn put_all(db: &Db, numbers: impl Iterator<Item = u64>) {
    for n in numbers {
        db.put(key(n), [7; 100]).unwrap();
    }
}

fn puts(db: &Db) -> f64 {
    per_op(PUTS, || put_all(db, 0..PUTS))
}

fn long_puts(db: &Db) -> f64 {
    per_op(PUTS / 10, || {
        (0..PUTS / 10).for_each(|n| {
            db.put(key(n), [7; 4000]).unwrap();
        })
    })
}

/// Puts by several threads, each with its share.
fn puts_by(db: &Db, threads: u64) -> f64 {
    per_op(PUTS, || {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    put_all(db, (thread..PUTS).step_by(threads as usize));
                });
            }
        });
    })
}

fn batches(db: &Db) -> f64 {
    per_op(PUTS, || {
        for first in (0..PUTS).step_by(100) {
            let mut batch = WriteBatch::new();
            (first..first + 100).for_each(|n| batch.put(key(n), [7; 100]));
            db.write(batch).unwrap();
        }
    })
}

fn synced(db: &Db, threads: u64) -> f64 {
    per_op(SYNCED, || {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    for n in (thread..SYNCED).step_by(threads as usize) {
                        let mut batch = WriteBatch::new();
                        batch.put(key(n), [7; 100]);
                        db.write_with(batch, WriteOptions::new().sync(true)).unwrap();
                    }
                });
            }
        });
    })
}

/// Every tenth write is synced.
fn mixed(db: &Db) -> f64 {
    per_op(SYNCED, || {
        for n in 0..SYNCED {
            let mut batch = WriteBatch::new();
            batch.put(key(n), [7; 100]);
            db.write_with(batch, WriteOptions::new().sync(n % 10 == 9)).unwrap();
        }
    })
}

/// Runs `work` in a fresh store of each kind in turn; prints nanoseconds per operation.
fn compare_stores(name: &str, dir: &Path, stores: [Options; 2], work: impl Fn(&Db) -> f64) {
    let mut times = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        for (store, times) in stores.iter().zip(&mut times) {
            let path = dir.join(format!("{round}"));
            let db = store.clone().open(&path).unwrap();
            times.push(work(&db));
            drop(db);
            std::fs::remove_dir_all(&path).unwrap();
        }
    }
    let [first, second] = times.map(median);
    println!("{name:28} {first:9.0} {second:9.0} {:6.2}", second / first);
}

/// Compares the ways to write the log.
fn compare(name: &str, dir: &Path, work: impl Fn(&Db) -> f64) {
    compare_stores(name, dir, [WalMode::Auto, WalMode::Write].map(|mode| Options::new().wal_mode(mode)), work);
}

/// Compares a keyspace with a log and one without.
fn compare_unlogged(name: &str, dir: &Path, work: impl Fn(&Db) -> f64) {
    let keyspaces = [true, false].map(|wal| KeyspaceOptions::new().wal(wal));
    compare_stores(name, dir, keyspaces.map(|keyspace| Options::new().default_keyspace(keyspace)), work);
}

/// Prints the milliseconds to open a store with a log of 40 MB left by a killed process, and one
/// that was closed.
fn open(dir: &Path) {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let (path, copy) = (dir.join("left"), dir.join("copy"));
        let db = Options::new().open(&path).unwrap();
        put_all(&db, 0..RECOVERED);
        // The files as a kill would leave them.
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        for (path, times) in [&copy, &copy].into_iter().zip(&mut times) {
            let start = Instant::now();
            let db = Options::new().open(path).unwrap();
            times.push(start.elapsed().as_secs_f64() * 1e3);
            assert_eq!(db.last_seqno(), RECOVERED);
            db.close().unwrap();
        }
        drop(db);
        [path, copy].iter().for_each(|path| std::fs::remove_dir_all(path).unwrap());
    }
    let [killed, closed] = times.map(median);
    println!("open, ms: {killed:.1} with {RECOVERED} writes in the log, {closed:.2} after a close");
}

fn main() {
    let dir = match std::env::args().nth(1).filter(|arg| !arg.starts_with('-')) {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let dir = dir.unwrap();
    println!("{:28} {:>9} {:>9} {:>6}", "ns per operation", "Auto", "Write", "ratio");
    compare("put", dir.path(), puts);
    compare("put, 2 threads", dir.path(), |db| puts_by(db, 2));
    compare("put, 8 threads", dir.path(), |db| puts_by(db, 8));
    compare("batch of 100, per put", dir.path(), batches);
    compare("synced put", dir.path(), |db| synced(db, 1));
    compare("synced put, 8 threads", dir.path(), |db| synced(db, 8));
    compare("every tenth put synced", dir.path(), mixed);
    println!("{:28} {:>9} {:>9} {:>6}", "", "log", "no log", "ratio");
    compare_unlogged("put", dir.path(), puts);
    compare_unlogged("put, 2 threads", dir.path(), |db| puts_by(db, 2));
    compare_unlogged("batch of 100, per put", dir.path(), batches);
    compare_unlogged("put of 4,000 bytes", dir.path(), long_puts);
    open(dir.path());
}
