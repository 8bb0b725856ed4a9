//! The ways to read a keyspace, all of which must find the same.

use std::ops::{Bound, RangeBounds};

use tamis::{Cursor, Iter, Keyspace, Result, Snapshot, Value};

use super::model::{Bytes, Entries};

/// A keyspace, now or at a moment.
pub(super) enum Source {
    Live(Keyspace),
    At(Snapshot),
}

macro_rules! forward {
    ($source:expr, $of:ident => $call:expr) => {
        match $source {
            Source::Live($of) => $call,
            Source::At($of) => $call,
        }
    };
}

fn pair(entry: Result<(Value, Value)>) -> Result<(Bytes, Bytes)> {
    entry.map(|(key, value)| (key.to_vec(), value.to_vec()))
}

impl Source {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        forward!(self, of => of.get(key))
    }

    pub(super) fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Value>>> {
        forward!(self, of => of.multi_get(keys))
    }

    pub(super) fn iter(&self, range: (Bound<Bytes>, Bound<Bytes>)) -> Iter {
        forward!(self, of => of.range(range))
    }

    pub(super) fn prefix(&self, prefix: &[u8]) -> Iter {
        forward!(self, of => of.prefix(prefix))
    }

    pub(super) fn cursor(&self) -> Result<Cursor> {
        forward!(self, of => of.cursor())
    }

    /// Reads everything forward, backward, and in those of the other ways that the bits of `ways`
    /// say. The keys of `universe`, in order, are all that there may be.
    pub(super) fn read_all(&self, universe: &[Bytes], ways: u8) -> Result<Vec<(&'static str, Entries)>> {
        const ALL: (Bound<Bytes>, Bound<Bytes>) = (Bound::Unbounded, Bound::Unbounded);
        let forward = self.iter(ALL).map(pair).collect::<Result<Entries>>()?;
        let mut backward = self.iter(ALL).rev().map(pair).collect::<Result<Entries>>()?;
        backward.reverse();
        let mut found = vec![("forward", forward), ("backward", backward)];
        if ways & 1 != 0 {
            let mut gets = Entries::new();
            for key in universe {
                gets.extend(self.get(key)?.map(|value| (key.clone(), value.to_vec())));
            }
            found.push(("gets", gets));
        }
        if ways & 6 == 2 {
            let values = universe.iter().zip(self.multi_get(universe)?);
            let many = values.filter_map(|(key, value)| Some((key.clone(), value?.to_vec())));
            found.push(("multi_get", many.collect()));
        }
        if ways & 24 == 8 {
            found.push(("a cursor that turns at each entry", turning(self.cursor()?)?));
        }
        Ok(found)
    }
}

/// The entries from the last one back, with a step forward from each.
fn turning(mut cursor: Cursor) -> Result<Entries> {
    let mut found = Entries::new();
    let mut is_there = cursor.seek_to_last()?;
    while is_there {
        found.extend(cursor.key().zip(cursor.value()).map(|(key, value)| (key.to_vec(), value.to_vec())));
        let key = found.last().map(|(key, _)| key.clone()).unwrap_or_default();
        match cursor.next()? {
            true => cursor.prev()?,
            false => cursor.seek_to_last()?,
        };
        assert_eq!(cursor.key(), Some(&key[..]), "the cursor has lost its place");
        is_there = cursor.prev()?;
    }
    found.reverse();
    Ok(found)
}

/// What an iterator over a range of sorted entries still returns.
pub(super) struct Window {
    entries: Entries,
    /// The range, and the part of it that is left: keys from the first one on, below the second.
    bounds: (Bytes, Option<Bytes>),
    left: (Bytes, Option<Bytes>),
    is_done: bool,
}

fn least(a: Option<Bytes>, b: Option<Bytes>) -> Option<Bytes> {
    a.into_iter().chain(b).min()
}

pub(super) fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat()
}

/// A range as its first key and the first key after it.
pub(super) fn half_open(range: &(Bound<Bytes>, Bound<Bytes>)) -> (Bytes, Option<Bytes>) {
    let from = match &range.0 {
        Bound::Included(key) => key.clone(),
        Bound::Excluded(key) => successor(key),
        Bound::Unbounded => Bytes::new(),
    };
    let to = match &range.1 {
        Bound::Included(key) => Some(successor(key)),
        Bound::Excluded(key) => Some(key.clone()),
        Bound::Unbounded => None,
    };
    (from, to)
}

pub(super) fn is_empty((from, to): &(Bytes, Option<Bytes>)) -> bool {
    to.as_ref().is_some_and(|to| from >= to)
}

impl Window {
    pub(super) fn new(entries: Entries, range: &(Bound<Bytes>, Bound<Bytes>)) -> Window {
        let bounds = half_open(range);
        Window { entries, left: bounds.clone(), bounds, is_done: false }
    }

    pub(super) fn step(&mut self, forward: bool) -> Option<(Bytes, Bytes)> {
        let (from, to) = &self.left;
        let is_left = |(key, _): &&(Bytes, Bytes)| key >= from && to.as_ref().is_none_or(|to| key < to);
        let mut left = self.entries.iter().filter(is_left);
        let found = if forward { left.next() } else { left.next_back() };
        let Some((key, value)) = found.filter(|_| !self.is_done) else {
            self.is_done = true;
            return None;
        };
        let entry = (key.clone(), value.clone());
        match forward {
            true => self.left.0 = successor(&entry.0),
            false => self.left.1 = Some(entry.0.clone()),
        }
        Some(entry)
    }

    /// The value of a key in it.
    pub(super) fn value(&self, key: &[u8]) -> Bytes {
        let found = self.entries.binary_search_by(|(of, _)| of[..].cmp(key));
        found.map(|at| self.entries[at].1.clone()).unwrap_or_default()
    }

    pub(super) fn seek(&mut self, key: &[u8], forward: bool) {
        let (from, to) = self.bounds.clone();
        match forward {
            true => {
                self.left.0 = from.max(key.to_vec());
                if self.is_done {
                    self.left.1 = to;
                }
            }
            false => {
                self.left.1 = least(Some(successor(key)), to);
                if self.is_done {
                    self.left.0 = from;
                }
            }
        }
        self.is_done = false;
    }
}

/// A cursor beside its position in sorted entries.
pub(super) struct Walk {
    pub(super) cursor: Cursor,
    pub(super) entries: Entries,
    pub(super) at: Option<usize>,
}

impl Walk {
    /// Expects that a move has come to position `at`.
    pub(super) fn arrive(&mut self, valid: Result<bool>, at: Option<usize>) -> Result<()> {
        self.at = at;
        assert_eq!(valid?, at.is_some());
        let here = self.cursor.key().zip(self.cursor.value()).map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert_eq!(here.as_ref(), at.map(|at| &self.entries[at]));
        Ok(())
    }
}

/// The end of the keys that begin with `prefix`.
pub(super) fn prefix_range(prefix: &[u8]) -> (Bound<Bytes>, Bound<Bytes>) {
    let mut end = prefix.to_vec();
    while end.pop_if(|last| *last == 0xff).is_some() {}
    let end = end.split_last().map(|(last, rest)| [rest, &[last + 1]].concat());
    (Bound::Included(prefix.to_vec()), end.map_or(Bound::Unbounded, Bound::Excluded))
}

pub(super) fn contains(range: &(Bytes, Option<Bytes>), key: &Bytes) -> bool {
    (Bound::Included(&range.0), range.1.as_ref().map_or(Bound::Unbounded, Bound::Excluded)).contains(key)
}
