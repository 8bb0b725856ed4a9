//! [`KeySpan`]: a range of keys, as all of the engine but its public interface expresses one.

use std::ops::Bound;

use super::key::{MAX_KEY_LEN, prefix_successor};

/// The keys from `lower`, inclusive, to `upper`, exclusive. `None` is an open end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpan<K> {
    pub lower: Option<K>,
    pub upper: Option<K>,
}

impl<K> Default for KeySpan<K> {
    /// All keys.
    fn default() -> KeySpan<K> {
        KeySpan { lower: None, upper: None }
    }
}

impl<K: AsRef<[u8]>> KeySpan<K> {
    pub fn borrowed(&self) -> KeySpan<&[u8]> {
        KeySpan { lower: self.lower.as_ref().map(K::as_ref), upper: self.upper.as_ref().map(K::as_ref) }
    }

    /// Whether no key lies between the bounds.
    pub fn is_empty(&self) -> bool {
        let KeySpan { lower, upper } = self.borrowed();
        upper.is_some_and(|upper| lower.unwrap_or_default() >= upper)
    }

    /// Whether the span has a key in common with the closed range from `smallest` to `largest`.
    pub fn overlaps(&self, smallest: &[u8], largest: &[u8]) -> bool {
        let KeySpan { lower, upper } = self.borrowed();
        lower.is_none_or(|lower| lower <= largest) && upper.is_none_or(|upper| smallest < upper)
    }
}

impl KeySpan<Vec<u8>> {
    pub fn of((lower, upper): (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> KeySpan<Vec<u8>> {
        let lower = match lower {
            Bound::Included(key) => Some(key),
            Bound::Excluded(key) => match next_key(key) {
                Some(next) => Some(next),
                None => return KeySpan { lower: Some(Vec::new()), upper: Some(Vec::new()) },
            },
            Bound::Unbounded => None,
        };
        let upper = match upper {
            Bound::Included(key) => next_key(key),
            Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        KeySpan { lower, upper }
    }

    /// The keys from `smallest` to `largest`, both inclusive.
    pub fn closed(smallest: &[u8], largest: &[u8]) -> KeySpan<Vec<u8>> {
        KeySpan { lower: Some(smallest.to_vec()), upper: Some(successor(largest.to_vec())) }
    }

    /// The keys that begin with `prefix`.
    pub fn of_prefix(prefix: &[u8]) -> KeySpan<Vec<u8>> {
        KeySpan { lower: Some(prefix.to_vec()), upper: prefix_successor(prefix) }
    }

    /// Whether two spans, neither of them empty, have a key in common.
    pub fn meets(&self, other: &KeySpan<Vec<u8>>) -> bool {
        let before = |lower: &Option<Vec<u8>>, upper: &Option<Vec<u8>>| match (lower, upper) {
            (Some(lower), Some(upper)) => lower < upper,
            _ => true,
        };
        before(&self.lower, &other.upper) && before(&other.lower, &self.upper)
    }
}

/// The least key greater than `key` that a store takes, if there is one.
fn next_key(key: Vec<u8>) -> Option<Vec<u8>> {
    if key.len() < MAX_KEY_LEN { Some(successor(key)) } else { prefix_successor(&key) }
}

/// The least byte string greater than `key`.
fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lower: Option<&[u8]>, upper: Option<&[u8]>) -> KeySpan<Vec<u8>> {
        KeySpan { lower: lower.map(<[u8]>::to_vec), upper: upper.map(<[u8]>::to_vec) }
    }

    #[test]
    fn the_last_key_of_a_closed_range_is_within_and_the_next_one_is_not() {
        let closed = KeySpan::closed(b"b", b"d");
        assert_eq!(closed, span(Some(b"b"), Some(b"d\0")));
        for (smallest, largest, overlaps) in
            [("a", "azz", false), ("a", "b", true), ("c", "c", true), ("d", "z", true), ("d\0", "z", false)]
        {
            let (smallest, largest) = (smallest.as_bytes(), largest.as_bytes());
            assert_eq!(closed.overlaps(smallest, largest), overlaps, "{smallest:?}");
            assert_eq!(closed.meets(&KeySpan::closed(smallest, largest)), overlaps, "{smallest:?}");
            assert_eq!(KeySpan::closed(smallest, largest).meets(&closed), overlaps, "{smallest:?}");
        }
    }

    #[test]
    fn bounds_take_no_more_bytes_than_keys() {
        let of = |lower, upper| KeySpan::of((lower, upper));
        let (longest, last) = ([&vec![7; MAX_KEY_LEN - 1][..], &[9]].concat(), vec![0xff; MAX_KEY_LEN]);
        let next = [&vec![7; MAX_KEY_LEN - 1][..], &[10]].concat();
        assert_eq!(of(Bound::Excluded(longest.clone()), Bound::Unbounded), span(Some(&next), None));
        assert_eq!(of(Bound::Unbounded, Bound::Included(longest)), span(None, Some(&next)));
        assert_eq!(of(Bound::Unbounded, Bound::Included(last.clone())), span(None, None));
        assert!(of(Bound::Excluded(last), Bound::Unbounded).is_empty());
        assert_eq!(of(Bound::Excluded(b"a".to_vec()), Bound::Unbounded), span(Some(b"a\0"), None));
    }

    #[test]
    fn open_ends_reach_all_keys() {
        assert!(span(None, None).overlaps(b"", b"") && span(None, None).meets(&span(None, Some(b"a"))));
        assert!(span(Some(b"b"), None).meets(&span(Some(b"z"), None)));
        assert!(!span(Some(b"b"), None).meets(&span(None, Some(b"b"))));
        assert!(!span(Some(b"b"), None).overlaps(b"", b"a") && !span(None, Some(b"b")).overlaps(b"b", b"c"));
        assert_eq!(KeySpan::of_prefix(b"ab\xff"), span(Some(b"ab\xff"), Some(b"ac")));
    }
}
