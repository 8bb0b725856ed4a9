//! Do new filters for old tables change only the filters, and what is left after an interruption?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tamis::filter::FilterState;
use tamis::inspect::{DataBlock, Entry, FileKind, Inspector};
use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{
    Compression, Db, Error, Executor, FilterBudget, FilterMode, FilterPolicy, KeyspaceOptions, LevelFilters, Options,
    ReadOptions, SteppedExecutor,
};

use crate::support::stepped_options;

const DIR: &str = "/db";
const OLD: FilterPolicy = FilterPolicy::Bloom { bits_per_key: 4.0 };
const NEW: FilterPolicy = FilterPolicy::Bloom { bits_per_key: 14.5 };

fn options(fs: &SimFileSystem) -> (Options, Arc<SteppedExecutor>) {
    let (options, executor) = stepped_options(fs);
    let options = options.memtable_size(4096).table_size(8 << 10).cache_size(0);
    (options, executor)
}

fn open(fs: &SimFileSystem) -> (Db, Arc<SteppedExecutor>) {
    let (options, executor) = options(fs);
    (options.open(DIR).unwrap(), executor)
}

/// A store of several levels, with several versions of its keys and with tombstones, some of which
/// snapshots keep. Its last level is compressed if LZ4 is built in.
fn deep(fs: &SimFileSystem, writes: u32) -> (Db, Arc<SteppedExecutor>) {
    let compression = if Compression::Lz4.is_available() { Compression::Lz4 } else { Compression::None };
    let keyspace = KeyspaceOptions::new().filter(OLD).block_size(512).compression(compression);
    let (options, executor) = options(fs);
    let db = options.default_keyspace(keyspace).open(DIR).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    for n in 0.. {
        let runs = db.stats().keyspaces[0].levels[0].tables.len();
        if n >= writes && runs == 0 {
            break;
        }
        let key = format!("key{:05}", rng.u32(0..writes));
        // A value that compresses, but not too well.
        let value: Vec<u8> = (0..130).map(|_| rng.u8(..)).chain([7; 65]).collect();
        match rng.u8(0..10) {
            0 => db.delete(key).unwrap(),
            _ => db.put(key, [&n.to_be_bytes()[..], &value].concat()).unwrap(),
        };
        while executor.step() {}
    }
    // The newest runs stay in level 0.
    for n in 0..2u32 {
        db.put("key00000", n.to_string()).unwrap();
        db.put(format!("key0000{n}"), "of a run").unwrap();
        db.flush().unwrap();
    }
    while executor.step() {}
    (db, executor)
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn content(db: &Db) -> Pairs {
    db.iter().map(|entry| entry.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// The tables of the default keyspace in the order in which reads ask them, as level and path.
fn tables(db: &Db) -> Vec<(usize, PathBuf)> {
    let levels = &db.stats().keyspaces[0].levels;
    let path = |number| FileKind::Table(number).path(Path::new(DIR));
    levels.iter().flat_map(|level| level.tables.iter().map(|table| (level.level, path(table.number)))).collect()
}

/// Thousandths of bits per key of a table's filter, which must be usable.
fn millibits(fs: &SimFileSystem, path: &Path) -> u32 {
    match Inspector::on(Arc::new(fs.clone())).table(path).unwrap().filter() {
        FilterState::Usable(info) => info.millibits,
        other => panic!("{other:?}"),
    }
}

/// A table without its number and its filter: the stored bytes of its data blocks, their
/// descriptions, and the entries.
fn body(fs: &SimFileSystem, path: &Path) -> (Vec<Vec<u8>>, Vec<DataBlock>, Vec<Entry>) {
    let table = Inspector::on(Arc::new(fs.clone())).table(path).unwrap();
    let blocks: Vec<DataBlock> = table.blocks().map(|block| block.unwrap()).collect();
    let file = fs.read(path).unwrap();
    let stored = blocks.iter().map(|block| {
        let start = usize::try_from(block.handle.offset).unwrap();
        file[start..][..block.handle.len as usize].to_vec()
    });
    (stored.collect(), blocks.clone(), table.entries().map(|entry| entry.unwrap()).collect())
}

/// Expects sizes that differ by at most the origins of `count` tables, which change with each copy.
fn assert_about_equal(a: u64, b: u64, count: u64) {
    assert!(a.abs_diff(b) <= 32 * count, "{a} and {b} bytes in {count} tables");
}

/// Expects a store without a fault, and no table beside those in use.
fn check_sound(fs: &SimFileSystem, db: &Db) {
    let mut faults = Vec::new();
    // The log in use has no end yet, which is reported but is no damage.
    let report = &mut |fault: &tamis::inspect::Finding| faults.push(fault.to_string());
    let verified = Inspector::on(Arc::new(fs.clone())).verify(Path::new(DIR), report).unwrap();
    assert_eq!(verified.damaged, 0, "{faults:?}");
    let is_table = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    let mut used: Vec<PathBuf> = tables(db).into_iter().map(|(_, path)| path).collect();
    used.sort();
    assert_eq!(fs.paths().into_iter().filter(is_table).collect::<Vec<_>>(), used);
}

#[test]
fn everything_but_the_filters_stays_bit_for_bit() {
    let fs = SimFileSystem::new();
    let (db, executor) = deep(&fs, 4500);
    let (before, files, snapshot) = (content(&db), tables(&db), db.snapshot());
    let levels: std::collections::BTreeSet<usize> = files.iter().map(|(level, _)| *level).collect();
    assert!(levels.len() >= 3 && levels.contains(&0), "{levels:?}");
    let bodies: Vec<_> = files.iter().map(|(_, path)| body(&fs, path)).collect();
    let lz4 = |block: &DataBlock| block.compression == Compression::Lz4;
    assert_eq!(bodies.iter().flat_map(|body| &body.1).any(lz4), Compression::Lz4.is_available());
    db.put("key00000", "in memory").unwrap();
    let mut iter = db.iter();
    iter.next().unwrap().unwrap();

    let mut seen = Vec::new();
    let report = db.rebuild_filters(NEW, |progress| seen.push(*progress)).unwrap();
    assert_eq!(seen.iter().map(|progress| progress.replaced).collect::<Vec<_>>(), Vec::from_iter(0..=report.replaced));
    assert!(seen.iter().all(|progress| progress.wanted == report.wanted) && seen.last() == Some(&report));
    // The memtable has become a table, with a filter of the new policy.
    let count = files.len() as u64;
    assert_eq!((report.wanted, report.replaced, report.unchanged), (count, count, 1));
    assert!(report.bytes_after > report.bytes_before);
    let after = tables(&db);
    assert_eq!(after[0].0, 0);
    for (((level, path), (old_level, _)), old) in after[1..].iter().zip(&files).zip(&bodies) {
        assert_eq!(level, old_level);
        assert_eq!(millibits(&fs, path), 14_500);
        let new = body(&fs, path);
        assert!(new == *old, "{} differs", path.display());
    }
    // Only readers of the old tables keep them.
    assert!(files.iter().all(|(_, path)| fs.read(path).is_ok()));
    assert_eq!(crate::support::count_entries(iter), before.len() - 1);
    while executor.step() {}
    check_sound(&fs, &db);
    assert_eq!(snapshot.get("key00000").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(snapshot.iter().map(|e| e.unwrap()).zip(&before).all(|((k, v), old)| *k == *old.0 && *v == *old.1));
    assert_eq!(db.get("key00000").unwrap().as_deref(), Some(&b"in memory"[..]));
    let shadow = ReadOptions::new().filters(FilterMode::Shadow);
    for (key, value) in &before[1..] {
        assert_eq!(db.get_with(key, shadow).unwrap().as_deref(), Some(&value[..]));
    }

    assert_eq!(db.rebuild_filters(NEW, |_| {}).unwrap().wanted, 0);
    drop(snapshot);
    db.close().unwrap();
    let (db, _) = open(&fs);
    assert_eq!(db.default_keyspace().options().unwrap().filter, NEW);
    db.put("later", "").unwrap();
    db.flush().unwrap();
    assert!(tables(&db).iter().all(|(_, path)| millibits(&fs, path) == 14_500));
    assert_eq!(content(&db)[1..], [&before[1..], &[(b"later".to_vec(), vec![])]].concat());
}

#[test]
fn filters_can_be_dropped_and_restored() {
    let fs = SimFileSystem::new();
    // Few enough that tables' numbers, which are in their properties, take one byte.
    let (db, _) = deep(&fs, 350);
    let before = content(&db);
    let small = db.rebuild_filters(FilterPolicy::None, |_| {}).unwrap();
    assert!(small.bytes_after < small.bytes_before);
    let inspector = Inspector::on(Arc::new(fs.clone()));
    for (_, path) in tables(&db) {
        assert_eq!(*inspector.table(&path).unwrap().filter(), FilterState::None);
    }
    check_sound(&fs, &db);
    let back = db.rebuild_filters(OLD, |_| {}).unwrap();
    assert_eq!(back.bytes_before, small.bytes_after);
    assert_about_equal(back.bytes_after, small.bytes_before, back.replaced);
    check_sound(&fs, &db);
    assert_eq!(content(&db), before);
}

#[test]
fn other_keyspaces_are_left_alone_and_reads_are_not_counted() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 750);
    let other = db.keyspace("other").unwrap();
    other.put("k", "v").unwrap();
    db.flush().unwrap();
    let files = tables(&db);
    let reads = db.stats().reads();
    let mut seen = Vec::new();
    db.keyspace_with("other", KeyspaceOptions::new().filter(NEW)).unwrap();
    let report = other.renew_filters(|rebuild| seen.push((rebuild.wanted, rebuild.replaced))).unwrap();
    assert_eq!((report.wanted, report.unchanged), (1, 0));
    assert_eq!(seen, [(1, 0), (1, 1)]);
    assert_eq!(tables(&db), files);
    assert_eq!(db.stats().reads(), reads);
    assert!(db.drop_keyspace("other").unwrap());
    assert!(matches!(other.rebuild_filters(OLD, |_| {}), Err(Error::KeyspaceDropped(_))));
    assert!(matches!(other.renew_filters(|_| {}), Err(Error::KeyspaceDropped(_))));
}

/// The options change once when the work is known, and once after the first table.
#[test]
fn options_that_change_during_a_rebuild_hold_for_all_filters_in_the_end() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 1500);
    let before = content(&db);
    let count = tables(&db).len() as u64;
    assert!(count > 3);
    let policies = [6.0, 7.0].map(|bits_per_key| FilterPolicy::Bloom { bits_per_key });
    db.keyspace_with("default", db.default_keyspace().options().unwrap().filter(NEW)).unwrap();
    let mut changes = policies.into_iter();
    let report = db.default_keyspace().renew_filters(|_| {
        if let Some(policy) = changes.next() {
            db.keyspace_with("default", db.default_keyspace().options().unwrap().filter(policy)).unwrap();
        }
    });
    assert!(tables(&db).iter().all(|(_, path)| millibits(&fs, path) == 7000));
    // The first table was copied twice, by each of the two.
    let report = report.unwrap();
    assert_eq!((report.wanted, report.replaced, report.unchanged), (count + 1, count + 1, count - 1));

    // Another rebuild that runs from beginning to end during this one.
    db.keyspace_with("default", db.default_keyspace().options().unwrap().filter(OLD)).unwrap();
    let mut inner = None;
    let outer = db.default_keyspace().renew_filters(|rebuild| {
        if rebuild.replaced == 1 && inner.is_none() {
            inner = Some(db.rebuild_filters(NEW, |_| {}).unwrap());
        }
    });
    assert_eq!((inner.unwrap().replaced, outer.unwrap().replaced), (count, 1));
    assert!(tables(&db).iter().all(|(_, path)| millibits(&fs, path) == 14_500));
    check_sound(&fs, &db);
    assert_eq!(content(&db), before);
}

#[test]
fn a_keyspace_dropped_during_its_rebuild_is_an_error_and_counts_nothing_as_replaced() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 100);
    let other = db.keyspace_with("other", KeyspaceOptions::new().filter(OLD)).unwrap();
    other.put("k", "v").unwrap();
    db.flush().unwrap();
    db.keyspace_with("other", KeyspaceOptions::new().filter(NEW)).unwrap();
    let mut last = None;
    let result = other.renew_filters(|rebuild| {
        last = Some(*rebuild);
        let _ = db.drop_keyspace("other").unwrap();
    });
    assert!(matches!(result, Err(Error::KeyspaceDropped(_))), "{result:?}");
    assert_eq!(last.map(|rebuild| (rebuild.wanted, rebuild.replaced)), Some((1, 0)));
}

#[test]
fn remake_filters_replaces_every_filter() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 750);
    assert_eq!(db.default_keyspace().renew_filters(|_| {}).unwrap().replaced, 0);
    // A table stores its number, whose length varies: after this, all numbers have many digits.
    while tables(&db).iter().any(|(_, path)| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap() < 128)
    {
        db.default_keyspace().remake_filters(|_| {}).unwrap();
    }
    let (before, files) = (content(&db), tables(&db));
    let report = db.default_keyspace().remake_filters(|_| {}).unwrap();
    let count = files.len() as u64;
    assert_eq!((report.wanted, report.replaced, report.unchanged), (count, count, 0));
    assert_about_equal(report.bytes_before, report.bytes_after, count);
    assert!(tables(&db).iter().all(|table| !files.contains(table)));
    check_sound(&fs, &db);
    assert_eq!(content(&db), before);
}

#[test]
fn a_budget_that_moves_by_a_little_copies_nothing() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 750);
    let renew = |bits: f32| {
        let budget = LevelFilters::Budget(FilterBudget::bits_per_key(bits));
        let options = db.default_keyspace().options().unwrap().level_filters(budget);
        db.keyspace_with("default", options).unwrap();
        db.default_keyspace().renew_filters(|_| {}).unwrap().replaced
    };
    assert!(renew(10.0) > 0);
    assert_eq!(renew(10.0), 0);
    assert_eq!(renew(10.2), 0);
    assert!(renew(12.0) > 0);
    // An exact number of bits is applied exactly.
    let exact = |bits_per_key| db.rebuild_filters(FilterPolicy::Bloom { bits_per_key }, |_| {}).unwrap().unchanged;
    assert_eq!([10.0, 10.1].map(exact), [0, 0]);
}

#[test]
fn handles_that_may_not_write_may_not_rebuild() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 100);
    let reader = options(&fs).0.open_read_only(DIR).unwrap();
    assert!(matches!(reader.rebuild_filters(NEW, |_| {}), Err(Error::ReadOnly(_))));
    let invalid = FilterPolicy::Bloom { bits_per_key: 25.0 };
    assert!(matches!(db.rebuild_filters(invalid, |_| {}), Err(Error::InvalidArgument(_))));
    db.put("k", "v").unwrap();
    fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: false }));
    db.sync().unwrap_err();
    let before = fs.mutations();
    assert!(matches!(db.rebuild_filters(NEW, |_| {}), Err(Error::Poisoned(_))));
    assert_eq!(fs.mutations(), before);
}

#[test]
fn a_damaged_filter_is_rebuilt_and_other_damage_is_named() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 750);
    let before = content(&db);
    let files = tables(&db);
    db.close().unwrap();
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let properties = |path: &Path| inspector.table(path).unwrap().properties().clone();
    let flip = |path: &Path, offset: u64| {
        let mut bytes = fs.read(path).unwrap();
        bytes[usize::try_from(offset).unwrap()] ^= 1;
        fs.write(path, bytes).unwrap();
    };
    let (first, last) = (&files[0].1, &files.last().unwrap().1);
    flip(first, properties(first).filter_block.unwrap().offset + 100);
    let (db, _) = open(&fs);
    let report = db.default_keyspace().renew_filters(|_| {}).unwrap();
    assert_eq!((report.wanted, report.replaced), (1, 1));
    assert_eq!(tables(&db)[1..], files[1..]);
    check_sound(&fs, &db);

    db.close().unwrap();
    flip(last, 80);
    let (db, executor) = open(&fs);
    let error = db.rebuild_filters(NEW, |_| {}).unwrap_err();
    assert!(matches!(&error, Error::Corruption { file, .. } if file == last), "{error}");
    while executor.step() {}
    flip(last, 80);
    assert_eq!(content(&db), before);
    assert_eq!(db.rebuild_filters(NEW, |_| {}).unwrap().wanted, 1, "the others were done before");
    check_sound(&fs, &db);
}

/// Expects, after an interruption, the same entries, and each table with its old filter or the new
/// one.
fn check_interrupted(fs: &SimFileSystem, expected: &Pairs) -> usize {
    let (db, _) = open(fs);
    assert!(content(&db) == *expected);
    let found = tables(&db).iter().filter(|(_, path)| millibits(fs, path) == 14_500).count();
    check_sound(fs, &db);
    db.rebuild_filters(NEW, |_| {}).unwrap();
    assert!(tables(&db).iter().all(|(_, path)| millibits(fs, path) == 14_500));
    assert!(content(&db) == *expected);
    check_sound(fs, &db);
    found
}

#[test]
fn power_cut_at_any_call_leaves_old_or_new_filters() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 350);
    db.put("key00000", "in memory").unwrap();
    db.sync().unwrap();
    let expected = content(&db);
    let count = tables(&db).len();
    let mut found = std::collections::BTreeSet::new();
    for call in 1.. {
        let fs = fs.kill();
        let (db, _) = open(&fs);
        fs.crash_at(Some(call));
        let result = db.rebuild_filters(NEW, |_| {});
        let Some(point) = fs.crash_point() else {
            result.unwrap();
            break;
        };
        found.insert(check_interrupted(&point.kill(), &expected));
        for seed in 0..6 {
            found.insert(check_interrupted(&point.crash(seed), &expected));
        }
    }
    assert!(count >= 4 && found.iter().copied().eq(0..=count + 1), "{found:?} of {count} were seen to be done");
}

#[test]
fn fault_at_any_call_is_reported_and_leaves_nothing_behind() {
    let origin = SimFileSystem::new();
    let (db, _) = deep(&origin, 250);
    db.sync().unwrap();
    let expected = content(&db);
    for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite, FaultMode::ReadError] {
        for at in 1.. {
            let fs = origin.kill();
            let (db, _) = open(&fs);
            fs.set_fault(Some(Fault { at, mode, sticky: false }));
            let result = db.rebuild_filters(NEW, |_| {});
            fs.set_fault(None);
            if !fs.fault_hit() {
                result.unwrap();
                break;
            }
            assert!(content(&db) == expected, "{mode:?} at {at}");
            match result {
                // A failed removal leaves a file to the next open, and an unreadable filter is
                // rebuilt.
                Ok(_) => {}
                Err(Error::Io { .. }) => match db.rebuild_filters(NEW, |_| {}) {
                    Ok(_) => check_sound(&fs, &db),
                    Err(error) => assert!(matches!(error, Error::Poisoned(_)), "{error}"),
                },
                Err(error) => panic!("{error}"),
            }
            check_interrupted(&fs.kill(), &expected);
            check_interrupted(&fs.crash(at), &expected);
        }
    }
}

/// Stops the other threads, also when this one panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_writers_and_compactions_continue_during_a_rebuild() {
    let fs = SimFileSystem::new();
    let (db, _) = deep(&fs, 1500);
    db.close().unwrap();
    let options = Options::new().file_system(Arc::new(fs.clone())).memtable_size(16 << 10).table_size(8 << 10);
    let db = options.background_threads(3).open(DIR).unwrap();
    let fixed: BTreeMap<_, _> = content(&db).into_iter().collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Between existing keys, and not everywhere: compactions take some tables and leave
                // others.
                db.put(format!("key{:05}+", n * 7 % 300), [n.to_le_bytes()[0]; 100]).unwrap();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let snapshot = db.snapshot();
                let shadow = ReadOptions::new().filters(FilterMode::Shadow);
                while !stop.load(Ordering::Relaxed) {
                    for (key, value) in &fixed {
                        assert_eq!(db.get_with(key, shadow).unwrap().as_deref(), Some(&value[..]));
                        assert_eq!(snapshot.get(key).unwrap().as_deref(), Some(&value[..]));
                    }
                }
            });
        }
        let _ended = SetOnDrop(&stop);
        // A compaction may come first and do all the work of a round.
        let (mut replaced, mut round) = (0, 0u8);
        while replaced < 50 {
            round += 1;
            assert!(round < 250, "{replaced}");
            let policy = FilterPolicy::Bloom { bits_per_key: f32::from(6 + round % 2) };
            let report = db.rebuild_filters(policy, |_| {}).unwrap();
            assert!(report.replaced <= report.wanted);
            replaced += report.replaced;
        }
        db.rebuild_filters(FilterPolicy::Bloom { bits_per_key: 11.0 }, |_| {}).unwrap();
    });
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    for (_, path) in tables(&db) {
        assert_eq!(millibits(&fs, &path), 11_000);
    }
    // A thread may still hold replaced tables: closing waits for it, and removes them.
    db.clone().close().unwrap();
    check_sound(&fs, &db);
}
