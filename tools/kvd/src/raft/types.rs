//! Members, proposals, and short names for the consensus library's types.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::machine::{self, DecodeError, Version};
use crate::replica::NodeId;

/// Where a member is reached, as the membership in the log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Address for other nodes.
    pub raft: String,
    /// Address for clients.
    pub resp: String,
}

/// What a log entry holds of clients' requests.
///
/// The library answers a proposal with the same refusal whether it was never in a log, or was cut
/// off this node's. In the second case another node may still bring it to be committed, so the
/// log notes on the leader that it has seen a proposal.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    /// The version, if this program does not know it.
    entry: Result<machine::Entry, Version>,
    logged: Option<Arc<Logged>>,
}

/// The entry with its version in front, so that an older node sees what it cannot read.
impl Serialize for Proposal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entry = self.entry().map_err(S::Error::custom)?;
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Proposal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Proposal, D::Error> {
        let entry = match machine::Entry::decode(<&[u8]>::deserialize(deserializer)?) {
            Err(DecodeError::Version(version)) => Err(version),
            entry => Ok(entry.map_err(D::Error::custom)?),
        };
        Ok(Proposal { entry, logged: None })
    }
}

/// How far a proposal has come in the log of the node that made it.
#[derive(Debug, Default)]
pub(crate) struct Logged {
    is_possible: AtomicBool,
    passed: Notify,
}

impl Proposal {
    pub(crate) fn new(entry: machine::Entry) -> (Proposal, Arc<Logged>) {
        let logged: Arc<Logged> = Arc::default();
        (Proposal { entry: Ok(entry), logged: Some(Arc::clone(&logged)) }, logged)
    }

    /// What is to be applied.
    pub(crate) fn entry(&self) -> Result<&machine::Entry> {
        let known = Version::LATEST;
        self.entry.as_ref().map_err(|found| Error::Version { place: "an entry", found: *found, known })
    }

    /// The first version that can read it.
    pub(super) fn version(&self) -> Version {
        self.entry.as_ref().map_or_else(|version| *version, machine::Entry::version)
    }

    /// Notes that it is in a log, or may be soon. Returns what to tell once the log is synced.
    pub(super) fn note_logged(&self) -> Option<Arc<Logged>> {
        let logged = self.logged.clone()?;
        logged.is_possible.store(true, Ordering::Release);
        Some(logged)
    }
}

impl Logged {
    /// If not, no node has it and none ever will.
    pub(crate) fn is_possible(&self) -> bool {
        self.is_possible.load(Ordering::Acquire)
    }

    /// Notes that the log is done with it: it is synced, or never will be.
    pub(crate) fn note_passed(&self) {
        self.passed.notify_one();
    }

    /// Waits for that. For one caller.
    pub(crate) async fn passed(&self) {
        self.passed.notified().await;
    }
}

pub(crate) type LogId = openraft::LogId<NodeId>;
pub(crate) type Vote = openraft::Vote<NodeId>;
pub(crate) type StoredMembership = openraft::StoredMembership<NodeId, Member>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<NodeId, Member>;
pub(crate) type StorageIoError = openraft::StorageIOError<NodeId>;
