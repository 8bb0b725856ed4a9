//! [`PendingReads`]: point reads of several keys whose blocks must come from files.
//!
//! Reads are done in file order, so that each block is read once. When a read would first wait for
//! the device, its block and those of the next keys are prefetched. From then on each read
//! prefetches one more, so that the device has many requests in flight. Nothing is prefetched
//! before.

use super::fetch::ReadHint;
use super::reader::{Probe, TableHit};
use crate::error::Result;
use crate::memory::epoch::Epoch;
use crate::report::explain::Untraced;
use crate::sorted::block::BlockRef;

/// Limits of prefetching, in keys and in bytes: a prefetched block should still be in memory when
/// it is read.
const KEYS_AHEAD: usize = 128;
const BYTES_AHEAD: u64 = 8 << 20;

/// Number of a table and position of a block in it.
pub(super) type Place = (u64, usize);

/// Located probes, each with its key's position in the batch.
#[derive(Default)]
pub(crate) struct PendingReads<'k>(Vec<(usize, Probe<'k>)>);

impl<'k> PendingReads<'k> {
    pub(crate) fn push(&mut self, i: usize, probe: Probe<'k>) {
        self.0.push((i, probe));
    }

    /// Finishes all reads and calls `end` with each result.
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

/// Provides the blocks of these reads.
pub(crate) struct BlockSource<'b> {
    probes: &'b [(usize, Probe<'b>)],
    /// Position of the current probe.
    turn: usize,
    /// The block read last, for the next key.
    last: Option<(Place, BlockRef)>,
    /// Whether a read has waited for the device.
    has_waited: bool,
    /// Position after the last probe whose block was prefetched.
    asked: usize,
    /// Bytes of blocks that were prefetched and not yet read.
    under_way: u64,
}

impl<'b> BlockSource<'b> {
    fn new(probes: &'b [(usize, Probe<'b>)]) -> BlockSource<'b> {
        BlockSource { probes, turn: 0, last: None, has_waited: false, asked: 0, under_way: 0 }
    }

    /// The block at `place`: the one read last, or what `read` returns.
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
        // Dropped first, so that `read` can reuse its frame.
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

    /// Prefetches blocks of the current and the next probes, within the limits.
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
