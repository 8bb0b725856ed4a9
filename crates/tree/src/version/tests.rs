mod deferred;

use std::path::Path;

use super::*;
use crate::error::Error;
use crate::filter::KeyHash;
use crate::filter::{FilterPolicy, PrefixExtractor, RangeFilterPolicy};
use crate::format::key::{ValueKind, Window, compare_entries, head16};
use crate::format::pointer::ValuePointer;
use crate::options::Compression;
use crate::report::stats::{FilterLedger, ReadCounters, ReadStats};
use crate::sorted::iter::{MergeCursor, SkippedRun, is_within};
use crate::sorted::merge::MergingCursor;
use crate::sorted::table::{ReadFlags, TableBuilder, TableContext, TableFilters, TableOptions};
use crate::sorted::trace::FilterAnswer;
use crate::vfs::{FileSystem, SimFileSystem};

/// A table with the key range from `smallest` to `largest`, never opened.
fn table(context: &Arc<TableContext>, number: u64, smallest: &str, largest: &str) -> Arc<Table> {
    let meta = TableMeta {
        number,
        size: 0,
        checksum: 0,
        entries: 2,
        keys: 2,
        tombstones: 0,
        deadlines: Default::default(),
        references: Default::default(),
        smallest_seqno: number,
        largest_seqno: number,
        cleared: 0,
        ingested: None,
        range_end: None,
        kept: 0,
        smallest: smallest.as_bytes().into(),
        largest: largest.as_bytes().into(),
    };
    Arc::new(Table::new(Arc::clone(context), meta))
}

#[test]
fn a_prefix_scan_takes_from_each_level_the_tables_that_may_hold_it_and_copies_none() {
    let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
    // In the last level 500 tables of two keys each, from `b000` on by fours; above it three
    // overlapping runs.
    let key = |n: u64| format!("b{n:04}");
    let sorted = (0..500).map(|i| (6, table(&context, i, &key(4 * i), &key(4 * i + 2))));
    let runs = [("a", "z"), ("b0100", "b0101"), ("b1", "b11")];
    let runs = runs.into_iter().zip(500..).map(|((from, to), number)| (0, table(&context, number, from, to)));
    let version = Arc::new(Version::default().edited(&[], sorted.chain(runs).collect()));
    for prefix in ["a", "b", "b0", "b00", "b0003", "b0004", "b01", "b0100", "b1", "b1998", "b1999", "b2", "c", "zz"] {
        let probe = PrefixProbe::new(PrefixExtractor::Fixed(1), prefix.as_bytes(), 0, FilterMode::Use);
        let mut sources = Vec::new();
        version.add_runs(ReadFlags::UNFILTERED, Some(&Arc::new(probe)), &mut sources);
        let mut found = Vec::new();
        for source in &sources {
            let ScanSource::Run(cursor) = source else { panic!("a run") };
            assert!(version.levels.iter().any(|level| Arc::ptr_eq(&level.tables, &cursor.level.tables)));
            assert!(!cursor.run.is_empty());
            found.extend(cursor.level.tables[cursor.run.clone()].iter().map(|table| table.meta().number));
        }
        let covers = |meta: &TableMeta| {
            let begins = |key: &[u8]| key.starts_with(prefix.as_bytes());
            begins(&meta.smallest) || begins(&meta.largest) || {
                *meta.smallest < *prefix.as_bytes() && *prefix.as_bytes() < *meta.largest
            }
        };
        let expected: Vec<u64> = version
            .tables()
            .map(|(_, table)| table.meta())
            .filter(|meta| covers(meta))
            .map(|meta| meta.number)
            .collect();
        assert_eq!(found, expected, "{prefix}");
    }
}

/// In a version 20 % of whose values are dead: enough when the store is idle.
#[test]
fn to_ask_what_an_idle_store_empties_empties_nothing() {
    let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
    let mut meta = table(&context, 7, "a", "b").meta().clone();
    meta.references.count(&ValuePointer { file: 9, offset: 64, record_len: 80, value_len: 1 });
    let table = Arc::new(Table::new(Arc::clone(&context), meta));
    let file = ValueFileMeta { number: 9, size: 196, checksum: 0, count: 1 };
    assert_eq!(file.record_bytes(), 100);
    let version = Version::default().edited(&[], vec![(6, table)]).with_values(&[file], &[]);
    let files = |garbage: Arc<ValueGarbage>| garbage.leaving.iter().copied().collect::<Vec<u64>>();
    let next = |version: &Version| files(version.edited(&[], Vec::new()).value_garbage(false));
    assert_eq!(files(version.value_garbage(false)), [0; 0]);
    assert_eq!(files(version.value_garbage(true)), [9]);
    assert_eq!((files(version.value_garbage(false)), next(&version)), (vec![], vec![]));
    // It goes on once it has begun, in this version and the next.
    assert_eq!(files(version.begin_emptying()), [9]);
    assert_eq!((files(version.value_garbage(false)), next(&version)), (vec![9], vec![9]));
    // Until a value in it cannot be read.
    context.values().note_unreadable(9, &Error::corruption(Path::new("/db/000009.val"), 64, "damaged"));
    assert_eq!((files(version.value_garbage(true)), next(&version)), (vec![], vec![]));
}

#[test]
fn ranges_by_heads_are_those_by_keys() {
    let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
    // Heads have eight bytes: keys that end before, at and after the eighth byte, and trailing
    // zeros, which heads cannot tell from a shorter key.
    let bounds = ["p", "p12345678", "p12345678\0", "p12345678a", "p12345678b", "p12345679", "p2"];
    let others = ["", "o", "q", "p\0", "p1234567", "p123456780", "p12345678a\0"];
    let keys: Vec<&str> = bounds.into_iter().chain(others).collect();
    // With the first bound, the common prefix is short; without it, the prefix is as long as a
    // head.
    for bounds in [&bounds[..], &bounds[1..5]] {
        let pairs = (0..bounds.len()).flat_map(|from| (from..bounds.len()).map(move |to| (from, to)));
        let runs = pairs.zip(100..).map(|((from, to), number)| (0, table(&context, number, bounds[from], bounds[to])));
        let ends: &[(usize, usize)] =
            if bounds.len() == 4 { &[(0, 1), (3, 3)] } else { &[(0, 1), (2, 2), (3, 4), (6, 6)] };
        let sorted = ends.iter().zip(1..).map(|(&(from, to), i)| (6, table(&context, i, bounds[from], bounds[to])));
        let version = Version::default().edited(&[], runs.chain(sorted).collect());
        for key in keys.iter().map(|key| key.as_bytes()) {
            let covers = |table: &&Arc<Table>| *table.meta().smallest <= *key && *key <= *table.meta().largest;
            let numbers = |tables: Vec<&Arc<Table>>| tables.iter().map(|table| table.meta().number).collect::<Vec<_>>();
            let runs = &version.levels[0];
            let head = runs.bounds.head(key);
            let at = |at: &usize| head.is_some_and(|head| runs.in_range(*at, key, head));
            let found = (0..runs.tables.len()).filter(at).map(|at| &runs.tables[at]).collect();
            let expected = numbers(runs.tables.iter().filter(covers).collect());
            assert_eq!(numbers(found), expected, "{key:?}");
            for start in [0, 1, runs.tables.len() - 1] {
                let ranges = runs.in_range_from(start, key);
                let at = |at: &usize| ranges >> (at - start) & 1 == 1;
                let found = (start..runs.tables.len()).filter(at).map(|at| &runs.tables[at]).collect();
                assert_eq!(numbers(found), numbers(runs.tables[start..].iter().filter(covers).collect()), "{key:?}");
            }

            let sorted = &version.levels[6];
            let expected = numbers(sorted.tables.iter().filter(covers).collect());
            let found = sorted.candidate(key).map(|at| &sorted.tables[at]);
            assert_eq!(numbers(found.into_iter().collect()), expected, "{key:?}");
        }
    }
}

#[test]
fn a_key_with_the_head_of_a_bound_that_all_runs_share_is_compared_as_a_whole() {
    let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
    // The ranges of all runs contain the keys from "p12345678b" to "p1234567cx".
    let bounds = [("p12345678b", "p2"), ("p1", "p1234567cx"), ("p0", "p3")];
    let runs = bounds.iter().zip(1..).map(|(&(from, to), number)| (0, table(&context, number, from, to)));
    let version = Version::default().edited(&[], runs.collect());
    let runs = &version.levels[0];
    for key in ["p12345678", "p12345678a", "p12345678b", "p1234567a", "p1234567c", "p1234567cx", "p1234567cy"] {
        let ranges = runs.in_range_from(0, key.as_bytes());
        for (at, table) in runs.tables.iter().enumerate() {
            let meta = table.meta();
            let expected = *meta.smallest <= *key.as_bytes() && *key.as_bytes() <= *meta.largest;
            assert_eq!(ranges >> at & 1 == 1, expected, "{key} {:?}", meta.number);
        }
    }
    assert_eq!(runs.in_range_from(0, b"p1234567a"), u64::MAX, "between the heads of all bounds");
}

/// One event of a read's trace.
#[derive(Debug, PartialEq)]
enum TraceEvent {
    Enter(ReadSource),
    Filter(FilterAnswer),
    Leave(Found),
}

#[derive(Debug, Default, PartialEq)]
struct Recorded(Vec<TraceEvent>);

impl ReadTrace for Recorded {
    fn enter(&mut self, source: ReadSource) {
        self.0.push(TraceEvent::Enter(source));
    }
    fn filter(&mut self, answer: FilterAnswer) {
        self.0.push(TraceEvent::Filter(answer));
    }
    fn leave(&mut self, found: Found) {
        self.0.push(TraceEvent::Leave(found));
    }
}

/// More runs of level 0 than [`FilterBank::AT_ONCE`], and tables in two lower levels. Each table
/// has two of twelve keys; every third has no filter.
fn runs(context: &Arc<TableContext>) -> Vec<(u8, Arc<Table>)> {
    let table = |level: u8, number: u64, keys: [u64; 2]| {
        let policies = [FilterPolicy::DEFAULT, FilterPolicy::Bloom { bits_per_key: 5.0 }, FilterPolicy::None];
        let options = TableOptions {
            filters: TableFilters::of_points(policies[usize::try_from(number % 3).unwrap()]),
            compression: Compression::None,
            block_size: 4096,
            seed: SEED,
            keyspace: 0,
        };
        let mut builder = TableBuilder::new(context.fs(), context.dir(), number, options).unwrap();
        for key in keys {
            builder.add(&run_key(key), 1000 - number, ValueKind::Put, &number.to_le_bytes()).unwrap();
        }
        (level, Arc::new(Table::new(Arc::clone(context), builder.finish().unwrap())))
    };
    let runs = (1..=2 * FilterBank::AT_ONCE as u64 + 2).map(|number| (0, number, [number % 5, 6 + number % 6]));
    let sorted = [(3, 201, [1, 4]), (3, 202, [5, 7]), (3, 203, [9, 10]), (5, 301, [2, 5]), (5, 303, [6, 12])];
    runs.chain(sorted).map(|(level, number, keys)| table(level, number, keys)).collect()
}

const SEED: u64 = 3;

fn run_key(i: u64) -> Vec<u8> {
    format!("key{i:03}").into_bytes()
}

#[test]
fn filters_probed_together_answer_trace_and_count_as_one_by_one() {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/db")).unwrap();
    // The cache holds everything, so that earlier reads do not change the result.
    let context = |dir: &str| Arc::new(TableContext::new(Arc::new(fs.clone()), Path::new(dir), 8 << 20, 8));
    let (context, plain_context) = (context("/db"), context("/db"));
    let version = Version::default().edited(&[], runs(&context));
    let plain: [Vec<Arc<Table>>; LEVELS] = std::array::from_fn(|level| {
        let tables = version.levels[level].tables.iter();
        tables.map(|table| Arc::new(Table::new(Arc::clone(&plain_context), table.meta().clone()))).collect()
    });
    let covers = |table: &&Arc<Table>, key: &[u8]| *table.meta().smallest <= *key && *key <= *table.meta().largest;
    let epoch = Arc::clone(context.epoch());
    let mut counted = [0; 3];
    for mode in [FilterMode::Use, FilterMode::Use, FilterMode::Shadow, FilterMode::Ignore] {
        for (key, snapshot) in (0..14).flat_map(|key| [1000, 990, 900, 750, 0].map(|snapshot| (key, snapshot))) {
            let key = run_key(key);
            let mode = ReadFlags { filters: mode, fill_cache: true, values: true };
            let read = PointRead { key: &key, hash: KeyHash::new(SEED, &key), window: Window::up_to(snapshot), mode };
            let (mut events, mut expected) = (Recorded::default(), Recorded::default());
            let value = epoch.pin(|pin| {
                let mut candidates = Candidates::default();
                version.prefetch(&read, &mut candidates);
                let denied = candidates.sorted.iter().flatten().filter(|table| table.first.deny(read.hash));
                counted[2] += denied.count();
                version.get(&read, pin, &candidates, &mut events).unwrap().map(|hit| hit.value.into_value().to_vec())
            });
            let expected_value = plain_context.epoch().pin(|pin| {
                let runs = plain[0].iter().map(|table| (0, std::slice::from_ref(table)));
                let levels = plain.iter().enumerate().skip(1).filter(|(_, tables)| !tables.is_empty());
                runs.chain(levels.map(|(level, tables)| (level, &tables[..]))).find_map(|(level, tables)| {
                    let table = tables.iter().find(|table| level == 0 || covers(table, &key));
                    expected.0.push(TraceEvent::Enter(match table {
                        Some(table) => ReadSource::Table { level, number: table.meta().number },
                        None => ReadSource::Level(level),
                    }));
                    match table.filter(|table| covers(table, &key)) {
                        Some(table) => table
                            .get(&read, table.expects_hit(), pin, &mut expected)
                            .unwrap()
                            .map(|hit| hit.value.into_value().to_vec()),
                        None => {
                            expected.0.push(TraceEvent::Leave(Found::OutOfRange));
                            None
                        }
                    }
                })
            });
            assert_eq!(value, expected_value);
            assert!(events == expected, "{read:?}");
            counted[usize::from(value.is_some())] += 1;
        }
    }
    for (table, plain) in version.tables().map(|(_, table)| table).zip(plain.iter().flatten()) {
        assert_eq!(table.ledger().reads, plain.ledger().reads);
    }
    assert!(counted.iter().all(|&count| count > 20), "{counted:?}");
}

/// Key, sequence number, kind, value; ordered as cursors visit them.
type CursorEntry = (Vec<u8>, SeqNo, ValueKind, Vec<u8>);

/// Up to `most` versions of about half of 60 keys, numbered from `seqno` on.
fn random_entries(random: &mut fastrand::Rng, mut seqno: SeqNo, most: usize) -> Vec<CursorEntry> {
    let mut entries = Vec::new();
    for key in 0..60 {
        if random.bool() {
            continue;
        }
        let mut versions = Vec::new();
        for _ in 0..random.usize(1..=most) {
            seqno += 1;
            let kind = if random.u8(..5) == 0 { ValueKind::Delete } else { ValueKind::Put };
            let value = if kind == ValueKind::Put { format!("value {seqno}") } else { String::new() };
            versions.push((run_key(key), seqno, kind, value.into_bytes()));
        }
        entries.extend(versions.into_iter().rev());
    }
    entries
}

/// Resumes what a source defers at once, and checks the bounds.
struct Resumed<'c>(&'c mut ScanSource, usize);

impl Resumed<'_> {
    fn resume(&mut self, forward: bool) -> Result<()> {
        let mut bounds = Vec::new();
        while let Some(bound) = self.0.deferred() {
            assert!(!self.0.valid() && bounds.len() < 20);
            bounds.push(bound.to_vec());
            self.0.resume()?;
        }
        self.1 += bounds.len();
        let is_bound = |bound: &Vec<u8>| if forward { **bound <= *self.0.key() } else { **bound >= *self.0.key() };
        assert!(!self.0.valid() || bounds.iter().all(is_bound), "{bounds:?}");
        Ok(())
    }
}

impl InternalCursor for Resumed<'_> {
    fn valid(&self) -> bool {
        self.0.valid()
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.0.seek(key, seqno)?;
        self.resume(true)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.0.seek_to_last()?;
        self.resume(false)
    }

    fn next(&mut self) -> Result<()> {
        self.0.next()?;
        self.resume(true)
    }

    fn prev(&mut self) -> Result<()> {
        self.0.prev()?;
        self.resume(false)
    }

    fn key(&self) -> &[u8] {
        self.0.key()
    }

    fn stamp(&self) -> (SeqNo, ValueKind) {
        self.0.stamp()
    }

    fn value(&self) -> &[u8] {
        self.0.value()
    }
}

impl MergeCursor for Resumed<'_> {
    fn seek_to_first(&mut self) -> Result<()> {
        self.0.seek_to_first()?;
        self.resume(true)
    }

    fn end_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        self.0.begin_seek(key, seqno, forward)?;
        while self.0.continue_seek(key)? {}
        self.0.end_seek(key, seqno, forward)?;
        self.resume(forward)
    }

    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        self.0.jump(end, seen, forward)?;
        self.resume(forward)
    }

    fn counters(&self) -> Option<&ReadCounters> {
        self.0.counters()
    }

    fn fast_steps(&self, snapshot: SeqNo, bound: u128, forward: bool) -> usize {
        self.0.fast_steps(snapshot, bound, forward)
    }

    fn fast_step(&mut self, forward: bool) -> bool {
        self.0.fast_step(forward)
    }

    fn end_fast_steps(&mut self) -> Result<()> {
        self.0.end_fast_steps()
    }

    fn is_first_of_key(&self) -> bool {
        self.0.is_first_of_key()
    }
}

/// Moves `cursor` at random, and compares it with `list` after each move.
fn walk(cursor: &mut impl MergeCursor, list: &[CursorEntry], is_run: bool, random: &mut fastrand::Rng) {
    cursor.seek_to_first().unwrap();
    let mut at = Some(0);
    let (mut fast, mut firsts, mut travels_forward) = (0, 0, true);
    let versions = |key: &[u8]| list.iter().filter(|entry| entry.0 == key).count();
    for _ in 0..600 {
        let forward = random.bool();
        let step = |at: usize| if forward { Some(at + 1).filter(|at| *at < list.len()) } else { at.checked_sub(1) };
        let target = run_key(random.u64(..61));
        // Often exactly that of an entry.
        let seen = if random.bool() { list[random.usize(..list.len())].1 } else { random.u64(..4000) };
        match (random.u8(..10), at) {
            (0, _) => {
                cursor.seek_to_first().unwrap();
                (at, travels_forward) = (Some(0), true);
            }
            (1, _) => {
                cursor.seek_to_last().unwrap();
                (at, travels_forward) = (list.len().checked_sub(1), false);
            }
            (2, _) => {
                cursor.seek(&target, seen).unwrap();
                travels_forward = true;
                let before = |entry: &CursorEntry| compare_entries((&entry.0, entry.1), (&target, seen)).is_lt();
                at = Some(list.partition_point(before)).filter(|at| *at < list.len());
            }
            (5, _) if is_run => {
                cursor.end_seek(&target, seen, false).unwrap();
                let before = |entry: &CursorEntry| compare_entries((&entry.0, entry.1), (&target, seen)).is_lt();
                at = list.partition_point(before).checked_sub(1);
            }
            (3, Some(mut i)) if is_run || forward == travels_forward => {
                let end = random.bool().then_some(&target[..]);
                cursor.jump(end, seen, forward).unwrap();
                at = loop {
                    if list[i].1 > seen || !is_within(&list[i].0, end, forward) {
                        break Some(i);
                    }
                    let Some(next) = step(i) else { break None };
                    i = next;
                };
                // Other children of a merge may have jumped further.
                if let (false, Some(at)) = (is_run, at) {
                    assert_eq!((cursor.key(), cursor.seqno()), (&list[at].0[..], list[at].1));
                    cursor.seek(&list[at].0, list[at].1).unwrap();
                    travels_forward = true;
                }
            }
            (4, Some(mut i)) => {
                let bound = head16(&target);
                let steps = cursor.fast_steps(seen, bound, forward);
                for _ in 0..steps {
                    let next = step(i).unwrap();
                    let (key, seqno, ..) = &list[next];
                    let is_before = if forward { head16(key) < bound } else { head16(key) > bound };
                    assert!(is_before && *seqno <= seen && *key != list[i].0 && versions(key) == 1);
                    if !cursor.fast_step(forward) {
                        break;
                    }
                    assert_eq!((cursor.key(), cursor.value()), (&key[..], &list[next].3[..]));
                    (i, fast) = (next, fast + 1);
                }
                cursor.end_fast_steps().unwrap();
                at = Some(i);
            }
            (_, Some(i)) => {
                if forward { cursor.next() } else { cursor.prev() }.unwrap();
                (at, travels_forward) = (step(i), forward);
            }
            (_, None) => {}
        }
        assert_eq!((cursor.valid(), cursor.head_if_valid()), (at.is_some(), at.map(|at| head16(&list[at].0))));
        let Some(at) = at else { continue };
        let (key, seqno, kind, value) = &list[at];
        assert_eq!((cursor.key(), cursor.stamp(), cursor.value()), (&key[..], (*seqno, *kind), &value[..]));
        assert_eq!(cursor.shows(seen), *seqno <= seen && *kind == ValueKind::Put);
        assert!(cursor.counters().is_some() && cursor.head() == head16(key));
        if cursor.is_first_of_key() {
            assert!(at == 0 || list[at - 1].0 != *key);
            firsts += 1;
        }
    }
    // Only tables without older versions have fast steps.
    let can_be_fast = is_run && list.windows(2).all(|pair| pair[0].0 != pair[1].0);
    assert!(firsts > 0 && (fast > 0 || !can_be_fast), "{firsts} {fast}");
}

#[test]
fn cursors_walk_over_runs_as_over_a_sorted_list() {
    for (seed, filters) in (0..12).zip([FilterMode::Ignore, FilterMode::Use, FilterMode::Shadow].into_iter().cycle()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/db")).unwrap();
        // Range filters are asked for blocks that are not in memory.
        let asks = filters != FilterMode::Ignore;
        let cache = if asks { 0 } else { 8 << 20 };
        let context = Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), cache, 8));
        let ranges = RangeFilterPolicy::ORDERED;
        let options = TableOptions {
            filters: TableFilters { ranges, ..TableFilters::of_points(FilterPolicy::DEFAULT) },
            compression: Compression::None,
            block_size: 256,
            seed: SEED,
            keyspace: 0,
        };
        let (mut lists, mut tables, mut number) = (Vec::new(), Vec::new(), 0);
        // In the order of reads: level, number of tables, first number, most versions of a key.
        for (level, count, seqno, most) in [(0, 1, 3000, 3), (0, 1, 2000, 1), (3, 3, 1000, 2), (6, 6, 0, 1)] {
            let list = random_entries(&mut random, seqno, most);
            let by_key: Vec<&[CursorEntry]> = list.chunk_by(|a, b| a.0 == b.0).collect();
            for keys in by_key.chunks(by_key.len().div_ceil(count)) {
                number += 1;
                let mut builder = TableBuilder::new(context.fs(), context.dir(), number, options).unwrap();
                for (key, seqno, kind, value) in keys.concat() {
                    builder.add(&key, seqno, kind, &value).unwrap();
                }
                tables.push((level, Arc::new(Table::new(Arc::clone(&context), builder.finish().unwrap()))));
            }
            lists.push(list);
        }
        let version = Arc::new(Version::default().edited(&[], tables));
        let mut sources = Vec::new();
        let mode = ReadFlags { filters, fill_cache: true, values: true };
        version.add_runs(mode, None, &mut sources);
        assert_eq!(sources.len(), lists.len());
        // The second walk finds the blocks in memory.
        for _ in 0..2 {
            for (source, list) in sources.iter_mut().zip(&lists) {
                source.let_steps_defer();
                let mut source = Resumed(source, 0);
                walk(&mut source, list, true, &mut random);
                assert!(source.1 > 100, "{} deferred", source.1);
            }
        }
        let mut all = lists.concat();
        all.sort_by(|a, b| compare_entries((&a.0, a.1), (&b.0, b.1)));
        let mut merge = MergingCursor::new(sources);
        walk(&mut merge, &all, false, &mut random);
        let limits = KeySpan { lower: Some(run_key(10)), upper: Some(run_key(50)) };
        for merge in [&mut merge, &mut version.cursor(0, std::iter::empty(), mode, None).with_limits(limits.borrowed())]
        {
            for _ in 0..100 {
                seek_over_at_random(merge, &all, &limits, &mut random);
            }
        }
        let reads: ReadStats = version.tables().map(|(_, table)| table.ledger()).sum::<FilterLedger>().reads;
        assert_eq!(reads.range_probes > 100, asks, "{reads:?}");
        assert_eq!(reads.range_negatives > 10, asks, "{reads:?}");
        assert!(reads.range_probes >= reads.range_absent(), "{reads:?}");
    }
}

/// Seeks over skipped entries and goes on to the end: entries within `limits` that are not skipped
/// are all there, and no others than those of `list`.
fn seek_over_at_random(
    merge: &mut MergingCursor<ScanSource>,
    list: &[CursorEntry],
    limits: &KeySpan<Vec<u8>>,
    random: &mut fastrand::Rng,
) {
    let mut key = || random.bool().then(|| run_key(random.u64(..61)));
    let (from, begin, end) = (key(), key(), key());
    let (forward, seen) = (random.bool(), random.u64(..4000));
    // What is skipped ends after the target.
    let end = end.filter(|end| from.as_ref().is_none_or(|from| if forward { from < end } else { end < from }));
    let skipped = SkippedRun { begin: begin.as_deref(), end: end.as_deref(), seen };
    let is_ahead = |entry: &&CursorEntry| match &from {
        Some(from) if forward => entry.0 >= *from,
        Some(from) => entry.0 < *from,
        None => true,
    };
    let is_skipped = |entry: &CursorEntry| {
        entry.1 <= seen && skipped.has_begun(&entry.0, forward) && is_within(&entry.0, skipped.end, forward)
    };
    let mut ahead: Vec<&CursorEntry> = list.iter().filter(is_ahead).collect();
    if !forward {
        ahead.reverse();
    }
    let mut expected = ahead.into_iter();
    let is_optional = |entry: &CursorEntry| is_skipped(entry) || !limits.overlaps(&entry.0, &entry.0);
    merge.seek_over(from.as_deref(), &skipped, forward).unwrap();
    while merge.valid() {
        let found = (merge.key().to_vec(), merge.seqno());
        let passed = expected.by_ref().take_while(|entry| (&entry.0, entry.1) != (&found.0, found.1));
        assert!(passed.into_iter().all(is_optional), "{from:?} {begin:?} {end:?} {seen} {forward}");
        if forward { merge.next() } else { merge.prev() }.unwrap();
    }
    assert!(expected.all(is_optional), "{from:?} {begin:?} {end:?} {seen} {forward}");
}

#[test]
fn weights_are_kept_for_one_oldest_snapshot_and_computed_anew_for_another() {
    let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
    let version = Version::default().edited(&[], vec![(5, table(&context, 9, "a", "b"))]);
    let weigh = |oldest_snapshot, weight| {
        let weights = version.weights(oldest_snapshot);
        *weights.get_or_init(|| BTreeMap::from([(9, weight)])).values().next().unwrap()
    };
    assert_eq!([weigh(3, 1), weigh(3, 2)], [1, 1]);
    assert_eq!([weigh(4, 3), weigh(4, 4), weigh(3, 5)], [3, 3, 5]);
    // The newest entry has number 9: later snapshots see all, like none at all.
    assert_eq!([weigh(9, 6), weigh(10, 7), weigh(SeqNo::MAX, 8)], [6, 6, 6]);
}

/// A version of [`runs`], whose tables have two keys and one sequence number each.
fn version_of_runs() -> Arc<Version> {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/db")).unwrap();
    let context = Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), 8 << 20, 8));
    Arc::new(Version::default().edited(&[], runs(&context)))
}

#[test]
fn a_key_is_newer_exactly_if_a_table_has_a_later_version_of_it() {
    let version = version_of_runs();
    for (key, since) in (0..14).flat_map(|key| (690..=1000).step_by(3).map(move |since| (key, since))) {
        let key = run_key(key);
        let mode = ReadFlags { filters: FilterMode::Use, fill_cache: true, values: true };
        let read = PointRead { key: &key, hash: KeyHash::new(SEED, &key), window: Window::up_to(0), mode };
        let has_newer =
            |meta: &TableMeta| meta.largest_seqno > since && (*meta.smallest == *key || *meta.largest == *key);
        let expected = version.tables().any(|(_, table)| has_newer(table.meta()));
        assert_eq!(version.is_newer(&read, since).unwrap(), expected, "{} {since}", key.escape_ascii());
    }
    // A table with newer entries of other keys.
    let (_context, table) = table_of(&[("a", 5, ValueKind::Put), ("b", 9, ValueKind::Put)]);
    let version = Version::default().edited(&[], vec![(6, table)]);
    for (since, expected) in [(4, true), (5, false), (6, false)] {
        let mode = ReadFlags { filters: FilterMode::Use, fill_cache: true, values: true };
        let read = PointRead { key: b"a", hash: KeyHash::new(SEED, b"a"), window: Window::up_to(0), mode };
        assert_eq!(version.is_newer(&read, since).unwrap(), expected, "{since}");
    }
}

#[test]
fn cursors_over_newer_entries_visit_the_tables_that_may_have_some_and_no_others() {
    let version = version_of_runs();
    let spans = [(0, 14), (0, 1), (5, 6), (4, 7), (11, 12), (12, 13), (13, 14)];
    for (since, (from, to)) in (690..=1000).step_by(3).flat_map(|since| spans.map(|span| (since, span))) {
        let span = KeySpan { lower: Some(run_key(from)), upper: Some(run_key(to)) };
        let may_hold = |meta: &TableMeta| {
            meta.largest_seqno > since && *meta.smallest < *run_key(to) && *run_key(from) <= *meta.largest
        };
        let metas = version.tables().map(|(_, table)| table.meta());
        let expected: Vec<u64> = metas.filter(|meta| may_hold(meta)).map(|meta| meta.number).collect();
        let sources: Vec<ScanSource> = version.runs_newer(since, &span).collect();
        let found = sources.iter().flat_map(|source| match source {
            ScanSource::Run(cursor) => &cursor.level.tables[cursor.run.clone()],
            ScanSource::Memtable(_) => panic!("a run"),
        });
        let found: Vec<u64> = found.map(|table| table.meta().number).collect();
        assert_eq!(found, expected, "{since} {span:?}");
    }
}

/// A table without a filter, in a file system of its own. Every value is `value`.
fn table_of(entries: &[(&str, SeqNo, ValueKind)]) -> (Arc<TableContext>, Arc<Table>) {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/db")).unwrap();
    let context = Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), 8 << 20, 8));
    let options = TableOptions {
        filters: TableFilters::NONE,
        compression: Compression::None,
        block_size: 4096,
        seed: SEED,
        keyspace: 0,
    };
    let mut builder = TableBuilder::new(context.fs(), context.dir(), 1, options).unwrap();
    for &(key, seqno, kind) in entries {
        let value: &[u8] = if kind == ValueKind::Put { b"value" } else { b"" };
        builder.add(key.as_bytes(), seqno, kind, value).unwrap();
    }
    let table = Arc::new(Table::new(Arc::clone(&context), builder.finish().unwrap()));
    (context, table)
}

#[test]
fn a_trace_tells_values_tombstones_and_newer_versions_apart() {
    let (context, table) = table_of(&[("a", 5, ValueKind::Put), ("b", 6, ValueKind::Delete), ("c", 9, ValueKind::Put)]);
    for (key, found) in [("a", Found::Value(5)), ("aa", Found::Absent), ("b", Found::Deleted), ("c", Found::Newer)] {
        let mode = ReadFlags { filters: FilterMode::Use, fill_cache: true, values: true };
        let read =
            PointRead { key: key.as_bytes(), hash: KeyHash::new(SEED, key.as_bytes()), window: Window::up_to(8), mode };
        let mut events = Recorded::default();
        context.epoch().pin(|pin| table.get(&read, table.expects_hit(), pin, &mut events).unwrap().is_some());
        assert_eq!(events.0.last(), Some(&TraceEvent::Leave(found)), "{key}");
    }
}
