//! A node's part in its cluster: all groups, their connections and their membership.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openraft::{ChangeMembers, ServerState};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::group::{Group, now_ms};
use super::network::{Pool, unexpected};
use super::types::{LogId, Member};
use super::wire::{Answer, CHANGE_TIME, Call, Change, Command, GroupStatus, NodeStatus};
use crate::error::{Error, Result};
use crate::link::Trust;
use crate::machine::{Body, GroupId, Machine, Reply, Request};
use crate::replica::{Node, NodeId, ReadError, Replica, Status, WriteError};
use crate::store::Store;

/// Between two looks at each group: its log, how far it lags, and what has expired.
const ROUND: Duration = Duration::from_millis(500);
/// Between two attempts to reach the leader of a group with an operator's command.
const RETRY: Duration = Duration::from_millis(200);
/// For a leader to be found.
const LEADER_TIME: Duration = Duration::from_secs(10);

/// What a node is told when it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its number.
    pub id: NodeId,
    /// Directory of its store.
    pub dir: PathBuf,
    /// How other nodes and clients reach it.
    pub member: Member,
    /// What nodes know of each other.
    pub trust: Trust,
    /// Where nodes are reached that are not reached where the membership says.
    pub routes: HashMap<NodeId, String>,
    /// Number of groups, if the store is new.
    pub groups: u32,
    /// Between two heartbeats. Elections begin after 4 to 8 of them have failed to arrive.
    pub heartbeat: Duration,
    /// Entries between two snapshots of a group.
    pub snapshot_after: u64,
    /// Entries that the log keeps though a snapshot has them: nodes that were away for fewer catch
    /// up by the log.
    pub keep_log: u64,
    /// How long each sync of the logs takes longer than it would, in tests.
    pub sync_delay: Duration,
    /// Options of the store.
    pub store: tamis::Options,
}

/// A running node.
pub struct Cluster {
    pub(super) settings: Settings,
    pub(super) store: Store,
    /// Drawn by the node that has made the cluster; 0 as long as this one is in none.
    pub(super) number: Arc<AtomicU64>,
    /// Held while the number is written.
    pub(super) joining: Mutex<()>,
    pub(super) groups: Vec<Group>,
    pub(super) pool: Pool,
    /// Serves other nodes, and looks after the groups.
    pub(super) tasks: Mutex<JoinSet<()>>,
}

impl Cluster {
    /// Waits until a group cannot go on, as when the disk has failed, and says why. The process is
    /// then of no use until it is started again.
    pub async fn failed(&self) -> Error {
        let failures = self.groups.iter().enumerate().map(|(number, group)| {
            let mut metrics = group.raft.metrics();
            Box::pin(async move {
                let seen = metrics.wait_for(|metrics| metrics.running_state.is_err()).await;
                let reason = seen.ok().and_then(|metrics| metrics.running_state.clone().err());
                let reason = reason.map_or_else(|| "it has ended".to_owned(), |reason| reason.to_string());
                Error::Stopped { group: u32::try_from(number).unwrap_or(u32::MAX), reason }
            })
        });
        futures_util::future::select_all(failures).await.0
    }

    /// Stops: answers nobody any more, and closes the store.
    pub async fn stop(&self) -> Result<()> {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        for group in &self.groups {
            if let Err(error) = group.raft.shutdown().await {
                tracing::warn!(%error, "a group did not stop by itself");
            }
        }
        let db = self.store.db.clone();
        super::blocking(|| db.close())?;
        Ok(())
    }

    /// The store, for its statistics.
    pub fn db(&self) -> &tamis::Db {
        &self.store.db
    }

    pub(super) fn trust(&self) -> &Trust {
        &self.settings.trust
    }

    /// The cluster's number; 0 as long as this node is in none.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Takes this node into a cluster. A store that is new must be expected to be: a member that
    /// has lost its disk must not vote as if it had never voted.
    pub(super) fn admit(&self, cluster: u64, groups: u32, as_new: bool) -> Result<()> {
        let refuse = |reason: &str| Err(Error::Config(format!("node {}: {reason}", self.settings.id)));
        let _one = self.joining.lock();
        match self.number() {
            _ if groups != self.groups() => refuse("its store has another number of groups"),
            number if number == cluster => Ok(()),
            0 if as_new => {
                super::blocking(|| self.store.join(cluster))?;
                self.number.store(cluster, Ordering::Release);
                Ok(())
            }
            0 => refuse("it is a member, but its store is new; remove it from the cluster, then add it"),
            _ => refuse("it is in another cluster"),
        }
    }

    pub(super) fn group(&self, group: u32) -> Result<&Group> {
        let found = self.groups.get(group as usize);
        found.ok_or_else(|| Error::Config(format!("this node has {} groups, none is {group}", self.groups.len())))
    }

    pub(super) fn address_of(&self, group: &Group, node: NodeId) -> Option<String> {
        let metrics = group.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().get_node(&node).map(|member| member.raft.clone())
    }

    /// Has the group's state made durable and its log purged, when it is time. The next round does
    /// what a core that stops does not.
    async fn shorten_log(&self, group: &Group) {
        let retention = &group.state.retention;
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        let (last, applied, snapshot, purged, matched) = {
            let metrics = group.raft.metrics();
            let metrics = metrics.borrow();
            let matched = metrics.replication.iter().flatten().map(|(id, at)| (*id, index(*at))).collect();
            let last = metrics.last_log_index.unwrap_or(0);
            (last, index(metrics.last_applied), index(metrics.snapshot), index(metrics.purged), matched)
        };
        retention.mark(last, purged);
        if retention.is_snapshot_due(applied, snapshot, self.settings.snapshot_after) {
            let _ = group.raft.trigger().snapshot().await;
        }
        let upto = retention.purge_upto(snapshot, self.settings.keep_log, &matched);
        // Not for a few entries each time.
        if upto > purged + self.settings.keep_log / 8 {
            let _ = group.raft.trigger().purge_log(upto).await;
        }
    }

    /// Keeps a group fresh: shortens its log, notes how far it lags, and removes what has expired.
    pub(super) async fn look_after(&self, number: u32) {
        let Ok(group) = self.group(number) else { return };
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            self.shorten_log(group).await;
            // Notes by itself how fresh the node is.
            let fresh = self.catch_up(group, number).await;
            if fresh && group.leader() == Some(self.settings.id) {
                // Each removes some.
                while self.has_expired(group) && group.write(Request::new(Body::Tick)).await.is_ok() {}
            }
        }
    }

    /// Waits until this node has applied what was committed before the call; tells whether it has.
    async fn catch_up(&self, group: &Group, number: u32) -> bool {
        let asked = Instant::now();
        let index = match group.leader() {
            Some(leader) if leader == self.settings.id => return group.barrier().await.is_ok(),
            Some(leader) => {
                let address = self.address_of(group, leader).unwrap_or_default();
                let call = Call::ReadIndex { group: number };
                match timeout(ROUND, self.pool.call(leader, &address, &call)).await {
                    Ok(Ok(Answer::ReadIndex(index))) => index,
                    _ => return false,
                }
            }
            None => return false,
        };
        let reached = group.wait_applied(index, ROUND).await;
        if reached {
            group.note_fresh(asked);
        }
        reached
    }

    fn has_expired(&self, group: &Group) -> bool {
        match super::blocking(|| group.state.machine().next_deadline_ms()) {
            Ok(next) => next.is_some_and(|deadline| deadline <= now_ms()),
            Err(error) => {
                tracing::warn!(%error, "cannot tell what has expired");
                false
            }
        }
    }

    /// Makes a change of a group that this node leads.
    pub(super) async fn change(&self, group: u32, change: Change) -> Result<()> {
        let raft = &self.group(group)?.raft;
        let changed = async {
            match change {
                Change::Lead(to) => return self.hand_over(group, to).await,
                Change::AddLearner(id, member) => raft.add_learner(id, member, true).await,
                Change::Promote(id) => raft.change_membership(ChangeMembers::AddVoterIds([id].into()), true).await,
                Change::Remove(id) if self.is_voter(group, id)? => {
                    raft.change_membership(ChangeMembers::RemoveVoters([id].into()), false).await
                }
                Change::Remove(id) => raft.change_membership(ChangeMembers::RemoveNodes([id].into()), false).await,
            }
            .map(drop)
            .map_err(|error| Error::Config(error.to_string()))
        };
        let late = |_| Error::Config("the change takes too long; see `kvd status` for how far it is".to_owned());
        timeout(CHANGE_TIME, changed).await.map_err(late)?
    }

    pub(super) fn is_voter(&self, group: u32, id: NodeId) -> Result<bool> {
        let metrics = self.group(group)?.raft.metrics();
        let is_voter = metrics.borrow().membership_config.voter_ids().any(|voter| voter == id);
        Ok(is_voter)
    }

    /// Carries out an operator's command.
    pub(super) async fn execute(&self, command: Command) -> Result<Answer> {
        match command {
            Command::Status => return Ok(Answer::Status(self.report())),
            Command::Init { others } => self.init(others).await?,
            Command::Add { id, member, learner } => {
                // A member of any group must come with its store, a learner too: the leader relies
                // on what it has acknowledged.
                let mut as_new = true;
                for group in 0..self.groups() {
                    as_new &= !self.members(group).await?.contains(&id);
                }
                let call = Call::Admit { cluster: self.number(), groups: self.groups(), as_new };
                self.pool.call(id, &member.raft, &call).await?;
                for group in 0..self.groups() {
                    self.on_leader(group, Change::AddLearner(id, member.clone())).await?;
                }
                // Only when all groups have caught up: a node that lacks some is no replica.
                for group in (0..self.groups()).filter(|_| !learner) {
                    self.on_leader(group, Change::Promote(id)).await?;
                }
            }
            Command::Remove { id } => {
                for group in 0..self.groups() {
                    self.on_leader(group, Change::Remove(id)).await?;
                }
            }
            Command::Transfer { group, to } if !self.is_voter(group, to)? => {
                return Err(Error::Config(format!("node {to} is no voter of group {group}")));
            }
            Command::Transfer { group, to } => self.on_leader(group, Change::Lead(to)).await?,
        }
        Ok(Answer::Done)
    }

    async fn init(&self, others: Vec<(NodeId, Member)>) -> Result<()> {
        let mut members: BTreeMap<NodeId, Member> = others.into_iter().collect();
        members.insert(self.settings.id, self.settings.member.clone());
        let known: Vec<(NodeId, Member)> = members.clone().into_iter().collect();
        let mut empty = Vec::new();
        for group in 0..self.groups() {
            let state = self.group(group)?.raft.is_initialized().await;
            if !state.map_err(|error| Error::Config(error.to_string()))? {
                empty.push(group);
            }
        }
        if empty.is_empty() {
            return Err(Error::Config("this node is in a cluster already".to_owned()));
        }
        // Both may be left of an attempt that failed: the number, and groups that have begun.
        let cluster = if self.number() == 0 { rand::random::<u64>().max(1) } else { self.number() };
        self.admit(cluster, self.groups(), true)?;
        for (id, member) in known.iter().filter(|(id, _)| *id != self.settings.id) {
            let call = Call::Admit { cluster, groups: self.groups(), as_new: true };
            self.pool.call(*id, &member.raft, &call).await?;
        }
        for group in empty {
            // Each node begins some groups, and so leads them at first.
            let (id, member) = &known[group as usize % known.len()];
            if *id == self.settings.id {
                self.begin(group, members.clone()).await?;
            } else {
                let call = Call::Begin { group, members: members.clone() };
                self.pool.call(*id, &member.raft, &call).await?;
                // The log with the members comes from there; before that, nobody begins it again.
                let wait = self.group(group)?.raft.wait(Some(LEADER_TIME));
                let joined = wait.metrics(|it| it.last_log_index.is_some(), "the members").await;
                joined.map_err(|error| Error::Stopped { group, reason: error.to_string() })?;
            }
        }
        Ok(())
    }

    /// Makes this node the first member of a group, and have itself elected.
    pub(super) async fn begin(&self, group: u32, members: BTreeMap<NodeId, Member>) -> Result<()> {
        let begun = self.group(group)?.raft.initialize(members).await;
        begun.map_err(|error| Error::Config(error.to_string()))
    }

    /// The members of a group, as its leader has them.
    async fn members(&self, group: u32) -> Result<BTreeSet<NodeId>> {
        let known = self.group(group)?;
        let deadline = Instant::now() + LEADER_TIME;
        loop {
            if self.catch_up(known, group).await {
                let metrics = known.raft.metrics();
                let metrics = metrics.borrow();
                return Ok(metrics.membership_config.nodes().map(|(id, _)| *id).collect());
            }
            if Instant::now() >= deadline {
                return Err(Error::Stopped { group, reason: "no leader says who its members are".to_owned() });
            }
            sleep(RETRY).await;
        }
    }

    /// Has a change made by the leader of its group.
    async fn on_leader(&self, group: u32, change: Change) -> Result<()> {
        let known = self.group(group)?;
        let deadline = Instant::now() + LEADER_TIME;
        loop {
            let outcome = match known.leader() {
                Some(leader) if leader == self.settings.id => self.change(group, change.clone()).await,
                Some(leader) => {
                    let address = self.address_of(known, leader).unwrap_or_default();
                    let call = Call::Change { group, change: change.clone() };
                    let answer = self.pool.call(leader, &address, &call).await;
                    answer.and_then(|answer| match answer {
                        Answer::Done => Ok(()),
                        _ => Err(unexpected()),
                    })
                }
                None => Err(Error::Stopped { group, reason: "no leader is known".to_owned() }),
            };
            match outcome {
                // A change that was made already is made again without harm.
                Err(error) if Instant::now() < deadline => {
                    tracing::info!(group, %error, "an operator's change is tried again");
                    sleep(RETRY).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// What this node knows of all groups.
    pub fn report(&self) -> NodeStatus {
        let groups = self.groups.iter().enumerate();
        let report = |(number, group): (usize, &Group)| {
            let metrics = group.raft.metrics();
            let metrics = metrics.borrow();
            let membership = &metrics.membership_config;
            let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
            let members = membership.nodes().map(|(id, member)| (*id, member.clone(), voters.contains(id))).collect();
            let role = match (&metrics.running_state, metrics.state) {
                (Err(error), _) => format!("stopped: {error}"),
                (_, ServerState::Leader) => "leader".to_owned(),
                (_, ServerState::Follower) => "follower".to_owned(),
                (_, ServerState::Candidate) => "candidate".to_owned(),
                (_, ServerState::Learner) => "learner".to_owned(),
                (_, ServerState::Shutdown) => "stopped".to_owned(),
            };
            let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
            let matched = metrics.replication.iter().flatten().map(|(id, at)| (*id, index(*at)));
            GroupStatus {
                group: u32::try_from(number).unwrap_or(u32::MAX),
                role,
                leader: metrics.current_leader,
                term: metrics.current_term,
                last: metrics.last_log_index.unwrap_or(0),
                committed: group.state.committed(),
                applied: index(metrics.last_applied),
                flushed: index(group.state.durable()),
                purged: index(metrics.purged),
                snapshot: index(metrics.snapshot),
                receiving: group.state.received(),
                members,
                matched: matched.collect(),
            }
        };
        NodeStatus { id: self.settings.id, groups: groups.map(report).collect() }
    }
}

/// Sends an operator's command to the node at `address`.
pub async fn command(trust: &Trust, address: &str, command: Command) -> Result<Option<NodeStatus>> {
    match Pool::new(trust.clone(), Arc::default(), HashMap::new()).call(0, address, &Call::Command(command)).await? {
        Answer::Done => Ok(None),
        Answer::Status(status) => Ok(Some(status)),
        _ => Err(unexpected()),
    }
}

impl Cluster {
    fn known(&self, group: GroupId) -> Option<&Group> {
        self.groups.get(group as usize)
    }
}

/// Reads and writes of a group that is not there.
const NO_GROUP: &str = "there is no such group";

impl Replica for Cluster {
    fn groups(&self) -> u32 {
        u32::try_from(self.groups.len()).unwrap_or(u32::MAX)
    }

    fn id(&self) -> NodeId {
        self.settings.id
    }

    fn nodes(&self) -> Vec<Node> {
        let mut nodes = BTreeMap::new();
        for group in &self.groups {
            let metrics = group.raft.metrics();
            let metrics = metrics.borrow();
            nodes.extend(metrics.membership_config.nodes().map(|(id, member)| (*id, member.resp.clone())));
        }
        let node = |(id, resp): (NodeId, String)| {
            let (host, port) = resp.rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Some(Node { id, host, port: port.parse().ok()? })
        };
        nodes.into_iter().filter_map(node).collect()
    }

    fn leader(&self, group: GroupId) -> Option<NodeId> {
        self.known(group).and_then(Group::leader)
    }

    fn status(&self, group: GroupId) -> Status {
        let report = self.report().groups.into_iter().find(|report| report.group == group);
        let members = |of: &GroupStatus, vote: bool| {
            let members = of.members.iter().filter(|(_, _, votes)| *votes == vote);
            members.map(|(id, ..)| *id).collect()
        };
        Status {
            leader: report.as_ref().and_then(|report| report.leader),
            term: report.as_ref().map_or(0, |report| report.term),
            last_index: report.as_ref().map_or(0, |report| report.last),
            committed_index: report.as_ref().map_or(0, |report| report.committed),
            applied_index: report.as_ref().map_or(0, |report| report.applied),
            voters: report.as_ref().map_or_else(Vec::new, |report| members(report, true)),
            learners: report.as_ref().map_or_else(Vec::new, |report| members(report, false)),
        }
    }

    fn write(&self, group: GroupId, request: Request) -> impl Future<Output = Result<Reply, WriteError>> + Send {
        let queued = self.known(group).map(|group| group.write(request));
        async move {
            match queued {
                Some(reply) => reply.await,
                None => Err(WriteError::Refused(NO_GROUP.to_owned())),
            }
        }
    }

    async fn barrier(&self, group: GroupId) -> Result<(), ReadError> {
        let group = self.known(group).ok_or_else(|| ReadError::Failed(NO_GROUP.to_owned()))?;
        group.barrier().await.map(drop)
    }

    fn machine(&self, group: GroupId) -> Result<Arc<Machine>, ReadError> {
        let group = self.known(group).ok_or_else(|| ReadError::Failed(NO_GROUP.to_owned()))?;
        Ok(group.state.machine())
    }

    fn staleness(&self, group: GroupId) -> Option<Duration> {
        self.known(group)?.staleness()
    }
}
