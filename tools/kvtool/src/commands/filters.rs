//! Totals over the filters of several tables.

use std::fmt;
use std::iter::Sum;
use std::path::Path;

use tamis::TableStats;
use tamis::filter::FilterState;
use tamis::inspect::{FileKind, Inspector};

use crate::failure::Result;
use crate::text::{Decimal, count, counted, size};

/// Totals over the filters of several tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FilterTotals {
    /// Bytes of the filter blocks.
    pub(super) bytes: u64,
    keys: u64,
    bits: f64,
    /// Expected false positives if each table got as many look-ups of absent keys as it has keys.
    expected: f64,
    /// Tables with a usable filter.
    usable: u64,
    /// Reads for nothing that one look-up of an absent key costs if it meets each table.
    wasted: f64,
    /// Tables written without a filter.
    pub(super) none: u64,
    /// Tables whose filter is unusable and answers "maybe".
    pub(super) damaged: u64,
}

impl FilterTotals {
    pub(super) fn bits_per_key(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.bits / self.keys as f64)
    }

    /// False-positive rate by the filters' actual bits, weighted by keys.
    pub(super) fn expected_rate(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.expected / self.keys as f64)
    }
}

/// What a look-up costs of a key that is in the ranges of all runs, but absent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookUp {
    /// Filters that it asks.
    pub(super) filters: u64,
    /// Reads of a block for nothing, per look-up.
    pub(super) wasted_reads: f64,
}

impl LookUp {
    /// In these levels, by the rates of their filters. Each table of level 0 is a run; of any other
    /// level, a look-up meets one table.
    pub(super) fn through<'a>(levels: impl Iterator<Item = (usize, &'a FilterTotals)>) -> LookUp {
        levels.fold(LookUp::default(), |sum, (level, filters)| {
            let tables = filters.usable + filters.none + filters.damaged;
            let share = if level == 0 { 1.0 } else { 1.0 / tables.max(1) as f64 };
            LookUp {
                filters: sum.filters + if level == 0 { filters.usable } else { filters.usable.min(1) },
                wasted_reads: sum.wasted_reads + filters.wasted * share,
            }
        })
    }
}

impl fmt::Display for LookUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reads = Decimal(100.0 * self.wasted_reads);
        write!(f, "a look-up of an absent key asks {}: {reads} wasted reads in 100", counted(self.filters, "filter"))
    }
}

impl fmt::Display for FilterTotals {
    /// The size, and how many tables have no usable filter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = [(self.none, "without"), (self.damaged, "damaged")];
        let why: Vec<String> =
            why.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{} {why}", count(*n))).collect();
        match why.is_empty() {
            true => write!(f, "{}", size(self.bytes)),
            false => write!(f, "{} ({})", size(self.bytes), why.join(", ")),
        }
    }
}

impl Sum for FilterTotals {
    fn sum<I: Iterator<Item = FilterTotals>>(filters: I) -> FilterTotals {
        filters.fold(FilterTotals::default(), |sum, more| FilterTotals {
            bytes: sum.bytes + more.bytes,
            keys: sum.keys + more.keys,
            bits: sum.bits + more.bits,
            expected: sum.expected + more.expected,
            usable: sum.usable + more.usable,
            wasted: sum.wasted + more.wasted,
            none: sum.none + more.none,
            damaged: sum.damaged + more.damaged,
        })
    }
}

/// The filters of `tables` in directory `dir`.
pub(super) fn filters_of(dir: &Path, tables: &[TableStats]) -> Result<FilterTotals> {
    let inspector = Inspector::new();
    let mut sum = Vec::new();
    for table in tables {
        let file = inspector.table(&FileKind::Table(table.number).path(dir))?;
        sum.push(match file.filter() {
            FilterState::Usable(info) => FilterTotals {
                bytes: info.bytes,
                keys: info.keys,
                bits: info.bits_per_key() * info.keys as f64,
                expected: info.expected_fpr * info.keys as f64,
                usable: 1,
                wasted: info.expected_fpr,
                ..FilterTotals::default()
            },
            FilterState::None => FilterTotals { none: 1, wasted: 1.0, ..FilterTotals::default() },
            _ => FilterTotals { damaged: 1, wasted: 1.0, ..FilterTotals::default() },
        });
    }
    Ok(sum.into_iter().sum())
}
