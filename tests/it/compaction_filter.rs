//! Does a compaction filter decide about what it should, and about nothing else?

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tamis::inspect::{Finding, FindingKind, Inspector};
use tamis::operator::{Append, CompactionDecision};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Db, Error, KeyspaceOptions, MAX_VALUE_LEN, Options, Value};

use crate::support::for_each_seed;

fn options(fs: &SimFileSystem) -> Options {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    Options::new().file_system(fs).memtable_size(64 << 10).table_size(64 << 10)
}

/// Drops values that begin with `d`, and makes `R` of those that begin with `r`.
fn by_first_letter(_: &[u8], value: &[u8]) -> CompactionDecision {
    match value.first() {
        Some(b'd') => CompactionDecision::Drop,
        Some(b'r') => CompactionDecision::Replace(b"R".to_vec()),
        _ => CompactionDecision::Keep,
    }
}

fn open(fs: &SimFileSystem) -> Db {
    options(fs).default_keyspace(KeyspaceOptions::new().compaction_filter(by_first_letter)).open("/db").unwrap()
}

fn contents(db: &Db) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    db.iter().map(|entry| entry.unwrap()).map(|(key, value)| (text(&key), text(&value))).collect()
}

#[test]
fn a_compaction_keeps_drops_and_replaces_as_it_is_told_and_a_flush_keeps_all() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    for (key, value) in [("a", "keep"), ("b", "drop"), ("c", "replace"), ("e", "keep"), ("e", "drop")] {
        db.put(key, value).unwrap();
    }
    db.flush().unwrap();
    assert_eq!(contents(&db).len(), 4);
    db.default_keyspace().compact_range(..).unwrap();
    let expected = [("a".to_owned(), "keep".to_owned()), ("c".to_owned(), "R".to_owned())];
    assert_eq!(contents(&db), expected);
    db.close().unwrap();
    // Without the filter, nothing comes back.
    let db = options(&fs).open("/db").unwrap();
    assert_eq!(contents(&db), expected);
}

#[test]
fn what_is_in_the_last_level_already_is_asked_about_again() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    (0..1000).for_each(|i| {
        db.put(format!("{i:04}"), if i % 2 == 0 { "keep" } else { "drop" }).unwrap();
    });
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(db.iter().count(), 1000);
    let filter = KeyspaceOptions::new().compaction_filter(by_first_letter);
    db.keyspace_with("default", filter).unwrap();
    db.default_keyspace().compact_range(.."0500").unwrap();
    assert!(db.prefix("00").count() < 100);
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(db.iter().count(), 500);
    // Options without a filter leave it.
    db.keyspace_with("default", KeyspaceOptions::new().block_size(1024)).unwrap();
    db.put("x", "drop").unwrap();
    db.default_keyspace().compact_range(..).unwrap();
    assert!(!db.contains_key("x").unwrap());
}

#[test]
fn a_dropped_value_uncovers_no_older_one() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    db.put("key", "old").unwrap();
    db.put("other", "old").unwrap();
    db.default_keyspace().compact_range(..).unwrap();
    db.keyspace_with("default", KeyspaceOptions::new().compaction_filter(by_first_letter)).unwrap();
    // Runs of level 0, merged among themselves above the old value.
    for i in 0..40 {
        db.put("key", "drop").unwrap();
        db.put(format!("k{i}"), "keep").unwrap();
        db.flush().unwrap();
        assert_ne!(db.get("key").unwrap().as_deref(), Some(&b"old"[..]), "{i}");
    }
    db.wait_for_compactions().unwrap();
    assert_ne!(db.get("key").unwrap().as_deref(), Some(&b"old"[..]));
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(db.get("key").unwrap(), None);
    assert_eq!(db.get("other").unwrap().as_deref(), Some(&b"old"[..]));
}

#[test]
fn snapshots_keep_what_they_see() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    db.put("key", "drop 1").unwrap();
    let snapshot = db.snapshot();
    db.put("key", "drop 2").unwrap();
    db.put("new", "drop 3").unwrap();
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(snapshot.get("key").unwrap().as_deref(), Some(&b"drop 1"[..]));
    assert_eq!((db.get("key").unwrap(), db.get("new").unwrap()), (None, None));
    drop(snapshot);
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(contents(&db), []);
}

#[test]
fn operands_are_combined_before_the_filter_is_asked() {
    let fs = SimFileSystem::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&seen);
    let filter = move |_: &[u8], value: &[u8]| {
        asked.lock().push(value.to_vec());
        CompactionDecision::Keep
    };
    let keyspace = KeyspaceOptions::new().compaction_filter(filter).merge_operator(Append);
    let db = options(&fs).default_keyspace(keyspace).open("/db").unwrap();
    db.put("key", "a").unwrap();
    db.merge("key", "b").unwrap();
    db.flush().unwrap();
    db.merge("key", "c").unwrap();
    db.default_keyspace().compact_range(..).unwrap();
    let seen = seen.lock();
    assert!(!seen.is_empty() && seen.iter().all(|value| value == b"abc"), "{seen:?}");
}

#[test]
fn a_filter_that_panics_fails_its_compaction_and_loses_nothing() {
    let fs = SimFileSystem::new();
    let (panics, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let (fails, counted) = (Arc::clone(&panics), Arc::clone(&calls));
    let filter = move |key: &[u8], _: &[u8]| {
        counted.fetch_add(1, Ordering::Relaxed);
        assert!(key != b"0007" || !fails.load(Ordering::Relaxed), "as requested");
        CompactionDecision::Keep
    };
    let db = options(&fs).default_keyspace(KeyspaceOptions::new().compaction_filter(filter)).open("/db").unwrap();
    (0..20).for_each(|i| {
        db.put(format!("{i:04}"), "value").unwrap();
    });
    let error = db.default_keyspace().compact_range(..).unwrap_err();
    assert!(matches!(&error, Error::CompactionFilter { key, .. } if key == b"0007"), "{error}");
    assert_eq!(db.iter().count(), 20);
    db.put("more", "value").unwrap();
    db.flush().unwrap();
    panics.store(false, Ordering::Relaxed);
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(db.iter().count(), 21);
    assert!(calls.load(Ordering::Relaxed) > 21);
    db.close().unwrap();
}

#[test]
fn a_filter_that_gives_too_long_a_value_fails_its_compaction() {
    for (is_too_long, ttl) in [(false, None), (true, None), (true, Some(Duration::from_secs(60)))] {
        let len = MAX_VALUE_LEN + 1 - ttl.map_or(0, |_| 8);
        let filter = move |_: &[u8], _: &[u8]| match is_too_long {
            true => CompactionDecision::Replace(vec![0; len]),
            false => CompactionDecision::Keep,
        };
        let keyspace = KeyspaceOptions::new().compaction_filter(filter).separate_values(1000).ttl(ttl);
        let db = options(&SimFileSystem::new()).default_keyspace(keyspace).open("/db").unwrap();
        db.put("key", "value").unwrap();
        match db.default_keyspace().compact_range(..) {
            Ok(()) => assert!(!is_too_long),
            Err(error) => assert!(matches!(&error, Error::CompactionFilter { key, .. } if key == b"key"), "{error}"),
        }
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// Stages leave inputs behind that hold what the filter has dropped or replaced.
#[test]
fn a_store_with_a_filter_verifies_at_any_moment() {
    for_each_seed(20, |seed| {
        let fs = SimFileSystem::new();
        let mut rng = fastrand::Rng::with_seed(seed);
        let options = options(&fs).memtable_size(4096).table_size(4096);
        let filter = KeyspaceOptions::new().compaction_filter(by_first_letter).block_size(256);
        let db = options.default_keyspace(filter).open("/db").unwrap();
        for i in 0..3000u32 {
            let value = ["keep", "drop", "replace"][rng.usize(0..3)];
            db.put(format!("{:05}", rng.u32(0..2000)), format!("{value} {i}")).unwrap();
            if i % 700 == 600 {
                let (killed, mut faults) = (fs.kill(), Vec::new());
                let inspector = Inspector::on(Arc::new(killed));
                // Files of a compaction that the kill has interrupted are no fault.
                let mut note = |fault: &Finding| match fault.kind {
                    FindingKind::Leftover => {}
                    _ => faults.push(format!("{fault:?}")),
                };
                inspector.verify("/db".as_ref(), &mut note).unwrap();
                assert_eq!(faults, [] as [String; 0]);
            }
        }
        db.default_keyspace().compact_range(..).unwrap();
        assert!(db.values(..).all(|value| [b'k', b'R'].contains(&value.unwrap()[0])));
    });
}

/// What operands are merged into may be dropped before or after them, but neither a base alone
/// comes back, nor an operand twice.
#[test]
fn with_operands_a_filter_drops_the_value_that_it_saw_and_no_other() {
    for_each_seed(60, |seed| {
        let (mut fs, mut rng) = (SimFileSystem::new(), fastrand::Rng::with_seed(seed));
        let open = |fs: &SimFileSystem| {
            let keyspace = KeyspaceOptions::new().compaction_filter(by_first_letter).merge_operator(Append);
            let options = options(fs).memtable_size(4096).table_size(4096);
            options.default_keyspace(keyspace.block_size(256)).open("/db").unwrap()
        };
        let mut db = open(&fs);
        // The last put of each key, if any, and the operands since.
        let mut written = BTreeMap::<String, (Option<String>, Vec<String>)>::new();
        for i in 0..1500u32 {
            let key = format!("{:03}", rng.u32(0..300));
            let filler = "x".repeat(rng.usize(0..60));
            let of_key = written.entry(key.clone()).or_default();
            if rng.u8(0..3) == 0 {
                let value = format!("{}{i}{filler};", ["k", "d"][rng.usize(0..2)]);
                db.put(&key, &value).unwrap();
                *of_key = (Some(value), Vec::new());
            } else {
                let operand = format!("o{i}{filler};");
                db.merge(&key, &operand).unwrap();
                of_key.1.push(operand);
            }
            match rng.u32(0..1000) {
                0..4 => db.default_keyspace().compact_range(..).unwrap(),
                4..8 => {
                    let killed = fs.kill();
                    drop(db);
                    fs = killed;
                    db = open(&fs);
                }
                8..30 => db.flush().unwrap(),
                _ => {}
            }
            if i % 100 == 99 {
                check(&db, &written);
            }
        }
        db.default_keyspace().compact_range(..).unwrap();
        check(&db, &written);
        assert!(db.values(..).all(|value| value.unwrap()[0] != b'd'));
    });
}

/// Compactions run meanwhile: each read may see another moment.
fn check(db: &Db, written: &BTreeMap<String, (Option<String>, Vec<String>)>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let entry = |entry: tamis::Result<(Value, Value)>| entry.map(|(key, value)| (text(&key), text(&value))).unwrap();
    let forward: BTreeMap<String, String> = db.iter().map(entry).collect();
    let backward: BTreeMap<String, String> = db.iter().rev().map(entry).collect();
    for (key, (base, operands)) in written {
        let point = db.get(key).unwrap().map(|value| text(&value));
        for value in [forward.get(key).cloned(), backward.get(key).cloned(), point] {
            let value = value.unwrap_or_default();
            let whole = base.iter().chain(operands).cloned().collect::<String>();
            if base.as_ref().is_some_and(|base| base.starts_with('d')) {
                // Dropped with the operands before some moment, or not yet.
                let since = (0..=operands.len()).map(|from| operands[from..].concat());
                assert!(since.chain([whole]).any(|possible| possible == value), "{key}: {value}");
            } else {
                assert_eq!(value, whole, "{key}");
            }
        }
    }
}
