//! How fresh each group is on this node: up to which moment it has missed nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::cluster::Cluster;
use super::group::Group;
use super::others::ROUND;
use super::wire::{Answer, Call};
use crate::machine::GroupId;
use crate::replica::NodeId;

/// Heartbeats for leads to be confirmed.
const CONFIRMS: u32 = 3;

impl Cluster {
    /// Keeps all groups fresh, for ever.
    pub(super) async fn freshen(self: Arc<Self>) {
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let mut followed: BTreeMap<NodeId, Vec<GroupId>> = BTreeMap::new();
            for (number, group) in self.all() {
                match group.leader() {
                    Some(leader) if leader == self.settings.id => {
                        if let Some((_, confirmed)) = has_all(&group) {
                            group.note_fresh(confirmed);
                        }
                    }
                    Some(leader) => followed.entry(leader).or_default().push(number),
                    None => {}
                }
            }
            join_all(followed.into_iter().map(|(leader, groups)| self.catch_up(leader, groups))).await;
        }
    }

    /// Notes of the groups that another node leads whether this one has applied what was committed
    /// before the call.
    async fn catch_up(&self, leader: NodeId, groups: Vec<GroupId>) {
        let Some(address) = groups.first().and_then(|group| self.address_of(*group, leader)) else { return };
        let asked = Instant::now();
        let limit = ROUND.max(self.settings.heartbeat * (CONFIRMS + 2));
        let call = Call::ReadIndexes { groups };
        let Ok(Ok(Answer::ReadIndexes(indexes))) = timeout(limit, self.pool.call(leader, &address, &call)).await else {
            return;
        };
        let reached = indexes.into_iter().map(|(number, index)| async move {
            let Ok(group) = self.group(number) else { return };
            let applied = group.state.applied().map_or(0, |applied| applied.index);
            if applied >= index || group.wait_applied(index, ROUND).await {
                group.note_fresh(asked);
            }
        });
        join_all(reached).await;
    }

    /// Answers up to which entries another node must have applied groups that this one leads, to
    /// have missed nothing by now. Waits for the next heartbeats to confirm the leads.
    pub(super) async fn read_indexes(&self, groups: &[GroupId]) -> BTreeMap<GroupId, u64> {
        let (asked, mut confirmed) = (Instant::now(), self.confirmed.subscribe());
        let mut waiting: BTreeMap<GroupId, Arc<Group>> =
            groups.iter().filter_map(|number| Some((*number, self.group(*number).ok()?))).collect();
        let mut indexes = BTreeMap::new();
        let all = async {
            loop {
                waiting.retain(|number, group| match has_all(group) {
                    Some((index, at)) if at >= asked => {
                        indexes.insert(*number, index);
                        false
                    }
                    _ => group.leads(),
                });
                if waiting.is_empty() || confirmed.changed().await.is_err() {
                    break;
                }
            }
        };
        // Some groups may have no majority.
        let _ = timeout(self.settings.heartbeat * CONFIRMS, all).await;
        indexes
    }
}

/// On the leader of a group: an entry that it has applied, and a moment before which no later entry
/// was acknowledged by anybody. A leader whose own first entry is applied has what was acknowledged
/// before its term.
fn has_all(group: &Group) -> Option<(u64, Instant)> {
    let (term, confirmed) = group.lead.confirmed()?;
    // What the metrics say may be a moment old: the core may have promised itself to another since.
    let promised = group.state.promised()?.leader_id;
    let id = group.raft.metrics().borrow().id;
    if (promised.term, promised.voted_for()) != (term, Some(id)) {
        return None;
    }
    let applied = group.state.applied()?;
    (applied.leader_id.term == term).then_some((applied.index, confirmed))
}
