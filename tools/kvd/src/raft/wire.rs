//! What nodes say to each other, and operators to nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use serde::{Deserialize, Serialize};

use super::library::{Types, version_of};
use super::types::{LogId, Member, SnapshotMeta, StoredMembership, Vote};
use crate::machine::Version;
use crate::replica::NodeId;

/// A request. Each gets one [`Answer`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Call {
    /// New entries, or none: a heartbeat.
    Append { group: u32, request: AppendEntriesRequest<Types> },
    /// A candidate asks for a vote.
    Vote { group: u32, request: VoteRequest<NodeId> },
    /// The leader sends the state after an entry, which a node must know `version` to read.
    /// `Piece`s follow, then the answer.
    Snapshot { group: u32, version: Version, vote: Vote, meta: SnapshotMeta },
    /// A follower asks up to which entry of each group it must have applied to have missed nothing.
    ReadIndexes { groups: Vec<u32> },
    /// A node passes on an operator's change to the leader.
    Change { group: u32, change: Change },
    /// Takes a node into a cluster. `as_new`: its store may be new. `leads`: what the leaders of
    /// all groups say, if these have begun.
    Admit { cluster: u64, groups: u32, as_new: bool, leads: Vec<Lead> },
    /// Begins a group with these members.
    Begin { group: u32, members: BTreeMap<NodeId, Member> },
    /// An operator's command.
    Command(Command),
    /// The leader of a group, which takes no requests meanwhile, has this node stand for election.
    Stand { group: u32 },
    /// The node is no member of the group any more, and gives up what it has of it.
    Leave { group: u32, lead: Lead },
    /// What each node asks the others again and again.
    Greet { from: NodeId },
    /// A node asks in which groups it would get a vote, if these are the last entries of its logs.
    Canvass { from: NodeId, groups: LastLogs },
    /// Like `Change`, to a node that may reach the leader when the sender does not.
    Relay { group: u32, change: Change },
    /// A heartbeat for all groups that node `from` leads, and of which the other is a member.
    Heartbeat { from: NodeId, leads: Vec<LedGroup> },
}

/// For a call that waits for no disk.
const SHORT: Duration = Duration::from_secs(5);
/// For entries to reach a node's disk.
const APPEND_TIME: Duration = Duration::from_secs(60);
/// For a node to be admitted, or to begin or give up a group.
const ADMIT_TIME: Duration = Duration::from_secs(90);
/// For a change of membership, which may have to wait until a node has caught up.
pub(super) const CHANGE_TIME: Duration = Duration::from_secs(600);
/// For an operator's command: changes of membership of up to 256 groups, one after the other.
const COMMAND_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// For a received snapshot to be made durable.
const INSTALL_TIME: Duration = Duration::from_secs(600);

impl Call {
    /// The first version whose nodes understand it.
    pub(super) fn version(&self) -> Version {
        match self {
            Call::Append { request, .. } => request.entries.iter().map(version_of).max().unwrap_or(Version::FIRST),
            Call::Snapshot { version, .. } => *version,
            Call::Command(Command::SetTime)
            | Call::Change { change: Change::SetTime, .. }
            | Call::Relay { change: Change::SetTime, .. } => Version::REDIS_7_2,
            _ => Version::FIRST,
        }
    }

    /// How long to wait for the answer.
    pub(super) fn limit(&self) -> Duration {
        match self {
            Call::Append { request, .. } if !request.entries.is_empty() => APPEND_TIME,
            Call::Append { .. }
            | Call::Vote { .. }
            | Call::ReadIndexes { .. }
            | Call::Heartbeat { .. }
            | Call::Stand { .. }
            | Call::Greet { .. }
            | Call::Canvass { .. }
            | Call::Command(Command::Status) => SHORT,
            Call::Admit { .. } | Call::Begin { .. } | Call::Leave { .. } => ADMIT_TIME,
            // The leader gives up first, and says why.
            Call::Change { .. } => CHANGE_TIME + SHORT,
            Call::Relay { .. } => CHANGE_TIME + 2 * SHORT,
            Call::Command(_) => COMMAND_TIME,
            Call::Snapshot { .. } => INSTALL_TIME,
        }
    }
}

/// The answer to a [`Call`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Append(AppendEntriesResponse<NodeId>),
    Vote(VoteResponse<NodeId>),
    Snapshot(Vote),
    ReadIndexes(BTreeMap<u32, u64>),
    Done,
    Lead(Lead),
    Status(NodeStatus),
    Refused(String),
    Greeting(Greeting),
    /// This node does not lead the group, or does not reach its leader.
    Elsewhere(u32),
    /// Of the groups of a heartbeat, those that need a message of their own: this node has not
    /// applied all entries of the former, and does not confirm the leader of the latter.
    Heartbeat {
        behind: Vec<u32>,
        apart: Vec<u32>,
    },
    /// The groups in which this node would vote for the other.
    Granted(Vec<u32>),
}

/// The last entries of the logs of some groups.
pub(super) type LastLogs = Vec<(u32, Option<LogId>)>;

/// A group that a node leads.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct LedGroup {
    pub(super) group: u32,
    pub(super) term: u64,
    /// Index of the last entry of its log.
    pub(super) last: u64,
}

/// What a node says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    /// The latest version that it knows.
    pub(super) version: Version,
    /// Whether its disk is nearly full.
    pub(super) is_low: bool,
    /// What its clock on the wall shows.
    pub(super) wall_ms: u64,
    /// The time of the groups of which it knows that.
    pub(super) times: BTreeMap<u32, u64>,
    /// Whether it knows the node that asks as a member.
    pub(super) knows: bool,
    /// The groups that it leads, and the terms.
    pub(super) leads: BTreeMap<u32, u64>,
}

/// What the leader of a group says of it, once a majority has confirmed that it leads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lead {
    /// Its term, and who it is.
    pub(super) vote: Vote,
    /// The members, committed.
    pub(super) members: StoredMembership,
}

/// A change of a group that its leader makes for an operator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Change {
    /// None: the leader answers with its [`Lead`].
    Confirm,
    /// Adds a node that follows and does not vote, and waits until it has caught up.
    AddLearner(NodeId, Member),
    /// Lets a learner vote.
    Promote(NodeId),
    /// Removes a node, if it is a member.
    Remove(NodeId),
    /// Hands the lead over to a voter.
    Lead(NodeId),
    /// Has clients' times be those of the members' clocks.
    SetTime,
    /// Notes where a member is now. `is_checked`: only if the leader reaches it there.
    Relocate { id: NodeId, member: Member, is_checked: bool },
}

/// What an operator wants of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Makes a cluster of this node and others, none of which has been in one.
    Init {
        /// The other nodes.
        others: Vec<(NodeId, Member)>,
    },
    /// Adds a node to the cluster.
    Add {
        /// The new node.
        id: NodeId,
        /// Where it is.
        member: Member,
        /// Whether it only follows.
        learner: bool,
    },
    /// Removes a node from the cluster.
    Remove {
        /// The node.
        id: NodeId,
    },
    /// Takes nodes into a group, and then others out of it, who give up what they have of it.
    Move {
        /// The group.
        group: u32,
        /// Nodes that get a replica, and vote.
        join: Vec<(NodeId, Member)>,
        /// Nodes that lose theirs.
        leave: Vec<NodeId>,
    },
    /// Asks for a report.
    Status,
    /// Has another voter of a group lead it.
    Transfer {
        /// The group.
        group: u32,
        /// The next leader.
        to: NodeId,
    },
    /// Has clients' times since 1970 be those of the members' clocks.
    SetTime,
    /// Notes where a member is now.
    SetAddress {
        /// The member.
        id: NodeId,
        /// Where it is.
        member: Member,
    },
}

/// A node's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node.
    pub id: NodeId,
    /// The latest version that it knows.
    pub version: Version,
    /// The latest versions that the other members know, as far as they have said so of late.
    pub versions: BTreeMap<NodeId, Version>,
    /// Bytes that are free on its disk, if it knows that.
    pub free_bytes: Option<u64>,
    /// Whether its disk is nearly full.
    pub is_low: bool,
    /// How far its clock is ahead of the median of the voters' clocks, if it knows those of a
    /// majority.
    pub clock_ahead_ms: Option<i64>,
    /// The other members: whether this node has reached them of late, and they this one.
    pub others: Vec<(NodeId, bool, bool)>,
    /// All groups of which it knows.
    pub groups: Vec<GroupStatus>,
}

/// A node's report on one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The group.
    pub group: u32,
    /// What the node is in it: leader, follower, candidate, learner, stopped, or none. Of a group
    /// in which it is none, a node knows the term, the leader and the members from others.
    pub role: String,
    /// The leader, as far as the node knows.
    pub leader: Option<NodeId>,
    /// The term.
    pub term: u64,
    /// Index of the last entry in the log.
    pub last: u64,
    /// Index of the last entry known to be committed.
    pub committed: u64,
    /// Index of the last entry applied.
    pub applied: u64,
    /// Index of the last entry whose effects need no log to survive a crash.
    pub flushed: u64,
    /// Index of the last entry that was removed from the front of the log.
    pub purged: u64,
    /// Index of the last snapshot: up to there, the log may be purged.
    pub snapshot: u64,
    /// The version that its entries may have: raised when all members know the next one. None if
    /// the node is no member.
    pub version: Option<Version>,
    /// Pairs received so far of a snapshot that is being received.
    pub receiving: Option<u64>,
    /// How far the group's time is ahead of the median of the voters' clocks, if the node knows
    /// those of a majority.
    pub ahead_ms: Option<i64>,
    /// All members, and whether they vote.
    pub members: Vec<(NodeId, Member, bool)>,
    /// On the leader: index up to which each node's log is known to agree.
    pub matched: Vec<(NodeId, u64)>,
}
