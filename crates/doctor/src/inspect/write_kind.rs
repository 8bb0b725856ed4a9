//! [`WriteKind`]: what a write does to its key.

use std::fmt;

use crate::format::key::ValueKind;
use crate::log::op::OpKind;

/// What a write does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteKind {
    /// It sets the key to a value.
    Put,
    /// It sets the key to a value until a deadline.
    ExpiringPut,
    /// It sets the key to a value that a value file holds.
    SeparatePut,
    /// It sets the key to a value that a value file holds, until a deadline.
    SeparateExpiringPut,
    /// It deletes the key: a tombstone.
    Delete,
    /// It changes the key's value by an operand.
    Merge,
    /// It deletes the keys from its own up to its value, or all from its own on if that is empty.
    DeleteRange,
    /// It adds tables to the keyspace.
    Ingest,
}

impl From<ValueKind> for WriteKind {
    fn from(kind: ValueKind) -> WriteKind {
        match kind {
            ValueKind::Put => WriteKind::Put,
            ValueKind::ExpiringPut => WriteKind::ExpiringPut,
            ValueKind::SeparatePut => WriteKind::SeparatePut,
            ValueKind::SeparateExpiringPut => WriteKind::SeparateExpiringPut,
            ValueKind::Delete => WriteKind::Delete,
            ValueKind::Merge => WriteKind::Merge,
        }
    }
}

impl From<OpKind> for WriteKind {
    fn from(kind: OpKind) -> WriteKind {
        kind.of_entry().map_or(WriteKind::DeleteRange, WriteKind::from)
    }
}

impl fmt::Display for WriteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteKind::Put => "put",
            WriteKind::ExpiringPut => "expiring put",
            WriteKind::SeparatePut => "separate put",
            WriteKind::SeparateExpiringPut => "separate expiring put",
            WriteKind::Delete => "delete",
            WriteKind::Merge => "merge",
            WriteKind::DeleteRange => "delete range",
            WriteKind::Ingest => "ingest",
        })
    }
}
