//! Replaced memtables and tables that are still in use: memory and files that are not free yet.

use std::time::Duration;

use super::store::Store;

/// Memtables and tables that the store has replaced but that are still in use.
///
/// An iterator or a cursor keeps the memtables and tables of the moment it was made until it is
/// dropped. A compaction keeps the tables that it reads. A snapshot keeps none of them; it keeps
/// old versions of keys.
///
/// Not counted are blocks and mapped files that a long value alone keeps after its table is gone.
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
    /// Read views (lists of memtables and tables) replaced during a read. More than one means that
    /// a read takes long, for instance on a slow disk.
    pub views: usize,
    /// How long ago the oldest of `views` was replaced.
    pub oldest_view: Option<Duration>,
}

impl Store {
    pub(super) fn held(&self) -> HeldStats {
        // Frees unused views first, so that they are not counted.
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
