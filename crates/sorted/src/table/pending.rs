//! [`PendingReads`]: point reads of several keys whose blocks must come from files.
//!
//! Reads are done in file order, so that each block is read once. When a read would first wait for
//! the device, its block and those of the next keys are prefetched. From then on each read
//! prefetches one more, so that the device has many requests in flight. Nothing is prefetched
//! before.

use super::planned::{PlannedRead, PlannedReads};
use super::reader::{Probe, TableHit};
use crate::error::Result;
use crate::memory::epoch::Epoch;
use crate::trace::Untraced;

/// Located probes, each with its key's position in the batch.
#[derive(Default)]
pub struct PendingReads<'k>(Vec<(usize, Probe<'k>)>);

impl<'k> PendingReads<'k> {
    pub fn push(&mut self, i: usize, probe: Probe<'k>) {
        self.0.push((i, probe));
    }

    /// Finishes all reads and calls `end` with each result.
    pub fn finish(self, epoch: &Epoch, mut end: impl FnMut(usize, Option<TableHit<'_>>) -> Result<()>) -> Result<()> {
        let PendingReads(mut probes) = self;
        probes.sort_by_key(|(_, probe)| probe.address());
        let mut blocks = PlannedReads::new(&probes);
        for (turn, &(i, probe)) in probes.iter().enumerate() {
            blocks.begin(turn);
            epoch.pin(|pin| end(i, probe.finish(pin, Some(&mut blocks), &mut Untraced)?))?;
        }
        Ok(())
    }
}
