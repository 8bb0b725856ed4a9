//! What is worth a line in the report on many groups.

use std::collections::BTreeMap;

use crate::raft::{GroupStatus, is_off};

/// Groups of which each has a line, whatever its state.
const FEW: usize = 16;

/// Entries by which a node may lag while clients write.
const LAG: u64 = 64;

/// Whether an operator should look at a group.
fn is_remarkable(group: &GroupStatus) -> bool {
    let serves = matches!(group.role.as_str(), "leader" | "follower" | "learner" | "none");
    let lags = group.matched.iter().any(|(_, at)| at.saturating_add(LAG) < group.last)
        || group.applied.saturating_add(LAG) < group.committed;
    !serves || group.leader.is_none() || lags || group.receiving.is_some() || group.ahead_ms.is_some_and(is_off)
}

/// A line about all groups, if there are many, and those that have lines of their own.
pub(crate) fn digest(groups: &[GroupStatus], all: bool) -> (Option<String>, Vec<GroupStatus>) {
    if all || groups.len() <= FEW {
        return (None, groups.to_vec());
    }
    let mut roles: BTreeMap<&str, usize> = BTreeMap::new();
    for group in groups {
        *roles.entry(&group.role).or_default() += 1;
    }
    let roles = roles.iter().map(|(role, count)| format!("{role} of {count}")).collect::<Vec<_>>().join(", ");
    let shown: Vec<GroupStatus> = groups.iter().filter(|group| is_remarkable(group)).cloned().collect();
    let rest = match shown.len() {
        0 => "Each has a leader and does not lag".to_owned(),
        shown => format!("All but {shown} have a leader and do not lag"),
    };
    (Some(format!("{} groups: {roles}. {rest}; --all lists them.", groups.len())), shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(number: u32) -> GroupStatus {
        let (role, leader) = if number.is_multiple_of(2) { ("leader", Some(1)) } else { ("follower", Some(2)) };
        let matched = vec![(2, 990)];
        let indexes = GroupStatus { last: 1000, committed: 1000, applied: 999, matched, ..GroupStatus::default() };
        GroupStatus { group: number, role: role.to_owned(), leader, ..indexes }
    }

    #[test]
    fn of_many_groups_only_those_are_shown_that_are_not_as_they_should_be() {
        let mut groups: Vec<GroupStatus> = (0..40).map(group).collect();
        let (line, shown) = digest(&groups, false);
        let expected = "40 groups: follower of 20, leader of 20. Each has a leader and does not lag; --all lists them.";
        assert_eq!((line.as_deref(), shown), (Some(expected), vec![]));
        groups[3].leader = None;
        groups[4].matched = vec![(2, 1000), (3, 900)];
        groups[5].role = "stopped: the disk is full".to_owned();
        groups[6].receiving = Some(7);
        groups[7].ahead_ms = Some(-60_000);
        groups[8].applied = 900;
        let (line, shown) = digest(&groups, false);
        assert!(line.unwrap().contains("All but 6 have"));
        assert_eq!(shown.iter().map(|group| group.group).collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8]);
        assert_eq!(digest(&groups, true), (None, groups.clone()));
        // Few are all shown.
        groups.truncate(FEW);
        assert_eq!(digest(&groups, false), (None, groups.clone()));
    }
}
