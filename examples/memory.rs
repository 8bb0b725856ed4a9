//! Many small keys within a limit of memory: what reads cost, and what the process takes.
//!
//! `cargo run --release --example memory -- [KEYS] [MIB] [BITS] [BLOCK] [ORDER]`. The defaults are
//! 20,000,000 keys of 16 bytes with values of 20, a limit of 64 MiB, filters of 10 bits per key and
//! blocks of 4 KiB, written in `random` order, or in `sorted`. Two rounds of reads, each of three
//! million absent keys and a million that are there, all different, are followed by a day in
//! miniature: overwrites, reads and scans in turn. The store is created in the temporary directory
//! and removed at the end.
#![allow(missing_docs, clippy::disallowed_methods, reason = "an example that looks at /proc")]

use std::error::Error;

use tamis::{Compression, Db, FilterPolicy, KeyspaceOptions, Options, WriteBatch};
use tamis_figures::Table;

const READS: u64 = 1_000_000;
const HOURS: u64 = 24;
const READS_A_DAY: u64 = 200_000;
const BATCH: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(20_000_000), |text| text.parse())?;
    let memory: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let bits_per_key: f32 = arguments.next().map_or(Ok(10.0), |text| text.parse())?;
    let block_size: u32 = arguments.next().map_or(Ok(4), |text| text.parse())?;
    let order = arguments.next().unwrap_or("random".to_owned());
    let is_sorted = order == "sorted";
    let key = |number: u64, is_put: bool| match is_sorted {
        true => sorted(2 * number + u64::from(!is_put)),
        false => scattered(if is_put { number } else { number + keys }),
    };
    let dir = tempfile::tempdir()?;
    let keyspace = KeyspaceOptions::new().compression(Compression::None).block_size(block_size << 10);
    let keyspace = keyspace.filter(FilterPolicy::bloom(bits_per_key));
    let options = Options::new().memory(memory << 20).default_keyspace(keyspace);
    let db = options.open(dir.path().join("db"))?;

    let name = format!("memory/{} M keys", keys / 1_000_000);
    let command =
        format!("cargo run --release --example memory -- {keys} {memory} {bits_per_key} {block_size} {order}");
    let mut table =
        Table::new(&name, &command, &["", "resident, counted", "filter pages", "index pages", "data blocks"]);
    let before = resident("RssAnon");
    let mut most = before;
    for start in (0..keys).step_by(usize::try_from(BATCH)?) {
        let mut batch = WriteBatch::new();
        let number = |i| if is_sorted { i } else { mixed(i, keys) };
        (start..keys.min(start + BATCH)).for_each(|i| batch.put(key(number(i), true), [b'v'; 20]));
        db.write(batch)?;
        most = most.max(resident("RssAnon"));
    }
    db.compact_range(..)?;
    for (round, start) in [("first", 0), ("second", 3 * READS)] {
        for (kind, is_put, count) in [("absent", false, 3 * READS), ("present", true, READS)] {
            let reads = db.stats().reads();
            for i in start..start + count {
                let number = mixed(i.wrapping_mul(0x9e37_79b9), keys);
                assert_eq!(db.get(key(number, is_put))?.is_some(), is_put);
            }
            most = most.max(resident("RssAnon"));
            let after = db.stats().reads();
            let each = |of: u64| format!("{:.3} per read", of as f64 / count as f64);
            let filter = each(after.filter_reads - reads.filter_reads);
            let index = each(after.index_reads - reads.index_reads);
            let blocks = each(after.block_reads - reads.block_reads);
            let now =
                format!("{} of {}", mib(resident("RssAnon") - before), mib(db.stats().memory.usage.total() as u64));
            table.row([&format!("{kind}, {round}"), &now, &filter, &index, &blocks]);
        }
    }
    let mut by_hour = Vec::new();
    for hour in 0..HOURS {
        for i in 0..READS_A_DAY / HOURS {
            let number = mixed(i.wrapping_mul(0x9e37_79b9) + hour * READS_A_DAY, keys);
            db.put(key(number, true), [b'w'; 20])?;
            assert!(db.get(key(mixed(number + hour, keys), true))?.is_some());
            if i % 100 == 0 {
                assert!(db.range(key(number, true)..).take(100).all(|entry| entry.is_ok()));
            }
        }
        by_hour.push(resident("RssAnon"));
        most = most.max(resident("RssAnon"));
    }
    let quarter = by_hour.len() / 4;
    for (part, hours) in [("first", &by_hour[..quarter]), ("last", &by_hour[by_hour.len() - quarter..])] {
        let mean = hours.iter().sum::<u64>() / hours.len() as u64;
        table.row([&format!("resident, the {part} quarter of a day"), &mib(mean - before), "", "", ""]);
    }
    let usage = db.stats().memory.usage;
    for (purpose, bytes) in usage.uses().into_iter().chain([("limit", usage.limit)]) {
        table.row([purpose, &mib(bytes as u64), "", "", ""]);
    }
    table.row(["resident now, without mapped files", &mib(resident("RssAnon") - before), "", "", ""]);
    table.row(["resident at most", &mib(most - before), "", "", ""]);
    report_size(&db, &mut table);
    table.show();
    Ok(())
}

/// Keys in two halves: those that are put, and those that are absent, spread between them.
fn scattered(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Keys in the order of their numbers.
fn sorted(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// A number below `count`, another for each `i` below it if `count` is prime to 2,654,435,761.
fn mixed(i: u64, count: u64) -> u64 {
    u64::try_from(u128::from(i) * 2_654_435_761 % u128::from(count)).unwrap_or_default()
}

fn report_size(db: &Db, table: &mut Table) {
    table.row(["tables", &mib(db.stats().total_size()), "", "", ""]);
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
