//! Decides which nodes should have a replica of which group, and which of them should lead it, so
//! that both are spread evenly.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::replica::NodeId;

/// A group, and the nodes that may lead it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Led {
    /// The group.
    pub(crate) group: u32,
    /// Its leader.
    pub(crate) leader: NodeId,
    /// Voters that can take the lead.
    pub(crate) voters: BTreeSet<NodeId>,
}

/// A group that another of its voters should lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// The group.
    pub(crate) group: u32,
    /// Its leader.
    pub(crate) from: NodeId,
    /// The next one.
    pub(crate) to: NodeId,
}

/// Transfers after which no other choice of leaders is more even. If all groups have the same
/// voters, the numbers of groups that two nodes lead then differ by at most one, and no smaller
/// number of transfers has that effect.
///
/// As long as a node leads at least two groups more than another one to which leads can go, along
/// groups that both have voters in, one lead goes along. The choice is most even when there is no
/// such pair (Harvey, Ladner, Lovász, Tamir: "Semi-matchings for bipartite graphs and load
/// balancing", 2003).
pub(crate) fn plan(groups: &[Led]) -> Vec<Transfer> {
    let mut leaders: Vec<NodeId> = groups.iter().map(|led| led.leader).collect();
    let voters = groups.iter().flat_map(|led| led.voters.iter().copied());
    let nodes: BTreeSet<NodeId> = voters.chain(leaders.iter().copied()).collect();
    while let Some(path) = path_to_less(groups, &leaders, &nodes) {
        for (at, to) in path {
            leaders[at] = to;
        }
    }
    let changed = groups.iter().zip(leaders).filter(|(led, to)| led.leader != *to);
    changed.map(|(led, to)| Transfer { group: led.group, from: led.leader, to }).collect()
}

/// Changes of leaders, of groups by position, that take one group from a node to another one that
/// leads at least two fewer.
fn path_to_less(groups: &[Led], leaders: &[NodeId], nodes: &BTreeSet<NodeId>) -> Option<Vec<(usize, NodeId)>> {
    let count = |node: NodeId| leaders.iter().filter(|leader| **leader == node).count();
    let counts: BTreeMap<NodeId, usize> = nodes.iter().map(|node| (*node, count(*node))).collect();
    let mut busiest: Vec<NodeId> = nodes.iter().copied().collect();
    busiest.sort_by_key(|node| std::cmp::Reverse(counts[node]));
    for start in busiest {
        // Each node that leads can reach: by which group, from whom. Nearest first.
        let mut reached: BTreeMap<NodeId, (usize, NodeId)> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(from) = queue.pop_front() {
            for (at, led) in groups.iter().enumerate().filter(|(at, _)| leaders[*at] == from) {
                let nodes = led.voters.iter().copied().chain([led.leader]);
                for to in nodes.filter(|to| *to != start) {
                    reached.entry(to).or_insert_with(|| {
                        queue.push_back(to);
                        (at, from)
                    });
                }
            }
        }
        let least = reached.keys().copied().min_by_key(|node| counts[node]);
        if let Some(mut to) = least.filter(|to| counts[to] + 2 <= counts[&start]) {
            let mut path = Vec::new();
            while to != start {
                let (at, from) = reached[&to];
                path.push((at, to));
                to = from;
            }
            return Some(path);
        }
    }
    None
}

/// A group, and the nodes that have a replica of it and vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The group.
    pub(crate) group: u32,
    /// Its voters.
    pub(crate) voters: BTreeSet<NodeId>,
}

/// What a rebalance may do with nodes. Voters in neither set keep what they have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// They get and lose replicas.
    pub(crate) usable: BTreeSet<NodeId>,
    /// They lose all.
    pub(crate) leaving: BTreeSet<NodeId>,
}

/// Replicas of a group that other nodes should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    /// The group.
    pub(crate) group: u32,
    /// Nodes that should get one.
    pub(crate) join: BTreeSet<NodeId>,
    /// Nodes that should lose theirs.
    pub(crate) leave: BTreeSet<NodeId>,
}

/// Moves after which each group has `replicas` of them, or as many as it had, or one on each usable
/// node if that is fewer, and more on usable nodes than on others that keep theirs; and the numbers
/// of replicas on two usable nodes differ by at most one.
pub(crate) fn spread(groups: &[Placed], nodes: &Nodes, replicas: Option<usize>) -> Vec<Move> {
    let is_usable = |id: &&NodeId| nodes.usable.contains(id);
    let mut placed: Vec<BTreeSet<NodeId>> =
        groups.iter().map(|group| group.voters.iter().filter(is_usable).copied().collect()).collect();
    let count = |placed: &[BTreeSet<NodeId>], id: NodeId| placed.iter().filter(|on| on.contains(&id)).count();
    for at in 0..groups.len() {
        let keeps = |id: &&NodeId| !nodes.usable.contains(id) && !nodes.leaving.contains(id);
        let kept = groups[at].voters.iter().filter(keeps).count();
        let goal = replicas.unwrap_or(groups[at].voters.len()).saturating_sub(kept);
        // More than those that do not answer, or the group would have no majority.
        let goal = goal.max(if kept > 0 { kept + 1 } else { 0 }).min(nodes.usable.len());
        while placed[at].len() > goal
            && let Some(busiest) = placed[at].iter().copied().max_by_key(|id| count(&placed, *id))
        {
            placed[at].remove(&busiest);
        }
        while placed[at].len() < goal
            && let Some(idlest) = nodes.usable.difference(&placed[at]).copied().min_by_key(|id| count(&placed, *id))
        {
            placed[at].insert(idlest);
        }
    }
    loop {
        let busiest = nodes.usable.iter().copied().max_by_key(|id| count(&placed, *id));
        let idlest = nodes.usable.iter().copied().min_by_key(|id| count(&placed, *id));
        let (Some(from), Some(to)) = (busiest, idlest) else { break };
        if count(&placed, from) < count(&placed, to) + 2 {
            break;
        }
        // There is one: it has more groups.
        let Some(on) = placed.iter_mut().find(|on| on.contains(&from) && !on.contains(&to)) else { break };
        on.remove(&from);
        on.insert(to);
    }
    let moves = groups.iter().zip(placed).map(|(group, on)| {
        let goes = |id: &&NodeId| (nodes.usable.contains(id) || nodes.leaving.contains(id)) && !on.contains(id);
        let leave = group.voters.iter().filter(goes).copied().collect();
        Move { group: group.group, join: on.difference(&group.voters).copied().collect(), leave }
    });
    moves.filter(|it| !it.join.is_empty() || !it.leave.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(groups: &[Led]) -> Vec<Led> {
        let mut groups = groups.to_vec();
        for Transfer { group, from, to } in plan(&groups) {
            let led = groups.iter_mut().find(|led| led.group == group).unwrap();
            assert_eq!(led.leader, from);
            assert!(led.voters.contains(&to), "{to} cannot lead {led:?}");
            led.leader = to;
        }
        groups
    }

    fn counts(groups: &[Led], nodes: &BTreeSet<NodeId>) -> Vec<usize> {
        nodes.iter().map(|node| groups.iter().filter(|led| led.leader == *node).count()).collect()
    }

    fn unevenness(counts: &[usize]) -> usize {
        counts.iter().map(|count| count * count).sum()
    }

    #[test]
    fn one_node_with_all_leads_gives_most_of_them_away() {
        let voters = BTreeSet::from([1, 2, 3]);
        let groups: Vec<Led> = (0..8).map(|group| Led { group, leader: 2, voters: voters.clone() }).collect();
        assert_eq!(counts(&after(&groups), &voters), [3, 3, 2]);
        assert_eq!(plan(&groups).len(), 5);
        assert_eq!(plan(&after(&groups)), []);
        assert_eq!(plan(&[]), []);
    }

    #[test]
    fn a_lead_goes_along_where_there_is_no_direct_way() {
        let led = |group, leader, voters: &[NodeId]| Led { group, leader, voters: voters.iter().copied().collect() };
        // Node 1 leads two and node 3 none; they are in no group together.
        let groups = [led(0, 1, &[1, 2]), led(1, 1, &[1, 2]), led(2, 2, &[2, 3])];
        assert_eq!(counts(&after(&groups), &BTreeSet::from([1, 2, 3])), [1, 1, 1]);
    }

    fn alike() -> impl Strategy<Value = Vec<Led>> {
        (1..7_u64).prop_flat_map(|nodes| {
            let voters: BTreeSet<NodeId> = (1..=nodes).collect();
            prop::collection::vec(1..=nodes, 0..40).prop_map(move |leaders| {
                let led = |(group, leader)| Led { group, leader, voters: voters.clone() };
                (0..).zip(leaders).map(led).collect()
            })
        })
    }

    /// Groups with voters of their own, and a leader who may be no voter: its node is going.
    fn different() -> impl Strategy<Value = Vec<Led>> {
        let group = (1..5_u64, prop::collection::btree_set(1..5_u64, 0..5));
        prop::collection::vec(group, 0..6).prop_map(|groups| {
            let led = |(group, (leader, voters))| Led { group, leader, voters };
            (0..).zip(groups).map(led).collect()
        })
    }

    /// The most even choice of leaders, by trying all.
    fn best(groups: &[Led], chosen: &mut Vec<Led>, nodes: &BTreeSet<NodeId>) -> usize {
        let Some(led) = groups.get(chosen.len()) else { return unevenness(&counts(chosen, nodes)) };
        let choices = led.voters.iter().copied().chain([led.leader]);
        let tried = choices.map(|leader| {
            chosen.push(Led { leader, ..led.clone() });
            let found = best(groups, chosen, nodes);
            chosen.pop();
            found
        });
        tried.min().unwrap()
    }

    fn moved(groups: &[Placed], nodes: &Nodes, replicas: Option<usize>) -> Vec<Placed> {
        let mut groups = groups.to_vec();
        for Move { group, join, leave } in spread(&groups, nodes, replicas) {
            let placed = groups.iter_mut().find(|placed| placed.group == group).unwrap();
            assert!(join.is_disjoint(&placed.voters) && leave.is_subset(&placed.voters), "{placed:?}");
            placed.voters.extend(join);
            placed.voters.retain(|id| !leave.contains(id));
        }
        groups
    }

    #[test]
    fn two_more_nodes_take_their_share_of_the_replicas() {
        let voters = BTreeSet::from([1, 2, 3]);
        let groups: Vec<Placed> = (0..10).map(|group| Placed { group, voters: voters.clone() }).collect();
        let nodes = Nodes { usable: (1..=5).collect(), leaving: BTreeSet::new() };
        let moves = spread(&groups, &nodes, None);
        // 30 replicas on 5 nodes.
        assert_eq!(moves.iter().map(|it| it.join.len()).sum::<usize>(), 12);
        assert!(moves.iter().all(|it| it.join.len() == it.leave.len()));
        // And back, without node 4 and with a node that does not answer.
        let groups = moved(&groups, &nodes, None);
        let nodes = Nodes { usable: [1, 2, 5].into(), leaving: [4].into() };
        for placed in moved(&groups, &nodes, Some(3)) {
            assert!(placed.voters.len() == 3 && !placed.voters.contains(&4), "{placed:?}");
        }
    }

    fn placements() -> impl Strategy<Value = (Vec<Placed>, Nodes)> {
        let group = prop::collection::btree_set(1..8_u64, 1..6);
        let nodes = prop::collection::vec(0..3_u8, 7);
        (prop::collection::vec(group, 0..12), nodes).prop_map(|(groups, kinds)| {
            let of = |kind: u8| (1..).zip(&kinds).filter(|(_, of)| **of == kind).map(|(id, _)| id).collect();
            let groups = (0..).zip(groups).map(|(group, voters)| Placed { group, voters }).collect();
            (groups, Nodes { usable: of(0), leaving: of(1) })
        })
    }

    proptest! {
        #[test]
        fn replicas_are_as_many_as_wanted_and_spread_evenly(
            (groups, nodes) in placements(),
            replicas in prop::option::of(1..6_usize),
        ) {
            let then = moved(&groups, &nodes, replicas);
            for (before, after) in groups.iter().zip(&then) {
                let kept: BTreeSet<NodeId> = before.voters.iter().copied()
                    .filter(|id| !nodes.usable.contains(id) && !nodes.leaving.contains(id)).collect();
                prop_assert!(kept.is_subset(&after.voters) && after.voters.is_disjoint(&nodes.leaving));
                prop_assert!(after.voters.iter().all(|id| kept.contains(id) || nodes.usable.contains(id)));
                let goal = replicas.unwrap_or(before.voters.len()).max(kept.len());
                let goal = if kept.is_empty() { goal } else { goal.max(2 * kept.len() + 1) };
                prop_assert_eq!(after.voters.len(), goal.min(kept.len() + nodes.usable.len()));
            }
            let count = |id: &NodeId| then.iter().filter(|placed| placed.voters.contains(id)).count();
            let counts: Vec<usize> = nodes.usable.iter().map(count).collect();
            if let (Some(most), Some(least)) = (counts.iter().max(), counts.iter().min()) {
                prop_assert!(most - least <= 1, "{:?}", counts);
            }
            prop_assert_eq!(spread(&then, &nodes, replicas), []);
        }

        #[test]
        fn leads_of_groups_with_the_same_voters_differ_by_one_after_the_fewest_transfers(groups in alike()) {
            prop_assume!(!groups.is_empty());
            let nodes = &groups[0].voters;
            let mut before = counts(&groups, nodes);
            let then = counts(&after(&groups), nodes);
            prop_assert!(then.iter().max().unwrap() - then.iter().min().unwrap() <= 1, "{then:?}");
            // Those that lead most keep the larger share.
            before.sort_by_key(|count| std::cmp::Reverse(*count));
            let share = |at: usize| groups.len() / nodes.len() + usize::from(at < groups.len() % nodes.len());
            let fewest: usize = before.iter().enumerate().map(|(at, count)| count.saturating_sub(share(at))).sum();
            prop_assert_eq!(plan(&groups).len(), fewest);
        }

        #[test]
        fn no_choice_of_leaders_is_more_even(groups in different()) {
            let nodes: BTreeSet<NodeId> = (1..5).collect();
            prop_assert_eq!(unevenness(&counts(&after(&groups), &nodes)), best(&groups, &mut Vec::new(), &nodes));
        }
    }
}
