//! A [`Version`]: the tables of one keyspace, level by level, and look-ups across them.
//!
//! - A version never changes; flushes and compactions make a new one.
//! - Level 0 holds runs that may overlap, newest first. Their sequence numbers do not interleave.
//! - In every other level, tables are ordered by key and do not overlap. All versions of a user key
//!   in a level are in one table.
//! - Reads go from new to old: every version of a key in one source is newer than any version found
//!   only in later sources. During a compaction, a source may hold entries that a later one holds
//!   as well (see `compaction::stages`).

mod deleted;
mod draws;
mod garbage;
mod hidden;
mod multi_get;
mod run;
mod source;
#[cfg(test)]
mod tests;

use std::cmp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use deleted::Surveyed;
use deleted::deleted_stretches;
pub use garbage::ValueGarbage;
pub use multi_get::MultiGet;
pub use run::RunCursor;
pub use source::ScanSource;

use crate::error::Result;
use crate::filter::{FilterBank, FirstProbes};
use crate::format::deadline::Deadline;
use crate::format::key::{SeqNo, common_prefix_len, compare, equal, head8, strip};
use crate::format::span::KeySpan;
use crate::manifest::LEVEL_COUNT;
use crate::memory::epoch::Pin;
use crate::sorted::iter::{InternalCursor, Stamped};
use crate::sorted::memtable::Memtable;
use crate::sorted::merge::MergingCursor;
use crate::sorted::operator::Answer;
use crate::sorted::range_table::{RangeSet, RangeTable};
use crate::sorted::ranges::Covers;
use crate::sorted::table::FilterMode;
use crate::sorted::table::{PointRead, PrefixProbe, ReadFlags, Table, TableCursor, TableHit, TableMeta};
use crate::sorted::trace::{Found, ReadSource, ReadTrace, Untraced};
use crate::sorted::values::ValueFileMeta;
use crate::sync::{Mutex, OnceLock};

/// Number of levels; the last one is `LEVELS - 1`.
pub const LEVELS: usize = LEVEL_COUNT;

/// Metadata of the tables of a keyspace, level by level.
pub type LevelMetas<'a> = [Vec<&'a TableMeta>; LEVELS];

/// The tables of one keyspace at one moment.
#[derive(Default)]
pub struct Version {
    levels: [Level; LEVELS],
    /// Range deletes of flushed memtables.
    ranges: Arc<RangeSet>,
    /// The value files to which the tables point, by number.
    values: Arc<BTreeMap<u64, ValueFileMeta>>,
    /// The non-empty levels below level 0. Reads visit no others.
    sorted: Box<[SortedLevel]>,
    /// The filters of all tables, level by level. Built by the first read.
    bank: OnceLock<FilterBank>,
    /// The largest sequence number in the tables of this version and its predecessors, 0 without
    /// tables.
    largest_seqno: SeqNo,
    /// Whether an entry in the tables has a deadline.
    has_deadlines: bool,
    /// Value files that were being emptied before this version.
    begun: Arc<HashSet<u64>>,
    value_garbage: Mutex<Option<FoundGarbage>>,
    /// The last weights that a picker computed, with the oldest snapshot that they are for.
    weights: Mutex<(SeqNo, Arc<TombstoneWeights>)>,
    /// Shared by all versions of the keyspace.
    deleted: Arc<Mutex<Arc<DeletedBytes>>>,
    /// `deleted` has what the range deletes numbered up to this delete.
    surveyed: AtomicU64,
    /// Shared by all versions of the keyspace.
    hidden: Arc<Mutex<Arc<HiddenBytes>>>,
}

/// What [`Version::value_garbage`] found last.
struct FoundGarbage {
    /// How many value files were known to be unreadable. They only become more.
    unreadable: usize,
    usual: Arc<ValueGarbage>,
    /// In an idle store, if somebody asked.
    idle: Option<Arc<ValueGarbage>>,
    /// Whether a compaction has begun to empty files of `idle`.
    has_begun_idle: bool,
}

/// By table number: bytes of the table that hold entries which range deletes have deleted for all
/// snapshots, if any.
pub type DeletedBytes = HashMap<u64, u64>;

/// By table number: bytes of older tables, and of values to which these point, that the table hides
/// beyond its own size. Of tables without an entry it is not known.
pub type HiddenBytes = HashMap<u64, u64>;

/// By table number: bytes that the table's tombstones delete in lower levels, if any. The picker
/// computes them, once for each version and oldest snapshot: with 20,000 tables that takes
/// milliseconds.
pub type TombstoneWeights = OnceLock<BTreeMap<u64, u64>>;

/// A non-empty level below level 0, within reach of reads.
struct SortedLevel {
    number: usize,
    level: Level,
    /// Position in the bank of its first table's filter.
    first_filter: usize,
}

/// The tables that a read will visit, found before it reads any of them.
#[derive(Default)]
pub struct Candidates<'v> {
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
#[derive(Clone, Default)]
pub struct Level {
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
            tables.iter().map(|table| head8(strip(key(table.meta()), prefix).unwrap_or_default())).collect()
        };
        let (smallest, largest) = (heads(|meta| &meta.smallest), heads(|meta| &meta.largest));
        let intersection = (smallest.iter().max().copied(), largest.iter().min().copied());
        let intersection = (intersection.0.unwrap_or_default(), intersection.1.unwrap_or_default());
        Bounds { prefix: prefix.into(), smallest, largest, intersection }
    }

    /// The head of `key` after the prefix, or `None` if `key` lies in no range.
    #[inline]
    fn head(&self, key: &[u8]) -> Option<u64> {
        strip(key, &self.prefix).map(head8)
    }
}

impl SortedLevel {
    /// The levels below level 0 that have tables.
    fn all_of(levels: &[Level; LEVELS]) -> Box<[SortedLevel]> {
        let (mut sorted, mut filters) = (Vec::new(), 0);
        for (number, level) in levels.iter().enumerate() {
            if number > 0 && !level.tables.is_empty() {
                sorted.push(SortedLevel { number, level: level.clone(), first_filter: filters });
            }
            filters += level.tables.len();
        }
        sorted.into()
    }
}

impl Level {
    fn new(tables: Vec<Arc<Table>>) -> Level {
        Level { bounds: Arc::new(Bounds::of(&tables)), tables: tables.into() }
    }

    pub fn tables(&self) -> &[Arc<Table>] {
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

    /// Position of the first table of `run`, whose tables do not overlap, that ends at or after
    /// `key`, whose [head](Bounds::head) is `head`.
    #[inline(always)]
    fn first_ending_from(&self, run: Range<usize>, key: &[u8], head: u64) -> usize {
        let largest = &self.bounds.largest[..run.end];
        let mut at = run.start + largest[run.start..].partition_point(|&other| other < head);
        if largest.get(at) == Some(&head) {
            let ties = largest[at..].partition_point(|&other| other == head);
            at += self.tables[at..at + ties].partition_point(|table| compare(&table.meta().largest, key).is_lt());
        }
        at
    }

    /// Position of the table that may hold `key`, in a level without overlaps.
    #[inline(always)]
    fn candidate(&self, key: &[u8]) -> Option<usize> {
        let head = self.bounds.head(key)?;
        let at = self.first_ending_from(0..self.tables.len(), key, head);
        let table = self.tables.get(at)?;
        (self.bounds.smallest[at] < head || compare(&table.meta().smallest, key).is_le()).then_some(at)
    }

    /// The first table of `run`, whose tables do not overlap, that ends at or after `key`, and the
    /// order of the key beside the table's smallest; `Less` if there is no such table.
    #[inline]
    fn place(&self, run: Range<usize>, key: &[u8]) -> (usize, cmp::Ordering) {
        let Some(head) = self.bounds.head(key) else {
            let is_before = compare(key, &self.bounds.prefix).is_lt();
            return (if is_before { run.start } else { run.end }, cmp::Ordering::Less);
        };
        if self.bounds.intersection.0 < head && head < self.bounds.intersection.1 {
            return (run.start, cmp::Ordering::Greater);
        }
        let at = self.first_ending_from(run.clone(), key, head);
        if at == run.end {
            return (at, cmp::Ordering::Less);
        }
        // Equal heads do not order keys that are longer or differ in trailing zeros.
        let order = head.cmp(&self.bounds.smallest[at]);
        (at, order.then_with(|| compare(key, &self.tables[at].meta().smallest)))
    }
}

impl Version {
    /// A new version without the tables `removed` and with the tables `added`.
    pub fn edited(&self, removed: &[(u8, u64)], added: Vec<(u8, Arc<Table>)>) -> Version {
        let mut levels: [Vec<Arc<Table>>; LEVELS] = std::array::from_fn(|i| self.levels[i].tables.to_vec());
        if !removed.is_empty() {
            let removed: HashSet<&(u8, u64)> = removed.iter().collect();
            for (number, level) in (0..).zip(&mut levels) {
                level.retain(|table| !removed.contains(&(number, table.meta().number)));
            }
        }
        let mut surveyed = self.surveyed.load(Ordering::Acquire);
        let is_known = |meta: &TableMeta| meta.cleared >= surveyed || meta.smallest_seqno >= surveyed;
        if !added.iter().all(|(_, table)| is_known(table.meta())) {
            surveyed = 0;
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
        let levels = levels.map(Level::new);
        let sorted = SortedLevel::all_of(&levels);
        let has_deadlines = levels.iter().flat_map(Level::tables).any(|table| table.meta().deadlines.count > 0);
        let is_known = self.value_garbage.lock().is_some();
        let begun = if is_known { self.value_garbage(false).begun() } else { Arc::clone(&self.begun) };
        Version {
            levels,
            ranges: Arc::clone(&self.ranges),
            values: Arc::clone(&self.values),
            sorted,
            bank: OnceLock::new(),
            largest_seqno,
            has_deadlines,
            begun,
            value_garbage: Mutex::default(),
            weights: Mutex::default(),
            deleted: Arc::clone(&self.deleted),
            surveyed: AtomicU64::new(surveyed),
            hidden: Arc::clone(&self.hidden),
        }
    }

    /// This version with other range tables.
    pub fn with_ranges(self, tables: Vec<Arc<RangeTable>>) -> Version {
        let ranges = RangeSet::new(tables);
        let largest_seqno = self.largest_seqno.max(ranges.largest_seqno());
        Version { ranges: Arc::new(ranges), largest_seqno, ..self }
    }

    /// This version with further value files, and without those that are `dead`.
    pub fn with_values(mut self, added: &[ValueFileMeta], dead: &[u64]) -> Version {
        if !added.is_empty() || dead.iter().any(|number| self.values.contains_key(number)) {
            let mut values = BTreeMap::clone(&self.values);
            values.extend(added.iter().map(|file| (file.number, *file)));
            dead.iter().for_each(|number| _ = values.remove(number));
            self.values = Arc::new(values);
        }
        self
    }

    /// The value files to which the tables point, by number.
    pub fn values(&self) -> &BTreeMap<u64, ValueFileMeta> {
        &self.values
    }

    /// Which value files are emptied. In an idle store more may be; in this version also once that
    /// [has begun](Version::begin_emptying).
    pub fn value_garbage(&self, is_idle: bool) -> Arc<ValueGarbage> {
        self.find_value_garbage(is_idle, false)
    }

    /// [`value_garbage`](Version::value_garbage) for a compaction that empties value files, which
    /// begins.
    pub fn begin_emptying(&self) -> Arc<ValueGarbage> {
        self.find_value_garbage(true, true)
    }

    fn find_value_garbage(&self, is_idle: bool, begins: bool) -> Arc<ValueGarbage> {
        let Some((_, table)) = self.tables().next() else { return Arc::default() };
        let unreadable = table.unreadable_value_files();
        let metas = || self.tables().map(|(_, table)| table.meta());
        let find = |is_idle| {
            let is_unreadable = |number| table.is_unreadable(number);
            Arc::new(ValueGarbage::of(metas, &self.values, &self.begun, is_idle, is_unreadable))
        };
        let mut known = self.value_garbage.lock();
        let found = match known.take() {
            Some(known) if known.unreadable == unreadable => known,
            former => {
                let has_begun_idle = former.is_some_and(|former| former.has_begun_idle);
                FoundGarbage { unreadable, usual: find(false), idle: None, has_begun_idle }
            }
        };
        let found = known.insert(found);
        if !found.usual.leaving.is_empty() || !is_idle && !found.has_begun_idle {
            return Arc::clone(&found.usual);
        }
        found.has_begun_idle |= begins;
        Arc::clone(found.idle.get_or_insert_with(|| find(true)))
    }

    /// Tables all of whose keys a span has.
    pub fn tables_within<'a>(&'a self, span: &'a KeySpan<&[u8]>) -> impl Iterator<Item = &'a TableMeta> {
        let begins_within = |meta: &TableMeta| span.lower.is_none_or(|lower| *lower <= *meta.smallest);
        let within = move |meta: &&TableMeta| begins_within(meta) && meta.ends_before(span.upper);
        let (runs, sorted) = self.levels.split_at(1);
        let metas = |level: &'a Level| level.tables.iter().map(|table| table.meta());
        let runs = runs.iter().flat_map(metas).filter(within);
        let sorted = sorted.iter().flat_map(move |level| {
            let first = level.tables.partition_point(|table| !begins_within(table.meta()));
            metas(level).skip(first).take_while(within)
        });
        runs.chain(sorted)
    }

    /// The range deletes of flushed memtables.
    #[inline]
    pub fn ranges(&self) -> &Arc<RangeSet> {
        &self.ranges
    }

    pub fn levels(&self) -> &[Level; LEVELS] {
        &self.levels
    }

    /// The largest sequence number in any table since the store was opened, 0 without tables.
    pub fn largest_seqno(&self) -> SeqNo {
        self.largest_seqno
    }

    /// Whether an entry in the tables has a deadline.
    pub fn has_deadlines(&self) -> bool {
        self.has_deadlines
    }

    pub fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        self.levels.iter().enumerate().flat_map(|(i, level)| level.tables.iter().map(move |table| (i, table)))
    }

    /// Metadata of the tables, as the compaction picker takes it.
    pub fn metas(&self) -> LevelMetas<'_> {
        std::array::from_fn(|i| self.levels[i].tables.iter().map(|table| table.meta()).collect())
    }

    /// Where the picker keeps weights while `oldest_snapshot` is the oldest one.
    pub fn weights(&self, oldest_snapshot: SeqNo) -> Arc<TombstoneWeights> {
        // Snapshots newer than every table make no difference.
        let oldest_snapshot = oldest_snapshot.min(self.largest_seqno);
        let mut weights = self.weights.lock();
        if weights.0 != oldest_snapshot {
            *weights = (oldest_snapshot, Arc::default());
        }
        Arc::clone(&weights.1)
    }

    /// The number up to which range deletes count while `oldest_snapshot` is the oldest one.
    pub fn survey_limit(&self, oldest_snapshot: SeqNo) -> SeqNo {
        self.ranges.largest_seqno().min(oldest_snapshot)
    }

    /// Whether it is not known how much range deletes have deleted of the tables.
    pub fn is_survey_due(&self, oldest_snapshot: SeqNo) -> bool {
        !self.ranges.is_empty() && self.surveyed.load(Ordering::Acquire) < self.survey_limit(oldest_snapshot)
    }

    /// A survey is due once the oldest snapshot exceeds this number; `None` if all is surveyed.
    pub fn survey_waits_for(&self) -> Option<SeqNo> {
        let surveyed = self.surveyed.load(Ordering::Acquire);
        (!self.ranges.is_empty() && surveyed < self.ranges.largest_seqno()).then_some(surveyed)
    }

    /// Notes what range deletes numbered up to `limit` have deleted.
    pub fn set_deleted(&self, limit: SeqNo, deleted: DeletedBytes) {
        *self.deleted.lock() = Arc::new(deleted);
        *self.weights.lock() = Default::default();
        self.surveyed.store(limit, Ordering::Release);
    }

    /// What range deletes have deleted, as far as it is known.
    pub fn deleted(&self) -> Arc<DeletedBytes> {
        Arc::clone(&self.deleted.lock())
    }

    /// The non-empty levels below level 0, from newest to oldest.
    fn sorted(&self) -> impl Iterator<Item = &Level> {
        self.sorted.iter().map(|sorted| &sorted.level)
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
    /// With 100 M keys in three levels, a read of an absent key spent 42 % of its time waiting
    /// for one line after the other. Gain there: 0.35 to 0.60 µs instead of 0.90 to 1.42. To
    /// remove it, let `Version::get` search the levels for candidates itself.
    #[inline(always)]
    pub fn prefetch<'v>(&'v self, read: &PointRead<'_>, candidates: &mut Candidates<'v>) {
        candidates.bank = self.bank(read);
        if !self.levels[0].tables.is_empty() {
            self.prefetch_runs(0, candidates.bank, read);
        }
        for (SortedLevel { level, first_filter, .. }, candidate) in self.sorted.iter().zip(&mut candidates.sorted) {
            *candidate = level.candidate(read.key).map(|at| {
                let table = &level.tables[at];
                let first = candidates.bank.map(|bank| {
                    let filter = || table.opened_filter();
                    bank.prefetch(first_filter + at, read.hash, filter)
                });
                CandidateTable { table, first: first.unwrap_or_default() }
            });
        }
    }

    /// Prefetches the first filter lines of the [`FilterBank::AT_ONCE`] runs from `start` on.
    fn prefetch_runs(&self, start: usize, bank: Option<&FilterBank>, read: &PointRead<'_>) {
        let Some(bank) = bank else { return };
        let runs = self.levels[0].tables.get(start..).unwrap_or_default();
        for (i, table) in (start..).zip(runs.iter().take(FilterBank::AT_ONCE)) {
            bank.prefetch(i, read.hash, || table.opened_filter());
        }
    }

    /// The newest version of a key that the read can see, tombstones included. Visits sources from
    /// new to old; the first hit ends the search.
    #[inline(always)]
    pub fn get<'p>(
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
                } else if read.is_all_covered(table) {
                    trace.leave(Found::DeletedByRange);
                } else if maybe >> i & 1 == 0 {
                    table.deny(trace);
                } else {
                    let found = table.get(read, table.expects_hit(), pin, trace);
                    if !matches!(found, Ok(None)) {
                        return found;
                    }
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
            let expects_hit = table.expects_hit();
            if read.is_all_covered(table) {
                trace.leave(Found::DeletedByRange);
            } else if !expects_hit && first.deny(read.hash) {
                table.deny(trace);
            } else {
                let found = table.get(read, expects_hit, pin, trace);
                if !matches!(found, Ok(None)) {
                    return found;
                }
            }
        }
        Ok(None)
    }

    /// Whether a table holds a version of the key that is newer than `since`, whatever the read's
    /// snapshot. Tables without newer entries are not asked.
    pub fn is_newer(&self, read: &PointRead<'_>, since: SeqNo) -> Result<bool> {
        let mut is_newer = false;
        self.each_table(read, |tables, at| {
            if tables[at].meta().largest_seqno <= since || tables[at].probe(read, &mut Untraced)?.is_none() {
                return Ok(false);
            }
            let mut cursor = tables[at].cursor(true);
            cursor.seek(read.key, SeqNo::MAX)?;
            is_newer = cursor.valid() && equal(cursor.key(), read.key) && cursor.seqno() > since;
            Ok(is_newer)
        })?;
        Ok(is_newer)
    }

    /// Shows `answer` the versions of the key in the read's window, newest source first, until it
    /// is complete.
    pub fn collect(&self, read: &PointRead<'_>, answer: &mut Answer<'_>) -> Result<()> {
        self.each_table(read, |tables, at| {
            let table = &tables[at];
            if read.is_all_covered(table) || table.probe(read, &mut Untraced)?.is_none() {
                return Ok(false);
            }
            let mut cursor = table.cursor(read.mode.fill_cache);
            cursor.seek(read.key, read.window.newest)?;
            let is_seen = |cursor: &TableCursor| {
                cursor.valid() && equal(cursor.key(), read.key) && read.window.sees(cursor.seqno())
            };
            while is_seen(&cursor) && !answer.is_complete() {
                answer.see(cursor.seqno(), cursor.kind(), cursor.value())?;
                cursor.next()?;
            }
            Ok(answer.is_complete())
        })
    }

    /// Calls `visit` with each table whose range holds the read's key, newest source first, until
    /// it returns true.
    fn each_table(
        &self,
        read: &PointRead<'_>,
        mut visit: impl FnMut(&Arc<[Arc<Table>]>, usize) -> Result<bool>,
    ) -> Result<()> {
        let spans =
            |meta: &TableMeta| compare(&meta.smallest, read.key).is_le() && compare(read.key, &meta.largest).is_le();
        let overlapping = &self.levels[0];
        let runs = (0..overlapping.tables.len()).map(|at| (overlapping, at));
        let runs = runs.filter(|(level, at)| spans(level.tables[*at].meta()));
        let sorted = self.sorted().filter_map(|level| Some((level, level.candidate(read.key)?)));
        for (level, at) in runs.chain(sorted) {
            if visit(&level.tables, at)? {
                break;
            }
        }
        Ok(())
    }

    /// A cursor over the tables that may hold entries of `span` newer than `since`.
    pub fn cursor_newer(&self, since: SeqNo, span: &KeySpan<Vec<u8>>) -> MergingCursor<ScanSource> {
        MergingCursor::new(self.runs_newer(since, span).collect()).with_limits(span.borrowed())
    }

    /// A cursor for each table that may hold entries of `span` newer than `since`.
    fn runs_newer(&self, since: SeqNo, span: &KeySpan<Vec<u8>>) -> impl Iterator<Item = ScanSource> {
        let is_asked =
            move |meta: &TableMeta| meta.largest_seqno > since && span.overlaps(&meta.smallest, &meta.largest);
        let mode = ReadFlags { filters: FilterMode::Use, fill_cache: true, values: false };
        self.levels.iter().flat_map(move |level| {
            let asked = (0..level.tables.len()).filter(move |&at| is_asked(level.tables[at].meta()));
            asked.map(move |at| ScanSource::Run(RunCursor::new(level.clone(), at..at + 1, mode)))
        })
    }

    /// About how many bytes of the tables are in `span`, and how many keys they have there. A
    /// deleted key counts as −1, and what has expired at `now`, or is in a deleted range, not at
    /// all. Reads no data block.
    pub fn estimate(&self, span: KeySpan<&[u8]>, now: Deadline, covers: Option<&Covers>) -> Result<(f64, f64)> {
        let (mut bytes, mut keys) = (0.0, 0.0);
        for (number, level) in self.levels.iter().enumerate() {
            let is_before = |table: &Arc<Table>| span.lower.is_some_and(|lower| *table.meta().largest < *lower);
            let start = if number == 0 { 0 } else { level.tables.partition_point(is_before) };
            for table in &level.tables[start..] {
                let meta = table.meta();
                if meta.overlaps(&span) {
                    let mut share = table.share(span)?;
                    bytes += share * meta.total_size() as f64;
                    for deleted in covers.iter().flat_map(|covers| deleted_stretches(meta, covers)) {
                        let to = [deleted.to.as_deref(), span.upper].into_iter().flatten().min();
                        let from = span.lower.unwrap_or_default().max(&deleted.from);
                        share -= table.share(KeySpan { lower: Some(from), upper: to })?;
                    }
                    let expired = meta.deadlines.expired(meta.entries, now) as f64;
                    keys += share * (meta.keys as f64 - 2.0 * meta.tombstones as f64 - expired);
                } else if number > 0 {
                    break;
                }
            }
        }
        Ok((bytes, keys))
    }

    /// The number of runs.
    pub fn run_count(&self) -> usize {
        self.levels[0].tables.len() + self.sorted.len()
    }

    /// A cursor over what `memtables` have of a keyspace, and all runs; with a probe, over the
    /// tables that may hold keys with its prefix. Sources are in the order in which reads visit
    /// them, which is that of [`MergingCursor::source`].
    pub fn cursor<'m>(
        &self,
        keyspace: u32,
        memtables: impl Iterator<Item = &'m Arc<Memtable>> + Clone,
        mode: ReadFlags,
        probe: Option<&Arc<PrefixProbe>>,
    ) -> MergingCursor<ScanSource> {
        let mut sources = Vec::with_capacity(memtables.clone().count() + self.run_count());
        sources.extend(memtables.map(|memtable| ScanSource::Memtable(memtable.cursor(keyspace))));
        self.add_runs(mode, probe, &mut sources);
        MergingCursor::new(sources)
    }

    /// Adds a cursor to `out` for each run.
    fn add_runs(&self, mode: ReadFlags, probe: Option<&Arc<PrefixProbe>>, out: &mut Vec<ScanSource>) {
        let overlapping = &self.levels[0];
        let each = (0..overlapping.tables.len()).map(|i| (overlapping, i..i + 1));
        let runs = each.chain(self.sorted().map(|level| (level, 0..level.tables.len())));
        for (level, run) in runs {
            let run = probe.map_or(run.clone(), |probe| probe.in_range(&level.tables, run));
            if !run.is_empty() {
                let cursor = RunCursor::new(level.clone(), run, mode);
                out.push(ScanSource::Run(cursor.with_prefix(probe)));
            }
        }
    }
}
