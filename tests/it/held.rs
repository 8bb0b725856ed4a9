//! Which replaced data do readers keep, which of them, and does `Stats::held` report it?

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Db, Executor, HeldStats, ReadMode};

use crate::support::{open_plain, stepped_options};

/// Longer than the values that `read` copies.
const LONG: usize = 2000;

/// Writes a key and flushes the memtable.
fn flush_once(db: &Db, n: usize) {
    db.put(format!("key{:03}", n % 100), n.to_string()).unwrap();
    db.flush().unwrap();
}

#[test]
fn a_long_read_keeps_one_memtable_whatever_is_flushed_meanwhile() {
    let fs = SimFileSystem::new();
    let (db, executor) = open_plain(&fs).unwrap();
    db.put("short", "value").unwrap();
    db.put("long", vec![7; LONG]).unwrap();
    let memtable = db.stats().memory.memtables;
    let work = || {
        for n in 0..1000 {
            flush_once(&db, n);
            while executor.step() {}
            assert_eq!(db.get(format!("key{:03}", n % 100)).unwrap().unwrap(), n.to_string());
            // A single replaced view would be one too many: no read is in progress on it.
            assert_eq!(db.stats().held.views, 0);
        }
        db.stats().held
    };
    let held = db.read("long", |value| {
        let held = work();
        assert_eq!(value, vec![7; LONG]);
        held
    });
    let held = held.unwrap().unwrap();
    assert_eq!((held.memtables, held.tables, held.disk), (1, 0, 0));
    assert!(held.memory > LONG && held.memory <= 2 * memtable, "{held:?}, and the memtable took {memtable}");
    assert_eq!(db.stats().held, HeldStats::default());
    // A short value is copied; a cached one keeps its block.
    db.put("short", "value").unwrap();
    assert_eq!(db.read("short", |_| work()).unwrap(), Some(HeldStats::default()));
    let from_table = db.read("long", |value| (value.len(), work()));
    assert_eq!(from_table.unwrap(), Some((LONG, HeldStats::default())));
}

#[test]
fn a_read_of_a_mapped_table_may_outlast_the_table() {
    let fs = SimFileSystem::new();
    let (options, executor) = stepped_options(&fs);
    let keyspace = tamis::KeyspaceOptions::new().compression(tamis::Compression::None);
    let db = options.read_mode(ReadMode::Mmap).default_keyspace(keyspace).open("/db").unwrap();
    db.put("long", vec![7; LONG]).unwrap();
    db.flush().unwrap();
    for mapped in [false, true] {
        // The first read of a block goes to the file, the second to the mapping.
        if mapped {
            db.get("long").unwrap();
        }
        let held = db.read("long", |value| {
            db.put("long", vec![7; LONG]).unwrap();
            db.compact_range(..).unwrap();
            while executor.step() {}
            assert_eq!(value, vec![7; LONG]);
            db.stats().held
        });
        assert_eq!(held.unwrap(), Some(HeldStats::default()));
    }
}

#[test]
fn objects_that_iterators_keep_are_counted_until_they_are_dropped() {
    let fs = SimFileSystem::new();
    let (db, executor) = open_plain(&fs).unwrap();
    for n in 0..100 {
        flush_once(&db, n);
        while executor.step() {}
    }
    db.put("in memory", "value").unwrap();
    let tables = || fs.list("/db".as_ref()).unwrap().iter().filter(|name| name.ends_with(".sst")).count();
    let mut iter = db.iter();
    let mut cursor = db.cursor().unwrap();
    cursor.seek("key").unwrap();
    let first = iter.next().unwrap().unwrap().0;
    assert_eq!((&*first, db.stats().held), (&b"in memory"[..], HeldStats::default()));
    db.compact_range(..).unwrap();
    while executor.step() {}
    let held = db.stats().held;
    assert_eq!((held.memtables, held.views, held.oldest_view), (1, 0, None));
    assert!(held.tables > 0 && held.disk > 0 && held.memory > 0, "{held:?}");
    assert_eq!(held.tables, tables() - 1, "files of replaced tables beside the one that replaced them");
    drop(iter);
    assert_eq!(db.stats().held, held, "the cursor keeps the same");
    drop(cursor);
    assert_eq!(db.stats().held, HeldStats::default());
    while executor.step() {}
    assert_eq!(tables(), 1);
}
