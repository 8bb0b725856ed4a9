//! The store of a node: one tamis store for the logs, votes and states of all groups.
//!
//! | keyspace | logged | holds |
//! |---|---|---|
//! | `raft-log` | yes | entries: group, index → entry |
//! | `raft-meta` | yes | group, [`Item`] → vote, committed, purged, generation; the node's identity |
//! | `state-GROUP-GENERATION` | no | the state machine of a group: its log is the Raft log |
//!
//! Both logged keyspaces share one write-ahead log. What is written later is never durable before
//! what was written earlier, and one sync serves all groups.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tamis::{Db, Keyspace, Options, WriteBatch, WriteOptions};

use crate::error::{Error, Result};

/// Key of the node's identity in `raft-meta`: shorter than a group number, so no group has it.
const IDENTITY: &[u8] = b"id";

/// What is kept of a group beside its log. The discriminant is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Item {
    /// The term and the node that this node has voted for.
    Vote = b'v',
    /// The last entry known to be committed.
    Committed = b'c',
    /// The last entry that has been removed from the front of the log.
    Purged = b'p',
    /// Number of the keyspace that holds the state.
    Generation = b'g',
}

/// The store and its keyspaces.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) db: Db,
    pub(crate) log: Keyspace,
    pub(crate) meta: Keyspace,
}

impl Store {
    /// Opens the store in `dir`, or creates it. When this returns, everything in it is durable.
    pub(crate) fn open(options: Options, dir: &Path) -> Result<Store> {
        let db = options.open(dir)?;
        let (log, meta) = (db.keyspace("raft-log")?, db.keyspace("raft-meta")?);
        // After a kill, entries may be in the log that no sync has covered. From now on this node
        // answers for them.
        db.sync()?;
        Ok(Store { db, log, meta })
    }

    /// Binds the store to a node: the first call notes `id` and the number of groups, later ones
    /// fail with another `id`. Returns the number of groups, which is for ever that of the first.
    pub(crate) fn bind(&self, id: u64, groups: u32) -> Result<u32> {
        let Some(bytes) = self.meta.get(IDENTITY)? else {
            self.meta.put_with(IDENTITY, encode(&(id, groups))?, WriteOptions::new().sync(true))?;
            return Ok(groups);
        };
        match decode(&bytes, "raft-meta, identity")? {
            (stored, groups) if stored == id => Ok(groups),
            (stored, _) => {
                let dir = self.db.path().display();
                let stored: u64 = stored;
                Err(Error::Config(format!("the store in {dir} belongs to node {stored}, not to node {id}")))
            }
        }
    }

    /// Reads an item of a group.
    pub(crate) fn item<T: DeserializeOwned>(&self, group: u32, item: Item) -> Result<Option<T>> {
        let bytes = self.meta.get(item_key(group, item))?;
        bytes.map(|bytes| decode(&bytes, "raft-meta")).transpose()
    }

    /// Adds the write of an item to `batch`.
    pub(crate) fn put_item<T: Serialize>(&self, batch: &mut WriteBatch, group: u32, item: Item, of: &T) -> Result<()> {
        batch.put_in(&self.meta, item_key(group, item), encode(of)?);
        Ok(())
    }

    /// Writes an item; durable when this returns if `sync`.
    pub(crate) fn write_item<T: Serialize>(&self, group: u32, item: Item, of: &T, sync: bool) -> Result<()> {
        let mut batch = WriteBatch::new();
        self.put_item(&mut batch, group, item, of)?;
        self.db.write_with(batch, WriteOptions::new().sync(sync))?;
        Ok(())
    }
}

fn item_key(group: u32, item: Item) -> [u8; 5] {
    let [a, b, c, d] = group.to_be_bytes();
    [a, b, c, d, item as u8]
}

/// Encodes what is stored or sent.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|error| Error::Encode(error.to_string()))
}

/// Decodes what [`encode`] wrote; `place` says where it was found. Bytes left over are an error.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], place: &'static str) -> Result<T> {
    let broken = |rule: String| Error::Decode { place, rule };
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|error| broken(error.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(broken(format!("{} bytes too many", rest.len()))) }
}
