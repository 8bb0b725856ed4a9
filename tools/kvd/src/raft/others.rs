//! [`Others`]: what a node has heard of the other nodes.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use parking_lot::Mutex;

use super::group::Group;
use crate::clock::Clocks;
use crate::machine::GroupId;
use crate::replica::NodeId;

/// Milliseconds by which a clock may differ from the median of the voters' clocks before that is
/// said.
const MOST_OFF_MS: u64 = 5_000;

/// Whether something that is so much ahead of the median is far off.
pub(crate) fn is_off(ahead_ms: i64) -> bool {
    ahead_ms.unsigned_abs() > MOST_OFF_MS
}

/// What the other nodes have said.
#[derive(Default)]
pub(super) struct Others {
    pub(super) clocks: Mutex<Clocks>,
    /// Whether this node's clock is far off.
    pub(super) is_off: AtomicBool,
    /// Groups whose time is far off.
    pub(super) off: Mutex<BTreeSet<GroupId>>,
}

impl Others {
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
