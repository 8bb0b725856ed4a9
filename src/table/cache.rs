//! [`BlockCache`]: data blocks kept in memory, within a limit of bytes.

use std::sync::Arc;

use parking_lot::Mutex;

use super::clock::Clock;
use crate::block::Block;

const MAX_SHARDS: usize = 16;
/// A smaller cache has fewer shards, so that each still holds many blocks.
const MIN_SHARD_BYTES: usize = 256 << 10;
/// What an entry costs beside its block: its slot, its place in the map, the reference counts.
const OVERHEAD: usize = 128;

/// Table number and offset in its file.
type BlockId = (u64, u64);
type Shard = Mutex<Clock<BlockId, Arc<Block>>>;

/// Blocks by table number and offset. A lock guards each shard, and is held for one look-up or insertion; nothing else is locked
/// meanwhile. Capacity 0 keeps nothing.
pub(crate) struct BlockCache {
    shards: Box<[Shard]>,
    capacity: usize,
}

impl BlockCache {
    pub(crate) fn new(capacity: usize) -> BlockCache {
        let count = (capacity / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        BlockCache { shards: (0..count).map(|_| Mutex::new(Clock::new(capacity / count))).collect(), capacity }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that the cached blocks take.
    pub(crate) fn usage(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().used()).sum()
    }

    pub(super) fn get(&self, id: BlockId) -> Option<Arc<Block>> {
        self.shard(id).lock().get(&id).cloned()
    }

    pub(super) fn insert(&self, id: BlockId, block: Arc<Block>) {
        let charge = block.memory() + OVERHEAD;
        self.shard(id).lock().insert(id, block, charge);
    }

    fn shard(&self, (number, offset): BlockId) -> &Shard {
        // Neighbouring blocks should not share a shard; any odd multiplier with mixed bits does.
        let mixed = (number.rotate_left(32) ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 48) as usize % self.shards.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockBuilder;
    use crate::format::key::ValueKind;

    fn block(value_len: usize) -> Arc<Block> {
        let mut builder = BlockBuilder::new();
        builder.add(b"key", 1, ValueKind::Put, &vec![7; value_len], 0, usize::MAX);
        let mut bytes = Vec::new();
        builder.finish(&mut bytes);
        Arc::new(Block::new(bytes).unwrap())
    }

    #[test]
    fn usage_stays_within_the_capacity() {
        for capacity in [0, 1000, 100_000, 5 << 20] {
            let cache = BlockCache::new(capacity);
            let mut kept = 0;
            for i in 0..3000 {
                let id = (i % 7, i % 501 * 4096);
                cache.insert(id, block(usize::try_from(i * 7919 % 9001).unwrap()));
                kept += usize::from(cache.get(id).is_some());
                assert!(cache.usage() <= capacity);
            }
            assert_eq!(kept > 0, capacity >= 1000);
        }
    }

    #[test]
    fn the_capacity_is_used() {
        let cache = BlockCache::new(8 << 20);
        for i in 0..4000 {
            cache.insert((1, i * 4096), block(4000));
        }
        assert!(cache.usage() > 7 << 20, "{}", cache.usage());
    }

    #[test]
    fn hot_blocks_survive_a_scan_that_fills_the_cache() {
        let cache = BlockCache::new(1 << 20);
        for i in 0..20 {
            cache.insert((1, i * 4096), block(4000));
        }
        for i in 0..5000 {
            cache.insert((2, i * 4096), block(4000));
            assert!(cache.get((1, i % 20 * 4096)).is_some());
        }
    }
}
