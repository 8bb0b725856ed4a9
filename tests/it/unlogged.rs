//! Do keyspaces without a log keep what a flush has written, all together at one sequence number,
//! and do the others keep everything beside them?
//!
//! `TAMIS_SEEDS` sets the number of histories, `TAMIS_SEED` runs one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{
    ByteOrder, Change, Db, Error, Executor, Keyspace, KeyspaceOptions, Options, Result, SeqNo, SteppedExecutor,
    WriteBatch, WriteOptions,
};

use crate::support::{Scene, WAL_MODES, count_from_env, for_each_seed, stepped_options};

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

/// Contents of the three keyspaces: one with a log and two without.
type Contents = [BTreeMap<u8, u32>; 3];

/// A write: keyspace, key, and what becomes of it.
type Ops = Vec<(usize, u8, Written)>;

#[derive(Clone, Copy)]
enum Written {
    Put(u32),
    Delete,
    /// Of the keys from this one up to another.
    DeleteUntil(u8),
}

struct History {
    rng: fastrand::Rng,
    fs: SimFileSystem,
    store: Option<(Db, [Keyspace; 3], Arc<SteppedExecutor>)>,
    /// What the process found when it opened the store.
    base: Contents,
    /// Whether a power cut may take part of that.
    is_base_durable: bool,
    /// What was written since, with the number of the last operation.
    writes: Vec<(SeqNo, Ops)>,
    /// The write that was cut off.
    unfinished: Option<Ops>,
    flushed: SeqNo,
    synced: SeqNo,
    value: u32,
}

impl History {
    fn new(seed: u64) -> History {
        History {
            rng: fastrand::Rng::with_seed(seed),
            fs: SimFileSystem::new(),
            store: None,
            base: Contents::default(),
            is_base_durable: true,
            writes: Vec::new(),
            unfinished: None,
            flushed: 0,
            synced: 0,
            value: 0,
        }
    }

    fn open(&mut self) -> Result<()> {
        // A smaller memtable than the process before: recovery fills several.
        let (mode, size) = (WAL_MODES[self.rng.usize(..2)], 4096 << (self.rng.u32(..2) * 3));
        let (options, executor) = stepped_options(&self.fs);
        let db = options.memtable_size(size).wal_mode(mode).open("/db")?;
        let plain = |name, wal| db.keyspace_with(name, KeyspaceOptions::new().wal(wal));
        let keyspaces = [plain("logged", true)?, plain("a", false)?, plain("b", false)?];
        self.store = Some((db, keyspaces, executor));
        Ok(())
    }

    /// Does something, and notes what the store has promised for it.
    fn step(&mut self) -> Result<()> {
        let Some((db, keyspaces, executor)) = &self.store else { return self.open() };
        match self.rng.u32(..20) {
            0 => db.flush()?,
            1 => db.sync()?,
            2..4 => drop(executor.step()),
            _ => {
                let mut batch = WriteBatch::new();
                let mut ops = Ops::new();
                for _ in 0..self.rng.usize(1..5) {
                    self.value += 1;
                    let (of, key) = (self.rng.usize(..3), self.rng.u8(..10));
                    let keyspace = &keyspaces[of];
                    let written = match self.rng.u8(..10) {
                        0..5 => Written::Put(self.value),
                        5..8 => Written::Delete,
                        _ => Written::DeleteUntil(key + self.rng.u8(1..5)),
                    };
                    match written {
                        Written::Put(value) => batch.put_in(keyspace, [key; 40], value.to_le_bytes()),
                        Written::Delete => batch.delete_in(keyspace, [key; 40]),
                        Written::DeleteUntil(end) => batch.delete_range_in(keyspace, [key; 40]..[end; 40]),
                    }
                    ops.push((of, key, written));
                }
                let sync = self.rng.u32(..8) == 0 && ops.iter().any(|(of, ..)| *of == 0);
                self.unfinished = Some(ops.clone());
                let last = db.write_with(batch, WriteOptions::new().sync(sync))?;
                self.unfinished = None;
                self.writes.push((last, ops));
                if sync {
                    self.synced = last;
                }
            }
        }
        self.synced = self.synced.max(db.synced_seqno());
        self.flushed = self.flushed.max(db.flushed_seqno());
        self.is_base_durable |= self.synced > 0 && self.writes.first().is_some_and(|(last, _)| self.synced >= *last);
        Ok(())
    }

    /// Leaves the process that has this history: `fs` is what it left behind.
    fn reopen(&mut self, fs: SimFileSystem, is_killed: bool) {
        self.store = None;
        self.fs = fs;
        self.open().unwrap();
        let (db, keyspaces, _) = self.store.as_ref().unwrap();
        let read = |keyspace: &Keyspace| {
            let entries = keyspace.iter().map(|entry| entry.unwrap());
            entries.map(|(key, value)| (key[0], u32::from_le_bytes((*value).try_into().unwrap()))).collect()
        };
        let found: Contents = [0, 1, 2].map(|of| read(&keyspaces[of]));
        // After how many writes the keyspaces with a log, and those without, were like this.
        let all = self.writes.iter().map(|(_, ops)| ops).chain(&self.unfinished);
        let (mut contents, mut logged, mut rest) = (self.base.clone(), Vec::new(), Vec::new());
        for (at, ops) in std::iter::once(&Ops::new()).chain(all).enumerate() {
            for &(of, key, written) in ops {
                match written {
                    Written::Put(value) => _ = contents[of].insert(key, value),
                    Written::Delete => _ = contents[of].remove(&key),
                    Written::DeleteUntil(end) => contents[of].retain(|other, _| !(key..end).contains(other)),
                }
            }
            if contents[0] == found[0] {
                logged.push(at);
            }
            if contents[1..] == found[1..] {
                rest.push(at);
            }
        }
        let count = |seqno: SeqNo| self.writes.iter().filter(|(last, _)| *last <= seqno).count();
        let floor = if is_killed { self.writes.len() } else { count(self.synced) };
        let flushed = count(self.flushed);
        let logged = logged.into_iter().rev().find(|at| *at >= floor).expect("what is logged is there");
        let rest = rest.into_iter().find(|at| *at >= flushed).expect("what was flushed is there, of one moment");
        assert!(rest <= logged, "a flush loses nothing that is logged");
        // The history goes on from here.
        self.base = found;
        self.writes.clear();
        self.unfinished = None;
        (self.flushed, self.synced) = (0, 0);
        self.is_base_durable = self.rng.bool();
        if self.is_base_durable {
            db.flush().unwrap();
        }
    }
}

/// Several processes, each ended by a kill or by a power cut at some call.
fn live_and_die(seed: u64) {
    let mut history = History::new(seed);
    for life in 0..6 {
        let is_killed = !history.is_base_durable || history.rng.bool();
        let _scene = Scene(format!("life {life}, ended by a {}", if is_killed { "kill" } else { "power cut" }));
        let steps = history.rng.usize(1..150);
        let call = history.rng.u64(1..200);
        history.fs.crash_at((!is_killed).then_some(call));
        for _ in 0..steps {
            let result = history.step();
            if history.fs.crash_point().is_some() {
                break;
            }
            result.unwrap();
        }
        let left = match history.fs.crash_point() {
            Some(point) => point.crash(seed ^ life << 32),
            None if is_killed => history.fs.kill(),
            None => history.fs.crash(seed ^ life << 32),
        };
        history.reopen(left, is_killed);
    }
}

#[test]
fn after_kills_and_power_cuts_keyspaces_without_a_log_are_of_one_moment() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 400), live_and_die);
}

#[test]
fn after_a_failed_call_nothing_logged_or_flushed_is_lost() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 12), |seed| {
        for at in 1..120 {
            for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite] {
                let _scene = Scene(format!("call {at} failed with {mode:?}"));
                let mut history = History::new(seed);
                history.open().unwrap();
                history.fs.set_fault(Some(Fault { at, mode, sticky: (seed + at) % 2 == 0 }));
                for _ in 0..150 {
                    if history.step().is_err() {
                        break;
                    }
                }
                if !history.fs.fault_hit() {
                    assert!(at > 30, "the history makes {at} calls");
                    return;
                }
                let left = history.fs.kill();
                left.set_fault(None);
                history.reopen(left, true);
            }
        }
    });
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
                        let count = tx.get_in(state, "transactions")?.map_or(0, |value| value.len());
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
