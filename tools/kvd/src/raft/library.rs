//! The parameters of the consensus library, and what depends on them.

use super::snapshot::SnapshotData;
use super::types::{Member, Proposal};
use crate::machine::Reply;
use crate::replica::NodeId;

openraft::declare_raft_types!(
    /// The consensus library's parameters.
    pub(crate) Types:
        D = Proposal,
        R = Vec<Reply>,
        NodeId = NodeId,
        Node = Member,
        Entry = openraft::Entry<Types>,
        SnapshotData = SnapshotData,
        AsyncRuntime = openraft::TokioRuntime,
);

pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type Snapshot = openraft::Snapshot<Types>;
pub(crate) type Raft = openraft::Raft<Types>;
