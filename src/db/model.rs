//! Models of the commit queue, of the turns of threads that sync, and of close: whole stores in a
//! simulated file system, with their background threads, under many schedules. CONTRIBUTING.md has
//! the command.
//!
//! A schedule ends with every thread at its end, or the model fails. Where time stands still while
//! a thread can run ([`Explore::hasty`]), a wait that only its timeout ends counts as a failure,
//! too: somebody forgot to wake it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::db::work::background::Waiting;
use crate::error::Error;
use crate::exec::ThreadPool;
use crate::format::coding::{get_u64, u64_bytes};
use crate::format::key::SeqNo;
use crate::options::Options;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle, spawn};
use crate::sync::{Explore, Mutex, time};
use crate::vfs::SimFileSystem;
use crate::{ByteOrder, Db, Transaction, Value, WriteOptions};

/// The timeout of waits for background work.
const WAIT: Duration = Duration::from_millis(100);

/// Explores a model of a store, which is over before a wait runs into its timeout unless time is
/// hasty. `TAMIS_TIMES` multiplies the number of schedules.
fn explore(schedules: usize, model: fn(&SimFileSystem)) {
    let times = std::env::var("TAMIS_TIMES").map_or(1, |times| times.parse().unwrap());
    for hasty in [false, true] {
        Explore { seed: 1, schedules: schedules * times, hasty }.run(move || {
            model(&SimFileSystem::new());
            assert!(hasty || time::elapsed() < WAIT, "a thread was not woken: {:?}", time::elapsed());
        });
    }
}

/// Opens a store whose memtables are full after a few [long](long) values.
fn open(fs: &SimFileSystem) -> Db {
    let options = Options::new().file_system(Arc::new(fs.clone())).executor(Arc::new(ThreadPool::new(1)));
    options.hash_seed(1).memtable_size(64 << 10).open("/db").unwrap()
}

fn start<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    spawn("model", run).unwrap()
}

fn long() -> Vec<u8> {
    vec![7; 20 << 10]
}

/// Writes that have returned, with their numbers.
type Written = BTreeMap<String, SeqNo>;

/// Writes until the store is closed.
fn write_on(db: &Db, thread: usize, value: &[u8], count: usize, options: WriteOptions) -> Written {
    let mut written = Written::new();
    for i in 0..count {
        let key = format!("{thread}-{i}");
        match db.put_with(&key, value, options) {
            Ok(seqno) => written.insert(key, seqno),
            Err(Error::Closed) => break,
            Err(error) => panic!("{error}"),
        };
    }
    written
}

/// Every write is there, in a store that has none but these.
fn check(db: &Db, written: &Written) {
    for key in written.keys() {
        assert!(db.get(key).unwrap().is_some(), "{key} is gone");
    }
}

/// The numbers of all writes are those up to their count.
fn check_numbers(db: &Db, written: &Written) {
    let mut numbers: Vec<SeqNo> = written.values().copied().collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=written.len() as u64), "{numbers:?}");
    assert_eq!(db.last_seqno(), written.len() as u64);
}

fn join(threads: Vec<JoinHandle<Written>>) -> Written {
    threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn writers_that_queue_are_committed_once_each() {
    explore(100, |fs| {
        let db = open(fs);
        let writer = |thread| {
            let db = db.clone();
            start(move || write_on(&db, thread, b"short", 2, WriteOptions::new()))
        };
        let written = join((0..3).map(writer).collect());
        check_numbers(&db, &written);
        check(&db, &written);
        db.close().unwrap();
        let db = open(fs);
        check(&db, &written);
        check_numbers(&db, &written);
        db.close().unwrap();
    });
}

/// Additions under the commit lock, transactions that register their snapshots, plain writes and
/// updates of the caller, which queue.
#[test]
fn additions_in_place_lose_nothing_beside_others() {
    explore(60, |fs| {
        let db = open(fs);
        let number = |value: Option<Value>| value.map_or(0, |bytes| get_u64(bytes[..].try_into().unwrap()));
        let writer = |thread| {
            let db = db.clone();
            start(move || {
                for _ in 0..2 {
                    match thread {
                        0 => _ = db.fetch_add("counter", 1u64, ByteOrder::Little).unwrap(),
                        1 => {
                            let add = |tx: &mut Transaction| {
                                let sum = number(tx.get("counter")?) + 1;
                                tx.put("counter", u64_bytes(sum));
                                Ok::<_, Error>(())
                            };
                            db.transact(add).unwrap();
                        }
                        _ => _ = db.put("other", long()).unwrap(),
                    }
                }
            })
        };
        let writers: Vec<_> = (0..3).map(writer).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!((number(db.get("counter").unwrap()), db.last_seqno()), (4, 6));
        db.close().unwrap();
        let db = open(fs);
        assert_eq!((number(db.get("counter").unwrap()), db.last_seqno()), (4, 6));
        db.close().unwrap();
    });
}

#[test]
fn a_synced_write_that_has_returned_survives_a_power_cut() {
    explore(50, |fs| {
        let db = open(fs);
        let acknowledged = Arc::new(Mutex::new(Written::new()));
        let writer = |(thread, sync)| {
            let (db, acknowledged) = (db.clone(), Arc::clone(&acknowledged));
            start(move || {
                for i in 0..2 {
                    let key = format!("{thread}-{i}");
                    let seqno = db.put_with(&key, "value", WriteOptions::new().sync(sync)).unwrap();
                    if sync {
                        acknowledged.lock().insert(key, seqno);
                    }
                }
            })
        };
        let syncer = {
            let db = db.clone();
            start(move || db.sync().unwrap())
        };
        let writers: Vec<_> = [true, true, false].into_iter().enumerate().map(writer).collect();
        let mut durable = 0;
        for _ in 0..3 {
            // Right after a sync, if there is one soon.
            (0..50).take_while(|_| db.synced_seqno() == durable).for_each(|_| thread::yield_now());
            let acknowledged = acknowledged.lock().clone();
            durable = db.synced_seqno();
            // What is left of unsynced bytes depends on the schedule.
            let left = fs.crash(u64::try_from(time::elapsed().as_nanos()).unwrap());
            if durable > 0 {
                let db = open(&left);
                check(&db, &acknowledged);
                assert!(db.last_seqno() >= durable, "{} of {durable} writes are left", db.last_seqno());
                db.close().unwrap();
            }
        }
        writers.into_iter().chain([syncer]).for_each(|thread| thread.join().unwrap());
        check(&db, &acknowledged.lock());
        assert_eq!(db.last_seqno(), 6);
        db.close().unwrap();
    });
}

#[test]
fn writers_that_wait_for_room_are_woken_by_flushes() {
    explore(20, |fs| {
        let db = open(fs);
        let writer = |thread| {
            let db = db.clone();
            start(move || write_on(&db, thread, &long(), 5, WriteOptions::new()))
        };
        let written = join((0..2).map(writer).collect());
        check_numbers(&db, &written);
        check(&db, &written);
        db.close().unwrap();
        let db = open(fs);
        check(&db, &written);
        db.close().unwrap();
    });
}

#[test]
fn close_ends_once_for_all_callers_amid_writers_and_flushes() {
    explore(30, |fs| {
        let db = open(fs);
        let writer = |thread| {
            let db = db.clone();
            let options = WriteOptions::new().sync(thread == 0);
            start(move || write_on(&db, thread, &long(), 8, options))
        };
        let writers: Vec<_> = (0..2).map(writer).collect();
        let files = |fs: &SimFileSystem| fs.paths().into_iter().map(|path| (fs.read(&path).ok(), path)).collect();
        let closer = |_| {
            let (db, fs) = (db.clone(), fs.clone());
            start(move || -> Vec<(Option<Vec<u8>>, PathBuf)> {
                // Amid flushes.
                while db.last_seqno() < 13 {
                    thread::yield_now();
                }
                db.close().unwrap();
                files(&fs)
            })
        };
        let closers: Vec<_> = (0..2).map(closer).collect();
        let written = join(writers);
        // Nothing changes a file after close has returned.
        closers.into_iter().for_each(|closer| assert!(closer.join().unwrap() == files(fs)));
        assert!(matches!(db.put("late", ""), Err(Error::Closed)));
        let db = open(fs);
        check(&db, &written);
        // A write that was cut off may be there, too.
        assert!((0..=2).contains(&(db.last_seqno() - written.len() as u64)), "{written:?}");
        db.close().unwrap();
    });
}

/// Workers wake whoever waits for something else than the end of a job.
#[test]
fn a_thread_that_waits_for_anything_is_woken() {
    explore(100, |fs| {
        let db = open(fs);
        let (store, looks, is_done) = (db.store(), AtomicU64::new(0), AtomicBool::new(false));
        let look = || {
            looks.fetch_add(1, Ordering::AcqRel);
            is_done.load(Ordering::Acquire)
        };
        thread::scope(|scope| {
            scope.spawn(|| store.wait_for_progress(Waiting::Flush, look).unwrap());
            // A thread looks twice before it waits.
            while looks.load(Ordering::Acquire) < 2 {
                thread::yield_now();
            }
            is_done.store(true, Ordering::Release);
            store.workers.wake();
        });
        db.close().unwrap();
    });
}
