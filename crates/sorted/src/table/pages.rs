//! [`Pages`]: a block of an open table for which there is no room in memory as a whole.
//!
//! A table is opened with its whole filter and index in memory while the budget has room for them
//! (`MemoryCharge::try_resize`): asking them then costs an access to memory. Otherwise they are
//! read in pages through the block cache, where those that are used often stay.
//!
//! Opening the table reads and verifies the whole block in either case. Of a block in pages, a
//! checksum of each page stays, bound to file and offset as on disk: a page that is read again is
//! what was verified, or its block counts as damaged.
//!
//! Each time that [`READS`] pages have been read, the budget is asked again: once it has room, the
//! block is read as a whole, and stays.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fetch::{Fetcher, SHORT};
use super::footer::BlockHandle;
use crate::block::Frame;
use crate::cache::{BlockSlots, Place};
use crate::error::Result;
use crate::format::checksum::bound_crc;
use crate::memory::budget::{MemoryCharge, MemoryUse};
use crate::report::stats::ReadEvent;
use crate::sync::OnceLock;

/// Bytes of a page. Only the last one of a block is shorter.
const PAGE_LEN: usize = 4096;
/// Pages read from the file until the budget is asked again.
const READS: usize = 256;

/// What a block becomes that is in memory as a whole.
pub(super) trait Whole: Sized {
    /// What its memory is charged to.
    const USE: MemoryUse;
    /// What counts the pages that are read.
    const EVENT: ReadEvent;
    /// The rule that is broken if a page differs.
    const RULE: &str;

    /// `None` if the block is not as it was when the table was opened.
    fn decode(fetcher: &Fetcher, seed: u64, block: &[u8]) -> Option<Self>;

    /// Bytes of memory.
    fn memory(&self) -> usize;
}

/// A block to go through from end to end.
pub(super) enum WholeBlock<'r, T> {
    Resident(&'r T),
    Read(Box<T>),
}

impl<T> Deref for WholeBlock<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            WholeBlock::Resident(whole) => whole,
            WholeBlock::Read(whole) => whole,
        }
    }
}

pub(super) struct Pages<T> {
    handle: BlockHandle,
    seed: u64,
    /// Of each page.
    checksums: Box<[u32]>,
    /// The pages in the cache.
    slots: Arc<BlockSlots>,
    /// Pages read from the file.
    reads: AtomicUsize,
    /// Of the block as a whole, when in memory.
    memory: usize,
    whole: OnceLock<(T, MemoryCharge)>,
}

impl<T: Whole> Pages<T> {
    /// `block` is the verified block at `handle`, which would take `memory` bytes as a whole.
    pub(super) fn new(
        fetcher: &Fetcher,
        number: u64,
        seed: u64,
        handle: BlockHandle,
        block: &[u8],
        memory: usize,
    ) -> Pages<T> {
        let pages = block.chunks(PAGE_LEN).zip((handle.offset..).step_by(PAGE_LEN));
        let checksums: Box<[u32]> = pages.map(|(page, offset)| bound_crc(fetcher.identity, offset, page)).collect();
        let context = &fetcher.context;
        let slots = BlockSlots::new(&context.cache_owner, number, checksums.len(), &context.memory);
        let (reads, whole) = (AtomicUsize::new(0), OnceLock::new());
        Pages { handle, seed, checksums, slots: Arc::new(slots), reads, memory, whole }
    }

    /// The whole block, if there has been room for it meanwhile.
    #[inline]
    pub(super) fn whole(&self) -> Option<&T> {
        self.whole.get().map(|(whole, _)| whole)
    }

    /// Copies the bytes of the block from `at` on. Returns false if some are not in memory, and
    /// `may_read` is not set.
    pub(super) fn copy(&self, fetcher: &Fetcher, mut at: usize, mut into: &mut [u8], may_read: bool) -> Result<bool> {
        while !into.is_empty() {
            let (page, start) = (at / PAGE_LEN, at % PAGE_LEN);
            let (part, rest) = into.split_at_mut(into.len().min(PAGE_LEN - start));
            if !self.copy_cached(fetcher, page, start, part) {
                if !may_read {
                    return Ok(false);
                }
                self.read(fetcher, page, start, part)?;
            }
            (at, into) = (at + part.len(), rest);
        }
        Ok(true)
    }

    fn copy_cached(&self, fetcher: &Fetcher, page: usize, start: usize, into: &mut [u8]) -> bool {
        fetcher.context.epoch().pin(|pin| {
            let Some(frame) = self.slots.get(page, pin).map(|page| page.framed()) else { return false };
            frame.set_referenced();
            copy_from(frame.bytes(), start, into)
        })
    }

    /// Reads a page, and copies from it.
    #[cold]
    fn read(&self, fetcher: &Fetcher, page: usize, start: usize, into: &mut [u8]) -> Result<()> {
        let cache = fetcher.context.cache();
        let before = page * PAGE_LEN;
        let len = (self.handle.len as usize).saturating_sub(before).min(PAGE_LEN);
        let offset = self.handle.offset + before as u64;
        let admitted = cache.admit(&self.slots, page, len, Place::Earned);
        let keep = admitted.is_some();
        let mut frame = admitted.unwrap_or_else(|| Frame::new(len));
        let bytes = &mut frame.bytes_mut()[..len];
        fetcher.file.fill_block(bytes, offset, None, SHORT)?;
        fetcher.counters.count(T::EVENT);
        let is_as_verified = self.checksums.get(page) == Some(&bound_crc(fetcher.identity, offset, bytes));
        if !is_as_verified || !copy_from(bytes, start, into) {
            return Err(fetcher.corrupt(offset, T::RULE));
        }
        if keep {
            cache.insert(&self.slots, page, &frame.into_bytes());
        } else {
            frame.spare();
        }
        if self.reads.fetch_add(1, Ordering::Relaxed) % READS == READS - 1 {
            self.ask_for_room(fetcher);
        }
        Ok(())
    }

    /// Reads the whole block if there is room for it.
    fn ask_for_room(&self, fetcher: &Fetcher) {
        let mut charge = MemoryCharge::new(fetcher.context.budget(), T::USE, 0);
        if self.whole.get().is_none()
            && charge.try_resize(self.memory)
            // A failure is left to the pages.
            && let Ok(block) = fetcher.meta_block(self.handle)
            && let Some(whole) = T::decode(fetcher, self.seed, &block)
        {
            charge.resize(whole.memory());
            let _ = self.whole.set((whole, charge));
        }
    }

    /// The pages in the cache.
    pub(super) fn slots(&self) -> &BlockSlots {
        &self.slots
    }

    /// Bytes of memory without those of the cache. The whole block is charged apart.
    pub(super) fn memory(&self) -> usize {
        let whole = self.whole().map_or(0, T::memory);
        size_of::<Pages<T>>() + size_of_val(&*self.checksums) + self.slots.memory() + whole
    }
}

/// Fills `into` from `bytes`; false if they are too few.
fn copy_from(bytes: &[u8], start: usize, into: &mut [u8]) -> bool {
    let from = bytes.get(start..).and_then(|rest| rest.get(..into.len()));
    from.is_some_and(|from| {
        into.copy_from_slice(from);
        true
    })
}
