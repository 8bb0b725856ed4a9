//! [`Snapshot`]: the store as it was at one moment.

use std::sync::Arc;

use super::iter::{Cursor, HalfOpen, Iter, KeyRange};
use super::read::{ReadOptions, Source};
use super::store::Store;
use super::{Handle, Keyspace};
use crate::error::Result;
use crate::format::key::SeqNo;
use crate::report::explain::{Explanation, Untraced};
use crate::sorted::value::Value;

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
    pub(super) fn new(keyspace: &Keyspace) -> Snapshot {
        Snapshot {
            pinned: Arc::new(Pinned::new(&keyspace.handle)),
            keyspace: keyspace.id,
            name: Arc::clone(&keyspace.name),
        }
    }

    fn store(&self) -> &Store {
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

    /// The value of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_with(key, ReadOptions::default())
    }

    /// The value of a key, read as `options` say.
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: ReadOptions) -> Result<Option<Value>> {
        self.store().get(self.source(), key.as_ref(), options, &mut Untraced, |value| value.into_value())
    }

    /// Puts the value of a key into a buffer; see [`Keyspace::get_into`].
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        self.store().get_into(self.source(), key.as_ref(), value)
    }

    /// Calls `read` with the value of a key; see [`Keyspace::read`].
    pub fn read<R>(&self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.store().read(self.source(), key.as_ref(), read)
    }

    /// The values of many keys, in the order of the keys; see [`Keyspace::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        self.multi_get_with(keys, ReadOptions::default())
    }

    /// The values of many keys, read as `options` say.
    pub fn multi_get_with<K: AsRef<[u8]>>(&self, keys: &[K], options: ReadOptions) -> Result<Vec<Option<Value>>> {
        self.store().multi_get(self.source(), keys, options)
    }

    /// Reads a key and says how; see [`Keyspace::explain`].
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        self.store().explain(self.source(), key.as_ref(), ReadOptions::default())
    }

    /// Whether a key is there.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.store().contains_key(self.source(), key.as_ref())
    }

    /// All entries, in key order.
    pub fn iter(&self) -> Iter {
        self.range(..)
    }

    /// The entries of a range of keys.
    pub fn range(&self, range: impl KeyRange) -> Iter {
        self.range_with(range, ReadOptions::default())
    }

    /// The entries of a range of keys, read as `options` say; see [`Keyspace::range_with`].
    pub fn range_with(&self, range: impl KeyRange, options: ReadOptions) -> Iter {
        self.pinned.handle.store.iter(self.keyspace, &self.name, HalfOpen::of(range), Some(self.seqno()), options)
    }

    /// The entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        self.prefix_with(prefix, ReadOptions::default())
    }

    /// The entries whose keys begin with `prefix`, read as `options` say; see [`Keyspace::prefix_with`].
    pub fn prefix_with(&self, prefix: impl AsRef<[u8]>, options: ReadOptions) -> Iter {
        let range = HalfOpen::of_prefix(prefix.as_ref());
        self.pinned.handle.store.iter(self.keyspace, &self.name, range, Some(self.seqno()), options)
    }

    /// A cursor, to begin with on no entry.
    pub fn cursor(&self) -> Result<Cursor> {
        self.pinned.handle.store.cursor(self.keyspace, &self.name, Some(self.seqno()), ReadOptions::default())
    }
}
