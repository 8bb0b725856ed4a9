//! Sequence numbers, value kinds, and the order of entries.

use std::cmp::Ordering;

use super::{Decoded, Malformed};

/// Position of a write in the store's single order of writes. The first is 1; 0 precedes all of
/// them.
pub type SeqNo = u64;

/// Largest sequence number: 2^56 − 1 leaves a byte for the kind beside it.
pub(crate) const MAX_SEQNO: SeqNo = (1 << 56) - 1;
/// Longest user key, in bytes.
pub const MAX_KEY_LEN: usize = 1 << 20;
/// Longest value, in bytes.
pub const MAX_VALUE_LEN: usize = 1 << 30;
/// Longest encoded batch, in bytes.
pub(crate) const MAX_BATCH_LEN: usize = (1 << 31) - 1;

/// What an entry does to its key. Part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ValueKind {
    /// A tombstone: the key is deleted.
    Delete = 0,
    /// The key has the entry's value.
    Put = 1,
}

impl ValueKind {
    pub(crate) fn decode(byte: u64) -> Decoded<ValueKind> {
        match byte {
            0 => Ok(ValueKind::Delete),
            1 => Ok(ValueKind::Put),
            _ => Err(Malformed("an entry is of an unknown kind")),
        }
    }
}

/// Order of entries everywhere: by user key, ascending as bytes, then newest first.
#[inline]
pub(crate) fn compare_entries(a: (&[u8], SeqNo), b: (&[u8], SeqNo)) -> Ordering {
    compare(a.0, b.0).then_with(|| b.1.cmp(&a.1))
}

// Reads compare keys by the three functions below, which pass no empty slice to `memcmp`. The
// pointer of an empty slice may be unmapped, and then glibc's `memcmp` for AVX-512 takes 80 ns to
// compare nothing.

/// Whether two keys, or parts of keys, are equal.
#[inline]
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
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
pub(crate) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    if a.is_empty() || b.is_empty() { a.len().cmp(&b.len()) } else { a.cmp(b) }
}

/// `key` without `prefix`; `None` if it does not begin with it.
#[inline]
pub(crate) fn strip<'k>(key: &'k [u8], prefix: &[u8]) -> Option<&'k [u8]> {
    let (front, rest) = key.split_at_checked(prefix.len())?;
    equal(front, prefix).then_some(rest)
}

/// The length of the longest common prefix of `a` and `b`.
pub(crate) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The first eight bytes of a key, or of its part after a prefix, as a number that orders like the
/// bytes. A shorter key is padded with zeros.
#[inline]
pub(crate) fn head(key: &[u8]) -> u64 {
    if let Some(bytes) = key.first_chunk() {
        return u64::from_be_bytes(*bytes);
    }
    let mut bytes = [0; 8];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

/// The smallest key greater than every key that begins with `prefix`; `None` if there is none.
pub(crate) fn prefix_successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut successor = prefix[..=last].to_vec();
    successor[last] += 1;
    Some(successor)
}

#[cfg(test)]
mod tests {
    use super::*;

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
