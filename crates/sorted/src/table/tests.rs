//! Compares tables with the sorted list of their entries.

mod damage;
mod mapped;
mod paged;
mod ranges;
mod reads;

use std::path::Path;
use std::sync::Arc;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::builder::TableFileWriter;
use super::filters::FilterBlocks;
use super::fuzz::TableEntry;
use super::properties::Properties;
use super::*;
use crate::error::{Error, Result};
use crate::exec::{Executor, SteppedExecutor};
use crate::files::WRITE_LEN;
use crate::filter::{FilterPolicy, FilterState, KeyHash, PrefixExtractor, RangeFilterPolicy};
use crate::format::checksum::FileChecksum;
use crate::format::key::{MAX_KEY_LEN, MAX_SEQNO, ValueKind, Window, compare_entries};
use crate::iter::{InternalCursor, MergeCursor, Stamped};
use crate::memory::budget::{MemoryBudget, MemoryUse};
use crate::sync::Mutex;
use crate::table::FilterMode;
use crate::trace::{ReadTrace, Untraced};
use crate::value::Value;
use crate::vfs::{OsFileSystem, SimFileSystem};

const SEED: u64 = 77;
const NUMBER: u64 = 12;
const POINTS: TableFilters = TableFilters::of_points(FilterPolicy::DEFAULT);
const PATH: &str = "/db/000012.sst";

fn file_checksum(bytes: &[u8]) -> u32 {
    let mut checksum = FileChecksum::default();
    checksum.update(bytes);
    checksum.finish()
}

fn options() -> TableOptions {
    TableOptions { filters: POINTS, compression: Compression::None, block_size: 4096, seed: SEED, keyspace: 3 }
}

fn put(key: impl AsRef<[u8]>, seqno: SeqNo, value: impl AsRef<[u8]>) -> TableEntry {
    let (key, value) = (key.as_ref().to_vec(), value.as_ref().to_vec());
    (key, seqno, ValueKind::Put, value)
}

/// `n` even-numbered keys with one version each; odd-numbered keys are absent.
fn even_keys(n: u64) -> Vec<TableEntry> {
    (0..n).map(|i| put(even_key(i), i + 1, format!("value of {i}"))).collect()
}

fn even_key(i: u64) -> String {
    format!("key{:08}", i * 2)
}

fn odd_key(i: u64) -> String {
    format!("key{:08}", i * 2 + 1)
}

/// A file system with a directory for the store.
fn file_system() -> SimFileSystem {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/db")).unwrap();
    fs
}

/// Copies a table with filters and properties that `change` has changed; all checksums and hashes
/// are right.
fn copy_with(
    fs: &SimFileSystem,
    meta: &TableMeta,
    change: impl FnOnce(&mut Properties, &mut FilterBlocks),
) -> (SimFileSystem, TableMeta) {
    let table = open(fs, meta, 0);
    let (fetcher, resident) = (table.fetcher(), table.resident().unwrap());
    let other = file_system();
    let mut output = TableFileWriter::create(&other, PATH.into(), NUMBER).unwrap();
    for i in 0..resident.index.len() {
        let BlockHandle { offset, len } = resident.index.handle(fetcher, i).unwrap();
        output.pad_to(offset);
        output.copy_block(&fetcher.bytes(offset, len.into()).unwrap(), Compression::None).unwrap();
    }
    let points = resident.footer.filter.map(|handle| fetcher.meta_block(handle).unwrap().to_vec());
    let index = fetcher.meta_block(resident.footer.index).unwrap();
    let mut properties = resident.properties.clone();
    let mut filters = FilterBlocks { points, extras: Vec::new() };
    change(&mut properties, &mut filters);
    let meta = output.complete(filters, properties, &[], &index).unwrap();
    (other, meta)
}

fn try_build(fs: &dyn FileSystem, options: TableOptions, entries: &[TableEntry]) -> Result<TableMeta> {
    let mut builder = TableBuilder::new(fs, Path::new("/db"), NUMBER, options)?;
    for (key, seqno, kind, value) in entries {
        if let Err(error) = builder.add(key, *seqno, *kind, value) {
            builder.abandon();
            return Err(error);
        }
    }
    builder.finish()
}

fn build(fs: &SimFileSystem, options: TableOptions, entries: &[TableEntry]) -> TableMeta {
    try_build(fs, options, entries).unwrap()
}

fn context(fs: &SimFileSystem, cache_bytes: usize) -> Arc<TableContext> {
    let fs = Arc::new(fs.clone());
    Arc::new(TableContext::new(fs, Path::new("/db"), cache_bytes, 8))
}

fn open(fs: &SimFileSystem, meta: &TableMeta, cache_bytes: usize) -> Arc<Table> {
    Arc::new(Table::new(context(fs, cache_bytes), meta.clone()))
}

/// A hit that outlives the pin.
#[derive(Clone, Debug, PartialEq)]
struct OwnedHit {
    seqno: SeqNo,
    kind: ValueKind,
    value: Value,
}

fn get(table: &Table, key: impl AsRef<[u8]>, snapshot: SeqNo) -> Result<Option<OwnedHit>> {
    look_up(table, &point_read(key.as_ref(), snapshot, FilterMode::Shadow), &mut Untraced)
}

fn look_up(table: &Table, read: &PointRead<'_>, trace: &mut impl ReadTrace) -> Result<Option<OwnedHit>> {
    table.fetcher().context.epoch().pin(|pin| {
        let hit = table.get(read, table.expects_hit(), pin, trace)?;
        Ok(hit.map(|hit| OwnedHit { seqno: hit.seqno, kind: hit.kind, value: hit.value.into_value() }))
    })
}

fn point_read(key: &[u8], snapshot: SeqNo, filters: FilterMode) -> PointRead<'_> {
    PointRead {
        key,
        hash: KeyHash::new(SEED, key),
        window: Window::up_to(snapshot),
        mode: ReadFlags { filters, fill_cache: true, values: true },
    }
}

/// All entries, forward.
fn entries_of(table: &Arc<Table>, fill_cache: bool) -> Result<Vec<TableEntry>> {
    let mut cursor = table.cursor(fill_cache);
    let mut entries = Vec::new();
    cursor.seek_to_first()?;
    while let Some(entry) = current(&cursor) {
        entries.push(entry);
        cursor.next()?;
    }
    Ok(entries)
}

fn current(cursor: &TableCursor) -> Option<TableEntry> {
    cursor.valid().then(|| {
        let (key, value) = (cursor.key().to_vec(), cursor.value().to_vec());
        (key, cursor.seqno(), cursor.kind(), value)
    })
}

/// The keys of the entries, and keys between, before and after them.
fn probes(entries: &[TableEntry]) -> Vec<Vec<u8>> {
    let mut probes = vec![Vec::new(), b"tenant/cust".to_vec(), vec![0xff; 9]];
    for (key, ..) in entries {
        probes.push(key.clone());
        probes.push([key, &[0][..]].concat());
        probes.push(key[..key.len().saturating_sub(1)].to_vec());
    }
    probes.sort();
    probes.dedup();
    probes
}

/// Checks that a table of the entries answers as their sorted list does.
fn check(options: TableOptions, entries: &[TableEntry], cache_bytes: usize) -> Arc<Table> {
    let fs = file_system();
    let meta = build(&fs, options, entries);
    let bytes = fs.read(PATH).unwrap();
    let expected = TableMeta {
        number: NUMBER,
        size: bytes.len() as u64,
        checksum: file_checksum(&bytes),
        entries: entries.len() as u64,
        keys: entries.iter().map(|e| &e.0).collect::<std::collections::BTreeSet<_>>().len() as u64,
        tombstones: entries.iter().filter(|e| e.2 == ValueKind::Delete).count() as u64,
        deadlines: Default::default(),
        references: Default::default(),
        smallest_seqno: entries.iter().map(|e| e.1).min().unwrap(),
        largest_seqno: entries.iter().map(|e| e.1).max().unwrap(),
        cleared: 0,
        ingested: None,
        range_end: None,
        kept: 0,
        smallest: entries[0].0.as_slice().into(),
        largest: entries[entries.len() - 1].0.as_slice().into(),
    };
    assert_eq!(meta, expected);

    let in_place =
        TableContext::new(Arc::new(fs.clone()), Path::new("/db"), cache_bytes, 8).with_read_mode(ReadMode::Mmap);
    check_answers(&Arc::new(Table::new(Arc::new(in_place), meta.clone())), entries);
    let table = open(&fs, &meta, cache_bytes);
    check_answers(&table, entries);
    table
}

fn check_answers(table: &Arc<Table>, entries: &[TableEntry]) {
    table.verify().unwrap();
    assert_eq!(entries_of(table, true).unwrap(), entries);
    assert_eq!(entries_of(table, false).unwrap(), entries);
    let mut cursor = table.cursor(true);
    cursor.seek_to_last().unwrap();
    for entry in entries.iter().rev() {
        assert_eq!(current(&cursor).as_ref(), Some(entry));
        cursor.prev().unwrap();
    }
    assert!(!cursor.valid());

    let mut snapshots: Vec<SeqNo> = entries.iter().flat_map(|e| [e.1 - 1, e.1]).collect();
    snapshots.push(MAX_SEQNO);
    snapshots.sort_unstable();
    snapshots.dedup();
    for key in probes(entries) {
        for &snapshot in &snapshots {
            check_key(table, &mut cursor, entries, &key, snapshot);
        }
    }
}

fn check_key(table: &Table, cursor: &mut TableCursor, entries: &[TableEntry], key: &[u8], snapshot: SeqNo) {
    let bound = (key, snapshot);
    let behind = entries.partition_point(|e| compare_entries((&e.0, e.1), bound).is_lt());
    let expected = entries.get(behind);
    cursor.seek(key, snapshot).unwrap();
    assert_eq!(current(cursor).as_ref(), expected, "{key:?} at {snapshot}");

    let expected = expected.filter(|e| e.0 == key);
    let hit = get(table, key, snapshot).unwrap();
    let hit = hit.map(|hit| (key.to_vec(), hit.seqno, hit.kind, hit.value.to_vec()));
    assert_eq!(hit.as_ref(), expected, "{key:?} at {snapshot}");
}

fn entries() -> impl Strategy<Value = Vec<TableEntry>> {
    let key = prop_oneof![
        vec(any::<u8>(), 0..6),
        vec(prop_oneof![Just(0u8), Just(1), Just(0xff)], 0..12),
        (0u32..200).prop_map(|n| format!("tenant/customer/{n:08}").into_bytes()),
    ];
    let versions = prop_oneof![
        4 => btree_set(1..12u64, 1..3),
        1 => btree_set(prop_oneof![1..12u64, Just(MAX_SEQNO)], 1..12),
    ];
    let value = prop_oneof![
        6 => vec(any::<u8>(), 0..30),
        1 => (0usize..700).prop_map(|len| vec![7; len]),
    ];
    (vec((key, versions), 1..30), vec(value, 1..8)).prop_map(|(keys, values)| {
        let mut entries: Vec<TableEntry> = Vec::new();
        for (key, versions) in keys {
            for seqno in versions {
                let value = &values[entries.len() % values.len()];
                entries.push(match value.len() {
                    3 => (key.clone(), seqno, ValueKind::Delete, Vec::new()),
                    _ => put(&key, seqno, value),
                });
            }
        }
        entries.sort_by(|a, b| compare_entries((&a.0, a.1), (&b.0, b.1)));
        entries.dedup_by(|a, b| (&a.0, a.1) == (&b.0, b.1));
        entries
    })
}

fn table_options() -> impl Strategy<Value = TableOptions> {
    let filter = prop_oneof![
        Just(FilterPolicy::None),
        Just(FilterPolicy::DEFAULT),
        Just(FilterPolicy::Bloom { bits_per_key: 2.5 }),
        Just(FilterPolicy::BinaryFuse { fingerprint_bits: 5 }),
    ];
    let compression = prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd)]
        .prop_filter("built in", |compression| compression.is_available());
    let block_size = prop_oneof![Just(1u32), Just(64), Just(256), Just(4096)];
    let ranges = prop_oneof![Just(RangeFilterPolicy::None), Just(RangeFilterPolicy::ORDERED)];
    (filter, ranges, compression, block_size).prop_map(|(points, ranges, compression, block_size)| TableOptions {
        filters: TableFilters { points, prefix: None, ranges },
        compression,
        block_size,
        ..options()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn table_answers_as_the_list_of_its_entries(
        entries in entries(), options in table_options(), cache in prop_oneof![Just(0), Just(2000), Just(1 << 20)]
    ) {
        check(options, &entries, cache);
    }
}

#[test]
fn versions_of_one_key_span_blocks() {
    let mut entries = vec![put("a", 500, "before")];
    entries.extend((1..200).rev().map(|seqno| put("key", seqno, format!("version {seqno}"))));
    entries.push(put("z", 7, "behind"));
    let options = TableOptions { block_size: 256, ..options() };
    let table = check(options, &entries, 0);
    assert!(table.properties().unwrap().data_blocks > 10);
    assert_eq!(table.properties().unwrap().filter_keys, 3);
}

#[test]
fn huge_values_and_keys_take_blocks_of_their_own() {
    let entries = [
        put("a", 1, "small"),
        put("b", 2, vec![b'x'; 200_000]),
        put("c", 3, "small"),
        put(vec![b'd'; MAX_KEY_LEN], 4, vec![b'y'; 70_000]),
        put("e", 5, vec![b'z'; 700_000]),
    ];
    for compression in [Compression::None, Compression::Lz4] {
        if compression.is_available() {
            let options = TableOptions { compression, ..options() };
            let table = check(options, &entries, 1 << 20);
            let properties = table.properties().unwrap();
            assert_eq!(properties.data_blocks, 5);
            assert!(properties.largest_block > 1 << 20);
        }
    }
}

#[test]
fn blocks_fit_the_block_size_and_fill_it() {
    let fs = file_system();
    let meta = build(&fs, options(), &even_keys(5000));
    for handle in without_last(&fs, &meta) {
        let len = handle.stored_len();
        assert!((3960..=4096).contains(&len), "block at {} takes {len} bytes", handle.offset);
    }
}

#[test]
fn blocks_lie_in_pages_if_that_costs_little() {
    // By value length: little of a page is left over; or more than a sixteenth of a block is, even
    // of a block half as long as requested.
    for (value_len, block_size, in_pages) in
        [(100, 4096, true), (100, 16384, true), (10, 1024, false), (700, 4096, false), (33_000, 65536, false)]
    {
        let count = 1_000_000 / value_len as u64;
        let entries: Vec<TableEntry> = (0..count).map(|i| put(even_key(i), 1, vec![b'v'; value_len])).collect();
        let options = TableOptions { block_size, ..options() };
        let fs = file_system();
        let meta = build(&fs, options, &entries);
        let handles = without_last(&fs, &meta);
        let size = u64::from(block_size);
        let pages = size.div_ceil(4096);
        for handle in &handles {
            let (first, last) = (handle.offset / 4096, (handle.end().unwrap() - 1) / 4096);
            assert!(!in_pages || last - first < pages, "{value_len} {block_size}: a block at {}", handle.offset);
        }
        let padding = |pair: &[BlockHandle]| pair[1].offset - pair[0].end().unwrap();
        assert!(handles.windows(2).all(|pair| padding(pair) <= pair[0].stored_len() / 16));
        assert!(handles.windows(2).any(|pair| padding(pair) > 0) || !in_pages);
        assert_eq!(handles[0].offset, 64);
        check(options, &entries, 1 << 20);
    }
}

#[test]
fn compressed_blocks_follow_each_other() {
    if Compression::Lz4.is_available() {
        let fs = file_system();
        let meta = build(&fs, TableOptions { compression: Compression::Lz4, ..options() }, &even_keys(5000));
        let handles = without_last(&fs, &meta);
        assert!(handles.windows(2).all(|pair| pair[0].end() == Some(pair[1].offset)));
    }
}

/// Handles of all data blocks but the last.
fn without_last(fs: &SimFileSystem, meta: &TableMeta) -> Vec<BlockHandle> {
    let table = open(fs, meta, 0);
    let index = table.resident().unwrap().index.resident().unwrap();
    (0..index.len() - 1).map(|i| index.handle(i)).collect()
}

/// Zeros between blocks belong to no block: reads ignore them, the checksum of the file does not.
#[test]
fn damage_between_blocks_is_found_by_verify_and_gone_in_the_next_copy() {
    let fs = file_system();
    let entries = even_keys(2000);
    let meta = build(&fs, options(), &entries);
    let between = without_last(&fs, &meta)[0].end().unwrap();
    assert_eq!(fs.read(PATH).unwrap()[usize::try_from(between).unwrap()], 0);
    fs.corrupt(PATH, between, 1).unwrap();
    let table = open(&fs, &meta, 0);
    assert_eq!(entries_of(&table, false).unwrap(), entries);
    let error = table.verify().unwrap_err();
    assert!(matches!(error, Error::Corruption { offset, .. } if offset == between), "{error}");
    let copy = table.refilter(13, POINTS, &Origin::default(), WRITE_LEN, &|_| false).unwrap().unwrap();
    open(&fs, &copy, 0).verify().unwrap();
}

#[test]
fn a_compressed_table_is_smaller_and_states_its_largest_block() {
    if !Compression::Lz4.is_available() {
        return;
    }
    let entries: Vec<TableEntry> = (0..2000).map(|i| put(even_key(i), 1, [b'v'; 60])).collect();
    let lz4 = TableOptions { compression: Compression::Lz4, ..options() };
    let plain = build(&file_system(), options(), &entries);
    let fs = file_system();
    let packed = build(&fs, lz4, &entries);
    assert!(packed.size < plain.size / 2);
    let table = open(&fs, &packed, 0);
    assert!((4000..4096).contains(&table.properties().unwrap().largest_block));
}

#[test]
fn properties_describe_the_entries_and_options() {
    let fs = file_system();
    let meta = build(&fs, options(), &even_keys(1000));
    let table = open(&fs, &meta, 0);
    assert_eq!(table.resident_bytes(), 0);
    let properties = table.properties().unwrap();
    assert_eq!(properties.filter_keys, 1000);
    assert_eq!((properties.keyspace, properties.seed), (3, SEED));
    assert_eq!(properties.key_bytes, 1000 * even_key(0).len() as u64);
    let FilterState::Usable(info) = table.filter_state().unwrap() else { panic!("no filter") };
    assert_eq!((info.keys, info.millibits), (1000, 10_000));
    assert!(table.resident_bytes() > 1250, "at least the filter");
}

#[test]
fn a_table_with_a_binary_fuse_filter_verifies_even_if_a_bloom_filter_stands_in() {
    let options = TableOptions {
        filters: TableFilters::of_points(FilterPolicy::BinaryFuse { fingerprint_bits: 7 }),
        ..options()
    };
    for (keys, policy, millibits) in [(9_999, 1, 10_101), (10_000, 4, 7000)] {
        let fs = file_system();
        let table = open(&fs, &build(&fs, options, &even_keys(keys)), 0);
        table.verify().unwrap();
        let FilterState::Usable(info) = table.filter_state().unwrap() else { panic!("no filter") };
        let properties = table.properties().unwrap();
        assert_eq!((info.policy_id, info.millibits, info.keys), (policy, millibits, keys));
        assert_eq!((properties.filter_policy, properties.filter_millibits), (4, 7000));
        assert!(table.has_filters(options.filters, 0).unwrap());
        for i in 0..10_000 {
            assert_eq!(get(&table, odd_key(i), SeqNo::MAX).unwrap(), None);
        }
        let ledger = table.ledger();
        assert_eq!(ledger.reads.absent(), 10_000);
        for rate in [ledger.designed_rate(), ledger.expected_rate()].map(Option::unwrap) {
            assert!((rate * 128.0 - 1.0).abs() < 0.05, "{ledger:?}");
        }
        assert!(ledger.excess().unwrap().abs() < 4.0, "{ledger:?}");
    }
}

#[test]
fn a_table_with_another_seed_is_readable() {
    let fs = file_system();
    let foreign = TableOptions { seed: SEED + 1, ..options() };
    let meta = build(&fs, foreign, &even_keys(500));
    let table = open(&fs, &meta, 1 << 20);
    for i in 0..500 {
        assert!(get(&table, even_key(i), MAX_SEQNO).unwrap().is_some());
        assert!(get(&table, odd_key(i), MAX_SEQNO).unwrap().is_none());
    }
    assert!(table.ledger().reads.negatives > 450);
}

/// Every later version reads these tables: their bytes must not change.
#[test]
fn the_format_has_not_changed() {
    let fs = file_system();
    let entries = [
        put("apple", 3, "red"),
        put("apple", 1, "green"),
        ("banana".into(), 2, ValueKind::Delete, Vec::new()),
        put("cherry", 1 << 40, [b'c'; 300]),
    ];
    let options = TableOptions { block_size: 256, ..options() };
    let meta = build(&fs, options, &entries);
    assert_eq!((meta.size, meta.checksum), (867, 2_384_466_089));
}

#[test]
fn entries_out_of_order_are_refused_and_the_file_is_removed() {
    for (before, after) in
        [(put("b", 1, ""), put("a", 2, "")), (put("a", 5, ""), put("a", 5, "")), (put("a", 5, ""), put("a", 6, ""))]
    {
        let fs = file_system();
        let error = try_build(&fs, options(), &[before, after]).unwrap_err();
        assert!(error.is_corruption(), "{error}");
        assert!(error.to_string().contains("000012.sst"), "{error}");
        assert_eq!(fs.paths(), Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn entries_beyond_the_limits_are_refused() {
    for entries in [vec![], vec![put(vec![0; MAX_KEY_LEN + 1], 1, "")], vec![put("a", MAX_SEQNO + 1, "")]] {
        let fs = file_system();
        let refused = try_build(&fs, options(), &entries);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
        assert_eq!(fs.paths(), Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn estimated_size_is_near_the_size() {
    let fs = file_system();
    let mut builder = TableBuilder::new(&fs, Path::new("/db"), NUMBER, options()).unwrap();
    for (key, seqno, kind, value) in &even_keys(20_000) {
        builder.add(key, *seqno, *kind, value).unwrap();
    }
    assert_eq!(builder.entries(), 20_000);
    let (estimate, size) = (builder.estimated_size(), builder.finish().unwrap().size);
    let filter = 20_000 * 10 / 8;
    assert!(estimate.abs_diff(size - filter) < size / 20, "{estimate} for {size}");
}

#[test]
fn a_table_written_by_the_real_file_system_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(OsFileSystem::new());
    let entries = even_keys(3000);
    let mut builder = TableBuilder::new(&*fs, dir.path(), 7, options()).unwrap();
    for (key, seqno, kind, value) in &entries {
        builder.add(key, *seqno, *kind, value).unwrap();
    }
    let meta = builder.finish().unwrap();
    let context = Arc::new(TableContext::new(fs, dir.path(), 1 << 20, 8));
    let table = Arc::new(Table::new(context, meta));
    table.verify().unwrap();
    assert_eq!(entries_of(&table, false).unwrap(), entries);
}

/// What a compaction reads ahead is charged to jobs, what a scan does to scans.
#[test]
fn what_is_read_ahead_is_charged_to_who_reads() {
    let fs = file_system();
    let meta = build(&fs, options(), &even_keys(20_000));
    for reads_whole_table in [false, true] {
        let table = open(&fs, &meta, 0);
        let budget = Arc::clone(table.fetcher().context.budget());
        let charged = || [MemoryUse::Scans, MemoryUse::Jobs].map(|of| budget.used(of));
        assert_eq!(charged(), [0, 0]);
        let cursor = table.cursor(false);
        let mut cursor = if reads_whole_table { cursor.for_compaction() } else { cursor };
        cursor.seek_to_first().unwrap();
        while cursor.valid() {
            cursor.next().unwrap();
        }
        let [scans, jobs] = charged();
        assert_eq!((scans > 0, jobs > 0), (!reads_whole_table, reads_whole_table), "{scans} {jobs}");
        drop(cursor);
        assert_eq!(charged(), [0, 0]);
    }
}

#[test]
fn a_long_entry_is_charged_while_it_is_in_a_builders_memory() {
    const MIB: usize = 1 << 20;
    let kinds = [
        Compression::None,
        #[cfg(feature = "lz4")]
        Compression::Lz4,
    ];
    for compression in kinds {
        let (fs, budget) = (file_system(), MemoryBudget::unlimited());
        let options = TableOptions { compression, ..options() };
        let builder = TableBuilder::new(&fs, Path::new("/db"), NUMBER, options).unwrap();
        let mut builder = builder.charging(&budget, 2 * MIB);
        let charged = || budget.used(MemoryUse::Jobs);
        let mut add = |key: &str, len: usize| {
            // No byte of it can be left out by compression.
            let value: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(len).collect();
            builder.add(key.as_bytes(), 1, ValueKind::Put, &value).unwrap();
            charged()
        };
        assert_eq!(add("a", 100), 2 * MIB);
        let copies = if compression == Compression::None { 1 } else { 2 };
        for key in ["b", "c"] {
            let charged = add(key, 9 * MIB);
            assert!((9 * copies * MIB..(9 * copies + 4) * MIB).contains(&charged), "{compression:?}: {charged}");
        }
        let after = (0..3000).map(|i| add(&format!("d{i:04}"), 1000)).last();
        assert!(after.unwrap() <= 4 * MIB, "{compression:?}: {after:?}");
        builder.abandon();
        assert_eq!(charged(), 0);
    }
}
