//! Range deletes that cover whole tables: their memtable is flushed at once, since only ranges in
//! tables let these tables go.

use std::sync::Arc;

use crate::batch::BatchReader;
use crate::db::store::Store;
use crate::db::work::throttle::MAX_SEALED;

/// A range delete that covers tables is flushed at once if they are larger than what the memtable
/// holds, and than this part of a full one, as a divisor.
const FLUSH_SHARE: u64 = 16;

impl Store {
    /// Whether a batch deletes tables whole whose space is worth a flush: their ranges must be in a
    /// table before they can go.
    pub(super) fn deletes_tables(&self, payload: &[u8], count: u32) -> bool {
        self.shape.with_view(|view, _| {
            // What a snapshot sees stays.
            let pinned = self.shape.snapshots().newest();
            let enough = (view.active.used() as u64).max(self.options.memtable_size as u64 / FLUSH_SHARE);
            let mut freed = 0;
            let mut operations = BatchReader::new(payload, count).filter_map(|operation| operation.ok());
            operations.any(|operation| {
                let (Some(range), Some(tree)) = (operation.as_range(), view.tree(operation.keyspace)) else {
                    return false;
                };
                let mut tables = tree.version.tables_within(&range).filter(|meta| meta.smallest_seqno > pinned);
                tables.any(|meta| {
                    freed += meta.size;
                    freed >= enough
                })
            })
        })
    }

    /// Seals the memtable for its range deletes. One more may wait for its flush than otherwise:
    /// nothing that comes later would do this instead.
    pub(super) fn flush_wide_ranges(self: &Arc<Self>) {
        if let Some(commit) = self.writer.lock().as_mut()
            && self.gate.check_poison().is_ok()
            && commit.memtable.has_ranges()
            && self.shape.view().sealed.len() <= MAX_SEALED
        {
            // On a full disk the ranges wait for the next flush.
            let _ = self.rotate(commit);
        }
    }
}
