//! [`RunCursor`]: a cursor over one sorted run.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, compare};
use crate::report::stats::ReadCounters;
use crate::sorted::iter::{InternalCursor, MergeCursor, SkippedRun, Stamped, is_within};
use crate::sorted::table::{PrefixProbe, Table, TableCursor};

/// A cursor over tables that are ordered by key and do not overlap. It opens one table at a time.
/// With a prefix, it skips tables whose filters deny the prefix.
pub struct RunCursor {
    /// Shared with the version. The cursor visits those in `run`.
    pub(super) tables: Arc<[Arc<Table>]>,
    pub(super) run: Range<usize>,
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
    pub(super) fn new(tables: Arc<[Arc<Table>]>, run: Range<usize>, fill_cache: bool) -> RunCursor {
        let (at, cursor) = (run.start, tables[run.start].cursor(fill_cache));
        RunCursor { tables, run, fill_cache, prefix: None, at, cursor, seeking: false }
    }

    /// Skips tables whose filters deny the prefix of `probe`.
    pub(super) fn with_prefix(self, probe: Option<&Arc<PrefixProbe>>) -> RunCursor {
        RunCursor { prefix: probe.cloned(), ..self }
    }

    /// A cursor for compactions: its reads bypass the cache and the counters.
    pub fn for_compaction(tables: Arc<[Arc<Table>]>) -> RunCursor {
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
    /// Continues a [`jump`](MergeCursor::jump) in another table, from `start` on. All entries of
    /// that one are numbered `seen` or less.
    fn jump_over_old(&mut self, start: usize, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        let is_newer = |table: &Table| table.meta().largest_seqno > seen;
        let stops = |&i: &usize| {
            let (table, meta) = (&self.tables[i], self.tables[i].meta());
            let last = if forward { &meta.largest } else { &meta.smallest };
            is_newer(table) || !is_within(last, end, forward)
        };
        let (direction, at) = match forward {
            true => (TableDirection::Forward, (start..self.run.end).find(stops)),
            false => (TableDirection::Backward, (self.run.start..=start).rev().find(stops)),
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

    fn seek_to_last(&mut self) -> Result<()> {
        self.open(TableDirection::Backward, self.run.end.checked_sub(1), TableCursor::seek_to_last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_seek(key)?;
        self.end_seek(key, seqno)
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
    fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    #[inline(always)]
    fn stamp(&self) -> (SeqNo, ValueKind) {
        self.cursor.stamp()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.cursor.value()
    }
}

impl MergeCursor for RunCursor {
    fn seek_to_first(&mut self) -> Result<()> {
        self.open(TableDirection::Forward, Some(self.run.start), TableCursor::seek_to_first)
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

    /// Seeks past tables without entries numbered above `seen`, and steps through the others.
    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        while self.valid() && self.seqno() <= seen && is_within(self.key(), end, forward) {
            if self.tables[self.at].meta().largest_seqno > seen {
                if forward { self.next()? } else { self.prev()? }
            } else {
                self.jump_over_old(self.at, end, seen, forward)?;
            }
        }
        Ok(())
    }

    fn skip(&mut self, from: Option<&[u8]>, skipped: &SkippedRun<'_>, forward: bool) -> Result<bool> {
        let tables = &self.tables[self.run.clone()];
        let start = match (from, forward) {
            (None, true) => Some(0),
            (None, false) => tables.len().checked_sub(1),
            (Some(from), true) => Some(tables.partition_point(|table| compare(&table.meta().largest, from).is_lt())),
            (Some(from), false) => {
                tables.partition_point(|table| compare(&table.meta().smallest, from).is_lt()).checked_sub(1)
            }
        };
        let Some((start, meta)) = start.and_then(|start| Some((start, tables.get(start)?.meta()))) else {
            return Ok(false);
        };
        let first = if forward { &meta.smallest } else { &meta.largest };
        if meta.largest_seqno > skipped.seen || !skipped.has_begun(first, forward) {
            return Ok(false);
        }
        self.jump_over_old(self.run.start + start, skipped.end, skipped.seen, forward)?;
        Ok(true)
    }

    #[inline]
    fn note_position(&mut self) {
        self.cursor.note_position();
    }

    #[inline]
    fn note_taken(&mut self) {
        self.cursor.note_taken();
    }

    fn counters(&self) -> Option<&ReadCounters> {
        self.cursor.counters()
    }

    #[inline]
    fn fast_steps(&self, snapshot: SeqNo, bound: u128, forward: bool) -> usize {
        self.cursor.fast_steps(snapshot, bound, forward)
    }

    #[inline]
    fn fast_step(&mut self, forward: bool) -> bool {
        self.cursor.fast_step(forward)
    }

    fn end_fast_steps(&mut self) -> Result<()> {
        self.cursor.end_fast_steps()
    }

    #[inline]
    fn is_first_of_key(&self) -> bool {
        self.cursor.is_first_of_key()
    }

    #[inline]
    fn head(&self) -> u128 {
        self.cursor.head()
    }
}
