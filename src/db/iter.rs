//! [`Iter`]: a scan of a range, from both ends.
//!
//! If the keyspace has a prefix extractor and all keys of the range share a prefix, the scan skips
//! tables whose filters deny the prefix (`crates/sorted/src/table/prefix.rs`).

use super::read::cursor::Cursor;
use crate::error::{Error, Result};
use crate::filter::PrefixExtractor;
use crate::format::key::prefix_successor;
use crate::format::span::KeySpan;
use crate::sorted::merge::MergingCursor;
use crate::sorted::value::Value;

/// The prefix that `extractor` finds in every key of `span`, if all have the same. That is the
/// lower bound's prefix if the span ends before the keys of the next one.
pub(super) fn common_prefix(span: &KeySpan<Vec<u8>>, extractor: PrefixExtractor) -> Option<&[u8]> {
    let prefix = extractor.extract(span.lower.as_deref()?)?;
    let within = match (&span.upper, prefix_successor(prefix)) {
        // No key follows those with the prefix.
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(upper), Some(end)) => *upper <= end,
    };
    within.then_some(prefix)
}

/// Iterates over the entries of a range, from both ends. It owns what it needs and borrows from no
/// handle or snapshot.
///
/// Until dropped, it keeps the memtables and tables of the moment it was made, like a [`Cursor`].
///
/// After an error it ends.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// for key in ["a:1", "a:2", "a:3", "b:1", "c:1"] {
///     db.put(key, "")?;
/// }
/// // The first key of each group, by a seek past the rest of the group.
/// let mut iter = db.iter();
/// let mut groups = Vec::new();
/// while let Some((key, _)) = iter.next().transpose()? {
///     groups.push(key[0]);
///     iter.seek([key[0] + 1]);
/// }
/// assert_eq!(groups, b"abc");
/// # Ok(()) }
/// ```
pub struct Iter {
    range: KeySpan<Vec<u8>>,
    /// Opens the cursor of one end on its first use, with a limit at the other end.
    open: OpenCursor,
    /// Each stands on the last entry that its end returned.
    front: Option<Cursor>,
    back: Option<Cursor>,
    /// Where a seek has moved an end to, until its next step: the inclusive lower bound of the
    /// front, the exclusive upper bound of the back.
    front_sought: Option<Vec<u8>>,
    back_sought: Option<Vec<u8>>,
    /// Why the scan could not be opened; returned once.
    failure: Option<Error>,
    done: bool,
}

type OpenCursor = Box<dyn Fn(KeySpan<&[u8]>) -> Cursor + Send>;

impl Iter {
    pub(super) fn new(range: KeySpan<Vec<u8>>, open: OpenCursor) -> Iter {
        let (front, back, front_sought, back_sought) = Default::default();
        Iter { range, open, front, back, front_sought, back_sought, failure: None, done: false }
    }

    /// An iterator that returns `error` and ends.
    pub(super) fn failed(error: Error) -> Iter {
        Iter {
            failure: Some(error),
            ..Iter::new(KeySpan::default(), Box::new(|_| Cursor::empty(MergingCursor::new(Vec::new()), 0)))
        }
    }

    /// Moves the front: [`next`](Iterator::next) will return the first entry of the range whose key
    /// is `key` or greater. May go either way.
    ///
    /// The entries that the back has returned stay excluded, unless the iterator has ended. After
    /// the end, a seek of one end puts the other one back to its bound.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.seek_front(key.as_ref());
    }

    /// Moves the back: [`next_back`](DoubleEndedIterator::next_back) will return the last entry of
    /// the range whose key is `key` or less. Otherwise like [`seek`](Iter::seek).
    pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
        self.seek_back_before(Some([key.as_ref(), &[0]].concat()));
    }

    /// Whether both ends have met.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn seek_front(&mut self, key: &[u8]) {
        let lower = self.range.lower.as_deref().unwrap_or_default();
        self.front_sought = Some(key.max(lower).to_vec());
        if std::mem::take(&mut self.done) {
            (self.back, self.back_sought) = (None, None);
        }
    }

    /// Moves the back before `end`, or to its bound.
    pub(super) fn seek_back_before(&mut self, end: Option<Vec<u8>>) {
        if std::mem::take(&mut self.done) {
            (self.front, self.front_sought) = (None, None);
        }
        self.back_sought = match (end, &self.range.upper) {
            (Some(end), Some(upper)) if end > *upper => Some(upper.clone()),
            (None, upper) => upper.clone(),
            (end, _) => end,
        };
        if self.back_sought.is_none() {
            self.back = None;
        }
    }

    fn advance_front(&mut self) -> Result<bool> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let end = self.range.upper.as_deref();
        match &mut self.front {
            Some(cursor) if self.front_sought.is_none() => cursor.next_before(end)?,
            front => {
                let cursor = front.get_or_insert_with(|| (self.open)(KeySpan { lower: None, upper: end }));
                match self.front_sought.take().as_deref().or(self.range.lower.as_deref()) {
                    Some(lower) => cursor.seek_within(lower, end)?,
                    None => cursor.seek_to_first_before(end)?,
                }
            }
        };
        // The scan ends where the other end is, or at the range's end.
        let key = self.front.as_ref().and_then(Cursor::key);
        let back = self.back_sought.as_deref().or_else(|| self.back.as_ref().and_then(Cursor::key));
        let end = back.or(self.range.upper.as_deref());
        Ok(key.is_some_and(|key| end.is_none_or(|end| key < end)))
    }

    fn advance_back(&mut self) -> Result<bool> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let end = self.range.lower.as_deref();
        match &mut self.back {
            Some(cursor) if self.back_sought.is_none() => cursor.prev_from(end)?,
            back => {
                let cursor = back.get_or_insert_with(|| (self.open)(KeySpan { lower: end, upper: None }));
                match self.back_sought.take().as_deref().or(self.range.upper.as_deref()) {
                    Some(upper) => cursor.seek_before(upper, end)?,
                    None => cursor.seek_to_last_from(end)?,
                }
            }
        };
        let key = self.back.as_ref().and_then(Cursor::key);
        let lower = self.front_sought.as_deref();
        Ok(key.is_some_and(|key| match self.front.as_ref().and_then(Cursor::key) {
            Some(front) if lower.is_none() => key > front,
            _ => lower.or(self.range.lower.as_deref()).is_none_or(|lower| key >= lower),
        }))
    }

    /// Moves one end to its next entry and returns what `take` makes of it.
    pub(super) fn step<R>(&mut self, forward: bool, take: impl FnOnce(&Cursor) -> Option<R>) -> Option<Result<R>> {
        if self.done {
            return None;
        }
        let advanced = if forward { self.advance_front() } else { self.advance_back() };
        match advanced {
            Ok(true) => {
                let cursor = if forward { &self.front } else { &self.back };
                take(cursor.as_ref()?).map(Ok)
            }
            Ok(false) => {
                self.done = true;
                if let Some(cursor) = if forward { &mut self.front } else { &mut self.back } {
                    cursor.end();
                }
                None
            }
            Err(error) => {
                self.done = true;
                Some(Err(error))
            }
        }
    }
}

pub(super) fn copy_entry(cursor: &Cursor) -> Option<(Value, Value)> {
    Some((Value::copy_of(cursor.key()?), Value::copy_of(cursor.value()?)))
}

impl Iterator for Iter {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(true, copy_entry)
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(false, copy_entry)
    }
}

impl std::iter::FusedIterator for Iter {}

#[cfg(test)]
mod tests {
    use super::super::range::KeyRange;
    use super::*;

    #[test]
    fn a_range_tells_its_prefix_if_all_its_keys_have_one() {
        let (fixed, up_to) = (PrefixExtractor::Fixed(2), PrefixExtractor::UpTo(b':'));
        let of = KeySpan::of_prefix;
        for (range, extractor, prefix) in [
            (of(b"ab"), fixed, Some(&b"ab"[..])),
            (of(b"abc"), fixed, Some(b"ab")),
            (of(b"a"), fixed, None),
            (of(b""), fixed, None),
            (of(b"\xff\xff\xff"), fixed, Some(b"\xff\xff")),
            (of(b"a\xff"), fixed, Some(b"a\xff")),
            (of(b"ab:c:d"), up_to, Some(b"ab:")),
            (of(b":"), up_to, Some(b":")),
            (of(b"ab"), up_to, None),
            (KeySpan::of(("abc".."abd").into_bounds()), fixed, Some(b"ab")),
            (KeySpan::of(("abc".."ac").into_bounds()), fixed, Some(b"ab")),
            (KeySpan::of(("abc"..="ac").into_bounds()), fixed, None),
            (KeySpan::of(("abc".."b").into_bounds()), fixed, None),
            (KeySpan::of(("abc"..).into_bounds()), fixed, None),
            (KeySpan::of((.."abc").into_bounds()), fixed, None),
            (KeySpan::of((..).into_bounds()), fixed, None),
            (KeySpan::of((&b"\xff\xff"[..]..).into_bounds()), fixed, Some(b"\xff\xff")),
        ] {
            assert_eq!(common_prefix(&range, extractor), prefix, "{range:?} {extractor:?}");
        }
    }
}
