//! Totals over the filters of several tables.

use std::fmt;
use std::iter::Sum;
use std::path::Path;

use tamis::TableStats;
use tamis::filter::FilterState;
use tamis::inspect::{FileKind, Inspector};

use crate::failure::Result;
use crate::text::{count, size};

/// Totals over the filters of several tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FilterTotals {
    /// Bytes of the filter blocks.
    pub(super) bytes: u64,
    keys: u64,
    bits: f64,
    /// Expected false positives if each table got as many look-ups of absent keys as it has keys.
    expected: f64,
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
                ..FilterTotals::default()
            },
            FilterState::None => FilterTotals { none: 1, ..FilterTotals::default() },
            _ => FilterTotals { damaged: 1, ..FilterTotals::default() },
        });
    }
    Ok(sum.into_iter().sum())
}
