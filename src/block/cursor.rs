//! [`BlockCursor`]: a position in one block.

use std::cmp::Ordering;
use std::ops::Range;

use super::{BlockRef, head};
use crate::format::Decoded;
use crate::format::key::{SeqNo, ValueKind, compare_entries};
use crate::iter::{self, HEAD_LEN};

/// A position in a block, before which, behind which and at which all is reachable without state: each entry is found by its
/// offset. The key is put together in a buffer that keeps the block's common prefix, the value stays in the block.
///
/// As with `InternalCursor`, accessors and steps are for a valid cursor only, and a failed step makes it invalid.
pub(crate) struct BlockCursor {
    block: BlockRef,
    /// `block.len()` when invalid.
    position: usize,
    /// The common prefix, then the rest of the current key, then anything: at least [`HEAD_LEN`] bytes behind the prefix, so that a
    /// rest that is no longer is copied, and a head taken, in one piece.
    buffer: Vec<u8>,
    prefix_len: usize,
    key_len: usize,
    seqno: SeqNo,
    kind: ValueKind,
    value: Range<usize>,
    /// Between the two parts of a seek: positions of the entries of which their heads do not say where they stand.
    ties: Range<usize>,
}

impl BlockCursor {
    pub(crate) fn new(block: BlockRef) -> BlockCursor {
        let mut cursor = BlockCursor {
            position: block.len(),
            block,
            buffer: Vec::new(),
            prefix_len: 0,
            key_len: 0,
            seqno: 0,
            kind: ValueKind::Delete,
            value: 0..0,
            ties: 0..0,
        };
        cursor.take_prefix();
        cursor
    }

    /// Moves on to another block, keeping the buffer. The cursor is invalid then.
    pub(crate) fn enter(&mut self, block: BlockRef) {
        self.block = block;
        self.take_prefix();
        self.invalidate();
    }

    fn take_prefix(&mut self) {
        let prefix = self.block.prefix();
        self.prefix_len = prefix.len();
        if self.buffer.len() < prefix.len() + HEAD_LEN {
            self.buffer.resize(prefix.len() + HEAD_LEN, 0);
        }
        self.buffer[..prefix.len()].copy_from_slice(prefix);
    }

    pub(crate) fn invalidate(&mut self) {
        self.position = self.block.len();
    }

    #[inline]
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
        self.begin_seek(key);
        self.end_seek(key, seqno)
    }

    /// The first part of a seek: searches the directory, and asks for the entries to which that leads. The cursor is invalid until the
    /// second part, to the same place.
    pub(crate) fn begin_seek(&mut self, key: &[u8]) {
        self.invalidate();
        let (block, prefix) = (&*self.block, self.block.prefix());
        self.ties = match key.strip_prefix(prefix) {
            Some(rest) => block.equal_heads(head(rest)),
            None if key < prefix => 0..0,
            None => block.len()..block.len(),
        };
        block.prefetch_entries(self.ties.start);
    }

    pub(crate) fn end_seek(&mut self, key: &[u8], seqno: SeqNo) -> Decoded<()> {
        let position = self.lower_bound(key, seqno)?;
        self.go_to(position)
    }

    fn lower_bound(&self, key: &[u8], seqno: SeqNo) -> Decoded<usize> {
        let block = &*self.block;
        let Range { mut start, mut end } = self.ties.clone();
        let rest = key.get(self.prefix_len..).unwrap_or_default();
        // Heads that agree say nothing about the order: neither about longer keys, nor about versions, nor about trailing zeros.
        while start < end {
            let middle = usize::midpoint(start, end);
            let entry = block.entry(middle)?;
            if compare_entries((entry.rest, entry.seqno), (rest, seqno)) == Ordering::Less {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        Ok(start)
    }

    pub(crate) fn next(&mut self) -> Decoded<()> {
        self.go_to(self.position + 1)
    }

    /// To the entry before; invalid at the first one.
    pub(crate) fn prev(&mut self) -> Decoded<()> {
        self.go_to(self.position.checked_sub(1).unwrap_or(self.block.len()))
    }

    /// To the next entry, unless something stands in the way: the end of the block, or an error. Then the cursor stays where it is, and
    /// [`next`](BlockCursor::next) says what it is.
    #[inline]
    pub(crate) fn advance(&mut self) -> bool {
        let next = self.position + 1;
        next < self.block.len() && self.stand_at(next).is_ok()
    }

    /// The same backward, for [`prev`](BlockCursor::prev).
    #[inline]
    pub(crate) fn retreat(&mut self) -> bool {
        self.position > 0 && self.stand_at(self.position - 1).is_ok()
    }

    /// To the entry at `position`, or invalid if there is none.
    fn go_to(&mut self, position: usize) -> Decoded<()> {
        self.invalidate();
        if position < self.block.len() { self.stand_at(position) } else { Ok(()) }
    }

    /// To the entry at `position`, which must be less than the block's length. An error changes nothing.
    #[inline]
    fn stand_at(&mut self, position: usize) -> Decoded<()> {
        let entry = self.block.entry(position)?;
        let rest_start = entry.value_start - entry.rest.len();
        let piece = self.block.bytes()[rest_start..].first_chunk::<HEAD_LEN>();
        let place = self.buffer[self.prefix_len..].first_chunk_mut::<HEAD_LEN>();
        match (piece, place) {
            // The rest, and what stands behind it.
            (Some(piece), Some(place)) if entry.rest.len() <= HEAD_LEN => *place = *piece,
            _ => {
                let end = self.prefix_len + entry.rest.len();
                if self.buffer.len() < end {
                    self.buffer.resize(end, 0);
                }
                self.buffer[self.prefix_len..end].copy_from_slice(entry.rest);
            }
        }
        self.key_len = self.prefix_len + entry.rest.len();
        self.seqno = entry.seqno;
        self.kind = entry.kind;
        self.value = entry.value_start..entry.value_start + entry.value_len;
        self.position = position;
        Ok(())
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.buffer[..self.key_len]
    }

    /// The head of the key, in the sense of `InternalCursor`.
    #[inline]
    pub(crate) fn head(&self) -> u128 {
        match self.buffer.first_chunk() {
            Some(first) if self.key_len >= HEAD_LEN => u128::from_be_bytes(*first),
            // What stands behind the key is not part of it.
            Some(first) => u128::from_be_bytes(*first) & !(u128::MAX >> (8 * self.key_len)),
            None => iter::head(self.key()),
        }
    }

    #[inline]
    pub(crate) fn seqno(&self) -> SeqNo {
        self.seqno
    }

    #[inline]
    pub(crate) fn kind(&self) -> ValueKind {
        self.kind
    }

    #[inline]
    pub(crate) fn value(&self) -> &[u8] {
        // In range since the entry was decoded.
        &self.block.bytes()[self.value.clone()]
    }
}
