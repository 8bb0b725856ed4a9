//! Does expired data stay away, from every read and for good, and does nothing else go with it?
//!
//! `model` and `power_cut` put with deadlines as well; here are the cases that they do not reach.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::inspect::{Content, FileKind, Inspector, ManifestChange, WriteKind};
use tamis::operator::{Append, CompactionDecision};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{
    ByteOrder, Compression, Db, Error, Found, KeyspaceOptions, MAX_VALUE_LEN, OperationKind, Options, ReadOptions,
    TableStats, WriteBatch, WriteOptions,
};

mod time;

/// A clock that tests set, in milliseconds.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn set(&self, millis: u64) {
        self.0.store(millis, Ordering::Relaxed);
    }
}

fn at(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

fn options(fs: &SimFileSystem, clock: &Clock) -> Options {
    let (fs, clock): (Arc<dyn FileSystem>, _) = (Arc::new(fs.clone()), clock.clone());
    let show = move || at(clock.0.load(Ordering::Relaxed));
    Options::new().file_system(fs).memtable_size(64 << 10).table_size(64 << 10).hash_seed(7).clock(show)
}

/// A store in memory whose clock shows 0.
fn store() -> (SimFileSystem, Clock, Db) {
    let (fs, clock) = (SimFileSystem::new(), Clock::default());
    let db = options(&fs, &clock).open("/db").unwrap();
    (fs, clock, db)
}

fn tables(db: &Db) -> Vec<TableStats> {
    let keyspaces = db.stats().keyspaces;
    keyspaces.into_iter().flat_map(|keyspace| keyspace.levels).flat_map(|level| level.tables).collect()
}

fn text(value: Option<impl AsRef<[u8]>>) -> Option<String> {
    value.map(|value| String::from_utf8(value.as_ref().to_vec()).unwrap())
}

/// Every way of reading all keys agrees that these are there, with their own names as values.
fn check(db: &Db, all: &[&str], there: &[&str]) {
    let snapshot = db.snapshot();
    for &key in all {
        let expected = there.contains(&key).then(|| key.to_owned());
        assert_eq!(text(db.get(key).unwrap()), expected, "{key}");
        assert_eq!(text(snapshot.get(key).unwrap()), expected, "{key} in a snapshot");
        assert_eq!(db.contains_key(key).unwrap(), expected.is_some(), "{key}");
        assert_eq!(db.read(key, <[u8]>::to_vec).unwrap().is_some(), expected.is_some(), "{key}, read in place");
        let mut buffer = Vec::new();
        assert_eq!(db.get_into(key, &mut buffer).unwrap(), expected.is_some());
        assert_eq!(buffer, expected.clone().unwrap_or_default().as_bytes());
        assert_eq!(text(db.begin().get(key).unwrap()), expected, "{key} in a transaction");
        let outcome = db.explain(key).unwrap().outcome.unwrap();
        assert_eq!(matches!(outcome, Found::Value(len) if len == key.len()), expected.is_some(), "{key}: {outcome}");
    }
    let values: Vec<Option<String>> = db.multi_get(all).unwrap().into_iter().map(text).collect();
    let expected = |key: &&str| there.contains(key).then(|| (*key).to_owned());
    assert_eq!(values, all.iter().map(expected).collect::<Vec<_>>());
    let forward: Vec<(String, String)> =
        db.iter().map(|entry| entry.unwrap()).map(|(k, v)| (text(Some(k)).unwrap(), text(Some(v)).unwrap())).collect();
    assert_eq!(forward, there.iter().map(|key| ((*key).to_owned(), (*key).to_owned())).collect::<Vec<_>>());
    let mut backward: Vec<_> = db.iter().rev().map(|entry| text(Some(entry.unwrap().1)).unwrap()).collect();
    backward.reverse();
    assert_eq!(backward, there);
    let keys: Vec<_> = db.keys(..).map(|key| text(Some(key.unwrap())).unwrap()).collect();
    let values: Vec<_> = db.values(..).map(|key| text(Some(key.unwrap())).unwrap()).collect();
    assert!(keys == there && values == there, "{keys:?} {values:?}");
    let in_transaction: Vec<_> = db.begin().range(..).map(|entry| text(Some(entry.unwrap().0)).unwrap()).collect();
    assert_eq!(in_transaction, there);
    let mut cursor = db.cursor().unwrap();
    for (i, &key) in there.iter().enumerate() {
        assert!(cursor.seek(key).unwrap());
        assert_eq!(cursor.value(), Some(key.as_bytes()));
        assert_eq!(cursor.prev().unwrap(), i > 0, "before {key}");
        assert!(cursor.seek(key).unwrap());
        assert_eq!(cursor.next().unwrap(), i + 1 < there.len(), "after {key}");
    }
    assert_eq!(text(db.first().unwrap().map(|(key, _)| key)), there.first().map(|key| (*key).to_owned()));
    assert_eq!(text(db.last().unwrap().map(|(key, _)| key)), there.last().map(|key| (*key).to_owned()));
    assert_eq!(db.is_empty().unwrap(), there.is_empty());
}

const ALL: [&str; 5] = ["a", "b", "c", "d", "e"];

/// `a` to `d` expire at 10, 20, 30 and 40; `e` does not. Older values lie beneath `b` and `d`.
fn put_all(db: &Db) {
    for key in ["b", "d"] {
        db.put(key, "old").unwrap();
    }
    let mut batch = WriteBatch::new();
    batch.put_with_expiry("a", "a", at(10));
    batch.put_with_expiry("b", "b", at(20));
    db.write(batch).unwrap();
    db.put_with_expiry("c", "c", at(30)).unwrap();
    let mut transaction = db.begin();
    transaction.put_with_expiry("d", "d", at(40));
    transaction.commit().unwrap();
    db.put("e", "e").unwrap();
}

fn check_at_each_time(db: &Db, clock: &Clock) {
    for (millis, gone) in [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (35, 3), (40, 4), (u64::MAX >> 20, 4)] {
        clock.set(millis);
        check(db, &ALL, &ALL[gone..]);
    }
}

#[test]
fn no_read_returns_what_has_expired_wherever_it_is() {
    let prepare: [fn(&Db); 4] = [
        |_| {},
        |db| db.flush().unwrap(),
        |db| {
            db.flush().unwrap();
            db.compact_range(..).unwrap();
        },
        |db| {
            // The last level below, newer versions above.
            db.flush().unwrap();
            db.compact_range(..).unwrap();
            put_all(db);
            db.flush().unwrap();
        },
    ];
    for (i, prepare) in prepare.into_iter().enumerate() {
        let (_fs, clock, db) = store();
        put_all(&db);
        prepare(&db);
        println!("case {i}");
        check_at_each_time(&db, &clock);
    }
}

#[test]
fn compactions_drop_what_has_expired_and_never_what_lies_beneath_it() {
    for (with_snapshot, reopened) in [(false, false), (true, false), (false, true)] {
        let (fs, clock, mut db) = store();
        db.put("b", "old").unwrap();
        let snapshot = with_snapshot.then(|| db.snapshot());
        put_all(&db);
        for (millis, gone) in [(0, 0), (10, 1), (25, 2), (40, 4)] {
            clock.set(millis);
            db.compact_range(..).unwrap();
            if reopened {
                db.close().unwrap();
                db = options(&fs, &clock).open("/db").unwrap();
            }
            check(&db, &ALL, &ALL[gone..]);
            assert_eq!(
                text(snapshot.as_ref().and_then(|snapshot| snapshot.get("b").unwrap())),
                with_snapshot.then(|| "old".to_owned())
            );
        }
        drop(snapshot);
        db.compact_range(..).unwrap();
        assert_eq!(tables(&db).iter().map(|table| table.entries).sum::<u64>(), 1, "`e` alone is left");
        db.close().unwrap();
        assert!(Inspector::on(Arc::new(fs)).verify(Path::new("/db"), &mut |found| panic!("{found:?}")).is_ok());
    }
}

#[test]
fn tables_that_have_expired_as_a_whole_go_unread() {
    let (fs, clock) = (SimFileSystem::new(), Clock::default());
    let plain = KeyspaceOptions::new().compression(Compression::None);
    let db = options(&fs, &clock).default_keyspace(plain).open("/db").unwrap();
    for i in 0..2000u64 {
        db.put_with_expiry(format!("{i:05}"), [7; 100], at(1000 + i / 500)).unwrap();
    }
    db.compact_range(..).unwrap();
    let before = tables(&db);
    assert!(before.len() >= 3 && before.iter().all(|table| table.expiring == table.entries), "{before:?}");
    assert_eq!(before.iter().map(|table| table.deadlines.unwrap().1).max(), Some(at(1003)));
    let written = db.stats().compacted_bytes_out;
    clock.set(5000);
    // What has expired is found when work is scheduled next.
    db.put("other", "1").unwrap();
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    assert_eq!(db.stats().expired_tables, before.len() as u64);
    assert_eq!((tables(&db).len(), db.stats().compacted_bytes_out), (1, written));
    db.close().unwrap();
    // No file is left, and none comes back with the clock.
    let count = fs.paths().iter().filter(|path| path.extension().is_some_and(|end| end == "sst")).count();
    assert_eq!(count, 1);
    clock.set(0);
    let db = options(&fs, &clock).open("/db").unwrap();
    assert_eq!(db.keys(..).count(), 1);
}

#[test]
fn an_expired_table_above_something_older_stays_until_it_is_merged() {
    let (_fs, clock, db) = store();
    for i in 0..500 {
        db.put(format!("{i:05}"), "older").unwrap();
    }
    db.compact_range(..).unwrap();
    // An idle store would merge the two, since one hides the other, but for this.
    let snapshot = db.snapshot();
    for i in 0..500 {
        db.put_with_expiry(format!("{i:05}"), "newer", at(10)).unwrap();
    }
    db.flush().unwrap();
    clock.set(10);
    db.put("x", "1").unwrap();
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    assert_eq!((db.stats().expired_tables, db.keys(..).count()), (0, 1));
    drop(snapshot);
    db.compact_range(..).unwrap();
    assert_eq!((db.keys(..).count(), tables(&db).iter().map(|table| table.entries).sum::<u64>()), (1, 1));
}

#[test]
fn a_quarter_expired_makes_a_table_due() {
    let (_fs, clock, db) = store();
    for i in 0..1000u64 {
        db.put_with_expiry(format!("{i:05}"), [7; 20], at(100 + i)).unwrap();
    }
    db.compact_range(..).unwrap();
    for (millis, left) in [(300, 1000), (340, 1000), (360, 739), (520, 739), (640, 459)] {
        clock.set(millis);
        db.put("x", "1").unwrap();
        db.delete("x").unwrap();
        db.flush().unwrap();
        db.wait_for_compactions().unwrap();
        let entries = tables(&db).iter().map(|table| table.expiring).sum::<u64>();
        assert_eq!(entries, left, "at {millis}");
    }
}

#[test]
fn a_ttl_applies_to_puts_and_is_kept_with_the_keyspace() {
    let (fs, clock, db) = store();
    let sessions = db.keyspace_with("sessions", KeyspaceOptions::new().ttl(Duration::from_millis(50))).unwrap();
    clock.set(100);
    sessions.put("a", "1").unwrap();
    let mut batch = WriteBatch::new();
    batch.put_in(&sessions, "b", "1");
    batch.put_with_expiry_in(&sessions, "c", "1", at(500));
    batch.put("d", "in a keyspace without a ttl");
    db.write(batch).unwrap();
    db.transact(|tx| {
        tx.put_in(&sessions, "e", "1");
        Ok::<(), Error>(())
    })
    .unwrap();
    sessions.update("f", |_| tamis::Change::Put(b"1".to_vec())).unwrap();
    assert!(sessions.put_if_absent("g", "1").unwrap().is_ok());
    sessions.fetch_add("h", 1u8, ByteOrder::Little).unwrap();
    let lease = WriteOptions::new().expires_at(at(120));
    assert!(sessions.put_if_absent_with("i", "1", lease).unwrap().is_ok());
    let keys = |db: &Db| {
        let sessions = db.existing_keyspace("sessions").unwrap().unwrap();
        sessions.keys(..).map(|key| text(Some(key.unwrap())).unwrap()).collect::<String>()
    };
    for (millis, left) in [(119, "abcefghi"), (120, "abcefgh"), (149, "abcefgh"), (150, "c")] {
        clock.set(millis);
        assert_eq!(keys(&db), left, "at {millis}");
    }
    assert!(sessions.put_if_absent_with("i", "2", lease).unwrap().is_ok(), "the lease has expired");
    assert_eq!(sessions.fetch_add("h", 1u8, ByteOrder::Little).unwrap(), 0);
    drop(sessions);
    db.close().unwrap();
    let db = options(&fs, &clock).open("/db").unwrap();
    let sessions = db.existing_keyspace("sessions").unwrap().unwrap();
    assert_eq!(sessions.options().unwrap().ttl, Some(Duration::from_millis(50)));
    sessions.put("j", "1").unwrap();
    clock.set(200);
    assert_eq!((keys(&db).as_str(), db.contains_key("d").unwrap()), ("c", true));
    let sessions = db.keyspace_with("sessions", KeyspaceOptions::new()).unwrap();
    sessions.put("k", "1").unwrap();
    clock.set(10_000);
    assert_eq!(keys(&db), "k");
}

#[test]
fn deadlines_at_the_bounds_are_taken() {
    let (fs, clock, db) = store();
    clock.set(1);
    db.put_with_expiry("past", "1", SystemTime::UNIX_EPOCH - Duration::from_secs(1)).unwrap();
    db.put_with_expiry("zero", "1", at(0)).unwrap();
    db.put_with_expiry("far", "1", at(u64::MAX >> 12)).unwrap();
    let never = db.keyspace_with("never", KeyspaceOptions::new().ttl(Duration::MAX)).unwrap();
    never.put("k", "").unwrap();
    for _ in 0..2 {
        assert_eq!(db.keys(..).count(), 1);
        assert_eq!(never.keys(..).count(), 1);
        db.flush().unwrap();
        [&never, db.default_keyspace()].into_iter().for_each(|keyspace| keyspace.compact_range(..).unwrap());
    }
    // Beyond the range of deadlines.
    let latest = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::MAX >> 2));
    db.put_with_expiry("far", "2", latest.unwrap_or(at(u64::MAX >> 12))).unwrap();
    assert_eq!(text(db.get("far").unwrap()), Some("2".to_owned()));
    drop(never);
    db.close().unwrap();
    clock.set(u64::MAX >> 11);
    let db = options(&fs, &clock).open("/db").unwrap();
    assert_eq!(db.existing_keyspace("never").unwrap().unwrap().keys(..).count(), 1);
    let long = vec![0; MAX_VALUE_LEN - 7];
    assert!(matches!(db.put_with_expiry("long", long, at(1)), Err(Error::InvalidArgument(_))));
}

#[test]
fn what_was_merged_into_a_value_stays_when_the_value_expires() {
    let prepare: [fn(&Db); 4] = [
        |_| {},
        |db| db.flush().unwrap(),
        |db| db.compact_range(..).unwrap(),
        |db| {
            db.flush().unwrap();
            db.merge("k", "+3").unwrap();
            db.compact_range(..).unwrap();
        },
    ];
    for (case, prepare) in prepare.into_iter().enumerate() {
        let (fs, clock) = (SimFileSystem::new(), Clock::default());
        let db =
            options(&fs, &clock).default_keyspace(KeyspaceOptions::new().merge_operator(Append)).open("/db").unwrap();
        db.put("k", "older").unwrap();
        db.put_with_expiry("k", "base", at(10)).unwrap();
        db.merge("k", "+1").unwrap();
        db.merge("k", "+2").unwrap();
        prepare(&db);
        let operands = if case == 3 { "+1+2+3" } else { "+1+2" };
        let read = |db: &Db| {
            let mut cursor = db.cursor().unwrap();
            assert!(cursor.seek_to_last().unwrap());
            let value = text(db.get("k").unwrap());
            assert_eq!(text(cursor.value()), value);
            assert_eq!(text(db.multi_get(&["k"]).unwrap().remove(0)), value);
            assert_eq!(text(db.iter().next().unwrap().ok().map(|(_, value)| value)), value);
            value.unwrap()
        };
        assert_eq!(read(&db), format!("base{operands}"), "case {case}");
        clock.set(10);
        assert_eq!(read(&db), operands, "case {case}");
        db.compact_range(..).unwrap();
        assert_eq!(read(&db), operands, "case {case}, compacted");
        db.merge("k", "+4").unwrap();
        assert_eq!(read(&db), format!("{operands}+4"));
    }
}

#[test]
fn a_transaction_reads_at_the_time_of_its_begin_and_conflicts_when_what_it_read_expires() {
    let conflict = |result: Result<u64, Error>| match result {
        Err(Error::Conflict { keyspace, key }) => Some((keyspace, text(Some(key)).unwrap())),
        other => {
            other.unwrap();
            None
        }
    };
    for way in ["get", "range", "guard", "guard_range", "guard in tables"] {
        for writes in [false, true] {
            let (_fs, clock, db) = store();
            put_all(&db);
            let mut transaction = db.begin();
            clock.set(15);
            let mut read = "ab".to_owned();
            match way {
                "get" => {
                    read = text(transaction.get("a").unwrap()).unwrap() + &text(transaction.get("b").unwrap()).unwrap();
                }
                "range" => {
                    let values = transaction.range(..="b").map(|entry| text(Some(entry.unwrap().1)).unwrap());
                    read = values.collect();
                }
                "guard_range" => transaction.guard_range(..="b"),
                _ => ["a", "b"].into_iter().for_each(|key| transaction.guard(key)),
            }
            if way == "guard in tables" {
                db.flush().unwrap();
            }
            assert_eq!(read, "ab");
            if writes {
                transaction.put("x", "1");
            }
            // What only reads is as of its begin.
            let expected = writes.then(|| ("default".to_owned(), "a".to_owned()));
            assert_eq!(conflict(transaction.commit()), expected);
            let mut transaction = db.begin();
            assert!(!transaction.contains_key("a").unwrap() && transaction.contains_key("b").unwrap());
            transaction.put_with_expiry("own", "1", at(16));
            transaction.put_with_expiry("past", "1", at(15));
            assert!(transaction.contains_key("own").unwrap() && !transaction.contains_key("past").unwrap());
            assert_eq!(transaction.range("o"..).count(), 1);
            assert_eq!(conflict(transaction.commit()), None);
            assert!(db.contains_key("own").unwrap());
        }
    }
    // What does not depend on time does not conflict.
    let (_fs, clock, db) = store();
    put_all(&db);
    let mut blind = db.begin();
    blind.put("a", "2");
    clock.set(1000);
    assert_eq!(conflict(blind.commit()), None);
}

#[test]
fn an_update_starts_again_when_the_value_expires_meanwhile() {
    let (_fs, clock, db) = store();
    db.put_with_expiry("k", "1", at(10)).unwrap();
    let mut seen = Vec::new();
    let updated = db
        .update("k", |value| {
            seen.push(text(value));
            clock.set(10);
            tamis::Change::Put(b"2".to_vec())
        })
        .unwrap();
    assert_eq!((seen, updated.before), (vec![Some("1".to_owned()), None], None));
    let swapped = db.compare_and_swap("gone", Some("x"), None::<&str>).unwrap();
    assert_eq!(swapped.unwrap_err().current, None);
}

#[test]
fn a_queue_gives_out_no_expired_job() {
    let (_fs, clock, db) = store();
    let queue = db.keyspace("queue").unwrap();
    for i in 0..60u64 {
        queue.put_with_expiry(format!("{i:03}"), "", at(i)).unwrap();
    }
    clock.set(30);
    let (first, _) = queue.pop_first().unwrap().unwrap();
    assert_eq!(&first[..], b"031");
    clock.set(45);
    queue.flush().unwrap();
    assert_eq!(&queue.pop_first().unwrap().unwrap().0[..], b"046");
    assert_eq!(&queue.pop_last().unwrap().unwrap().0[..], b"059");
    assert_eq!(queue.keys(..).count(), 12);
    clock.set(60);
    assert!(queue.pop_first().unwrap().is_none() && queue.pop_last().unwrap().is_none());
}

#[test]
fn an_iterator_has_one_time_and_scans_pass_what_has_expired_once() {
    let (_fs, clock, db) = store();
    for i in 0..100u64 {
        db.put_with_expiry(format!("{i:03}"), "", at(10 + i / 50)).unwrap();
    }
    let mut iter = db.iter();
    assert_eq!(iter.next().unwrap().unwrap().0, b"000");
    clock.set(10);
    assert_eq!(iter.next_back().unwrap().unwrap().0, b"099", "from the back too");
    assert_eq!(iter.count(), 98);
    assert_eq!(db.iter().count(), 50);
    clock.set(5);
    assert_eq!((db.iter().count(), db.iter().rev().count()), (50, 50), "the gap is known and stays one");
    clock.set(11);
    assert_eq!((db.iter().count(), db.approximate_len(..).is_ok()), (0, true));
}

#[test]
fn the_change_feed_and_files_tell_of_deadlines_and_files_without_them_need_no_feature() {
    let fs = SimFileSystem::new();
    let clock = Clock::default();
    let db = options(&fs, &clock).keep_log(1 << 20, Duration::MAX).open("/db").unwrap();
    db.put("plain", "1").unwrap();
    db.put_with_expiry("k", "v", at(1234)).unwrap();
    db.sync().unwrap();
    let batches: Vec<_> = db.changes_since(0).unwrap().map(|batch| batch.unwrap()).collect();
    let kinds: Vec<_> = batches.iter().flat_map(|batch| batch.operations()).map(|operation| operation.kind).collect();
    assert_eq!(kinds[1], OperationKind::PutWithExpiry { key: b"k", value: b"v", deadline: at(1234) });
    let (_other, other_clock, follower) = store();
    for batch in &batches {
        follower.write(batch.to_write_batch(&follower).unwrap()).unwrap();
    }
    other_clock.set(1233);
    assert_eq!(follower.keys(..).count(), 2);
    other_clock.set(1234);
    assert_eq!(follower.keys(..).count(), 1);
    // Two logs: the first one has no entry with a deadline.
    db.flush().unwrap();
    clock.set(1234);
    db.put_with_expiry("again", "", at(5000)).unwrap();
    db.compact_range(..).unwrap();
    db.close().unwrap();
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let (mut features, mut changes, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for path in fs.paths() {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let kind = FileKind::parse(&name);
        if !matches!(kind, Some(FileKind::Wal(_) | FileKind::Manifest(_))) {
            continue;
        }
        let mut log = inspector.log(&path).unwrap();
        let mut header = [0; 64];
        header.copy_from_slice(&fs.read(&path).unwrap()[..64]);
        features.push((matches!(kind, Some(FileKind::Wal(_))), header[12]));
        while let Some(record) = log.next_record().unwrap() {
            match record.content {
                Content::Edit(edit) => changes.extend(edit),
                Content::Batch(batch) => writes.extend(batch),
                _ => {}
            }
        }
    }
    assert!(
        features.contains(&(true, 0)) && features.contains(&(true, 4)) && features.contains(&(false, 4)),
        "{features:?}"
    );
    assert!(changes.contains(&ManifestChange::ExpiredBy(at(1234))));
    assert!(writes.iter().any(|write| write.kind == WriteKind::ExpiringPut && write.deadline == Some(at(1234))));
}

#[test]
fn a_compaction_filter_sees_values_without_deadlines_and_a_new_value_keeps_its_deadline() {
    let (fs, clock) = (SimFileSystem::new(), Clock::default());
    let filter = |_: &[u8], value: &[u8]| match value {
        b"drop" => CompactionDecision::Drop,
        b"old" => CompactionDecision::Replace(b"new".to_vec()),
        _ => CompactionDecision::Keep,
    };
    let options = options(&fs, &clock).default_keyspace(KeyspaceOptions::new().compaction_filter(filter));
    let db = options.open("/db").unwrap();
    for (key, value) in [("a", "drop"), ("b", "old"), ("c", "keep")] {
        db.put_with_expiry(key, value, at(10)).unwrap();
    }
    db.compact_range(..).unwrap();
    assert_eq!(db.values(..).map(|value| text(Some(value.unwrap())).unwrap()).collect::<Vec<_>>(), ["new", "keep"]);
    clock.set(10);
    assert_eq!(db.keys(..).count(), 0);
}

#[test]
fn explain_tells_when_a_value_has_expired() {
    let (_fs, clock, db) = store();
    db.put("k", "older").unwrap();
    db.put_with_expiry("k", "value", at(1500)).unwrap();
    for _ in 0..2 {
        clock.set(0);
        db.flush().unwrap();
    }
    clock.set(2000);
    let explained = db.explain_with("k", ReadOptions::new()).unwrap();
    assert_eq!(explained.outcome.as_ref().unwrap(), &Found::Expired(at(1500)));
    assert_eq!(explained.tombstones_passed(), 1);
    assert_eq!(Found::Expired(at(1500)).to_string(), "expired at 1.500 (Unix time)");
}

#[test]
fn a_power_cut_amid_a_compaction_revives_nothing_by_halves() {
    let (mut before, mut after) = (0, 0);
    for k in 1.. {
        let (fs, clock, db) = store();
        put_all(&db);
        db.compact_range(..).unwrap();
        put_all(&db);
        db.flush().unwrap();
        clock.set(25);
        fs.crash_at(Some(k));
        let _ = db.compact_range(..);
        drop(db);
        let Some(point) = fs.crash_point() else { break };
        clock.set(0);
        let db = options(&point.crash(k), &clock).open("/db").unwrap();
        if db.contains_key("a").unwrap() {
            before += 1;
            check(&db, &ALL, &ALL);
        } else {
            after += 1;
            check(&db, &ALL, &ALL[2..]);
        }
        clock.set(25);
        check(&db, &ALL, &ALL[2..]);
    }
    assert!(before > 0 && after > 0, "{before} {after}");
}

#[test]
fn damaged_deadlines_are_found() {
    // Nothing else in the files has these bytes. They are in the log, then in the table.
    let deadline = 0x0000_0807_0605_0403u64;
    for flushed in [false, true] {
        let (fs, clock, db) = store();
        db.put_with_expiry("k", "value", at(deadline)).unwrap();
        db.sync().unwrap();
        if flushed {
            db.flush().unwrap();
        }
        let fs = fs.kill();
        drop(db);
        let find = |bytes: &[u8]| bytes.windows(8).position(|window| window == deadline.to_le_bytes());
        let holds = |path: &std::path::PathBuf| Some((path.clone(), find(&fs.read(path).unwrap())?));
        let places: Vec<_> = fs.paths().iter().filter_map(holds).collect();
        let [(path, start)] = &places[..] else { panic!("it is in one file, not in {places:?}") };
        assert_eq!(path.extension().unwrap(), if flushed { "sst" } else { "wal" });
        for i in 0..8 {
            let damaged = fs.kill();
            damaged.corrupt(path, (start + i) as u64, 1 << i).unwrap();
            for millis in [0, deadline - 1, deadline, deadline + (1 << 50)] {
                clock.set(millis);
                let read = options(&damaged, &clock).open_read_only("/db").and_then(|db| db.get("k"));
                match read {
                    Err(Error::Corruption { file, .. }) => assert_eq!(&file, path),
                    other => panic!("byte {i} of the deadline is damaged, and a read says {other:?}"),
                }
            }
            let mut faults = 0;
            Inspector::on(Arc::new(damaged)).verify(Path::new("/db"), &mut |_| faults += 1).unwrap();
            assert!(faults > 0, "byte {i}");
        }
    }
}
