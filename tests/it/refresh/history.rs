//! A store whose writer acts at random, step by step, and what it holds after each step.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::operator::Add;
use tamis::vfs::{FileLock, FileSystem, ReadableFile, SimFileSystem, Window, WritableFile};
use tamis::{
    Db, Executor, IngestMode, IngestOptions, KeyspaceOptions, Options, Result, SstWriter, SteppedExecutor, WriteBatch,
};

use crate::support::WAL_MODES;

pub(super) const DIR: &str = "/db";
/// A keyspace of counters.
const COUNTS: &str = "counts";
/// A keyspace without a log.
pub(super) const UNLOGGED: &str = "unlogged";

/// What a keyspace holds: keys and values, in a few letters each.
pub(super) type Map = BTreeMap<String, String>;

fn key_name(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

/// The number of a value and its length.
fn in_short(value: &[u8]) -> String {
    let number: [u8; 4] = value[..4].try_into().unwrap();
    format!("{}+{}", u32::from_be_bytes(number), value.len())
}

/// All keyspaces with a log, and the last sequence number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    /// Of the last write that is in the log.
    pub(super) logged: u64,
    /// Of the last write. The log may not count it yet.
    pub(super) seqno: u64,
    pub(super) keyspaces: BTreeMap<String, Map>,
}

impl State {
    /// Whether a store that shows `found` may be in this state.
    pub(super) fn is_shown_as(&self, found: &State) -> bool {
        (self.logged..=self.seqno).contains(&found.seqno) && self.keyspaces == found.keyspaces
    }

    fn write(&mut self, seqno: u64) {
        (self.logged, self.seqno) = (seqno, seqno);
    }
}

/// A file system for a writer that is killed: from the call on that the countdown ends with, every
/// change fails. A lock never keeps the next writer out.
#[derive(Clone, Debug)]
struct Mortal {
    fs: SimFileSystem,
    /// Changes that are left; 0 for any number.
    left: Arc<AtomicU64>,
}

const DEAD: u64 = u64::MAX;

impl Mortal {
    /// Fails if the writer is dead. The last change is made in part, or not at all.
    fn live(&self) -> io::Result<()> {
        match self.left.load(Ordering::Relaxed) {
            0 => Ok(()),
            DEAD => Err(io::Error::other("killed")),
            1 => {
                self.left.store(DEAD, Ordering::Relaxed);
                Err(io::Error::other("killed"))
            }
            left => {
                self.left.store(left - 1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

#[derive(Debug)]
struct NoLock;

impl FileLock for NoLock {}

struct MortalFile {
    file: Box<dyn WritableFile>,
    fs: Mortal,
}

impl WritableFile for MortalFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let was_dead = self.fs.left.load(Ordering::Relaxed) == DEAD;
        self.fs.live().inspect_err(|_| {
            if !was_dead {
                let _ = self.file.append(&bytes[..bytes.len() * 2 / 3]);
            }
        })?;
        self.file.append(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.live()?;
        self.file.sync()
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.fs.live()?;
        self.file.reserve(len)
    }

    fn prepare(&self, len: u64) -> io::Result<bool> {
        self.fs.live()?;
        self.file.prepare(len)
    }

    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        self.fs.live()?;
        self.file.window()
    }
}

impl FileSystem for Mortal {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.live()?;
        Ok(Box::new(MortalFile { file: self.fs.create(path)?, fs: self.clone() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        self.fs.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.live()?;
        self.fs.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.live()?;
        self.fs.hard_link(from, to)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.live()?;
        self.fs.sync_file(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.live()?;
        self.fs.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.live()?;
        self.fs.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.live()?;
        self.fs.sync_dir(dir)
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        Ok(Some(Box::new(NoLock)))
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}

/// A writer, and all states that a reader may see, oldest first.
pub(super) struct History {
    pub(super) fs: SimFileSystem,
    pub(super) rng: fastrand::Rng,
    pub(super) db: Option<Db>,
    mortal: Mortal,
    executor: Arc<SteppedExecutor>,
    pub(super) states: Vec<State>,
    /// What the keyspace without a log has held, with the number of its last write.
    pub(super) unlogged: Vec<(u64, Map)>,
    value: u32,
    names: u32,
}

impl History {
    pub(super) fn new(seed: u64) -> History {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/in")).unwrap();
        let mut history = History {
            mortal: Mortal { fs: fs.clone(), left: Arc::default() },
            fs,
            rng: fastrand::Rng::with_seed(seed),
            db: None,
            executor: Arc::default(),
            states: vec![State { keyspaces: [("default".to_owned(), Map::new())].into(), ..State::default() }],
            unlogged: vec![(0, Map::new())],
            value: 0,
            names: 0,
        };
        history.open().unwrap();
        for (name, options) in [
            (COUNTS, KeyspaceOptions::new().merge_operator(Add::LITTLE)),
            (UNLOGGED, KeyspaceOptions::new().wal(false)),
        ] {
            history.db().keyspace_with(name, options).unwrap();
            if name == COUNTS {
                history.add(|state| _ = state.keyspaces.insert(name.to_owned(), Map::new()));
            }
        }
        history
    }

    pub(super) fn db(&self) -> Db {
        self.db.clone().unwrap()
    }

    fn open(&mut self) -> Result<()> {
        let (rng, executor) = (&mut self.rng, Arc::new(SteppedExecutor::new()));
        let shared: Arc<dyn Executor> = executor.clone();
        let keyspace = KeyspaceOptions::new().separate_values([None, Some(300)][rng.usize(..2)]).block_size(512);
        let db = Options::new()
            .file_system(Arc::new(self.mortal.clone()))
            .executor(shared)
            .hash_seed(7)
            .memtable_size(4096 << rng.u32(0..3))
            .table_size(8192)
            .wal_mode(WAL_MODES[usize::from(rng.u8(0..4) == 0)])
            .default_keyspace(keyspace)
            .open(DIR)?;
        (self.db, self.executor) = (Some(db), executor);
        Ok(())
    }

    /// Adds the state that `change` makes of the last one.
    fn add(&mut self, change: impl FnOnce(&mut State)) {
        let mut state = self.states.last().unwrap().clone();
        change(&mut state);
        self.states.push(state);
    }

    fn key(&mut self) -> Vec<u8> {
        format!("k{:02}", self.rng.u8(0..40)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        self.value += 1;
        let len = if self.rng.u8(0..4) == 0 { 300 + self.rng.usize(0..300) } else { self.rng.usize(0..60) };
        [&self.value.to_be_bytes()[..], &vec![b'v'; len]].concat()
    }

    /// A name of a keyspace that takes ordinary writes.
    fn name(&mut self) -> String {
        let names: Vec<&String> = self.states.last().unwrap().keyspaces.keys().filter(|name| *name != COUNTS).collect();
        names[self.rng.usize(..names.len())].clone()
    }

    /// One step of the writer, which may be its end.
    pub(super) fn act(&mut self) {
        let (db, len) = (self.db(), self.states.len());
        let done = self.step(&db);
        drop(db);
        // Also when only background work has met the end.
        match self.mortal.left.load(Ordering::Relaxed) {
            DEAD => self.bury(len),
            _ => done.unwrap(),
        }
    }

    /// Has the writer killed at one of the next changes.
    fn doom(&mut self) {
        if self.mortal.left.load(Ordering::Relaxed) == 0 {
            self.mortal.left.store(self.rng.u64(1..25), Ordering::Relaxed);
        }
    }

    /// Leaves the writer as a kill leaves it. The states from position `len` on are those of a step
    /// that was not acknowledged: the next writer may have them, or not.
    fn bury(&mut self, len: usize) {
        // Nothing of it runs any more.
        std::mem::forget(self.db.take());
        self.mortal = Mortal { fs: self.fs.clone(), left: Arc::default() };
        self.open().unwrap();
        let found = contents(&self.db(), None).unwrap();
        let at = self.states.iter().rposition(|state| state.keyspaces == found.keyspaces);
        let at = at.filter(|at| *at + 1 >= len).expect("a state of the last step, or the one before");
        self.states.truncate(at + 1);
        // What was not in the log is lost, and numbers begin after what was.
        self.states.push(State { logged: found.seqno, ..found });
        let found = unlogged(&self.db(), None).unwrap();
        while self.unlogged.last().is_some_and(|(_, state)| *state != found) {
            self.unlogged.pop();
        }
        assert!(!self.unlogged.is_empty(), "a state that the keyspace without a log never had: {found:?}");
    }

    fn step(&mut self, db: &Db) -> Result<()> {
        match self.rng.u8(0..100) {
            0..35 => self.put(db),
            35..45 => self.merge(db),
            45..50 => self.delete_range(db),
            50..55 => self.put_unlogged(db),
            55..60 => self.ingest(db),
            60..64 => self.define(db),
            64..82 => {
                self.executor.step();
                Ok(())
            }
            82..87 => db.flush(),
            87..90 => db.sync(),
            90..92 => db.compact_range(..),
            92..94 => db.drop_keyspace("absent").map(drop),
            94..96 => {
                self.doom();
                Ok(())
            }
            _ => {
                let db = self.db.take().unwrap();
                db.close()?;
                self.open()
            }
        }
    }

    fn put(&mut self, db: &Db) -> Result<()> {
        let (mut batch, count) = (WriteBatch::new(), self.rng.u64(1..4));
        let mut next = self.states.last().unwrap().clone();
        next.write(db.last_seqno() + count);
        for _ in 0..count {
            let (name, key, value) = (self.name(), self.key(), self.value());
            let keyspace = db.keyspace(&name)?;
            let map = next.keyspaces.get_mut(&name).unwrap();
            match self.rng.u8(0..6) {
                0 => {
                    batch.delete_in(&keyspace, &key);
                    map.remove(&key_name(&key));
                }
                1 => {
                    let far = SystemTime::now() + Duration::from_secs(1 << 20);
                    batch.put_with_expiry_in(&keyspace, &key, &value, far);
                    map.insert(key_name(&key), in_short(&value));
                }
                _ => {
                    batch.put_in(&keyspace, &key, &value);
                    map.insert(key_name(&key), in_short(&value));
                }
            }
        }
        self.states.push(next);
        db.write(batch).map(drop)
    }

    fn merge(&mut self, db: &Db) -> Result<()> {
        let (key, amount) = (vec![b'c', self.rng.u8(0..4)], self.rng.u64(1..1000));
        let seqno = db.last_seqno() + 1;
        let is_put = self.rng.u8(0..8) == 0;
        self.add(|state| {
            state.write(seqno);
            let counts = state.keyspaces.get_mut(COUNTS).unwrap();
            let before = counts.get(&key_name(&key)).filter(|_| !is_put);
            let before: u64 = before.map_or(0, |count| count[1..].parse().unwrap());
            counts.insert(key_name(&key), format!("={}", before + amount));
        });
        let counts = db.keyspace(COUNTS)?;
        match is_put {
            true => counts.put(key, amount.to_le_bytes()).map(drop),
            false => counts.merge(key, amount.to_le_bytes()).map(drop),
        }
    }

    fn delete_range(&mut self, db: &Db) -> Result<()> {
        let (name, start, mut end) = (self.name(), self.key(), self.key());
        if end <= start {
            end = [&start[..], b"~"].concat();
        }
        let seqno = db.last_seqno() + 1;
        let range = key_name(&start)..key_name(&end);
        self.add(|state| {
            state.write(seqno);
            state.keyspaces.get_mut(&name).unwrap().retain(|key, _| !range.contains(key));
        });
        db.keyspace(&name)?.delete_range(start..end).map(drop)
    }

    fn put_unlogged(&mut self, db: &Db) -> Result<()> {
        let (key, value) = (self.key(), self.value());
        let seqno = db.last_seqno() + 1;
        let mut next = self.unlogged.last().unwrap().1.clone();
        next.insert(key_name(&key), in_short(&value));
        self.unlogged.push((seqno, next));
        self.add(|state| state.seqno = seqno);
        db.keyspace(UNLOGGED)?.put(key, value).map(drop)
    }

    fn ingest(&mut self, db: &Db) -> Result<()> {
        let (name, mut files) = (self.name(), Vec::new());
        let keyspace = db.keyspace(&name)?;
        let mut next = self.states.last().unwrap().clone();
        let (map, mut key) = (next.keyspaces.get_mut(&name).unwrap(), self.rng.u8(0..20));
        for _ in 0..self.rng.u32(1..3) {
            self.value += 1;
            let path = PathBuf::from(format!("/in/{}", self.value));
            let format = keyspace.sst_format()?;
            let mut writer = SstWriter::create_in(Arc::new(self.fs.clone()), &path, &format)?;
            for _ in 0..self.rng.u32(1..5) {
                let (name, value) = (format!("k{key:02}").into_bytes(), self.value.to_be_bytes().to_vec());
                writer.put(&name, &value)?;
                map.insert(key_name(&name), in_short(&value));
                key += self.rng.u8(1..5);
            }
            writer.finish()?;
            files.push(path);
        }
        // It counts what the log does not have.
        next.write(db.last_seqno() + 1);
        self.states.push(next);
        let mode = [IngestMode::Link, IngestMode::Copy, IngestMode::Move][self.rng.usize(..3)];
        keyspace.ingest(files, IngestOptions::new().mode(mode)).map(drop)
    }

    /// Creates, drops or changes a keyspace.
    fn define(&mut self, db: &Db) -> Result<()> {
        let name = self.name();
        match self.rng.u8(0..4) {
            0 if name != "default" => {
                self.add(|state| _ = state.keyspaces.remove(&name));
                db.drop_keyspace(&name).map(drop)
            }
            1 => {
                let separate = [None, Some(100)][self.rng.usize(..2)];
                db.keyspace_with(&name, KeyspaceOptions::new().separate_values(separate)).map(drop)
            }
            _ => {
                // Names come back.
                self.names = (self.names + 1) % 4;
                let name = format!("late{}", self.names);
                self.add(|state| _ = state.keyspaces.entry(name.clone()).or_default());
                db.keyspace(&name)?;
                // A write right after it is the first to name it.
                self.put(db)
            }
        }
    }
}

/// What a store holds in the keyspaces with a log, now or as of a snapshot.
pub(super) fn contents(db: &Db, snapshot: Option<&tamis::Snapshot>) -> Result<State> {
    let mut state = State { seqno: snapshot.map_or_else(|| db.last_seqno(), |of| of.seqno()), ..State::default() };
    for name in db.keyspace_names()?.into_iter().filter(|name| name != UNLOGGED) {
        let Some(keyspace) = db.existing_keyspace(&name)? else { continue };
        let map = match snapshot {
            Some(snapshot) => pairs(&name, snapshot.keyspace(&keyspace).iter())?,
            None => pairs(&name, keyspace.iter())?,
        };
        state.keyspaces.insert(name, map);
    }
    Ok(state)
}

/// What it holds in the keyspace without a log.
pub(super) fn unlogged(db: &Db, snapshot: Option<&tamis::Snapshot>) -> Result<Map> {
    let Some(keyspace) = db.existing_keyspace(UNLOGGED)? else { return Ok(Map::new()) };
    match snapshot {
        Some(snapshot) => pairs(UNLOGGED, snapshot.keyspace(&keyspace).iter()),
        None => pairs(UNLOGGED, keyspace.iter()),
    }
}

fn pairs(name: &str, iter: tamis::Iter) -> Result<Map> {
    iter.map(|entry| entry.map(|(key, value)| (key_name(&key), shown(name, &value)))).collect()
}

/// A value of a keyspace, in a few letters.
pub(super) fn shown(keyspace: &str, value: &[u8]) -> String {
    match keyspace {
        COUNTS => format!("={}", u64::from_le_bytes(value.try_into().unwrap())),
        _ => in_short(value),
    }
}
