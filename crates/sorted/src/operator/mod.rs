//! Code of the caller that decides what values become: merge operators and compaction filters.

mod answer;
mod built_in;
mod chain;
mod filter;
mod named;

use std::fmt;

pub use answer::{Answer, ReadValue};
pub use built_in::Fold;
pub use built_in::{Add, Append, ByteOrder, Max, Min, Union};
pub use chain::{OperandChain, Resolved, decode_operand, oldest_of_operand, put_operand};
pub use filter::CompactionHook;
pub use filter::{CompactionDecision, CompactionFilter};
pub use named::NamedOperator;

/// Combines the operands of a key.
///
/// A read combines all operands since the last flush or compaction of the key; only those of `Add`,
/// `Max` and `Min` are combined in memory already.
///
/// It must be associative: operands are combined in groups, in their order, when and where it suits
/// the store. A value that was put counts as the first operand, and the first operand of a key
/// without a value is its value. The same operands must always give the same result.
pub trait MergeOperator: Send + Sync {
    /// The operator's name, 1 to 255 bytes. The store keeps it with the keyspace, and refuses an
    /// operator of another name; operators of one name count as the same. Names that begin with
    /// `tamis.` are reserved.
    fn name(&self) -> &str;

    /// Whether an operand is one that the operator can read. A merge of any other is refused with
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument). By default all are.
    fn check(&self, _key: &[u8], _operand: &[u8]) -> Result<(), MergeError> {
        Ok(())
    }

    /// Appends to `out`, which is empty, what `operands` make together: at least two, oldest first.
    ///
    /// After an error, or a panic, a read of the key fails with
    /// [`Error::Merge`](crate::error::Error::Merge), and a compaction keeps the operands as they
    /// are. It is called without locks, in threads that read and in those that compact, and must
    /// not use the store.
    fn merge(&self, key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError>;
}

/// Why operands cannot be combined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MergeError(String);

impl MergeError {
    /// An error with this reason.
    pub fn new(reason: impl fmt::Display) -> MergeError {
        MergeError(reason.to_string())
    }
}
