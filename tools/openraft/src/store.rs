//! The store of a node: one tamis store for the logs, votes and states of all groups.
//!
//! | keyspace | logged | holds |
//! |---|---|---|
//! | `raft-log` | yes | entries: group, index → entry |
//! | `raft-meta` | yes | group, [`Item`] → vote, committed and so on |
//! | `group-GROUP-GENERATION` | no | the state of a group: its log is the Raft log |
//!
//! Both logged keyspaces share one write-ahead log. What is written later is never durable before
//! what was written earlier, and one sync serves all groups. Numbers in keys are big-endian; values
//! are encoded by postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tamis::{Db, Keyspace, KeyspaceOptions, WriteBatch, WriteOptions};

use crate::error::{Error, Result};

/// Name of something that is kept of a group beside its log, a byte of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item(u8);

impl Item {
    /// The term and the node that this node has voted for.
    pub const VOTE: Item = Item(b'v');
    /// The last entry known to be committed.
    pub const COMMITTED: Item = Item(b'c');
    /// The last entry that has been removed from the front of the log.
    pub const PURGED: Item = Item(b'p');
    /// Number of the keyspace that holds the state.
    pub const GENERATION: Item = Item(b'g');

    /// An item of the program's own. `None` for the names above.
    pub const fn of_program(name: u8) -> Option<Item> {
        match name {
            b'v' | b'c' | b'p' | b'g' => None,
            name => Some(Item(name)),
        }
    }
}

/// The keyspaces of a node that all groups share.
#[derive(Clone, Debug)]
pub struct Store {
    /// The store.
    pub db: Db,
    /// Entries.
    pub log: Keyspace,
    /// Items of groups. Keys of the program's own, shorter than five bytes, may be there, too.
    pub meta: Keyspace,
}

impl Store {
    /// Makes the keyspaces in `db`, unless they are there. When this returns, everything in the
    /// store is durable: after a kill, entries may be in the log that no sync has covered, and from
    /// now on this node answers for them.
    pub fn open(db: &Db) -> Result<Store> {
        let (log, meta) = (db.keyspace("raft-log")?, db.keyspace("raft-meta")?);
        db.sync()?;
        Ok(Store { db: db.clone(), log, meta })
    }

    /// The keyspaces of a store that is opened for reading only, or `None` if they are not there.
    pub fn existing(db: &Db) -> Result<Option<Store>> {
        let (log, meta) = (db.existing_keyspace("raft-log")?, db.existing_keyspace("raft-meta")?);
        Ok(log.zip(meta).map(|(log, meta)| Store { db: db.clone(), log, meta }))
    }

    /// Reads an item of a group.
    pub fn item<T: DeserializeOwned>(&self, group: u32, item: Item) -> Result<Option<T>> {
        let bytes = self.meta.get(item_key(group, item))?;
        bytes.map(|bytes| decode(&bytes, "raft-meta")).transpose()
    }

    /// Adds the write of an item to `batch`.
    pub fn put_item<T: Serialize>(&self, batch: &mut WriteBatch, group: u32, item: Item, of: &T) -> Result<()> {
        batch.put_in(&self.meta, item_key(group, item), encode(of)?);
        Ok(())
    }

    /// Adds the removal of an item to `batch`.
    pub fn delete_item(&self, batch: &mut WriteBatch, group: u32, item: Item) {
        batch.delete_in(&self.meta, item_key(group, item));
    }

    /// Writes an item; durable when this returns if `sync`.
    pub fn write_item<T: Serialize>(&self, group: u32, item: Item, of: &T, sync: bool) -> Result<()> {
        let mut batch = WriteBatch::new();
        self.put_item(&mut batch, group, item, of)?;
        self.db.write_with(batch, WriteOptions::new().sync(sync))?;
        Ok(())
    }

    /// Opens the keyspace of a state, without a log of its own; it is made if it is absent.
    pub fn state(&self, name: &str) -> Result<Keyspace> {
        Ok(self.db.keyspace_with(name, KeyspaceOptions::new().wal(false))?)
    }

    /// Name of the keyspace that holds a generation of a group's state.
    pub fn keyspace_name(group: u32, generation: u64) -> String {
        format!("group-{group}-{generation}")
    }

    /// Generations of the group's state that are in the store: one, and what unfinished snapshots
    /// have left.
    pub fn generations(&self, group: u32) -> Result<Vec<u64>> {
        let prefix = format!("group-{group}-");
        let names = self.db.keyspace_names()?;
        Ok(names.iter().filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()).collect())
    }
}

fn item_key(group: u32, Item(item): Item) -> [u8; 5] {
    let [a, b, c, d] = group.to_be_bytes();
    [a, b, c, d, item]
}

/// Encodes what is stored or sent.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|error| Error::Encode(error.to_string()))
}

/// Decodes what [`encode`] wrote; `place` says where it was found. Bytes left over are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], place: &'static str) -> Result<T> {
    let broken = |rule: String| Error::Decode { place, rule };
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|error| broken(error.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(broken(format!("{} bytes too many", rest.len()))) }
}
