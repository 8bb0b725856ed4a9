//! The consensus library's own tests of storage, over the state machine and what the log notes.

use std::path::Path;
use std::sync::Arc;

use openraft::storage::RaftStateMachine;
use openraft::testing::{StoreBuilder, Suite};
use openraft::{CommittedLeaderId, EntryPayload, StorageError};
use tamis::Options;
use tamis::vfs::MemoryFileSystem;

use crate::raft::library::{Entry, Types};
use crate::raft::log::{LogStore, Syncer};
use crate::raft::state::{State, StateStore};
use crate::raft::types::LogId;
use crate::store::Store;

struct InMemory;

impl StoreBuilder<Types, LogStore, StateStore> for InMemory {
    async fn build(&self) -> Result<((), LogStore, StateStore), StorageError<u64>> {
        let options = Options::new().file_system(Arc::new(MemoryFileSystem::new()));
        let store = Store::open(options, Path::new("/db")).unwrap();
        let states = StateStore::open(&store, 3).unwrap();
        // The suite purges entries that it has not applied. The log waits for those that the state
        // lacks, and so gets one that lacks none.
        let mut ahead = StateStore::open(&store, 4).unwrap();
        let last = LogId::new(CommittedLeaderId::new(u64::MAX, 0), u64::MAX);
        ahead.apply([Entry { log_id: last, payload: EntryPayload::Blank }]).await?;
        let db = store.db.clone();
        let syncer = Syncer::start(move || db.sync()).unwrap();
        let events = Arc::new(State::new(&store, 3, states.state()).unwrap());
        let log = LogStore::new(&store, 3, ahead.state(), events, syncer);
        Ok(((), log, states))
    }
}

#[test]
fn storage_passes_the_suite_of_the_consensus_library() {
    Suite::test_all(InMemory).unwrap();
}
