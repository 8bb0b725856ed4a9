//! Range deletes: what they delete, and what they never do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tamis::inspect::{FileKind, Inspector, WriteKind};
use tamis::operator::{Append, CompactionDecision};
use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{
    Db, FilterPolicy, Found, KeyspaceOptions, Options, PrefixExtractor, ReadSource, RepairOptions, Snapshot,
    SteppedExecutor, WriteBatch, repair,
};

use crate::support::stepped_options;

fn key(i: u32) -> Vec<u8> {
    format!("k{i:06}").into_bytes()
}

fn open(fs: &SimFileSystem) -> (Db, Arc<SteppedExecutor>) {
    let (options, executor) = stepped_options(fs);
    let keyspace = KeyspaceOptions::new().filter(FilterPolicy::Bloom { bits_per_key: 10.0 }).merge_operator(Append);
    (options.default_keyspace(keyspace).memtable_size(64 << 10).table_size(16 << 10).open("/db").unwrap(), executor)
}

fn settle(executor: &SteppedExecutor) {
    use tamis::Executor;
    while executor.step() {}
}

/// All keys of `db`, checked against every other way of reading.
#[track_caller]
fn keys(db: &Db, known: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let forward: Vec<Vec<u8>> = db.iter().map(|entry| entry.unwrap().0.to_vec()).collect();
    let mut backward: Vec<Vec<u8>> = db.iter().rev().map(|entry| entry.unwrap().0.to_vec()).collect();
    backward.reverse();
    assert_eq!(forward, backward);
    let mut cursor = db.cursor().unwrap();
    let mut walked = Vec::new();
    let mut valid = cursor.seek_to_first().unwrap();
    while valid {
        walked.push(cursor.key().unwrap().to_vec());
        valid = cursor.next().unwrap();
    }
    assert_eq!(walked, forward);
    for (key, value) in known.iter().zip(db.multi_get(known).unwrap()) {
        let is_there = forward.binary_search(key).is_ok();
        assert_eq!(value.is_some(), is_there, "{key:?} in multi_get");
        assert_eq!(db.get(key).unwrap().is_some(), is_there, "{key:?}");
        assert_eq!(db.contains_key(key).unwrap(), is_there);
    }
    assert_eq!(db.first().unwrap().map(|(key, _)| key.to_vec()), forward.first().cloned());
    assert_eq!(db.last().unwrap().map(|(key, _)| key.to_vec()), forward.last().cloned());
    assert_eq!(db.is_empty().unwrap(), forward.is_empty());
    forward
}

/// Writes keys `0..count` and brings them to tables.
fn filled(db: &Db, count: u32) -> Vec<Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(3);
    let keys: Vec<Vec<u8>> = (0..count).map(key).collect();
    for key in &keys {
        let value: Vec<u8> = (0..100).map(|_| rng.u8(..)).collect();
        db.put(key, value).unwrap();
    }
    db.flush().unwrap();
    keys
}

#[test]
fn a_batch_deletes_what_it_has_put_before_and_keeps_what_it_puts_later() {
    for flushed in [false, true] {
        let fs = SimFileSystem::new();
        let (db, executor) = open(&fs);
        db.put("a", "old").unwrap();
        let mut batch = WriteBatch::new();
        batch.put("a", "1");
        batch.put("b", "1");
        batch.delete_range("a".."b");
        batch.put("aa", "2");
        batch.delete_prefix("aaa");
        batch.put("c", "1");
        batch.delete_range("c"..="c");
        batch.put("c", "2");
        batch.delete_range("b"..="b");
        assert_eq!(db.write(batch).unwrap(), 10);
        if flushed {
            db.flush().unwrap();
            settle(&executor);
        }
        let found: Vec<_> = db.iter().map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(found, [(b"aa".to_vec(), b"2".to_vec()), (b"c".to_vec(), b"2".to_vec())]);
        assert_eq!(keys(&db, &["a", "aa", "aaa", "b", "c"].map(|key| key.as_bytes().to_vec())).len(), 2);
    }
}

#[test]
fn empty_and_inverted_ranges_write_nothing_and_open_ones_have_no_end() {
    let fs = SimFileSystem::new();
    let (db, _executor) = open(&fs);
    let all = filled(&db, 10);
    let before = db.last_seqno();
    assert_eq!(db.delete_range("x".."x").unwrap(), before);
    assert_eq!(db.delete_range("x".."a").unwrap(), before);
    assert_eq!(db.delete_range(..b"").unwrap(), before);
    assert_eq!(keys(&db, &all), all);
    db.delete_range(key(7)..).unwrap();
    assert_eq!(keys(&db, &all), all[..7]);
    db.delete_range(..=key(1)).unwrap();
    assert_eq!(keys(&db, &all), all[2..7]);
    db.put(b"", "the empty key").unwrap();
    db.put([0xff; 20], "a last key").unwrap();
    db.clear().unwrap();
    assert!(keys(&db, &all).is_empty());
    let error = db.delete_range(vec![0; (1 << 20) + 1]..).unwrap_err();
    assert!(error.to_string().contains("1048576"), "{error}");
}

#[test]
fn snapshots_see_what_was_there_before_through_flush_compaction_and_reopen_of_the_range() {
    let fs = SimFileSystem::new();
    let (db, executor) = open(&fs);
    let all = filled(&db, 100);
    let mut seen: Vec<(Snapshot, Vec<Vec<u8>>)> = vec![(db.snapshot(), all.clone())];
    db.delete_range(key(20)..key(40)).unwrap();
    seen.push((db.snapshot(), [&all[..20], &all[40..]].concat()));
    db.put(key(30), "back").unwrap();
    seen.push((db.snapshot(), [&all[..20], &all[30..31], &all[40..]].concat()));
    db.delete_range(key(10)..key(50)).unwrap();
    seen.push((db.snapshot(), [&all[..10], &all[50..]].concat()));
    let check = |seen: &[(Snapshot, Vec<Vec<u8>>)], when: &str| {
        for (snapshot, expected) in seen {
            let found: Vec<Vec<u8>> = snapshot.iter().map(|entry| entry.unwrap().0.to_vec()).collect();
            assert_eq!(found, *expected, "snapshot {}, {when}", snapshot.seqno());
            let mut backward: Vec<Vec<u8>> = snapshot.iter().rev().map(|entry| entry.unwrap().0.to_vec()).collect();
            backward.reverse();
            assert_eq!(backward, *expected, "backward, snapshot {}, {when}", snapshot.seqno());
            for key in &all {
                let is_there = expected.binary_search(key).is_ok();
                assert_eq!(snapshot.get(key).unwrap().is_some(), is_there, "{key:?}, {when}");
            }
        }
    };
    check(&seen, "in memory");
    db.flush().unwrap();
    check(&seen, "flushed");
    db.default_keyspace().compact_range(..).unwrap();
    settle(&executor);
    check(&seen, "compacted");
    // Without the older ones, more can go, and nothing comes back.
    while !seen.is_empty() {
        seen.remove(0);
        settle(&executor);
        db.default_keyspace().compact_range(..).unwrap();
        check(&seen, "after older snapshots have gone");
    }
    assert_eq!(keys(&db, &all), [&all[..10], &all[50..]].concat());
    drop(db);
    let (db, _executor) = open(&fs);
    assert_eq!(keys(&db, &all), [&all[..10], &all[50..]].concat());
}

#[test]
fn deleted_keys_are_read_without_a_filter_or_a_block() {
    let fs = SimFileSystem::new();
    let (mut db, mut executor) = open(&fs);
    filled(&db, 2000);
    db.default_keyspace().compact_range(..).unwrap();
    db.put(key(1999), "newer").unwrap();
    db.delete_range(key(100)..key(1900)).unwrap();
    for state in ["in memory", "flushed", "reopened"] {
        match state {
            "flushed" => db.flush().unwrap(),
            "reopened" => {
                drop(db);
                (db, executor) = open(&fs);
            }
            _ => {}
        }
        let before = db.stats().reads();
        for i in (100..1900).step_by(50) {
            let explained = db.explain(key(i)).unwrap();
            assert!(matches!(explained.outcome, Ok(Found::DeletedByRange)), "{state}: {explained:?}");
            assert_eq!(explained.block_reads(), 0, "{state}");
            assert!(explained.steps.iter().all(|step| step.filter.is_none() && step.blocks.is_empty()), "{state}");
            assert_eq!(explained.steps.last().unwrap().source, ReadSource::RangeDeletes);
        }
        let reads = db.stats().reads() - before;
        assert_eq!((reads.block_reads, reads.cache_hits, reads.look_ups()), (0, 0, 0), "{state}");
        assert_eq!(reads.deleted_by_range, 36, "{state}");
        assert!(db.get(key(99)).unwrap().is_some() && db.get(key(1900)).unwrap().is_some());
    }
    settle(&executor);
}

#[test]
fn scans_jump_over_deleted_keys() {
    let fs = SimFileSystem::new();
    let (db, _executor) = open(&fs);
    filled(&db, 20_000);
    db.default_keyspace().compact_range(..).unwrap();
    let snapshot = db.snapshot();
    db.delete_range(key(10)..key(19_990)).unwrap();
    db.put(key(10_000), "newer").unwrap();
    for flushed in [false, true] {
        if flushed {
            // The snapshot keeps the data.
            db.flush().unwrap();
        }
        let before = db.stats().reads();
        assert_eq!(db.keys(..).count(), 21);
        assert_eq!(db.iter().rev().count(), 21);
        let reads = db.stats().reads() - before;
        assert!(reads.block_reads + reads.cache_hits < 40, "{reads:?}");
    }
    assert_eq!(snapshot.iter().count(), 20_000);
}

#[test]
fn a_prefix_scan_that_filters_deny_still_sees_ranges() {
    let fs = SimFileSystem::new();
    let (options, executor) = stepped_options(&fs);
    let keyspace = KeyspaceOptions::new().prefix(PrefixExtractor::UpTo(b':'));
    let db = options.default_keyspace(keyspace).open("/db").unwrap();
    for user in 0..100 {
        for item in 0..10 {
            db.put(format!("u{user:03}:{item}"), "v").unwrap();
        }
    }
    db.flush().unwrap();
    // The table of the range has no key with the prefix.
    db.delete_range("u040".."u060").unwrap();
    db.put("z:1", "v").unwrap();
    db.flush().unwrap();
    settle(&executor);
    for user in [39, 40, 50, 59, 60] {
        let expected = if (40..60).contains(&user) { 0 } else { 10 };
        assert_eq!(db.prefix(format!("u{user:03}:")).count(), expected, "{user}");
    }
}

#[test]
fn a_range_alone_in_a_memtable_is_flushed_and_recovered() {
    let fs = SimFileSystem::new();
    let (db, _executor) = open(&fs);
    let all = filled(&db, 100);
    db.delete_range(key(10)..key(20)).unwrap();
    db.flush().unwrap();
    assert_eq!(db.flushed_seqno(), db.last_seqno());
    db.delete_range(key(30)..key(40)).unwrap();
    let expected = [&all[..10], &all[20..30], &all[40..]].concat();
    assert_eq!(keys(&db, &all), expected);
    let killed = fs.kill();
    drop(db);
    let (db, executor) = open(&killed);
    assert_eq!(keys(&db, &all), expected);
    settle(&executor);
    assert_eq!(keys(&db, &all), expected);
}

#[test]
fn ranges_over_each_other_in_several_logs_are_replayed_in_order() {
    let fs = SimFileSystem::new();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let (db, _executor) = open(&fs);
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..3000u32 {
        let at = rng.u32(0..1000);
        if round % 20 == 0 {
            let range = key(at)..key(at + rng.u32(1..300));
            db.delete_range(range.clone()).unwrap();
            model.retain(|key, _| !range.contains(key));
        } else {
            db.put(key(at), round.to_be_bytes().repeat(25)).unwrap();
            model.insert(key(at), round.to_be_bytes().repeat(25));
        }
    }
    let killed = fs.kill();
    drop(db);
    let (db, executor) = open(&killed);
    for _ in 0..2 {
        let found: Vec<_> = db.iter().map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert!(found.iter().map(|(k, v)| (k, v)).eq(model.iter()));
        settle(&executor);
        db.flush().unwrap();
    }
}

#[test]
fn tables_inside_a_range_go_unread_and_take_the_range_with_them() {
    let fs = SimFileSystem::new();
    let (db, executor) = open(&fs);
    let all = filled(&db, 5000);
    db.default_keyspace().compact_range(..).unwrap();
    settle(&executor);
    let tables = || fs.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "sst")).count();
    assert!(tables() > 10);
    let snapshot = db.snapshot();
    db.clear().unwrap();
    db.flush().unwrap();
    settle(&executor);
    assert!(tables() > 10, "the snapshot sees them");
    assert_eq!(snapshot.iter().count(), 5000);
    let reads = db.stats().reads();
    drop(snapshot);
    settle(&executor);
    assert_eq!(tables(), 0, "the range has nothing left to delete");
    assert_eq!((db.stats().reads() - reads).block_reads, 0);
    assert!(keys(&db, &all).is_empty());
    db.put(key(3), "new").unwrap();
    db.flush().unwrap();
    assert_eq!(keys(&db, &all), [key(3)]);
}

#[test]
fn a_wide_range_delete_has_its_space_back_without_a_flush_by_the_caller() {
    let fs = SimFileSystem::new();
    let (db, executor) = open(&fs);
    filled(&db, 5000);
    db.default_keyspace().compact_range(..).unwrap();
    settle(&executor);
    let tables = || fs.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "sst")).count();
    db.delete_range(key(0)..key(5000)).unwrap();
    settle(&executor);
    assert_eq!(tables(), 0);
}

#[test]
fn a_table_with_a_newer_entry_stays_until_it_is_compacted() {
    let fs = SimFileSystem::new();
    let (db, executor) = open(&fs);
    let all = filled(&db, 1000);
    db.delete_range(..).unwrap();
    db.put(key(500), "newer").unwrap();
    db.flush().unwrap();
    settle(&executor);
    assert_eq!(keys(&db, &all), [key(500)]);
    db.delete_range(key(400)..key(600)).unwrap();
    db.flush().unwrap();
    settle(&executor);
    assert!(keys(&db, &all).is_empty());
    // Reopened at every step, nothing returns.
    drop(db);
    let (db, executor) = open(&fs);
    assert!(keys(&db, &all).is_empty());
    db.default_keyspace().compact_range(..).unwrap();
    settle(&executor);
    assert!(keys(&db, &all).is_empty());
}

#[test]
fn an_operand_after_a_range_starts_from_nothing() {
    let fs = SimFileSystem::new();
    let (db, executor) = open(&fs);
    db.put("k", "base").unwrap();
    db.merge("k", "+old").unwrap();
    db.flush().unwrap();
    db.merge("k", "+older").unwrap();
    db.delete_range("a".."z").unwrap();
    db.merge("k", "x").unwrap();
    db.merge("k", "y").unwrap();
    let check = |db: &Db, when: &str| {
        assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"xy"[..]), "{when}");
        assert_eq!(db.multi_get(&["k"]).unwrap()[0].as_deref(), Some(&b"xy"[..]), "{when}");
        let [mut forward, mut backward] = [db.iter(), db.iter()];
        assert_eq!(&forward.next().unwrap().unwrap().1[..], b"xy", "{when}");
        assert_eq!(&backward.next_back().unwrap().unwrap().1[..], b"xy", "{when}");
    };
    check(&db, "in memory");
    db.flush().unwrap();
    check(&db, "flushed");
    settle(&executor);
    db.default_keyspace().compact_range(..).unwrap();
    check(&db, "compacted");
    drop(db);
    check(&open(&fs).0, "reopened");
}

#[test]
fn transactions_read_through_their_own_range_deletes_and_conflict_with_those_of_others() {
    let fs = SimFileSystem::new();
    let (db, _executor) = open(&fs);
    let all = filled(&db, 20);
    let mut tx = db.begin();
    tx.put(key(5), "own");
    tx.delete_range(key(3)..key(10));
    tx.put(key(6), "own, later");
    assert!(tx.get(key(4)).unwrap().is_none() && tx.get(key(5)).unwrap().is_none());
    assert!(!tx.contains_key(key(9)).unwrap() && tx.contains_key(key(10)).unwrap());
    let expected: Vec<Vec<u8>> = [&all[..3], &all[6..7], &all[10..]].concat();
    let forward: Vec<Vec<u8>> = tx.range(..).map(|entry| entry.unwrap().0.to_vec()).collect();
    let mut backward: Vec<Vec<u8>> = tx.range(..).rev().map(|entry| entry.unwrap().0.to_vec()).collect();
    backward.reverse();
    assert_eq!((&forward, &backward), (&expected, &expected));
    tx.commit().unwrap();
    assert_eq!(keys(&db, &all), expected);

    // A key read, a range read, a key that was absent: each conflicts with a range over it.
    for (i, flushed) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
        let mut tx = db.begin();
        match i {
            0 => drop(tx.get(key(12)).unwrap()),
            1 => drop(tx.range(key(11)..key(13)).count()),
            _ => drop(tx.get(b"k000005x").unwrap()),
        }
        tx.put("result", "1");
        db.put(key(12), "again").unwrap();
        db.delete_range(key(1)..key(13)).unwrap();
        if flushed {
            db.flush().unwrap();
        }
        let conflict = tx.commit();
        assert!(matches!(conflict, Err(tamis::Error::Conflict { .. })), "{i} {flushed}");
    }
    // Blind deletes do not conflict, nor do ranges elsewhere.
    let mut tx = db.begin();
    assert!(tx.get(key(15)).unwrap().is_some());
    tx.delete_range(key(0)..key(14));
    db.delete_range(key(2)..key(15)).unwrap();
    tx.commit().unwrap();
    let update = db.update(key(15), |_| tamis::Change::Put(b"updated".to_vec())).unwrap();
    assert!(update.before.is_some());
    db.clear().unwrap();
    assert!(db.put_if_absent(key(15), "first").unwrap().is_ok());
}

#[test]
fn damage_of_a_range_table_is_an_error_and_never_ignored() {
    let fs = SimFileSystem::new();
    let (db, _executor) = open(&fs);
    filled(&db, 100);
    let before: Vec<_> = fs.paths();
    let snapshot = db.snapshot();
    db.delete_range(key(10)..key(20)).unwrap();
    db.flush().unwrap();
    drop(snapshot);
    drop(db);
    let new: Vec<_> = fs.paths().into_iter().filter(|path| !before.contains(path)).collect();
    let table = new.iter().find(|path| path.extension().is_some_and(|e| e == "sst")).expect("a range table");
    let content = fs.read(table).unwrap();
    for at in 0..content.len() {
        let mut damaged = content.clone();
        damaged[at] ^= 0x10;
        fs.write(table, damaged).unwrap();
        let (options, _executor) = stepped_options(&fs);
        match options.open("/db") {
            Err(error) => assert!(error.is_corruption() || error.to_string().contains("version"), "byte {at}: {error}"),
            // The header's unused fields and the checksum of the file are for `verify`.
            Ok(db) => assert!(db.get(key(15)).unwrap().is_none(), "byte {at}"),
        }
        fs.write(table, content.clone()).unwrap();
    }
}

#[test]
fn many_nested_and_scattered_ranges_are_read_right() {
    let fs = SimFileSystem::new();
    let options = Options::new().file_system(Arc::new(fs.clone()));
    let db = options.memtable_size(1 << 20).open("/db").unwrap();
    for i in 0..40_000 {
        db.put(key(i), "v").unwrap();
    }
    for i in 0..10_000 {
        db.delete_range(key(i)..key(20_000 - i)).unwrap();
    }
    for i in (20_000..40_000).step_by(2) {
        db.delete_range(key(i)..key(i + 1)).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(db.iter().count(), 10_000);
        assert_eq!(db.iter().rev().count(), 10_000);
        for i in (0..40_000).step_by(7) {
            assert_eq!(db.get(key(i)).unwrap().is_some(), i >= 20_000 && i % 2 == 1);
        }
        db.flush().unwrap();
    }
    db.default_keyspace().compact_range(..).unwrap();
    assert_eq!(db.iter().count(), 10_000);
}

#[test]
fn scans_pass_ranges_of_different_ages_that_abut() {
    let fs = SimFileSystem::new();
    let (db, _executor) = open(&fs);
    let all = filled(&db, 300);
    let snapshot = db.snapshot();
    // The middle one is the oldest, and younger than what it deletes only.
    db.delete_range(key(100)..key(200)).unwrap();
    filled(&db, 100);
    db.delete_range(key(0)..key(100)).unwrap();
    for key in &all[200..] {
        db.put(key, "again").unwrap();
    }
    db.put(key(150), "newer").unwrap();
    db.delete_range(key(200)..key(299)).unwrap();
    let expected = [key(150), key(299)];
    for _ in 0..2 {
        assert_eq!(keys(&db, &all), expected);
        db.flush().unwrap();
    }
    assert_eq!(snapshot.iter().count(), 300);
}

/// Entries of a key in the tables of a store.
fn entries_of(fs: &SimFileSystem, key: &[u8]) -> usize {
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let files = inspector.files(Path::new("/db")).unwrap();
    let tables = files.iter().filter(|file| matches!(file.kind, FileKind::Table(_)));
    let entries = tables.flat_map(|file| inspector.table(&file.path).unwrap().entries());
    entries.map(|entry| entry.unwrap()).filter(|entry| entry.key == key && entry.kind == WriteKind::Put).count()
}

#[test]
fn what_a_snapshot_keeps_in_a_table_is_deleted_once_it_has_gone() {
    for compacted in [false, true] {
        let fs = SimFileSystem::new();
        let (db, executor) = open(&fs);
        let all: Vec<Vec<u8>> = (0..20).map(key).collect();
        all.iter().for_each(|key| _ = db.put(key, "v").unwrap());
        if compacted {
            db.default_keyspace().compact_range(..).unwrap();
        }
        let snapshot = db.snapshot();
        db.delete_range(key(5)..key(10)).unwrap();
        // A flush and a compaction that know both the range and the snapshot.
        db.flush().unwrap();
        db.default_keyspace().compact_range(..).unwrap();
        settle(&executor);
        assert_eq!((entries_of(&fs, &key(7)), entries_of(&fs, &key(12))), (1, 1));
        assert_eq!(db.stats().keyspaces[0].range_deletes.in_tables, 1, "an entry that it deletes is still there");
        assert_eq!(snapshot.iter().count(), 20);
        drop(snapshot);
        settle(&executor);
        assert_eq!(keys(&db, &all).len(), 15);
        db.default_keyspace().compact_range(..).unwrap();
        settle(&executor);
        assert_eq!((entries_of(&fs, &key(7)), entries_of(&fs, &key(12))), (0, 1));
        assert_eq!(db.stats().keyspaces[0].range_deletes.in_tables, 0);
        drop(db);
        assert_eq!(keys(&open(&fs).0, &all).len(), 15);
    }
}

#[test]
fn space_of_tables_that_a_range_deletes_in_part_comes_back_by_itself() {
    let fs = SimFileSystem::new();
    let (db, executor) = open(&fs);
    filled(&db, 2000);
    db.default_keyspace().compact_range(..).unwrap();
    settle(&executor);
    let size = || db.stats().keyspaces[0].size();
    let before = size();
    // No table lies within a range, and all of them have lost half.
    let tables: Vec<_> = db.stats().keyspaces[0].levels.iter().flat_map(|level| level.tables.clone()).collect();
    assert!(tables.len() > 5);
    for table in &tables {
        let number = |key: &[u8]| String::from_utf8_lossy(&key[1..]).parse::<u32>().unwrap();
        let (from, to) = (number(&table.smallest), number(&table.largest));
        db.delete_range(key(from + 1)..key(from.midpoint(to))).unwrap();
    }
    db.flush().unwrap();
    settle(&executor);
    assert!(size() < before * 2 / 3, "{} of {before} bytes", size());
    assert_eq!(db.stats().keyspaces[0].range_deletes.in_tables, 0, "nothing is left to delete");
}

#[test]
fn thousands_of_ranges_are_merged_in_part_and_forgotten_once_nothing_needs_them() {
    let fs = SimFileSystem::new();
    let (options, executor) = stepped_options(&fs);
    let db = options.memtable_size(4 << 20).open("/db").unwrap();
    let known = filled(&db, 9000);
    let in_tables = |db: &Db| db.stats().keyspaces[0].range_deletes.in_tables;
    let flush = |db: &Db| {
        db.flush().unwrap();
        settle(&executor);
    };
    let delete = |db: &Db, i: u32| _ = db.delete_range(key(i)..key(i + 1)).unwrap();
    let tables = || {
        let names = fs.list(Path::new("/db")).unwrap().into_iter();
        names.filter(|name| name.ends_with(".sst")).collect::<Vec<_>>()
    };
    db.compact_range(..).unwrap();
    settle(&executor);
    let snapshot = db.snapshot();
    let before = tables();
    (0..3000).for_each(|i| delete(&db, i * 3));
    flush(&db);
    assert_eq!(in_tables(&db), 3000);
    let of_many: Vec<_> = tables().into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(of_many.len(), 1);
    for i in 0..30 {
        delete(&db, i * 30 + 1);
        flush(&db);
        assert!(db.stats().keyspaces[0].range_deletes.tables <= 8);
        assert!(tables().contains(&of_many[0]), "it was written again for the sake of small ones");
    }
    assert_eq!(in_tables(&db), 3030);
    let is_left = |i: u32| !(i.is_multiple_of(3) || i % 30 == 1 && i < 900);
    let left: Vec<Vec<u8>> = (0..9000).filter(|i| is_left(*i)).map(key).collect();
    assert_eq!(keys(&db, &known), left);
    assert_eq!(snapshot.iter().count(), 9000);
    drop(snapshot);
    db.compact_range(..).unwrap();
    settle(&executor);
    assert_eq!(in_tables(&db), 0);
    assert_eq!(keys(&db, &known), left);
    drop(db);
    assert_eq!(keys(&open(&fs).0, &known), left);
}

#[test]
fn estimates_leave_out_what_ranges_delete() {
    let fs = SimFileSystem::new();
    let (db, _executor) = open(&fs);
    filled(&db, 4000);
    db.default_keyspace().compact_range(..).unwrap();
    let size = db.approximate_size(..).unwrap();
    db.delete_range(key(1000)..key(3000)).unwrap();
    let check = |db: &Db| {
        assert!(db.approximate_len(key(1200)..key(2800)).unwrap() < 10);
        let left = db.approximate_len(..).unwrap();
        assert!((1900..2100).contains(&left), "{left}");
    };
    check(&db);
    assert!(db.approximate_size(..).unwrap() + 100 >= size, "the space is not free yet");
    for i in 0..100 {
        db.put(key(i), "in memory").unwrap();
    }
    db.delete_range(..key(100)).unwrap();
    db.flush().unwrap();
    assert_eq!(db.approximate_len(..key(100)).unwrap(), 0);
}

#[test]
fn a_follower_of_the_change_feed_deletes_the_same_ranges() {
    let (fs, other) = (SimFileSystem::new(), SimFileSystem::new());
    let ((db, _executor), (follower, _other)) = (open(&fs), open(&other));
    let mut changes = db.changes_since(0).unwrap();
    let all = filled(&db, 200);
    let side = db.keyspace("side").unwrap();
    let mut batch = WriteBatch::new();
    batch.delete_range(key(10)..key(20));
    batch.put(key(15), "back");
    batch.put_in(&side, "k", "v");
    batch.delete_prefix_in(&side, "k");
    db.write(batch).unwrap();
    db.delete_range(key(150)..).unwrap();
    db.sync().unwrap();
    for change in &mut changes {
        follower.keyspace("side").unwrap();
        follower.write(change.unwrap().to_write_batch(&follower).unwrap()).unwrap();
    }
    assert_eq!(keys(&follower, &all), keys(&db, &all));
    assert_eq!(keys(&follower, &all).len(), 141);
    assert_eq!(follower.keyspace("side").unwrap().iter().count(), 0);
    assert_eq!(follower.last_seqno(), db.last_seqno());
}

#[test]
fn a_compaction_filter_is_not_asked_about_what_a_range_deletes() {
    let fs = SimFileSystem::new();
    let filter = |key: &[u8], _: &[u8]| {
        assert!(key < b"k000005" || key >= b"k000010", "asked about a deleted key");
        if key.ends_with(b"3") { CompactionDecision::Drop } else { CompactionDecision::Keep }
    };
    let (options, executor) = stepped_options(&fs);
    let db = options.default_keyspace(KeyspaceOptions::new().compaction_filter(filter)).open("/db").unwrap();
    let all = filled(&db, 20);
    db.delete_range(key(5)..key(10)).unwrap();
    db.default_keyspace().compact_range(..).unwrap();
    settle(&executor);
    assert_eq!(keys(&db, &all).len(), 13);
    assert_eq!((entries_of(&fs, &key(3)), entries_of(&fs, &key(7)), entries_of(&fs, &key(11))), (0, 0, 1));
}

#[test]
fn a_repair_keeps_what_ranges_have_deleted_deleted() {
    for lost in ["CURRENT", "MANIFEST"] {
        let fs = SimFileSystem::new();
        let (db, _executor) = open(&fs);
        let all = filled(&db, 100);
        let snapshot = db.snapshot();
        db.delete_range(key(10)..key(20)).unwrap();
        db.flush().unwrap();
        assert_eq!(db.stats().keyspaces[0].range_deletes.tables, 1);
        // One more is in the log only.
        db.delete_range(key(50)..key(60)).unwrap();
        db.sync().unwrap();
        drop(snapshot);
        let fs = fs.kill();
        drop(db);
        for path in fs.paths().iter().filter(|path| path.display().to_string().contains(lost)) {
            fs.remove(path).unwrap();
        }
        repair("/db", RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
        let (db, executor) = open(&fs);
        assert_eq!(keys(&db, &all).len(), 80, "without {lost}");
        db.default_keyspace().compact_range(..).unwrap();
        settle(&executor);
        assert_eq!(keys(&db, &all).len(), 80, "without {lost}");
    }
}

#[test]
fn a_scan_over_deleted_keys_opens_no_table_and_sorts_nothing() {
    let fs = SimFileSystem::new();
    let (db, executor) = open(&fs);
    filled(&db, 3000);
    db.default_keyspace().compact_range(..).unwrap();
    filled(&db, 3000);
    settle(&executor);
    // Held back, so that the tables stay.
    let snapshot = db.snapshot();
    db.delete_range(..key(2990)).unwrap();
    let before = db.stats().reads();
    for _ in 0..2 {
        assert_eq!(db.iter().count(), 10);
        assert_eq!(db.range(..key(2990)).count(), 0);
        assert_eq!(db.range(..key(2990)).rev().count(), 0);
        assert_eq!(db.range(key(100)..key(200)).count(), 0);
        assert_eq!(db.iter().rev().count(), 10);
        db.flush().unwrap();
    }
    let blocks = (db.stats().reads() - before).block_reads;
    assert!(blocks <= 20, "{blocks} blocks for the ten keys in each of a few runs");
    assert_eq!(snapshot.iter().count(), 3000);
    assert_eq!(snapshot.iter().rev().count(), 3000);
}

#[test]
fn upkeep_that_fails_in_one_keyspace_is_done_in_the_others() {
    let mut struck = 0;
    for at in 1.. {
        let fs = SimFileSystem::new();
        let (db, executor) = open(&fs);
        filled(&db, 100);
        let other = db.keyspace("other").unwrap();
        (0..100).for_each(|i| _ = other.put(key(i), "v").unwrap());
        db.flush().unwrap();
        // Of the default keyspace, as many tables of ranges as it may have.
        for i in 0..8 {
            db.delete_range(key(10 * i)..key(10 * i + 1)).unwrap();
            db.flush().unwrap();
        }
        let tables_of = |name: &str| {
            let stats = db.stats();
            let keyspace = stats.keyspaces.iter().find(|keyspace| keyspace.name == name).unwrap();
            (keyspace.levels.iter().map(|level| level.tables.len()).sum::<usize>(), keyspace.range_deletes.tables)
        };
        assert_eq!((tables_of("default").1, tables_of("other")), (8, (1, 0)));
        let mut batch = WriteBatch::new();
        batch.delete_range(key(90)..key(91));
        batch.delete_range_in(&other, ..);
        db.write(batch).unwrap();
        fs.set_fault(Some(Fault { at, mode: FaultMode::Io, sticky: false }));
        let flushed = db.flush();
        let was_hit = fs.fault_hit();
        fs.set_fault(None);
        if !was_hit {
            assert_eq!(tables_of("default").1, 1);
            assert_eq!(tables_of("other"), (0, 0));
            break;
        }
        if flushed.is_ok() && db.put("k", "v").is_ok() && tables_of("default").1 == 9 {
            assert_eq!(tables_of("other"), (0, 0), "call {at}");
            struck += 1;
        }
        settle(&executor);
    }
    assert!(struck > 0);
}
