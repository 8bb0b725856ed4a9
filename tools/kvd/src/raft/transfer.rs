//! Handing the lead of a group over to another of its voters.
//!
//! The consensus library has no such call. A follower can be told to stand for election at once,
//! and a leader gives its vote like any other voter. Three things stand in the way:
//!
//! - A candidate whose log is shorter than the leader's gets no vote, and ends the leader's term
//!   nevertheless. The leader therefore refuses new requests, finishes those that it has, and only
//!   then tells the other node to stand, whose log is then as long as its own.
//! - A leader refuses its vote in the first heartbeats of its term ([`LEASE`]). It lets them pass
//!   before it refuses requests.
//! - The other followers refuse their votes for as long after the leader's last message. With three
//!   voters, the candidate and the old leader are a majority. With more, the leader first sends
//!   nothing to as many of them as it can do without, and serves meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use openraft::ServerState;
use tokio::time::{sleep, timeout};

use super::cluster::Cluster;
use super::group::Group;
use super::watch::LEASE;
use super::wire::Call;
use crate::error::{Error, Result};
use crate::replica::NodeId;

/// Between two looks at how far the next leader is.
const LOOK: Duration = Duration::from_millis(5);
/// How often the next leader stands for election.
const ATTEMPTS: u32 = 3;
/// Entries that the next leader may lack when the leader begins to refuse requests.
const LAG: u64 = 64;

impl Cluster {
    /// Hands the lead of a group over to `to`. Without harm if `to` leads already.
    pub(super) async fn hand_over(&self, number: u32, to: NodeId) -> Result<()> {
        let group = self.group(number)?;
        let fail = |reason: String| Error::Config(format!("group {number}: {reason}"));
        let lag = || lag(&group, to).ok_or_else(|| fail(format!("node {} does not lead", self.settings.id)));
        if to == self.settings.id {
            return lag().map(drop);
        }
        if !group.raft.metrics().borrow().membership_config.voter_ids().any(|voter| voter == to) {
            return Err(fail(format!("node {to} is no voter")));
        }
        let address = self.address_of(number, to).unwrap_or_default();
        // Found out while requests are still taken: a node that is gone, or far behind.
        self.reach(to, &address).await?;
        let behind = |entries| fail(format!("node {to} is {entries} entries behind"));
        let term = group.raft.metrics().borrow().current_term;
        let lease = self.settings.heartbeat * (LEASE + 1);
        let _muted = group.state.mute(dispensable(&group.voters(), self.settings.id, to));
        let own = lease.saturating_sub(group.watch.lock().led_for().unwrap_or_default());
        sleep(if group.voters().len() > 3 { lease } else { own }).await;
        reach(group.lost_after, LAG, &lag).await?.map_err(behind)?;
        if group.raft.metrics().borrow().current_term != term {
            return Err(fail("another election has just been held".to_owned()));
        }

        let Some(_held) = group.hold() else {
            return Err(fail("the lead is being handed over already".to_owned()));
        };
        let idle = || Ok(if group.is_idle() { lag()? } else { lag()?.max(1) });
        reach(group.lost_after, 0, &idle).await?.map_err(behind)?;
        let stand = Call::Stand { group: number };
        for _ in 0..ATTEMPTS {
            let stands = timeout(group.lost_after, self.pool.call(to, &address, &stand));
            stands.await.map_err(|_| fail(format!("node {to} does not answer")))??;
            // Until the followers have forgotten the old leader.
            let deadline = Instant::now() + group.lost_after + self.settings.heartbeat;
            while Instant::now() < deadline {
                match group.leader() {
                    Some(leader) if leader == to => return Ok(()),
                    Some(leader) if leader != self.settings.id => {
                        return Err(fail(format!("node {leader} was elected, not node {to}")));
                    }
                    _ => sleep(LOOK).await,
                }
            }
        }
        Err(fail(format!("node {to} was not elected")))
    }

    /// Stands for election in a group.
    pub(super) async fn stand(&self, group: u32) -> Result<()> {
        let known = self.group(group)?;
        if !known.may_vote(self.settings.id) {
            return Err(Error::Config(format!("this node's log of group {group} does not say that it is a member")));
        }
        let triggered = known.raft.trigger().elect().await;
        triggered.map_err(|error| Error::Stopped { group, reason: error.to_string() })
    }
}

/// Voters without which `leader` and `to` are still part of a majority.
fn dispensable(voters: &BTreeSet<NodeId>, leader: NodeId, to: NodeId) -> BTreeSet<NodeId> {
    let count = if voters.len() > 3 { voters.len().div_ceil(2) - 1 } else { 0 };
    voters.iter().filter(|voter| ![leader, to].contains(voter)).take(count).copied().collect()
}

/// On the leader: how many entries a node's log lacks.
fn lag(group: &Group, node: NodeId) -> Option<u64> {
    let metrics = group.raft.metrics();
    let metrics = metrics.borrow();
    let matched = metrics.replication.as_ref()?.get(&node).copied().flatten().map_or(0, |id| id.index);
    let last = metrics.last_log_index.unwrap_or(0);
    (metrics.state == ServerState::Leader).then(|| last.saturating_sub(matched))
}

/// Waits until `lag` is no more than `goal`. Fails with the last one if that takes longer than
/// `limit`.
async fn reach(limit: Duration, goal: u64, lag: &impl Fn() -> Result<u64>) -> Result<Result<(), u64>> {
    let deadline = Instant::now() + limit;
    loop {
        match lag()? {
            behind if behind <= goal => return Ok(Ok(())),
            behind if Instant::now() >= deadline => return Ok(Err(behind)),
            _ => sleep(LOOK).await,
        }
    }
}
