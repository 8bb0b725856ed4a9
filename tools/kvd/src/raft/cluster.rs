//! A node's part in its cluster: all groups, their connections and their membership.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::group::Group;
use super::network::{Pool, unexpected};
use super::others::Others;
use super::space::{FreeSpace, Space};
use super::starter::Starter;
use super::types::{LogId, Member};
use super::wire::{Answer, Call, Command, GroupStatus, NodeStatus};
use crate::clock::Wall;
use crate::error::{Error, Result};
use crate::link::Trust;
use crate::machine::{Body, GroupId, Machine, Reply, Request, Version};
use crate::replica::{Node, NodeId, ReadError, Replica, Status, WriteError};
use crate::store::{Store, Versions};

/// Between two looks at each group: its log, and what has expired.
const ROUND: Duration = Duration::from_millis(500);

/// For a group that ends to let go of its state.
const END_TIME: Duration = Duration::from_secs(5);

/// Entries between two snapshots of a group while the disk is nearly full.
const LOW_SNAPSHOT_AFTER: u64 = 1_000;
/// Elections that a node holds at a time. Each waits for the disks of a majority.
const ELECTIONS: usize = 32;

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
    /// Between two heartbeats. Elections begin after 5 to 6 of them have failed to arrive.
    pub heartbeat: Duration,
    /// Entries between two snapshots of a group.
    pub snapshot_after: u64,
    /// Entries that the log keeps though a snapshot has them: nodes that were away for fewer catch
    /// up by the log.
    pub keep_log: u64,
    /// How long each sync of the logs takes longer than it would, in tests.
    pub sync_delay: Duration,
    /// Whether the logs are not synced, in tests of tests.
    pub skip_sync: bool,
    /// The latest version that it knows: in tests, one of an older node.
    pub version: Version,
    /// With fewer bytes free on the disk, no writes that grow are taken.
    pub reserve: u64,
    /// How many are free.
    pub free_space: FreeSpace,
    /// The machine's clock.
    pub wall: Wall,
    /// Options of the store.
    pub store: tamis::Options,
}

/// A running node.
pub struct Cluster {
    pub(super) settings: Settings,
    pub(super) store: Store,
    /// Drawn by the node that has made the cluster; 0 as long as this one is in none.
    number: Arc<AtomicU64>,
    /// Held while the number is written, and while a group is begun anew.
    pub(super) joining: tokio::sync::Mutex<()>,
    /// A group that is begun anew is replaced.
    groups: Vec<RwLock<Arc<Group>>>,
    /// Entries of memberships: what is older tells this node to leave no group.
    pub(super) fences: Mutex<BTreeMap<GroupId, Option<LogId>>>,
    /// Of groups of which this node is no member: what a member has said of them.
    pub(super) views: Mutex<BTreeMap<GroupId, GroupStatus>>,
    /// What the other nodes have said.
    pub(super) others: Others,
    /// How much space the disk has.
    pub(super) space: Space,
    /// Told when another node has answered a heartbeat.
    pub(super) confirmed: watch::Sender<()>,
    /// Told when this node has been removed from the cluster.
    pub(super) removed: Notify,
    /// The version of the cluster, if this node turns out to be too old for it.
    pub(super) outdated: watch::Sender<Option<Version>>,
    /// Whether this node is about to stop, and takes no lead any more.
    pub(super) is_retiring: AtomicBool,
    /// Places for elections that this node holds at a time.
    pub(super) elections: Semaphore,
    pub(super) starter: Starter,
    pub(super) pool: Pool,
    /// Serves other nodes, and looks after the groups.
    pub(super) tasks: Mutex<JoinSet<()>>,
}

impl Cluster {
    /// Waits until a group cannot go on, as when the disk has failed, or until this node is no
    /// member of the cluster any more, and says why. The process is then of no use until it is
    /// started again.
    pub async fn failed(&self) -> Error {
        let failures = (0..self.groups()).map(|number| Box::pin(self.group_failed(number)));
        tokio::select! {
            (error, ..) = futures_util::future::select_all(failures) => error,
            () = self.removed.notified() => Error::Removed(self.settings.id),
            needed = self.is_outdated() => Error::Outdated { needed, known: self.settings.version },
        }
    }

    async fn group_failed(&self, number: GroupId) -> Error {
        loop {
            let group = match self.group(number) {
                Ok(group) => group,
                Err(error) => return error,
            };
            let mut metrics = group.raft.metrics();
            let seen = metrics.wait_for(|metrics| metrics.running_state.is_err()).await;
            let reason = seen.ok().and_then(|metrics| metrics.running_state.clone().err());
            // One that is begun anew ends as well, and is replaced before the lock is free.
            let _none_begins = self.joining.lock().await;
            if self.group(number).is_ok_and(|now| Arc::ptr_eq(&now, &group)) {
                let reason = reason.map_or_else(|| "it has ended".to_owned(), |reason| reason.to_string());
                return Error::Stopped { group: number, reason };
            }
        }
    }

    /// Stops: answers nobody any more, and closes the store.
    pub async fn stop(&self) -> Result<()> {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        for (_, group) in self.all() {
            if let Err(error) = group.raft.shutdown().await {
                tracing::warn!(%error, "a group did not stop by itself");
            }
            // What it applies at that moment needs the store.
            let _ = timeout(END_TIME, group.state.ended()).await;
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

    pub(super) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Release);
    }

    pub(super) fn new(settings: Settings, starter: Starter, number: Arc<AtomicU64>, groups: Vec<Group>) -> Cluster {
        let (joining, fences, views, others, confirmed, removed, outdated) = Default::default();
        let (is_retiring, tasks) = Default::default();
        let space = Space::new(settings.reserve);
        let (store, pool) = (starter.store.clone(), starter.pool.clone());
        let groups = groups.into_iter().map(|group| RwLock::new(Arc::new(group))).collect();
        Cluster {
            settings,
            store,
            number,
            joining,
            groups,
            fences,
            views,
            others,
            space,
            confirmed,
            removed,
            outdated,
            is_retiring,
            elections: Semaphore::new(ELECTIONS),
            starter,
            pool,
            tasks,
        }
    }

    pub(super) fn group(&self, group: GroupId) -> Result<Arc<Group>> {
        let missing = || Error::Config(format!("this node has {} groups, none is {group}", self.groups.len()));
        self.known(group).ok_or_else(missing)
    }

    fn known(&self, group: GroupId) -> Option<Arc<Group>> {
        self.groups.get(group as usize).map(|group| Arc::clone(&group.read()))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (GroupId, Arc<Group>)> {
        (0..).zip(self.groups.iter().map(|group| Arc::clone(&group.read())))
    }

    /// Puts another in a group's place. The caller holds `joining`.
    pub(super) fn replace(&self, number: GroupId, group: Group) {
        *self.groups[number as usize].write() = Arc::new(group);
    }

    /// Address of a member of a group, or of a node that has been one.
    pub(super) fn address_of(&self, group: GroupId, node: NodeId) -> Option<String> {
        let own = self.known(group)?.member(node);
        if let Some(member) = own {
            return Some(member.raft);
        }
        let members = self.status_of(group)?.members;
        members.into_iter().find(|(id, ..)| *id == node).map(|(_, member, _)| member.raft)
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
        let (mut snapshot_after, mut keep_log) = (self.settings.snapshot_after, self.settings.keep_log);
        if self.space.is_low() {
            (snapshot_after, keep_log) = (snapshot_after.min(LOW_SNAPSHOT_AFTER), 0);
        }
        if retention.is_snapshot_due(applied, snapshot, snapshot_after) {
            let _ = group.raft.trigger().snapshot().await;
        }
        let upto = retention.purge_upto(snapshot, keep_log, &matched);
        // Not for a few entries each time.
        if upto > purged + keep_log / 8 {
            let _ = group.raft.trigger().purge_log(upto).await;
        }
    }

    /// Looks after a group: shortens its log, and removes what has expired.
    pub(super) async fn look_after(&self, number: GroupId) {
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let Ok(group) = self.group(number) else { return };
            self.shorten_log(&group).await;
            if group.check_lead().is_ok() {
                // Each removes some.
                while self.has_expired(&group) && group.write(Request::new(Body::Tick)).await.is_ok() {}
            }
        }
    }

    /// The groups of which this node is a member.
    pub(super) fn member_groups(&self) -> impl Iterator<Item = (GroupId, Arc<Group>)> {
        self.all().filter(|(_, group)| group.is_member(self.settings.id))
    }

    /// All nodes that vote in a group of which this node is a member.
    pub(super) fn voters(&self) -> BTreeSet<NodeId> {
        self.member_groups().flat_map(|(_, group)| group.voters()).collect()
    }

    /// Whether a node is a member of a group, as far as this one knows.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        let is_seen = |view: &GroupStatus| view.members.iter().any(|(id, ..)| *id == node);
        self.all().any(|(_, group)| group.is_member(node)) || self.views.lock().values().any(is_seen)
    }

    /// All members of all groups of which this node knows.
    pub(super) fn members(&self) -> BTreeMap<NodeId, Member> {
        let mut members = BTreeMap::from([(self.settings.id, self.settings.member.clone())]);
        for (number, group) in self.all() {
            if group.is_member(self.settings.id) {
                let metrics = group.raft.metrics();
                let metrics = metrics.borrow();
                members.extend(metrics.membership_config.nodes().map(|(id, member)| (*id, member.clone())));
            } else if let Some(view) = self.views.lock().get(&number) {
                members.extend(view.members.iter().map(|(id, member, _)| (*id, member.clone())));
            } else {
                // Of the time when it was one.
                let metrics = group.raft.metrics();
                let last = metrics.borrow().membership_config.clone();
                let nodes = last.nodes().chain(group.late().into_iter().flat_map(|late| late.nodes()));
                members.extend(nodes.map(|(id, member)| (*id, member.clone())));
            }
        }
        members
    }

    /// Learns of the groups of which this node is no member, from those that are.
    pub(super) async fn look_around(&self) {
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let is_other =
                |(number, group): (GroupId, Arc<Group>)| (!group.is_member(self.settings.id)).then_some(number);
            let others: BTreeSet<GroupId> = self.all().filter_map(is_other).collect();
            self.views.lock().retain(|number, _| others.contains(number));
            if others.is_empty() || self.number() == 0 {
                continue;
            }
            let nodes = self.members().into_iter().filter(|(id, _)| *id != self.settings.id);
            let asked = nodes.map(|(id, member)| async move {
                let answer = self.pool.call(id, &member.raft, &Call::Command(Command::Status));
                match timeout(ROUND, answer).await {
                    Ok(Ok(Answer::Status(status))) => status.groups,
                    _ => Vec::new(),
                }
            });
            let seen = futures_util::future::join_all(asked).await.into_iter().flatten();
            let mut seen: Vec<GroupStatus> =
                seen.filter(|view| others.contains(&view.group) && view.role != "none").collect();
            // A leader knows best; the term of a node that is cut off may be greater than its.
            seen.sort_by_key(|view| (view.role == "leader", view.term, view.committed));
            let mut views = self.views.lock();
            let found: Vec<GroupId> = seen.iter().filter(|view| view.role == "leader").map(|view| view.group).collect();
            for view in seen {
                if found.contains(&view.group) || !views.contains_key(&view.group) {
                    views.insert(view.group, view);
                }
            }
        }
    }

    /// The leader of a group of which this node is no member.
    fn other_leader(&self, group: GroupId) -> Option<NodeId> {
        self.leader(group).filter(|leader| *leader != self.settings.id)
    }

    fn has_expired(&self, group: &Group) -> bool {
        match super::blocking(|| group.state.machine().next_deadline_ms()) {
            Ok(next) => next.is_some_and(|deadline| deadline <= group.state.now_ms()),
            Err(error) => {
                tracing::warn!(%error, "cannot tell what has expired");
                false
            }
        }
    }

    /// What another node has done within this time it can still do: four rounds of questions.
    pub(super) fn of_late(&self) -> Duration {
        4 * self.settings.heartbeat.max(ROUND)
    }

    /// What this node knows of all groups.
    pub fn report(&self) -> NodeStatus {
        let groups = (0..self.groups()).filter_map(|number| self.status_of(number));
        let clock_ahead_ms = self.others.ahead_ms(self.settings.id, &self.voters());
        let of_late = self.of_late();
        let reach = |id: NodeId| {
            let (reaches, is_reached) = self.others.reach(id, of_late);
            (id, reaches, is_reached)
        };
        let others = self.members().into_keys().filter(|id| *id != self.settings.id).map(reach).collect();
        let (id, version, versions) = (self.settings.id, self.settings.version, self.others.versions(of_late));
        let (free_bytes, is_low) = (self.space.free(), self.space.is_low());
        NodeStatus { id, version, versions, free_bytes, is_low, clock_ahead_ms, others, groups: groups.collect() }
    }

    /// What this node knows of a group: by itself if it is a member, otherwise by others.
    pub(super) fn status_of(&self, number: GroupId) -> Option<GroupStatus> {
        let group = self.known(number)?;
        let mut own = group.status(number);
        own.ahead_ms = self.others.group_ahead_ms(&group);
        if group.is_member(self.settings.id) {
            return Some(own);
        }
        let seen = self.views.lock().get(&number).cloned();
        let (role, receiving) = ("none".to_owned(), own.receiving);
        Some(match seen {
            None => GroupStatus { role, ..own },
            Some(GroupStatus { leader, term, members, .. }) => {
                GroupStatus { group: number, role, leader, term, members, receiving, ..GroupStatus::default() }
            }
        })
    }
}

/// Sends an operator's command to the node at `address`.
pub async fn command(trust: &Trust, address: &str, command: Command) -> Result<Option<NodeStatus>> {
    let pool = Pool::new(trust.clone(), Arc::default(), HashMap::new(), Versions::default());
    match pool.call(0, address, &Call::Command(command)).await? {
        Answer::Done => Ok(None),
        Answer::Status(status) => Ok(Some(status)),
        _ => Err(unexpected()),
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
        let node = |(id, Member { resp, .. }): (NodeId, Member)| {
            let (host, port) = resp.rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Some(Node { id, host, port: port.parse().ok()? })
        };
        self.members().into_iter().filter_map(node).collect()
    }

    fn leader(&self, group: GroupId) -> Option<NodeId> {
        let known = self.known(group)?;
        if known.is_member(self.settings.id) {
            return known.leader().or_else(|| self.others.leader(group));
        }
        self.views.lock().get(&group).and_then(|view| view.leader)
    }

    fn now_ms(&self, group: GroupId) -> u64 {
        self.known(group).map_or(0, |known| known.state.now_ms())
    }

    fn status(&self, group: GroupId) -> Status {
        let report = self.status_of(group);
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
                Some(reply) => reply.await.map_err(|error| match error {
                    WriteError::NotLeader { leader: None } => {
                        WriteError::NotLeader { leader: self.other_leader(group) }
                    }
                    error => error,
                }),
                None => Err(WriteError::Refused(NO_GROUP.to_owned())),
            }
        }
    }

    async fn barrier(&self, group: GroupId) -> Result<(), ReadError> {
        let known = self.known(group).ok_or_else(|| ReadError::Failed(NO_GROUP.to_owned()))?;
        known.barrier().await.map(drop).map_err(|error| match error {
            ReadError::NotLeader { leader: None } => ReadError::NotLeader { leader: self.other_leader(group) },
            error => error,
        })
    }

    fn machine(&self, group: GroupId) -> Result<Arc<Machine>, ReadError> {
        let known = self.known(group).ok_or_else(|| ReadError::Failed(NO_GROUP.to_owned()))?;
        // A group that was begun anew since the reader's barrier has had none.
        match known.staleness() {
            Some(_) => Ok(known.state.machine()),
            None => Err(ReadError::NotLeader { leader: self.other_leader(group) }),
        }
    }

    fn staleness(&self, group: GroupId) -> Option<Duration> {
        self.known(group)?.staleness()
    }
}
