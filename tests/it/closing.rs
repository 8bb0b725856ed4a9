//! Is a store closed once, whichever handle closes it? Are obsolete files removed in time, and none
//! after the close? When is a store idle?

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{Db, Error, Executor, FilterPolicy, Iter, Keyspace, KeyspaceOptions, Options};

use crate::support::{Watchdog, count_entries, open_plain, stepped_options};
use crate::trace::{Trace, TracedCall};

fn options(fs: impl FileSystem + 'static) -> Options {
    Options::new().file_system(Arc::new(fs)).memtable_size(16 << 10).table_size(16 << 10)
}

/// A place where a call waits until the test lets it pass.
#[derive(Default)]
struct CallGate {
    reached: AtomicBool,
    open: AtomicBool,
}

impl CallGate {
    fn pass(&self) {
        self.reached.store(true, Ordering::SeqCst);
        while !self.is_open() {
            std::thread::yield_now();
        }
    }

    fn is_reached(&self) -> bool {
        self.reached.load(Ordering::SeqCst)
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }
}

#[test]
fn every_close_waits_for_the_end_and_reports_it() {
    // Issue 13: the second of two concurrent calls returned Ok at once.
    let _watchdog = Watchdog::new("closing twice");
    for fails in [false, true] {
        let fs = SimFileSystem::new();
        let gate = Arc::new(CallGate::default());
        let at_gate = Arc::clone(&gate);
        let hooked = Trace::with_hook(&fs, move |call, name| {
            if call == TracedCall::Create && name.ends_with(".sst") {
                at_gate.pass();
                if fails {
                    return Err(io::ErrorKind::StorageFull.into());
                }
            }
            Ok(())
        });
        let db = options(hooked).open("/db").unwrap();
        db.put("k", "v").unwrap();
        // More than may stay in the log.
        db.put("long", [0; 8 << 10]).unwrap();
        let check = |result: tamis::Result<()>| match result {
            Ok(()) => assert!(!fails),
            Err(error) => assert!(fails && error.is_no_space(), "{error}"),
        };
        std::thread::scope(|scope| {
            let close = || {
                let (db, gate) = (db.clone(), &gate);
                scope.spawn(move || {
                    let result = db.close();
                    (result, gate.is_open())
                })
            };
            let first = close();
            while !gate.is_reached() {
                std::thread::yield_now();
            }
            let others = [close(), close()];
            // Give them time to return too early.
            for _ in 0..20 {
                std::thread::yield_now();
            }
            assert!(matches!(db.put("k", "w"), Err(Error::Closed)));
            gate.open.store(true, Ordering::SeqCst);
            for closing in others.into_iter().chain([first]) {
                let (result, ended) = closing.join().unwrap();
                assert!(ended, "closed before the flush had ended");
                check(result);
            }
        });
        check(db.clone().close());
        let reopened = options(fs).open("/db").unwrap();
        assert_eq!(reopened.get("k").unwrap().as_deref(), Some(&b"v"[..]));
        // Dropping the last old handle does not close the new store either.
        drop(db);
        reopened.put("k", "w").unwrap();
    }
}

#[test]
fn a_store_can_be_closed_in_the_middle_of_a_read_and_of_an_iterator() {
    let _watchdog = Watchdog::new("closing within a read");
    let fs = SimFileSystem::new();
    for stepped in [false, true] {
        for in_table in [false, true] {
            let options = if stepped { stepped_options(&fs).0 } else { options(fs.clone()) };
            let db = options.open("/db").unwrap();
            db.put("a", "1").unwrap();
            db.put("b", "2").unwrap();
            if in_table {
                db.compact_range(..).unwrap();
            }
            let mut iter = db.iter();
            assert_eq!(iter.next().unwrap().unwrap().0, "a");
            let read = db.read("a", |value| {
                db.clone().close().unwrap();
                assert!(matches!(db.get("b"), Err(Error::Closed)));
                assert!(Options::new().file_system(Arc::new(fs.clone())).open("/db").is_ok());
                value.to_vec()
            });
            assert_eq!(read.unwrap().as_deref(), Some(&b"1"[..]));
            assert_eq!(iter.next().unwrap().unwrap().1, "2");
            assert!(iter.next().is_none());
        }
    }
}

#[test]
fn a_panic_while_closing_is_the_result_of_every_close_and_keeps_the_lock() {
    let fs = SimFileSystem::new();
    let armed = Arc::new(AtomicBool::new(false));
    let is_armed = Arc::clone(&armed);
    // The close syncs the log.
    let hooked = Trace::with_hook(&fs, move |call, name| {
        let strikes = call == TracedCall::Sync && name.ends_with(".wal") && is_armed.load(Ordering::SeqCst);
        assert!(!strikes, "a panic that is part of the test");
        Ok(())
    });
    let (options, _) = stepped_options(&fs);
    let db = options.file_system(Arc::new(hooked)).open("/db").unwrap();
    db.put("k", "v").unwrap();
    armed.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let error = db.clone().close().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(matches!(open_plain(&fs), Err(Error::Locked { .. })));
    }
    drop(db);
    let (db, _) = open_plain(&fs).unwrap();
    assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
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

/// Number of tables that the versions name.
fn live(db: &Db) -> usize {
    let keyspaces = db.stats().keyspaces;
    keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.tables.len()).sum()
}

/// An operation that makes tables of a keyspace obsolete.
type Replace = fn(&Db, &Keyspace);

const REPLACE: [Replace; 3] = [
    |_, keyspace| keyspace.compact_range(..).unwrap(),
    |db, keyspace| assert!(db.drop_keyspace(keyspace.name()).unwrap()),
    |_, keyspace| _ = keyspace.rebuild_filters(FilterPolicy::Bloom { bits_per_key: 14.0 }, |_| {}).unwrap(),
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
fn a_replaced_tables_file_is_removed_after_its_last_reader_without_a_write() {
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
        assert!(trace.events()[before..].iter().all(|event| event.call == TracedCall::Remove));
    }
}

#[test]
fn a_sync_waits_for_no_removal() {
    let fs = SimFileSystem::new();
    let (db, keyspace, trace, executor) = opened(&fs);
    let mut iter = keyspace.iter();
    assert!(iter.next().is_some());
    keyspace.compact_range(..).unwrap();
    drop(iter);
    let before = trace.events().len();
    db.put("k", "v").unwrap();
    db.sync().unwrap();
    let events = &trace.events()[before..];
    assert!(events.iter().all(|event| event.call != TracedCall::Remove || !event.name.ends_with(".sst")));
    assert!(tables(&fs).len() > live(&db));
    while executor.step() {}
    assert_eq!(tables(&fs).len(), live(&db));
}

#[test]
fn files_of_replaced_tables_are_removed_during_a_long_read() {
    for replace in REPLACE {
        let fs = SimFileSystem::new();
        let (db, keyspace, _, executor) = opened(&fs);
        let read = keyspace.read(7u32.to_be_bytes(), |value| {
            replace(&db, &keyspace);
            while executor.step() {}
            assert_eq!(tables(&fs).len(), live(&db), "the value is a copy, which keeps no table");
            value.to_vec()
        });
        assert_eq!(read.unwrap().as_deref(), Some(&[2; 50][..]));
    }
}

#[test]
fn a_file_that_cannot_be_removed_is_removed_at_the_next_open() {
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
fn a_store_whose_directory_was_recreated_leaves_the_next_store_alone() {
    let names = |fs: &SimFileSystem| fs.list(Path::new("/db")).unwrap();
    for reopened in [false, true] {
        let fs = SimFileSystem::new();
        let open = || stepped_options(&fs).0.open("/db").unwrap();
        let old = open();
        let old = if reopened {
            old.close().unwrap();
            open()
        } else {
            old
        };
        old.put("of", "the old one").unwrap();
        names(&fs).iter().for_each(|name| fs.remove(&Path::new("/db").join(name)).unwrap());

        let new = open();
        new.put("of", "the new one").unwrap();
        new.sync().unwrap();
        let (files, current) = (names(&fs), fs.read("/db/CURRENT").unwrap());
        assert!(old.flush().is_err());
        assert!(matches!(old.put("later", ""), Err(Error::Poisoned(_))));
        assert!(old.close().is_err());
        assert_eq!((names(&fs), fs.read("/db/CURRENT").unwrap()), (files, current));
        // As if killed.
        std::mem::forget(new);
        let cut = fs.crash(0);
        let new = stepped_options(&cut).0.open("/db").unwrap();
        assert_eq!(new.get("of").unwrap().as_deref(), Some(&b"the new one"[..]));
    }
}

#[test]
fn an_iterator_that_outlives_its_store_removes_nothing_of_the_next_one_in_its_directory() {
    // Issue 13: a table's destructor unlinked its file by name, even when another store owned that
    // name by then.
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

#[test]
fn a_store_is_idle_when_the_wait_for_compactions_ends() {
    let fs = SimFileSystem::new();
    let (db, executor) = open_plain(&fs).unwrap();
    for n in 0..2000u32 {
        db.put(n.to_be_bytes(), [1; 40]).unwrap();
    }
    assert!(executor.pending() > 0);
    db.wait_for_compactions().unwrap();
    assert_eq!(executor.pending(), 0);
    let unflushed = db.last_seqno() - db.flushed_seqno();
    assert!(0 < unflushed && unflushed < 200, "the active memtable stays: {unflushed}");
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let (stats, before) = (db.stats(), fs.mutations());
    assert_eq!((stats.compaction_debt, stats.flushed_seqno), (0, stats.last_seqno));
    assert_eq!(tables(&fs).len(), live(&db));
    db.wait_for_compactions().unwrap();
    assert_eq!((executor.pending(), fs.mutations()), (0, before));
    db.clone().close().unwrap();
    assert!(matches!(db.wait_for_compactions(), Err(Error::Closed)));
    let reader = options(fs).open_read_only("/db").unwrap();
    reader.wait_for_compactions().unwrap();
}

#[test]
fn the_wait_for_compactions_reports_failures_and_retries() {
    let fs = SimFileSystem::new();
    let (db, executor) = open_plain(&fs).unwrap();
    for n in 0..300u32 {
        db.put(n.to_be_bytes(), [1; 40]).unwrap();
    }
    assert!(executor.pending() > 0);
    // The next calls are those of the flush.
    fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: true }));
    for _ in 0..2 {
        let error = db.wait_for_compactions().unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path.extension().is_some_and(|e| e == "sst")), "{error}");
    }
    fs.set_fault(None);
    db.wait_for_compactions().unwrap();
    assert!(db.stats().background_error.is_none());
    assert_eq!(count_entries(db.iter()), 300);
}

#[test]
fn the_wait_for_compactions_ends_beside_writers_on_one_thread() {
    let _watchdog = Watchdog::new("waiting for compactions");
    let fs = SimFileSystem::new();
    let db = options(fs.clone()).background_threads(1).open("/db").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let db = &db;
            scope.spawn(move || {
                for n in 0..3000u32 {
                    db.put([&[thread][..], &n.to_be_bytes()].concat(), [1; 40]).unwrap();
                    if n % 500 == 0 {
                        db.wait_for_compactions().unwrap();
                    }
                }
            });
        }
    });
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    assert_eq!(db.stats().compaction_debt, 0);
    assert_eq!(tables(&fs).len(), live(&db));
    assert_eq!(count_entries(db.iter()), 6000);
}

/// Issue 29, fault 19: a child between `fork` and `exec` has a copy of every descriptor, and what a
/// lock is bound to lives on in it.
#[test]
#[cfg(all(unix, not(miri)))]
fn no_lock_outlives_its_owner_beside_threads_that_start_programs() {
    const SPAWNS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let spawned = AtomicUsize::new(0);
    let (mut rounds, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while spawned.fetch_add(1, Ordering::Relaxed) < SPAWNS {
                    std::process::Command::new("true").status().unwrap();
                }
            });
        }
        let mut count = |result: tamis::Result<()>| match result {
            Err(Error::Locked { .. }) => refused += 1,
            result => result.unwrap(),
        };
        while spawned.load(Ordering::Relaxed) < SPAWNS {
            rounds += 1;
            // Each opening follows one that has ended: none may be refused.
            count(Db::open(&store).and_then(Db::close));
            count(Options::new().open(&store).map(drop));
            // `verify` and a repair that changes nothing ask whether the store is locked.
            count(tamis::inspect::Inspector::new().verify(&store, &mut |_| ()).map(drop));
            count(Db::open(&store).and_then(|db| {
                let copy = dir.path().join(format!("copy{rounds}"));
                db.checkpoint(&copy)?;
                db.close()?;
                Db::open(&copy)?.close()
            }));
        }
    });
    assert_eq!((refused, rounds > 0), (0, true), "of {rounds} rounds");
}

/// A snapshot is a handle: without it, the last handle's drop closes the store.
#[test]
#[cfg(not(miri))]
fn a_live_snapshot_keeps_the_store_locked_until_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    db.put("a", "1").unwrap();
    let snapshot = db.snapshot();
    drop(db);
    assert!(matches!(Db::open(dir.path()), Err(Error::Locked { .. })));
    drop(snapshot);
    let db = Db::open(dir.path()).unwrap();
    let (snapshot, iter) = (db.snapshot(), db.iter());
    db.close().unwrap();
    Db::open(dir.path()).unwrap().close().unwrap();
    drop((snapshot, iter));
}
