//! Power cuts, kills and failures at every call of a history with ingests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Db, Executor, IngestMode, IngestOptions, Result, SstWriter, SteppedExecutor};

use super::check_sound;
use crate::support::{Scene, WAL_MODES, count_from_env, for_each_seed, stepped_options};

type Contents = BTreeMap<u8, u32>;

/// A store, and what it held after each of its writes.
struct History {
    rng: fastrand::Rng,
    fs: SimFileSystem,
    store: Option<(Db, Arc<SteppedExecutor>)>,
    states: Vec<Contents>,
    /// Position of the last state that is durable.
    durable: usize,
    /// Whether the last state is that of a write that has not returned.
    is_unfinished: bool,
    value: u32,
    files: u32,
}

impl History {
    fn new(seed: u64) -> History {
        History {
            rng: fastrand::Rng::with_seed(seed),
            fs: super::file_system(),
            store: None,
            states: vec![Contents::new()],
            durable: 0,
            is_unfinished: false,
            value: 0,
            files: 0,
        }
    }

    fn open(&mut self) -> Result<()> {
        let (options, executor) = stepped_options(&self.fs);
        let mode = WAL_MODES[self.rng.usize(..2)];
        let db = options.memtable_size(4096).table_size(4096).wal_mode(mode).open("/db")?;
        self.store = Some((db, executor));
        Ok(())
    }

    /// Writes files with random keys that share none, sometimes beside one with range deletes.
    fn write_files(&mut self, db: &Db, next: &mut Contents) -> Result<Vec<PathBuf>> {
        let (mut files, mut key) = (Vec::new(), self.rng.u8(..30));
        if self.rng.bool() {
            self.files += 1;
            let path = PathBuf::from(format!("/in/{}", self.files));
            let mut writer = SstWriter::create_in(Arc::new(self.fs.clone()), &path, &db.sst_format()?)?;
            let mut start = self.rng.u8(..30);
            for _ in 0..self.rng.u32(1..4) {
                let end = start + self.rng.u8(1..12);
                writer.delete_range([start; 40]..[end; 40])?;
                next.retain(|key, _| !(start..end).contains(key));
                start += self.rng.u8(..16);
            }
            writer.finish()?;
            files.push(path);
        }
        for _ in 0..self.rng.u32(1..4) {
            self.files += 1;
            let path = PathBuf::from(format!("/in/{}", self.files));
            let mut writer = SstWriter::create_in(Arc::new(self.fs.clone()), &path, &db.sst_format()?)?;
            for _ in 0..self.rng.u32(1..5) {
                self.value += 1;
                if self.rng.u8(..4) == 0 {
                    writer.delete([key; 40])?;
                    next.remove(&key);
                } else {
                    writer.put([key; 40], self.value.to_le_bytes())?;
                    next.insert(key, self.value);
                }
                key += self.rng.u8(1..6);
            }
            writer.finish()?;
            files.push(path);
        }
        self.rng.shuffle(&mut files);
        Ok(files)
    }

    fn step(&mut self) -> Result<()> {
        let Some((db, executor)) = self.store.take() else { return self.open() };
        let done = self.act(&db, &executor);
        if done.is_err() || self.rng.u8(..40) > 0 {
            self.store = Some((db, executor));
            return done;
        }
        // Reopens.
        db.close()?;
        self.durable = self.states.len() - 1;
        Ok(())
    }

    fn act(&mut self, db: &Db, executor: &SteppedExecutor) -> Result<()> {
        let mut next = self.states.last().unwrap().clone();
        match self.rng.u8(..20) {
            0 => {
                db.flush()?;
                self.durable = self.states.len() - 1;
            }
            1 => {
                db.sync()?;
                self.durable = self.states.len() - 1;
            }
            2 => db.compact_range(..)?,
            3..6 => drop(executor.step()),
            6..9 => {
                let files = self.write_files(db, &mut next)?;
                let mode = [IngestMode::Link, IngestMode::Copy, IngestMode::Move][self.rng.usize(..3)];
                self.states.push(next);
                self.is_unfinished = true;
                db.ingest(files, IngestOptions::new().mode(mode))?;
                self.is_unfinished = false;
                self.durable = self.states.len() - 1;
            }
            kind => {
                let key = self.rng.u8(..60);
                self.value += 1;
                let end = key + self.rng.u8(1..9);
                match kind {
                    9 => next.retain(|other, _| !(key..end).contains(other)),
                    10..13 => drop(next.remove(&key)),
                    _ => drop(next.insert(key, self.value)),
                }
                self.states.push(next);
                self.is_unfinished = true;
                match kind {
                    9 => db.delete_range([key; 40]..[end; 40])?,
                    10..13 => db.delete([key; 40])?,
                    _ => db.put([key; 40], [&self.value.to_le_bytes()[..], &[7; 60]].concat())?,
                };
                self.is_unfinished = false;
            }
        }
        Ok(())
    }

    /// Position of the last state that the store must have if nothing was lost.
    fn acknowledged(&self) -> usize {
        self.states.len() - 1 - usize::from(self.is_unfinished)
    }

    /// Expects one of the states from position `floor` on in the store in `fs`.
    #[track_caller]
    fn check(&self, fs: &SimFileSystem, floor: usize) {
        let (options, _) = stepped_options(fs);
        let read_only = stepped_options(fs).0.open_read_only("/db").map(|db| contents(&db).unwrap());
        let db = options.memtable_size(4096).open("/db").unwrap();
        let found = contents(&db).unwrap();
        assert!(read_only.map_or(true, |contents| contents == found), "a read-only store has the same");
        let at = self.states[floor..].iter().rposition(|state| *state == found);
        assert!(at.is_some(), "{found:?} is none of {:?}", &self.states[floor..]);
        db.put("more", "1").unwrap();
        db.close().unwrap();
        check_sound(fs);
        let tables = |kind: &str| fs.paths().iter().filter(|path| path.to_str().unwrap().ends_with(kind)).count();
        let again = stepped_options(fs).0.open("/db").unwrap();
        let named: usize = again.stats().keyspaces[0].levels.iter().map(|level| level.tables.len()).sum();
        let ranges = usize::try_from(again.stats().keyspaces[0].range_deletes.tables).unwrap();
        assert_eq!(tables(".sst"), named + ranges, "opening has removed all strays");
    }
}

fn contents(db: &Db) -> Result<Contents> {
    let number = |value: &[u8]| u32::from_le_bytes(value[..4].try_into().unwrap());
    let mut found = Contents::new();
    for entry in db.iter() {
        let (key, value) = entry?;
        found.insert(key[0], number(&value));
    }
    for (key, value) in &found {
        assert_eq!(db.get([*key; 40])?.map(|value| number(&value)), Some(*value));
    }
    Ok(found)
}

const STEPS: usize = 40;

/// A history until something fails.
fn run(seed: u64, arm: impl Fn(&SimFileSystem)) -> (History, Result<()>) {
    let mut history = History::new(seed);
    arm(&history.fs);
    for _ in 0..STEPS {
        let result = history.step();
        if result.is_err() || history.fs.crash_point().is_some() {
            return (history, result);
        }
        if let Some((db, _)) = &history.store {
            assert_eq!(contents(db).unwrap(), *history.states.last().unwrap());
        }
    }
    (history, Ok(()))
}

#[test]
fn a_power_cut_or_a_kill_at_any_call_leaves_a_prefix() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 12), |seed| {
        let (history, result) = run(seed, |_| ());
        result.unwrap();
        let calls = history.fs.mutations();
        for call in 1..=calls {
            let _scene = Scene(format!("the power went at call {call} of {calls}"));
            let (history, _) = run(seed, |fs| fs.crash_at(Some(call)));
            // Identities are random, and so are lengths of records: a history may be shorter.
            let Some(point) = history.fs.crash_point() else { continue };
            if call % 4 == 0 {
                history.check(&point, history.acknowledged());
            } else {
                history.check(&point.crash(call ^ seed << 32), history.durable);
            }
        }
    });
}

#[test]
fn an_ingest_that_fails_at_any_call_is_there_or_not() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 12), |seed| {
        let (history, result) = run(seed, |_| ());
        result.unwrap();
        let calls = history.fs.mutations();
        for call in 1..=calls {
            let _scene = Scene(format!("call {call} of {calls} failed"));
            let mode =
                [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite][usize::try_from((call + seed) % 3).unwrap()];
            let fault = Fault { at: call, mode, sticky: call % 5 == 0 };
            let (history, result) = run(seed, |fs| fs.set_fault(Some(fault)));
            history.fs.set_fault(None);
            if let Some((db, _)) = &history.store {
                let found = contents(db).unwrap();
                assert!(history.states[history.acknowledged()..].contains(&found), "{result:?}");
            }
            history.check(&history.fs.kill(), history.acknowledged());
            history.check(&history.fs.crash(call), history.durable);
        }
    });
}
