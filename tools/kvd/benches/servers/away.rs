//! How fast a node catches up.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::process::Command;
use tokio::time::sleep;

use crate::client::Kind;
use crate::load::Load;
use crate::servers::Servers;

const PAUSE: Duration = Duration::from_millis(20);

/// Index of the last entry that a node has applied, if it answers.
async fn applied(peer: &str) -> Option<u64> {
    let status = Command::new(env!("CARGO_BIN_EXE_kvd")).args(["status", "--json", "--node", peer]).output().await;
    let status: Value = serde_json::from_slice(&status.ok()?.stdout).ok()?;
    status["groups"][0]["applied"].as_u64()
}

/// One of three nodes of kvd is away while so many keys are written.
pub(crate) async fn run(writes: u64, value: usize) {
    for (name, more) in [
        ("by the log", ["--keep-log", "10000000", "--snapshot-after", "1000000"]),
        ("by a snapshot", ["--keep-log", "10", "--snapshot-after", "100"]),
    ] {
        let mut servers = Servers::start(Kind::Kvd, 3, &more).await.unwrap();
        let load = Load { keys: writes, value };
        let leader = servers.nodes.iter().find(|node| node.client == servers.leader()).unwrap().peer.clone();
        servers.follower().kill().await;
        let begin = Instant::now();
        load.write(&servers, 0..writes).await;
        let writing = begin.elapsed();
        let target = applied(&leader).await.unwrap();
        let begin = Instant::now();
        servers.follower().run();
        let peer = servers.follower().peer.clone();
        while applied(&peer).await.is_none_or(|applied| applied < target) {
            sleep(PAUSE).await;
        }
        let time = begin.elapsed().as_secs_f64();
        println!(
            "{writes} keys with {value} bytes, written in {:.1} s, reach a node that was away {name} in {time:.1} s: \
             {:.0} keys/s, {:.1} MB/s",
            writing.as_secs_f64(),
            writes as f64 / time,
            (writes * (value as u64 + 16)) as f64 / time / 1e6,
        );
        servers.stop().await;
    }
}
