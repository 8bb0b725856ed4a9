//! The narrow interface of everything that yields entries in order: memtables, tables, levels, and merges of them.

use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind};

/// A position in a sequence of entries ordered by user key, then newest first.
///
/// A cursor starts out invalid. After a failed step it is invalid too. The accessors may be called only while it is valid; they
/// borrow from the cursor, and the next step ends the borrow.
///
/// ```text
/// cursor = new (position step*)*      position = seek | seek_to_first | seek_to_last      step = next | prev, only while valid
/// ```
pub(crate) trait InternalCursor {
    fn valid(&self) -> bool;

    fn seek_to_first(&mut self) -> Result<()>;

    fn seek_to_last(&mut self) -> Result<()>;

    /// To the first entry at or after `(key, seqno)`: with a snapshot's number, the newest version of `key` it can see, or
    /// whatever comes behind that.
    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()>;

    fn next(&mut self) -> Result<()>;

    fn prev(&mut self) -> Result<()>;

    /// The user key.
    fn key(&self) -> &[u8];

    fn seqno(&self) -> SeqNo;

    fn kind(&self) -> ValueKind;

    fn value(&self) -> &[u8];
}
