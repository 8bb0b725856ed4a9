//! [`TransactionIter`]: a range of a snapshot with a transaction's own writes over it.

use super::overlay::{Overlay, OwnKeyspace, OwnWrites};
use super::read_set::ReadIn;
use crate::db::iter::{Iter, copy_entry};
use crate::error::Result;
use crate::format::deadline::Deadline;
use crate::format::span::KeySpan;
use crate::sorted::value::Value;

/// Iterates over the entries of a range as a transaction sees them, from both ends.
///
/// What it has passed counts as read by the transaction: from either bound, or the key sought, to
/// the last entry returned from that side, and all that lay between once it has ended.
///
/// After an error it ends.
pub struct TransactionIter<'t> {
    overlay: &'t Overlay,
    keyspace: OwnKeyspace,
    bounds: KeySpan<Vec<u8>>,
    /// The part of `bounds` that the last seek has begun with.
    range: KeySpan<Vec<u8>>,
    /// Where the next entry from the front may begin, and where the next one from the back must
    /// end.
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    stored: Stored,
    done: bool,
}

/// The entries of the snapshot, with the next one of each end.
struct Stored {
    iter: Iter,
    first: Option<StoredEntry>,
    last: Option<StoredEntry>,
}

/// Key, value, and when that expires.
type StoredEntry = (Value, Value, Option<Deadline>);

impl Stored {
    /// Ensures that `first`, or `last`, is the next entry of that end, if there is one.
    fn fill(&mut self, forward: bool) -> Result<()> {
        let (iter, near, far) = match forward {
            true => (&mut self.iter, &mut self.first, &mut self.last),
            false => (&mut self.iter, &mut self.last, &mut self.first),
        };
        if near.is_none() {
            let next = iter.step(forward, |cursor| {
                let deadline = cursor.expiry();
                copy_entry(cursor).map(|(key, value)| (key, value, deadline))
            });
            // The ends have met: the last entry may wait at the other one.
            *near = next.transpose()?.or_else(|| far.take());
        }
        Ok(())
    }

    fn next(&mut self, forward: bool) -> &mut Option<StoredEntry> {
        if forward { &mut self.first } else { &mut self.last }
    }
}

impl Overlay {
    /// Notes when the value of an entry expires that the transaction has been shown.
    fn note_deadline(&self, of: &ReadIn, (key, _, deadline): &StoredEntry) {
        if let Some(deadline) = *deadline {
            self.reads.borrow_mut().add_deadline(of.keyspace, key, deadline);
        }
    }
}

impl<'t> TransactionIter<'t> {
    /// Iterates over `range` of a keyspace. `iter` must be the snapshot's iterator of that range.
    pub(super) fn new(
        overlay: &'t Overlay,
        keyspace: OwnKeyspace,
        range: KeySpan<Vec<u8>>,
        iter: Iter,
    ) -> TransactionIter<'t> {
        overlay.unnoted.update(|count| count + 1);
        TransactionIter {
            overlay,
            keyspace,
            lower: range.lower.clone().unwrap_or_default(),
            upper: range.upper.clone(),
            bounds: range.clone(),
            range,
            stored: Stored { iter, first: None, last: None },
            done: false,
        }
    }

    /// Moves the front: [`next`](Iterator::next) will return the first entry of the range whose key
    /// is `key` or greater. Like [`Iter::seek`](crate::Iter::seek).
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        let lower = self.bounds.lower.as_deref().unwrap_or_default();
        let lower = key.as_ref().max(lower).to_vec();
        let upper = if self.done { self.bounds.upper.clone() } else { self.upper.clone() };
        self.continue_in(lower, upper);
    }

    /// Moves the back: [`next_back`](DoubleEndedIterator::next_back) will return the last entry of
    /// the range whose key is `key` or less. Like [`Iter::seek_back`](crate::Iter::seek_back).
    pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
        let sought = [key.as_ref(), &[0]].concat();
        let upper = match &self.bounds.upper {
            Some(upper) if *upper < sought => upper.clone(),
            _ => sought,
        };
        let lower = if self.done { self.bounds.lower.clone().unwrap_or_default() } else { self.lower.clone() };
        self.continue_in(lower, Some(upper));
    }

    /// Notes what was read up to now, and goes on between these bounds.
    fn continue_in(&mut self, lower: Vec<u8>, upper: Option<Vec<u8>>) {
        self.note_reads();
        self.done = false;
        let Stored { iter, first, last } = &mut self.stored;
        (*first, *last) = (None, None);
        iter.seek_front(&lower);
        iter.seek_back_before(upper.clone());
        self.range = KeySpan { lower: Some(lower.clone()), upper: upper.clone() };
        (self.lower, self.upper) = (lower, upper);
    }

    fn note_reads(&mut self) {
        let (range, lower, upper) = (std::mem::take(&mut self.range), &self.lower, &self.upper);
        let mut reads = self.overlay.reads.borrow_mut();
        if self.done {
            reads.add_range(self.keyspace.of.clone(), range);
            return;
        }
        if range.lower.as_deref().unwrap_or_default() != &**lower {
            reads.add_range(self.keyspace.of.clone(), KeySpan { lower: range.lower, upper: Some(lower.clone()) });
        }
        if range.upper != *upper {
            reads.add_range(self.keyspace.of.clone(), KeySpan { lower: upper.clone(), upper: range.upper });
        }
    }

    /// Moves one end over the next key, which may be one that the transaction has deleted. Returns
    /// its entry, or `None` for a deleted key.
    fn step(&mut self, own: &OwnWrites, forward: bool) -> Result<Option<(Value, Value)>> {
        self.stored.fill(forward)?;
        let stored = self.stored.next(forward);
        let next_own = own.at_end(self.keyspace.of.keyspace, &self.lower, self.upper.as_deref(), forward);
        let own_comes_first = match (next_own, &*stored) {
            (Some((own, _)), Some((key, ..))) => {
                if forward {
                    *own <= **key
                } else {
                    *own >= **key
                }
            }
            (own, _) => own.is_some(),
        };
        let (key, entry) = match next_own {
            Some((key, value)) if own_comes_first => {
                // It replaces the stored entry of its key, or changes it.
                let stored = stored.take_if(|(stored, ..)| **stored == *key);
                if value.needs_stored() {
                    stored.iter().for_each(|stored| self.overlay.note_deadline(&self.keyspace.of, stored));
                }
                let stored = stored.as_ref().map(|(_, value, _)| &**value);
                (Value::copy_of(key), self.overlay.value(value, &self.keyspace, key, stored)?)
            }
            _ => match stored.take() {
                Some(stored) => match own.range_of(self.keyspace.of.keyspace, &stored.0) {
                    None => {
                        self.overlay.note_deadline(&self.keyspace.of, &stored);
                        (stored.0, Some(stored.1))
                    }
                    Some(deleted) => {
                        self.pass_range(&stored.0, deleted, forward);
                        return Ok(None);
                    }
                },
                None => {
                    self.done = true;
                    return Ok(None);
                }
            },
        };
        if forward {
            self.lower = [&key[..], &[0]].concat();
        } else {
            self.upper = Some(key.to_vec());
        }
        Ok(entry.map(|value| (key, value)))
    }

    /// Moves one end over a range that the transaction has deleted, in which a stored entry with
    /// this key lies.
    fn pass_range(&mut self, key: &[u8], (start, end): (&[u8], Option<&[u8]>), forward: bool) {
        // Own writes may lie in the range: they come first, if they do.
        if forward {
            self.lower = [key, &[0]].concat();
        } else {
            self.upper = Some(key.to_vec());
        }
        if self.stored.iter.is_done() {
            return;
        }
        match (forward, end) {
            (true, Some(end)) => self.stored.iter.seek_front(end),
            // Nothing stored follows.
            (true, None) => self.stored.iter.seek_back_before(Some(key.to_vec())),
            (false, _) => self.stored.iter.seek_back_before(Some(start.to_vec())),
        }
    }

    fn next_entry(&mut self, forward: bool) -> Option<Result<(Value, Value)>> {
        let overlay = self.overlay;
        overlay.with_own(|own| {
            while !self.done {
                match self.step(own, forward) {
                    Ok(None) => {}
                    Ok(entry) => return entry.map(Ok),
                    Err(error) => {
                        self.done = true;
                        return Some(Err(error));
                    }
                }
            }
            None
        })
    }
}

impl Iterator for TransactionIter<'_> {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry(true)
    }
}

impl DoubleEndedIterator for TransactionIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_entry(false)
    }
}

impl std::iter::FusedIterator for TransactionIter<'_> {}

macro_rules! half {
    ($(#[$doc:meta])* $name:ident, $entry:pat => $half:ident) => {
        $(#[$doc])*
        pub struct $name<'t>(pub(super) TransactionIter<'t>);

        impl $name<'_> {
            /// Moves the front to the first entry whose key is `key` or greater; see
            /// [`TransactionIter::seek`].
            pub fn seek(&mut self, key: impl AsRef<[u8]>) {
                self.0.seek(key);
            }

            /// Moves the back to the last entry whose key is `key` or less; see
            /// [`TransactionIter::seek_back`].
            pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
                self.0.seek_back(key);
            }
        }

        impl Iterator for $name<'_> {
            type Item = Result<Value>;

            fn next(&mut self) -> Option<Result<Value>> {
                Some(self.0.next()?.map(|$entry| $half))
            }
        }

        impl DoubleEndedIterator for $name<'_> {
            fn next_back(&mut self) -> Option<Result<Value>> {
                Some(self.0.next_back()?.map(|$entry| $half))
            }
        }

        impl std::iter::FusedIterator for $name<'_> {}
    };
}

half! {
    /// Iterates over the keys of a range as a transaction sees them, from both ends. Otherwise like
    /// [`TransactionIter`].
    TransactionKeys, (key, _) => key
}

half! {
    /// Iterates over the values of a range as a transaction sees them, in the order of their keys,
    /// from both ends. Otherwise like [`TransactionIter`].
    TransactionValues, (_, value) => value
}

impl Drop for TransactionIter<'_> {
    fn drop(&mut self) {
        self.overlay.unnoted.update(|count| count - 1);
        self.note_reads();
    }
}
