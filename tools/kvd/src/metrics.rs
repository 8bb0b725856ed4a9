//! What Prometheus finds at `/metrics` of consensus.

use std::fmt::Write;

use crate::raft::{NodeStatus, is_off};

/// Appends the figures of consensus.
pub(crate) fn write_status(status: &NodeStatus, out: &mut String) {
    let mut family = |name: &str, help: &str, value: &dyn Fn(&crate::raft::GroupStatus) -> Option<u64>| {
        let _ = writeln!(out, "# HELP kvd_raft_{name} {help}\n# TYPE kvd_raft_{name} gauge");
        for group in &status.groups {
            if let Some(value) = value(group) {
                let _ = writeln!(out, "kvd_raft_{name}{{group=\"{}\"}} {value}", group.group);
            }
        }
    };
    family("is_leader", "Whether this node leads the group.", &|group| Some(u64::from(group.role == "leader")));
    family("is_member", "Whether this node has a replica.", &|group| Some(u64::from(group.role != "none")));
    family("has_leader", "Whether this node knows a leader.", &|group| Some(u64::from(group.leader.is_some())));
    family("term", "The term.", &|group| Some(group.term));
    family("version", "The version of the group: what its members must know.", &|group| {
        group.version.map(|version| version.number().into())
    });
    family("log_index", "Index of the last entry in the log.", &|group| Some(group.last));
    family("committed_index", "Index of the last entry known to be committed.", &|group| Some(group.committed));
    family("applied_index", "Index of the last entry applied.", &|group| Some(group.applied));
    family("flushed_index", "Index of the last entry that needs no log.", &|group| Some(group.flushed));
    family("snapshot_index", "Index of the last snapshot.", &|group| Some(group.snapshot));
    family("purged_index", "Index up to which the log is removed.", &|group| Some(group.purged));
    family("receiving_pairs", "Pairs received of a snapshot that is being received.", &|group| group.receiving);
    let mut signed = |name: &str, help: &str, values: &mut dyn Iterator<Item = (String, i64)>| {
        let _ = writeln!(out, "# HELP kvd_{name} {help}\n# TYPE kvd_{name} gauge");
        for (labels, value) in values {
            let _ = writeln!(out, "kvd_{name}{labels} {value}");
        }
    };
    let version = (String::new(), status.version.number().into());
    signed("version", "The latest version that the node knows.", &mut std::iter::once(version));
    let free = status.free_bytes.map(|free| (String::new(), i64::try_from(free).unwrap_or(i64::MAX)));
    signed("disk_free_bytes", "Bytes that are free on the node's disk.", &mut free.into_iter());
    let low = (String::new(), i64::from(status.is_low));
    signed("disk_is_low", "Whether that is less than the reserve.", &mut std::iter::once(low));
    let other = |id: u64, is: bool| (format!("{{node=\"{id}\"}}"), i64::from(is));
    let reaches = status.others.iter().map(|(id, reaches, _)| other(*id, *reaches));
    signed("reaches_node", "Whether this node reaches another one.", &mut { reaches });
    let is_reached = status.others.iter().map(|(id, _, is_reached)| other(*id, *is_reached));
    signed("reached_by_node", "Whether another node reaches this one.", &mut { is_reached });
    let clock = status.clock_ahead_ms.into_iter().map(|ahead| (String::new(), ahead));
    signed("clock_ahead_ms", "How far the node's clock is ahead of the median.", &mut clock.clone());
    let is_off = clock.map(|(labels, ahead)| (labels, i64::from(is_off(ahead))));
    signed("clock_is_off", "Whether that is so much that the node should not lead.", &mut { is_off });
    let times =
        status.groups.iter().filter_map(|group| Some((format!("{{group=\"{}\"}}", group.group), group.ahead_ms?)));
    signed("raft_time_ahead_ms", "How far the group's time is ahead of the median.", &mut { times });
    let _ = writeln!(
        out,
        "# HELP kvd_raft_follower_lag Entries that a node lacks, as the leader knows.\n# TYPE kvd_raft_follower_lag gauge"
    );
    for group in &status.groups {
        for (id, at) in &group.matched {
            let lag = group.last.saturating_sub(*at);
            let _ = writeln!(out, "kvd_raft_follower_lag{{group=\"{}\",node=\"{id}\"}} {lag}", group.group);
        }
    }
}
