//! The index of a table, which names the data block that may hold a key. Resident while the table
//! is open.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | n, the number of data blocks, at least 1 |
//! | 4 | 2 | length of the common prefix of all separators, at most 65,535 |
//! | 6 | 2 | zero |
//! | 8 | 8n | heads: [`head8`] of each separator after the common prefix |
//! | | 12n | handles of the data blocks |
//! | | 4(n+1) | ends of the separators' rests, counted from the first rest; the first is 0 |
//! | | | the common prefix, then the rests |

mod heads;

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use heads::IndexHeads;
pub(super) use heads::{HeadsNode, UpperRows, WIDTH};

use super::footer::{BlockHandle, HANDLE_LEN, PAGE};
use crate::format::coding::{Decoder, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::format::header::FILE_HEADER_LEN;
use crate::format::key::{HEAD8_LEN, common_prefix_len, compare, head8, strip};
use crate::format::{Decoded, Malformed};
use crate::iter::KeyBound;
use crate::memory::pool::{TableArray, TableMemory};
use crate::memory::prefetch::prefetch;

/// Longest common prefix that is removed from the separators. Part of the format.
const MAX_PREFIX_LEN: usize = 0xffff;
/// Length of a separator's end. Part of the format.
pub(super) const END_LEN: usize = 4;

/// The shortest key that is at least `last`, the last key of a block, and less than `next`, the
/// first key of the next block. Returns `last` if the two are equal or no shorter prefix of `next`
/// fits.
pub(super) fn separator<'a>(last: &'a [u8], next: &'a [u8]) -> &'a [u8] {
    let len = common_prefix_len(last, next) + 1;
    if len < last.len() && len < next.len() { &next[..len] } else { last }
}

/// Collects separators and handles, in order.
#[derive(Default)]
pub(super) struct IndexBuilder {
    handles: Vec<BlockHandle>,
    /// The separators, concatenated.
    separators: Vec<u8>,
    ends: Vec<usize>,
}

impl IndexBuilder {
    /// Adds the separator after a block. [`IndexBuilder::end`] adds the block's handle.
    pub(super) fn begin(&mut self, separator: &[u8]) {
        self.separators.extend_from_slice(separator);
        self.ends.push(self.separators.len());
    }

    pub(super) fn end(&mut self, handle: BlockHandle) {
        self.handles.push(handle);
    }

    /// Upper bound of the encoded length if the index were finished now.
    pub(super) fn size(&self) -> usize {
        12 + self.handles.len() * (HEAD8_LEN + HANDLE_LEN + 4) + self.separators.len()
    }

    fn separator(&self, i: usize) -> &[u8] {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.separators[start..self.ends[i]]
    }

    /// Encodes the block; `None` if its length exceeds 32 bits.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "all numbers are at most the length of the block, which is checked first"
    )]
    pub(super) fn finish(&self) -> Option<Vec<u8>> {
        u32::try_from(self.size()).ok()?;
        let n = self.handles.len();
        let prefix = match n.checked_sub(1) {
            Some(last) => {
                let (first, last) = (self.separator(0), self.separator(last));
                &first[..common_prefix_len(first, last).min(MAX_PREFIX_LEN)]
            }
            None => &[],
        };
        let rest = |i| &self.separator(i)[prefix.len()..];
        let mut out = Vec::with_capacity(self.size());
        put_u32(&mut out, n as u32);
        put_u16(&mut out, prefix.len() as u16);
        put_u16(&mut out, 0);
        for i in 0..n {
            put_u64(&mut out, head8(rest(i)));
        }
        for handle in &self.handles {
            out.extend_from_slice(&handle.encode());
        }
        let mut end = 0;
        put_u32(&mut out, 0);
        for i in 0..n {
            end += rest(i).len();
            put_u32(&mut out, end as u32);
        }
        out.extend_from_slice(prefix);
        for i in 0..n {
            out.extend_from_slice(rest(i));
        }
        Some(out)
    }
}

/// The decoded index block: heads for searching, and the full separators for ties.
#[derive(Debug)]
pub(super) struct Index {
    heads: IndexHeads,
    /// As on disk.
    handles: TableArray<[u8; HANDLE_LEN]>,
    /// End of each separator in `rests`, ascending, after a leading 0.
    ends: TableArray<u32>,
    prefix: Box<[u8]>,
    rests: TableArray<u8>,
}

impl Index {
    /// Decodes the index in `bytes`, into table memory if that is given.
    pub(super) fn decode(bytes: &[u8], memory: Option<&Arc<TableMemory>>) -> Decoded<Index> {
        let mut fields = Decoder::new(bytes);
        let n = fields.u32()? as usize;
        let (prefix_len, zero) = (usize::from(fields.u16()?), fields.u16()?);
        if n == 0 || zero != 0 {
            return Err(Malformed("the header of the index is not valid"));
        }
        let arrays_len = n.checked_mul(HEAD8_LEN + HANDLE_LEN + END_LEN);
        if arrays_len.is_none_or(|len| len > fields.remaining()) {
            return Err(Malformed("the index is cut short"));
        }
        let (heads, _) = fields.take(n * HEAD8_LEN)?.as_chunks();
        if !heads.iter().map(get_u64).is_sorted() {
            return Err(Malformed("the heads of the index are out of order"));
        }
        let (handles, _) = fields.take(n * HANDLE_LEN)?.as_chunks();
        let (ends, _) = fields.take((n + 1) * END_LEN)?.as_chunks();
        let index = Index {
            heads: IndexHeads::new(heads, get_u64, memory),
            handles: TableArray::new(memory, handles.iter().copied()),
            ends: TableArray::new(memory, ends.iter().map(get_u32)),
            prefix: fields.take(prefix_len)?.into(),
            rests: TableArray::new(memory, fields.take(fields.remaining())?.iter().copied()),
        };
        index.check()?;
        Ok(index)
    }

    /// Checks what searches and reads rely on. `verify` checks the heads against the separators.
    fn check(&self) -> Decoded<()> {
        if self.ends[0] != 0 || !self.ends.is_sorted() || self.ends[self.len()] as usize != self.rests.len() {
            return Err(Malformed("the separators do not fill the index"));
        }
        let mut end = FILE_HEADER_LEN as u64;
        for i in 0..self.len() {
            let handle = self.handle(i);
            let follows = handle.offset == end || end.checked_next_multiple_of(PAGE) == Some(handle.offset);
            end = match handle.end() {
                Some(next) if follows => next,
                _ => return Err(Malformed("there is a gap or an overlap between data blocks")),
            };
        }
        Ok(())
    }

    /// Number of data blocks, at least 1.
    pub(super) fn len(&self) -> usize {
        self.handles.len()
    }

    /// The handle of the block at position `i`, which must be less than [`Index::len`].
    pub(super) fn handle(&self, i: usize) -> BlockHandle {
        BlockHandle::from_bytes(&self.handles[i])
    }

    /// Prefetches the handles at these positions.
    #[inline]
    pub(super) fn prefetch_handles(&self, positions: Range<usize>) {
        const PER_LINE: usize = 64 / HANDLE_LEN;
        for handles in self.handles.get(positions).into_iter().flat_map(|handles| handles.chunks(PER_LINE)) {
            prefetch(handles.as_ptr());
        }
    }

    /// Offset just past the last data block.
    pub(super) fn data_end(&self) -> u64 {
        let last = self.handles.last().and_then(|handle| BlockHandle::from_bytes(handle).end());
        last.unwrap_or_default()
    }

    /// Position of the first block that may hold `key` or a greater key; [`Index::len`] if all
    /// blocks end before it. Calls `prefetch_among` before the last step of the search, with the
    /// positions among which the result is.
    #[inline]
    pub(super) fn find(&self, key: &[u8], prefetch_among: impl FnOnce(Range<usize>)) -> usize {
        let Some(rest) = strip(key, &self.prefix) else {
            return if compare(key, &self.prefix).is_lt() { 0 } else { self.len() };
        };
        let head = head8(rest);
        let start = self.heads.count_less(head, prefetch_among);
        if self.heads.get(start) == Some(head) { self.find_tie(start, head, rest) } else { start }
    }

    /// Prefetches what [`Index::find`] will read.
    #[inline]
    pub(super) fn prefetch(&self, key: &[u8]) {
        if let Some(rest) = strip(key, &self.prefix) {
            self.heads.prefetch(head8(rest));
        }
    }

    /// [`Index::find`] among the separators from `start` on that share the head of `rest`. Equal
    /// heads do not decide between longer keys, or between keys that differ in trailing zeros.
    fn find_tie(&self, start: usize, head: u64, rest: &[u8]) -> usize {
        let end = head.checked_add(1).map_or(self.len(), |next| self.heads.count_less(next, |_| ()));
        let mut ties = start..end;
        while !ties.is_empty() {
            let middle = ties.start + ties.len() / 2;
            if compare(self.rest(middle), rest).is_lt() {
                ties.start = middle + 1;
            } else {
                ties.end = middle;
            }
        }
        ties.start
    }

    /// What all separators begin with.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The rows above the heads, without the rest.
    pub(super) fn into_upper(self) -> UpperRows {
        self.heads.into_upper()
    }

    /// Compares the separator after block `i` with `key`.
    pub(super) fn compare_separator(&self, i: usize, key: &[u8]) -> Ordering {
        self.separator(i).compare(key)
    }

    /// The separator after block `i`.
    pub(super) fn separator(&self, i: usize) -> KeyBound<'_> {
        KeyBound { prefix: &self.prefix, rest: self.rest(i) }
    }

    /// Whether the stored head of block `i` is that of its separator.
    pub(super) fn head_is_right(&self, i: usize) -> bool {
        self.heads.get(i) == Some(head8(self.rest(i)))
    }

    fn rest(&self, i: usize) -> &[u8] {
        &self.rests[self.ends[i] as usize..self.ends[i + 1] as usize]
    }

    /// Bytes that the index takes in memory.
    pub(super) fn memory(&self) -> usize {
        size_of::<Index>()
            + self.heads.memory()
            + size_of_val(&*self.handles)
            + size_of_val(&*self.ends)
            + self.prefix.len()
            + self.rests.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn build(separators: &[Vec<u8>]) -> Vec<u8> {
        let mut builder = IndexBuilder::default();
        let mut offset = 64;
        for separator in separators {
            let handle = BlockHandle { offset, len: 100 };
            builder.begin(separator);
            builder.end(handle);
            offset += handle.stored_len();
        }
        let bytes = builder.finish().unwrap();
        assert!(bytes.len() <= builder.size());
        bytes
    }

    fn separators() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let key = prop_oneof![
            vec(any::<u8>(), 0..4),
            vec(prop_oneof![Just(0u8), Just(0xff)], 0..12),
            (0u32..500).prop_map(|n| format!("some/common/prefix/{n:06}").into_bytes()),
        ];
        vec(key, 1..60).prop_map(|mut keys| {
            keys.sort();
            keys
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn find_gives_the_first_separator_not_less_than_the_key(separators in separators(), others in separators()) {
            let index = Index::decode(&build(&separators), None).unwrap();
            prop_assert_eq!(index.len(), separators.len());
            let cut = separators.iter().map(|key| key[..key.len() / 2].to_vec());
            let longer = separators.iter().map(|key| [key, &[0][..]].concat());
            for key in separators.iter().cloned().chain(others).chain(cut).chain(longer) {
                prop_assert_eq!(index.find(&key, |_| ()), separators.partition_point(|other| *other < key));
                for (i, separator) in separators.iter().enumerate() {
                    prop_assert_eq!(index.compare_separator(i, &key), separator.cmp(&key));
                    prop_assert_eq!(&index.separator(i).to_vec(), separator);
                    prop_assert!(index.head_is_right(i));
                }
            }
        }

        #[test]
        fn separator_lies_between_its_blocks(a in vec(0u8..3, 0..6), b in vec(0u8..3, 0..6)) {
            let (last, next) = if a < b { (&a, &b) } else { (&b, &a) };
            let separator = separator(last, next);
            prop_assert!(separator >= &last[..]);
            prop_assert!(separator < &next[..] || last == next);
            prop_assert!(separator.len() <= last.len());
        }

        #[test]
        fn decoding_damaged_indexes_never_panics(
            separators in separators(), at: prop::sample::Index, to: u8, cut: prop::sample::Index, key: Vec<u8>
        ) {
            let mut bytes = build(&separators);
            let (at, cut) = (at.index(bytes.len()), cut.index(bytes.len()));
            bytes[at] = to;
            for bytes in [&bytes[..], &bytes[..cut]] {
                if let Ok(index) = Index::decode(bytes, None) {
                    prop_assert!(index.find(&key, |_| ()) <= index.len());
                }
            }
        }
    }

    #[test]
    fn between_blocks_there_is_nothing_or_the_rest_of_a_page() {
        let decoded = |offsets: [u64; 3]| {
            let mut builder = IndexBuilder::default();
            for (separator, offset) in [b"a", b"b", b"c"].into_iter().zip(offsets) {
                builder.begin(separator);
                builder.end(BlockHandle { offset, len: 1000 - 5 });
            }
            Index::decode(&builder.finish().unwrap(), None)
        };
        for right in [[64, 1064, 2064], [64, 4096, 5096], [4096, 8192, 9192], [64, 1064, 4096]] {
            assert!(decoded(right).is_ok(), "{right:?}");
        }
        for wrong in
            [[64, 1065, 2065], [64, 8192, 9192], [64, 4095, 5095], [64, 1063, 2063], [63, 1063, 2063], [0, 1000, 2000]]
        {
            assert!(decoded(wrong).is_err(), "{wrong:?}");
        }
        assert!(decoded([64, 1064, u64::MAX]).is_err());
    }

    #[test]
    fn separators_are_shortened() {
        assert_eq!(separator(b"key0009", b"key0010"), b"key001");
        assert_eq!(separator(b"apple", b"banana"), b"b");
        assert_eq!(separator(b"abc", b"abcd"), b"abc");
        assert_eq!(separator(b"same", b"same"), b"same");
    }
}
