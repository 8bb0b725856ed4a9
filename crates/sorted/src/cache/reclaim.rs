//! [`RetiredBlocks`]: evicted blocks, until no reader can see them any more.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::CacheOwner;
use crate::block::BlockRef;

/// A block that readers can no longer find, but may have found before. Dropping it leaks the block.
pub(super) struct Unlinked(ManuallyDrop<BlockRef>);

impl Unlinked {
    pub(super) fn new(block: ManuallyDrop<BlockRef>) -> Unlinked {
        Unlinked(block)
    }
}

/// Unlinked blocks of one store, and the first epoch of it whose readers cannot have found them.
pub(super) struct RetiredBlocks {
    owner: Arc<CacheOwner>,
    since: u64,
    blocks: Vec<Unlinked>,
}

impl RetiredBlocks {
    /// `blocks` must be of tables of `owner`.
    pub(super) fn new(owner: &Arc<CacheOwner>, blocks: Vec<Unlinked>) -> RetiredBlocks {
        RetiredBlocks { owner: Arc::clone(owner), since: owner.epoch.advance(), blocks }
    }

    pub(super) fn owner(&self) -> &Arc<CacheOwner> {
        &self.owner
    }

    /// The blocks, once no reader can see them any more.
    pub(super) fn free(self) -> Result<impl Iterator<Item = BlockRef>, RetiredBlocks> {
        if self.owner.epoch.oldest() < self.since {
            return Err(self);
        }
        Ok(self.blocks.into_iter().map(|Unlinked(block)| ManuallyDrop::into_inner(block)))
    }
}
