//! [`BlockBuilder`]: entries to a block.

use super::{HEADER_LEN, MAX_PREFIX_LEN, WIDE_OFFSETS, directory_len, head};
use crate::format::coding::{put_varint, varint_len};
use crate::format::key::{SeqNo, ValueKind, common_prefix_len};

/// Memory kept for the next block; what one huge entry took beyond it is given back.
const RETAINED: usize = 1 << 20;

/// Collects entries, which must come in order, and lays out the block when it is complete: the common prefix and the smallest
/// sequence number are known only then.
///
/// ```text
/// builder = new ((size_with? add)+ finish)*
/// ```
pub(crate) struct BlockBuilder {
    entries: Vec<Pending>,
    /// Key and value of each entry, one behind the other.
    data: Vec<u8>,
    /// Of the first and the last key, and so of all between them.
    prefix_len: usize,
    /// Varints of the lengths in front of the entries, as if no prefix were taken out.
    lengths_len: usize,
    smallest_seqno: SeqNo,
    largest_seqno: SeqNo,
}

struct Pending {
    start: usize,
    key_len: usize,
    value_len: usize,
    seqno: SeqNo,
    kind: ValueKind,
    fingerprint: u8,
}

impl Pending {
    fn rest<'a>(&self, data: &'a [u8], prefix_len: usize) -> &'a [u8] {
        &data[self.start + prefix_len..self.start + self.key_len]
    }

    fn value<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.start + self.key_len..][..self.value_len]
    }

    /// Sequence number and kind as they stand in the block.
    fn packed(&self, base: SeqNo) -> u64 {
        ((self.seqno - base) << 3) | self.kind as u64
    }

    fn encoded_len(&self, prefix_len: usize, base: SeqNo) -> usize {
        let rest_len = self.key_len - prefix_len;
        varint_len(rest_len as u64)
            + varint_len(self.value_len as u64)
            + varint_len(self.packed(base))
            + rest_len
            + self.value_len
    }
}

impl BlockBuilder {
    pub(crate) fn new() -> BlockBuilder {
        BlockBuilder {
            entries: Vec::new(),
            data: Vec::new(),
            prefix_len: 0,
            lengths_len: 0,
            smallest_seqno: SeqNo::MAX,
            largest_seqno: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Length of the common prefix if `key` comes next.
    fn prefix_len_with(&self, key: &[u8]) -> usize {
        match self.entries.first() {
            Some(first) => {
                let shared = self.prefix_len.min(key.len());
                common_prefix_len(&self.data[first.start..][..shared], &key[..shared])
            }
            None => key.len().min(MAX_PREFIX_LEN),
        }
    }

    /// At most this long the block becomes if this entry comes next and is the last.
    pub(crate) fn size_with(&self, key: &[u8], seqno: SeqNo, value_len: usize) -> usize {
        let span = self.largest_seqno.max(seqno) - self.smallest_seqno.min(seqno);
        estimate(
            self.entries.len() + 1,
            self.prefix_len_with(key),
            self.data.len() + key.len() + value_len,
            self.lengths_len + varint_len(key.len() as u64) + varint_len(value_len as u64),
            span,
        )
    }

    /// At most this long the block becomes if it is finished now.
    pub(crate) fn size(&self) -> usize {
        estimate(
            self.entries.len(),
            self.prefix_len,
            self.data.len(),
            self.lengths_len,
            self.largest_seqno.saturating_sub(self.smallest_seqno),
        )
    }

    /// Adds an entry, which must come after the one before it; `fingerprint` is that of the key's hash.
    pub(crate) fn add(&mut self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8], fingerprint: u8) {
        self.prefix_len = self.prefix_len_with(key);
        self.lengths_len += varint_len(key.len() as u64) + varint_len(value.len() as u64);
        self.smallest_seqno = self.smallest_seqno.min(seqno);
        self.largest_seqno = self.largest_seqno.max(seqno);
        self.entries.push(Pending {
            start: self.data.len(),
            key_len: key.len(),
            value_len: value.len(),
            seqno,
            kind,
            fingerprint,
        });
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
    }

    /// Appends the block to `out` and begins the next one. There must be at least one entry.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the prefix is limited to 16 bits, offsets are 16 bits only in a block of at most 64 KiB, and a block is \
                  shorter than 4 GiB because the table builder ends it before a second entry takes it beyond 1 MiB"
    )]
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        assert!(!self.entries.is_empty(), "a block has at least one entry");
        let (prefix_len, base) = (self.prefix_len, self.smallest_seqno);
        let entries_len: usize = self.entries.iter().map(|entry| entry.encoded_len(prefix_len, base)).sum();
        let n = self.entries.len();
        let len = |wide| HEADER_LEN + n * directory_len(wide) + prefix_len + entries_len;
        let wide = len(false) > 1 << 16;
        out.reserve(len(wide));

        out.push(if wide { WIDE_OFFSETS } else { 0 });
        out.push(0);
        out.extend_from_slice(&(prefix_len as u16).to_le_bytes());
        out.extend_from_slice(&(n as u32).to_le_bytes());
        out.extend_from_slice(&base.to_le_bytes());
        out.extend(self.entries.iter().map(|entry| entry.fingerprint));
        let mut offset = len(wide) - entries_len;
        for entry in &self.entries {
            if wide {
                out.extend_from_slice(&(offset as u32).to_le_bytes());
            } else {
                out.extend_from_slice(&(offset as u16).to_le_bytes());
            }
            offset += entry.encoded_len(prefix_len, base);
        }
        for entry in &self.entries {
            let head = head(entry.rest(&self.data, prefix_len));
            out.extend_from_slice(&head.to_le_bytes());
        }
        out.extend_from_slice(&self.data[..prefix_len]);
        for entry in &self.entries {
            let rest = entry.rest(&self.data, prefix_len);
            put_varint(out, rest.len() as u64);
            put_varint(out, entry.value_len as u64);
            put_varint(out, entry.packed(base));
            out.extend_from_slice(rest);
            out.extend_from_slice(entry.value(&self.data));
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.data.clear();
        self.data.shrink_to(RETAINED);
        self.prefix_len = 0;
        self.lengths_len = 0;
        self.smallest_seqno = SeqNo::MAX;
        self.largest_seqno = 0;
    }
}

/// An upper bound of a block's length: every sequence number is taken to be as wide as their whole span.
fn estimate(n: usize, prefix_len: usize, data_len: usize, lengths_len: usize, span: SeqNo) -> usize {
    let entries_len = data_len - n * prefix_len + lengths_len + n * varint_len((span << 3) | 7);
    let len = |wide| HEADER_LEN + n * directory_len(wide) + prefix_len + entries_len;
    len(len(false) > 1 << 16)
}
