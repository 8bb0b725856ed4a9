//! [`ReadSet`]: the keys and ranges that a transaction has read.

use std::sync::Arc;

use crate::filter::KeyHash;
use crate::format::deadline::Deadline;
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::write::memtable::Memtable;

/// Up to this many keys are looked up one by one under the commit lock, about 30 ns each.
const FEW_KEYS: usize = 64;

/// The keys and ranges that a transaction has read, in an order that [`ReadSet::sort`] makes for
/// look-ups.
#[derive(Default)]
pub(super) struct ReadSet {
    keys: Vec<ReadKey>,
    ranges: Vec<(ReadIn, KeySpan<Vec<u8>>)>,
    /// The value with the least deadline, if any has one.
    expiring: Option<Expiring>,
}

/// A value that was read and that expires.
pub(super) struct Expiring {
    pub(super) deadline: Deadline,
    pub(super) keyspace: u32,
    pub(super) key: Box<[u8]>,
}

/// The keyspace of a read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadIn {
    pub(super) keyspace: u32,
    pub(super) name: Arc<str>,
}

/// A key that was read, whether it was there or not.
pub(super) struct ReadKey {
    pub(super) keyspace: u32,
    pub(super) name: Arc<str>,
    pub(super) key: Box<[u8]>,
    pub(super) hash: KeyHash,
}

impl ReadKey {
    fn order(&self) -> (u64, u32, &[u8]) {
        (self.hash.value(), self.keyspace, &self.key)
    }

    /// The number of the newest write to the key in `memtable`, 0 if there is none.
    pub(super) fn newest_in(&self, memtable: &Memtable) -> SeqNo {
        memtable.newest_write(self.keyspace, &self.key, self.hash)
    }
}

impl ReadSet {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    pub(super) fn add_key(&mut self, of: ReadIn, key: &[u8], hash: KeyHash) {
        self.keys.push(ReadKey { keyspace: of.keyspace, name: of.name, key: key.into(), hash });
    }

    /// Adds a value that expires at `deadline`.
    #[cold]
    pub(super) fn add_deadline(&mut self, keyspace: u32, key: &[u8], deadline: Deadline) {
        if self.expiring.as_ref().is_none_or(|former| deadline < former.deadline) {
            self.expiring = Some(Expiring { deadline, keyspace, key: key.into() });
        }
    }

    /// The value that expires first.
    pub(super) fn expiring(&self) -> Option<&Expiring> {
        self.expiring.as_ref()
    }

    pub(super) fn add_range(&mut self, of: ReadIn, range: KeySpan<Vec<u8>>) {
        self.ranges.push((of, range));
    }

    /// Brings the set into the order that look-ups need: keys by hash, each once; ranges by
    /// keyspace and lower bound, joined where they meet.
    pub(super) fn sort(&mut self) {
        self.keys.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        self.keys.dedup_by(|a, b| a.order() == b.order());
        // No lower bound is the least one.
        self.ranges.sort_unstable_by(|(a, x), (b, y)| (a.keyspace, &x.lower).cmp(&(b.keyspace, &y.lower)));
        self.ranges.dedup_by(|(of, range), (former_of, former)| {
            let meets = match (&former.upper, &range.lower) {
                (Some(upper), Some(lower)) => lower <= upper,
                _ => true,
            };
            let joins = of.keyspace == former_of.keyspace && meets;
            if joins {
                former.upper = match (former.upper.take(), range.upper.take()) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
            }
            joins
        });
    }

    pub(super) fn keys(&self) -> &[ReadKey] {
        &self.keys
    }

    pub(super) fn ranges(&self) -> &[(ReadIn, KeySpan<Vec<u8>>)] {
        &self.ranges
    }

    /// The keys, if they are few and there are no ranges.
    pub(super) fn few_keys(&self) -> Option<&[ReadKey]> {
        (self.ranges.is_empty() && self.keys.len() <= FEW_KEYS).then_some(&self.keys)
    }

    /// A key of those from `start` up to `end` that was read, or lies in a range that was; an empty
    /// `end` is none. Takes a look at every read.
    pub(super) fn find_within(&self, keyspace: u32, start: &[u8], end: &[u8]) -> Option<&[u8]> {
        let is_before_end = |key: &[u8]| end.is_empty() || key < end;
        let mut keys = self.keys.iter().filter(|read| read.keyspace == keyspace).map(|read| &*read.key);
        let key = keys.find(|key| start <= *key && is_before_end(key));
        key.or_else(|| {
            let of_keyspace = self.ranges.iter().filter(|(of, _)| of.keyspace == keyspace).map(|(_, range)| range);
            let mut meeting = of_keyspace.filter(|range| {
                let lower = range.lower.as_deref().unwrap_or_default();
                is_before_end(lower) && range.upper.as_deref().is_none_or(|upper| start < upper)
            });
            meeting.next().map(|range| range.lower.as_deref().unwrap_or_default())
        })
    }

    /// Whether the key was read. The set must be [sorted](ReadSet::sort).
    pub(super) fn covers(&self, keyspace: u32, key: &[u8], hash: KeyHash) -> bool {
        let wanted = (hash.value(), keyspace, key);
        if self.keys.binary_search_by(|read| read.order().cmp(&wanted)).is_ok() {
            return true;
        }
        let is_before = |(of, range): &(ReadIn, KeySpan<Vec<u8>>)| {
            (of.keyspace, range.lower.as_deref().unwrap_or_default()) <= (keyspace, key)
        };
        let after = self.ranges.partition_point(is_before);
        let Some((of, range)) = after.checked_sub(1).and_then(|at| self.ranges.get(at)) else { return false };
        of.keyspace == keyspace && range.upper.as_deref().is_none_or(|upper| key < upper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn hash(key: &[u8]) -> KeyHash {
        KeyHash::new(0, key)
    }

    fn of(keyspace: u32) -> ReadIn {
        ReadIn { keyspace, name: Arc::from("k") }
    }

    proptest! {
        #[test]
        fn a_set_covers_what_was_added(
            keys in vec((0u32..2, vec(0u8..4, 0..3)), 0..8),
            ranges in vec((0u32..2, option::of(vec(0u8..4, 0..3)), option::of(vec(0u8..4, 0..3))), 0..6),
            asked in vec((0u32..3, vec(0u8..4, 0..4)), 30),
        ) {
            let mut set = ReadSet::default();
            keys.iter().for_each(|(keyspace, key)| set.add_key(of(*keyspace), key, hash(key)));
            for (keyspace, lower, upper) in &ranges {
                set.add_range(of(*keyspace), KeySpan { lower: lower.clone(), upper: upper.clone() });
            }
            set.sort();
            for (keyspace, key) in asked {
                let in_range = ranges.iter().any(|(of, lower, upper)| {
                    *of == keyspace
                        && lower.as_ref().is_none_or(|lower| *lower <= key)
                        && upper.as_ref().is_none_or(|upper| key < *upper)
                });
                let expected = in_range || keys.contains(&(keyspace, key.clone()));
                prop_assert_eq!(set.covers(keyspace, &key, hash(&key)), expected, "{} {:?}", keyspace, key);
            }
        }
    }
}
