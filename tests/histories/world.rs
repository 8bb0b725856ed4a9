//! A store, its model, and who looks at it: carries out the operations of a history.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{
    Change as Changed, Changes, Db, Environment, EnvironmentOptions, Error, Executor, IngestMode, IngestOptions,
    Keyspace, Options, ReadMode, Result, SstFormat, SstWriter, SteppedExecutor, ThreadPool, WalMode, WriteBatch,
    WriteOptions,
};

use super::ends::Left;
use super::handles::Handle;
use super::model::{Affine, Bytes, Effect, Incarnation, Model, Moment, Written};
use super::op::{Change, Expected, History, Jobs, Kind, Op, Operator, Setup, Shape, Span, Trouble, Update, policy};
use super::reads::{half_open, is_empty, prefix_range};
use super::shuffled::ShuffledExecutor;
use super::transaction::Act;
use super::watched::{Watched, beside, give_turn};
use crate::interrupted::Interrupted;

pub(super) fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

pub(super) fn name(n: u8) -> String {
    if n == 0 { "default".to_owned() } else { format!("ks{n}") }
}

/// Number of names of keyspaces.
pub(super) const NAMES: u8 = 5;

pub(super) struct World {
    /// Without its operations.
    pub(super) history: History,
    /// The environment, and the other stores in it.
    pub(super) environment: Option<Environment>,
    pub(super) neighbours: BTreeMap<u8, World>,
    shape: Shape,
    pub(super) setup: Setup,
    pub(super) fs: Watched,
    pub(super) dir: String,
    pub(super) db: Option<Db>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) clock: Arc<AtomicU64>,
    pub(super) model: Model,
    pub(super) handles: Vec<Handle>,
    pub(super) reader: Option<Db>,
    /// What the names of keyspaces mean to the reader.
    pub(super) told: BTreeMap<u8, Incarnation>,
    /// The call of the reader that fails, as all after it; 0 for none.
    reader_fails: Arc<AtomicU64>,
    pub(super) feed: Option<Changes>,
    /// Up to where the feed was read.
    pub(super) position: u64,
    /// Whether a log may be missing that the feed needs.
    pub(super) lost_logs: bool,
    /// What will come, at which call, and whether again.
    pub(super) trouble: Option<(u16, Trouble, bool)>,
    /// What the process has called synced, and flushed.
    pub(super) promised: (u64, u64),
    /// Between two processes.
    pub(super) left: Option<Left>,
    /// Calls of former processes, and numbers of files that are, or were, in use.
    pub(super) born: usize,
    pub(super) numbers: BTreeSet<u64>,
    /// Processes so far that wrote, and how often the power has gone.
    pub(super) lives: u32,
    pub(super) powered: u32,
    /// Makes values and files of the history unique.
    pub(super) unique: u64,
}

impl World {
    pub(super) fn new(history: &History) -> World {
        let executor = executor(history.setup.jobs);
        let environment = history.environment.map(|limits| {
            let options = EnvironmentOptions::new().memtable_budget(limits.memtables).cache_size(limits.cache);
            let options = options.max_open_files(limits.open_files).executor(Arc::clone(&executor));
            let options = history.setup.memory.into_iter().fold(options, EnvironmentOptions::memory);
            Environment::new(options).unwrap()
        });
        World::within(history, environment, executor)
    }

    pub(super) fn within(history: &History, environment: Option<Environment>, executor: Arc<dyn Executor>) -> World {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/in")).unwrap();
        let mut world = World {
            history: History { ops: Vec::new(), ..history.clone() },
            environment,
            neighbours: BTreeMap::new(),
            shape: history.shape,
            setup: history.setup,
            fs: Watched::new(&fs),
            dir: "/data/db".to_owned(),
            db: None,
            executor,
            clock: Arc::default(),
            model: Model::new(),
            handles: Vec::new(),
            reader: None,
            told: BTreeMap::new(),
            reader_fails: Arc::default(),
            feed: None,
            position: 0,
            lost_logs: !history.setup.keep_log,
            trouble: None,
            promised: (0, 0),
            left: None,
            born: 0,
            numbers: BTreeSet::new(),
            lives: 0,
            powered: 0,
            unique: 0,
        };
        world.model.names.insert(0, 0);
        world.model.kinds.push(Kind::PLAIN);
        if let Some((at, trouble, again)) = history.birth {
            world.arm_in(at, trouble, again);
        }
        let opened = world.open();
        world.outlive(0, opened, "creation");
        for (n, kind) in (0..NAMES).zip(&history.kinds) {
            world.run(&Op::Create(n, *kind));
        }
        world
    }

    pub(super) fn db(&self) -> Db {
        self.db.clone().expect("the store is open")
    }

    /// Options for whoever opens a store in `fs`, and who runs its jobs.
    pub(super) fn options(&self, fs: Arc<dyn FileSystem>, setup: Setup) -> (Options, Arc<dyn Executor>) {
        let executor = self.environment.as_ref().map_or_else(|| executor(setup.jobs), |_| Arc::clone(&self.executor));
        self.clock.store(self.model.now, Ordering::Relaxed);
        let clock = Arc::clone(&self.clock);
        let options = Options::new()
            .file_system(fs)
            .executor(Arc::clone(&executor))
            .hash_seed(7)
            .clock(move || time(clock.load(Ordering::Relaxed)))
            .merge_operator(Affine)
            .memtable_size(setup.memtable)
            .table_size(setup.table)
            .cache_size(setup.cache)
            .max_open_files(setup.open_files)
            .wal_mode(if setup.write_calls { WalMode::Write } else { WalMode::Auto })
            .read_mode(if setup.mmap { ReadMode::Mmap } else { ReadMode::Auto })
            .paranoid(setup.paranoid);
        let options = setup.memory.into_iter().fold(options, Options::memory);
        let options = match &self.environment {
            Some(environment) => options.environment(environment),
            None => options,
        };
        let options = if setup.keep_log { options.keep_log(1 << 30, Duration::MAX) } else { options };
        (options, executor)
    }

    pub(super) fn open(&mut self) -> Result<()> {
        self.note_files();
        let (options, executor) = self.options(Arc::new(self.fs.clone()), self.setup);
        self.db = Some(options.open(&self.dir)?);
        self.executor = executor;
        self.promised = (0, 0);
        self.lives += 1;
        Ok(())
    }

    pub(super) fn key(&self, k: u16) -> Bytes {
        self.shape.key(k)
    }

    /// A range of keys; of shapes whose numbers have another order, never a backward one.
    pub(super) fn span(&self, span: &Span) -> (Bound<Bytes>, Bound<Bytes>) {
        let [from, to] = [&span.0, &span.1].map(|bound| bound.map(|k| self.key(k)));
        match (&from, &to, self.shape) {
            (
                Bound::Included(a) | Bound::Excluded(a),
                Bound::Included(b) | Bound::Excluded(b),
                Shape::Letters | Shape::Random | Shape::Sensors,
            ) if a > b => (to, from),
            _ => (from, to),
        }
    }

    /// Keyspace number `n` of those that exist.
    pub(super) fn pick(&self, n: u8) -> (Incarnation, Keyspace) {
        let names: Vec<u8> = self.model.names.keys().copied().collect();
        let n = names[usize::from(n) % names.len()];
        let keyspace = self.db().existing_keyspace(&name(n)).unwrap().expect("it was created");
        (self.model.names[&n], keyspace)
    }

    fn value(&mut self, operator: Operator, len: u16) -> Rc<Bytes> {
        self.unique += 1;
        Rc::new(operator.value(self.unique, len))
    }

    fn file(&mut self) -> PathBuf {
        self.unique += 1;
        PathBuf::from(format!("/in/{}", self.unique))
    }

    /// What a change of a keyspace amounts to; nothing if its range is empty.
    pub(super) fn act(&mut self, of: Incarnation, change: &Change) -> Option<Act> {
        let kind = self.model.kinds[of];
        let of_key = |key: Bytes| (Bound::Included(key.clone()), Bound::Included(key));
        let put = |world: &mut World, k, len, deadline| {
            (world.key(k), Effect::Put(world.value(kind.operator, len), deadline))
        };
        let (key, effect) = match change {
            Change::Put(k, len) => put(self, *k, *len, None),
            Change::PutUntil(k, len, millis) => {
                put(self, *k, *len, Some(self.model.now.saturating_add_signed((*millis).into())))
            }
            Change::Merge(k, len) if kind.operator == Operator::None => put(self, *k, *len, None),
            Change::Merge(k, len) => (self.key(*k), Effect::Merge(self.value(kind.operator, *len))),
            Change::Delete(k) => (self.key(*k), Effect::Delete),
            Change::DeleteRange(..) | Change::DeletePrefix(..) | Change::Clear => {
                let range = match change {
                    Change::DeleteRange(span) => self.span(span),
                    Change::DeletePrefix(k, len) => {
                        let key = self.key(*k);
                        prefix_range(&key[..usize::from(*len).min(key.len())])
                    }
                    _ => (Bound::Unbounded, Bound::Unbounded),
                };
                let (from, to) = half_open(&range);
                let effect = Effect::DeleteRange(from.clone(), to.clone());
                return (!is_empty(&(from, to))).then_some(Act { of, key: Bytes::new(), effect, range });
            }
        };
        Some(Act { of, range: of_key(key.clone()), key, effect })
    }

    /// An operation of a write as the model has it, at this place.
    pub(super) fn written(&self, act: &Act, at: u64, ingested: bool) -> Written {
        let kind = &self.model.kinds[act.of];
        let effect = match (&act.effect, kind.ttl) {
            (Effect::Put(value, None), Some(ttl)) if !ingested => {
                Effect::Put(value.clone(), Some(self.model.now + ttl))
            }
            (effect, _) => effect.clone(),
        };
        Written { seqno: at, of: act.of, key: act.key.clone(), effect, logged: kind.wal || ingested, ingested }
    }

    /// Notes a write, makes it, and notes that it was acknowledged.
    pub(super) fn commit(
        &mut self,
        ops: Vec<Written>,
        count: u64,
        durable: bool,
        make: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        self.model.write(ops, count);
        assert_eq!(make()?, self.model.last, "a write takes the next numbers");
        self.model.acknowledge(durable);
        Ok(())
    }

    pub(super) fn write(&mut self, changes: &[(u8, Change)], sync: bool) -> Result<()> {
        let db = self.db();
        let mut acts = Vec::new();
        for (n, change) in changes {
            let (of, keyspace) = self.pick(*n);
            acts.extend(self.act(of, change).map(|act| (act, keyspace, change)));
        }
        let ops: Vec<Written> = (0..).zip(&acts).map(|(at, (act, ..))| self.written(act, at, false)).collect();
        let (count, sync) = (acts.len() as u64, sync && ops.iter().any(|op| op.logged));
        if let ([(act, keyspace, change)], false) = (&acts[..], sync) {
            return self.commit(ops, count, false, || direct(keyspace, act, change));
        }
        let mut batch = WriteBatch::new();
        acts.iter().for_each(|(act, keyspace, _)| to_batch(&mut batch, keyspace, act));
        assert_eq!(batch.len() as u64, count);
        self.commit(ops, count, sync, || db.write_with(batch, WriteOptions::new().sync(sync)))
    }

    fn ingest(&mut self, n: u8, spans: &[Span], changes: &[Change]) -> Result<()> {
        let (of, keyspace) = self.pick(n);
        let format = keyspace.sst_format()?;
        let (mut files, mut ops, mut count) = (Vec::new(), Vec::new(), 0);
        let ranges = spans.iter().filter_map(|span| self.act(of, &Change::DeleteRange(*span)));
        let mut ranges: Vec<Act> = ranges.collect::<Vec<_>>();
        ranges.sort_by_key(|act| half_open(&act.range));
        let mut acts: Vec<Act> = changes.iter().filter_map(|change| self.act(of, change)).collect();
        acts.retain(|act| !matches!(act.effect, Effect::DeleteRange(..)));
        acts.sort_by(|a, b| a.key.cmp(&b.key));
        acts.dedup_by(|a, b| a.key == b.key);
        let half = acts.len() / 2;
        for acts in [&ranges[..], &acts[..half], &acts[half..]] {
            if !acts.is_empty() {
                files.push(self.write_file(&format, acts)?);
            }
        }
        for acts in [&ranges, &acts] {
            ops.extend(acts.iter().map(|act| self.written(act, count, true)));
            count += u64::from(!acts.is_empty());
        }
        if files.is_empty() {
            return Ok(());
        }
        let modes = [IngestMode::Link, IngestMode::Copy, IngestMode::Move];
        let options = IngestOptions::new().mode(modes[usize::try_from(self.unique % 3).unwrap()]);
        self.commit(ops, count, true, || keyspace.ingest(files, options).map(|info| info.seqno))
    }

    fn write_file(&mut self, format: &SstFormat, acts: &[Act]) -> Result<PathBuf> {
        let path = self.file();
        let mut writer = SstWriter::create_in(Arc::new(self.fs.fs.clone()), &path, format)?;
        for act in acts {
            match &act.effect {
                Effect::Put(value, None) => writer.put(&act.key, &value[..])?,
                Effect::Put(value, Some(deadline)) => writer.put_with_expiry(&act.key, &value[..], time(*deadline))?,
                Effect::Merge(operand) => writer.merge(&act.key, &operand[..])?,
                Effect::Delete => writer.delete(&act.key)?,
                Effect::DeleteRange(..) => writer.delete_range(act.range.clone())?,
            }
        }
        writer.finish().map(|info| info.path)
    }

    /// Updates a key. In the first run of the closure another write comes in between.
    fn update(&mut self, n: u8, k: u16, update: Update, mut amid: Option<&Change>) -> Result<()> {
        let (of, keyspace) = self.pick(n);
        let (key, operator) = (self.key(k), self.model.kinds[of].operator);
        let value = match update {
            Update::Put(len) | Update::Swap(len, _) => self.value(operator, len),
            Update::Keep | Update::Delete => Rc::default(),
        };
        let mut seen = self.model.get(of, &key, self.model.moment());
        let mut failed = None;
        let result = if let Update::Swap(_, expected) = update {
            let expected = match expected {
                Expected::Absent => None,
                Expected::Current => seen.clone(),
                Expected::Other => Some(b"other".to_vec()),
            };
            let swapped = keyspace.compare_and_swap(&key, expected.as_ref(), Some(&value[..]));
            swapped.map(|swapped| {
                assert_eq!(swapped.is_ok(), expected == seen, "{key:?}");
                swapped.inspect_err(|mismatch| assert_eq!(mismatch.current.as_deref(), seen.as_deref())).ok()
            })
        } else {
            let updated = keyspace.update(&key, |current| {
                seen = self.model.get(of, &key, self.model.moment());
                assert_eq!(current, seen.as_deref(), "{key:?}");
                if let Some(change) = amid.take() {
                    failed = self.write(&[(n, change.clone())], false).err();
                }
                match update {
                    Update::Keep => Changed::Keep,
                    Update::Delete => Changed::Delete,
                    _ => Changed::Put(value.to_vec()),
                }
            });
            updated.map(|updated| {
                assert_eq!(updated.before.as_deref(), seen.as_deref(), "{key:?}");
                updated.seqno
            })
        };
        if let Some(error) = failed {
            return Err(error);
        }
        let (Ok(Some(_)) | Err(_)) = result else { return Ok(()) };
        let now = self.model.get(of, &key, self.model.moment());
        assert!(result.is_err() || now == seen, "it has overwritten what it did not see");
        let effect = if update == Update::Delete { Effect::Delete } else { Effect::Put(value, None) };
        let act = Act { of, key, effect, range: (Bound::Unbounded, Bound::Unbounded) };
        let ops = vec![self.written(&act, 0, false)];
        self.commit(ops, 1, false, || result.map(|seqno| seqno.expect("checked")))
    }

    fn pop(&mut self, n: u8, first: bool) -> Result<()> {
        let (of, keyspace) = self.pick(n);
        let mut entries = self.model.entries(of, self.model.moment());
        let expected = if first { entries.into_iter().next() } else { entries.pop() };
        let found = if first { keyspace.pop_first() } else { keyspace.pop_last() };
        if let Ok(found) = &found {
            let found = found.as_ref().map(|(key, value)| (key.to_vec(), value.to_vec()));
            assert_eq!(found, expected, "popped from {}", keyspace.name());
        }
        let Some((key, _)) = expected else { return found.map(drop) };
        let act = Act { of, key, effect: Effect::Delete, range: (Bound::Unbounded, Bound::Unbounded) };
        let (ops, last) = (vec![self.written(&act, 0, false)], self.model.last + 1);
        self.commit(ops, 1, false, || found.map(|_| last))
    }

    /// Creates a keyspace, or changes its options.
    fn create(&mut self, n: u8, kind: Kind) -> Result<()> {
        let former = self.model.names.get(&n).copied();
        // It keeps the operator that it has.
        let operator = former.map(|of| self.model.kinds[of].operator).filter(|of| *of != Operator::None);
        // What was put before may not be an operand of every operator.
        let is_new = former.is_none_or(|of| self.model.keys(of).is_empty());
        let operator = operator.unwrap_or(if is_new { kind.operator } else { Operator::None });
        let kind = Kind { operator, ..kind };
        if former.is_none() {
            self.model.in_doubt = Some((n, Some(self.model.kinds.len())));
            self.model.kinds.push(kind);
        }
        let keyspace = self.db().keyspace_with(&name(n), kind.options())?;
        assert_eq!(keyspace.options()?, kind.options());
        let of = former.unwrap_or(self.model.kinds.len() - 1);
        if former.is_some() && self.model.kinds[of].wal != kind.wal {
            // The change has flushed what was written before it.
            (self.model.durable, self.model.flushed) = (self.model.last, self.model.last);
        }
        (self.model.kinds[of], self.model.in_doubt) = (kind, None);
        self.model.names.insert(n, of);
        Ok(())
    }

    fn drop_keyspace(&mut self, n: u8) -> Result<()> {
        let former = self.model.names.get(&n).copied();
        self.handles.retain(|handle| former.is_none() || !handle.is_of(former));
        self.model.in_doubt = former.map(|_| (n, None));
        let dropped = self.db().drop_keyspace(&name(n))?;
        assert_eq!(dropped, former.is_some());
        self.model.in_doubt = None;
        self.model.names.remove(&n);
        Ok(())
    }

    /// Moves the clock. The store reads it before, so that a clock that goes back changes nothing.
    fn move_clock(&mut self, by: i32) {
        let to = self.model.now.saturating_add_signed(by.into());
        let read = || self.db().begin().put_with_expiry("", "", time(0));
        read();
        self.clock.store(to, Ordering::Relaxed);
        read();
        self.model.now = self.model.now.max(to);
    }

    /// Carries out an operation, and what follows from trouble.
    pub(super) fn run(&mut self, op: &Op) {
        if let Op::Elsewhere(n, op) = op {
            return self.elsewhere(*n, op);
        }
        let lives = self.lives;
        let done = self.apply(op);
        self.outlive(lives, done, op);
    }

    /// Goes on after what one of so many processes has done.
    fn outlive(&mut self, lives: u32, done: Result<()>, op: impl fmt::Debug) {
        let cut = self.fs.fs.crash_point();
        if cut.is_some() || self.fs.is_dead() {
            return self.bury(cut);
        }
        // Another process may have come amid the operation.
        if let Err(error) = done
            && self.lives == lives
        {
            let is_struck = self.trouble.is_some() && self.fs.fs.fault_hit();
            assert!(is_struck && matches!(error, Error::Io { .. } | Error::Poisoned(_)), "{error:?} of {op:?}");
            return self.mend();
        }
        self.note_promises();
    }

    /// Refreshes the reader beside the writer, or opens one.
    fn refresh(&mut self, nested: &[(u16, Op)]) -> Result<()> {
        self.clock.store(self.model.now, Ordering::Relaxed);
        let floor = self.model.last_logged(self.model.acknowledged);
        let reader = self.reader.take();
        let fails = Arc::clone(&self.reader_fails);
        let interrupt = move || {
            give_turn(true);
            match fails.load(Ordering::Relaxed) {
                0 => return Ok(()),
                1 => return Err(std::io::Error::other("the fault of the test")),
                left => fails.store(left - 1, Ordering::Relaxed),
            }
            Ok(())
        };
        let fs = Interrupted { fs: self.fs.fs.clone(), interrupt: Arc::new(interrupt) };
        let (options, dir) = (self.options(Arc::new(fs), self.setup).0, self.dir.clone());
        let known = reader.as_ref().map_or(0, Db::last_seqno);
        let work = move || match reader {
            Some(reader) => reader.refresh().map(|_| reader),
            None => options.open_read_only(dir),
        };
        let (powered, names, kinds) = (self.powered, self.model.names.clone(), self.model.kinds.len());
        let reader = if nested.is_empty() { work() } else { self.amid(nested, u32::MAX, work) };
        if self.powered != powered {
            // The power has gone meanwhile.
            return Ok(());
        }
        let reader = reader?;
        let seqno = reader.last_seqno();
        assert!(floor.max(known) <= seqno, "a reader at {seqno}, after {known} and {floor}");
        assert!(self.model.is_end(seqno), "a reader amid a write: {seqno}");
        // Not those of which it may know another keyspace, from amid the refresh.
        let is_told = |(n, of): &(&u8, &Incarnation)| match names.get(n) {
            Some(before) => before == *of,
            None => self.model.kinds.len() <= kinds + 1,
        };
        self.told = self.model.names.iter().filter(is_told).map(|(n, of)| (*n, *of)).collect();
        let moment = Moment { seqno, unlogged: reader.flushed_seqno(), now: self.model.now };
        self.check_at(&reader, "a reader beside the writer", moment, 3)?;
        self.reader = Some(reader);
        Ok(())
    }

    /// A refresh that fails leaves the reader as it was.
    fn refresh_fails(&mut self, at: u16) -> Result<()> {
        let Some(reader) = self.reader.clone() else { return Ok(()) };
        let (seqno, unlogged) = (reader.last_seqno(), reader.flushed_seqno());
        self.reader_fails.store(at.into(), Ordering::Relaxed);
        let refreshed = reader.refresh();
        self.reader_fails.store(0, Ordering::Relaxed);
        let Err(error) = refreshed else { return self.refresh(&[]) };
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        assert_eq!((reader.last_seqno(), reader.flushed_seqno()), (seqno, unlogged));
        self.check_at(&reader, "a reader after a fault", Moment { seqno, unlogged, now: self.model.now }, 3)?;
        assert!(matches!(reader.put("k", "v"), Err(Error::ReadOnly(_))));
        Ok(())
    }

    /// Runs `work` in a thread of its own, and the operations at its calls, at most so many writes
    /// among them: a writer must not have to wait for the work that it interrupts.
    fn amid<R: Send>(&mut self, nested: &[(u16, Op)], mut writes: u32, work: impl FnOnce() -> R + Send) -> R {
        let mut nested = nested.iter().peekable();
        let mut calls = 0u32;
        beside(work, |call| {
            calls += 1;
            assert!(calls < 100_000, "it has no end");
            while let Some((_, op)) = nested.next_if(|(at, _)| u32::from(*at) <= calls) {
                let is_over = self.fs.fs.crash_point().is_some() || self.fs.is_dead();
                let may_run = match op {
                    Op::Image(_) | Op::Refresh => true,
                    Op::Write(..) if call.is_free && writes > 0 => {
                        writes -= 1;
                        true
                    }
                    Op::Write(..) => false,
                    _ => call.is_free,
                };
                if may_run && !is_over {
                    self.run(op);
                }
            }
        })
    }

    fn apply(&mut self, op: &Op) -> Result<()> {
        let db = self.db();
        match op {
            Op::Write(changes, sync) => self.write(changes, *sync),
            Op::Ingest(n, spans, changes) => self.ingest(*n, spans, changes),
            Op::Update(n, k, update, amid) => self.update(*n, *k, *update, amid.as_ref()),
            Op::Pop(n, first) => self.pop(*n, *first),
            Op::Create(n, kind) => self.create(n % NAMES, *kind),
            Op::Drop(n) => self.drop_keyspace(1 + n % (NAMES - 1)),
            Op::Configure(n, kind) => {
                let names: Vec<u8> = self.model.names.keys().copied().collect();
                self.create(names[usize::from(*n) % names.len()], *kind)
            }
            Op::Refilter(n, to) => {
                let (of, keyspace) = self.pick(*n);
                keyspace.rebuild_filters(policy(*to), |_| {})?;
                self.model.kinds[of].filter = *to;
                assert_eq!(keyspace.options()?.filter, policy(*to));
                let again = keyspace.rebuild_filters(policy(*to), |_| {})?;
                let is_struck = self.trouble.is_some() && self.fs.fs.fault_hit();
                assert!(is_struck || self.setup.jobs == Jobs::Threads || again.wanted == 0);
                Ok(())
            }
            Op::Clock(by) => {
                self.move_clock(*by);
                Ok(())
            }
            Op::Step => {
                self.executor.step();
                Ok(())
            }
            Op::Settle => settle(&db, &*self.executor),
            Op::Flush => {
                db.flush()?;
                assert_eq!(db.flushed_seqno(), self.model.last);
                Ok(())
            }
            Op::Compact(n, span) => self.pick(*n).1.compact_range(self.span(span)),
            Op::Sync => {
                db.sync()?;
                self.model.durable = self.model.durable.max(self.model.last_logged(self.model.last));
                Ok(())
            }
            Op::Arm(at, trouble, again) => {
                self.arm_in(*at, *trouble, *again);
                Ok(())
            }
            Op::Reopen(end, setup) => {
                drop(db);
                self.reopen(*end, *setup)
            }
            Op::Refresh => self.refresh(&[]),
            Op::RefreshFails(at) => self.refresh_fails(*at),
            Op::Amid(work, nested) => match &**work {
                Op::Refresh => self.refresh(nested),
                // It begins with an empty memtable.
                Op::Flush => self.amid(nested, 3, move || db.flush()),
                Op::Settle => {
                    let executor = Arc::clone(&self.executor);
                    self.amid(nested, 0, move || settle(&db, &*executor))
                }
                Op::Compact(n, span) => {
                    let ((_, keyspace), range) = (self.pick(*n), self.span(span));
                    self.amid(nested, 3, move || keyspace.compact_range(range))
                }
                _ => {
                    let executor = Arc::clone(&self.executor);
                    self.amid(nested, 0, move || _ = executor.step());
                    Ok(())
                }
            },
            _ => self.look(&db, op),
        }
    }
}

pub(super) fn executor(jobs: Jobs) -> Arc<dyn Executor> {
    match jobs {
        Jobs::InOrder => Arc::new(SteppedExecutor::new()),
        Jobs::Shuffled(seed) => Arc::new(ShuffledExecutor::new(seed)),
        Jobs::Threads => Arc::new(ThreadPool::new(3)),
    }
}

/// Has all work done that is due, which must have an end.
fn settle(db: &Db, executor: &dyn Executor) -> Result<()> {
    assert!(!(0..20_000).all(|_| executor.step()), "a store without writes does not come to rest");
    db.wait_for_compactions()
}

/// Makes a change by the call for it alone.
fn direct(keyspace: &Keyspace, act: &Act, change: &Change) -> Result<u64> {
    match (&act.effect, change) {
        (Effect::Put(value, None), _) => keyspace.put(&act.key, &value[..]),
        (Effect::Put(value, Some(deadline)), _) => keyspace.put_with_expiry(&act.key, &value[..], time(*deadline)),
        (Effect::Merge(operand), _) => keyspace.merge(&act.key, &operand[..]),
        (Effect::Delete, _) => keyspace.delete(&act.key),
        (Effect::DeleteRange(prefix, _), Change::DeletePrefix(..)) => keyspace.delete_prefix(prefix),
        (Effect::DeleteRange(..), Change::Clear) => keyspace.clear(),
        (Effect::DeleteRange(..), _) => keyspace.delete_range(act.range.clone()),
    }
}

fn to_batch(batch: &mut WriteBatch, keyspace: &Keyspace, act: &Act) {
    match &act.effect {
        Effect::Put(value, None) => batch.put_in(keyspace, &act.key, &value[..]),
        Effect::Put(value, Some(deadline)) => {
            batch.put_with_expiry_in(keyspace, &act.key, &value[..], time(*deadline));
        }
        Effect::Merge(operand) => batch.merge_in(keyspace, &act.key, &operand[..]),
        Effect::Delete => batch.delete_in(keyspace, &act.key),
        Effect::DeleteRange(..) => batch.delete_range_in(keyspace, act.range.clone()),
    }
}
