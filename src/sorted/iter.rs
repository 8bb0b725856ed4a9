//! The narrow interface of everything that yields entries in order: memtables, tables, levels, and merges of them.

use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind};
use crate::report::stats::ReadCounters;

/// A position in a sequence of entries ordered by user key, then newest first.
///
/// A cursor starts out invalid. After a failed step it is invalid too. The accessors may be called only while it is valid; they
/// borrow from the cursor, and the next step ends the borrow.
///
/// ```text
/// cursor = new (position step*)*      position = seek | seek_to_first | seek_to_last      step = next | prev | jump | plain, only while valid
/// seek   = begin_seek continue_seek* end_seek
/// plain  = plain_steps plain_step* end_plain_steps, which a position may take the place of
/// ```
pub(crate) trait InternalCursor {
    fn valid(&self) -> bool;

    fn seek_to_first(&mut self) -> Result<()>;

    fn seek_to_last(&mut self) -> Result<()>;

    /// To the first entry at or after `(key, seqno)`: with a snapshot's number, the newest version of `key` it can see, or
    /// whatever comes behind that.
    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()>;

    /// The first part of a seek. The cursor is invalid until the last part, [`end_seek`](InternalCursor::end_seek) to the same place.
    /// If several cursors are to seek, all of them do one part before any does the next, so that they wait for memory together.
    fn begin_seek(&mut self, _key: &[u8]) -> Result<()> {
        Ok(())
    }

    /// A part between the first and the last one: takes a step on the way to `key`, and asks for the memory that the next part will look
    /// at. Returns false, and does nothing, if only the last part is left; it need not be called so often.
    fn continue_seek(&mut self, _key: &[u8]) -> Result<bool> {
        Ok(false)
    }

    fn end_seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.seek(key, seqno)
    }

    fn next(&mut self) -> Result<()>;

    fn prev(&mut self) -> Result<()>;

    /// Jumps over entries that a scan need not look at: those numbered `seen` or less whose keys
    /// come before `end` in the direction of travel. Stops at the first other entry. `end` is the
    /// exclusive upper end of a range going forward, and its inclusive lower end going backward;
    /// `None` is the end of the key space. The cursor must be valid.
    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        while self.valid() && self.seqno() <= seen && is_within(self.key(), end, forward) {
            if forward { self.next()? } else { self.prev()? }
        }
        Ok(())
    }

    /// Where reads of the current entry are counted, if the cursor has counters of its own.
    fn counters(&self) -> Option<&ReadCounters> {
        None
    }

    /// How many of the next steps in a direction are *plain*, as far as the cursor knows that without a look at the entries: each leads to
    /// another key, of which there is one version, and `snapshot` can see that; and the heads of these keys come before `bound` in
    /// that direction. There may be tombstones among them.
    #[inline]
    fn plain_steps(&self, _snapshot: SeqNo, _bound: u128, _forward: bool) -> usize {
        0
    }

    /// Takes a plain step, unless something stands in the way, such as a tombstone; returns whether it did. Behind it only key and value may
    /// be asked for, and further plain steps taken, until [`end_plain_steps`](InternalCursor::end_plain_steps) or a seek.
    #[inline]
    fn plain_step(&mut self, _forward: bool) -> bool {
        false
    }

    /// Finds out what plain steps leave out.
    fn end_plain_steps(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether the cursor knows, without a look at another place in memory, that the entry before is of another key. It may be so even
    /// if it does not know.
    fn is_first_of_key(&self) -> bool {
        false
    }

    /// The user key.
    fn key(&self) -> &[u8];

    /// What [`head16`] says of the key.
    fn head(&self) -> u128 {
        head16(self.key())
    }

    /// The head of the key, if there is an entry.
    #[inline]
    fn head_if_valid(&self) -> Option<u128> {
        self.valid().then(|| self.head())
    }

    fn seqno(&self) -> SeqNo;

    /// Whether the entry is a value that `snapshot` can see, if nothing newer hides it.
    #[inline]
    fn shows(&self, snapshot: SeqNo) -> bool {
        self.seqno() <= snapshot && self.kind() == ValueKind::Put
    }

    fn kind(&self) -> ValueKind;

    fn value(&self) -> &[u8];
}

/// Whether `key` comes before the `end` of a range in the direction of travel, as in
/// [`InternalCursor::jump`].
pub(crate) fn is_within(key: &[u8], end: Option<&[u8]>, forward: bool) -> bool {
    end.is_none_or(|end| if forward { key < end } else { key >= end })
}

/// Bytes of a head.
pub(crate) const HEAD_LEN: usize = 16;

/// The first bytes of a key, followed by zeros if it is shorter, as a number: one key comes before another if its head is less. Equal
/// heads say nothing.
#[inline]
pub(crate) fn head16(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk() {
        return u128::from_be_bytes(*first);
    }
    if let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) {
        // The two overlap; what the first one has is shifted out of the last one.
        let last = u128::from(u64::from_be_bytes(*last)) << (8 * (HEAD_LEN - key.len()));
        return (u128::from(u64::from_be_bytes(*first)) << 64) | (last & u128::from(u64::MAX));
    }
    let mut bytes = [0; HEAD_LEN];
    bytes[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(bytes)
}

/// A key to which those of a cursor's entries are compared. Up to the length of a head it costs two registers.
#[derive(Default)]
pub(crate) struct MarkedKey {
    head: u128,
    len: usize,
    /// All of a longer key.
    long: Vec<u8>,
}

impl MarkedKey {
    /// Notes the key of the entry under the cursor.
    #[inline]
    pub(crate) fn mark(&mut self, cursor: &impl InternalCursor) {
        let key = cursor.key();
        self.head = cursor.head();
        self.len = key.len();
        if self.len > HEAD_LEN {
            self.long.clear();
            self.long.extend_from_slice(key);
        }
    }

    /// Whether the entry under the cursor has the same key.
    #[inline]
    pub(crate) fn is_at(&self, cursor: &impl InternalCursor) -> bool {
        self.head == cursor.head() && {
            let key = cursor.key();
            key.len() == self.len && (self.len <= HEAD_LEN || *key == *self.long)
        }
    }

    /// The key, in `buffer` if it is a short one.
    pub(crate) fn key<'a>(&'a self, buffer: &'a mut [u8; HEAD_LEN]) -> &'a [u8] {
        *buffer = self.head.to_be_bytes();
        buffer.get(..self.len).unwrap_or(&self.long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_order_as_keys_do_or_are_equal(
            a in prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..20),
            b in prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..20),
            shared in 0usize..20,
        ) {
            let b = [&a[..shared.min(a.len())], &b].concat();
            if head16(&a) != head16(&b) {
                prop_assert_eq!(head16(&a).cmp(&head16(&b)), a.cmp(&b));
            } else {
                let padded = |key: &[u8]| [key, &[0; HEAD_LEN][..]].concat()[..HEAD_LEN].to_vec();
                prop_assert_eq!(padded(&a), padded(&b));
            }
        }
    }
}
