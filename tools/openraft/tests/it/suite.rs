//! openraft's own tests of storage, over tamis.

use std::sync::Arc;

use openraft::storage::RaftStateMachine;
use openraft::testing::{StoreBuilder, Suite};
use openraft::{CommittedLeaderId, EntryPayload};
use tamis::vfs::MemoryFileSystem;

use super::pairs::{Entry, LogId, LogStore, StateStore, StorageError, Syncer, Types, open};

pub(crate) struct InMemory;

impl StoreBuilder<Types, LogStore, StateStore> for InMemory {
    async fn build(&self) -> Result<((), LogStore, StateStore), StorageError> {
        let store = open(MemoryFileSystem::new());
        let states = StateStore::open(&store, 3).unwrap();
        // The suite purges entries that it has not applied. The log waits for those that the state
        // lacks, and so gets one that lacks none.
        let mut ahead = StateStore::open(&store, 4).unwrap();
        let last = LogId::new(CommittedLeaderId::new(u64::MAX, 0), u64::MAX);
        ahead.apply([Entry { log_id: last, payload: EntryPayload::Blank }]).await?;
        let db = store.db.clone();
        let syncer = Syncer::start(move || db.sync()).unwrap();
        let log = LogStore::new(&store, 3, ahead.state(), Arc::new(()), syncer);
        Ok(((), log, states))
    }
}

#[test]
fn storage_passes_the_suite_of_the_consensus_library() {
    Suite::test_all(InMemory).unwrap();
}
