//! The state of a group: [`StateMachine`] is the program's, [`StateStore`] has openraft use it.
//!
//! The state's keyspace has no log: after a crash it is as it was at the last flush, and the log is
//! applied again from there. The log therefore keeps every entry that is not flushed:
//! [`SnapshotBuilder`] flushes before it reports up to where the log may be purged, and so does a
//! purge ([`Progress::flush_up_to`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, EntryPayload, OptionalSend, RaftSnapshotBuilder, RaftTypeConfig, Snapshot, SnapshotMeta, StorageError,
    StorageIOError, StoredMembership,
};
use parking_lot::{Mutex, RwLock};
use tamis::{Db, Keyspace};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::snapshot::{SnapshotData, Staging, View};
use crate::store::{Item, Store, decode, encode};
use crate::{LogId, blocking};

/// Between two attempts to make a state durable on a disk that is full.
const SPACE_PAUSE: Duration = Duration::from_millis(250);

/// What an entry's effects must be stored with, in one batch: the entry's id, and the membership if
/// it changes that.
#[derive(Debug, Default)]
pub struct Position {
    pairs: Vec<(&'static [u8], Vec<u8>)>,
}

impl Position {
    /// Name of the pair that holds the id of the last entry applied.
    pub const APPLIED: &[u8] = b"applied";
    /// Name of the pair that holds the last membership applied.
    pub const MEMBERSHIP: &[u8] = b"membership";

    /// The position of a state after `last` with the members `membership`.
    pub fn after<C: RaftTypeConfig>(
        last: &LogId<C>,
        membership: Option<&StoredMembership<C::NodeId, C::Node>>,
    ) -> Result<Position> {
        let mut pairs = vec![(Position::APPLIED, encode(last)?)];
        if let Some(membership) = membership {
            pairs.push((Position::MEMBERSHIP, encode(membership)?));
        }
        Ok(Position { pairs })
    }

    /// Names and values, for the machine to store as it likes, and to find again by name
    /// ([`StateMachine::position`]).
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.pairs.iter().map(|(name, value)| (*name, &value[..]))
    }
}

/// What a program does with its entries. All of a state is in one keyspace, which has no log of its
/// own: after a crash it is as it was after some entry, and the entries that follow are applied
/// again.
///
/// Entries, node ids and nodes are stored by [postcard](https://docs.rs/postcard): types must be
/// read as they are written (no `untagged`, `flatten` or `skip_serializing_if`), and a field that
/// is added later makes a log that is there unreadable, unless the program has versions of its own.
///
/// What [`apply`](StateMachine::apply) does must follow from the entries alone, so that all nodes
/// come to one state. One thread applies at a time; others may read meanwhile.
pub trait StateMachine<C: RaftTypeConfig>: Sized + Send + Sync + 'static {
    /// Opens the state in `keyspace`, which is empty at first.
    fn open(db: &Db, keyspace: Keyspace) -> Result<Self>;

    /// The keyspace that the state is in.
    fn keyspace(&self) -> &Keyspace;

    /// Applies an entry: writes all of its effects, and the pairs of `position`, in one batch.
    /// Without `data`, the entry is openraft's own and changes nothing but the position.
    fn apply(&self, data: Option<&C::D>, position: &Position) -> Result<C::R>;

    /// The value of a pair of the last position that had one of that name.
    fn position(&self, name: &[u8]) -> Result<Option<Vec<u8>>>;
}

/// The last entry that a state has, and the last membership.
#[expect(clippy::type_complexity, reason = "two answers, as openraft asks for them")]
pub fn positions<C: RaftTypeConfig, M: StateMachine<C>>(
    machine: &M,
) -> Result<(Option<LogId<C>>, StoredMembership<C::NodeId, C::Node>)> {
    let applied =
        machine.position(Position::APPLIED)?.map(|bytes| decode(&bytes, "the state's log index")).transpose()?;
    let membership =
        machine.position(Position::MEMBERSHIP)?.map(|bytes| decode(&bytes, "the state's membership")).transpose()?;
    Ok((applied, membership.unwrap_or_default()))
}

/// How far a group's state has come.
pub struct Progress<C: RaftTypeConfig> {
    db: Db,
    group: u32,
    /// The last entry whose effects survive a crash without the log.
    durable: Mutex<Option<LogId<C>>>,
    /// The last entry whose effects are in the store. Its sender is the [`StateStore`].
    applied: watch::Receiver<Option<LogId<C>>>,
    /// Since when openraft's core waits for the disk.
    waits_since: Arc<Mutex<Option<Instant>>>,
}

/// openraft's core waits for the disk as long as this lives. It waits for one thing at a time.
pub struct DiskWait(Arc<Mutex<Option<Instant>>>);

impl Drop for DiskWait {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl<C: RaftTypeConfig> Progress<C> {
    /// The last entry whose effects survive a crash without the log, as far as this state knows:
    /// `None` until it was flushed for the first time.
    pub fn durable(&self) -> Option<LogId<C>> {
        self.durable.lock().clone()
    }

    /// The last entry whose effects are in the store.
    pub fn applied(&self) -> Option<LogId<C>> {
        self.applied.borrow().clone()
    }

    /// For how long openraft's core has waited for the disk to take a vote or entries.
    pub fn waits_for_disk(&self) -> Option<Duration> {
        self.waits_since.lock().map(|since| since.elapsed())
    }

    /// Notes that openraft's core waits for the disk.
    pub fn wait_for_disk(&self) -> DiskWait {
        *self.waits_since.lock() = Some(Instant::now());
        DiskWait(Arc::clone(&self.waits_since))
    }

    /// Waits until the store has the effects of the entries up to `goal`.
    ///
    /// openraft purges the log for a received snapshot before the [`StateStore`] has installed it:
    /// without this wait, a crash in between would leave neither the entries nor their effects.
    pub async fn wait_applied(&self, goal: &LogId<C>) -> Result<()> {
        let mut applied = self.applied.clone();
        let reached = applied.wait_for(|applied| applied.as_ref() >= Some(goal)).await.map(drop);
        let group = self.group;
        reached.map_err(|_| Error::Stopped { group, reason: format!("the state never reached entry {goal}") })
    }

    /// Waits until nothing applies entries to this state any more.
    pub async fn ended(&self) {
        // The sender is the StateStore's.
        let _ = self.applied.clone().wait_for(|_| false).await;
    }

    /// Makes the effects of the entries up to `applied`, which are in the store, durable.
    pub fn flush_up_to(&self, applied: Option<&LogId<C>>) -> Result<()> {
        if self.durable.lock().as_ref() < applied {
            self.db.flush()?;
            let mut durable = self.durable.lock();
            if durable.as_ref() < applied {
                *durable = applied.cloned();
            }
        }
        Ok(())
    }
}

/// What a group's log and readers share of its state.
pub struct State<C: RaftTypeConfig, M> {
    progress: Progress<C>,
    /// Replaced when a snapshot is installed.
    machine: RwLock<Arc<M>>,
}

impl<C: RaftTypeConfig, M> State<C, M> {
    /// The state as it is now. A reader that goes on with it after a snapshot has been installed
    /// reads the state before.
    pub fn machine(&self) -> Arc<M> {
        Arc::clone(&self.machine.read())
    }

    /// How far it has come.
    pub fn progress(&self) -> &Progress<C> {
        &self.progress
    }
}

/// Applies entries to a group's state.
pub struct StateStore<C: RaftTypeConfig, M> {
    store: Store,
    state: Arc<State<C, M>>,
    applied: watch::Sender<Option<LogId<C>>>,
    membership: StoredMembership<C::NodeId, C::Node>,
    /// Generation of the next state to be received.
    next_generation: u64,
    /// States that were replaced, until no reader has them: with the names of their keyspaces.
    retired: Vec<(String, Arc<M>)>,
    keyspace: String,
}

impl<C, M> StateStore<C, M>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotData>,
    M: StateMachine<C>,
{
    /// Opens the state of a group, and removes what unfinished snapshots have left.
    pub fn open(store: &Store, group: u32) -> Result<StateStore<C, M>> {
        let generation: u64 = store.item(group, Item::GENERATION)?.unwrap_or(0);
        let keyspace = Store::keyspace_name(group, generation);
        let mut next_generation = generation + 1;
        for of in store.generations(group)?.into_iter().filter(|of| *of != generation) {
            next_generation = next_generation.max(of + 1);
            store.db.drop_keyspace(&Store::keyspace_name(group, of))?;
        }
        let machine = M::open(&store.db, store.state(&keyspace)?)?;
        let (applied, membership) = positions(&machine)?;
        let purged: Option<LogId<C>> = store.item(group, Item::PURGED)?;
        if purged > applied {
            let rule = "it lacks entries that were removed from the log; does the machine store positions?".to_owned();
            return Err(Error::Decode { place: "the state", rule });
        }
        let (sender, receiver) = watch::channel(applied.clone());
        // What was applied may be in memory alone, if the store has been open for longer.
        let (db, durable, waits_since) = (store.db.clone(), Mutex::default(), Arc::default());
        let progress = Progress { db, group, durable, applied: receiver, waits_since };
        let state = Arc::new(State { progress, machine: RwLock::new(Arc::new(machine)) });
        let (store, applied, retired) = (store.clone(), sender, Vec::new());
        Ok(StateStore { store, state, applied, membership, next_generation, retired, keyspace })
    }

    fn applied(&self) -> Option<LogId<C>> {
        self.applied.borrow().clone()
    }

    /// What the group's log and readers need of it.
    pub fn state(&self) -> Arc<State<C, M>> {
        Arc::clone(&self.state)
    }

    fn apply_one(&mut self, entry: &Entry<C>) -> Result<C::R> {
        let (data, membership) = match &entry.payload {
            EntryPayload::Blank => (None, None),
            EntryPayload::Normal(data) => (Some(data), None),
            EntryPayload::Membership(of) => (None, Some(StoredMembership::new(Some(entry.log_id.clone()), of.clone()))),
        };
        let position = Position::after::<C>(&entry.log_id, membership.as_ref())?;
        let answer = self.state.machine().apply(data, &position)?;
        self.applied.send_replace(Some(entry.log_id.clone()));
        if let Some(membership) = membership {
            let voters: BTreeSet<_> = membership.voter_ids().collect();
            let learners: BTreeSet<_> = membership.nodes().map(|(id, _)| id.clone()).collect();
            let learners: Vec<_> = learners.difference(&voters).collect();
            let (group, index) = (self.state.progress.group, entry.log_id.index);
            tracing::info!(group, index, ?voters, ?learners, "the members are these");
            self.membership = membership;
        }
        Ok(answer)
    }

    /// Removes replaced states that no reader has any more.
    fn drop_retired(&mut self) -> Result<()> {
        let unused = self.retired.extract_if(.., |(_, machine)| Arc::strong_count(machine) == 1);
        for (name, machine) in unused {
            drop(machine);
            self.store.db.drop_keyspace(&name)?;
        }
        Ok(())
    }

    fn stage(&mut self) -> Result<Staging> {
        let generation = self.next_generation;
        self.next_generation += 1;
        Staging::begin(&self.store, self.state.progress.group, generation)
    }

    fn install(&mut self, meta: &SnapshotMeta<C::NodeId, C::Node>, data: SnapshotData) -> Result<()> {
        let staging = match data {
            SnapshotData::Staging(staging) => staging,
            SnapshotData::View(view) => {
                let mut staging = self.stage()?;
                staging.copy(&view)?;
                staging
            }
        };
        staging.check()?;
        let machine = M::open(&self.store.db, staging.keyspace().clone())?;
        let (applied, membership) = positions(&machine)?;
        if applied != meta.last_log_id {
            let rule = "it is of another log index than it should be".to_owned();
            return Err(Error::Decode { place: "a snapshot", rule });
        }
        self.store.db.flush()?;
        let generation = staging.generation();
        // Whatever becomes of the write, what it may name is not removed before the next start.
        let keyspace = staging.keep();
        self.store.write_item(self.state.progress.group, Item::GENERATION, &generation, true)?;
        self.membership = membership;
        let before = std::mem::replace(&mut *self.state.machine.write(), Arc::new(machine));
        self.retired.push((std::mem::replace(&mut self.keyspace, keyspace), before));
        *self.state.progress.durable.lock() = applied.clone();
        let index = applied.as_ref().map_or(0, |applied| applied.index);
        tracing::info!(group = self.state.progress.group, index, "a snapshot is installed");
        self.applied.send_replace(applied);
        self.drop_retired()
    }

    fn current(&self) -> Snapshot<C> {
        let view = View::new(&self.store, self.state.machine().keyspace());
        let meta = SnapshotMeta {
            last_log_id: self.applied(),
            last_membership: self.membership.clone(),
            snapshot_id: self.applied().map_or_else(String::new, |last| last.to_string()),
        };
        Snapshot { meta, snapshot: Box::new(SnapshotData::View(view)) }
    }
}

impl<C, M> RaftStateMachine<C> for StateStore<C, M>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotData>,
    M: StateMachine<C>,
{
    type SnapshotBuilder = SnapshotBuilder<C, M>;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<C>>, StoredMembership<C::NodeId, C::Node>), StorageError<C::NodeId>> {
        Ok((self.applied(), self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<C::R>, StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let applied = || -> Result<Vec<C::R>> {
            self.drop_retired()?;
            entries.into_iter().map(|entry| self.apply_one(&entry)).collect()
        };
        blocking(applied).map_err(|error| StorageIOError::write_state_machine(&error).into())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<C, M> {
        SnapshotBuilder { state: self.state(), snapshot: Some(self.current()) }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotData>, StorageError<C::NodeId>> {
        let staging = blocking(|| self.stage());
        let staging = staging.map_err(|error| StorageError::from(StorageIOError::write_snapshot(None, &error)))?;
        Ok(Box::new(SnapshotData::Staging(staging)))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        snapshot: Box<SnapshotData>,
    ) -> Result<(), StorageError<C::NodeId>> {
        blocking(|| self.install(meta, *snapshot))
            .map_err(|error| StorageIOError::write_snapshot(Some(meta.signature()), &error).into())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<C>>, StorageError<C::NodeId>> {
        Ok(self.applied().map(|_| self.current()))
    }
}

/// Makes the state at one moment durable, so that the log up to there may be purged.
pub struct SnapshotBuilder<C: RaftTypeConfig, M> {
    state: Arc<State<C, M>>,
    /// Taken by the one call that there is.
    snapshot: Option<Snapshot<C>>,
}

impl<C, M> RaftSnapshotBuilder<C> for SnapshotBuilder<C, M>
where
    C: RaftTypeConfig<SnapshotData = SnapshotData>,
    M: StateMachine<C>,
{
    async fn build_snapshot(&mut self) -> Result<Snapshot<C>, StorageError<C::NodeId>> {
        let progress = &self.state.progress;
        let failed = |error: Error| StorageError::from(StorageIOError::write_snapshot(None, &error));
        let taken = || Error::Stopped { group: progress.group, reason: "a snapshot is built once".to_owned() };
        let snapshot = self.snapshot.take().ok_or_else(taken).map_err(failed)?;
        let mut is_said = false;
        loop {
            match blocking(|| progress.flush_up_to(snapshot.meta.last_log_id.as_ref())) {
                // Nothing is lost, the log only gets no shorter.
                Err(Error::Store(error)) if error.is_no_space() => {
                    if !std::mem::replace(&mut is_said, true) {
                        tracing::warn!(group = progress.group, %error, "the state waits for space on the disk");
                    }
                    sleep(SPACE_PAUSE).await;
                }
                flushed => return flushed.map(|()| snapshot).map_err(failed),
            }
        }
    }
}
