//! [`Mapped`]: a table's file in memory, from which blocks are read in place.
//!
//! The first read of a block is an ordinary one, from the file: it verifies the checksum, and has an error to return if the disk fails. From
//! then on a bit says that the block is good, and it is looked at where it stands in the mapping, which shows the same pages of the
//! system's memory. So each block is verified once while the table is open. A block that does not verify is never marked.
//!
//! Only blocks that are stored as they are can be looked at in place. One that is compressed after all, in a table that says
//! of itself that it has none, is never marked either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::footer::Handle;
use super::index::Index;
use crate::format::Decoded;
use crate::sorted::block::{KeptBlock, LentBlock, prefetch_block};
use crate::vfs::{Mapping, ReadableFile};

/// So many tables of a store are mapped at once. Linux lets a process have 65,530 mappings by default, and the rest of the program needs
/// some too. LevelDB maps 1,000.
const MOST: usize = 16 << 10;

/// Whether tables are mapped, and how many are.
#[derive(Clone, Debug, Default)]
pub(super) struct Permit(Option<Arc<()>>);

impl Permit {
    pub(super) fn new(wanted: bool) -> Permit {
        Permit(wanted.then(Arc::default))
    }

    /// One for another table, if there may be another one. Two that are asked for at once may exceed the limit by one.
    fn another(&self) -> Option<Permit> {
        let count = self.0.as_ref()?;
        (Arc::strong_count(count) <= MOST).then(|| self.clone())
    }
}

pub(super) struct Mapped {
    file: Arc<dyn Mapping>,
    /// A bit for each block.
    verified: Box<[AtomicU64]>,
    _permit: Permit,
}

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// Where a block stands in memory.
#[derive(Clone, Copy)]
pub(super) struct InPlace<'p> {
    file: &'p Arc<dyn Mapping>,
    /// What the file holds from the block on.
    room: &'p [u8],
    start: usize,
    len: usize,
}

impl Mapped {
    /// Maps the file of a table of `size` bytes with `blocks` data blocks, if `permit` allows one
    /// more and the system can.
    pub(super) fn new(permit: &Permit, file: &dyn ReadableFile, size: u64, blocks: usize) -> Option<Mapped> {
        let permit = permit.another()?;
        // SAFETY: a table's file is written once, under a name that is used once, and looked into when it is complete. From then on tamis only
        // reads it, until it removes its name. That nobody else writes to it is asked of whoever chooses `Options::mmap_reads`: if
        // somebody does, what happens is not defined.
        let file = unsafe { file.map() }?;
        let verified = (0..blocks.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        (file.bytes().len() as u64 == size).then_some(Mapped { file, verified, _permit: permit })
    }

    /// Bytes that this takes in memory beside the mapped pages, which are the system's.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.verified)
    }

    /// Whether the block at position `i` can be looked at in place.
    #[inline]
    pub(super) fn is_verified(&self, i: usize) -> bool {
        // Relaxed, for nothing was written that the bit would tell of: the file's bytes do not change, and somebody has looked at them.
        self.verified.get(i / BITS).is_some_and(|word| word.load(Ordering::Relaxed) >> (i % BITS) & 1 == 1)
    }

    /// The block at position `i`, if it can be looked at in place.
    #[inline]
    pub(super) fn get<'p>(&'p self, index: &Index, i: usize) -> Option<InPlace<'p>> {
        if !self.is_verified(i) {
            return None;
        }
        let Handle { offset, len } = index.handle(i);
        let start = usize::try_from(offset).ok()?;
        Some(InPlace { file: &self.file, room: self.file.bytes().get(start..)?, start, len: len as usize })
    }

    /// Notes that the block at position `i` has been read, stands in the file as it is, and is good.
    pub(super) fn set_verified(&self, i: usize) {
        if let Some(word) = self.verified.get(i / BITS) {
            word.fetch_or(1 << (i % BITS), Ordering::Relaxed);
        }
    }

    /// Says that what the file holds between these offsets will be read soon.
    pub(super) fn will_need(&self, start: u64, end: u64) {
        if let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end)) {
            self.file.will_need(start..end);
        }
    }
}

impl<'p> InPlace<'p> {
    /// Brings nearer what is looked at first.
    #[inline]
    pub(super) fn prefetch(self) {
        prefetch_block(self.room);
    }

    /// The block, which a checksum has vouched for; its front is looked at all the same, as that of every block.
    #[inline]
    pub(super) fn block(self) -> Decoded<LentBlock<'p>> {
        LentBlock::in_file(self.file, self.start, self.len)
    }

    /// The block, for somebody who may outlive the table. `file` may be a reference to the same mapping that has done its service.
    pub(super) fn kept(self, file: Option<Arc<dyn Mapping>>) -> Decoded<KeptBlock> {
        let file = file.filter(|file| Arc::ptr_eq(file, self.file)).unwrap_or_else(|| Arc::clone(self.file));
        KeptBlock::in_file(file, self.start, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_tables_are_mapped_than_a_process_can_bear() {
        assert!(Permit::new(false).another().is_none());
        let all = Permit::new(true);
        let mut given: Vec<Permit> = std::iter::from_fn(|| all.another()).collect();
        assert_eq!(given.len(), MOST);
        given.pop();
        given.extend(all.another());
        assert_eq!(given.len(), MOST);
    }
}
