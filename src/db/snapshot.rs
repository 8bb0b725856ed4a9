//! [`Snapshot`]: the store as it was at one moment.

use std::sync::Arc;

use super::Handle;
use super::keyspace::Keyspace;
use super::read::Source;
use super::reads::reads;
use super::store::Store;
use crate::format::key::SeqNo;

/// All keyspaces as they were when it was taken, whatever is written meanwhile.
///
/// It is owned, and cheap to take and to clone. While it lives, versions that it can see are kept
/// on disk, and the store stays open. It keeps no memtable and no replaced table.
/// Its own methods read the default keyspace; [`Snapshot::keyspace`] reads any other.
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

/// A sequence number in the list of live snapshots.
struct Pinned {
    handle: Arc<Handle>,
    seqno: SeqNo,
}

impl Pinned {
    fn new(handle: &Arc<Handle>) -> Pinned {
        let store = &handle.store;
        let seqno = store.snapshots.add(|| store.sequence.visible());
        Pinned { handle: Arc::clone(handle), seqno }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let store = &self.handle.store;
        if store.snapshots.remove(self.seqno) {
            store.schedule();
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

    fn source(&self) -> Source<'_> {
        Source { keyspace: self.keyspace, name: &self.name, snapshot: Some(self.seqno()) }
    }

    /// Sequence number of the last write that the snapshot sees.
    pub fn seqno(&self) -> SeqNo {
        self.pinned.seqno
    }

    /// The same moment in another keyspace.
    pub fn keyspace(&self, keyspace: &Keyspace) -> Snapshot {
        Snapshot { pinned: Arc::clone(&self.pinned), keyspace: keyspace.id, name: Arc::clone(&keyspace.name) }
    }
}

reads!(Snapshot);

impl Keyspace {
    /// All keyspaces as they are now; the snapshot's own methods read this one.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self)
    }
}
