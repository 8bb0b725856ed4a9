//! Range deletes that come with an ingest.

use std::sync::Arc;

use tamis::vfs::{Fault, FaultMode};
use tamis::{Change, Db, Error, IngestMode, IngestOptions, KeyspaceOptions, Options};

use super::{check_sound, file_system, get, levels, open, write, write_ranges};
use crate::support::stepped_options;

fn put_all(db: &Db, keys: impl IntoIterator<Item = u32>) {
    keys.into_iter().for_each(|key| _ = db.put(key.to_be_bytes(), "old").unwrap());
}

#[track_caller]
fn check(db: &Db, expected: impl Fn(u32) -> Option<&'static str>) {
    (0..100).for_each(|key| assert_eq!(get(db, key).as_deref(), expected(key), "{key}"));
    let found: Vec<u32> = db.iter().map(|entry| u32::from_be_bytes(entry.unwrap().0[..].try_into().unwrap())).collect();
    assert_eq!(found, (0..100).filter(|key| expected(*key).is_some()).collect::<Vec<_>>());
    let keys: Vec<_> = (0..100u32).map(u32::to_be_bytes).collect();
    let found = db.multi_get(&keys).unwrap();
    assert!(found.iter().zip(0..).all(|(value, key)| value.as_deref() == expected(key).map(str::as_bytes)));
}

#[test]
fn they_delete_what_is_older_and_nothing_of_the_same_ingest() {
    let fs = file_system();
    let db = open(&fs);
    put_all(&db, 0..50);
    db.flush().unwrap();
    put_all(&db, 50..100);
    let (before, iter) = (db.snapshot(), db.iter());
    let format = db.sst_format().unwrap();
    let files = [
        write(&fs, &format, "puts", [22, 25, 60], Some("new")),
        write_ranges(&fs, &format, "ranges", [10..20, 20..30, 55..70]),
    ];
    let info = db.ingest(&files, IngestOptions::new()).unwrap();
    assert_eq!((info.seqno, info.entries, info.range_deletes), (102, 3, 2));
    assert_eq!((db.last_seqno(), db.synced_seqno()), (102, 102), "they are durable");
    db.put(12u32.to_be_bytes(), "newest").unwrap();
    let expected = |key| match key {
        12 => Some("newest"),
        22 | 25 | 60 => Some("new"),
        10..30 | 55..70 => None,
        _ => Some("old"),
    };
    check(&db, expected);
    assert!(before.iter().chain(iter).filter(|entry| *entry.as_ref().unwrap().1 == *b"old").count() == 200);
    db.compact_range(..).unwrap();
    assert_eq!(before.iter().count(), 100);
    drop(before);
    check(&db, expected);

    check(&stepped_options(&fs).0.open_read_only("/db").unwrap(), expected);
    db.close().unwrap();
    check_sound(&fs);
    let db = open(&fs);
    check(&db, expected);
    db.compact_range(..).unwrap();
    check(&db, expected);
    assert_eq!(db.stats().keyspaces[0].range_deletes.tables, 0, "nothing is left that they delete");
}

#[test]
fn they_alone_are_an_ingest_that_drops_tables_unread() {
    let fs = file_system();
    let db = open(&fs);
    for start in [0, 30, 60] {
        put_all(&db, start..start + 30);
        db.flush().unwrap();
    }
    let path = write_ranges(&fs, &db.sst_format().unwrap(), "ranges", Some(0..61));
    let info = db.ingest([&path], IngestOptions::new().mode(IngestMode::Move)).unwrap();
    assert_eq!((info.seqno, info.entries, info.range_deletes), (91, 0, 1));
    assert_eq!(db.stats().covered_tables, 2);
    let expected = |key| (61..90).contains(&key).then_some("old");
    check(&db, expected);
    drop(db);
    check_sound(&fs);
    check(&open(&fs), expected);
}

#[test]
fn tables_go_above_those_that_their_ranges_cover() {
    for is_compacted in [true, false] {
        let fs = file_system();
        let db = open(&fs);
        put_all(&db, 0..100);
        db.flush().unwrap();
        if is_compacted {
            db.compact_range(..).unwrap();
        }
        let format = db.sst_format().unwrap();
        let ranges = write_ranges(&fs, &format, "ranges", Some(0..100));
        let tables = (0..20u32).map(|i| write(&fs, &format, &format!("puts {i}"), [5 * i, 5 * i + 3], Some("new")));
        let files: Vec<_> = tables.chain([ranges]).collect();
        db.ingest(&files, IngestOptions::new()).unwrap();
        // What they replace was in the last level or in level 0, and has gone since.
        let level = if is_compacted { 5 } else { 0 };
        assert_eq!((levels(&db)[level], db.stats().covered_tables), (20, 1));
        db.wait_for_compactions().unwrap();
        assert_eq!(levels(&db)[0], 0, "no table stays there");
        check(&db, |key| matches!(key % 5, 0 | 3).then_some("new"));
        db.close().unwrap();
        check_sound(&fs);
    }
}

#[test]
fn memtables_are_flushed_if_they_have_deleted_keys_or_older_ranges() {
    let fs = file_system();
    let db = open(&fs);
    let ingest = |name: &str, range| {
        let path = write_ranges(&fs, &db.sst_format().unwrap(), name, [range]);
        db.ingest([path], IngestOptions::new()).unwrap();
    };
    // The first ingest with ranges begins a log that says so.
    ingest("first", 1000..1001);
    let flushes = || db.stats().flushes;
    put_all(&db, [5, 50]);
    ingest("between", 6..50);
    ingest("behind", 51..70);
    assert_eq!(flushes(), 0);
    ingest("over", 40..51);
    assert_eq!((flushes(), get(&db, 5).is_some(), get(&db, 50)), (1, true, None));

    // A range delete that is still in memory when a greater number is in a table.
    put_all(&db, 0..30);
    db.flush().unwrap();
    db.delete_range(10u32.to_be_bytes()..20u32.to_be_bytes()).unwrap();
    let flushed = flushes();
    ingest("elsewhere", 80..90);
    assert_eq!(flushes(), flushed + 1);
    db.compact_range(..).unwrap();
    check(&db, |key| (key < 10 || (20..30).contains(&key)).then_some("old"));
    drop(db);
    check_sound(&fs);
}

#[test]
fn transactions_and_updates_that_have_read_a_deleted_key_do_not_miss_it() {
    let fs = file_system();
    let db = open(&fs);
    let ingest = |name: &str, range| {
        let path = write_ranges(&fs, &db.sst_format().unwrap(), name, [range]);
        db.ingest([path], IngestOptions::new()).unwrap();
    };
    put_all(&db, 0..10);
    db.flush().unwrap();
    let mut reader = db.begin();
    assert!(reader.get(3u32.to_be_bytes()).unwrap().is_some());
    reader.put("result", "x");
    let mut scanner = db.begin();
    assert_eq!(scanner.range(2u32.to_be_bytes()..5u32.to_be_bytes()).count(), 3);
    scanner.put("result", "x");
    let mut other = db.begin();
    other.get(7u32.to_be_bytes()).unwrap();
    other.put("other", "x");
    ingest("transactions", 3..4);
    assert!(matches!(reader.commit(), Err(Error::Conflict { .. })));
    assert!(matches!(scanner.commit(), Err(Error::Conflict { .. })));
    other.commit().unwrap();

    let mut seen = Vec::new();
    db.update(5u32.to_be_bytes(), |value| {
        seen.push(value.is_some());
        if seen.len() == 1 {
            ingest("update", 5..6);
        }
        Change::Put(b"new".to_vec())
    })
    .unwrap();
    assert_eq!(seen, [true, false]);
}

#[test]
fn a_keyspace_without_a_log_takes_them() {
    let fs = file_system();
    let options = || stepped_options(&fs).0.default_keyspace(KeyspaceOptions::new().wal(false));
    let db = options().open("/db").unwrap();
    put_all(&db, 0..20);
    let path = write_ranges(&fs, &db.sst_format().unwrap(), "ranges", [5..8, 90..91]);
    db.ingest([path], IngestOptions::new()).unwrap();
    let killed = fs.kill();
    drop(db);
    let expected = |key| (key < 20 && !(5..8).contains(&key)).then_some("old");
    check(&Options::new().file_system(Arc::new(killed.clone())).open("/db").unwrap(), expected);
    check_sound(&killed);
}

/// A read that fails once the log has the ingest leaves a store that says so, and no damage.
#[test]
fn a_failed_read_of_their_table_loses_no_file() {
    for at in 1.. {
        let fs = file_system();
        let db = open(&fs);
        put_all(&db, 0..20);
        db.flush().unwrap();
        let format = db.sst_format().unwrap();
        let files =
            [write_ranges(&fs, &format, "ranges", Some(5..8)), write(&fs, &format, "puts", [6, 30], Some("new"))];
        fs.set_fault(Some(Fault { at, mode: FaultMode::ReadError, sticky: true }));
        let result = db.ingest(&files, IngestOptions::new());
        let is_over = !fs.fault_hit();
        fs.set_fault(None);
        let logged = result.is_ok() || db.delete("none").is_err();
        drop(db);
        let db = open(&fs);
        check(&db, |key| match key {
            6 | 30 if logged => Some("new"),
            5..8 if logged => None,
            key => (key < 20).then_some("old"),
        });
        db.close().unwrap();
        check_sound(&fs);
        if is_over {
            assert!(at > 8, "{at}");
            break;
        }
    }
}
