//! Law 2 for merges: reads of a key combine each of its operands about once, however many there
//! are and whatever the operator is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tamis::operator::{MergeError, MergeOperator};
use tamis::vfs::SimFileSystem;
use tamis::{Db, KeyspaceOptions};

use crate::support::{for_each_seed, stepped_options};

/// Keeps the least and the greatest of all numbers, and counts the operands that it gets.
struct Bounds(Arc<AtomicU64>);

impl MergeOperator for Bounds {
    fn name(&self) -> &str {
        "test.bounds"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        self.0.fetch_add(operands.len() as u64, Ordering::Relaxed);
        let numbers =
            || operands.iter().flat_map(|operand| operand.as_chunks::<2>().0).map(|bytes| u16::from_be_bytes(*bytes));
        let (Some(least), Some(greatest)) = (numbers().min(), numbers().max()) else {
            return Err(MergeError::new("no number"));
        };
        out.extend(least.to_be_bytes());
        out.extend(greatest.to_be_bytes());
        Ok(())
    }
}

fn open(fs: &SimFileSystem) -> (Db, Arc<AtomicU64>) {
    let combined = Arc::new(AtomicU64::new(0));
    let keyspace = KeyspaceOptions::new().merge_operator(Bounds(Arc::clone(&combined)));
    let options = stepped_options(fs).0.memtable_size(8 << 20).default_keyspace(keyspace);
    (options.open("/db").unwrap(), combined)
}

#[test]
fn a_read_does_not_combine_again_what_one_before_it_has_combined() {
    const OPERANDS: u64 = 20_000;
    const READS: u64 = 300;
    type Read = fn(&Db) -> Option<Vec<u8>>;
    let reads: [(&str, Read); 4] = [
        ("get", |db| db.get("k").unwrap().map(|value| value.to_vec())),
        ("multi_get", |db| db.multi_get(&["k"]).unwrap().remove(0).map(|value| value.to_vec())),
        ("snapshot", |db| db.snapshot().get("k").unwrap().map(|value| value.to_vec())),
        ("transaction", |db| db.transact(|txn| txn.get("k")).unwrap().map(|value| value.to_vec())),
    ];
    for (name, read) in reads {
        for base in [None, Some("flushed"), Some("in memory")] {
            for flushes in [false, true] {
                let (db, combined) = open(&SimFileSystem::new());
                if base.is_some() {
                    db.put("k", 7_u16.to_be_bytes()).unwrap();
                }
                if base == Some("flushed") {
                    db.flush().unwrap();
                }
                for i in 0..OPERANDS {
                    db.merge("k", u16::try_from(1000 + i % 1000).unwrap().to_be_bytes()).unwrap();
                }
                if flushes {
                    db.flush().unwrap();
                }
                combined.store(0, Ordering::Relaxed);
                for _ in 0..READS {
                    db.merge("k", 1500_u16.to_be_bytes()).unwrap();
                    let least = if base.is_some() { 7_u16 } else { 1000 };
                    let expected = [least.to_be_bytes(), 1999_u16.to_be_bytes()].concat();
                    assert_eq!(read(&db), Some(expected), "{name} {base:?} {flushes}");
                }
                let most = OPERANDS + READS * 200;
                let combined = combined.load(Ordering::Relaxed);
                assert!(combined < most, "{name}, base {base:?}, {flushes}: {combined} operands, {most} at most");
            }
        }
    }
}

#[test]
fn every_snapshot_sees_its_own_prefix_of_a_long_chain() {
    for_each_seed(30, |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (db, _) = open(&SimFileSystem::new());
        let mut current: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
        let mut snapshots = Vec::new();
        let value = |numbers: &Vec<u16>| match numbers[..] {
            [] => None,
            // A single operand or value is as it was written.
            [number] => Some(number.to_be_bytes().to_vec()),
            _ => {
                let (least, greatest) = (numbers.iter().min().unwrap(), numbers.iter().max().unwrap());
                Some([least.to_be_bytes(), greatest.to_be_bytes()].concat())
            }
        };
        for _ in 0..60 {
            for _ in 0..rng.u32(1..150) {
                let (key, number) = (["a", "b"][rng.usize(0..2)], rng.u16(..));
                db.merge(key, number.to_be_bytes()).unwrap();
                current.entry(key).or_default().push(number);
            }
            let key = ["a", "b"][rng.usize(0..2)];
            match rng.u32(0..14) {
                0 => {
                    db.put(key, 5_u16.to_be_bytes()).unwrap();
                    current.insert(key, vec![5]);
                }
                1 => {
                    db.delete(key).unwrap();
                    current.remove(key);
                }
                2 => {
                    db.delete_range("a".."b").unwrap();
                    current.remove("a");
                }
                3 => db.flush().unwrap(),
                4 => db.compact_range(..).unwrap(),
                5 if !snapshots.is_empty() => drop(snapshots.swap_remove(rng.usize(0..snapshots.len()))),
                6..9 => snapshots.push((db.snapshot(), current.clone())),
                _ => {}
            }
            for key in ["a", "b"] {
                let expected = |model: &BTreeMap<&str, Vec<u16>>| model.get(key).and_then(value);
                let got = db.get(key).unwrap().map(|value| value.to_vec());
                assert_eq!(got, expected(&current), "{key}");
                for (snapshot, model) in &snapshots {
                    let got = snapshot.get(key).unwrap().map(|value| value.to_vec());
                    assert_eq!(got, expected(model), "{key} in a snapshot");
                }
            }
        }
        snapshots.clear();
        db.flush().unwrap();
        let got = db.get("b").unwrap().map(|value| value.to_vec());
        assert_eq!(got, current.get("b").and_then(value));
    });
}
