//! What operators' commands print.

use std::collections::BTreeSet;

use comfy_table::{Table, presets};

use crate::raft::{GroupStatus, Member, NodeStatus, is_off};
use crate::rebalance::{Led, Move, Transfer};
use crate::replica::NodeId;

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(header.to_vec());
    table
}

/// The nodes of the cluster, by what one of them knows.
pub(crate) fn members(status: &NodeStatus) -> Table {
    let mut table = table(&["node", "for nodes", "for clients", "votes in", "leads"]);
    let mut nodes: Vec<(NodeId, &Member)> = Vec::new();
    for (id, member, _) in status.groups.iter().flat_map(|group| &group.members) {
        if nodes.iter().all(|(known, _)| known != id) {
            nodes.push((*id, member));
        }
    }
    nodes.sort_by_key(|(id, _)| *id);
    for (id, member) in nodes {
        let votes = |group: &&GroupStatus| group.members.iter().any(|(voter, _, votes)| *voter == id && *votes);
        let leads = |group: &&GroupStatus| group.leader == Some(id);
        let count = |holds: &dyn Fn(&&GroupStatus) -> bool| {
            let count = status.groups.iter().filter(|group| holds(group)).count();
            format!("{count} of {}", status.groups.len())
        };
        table.add_row([id.to_string(), member.raft.clone(), member.resp.clone(), count(&votes), count(&leads)]);
    }
    table
}

/// Which groups get a replica on which nodes, and lose one on which.
pub(crate) fn replicas(moves: &[Move]) -> Table {
    let mut table = table(&["group", "replicas to nodes", "from nodes"]);
    let list = |nodes: &BTreeSet<NodeId>| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
    for Move { group, join, leave } in moves {
        table.add_row([group.to_string(), list(join), list(leave)]);
    }
    table
}

/// How many groups each node leads, and which ones others should lead.
pub(crate) fn leads(groups: &[Led], transfers: &[Transfer]) -> Table {
    let mut table = table(&["node", "leads", "hands over", "takes over"]);
    let voters = groups.iter().flat_map(|led| led.voters.iter().copied().chain([led.leader]));
    for node in voters.collect::<BTreeSet<NodeId>>() {
        let count = groups.iter().filter(|led| led.leader == node).count().to_string();
        let list = |concerns: &dyn Fn(&&Transfer) -> bool| {
            let concerned = transfers.iter().filter(|transfer| concerns(transfer));
            concerned.map(|transfer| transfer.group.to_string()).collect::<Vec<_>>().join(", ")
        };
        table.add_row([node.to_string(), count, list(&|it| it.from == node), list(&|it| it.to == node)]);
    }
    table
}

/// What a node's clock on the wall is like.
pub(crate) fn clock(ahead_ms: Option<i64>) -> String {
    match ahead_ms {
        None => "whose clock cannot be compared with those of a majority".to_owned(),
        Some(ahead) if is_off(ahead) => format!("WHOSE CLOCK IS WRONG: {ahead:+} ms beside the members' median"),
        Some(ahead) => format!("whose clock is {ahead:+} ms beside the members' median"),
    }
}

/// Why groups do not have the version of this node, if one does not.
pub(crate) fn versions(status: &NodeStatus) -> Option<String> {
    let version = status.groups.iter().filter_map(|group| group.version).min()?;
    if version == status.version {
        return None;
    }
    let others = status.others.iter().map(|(id, ..)| match status.versions.get(id) {
        Some(version) => format!("node {id} {version}"),
        None => format!("node {id} does not say"),
    });
    let others = others.collect::<Vec<_>>().join(", ");
    Some(format!("It knows version {}, and groups have {version} until all nodes do: {others}.", status.version))
}

pub(crate) fn groups(groups: &[GroupStatus]) -> Table {
    let mut table = table(&[
        "group",
        "role",
        "leader",
        "term",
        "version",
        "log",
        "committed",
        "applied",
        "flushed",
        "snapshot",
        "purged",
        "time off, ms",
        "followers lag",
    ]);
    for group in groups {
        let lag = group.matched.iter().map(|(id, at)| format!("{id}: {}", group.last.saturating_sub(*at)));
        let lag = match group.receiving {
            Some(pairs) => format!("receives a snapshot: {pairs} pairs"),
            None => lag.collect::<Vec<_>>().join(", "),
        };
        let off = group.ahead_ms.map_or_else(|| "unknown".to_owned(), |ahead| format!("{ahead:+}"));
        let numbers = [group.last, group.committed, group.applied, group.flushed, group.snapshot, group.purged];
        let leader = group.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string());
        let version = group.version.map_or_else(String::new, |version| version.to_string());
        let first = [group.group.to_string(), group.role.clone(), leader, group.term.to_string(), version];
        table.add_row(first.into_iter().chain(numbers.map(|number| number.to_string())).chain([off, lag]));
    }
    table
}
