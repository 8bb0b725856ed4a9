//! Lives of a store that end by a kill or a power cut, one after the other, over keyspaces with
//! every combination of merge operator, separated values and deadlines.
//!
//! Memtables, tables and blocks are tiny. While background work runs, writes happen between its
//! changes to files; a reader beside the writer refreshes at any change, and images of the files
//! are opened as a kill or a power cut at that change would leave them. What is found must be, in
//! all keyspaces, by every way to read and after further compactions, what one prefix of the writes
//! made.

mod model;
mod mortal;

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tamis::operator::{Add, Append};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{
    Db, Executor, FilterPolicy, IngestMode, IngestOptions, Keyspace, KeyspaceOptions, Options, Result, Snapshot,
    SstWriter, ThreadPool, WriteBatch, WriteOptions,
};

use crate::support::{count_from_env, for_each_seed, stepped_options, tiny_options};
use model::{Affine, Effect, Kind, Map, Model, Op, Operator, Reads, affine, in_short, read_all};
use mortal::Mortal;

const DIR: &str = "/db";

const fn kind(name: &'static str, operator: Operator, separate: Option<u32>, ttl: Option<u64>) -> Kind {
    Kind { name, operator, separate, ttl }
}

/// The keyspaces of a store. What they are is drawn anew for each seed.
const KINDS: [Kind; 12] = [
    kind("default", Operator::None, None, None),
    kind("append", Operator::Append, None, None),
    kind("append 16", Operator::Append, Some(16), None),
    kind("append 48", Operator::Append, Some(48), None),
    kind("append 500", Operator::Append, Some(500), None),
    kind("append ttl", Operator::Append, None, Some(150)),
    kind("append 48 ttl", Operator::Append, Some(48), Some(100)),
    kind("append 500 ttl", Operator::Append, Some(500), Some(1 << 40)),
    kind("affine", Operator::Affine, None, None),
    kind("affine 48 ttl", Operator::Affine, Some(48), Some(200)),
    kind("add", Operator::Add, None, Some(100)),
    kind("separate 48", Operator::None, Some(48), None),
];

fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// How often things happen, drawn for each seed.
struct Habits {
    /// The keyspace that gets most of the writes.
    favourite: usize,
    keys: u8,
    /// Percentage of writes that are merges.
    merges: u8,
    /// One change to a file in this many has a call-back do something.
    hooks: u32,
    long_values: bool,
    /// Long operands over values in value files, in few flushes: what moves down is much larger
    /// than the pointers below, so that compactions run in stages.
    is_heavy: bool,
    deletes: u8,
    /// One step in this many ends the writer, or dooms it.
    mortality: u32,
}

/// A store, its writes, and who looks at it.
struct World {
    kinds: Vec<Kind>,
    /// Whether background work has threads: then nothing is the same twice.
    threads: Option<Arc<dyn Executor>>,
    fs: Mutex<Mortal>,
    rng: Mutex<fastrand::Rng>,
    model: Mutex<Model>,
    db: Mutex<Option<Db>>,
    reader: Mutex<Option<Db>>,
    executor: Mutex<Arc<dyn Executor>>,
    snapshots: Mutex<Vec<(Snapshot, u64)>>,
    clock: Arc<AtomicU64>,
    habits: Habits,
    /// Held by the thread that looks at the store beside the writer, and between two writers.
    looking: Mutex<()>,
    /// Whether what runs now holds no lock, so that others may write.
    may_write: AtomicBool,
    /// Writes that a call-back may still make before the work that it interrupts ends.
    writes_left: AtomicU32,
    values: AtomicU32,
    images: AtomicU64,
    refreshes: AtomicU64,
    operations: AtomicU64,
    lives: AtomicU64,
}

/// What a run of a seed has done.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    lives: u64,
    operations: u64,
    images: u64,
    refreshes: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.lives += other.lives;
        self.operations += other.operations;
        self.images += other.images;
        self.refreshes += other.refreshes;
    }
}

fn keyspace_options(kind: &Kind, rng: &mut fastrand::Rng) -> KeyspaceOptions {
    let options = KeyspaceOptions::new()
        .block_size(256 << rng.u32(0..2))
        // They have tests of their own, and take a quarter of the time here.
        .filter(if rng.u8(0..8) == 0 { FilterPolicy::DEFAULT } else { FilterPolicy::None })
        .separate_values(kind.separate)
        .ttl(kind.ttl.map(Duration::from_millis));
    match kind.operator {
        Operator::None => options,
        Operator::Append => options.merge_operator(Append),
        Operator::Add => options.merge_operator(Add::LITTLE),
        Operator::Affine => options.merge_operator(Affine),
    }
}

impl World {
    fn new(seed: u64, is_threaded: bool) -> Arc<World> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/in")).unwrap();
        let is_heavy = rng.u8(0..3) > 0;
        let mut kinds = KINDS.to_vec();
        kinds.retain(|kind| !is_heavy || kind.operator != Operator::None && kind.separate.is_some());
        rng.shuffle(&mut kinds);
        kinds.truncate(1 + rng.usize(0..if is_heavy { 2 } else { 4 }));
        let habits = Habits {
            favourite: rng.usize(0..kinds.len()),
            is_heavy,
            keys: if is_heavy { 24 + rng.u8(0..40) } else { [3, 6, 12, 24][rng.usize(0..4)] },
            merges: [20, 40, 60, 80][rng.usize(0..4)],
            hooks: [2, 5, 20, 100][rng.usize(0..4)],
            long_values: rng.bool(),
            deletes: [2, 10, 25][rng.usize(0..3)],
            mortality: [20, 60, 200, 500][rng.usize(0..4)],
        };
        let (model, db, reader, snapshots) = Default::default();
        let executor: Arc<dyn Executor> = stepped_options(&fs).1;
        let (looking, may_write, writes_left, values, images, refreshes, operations, lives) = Default::default();
        let threads = is_threaded.then(|| Arc::new(ThreadPool::new(3)) as Arc<dyn Executor>);
        Arc::new(World {
            kinds,
            threads,
            fs: Mutex::new(Mortal::new(&fs)),
            rng: Mutex::new(rng),
            model,
            db,
            reader,
            executor: Mutex::new(executor),
            snapshots,
            clock: Arc::new(AtomicU64::new(1000)),
            habits,
            looking,
            may_write,
            writes_left,
            values,
            images,
            refreshes,
            operations,
            lives,
        })
    }

    fn draw<R>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> R) -> R {
        draw(&mut self.rng.lock())
    }

    fn chance(&self, of: u32) -> bool {
        self.draw(|rng| rng.u32(0..of)) == 0
    }

    fn acknowledged(&self) -> u64 {
        self.model.lock().acknowledged
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn options(&self, fs: &SimFileSystem) -> (Options, Arc<dyn Executor>) {
        let (options, executor) = self.draw(|rng| tiny_options(fs, rng));
        let options = if self.habits.is_heavy { options.table_size(4096) } else { options };
        let clock = Arc::clone(&self.clock);
        let options = options.clock(move || time(clock.load(Ordering::Relaxed))).merge_operator(Affine);
        (options, executor)
    }

    fn db(&self) -> Db {
        self.db.lock().clone().expect("the store is open")
    }

    fn keyspace(db: &Db, kind: &Kind) -> Result<Keyspace> {
        Ok(db.existing_keyspace(kind.name)?.unwrap_or_else(|| panic!("{} is missing", kind.name)))
    }

    /// Opens the store as the writer. Fails if the writer dies meanwhile.
    fn open(self: &Arc<World>) -> Result<()> {
        let mortal = self.fs.lock().clone();
        let (options, executor) = self.options(&mortal.fs);
        let executor = self.threads.clone().unwrap_or(executor);
        let options = options.executor(Arc::clone(&executor));
        let db = options.file_system(Arc::new(mortal.clone())).open(DIR)?;
        for kind in &self.kinds {
            let options = self.draw(|rng| keyspace_options(kind, rng));
            db.keyspace_with(kind.name, options)?;
        }
        *self.executor.lock() = executor;
        *self.db.lock() = Some(db);
        let world = Arc::downgrade(self);
        mortal.set_hook(Some(Box::new(move |path| {
            if let Some(world) = world.upgrade() {
                world.interrupt(path);
            }
        })));
        Ok(())
    }

    /// Checks what a store shows against the state after its last write, which it returns.
    fn check(&self, db: &Db, who: &str, floor: u64) -> Result<u64> {
        let seqno = db.last_seqno();
        {
            let model = self.model.lock();
            assert!((floor..=model.last()).contains(&seqno), "{who}: {seqno} of {floor}..={}", model.last());
            assert!(model.is_end(seqno), "{who}: a part of a write, up to {seqno}");
        }
        self.check_at(&Reads::Db(db), who, seqno)?;
        Ok(seqno)
    }

    fn universe(&self) -> Vec<Vec<u8>> {
        (0..self.habits.keys).map(key_of).collect()
    }

    fn check_at(&self, reads: &Reads<'_>, who: &str, seqno: u64) -> Result<()> {
        let universe = self.universe();
        for (at, kind) in self.kinds.iter().enumerate() {
            let (Reads::Db(db) | Reads::Snapshot(db, _)) = reads;
            let Some(keyspace) = db.existing_keyspace(kind.name)? else {
                assert!(
                    self.model.lock().map(&self.kinds, at, seqno, self.now()).is_empty(),
                    "{who}: {} is gone",
                    kind.name
                );
                continue;
            };
            let expected = self.model.lock().map(&self.kinds, at, seqno, self.now());
            for (way, found) in read_all(reads, &keyspace, &universe, self.draw(|rng| rng.u8(..)))? {
                if !found.iter().map(|(key, value)| (key, value)).eq(&expected) {
                    self.report(who, way, at, seqno, &found, &expected);
                }
            }
        }
        Ok(())
    }

    fn report(&self, who: &str, way: &str, at: usize, seqno: u64, found: &[(Vec<u8>, Vec<u8>)], expected: &Map) -> ! {
        let found: Map = found.iter().cloned().collect();
        let keys = self.universe();
        let mut lines = Vec::new();
        for key in &keys {
            if found.get(key) != expected.get(key) {
                let value = |map: &Map| map.get(key).map_or("nothing".to_owned(), |value| in_short(value));
                lines.push(format!(
                    "{}: found {}, expected {}; {}",
                    key.escape_ascii(),
                    value(&found),
                    value(expected),
                    self.model.lock().history(at, key)
                ));
            }
        }
        panic!(
            "{who}, {way} of {:?} at write {seqno}, time {}:\n{}",
            self.kinds[at].name,
            self.now(),
            lines.join("\n")
        );
    }

    /// Called before each change that the writer makes to its files.
    fn interrupt(self: &Arc<World>, path: &Path) {
        if !self.chance(self.habits.hooks) {
            return;
        }
        let Some(_looking) = self.looking.try_lock() else { return };
        let is_table = path.extension().is_some_and(|extension| extension == "sst" || extension == "val");
        match self.draw(|rng| rng.u32(0..100)) {
            0 => aside(|| self.look_at_image()),
            1..8 => aside(|| self.refresh()),
            _ if is_table && self.threads.is_none() && self.may_write.load(Ordering::Relaxed) => {
                let left = self.writes_left.load(Ordering::Relaxed);
                if left > 0 && self.has_room() {
                    self.writes_left.store(left - 1, Ordering::Relaxed);
                    self.may_write.store(false, Ordering::Relaxed);
                    let db = self.db();
                    aside(|| self.forgive(self.write(&db)));
                    self.may_write.store(true, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }

    /// Whether a write need not wait for the work that it interrupts: there is no other sealed
    /// memtable, and level 0 is short.
    fn has_room(&self) -> bool {
        let paths = self.fs.lock().fs.paths();
        let count = |kind: &str| paths.iter().filter(|path| path.extension().is_some_and(|of| of == kind)).count();
        count("wal") <= 1 && count("sst") <= 12
    }

    /// Errors are expected of a dead writer alone.
    fn forgive(&self, result: Result<()>) {
        if !self.fs.lock().is_dead() {
            result.unwrap();
        }
    }

    /// Opens what a kill or a power cut at this moment would leave.
    fn look_at_image(&self) {
        self.images.fetch_add(1, Ordering::Relaxed);
        let is_kill = self.draw(fastrand::Rng::bool);
        let (kept, durable) = {
            let model = self.model.lock();
            (model.acknowledged, model.durable)
        };
        let fs = self.fs.lock().fs.clone();
        let (image, floor) =
            if is_kill { (fs.kill(), kept) } else { (fs.crash(self.draw(|rng| rng.u64(..))), durable) };
        let (options, executor) = self.options(&image);
        let who = if is_kill { "an image of a kill" } else { "an image of a power cut" };
        let db = options.open(DIR).unwrap();
        self.check(&db, who, floor).unwrap();
        for _ in 0..self.draw(|rng| rng.u32(0..12)) {
            executor.step();
        }
        self.check(&db, &format!("{who}, after a while"), floor).unwrap();
        if self.draw(fastrand::Rng::bool) {
            for kind in &self.kinds {
                if let Some(keyspace) = db.existing_keyspace(kind.name).unwrap() {
                    keyspace.compact_range(..).unwrap();
                }
            }
            self.check(&db, &format!("{who}, after compactions"), floor).unwrap();
        }
    }

    /// Has the reader follow the writer, and checks what it sees.
    fn refresh(&self) {
        self.refreshes.fetch_add(1, Ordering::Relaxed);
        let known = self.reader.lock().clone();
        let floor = self.acknowledged();
        let reader = match known {
            Some(reader) => {
                let before = reader.last_seqno();
                if self.chance(4) {
                    self.check(&reader, "a reader before it refreshes", 0).unwrap();
                }
                let seqno = reader.refresh().unwrap();
                assert!(seqno >= before && seqno >= floor, "a reader at {seqno}, after {before} of {floor}");
                reader
            }
            None => {
                let fs = self.fs.lock().fs.clone();
                match self.options(&fs).0.open_read_only(DIR) {
                    Err(tamis::Error::NotFound(_)) => return,
                    reader => reader.unwrap(),
                }
            }
        };
        self.check(&reader, "a reader", floor).unwrap();
        *self.reader.lock() = (!self.chance(12)).then_some(reader);
    }

    fn value(&self, operator: Operator) -> Vec<u8> {
        let number = self.values.fetch_add(1, Ordering::Relaxed);
        let Habits { long_values: long, is_heavy, .. } = self.habits;
        self.draw(|rng| {
            let filler = match rng.u8(0..8) {
                0..6 if is_heavy => rng.usize(200..1400),
                0 if long => rng.usize(300..900),
                1 => rng.usize(100..300),
                2 | 3 => rng.usize(30..60),
                _ => rng.usize(0..20),
            };
            match operator {
                Operator::Add => u64::from(number).to_le_bytes().to_vec(),
                Operator::Affine => affine(rng.u64(..) | 1, rng.u64(..), filler.min(1200)),
                Operator::None | Operator::Append => {
                    let mut value = format!("<{number}>").into_bytes();
                    value.resize(value.len() + filler, b'.');
                    value
                }
            }
        })
    }

    fn pick(&self) -> usize {
        self.draw(|rng| if rng.bool() { rng.usize(0..self.kinds.len()) } else { self.habits.favourite })
    }

    /// Notes a write, makes it, and notes that it was acknowledged.
    fn commit(&self, ops: Vec<(u64, Op)>, count: u64, sync: bool, make: impl FnOnce() -> Result<u64>) -> Result<()> {
        self.operations.fetch_add(count, Ordering::Relaxed);
        let last = self.model.lock().write(ops, count);
        assert_eq!(make()?, last);
        let mut model = self.model.lock();
        model.acknowledged = last;
        if sync {
            model.durable = last;
        }
        Ok(())
    }

    fn write(&self, db: &Db) -> Result<()> {
        let count = self.draw(|rng| if rng.u8(0..4) == 0 { rng.u64(2..6) } else { 1 });
        let (mut batch, mut ops, now) = (WriteBatch::new(), Vec::new(), self.now());
        for at in 0..count {
            let which = self.pick();
            let kind = &self.kinds[which];
            let keyspace = World::keyspace(db, kind)?;
            let key = self.draw(|rng| key_of(rng.u8(0..self.habits.keys)));
            let choice = self.draw(|rng| rng.u8(0..100));
            if choice < self.habits.deletes {
                if self.draw(|rng| rng.u8(0..3)) == 0 {
                    let width = self.draw(|rng| rng.u8(1..6));
                    let keys: Vec<Vec<u8>> = self.universe().into_iter().filter(|other| *other >= key).collect();
                    let end = keys.get(usize::from(width)).cloned();
                    let deleted = keys.into_iter().filter(|key| end.as_ref().is_none_or(|end| key < end));
                    ops.extend(deleted.map(|key| (at, (which, key, Effect::Delete))));
                    match end {
                        Some(end) => batch.delete_range_in(&keyspace, key..end),
                        None => batch.delete_range_in(&keyspace, key..),
                    }
                } else {
                    batch.delete_in(&keyspace, &key);
                    ops.push((at, (which, key, Effect::Delete)));
                }
                continue;
            }
            let value = self.value(kind.operator);
            let is_merge = kind.operator != Operator::None && self.draw(|rng| rng.u8(0..100)) < self.habits.merges;
            if is_merge {
                batch.merge_in(&keyspace, &key, &value);
                ops.push((at, (which, key, Effect::Merge(value))));
            } else if choice > 92 {
                let deadline = now + self.draw(|rng| rng.u64(0..200));
                batch.put_with_expiry_in(&keyspace, &key, &value, time(deadline));
                ops.push((at, (which, key, Effect::PutUntil(value, deadline))));
            } else {
                batch.put_in(&keyspace, &key, &value);
                let effect = match kind.ttl {
                    Some(ttl) => Effect::PutUntil(value, now + ttl),
                    None => Effect::Put(value),
                };
                ops.push((at, (which, key, effect)));
            }
        }
        let sync = self.chance(12);
        self.commit(ops, count, sync, || db.write_with(batch, WriteOptions::new().sync(sync)))
    }

    fn ingest(&self, db: &Db) -> Result<()> {
        let which = self.pick();
        let kind = &self.kinds[which];
        let keyspace = World::keyspace(db, kind)?;
        let (format, fs) = (keyspace.sst_format()?, self.fs.lock().fs.clone());
        let new_path = || PathBuf::from(format!("/in/{}", self.values.fetch_add(1, Ordering::Relaxed)));
        let (mut files, mut ops, mut count) = (Vec::new(), Vec::new(), 0);
        if self.chance(4) {
            let path = new_path();
            let mut writer = SstWriter::create_in(Arc::new(fs.clone()), &path, &format)?;
            let from = self.draw(|rng| rng.u8(0..self.habits.keys));
            let to = from + self.draw(|rng| rng.u8(1..6));
            writer.delete_range(key_of(from)..key_of(to))?;
            writer.finish()?;
            ops.extend((from..to.min(self.habits.keys)).map(|key| (count, (which, key_of(key), Effect::Delete))));
            count += 1;
            files.push(path);
        }
        if count == 0 || self.draw(fastrand::Rng::bool) {
            let path = new_path();
            let mut writer = SstWriter::create_in(Arc::new(fs.clone()), &path, &format)?;
            let mut key = self.draw(|rng| rng.u8(0..self.habits.keys));
            while key < self.habits.keys {
                let value = self.value(kind.operator);
                let effect = match self.draw(|rng| rng.u8(0..10)) {
                    0 => {
                        writer.delete(key_of(key))?;
                        Effect::Delete
                    }
                    1..5 if kind.operator != Operator::None => {
                        writer.merge(key_of(key), &value)?;
                        Effect::Merge(value)
                    }
                    5 => {
                        let deadline = self.now() + self.draw(|rng| rng.u64(0..200));
                        writer.put_with_expiry(key_of(key), &value, time(deadline))?;
                        Effect::PutUntil(value, deadline)
                    }
                    _ => {
                        writer.put(key_of(key), &value)?;
                        Effect::Put(value)
                    }
                };
                ops.push((count, (which, key_of(key), effect)));
                if self.chance(3) {
                    break;
                }
                key += self.draw(|rng| rng.u8(1..4));
            }
            writer.finish()?;
            count += 1;
            files.push(path);
        }
        let mode = [IngestMode::Link, IngestMode::Copy, IngestMode::Move][self.draw(|rng| rng.usize(0..3))];
        let ingest = || keyspace.ingest(files, IngestOptions::new().mode(mode)).map(|info| info.seqno);
        self.commit(ops, count, false, ingest)
    }

    /// Runs work that holds no lock, so that writes may come in between.
    fn interruptible<R>(&self, work: impl FnOnce() -> R) -> R {
        self.writes_left.store(self.draw(|rng| rng.u32(0..6)), Ordering::Relaxed);
        self.may_write.store(true, Ordering::Relaxed);
        let result = work();
        self.may_write.store(false, Ordering::Relaxed);
        result
    }

    fn step(self: &Arc<World>) -> Result<()> {
        if self.threads.is_none() && self.chance(3) {
            self.clock.fetch_add(self.draw(|rng| rng.u64(0..8)), Ordering::Relaxed);
        }
        let db = self.db();
        if self.chance(self.habits.mortality) {
            match self.draw(|rng| rng.u8(0..4)) {
                0 => {
                    self.snapshots.lock().clear();
                    *self.db.lock() = None;
                    db.close()?;
                    let mut model = self.model.lock();
                    model.durable = model.acknowledged;
                }
                1 => self.fs.lock().kill(),
                _ => self.fs.lock().doom(self.draw(|rng| rng.u64(1..60))),
            }
            return Ok(());
        }
        let done = match self.draw(|rng| rng.u8(0..100)) {
            0..60 => self.write(&db).inspect(|()| self.work_a_little()),
            60..76 => {
                let executor = Arc::clone(&*self.executor.lock());
                self.interruptible(|| executor.step());
                Ok(())
            }
            76..82 if self.habits.is_heavy && !self.chance(10) => Ok(()),
            76..82 => self.interruptible(|| db.flush()),
            82..85 if self.habits.is_heavy && !self.chance(20) => self.write(&db),
            82..85 => {
                let keyspace = World::keyspace(&db, &self.kinds[self.pick()])?;
                let from = self.draw(|rng| key_of(rng.u8(0..self.habits.keys)));
                match self.draw(fastrand::Rng::bool) {
                    true => self.interruptible(|| keyspace.compact_range(..)),
                    false => self.interruptible(|| keyspace.compact_range(from..)),
                }
            }
            85..90 => self.ingest(&db),
            90..92 => db.sync(),
            92..94 => {
                let floor = self.acknowledged();
                self.check(&db, "the writer", floor).map(drop)
            }
            94..96 => self.use_snapshots(&db),
            96..98 => {
                let _looking = self.looking.lock();
                self.refresh();
                Ok(())
            }
            _ => {
                let executor = Arc::clone(&*self.executor.lock());
                self.interruptible(|| while executor.step() {});
                Ok(())
            }
        };
        let mut model = self.model.lock();
        let synced = db.synced_seqno().min(model.acknowledged);
        model.durable = model.durable.max(synced);
        done
    }

    /// Without it, writers would be slowed down by what has not been merged.
    fn work_a_little(&self) {
        let executor = Arc::clone(&*self.executor.lock());
        if self.draw(fastrand::Rng::bool) {
            self.interruptible(|| executor.step());
        }
    }

    fn use_snapshots(&self, db: &Db) -> Result<()> {
        let mut snapshots = self.snapshots.lock();
        if snapshots.len() < 3 && self.draw(fastrand::Rng::bool) {
            let snapshot = db.snapshot();
            let seqno = snapshot.seqno();
            snapshots.push((snapshot, seqno));
            return Ok(());
        }
        if snapshots.is_empty() {
            return Ok(());
        }
        let at = self.draw(|rng| rng.usize(0..snapshots.len()));
        let (snapshot, seqno) = snapshots.swap_remove(at);
        self.check_at(&Reads::Snapshot(db, &snapshot), "a snapshot", seqno)
    }

    /// Opens the store that a dead or closed writer has left, and checks it.
    fn revive(self: &Arc<World>) {
        let _looking = self.looking.lock();
        self.clock.fetch_add(self.draw(|rng| rng.u64(0..30)), Ordering::Relaxed);
        self.lives.fetch_add(1, Ordering::Relaxed);
        self.snapshots.lock().clear();
        let was_dead = self.fs.lock().is_dead();
        *self.db.lock() = None;
        let mut floor = self.acknowledged();
        let mut fs = self.fs.lock().fs.clone();
        if was_dead && self.chance(4) {
            *self.reader.lock() = None;
            fs = fs.crash(self.draw(|rng| rng.u64(..)));
            floor = self.model.lock().durable;
        }
        loop {
            *self.fs.lock() = Mortal::new(&fs);
            // Opening may be interrupted as well.
            if self.chance(4) {
                self.fs.lock().doom(self.draw(|rng| rng.u64(1..30)));
            }
            let opened = self.open();
            if opened.is_ok() {
                break;
            }
            self.forgive(opened);
        }
        let db = self.db();
        let seqno = self.check(&db, "the next writer", floor).unwrap();
        self.model.lock().truncate(seqno);
        if self.model.lock().durable > seqno {
            panic!("lost what was durable");
        }
    }

    /// Lives of a store, of about so many steps in all.
    fn run(self: &Arc<World>, steps: u64) -> Tally {
        self.revive();
        for _ in 0..steps {
            if self.fs.lock().is_dead() || self.db.lock().is_none() {
                self.revive();
            }
            let done = self.step();
            self.forgive(done);
        }
        self.fs.lock().kill();
        *self.db.lock() = None;
        self.fs.lock().set_hook(None);
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Tally {
            lives: count(&self.lives),
            operations: count(&self.operations),
            images: count(&self.images),
            refreshes: count(&self.refreshes),
        }
    }
}

/// Does something in a thread of its own. The calling one may hold locks of the writer, beside
/// which a debug build lets it take none of another store.
fn aside(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic));
}

fn key_of(number: u8) -> Vec<u8> {
    format!("k{number:02}").into_bytes()
}

/// Runs seeds from `TAMIS_FIRST_SEED` on, and says what they did.
fn run_seeds(count: u64, is_threaded: bool) {
    let total = Mutex::new(Tally::default());
    let (count, first) = (count_from_env("TAMIS_SEEDS", count), count_from_env("TAMIS_FIRST_SEED", 0));
    for_each_seed(count, |seed| {
        let seed = first + seed;
        let steps = count_from_env("TAMIS_STEPS", 100 + seed % 200);
        let of_seed = World::new(seed, is_threaded).run(steps);
        let mut total = total.lock();
        total.add(of_seed);
        if seed % 100 == 99 {
            eprintln!("seeds up to {seed}: {total:?}");
        }
    });
    println!("{:?}", *total.lock());
}

/// Background work waits to be stepped: one seed is one history.
#[test]
#[ignore = "long, and a write amid a flush may wait for it; cargo test --test it lives:: -- --ignored"]
fn a_life_of_any_end_leaves_one_prefix_of_its_writes() {
    run_seeds(60, false);
}

/// Flushes and compactions run beside the writes.
#[test]
fn a_life_with_threads_leaves_one_prefix_of_its_writes() {
    run_seeds(20, true);
}
