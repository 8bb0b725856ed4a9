//! [`RunCursor`]: a cursor over one sorted run.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::Level;
use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind};
use crate::report::stats::ReadCounters;
use crate::sorted::iter::{Direction, InternalCursor, KeyBound, MergeCursor, SkippedRun, Stamped, is_within};
use crate::sorted::scan_trace::ScanTrace;
use crate::sorted::table::{PrefixProbe, ReadFlags, Table, TableCursor};

/// A cursor over tables that are ordered by key and do not overlap. It opens one table at a time.
/// Unless a seek's key is in the table's range, it defers that: the range bounds the key of the
/// table's first entry in the direction of travel. If the key is in the range, the table's range
/// filter may defer the seek. With a prefix, it skips tables whose filters deny the prefix.
pub struct RunCursor {
    /// Shared with the version. The cursor visits the tables in `run`.
    pub(super) level: Level,
    pub(super) run: Range<usize>,
    prefix: Option<Arc<PrefixProbe>>,
    /// Position in `level` of the table that has the next entry.
    at: usize,
    /// Valid exactly when the `RunCursor` is.
    cursor: TableCursor,
    /// Whether `begin_seek` found a table, so that the seek has further parts.
    seeking: bool,
    /// Whether the table at `at` is to be entered at its first entry in this direction.
    deferred: Option<Direction>,
}

impl RunCursor {
    /// A cursor over the non-empty range `run` of the tables of `level`.
    pub(super) fn new(level: Level, run: Range<usize>, mode: ReadFlags) -> RunCursor {
        let at = run.start;
        let cursor = level.tables[at].scan_cursor(mode);
        RunCursor { level, run, prefix: None, at, cursor, seeking: false, deferred: None }
    }

    /// Skips tables whose filters deny the prefix of `probe`.
    pub(super) fn with_prefix(self, probe: Option<&Arc<PrefixProbe>>) -> RunCursor {
        RunCursor { prefix: probe.cloned(), ..self }
    }

    /// A cursor over `tables` for compactions: its reads bypass the cache and the counters.
    pub fn for_compaction(tables: Vec<Arc<Table>>) -> RunCursor {
        let run = 0..tables.len();
        let cursor = RunCursor::new(Level::new(tables), run, ReadFlags::UNFILTERED);
        RunCursor { cursor: cursor.cursor.for_compaction(), ..cursor }
    }

    /// Defers the entry into the table at position `at`, if the run has it.
    fn defer(&mut self, direction: Direction, at: Option<usize>) {
        self.invalidate();
        if let Some(at) = at.filter(|at| self.run.contains(at)) {
            (self.at, self.deferred) = (at, Some(direction));
        }
    }

    /// Moves to the table at position `i`, where the cursor is not valid yet. Returns false if the
    /// prefix skips that table.
    fn enter_table(&mut self, i: usize) -> Result<bool> {
        self.invalidate();
        self.at = i;
        let table = &self.level.tables[i];
        self.cursor.trace_table(table)?;
        match &self.prefix {
            Some(probe) => self.cursor.enter_table_for(table, probe),
            None => {
                self.cursor.enter_table(table);
                Ok(true)
            }
        }
    }

    fn invalidate(&mut self) {
        (self.seeking, self.deferred) = (false, None);
        self.cursor.invalidate();
    }

    /// If the table has no further entry in a direction, goes on to the next.
    #[inline]
    fn leave_at_end(&mut self, direction: Direction) {
        if !self.valid() {
            self.leave_unless_deferred(direction);
        }
    }

    #[cold]
    fn leave_unless_deferred(&mut self, direction: Direction) {
        if self.cursor.deferred().is_none() {
            self.defer(direction, direction.step_from(self.at));
        }
    }

    /// Moves past all entries before `end` in tables, from `start` on, that have none numbered
    /// above `seen`. Returns whether it has come to `end`; otherwise the next table has newer
    /// entries, or there is none.
    fn jump_over_old(&mut self, start: usize, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<bool> {
        let is_newer = |table: &Table| table.meta().largest_seqno > seen;
        let stops = |&i: &usize| {
            let (table, meta) = (&self.level.tables[i], self.level.tables[i].meta());
            let last = if forward { &meta.largest } else { &meta.smallest };
            is_newer(table) || !is_within(last, end, forward)
        };
        let at = match forward {
            true => (start..self.run.end).find(stops),
            false => (self.run.start..=start).rev().find(stops),
        };
        match (end, at) {
            (Some(end), Some(at)) if !is_newer(&self.level.tables[at]) => {
                self.begin_seek(end, SeqNo::MAX, forward)?;
                self.end_seek(end, SeqNo::MAX, forward)?;
                Ok(true)
            }
            _ => {
                self.defer(Direction::new(forward), at);
                Ok(false)
            }
        }
    }
}

/// Where it has deferred its next entry, it is not valid: it is made to be moved by a merge.
impl InternalCursor for RunCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.cursor.valid()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.defer(Direction::Backward, self.run.end.checked_sub(1));
        Ok(())
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_seek(key, seqno, true)?;
        self.end_seek(key, seqno, true)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.cursor.next()?;
        self.leave_at_end(Direction::Forward);
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.cursor.prev()?;
        self.leave_at_end(Direction::Backward);
        Ok(())
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
        self.defer(Direction::Forward, Some(self.run.start));
        Ok(())
    }

    fn begin_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        let direction = Direction::new(forward);
        let (at, order) = self.level.place(self.run.clone(), key);
        // Backward, no version of the key comes before the target if that is the newest.
        if order.is_lt() || order.is_eq() && !forward && seqno == SeqNo::MAX {
            // The target is between two tables.
            self.defer(direction, if forward { Some(at) } else { at.checked_sub(1) });
        } else if self.enter_table(at)? {
            self.cursor.begin_seek(key, seqno, forward)?;
            self.seeking = true;
        } else {
            self.defer(direction, direction.step_from(at));
        }
        Ok(())
    }

    fn continue_seek(&mut self, key: &[u8]) -> Result<bool> {
        if self.seeking { self.cursor.continue_seek(key) } else { Ok(false) }
    }

    fn end_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        if !std::mem::take(&mut self.seeking) {
            return Ok(());
        }
        self.cursor.end_seek(key, seqno, forward)?;
        // The key may be the table's largest, with all its versions newer than `seqno`.
        self.leave_at_end(Direction::new(forward));
        Ok(())
    }

    fn let_steps_defer(&mut self) {
        self.cursor.let_steps_defer();
    }

    fn deferred(&self) -> Option<KeyBound<'_>> {
        let Some(direction) = self.deferred else { return self.cursor.deferred() };
        let meta = self.level.tables[self.at].meta();
        Some(KeyBound::of(if direction.is_forward() { &meta.smallest } else { &meta.largest }))
    }

    fn resume(&mut self) -> Result<()> {
        let direction = match (self.deferred.take(), self.cursor.deferral()) {
            (Some(direction), _) => direction,
            (None, None) => return Ok(()),
            (None, Some(direction)) => {
                self.cursor.resume()?;
                self.leave_at_end(direction);
                return Ok(());
            }
        };
        if !self.enter_table(self.at)? {
            self.defer(direction, direction.step_from(self.at));
            return Ok(());
        }
        match direction {
            Direction::Forward => self.cursor.seek_to_first(),
            Direction::Backward => self.cursor.seek_to_last(),
        }
    }

    /// Passes tables without entries numbered above `seen`, and steps through the others.
    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        loop {
            let next = if self.valid() { Some(KeyBound::of(self.key())) } else { self.deferred() };
            if !next.is_some_and(|next| next.is_within(end, forward)) {
                return Ok(());
            }
            if self.level.tables[self.at].meta().largest_seqno <= seen {
                if self.jump_over_old(self.at, end, seen, forward)? {
                    return Ok(());
                }
            } else if !self.valid() {
                self.resume()?;
            } else if self.seqno() > seen {
                return Ok(());
            } else if forward {
                self.next()?;
            } else {
                self.prev()?;
            }
        }
    }

    fn skip(&mut self, from: Option<&[u8]>, skipped: &SkippedRun<'_>, forward: bool) -> Result<bool> {
        let start = match (from, forward) {
            (None, true) => Some(self.run.start),
            (None, false) => self.run.end.checked_sub(1),
            (Some(from), true) => Some(self.level.place(self.run.clone(), from).0),
            (Some(from), false) => match self.level.place(self.run.clone(), from) {
                (at, Ordering::Greater) => Some(at),
                (at, _) => at.checked_sub(1),
            },
        };
        let start = start.filter(|start| self.run.contains(start));
        let Some((start, meta)) = start.map(|start| (start, self.level.tables[start].meta())) else {
            return Ok(false);
        };
        let first = if forward { &meta.smallest } else { &meta.largest };
        if meta.largest_seqno > skipped.seen || !skipped.has_begun(first, forward) {
            return Ok(false);
        }
        self.jump_over_old(start, skipped.end, skipped.seen, forward)?;
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

    fn set_trace(&mut self, trace: &Arc<ScanTrace>) {
        self.cursor.set_trace(trace);
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
