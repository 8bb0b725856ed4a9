//! [`BlockCache`]: data blocks kept in memory, within a byte limit and what a [`MemoryBudget`]
//! leaves.
//!
//! | file | what it does |
//! |---|---|
//! | `slot` | where readers find a block, without a lock |
//! | `admission` | which blocks are admitted, and which are evicted |
//! | `reclaim` | when an evicted block may be freed |
//!
//! A block lives in a `Frame` (`block/frame.rs`), whose memory is cut from a
//! [`FrameArena`].

mod admission;
mod reclaim;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::admission::CacheShard;
pub(crate) use self::admission::Place;
pub(super) use self::slot::BlockSlots;
use crate::block::{BlockRef, Frame};
use crate::memory::budget::{MemoryBudget, MemoryUse};
use crate::memory::epoch::Epoch;
use crate::memory::pool::FrameArena;
use crate::sync::Mutex;

const MAX_SHARDS: usize = 16;
/// A smaller cache has fewer shards, so that each still holds many blocks.
const MIN_SHARD_BYTES: usize = 256 << 10;
/// Between the offsets of two stores: prime to the number of shards, and large enough that the
/// first tables of a store do not meet those of the next.
const OWNER_STEP: usize = 1021;

/// A cache that stores may share. A lock guards each shard and is held while a block is admitted or
/// inserted; hits take none. Capacity 0 keeps nothing.
///
/// When others need memory of its budget, the cache evicts as many blocks as necessary, and gives
/// their memory back to the system, mostly a megabyte at a time. Readers in progress may delay
/// that. Memory that cannot be given back, because other blocks have parts of its pages, counts as
/// the cache's, which evicts more instead, by their place in memory, but for an eighth.
///
/// Each table has slots of its own, so that stores never find each other's blocks.
pub struct BlockCache {
    /// Number of stores that have used it.
    owners: AtomicUsize,
    arena: Arc<FrameArena>,
    shards: Box<[Mutex<CacheShard>]>,
    capacity: usize,
    /// Charged for what the cache and the arena hold.
    budget: Arc<MemoryBudget>,
    /// Idle bytes of the arena that are charged. The lock is held while they change.
    idle: AtomicUsize,
    charging: Mutex<()>,
}

/// So much memory is given back to the system at a time, beside what the arena makes ready ahead of
/// use, and at least so much of the limit.
const MIN_DISCARD: usize = 1 << 20;
const DISCARD_FRACTION: usize = 64;
/// If more than this part of what the cache may have, as a divisor, cannot be given back, blocks
/// are evicted by their place in memory, so that whole pages come free.
const STUCK_FRACTION: usize = 16;

/// A store that uses a cache. Its readers pin its own epoch: a long read holds up the reuse of the
/// blocks of its store alone.
pub struct CacheOwner {
    epoch: Arc<Epoch>,
    /// Spreads the same blocks of several stores over the shards.
    offset: usize,
    /// Bytes of the cache that the store's blocks take.
    used: AtomicUsize,
}

impl CacheOwner {
    pub fn epoch(&self) -> &Arc<Epoch> {
        &self.epoch
    }

    /// Bytes of the cache that the store's blocks take.
    pub fn usage(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl BlockCache {
    /// A cache without a budget.
    pub fn new(capacity: usize) -> BlockCache {
        BlockCache::of(&MemoryBudget::unlimited(), capacity)
    }

    /// A cache that takes what the others leave of `budget`, and `capacity` bytes at most.
    pub fn within(budget: &Arc<MemoryBudget>, capacity: usize) -> Arc<BlockCache> {
        let cache = Arc::new(BlockCache::of(budget, capacity.min(budget.limit())));
        let relieving = Arc::downgrade(&cache);
        budget.on_excess(move || {
            if let Some(cache) = relieving.upgrade() {
                cache.give_way();
            }
        });
        cache
    }

    fn of(budget: &Arc<MemoryBudget>, capacity: usize) -> BlockCache {
        let count = (capacity / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        let shard = || Mutex::new(CacheShard::new(capacity / count));
        let (shards, budget) = ((0..count).map(|_| shard()).collect(), Arc::clone(budget));
        let (owners, idle, charging) = Default::default();
        BlockCache { owners, arena: FrameArena::new(capacity), shards, capacity, budget, idle, charging }
    }

    /// Another store that uses the cache.
    pub fn new_owner(&self) -> Arc<CacheOwner> {
        let offset = self.owners.fetch_add(1, Ordering::Relaxed).wrapping_mul(OWNER_STEP);
        Arc::new(CacheOwner { epoch: Arc::default(), offset, used: AtomicUsize::new(0) })
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that the cache holds, free frames included.
    pub fn usage(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().used()).sum()
    }

    /// Bytes without blocks that are charged, too.
    #[cfg(test)]
    fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed)
    }

    /// Returns a frame for the block at position `i` of a table, of `len` bytes with its trailer,
    /// or `None` if the block is not admitted. The caller reads the block into the frame and
    /// [inserts](BlockCache::insert) it.
    pub(super) fn admit(&self, slots: &BlockSlots, i: usize, len: usize, place: Place) -> Option<Frame> {
        self.in_shard(self.shard_of(slots, i), |shard| shard.admit(&self.arena, slots, i, len, place))
    }

    /// Inserts the block at position `i` of a table, if there is still space.
    pub(super) fn insert(&self, slots: &Arc<BlockSlots>, i: usize, block: &BlockRef) {
        self.in_shard(self.shard_of(slots, i), |shard| shard.insert(slots, i, block));
    }

    /// Evicts what exceeds the cache's present share of the budget. A second round evicts for what
    /// the first could not give back.
    fn give_way(&self) {
        for _ in 0..2 {
            (0..self.shards.len()).for_each(|at| self.in_shard(at, |_| ()));
            self.discard(0);
            if !self.is_over() {
                break;
            }
        }
    }

    /// Charges for what is free. Gives it back if it is more than `least` bytes, or more than the
    /// cache may have beside its blocks.
    fn discard(&self, least: usize) {
        let _charging = self.charging.lock();
        let charge = || {
            let idle = self.arena.idle();
            self.budget.note_cache(self.idle.swap(idle, Ordering::Relaxed), idle);
            idle.saturating_sub(self.arena.stuck())
        };
        let free = charge();
        if free > least || free > 0 && self.is_over() {
            self.arena.discard_free();
            charge();
        }
    }

    /// Whether the cache has more than the others leave.
    fn is_over(&self) -> bool {
        self.budget.used(MemoryUse::Cache) > self.budget.left_for_cache()
    }

    /// Calls `work` with a shard, which first gives way to other uses of the budget.
    #[inline]
    fn in_shard<T>(&self, at: usize, work: impl FnOnce(&mut CacheShard) -> T) -> T {
        let mut shard = self.shards[at].lock();
        let (left, stuck) = (self.budget.left_for_cache(), self.arena.stuck());
        let pages = stuck > left / STUCK_FRACTION;
        let before = shard.used();
        // Memory that never goes back, such as locked memory, must not empty the cache.
        let left_for_blocks = left - stuck.min(left / 8 * 7);
        let evicts = shard.set_capacity(self.capacity.min(left_for_blocks) / self.shards.len(), pages);
        let result = work(&mut shard);
        self.budget.note_cache(before, shard.used());
        drop(shard);
        if left < self.capacity || self.idle.load(Ordering::Relaxed) > 0 {
            let least = MIN_DISCARD.max(self.budget.limit() / DISCARD_FRACTION) + self.arena.ahead();
            self.discard(if evicts && pages { 0 } else { least });
        }
        result
    }

    /// Evicts all blocks of a table that has no readers any more. Looks only into shards that have
    /// some, and there only at these.
    pub(super) fn forget(&self, slots: &BlockSlots) {
        // With their shards.
        let mut positions: Vec<(usize, usize)> = slots.owner().epoch.pin(|pin| {
            let blocks = slots.linked(pin);
            blocks.map(|(i, block)| (self.shard_of(slots, i), block.framed().position())).collect()
        });
        positions.sort_unstable();
        for of_shard in positions.chunk_by(|(a, _), (b, _)| a == b) {
            let positions = of_shard.iter().map(|(_, position)| *position);
            self.in_shard(of_shard[0].0, |shard| shard.forget(slots, positions));
        }
    }

    fn shard_of(&self, slots: &BlockSlots, i: usize) -> usize {
        // Neighbouring blocks do not share a shard, and the first blocks of all tables do not
        // either.
        slots.first_shard().wrapping_add(i) % self.shards.len()
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            let shard = shard.get_mut();
            let before = shard.used();
            shard.close();
            self.budget.note_cache(before, 0);
        }
        // A value or a cursor that outlives the cache keeps its block, and with it the arena, but
        // none of the arena's free memory.
        self.arena.discard_free();
        self.budget.note_cache(*self.idle.get_mut(), 0);
    }
}
