//! [`Others`]: what a node has heard of the other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::group::Group;
use crate::clock::Clocks;
use crate::machine::{GroupId, Version};
use crate::replica::NodeId;

/// Between two rounds of questions to the other nodes, or one heartbeat, if that is longer.
pub(super) const ROUND: Duration = Duration::from_millis(500);
/// Milliseconds by which a clock may differ from the median of the voters' clocks before that is
/// said.
const MOST_OFF_MS: u64 = 5_000;

/// Whether something that is so much ahead of the median is far off.
pub(crate) fn is_off(ahead_ms: i64) -> bool {
    ahead_ms.unsigned_abs() > MOST_OFF_MS
}

/// What a node has said of itself.
struct Said {
    at: Instant,
    /// The latest version that it knows.
    version: Version,
    /// Whether its disk is nearly full.
    is_low: bool,
}
/// Where a node was reached last, and when. Locked while it is called.
pub(super) type Reached = Arc<tokio::sync::Mutex<Option<(String, Instant)>>>;

/// What the other nodes have said.
#[derive(Default)]
pub(super) struct Others {
    pub(super) clocks: Mutex<Clocks>,
    /// Whether this node's clock is far off.
    pub(super) is_off: AtomicBool,
    /// When each node has called this one.
    callers: Mutex<BTreeMap<NodeId, Instant>>,
    /// When each node has answered, and whether it knows this one as a member.
    answered: Mutex<BTreeMap<NodeId, (Instant, bool)>>,
    /// Which nodes have said that they lead: by group, with the term, and when that was.
    leaders: Mutex<BTreeMap<GroupId, (u64, NodeId, Instant)>>,
    /// What each node has said of itself.
    said: Mutex<BTreeMap<NodeId, Said>>,
    reached: Mutex<BTreeMap<NodeId, Reached>>,
    /// Groups whose time is far off.
    pub(super) off: Mutex<BTreeSet<GroupId>>,
}

impl Others {
    /// Notes that a node has called this one.
    pub(super) fn note_caller(&self, node: NodeId) {
        self.callers.lock().insert(node, Instant::now());
    }

    /// Notes what a node has said of itself.
    pub(super) fn note_said(&self, node: NodeId, version: Version, is_low: bool) {
        self.said.lock().insert(node, Said { at: Instant::now(), version, is_low });
    }

    /// Whether a node's disk is nearly full, as it has said of late.
    pub(super) fn is_low(&self, node: NodeId) -> bool {
        self.said.lock().get(&node).is_some_and(|said| said.is_low && said.at.elapsed() < 4 * ROUND)
    }

    /// The versions that nodes have said of late to know.
    pub(super) fn versions(&self, of_late: Duration) -> BTreeMap<NodeId, Version> {
        let said = self.said.lock();
        let heard = said.iter().filter(|(_, said)| said.at.elapsed() < of_late);
        heard.map(|(node, said)| (*node, said.version)).collect()
    }

    /// Where a node was reached last.
    pub(super) fn reached(&self, node: NodeId) -> Reached {
        Arc::clone(self.reached.lock().entry(node).or_default())
    }

    /// Notes what a node has answered.
    pub(super) fn note_answer(&self, node: NodeId, knows: bool, leads: &BTreeMap<GroupId, u64>) {
        let now = Instant::now();
        self.answered.lock().insert(node, (now, knows));
        let mut leaders = self.leaders.lock();
        leaders.retain(|group, (_, leader, _)| *leader != node || leads.contains_key(group));
        for (group, term) in leads {
            let known = leaders.entry(*group).or_insert((*term, node, now));
            if *term >= known.0 {
                *known = (*term, node, now);
            }
        }
    }

    /// The node that leads a group by its own account of late.
    pub(super) fn leader(&self, group: GroupId) -> Option<NodeId> {
        let (_, leader, at) = *self.leaders.lock().get(&group)?;
        (at.elapsed() < 4 * ROUND).then_some(leader)
    }

    /// Whether this node has reached another of late, and that one this.
    pub(super) fn reach(&self, node: NodeId, of_late: Duration) -> (bool, bool) {
        let answers = self.answered.lock().get(&node).is_some_and(|(at, _)| at.elapsed() < of_late);
        (answers, self.callers.lock().get(&node).is_some_and(|at| at.elapsed() < of_late))
    }

    /// Whether a majority of the voters, of which this node is one, has called it of late.
    pub(super) fn is_called_by_majority(&self, id: NodeId, voters: &BTreeSet<NodeId>, of_late: Duration) -> bool {
        let calls = |voter: &&NodeId| **voter == id || self.reach(**voter, of_late).1;
        2 * voters.iter().filter(calls).count() > voters.len()
    }

    /// Whether most of the nodes that have answered of late do not know this one.
    pub(super) fn disown(&self) -> bool {
        let answered = self.answered.lock();
        let of_late = answered.values().filter(|(at, _)| at.elapsed() < 4 * ROUND);
        let (known, unknown): (Vec<bool>, Vec<bool>) = of_late.map(|(_, knows)| *knows).partition(|knows| *knows);
        unknown.len() > known.len()
    }

    /// Whether a node has answered of late, and its clock is right.
    pub(super) fn is_right(&self, node: NodeId, voters: &BTreeSet<NodeId>, of_late: Duration) -> bool {
        self.reach(node, of_late).0 && self.ahead_ms(node, voters).is_some_and(|ahead| !is_off(ahead))
    }

    /// The median of some nodes' clocks.
    pub(super) fn median(&self, voters: &BTreeSet<NodeId>) -> Option<u64> {
        self.clocks.lock().median(voters, Instant::now())
    }

    /// How far a node's clock is ahead of the median of the voters' clocks.
    pub(super) fn ahead_ms(&self, node: NodeId, voters: &BTreeSet<NodeId>) -> Option<i64> {
        let (clocks, now) = (self.clocks.lock(), Instant::now());
        Some(ahead(clocks.of(node, now)?, clocks.median(voters, now)?))
    }

    /// How far a group's time is ahead of the median of its voters' clocks.
    pub(super) fn group_ahead_ms(&self, group: &Group) -> Option<i64> {
        let median = self.median(&group.voters())?;
        let known = group.state.is_settled().then(|| group.state.now_ms());
        Some(ahead(known?, group.state.machine().log_ms(median)))
    }
}

fn ahead(shown: u64, right: u64) -> i64 {
    i64::try_from(i128::from(shown) - i128::from(right)).unwrap_or(i64::MAX)
}
