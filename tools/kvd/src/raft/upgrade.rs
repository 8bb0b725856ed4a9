//! Raises the versions of groups: when all members of a group know a version, its leader puts that
//! into the log, and only what comes after it may be of that version.
//!
//! Each node notes the version with the entries that first have it, in one batch. It says in the
//! handshake which version it knows and which its groups have: a node that is older than a group of
//! the other is refused, and one that learns this from a member ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::cluster::Cluster;
use super::group::Group;
use super::others::ROUND;
use crate::error::Error;
use crate::machine::{Body, Request, Version};

/// Between two looks at versions while a cluster is made.
const LOOK: Duration = Duration::from_millis(20);

impl Cluster {
    /// Raises the versions of groups that this node leads, for ever.
    pub(super) async fn raise_versions(self: Arc<Self>) {
        loop {
            let is_older = |group: &Arc<Group>| group.state.version() < self.settings.version;
            let groups: Vec<_> = self.member_groups().filter(|(_, group)| is_older(group)).collect();
            for (number, group) in groups.iter().filter(|(_, group)| group.leads()) {
                let common = self.common_version(group).unwrap_or(Version::FIRST);
                if common > group.state.version()
                    && let Err(error) = group.write(Request::new(Body::Upgrade(common))).await
                {
                    tracing::info!(group = number, version = %common, %error, "the group has no new version yet");
                }
            }
            sleep(if groups.is_empty() { ROUND } else { self.settings.heartbeat }).await;
        }
    }

    /// The version that all members of a group know, if all have said so of late.
    fn common_version(&self, group: &Group) -> Option<Version> {
        let mut known = self.others.versions(self.of_late());
        known.insert(self.settings.id, self.settings.version);
        let metrics = group.raft.metrics();
        let metrics = metrics.borrow();
        let versions = metrics.membership_config.nodes().map(|(id, _)| known.get(id).copied());
        versions.collect::<Option<Vec<Version>>>()?.into_iter().min()
    }

    /// Waits until the groups of a new cluster have the version that all members know. One that
    /// does not come to it in time does later.
    pub(super) async fn await_versions(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let is_there =
            |group: Arc<Group>| Some(group.state.version()) >= self.common_version(&group).or(Some(Version::LATEST));
        while Instant::now() < deadline && !self.member_groups().all(|(_, group)| is_there(group)) {
            sleep(LOOK).await;
        }
    }

    /// Notes whether a member has said that this node is too old for it.
    pub(super) fn note_outdated(&self, error: &Error) {
        if let Error::Outdated { needed, .. } = error {
            self.outdated.send_replace(Some(*needed));
        }
    }

    /// Waits until this node turns out to be too old for the cluster, and says for which version.
    pub(super) async fn is_outdated(&self) -> Version {
        let mut outdated = self.outdated.subscribe();
        loop {
            if let Some(version) = *outdated.borrow_and_update() {
                return version;
            }
            let _ = outdated.changed().await;
        }
    }
}
