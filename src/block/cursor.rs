//! [`BlockCursor`]: a position in one block.

use std::cmp::Ordering;
use std::ops::Range;

use super::{BlockRef, head};
use crate::format::Decoded;
use crate::format::key::{SeqNo, ValueKind, compare_entries};

/// A position in a block, before which, behind which and at which all is reachable without state: each entry is found by its
/// offset. The key is put together in a buffer that keeps the block's common prefix, the value stays in the block.
///
/// As with `InternalCursor`, accessors and steps are for a valid cursor only, and a failed step makes it invalid.
pub(crate) struct BlockCursor {
    block: BlockRef,
    /// `block.len()` when invalid.
    position: usize,
    /// The common prefix, then the rest of the current key.
    key: Vec<u8>,
    seqno: SeqNo,
    kind: ValueKind,
    value: Range<usize>,
}

impl BlockCursor {
    pub(crate) fn new(block: BlockRef) -> BlockCursor {
        let mut cursor = BlockCursor {
            position: block.len(),
            block,
            key: Vec::new(),
            seqno: 0,
            kind: ValueKind::Delete,
            value: 0..0,
        };
        cursor.key.extend_from_slice(cursor.block.prefix());
        cursor
    }

    /// Moves on to another block, keeping the buffer. The cursor is invalid then.
    pub(crate) fn enter(&mut self, block: BlockRef) {
        self.block = block;
        self.key.clear();
        self.key.extend_from_slice(self.block.prefix());
        self.invalidate();
    }

    pub(crate) fn invalidate(&mut self) {
        self.position = self.block.len();
    }

    pub(crate) fn valid(&self) -> bool {
        self.position < self.block.len()
    }

    pub(crate) fn seek_to_first(&mut self) -> Decoded<()> {
        self.go_to(0)
    }

    pub(crate) fn seek_to_last(&mut self) -> Decoded<()> {
        self.go_to(self.block.len() - 1)
    }

    /// To the first entry at or after `(key, seqno)`; invalid if all entries come before it.
    pub(crate) fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Decoded<()> {
        self.invalidate();
        let position = self.lower_bound(key, seqno)?;
        self.go_to(position)
    }

    fn lower_bound(&self, key: &[u8], seqno: SeqNo) -> Decoded<usize> {
        let (block, prefix) = (&*self.block, self.block.prefix());
        let Some(rest) = key.strip_prefix(prefix) else {
            return Ok(if key < prefix { 0 } else { block.len() });
        };
        let head = head(rest);
        let start = partition_point(0..block.len(), |i| Ok(block.head(i) < head))?;
        // Heads that agree say nothing about the order: neither about longer keys, nor about versions, nor about trailing zeros.
        let end = partition_point(start..block.len(), |i| Ok(block.head(i) == head))?;
        partition_point(start..end, |i| {
            let entry = block.entry(i)?;
            let order = compare_entries((entry.rest, entry.seqno), (rest, seqno));
            Ok(order == Ordering::Less)
        })
    }

    pub(crate) fn next(&mut self) -> Decoded<()> {
        self.go_to(self.position + 1)
    }

    /// To the entry before; invalid at the first one.
    pub(crate) fn prev(&mut self) -> Decoded<()> {
        self.go_to(self.position.checked_sub(1).unwrap_or(self.block.len()))
    }

    /// To the entry at `position`, or invalid if there is none.
    fn go_to(&mut self, position: usize) -> Decoded<()> {
        self.invalidate();
        if position >= self.block.len() {
            return Ok(());
        }
        let entry = self.block.entry(position)?;
        self.key.truncate(self.block.prefix().len());
        self.key.extend_from_slice(entry.rest);
        self.seqno = entry.seqno;
        self.kind = entry.kind;
        self.value = entry.value_start..entry.value_start + entry.value_len;
        self.position = position;
        Ok(())
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn seqno(&self) -> SeqNo {
        self.seqno
    }

    pub(crate) fn kind(&self) -> ValueKind {
        self.kind
    }

    pub(crate) fn value(&self) -> &[u8] {
        // In range since the entry was decoded.
        &self.block.bytes()[self.value.clone()]
    }
}

/// The first position of `range` for which `before` no longer holds, by halving.
fn partition_point(range: Range<usize>, mut before: impl FnMut(usize) -> Decoded<bool>) -> Decoded<usize> {
    let Range { mut start, mut end } = range;
    while start < end {
        let middle = start + (end - start) / 2;
        if before(middle)? {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    Ok(start)
}
