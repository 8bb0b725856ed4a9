//! `explain_range`: a scan that reports what it reads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::explain::{write_cost, write_reads};
use super::{ReadOptions, ReadTarget};
use crate::db::store::Store;
use crate::error::Result;
use crate::format::span::KeySpan;
use crate::sorted::scan_trace::{ScanTrace, ScannedBlock, TableVisit};
use crate::sorted::trace::{FilterAnswer, Opening};
use crate::sync::time;

/// What a scan read, table by table, and how it ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct RangeExplanation {
    /// The tables whose key ranges overlap what was scanned, in the order of reads. Memtables cost
    /// no read and are not listed.
    pub steps: Vec<ScanStep>,
    /// Number of entries found, or why the scan failed.
    pub outcome: Result<u64>,
    /// Duration of the whole scan.
    pub time: Duration,
}

/// A table that a scan had to consider.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanStep {
    /// The table's level.
    pub level: usize,
    /// The table's file number.
    pub table: u64,
    /// The cost of opening the table, if this scan was the first to need it.
    pub opened: Option<Opening>,
    /// What the table's filter said of the scan's prefix; `None` if all keys of the range do not
    /// have one prefix, or the scan did not come to the table.
    pub prefix: Option<FilterAnswer>,
    /// What the table's range filter said of the key that the scan sought last; `None` if it was
    /// not asked: there is none, or the block that may have the key was in memory. It says "no" if
    /// the scan ended before the filter's bound of that key.
    pub range: Option<FilterAnswer>,
    /// The data blocks that the scan entered. None, if no entry of the table could come next before
    /// the scan ended: its key range, its index or its range filter said so.
    pub blocks: Vec<ScannedBlock>,
}

impl RangeExplanation {
    fn blocks(&self) -> impl Iterator<Item = &ScannedBlock> {
        self.steps.iter().flat_map(|step| &step.blocks)
    }

    /// Number of data blocks that the scan entered.
    pub fn blocks_entered(&self) -> usize {
        self.blocks().count()
    }

    /// Of these, those that were read from files.
    pub fn block_reads(&self) -> usize {
        self.blocks().filter(|block| !block.visit.cached).count()
    }

    /// Of the blocks entered, those from which the scan took nothing; see
    /// [`ReadStats::scan_blocks_unused`](crate::ReadStats::scan_blocks_unused).
    pub fn blocks_unused(&self) -> usize {
        self.blocks().filter(|block| !block.used).count()
    }

    /// Of the blocks read from files, those from which the scan took nothing.
    pub fn reads_unused(&self) -> usize {
        self.blocks().filter(|block| !block.used && !block.visit.cached).count()
    }

    /// Number of tables that were opened.
    pub fn tables_opened(&self) -> usize {
        self.steps.iter().filter(|step| step.opened.is_some()).count()
    }

    /// All bytes that were read from files: data blocks, and what opening tables took.
    pub fn bytes_read(&self) -> u64 {
        let blocks = self.blocks().filter(|block| !block.visit.cached).map(|block| block.visit.len);
        self.steps.iter().filter_map(|step| step.opened).map(|opening| opening.bytes).chain(blocks).sum()
    }
}

/// The table's part in words.
impl fmt::Display for ScanStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.opened.is_some() {
            f.write_str("table opened, ")?;
        }
        if let Some(answer) = self.prefix {
            write!(f, "{answer}, ")?;
        }
        match self.range {
            Some(FilterAnswer::No) => f.write_str("range filter said no, ")?,
            Some(_) => f.write_str("range filter said maybe, ")?,
            None => {}
        }
        let unused = self.blocks.iter().filter(|block| !block.used).count();
        match self.blocks.len() {
            0 => f.write_str("no block needed"),
            1 if unused == 1 => f.write_str("1 block, for nothing"),
            1 => f.write_str("1 block"),
            count if unused == 0 => write!(f, "{count} blocks"),
            count => write!(f, "{count} blocks, {unused} for nothing"),
        }
    }
}

/// A line for each table, with those of its reads below it, and one with the result; as of an
/// [`Explanation`](crate::Explanation).
impl fmt::Display for RangeExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "level {}, table {}: {step}", step.level, step.table)?;
            let verdict = |block: &ScannedBlock| if block.used { "" } else { ", for nothing" };
            write_reads(f, step.opened, step.blocks.iter().map(|block| (&block.visit, verdict(block))))?;
        }
        match &self.outcome {
            Ok(1) => f.write_str("1 entry")?,
            Ok(entries) => write!(f, "{entries} entries")?,
            Err(error) => write!(f, "{error}")?,
        }
        write_cost(f, self.tables_opened(), self.block_reads(), self.bytes_read(), self.time)
    }
}

impl Store {
    /// Scans the first `most` entries of a range, and reports how. Returns only errors that are not
    /// about the range; others are part of the explanation.
    pub(crate) fn explain_range(
        &self,
        target: ReadTarget<'_>,
        range: KeySpan<Vec<u8>>,
        most: u64,
        options: ReadOptions,
    ) -> Result<RangeExplanation> {
        let start = time::now();
        let trace = Arc::<ScanTrace>::default();
        let (mut iter, version) = self.try_iter(target, range.clone(), options.mode(), Some(Arc::clone(&trace)))?;
        let (mut last, mut count, mut outcome) = (None, 0, Ok(()));
        while count < most {
            match iter.step(true, |cursor| cursor.key().map(<[u8]>::to_vec)) {
                Some(Ok(key)) => (last, count) = (Some(key), count + 1),
                Some(Err(error)) => outcome = Err(error),
                None => break,
            }
        }
        let was_limited = count == most;
        drop(iter);
        let time = time::since(start);
        let mut visits = trace.take();
        let mut steps = Vec::new();
        for (level, table) in version.tables() {
            let meta = table.meta();
            let ends_before = last.as_ref().is_some_and(|last| was_limited && meta.smallest.as_ref() > &**last);
            let is_considered = !ends_before && range.overlaps(&meta.smallest, &meta.largest);
            let visit = visits.remove(&meta.number).or_else(|| is_considered.then(TableVisit::default));
            steps.extend(visit.map(|TableVisit { opened, prefix, range, blocks }| ScanStep {
                level,
                table: meta.number,
                opened,
                prefix,
                range,
                blocks,
            }));
        }
        Ok(RangeExplanation { steps, outcome: outcome.map(|()| count), time })
    }
}
