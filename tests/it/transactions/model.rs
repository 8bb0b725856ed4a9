//! A transaction over a store, against one over a map.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use tamis::vfs::SimFileSystem;
use tamis::{Db, Error, Keyspace, Savepoint, Transaction};

use crate::support::{Scene, count_from_env, for_each_seed, tiny_options};

type Map = BTreeMap<(usize, Vec<u8>), Vec<u8>>;
/// What is done to a key in one of the keyspaces, or from this key on.
type Write = ((usize, Vec<u8>), Written);

#[derive(Clone)]
enum Written {
    Put(Vec<u8>),
    Delete,
    /// Without an end, up to that of the keyspace.
    DeleteUntil(Option<Vec<u8>>),
}

/// The keys from `lower` up to `upper`, or to the end of the keyspace.
fn range(lower: &[u8], upper: Option<&[u8]>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (Bound::Included(lower.to_vec()), upper.map_or(Bound::Unbounded, |upper| Bound::Excluded(upper.to_vec())))
}

fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    (0..rng.usize(0..3)).map(|_| rng.u8(b'a'..b'e')).collect()
}

/// The end of a range, if it has one.
fn end(rng: &mut fastrand::Rng) -> Option<Vec<u8>> {
    (rng.u32(0..4) > 0).then(|| key(rng))
}

/// The entries of a range in `map`, taken from both ends as `ends` says (true is the front).
fn in_map(map: &Map, keyspace: usize, lower: &[u8], upper: Option<&[u8]>, ends: &[bool]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let within = |(of, key): &(usize, Vec<u8>)| *of == keyspace && range(lower, upper).contains(key);
    let mut entries = map.iter().filter(|(key, _)| within(key)).map(|((_, key), value)| (key.clone(), value.clone()));
    let taken = ends.iter().map_while(|&front| if front { entries.next() } else { entries.next_back() });
    taken.collect()
}

fn in_transaction(
    transaction: &Transaction,
    keyspace: &Keyspace,
    lower: &[u8],
    upper: Option<&[u8]>,
    ends: &[bool],
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut entries = transaction.range_in(keyspace, range(lower, upper));
    let taken = ends.iter().map_while(|&front| if front { entries.next() } else { entries.next_back() });
    taken.map(|entry| entry.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// `map` after writes in their order.
fn after(map: &Map, writes: &[Write]) -> Map {
    let mut map = map.clone();
    for (key, written) in writes {
        match written {
            Written::Put(value) => _ = map.insert(key.clone(), value.clone()),
            Written::Delete => _ = map.remove(key),
            Written::DeleteUntil(end) => {
                let deleted = range(&key.1, end.as_deref());
                map.retain(|(of, other), _| *of != key.0 || !deleted.contains(other));
            }
        }
    }
    map
}

/// One transaction of random steps. Others write meanwhile, and must not show.
fn run(db: &Db, keyspaces: &[Keyspace], committed: &mut Map, rng: &mut fastrand::Rng) {
    let mut transaction = db.begin();
    let mut writes = Vec::new();
    let mut savepoints: Vec<(Savepoint, usize)> = Vec::new();
    let mut outside = Vec::new();
    for _ in 0..rng.usize(1..20) {
        let (of, key) = (rng.usize(0..2), key(rng));
        let keyspace = &keyspaces[of];
        match rng.u32(0..16) {
            0..=3 => {
                let value = vec![rng.u8(..); rng.usize(0..40)];
                transaction.put_in(keyspace, &key, &value);
                writes.push(((of, key), Written::Put(value)));
            }
            4 | 5 => {
                transaction.delete_in(keyspace, &key);
                writes.push(((of, key), Written::Delete));
            }
            6 | 7 => {
                let value = transaction.get_in(keyspace, &key).unwrap();
                let own = after(committed, &writes);
                assert_eq!(value.as_deref(), own.get(&(of, key.clone())).map(Vec::as_slice), "{key:?}");
                assert_eq!(transaction.contains_key_in(keyspace, &key).unwrap(), value.is_some());
            }
            8..=10 => {
                let upper = end(rng);
                let ends: Vec<bool> = (0..rng.usize(0..12)).map(|_| rng.bool()).collect();
                let seen = in_transaction(&transaction, keyspace, &key, upper.as_deref(), &ends);
                let own = after(committed, &writes);
                assert_eq!(seen, in_map(&own, of, &key, upper.as_deref(), &ends), "{key:?}..{upper:?} {ends:?}");
            }
            11 => savepoints.push((transaction.savepoint(), writes.len())),
            12 => {
                if !savepoints.is_empty() {
                    savepoints.truncate(rng.usize(1..=savepoints.len()));
                    let (savepoint, len) = savepoints.last().unwrap();
                    transaction.rollback_to(savepoint).unwrap();
                    writes.truncate(*len);
                }
            }
            13 | 14 => {
                let end = end(rng);
                transaction.delete_range_in(keyspace, range(&key, end.as_deref()));
                writes.push(((of, key), Written::DeleteUntil(end)));
            }
            _ => {
                keyspace.put(&key, "outside").unwrap();
                outside.push(((of, key), Written::Put(b"outside".to_vec())));
            }
        }
    }
    let is_alone = outside.is_empty();
    *committed = after(committed, &outside);
    match transaction.commit() {
        Ok(_) => *committed = after(committed, &writes),
        Err(Error::Conflict { .. }) => assert!(!is_alone, "nobody else wrote"),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(contents(keyspaces), *committed);
}

fn contents(keyspaces: &[Keyspace]) -> Map {
    let mut map = Map::new();
    for (of, keyspace) in keyspaces.iter().enumerate() {
        for entry in keyspace.iter() {
            let (key, value) = entry.unwrap();
            map.insert((of, key.to_vec()), value.to_vec());
        }
    }
    map
}

#[test]
fn a_transaction_reads_as_a_map_does() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 300), |seed| {
        let _scene = Scene(format!("seed {seed}"));
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = SimFileSystem::new();
        let (options, executor) = tiny_options(&fs, &mut rng);
        let db = options.open("/db").unwrap();
        let keyspaces = [db.default_keyspace().clone(), db.keyspace("other").unwrap()];
        let mut committed = Map::new();
        for _ in 0..20 {
            run(&db, &keyspaces, &mut committed, &mut rng);
            if rng.u32(0..4) == 0 {
                db.flush().unwrap();
            }
            (0..rng.usize(0..4)).for_each(|_| {
                executor.step();
            });
        }
    });
}
