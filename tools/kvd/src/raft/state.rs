//! What the tasks of a node share of a group's state, and the state machine as the consensus
//! library wants it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tamis::{Db, Keyspace};
use tamis_openraft::{Item, Position, Progress, StateMachine};

use super::library::Types;
use super::retention::Retention;
use super::types::{LogId, Proposal, Vote};
use crate::clock::Clock;
use crate::error::Result;
use crate::machine::{self, Machine, Reply, Version};
use crate::replica::NodeId;
use crate::store::{Store, VERSION};

pub(crate) type StateStore = tamis_openraft::StateStore<Types, Machine>;

/// What the tasks of a node share of a group's state.
pub(crate) struct State {
    pub(super) store: Store,
    pub(super) group: u32,
    state: Arc<tamis_openraft::State<Types, Machine>>,
    /// Index of the last entry known to be committed.
    committed: AtomicU64,
    /// The leader or candidate to which this node has promised itself. Noted before anybody else
    /// learns of it.
    promised: Mutex<Option<Vote>>,
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
    /// What else is known of `state`, that of `group`.
    pub(super) fn new(store: &Store, group: u32, state: Arc<tamis_openraft::State<Types, Machine>>) -> Result<State> {
        let version = store.version(group)?;
        store.versions.raise(version);
        let clock = Clock::new(state.machine().time_ms(), Instant::now());
        let committed = state.progress().applied().map_or(0, |applied| applied.index);
        let (muted, retention, received) = Default::default();
        Ok(State {
            store: store.clone(),
            group,
            state,
            committed: AtomicU64::new(committed),
            promised: Mutex::new(store.item(group, Item::VOTE)?),
            muted,
            clock: Mutex::new(clock),
            retention,
            received,
            version: AtomicU8::new(version.number()),
        })
    }

    pub(super) fn progress(&self) -> &Progress<Types> {
        self.state.progress()
    }

    /// The state as it is now. A reader that goes on with it after a snapshot has been installed
    /// reads the state before.
    pub(crate) fn machine(&self) -> Arc<Machine> {
        self.state.machine()
    }

    /// The last entry whose effects survive a crash without the log.
    pub(crate) fn durable(&self) -> Option<LogId> {
        self.progress().durable()
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

    /// The last entry whose effects are in the store.
    pub(super) fn applied(&self) -> Option<LogId> {
        self.progress().applied()
    }

    /// The leader or candidate to which this node has promised itself: to heed no earlier one.
    pub(super) fn promised(&self) -> Option<Vote> {
        *self.promised.lock()
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

    /// Whether the core has waited for the disk for longer than `limit`.
    pub(super) fn hangs(&self, limit: Duration) -> bool {
        self.progress().waits_for_disk().is_some_and(|time| time > limit)
    }

    /// Waits until nothing applies entries to this state any more.
    pub(super) async fn ended(&self) {
        self.progress().ended().await;
    }

    /// Notes, in the store, that a state of `version` is about to be received.
    pub(super) fn expect_version(&self, version: Version) -> Result<()> {
        if version > self.version() {
            // Durable before what is received is in use, which one log says later.
            self.store.write_item(self.group, VERSION, &version, false)?;
            self.raise_version(version);
        }
        Ok(())
    }
}

impl StateMachine<Types> for Machine {
    fn open(db: &Db, keyspace: Keyspace) -> tamis_openraft::Result<Machine> {
        Machine::of(db, keyspace).map_err(tamis_openraft::Error::machine)
    }

    fn keyspace(&self) -> &Keyspace {
        self.keyspace()
    }

    fn apply(&self, proposal: Option<&Proposal>, position: &Position) -> tamis_openraft::Result<Vec<Reply>> {
        // Without requests, and with a time that is never later than the entry's before.
        let nothing = machine::Entry { time_ms: 0, requests: Vec::new() };
        let entry = proposal.map_or(Ok(&nothing), Proposal::entry).map_err(tamis_openraft::Error::machine)?;
        let meta: Vec<_> = position.pairs().collect();
        self.apply(entry, &meta).map_err(tamis_openraft::Error::machine)
    }

    fn position(&self, name: &[u8]) -> tamis_openraft::Result<Option<Vec<u8>>> {
        self.meta(name).map_err(tamis_openraft::Error::machine)
    }
}
