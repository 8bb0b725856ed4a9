//! kvd under one load beside Redis, etcd, and the bare store.
//!
//! ```text
//! cargo bench -p kvd --features peers --bench servers -- --seconds 3
//! cargo bench -p kvd --features peers --bench servers -- --away 200000
//! ```
//!
//! Each contestant is started on loopback, filled, loaded by every number of clients in turn, and
//! stopped. All of them sync a write before they acknowledge it, and read linearizably: Redis with
//! `appendfsync always`, etcd and kvd by their defaults but for longer heartbeats, since all nodes
//! and all clients share one machine. Clients talk to the leader. A pipeline is one flight of
//! requests on one connection: of the Redis protocol, or of concurrent requests to etcd. Those that
//! are not on the `PATH` (`redis-server`, `etcd`) are left out. `TAMIS_DIR` sets the directory.
//!
//! `--away` measures instead how fast a node of three catches up that missed so many writes, by
//! the log and by a snapshot. No figure makes this program fail.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

mod away;
mod client;
mod load;
mod servers;

use std::time::Duration;

use clap::Parser;

use self::client::Kind;
use self::load::{Load, Work};
use self::servers::Servers;

#[derive(Parser)]
struct Arguments {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    clients: Vec<usize>,
    /// Requests of one pipeline
    #[arg(long, default_value_t = 16)]
    pipeline: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 100)]
    value: usize,
    /// Keys in all
    #[arg(long, default_value_t = 20_000)]
    keys: u64,
    /// Only the contestants whose name begins so
    #[arg(long, default_value = "")]
    only: String,
    /// Measures how fast a node catches up that missed so many writes
    #[arg(long)]
    away: Option<u64>,
    #[arg(long, hide = true)]
    bench: bool,
}

/// Name, kind and number of nodes.
const CONTESTANTS: [(&str, Kind, usize); 6] = [
    ("store", Kind::Store, 1),
    ("kvd, one node", Kind::Kvd, 1),
    ("kvd, three nodes", Kind::Kvd, 3),
    ("redis", Kind::Redis, 1),
    ("etcd, one node", Kind::Etcd, 1),
    ("etcd, three nodes", Kind::Etcd, 3),
];

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    if let Some(writes) = arguments.away {
        return away::run(writes, arguments.value).await;
    }
    println!("server             work  pipeline  clients  per second  p50, ms  p99, ms  cores  MB per node");
    for (name, kind, nodes) in CONTESTANTS {
        if !name.starts_with(&arguments.only) {
            continue;
        }
        let Some(servers) = Servers::start(kind, nodes, &[]).await else {
            eprintln!("{name}: not on the PATH");
            continue;
        };
        let load = Load { keys: arguments.keys, value: arguments.value };
        load.fill(&servers).await;
        for work in [Work::Set, Work::Get] {
            for pipeline in [1, arguments.pipeline] {
                for &clients in &arguments.clients {
                    let figures =
                        load.run(&servers, work, pipeline, clients, Duration::from_secs(arguments.seconds)).await;
                    let memory: Vec<String> = figures.memory.iter().map(ToString::to_string).collect();
                    println!(
                        "{name:18} {:4} {pipeline:9} {clients:8} {:11.0} {:8.2} {:8.2} {:6.2}  {}",
                        work.to_string(),
                        figures.per_second,
                        figures.p50.as_secs_f64() * 1e3,
                        figures.p99.as_secs_f64() * 1e3,
                        figures.cores,
                        memory.join(" "),
                    );
                }
            }
        }
        servers.stop().await;
    }
}
