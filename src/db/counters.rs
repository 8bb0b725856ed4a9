//! Counters of a store: background work, reads of retired tables, and what is replaced but in use.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::locks::{LockRank, RankedMutex};
use crate::report::stats::{FilterLedger, ReadCounters};
use crate::sorted::table::Table;
use crate::write::memtable::Memtable;

/// Counts of background work since the store was opened, and of reads of retired tables.
pub(super) struct Counters {
    pub(super) flushes: AtomicU64,
    pub(super) flushed_bytes: AtomicU64,
    pub(super) compactions: AtomicU64,
    pub(super) compacted_bytes_in: AtomicU64,
    pub(super) compacted_bytes_out: AtomicU64,
    pub(super) moves: AtomicU64,
    pub(super) held: Held,
    /// Held while a table leaves the view and while the statistics are read: each table is in one
    /// of the two.
    pub(super) retired: RankedMutex<RetiredTables>,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            flushes: AtomicU64::default(),
            flushed_bytes: AtomicU64::default(),
            compactions: AtomicU64::default(),
            compacted_bytes_in: AtomicU64::default(),
            compacted_bytes_out: AtomicU64::default(),
            moves: AtomicU64::default(),
            held: Held::default(),
            retired: RankedMutex::new(LockRank::RetiredTables, RetiredTables::default()),
        }
    }
}

/// Read counts of tables that are in no version any more.
#[derive(Default)]
pub(super) struct RetiredTables {
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
        self.settle();
    }

    /// Sums up counters that can no longer change.
    fn settle(&mut self) {
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
        self.settle();
        self.in_use.iter().map(|counters| counters.ledger()).chain([self.sum]).sum()
    }
}

impl RetiredTables {
    /// Keeps the counts of a table that leaves its level.
    pub(super) fn add(&mut self, keyspace: u32, level: u8, table: &Table) {
        self.levels.entry((keyspace, level)).or_default().add(table.counters());
    }

    /// Keeps the counts of a dropped keyspace and of its last tables.
    pub(super) fn drop_keyspace(&mut self, keyspace: u32, tables: &[Arc<Table>], memtables: &Arc<ReadCounters>) {
        self.levels.retain(|(id, _), retired| {
            if *id == keyspace {
                self.dropped.sum += retired.sum;
                self.dropped.in_use.append(&mut retired.in_use);
            }
            *id != keyspace
        });
        self.dropped.in_use.extend(tables.iter().map(|table| table.counters()).chain([Arc::clone(memtables)]));
        self.dropped.settle();
    }

    pub(super) fn level(&mut self, keyspace: u32, level: u8) -> FilterLedger {
        self.levels.get_mut(&(keyspace, level)).map(Retired::ledger).unwrap_or_default()
    }
}

/// Memtables and tables that have left the view.
#[derive(Default)]
pub(super) struct Held(pub(super) Mutex<Replaced>);

#[derive(Default)]
pub(super) struct Replaced {
    pub(super) memtables: Watched<Memtable>,
    pub(super) tables: Watched<Table>,
}

/// Weak references, each with its bytes of memory and on disk when it was replaced.
pub(super) struct Watched<T>(Vec<(Weak<T>, usize, u64)>);

impl<T> Default for Watched<T> {
    fn default() -> Watched<T> {
        Watched(Vec::new())
    }
}

impl<T> Watched<T> {
    fn add(&mut self, item: &Arc<T>, memory: usize, disk: u64) {
        // Freed ones are purged only when the list would have to grow: amortised, each costs one
        // look, or the list doubles.
        if self.0.len() == self.0.capacity() {
            self.purge_freed();
        }
        self.0.push((Arc::downgrade(item), memory, disk));
    }

    fn purge_freed(&mut self) {
        self.0.retain(|(item, ..)| item.strong_count() > 0);
    }

    /// Number, bytes of memory and bytes on disk of those still in use.
    pub(super) fn count(&mut self) -> (usize, usize, u64) {
        self.purge_freed();
        let (memory, disk) = (self.0.iter().map(|item| item.1), self.0.iter().map(|item| item.2));
        (self.0.len(), memory.sum(), disk.sum())
    }
}

impl Held {
    /// Notes a memtable that has been flushed.
    pub(super) fn add_memtable(&self, memtable: &Arc<Memtable>) {
        self.0.lock().memtables.add(memtable, memtable.allocated(), 0);
    }

    /// Notes a table that is in no version any more.
    pub(super) fn add_table(&self, table: &Arc<Table>) {
        self.0.lock().tables.add(table, table.resident_bytes(), table.meta().size);
    }
}
