//! [`RetiredBlocks`]: evicted blocks, until no reader can see them any more.

use std::mem::ManuallyDrop;

use crate::memory::epoch::Epoch;
use crate::sorted::block::BlockRef;

/// A block that readers can no longer find, but may have found before. Dropping it leaks the block.
pub(super) struct Unlinked(ManuallyDrop<BlockRef>);

impl Unlinked {
    pub(super) fn new(block: ManuallyDrop<BlockRef>) -> Unlinked {
        Unlinked(block)
    }
}

/// Unlinked blocks, and the first epoch whose readers cannot have found them.
pub(super) struct RetiredBlocks {
    since: u64,
    blocks: Vec<Unlinked>,
}

impl RetiredBlocks {
    pub(super) fn new(epoch: &Epoch, blocks: Vec<Unlinked>) -> RetiredBlocks {
        RetiredBlocks { since: epoch.advance(), blocks }
    }

    /// The blocks, once no reader can see them any more.
    pub(super) fn free(self, epoch: &Epoch) -> Result<impl Iterator<Item = BlockRef>, RetiredBlocks> {
        // `epoch` must be the one in which they were retired; a cache has only one.
        if epoch.oldest() < self.since {
            return Err(self);
        }
        Ok(self.blocks.into_iter().map(|Unlinked(block)| ManuallyDrop::into_inner(block)))
    }
}
