//! The store of a node: one tamis store for the logs, votes and states of all groups.
//!
//! | keyspace | logged | holds |
//! |---|---|---|
//! | `raft-log` | yes | entries: group, index → entry |
//! | `raft-meta` | yes | group, [`Item`] → vote, committed and so on; who the node is |
//! | `group-GROUP-GENERATION` | no | the state machine of a group: its log is the Raft log |
//!
//! Both logged keyspaces share one write-ahead log. What is written later is never durable before
//! what was written earlier, and one sync serves all groups.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tamis::{Db, Options, WriteBatch, WriteOptions};
use tamis_openraft::Item;

use crate::error::{Error, Result};
use crate::machine::Version;

/// Key of the node's identity in `raft-meta`: shorter than the keys of groups.
const IDENTITY: &[u8] = b"no";

/// Where it was before entries had versions.
const IDENTITY_BEFORE: &[u8] = b"id";

/// Key of the cluster's number in `raft-meta`.
const CLUSTER: &[u8] = b"cl";

/// Key that is in `raft-meta` while a store is being recovered.
const UNFINISHED: &[u8] = b"re";

/// There if this replica began empty when the group already had entries, since its disk was lost or
/// it had left the group: the members at that time.
pub(crate) const LATE: Item = item(b'l');
/// The version that a node must know to read the log and the state. The first, unless there.
pub(crate) const VERSION: Item = item(b'w');

const fn item(name: u8) -> Item {
    match Item::of_program(name) {
        Some(item) => item,
        None => panic!("the name is one of tamis-openraft's"),
    }
}

/// The version that this node knows, and the one that its groups have. Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Versions {
    known: Version,
    needed: Arc<AtomicU8>,
}

/// Of a program that is no older than it is, without groups.
impl Default for Versions {
    fn default() -> Versions {
        Versions::new(Version::LATEST)
    }
}

impl Versions {
    /// Of a node that knows `known`, and has no groups yet.
    pub(crate) fn new(known: Version) -> Versions {
        Versions { known, needed: Arc::new(AtomicU8::new(Version::FIRST.number())) }
    }

    /// What this node can read.
    pub(crate) fn known(&self) -> Version {
        self.known
    }

    /// What a node must be able to read that talks with this one.
    pub(crate) fn needed(&self) -> Version {
        Version::new(self.needed.load(Ordering::Acquire))
    }

    /// Notes that a group has a version.
    pub(crate) fn raise(&self, to: Version) {
        self.needed.fetch_max(to.number(), Ordering::AcqRel);
    }

    /// Fails unless this node can read what has version `found`.
    pub(crate) fn check(&self, found: Version, place: &'static str) -> Result<()> {
        let known = self.known;
        if found <= known { Ok(()) } else { Err(Error::Version { place, found, known }) }
    }
}

/// The store and its keyspaces.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    groups: tamis_openraft::Store,
    pub(crate) versions: Versions,
}

impl Deref for Store {
    type Target = tamis_openraft::Store;

    fn deref(&self) -> &tamis_openraft::Store {
        &self.groups
    }
}

impl Store {
    /// Opens the store in `dir`, or creates it. When this returns, everything in it is durable.
    pub(crate) fn open(options: Options, dir: &Path) -> Result<Store> {
        Store::of(&options.open(dir)?)
    }

    fn of(db: &Db) -> Result<Store> {
        Ok(Store { groups: tamis_openraft::Store::open(db)?, versions: Versions::default() })
    }

    /// The store of a node that knows no later version than `known`.
    pub(crate) fn knowing(self, known: Version) -> Store {
        Store { versions: Versions::new(known), ..self }
    }

    /// Opens a store of a node for reading, beside the node or without it.
    pub(crate) fn open_read_only(options: Options, dir: &Path) -> Result<Store> {
        let db = options.open_read_only(dir)?;
        let missing = || Error::Config(format!("{} is no store of kvd: it has no logs", dir.display()));
        let groups = tamis_openraft::Store::existing(&db)?.ok_or_else(missing)?;
        Ok(Store { groups, versions: Versions::default() })
    }

    /// The node to which the store belongs, and the number of groups.
    pub(crate) fn identity(&self) -> Result<Option<(u64, u32)>> {
        if self.meta.contains_key(IDENTITY_BEFORE)? {
            let dir = self.db.path().display();
            return Err(Error::Config(format!(
                "{dir} is of a kvd whose entries had no versions; export it by that one, and load the export"
            )));
        }
        self.meta.get(IDENTITY)?.map(|bytes| decode(&bytes, "raft-meta, identity")).transpose()
    }

    /// The version of a group. Fails if this node does not know it.
    pub(crate) fn version(&self, group: u32) -> Result<Version> {
        let version = self.item(group, VERSION)?.unwrap_or(Version::FIRST);
        self.versions.check(version, "the store")?;
        Ok(version)
    }

    /// Creates a store and marks it as unfinished, so that no node starts on it. A store that is
    /// there, maybe another program's, stays as it is.
    pub(crate) fn begin_recovery(options: Options, dir: &Path) -> Result<Store> {
        let db = options.open(dir)?;
        if db.last_seqno() > 0 || db.keyspace_names()?.len() > 1 {
            return Err(Error::Config(format!("{} is not empty", dir.display())));
        }
        let store = Store::of(&db)?;
        store.meta.put_with(UNFINISHED, "", WriteOptions::new().sync(true))?;
        Ok(store)
    }

    /// Gives the store to node `id` of a cluster, durably.
    pub(crate) fn end_recovery(&self, id: u64, groups: u32, cluster: u64) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put_in(&self.meta, IDENTITY, encode(&(id, groups))?);
        self.put_cluster(&mut batch, cluster)?;
        batch.delete_in(&self.meta, UNFINISHED);
        self.write_durably(batch)
    }

    /// Binds the store to a node: the first call notes `id` and the number of groups, later ones
    /// fail with another `id`. Returns the number of groups, which is for ever that of the first.
    pub(crate) fn bind(&self, id: u64, groups: u32) -> Result<u32> {
        let dir = self.db.path().display();
        if self.meta.contains_key(UNFINISHED)? {
            return Err(Error::Config(format!("{dir} is left of a recovery that was interrupted; remove it")));
        }
        match self.identity()? {
            None => {
                self.meta.put_with(IDENTITY, encode(&(id, groups))?, WriteOptions::new().sync(true))?;
                Ok(groups)
            }
            Some((stored, groups)) if stored == id => Ok(groups),
            Some((stored, _)) => {
                Err(Error::Config(format!("the store in {dir} belongs to node {stored}, not to node {id}")))
            }
        }
    }

    /// The cluster to which the store belongs; 0 stands for none.
    pub(crate) fn cluster(&self) -> Result<u64> {
        let bytes = self.meta.get(CLUSTER)?;
        bytes.map_or(Ok(0), |bytes| decode(&bytes, "raft-meta, cluster"))
    }

    /// Adds the cluster to `batch`.
    pub(crate) fn put_cluster(&self, batch: &mut WriteBatch, cluster: u64) -> Result<()> {
        batch.put_in(&self.meta, CLUSTER, encode(&cluster)?);
        Ok(())
    }

    /// Writes `batch`, which is durable when this returns.
    pub(crate) fn write_durably(&self, batch: WriteBatch) -> Result<()> {
        self.db.write_with(batch, WriteOptions::new().sync(true))?;
        Ok(())
    }
}

/// Encodes what is stored or sent.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    Ok(tamis_openraft::encode(value)?)
}

/// Decodes what [`encode`] wrote; `place` says where it was found. Bytes left over are an error.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], place: &'static str) -> Result<T> {
    Ok(tamis_openraft::decode(bytes, place)?)
}
