//! The limit of an environment's memory, and what its stores use of it.

use crate::memory::budget::{MemoryBudget, MemoryUse};
use crate::vfs::machine_memory;

/// The part of the machine's memory, as a divisor, that is the limit by default.
const DEFAULT_SHARE: u64 = 2;
/// The machine's memory where it is not known.
const ASSUMED_MEMORY: u64 = 4 << 30;
/// The cache's limit if neither it nor that of all memory is given.
const DEFAULT_CACHE: usize = 64 << 20;
/// The part of the limit, as a divisor, that a memtable may have at most; and the length that it
/// may have in any case.
const LARGEST_PART: usize = 8;
const LEAST_PART: usize = 8 << 10;
/// The least limit.
pub(super) const LEAST_MEMORY: usize = 64 << 10;

/// How much memory an environment may take, as its options say.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub(crate) struct MemoryLimits {
    pub(super) all: Option<usize>,
    pub(super) cache: Option<usize>,
}

impl MemoryLimits {
    /// The limits with what is not given filled in.
    pub(crate) fn resolved(self) -> MemoryLimits {
        let all = self.all.unwrap_or_else(|| {
            let share = machine_memory().unwrap_or(ASSUMED_MEMORY) / DEFAULT_SHARE;
            let share = usize::try_from(share).unwrap_or(usize::MAX / 2).max(LEAST_MEMORY);
            // A cache that was asked for fits.
            share.max(self.cache.unwrap_or(0).saturating_mul(2))
        });
        let cache = self.cache.unwrap_or(if self.all.is_some() { all } else { DEFAULT_CACHE });
        MemoryLimits { all: Some(all), cache: Some(cache.min(all)) }
    }

    /// The limit of all, and that of the cache.
    pub(super) fn bytes(self) -> (usize, usize) {
        match self.resolved() {
            MemoryLimits { all: Some(all), cache: Some(cache) } => (all, cache),
            _ => (usize::MAX, DEFAULT_CACHE),
        }
    }
}

/// The most bytes of a memtable within a limit of `all` bytes.
pub(super) fn largest_part(all: usize) -> usize {
    (all / LARGEST_PART).max(LEAST_PART)
}

/// Under load the uses never agree: then the last reading counts.
const MOST_READINGS: usize = 8;

/// What the stores of an environment keep in memory, against its limit
/// ([`EnvironmentOptions::memory`](crate::EnvironmentOptions::memory)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryUsage {
    /// The limit.
    pub limit: usize,
    /// Memtables, and memory kept for the next ones.
    pub memtables: usize,
    /// The block cache.
    pub cache: usize,
    /// Indexes of open tables, and what else they keep. Pages of indexes are in `cache`.
    pub indexes: usize,
    /// Filters of open tables. Pages of filters are in `cache`.
    pub filters: usize,
    /// Range deletes in tables.
    pub ranges: usize,
    /// What scans have read ahead, and the blocks that they hold.
    pub scans: usize,
    /// Tables that flushes and compactions are writing.
    pub jobs: usize,
}

impl MemoryUsage {
    /// Read anew if memory has moved from one use to another meanwhile, which would count twice.
    pub(super) fn of(budget: &MemoryBudget) -> MemoryUsage {
        let read = || MemoryUsage {
            limit: budget.limit(),
            memtables: budget.used(MemoryUse::Memtables),
            cache: budget.used(MemoryUse::Cache),
            indexes: budget.used(MemoryUse::Indexes),
            filters: budget.used(MemoryUse::Filters),
            ranges: budget.used(MemoryUse::Ranges),
            scans: budget.used(MemoryUse::Scans),
            jobs: budget.used(MemoryUse::Jobs),
        };
        let mut usage = read();
        for _ in 0..MOST_READINGS {
            let again = read();
            if again == usage {
                break;
            }
            usage = again;
        }
        usage
    }

    /// What counts against the limit: each use and its bytes.
    pub fn uses(&self) -> [(&'static str, usize); 7] {
        [
            ("memtables", self.memtables),
            ("cache", self.cache),
            ("indexes", self.indexes),
            ("filters", self.filters),
            ("ranges", self.ranges),
            ("scans", self.scans),
            ("jobs", self.jobs),
        ]
    }

    /// Bytes of all uses.
    pub fn total(&self) -> usize {
        self.uses().into_iter().map(|(_, bytes)| bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_follows_from_what_is() {
        let limits = |all, cache| MemoryLimits { all, cache }.bytes();
        assert_eq!(limits(Some(10 << 20), None), (10 << 20, 10 << 20));
        assert_eq!(limits(Some(10 << 20), Some(3 << 20)), (10 << 20, 3 << 20));
        assert_eq!(limits(Some(10 << 20), Some(30 << 20)), (10 << 20, 10 << 20));
        let (all, cache) = limits(None, None);
        assert!(all >= LEAST_MEMORY && cache == DEFAULT_CACHE.min(all));
        assert_eq!(limits(None, Some(all)), (2 * all, all));
        assert_eq!((largest_part(1 << 30), largest_part(0)), (128 << 20, LEAST_PART));
    }
}
