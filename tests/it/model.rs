//! Does the store agree with a `BTreeMap` under random operations?
//!
//! `TAMIS_CASES` sets the number of cases, `TAMIS_SEED` runs one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::operator::{Append, Max};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{
    Cursor, Db, Executor, FilterMode, IngestMode, IngestOptions, Keyspace, KeyspaceOptions, ReadOptions, Snapshot,
    SstFormat, SstWriter, Value, WriteBatch, WriteOptions,
};

use crate::support::{count_from_env, for_each_seed, tiny_keyspace, tiny_options};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Model = BTreeMap<String, Map>;
/// Values with a deadline, by keyspace and key: when they expire, and what has been merged into
/// them since and stays.
type Expiring = BTreeMap<(String, Vec<u8>), (u64, Option<Vec<u8>>)>;

/// Takes from the model what has expired at `now`.
fn expire(model: &mut Model, expiring: &mut Expiring, now: u64) {
    let (due, later) = std::mem::take(expiring).into_iter().partition(|(_, (deadline, _))| *deadline <= now);
    *expiring = later;
    let due: Expiring = due;
    for ((name, key), (_, rest)) in due {
        let Some(map) = model.get_mut(&name) else { continue };
        match rest {
            Some(rest) => _ = map.insert(key, rest),
            None => _ = map.remove(&key),
        }
    }
}

fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// A store and what it should hold.
struct ModelledStore {
    rng: fastrand::Rng,
    fs: SimFileSystem,
    db: Option<Db>,
    executor: Arc<dyn Executor>,
    model: Model,
    expiring: Expiring,
    snapshots: Vec<(Snapshot, Model)>,
    /// In milliseconds; it goes both ways.
    clock: Arc<AtomicU64>,
    /// The latest time that the store has seen.
    now: u64,
    /// In some cases, gives keys a long common prefix.
    prefix: Vec<u8>,
    key_space: u32,
    mmap_reads: bool,
}

/// Options with the keyspace's merge operator: one that memtables apply at once, or one that they
/// do not.
fn with_operator(name: &str, options: KeyspaceOptions) -> KeyspaceOptions {
    match name {
        "ks1" => options.merge_operator(Max),
        _ => options.merge_operator(Append),
    }
}

fn with_clock(options: tamis::Options, clock: &Arc<AtomicU64>) -> tamis::Options {
    let clock = Arc::clone(clock);
    options.clock(move || time(clock.load(Ordering::Relaxed)))
}

fn merge_into(name: &str, map: &mut Map, key: Vec<u8>, operand: Vec<u8>) {
    let value = map.entry(key).or_default();
    match name {
        "ks1" => *value = operand.max(std::mem::take(value)),
        _ => value.extend(operand),
    }
}

/// Merges into what stays when the value expires.
fn merge_into_rest(name: &str, expiring: &mut Expiring, key: &[u8], operand: &[u8]) {
    if let Some((_, rest)) = expiring.get_mut(&(name.to_owned(), key.to_vec())) {
        let mut map = Map::from_iter(rest.take().map(|rest| (key.to_vec(), rest)));
        merge_into(name, &mut map, key.to_vec(), operand.to_vec());
        *rest = map.remove(key);
    }
}

fn is_empty(range: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> bool {
    match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from), Bound::Excluded(to)) => from >= to,
        (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        // The least key after `from` is `from` and a zero byte.
        (Bound::Excluded(from), Bound::Excluded(to)) => [from, &[0][..]].concat() >= *to,
        (Bound::Unbounded, Bound::Excluded(to)) => to.is_empty(),
        _ => false,
    }
}

impl ModelledStore {
    fn new(seed: u64) -> ModelledStore {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = SimFileSystem::new();
        let (options, executor) = tiny_options(&fs, &mut rng);
        let mmap_reads = seed.is_multiple_of(2);
        let default = with_operator("default", tiny_keyspace(&mut rng));
        let clock = Arc::new(AtomicU64::new(0));
        let options = with_clock(options, &clock);
        let db = options.mmap_reads(mmap_reads).default_keyspace(default).open("/db").unwrap();
        let prefix = if rng.u8(0..4) == 0 { vec![b'p'; rng.usize(1..300)] } else { Vec::new() };
        let key_space = 1 << rng.u32(3..12);
        let model = Model::from([("default".to_owned(), Map::new())]);
        let (db, expiring, snapshots, now) = (Some(db), Expiring::new(), Vec::new(), 0);
        ModelledStore { rng, fs, db, executor, model, expiring, snapshots, clock, now, prefix, key_space, mmap_reads }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn key(&mut self) -> Vec<u8> {
        let n = self.rng.u32(0..self.key_space);
        let mut key = self.prefix.clone();
        match self.rng.u8(0..20) {
            0 => {}
            1 => key.extend([0xff; 3]),
            2 => key.push(n.to_le_bytes()[0]),
            _ => key.extend(format!("k{n:05}").as_bytes()),
        }
        key
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(0..40) {
            0 => 0,
            1 => self.rng.usize(1000..9000),
            _ => self.rng.usize(1..60),
        };
        vec![self.rng.u8(..); len]
    }

    /// A keyspace that exists.
    fn keyspace(&mut self) -> (String, Keyspace) {
        let names: Vec<String> = self.model.keys().cloned().collect();
        let name = names[self.rng.usize(0..names.len())].clone();
        let keyspace = self.db().existing_keyspace(&name).unwrap().expect("created before");
        (name, keyspace)
    }

    fn read_options(&mut self) -> ReadOptions {
        let modes = [FilterMode::Use, FilterMode::Use, FilterMode::Ignore, FilterMode::Shadow];
        ReadOptions::new().filters(modes[self.rng.usize(0..4)]).fill_cache(self.rng.bool())
    }

    /// Moves the clock, more often forward than back, and has the store read it.
    fn move_clock(&mut self, to: u64) {
        self.clock.store(to, Ordering::Relaxed);
        self.db().begin().put_with_expiry("", "", time(0));
        self.now = self.now.max(to);
        expire(&mut self.model, &mut self.expiring, self.now);
    }

    /// Puts a value, now and then with a deadline.
    fn put(&mut self) {
        let (name, keyspace) = self.keyspace();
        let (key, value) = (self.key(), self.value());
        let of = (name.clone(), key.clone());
        if self.rng.u8(0..4) == 0 {
            let deadline = (self.now + self.rng.u64(0..300)).saturating_sub(20);
            keyspace.put_with_expiry(&key, &value, time(deadline)).unwrap();
            self.expiring.insert(of, (deadline, None));
        } else {
            keyspace.put(&key, &value).unwrap();
            self.expiring.remove(&of);
        }
        self.model.get_mut(&name).unwrap().insert(key, value);
        expire(&mut self.model, &mut self.expiring, self.now);
    }

    fn step(&mut self) {
        if self.rng.u8(0..10) == 0 {
            let to = (self.now + self.rng.u64(0..100)).saturating_sub(30);
            self.move_clock(to);
        }
        match self.rng.u8(0..100) {
            0..20 => self.put(),
            20..30 => {
                let (name, keyspace) = self.keyspace();
                let (key, operand) = (self.key(), self.value());
                keyspace.merge(&key, &operand).unwrap();
                merge_into_rest(&name, &mut self.expiring, &key, &operand);
                merge_into(&name, self.model.get_mut(&name).unwrap(), key, operand);
            }
            30..34 => {
                let (name, keyspace) = self.keyspace();
                let range = self.deleted_range();
                let before = self.db().last_seqno();
                let seqno = keyspace.delete_range(range.clone()).unwrap();
                assert_eq!(seqno, before + u64::from(!is_empty(&range)));
                self.model.get_mut(&name).unwrap().retain(|key, _| !range.contains(key));
                self.expiring.retain(|(of, key), _| *of != name || !range.contains(key));
            }
            34..42 => {
                let (name, keyspace) = self.keyspace();
                let key = self.key();
                keyspace.delete(&key).unwrap();
                self.model.get_mut(&name).unwrap().remove(&key);
                self.expiring.remove(&(name, key));
            }
            42..50 => self.write_batch(),
            50..65 => {
                let (name, keyspace) = self.keyspace();
                let (key, options) = (self.key(), self.read_options());
                let found = keyspace.get_with(&key, options).unwrap();
                assert_eq!(found.as_deref(), self.model[&name].get(&key).map(Vec::as_slice), "{key:?}");
                assert_eq!(keyspace.contains_key(&key).unwrap(), found.is_some());
                let mut value = b"what was there".to_vec();
                assert_eq!(keyspace.get_into(&key, &mut value).unwrap(), found.is_some());
                assert_eq!(value, found.as_deref().unwrap_or_default());
                assert_eq!(keyspace.read(&key, <[u8]>::to_vec).unwrap().as_deref(), found.as_deref());
                self.read_many();
            }
            65..71 => self.scan(),
            71..75 => self.walk(),
            75..79 => {
                let snapshot = self.db().snapshot();
                assert_eq!(snapshot.seqno(), self.db().last_seqno());
                self.snapshots.push((snapshot, self.model.clone()));
            }
            79..82 => self.read_snapshot(),
            82..85 if !self.snapshots.is_empty() => {
                let at = self.rng.usize(0..self.snapshots.len());
                self.snapshots.swap_remove(at);
            }
            85..90 => {
                self.executor.step();
            }
            90..92 => {
                self.db().flush().unwrap();
                assert_eq!(self.db().flushed_seqno(), self.db().last_seqno());
            }
            92 => {
                let (_, keyspace) = self.keyspace();
                let (a, b) = (self.key(), self.key());
                match self.rng.bool() {
                    true => keyspace.compact_range(..).unwrap(),
                    false => keyspace.compact_range(a.clone().min(b.clone())..=a.max(b)).unwrap(),
                }
            }
            93 => {
                let name = format!("ks{}", self.rng.u8(0..3));
                match self.rng.bool() {
                    true if self.model.contains_key(&name) => drop(self.db().keyspace(&name).unwrap()),
                    _ => {
                        let options = with_operator(&name, tiny_keyspace(&mut self.rng));
                        let keyspace = self.db().keyspace_with(&name, options.clone()).unwrap();
                        assert_eq!(keyspace.options().unwrap(), options);
                    }
                }
                self.model.entry(name).or_default();
            }
            94 => {
                let name = format!("ks{}", self.rng.u8(0..3));
                // Snapshots of a dropped keyspace read nothing any more.
                self.snapshots.clear();
                assert_eq!(self.db().drop_keyspace(&name).unwrap(), self.model.remove(&name).is_some());
                self.expiring.retain(|(of, _), _| *of != name);
            }
            95 => self.reopen(),
            96 => self.check_read_only(),
            97 => {
                let (_, keyspace) = self.keyspace();
                let policy = tiny_keyspace(&mut self.rng).filter;
                keyspace.rebuild_filters(policy).unwrap();
                assert_eq!(keyspace.options().unwrap().filter, policy);
                assert_eq!(keyspace.rebuild_filters(policy).unwrap().wanted, 0);
            }
            98 if self.rng.bool() => self.add_runs(),
            99 => self.ingest(),
            _ => self.db().sync().unwrap(),
        }
    }

    /// Adds more runs to level 0 than compactions merge meanwhile.
    fn add_runs(&mut self) {
        let (name, keyspace) = self.keyspace();
        for _ in 0..self.rng.u8(10..40) {
            let (key, value) = (self.key(), self.value());
            keyspace.put(&key, &value).unwrap();
            self.expiring.remove(&(name.clone(), key.clone()));
            self.model.get_mut(&name).unwrap().insert(key, value);
            self.db().flush().unwrap();
        }
    }

    /// Reads several keys at once, some of them twice, from the store or a snapshot.
    fn read_many(&mut self) {
        let (name, keyspace) = self.keyspace();
        let mut keys: Vec<Vec<u8>> = (0..self.rng.usize(0..60)).map(|_| self.key()).collect();
        keys.extend(keys.first().cloned());
        let options = self.read_options();
        let check = |found: Vec<Option<Value>>, model: &BTreeMap<Vec<u8>, Vec<u8>>| {
            assert_eq!(found.len(), keys.len());
            for (found, key) in found.iter().zip(&keys) {
                assert_eq!(found.as_deref(), model.get(key).map(Vec::as_slice), "{key:?}");
            }
        };
        check(keyspace.multi_get_with(&keys, options).unwrap(), &self.model[&name]);
        if let Some((snapshot, model)) = self.snapshots.last()
            && let Some(model) = model.get(&name)
        {
            check(snapshot.keyspace(&keyspace).multi_get_with(&keys, options).unwrap(), model);
        }
    }

    /// Writes a file of range deletes that a keyspace is to ingest.
    fn range_file(&mut self, name: &str, format: &SstFormat) -> PathBuf {
        let mut ranges: Vec<_> = (0..self.rng.u32(1..4)).map(|_| self.deleted_range()).collect();
        // A file that deletes nothing is refused.
        ranges.push((Bound::Included(b"~".to_vec()), Bound::Unbounded));
        ranges.sort_by_key(|(from, _)| match from {
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => [key, &[0][..]].concat(),
            Bound::Unbounded => Vec::new(),
        });
        let path = PathBuf::from(format!("/in/{}", self.rng.u64(..)));
        let mut file = SstWriter::create_in(Arc::new(self.fs.clone()), path, format).unwrap();
        for range in ranges {
            file.delete_range(range.clone()).unwrap();
            let is_deleted = |key: &Vec<u8>| !is_empty(&range) && range.contains(key);
            self.model.get_mut(name).unwrap().retain(|key, _| !is_deleted(key));
            self.expiring.retain(|(of, key), _| of != name || !is_deleted(key));
        }
        file.finish().unwrap().path
    }

    /// Ingests random operations, split into two files or one, perhaps after range deletes.
    fn ingest(&mut self) {
        let (name, keyspace) = self.keyspace();
        let (fs, format) = (Arc::new(self.fs.clone()), keyspace.sst_format().unwrap());
        fs.create_dir(Path::new("/in")).unwrap();
        let deletes = self.rng.bool().then(|| self.range_file(&name, &format));
        let keys: BTreeSet<Vec<u8>> = (0..self.rng.u32(1..20)).map(|_| self.key()).collect();
        let split = self.rng.usize(0..keys.len());
        let mut files: Vec<SstWriter> = Vec::new();
        for (i, key) in keys.into_iter().enumerate() {
            if i == 0 || i == split {
                let path = format!("/in/{}", self.rng.u64(..));
                files.push(SstWriter::create_in(fs.clone(), path, &format).unwrap());
            }
            let (value, file) = (self.value(), files.last_mut().unwrap());
            let (map, of) = (self.model.get_mut(&name).unwrap(), (name.clone(), key.clone()));
            match self.rng.u8(0..6) {
                0 => {
                    file.delete(&key).unwrap();
                    self.expiring.remove(&of);
                    map.remove(&key);
                }
                1 => {
                    file.merge(&key, &value).unwrap();
                    merge_into_rest(&name, &mut self.expiring, &key, &value);
                    merge_into(&name, map, key, value);
                }
                2 => {
                    let deadline = self.now + self.rng.u64(0..200);
                    file.put_with_expiry(&key, &value, time(deadline)).unwrap();
                    self.expiring.insert(of, (deadline, None));
                    map.insert(key, value);
                }
                _ => {
                    file.put(&key, &value).unwrap();
                    self.expiring.remove(&of);
                    map.insert(key, value);
                }
            }
        }
        let files = files.into_iter().map(|file| file.finish().unwrap().path);
        let last = self.db().last_seqno() + 1 + u64::from(deletes.is_some());
        let info = keyspace.ingest(files.chain(deletes), IngestOptions::new().mode(IngestMode::Move)).unwrap();
        assert_eq!((info.seqno, self.db().last_seqno(), info.left), (last, last, Vec::new()));
        expire(&mut self.model, &mut self.expiring, self.now);
    }

    fn write_batch(&mut self) {
        let mut batch = WriteBatch::new();
        let (mut next, mut expiring) = (self.model.clone(), self.expiring.clone());
        for _ in 0..self.rng.u32(0..12) {
            let (name, keyspace) = self.keyspace();
            let key = self.key();
            let map = next.get_mut(&name).unwrap();
            let value = self.value();
            match self.rng.u8(0..8) {
                7 => {
                    let range = self.deleted_range();
                    batch.delete_range_in(&keyspace, range.clone());
                    map.retain(|key, _| !range.contains(key));
                    expiring.retain(|(of, key), _| *of != name || !range.contains(key));
                }
                0 | 1 => {
                    batch.delete_in(&keyspace, &key);
                    expiring.remove(&(name, key.clone()));
                    map.remove(&key);
                }
                2 | 3 => {
                    batch.merge_in(&keyspace, &key, &value);
                    merge_into_rest(&name, &mut expiring, &key, &value);
                    merge_into(&name, map, key, value);
                }
                4 => {
                    let deadline = self.now + self.rng.u64(0..200);
                    batch.put_with_expiry_in(&keyspace, &key, &value, time(deadline));
                    expiring.insert((name, key.clone()), (deadline, None));
                    map.insert(key, value);
                }
                _ => {
                    batch.put_in(&keyspace, &key, &value);
                    expiring.remove(&(name, key.clone()));
                    map.insert(key, value);
                }
            }
        }
        let before = self.db().last_seqno();
        let count = batch.len() as u64;
        let sync = self.rng.bool();
        let last = self.db().write_with(batch, WriteOptions::new().sync(sync)).unwrap();
        assert_eq!(last, before + count);
        if sync {
            assert!(self.db().synced_seqno() >= last);
        }
        (self.model, self.expiring) = (next, expiring);
        expire(&mut self.model, &mut self.expiring, self.now);
    }

    /// A range to delete: mostly a short one.
    fn deleted_range(&mut self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        if self.rng.u8(0..4) == 0 {
            return (self.bound(), self.bound());
        }
        let from = self.rng.u32(0..self.key_space);
        let to = from + self.rng.u32(0..=self.key_space / 8);
        let [from, to] = [from, to].map(|n| [&self.prefix[..], format!("k{n:05}").as_bytes()].concat());
        (Bound::Included(from), if self.rng.bool() { Bound::Included(to) } else { Bound::Excluded(to) })
    }

    /// Scans a random range from both ends at once.
    fn scan(&mut self) {
        let (name, keyspace) = self.keyspace();
        let (from, to) = (self.bound(), self.bound());
        let expected: Vec<(Vec<u8>, Vec<u8>)> = self.model[&name]
            .iter()
            .filter(|(key, _)| match &from {
                Bound::Included(k) => *key >= k,
                Bound::Excluded(k) => *key > k,
                Bound::Unbounded => true,
            })
            .filter(|(key, _)| match &to {
                Bound::Included(k) => *key <= k,
                Bound::Excluded(k) => *key < k,
                Bound::Unbounded => true,
            })
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let mut iter = keyspace.range((from, to));
        let (mut front, mut back) = (Vec::new(), Vec::new());
        let bias = self.rng.u8(0..=4);
        loop {
            let forward = self.rng.u8(0..4) < bias;
            let entry = if forward { iter.next() } else { iter.next_back() };
            let Some(entry) = entry else { break };
            let (key, value) = entry.unwrap();
            if forward { &mut front } else { &mut back }.push((key.to_vec(), value.to_vec()));
        }
        front.extend(back.into_iter().rev());
        assert_eq!(front, expected);
        assert!(iter.next().is_none() && iter.next_back().is_none(), "an iterator that ended stays there");
    }

    fn bound(&mut self) -> Bound<Vec<u8>> {
        match self.rng.u8(0..5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Excluded(self.key()),
            _ => Bound::Included(self.key()),
        }
    }

    /// Moves a cursor beside a position in a sorted list.
    fn walk(&mut self) {
        let (name, keyspace) = self.keyspace();
        let options = self.read_options();
        let entries: Vec<(Vec<u8>, Vec<u8>)> = self.model[&name].clone().into_iter().collect();
        let mut cursor: Cursor = keyspace.cursor_with(options).unwrap();
        let mut at: Option<usize> = None;
        for _ in 0..self.rng.u32(1..40) {
            let valid = match self.rng.u8(0..12) {
                0 => {
                    at = (!entries.is_empty()).then_some(0);
                    cursor.seek_to_first()
                }
                1 => {
                    at = entries.len().checked_sub(1);
                    cursor.seek_to_last()
                }
                2 => {
                    let key = self.key();
                    at = entries.iter().position(|(k, _)| *k >= key);
                    cursor.seek(&key)
                }
                3 => {
                    let key = self.key();
                    at = entries.iter().rposition(|(k, _)| *k <= key);
                    cursor.seek_for_prev(&key)
                }
                4..8 => {
                    at = at.and_then(|at| (at + 1 < entries.len()).then_some(at + 1));
                    cursor.next()
                }
                _ => {
                    at = at.and_then(|at| at.checked_sub(1));
                    cursor.prev()
                }
            };
            assert_eq!(valid.unwrap(), at.is_some());
            let here = cursor.key().zip(cursor.value()).map(|(k, v)| (k.to_vec(), v.to_vec()));
            assert_eq!(here.as_ref(), at.map(|at| &entries[at]));
        }
    }

    fn read_snapshot(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.snapshots.len());
        let key = self.key();
        let (snapshot, model) = &self.snapshots[at];
        for (name, map) in model {
            let keyspace = self.db().existing_keyspace(name).unwrap().expect("not dropped while snapshots live");
            let view = snapshot.keyspace(&keyspace);
            assert_eq!(view.get(&key).unwrap().as_deref(), map.get(&key).map(Vec::as_slice));
            let entries: Vec<_> = view.iter().map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert!(entries.iter().map(|(k, v)| (k, v)).eq(map.iter()));
            let backward = view.iter().rev().map(|e| e.unwrap().0.to_vec());
            assert!(backward.eq(map.keys().rev().cloned()));
        }
    }

    fn options(&mut self) -> tamis::Options {
        let (options, executor) = tiny_options(&self.fs, &mut self.rng);
        self.executor = executor;
        // What no compaction relied on is forgotten.
        self.clock.store(self.now, Ordering::Relaxed);
        with_clock(options, &self.clock).mmap_reads(self.mmap_reads)
    }

    /// Closes the store cleanly, or as if the process had been killed.
    fn reopen(&mut self) {
        self.snapshots.clear();
        let db = self.db.take().unwrap();
        if self.rng.bool() {
            db.close().unwrap();
        } else {
            let killed = self.fs.kill();
            drop(db);
            self.fs = killed;
        }
        self.db = Some(self.options().open("/db").unwrap());
        self.check_all();
    }

    /// A read-only handle beside the open one sees the same and changes nothing.
    fn check_read_only(&mut self) {
        let before = self.fs.mutations();
        let (options, _) = tiny_options(&self.fs, &mut self.rng);
        self.clock.store(self.now, Ordering::Relaxed);
        let reader = with_clock(options, &self.clock).mmap_reads(!self.mmap_reads).open_read_only("/db").unwrap();
        for (name, map) in &self.model {
            let keyspace = reader.existing_keyspace(name).unwrap().expect("in the manifest");
            let keys: Vec<Vec<u8>> = keyspace.iter().map(|e| e.unwrap().0.to_vec()).collect();
            assert!(keys.iter().eq(map.keys()));
        }
        assert!(matches!(reader.put("k", "v"), Err(tamis::Error::ReadOnly(_))));
        drop(reader);
        assert_eq!(self.fs.mutations(), before);
    }

    fn check_all(&self) {
        assert!(self.db().keyspace_names().unwrap().iter().all(|name| self.model.contains_key(name)));
        for (name, map) in &self.model {
            let keyspace = self.db().existing_keyspace(name).unwrap().expect("survives");
            let entries: Vec<_> = keyspace.iter().map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert!(entries.iter().map(|(k, v)| (k, v)).eq(map.iter()), "{name}");
        }
    }

    /// Once everything is compacted and nothing refers to old files, the directory holds exactly
    /// the files it must.
    fn check_settled(&mut self) {
        self.snapshots.clear();
        self.move_clock(self.now + 1000);
        for name in self.model.keys() {
            self.db().keyspace(name).unwrap().compact_range(..).unwrap();
        }
        while self.executor.step() {}
        self.check_all();
        let stats = self.db().stats();
        let tables: usize = stats.keyspaces.iter().flat_map(|k| &k.levels).map(|l| l.tables.len()).sum();
        let files = self.fs.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "sst")).count();
        assert_eq!(files, tables, "obsolete tables are removed");
        for level in stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels) {
            let tombstones: u64 = level.tables.iter().map(|table| table.tombstones).sum();
            assert_eq!(tombstones, 0, "tombstones are gone");
        }
        let entries: u64 = stats.keyspaces.iter().flat_map(|k| &k.levels).map(|l| l.entries()).sum();
        assert_eq!(entries, self.model.values().map(|map| map.len() as u64).sum::<u64>(), "old versions are gone");
    }
}

#[test]
fn agrees_with_a_map() {
    for_each_seed(count_from_env("TAMIS_CASES", 2500), |seed| {
        let mut pair = ModelledStore::new(seed);
        let steps = pair.rng.u32(20..400);
        for _ in 0..steps {
            pair.step();
        }
        pair.check_all();
        pair.check_settled();
    });
}
