//! Do scans of one prefix skip tables without it?

use std::sync::Arc;

use tamis::vfs::SimFileSystem;
use tamis::{
    Db, Executor, FilterMode, FilterPolicy, Iter, KeyspaceOptions, LevelStats, PrefixExtractor, ReadOptions, ReadStats,
    SteppedExecutor,
};

use crate::support::{count_entries, stepped_options};

fn users(prefix: PrefixExtractor) -> (Db, Arc<SteppedExecutor>) {
    let (options, executor) = stepped_options(&SimFileSystem::new());
    let keyspace = KeyspaceOptions::new().prefix(prefix).filter(FilterPolicy::Bloom { bits_per_key: 20.0 });
    let db =
        options.memtable_size(4096).table_size(16 << 10).cache_size(0).default_keyspace(keyspace).open("/db").unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut put = || {
        let (user, item) = (rng.u32(0..400) * 2, rng.u32(0..100));
        db.put(format!("user{user:03}:{item:02}"), [rng.u8(..); 100]).unwrap();
        while executor.step() {}
    };
    (0..9000).for_each(|_| put());
    db.flush().unwrap();
    while executor.step() {}
    // A compaction may just have emptied level 0. A run of less than a memtable stays.
    let holds_many = |level: &&LevelStats| level.tables.iter().map(|table| table.entries).sum::<u64>() >= 20;
    while db.stats().keyspaces[0].levels.iter().filter(holds_many).count() < 3 {
        (0..20).for_each(|_| put());
        db.flush().unwrap();
        while executor.step() {}
    }
    (db, executor)
}

/// Scans the prefix of every other user, from `first` on: number of entries, and the reads.
fn scan(db: &Db, first: u32, scan: impl Fn(&str) -> Iter) -> (usize, ReadStats) {
    let before = db.stats().reads();
    let entries = (first..800).step_by(2).map(|user| count_entries(scan(&format!("user{user:03}:")))).sum();
    (entries, db.stats().reads() - before)
}

#[test]
fn scans_of_absent_prefixes_read_no_block() {
    for extractor in [PrefixExtractor::UpTo(b':'), PrefixExtractor::Fixed(8)] {
        let (db, _executor) = users(extractor);
        let levels = &db.stats().keyspaces[0].levels;
        assert!(levels.iter().filter(|level| !level.tables.is_empty()).count() >= 3);
        assert!(levels.iter().any(|level| level.level > 0 && level.tables.len() > 5), "a level of several tables");

        let (entries, used) = scan(&db, 1, |prefix| db.prefix(prefix));
        assert_eq!((entries, used.block_reads), (0, 0), "{used:?}");
        assert!(used.prefix_probes > 2 * 400, "{used:?}");
        assert_eq!(used.prefix_skips, used.prefix_probes);
        assert_eq!(used.look_ups(), 0, "no point read");
        // A table is asked only if its range can hold the prefix: at most two tables of each level
        // below level 0.
        let most = |level: &LevelStats| if level.level == 0 { level.tables.len() } else { level.tables.len().min(2) };
        let most: usize = levels.iter().map(most).sum();
        assert!(used.prefix_probes <= 400 * most as u64, "{used:?}, {most} tables per prefix");

        let (_, reverse) = scan(&db, 1, |prefix| {
            let mut iter = db.prefix(prefix);
            assert!(iter.next_back().is_none());
            iter
        });
        assert_eq!((reverse.block_reads, reverse.prefix_probes), (0, used.prefix_probes));

        let ignoring = ReadOptions::new().filters(FilterMode::Ignore);
        let (_, ignored) = scan(&db, 1, |prefix| db.prefix_with(prefix, ignoring));
        // Of some runs, the separators tell that they have nothing.
        assert!(ignored.block_reads > 2 * 400, "{ignored:?}");
        assert_eq!((ignored.prefix_probes, ignored.prefix_skips), (0, 0));

        let shadowing = ReadOptions::new().filters(FilterMode::Shadow);
        let (_, shadow) = scan(&db, 1, |prefix| db.prefix_with(prefix, shadowing));
        assert_eq!((shadow.prefix_probes, shadow.prefix_skips), (used.prefix_probes, used.prefix_skips));
        assert!(shadow.block_reads > 400, "{shadow:?}");
        // The filter of every table read had denied the prefix.
        assert_eq!((shadow.avoidable_reads, shadow.avoidable_bytes), (shadow.block_reads, shadow.block_bytes));
        assert_eq!((used.avoidable_reads, ignored.avoidable_reads), (0, 0));
    }
}

#[test]
fn scans_of_present_prefixes_return_all_and_read_less() {
    let (db, _executor) = users(PrefixExtractor::UpTo(b':'));
    let (entries, used) = scan(&db, 0, |prefix| db.prefix(prefix));
    let ignoring = ReadOptions::new().filters(FilterMode::Ignore);
    let (all, ignored) = scan(&db, 0, |prefix| db.prefix_with(prefix, ignoring));
    assert_eq!(entries, all);
    assert_eq!(entries, count_entries(db.iter()));
    assert!(used.prefix_skips > 0 && used.block_reads < ignored.block_reads, "{used:?} {ignored:?}");
}

#[test]
fn a_scan_asks_each_table_once_from_either_end() {
    let (db, _executor) = users(PrefixExtractor::UpTo(b':'));
    for filters in [FilterMode::Use, FilterMode::Shadow] {
        let options = ReadOptions::new().filters(filters);
        for first in [0, 1] {
            let (_, forward) = scan(&db, first, |prefix| db.prefix_with(prefix, options));
            let (_, both) = scan(&db, first, |prefix| {
                let mut iter = db.prefix_with(prefix, options);
                // From one end, then from the other as far as entries are left.
                assert_eq!(iter.next_back().is_some(), first == 0, "{prefix}");
                iter.next();
                iter
            });
            assert!(forward.prefix_probes > 400, "{forward:?}");
            let probes = |reads: ReadStats| (reads.prefix_probes, reads.prefix_skips);
            assert_eq!(probes(both), probes(forward));
        }
    }
}

#[test]
fn scans_without_a_prefix_ask_no_filter() {
    let (db, _executor) = users(PrefixExtractor::UpTo(b':'));
    let (entries, reads) = scan(&db, 0, |prefix| db.prefix(&prefix[..7]));
    assert!(entries > 0);
    let others = [db.prefix("user"), db.range("user000:".."user002:00"), db.range("user000:"..), db.iter()];
    others.into_iter().for_each(|iter| assert!(count_entries(iter) > 0));
    assert_eq!((reads.prefix_probes, db.stats().reads().prefix_probes), (0, 0));
    let mut cursor = db.cursor_with(ReadOptions::new().filters(FilterMode::Use)).unwrap();
    cursor.seek("user001:").unwrap();
    assert_eq!(db.stats().reads().prefix_probes, 0);
    // A range within a prefix asks filters.
    assert_eq!(count_entries(db.range("user001:00".."user001:99")), 0);
    assert!(db.stats().reads().prefix_probes > 0);
}

#[test]
fn ranges_within_a_prefix_obey_the_filter_mode() {
    let (db, _executor) = users(PrefixExtractor::UpTo(b':'));
    let snapshot = db.snapshot();
    let with = |filters| {
        let options = ReadOptions::new().filters(filters);
        let range = |prefix: &str| format!("{prefix}00")..=format!("{prefix}99");
        let (_, reads) = scan(&db, 1, |prefix| db.range_with(range(prefix), options));
        assert_eq!(scan(&db, 1, |prefix| snapshot.range_with(range(prefix), options)), (0, reads));
        reads
    };
    let [used, ignored, shadow] = [FilterMode::Use, FilterMode::Ignore, FilterMode::Shadow].map(with);
    assert_eq!((used.block_reads, used.prefix_skips), (0, used.prefix_probes));
    assert_eq!((ignored.prefix_probes, ignored.avoidable_reads), (0, 0));
    assert_eq!((shadow.prefix_probes, shadow.prefix_skips), (used.prefix_probes, used.prefix_skips));
    assert!(used.prefix_probes > 400 && ignored.block_reads > 400 && shadow.avoidable_reads > 400, "{shadow:?}");
}

#[test]
fn tables_of_another_extractor_are_read_until_they_are_rewritten() {
    check_change(|db| db.compact_range(..).unwrap());
}

#[test]
fn tables_of_another_extractor_are_read_until_their_filters_are_rebuilt() {
    check_change(|db| {
        let rebuild = db.default_keyspace().renew_filters(|_| {}).unwrap();
        assert_eq!((rebuild.replaced, rebuild.unchanged), (rebuild.wanted, 0));
        assert!(rebuild.wanted > 0);
        let again = db.default_keyspace().renew_filters(|_| {}).unwrap();
        assert_eq!((again.wanted, again.unchanged), (0, rebuild.wanted));
    });
}

/// Changes the extractor, then updates the tables by `renew`.
fn check_change(renew: impl Fn(&Db)) {
    let (db, _executor) = users(PrefixExtractor::UpTo(b':'));
    let options = db.default_keyspace().options().unwrap();
    let changed = options.prefix(PrefixExtractor::Fixed(8));
    let other = db.keyspace_with("default", changed.clone()).unwrap();
    assert_eq!(other.options().unwrap(), changed);
    let (entries, reads) = scan(&db, 1, |prefix| db.prefix(prefix));
    assert_eq!((entries, reads.prefix_probes), (0, 0));
    assert!(reads.block_reads > 0);
    renew(&db);
    let (entries, reads) = scan(&db, 1, |prefix| db.prefix(prefix));
    assert_eq!((entries, reads.block_reads), (0, 0));
    assert!(reads.prefix_skips > 0);
    let (entries, _) = scan(&db, 0, |prefix| db.prefix(prefix));
    assert_eq!(entries, count_entries(db.iter()));
}

#[test]
fn extractors_out_of_bounds_are_refused() {
    let (db, _executor) = users(PrefixExtractor::UpTo(0xff));
    for len in [0, 4096, u16::MAX] {
        let options = KeyspaceOptions::new().prefix(PrefixExtractor::Fixed(len));
        let error = db.keyspace_with("default", options).unwrap_err();
        assert!(error.to_string().contains("1 to 4095"), "{error}");
    }
    let options = KeyspaceOptions::new().prefix(PrefixExtractor::Fixed(4095));
    assert_eq!(db.keyspace_with("default", options.clone()).unwrap().options().unwrap(), options);
}
