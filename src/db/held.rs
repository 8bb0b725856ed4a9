//! What the store has replaced and somebody still uses: memory and files that are not free yet.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::store::Store;
use crate::sorted::table::Table;
use crate::write::memtable::Memtable;

/// What the store has replaced, and what still uses it.
///
/// An iterator or a cursor keeps the memtables and tables of the moment at which it was made, until
/// it is dropped. A compaction keeps the tables that it reads. A snapshot keeps none of them; it
/// keeps versions of keys from being dropped.
///
/// Not counted are blocks and mapped files that a long value keeps by itself, once its table is
/// gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldStats {
    /// Flushed memtables.
    pub memtables: usize,
    /// Replaced tables, whose files are still there.
    pub tables: usize,
    /// Bytes of memory: flushed memtables, and filters and indexes of replaced tables.
    pub memory: usize,
    /// Bytes of the files of replaced tables.
    pub disk: u64,
    /// Lists of memtables and tables that were replaced in the middle of a read. More than one
    /// means that a read takes long, on a slow disk for instance.
    pub views: usize,
    /// How long ago the oldest of `views` was replaced.
    pub oldest_view: Option<Duration>,
}

/// Memtables and tables that have left the view.
#[derive(Default)]
pub(super) struct Held(Mutex<Replaced>);

#[derive(Default)]
struct Replaced {
    memtables: Watched<Memtable>,
    tables: Watched<Table>,
}

/// Things that may be gone, each with its bytes of memory and on disk when it was replaced.
struct Watched<T>(Vec<(Weak<T>, usize, u64)>);

impl<T> Default for Watched<T> {
    fn default() -> Watched<T> {
        Watched(Vec::new())
    }
}

impl<T> Watched<T> {
    fn add(&mut self, thing: &Arc<T>, memory: usize, disk: u64) {
        // Those that are gone are forgotten when the list would have to grow: each costs one look,
        // or twice as many stay.
        if self.0.len() == self.0.capacity() {
            self.forget_gone();
        }
        self.0.push((Arc::downgrade(thing), memory, disk));
    }

    fn forget_gone(&mut self) {
        self.0.retain(|(thing, ..)| thing.strong_count() > 0);
    }

    /// Number, bytes of memory and bytes on disk of those that are still there.
    fn count(&mut self) -> (usize, usize, u64) {
        self.forget_gone();
        let (memory, disk) = (self.0.iter().map(|thing| thing.1), self.0.iter().map(|thing| thing.2));
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

impl Store {
    pub(super) fn held(&self) -> HeldStats {
        // Frees what can be freed, so that it is not counted.
        let views = self.view.kept();
        let mut replaced = self.counters.held.0.lock();
        let (memtables, memtable_bytes, _) = replaced.memtables.count();
        let (tables, table_bytes, disk) = replaced.tables.count();
        HeldStats {
            memtables,
            tables,
            memory: memtable_bytes + table_bytes,
            disk,
            views: views.values,
            oldest_view: views.oldest,
        }
    }
}
