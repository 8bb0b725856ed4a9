//! [`Snapshot`]: the store as it was at one moment.
//!
//! Taking a snapshot registers a number and a time (`live`). Only in a store that is open
//! read-only, or beside a compaction filter, does it keep a view.

use std::sync::Arc;

use super::StoreHandle;
use super::keyspace::Keyspace;
use super::name::KeyspaceName;
use super::read::{FOREIGN, ReadPoint, ReadTarget};
use super::reads::reads;
use super::shape::live::{NumberAndTime, Registered};
use super::shape::view::ReadView;
use super::store::Store;
use crate::format::deadline::NEVER;
use crate::format::key::SeqNo;

/// All keyspaces as they were when the snapshot was taken, whatever is written later, and whatever
/// expires later: deadlines are judged by the time at which it was taken.
///
/// It is owned, and cheap to take and to clone. Its own methods read the default keyspace;
/// [`Snapshot::keyspace`] reads any other.
///
/// While it lives, the store stays open and locked, also after all other handles are dropped:
/// [`Db::close`](crate::Db::close) releases the lock beside it. Compactions keep the versions that
/// it sees and all that had not expired when it was taken, also what was written later. A snapshot
/// that is kept for days therefore keeps the garbage of days. It keeps no memtable and no replaced
/// table, with two exceptions, in which it keeps those of its moment: in a store that is open
/// read-only, since the process that writes does not know it, and if it was taken while a
/// compaction with a [compaction filter](crate::KeyspaceOptions::compaction_filter) ran. What such
/// a filter has decided before the store was closed may still take effect after it was opened, and
/// then changes what a snapshot sees.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// db.put("apple", "1")?;
/// let before = db.snapshot();
/// db.put("apple", "2")?;
/// assert_eq!(before.get("apple")?.as_deref(), Some(&b"1"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    pinned: Arc<Pinned>,
    keyspace: u32,
    name: KeyspaceName,
}

/// A number and a time, registered as a live snapshot.
pub(super) struct Pinned {
    handle: Arc<StoreHandle>,
    point: ReadPoint,
    registered: Registered,
}

impl Pinned {
    pub(super) fn new(handle: &Arc<StoreHandle>) -> Pinned {
        let store = &handle.store;
        let visible = || store.sequence.visible();
        let is_plain = || !store.gate.is_read_only() && !store.clock.has_deadlines();
        if let Some((seqno, registered)) = store.shape.snapshots().add_plain(visible, is_plain) {
            let point = ReadPoint { seqno, at: NEVER, view: None };
            return Pinned { handle: Arc::clone(handle), point, registered };
        }
        let mut has_deadlines = store.clock.has_deadlines();
        loop {
            if has_deadlines {
                // Moves the mark on. The clock is the caller's code: it runs under no lock.
                store.clock.now();
            }
            let (point, view) = store.shape.snapshots().add(|is_filtering| take_point(store, is_filtering));
            let ((seqno, at), registered) = (point, Registered::Listed);
            if at == NEVER || has_deadlines {
                return Pinned { handle: Arc::clone(handle), point: ReadPoint { seqno, at, view }, registered };
            }
            // The first deadline of all has come in between.
            store.shape.snapshots().remove(point, registered);
            has_deadlines = true;
        }
    }
}

impl Pinned {
    /// Registers its number and time once more.
    fn again(&self) -> Pinned {
        let ReadPoint { seqno, at, view } = &self.point;
        // It is held already: nothing can have dropped what it sees.
        self.handle.store.shape.snapshots().add(|_| ((*seqno, *at), ()));
        let point = ReadPoint { seqno: *seqno, at: *at, view: view.clone() };
        Pinned { handle: Arc::clone(&self.handle), point, registered: Registered::Listed }
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.handle.store
    }

    pub(super) fn point(&self) -> &ReadPoint {
        &self.point
    }

    pub(super) fn seqno(&self) -> SeqNo {
        self.point.seqno
    }
}

/// The number and time of a snapshot, and the view that it keeps, if it needs one.
fn take_point(store: &Store, is_filtering: bool) -> (NumberAndTime, Option<Arc<ReadView>>) {
    let (seqno, view) = loop {
        if !store.gate.is_read_only() && !is_filtering {
            break (store.sequence.visible(), None);
        }
        let view = store.shape.view();
        let seqno = view.visible(&store.sequence);
        // A memtable may have been sealed since: the view would lack what the number sees.
        if store.gate.is_read_only() || Arc::ptr_eq(&view.active, &store.shape.view().active) {
            break (seqno, Some(view));
        }
    };
    // The number first: what it sees has been noted.
    let at = if store.clock.has_deadlines() { store.clock.mark() } else { NEVER };
    ((seqno, at), view)
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let store = &self.handle.store;
        if store.gate.is_forked() {
            return;
        }
        if store.shape.snapshots().remove((self.point.seqno, self.point.at), self.registered) {
            store.schedule();
        }
        if !store.gate.is_read_only() && store.shape.has_ranges_after(self.point.seqno) {
            store.tidy_all_ranges();
        }
    }
}

impl Snapshot {
    /// A snapshot of the moment of `pinned`; its own methods read the default keyspace.
    pub(super) fn of(pinned: &Pinned) -> Snapshot {
        Snapshot { pinned: Arc::new(pinned.again()), keyspace: 0, name: KeyspaceName::Default }
    }

    fn new(keyspace: &Keyspace) -> Snapshot {
        Snapshot {
            pinned: Arc::new(Pinned::new(&keyspace.handle)),
            keyspace: keyspace.id,
            name: KeyspaceName::new(keyspace.id, &keyspace.name),
        }
    }

    fn store(&self) -> &Arc<Store> {
        &self.pinned.handle.store
    }

    fn target(&self) -> ReadTarget<'_> {
        ReadTarget { keyspace: self.keyspace, name: &self.name, snapshot: Some(self.point()) }
    }

    fn point(&self) -> &ReadPoint {
        &self.pinned.point
    }

    /// Sequence number of the last write that the snapshot sees.
    pub fn seqno(&self) -> SeqNo {
        self.pinned.point.seqno
    }

    /// This snapshot of another keyspace. Reads in a keyspace of another store fail.
    pub fn keyspace(&self, keyspace: &Keyspace) -> Snapshot {
        Snapshot {
            pinned: Arc::clone(&self.pinned),
            keyspace: if Arc::ptr_eq(keyspace.store(), self.store()) { keyspace.id } else { FOREIGN },
            name: KeyspaceName::new(keyspace.id, &keyspace.name),
        }
    }
}

reads!(Snapshot);

impl Keyspace {
    /// Takes a snapshot of all keyspaces as they are now; its own methods read this one.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self)
    }
}
