//! How many blocks the filters should let through.
//!
//! Take a key and a table whose range holds it. If the table holds the key, its block is read; if
//! not, the block is read when the filter errs. The blocks read for a set of keys are therefore a
//! sum of independent events. The probability of each is 1, or the false-positive rate of a filter.
//! With filters ignored, every probability is 1.
//!
//! For ranges likewise: without filters a scan enters a block of each run that may have a key of
//! the range, and from some it takes nothing. A range filter lets through each of these with the
//! rate that its builder predicted from the table's keys.

use std::collections::HashMap;

use tamis::filter::{FilterState, RangeFilterState};
use tamis::{Db, FilterMode, Found, Keyspace, ReadOptions, ReadSource, TableStats};

use super::asked::{Key, Kind};
use super::questions::Items;
use super::ranges::Range;
use super::theory::tolerance;
use crate::commands::filters::share;
use crate::commands::store::stats_of_keyspace;
use crate::failure::Result;

/// False-positive rates of a keyspace's filters, by table number.
#[derive(Default)]
pub(super) struct Rates {
    tables: HashMap<u64, Rate>,
    /// Keys and bits of all usable filters.
    keys: f64,
    bits: f64,
    /// Tables whose keys allow no useful range filter.
    pub(super) declined: u64,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    /// By the textbook formula; of a range filter, as its builder predicted.
    design: f64,
    /// By the filter's own bits, or as the design.
    actual: f64,
    /// Of a range filter, for ranges that begin near a key of the table.
    near: f64,
}

impl Rate {
    /// For a certain event, or a table without a usable filter.
    const ALWAYS: Rate = Rate { design: 1.0, actual: 1.0, near: 1.0 };
}

impl Rates {
    /// Rates of the tables that have been opened.
    pub(super) fn of(db: &Db, keyspace: &Keyspace, kind: Kind) -> Rates {
        let mut rates = Rates::default();
        for table in stats_of_keyspace(db, keyspace).levels.iter().flat_map(|level| &level.tables) {
            match kind {
                Kind::Keys => rates.add_filter(table),
                Kind::Ranges => rates.add_range_filter(table),
            }
        }
        rates
    }

    fn add_filter(&mut self, table: &TableStats) {
        if let Some(FilterState::Usable(info)) = &table.filter {
            let rate = Rate { design: info.design_fpr, actual: info.expected_fpr, near: info.expected_fpr };
            self.tables.insert(table.number, rate);
            self.keys += info.keys as f64;
            self.bits += info.bits_per_key() * info.keys as f64;
        }
    }

    fn add_range_filter(&mut self, table: &TableStats) {
        let Some(filter) = &table.range_filter else { return };
        self.declined += u64::from(matches!(filter, RangeFilterState::Declined(_)));
        if let Some(info) = filter.info() {
            let [fresh, near] = [info.rates.fresh, info.rates.near].map(share);
            self.tables.insert(table.number, Rate { design: fresh, actual: fresh, near });
            self.keys += info.keys as f64;
            self.bits += info.bits_per_key() * info.keys as f64;
        }
    }

    /// Bits per key of the filters, without headers.
    pub(super) fn bits_per_key(&self) -> Option<f64> {
        (self.keys > 0.0).then(|| self.bits / self.keys)
    }

    fn rate(&self, table: u64) -> Rate {
        self.tables.get(&table).copied().unwrap_or(Rate::ALWAYS)
    }
}

/// The expectation for all items of a question, with filters used and ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Survey {
    pub(super) used: Expected,
    pub(super) ignored: Expected,
}

impl Survey {
    fn add(&mut self, rate: Rate, found: bool, blocks: f64, bytes: f64) {
        self.used.add(rate, found, blocks, bytes);
        self.ignored.add(Rate::ALWAYS, found, blocks, bytes);
    }
}

/// The expectation for a set of keys or ranges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    /// Look-ups in tables whose range holds the key, or blocks that a scan enters; `finds` are
    /// those that find it, or some entry.
    pub(super) look_ups: u64,
    pub(super) finds: u64,
    /// Expected blocks if every filter had its design rate.
    pub(super) by_design: f64,
    /// Expected blocks by the filters' actual bits.
    pub(super) blocks: Sum,
    /// Their bytes in the files.
    pub(super) bytes: Sum,
}

/// A sum of independent events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) mean: f64,
    variance: f64,
    /// What one uncertain event can add at most.
    largest: f64,
}

impl Sum {
    fn add(&mut self, probability: f64, amount: f64) {
        self.mean += probability * amount;
        if probability < 1.0 {
            self.variance += probability * (1.0 - probability) * amount * amount;
            self.largest = self.largest.max(amount);
        }
    }

    /// Whether `counted` is as close to the mean as chance allows.
    pub(super) fn agrees_with(&self, counted: u64) -> bool {
        // Half a unit for rounding errors of the sum.
        (counted as f64 - self.mean).abs() <= tolerance(self.variance, self.largest) + 0.5
    }
}

impl Expected {
    fn add(&mut self, rate: Rate, found: bool, blocks: f64, bytes: f64) {
        self.look_ups += 1;
        self.finds += u64::from(found);
        self.by_design += rate.design * blocks;
        self.blocks.add(rate.actual, blocks);
        self.bytes.add(rate.actual, bytes);
    }
}

/// The expectation for all `items`; ranges are scanned for `entries` entries.
pub(super) fn survey(keyspace: &Keyspace, rates: &Rates, items: &Items, entries: u64) -> Result<Survey> {
    match items {
        Items::Keys(keys) => survey_keys(keyspace, rates, keys),
        Items::Ranges(ranges) => survey_ranges(keyspace, rates, ranges, entries),
    }
}

/// Looks up every key in all tables that may hold it. A filter that denies an existing key is an
/// error.
fn survey_keys(keyspace: &Keyspace, rates: &Rates, keys: &[Key]) -> Result<Survey> {
    let mut survey = Survey::default();
    let options = ReadOptions::new().filters(FilterMode::Shadow);
    for key in keys {
        let explained = keyspace.explain_with(key, options)?;
        explained.outcome?;
        for step in &explained.steps {
            // A filter is queried only if the key is in the table's range.
            let (ReadSource::Table { number, .. }, Some(_)) = (step.source, step.filter) else { continue };
            let found = step.found != Some(Found::Absent);
            let rate = if found { Rate::ALWAYS } else { rates.rate(number) };
            let bytes: u64 = step.blocks.iter().map(|block| block.len).sum();
            survey.add(rate, found, step.blocks.len() as f64, bytes as f64);
        }
    }
    Ok(survey)
}

/// Scans every range forward with filters ignored. The blocks from which it takes nothing are those
/// that range filters may save.
fn survey_ranges(keyspace: &Keyspace, rates: &Rates, ranges: &[Range], entries: u64) -> Result<Survey> {
    let mut survey = Survey::default();
    let options = ReadOptions::new().filters(FilterMode::Ignore);
    for Range { range, near } in ranges {
        // Only the table that has the key is one near a key of which the range begins.
        let near = near.as_ref().map(|key| holder(keyspace, key)).transpose()?.flatten();
        let explained = keyspace.explain_range_with(range.bounds(), entries, options)?;
        explained.outcome?;
        for step in &explained.steps {
            for block in &step.blocks {
                let rate = match rates.rate(step.table) {
                    _ if block.used => Rate::ALWAYS,
                    rate if near == Some(step.table) => Rate { design: rate.near, actual: rate.near, ..rate },
                    rate => rate,
                };
                survey.add(rate, block.used, 1.0, block.visit.len as f64);
            }
        }
    }
    Ok(survey)
}

/// The table in which a key is found.
fn holder(keyspace: &Keyspace, key: &[u8]) -> Result<Option<u64>> {
    let explained = keyspace.explain(key)?;
    explained.outcome?;
    Ok(explained.steps.iter().rev().find_map(|step| match (step.source, step.found) {
        (ReadSource::Table { number, .. }, Some(found)) if found != Found::Absent => Some(number),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certain_events_must_be_met_exactly_and_others_within_chance() {
        let (mut certain, mut chance) = (Sum::default(), Sum::default());
        for _ in 0..100_000 {
            certain.add(1.0, 1.0);
            chance.add(0.01, 1.0);
        }
        assert!(certain.agrees_with(100_000));
        assert!(!certain.agrees_with(100_001) && !certain.agrees_with(99_999));
        // The standard deviation is 31.5.
        assert!(chance.agrees_with(1_150) && chance.agrees_with(850));
        assert!(!chance.agrees_with(1_170) && !chance.agrees_with(830));
    }
}
