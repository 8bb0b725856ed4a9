//! What INFO, TIME and WAIT answer.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use super::cluster::node_name;
use super::shared::Shared;
use crate::machine::{Query, Reply};
use crate::replica::Replica;

/// Version of Redis whose commands these are: clients choose what to send by it.
pub(super) const REDIS_VERSION: &str = "7.2.4";

/// Names and values of a section.
type Fields = Vec<(String, String)>;

/// A section of INFO.
struct Section<R> {
    name: &'static str,
    /// Whether INFO has it that names no sections.
    default: bool,
    fields: fn(&Shared<R>) -> Fields,
}

fn sections<R: Replica>() -> [Section<R>; 11] {
    let section = |name, default, fields| Section { name, default, fields };
    [
        section("Server", true, server),
        section("Clients", true, clients),
        section("Memory", true, memory),
        section("Persistence", true, persistence),
        section("Stats", true, stats),
        section("Replication", true, replication),
        section("CPU", true, cpu),
        section("Commandstats", false, command_stats),
        section("Errorstats", true, error_stats),
        section("Cluster", true, |_| fields(&[("cluster_enabled", &"1")])),
        section("Keyspace", true, keyspace),
    ]
}

/// INFO: the sections asked for, those of the default if none are.
pub(super) fn info<R: Replica>(asked: &[String], shared: &Shared<R>) -> Reply {
    let is = |names: &[&str]| asked.iter().any(|asked| names.contains(&&asked[..]));
    let (all, default) = (is(&["all", "everything"]), asked.is_empty() || is(&["default"]));
    let mut text = String::new();
    for section in sections::<R>() {
        if !(all || default && section.default || is(&[&section.name.to_ascii_lowercase()])) {
            continue;
        }
        let separator = if text.is_empty() { "" } else { "\r\n" };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}# {}\r\n", section.name);
        for (field, value) in (section.fields)(shared) {
            let _ = write!(text, "{field}:{value}\r\n");
        }
    }
    Reply::Text(text)
}

fn fields(fields: &[(&str, &dyn std::fmt::Display)]) -> Fields {
    fields.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
}

fn server<R: Replica>(shared: &Shared<R>) -> Fields {
    let uptime = shared.started.elapsed().as_secs();
    let port =
        shared.replica.nodes().into_iter().find(|node| node.id == shared.replica.id()).map_or(0, |node| node.port);
    fields(&[
        ("redis_version", &REDIS_VERSION),
        ("redis_mode", &"cluster"),
        ("server_name", &"kvd"),
        ("kvd_version", &env!("CARGO_PKG_VERSION")),
        ("os", &std::env::consts::OS),
        ("arch_bits", &usize::BITS),
        ("process_id", &std::process::id()),
        ("run_id", &node_name(shared.replica.id())),
        ("tcp_port", &port),
        ("uptime_in_seconds", &uptime),
        ("uptime_in_days", &(uptime / 86_400)),
    ])
}

fn clients<R: Replica>(shared: &Shared<R>) -> Fields {
    fields(&[
        ("connected_clients", &shared.clients.count()),
        ("maxclients", &shared.limits().connections),
        ("blocked_clients", &0),
        ("tracking_clients", &0),
    ])
}

/// A number of a line of a file in `/proc/self`, where there is one.
fn proc_number(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

fn memory<R: Replica>(shared: &Shared<R>) -> Fields {
    let status = |name| proc_number("status", name).unwrap_or(0) * 1024;
    let (now, peak) = (status("VmRSS:"), status("VmHWM:"));
    fields(&[
        ("used_memory", &now),
        ("used_memory_rss", &now),
        ("used_memory_peak", &peak),
        ("maxmemory", &0),
        ("maxmemory_policy", &"noeviction"),
        ("mem_clients_normal", &shared.memory.used()),
        ("mem_clients_limit", &shared.limits().shared_bytes),
        ("mem_allocator", &"libc"),
    ])
}

/// There is no file to save or to load: the log has what clients were told.
fn persistence<R: Replica>(_: &Shared<R>) -> Fields {
    fields(&[
        ("loading", &0),
        ("async_loading", &0),
        ("rdb_changes_since_last_save", &0),
        ("rdb_bgsave_in_progress", &0),
        ("aof_enabled", &1),
        ("aof_rewrite_in_progress", &0),
        ("aof_last_write_status", &"ok"),
    ])
}

fn stats<R: Replica>(shared: &Shared<R>) -> Fields {
    let counts = shared.metrics.since_reset().plain;
    counts.into_iter().map(|(name, count)| (name.to_owned(), count.to_string())).collect()
}

fn replication<R: Replica>(shared: &Shared<R>) -> Fields {
    let replica = &*shared.replica;
    let mut groups = Vec::new();
    let (mut led, mut applied, mut followers) = (0, 0, 0);
    for group in 0..replica.groups() {
        let status = replica.status(group);
        if status.leader == Some(replica.id()) {
            led += 1;
            followers = followers.max(status.voters.len() + status.learners.len() - 1);
        }
        applied = applied.max(status.applied_index);
        let leader = status.leader.map_or("none".to_owned(), |id| id.to_string());
        let text = format!(
            "leader={leader},term={},last={},committed={},applied={},voters={},learners={}",
            status.term,
            status.last_index,
            status.committed_index,
            status.applied_index,
            status.voters.len(),
            status.learners.len()
        );
        groups.push((format!("group{group}"), text));
    }
    let mut all = fields(&[
        ("role", &if led > 0 { "master" } else { "slave" }),
        ("connected_slaves", &followers),
        ("master_repl_offset", &applied),
        ("groups", &replica.groups()),
        ("groups_led", &led),
    ]);
    all.extend(groups);
    all
}

/// Seconds of processor time in user mode and in the kernel.
fn cpu<R: Replica>(_: &Shared<R>) -> Fields {
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the program's name, which may hold anything: the fields from the third on.
    let mut times = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let mut seconds = || times.next().and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0) / TICKS;
    let (user, system) = (seconds(), seconds());
    fields(&[("used_cpu_sys", &format!("{system:.6}")), ("used_cpu_user", &format!("{user:.6}"))])
}

fn command_stats<R: Replica>(shared: &Shared<R>) -> Fields {
    let counts = shared.metrics.since_reset().commands;
    let line = |(name, count): (&str, super::metrics::CommandCount)| {
        let (calls, micros) = (count.calls, count.micros);
        let (rejected, failed) = (count.rejected, count.failed);
        let each = micros.checked_div(calls).unwrap_or(0);
        let text = format!(
            "calls={calls},usec={micros},usec_per_call={each}.00,rejected_calls={rejected},failed_calls={failed}"
        );
        (format!("cmdstat_{name}"), text)
    };
    counts.into_iter().map(line).collect()
}

fn error_stats<R: Replica>(shared: &Shared<R>) -> Fields {
    let errors = shared.metrics.since_reset().errors;
    errors.into_iter().map(|(kind, count)| (format!("errorstat_{kind}"), format!("count={count}"))).collect()
}

/// What this node has of the groups that it leads, without asking others whether it still does.
fn keyspace<R: Replica>(shared: &Shared<R>) -> Fields {
    let size = |group| match shared.replica.machine(group).ok()?.read(&Query::Size, 0).ok()?.reply {
        Reply::Integer(size) => Some(size),
        _ => None,
    };
    match shared.led().filter_map(|(group, _)| size(group)).sum::<i64>() {
        0 => Vec::new(),
        keys => fields(&[("db0", &format!("keys={keys}"))]),
    }
}

/// TIME.
pub(super) fn time() -> Reply {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Reply::Array(vec![Reply::bulk(since.as_secs().to_string()), Reply::bulk(since.subsec_micros().to_string())])
}

/// WAIT: each write that was acknowledged is on a majority, whatever number was asked for.
pub(super) fn replicas(replica: &impl Replica, local: bool) -> Reply {
    let least = (0..replica.groups()).map(|group| replica.status(group).voters.len() / 2).min().unwrap_or(0);
    if local { Reply::Array(vec![Reply::Integer(1), Reply::count(least)]) } else { Reply::count(least) }
}
