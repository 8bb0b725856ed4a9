//! Data blocks of a table, from memory or from its file, for whoever keeps them.

use super::super::fetch::{ReadAhead, ReadHint};
use super::super::resident::{Resident, ResidentBlock};
use super::{Counting, Table};
use crate::block::{BlockRef, CursorBlock, Frame};
use crate::cache::Place;
use crate::compress::Compression;
use crate::error::Result;
use crate::report::stats::ReadEvent;

impl Table {
    /// The data block at position `i`, which must be less than the number of blocks, if it is in
    /// memory. The block may outlive the table. `former` is a block that is no longer needed, for
    /// reuse.
    pub(in crate::table) fn kept_block(
        &self,
        resident: &Resident,
        i: usize,
        counting: Counting,
        former: Option<CursorBlock>,
    ) -> Result<Option<CursorBlock>> {
        self.fetcher.context.epoch().pin(|pin| match self.block_in_memory(resident, i, counting, pin) {
            None => Ok(None),
            Some(ResidentBlock::Cached(block)) => Ok(Some(block.counted().into())),
            Some(ResidentBlock::Mapped(block)) => {
                let kept = block.kept(former.and_then(CursorBlock::into_file));
                kept.map(Some).map_err(|malformed| self.malformed_block(i, malformed))
            }
        })
    }

    /// Reads the data block at position `i` from the file.
    pub(in crate::table) fn read_block(
        &self,
        resident: &Resident,
        i: usize,
        fill_cache: bool,
        counting: Counting,
        hint: ReadHint<'_>,
    ) -> Result<BlockRef> {
        let place = fill_cache.then_some(Place::Earned);
        self.read_block_to(resident, i, place, counting, hint).map(|(block, _)| block)
    }

    /// Reads the data block at position `i` from the file, and keeps it in the cache if there is a
    /// `place` for it. Returns whether it did.
    #[cold]
    #[inline(never)]
    fn read_block_to(
        &self,
        resident: &Resident,
        i: usize,
        place: Option<Place>,
        counting: Counting,
        hint: ReadHint<'_>,
    ) -> Result<(BlockRef, bool)> {
        let handle = resident.index.handle(&self.fetcher, i)?;
        let cache = self.fetcher.context.cache();
        // Mapped blocks need no cache.
        let place = place.filter(|_| resident.mapped.is_none());
        let mut keep = false;
        let frame = |len| {
            let admitted = place.and_then(|place| cache.admit(&resident.slots, i, len, place));
            keep = admitted.is_some();
            admitted.unwrap_or_else(|| Frame::new(len))
        };
        let (compression, block) = self.fetcher.data_block(handle, &resident.properties, hint, frame)?;
        if let Some(mapped) = &resident.mapped
            && compression == Compression::None
        {
            mapped.set_verified(i);
        }
        if counting != Counting::Uncounted {
            self.count(ReadEvent::BlockRead);
            self.fetcher.counters.add(ReadEvent::BlockBytes, handle.stored_len());
        }
        if counting == Counting::AvoidableRead {
            self.count(ReadEvent::AvoidableRead);
            self.fetcher.counters.add(ReadEvent::AvoidableBytes, handle.stored_len());
        }
        if keep {
            cache.insert(&resident.slots, i, &block);
        }
        Ok((block, keep))
    }

    /// [`Table::read_block`] for a scan, which is charged for the block unless the cache keeps it.
    #[cold]
    #[inline(never)]
    pub(in crate::table) fn read_block_of_scan(
        &self,
        resident: &Resident,
        i: usize,
        fill_cache: bool,
        counting: Counting,
        ahead: &mut ReadAhead,
    ) -> Result<BlockRef> {
        let place = if fill_cache { ahead.place() } else { None };
        let (block, is_kept) = self.read_block_to(resident, i, place, counting, ReadHint::Scan(ahead))?;
        if !is_kept {
            ahead.hold(&self.fetcher, block.memory(), place);
        }
        Ok(block)
    }
}
