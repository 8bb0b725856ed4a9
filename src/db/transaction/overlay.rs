//! [`Overlay`]: what a transaction has written, over the snapshot, and what it has read below.
//!
//! The transaction's batch is the only copy of its writes. An index of the batch, by key and by
//! deleted range, is made when a read first needs it and brought up to date by later reads: a
//! transaction that only writes pays nothing for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use super::read_set::{ReadIn, ReadSet};
use crate::batch::{BatchMark, WriteBatch};
use crate::db::clock::LeastDeadline;
use crate::error::Result;
use crate::format::deadline::{Deadline, split_expiring};
use crate::format::effect::Effect;
use crate::format::key::{SeqNo, ValueKind};
use crate::operator::{Answer, NamedOperator, put_operand};
use crate::sorted::value::Value;

/// A thread keeps the overlay of a batch up to this length for its next transaction.
const KEPT_LEN: usize = 64 << 10;

thread_local! {
    static SPARE: Cell<Option<Box<Overlay>>> = const { Cell::new(None) };
}

#[derive(Default)]
pub(super) struct Overlay {
    pub(super) batch: WriteBatch,
    /// When own deadlines are judged: at the time of the snapshot. [`NEVER`] if that saw none,
    /// until the transaction has its first.
    ///
    /// [`NEVER`]: crate::format::deadline::NEVER
    pub(super) at: Deadline,
    own: RefCell<OwnWrites>,
    pub(super) reads: RefCell<ReadSet>,
    /// Iterators that have not noted what they read. They borrow the overlay: when it is taken
    /// apart, only one that was leaked is left.
    pub(super) unnoted: Cell<usize>,
}

impl Overlay {
    /// An empty overlay that judges deadlines at `at`, with the memory of one that the thread has
    /// given back.
    pub(super) fn take(at: Deadline) -> Box<Overlay> {
        let mut overlay = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
        overlay.at = at;
        overlay
    }

    /// Gives the overlay to the next transaction of the thread.
    pub(super) fn give_back(mut self: Box<Self>) {
        let Overlay { batch, at: _, own, reads, unnoted } = &mut *self;
        if unnoted.get() > 0 || batch.capacity() > 2 * KEPT_LEN {
            return;
        }
        batch.clear();
        reads.get_mut().clear();
        let own = own.get_mut();
        if own.indexed != BatchMark::default() {
            *own = OwnWrites::default();
        }
        let _ = SPARE.try_with(|spare| spare.set(Some(self)));
    }

    /// Calls `read` with the writes of `batch`.
    pub(super) fn with_own<R>(&self, read: impl FnOnce(&OwnWrites) -> R) -> R {
        let mut own = self.own.borrow_mut();
        own.index(&self.batch);
        read(&own)
    }

    /// What the transaction did to a key, if it wrote it.
    #[inline]
    pub(super) fn get(&self, keyspace: u32, key: &[u8]) -> Option<OwnWrite> {
        if self.batch.is_empty() {
            return None;
        }
        self.with_own(|own| own.get(keyspace, key))
    }

    /// The value of a key after `own`, whose value in the snapshot is `stored`. A write that
    /// replaces the value does not need `stored`.
    pub(super) fn value(
        &self,
        own: &OwnWrite,
        keyspace: &OwnKeyspace,
        key: &[u8],
        stored: Option<&[u8]>,
    ) -> Result<Option<Value>> {
        let mut answer = Answer::new(key, self.at, None);
        // Numbers of their own, in the order of the writes.
        let mut seqno = own.operands.len() as SeqNo + 1;
        let mut operand = Vec::new();
        for at in own.operands.iter().rev() {
            operand.clear();
            put_operand(&mut operand, seqno, seqno, self.batch.bytes(at.clone()));
            answer.see(seqno, ValueKind::Merge, &operand)?;
            seqno -= 1;
        }
        match (&own.base, stored) {
            (OwnBase::Written(kind, at), _) => answer.see(seqno, *kind, self.batch.bytes(at.clone()))?,
            (OwnBase::Stored, Some(stored)) => answer.see(seqno, ValueKind::Put, stored)?,
            (OwnBase::Stored, None) => {}
        }
        Ok(answer.value(keyspace.operator.as_ref(), &keyspace.of.name)?.map(Value::from))
    }

    /// The deadline of a value of its own that `own` begins with.
    pub(super) fn deadline(&self, own: &OwnWrite) -> LeastDeadline {
        match &own.base {
            OwnBase::Written(ValueKind::ExpiringPut, at) => {
                let deadline = split_expiring(self.batch.bytes(at.clone())).0;
                // An expired value is none, and what is merged into it has no deadline.
                if deadline > self.at { LeastDeadline(deadline) } else { LeastDeadline::default() }
            }
            _ => LeastDeadline::default(),
        }
    }

    /// Whether the key has a value after `own`.
    pub(super) fn is_value(&self, own: &OwnWrite) -> bool {
        match &own.base {
            OwnBase::Written(kind, at) if own.operands.is_empty() => {
                let entry = Effect::of(*kind, self.batch.bytes(at.clone()));
                matches!(entry, Effect::Put(put) if !put.has_expired(self.at))
            }
            _ => true,
        }
    }

    /// Notes that the transaction sees nothing up to `key`, or from it on: it has popped that key.
    /// The next pop passes all of that at once.
    pub(super) fn note_emptied(&mut self, keyspace: u32, key: &[u8], first: bool) {
        let own = self.own.get_mut();
        own.index(&self.batch);
        match first {
            true => own.delete_range(keyspace, b"", Some(&[key, &[0]].concat())),
            false => own.delete_range(keyspace, key, None),
        }
    }

    /// Takes back the writes after `mark`, which none that remains has passed.
    pub(super) fn rewind(&mut self, mark: &BatchMark) {
        self.batch.rewind(mark);
        *self.own.get_mut() = OwnWrites::default();
    }
}

/// A keyspace that a transaction reads, with its merge operator.
#[derive(Clone)]
pub(super) struct OwnKeyspace {
    pub(super) of: ReadIn,
    pub(super) operator: Option<NamedOperator>,
}

/// The writes of a transaction to one key.
#[derive(Clone)]
pub(super) struct OwnWrite {
    base: OwnBase,
    /// Where the operands merged since are in the payload of the batch.
    operands: Vec<Range<usize>>,
}

/// What operands change.
#[derive(Clone)]
enum OwnBase {
    /// What the snapshot holds.
    Stored,
    /// A put or delete of the transaction, with its value at this position in the payload of its
    /// batch.
    Written(ValueKind, Range<usize>),
}

impl OwnBase {
    /// Nothing: the key, or a range with it, has been deleted.
    const DELETED: OwnBase = OwnBase::Written(ValueKind::Delete, 0..0);
}

impl OwnWrite {
    /// Whether the value depends on what the snapshot holds.
    pub(super) fn needs_stored(&self) -> bool {
        matches!(self.base, OwnBase::Stored)
    }
}

/// Ends of ranges by their starts; `None` is the end of the key space.
type OwnRanges = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The writes of a batch, by key. Made when a read first needs it, and brought up to date
/// by later reads: a transaction that only writes pays nothing.
#[derive(Default)]
pub(super) struct OwnWrites {
    keyspaces: BTreeMap<u32, BTreeMap<Vec<u8>, OwnWrite>>,
    /// The ranges that the batch deletes, or has emptied, by keyspace and start; they are disjoint.
    /// Writes there are later ones.
    ranges: BTreeMap<u32, OwnRanges>,
    /// Up to here the batch is indexed.
    indexed: BatchMark,
}

impl OwnWrites {
    /// Adds what was appended to `batch` since the last call.
    fn index(&mut self, batch: &WriteBatch) {
        let end = batch.mark();
        if self.indexed != end {
            for (keyspace, key, kind, at) in batch.writes_from(&self.indexed) {
                let Some(kind) = kind.of_entry() else {
                    let end = Some(batch.bytes(at)).filter(|end| !end.is_empty());
                    self.delete_range(keyspace, key, end);
                    continue;
                };
                let is_deleted = || self.range_of(keyspace, key).is_some();
                let stored = if is_deleted() { OwnBase::DELETED } else { OwnBase::Stored };
                let writes = self.keyspaces.entry(keyspace).or_default();
                if kind == ValueKind::Merge {
                    let first = || OwnWrite { base: stored, operands: Vec::new() };
                    writes.entry(key.to_vec()).or_insert_with(first).operands.push(at);
                } else {
                    let base = OwnBase::Written(kind, at);
                    writes.insert(key.to_vec(), OwnWrite { base, operands: Vec::new() });
                }
            }
            self.indexed = end;
        }
    }

    fn delete_range(&mut self, keyspace: u32, start: &[u8], end: Option<&[u8]>) {
        let (mut start, mut end) = (start.to_vec(), end.map(<[u8]>::to_vec));
        if let Some(writes) = self.keyspaces.get_mut(&keyspace) {
            let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let deleted = writes.range::<[u8], _>((Bound::Included(&*start), upper));
            let deleted: Vec<Vec<u8>> = deleted.map(|(key, _)| key.clone()).collect();
            deleted.iter().for_each(|key| _ = writes.remove(key));
        }
        let ranges = self.ranges.entry(keyspace).or_default();
        // Joins the ranges that it meets: perhaps the one before, and those that begin in it.
        let before = ranges.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&*start))).next_back();
        let before = before.filter(|(_, to)| to.as_ref().is_none_or(|to| start <= *to)).map(|(from, _)| from.clone());
        start = before.unwrap_or(start);
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let joined = ranges.range::<[u8], _>((Bound::Included(&*start), upper));
        let joined: Vec<Vec<u8>> = joined.map(|(from, _)| from.clone()).collect();
        for to in joined.iter().filter_map(|from| ranges.remove(from)) {
            end = end.zip(to).map(|(a, b)| a.max(b));
        }
        ranges.insert(start, end);
    }

    /// The deleted range that holds a key; its end is `None` if it has none.
    pub(super) fn range_of(&self, keyspace: u32, key: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
        let until = (Bound::Unbounded, Bound::Included(key));
        let (start, end) = self.ranges.get(&keyspace)?.range::<[u8], _>(until).next_back()?;
        end.as_deref().is_none_or(|end| key < end).then_some((&**start, end.as_deref()))
    }

    fn get(&self, keyspace: u32, key: &[u8]) -> Option<OwnWrite> {
        let written = self.keyspaces.get(&keyspace).and_then(|writes| writes.get(key)).cloned();
        let deleted = || OwnWrite { base: OwnBase::DELETED, operands: Vec::new() };
        written.or_else(|| self.range_of(keyspace, key).map(|_| deleted()))
    }

    /// The first write, or the last one, within `[lower, upper)`.
    pub(super) fn at_end(
        &self,
        keyspace: u32,
        lower: &[u8],
        upper: Option<&[u8]>,
        forward: bool,
    ) -> Option<(&[u8], &OwnWrite)> {
        if upper.is_some_and(|upper| upper <= lower) {
            return None;
        }
        let bounds = (Bound::Included(lower), upper.map_or(Bound::Unbounded, Bound::Excluded));
        let mut range = self.keyspaces.get(&keyspace)?.range::<[u8], _>(bounds);
        let (key, value) = if forward { range.next() } else { range.next_back() }?;
        Some((key, value))
    }
}
