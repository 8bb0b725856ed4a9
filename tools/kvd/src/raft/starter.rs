//! [`Starter`]: takes up this node's part in one group.

use std::sync::Arc;
use std::time::Duration;

use super::group::Group;
use super::lead::Leadership;
use super::library::Raft;
use super::log::{LogStore, Syncer};
use super::network::{Network, Pool};
use super::state::{State, StateStore};
use super::types::StoredMembership;
use super::watch::Watch;
use crate::error::{Error, Result};
use crate::replica::NodeId;
use crate::store::{LATE, Store};

/// Starts groups.
pub(super) struct Starter {
    pub(super) id: NodeId,
    pub(super) config: Arc<openraft::Config>,
    pub(super) store: Store,
    pub(super) pool: Pool,
    pub(super) syncer: Syncer,
}

impl Starter {
    /// Takes up this node's part in a group, from what the store has of it.
    pub(super) async fn start(&self, group: u32) -> Result<Group> {
        let has_led = super::blocking(|| LogStore::end_lead(&self.store, group, &self.id))?;
        let states = super::blocking(|| StateStore::open(&self.store, group))?;
        let late: Option<StoredMembership> = super::blocking(|| self.store.item(group, LATE))?;
        let state = Arc::new(super::blocking(|| State::new(&self.store, group, states.state()))?);
        let log = LogStore::new(&self.store, group, states.state(), Arc::clone(&state), self.syncer.clone());
        let network = Network { pool: self.pool.clone(), group, state: Arc::clone(&state) };
        let raft = Raft::new(self.id, Arc::clone(&self.config), network, log, states).await;
        let raft = raft.map_err(|error| Error::Stopped { group, reason: error.to_string() })?;
        let watch = Watch::new(Duration::from_millis(self.config.heartbeat_interval), has_led);
        let lost_after = Duration::from_millis(self.config.election_timeout_max);
        let lead = Arc::new(Leadership::new(raft.clone(), lost_after));
        Ok(Group::new(raft, state, lead, lost_after, watch, late))
    }
}
