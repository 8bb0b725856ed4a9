//! Inserts operations that were read from logs into memtables, for recovery (`recovery`) and for
//! readers beside another process (`follow`).

use crate::filter::KeyHash;
use std::ops::Range;

use crate::format::key::{SeqNo, ValueKind};
use crate::operator::Fold;
use crate::write::batch::Op;
use crate::write::memtable::{Memtable, any_in};

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
        let Op { keyspace, kind, key, value, .. } = *operation;
        if kind == ValueKind::Merge {
            writer.insert_operand(keyspace, key, *hash, *seqno, value, fold(keyspace));
        } else if kind == ValueKind::DeleteRange {
            writer.delete_range(keyspace, key, value, *seqno);
        } else {
            writer.insert_hashed(keyspace, key, *hash, *seqno, kind, value);
        }
        inserted += 1;
    }
    inserted
}
