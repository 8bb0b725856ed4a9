//! Totals over the filters of several tables.

use std::fmt;
use std::iter::Sum;
use std::path::Path;

use tamis::filter::{FilterState, RangeFilterState, RangeRates};
use tamis::inspect::{FileKind, Inspector, TableFile};
use tamis::{KeyspaceStats, LevelStats, TableStats};

use crate::failure::Result;
use crate::text::{Decimal, count, size};

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
    /// Filters that a look-up of an absent key, or a scan of a short empty range, asks: all of
    /// them, or on average after [`FilterTotals::met_by`].
    asked: f64,
    /// Blocks that it reads for nothing, likewise.
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
        Totals { bytes, keys, bits, expected, usable: 1, asked: 1.0, wasted: rate, ..Totals::default() }
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
            asked: self.asked + more.asked,
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

impl FilterTotals {
    /// What these filters cost if only a `share` of all reads lies in the key range of their table.
    pub(super) fn met_by(mut self, share: f64) -> FilterTotals {
        for totals in [&mut self.points, &mut self.ranges] {
            totals.asked *= share;
            totals.wasted *= share;
        }
        self
    }
}

/// What a read costs that finds nothing, a look-up or a scan of a short range: on average over
/// reads that are spread like the keys of the keyspace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EmptyRead {
    /// Filters that it asks.
    pub(super) filters: f64,
    /// Reads of a block for nothing, per read.
    pub(super) wasted_reads: f64,
}

impl EmptyRead {
    /// Through tables whose filters are [`met_by`](FilterTotals::met_by) a share of reads.
    pub(super) fn through<'a>(filters: impl Iterator<Item = &'a Totals>) -> EmptyRead {
        filters.fold(EmptyRead::default(), |sum, filters| EmptyRead {
            filters: sum.filters + filters.asked,
            wasted_reads: sum.wasted_reads + filters.wasted,
        })
    }

    /// Says what `read` asks, and wastes.
    pub(super) fn in_words(self, read: &str, filter: &str) -> String {
        let reads = Decimal(100.0 * self.wasted_reads);
        format!("{read} asks {}: {reads} wasted reads in 100", averaged(self.filters, filter))
    }
}

/// An average with its noun: "1 filter", "2.5 filters".
pub(super) fn averaged(n: f64, noun: &str) -> String {
    match average(n).as_str() {
        "1" => format!("1 {noun}"),
        shown => format!("{shown} {noun}s"),
    }
}

/// An average to one decimal, or none if that is zero.
pub(super) fn average(n: f64) -> String {
    // The sum of none is -0.
    let shown = format!("{:.1}", n + 0.0);
    shown.strip_suffix(".0").unwrap_or(&shown).to_owned()
}

/// Of each table, by level: the share of the keyspace's keys that lie in its key range, which is
/// the share of reads that have to ask it. The sum is the number of tables over a key, on average
/// over the entries of all tables. Within a table, keys are taken to be spread evenly.
pub(super) fn shares_met(keyspace: &KeyspaceStats) -> Vec<Vec<f64>> {
    let spans: Vec<Vec<Span<'_>>> =
        keyspace.levels.iter().map(|level| level.tables.iter().map(Span::of).collect()).collect();
    shares_of(&spans)
}

fn shares_of(levels: &[Vec<Span<'_>>]) -> Vec<Vec<f64>> {
    let entries: f64 = levels.iter().flatten().map(|table| table.entries).sum();
    let mut shares: Vec<Vec<f64>> = levels.iter().map(|tables| vec![0.0; tables.len()]).collect();
    for keys in levels.iter().flatten() {
        for (level, (tables, shares)) in levels.iter().zip(&mut shares).enumerate() {
            let met = match level {
                0 => 0..tables.len(),
                // In key order, and disjoint.
                _ => {
                    let begin = tables.partition_point(|table| table.last < keys.first);
                    let met = tables[begin..].partition_point(|table| table.first <= keys.last);
                    begin..begin + met
                }
            };
            for (table, share) in tables[met.clone()].iter().zip(&mut shares[met]) {
                *share += keys.share_in(table) * keys.entries / entries.max(1.0);
            }
        }
    }
    shares
}

/// The keys of a table.
struct Span<'a> {
    first: &'a [u8],
    last: &'a [u8],
    entries: f64,
}

impl Span<'_> {
    fn of(table: &TableStats) -> Span<'_> {
        Span { first: &table.smallest, last: &table.largest, entries: table.entries as f64 }
    }

    /// The share of its keys that lie in the key range of another table.
    fn share_in(&self, other: &Span<'_>) -> f64 {
        if other.last < self.first || self.last < other.first {
            0.0
        } else if other.first <= self.first && self.last <= other.last {
            1.0
        } else {
            self.share_below(other.last) - self.share_below(other.first)
        }
    }

    /// The share of its keys below `key`, by the eight bytes behind what all of its keys begin
    /// with.
    fn share_below(&self, key: &[u8]) -> f64 {
        if key <= self.first {
            return 0.0;
        }
        if key >= self.last {
            return 1.0;
        }
        let common = self.first.iter().zip(self.last).take_while(|(a, b)| a == b).count();
        let [first, key, last] = [self.first, key, self.last].map(|key| {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(&key[common..]).for_each(|(to, from)| *to = *from);
            u64::from_be_bytes(bytes)
        });
        (key - first) as f64 / (last - first).max(1) as f64
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

/// The filters of each level of a keyspace in directory `dir`, as reads of the keyspace meet them.
pub(super) fn filters_by_level(dir: &Path, keyspace: &KeyspaceStats) -> Result<Vec<FilterTotals>> {
    let levels = keyspace.levels.iter().zip(shares_met(keyspace));
    let of_level = |(level, shares): (&LevelStats, Vec<f64>)| {
        let tables = level.tables.iter().zip(shares);
        tables.map(|(table, share)| Ok(filters_of(dir, std::slice::from_ref(table))?.met_by(share))).sum()
    };
    levels.map(of_level).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables over a key, of levels of tables: their first and last keys, and entries.
    fn over_a_key(levels: &[&[(&'static str, &'static str, u32)]]) -> f64 {
        let span = |(first, last, entries): &(&'static str, &'static str, u32)| Span {
            first: first.as_bytes(),
            last: last.as_bytes(),
            entries: f64::from(*entries),
        };
        let levels: Vec<Vec<Span<'_>>> = levels.iter().map(|tables| tables.iter().map(span).collect()).collect();
        shares_of(&levels).into_iter().flatten().sum()
    }

    #[test]
    fn a_read_meets_the_tables_over_its_key_and_no_others() {
        for (levels, expected) in [
            // Disjoint, of one key, or all over the same keys.
            (&[&[("a", "c", 5), ("d", "f", 90), ("g", "g", 1)][..]][..], 1.0),
            (&[&[("a", "z", 5), ("a", "z", 90), ("a", "z", 1)][..]][..], 3.0),
            (&[&[("a", "a", 1), ("a", "a", 1)][..]][..], 2.0),
            // Half of each is over the other.
            (&[&[("k0", "k8", 10), ("k4", "k\x3c", 10)][..]][..], 1.5),
            // A small table is over few keys, whatever it holds.
            (&[&[("k5", "k5", 1)][..], &[("k0", "k4", 500), ("k5", "k9", 499)][..]][..], 1.001),
            // All keys of level 0, and a half of those of level 1 in the other's range.
            (&[&[("k2", "k4", 100)][..], &[("k0", "k4", 100), ("k6", "k8", 0)][..]][..], 1.75),
        ] {
            let found = over_a_key(levels);
            assert!((found - expected).abs() < 1e-9, "{levels:?}: {found}");
        }
        // Keys of which one begins with the other are no division by zero.
        assert!(over_a_key(&[&[("", "\0\0", 2), ("\0", "\0\0\0", 2)]]).is_finite());
        assert_eq!([-0.0, 1.04, 2.5].map(|n| averaged(n, "filter")), ["0 filters", "1 filter", "2.5 filters"]);
    }
}
