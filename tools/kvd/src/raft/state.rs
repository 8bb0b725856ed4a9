//! The state machine of a group, as the consensus library wants it.
//!
//! The state's keyspace has no log: after a crash it is as it was at the last flush, and the log is
//! applied again from there. The log therefore keeps every entry that is not flushed:
//! [`StateStore::build_snapshot`] flushes before it reports up to where the log may be purged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::library::{Entry, Snapshot, Types};
use super::place;
use super::retention::Retention;
use super::snapshot::{SnapshotData, Staging, View};
use super::types::{LogId, SnapshotMeta, StorageError, StorageIoError, StoredMembership, Vote};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::machine::{self, Machine, Reply};
use crate::replica::NodeId;
use crate::store::{Item, Store, encode};

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
    /// The leader or candidate to which this node has promised itself. Noted before anybody else
    /// learns of it.
    promised: Mutex<Option<Vote>>,
    /// Since when the core waits for the disk.
    waits_since: Mutex<Option<Instant>>,
    /// On the leader: voters to which neither entries nor heartbeats are sent for a while.
    muted: Mutex<BTreeSet<NodeId>>,
    /// The group's time, as this node goes on with it.
    clock: Mutex<Clock>,
    /// How much of its log the group keeps.
    pub(super) retention: Retention,
    /// Pairs received so far of a snapshot that is being received.
    received: Mutex<Option<u64>>,
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

/// A group's core waits for the disk as long as this lives. It waits for one thing at a time.
pub(super) struct Waiting(Arc<State>);

impl Drop for Waiting {
    fn drop(&mut self) {
        *self.0.waits_since.lock() = None;
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

    /// Index of the last entry known to be committed.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub(super) fn note_committed(&self, index: u64) {
        self.committed.fetch_max(index, Ordering::Relaxed);
    }

    /// The last entry whose effects are in the store.
    pub(super) fn applied(&self) -> Option<LogId> {
        *self.applied.borrow()
    }

    /// The leader or candidate to which this node has promised itself: to heed no earlier one.
    pub(super) fn promised(&self) -> Option<Vote> {
        *self.promised.lock()
    }

    /// Notes that the core waits for the disk.
    pub(super) fn wait_for_disk(of: &Arc<State>) -> Waiting {
        *of.waits_since.lock() = Some(Instant::now());
        Waiting(Arc::clone(of))
    }

    /// Whether the core has waited for the disk for longer than `limit`.
    pub(super) fn hangs(&self, limit: Duration) -> bool {
        self.waits_since.lock().is_some_and(|since| since.elapsed() > limit)
    }

    pub(super) fn note_promised(&self, vote: Vote) {
        *self.promised.lock() = Some(vote);
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
        let clock = Clock::new(machine.time_ms(), Instant::now());
        let state = State {
            store: store.clone(),
            group,
            machine: RwLock::new(Arc::new(machine)),
            // What is there after opening is in tables, or was replayed from nothing but tables.
            durable: Mutex::new(applied),
            applied: receiver,
            committed: AtomicU64::new(applied.map_or(0, |applied| applied.index)),
            promised: Mutex::new(store.item(group, Item::Vote)?),
            waits_since: Mutex::default(),
            muted: Mutex::default(),
            clock: Mutex::new(clock),
            retention: Retention::default(),
            received: Mutex::default(),
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
            EntryPayload::Normal(proposal) => (&proposal.entry, None),
            EntryPayload::Membership(of) => (&nothing, Some(StoredMembership::new(Some(entry.log_id), of.clone()))),
        };
        let encoded = membership.as_ref().map(encode).transpose()?;
        meta.extend(encoded.as_ref().map(|bytes| (place::MEMBERSHIP, &bytes[..])));
        let replies = self.state.machine().apply(of_clients, &meta)?;
        self.applied.send_replace(Some(entry.log_id));
        if let Some(membership) = membership {
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
        let generation = staging.generation;
        // Whatever becomes of the write, what it may name is not removed before the next start.
        let keyspace = staging.keep();
        let machine = Arc::new(Machine::open_in(&store.db, &keyspace)?);
        store.write_item(self.state.group, Item::Generation, &generation, true)?;
        let (applied, membership) = place::positions(&machine)?;
        self.membership = membership;
        let before = std::mem::replace(&mut *self.state.machine.write(), machine);
        self.retired.push((std::mem::replace(&mut self.keyspace, keyspace), before));
        *self.state.durable.lock() = applied;
        self.applied.send_replace(applied);
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
        let built = || {
            let taken = || Error::Stopped { group: self.state.group, reason: "a snapshot is built once".to_owned() };
            let snapshot = self.snapshot.take().ok_or_else(taken)?;
            self.state.flush_up_to(snapshot.meta.last_log_id)?;
            Ok(snapshot)
        };
        super::blocking(built).map_err(|error: Error| StorageIoError::write_snapshot(None, &error).into())
    }
}
