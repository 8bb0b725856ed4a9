//! [`PendingReads`]: point reads of several keys that must read blocks from files.
//!
//! They are done in the order of the files, so that each block is read once. When one of them would have to wait for the device, the file
//! system is asked for its block and for those of the next keys, and from then on for one more whenever one has been read: the device has
//! many requests at a time. As long as nothing has to be waited for, nothing is asked for.

use super::planned::{PlannedRead, PlannedReads};
use super::reader::{Probe, TableHit};
use crate::error::Result;
use crate::memory::epoch::Epoch;
use crate::report::explain::Untraced;

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
        probes.sort_by_key(|(_, probe)| probe.address());
        let mut blocks = PlannedReads::new(&probes);
        for (turn, &(i, probe)) in probes.iter().enumerate() {
            blocks.begin(turn);
            epoch.pin(|pin| {
                end(i, probe.finish(pin, Some(&mut blocks), &mut Untraced)?);
                Ok(())
            })?;
        }
        Ok(())
    }
}
