//! Do merges give what their operator says, wherever the operands are and with or without it?
//!
//! Random histories (`tests/histories`) merge as well; here are the cases that they do not reach.
#![allow(clippy::disallowed_methods, reason = "looks at a store's files from outside")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tamis::inspect::{Inspector, WriteKind};
use tamis::operator::{Add, Append, Max, MergeError, MergeOperator, Union};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Db, Error, Found, KeyspaceOptions, Options, TableStats, WriteBatch};

use crate::support::Watchdog;

const THREADS: u64 = 4;
const EACH: u64 = 20_000;

fn options(fs: &SimFileSystem) -> Options {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    Options::new().file_system(fs).memtable_size(64 << 10).table_size(64 << 10)
}

fn with_operator(operator: impl MergeOperator + 'static) -> KeyspaceOptions {
    KeyspaceOptions::new().merge_operator(operator)
}

fn tables(db: &Db) -> Vec<TableStats> {
    let keyspaces = db.stats().keyspaces;
    keyspaces.into_iter().flat_map(|keyspace| keyspace.levels).flat_map(|level| level.tables).collect()
}

fn number(db: &Db, key: &str) -> u64 {
    db.get(key).unwrap().map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()))
}

#[test]
fn counters_of_four_threads_add_up_through_flushes_compactions_and_reopening() {
    let _watchdog = Watchdog::new("counters_of_four_threads");
    let fs = SimFileSystem::new();
    let db = options(&fs).default_keyspace(with_operator(Add::LITTLE)).open("/db").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = &db;
            scope.spawn(move || {
                let mut last = 0;
                for i in 0..EACH {
                    db.merge("all", 1u64.to_le_bytes()).unwrap();
                    db.merge(format!("{thread} {}", i % 7), 1u64.to_le_bytes()).unwrap();
                    db.put(format!("other {thread} {}", i % 50), i.to_le_bytes()).unwrap();
                    if i % 500 == 0 {
                        let now = number(db, "all");
                        assert!(now > last && now <= THREADS * EACH);
                        last = now;
                    }
                }
            });
        }
    });
    let check = |db: &Db| {
        assert_eq!(number(db, "all"), THREADS * EACH);
        let sum: u64 = (0..THREADS).flat_map(|t| (0..7).map(move |i| format!("{t} {i}"))).map(|k| number(db, &k)).sum();
        assert_eq!(sum, THREADS * EACH);
    };
    check(&db);
    db.close().unwrap();
    let db = options(&fs).open("/db").unwrap();
    check(&db);
    db.default_keyspace().compact_range(..).unwrap();
    check(&db);
    let (key, value) = db.prefix("all").next().unwrap().unwrap();
    assert_eq!((&key[..], &value[..]), (&b"all"[..], &(THREADS * EACH).to_le_bytes()[..]));
}

/// Values are numbers as decimal digits, and add up. Fails or panics on request.
#[derive(Default)]
struct Decimal {
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
}

impl MergeOperator for Decimal {
    fn name(&self) -> &str {
        "test.decimal"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        assert!(!self.panics.load(Ordering::Relaxed), "as requested");
        if self.fails.load(Ordering::Relaxed) {
            return Err(MergeError::new("as requested"));
        }
        let sum: u64 = operands.iter().map(|bytes| std::str::from_utf8(bytes).unwrap().parse::<u64>().unwrap()).sum();
        out.extend_from_slice(sum.to_string().as_bytes());
        Ok(())
    }
}

#[test]
fn without_its_operator_a_store_works_but_for_the_reads_that_need_it() {
    let fs = SimFileSystem::new();
    let db = options(&fs).default_keyspace(with_operator(Decimal::default())).open("/db").unwrap();
    db.put("a", "1").unwrap();
    db.merge("b", "2").unwrap();
    db.merge("b", "3").unwrap();
    db.put("c", "4").unwrap();
    assert_eq!(db.get("b").unwrap().as_deref(), Some(&b"5"[..]));
    // Closing would flush, and combine.
    let fs = fs.kill();
    drop(db);

    for round in 0..3 {
        let db = options(&fs).open("/db").unwrap();
        assert_eq!(db.default_keyspace().options().unwrap().merge_operator_name(), Some("test.decimal"));
        let missing = |error: Error| {
            assert!(
                matches!(&error, Error::MergeOperatorMissing { operator, .. } if operator == "test.decimal"),
                "{error}"
            );
        };
        missing(db.get("b").unwrap_err());
        missing(db.multi_get(&["a", "b"]).unwrap_err());
        let mut iter = db.iter();
        assert_eq!(&iter.next().unwrap().unwrap().1[..], b"1");
        missing(iter.next().unwrap().unwrap_err());
        missing(db.iter().rev().nth(1).unwrap().unwrap_err());
        // What nobody can read is not written.
        let before = db.last_seqno();
        missing(db.merge("b", "9").unwrap_err());
        let mut batch = WriteBatch::new();
        batch.put("d", "9");
        batch.merge("b", "9");
        missing(db.write(batch).unwrap_err());
        assert_eq!(db.last_seqno(), before);
        assert_eq!(db.get("d").unwrap(), None);
        db.put("c", "4").unwrap();
        if round > 0 {
            db.default_keyspace().compact_range(..).unwrap();
            missing(db.get("b").unwrap_err());
        }
        db.close().unwrap();
    }
    let db = options(&fs).merge_operator(Decimal::default()).open("/db").unwrap();
    assert_eq!(db.get("b").unwrap().as_deref(), Some(&b"5"[..]));
    assert_eq!(db.iter().count(), 3);
    db.merge("b", "1").unwrap();
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(db.get("b").unwrap().as_deref(), Some(&b"6"[..]));
}

#[test]
fn an_operator_that_fails_or_panics_stops_reads_of_its_key_and_nothing_else() {
    let fs = SimFileSystem::new();
    let operator = Decimal::default();
    let (fails, panics) = (Arc::clone(&operator.fails), Arc::clone(&operator.panics));
    let db = options(&fs).default_keyspace(with_operator(operator)).open("/db").unwrap();
    for (fault, reason) in [(&fails, "as requested"), (&panics, "panicked")] {
        db.put("key", "1").unwrap();
        db.merge("key", "2").unwrap();
        db.put("other", "7").unwrap();
        fault.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let error = db.get("key").unwrap_err();
            assert!(matches!(&error, Error::Merge { key, .. } if key == b"key"), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(db.get("other").unwrap().as_deref(), Some(&b"7"[..]));
            db.merge("key", "3").unwrap();
            db.default_keyspace().compact_range(..).unwrap();
        }
        fault.store(false, Ordering::Relaxed);
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"9"[..]), "nothing is lost: 1 + 2 + 3 + 3");
    }
}

#[test]
fn a_keyspace_keeps_its_operator() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    assert!(matches!(db.merge("key", "1"), Err(Error::InvalidArgument(_))));
    let sets = db.keyspace_with("sets", with_operator(Union)).unwrap();
    sets.merge("key", Union::encode(["b"])).unwrap();
    assert!(matches!(db.keyspace_with("sets", with_operator(Append)), Err(Error::InvalidArgument(_))));
    let sets = db.keyspace_with("sets", KeyspaceOptions::new().block_size(1024)).unwrap();
    assert_eq!(sets.options().unwrap().merge_operator_name(), Some("tamis.union"));
    sets.merge("key", Union::encode(["a"])).unwrap();
    assert_eq!(sets.get("key").unwrap().as_deref(), Some(&Union::encode(["a", "b"])[..]));
    // A keyspace gets one at any time.
    db.keyspace("late").unwrap().put("key", "a").unwrap();
    let late = db.keyspace_with("late", with_operator(Append)).unwrap();
    late.merge("key", "b").unwrap();
    assert_eq!(late.get("key").unwrap().as_deref(), Some(&b"ab"[..]));
    db.close().unwrap();
    let failed = options(&fs).default_keyspace(with_operator(Append)).open("/db");
    drop(failed.unwrap());
    let failed = options(&fs).default_keyspace(with_operator(Union)).open("/db");
    assert!(matches!(failed, Err(Error::InvalidArgument(_))));
}

#[test]
fn snapshots_see_the_operands_before_them_alone() {
    for appends in [false, true] {
        let fs = SimFileSystem::new();
        let options_of = if appends { with_operator(Append) } else { with_operator(Add::BIG) };
        let db = options(&fs).default_keyspace(options_of).open("/db").unwrap();
        let mut snapshots = Vec::new();
        let read = |db: &Db| db.get("key").unwrap().map(|value| value.to_vec());
        for i in 0..60 {
            match i % 20 {
                7 => db.put("key", [i]).unwrap(),
                13 => db.delete("key").unwrap(),
                _ if appends => db.merge("key", [i]).unwrap(),
                _ => db.merge("key", [1]).unwrap(),
            };
            if i % 3 == 0 {
                snapshots.push((db.snapshot(), read(&db)));
            }
            match i % 11 {
                4 => db.flush().unwrap(),
                9 => db.default_keyspace().compact_range(..).unwrap(),
                _ => {}
            }
            for (snapshot, seen) in &snapshots {
                assert_eq!(snapshot.get("key").unwrap().as_deref(), seen.as_deref(), "{i}");
                let forward: Vec<_> = snapshot.iter().map(|entry| entry.unwrap().1.to_vec()).collect();
                let backward: Vec<_> = snapshot.iter().rev().map(|entry| entry.unwrap().1.to_vec()).collect();
                assert_eq!((forward.first(), backward.first()), (seen.as_ref(), seen.as_ref()));
            }
            if i % 17 == 16 {
                snapshots.remove(0);
            }
        }
    }
}

#[test]
fn long_chains_are_combined_or_kept_whole() {
    let operand = |i: u32| vec![i.to_le_bytes()[0]; 1000];
    let expected: Vec<u8> = (0..3000).flat_map(operand).collect();
    for knows_operator in [true, false] {
        let fs = SimFileSystem::new();
        let big = |fs: &SimFileSystem| options(fs).memtable_size(64 << 20);
        let db = big(&fs).default_keyspace(with_operator(Concat)).open("/db").unwrap();
        for i in 0..3000 {
            db.merge("key", operand(i)).unwrap();
        }
        let fs = fs.kill();
        drop(db);
        let reopened = if knows_operator { big(&fs).merge_operator(Concat) } else { big(&fs) };
        let db = reopened.open("/db").unwrap();
        db.flush().unwrap();
        db.default_keyspace().compact_range(..).unwrap();
        // Counted here: a store that knows the operator may combine them at any time.
        let entries: u64 = tables(&db).iter().map(|table| table.entries).sum();
        assert_eq!(entries, if knows_operator { 1 } else { 3000 });
        db.close().unwrap();
        let db = big(&fs).merge_operator(Concat).open("/db").unwrap();
        assert!(db.get("key").unwrap().as_deref() == Some(&expected[..]));
    }
}

/// Appends, under a name that the store does not know.
struct Concat;

impl MergeOperator for Concat {
    fn name(&self) -> &str {
        "test.concat"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        out.extend(operands.concat());
        Ok(())
    }
}

/// Many versions of a key in one memtable, in a scan in either direction.
#[test]
fn a_scan_passes_the_versions_of_a_hot_counter_at_once() {
    let fs = SimFileSystem::new();
    let db = options(&fs).memtable_size(64 << 20).default_keyspace(with_operator(Add::LITTLE)).open("/db").unwrap();
    for key in ["a", "b", "c"] {
        (0..50_000).for_each(|_| {
            db.merge(key, 1u64.to_le_bytes()).unwrap();
        });
    }
    let sums = |iter: &mut dyn Iterator<Item = tamis::Result<(tamis::Value, tamis::Value)>>| {
        iter.map(|entry| u64::from_le_bytes(entry.unwrap().1[..].try_into().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(sums(&mut db.iter()), [50_000; 3]);
    assert_eq!(sums(&mut db.iter().rev()), [50_000; 3]);
    let mut cursor = db.cursor().unwrap();
    assert!(cursor.seek("b").unwrap() && cursor.prev().unwrap() && cursor.next().unwrap());
    assert_eq!(cursor.key(), Some(&b"b"[..]));
    // A long value is not written again for each short operand.
    let long = with_operator(Max);
    let maxima = db.keyspace_with("max", long).unwrap();
    maxima.put("key", vec![255; 1 << 20]).unwrap();
    (0..2000).for_each(|_| {
        maxima.merge("key", "short").unwrap();
    });
    assert!(db.stats().flushes == 0, "{:?}", db.stats().memory);
    assert_eq!(maxima.get("key").unwrap().map(|value| value.len()), Some(1 << 20));
}

#[test]
fn names_of_operators_are_checked() {
    struct Named(&'static str);
    impl MergeOperator for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn merge(&self, _: &[u8], _: &[&[u8]], _: &mut Vec<u8>) -> Result<(), MergeError> {
            Ok(())
        }
    }
    let db = options(&SimFileSystem::new()).open("/db").unwrap();
    for name in ["", "tamis.mine"] {
        assert!(matches!(db.keyspace_with("ks", with_operator(Named(name))), Err(Error::InvalidArgument(_))), "{name}");
    }
    db.keyspace_with("ks", with_operator(Named("mine"))).unwrap();
}

#[test]
fn a_transaction_reads_its_own_operands_and_conflicts_only_over_what_it_reads() {
    let fs = SimFileSystem::new();
    let db = options(&fs).default_keyspace(with_operator(Append)).open("/db").unwrap();
    db.put("stored", "s").unwrap();
    let read = |tx: &tamis::Transaction, key: &str| tx.get(key).unwrap().map(|value| value.to_vec());
    let mut tx = db.begin();
    tx.merge("stored", "1");
    tx.merge("stored", "2");
    tx.merge("new", "n");
    tx.put("put", "p");
    tx.merge("put", "3");
    tx.delete("deleted");
    tx.merge("deleted", "d");
    let seen: Vec<_> = ["stored", "new", "put", "deleted"].map(|key| read(&tx, key).unwrap()).into();
    assert_eq!(seen, [&b"s12"[..], b"n", b"p3", b"d"]);
    let savepoint = tx.savepoint();
    tx.merge("put", "x");
    assert_eq!(read(&tx, "put").unwrap(), b"p3x");
    tx.rollback_to(&savepoint).unwrap();
    let entries: Vec<_> = tx.range(..).map(|entry| entry.unwrap().1.to_vec()).collect();
    assert_eq!(entries, [&b"d"[..], b"n", b"p3", b"s12"]);
    let backward: Vec<_> = tx.range(..).rev().map(|entry| entry.unwrap().1.to_vec()).collect();
    assert_eq!(backward, [&b"s12"[..], b"p3", b"n", b"d"]);
    tx.commit().unwrap();
    assert_eq!(db.get("stored").unwrap().as_deref(), Some(&b"s12"[..]));

    // Blind operands do not conflict, in either order.
    let (mut first, mut second) = (db.begin(), db.begin());
    first.merge("stored", "a");
    second.merge("stored", "b");
    second.commit().unwrap();
    db.merge("stored", "c").unwrap();
    first.commit().unwrap();
    assert_eq!(db.get("stored").unwrap().as_deref(), Some(&b"s12bca"[..]));
    // One that was read does.
    let mut tx = db.begin();
    tx.merge("stored", "d");
    read(&tx, "stored");
    db.merge("stored", "e").unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    // A read of what the transaction itself has put is none of the store.
    let mut tx = db.begin();
    tx.put("stored", "f");
    tx.merge("stored", "g");
    read(&tx, "stored");
    db.merge("stored", "h").unwrap();
    tx.commit().unwrap();
    assert_eq!(db.get("stored").unwrap().as_deref(), Some(&b"fg"[..]));
    // An operand changes what others have read.
    let tx = db.begin();
    read(&tx, "stored");
    db.merge("stored", "i").unwrap();
    let mut tx = tx;
    tx.put("other", "j");
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
}

#[test]
fn updates_read_what_operands_make() {
    let fs = SimFileSystem::new();
    let db = options(&fs).default_keyspace(with_operator(Add::BIG)).open("/db").unwrap();
    db.merge("n", 5u32.to_be_bytes()).unwrap();
    assert_eq!(db.fetch_add("n", 2u32, tamis::ByteOrder::Big).unwrap(), 5);
    db.merge("n", 1u32.to_be_bytes()).unwrap();
    assert!(db.compare_and_swap("n", Some(8u32.to_be_bytes()), None::<&[u8]>).unwrap().is_ok());
    db.merge("n", 4u32.to_be_bytes()).unwrap();
    assert_eq!(db.get("n").unwrap().as_deref(), Some(&4u32.to_be_bytes()[..]));
    // What no operator of its kind can read is refused, alone and in a batch.
    assert!(matches!(db.merge("n", [0; 17]), Err(Error::InvalidArgument(_))));
    let mut batch = WriteBatch::new();
    batch.put("other", "1");
    batch.merge("n", b"");
    assert!(matches!(db.write(batch), Err(Error::InvalidArgument(_))));
    assert_eq!(db.get("other").unwrap(), None);
    let mut transaction = db.begin();
    transaction.put("other", "1");
    transaction.merge("n", [0; 17]);
    assert!(matches!(transaction.commit(), Err(Error::InvalidArgument(_))));
    let mut transaction = db.begin();
    transaction.get("n").unwrap();
    transaction.merge("n", b"");
    assert!(matches!(transaction.commit(), Err(Error::InvalidArgument(_))), "checked in both ways to commit");
    assert_eq!(db.get("other").unwrap(), None);
    // A value that was put is as good as an operand, and no write looks at it.
    db.put("put", "a text of more than sixteen bytes").unwrap();
    db.merge("put", [1]).unwrap();
    assert!(matches!(db.get("put"), Err(Error::Merge { .. })));
    db.delete("put").unwrap();
    // An operand that does not fit is an error of its key. A scan goes on behind it.
    db.merge("n", b"short").unwrap();
    assert!(matches!(db.get("n"), Err(Error::Merge { .. })));
    db.put("o", "next").unwrap();
    let mut iter = db.iter();
    assert!(matches!(iter.next(), Some(Err(Error::Merge { .. }))));
    iter.seek("n\0");
    assert_eq!(&iter.next().unwrap().unwrap().0[..], b"o");
    let mut salvaged = db.default_keyspace().salvage(..).unwrap();
    assert_eq!(salvaged.next().unwrap().unwrap().0, b"o");
    assert!(salvaged.next().is_none() && salvaged.skipped().len() == 1);
    db.put("n", 1u32.to_be_bytes()).unwrap();
    assert!(db.get("n").unwrap().is_some());
}

fn file(dir: &Path, suffix: &str) -> Vec<u8> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(suffix));
    paths.sort();
    fs::read(paths.last().expect("there is one")).unwrap()
}

#[test]
fn only_files_with_operands_require_the_feature() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().default_keyspace(with_operator(Append)).open(dir.path()).unwrap();
    let log_features = || file(dir.path(), ".wal")[12];
    let table_features = || {
        let table = file(dir.path(), ".sst");
        table[table.len() - 96 + 68]
    };
    db.put("a", "1").unwrap();
    assert_eq!(log_features(), 0);
    db.flush().unwrap();
    assert_eq!(table_features(), 0);
    db.put("b", "2").unwrap();
    db.merge("a", "3").unwrap();
    assert_eq!(log_features(), 2, "in a log of its own");
    db.merge("a", "4").unwrap();
    db.flush().unwrap();
    assert_eq!(table_features(), 2);
    let explained = db.explain("a").unwrap();
    assert!(explained.steps.iter().any(|step| step.found == Some(Found::Operand)), "{explained:?}");
    assert!(matches!(explained.outcome, Ok(Found::Value(3))));
    let number = tables(&db).iter().map(|table| table.number).max().unwrap();
    let mut entries = Inspector::new().entries(&dir.path().join(format!("{number:06}.sst"))).unwrap();
    let entry = entries.next().unwrap().unwrap();
    assert_eq!(
        (entry.kind, entry.value.as_deref(), entry.oldest),
        (WriteKind::Merge, Some(&b"34"[..]), entry.seqno - 1)
    );
    assert_eq!(db.default_keyspace().salvage(..).unwrap().next().unwrap().unwrap().1, b"134");
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(table_features(), 0, "all operands are combined");
    assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"134"[..]));
    db.close().unwrap();
}
