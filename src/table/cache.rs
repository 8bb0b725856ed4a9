//! [`BlockCache`]: data blocks kept in memory, within a limit of bytes.
//!
//! Readers find a block through its table's [`Slots`] and take no lock. What is here decides which blocks stay: a clock whose hand
//! passes over the blocks, lets those stay that were asked for since it last came by, and evicts the others. A block starts out
//! unreferenced, so that a stream of blocks that are asked for once pushes out only each other.
//!
//! The limit holds for everything that the cache has hold of: blocks in slots, evicted ones that some pinned reader may still see,
//! and frames that wait for the next block. If pinned readers keep too many evicted blocks from being freed, new blocks are not
//! taken in. A block that somebody else holds by a count when it is evicted is theirs from then on.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::slot::{Linked, Retired, Slots, Unlinked};
use crate::block::{BlockRef, Frame};
use crate::epoch::Epoch;

const MAX_SHARDS: usize = 16;
/// A smaller cache has fewer shards, so that each still holds many blocks.
const MIN_SHARD_BYTES: usize = 256 << 10;
/// What a block costs beside its frame: its places in the ring and in its table's slots, and what the allocator takes.
const OVERHEAD: usize = 64;
/// Blocks are evicted so many at a time, at most, or this part of all: an epoch begins with each batch.
const BATCH: usize = 64;
const BATCH_PART: usize = 32;
/// With so many blocks in a shard, room for the next one is made before it comes.
const AHEAD_FROM: usize = 8;

/// The cache of a store. A lock guards each shard and is held while a block is taken in; hits take none. Capacity 0 keeps nothing.
pub(crate) struct BlockCache {
    epoch: Arc<Epoch>,
    shards: Box<[Mutex<Shard>]>,
    capacity: usize,
}

struct Shard {
    capacity: usize,
    /// Bytes of all that follows.
    used: usize,
    /// The blocks that readers can find, in the order in which the hand passes over them.
    ring: Vec<Option<Linked>>,
    /// Places in `ring` that are empty.
    empty: Vec<usize>,
    hand: usize,
    /// Evicted blocks, oldest first.
    retired: VecDeque<Retired>,
    /// Bytes of them.
    retired_bytes: usize,
    /// To be used again.
    frames: Vec<Frame>,
}

/// What a frame counts for in the capacity.
fn charge(memory: usize) -> usize {
    memory + OVERHEAD
}

impl BlockCache {
    pub(crate) fn new(epoch: Arc<Epoch>, capacity: usize) -> BlockCache {
        let count = (capacity / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        let shard = || Mutex::new(Shard::new(capacity / count));
        BlockCache { epoch, shards: (0..count).map(|_| shard()).collect(), capacity }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that the cache has hold of.
    pub(crate) fn usage(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().used).sum()
    }

    /// Slots for the `len` blocks of table `number`.
    pub(super) fn slots(&self, number: u64, len: usize) -> Arc<Slots> {
        Arc::new(Slots::new(Arc::clone(&self.epoch), number, len))
    }

    /// A frame for the block at position `i` of a table, of `len` bytes, trailer included: one that was used before, if one is at hand.
    pub(super) fn frame(&self, slots: &Slots, i: usize, len: usize) -> Frame {
        let mut shard = self.shard(slots, i).lock();
        shard.reclaim(&self.epoch);
        let reused = shard.reuse(len);
        drop(shard);
        reused.unwrap_or_else(|| Frame::new(len))
    }

    /// Takes in the block at position `i` of a table, if there is room or room can be made.
    pub(super) fn insert(&self, slots: &Arc<Slots>, i: usize, block: &BlockRef) {
        self.shard(slots, i).lock().insert(&self.epoch, slots, i, block);
    }

    /// Lets go of the blocks of a table that nobody reads any more.
    pub(super) fn forget(&self, slots: &Slots) {
        for shard in &self.shards {
            shard.lock().forget(&self.epoch, slots);
        }
    }

    fn shard(&self, slots: &Slots, i: usize) -> &Mutex<Shard> {
        // Neither do neighbouring blocks share a shard, nor the first blocks of all tables.
        &self.shards[slots.number().wrapping_add(i) % self.shards.len()]
    }
}

impl Shard {
    fn new(capacity: usize) -> Shard {
        Shard {
            capacity,
            used: 0,
            ring: Vec::new(),
            empty: Vec::new(),
            hand: 0,
            retired: VecDeque::new(),
            retired_bytes: 0,
            frames: Vec::new(),
        }
    }

    fn insert(&mut self, epoch: &Epoch, slots: &Arc<Slots>, i: usize, block: &BlockRef) {
        let charge = charge(block.memory());
        if charge > self.capacity || !self.make_room(epoch, charge) {
            return;
        }
        let Some(linked) = slots.link(i, block.clone()) else { return };
        self.used += charge;
        match self.empty.pop() {
            Some(place) => self.ring[place] = Some(linked),
            None => self.ring.push(Some(linked)),
        }
        // One step ahead. Whoever evicts is pinned, so that what is evicted now is free for the next one who comes. Where only few blocks
        // have room, each is worth more than that.
        let full = self.used > self.capacity - charge && self.frames.is_empty() && self.retired.is_empty();
        if full && self.blocks() >= AHEAD_FROM {
            self.evict(epoch, 0);
        }
    }

    /// Blocks that readers can find.
    fn blocks(&self) -> usize {
        self.ring.len() - self.empty.len()
    }

    /// Whether there is room for `charge` bytes, which are no more than the capacity, if it has to be by eviction.
    fn make_room(&mut self, epoch: &Epoch, charge: usize) -> bool {
        for evict in [false, true] {
            // Unless what was evicted suffices as soon as it can be freed.
            if evict && self.used - self.retired_bytes > self.capacity - charge {
                self.evict(epoch, charge);
            }
            self.reclaim(epoch);
            while self.used > self.capacity - charge
                && let Some(frame) = self.frames.pop()
            {
                self.used -= self::charge(frame.memory());
            }
            if self.used <= self.capacity - charge {
                return true;
            }
        }
        false
    }

    /// Evicts a batch of blocks, and as many as it takes to have `least` bytes free when their time has come.
    fn evict(&mut self, epoch: &Epoch, least: usize) {
        let batch = (self.blocks() / BATCH_PART).clamp(1, BATCH);
        let mut evicted = Vec::with_capacity(batch);
        while evicted.len() < batch || self.used - self.retired_bytes > self.capacity - least {
            let Some(unlinked) = self.evict_one() else { break };
            self.retired_bytes += charge(unlinked.block().memory());
            evicted.push(unlinked);
        }
        if !evicted.is_empty() {
            self.retired.push_back(Retired::new(epoch, evicted));
        }
    }

    /// Takes out the first unreferenced block from the hand on, if there is any block. On its third way round, the hand takes any: readers
    /// may ask for blocks as fast as it passes over them.
    fn evict_one(&mut self) -> Option<Unlinked> {
        for step in 0..3 * self.ring.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.ring.len();
            let goes = |linked: &Linked| !linked.block().take_referenced() || step >= 2 * self.ring.len();
            if self.ring[place].as_ref().is_some_and(goes) {
                self.empty.push(place);
                return self.ring[place].take().map(Linked::unlink);
            }
        }
        None
    }

    /// Makes frames of the evicted blocks that no reader sees any more.
    fn reclaim(&mut self, epoch: &Epoch) {
        while let Some(retired) = self.retired.pop_front() {
            match retired.free(epoch) {
                Ok(blocks) => {
                    for block in blocks {
                        let charge = charge(block.memory());
                        self.retired_bytes -= charge;
                        match block.into_frame() {
                            Some(frame) => self.frames.push(frame),
                            None => self.used -= charge,
                        }
                    }
                }
                Err(retired) => {
                    self.retired.push_front(retired);
                    break;
                }
            }
        }
    }

    /// Takes the last frame that suits a block of `len` bytes, of the last few.
    fn reuse(&mut self, len: usize) -> Option<Frame> {
        let place = (0..self.frames.len()).rev().take(8).find(|&place| self.frames[place].suits(len))?;
        let frame = self.frames.swap_remove(place);
        self.used -= charge(frame.memory());
        Some(frame)
    }

    fn forget(&mut self, epoch: &Epoch, slots: &Slots) {
        let mut evicted = Vec::new();
        for (place, entry) in self.ring.iter_mut().enumerate() {
            if let Some(linked) = entry.take_if(|linked| linked.is_in(slots)) {
                self.empty.push(place);
                self.retired_bytes += charge(linked.block().memory());
                evicted.push(linked.unlink());
            }
        }
        if evicted.is_empty() {
            return;
        }
        self.retired.push_back(Retired::new(epoch, evicted));
        self.reclaim(epoch);
        // They may be more than the next blocks need.
        for frame in self.frames.drain(..) {
            self.used -= charge(frame.memory());
        }
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            let shard = shard.get_mut();
            let evicted: Vec<Unlinked> = shard.ring.drain(..).flatten().map(Linked::unlink).collect();
            shard.empty.clear();
            shard.retired_bytes += evicted.iter().map(|unlinked| charge(unlinked.block().memory())).sum::<usize>();
            shard.retired.push_back(Retired::new(&self.epoch, evicted));
            shard.reclaim(&self.epoch);
        }
    }
}

#[cfg(test)]
mod tests;
