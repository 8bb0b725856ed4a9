//! Filters for which there is no room as a whole.

use super::*;
use crate::format::span::KeySpan;
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::report::stats::ReadStats;
use crate::table::resident::TableFilter;
use crate::vfs::{Fault, FaultMode};

const N: u64 = 12_000;

/// The table, opened beside others that leave `room` bytes for filters and indexes, and
/// `cache` bytes for the cache.
struct Fixture {
    table: Arc<Table>,
    budget: Arc<MemoryBudget>,
    others: MemoryCharge,
}

impl Fixture {
    fn new(fs: &SimFileSystem, meta: &TableMeta, room: usize, cache: usize) -> Fixture {
        let budget = MemoryBudget::new(16 << 20);
        let others = if room == 0 { 14 << 20 } else { (6 << 20) - room };
        let others = MemoryCharge::new(&budget, MemoryUse::Ranges, others);
        let resources = TableResources::new(&budget, cache, 8);
        let context = TableContext::sharing(Arc::new(fs.clone()), Path::new("/db"), &resources, ReadMode::default());
        let table = Arc::new(Table::new(Arc::new(context), meta.clone()));
        table.resident().unwrap();
        Fixture { table, budget, others }
    }

    fn is_paged(&self) -> bool {
        matches!(self.table.resident().unwrap().filter, TableFilter::Paged(_))
    }

    fn used(&self) -> usize {
        self.budget.used(MemoryUse::Indexes) + self.budget.used(MemoryUse::Filters)
    }

    fn has(&self, key: impl AsRef<[u8]>, mode: FilterMode) -> bool {
        look_up(&self.table, &point_read(key.as_ref(), MAX_SEQNO, mode), &mut Untraced).unwrap().is_some()
    }

    fn reads(&self) -> ReadStats {
        self.table.ledger().reads
    }
}

fn built(filter: FilterPolicy, prefix: Option<PrefixExtractor>) -> (SimFileSystem, TableMeta) {
    let fs = file_system();
    let meta = build(
        &fs,
        TableOptions { filters: TableFilters { prefix, ..TableFilters::of_points(filter) }, ..options() },
        &even_keys(N),
    );
    (fs, meta)
}

#[test]
fn a_filter_is_paged_if_there_is_no_room_for_it() {
    let (fs, meta) = built(FilterPolicy::DEFAULT, None);
    let (whole, paged) = (Fixture::new(&fs, &meta, 1 << 20, 0), Fixture::new(&fs, &meta, 0, 0));
    assert!(!whole.is_paged() && paged.is_paged());
    assert_eq!(whole.table.filter_state().unwrap(), paged.table.filter_state().unwrap());
    let [large, small] = [&whole, &paged].map(|of| of.table.resident_bytes());
    assert_eq!((large, small), (whole.used(), paged.used()));
    assert!(large - small > 10 * 1000 && large - small < 20 * 1000, "{large} {small}");
    paged.table.verify().unwrap();
    drop(paged.table);
    assert_eq!(paged.budget.total(), 14 << 20);
}

/// Answers, and counts but those of reads, are those of a whole filter, for each kind of filter.
#[test]
fn pages_answer_as_the_whole_filter_does() {
    let fuse = FilterPolicy::BinaryFuse { fingerprint_bits: 8 };
    for policy in [FilterPolicy::DEFAULT, FilterPolicy::Bloom { bits_per_key: 3.0 }, fuse, FilterPolicy::None] {
        let (fs, meta) = built(policy, None);
        for mode in [FilterMode::Shadow, FilterMode::Use, FilterMode::Ignore] {
            for cache in [0, 1 << 20] {
                let (whole, paged) = (Fixture::new(&fs, &meta, 1 << 20, cache), Fixture::new(&fs, &meta, 0, cache));
                for i in (0..N).step_by(7) {
                    // Mostly absent keys: pages are read.
                    for key in [odd_key(i), even_key(i), odd_key(i), format!("{}0", even_key(i))] {
                        assert_eq!(whole.has(&key, mode), paged.has(&key, mode), "{key}");
                    }
                }
                let counts = |mut reads: ReadStats| {
                    (reads.filter_reads, reads.index_reads) = (0, 0);
                    reads
                };
                assert_eq!(counts(whole.reads()), counts(paged.reads()), "{policy:?} {mode:?} {cache}");
                assert_eq!(whole.reads().filter_reads, 0);
                let asks = paged.is_paged() && mode != FilterMode::Ignore;
                assert_eq!(paged.reads().filter_reads > 0, asks, "{policy:?} {mode:?}");
            }
        }
    }
}

#[test]
fn an_absent_key_reads_one_page_and_pages_in_the_cache_are_not_read_again() {
    let (fs, meta) = built(FilterPolicy::DEFAULT, None);
    let ask = |of: &Fixture| (0..2000).for_each(|i| assert!(!of.has(odd_key(i * 5), FilterMode::Use)));
    let uncached = Fixture::new(&fs, &meta, 0, 0);
    ask(&uncached);
    let ReadStats { filter_reads, probes, false_positives, block_reads, .. } = uncached.reads();
    assert_eq!((probes, block_reads), (2000, false_positives));
    assert!((2000..2200).contains(&filter_reads), "{filter_reads}");
    let cached = Fixture::new(&fs, &meta, 0, 1 << 20);
    ask(&cached);
    let pages = cached.reads().filter_reads;
    assert!(pages <= N * 10 / 8 / 4096 + 2, "{pages}");
    ask(&cached);
    assert_eq!(cached.reads().filter_reads, pages);
    assert!(cached.table.context().cache().usage() > 0);
    let context = Arc::clone(cached.table.context());
    drop(cached.table);
    assert_eq!(context.cache().usage(), 0, "pages leave with their table");
}

#[test]
fn where_keys_are_found_few_pages_are_read_for_them() {
    let (fs, meta) = built(FilterPolicy::DEFAULT, None);
    let paged = Fixture::new(&fs, &meta, 0, 0);
    (0..2000).for_each(|i| assert!(paged.has(even_key(i), FilterMode::Use)));
    let reads = paged.reads();
    // But for the first ones and a sample.
    assert!(reads.filter_reads < 300 && reads.skipped > 1800 && reads.block_reads == 2000, "{reads:?}");
    // Keys that are absent have it asked again after a while.
    (0..2000).for_each(|i| assert!(!paged.has(odd_key(i), FilterMode::Use)));
    let later = paged.reads();
    assert!(later.block_reads - reads.block_reads < 40 && later.negatives > 1950, "{later:?}");
}

/// Each byte of the filter, after the table was opened: right answers, one report, and an error of
/// `verify`.
#[test]
fn a_damaged_page_means_maybe() {
    let (fs, meta) = built(FilterPolicy::DEFAULT, None);
    let handle = Fixture::new(&fs, &meta, 0, 0).table.resident().unwrap().footer.filter.unwrap();
    let bytes = fs.read(PATH).unwrap();
    let end = handle.end().unwrap();
    for at in (handle.offset + 64..end).step_by(997) {
        let paged = Fixture::new(&fs, &meta, 0, 1 << 20);
        fs.corrupt(PATH, at, 0x10).unwrap();
        for i in (0..N).step_by(61) {
            assert!(paged.has(even_key(i), FilterMode::Shadow) && !paged.has(odd_key(i), FilterMode::Shadow));
        }
        let is_in_lines = at < end - 5;
        assert_eq!(matches!(paged.table.filter_state().unwrap(), FilterState::Degraded(_)), is_in_lines, "{at}");
        assert_eq!(paged.reads().degraded > 0, is_in_lines);
        assert!(paged.table.verify().is_err());
        fs.write(PATH, &bytes[..]).unwrap();
    }
    // A file that is cut short, and a page of another place.
    let paged = Fixture::new(&fs, &meta, 0, 0);
    let mut moved = bytes.clone();
    let first = usize::try_from(handle.offset).unwrap() + 64;
    moved.copy_within(first..first + 4096, first + 4096);
    fs.write(PATH, &moved[..]).unwrap();
    (0..N).for_each(|i| assert!(paged.has(even_key(i), FilterMode::Shadow)));
    assert!(paged.reads().degraded > 0);
}

#[test]
fn scans_of_a_prefix_ask_pages_too() {
    let extractor = PrefixExtractor::Fixed(9);
    let (fs, meta) = built(FilterPolicy::DEFAULT, Some(extractor));
    for (room, cache) in [(1 << 20, 0), (0, 0), (0, 1 << 20)] {
        let of = Fixture::new(&fs, &meta, room, cache);
        for (prefix, may_hold) in [("key000010", true), ("key000230", true), ("key000500", false)] {
            let probe = PrefixProbe::new(extractor, prefix.as_bytes(), SEED, FilterMode::Use);
            assert_eq!(of.table.may_hold_prefix(&probe).unwrap(), may_hold, "{prefix} {room}");
        }
        assert_eq!(of.reads().filter_reads > 0, room == 0);
    }
}

#[test]
fn a_read_that_fails_once_means_maybe_and_is_not_remembered() {
    let (fs, meta) = built(FilterPolicy::DEFAULT, None);
    let paged = Fixture::new(&fs, &meta, 0, 0);
    assert!(!paged.has(odd_key(5), FilterMode::Use));
    fs.set_fault(Some(Fault { at: 1, mode: FaultMode::ReadError, sticky: false }));
    assert!(!paged.has(odd_key(5), FilterMode::Use));
    assert!(fs.fault_hit());
    fs.set_fault(None);
    assert_eq!(paged.reads().degraded, 1);
    assert!(!paged.has(odd_key(5), FilterMode::Use));
    assert_eq!((paged.reads().degraded, paged.reads().negatives), (1, 2));
}

/// Keys that share more bytes than a head has, a few per block: separators tie.
fn tying_keys(n: u64) -> Vec<String> {
    (0..n).map(|i| format!("a/common/prefix/{:09}/of/many/{i:06}", i / 50)).collect()
}

/// Everything that asks an index, over pages as over the whole.
#[test]
fn pages_of_an_index_answer_as_the_whole_does() {
    let keys = [tying_keys(6000), (0..6000u32).map(|i| format!("{:08x}", i.wrapping_mul(0x9e37_79b9))).collect()];
    for mut keys in keys {
        keys.sort();
        let fs = file_system();
        let entries: Vec<_> = keys.iter().map(|key| put(key.clone(), 1, key.clone())).collect();
        let meta = build(&fs, TableOptions { block_size: 256, ..options() }, &entries);
        for cache in [0, 1 << 20] {
            let (whole, paged) = (Fixture::new(&fs, &meta, 1 << 20, cache), Fixture::new(&fs, &meta, 0, cache));
            assert_eq!(whole.reads().index_reads, 0);
            let others = keys.iter().flat_map(|key| [key.clone(), format!("{key}0"), key[..key.len() - 1].to_owned()]);
            for key in others.chain([String::new(), "~".to_owned()]) {
                let key = key.as_bytes();
                assert_eq!(whole.table.block_at(key).unwrap(), paged.table.block_at(key).unwrap());
                assert_eq!(whole.has(key, FilterMode::Use), paged.has(key, FilterMode::Use));
                let span = KeySpan { lower: Some(key), upper: None };
                assert_eq!(whole.table.share(span).unwrap(), paged.table.share(span).unwrap());
            }
            let blocks = whole.table.block_count().unwrap();
            assert_eq!(whole.table.block_bytes(7..blocks).unwrap(), paged.table.block_bytes(7..blocks).unwrap());
            for seek in (0..keys.len()).step_by(37) {
                let mut cursor = paged.table.cursor(true);
                cursor.seek(keys[seek].as_bytes(), MAX_SEQNO).unwrap();
                assert_eq!(cursor.key(), keys[seek].as_bytes());
            }
            paged.table.verify().unwrap();
            let reads = paged.reads().index_reads;
            assert!(if cache == 0 { reads > 20_000 } else { (2..80).contains(&reads) }, "{cache}: {reads}");
        }
    }
}

/// Each stretch of the index, after the table was opened: right answers, or an error that names
/// the file.
#[test]
fn a_damaged_page_of_an_index_is_an_error() {
    let (fs, meta) = built(FilterPolicy::None, None);
    let handle = Fixture::new(&fs, &meta, 0, 0).table.resident().unwrap().footer.index;
    let bytes = fs.read(PATH).unwrap();
    let mut errors = 0;
    for at in (handle.offset..handle.end().unwrap() - 5).step_by(501) {
        let paged = Fixture::new(&fs, &meta, 0, 0);
        fs.corrupt(PATH, at, 0x04).unwrap();
        for i in (0..N).step_by(61) {
            for (key, is_there) in [(even_key(i), true), (odd_key(i), false)] {
                match look_up(&paged.table, &point_read(key.as_bytes(), MAX_SEQNO, FilterMode::Use), &mut Untraced) {
                    Ok(hit) => assert_eq!(hit.is_some(), is_there),
                    Err(Error::Corruption { file, .. }) => errors += usize::from(file == Path::new(PATH)),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(paged.table.verify().is_err());
        fs.write(PATH, &bytes[..]).unwrap();
    }
    assert!(errors > 100, "{errors}");
}

#[test]
fn an_index_page_that_cannot_be_read_once_is_an_error_once() {
    let (fs, meta) = built(FilterPolicy::None, None);
    let paged = Fixture::new(&fs, &meta, 0, 0);
    let read = || look_up(&paged.table, &point_read(even_key(5).as_bytes(), MAX_SEQNO, FilterMode::Use), &mut Untraced);
    fs.set_fault(Some(Fault { at: 1, mode: FaultMode::ReadError, sticky: false }));
    assert!(matches!(read(), Err(Error::Io { .. })));
    fs.set_fault(None);
    assert!(read().unwrap().is_some());
}

/// Filter and index stay in pages only as long as there is no room for them.
#[test]
fn what_was_opened_in_pages_becomes_whole_when_there_is_room() {
    let (fs, meta) = built(FilterPolicy::DEFAULT, None);
    let mut paged = Fixture::new(&fs, &meta, 0, 0);
    let table = Arc::clone(&paged.table);
    let ask = |n: u64| {
        let before = table.ledger().reads;
        for i in 0..n {
            let read = |key: String| {
                let read = point_read(key.as_bytes(), MAX_SEQNO, FilterMode::Shadow);
                look_up(&table, &read, &mut Untraced).unwrap().is_some()
            };
            assert!(read(even_key(i)) && !read(odd_key(i)));
        }
        let after = table.ledger().reads;
        (after.filter_reads - before.filter_reads, after.index_reads - before.index_reads)
    };
    let (filter, index) = ask(500);
    assert!(filter > 500 && index > 500, "no room: {filter} {index}");
    let used = paged.used();
    paged.others.resize(0);
    ask(500);
    assert_eq!(ask(500), (0, 0));
    let whole = Fixture::new(&fs, &meta, 1 << 20, 0).used();
    assert!(paged.used() > used && paged.used() >= whole);
    drop((table, paged.table));
    assert_eq!(paged.budget.total(), 0);
}
