//! What Prometheus finds at `/metrics`: figures of consensus, of the server for clients, and of the
//! store. What probes find at `/health` and `/ready`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::raft::{NodeStatus, is_off};

/// Connections at a time. Those beyond wait.
const CONNECTIONS: usize = 16;
/// For a request and its answer.
const TIME: Duration = Duration::from_secs(10);
/// Longest head of a request.
const LONGEST_HEAD: usize = 8 << 10;
/// Before the next attempt to accept, when the system cannot.
const PAUSE: Duration = Duration::from_millis(100);

/// What is at a path.
pub(crate) struct Page {
    /// Whether all is well: otherwise the status is 503.
    pub(crate) is_well: bool,
    /// The text.
    pub(crate) text: String,
}

/// Answers requests until the future is dropped. `page` has what is at a path, if anything.
pub(crate) async fn serve(listener: TcpListener, page: impl Fn(&str) -> Option<Page> + Send + Sync + 'static) {
    let (places, page) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(page));
    let mut connections = JoinSet::new();
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let Ok((tcp, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let page = Arc::clone(&page);
        connections.spawn(async move {
            // A client that asks and leaves, or asks too slowly, gets nothing.
            let _ = timeout(TIME, answer(tcp, &*page)).await;
            drop(place);
        });
    }
}

async fn answer(mut tcp: TcpStream, page: &(impl Fn(&str) -> Option<Page> + Send + Sync)) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= LONGEST_HEAD || tcp.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let path = head.split(|byte| *byte == b' ').nth(1).and_then(|path| std::str::from_utf8(path).ok());
    let (status, body) = match path.and_then(page) {
        _ if !head.starts_with(b"GET ") => ("405 Method Not Allowed", String::new()),
        Some(Page { is_well: true, text }) => ("200 OK", text),
        Some(Page { is_well: false, text }) => ("503 Service Unavailable", text),
        None => ("404 Not Found", "There are /metrics, /health and /ready.\n".to_owned()),
    };
    let length = body.len();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    tcp.write_all(head.as_bytes()).await?;
    tcp.write_all(body.as_bytes()).await?;
    tcp.shutdown().await
}

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

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(request: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let page = |path: &str| match path {
            "/metrics" => Some(Page { is_well: true, text: "kvd 1\n".to_owned() }),
            "/ready" => Some(Page { is_well: false, text: "no\n".to_owned() }),
            _ => None,
        };
        let server = tokio::spawn(serve(listener, page));
        let mut tcp = TcpStream::connect(address).await.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        tcp.shutdown().await.unwrap();
        let mut answer = String::new();
        // Closed with bytes unread, a connection may be reset.
        let _ = tcp.read_to_string(&mut answer).await;
        server.abort();
        answer
    }

    #[tokio::test]
    async fn pages_are_at_their_paths_alone() {
        let answer = ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nkvd 1\n"), "{answer}");
        let answer = ask("GET /ready HTTP/1.1\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\nno\n"), "{answer}");
        assert!(ask("GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        assert_eq!(ask("GET /metrics HTTP/1.1\r\n").await, "");
        assert_eq!(ask(&"x".repeat(LONGEST_HEAD + 1)).await, "");
    }
}
