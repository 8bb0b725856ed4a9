//! [`Explanation`]: the steps of one point read, source by source.
//!
//! The read path reports to a [`ReadTrace`] as it goes. Ordinary reads pass [`Untraced`], whose
//! calls compile to nothing. An explanation is therefore of the very path that reads take.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::error::Result;
use crate::format::deadline::{DEADLINE_LEN, Deadline};
use crate::format::key::ValueKind;

/// What a point read consulted, in order, and its result.
#[derive(Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// Hash of the key, with which filters are probed.
    pub hash: u64,
    /// The sources, newest first, up to the one that answered.
    pub steps: Vec<ReadStep>,
    /// What the read returned, or why it failed in the last step.
    pub outcome: Result<Found>,
    /// Duration of the whole read.
    pub time: Duration,
}

/// One source that a point read consulted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadStep {
    /// The source.
    pub source: ReadSource,
    /// The cost of opening the table, if this read was the first to need it.
    pub opened: Option<Opening>,
    /// The filter's answer; `None` if there was none to ask: for a memtable, or a table whose range
    /// does not hold the key.
    pub filter: Option<FilterAnswer>,
    /// What was found; `None` if the read failed here.
    pub found: Option<Found>,
    /// The data blocks that were searched.
    pub blocks: Vec<BlockVisit>,
    /// Duration of the step.
    pub time: Duration,
}

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
    pub(crate) fn stored(kind: ValueKind, len: usize) -> Found {
        match kind {
            ValueKind::Put => Found::Value(len),
            ValueKind::ExpiringPut => Found::Value(len.saturating_sub(DEADLINE_LEN)),
            ValueKind::Merge => Found::Operand,
            _ => Found::Deleted,
        }
    }
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

impl ReadStep {
    /// Whether the filter said "maybe" for a key that is not there.
    pub fn is_false_positive(&self) -> bool {
        self.filter == Some(FilterAnswer::Maybe) && self.found == Some(Found::Absent)
    }
}

/// What a point read cost, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReadCost {
    /// Memtables that were searched.
    pub memtables: u64,
    /// Tables whose range holds the key.
    pub tables: u64,
    /// Filters that were asked.
    pub filters: u64,
    /// Of these, those that said no.
    pub filters_negative: u64,
    /// Of these, those that were wrong to say maybe.
    pub filters_wrong: u64,
    /// Data blocks found in memory.
    pub blocks_cached: u64,
    /// Data blocks read from files.
    pub blocks_read: u64,
    /// Tables that were opened.
    pub tables_opened: u64,
    /// Bytes read from files: data blocks, and what opening tables took.
    pub bytes_read: u64,
    /// Duration of the whole read.
    pub time: Duration,
}

impl Explanation {
    /// The steps, added up.
    pub fn cost(&self) -> ReadCost {
        let count = |is_counted: &dyn Fn(&&ReadStep) -> bool| self.steps.iter().filter(is_counted).count() as u64;
        let answered = |answer: FilterAnswer| count(&|step| step.filter == Some(answer));
        let blocks = self.steps.iter().flat_map(|step| &step.blocks);
        ReadCost {
            memtables: count(&|step| matches!(step.source, ReadSource::Memtable(_))),
            tables: count(&|step| {
                matches!(step.source, ReadSource::Table { .. }) && step.found != Some(Found::OutOfRange)
            }),
            filters: answered(FilterAnswer::No) + answered(FilterAnswer::Maybe),
            filters_negative: answered(FilterAnswer::No),
            filters_wrong: count(&|step| step.is_false_positive()),
            blocks_cached: blocks.filter(|block| block.cached).count() as u64,
            blocks_read: self.block_reads() as u64,
            tables_opened: self.tables_opened() as u64,
            bytes_read: self.bytes_read(),
            time: self.time,
        }
    }

    /// Number of tables that were opened.
    pub fn tables_opened(&self) -> usize {
        self.steps.iter().filter(|step| step.opened.is_some()).count()
    }

    /// Number of data blocks that were read from files.
    pub fn block_reads(&self) -> usize {
        self.steps.iter().flat_map(|step| &step.blocks).filter(|block| !block.cached).count()
    }

    /// All bytes that were read from files: data blocks, and what opening tables took.
    pub fn bytes_read(&self) -> u64 {
        self.steps.iter().filter_map(|step| step.opened).map(|opening| opening.bytes).sum::<u64>() + self.block_bytes()
    }

    /// Number of tombstones and expired values that the read met: at most one, since it hides
    /// everything older.
    pub fn tombstones_passed(&self) -> usize {
        let is_tombstone = |step: &&ReadStep| matches!(step.found, Some(Found::Deleted | Found::Expired(_)));
        self.steps.iter().filter(is_tombstone).count()
    }

    /// Bytes of data blocks that were read from files.
    pub fn block_bytes(&self) -> u64 {
        self.steps.iter().flat_map(|step| &step.blocks).filter(|block| !block.cached).map(|block| block.len).sum()
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

/// The result in words.
impl fmt::Display for ReadStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.opened.is_some() {
            f.write_str("table opened, ")?;
        }
        let filter = match self.filter {
            None => "",
            Some(FilterAnswer::No) => "filter said no",
            Some(FilterAnswer::Maybe) if self.is_false_positive() => "filter said maybe, wrongly: false positive",
            Some(FilterAnswer::Maybe) => "filter said maybe, rightly: ",
            Some(FilterAnswer::Degraded) => "filter is damaged: ",
            Some(FilterAnswer::Skipped) => "filter not asked: ",
        };
        f.write_str(filter)?;
        match (self.filter, self.found) {
            (_, None) => f.write_str("failed"),
            (Some(FilterAnswer::No), Some(Found::Absent)) => Ok(()),
            (_, Some(Found::Absent)) if self.is_false_positive() => Ok(()),
            (_, Some(found)) => found.fmt(f),
        }
    }
}

/// Receives the steps of a point read. For each source: `enter`; `opened` if the read opens the
/// table; `filter` if there is one; `block` for every block; `leave` unless the read fails.
pub(crate) trait ReadTrace {
    fn enter(&mut self, _source: ReadSource) {}
    /// The table was opened, by reading `bytes` bytes.
    fn opened(&mut self, _bytes: u64) {}
    fn filter(&mut self, _answer: FilterAnswer) {}
    /// A block of `len` bytes at `offset` was found or read.
    fn block(&mut self, _offset: u64, _len: u64, _cached: bool) {}
    fn leave(&mut self, _found: Found) {}
    /// What was found last has a deadline, which is past or not.
    fn deadline(&mut self, _deadline: Deadline, _is_past: bool) {}
}

/// The trace of ordinary reads: records nothing.
pub(crate) struct Untraced;

impl ReadTrace for Untraced {}
