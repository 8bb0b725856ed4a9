//! [`PlannedReads`]: reads of single blocks in file order, and how far ahead they prefetch.

use super::fetch::ReadHint;
use crate::block::BlockRef;
use crate::error::Result;

/// Limits of prefetching, in keys and in bytes: a prefetched block should still be in memory when
/// it is read.
const KEYS_AHEAD: usize = 128;
const BYTES_AHEAD: u64 = 8 << 20;

/// Number of a table and position of a block in it.
pub(crate) type BlockAddress = (u64, usize);

/// A read of one block.
pub trait PlannedRead {
    fn address(&self) -> BlockAddress;
    /// Bytes of the stored block.
    fn block_len(&self) -> u64;
    /// Tells the file system that the block will be read soon.
    fn will_need(&self);
}

/// Reads that are done one after the other. Provides their blocks.
pub struct PlannedReads<'b, R> {
    reads: &'b [(usize, R)],
    /// Position of the current read.
    turn: usize,
    /// The block read last, for the next key.
    last: Option<(BlockAddress, BlockRef)>,
    /// Whether a read has waited for the device.
    has_waited: bool,
    /// Position after the last read whose block was prefetched.
    prefetched: usize,
    /// Bytes of blocks that were prefetched and not yet read.
    in_flight_bytes: u64,
}

impl<'b, R: PlannedRead> PlannedReads<'b, R> {
    pub(super) fn new(reads: &'b [(usize, R)]) -> PlannedReads<'b, R> {
        PlannedReads { reads, turn: 0, last: None, has_waited: false, prefetched: 0, in_flight_bytes: 0 }
    }

    /// Makes the read at position `turn` the current one.
    pub(super) fn begin(&mut self, turn: usize) {
        self.turn = turn;
    }

    /// The block at `address`: the one read last, or what `read` returns.
    pub(super) fn get_or(
        &mut self,
        address: BlockAddress,
        read: impl FnOnce(ReadHint<'_>) -> Result<BlockRef>,
    ) -> Result<BlockRef> {
        if let Some((last, block)) = &self.last
            && *last == address
        {
            return Ok(block.clone());
        }
        // Dropped first, so that `read` can reuse its frame.
        self.last = None;
        let is_last = self.reads.last().is_none_or(|(_, last)| last.address() == address);
        let block = if self.has_waited {
            self.prefetch();
            read(ReadHint::None)?
        } else if is_last {
            read(ReadHint::None)?
        } else {
            read(ReadHint::Batch(&mut || {
                self.has_waited = true;
                self.prefetch();
            }))?
        };
        if self.turn < self.prefetched {
            self.in_flight_bytes = self.in_flight_bytes.saturating_sub(self.reads[self.turn].1.block_len());
        }
        self.last = Some((address, block.clone()));
        Ok(block)
    }

    /// Prefetches blocks of the current and the next reads, within the limits.
    fn prefetch(&mut self) {
        if self.prefetched <= self.turn {
            (self.prefetched, self.in_flight_bytes) = (self.turn, 0);
        }
        let ahead = self.reads.len().min(self.turn + KEYS_AHEAD);
        while self.prefetched < ahead && self.in_flight_bytes < BYTES_AHEAD {
            let probe = &self.reads[self.prefetched].1;
            let before = self.prefetched.checked_sub(1).filter(|&before| before >= self.turn);
            if before.is_none_or(|before| self.reads[before].1.address() != probe.address()) {
                probe.will_need();
                self.in_flight_bytes += probe.block_len();
            }
            self.prefetched += 1;
        }
    }
}
