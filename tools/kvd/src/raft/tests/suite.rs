//! The consensus library's own tests of storage, over tamis.

use std::path::Path;
use std::sync::Arc;

use openraft::testing::{StoreBuilder, Suite};
use tamis::Options;
use tamis::vfs::MemoryFileSystem;

use crate::raft::library::Types;
use crate::raft::log::{LogStore, Syncer};
use crate::raft::state::StateStore;
use crate::raft::types::StorageError;
use crate::store::Store;

struct InMemory;

impl StoreBuilder<Types, LogStore, StateStore> for InMemory {
    async fn build(&self) -> Result<((), LogStore, StateStore), StorageError> {
        let options = Options::new().file_system(Arc::new(MemoryFileSystem::new()));
        let store = Store::open(options, Path::new("/db")).unwrap();
        let states = StateStore::open(&store, 3).unwrap();
        let db = store.db.clone();
        let syncer = Syncer::start(move || db.sync()).unwrap();
        let log = LogStore::new(store.clone(), 3, states.state(), syncer);
        Ok(((), log, states))
    }
}

#[test]
fn storage_passes_the_suite_of_the_consensus_library() {
    Suite::test_all(InMemory).unwrap();
}
