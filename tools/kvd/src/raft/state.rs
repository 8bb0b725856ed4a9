//! The state machine of a group, as the consensus library wants it.
//!
//! The state's keyspace has no log: after a crash it is as it was at the last flush, and the log is
//! applied again from there. The log therefore keeps every entry that is not flushed:
//! [`StateStore::build_snapshot`] flushes before it reports up to where the log may be purged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use parking_lot::{Mutex, RwLock};
use tamis::WriteBatch;
use tokio::sync::watch;
use tokio::time::sleep;

use super::library::{Entry, Snapshot, Types};
use super::place;
use super::retention::Retention;
use super::snapshot::{SnapshotData, Staging, View};
use super::types::{LogId, SnapshotMeta, StorageError, StorageIoError, StoredMembership};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::machine::{self, Machine, Reply, Version};
use crate::replica::NodeId;
use crate::store::{Item, Store, encode};

/// Between two attempts to make a state durable on a disk that is full.
const SPACE_PAUSE: Duration = Duration::from_millis(250);

/// What the tasks of a node share of a group's state.
pub(crate) struct State {
    store: Store,
    group: u32,
    /// Replaced when a snapshot is installed.
    machine: RwLock<Arc<Machine>>,
    /// The last entry whose effects survive a crash without the log.
    durable: Mutex<Option<LogId>>,
    /// The last entry whose effects are in the store. Its sender is the [`StateStore`].
    applied: watch::Receiver<Option<LogId>>,
    /// Index of the last entry known to be committed.
    committed: AtomicU64,
    /// On the leader: voters to which neither entries nor heartbeats are sent for a while.
    muted: Mutex<BTreeSet<NodeId>>,
    /// The group's time, as this node goes on with it.
    clock: Mutex<Clock>,
    /// How much of its log the group keeps.
    pub(super) retention: Retention,
    /// Pairs received so far of a snapshot that is being received.
    received: Mutex<Option<u64>>,
    /// What a node must know to read the log and the state.
    version: AtomicU8,
}

/// A snapshot is being received as long as this lives.
pub(super) struct Receiving<'a>(&'a State);

impl Receiving<'_> {
    /// Notes how many pairs there are.
    pub(super) fn set(&self, pairs: u64) {
        *self.0.received.lock() = Some(pairs);
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        *self.0.received.lock() = None;
    }
}

/// Nothing is sent to some voters as long as this lives.
pub(super) struct Muted<'a>(&'a State);

impl Drop for Muted<'_> {
    fn drop(&mut self) {
        self.0.muted.lock().clear();
    }
}

impl State {
    /// The state as it is now. A reader that goes on with it after a snapshot has been installed
    /// reads the state before.
    pub(crate) fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.machine.read())
    }

    /// The last entry whose effects survive a crash without the log.
    pub(crate) fn durable(&self) -> Option<LogId> {
        *self.durable.lock()
    }

    /// The version that entries may have: the group's, as far as this node's log goes.
    pub(super) fn version(&self) -> Version {
        Version::new(self.version.load(Ordering::Acquire))
    }

    /// Notes that the log or the state, on the disk, has a version.
    pub(super) fn raise_version(&self, to: Version) {
        if self.version.fetch_max(to.number(), Ordering::AcqRel) < to.number() {
            self.store.versions.raise(to);
            tracing::info!(group = self.group, version = %to, "the group has a new version");
        }
    }

    /// Index of the last entry known to be committed.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub(super) fn note_committed(&self, index: u64) {
        self.committed.fetch_max(index, Ordering::Relaxed);
    }

    /// Pairs received so far of a snapshot that is being received.
    pub(crate) fn received(&self) -> Option<u64> {
        *self.received.lock()
    }

    /// Begins to count what is received.
    pub(super) fn receiving(&self) -> Receiving<'_> {
        let receiving = Receiving(self);
        receiving.set(0);
        receiving
    }

    /// Sends nothing to some voters, as long as the guard lives.
    pub(super) fn mute(&self, voters: BTreeSet<NodeId>) -> Muted<'_> {
        *self.muted.lock() = voters;
        Muted(self)
    }

    /// Whether nothing is sent to a node.
    pub(super) fn is_muted(&self, node: NodeId) -> bool {
        self.muted.lock().contains(&node)
    }

    /// The group's time, in milliseconds since 1970 by the log.
    pub(super) fn now_ms(&self) -> u64 {
        let last_ms = self.machine().time_ms();
        self.clock.lock().now_ms(Instant::now(), last_ms)
    }

    /// Whether that is the group's time, and not only one before which the group's is not.
    pub(super) fn is_settled(&self) -> bool {
        self.clock.lock().is_settled()
    }

    /// Settles the time, which is at least `time_ms` now.
    pub(super) fn settle(&self, time_ms: u64) {
        self.clock.lock().settle(Instant::now(), time_ms);
    }

    /// Pulls the time to one that is `wall_ms` on the wall at the moment `at`.
    pub(super) fn pull_to(&self, wall_ms: u64, at: Instant) {
        let goal_ms = self.machine().log_ms(wall_ms);
        self.clock.lock().pull_to(goal_ms, at);
    }

    /// Waits until the store has the effects of the entries up to `goal`.
    ///
    /// The library purges the log for a received snapshot before the [`StateStore`] has installed
    /// it: without this wait, a crash in between would leave neither the entries nor their effects.
    pub(super) async fn wait_applied(&self, goal: LogId) -> Result<()> {
        let mut applied = self.applied.clone();
        let reached = applied.wait_for(|applied| *applied >= Some(goal)).await.map(drop);
        let group = self.group;
        reached.map_err(|_| Error::Stopped { group, reason: format!("the state never reached entry {goal}") })
    }

    /// Waits until nothing applies entries to this state any more.
    pub(super) async fn ended(&self) {
        // The sender is the StateStore's.
        let _ = self.applied.clone().wait_for(|_| false).await;
    }

    /// Makes the effects of the entries up to `applied`, which are in the store, durable.
    pub(super) fn flush_up_to(&self, applied: Option<LogId>) -> Result<()> {
        if self.durable() < applied {
            self.store.db.flush()?;
            let mut durable = self.durable.lock();
            *durable = (*durable).max(applied);
        }
        Ok(())
    }
}

/// Applies entries to a group's state.
pub(crate) struct StateStore {
    state: Arc<State>,
    applied: watch::Sender<Option<LogId>>,
    membership: StoredMembership,
    /// Generation of the next state to be received.
    next_generation: u64,
    /// States that were replaced, until no reader has them: with the names of their keyspaces.
    retired: Vec<(String, Arc<Machine>)>,
    keyspace: String,
}

impl StateStore {
    /// Opens the state of a group, and removes what unfinished snapshots have left.
    pub(crate) fn open(store: &Store, group: u32) -> Result<StateStore> {
        let generation: u64 = store.item(group, Item::Generation)?.unwrap_or(0);
        let keyspace = place::keyspace_name(group, generation);
        let mut next_generation = generation + 1;
        for of in place::generations(store, group)?.into_iter().filter(|of| *of != generation) {
            next_generation = next_generation.max(of + 1);
            store.db.drop_keyspace(&place::keyspace_name(group, of))?;
        }
        let machine = Machine::open_in(&store.db, &keyspace)?;
        let (applied, membership) = place::positions(&machine)?;
        let (sender, receiver) = watch::channel(applied);
        let version = store.version(group)?;
        store.versions.raise(version);
        let clock = Clock::new(machine.time_ms(), Instant::now());
        let state = State {
            store: store.clone(),
            group,
            machine: RwLock::new(Arc::new(machine)),
            // What is there after opening is in tables, or was replayed from nothing but tables.
            durable: Mutex::new(applied),
            applied: receiver,
            committed: AtomicU64::new(applied.map_or(0, |applied| applied.index)),
            muted: Mutex::default(),
            clock: Mutex::new(clock),
            retention: Retention::default(),
            received: Mutex::default(),
            version: AtomicU8::new(version.number()),
        };
        let (state, applied, retired) = (Arc::new(state), sender, Vec::new());
        Ok(StateStore { state, applied, membership, next_generation, retired, keyspace })
    }

    fn applied(&self) -> Option<LogId> {
        *self.applied.borrow()
    }

    /// What other tasks of the node need of it.
    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }

    fn apply_one(&mut self, entry: &Entry) -> Result<Vec<Reply>> {
        let applied = encode(&entry.log_id)?;
        let mut meta = vec![(place::APPLIED, &applied[..])];
        // Without requests, and with a time that is never later than the entry's before.
        let nothing = machine::Entry { time_ms: 0, requests: Vec::new() };
        let (of_clients, membership) = match &entry.payload {
            EntryPayload::Blank => (&nothing, None),
            EntryPayload::Normal(proposal) => (proposal.entry()?, None),
            EntryPayload::Membership(of) => (&nothing, Some(StoredMembership::new(Some(entry.log_id), of.clone()))),
        };
        let encoded = membership.as_ref().map(encode).transpose()?;
        meta.extend(encoded.as_ref().map(|bytes| (place::MEMBERSHIP, &bytes[..])));
        let replies = self.state.machine().apply(of_clients, &meta)?;
        self.applied.send_replace(Some(entry.log_id));
        if let Some(membership) = membership {
            let voters = membership.voter_ids().collect::<BTreeSet<_>>();
            let nodes = membership.nodes().map(|(id, _)| *id).collect::<BTreeSet<_>>();
            let learners = nodes.difference(&voters).collect::<Vec<_>>();
            let group = self.state.group;
            tracing::info!(group, index = entry.log_id.index, ?voters, ?learners, "the members are these");
            self.membership = membership;
        }
        Ok(replies)
    }

    /// Removes replaced states that no reader has any more.
    fn drop_retired(&mut self) -> Result<()> {
        let unused = self.retired.extract_if(.., |(_, machine)| Arc::strong_count(machine) == 1);
        for (name, machine) in unused {
            drop(machine);
            self.state.store.db.drop_keyspace(&name)?;
        }
        Ok(())
    }

    fn stage(&mut self) -> Result<Staging> {
        let generation = self.next_generation;
        self.next_generation += 1;
        Staging::begin(&self.state.store, self.state.group, generation)
    }

    fn install(&mut self, meta: &SnapshotMeta, data: SnapshotData) -> Result<()> {
        let staging = match data {
            SnapshotData::Staging(staging) => staging,
            SnapshotData::View(view) => {
                let mut staging = self.stage()?;
                staging.copy(&view)?;
                staging
            }
        };
        staging.check(meta.last_log_id)?;
        let store = &self.state.store;
        store.db.flush()?;
        let (generation, version) = (staging.generation, staging.version);
        // Whatever becomes of the write, what it may name is not removed before the next start.
        let keyspace = staging.keep();
        let machine = Arc::new(Machine::open_in(&store.db, &keyspace)?);
        let mut batch = WriteBatch::new();
        store.put_item(&mut batch, self.state.group, Item::Generation, &generation)?;
        let version = self.state.version().max(version);
        store.put_item(&mut batch, self.state.group, Item::Version, &version)?;
        store.write_durably(batch)?;
        self.state.raise_version(version);
        let (applied, membership) = place::positions(&machine)?;
        self.membership = membership;
        let before = std::mem::replace(&mut *self.state.machine.write(), machine);
        self.retired.push((std::mem::replace(&mut self.keyspace, keyspace), before));
        *self.state.durable.lock() = applied;
        self.applied.send_replace(applied);
        let index = applied.map_or(0, |applied| applied.index);
        tracing::info!(group = self.state.group, index, "a snapshot is installed");
        self.drop_retired()
    }

    fn current(&self) -> Snapshot {
        let view = View::new(&self.state.store, self.state.machine().keyspace());
        let meta = SnapshotMeta {
            last_log_id: self.applied(),
            last_membership: self.membership.clone(),
            snapshot_id: self.applied().map_or_else(String::new, |last| last.to_string()),
        };
        Snapshot { meta, snapshot: Box::new(SnapshotData::View(view)) }
    }
}

impl RaftStateMachine<Types> for StateStore {
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        Ok((self.applied(), self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Vec<Reply>>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let applied = || -> Result<Vec<Vec<Reply>>> {
            self.drop_retired()?;
            entries.into_iter().map(|entry| self.apply_one(&entry)).collect()
        };
        super::blocking(applied).map_err(|error| StorageIoError::write_state_machine(&error).into())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder { state: self.state(), snapshot: Some(self.current()) }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotData>, StorageError> {
        let staging = super::blocking(|| self.stage());
        let staging = staging.map_err(|error| StorageError::from(StorageIoError::write_snapshot(None, &error)))?;
        Ok(Box::new(SnapshotData::Staging(staging)))
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Box<SnapshotData>) -> Result<(), StorageError> {
        super::blocking(|| self.install(meta, *snapshot))
            .map_err(|error| StorageIoError::write_snapshot(Some(meta.signature()), &error).into())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        Ok(self.applied().map(|_| self.current()))
    }
}

/// Makes the state at one moment durable, so that the log up to there may be purged.
pub(crate) struct SnapshotBuilder {
    state: Arc<State>,
    /// Taken by the one call that there is.
    snapshot: Option<Snapshot>,
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        let failed = |error: Error| StorageError::from(StorageIoError::write_snapshot(None, &error));
        let taken = || Error::Stopped { group: self.state.group, reason: "a snapshot is built once".to_owned() };
        let snapshot = self.snapshot.take().ok_or_else(taken).map_err(failed)?;
        let mut is_said = false;
        loop {
            match super::blocking(|| self.state.flush_up_to(snapshot.meta.last_log_id)) {
                // Nothing is lost, the log only gets no shorter.
                Err(Error::Store(error)) if error.is_no_space() => {
                    if !std::mem::replace(&mut is_said, true) {
                        tracing::warn!(group = self.state.group, %error, "the state waits for space on the disk");
                    }
                    sleep(SPACE_PAUSE).await;
                }
                flushed => return flushed.map(|()| snapshot).map_err(failed),
            }
        }
    }
}
