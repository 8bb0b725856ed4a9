//! [`MemoryBudget`]: one limit for all that stores keep in memory.
//!
//! Each part of a store charges what it takes to the budget it was given, by use. The block cache
//! has what the others leave: it shrinks when they grow, and the budget tells it when. A part that
//! can do without (whole filters and indexes, scans) asks first ([`MemoryCharge::try_resize`]):
//! there is room for it until all uses but the cache and memtables fill three eighths of the limit.
//! What a store cannot do without is charged in any case: memtables, a quarter and what they exceed
//! it by until they are flushed; tables being written, an eighth; the outlines of open tables.
//!
//! Before the cache gives way, memory that is kept for the next memtables goes, as much as is
//! needed.
//!
//! A sixteenth of the limit is kept for scans and jobs, which come and go: free of cached blocks,
//! so that they evict none. Scans have as much also where whole filters and indexes, and tables
//! being written, have taken all else: otherwise they would read block by block for good. Scans
//! that wait keep what they have read ahead: all of them have a quarter of the limit at most. What
//! jobs read ahead has room as long as the cache can give way and an eighth is left: for scans, and
//! for merges of runs.

use std::sync::Arc;

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceLock};

/// The part of the limit, as a divisor, that is kept for scans and jobs.
const RESERVE: usize = 16;

/// The most eighths of the limit that what can be done without, and all others but the cache and
/// memtables, fill.
const ROOM: usize = 3;

/// The most eighths of the limit that scans fill.
const SCANS: usize = 2;

/// The most eighths of the limit that memtables take, with what they exceed their quarter by.
const MEMTABLES: usize = 3;

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
    /// Range deletes in tables, and where scans have found nothing.
    Ranges,
    /// What scans have read ahead, and the blocks that they hold.
    Scans,
    /// Tables being written, and what is read for them.
    Jobs,
}

impl MemoryUse {
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
    /// Bytes that are kept for reuse only, and what frees as many of them as it is told, or more.
    idle: AtomicUsize,
    freeing: Mutex<Vec<FreeIdle>>,
}

type FreeIdle = Box<dyn Fn(usize) + Send + Sync>;

impl MemoryBudget {
    /// A budget of `limit` bytes, of which [`usize::MAX`] is none.
    pub fn new(limit: usize) -> Arc<MemoryBudget> {
        let (used, coming, idle, freeing) = Default::default();
        Arc::new(MemoryBudget { limit, used, coming, relief: OnceLock::new(), idle, freeing })
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

    /// Has `free_idle` called with the bytes that are missing: it frees what is kept for reuse
    /// only, and tells [`note_idle`](MemoryBudget::note_idle). It must take no lock under which
    /// memory is charged.
    pub fn on_shortage(&self, free_idle: impl Fn(usize) + Send + Sync + 'static) {
        self.freeing.lock().push(Box::new(free_idle));
    }

    /// Counts what is kept for reuse only: `after` bytes instead of `before`. They are charged.
    pub fn note_idle(&self, before: usize, after: usize) {
        match after.checked_sub(before) {
            Some(more) => _ = self.idle.fetch_add(more, Ordering::Relaxed),
            None => _ = self.idle.fetch_sub(before - after, Ordering::Relaxed),
        }
    }

    #[cold]
    fn free_idle(&self, bytes: usize) {
        let until = self.idle.load(Ordering::Relaxed).saturating_sub(bytes);
        for free_idle in &*self.freeing.lock() {
            let more = self.idle.load(Ordering::Relaxed).saturating_sub(until);
            if more > 0 {
                free_idle(more);
            }
        }
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

    /// Bytes of all uses but the cache and memtables.
    fn others(&self) -> usize {
        let others = [MemoryUse::Indexes, MemoryUse::Filters, MemoryUse::Ranges, MemoryUse::Scans, MemoryUse::Jobs];
        others.map(|of| self.used(of)).iter().sum()
    }

    /// Bytes that a job may take now, if the cache gives way and memtables take their most.
    pub fn left_for_jobs(&self) -> usize {
        let memtables = self.used(MemoryUse::Memtables).max(self.limit / 8 * MEMTABLES);
        self.limit.saturating_sub(memtables.saturating_add(self.others()))
    }

    /// Whether there is room for `bytes` of a use that can be done without.
    fn has_room(&self, of: MemoryUse, bytes: usize) -> bool {
        let has_room = || self.others().saturating_add(bytes) <= self.limit / 8 * ROOM;
        let can_give_way = || bytes <= self.left_for_jobs();
        let scans = || self.used(MemoryUse::Scans).saturating_add(bytes);
        self.limit == usize::MAX
            || match of {
                MemoryUse::Scans if scans() <= self.limit / RESERVE => has_room() || can_give_way(),
                MemoryUse::Scans => scans() <= self.limit / 8 * SCANS && has_room(),
                MemoryUse::Jobs => has_room() || bytes.saturating_add(self.limit / 8) <= self.left_for_jobs(),
                _ => has_room(),
            }
    }

    /// Whether memory is kept for the next memtables when `bytes` more are: while all uses but the
    /// cache fill half of the limit.
    pub fn may_keep(&self, bytes: usize) -> bool {
        let taken = self.others().saturating_add(self.used(MemoryUse::Memtables));
        self.limit == usize::MAX || taken.saturating_add(bytes) <= self.limit / 2
    }

    /// Counts `bytes` more for a use.
    pub fn add(&self, of: MemoryUse, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let used = &self.used[of as usize];
        if self.limit == usize::MAX {
            used.fetch_add(bytes, Ordering::Relaxed);
            return;
        }
        // First: of two threads that charge at a time, the second sees what the first will take. A
        // thread that no longer finds it in `coming` finds it in `used`.
        self.coming.fetch_add(bytes, Ordering::AcqRel);
        let shortage = || {
            let coming = self.coming.load(Ordering::Acquire);
            self.total().saturating_add(coming).saturating_sub(self.limit)
        };
        let short = shortage();
        if short > 0 && self.idle.load(Ordering::Relaxed) > 0 {
            self.free_idle(short);
        }
        if short > 0
            && shortage() > 0
            && self.used(MemoryUse::Cache) > 0
            && let Some(relief) = self.relief.get()
        {
            relief();
        }
        used.fetch_add(bytes, Ordering::Relaxed);
        self.coming.fetch_sub(bytes, Ordering::Release);
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

    /// Ends the charge, and leaves its bytes charged.
    pub fn leave(mut self) {
        self.bytes = 0;
    }

    /// Charges `bytes` in all.
    pub fn resize(&mut self, bytes: usize) {
        self.budget.add(self.of, bytes.saturating_sub(self.bytes));
        self.budget.sub(self.of, self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
    }

    /// A charge of nothing, for the same use of the same budget.
    pub fn another(&self) -> MemoryCharge {
        MemoryCharge::new(&self.budget, self.of, 0)
    }

    /// Charges `bytes` in all, if they are no more than before or there is room for them.
    pub fn try_resize(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.bytes || self.budget.has_room(self.of, bytes - self.bytes);
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
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn what_can_be_done_without_has_three_eighths_and_the_cache_has_the_rest() {
        let budget = MemoryBudget::new(1600);
        assert_eq!(budget.left_for_cache(), 1500);
        let memtables = MemoryCharge::new(&budget, MemoryUse::Memtables, 400);
        let mut scan = MemoryCharge::new(&budget, MemoryUse::Scans, 0);
        assert!(scan.try_resize(60));
        assert_eq!(budget.left_for_cache(), 1100, "within the reserve");
        let mut index = MemoryCharge::new(&budget, MemoryUse::Indexes, 0);
        // Whatever memtables take.
        assert!(index.try_resize(540) && !index.try_resize(541));
        assert!(scan.try_resize(100) && !scan.try_resize(101), "a scan has the reserve");
        scan.resize(60);
        assert!(!index.try_resize(541));
        index.resize(0);
        assert!(scan.try_resize(400) && !scan.try_resize(401), "scans leave room for what lasts");
        assert!(index.try_resize(200) && !index.try_resize(201));
        let mut job = MemoryCharge::new(&budget, MemoryUse::Jobs, 0);
        assert!(job.try_resize(200) && !job.try_resize(201), "the cache gives way to a job");
        scan.resize(0);
        assert!(scan.try_resize(100), "and to a scan");
        index.resize(0);
        job.resize(0);
        scan.resize(400);
        assert_eq!((budget.left_for_cache(), budget.total()), (800, 800));
        budget.note_cache(0, 400);
        assert_eq!((budget.left_for_cache(), budget.total()), (800, 1200));
        let tables = MemoryCharge::new(&budget, MemoryUse::Filters, 2000);
        assert_eq!((budget.left_for_cache(), budget.total()), (0, 3200));
        drop((memtables, scan, tables));
        budget.note_cache(400, 0);
        assert_eq!((budget.left_for_cache(), budget.total()), (1500, 0));
    }

    /// Each alone would fit beside the cache.
    #[test]
    fn two_charges_at_a_time_do_not_exceed_the_limit_together() {
        let budget = MemoryBudget::new(1600);
        let relieved = Arc::downgrade(&budget);
        let relieving = Mutex::new(());
        budget.on_excess(move || {
            let _one = relieving.lock();
            let budget = relieved.upgrade().expect("it is being charged");
            let (cached, left) = (budget.used(MemoryUse::Cache), budget.left_for_cache());
            budget.note_cache(cached, cached.min(left));
        });
        let (barrier, begun, most) = (Barrier::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        let charges = || {
            for round in 1..=if cfg!(miri) { 20 } else { 5_000 } {
                if barrier.wait().is_leader() {
                    budget.note_cache(budget.used(MemoryUse::Cache), 1450);
                }
                barrier.wait();
                // A barrier wakes one thread long after the other.
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 2 * round {
                    std::hint::spin_loop();
                }
                let charge = MemoryCharge::new(&budget, MemoryUse::Scans, 100);
                barrier.wait();
                most.fetch_max(budget.total(), Ordering::Relaxed);
                barrier.wait();
                drop(charge);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(charges);
            charges();
        });
        assert!(most.into_inner() <= 1600);
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
        let budget = MemoryBudget::new(800);
        // Two that keep memory, each in pieces of 50 bytes.
        let kept = [(); 2].map(|()| {
            let (kept, weak) = (Arc::new(AtomicUsize::new(0)), Arc::downgrade(&budget));
            let of = Arc::clone(&kept);
            budget.on_shortage(move |bytes| {
                let (budget, before) = (weak.upgrade().unwrap(), of.load(Ordering::Relaxed));
                let after = before.saturating_sub(bytes.next_multiple_of(50));
                of.store(after, Ordering::Relaxed);
                budget.note_idle(before, after);
                budget.sub(MemoryUse::Memtables, before - after);
            });
            kept
        });
        for of in &kept {
            budget.add(MemoryUse::Memtables, 150);
            budget.note_idle(0, 150);
            of.store(150, Ordering::Relaxed);
        }
        let left = || kept.each_ref().map(|of| of.load(Ordering::Relaxed));
        let mut charge = MemoryCharge::new(&budget, MemoryUse::Filters, 500);
        assert_eq!((left(), budget.total()), ([150, 150], 800));
        charge.resize(510);
        assert_eq!((left(), budget.total()), ([100, 150], 760));
        charge.resize(700);
        assert_eq!((left(), budget.total()), ([0, 100], 800));
    }

    #[test]
    fn without_a_limit_there_is_room_for_all() {
        let budget = MemoryBudget::unlimited();
        assert!(budget.has_room(MemoryUse::Filters, usize::MAX) && budget.may_keep(usize::MAX));
        assert_eq!(budget.left_for_cache(), usize::MAX);
    }
}
