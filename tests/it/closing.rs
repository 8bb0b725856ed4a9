//! Are files removed in time, and never after the end?

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{Db, Error, Executor, FilterPolicy, Iter, Keyspace, KeyspaceOptions, Options};

use crate::support::{Watchdog, count_entries, open_plain, stepped_options};
use crate::trace::{Call, Trace};

fn options(fs: impl FileSystem + 'static) -> Options {
    Options::new().file_system(Arc::new(fs)).memtable_size(16 << 10).table_size(16 << 10)
}

fn fill(db: &Db, keyspace: &Keyspace, round: u8) {
    for n in 0..100u32 {
        keyspace.put(n.to_be_bytes(), [round; 50]).unwrap();
    }
    db.flush().unwrap();
}

fn tables(fs: &SimFileSystem) -> Vec<String> {
    let names = fs.list(Path::new("/db")).unwrap();
    names.into_iter().filter(|name| name.ends_with(".sst")).collect()
}

/// How many tables the versions name.
fn live(db: &Db) -> usize {
    let keyspaces = db.stats().keyspaces;
    keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.tables.len()).sum()
}

/// What makes tables of a keyspace obsolete.
type Replace = fn(&Db, &Keyspace);

const REPLACE: [Replace; 3] = [
    |_, keyspace| keyspace.compact_range(..).unwrap(),
    |db, keyspace| assert!(db.drop_keyspace(keyspace.name()).unwrap()),
    |_, keyspace| _ = keyspace.rebuild_filters(FilterPolicy::StandardBloom { bits_per_key: 14.0 }).unwrap(),
];

fn opened(fs: &SimFileSystem) -> (Db, Keyspace, Trace, Arc<tamis::SteppedExecutor>) {
    let trace = Trace::new(fs);
    let (options, executor) = stepped_options(fs);
    let db = options.file_system(Arc::new(trace.clone())).open("/db").unwrap();
    let keyspace = db.keyspace_with("k", KeyspaceOptions::new().block_size(512)).unwrap();
    fill(&db, &keyspace, 1);
    fill(&db, &keyspace, 2);
    (db, keyspace, trace, executor)
}

#[test]
fn the_file_of_a_replaced_table_goes_when_its_last_reader_does_and_without_a_write() {
    for replace in REPLACE {
        let fs = SimFileSystem::new();
        let (db, keyspace, trace, executor) = opened(&fs);
        let mut iter = keyspace.iter();
        assert!(iter.next().is_some());
        replace(&db, &keyspace);
        while executor.step() {}
        assert!(tables(&fs).len() > live(&db), "the iterator holds tables");
        let before = trace.events().len();
        drop(iter);
        assert_eq!(trace.events().len(), before, "a reader's thread removes nothing");
        while executor.step() {}
        assert_eq!(tables(&fs).len(), live(&db));
        assert!(trace.events()[before..].iter().all(|event| event.call == Call::Remove));
    }
}

#[test]
fn files_of_tables_that_a_long_read_kept_go_after_it() {
    for replace in REPLACE {
        let fs = SimFileSystem::new();
        let (db, keyspace, trace, executor) = opened(&fs);
        let mut before = 0;
        let read = keyspace.read(7u32.to_be_bytes(), |value| {
            replace(&db, &keyspace);
            while executor.step() {}
            assert!(tables(&fs).len() > live(&db));
            before = trace.events().len();
            value.to_vec()
        });
        assert_eq!(read.unwrap().as_deref(), Some(&[2; 50][..]));
        assert_eq!(trace.events().len(), before);
        while executor.step() {}
        assert_eq!(tables(&fs).len(), live(&db));
    }
}

#[test]
fn a_file_that_cannot_be_removed_goes_at_the_next_open() {
    let fs = SimFileSystem::new();
    let (db, keyspace, _, executor) = opened(&fs);
    let mut iter = keyspace.iter();
    assert!(iter.next().is_some());
    keyspace.compact_range(..).unwrap();
    drop(iter);
    fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: true }));
    while executor.step() {}
    assert!(fs.fault_hit());
    fs.set_fault(None);
    assert!(tables(&fs).len() > live(&db));
    db.put("goes", "on").unwrap();
    db.close().unwrap();
    let (db, _) = open_plain(&fs).unwrap();
    assert_eq!(tables(&fs).len(), live(&db));
}

#[test]
fn an_iterator_that_outlives_its_store_removes_nothing_of_the_next_one_in_its_directory() {
    // Issue 13: the destructor of a table unlinked its file by name, whoever's it was by then.
    let fs = SimFileSystem::new();
    let begun = || -> (Db, Iter) {
        let (options, _) = stepped_options(&fs);
        let db = options.open("/db").unwrap();
        let keyspace = db.default_keyspace().clone();
        fill(&db, &keyspace, 1);
        let mut iter = db.iter();
        assert!(iter.next().is_some());
        (db, iter)
    };
    let (db, iter) = begun();
    db.compact_range(..).unwrap();
    fill(&db, db.default_keyspace(), 2);
    db.compact_range(..).unwrap();
    db.close().unwrap();
    let old = tables(&fs);
    for path in fs.paths() {
        fs.remove(&path).unwrap();
    }
    let (db, _) = begun();
    let new = tables(&fs);
    assert!(new.iter().any(|name| old.contains(name)), "{new:?} {old:?}");
    drop(iter);
    assert_eq!(tables(&fs), new);
    db.close().unwrap();
    let (db, _) = open_plain(&fs).unwrap();
    assert_eq!(count_entries(db.iter()), 100);
}
