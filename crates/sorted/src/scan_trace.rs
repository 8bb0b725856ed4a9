//! [`ScanTrace`]: what a scan reads of tables, for its explanation.
//!
//! Its cursors write into it as they go. Those of ordinary scans have none, and look for it once
//! per block.

use std::time::{Duration, Instant};

use crate::sync::{Mutex, time};
use crate::trace::{FilterAnswer, ReadTrace};

/// The tables that a scan came to, in order.
#[derive(Debug, Default)]
pub struct ScanTrace(Mutex<Vec<TableVisit>>);

/// A table that a scan came to.
#[derive(Clone, Debug)]
pub struct TableVisit {
    pub number: u64,
    /// Bytes read to open the table, and how long that took, if it was not open.
    pub opened: Option<(u64, Duration)>,
    /// What the table's filter said of the scan's prefix, if the scan has one.
    pub prefix: Option<FilterAnswer>,
    pub blocks: Vec<VisitedBlock>,
}

impl TableVisit {
    /// Of a table to which the scan has not come yet.
    pub fn none(number: u64) -> TableVisit {
        TableVisit { number, opened: None, prefix: None, blocks: Vec::new() }
    }
}

/// A data block that a scan entered.
#[derive(Clone, Copy, Debug)]
pub struct VisitedBlock {
    pub offset: u64,
    pub len: u64,
    /// Whether it was in the cache or in a mapped file.
    pub cached: bool,
    /// Whether an entry was taken from it.
    pub used: bool,
    pub time: Duration,
}

impl ScanTrace {
    /// The visits, after the scan.
    pub fn take(&self) -> Vec<TableVisit> {
        std::mem::take(&mut self.0.lock())
    }

    /// The scan comes to a table, and opens it with `open` unless it is open.
    pub(super) fn table<R>(&self, number: u64, open: impl FnOnce(&mut Opening) -> R) -> R {
        let mut opening = Opening { begun: time::now(), opened: None };
        let result = open(&mut opening);
        let mut visits = self.0.lock();
        // A scan that passes many versions of a key seeks anew, and may come back.
        if !visits.iter().any(|visit| visit.number == number) {
            visits.push(TableVisit { opened: opening.opened, ..TableVisit::none(number) });
        }
        result
    }

    pub(super) fn prefix(&self, number: u64, answer: FilterAnswer) {
        self.change(number, |visit| visit.prefix = Some(answer));
    }

    /// The scan has entered a block. It counts as used, until
    /// [`last_block_unused`](ScanTrace::last_block_unused).
    pub(super) fn block(&self, number: u64, block: VisitedBlock) {
        self.change(number, |visit| visit.blocks.push(block));
    }

    /// Nothing has been taken from the block entered last.
    pub(super) fn last_block_unused(&self, number: u64) {
        self.change(number, |visit| {
            if let Some(block) = visit.blocks.last_mut() {
                block.used = false;
            }
        });
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut TableVisit)) {
        if let Some(visit) = self.0.lock().iter_mut().find(|visit| visit.number == number) {
            change(visit);
        }
    }
}

/// Notes what opening a table read.
pub(super) struct Opening {
    begun: Instant,
    opened: Option<(u64, Duration)>,
}

impl ReadTrace for Opening {
    fn opened(&mut self, bytes: u64) {
        self.opened = Some((bytes, time::since(self.begun)));
    }
}
