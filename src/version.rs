//! A [`Version`]: which tables make up one keyspace, level by level, and look-up across them.
//!
//! A version never changes; flushes and compactions make a new one. Level 0 holds runs that may overlap, newest first: their
//! sequence numbers do not interleave. In every level below, tables are ordered by key and do not overlap, and all versions of a
//! user key in a level are in one table. For one user key, the first source in the order of reads that holds a version holds none that is
//! older than what only sources behind it hold: what a level holds is newer than what the levels below it hold, or, amid a compaction,
//! there as well (see `compaction::stages`).

mod multi_get;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub(crate) use multi_get::Batch;

use crate::epoch::Pin;
use crate::error::Result;
use crate::explain::{Found, ReadSource, ReadTrace};
use crate::filter::{FilterBank, KeyHash};
use crate::format::key::{SeqNo, ValueKind, common_prefix_len, head};
use crate::iter::InternalCursor;
use crate::manifest::LEVEL_COUNT;
use crate::memtable::MemtableCursor;
use crate::options::FilterMode;
use crate::table::{PointRead, PrefixProbe, Table, TableCursor, TableHit, TableMeta};

/// Number of levels; the last one is `LEVELS - 1`.
pub(crate) const LEVELS: usize = LEVEL_COUNT;

/// The tables of one keyspace at one moment.
#[derive(Default)]
pub(crate) struct Version {
    levels: [Level; LEVELS],
    /// The filters of level 0, once all of its tables are open.
    bank: OnceLock<FilterBank>,
}

/// What filters of level 0 said before memtables were looked into: a bit for each of the first runs, whether it may hold the key.
#[derive(Clone, Copy)]
pub(crate) struct AskedAhead(u64);

/// The tables of one level.
#[derive(Default)]
pub(crate) struct Level {
    /// Shared with the cursors over the level.
    tables: Arc<[Arc<Table>]>,
    /// Of the same tables.
    bounds: Arc<Bounds>,
}

/// The ranges of tables, in flat arrays: a look-up finds out which tables may have a key without a look at any.
#[derive(Default)]
struct Bounds {
    /// Of all smallest and largest keys.
    prefix: Box<[u8]>,
    /// Heads of the smallest and of the largest keys, without the prefix.
    smallest: Box<[u64]>,
    largest: Box<[u64]>,
    /// The greatest of `smallest` and the least of `largest`: what lies between the two lies in all ranges.
    all: (u64, u64),
}

impl AskedAhead {
    /// Nobody was asked.
    pub(crate) const NOTHING: AskedAhead = AskedAhead(u64::MAX);
}

impl Bounds {
    fn of(tables: &[Arc<Table>]) -> Bounds {
        let smallest = tables.iter().map(|table| &*table.meta().smallest).min().unwrap_or_default();
        let largest = tables.iter().map(|table| &*table.meta().largest).max().unwrap_or_default();
        let prefix = &smallest[..common_prefix_len(smallest, largest)];
        let heads = |key: fn(&TableMeta) -> &[u8]| -> Box<[u64]> {
            // Every key lies between the two, and so has the prefix.
            tables.iter().map(|table| head(key(table.meta()).strip_prefix(prefix).unwrap_or_default())).collect()
        };
        let (smallest, largest) = (heads(|meta| &meta.smallest), heads(|meta| &meta.largest));
        let all = (smallest.iter().max().copied(), largest.iter().min().copied());
        let all = (all.0.unwrap_or_default(), all.1.unwrap_or_default());
        Bounds { prefix: prefix.into(), smallest, largest, all }
    }

    /// The head of `key` to be compared with the others; `None` if it lies in no range.
    #[inline]
    fn head(&self, key: &[u8]) -> Option<u64> {
        key.strip_prefix(&*self.prefix).map(head)
    }
}

impl Level {
    pub(crate) fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// Whether `key`, of that [head](Bounds::head), lies between the smallest and the largest key of the table at position `at`.
    #[inline]
    fn in_range(&self, at: usize, key: &[u8], head: u64) -> bool {
        let Bounds { smallest, largest, .. } = &*self.bounds;
        let meta = self.tables[at].meta();
        // Equal heads say nothing about longer keys and trailing zeros.
        (smallest[at] < head || smallest[at] == head && *meta.smallest <= *key)
            && (head < largest[at] || head == largest[at] && *key <= *meta.largest)
    }

    /// A bit for each of the tables from `start` on that have their filters asked at once, and maybe others: whether `key` lies in the
    /// table's range.
    #[inline]
    fn in_range_from(&self, start: usize, key: &[u8]) -> u64 {
        let Some(head) = self.bounds.head(key) else { return 0 };
        if self.bounds.all.0 < head && head < self.bounds.all.1 {
            return u64::MAX;
        }
        let tables = start..self.tables.len().min(start + FilterBank::AT_ONCE);
        tables.filter(|&at| self.in_range(at, key, head)).fold(0, |ranges, at| ranges | 1 << (at - start))
    }

    /// The table that may hold `key`, in a level whose tables do not overlap.
    #[inline]
    fn candidate(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let Bounds { smallest, largest, .. } = &*self.bounds;
        let head = self.bounds.head(key)?;
        let mut at = largest.partition_point(|&other| other < head);
        if largest.get(at) == Some(&head) {
            let ties = largest[at..].partition_point(|&other| other == head);
            at += self.tables[at..at + ties].partition_point(|table| *table.meta().largest < *key);
        }
        let table = self.tables.get(at)?;
        (smallest[at] < head || *table.meta().smallest <= *key).then_some(table)
    }
}

impl Version {
    /// This version without the tables `removed` and with the tables `added`.
    pub(crate) fn edited(&self, removed: &[(u8, u64)], added: Vec<(u8, Arc<Table>)>) -> Version {
        let mut levels: [Vec<Arc<Table>>; LEVELS] = std::array::from_fn(|i| self.levels[i].tables.to_vec());
        for &(level, number) in removed {
            levels[usize::from(level)].retain(|table| table.meta().number != number);
        }
        for (level, table) in added {
            levels[usize::from(level)].push(table);
        }
        let (runs, sorted) = levels.split_at_mut(1);
        // Runs of one flush or recovery have disjoint sequence ranges; the number only makes the order total.
        runs[0].sort_by_key(|table| std::cmp::Reverse((table.meta().largest_seqno, table.meta().number)));
        for level in sorted {
            level.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
        }
        let level = |tables: Vec<Arc<Table>>| Level { bounds: Arc::new(Bounds::of(&tables)), tables: tables.into() };
        Version { levels: levels.map(level), bank: OnceLock::new() }
    }

    pub(crate) fn levels(&self) -> &[Level; LEVELS] {
        &self.levels
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        self.levels.iter().enumerate().flat_map(|(i, level)| level.tables.iter().map(move |table| (i, table)))
    }

    /// What is known of the tables, in the form that the compaction picker takes.
    pub(crate) fn metas(&self) -> [Vec<&TableMeta>; LEVELS] {
        std::array::from_fn(|i| self.levels[i].tables.iter().map(|table| table.meta()).collect())
    }

    /// Whether level 0 has more than one run.
    #[inline]
    pub(crate) fn has_several_runs(&self) -> bool {
        self.levels[0].tables.len() > 1
    }

    /// Asks the filters of the first runs of level 0 together. Worth it if there are several.
    #[inline]
    pub(crate) fn ask_ahead(&self, read: &PointRead<'_>) -> AskedAhead {
        AskedAhead(self.ask_runs(0, read))
    }

    /// A bit for each of the runs from `start` on that are asked at once, and maybe others: whether the run may hold the key.
    #[inline]
    fn ask_runs(&self, start: usize, read: &PointRead<'_>) -> u64 {
        match self.bank.get() {
            _ if read.mode.filters != FilterMode::Use => u64::MAX,
            Some(bank) => bank.ask(start, read.hash),
            None => self.ask_first(start, read.hash),
        }
    }

    /// The same for the first time, and as long as not all runs are open: whoever comes to them opens them. Until then each filter is asked
    /// by itself, and only its lines ahead.
    #[cold]
    fn ask_first(&self, start: usize, hash: KeyHash) -> u64 {
        let runs = &self.levels[0].tables;
        if !runs.iter().all(|table| table.is_open()) {
            runs.iter().skip(start).take(FilterBank::AT_ONCE).for_each(|table| table.prefetch_filter(hash));
            return u64::MAX;
        }
        let bank = FilterBank::new(hash.seed(), runs.iter().map(|table| table.usable_filter()));
        let maybe = bank.ask(start, hash);
        // Who comes at the same time makes another one, and waits for nobody.
        let _ = self.bank.set(bank);
        maybe
    }

    /// The newest version of a key that the read can see, a tombstone included. Newest sources first; the first answer ends the
    /// search. What is known ahead spares questions, and changes no answer.
    #[inline]
    pub(crate) fn get<'p>(
        &'p self,
        read: &PointRead<'p>,
        pin: &'p Pin<'_>,
        ahead: AskedAhead,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<TableHit<'p>>> {
        let [overlapping, sorted @ ..] = &self.levels;
        for (start, tables) in (0..).step_by(FilterBank::AT_ONCE).zip(overlapping.tables.chunks(FilterBank::AT_ONCE)) {
            let in_range = overlapping.in_range_from(start, read.key);
            let maybe = if start == 0 { ahead.0 } else { self.ask_runs(start, read) };
            for (i, table) in tables.iter().enumerate() {
                trace.enter(ReadSource::Table { level: 0, number: table.meta().number });
                if in_range >> i & 1 == 0 {
                    trace.leave(Found::OutOfRange);
                } else if maybe >> i & 1 == 0 {
                    table.deny(trace);
                } else if let Some(hit) = table.get(read, pin, trace)? {
                    return Ok(Some(hit));
                }
            }
        }
        for (number, level) in (1..).zip(sorted) {
            if let Some(table) = level.candidate(read.key) {
                trace.enter(ReadSource::Table { level: number, number: table.meta().number });
                if let Some(hit) = table.get(read, pin, trace)? {
                    return Ok(Some(hit));
                }
            } else if !level.tables.is_empty() {
                trace.enter(ReadSource::Level(number));
                trace.leave(Found::OutOfRange);
            }
        }
        Ok(None)
    }

    /// How many cursors [`cursors`](Version::cursors) gives at most.
    pub(crate) fn run_count(&self) -> usize {
        let [overlapping, sorted @ ..] = &self.levels;
        overlapping.tables.len() + sorted.iter().filter(|level| !level.tables.is_empty()).count()
    }

    /// Cursors to be merged: over all tables, or over those that may hold keys with the prefix of `probe`.
    pub(crate) fn cursors(self: &Arc<Self>, fill_cache: bool, probe: Option<&Arc<PrefixProbe>>, out: &mut Vec<Source>) {
        let [overlapping, sorted @ ..] = &self.levels;
        let each = (0..overlapping.tables.len()).map(|i| (overlapping, i..i + 1));
        let runs = each.chain(sorted.iter().map(|level| (level, 0..level.tables.len())));
        for (Level { tables, .. }, run) in runs {
            let run = probe.map_or(run.clone(), |probe| probe.in_range(tables, run));
            if !run.is_empty() {
                let cursor = RunCursor::new(Arc::clone(tables), run, fill_cache);
                out.push(Source::Run(RunCursor { prefix: probe.cloned(), ..cursor }));
            }
        }
    }
}

/// A cursor over tables that are ordered by key and do not overlap. It opens one table at a time. With a prefix, it passes over the
/// tables whose filters deny it.
pub(crate) struct RunCursor {
    /// Shared with the version; `run` says which of them this is about.
    tables: Arc<[Arc<Table>]>,
    run: Range<usize>,
    fill_cache: bool,
    prefix: Option<Arc<PrefixProbe>>,
    /// Position in `tables` of the one under `cursor`.
    at: usize,
    /// Valid when this one is.
    cursor: TableCursor,
    /// Whether there is a second part of the seek to be done.
    seeking: bool,
}

/// Where a cursor over a run looks for its next table.
#[derive(Clone, Copy)]
enum Direction {
    Forward,
    Backward,
}

impl Direction {
    fn from(self, at: usize) -> Option<usize> {
        match self {
            Direction::Forward => at.checked_add(1),
            Direction::Backward => at.checked_sub(1),
        }
    }
}

impl RunCursor {
    /// A cursor over the tables `run` of `tables`, at least one.
    fn new(tables: Arc<[Arc<Table>]>, run: Range<usize>, fill_cache: bool) -> RunCursor {
        let (at, cursor) = (run.start, tables[run.start].cursor(fill_cache));
        RunCursor { tables, run, fill_cache, prefix: None, at, cursor, seeking: false }
    }

    /// A cursor for compaction, whose reads are no reader's: they stay out of the cache and of the counters.
    pub(crate) fn for_compaction(tables: Arc<[Arc<Table>]>) -> RunCursor {
        let run = 0..tables.len();
        let cursor = RunCursor::new(tables, run, false);
        RunCursor { cursor: cursor.cursor.for_compaction(), ..cursor }
    }

    /// Opens the first table from `at` on in a direction that is not to be passed over, if there is one, and positions its cursor.
    fn open(
        &mut self,
        direction: Direction,
        mut at: Option<usize>,
        position: impl FnOnce(&mut TableCursor) -> Result<()>,
    ) -> Result<()> {
        self.invalidate();
        while let Some(i) = at.filter(|at| self.run.contains(at)) {
            if self.enter_table(i)? {
                return position(&mut self.cursor);
            }
            at = direction.from(i);
        }
        Ok(())
    }

    /// Moves on to the table at position `i`, unless that is to be passed over; returns whether it did.
    fn enter_table(&mut self, i: usize) -> Result<bool> {
        let table = &self.tables[i];
        match &self.prefix {
            None => self.cursor.enter_table(table),
            Some(probe) => match table.cursor_for(probe, self.fill_cache)? {
                Some(cursor) => self.cursor = cursor,
                None => return Ok(false),
            },
        }
        self.at = i;
        Ok(true)
    }

    fn invalidate(&mut self) {
        self.seeking = false;
        self.cursor.invalidate();
    }

    #[cold]
    fn next_table(&mut self) -> Result<()> {
        self.open(Direction::Forward, Some(self.at + 1), TableCursor::seek_to_first)
    }

    #[cold]
    fn previous_table(&mut self) -> Result<()> {
        self.open(Direction::Backward, self.at.checked_sub(1), TableCursor::seek_to_last)
    }
}

impl InternalCursor for RunCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.cursor.valid()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.open(Direction::Forward, Some(self.run.start), TableCursor::seek_to_first)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.open(Direction::Backward, self.run.end.checked_sub(1), TableCursor::seek_to_last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_seek(key)?;
        self.end_seek(key, seqno)
    }

    fn begin_seek(&mut self, key: &[u8]) -> Result<()> {
        let before = self.tables[self.run.clone()].partition_point(|table| *table.meta().largest < *key);
        let at = self.run.start + before;
        let mut seeking = false;
        self.open(Direction::Forward, Some(at), |cursor| {
            seeking = true;
            cursor.begin_seek(key)
        })?;
        self.seeking = seeking;
        Ok(())
    }

    fn continue_seek(&mut self, key: &[u8]) -> Result<bool> {
        if self.seeking { self.cursor.continue_seek(key) } else { Ok(false) }
    }

    fn end_seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        if !std::mem::take(&mut self.seeking) {
            return Ok(());
        }
        self.cursor.end_seek(key, seqno)?;
        // The key may be the table's largest and all its versions newer than `seqno`.
        if self.valid() { Ok(()) } else { self.next_table() }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.cursor.next()?;
        if self.valid() { Ok(()) } else { self.next_table() }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.cursor.prev()?;
        if self.valid() { Ok(()) } else { self.previous_table() }
    }

    #[inline]
    fn plain_steps(&self, snapshot: SeqNo, bound: u128, forward: bool) -> usize {
        self.cursor.plain_steps(snapshot, bound, forward)
    }

    #[inline]
    fn plain_step(&mut self, forward: bool) -> bool {
        self.cursor.plain_step(forward)
    }

    fn end_plain_steps(&mut self) -> Result<()> {
        self.cursor.end_plain_steps()
    }

    #[inline]
    fn is_first_of_key(&self) -> bool {
        self.cursor.is_first_of_key()
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    #[inline]
    fn head(&self) -> u128 {
        self.cursor.head()
    }

    #[inline]
    fn seqno(&self) -> SeqNo {
        self.cursor.seqno()
    }

    #[inline]
    fn kind(&self) -> ValueKind {
        self.cursor.kind()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.cursor.value()
    }
}

/// One source of a merge. An enum, so that a step costs a branch and not a virtual call.
#[expect(clippy::large_enum_variant, reason = "nearly all are runs, and a seek should not pay for a box of each")]
pub(crate) enum Source {
    Memtable(MemtableCursor),
    Run(RunCursor),
}

/// Calls the same method on whichever cursor it is.
macro_rules! dispatch {
    ($self:ident, $cursor:ident => $call:expr) => {
        match $self {
            Source::Memtable($cursor) => $call,
            Source::Run($cursor) => $call,
        }
    };
}

impl InternalCursor for Source {
    #[inline]
    fn valid(&self) -> bool {
        dispatch!(self, cursor => cursor.valid())
    }

    fn seek_to_first(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.seek_to_first())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.seek_to_last())
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        dispatch!(self, cursor => cursor.seek(key, seqno))
    }

    fn begin_seek(&mut self, key: &[u8]) -> Result<()> {
        dispatch!(self, cursor => cursor.begin_seek(key))
    }

    fn continue_seek(&mut self, key: &[u8]) -> Result<bool> {
        dispatch!(self, cursor => cursor.continue_seek(key))
    }

    fn end_seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        dispatch!(self, cursor => cursor.end_seek(key, seqno))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.next())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.prev())
    }

    #[inline]
    fn plain_steps(&self, snapshot: SeqNo, bound: u128, forward: bool) -> usize {
        dispatch!(self, cursor => cursor.plain_steps(snapshot, bound, forward))
    }

    #[inline]
    fn plain_step(&mut self, forward: bool) -> bool {
        dispatch!(self, cursor => cursor.plain_step(forward))
    }

    fn end_plain_steps(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.end_plain_steps())
    }

    #[inline]
    fn is_first_of_key(&self) -> bool {
        dispatch!(self, cursor => cursor.is_first_of_key())
    }

    #[inline]
    fn key(&self) -> &[u8] {
        dispatch!(self, cursor => cursor.key())
    }

    #[inline(always)]
    fn head(&self) -> u128 {
        dispatch!(self, cursor => cursor.head())
    }

    #[inline(always)]
    fn head_if_valid(&self) -> Option<u128> {
        dispatch!(self, cursor => cursor.head_if_valid())
    }

    #[inline(always)]
    fn shows(&self, snapshot: SeqNo) -> bool {
        dispatch!(self, cursor => cursor.shows(snapshot))
    }

    #[inline]
    fn seqno(&self) -> SeqNo {
        dispatch!(self, cursor => cursor.seqno())
    }

    #[inline]
    fn kind(&self) -> ValueKind {
        dispatch!(self, cursor => cursor.kind())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        dispatch!(self, cursor => cursor.value())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::explain::FilterAnswer;
    use crate::options::{Compression, FilterPolicy, PrefixExtractor};
    use crate::table::{ReadMode, TableBuilder, TableContext, TableOptions};
    use crate::vfs::{FileSystem, SimFileSystem};

    /// A table, never opened, of the keys from `smallest` to `largest`.
    fn table(context: &Arc<TableContext>, number: u64, smallest: &str, largest: &str) -> Arc<Table> {
        let meta = TableMeta {
            number,
            size: 0,
            checksum: 0,
            entries: 2,
            keys: 2,
            tombstones: 0,
            smallest_seqno: number,
            largest_seqno: number,
            smallest: smallest.as_bytes().into(),
            largest: largest.as_bytes().into(),
        };
        Arc::new(Table::new(Arc::clone(context), meta))
    }

    #[test]
    fn a_scan_of_a_prefix_takes_from_each_level_the_tables_with_room_for_it_and_copies_none() {
        let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
        // In the last level 500 tables of two keys each, from `b000` on by fours; above it three that overlap.
        let key = |n: u64| format!("b{n:04}");
        let sorted = (0..500).map(|i| (6, table(&context, i, &key(4 * i), &key(4 * i + 2))));
        let runs = [("a", "z"), ("b0100", "b0101"), ("b1", "b11")];
        let runs = runs.into_iter().zip(500..).map(|((from, to), number)| (0, table(&context, number, from, to)));
        let version = Arc::new(Version::default().edited(&[], sorted.chain(runs).collect()));
        for prefix in ["a", "b", "b0", "b00", "b0003", "b0004", "b01", "b0100", "b1", "b1998", "b1999", "b2", "c", "zz"]
        {
            let probe = PrefixProbe::new(PrefixExtractor::Fixed(1), prefix.as_bytes(), 0, FilterMode::Use);
            let mut sources = Vec::new();
            version.cursors(false, Some(&Arc::new(probe)), &mut sources);
            let mut found = Vec::new();
            for source in &sources {
                let Source::Run(cursor) = source else { panic!("a run") };
                assert!(version.levels.iter().any(|level| Arc::ptr_eq(&level.tables, &cursor.tables)));
                assert!(!cursor.run.is_empty());
                found.extend(cursor.tables[cursor.run.clone()].iter().map(|table| table.meta().number));
            }
            let has_room = |meta: &TableMeta| {
                let begins = |key: &[u8]| key.starts_with(prefix.as_bytes());
                begins(&meta.smallest) || begins(&meta.largest) || {
                    *meta.smallest < *prefix.as_bytes() && *prefix.as_bytes() < *meta.largest
                }
            };
            let expected: Vec<u64> = version
                .tables()
                .map(|(_, table)| table.meta())
                .filter(|meta| has_room(meta))
                .map(|meta| meta.number)
                .collect();
            assert_eq!(found, expected, "{prefix}");
        }
    }

    #[test]
    fn ranges_by_heads_are_those_by_keys() {
        let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
        // Heads are of eight bytes: keys that end before, with and after them, and zeros, which heads do not tell from no byte.
        let bounds = ["p", "p12345678", "p12345678\0", "p12345678a", "p12345678b", "p12345679", "p2"];
        let others = ["", "o", "q", "p\0", "p1234567", "p123456780", "p12345678a\0"];
        let keys: Vec<&str> = bounds.into_iter().chain(others).collect();
        // With the first of the bounds, the prefix that all share is short; without, it is as long as a head.
        for bounds in [&bounds[..], &bounds[1..5]] {
            let pairs = (0..bounds.len()).flat_map(|from| (from..bounds.len()).map(move |to| (from, to)));
            let runs =
                pairs.zip(100..).map(|((from, to), number)| (0, table(&context, number, bounds[from], bounds[to])));
            let ends: &[(usize, usize)] =
                if bounds.len() == 4 { &[(0, 1), (3, 3)] } else { &[(0, 1), (2, 2), (3, 4), (6, 6)] };
            let sorted = ends.iter().zip(1..).map(|(&(from, to), i)| (6, table(&context, i, bounds[from], bounds[to])));
            let version = Version::default().edited(&[], runs.chain(sorted).collect());
            for key in keys.iter().map(|key| key.as_bytes()) {
                let has_room = |table: &&Arc<Table>| *table.meta().smallest <= *key && *key <= *table.meta().largest;
                let numbers =
                    |tables: Vec<&Arc<Table>>| tables.iter().map(|table| table.meta().number).collect::<Vec<_>>();
                let runs = &version.levels[0];
                let head = runs.bounds.head(key);
                let at = |at: &usize| head.is_some_and(|head| runs.in_range(*at, key, head));
                let found = (0..runs.tables.len()).filter(at).map(|at| &runs.tables[at]).collect();
                let expected = numbers(runs.tables.iter().filter(has_room).collect());
                assert_eq!(numbers(found), expected, "{key:?}");
                for start in [0, 1, runs.tables.len() - 1] {
                    let ranges = runs.in_range_from(start, key);
                    let at = |at: &usize| ranges >> (at - start) & 1 == 1;
                    let found = (start..runs.tables.len()).filter(at).map(|at| &runs.tables[at]).collect();
                    assert_eq!(
                        numbers(found),
                        numbers(runs.tables[start..].iter().filter(has_room).collect()),
                        "{key:?}"
                    );
                }

                let sorted = &version.levels[6];
                let expected = numbers(sorted.tables.iter().filter(has_room).collect());
                assert_eq!(numbers(sorted.candidate(key).into_iter().collect()), expected, "{key:?}");
            }
        }
    }

    #[test]
    fn a_key_with_the_head_of_a_bound_that_all_runs_share_is_compared_as_a_whole() {
        let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
        // All runs have the keys from "p12345678b" to "p1234567cx" in common.
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

    /// What a read tells of its way.
    #[derive(Debug, PartialEq)]
    enum Told {
        Enter(ReadSource),
        Filter(FilterAnswer),
        Leave(Found),
    }

    impl ReadTrace for Vec<Told> {
        fn enter(&mut self, source: ReadSource) {
            self.push(Told::Enter(source));
        }
        fn filter(&mut self, answer: FilterAnswer) {
            self.push(Told::Filter(answer));
        }
        fn leave(&mut self, found: Found) {
            self.push(Told::Leave(found));
        }
    }

    /// Runs of level 0, newest first, more than are asked at once. Each has two keys of twelve; each third has no filter.
    fn runs(context: &Arc<TableContext>) -> Vec<(u8, Arc<Table>)> {
        let run = |number: u64| {
            let policies = [FilterPolicy::DEFAULT, FilterPolicy::Bloom { bits_per_key: 5.0 }, FilterPolicy::None];
            let options = TableOptions {
                filter: policies[usize::try_from(number % 3).unwrap()],
                prefix: None,
                compression: Compression::None,
                block_size: 4096,
                seed: SEED,
                keyspace: 0,
            };
            let mut builder = TableBuilder::new(context.fs(), context.dir(), number, options).unwrap();
            for key in [number % 5, 6 + number % 6] {
                builder.add(&run_key(key), 1000 - number, ValueKind::Put, b"value").unwrap();
            }
            (0, Arc::new(Table::new(Arc::clone(context), builder.finish().unwrap())))
        };
        (1..=2 * FilterBank::AT_ONCE as u64 + 2).map(run).collect()
    }

    const SEED: u64 = 3;

    fn run_key(i: u64) -> Vec<u8> {
        format!("key{i:03}").into_bytes()
    }

    #[test]
    fn runs_asked_together_answer_tell_and_count_as_one_by_one() {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/db")).unwrap();
        // Everything in the cache, so that reads do not differ by what was read before.
        let context = |dir: &str| Arc::new(TableContext::new(Arc::new(fs.clone()), Path::new(dir), 8 << 20, 8));
        let (context, plain_context) = (context("/db"), context("/db"));
        let version = Version::default().edited(&[], runs(&context));
        let plain: Vec<Arc<Table>> = version.levels[0]
            .tables
            .iter()
            .map(|table| Arc::new(Table::new(Arc::clone(&plain_context), table.meta().clone())))
            .collect();
        let epoch = Arc::clone(context.epoch());
        let mut counted = [0; 3];
        for mode in [FilterMode::Use, FilterMode::Use, FilterMode::Shadow, FilterMode::Ignore] {
            for (key, snapshot) in (0..14).flat_map(|key| [(key, 1000), (key, 990), (key, 900), (key, 0)]) {
                let key = run_key(key);
                let mode = ReadMode { filters: mode, fill_cache: true };
                let read = PointRead { key: &key, hash: KeyHash::new(SEED, &key), snapshot, mode };
                for is_ahead in [true, false] {
                    let (mut told, mut expected) = (Vec::new(), Vec::new());
                    let seqno = epoch.pin(|pin| {
                        let ahead = if is_ahead { version.ask_ahead(&read) } else { AskedAhead::NOTHING };
                        version.get(&read, pin, ahead, &mut told).unwrap().map(|hit| hit.seqno)
                    });
                    let expected_seqno = plain_context.epoch().pin(|pin| {
                        plain.iter().find_map(|table| {
                            expected.push(Told::Enter(ReadSource::Table { level: 0, number: table.meta().number }));
                            if *table.meta().smallest <= *key && *key <= *table.meta().largest {
                                table.get(&read, pin, &mut expected).unwrap().map(|hit| hit.seqno)
                            } else {
                                expected.push(Told::Leave(Found::OutOfRange));
                                None
                            }
                        })
                    });
                    assert_eq!(seqno, expected_seqno);
                    assert!(told == expected, "{read:?}");
                    counted[usize::from(seqno.is_some())] += 1;
                    counted[2] += u32::from(version.bank.get().is_some());
                }
            }
        }
        for (table, plain) in version.levels[0].tables.iter().zip(&plain) {
            assert_eq!(table.ledger().reads, plain.ledger().reads);
        }
        assert!(counted.iter().all(|&count| count > 50), "{counted:?}");
    }
}
