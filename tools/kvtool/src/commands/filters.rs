//! Totals over the filters of several tables.

use std::fmt;
use std::iter::Sum;
use std::path::Path;

use tamis::TableStats;
use tamis::filter::{FilterState, RangeFilterState, RangeRates};
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
    /// Their range filters.
    pub(super) ranges: RangeTotals,
}

/// Totals over the range filters of several tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RangeTotals {
    /// Bytes of the blocks.
    pub(super) bytes: u64,
    keys: u64,
    /// Expected false positives if each table got as many short empty ranges as it has keys.
    expected: f64,
    usable: u64,
    /// Reads for nothing that one short empty range costs if it meets each table.
    pub(super) wasted: f64,
    /// Tables written without a range filter.
    pub(super) none: u64,
    /// Tables whose builder declined.
    pub(super) declined: u64,
    /// Tables whose range filter is unusable and answers "maybe".
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

impl RangeTotals {
    pub(super) fn bits_per_key(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.bytes as f64 * 8.0 / self.keys as f64)
    }

    /// The predicted false-positive rate, weighted by keys.
    pub(super) fn predicted_rate(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.expected / self.keys as f64)
    }

    /// Whether any table was to have a range filter.
    pub(super) fn are_wanted(&self) -> bool {
        self.usable + self.declined + self.damaged > 0
    }
}

/// What a read costs that is in the key ranges of all runs, and finds nothing: a look-up, or a
/// scan of a short range.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EmptyRead {
    /// Filters that it asks.
    pub(super) filters: u64,
    /// Reads of a block for nothing, per read.
    pub(super) wasted_reads: f64,
}

impl EmptyRead {
    /// A look-up in these levels, by the rates of their filters.
    pub(super) fn look_up<'a>(levels: impl Iterator<Item = (usize, &'a FilterTotals)>) -> EmptyRead {
        EmptyRead::through(levels.map(|(level, filters)| {
            let tables = filters.usable + filters.none + filters.damaged;
            (level, tables, filters.usable, filters.wasted)
        }))
    }

    /// A scan in these levels, by the rates that the builders of their range filters predicted.
    pub(super) fn scan<'a>(levels: impl Iterator<Item = (usize, &'a FilterTotals)>) -> EmptyRead {
        EmptyRead::through(levels.map(|(level, FilterTotals { ranges, .. })| {
            let tables = ranges.usable + ranges.none + ranges.declined + ranges.damaged;
            (level, tables, ranges.usable, ranges.wasted)
        }))
    }

    /// Of levels, each with its tables, usable filters, and reads wasted if it meets each table.
    /// Each table of level 0 is a run; of any other level, a read meets one table.
    fn through(levels: impl Iterator<Item = (usize, u64, u64, f64)>) -> EmptyRead {
        levels.fold(EmptyRead::default(), |sum, (level, tables, usable, wasted)| {
            let share = if level == 0 { 1.0 } else { 1.0 / tables.max(1) as f64 };
            EmptyRead {
                filters: sum.filters + if level == 0 { usable } else { usable.min(1) },
                wasted_reads: sum.wasted_reads + wasted * share,
            }
        })
    }

    /// Says what `read` asks, and wastes.
    pub(super) fn in_words(self, read: &str, filter: &str) -> String {
        let reads = Decimal(100.0 * self.wasted_reads);
        format!("{read} asks {}: {reads} wasted reads in 100", counted(self.filters, filter))
    }
}

/// A size, and how many tables have no usable filter, and why.
fn write_size(f: &mut fmt::Formatter<'_>, bytes: u64, why: &[(u64, &str)]) -> fmt::Result {
    let why: Vec<String> = why.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{} {why}", count(*n))).collect();
    match why.is_empty() {
        true => write!(f, "{}", size(bytes)),
        false => write!(f, "{} ({})", size(bytes), why.join(", ")),
    }
}

impl fmt::Display for FilterTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_size(f, self.bytes, &[(self.none, "without"), (self.damaged, "damaged")])
    }
}

impl fmt::Display for RangeTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = [(self.none, "without"), (self.declined, "declined"), (self.damaged, "damaged")];
        write_size(f, self.bytes, &why)
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
            ranges: sum.ranges.and(more.ranges),
        })
    }
}

impl RangeTotals {
    fn and(self, more: RangeTotals) -> RangeTotals {
        RangeTotals {
            bytes: self.bytes + more.bytes,
            keys: self.keys + more.keys,
            expected: self.expected + more.expected,
            usable: self.usable + more.usable,
            wasted: self.wasted + more.wasted,
            none: self.none + more.none,
            declined: self.declined + more.declined,
            damaged: self.damaged + more.damaged,
        }
    }

    /// Of one table.
    fn of(filter: &RangeFilterState) -> RangeTotals {
        let unused = RangeTotals { wasted: 1.0, ..RangeTotals::default() };
        match (filter, filter.info()) {
            (_, Some(info)) => RangeTotals {
                bytes: info.bytes,
                keys: info.keys,
                expected: share(info.rates.fresh) * info.keys as f64,
                usable: 1,
                wasted: share(info.rates.fresh),
                ..RangeTotals::default()
            },
            (RangeFilterState::None, _) => RangeTotals { none: 1, ..unused },
            (RangeFilterState::Declined(_), _) => RangeTotals { declined: 1, ..unused },
            _ => RangeTotals { damaged: 1, ..unused },
        }
    }
}

/// What the builder of a range filter predicted, also if it declined.
pub(super) fn rates_of(filter: &RangeFilterState) -> Option<RangeRates> {
    match filter {
        RangeFilterState::Declined(rates) => Some(*rates),
        filter => filter.info().map(|info| info.rates),
    }
}

/// A rate in parts per 10^9.
pub(super) fn share(rate: u32) -> f64 {
    f64::from(rate) / 1e9
}

/// The filters of `tables` in directory `dir`.
pub(super) fn filters_of(dir: &Path, tables: &[TableStats]) -> Result<FilterTotals> {
    let inspector = Inspector::new();
    let mut sum = Vec::new();
    for table in tables {
        let file = inspector.table(&FileKind::Table(table.number).path(dir))?;
        let points = match file.filter() {
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
        };
        sum.push(FilterTotals { ranges: RangeTotals::of(file.range_filter()), ..points });
    }
    Ok(sum.into_iter().sum())
}
