//! A [`Version`]: which tables make up one keyspace, level by level, and look-up across them.
//!
//! A version never changes; flushes and compactions make a new one. Level 0 holds runs that may overlap, newest first: their
//! sequence numbers do not interleave. In every level below, tables are ordered by key and do not overlap, and all versions of a
//! user key in a level are in one table. For one user key, what a level holds is newer than what the levels below it hold.

use std::sync::Arc;

use crate::error::Result;
use crate::explain::{Found, ReadSource, ReadTrace};
use crate::format::key::{SeqNo, ValueKind};
use crate::iter::InternalCursor;
use crate::manifest::LEVEL_COUNT;
use crate::memtable::MemtableCursor;
use crate::table::{PointRead, PrefixProbe, Table, TableCursor, TableHit, TableMeta};

/// Number of levels; the last one is `LEVELS - 1`.
pub(crate) const LEVELS: usize = LEVEL_COUNT;

/// The tables of one keyspace at one moment.
#[derive(Clone, Default)]
pub(crate) struct Version {
    levels: [Level; LEVELS],
}

/// The tables of one level.
#[derive(Clone, Default)]
pub(crate) struct Level {
    /// Shared with the cursors over the level.
    tables: Arc<[Arc<Table>]>,
}

impl Level {
    pub(crate) fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// The table that may hold `key`, in a level whose tables do not overlap.
    fn candidate(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let at = self.tables.partition_point(|table| *table.meta().largest < *key);
        self.tables.get(at).filter(|table| *table.meta().smallest <= *key)
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
        Version { levels: levels.map(|tables| Level { tables: tables.into() }) }
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

    /// The newest version of a key that the read can see, a tombstone included. Newest sources first; the first answer ends the
    /// search.
    pub(crate) fn get(&self, read: &PointRead<'_>, trace: &mut impl ReadTrace) -> Result<Option<TableHit>> {
        for table in self.levels[0].tables.iter() {
            let meta = table.meta();
            trace.enter(ReadSource::Table { level: 0, number: meta.number });
            if *read.key < *meta.smallest || *meta.largest < *read.key {
                trace.leave(Found::OutOfRange);
            } else if let Some(hit) = table.get(read, trace)? {
                return Ok(Some(hit));
            }
        }
        for (number, level) in self.levels.iter().enumerate().skip(1) {
            if let Some(table) = level.candidate(read.key) {
                trace.enter(ReadSource::Table { level: number, number: table.meta().number });
                if let Some(hit) = table.get(read, trace)? {
                    return Ok(Some(hit));
                }
            } else if !level.tables.is_empty() {
                trace.enter(ReadSource::Level(number));
                trace.leave(Found::OutOfRange);
            }
        }
        Ok(None)
    }

    /// Cursors to be merged: over all tables, or over those that may hold keys with the prefix of `probe`.
    pub(crate) fn cursors(self: &Arc<Self>, fill_cache: bool, probe: Option<&Arc<PrefixProbe>>, out: &mut Vec<Source>) {
        if let Some(probe) = probe {
            out.extend(self.runs_with(probe).map(|tables| Source::Run(RunCursor::probing(tables, fill_cache, probe))));
            return;
        }
        out.extend(self.levels[0].tables.iter().map(|table| Source::Table(table.cursor(fill_cache))));
        for level in &self.levels[1..] {
            match &*level.tables {
                [] => {}
                [table] => out.push(Source::Table(table.cursor(fill_cache))),
                _ => out.push(Source::Run(RunCursor::new(Arc::clone(&level.tables), fill_cache))),
            }
        }
    }
}

impl Version {
    /// The tables whose ranges have room for the prefix of `probe`, in runs.
    fn runs_with(&self, probe: &PrefixProbe) -> impl Iterator<Item = Arc<[Arc<Table>]>> {
        let [overlapping, sorted @ ..] = &self.levels;
        let runs = overlapping.tables.chunks(1).chain(sorted.iter().map(|level| &*level.tables));
        let in_range = |tables: &[Arc<Table>]| -> Arc<[Arc<Table>]> {
            tables.iter().filter(|table| probe.is_in_range(table.meta())).cloned().collect()
        };
        runs.map(in_range).filter(|tables| !tables.is_empty())
    }
}

/// A cursor over tables that are ordered by key and do not overlap. It opens one table at a time. With a prefix, it passes over the
/// tables whose filters deny it; each is asked once, when it would be opened.
pub(crate) struct RunCursor {
    tables: Arc<[Arc<Table>]>,
    fill_cache: bool,
    /// Whether reads are counted.
    counted: bool,
    prefix: Option<PrefixAnswers>,
    /// Position in `tables` of the one under `cursor`.
    at: usize,
    cursor: Option<TableCursor>,
}

/// What the tables of a run say of a prefix.
struct PrefixAnswers {
    probe: Arc<PrefixProbe>,
    /// By position; `None` as long as the table was not asked.
    answers: Vec<Option<bool>>,
}

impl PrefixAnswers {
    /// Whether the table at `at` may hold keys with the prefix.
    fn allow(&mut self, at: usize, table: &Arc<Table>) -> Result<bool> {
        if let Some(Some(answer)) = self.answers.get(at) {
            return Ok(*answer);
        }
        let answer = table.may_hold_prefix(&self.probe)?;
        if let Some(place) = self.answers.get_mut(at) {
            *place = Some(answer);
        }
        Ok(answer)
    }
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
    pub(crate) fn new(tables: Arc<[Arc<Table>]>, fill_cache: bool) -> RunCursor {
        RunCursor { tables, fill_cache, counted: true, prefix: None, at: 0, cursor: None }
    }

    /// A cursor over those of the tables that may hold keys with a prefix.
    fn probing(tables: Arc<[Arc<Table>]>, fill_cache: bool, probe: &Arc<PrefixProbe>) -> RunCursor {
        let prefix = PrefixAnswers { probe: Arc::clone(probe), answers: vec![None; tables.len()] };
        RunCursor { prefix: Some(prefix), ..RunCursor::new(tables, fill_cache) }
    }

    /// A cursor for compaction, whose reads are no reader's: they stay out of the cache and of the counters.
    pub(crate) fn for_compaction(tables: Arc<[Arc<Table>]>) -> RunCursor {
        RunCursor { counted: false, ..RunCursor::new(tables, false) }
    }

    /// Opens the first table from `at` on in a direction that is not to be passed over, if there is one, and positions its cursor.
    fn open(
        &mut self,
        direction: Direction,
        mut at: Option<usize>,
        position: impl FnOnce(&mut TableCursor) -> Result<()>,
    ) -> Result<()> {
        self.cursor = None;
        while let Some((i, table)) = at.and_then(|at| Some((at, self.tables.get(at)?))) {
            if let Some(prefix) = &mut self.prefix
                && !prefix.allow(i, table)?
            {
                at = direction.from(i);
                continue;
            }
            let cursor = table.cursor(self.fill_cache);
            let mut cursor = if self.counted { cursor } else { cursor.uncounted() };
            position(&mut cursor)?;
            self.at = i;
            self.cursor = Some(cursor);
            break;
        }
        Ok(())
    }

    fn step(&mut self, step: impl FnOnce(&mut TableCursor) -> Result<()>) -> Result<bool> {
        let Some(cursor) = &mut self.cursor else { return Ok(true) };
        step(cursor).inspect_err(|_| self.cursor = None)?;
        Ok(self.valid())
    }

    #[expect(clippy::expect_used, reason = "accessors may be called only while the cursor is valid")]
    fn current(&self) -> &TableCursor {
        self.cursor.as_ref().expect("the cursor is valid")
    }
}

impl InternalCursor for RunCursor {
    fn valid(&self) -> bool {
        self.cursor.as_ref().is_some_and(TableCursor::valid)
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.open(Direction::Forward, Some(0), TableCursor::seek_to_first)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.open(Direction::Backward, self.tables.len().checked_sub(1), TableCursor::seek_to_last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        let at = self.tables.partition_point(|table| *table.meta().largest < *key);
        self.open(Direction::Forward, Some(at), |cursor| cursor.seek(key, seqno))?;
        // The key may be the table's largest and all its versions newer than `seqno`.
        if self.cursor.is_some() && !self.valid() {
            self.open(Direction::Forward, Some(self.at + 1), TableCursor::seek_to_first)?;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        if !self.step(TableCursor::next)? {
            self.open(Direction::Forward, Some(self.at + 1), TableCursor::seek_to_first)?;
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if !self.step(TableCursor::prev)? {
            self.open(Direction::Backward, self.at.checked_sub(1), TableCursor::seek_to_last)?;
        }
        Ok(())
    }

    fn key(&self) -> &[u8] {
        self.current().key()
    }

    fn seqno(&self) -> SeqNo {
        self.current().seqno()
    }

    fn kind(&self) -> ValueKind {
        self.current().kind()
    }

    fn value(&self) -> &[u8] {
        self.current().value()
    }
}

/// One source of a merge. An enum, so that a step costs a branch and not a virtual call.
pub(crate) enum Source {
    Memtable(MemtableCursor),
    Table(TableCursor),
    Run(RunCursor),
}

/// Calls the same method on whichever cursor it is.
macro_rules! dispatch {
    ($self:ident, $cursor:ident => $call:expr) => {
        match $self {
            Source::Memtable($cursor) => $call,
            Source::Table($cursor) => $call,
            Source::Run($cursor) => $call,
        }
    };
}

impl InternalCursor for Source {
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

    fn next(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.next())
    }

    fn prev(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.prev())
    }

    fn key(&self) -> &[u8] {
        dispatch!(self, cursor => cursor.key())
    }

    fn seqno(&self) -> SeqNo {
        dispatch!(self, cursor => cursor.seqno())
    }

    fn kind(&self) -> ValueKind {
        dispatch!(self, cursor => cursor.kind())
    }

    fn value(&self) -> &[u8] {
        dispatch!(self, cursor => cursor.value())
    }
}
