//! [`PlannedReads`]: reads of single blocks, in the order of the files, and how far ahead of them the
//! file system is asked for blocks.

use super::fetch::ReadHint;
use crate::error::Result;
use crate::sorted::block::BlockRef;

/// So far ahead blocks are asked for, in keys and in bytes: what was asked for should still be in memory when its turn comes.
const KEYS_AHEAD: usize = 128;
const BYTES_AHEAD: u64 = 8 << 20;

/// Number of a table and position of a block in it.
pub(crate) type BlockAddress = (u64, usize);

/// A read of one block.
pub(crate) trait PlannedRead {
    fn address(&self) -> BlockAddress;
    /// Bytes of the stored block.
    fn block_len(&self) -> u64;
    /// Tells the file system that the block will be read soon.
    fn will_need(&self);
}

/// Reads that are done one after the other, and the blocks that they have in common.
pub(crate) struct PlannedReads<'b, R> {
    reads: &'b [(usize, R)],
    /// Position of the one whose turn it is.
    turn: usize,
    /// The block that was read last, for the next key.
    last: Option<(BlockAddress, BlockRef)>,
    /// Whether a read has had to wait.
    has_waited: bool,
    /// Behind the last probe whose block has been asked for.
    asked: usize,
    /// Bytes of blocks that have been asked for and not been read.
    under_way: u64,
}

impl<'b, R: PlannedRead> PlannedReads<'b, R> {
    pub(super) fn new(reads: &'b [(usize, R)]) -> PlannedReads<'b, R> {
        PlannedReads { reads, turn: 0, last: None, has_waited: false, asked: 0, under_way: 0 }
    }

    /// From here on it is the turn of the read at that position.
    pub(super) fn begin(&mut self, turn: usize) {
        self.turn = turn;
    }

    /// The block at `address`: the last one, or what `read` gives.
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
        // First, so that its frame is used again.
        self.last = None;
        let is_last = self.reads.last().is_none_or(|(_, last)| last.address() == address);
        let block = if self.has_waited {
            self.ask();
            read(ReadHint::None)?
        } else if is_last {
            read(ReadHint::None)?
        } else {
            read(ReadHint::Batch(&mut || {
                self.has_waited = true;
                self.ask();
            }))?
        };
        if self.turn < self.asked {
            self.under_way = self.under_way.saturating_sub(self.reads[self.turn].1.block_len());
        }
        self.last = Some((address, block.clone()));
        Ok(block)
    }

    /// Asks for blocks from the one on whose turn it is, as far ahead as may be, and have not been asked for.
    fn ask(&mut self) {
        if self.asked <= self.turn {
            (self.asked, self.under_way) = (self.turn, 0);
        }
        let ahead = self.reads.len().min(self.turn + KEYS_AHEAD);
        while self.asked < ahead && self.under_way < BYTES_AHEAD {
            let probe = &self.reads[self.asked].1;
            let before = self.asked.checked_sub(1).filter(|&before| before >= self.turn);
            if before.is_none_or(|before| self.reads[before].1.address() != probe.address()) {
                probe.will_need();
                self.under_way += probe.block_len();
            }
            self.asked += 1;
        }
    }
}
