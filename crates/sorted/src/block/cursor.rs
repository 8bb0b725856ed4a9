//! [`BlockCursor`]: a position in one block.

use std::cmp::Ordering;
use std::ops::Range;

use super::reader::{KeyValueEntry, PREFETCH_DISTANCE};
use super::view::CACHE_LINE;
use super::{Block, CursorBlock};
use crate::format::Decoded;
use crate::format::key::{HEAD4_LEN, HEAD16_LEN, SeqNo, ValueKind, compare, compare_entries, head4, head16, strip};

/// A position in a block. Every entry is found by its offset, so a step in either direction needs
/// no state from earlier steps. The key is assembled in a buffer that keeps the block's common
/// prefix; the value stays in the block.
///
/// As with `InternalCursor`, accessors and steps need a valid cursor, and a failed step invalidates
/// it.
pub struct BlockCursor {
    /// `None` until the cursor first enters a block.
    block: Option<CursorBlock>,
    /// Number of entries in the block.
    len: usize,
    /// Equal to `len` when the cursor is invalid.
    position: usize,
    /// The common prefix, the rest of the current key, then arbitrary bytes. At least
    /// [`HEAD16_LEN`] bytes follow the prefix, so that a rest of up to that length is copied, and
    /// its head taken, in one fixed-size access.
    buffer: InlineBuffer,
    prefix_len: usize,
    /// The 16-byte head of the common prefix.
    prefix_head: u128,
    key_len: usize,
    /// 16-byte head of the current key, as in `InternalCursor`.
    head: u128,
    seqno: SeqNo,
    kind: ValueKind,
    value: Range<usize>,
    /// Between the two parts of a seek: the positions that heads leave undecided. The target is one
    /// of them or the end of the range.
    ties: Range<usize>,
}

impl Default for BlockCursor {
    /// A cursor outside any block.
    fn default() -> BlockCursor {
        BlockCursor {
            block: None,
            len: 0,
            position: 0,
            buffer: InlineBuffer::default(),
            prefix_len: 0,
            prefix_head: 0,
            key_len: 0,
            head: 0,
            seqno: 0,
            kind: ValueKind::Delete,
            value: 0..0,
            ties: 0..0,
        }
    }
}

impl BlockCursor {
    pub fn new(block: impl Into<CursorBlock>) -> BlockCursor {
        let mut cursor = BlockCursor::default();
        cursor.enter(block.into());
        cursor
    }

    /// Moves to another block and keeps the buffer. Leaves the cursor invalid.
    pub fn enter(&mut self, kept: CursorBlock) {
        let block = kept.block();
        let prefix = block.prefix();
        self.prefix_len = prefix.len();
        self.prefix_head = head16(prefix);
        self.buffer.reserve(prefix.len() + HEAD16_LEN);
        self.buffer.bytes_mut()[..prefix.len()].copy_from_slice(prefix);
        self.len = block.len();
        self.block = Some(kept);
        self.invalidate();
    }

    #[inline]
    fn block(&self) -> Option<Block<'_>> {
        self.block.as_ref().map(CursorBlock::block)
    }

    /// Leaves the current block, if any, and returns it.
    pub fn leave(&mut self) -> Option<CursorBlock> {
        self.len = 0;
        self.invalidate();
        self.block.take()
    }

    /// Whether the cursor is in a block.
    pub fn is_inside(&self) -> bool {
        self.block.is_some()
    }

    pub fn invalidate(&mut self) {
        self.position = self.len;
    }

    #[inline]
    pub fn valid(&self) -> bool {
        self.position < self.len
    }

    pub fn seek_to_first(&mut self) -> Decoded<()> {
        self.move_to(0)
    }

    pub fn seek_to_last(&mut self) -> Decoded<()> {
        self.move_to(self.len.saturating_sub(1))
    }

    /// Moves to the first entry at or after `(key, seqno)`; invalid if there is none.
    pub fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Decoded<()> {
        self.begin_seek(key);
        self.end_seek(key, seqno)
    }

    /// The first part of a seek: searches the directory and prefetches the entries it leads to. The
    /// cursor is invalid until `end_seek` with the same target.
    pub fn begin_seek(&mut self, key: &[u8]) {
        self.invalidate();
        let Some(block) = self.block.as_ref().map(CursorBlock::block) else { return };
        let prefix = block.prefix();
        self.ties = match strip(key, prefix) {
            Some(rest) => block.equal_heads(head4(rest)),
            None if compare(key, prefix).is_lt() => 0..0,
            None => block.len()..block.len(),
        };
        block.prefetch_entries(self.ties.start, true);
    }

    pub fn end_seek(&mut self, key: &[u8], seqno: SeqNo) -> Decoded<()> {
        let position = self.lower_bound(key, seqno)?;
        self.move_to(position)
    }

    fn lower_bound(&self, key: &[u8], seqno: SeqNo) -> Decoded<usize> {
        let Range { mut start, mut end } = self.ties.clone();
        let Some(block) = self.block() else { return Ok(start) };
        let rest = key.get(self.prefix_len..).unwrap_or_default();
        // Equal heads do not decide the order of longer keys, versions, or trailing zeros.
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

    pub fn next(&mut self) -> Decoded<()> {
        self.move_to(self.position + 1)
    }

    /// Moves to the previous entry; invalid if the cursor was at the first one.
    pub fn prev(&mut self) -> Decoded<()> {
        self.move_to(self.position.checked_sub(1).unwrap_or(self.len))
    }

    /// Moves to the next entry. Returns false and stays at the end of the block or on an error;
    /// [`next`](BlockCursor::next) then says which.
    #[inline]
    pub fn advance(&mut self) -> bool {
        let next = self.position + 1;
        next < self.len && self.load_entry(next).is_ok() && {
            self.prefetch_beyond(self.value.end, true);
            true
        }
    }

    /// Moves to the previous entry. Returns false and stays at the start of the block or on an
    /// error; [`prev`](BlockCursor::prev) then says which.
    #[inline]
    pub fn retreat(&mut self) -> bool {
        self.position > 0 && self.load_entry(self.position - 1).is_ok() && {
            self.prefetch_beyond(self.value.start, false);
            true
        }
    }

    /// Moves by one entry if that is a value with a short header, and decodes only its key. Returns
    /// false and stays otherwise: fall back to [`advance`](BlockCursor::advance) or
    /// [`retreat`](BlockCursor::retreat). Until [`end_fast_steps`](BlockCursor::end_fast_steps),
    /// only key and value may be read.
    #[inline]
    pub fn fast_step(&mut self, forward: bool) -> bool {
        let position = if forward { self.position + 1 } else { self.position.wrapping_sub(1) };
        let Some(block) = self.block.as_ref().map(CursorBlock::block).filter(|_| position < self.len) else {
            return false;
        };
        let Some(KeyValueEntry { rest, rest_len, value }) = block.key_value_entry(position) else { return false };
        self.buffer.put(self.prefix_len, rest, rest_len);
        let end = if forward { value.end } else { value.start };
        block.prefetch_line(end, PREFETCH_DISTANCE - CACHE_LINE, forward);
        block.prefetch_line(end, PREFETCH_DISTANCE, forward);
        self.key_len = self.prefix_len + rest_len;
        self.value = value;
        self.position = position;
        true
    }

    /// Decodes the rest of the current entry, which fast steps leave out. An error invalidates the
    /// cursor.
    pub fn end_fast_steps(&mut self) -> Decoded<()> {
        self.move_to(self.position)
    }

    /// Prefetches the lines that the cursor reaches some steps after `offset`, where an entry
    /// begins or ends. Two lines are about what one step of usual length consumes.
    #[inline]
    fn prefetch_beyond(&self, offset: usize, forward: bool) {
        if let Some(block) = self.block() {
            block.prefetch_line(offset, PREFETCH_DISTANCE - CACHE_LINE, forward);
            block.prefetch_line(offset, PREFETCH_DISTANCE, forward);
        }
    }

    /// Position of the current entry; the number of entries if the cursor is invalid.
    #[inline]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Number of entries left in a direction. The cursor must be valid.
    #[inline]
    pub fn left(&self, forward: bool) -> usize {
        if forward { self.len - 1 - self.position } else { self.position }
    }

    /// Whether the previous entry certainly has another key. False also if it is in another block
    /// or has an equal head.
    #[inline]
    pub fn is_first_of_key(&self) -> bool {
        let (Some(block), Some(before)) = (self.block(), self.position.checked_sub(1)) else { return false };
        self.valid() && block.head(before) != block.head(self.position)
    }

    /// Moves to the entry at `position`; invalid if there is none.
    #[inline(never)]
    fn move_to(&mut self, position: usize) -> Decoded<()> {
        self.invalidate();
        if position < self.len { self.load_entry(position) } else { Ok(()) }
    }

    /// Moves to the entry at `position`, which must be less than the block's length. An error
    /// leaves the cursor as it was.
    #[inline(always)]
    fn load_entry(&mut self, position: usize) -> Decoded<()> {
        let Some(block) = self.block.as_ref().map(CursorBlock::block) else { return Ok(()) };
        let entry = block.entry(position)?;
        let rest_len = entry.rest.len();
        let rest_start = entry.value_start - rest_len;
        let rest_head = self.buffer.put(self.prefix_len, &block.bytes()[rest_start..], rest_len);
        self.key_len = self.prefix_len + rest_len;
        self.head = self.prefix_head | shift_head(rest_head, self.prefix_len);
        if self.key_len < HEAD16_LEN {
            // Mask the bytes after the key.
            self.head &= !shift_head(u128::MAX, self.key_len);
        }
        self.seqno = entry.seqno;
        self.kind = entry.kind;
        self.value = entry.value_start..entry.value_start + entry.value_len;
        self.position = position;
        Ok(())
    }

    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.buffer.bytes()[..self.key_len]
    }

    /// The 16-byte head of the key, as in `InternalCursor`.
    #[inline]
    pub fn head(&self) -> u128 {
        self.head
    }

    /// Number of steps left in a direction if even the last one leads to a key whose head comes
    /// before `bound`, else 0. Decides by the block head of the last entry. The cursor must be
    /// valid.
    #[inline]
    pub fn left_before(&self, bound: u128, forward: bool) -> usize {
        let Some(block) = self.block() else { return 0 };
        let last = if forward { self.len - 1 } else { 0 };
        let known = u128::from(block.head(last)) << (8 * (HEAD16_LEN - HEAD4_LEN));
        let unknown = u128::MAX >> (8 * HEAD4_LEN);
        let is_before = if forward {
            self.prefix_head | shift_head(known | unknown, self.prefix_len) < bound
        } else {
            self.prefix_head | shift_head(known, self.prefix_len) > bound
        };
        if is_before { self.left(forward) } else { 0 }
    }

    #[inline]
    pub fn seqno(&self) -> SeqNo {
        self.seqno
    }

    #[inline]
    pub fn kind(&self) -> ValueKind {
        self.kind
    }

    #[inline]
    pub fn value(&self) -> &[u8] {
        // In range: checked when the entry was decoded.
        self.block().map_or(&[], |block| &block.bytes()[self.value.clone()])
    }
}

/// A growing byte buffer with inline storage: a cursor over blocks of usual keys allocates nothing.
struct InlineBuffer {
    inline: [u8; INLINE_LEN],
    /// Holds all bytes once they exceed `inline`; empty before.
    heap: Vec<u8>,
}

/// Enough for the common prefix of most blocks and a head.
const INLINE_LEN: usize = 64;

impl Default for InlineBuffer {
    fn default() -> InlineBuffer {
        InlineBuffer { inline: [0; INLINE_LEN], heap: Vec::new() }
    }
}

impl InlineBuffer {
    #[inline]
    fn bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline } else { &self.heap }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.heap.is_empty() { &mut self.inline } else { &mut self.heap }
    }

    /// Writes the first `len` bytes of `bytes` at `start` and returns their head. Up to
    /// [`HEAD16_LEN`] bytes are written as one fixed-size copy if `bytes` is long enough; the head
    /// then includes bytes after `len`, too.
    #[inline(always)]
    fn put(&mut self, start: usize, bytes: &[u8], len: usize) -> u128 {
        let target = self.bytes_mut().get_mut(start..).and_then(<[u8]>::first_chunk_mut::<HEAD16_LEN>);
        match (bytes.first_chunk(), target) {
            (Some(piece), Some(target)) if len <= HEAD16_LEN => {
                *target = *piece;
                head16(piece)
            }
            _ => {
                let bytes = &bytes[..len];
                self.reserve(start + len);
                self.bytes_mut()[start..start + len].copy_from_slice(bytes);
                head16(bytes)
            }
        }
    }

    /// Grows the buffer to at least `len` bytes.
    fn reserve(&mut self, len: usize) {
        let bytes = self.bytes();
        if bytes.len() < len {
            let mut longer = vec![0; len.next_power_of_two()];
            longer[..bytes.len()].copy_from_slice(bytes);
            self.heap = longer;
        }
    }
}

/// Shifts the head of what follows `len` bytes to its place in the head of the whole key.
#[inline]
fn shift_head(head: u128, len: usize) -> u128 {
    if len < HEAD16_LEN { head >> (8 * len) } else { 0 }
}
