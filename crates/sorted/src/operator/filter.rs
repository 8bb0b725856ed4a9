//! [`CompactionFilter`]: the caller's say in what a compaction keeps.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Decides about entries that a compaction rewrites; set by
/// `KeyspaceOptions::compaction_filter`.
///
/// It is asked about a value if the compaction knows no newer version of the key and no snapshot
/// sees it. The store may hold a newer version elsewhere, or operands to be merged into the value:
/// a filter that drops counters of 0 drops some that have just grown, whose next value then counts
/// from the operands alone. Who begins to read later may see the entry before and after the
/// decision. Flushes do not ask. An entry may be asked about several times, or not for a long time:
/// `compact_range` asks about all of a range.
///
/// Several threads ask at once, each in ascending order of keys. If the filter panics, or gives too
/// long a value, the compaction fails with
/// [`Error::CompactionFilter`](crate::error::Error::CompactionFilter), nothing is lost, and the
/// compaction is tried again later. It must not use the store.
///
/// Any function from key and value to a [`CompactionDecision`] is one.
pub trait CompactionFilter: Send + Sync {
    /// What becomes of an entry.
    fn decide(&self, key: &[u8], value: &[u8]) -> CompactionDecision;
}

impl<F: Fn(&[u8], &[u8]) -> CompactionDecision + Send + Sync> CompactionFilter for F {
    fn decide(&self, key: &[u8], value: &[u8]) -> CompactionDecision {
        self(key, value)
    }
}

/// What becomes of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompactionDecision {
    /// It stays.
    Keep,
    /// The key is deleted.
    Drop,
    /// The key has this value, of up to [`MAX_VALUE_LEN`](crate::format::key::MAX_VALUE_LEN) bytes,
    /// or 8 fewer if the former one has a deadline, which stays.
    Replace(Vec<u8>),
}

/// The compaction filter of a keyspace, if it has one. It is not stored: options are equal whatever
/// it is.
#[derive(Clone, Default)]
pub struct CompactionHook(Option<Arc<dyn CompactionFilter>>);

impl CompactionHook {
    pub fn new(filter: impl CompactionFilter + 'static) -> CompactionHook {
        CompactionHook(Some(Arc::new(filter)))
    }

    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    pub fn is_same(&self, other: &CompactionHook) -> bool {
        match (&self.0, &other.0) {
            (Some(this), Some(other)) => Arc::ptr_eq(this, other),
            (this, other) => this.is_none() && other.is_none(),
        }
    }

    /// Asks the filter. `None` if it panicked.
    pub fn decide(&self, key: &[u8], value: &[u8]) -> Option<CompactionDecision> {
        let Some(filter) = &self.0 else { return Some(CompactionDecision::Keep) };
        catch_unwind(AssertUnwindSafe(|| filter.decide(key, value))).ok()
    }
}

impl PartialEq for CompactionHook {
    fn eq(&self, _: &CompactionHook) -> bool {
        true
    }
}

impl fmt::Debug for CompactionHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "Some(..)" } else { "None" })
    }
}
