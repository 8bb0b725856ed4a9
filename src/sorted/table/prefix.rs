//! [`PrefixProbe`]: which tables a scan can leave out because their filters know of no key with its prefix.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::reader::Counting;
use super::resident::TableFilter;
use super::{Table, TableCursor};
use crate::error::Result;
use crate::filter::KeyHash;
use crate::filter::PrefixExtractor;
use crate::format::key::{SeqNo, compare, strip};
use crate::options::FilterMode;
use crate::report::stats::ReadEvent;
use crate::sorted::iter::InternalCursor;

/// The question of a scan all of whose keys have one prefix, in the extractor's sense: is there such a key in a table?
///
/// All cursors of the scan share it, so that each table is asked at most once, when it would first be opened.
#[derive(Debug)]
pub(crate) struct PrefixProbe {
    extractor: PrefixExtractor,
    prefix: Box<[u8]>,
    /// Under the store's seed.
    hash: KeyHash,
    mode: FilterMode,
    /// What the filters said, by the tables' numbers: whether there may be such a key.
    answers: Mutex<BTreeMap<u64, bool>>,
}

impl PrefixProbe {
    /// `extractor` must take `prefix` from every key that the scan returns.
    pub(crate) fn new(extractor: PrefixExtractor, prefix: &[u8], seed: u64, mode: FilterMode) -> PrefixProbe {
        let hash = KeyHash::of_prefix(seed, prefix);
        PrefixProbe { extractor, prefix: prefix.into(), hash, mode, answers: Mutex::default() }
    }

    /// Which of the tables `run` of `tables`, which are ordered by key and do not overlap, have room for keys with the prefix.
    pub(crate) fn in_range(&self, tables: &[Arc<Table>], run: Range<usize>) -> Range<usize> {
        let before = |table: &Arc<Table>| compare(&table.meta().largest, &self.prefix).is_lt();
        let not_behind = |table: &Arc<Table>| {
            let smallest = &*table.meta().smallest;
            compare(smallest, &self.prefix).is_le() || strip(smallest, &self.prefix).is_some()
        };
        let start = run.start + tables[run.clone()].partition_point(before);
        start..start + tables[start..run.end].partition_point(not_behind)
    }

    /// What the filter of `table` says, now or when the scan first came to it.
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

impl Table {
    /// A cursor over the table for the scan that asks `probe`, or `None` if the filter denies the prefix: the scan leaves the table out.
    ///
    /// In the mode `Shadow` it gets its cursor all the same, and what that reads is counted as avoidable.
    pub(crate) fn cursor_for(self: &Arc<Table>, probe: &PrefixProbe, fill_cache: bool) -> Result<Option<TableCursor>> {
        let cursor = || self.cursor(fill_cache);
        Ok(match (probe.may_be_in(self)?, probe.mode) {
            (true, _) => Some(cursor()),
            (false, FilterMode::Shadow) => Some(cursor().counted_as(Counting::AvoidableRead)),
            (false, _) => None,
        })
    }

    /// Whether keys with the prefix may be in the table. "No" is certain; it takes a usable filter that holds the prefixes of the same
    /// extractor. In the mode `Shadow` a "no" for a prefix that is there is an error.
    pub(super) fn may_hold_prefix(self: &Arc<Table>, probe: &PrefixProbe) -> Result<bool> {
        let resident = self.resident()?;
        let filter = match &resident.filter {
            TableFilter::Usable(filter) if probe.mode != FilterMode::Ignore => filter,
            _ => return Ok(true),
        };
        if filter.prefixes() != Some(probe.extractor) {
            return Ok(true);
        }
        let seed = resident.footer.seed;
        let hash = if probe.hash.seed() == seed { probe.hash } else { KeyHash::of_prefix(seed, &probe.prefix) };
        let answer = filter.may_contain(hash);
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
