//! [`Overlay`]: what a transaction has written, over the snapshot, and what it has read below.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use crate::db::read_set::ReadSet;
use crate::sorted::value::Value;
use crate::write::batch::{BatchMark, WriteBatch};

#[derive(Default)]
pub(super) struct Overlay {
    pub(super) batch: WriteBatch,
    own: RefCell<OwnWrites>,
    pub(super) reads: RefCell<ReadSet>,
    /// Iterators that have not noted what they read. They borrow the overlay: when it is taken
    /// apart, only one that was leaked is left.
    pub(super) unnoted: Cell<usize>,
}

impl Overlay {
    /// Calls `read` with the writes of `batch`.
    pub(super) fn with_own<R>(&self, read: impl FnOnce(&OwnWrites) -> R) -> R {
        let mut own = self.own.borrow_mut();
        own.index(&self.batch);
        read(&own)
    }

    /// The value of a write.
    pub(super) fn value(&self, value: &OwnValue) -> Option<Value> {
        value.clone().map(|at| Value::copy_of(self.batch.bytes(at)))
    }

    /// What the transaction did last to a key: `Some(None)` is a delete.
    pub(super) fn get(&self, keyspace: u32, key: &[u8]) -> Option<Option<Value>> {
        self.with_own(|own| own.get(keyspace, key).map(|value| self.value(value)))
    }

    /// Takes back the writes after `mark`. Returns false, and does nothing, if there is no such
    /// point any more.
    pub(super) fn rewind(&mut self, mark: &BatchMark) -> bool {
        let is_done = self.batch.rewind(mark);
        if is_done {
            *self.own.get_mut() = OwnWrites::default();
        }
        is_done
    }

    pub(super) fn into_parts(self) -> (WriteBatch, ReadSet) {
        (self.batch, self.reads.into_inner())
    }
}

/// Where the value of a put is in the payload of its batch; `None` for a delete.
pub(super) type OwnValue = Option<Range<usize>>;

/// The last write of each key in a batch. Made when a read first needs it, and brought up to date
/// by later reads: a transaction that only writes pays nothing.
#[derive(Default)]
pub(super) struct OwnWrites {
    keyspaces: BTreeMap<u32, BTreeMap<Vec<u8>, OwnValue>>,
    /// Up to here the batch is indexed.
    indexed: BatchMark,
}

impl OwnWrites {
    /// Adds what was appended to `batch` since the last call.
    fn index(&mut self, batch: &WriteBatch) {
        let end = batch.mark();
        if self.indexed != end {
            for (keyspace, key, value) in batch.writes_from(&self.indexed) {
                self.keyspaces.entry(keyspace).or_default().insert(key.to_vec(), value);
            }
            self.indexed = end;
        }
    }

    fn get(&self, keyspace: u32, key: &[u8]) -> Option<&OwnValue> {
        self.keyspaces.get(&keyspace)?.get(key)
    }

    /// The first write, or the last one, within `[lower, upper)`.
    pub(super) fn at_end(
        &self,
        keyspace: u32,
        lower: &[u8],
        upper: Option<&[u8]>,
        forward: bool,
    ) -> Option<(&[u8], &OwnValue)> {
        if upper.is_some_and(|upper| upper <= lower) {
            return None;
        }
        let bounds = (Bound::Included(lower), upper.map_or(Bound::Unbounded, Bound::Excluded));
        let mut range = self.keyspaces.get(&keyspace)?.range::<[u8], _>(bounds);
        let (key, value) = if forward { range.next() } else { range.next_back() }?;
        Some((key, value))
    }
}
