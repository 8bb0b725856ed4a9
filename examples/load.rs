//! Loads keys in random order, reads them back, and prints the cost: time, memory, space.
//!
//! `cargo run --release --example load -- [KEYS] [CACHE_MIB]`. The defaults are 5,000,000 keys of
//! 16 bytes with values of 100, and a cache of 256 MiB. The store is created in the temporary
//! directory and removed at the end.
#![allow(missing_docs, clippy::disallowed_methods, reason = "an example that looks at /proc")]

use std::error::Error;
use std::time::{Duration, Instant};

use tamis::{Compression, Db, KeyspaceOptions, Options, ReadOptions, WriteBatch, WriteOptions};
use tamis_figures::{Table, millis};

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

    let name = format!("load/{} M keys", keys / 1_000_000);
    let command = format!("cargo run --release --example load -- {keys} {cache}");
    let mut table = Table::new(&name, &command, &["", "each", "per second"]);
    let db = options().open(&path)?;
    fill(&db, keys, &mut table)?;
    report_memory(&db, "after loading", &mut table);
    reads(&db, keys, "fresh", &mut table)?;
    let start = Instant::now();
    db.compact_range(..)?;
    table.row(["compact", &format!("{:.2} s", start.elapsed().as_secs_f64()), ""]);
    report_space(&db, keys, &mut table);
    reads(&db, keys, "settled", &mut table)?;
    report_memory(&db, "after reading", &mut table);
    scans(&db, keys, &mut table)?;
    synced(&db, &mut table)?;

    let start = Instant::now();
    db.close()?;
    table.row(["close", &millis(start.elapsed()), ""]);
    let start = Instant::now();
    let db = options().open(&path)?;
    table.row(["open", &millis(start.elapsed()), ""]);
    db.close()?;
    table.show();
    Ok(())
}

/// Even numbers exist; odd ones are missing keys between them.
fn key(number: u64) -> String {
    format!("{number:0KEY_LEN$}")
}

fn per_operation(table: &mut Table, what: &str, count: u64, time: Duration) {
    let nanos = time.as_secs_f64() * 1e9 / count as f64;
    table.row([what, &format!("{nanos:.0} ns"), &format!("{:.1} k", 1e6 / nanos)]);
}

fn fill(db: &Db, keys: u64, table: &mut Table) -> tamis::Result<()> {
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
    per_operation(table, "fill, random order", keys, start.elapsed());
    table.row(["longest write", &millis(longest), ""]);
    let stats = db.stats();
    let delayed = format!("{}, {:.2} s", stats.delayed_writes, stats.delayed_time.as_secs_f64());
    table.row(["delayed writes, all together", &delayed, ""]);
    let written = (stats.flushed_bytes + stats.compacted_bytes_out) as f64;
    let written = written / (keys as f64 * (KEY_LEN + VALUE_LEN) as f64);
    table.row(["bytes written to tables per byte", &format!("{written:.2}"), ""]);
    db.flush()
}

fn reads(db: &Db, keys: u64, state: &str, table: &mut Table) -> tamis::Result<()> {
    for (kind, missing) in [("existing", 0), ("missing", 1)] {
        let mut rng = fastrand::Rng::with_seed(2);
        let before = db.stats().reads();
        let start = Instant::now();
        for _ in 0..READS {
            let found = db.get(key(2 * rng.u64(0..keys) + missing))?;
            assert_eq!(found.is_some(), missing == 0);
        }
        per_operation(table, &format!("get {kind}, {state}"), READS, start.elapsed());
        let reads = db.stats().reads() - before;
        table.row(["— blocks read", &format!("{:.4}", reads.block_reads as f64 / READS as f64), ""]);
    }
    Ok(())
}

fn scans(db: &Db, keys: u64, table: &mut Table) -> tamis::Result<()> {
    let mut cursor = db.cursor_with(ReadOptions::new().fill_cache(false))?;
    let (mut count, start) = (0, Instant::now());
    let mut valid = cursor.seek_to_first()?;
    while valid {
        count += 1;
        valid = cursor.next()?;
    }
    assert_eq!(count, keys);
    per_operation(table, "scan, per entry", count, start.elapsed());
    let (mut count, start) = (0, Instant::now());
    let mut valid = cursor.seek_to_last()?;
    while valid {
        count += 1;
        valid = cursor.prev()?;
    }
    assert_eq!(count, keys);
    per_operation(table, "scan backward, per entry", count, start.elapsed());
    let mut rng = fastrand::Rng::with_seed(3);
    let start = Instant::now();
    for _ in 0..SCANS {
        let mut cursor = db.cursor()?;
        cursor.seek(key(2 * rng.u64(0..keys)))?;
        for _ in 0..10 {
            cursor.next()?;
        }
    }
    per_operation(table, "seek and 10 steps", SCANS, start.elapsed());
    Ok(())
}

fn synced(db: &Db, table: &mut Table) -> tamis::Result<()> {
    let start = Instant::now();
    for number in 0..SYNCED {
        let mut batch = WriteBatch::new();
        batch.put(number.to_be_bytes(), [7; VALUE_LEN]);
        db.write_with(batch, WriteOptions::new().sync(true))?;
    }
    per_operation(table, "synced write", SYNCED.into(), start.elapsed());
    Ok(())
}

fn report_space(db: &Db, keys: u64, table: &mut Table) {
    let bytes = db.stats().keyspaces.iter().map(|keyspace| keyspace.size()).sum::<u64>() as f64;
    let space = bytes / (keys as f64 * (KEY_LEN + VALUE_LEN) as f64);
    table.row(["bytes on disk per byte", &format!("{space:.3}"), ""]);
}

fn report_memory(db: &Db, when: &str, table: &mut Table) {
    let memory = db.stats().memory;
    let mib = |bytes: usize| bytes >> 20;
    let parts = [memory.memtables, memory.cache, memory.filters_and_indexes].map(mib);
    let peak = format!("{} MiB", peak_memory().unwrap_or(0));
    table.row([&format!("peak memory {when}"), &peak, ""]);
    let parts = format!("{}, {}, {} MiB", parts[0], parts[1], parts[2]);
    table.row(["— memtables, cache, filters and indexes", &parts, ""]);
}

/// Peak resident set of this process in MiB, where the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? >> 10)
}
