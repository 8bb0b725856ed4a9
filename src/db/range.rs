//! [`KeyRange`]: what methods take as a range of keys.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys: `a..b`, `a..=b`, `a..`, `..b`, `..=b`, `..`, or a pair of [`Bound`]s, over any
/// type that is bytes.
pub trait KeyRange {
    /// The bounds, owned.
    fn into_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);
}

impl KeyRange for RangeFull {
    fn into_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for (Bound<K>, Bound<K>) {
    fn into_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let owned = |bound: Bound<K>| bound.map(|key| key.as_ref().to_vec());
        (owned(self.0), owned(self.1))
    }
}

impl<K: AsRef<[u8]>> KeyRange for Range<K> {
    fn into_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Included(self.start), Bound::Excluded(self.end)).into_bounds()
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeInclusive<K> {
    fn into_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let (start, end) = self.into_inner();
        (Bound::Included(start), Bound::Included(end)).into_bounds()
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeFrom<K> {
    fn into_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Included(self.start), Bound::Unbounded).into_bounds()
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeTo<K> {
    fn into_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Excluded(self.end)).into_bounds()
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeToInclusive<K> {
    fn into_bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Included(self.end)).into_bounds()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::span::KeySpan;

    #[test]
    fn every_form_of_range_becomes_half_open() {
        let span = |lower: Option<&[u8]>, upper: Option<&[u8]>| KeySpan {
            lower: lower.map(<[u8]>::to_vec),
            upper: upper.map(<[u8]>::to_vec),
        };
        assert_eq!(KeySpan::of((..).into_bounds()), span(None, None));
        assert_eq!(KeySpan::of(("a".."b").into_bounds()), span(Some(b"a"), Some(b"b")));
        assert_eq!(KeySpan::of(("a"..="b").into_bounds()), span(Some(b"a"), Some(b"b\0")));
        assert_eq!(KeySpan::of(("a"..).into_bounds()), span(Some(b"a"), None));
        assert_eq!(KeySpan::of((..=[1u8]).into_bounds()), span(None, Some(&[1, 0])));
        assert_eq!(KeySpan::of((Bound::Excluded("a"), Bound::Unbounded).into_bounds()), span(Some(b"a\0"), None));
    }
}
