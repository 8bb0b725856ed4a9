//! [`apply`]: an operation of a batch, applied to a memtable.

use crate::filter::KeyHash;
use crate::format::key::{SeqNo, ValueKind};
use crate::log::op::Op;
use crate::sorted::memtable::MemtableWriter;
use crate::sorted::operator::Fold;

/// Applies an operation of a batch; `hash` is the hash of its key. `fold` says how operands of its
/// keyspace combine. Sequence numbers must ascend from call to call.
#[inline(always)]
pub fn apply(
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
