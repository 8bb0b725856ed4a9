//! Many small keys within a limit of memory: what reads cost, and what the process takes.
//!
//! `cargo run --release --example memory -- [KEYS] [MIB] [BITS]`. The defaults are 20,000,000 keys
//! of 16 bytes with values of 20, a limit of 64 MiB, and filters of 10 bits per key. The store is
//! created in the temporary directory and removed at the end.
#![allow(missing_docs, clippy::disallowed_methods, reason = "an example that looks at /proc")]

use std::error::Error;

use tamis::{Compression, Db, FilterPolicy, KeyspaceOptions, Options, WriteBatch};
use tamis_figures::Table;

const READS: u64 = 200_000;
const BATCH: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(20_000_000), |text| text.parse())?;
    let memory: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let bits_per_key: f32 = arguments.next().map_or(Ok(10.0), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let keyspace = KeyspaceOptions::new().compression(Compression::None).filter(FilterPolicy::Bloom { bits_per_key });
    let options = Options::new().memory(memory << 20).default_keyspace(keyspace);
    let db = options.open(dir.path().join("db"))?;

    let name = format!("memory/{} M keys", keys / 1_000_000);
    let command = format!("cargo run --release --example memory -- {keys} {memory} {bits_per_key}");
    let mut table = Table::new(&name, &command, &["", "", "filter pages", "data blocks"]);
    let before = resident("VmRSS");
    for start in (0..keys).step_by(usize::try_from(BATCH)?) {
        let mut batch = WriteBatch::new();
        (start..keys.min(start + BATCH)).for_each(|i| batch.put(key(mixed(i, keys)), [b'v'; 20]));
        db.write(batch)?;
    }
    db.compact_range(..)?;
    for round in ["first", "again"] {
        for (kind, offset) in [("absent", 1), ("present", 0)] {
            let reads = db.stats().reads();
            for i in 0..READS {
                let number = mixed(i.wrapping_mul(0x9e37_79b9), keys);
                assert_eq!(db.get(key(number + offset * keys))?.is_some(), offset == 0);
            }
            let after = db.stats().reads();
            let each = |count: u64| format!("{:.3} per read", count as f64 / READS as f64);
            let counts = [after.filter_reads - reads.filter_reads, after.block_reads - reads.block_reads];
            table.row([&format!("{kind}, {round}"), "", &each(counts[0]), &each(counts[1])]);
        }
    }
    let usage = db.stats().memory.usage;
    for (purpose, bytes) in usage.uses().into_iter().chain([("limit", usage.limit)]) {
        table.row([purpose, &mib(bytes as u64), "", ""]);
    }
    table.row(["resident now, without the program", &mib(resident("VmRSS") - before), "", ""]);
    table.row(["resident at most", &mib(resident("VmHWM") - before), "", ""]);
    report_size(&db, &mut table);
    table.show();
    Ok(())
}

/// Keys in two halves: those that are put, and those that are absent, spread between them.
fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// A number below `count`, another for each `i` below it if `count` is prime to 2,654,435,761.
fn mixed(i: u64, count: u64) -> u64 {
    u64::try_from(u128::from(i) * 2_654_435_761 % u128::from(count)).unwrap_or_default()
}

fn report_size(db: &Db, table: &mut Table) {
    table.row(["tables", &mib(db.stats().total_size()), "", ""]);
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Bytes of the process's memory that Linux counts under `name`; 0 elsewhere.
fn resident(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) << 10
}
