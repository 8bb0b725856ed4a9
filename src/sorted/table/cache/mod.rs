//! [`BlockCache`]: data blocks kept in memory, within a byte limit.
//!
//! | file | what it does |
//! |---|---|
//! | `slot` | where readers find a block, without a lock |
//! | `admission` | which blocks are admitted, and which are evicted |
//! | `reclaim` | when an evicted block may be freed |
//!
//! A block lives in a `Frame` (`sorted/block/frame.rs`), whose memory is cut from a
//! [`FrameArena`].

mod admission;
mod reclaim;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;

use self::admission::CacheShard;
pub(super) use self::slot::BlockSlots;
use crate::memory::epoch::Epoch;
use crate::memory::pool::{FrameArena, TableMemory};
use crate::sorted::block::{BlockRef, Frame};

const MAX_SHARDS: usize = 16;
/// A smaller cache has fewer shards, so that each still holds many blocks.
const MIN_SHARD_BYTES: usize = 256 << 10;

/// The cache of a store. A lock guards each shard and is held while a block is admitted or
/// inserted; hits take none. Capacity 0 keeps nothing.
pub(crate) struct BlockCache {
    epoch: Arc<Epoch>,
    arena: Arc<FrameArena>,
    shards: Box<[Mutex<CacheShard>]>,
    capacity: usize,
}

impl BlockCache {
    pub(crate) fn new(epoch: Arc<Epoch>, capacity: usize) -> BlockCache {
        let count = (capacity / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        let shard = || Mutex::new(CacheShard::new(capacity / count));
        BlockCache { epoch, arena: FrameArena::new(capacity), shards: (0..count).map(|_| shard()).collect(), capacity }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that the cache holds.
    pub(crate) fn usage(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().used()).sum()
    }

    /// Slots for the `len` blocks of table `number`.
    pub(super) fn slots(&self, number: u64, len: usize, memory: &Arc<TableMemory>) -> Arc<BlockSlots> {
        Arc::new(BlockSlots::new(Arc::clone(&self.epoch), number, len, memory))
    }

    /// Returns a frame for the block at position `i` of a table, of `len` bytes with its trailer,
    /// or `None` if the block is not admitted. The caller reads the block into the frame and
    /// [inserts](BlockCache::insert) it.
    pub(super) fn admit(&self, slots: &BlockSlots, i: usize, len: usize) -> Option<Frame> {
        self.shard(slots, i).lock().admit(&self.epoch, &self.arena, slots, i, len)
    }

    /// Inserts the block at position `i` of a table, if there is still space.
    pub(super) fn insert(&self, slots: &Arc<BlockSlots>, i: usize, block: &BlockRef) {
        self.shard(slots, i).lock().insert(slots, i, block);
    }

    /// Evicts all blocks of a table that has no readers any more.
    pub(super) fn forget(&self, slots: &BlockSlots) {
        for shard in &self.shards {
            shard.lock().forget(&self.epoch, slots);
        }
    }

    fn shard(&self, slots: &BlockSlots, i: usize) -> &Mutex<CacheShard> {
        // Neighbouring blocks do not share a shard, and the first blocks of all tables do not
        // either.
        &self.shards[slots.number().wrapping_add(i) % self.shards.len()]
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            shard.get_mut().close(&self.epoch);
        }
        // A value or a cursor that outlives the cache keeps its block, and with it the arena, but
        // none of the arena's free memory.
        self.arena.discard_free();
    }
}
