//! A state machine whose entries set a key to a value.

use std::path::Path;
use std::sync::Arc;

use openraft::{BasicNode, RaftTypeConfig, TokioRuntime};
use tamis::vfs::FileSystem;
use tamis::{Db, Keyspace, Options, WriteBatch};
use tamis_openraft::{Position, Result, SnapshotData, StateMachine, Store};

openraft::declare_raft_types!(
    pub(crate) Types:
        D = (String, String),
        R = Option<String>,
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = SnapshotData,
        AsyncRuntime = TokioRuntime,
);

pub(crate) type Entry = <Types as RaftTypeConfig>::Entry;
pub(crate) type LogId = tamis_openraft::LogId<Types>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type StorageError = openraft::StorageError<u64>;
pub(crate) type LogStore = tamis_openraft::LogStore<Types, Pairs>;
pub(crate) type StateStore = tamis_openraft::StateStore<Types, Pairs>;
pub(crate) type Syncer = tamis_openraft::Syncer<Types, ()>;

pub(crate) struct Pairs {
    db: Db,
    keyspace: Keyspace,
}

impl Pairs {
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        let value = self.keyspace.get(format!("of entries/{key}")).unwrap()?;
        Some(String::from_utf8(value.to_vec()).unwrap())
    }
}

impl StateMachine<Types> for Pairs {
    fn open(db: &Db, keyspace: Keyspace) -> Result<Pairs> {
        Ok(Pairs { db: db.clone(), keyspace })
    }

    fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    fn apply(&self, data: Option<&(String, String)>, position: &Position) -> Result<Option<String>> {
        let mut batch = WriteBatch::new();
        for (name, value) in position.pairs() {
            batch.put_in(&self.keyspace, [b"of raft/", name].concat(), value);
        }
        let before = data.and_then(|(key, _)| self.get(key));
        if let Some((key, value)) = data {
            batch.put_in(&self.keyspace, format!("of entries/{key}"), value);
        }
        self.db.write(batch)?;
        Ok(before)
    }

    fn position(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.keyspace.get([b"of raft/", name].concat())?.map(|value| value.to_vec()))
    }
}

/// A store in `/db` with small memtables.
pub(crate) fn open(fs: impl FileSystem + 'static) -> Store {
    let options = Options::new().file_system(Arc::new(fs)).memtable_size(64 << 10);
    Store::open(&options.open(Path::new("/db")).unwrap()).unwrap()
}
