//! [`BlockCache`]: data blocks kept in memory, within a limit of bytes.
//!
//! Readers find a block through its table's [`Slots`] and take no lock. What is here decides which blocks stay.
//!
//! As long as there is room every block is taken in, but for moments in which the memory for it is still being made ready. When there is
//! none left, it is a clock with a door. The door: a block is let in if it was asked for before, no more misses ago than there are
//! blocks. The clock: each block that is let in pays for its own length of the hand's way,
//! on which blocks stay that were asked for since the hand last came by, and the others are evicted; it comes in if their room is
//! enough. So a stream of blocks that are asked for once pushes out nothing, what was of use and is no more goes as soon as something
//! else is asked for again and again, and where no block is better than others few are exchanged.
//!
//! The limit holds for everything that the cache has hold of: blocks in slots, evicted ones that some pinned reader may still see,
//! and frames that wait for the next block. If pinned readers keep too many evicted blocks from being freed, new blocks are not
//! taken in. A block that somebody else holds by a count when it is evicted is theirs from then on.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::slot::{Linked, Retired, Slots, Unlinked};
use crate::memory::epoch::Epoch;
use crate::memory::pool::{Arena, Lasting};
use crate::sorted::block::{BlockRef, Frame};

const MAX_SHARDS: usize = 16;
/// A smaller cache has fewer shards, so that each still holds many blocks.
const MIN_SHARD_BYTES: usize = 256 << 10;
/// What a block costs beside its frame: its places in the ring and in its table's slots, and what the allocator takes.
const OVERHEAD: usize = 64;
/// The hand goes over so many bytes at a time, or this part of all: an epoch begins with each batch of evicted blocks.
const STRIDE: usize = 256 << 10;
const STRIDE_PART: usize = 32;
/// Of so many misses the door knows at least.
const SHORTEST_MEMORY: usize = 16;

/// The cache of a store. A lock guards each shard and is held while a block is taken in; hits take none. Capacity 0 keeps nothing.
pub(crate) struct BlockCache {
    epoch: Arc<Epoch>,
    arena: Arc<Arena>,
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
    /// Bytes of blocks that the hand may go over.
    way: usize,
    /// Blocks that were asked for and were not there.
    misses: usize,
    /// Evicted blocks, oldest first.
    retired: VecDeque<Retired>,
    /// Bytes of them.
    retired_bytes: usize,
    /// Room for blocks that the door lets in.
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
        BlockCache { epoch, arena: Arena::new(capacity), shards: (0..count).map(|_| shard()).collect(), capacity }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that the cache has hold of.
    pub(crate) fn usage(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().used).sum()
    }

    /// Slots for the `len` blocks of table `number`.
    pub(super) fn slots(&self, number: u64, len: usize, lasting: &Arc<Lasting>) -> Arc<Slots> {
        Arc::new(Slots::new(Arc::clone(&self.epoch), number, len, lasting))
    }

    /// A frame for the block at position `i` of a table, of `len` bytes, trailer included, if it is to be [inserted](BlockCache::insert) when
    /// it has been read.
    pub(super) fn admit(&self, slots: &Slots, i: usize, len: usize) -> Option<Frame> {
        self.shard(slots, i).lock().admit(&self.epoch, &self.arena, slots, i, len)
    }

    /// Takes in the block at position `i` of a table, if there is still room.
    pub(super) fn insert(&self, slots: &Arc<Slots>, i: usize, block: &BlockRef) {
        self.shard(slots, i).lock().insert(slots, i, block);
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
            way: 0,
            misses: 0,
            retired: VecDeque::new(),
            retired_bytes: 0,
            frames: Vec::new(),
        }
    }

    fn admit(&mut self, epoch: &Epoch, arena: &Arc<Arena>, slots: &Slots, i: usize, len: usize) -> Option<Frame> {
        let charge = charge(Frame::memory_for(len));
        if charge > self.capacity {
            return None;
        }
        self.misses = self.misses.wrapping_add(1);
        self.reclaim(epoch);
        if !self.has_room(charge) {
            let last_time = slots.mark(i, self.misses)?;
            if self.misses.wrapping_sub(last_time) > self.ring.len().max(SHORTEST_MEMORY) {
                return None;
            }
            self.pay(epoch, charge);
            if let Some(frame) = self.reuse(len) {
                return Some(frame);
            }
            while !self.has_room(charge) {
                self.used -= self::charge(self.frames.pop()?.memory());
            }
        }
        Frame::new_in(arena, len)
    }

    fn insert(&mut self, slots: &Arc<Slots>, i: usize, block: &BlockRef) {
        let charge = charge(block.memory());
        if !self.has_room(charge) {
            return;
        }
        let Some(linked) = slots.link(i, block.clone()) else { return };
        self.used += charge;
        match self.empty.pop() {
            Some(place) => self.ring[place] = Some(linked),
            None => self.ring.push(Some(linked)),
        }
    }

    fn has_room(&self, charge: usize) -> bool {
        self.capacity - self.used >= charge
    }

    /// Pays for `charge` bytes of the hand's way. It goes when there is enough for a batch, and no room left of the last one. Whoever
    /// is here is pinned, so that what is evicted now is free for the next one who comes.
    fn pay(&mut self, epoch: &Epoch, charge: usize) {
        self.way = (self.way + charge).min(self.capacity);
        let stride = (self.capacity / STRIDE_PART).min(STRIDE).max(charge);
        if self.way < stride || !self.frames.is_empty() || !self.retired.is_empty() {
            return;
        }
        let mut evicted = Vec::new();
        for _ in 0..self.ring.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.ring.len();
            let Some(linked) = &self.ring[place] else { continue };
            let charge = self::charge(linked.block().memory());
            self.way = self.way.saturating_sub(charge);
            if !linked.block().take_referenced() {
                evicted.extend(self.ring[place].take().map(Linked::unlink));
                self.empty.push(place);
                self.retired_bytes += charge;
            }
            if self.way == 0 {
                break;
            }
        }
        if !evicted.is_empty() {
            self.retired.push_back(Retired::new(epoch, evicted));
        }
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
            shard.frames.clear();
        }
        // A value or a cursor that goes on keeps its block, and with it the arena, but nothing of what is free there.
        self.arena.discard_free();
    }
}

#[cfg(test)]
mod tests;
