//! A cursor over the union of several cursors.

use std::cmp::Ordering;

use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind, compare_entries};
use crate::iter::InternalCursor;

/// Yields the entries of all its children in order. No two children hold an entry with the same key and sequence number.
///
/// A binary heap of the valid children, the next entry's child on top. All children stand at or behind the current entry in the
/// direction of travel; turning around moves every child to the other side of it.
pub(crate) struct MergingCursor<C> {
    children: Vec<C>,
    /// Indexes of valid children; a heap whose order is that of `direction`.
    heap: Vec<usize>,
    direction: Direction,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

impl<C: InternalCursor> MergingCursor<C> {
    pub(crate) fn new(children: Vec<C>) -> MergingCursor<C> {
        MergingCursor { heap: Vec::with_capacity(children.len()), children, direction: Direction::Forward }
    }

    /// Positions every child with `position` and starts to travel in `direction`.
    fn position(&mut self, direction: Direction, mut position: impl FnMut(&mut C) -> Result<()>) -> Result<()> {
        self.heap.clear();
        for child in &mut self.children {
            position(child)?;
        }
        self.direction = direction;
        self.heap.extend((0..self.children.len()).filter(|&i| self.children[i].valid()));
        for i in (0..self.heap.len() / 2).rev() {
            self.sift_down(i);
        }
        Ok(())
    }

    /// Moves the current child with `step` and restores the heap. An error leaves the cursor invalid.
    fn step(&mut self, step: impl FnOnce(&mut C) -> Result<()>) -> Result<()> {
        let current = self.heap[0];
        if let Err(error) = step(&mut self.children[current]) {
            self.heap.clear();
            return Err(error);
        }
        if !self.children[current].valid() {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }

    /// Travels in the other direction from here on: every child but the current one goes to its last entry before the current
    /// entry, or to its first behind it.
    fn turn(&mut self, direction: Direction) -> Result<()> {
        let (key, seqno) = (self.key().to_vec(), self.seqno());
        self.position(direction, |child| {
            child.seek(&key, seqno)?;
            let at_current = child.valid() && child.seqno() == seqno && child.key() == key;
            match direction {
                Direction::Forward => Ok(()),
                Direction::Backward if at_current => Ok(()),
                Direction::Backward if child.valid() => child.prev(),
                Direction::Backward => child.seek_to_last(),
            }
        })
    }

    fn precedes(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.children[a], &self.children[b]);
        let order = compare_entries((a.key(), a.seqno()), (b.key(), b.seqno()));
        order
            == match self.direction {
                Direction::Forward => Ordering::Less,
                Direction::Backward => Ordering::Greater,
            }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut first = at;
            for child in [left, right] {
                if child < self.heap.len() && self.precedes(self.heap[child], self.heap[first]) {
                    first = child;
                }
            }
            if first == at {
                return;
            }
            self.heap.swap(at, first);
            at = first;
        }
    }

    fn current(&self) -> &C {
        &self.children[self.heap[0]]
    }
}

impl<C: InternalCursor> InternalCursor for MergingCursor<C> {
    fn valid(&self) -> bool {
        !self.heap.is_empty()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.position(Direction::Forward, C::seek_to_first)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.position(Direction::Backward, C::seek_to_last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.position(Direction::Forward, |child| child.seek(key, seqno))
    }

    fn next(&mut self) -> Result<()> {
        if self.direction == Direction::Backward {
            self.turn(Direction::Forward)?;
        }
        self.step(C::next)
    }

    fn prev(&mut self) -> Result<()> {
        if self.direction == Direction::Forward {
            self.turn(Direction::Backward)?;
        }
        self.step(C::prev)
    }

    fn key(&self) -> &[u8] {
        self.current().key()
    }

    fn seqno(&self) -> SeqNo {
        self.current().seqno()
    }

    fn kind(&self) -> ValueKind {
        self.current().kind()
    }

    fn value(&self) -> &[u8] {
        self.current().value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::{Memtable, MemtableCursor};
    use crate::pool::Pool;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn merged(runs: usize, entries: &[(u8, u8)]) -> MergingCursor<MemtableCursor> {
        let pool = Pool::new(0);
        let tables: Vec<_> = (0..runs).map(|_| Arc::new(Memtable::new(1, 4096, 0, &pool))).collect();
        for (i, (run, key)) in entries.iter().enumerate() {
            let table = &tables[usize::from(*run) % runs];
            table.writer().insert(0, &[*key], i as u64 + 1, ValueKind::Put, b"");
        }
        MergingCursor::new(tables.iter().map(|t| t.cursor(0)).collect())
    }

    proptest! {
        /// Random walks over the merge stand where the same walk over a sorted list stands.
        #[test]
        fn walks_like_one_sorted_run(
            runs in 1usize..6,
            entries in prop::collection::vec((any::<u8>(), 0u8..20), 0..40),
            walk in prop::collection::vec((0u8..6, 0u8..21), 1..60),
        ) {
            let mut cursor = merged(runs, &entries);
            let model: Vec<(u8, u64)> = entries
                .iter()
                .enumerate()
                .map(|(i, (_, key))| (*key, u64::MAX - (i as u64 + 1)))
                .collect::<BTreeSet<_>>()
                .into_iter()
                .map(|(key, inverse)| (key, u64::MAX - inverse))
                .collect();
            let mut at: Option<usize> = None;
            for (step, key) in walk {
                match (step, at) {
                    (0, _) => { cursor.seek_to_first().unwrap(); at = (!model.is_empty()).then_some(0); }
                    (1, _) => { cursor.seek_to_last().unwrap(); at = model.len().checked_sub(1); }
                    (2, _) => {
                        cursor.seek(&[key], u64::MAX).unwrap();
                        at = model.iter().position(|(k, _)| *k >= key);
                    }
                    (3 | 4, Some(i)) => { cursor.next().unwrap(); at = (i + 1 < model.len()).then_some(i + 1); }
                    (_, Some(i)) => { cursor.prev().unwrap(); at = i.checked_sub(1); }
                    (_, None) => {}
                }
                prop_assert_eq!(cursor.valid(), at.is_some());
                if let Some(i) = at {
                    prop_assert_eq!((cursor.key(), cursor.seqno()), (&[model[i].0][..], model[i].1));
                }
            }
        }
    }
}
