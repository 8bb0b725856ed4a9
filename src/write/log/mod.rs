//! Log files: the one framing of WAL and manifest. A numbered file of checksummed records, each of which takes one or more
//! *ordinals* (sequence numbers in a WAL, edits in a manifest) and continues where the record before it ended.
//!
//! ```text
//! log = file header, record*        record = header, payload        sync marker = a record of no ordinals, header only
//! ```
//!
//! What the payloads mean is not known here. Invariants:
//!
//! - Ordinals have no holes, from record to record and from log to log; the header of a log says with which it begins, and so
//!   where every older log ends.
//! - A record says how far the log was durable when it was written, never further than to the record itself. Replay uses that to
//!   tell damage from a torn tail; docs/FORMAT.md has the rule.
//! - Nothing is appended behind bytes whose state is unknown: not after a failed append, not to a log that was found on opening.

pub(crate) mod reader;
mod replay;
mod salvage;
mod writer;

pub(crate) use reader::Record;
pub(crate) use replay::{ApplyError, replay};
pub(crate) use salvage::{LogGap, Needed, open_damaged, salvage};
pub(crate) use writer::{LogRecord, LogWriter};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
