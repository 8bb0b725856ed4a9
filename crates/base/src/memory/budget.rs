//! [`MemoryBudget`]: one limit for all that stores keep in memory.
//!
//! Each part of a store charges what it takes to the budget it was given, by use. The block cache
//! has what the others leave: it shrinks when they grow, and the budget tells it when. A part that
//! can do without asks first ([`MemoryCharge::try_resize`]): there is room for it until all uses
//! but the cache fill half of the limit. Indexes have room up to seven eighths: of all that stays
//! in memory, a byte of theirs saves most reads. What a store cannot do without (memtables within
//! their own limit, the outlines of a table that is read) is charged in any case.
//!
//! Before filters and indexes do without, and before the cache gives way, memory that is kept for
//! the next memtables goes.
//!
//! A sixteenth of the limit is kept free of cached blocks, so that scans and jobs that come and go
//! evict none.

use std::sync::Arc;

use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The part of the limit, as a divisor, that is kept for scans and jobs.
const RESERVE: usize = 16;

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUse {
    /// Memtables, and memory kept for the next ones.
    Memtables,
    /// Blocks, free frames, and what readers may still see of evicted blocks.
    Cache,
    /// Indexes of open tables, and what else they keep.
    Indexes,
    /// Filters of open tables.
    Filters,
    /// Range deletes in tables.
    Ranges,
    /// What scans have read ahead, and the blocks that they hold.
    Scans,
    /// Tables being written.
    Jobs,
}

impl MemoryUse {
    /// The part of `limit` up to which there is room for what can be done without.
    fn optional(self, limit: usize) -> usize {
        if self == MemoryUse::Indexes { limit - limit / 8 } else { limit / 2 }
    }

    pub const ALL: [MemoryUse; 7] = [
        MemoryUse::Memtables,
        MemoryUse::Cache,
        MemoryUse::Indexes,
        MemoryUse::Filters,
        MemoryUse::Ranges,
        MemoryUse::Scans,
        MemoryUse::Jobs,
    ];
}

/// See the module.
pub struct MemoryBudget {
    limit: usize,
    /// Bytes of each use.
    used: [AtomicUsize; MemoryUse::ALL.len()],
    /// Bytes that are about to be taken.
    coming: AtomicUsize,
    /// Called before the sum exceeds the limit.
    relief: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Frees what is kept for reuse only; returns the bytes.
    idle: OnceLock<Box<dyn Fn() -> usize + Send + Sync>>,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, of which [`usize::MAX`] is none.
    pub fn new(limit: usize) -> Arc<MemoryBudget> {
        let (used, coming) = Default::default();
        Arc::new(MemoryBudget { limit, used, coming, relief: OnceLock::new(), idle: OnceLock::new() })
    }

    /// A budget without a limit.
    pub fn unlimited() -> Arc<MemoryBudget> {
        MemoryBudget::new(usize::MAX)
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self, of: MemoryUse) -> usize {
        self.used[of as usize].load(Ordering::Relaxed)
    }

    /// Bytes of all uses.
    pub fn total(&self) -> usize {
        MemoryUse::ALL.iter().map(|&of| self.used(of)).sum()
    }

    /// Has `relief` called before the sum exceeds the limit while the cache holds something, by the
    /// thread that takes memory. It must take none but the cache's locks. A budget has one at most.
    pub fn on_excess(&self, relief: impl Fn() + Send + Sync + 'static) {
        let _ = self.relief.set(Box::new(relief));
    }

    /// Has `free_idle` called when memory is short: it frees what is kept for reuse only, and
    /// returns how many bytes. It must take no lock under which memory is charged. A budget has one
    /// at most.
    pub fn on_shortage(&self, free_idle: impl Fn() -> usize + Send + Sync + 'static) {
        let _ = self.idle.set(Box::new(free_idle));
    }

    fn free_idle(&self) -> usize {
        self.idle.get().map_or(0, |free_idle| free_idle())
    }

    /// Bytes that the cache may take now.
    pub fn left_for_cache(&self) -> usize {
        if self.limit == usize::MAX {
            return usize::MAX;
        }
        let passing = self.used(MemoryUse::Scans) + self.used(MemoryUse::Jobs);
        let lasting = [MemoryUse::Memtables, MemoryUse::Indexes, MemoryUse::Filters, MemoryUse::Ranges];
        let lasting: usize = lasting.map(|of| self.used(of)).iter().sum();
        let coming = self.coming.load(Ordering::Relaxed);
        self.limit.saturating_sub(lasting).saturating_sub(coming + passing.max(self.limit / RESERVE))
    }

    /// Whether there is room for `bytes` of a use that can be done without.
    pub fn has_room(&self, of: MemoryUse, bytes: usize) -> bool {
        let others = self.total().saturating_sub(self.used(MemoryUse::Cache));
        self.limit == usize::MAX || others.saturating_add(bytes) <= of.optional(self.limit)
    }

    /// Counts `bytes` more for a use.
    pub fn add(&self, of: MemoryUse, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let is_short = || self.limit < usize::MAX && self.total().saturating_add(bytes) > self.limit;
        let is_short = is_short() && (self.free_idle() == 0 || is_short());
        let relief = self.relief.get().filter(|_| is_short && self.used(MemoryUse::Cache) > 0);
        if let Some(relief) = relief {
            self.coming.fetch_add(bytes, Ordering::Relaxed);
            relief();
        }
        self.used[of as usize].fetch_add(bytes, Ordering::Relaxed);
        if relief.is_some() {
            self.coming.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Counts `bytes` less for a use.
    pub fn sub(&self, of: MemoryUse, bytes: usize) {
        if bytes > 0 {
            self.used[of as usize].fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Counts the cache: it holds `after` bytes instead of `before`. Calls for no relief.
    pub fn note_cache(&self, before: usize, after: usize) {
        let used = &self.used[MemoryUse::Cache as usize];
        match after.checked_sub(before) {
            Some(0) => {}
            Some(more) => _ = used.fetch_add(more, Ordering::Relaxed),
            None => _ = used.fetch_sub(before - after, Ordering::Relaxed),
        }
    }
}

/// Bytes charged to a budget, until they are dropped.
pub struct MemoryCharge {
    budget: Arc<MemoryBudget>,
    of: MemoryUse,
    bytes: usize,
}

impl MemoryCharge {
    pub fn new(budget: &Arc<MemoryBudget>, of: MemoryUse, bytes: usize) -> MemoryCharge {
        budget.add(of, bytes);
        MemoryCharge { budget: Arc::clone(budget), of, bytes }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges `bytes` in all.
    pub fn resize(&mut self, bytes: usize) {
        self.budget.add(self.of, bytes.saturating_sub(self.bytes));
        self.budget.sub(self.of, self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
    }

    /// Charges `bytes` in all, if they are no more than before or there is room for them.
    pub fn try_resize(&mut self, bytes: usize) -> bool {
        let fits = || bytes <= self.bytes || self.budget.has_room(self.of, bytes - self.bytes);
        let stays = matches!(self.of, MemoryUse::Indexes | MemoryUse::Filters);
        let fits = fits() || (stays && self.budget.free_idle() > 0 && fits());
        if fits {
            self.resize(bytes);
        }
        fits
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.budget.sub(self.of, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_done_without_leaves_half_and_the_cache_has_the_rest() {
        let budget = MemoryBudget::new(1600);
        assert_eq!(budget.left_for_cache(), 1500);
        let memtables = MemoryCharge::new(&budget, MemoryUse::Memtables, 400);
        let mut scan = MemoryCharge::new(&budget, MemoryUse::Scans, 0);
        assert!(scan.try_resize(60));
        assert_eq!(budget.left_for_cache(), 1100, "within the reserve");
        assert!(scan.try_resize(400) && !scan.try_resize(401) && scan.try_resize(400));
        let mut index = MemoryCharge::new(&budget, MemoryUse::Indexes, 0);
        assert!(index.try_resize(600) && !index.try_resize(601) && !scan.try_resize(401));
        index.resize(0);
        assert_eq!((budget.left_for_cache(), budget.total()), (800, 800));
        budget.note_cache(0, 400);
        assert_eq!((budget.left_for_cache(), budget.total()), (800, 1200));
        let tables = MemoryCharge::new(&budget, MemoryUse::Filters, 2000);
        assert_eq!((budget.left_for_cache(), budget.total()), (0, 3200));
        drop((memtables, scan, tables));
        budget.note_cache(400, 0);
        assert_eq!((budget.left_for_cache(), budget.total()), (1500, 0));
    }

    #[test]
    fn relief_is_called_for_before_the_sum_exceeds_the_limit() {
        let (budget, calls) = (MemoryBudget::new(100), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        budget.on_excess(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        budget.note_cache(0, 90);
        let mut charge = MemoryCharge::new(&budget, MemoryUse::Jobs, 10);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        charge.resize(11);
        charge.resize(5);
        assert_eq!((calls.load(Ordering::Relaxed), budget.total()), (1, 95));
        budget.note_cache(90, 0);
        charge.resize(200);
        assert_eq!(calls.load(Ordering::Relaxed), 1, "there is nothing to give up");
    }

    #[test]
    fn what_is_idle_goes_first() {
        let (budget, idle) = (MemoryBudget::new(800), Arc::new(AtomicUsize::new(0)));
        let (weak, kept) = (Arc::downgrade(&budget), Arc::clone(&idle));
        budget.on_shortage(move || {
            let bytes = kept.swap(0, Ordering::Relaxed);
            weak.upgrade().unwrap().sub(MemoryUse::Memtables, bytes);
            bytes
        });
        let keep = |bytes| {
            budget.add(MemoryUse::Memtables, bytes);
            idle.fetch_add(bytes, Ordering::Relaxed);
        };
        keep(300);
        let mut charges = [MemoryUse::Scans, MemoryUse::Filters].map(|of| MemoryCharge::new(&budget, of, 0));
        assert!(!charges[0].try_resize(200), "not for what comes and goes");
        assert!(charges[1].try_resize(200));
        assert_eq!((idle.load(Ordering::Relaxed), budget.total()), (0, 200));
        keep(500);
        charges[0].resize(300);
        assert_eq!(budget.total(), 500);
    }

    #[test]
    fn without_a_limit_there_is_room_for_all() {
        let budget = MemoryBudget::unlimited();
        assert!(budget.has_room(MemoryUse::Scans, usize::MAX));
        assert_eq!(budget.left_for_cache(), usize::MAX);
    }
}
