//! [`Reply`]: what a command answers, apart from how it is written to a connection.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The answer to a command.
///
/// Replies to writes are computed by every replica and must come out equal; the one that a
/// session's last request got is stored beside the data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// There is no value.
    Nil,
    /// There is no array: what EXEC answers when a watched key has changed.
    NilArray,
    /// A short word: `OK`, `PONG`, a type's name.
    Status(Cow<'static, str>),
    /// A number.
    Integer(i64),
    /// A string of bytes.
    Bulk(Bytes),
    /// Several replies.
    Array(Vec<Reply>),
    /// Pairs; an array of twice the length in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// Text meant for people, such as that of INFO.
    Text(String),
    /// A refusal. The first word is its kind, by which clients tell refusals apart.
    Error(Cow<'static, str>),
}

impl Reply {
    /// `OK`.
    pub const OK: Reply = Reply::Status(Cow::Borrowed("OK"));

    /// What a write answers that was applied, if its own reply is too long to keep.
    pub const NOT_KEPT: Reply =
        Reply::Error(Cow::Borrowed("NOREPLY the command was applied, and its reply was too long to keep"));

    /// A string of bytes.
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(Bytes::copy_from_slice(bytes.as_ref()))
    }

    /// A refusal. Its text must begin with its kind, in capitals.
    pub fn error(text: impl Into<Cow<'static, str>>) -> Reply {
        Reply::Error(text.into())
    }

    /// Whether this is a refusal.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// About how many bytes it takes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Reply::Nil | Reply::NilArray | Reply::Integer(_) => 8,
            Reply::Status(text) | Reply::Error(text) => text.len(),
            Reply::Bulk(bytes) => bytes.len(),
            Reply::Text(text) => text.len(),
            Reply::Array(items) => items.iter().map(|item| 8 + item.weight()).sum(),
            Reply::Map(pairs) => pairs.iter().map(|(key, value)| 8 + key.weight() + value.weight()).sum(),
        }
    }

    /// A number of things as a number on the wire.
    pub(crate) fn count(count: usize) -> Reply {
        Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }
}
