//! Seeded histories of a store on a simulated file system, with the [`Ledger`] of its promises.
//!
//! The operations depend only on the seed. A history with a power cut or a fault therefore equals
//! the one without up to that point.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::operator::Append;
use tamis::vfs::{Fault, SimFileSystem};
use tamis::{
    Db, Error, Executor, FilterPolicy, Keyspace, KeyspaceOptions, LevelFilters, Result, SeqNo, Snapshot,
    SteppedExecutor, WriteBatch, WriteOptions,
};

use crate::ledger::{Effect, Incarnation, Ledger, LedgerOp};
use crate::support::{count_from_env, tiny_keyspace, tiny_options};
use crate::trace::{Trace, TraceEvent, TracedCall, file_number};

/// The store's directory. At first neither it nor its parent exists.
pub const DIR: &str = "/data/db";

/// The trouble that strikes a history.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    None,
    /// The power goes at this mutating call, counted over all reopenings.
    PowerCut(u64),
    Fault(Fault),
}

pub struct History {
    rng: fastrand::Rng,
    pub fs: SimFileSystem,
    pub db: Option<Db>,
    pub executor: Arc<dyn Executor>,
    pub ledger: Ledger,
    snapshots: Vec<(Snapshot, Ledger)>,
    trouble: Trouble,
    /// Calls on file systems of processes that were killed.
    calls_before: u64,
    trace: Trace,
    /// Mutating calls before the last open.
    earlier: Vec<TraceEvent>,
    /// Numbers of files that exist or existed.
    used_numbers: BTreeSet<u64>,
    /// Those of them that no edit names.
    unnamed_numbers: BTreeSet<u64>,
    /// The sequence number up to which the open store reported writes as synced.
    synced: SeqNo,
    /// Number of values so far; makes every value unique.
    values: u32,
    /// What the store's clock shows: the time of the ledger.
    clock: Arc<AtomicU64>,
}

fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

impl History {
    /// A history that starts without a store.
    pub fn new(seed: u64, trouble: Trouble) -> History {
        History::on(&SimFileSystem::new(), Ledger::new(), seed).with_trouble(trouble)
    }

    /// A history that continues with the store in `fs`.
    pub fn on(fs: &SimFileSystem, ledger: Ledger, seed: u64) -> History {
        History {
            rng: fastrand::Rng::with_seed(seed),
            db: None,
            executor: Arc::new(SteppedExecutor::new()),
            clock: Arc::new(AtomicU64::new(ledger.now)),
            ledger,
            snapshots: Vec::new(),
            trouble: Trouble::None,
            calls_before: 0,
            trace: Trace::new(fs),
            earlier: Vec::new(),
            used_numbers: numbers_in(fs),
            unnamed_numbers: BTreeSet::new(),
            synced: 0,
            values: 0,
            fs: fs.clone(),
        }
    }

    pub fn with_trouble(self, trouble: Trouble) -> History {
        let history = History { trouble, ..self };
        history.arm();
        history
    }

    /// Mutating calls so far.
    pub fn calls(&self) -> u64 {
        self.calls_before + self.fs.mutations()
    }

    /// Mutating calls since the last open, or the last attempt to open.
    pub fn events(&self) -> Vec<TraceEvent> {
        self.trace.events()
    }

    fn all_events(&self) -> Vec<TraceEvent> {
        [&self.earlier[..], &self.events()].concat()
    }

    pub fn power_is_off(&self) -> bool {
        self.fs.crash_point().is_some()
    }

    /// Ends the process. Calls by the handle's drop do not reach the disk.
    pub fn end(mut self) -> Ledger {
        self.note_numbers();
        self.fs.crash_at(Some(1));
        self.ledger
    }

    fn arm(&self) {
        match self.trouble {
            Trouble::None => {}
            Trouble::PowerCut(call) => self.fs.crash_at(call.checked_sub(self.calls_before)),
            Trouble::Fault(fault) => self.fs.set_fault(Some(fault)),
        }
    }

    /// Opens the store, with new options of its own. The writes up to `floor` must be there.
    pub fn open(&mut self, floor: SeqNo) -> Result<()> {
        self.note_numbers();
        let (options, executor) = tiny_options(&self.fs, &mut self.rng);
        let clock = Arc::clone(&self.clock);
        let options = options.clock(move || time(clock.load(Ordering::Relaxed)));
        let options = options.file_system(Arc::new(self.trace.clone())).paranoid(self.rng.u8(0..8) == 0);
        let options = match self.rng.bool() {
            true => options.default_keyspace(self.keyspace_options()),
            false => options,
        };
        // A reader finds the same writes, without changing anything.
        let seen = match self.rng.u8(0..8) {
            0 => Some(options.clone().open_read_only(DIR).map(|reader| reader.last_seqno())),
            _ => None,
        };
        let db = options.open(DIR)?;
        self.executor = executor;
        // The store reports recovered writes as durable once they are in tables.
        self.synced = db.synced_seqno();
        self.ledger.settle(&db, floor);
        let db = self.db.insert(db);
        match seen {
            Some(Ok(seqno)) => assert_eq!(seqno, db.last_seqno()),
            Some(Err(Error::NotFound(_))) => assert_eq!(db.last_seqno(), 0),
            Some(Err(error)) => return Err(error),
            None => {}
        }
        self.ledger.check(db)
    }

    /// Opens the store after the process alone has ended: everything acknowledged must be there.
    fn open_again(&mut self) -> Result<()> {
        self.open(self.ledger.acknowledged())
    }

    /// Mostly without filters, which have tests of their own and take a quarter of the time here.
    fn keyspace_options(&mut self) -> KeyspaceOptions {
        let options = tiny_keyspace(&mut self.rng).merge_operator(Append);
        if self.rng.u8(0..8) == 0 {
            return options;
        }
        options.filter(FilterPolicy::None).level_filters(LevelFilters::Uniform)
    }

    /// File numbers are never reused. The exception is a file that was removed before any edit
    /// named it: another process may reuse its number.
    fn note_numbers(&mut self) {
        let mut given_up = BTreeSet::new();
        let events = self.trace.events();
        for TraceEvent { call, name, .. } in events.iter().filter(|event| event.ok) {
            match (call, file_number(name)) {
                (TracedCall::Create, Some(number)) => {
                    assert!(self.used_numbers.insert(number), "{name} takes a number that was used before");
                    self.unnamed_numbers.insert(number);
                }
                (TracedCall::Remove, Some(number)) if self.unnamed_numbers.remove(&number) => {
                    given_up.insert(number);
                }
                (TracedCall::Sync, Some(_)) if name.starts_with("MANIFEST") => self.unnamed_numbers.clear(),
                _ => {}
            }
        }
        self.earlier.extend(events);
        self.used_numbers.retain(|number| !given_up.contains(number));
        self.trace = Trace::new(&self.fs);
    }

    /// One operation, or an attempt to open the store if it is not open.
    pub fn step(&mut self) -> Result<()> {
        let choice = self.rng.u8(0..100);
        self.ledger.now += u64::from(self.rng.u8(0..3));
        self.clock.store(self.ledger.now, Ordering::Relaxed);
        let Some(db) = self.db.clone() else { return self.open_again() };
        let result = match choice {
            0..32 => self.put(&db),
            32..40 => self.delete(&db),
            40..56 => self.write_batch(&db),
            56..62 => self.sync(&db),
            62..73 => {
                self.executor.step();
                Ok(())
            }
            73 => self.add_runs(&db),
            74..78 => self.flush(&db),
            78..81 => {
                let (_, keyspace) = self.keyspace(&db);
                let (a, b) = (self.key(), self.key());
                match self.rng.bool() {
                    true => keyspace.compact_range(..),
                    false => keyspace.compact_range(a.clone().min(b.clone())..=a.max(b)),
                }
            }
            81..85 => self.create_keyspace(&db),
            85..87 => self.drop_keyspace(&db),
            87..91 => self.use_snapshots(&db),
            91..94 => self.ledger.check(&db),
            94 => self.rebuild_filters(&db),
            _ => {
                drop(db);
                return self.reopen();
            }
        };
        let synced = db.synced_seqno();
        assert!(std::mem::replace(&mut self.synced, synced) <= synced);
        self.ledger.promised(synced);
        result
    }

    /// An existing keyspace.
    fn keyspace(&mut self, db: &Db) -> (Incarnation, Keyspace) {
        let names = self.ledger.keyspace_names();
        let name = &names[self.rng.usize(0..names.len())];
        let keyspace = db.existing_keyspace(name).unwrap().expect("was created");
        (self.ledger.incarnation(name).unwrap(), keyspace)
    }

    fn key(&mut self) -> Vec<u8> {
        format!("k{:02}", self.rng.u8(0..40)).into_bytes()
    }

    /// A unique value. Some span several sectors.
    fn value(&mut self) -> Vec<u8> {
        self.values += 1;
        let filler = match self.rng.u8(0..6) {
            0 => self.rng.usize(600..1800),
            1 => self.rng.usize(200..600),
            _ => self.rng.usize(0..120),
        };
        let mut value = format!("{:06}:{:08x}", self.values, self.rng.u32(..)).into_bytes();
        value.resize(value.len() + filler, self.rng.u8(..));
        value
    }

    /// Whether the last value is merged into its key instead of replacing what it holds.
    fn merges(&self, keyspace: &Keyspace) -> bool {
        self.values.is_multiple_of(4) && keyspace.options().unwrap().merge_operator_name().is_some()
    }

    /// When the next value expires, if it does.
    fn deadline(&mut self) -> Option<u64> {
        (self.rng.u8(0..4) == 0).then(|| self.ledger.now + u64::from(self.rng.u8(0..40)))
    }

    fn put(&mut self, db: &Db) -> Result<()> {
        let (incarnation, keyspace) = self.keyspace(db);
        let (key, value) = (self.key(), self.value());
        let (result, effect) = match (self.merges(&keyspace), self.deadline()) {
            (true, _) => (keyspace.merge(&key, &value), Effect::Merge(value)),
            (false, None) => (keyspace.put(&key, &value), Effect::Put(value)),
            (false, Some(deadline)) => {
                (keyspace.put_with_expiry(&key, &value, time(deadline)), Effect::PutUntil(value, deadline))
            }
        };
        self.ledger.wrote(vec![(incarnation, key, effect)], &result);
        result.map(drop)
    }

    fn delete(&mut self, db: &Db) -> Result<()> {
        let (incarnation, keyspace) = self.keyspace(db);
        let (key, end) = (self.key(), self.key());
        let (result, effect) = match self.rng.bool() && key < end {
            true => (keyspace.delete_range(key.clone()..end.clone()), Effect::DeleteRange(end)),
            false => (keyspace.delete(&key), Effect::Delete),
        };
        self.ledger.wrote(vec![(incarnation, key, effect)], &result);
        result.map(drop)
    }

    /// The batch begins and ends with the same marker key, in two keyspaces if there are two, so
    /// that a partial batch shows.
    fn write_batch(&mut self, db: &Db) -> Result<()> {
        let mut batch = WriteBatch::new();
        let mut ops = Vec::<LedgerOp>::new();
        let marker = format!("marker{:03}", self.values % 50).into_bytes();
        let count = self.rng.usize(2..9);
        for i in 0..count {
            let (incarnation, keyspace) = self.keyspace(db);
            let is_marker = i == 0 || i + 1 == count;
            let key = if is_marker { marker.clone() } else { self.key() };
            if !is_marker && self.rng.u8(0..8) == 0 {
                // At most ten keys, and no marker.
                let end = [&key[..2], b"~"].concat();
                batch.delete_range_in(&keyspace, key.clone()..end.clone());
                ops.push((incarnation, key, Effect::DeleteRange(end)));
            } else if !is_marker && self.rng.u8(0..4) == 0 {
                batch.delete_in(&keyspace, &key);
                ops.push((incarnation, key, Effect::Delete));
            } else {
                let value = self.value();
                if !is_marker && self.merges(&keyspace) {
                    batch.merge_in(&keyspace, &key, &value);
                    ops.push((incarnation, key, Effect::Merge(value)));
                } else if !is_marker && let Some(deadline) = self.deadline() {
                    batch.put_with_expiry_in(&keyspace, &key, &value, time(deadline));
                    ops.push((incarnation, key, Effect::PutUntil(value, deadline)));
                } else {
                    batch.put_in(&keyspace, &key, &value);
                    ops.push((incarnation, key, Effect::Put(value)));
                }
            }
        }
        let sync = self.rng.u8(0..3) == 0;
        let result = db.write_with(batch, WriteOptions::new().sync(sync));
        self.ledger.wrote(ops, &result);
        if sync && let Ok(last) = result {
            self.ledger.promised(last);
        }
        result.map(drop)
    }

    /// A write that is durable when it is acknowledged; does nothing if the store is not open.
    pub fn write_synced(&mut self) -> Result<()> {
        let Some(db) = self.db.clone() else { return Ok(()) };
        self.put(&db)?;
        self.sync(&db)
    }

    fn sync(&mut self, db: &Db) -> Result<()> {
        db.sync()?;
        self.ledger.promised(db.last_seqno());
        Ok(())
    }

    /// Afterwards everything is in tables, and those are durable.
    fn flush(&mut self, db: &Db) -> Result<()> {
        db.flush()?;
        self.ledger.promised(db.last_seqno());
        Ok(())
    }

    /// Now and then, adds more runs to level 0 than compactions merge meanwhile.
    fn add_runs(&mut self, db: &Db) -> Result<()> {
        let runs = if self.rng.u8(0..4) == 0 { self.rng.u8(10..30) } else { 1 };
        for _ in 0..runs {
            self.put(db)?;
            self.flush(db)?;
        }
        Ok(())
    }

    fn rebuild_filters(&mut self, db: &Db) -> Result<()> {
        let (_, keyspace) = self.keyspace(db);
        let bits_per_key = f32::from(self.rng.u8(1..=24));
        keyspace.rebuild_filters(FilterPolicy::Bloom { bits_per_key }).map(drop)
    }

    fn create_keyspace(&mut self, db: &Db) -> Result<()> {
        let name = format!("ks{}", self.rng.u8(0..3));
        let result = match self.rng.bool() {
            true => db.keyspace(&name),
            false => db.keyspace_with(&name, self.keyspace_options()),
        };
        self.ledger.created(&name, &result);
        result.map(drop)
    }

    fn drop_keyspace(&mut self, db: &Db) -> Result<()> {
        let name = format!("ks{}", self.rng.u8(0..3));
        let result = db.drop_keyspace(&name);
        self.ledger.dropped(&name, &result);
        result.map(drop)
    }

    fn use_snapshots(&mut self, db: &Db) -> Result<()> {
        match self.rng.u8(0..4) {
            0..2 => self.snapshots.push((db.snapshot(), self.ledger.clone())),
            2 if !self.snapshots.is_empty() => {
                let at = self.rng.usize(0..self.snapshots.len());
                self.snapshots.swap_remove(at);
            }
            _ => {
                for (snapshot, taken) in &self.snapshots {
                    self.ledger.check_snapshot(db, snapshot, taken)?;
                }
            }
        }
        Ok(())
    }

    /// Closes the store cleanly, or as if the process had been killed. A history with a fault stays
    /// with its file system, so that the fault strikes.
    fn reopen(&mut self) -> Result<()> {
        self.snapshots.clear();
        let Some(db) = self.db.take() else { return Ok(()) };
        if self.rng.bool() && !matches!(self.trouble, Trouble::Fault(_)) {
            self.calls_before += self.fs.mutations();
            self.fs = self.fs.kill();
            self.arm();
            // Further calls by the old handle are not seen.
            self.note_numbers();
            drop(db);
        } else {
            self.close(db)?;
        }
        self.open_again()
    }

    fn close(&mut self, db: Db) -> Result<()> {
        db.close()?;
        self.ledger.promised(self.ledger.acknowledged());
        Ok(())
    }
}

/// Kinds of mutating calls: what is done, and to which sort of file.
#[derive(Default)]
pub struct CallKinds {
    all: BTreeSet<String>,
    struck: BTreeSet<String>,
}

impl CallKinds {
    /// Notes all calls of a history without trouble.
    pub fn note_all(&mut self, whole: &History) {
        // Not the removal of a file that is not there; and nobody is told how a sync began.
        let can_fail = |event: &&TraceEvent| event.ok && event.call != TracedCall::BeginSync;
        self.all.extend(whole.all_events().iter().filter(can_fail).map(kind));
    }

    /// Notes the call that trouble has struck: the first that failed in this history alone.
    pub fn note_struck(&mut self, whole: &History, struck: &History) {
        let (whole, struck) = (whole.all_events(), struck.all_events());
        let first = whole.iter().zip(&struck).find(|(whole, struck)| whole != struck);
        self.struck.extend(first.filter(|(_, event)| !event.ok).map(|(_, event)| kind(event)));
    }

    /// Expects that each kind was struck, unless few histories were run.
    pub fn check(&self) {
        if std::env::var("TAMIS_SEED").is_err() && count_from_env("TAMIS_SEEDS", u64::MAX) >= 100 {
            let missed: Vec<_> = self.all.difference(&self.struck).collect();
            assert!(missed.is_empty(), "{missed:?} of {} kinds were never struck", self.all.len());
            println!("{} kinds of calls were struck", self.all.len());
        }
    }
}

fn kind(event: &TraceEvent) -> String {
    let sort: String = event.name.chars().filter(|char| !char.is_ascii_digit()).collect();
    format!("{:?} {sort}", event.call)
}

/// Number of steps in the history of a seed: later seeds are for long runs.
pub fn steps(seed: u64) -> u64 {
    8 + seed % 32 + seed / 500 * 16
}

/// How a process ended.
#[derive(Clone, Copy)]
pub enum ProcessEnd {
    Kill,
    PowerCut,
}

/// Expects that the store in `fs` opens with everything up to `floor`, and takes writes that
/// survive a power cut.
pub fn check_reopens(fs: &SimFileSystem, ledger: &Ledger, floor: SeqNo, seed: u64) {
    let mut history = History::on(fs, ledger.clone(), !seed);
    history.open(floor).unwrap();
    history.step().unwrap();
    history.write_synced().unwrap();
    let crashed = history.fs.crash(seed);
    let ledger = history.end();
    reopen(&crashed, &ledger, ledger.durable(), seed);
}

/// Opens the store in `fs`, in which everything up to `floor` must be, and returns what was found.
pub fn reopen(fs: &SimFileSystem, ledger: &Ledger, floor: SeqNo, seed: u64) -> Ledger {
    let mut history = History::on(fs, ledger.clone(), seed);
    history.open(floor).unwrap();
    history.end()
}

fn numbers_in(fs: &SimFileSystem) -> BTreeSet<u64> {
    let names = fs.paths().into_iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    names.filter_map(|name| file_number(&name)).collect()
}
