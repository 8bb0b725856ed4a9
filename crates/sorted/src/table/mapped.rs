//! [`Mapped`]: a table's file mapped into memory, from which blocks are read in place.
//!
//! The first read of a block goes through the file: it verifies the checksum and can report an I/O
//! error. It then sets the block's bit, and later reads use the mapping, which shows the same pages
//! of the page cache. Each block is therefore verified once while the table is open. A block that
//! does not verify is never marked.
//!
//! Only uncompressed blocks can be read in place. A compressed block in a table whose properties
//! state no compression is never marked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::footer::BlockHandle;
use super::index::Index;
use crate::block::{Block, CursorBlock, prefetch_block};
use crate::format::Decoded;
use crate::vfs::{Mapping, ReadableFile};

pub(super) struct Mapped {
    file: Arc<dyn Mapping>,
    /// One bit per block.
    verified: Box<[AtomicU64]>,
}

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// Position of a block in the mapping.
#[derive(Clone, Copy)]
pub(super) struct InPlace<'p> {
    file: &'p Arc<dyn Mapping>,
    /// The file's bytes from the block on.
    rest_of_file: &'p [u8],
    start: usize,
    len: usize,
}

impl Mapped {
    /// Maps the file of a table of `size` bytes with `blocks` data blocks. `None` if that is not
    /// possible.
    pub(super) fn new(file: &dyn ReadableFile, size: u64, blocks: usize) -> Option<Mapped> {
        // SAFETY: a table's file is written once, under a name that is used once, and is mapped
        // only when it is complete. From then on tamis only reads it, until it removes the name.
        // Users who choose `ReadMode::Mmap` promise that nobody else writes to it; if somebody
        // does, the behaviour is undefined.
        let file = unsafe { file.map() }?;
        let verified = (0..blocks.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        (file.bytes().len() as u64 == size).then_some(Mapped { file, verified })
    }

    /// Bytes of memory, without the mapped pages, which belong to the system.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.verified)
    }

    /// Whether the block at position `i` can be read in place.
    #[inline]
    pub(super) fn is_verified(&self, i: usize) -> bool {
        // Relaxed: the bit publishes no writes. The file's bytes do not change, and a reader has
        // verified them.
        self.verified.get(i / BITS).is_some_and(|word| word.load(Ordering::Relaxed) >> (i % BITS) & 1 == 1)
    }

    /// The block at position `i`, if it can be read in place.
    #[inline]
    pub(super) fn get<'p>(&'p self, index: &Index, i: usize) -> Option<InPlace<'p>> {
        if !self.is_verified(i) {
            return None;
        }
        let BlockHandle { offset, len } = index.handle(i);
        let start = usize::try_from(offset).ok()?;
        Some(InPlace { file: &self.file, rest_of_file: self.file.bytes().get(start..)?, start, len: len as usize })
    }

    /// Notes that the block at position `i` was read, is stored uncompressed, and verified.
    pub(super) fn set_verified(&self, i: usize) {
        if let Some(word) = self.verified.get(i / BITS) {
            word.fetch_or(1 << (i % BITS), Ordering::Relaxed);
        }
    }

    /// Hints that the file's bytes between these offsets will be read soon.
    pub(super) fn will_need(&self, start: u64, end: u64) {
        if let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end)) {
            self.file.will_need(start..end);
        }
    }
}

impl<'p> InPlace<'p> {
    /// Prefetches the part of the block that a read touches first.
    #[inline]
    pub(super) fn prefetch(self) {
        prefetch_block(self.rest_of_file);
    }

    /// The block. Its checksum has been verified; its header is still checked, as for every
    /// block.
    #[inline]
    pub(super) fn block(self) -> Decoded<Block<'p>> {
        Block::decode(self.rest_of_file, self.len)
    }

    /// The mapping that holds the block.
    pub(super) fn file(self) -> &'p Arc<dyn Mapping> {
        self.file
    }

    /// The block, for a holder that may outlive the table. `file` may be an unused reference to a
    /// mapping; it is reused if the mapping is this one.
    pub(super) fn kept(self, file: Option<Arc<dyn Mapping>>) -> Decoded<CursorBlock> {
        let file = file.filter(|file| Arc::ptr_eq(file, self.file)).unwrap_or_else(|| Arc::clone(self.file));
        CursorBlock::in_file(file, self.start, self.len)
    }
}
