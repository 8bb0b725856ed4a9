//! How a node stands for election in the groups whose leader it has not heard for a while.
//!
//! A node that dies leaves hundreds of groups at once. One question to each voter is about all
//! groups for which it is time, and a group's election begins as soon as a majority would vote for
//! this node. Only some are held at a time: each waits for the disks of a majority.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tamis_openraft::{Item, last_entry};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::cluster::Cluster;
use super::group::Group;
use super::library::Types;
use super::types::LogId;
use super::wire::{Answer, Call, LastLogs};
use crate::error::{Error, Result};
use crate::machine::GroupId;
use crate::replica::NodeId;

/// Heartbeats for a voter to reach a candidate.
const CALL_BACK: u32 = 2;
/// Heartbeats for an election to be won.
const ELECTION: u32 = 2;
/// Between two looks at an election.
const LOOK: Duration = Duration::from_millis(5);

/// A group in which this node would stand.
struct Standing {
    number: GroupId,
    group: Arc<Group>,
    /// This node, and those that would vote for it.
    granted: usize,
}

impl Cluster {
    /// Stands for election in groups, where a majority of the voters would vote for this node.
    pub(super) async fn try_to_stand(self: Arc<Self>, groups: Vec<(GroupId, Arc<Group>)>) {
        let mut waiting = Vec::new();
        let mut calls: BTreeMap<NodeId, (String, LastLogs)> = BTreeMap::new();
        let lasts = self.last_logs(groups.iter().map(|(number, _)| *number));
        for ((number, group), last) in groups.into_iter().zip(lasts) {
            match last {
                Ok(last) => {
                    for voter in group.voters().into_iter().filter(|voter| *voter != self.settings.id) {
                        let address = || self.address_of(number, voter).unwrap_or_default();
                        calls.entry(voter).or_insert_with(|| (address(), Vec::new())).1.push((number, last));
                    }
                    waiting.push(Standing { number, group, granted: 1 });
                }
                Err(error) => {
                    tracing::error!(group = number, %error, "cannot stand for election");
                    group.watch.lock().end_attempt();
                }
            }
        }
        let mut elections = JoinSet::new();
        self.elect_where_granted(&mut waiting, &mut elections);
        let from = self.settings.id;
        let mut asked: FuturesUnordered<_> = calls
            .into_iter()
            .map(|(voter, (address, groups))| {
                let (cluster, call) = (&self, Call::Canvass { from, groups });
                async move {
                    let limit = cluster.settings.heartbeat * (CALL_BACK + 2);
                    timeout(limit, cluster.pool.call(voter, &address, &call)).await
                }
            })
            .collect();
        while let Some(answer) = asked.next().await {
            let Ok(Ok(Answer::Granted(granted))) = answer else { continue };
            let granted = BTreeSet::from_iter(granted);
            for standing in &mut waiting {
                standing.granted += usize::from(granted.contains(&standing.number));
            }
            self.elect_where_granted(&mut waiting, &mut elections);
        }
        waiting.into_iter().for_each(|standing| standing.group.watch.lock().end_attempt());
        elections.join_all().await;
    }

    /// Begins the elections for which a majority would vote.
    fn elect_where_granted(self: &Arc<Self>, waiting: &mut Vec<Standing>, elections: &mut JoinSet<()>) {
        let id = self.settings.id;
        for standing in waiting.extract_if(.., |it| 2 * it.granted > it.group.voters().len()) {
            let (cluster, group) = (Arc::clone(self), standing.group);
            elections.spawn(async move {
                let _place = cluster.elections.acquire().await;
                if group.votes(id) && !group.watch.lock().has_leader() {
                    tracing::info!(
                        group = standing.number,
                        granted = standing.granted,
                        "this node stands for election"
                    );
                    cluster.elect(&group).await;
                }
                group.watch.lock().end_attempt();
            });
        }
    }

    /// Holds an election, and waits until somebody has won it, or for some time.
    async fn elect(&self, group: &Group) {
        let before = group.raft.metrics().borrow().current_term;
        if group.raft.trigger().elect().await.is_err() {
            return;
        }
        let deadline = Instant::now() + self.settings.heartbeat * ELECTION;
        let is_over = || {
            let metrics = group.raft.metrics();
            let metrics = metrics.borrow();
            metrics.current_term > before && metrics.current_leader.is_some()
        };
        while Instant::now() < deadline && !is_over() {
            sleep(LOOK).await;
        }
    }

    fn last_logs(&self, groups: impl Iterator<Item = GroupId>) -> Vec<Result<Option<LogId>>> {
        let last = |number: GroupId| {
            let purged: Option<LogId> = self.store.item(number, Item::PURGED)?;
            Ok(last_entry::<Types>(&self.store, number)?.or(purged))
        };
        super::blocking(|| groups.map(last).collect())
    }

    /// Answers node `from`, which asks for votes: in which groups this one would vote for it.
    pub(super) async fn canvassed(&self, from: NodeId, groups: LastLogs) -> Answer {
        let mut granted: BTreeMap<String, Vec<GroupId>> = BTreeMap::new();
        let lasts = self.last_logs(groups.iter().map(|(number, _)| *number));
        for ((number, last), own) in groups.into_iter().zip(lasts) {
            match self.would_vote(number, from, last, own) {
                Ok(()) => granted.entry(self.address_of(number, from).unwrap_or_default()).or_default().push(number),
                Err(error) => tracing::debug!(group = number, candidate = from, %error, "no vote"),
            }
        }
        // Once for all groups: the question is not worth more time than its answer is waited for.
        let mut reached = Vec::new();
        for (address, numbers) in granted {
            match self.reach(from, &address).await {
                Ok(()) => reached.extend(numbers),
                Err(error) => tracing::debug!(candidate = from, %error, "no vote"),
            }
        }
        Answer::Granted(reached)
    }

    /// Fails unless this node would vote for another, if it reaches that, whose log ends with
    /// `last`. The own ends with `own`.
    fn would_vote(&self, number: GroupId, from: NodeId, last: Option<LogId>, own: Result<Option<LogId>>) -> Result<()> {
        let refuse = |reason: &str| Err(Error::Config(reason.to_owned()));
        let (group, id) = (self.group(number)?, self.settings.id);
        if !group.may_vote(id) {
            return refuse("this node's log does not say that it is a member");
        }
        if group.check_lead().is_ok() || group.watch.lock().has_leader() {
            return refuse("there is a leader");
        }
        let own = own?;
        if own > last {
            return refuse("its log is behind");
        }
        // Both would get their own votes, and neither a majority.
        if group.watch.lock().stands() && (own, id) > (last, from) {
            return refuse("this node stands itself");
        }
        Ok(())
    }

    /// Fails unless this node reaches another at an address, or has within the last heartbeat.
    pub(super) async fn reach(&self, id: NodeId, address: &str) -> Result<()> {
        let reached = self.others.reached(id);
        let mut reached = reached.lock().await;
        if reached.as_ref().is_some_and(|(at, when)| at == address && when.elapsed() < self.settings.heartbeat) {
            return Ok(());
        }
        let call = Call::Greet { from: self.settings.id };
        let answer = timeout(self.settings.heartbeat * CALL_BACK, self.pool.call(id, address, &call)).await;
        answer.map_err(|_| Error::Config(format!("this node does not reach node {id} at {address}")))??;
        *reached = Some((address.to_owned(), Instant::now()));
        Ok(())
    }
}
