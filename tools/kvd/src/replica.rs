//! [`Replica`]: what the server asks of consensus, and nothing of how consensus does it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::machine::{GroupId, Machine, Reply, Request};

/// Number of a node.
pub type NodeId = u64;

/// A node as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Host at which it answers clients: a name or an address, without brackets.
    pub host: String,
    /// Port at which it answers clients.
    pub port: u16,
}

/// Why a write has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// This node does not lead the group, or no majority has answered it for so long that another
    /// node may. Nothing was written.
    #[error("this node does not lead the group; its leader is node {leader:?}")]
    NotLeader {
        /// Who does, if that is known.
        leader: Option<NodeId>,
    },
    /// Too much is in flight. Nothing was written; try again later.
    #[error("too many writes are in flight")]
    Overloaded,
    /// The request would take space, and the disk of this node, or those of a majority, are nearly
    /// full. Nothing was written.
    #[error("too little space is free on this node's disk or on those of a majority")]
    NoSpace,
    /// Nothing was written, and trying again will not help until the cause is removed.
    #[error("{0}")]
    Refused(String),
    /// The request was proposed, and what became of it is not known: it may be applied or not, now
    /// or later.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

/// Why a linearizable read could not be made. Reads may always be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// This node does not lead the group.
    #[error("this node does not lead the group; its leader is node {leader:?}")]
    NotLeader {
        /// Who does, if that is known.
        leader: Option<NodeId>,
    },
    /// No majority has confirmed in time that this node still leads.
    #[error("no majority answers: {0}")]
    NoQuorum(String),
    /// The node cannot read: it stops, or its store has failed.
    #[error("{0}")]
    Failed(String),
}

/// What a node knows of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The node that leads it, if one does.
    pub leader: Option<NodeId>,
    /// The term of that leader.
    pub term: u64,
    /// Index of the last entry in this node's log.
    pub last_index: u64,
    /// Index of the last entry known to be committed.
    pub committed_index: u64,
    /// Index of the last entry that this node has applied.
    pub applied_index: u64,
    /// Nodes that vote, ordered.
    pub voters: Vec<NodeId>,
    /// Nodes that only follow, ordered.
    pub learners: Vec<NodeId>,
}

/// A node's part in consensus.
///
/// Futures may be dropped at any time. A dropped write may still be applied.
pub trait Replica: Send + Sync + 'static {
    /// Number of groups among which [`group_of`](crate::machine::group_of) shares the slots. Does
    /// not change while the node runs.
    fn groups(&self) -> u32;

    /// This node's number.
    fn id(&self) -> NodeId;

    /// All nodes that this one knows, ordered by number.
    fn nodes(&self) -> Vec<Node>;

    /// The node that leads a group, as far as this one knows.
    fn leader(&self, group: GroupId) -> Option<NodeId>;

    /// The clock from which a group's entries get their times, in milliseconds since 1970.
    fn now_ms(&self, group: GroupId) -> u64;

    /// What this node knows of a group.
    fn status(&self, group: GroupId) -> Status;

    /// Proposes a request, and waits until this node has applied it.
    ///
    /// The call itself puts the request into the group's queue, before the future is polled: two
    /// requests are applied in the order of the calls, if both are. The entry's time is
    /// that of [`now_ms`](Replica::now_ms).
    fn write(&self, group: GroupId, request: Request) -> impl Future<Output = Result<Reply, WriteError>> + Send;

    /// Waits until [`machine`](Replica::machine) holds every write whose reply was sent anywhere
    /// before this call.
    fn barrier(&self, group: GroupId) -> impl Future<Output = Result<(), ReadError>> + Send;

    /// The group's state on this node. Installing a snapshot replaces it: ask anew for each read.
    fn machine(&self, group: GroupId) -> Result<Arc<Machine>, ReadError>;

    /// For how long [`machine`](Replica::machine) may have missed writes: it holds all that were
    /// acknowledged longer ago than this. `None` if this node has not heard of the group's leader
    /// since it started.
    fn staleness(&self, group: GroupId) -> Option<Duration>;
}
