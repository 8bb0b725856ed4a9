//! What a node does about who it is to the others: it has the membership say where it is reached
//! now, and ends when it is no member any more.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::cluster::Cluster;
use super::group::Group;
use super::members::is_unspecified;
use super::others::ROUND;
use super::types::Member;
use super::wire::{Answer, Change};
use crate::error::{Error, Result};
use crate::machine::GroupId;
use crate::replica::Replica;

/// Between two attempts to have an address accepted that was refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// For which the leaders of all groups say that this node is no member, until it believes that. A
/// node that is about to give up its last replica is none either.
const REMOVED_TIME: Duration = Duration::from_secs(3);

impl Cluster {
    /// Looks after this node's identity until it is removed.
    pub(super) async fn look_after_identity(&self) {
        let mut absent_since = None;
        loop {
            sleep(ROUND).await;
            if self.number() == 0 {
                continue;
            }
            if let Err(error) = self.announce().await {
                tracing::warn!(%error, "the membership has another address of this node than it is told");
                sleep(REFUSED_PAUSE).await;
            }
            if !self.is_removed().await {
                absent_since = None;
            } else if absent_since.get_or_insert_with(Instant::now).elapsed() > REMOVED_TIME {
                tracing::error!("this node is no member of the cluster any more");
                return self.removed.notify_one();
            }
        }
    }

    /// Why clients should not come to this node now, if they should not: it serves them, or knows
    /// who does, for every group.
    pub(crate) fn why_not_ready(&self) -> Option<String> {
        if self.number() == 0 {
            return Some("this node is in no cluster".to_owned());
        }
        if self.is_retiring.load(Ordering::SeqCst) {
            return Some("this node stops".to_owned());
        }
        let is_led = |number: GroupId| match self.group(number) {
            Ok(group) if group.leads() => group.check_lead().is_ok(),
            Ok(group) if group.is_member(self.settings.id) => {
                group.watch.lock().has_leader() || self.others.leader(number).is_some()
            }
            _ => self.leader(number).is_some(),
        };
        let unled = (0..self.groups()).find(|number| !is_led(*number));
        unled.map(|number| format!("group {number} has no leader that this node knows"))
    }

    /// Has the leaders of groups note where this node is, if the membership says otherwise. Fails
    /// if one refuses: it does not reach the node there.
    async fn announce(&self) -> Result<()> {
        for (number, group) in self.member_groups() {
            let Some(known) = group.member(self.settings.id) else { continue };
            let own = Member {
                raft: announced(&self.settings.member.raft, &known.raft),
                resp: announced(&self.settings.member.resp, &known.resp),
            };
            if own != known {
                let change = Change::Relocate { id: self.settings.id, member: own, is_checked: true };
                // Without a leader there is another round.
                if let Err(error @ Error::Refused { .. }) = self.pass(number, &change).await {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Whether this node has been a member, and the leaders of all groups say that it is none.
    async fn is_removed(&self) -> bool {
        let has_been = |group: &Group| group.raft.metrics().borrow().membership_config.log_id().is_some();
        if !self.all().any(|(_, group)| has_been(&group)) || !self.others.disown() {
            return false;
        }
        for number in 0..self.groups() {
            if !self.is_absent(number).await {
                return false;
            }
        }
        true
    }

    /// Whether the leader of a group says that this node is no member, and knows as much as this
    /// one.
    async fn is_absent(&self, number: GroupId) -> bool {
        let Ok(Answer::Lead(lead)) = self.pass(number, &Change::Confirm).await else { return false };
        let Ok(group) = self.group(number) else { return false };
        let metrics = group.raft.metrics();
        let is_current = *lead.members.log_id() >= *metrics.borrow().membership_config.log_id();
        is_current && lead.members.nodes().all(|(id, _)| *id != self.settings.id)
    }
}

/// An address to announce. If the own one leads nobody here, what is known stays.
fn announced(own: &str, known: &str) -> String {
    if is_unspecified(own) { known.to_owned() } else { own.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::announced;

    #[test]
    fn an_address_on_all_interfaces_is_not_announced() {
        for (own, expected) in
            [("0.0.0.0:1", "b:2"), ("[::]:1", "b:2"), ("a:1", "a:1"), ("10.0.0.1:1", "10.0.0.1:1"), ("", "")]
        {
            assert_eq!(announced(own, "b:2"), expected);
        }
    }
}
