//! Look-ups in a [`Block`].

use std::hint::select_unpredictable;
use std::ops::Range;

use super::HEADER_LEN;
use super::fingerprints::{GROUP_LEN, matches};
use super::view::{Block, CACHE_LINE};
use crate::format::coding::{Decoder, get_u16, get_u32, get_u64};
use crate::format::deadline::{DEADLINE_LEN, decode_expiring};
use crate::format::key::{HEAD4_LEN, MAX_SEQNO, SeqNo, ValueKind, Window, equal};
use crate::format::pointer::ValuePointer;
use crate::format::{Decoded, Malformed};
use crate::memory::prefetch::prefetch;
use crate::operator::decode_operand;

/// Distance in bytes at which a cursor prefetches entries.
pub(super) const PREFETCH_DISTANCE: usize = 6 * CACHE_LINE;

/// Result of a point look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockHit<'a> {
    /// The newest version in the read's window.
    Found { seqno: SeqNo, kind: ValueKind, value: &'a [u8] },
    /// A range delete covers the newest version that the snapshot sees.
    Covered,
    /// Every version of the key in this block is newer than the snapshot.
    Newer,
    /// The key is not in the block.
    Absent,
}

/// One decoded entry.
pub(super) struct BlockEntry<'a> {
    /// The key without the common prefix.
    pub(super) rest: &'a [u8],
    pub(super) seqno: SeqNo,
    pub(super) kind: ValueKind,
    pub(super) value_start: usize,
    pub(super) value_len: usize,
}

/// Key and value of an entry that is no tombstone, as fast steps decode it.
pub(super) struct KeyValueEntry<'a> {
    /// The key without the common prefix, `rest_len` bytes, followed by the rest of the block.
    pub(super) rest: &'a [u8],
    pub(super) rest_len: usize,
    pub(super) value: Range<usize>,
}

/// The three varints in front of an entry's key (rest length, value length, packed sequence number
/// and kind), decoded from eight bytes at once. Decoding them one by one, a full scan reached 0.57
/// of its speed, 0.46 in mapped files.
#[derive(Debug, PartialEq, Eq)]
struct ShortHeader {
    rest_len: usize,
    value_len: usize,
    /// The eight bytes from the third varint on.
    third: u64,
    /// Bytes of the third varint, and of all three.
    third_len: usize,
    len: usize,
}

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

impl ShortHeader {
    /// Decodes the common case: a first varint of one byte, a second of at most two, and all three
    /// within `bytes`. The length of the third, a sequence number, is hard to predict, so its end
    /// is found without branches.
    #[inline]
    fn short(bytes: &[u8; 8]) -> Option<ShortHeader> {
        let word = get_u64(bytes);
        let (rest_len, value_len, longer) = (word & 0xff, word >> 8 & 0xff, word >> 16 & 0xff);
        let (value_len, start) = match (value_len, longer) {
            (0..0x80, _) => (value_len, 2),
            (_, 1..0x80) => (value_len & 0x7f | longer << 7, 3),
            _ => return None,
        };
        // The lowest set bit marks the last byte.
        let ends = !word & HIGH_BITS & (u64::MAX << (8 * start));
        if rest_len >= 0x80 || ends == 0 {
            return None;
        }
        let len = ends.trailing_zeros() as usize / 8 + 1;
        #[expect(clippy::cast_possible_truncation, reason = "both lengths are below 16 Ki")]
        let (rest_len, value_len) = (rest_len as usize, value_len as usize);
        Some(ShortHeader { rest_len, value_len, third: word >> (8 * start), third_len: len - start, len })
    }

    /// The third varint; `None` if it is overlong.
    #[inline]
    fn packed(&self) -> Option<u64> {
        let bytes = self.third & (u64::MAX >> (64 - 8 * self.third_len));
        if self.third_len > 1 && bytes >> (8 * (self.third_len - 1)) == 0 {
            return None;
        }
        // Join the seven low bits of each byte, pairwise: 2, 4, then 8 bytes.
        let bits = bytes & !HIGH_BITS;
        let bits = (bits & 0x007f_007f_007f_007f) | ((bits & 0x7f00_7f00_7f00_7f00) >> 1);
        let bits = (bits & 0x0000_3fff_0000_3fff) | ((bits & 0x3fff_0000_3fff_0000) >> 2);
        Some((bits & 0x0000_0000_0fff_ffff) | ((bits & 0x0fff_ffff_0000_0000) >> 4))
    }

    /// Whether the kind in the low bits of the third varint is that of a value.
    #[inline]
    fn is_value(&self) -> bool {
        self.third & 7 == ValueKind::Put as u64
    }
}

impl<'a> Block<'a> {
    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.header.entry_count as usize
    }

    pub(super) fn base(&self) -> SeqNo {
        self.header.base
    }

    pub(super) fn fingerprints(&self) -> &'a [u8] {
        &self.bytes()[HEADER_LEN..HEADER_LEN + self.len()]
    }

    pub(super) fn head(&self, i: usize) -> u32 {
        get_u32(&self.directory_bytes(self.heads_start() + i * HEAD4_LEN))
    }

    /// Positions of the entries whose head is `head`. Earlier entries have smaller heads, later
    /// ones greater.
    #[inline]
    pub(super) fn equal_heads(&self, head: u32) -> Range<usize> {
        let heads = &self.bytes()[self.heads_start()..self.heads_start() + self.len() * HEAD4_LEN];
        let start = lower_bound(heads, head);
        let is_equal = start < self.len() && self.head(start) == head;
        let end = match head.checked_add(1) {
            _ if !is_equal => start,
            Some(next) => lower_bound(heads, next),
            None => self.len(),
        };
        start..end.max(start)
    }

    #[inline]
    pub(super) fn offset(&self, i: usize) -> usize {
        let offsets_start = HEADER_LEN + self.len();
        if self.header.wide {
            get_u32(&self.directory_bytes(offsets_start + i * 4)) as usize
        } else {
            usize::from(get_u16(&self.directory_bytes(offsets_start + i * 2)))
        }
    }

    /// `N` bytes of the directory, which [`BlockHeader::decode`] has checked to lie within the
    /// block.
    #[inline]
    fn directory_bytes<const N: usize>(&self, start: usize) -> [u8; N] {
        self.bytes().get(start..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
    }

    fn heads_start(&self) -> usize {
        self.header.heads_start as usize
    }

    /// The common prefix of all keys in the block.
    #[inline]
    pub fn prefix(&self) -> &'a [u8] {
        let start = self.heads_start() + self.len() * HEAD4_LEN;
        &self.bytes()[start..start + usize::from(self.header.prefix_len)]
    }

    /// Offset of the first entry.
    pub(super) fn entries_start(&self) -> usize {
        self.heads_start() + self.len() * HEAD4_LEN + usize::from(self.header.prefix_len)
    }

    /// The entry at position `i`, which must be less than [`Block::len`].
    #[inline(always)]
    pub(super) fn entry(&self, i: usize) -> Decoded<BlockEntry<'a>> {
        let (bytes, start) = (self.bytes(), self.offset(i));
        if let Some(header) = bytes.get(start..).and_then(<[u8]>::first_chunk).and_then(ShortHeader::short)
            && let Some(packed) = header.packed()
        {
            let rest_start = start + header.len;
            let value_start = rest_start + header.rest_len;
            let seqno = self.base().saturating_add(packed >> 3);
            if let Some(rest) = bytes.get(rest_start..value_start)
                && header.value_len <= bytes.len() - value_start
                && seqno <= MAX_SEQNO
                && let Ok(kind) = ValueKind::decode(packed & 7)
                && kind != ValueKind::Merge
                && !kind.is_separate()
                && (kind != ValueKind::ExpiringPut || header.value_len >= DEADLINE_LEN)
            {
                return Ok(BlockEntry { rest, seqno, kind, value_start, value_len: header.value_len });
            }
        }
        self.decode_entry(i)
    }

    /// Decodes the entry at position `i` if it is a value with a short header, without its sequence
    /// number. An invalid number in a block whose checksum matches is therefore not detected here,
    /// but only by [`Block::entry`].
    #[inline(always)]
    pub(super) fn key_value_entry(&self, i: usize) -> Option<KeyValueEntry<'a>> {
        let (bytes, start) = (self.bytes(), self.offset(i));
        let header = bytes.get(start..)?.first_chunk().and_then(ShortHeader::short)?;
        let rest_start = start + header.len;
        let rest = bytes.get(rest_start..)?;
        let value_start = rest_start + header.rest_len;
        let value = value_start..value_start + header.value_len;
        let is_put = value.end <= bytes.len() && header.is_value();
        is_put.then_some(KeyValueEntry { rest, rest_len: header.rest_len, value })
    }

    /// Decodes any entry, field by field: the fallback of [`Block::entry`], for long fields and
    /// operands, which finds out what is wrong.
    #[cold]
    fn decode_entry(&self, i: usize) -> Decoded<BlockEntry<'a>> {
        let bytes = self.bytes().get(self.offset(i)..).ok_or(Malformed("an entry lies outside of its block"))?;
        let mut fields = Decoder::new(bytes);
        let (rest_len, value_len, packed) = (fields.varint()?, fields.varint()?, fields.varint()?);
        let rest = fields.take(to_len(rest_len)?)?;
        let value_start = self.bytes().len() - fields.remaining();
        let value_len = fields.take(to_len(value_len)?)?.len();
        let seqno = self
            .base()
            .checked_add(packed >> 3)
            .filter(|&seqno| seqno <= MAX_SEQNO)
            .ok_or(Malformed("a sequence number exceeds 56 bits"))?;
        let kind = ValueKind::decode(packed & 7)?;
        let stored = &self.bytes()[value_start..value_start + value_len];
        match kind {
            ValueKind::Merge => _ = decode_operand(seqno, stored)?,
            ValueKind::ExpiringPut => _ = decode_expiring(stored)?,
            ValueKind::SeparatePut => _ = ValuePointer::decode(stored)?,
            ValueKind::SeparateExpiringPut => _ = ValuePointer::decode(decode_expiring(stored)?.1)?,
            ValueKind::Put | ValueKind::Delete => {}
        }
        Ok(BlockEntry { rest, seqno, kind, value_start, value_len })
    }

    /// Prefetches the lines for a cursor that moves to position `i`: the entry there and some
    /// beyond it in the direction of travel.
    pub(super) fn prefetch_entries(&self, i: usize, forward: bool) {
        let end = if forward { i } else { i + 1 };
        let start = if end < self.len() { self.offset(end) } else { self.bytes().len() };
        for line in 0..PREFETCH_DISTANCE / CACHE_LINE {
            self.prefetch_line(start, line * CACHE_LINE, forward);
        }
    }

    /// Prefetches for a cursor that enters the block at its first entry (forward) or its last.
    pub fn prefetch_end(&self, forward: bool) {
        self.prefetch_entries(if forward { 0 } else { self.len() - 1 }, forward);
    }

    /// Prefetches the line `distance` bytes from `start` in the direction of travel.
    #[inline]
    pub(super) fn prefetch_line(&self, start: usize, distance: usize, forward: bool) {
        let offset = if forward { start.wrapping_add(distance) } else { start.wrapping_sub(distance + 1) };
        prefetch(self.bytes().as_ptr().wrapping_add(offset));
    }

    /// Prefetches the first entry that [`Block::get`] will compare.
    #[inline]
    pub fn prefetch_entry(&self, fingerprint: u8) {
        let equal = matches(self.buffer(), HEADER_LEN, self.len(), fingerprint);
        if equal != 0
            && let Some(entry) = self.bytes().get(self.offset(equal.trailing_zeros() as usize)..)
        {
            // An entry of some hundred bytes reaches into a third line, which the hardware
            // prefetcher adds.
            prefetch(entry.as_ptr());
            prefetch(entry.as_ptr().wrapping_add(64));
        }
    }

    /// The newest version of `key` in the window; `fingerprint` is that of the key's hash.
    #[inline(always)]
    pub fn get(&self, key: &[u8], fingerprint: u8, window: Window) -> Decoded<BlockHit<'a>> {
        let mut hit = BlockHit::Absent;
        let Some((prefix, rest)) = key.split_at_checked(self.prefix().len()) else { return Ok(hit) };
        let mut start = 0;
        while start < self.len() {
            let mut alike = matches(self.buffer(), HEADER_LEN + start, self.len() - start, fingerprint);
            while alike != 0 {
                let entry = self.entry(start + alike.trailing_zeros() as usize)?;
                alike &= alike - 1;
                // Compare the prefix last, and usually only once: it is after the directory, in
                // another cache line.
                if !equal(rest, entry.rest) || !equal(prefix, self.prefix()) {
                    continue;
                }
                if entry.seqno <= window.newest {
                    if entry.seqno < window.oldest {
                        return Ok(BlockHit::Covered);
                    }
                    let BlockEntry { seqno, kind, value_start, value_len, .. } = entry;
                    let value = &self.bytes()[value_start..value_start + value_len];
                    return Ok(BlockHit::Found { seqno, kind, value });
                }
                hit = BlockHit::Newer;
            }
            start += GROUP_LEN;
        }
        Ok(hit)
    }
}

/// Number of the ascending `heads` that are less than `head`: a branchless binary search down to a
/// few cache lines, then a linear count.
fn lower_bound(heads: &[u8], head: u32) -> usize {
    const COUNTED: usize = 64;
    let (heads, _) = heads.as_chunks::<HEAD4_LEN>();
    let is_less = |bytes: &[u8; HEAD4_LEN]| get_u32(bytes) < head;
    let (mut start, mut len) = (0, heads.len());
    while len > COUNTED {
        let half = len / 2;
        start = select_unpredictable(is_less(&heads[start + half - 1]), start + half, start);
        len -= half;
    }
    // A sum of 32-bit numbers over contiguous memory, which compilers vectorise.
    let counted: u32 = heads[start..start + len].iter().map(|bytes| u32::from(is_less(bytes))).sum();
    start + counted as usize
}

fn to_len(len: u64) -> Decoded<usize> {
    usize::try_from(len).map_err(|_| Malformed("a length exceeds the address space"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::coding::put_varint;
    use proptest::prelude::*;

    /// Numbers of every varint length.
    fn number() -> impl Strategy<Value = u64> {
        (0u32..64, any::<u64>()).prop_map(|(bits, number)| number >> bits)
    }

    proptest! {
        #[test]
        fn short_headers_decode_like_any_other(rest_len in number(), value_len in number(), packed in number()) {
            let mut bytes = Vec::new();
            [rest_len, value_len, packed].into_iter().for_each(|number| put_varint(&mut bytes, number));
            let len = bytes.len();
            bytes.extend([0xff; 8]);
            let header = ShortHeader::short(bytes.first_chunk().unwrap());
            let is_short = rest_len < 1 << 7 && value_len < 1 << 14 && len <= 8;
            let usize = |number| usize::try_from(number).unwrap();
            let parts = header.and_then(|header| Some((header.rest_len, header.value_len, header.packed()?, header.len)));
            prop_assert_eq!(parts, is_short.then(|| (usize(rest_len), usize(value_len), packed, len)));
        }

        #[test]
        fn short_headers_of_any_bytes_decode_as_single_varints(bytes in any::<[u8; 8]>()) {
            if let Some(header) = ShortHeader::short(&bytes)
                && let Some(packed) = header.packed()
            {
                let mut fields = Decoder::new(&bytes);
                let mut number = || fields.varint().unwrap();
                prop_assert_eq!((header.rest_len as u64, header.value_len as u64, packed), (number(), number(), number()));
                prop_assert_eq!(header.len, bytes.len() - fields.remaining());
            }
        }

        #[test]
        fn lower_bound_counts_lesser_heads(mut heads in prop::collection::vec(0u32..300, 0..300), head in 0u32..301) {
            heads.sort_unstable();
            let bytes: Vec<u8> = heads.iter().flat_map(|head| head.to_le_bytes()).collect();
            prop_assert_eq!(lower_bound(&bytes, head), heads.partition_point(|&other| other < head));
        }
    }
}
