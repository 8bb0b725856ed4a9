//! [`Error`]: what can go wrong.

use std::io;

/// What can go wrong in a log store or state store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] tamis::Error),
    /// The program's state machine failed.
    #[error(transparent)]
    Machine(Box<dyn std::error::Error + Send + Sync>),
    /// Something cannot be encoded.
    #[error("cannot be encoded: {0}")]
    Encode(String),
    /// Bytes from the store or from another node are not what was written.
    #[error("{place}: {rule}")]
    Decode {
        /// Where the bytes were.
        place: &'static str,
        /// The rule that they break.
        rule: String,
    },
    /// The state of a group has ended.
    #[error("group {group}: {reason}")]
    Stopped {
        /// The group.
        group: u32,
        /// What was waited for.
        reason: String,
    },
    /// The thread that syncs logs cannot be started.
    #[error("cannot start the thread that syncs logs: {0}")]
    Thread(io::Error),
}

impl Error {
    /// An error of the program's state machine.
    pub fn machine(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Machine(error.into())
    }
}

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;
