//! A [`Version`]: the tables of one keyspace, level by level, and look-ups across them.
//!
//! - A version never changes; flushes and compactions make a new one.
//! - Level 0 holds runs that may overlap, newest first. Their sequence numbers do not interleave.
//! - In every other level, tables are ordered by key and do not overlap. All versions of a user key
//!   in a level are in one table.
//! - Reads go from new to old: every version of a key in one source is newer than any version found
//!   only in later sources. During a compaction, a source may hold entries that a later one holds
//!   as well (see `compaction::stages`).

mod multi_get;
mod source;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub(crate) use multi_get::Batch;
pub(crate) use source::Source;

use crate::error::Result;
use crate::filter::{FilterBank, FirstProbes};
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, common_prefix_len, compare, head, strip};
use crate::memory::epoch::Pin;
use crate::options::FilterMode;
use crate::report::explain::{Found, ReadSource, ReadTrace};
use crate::report::stats::ReadCounters;
use crate::sorted::iter::{InternalCursor, is_within};
use crate::sorted::table::{PointRead, PrefixProbe, Table, TableCursor, TableHit, TableMeta};
use crate::tree::manifest::LEVEL_COUNT;

/// Number of levels; the last one is `LEVELS - 1`.
pub(crate) const LEVELS: usize = LEVEL_COUNT;

/// Metadata of the tables of a keyspace, level by level.
pub(crate) type LevelMetas<'a> = [Vec<&'a TableMeta>; LEVELS];

/// The tables of one keyspace at one moment.
#[derive(Default)]
pub(crate) struct Version {
    levels: [Level; LEVELS],
    /// The non-empty levels below level 0. Reads visit no others.
    sorted: Box<[SortedLevel]>,
    /// The filters of all tables, level by level. Built by the first read.
    bank: OnceLock<FilterBank>,
    /// The largest sequence number in the tables of this version and its predecessors, 0 without
    /// tables.
    largest_seqno: SeqNo,
}

/// A non-empty level below level 0.
struct SortedLevel {
    number: usize,
    /// Position in the bank of its first table's filter.
    first_filter: usize,
}

/// The tables that a read will visit, found before it reads any of them.
pub(crate) struct Candidates<'v> {
    /// `None` if the read ignores filters.
    bank: Option<&'v FilterBank>,
    /// For each level in [`Version::sorted`], the table that may hold the key.
    sorted: [Option<CandidateTable<'v>>; LEVELS - 1],
}

#[derive(Clone, Copy)]
struct CandidateTable<'v> {
    table: &'v Arc<Table>,
    /// A first check of its filter; the cache line has been prefetched.
    first: FirstProbes<'v>,
}

/// The tables of one level.
#[derive(Default)]
pub(crate) struct Level {
    /// Shared with the cursors over the level.
    tables: Arc<[Arc<Table>]>,
    /// Key ranges of `tables`.
    bounds: Arc<Bounds>,
}

/// The key ranges of tables in flat arrays, so that a look-up finds candidates without touching a
/// table.
#[derive(Default)]
struct Bounds {
    /// Common prefix of all smallest and largest keys.
    prefix: Box<[u8]>,
    /// Heads of the smallest and of the largest keys, after the prefix.
    smallest: Box<[u64]>,
    largest: Box<[u64]>,
    /// The greatest of `smallest` and the least of `largest`. A head strictly between the two lies
    /// in every range.
    intersection: (u64, u64),
}

impl Bounds {
    fn of(tables: &[Arc<Table>]) -> Bounds {
        let smallest = tables.iter().map(|table| &*table.meta().smallest).min().unwrap_or_default();
        let largest = tables.iter().map(|table| &*table.meta().largest).max().unwrap_or_default();
        let prefix = &smallest[..common_prefix_len(smallest, largest)];
        let heads = |key: fn(&TableMeta) -> &[u8]| -> Box<[u64]> {
            // Every key lies between the two and so has the prefix.
            tables.iter().map(|table| head(strip(key(table.meta()), prefix).unwrap_or_default())).collect()
        };
        let (smallest, largest) = (heads(|meta| &meta.smallest), heads(|meta| &meta.largest));
        let intersection = (smallest.iter().max().copied(), largest.iter().min().copied());
        let intersection = (intersection.0.unwrap_or_default(), intersection.1.unwrap_or_default());
        Bounds { prefix: prefix.into(), smallest, largest, intersection }
    }

    /// The head of `key` after the prefix, or `None` if `key` lies in no range.
    #[inline]
    fn head(&self, key: &[u8]) -> Option<u64> {
        strip(key, &self.prefix).map(head)
    }
}

impl Level {
    pub(crate) fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// Whether `key`, whose [head](Bounds::head) is `head`, lies in the key range of the table at
    /// position `at`.
    #[inline]
    fn in_range(&self, at: usize, key: &[u8], head: u64) -> bool {
        let Bounds { smallest, largest, .. } = &*self.bounds;
        let meta = self.tables[at].meta();
        // Equal heads do not order keys that are longer or differ in trailing zeros.
        (smallest[at] < head || smallest[at] == head && compare(&meta.smallest, key).is_le())
            && (head < largest[at] || head == largest[at] && compare(key, &meta.largest).is_le())
    }

    /// Bit i says whether `key` lies in the range of table `start + i`. Covers the
    /// [`FilterBank::AT_ONCE`] tables from `start` on; bits beyond the last table may be set.
    #[inline]
    fn in_range_from(&self, start: usize, key: &[u8]) -> u64 {
        let Some(head) = self.bounds.head(key) else { return 0 };
        if self.bounds.intersection.0 < head && head < self.bounds.intersection.1 {
            return u64::MAX;
        }
        let tables = start..self.tables.len().min(start + FilterBank::AT_ONCE);
        tables.filter(|&at| self.in_range(at, key, head)).fold(0, |ranges, at| ranges | 1 << (at - start))
    }

    /// Position of the table that may hold `key`, in a level without overlaps.
    #[inline]
    fn candidate(&self, key: &[u8]) -> Option<usize> {
        let Bounds { smallest, largest, .. } = &*self.bounds;
        let head = self.bounds.head(key)?;
        let mut at = largest.partition_point(|&other| other < head);
        if largest.get(at) == Some(&head) {
            let ties = largest[at..].partition_point(|&other| other == head);
            at += self.tables[at..at + ties].partition_point(|table| compare(&table.meta().largest, key).is_lt());
        }
        let table = self.tables.get(at)?;
        (smallest[at] < head || compare(&table.meta().smallest, key).is_le()).then_some(at)
    }
}

impl Version {
    /// A new version without the tables `removed` and with the tables `added`.
    pub(crate) fn edited(&self, removed: &[(u8, u64)], added: Vec<(u8, Arc<Table>)>) -> Version {
        let mut levels: [Vec<Arc<Table>>; LEVELS] = std::array::from_fn(|i| self.levels[i].tables.to_vec());
        for &(level, number) in removed {
            levels[usize::from(level)].retain(|table| table.meta().number != number);
        }
        for (level, table) in added {
            levels[usize::from(level)].push(table);
        }
        let (runs, sorted) = levels.split_at_mut(1);
        // Runs of one flush or recovery have disjoint sequence ranges. The number only makes the
        // order total.
        runs[0].sort_by_key(|table| std::cmp::Reverse((table.meta().largest_seqno, table.meta().number)));
        for level in sorted {
            level.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
        }
        // Dropped entries count as well: scans must know how high their sequence numbers may have
        // been.
        let largest = levels.iter().flatten().map(|table| table.meta().largest_seqno).max();
        let largest_seqno = self.largest_seqno.max(largest.unwrap_or_default());
        let level = |tables: Vec<Arc<Table>>| Level { bounds: Arc::new(Bounds::of(&tables)), tables: tables.into() };
        let (mut sorted, mut filters) = (Vec::new(), 0);
        for (number, level) in levels.iter().enumerate() {
            if number > 0 && !level.is_empty() {
                sorted.push(SortedLevel { number, first_filter: filters });
            }
            filters += level.len();
        }
        Version { levels: levels.map(level), sorted: sorted.into(), bank: OnceLock::new(), largest_seqno }
    }

    pub(crate) fn levels(&self) -> &[Level; LEVELS] {
        &self.levels
    }

    /// The largest sequence number in any table since the store was opened, 0 without tables.
    pub(crate) fn largest_seqno(&self) -> SeqNo {
        self.largest_seqno
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        self.levels.iter().enumerate().flat_map(|(i, level)| level.tables.iter().map(move |table| (i, table)))
    }

    /// Metadata of the tables, as the compaction picker takes it.
    pub(crate) fn metas(&self) -> LevelMetas<'_> {
        std::array::from_fn(|i| self.levels[i].tables.iter().map(|table| table.meta()).collect())
    }

    /// The non-empty levels below level 0, from newest to oldest.
    fn sorted(&self) -> impl Iterator<Item = &Level> {
        self.sorted.iter().map(|sorted| &self.levels[sorted.number])
    }

    /// The filters of all tables, or `None` if the read ignores filters.
    #[inline]
    fn bank(&self, read: &PointRead<'_>) -> Option<&FilterBank> {
        let (seed, len) = (read.hash.seed(), || self.levels.iter().map(|level| level.tables.len()).sum());
        let bank = self.bank.get_or_init(|| FilterBank::new(seed, len()));
        (read.mode.filters == FilterMode::Use && bank.seed() == seed).then_some(bank)
    }

    /// Finds the tables that may hold the key and prefetches the first line of each of their
    /// filters, so that the cache misses overlap.
    ///
    /// With 100 M keys in three levels, a read of an absent key spent 42 % of its time waiting for
    /// one line after the other.
    #[inline]
    pub(crate) fn prefetch<'v>(&'v self, read: &PointRead<'_>) -> Candidates<'v> {
        let mut candidates = Candidates { bank: None, sorted: [None; LEVELS - 1] };
        if self.run_count() == 0 {
            return candidates;
        }
        candidates.bank = self.bank(read);
        self.prefetch_runs(0, candidates.bank, read);
        for (sorted, candidate) in self.sorted.iter().zip(&mut candidates.sorted) {
            let level = &self.levels[sorted.number];
            *candidate = level.candidate(read.key).map(|at| {
                let table = &level.tables[at];
                let first = candidates.bank.map(|bank| {
                    let filter = || table.opened_filter();
                    bank.prefetch(sorted.first_filter + at, read.hash, filter)
                });
                CandidateTable { table, first: first.unwrap_or_default() }
            });
        }
        candidates
    }

    /// Prefetches the first filter lines of the [`FilterBank::AT_ONCE`] runs from `start` on.
    #[inline]
    fn prefetch_runs(&self, start: usize, bank: Option<&FilterBank>, read: &PointRead<'_>) {
        let Some(bank) = bank else { return };
        for (i, table) in self.levels[0].tables.iter().enumerate().skip(start).take(FilterBank::AT_ONCE) {
            bank.prefetch(i, read.hash, || table.opened_filter());
        }
    }

    /// The newest version of a key that the read can see, tombstones included. Visits sources from
    /// new to old; the first hit ends the search.
    #[inline]
    pub(crate) fn get<'p>(
        &'p self,
        read: &PointRead<'p>,
        pin: &'p Pin<'_>,
        candidates: &Candidates<'p>,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<TableHit<'p>>> {
        let overlapping = &self.levels[0];
        for (i, tables) in overlapping.tables.chunks(FilterBank::AT_ONCE).enumerate() {
            let start = i * FilterBank::AT_ONCE;
            if start > 0 {
                self.prefetch_runs(start, candidates.bank, read);
            }
            let in_range = overlapping.in_range_from(start, read.key);
            let maybe = candidates.bank.map_or(u64::MAX, |bank| bank.ask(start..start + tables.len(), read.hash));
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
        for (&SortedLevel { number, .. }, candidate) in self.sorted.iter().zip(&candidates.sorted) {
            let Some(CandidateTable { table, first }) = candidate else {
                trace.enter(ReadSource::Level(number));
                trace.leave(Found::OutOfRange);
                continue;
            };
            trace.enter(ReadSource::Table { level: number, number: table.meta().number });
            // A table that usually holds the requested keys probes its filter itself.
            if !table.is_usually_found() && first.deny(read.hash) {
                table.deny(trace);
            } else if let Some(hit) = table.get(read, pin, trace)? {
                return Ok(Some(hit));
            }
        }
        Ok(None)
    }

    /// The most cursors that [`cursors`](Version::cursors) adds.
    pub(crate) fn run_count(&self) -> usize {
        self.levels[0].tables.len() + self.sorted.len()
    }

    /// Adds a cursor to `out` for each run: over all tables, or over those that may hold keys with
    /// the prefix of `probe`.
    pub(crate) fn cursors(self: &Arc<Self>, fill_cache: bool, probe: Option<&Arc<PrefixProbe>>, out: &mut Vec<Source>) {
        let overlapping = &self.levels[0];
        let each = (0..overlapping.tables.len()).map(|i| (overlapping, i..i + 1));
        let runs = each.chain(self.sorted().map(|level| (level, 0..level.tables.len())));
        for (Level { tables, .. }, run) in runs {
            let run = probe.map_or(run.clone(), |probe| probe.in_range(tables, run));
            if !run.is_empty() {
                let cursor = RunCursor::new(Arc::clone(tables), run, fill_cache);
                out.push(Source::Run(RunCursor { prefix: probe.cloned(), ..cursor }));
            }
        }
    }
}

/// A cursor over tables that are ordered by key and do not overlap. It opens one table at a time.
/// With a prefix, it skips tables whose filters deny the prefix.
pub(crate) struct RunCursor {
    /// Shared with the version. The cursor visits those in `run`.
    tables: Arc<[Arc<Table>]>,
    run: Range<usize>,
    fill_cache: bool,
    prefix: Option<Arc<PrefixProbe>>,
    /// Position in `tables` of the one that `cursor` reads.
    at: usize,
    /// Valid exactly when the `RunCursor` is.
    cursor: TableCursor,
    /// Whether `begin_seek` found a table, so that the seek has further parts.
    seeking: bool,
}

/// The direction in which a [`RunCursor`] opens its next table.
#[derive(Clone, Copy)]
enum TableDirection {
    Forward,
    Backward,
}

impl TableDirection {
    fn step_from(self, at: usize) -> Option<usize> {
        match self {
            TableDirection::Forward => at.checked_add(1),
            TableDirection::Backward => at.checked_sub(1),
        }
    }
}

impl RunCursor {
    /// A cursor over the non-empty range `run` of `tables`.
    fn new(tables: Arc<[Arc<Table>]>, run: Range<usize>, fill_cache: bool) -> RunCursor {
        let (at, cursor) = (run.start, tables[run.start].cursor(fill_cache));
        RunCursor { tables, run, fill_cache, prefix: None, at, cursor, seeking: false }
    }

    /// A cursor for compactions: its reads bypass the cache and the counters.
    pub(crate) fn for_compaction(tables: Arc<[Arc<Table>]>) -> RunCursor {
        let run = 0..tables.len();
        let cursor = RunCursor::new(tables, run, false);
        RunCursor { cursor: cursor.cursor.for_compaction(), ..cursor }
    }

    /// Positions the cursor in the first table, from `at` on in `direction`, that the prefix does
    /// not skip. Without such a table the cursor becomes invalid.
    fn open(
        &mut self,
        direction: TableDirection,
        mut at: Option<usize>,
        position: impl FnOnce(&mut TableCursor) -> Result<()>,
    ) -> Result<()> {
        self.invalidate();
        while let Some(i) = at.filter(|at| self.run.contains(at)) {
            if self.enter_table(i)? {
                return position(&mut self.cursor);
            }
            at = direction.step_from(i);
        }
        Ok(())
    }

    /// Moves to the table at position `i`. Returns false if the prefix skips that table.
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
        self.open(TableDirection::Forward, Some(self.at + 1), TableCursor::seek_to_first)
    }

    #[cold]
    fn previous_table(&mut self) -> Result<()> {
        self.open(TableDirection::Backward, self.at.checked_sub(1), TableCursor::seek_to_last)
    }
}

impl RunCursor {
    /// Continues a [`jump`](InternalCursor::jump) in another table. All entries of the current
    /// table are numbered `seen` or less.
    fn jump_over_old(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        let is_newer = |table: &Table| table.meta().largest_seqno > seen;
        let stops = |&i: &usize| {
            let (table, meta) = (&self.tables[i], self.tables[i].meta());
            let last = if forward { &meta.largest } else { &meta.smallest };
            is_newer(table) || !is_within(last, end, forward)
        };
        let (direction, at) = match forward {
            true => (TableDirection::Forward, (self.at..self.run.end).find(stops)),
            false => (TableDirection::Backward, (self.run.start..=self.at).rev().find(stops)),
        };
        let end = end.filter(|_| at.is_some_and(|at| !is_newer(&self.tables[at])));
        self.open(direction, at, |cursor| match (end, forward) {
            (None, true) => cursor.seek_to_first(),
            (None, false) => cursor.seek_to_last(),
            (Some(end), true) => cursor.seek(end, MAX_SEQNO),
            (Some(end), false) => {
                cursor.seek(end, MAX_SEQNO)?;
                if cursor.valid() { cursor.prev() } else { cursor.seek_to_last() }
            }
        })
    }
}

impl InternalCursor for RunCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.cursor.valid()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.open(TableDirection::Forward, Some(self.run.start), TableCursor::seek_to_first)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.open(TableDirection::Backward, self.run.end.checked_sub(1), TableCursor::seek_to_last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_seek(key)?;
        self.end_seek(key, seqno)
    }

    fn begin_seek(&mut self, key: &[u8]) -> Result<()> {
        let before = self.tables[self.run.clone()].partition_point(|table| compare(&table.meta().largest, key).is_lt());
        let at = self.run.start + before;
        let mut seeking = false;
        self.open(TableDirection::Forward, Some(at), |cursor| {
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
        // The key may be the table's largest, with all its versions newer than `seqno`.
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

    /// Seeks past tables without entries numbered above `seen`, and steps through the others.
    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        while self.valid() && self.seqno() <= seen && is_within(self.key(), end, forward) {
            if self.tables[self.at].meta().largest_seqno > seen {
                if forward { self.next()? } else { self.prev()? }
            } else {
                self.jump_over_old(end, seen, forward)?;
            }
        }
        Ok(())
    }

    fn counters(&self) -> Option<&ReadCounters> {
        self.cursor.counters()
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
