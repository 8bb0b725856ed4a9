//! [`PendingReads`]: point reads of several keys that must read blocks from files.
//!
//! They are done in the order of the files, so that each block is read once. The first read that would have to wait for the device asks the
//! file system for what the next ones will read as well: then the device has many requests at a time, and all together take hardly longer
//! than one. As long as nothing has to be waited for, which is usual when files are in the system's cache, that costs nothing.

use super::fetch::Around;
use super::reader::{Probe, TableHit};
use crate::block::BlockRef;
use crate::epoch::Epoch;
use crate::error::Result;
use crate::explain::Untraced;

/// So many blocks are asked for at a time: more than a disk reads at once, and few enough that they are still in memory when their turn comes.
const AT_A_TIME: usize = 128;

/// Number of a table and position of a block in it.
pub(super) type Place = (u64, usize);

/// Probes that have been located, with what their caller calls them.
#[derive(Default)]
pub(crate) struct PendingReads<'k>(Vec<(usize, Probe<'k>)>);

impl<'k> PendingReads<'k> {
    pub(crate) fn push(&mut self, name: usize, probe: Probe<'k>) {
        self.0.push((name, probe));
    }

    /// Finishes them all, and tells `end` what each has come to.
    pub(crate) fn finish(self, epoch: &Epoch, mut end: impl FnMut(usize, Option<TableHit<'_>>)) -> Result<()> {
        let PendingReads(mut probes) = self;
        probes.sort_by_key(|(_, probe)| probe.place());
        let mut blocks = BlockReads { last: None, probes: &probes, turn: 0, asked: 0 };
        for (turn, &(name, probe)) in probes.iter().enumerate() {
            blocks.turn = turn;
            epoch.pin(|pin| {
                end(name, probe.finish(pin, Some(&mut blocks), &mut Untraced)?);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// How these reads come to their blocks.
pub(crate) struct BlockReads<'b> {
    /// The block that was read last, for the next key.
    last: Option<(Place, BlockRef)>,
    probes: &'b [(usize, Probe<'b>)],
    /// Position of the one whose turn it is.
    turn: usize,
    /// The blocks of so many of them have been asked for.
    asked: usize,
}

impl BlockReads<'_> {
    /// The block at `place`: the last one, or what `read` gives.
    pub(super) fn get_or(
        &mut self,
        place: Place,
        read: impl FnOnce(Around<'_>) -> Result<BlockRef>,
    ) -> Result<BlockRef> {
        if let Some((last, block)) = &self.last
            && *last == place
        {
            return Ok(block.clone());
        }
        // First, so that its frame is used again.
        self.last = None;
        let block = if self.turn < self.asked || self.turn + 1 == self.probes.len() {
            read(Around::Nothing)?
        } else {
            read(Around::Batch(&mut || self.ask()))?
        };
        self.last = Some((place, block.clone()));
        Ok(block)
    }

    /// Asks for the block whose turn it is, and for the next ones.
    fn ask(&mut self) {
        self.asked = self.turn;
        let blocks = self.probes[self.turn..].chunk_by(|(_, a), (_, b)| a.place() == b.place());
        for probes in blocks.take(AT_A_TIME) {
            probes[0].1.will_need();
            self.asked += probes.len();
        }
    }
}
