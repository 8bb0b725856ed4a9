//! What 256 stores in one environment take, beside one store with 256 keyspaces.
//!
//! ```text
//! TAMIS_STORES=256 cargo bench --bench environment
//! ```
//!
//! Both have a cache of 64 MiB and two background threads; the stores have a memtable budget of
//! 256 MiB, the one store memtables of 64 MiB. Entries of 16 and 100 bytes go to a random store or
//! keyspace. `TAMIS_ENTRIES` sets how many per store (default 20,000), `TAMIS_DIR` the directory.
//! The memory is what the process has more than before the first open, on Linux. No figure makes
//! this program fail.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::path::Path;
use std::time::{Duration, Instant};

use tamis::{Environment, EnvironmentOptions, Keyspace, Options};
use tamis_figures::{Table, command};

/// Entries of each store before memory is measured: few enough to stay in the memtables.
const FEW: u64 = 1000;

/// A figure of the process; 0 where the system does not tell.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Megabytes of memory that the process has.
fn resident() -> u64 {
    status("VmRSS:") >> 10
}

fn key(n: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

fn per_second(count: u64, time: Duration) -> u128 {
    u128::from(count) * 1_000_000 / time.as_micros().max(1)
}

/// Opens by `open`, which returns the default keyspace or another one of the `n`-th part, and
/// returns the figures.
fn measure(parts: usize, entries: u64, mut open: impl FnMut(usize) -> Keyspace) -> [String; 6] {
    let before = resident();
    let begin = Instant::now();
    let keyspaces: Vec<Keyspace> = (0..parts).map(&mut open).collect();
    let opening = begin.elapsed();
    let opened = resident().saturating_sub(before);
    let mut rng = fastrand::Rng::with_seed(7);
    for keyspace in &keyspaces {
        (0..FEW).for_each(|n| _ = keyspace.put(key(n), [1; 100]).unwrap());
    }
    let few = resident().saturating_sub(before);
    let count = parts as u64 * entries;
    let mut pick = || (&keyspaces[rng.usize(0..parts)], key(rng.u64(0..entries)));
    let begin = Instant::now();
    for _ in 0..count {
        let (keyspace, key) = pick();
        keyspace.put(key, [2; 100]).unwrap();
    }
    let puts = begin.elapsed();
    let full = resident().saturating_sub(before);
    let (begin, mut found) = (Instant::now(), 0);
    for _ in 0..count {
        let (keyspace, key) = pick();
        found += u64::from(keyspace.get(key).unwrap().is_some());
    }
    let gets = begin.elapsed();
    [
        format!("{:.0} ms", opening.as_secs_f64() * 1e3),
        format!("{opened}, {few}, {full} MB"),
        format!("{} k", per_second(count, puts) / 1000),
        format!("{} k", per_second(count, gets) / 1000),
        format!("{} %", found * 100 / count),
        status("Threads:").to_string(),
    ]
}

fn main() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u32>().unwrap());
    let stores = number("TAMIS_STORES").unwrap_or(256) as usize;
    let entries = u64::from(number("TAMIS_ENTRIES").unwrap_or(20_000));
    let dir = || match std::env::var("TAMIS_DIR") {
        Ok(dir) => tempfile::tempdir_in(dir).unwrap(),
        Err(_) => tempfile::tempdir().unwrap(),
    };
    let (many, one) = (dir(), dir());
    let environment = Environment::new(EnvironmentOptions::new()).unwrap();
    let open = |dir: &Path, n: usize| {
        let db = Options::new().environment(&environment).open(dir.join(n.to_string())).unwrap();
        db.default_keyspace().clone()
    };
    let apart = measure(stores, entries, |n| open(many.path(), n));
    let db = Options::new().open(one.path()).unwrap();
    let together = measure(stores, entries, |n| db.keyspace(&n.to_string()).unwrap());
    let heads = ["", &format!("{stores} stores"), &format!("one store with {stores} keyspaces")];
    let command = command("cargo bench --bench environment", &["TAMIS_STORES", "TAMIS_ENTRIES"]);
    let mut table = Table::new("environment/costs", &command, &heads);
    let names = [
        "open",
        "memory when open; with 1,000 entries each; after the puts",
        "puts per second",
        "gets per second",
        "gets that find something",
        "threads of the process",
    ];
    names.iter().zip(apart.into_iter().zip(together)).for_each(|(name, (apart, together))| {
        table.row([name.to_string(), apart, together]);
    });
    table.show();
}
