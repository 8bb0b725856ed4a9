//! [`BlockBuilder`]: encodes sorted entries as a block.

use super::{HEADER_LEN, MAX_PREFIX_LEN, WIDE_OFFSETS, directory_len};
use crate::format::coding::{put_u16, put_u32, put_u64, put_varint, set_u16, set_u32, varint_len};
use crate::format::key::{HEAD4_LEN, SeqNo, ValueKind, common_prefix_len, head4};

/// Capacity kept for the next block; what a huge entry took beyond it is freed.
const RETAINED: usize = 1 << 20;
/// Length from which a block of one entry is moved into the output instead of copied.
const LARGE: usize = 1 << 20;
/// A block of at most this length has narrow offsets.
const NARROW_MAX_LEN: usize = 1 << 16;

/// Collects entries, added in order. Lays the block out in `finish`, because the common prefix and
/// the smallest sequence number are known only then.
///
/// ```text
/// builder = new (add+ finish)*        add that returns false has not added
/// ```
pub struct BlockBuilder {
    entries: Vec<BufferedEntry>,
    /// Keys and values of the entries, concatenated. A block of the usual size stays in L1 until it
    /// is laid out.
    data: Vec<u8>,
    /// Common prefix of the first and last key, and therefore of all keys between them.
    prefix_len: usize,
    /// Bytes of the length varints of all entries, computed before the prefix is removed.
    lengths_len: usize,
    smallest_seqno: SeqNo,
    largest_seqno: SeqNo,
}

#[derive(Clone, Copy)]
struct BufferedEntry {
    start: usize,
    key_len: usize,
    value_len: usize,
    seqno: SeqNo,
    kind: ValueKind,
    fingerprint: u8,
}

impl BufferedEntry {
    fn key<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.start..][..self.key_len]
    }

    /// The key without the common prefix, followed by the value.
    fn rest_and_value<'a>(&self, data: &'a [u8], prefix_len: usize) -> &'a [u8] {
        &data[self.start + prefix_len..self.start + self.key_len + self.value_len]
    }

    /// Sequence number and kind as the block encodes them.
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
    pub fn new() -> BlockBuilder {
        BlockBuilder {
            entries: Vec::new(),
            data: Vec::new(),
            prefix_len: 0,
            lengths_len: 0,
            smallest_seqno: SeqNo::MAX,
            largest_seqno: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn last(&self) -> Option<(&[u8], SeqNo)> {
        self.entries.last().map(|entry| (entry.key(&self.data), entry.seqno))
    }

    /// Length of the common prefix if `key` comes next.
    fn prefix_len_with(&self, key: &[u8]) -> usize {
        let Some(first) = self.entries.first() else { return key.len().min(MAX_PREFIX_LEN) };
        let prefix = &self.data[first.start..][..self.prefix_len];
        if key.starts_with(prefix) { self.prefix_len } else { common_prefix_len(prefix, key) }
    }

    /// Upper bound of the block's length if it is finished now.
    pub fn size(&self) -> usize {
        let span = self.largest_seqno.saturating_sub(self.smallest_seqno);
        estimate(self.entries.len(), self.prefix_len, self.data.len(), self.lengths_len, span)
    }

    /// Adds an entry, which must sort after the last one; `fingerprint` is that of the key's hash.
    /// Returns false and adds nothing if the block has an entry already and might exceed `limit`.
    pub fn add(
        &mut self,
        key: &[u8],
        seqno: SeqNo,
        kind: ValueKind,
        value: &[u8],
        fingerprint: u8,
        limit: usize,
    ) -> bool {
        let prefix_len = self.prefix_len_with(key);
        let lengths_len = self.lengths_len + varint_len(key.len() as u64) + varint_len(value.len() as u64);
        let (smallest, largest) = (self.smallest_seqno.min(seqno), self.largest_seqno.max(seqno));
        let data_len = self.data.len() + key.len() + value.len();
        let size = estimate(self.entries.len() + 1, prefix_len, data_len, lengths_len, largest - smallest);
        if size > limit && !self.is_empty() {
            return false;
        }
        self.prefix_len = prefix_len;
        self.lengths_len = lengths_len;
        (self.smallest_seqno, self.largest_seqno) = (smallest, largest);
        let (start, key_len, value_len) = (self.data.len(), key.len(), value.len());
        self.entries.push(BufferedEntry { start, key_len, value_len, seqno, kind, fingerprint });
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
        true
    }

    /// Appends the block to `out` and begins the next one. There must be at least one entry.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the prefix is limited to 16 bits, offsets are 16 bits only in a block of at most 64 KiB, and a block is \
                  shorter than 4 GiB because the table builder ends it before a second entry takes it beyond 1 MiB"
    )]
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        assert!(!self.entries.is_empty(), "a block has at least one entry");
        let (prefix_len, base, n) = (self.prefix_len, self.smallest_seqno, self.entries.len());
        let max_len = self.size();
        let wide = max_len > NARROW_MAX_LEN && {
            let entries_len: usize = self.entries.iter().map(|entry| entry.encoded_len(prefix_len, base)).sum();
            HEADER_LEN + n * directory_len(false) + prefix_len + entries_len > NARROW_MAX_LEN
        };
        // A single large value is moved rather than copied: for 300 MB, one copy less.
        let is_moved = n == 1 && self.data.len() >= LARGE;
        out.reserve(if is_moved { 0 } else { max_len });
        let block_start = out.len();

        out.push(if wide { WIDE_OFFSETS } else { 0 });
        out.push(0);
        put_u16(out, prefix_len as u16);
        put_u32(out, n as u32);
        put_u64(out, base);
        out.extend(self.entries.iter().map(|entry| entry.fingerprint));
        // Reserve the offsets: they are known once the entries are written.
        let offsets_start = out.len();
        out.resize(offsets_start + n * (directory_len(wide) - HEAD4_LEN - 1), 0);
        for entry in &self.entries {
            put_u32(out, head4(&entry.key(&self.data)[prefix_len..]));
        }
        out.extend_from_slice(&self.data[..prefix_len]);
        for (i, entry) in self.entries.iter().enumerate() {
            let offset = out.len() - block_start;
            if wide {
                set_u32(out, offsets_start + 4 * i, offset as u32);
            } else {
                set_u16(out, offsets_start + 2 * i, offset as u16);
            }
            put_varint(out, (entry.key_len - prefix_len) as u64);
            put_varint(out, entry.value_len as u64);
            put_varint(out, entry.packed(base));
            if !is_moved {
                out.extend_from_slice(entry.rest_and_value(&self.data, prefix_len));
            }
        }
        if is_moved {
            // Exactly: the block may be one huge entry.
            self.data.reserve_exact(out.len().saturating_sub(prefix_len));
            self.data.splice(..prefix_len, out.drain(..));
            std::mem::swap(out, &mut self.data);
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

/// Upper bound of a block's length: counts every sequence number as wide as the span of all.
fn estimate(n: usize, prefix_len: usize, data_len: usize, lengths_len: usize, span: SeqNo) -> usize {
    let entries_len = data_len - n * prefix_len + lengths_len + n * varint_len((span << 3) | 7);
    let len = |wide| HEADER_LEN + n * directory_len(wide) + prefix_len + entries_len;
    len(len(false) > NARROW_MAX_LEN)
}
