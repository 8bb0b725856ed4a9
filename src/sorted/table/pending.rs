//! [`PendingReads`]: point reads of several keys that must read blocks from files.
//!
//! They are done in the order of the files, so that each block is read once. When one of them would have to wait for the device, the file
//! system is asked for its block and for those of the next keys, and from then on for one more whenever one has been read: the device has
//! many requests at a time. As long as nothing has to be waited for, nothing is asked for.

use super::fetch::ReadHint;
use super::reader::{Probe, TableHit};
use crate::error::Result;
use crate::memory::epoch::Epoch;
use crate::report::explain::Untraced;
use crate::sorted::block::BlockRef;

/// So far ahead blocks are asked for, in keys and in bytes: what was asked for should still be in memory when its turn comes.
const KEYS_AHEAD: usize = 128;
const BYTES_AHEAD: u64 = 8 << 20;

/// Number of a table and position of a block in it.
pub(super) type Place = (u64, usize);

/// Probes that have been located, each with its key's position in the batch.
#[derive(Default)]
pub(crate) struct PendingReads<'k>(Vec<(usize, Probe<'k>)>);

impl<'k> PendingReads<'k> {
    pub(crate) fn push(&mut self, i: usize, probe: Probe<'k>) {
        self.0.push((i, probe));
    }

    /// Finishes them all, and tells `end` what each has come to.
    pub(crate) fn finish(self, epoch: &Epoch, mut end: impl FnMut(usize, Option<TableHit<'_>>)) -> Result<()> {
        let PendingReads(mut probes) = self;
        probes.sort_by_key(|(_, probe)| probe.place());
        let mut blocks = BlockSource::new(&probes);
        for (turn, &(i, probe)) in probes.iter().enumerate() {
            blocks.turn = turn;
            epoch.pin(|pin| {
                end(i, probe.finish(pin, Some(&mut blocks), &mut Untraced)?);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// How these reads come to their blocks.
pub(crate) struct BlockSource<'b> {
    probes: &'b [(usize, Probe<'b>)],
    /// Position of the one whose turn it is.
    turn: usize,
    /// The block that was read last, for the next key.
    last: Option<(Place, BlockRef)>,
    /// Whether a read has had to wait.
    has_waited: bool,
    /// Behind the last probe whose block has been asked for.
    asked: usize,
    /// Bytes of blocks that have been asked for and not been read.
    under_way: u64,
}

impl<'b> BlockSource<'b> {
    fn new(probes: &'b [(usize, Probe<'b>)]) -> BlockSource<'b> {
        BlockSource { probes, turn: 0, last: None, has_waited: false, asked: 0, under_way: 0 }
    }

    /// The block at `place`: the last one, or what `read` gives.
    pub(super) fn get_or(
        &mut self,
        place: Place,
        read: impl FnOnce(ReadHint<'_>) -> Result<BlockRef>,
    ) -> Result<BlockRef> {
        if let Some((last, block)) = &self.last
            && *last == place
        {
            return Ok(block.clone());
        }
        // First, so that its frame is used again.
        self.last = None;
        let is_last = self.probes.last().is_none_or(|(_, last)| last.place() == place);
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
            self.under_way = self.under_way.saturating_sub(self.probes[self.turn].1.block_len());
        }
        self.last = Some((place, block.clone()));
        Ok(block)
    }

    /// Asks for blocks from the one on whose turn it is, as far ahead as may be, and have not been asked for.
    fn ask(&mut self) {
        if self.asked <= self.turn {
            (self.asked, self.under_way) = (self.turn, 0);
        }
        let ahead = self.probes.len().min(self.turn + KEYS_AHEAD);
        while self.asked < ahead && self.under_way < BYTES_AHEAD {
            let probe = &self.probes[self.asked].1;
            let before = self.asked.checked_sub(1).filter(|&before| before >= self.turn);
            if before.is_none_or(|before| self.probes[before].1.place() != probe.place()) {
                probe.will_need();
                self.under_way += probe.block_len();
            }
            self.asked += 1;
        }
    }
}
