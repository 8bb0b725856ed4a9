//! Point reads of many keys at once.
//!
//! A read is a chain of steps, each of which waits for memory: filter, index, directory of a block, entry. Here some keys go through the
//! steps together, so that they wait at the same time: each step asks the processor for what the next one looks at.

use std::sync::Arc;

use super::Version;
use crate::error::Result;
use crate::memory::epoch::{Epoch, Pin};
use crate::report::explain::Untraced;
use crate::sorted::table::{PendingReads, PointRead, Probe, Table, TableHit};

/// So many keys go together: more than a core has memory accesses under way, and few enough that what they asked for is still in its
/// first cache when they come to it.
const GROUP: usize = 16;

/// Keys on their way through the tables of a version, and who is told what was found.
pub(crate) struct Batch<'k, F> {
    reads: &'k [PointRead<'k>],
    /// Positions in `reads` of the keys that nothing has been found of.
    pending: Vec<usize>,
    /// Is told of the newest version of a key, a tombstone included.
    found: F,
}

impl<'k, F: FnMut(usize, TableHit<'_>)> Batch<'k, F> {
    pub(crate) fn new(reads: &'k [PointRead<'k>], pending: Vec<usize>, found: F) -> Batch<'k, F> {
        Batch { reads, pending, found }
    }

    /// Asks all sources of a version, newest first.
    pub(crate) fn run(mut self, version: &'k Version, epoch: &Epoch) -> Result<()> {
        let overlapping = &version.levels()[0];
        for (i, table) in overlapping.tables().iter().enumerate() {
            self.ask(epoch, |key| {
                let head = overlapping.bounds.head(key)?;
                overlapping.in_range(i, key, head).then_some(table)
            })?;
        }
        for level in version.sorted() {
            self.ask(epoch, |key| level.candidate(key).map(|at| &level.tables[at]))?;
        }
        Ok(())
    }

    /// Asks one source, in which `table_for` says which table may hold a key.
    fn ask(&mut self, epoch: &Epoch, table_for: impl Fn(&[u8]) -> Option<&'k Arc<Table>>) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let mut uncached = PendingReads::default();
        for group in pending.chunks(GROUP) {
            epoch.pin(|pin| self.ask_group(pin, group, &table_for, &mut uncached))?;
        }
        uncached.finish(epoch, |i, hit| self.end(i, hit))
    }

    /// The same for a few keys. What it takes to read a block for is left in `uncached`.
    fn ask_group(
        &mut self,
        pin: &Pin<'_>,
        group: &[usize],
        table_for: &impl Fn(&[u8]) -> Option<&'k Arc<Table>>,
        uncached: &mut PendingReads<'k>,
    ) -> Result<()> {
        let mut tables = [None; GROUP];
        for (table, &i) in tables.iter_mut().zip(group) {
            let read = &self.reads[i];
            *table = table_for(read.key).inspect(|table| table.prefetch_probe(read));
        }
        let mut probes: [Option<Probe<'k>>; GROUP] = [const { None }; GROUP];
        for ((probe, table), &i) in probes.iter_mut().zip(tables).zip(group) {
            *probe = match table {
                Some(table) => table.probe(&self.reads[i], &mut Untraced)?,
                None => None,
            };
            match probe {
                Some(probe) => probe.locate(),
                None => self.pending.push(i),
            }
        }
        for (probe, &i) in probes.iter_mut().zip(group) {
            if let Some(missed) = probe.take_if(|probe| !probe.prefetch_block(pin)) {
                uncached.push(i, missed);
            }
        }
        for probe in probes.iter().flatten() {
            probe.prefetch_entry(pin);
        }
        for (probe, &i) in probes.into_iter().zip(group) {
            if let Some(probe) = probe {
                self.end(i, probe.finish(pin, None, &mut Untraced)?);
            }
        }
        Ok(())
    }

    fn end(&mut self, i: usize, hit: Option<TableHit<'_>>) {
        match hit {
            Some(hit) => (self.found)(i, hit),
            None => self.pending.push(i),
        }
    }
}
