//! The error type of the server.

use std::io;

use crate::machine::Version;

/// What can go wrong in a node, apart from what is answered to a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error("{0}")]
    Store(#[from] tamis::Error),
    /// The state machine failed.
    #[error("{0}")]
    Machine(#[from] crate::machine::Error),
    /// Bytes from the disk or the network are not what they should be.
    #[error("{place}: {rule}")]
    Decode {
        /// Where the bytes were.
        place: &'static str,
        /// The rule that they break.
        rule: String,
    },
    /// Bytes from the disk or the network are of a version that this program does not know.
    #[error("{place}: version {found}, and this kvd knows versions up to {known}: use a newer one")]
    Version {
        /// Where the bytes were.
        place: &'static str,
        /// Their version.
        found: Version,
        /// What the node knows.
        known: Version,
    },
    /// This program is too old for the cluster.
    #[error("the cluster has version {needed}, and this kvd knows versions up to {known}: use a newer one")]
    Outdated {
        /// The version of the cluster.
        needed: Version,
        /// What this program knows.
        known: Version,
    },
    /// Another node is too old.
    #[error("{node} knows versions up to {known}, and version {needed} is needed: use a newer kvd there")]
    Old {
        /// Address of the node.
        node: String,
        /// What the node knows.
        known: Version,
        /// What it would have to know.
        needed: Version,
    },
    /// A value cannot be encoded.
    #[error("cannot encode a value: {0}")]
    Encode(String),
    /// A setting is wrong, or does not fit the store.
    #[error("{0}")]
    Config(String),
    /// An operation on the network or on a file failed.
    #[error("cannot {operation} {target}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which address or path.
        target: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Another node refused a request, and did nothing.
    #[error("node {node} refused: {reason}")]
    Refused {
        /// Address of the node.
        node: String,
        /// Its reason.
        reason: String,
    },
    /// The target of an export cannot hold an entry.
    #[error("{target} cannot hold the key {}: {misfit}", shown(key))]
    Misfit {
        /// What was to hold it.
        target: &'static str,
        /// The key.
        key: Vec<u8>,
        /// Why it cannot.
        misfit: Misfit,
    },
    /// A signal has ended an operation.
    #[error("interrupted; {0}")]
    Interrupted(&'static str),
    /// No leader of a group is known, or it cannot be reached.
    #[error("group {0}: no leader is reached")]
    NoLeader(u32),
    /// The node is no member of its cluster any more.
    #[error("node {0} was removed from the cluster; to add it again, remove its directory first")]
    Removed(u64),
    /// The consensus core of a group has stopped.
    #[error("group {group}: {reason}")]
    Stopped {
        /// The group.
        group: u32,
        /// Why it stopped.
        reason: String,
    },
}

/// What an export's target does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The key is too long.
    #[error("it has {len} bytes, and a key at most {limit}")]
    LongKey {
        /// Length of the key.
        len: usize,
        /// Length of the longest one allowed.
        limit: usize,
    },
    /// The value is too long.
    #[error("its value has {len} bytes, and a value at most {limit}")]
    LongValue {
        /// Length of the value.
        len: usize,
        /// Length of the longest one allowed.
        limit: usize,
    },
    /// The key is in a range that the target keeps for itself.
    #[error("keys that begin with the byte 0xff are the system's")]
    SystemKey,
    /// The key expires.
    #[error("it expires at {0} ms since 1970, and keys do not expire there")]
    Deadline(u64),
}

/// Bytes of a key that an error shows.
const SHOWN_KEY: usize = 60;

fn shown(key: &[u8]) -> String {
    match key.split_at_checked(SHOWN_KEY) {
        Some((begin, rest)) if !rest.is_empty() => format!("\"{}…\" ({} bytes)", begin.escape_ascii(), key.len()),
        _ => format!("\"{}\"", key.escape_ascii()),
    }
}

/// Result of an operation of a node.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether one side of a connection has refused the other, and it did not only end.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            // Such as a certificate.
            Error::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
            _ => true,
        }
    }

    /// Wraps an I/O error in what was tried.
    pub(crate) fn io(operation: &'static str, target: impl ToString) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { operation, target: target.to_string(), source }
    }
}
