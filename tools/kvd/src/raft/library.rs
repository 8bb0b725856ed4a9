//! The parameters of the consensus library, and what depends on them.

use tamis_openraft::SnapshotData;

use super::types::{Member, Proposal};
use crate::machine::{Reply, Version};
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
/// The first version that can read an entry.
pub(super) fn version_of(entry: &Entry) -> Version {
    match &entry.payload {
        openraft::EntryPayload::Normal(proposal) => proposal.version(),
        openraft::EntryPayload::Blank | openraft::EntryPayload::Membership(_) => Version::FIRST,
    }
}

pub(crate) type Snapshot = openraft::Snapshot<Types>;
pub(crate) type Raft = openraft::Raft<Types>;
