//! [`HeldStats`]: replaced memtables and tables that are still in use, so that their memory and
//! files are not free yet.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::memory::epoch::Unreclaimed;
use crate::sorted::memtable::Memtable;
use crate::sorted::table::Table;
use crate::sync::Mutex;

/// Memtables and tables that the store has replaced but that are still in use.
///
/// An iterator or a cursor keeps the memtables and tables of the moment it was made until it is
/// dropped. A compaction keeps the tables that it reads. A snapshot keeps none of them; it keeps
/// old versions of keys.
///
/// Not counted are blocks and mapped files that a long value alone keeps after its table is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    /// Read views (lists of memtables and tables) replaced during a read. More than one means that
    /// a read takes long, for instance on a slow disk.
    pub views: usize,
    /// How long ago the oldest of `views` was replaced.
    pub oldest_view: Option<Duration>,
}

/// Memtables and tables that have left the view.
#[derive(Default)]
pub(crate) struct Held(Mutex<Replaced>);

#[derive(Default)]
struct Replaced {
    memtables: Watched<Memtable>,
    tables: Watched<Table>,
}

/// Weak references, each with its bytes of memory and on disk when it was replaced.
struct Watched<T>(Vec<(Weak<T>, usize, u64)>);

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
    fn count(&mut self) -> (usize, usize, u64) {
        self.purge_freed();
        let (memory, disk) = (self.0.iter().map(|item| item.1), self.0.iter().map(|item| item.2));
        (self.0.len(), memory.sum(), disk.sum())
    }
}

impl Held {
    /// Notes a memtable that has been flushed.
    pub(crate) fn add_memtable(&self, memtable: &Arc<Memtable>) {
        self.0.lock().memtables.add(memtable, memtable.allocated(), 0);
    }

    /// Notes a table that is in no version any more.
    pub(crate) fn add_table(&self, table: &Arc<Table>) {
        self.0.lock().tables.add(table, table.resident_bytes(), table.meta().size);
    }

    /// What is still in use; `views` are the replaced views. Taking those first frees unused ones,
    /// and what only they kept.
    pub(super) fn stats(&self, views: Unreclaimed) -> HeldStats {
        let mut replaced = self.0.lock();
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
