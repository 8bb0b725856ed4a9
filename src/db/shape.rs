//! The shape of a store: which files it consists of, and what a reader may see of them.
//!
//! `catalog` is the manifest in force; `view` what a read consults; `live` the read points that
//! hold old versions back; `gaps` where nothing is left to see. Every change of the set of tables
//! goes through `install`.

pub(crate) mod catalog;
mod dropped;
pub(crate) mod gaps;
mod install;
pub(crate) mod live;
mod persistent;
pub(crate) mod traffic;
pub(crate) mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::catalog::{Catalog, Manifest};
use self::dropped::FormerNames;
use self::live::LiveSnapshots;
use self::view::ReadView;
use super::locks::{LockRank, RankedGuard, RankedMutex};
use crate::error::Error;
use crate::format::key::SeqNo;
use crate::memory::epoch::{Epoch, Pin, Published, Unreclaimed};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Which files a store has, what readers see, and what is kept for them.
pub(crate) struct Shape {
    catalog: Catalog,
    view: Published<ReadView>,
    /// Held while the view is replaced.
    view_change: RankedMutex<()>,
    /// Keyspaces that have changed since they were last taken, for the agenda.
    touched: Mutex<BTreeSet<u32>>,
    snapshots: LiveSnapshots,
    /// No range table has a range delete with a greater number.
    ranges_until: AtomicU64,
    /// Number of edits that have added range tables.
    range_edits: AtomicU64,
    /// Held while a keyspace is created, changed or dropped.
    defining: RankedMutex<()>,
    /// What dropped and renamed keyspaces were called, as long as handles keep these names.
    dropped: Mutex<FormerNames>,
}

impl Shape {
    pub(crate) fn new(mut view: ReadView, epoch: &Arc<Epoch>, next_file: u64, manifest: Option<Manifest>) -> Shape {
        let ranges = view.trees.iter().map(|tree| tree.version.ranges().largest_seqno());
        Shape {
            ranges_until: AtomicU64::new(ranges.max().unwrap_or(0)),
            touched: Mutex::new(view.trees.take_touched().into_iter().collect()),
            catalog: Catalog::new(manifest, next_file),
            view: Published::new(Arc::clone(epoch), Arc::new(view)),
            view_change: RankedMutex::new(LockRank::ViewChange, ()),
            snapshots: LiveSnapshots::default(),
            range_edits: AtomicU64::new(0),
            defining: RankedMutex::new(LockRank::Defining, ()),
            dropped: Mutex::default(),
        }
    }

    /// The manifest, and file numbers.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The read points that are alive.
    pub(crate) fn snapshots(&self) -> &LiveSnapshots {
        &self.snapshots
    }

    /// The view in force, with a reference count of its own.
    pub(crate) fn view(&self) -> Arc<ReadView> {
        self.view.load()
    }

    /// Runs `read` with the view in force, pinned. Readers write no line that they share.
    #[inline]
    pub(crate) fn with_view<R>(&self, read: impl FnOnce(&ReadView, &Pin<'_>) -> R) -> R {
        self.view.with(read)
    }

    /// The former views that readers keep.
    pub(crate) fn kept_views(&self) -> Unreclaimed {
        self.view.kept()
    }

    /// Takes the keyspaces that have changed. A view that is loaded later has these changes.
    pub(crate) fn take_touched(&self) -> BTreeSet<u32> {
        std::mem::take(&mut *self.touched.lock())
    }

    /// Notes what keyspaces were called that have been dropped.
    pub(crate) fn note_dropped(&self, keyspaces: &BTreeMap<u32, Arc<str>>) {
        let mut names = self.dropped.lock();
        keyspaces.iter().for_each(|(id, name)| names.add(*id, name));
    }

    /// Notes that a keyspace is getting another name than this one.
    pub(crate) fn note_renamed(&self, id: u32, former: &Arc<str>) {
        self.dropped.lock().add(id, former);
    }

    /// What a dropped keyspace was called, as long as somebody has a handle.
    pub(crate) fn dropped_name(&self, id: u32) -> Option<Arc<str>> {
        self.dropped.lock().name(id)
    }

    /// The error of a write to a dropped keyspace.
    #[cold]
    pub(crate) fn keyspace_dropped(&self, id: u32) -> Error {
        let name = self.dropped_name(id);
        // Only a batch can outlive all handles.
        Error::KeyspaceDropped(name.map_or_else(|| format!("number {id}"), |name| name.to_string()))
    }

    #[cfg(test)]
    pub(crate) fn dropped_names(&self) -> usize {
        self.dropped.lock().len()
    }

    /// Keeps all keyspaces as they are while the guard lives.
    pub(crate) fn keep_keyspaces(&self) -> RankedGuard<'_, ()> {
        self.defining.lock()
    }

    /// Whether a table may have held a range delete after `seqno`: a snapshot of that number may
    /// have kept what it deletes.
    pub(crate) fn has_ranges_after(&self, seqno: SeqNo) -> bool {
        self.ranges_until.load(Ordering::Acquire) > seqno
    }

    /// A number that has changed when range deletes have come into tables.
    pub(crate) fn range_edits(&self) -> u64 {
        self.range_edits.load(Ordering::Acquire)
    }
}
