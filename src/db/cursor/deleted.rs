//! How a [`Cursor`] passes what range deletes delete.

use super::{Cursor, HiddenKeys, MIN_REACH, Passing, SEEK_AFTER};
use crate::error::Result;
use crate::format::key::{SeqNo, head16};
use crate::sorted::iter::{InternalCursor, MergeCursor, SkippedRun, Stamped, is_within};

/// Most range deletes that a jump passes.
const MAX_REACH: usize = 1024;

impl Cursor {
    /// The number of the range delete that deletes older versions of the current key; 0 if there is
    /// none.
    #[inline]
    pub(super) fn cover(&mut self) -> SeqNo {
        if self.covers.is_some() { self.find_cover() } else { 0 }
    }

    fn find_cover(&mut self) -> SeqNo {
        let (Some(covers), key) = (&self.covers, self.inner.key()) else { return 0 };
        match &self.stretch {
            Some(stretch) if stretch.holds(key) => stretch.cover(),
            _ => self.stretch.insert(covers.stretch(key)).cover(),
        }
    }

    /// Whether a range delete deletes the current entry.
    #[inline]
    pub(super) fn is_deleted(&mut self) -> bool {
        self.covers.is_some() && self.inner.seqno() < self.find_cover()
    }

    /// Moves to the first entry from `from` on, if a range delete deletes the keys there or further
    /// on: sources with nothing else to show first are moved past it unread. Going backward, `from`
    /// is exclusive. Returns false if it has not moved.
    #[inline]
    pub(super) fn skip_deleted(&mut self, from: Option<&[u8]>, end: Option<&[u8]>, forward: bool) -> Result<bool> {
        if self.covers.is_some() { self.skip_run(from, end, forward) } else { Ok(false) }
    }

    #[cold]
    fn skip_run(&mut self, from: Option<&[u8]>, end: Option<&[u8]>, forward: bool) -> Result<bool> {
        let Some(covers) = &self.covers else { return Ok(false) };
        let stretch = match (from, forward) {
            (None, false) => covers.last_stretch(),
            (from, true) => covers.stretch(from.unwrap_or_default()),
            (Some(from), false) => covers.stretch_before(from),
        };
        // Sources without an entry in front of a deleted run need not be read for it either.
        let (begin, first) = match stretch.cover() {
            0 => {
                match if forward { stretch.to.as_deref() } else { Some(&*stretch.from).filter(|from| !from.is_empty()) }
                {
                    Some(begin) if is_within(begin, end, forward) => {
                        (Some(begin), if forward { covers.stretch(begin) } else { covers.stretch_before(begin) })
                    }
                    _ => return Ok(false),
                }
            }
            _ => (None, stretch.clone()),
        };
        if first.cover() == 0 {
            return Ok(false);
        }
        let run = covers.covered_run(&first, end, forward, MIN_REACH);
        self.settled = self.settled.max(run.newest);
        let skipped = SkippedRun { begin, end: run.end.as_deref(), seen: first.cover() - 1 };
        self.inner.seek_over(from, &skipped, forward)?;
        self.stretch = Some(stretch);
        Ok(true)
    }

    /// Plans fast steps after an entry that is visible: up to the next range delete.
    #[inline]
    pub(super) fn plan_fast_steps(&mut self, forward: bool) {
        let limit = match &self.stretch {
            None => None,
            Some(stretch) if stretch.cover() > 0 => return,
            Some(stretch) if forward => stretch.to.as_deref(),
            Some(stretch) => Some(&*stretch.from),
        };
        self.inner.plan_fast_steps(self.snapshot, limit.map(head16));
    }

    /// Passes the current entry, which a range delete deletes. After a few of them, jumps to the
    /// end of all ranges that follow each other without a gap.
    #[cold]
    pub(super) fn pass_deleted(
        &mut self,
        hidden: &mut HiddenKeys,
        passed: &mut u32,
        forward: bool,
        end: Option<&[u8]>,
    ) -> Result<Passing> {
        let (Some(covers), Some(stretch)) = (&self.covers, &self.stretch) else { return Ok(Passing::Step) };
        hidden.newest = hidden.newest.max(stretch.cover());
        if !is_within(self.inner.key(), end, forward) {
            return Ok(Passing::Ended);
        }
        *passed += 1;
        if *passed <= SEEK_AFTER {
            return Ok(Passing::Step);
        }
        *passed = 0;
        let run = covers.covered_run(stretch, end, forward, self.reach);
        self.settled = self.settled.max(run.newest);
        // Newer entries may be visible: they are looked at one by one. What the sources skip is
        // older than those.
        self.inner.jump(run.end.as_deref(), stretch.cover() - 1, forward)?;
        let is_over = !self.inner.valid() || !is_within(self.inner.key(), run.end.as_deref(), forward);
        self.reach = if is_over { (2 * self.reach).min(MAX_REACH) } else { MIN_REACH };
        Ok(Passing::Jumped)
    }
}
