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

use futures_util::StreamExt;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::cluster::Cluster;
use super::group::Group;
use crate::error::{Error, Result};
use crate::machine::GroupId;
use crate::replica::NodeId;

/// For leads to be handed over before a node stops.
const RETIRE_TIME: Duration = Duration::from_secs(5);
/// Leads that are handed over at a time: no group waits while others take their turns.
const AT_A_TIME: usize = 8;

impl Cluster {
    /// Looks after elections in all groups, for ever.
    pub(super) async fn campaign(self: Arc<Self>) {
        let mut ticks = interval(self.settings.heartbeat / 4);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tasks = JoinSet::new();
        loop {
            ticks.tick().await;
            while tasks.try_join_next().is_some() {}
            let mut standing = Vec::new();
            for (number, group) in self.all() {
                if self.look_at(number, &group, &mut tasks) {
                    standing.push((number, group));
                }
            }
            if !standing.is_empty() {
                tasks.spawn(Arc::clone(&self).try_to_stand(standing));
            }
        }
    }

    /// Begins what is to be done about the lead of a group. Returns whether this node should stand.
    fn look_at(self: &Arc<Self>, number: GroupId, group: &Arc<Group>, tasks: &mut JoinSet<()>) -> bool {
        let leads = group.leads();
        // The library's ticks have one use left: a leader that is no voter any more steps down.
        group.raft.runtime_config().tick(leads && !group.votes(self.settings.id));
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
            let may_stand = || group.may_stand(self.settings.id) && !self.is_retiring.load(Ordering::SeqCst);
            return watch.is_due(leaves) && may_stand() && watch.begin_to_stand(leaves);
        }
        let grace = self.of_late();
        if group.check_lead().is_err() {
            return false;
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
        false
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
        let handed = led.map(async |(number, group)| {
            let handed = timeout(RETIRE_TIME, self.hand_over_to_first(number, &group.followers())).await;
            if let Ok(Err(error)) = handed {
                tracing::warn!(group = number, %error, "this node stops while it leads");
            }
        });
        futures_util::stream::iter(handed).buffer_unordered(AT_A_TIME).collect::<()>().await;
    }
}
