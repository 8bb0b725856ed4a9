//! What reads cost, and how they are counted.

use super::*;
use crate::format::filename::FileKind;
use crate::report::stats::ReadStats;
use crate::vfs::FileLock;

fn get_in(table: &Table, key: impl AsRef<[u8]>, snapshot: SeqNo, mode: FilterMode) -> bool {
    let key = key.as_ref();
    look_up(table, &point_read(key, snapshot, mode), &mut Untraced).unwrap().is_some()
}

fn table_of(filter: FilterPolicy, entries: &[TableEntry], cache: usize) -> (SimFileSystem, Arc<Table>) {
    let fs = file_system();
    let options = TableOptions { filters: TableFilters::of_points(filter), ..options() };
    let meta = build(&fs, options, entries);
    let table = open(&fs, &meta, cache);
    table.resident().unwrap();
    (fs, table)
}

#[test]
fn nothing_is_read_before_the_first_look_up() {
    let fs = file_system();
    let meta = build(&fs, options(), &even_keys(10));
    let reads = fs.reads();
    let table = open(&fs, &meta, 0);
    let _cursor = table.cursor(true);
    assert_eq!(fs.reads(), reads);
}

#[test]
fn a_hit_reads_one_block_and_an_absent_key_hardly_any() {
    const N: u64 = 5000;
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(N), 0);
    let before = fs.reads();
    for i in 0..N {
        assert!(get_in(&table, even_key(i), MAX_SEQNO, FilterMode::Use));
    }
    assert_eq!(fs.reads() - before, N);
    assert_eq!(table.ledger().reads.block_reads, N);
    assert!(table.ledger().reads.block_bytes <= N * 4096);

    let before = fs.reads();
    for i in 0..N {
        assert!(!get_in(&table, odd_key(i), MAX_SEQNO, FilterMode::Use));
    }
    let stats = table.ledger().reads;
    assert_eq!(fs.reads() - before, stats.false_positives);
    assert_eq!(stats.true_positives, N);
    assert_eq!(stats.negatives + stats.false_positives, N);
    // 0.8 % are expected.
    assert!(stats.false_positives < N / 50, "{stats:?}");
    assert_eq!(stats.probes, 2 * N);
}

#[test]
fn shadow_counts_as_use_does_and_reads_every_time() {
    let (_, used) = table_of(FilterPolicy::DEFAULT, &even_keys(500), 0);
    let (_, shadowed) = table_of(FilterPolicy::DEFAULT, &even_keys(500), 0);
    for i in 0..500 {
        for key in [even_key(i), odd_key(i)] {
            let expected = get_in(&used, &key, MAX_SEQNO, FilterMode::Use);
            let got = get_in(&shadowed, &key, MAX_SEQNO, FilterMode::Shadow);
            assert_eq!(got, expected);
        }
    }
    let classes = |stats: ReadStats| (stats.negatives, stats.true_positives, stats.false_positives);
    assert_eq!(classes(used.ledger().reads), classes(shadowed.ledger().reads));
    // The last key lies after the table's largest: the index denies it without a read.
    assert_eq!(shadowed.ledger().reads.block_reads, 999);
    // The avoidable reads are those of keys that the filter denied, except for that key.
    let saved = shadowed.ledger().reads.avoidable_reads;
    assert_eq!(saved, 999 - used.ledger().reads.block_reads);
    assert!(shadowed.ledger().reads.avoidable_bytes > saved * 1000);
}

#[test]
fn ignoring_the_filter_counts_as_skipping_it() {
    let (_, table) = table_of(FilterPolicy::DEFAULT, &even_keys(100), 0);
    assert!(get_in(&table, even_key(3), MAX_SEQNO, FilterMode::Ignore));
    assert!(!get_in(&table, odd_key(3), MAX_SEQNO, FilterMode::Ignore));
    let stats = table.ledger().reads;
    assert_eq!((stats.probes, stats.skipped), (0, 2));
    assert_eq!(stats.block_reads, 2);
}

#[test]
fn without_a_filter_look_ups_are_counted_as_skipping_it() {
    let (_, table) = table_of(FilterPolicy::None, &even_keys(100), 0);
    for mode in [FilterMode::Use, FilterMode::Shadow] {
        assert!(get_in(&table, even_key(3), MAX_SEQNO, mode));
        assert!(!get_in(&table, odd_key(3), MAX_SEQNO, mode));
    }
    assert_eq!(table.filter_state().unwrap(), FilterState::None);
    let stats = table.ledger().reads;
    assert_eq!((stats.probes, stats.skipped), (0, 4));
}

#[test]
fn newer_versions_and_tombstones_are_true_positives() {
    let entries = [put("a", 9, "too new"), ("b".into(), 2, ValueKind::Delete, Vec::new())];
    let (_, table) = table_of(FilterPolicy::DEFAULT, &entries, 0);
    assert!(!get_in(&table, "a", 8, FilterMode::Use));
    assert!(get_in(&table, "b", 8, FilterMode::Use));
    assert_eq!(table.ledger().reads.true_positives, 2);
    assert_eq!(table.ledger().reads.false_positives, 0);
}

#[test]
fn cached_blocks_are_not_read_again() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(2000), 1 << 20);
    for _ in 0..3 {
        for i in 0..2000 {
            assert!(get_in(&table, even_key(i), MAX_SEQNO, FilterMode::Use));
        }
    }
    let stats = table.ledger().reads;
    let blocks = table.properties().unwrap().data_blocks;
    assert_eq!(stats.block_reads, blocks);
    assert_eq!(stats.cache_hits, 6000 - blocks);
    let before = fs.reads();
    assert_eq!(entries_of(&table, false).unwrap().len(), 2000);
    assert_eq!(fs.reads(), before);
}

#[test]
fn a_long_scan_reads_ahead_in_both_directions() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(40_000), 16 << 20);
    let blocks = table.properties().unwrap().data_blocks;
    assert!(blocks > 200);
    let before = fs.reads();
    assert_eq!(entries_of(&table, false).unwrap().len(), 40_000);
    assert!(fs.reads() - before < 12, "{} reads", fs.reads() - before);
    assert_eq!(table.ledger().reads.block_reads, blocks);
    assert_eq!(table.fetcher().context.cache().usage(), 0);

    // Backward reads ahead too.
    let before = fs.reads();
    let mut cursor = table.cursor(false);
    cursor.seek_to_last().unwrap();
    for i in (0..40_000).rev() {
        assert_eq!(cursor.key(), even_key(i).as_bytes());
        cursor.prev().unwrap();
    }
    assert!(!cursor.valid() && fs.reads() - before < 12, "{} reads", fs.reads() - before);
}

/// Blocks that a scan reads, with `fill_cache`.
fn read_by_scan(table: &Arc<Table>) -> u64 {
    let before = table.ledger().reads.block_reads;
    assert_eq!(entries_of(table, true).unwrap().len(), 40_000);
    table.ledger().reads.block_reads - before
}

#[test]
fn a_long_scan_fills_free_space_of_the_cache() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(40_000), 16 << 20);
    let before = fs.reads();
    assert_eq!(read_by_scan(&table), table.properties().unwrap().data_blocks);
    assert!(fs.reads() - before < 32, "{} reads", fs.reads() - before);
    let before = fs.reads();
    assert_eq!((read_by_scan(&table), fs.reads()), (0, before));
}

#[test]
fn short_scans_read_single_blocks() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(40_000), 0);
    let mut cursor = table.cursor(false);
    let before = table.ledger().reads.block_reads;
    for i in 0..50 {
        cursor.seek(even_key(i * 700).as_bytes(), MAX_SEQNO).unwrap();
        cursor.next().unwrap();
    }
    let blocks = table.ledger().reads.block_reads - before;
    let bytes = table.ledger().reads.block_bytes;
    assert!(blocks <= 100 && bytes <= blocks * 4096);
    assert!(fs.reads() < 120);
}

/// The version that an old snapshot sees may lie in the block after the one that the index names.
/// That is possible only if the separator is the key itself.
#[test]
fn a_look_up_goes_on_to_the_next_block_only_if_the_key_may() {
    let options = TableOptions { block_size: 64, ..options() };
    let fs = file_system();
    let entries = [
        put("a", 5, [1; 40]),
        put("b", 7, [2; 40]),
        put("b", 3, [3; 40]),
        put("cat", 9, [4; 40]),
        put("cow", 1, [5; 40]),
    ];
    let meta = build(&fs, options, &entries);
    let table = open(&fs, &meta, 0);
    for (key, snapshot, found, blocks) in [
        ("a", 5, true, 1),
        ("a", 4, false, 2),
        ("b", 7, true, 1),
        ("b", 6, true, 2),
        ("b", 2, false, 3),
        ("cat", 9, true, 1),
        ("cat", 8, false, 1),
    ] {
        let before = table.ledger().reads.block_reads;
        assert_eq!(get(&table, key, snapshot).unwrap().is_some(), found);
        let read = table.ledger().reads.block_reads - before;
        assert_eq!(read, blocks, "{key} at {snapshot}");
    }
}

#[test]
fn no_more_files_stay_open_than_allowed() {
    let fs = file_system();
    let context = Arc::new(TableContext::new(Arc::new(fs.clone()), Path::new("/db"), 0, 3));
    let tables: Vec<Table> = (1..=10)
        .map(|number| {
            let mut builder = TableBuilder::new(&fs, Path::new("/db"), number, options()).unwrap();
            builder.add(b"key", number, ValueKind::Put, b"").unwrap();
            Table::new(Arc::clone(&context), builder.finish().unwrap())
        })
        .collect();
    for _ in 0..3 {
        for table in &tables {
            let hit = get(table, "key", MAX_SEQNO).unwrap().unwrap();
            assert_eq!(hit.seqno, table.meta().number);
            assert!(context.files().open_files() <= 3);
        }
    }
    assert_eq!(context.files().open_files(), 3);
    // A file in the pool is not opened again.
    let before = fs.reads();
    get(&tables[9], "key", MAX_SEQNO).unwrap();
    assert_eq!(fs.reads() - before, 1);
}

#[test]
fn sampled_keys_cut_a_table_into_pieces_of_the_wanted_size() {
    let (_, table) = table_of(FilterPolicy::DEFAULT, &even_keys(6000), 0);
    let index = table.resident().unwrap().index.resident().unwrap();
    let lens: Vec<u64> = (0..index.len()).map(|i| index.handle(i).stored_len()).collect();
    let (total, longest) = (lens.iter().sum::<u64>(), lens.iter().max().unwrap());
    assert!(lens.len() > 20);
    for step in [1, 3 * longest, 7 * longest, total, total + 1] {
        let mut samples = vec![b"before".to_vec()];
        table.sample_keys(step, &mut samples).unwrap();
        assert_eq!(samples.remove(0), b"before");
        let mut piece = 0;
        let mut expected = Vec::new();
        for (i, len) in lens.iter().enumerate() {
            piece += len;
            if piece >= step {
                expected.push(index.separator(i).to_vec());
                piece = 0;
            }
        }
        assert_eq!(samples, expected);
    }
}

fn lock_of(fs: &SimFileSystem) -> Arc<dyn FileLock> {
    fs.lock(Path::new("/db/LOCK")).unwrap().unwrap().into()
}

#[test]
fn the_file_of_an_obsolete_table_is_removed_after_its_last_reader() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(2000), 1 << 20);
    let context = Arc::clone(&table.fetcher().context);
    let executor = Arc::new(SteppedExecutor::new());
    context.janitor().start(executor.clone(), lock_of(&fs));
    let mut cursor = table.cursor(true);
    cursor.seek_to_first().unwrap();
    assert_eq!(table.retire(), None);
    assert_eq!(executor.pending(), 0);
    cursor.next().unwrap();
    drop(cursor);
    assert_eq!(context.files().open_files(), 0);
    // The reader's thread removes nothing.
    assert!(fs.file_len(PATH).is_ok());
    assert!(executor.step());
    assert!(fs.file_len(PATH).is_err());
}

#[test]
fn the_caller_removes_an_obsolete_table_without_readers() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(2000), 1 << 20);
    let context = Arc::clone(&table.fetcher().context);
    let executor = Arc::new(SteppedExecutor::new());
    context.janitor().start(executor.clone(), lock_of(&fs));
    get(&table, "key", MAX_SEQNO).unwrap();
    assert_eq!(context.files().open_files(), 1);
    let number = table.retire();
    assert_eq!((number, context.files().open_files(), executor.pending()), (Some(NUMBER), 0, 0));
    assert_eq!((context.graveyard().numbers(), context.graveyard().unlinked()), (vec![NUMBER], vec![]));
    context.janitor().remove(number.map(FileKind::Table));
    assert!(fs.file_len(PATH).is_err());
    assert_eq!(context.graveyard().unlinked(), [NUMBER]);
}

#[test]
fn an_obsolete_table_that_outlives_its_store_leaves_the_directory_alone() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(2000), 1 << 20);
    let context = Arc::clone(&table.fetcher().context);
    let executor = Arc::new(SteppedExecutor::new());
    context.janitor().start(executor.clone(), lock_of(&fs));
    let reader = Arc::clone(&table);
    assert_eq!(table.retire(), None);
    context.janitor().stop();
    drop(reader);
    context.janitor().remove([FileKind::Table(NUMBER)]);
    assert!(fs.file_len(PATH).is_ok());
    assert_eq!(executor.pending(), 0);
}

#[test]
fn a_store_that_has_lost_its_lock_removes_no_file() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(10), 1 << 20);
    let context = Arc::clone(&table.fetcher().context);
    context.janitor().start(Arc::new(SteppedExecutor::new()), lock_of(&fs));
    let number = table.retire();
    fs.remove(Path::new("/db/LOCK")).unwrap();
    context.janitor().remove(number.map(FileKind::Table));
    context.janitor().stop();
    assert!(fs.file_len(PATH).is_ok());
}

#[test]
fn a_dropped_table_leaves_nothing_in_the_cache() {
    let (_, table) = table_of(FilterPolicy::DEFAULT, &even_keys(2000), 1 << 20);
    let context = Arc::clone(&table.fetcher().context);
    for i in 0..2000 {
        assert!(get(&table, even_key(i), MAX_SEQNO).unwrap().is_some());
    }
    assert!(context.cache().usage() > 50_000, "{}", context.cache().usage());
    drop(table);
    assert_eq!(context.cache().usage(), 0);
}

#[test]
fn the_file_of_a_table_that_is_not_obsolete_stays() {
    let (fs, table) = table_of(FilterPolicy::DEFAULT, &even_keys(10), 1 << 20);
    drop(table);
    assert!(fs.file_len(PATH).is_ok());
}

#[test]
fn racing_first_look_ups_open_the_table_once() {
    let fs = file_system();
    let meta = build(&fs, options(), &even_keys(100));
    let table = open(&fs, &meta, 1 << 20);
    let before = fs.reads();
    get(&open(&fs, &meta, 1 << 20), even_key(1), MAX_SEQNO).unwrap();
    let alone = fs.reads() - before;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let hit = get(&table, even_key(0), MAX_SEQNO).unwrap();
                assert_eq!(hit.unwrap().value, b"value of 0");
            });
        }
    });
    // Each thread may read the block itself.
    assert!(fs.reads() - before - alone <= alone + 3);
}
