//! Do the figures of a store agree with what it did and with its files?

use std::collections::BTreeSet;
use std::path::Path;

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Db, KeyspaceOptions, Stats};

use crate::support::stepped_options;

/// A store with two keyspaces, one of them with value files, flushed and compacted.
fn store(fs: &SimFileSystem) -> Db {
    let db = stepped_options(fs).0.memtable_size(16 << 10).open("/db").unwrap();
    let long = db.keyspace_with("long", KeyspaceOptions::new().separate_values(100)).unwrap();
    for round in 0..4u8 {
        for n in 0..200u32 {
            db.put(n.to_be_bytes(), [7; 50]).unwrap();
            long.put(n.to_be_bytes(), [round; 200]).unwrap();
        }
        db.flush().unwrap();
    }
    db.delete_range(&[0; 4][..]..&[0, 0, 0, 9][..]).unwrap();
    db.flush().unwrap();
    long.compact_range(..).unwrap();
    db.wait_for_compactions().unwrap();
    db
}

#[test]
fn bytes_written_to_levels_are_those_of_flushes_and_compactions() {
    let fs = SimFileSystem::new();
    let stats = store(&fs).stats();
    let levels = || stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
    let written: u64 = levels().map(|level| level.written_bytes).sum();
    assert_eq!(written, stats.flushed_bytes + stats.compacted_bytes_out);
    let taken: u64 = levels().map(|level| level.compacted_bytes).sum();
    assert_eq!(taken, stats.compacted_bytes_in);
    assert!(stats.compactions > 0 && stats.flushes >= 5 && stats.write_amplification().unwrap() > 1.0);
    assert_eq!(Stats::default().write_amplification(), None);
}

#[test]
fn the_total_size_is_that_of_the_files() {
    let fs = SimFileSystem::new();
    let db = store(&fs);
    db.put("in the log", "value").unwrap();
    let files = fs.list(Path::new("/db")).unwrap();
    let counted = files.iter().filter(|name| [".sst", ".val", ".wal"].iter().any(|end| name.ends_with(end)));
    let len = |name: &String| fs.file_len(Path::new("/db").join(name)).unwrap();
    let (logs, others): (Vec<&String>, Vec<&String>) = counted.partition(|name| name.ends_with(".wal"));
    let stats = db.stats();
    assert_eq!(stats.total_size() - stats.log.bytes, others.into_iter().map(len).sum::<u64>());
    // A log is extended ahead of its end.
    assert!(stats.log.bytes > 0 && stats.log.bytes <= logs.into_iter().map(len).sum());
    assert!(stats.log.written_bytes > 4 * 200 * 250, "{}", stats.log.written_bytes);
}

#[test]
fn an_opening_tells_what_it_replayed() {
    let fs = SimFileSystem::new();
    let db = stepped_options(&fs).0.open("/db").unwrap();
    assert_eq!(db.stats().opening.operations, 0);
    (0..10u32).for_each(|n| _ = db.put(n.to_be_bytes(), "value").unwrap());
    let killed = fs.kill();
    let read_only = stepped_options(&killed).0.open_read_only("/db").unwrap();
    assert_eq!(read_only.stats().opening.operations, 10);
    let stats = stepped_options(&killed).0.open("/db").unwrap().stats();
    assert_eq!((stats.opening.operations, stats.log.written_bytes), (10, 0));
}

#[test]
fn blocks_and_values_that_reads_fetch_are_counted() {
    let fs = SimFileSystem::new();
    drop(store(&fs));
    let db = stepped_options(&fs).0.open("/db").unwrap();
    let long = db.keyspace("long").unwrap();
    let missed = |db: &Db| db.stats().reads().cache_hit_rate();
    assert_eq!(missed(&db), None);
    for _ in 0..4 {
        long.get(50u32.to_be_bytes()).unwrap().unwrap();
    }
    let stats = db.stats();
    assert_eq!((stats.value_reads, stats.value_bytes_read > 100), (4, true));
    assert_eq!(stats.reads().blocks_per_look_up(), Some(1.0));
    assert_eq!(missed(&db), Some(0.75));
}

#[test]
fn every_metric_is_described_once_and_has_its_own_labels() {
    let fs = SimFileSystem::new();
    let db = store(&fs);
    db.keyspace("odd \"name\"\n\\").unwrap().put("k", "v").unwrap();
    db.flush().unwrap();
    let stats = db.stats();
    let metrics = stats.metrics();
    let distinct: BTreeSet<String> =
        metrics.iter().map(|metric| format!("{}{:?}", metric.name, metric.labels)).collect();
    assert_eq!(distinct.len(), metrics.len());
    let text = stats.to_prometheus();
    let (comments, figures): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
    assert_eq!(figures.len(), metrics.len());
    let names: BTreeSet<&str> = metrics.iter().map(|metric| metric.name).collect();
    assert_eq!(comments.len(), 2 * names.len());
    assert!(text.contains(r#"{keyspace="odd \"name\"\n\\"}"#), "{text}");
    let of = |name: &str| metrics.iter().filter(|metric| metric.name == name).map(|metric| metric.value).sum::<f64>();
    assert_eq!(of("tamis_level_written_bytes_total"), (stats.flushed_bytes + stats.compacted_bytes_out) as f64);
    assert_eq!(of("tamis_size_bytes"), stats.total_size() as f64);
}
