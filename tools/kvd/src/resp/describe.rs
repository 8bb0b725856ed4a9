//! What INFO, CLUSTER, COMMAND and CONFIG answer.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;

use super::config::Limits;
use super::metrics::Metrics;
use crate::command::{COMMANDS, Commands, Kind, Spec, find};
use crate::machine::{GroupId, MAX_VALUE_LEN, Reply, SLOTS, matches, slots_of};
use crate::replica::{Node, NodeId, Replica};

/// Version of Redis whose commands these are: clients choose what to send by it.
pub(super) const REDIS_VERSION: &str = "7.2.4";

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
        let first_leader = self.groups.iter().find_map(|group| group.leader);
        let mut lines = String::new();
        for node in self.nodes.values() {
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
            line(&mut lines, format_args!("{name} {host}:{port}@{bus} {me}{role} {master} 0 0 {epoch} connected"));
            lines.pop();
            for group in own {
                let (first, last) = (group.slots.start, group.slots.end - 1);
                let slots = if first == last { format!(" {first}") } else { format!(" {first}-{last}") };
                lines.push_str(&slots);
            }
            lines.push('\n');
        }
        lines
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
            line(&mut text, format_args!("{name}:{value}\r"));
        }
        text
    }
}

fn line(out: &mut String, text: std::fmt::Arguments) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
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

/// INFO: the sections asked for, all if there are none.
pub(super) fn info(
    sections: &[String],
    replica: &impl Replica,
    metrics: &Metrics,
    limits: &Limits,
    uptime: Duration,
) -> Reply {
    let all = sections.is_empty() || sections.iter().any(|it| ["all", "default", "everything"].contains(&&it[..]));
    let mut text = String::new();
    let mut section = |name: &str, fields: &[(&str, String)]| {
        if !all && !sections.iter().any(|section| section == &name.to_ascii_lowercase()) {
            return;
        }
        let separator = if text.is_empty() { "" } else { "\r\n" };
        line(&mut text, format_args!("{separator}# {name}\r"));
        for (field, value) in fields {
            line(&mut text, format_args!("{field}:{value}\r"));
        }
    };
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed).to_string();
    section(
        "Server",
        &[
            ("redis_version", REDIS_VERSION.to_owned()),
            ("redis_mode", "cluster".to_owned()),
            ("server_name", "kvd".to_owned()),
            ("kvd_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("os", std::env::consts::OS.to_owned()),
            ("arch_bits", usize::BITS.to_string()),
            ("process_id", std::process::id().to_string()),
            ("run_id", node_name(replica.id())),
            ("uptime_in_seconds", uptime.as_secs().to_string()),
            ("uptime_in_days", (uptime.as_secs() / 86_400).to_string()),
        ],
    );
    section(
        "Clients",
        &[
            ("connected_clients", count(&metrics.connections)),
            ("maxclients", limits.connections.to_string()),
            ("stalled_clients", count(&metrics.stalled)),
        ],
    );
    let commands = metrics.all_calls().to_string();
    section(
        "Stats",
        &[
            ("total_connections_received", count(&metrics.accepted)),
            ("total_commands_processed", commands),
            ("total_net_input_bytes", count(&metrics.bytes_in)),
            ("total_net_output_bytes", count(&metrics.bytes_out)),
            ("rejected_connections", count(&metrics.rejected)),
            ("keyspace_hits", count(&metrics.hits)),
            ("keyspace_misses", count(&metrics.misses)),
            ("total_error_replies", count(&metrics.errors)),
            ("unknown_outcomes", count(&metrics.unknown)),
            ("protocol_errors", count(&metrics.protocol_errors)),
            ("auth_failures", count(&metrics.auth_failures)),
        ],
    );
    let mut groups = vec![("groups".to_owned(), replica.groups().to_string())];
    let mut led = 0;
    for group in 0..replica.groups() {
        let status = replica.status(group);
        led += u32::from(status.leader == Some(replica.id()));
        let leader = status.leader.map_or("none".to_owned(), |id| id.to_string());
        groups.push((
            format!("group{group}"),
            format!(
                "leader={leader},term={},last={},committed={},applied={},voters={},learners={}",
                status.term,
                status.last_index,
                status.committed_index,
                status.applied_index,
                status.voters.len(),
                status.learners.len()
            ),
        ));
    }
    let role = if led > 0 { "master" } else { "slave" };
    groups.insert(0, ("role".to_owned(), role.to_owned()));
    groups.insert(1, ("groups_led".to_owned(), led.to_string()));
    let groups: Vec<_> = groups.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    section("Replication", &groups);
    section("Cluster", &[("cluster_enabled", "1".to_owned())]);
    let calls: Vec<_> = metrics.calls().map(|(name, calls)| (format!("cmdstat_{name}"), calls)).collect();
    let calls: Vec<_> = calls.iter().map(|(name, calls)| (name.as_str(), format!("calls={calls}"))).collect();
    section("Commandstats", &calls);
    Reply::Text(text)
}

/// CONFIG GET: what clients and tools ask about.
pub(super) fn config(patterns: &[Bytes], limits: &Limits) -> Reply {
    let idle = limits.idle.map_or(0, |idle| idle.as_secs());
    let options = [
        ("appendfsync", "always".to_owned()),
        ("appendonly", "yes".to_owned()),
        ("cluster-enabled", "yes".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", limits.connections.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("proto-max-bulk-len", MAX_VALUE_LEN.to_string()),
        ("save", String::new()),
        ("timeout", idle.to_string()),
    ];
    let asked = |name: &str| patterns.iter().any(|it| matches(&it.to_ascii_lowercase(), name.as_bytes()));
    let found = options.iter().filter(|(name, _)| asked(name));
    Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect())
}

/// COMMAND and what follows.
pub(super) fn commands(commands: &Commands) -> Reply {
    match commands {
        Commands::Count => Reply::count(COMMANDS.len()),
        Commands::List => Reply::Array(COMMANDS.iter().map(|spec| Reply::bulk(spec.name)).collect()),
        Commands::Info(None) => Reply::Array(COMMANDS.iter().map(describe).collect()),
        Commands::Info(Some(names)) => {
            Reply::Array(names.iter().map(|name| find(name).map_or(Reply::NilArray, describe)).collect())
        }
        Commands::Docs(names) => {
            let named: Vec<_> = names.iter().filter_map(|name| find(name)).collect();
            let specs = if names.is_empty() { COMMANDS.iter().collect() } else { named };
            Reply::Map(specs.into_iter().map(|spec| (Reply::bulk(spec.name), documentation(spec))).collect())
        }
        Commands::GetKeys(words) => {
            let spec = words.first().and_then(|name| find(name)).filter(|spec| spec.takes(words.len()));
            let Some(spec) = spec else { return Reply::error("ERR Invalid command specified") };
            let keys: Vec<_> = spec.keys_in(words).cloned().map(Reply::Bulk).collect();
            if keys.is_empty() {
                return Reply::error("ERR The command has no key arguments");
            }
            Reply::Array(keys)
        }
    }
}

fn describe(spec: &Spec) -> Reply {
    let (first, last, step) = spec.keys;
    let position = |position: usize| Reply::count(position);
    let last = Reply::Integer(i64::try_from(last).unwrap_or(0));
    let category = match spec.kind {
        Kind::Connection => "@connection",
        Kind::Read => "@read",
        Kind::Write => "@write",
        Kind::Transaction => "@transaction",
        Kind::Server => "@admin",
    };
    let words = |words: &[&'static str]| Reply::Array(words.iter().map(|it| Reply::Status((*it).into())).collect());
    let none = || Reply::Array(Vec::new());
    Reply::Array(vec![
        Reply::bulk(spec.name),
        Reply::Integer(i64::from(spec.arity)),
        words(spec.flags()),
        position(first),
        last,
        position(step),
        words(&[category]),
        none(),
        none(),
        none(),
    ])
}

fn documentation(spec: &Spec) -> Reply {
    let group = match spec.kind {
        Kind::Connection => "connection",
        Kind::Read | Kind::Write => "string",
        Kind::Transaction => "transactions",
        Kind::Server => "server",
    };
    Reply::Map(vec![
        (Reply::bulk("summary"), Reply::bulk(spec.summary)),
        (Reply::bulk("since"), Reply::bulk("1.0.0")),
        (Reply::bulk("group"), Reply::bulk(group)),
    ])
}
