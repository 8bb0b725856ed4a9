//! [`CacheShard`]: which blocks of one shard stay in memory.
//!
//! While there is free space, every block is admitted, except while the arena still prepares
//! memory. A full cache admits none of a long scan. For others, it is a clock with a doorkeeper:
//!
//! - The doorkeeper admits a block only if an earlier read missed it too, at most as many misses
//!   ago as the cache can hold blocks of its size. The larger a block, the sooner it must have been
//!   missed again: a data block takes the place of several pages of filters.
//! - Admitting a block moves the clock's hand on by the block's size. Blocks read since the hand's
//!   last visit stay; the others are evicted. If that frees too little, the block is not admitted.
//!
//! A stream of blocks that are read once therefore evicts nothing. Blocks of a former working set
//! leave as soon as others are read repeatedly. Where all blocks are equally hot, few are
//! exchanged.
//!
//! The limit covers everything that the cache holds: blocks in slots, evicted blocks that a pinned
//! reader may still see, and free frames. If pinned readers keep too many evicted blocks from being
//! freed, no new blocks are admitted. A block that a reader holds by a count when it is evicted is
//! no longer charged to the cache.
//!
//! While evicted blocks of a store wait for its readers, the hand passes over its other blocks, and
//! makes no room for them. A read that takes long thus stops the exchange of the blocks of its own
//! store; other stores that share the cache go on.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::CacheOwner;
use super::reclaim::RetiredBlocks;
use super::slot::{BlockSlots, Linked};
use crate::block::{BlockRef, Frame};
use crate::memory::pool::FrameArena;

/// Cost of a block beside its frame: its entries in the ring and in its table's slots, and the
/// allocator's overhead.
pub(super) const OVERHEAD: usize = 64;
/// The hand evicts in batches of this many bytes, or of this fraction of the shard, whichever is
/// smaller. Each batch advances the epoch once.
const MAX_BATCH: usize = 256 << 10;
const BATCH_FRACTION: usize = 32;
/// The doorkeeper remembers at least this many misses.
pub(super) const MIN_REMEMBERED_MISSES: usize = 16;

/// What a block may take the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing: it is admitted to free space only.
    Free,
    /// Other blocks, once it has been missed before.
    Earned,
}

pub(super) struct CacheShard {
    capacity: usize,
    /// Bytes of the blocks and frames below.
    used: usize,
    /// Bytes of `retired`.
    retiring: usize,
    /// The blocks that readers can find, in the order in which the hand visits them.
    ring: Vec<Option<Linked>>,
    /// Empty positions in `ring`.
    empty: Vec<usize>,
    hand: usize,
    /// Bytes of blocks that the hand may still pass.
    hand_budget: usize,
    /// Misses so far; wraps around.
    misses: usize,
    /// Evicted blocks that readers may still see.
    retired: Vec<RetiredBlocks>,
    /// Free frames, for blocks that the doorkeeper admits.
    frames: Vec<Frame>,
}

/// Bytes that a frame counts against the capacity.
fn charge(memory: usize) -> usize {
    memory + OVERHEAD
}

impl CacheShard {
    pub(super) fn new(capacity: usize) -> CacheShard {
        CacheShard {
            capacity,
            used: 0,
            retiring: 0,
            ring: Vec::new(),
            empty: Vec::new(),
            hand: 0,
            hand_budget: 0,
            misses: 0,
            retired: Vec::new(),
            frames: Vec::new(),
        }
    }

    pub(super) fn admit(
        &mut self,
        arena: &Arc<FrameArena>,
        slots: &BlockSlots,
        i: usize,
        len: usize,
        place: Place,
    ) -> Option<Frame> {
        let charge = charge(Frame::memory_for(len));
        if charge > self.capacity {
            return None;
        }
        self.reclaim();
        if place == Place::Earned {
            self.misses = self.misses.wrapping_add(1);
        }
        if !self.has_space(charge) {
            if place == Place::Free {
                return None;
            }
            let last_miss = slots.mark(i, self.misses)?;
            if self.misses.wrapping_sub(last_miss) > (self.capacity / charge).max(MIN_REMEMBERED_MISSES) {
                return None;
            }
            self.advance_hand(slots.owner(), charge);
            if let Some(frame) = self.reuse(len) {
                return Some(frame);
            }
            while !self.has_space(charge) {
                self.used -= self::charge(self.frames.pop()?.memory());
            }
        }
        Frame::new_in(arena, len)
    }

    pub(super) fn insert(&mut self, slots: &Arc<BlockSlots>, i: usize, block: &BlockRef) {
        let charge = charge(block.memory());
        if !self.has_space(charge) {
            return;
        }
        let position = self.empty.last().copied().unwrap_or(self.ring.len());
        if !block.set_position(position) {
            return;
        }
        let Some(linked) = slots.link(i, block.clone()) else { return };
        self.used += charge;
        slots.owner().used.fetch_add(charge, Ordering::Relaxed);
        match self.empty.pop() {
            Some(position) => self.ring[position] = Some(linked),
            None => self.ring.push(Some(linked)),
        }
    }

    fn has_space(&self, charge: usize) -> bool {
        self.capacity.checked_sub(self.used).is_some_and(|free| free >= charge)
    }

    /// Changes the limit. If it is exceeded, evicts blocks that were not read since the hand's last
    /// visit, and then others; to free whole `pages`, those that are last in memory instead.
    /// Returns whether it had to evict any.
    pub(super) fn set_capacity(&mut self, capacity: usize, pages: bool) -> bool {
        self.capacity = capacity;
        if self.used <= capacity {
            return false;
        }
        self.reclaim();
        self.free_frames();
        let excess = (self.used - self.retiring).saturating_sub(capacity);
        let evicted = if pages { self.take_last(excess) } else { self.take_unread(excess) };
        let evicts = !evicted.is_empty();
        self.retire(evicted);
        self.reclaim();
        self.free_frames();
        evicts
    }

    /// Takes blocks of `excess` bytes from the ring that were not read since the hand's last visit,
    /// and then others.
    fn take_unread(&mut self, mut excess: usize) -> Vec<Linked> {
        let mut taken = Vec::new();
        // The second round finds no block that was read since.
        for _ in 0..2 * self.ring.len() {
            if excess == 0 {
                break;
            }
            let position = self.hand;
            self.hand = (self.hand + 1) % self.ring.len();
            if let Some(linked) = self.ring[position].take_if(|linked| !linked.block().take_referenced()) {
                excess = excess.saturating_sub(charge(linked.block().memory()));
                taken.push(linked);
                self.empty.push(position);
            }
        }
        taken
    }

    /// Takes the blocks of `excess` bytes from the ring that are last in memory, and a part of all:
    /// each time, all are put in order.
    fn take_last(&mut self, excess: usize) -> Vec<Linked> {
        if excess == 0 {
            return Vec::new();
        }
        let mut excess = excess.max(self.used / BATCH_FRACTION);
        let ring = self.ring.iter().enumerate();
        let blocks = ring.filter_map(|(position, linked)| Some((linked.as_ref()?.address(), position)));
        let mut blocks: Vec<(usize, usize)> = blocks.collect();
        blocks.sort_unstable_by_key(|block| Reverse(*block));
        let mut taken = Vec::new();
        for (_, position) in blocks {
            if excess == 0 {
                break;
            }
            if let Some(linked) = self.ring[position].take() {
                excess = excess.saturating_sub(charge(linked.block().memory()));
                taken.push(linked);
                self.empty.push(position);
            }
        }
        taken
    }

    /// Frees frames until the limit is kept.
    fn free_frames(&mut self) {
        while self.used > self.capacity
            && let Some(frame) = self.frames.pop()
        {
            self.used -= charge(frame.memory());
        }
    }

    /// Whether evicted blocks of a store wait for its readers.
    fn is_retiring(&self, owner: &Arc<CacheOwner>) -> bool {
        self.retired.iter().any(|retired| Arc::ptr_eq(retired.owner(), owner))
    }

    /// Allows the hand to pass another `charge` bytes, for a block of `owner`. It moves once that
    /// is enough for a batch and the last batch is used up. The caller may be pinned, so blocks
    /// evicted now become free for a later miss.
    fn advance_hand(&mut self, owner: &Arc<CacheOwner>, charge: usize) {
        self.hand_budget = (self.hand_budget + charge).min(self.capacity);
        let batch = (self.capacity / BATCH_FRACTION).min(MAX_BATCH).max(charge);
        if self.hand_budget < batch || !self.frames.is_empty() || self.is_retiring(owner) {
            return;
        }
        let mut evicted = Vec::new();
        for _ in 0..self.ring.len() {
            let position = self.hand;
            self.hand = (self.hand + 1) % self.ring.len();
            let Some(linked) = &self.ring[position] else { continue };
            let charge = self::charge(linked.block().memory());
            self.hand_budget = self.hand_budget.saturating_sub(charge);
            if !self.is_retiring(linked.owner()) && !linked.block().take_referenced() {
                evicted.extend(self.ring[position].take());
                self.empty.push(position);
            }
            if self.hand_budget == 0 {
                break;
            }
        }
        self.retire(evicted);
    }

    /// Takes blocks from their slots. They are free once no reader of their stores can see them.
    fn retire(&mut self, mut evicted: Vec<Linked>) {
        self.retiring += evicted.iter().map(|linked| charge(linked.block().memory())).sum::<usize>();
        let address = |linked: &Linked| Arc::as_ptr(linked.owner()).addr();
        evicted.sort_unstable_by_key(address);
        while let Some(last) = evicted.last() {
            let owner = Arc::clone(last.owner());
            let first = evicted.partition_point(|linked| address(linked) < Arc::as_ptr(&owner).addr());
            // The usual case, of one store, takes no other allocation.
            let unlinked = match first {
                0 => std::mem::take(&mut evicted).into_iter().map(Linked::unlink).collect(),
                _ => evicted.drain(first..).map(Linked::unlink).collect(),
            };
            self.retired.push(RetiredBlocks::new(&owner, unlinked));
        }
    }

    /// Turns evicted blocks that no reader can see any more into free frames.
    fn reclaim(&mut self) {
        let mut kept = 0;
        while kept < self.retired.len() {
            let retired = self.retired.swap_remove(kept);
            let owner = Arc::clone(retired.owner());
            match retired.free() {
                Ok(blocks) => {
                    for block in blocks {
                        let charge = charge(block.memory());
                        owner.used.fetch_sub(charge, Ordering::Relaxed);
                        self.retiring -= charge;
                        match block.into_frame() {
                            Some(frame) => self.frames.push(frame),
                            None => self.used -= charge,
                        }
                    }
                }
                Err(retired) => {
                    self.retired.push(retired);
                    let last = self.retired.len() - 1;
                    self.retired.swap(kept, last);
                    kept += 1;
                }
            }
        }
    }

    /// Takes the last frame that fits a block of `len` bytes, among the last 8.
    fn reuse(&mut self, len: usize) -> Option<Frame> {
        let position = (0..self.frames.len()).rev().take(8).find(|&position| self.frames[position].suits(len))?;
        let frame = self.frames.swap_remove(position);
        self.used -= charge(frame.memory());
        Some(frame)
    }

    /// Evicts those of the blocks at these positions that are of a table. Others may have taken
    /// their places.
    pub(super) fn forget(&mut self, slots: &BlockSlots, positions: impl ExactSizeIterator<Item = usize>) {
        let mut evicted = Vec::with_capacity(positions.len());
        for position in positions {
            let entry = self.ring.get_mut(position);
            if let Some(linked) = entry.and_then(|entry| entry.take_if(|linked| linked.is_in(slots))) {
                self.empty.push(position);
                evicted.push(linked);
            }
        }
        if evicted.is_empty() {
            return;
        }
        self.retire(evicted);
        self.reclaim();
        // These may be more than the next blocks need.
        for frame in self.frames.drain(..) {
            self.used -= charge(frame.memory());
        }
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Evicts everything.
    pub(super) fn close(&mut self) {
        let all = self.ring.drain(..).flatten().collect();
        self.empty.clear();
        self.retire(all);
        self.reclaim();
        self.frames.clear();
    }
}
