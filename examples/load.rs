//! Loads keys in random order, reads them back, and prints the cost: time, memory, space.
//!
//! `cargo run --release --example load -- [KEYS] [CACHE_MIB]`. The defaults are 5,000,000 keys of
//! 16 bytes with values of 100, and a cache of 256 MiB. The store is created in the temporary
//! directory and removed at the end.
#![allow(missing_docs, clippy::disallowed_methods, reason = "an example that looks at /proc")]

use std::error::Error;
use std::time::{Duration, Instant};

use tamis::{Compression, Db, KeyspaceOptions, Options, ReadOptions, WriteBatch, WriteOptions};

const VALUE_LEN: usize = 100;
const KEY_LEN: usize = 16;
/// Reads of each kind.
const READS: u64 = 1_000_000;
const SCANS: u64 = 100_000;
const SYNCED: u32 = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(5_000_000), |text| text.parse())?;
    let cache: usize = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("db");
    let options = || {
        let keyspace = KeyspaceOptions::new().compression(Compression::None);
        Options::new().cache_size(cache << 20).default_keyspace(keyspace)
    };

    let db = options().open(&path)?;
    fill(&db, keys)?;
    report_memory(&db, "after loading");
    reads(&db, keys, "fresh")?;
    let start = Instant::now();
    db.compact_range(..)?;
    println!("{:<28}{:>10.2} s", "compact", start.elapsed().as_secs_f64());
    report_space(&db, keys);
    reads(&db, keys, "settled")?;
    report_memory(&db, "after reading");
    scans(&db, keys)?;
    synced(&db)?;

    let start = Instant::now();
    db.close()?;
    println!("{:<28}{:>10.2} ms", "close", millis(start.elapsed()));
    let start = Instant::now();
    let db = options().open(&path)?;
    println!("{:<28}{:>10.2} ms", "open", millis(start.elapsed()));
    db.close()?;
    Ok(())
}

/// Even numbers exist; odd ones are missing keys between them.
fn key(number: u64) -> String {
    format!("{number:0KEY_LEN$}")
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn per_operation(what: &str, count: u64, time: Duration) {
    let nanos = time.as_secs_f64() * 1e9 / count as f64;
    println!("{what:<28}{nanos:>10.0} ns{:>12.0} k/s", 1e6 / nanos);
}

fn fill(db: &Db, keys: u64) -> tamis::Result<()> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut order: Vec<u64> = (0..keys).collect();
    rng.shuffle(&mut order);
    let mut value = [0; VALUE_LEN];
    let mut longest = Duration::ZERO;
    let start = Instant::now();
    for number in order {
        rng.fill(&mut value[..VALUE_LEN / 2]);
        let before = Instant::now();
        db.put(key(2 * number), value)?;
        longest = longest.max(before.elapsed());
    }
    per_operation("fill, random order", keys, start.elapsed());
    println!("{:<28}{:>10.2} ms", "longest write", millis(longest));
    let stats = db.stats();
    println!("{:<28}{:>10} in {:.2} s", "delayed writes", stats.delayed_writes, stats.delayed_time.as_secs_f64());
    let written = (stats.flushed_bytes + stats.compacted_bytes_out) as f64;
    println!("{:<28}{:>10.2}", "bytes written per byte", written / (keys as f64 * (KEY_LEN + VALUE_LEN) as f64));
    db.flush()
}

fn reads(db: &Db, keys: u64, state: &str) -> tamis::Result<()> {
    for (kind, missing) in [("existing", 0), ("missing", 1)] {
        let mut rng = fastrand::Rng::with_seed(2);
        let before = db.stats().reads();
        let start = Instant::now();
        for _ in 0..READS {
            let found = db.get(key(2 * rng.u64(0..keys) + missing))?;
            assert_eq!(found.is_some(), missing == 0);
        }
        per_operation(&format!("get {kind}, {state}"), READS, start.elapsed());
        let reads = db.stats().reads() - before;
        println!("{:<28}{:>10.4}", "  blocks read per key", reads.block_reads as f64 / READS as f64);
    }
    Ok(())
}

fn scans(db: &Db, keys: u64) -> tamis::Result<()> {
    let mut cursor = db.cursor_with(ReadOptions::new().fill_cache(false))?;
    let (mut count, start) = (0, Instant::now());
    let mut valid = cursor.seek_to_first()?;
    while valid {
        count += 1;
        valid = cursor.next()?;
    }
    assert_eq!(count, keys);
    per_operation("scan, per entry", count, start.elapsed());
    let (mut count, start) = (0, Instant::now());
    let mut valid = cursor.seek_to_last()?;
    while valid {
        count += 1;
        valid = cursor.prev()?;
    }
    assert_eq!(count, keys);
    per_operation("scan backward, per entry", count, start.elapsed());
    let mut rng = fastrand::Rng::with_seed(3);
    let start = Instant::now();
    for _ in 0..SCANS {
        let mut cursor = db.cursor()?;
        cursor.seek(key(2 * rng.u64(0..keys)))?;
        for _ in 0..10 {
            cursor.next()?;
        }
    }
    per_operation("seek and 10 steps", SCANS, start.elapsed());
    Ok(())
}

fn synced(db: &Db) -> tamis::Result<()> {
    let start = Instant::now();
    for number in 0..SYNCED {
        let mut batch = WriteBatch::new();
        batch.put(number.to_be_bytes(), [7; VALUE_LEN]);
        db.write_with(batch, WriteOptions::new().sync(true))?;
    }
    per_operation("synced write", SYNCED.into(), start.elapsed());
    Ok(())
}

fn report_space(db: &Db, keys: u64) {
    let bytes = db.stats().keyspaces.iter().map(|keyspace| keyspace.size()).sum::<u64>() as f64;
    println!("{:<28}{:>10.3}", "bytes on disk per byte", bytes / (keys as f64 * (KEY_LEN + VALUE_LEN) as f64));
}

fn report_memory(db: &Db, when: &str) {
    let memory = db.stats().memory;
    let mib = |bytes: usize| bytes >> 20;
    println!(
        "memory {when}: peak {} MiB; now memtables {}, cache {} of {}, filters and indexes {} MiB",
        peak_memory().unwrap_or(0),
        mib(memory.memtables),
        mib(memory.cache),
        mib(memory.cache_limit),
        mib(memory.filters_and_indexes),
    );
}

/// Peak resident set of this process in MiB, where the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? >> 10)
}
