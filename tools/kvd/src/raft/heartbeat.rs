//! One stream of heartbeats from each node to each other, whatever number of groups it leads.
//!
//! The consensus library's own heartbeats are off: they are one stream per group and follower, and
//! each passes through the group's core on both sides. Instead, a node says to each other once per
//! heartbeat which groups it leads there, in which terms and up to which entry. That
//!
//! - keeps the other from an election in all of these groups ([`Watch::note_heard`]);
//! - confirms the leads ([`Leadership::note_confirmed`]): the other names the groups in which it
//!   has promised itself to another leader. It looks at the vote that is noted before any candidate
//!   learns of it, so that the rest are as sure as answers to entries;
//! - tells which groups need a message of their own, as after one was lost: those whose entries the
//!   other has not all applied, or in which it follows another leader. The library sends one.
//!
//! A group is asleep when nobody writes and all nodes have everything. No flag says so, and none
//! can be wrong: nothing is sent, and no core wakes.
//!
//! A group whose core waits for the disk for long is left out, and is not confirmed.
//!
//! [`Watch::note_heard`]: super::watch::Watch::note_heard
//! [`Leadership::note_confirmed`]: super::lead::Leadership::note_confirmed

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::cluster::Cluster;
use super::group::Group;
use super::types::Vote;
use super::watch::LEASE;
use super::wire::{Answer, Call, LedGroup};
use crate::replica::NodeId;

/// Heartbeats for the disk to take what a group gives it.
const HANGS: u32 = 2;

impl Cluster {
    /// Sends heartbeats, for ever.
    pub(super) async fn beat(self: Arc<Self>) {
        let mut ticks = interval(self.settings.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut calls = JoinSet::new();
        loop {
            ticks.tick().await;
            while calls.try_join_next().is_some() {}
            for (to, (address, leads)) in self.leads_by_follower() {
                let cluster = Arc::clone(&self);
                calls.spawn(async move { cluster.beat_once(to, &address, leads).await });
            }
        }
    }

    fn hangs(&self, group: &Group) -> bool {
        group.state.hangs(self.settings.heartbeat * HANGS)
    }

    /// What this node has to say to each other node, and where that is.
    fn leads_by_follower(&self) -> BTreeMap<NodeId, (String, Vec<LedGroup>)> {
        let mut said: BTreeMap<NodeId, (String, Vec<LedGroup>)> = BTreeMap::new();
        for (number, group) in self.all().filter(|(_, group)| group.leads() && !self.hangs(group)) {
            let metrics = group.raft.metrics();
            let metrics = metrics.borrow();
            let led = LedGroup { group: number, term: metrics.current_term, last: metrics.last_log_index.unwrap_or(0) };
            for (id, member) in metrics.membership_config.nodes() {
                if *id != self.settings.id && !group.state.is_muted(*id) {
                    said.entry(*id).or_insert_with(|| (member.raft.clone(), Vec::new())).1.push(led);
                }
            }
        }
        said
    }

    async fn beat_once(&self, to: NodeId, address: &str, leads: Vec<LedGroup>) {
        let asked = Instant::now();
        let call = Call::Heartbeat { from: self.settings.id, leads };
        let answer = timeout(self.settings.heartbeat * LEASE, self.pool.call(to, address, &call)).await;
        let (Ok(Ok(Answer::Heartbeat { behind, apart })), Call::Heartbeat { leads, .. }) = (answer, call) else {
            return;
        };
        let (behind, apart) = (BTreeSet::from_iter(behind), BTreeSet::from_iter(apart));
        for led in leads {
            let Ok(group) = self.group(led.group) else { continue };
            if !apart.contains(&led.group) {
                group.lead.note_confirmed(led.term, to, asked);
            }
            if apart.contains(&led.group) || behind.contains(&led.group) {
                // A core that has ended needs no message.
                let _ = group.raft.trigger().heartbeat().await;
            }
        }
        self.confirmed.send_replace(());
    }

    /// Answers the heartbeat of node `from`.
    pub(super) fn beaten(&self, from: NodeId, leads: &[LedGroup]) -> Answer {
        if self.knows(from) {
            self.others.note_caller(from);
        }
        let (mut behind, mut apart) = (Vec::new(), Vec::new());
        for led in leads {
            let Ok(group) = self.group(led.group) else {
                apart.push(led.group);
                continue;
            };
            if group.state.promised() == Some(Vote::new_committed(led.term, from)) {
                group.watch.lock().note_heard();
                if self.hangs(&group) {
                    apart.push(led.group);
                } else if group.state.applied().map_or(0, |applied| applied.index) != led.last {
                    behind.push(led.group);
                }
            } else {
                apart.push(led.group);
            }
        }
        Answer::Heartbeat { behind, apart }
    }
}
