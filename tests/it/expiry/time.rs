//! Clocks that go back, what time each operation takes, and what an idle store does as time goes
//! on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tamis::operator::Append;
use tamis::vfs::SimFileSystem;
use tamis::{
    Db, Error, Executor, Expiry, KeyspaceOptions, OperationKind, Options, RepairOptions, Transaction, WriteBatch,
    WriteOptions, repair,
};

use super::{ALL, Clock, at, check, options, put_all, store, tables, text};
use crate::support::Delaying;

#[test]
fn a_clock_that_goes_back_loses_nothing_and_revives_nothing() {
    let (fs, clock, db) = store();
    put_all(&db);
    db.compact_range(..).unwrap();
    clock.set(25);
    check(&db, &ALL, &ALL[2..]);
    clock.set(5);
    check(&db, &ALL, &ALL[2..]);
    // The compaction relies on the time 25: it is in the manifest from then on.
    db.compact_range(..).unwrap();
    db.put_with_expiry("b", "b", at(20)).unwrap();
    db.put_with_expiry("b2", "b2", at(26)).unwrap();
    db.close().unwrap();
    for read_only in [false, true] {
        let options = options(&fs, &clock);
        let db = if read_only { options.open_read_only("/db") } else { options.open("/db") }.unwrap();
        check(&db, &["a", "b", "b2", "c", "d", "e"], &["b2", "c", "d", "e"]);
    }
    clock.set(26);
    let db = options(&fs, &clock).open("/db").unwrap();
    check(&db, &["a", "b", "b2", "c", "d", "e"], &["c", "d", "e"]);
}

#[test]
fn a_clock_that_goes_back_after_reopening_revives_nothing_that_was_seen_expired() {
    // What has been seen is stored by a flush, or by closing the store.
    for flushed in [false, true] {
        let (fs, clock, db) = store();
        put_all(&db);
        db.flush().unwrap();
        clock.set(25);
        check(&db, &ALL, &ALL[2..]);
        let fs = if flushed {
            db.put("x", "").unwrap();
            db.delete("x").unwrap();
            db.flush().unwrap();
            fs.kill()
        } else {
            db.close().unwrap();
            fs
        };
        clock.set(5);
        for read_only in [true, false] {
            let options = options(&fs, &clock);
            let db = if read_only { options.open_read_only("/db") } else { options.open("/db") }.unwrap();
            check(&db, &ALL, &ALL[2..]);
            assert_eq!(db.stats().clock_lag, Duration::from_millis(20));
        }
        // Repair keeps the time from what is left of a manifest.
        let current = fs.paths().into_iter().find(|path| path.ends_with("CURRENT")).unwrap();
        fs.write(&current, *b"damaged").unwrap();
        let manifest = fs.paths().into_iter().find(|path| path.to_str().unwrap().contains("MANIFEST")).unwrap();
        // In the first edit: what is left is the one that states the time.
        fs.corrupt(&manifest, 90, 1).unwrap();
        repair("/db", RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
        let db = options(&fs, &clock).open("/db").unwrap();
        check(&db, &ALL, &ALL[2..]);
    }
}

#[test]
fn a_store_without_deadlines_stores_no_time() {
    let (fs, clock, db) = store();
    clock.set(25);
    db.put("a", "1").unwrap();
    db.begin().commit().unwrap();
    // Its log is replayed.
    let killed = fs.kill();
    drop(db);
    for _ in 0..2 {
        let db = options(&killed, &clock).open("/db").unwrap();
        db.put("b", "2").unwrap();
        db.transact(|tx| tx.get("a").map(drop)).unwrap();
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        assert_eq!(db.stats().clock_lag, Duration::ZERO);
        db.close().unwrap();
    }
    for path in killed.paths().iter().filter(|path| path.to_str().unwrap().contains("MANIFEST")) {
        assert_eq!(killed.read(path).unwrap()[12], 0, "{path:?} requires a feature");
    }
}

#[test]
fn a_cursor_judges_by_the_time_at_which_it_was_made_or_its_snapshot_taken() {
    for flushed in [false, true] {
        let (_fs, clock, db) = store();
        put_all(&db);
        if flushed {
            db.flush().unwrap();
        }
        let (snapshot, mut early) = (db.snapshot(), db.cursor().unwrap());
        clock.set(20);
        let (mut of_snapshot, mut late) = (snapshot.cursor().unwrap(), db.cursor().unwrap());
        clock.set(40);
        db.compact_range(..).unwrap();
        for (cursor, first) in [(&mut early, b"a"), (&mut of_snapshot, b"a"), (&mut late, b"c")] {
            for _ in 0..2 {
                assert!(cursor.seek("a").unwrap());
                assert_eq!(cursor.key(), Some(&first[..]));
                assert!(cursor.seek_to_last().unwrap() && cursor.prev().unwrap());
                assert!(cursor.seek_for_prev("d").unwrap());
                assert_eq!(cursor.key(), Some(&b"d"[..]));
            }
        }
        assert!(db.cursor().unwrap().seek("d").unwrap());
        assert_eq!(db.get("d").unwrap(), None);
    }
}

#[test]
fn one_batch_has_one_deadline_however_the_clock_goes() {
    let fs = SimFileSystem::new();
    let ticks = Arc::new(AtomicU64::new(0));
    let show = Arc::clone(&ticks);
    let clock = move || at(show.fetch_add(1, Ordering::Relaxed));
    let db = Options::new().file_system(Arc::new(fs.clone())).clock(clock).open("/db").unwrap();
    let ttl = |millis| KeyspaceOptions::new().ttl(Duration::from_millis(millis));
    let (a, b) = (db.keyspace_with("a", ttl(1000)).unwrap(), db.keyspace_with("b", ttl(2000)).unwrap());
    let plain = db.keyspace("plain").unwrap();
    let mut batch = WriteBatch::new();
    for i in 0..50u8 {
        batch.put_in(&a, [i], "");
        batch.put_in(&b, [i], "");
        batch.put_in(&plain, [i], "");
        batch.delete_in(&a, [100 + i]);
    }
    let before = ticks.load(Ordering::Relaxed);
    db.write(batch).unwrap();
    assert_eq!(ticks.load(Ordering::Relaxed), before + 1, "the clock is read once");
    db.put("default", "").unwrap();
    db.delete("default").unwrap();
    plain.put("plain", "").unwrap();
    assert_eq!(ticks.load(Ordering::Relaxed), before + 1, "others do not read it");
    db.flush().unwrap();
    let deadlines = tables(&db).into_iter().filter_map(|table| table.deadlines).collect::<Vec<_>>();
    let all_at = |ttl| (at(before + ttl), at(before + ttl));
    assert_eq!(deadlines, [all_at(1000), all_at(2000)]);
}

#[test]
fn puts_can_be_told_to_live_for_ever_or_for_less_than_a_millisecond() {
    let (_fs, clock, db) = store();
    let short = db.keyspace_with("short", KeyspaceOptions::new().ttl(Duration::from_nanos(1))).unwrap();
    assert_eq!(short.options().unwrap().ttl, Some(Duration::from_millis(1)));
    short.put("a", "").unwrap();
    short.put_with("b", "", WriteOptions::new().expiry(Expiry::Never)).unwrap();
    short.put_with("c", "", WriteOptions::new().expires_at(at(1000))).unwrap();
    assert_eq!(short.keys(..).count(), 3);
    clock.set(1);
    assert_eq!(short.keys(..).count(), 2);
    clock.set(1000);
    assert_eq!(short.keys(..).count(), 1);
    let none = db.keyspace_with("none", KeyspaceOptions::new().ttl(Duration::ZERO));
    assert!(matches!(none.err(), Some(Error::InvalidArgument(_))));
    short.put_with_ttl("d", "", Duration::from_micros(1500)).unwrap();
    short.put_with_ttl("gone", "", Duration::ZERO).unwrap();
    assert_eq!(text(short.keys(..).last().map(Result::unwrap)).as_deref(), Some("d"));
    clock.set(1002);
    assert_eq!(short.keys(..).count(), 1);
    let merging = db.keyspace_with("merging", KeyspaceOptions::new().merge_operator(Append)).unwrap();
    let refused = merging.merge_with("k", "1", WriteOptions::new().expires_at(at(5)));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    let refused = merging.merge_with("k", "1", WriteOptions::new().expires_after(Duration::from_millis(5)));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    merging.merge_with("k", "1", WriteOptions::new().expiry(Expiry::Never)).unwrap();
}

/// In memtables, in tables, and with the value in a value file.
#[test]
fn an_expiry_is_read_and_set_and_the_value_stays() {
    let (_fs, clock, db) = store();
    let options = KeyspaceOptions::new().ttl(Duration::from_millis(10)).merge_operator(Append);
    let leases = db.keyspace_with("leases", options.separate_values(100)).unwrap();
    let expiry_of = |key: &str| leases.get_with_expiry(key).unwrap().map(|(_, deadline)| deadline);
    for (round, len) in [1, 99, 5000].into_iter().enumerate() {
        let (now, value) = (1000 * round as u64, vec![7; len]);
        clock.set(now);
        let never = WriteOptions::new().expiry(Expiry::Never);
        leases.put_with("never", &value, never).unwrap();
        leases.put("lease", &value).unwrap();
        leases.merge("lease", "!").unwrap();
        let old = leases.snapshot();
        for flushes in [false, true] {
            if flushes {
                db.flush().unwrap();
            }
            assert_eq!((expiry_of("never"), expiry_of("absent")), (Some(None), None));
            assert_eq!(expiry_of("lease"), Some(Some(at(now + 10))));
        }
        clock.set(now + 9);
        for (expiry, expected) in [
            (Expiry::Default, Some(at(now + 19))),
            (Expiry::After(Duration::from_millis(5)), Some(at(now + 14))),
            (Expiry::Never, None),
            (Expiry::At(at(now + 12)), Some(at(now + 12))),
        ] {
            assert!(leases.set_expiry("lease", expiry).unwrap(), "{expiry:?}");
            let (kept, deadline) = leases.get_with_expiry("lease").unwrap().unwrap();
            assert_eq!((kept, deadline), ([&value[..], b"!"].concat().into(), expected), "{expiry:?}");
        }
        assert_eq!(old.get_with_expiry("lease").unwrap().map(|(_, deadline)| deadline), Some(Some(at(now + 10))));
        clock.set(now + 12);
        assert_eq!(expiry_of("lease"), None);
        let before = db.last_seqno();
        assert!(!leases.set_expiry("lease", Expiry::Never).unwrap(), "it revives nothing");
        assert_eq!(db.last_seqno(), before, "and writes nothing");
    }
    leases.put_with("never", "", WriteOptions::new().expiry(Expiry::Never)).unwrap();
    assert!(leases.set_expiry("never", Expiry::At(at(5))).unwrap());
    assert_eq!(expiry_of("never"), None, "a deadline that is past deletes");
}

#[test]
fn a_transaction_and_a_batch_put_for_a_time() {
    let (_fs, clock, db) = store();
    clock.set(100);
    let (other, ttl) = (db.keyspace("other").unwrap(), Duration::from_millis(7));
    let mut transaction = db.begin();
    clock.set(200);
    transaction.put_with_ttl("a", "", ttl);
    transaction.put_with_ttl_in(&other, "b", "", ttl);
    assert!(transaction.contains_key("a").unwrap());
    transaction.commit().unwrap();
    let mut batch = WriteBatch::new();
    batch.put("c", "");
    batch.put_with_expiry_in(&other, "d", "", at(1000));
    let kinds = [
        (0, OperationKind::Put { key: b"c", value: b"" }),
        (other.id(), OperationKind::PutWithExpiry { key: b"d", value: b"", deadline: at(1000) }),
    ];
    assert!(batch.iter().map(|operation| (operation.keyspace, operation.kind)).eq(kinds));
    db.write_with(batch, WriteOptions::new().expires_after(ttl)).unwrap();
    let expiry = |of: &tamis::Keyspace, key| of.get_with_expiry(key).unwrap().unwrap().1;
    let default = db.default_keyspace();
    assert_eq!([expiry(default, "a"), expiry(&other, "b"), expiry(default, "c")], [Some(at(207)); 3]);
    assert_eq!(expiry(&other, "d"), Some(at(1000)), "the put's own deadline");
}

type ReadIn = fn(&mut Transaction);

/// What a transaction was not shown may expire; what it was shown may not.
#[test]
fn a_transaction_conflicts_with_the_deadlines_that_it_has_seen() {
    let reads: [(&str, bool, ReadIn); 6] = [
        ("the key before", false, |tx| drop(tx.iter().next().unwrap().unwrap())),
        ("an own put", false, |tx| {
            tx.put("b", "own");
            drop(tx.range("b"..).next().unwrap().unwrap());
        }),
        ("an own range delete", false, |tx| {
            tx.delete_range("b".."c");
            assert!(tx.range("b"..).next().is_none());
        }),
        ("the key", true, |tx| drop(tx.range("b"..).next().unwrap().unwrap())),
        ("the key, from behind", true, |tx| drop(tx.iter().next_back().unwrap().unwrap())),
        ("an own merge", true, |tx| {
            tx.merge("b", "own");
            drop(tx.range("b"..).next().unwrap().unwrap());
        }),
    ];
    for (what, conflicts, read) in reads {
        let (fs, clock) = (SimFileSystem::new(), Clock::default());
        let appends = KeyspaceOptions::new().merge_operator(Append);
        let db = options(&fs, &clock).default_keyspace(appends).open("/db").unwrap();
        db.put_with_expiry("b", "value", at(10)).unwrap();
        let mut tx = db.begin();
        tx.put("a", "own");
        read(&mut tx);
        clock.set(20);
        assert_eq!(tx.commit().is_err_and(|error| error.is_conflict()), conflicts, "{what}");
    }
}

#[test]
fn what_is_merged_into_an_expired_value_of_a_transaction_has_no_deadline() {
    let (fs, clock) = (SimFileSystem::new(), Clock::default());
    let appends = KeyspaceOptions::new().merge_operator(Append);
    let db = options(&fs, &clock).default_keyspace(appends).open("/db").unwrap();
    for (deadline, left) in [(100, None), (101, Some(at(101)))] {
        clock.set(100);
        let mut tx = db.begin();
        tx.put_with_expiry("key", "expires ", at(deadline));
        tx.merge("key", "merged");
        let seen = tx.get_with_expiry("key").unwrap().unwrap();
        tx.commit().unwrap();
        let stored = db.get_with_expiry("key").unwrap().unwrap();
        assert_eq!((&*seen.0, seen.1), (&*stored.0, stored.1));
        assert_eq!(stored.1, left);
    }
}

#[test]
fn a_follower_keeps_the_deadlines_of_its_source() {
    let fs = SimFileSystem::new();
    let clock = Clock::default();
    let db = options(&fs, &clock).keep_log(1 << 20, Duration::MAX).open("/db").unwrap();
    let source = db.keyspace("k").unwrap();
    source.put("for ever", "1").unwrap();
    source.put_with_expiry("until 50", "1", at(50)).unwrap();
    db.sync().unwrap();
    let (_other, other_clock, follower) = store();
    let copy = follower.keyspace_with("k", KeyspaceOptions::new().ttl(Duration::from_millis(10))).unwrap();
    for batch in db.changes_since(0).unwrap() {
        let batch = batch.unwrap().to_write_batch(&follower).unwrap();
        follower.write_with(batch, WriteOptions::new().expires_at(at(20))).unwrap();
    }
    for (millis, left) in [(49, 2), (50, 1), (1000, 1)] {
        other_clock.set(millis);
        assert_eq!(copy.keys(..).count(), left, "at {millis}");
    }
    copy.put("own", "1").unwrap();
    other_clock.set(1010);
    assert_eq!(copy.keys(..).count(), 1, "its own puts have the ttl");
}

#[test]
fn an_idle_store_drops_what_expires_as_time_goes_on() {
    let (fs, clock, executor) = (SimFileSystem::new(), Clock::default(), Arc::new(Delaying::default()));
    let db = options(&fs, &clock).executor(executor.clone()).open("/db").unwrap();
    for i in 0..1000u64 {
        let deadline = if i < 300 { 5_500 } else { 20_000 };
        db.put_with_expiry(format!("{i:05}"), [7; 20], at(deadline)).unwrap();
    }
    db.compact_range(..).unwrap();
    let wait = || while executor.step() {};
    wait();
    let expiring = |db: &Db| tables(db).iter().map(|table| table.expiring).sum::<u64>();
    assert_eq!(expiring(&db), 1000);
    // A quarter has expired then, in the tables of the first keys.
    let mut woken = 0;
    let mut sleep = |millis: u64| {
        clock.set(millis);
        let pending = executor.take_delayed();
        assert!(!pending.is_empty(), "nothing wakes the store after {millis}");
        for (delay, wake) in pending {
            assert!((1..=20).contains(&delay.as_secs()), "{delay:?}");
            wake();
            woken += 1;
        }
        wait();
    };
    sleep(6_000);
    assert_eq!(expiring(&db), 700);
    sleep(20_000);
    assert_eq!((expiring(&db), tables(&db).len()), (0, 0));
    assert!(executor.take_delayed().is_empty(), "nothing is left to wake for");
    assert!(woken <= 4, "{woken} wakes");
    db.close().unwrap();
}

#[test]
fn level_0_of_an_idle_store_drops_what_has_expired() {
    for beneath in [false, true] {
        let (_fs, clock, db) = store();
        if beneath {
            for i in 0..400 {
                db.put(format!("{i:05}"), [1; 100]).unwrap();
            }
            db.compact_range(..).unwrap();
        }
        for i in 0..400 {
            db.put_with_expiry(format!("{i:05}"), [7; 100], at(10)).unwrap();
        }
        db.flush().unwrap();
        db.wait_for_compactions().unwrap();
        clock.set(10);
        // Any event that schedules work.
        db.keyspace("other").unwrap();
        drop(db.snapshot());
        db.wait_for_compactions().unwrap();
        assert_eq!(tables(&db).iter().map(|table| table.entries).sum::<u64>(), 0, "beneath: {beneath}");
    }
}
