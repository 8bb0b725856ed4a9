//! [`Snapshot`]: the store as it was at one moment.

use std::sync::Arc;

use super::StoreHandle;
use super::keyspace::Keyspace;
use super::read::{ReadPoint, ReadTarget};
use super::reads::reads;
use super::store::Store;
use crate::format::key::SeqNo;

/// All keyspaces as they were when the snapshot was taken, whatever is written later.
///
/// It is owned, and cheap to take and to clone. While it lives, compactions keep the versions that
/// it sees, and the store stays open and locked, also after all other handles are dropped:
/// [`Db::close`](crate::Db::close) releases the lock beside it. It keeps no memtable and no
/// replaced table, except in a store that is open read-only: there it keeps those of its moment,
/// since the process that writes does not know it. Its own methods read the default keyspace;
/// [`Snapshot::keyspace`] reads any other.
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
    name: Arc<str>,
}

/// A sequence number registered as a live snapshot.
struct Pinned {
    handle: Arc<StoreHandle>,
    point: ReadPoint,
}

impl Pinned {
    fn new(handle: &Arc<StoreHandle>) -> Pinned {
        let store = &handle.store;
        let view = store.gate.is_read_only().then(|| store.view.load());
        let seqno = store.snapshots.add(|| match &view {
            Some(view) => view.visible(&store.sequence),
            None => store.sequence.visible(),
        });
        Pinned { handle: Arc::clone(handle), point: ReadPoint { seqno, view } }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let store = &self.handle.store;
        if store.snapshots.remove(self.point.seqno) {
            store.schedule();
        }
        if !store.gate.is_read_only() && store.has_ranges_after(self.point.seqno) {
            store.spawn_help(|store| {
                let _ = store.tidy_ranges();
                store.schedule();
            });
        }
    }
}

impl Snapshot {
    fn new(keyspace: &Keyspace) -> Snapshot {
        Snapshot {
            pinned: Arc::new(Pinned::new(&keyspace.handle)),
            keyspace: keyspace.id,
            name: Arc::clone(&keyspace.name),
        }
    }

    fn store(&self) -> &Arc<Store> {
        &self.pinned.handle.store
    }

    fn target(&self) -> ReadTarget<'_> {
        ReadTarget { keyspace: self.keyspace, name: &self.name, snapshot: Some(self.point()), at: None }
    }

    pub(super) fn point(&self) -> &ReadPoint {
        &self.pinned.point
    }

    /// Sequence number of the last write that the snapshot sees.
    pub fn seqno(&self) -> SeqNo {
        self.pinned.point.seqno
    }

    /// This snapshot of another keyspace.
    pub fn keyspace(&self, keyspace: &Keyspace) -> Snapshot {
        Snapshot { pinned: Arc::clone(&self.pinned), keyspace: keyspace.id, name: Arc::clone(&keyspace.name) }
    }
}

reads!(Snapshot);

impl Keyspace {
    /// Takes a snapshot of all keyspaces as they are now; its own methods read this one.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self)
    }
}
