//! [`PrefixProbe`]: lets a scan leave out tables whose filters deny the scan's prefix.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::reader::Counting;
use super::resident::TableFilter;
use super::{Table, TableCursor};
use crate::error::Result;
use crate::filter::KeyHash;
use crate::filter::PrefixExtractor;
use crate::format::key::{SeqNo, compare, strip};
use crate::iter::InternalCursor;
use crate::report::stats::ReadEvent;
use crate::sync::Mutex;
use crate::table::FilterMode;
use crate::trace::FilterAnswer;

/// Whether a table may hold keys with the prefix that all keys of a scan share, by the extractor.
///
/// All cursors of the scan share the probe. It asks each table's filter once, when the scan first
/// reaches the table.
#[derive(Debug)]
pub struct PrefixProbe {
    extractor: PrefixExtractor,
    prefix: Box<[u8]>,
    /// Hash of the prefix under the store's seed.
    hash: KeyHash,
    mode: FilterMode,
    /// Answers of the filters, by table number: whether such a key may exist.
    answers: Mutex<BTreeMap<u64, bool>>,
}

impl PrefixProbe {
    /// `extractor` must extract `prefix` from every key that the scan returns.
    pub fn new(extractor: PrefixExtractor, prefix: &[u8], seed: u64, mode: FilterMode) -> PrefixProbe {
        let hash = KeyHash::of_prefix(seed, prefix);
        PrefixProbe { extractor, prefix: prefix.into(), hash, mode, answers: Mutex::default() }
    }

    /// Narrows `range` to the tables whose key range may hold keys with the prefix. The tables in
    /// `range` are ordered by key and do not overlap.
    pub fn in_range(&self, tables: &[Arc<Table>], range: Range<usize>) -> Range<usize> {
        let ends_before = |table: &Arc<Table>| compare(&table.meta().largest, &self.prefix).is_lt();
        let may_begin_before = |table: &Arc<Table>| {
            let smallest = &*table.meta().smallest;
            compare(smallest, &self.prefix).is_le() || strip(smallest, &self.prefix).is_some()
        };
        let start = range.start + tables[range.clone()].partition_point(ends_before);
        start..start + tables[start..range.end].partition_point(may_begin_before)
    }

    /// Answer of the filter of `table`, remembered for the rest of the scan.
    fn may_be_in(&self, table: &Arc<Table>) -> Result<bool> {
        let number = table.meta().number;
        if let Some(&answer) = self.answers.lock().get(&number) {
            return Ok(answer);
        }
        let answer = table.may_hold_prefix(self)?;
        self.answers.lock().insert(number, answer);
        Ok(answer)
    }
}

impl TableCursor {
    /// [`enter_table`](TableCursor::enter_table) for a scan with `probe`. Returns false, and does
    /// nothing, if the filter denies the prefix: the scan then leaves the table out.
    ///
    /// In the mode `Shadow` it enters anyway, and its reads are counted as avoidable.
    pub fn enter_table_for(&mut self, table: &Arc<Table>, probe: &PrefixProbe) -> Result<bool> {
        let may_hold = probe.may_be_in(table)?;
        if let Some(trace) = self.trace() {
            trace.prefix(table.meta().number, table.prefix_answer(probe, may_hold)?);
        }
        let counting = match (may_hold, probe.mode) {
            (true, _) => Counting::Read,
            (false, FilterMode::Shadow) => Counting::AvoidableRead,
            (false, _) => return Ok(false),
        };
        self.enter_table(table);
        self.count_as(counting);
        Ok(true)
    }
}

impl Table {
    /// What a trace says of it.
    fn prefix_answer(&self, probe: &PrefixProbe, may_hold: bool) -> Result<FilterAnswer> {
        let filter = &self.resident()?.filter;
        Ok(match filter {
            _ if !may_hold => FilterAnswer::No,
            TableFilter::Degraded(_) => FilterAnswer::Degraded,
            _ if filter.prefixes() == Some(probe.extractor) => FilterAnswer::Maybe,
            _ => FilterAnswer::Skipped,
        })
    }

    /// Whether the table may hold keys with the prefix. "No" is certain. It takes a usable filter
    /// that holds the prefixes of the same extractor. In the mode `Shadow`, a "no" for a prefix
    /// that exists is an error.
    pub(super) fn may_hold_prefix(self: &Arc<Table>, probe: &PrefixProbe) -> Result<bool> {
        let resident = self.resident()?;
        if probe.mode == FilterMode::Ignore || resident.filter.prefixes() != Some(probe.extractor) {
            return Ok(true);
        }
        let seed = resident.footer.seed;
        let hash = if probe.hash.seed() == seed { probe.hash } else { KeyHash::of_prefix(seed, &probe.prefix) };
        let answer = match &resident.filter {
            TableFilter::Usable(filter) => filter.may_contain(hash),
            TableFilter::Paged(filter) => filter.ask(self.fetcher(), hash, false) != FilterAnswer::No,
            TableFilter::None | TableFilter::Degraded(_) => true,
        };
        if !answer && probe.mode == FilterMode::Shadow {
            let mut cursor = self.cursor(false).uncounted();
            cursor.seek(&probe.prefix, SeqNo::MAX)?;
            if cursor.valid() && cursor.key().starts_with(&probe.prefix) {
                let offset = resident.footer.filter.unwrap_or_default().offset;
                let rule = "the filter denies the prefix of a key that the table holds";
                return Err(self.fetcher().corrupt(offset, rule));
            }
        }
        let counters = &self.fetcher().counters;
        counters.count(ReadEvent::PrefixProbe);
        if !answer {
            counters.count(ReadEvent::PrefixSkip);
        }
        Ok(answer)
    }
}
