//! What deleted ranges cost: a scan across all keys of a store after `delete_range`, the return of
//! its space, reads and writes beside very many ranges, a log purged from the front, commits of
//! transactions beside ranges, and flushes of ranges with snapshots between them.
//!
//! ```text
//! cargo bench --bench range_deletes
//! ```
//!
//! `TAMIS_KEYS` sets the number of keys (default 10,000,000), `TAMIS_RANGES` that of the small
//! ranges (default 1,000,000). With an argument, only the parts whose names contain it are run, for
//! example `-- commits`. No figure makes this program fail.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark"
)]

use std::hint::black_box;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tamis::{Db, Options};
use tamis_figures::{Table, command, millis};

const VALUE: [u8; 100] = [7; 100];

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn table_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let tables = files.filter(|file| file.file_name().to_str().unwrap().ends_with(".sst"));
    tables.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}

fn time<T>(of: impl FnOnce() -> T) -> Duration {
    let begin = Instant::now();
    black_box(of());
    begin.elapsed()
}

/// Median of the times per call, in nanoseconds.
fn median_ns(rounds: usize, calls: u64, mut call: impl FnMut(u64)) -> f64 {
    let mut times: Vec<f64> =
        (0..rounds).map(|_| time(|| (0..calls).for_each(&mut call)).as_secs_f64() * 1e9 / calls as f64).collect();
    times.sort_by(f64::total_cmp);
    times[rounds / 2]
}

fn micros(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1e6)
}

/// What runs this program again.
fn rerun() -> String {
    command("cargo bench --bench range_deletes", &["TAMIS_KEYS", "TAMIS_RANGES"])
}

fn first(db: &Db) {
    assert!(db.iter().next().transpose().unwrap().is_none());
    assert!(db.iter().next_back().transpose().unwrap().is_none());
}

fn large_range() {
    let keys = number("TAMIS_KEYS", 10_000_000);
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().open(dir.path()).unwrap();
    (0..keys).for_each(|i| db.put(key(i), VALUE).map(|_| ()).unwrap());
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    let head = format!(
        "{} M keys, {} MB of tables, all deleted by one range",
        keys / 1_000_000,
        table_bytes(dir.path()) / 1_000_000
    );
    let mut table = Table::new("range_deletes/one", &rerun(), &[&head, ""]);
    table.row(["`delete_range`", &micros(time(|| db.delete_range(key(0)..key(keys)).unwrap()))]);
    let deleted = Instant::now();
    table.row(["first scan after it, both ways", &micros(time(|| first(&db)))]);
    while table_bytes(dir.path()) > 1_000_000 && deleted.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    table.row(["space back", &millis(deleted.elapsed())]);
    drop(db);

    // A snapshot keeps the tables: the range hides them.
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().open(dir.path()).unwrap();
    (0..keys).for_each(|i| db.put(key(i), VALUE).map(|_| ()).unwrap());
    let snapshot = db.snapshot();
    db.delete_range(key(0)..key(keys)).unwrap();
    table.row(["first scan while a snapshot keeps the tables", &micros(time(|| first(&db)))]);
    let absent = median_ns(5, 100_000, |i| {
        assert!(db.get(key(i * 7919 % keys)).unwrap().is_none());
    });
    db.flush().unwrap();
    table.row(["that after a flush", &micros(time(|| first(&db)))]);
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        std::fs::hard_link(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    // As after a kill: the snapshot has gone with its process.
    let reopened = Options::new().open_read_only(copy.path()).unwrap();
    table.row(["that after reopening", &micros(time(|| first(&reopened)))]);
    table.row(["get of a deleted key", &format!("{absent:.0} ns")]);
    table.show();
    drop(snapshot);
}

fn small_ranges() {
    let ranges = number("TAMIS_RANGES", 1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().open(dir.path()).unwrap();
    let keys = ranges * 10;
    let put = |i: u64| db.put(key(i), VALUE).map(|_| ()).unwrap();
    (keys..keys + 1_000_000).for_each(put);
    let get = |i: u64| assert!(db.get(key(keys + i * 7919 % 1_000_000)).unwrap().is_some());
    let scan = |i: u64| assert_eq!(db.range(key(keys + i * 7919 % 900_000)..).take(10).count(), 10);
    // Background work would show in either column.
    let measured = || {
        db.wait_for_compactions().unwrap();
        [median_ns(9, 100_000, get), median_ns(9, 10_000, scan), median_ns(9, 100_000, |i| put(keys + i))]
    };
    let before = measured();
    let delete = |i: u64| db.delete_range(key(i * 10)..key(i * 10 + 10)).map(|_| ()).unwrap();
    let deleting = time(|| (0..ranges).for_each(delete));
    // Those of the last memtable: what has been flushed had nothing to delete.
    let after = measured();
    let first_scan = time(|| db.iter().next());
    let flush = time(|| db.flush().unwrap());
    let flushed = median_ns(5, 100_000, get);
    let head = format!("{ranges} ranges that abut, of ten keys each");
    let mut table = Table::new("range_deletes/abutting", &rerun(), &[&head, "before", "after", "after a flush"]);
    for (name, (before, after)) in ["get", "scan of 10 keys", "put"].iter().zip(before.into_iter().zip(after)) {
        let flushed = if *name == "get" { format!("{flushed:.0} ns") } else { String::new() };
        table.row([name.to_string(), format!("{before:.0} ns"), format!("{after:.0} ns"), flushed]);
    }
    let mean = deleting.as_secs_f64() * 1e9 / ranges as f64;
    table.row(["`delete_range`, mean", "", &format!("{mean:.0} ns"), ""]);
    table.row(["first scan", "", &micros(first_scan), ""]);
    table.row(["flush", "", &millis(flush), ""]);
    table.show();
}

/// Ranges of one key each, all over a store, of which a snapshot keeps what they delete.
fn scattered_ranges() {
    let ranges = number("TAMIS_RANGES", 1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().open(dir.path()).unwrap();
    let put = |i: u64| db.put(key(i), VALUE).map(|_| ()).unwrap();
    (0..ranges * 10).for_each(put);
    db.compact_range(..).unwrap();
    // Keys that no range deletes.
    let get = |i: u64| assert!(db.get(key(i * 7919 % ranges * 10 + 5)).unwrap().is_some());
    let scan = |i: u64| assert_eq!(db.range(key(i * 7919 % ranges * 10 + 1)..).take(9).count(), 9);
    let flush = || {
        (0..1000).for_each(put);
        time(|| db.flush().unwrap()).as_secs_f64() * 1e3
    };
    let measured = || {
        db.wait_for_compactions().unwrap();
        [median_ns(5, 100_000, get) / 1e3, median_ns(5, 10_000, scan) / 1e3, flush()]
    };
    let before = measured();
    let snapshot = db.snapshot();
    (0..ranges).for_each(|i| db.delete_range(key(i * 10)..key(i * 10 + 1)).map(|_| ()).unwrap());
    db.flush().unwrap();
    let after = measured();
    let head = format!("{ranges} ranges of one key each, scattered");
    let mut table = Table::new("range_deletes/scattered", &rerun(), &[&head, "before", "after"]);
    let names = ["get of another key, µs", "scan of nine keys, µs", "flush of 1000 puts, ms"];
    for (name, (before, after)) in names.iter().zip(before.into_iter().zip(after)) {
        table.row([name.to_string(), format!("{before:.1}"), format!("{after:.1}")]);
    }
    table.show();
    let kept = db.stats().keyspaces[0].size();
    let freed = Instant::now();
    drop(snapshot);
    db.put(key(1), VALUE).unwrap();
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let stats = db.stats();
    println!(
        "without the snapshot: {} of {} MB and {} ranges left after {:.1} s",
        stats.keyspaces[0].size() / 1_000_000,
        kept / 1_000_000,
        stats.keyspaces[0].range_deletes.in_tables,
        freed.elapsed().as_secs_f64()
    );
}

/// Appends ten entries, deletes the ten at the front and reads the first key, again and
/// again.
fn purged_log() {
    let purges = number("TAMIS_RANGES", 1_000_000) / 10;
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().open(dir.path()).unwrap();
    (0..1000).for_each(|i| db.put(key(i), VALUE).map(|_| ()).unwrap());
    let head = format!("{purges} purges of a log, each of ten entries");
    let mut table = Table::new("range_deletes/purges", &rerun(), &[&head, "ten puts and the purge", "scan", "get"]);
    let begin = Instant::now();
    for tenth in 0..10 {
        let (mut reads, mut gets, count) = (Duration::ZERO, Duration::ZERO, purges / 10);
        let round = time(|| {
            for i in tenth * count..(tenth + 1) * count {
                (0..10).for_each(|j| db.put(key(1000 + i * 10 + j), VALUE).map(|_| ()).unwrap());
                db.delete_range(key(i * 10)..key(i * 10 + 10)).unwrap();
                reads += time(|| assert_eq!(*db.iter().next().unwrap().unwrap().0, key(i * 10 + 10)));
                gets += time(|| assert!(db.get(key(i * 10 + 10)).unwrap().is_some()));
            }
        });
        let mean = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        let (writes, reads, gets) = (mean(round - reads - gets), mean(reads), mean(gets));
        let figures = [format!("{writes:.1} µs"), format!("{reads:.1} µs"), format!("{gets:.2} µs")];
        table.row([format!("tenth {}", tenth + 1)].into_iter().chain(figures));
        if begin.elapsed() > Duration::from_secs(120) {
            table.row(["stopped after two minutes", "", "", ""]);
            break;
        }
    }
    table.show();
}

/// Commits of one read and one write beside a plain put, after small ranges of other keys; and one
/// of very many reads.
fn commits() {
    let mut table = Table::new("range_deletes/commits", &rerun(), &["commit of a transaction", "median"]);
    for ranges in [0, 1000, 10_000, 100_000] {
        let db = Options::new().memtable_size(256 << 20).open_in_memory().unwrap();
        db.put("key", VALUE).unwrap();
        (0..ranges).for_each(|i| db.delete_range(key(i * 10)..key(i * 10 + 1)).map(|_| ()).unwrap());
        let mut times: Vec<Duration> = (0..201)
            .map(|_| {
                let mut transaction = db.begin();
                transaction.get("key").unwrap();
                transaction.put("written", VALUE);
                db.put("other", VALUE).unwrap();
                time(|| transaction.commit().unwrap())
            })
            .collect();
        times.sort();
        table.row([format!("one read, beside {ranges} ranges"), micros(times[100])]);
    }
    let db = Options::new().memtable_size(256 << 20).open_in_memory().unwrap();
    let mut transaction = db.begin();
    (0..200_000).for_each(|i| assert!(transaction.get(key(i * 10 + 5)).unwrap().is_none()));
    transaction.put("written", VALUE);
    (0..4000).for_each(|i| db.delete_range(key(i * 10)..key(i * 10 + 1)).map(|_| ()).unwrap());
    let (stop, longest) = (AtomicBool::new(false), Mutex::new(Duration::ZERO));
    let commit = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Every hundredth write is a range delete.
                (0..99).for_each(|_| {
                    let put = time(|| db.put("other", VALUE).unwrap());
                    let mut longest = longest.lock().unwrap();
                    *longest = put.max(*longest);
                });
                db.delete_range(key(0)..key(1)).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        *longest.lock().unwrap() = Duration::ZERO;
        let commit = time(|| transaction.commit().unwrap());
        stop.store(true, Ordering::Relaxed);
        commit
    });
    table.row(["200,000 reads, beside 4,000 ranges (one commit)", &millis(commit)]);
    table.row(["longest put of another thread meanwhile", &millis(*longest.lock().unwrap())]);
    table.show();
}

/// A line of `/proc/self/status`, in MB.
fn resident(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|text| text.strip_prefix(line)?.split_whitespace().nth(1)?.parse().ok());
    kilobytes.unwrap_or(0u64) / 1000
}

/// Flushes of ranges with snapshots between them.
fn snapshots() {
    let heads = [
        "ranges; snapshots between them",
        "per range",
        "memory counted",
        "resident",
        "flush",
        "resident at most",
        "fragments",
    ];
    let mut table = Table::new("range_deletes/snapshots", &rerun(), &heads);
    for (ranges, snapshots) in [(20_000, 500), (200_000, 2000)] {
        let db = Options::new().memtable_size(256 << 20).open_in_memory().unwrap();
        (0..ranges * 10).step_by(100).for_each(|i| db.put(key(i), VALUE).map(|_| ()).unwrap());
        db.flush().unwrap();
        let mut held = Vec::new();
        let writing = time(|| {
            for i in 0..ranges {
                let from = i * 7919 % ranges * 10;
                db.delete_range(key(from)..key(from + 15)).unwrap();
                if i % (ranges / snapshots) == 0 {
                    held.push(db.snapshot());
                }
            }
        });
        let (counted, before) = (db.stats().memory.memtables / 1_000_000, resident("VmRSS"));
        let flush = time(|| db.flush().unwrap()).as_secs_f64();
        table.row([
            format!("{ranges}; {snapshots}"),
            format!("{:.1} µs", writing.as_secs_f64() * 1e6 / ranges as f64),
            format!("{counted} MB"),
            format!("{before} MB"),
            format!("{flush:.2} s"),
            format!("{} MB", resident("VmHWM")),
            db.stats().keyspaces[0].range_deletes.in_tables.to_string(),
        ]);
    }
    table.show();
}

fn main() {
    let part = std::env::args().skip(1).find(|argument| !argument.starts_with("--")).unwrap_or_default();
    let parts: [(&str, fn()); 6] = [
        ("large", large_range),
        ("small", small_ranges),
        ("scattered", scattered_ranges),
        ("purged", purged_log),
        ("commits", commits),
        ("snapshots", snapshots),
    ];
    parts.iter().filter(|(name, _)| name.contains(&part)).for_each(|(_, run)| run());
}
