//! How near are estimates of a range's keys and bytes, and what do they cost? What does flushing
//! one keyspace do?

use tamis::vfs::SimFileSystem;
use tamis::{Compression, Db, Error, KeyspaceOptions, Options};

use crate::support::{open_plain, stepped_options};

/// Entries of a data block.
const PER_BLOCK: u64 = 4096 / 110 + 1;

fn options(fs: &SimFileSystem) -> Options {
    let plain = KeyspaceOptions::new().compression(Compression::None);
    stepped_options(fs).0.memtable_size(64 << 10).table_size(64 << 10).default_keyspace(plain)
}

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

fn fill(db: &Db, keys: u64) {
    (0..keys).for_each(|i| _ = db.put(key(i), [7; 100]).unwrap());
}

#[test]
fn a_compacted_store_is_estimated_to_the_block_without_reading_any() {
    let db = options(&SimFileSystem::new()).open("/db").unwrap();
    fill(&db, 5000);
    db.compact_range(..).unwrap();
    assert_eq!(db.approximate_len(..).unwrap(), 5000);
    let files: u64 =
        db.stats().keyspaces[0].levels.iter().flat_map(|level| &level.tables).map(|table| table.size).sum();
    assert_eq!(db.approximate_size(..).unwrap(), files);
    let before = db.stats().keyspaces[0].reads();
    for (lower, upper) in [(0, 5000), (0, 10), (100, 101), (1234, 4321), (2500, 2400), (4990, 9000), (6000, 7000)] {
        let expected = upper.min(5000u64).saturating_sub(lower.min(5000));
        let found = db.approximate_len(key(lower)..key(upper)).unwrap();
        assert!(found.abs_diff(expected) <= 2 * PER_BLOCK, "{lower}..{upper}: {found}");
        let size = db.approximate_size(key(lower)..key(upper)).unwrap();
        assert!(size.abs_diff(expected * files / 5000) <= 3 * 4096, "{lower}..{upper}: {size}");
    }
    assert_eq!(db.stats().keyspaces[0].reads().block_reads, before.block_reads);
}

#[test]
fn memtables_deletes_and_keyspaces_count() {
    let db = options(&SimFileSystem::new()).open("/db").unwrap();
    assert_eq!((db.approximate_len(..).unwrap(), db.approximate_size(..).unwrap()), (0, 0));
    let other = db.keyspace("other").unwrap();
    other.put("k", "v").unwrap();
    fill(&db, 100);
    assert_eq!(db.approximate_len(..).unwrap(), 100);
    assert_eq!(db.approximate_len(key(20)..key(30)).unwrap(), 10);
    assert_eq!(db.approximate_size(key(20)..key(30)).unwrap(), 1080);
    assert_eq!((other.approximate_len(..).unwrap(), other.approximate_size(..).unwrap()), (1, 2));
    // A counter is one key, however often it is written.
    (0..100).for_each(|i: u32| _ = other.put("k", i.to_be_bytes()).unwrap());
    assert_eq!(other.approximate_len(..).unwrap(), 1);
    db.flush().unwrap();
    // Deleted in the memtable, then in a table.
    (0..50).for_each(|i| _ = db.delete(key(i)).unwrap());
    for _ in 0..2 {
        assert_eq!(db.approximate_len(..).unwrap(), 50);
        assert!(db.approximate_len(key(0)..key(40)).unwrap() <= 2 * PER_BLOCK);
        db.flush().unwrap();
    }
    // Deletes of absent keys: no fewer than none.
    (1000..2000).for_each(|i| _ = db.delete(key(i)).unwrap());
    assert_eq!(db.approximate_len(key(1000)..).unwrap(), 0);
    db.compact_range(..).unwrap();
    assert_eq!(db.approximate_len(..).unwrap(), 50);
    db.drop_keyspace("other").unwrap();
    assert!(matches!(other.approximate_len(..), Err(Error::KeyspaceDropped(_))));
}

#[test]
fn flushing_a_keyspace_flushes_what_holds_its_entries_and_else_nothing() {
    let fs = SimFileSystem::new();
    let (db, _) = open_plain(&fs).unwrap();
    let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
    let tables =
        || db.stats().keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.tables.len()).sum();
    a.flush().unwrap();
    b.put("k", "v").unwrap();
    a.flush().unwrap();
    assert_eq!((db.flushed_seqno(), tables()), (0, 0usize));
    let last = a.put("k", "v").unwrap();
    a.flush().unwrap();
    assert_eq!((db.flushed_seqno(), db.synced_seqno(), tables()), (last, last, 2));
    let last = b.put("l", "v").unwrap();
    a.flush().unwrap();
    assert!(db.flushed_seqno() < last);
    // The entry is in a full memtable that nobody has flushed yet.
    let first = a.put("l", "v").unwrap();
    let last = (0..45).map(|i| b.put([i], [1; 100]).unwrap()).max().unwrap();
    assert!(db.flushed_seqno() < first);
    a.flush().unwrap();
    assert!(db.flushed_seqno() >= first && db.flushed_seqno() < last && a.get("l").unwrap().is_some());
    db.drop_keyspace("a").unwrap();
    assert!(matches!(a.flush(), Err(Error::KeyspaceDropped(_))));
    assert_eq!(a.name(), "a");
}
