//! [`KeyBounds`]: what methods take as a range of keys.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys: any range of the standard library over strings of bytes, or two [`Bound`]s.
pub trait KeyBounds {
    /// Where it begins and ends.
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>);
}

impl KeyBounds for RangeFull {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

macro_rules! key_bounds {
    ($($range:ty: $this:ident => $bounds:expr),* $(,)?) => {$(
        impl<K: AsRef<[u8]>> KeyBounds for $range {
            fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
                let $this = self;
                $bounds
            }
        }
    )*};
}

use Bound::{Excluded, Included, Unbounded};

key_bounds! {
    Range<K>: range => (Included(range.start.as_ref()), Excluded(range.end.as_ref())),
    RangeInclusive<K>: range => (Included(range.start().as_ref()), Included(range.end().as_ref())),
    RangeFrom<K>: range => (Included(range.start.as_ref()), Unbounded),
    RangeTo<K>: range => (Unbounded, Excluded(range.end.as_ref())),
    RangeToInclusive<K>: range => (Unbounded, Included(range.end.as_ref())),
    (Bound<K>, Bound<K>): range => (range.0.as_ref().map(AsRef::as_ref), range.1.as_ref().map(AsRef::as_ref)),
}
