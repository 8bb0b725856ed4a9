//! Totals over the filters of several tables.

use std::fmt;
use std::iter::Sum;
use std::path::Path;

use tamis::TableStats;
use tamis::filter::{FilterState, RangeFilterState, RangeRates};
use tamis::inspect::{FileKind, Inspector, TableFile};

use crate::failure::Result;
use crate::text::{Decimal, count, counted, size};

/// Totals over the filters of several tables: those of keys, and those of ranges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FilterTotals {
    pub(super) points: Totals,
    pub(super) ranges: Totals,
}

/// Totals over the filters of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Bytes of the filter blocks.
    pub(super) bytes: u64,
    keys: u64,
    bits: f64,
    /// Expected false positives if each table got as many look-ups of absent keys, or short empty
    /// ranges, as it has keys.
    expected: f64,
    /// Tables with a usable filter.
    usable: u64,
    /// Reads for nothing that one look-up of an absent key, or one short empty range, costs if it
    /// meets each table.
    pub(super) wasted: f64,
    /// Tables written without a filter.
    pub(super) none: u64,
    /// Tables whose builder declined.
    pub(super) declined: u64,
    /// Tables whose filter is unusable and answers "maybe".
    pub(super) damaged: u64,
}

impl Totals {
    /// One filter: its bytes, its keys, bits for each, and its rate of false positives.
    fn usable(bytes: u64, keys: u64, bits_per_key: f64, rate: f64) -> Totals {
        let (bits, expected) = (bits_per_key * keys as f64, rate * keys as f64);
        Totals { bytes, keys, bits, expected, usable: 1, wasted: rate, ..Totals::default() }
    }

    /// One table whose filter saves nothing.
    fn unused() -> Totals {
        Totals { wasted: 1.0, ..Totals::default() }
    }

    fn of_points(filter: &FilterState) -> Totals {
        match filter {
            FilterState::Usable(info) => Totals::usable(info.bytes, info.keys, info.bits_per_key(), info.expected_fpr),
            FilterState::None => Totals { none: 1, ..Totals::unused() },
            _ => Totals { damaged: 1, ..Totals::unused() },
        }
    }

    fn of_ranges(filter: &RangeFilterState) -> Totals {
        match (filter, filter.info()) {
            (_, Some(info)) => Totals::usable(info.bytes, info.keys, info.bits_per_key(), share(info.rates.fresh)),
            (RangeFilterState::None, _) => Totals { none: 1, ..Totals::unused() },
            (RangeFilterState::Declined(_), _) => Totals { declined: 1, ..Totals::unused() },
            _ => Totals { damaged: 1, ..Totals::unused() },
        }
    }

    fn tables(&self) -> u64 {
        self.usable + self.none + self.declined + self.damaged
    }

    /// Whether any table was to have a filter.
    pub(super) fn are_wanted(&self) -> bool {
        self.none < self.tables()
    }

    pub(super) fn bits_per_key(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.bits / self.keys as f64)
    }

    /// Rate of false positives, weighted by keys: by the filters' actual bits; of range filters, as
    /// their builders predicted.
    pub(super) fn expected_rate(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.expected / self.keys as f64)
    }

    fn and(self, more: Totals) -> Totals {
        Totals {
            bytes: self.bytes + more.bytes,
            keys: self.keys + more.keys,
            bits: self.bits + more.bits,
            expected: self.expected + more.expected,
            usable: self.usable + more.usable,
            wasted: self.wasted + more.wasted,
            none: self.none + more.none,
            declined: self.declined + more.declined,
            damaged: self.damaged + more.damaged,
        }
    }
}

/// The size, and how many tables have no usable filter, and why.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = [(self.none, "without"), (self.declined, "declined"), (self.damaged, "damaged")];
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
            points: sum.points.and(more.points),
            ranges: sum.ranges.and(more.ranges),
        })
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
    /// In levels, by the rates of their filters. Each table of level 0 is a run; of any other
    /// level, a read meets one table.
    pub(super) fn through<'a>(levels: impl Iterator<Item = (usize, &'a Totals)>) -> EmptyRead {
        levels.fold(EmptyRead::default(), |sum, (level, filters)| {
            let share = if level == 0 { 1.0 } else { 1.0 / filters.tables().max(1) as f64 };
            EmptyRead {
                filters: sum.filters + if level == 0 { filters.usable } else { filters.usable.min(1) },
                wasted_reads: sum.wasted_reads + filters.wasted * share,
            }
        })
    }

    /// Says what `read` asks, and wastes.
    pub(super) fn in_words(self, read: &str, filter: &str) -> String {
        let reads = Decimal(100.0 * self.wasted_reads);
        format!("{read} asks {}: {reads} wasted reads in 100", counted(self.filters, filter))
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
    let of = |table: &TableStats| Ok(filters_in(&inspector.table(&FileKind::Table(table.number).path(dir))?));
    tables.iter().map(of).sum()
}

/// The filters of a table.
pub(super) fn filters_in(file: &TableFile) -> FilterTotals {
    FilterTotals { points: Totals::of_points(file.filter()), ranges: Totals::of_ranges(file.range_filter()) }
}
