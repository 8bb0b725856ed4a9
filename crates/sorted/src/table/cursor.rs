//! [`TableCursor`]: a cursor over the entries of a table.

mod deferral;

use std::sync::Arc;
use std::time::Instant;

use super::fetch::ReadAhead;
use super::range_seek::RangeSeek;
use super::reader::Counting;
use super::resident::{Resident, ResidentBlock};
use super::{FilterMode, ReadFlags, Table};
use crate::block::BlockCursor;
use crate::error::Result;
use crate::format::Decoded;
use crate::format::key::{SeqNo, ValueKind};
use crate::format::pointer::separate_len;
use crate::iter::{Direction, InternalCursor, KeyBound, MergeCursor};
use crate::report::stats::{ReadCounters, ReadEvent};
use crate::scan_trace::ScanTrace;
use crate::sync::time;
use crate::trace::BlockVisit;

/// A position in two levels: a block, by the index, and an entry in it. The cursor keeps its block
/// alive.
pub struct TableCursor {
    table: Arc<Table>,
    fill_cache: bool,
    /// How seeks use range filters.
    filters: FilterMode,
    counting: Counting,
    /// Whether the cursor reads the whole table, or a large part of it.
    reads_whole_table: bool,
    /// Position in the block entered last; at first in none. The cursor is valid when this is.
    block: BlockCursor,
    /// Position of that block in the index.
    position: usize,
    use_of_block: UseOfBlock,
    /// During a seek, and while one is deferred: position of the first block that may hold the
    /// target.
    sought: usize,
    seeking: Seeking,
    /// Whether steps defer the entry into a block.
    defers: bool,
    deferred: Option<Deferred>,
    /// Set once a range filter has been asked.
    range_seek: Option<Box<RangeSeek>>,
    ahead: Option<ReadAhead>,
    trace: Option<Arc<ScanTrace>>,
}

/// What the cursor has put off, and in which direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deferred {
    /// The entry into the block before or after `position`, at the near end of that block.
    Neighbour(Direction),
    /// A seek in the block `sought`.
    Seek(Direction),
}

/// What becomes of the block entered last.
#[derive(Clone, Copy, Default)]
struct UseOfBlock {
    /// Whether an entry has been taken from it.
    is_taken: bool,
    /// Where a seek left the cursor: at any other entry, the merge has taken that one.
    start: usize,
    /// Whether it was read from the file.
    was_read: bool,
    /// Whether it was entered because the range filter said "maybe".
    is_asked: bool,
}

/// Distances from the end of a block, in entries: at the first, the cursor prefetches the next
/// block's directory; at the second, the first entries that it will read there.
const DIRECTORY_AHEAD: usize = 12;
const ENTRIES_AHEAD: usize = 4;

/// Next step of a seek.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seeking {
    /// Find the block in memory, and prefetch its directory.
    Find,
    /// Enter the block, and prefetch the entry.
    Enter,
    /// Move to the entry, in a block that may already have been searched.
    End { searched: bool },
    /// Nothing: the seek is deferred.
    Deferred,
}

/// An entry of a block, and how long it is.
pub struct VisitedEntry<'a> {
    pub key: &'a [u8],
    pub seqno: SeqNo,
    /// Of what is stored in the table in place of the value, or the value.
    pub value_len: usize,
    /// Of the record in a value file; 0 if the value is in the table.
    pub separate_len: u64,
}

impl VisitedEntry<'_> {
    /// Bytes of key and value in the table.
    pub fn stored_len(&self) -> u64 {
        (self.key.len() + self.value_len) as u64
    }
}

impl Table {
    /// A cursor over the table's entries, initially invalid. A long scan reads ahead, and of the
    /// cache takes only free space; without `fill_cache` no scan takes any.
    pub fn cursor(self: &Arc<Table>, fill_cache: bool) -> TableCursor {
        TableCursor::new(Arc::clone(self), fill_cache, FilterMode::Ignore)
    }

    /// Like [`cursor`](Table::cursor), as part of a merge: range filters may defer its seeks.
    pub fn scan_cursor(self: &Arc<Table>, mode: ReadFlags) -> TableCursor {
        TableCursor::new(Arc::clone(self), mode.fill_cache, mode.filters)
    }
}

impl TableCursor {
    fn new(table: Arc<Table>, fill_cache: bool, filters: FilterMode) -> TableCursor {
        TableCursor {
            table,
            fill_cache,
            filters,
            counting: Counting::Read,
            reads_whole_table: false,
            block: BlockCursor::default(),
            position: 0,
            use_of_block: UseOfBlock::default(),
            sought: 0,
            seeking: Seeking::End { searched: false },
            defers: false,
            deferred: None,
            range_seek: None,
            ahead: None,
            trace: None,
        }
    }

    pub fn trace(&self) -> Option<&ScanTrace> {
        self.trace.as_deref()
    }

    /// Tells the trace, if there is one, that the scan comes to a table.
    pub fn trace_table(&self, table: &Table) -> Result<()> {
        let number = table.meta().number;
        self.trace().map_or(Ok(()), |trace| trace.table(number, |opening| table.open(opening).map(drop)))
    }

    /// Tells the trace that the cursor has entered the block at position `i`.
    #[cold]
    fn trace_block(&self, trace: &ScanTrace, i: usize, cached: bool, begun: Instant) -> Result<()> {
        let fetcher = self.table.fetcher();
        let handle = self.table.resident()?.index.handle(fetcher, i)?;
        let visit = BlockVisit::new((handle.offset, handle.stored_len()), cached, time::since(begun));
        trace.block(self.table.meta().number, visit);
        Ok(())
    }

    /// The direction of what is deferred, if anything is.
    pub fn deferral(&self) -> Option<Direction> {
        self.deferred.map(|(Deferred::Neighbour(direction) | Deferred::Seek(direction))| direction)
    }

    /// Switches to another table and keeps the cursor's buffers. The cursor is invalid afterwards.
    pub fn enter_table(&mut self, table: &Arc<Table>) {
        self.invalidate();
        if !Arc::ptr_eq(&self.table, table) {
            self.count_use();
            self.table = Arc::clone(table);
            self.position = usize::MAX;
            self.ahead = None;
        }
    }

    /// Leaves the cursor's reads out of the table's counters, because no user caused them.
    pub fn uncounted(mut self) -> TableCursor {
        self.count_as(Counting::Uncounted);
        self
    }

    /// Makes this the cursor of a compaction, which reads the whole table, or a large part of it.
    pub fn for_compaction(mut self) -> TableCursor {
        (self.fill_cache, self.reads_whole_table) = (false, true);
        self.uncounted()
    }

    /// Counts the cursor's reads as `counting` says.
    pub(super) fn count_as(&mut self, counting: Counting) {
        self.counting = counting;
    }

    /// Counts the block entered last, if no entry was taken from it.
    #[inline]
    fn count_use(&mut self) {
        if !self.use_of_block.is_taken && self.counting != Counting::Uncounted && self.block.is_inside() {
            self.count_unused();
        }
    }

    #[inline(never)]
    fn count_unused(&mut self) {
        self.use_of_block.is_taken = true;
        let counters = &self.table.fetcher().counters;
        counters.count(ReadEvent::ScanBlockUnused);
        if self.use_of_block.was_read {
            counters.count(ReadEvent::ScanReadUnused);
        }
        if self.use_of_block.is_asked {
            counters.count(ReadEvent::RangeFalsePositive);
        }
        if let Some(trace) = self.trace() {
            trace.last_block_unused(self.table.meta().number);
        }
    }

    fn block_count(&self) -> Result<usize> {
        Ok(self.table.resident()?.index.len())
    }

    /// Enters the block at position `i` and performs `step` in it.
    fn enter(&mut self, i: usize, step: impl FnOnce(&mut BlockCursor) -> Decoded<()>) -> Result<()> {
        self.enter_block(i)?;
        self.in_block(step)
    }

    /// Enters the block at position `i`. The cursor is invalid afterwards.
    fn enter_block(&mut self, i: usize) -> Result<()> {
        self.invalidate();
        if !self.is_in(i) {
            self.count_use();
            let begun = self.trace.as_ref().map(|_| time::now());
            let resident = self.table.resident()?;
            let (limit, fill_cache) = (resident.index.data_end(), self.fill_cache);
            let reads_whole_table = self.reads_whole_table;
            let ahead = self.ahead.get_or_insert_with(|| match reads_whole_table {
                true => ReadAhead::for_whole_table(limit),
                false => ReadAhead::new(limit, fill_cache),
            });
            ahead.step_to(i);
            let kept = match &resident.mapped {
                None => self.table.kept_block(resident, i, self.counting, None)?,
                Some(mapped) if mapped.is_verified(i) && !reads_whole_table => {
                    ahead.prefetch_mapped(mapped, resident.index.handle(self.table.fetcher(), i)?);
                    self.table.kept_block(resident, i, self.counting, self.block.leave())?
                }
                // A block's first read comes from the file. A compaction reads each file once, in
                // large pieces.
                Some(_) => None,
            };
            let was_read = kept.is_none();
            let block = match kept {
                Some(block) => block,
                None => {
                    if let (FilterMode::Shadow, Some(seek)) = (self.filters, &mut self.range_seek) {
                        let handle = resident.index.handle(self.table.fetcher(), i)?;
                        seek.reads = (seek.reads.0 + 1, seek.reads.1 + handle.stored_len());
                    }
                    self.table.read_block_of_scan(resident, i, fill_cache, self.counting, ahead)?.into()
                }
            };
            self.block.enter(block);
            self.use_of_block = UseOfBlock { start: self.block.position(), was_read, ..UseOfBlock::default() };
            self.position = i;
            if let Some((trace, begun)) = self.trace().zip(begun) {
                self.trace_block(trace, i, !was_read, begun)?;
            }
        }
        Ok(())
    }

    /// Calls `visit` with each entry of the block at position `i`, which must be less than the
    /// number of blocks. The cursor is invalid afterwards.
    pub fn visit_block(&mut self, i: usize, mut visit: impl FnMut(VisitedEntry<'_>)) -> Result<()> {
        self.enter(i, BlockCursor::seek_to_first)?;
        while self.block.valid() {
            self.in_block(|block| {
                let separate_len = separate_len(block.kind(), block.value())?;
                visit(VisitedEntry {
                    key: block.key(),
                    seqno: block.seqno(),
                    value_len: block.value().len(),
                    separate_len,
                });
                block.next()
            })?;
        }
        Ok(())
    }

    /// Whether the block at position `i` is the one entered last.
    fn is_in(&self, i: usize) -> bool {
        self.block.is_inside() && self.position == i
    }

    /// Whether the block at position `i` is in memory.
    fn is_in_memory(&self, resident: &Resident, i: usize) -> bool {
        self.table.fetcher().context.epoch().pin(|pin| resident.in_memory(i, pin).is_some())
    }

    /// Prefetches the block at position `i`, if it is in memory.
    fn prefetch_block(&self, i: usize) -> Result<()> {
        if !self.is_in(i) {
            let resident = self.table.resident()?;
            self.table.fetcher().context.epoch().pin(|pin| resident.in_memory(i, pin).map(ResidentBlock::prefetch));
        }
        Ok(())
    }

    /// Performs `step` in the block entered last.
    fn in_block(&mut self, step: impl FnOnce(&mut BlockCursor) -> Decoded<()>) -> Result<()> {
        step(&mut self.block).map_err(|malformed| self.table.malformed_block(self.position, malformed))
    }

    #[inline]
    pub fn invalidate(&mut self) {
        self.use_of_block.is_taken |= self.block.position() != self.use_of_block.start;
        self.block.invalidate();
        self.use_of_block.start = self.block.position();
        if let Some(Deferred::Seek(_)) = self.deferred.take() {
            self.count_spared();
        }
    }

    /// Near the end of a block, prefetches what the step into the next one will read.
    #[inline]
    fn look_ahead(&self, forward: bool) {
        let left = self.block.left(forward);
        if left == DIRECTORY_AHEAD || left == ENTRIES_AHEAD {
            self.prefetch_neighbour(left, forward);
        }
    }

    #[cold]
    fn prefetch_neighbour(&self, left: usize, forward: bool) {
        let Ok(resident) = self.table.resident() else { return };
        // A position outside of the table is never in memory.
        let i = if forward { self.position.wrapping_add(1) } else { self.position.wrapping_sub(1) };
        self.table.fetcher().context.epoch().pin(|pin| match resident.in_memory(i, pin) {
            Some(block) if left == DIRECTORY_AHEAD => block.prefetch(),
            Some(block) => block.block().iter().for_each(|block| block.prefetch_end(forward)),
            None => {}
        });
    }

    /// The rare part of a step forward: handles what stopped `advance`, then goes on to the next
    /// block.
    #[cold]
    fn next_block(&mut self) -> Result<()> {
        self.in_block(BlockCursor::next)?;
        if self.valid() || self.position + 1 >= self.block_count()? {
            return Ok(());
        }
        self.cross(Direction::Forward)
    }

    #[cold]
    fn previous_block(&mut self) -> Result<()> {
        self.in_block(BlockCursor::prev)?;
        if self.valid() || self.position == 0 {
            return Ok(());
        }
        self.cross(Direction::Backward)
    }

    /// Enters the neighbour of the block entered last, or defers that: the separator between the
    /// two bounds the neighbour's keys, if it is in memory. Once it is, it stays.
    fn cross(&mut self, direction: Direction) -> Result<()> {
        if self.defers && self.separator_before(direction)?.is_some() {
            self.deferred = Some(Deferred::Neighbour(direction));
            return Ok(());
        }
        self.enter_neighbour(direction)
    }

    /// The separator between the block entered last and its neighbour.
    fn separator_before(&self, direction: Direction) -> Result<Option<KeyBound<'_>>> {
        let between = if direction.is_forward() { self.position } else { self.position - 1 };
        Ok(self.table.resident()?.index.known_separator(between))
    }

    /// Whether the block entered last begins with another key than the block before has. All
    /// versions that a run has of a key are in one table.
    #[cold]
    fn begins_key(&self) -> bool {
        let Some(before) = self.position.checked_sub(1) else { return true };
        self.table.resident().is_ok_and(|resident| resident.index.is_after(before, self.key()))
    }

    /// The rest of a seek, after `is_searched` says whether the first block has been searched.
    #[inline(never)]
    fn search_blocks(&mut self, key: &[u8], seqno: SeqNo, forward: bool, mut is_searched: bool) -> Result<()> {
        // Usually the target is in the first or second block; later only if versions of its key
        // fill whole blocks.
        for i in self.sought..self.block_count()? {
            if !std::mem::take(&mut is_searched) {
                self.enter(i, |cursor| cursor.seek(key, seqno))?;
            }
            if self.valid() {
                return if forward { Ok(()) } else { self.prev() };
            }
            // Often the target is between the block's last key and the separator.
            if i + 1 == self.block_count()? {
                break;
            }
            let index = &self.table.resident()?.index;
            if !forward && index.compare_separator(self.table.fetcher(), i, key)?.is_gt() {
                return self.in_block(BlockCursor::seek_to_last);
            }
            if forward && index.known_separator(i).is_some_and(|separator| separator.compare(key).is_gt()) {
                return self.cross(Direction::Forward);
            }
        }
        if forward { Ok(()) } else { self.seek_to_last() }
    }

    fn enter_neighbour(&mut self, direction: Direction) -> Result<()> {
        match direction {
            Direction::Forward => self.enter(self.position + 1, BlockCursor::seek_to_first)?,
            Direction::Backward => self.enter(self.position - 1, BlockCursor::seek_to_last)?,
        }
        self.note_position();
        Ok(())
    }
}

impl Drop for TableCursor {
    fn drop(&mut self) {
        self.invalidate();
        self.count_use();
    }
}

impl InternalCursor for TableCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.block.valid()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.invalidate();
        let last = self.block_count()? - 1;
        self.enter(last, BlockCursor::seek_to_last)?;
        self.note_position();
        Ok(())
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_seek(key, seqno, true)?;
        self.end_seek(key, seqno, true)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.block.advance() {
            self.look_ahead(true);
            return Ok(());
        }
        self.next_block()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if self.block.retreat() {
            self.look_ahead(false);
            return Ok(());
        }
        self.previous_block()
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.block.key()
    }

    #[inline(always)]
    fn stamp(&self) -> (SeqNo, ValueKind) {
        (self.block.seqno(), self.block.kind())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.block.value()
    }
}

impl MergeCursor for TableCursor {
    fn seek_to_first(&mut self) -> Result<()> {
        self.enter(0, BlockCursor::seek_to_first)?;
        self.note_position();
        Ok(())
    }

    fn begin_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        self.invalidate();
        let resident = self.table.resident()?;
        self.sought = resident.find(self.table.fetcher(), key)?;
        self.seeking = match self.sought < resident.index.len() {
            true if self.asks(resident) && self.defer_seek(key, seqno, forward)? => Seeking::Deferred,
            true => Seeking::Find,
            false => Seeking::End { searched: false },
        };
        Ok(())
    }

    fn continue_seek(&mut self, key: &[u8]) -> Result<bool> {
        self.seeking = match self.seeking {
            Seeking::Find => {
                self.prefetch_block(self.sought)?;
                Seeking::Enter
            }
            Seeking::Enter => {
                self.enter_block(self.sought)?;
                self.block.begin_seek(key);
                Seeking::End { searched: true }
            }
            Seeking::End { .. } | Seeking::Deferred => return Ok(false),
        };
        Ok(true)
    }

    fn end_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        let seeking = std::mem::replace(&mut self.seeking, Seeking::End { searched: false });
        if seeking == Seeking::Deferred {
            return Ok(());
        }
        let is_searched = seeking == Seeking::End { searched: true };
        if is_searched {
            self.in_block(|cursor| cursor.end_seek(key, seqno))?;
            if forward && self.valid() {
                return Ok(());
            }
        }
        self.search_blocks(key, seqno, forward, is_searched)
    }

    fn let_steps_defer(&mut self) {
        self.defers = true;
    }

    fn deferred(&self) -> Option<KeyBound<'_>> {
        match self.deferred? {
            Deferred::Neighbour(direction) => self.separator_before(direction).ok()?,
            Deferred::Seek(_) => self.range_seek.as_ref().map(|seek| KeyBound::of(&seek.bound)),
        }
    }

    fn resume(&mut self) -> Result<()> {
        match self.deferred.take() {
            Some(Deferred::Neighbour(direction)) => self.enter_neighbour(direction),
            Some(Deferred::Seek(direction)) => self.resume_seek(direction),
            None => Ok(()),
        }
    }

    #[inline]
    fn fast_steps(&self, snapshot: SeqNo, bound: u128, forward: bool) -> usize {
        // The table's metadata is trusted, as everything under a checksum is.
        let meta = self.table.meta();
        let all_single_and_visible = meta.keys == meta.entries && meta.largest_seqno <= snapshot;
        if all_single_and_visible { self.block.left_before(bound, forward) } else { 0 }
    }

    #[inline]
    fn fast_step(&mut self, forward: bool) -> bool {
        self.block.fast_step(forward) && {
            self.look_ahead(forward);
            true
        }
    }

    fn end_fast_steps(&mut self) -> Result<()> {
        self.in_block(BlockCursor::end_fast_steps)
    }

    #[inline]
    fn is_first_of_key(&self) -> bool {
        self.block.is_first_of_key() || (self.valid() && self.block.left(false) == 0 && self.begins_key())
    }

    #[inline]
    fn note_position(&mut self) {
        self.use_of_block.start = self.block.position();
    }

    #[inline]
    fn note_taken(&mut self) {
        self.use_of_block.is_taken = true;
    }

    fn set_trace(&mut self, trace: &Arc<ScanTrace>) {
        self.trace = Some(Arc::clone(trace));
    }

    fn counters(&self) -> Option<&ReadCounters> {
        (self.counting != Counting::Uncounted).then(|| &*self.table.fetcher().counters)
    }

    #[inline]
    fn head(&self) -> u128 {
        self.block.head()
    }
}
