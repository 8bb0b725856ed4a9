//! What a handle has read once it reads again, as long as it lives: whatever is written, expires,
//! is scanned by others, or is dropped by compactions.
//!
//! `TAMIS_SEEDS` sets the number of histories, `TAMIS_SEED` runs one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use tamis::operator::CompactionDecision;
use tamis::vfs::SimFileSystem;
use tamis::{Cursor, Db, Iter, Keyspace, KeyspaceOptions, Snapshot, Transaction, Value};

use crate::support::{count_from_env, for_each_seed, stepped_options, tiny_options};

const KEYS: u8 = 60;

type Contents = BTreeMap<u8, u32>;

fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// A value, and when it expires.
type Stored = (u32, Option<u64>);

/// What reads at one moment.
#[expect(clippy::large_enum_variant, reason = "a test has few")]
enum Handle {
    Snapshot(Snapshot),
    Transaction(Box<Transaction>),
    /// Not begun, and begun from both ends.
    Iter(Iter),
    Cursor(Cursor),
}

struct History {
    rng: fastrand::Rng,
    clock: Arc<AtomicU64>,
    db: Db,
    model: BTreeMap<u8, Stored>,
    value: u32,
    handles: Vec<(Handle, Contents, String)>,
    _fs: SimFileSystem,
}

fn decode((key, value): (Value, Value)) -> (u8, u32) {
    (key[0], u32::from_be_bytes(value[..4].try_into().unwrap()))
}

impl History {
    fn new(seed: u64) -> History {
        let (mut rng, fs, clock) = (fastrand::Rng::with_seed(seed), SimFileSystem::new(), Arc::new(AtomicU64::new(0)));
        let shown = Arc::clone(&clock);
        let (options, _) = tiny_options(&fs, &mut rng);
        let separate = [None, Some(16)][rng.usize(0..2)];
        let keyspace = KeyspaceOptions::new().separate_values(separate).block_size(256);
        let options = options.clock(move || time(shown.load(Ordering::Relaxed))).default_keyspace(keyspace);
        let db = options.open("/db").unwrap();
        History { rng, clock, db, model: BTreeMap::new(), value: 0, handles: Vec::new(), _fs: fs }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn contents(&self) -> Contents {
        let now = self.now();
        let lives = |deadline: &Option<u64>| deadline.is_none_or(|deadline| now < deadline);
        self.model.iter().filter(|(_, (_, deadline))| lives(deadline)).map(|(k, (v, _))| (*k, *v)).collect()
    }

    fn put(&mut self, key: u8, deadline: Option<u64>) {
        self.value += 1;
        let mut value = self.value.to_be_bytes().to_vec();
        value.resize(4 + self.rng.usize(0..60), 0);
        match deadline {
            Some(deadline) => self.db.put_with_expiry([key], value, time(deadline)).unwrap(),
            None => self.db.put([key], value).unwrap(),
        };
        self.model.insert(key, (self.value, deadline));
    }

    fn take_handle(&mut self) {
        let handle = match self.rng.u8(0..5) {
            0 | 1 => Handle::Snapshot(self.db.snapshot()),
            2 => Handle::Transaction(Box::new(self.db.begin())),
            3 => Handle::Iter(self.db.iter()),
            _ => Handle::Cursor(self.db.cursor().unwrap()),
        };
        let scene = format!("taken at {}", self.now());
        self.handles.push((handle, self.contents(), scene));
    }

    /// Reads through a handle, in a way that `rng` chooses.
    fn check(&mut self) {
        if self.handles.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.handles.len());
        let (low, high) = (self.rng.u8(0..KEYS), self.rng.u8(0..KEYS));
        let way = self.rng.u8(0..4);
        let scene = format!("{}, read at {}, way {way}", self.handles[at].2, self.now());
        let is_iter = matches!(self.handles[at].0, Handle::Iter(_));
        let (handle, expected, _) = &mut self.handles[at];
        let list = |contents: &Contents| contents.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>();
        let within: Contents = expected.range(low..high.max(low)).map(|(k, v)| (*k, *v)).collect();
        match handle {
            Handle::Snapshot(snapshot) => match way {
                0 => {
                    let value = snapshot.get([low]).unwrap();
                    let value = value.map(|value| u32::from_be_bytes(value[..4].try_into().unwrap()));
                    assert_eq!(value, expected.get(&low).copied(), "{scene}, {low}");
                    assert_eq!(snapshot.contains_key([low]).unwrap(), expected.contains_key(&low), "{scene}, {low}");
                    let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
                    let all = snapshot.multi_get(&keys).unwrap();
                    let found: Vec<u8> = (0..KEYS).filter(|key| all[usize::from(*key)].is_some()).collect();
                    assert_eq!(found, expected.keys().copied().collect::<Vec<_>>(), "{scene}");
                }
                1 => {
                    let found: Vec<_> = snapshot.range([low]..[high.max(low)]).map(|e| decode(e.unwrap())).collect();
                    assert_eq!(found, list(&within), "{scene}");
                }
                2 => {
                    let mut found: Vec<_> = snapshot.iter().rev().map(|e| decode(e.unwrap())).collect();
                    found.reverse();
                    assert_eq!(found, list(expected), "{scene}");
                }
                _ => {
                    let found: Vec<_> = snapshot.iter().map(|e| decode(e.unwrap())).collect();
                    assert_eq!(found, list(expected), "{scene}");
                }
            },
            Handle::Transaction(tx) => match way {
                0 | 1 => {
                    let value = tx.get([low]).unwrap();
                    let value = value.map(|value| u32::from_be_bytes(value[..4].try_into().unwrap()));
                    assert_eq!(value, expected.get(&low).copied(), "{scene}, {low}");
                }
                2 => {
                    let found: Vec<_> = tx.range([low]..[high.max(low)]).map(|e| decode(e.unwrap())).collect();
                    assert_eq!(found, list(&within), "{scene}");
                }
                _ => {
                    let mut found: Vec<_> = tx.range(..).rev().map(|e| decode(e.unwrap())).collect();
                    found.reverse();
                    assert_eq!(found, list(expected), "{scene}");
                }
            },
            Handle::Iter(iter) => {
                // An end first, then all from both ends.
                iter.seek([low]);
                let next = iter.next().map(|e| decode(e.unwrap()));
                assert_eq!(next, list(expected).into_iter().find(|(key, _)| *key >= low), "{scene}");
                iter.seek([0]);
                let found: Vec<_> = iter.map(|e| decode(e.unwrap())).collect();
                assert_eq!(found, list(expected), "{scene}");
            }
            Handle::Cursor(cursor) => {
                let entry = |cursor: &Cursor| {
                    let value = cursor.value()?;
                    Some((cursor.key()?[0], u32::from_be_bytes(value[..4].try_into().unwrap())))
                };
                cursor.seek([low]).unwrap();
                assert_eq!(entry(cursor), list(expected).into_iter().find(|(key, _)| *key >= low), "{scene}");
                cursor.seek_for_prev([low]).unwrap();
                assert_eq!(entry(cursor), list(expected).into_iter().rfind(|(key, _)| *key <= low), "{scene}");
                cursor.seek_to_first().unwrap();
                let mut found = Vec::new();
                while let Some(entry) = entry(cursor) {
                    found.push(entry);
                    cursor.next().unwrap();
                }
                assert_eq!(found, list(expected), "{scene}");
            }
        }
        if is_iter || self.rng.u8(0..3) == 0 {
            self.handles.swap_remove(at);
        }
    }

    fn step(&mut self) {
        let (key, now) = (self.rng.u8(0..KEYS), self.now());
        match self.rng.u8(0..20) {
            // Many that expire together: scans note gaps.
            0..3 => {
                let deadline = now + self.rng.u64(1..40);
                (key..KEYS.min(key + 25)).for_each(|key| self.put(key, Some(deadline)));
            }
            3..5 => {
                let deadline = self.rng.bool().then(|| now + self.rng.u64(1..60));
                self.put(key, deadline);
            }
            5 => {
                self.db.delete([key]).unwrap();
                self.model.remove(&key);
            }
            6 => {
                let end = KEYS.min(key + self.rng.u8(0..20));
                self.db.delete_range([key]..[end]).unwrap();
                self.model.retain(|k, _| !(key..end).contains(k));
            }
            7..10 => self.clock.store(now + self.rng.u64(0..20), Ordering::Relaxed),
            10 => self.db.flush().unwrap(),
            11 => self.db.compact_range(..).unwrap(),
            12 => self.db.wait_for_compactions().unwrap(),
            13..15 => {
                // Other readers, now.
                let expected: Vec<_> = self.contents().into_iter().collect();
                let found: Vec<_> = self.db.iter().map(|e| decode(e.unwrap())).collect();
                assert_eq!(found, expected, "at {now}");
                let mut found: Vec<_> = self.db.iter().rev().map(|e| decode(e.unwrap())).collect();
                found.reverse();
                assert_eq!(found, expected, "at {now}");
            }
            15..17 => self.take_handle(),
            _ => self.check(),
        }
    }
}

#[test]
fn a_handle_reads_one_number_and_one_time_until_it_is_dropped() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 80), |seed| {
        let mut history = History::new(seed);
        (0..150).for_each(|_| history.step());
        while !history.handles.is_empty() {
            history.check();
        }
        // Without handles, nothing is held back.
        history.clock.store(history.now() + 100, Ordering::Relaxed);
        history.db.compact_range(..).unwrap();
        let left: u64 =
            history.db.stats().keyspaces[0].levels.iter().flat_map(|level| &level.tables).map(|t| t.entries).sum();
        assert_eq!(left, history.contents().len() as u64);
    });
}

/// The first of the cases, step by step.
#[test]
fn deadlines_that_pass_change_nothing_for_a_transaction() {
    let (fs, clock) = (SimFileSystem::new(), Arc::new(AtomicU64::new(0)));
    let shown = Arc::clone(&clock);
    let options = stepped_options(&fs).0.clock(move || time(shown.load(Ordering::Relaxed)));
    let db = options.open("/db").unwrap();
    (0..100u8).for_each(|key| _ = db.put_with_expiry([key], "v", time(50)).unwrap());
    let (tx, snapshot) = (db.begin(), db.snapshot());
    let check = || {
        assert_eq!((tx.range(..).count(), snapshot.iter().count()), (100, 100));
        assert!(tx.get([7]).unwrap().is_some() && snapshot.get([7]).unwrap().is_some());
    };
    check();
    clock.store(50, Ordering::Relaxed);
    check();
    assert_eq!(db.iter().count(), 0);
    check();
    db.compact_range(..).unwrap();
    check();
    assert_eq!((db.iter().count(), db.get([7]).unwrap()), (0, None));
    drop((tx, snapshot));
    db.compact_range(..).unwrap();
    assert!(db.stats().keyspaces[0].levels.iter().all(|level| level.tables.is_empty()));
}

/// A snapshot taken while a compaction with a filter runs sees what was there, before and after.
#[test]
fn a_compaction_filter_changes_nothing_for_a_snapshot_taken_while_it_runs() {
    static DB: OnceLock<(Db, Keyspace)> = OnceLock::new();
    type Taken = (Snapshot, Vec<(Vec<u8>, Vec<u8>)>);
    static TAKEN: Mutex<Vec<Taken>> = Mutex::new(Vec::new());
    let read = |snapshot: &Snapshot| -> Vec<(Vec<u8>, Vec<u8>)> {
        snapshot.iter().map(Result::unwrap).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
    };
    let filter = move |key: &[u8], _: &[u8]| {
        let (db, keyspace) = DB.get().unwrap();
        if key[0].is_multiple_of(16) {
            let snapshot = db.snapshot().keyspace(keyspace);
            let contents = read(&snapshot);
            TAKEN.lock().unwrap().push((snapshot, contents));
        }
        match key[0] % 3 {
            0 => CompactionDecision::Keep,
            1 => CompactionDecision::Drop,
            _ => CompactionDecision::Replace(b"replaced".to_vec()),
        }
    };
    let fs = SimFileSystem::new();
    let db = stepped_options(&fs).0.table_size(4096).open("/db").unwrap();
    let keyspace = db.keyspace_with("k", KeyspaceOptions::new().compaction_filter(filter)).unwrap();
    (0..96u8).for_each(|key| _ = keyspace.put([key], "v").unwrap());
    assert!(DB.set((db.clone(), keyspace.clone())).is_ok());
    keyspace.compact_range(..).unwrap();
    // Others note the gaps that the filter has left.
    assert_eq!((keyspace.iter().count(), keyspace.iter().rev().count()), (64, 64));
    // Later writes are not seen.
    keyspace.put([200], "later").unwrap();
    db.flush().unwrap();
    let taken = std::mem::take(&mut *TAKEN.lock().unwrap());
    assert!(taken.len() >= 6);
    for (snapshot, contents) in &taken {
        assert_eq!((contents.len(), read(snapshot) == *contents), (96, true));
        let mut backward: Vec<_> = snapshot.iter().rev().map(Result::unwrap).collect();
        backward.reverse();
        assert!(backward.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).eq(contents.iter().cloned()));
        for key in 0..96u8 {
            assert_eq!(snapshot.get([key]).unwrap().as_deref(), Some(&b"v"[..]), "{key}");
        }
        let keys: Vec<[u8; 1]> = (0..96).map(|key| [key]).collect();
        assert!(snapshot.multi_get(&keys).unwrap().iter().all(Option::is_some));
    }
}
