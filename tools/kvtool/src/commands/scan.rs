//! `scan`: the entries of a range, in either direction.

use std::ops::Bound;

use tamis::{Cursor, ReadOptions};

use super::row::{Part, Rows};
use super::salvage;
use super::store::open_to_read;
use crate::args::{Common, Range, Scan};
use crate::failure::Result;
use crate::output::say;
use crate::text::counted;

pub(crate) fn run(common: &Common, args: Scan) -> Result<()> {
    let (range, part) = (KeyRange::of(common, &args.range)?, Part::of(&args));
    let (_db, keyspace) = open_to_read(&args.db, common)?;
    if args.skip_damaged {
        let limit = args.limit.unwrap_or(u64::MAX);
        return salvage::run(common, &keyspace, range.lower, range.upper, limit, part);
    }
    // The scan uses each block once: reads ahead and bypasses the cache.
    let mut cursor = keyspace.cursor_with(ReadOptions::new().fill_cache(false))?;
    let mut rows = Rows::new(common, part);
    let (mut left, mut deadlines) = (args.limit.unwrap_or(u64::MAX), 0);
    let mut valid =
        left > 0 && if args.reverse { range.seek_to_last(&mut cursor)? } else { range.seek_to_first(&mut cursor)? };
    while let (true, Some(key), Some(value)) = (valid, cursor.key(), cursor.value()) {
        if !range.contains(key) {
            break;
        }
        let deadline = cursor.deadline();
        deadlines += u64::from(deadline.is_some());
        rows.add(key, value, deadline)?;
        left -= 1;
        valid = left > 0 && if args.reverse { cursor.prev()? } else { cursor.next()? };
    }
    rows.finish()?;
    if deadlines > 0 && !common.json() && part == Part::Entries {
        let deadlines = counted(deadlines, "value");
        say(format_args!(
            "{deadlines} with a deadline, which lines do not show; --json does, and `export` to JSON lines"
        ));
    }
    Ok(())
}

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

    fn seek_to_last(&self, cursor: &mut Cursor) -> tamis::Result<bool> {
        let Some(upper) = &self.upper else { return cursor.seek_to_last() };
        let valid = cursor.seek_for_prev(upper)?;
        if valid && cursor.key() == Some(upper.as_slice()) {
            return cursor.prev();
        }
        Ok(valid)
    }
}

/// The smallest key above all keys that begin with `prefix`; `None` if there is none.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
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
