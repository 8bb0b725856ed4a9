//! [`Error`], [`Result`] and [`Stop`].

/// The result of operations of a [`Machine`](super::Machine).
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the state of a group cannot be read or written.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] tamis::Error),
    /// The store returned what kvd did not write.
    #[error("keyspace {keyspace} holds a damaged entry {}: {rule}; restore this node from another", key.escape_ascii())]
    Damaged {
        /// The keyspace.
        keyspace: String,
        /// Key of the entry in the keyspace.
        key: Vec<u8>,
        /// The rule that does not hold.
        rule: &'static str,
    },
}

/// Why a request is not applied.
pub(super) enum Stop {
    /// The entry would change more bytes than one may.
    TooMuch,
    /// The state cannot be read.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}
