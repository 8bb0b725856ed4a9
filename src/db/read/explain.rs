//! `explain`: a point read that reports its steps.
//!
//! It is the ordinary read with a trace that writes down what it is told (`sorted::trace`).

use std::fmt;
use std::time::{Duration, Instant};

use super::{ReadOptions, ReadTarget};
use crate::db::store::Store;
use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::deadline::{Deadline, time_of};
use crate::sorted::trace::{BlockVisit, FilterAnswer, Found, Opening, ReadSource, ReadTrace};
use crate::sync::time;

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

/// The result in words.
impl fmt::Display for ReadStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.opened.is_some() {
            f.write_str("table opened, ")?;
        }
        if let Some(answer) = self.filter {
            answer.fmt(f)?;
        }
        f.write_str(match self.filter {
            Some(FilterAnswer::Maybe) if self.is_false_positive() => ", wrongly: false positive",
            Some(FilterAnswer::Maybe) => ", rightly: ",
            None | Some(FilterAnswer::No) => "",
            Some(_) => ": ",
        })?;
        match (self.filter, self.found) {
            (_, None) => f.write_str("failed"),
            (Some(FilterAnswer::No), Some(Found::Absent)) => Ok(()),
            (_, Some(Found::Absent)) if self.is_false_positive() => Ok(()),
            (_, Some(found)) => found.fmt(f),
        }
    }
}

/// A line for each step, with those of its reads below it, and one with the result:
///
/// ```text
/// memtable: absent
/// level 0, table 7: filter said no
/// level 5, table 3: filter said maybe, rightly: value of 3 bytes
///     block at 64, 118 bytes from disk
/// value of 3 bytes: 0 tables opened, 1 block read, 118 bytes, 31 µs
/// ```
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{}: {step}", step.source)?;
            write_reads(f, step.opened, step.blocks.iter().map(|block| (block, "")))?;
        }
        match &self.outcome {
            Ok(found) => write!(f, "{found}")?,
            Err(error) => write!(f, "{error}")?,
        }
        write_cost(f, self.tables_opened(), self.block_reads(), self.bytes_read(), self.time)
    }
}

/// A line for each read of a table: opening it, then its blocks, each with what is said of it.
pub(super) fn write_reads<'b>(
    f: &mut fmt::Formatter<'_>,
    opened: Option<Opening>,
    blocks: impl Iterator<Item = (&'b BlockVisit, &'static str)>,
) -> fmt::Result {
    opened.iter().try_for_each(|opening| writeln!(f, "    {opening}"))?;
    let mut blocks = blocks;
    blocks.try_for_each(|(block, verdict)| writeln!(f, "    {block}{verdict}"))
}

/// What a read took in all, after its result.
pub(super) fn write_cost(
    f: &mut fmt::Formatter<'_>,
    opened: usize,
    blocks: usize,
    bytes: u64,
    time: Duration,
) -> fmt::Result {
    let s = |count: usize| if count == 1 { "" } else { "s" };
    let micros = time.as_micros();
    write!(f, ": {opened} table{} opened, {blocks} block{} read, {bytes} bytes, {micros} µs", s(opened), s(blocks))
}

/// Collects the steps that a read reports, with their times.
struct Recorder {
    steps: Vec<ReadStep>,
    /// Time of the last event, and start of the current step.
    last: Instant,
    entered: Instant,
}

impl Recorder {
    fn new() -> Recorder {
        let now = time::now();
        Recorder { steps: Vec::new(), last: now, entered: now }
    }

    /// Returns the time since the last event.
    fn lap(&mut self) -> Duration {
        let now = time::now();
        now - std::mem::replace(&mut self.last, now)
    }
}

impl ReadTrace for Recorder {
    fn enter(&mut self, source: ReadSource) {
        self.lap();
        self.entered = self.last;
        let (blocks, time) = (Vec::new(), Duration::ZERO);
        self.steps.push(ReadStep { source, opened: None, filter: None, found: None, blocks, time });
    }

    fn opened(&mut self, bytes: u64) {
        let time = self.lap();
        if let Some(step) = self.steps.last_mut() {
            step.opened = Some(Opening::new(bytes, time));
        }
    }

    fn filter(&mut self, answer: FilterAnswer) {
        self.lap();
        if let Some(step) = self.steps.last_mut() {
            step.filter = Some(answer);
        }
    }

    fn block(&mut self, place: impl FnOnce() -> (u64, u64), cached: bool) {
        let place = place();
        let time = self.lap();
        if let Some(step) = self.steps.last_mut() {
            step.blocks.push(BlockVisit::new(place, cached, time));
        }
    }

    fn leave(&mut self, found: Found) {
        self.lap();
        if let Some(step) = self.steps.last_mut() {
            step.found = Some(found);
            step.time = self.last - self.entered;
        }
    }

    fn deadline(&mut self, deadline: Deadline, is_past: bool) {
        if let Some(step) = self.steps.last_mut().filter(|_| is_past) {
            step.found = Some(Found::Expired(time_of(deadline)));
        }
    }
}

impl Store {
    /// Reads a key like `get`, and reports how. Returns only errors that are not about the key;
    /// others are part of the explanation.
    pub(crate) fn explain(&self, target: ReadTarget<'_>, key: &[u8], options: ReadOptions) -> Result<Explanation> {
        let mut recorder = Recorder::new();
        let start = recorder.last;
        let read = self.get(target, key, options.mode(), &mut recorder, |value| value.bytes().len());
        let time = time::since(start);
        let outcome = match read {
            Ok(Some(len)) => Ok(Found::Value(len)),
            Ok(None) => match recorder.steps.last().and_then(|step| step.found) {
                Some(found @ (Found::Deleted | Found::DeletedByRange | Found::Expired(_))) => Ok(found),
                _ => Ok(Found::Absent),
            },
            // Without a step the read never began.
            Err(error) if recorder.steps.is_empty() => return Err(error),
            Err(error) => Err(error),
        };
        Ok(Explanation { hash: KeyHash::new(self.seed, key).value(), steps: recorder.steps, outcome, time })
    }
}
