//! The membership of a cluster and of its groups, and operators' commands.
//!
//! A node follows as a learner before it votes. One that leaves a group, or comes with a new disk,
//! begins anew with nothing, though others may still count it among the voters: a leader or a
//! candidate that has missed its removal. It must not vouch for such a one. Before it counts as
//! taken in, it therefore has the vote of a leader of the group as its own on its disk, so that it
//! refuses earlier leaders, and the members by then. It neither votes nor stands before its log has
//! a later membership that includes it: by then the log has the entry that removed it, and is ahead
//! of that of any candidate without it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use openraft::ChangeMembers;
use tamis::WriteBatch;
use tokio::time::{sleep, timeout};

use super::cluster::Cluster;
use super::group::Group;
use super::late;
use super::network::unexpected;
use super::types::Member;
use super::wire::{Answer, CHANGE_TIME, Call, Change, Command, Lead};
use crate::error::{Error, Result};
use crate::machine::{Body, Request};
use crate::replica::{NodeId, Replica};

/// Between two attempts to reach the leader of a group with an operator's command.
const RETRY: Duration = Duration::from_millis(200);
/// For a leader to be found.
const LEADER_TIME: Duration = Duration::from_secs(10);
/// Between two looks at how far a node is.
const LOOK: Duration = Duration::from_millis(10);
/// For a group that ends to let go of its state.
const END_TIME: Duration = Duration::from_secs(60);

impl Cluster {
    /// Carries out an operator's command.
    pub(super) async fn execute(&self, command: Command) -> Result<Answer> {
        match command {
            Command::Status => return Ok(Answer::Status(self.report())),
            Command::Init { others } => self.init(others).await?,
            Command::Add { id, member, learner } => {
                self.take_in(id, &member).await?;
                for group in 0..self.groups() {
                    self.on_leader(group, Change::AddLearner(id, member.clone())).await?;
                }
                // Only when all groups have caught up: a node that lacks some is no replica.
                for group in (0..self.groups()).filter(|_| !learner) {
                    self.on_leader(group, Change::Promote(id)).await?;
                }
            }
            Command::Remove { id } => {
                self.check_member(id).await?;
                for group in 0..self.groups() {
                    self.on_leader(group, Change::Remove(id)).await?;
                }
            }
            Command::SetAddress { id, member } => {
                for group in self.check_member(id).await? {
                    let change = Change::Relocate { id, member: member.clone(), is_checked: false };
                    self.on_leader(group, change).await?;
                }
            }
            Command::SetTime => {
                for group in 0..self.groups() {
                    self.on_leader(group, Change::SetTime).await?;
                }
            }
            Command::Move { group, join, leave } => self.move_replicas(group, join, leave).await?,
            Command::Transfer { group, to } => {
                self.group(group)?;
                if !self.lead(group).await?.members.voter_ids().any(|voter| voter == to) {
                    return Err(Error::Config(format!("node {to} is no voter of group {group}")));
                }
                self.on_leader(group, Change::Lead(to)).await?;
            }
        }
        Ok(Answer::Done)
    }

    /// The groups of which a node is a member. Fails if there is none.
    async fn check_member(&self, id: NodeId) -> Result<Vec<u32>> {
        let mut of = Vec::new();
        for group in 0..self.groups() {
            if self.lead(group).await?.members.nodes().any(|(member, _)| *member == id) {
                of.push(group);
            }
        }
        if of.is_empty() { Err(Error::Config(format!("node {id} is no member of the cluster"))) } else { Ok(of) }
    }

    async fn init(&self, others: Vec<(NodeId, Member)>) -> Result<()> {
        let is_somewhere = |address: &String| !is_unspecified(address);
        if ![&self.settings.member.raft, &self.settings.member.resp].into_iter().all(is_somewhere) {
            let reason =
                "this node listens on all interfaces; say by --advertise-raft and --advertise-resp where it is";
            return Err(Error::Config(reason.to_owned()));
        }
        let mut members: BTreeMap<NodeId, Member> = others.into_iter().collect();
        members.insert(self.settings.id, self.settings.member.clone());
        let known: Vec<(NodeId, Member)> = members.clone().into_iter().collect();
        let mut empty = Vec::new();
        for (number, group) in self.all() {
            let state = group.raft.is_initialized().await;
            if !state.map_err(|error| Error::Config(error.to_string()))? {
                empty.push(number);
            }
        }
        if empty.is_empty() {
            return Err(Error::Config("this node is in a cluster already".to_owned()));
        }
        // Both may be left of an attempt that failed: the number, and groups that have begun.
        let cluster = if self.number() == 0 { rand::random::<u64>().max(1) } else { self.number() };
        self.admit(cluster, self.groups(), true, &[]).await?;
        for (id, member) in known.iter().filter(|(id, _)| *id != self.settings.id) {
            let call = Call::Admit { cluster, groups: self.groups(), as_new: true, leads: Vec::new() };
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
        // From then on, it serves.
        for group in 0..self.groups() {
            self.lead(group).await?;
        }
        self.await_versions(LEADER_TIME).await;
        Ok(())
    }

    /// Makes this node the first member of a group, and have itself elected.
    pub(super) async fn begin(&self, group: u32, members: BTreeMap<NodeId, Member>) -> Result<()> {
        let known = self.group(group)?;
        // The library holds the first election by itself.
        known.watch.lock().note_heard();
        let begun = known.raft.initialize(members).await;
        begun.map_err(|error| Error::Config(error.to_string()))
    }

    /// Has a node admitted to the cluster, unless it is in it.
    async fn take_in(&self, id: NodeId, member: &Member) -> Result<()> {
        let (mut as_new, mut leads) = (true, Vec::new());
        for group in 0..self.groups() {
            let lead = self.lead(group).await?;
            // A member of any group must come with its store, a learner too: the leader relies on
            // what it has acknowledged.
            as_new &= !lead.members.nodes().any(|(known, _)| *known == id);
            leads.push(lead);
        }
        let call = Call::Admit { cluster: self.number(), groups: self.groups(), as_new, leads };
        self.pool.call(id, &member.raft, &call).await.map(drop)
    }

    /// Takes this node into a cluster. A store that is new must be expected to be: a member that
    /// has lost its disk must not vote as if it had never voted.
    pub(super) async fn admit(&self, cluster: u64, groups: u32, as_new: bool, leads: &[Lead]) -> Result<()> {
        let refuse = |reason: &str| Err(Error::Config(format!("node {}: {reason}", self.settings.id)));
        let _one = self.joining.lock().await;
        self.fences.lock().extend((0..).zip(leads.iter().map(|lead| *lead.members.log_id())));
        match self.number() {
            _ if groups != self.groups() => refuse("its store has another number of groups"),
            number if number == cluster => Ok(()),
            0 if as_new => {
                let noted = || {
                    let mut batch = WriteBatch::new();
                    self.store.put_cluster(&mut batch, cluster)?;
                    for (group, lead) in (0..).zip(leads) {
                        late::begin_late(&self.store, &mut batch, group, lead)?;
                    }
                    self.store.write_durably(batch)
                };
                super::blocking(noted)?;
                for (group, _) in (0..).zip(leads) {
                    self.begin_anew(group, || Ok(())).await?;
                }
                self.set_number(cluster);
                Ok(())
            }
            0 => refuse("it is a member, but its store is new; remove it from the cluster, then add it"),
            _ => refuse("it is in another cluster"),
        }
    }

    /// Takes nodes into a group, and then others out of it.
    async fn move_replicas(&self, group: u32, join: Vec<(NodeId, Member)>, leave: Vec<NodeId>) -> Result<()> {
        self.group(group)?;
        for (id, member) in &join {
            self.take_in(*id, member).await?;
            self.on_leader(group, Change::AddLearner(*id, member.clone())).await?;
        }
        for (id, _) in &join {
            self.on_leader(group, Change::Promote(*id)).await?;
        }
        let before = self.lead(group).await?;
        let stays = |voter: &NodeId| !leave.contains(voter);
        let staying: BTreeSet<NodeId> = before.members.voter_ids().filter(stays).collect();
        if staying.is_empty() {
            return Err(Error::Config(format!("no voter of group {group} would be left")));
        }
        if before.vote.leader_id.voted_for().is_some_and(|leader| !stays(&leader)) {
            self.hand_over_to_any(group, &staying).await?;
        }
        for id in &leave {
            self.on_leader(group, Change::Remove(*id)).await?;
        }
        let lead = self.lead(group).await?;
        for (id, member) in before.members.nodes().filter(|(id, _)| !stays(id)) {
            let call = Call::Leave { group, lead: lead.clone() };
            if let Err(error) = self.pool.call(*id, &member.raft, &call).await {
                tracing::warn!(group, node = id, %error, "a node that has left a group keeps what it has of it");
            }
        }
        Ok(())
    }

    /// Hands the lead of a group to the first of some voters that can take it.
    async fn hand_over_to_any(&self, group: u32, voters: &BTreeSet<NodeId>) -> Result<()> {
        let mut last = Ok(());
        for to in voters {
            last = self.on_leader(group, Change::Lead(*to)).await.map(drop);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Gives up what this node has of a group that it has left, as `lead` says.
    pub(super) async fn leave(&self, group: u32, lead: &Lead) -> Result<()> {
        let id = self.settings.id;
        let _one = self.joining.lock().await;
        let known = self.group(group)?;
        let check = || {
            let is_member = lead.members.nodes().any(|(member, _)| *member == id);
            let own = *known.raft.metrics().borrow().membership_config.log_id();
            let came_back = known.is_member(id) && own > *lead.members.log_id();
            // It may be about to be a member again, and its log need not say so yet.
            let is_old = self.fences.lock().get(&group).is_some_and(|fence| fence >= lead.members.log_id());
            match is_member || came_back || is_old {
                true => Err(Error::Config(format!("node {id} is a member of group {group}"))),
                false => Ok(()),
            }
        };
        check()?;
        let given_up = || {
            // The log may have grown before the group has ended.
            check()?;
            let mut batch = WriteBatch::new();
            late::begin_late(&self.store, &mut batch, group, lead)?;
            self.store.write_durably(batch)
        };
        self.begin_anew(group, given_up).await
    }

    /// Ends a group on this node, changes what the store has of it, and begins it anew, also if the
    /// change fails. The caller holds `joining`.
    async fn begin_anew(&self, number: u32, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let fail = |reason: String| Error::Stopped { group: number, reason };
        let group = self.group(number)?;
        group.raft.shutdown().await.map_err(|error| fail(error.to_string()))?;
        timeout(END_TIME, group.state.ended()).await.map_err(|_| fail("it does not end".to_owned()))?;
        let _none_is_received = group.receiving.lock().await;
        let changed = super::blocking(change);
        self.replace(number, self.starter.start(number).await?);
        changed
    }

    /// Makes a change of a group that this node leads.
    pub(super) async fn change(&self, number: u32, change: Change) -> Result<Answer> {
        let group = self.group(number)?;
        if !group.leads() {
            return Err(Error::NoLeader(number));
        }
        let raft = &group.raft;
        let changed = async {
            match change {
                Change::Relocate { id, member, is_checked } => {
                    return self.relocate(number, id, member, is_checked).await;
                }
                Change::Confirm => return self.confirm(number).await.map(Answer::Lead),
                Change::Lead(to) => return self.hand_over(number, to).await.map(|()| Answer::Done),
                Change::SetTime => return self.set_time(number, &group).await.map(|()| Answer::Done),
                Change::Remove(id) if !group.is_member(id) => return Ok(Answer::Done),
                Change::AddLearner(id, member) => match raft.add_learner(id, member, true).await {
                    Ok(added) => return self.await_replica(&group, number, id, added.log_id.index).await,
                    Err(error) => Err(error),
                },
                Change::Promote(id) => {
                    match raft.change_membership(ChangeMembers::AddVoterIds([id].into()), true).await {
                        Ok(promoted) => return self.await_replica(&group, number, id, promoted.log_id.index).await,
                        Err(error) => Err(error),
                    }
                }
                Change::Remove(id) => {
                    let is_voter = raft.metrics().borrow().membership_config.voter_ids().any(|voter| voter == id);
                    let remove = if is_voter { ChangeMembers::RemoveVoters } else { ChangeMembers::RemoveNodes };
                    raft.change_membership(remove([id].into()), false).await
                }
            }
            .map(|_| Answer::Done)
            .map_err(|error| Error::Config(error.to_string()))
        };
        let late = |_| Error::Config("the change takes too long; see `kvd status` for how far it is".to_owned());
        timeout(CHANGE_TIME, changed).await.map_err(late)?
    }

    /// Waits until a node's log has entry `index`: only then may it vote. The library waits until
    /// it is not far behind.
    async fn await_replica(&self, group: &Group, number: u32, id: NodeId, index: u64) -> Result<Answer> {
        let no_leader = || Error::Stopped { group: number, reason: "this node leads it no more".to_owned() };
        loop {
            let status = group.status(number);
            if status.role != "leader" {
                return Err(no_leader());
            }
            if id == self.settings.id || status.matched.iter().any(|(node, at)| *node == id && *at >= index) {
                return Ok(Answer::Done);
            }
            sleep(LOOK).await;
        }
    }

    /// Has the group's time be what the members' clocks show on the wall.
    async fn set_time(&self, number: u32, group: &Group) -> Result<()> {
        let fail = |reason: String| Error::Stopped { group: number, reason };
        let median = self.others.median(&group.voters());
        let median = median.ok_or_else(|| fail("the clocks of a majority of the voters are not known".to_owned()))?;
        let set = group.write(Request::new(Body::SetTime(median))).await;
        set.map(drop).map_err(|error| fail(error.to_string()))
    }

    /// What this node says as the leader of a group.
    async fn confirm(&self, number: u32) -> Result<Lead> {
        let fail = |reason: String| Error::Stopped { group: number, reason };
        let group = self.group(number)?;
        group.barrier().await.map_err(|error| fail(error.to_string()))?;
        let metrics = group.raft.metrics();
        let metrics = metrics.borrow();
        let members = (*metrics.membership_config).clone();
        if members.log_id().is_some_and(|entry| entry.index > group.state.committed()) {
            return Err(fail("its members are about to change".to_owned()));
        }
        Ok(Lead { vote: metrics.vote, members })
    }

    /// What the leader of a group says of it.
    async fn lead(&self, group: u32) -> Result<Lead> {
        match self.on_leader(group, Change::Confirm).await? {
            Answer::Lead(lead) => Ok(lead),
            _ => Err(unexpected()),
        }
    }

    /// Has a change made by the leader of its group, for some time.
    async fn on_leader(&self, group: u32, change: Change) -> Result<Answer> {
        let deadline = Instant::now() + LEADER_TIME;
        loop {
            match self.pass(group, &change).await {
                // A change that was made already is made again without harm.
                Err(error) if Instant::now() < deadline => {
                    tracing::info!(group, %error, "an operator's change is tried again");
                    sleep(RETRY).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Has a change made by the leader of its group, whoever reaches it.
    pub(super) async fn pass(&self, group: u32, change: &Change) -> Result<Answer> {
        let outcome = self.pass_directly(group, change).await;
        if !is_lost(&outcome) {
            return outcome;
        }
        let call = Call::Relay { group, change: change.clone() };
        for (id, member) in self.members().into_iter().filter(|(id, _)| *id != self.settings.id) {
            let relayed = self.pool.call(id, &member.raft, &call).await;
            if !is_lost(&relayed) {
                return relayed;
            }
        }
        outcome
    }

    /// Has a change made by the leader of its group, if this node is or reaches it.
    pub(super) async fn pass_directly(&self, group: u32, change: &Change) -> Result<Answer> {
        let known = self.group(group)?.leader();
        let leaders: BTreeSet<NodeId> =
            self.others.leader(group).into_iter().chain(known).chain(self.leader(group)).collect();
        let mut outcome = Err(Error::NoLeader(group));
        for leader in leaders {
            outcome = if leader == self.settings.id {
                self.change(group, change.clone()).await
            } else {
                let address = self.address_of(group, leader).unwrap_or_default();
                self.pool.call(leader, &address, &Call::Change { group, change: change.clone() }).await
            };
            if !is_lost(&outcome) {
                break;
            }
        }
        outcome
    }

    /// Notes where a member of a group is now.
    async fn relocate(&self, number: u32, id: NodeId, member: Member, is_checked: bool) -> Result<Answer> {
        let group = self.group(number)?;
        match group.member(id) {
            None => return Err(Error::Config(format!("node {id} is no member of group {number}"))),
            Some(known) if known == member => return Ok(Answer::Done),
            Some(_) => {}
        }
        if is_checked && id != self.settings.id {
            self.pool.call_at(id, &member.raft, &Call::Greet { from: self.settings.id }).await.map_err(|error| {
                Error::Config(format!("the leader of group {number} does not reach node {id} there: {error}"))
            })?;
        }
        tracing::info!(group = number, node = id, raft = member.raft, resp = member.resp, "a member has moved");
        let moved = group.raft.change_membership(ChangeMembers::SetNodes([(id, member)].into()), true).await;
        moved.map(|_| Answer::Done).map_err(|error| Error::Config(error.to_string()))
    }
}

/// Whether an address only says "on all interfaces", which leads nobody to a node.
pub(super) fn is_unspecified(address: &str) -> bool {
    address.parse().is_ok_and(|address: SocketAddr| address.ip().is_unspecified())
}

/// Whether a change has not come to the leader.
fn is_lost(outcome: &Result<Answer>) -> bool {
    matches!(outcome, Err(Error::NoLeader(_) | Error::Io { .. }))
}
