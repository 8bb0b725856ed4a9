//! Law 1: what is deleted is gone when the store is idle, whatever the shape of the keys, the way
//! of deleting and the level.
//!
//! By default each of the shapes, ways and values meets one of the levels, reopened or not, in
//! turn. `TAMIS_CELL` runs all cells of the matrix whose names contain it, for example `table`, or
//! all of them if it is empty.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::inspect::FileKind;
use tamis::operator::{Append, MergeError, MergeOperator};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Compression, Db, Executor, IngestOptions, Keyspace, KeyspaceOptions, Options, SstWriter, SteppedExecutor};

use crate::support::{Scene, stepped_options};

mod real;

const MEMTABLE: usize = 8 << 10;
/// What a table may take besides entries: index, filter, properties, origin, footer. Tables
/// of 8 KiB that are rewritten in place stay small and many; the full compaction has fewer.
const TABLE_COST: u64 = 3 << 10;
/// Prefixes, each with equally many keys.
const GROUPS: usize = 16;
/// Bytes of tables and values that a cell begins with.
const FILL: usize = 8 * MEMTABLE;

/// Key `i` of `per_group` in group `group`, and the group's prefix.
type Shape = fn(usize, usize) -> (Vec<u8>, Vec<u8>);

const SHAPES: [(&str, Shape); 5] = [
    ("dense decimal", |group, i| (format!("{group:02}{i:06}").into_bytes(), format!("{group:02}").into_bytes())),
    // A sensor and a time: all bytes between the first and the last key of a table mean nothing.
    ("prefix and sparse rest", |group, i| {
        let sensor = &(group as u64).to_be_bytes()[6..];
        let time = 1_700_000_000_000 + 60_000 * i as u64;
        ([sensor, &time.to_be_bytes()].concat(), sensor.to_vec())
    }),
    ("text", |group, i| {
        const NAMES: [&str; 4] = ["anna", "berlin", "carla", "dora"];
        let prefix = format!("customer/{}-{}/", NAMES[group % 4], NAMES[group / 4]);
        (format!("{prefix}order-{}{i}", ["x", "new-", "paid-"][i % 3]).into_bytes(), prefix.into_bytes())
    }),
    ("random", |group, i| {
        let mut rng = fastrand::Rng::with_seed((group * 1_000_000 + i) as u64);
        let first = u8::try_from(group * 16).unwrap();
        (std::iter::once(first).chain((0..15).map(|_| rng.u8(..))).collect(), vec![first])
    }),
    ("long", |group, i| {
        let prefix = [&[b'p'; 100][..], format!("{group:02}").as_bytes()].concat();
        let mut rng = fastrand::Rng::with_seed(i as u64);
        let rest: Vec<u8> = (0..800).map(|_| rng.u8(..)).collect();
        ([&prefix[..], &rest].concat(), prefix)
    }),
];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Point deletes of every second key.
    EverySecond,
    /// Point deletes of all keys but every eighth.
    Points,
    OneRange,
    /// The older nine tenths of the keys with each prefix.
    RangeInEachPrefix,
    /// Three of four prefixes, by a range each.
    RangePerPrefix,
    /// Six of eight keys, by a range each time.
    SmallRanges,
    /// Each key but every third, by a range of its own.
    RangePerKey,
    /// Half of the keys by a range under a snapshot that is dropped later.
    RangeUnderSnapshot,
    DeletePrefix,
    Clear,
    Expiry,
    DroppedKeyspace,
    Ingest,
}

const WAYS: [(&str, Way); 13] = [
    ("every second by points", Way::EverySecond),
    ("most by points", Way::Points),
    ("one range", Way::OneRange),
    ("a range in each prefix", Way::RangeInEachPrefix),
    ("a range per prefix", Way::RangePerPrefix),
    ("small ranges", Way::SmallRanges),
    ("a range per key", Way::RangePerKey),
    ("a range under a snapshot", Way::RangeUnderSnapshot),
    ("delete_prefix", Way::DeletePrefix),
    ("clear", Way::Clear),
    ("expiry", Way::Expiry),
    ("a dropped keyspace", Way::DroppedKeyspace),
    ("replaced by ingest", Way::Ingest),
];

#[derive(Clone, Copy, PartialEq)]
enum Levels {
    /// As many runs as memtables were flushed.
    Zero,
    OneTable,
    ManyTables,
}

const LEVELS: [(&str, Levels); 3] =
    [("level 0", Levels::Zero), ("one table", Levels::OneTable), ("many tables", Levels::ManyTables)];

/// Length of the values, and whether they go to value files.
const VALUES: [(&str, usize, bool); 5] = [
    ("no values", 0, false),
    ("20 bytes", 20, false),
    ("100 bytes", 100, false),
    ("16,000 bytes", 16_000, false),
    ("separated", 1000, true),
];

/// A clock in milliseconds.
#[derive(Clone)]
struct Clock(Arc<AtomicU64>);

const BEGIN: u64 = 1_000_000;

impl Clock {
    fn time(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }
}

/// Which keys remain: those of group `group`, at `i` of `per_group`.
fn is_left(way: Way, group: usize, i: usize, per_group: usize) -> bool {
    match way {
        Way::EverySecond => i % 2 == 1,
        Way::Points => (group * per_group + i).is_multiple_of(8),
        Way::OneRange => !(2..14).contains(&group),
        Way::RangeInEachPrefix => i * 10 >= per_group * 9,
        Way::RangePerPrefix | Way::DeletePrefix => group % 4 == 1,
        Way::SmallRanges => i % 8 >= 6,
        Way::RangePerKey => i.is_multiple_of(3),
        Way::RangeUnderSnapshot => group.is_multiple_of(2),
        Way::Expiry => (group * per_group + i).is_multiple_of(4),
        Way::Ingest => (group * per_group + i).is_multiple_of(16),
        Way::Clear | Way::DroppedKeyspace => false,
    }
}

struct Cell {
    fs: SimFileSystem,
    clock: Clock,
    db: Option<Db>,
    executor: Arc<SteppedExecutor>,
    levels: Levels,
    separate: bool,
}

impl Cell {
    fn new(levels: Levels, separate: bool) -> Cell {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/in")).unwrap();
        let clock = Clock(Arc::new(AtomicU64::new(BEGIN)));
        let mut cell = Cell { fs, clock, db: None, executor: Arc::default(), levels, separate };
        cell.open();
        cell
    }

    fn keyspace_options(&self) -> KeyspaceOptions {
        let separate = self.separate.then_some(500);
        KeyspaceOptions::new().compression(Compression::None).block_size(1024).separate_values(separate)
    }

    fn open(&mut self) {
        let (options, executor) = stepped_options(&self.fs);
        let table_size = if self.levels == Levels::ManyTables { 8 << 10 } else { 1 << 30 };
        let clock = self.clock.clone();
        let options: Options = options
            .default_keyspace(self.keyspace_options())
            .memtable_size(MEMTABLE)
            .table_size(table_size)
            .clock(move || Clock::time(clock.0.load(Ordering::Relaxed)));
        self.db = Some(options.open("/db").unwrap());
        self.executor = executor;
    }

    fn reopen(&mut self) {
        self.db.take().unwrap().close().unwrap();
        self.open();
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    /// Lets the store work until nothing is left to do.
    fn rest(&self) {
        while self.executor.step() {}
    }

    /// Bytes of tables and value files.
    /// Bytes of the files with entries, and the number of these files.
    fn space(&self) -> (u64, u64) {
        let of_store = |path: &Path| {
            let kind = path.file_name().and_then(|name| FileKind::parse(name.to_str()?));
            path.starts_with("/db") && matches!(kind, Some(FileKind::Table(_) | FileKind::Values(_)))
        };
        let paths = self.fs.paths();
        let lens = paths.iter().filter(|path| of_store(path)).map(|path| self.fs.file_len(path).unwrap());
        lens.fold((0, 0), |(bytes, files), len| (bytes + len, files + 1))
    }
}

/// The keys of a cell, group by group, in order.
fn keys(shape: Shape, value_len: usize) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let per_group = (FILL / GROUPS / (shape(0, 0).0.len().min(16) + value_len)).clamp(4, 250);
    let group = |group| {
        let mut keys: Vec<_> = (0..per_group).map(|i| shape(group, i)).collect();
        keys.sort();
        keys
    };
    let mut groups: Vec<_> = (0..GROUPS).map(group).collect();
    groups.sort();
    groups
}

/// The key right after a key.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Deletes the runs of keys that do not remain, by a range each.
fn delete_runs(keyspace: &Keyspace, keys: &[(Vec<u8>, bool)]) {
    for run in keys.chunk_by(|a, b| a.1 == b.1).filter(|run| !run[0].1) {
        keyspace.delete_range(&run[0].0[..]..=&run[run.len() - 1].0).unwrap();
    }
}

fn run_cell(
    shape: Shape,
    way: Way,
    levels: Levels,
    (value_len, separate): (usize, bool),
    reopened: bool,
) -> Result<(), String> {
    let mut cell = Cell::new(levels, separate);
    let groups = keys(shape, value_len);
    let per_group = groups[0].len();
    let name = if way == Way::DroppedKeyspace { "other" } else { "default" };
    let keyspace = cell.db().keyspace_with(name, cell.keyspace_options()).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut value = || -> Vec<u8> { (0..value_len).map(|_| rng.u8(..)).collect() };
    let mut all = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        all.extend(group.iter().enumerate().map(|(i, key)| (key, is_left(way, number, i, per_group))));
    }
    // In an order in which every run of level 0 has keys of all groups.
    for i in 0..per_group {
        for ((key, _), is_left) in all.iter().skip(i).step_by(per_group) {
            match way == Way::Expiry && !is_left {
                true => _ = keyspace.put_with_expiry(key, value(), Clock::time(BEGIN + 1000)).unwrap(),
                false => _ = keyspace.put(key, value()).unwrap(),
            }
        }
    }
    keyspace.flush().unwrap();
    if levels != Levels::Zero {
        keyspace.compact_range(..).unwrap();
    }
    let (filled, _) = cell.space();
    assert!(filled >= 3 * MEMTABLE as u64, "{filled} bytes are too few to tell");

    let marked: Vec<(Vec<u8>, bool)> = all.iter().map(|((key, _), is_left)| (key.clone(), *is_left)).collect();
    match way {
        Way::EverySecond | Way::Points => {
            marked.iter().filter(|key| !key.1).for_each(|(key, _)| _ = keyspace.delete(key).unwrap());
        }
        Way::OneRange => {
            let deleted = |key: &&(Vec<u8>, bool)| !key.1;
            let (first, last) = (marked.iter().find(deleted), marked.iter().rfind(deleted));
            keyspace.delete_range(&first.unwrap().0[..]..=&last.unwrap().0).unwrap();
        }
        Way::RangeInEachPrefix | Way::RangePerPrefix | Way::SmallRanges => {
            marked.chunks(per_group).for_each(|group| delete_runs(&keyspace, group));
        }
        Way::RangePerKey => {
            for (key, _) in marked.iter().filter(|key| !key.1) {
                keyspace.delete_range(&key[..]..after(key).as_slice()).unwrap();
            }
        }
        Way::RangeUnderSnapshot => {
            let snapshot = cell.db().snapshot();
            marked.chunks(per_group).for_each(|group| delete_runs(&keyspace, group));
            keyspace.flush().unwrap();
            cell.rest();
            // Newer entries beside those that the snapshot holds.
            marked.iter().step_by(7).filter(|key| key.1).for_each(|(key, _)| _ = keyspace.put(key, value()).unwrap());
            keyspace.flush().unwrap();
            keyspace.compact_range(..).unwrap();
            drop(snapshot);
        }
        Way::DeletePrefix => {
            for group in groups.iter().zip(all.chunks(per_group)).filter(|(_, keys)| !keys[0].1).map(|(group, _)| group)
            {
                keyspace.delete_prefix(&group[0].1).unwrap();
            }
        }
        Way::Clear => _ = keyspace.clear().unwrap(),
        Way::Expiry => cell.clock.0.store(BEGIN + 2000, Ordering::Relaxed),
        Way::DroppedKeyspace => assert!(cell.db().drop_keyspace(name).unwrap()),
        Way::Ingest => {
            let format = keyspace.sst_format().unwrap();
            let create = |name: &str| {
                SstWriter::create_in(Arc::new(cell.fs.clone()), Path::new("/in").join(name), &format).unwrap()
            };
            let mut ranges = create("ranges");
            ranges.delete_range(..).unwrap();
            ranges.finish().unwrap();
            let mut entries = create("entries");
            marked.iter().filter(|key| key.1).for_each(|(key, _)| entries.put(key, value()).unwrap());
            entries.finish().unwrap();
            keyspace.ingest(["/in/ranges", "/in/entries"], IngestOptions::new()).unwrap();
        }
    }
    if way != Way::DroppedKeyspace {
        keyspace.flush().unwrap();
    }
    drop(keyspace);
    if reopened {
        cell.reopen();
    } else if way == Way::Expiry {
        // No delayed job wakes a stepped executor.
        cell.db().put("wake", "").unwrap();
        cell.db().flush().unwrap();
    }
    cell.db().wait_for_compactions().unwrap();
    cell.rest();

    let debt = cell.db().stats().compaction_debt;
    let (space, files) = cell.space();
    let found = cell.db().iter().filter(|entry| entry.as_ref().unwrap().0.as_ref() != b"wake").count();
    assert_eq!(found, marked.iter().filter(|key| key.1).count(), "entries");
    cell.db().compact_range(..).unwrap();
    cell.rest();
    let (least, least_files) = cell.space();
    assert!(least < filled, "a full compaction leaves {least} of {filled}");
    let own = files.saturating_sub(least_files) * TABLE_COST;
    let is_little = space * 5 <= least * 6 + (MEMTABLE as u64 + own) * 5;
    match is_little && debt == 0 {
        true => Ok(()),
        false => Err(format!(
            "{space} of {filled} bytes in {files} files, {least} in {least_files} when compacted, debt {debt}"
        )),
    }
}

/// After rest, a store takes at most 1.2 times what a full compaction leaves, a memtable, and what
/// its tables take besides entries.
fn check_values((name, value_len, separate): (&str, usize, bool)) {
    let wanted = std::env::var("TAMIS_CELL").ok();
    let value_number = VALUES.iter().position(|value| value.0 == name).unwrap();
    let mut failed = Vec::new();
    for (shape_number, (shape_name, shape)) in SHAPES.into_iter().enumerate() {
        for (way_number, (way_name, way)) in WAYS.into_iter().enumerate() {
            let cells = LEVELS.into_iter().flat_map(|levels| [(levels, false), (levels, true)]);
            for (number, ((level_name, levels), reopened)) in cells.enumerate() {
                let reopened_name = if reopened { ", reopened" } else { "" };
                let what = format!("{shape_name}, {way_name}, {level_name}, {name}{reopened_name}");
                let is_wanted = match &wanted {
                    Some(wanted) => what.contains(wanted),
                    None => (shape_number + way_number + value_number) % 6 == number,
                };
                if !is_wanted {
                    continue;
                }
                let _scene = Scene(what.clone());
                if let Err(short) = run_cell(shape, way, levels, (value_len, separate), reopened) {
                    failed.push(format!("{what}: {short}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} fall short: {failed:#?}", failed.len());
}

#[test]
fn entries_without_values_are_gone() {
    check_values(VALUES[0]);
}

#[test]
fn entries_with_short_values_are_gone() {
    check_values(VALUES[1]);
}

#[test]
fn entries_with_values_of_100_bytes_are_gone() {
    check_values(VALUES[2]);
}

#[test]
fn entries_with_large_values_are_gone() {
    check_values(VALUES[3]);
}

#[test]
fn entries_with_separate_values_are_gone() {
    check_values(VALUES[4]);
}

/// Operands on a value that expires stay apart from it, however often a table is rewritten. Neither
/// an idle store nor a request to compact may go on rewriting it, and a later process knows it too.
#[test]
fn a_store_comes_to_rest_with_operands_that_must_stay_apart() {
    let fs = SimFileSystem::new();
    let comes_to_rest = |executor: &SteppedExecutor| (0..1000).any(|_| !executor.step());
    let open = || {
        let (options, executor) = stepped_options(&fs);
        let keyspace = KeyspaceOptions::new().merge_operator(Append);
        (options.default_keyspace(keyspace).open("/db").unwrap(), executor)
    };
    let (db, executor) = open();
    for i in 0..100u8 {
        db.default_keyspace().put_with_expiry([i], "a", SystemTime::now() + Duration::from_secs(1 << 20)).unwrap();
        db.default_keyspace().merge([i], "b").unwrap();
    }
    db.flush().unwrap();
    assert!(comes_to_rest(&executor), "after a flush");
    db.default_keyspace().compact_range(..).unwrap();
    assert!(comes_to_rest(&executor), "after a request");
    drop(db);
    let (db, executor) = open();
    assert!(comes_to_rest(&executor), "in a later process");
    assert_eq!((db.stats().compactions, db.stats().compaction_debt), (0, 0), "in a later process");
    assert_eq!(db.get([7]).unwrap().as_deref(), Some(&b"ab"[..]));
}

/// An operator that comes with no store.
struct Joined;

impl MergeOperator for Joined {
    fn name(&self) -> &str {
        "test.joined"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        out.extend(operands.concat());
        Ok(())
    }
}

/// While the operator is missing, its operands cannot be combined: the store comes to rest with
/// them. Once it is there, they are combined.
#[test]
fn operands_whose_operator_is_missing_wait_for_it_at_rest() {
    let fs = SimFileSystem::new();
    let comes_to_rest = |executor: &SteppedExecutor| (0..1000).any(|_| !executor.step());
    let entries = |db: &Db| {
        let stats = db.stats();
        let levels = stats.keyspaces.into_iter().flat_map(|keyspace| keyspace.levels);
        levels.flat_map(|level| level.tables).map(|table| table.entries).sum::<u64>()
    };
    let (options, _executor) = stepped_options(&fs);
    let db = options.default_keyspace(KeyspaceOptions::new().merge_operator(Joined)).open("/db").unwrap();
    for operand in ["a", "b"] {
        (0..100u8).for_each(|i| _ = db.merge([i], operand).unwrap());
        db.flush().unwrap();
    }
    drop(db);
    let (options, executor) = stepped_options(&fs);
    let db = options.open("/db").unwrap();
    db.default_keyspace().compact_range(..).unwrap();
    assert!(comes_to_rest(&executor), "without the operator");
    assert_eq!(entries(&db), 200);
    drop(db);
    let (options, executor) = stepped_options(&fs);
    let db = options.default_keyspace(KeyspaceOptions::new().merge_operator(Joined)).open("/db").unwrap();
    db.default_keyspace().compact_range(..).unwrap();
    assert!(comes_to_rest(&executor), "with the operator");
    assert_eq!((entries(&db), db.get([7]).unwrap().as_deref()), (100, Some(&b"ab"[..])));
}
