//! Log files. A module [`wal`] and a module [`op`] know what the records of the write-ahead log
//! say; the rest is the framing that it shares with the manifest. A log is a numbered file of
//! checksummed records. Each record takes one or more *ordinals* (sequence numbers in a WAL, edits
//! in a manifest) and continues where the record before it ended.
//!
//! ```text
//! log    = file header, record*
//! record = header, payload        sync marker = a record without ordinals, header only
//! ```
//!
//! Invariants:
//!
//! - Ordinals have no holes, from record to record and from log to log. The header of a log states
//!   its first ordinal, and so where every older log ends.
//! - A record states how far the log was durable when it was written, which is always before the
//!   record itself. Replay uses that to tell damage from a torn tail; docs/FORMAT.md has the rule.
//! - Nothing is appended after bytes whose state is unknown: not after a failed append, not to a
//!   log that was found on opening.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "no stable interface: names alone where they say all")]
#![allow(clippy::len_without_is_empty, reason = "lengths of files, which have headers")]
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]

mod follow;
pub mod op;
pub mod reader;
mod replay;
mod salvage;
mod tail;
pub mod wal;
mod writer;

pub use follow::{Ahead, LogChain, LogCursor};
pub use reader::Record;
pub use replay::{ApplyError, LogEnds, replay};
pub use salvage::{LogGap, Needed, open_damaged, salvage};
pub use tail::LogTail;
pub use writer::{LogWriter, NewRecord};

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
