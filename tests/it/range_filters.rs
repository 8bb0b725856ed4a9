//! Range filters: what scans do not read, what the ledger says of it, and how tables get and lose
//! them.

use std::path::Path;
use std::sync::Arc;

use tamis::filter::RangeFilterState;
use tamis::inspect::Inspector;
use tamis::vfs::SimFileSystem;
use tamis::{
    Compression, Db, FilterAnswer, FilterLedger, FilterMode, IngestOptions, KeyspaceOptions, RangeFilterPolicy,
    ReadOptions, SstWriter, Value,
};

use crate::support::stepped_options;

const RUNS: u64 = 12;
/// In each run.
const KEYS: u64 = 3000;

/// Keys that spread as hashes do.
fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn after(key: [u8; 8], distance: u64) -> [u8; 8] {
    u64::from_be_bytes(key).saturating_add(distance).to_be_bytes()
}

fn keyspace(ranges: RangeFilterPolicy) -> KeyspaceOptions {
    KeyspaceOptions::new().compression(Compression::None).block_size(1024).range_filter(ranges)
}

fn open(fs: &SimFileSystem, ranges: RangeFilterPolicy) -> Db {
    let (options, _) = stepped_options(fs);
    options.memtable_size(1 << 20).cache_size(0).default_keyspace(keyspace(ranges)).open("/db").unwrap()
}

/// Runs that overlap, all in level 0.
fn store(ranges: RangeFilterPolicy) -> (SimFileSystem, Db) {
    let fs = SimFileSystem::new();
    let db = open(&fs, ranges);
    for run in 0..RUNS {
        (0..KEYS).for_each(|n| _ = db.put(key(n * RUNS + run), [7; 30]).unwrap());
        db.flush().unwrap();
    }
    assert_eq!(db.stats().keyspaces[0].levels[0].tables.len() as u64, RUNS);
    assert_eq!(db.iter().count() as u64, RUNS * KEYS, "every table is open");
    (fs, db)
}

/// The ledger of `scan`, and the read calls of the file system.
fn measure(fs: &SimFileSystem, db: &Db, scan: impl FnOnce()) -> (FilterLedger, u64) {
    let (before, calls) = (db.stats().ledger(), fs.reads());
    scan();
    let mut ledger = db.stats().ledger();
    ledger.reads = ledger.reads - before.reads;
    ledger.expected_range_false_positives -= before.expected_range_false_positives;
    (ledger, fs.reads() - calls)
}

/// The mean gap between keys of the store.
const GAP: u64 = u64::MAX / (RUNS * KEYS);

/// Empty ranges between two neighbours, of about a sixteenth of the mean gap.
fn empty_ranges() -> Vec<([u8; 8], [u8; 8])> {
    let mut keys: Vec<_> = (0..RUNS * KEYS).map(key).collect();
    keys.sort_unstable();
    let is_wide = |pair: &&[[u8; 8]]| u64::from_be_bytes(pair[1]) - u64::from_be_bytes(pair[0]) > GAP / 4;
    let between = keys.windows(2).filter(is_wide).step_by(9);
    between.map(|pair| (after(pair[0], GAP / 9), after(pair[0], GAP / 6))).collect()
}

#[test]
fn an_empty_range_reads_next_to_nothing_and_the_ledger_says_so() {
    let ranges = empty_ranges();
    let count = ranges.len() as u64;
    let scan = |db: &Db, options: ReadOptions, forward: bool| {
        for (from, to) in &ranges {
            let mut range = db.range_with(from..to, options);
            assert!(if forward { range.next() } else { range.next_back() }.is_none());
        }
    };
    let (fs, db) = store(RangeFilterPolicy::ORDERED);
    let (none_fs, none) = store(RangeFilterPolicy::None);
    for forward in [true, false] {
        let (ledger, calls) = measure(&none_fs, &none, || scan(&none, ReadOptions::new(), forward));
        assert_eq!((ledger.reads.range_probes, ledger.reads.block_reads), (0, calls));
        assert!(calls > RUNS * count * 9 / 10, "{calls} {count}");
        let without = calls;

        let (ledger, calls) = measure(&fs, &db, || scan(&db, ReadOptions::new(), forward));
        let reads = ledger.reads;
        assert_eq!((reads.block_reads, reads.scan_reads_unused), (calls, calls), "{reads:?}");
        assert!(reads.range_probes > RUNS * count * 9 / 10 && calls * 20 < count, "{reads:?} {count}");
        // Every block that was read is a false positive, but for those of versions to be checked.
        assert_eq!(reads.range_probes, reads.range_absent(), "{reads:?}");
        assert!(reads.range_false_positives.abs_diff(calls) * 10 <= calls, "{reads:?}");
        let (predicted, measured) =
            (ledger.predicted_range_rate().unwrap(), reads.range_false_positive_rate().unwrap());
        assert!(predicted < 0.01 && measured < 0.01, "{predicted} {measured}");

        // In the mode Shadow everything is read, and what need not have been is counted.
        let shadow = ReadOptions::new().filters(FilterMode::Shadow);
        let (ledger, calls) = measure(&fs, &db, || scan(&db, shadow, forward));
        let reads = ledger.reads;
        assert!(reads.block_reads == calls && calls > without * 9 / 10, "{reads:?}");
        assert!(reads.avoidable_reads > calls * 98 / 100, "{reads:?}");
        let ignore = ReadOptions::new().filters(FilterMode::Ignore);
        let (ledger, calls) = measure(&fs, &db, || scan(&db, ignore, forward));
        assert_eq!((ledger.reads.range_probes, calls), (0, without));
    }
}

#[test]
fn a_seek_reads_the_block_of_one_run() {
    let (fs, db) = store(RangeFilterPolicy::ORDERED);
    let mut sorted: Vec<_> = (0..RUNS * KEYS).map(key).collect();
    sorted.sort_unstable();
    let to_key =
        |entry: Option<tamis::Result<(Value, Value)>>| entry.map(|entry| (*entry.unwrap().0).try_into().unwrap());
    for forward in [true, false] {
        let starts = || (0..RUNS * KEYS).step_by(37).map(|n| after(key(n), GAP / 3));
        let (ledger, calls) = measure(&fs, &db, || {
            for start in starts() {
                let at = sorted.partition_point(|key| *key < start);
                let (found, expected) = match forward {
                    true => (to_key(db.range(start..).next()), sorted.get(at)),
                    false => (to_key(db.range(..start).next_back()), at.checked_sub(1).map(|at| &sorted[at])),
                };
                assert_eq!(found.as_ref(), expected);
            }
        });
        let count = starts().count() as u64;
        // Backward, the entry before has to be seen to know that the version is the newest.
        let most = if forward { 11 * count / 10 } else { 23 * count / 10 };
        assert!((count..=most).contains(&calls), "{forward}: {calls} for {count}, {:?}", ledger.reads);
    }
    // A cursor that turns around, and seeks to what comes before a key that is there.
    let mut cursor = db.cursor().unwrap();
    for n in (100..sorted.len() - 100).step_by(997) {
        assert!(cursor.seek(sorted[n]).unwrap());
        assert!(cursor.prev().unwrap());
        assert_eq!(cursor.key(), Some(&sorted[n - 1][..]));
        assert!(cursor.next().unwrap() && cursor.next().unwrap());
        assert_eq!(cursor.key(), Some(&sorted[n + 1][..]));
        assert!(cursor.seek_for_prev(after(sorted[n], 1)).unwrap());
        assert_eq!(cursor.key(), Some(&sorted[n][..]));
    }
}

/// Of keys that follow each other in the code: that of a run is bounded by the key before it, which
/// another run has.
#[test]
fn a_seek_to_a_dense_key_reads_the_block_of_its_run() {
    let fs = SimFileSystem::new();
    let db = open(&fs, RangeFilterPolicy::ORDERED);
    let key = |n: u64| format!("{:08}", 2 * n);
    for run in 0..RUNS {
        (0..KEYS).for_each(|n| _ = db.put(key(n * RUNS + run), [7; 30]).unwrap());
        db.flush().unwrap();
    }
    assert_eq!(db.iter().count() as u64, RUNS * KEYS, "every table is open");
    let starts = || (0..RUNS * KEYS).step_by(37);
    let (ledger, calls) = measure(&fs, &db, || {
        starts().for_each(|n| assert_eq!(*db.range(key(n)..).next().unwrap().unwrap().0, *key(n).as_bytes()));
    });
    let count = starts().count() as u64;
    assert!(calls <= count * 101 / 100, "{calls} for {count}, {:?}", ledger.reads);
}

#[test]
fn an_explanation_says_which_filters_said_no() {
    let (fs, db) = store(RangeFilterPolicy::ORDERED);
    let (mut no, mut blocks) = (0, 0);
    let (ledger, _) = measure(&fs, &db, || {
        for (from, to) in empty_ranges().into_iter().step_by(10) {
            let explained = db.explain_range(from..to, 1).unwrap();
            no += explained.steps.iter().filter(|step| step.range == Some(FilterAnswer::No)).count() as u64;
            blocks += explained.blocks_entered() as u64;
        }
    });
    assert_eq!((ledger.reads.range_negatives, ledger.reads.block_reads), (no, blocks));
    let said = db.explain_range(empty_ranges()[0].0..empty_ranges()[0].1, 1).unwrap().steps;
    assert!(said.iter().any(|step| step.to_string() == "range filter said no, no block needed"), "{said:?}");
}

/// How many tables of the default keyspace have a usable range filter, and all tables.
fn with_filter(db: &Db) -> (usize, usize) {
    assert!(db.iter().all(|entry| entry.is_ok()));
    let stats = db.stats();
    let tables: Vec<_> = stats.keyspaces[0].levels.iter().flat_map(|level| &level.tables).collect();
    let is_usable = |state: &Option<RangeFilterState>| matches!(state, Some(RangeFilterState::Usable(_)));
    (tables.iter().filter(|table| is_usable(&table.range_filter)).count(), tables.len())
}

/// What a verification of all files finds wrong.
fn faults(fs: &SimFileSystem) -> u64 {
    let mut faults = 0;
    Inspector::on(Arc::new(fs.clone())).verify(Path::new("/db"), &mut |_| faults += 1).unwrap();
    faults
}

#[test]
fn tables_get_range_filters_and_lose_them() {
    let (fs, db) = store(RangeFilterPolicy::None);
    assert_eq!(with_filter(&db), (0, 12));
    let entries = |db: &Db| db.iter().map(|entry| entry.unwrap()).collect::<Vec<_>>();
    let before = entries(&db);
    db.close().unwrap();
    // The option is stored, and tables stay as they are until they are rewritten or renewed.
    let db = open(&fs, RangeFilterPolicy::ORDERED);
    assert_eq!(with_filter(&db), (0, 12));
    // Background work may come first, and merge the tables.
    db.default_keyspace().renew_filters(|_| {}).unwrap();
    let (usable, all) = with_filter(&db);
    assert_eq!(usable, all);
    assert_eq!(entries(&db), before);
    let again = db.default_keyspace().renew_filters(|_| {}).unwrap();
    assert_eq!((again.replaced, again.unchanged), (0, all as u64));
    db.close().unwrap();
    assert_eq!(faults(&fs), 0);
    let db = stepped_options(&fs).0.open("/db").unwrap();
    db.compact_range(..).unwrap();
    assert_eq!(with_filter(&db), (1, 1), "a compaction writes what the stored options say");
    db.close().unwrap();
    let db = open(&fs, RangeFilterPolicy::None);
    assert_eq!(db.default_keyspace().renew_filters(|_| {}).unwrap().replaced, 1);
    assert_eq!(with_filter(&db), (0, 1));
    assert_eq!(entries(&db), before);
}

/// Of text, keys to which a filter wrongly says "maybe" are too many.
#[test]
fn a_table_whose_keys_allow_no_useful_filter_gets_none() {
    let fs = SimFileSystem::new();
    let db = open(&fs, RangeFilterPolicy::ORDERED);
    let mut rng = fastrand::Rng::with_seed(3);
    let words: Vec<String> = (0..300).map(|_| (0..rng.usize(3..10)).map(|_| rng.lowercase()).collect()).collect();
    let word = |rng: &mut fastrand::Rng| words[rng.usize(..300) * rng.usize(..300) / 300].clone();
    for _ in 0..3000 {
        let url = format!("https://{}.com/{}/{}/{}", word(&mut rng), word(&mut rng), word(&mut rng), rng.u32(..9999));
        db.put(url, "").unwrap();
    }
    db.flush().unwrap();
    assert_eq!(with_filter(&db), (0, 1));
    let table = &db.stats().keyspaces[0].levels[0].tables[0];
    let Some(RangeFilterState::Declined(rates)) = table.range_filter else { panic!("{table:?}") };
    assert!(rates.near > 250_000_000, "{rates:?}");
    // It would be declined again.
    assert_eq!(db.default_keyspace().renew_filters(|_| {}).unwrap().unchanged, 1);
}

#[test]
fn ingested_tables_bring_their_range_filters() {
    let fs = SimFileSystem::new();
    let db = open(&fs, RangeFilterPolicy::ORDERED);
    let mut keys: Vec<_> = (0..KEYS).map(key).collect();
    keys.sort_unstable();
    let mut writer = SstWriter::create_in(Arc::new(fs.clone()), "/new.sst", &db.sst_format().unwrap()).unwrap();
    keys.iter().for_each(|key| writer.put(key, "v").unwrap());
    writer.finish().unwrap();
    db.ingest(["/new.sst"], IngestOptions::default()).unwrap();
    assert_eq!(with_filter(&db), (1, 1));
    let (ledger, _) = measure(&fs, &db, || {
        for n in (0..KEYS).step_by(7) {
            assert!(db.range(after(key(n), GAP)..after(key(n), GAP + 9)).next().is_none());
        }
    });
    assert!(ledger.reads.range_probes > 400 && ledger.reads.block_reads < 50, "{:?}", ledger.reads);
}

#[test]
fn a_damaged_range_filter_means_maybe_until_it_is_renewed() {
    let (fs, db) = store(RangeFilterPolicy::ORDERED);
    let entries = |db: &Db| db.iter().map(|entry| entry.unwrap()).collect::<Vec<_>>();
    let before = entries(&db);
    db.close().unwrap();
    // Background work may merge the tables.
    let db = open(&fs, RangeFilterPolicy::ORDERED);
    db.default_keyspace().renew_filters(|_| {}).unwrap();
    let usable = with_filter(&db).0;
    db.close().unwrap();
    let table = fs.paths().into_iter().filter(|path| path.extension().is_some_and(|end| end == "sst")).min().unwrap();
    // The last block before the properties: some way before the end of the file.
    let bytes = fs.read(&table).unwrap();
    let at = bytes.windows(4).rposition(|magic| magic == b"RNG1").unwrap();
    fs.corrupt(table, at as u64 + 500, 1).unwrap();
    assert!(faults(&fs) > 0);
    let db = open(&fs, RangeFilterPolicy::ORDERED);
    assert_eq!(entries(&db), before);
    assert_eq!(with_filter(&db), (usable - 1, usable));
    assert_eq!(db.stats().degraded_filters().count(), 1);
    for (from, to) in empty_ranges().into_iter().step_by(50) {
        assert!(db.range(from..to).next().is_none() && db.range(from..to).next_back().is_none());
    }
    db.default_keyspace().renew_filters(|_| {}).unwrap();
    assert_eq!(with_filter(&db), (usable, usable));
    db.close().unwrap();
    assert_eq!(faults(&fs), 0);
}

#[test]
fn range_filters_are_in_the_account_of_memory() {
    let (_, db) = store(RangeFilterPolicy::ORDERED);
    let (_, none) = store(RangeFilterPolicy::None);
    let [with, without] = [&db, &none].map(|db| db.stats().memory.usage.filters as u64);
    let more = with - without;
    let least = RUNS * KEYS * 12 / 8;
    assert!((least..least * 2).contains(&more), "{more} for {least}");
}
