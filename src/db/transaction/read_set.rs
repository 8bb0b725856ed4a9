//! [`ReadSet`]: the keys and ranges that a transaction has read.
//!
//! A commit compares the set with what was written since, in the memtable. Few keys are looked up
//! there one by one. Otherwise, each entry written is looked up in the set, which is therefore
//! sorted by hash before the lock is taken, and by key once range deletes may come.

use crate::batch::IdList;
use crate::db::name::KeyspaceName;
use crate::filter::KeyHash;
use crate::format::deadline::Deadline;
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::sorted::memtable::Memtable;
#[cfg(test)]
use crate::sorted::ranges::steps;
use crate::sync::OnceLock;

/// Up to this many keys are looked up one by one under the commit lock, about 30 ns each.
const FEW_KEYS: usize = 64;

/// Room for keys that a set takes with the first one, and for their bytes.
const FIRST_KEYS: usize = 8;
const FIRST_KEY_LEN: usize = 24;

/// Bytes of keys for which a set that is used again keeps its memory.
const KEPT_BYTES: usize = 16 << 10;

/// The keys and ranges that a transaction has read, in an order that [`ReadSet::sort`] makes for
/// look-ups.
#[derive(Default)]
pub(super) struct ReadSet {
    keys: Vec<StoredKey>,
    /// The bytes of `keys`.
    bytes: Vec<u8>,
    /// The keyspaces of `keys`, each once.
    keyspaces: Vec<ReadIn>,
    /// Their ids.
    ids: IdList,
    /// Positions among `keys` in the order of keyspace and key, once a range delete may ask for it.
    by_key: OnceLock<Vec<usize>>,
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
    pub(super) name: KeyspaceName,
}

impl ReadIn {
    pub(super) const DEFAULT: ReadIn = ReadIn { keyspace: 0, name: KeyspaceName::Default };
}

/// A key that was read, whether it was there or not.
#[derive(Clone, Copy)]
pub(super) struct ReadKey<'a> {
    pub(super) keyspace: u32,
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
}

/// A [`ReadKey`] as the set has it.
#[derive(Clone, Copy)]
struct StoredKey {
    hash: KeyHash,
    keyspace: u32,
    len: u32,
    /// Where the key begins among the bytes of the set.
    start: usize,
}

impl StoredKey {
    fn in_bytes(self, bytes: &[u8]) -> ReadKey<'_> {
        let key = bytes.get(self.start..self.start + self.len as usize).unwrap_or_default();
        ReadKey { keyspace: self.keyspace, key, hash: self.hash }
    }
}

impl<'a> ReadKey<'a> {
    fn order(self) -> (u64, u32, &'a [u8]) {
        (self.hash.value(), self.keyspace, self.key)
    }

    /// The number of the newest write to the key in `memtable`, 0 if there is none.
    pub(super) fn newest_in(self, memtable: &Memtable) -> SeqNo {
        memtable.newest_write(self.keyspace, self.key, self.hash)
    }
}

impl ReadSet {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    /// Adds a key, of at most 4 GiB: a longer one cannot be written.
    pub(super) fn add_key(&mut self, of: &ReadIn, key: &[u8], hash: KeyHash) {
        let Ok(len) = u32::try_from(key.len()) else { return };
        if self.keys.is_empty() {
            self.keys.reserve(FIRST_KEYS);
            self.bytes.reserve(FIRST_KEYS * FIRST_KEY_LEN);
        }
        self.keys.push(StoredKey { hash, keyspace: of.keyspace, len, start: self.bytes.len() });
        self.bytes.extend_from_slice(key);
        self.add_keyspace(of);
    }

    fn add_keyspace(&mut self, of: &ReadIn) {
        if self.ids.insert(of.keyspace) {
            self.keyspaces.push(of.clone());
        }
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
        // Bounds may have crossed: an iterator has been moved behind its end.
        if !range.is_empty() {
            self.ranges.push((of, range));
        }
    }

    /// Brings the set into the order that look-ups need: keys by hash, each once; ranges by
    /// keyspace and lower bound, joined where they meet.
    pub(super) fn sort(&mut self) {
        let bytes = &self.bytes;
        self.keys.sort_unstable_by(|a, b| a.in_bytes(bytes).order().cmp(&b.in_bytes(bytes).order()));
        self.keys.dedup_by(|a, b| a.in_bytes(bytes).order() == b.in_bytes(bytes).order());
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

    pub(super) fn keys(&self) -> impl Iterator<Item = ReadKey<'_>> {
        self.keys.iter().map(|key| key.in_bytes(&self.bytes))
    }

    /// The keyspaces whose keys were read.
    pub(super) fn keyspaces(&self) -> &[ReadIn] {
        &self.keyspaces
    }

    pub(super) fn ranges(&self) -> &[(ReadIn, KeySpan<Vec<u8>>)] {
        &self.ranges
    }

    /// A copy of the keys.
    pub(super) fn keys_only(&self) -> ReadSet {
        let (keys, bytes, keyspaces) = (self.keys.clone(), self.bytes.clone(), self.keyspaces.clone());
        ReadSet { keys, bytes, keyspaces, ids: self.ids.clone(), ..ReadSet::default() }
    }

    /// Removes all reads, and keeps the memory of a few keys.
    pub(super) fn clear(&mut self) {
        if self.has_few_keys() && self.bytes.capacity() <= KEPT_BYTES && self.keys.capacity() <= 2 * FEW_KEYS {
            self.keys.clear();
            self.bytes.clear();
            self.keyspaces.clear();
            self.ids.truncate(0);
            self.by_key = OnceLock::new();
            self.expiring = None;
        } else {
            *self = ReadSet::default();
        }
    }

    /// Whether there are only keys, and few. Such a set needs no order.
    pub(super) fn has_few_keys(&self) -> bool {
        self.ranges.is_empty() && self.keys.len() <= FEW_KEYS
    }

    /// Makes the order that [`find_within`](ReadSet::find_within) needs. The set must be
    /// [sorted](ReadSet::sort).
    pub(super) fn sort_by_key(&self) {
        self.by_key.get_or_init(|| {
            let mut by_key: Vec<usize> = (0..self.keys.len()).collect();
            by_key.sort_unstable_by_key(|&at| self.place(at));
            by_key
        });
    }

    pub(super) fn is_sorted_by_key(&self) -> bool {
        self.by_key.get().is_some()
    }

    fn place(&self, at: usize) -> (u32, &[u8]) {
        let ReadKey { keyspace, key, .. } = self.keys[at].in_bytes(&self.bytes);
        (keyspace, key)
    }

    /// A key of those from `start` up to `end` that was read, or lies in a range that was; an empty
    /// `end` is none. The set must be [sorted by key](ReadSet::sort_by_key).
    pub(super) fn find_within(&self, keyspace: u32, start: &[u8], end: &[u8]) -> Option<&[u8]> {
        let is_before_end = |key: &[u8]| end.is_empty() || key < end;
        let by_key = self.by_key.get().map(Vec::as_slice).unwrap_or_default();
        let next = by_key.partition_point(|&at| {
            #[cfg(test)]
            steps::count();
            self.place(at) < (keyspace, start)
        });
        if let Some((of, key)) = by_key.get(next).map(|&at| self.place(at))
            && of == keyspace
            && is_before_end(key)
        {
            return Some(key);
        }
        // Ranges do not meet each other: the last one that begins before the end goes furthest.
        let begun = self.ranges.partition_point(|(of, range)| {
            #[cfg(test)]
            steps::count();
            let lower = range.lower.as_deref().unwrap_or_default();
            of.keyspace < keyspace || of.keyspace == keyspace && is_before_end(lower)
        });
        let (of, range) = self.ranges.get(begun.checked_sub(1)?)?;
        let meets = of.keyspace == keyspace && range.upper.as_deref().is_none_or(|upper| start < upper);
        meets.then(|| range.lower.as_deref().unwrap_or_default())
    }

    /// Whether the key was read. The set must be [sorted](ReadSet::sort).
    pub(super) fn covers(&self, keyspace: u32, key: &[u8], hash: KeyHash) -> bool {
        let wanted = (hash.value(), keyspace, key);
        if self.keys.binary_search_by(|read| read.in_bytes(&self.bytes).order().cmp(&wanted)).is_ok() {
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
    use std::sync::Arc;

    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn hash(key: &[u8]) -> KeyHash {
        KeyHash::new(0, key)
    }

    fn of(keyspace: u32) -> ReadIn {
        ReadIn { keyspace, name: KeyspaceName::new(keyspace, &Arc::from("k")) }
    }

    #[test]
    fn a_range_whose_bounds_have_crossed_hides_no_other() {
        let mut set = ReadSet::default();
        for (lower, upper) in [("x", "c"), ("m", "p"), ("q", "q")] {
            set.add_range(of(0), KeySpan { lower: Some(lower.into()), upper: Some(upper.into()) });
        }
        set.sort();
        set.sort_by_key();
        assert!(set.find_within(0, b"n", b"z").is_some());
        assert!(set.find_within(0, b"q", b"r").is_none() && set.find_within(0, b"w", b"z").is_none());
    }

    proptest! {
        #[test]
        fn a_set_covers_what_was_added(
            keys in vec((0u32..2, vec(0u8..4, 0..3)), 0..8),
            ranges in vec((0u32..2, option::of(vec(0u8..4, 0..3)), option::of(vec(0u8..4, 0..3))), 0..6),
            asked in vec((0u32..3, vec(0u8..4, 0..4)), 30),
            deleted in vec((0u32..3, vec(0u8..4, 0..4), vec(0u8..4, 0..4)), 30),
        ) {
            let deleted = deleted.into_iter().filter(|(_, start, end)| end.is_empty() || start < end);
            let mut set = ReadSet::default();
            keys.iter().for_each(|(keyspace, key)| set.add_key(&of(*keyspace), key, hash(key)));
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
            set.sort_by_key();
            for (keyspace, start, end) in deleted {
                let is_within = |key: &[u8]| start.as_slice() <= key && (end.is_empty() || key < end.as_slice());
                let key = keys.iter().any(|(of, key)| *of == keyspace && is_within(key));
                let meets = |lower: &[u8], upper: Option<&[u8]>| {
                    let begins = start.as_slice().max(lower);
                    is_within(begins) && upper.is_none_or(|upper| lower < upper && begins < upper)
                };
                let range = ranges.iter().any(|(of, lower, upper)| {
                    *of == keyspace && meets(lower.as_deref().unwrap_or_default(), upper.as_deref())
                });
                let found = set.find_within(keyspace, &start, &end);
                prop_assert_eq!(found.is_some(), key || range, "{} {:?} {:?} {:?}", keyspace, start, end, found);
            }
        }
    }
}
