//! [`KeyRange`]: the keys that a command line names.

use std::ops::Bound;

use tamis::Cursor;

use crate::args::{Common, Range};
use crate::failure::Result;

/// Keys from `lower`, inclusive, to `upper`, exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) lower: Vec<u8>,
    pub(crate) upper: Option<Vec<u8>>,
}

impl KeyRange {
    /// The range that a command line names.
    pub(super) fn of(common: &Common, range: &Range) -> Result<KeyRange> {
        let from = common.optional_bytes("--from", range.from.as_ref())?;
        let to = common.optional_bytes("--to", range.to.as_ref())?;
        let prefix = common.optional_bytes("--prefix", range.prefix.as_ref())?;
        Ok(KeyRange::new(from, to, prefix))
    }

    /// The intersection of all given bounds.
    pub(super) fn new(from: Option<Vec<u8>>, to: Option<Vec<u8>>, prefix: Option<Vec<u8>>) -> KeyRange {
        let prefix_end = prefix.as_deref().and_then(successor);
        KeyRange {
            lower: from.into_iter().chain(prefix).max().unwrap_or_default(),
            upper: to.into_iter().chain(prefix_end).min(),
        }
    }

    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(&self.lower), self.upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded))
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        *key >= *self.lower && self.upper.as_ref().is_none_or(|upper| *key < **upper)
    }

    pub(super) fn seek_to_first(&self, cursor: &mut Cursor) -> tamis::Result<bool> {
        cursor.seek(&self.lower)
    }

    pub(super) fn seek_to_last(&self, cursor: &mut Cursor) -> tamis::Result<bool> {
        let Some(upper) = &self.upper else { return cursor.seek_to_last() };
        let valid = cursor.seek_for_prev(upper)?;
        if valid && cursor.key() == Some(upper.as_slice()) {
            return cursor.prev();
        }
        Ok(valid)
    }
}

/// The smallest key above all keys that begin with `prefix`; `None` if there is none.
pub(super) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut successor = prefix[..=last].to_vec();
    successor[last] += 1;
    Some(successor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_what_all_bounds_allow() {
        let some = |bytes: &[u8]| Some(bytes.to_vec());
        let range = |lower: &[u8], upper: Option<Vec<u8>>| KeyRange { lower: lower.to_vec(), upper };
        assert_eq!(KeyRange::new(None, None, None), range(b"", None));
        assert_eq!(KeyRange::new(some(b"a"), some(b"b"), None), range(b"a", some(b"b")));
        assert_eq!(KeyRange::new(None, None, some(b"a\xff")), range(b"a\xff", some(b"b")));
        assert_eq!(KeyRange::new(None, None, some(b"\xff")), range(b"\xff", None));
        assert_eq!(KeyRange::new(some(b"ab"), some(b"z"), some(b"a")), range(b"ab", some(b"b")));
        assert_eq!(KeyRange::new(some(b"0"), some(b"aa"), some(b"a")), range(b"a", some(b"aa")));
    }
}
