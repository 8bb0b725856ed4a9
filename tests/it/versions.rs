//! Keys of which a memtable holds many versions: is each read right, and does its price not grow
//! with their number?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::operator::Append;
use tamis::vfs::SimFileSystem;
use tamis::{Cursor, Db, KeyspaceOptions, Options, Snapshot, Value};

use crate::support::{for_each_seed, stepped_options};

fn options() -> Options {
    stepped_options(&SimFileSystem::new()).0
}

/// What a scan from the front finds.
fn forward(snapshot: &Snapshot) -> Vec<(Value, Value)> {
    snapshot.iter().map(|entry| entry.unwrap()).collect()
}

fn entry(cursor: &Cursor) -> Option<(Value, Value)> {
    Some((cursor.key()?.into(), cursor.value()?.into()))
}

/// Every key has many versions: puts, values with deadlines, operands, deletes, ranges of deletes.
#[test]
fn a_scan_backward_finds_what_one_forward_does() {
    for_each_seed(60, |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let now = Arc::new(AtomicU64::new(1_000));
        let shown = Arc::clone(&now);
        let clock = move || SystemTime::UNIX_EPOCH + Duration::from_secs(shown.load(Ordering::Relaxed));
        let keyspace = KeyspaceOptions::new().merge_operator(Append).separate_values(rng.bool().then_some(40));
        let db = options().memtable_size(8 << 20).clock(clock).default_keyspace(keyspace).open("/db").unwrap();
        let mut snapshots = vec![db.snapshot()];
        for i in 0..rng.usize(200..900) {
            let key = [b'a' + rng.u8(..8)];
            let value = format!("value {i} ").repeat(rng.usize(1..6));
            match rng.u32(..100) {
                0..50 => drop(db.put(key, value).unwrap()),
                50..60 => drop(db.put_with_ttl(key, value, Duration::from_secs(rng.u64(1..60))).unwrap()),
                60..75 => drop(db.merge(key, "more").unwrap()),
                75..95 => drop(db.delete(key).unwrap()),
                95 => drop(db.delete_range(key..[key[0] + rng.u8(1..3)]).unwrap()),
                96 => snapshots.push(db.snapshot()),
                97 if rng.u8(..8) == 0 => db.flush().unwrap(),
                _ => _ = now.fetch_add(rng.u64(..8), Ordering::Relaxed),
            }
        }
        snapshots.push(db.snapshot());
        for (i, snapshot) in snapshots.iter().enumerate() {
            let expected = forward(snapshot);
            let mut backward: Vec<_> = snapshot.iter().rev().map(|entry| entry.unwrap()).collect();
            backward.reverse();
            assert!(backward == expected, "snapshot {i}: {backward:?}, and forward {expected:?}");
            let mut cursor = snapshot.cursor().unwrap();
            let mut at = expected.len();
            let mut is_there = cursor.seek_to_last().unwrap();
            for _ in 0..60 {
                at = at.wrapping_sub(1);
                assert_eq!(
                    (is_there, entry(&cursor)),
                    (at < expected.len(), expected.get(at).cloned()),
                    "snapshot {i}"
                );
                if !is_there {
                    break;
                }
                // To and fro: two steps back for each step forward.
                if rng.u8(..3) == 0 && at + 1 < expected.len() {
                    assert!(cursor.next().unwrap());
                    assert_eq!(entry(&cursor), expected.get(at + 1).cloned());
                    at += 1;
                }
                is_there = cursor.prev().unwrap();
            }
        }
    });
}

/// Counts tombstones that scans step over, never time.
#[test]
fn the_last_key_costs_no_more_the_more_versions_it_has() {
    let db: Db = options().memtable_size(8 << 20).open("/db").unwrap();
    db.put("a", "first").unwrap();
    for i in 0..10_000u32 {
        db.delete("b").unwrap();
        db.put("b", i.to_be_bytes()).unwrap();
    }
    let passed = || db.stats().reads().tombstones_passed;
    for (last, is_deleted) in [("b", false), ("a", true)] {
        if is_deleted {
            db.delete("b").unwrap();
        }
        let before = passed();
        let (key, _) = db.iter().next_back().unwrap().unwrap();
        assert_eq!(key, last);
        assert!(passed() - before < 50, "{}", passed() - before);
    }
}

/// What a scan notes of deleted keys ends at the key that it finds.
#[test]
fn a_key_with_many_versions_is_not_taken_for_a_part_of_what_is_deleted_beside_it() {
    let db = options().memtable_size(8 << 20).open("/db").unwrap();
    db.put("a", "first").unwrap();
    for i in 0..50u32 {
        db.put("b", i.to_be_bytes()).unwrap();
    }
    for i in 0..500u32 {
        db.put(format!("c{i:03}"), "value").unwrap();
        db.delete(format!("c{i:03}")).unwrap();
    }
    for _ in 0..4 {
        let keys = |keys: tamis::Iter| keys.map(|entry| entry.unwrap().0).collect::<Vec<_>>();
        assert_eq!(db.iter().next_back().unwrap().unwrap().0, "b");
        assert_eq!(keys(db.iter()), ["a", "b"]);
        db.put("d", "value").unwrap();
        db.delete("d").unwrap();
    }
    let before = db.stats().reads().tombstones_passed;
    assert_eq!(db.iter().next_back().unwrap().unwrap().0, "b");
    assert!(db.stats().reads().tombstones_passed - before < 100, "it has been noted");
}
