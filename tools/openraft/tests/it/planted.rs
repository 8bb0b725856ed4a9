//! Bugs planted in front of the storage adapters, as a user of the consensus library could make
//! them: its suite refuses each. A missing sync is not among them, since the suite cuts no power:
//! `power` has that one.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::thread;

use openraft::storage::{LogFlushed, RaftLogStorage, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{BasicNode, EntryPayload, LogState, OptionalSend, RaftLogReader, RaftSnapshotBuilder};
use tamis_openraft::SnapshotData;

use super::pairs::{Entry, LogId, LogStore, Pairs, StateStore, StorageError, Types, Vote};
use super::suite::InMemory;

type Snapshot = openraft::Snapshot<Types>;
type SnapshotMeta = openraft::SnapshotMeta<u64, BasicNode>;
type SnapshotBuilder = tamis_openraft::SnapshotBuilder<Types, Pairs>;
type StoredMembership = openraft::StoredMembership<u64, BasicNode>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    VoteNotSaved,
    /// Entry 5 is not written.
    HoleInLog,
    /// Truncation leaves the first of the entries that it should delete.
    TruncatesTooLittle,
    /// A purge deletes one entry more than it should.
    PurgesTooMuch,
    /// A log of which all entries are purged is taken for one that never had any.
    PurgedLogIsNew,
    /// The state does not tell which entry was applied to it last.
    AppliedNotSaved,
    MembershipNotSaved,
    /// A snapshot claims to end one entry before the one that it ends with.
    SnapshotOfEntryBefore,
}

const BUGS: [Bug; 8] = [
    Bug::VoteNotSaved,
    Bug::HoleInLog,
    Bug::TruncatesTooLittle,
    Bug::PurgesTooMuch,
    Bug::PurgedLogIsNew,
    Bug::AppliedNotSaved,
    Bug::MembershipNotSaved,
    Bug::SnapshotOfEntryBefore,
];

/// An adapter of the real code, with at most one bug.
struct Planted<T> {
    real: T,
    bug: Option<Bug>,
}

impl<T> Planted<T> {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

impl RaftLogReader<Types> for Planted<LogStore> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        self.real.try_get_log_entries(range).await
    }
}

impl RaftLogStorage<Types> for Planted<LogStore> {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let mut state = self.real.get_log_state().await?;
        if self.has(Bug::PurgedLogIsNew) && state.last_log_id == state.last_purged_log_id {
            state.last_log_id = None;
        }
        Ok(state)
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.real.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        if self.has(Bug::VoteNotSaved) { Ok(()) } else { self.real.save_vote(vote).await }
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        self.real.read_vote().await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        self.real.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        self.real.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let missing = self.has(Bug::HoleInLog).then_some(5);
        let written: Vec<Entry> = entries.into_iter().filter(|entry| Some(entry.log_id.index) != missing).collect();
        self.real.append(written, callback).await
    }

    async fn truncate(&mut self, mut log_id: LogId) -> Result<(), StorageError> {
        log_id.index += u64::from(self.has(Bug::TruncatesTooLittle));
        self.real.truncate(log_id).await
    }

    async fn purge(&mut self, mut log_id: LogId) -> Result<(), StorageError> {
        log_id.index += u64::from(self.has(Bug::PurgesTooMuch));
        self.real.purge(log_id).await
    }
}

impl RaftStateMachine<Types> for Planted<StateStore> {
    type SnapshotBuilder = Planted<SnapshotBuilder>;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let (applied, membership) = self.real.applied_state().await?;
        Ok((applied.filter(|_| !self.has(Bug::AppliedNotSaved)), membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Option<String>>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut entries: Vec<Entry> = entries.into_iter().collect();
        if self.has(Bug::MembershipNotSaved) {
            entries.iter_mut().for_each(|entry| entry.payload = EntryPayload::Blank);
        }
        self.real.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> Planted<SnapshotBuilder> {
        Planted { real: self.real.get_snapshot_builder().await, bug: self.bug }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotData>, StorageError> {
        self.real.begin_receiving_snapshot().await
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Box<SnapshotData>) -> Result<(), StorageError> {
        self.real.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        self.real.get_current_snapshot().await
    }
}

impl RaftSnapshotBuilder<Types> for Planted<SnapshotBuilder> {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        let mut snapshot = self.real.build_snapshot().await?;
        if let Some(last) = snapshot.meta.last_log_id.as_mut().filter(|_| self.has(Bug::SnapshotOfEntryBefore)) {
            last.index = last.index.saturating_sub(1);
        }
        Ok(snapshot)
    }
}

struct WithBug(Option<Bug>);

impl StoreBuilder<Types, Planted<LogStore>, Planted<StateStore>> for WithBug {
    async fn build(&self) -> Result<((), Planted<LogStore>, Planted<StateStore>), StorageError> {
        let ((), log, states) = InMemory.build().await?;
        Ok(((), Planted { real: log, bug: self.0 }, Planted { real: states, bug: self.0 }))
    }
}

/// Whether the suite accepts the adapters with this bug. It panics where it does not.
fn is_accepted(bug: Option<Bug>) -> thread::JoinHandle<bool> {
    thread::spawn(move || thread::spawn(move || Suite::test_all(WithBug(bug)).is_ok()).join().unwrap_or(false))
}

#[test]
fn the_suite_refuses_each_planted_bug() {
    let control = is_accepted(None);
    let outcomes = BUGS.map(|bug| (bug, is_accepted(Some(bug))));
    let unseen = outcomes.into_iter().filter_map(|(bug, accepted)| accepted.join().unwrap().then_some(bug));
    assert_eq!(unseen.collect::<Vec<_>>(), []);
    assert!(control.join().unwrap(), "the suite refuses the adapters without a bug");
}
