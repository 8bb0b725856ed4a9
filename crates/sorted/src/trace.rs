//! [`ReadTrace`]: the steps of one point read, source by source.
//!
//! The read path reports to a trace as it goes. Ordinary reads pass [`Untraced`], whose calls
//! compile to nothing. An explanation is therefore of the very path that reads take.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::format::deadline::{DEADLINE_LEN, Deadline};
use crate::format::key::ValueKind;

/// A source of a point read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadSource {
    /// Writes in memory: 0 is the active memtable; the others wait for their flush, newest first.
    Memtable(usize),
    /// A table.
    Table {
        /// Its level.
        level: usize,
        /// Its file number.
        number: u64,
    },
    /// A level of ordered tables, none of whose ranges holds the key.
    Level(usize),
    /// The range deletes in memtables and tables.
    RangeDeletes,
}

/// A filter's answer for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterAnswer {
    /// The key is certainly not in the table.
    No,
    /// The key may be in the table.
    Maybe,
    /// The filter cannot be used, and means "maybe".
    Degraded,
    /// The filter was not asked: the table has none, or the read ignores it.
    Skipped,
}

/// The cost of opening a table: reading its header, footer, properties, index and filter, which
/// stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opening {
    /// Bytes read from the file.
    pub bytes: u64,
    /// Duration of opening.
    pub time: Duration,
}

/// A data block that a read searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockVisit {
    /// Offset of the block in the file.
    pub offset: u64,
    /// Length of the block in the file, trailer included, in bytes.
    pub len: u64,
    /// Whether the block was in the cache or in a mapped file; otherwise it was read from the file.
    pub cached: bool,
    /// Duration of getting the block.
    pub time: Duration,
}

impl Opening {
    #[doc(hidden)]
    pub fn new(bytes: u64, time: Duration) -> Opening {
        Opening { bytes, time }
    }
}

impl BlockVisit {
    #[doc(hidden)]
    pub fn new((offset, len): (u64, u64), cached: bool, time: Duration) -> BlockVisit {
        BlockVisit { offset, len, cached, time }
    }
}

/// What a source holds for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// The key lies outside of the source's key range.
    OutOfRange,
    /// Nothing: the filter said no, or the search found nothing.
    Absent,
    /// Only versions that the snapshot cannot see.
    Newer,
    /// A value of this many bytes.
    Value(usize),
    /// A value of this many bytes, which was read from a value file.
    SeparateValue(usize),
    /// A tombstone: the key was deleted.
    Deleted,
    /// A value that has expired, at this time: the key counts as deleted.
    Expired(SystemTime),
    /// Nothing newer than a range delete that deletes the key. A table that holds nothing newer at
    /// all is not asked, nor is its filter.
    DeletedByRange,
    /// An operand of a merge. The read went on to older operands and to the value that they change;
    /// those steps are not listed.
    Operand,
}

impl Found {
    /// What is found where an entry of this kind stores `len` bytes.
    pub fn stored(kind: ValueKind, len: usize) -> Found {
        match kind {
            ValueKind::Put => Found::Value(len),
            ValueKind::ExpiringPut => Found::Value(len.saturating_sub(DEADLINE_LEN)),
            ValueKind::Merge => Found::Operand,
            _ => Found::Deleted,
        }
    }
}

impl fmt::Display for ReadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadSource::Memtable(0) => f.write_str("memtable"),
            ReadSource::Memtable(i) => write!(f, "full memtable {i}"),
            ReadSource::Table { level, number } => write!(f, "level {level}, table {number}"),
            ReadSource::Level(level) => write!(f, "level {level}"),
            ReadSource::RangeDeletes => f.write_str("range deletes"),
        }
    }
}

impl fmt::Display for BlockVisit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = if self.cached { "from memory" } else { "from disk" };
        write!(f, "block at {}, {} bytes {from}", self.offset, self.len)
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "opened by reading {} bytes", self.bytes)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::OutOfRange => f.write_str("out of range"),
            Found::Absent => f.write_str("absent"),
            Found::Newer => f.write_str("only versions newer than the snapshot"),
            Found::Value(len) => write!(f, "value of {len} bytes"),
            Found::SeparateValue(len) => write!(f, "value of {len} bytes, read from a value file"),
            Found::Deleted => f.write_str("deleted"),
            Found::Expired(at) => {
                let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                write!(f, "expired at {}.{:03} (Unix time)", at.as_secs(), at.subsec_millis())
            }
            Found::DeletedByRange => f.write_str("deleted by a range delete"),
            Found::Operand => f.write_str("operand of a merge"),
        }
    }
}

impl fmt::Display for FilterAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FilterAnswer::No => "filter said no",
            FilterAnswer::Maybe => "filter said maybe",
            FilterAnswer::Degraded => "filter is damaged",
            FilterAnswer::Skipped => "filter not asked",
        })
    }
}

/// Receives the steps of a point read. For each source: `enter`; `opened` if the read opens the
/// table; `filter` if there is one; `block` for every block; `leave` unless the read fails.
pub trait ReadTrace {
    fn enter(&mut self, _source: ReadSource) {}
    /// The table was opened, by reading `bytes` bytes.
    fn opened(&mut self, _bytes: u64) {}
    fn filter(&mut self, _answer: FilterAnswer) {}
    /// A block was found or read; `place` tells its offset and length.
    fn block(&mut self, _place: impl FnOnce() -> (u64, u64), _cached: bool) {}
    fn leave(&mut self, _found: Found) {}
    /// What was found last has a deadline, which is past or not.
    fn deadline(&mut self, _deadline: Deadline, _is_past: bool) {}
}

/// The trace of ordinary reads: records nothing.
pub struct Untraced;

impl ReadTrace for Untraced {}
