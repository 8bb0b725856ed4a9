//! [`KeptBlock`]: a data block together with what keeps its bytes in memory.

use std::ptr::NonNull;
use std::sync::Arc;

use super::view::BlockHeader;
use super::{Block, BlockRef};
use crate::format::Decoded;
use crate::vfs::Mapping;

/// A block for as long as this lives. A cursor looks at every entry through it: where the bytes are is found out once.
pub(crate) struct KeptBlock {
    header: BlockHeader,
    /// Lent by `owner`, as `Block` has it. No reference, because it must not outlive the owner for a moment, not even in a function
    /// that drops both.
    buffer: NonNull<[u8]>,
    owner: Owner,
}

/// What a block's bytes depend on.
enum Owner {
    Frame(#[expect(dead_code, reason = "held for the bytes")] BlockRef),
    File(Arc<dyn Mapping>),
}

// SAFETY: the bytes are not written to while the owner lives, and both keepers may go from thread to thread and be shared by threads.
unsafe impl Send for KeptBlock {}
// SAFETY: as above.
unsafe impl Sync for KeptBlock {}

impl KeptBlock {
    /// The block of `len` bytes that begins at `start` in a mapped file.
    pub(crate) fn in_file(file: Arc<dyn Mapping>, start: usize, len: usize) -> Decoded<KeptBlock> {
        Ok(LentBlock::in_file(&file, start, len)?.kept())
    }

    #[inline]
    pub(crate) fn block(&self) -> Block<'_> {
        // SAFETY: `owner` has lent the bytes, and lives as long as the result. What is behind the `Arc` of a file stays where it is, and
        // nobody has it for himself, while there is this reference to it; a frame stays where it is, and is not changed, while one counts.
        Block::new(self.header, unsafe { self.buffer.as_ref() })
    }

    /// The mapped file in which the block is, if it is in one.
    pub(crate) fn into_file(self) -> Option<Arc<dyn Mapping>> {
        match self.owner {
            Owner::Frame(_) => None,
            Owner::File(file) => Some(file),
        }
    }
}

/// A block in a mapped file, for as long as a read takes.
#[derive(Clone, Copy)]
pub(crate) struct LentBlock<'a> {
    block: Block<'a>,
    /// Lends the block's bytes.
    file: &'a Arc<dyn Mapping>,
}

impl<'a> LentBlock<'a> {
    /// The block of `len` bytes that begins at `start` in a mapped file.
    #[inline]
    pub(crate) fn in_file(file: &'a Arc<dyn Mapping>, start: usize, len: usize) -> Decoded<LentBlock<'a>> {
        let block = Block::decode(file.bytes().get(start..).unwrap_or_default(), len)?;
        Ok(LentBlock { block, file })
    }

    #[inline]
    pub(crate) fn block(&self) -> Block<'a> {
        self.block
    }

    /// The block for longer.
    pub(crate) fn kept(self) -> KeptBlock {
        let LentBlock { block, file } = self;
        KeptBlock { header: block.header, buffer: block.buffer().into(), owner: Owner::File(Arc::clone(file)) }
    }
}

impl From<BlockRef> for KeptBlock {
    fn from(frame: BlockRef) -> KeptBlock {
        let block = frame.block();
        KeptBlock { header: block.header, buffer: block.buffer().into(), owner: Owner::Frame(frame) }
    }
}
