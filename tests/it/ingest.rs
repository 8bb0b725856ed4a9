//! Are ingested tables there whole or not at all, in the order of writes, whatever happens?
//!
//! `TAMIS_SEEDS` sets the number of histories, `TAMIS_SEED` runs one.

mod kill;
mod ranges;
mod refused;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tamis::inspect::{Finding, FindingKind, Inspector};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{
    Change, Db, Error, Executor, FilterPolicy, IngestMode, IngestOptions, Keyspace, KeyspaceOptions, OperationKind,
    Options, ReadMode, SstFormat, SstWriter, WriteBatch,
};

use crate::support::{Watchdog, stepped_options};

/// A file system with a directory for files to ingest.
pub(super) fn file_system() -> SimFileSystem {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/in")).unwrap();
    fs
}

pub(super) fn open(fs: &SimFileSystem) -> Db {
    stepped_options(fs).0.memtable_size(64 << 10).open("/db").unwrap()
}

/// Writes a table of these keys, each with `value`, or deletes without one.
pub(super) fn write(
    fs: &SimFileSystem,
    format: &SstFormat,
    name: &str,
    keys: impl IntoIterator<Item = u32>,
    value: Option<&str>,
) -> PathBuf {
    let path = Path::new("/in").join(name);
    let mut writer = SstWriter::create_in(Arc::new(fs.clone()), &path, format).unwrap();
    for key in keys {
        match value {
            Some(value) => writer.put(key.to_be_bytes(), value).unwrap(),
            None => writer.delete(key.to_be_bytes()).unwrap(),
        }
    }
    writer.finish().unwrap();
    path
}

/// Writes a table of range deletes.
pub(super) fn write_ranges(
    fs: &SimFileSystem,
    format: &SstFormat,
    name: &str,
    ranges: impl IntoIterator<Item = Range<u32>>,
) -> PathBuf {
    let path = Path::new("/in").join(name);
    let mut writer = SstWriter::create_in(Arc::new(fs.clone()), &path, format).unwrap();
    for Range { start, end } in ranges {
        writer.delete_range(start.to_be_bytes()..end.to_be_bytes()).unwrap();
    }
    writer.finish().unwrap();
    path
}

pub(super) fn ingest(fs: &SimFileSystem, keyspace: &Keyspace, name: &str, keys: impl IntoIterator<Item = u32>) {
    let path = write(fs, &keyspace.sst_format().unwrap(), name, keys, Some(name));
    keyspace.ingest([path], IngestOptions::new()).unwrap();
}

/// The number of tables in each level.
fn levels(db: &Db) -> Vec<usize> {
    db.stats().keyspaces[0].levels.iter().map(|level| level.tables.len()).collect()
}

fn get(db: &Db, key: u32) -> Option<String> {
    db.get(key.to_be_bytes()).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Expects that every file of the store is sound and needed.
#[track_caller]
pub(super) fn check_sound(fs: &SimFileSystem) {
    let mut findings = Vec::new();
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let verified = inspector.verify(Path::new("/db"), &mut |finding| findings.push(finding.to_string())).unwrap();
    assert_eq!((verified.damaged, verified.unchecked), (0, 0), "{findings:?}");
}

#[test]
fn an_ingest_is_a_write_among_others() {
    let fs = file_system();
    let db = open(&fs);
    for key in 0..100u32 {
        db.put(key.to_be_bytes(), "old").unwrap();
    }
    let (before, iter) = (db.snapshot(), db.iter());
    let format = db.sst_format().unwrap();
    let files =
        [write(&fs, &format, "puts", (10..60).step_by(2), Some("new")), write(&fs, &format, "deletes", 70..80, None)];
    let info = db.ingest(&files, IngestOptions::new()).unwrap();
    assert_eq!((info.seqno, info.entries, info.copied), (101, 35, 0));
    assert_eq!((db.last_seqno(), db.synced_seqno()), (101, 101), "it is durable");
    db.put(12u32.to_be_bytes(), "newest").unwrap();

    let check = |db: &Db| {
        let expected = |key| match key {
            12 => Some("newest"),
            10..60 if key % 2 == 0 => Some("new"),
            70..80 => None,
            _ => Some("old"),
        };
        (0..100).for_each(|key| assert_eq!(get(db, key).as_deref(), expected(key), "{key}"));
        let found = db.iter().map(|entry| entry.unwrap().0.to_vec());
        assert!(found.eq((0..100u32).filter(|key| expected(*key).is_some()).map(|key| key.to_be_bytes().to_vec())));
        let keys: Vec<_> = (0..100u32).map(|key| key.to_be_bytes()).collect();
        let found = db.multi_get(&keys).unwrap();
        assert!(found.iter().zip(0..).all(|(value, key)| value.as_deref() == expected(key).map(str::as_bytes)));
    };
    check(&db);
    // What was there before does not see it.
    assert!(before.iter().chain(iter).all(|entry| *entry.unwrap().1 == *b"old"));
    drop(before);
    assert_eq!(db.stats().ingested_tables, 2);

    check(&stepped_options(&fs).0.open_read_only("/db").unwrap());
    db.close().unwrap();
    check_sound(&fs);
    let db = open(&fs);
    check(&db);
    db.compact_range(..).unwrap();
    check(&db);
    assert!(files.iter().all(|file| fs.paths().contains(file)), "they were linked");
}

#[test]
fn tables_go_to_the_lowest_level_that_is_free() {
    let fs = file_system();
    let db = open(&fs);
    let default = db.default_keyspace();
    ingest(&fs, default, "a", [10, 20]);
    assert_eq!(levels(&db), [0, 0, 0, 0, 0, 0, 1]);
    ingest(&fs, default, "b", [30, 40]);
    assert_eq!(levels(&db), [0, 0, 0, 0, 0, 0, 2]);
    // Each overlaps what came before.
    for (name, expected) in [("c", [0, 0, 0, 0, 0, 1, 2]), ("d", [0, 0, 0, 0, 1, 1, 2]), ("e", [0, 0, 0, 1, 1, 1, 2])] {
        ingest(&fs, default, name, [15, 20, 35]);
        assert_eq!((levels(&db), get(&db, 20).as_deref()), (expected.to_vec(), Some(name)));
    }
    for name in ["f", "g", "h", "i"] {
        ingest(&fs, default, name, [20]);
    }
    assert_eq!(levels(&db), [2, 1, 1, 1, 1, 1, 2]);
    assert_eq!([10, 20, 35, 40].map(|key| get(&db, key)), ["a", "i", "e", "b"].map(|name| Some(name.to_owned())));
    db.close().unwrap();
    check_sound(&fs);
    assert_eq!(get(&open(&fs), 20).as_deref(), Some("i"));
}

#[test]
fn memtables_are_flushed_only_when_they_overlap() {
    let fs = file_system();
    let db = open(&fs);
    let (default, other) = (db.default_keyspace(), db.keyspace("other").unwrap());
    // The first ingest of a process begins a log that says so.
    ingest(&fs, default, "first", [1000]);
    let flushes = || db.stats().flushes;
    for key in [5u32, 50, 500] {
        db.put(key.to_be_bytes(), "put").unwrap();
        other.put(key.to_be_bytes(), "put").unwrap();
    }
    ingest(&fs, default, "between", [6, 49]);
    ingest(&fs, default, "behind", [501, 600]);
    assert_eq!(flushes(), 0);
    ingest(&fs, default, "over", [7, 60]);
    assert_eq!(flushes(), 1);
    ingest(&fs, &other, "flushed before", [50]);
    assert_eq!(flushes(), 1);
    assert_eq!(other.get(50u32.to_be_bytes()).unwrap().as_deref(), Some(&b"flushed before"[..]));
    assert_eq!([5, 6, 50, 60].map(|key| get(&db, key).unwrap()), ["put", "between", "put", "over"]);
    drop((other, db));
    check_sound(&fs);
}

#[test]
fn files_are_linked_copied_or_moved() {
    let fs = file_system();
    let db = open(&fs);
    for (key, (mode, copied, stays)) in
        (0..).zip([(IngestMode::Link, 0, true), (IngestMode::Copy, 1, true), (IngestMode::Move, 0, false)])
    {
        let path = write(&fs, &db.sst_format().unwrap(), &format!("{key}"), [key], Some("x"));
        let info = db.ingest([&path], IngestOptions::new().mode(mode)).unwrap();
        assert_eq!((info.copied, info.left.len(), fs.paths().contains(&path)), (copied, 0, stays), "{mode:?}");
        // A file that is ingested twice becomes two tables.
        if stays {
            db.put(key.to_be_bytes(), "y").unwrap();
            db.ingest([&path], IngestOptions::new().mode(mode)).unwrap();
        }
        assert_eq!(get(&db, key).as_deref(), Some("x"));
    }
    drop(db);
    check_sound(&fs);
}

#[test]
fn a_transaction_that_has_read_what_is_ingested_conflicts() {
    let fs = file_system();
    let db = open(&fs);
    db.put(1u32.to_be_bytes(), "old").unwrap();
    for (n, key) in [(0, 1u32), (1, 2)] {
        for flushed in [false, true] {
            let mut reader = db.begin();
            reader.get(key.to_be_bytes()).unwrap();
            reader.put("result", "x");
            let mut scanner = db.begin();
            assert!(scanner.range(0u32.to_be_bytes()..9u32.to_be_bytes()).all(|entry| entry.is_ok()));
            scanner.put("result", "x");
            let mut other = db.begin();
            other.get(7u32.to_be_bytes()).unwrap();
            other.put("other", "x");
            ingest(&fs, db.default_keyspace(), &format!("{n}{flushed}"), [key]);
            if flushed {
                db.flush().unwrap();
            }
            assert!(matches!(reader.commit(), Err(Error::Conflict { .. })));
            assert!(matches!(scanner.commit(), Err(Error::Conflict { .. })));
            other.commit().unwrap();
        }
    }
}

#[test]
fn an_update_sees_what_is_ingested_between_its_read_and_its_write() {
    let fs = file_system();
    let db = open(&fs);
    let mut calls = 0;
    let updated = db
        .update(5u32.to_be_bytes(), |value| {
            calls += 1;
            if calls == 1 {
                ingest(&fs, db.default_keyspace(), "new", [5]);
            }
            Change::Put([value.unwrap_or_default(), b"+"].concat())
        })
        .unwrap();
    assert_eq!((calls, updated.after.as_deref()), (2, Some(&b"new+"[..])));
}

#[test]
fn operands_and_deadlines_count_from_the_ingest_on() {
    let fs = file_system();
    let options = KeyspaceOptions::new().merge_operator(tamis::operator::Add::LITTLE);
    let open = || stepped_options(&fs).0.default_keyspace(options.clone()).open("/db").unwrap();
    let number =
        |db: &Db, key: &str| db.get(key).unwrap().map(|value| u64::from_le_bytes((*value).try_into().unwrap()));
    let db = open();
    db.merge("a", 1u64.to_le_bytes()).unwrap();
    let mut writer = SstWriter::create_in(Arc::new(fs.clone()), "/in/merge", &db.sst_format().unwrap()).unwrap();
    writer.merge("a", 10u64.to_le_bytes()).unwrap();
    writer.merge("b", 20u64.to_le_bytes()).unwrap();
    writer.put_with_expiry("c", "gone", std::time::SystemTime::UNIX_EPOCH).unwrap();
    writer.finish().unwrap();
    db.ingest(["/in/merge"], IngestOptions::new()).unwrap();
    db.merge("a", 100u64.to_le_bytes()).unwrap();
    let check = |db: &Db| {
        assert_eq!((number(db, "a"), number(db, "b"), number(db, "c")), (Some(111), Some(20), None));
    };
    check(&db);
    db.close().unwrap();
    check_sound(&fs);
    let db = open();
    check(&db);
    db.compact_range(..).unwrap();
    check(&db);
}

#[test]
fn an_ingested_table_gets_another_filter_like_any_other() {
    let fs = file_system();
    let db = open(&fs);
    ingest(&fs, db.default_keyspace(), "new", 0..1000);
    let before = db.snapshot();
    db.delete(3u32.to_be_bytes()).unwrap();
    db.default_keyspace().rebuild_filters(FilterPolicy::BinaryFuse { fingerprint_bits: 16 }, |_| {}).unwrap();
    let check = |db: &Db| (0..1000).all(|key| (get(db, key).as_deref() == Some("new")) == (key != 3));
    assert!(check(&db) && before.get(3u32.to_be_bytes()).unwrap().is_some());
    drop((before, db));
    check_sound(&fs);
    let db = stepped_options(&fs).0.read_mode(ReadMode::Mmap).paranoid(true).open("/db").unwrap();
    assert!(check(&db));
}

#[test]
fn a_follower_is_told_of_the_tables() {
    let fs = file_system();
    let db = stepped_options(&fs).0.keep_log(1 << 20, std::time::Duration::from_secs(3600)).open("/db").unwrap();
    let words = db.keyspace("words").unwrap();
    db.put("a", "1").unwrap();
    let format = words.sst_format().unwrap();
    let files = [write(&fs, &format, "2", 5..9, Some("x")), write(&fs, &format, "1", 1..4, Some("x"))];
    let ranges = write_ranges(&fs, &format, "ranges", [2..3, 7..9]);
    let mut writer = SstWriter::create_in(Arc::new(fs.clone()), "/in/open", &format).unwrap();
    writer.delete_range(20u32.to_be_bytes()..).unwrap();
    writer.finish().unwrap();
    words.ingest(files.into_iter().chain([ranges, "/in/open".into()]), IngestOptions::new()).unwrap();
    db.put("b", "2").unwrap();
    db.sync().unwrap();
    let check = |db: &Db| {
        let batches: Vec<_> = db.changes_since(0).unwrap().map(|batch| batch.unwrap()).collect();
        assert_eq!(batches.iter().map(|batch| batch.last_seqno()).collect::<Vec<_>>(), [1, 3, 4]);
        let key = |key: u32| key.to_be_bytes().to_vec();
        let behind = |last: u32| Some([&last.to_be_bytes()[..], &[0]].concat());
        let expected = [
            vec![(0, 2, key(2), key(7), Some(key(9))), (0, 1, key(20), key(20), None)],
            vec![(3, 0, key(1), key(3), behind(3)), (4, 0, key(5), key(8), behind(8))],
        ];
        assert_eq!(batches[1].operations().count(), 2);
        for (operation, expected) in batches[1].operations().zip(expected) {
            let OperationKind::Ingest { tables } = operation.kind else { panic!("{operation:?}") };
            let tables = tables.iter().map(|of| (of.entries, of.range_deletes, of.smallest, of.greatest, of.end));
            assert_eq!((operation.keyspace, tables.collect::<Vec<_>>()), ("words", expected));
        }
        let refused = batches[1].append_to(&mut WriteBatch::new(), db);
        assert!(matches!(refused, Err(Error::Ingested { seqno: 2, .. })));
    };
    check(&db);
    drop((words, db));
    check(
        &Options::new()
            .file_system(Arc::new(fs.clone()))
            .keep_log(1 << 20, std::time::Duration::MAX)
            .open("/db")
            .unwrap(),
    );
}

#[test]
fn verify_knows_tables_that_are_only_in_the_log() {
    // The power goes at this call of an ingest. `None` if it ends before.
    let run = |call: Option<u64>| {
        let fs = file_system();
        let db = open(&fs);
        (0..20).for_each(|key: u32| _ = db.put(key.to_be_bytes(), "old").unwrap());
        let format = db.sst_format().unwrap();
        // The first ingest begins a log and a manifest that say so.
        db.ingest([write_ranges(&fs, &format, "first", Some(18..19))], IngestOptions::new()).unwrap();
        db.flush().unwrap();
        let files =
            [write(&fs, &format, "puts", [3, 30], Some("new")), write_ranges(&fs, &format, "ranges", Some(5..8))];
        fs.crash_at(call);
        let _ = db.ingest(files, IngestOptions::new());
        call.map_or_else(|| Some(fs.kill()), |_| fs.crash_point())
    };
    let verify = |fs: &SimFileSystem| {
        let mut leftovers = 0;
        let mut count = |finding: &Finding| leftovers += usize::from(finding.kind == FindingKind::Leftover);
        let verified = Inspector::on(Arc::new(fs.clone())).verify(Path::new("/db"), &mut count).unwrap();
        assert_eq!((verified.damaged, verified.unchecked), (0, 0));
        (verified, leftovers)
    };
    let (whole, _) = verify(&run(None).unwrap());
    let mut only_logged = 0;
    for call in 1.. {
        let Some(killed) = run(Some(call)) else { break };
        let (verified, leftovers) = verify(&killed);
        let db = open(&killed);
        let is_there = get(&db, 30).is_some();
        assert_eq!(is_there, get(&db, 5).is_none(), "call {call}");
        assert!(!is_there || leftovers == 0 && verified.tables == whole.tables, "call {call}: {verified:?}");
        only_logged += usize::from(is_there && verified.edits < whole.edits);
    }
    assert!(only_logged > 0);
}

#[test]
fn racing_puts_and_scans_see_one_order() {
    let _watchdog = Watchdog::new("racing_puts_and_scans_see_one_order");
    const ROUNDS: u32 = 60;
    let fs = file_system();
    // Keys from 100 on are in ingests only, but for the last one, which is updated, too.
    const UPDATED: u32 = 200;
    let files = |db: &Db, round: u32| {
        let value = format!("{round:05}");
        let keys = (0..100).step_by(3).chain(100..=UPDATED);
        write(&fs, &db.sst_format().unwrap(), &value, keys, Some(&value))
    };
    let options = Options::new().file_system(Arc::new(fs.clone())).memtable_size(64 << 10).hash_seed(7);
    let db = options.open("/db").unwrap();
    let is_done = AtomicBool::new(false);
    let mut last: BTreeMap<u32, (u64, String)> = BTreeMap::new();
    let mut note = |key: u32, seqno: u64, value: &str| {
        let last = last.entry(key).or_default();
        *last = (seqno, value.to_owned()).max(last.clone());
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = Vec::new();
            for n in 0u32.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                let (key, value) = (n % 100, format!("put {n}"));
                written.push((key, db.put(key.to_be_bytes(), &value).unwrap(), value));
            }
            written
        });
        let reader = scope.spawn(|| {
            let mut before = (0, Vec::new());
            while !is_done.load(Ordering::Relaxed) {
                let seen: Vec<_> = {
                    let keys = 100u32.to_be_bytes()..UPDATED.to_be_bytes();
                    db.range(keys).map(|entry| entry.unwrap().1.to_vec()).collect()
                };
                assert!(seen.windows(2).all(|pair| pair[0] == pair[1]) && [0, 100].contains(&seen.len()));
                let at = db.snapshot();
                let of_snapshot = at.get(150u32.to_be_bytes()).unwrap().map(|value| value.to_vec()).unwrap_or_default();
                assert!(at.seqno() >= before.0 && of_snapshot >= before.1, "later snapshots see no less");
                let again = at.get(199u32.to_be_bytes()).unwrap().map(|value| value.to_vec()).unwrap_or_default();
                assert_eq!(again, of_snapshot);
                before = (at.seqno(), of_snapshot);
            }
        });
        let updater = scope.spawn(|| {
            let mut updates = Vec::new();
            while !is_done.load(Ordering::Relaxed) {
                let add = |old: Option<&[u8]>| Change::Put([old.unwrap_or_default(), b"+"].concat());
                let updated = db.update(UPDATED.to_be_bytes(), add).unwrap();
                let text = |value: Option<tamis::Value>| {
                    value.map(|value| String::from_utf8(value.to_vec()).unwrap()).unwrap_or_default()
                };
                updates.push((updated.seqno.unwrap(), text(updated.before)));
            }
            updates
        });
        let mut ingested = Vec::new();
        for round in 0..ROUNDS {
            let path = files(&db, round);
            ingested.push(db.ingest([path], IngestOptions::new().mode(IngestMode::Move)).unwrap().seqno);
        }
        is_done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        writer.join().unwrap().iter().for_each(|(key, seqno, value)| note(*key, *seqno, value));
        // In the order of their numbers, each update changes what the write before it left.
        let mut of_updated: BTreeMap<u64, Option<String>> = BTreeMap::new();
        of_updated.extend(updater.join().unwrap().into_iter().map(|(seqno, before)| (seqno, Some(before))));
        for (round, seqno) in (0u32..).zip(ingested) {
            let value = format!("{round:05}");
            (0..100).step_by(3).chain(100..UPDATED).for_each(|key| note(key, seqno, &value));
            of_updated.insert(seqno, None);
        }
        let (mut value, mut round) = (String::new(), 0..ROUNDS);
        for (seqno, before) in of_updated {
            match before {
                Some(before) => {
                    assert_eq!(before, value, "update {seqno}");
                    value.push('+');
                }
                None => value = format!("{:05}", round.next().unwrap()),
            }
            note(UPDATED, seqno, &value);
        }
    });
    let check =
        |db: &Db| last.iter().for_each(|(key, (_, value))| assert_eq!(get(db, *key).as_ref(), Some(value), "{key}"));
    check(&db);
    db.wait_for_compactions().unwrap();
    check(&db);
    db.close().unwrap();
    check_sound(&fs);
    check(&open(&fs));
}

/// Ingests fill no memtable, and their records must not fill a log for ever.
#[test]
fn logs_of_a_store_that_only_ingests_stay_short() {
    let fs = SimFileSystem::new();
    let (options, executor) = stepped_options(&fs);
    let db = options.memtable_size(16 << 10).open("/db").unwrap();
    fs.create_dir(Path::new("/in")).unwrap();
    let logs = || {
        let names = fs.list("/db".as_ref()).unwrap().into_iter().filter(|name| name.ends_with(".wal"));
        names.map(|name| fs.file_len(Path::new("/db").join(name)).unwrap()).sum::<u64>()
    };
    let mut most = 0;
    for n in 0..1000 {
        ingest(&fs, db.default_keyspace(), &n.to_string(), [n]);
        while executor.step() {}
        most = most.max(logs());
    }
    assert!(most <= 3 * (20 << 10), "{most} bytes");
    assert_eq!(db.keys(..).count(), 1000);
    let killed = fs.kill();
    drop(db);
    assert_eq!(stepped_options(&killed).0.open("/db").unwrap().keys(..).count(), 1000);
}
