//! Sequence numbers, value kinds, and the order of entries.

use std::cmp::Ordering;

use byteorder::{BigEndian, ByteOrder};

use super::{Decoded, Malformed};
use crate::error::Error;

/// Position of a write in the store's single order of writes. The first is 1; 0 precedes all of
/// them.
pub type SeqNo = u64;

/// Largest sequence number: 2^56 − 1 leaves a byte for the kind beside it.
pub const MAX_SEQNO: SeqNo = (1 << 56) - 1;
/// Longest user key, in bytes.
pub const MAX_KEY_LEN: usize = 1 << 20;
/// Longest value, in bytes.
pub const MAX_VALUE_LEN: usize = 1 << 30;
/// Longest operand of a merge, in bytes: it is stored as a value, after a varint.
pub const MAX_OPERAND_LEN: usize = MAX_VALUE_LEN - 16;
/// Longest encoded batch, in bytes.
pub const MAX_BATCH_LEN: usize = (1 << 31) - 1;

/// The numbers that a read of a key sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The least: that after the newest range delete which covers the key, 0 if there is none.
    pub oldest: SeqNo,
    /// The greatest: that of the read.
    pub newest: SeqNo,
}

impl Window {
    /// That of a key which no range delete covers, for a read at `snapshot`.
    #[inline]
    pub fn up_to(snapshot: SeqNo) -> Window {
        Window { oldest: 0, newest: snapshot }
    }

    /// That of a key which the range delete numbered `cover` covers, if that is not 0.
    #[inline]
    pub fn above(cover: SeqNo, snapshot: SeqNo) -> Window {
        Window { oldest: if cover == 0 { 0 } else { cover + 1 }, newest: snapshot }
    }

    /// Whether there is a range delete.
    #[inline]
    pub fn is_covered(self) -> bool {
        self.oldest > 0
    }

    #[inline]
    pub fn sees(self, seqno: SeqNo) -> bool {
        self.oldest <= seqno && seqno <= self.newest
    }
}

/// What an entry of a memtable or of a table does to its key. Part of the format. In a log, 2 and 7
/// are operations that add no entry, and 6 counts operations that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ValueKind {
    /// A tombstone: the key is deleted.
    Delete = 0,
    /// The key has the entry's value.
    Put = 1,
    /// An operand changes the key's value; see the module `operator` of tamis.
    Merge = 3,
    /// The key has a value that a value file holds; see [`pointer`](super::pointer). Found in
    /// tables only, whose point reads make it a put.
    SeparatePut = 4,
    /// Like `Put`, until a [`deadline`](super::deadline); afterwards like `Delete`.
    ExpiringPut = 5,
    /// Like `ExpiringPut`, with the value in a value file: a deadline, then a pointer. The record
    /// has what an `ExpiringPut` stores. Found in tables only, whose point reads make it one.
    SeparateExpiringPut = 6,
}

impl ValueKind {
    pub fn decode(byte: u64) -> Decoded<ValueKind> {
        match byte {
            0 => Ok(ValueKind::Delete),
            1 => Ok(ValueKind::Put),
            3 => Ok(ValueKind::Merge),
            4 => Ok(ValueKind::SeparatePut),
            5 => Ok(ValueKind::ExpiringPut),
            6 => Ok(ValueKind::SeparateExpiringPut),
            _ => Err(Malformed("an entry is of an unknown kind")),
        }
    }

    /// Whether a value file holds the value.
    #[inline]
    pub fn is_separate(self) -> bool {
        matches!(self, ValueKind::SeparatePut | ValueKind::SeparateExpiringPut)
    }

    /// What an entry of this kind is once its value has been read.
    pub fn whole(self) -> ValueKind {
        match self {
            ValueKind::SeparatePut => ValueKind::Put,
            ValueKind::SeparateExpiringPut => ValueKind::ExpiringPut,
            kind => kind,
        }
    }

    /// The error for an entry of this kind in `place`, where no such entry can be.
    #[cold]
    pub fn misplaced(self, place: &str) -> Error {
        Error::invalid(format_args!(
            "{place} holds an entry of kind {}, which has no place there; this is a bug in tamis, or damage that \
             `kvtool verify` names",
            self as u8
        ))
    }
}

/// Checks the bounds of a range delete, of which an empty end is none.
pub fn check_range(start: &[u8], end: &[u8]) -> Decoded<()> {
    if end.len() > MAX_KEY_LEN {
        return Err(Malformed("the end of a range is longer than 1 MiB"));
    }
    if !end.is_empty() && end <= start {
        return Err(Malformed("a range ends before it begins"));
    }
    Ok(())
}

/// Order of entries everywhere: by user key, ascending as bytes, then newest first.
#[inline]
pub fn compare_entries(a: (&[u8], SeqNo), b: (&[u8], SeqNo)) -> Ordering {
    compare(a.0, b.0).then_with(|| b.1.cmp(&a.1))
}

// Reads compare keys by the three functions below, which pass no empty slice to `memcmp`. The
// pointer of an empty slice may be unmapped, and then glibc's `memcmp` for AVX-512 takes 80 ns to
// compare nothing.

/// Whether two keys, or parts of keys, are equal.
#[inline]
pub fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    // Keys and prefixes are usually short: two word comparisons instead of a call.
    match a.len() {
        0 => true,
        1..4 => a.iter().zip(b).all(|(a, b)| a == b),
        4..8 => a.first_chunk::<4>() == b.first_chunk() && a.last_chunk::<4>() == b.last_chunk(),
        8..=16 => a.first_chunk::<8>() == b.first_chunk() && a.last_chunk::<8>() == b.last_chunk(),
        _ => a == b,
    }
}

/// The order of two keys, or of parts of keys.
#[inline]
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    if a.is_empty() || b.is_empty() { a.len().cmp(&b.len()) } else { a.cmp(b) }
}

/// `key` without `prefix`; `None` if it does not begin with it.
#[inline]
pub fn strip<'k>(key: &'k [u8], prefix: &[u8]) -> Option<&'k [u8]> {
    let (front, rest) = key.split_at_checked(prefix.len())?;
    equal(front, prefix).then_some(rest)
}

/// The length of the longest common prefix of `a` and `b`, found by words.
#[inline]
pub fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    let ((words_a, _), (words_b, _)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut len = 0;
    for (a, b) in words_a.iter().zip(words_b) {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return len + differing.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(a, b)| a == b).count()
}

// A head is the first bytes of a key, or of its part after a prefix, as a number that orders like
// the bytes. A shorter key is padded with zeros. Unequal heads order as their keys do; equal heads
// say nothing. Blocks store heads of 4 bytes and indexes heads of 8, as part of the format;
// memtables sort by heads of 12 bytes and merges by heads of 16.

/// Bytes of a [`head4`].
pub const HEAD4_LEN: usize = 4;
/// Bytes of a [`head8`].
pub const HEAD8_LEN: usize = 8;
/// Bytes of a [`head12`].
pub const HEAD12_LEN: usize = 12;
/// Bytes of a [`head16`].
pub const HEAD16_LEN: usize = 16;

/// The head of 4 bytes.
pub fn head4(key: &[u8]) -> u32 {
    let mut bytes = [0; HEAD4_LEN];
    let len = key.len().min(HEAD4_LEN);
    bytes[..len].copy_from_slice(&key[..len]);
    BigEndian::read_u32(&bytes)
}

/// The head of 8 bytes.
#[inline]
pub fn head8(key: &[u8]) -> u64 {
    if let Some(bytes) = key.first_chunk::<HEAD8_LEN>() {
        return BigEndian::read_u64(bytes);
    }
    // Two loads that may overlap instead of a call to copy.
    let halves = |first: u64, last: u64, len: usize| first << (64 - 8 * len) | last << (64 - 8 * key.len());
    match (key.first_chunk(), key.last_chunk(), key) {
        (Some(first), Some(last), _) => halves(u32::from_be_bytes(*first).into(), u32::from_be_bytes(*last).into(), 4),
        (_, _, [first, .., last]) => {
            let middle = u64::from(key[key.len() / 2]) << (56 - 8 * (key.len() / 2));
            halves((*first).into(), (*last).into(), 1) | middle
        }
        (_, _, [only]) => u64::from(*only) << 56,
        _ => 0,
    }
}

/// The head of 12 bytes, in the number's high bits. The low 32 bits are 0.
pub fn head12(key: &[u8]) -> u128 {
    let mut bytes = [0; size_of::<u128>()];
    if let Some(whole) = key.first_chunk::<HEAD12_LEN>() {
        bytes[..HEAD12_LEN].copy_from_slice(whole);
    } else if let Some((first, rest)) = key.split_first_chunk::<8>() {
        bytes[..8].copy_from_slice(first);
        rest.iter().zip(&mut bytes[8..]).for_each(|(from, to)| *to = *from);
    } else {
        key.iter().zip(&mut bytes).for_each(|(from, to)| *to = *from);
    }
    BigEndian::read_u128(&bytes)
}

/// The head of 16 bytes.
#[inline]
pub fn head16(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<HEAD16_LEN>() {
        return BigEndian::read_u128(first);
    }
    if let (Some(first), Some(last)) = (key.first_chunk::<8>(), key.last_chunk::<8>()) {
        // The two chunks overlap: shift out of `last` what `first` has already.
        let last = u128::from(BigEndian::read_u64(last)) << (8 * (HEAD16_LEN - key.len()));
        return (u128::from(BigEndian::read_u64(first)) << 64) | (last & u128::from(u64::MAX));
    }
    let mut bytes = [0; HEAD16_LEN];
    bytes[..key.len()].copy_from_slice(key);
    BigEndian::read_u128(&bytes)
}

/// The bytes of a [`head16`].
#[inline]
pub fn head16_bytes(head: u128) -> [u8; HEAD16_LEN] {
    let mut bytes = [0; HEAD16_LEN];
    BigEndian::write_u128(&mut bytes, head);
    bytes
}

/// The smallest key greater than every key that begins with `prefix`; `None` if there is none.
pub fn prefix_successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut successor = prefix[..=last].to_vec();
    successor[last] += 1;
    Some(successor)
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
            let padded = |key: &[u8]| [key, &[0; HEAD16_LEN][..]].concat()[..HEAD16_LEN].to_vec();
            let (long_a, long_b) = (padded(&a), padded(&b));
            prop_assert_eq!(head4(&a).cmp(&head4(&b)), long_a[..4].cmp(&long_b[..4]));
            prop_assert_eq!(head8(&a).cmp(&head8(&b)), long_a[..8].cmp(&long_b[..8]));
            prop_assert_eq!(head12(&a).cmp(&head12(&b)), long_a[..12].cmp(&long_b[..12]));
            prop_assert_eq!(head16(&a).cmp(&head16(&b)), long_a.cmp(&long_b));
            prop_assert_eq!(&head16_bytes(head16(&a))[..], &long_a[..]);
            prop_assert_eq!(head12(&a), head16(&long_a[..12]));
            // Exact, at every length: tables store this head.
            prop_assert_eq!(head8(&a), u64::from_be_bytes(long_a[..8].try_into().unwrap()));
        }
    }

    #[test]
    fn newest_version_of_a_key_comes_first() {
        assert_eq!(compare_entries((b"a", 9), (b"a", 3)), Ordering::Less);
        assert_eq!(compare_entries((b"a", 1), (b"b", 9)), Ordering::Less);
        assert_eq!(compare_entries((b"a", 1), (b"a\0", 9)), Ordering::Less);
    }

    #[test]
    fn keys_compare_as_slices_do() {
        // All lengths up to 20: the key itself, and with a changed byte at each position.
        let all: Vec<u8> = (0..20).collect();
        let changed = |len: usize, at: usize| {
            let mut key = all[..len].to_vec();
            key[at] = 99;
            key
        };
        let plain = (0..=20).map(|len| all[..len].to_vec());
        let others = (1..=20).flat_map(|len| (0..len).map(move |at| (len, at)));
        let keys: Vec<Vec<u8>> = plain.chain(others.map(|(len, at)| changed(len, at))).collect();
        for (a, b) in keys.iter().flat_map(|a| keys.iter().map(move |b| (&a[..], &b[..]))) {
            assert_eq!(equal(a, b), a == b);
            assert_eq!(compare(a, b), a.cmp(b));
            assert_eq!(strip(a, b), a.strip_prefix(b));
        }
    }

    #[test]
    fn prefix_successor_skips_trailing_ff() {
        assert_eq!(prefix_successor(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_successor(b"\xff"), None);
        assert_eq!(prefix_successor(b""), None);
    }
}
