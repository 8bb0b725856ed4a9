//! Histories of concurrent transactions, checked by replaying them one by one.
//!
//! Every transaction notes what it read, absent keys and ranges included, and what it wrote. The
//! checker replays those that committed, in the order of their sequence numbers, on a map. Each
//! must have read exactly what the map holds at its turn. That is serialisability, and because the
//! whole state is compared, it covers every anomaly at once. A transaction must also see all that
//! had committed before it began.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tamis::vfs::SimFileSystem;
use tamis::{Change, Db, Error, Options, SeqNo, WriteOptions};

use crate::support::{Scene, Watchdog, count_from_env, for_each_seed};

const KEYS: u8 = 8;

#[derive(Debug)]
enum Step {
    Get(u8, Option<u64>),
    Scan(u8, u8, Vec<(u8, u64)>),
    Put(u8, u64),
    Delete(u8),
}

#[derive(Debug)]
struct Committed {
    seqno: SeqNo,
    steps: Vec<Step>,
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// Numbers that no two writes share.
fn fresh(next: &AtomicU64) -> u64 {
    next.fetch_add(1, Ordering::Relaxed)
}

/// One random transaction. Returns it if it committed a write.
fn transaction(
    db: &Db,
    rng: &mut fastrand::Rng,
    values: &AtomicU64,
    seen: &AtomicU64,
    sync: bool,
) -> Option<Committed> {
    let floor = seen.load(Ordering::Acquire);
    let mut tx = db.begin();
    assert!(tx.snapshot().seqno() >= floor, "it does not see what had committed before it began");
    let mut steps = Vec::new();
    let mut own: BTreeMap<u8, Option<u64>> = BTreeMap::new();
    for _ in 0..rng.u32(1..9) {
        let key = rng.u8(0..KEYS);
        match rng.u32(0..10) {
            0..=3 => {
                let value = tx.get([key]).unwrap().map(|value| number(&value));
                match own.get(&key) {
                    Some(own) => assert_eq!(value, *own, "own write of {key}"),
                    None => steps.push(Step::Get(key, value)),
                }
            }
            4 if own.is_empty() => {
                let (a, b) = (rng.u8(0..=KEYS), rng.u8(0..=KEYS));
                let (low, high) = (a.min(b), a.max(b));
                let entries = tx.range([low]..[high]).map(|entry| entry.unwrap());
                steps.push(Step::Scan(low, high, entries.map(|(key, value)| (key[0], number(&value))).collect()));
            }
            4..=7 => {
                let value = fresh(values);
                tx.put([key], value.to_le_bytes());
                own.insert(key, Some(value));
                steps.push(Step::Put(key, value));
            }
            _ => {
                tx.delete([key]);
                own.insert(key, None);
                steps.push(Step::Delete(key));
            }
        }
    }
    match tx.commit_with(WriteOptions::new().sync(sync)) {
        Ok(seqno) => {
            seen.fetch_max(seqno, Ordering::AcqRel);
            (!own.is_empty()).then_some(Committed { seqno, steps })
        }
        Err(Error::Conflict { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A write by other means, as the transaction that it is equivalent to.
fn plain(db: &Db, rng: &mut fastrand::Rng, values: &AtomicU64) -> Committed {
    let (key, value) = (rng.u8(0..KEYS), fresh(values));
    match rng.u32(0..3) {
        0 => Committed { seqno: db.put([key], value.to_le_bytes()).unwrap(), steps: vec![Step::Put(key, value)] },
        1 => Committed { seqno: db.delete([key]).unwrap(), steps: vec![Step::Delete(key)] },
        _ => {
            let updated = db.update([key], |_| Change::Put(value.to_le_bytes().to_vec())).unwrap();
            let before = updated.before.map(|before| number(&before));
            Committed { seqno: updated.seqno.unwrap(), steps: vec![Step::Get(key, before), Step::Put(key, value)] }
        }
    }
}

/// Replays a history on `map`, which holds what was there before.
fn check(map: &mut BTreeMap<u8, u64>, mut history: Vec<Committed>) {
    history.sort_by_key(|committed| committed.seqno);
    for committed in &history {
        for step in &committed.steps {
            match step {
                Step::Get(key, value) => assert_eq!(map.get(key), value.as_ref(), "{committed:?}"),
                Step::Scan(low, high, entries) => {
                    let now: Vec<(u8, u64)> = map.range(low..high).map(|(key, value)| (*key, *value)).collect();
                    assert_eq!(now, *entries, "{committed:?}");
                }
                // Reads are of the moment before the writes; steps after a write of the key itself
                // are not noted.
                Step::Put(..) | Step::Delete(_) => {}
            }
        }
        for step in &committed.steps {
            match step {
                Step::Put(key, value) => {
                    map.insert(*key, *value);
                }
                Step::Delete(key) => {
                    map.remove(key);
                }
                Step::Get(..) | Step::Scan(..) => {}
            }
        }
    }
}

fn contents(db: &Db) -> BTreeMap<u8, u64> {
    db.iter().map(|entry| entry.unwrap()).map(|(key, value)| (key[0], number(&value))).collect()
}

/// Opens a store, runs transactions in several threads, checks the history, and ends the process.
/// Several times over one store.
fn run(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut fs = SimFileSystem::new();
    let mut map = BTreeMap::new();
    let values = AtomicU64::new(1);
    for _ in 0..3 {
        let options = Options::new().file_system(Arc::new(fs.clone())).memtable_size(8 << 10).table_size(8 << 10);
        let db = options.background_threads(2).open("/db").unwrap();
        assert_eq!(contents(&db), map, "after the process ended");
        let seen = AtomicU64::new(0);
        let threads = rng.u64(2..=8);
        let histories: Vec<Vec<Committed>> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|_| {
                    let (mut rng, db, values, seen) = (rng.fork(), &db, &values, &seen);
                    scope.spawn(move || {
                        let mut history = Vec::new();
                        for i in 0..150 {
                            match rng.u32(0..8) {
                                0 => history.push(plain(db, &mut rng, values)),
                                1 if i % 10 == 0 => db.flush().unwrap(),
                                2 if i % 40 == 0 => db.compact_range(..).unwrap(),
                                _ => history.extend(transaction(db, &mut rng, values, seen, i % 30 == 0)),
                            }
                        }
                        history
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        });
        check(&mut map, histories.into_iter().flatten().collect());
        assert_eq!(contents(&db), map);
        // Killed: every acknowledged write is there, and no other.
        fs = fs.kill();
        drop(db);
    }
}

#[test]
fn committed_transactions_replay_one_by_one() {
    let _watchdog = Watchdog::new("committed_transactions_replay_one_by_one");
    for_each_seed(count_from_env("TAMIS_SEEDS", 12), |seed| {
        let _scene = Scene(format!("seed {seed}"));
        run(seed);
    });
}
