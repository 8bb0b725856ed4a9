//! [`ScanTrace`]: what a scan reads of tables, for its explanation.
//!
//! Its cursors write into it as they go. Those of ordinary scans have none, and look for it once
//! per block.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::sync::{Mutex, time};
use crate::trace::{BlockVisit, FilterAnswer, Opening, ReadTrace};

/// The tables that a scan came to, by number.
#[derive(Debug, Default)]
pub struct ScanTrace(Mutex<BTreeMap<u64, TableVisit>>);

/// What a scan did in a table.
#[derive(Clone, Debug, Default)]
pub struct TableVisit {
    pub opened: Option<Opening>,
    /// What the table's filter said of the scan's prefix, if the scan has one.
    pub prefix: Option<FilterAnswer>,
    /// What its range filter said of the key that the scan last sought in it: "no" if nothing was
    /// read for it. `None` if it was not asked.
    pub range: Option<FilterAnswer>,
    pub blocks: Vec<ScannedBlock>,
}

/// A data block that a scan entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScannedBlock {
    /// Where it is, and what getting it took.
    pub visit: BlockVisit,
    /// Whether the scan took an entry from it, or passed one: a tombstone, an older version.
    /// Otherwise a filter of ranges could have saved it.
    pub used: bool,
}

impl ScanTrace {
    /// The visits, after the scan.
    pub fn take(&self) -> BTreeMap<u64, TableVisit> {
        std::mem::take(&mut self.0.lock())
    }

    /// The scan comes to a table, and opens it with `open` unless it is open.
    pub(super) fn table<R>(&self, number: u64, open: impl FnOnce(&mut OpeningTrace) -> R) -> R {
        let mut trace = OpeningTrace { begun: time::now(), opened: None };
        let result = open(&mut trace);
        // A scan that passes many versions of a key seeks anew, and may come back.
        let mut visits = self.0.lock();
        let visit = visits.entry(number).or_default();
        visit.opened = visit.opened.or(trace.opened);
        result
    }

    pub(super) fn prefix(&self, number: u64, answer: FilterAnswer) {
        self.0.lock().entry(number).or_default().prefix = Some(answer);
    }

    pub(super) fn range(&self, number: u64, answer: FilterAnswer) {
        self.0.lock().entry(number).or_default().range = Some(answer);
    }

    /// The scan has entered a block. It counts as used, until
    /// [`last_block_unused`](ScanTrace::last_block_unused).
    pub(super) fn block(&self, number: u64, visit: BlockVisit) {
        self.0.lock().entry(number).or_default().blocks.push(ScannedBlock { visit, used: true });
    }

    /// Nothing has been taken from the block entered last.
    pub(super) fn last_block_unused(&self, number: u64) {
        if let Some(block) = self.0.lock().get_mut(&number).and_then(|visit| visit.blocks.last_mut()) {
            block.used = false;
        }
    }
}

/// Notes what opening a table read.
pub(super) struct OpeningTrace {
    begun: Instant,
    opened: Option<Opening>,
}

impl ReadTrace for OpeningTrace {
    fn opened(&mut self, bytes: u64) {
        self.opened = Some(Opening::new(bytes, time::since(self.begun)));
    }
}
