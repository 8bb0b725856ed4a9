//! Do values in value files come back by every read, and does their space, once they are dead?

#[cfg(unix)]
use std::io;
use std::path::Path;
use std::sync::Arc;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::inspect::{FileKind, Inspector};
use tamis::operator::{Append, CompactionDecision};
#[cfg(unix)]
use tamis::vfs::ReadableFile;
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Compression, Db, Error, Found, KeyspaceOptions, Options, RepairOptions, RepairReport, WriteBatch, repair};

#[cfg(unix)]
use crate::support::OpenedBy;

fn keyspace() -> KeyspaceOptions {
    KeyspaceOptions::new().separate_values(100).compression(Compression::None)
}

fn options(fs: &SimFileSystem) -> Options {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    Options::new()
        .file_system(fs)
        .memtable_size(64 << 10)
        .table_size(64 << 10)
        .hash_seed(7)
        .default_keyspace(keyspace())
}

fn store() -> (SimFileSystem, Db) {
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    (fs, db)
}

/// The value files, with their lengths.
fn value_files(fs: &SimFileSystem) -> Vec<(u64, u64)> {
    let names = fs.list(Path::new("/db")).unwrap();
    let kinds = names.iter().filter_map(|name| FileKind::parse(name));
    let number = |kind| if let FileKind::Values(number) = kind { Some(number) } else { None };
    kinds.filter_map(number).map(|n| (n, fs.file_len(FileKind::Values(n).path(Path::new("/db"))).unwrap())).collect()
}

/// A value that no other key or version has, long enough for a value file.
fn long(key: u32, version: u32) -> Vec<u8> {
    format!("{key:08} {version:08} ").repeat(20 + (key % 7) as usize).into_bytes()
}

fn key(i: u32) -> Vec<u8> {
    format!("{i:06}").into_bytes()
}

/// Every way of reading finds these values and no others, of keys below `end`.
fn check(db: &Db, end: u32, expected: impl Fn(u32) -> Option<Vec<u8>>) {
    let all: Vec<(Vec<u8>, Vec<u8>)> = (0..end).filter_map(|i| Some((key(i), expected(i)?))).collect();
    let keys: Vec<Vec<u8>> = (0..end).map(key).collect();
    let many = db.multi_get(&keys).unwrap();
    for i in 0..end {
        let (key, expected) = (key(i), expected(i));
        assert_eq!(db.get(&key).unwrap().as_deref(), expected.as_deref(), "key {i}");
        assert_eq!(many[i as usize].as_deref(), expected.as_deref(), "key {i}");
        assert_eq!(db.contains_key(&key).unwrap(), expected.is_some());
        assert_eq!(db.read(&key, <[u8]>::to_vec).unwrap(), expected);
        let mut buffer = Vec::new();
        assert_eq!(db.get_into(&key, &mut buffer).unwrap(), expected.is_some());
        assert_eq!(buffer, expected.unwrap_or_default());
    }
    let pair =
        |entry: tamis::Result<(tamis::Value, tamis::Value)>| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap();
    assert_eq!(db.iter().map(pair).collect::<Vec<_>>(), all);
    let mut backward: Vec<_> = db.iter().rev().map(pair).collect();
    backward.reverse();
    assert_eq!(backward, all);
    let keys: Vec<Vec<u8>> = db.keys(..).map(|key| key.unwrap().to_vec()).collect();
    assert!(keys.iter().eq(all.iter().map(|(key, _)| key)));
    let mut keys: Vec<Vec<u8>> = db.keys(..).rev().map(|key| key.unwrap().to_vec()).collect();
    keys.reverse();
    assert!(keys.iter().eq(all.iter().map(|(key, _)| key)));
    let values: Vec<Vec<u8>> = db.values(..).map(|value| value.unwrap().to_vec()).collect();
    assert!(values.iter().eq(all.iter().map(|(_, value)| value)));
    // A cursor that turns round at every entry.
    let mut cursor = db.cursor().unwrap();
    cursor.seek_to_first().unwrap();
    for (i, (key, value)) in all.iter().enumerate() {
        assert_eq!((cursor.key(), cursor.value()), (Some(&key[..]), Some(&value[..])));
        if cursor.next().unwrap() {
            cursor.prev().unwrap();
            assert_eq!((cursor.key(), cursor.value()), (Some(&key[..]), Some(&value[..])), "{i} again");
            cursor.next().unwrap();
        }
    }
}

#[test]
fn long_values_go_to_value_files_and_come_back_by_every_read() {
    let (fs, db) = store();
    let expected = |i: u32| match i % 3 {
        0 => Some(long(i, 1)),
        1 => Some(b"short".to_vec()),
        _ => None,
    };
    for i in (0..300).filter(|i| i % 3 < 2) {
        db.put(key(i), expected(i).unwrap()).unwrap();
    }
    check(&db, 300, expected);
    assert_eq!(value_files(&fs), [], "memtables have whole values");
    db.flush().unwrap();
    let files = value_files(&fs);
    let bytes: usize = (0..300).step_by(3).map(|i| long(i, 1).len()).sum();
    let stored: u64 = files.iter().map(|(_, len)| len).sum();
    assert!(stored > bytes as u64 && stored < bytes as u64 + 100 * 32, "{stored} for {bytes}");
    check(&db, 300, expected);
    let explained = db.explain(key(3)).unwrap();
    assert_eq!(explained.steps.last().unwrap().found, Some(Found::SeparateValue(long(3, 1).len())));
    db.compact_range(..).unwrap();
    assert_eq!(value_files(&fs), files, "a compaction leaves values where they are");
    check(&db, 300, expected);
    drop(db);
    check(&options(&fs).open("/db").unwrap(), 300, expected);
    let read_only = options(&fs).open_read_only("/db").unwrap();
    check(&read_only, 300, expected);
}

#[test]
fn scans_of_keys_read_no_value_and_a_get_one() {
    let (fs, db) = store();
    (0..100).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.flush().unwrap();
    let file = FileKind::Values(value_files(&fs)[0].0).path(Path::new("/db"));
    // No value can be read.
    fs.write(&file, vec![]).unwrap();
    assert_eq!(db.keys(..).count(), 100);
    assert!(db.keys(..).chain(db.keys(..).rev()).all(|key| key.is_ok()));
    assert!(db.contains_key(key(5)).unwrap() && !db.is_empty().unwrap());
    let error = db.get(key(5)).unwrap_err();
    assert!(matches!(&error, Error::Corruption { file: named, .. } if *named == file), "{error}");
    let mut iter = db.iter();
    assert!(matches!(iter.next(), Some(Err(Error::Corruption { .. }))) && iter.next().is_none());
}

#[test]
fn long_scans_read_many_values_at_once_in_either_direction() {
    let (fs, db) = store();
    let count = 1000;
    (0..count).for_each(|i| _ = db.put(key(i), long(i, 0)).unwrap());
    db.flush().unwrap();
    // Every other one is in a second file.
    (0..count).step_by(2).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let reads_of = |work: &dyn Fn() -> usize| {
        let before = fs.reads();
        assert_eq!(work(), count as usize);
        fs.reads() - before
    };
    // Opens the tables.
    let keys = || db.keys(..).filter(|key| key.is_ok()).count();
    reads_of(&keys);
    let keys = reads_of(&keys);
    let forward = reads_of(&|| db.iter().filter(|entry| entry.is_ok()).count());
    let backward = reads_of(&|| db.iter().rev().filter(|entry| entry.is_ok()).count());
    let most = keys + u64::from(count) / 10;
    assert!(forward <= most && backward <= most, "{forward} and {backward} reads beside {keys} of the tables");
    check(&db, count, |i| Some(long(i, u32::from(i % 2 == 0))));
}

#[test]
fn overwriting_and_deleting_give_the_space_back() {
    let (fs, db) = store();
    for version in 1..=4 {
        let mut order: Vec<u32> = (0..2000).collect();
        fastrand::Rng::with_seed(version.into()).shuffle(&mut order);
        for i in order {
            db.put(key(i), long(i, version)).unwrap();
        }
    }
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let live: u64 = (0..2000).map(|i| long(i, 4).len() as u64).sum();
    let stored: u64 = value_files(&fs).iter().map(|(_, len)| len).sum();
    assert!(stored < live * 3 / 2, "{stored} bytes for {live}");
    check(&db, 2000, |i| Some(long(i, 4)));
    (0..2000).for_each(|i| _ = db.delete(key(i)).unwrap());
    db.compact_range(..).unwrap();
    // A compaction that runs meanwhile may be the last reader.
    drop(db);
    let db = options(&fs).open("/db").unwrap();
    assert_eq!(value_files(&fs), []);
    assert!(db.is_empty().unwrap());
}

#[test]
fn readers_keep_the_values_that_they_may_read() {
    let (fs, db) = store();
    (0..200).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.flush().unwrap();
    let former = value_files(&fs);
    let snapshot = db.snapshot();
    let mut iter = db.iter();
    iter.next().unwrap().unwrap();
    db.delete_prefix("").unwrap();
    db.put("after", long(0, 2)).unwrap();
    db.compact_range(..).unwrap();
    assert!(former.iter().all(|file| value_files(&fs).contains(file)));
    assert_eq!(snapshot.get(key(7)).unwrap().unwrap(), long(7, 1));
    drop(snapshot);
    db.compact_range(..).unwrap();
    // The iterator is the last reader.
    assert_eq!(
        iter.map(|entry| entry.unwrap().1.to_vec()).collect::<Vec<_>>(),
        (1..200).map(|i| long(i, 1)).collect::<Vec<_>>()
    );
    drop(db);
    assert!(former.iter().all(|file| !value_files(&fs).contains(file)));
    let db = options(&fs).open("/db").unwrap();
    assert_eq!(db.get("after").unwrap().unwrap(), long(0, 2));
}

#[test]
fn what_a_snapshot_sees_is_moved_and_not_lost() {
    let (fs, db) = store();
    (0..1000).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.compact_range(..).unwrap();
    let former = value_files(&fs);
    let snapshot = db.snapshot();
    // Of every second file's values, most die, unless the snapshot sees them.
    (1000..1500).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.compact_range(..).unwrap();
    (1000..1400).for_each(|i| _ = db.delete(key(i)).unwrap());
    for version in 2..4 {
        (0..500).for_each(|i| _ = db.put(key(i), long(i, version)).unwrap());
        db.compact_range(..).unwrap();
    }
    db.wait_for_compactions().unwrap();
    (0..1000).for_each(|i| assert_eq!(snapshot.get(key(i)).unwrap().unwrap(), long(i, 1)));
    drop(snapshot);
    db.compact_range(..).unwrap();
    db.wait_for_compactions().unwrap();
    check(&db, 1500, |i| match i {
        0..500 => Some(long(i, 3)),
        1000..1400 => None,
        _ => Some(long(i, 1)),
    });
    assert!(former.iter().any(|file| !value_files(&fs).contains(file)), "{former:?}");
}

#[test]
fn a_cleared_keyspace_has_no_value_files() {
    let (fs, db) = store();
    (0..500).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.flush().unwrap();
    db.clear().unwrap();
    db.wait_for_compactions().unwrap();
    assert!(db.is_empty().unwrap());
    (0..20).for_each(|i| _ = db.put(key(i), long(i, 2)).unwrap());
    db.flush().unwrap();
    let stats = db.stats().keyspaces[0].values;
    assert_eq!(stats.values, 20, "{stats:?}");
    check(&db, 500, |i| (i < 20).then(|| long(i, 2)));
    drop(db);
    drop(options(&fs).open("/db").unwrap());
    assert_eq!(value_files(&fs).len() as u64, stats.files);
}

#[test]
fn value_files_that_have_changed_places_are_noticed() {
    let fs = closed_store();
    let files = value_files(&fs);
    let path = |i: usize| FileKind::Values(files[i].0).path(Path::new("/db"));
    let (first, last) = (fs.read(path(0)).unwrap(), fs.read(path(files.len() - 1)).unwrap());
    fs.write(path(0), last).unwrap();
    fs.write(path(files.len() - 1), first).unwrap();
    assert!(findings(&fs).len() >= 2);
    let db = options(&fs).open("/db").unwrap();
    for i in 0..200 {
        match db.get(key(i)) {
            Ok(value) => assert_eq!(value.unwrap(), long(i, version(i))),
            Err(error) => assert!(matches!(error, Error::Corruption { .. }), "{error}"),
        }
    }
    assert!((0..200).any(|i| db.get(key(i)).is_err()));
}

#[test]
fn a_threshold_can_be_set_changed_and_taken_back() {
    let (fs, db) = store();
    let ks = db.keyspace_with("ks", KeyspaceOptions::new()).unwrap();
    (0..50).for_each(|i| _ = ks.put(key(i), long(i, 1)).unwrap());
    db.flush().unwrap();
    assert_eq!(value_files(&fs), []);
    drop(ks);
    let ks = db.keyspace_with("ks", keyspace()).unwrap();
    (50..60).for_each(|i| _ = ks.put(key(i), long(i, 1)).unwrap());
    ks.compact_range(..).unwrap();
    let stored: u64 = value_files(&fs).iter().map(|(_, len)| len).sum();
    assert!(stored > (0..60).map(|i| long(i, 1).len() as u64).sum(), "a compaction takes them out");
    drop(ks);
    let ks = db.keyspace_with("ks", KeyspaceOptions::new()).unwrap();
    (0..60).for_each(|i| assert_eq!(ks.get(key(i)).unwrap().unwrap(), long(i, 1)));
    drop(ks);
    assert!(db.drop_keyspace("ks").unwrap());
    db.wait_for_compactions().unwrap();
    assert_eq!(value_files(&fs), []);
    let refused = db.keyspace_with("ks", KeyspaceOptions::new().separate_values(3));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
}

#[test]
fn operands_change_separate_values() {
    let fs = SimFileSystem::new();
    let options = || options(&fs).default_keyspace(keyspace().merge_operator(Append));
    let db = options().merge_operator(Append).open("/db").unwrap();
    db.put("k", long(1, 1)).unwrap();
    db.flush().unwrap();
    db.merge("k", "x").unwrap();
    let expected = [&long(1, 1)[..], b"x"].concat();
    let agrees = |db: &Db| {
        assert_eq!(db.get("k").unwrap().unwrap(), expected);
        assert_eq!(db.first().unwrap().unwrap().1, expected);
        assert_eq!(db.last().unwrap().unwrap().1, expected);
    };
    agrees(&db);
    db.flush().unwrap();
    agrees(&db);
    db.compact_range(..).unwrap();
    agrees(&db);
    // A thread that ends its work may be the last to see the former version.
    let is_removed = || value_files(&fs).len() == 1;
    assert!((0..1000).any(|_| is_removed() || {
        std::thread::sleep(Duration::from_millis(10));
        false
    }));
}

#[test]
fn a_compaction_filter_sees_values_and_not_pointers() {
    let fs = SimFileSystem::new();
    let filter = |_: &[u8], value: &[u8]| match value.first() {
        Some(b'0') if value.len() > 100 => CompactionDecision::Keep,
        Some(b'd') => CompactionDecision::Drop,
        _ => CompactionDecision::Replace(vec![b'0'; 150]),
    };
    let db = options(&fs).default_keyspace(keyspace().compaction_filter(filter)).open("/db").unwrap();
    db.put("keep", long(1, 1)).unwrap();
    (0..9).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.put("drop", [b'd'; 300]).unwrap();
    db.put("replace", [b'r'; 300]).unwrap();
    db.flush().unwrap();
    let former = value_files(&fs);
    db.compact_range(..).unwrap();
    assert_eq!(db.get("keep").unwrap().unwrap(), long(1, 1));
    assert_eq!((db.get("drop").unwrap(), db.get("replace").unwrap().unwrap().to_vec()), (None, vec![b'0'; 150]));
    assert!(value_files(&fs).contains(&former[0]), "what is kept stays where it is");
}

#[test]
fn many_small_value_files_are_merged() {
    let (fs, db) = store();
    for i in 0..100 {
        db.put(key(i), long(i, 1)).unwrap();
        db.flush().unwrap();
        db.wait_for_compactions().unwrap();
    }
    db.compact_range(..).unwrap();
    db.wait_for_compactions().unwrap();
    assert!(value_files(&fs).len() < 40, "{:?}", value_files(&fs));
    check(&db, 100, |i| Some(long(i, 1)));
}

/// A store of 200 long values in several tables, closed.
fn closed_store() -> SimFileSystem {
    let (fs, db) = store();
    (0..200).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.compact_range(..).unwrap();
    (0..100).for_each(|i| _ = db.put(key(2 * i), long(2 * i, 2)).unwrap());
    db.close().unwrap();
    fs
}

fn version(i: u32) -> u32 {
    if i.is_multiple_of(2) { 2 } else { 1 }
}

fn findings(fs: &SimFileSystem) -> Vec<String> {
    let mut found = Vec::new();
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let verified = Inspector::on(fs).verify(Path::new("/db"), &mut |fault| found.push(fault.to_string())).unwrap();
    assert_eq!(verified.damaged == 0, found.is_empty(), "{found:?}");
    found
}

/// Repairs the store; returns the keys that it lacks afterwards. All others have their values.
fn repaired(fs: &SimFileSystem) -> (RepairReport, Vec<u32>) {
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let report = repair("/db", RepairOptions::new().file_system(shared)).unwrap();
    assert_eq!(findings(fs), [] as [String; 0], "{report}");
    let db = options(fs).open("/db").unwrap();
    let mut lost = Vec::new();
    for i in 0..200 {
        match db.get(key(i)).unwrap() {
            Some(value) if value == long(i, version(i)) => {}
            // The older version is not lost.
            Some(value) => {
                assert_eq!(value, long(i, 1));
                lost.push(i);
            }
            None => lost.push(i),
        }
    }
    (report, lost)
}

#[test]
fn damage_to_a_value_is_found_and_costs_that_value_alone() {
    let fs = closed_store();
    assert_eq!(findings(&fs), [] as [String; 0]);
    let record_in = |(number, _)| {
        let path = FileKind::Values(number).path(Path::new("/db"));
        let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let mut records = Inspector::on(shared).values(&path).unwrap().map(|record| record.unwrap());
        Some((records.find(|record| record.key == key(71))?, path))
    };
    let (record, path) = value_files(&fs).into_iter().find_map(record_in).unwrap();
    assert_eq!((record.value, record.len > long(71, 1).len() as u64), (long(71, 1), true));
    fs.corrupt(&path, record.offset + 40, 1).unwrap();
    let found = findings(&fs);
    assert!(found.len() == 1 && found[0].contains("checksum of a value"), "{found:?}");
    let db = options(&fs).open("/db").unwrap();
    let failing: Vec<u32> = (0..200).filter(|&i| db.get(key(i)).is_err()).collect();
    let salvaged = db.default_keyspace().salvage(..).unwrap().count();
    assert_eq!((&failing[..], salvaged), (&[71][..], 199));
    drop(db);
    let (report, lost) = repaired(&fs);
    assert_eq!((lost, report.losses.len()), (failing, 1), "{report}");
}

#[test]
fn a_value_that_cannot_be_moved_stops_no_other_compaction() {
    let (fs, db) = store();
    (0..1000).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.compact_range(..).unwrap();
    for (number, _) in value_files(&fs) {
        fs.corrupt(FileKind::Values(number).path(Path::new("/db")), 100, 1).unwrap();
    }
    let damaged: Vec<u32> = (0..1000).filter(|&i| db.get(key(i)).is_err()).collect();
    assert!(!damaged.is_empty());
    // All values but the damaged ones are dead in the end, and there are many runs in level 0.
    for version in 2..6 {
        for i in (0..1000).filter(|i| !damaged.contains(i)) {
            db.put(key(i), long(i, version)).unwrap();
        }
        db.flush().unwrap();
    }
    for i in (0..1000).filter(|i| !damaged.contains(i)) {
        assert_eq!(db.get(key(i)).unwrap().unwrap(), long(i, 5));
    }
    assert!(damaged.iter().all(|&i| db.get(key(i)).is_err()));
}

/// A value file that cannot be read for now.
#[cfg(unix)]
#[derive(Debug)]
struct Failing {
    file: Arc<dyn ReadableFile>,
    fails: Arc<AtomicBool>,
}

#[cfg(unix)]
impl ReadableFile for Failing {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(24)),
            false => self.file.read_at(buf, offset),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

/// For want of descriptors no value can be moved, again and again. Once there are some, all that is
/// dead goes.
#[cfg(unix)]
#[test]
fn values_that_cannot_be_moved_for_now_are_moved_later() {
    let (fs, fails) = (SimFileSystem::new(), Arc::new(AtomicBool::new(false)));
    let given = Arc::clone(&fails);
    let wrap = move |file| -> Arc<dyn ReadableFile> { Arc::new(Failing { file, fails: Arc::clone(&given) }) };
    let opened: Arc<dyn FileSystem> = Arc::new(OpenedBy::of_kind("val", fs.clone(), wrap));
    let db = options(&fs).file_system(opened).open("/db").unwrap();
    (0..1000).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.compact_range(..).unwrap();
    fails.store(true, Ordering::Relaxed);
    // Every value but some of the first version is dead in the end.
    for version in 2..7 {
        (0..1000u32).filter(|i| !i.is_multiple_of(50)).for_each(|i| _ = db.put(key(i), long(i, version)).unwrap());
        db.flush().unwrap();
    }
    let soon = |is_so: &dyn Fn() -> bool| {
        (0..3000).any(|_| {
            is_so() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        })
    };
    assert!(soon(&|| db.stats().keyspaces[0].levels[0].tables.len() < 8), "level 0 is merged down");
    fails.store(false, Ordering::Relaxed);
    let is_small = || {
        let stored: u64 = value_files(&fs).iter().map(|(_, len)| len).sum();
        let live: u64 = (0..1000).map(|i| long(i, 1).len() as u64 + 60).sum();
        stored < live * 13 / 10
    };
    assert!(soon(&is_small), "{:?}", value_files(&fs));
    let expected = |i: u32| long(i, if i.is_multiple_of(50) { 1 } else { 6 });
    assert!((0..1000).all(|i| db.get(key(i)).unwrap().unwrap() == expected(i)));
}

/// The file with a damaged value is the first to be emptied, and nothing is written after that has
/// failed.
#[test]
fn in_an_idle_store_a_value_that_cannot_be_moved_keeps_no_garbage_of_other_files() {
    let (fs, db) = store();
    (0..1000).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.compact_range(..).unwrap();
    let (damaged, _) = value_files(&fs)[0];
    fs.corrupt(FileKind::Values(damaged).path(Path::new("/db")), 100, 1).unwrap();
    let lost = (0..1000).find(|&i| db.get(key(i)).is_err()).unwrap();
    let is_new = |i: u32| i != lost && (i.abs_diff(lost) < 50 || i.is_multiple_of(2));
    (0..1000).filter(|&i| is_new(i)).for_each(|i| _ = db.put(key(i), long(i, 2)).unwrap());
    db.flush().unwrap();
    // A caller that waits meanwhile is told of the damage, but not again and again.
    if let Err(error) = db.wait_for_compactions() {
        assert!(matches!(error, Error::Corruption { .. }), "{error}");
    }
    db.wait_for_compactions().unwrap();
    for i in (0..1000).filter(|&i| i != lost) {
        assert_eq!(db.get(key(i)).unwrap().unwrap(), long(i, 1 + u32::from(is_new(i))));
    }
    let files = value_files(&fs);
    let of_damaged = files.iter().find(|(number, _)| *number == damaged).unwrap().1;
    let stored: u64 = files.iter().map(|(_, len)| len).sum();
    let live: u64 = (0..1000).map(|i| long(i, 1).len() as u64 + 60).sum();
    assert!(stored - of_damaged < live * 12 / 10, "{stored} {of_damaged} {live}");
}

#[test]
fn a_missing_value_file_is_named_and_costs_its_values_alone() {
    let fs = closed_store();
    let (number, _) = *value_files(&fs).last().unwrap();
    let path = FileKind::Values(number).path(Path::new("/db"));
    fs.remove(&path).unwrap();
    let error = options(&fs).open("/db").unwrap_err();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == path), "{error}");
    assert!(findings(&fs).iter().any(|found| found.contains(&format!("{number:06}.val"))));
    let (report, lost) = repaired(&fs);
    assert!(!lost.is_empty() && lost.len() < 200 && !report.losses.is_empty(), "{report}");
}

#[test]
fn without_a_manifest_a_repair_keeps_all_values() {
    let fs = closed_store();
    let names = fs.list(Path::new("/db")).unwrap();
    let files = value_files(&fs);
    for name in names.iter().filter(|name| name.starts_with("MANIFEST") || *name == "CURRENT") {
        fs.remove(&Path::new("/db").join(name)).unwrap();
    }
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    repair("/db", RepairOptions::new().file_system(shared)).unwrap();
    assert_eq!(value_files(&fs), files);
    let (report, lost) = repaired(&fs);
    assert_eq!(lost, [0; 0], "{report}");
}

#[test]
fn every_damaged_byte_of_a_value_file_gives_an_error_or_the_right_values() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    (0..3).for_each(|i| _ = db.put(key(i), long(i, 1)).unwrap());
    db.flush().unwrap();
    db.close().unwrap();
    let (number, len) = value_files(&fs)[0];
    let path = FileKind::Values(number).path(Path::new("/db"));
    for at in 0..len {
        fs.corrupt(&path, at, 0x41).unwrap();
        assert!(!findings(&fs).is_empty(), "byte {at}");
        if at % 16 == 0 {
            let db = options(&fs).open_read_only("/db").unwrap();
            for i in 0..3 {
                match db.get(key(i)) {
                    Ok(value) => assert_eq!(value.unwrap(), long(i, 1)),
                    Err(error) => assert!(matches!(error, Error::Corruption { .. }), "{error}"),
                }
            }
        }
        fs.corrupt(&path, at, 0x41).unwrap();
    }
    for len in (0..len).step_by(37) {
        let damaged = fs.kill();
        damaged.truncate(&path, len).unwrap();
        assert!(!findings(&damaged).is_empty(), "{len} bytes");
        let db = options(&damaged).open_read_only("/db").unwrap();
        (0..3).for_each(|i| _ = db.get(key(i)).map(|value| assert_eq!(value.unwrap(), long(i, 1))));
    }
}

#[test]
fn a_batch_with_the_longest_and_the_emptiest_value_is_read_back() {
    let (_, db) = store();
    let mut batch = WriteBatch::new();
    batch.put("empty", "");
    batch.put("long", vec![7; 20 << 20]);
    db.write(batch).unwrap();
    db.flush().unwrap();
    assert_eq!(db.get("empty").unwrap().unwrap(), b"");
    assert!(db.get("long").unwrap().unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(db.iter().map(|entry| entry.unwrap().1.len()).collect::<Vec<_>>(), [0, 20 << 20]);
}

/// A clock that a test sets, in seconds.
fn with_clock(options: Options, seconds: &Arc<AtomicU64>) -> Options {
    let seconds = Arc::clone(seconds);
    options.clock(move || SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.load(Ordering::Relaxed)))
}

#[test]
fn long_values_with_a_deadline_go_to_value_files_and_expire() {
    let fs = SimFileSystem::new();
    let seconds = Arc::new(AtomicU64::new(1000));
    let open = || with_clock(options(&fs), &seconds).open("/db").unwrap();
    let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    let db = open();
    for i in 0..300 {
        db.put_with_expiry(key(i), long(i, 1), at(2000 + u64::from(i % 3) * 1000)).unwrap();
    }
    db.put_with_expiry(key(300), "short", at(2500)).unwrap();
    db.flush().unwrap();
    let stored: u64 = value_files(&fs).iter().map(|(_, len)| len).sum();
    assert!(stored > (0..300).map(|i| long(i, 1).len() as u64).sum(), "{stored}");
    let live = |i: u32, second: u64| 2000 + u64::from(i % 3) * 1000 > second;
    let expect = |db: &Db, second: u64| {
        check(db, 301, |i| match i {
            300 => (second < 2500).then(|| b"short".to_vec()),
            _ => live(i, second).then(|| long(i, 1)),
        });
    };
    expect(&db, 1000);
    assert_eq!(findings(&fs), [] as [String; 0]);
    // Scans of keys read no value; a snapshot reads as of its time.
    let before = db.stats().value_reads;
    assert_eq!(db.keys(..).chain(db.keys(..).rev()).count(), 602);
    assert_eq!(db.stats().value_reads, before);
    let snapshot = db.snapshot();
    seconds.store(2000, Ordering::Relaxed);
    db.compact_range(..).unwrap();
    assert_eq!(snapshot.get(key(0)).unwrap().unwrap(), long(0, 1));
    assert_eq!(snapshot.iter().count(), 301);
    drop(snapshot);
    expect(&db, 2000);
    db.compact_range(..).unwrap();
    expect(&db, 2000);
    drop(db);
    let db = open();
    expect(&db, 2000);
    // Salvage, repair, and a change of the deadline by a transaction.
    let salvaged = db.default_keyspace().salvage(..).unwrap().filter(|entry| entry.is_ok()).count();
    assert_eq!(salvaged, (0..300).filter(|i| live(*i, 2000)).count() + 1);
    db.transact(|tx| {
        assert_eq!(tx.get(key(1))?.unwrap(), long(1, 1));
        tx.put(key(1), long(1, 2));
        Ok::<_, Error>(())
    })
    .unwrap();
    seconds.store(3999, Ordering::Relaxed);
    assert_eq!(db.get(key(1)).unwrap().unwrap(), long(1, 2));
    db.compact_range(..).unwrap();
    seconds.store(4000, Ordering::Relaxed);
    db.delete(key(1)).unwrap();
    db.compact_range(..).unwrap();
    db.wait_for_compactions().unwrap();
    drop(db);
    let db = open();
    assert!(db.is_empty().unwrap());
    assert_eq!(value_files(&fs), []);
}

#[test]
fn operands_and_filters_meet_long_values_with_a_deadline() {
    let fs = SimFileSystem::new();
    let seconds = Arc::new(AtomicU64::new(1000));
    let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    let appending = || with_clock(options(&fs).default_keyspace(keyspace().merge_operator(Append)), &seconds);
    let db = appending().merge_operator(Append).open("/db").unwrap();
    for i in 0..10 {
        db.put_with_expiry(key(i), long(i, 1), at(2000)).unwrap();
    }
    db.flush().unwrap();
    (0..10).for_each(|i| _ = db.merge(key(i), "+").unwrap());
    db.flush().unwrap();
    let merged = |i: u32| [&long(i, 1)[..], b"+"].concat();
    check(&db, 10, |i| Some(merged(i)));
    db.compact_range(..).unwrap();
    check(&db, 10, |i| Some(merged(i)));
    seconds.store(2000, Ordering::Relaxed);
    check(&db, 10, |_| Some(b"+".to_vec()));
    drop(db);

    let fs = SimFileSystem::new();
    let shorten = |_: &[u8], value: &[u8]| match value.len() {
        ..200 => CompactionDecision::Keep,
        len => CompactionDecision::Replace(value[..len / 2].to_vec()),
    };
    let db = with_clock(options(&fs), &seconds).default_keyspace(keyspace().compaction_filter(shorten));
    let db = db.open("/db").unwrap();
    db.put_with_expiry("k", [7; 1600], at(3000)).unwrap();
    (0..5).for_each(|_| db.compact_range(..).unwrap());
    assert_eq!(db.get("k").unwrap().unwrap(), [7; 100]);
    seconds.store(3000, Ordering::Relaxed);
    assert_eq!(db.get("k").unwrap(), None);
}
