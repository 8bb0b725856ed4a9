//! Counters of a store: background work, and reads of retired tables.
//!
//! A table takes its counts with it when it leaves the view. They are added up here, under the lock
//! under which statistics are read, so that no read is counted twice or lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::held::Held;
use crate::db::locks::{LockRank, RankedGuard, RankedMutex};
use crate::report::stats::{FilterLedger, ReadCounters};
use crate::sorted::table::Table;

/// Counts of background work since the store was opened, and of reads of retired tables.
pub(crate) struct Counters {
    work: [AtomicU64; COUNTS],
    held: Held,
    /// Held while a table leaves the view and while the statistics are read: each table is in one
    /// of the two.
    retired: RankedMutex<RetiredTables>,
}

/// What is counted of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    Flushes,
    FlushedBytes,
    Compactions,
    CompactedBytesIn,
    CompactedBytesOut,
    /// Tables that only changed their level.
    Moves,
    ExpiredTables,
    CoveredTables,
    IngestedTables,
    IngestedBytes,
}

const COUNTS: usize = Count::IngestedBytes as usize + 1;

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            work: Default::default(),
            held: Held::default(),
            retired: RankedMutex::new(LockRank::RetiredTables, RetiredTables::default()),
        }
    }
}

/// What opening a store took, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OpeningStats {
    /// Locking the directory, reading the manifest, and checking which files are there.
    pub manifest: Duration,
    /// Replaying the logs, flushes of full memtables included.
    pub logs: Duration,
    /// Reading the range tables.
    pub tables: Duration,
    /// Writing a new manifest, if one is needed, and removing files that are not.
    pub files: Duration,
    /// Operations that were replayed from logs.
    pub operations: u64,
}

impl Counters {
    /// Adds to a count.
    pub(crate) fn add(&self, count: Count, more: u64) {
        self.work[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.work[count as usize].load(Ordering::Relaxed)
    }

    /// Replaced memtables and tables that are still in use.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Locked, each table is either in the view or among these.
    pub(crate) fn retired(&self) -> RankedGuard<'_, RetiredTables> {
        self.retired.lock()
    }

    /// Bytes that compactions have read and written for each byte flushed.
    pub(crate) fn amplification(&self) -> f64 {
        let compacted = self.get(Count::CompactedBytesIn) + self.get(Count::CompactedBytesOut);
        compacted as f64 / self.get(Count::FlushedBytes).max(1) as f64
    }
}

/// Read counts of tables that are in no version any more.
#[derive(Default)]
pub(crate) struct RetiredTables {
    /// By keyspace and level.
    levels: BTreeMap<(u32, u8), Retired>,
    /// Of dropped keyspaces.
    pub(super) dropped: Retired,
}

#[derive(Default)]
pub(super) struct Retired {
    sum: FilterLedger,
    /// Tables that a reader may still use.
    in_use: Vec<Arc<ReadCounters>>,
}

impl Retired {
    fn add(&mut self, counters: Arc<ReadCounters>) {
        self.in_use.push(counters);
        self.sum_ended();
    }

    /// Adds up counters that can no longer change.
    fn sum_ended(&mut self) {
        let sum = &mut self.sum;
        self.in_use.retain_mut(|counters| {
            let ended = Arc::get_mut(counters).is_some();
            if ended {
                *sum += counters.ledger();
            }
            !ended
        });
    }

    pub(super) fn ledger(&mut self) -> FilterLedger {
        self.sum_ended();
        self.in_use.iter().map(|counters| counters.ledger()).chain([self.sum]).sum()
    }
}

impl RetiredTables {
    /// Keeps the counts of a table that leaves its level.
    pub(crate) fn add(&mut self, keyspace: u32, level: u8, table: &Table) {
        self.levels.entry((keyspace, level)).or_default().add(table.counters());
    }

    /// Keeps the counts of a dropped keyspace and of its last tables.
    pub(crate) fn drop_keyspace(&mut self, keyspace: u32, tables: &[Arc<Table>], memtables: &Arc<ReadCounters>) {
        let levels: Vec<(u32, u8)> =
            self.levels.range((keyspace, 0)..=(keyspace, u8::MAX)).map(|(level, _)| *level).collect();
        for mut retired in levels.iter().filter_map(|level| self.levels.remove(level)) {
            self.dropped.sum += retired.sum;
            self.dropped.in_use.append(&mut retired.in_use);
        }
        self.dropped.in_use.extend(tables.iter().map(|table| table.counters()).chain([Arc::clone(memtables)]));
        self.dropped.sum_ended();
    }

    pub(super) fn level(&mut self, keyspace: u32, level: u8) -> FilterLedger {
        self.levels.get_mut(&(keyspace, level)).map(Retired::ledger).unwrap_or_default()
    }
}
