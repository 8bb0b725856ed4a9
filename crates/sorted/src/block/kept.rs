//! [`CursorBlock`]: a data block together with the owner of its bytes.

use std::ptr::NonNull;
use std::sync::Arc;

use super::Block;
use super::frame::BlockRef;
use super::view::BlockHeader;
use crate::format::Decoded;
use crate::vfs::Mapping;

/// A block and what keeps it in memory. Cursors read every entry through it, so the address of the
/// bytes is resolved once, when it is made.
pub struct CursorBlock {
    header: BlockHeader,
    /// Borrowed from `owner`, as in `Block`. A raw pointer, because a reference must not outlive
    /// the owner even for the moment in which a function drops both.
    buffer: NonNull<[u8]>,
    owner: Owner,
}

/// What keeps a block's bytes alive.
enum Owner {
    Frame(#[expect(dead_code, reason = "held for the bytes")] BlockRef),
    File(Arc<dyn Mapping>),
}

// SAFETY: the bytes do not change while the owner lives, and both kinds of owner are `Send` and
// `Sync`.
unsafe impl Send for CursorBlock {}
// SAFETY: as above.
unsafe impl Sync for CursorBlock {}

impl CursorBlock {
    /// The block of `len` bytes that begins at `start` in a mapped file.
    pub fn in_file(file: Arc<dyn Mapping>, start: usize, len: usize) -> Decoded<CursorBlock> {
        let block = Block::decode(file.bytes().get(start..).unwrap_or_default(), len)?;
        let (header, buffer) = (block.header, block.buffer().into());
        Ok(CursorBlock { header, buffer, owner: Owner::File(file) })
    }

    #[inline]
    pub fn block(&self) -> Block<'_> {
        // SAFETY: the bytes belong to `owner`, which lives as long as the result. A counted frame
        // neither moves nor changes. A file behind an `Arc` does not move, and while this count
        // exists nobody has exclusive access to it.
        Block::new(self.header, unsafe { self.buffer.as_ref() })
    }

    /// The mapped file that holds the block, if it is in one.
    pub fn into_file(self) -> Option<Arc<dyn Mapping>> {
        match self.owner {
            Owner::Frame(_) => None,
            Owner::File(file) => Some(file),
        }
    }
}

impl From<BlockRef> for CursorBlock {
    fn from(frame: BlockRef) -> CursorBlock {
        let block = frame.block();
        CursorBlock { header: block.header, buffer: block.buffer().into(), owner: Owner::Frame(frame) }
    }
}
