//! What a point read can tell of its way, source by source.
//!
//! The read path calls a [`ReadTrace`] as it goes. Ordinary reads pass [`Untraced`], whose calls are compiled to nothing, so that what is
//! explained is the very path that reads take.

use std::fmt;
use std::time::Duration;

use crate::error::Result;

/// What a point read consulted, in order, and what it came to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// Hash of the key: what filters are asked with.
    pub hash: u64,
    /// The sources, newest first, up to the one that had the answer.
    pub steps: Vec<ReadStep>,
    /// What the read returned, or why it failed in the last of the steps.
    pub outcome: Result<Found>,
    /// How long it took in all.
    pub time: Duration,
}

/// One source on the way of a point read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadStep {
    /// The source.
    pub source: ReadSource,
    /// What it took to open the table, if this read had to: it was the first to come to it.
    pub opened: Option<Opening>,
    /// What its filter said; `None` if the source has none to ask: a memtable, or a table whose range does not hold the key.
    pub filter: Option<FilterAnswer>,
    /// What was found; `None` if the read failed here.
    pub found: Option<Found>,
    /// The data blocks that were looked at.
    pub blocks: Vec<BlockVisit>,
    /// How long the step took.
    pub time: Duration,
}

/// What a point read consults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadSource {
    /// Writes in memory: 0 is the memtable that takes the writes, the others wait for their flush, newest first.
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
}

/// What a filter said of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterAnswer {
    /// The key is certainly not in the table.
    No,
    /// The key may be in the table.
    Maybe,
    /// The filter cannot be used, and means "maybe".
    Degraded,
    /// It was not asked: the table has none, or the read ignores it.
    Skipped,
}

/// What a source has of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// The key lies outside of the range of the source's keys.
    OutOfRange,
    /// Nothing: the filter's word was taken, or the key is not there.
    Absent,
    /// Only versions that the snapshot cannot see.
    Newer,
    /// A value of so many bytes.
    Value(usize),
    /// A tombstone: the key was deleted.
    Deleted,
}

/// What it took to open a table: to read its header, footer, properties, index and filter, which stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opening {
    /// Bytes read from the file.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
}

/// A data block that a read looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockVisit {
    /// Offset of the block in the file.
    pub offset: u64,
    /// Bytes of the block in the file, trailer included.
    pub len: u64,
    /// Whether the cache had it, or it was looked at in a mapped file; otherwise these bytes were read from the file.
    pub cached: bool,
    /// How long it took to get.
    pub time: Duration,
}

impl ReadStep {
    /// Whether the filter said "maybe" of a key that is not there.
    pub fn is_false_positive(&self) -> bool {
        self.filter == Some(FilterAnswer::Maybe) && self.found == Some(Found::Absent)
    }
}

impl Explanation {
    /// Tables that were opened.
    pub fn tables_opened(&self) -> usize {
        self.steps.iter().filter(|step| step.opened.is_some()).count()
    }

    /// Data blocks that were read from files.
    pub fn block_reads(&self) -> usize {
        self.steps.iter().flat_map(|step| &step.blocks).filter(|block| !block.cached).count()
    }

    /// All bytes that were read from files: those of data blocks, and those that it took to open tables.
    pub fn bytes_read(&self) -> u64 {
        self.steps.iter().filter_map(|step| step.opened).map(|opening| opening.bytes).sum::<u64>() + self.block_bytes()
    }

    /// Tombstones that the read met. One at most: it hides everything older.
    pub fn tombstones_passed(&self) -> usize {
        self.steps.iter().filter(|step| step.found == Some(Found::Deleted)).count()
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
            Found::Deleted => f.write_str("deleted"),
        }
    }
}

/// The verdict in words.
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

/// Is told of a point read's way. For each source: `enter`, `opened` if the read opens the table, `filter` if it has one, `block` for every block, `leave` unless it fails.
pub(crate) trait ReadTrace {
    fn enter(&mut self, _source: ReadSource) {}
    /// The table has been opened, and so many bytes read for it.
    fn opened(&mut self, _bytes: u64) {}
    fn filter(&mut self, _answer: FilterAnswer) {}
    /// A block of `len` bytes at `offset` has been got.
    fn block(&mut self, _offset: u64, _len: u64, _cached: bool) {}
    fn leave(&mut self, _found: Found) {}
}

/// Of no interest to anybody.
pub(crate) struct Untraced;

impl ReadTrace for Untraced {}
