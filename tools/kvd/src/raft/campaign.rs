//! When this node stands for election, and when it gives up a lead.
//!
//! The consensus library's own timer is off: a node whose messages reach the others, and which they
//! do not reach, would take every lead and serve nobody. Before a node stands, it asks all voters
//! whether they would vote for it: they have not heard of a leader for a while, its log is not
//! behind theirs, and *they reach it* where the membership says. Only with a majority of these does
//! it stand. No term is spent on an election that fails, and a node that comes back from behind a
//! cut disturbs nobody.
//!
//! A leader whom no majority of the voters has reached for a while gives up its lead: it sends
//! nothing until another node was elected. One whose clock is off hands it over to one whose
//! clock is right; with such a clock, a node stands only when no other has for a while. Never to
//! stand would let a wrong clock keep a group without a leader. A node whose disk is nearly full
//! does likewise, if another one's is not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::cluster::Cluster;
use super::group::Group;
use super::log::last_entry;
use super::types::LogId;
use super::wire::{Answer, Call};
use crate::error::{Error, Result};
use crate::machine::GroupId;
use crate::replica::NodeId;
use crate::store::Item;

/// Heartbeats for a voter to reach a candidate.
const CALL_BACK: u32 = 2;
/// Heartbeats for an election to be won.
const ELECTION: u32 = 2;
/// For leads to be handed over before a node stops.
const RETIRE_TIME: Duration = Duration::from_secs(5);

impl Cluster {
    /// Looks after elections in all groups, for ever.
    pub(super) async fn campaign(self: Arc<Self>) {
        let mut ticks = interval(self.settings.heartbeat / 4);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tasks = JoinSet::new();
        loop {
            ticks.tick().await;
            while tasks.try_join_next().is_some() {}
            for (number, group) in self.all() {
                self.look_at(number, &group, &mut tasks);
            }
        }
    }

    fn look_at(self: &Arc<Self>, number: GroupId, group: &Arc<Group>, tasks: &mut JoinSet<()>) {
        let leads = group.leads();
        let mut watch = group.watch.lock();
        let has_led = watch.led_for().is_some();
        watch.note_lead(leads);
        if has_led != leads {
            let metrics = group.raft.metrics();
            let (term, leader) = (metrics.borrow().current_term, metrics.borrow().current_leader);
            match leads {
                true => tracing::info!(group = number, term, "this node leads"),
                false => tracing::info!(group = number, term, leader, "this node leads no more"),
            }
        }
        let is_off = self.others.is_off.load(Ordering::Relaxed);
        let leaves = is_off || self.should_leave_for_space(group);
        let (cluster, group) = (Arc::clone(self), Arc::clone(group));
        if !leads {
            let may_stand = group.may_stand(self.settings.id) && !self.is_retiring.load(Ordering::SeqCst);
            if may_stand && watch.begin_to_stand(leaves) {
                tasks.spawn(async move {
                    cluster.try_to_stand(number, &group).await;
                    group.watch.lock().end_attempt();
                });
            }
            return;
        }
        let grace = self.of_late();
        if group.check_lead().is_err() {
            return;
        }
        if !self.others.is_called_by_majority(self.settings.id, &group.voters(), grace) {
            if watch.begin_to_yield(grace) {
                tasks.spawn(async move {
                    cluster.yield_lead(number, &group).await;
                    group.watch.lock().end_attempt();
                });
            }
        } else if leaves && watch.begin_to_yield(grace) {
            tasks.spawn(async move {
                if let Err(error) = cluster.hand_over_to_better(number, &group).await {
                    tracing::warn!(group = number, %error, "this node leads on, though its clock is off or its disk full");
                }
                group.watch.lock().end_attempt();
            });
        }
    }

    /// Stands for election, if a majority of the voters would vote for this node.
    async fn try_to_stand(&self, number: GroupId, group: &Group) {
        let (id, heartbeat) = (self.settings.id, self.settings.heartbeat);
        let last = match super::blocking(|| self.last_log(number)) {
            Ok(last) => last,
            Err(error) => return tracing::error!(group = number, %error, "cannot stand for election"),
        };
        let voters = group.voters();
        let call = &Call::Canvass { group: number, from: id, last };
        let asked = voters.iter().filter(|voter| **voter != id).map(|voter| async move {
            let address = self.address_of(number, *voter).unwrap_or_default();
            let answer = timeout(heartbeat * (CALL_BACK + 2), self.pool.call(*voter, &address, call)).await;
            match answer {
                Ok(Ok(Answer::Done)) => true,
                Ok(Err(error)) => {
                    tracing::debug!(group = number, voter, %error, "no vote");
                    false
                }
                _ => false,
            }
        });
        let granted = join_all(asked).await.into_iter().filter(|granted| *granted).count() + 1;
        if 2 * granted <= voters.len() || !voters.contains(&id) || group.watch.lock().has_leader() {
            return;
        }
        tracing::info!(group = number, granted, "this node stands for election");
        if group.raft.trigger().elect().await.is_err() {
            return;
        }
        let deadline = Instant::now() + heartbeat * ELECTION;
        while Instant::now() < deadline && group.leader().is_none() {
            sleep(heartbeat / 20).await;
        }
    }

    fn last_log(&self, number: GroupId) -> Result<Option<LogId>> {
        let purged: Option<LogId> = self.store.item(number, Item::Purged)?;
        Ok(last_entry(&self.store, number)?.or(purged))
    }

    /// Answers node `from`, which asks whether this one would vote for it.
    pub(super) async fn canvassed(&self, number: GroupId, from: NodeId, last: Option<LogId>) -> Result<Answer> {
        let refuse = |reason: &str| Err(Error::Config(format!("group {number}: {reason}")));
        let (group, id) = (self.group(number)?, self.settings.id);
        if !group.may_vote(id) {
            return refuse("this node's log does not say that it is a member");
        }
        if group.check_lead().is_ok() || group.watch.lock().has_leader() {
            return refuse("there is a leader");
        }
        let own = super::blocking(|| self.last_log(number))?;
        if own > last {
            return refuse("its log is behind");
        }
        // Both would get their own votes, and neither a majority.
        if group.watch.lock().stands() && (own, id) > (last, from) {
            return refuse("this node stands itself");
        }
        let address = self.address_of(number, from).unwrap_or_default();
        let call = Call::Greet { from: id };
        match timeout(self.settings.heartbeat * CALL_BACK, self.pool.call(from, &address, &call)).await {
            Ok(Ok(Answer::Greeting(_))) => Ok(Answer::Done),
            Ok(Ok(_)) | Err(_) => refuse(&format!("this node does not reach node {from} at {address}")),
            Ok(Err(error)) => refuse(&format!("this node does not reach node {from} at {address}: {error}")),
        }
    }

    /// Gives up the lead: the others, which hear nothing of this node, elect another leader.
    async fn yield_lead(&self, number: GroupId, group: &Group) {
        let Some(_held) = group.hold() else { return };
        tracing::warn!(group = number, "this node gives up its lead: a majority of the voters cannot reach it");
        let muted = group.state.mute(group.voters());
        let deadline = Instant::now() + 20 * self.settings.heartbeat;
        while Instant::now() < deadline && group.leads() && self.others.leader(number).is_none() {
            sleep(self.settings.heartbeat / 4).await;
        }
        // The answers tell of the new term.
        drop(muted);
        let deadline = Instant::now() + 4 * self.settings.heartbeat;
        while Instant::now() < deadline && group.leads() {
            sleep(self.settings.heartbeat / 4).await;
        }
    }

    async fn hand_over_to_better(&self, number: GroupId, group: &Group) -> Result<()> {
        let heard = self.of_late();
        let voters = group.voters();
        let is_right = |voter: &NodeId| self.others.is_right(*voter, &voters, heard) && !self.is_low(*voter);
        let mut right = group.followers();
        right.retain(is_right);
        self.hand_over_to_first(number, &right).await
    }

    /// Hands the lead over to the first of some nodes that can take it.
    async fn hand_over_to_first(&self, number: GroupId, nodes: &[NodeId]) -> Result<()> {
        let mut last = Err(Error::Config("no other voter can lead".to_owned()));
        for to in nodes {
            last = self.hand_over(number, *to).await;
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Hands all leads over before this node stops. From now on it takes none.
    pub async fn retire(&self) {
        self.is_retiring.store(true, Ordering::SeqCst);
        let led = self.all().filter(|(_, group)| group.leads() && group.voters().len() > 1);
        let handed = led.map(|(number, group)| async move {
            let handed = timeout(RETIRE_TIME, self.hand_over_to_first(number, &group.followers())).await;
            if let Ok(Err(error)) = handed {
                tracing::warn!(group = number, %error, "this node stops while it leads");
            }
        });
        join_all(handed).await;
    }
}
