//! Applies operations to memtables: those of a writer, and those read from logs, by recovery
//! (`recovery`) and by readers beside another process (`follow`).

use crate::filter::KeyHash;
use std::ops::Range;

use crate::format::key::{SeqNo, ValueKind};
use crate::operator::Fold;
use crate::write::batch::Op;
use crate::write::memtable::{Memtable, MemtableWriter, any_in};

/// Operations inserted at a time. Their index slots are prefetched first, so that the cache misses
/// overlap.
pub(super) const GROUP: usize = 32;

/// An operation read from a log.
pub(super) struct Insertion<'a> {
    pub(super) operation: Op<'a>,
    pub(super) hash: KeyHash,
    pub(super) seqno: SeqNo,
    /// If this is the first operation of its batch, the number of the log and of the batch's first
    /// operation, which the log may not have.
    pub(super) begins: Option<(u64, SeqNo)>,
}

/// Applies an operation of a batch; `hash` is the hash of its key. `fold` says how operands of its
/// keyspace combine. Sequence numbers must ascend from call to call.
#[inline(always)]
pub(crate) fn apply(
    writer: &mut MemtableWriter<'_>,
    operation: &Op<'_>,
    hash: KeyHash,
    seqno: SeqNo,
    fold: impl FnOnce() -> Option<Fold>,
) {
    let Op { keyspace, kind, key, value, .. } = *operation;
    match kind.of_entry() {
        None => writer.delete_range(keyspace, key, value, seqno),
        Some(ValueKind::Merge) => writer.insert_operand(keyspace, key, hash, seqno, value, fold()),
        Some(kind) => writer.insert_hashed(keyspace, key, hash, seqno, kind, value),
    }
}

/// Inserts operations into a memtable until one begins a batch and the memtable has `size` bytes: a
/// batch is never split. Returns how many it has inserted, at least one if the memtable has less.
/// Of the range deletes that are there, those stay that readers at `kept`, ascending, need.
pub(super) fn insert_until_full(
    memtable: &Memtable,
    size: usize,
    group: &[Insertion<'_>],
    kept: &[SeqNo],
    fold: impl Fn(u32) -> Option<Fold>,
) -> usize {
    let mut inserted = 0;
    let is_needed = |numbers: Range<SeqNo>| any_in(kept, numbers);
    let mut writer = memtable.writer();
    writer.keep_ranges_if(&is_needed);
    for Insertion { operation, hash, seqno, begins } in group {
        if begins.is_some() && writer.used() >= size {
            break;
        }
        apply(&mut writer, operation, *hash, *seqno, || fold(operation.keyspace));
        inserted += 1;
    }
    inserted
}
