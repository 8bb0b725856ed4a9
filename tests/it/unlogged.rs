//! What do keyspaces without a log keep, and what do the others beside them? Random histories of
//! both are the profile `unlogged` of `tests/histories`.

use std::sync::Arc;
use std::time::Duration;

use tamis::vfs::SimFileSystem;
use tamis::{ByteOrder, Change, Db, Error, Keyspace, KeyspaceOptions, Options, Result, WriteBatch, WriteOptions};

use crate::support::{WAL_MODES, stepped_options};

fn options(fs: &SimFileSystem) -> Options {
    stepped_options(fs).0.memtable_size(4096)
}

fn open(fs: &SimFileSystem) -> Db {
    options(fs).open("/db").unwrap()
}

fn unlogged(db: &Db, name: &str) -> Keyspace {
    db.keyspace_with(name, KeyspaceOptions::new().wal(false)).unwrap()
}

fn logs(fs: &SimFileSystem) -> usize {
    fs.paths().iter().filter(|path| path.extension().is_some_and(|kind| kind == "wal")).count()
}

fn is_invalid<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::InvalidArgument(_)))
}

#[test]
fn a_kill_takes_what_is_neither_logged_nor_flushed() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let (logged, state) = (db.keyspace("logged").unwrap(), unlogged(&db, "state"));
    state.put("flushed", "1").unwrap();
    db.flush().unwrap();
    let flushed = db.flushed_seqno();
    assert_eq!(flushed, db.last_seqno());
    state.put("flushed", "2").unwrap();
    let mut batch = WriteBatch::new();
    batch.put_in(&state, "both", "1");
    batch.put_in(&logged, "both", "1");
    batch.put_in(&state, "later", "1");
    db.write(batch).unwrap();
    state.put("later", "2").unwrap();
    assert_eq!(db.flushed_seqno(), flushed);
    assert_eq!(state.get("later").unwrap().as_deref(), Some(&b"2"[..]));

    let db = open(&fs.kill());
    let (logged, state) = (db.keyspace("logged").unwrap(), db.keyspace("state").unwrap());
    assert_eq!(state.get("flushed").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!((state.get("both").unwrap(), state.get("later").unwrap()), (None, None));
    assert_eq!(logged.get("both").unwrap().as_deref(), Some(&b"1"[..]));
    // The option is stored with the keyspace.
    assert!(is_invalid(state.put_with("k", "v", WriteOptions::new().sync(true))));
}

#[test]
fn memtables_filled_by_recovery_end_between_batches() {
    let fs = SimFileSystem::new();
    let db = options(&fs).memtable_size(64 << 10).open("/db").unwrap();
    let (logged, state) = (db.keyspace("logged").unwrap(), unlogged(&db, "state"));
    for i in 0..200u32 {
        let mut batch = WriteBatch::new();
        batch.put_in(&logged, i.to_be_bytes(), [7; 50]);
        batch.put_in(&state, i.to_be_bytes(), [7; 50]);
        db.write(batch).unwrap();
    }
    let mut fs = fs.kill();
    for _ in 0..2 {
        // It fills several memtables, and is killed before the last is flushed.
        let db = open(&fs);
        assert_eq!((db.keyspace("logged").unwrap().iter().count(), db.last_seqno()), (200, 400));
        assert!(db.flushed_seqno() > 0);
        fs = fs.kill();
    }
}

#[test]
fn closing_and_dropping_a_store_flush() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    unlogged(&db, "state").put("a", "1").unwrap();
    db.close().unwrap();
    let db = open(&fs);
    let state = db.keyspace("state").unwrap();
    state.put("b", "2").unwrap();
    drop((db, state));
    let state = open(&fs).keyspace("state").unwrap();
    assert_eq!(state.iter().count(), 2);
}

#[test]
fn writes_without_a_log_make_no_log_and_cannot_be_synced() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let (logged, state) = (db.keyspace("logged").unwrap(), unlogged(&db, "state"));
    let sync = WriteOptions::new().sync(true);
    for i in 0..20u8 {
        state.put([i], [i]).unwrap();
    }
    db.sync().unwrap();
    assert_eq!(logs(&fs), 0);
    assert!(is_invalid(state.put_with("k", "v", sync)));
    assert!(is_invalid(state.update_with("k", sync, |_| Change::Put("v".into()))));
    let mut batch = WriteBatch::new();
    batch.put_in(&state, "k", "v");
    assert!(is_invalid(db.write_with(batch.clone(), sync)));
    assert_eq!((state.get("k").unwrap(), db.last_seqno()), (None, 20));
    batch.put_in(&logged, "k", "v");
    db.write_with(batch, sync).unwrap();
    assert_eq!((db.synced_seqno(), db.last_seqno()), (22, 22));
    assert_eq!(open(&fs.crash(1)).keyspace("logged").unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn full_memtables_without_a_log_are_flushed_and_their_logs_removed() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        let db = options(&fs).wal_mode(mode).default_keyspace(KeyspaceOptions::new().wal(false)).open("/db").unwrap();
        for i in 0..2000u32 {
            db.put(i.to_be_bytes(), [7; 50]).unwrap();
        }
        db.wait_for_compactions().unwrap();
        assert!(logs(&fs) <= 2, "{:?}", fs.paths());
        let flushed = db.flushed_seqno();
        assert!(flushed > 1900);
        let killed = options(&fs.kill()).open("/db").unwrap();
        assert_eq!(killed.iter().count() as u64, flushed);
        assert_eq!(killed.last_seqno(), flushed);
    }
}

#[test]
fn a_log_that_finds_no_space_refuses_the_write_that_needs_it_and_no_other() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let state = unlogged(&db, "state");
    state.put("first", "1").unwrap();
    fs.set_capacity(Some(0));
    let refused = (0..1000u32).find_map(|i| state.put(i.to_be_bytes(), [7; 50]).err().map(|error| (i, error)));
    let (written, error) = refused.expect("a memtable was full");
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(state.get("first").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(is_io(db.flush()));
    fs.set_capacity(None);
    state.put("last", "1").unwrap();
    db.flush().unwrap();
    drop((db, state));
    let state = open(&fs).keyspace("state").unwrap();
    assert_eq!(state.iter().count(), written as usize + 2);
}

fn is_io<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Io { .. }))
}

#[test]
fn the_change_feed_passes_over_what_is_not_logged() {
    let fs = SimFileSystem::new();
    let db = options(&fs).memtable_size(1 << 20).open("/db").unwrap();
    let (logged, state) = (db.keyspace("logged").unwrap(), unlogged(&db, "state"));
    let mut visible = db.changes_since(0).unwrap().visible();
    let mut durable = db.changes_since(0).unwrap();
    let short = Duration::from_millis(20);
    state.put("a", "1").unwrap();
    state.put("a", "2").unwrap();
    assert!(visible.next().is_none() && visible.next_timeout(short).unwrap().is_none());
    assert!(durable.next_timeout(short).unwrap().is_none());
    let mut late = db.changes_since(1).unwrap();
    let mut later = db.changes_since(2).unwrap();
    let mut batch = WriteBatch::new();
    batch.put_in(&state, "b", "1");
    batch.put_in(&logged, "b", "1");
    batch.put_in(&state, "b", "2");
    assert_eq!(db.write(batch).unwrap(), 5);
    state.put("c", "1").unwrap();
    db.sync().unwrap();
    for changes in [&mut visible, &mut durable, &mut late, &mut later] {
        let mut operations = Vec::new();
        for batch in changes.by_ref() {
            let batch = batch.unwrap();
            operations.extend(batch.operations().map(|operation| (operation.seqno, operation.keyspace.to_owned())));
        }
        assert_eq!(operations, [(4, "logged".to_owned())]);
        assert_eq!(changes.seqno(), 5);
    }
    // Within a batch of which the log has some, no reader begins.
    let mut within = db.changes_since(4).unwrap();
    assert!(is_invalid(within.next().unwrap()));
    db.flush().unwrap();
    logged.put("d", "1").unwrap();
    db.sync().unwrap();
    let last = visible.next_timeout(Duration::from_secs(100)).unwrap().unwrap();
    assert_eq!((last.first_seqno(), last.operations().count()), (6, 0), "what is not logged counts");
    let last = visible.next_timeout(Duration::from_secs(100)).unwrap().unwrap();
    assert_eq!((last.first_seqno(), last.operations().count()), (7, 1));
}

#[test]
fn updates_transactions_and_queued_writes_see_and_keep_each_other() {
    let fs = SimFileSystem::new();
    let options = Options::new().file_system(Arc::new(fs.clone())).memtable_size(16 << 10);
    let db = options.open("/db").unwrap();
    let (logged, state) = (db.keyspace("logged").unwrap(), unlogged(&db, "state"));
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (db, logged, state) = (&db, &logged, &state);
            scope.spawn(move || {
                for i in 1..=500u32 {
                    state.fetch_add("counter", 1u64, ByteOrder::Little).unwrap();
                    logged.put([thread], i.to_le_bytes()).unwrap();
                    let mut batch = WriteBatch::new();
                    batch.put_in(state, [thread], i.to_le_bytes());
                    batch.put_in(logged, [thread, 1], i.to_le_bytes());
                    db.write(batch).unwrap();
                    db.transact(|tx| -> Result<()> {
                        let count = tx.keyspace(state).get("transactions")?.map_or(0, |value| value.len());
                        tx.put_in(state, "transactions", vec![0; count + 1]);
                        Ok(())
                    })
                    .unwrap();
                }
            });
        }
    });
    let check = |db: &Db, is_killed: bool| {
        let (logged, state) = (db.keyspace("logged").unwrap(), db.keyspace("state").unwrap());
        for thread in 0..4u8 {
            let last = Some(500u32.to_le_bytes().to_vec());
            assert_eq!(logged.get([thread]).unwrap().map(|value| value.to_vec()), last);
            assert_eq!(logged.get([thread, 1]).unwrap().map(|value| value.to_vec()), last);
            assert!(is_killed || state.get([thread]).unwrap().map(|value| value.to_vec()) == last);
        }
        let counted = state.fetch_add("counter", 0u64, ByteOrder::Little).unwrap();
        let transactions = state.get("transactions").unwrap().map_or(0, |value| value.len());
        assert!(counted <= 2000 && transactions <= 2000);
        assert!(is_killed || counted == 2000 && transactions == 2000, "{counted} {transactions}");
    };
    check(&db, false);
    check(&open(&fs.kill()), true);
    db.flush().unwrap();
    check(&open(&fs.kill()), false);
}

#[test]
fn a_keyspace_may_lose_and_regain_its_log() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let keyspace = db.keyspace("state").unwrap();
    keyspace.put("a", "1").unwrap();
    let keyspace = unlogged(&db, "state");
    keyspace.put("b", "1").unwrap();
    let keyspace = db.keyspace_with("state", KeyspaceOptions::new()).unwrap();
    keyspace.put("c", "1").unwrap();
    let keys = |db: &Db| db.keyspace("state").unwrap().keys(..).map(|key| key.unwrap()[0]).collect::<Vec<_>>();
    assert_eq!(keys(&db), b"abc");
    // The change has flushed what was written before it.
    assert_eq!(keys(&open(&fs.kill())), b"abc");
    drop(keyspace);
    let read_only = options(&fs.kill()).open_read_only("/db");
    assert_eq!(read_only.map(|db| keys(&db)).unwrap(), b"abc");
}

#[test]
fn ranges_of_a_mixed_batch_are_kept_as_far_as_their_keyspaces_are_logged() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let (logged, state) = (db.keyspace("logged").unwrap(), unlogged(&db, "state"));
    let fill = || {
        (0..9u8).for_each(|i| [&logged, &state].into_iter().for_each(|keyspace| _ = keyspace.put([i], "1").unwrap()));
    };
    fill();
    db.flush().unwrap();
    let mut batch = WriteBatch::new();
    batch.delete_range_in(&state, [0]..[4]);
    batch.delete_range_in(&logged, [2]..[5]);
    batch.put_in(&state, [1], "2");
    batch.delete_range_in(&state, [6]..);
    batch.put_in(&logged, [3], "2");
    db.write(batch).unwrap();
    let keys = |db: &Db| {
        let keys = |name| db.keyspace(name).unwrap().keys(..).map(|key| key.unwrap()[0]).collect::<Vec<_>>();
        [keys("logged"), keys("state")]
    };
    let (before, after) = ([vec![0, 1, 3, 5, 6, 7, 8], (0..9).collect()], [vec![0, 1, 3, 5, 6, 7, 8], vec![1, 4, 5]]);
    assert_eq!(keys(&db), after);
    let killed = open(&fs.kill());
    assert_eq!(keys(&killed), before, "what is not logged has gone with the process");
    // Numbers of the lost ranges are not given again to what they would delete.
    let last = killed.last_seqno();
    assert!(killed.keyspace("state").unwrap().put([0], "3").unwrap() > last && last >= 18 + 5);
    db.flush().unwrap();
    assert_eq!(keys(&open(&fs.kill())), after, "all ranges are in tables");
    // Ranges alone, in memory only and then in tables.
    state.delete_range(..).unwrap();
    assert_eq!(keys(&open(&fs.kill())), after);
    db.flush().unwrap();
    let killed = fs.kill();
    assert_eq!(keys(&open(&killed)), [after[0].clone(), Vec::new()]);
    assert_eq!(open(&killed).flushed_seqno(), db.last_seqno());
}
