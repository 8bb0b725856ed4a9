//! What does the store do when a call fails?
//!
//! `TAMIS_SEEDS` sets the number of histories with a fault; `TAMIS_SEED` runs one.

use std::cell::RefCell;

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Cursor, Db, Error, Executor, WriteBatch, WriteOptions};

use crate::history::{CallKinds, History, ProcessEnd, Trouble, check_reopens, reopen, steps};
use crate::support::{Scene, WAL_MODES, count_from_env, for_each_seed, open_in_mode, open_plain, stepped_options};
use crate::trace::{TraceEvent, TracedCall};

const MODES: [FaultMode; 4] = [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite, FaultMode::ReadError];

/// One fault at every k-th call of a history, k = 1, 4, 7, … until the history completes without
/// it. Other seeds begin with 2 and 3.
fn strike_everywhere(seed: u64, kinds: &mut CallKinds) {
    let [mode, sticky] = [seed % 4, seed / 4 % 2].map(|n| usize::try_from(n).unwrap());
    let mut whole = History::new(seed, Trouble::None);
    for _ in 0..steps(seed) {
        whole.step().unwrap();
    }
    kinds.note_all(&whole);
    for at in (1 + seed / 8 % 3..).step_by(3) {
        let fault = Fault { at, mode: MODES[mode], sticky: sticky == 1 };
        let _scene = Scene(format!("{fault:?}"));
        let mut history = History::new(seed, Trouble::Fault(fault));
        for _ in 0..steps(seed) {
            if let Err(error) = history.step() {
                assert!(matches!(error, Error::Io { .. } | Error::Poisoned(_)), "{error}");
            }
        }
        history.fs.set_fault(None);
        if !history.fs.fault_hit() {
            return;
        }
        kinds.note_struck(&whole, &history);
        // The calls take turns.
        let (before, after) = match at % 2 {
            0 => (ProcessEnd::Kill, ProcessEnd::PowerCut),
            _ => (ProcessEnd::PowerCut, ProcessEnd::Kill),
        };
        check_state(&history, before, seed);
        match history.db {
            Some(_) => check_open(&mut history),
            None => history.open(history.ledger.acknowledged()).unwrap(),
        }
        check_state(&history, after, seed);
    }
}

/// One fault at every k-th call of a recovery. Afterwards the store opens as if nothing had
/// happened.
fn strike_recovery(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut history = History::new(seed, Trouble::None);
    for _ in 0..steps(seed) {
        history.step().unwrap();
    }
    let crashed = history.fs.crash(rng.u64(..));
    let floor = history.ledger.durable();
    let ledger = reopen(&crashed.kill(), &history.end(), floor, seed);
    let mode = MODES[rng.usize(0..4)];
    for at in 1.. {
        let fault = Fault { at, mode, sticky: rng.bool() };
        let _scene = Scene(format!("{fault:?}"));
        let fs = crashed.kill();
        let mut struck = History::on(&fs, ledger.clone(), seed).with_trouble(Trouble::Fault(fault));
        if let Err(error) = struck.open(ledger.acknowledged()) {
            assert!(matches!(error, Error::Io { .. } | Error::Poisoned(_)), "{error}");
        }
        fs.set_fault(None);
        if !fs.fault_hit() {
            return;
        }
        for next in [fs.kill(), fs.crash(at)] {
            check_reopens(&next, &ledger, ledger.acknowledged(), seed);
        }
    }
}

/// After `end`, the next process finds everything acknowledged, or everything durable.
fn check_state(history: &History, end: ProcessEnd, seed: u64) {
    let ledger = &history.ledger;
    match end {
        ProcessEnd::Kill => check_reopens(&history.fs.kill(), ledger, ledger.acknowledged(), seed),
        ProcessEnd::PowerCut => check_reopens(&history.fs.crash(seed), ledger, ledger.durable(), seed),
    }
}

/// The fault is over: reads are correct. Writes are refused if the failed call makes writes
/// durable, and accepted otherwise.
fn check_open(history: &mut History) {
    let db = history.db.clone().unwrap();
    history.ledger.check(&db).unwrap();
    let events = history.events();
    let synced = db.synced_seqno();
    match events.iter().find(|event| !event.ok && makes_durable(event)) {
        Some(first) => {
            let error = history.write_synced().unwrap_err();
            let Error::Poisoned(cause) = &error else { panic!("{error} after {first:?}") };
            assert!(cause.to_string().contains(&first.name), "{cause} after {first:?}");
            assert!(matches!(db.sync(), Err(Error::Poisoned(_))));
            assert!(matches!(db.flush(), Err(Error::Poisoned(_))));
            assert!(matches!(db.keyspace("new"), Err(Error::Poisoned(_))));
            assert_eq!(db.synced_seqno(), synced);
        }
        None => {
            history.write_synced().unwrap();
            db.flush().unwrap();
        }
    }
    history.ledger.check(&db).unwrap();
}

/// Whether the call writes or syncs a log or a manifest, puts a manifest in force, or makes names
/// durable.
fn makes_durable(event: &TraceEvent) -> bool {
    let is_log = event.name.ends_with(".wal");
    let is_manifest = event.name.starts_with("MANIFEST") || event.name.starts_with("CURRENT");
    match event.call {
        TracedCall::SyncDir => true,
        TracedCall::Append | TracedCall::Sync => is_log || is_manifest,
        TracedCall::Create | TracedCall::Rename => is_manifest,
        TracedCall::Remove | TracedCall::BeginSync => false,
    }
}

#[test]
fn fault_at_any_call_loses_nothing_acknowledged() {
    let kinds = RefCell::<CallKinds>::default();
    for_each_seed(count_from_env("TAMIS_SEEDS", 120), |seed| strike_everywhere(seed, &mut kinds.borrow_mut()));
    kinds.borrow().check();
}

#[test]
fn fault_at_any_call_of_a_recovery_changes_nothing() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 100), strike_recovery);
}

/// Fails the next call, or all from the next on if `sticky`.
fn fault(mode: FaultMode, sticky: bool) -> Option<Fault> {
    Some(Fault { at: 1, mode, sticky })
}

#[test]
fn failed_sync_is_the_last() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        let (db, _) = open_in_mode(&fs, mode).unwrap();
        let durable = db.put("durable", "1").unwrap();
        db.sync().unwrap();
        db.put("lost", "2").unwrap();
        fs.set_fault(fault(FaultMode::Io, false));
        let cause = db.sync().unwrap_err();
        assert!(fs.fault_hit());
        // The disk works again, but the data of the failed sync are lost: no later success could be
        // believed.
        let refused =
            |error: Error| assert!(matches!(&error, Error::Poisoned(c) if c.to_string() == cause.to_string()));
        refused(db.sync().unwrap_err());
        refused(db.put("k", "v").unwrap_err());
        refused(db.flush().unwrap_err());
        refused(db.keyspace("new").unwrap_err());
        assert_eq!(db.synced_seqno(), durable);
        assert_eq!(db.get("lost").unwrap().as_deref(), Some(&b"2"[..]));
        for seed in 0..40 {
            let (db, _) = open_plain(&fs.crash(seed)).unwrap();
            assert_eq!(db.get("durable").unwrap().as_deref(), Some(&b"1"[..]));
            assert_eq!(db.get("lost").unwrap(), None);
        }
        let (db, _) = open_plain(&fs.kill()).unwrap();
        assert_eq!(db.last_seqno(), 2);
    }
}

#[test]
fn full_disk_refuses_writes_until_there_is_space() {
    // With short entries that are synced one by one, the log takes more than the memtable. The
    // sizes make the disk full at various moments of a log.
    let sizes = [0, 500].into_iter().flat_map(|len| (14_000..24_000).step_by(400).map(move |space| (len, space)));
    for (mode, (len, space)) in WAL_MODES.into_iter().flat_map(|mode| sizes.clone().map(move |size| (mode, size))) {
        let _scene = Scene(format!("{mode:?}, values of {len}, space for {space}"));
        let fs = SimFileSystem::new();
        let (db, executor) = open_in_mode(&fs, mode).unwrap();
        let used = |fs: &SimFileSystem| fs.paths().iter().map(|path| fs.file_len(path).unwrap()).sum::<u64>();
        // Space for logs, but no more than flushes leave free.
        fs.set_capacity(Some(used(&fs) + space));
        let mut written = 0u32;
        let error = loop {
            let mut batch = WriteBatch::new();
            batch.put(written.to_be_bytes(), vec![7; len]);
            match db.write_with(batch, WriteOptions::new().sync(len == 0)) {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
            executor.step();
        };
        assert!(error.is_no_space() && !matches!(error, Error::Poisoned(_)), "{error}");
        assert!(written > 0);
        // Data in memory can still be read and made durable.
        let is_whole = |db: &Db| (0..written).all(|n| db.get(n.to_be_bytes()).unwrap().is_some());
        assert!(is_whole(&db));
        db.sync().unwrap();
        assert!(is_whole(&open_plain(&with_space(fs.crash(1))).unwrap().0));

        fs.set_capacity(None);
        db.put(written.to_be_bytes(), "v").unwrap();
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        assert!(is_whole(&db));
        db.close().unwrap();
        assert!(is_whole(&open_plain(&fs).unwrap().0));
    }
}

fn with_space(fs: SimFileSystem) -> SimFileSystem {
    fs.set_capacity(None);
    fs
}

#[test]
fn failed_table_is_written_again_by_the_next_flush() {
    let fs = SimFileSystem::new();
    let (db, executor) = open_plain(&fs).unwrap();
    let tables = || fs.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "sst")).count();
    // A flush creates, writes and syncs a table.
    let cases = [(FaultMode::Io, 1), (FaultMode::Io, 2), (FaultMode::Io, 3)];
    let cases = cases.into_iter().chain([(FaultMode::NoSpace, 2), (FaultMode::ShortWrite, 2)]);
    for (n, (mode, at)) in cases.enumerate() {
        db.put(n.to_string(), "v").unwrap();
        while executor.step() {}
        let before = tables();
        fs.set_fault(Some(Fault { at, mode, sticky: false }));
        let error = db.flush().unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path.extension().is_some_and(|e| e == "sst")), "{error}");
        assert_eq!(tables(), before, "the partial table is removed");
        db.flush().unwrap();
        assert_eq!(tables(), before + 1);
        assert_eq!(db.iter().count(), n + 1);
    }
}

#[test]
fn failed_manifest_is_not_written_to_again() {
    for at in 5.. {
        let fs = SimFileSystem::new();
        let (db, _) = open_plain(&fs).unwrap();
        db.put("k", "v").unwrap();
        db.sync().unwrap();
        fs.set_fault(Some(Fault { at, mode: FaultMode::Io, sticky: false }));
        let Err(error) = db.flush() else { break };
        assert!(matches!(db.put("k", "w"), Err(Error::Poisoned(_))), "{error}");
        let before = fs.mutations();
        assert!(matches!(db.keyspace("new"), Err(Error::Poisoned(_))));
        assert!(matches!(db.drop_keyspace("new"), Err(Error::Poisoned(_))));
        assert_eq!(fs.mutations(), before);
        for seed in 0..20 {
            let (db, _) = open_plain(&fs.crash(seed)).unwrap();
            assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
        }
    }
}

/// A failing seek, between steps within one table, leaves the cursor on no entry and able to seek
/// again.
#[test]
fn a_cursor_whose_seek_fails_is_invalid_and_can_seek_again() {
    let fs = SimFileSystem::new();
    let (options, executor) = stepped_options(&fs);
    let db = options.cache_size(0).open("/db").unwrap();
    let key = |i: usize| format!("key{i:05}");
    (0..2000).for_each(|i| _ = db.put(key(i), [7; 100]).unwrap());
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    while executor.step() {}
    type CursorMove = fn(&mut Cursor) -> Result<bool, Error>;
    let directions: [(CursorMove, CursorMove, isize); 2] =
        [(Cursor::seek_to_first, Cursor::next, 1), (Cursor::seek_to_last, Cursor::prev, -1)];
    for (begin, step, by) in directions {
        for seek in 0..3 {
            let mut cursor = db.cursor().unwrap();
            let mut at = if by == 1 { 0 } else { 1999 };
            assert!(begin(&mut cursor).unwrap());
            for _ in 0..5 {
                assert!(step(&mut cursor).unwrap());
                at += by;
                assert_eq!(cursor.key(), Some(key(at.unsigned_abs()).as_bytes()));
            }
            fs.set_fault(Some(Fault { at: 1, mode: FaultMode::ReadError, sticky: true }));
            let failed = match seek {
                0 => cursor.seek(key(1000)),
                1 => cursor.seek_for_prev(key(1000)),
                _ if by == 1 => cursor.seek_to_last(),
                _ => cursor.seek_to_first(),
            };
            assert!(failed.is_err() && !cursor.is_valid());
            assert!(!cursor.next().unwrap() && !cursor.prev().unwrap());
            assert_eq!((cursor.key(), cursor.value()), (None, None));
            fs.set_fault(None);
            assert!(cursor.seek(key(1500)).unwrap() && cursor.next().unwrap() && cursor.prev().unwrap());
            assert_eq!(cursor.key(), Some(key(1500).as_bytes()));
        }
    }
}
