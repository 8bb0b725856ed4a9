//! Sequence numbers, value kinds, and the order of entries.

use std::cmp::Ordering;

use super::{Decoded, Malformed};

/// Position of a write in the one order of all writes of a store. The first is 1; 0 is before all of them.
pub type SeqNo = u64;

/// Largest sequence number; 2^56 − 1 leaves room for the kind beside it.
pub(crate) const MAX_SEQNO: SeqNo = (1 << 56) - 1;
/// Longest user key, in bytes.
pub const MAX_KEY_LEN: usize = 1 << 20;
/// Longest value, in bytes.
pub const MAX_VALUE_LEN: usize = 1 << 30;
/// Longest encoded batch, in bytes.
pub(crate) const MAX_BATCH_LEN: usize = (1 << 31) - 1;

/// What an entry says of its key. Part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ValueKind {
    /// A tombstone: the key is absent from here on.
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

/// Order of entries everywhere: by user key, bytes ascending, then newest first.
pub(crate) fn compare_entries(a: (&[u8], SeqNo), b: (&[u8], SeqNo)) -> Ordering {
    a.0.cmp(b.0).then_with(|| b.1.cmp(&a.1))
}

/// The length of the longest common prefix of `a` and `b`.
pub(crate) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The first eight bytes of a key, or of what follows a prefix of it, as a number that orders as the bytes do; a shorter one counts as
/// if zeros followed.
#[inline]
pub(crate) fn head(key: &[u8]) -> u64 {
    if let Some(bytes) = key.first_chunk() {
        return u64::from_be_bytes(*bytes);
    }
    let mut bytes = [0; 8];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

/// The smallest key greater than every key that begins with `prefix`, or `None` if there is no such key.
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
    fn prefix_successor_skips_trailing_ff() {
        assert_eq!(prefix_successor(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_successor(b"\xff"), None);
        assert_eq!(prefix_successor(b""), None);
    }
}
