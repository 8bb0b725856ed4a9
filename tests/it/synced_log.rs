//! Does the manifest name the logs that hold synced writes, and what does that cost?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Db, Error, WriteBatch, WriteOptions};

use crate::support::{WAL_MODES, open_in_mode, open_plain, stepped_options};
use crate::trace::{Trace, TracedCall};

const SYNC: WriteOptions = WriteOptions::new().sync(true);

fn put_synced(db: &Db, key: &str) {
    let mut batch = WriteBatch::new();
    batch.put(key, "value");
    db.write_with(batch, SYNC).unwrap();
}

fn logs(fs: &SimFileSystem) -> Vec<PathBuf> {
    fs.paths().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "wal")).collect()
}

#[track_caller]
fn check_refused(fs: &SimFileSystem, named: &Path) {
    for read_only in [false, true] {
        let options = stepped_options(fs).0;
        let opened = if read_only { options.open_read_only("/db") } else { options.open("/db") };
        let error = opened.map(drop).unwrap_err();
        assert!(matches!(&error, Error::Corruption { file, .. } if file == named), "{error}");
    }
}

#[test]
fn issue_13_store_without_a_synced_log_is_refused_after_a_power_cut() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        let (db, _) = open_in_mode(&fs, mode).unwrap();
        // Over several logs, each of which is the newest for a while.
        for n in 0..12 {
            db.put(format!("{n}"), vec![7; 900]).unwrap();
            put_synced(&db, &format!("synced {n}"));
            let newest = logs(&fs).pop().unwrap();
            for seed in 0..10 {
                let lost = fs.crash(seed);
                FileSystem::remove(&lost, &newest).unwrap();
                check_refused(&lost, &newest);
                let cut = fs.crash(seed);
                cut.truncate(&newest, 70).unwrap();
                check_refused(&cut, &newest);
            }
        }
    }
}

#[test]
fn log_that_was_never_synced_may_be_gone() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        let (db, _) = open_in_mode(&fs, mode).unwrap();
        put_synced(&db, "synced");
        db.flush().unwrap();
        db.put("not synced", "value").unwrap();
        let fs = fs.kill();
        FileSystem::remove(&fs, &logs(&fs).pop().unwrap()).unwrap();
        let (db, _) = open_plain(&fs).unwrap();
        assert!(db.contains_key("synced").unwrap() && !db.contains_key("not synced").unwrap());
    }
}

#[test]
fn issue_13_log_with_the_number_of_another_is_refused() {
    let fs = SimFileSystem::new();
    let (db, _) = open_plain(&fs).unwrap();
    db.put("key", "value").unwrap();
    let fs = fs.kill();
    let log = logs(&fs).pop().unwrap();
    let other = Path::new("/db/000099.wal");
    FileSystem::rename(&fs, &log, other).unwrap();
    check_refused(&fs, other);
}

/// Syncs by kind of file and of the directory, in order.
fn syncs(trace: &Trace) -> Vec<String> {
    let events = trace.events().into_iter();
    let kind = |name: &str| name.trim_matches(|c: char| c.is_ascii_digit()).to_owned();
    events
        .filter(|event| matches!(event.call, TracedCall::Sync | TracedCall::SyncDir))
        .map(|event| kind(&event.name))
        .collect()
}

#[test]
fn first_synced_put_of_a_log_costs_one_edit_and_others_cost_one_sync() {
    let fs = SimFileSystem::new();
    let trace = Trace::new(&fs);
    let open =
        || stepped_options(&fs).0.file_system(Arc::new(trace.clone())).memtable_size(1 << 20).open("/db").unwrap();
    let count = |act: &dyn Fn()| {
        let before = syncs(&trace).len();
        act();
        syncs(&trace).split_off(before)
    };
    let db = open();
    assert!(count(&|| (0..100).for_each(|n| assert!(db.put(format!("{n}"), "value").is_ok()))).is_empty());
    assert_eq!(count(&|| put_synced(&db, "first")), ["db", ".wal", "MANIFEST-"]);
    let of_100 = count(&|| (0..100).for_each(|n| put_synced(&db, &format!("{n}"))));
    assert_eq!(of_100, vec![".wal"; 100]);
    db.flush().unwrap();
    assert_eq!(count(&|| put_synced(&db, "second")), ["db", ".wal", "MANIFEST-"]);
    assert_eq!(count(&|| put_synced(&db, "second")), [".wal"]);
    // An existing manifest is not written to: the edit begins a new one, as that of the first flush
    // would.
    db.close().unwrap();
    let db = open();
    let first = count(&|| put_synced(&db, "third"));
    assert_eq!(first, ["db", ".wal", "MANIFEST-", "db", "CURRENT.tmp", "db"]);
    assert_eq!(count(&|| put_synced(&db, "third")), [".wal"]);
}

#[test]
fn first_synced_write_of_a_log_needs_no_space_for_a_large_manifest() {
    let fs = SimFileSystem::new();
    let (db, _) = open_plain(&fs).unwrap();
    for first in [b'a', b'z'] {
        db.put(vec![first; 1 << 20], "").unwrap();
    }
    db.close().unwrap();
    let (db, _) = open_plain(&fs).unwrap();
    fs.set_capacity(Some(fs.paths().iter().map(|path| fs.file_len(path).unwrap()).sum::<u64>() + (3 << 19)));
    put_synced(&db, "one");
    put_synced(&db, "two");
}

#[test]
fn log_is_named_in_the_manifest_once_there_is_space_for_the_edit() {
    let fs = SimFileSystem::new();
    let (db, _) = open_plain(&fs).unwrap();
    let used: u64 = fs.paths().iter().map(|path| fs.file_len(path).unwrap()).sum();
    fs.set_capacity(Some(used + (600 << 10)));
    put_synced(&db, "one");
    let log = logs(&fs).pop().unwrap();
    let without_log = |fs: &SimFileSystem| {
        let fs = fs.crash(1);
        FileSystem::remove(&fs, &log).unwrap();
        fs
    };
    assert!(open_plain(&without_log(&fs)).is_ok());
    fs.set_capacity(None);
    put_synced(&db, "two");
    check_refused(&without_log(&fs), &log);
}
