//! [`TableCursor`]: a position in a table.

use std::sync::Arc;

use super::Table;
use super::fetch::ReadAhead;
use super::reader::Counting;
use crate::block::BlockCursor;
use crate::error::Result;
use crate::format::Decoded;
use crate::format::key::{SeqNo, ValueKind};
use crate::iter::InternalCursor;

/// Two levels: a position among the blocks, by the index, and one inside the block there, which it keeps alive.
pub(crate) struct TableCursor {
    table: Arc<Table>,
    fill_cache: bool,
    counting: Counting,
    /// Whether it is known to go through all of the table.
    of_all: bool,
    /// The place in the block that was entered last; the cursor is valid when this is.
    block: Option<BlockCursor>,
    /// Position of that block in the index.
    position: usize,
    /// Between the two parts of a seek: position of the first block that may hold what is sought.
    sought: usize,
    ahead: Option<ReadAhead>,
}

impl TableCursor {
    pub(super) fn new(table: Arc<Table>, fill_cache: bool) -> TableCursor {
        TableCursor {
            table,
            fill_cache,
            counting: Counting::Read,
            of_all: false,
            block: None,
            position: 0,
            sought: 0,
            ahead: None,
        }
    }

    /// Moves on to another table, keeping what memory it has. The cursor is invalid then.
    pub(crate) fn enter_table(&mut self, table: &Arc<Table>) {
        self.invalidate();
        if !Arc::ptr_eq(&self.table, table) {
            self.table = Arc::clone(table);
            self.position = usize::MAX;
            self.ahead = None;
        }
    }

    /// The cursor, with its reads left out of the table's counters: they are no reader's.
    pub(crate) fn uncounted(self) -> TableCursor {
        self.counted_as(Counting::Uncounted)
    }

    /// The cursor of a compaction, which goes through all of the table, or through a large part of it.
    pub(crate) fn for_compaction(self) -> TableCursor {
        TableCursor { fill_cache: false, of_all: true, ..self.uncounted() }
    }

    /// The cursor, with its reads in other counters.
    pub(super) fn counted_as(self, counting: Counting) -> TableCursor {
        TableCursor { counting, ..self }
    }

    fn block_count(&self) -> Result<usize> {
        Ok(self.table.resident()?.index.len())
    }

    /// Enters the block at position `i`, and there does `step`.
    fn enter(&mut self, i: usize, step: impl FnOnce(&mut BlockCursor) -> Decoded<()>) -> Result<()> {
        self.enter_block(i)?;
        self.in_block(step)
    }

    /// Enters the block at position `i`. The cursor is invalid then.
    fn enter_block(&mut self, i: usize) -> Result<()> {
        self.invalidate();
        if self.block.is_none() || self.position != i {
            let resident = self.table.resident()?;
            let (limit, fill_cache) = (resident.index.data_end(), self.fill_cache);
            let of_all = self.of_all;
            let ahead = self.ahead.get_or_insert_with(|| match of_all {
                true => ReadAhead::of_all(limit),
                false => ReadAhead::new(limit, fill_cache),
            });
            ahead.step_to(i);
            let (block, _) = self.table.block(resident, i, fill_cache, self.counting, Some(ahead))?;
            match &mut self.block {
                Some(cursor) => cursor.enter(block),
                none => *none = Some(BlockCursor::new(block)),
            }
            self.position = i;
        }
        Ok(())
    }

    /// Does `step` in the block that was entered last.
    fn in_block(&mut self, step: impl FnOnce(&mut BlockCursor) -> Decoded<()>) -> Result<()> {
        match &mut self.block {
            Some(cursor) => step(cursor).map_err(|malformed| self.table.malformed_block(self.position, malformed)),
            None => Ok(()),
        }
    }

    pub(crate) fn invalidate(&mut self) {
        if let Some(cursor) = &mut self.block {
            cursor.invalidate();
        }
    }

    /// The rare part of a step forward: what stood in the way in the block, and then on to the next one.
    #[cold]
    fn next_block(&mut self) -> Result<()> {
        self.in_block(BlockCursor::next)?;
        if !self.valid() && self.position + 1 < self.block_count()? {
            self.enter(self.position + 1, BlockCursor::seek_to_first)?;
        }
        Ok(())
    }

    #[cold]
    fn previous_block(&mut self) -> Result<()> {
        self.in_block(BlockCursor::prev)?;
        if !self.valid() && self.position > 0 {
            self.enter(self.position - 1, BlockCursor::seek_to_last)?;
        }
        Ok(())
    }
}

impl InternalCursor for TableCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.block.as_ref().is_some_and(BlockCursor::valid)
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.enter(0, BlockCursor::seek_to_first)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.invalidate();
        let last = self.block_count()? - 1;
        self.enter(last, BlockCursor::seek_to_last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_seek(key)?;
        self.end_seek(key, seqno)
    }

    fn begin_seek(&mut self, key: &[u8]) -> Result<()> {
        self.invalidate();
        let index = &self.table.resident()?.index;
        self.sought = index.find(key, |_| ());
        if self.sought < index.len() { self.enter_block(self.sought) } else { Ok(()) }
    }

    fn end_seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        for i in self.sought..self.block_count()? {
            self.enter(i, |cursor| cursor.seek(key, seqno))?;
            // Usually at once, or at the front of the next block; later only when the versions of the key fill whole blocks.
            if self.valid() {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.block.as_mut().is_some_and(BlockCursor::advance) { Ok(()) } else { self.next_block() }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if self.block.as_mut().is_some_and(BlockCursor::retreat) { Ok(()) } else { self.previous_block() }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], BlockCursor::key)
    }

    #[inline]
    fn head(&self) -> u128 {
        self.block.as_ref().map_or(0, BlockCursor::head)
    }

    #[inline]
    fn seqno(&self) -> SeqNo {
        self.block.as_ref().map_or(0, BlockCursor::seqno)
    }

    #[inline]
    fn kind(&self) -> ValueKind {
        self.block.as_ref().map_or(ValueKind::Delete, BlockCursor::kind)
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], BlockCursor::value)
    }
}
