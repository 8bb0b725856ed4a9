//! What does the store do when a call fails?

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Cursor, Db, Error, Executor, WriteBatch, WriteOptions};

use crate::support::{Scene, WAL_MODES, open_in_mode, open_plain, stepped_options};

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
