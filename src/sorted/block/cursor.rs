//! [`BlockCursor`]: a position in one block.

use std::cmp::Ordering;
use std::ops::Range;

use super::reader::{PREFETCH_DISTANCE, PlainEntry};
use super::view::CACHE_LINE;
use super::{Block, KeptBlock, head4};
use crate::format::Decoded;
use crate::format::key::{SeqNo, ValueKind, compare, compare_entries, strip};
use crate::sorted::iter::{self, HEAD_LEN};

/// A position in a block, before which, behind which and at which all is reachable without state: each entry is found by its
/// offset. The key is put together in a buffer that keeps the block's common prefix, the value stays in the block.
///
/// As with `InternalCursor`, accessors and steps are for a valid cursor only, and a failed step makes it invalid.
pub(crate) struct BlockCursor {
    /// There is none before one was first entered.
    block: Option<KeptBlock>,
    /// Number of the block's entries.
    len: usize,
    /// `len` when invalid.
    position: usize,
    /// The common prefix, then the rest of the current key, then anything: at least [`HEAD_LEN`] bytes behind the prefix, so that a
    /// rest that is no longer is copied, and a head taken, in one piece.
    buffer: InlineBuffer,
    prefix_len: usize,
    /// The head of the common prefix, as of a key.
    prefix_head: u128,
    key_len: usize,
    /// Of the current key, in the sense of `InternalCursor`.
    head: u128,
    seqno: SeqNo,
    kind: ValueKind,
    value: Range<usize>,
    /// Between the two parts of a seek: positions of the entries of which their heads do not say where they stand.
    ties: Range<usize>,
}

impl Default for BlockCursor {
    /// A cursor in no block.
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
    pub(crate) fn new(block: impl Into<KeptBlock>) -> BlockCursor {
        let mut cursor = BlockCursor::default();
        cursor.enter(block.into());
        cursor
    }

    /// Moves on to another block, keeping the buffer. The cursor is invalid then.
    pub(crate) fn enter(&mut self, kept: KeptBlock) {
        let block = kept.block();
        let prefix = block.prefix();
        self.prefix_len = prefix.len();
        self.prefix_head = iter::head16(prefix);
        self.buffer.reserve(prefix.len() + HEAD_LEN);
        self.buffer.bytes_mut()[..prefix.len()].copy_from_slice(prefix);
        self.len = block.len();
        self.block = Some(kept);
        self.invalidate();
    }

    #[inline]
    fn block(&self) -> Option<Block<'_>> {
        self.block.as_ref().map(KeptBlock::block)
    }

    /// Leaves the block, if it is in one, and gives it back.
    pub(crate) fn leave(&mut self) -> Option<KeptBlock> {
        self.len = 0;
        self.invalidate();
        self.block.take()
    }

    /// Whether it is in a block.
    pub(crate) fn is_inside(&self) -> bool {
        self.block.is_some()
    }

    pub(crate) fn invalidate(&mut self) {
        self.position = self.len;
    }

    #[inline]
    pub(crate) fn valid(&self) -> bool {
        self.position < self.len
    }

    pub(crate) fn seek_to_first(&mut self) -> Decoded<()> {
        self.move_to(0)
    }

    pub(crate) fn seek_to_last(&mut self) -> Decoded<()> {
        self.move_to(self.len.saturating_sub(1))
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
        let Some(block) = self.block.as_ref().map(KeptBlock::block) else { return };
        let prefix = block.prefix();
        self.ties = match strip(key, prefix) {
            Some(rest) => block.equal_heads(head4(rest)),
            None if compare(key, prefix).is_lt() => 0..0,
            None => block.len()..block.len(),
        };
        block.prefetch_entries(self.ties.start, true);
    }

    pub(crate) fn end_seek(&mut self, key: &[u8], seqno: SeqNo) -> Decoded<()> {
        let position = self.lower_bound(key, seqno)?;
        self.move_to(position)
    }

    fn lower_bound(&self, key: &[u8], seqno: SeqNo) -> Decoded<usize> {
        let Range { mut start, mut end } = self.ties.clone();
        let Some(block) = self.block() else { return Ok(start) };
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
        self.move_to(self.position + 1)
    }

    /// To the entry before; invalid at the first one.
    pub(crate) fn prev(&mut self) -> Decoded<()> {
        self.move_to(self.position.checked_sub(1).unwrap_or(self.len))
    }

    /// To the next entry, unless something stands in the way: the end of the block, or an error. Then the cursor stays where it is, and
    /// [`next`](BlockCursor::next) says what it is.
    #[inline]
    pub(crate) fn advance(&mut self) -> bool {
        let next = self.position + 1;
        next < self.len && self.load_entry(next).is_ok() && {
            self.prefetch_beyond(self.value.end, true);
            true
        }
    }

    /// The same backward, for [`prev`](BlockCursor::prev).
    #[inline]
    pub(crate) fn retreat(&mut self) -> bool {
        self.position > 0 && self.load_entry(self.position - 1).is_ok() && {
            self.prefetch_beyond(self.value.start, false);
            true
        }
    }

    /// To the next entry in a direction, if nothing stands in the way, and that is a value: nothing is put together of it but the key. Until
    /// [`settle`](BlockCursor::settle) only key and value may be asked for. Returns whether it has moved; else
    /// [`advance`](BlockCursor::advance) and [`retreat`](BlockCursor::retreat) say more.
    #[inline]
    pub(crate) fn plain_step(&mut self, forward: bool) -> bool {
        let position = if forward { self.position + 1 } else { self.position.wrapping_sub(1) };
        let Some(block) = self.block.as_ref().map(KeptBlock::block).filter(|_| position < self.len) else {
            return false;
        };
        let Some(PlainEntry { rest, rest_len, value }) = block.plain_entry(position) else { return false };
        self.buffer.put(self.prefix_len, rest, rest_len);
        let end = if forward { value.end } else { value.start };
        block.prefetch_line(end, PREFETCH_DISTANCE - CACHE_LINE, forward);
        block.prefetch_line(end, PREFETCH_DISTANCE, forward);
        self.key_len = self.prefix_len + rest_len;
        self.value = value;
        self.position = position;
        true
    }

    /// Finds out about the current entry what plain steps leave out. An error makes the cursor invalid.
    pub(crate) fn settle(&mut self) -> Decoded<()> {
        self.move_to(self.position)
    }

    /// Asks for what will be looked at some steps from here, where an entry begins or ends at `place`: as much as a step of usual length
    /// takes.
    #[inline]
    fn prefetch_beyond(&self, place: usize, forward: bool) {
        if let Some(block) = self.block() {
            block.prefetch_line(place, PREFETCH_DISTANCE - CACHE_LINE, forward);
            block.prefetch_line(place, PREFETCH_DISTANCE, forward);
        }
    }

    /// How many entries of the block are still to come in a direction. The cursor must be valid.
    #[inline]
    pub(crate) fn left(&self, forward: bool) -> usize {
        if forward { self.len - 1 - self.position } else { self.position }
    }

    /// Whether the entry before is known to be of another key; if there is none in the block, or the heads do not say it, it is not.
    #[inline]
    pub(crate) fn is_first_of_key(&self) -> bool {
        let (Some(block), Some(before)) = (self.block(), self.position.checked_sub(1)) else { return false };
        self.valid() && block.head(before) != block.head(self.position)
    }

    /// To the entry at `position`, or invalid if there is none.
    #[inline(never)]
    fn move_to(&mut self, position: usize) -> Decoded<()> {
        self.invalidate();
        if position < self.len { self.load_entry(position) } else { Ok(()) }
    }

    /// To the entry at `position`, which must be less than the block's length. An error changes nothing.
    #[inline(always)]
    fn load_entry(&mut self, position: usize) -> Decoded<()> {
        let Some(block) = self.block.as_ref().map(KeptBlock::block) else { return Ok(()) };
        let entry = block.entry(position)?;
        let rest_len = entry.rest.len();
        let rest_start = entry.value_start - rest_len;
        let rest_head = self.buffer.put(self.prefix_len, &block.bytes()[rest_start..], rest_len);
        self.key_len = self.prefix_len + rest_len;
        self.head = self.prefix_head | shift_head(rest_head, self.prefix_len);
        if self.key_len < HEAD_LEN {
            // What stands behind the key is not part of it.
            self.head &= !shift_head(u128::MAX, self.key_len);
        }
        self.seqno = entry.seqno;
        self.kind = entry.kind;
        self.value = entry.value_start..entry.value_start + entry.value_len;
        self.position = position;
        Ok(())
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.buffer.bytes()[..self.key_len]
    }

    /// The head of the key, in the sense of `InternalCursor`.
    #[inline]
    pub(crate) fn head(&self) -> u128 {
        self.head
    }

    /// How many steps are left in a direction, if the last of them leads to a key whose head comes before `bound` in that direction; that
    /// is decided by what the directory says of its head. The cursor must be valid.
    #[inline]
    pub(crate) fn left_before(&self, bound: u128, forward: bool) -> usize {
        let Some(block) = self.block() else { return 0 };
        let last = if forward { self.len - 1 } else { 0 };
        let known = u128::from(block.head(last)) << (8 * (HEAD_LEN - super::HEAD_LEN));
        let unknown = u128::MAX >> (8 * super::HEAD_LEN);
        let is_before = if forward {
            self.prefix_head | shift_head(known | unknown, self.prefix_len) < bound
        } else {
            self.prefix_head | shift_head(known, self.prefix_len) > bound
        };
        if is_before { self.left(forward) } else { 0 }
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
        self.block().map_or(&[], |block| &block.bytes()[self.value.clone()])
    }
}

/// Bytes that take no memory elsewhere while they are inline: a cursor over blocks of usual keys allocates nothing.
struct InlineBuffer {
    inline: [u8; INLINE_LEN],
    /// All of them if they are more.
    heap: Vec<u8>,
}

/// A head, and keys with as much in front of it as most have.
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

    /// Puts the first `len` bytes of `bytes` at `start`. Up to a head they go in one piece, and what follows them goes along, if there is as
    /// much. Returns their head, of what goes along too.
    #[inline(always)]
    fn put(&mut self, start: usize, bytes: &[u8], len: usize) -> u128 {
        let place = self.bytes_mut().get_mut(start..).and_then(<[u8]>::first_chunk_mut::<HEAD_LEN>);
        match (bytes.first_chunk(), place) {
            (Some(piece), Some(place)) if len <= HEAD_LEN => {
                *place = *piece;
                u128::from_be_bytes(*piece)
            }
            _ => {
                let bytes = &bytes[..len];
                self.reserve(start + len);
                self.bytes_mut()[start..start + len].copy_from_slice(bytes);
                iter::head16(bytes)
            }
        }
    }

    /// Makes it at least `len` bytes long.
    fn reserve(&mut self, len: usize) {
        let bytes = self.bytes();
        if bytes.len() < len {
            let mut longer = vec![0; len.next_power_of_two()];
            longer[..bytes.len()].copy_from_slice(bytes);
            self.heap = longer;
        }
    }
}

/// The part that a head of what follows `len` bytes has in the head of the whole.
#[inline]
fn shift_head(head: u128, len: usize) -> u128 {
    if len < HEAD_LEN { head >> (8 * len) } else { 0 }
}
