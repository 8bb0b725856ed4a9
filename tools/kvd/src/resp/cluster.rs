//! What CLUSTER answers.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::machine::{GroupId, Reply, SLOTS, slots_of};
use crate::replica::{Node, NodeId, Replica};

/// A node's number in the form of a node's name in Redis Cluster.
pub(super) fn node_name(id: NodeId) -> String {
    format!("{id:040x}")
}

/// Groups with their leaders and other members, as clients see them.
struct Topology {
    nodes: BTreeMap<NodeId, Node>,
    groups: Vec<Group>,
}

struct Group {
    slots: std::ops::Range<u16>,
    /// The leader. While there is none, a member: clients then ask it, are told to try again, and
    /// do not take the slots for lost.
    leader: Option<NodeId>,
    has_leader: bool,
    followers: Vec<NodeId>,
    term: u64,
}

impl Topology {
    fn of(replica: &impl Replica) -> Topology {
        let nodes = replica.nodes().into_iter().map(|node| (node.id, node)).collect();
        let count = replica.groups();
        let group = |group: GroupId| {
            let status = replica.status(group);
            let leader = status.leader.or(status.voters.first().copied());
            let members = status.voters.iter().chain(&status.learners).copied();
            let followers = members.filter(|id| Some(*id) != leader).collect();
            let has_leader = status.leader.is_some();
            Group { slots: slots_of(group, count), leader, has_leader, followers, term: status.term }
        };
        Topology { nodes, groups: (0..count).map(group).collect() }
    }

    /// Groups with the node to ask, if its address is known.
    fn served(&self) -> impl Iterator<Item = (&Group, &Node)> {
        self.groups.iter().filter_map(|group| Some((group, self.nodes.get(&group.leader?)?)))
    }

    fn followers<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = &'a Node> {
        group.followers.iter().filter_map(|id| self.nodes.get(id))
    }

    /// CLUSTER SLOTS.
    fn slots(&self) -> Reply {
        let entry = |node: &Node| {
            let (port, name) = (Reply::Integer(i64::from(node.port)), Reply::bulk(node_name(node.id)));
            Reply::Array(vec![Reply::bulk(&node.host), port, name, Reply::Array(Vec::new())])
        };
        let slots = |(group, leader): (&Group, &Node)| {
            let (first, end) = (i64::from(group.slots.start), i64::from(group.slots.end));
            let mut reply = vec![Reply::Integer(first), Reply::Integer(end - 1), entry(leader)];
            reply.extend(self.followers(group).map(entry));
            Reply::Array(reply)
        };
        Reply::Array(self.served().map(slots).collect())
    }

    /// CLUSTER SHARDS.
    fn shards(&self) -> Reply {
        let node = |node: &Node, role: &'static str| {
            Reply::Map(vec![
                (Reply::bulk("id"), Reply::bulk(node_name(node.id))),
                (Reply::bulk("port"), Reply::Integer(i64::from(node.port))),
                (Reply::bulk("ip"), Reply::bulk(&node.host)),
                (Reply::bulk("endpoint"), Reply::bulk(&node.host)),
                (Reply::bulk("role"), Reply::bulk(role)),
                (Reply::bulk("replication-offset"), Reply::Integer(0)),
                (Reply::bulk("health"), Reply::bulk("online")),
            ])
        };
        let shard = |(group, leader): (&Group, &Node)| {
            let bounds = [group.slots.start, group.slots.end - 1];
            let slots = bounds.iter().map(|slot| Reply::Integer(i64::from(*slot))).collect();
            let mut nodes = vec![node(leader, "master")];
            nodes.extend(self.followers(group).map(|follower| node(follower, "replica")));
            Reply::Map(vec![(Reply::bulk("slots"), Reply::Array(slots)), (Reply::bulk("nodes"), Reply::Array(nodes))])
        };
        Reply::Array(self.served().map(shard).collect())
    }

    /// CLUSTER NODES: a line for each node. One that leads no group is a replica of the leader of
    /// the first group.
    fn node_lines(&self, me: NodeId) -> String {
        let mut lines = String::new();
        for node in self.nodes.values() {
            self.node_line(me, node, &mut lines);
            lines.push('\n');
        }
        lines
    }

    /// The line of a node, without its end.
    fn node_line(&self, me: NodeId, node: &Node, lines: &mut String) {
        let first_leader = self.groups.iter().find_map(|group| group.leader);
        let own: Vec<_> = self.groups.iter().filter(|group| group.leader == Some(node.id)).collect();
        let (role, master) = match (own.is_empty(), first_leader) {
            (true, Some(leader)) => ("slave", node_name(leader)),
            _ => ("master", "-".to_owned()),
        };
        let me = if node.id == me { "myself," } else { "" };
        let epoch = own.iter().map(|group| group.term).max().unwrap_or(0);
        let name = node_name(node.id);
        let (host, port) = (&node.host, node.port);
        let bus = u32::from(port) + 10_000;
        // Writing to a string does not fail.
        let _ = write!(lines, "{name} {host}:{port}@{bus} {me}{role} {master} 0 0 {epoch} connected");
        for group in own {
            let (first, last) = (group.slots.start, group.slots.end - 1);
            let _ = if first == last { write!(lines, " {first}") } else { write!(lines, " {first}-{last}") };
        }
    }

    /// CLUSTER REPLICAS: the lines of nodes that follow a node which leads a group.
    fn replicas(&self, me: NodeId, name: &[u8]) -> Reply {
        let Some(node) = self.nodes.values().find(|node| node_name(node.id).as_bytes() == name) else {
            return Reply::error(format!("ERR Unknown node {}", String::from_utf8_lossy(&name[..name.len().min(128)])));
        };
        let led: Vec<_> = self.groups.iter().filter(|group| group.leader == Some(node.id)).collect();
        if led.is_empty() {
            return Reply::error("ERR The specified node is not a master");
        }
        let follows = |node: &&Node| led.iter().any(|group| group.followers.contains(&node.id));
        let line = |node: &Node| {
            let mut line = String::new();
            self.node_line(me, node, &mut line);
            Reply::bulk(line)
        };
        Reply::Array(self.nodes.values().filter(follows).map(line).collect())
    }

    /// CLUSTER INFO.
    fn info(&self, me: NodeId) -> String {
        let served = self.groups.iter().filter(|group| group.has_leader).map(|group| group.slots.len()).sum::<usize>();
        let leaders: std::collections::BTreeSet<_> = self.groups.iter().filter_map(|group| group.leader).collect();
        let epoch = self.groups.iter().map(|group| group.term).max().unwrap_or(0);
        let own = self.groups.iter().filter(|group| group.leader == Some(me)).map(|group| group.term).max();
        let state = if served == usize::from(SLOTS) { "ok" } else { "fail" };
        let mut text = String::new();
        for (name, value) in [
            ("cluster_state", state.to_owned()),
            ("cluster_slots_assigned", SLOTS.to_string()),
            ("cluster_slots_ok", served.to_string()),
            ("cluster_slots_pfail", "0".to_owned()),
            ("cluster_slots_fail", (usize::from(SLOTS) - served).to_string()),
            ("cluster_known_nodes", self.nodes.len().to_string()),
            ("cluster_size", leaders.len().to_string()),
            ("cluster_current_epoch", epoch.to_string()),
            ("cluster_my_epoch", own.unwrap_or(0).to_string()),
        ] {
            // Writing to a string does not fail.
            let _ = write!(text, "{name}:{value}\r\n");
        }
        text
    }
}

/// CLUSTER SLOTS.
pub(super) fn cluster_slots(replica: &impl Replica) -> Reply {
    Topology::of(replica).slots()
}

/// CLUSTER SHARDS.
pub(super) fn cluster_shards(replica: &impl Replica) -> Reply {
    Topology::of(replica).shards()
}

/// CLUSTER NODES.
pub(super) fn cluster_nodes(replica: &impl Replica) -> Reply {
    Reply::Text(Topology::of(replica).node_lines(replica.id()))
}

/// CLUSTER INFO.
pub(super) fn cluster_info(replica: &impl Replica) -> Reply {
    Reply::Text(Topology::of(replica).info(replica.id()))
}

/// CLUSTER REPLICAS.
pub(super) fn cluster_replicas(replica: &impl Replica, name: &[u8]) -> Reply {
    Topology::of(replica).replicas(replica.id(), name)
}

/// CLUSTER MYSHARDID: the leader's name stands for the first group of which this node is a member.
pub(super) fn cluster_shard_id(replica: &impl Replica) -> Reply {
    let me = replica.id();
    let topology = Topology::of(replica);
    let mine = topology.groups.iter().position(|group| group.leader == Some(me) || group.followers.contains(&me));
    Reply::bulk(format!("{:040x}", mine.unwrap_or(0) + 1))
}

/// CLUSTER LINKS: each node has one connection to each other one, and one from it.
pub(super) fn cluster_links(replica: &impl Replica) -> Reply {
    let others = replica.nodes().into_iter().filter(|node| node.id != replica.id());
    let link = |(node, direction): (Node, &str)| {
        Reply::Map(vec![
            (Reply::bulk("direction"), Reply::bulk(direction)),
            (Reply::bulk("node"), Reply::bulk(node_name(node.id))),
        ])
    };
    let links = others.flat_map(|node| [(node.clone(), "to"), (node, "from")]);
    Reply::Array(links.map(link).collect())
}

/// ROLE: that of a leader with its followers, if this node leads a group.
pub(super) fn role(replica: &impl Replica) -> Reply {
    let me = replica.id();
    let topology = Topology::of(replica);
    let offset = |group: usize| {
        let group = GroupId::try_from(group).unwrap_or(GroupId::MAX);
        i64::try_from(replica.status(group).applied_index).unwrap_or(i64::MAX)
    };
    if let Some(at) = topology.groups.iter().position(|group| group.leader == Some(me) && group.has_leader) {
        let follower = |node: &Node| {
            let parts = [node.host.clone(), node.port.to_string(), offset(at).to_string()];
            Reply::Array(parts.iter().map(Reply::bulk).collect())
        };
        let followers = topology.followers(&topology.groups[at]).map(follower).collect();
        return Reply::Array(vec![Reply::bulk("master"), Reply::Integer(offset(at)), Reply::Array(followers)]);
    }
    let leader = topology.served().next().filter(|(group, _)| group.has_leader).map(|(_, node)| node);
    let (host, port) = leader.map_or(("", 0), |node| (&node.host, node.port));
    let state = if leader.is_some() { "connected" } else { "connect" };
    Reply::Array(vec![
        Reply::bulk("slave"),
        Reply::bulk(host),
        Reply::Integer(i64::from(port)),
        Reply::bulk(state),
        Reply::Integer(offset(0)),
    ])
}
