//! [`TableFilters`]: which filters a table carries. [`FiltersBuilder`] makes them.

use super::extras::Extras;
use super::properties::{Properties, RangeFilterRequest, filter_hash};
use crate::filter::{
    FilterBuilder, FilterPolicy, KeyHash, NoRangeFilter, PrefixExtractor, RangeBuilder, RangeFilterPolicy, RangeRates,
};
use crate::format::{Decoded, Malformed};

/// Which filters a table carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableFilters {
    /// For look-ups of keys.
    pub points: FilterPolicy,
    /// The filter for look-ups also has this prefix of each key.
    pub prefix: Option<PrefixExtractor>,
    pub ranges: RangeFilterPolicy,
}

impl TableFilters {
    pub const NONE: TableFilters =
        TableFilters { points: FilterPolicy::None, prefix: None, ranges: RangeFilterPolicy::None };

    /// A filter for look-ups, and nothing else.
    pub const fn of_points(points: FilterPolicy) -> TableFilters {
        TableFilters { points, ..TableFilters::NONE }
    }

    /// Bytes of memory that they take, about, while a table of so many keys is written. A prefix
    /// that each key has for itself makes a filter twice as large.
    pub fn memory_of(&self, keys: u64) -> u64 {
        let hashes = keys.saturating_mul(if self.prefix.is_some() { 2 } else { 1 });
        let points = match self.points {
            FilterPolicy::None => 0,
            policy => hashes.saturating_mul(8).saturating_add(FilterBuilder::memory_of(policy, hashes)),
        };
        points.saturating_add(keys.saturating_mul(2 * u64::from(self.ranges.millibits())) / 8000)
    }
}

/// Builds the filters of a table: `add` for each key in order, and `end_block` after each data
/// block. A key whose versions are in several blocks is added in each of them.
pub(super) struct FiltersBuilder {
    filters: TableFilters,
    points: FilterBuilder,
    ranges: Option<RangeBuilder>,
}

/// The finished blocks, in the order of the file.
pub(super) struct FilterBlocks {
    pub(super) points: Option<Vec<u8>>,
    /// By kind; see [`Extras`](super::extras::Extras).
    pub(super) extras: Vec<(u64, Vec<u8>)>,
}

impl FiltersBuilder {
    /// For the table whose file states `number`.
    pub(super) fn new(filters: TableFilters, seed: u64, number: u64) -> FiltersBuilder {
        let ranges = match filters.ranges {
            RangeFilterPolicy::None => None,
            ranges => Some(RangeBuilder::new(ranges.bits_per_key(), number)),
        };
        FiltersBuilder {
            filters,
            points: FilterBuilder::new(filters.points, seed).with_prefixes(filters.prefix),
            ranges,
        }
    }

    /// Adds a key. One that equals the key before counts once.
    #[inline]
    pub(super) fn add_key(&mut self, key: &[u8], hash: KeyHash) {
        self.points.add_key(key, hash);
    }

    /// Adds the key of an entry of the current block. One that equals the key before counts once.
    #[inline]
    pub(super) fn add_to_block(&mut self, key: &[u8]) {
        if let Some(ranges) = &mut self.ranges {
            ranges.add(key);
        }
    }

    /// Ends a block, after which the index has `separator`.
    pub(super) fn end_block(&mut self, separator: &[u8]) {
        if let Some(ranges) = &mut self.ranges {
            ranges.end_block(separator);
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.points.memory() + self.ranges.as_ref().map_or(0, RangeBuilder::memory)
    }

    /// The blocks; states them in `properties`. Fails if the keys were not what the table's builder
    /// has checked.
    pub(super) fn finish(self, properties: &mut Properties) -> Decoded<FilterBlocks> {
        properties.filter_policy = self.filters.points.code().into();
        properties.filter_millibits = self.filters.points.millibits();
        (properties.filter_keys, properties.filter_hash) = (0, None);
        let points = self.points.finish().map(|filter| {
            properties.filter_keys = filter.info.keys;
            properties.filter_hash = Some(filter_hash(&filter.bytes));
            filter.bytes
        });
        let (rates, ranges) = match self.ranges.map(RangeBuilder::finish) {
            None => (RangeRates::default(), None),
            Some(Ok(block)) => (block.info.rates, Some((Extras::RANGE_FILTER, block.bytes))),
            Some(Err(NoRangeFilter::Rates(rates))) => (rates, None),
            Some(Err(NoRangeFilter::Broken(rule))) => return Err(Malformed(rule)),
            Some(Err(_)) => return Err(Malformed("a table has no keys")),
        };
        let millibits = self.filters.ranges.millibits();
        properties.range_filter = (millibits > 0).then_some(RangeFilterRequest { millibits, rates });
        Ok(FilterBlocks { points, extras: ranges.into_iter().collect() })
    }
}
