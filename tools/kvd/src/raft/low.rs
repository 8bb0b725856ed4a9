//! Looks at the disk, and says which groups take writes that grow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::cluster::Cluster;
use super::group::Group;
use crate::replica::NodeId;

/// Between two looks at the disk.
const ROUND: Duration = Duration::from_millis(250);

impl Cluster {
    /// Looks at the disk, for ever.
    pub(super) async fn look_at_space(self: Arc<Self>) {
        let mut failed = false;
        loop {
            match super::blocking(|| self.settings.free_space.of(&self.settings.dir)) {
                Ok(free) => {
                    failed = false;
                    self.note_space(free);
                }
                Err(error) if !failed => {
                    failed = true;
                    tracing::warn!(%error, "cannot tell how much space the disk has");
                }
                Err(_) => {}
            }
            for (_, group) in self.member_groups() {
                let has_space = !self.space.is_low() && self.others_have_space(&group);
                group.has_space.store(has_space, Ordering::Relaxed);
            }
            sleep(ROUND).await;
        }
    }

    fn note_space(&self, free: u64) {
        if self.space.note(free) {
            let reserve = self.space.reserve;
            match self.space.is_low() {
                true => tracing::warn!(free, reserve, "the disk is nearly full: writes that grow are refused"),
                false => tracing::info!(free, reserve, "the disk has space again"),
            }
        }
    }

    /// Whether a majority of a group's voters has space. Who does not answer counts as if it had.
    fn others_have_space(&self, group: &Group) -> bool {
        let voters = group.voters();
        let low = voters.iter().filter(|voter| self.is_low(**voter)).count();
        2 * (voters.len() - low) > voters.len()
    }

    /// Whether a node's disk is nearly full, as far as this one knows.
    pub(super) fn is_low(&self, node: NodeId) -> bool {
        if node == self.settings.id { self.space.is_low() } else { self.others.is_low(node) }
    }

    /// Whether the leads of this node should go to others, some of which have space.
    pub(super) fn should_leave_for_space(&self, group: &Group) -> bool {
        self.space.is_low() && group.voters().iter().any(|voter| !self.is_low(*voter))
    }
}
