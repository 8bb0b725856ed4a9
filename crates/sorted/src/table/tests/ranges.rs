//! Range filters: seeks that they defer, filters that are damaged or of other tables, and blocks
//! that this version does not know.

use super::*;
use crate::filter::{RangeBuilder, RangeFilterState};
use crate::iter::Direction;
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::report::delivery::{Delivery, Listener};
use crate::table::extras::Extras;
use crate::table::properties::RangeFilterRequest;
use crate::vfs::{Fault, FaultMode};

const N: u64 = 3000;
const FILTERS: TableFilters = TableFilters { ranges: RangeFilterPolicy::ORDERED, ..POINTS };

/// Keys whose gaps vary: every hash of a number, in order.
fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = (0..N).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()).collect();
    keys.sort();
    keys
}

fn entries() -> Vec<TableEntry> {
    (0..).zip(keys()).map(|(i, key)| put(key, i + 1, "a value of some length")).collect()
}

fn built() -> (SimFileSystem, TableMeta) {
    let fs = file_system();
    let meta = build(&fs, TableOptions { filters: FILTERS, block_size: 512, ..options() }, &entries());
    (fs, meta)
}

fn scan(filters: FilterMode) -> ReadFlags {
    ReadFlags { filters, fill_cache: true, values: true }
}

/// Seeks, and returns the key found, and whether the seek was deferred.
fn seek(table: &Arc<Table>, mode: FilterMode, key: &[u8], direction: Direction) -> Result<(Option<Vec<u8>>, bool)> {
    seek_version(table, mode, (key, SeqNo::MAX), direction)
}

fn seek_version(
    table: &Arc<Table>,
    mode: FilterMode,
    (key, seqno): (&[u8], SeqNo),
    direction: Direction,
) -> Result<(Option<Vec<u8>>, bool)> {
    let mut cursor = table.scan_cursor(scan(mode));
    cursor.begin_seek(key, seqno, direction.is_forward())?;
    while cursor.continue_seek(key)? {}
    cursor.end_seek(key, seqno, direction.is_forward())?;
    let bound = cursor.deferred().map(|bound| bound.to_vec());
    while cursor.deferred().is_some() {
        assert!(!cursor.valid());
        cursor.resume()?;
    }
    let found = cursor.valid().then(|| cursor.key().to_vec());
    if let (Some(found), Some(bound)) = (&found, &bound) {
        assert!(if direction.is_forward() { bound <= found } else { bound >= found }, "{bound:?} {found:?}");
    }
    cursor.note_taken();
    Ok((found, bound.is_some()))
}

/// Whatever the filter's state, every seek finds what is there.
fn check_seeks(table: &Arc<Table>, mode: FilterMode, expects_deferral: bool) {
    let keys = keys();
    for (i, key) in keys.iter().enumerate().step_by(7) {
        let after = [&key[..], &[0]].concat();
        let cases = [
            (&key[..], Direction::Forward, Some(key)),
            (&after[..], Direction::Forward, keys.get(i + 1)),
            (&key[..], Direction::Backward, i.checked_sub(1).map(|before| &keys[before])),
            (&after[..], Direction::Backward, Some(key)),
        ];
        for (target, direction, expected) in cases {
            let (found, was_deferred) = seek(table, mode, target, direction).unwrap();
            assert_eq!(found.as_ref(), expected, "{target:?} {direction:?}");
            assert_eq!(was_deferred, expects_deferral && expected.is_some(), "{target:?} {direction:?}");
        }
        // Backward from after all versions of a key.
        let (found, was_deferred) = seek_version(table, mode, (key, 0), Direction::Backward).unwrap();
        assert_eq!((found.as_ref(), was_deferred), (Some(key), expects_deferral));
    }
}

#[test]
fn a_range_filter_defers_seeks_in_blocks_that_are_not_in_memory() {
    let (fs, meta) = built();
    let uncached = open(&fs, &meta, 0);
    let RangeFilterState::Usable(info) = uncached.range_filter_state().unwrap() else { panic!() };
    assert_eq!((info.keys, info.millibits), (N, 12_000));
    uncached.verify().unwrap();
    check_seeks(&uncached, FilterMode::Use, true);
    check_seeks(&uncached, FilterMode::Shadow, true);
    check_seeks(&uncached, FilterMode::Ignore, false);

    let cached = open(&fs, &meta, 8 << 20);
    check_seeks(&cached, FilterMode::Ignore, false);
    let reads = cached.ledger().reads;
    check_seeks(&cached, FilterMode::Use, false);
    assert_eq!((cached.ledger().reads - reads).range_probes, 0);
    check_seeks(&cached, FilterMode::Shadow, true);
}

#[test]
fn a_deferred_seek_that_is_not_resumed_reads_nothing() {
    let (fs, meta) = built();
    for (mode, expected) in [(FilterMode::Use, 0), (FilterMode::Shadow, 1)] {
        let table = open(&fs, &meta, 0);
        table.resident().unwrap();
        let key = &keys()[keys().len() / 2];
        let mut cursor = table.scan_cursor(scan(mode));
        cursor.seek(&[&key[..], &[0]].concat(), SeqNo::MAX).unwrap();
        assert!(cursor.deferred().is_some() && !cursor.valid());
        drop(cursor);
        let reads = table.ledger().reads;
        assert_eq!((reads.range_probes, reads.range_negatives, reads.range_false_positives), (1, 1, 0));
        assert_eq!((reads.block_reads, reads.avoidable_reads, reads.scan_reads_unused), (expected, expected, expected));
    }
    // Resumed, and nothing taken.
    let table = open(&fs, &meta, 0);
    let mut cursor = table.scan_cursor(scan(FilterMode::Use));
    cursor.seek(&keys()[9], SeqNo::MAX).unwrap();
    cursor.resume().unwrap();
    assert!(cursor.valid());
    drop(cursor);
    let reads = table.ledger().reads;
    assert_eq!((reads.range_probes, reads.range_negatives, reads.range_false_positives), (1, 0, 1));
    assert!(table.ledger().predicted_range_rate().unwrap() < 0.01);
}

/// Between a separator and the next block's first key, the block in which a seek begins is denied:
/// the seek leads to the near end of its neighbour, and reads that alone.
#[test]
fn a_seek_deferred_to_the_neighbour_reads_one_block() {
    let keys: Vec<Vec<u8>> = (0..N).map(|i| (i * 10).to_be_bytes().to_vec()).collect();
    let entries: Vec<TableEntry> = (1..).zip(&keys).map(|(i, key)| put(key, i, "a value of some length")).collect();
    let fs = file_system();
    let meta = build(&fs, TableOptions { filters: FILTERS, block_size: 512, ..options() }, &entries);
    let table = open(&fs, &meta, 0);
    let (mut seeks, before) = (0, table.ledger().reads);
    let index = &table.resident().unwrap().index;
    for i in 0..index.len() - 1 {
        let target = [&index.separator(table.fetcher(), i).unwrap()[..], &[0]].concat();
        let at = keys.partition_point(|key| *key < target);
        let (found, was_deferred) = seek(&table, FilterMode::Use, &target, Direction::Backward).unwrap();
        assert_eq!((found.as_ref(), was_deferred), (at.checked_sub(1).map(|at| &keys[at]), true));
        seeks += 1;
    }
    let reads = table.ledger().reads - before;
    assert!(seeks > 100 && reads.block_reads <= seeks * 105 / 100, "{seeks} {reads:?}");
}

fn with_extras(
    fs: &SimFileSystem,
    meta: &TableMeta,
    extras: Vec<(u64, Vec<u8>)>,
    change: impl FnOnce(&mut Properties),
) -> (SimFileSystem, TableMeta) {
    copy_with(fs, meta, |properties, filters| {
        filters.extras = extras;
        change(properties);
    })
}

/// The filter of the table's keys, as of table `number`.
fn range_filter(fs: &SimFileSystem, meta: &TableMeta, number: u64) -> Vec<u8> {
    let table = open(fs, meta, 0);
    let index = &table.resident().unwrap().index;
    let mut builder = RangeBuilder::new(12.0, number);
    for (i, block) in (0..index.len()).zip(blocks_of(&table)) {
        block.iter().for_each(|key| builder.add(key));
        builder.end_block(&index.separator(table.fetcher(), i).unwrap());
    }
    let block = builder.finish().unwrap();
    // The properties state the rates.
    let request = table.resident().unwrap().properties.range_filter.unwrap();
    assert_eq!(request, RangeFilterRequest { millibits: 12_000, rates: block.info.rates });
    block.bytes
}

#[test]
fn a_range_filter_that_is_damaged_or_of_another_table_means_maybe() {
    let (fs, meta) = built();
    let own = range_filter(&fs, &meta, NUMBER);
    let mut flipped = own.clone();
    flipped[1000] ^= 1;
    let foreign = range_filter(&fs, &meta, NUMBER + 1);
    let cases =
        [(own.clone(), None), (flipped, Some("hash")), (foreign, Some("another table")), (vec![7], Some("header"))];
    for (block, expected) in cases {
        let (fs, meta) = with_extras(&fs, &meta, vec![(Extras::RANGE_FILTER, block)], |_| {});
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&told);
        let events = Delivery::default().connect(&Listener::new(move |event| listener.lock().push(event.to_string())));
        let context = TableContext::new(Arc::new(fs.clone()), Path::new("/db"), 0, 8).with_events(events.clone());
        let table = Arc::new(Table::new(Arc::new(context), meta.clone()));
        check_seeks(&table, FilterMode::Use, expected.is_none());
        events.finish();
        let told = told.lock();
        match (table.range_filter_state().unwrap(), expected) {
            (RangeFilterState::Usable(_), None) => {
                assert!(told.is_empty() && table.has_filters(FILTERS, 0).unwrap());
                table.verify().unwrap();
            }
            (RangeFilterState::Degraded(rule), Some(expected)) => {
                assert!(rule.contains(expected), "{rule}");
                assert!(told.len() == 1 && told[0].contains(expected), "{told:?}");
                assert!(table.verify().unwrap_err().to_string().contains(expected));
                assert!(!table.has_filters(FILTERS, 0).unwrap());
                let copy = table.refilter(13, FILTERS, &Origin::default(), WRITE_LEN, &|_| false).unwrap().unwrap();
                let copy = open(&fs, &copy, 0);
                copy.verify().unwrap();
                assert!(copy.has_filters(FILTERS, 0).unwrap());
                check_seeks(&copy, FilterMode::Use, true);
            }
            (state, expected) => panic!("{state:?} {expected:?}"),
        }
    }
}

/// A bug in the writer. The other keys are those of the table but for their last bytes.
#[test]
fn a_range_filter_that_denies_a_key_is_found_by_shadow_seeks_and_by_verify() {
    let (fs, meta) = built();
    let number_of_low_bits = |key: &[u8]| key.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    // Moved up by a quarter of the mean gap: still in order, nearly always in the same block.
    let moved = |key: &[u8]| (number_of_low_bits(key) | 1 << 50).to_be_bytes().to_vec();
    let table = open(&fs, &meta, 0);
    let index = &table.resident().unwrap().index;
    let mut builder = RangeBuilder::new(12.0, NUMBER);
    for (i, block) in (0..index.len()).zip(blocks_of(&table)) {
        let separator = index.separator(table.fetcher(), i).unwrap();
        block.iter().for_each(|key| builder.add(&moved(key).min(separator.clone()).max(key.clone())));
        builder.end_block(&separator);
    }
    let filter = builder.finish().unwrap();
    let rates = filter.info.rates;
    let (fs, meta) = with_extras(&fs, &meta, vec![(Extras::RANGE_FILTER, filter.bytes)], |properties| {
        properties.range_filter = Some(RangeFilterRequest { millibits: 12_000, rates });
    });
    let table = open(&fs, &meta, 0);
    assert!(matches!(table.range_filter_state().unwrap(), RangeFilterState::Usable(_)));
    for direction in [Direction::Forward, Direction::Backward] {
        let seeks = keys().into_iter().step_by(5).map(|mut key| {
            if direction == Direction::Backward {
                key.push(0);
            }
            seek(&table, FilterMode::Shadow, &key, direction)
        });
        let errors = seeks.filter_map(Result::err);
        let count = errors.inspect(|error| assert!(error.to_string().contains("denies"), "{error}")).count();
        assert!(count > 100, "{count}");
    }
    assert!(table.verify().unwrap_err().to_string().contains("denies"));
}

fn blocks_of(table: &Arc<Table>) -> Vec<Vec<Vec<u8>>> {
    let mut cursor = table.cursor(false);
    let visit = |i| {
        let mut keys = Vec::new();
        cursor.visit_block(i, |entry| keys.push(entry.key.to_vec())).unwrap();
        keys
    };
    (0..table.block_count().unwrap()).map(visit).collect()
}

/// A later version may add blocks beside the filter that need not be understood.
#[test]
fn extra_blocks_of_unknown_kinds_are_skipped_and_gaps_refused() {
    let (fs, meta) = built();
    let own = range_filter(&fs, &meta, NUMBER);
    let later = vec![(99, vec![1; 700]), (Extras::RANGE_FILTER, own), (7, Vec::new())];
    let (other, other_meta) = with_extras(&fs, &meta, later, |_| {});
    let table = open(&other, &other_meta, 0);
    check_seeks(&table, FilterMode::Use, true);
    table.verify().unwrap();
    // They go when the table is rewritten by this version.
    let copy = table.refilter(13, FILTERS, &Origin::default(), WRITE_LEN, &|_| false).unwrap().unwrap();
    assert!(copy.size < other_meta.size);

    // The properties say that there is a range filter.
    let (without, without_meta) = with_extras(&fs, &meta, Vec::new(), |_| {});
    let table = open(&without, &without_meta, 0);
    check_seeks(&table, FilterMode::Use, false);
    assert!(
        matches!(table.range_filter_state().unwrap(), RangeFilterState::Degraded(rule) if rule.contains("missing"))
    );
    assert!(!table.has_filters(FILTERS, 0).unwrap() && table.verify().is_err());

    let twice = vec![(99, vec![1; 10]), (99, vec![2; 10])];
    let (twice, twice_meta) = with_extras(&fs, &meta, twice, |_| {});
    let error = open(&twice, &twice_meta, 0).resident().err().unwrap();
    assert!(error.to_string().contains("two are of one kind"), "{error}");
}

#[test]
fn a_range_filter_waits_for_room() {
    let (fs, meta) = built();
    let own = range_filter(&fs, &meta, NUMBER);
    let mut flipped = own.clone();
    flipped[1000] ^= 1;
    for (block, expected) in [(own, None), (flipped, Some("hash"))] {
        let (fs, meta) = with_extras(&fs, &meta, vec![(Extras::RANGE_FILTER, block)], |_| {});
        let budget = MemoryBudget::new(16 << 20);
        let mut others = MemoryCharge::new(&budget, MemoryUse::Ranges, 8 << 20);
        let resources = TableResources::new(&budget, 0, 8);
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&told);
        let events = Delivery::default().connect(&Listener::new(move |event| listener.lock().push(event.to_string())));
        let context = TableContext::sharing(Arc::new(fs), Path::new("/db"), &resources, ReadMode::default());
        let table = Arc::new(Table::new(Arc::new(context.with_events(events.clone())), meta));
        check_seeks(&table, FilterMode::Use, false);
        // Its bytes are not read: nothing is known of them.
        let rates = table.resident().unwrap().properties.range_filter.unwrap().rates;
        assert_eq!(table.range_filter_state().unwrap(), RangeFilterState::Waiting(rates));
        let before = budget.used(MemoryUse::Filters);
        others.resize(0);
        for key in keys() {
            assert_eq!(seek(&table, FilterMode::Use, &key, Direction::Forward).unwrap().0, Some(key));
        }
        match (table.range_filter_state().unwrap(), expected) {
            (RangeFilterState::Usable(info), None) => {
                assert!(budget.used(MemoryUse::Filters) as u64 >= before as u64 + info.bytes);
            }
            (RangeFilterState::Degraded(rule), Some(expected)) => assert!(rule.contains(expected), "{rule}"),
            (state, _) => panic!("{state:?}"),
        }
        check_seeks(&table, FilterMode::Use, expected.is_none());
        drop(table);
        assert_eq!(budget.used(MemoryUse::Filters), 0);
        events.finish();
        assert_eq!(told.lock().len(), usize::from(expected.is_some()), "{:?}", told.lock());
    }
}

#[test]
fn a_range_filter_that_could_not_be_read_is_read_later() {
    let (fs, meta) = built();
    let mut waited = 0;
    for at in 1..12 {
        fs.set_fault(Some(Fault { at, mode: FaultMode::ReadError, sticky: false }));
        let table = open(&fs, &meta, 0);
        let state = table.range_filter_state();
        fs.set_fault(None);
        if !matches!(state, Ok(RangeFilterState::Waiting(_))) {
            continue;
        }
        waited += 1;
        for key in keys() {
            assert_eq!(seek(&table, FilterMode::Use, &key, Direction::Forward).unwrap().0, Some(key));
        }
        assert!(matches!(table.range_filter_state().unwrap(), RangeFilterState::Usable(_)));
        table.verify().unwrap();
    }
    assert!(waited > 0);
}

/// Each segment of a filter has alphabets of its own. Where one ends, and in both directions, seeks
/// to any place find what comes next, though the next segment begins with a symbol of its own.
#[test]
fn seeks_cross_from_one_segment_to_the_next() {
    let mut random = fastrand::Rng::with_seed(5);
    let mut keys: Vec<Vec<u8>> =
        (0..33_000).map(|_| format!("{:012}", random.u64(..1_000_000_000_000)).into_bytes()).collect();
    keys.sort();
    keys.dedup();
    // A segment ends with the block that has its 32,768th key.
    for (end, len) in (32_766..32_795).flat_map(|end| [(end, 8), (end, 9)]) {
        let last = &keys[end];
        let stray = [&last[..len], b"bbb"].concat();
        let mut keys: Vec<Vec<u8>> = keys.iter().filter(|key| *key <= last || **key > stray).cloned().collect();
        keys.insert(end + 1, stray);
        let entries: Vec<TableEntry> = (0..).zip(&keys).map(|(i, key)| put(key, i + 1, "v")).collect();
        let fs = file_system();
        let meta = build(&fs, TableOptions { filters: FILTERS, block_size: 512, ..options() }, &entries);
        let table = open(&fs, &meta, 0);
        for i in end - 1..end + 2 {
            let (key, next) = (&keys[i], &keys[i + 1]);
            let targets = (0..=key.len()).flat_map(|len| [b"!", b"a", b"z"].map(|byte| [&key[..len], byte].concat()));
            for target in targets.filter(|target| target > key && target <= next) {
                for (direction, expected) in [(Direction::Forward, next), (Direction::Backward, key)] {
                    for mode in [FilterMode::Use, FilterMode::Shadow] {
                        let found = seek(&table, mode, &target, direction).unwrap().0;
                        assert_eq!(found.as_ref(), Some(expected), "{target:?} {direction:?}");
                    }
                }
            }
        }
    }
}
