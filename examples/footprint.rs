//! How much memory N keys take: filters and indexes, by the number of keys and the size of values.
//!
//! `cargo run --release --example footprint -- [KEYS] [VALUE_LEN] [BLOCK_KIB]`. The defaults are a
//! million keys of 16 bytes, written in random order, with values of 100, and blocks of 4 KiB. It
//! prints a row of the table in docs/guide/memory.md. The store is created in the temporary
//! directory and removed at the end.
#![allow(missing_docs, clippy::disallowed_methods, reason = "an example that looks at /proc")]

use std::error::Error;

use tamis::{KeyspaceOptions, Options, WriteBatch};

const BATCH: u64 = 1000;
/// Reads of the end, which open every table.
const READS: u64 = 200_000;

/// Spread evenly, and in no order.
fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let value_len: usize = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let block_size: u32 = arguments.next().map_or(Ok(4), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let before = resident();
    let keyspace = KeyspaceOptions::new().block_size(block_size << 10);
    let db = Options::new().default_keyspace(keyspace).open(dir.path().join("db"))?;
    let value = vec![b'v'; value_len];
    for start in (0..keys).step_by(usize::try_from(BATCH)?) {
        let mut batch = WriteBatch::new();
        (start..keys.min(start + BATCH)).for_each(|number| batch.put(key(number), &value));
        db.write(batch)?;
    }
    db.compact_range(..)?;
    for read in 0..READS {
        assert!(db.get(key(read.wrapping_mul(keys / READS + 1) % keys))?.is_some());
    }
    let usage = db.stats().memory.usage;
    let mib = |bytes: usize| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    println!("MiB:\n| keys | value | KiB per block | filters | indexes | cache | memtables | all | resident |");
    println!(
        "| {keys} | {value_len} | {block_size} | {} | {} | {} | {} | {} | {} |",
        mib(usage.filters),
        mib(usage.indexes),
        mib(usage.cache),
        mib(usage.memtables),
        mib(usage.total()),
        mib(resident().saturating_sub(before)),
    );
    Ok(())
}

/// Bytes of anonymous memory of this process; 0 where the system does not tell.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).unwrap_or(0) << 10
}
