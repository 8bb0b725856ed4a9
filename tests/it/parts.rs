//! Does a compaction that falls into parts, done by one thread or several, do what one in a single part does: all of it or nothing?

use std::sync::Arc;

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Compression, Db, Error, Executor, KeyspaceOptions, Options, ThreadPool};

use crate::support::{Scene, stepped_options};

const DIR: &str = "/db";
const KEYS: u32 = 1500;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Options by which a table takes so many bytes; a large enough one makes a compaction of a single part.
fn with_tables_of(options: Options, bytes: u64) -> Options {
    let keyspace = KeyspaceOptions::new().block_size(512).compression(Compression::None);
    options.memtable_size(16 << 10).table_size(bytes).cache_size(0).default_keyspace(keyspace)
}

/// Writes keys in no order, some of them several times, some of them deleted in the end, and one with more versions than a part has
/// entries.
fn fill(db: &Db) {
    let mut rng = fastrand::Rng::with_seed(11);
    let seen = db.snapshot();
    for i in 0..3 * KEYS {
        let key = rng.u32(0..KEYS);
        match i % 7 {
            0 => db.delete(key.to_be_bytes()).unwrap(),
            1 => db.put(77u32.to_be_bytes(), i.to_string()).unwrap(),
            _ => db.put(key.to_be_bytes(), format!("{i:060}")).unwrap(),
        };
    }
    drop(seen);
    db.flush().unwrap();
}

fn entries(db: &Db) -> Entries {
    db.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect::<Result<_, _>>().unwrap()
}

/// Numbers of the tables that the store has, in key order if it is compacted.
fn tables(db: &Db) -> Vec<u64> {
    let levels = &db.stats().keyspaces[0].levels;
    levels.iter().flat_map(|level| level.tables.iter().map(|table| table.number)).collect()
}

fn table_files(fs: &SimFileSystem) -> usize {
    fs.paths().iter().filter(|path| path.extension().is_some_and(|extension| extension == "sst")).count()
}

/// Checks that all is in the last level, in tables that do not overlap, and nothing else is there.
fn check_compacted(db: &Db, at_least: usize) {
    let stats = db.stats();
    let (last, above) = stats.keyspaces[0].levels.split_last().unwrap();
    assert!(above.iter().all(|level| level.tables.is_empty()));
    assert!(last.tables.len() >= at_least, "{}", last.tables.len());
    assert!(last.tables.is_sorted_by(|a, b| a.largest < b.smallest));
    assert_eq!(last.entries(), db.iter().count() as u64, "no old version and no tombstone is left");
}

#[test]
fn parts_give_what_a_single_part_gives() {
    let mut all = Vec::new();
    for (bytes, threads, at_least) in [(1 << 30, 0, 1), (4096, 0, 10), (4096, 3, 10), (4096, 6, 10)] {
        let fs = SimFileSystem::new();
        let (mut options, _executor) = stepped_options(&fs);
        if threads > 0 {
            options = options.executor(Arc::new(ThreadPool::new(threads)));
        }
        let db = with_tables_of(options, bytes).open(DIR).unwrap();
        fill(&db);
        let before = entries(&db);
        db.compact_range(..).unwrap();
        assert_eq!(entries(&db), before);
        check_compacted(&db, at_least);
        let live = tables(&db).len();
        // A thread that has just ended its part may still hold what it read; without threads, nobody does.
        if threads == 0 {
            assert_eq!(table_files(&fs), live);
        }
        db.close().unwrap();
        assert_eq!(table_files(&fs), live);
        let (options, _executor) = stepped_options(&fs);
        let db = with_tables_of(options, bytes).open(DIR).unwrap();
        assert_eq!(entries(&db), before);
        all.push(before);
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_compaction_in_parts_is_done_whole_or_not_at_all() {
    let filled = SimFileSystem::new();
    let (options, executor) = stepped_options(&filled);
    let db = with_tables_of(options, 4096).open(DIR).unwrap();
    fill(&db);
    while executor.step() {}
    let (expected, before) = (entries(&db), tables(&db));
    db.close().unwrap();
    for at in (1..).step_by(3) {
        let fault =
            Fault { at, mode: [FaultMode::Io, FaultMode::NoSpace][usize::try_from(at % 2).unwrap()], sticky: false };
        let _scene = Scene(format!("{fault:?}"));
        let fs = filled.kill();
        let (options, executor) = stepped_options(&fs);
        let db = with_tables_of(options, 4096).open(DIR).unwrap();
        while executor.step() {}
        assert_eq!(tables(&db), before, "opening changes none");
        fs.set_fault(Some(fault));
        let result = db.compact_range(..);
        let was_hit = fs.fault_hit();
        fs.set_fault(None);
        assert_eq!(entries(&db), expected);
        match result {
            // A file that could not be removed stays behind.
            Ok(()) => {}
            Err(Error::Poisoned(_) | Error::Io { .. }) => {
                assert_eq!(tables(&db), before);
                // Nothing is left of the parts that were done, unless whether they count is known only when the manifest is read.
                if db.put("k", "v").is_ok() {
                    db.delete("k").unwrap();
                    assert_eq!(table_files(&fs), before.len());
                    db.compact_range(..).unwrap();
                    check_compacted(&db, 10);
                    assert_eq!(table_files(&fs), tables(&db).len());
                }
            }
            Err(error) => panic!("{error}"),
        }
        drop(db);
        for next in [fs.kill(), fs.crash(at)] {
            let (options, _executor) = stepped_options(&next);
            let db = with_tables_of(options, 4096).open(DIR).unwrap();
            assert_eq!(entries(&db), expected);
            db.compact_range(..).unwrap();
            check_compacted(&db, 10);
            assert_eq!(table_files(&next), tables(&db).len());
        }
        if !was_hit {
            return;
        }
    }
}
