//! [`Block`]: a data block in memory, and look-ups in it.

use std::hint::select_unpredictable;
use std::ops::Range;

use super::{HEAD_LEN, HEADER_LEN, WIDE_OFFSETS, directory_len};
use crate::format::coding::Decoder;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind};
use crate::format::{Decoded, Malformed};

/// A data block whose directory is known to fit into its bytes.
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Vec<u8>,
    /// Entries, at least 1.
    len: usize,
    wide: bool,
    base: SeqNo,
    prefix_len: usize,
    heads_start: usize,
}

/// What a point look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockHit {
    /// The newest version that the snapshot can see; its value is the `value_len` bytes of the block from `value_start` on.
    Found { seqno: SeqNo, kind: ValueKind, value_start: usize, value_len: usize },
    /// The key is there, but only in versions newer than the snapshot.
    Newer,
    /// The key is not in the block.
    Absent,
}

/// One decoded entry.
pub(super) struct Entry<'a> {
    /// The key without the common prefix.
    pub(super) rest: &'a [u8],
    pub(super) seqno: SeqNo,
    pub(super) kind: ValueKind,
    pub(super) value_start: usize,
    pub(super) value_len: usize,
}

impl Block {
    /// Takes the bytes of a block, which begin at the front of `bytes` and end with it.
    pub(crate) fn new(bytes: Vec<u8>) -> Decoded<Block> {
        let mut header = Decoder::new(&bytes);
        let (flags, zero) = (header.u8()?, header.u8()?);
        if flags & !WIDE_OFFSETS != 0 || zero != 0 {
            return Err(Malformed("a data block has unknown flags"));
        }
        let wide = flags & WIDE_OFFSETS != 0;
        let prefix_len = usize::from(header.u16()?);
        let len = header.u32()? as usize;
        let base = header.u64()?;
        if len == 0 {
            return Err(Malformed("a data block has no entries"));
        }
        let directory = len.checked_mul(directory_len(wide)).and_then(|directory| directory.checked_add(prefix_len));
        if directory.is_none_or(|directory| directory > header.remaining()) {
            return Err(Malformed("the directory of a data block is cut short"));
        }
        let heads_start = HEADER_LEN + len * (directory_len(wide) - HEAD_LEN);
        Ok(Block { bytes, len, wide, base, prefix_len, heads_start })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that the block takes in memory.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Block>() + self.bytes.capacity()
    }

    pub(super) fn base(&self) -> SeqNo {
        self.base
    }

    pub(super) fn fingerprints(&self) -> &[u8] {
        &self.bytes[HEADER_LEN..HEADER_LEN + self.len]
    }

    pub(super) fn head(&self, i: usize) -> u32 {
        u32::from_le_bytes(self.directory_bytes(self.heads_start + i * HEAD_LEN))
    }

    /// Positions of the entries whose head is `head`; those before have lesser ones, those behind greater ones.
    pub(super) fn equal_heads(&self, head: u32) -> Range<usize> {
        let heads = &self.bytes[self.heads_start..self.heads_start + self.len * HEAD_LEN];
        let start = lower_bound(heads, head);
        let is_equal = start < self.len && self.head(start) == head;
        let end = match head.checked_add(1) {
            _ if !is_equal => start,
            Some(next) => lower_bound(heads, next),
            None => self.len,
        };
        start..end.max(start)
    }

    #[inline]
    pub(super) fn offset(&self, i: usize) -> usize {
        let offsets_start = HEADER_LEN + self.len;
        if self.wide {
            u32::from_le_bytes(self.directory_bytes(offsets_start + i * 4)) as usize
        } else {
            usize::from(u16::from_le_bytes(self.directory_bytes(offsets_start + i * 2)))
        }
    }

    /// `N` bytes of the directory; that it lies within the block was checked by [`Block::new`].
    fn directory_bytes<const N: usize>(&self, start: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.bytes[start..start + N]);
        bytes
    }

    /// The common prefix of all keys in the block.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.bytes[self.heads_start + self.len * HEAD_LEN..][..self.prefix_len]
    }

    /// Where the first entry begins.
    pub(super) fn entries_start(&self) -> usize {
        self.heads_start + self.len * HEAD_LEN + self.prefix_len
    }

    /// The entry at position `i`, which must be less than [`Block::len`].
    #[inline]
    pub(super) fn entry(&self, i: usize) -> Decoded<Entry<'_>> {
        let bytes = self.bytes.get(self.offset(i)..).ok_or(Malformed("an entry lies outside of its block"))?;
        let mut fields = Decoder::new(bytes);
        let (rest_len, value_len, packed) = (fields.varint()?, fields.varint()?, fields.varint()?);
        let rest = fields.take(to_len(rest_len)?)?;
        let value_start = self.bytes.len() - fields.remaining();
        let value_len = fields.take(to_len(value_len)?)?.len();
        let seqno = self
            .base
            .checked_add(packed >> 3)
            .filter(|&seqno| seqno <= MAX_SEQNO)
            .ok_or(Malformed("a sequence number exceeds 56 bits"))?;
        Ok(Entry { rest, seqno, kind: ValueKind::decode(packed & 7)?, value_start, value_len })
    }

    /// The newest version of `key` with a sequence number of at most `snapshot`; `fingerprint` is that of the key's hash.
    ///
    /// Fingerprints are compared eight at a time. The words may reach up to seven bytes beyond the last fingerprint: the offsets
    /// and heads behind it take at least six, and an entry follows.
    pub(crate) fn get(&self, key: &[u8], fingerprint: u8, snapshot: SeqNo) -> Decoded<BlockHit> {
        let Some(rest) = key.strip_prefix(self.prefix()) else {
            return Ok(BlockHit::Absent);
        };
        let mut hit = BlockHit::Absent;
        for word in 0..self.len.div_ceil(8) {
            let start = HEADER_LEN + word * 8;
            let Some(bytes) = self.bytes.get(start..).and_then(<[u8]>::first_chunk) else {
                return Err(Malformed("a data block has no room for its entries"));
            };
            let mut equal = equal_bytes(u64::from_le_bytes(*bytes), fingerprint);
            while equal != 0 {
                let i = word * 8 + equal.trailing_zeros() as usize / 8;
                if i >= self.len {
                    break;
                }
                equal &= equal - 1;
                let entry = self.entry(i)?;
                if entry.rest != rest {
                    continue;
                }
                if entry.seqno <= snapshot {
                    return Ok(BlockHit::Found {
                        seqno: entry.seqno,
                        kind: entry.kind,
                        value_start: entry.value_start,
                        value_len: entry.value_len,
                    });
                }
                hit = BlockHit::Newer;
            }
        }
        Ok(hit)
    }
}

/// How many of `heads`, which ascend, are less than `head`: halved without branches down to a few lines, whose heads are counted.
fn lower_bound(heads: &[u8], head: u32) -> usize {
    const COUNTED: usize = 64;
    let (heads, _) = heads.as_chunks::<HEAD_LEN>();
    let is_less = |bytes: &[u8; HEAD_LEN]| u32::from_le_bytes(*bytes) < head;
    let (mut start, mut len) = (0, heads.len());
    while len > COUNTED {
        let half = len / 2;
        start = select_unpredictable(is_less(&heads[start + half - 1]), start + half, start);
        len -= half;
    }
    // A sum of 32-bit numbers over neighbours in memory, which compilers do several at a time.
    let counted: u32 = heads[start..start + len].iter().map(|bytes| u32::from(is_less(bytes))).sum();
    start + counted as usize
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The highest bit of each byte of `word` that equals `byte`; no other bits.
fn equal_bytes(word: u64, byte: u8) -> u64 {
    const LOW_BITS: u64 = u64::from_le_bytes([0x7f; 8]);
    let difference = word ^ u64::from_le_bytes([byte; 8]);
    // The addition cannot carry from byte to byte, so that, unlike the shorter subtraction, no byte is reported by mistake.
    !(((difference & LOW_BITS) + LOW_BITS) | difference | LOW_BITS)
}

fn to_len(len: u64) -> Decoded<usize> {
    usize::try_from(len).map_err(|_| Malformed("a length exceeds the address space"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lower_bound_counts_what_is_less(mut heads in prop::collection::vec(0u32..300, 0..300), head in 0u32..301) {
            heads.sort_unstable();
            let bytes: Vec<u8> = heads.iter().flat_map(|head| head.to_le_bytes()).collect();
            prop_assert_eq!(lower_bound(&bytes, head), heads.partition_point(|&other| other < head));
        }

        #[test]
        fn equal_bytes_marks_exactly_the_equal_ones(bytes: [u8; 8], pick in 0usize..8) {
            let byte = bytes[pick];
            let marks = equal_bytes(u64::from_le_bytes(bytes), byte).to_le_bytes();
            for (mark, other) in marks.iter().zip(bytes) {
                prop_assert_eq!(*mark, if other == byte { 0x80 } else { 0 });
            }
        }
    }
}
