//! Do operations that read, modify and write a key lose nothing beside other writers?

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tamis::operator::Add;
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{
    ByteOrder, Change, Db, Error, IngestOptions, KeyspaceOptions, Options, SstWriter, Value, WriteBatch, WriteOptions,
};

use crate::support::{Watchdog, open_plain, stepped_options};

const THREADS: u64 = 4;
const EACH: u64 = 20_000;

/// Rotates, flushes and compacts every few hundred writes.
fn busy_store() -> Db {
    let fs: Arc<dyn FileSystem> = Arc::new(SimFileSystem::new());
    Options::new().file_system(fs).memtable_size(64 << 10).table_size(64 << 10).open("/db").unwrap()
}

fn in_threads(work: impl Fn(u64) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || work(thread));
        }
    });
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

fn add_one(db: &Db, key: &str) -> u64 {
    let add = |value: Option<&[u8]>| Change::Put((number(value) + 1).to_le_bytes().to_vec());
    number(db.update(key, add).unwrap().after.as_deref())
}

#[test]
fn increments_of_four_threads_are_all_counted() {
    let _watchdog = Watchdog::new("increments_of_four_threads_are_all_counted");
    let db = busy_store();
    in_threads(|thread| {
        for i in 0..EACH {
            // Plain writes between, so that groups hold both kinds.
            db.put(format!("{thread} {}", i % 50), i.to_le_bytes()).unwrap();
            match i % 3 {
                0 => {
                    add_one(&db, "counter");
                }
                1 => {
                    db.fetch_add("counter", 1u64, ByteOrder::Little).unwrap();
                }
                _ => loop {
                    let current = db.get("counter").unwrap();
                    let next = (number(current.as_deref()) + 1).to_le_bytes();
                    if db.compare_and_swap("counter", current, Some(next)).unwrap().is_ok() {
                        break;
                    }
                },
            }
        }
    });
    assert_eq!(number(db.get("counter").unwrap().as_deref()), THREADS * EACH);
    db.close().unwrap();
}

#[test]
fn each_increment_returns_a_number_of_its_own() {
    let _watchdog = Watchdog::new("each_increment_returns_a_number_of_its_own");
    let (db, sum) = (busy_store(), AtomicU64::new(0));
    in_threads(|_| {
        for _ in 0..2000 {
            sum.fetch_add(db.fetch_add("counter", 1u64, ByteOrder::Big).unwrap(), Ordering::Relaxed);
        }
    });
    let count = THREADS * 2000;
    assert_eq!(sum.into_inner(), count * (count - 1) / 2);
    db.close().unwrap();
}

#[test]
fn of_several_threads_one_puts_an_absent_key() {
    let _watchdog = Watchdog::new("of_several_threads_one_puts_an_absent_key");
    let db = busy_store();
    let puts = AtomicU64::new(0);
    in_threads(|thread| {
        for key in 0..500u64 {
            let put = db.put_if_absent(key.to_be_bytes(), thread.to_le_bytes()).unwrap();
            match put {
                Ok(_) => {
                    puts.fetch_add(1, Ordering::Relaxed);
                }
                Err(mismatch) => assert_ne!(number(mismatch.current.as_deref()), thread),
            }
        }
    });
    assert_eq!(puts.into_inner(), 500);
    db.close().unwrap();
}

/// Whatever wrote a key last, wherever that is: operations of the store find it.
#[test]
fn an_operation_finds_what_was_written_last_whatever_it_was() {
    type Write = fn(&Db, &SimFileSystem);
    fn ingest(db: &Db, fs: &SimFileSystem, value: Option<u64>) {
        let path = format!("/in{}.sst", db.last_seqno());
        let mut writer = SstWriter::create_in(Arc::new(fs.clone()), &path, &db.sst_format().unwrap()).unwrap();
        match value {
            Some(value) => writer.put("key", value.to_le_bytes()).unwrap(),
            None => writer.delete("key").unwrap(),
        }
        writer.finish().unwrap();
        db.ingest([path], IngestOptions::new()).unwrap();
    }
    let writes: [(&str, Write); 13] = [
        ("nothing", |_, _| {}),
        ("a put", |db, _| _ = db.put("key", 5u64.to_le_bytes()).unwrap()),
        ("a delete", |db, _| _ = db.delete("key").unwrap()),
        ("a range delete", |db, _| _ = db.delete_range("k".."l").unwrap()),
        ("another range delete", |db, _| _ = db.delete_range("x".."z").unwrap()),
        ("a merge", |db, _| _ = db.merge("key", 7u64.to_le_bytes()).unwrap()),
        ("a put that expires", |db, _| {
            let never = SystemTime::now() + Duration::from_secs(1 << 30);
            db.put_with_expiry("key", 9u64.to_le_bytes(), never).unwrap();
        }),
        ("a put that has expired", |db, _| {
            db.put_with_expiry("key", 9u64.to_le_bytes(), SystemTime::UNIX_EPOCH).unwrap();
        }),
        ("an ingest", |db, fs| ingest(db, fs, Some(11))),
        ("an ingested delete", |db, fs| ingest(db, fs, None)),
        ("a flush", |db, _| db.flush().unwrap()),
        ("a compaction", |db, _| db.compact_range(..).unwrap()),
        ("a batch", |db, _| {
            let mut batch = WriteBatch::new();
            batch.delete_range("k".."l");
            batch.put("key", 13u64.to_le_bytes());
            db.write(batch).unwrap();
        }),
    ];
    for (before, first) in &writes {
        let fs = SimFileSystem::new();
        let counters = KeyspaceOptions::new().merge_operator(Add::LITTLE);
        let db = stepped_options(&fs).0.default_keyspace(counters).open("/db").unwrap();
        for (last, write) in &writes {
            let what = format!("{before}, then {last}");
            let expect = |found: Option<Value>, operation: &str| {
                assert_eq!(found, db.get("key").unwrap(), "{operation} after {what}");
            };
            first(&db, &fs);
            write(&db, &fs);
            let found = db.get("key").unwrap();
            let added = db.fetch_add("key", 1u64, ByteOrder::Little).unwrap();
            assert_eq!(added, number(found.as_deref()), "an addition after {what}");
            expect(Some(Value::from((added + 1).to_le_bytes().to_vec())), "an addition");
            first(&db, &fs);
            write(&db, &fs);
            let found = db.get("key").unwrap();
            let put = db.put_if_absent("key", 1u64.to_le_bytes()).unwrap();
            assert_eq!(put.map_err(|mismatch| mismatch.current).err(), found.clone().map(Some), "{what}");
            expect(found.or(Some(Value::from(1u64.to_le_bytes().to_vec()))), "a put if absent");
            first(&db, &fs);
            write(&db, &fs);
            let found = db.get("key").unwrap();
            let swapped = db.compare_and_swap("key", found.as_deref(), Some(3u64.to_le_bytes())).unwrap();
            assert_eq!(swapped, Ok(db.last_seqno()), "a swap after {what}");
            let deleted = db.compare_and_swap("key", Some(3u64.to_le_bytes()), None::<&str>).unwrap();
            assert_eq!((deleted, db.get("key").unwrap()), (Ok(db.last_seqno()), None), "a swap after {what}");
        }
    }
}

/// What may happen to a key, and to the store, between the read of an update and its commit.
#[test]
fn whatever_happens_between_read_and_commit_is_seen() {
    let (db, _executor) = open_plain(&SimFileSystem::new()).unwrap();
    let fill = || {
        (0..200u32).for_each(|i| {
            db.put(i.to_be_bytes(), [7; 40]).unwrap();
        })
    };
    let meanwhile: [(&str, &dyn Fn(), bool); 8] = [
        ("nothing", &|| {}, false),
        (
            "another key is written",
            &|| {
                db.put("other", "1").unwrap();
            },
            false,
        ),
        (
            "the key is put",
            &|| {
                db.put("key", "2").unwrap();
            },
            true,
        ),
        (
            "the key is deleted",
            &|| {
                db.delete("key").unwrap();
            },
            true,
        ),
        ("memtables change", &fill, false),
        ("it is put, and memtables change", &|| (db.put("key", "2").unwrap(), fill()).1, true),
        (
            "it is deleted, and the tombstone is compacted away",
            &|| {
                db.delete("key").unwrap();
                db.compact_range(..).unwrap();
            },
            true,
        ),
        (
            "it is updated by the closure itself",
            &|| {
                add_one(&db, "nested");
            },
            false,
        ),
    ];
    for (what, meanwhile, again) in meanwhile {
        db.put("key", "1").unwrap();
        let mut calls = 0;
        let updated = db.update("key", |value| {
            calls += 1;
            if calls == 1 {
                meanwhile();
            }
            Change::Put([value.unwrap_or(b"none"), b"+"].concat())
        });
        let updated = updated.unwrap();
        assert_eq!(calls, if again { 2 } else { 1 }, "{what}");
        let now = db.get("key").unwrap();
        assert_eq!(now, updated.after, "{what}");
        let before = updated.before.as_deref().unwrap_or(b"none");
        assert_eq!(now.as_deref(), Some(&[before, b"+"].concat()[..]), "{what}");
        assert_eq!(updated.seqno, Some(db.last_seqno()), "{what}");
    }
}

#[test]
fn an_update_of_a_key_within_its_own_update_ends() {
    let _watchdog = Watchdog::new("an_update_of_a_key_within_its_own_update_ends");
    let db = busy_store();
    let mut calls = 0;
    let updated = db.update("key", |value| {
        calls += 1;
        if calls <= 2 {
            db.update("key", |_| Change::Put(vec![calls])).unwrap();
        }
        Change::Put([value.unwrap_or_default(), b"!"].concat())
    });
    assert_eq!((calls, updated.unwrap().after.as_deref()), (3, Some(&[2, b'!'][..])));
    db.close().unwrap();
}

#[test]
fn an_update_says_what_it_found_and_what_it_left() {
    let db = busy_store();
    let seqno = db.last_seqno();
    let kept = db.update("a", |_| Change::Keep).unwrap();
    assert_eq!((kept.before, kept.after, kept.seqno), (None, None, None));
    assert_eq!(db.last_seqno(), seqno, "nothing was written");
    let long = vec![3; 10_000];
    let put = db.update("a", |_| Change::Put(long.clone())).unwrap();
    assert_eq!((put.before, put.after.as_deref()), (None, Some(&long[..])));
    let kept = db.update("a", |_| Change::Keep).unwrap();
    assert_eq!((kept.before.as_deref(), kept.after.as_deref()), (Some(&long[..]), Some(&long[..])));
    let deleted = db.update("a", |_| Change::Delete).unwrap();
    assert_eq!((deleted.before.as_deref(), deleted.after), (Some(&long[..]), None));
    assert_eq!(db.get("a").unwrap(), None);

    // An empty value is a value.
    assert!(db.put_if_absent("e", "").unwrap().is_ok());
    assert!(db.put_if_absent("e", "x").unwrap().unwrap_err().current.is_some_and(|value| value.is_empty()));
    let absent = None::<&str>;
    assert!(db.compare_and_swap("e", absent, Some("x")).unwrap().is_err());
    assert!(db.compare_and_swap("e", Some(""), Some("x")).unwrap().is_ok());
    assert!(db.compare_and_swap("e", Some("x"), absent).unwrap().is_ok());
    assert_eq!(db.compare_and_swap("e", Some("x"), absent).unwrap().unwrap_err().current, None);
    assert!(db.compare_and_swap("e", absent, absent).unwrap().is_ok());
    db.close().unwrap();
}

#[test]
fn an_addition_that_does_not_fit_is_refused() {
    let db = busy_store();
    assert_eq!(db.fetch_add("n", -5i8, ByteOrder::Little).unwrap(), 0);
    assert_eq!(db.fetch_add("n", -123i8, ByteOrder::Little).unwrap(), -5);
    for refused in
        [db.fetch_add("n", -1i8, ByteOrder::Little).map(i64::from), db.fetch_add("n", 1i64, ByteOrder::Little)]
    {
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    }
    assert_eq!(db.get("n").unwrap().as_deref(), Some(&[0x80][..]));
    db.fetch_add("b", 0x0102u16, ByteOrder::Big).unwrap();
    assert_eq!(db.get("b").unwrap().as_deref(), Some(&[1, 2][..]));
    assert_eq!(db.fetch_add("b", 1u16, ByteOrder::Big).unwrap(), 0x0102);
    db.close().unwrap();
}

#[test]
fn updates_reach_only_their_keyspace_and_only_an_open_store() {
    let db = busy_store();
    let other = db.keyspace("other").unwrap();
    other.fetch_add("n", 1u8, ByteOrder::Big).unwrap();
    assert_eq!(db.get("n").unwrap(), None);
    let dropped = other.update("n", |_| {
        db.drop_keyspace("other").unwrap();
        Change::Delete
    });
    assert!(matches!(dropped, Ok(_) | Err(Error::KeyspaceDropped(_))), "{dropped:?}");
    let dropped = other.fetch_add("n", 1u8, ByteOrder::Big);
    assert!(matches!(dropped, Err(Error::KeyspaceDropped(_))), "{dropped:?}");
    let handle = db.clone();
    db.close().unwrap();
    assert!(matches!(handle.put_if_absent("k", "v"), Err(Error::Closed)));
}

#[test]
fn a_synced_update_survives_a_power_cut_even_if_it_keeps() {
    let fs = SimFileSystem::new();
    let (db, _executor) = open_plain(&fs).unwrap();
    let sync = WriteOptions::new().sync(true);
    db.fetch_add_with("n", 1u64, ByteOrder::Little, sync).unwrap();
    let after = open_plain(&fs.crash(1)).unwrap().0;
    assert_eq!(number(after.get("n").unwrap().as_deref()), 1);
    db.put("n", 5u64.to_le_bytes()).unwrap();
    // The caller is told 5, and may act on it.
    assert!(db.put_if_absent_with("n", "", sync).unwrap().is_err());
    let after = open_plain(&fs.crash(2)).unwrap().0;
    assert_eq!(number(after.get("n").unwrap().as_deref()), 5);
}

#[test]
fn each_entry_of_a_queue_is_popped_once() {
    let _watchdog = Watchdog::new("each_entry_of_a_queue_is_popped_once");
    let db = busy_store();
    let (queue, popped) = (db.keyspace("queue").unwrap(), Mutex::new(Vec::new()));
    in_threads(|thread| {
        for i in 0..400u64 {
            queue.put((thread << 32 | i).to_be_bytes(), "job").unwrap();
            if i % 2 == 1 {
                let pop = || if thread % 2 == 0 { queue.pop_first() } else { queue.pop_last() };
                let entries = [pop(), pop()].map(|entry| entry.unwrap());
                popped.lock().unwrap().extend(entries.into_iter().flatten().map(|(key, _)| key.to_vec()));
            }
        }
    });
    let mut popped = popped.into_inner().unwrap();
    while let Some((key, value)) = queue.pop_first().unwrap() {
        assert_eq!(&*value, b"job");
        popped.push(key.to_vec());
    }
    assert!(queue.is_empty().unwrap() && queue.pop_last().unwrap().is_none());
    let count = popped.len();
    popped.sort();
    popped.dedup();
    assert_eq!((count, popped.len()), (1600, 1600));
    db.close().unwrap();
}

#[test]
fn keys_and_values_are_the_halves_of_the_entries() {
    let db = busy_store();
    assert!(db.is_empty().unwrap() && db.first().unwrap().is_none() && db.last().unwrap().is_none());
    for i in 0..50u8 {
        db.put([i], vec![i; usize::from(i)]).unwrap();
    }
    db.flush().unwrap();
    (0..50u8).step_by(7).for_each(|i| assert!(db.delete([i]).is_ok()));
    let entries: Vec<(Value, Value)> = db.range([3]..[40]).map(|entry| entry.unwrap()).collect();
    let keys = db.keys([3]..[40]).map(|key| key.unwrap());
    assert!(keys.eq(entries.iter().map(|(key, _)| key.clone())));
    let values = db.values([3]..[40]).rev().map(|value| value.unwrap());
    assert!(values.eq(entries.iter().rev().map(|(_, value)| value.clone())));
    let mut keys = db.keys(..);
    let ends = [keys.next(), keys.next_back()].map(|key| key.unwrap().unwrap().to_vec());
    assert_eq!(ends, [vec![1], vec![48]]);
    assert_eq!((&*db.first().unwrap().unwrap().0, &*db.last().unwrap().unwrap().0), (&[1][..], &[48][..]));
    assert!(!db.snapshot().is_empty().unwrap());
    db.close().unwrap();
}
