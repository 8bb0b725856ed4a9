//! Seeks that a range filter defers: without a read, it bounds the key to which a seek leads. The
//! merge resumes the seek when no other source may come first.
//!
//! The filter is asked if the block that may have the key is not in memory; in one that is, a seek
//! costs less than the question. In the mode `Shadow` it is always asked, and the seek is done
//! before it is deferred: the key that it leads to must be within the bound.
//!
//! Of a mapped table, a block that has once been verified counts as in memory, though the system
//! may have dropped its page.

use super::{Deferred, TableCursor};
use crate::block::BlockCursor;
use crate::error::Result;
use crate::format::key::SeqNo;
use crate::iter::{Direction, InternalCursor, MergeCursor};
use crate::report::stats::ReadEvent;
use crate::table::FilterMode;
use crate::table::range_seek::RangeSeek;
use crate::table::reader::Counting;
use crate::table::resident::Resident;
use crate::trace::FilterAnswer;

impl TableCursor {
    /// Whether a seek asks the range filter of a table.
    #[inline]
    pub(super) fn asks(&self, resident: &Resident) -> bool {
        self.filters != FilterMode::Ignore && resident.range_filter.may_be_asked()
    }

    /// Defers the seek if the range filter bounds its key; the cursor has come to an end if it says
    /// that the table has none. `sought` is the first block that may have it. False if the filter
    /// was not asked.
    #[cold]
    #[inline(never)]
    pub(super) fn defer_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<bool> {
        let (fetcher, resident) = (self.table.fetcher(), self.table.resident()?);
        let is_shadow = self.filters == FilterMode::Shadow;
        if !is_shadow && (self.is_in(self.sought) || self.is_in_memory(resident, self.sought)) {
            return Ok(false);
        }
        let filter = resident.range_filter.get(fetcher, &resident.properties, &resident.index);
        let (Some(filter), Some(index)) = (filter, resident.index.known()) else { return Ok(false) };
        let mut seek = self.range_seek.take().unwrap_or_default();
        seek.reads = (0, 0);
        let direction = Direction::new(forward);
        // Newer versions of the key come before a version of it.
        let after = (!forward && seqno < SeqNo::MAX).then(|| [key, &[0]].concat());
        let end = after.as_deref().unwrap_or(key);
        // Where the block has no such key, its neighbour does.
        let neighbour = direction.step_from(self.sought).filter(|&i| i < index.len());
        let mut blocks = [Some(self.sought), neighbour].into_iter().flatten();
        let found = blocks.find(|&i| seek.ask(filter, index, i, end, direction));
        if is_shadow {
            seek = self.check_bound((key, seqno), direction, seek, found)?;
        }
        self.count_range(ReadEvent::RangeProbe);
        self.trace_range(FilterAnswer::No);
        if let Some(at) = found {
            if !forward && *seek.bound > *key {
                seek.bound.truncate(key.len());
            }
            seek.seqno = if *seek.bound == *key { seqno } else { SeqNo::MAX };
            seek.is_at_near_end = at != self.sought;
            self.sought = at;
            self.deferred = Some(Deferred::Seek(direction));
        }
        self.range_seek = Some(seek);
        if found.is_none() {
            self.count_spared();
        }
        Ok(true)
    }

    /// Seeks, compares what is found with the filter's bound in the block `at`, from which the seek
    /// will go on, and leaves it. `None` if the filter denies that there is a key. Counts in `seek`
    /// what was read.
    fn check_bound(
        &mut self,
        (key, seqno): (&[u8], SeqNo),
        direction: Direction,
        seek: Box<RangeSeek>,
        at: Option<usize>,
    ) -> Result<Box<RangeSeek>> {
        self.range_seek = Some(seek);
        let defers = std::mem::take(&mut self.defers);
        let found = self.search_blocks(key, seqno, direction.is_forward(), false);
        self.defers = defers;
        let seek = self.range_seek.take().unwrap_or_default();
        found?;
        let is_denied = self.valid()
            && at.is_none_or(|at| match direction {
                Direction::Forward => *self.key() < *seek.bound || self.position < at,
                Direction::Backward => *self.key() >= *seek.bound,
            });
        self.use_of_block.start = self.block.position();
        self.invalidate();
        if is_denied {
            let (fetcher, resident) = (self.table.fetcher(), self.table.resident()?);
            let offset = resident.range_filter.handle().unwrap_or_default().offset;
            return Err(fetcher.corrupt(offset, "the range filter denies a key that the table holds"));
        }
        Ok(seek)
    }

    /// The rest of a deferred seek.
    #[cold]
    pub(super) fn resume_seek(&mut self, direction: Direction) -> Result<()> {
        let Some(seek) = self.range_seek.take() else { return Ok(()) };
        self.trace_range(FilterAnswer::Maybe);
        self.enter_block(self.sought)?;
        self.use_of_block.is_asked = true;
        let result = match direction {
            Direction::Forward if seek.is_at_near_end => self.in_block(BlockCursor::seek_to_first),
            Direction::Backward if seek.is_at_near_end => self.in_block(BlockCursor::seek_to_last),
            _ => self.search_blocks(&seek.bound, seek.seqno, direction.is_forward(), false),
        };
        self.range_seek = Some(seek);
        result?;
        self.note_position();
        Ok(())
    }

    /// Counts a seek that was deferred and not resumed.
    #[cold]
    pub(super) fn count_spared(&mut self) {
        self.count_range(ReadEvent::RangeNegative);
        let reads = self.range_seek.as_mut().map(|seek| std::mem::take(&mut seek.reads));
        if let Some((reads @ 1.., bytes)) = reads {
            let counters = &self.table.fetcher().counters;
            counters.add(ReadEvent::AvoidableRead, reads);
            counters.add(ReadEvent::AvoidableBytes, bytes);
        }
    }

    fn count_range(&self, event: ReadEvent) {
        if self.counting != Counting::Uncounted {
            self.table.fetcher().counters.count(event);
        }
    }

    fn trace_range(&self, answer: FilterAnswer) {
        if let Some(trace) = self.trace() {
            trace.range(self.table.meta().number, answer);
        }
    }
}
