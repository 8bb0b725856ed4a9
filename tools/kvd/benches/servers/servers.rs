//! [`Servers`]: the processes of a contestant.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::cmd;
use tamis::Db;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::client::{Etcd, Kind, redis};

const KVD: &str = env!("CARGO_BIN_EXE_kvd");
/// For a server to start and to have a leader.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    /// At which clients, and other nodes, reach it.
    pub(crate) client: String,
    pub(crate) peer: String,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn run(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env("KVD_LOG", "off").stdin(Stdio::null());
        let command = command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        self.child = Some(command.spawn().unwrap());
    }

    pub(crate) async fn kill(&mut self) {
        self.child.take().unwrap().kill().await.unwrap();
    }

    async fn leads(&self, kind: Kind) -> bool {
        match kind {
            Kind::Store => true,
            Kind::Kvd | Kind::Redis => match redis(&self.client).await {
                Ok(mut connection) => cmd("SET").arg("a").arg("b").query_async::<()>(&mut connection).await.is_ok(),
                Err(_) => false,
            },
            Kind::Etcd => match Etcd::connect(&self.client).await {
                Ok(mut etcd) => etcd.leads().await,
                Err(_) => false,
            },
        }
    }

    /// The line of a file of this process in `/proc` that begins with a name.
    fn proc(&self, file: &str) -> String {
        let id = self.child.as_ref().and_then(Child::id);
        id.and_then(|id| std::fs::read_to_string(format!("/proc/{id}/{file}")).ok()).unwrap_or_default()
    }
}

pub(crate) struct Servers {
    pub(crate) kind: Kind,
    pub(crate) nodes: Vec<Server>,
    pub(crate) store: Option<Arc<Db>>,
    leader: usize,
    _dir: TempDir,
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// Addresses that are free now.
fn free(count: usize) -> Vec<String> {
    let held: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

fn arguments(kind: Kind, at: usize, dir: &Path, addresses: &[(String, String)]) -> String {
    let (peer, client) = &addresses[at];
    let (id, dir) = (at + 1, dir.display());
    match kind {
        Kind::Store => String::new(),
        Kind::Kvd => format!("--id {id} --dir {dir} --raft {peer} --resp {client} --heartbeat-ms 500"),
        Kind::Redis => {
            let port = client.rsplit(':').next().unwrap();
            format!("--port {port} --dir {dir} --appendonly yes --appendfsync always --save ''")
        }
        Kind::Etcd => {
            let member = |(at, (peer, _)): (usize, &(String, String))| format!("n{}=http://{peer}", at + 1);
            let members: Vec<String> = addresses.iter().enumerate().map(member).collect();
            format!(
                "--name n{id} --data-dir {dir} --listen-peer-urls http://{peer} \
                 --initial-advertise-peer-urls http://{peer} --listen-client-urls http://{client} \
                 --advertise-client-urls http://{client} --initial-cluster {} --heartbeat-interval 500 \
                 --election-timeout 4000",
                members.join(",")
            )
        }
    }
}

impl Servers {
    /// Starts a cluster and waits until it has a leader. None if the program cannot be found.
    pub(crate) async fn start(kind: Kind, nodes: usize, more: &[&str]) -> Option<Servers> {
        let program = match kind {
            Kind::Store | Kind::Kvd => PathBuf::from(KVD),
            Kind::Redis => on_path("redis-server")?,
            Kind::Etcd => on_path("etcd")?,
        };
        let parent = std::env::var_os("TAMIS_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let dir = TempDir::with_prefix_in("kvd-servers-", parent).unwrap();
        let free = free(2 * nodes);
        let addresses: Vec<(String, String)> =
            free.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        let mut servers = Servers { kind, nodes: Vec::new(), store: None, leader: 0, _dir: dir };
        if kind == Kind::Store {
            servers.store = Some(Arc::new(Db::open(servers._dir.path()).unwrap()));
            return Some(servers);
        }
        for (at, (peer, client)) in addresses.iter().enumerate() {
            let dir = servers._dir.path().join(format!("node-{}", at + 1));
            std::fs::create_dir(&dir).unwrap();
            let text = arguments(kind, at, &dir, &addresses);
            let arguments = text.split_whitespace().map(|part| part.trim_matches('\'')).chain(more.iter().copied());
            let mut server = Server {
                program: program.clone(),
                arguments: arguments.map(str::to_owned).collect(),
                client: client.clone(),
                peer: peer.clone(),
                child: None,
            };
            server.run();
            servers.nodes.push(server);
        }
        if kind == Kind::Kvd {
            servers.init().await;
        }
        servers.find_leader().await;
        Some(servers)
    }

    /// Makes nodes of kvd a cluster.
    async fn init(&self) {
        let mut arguments = vec!["init".to_owned(), "--node".to_owned(), self.nodes[0].peer.clone()];
        for (at, node) in self.nodes.iter().enumerate().skip(1) {
            arguments.extend(["--member".to_owned(), format!("{}={},{}", at + 1, node.peer, node.client)]);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut init = Command::new(KVD);
            let init = init.args(&arguments).stdout(Stdio::null()).stderr(Stdio::null());
            if init.status().await.unwrap().success() {
                return;
            }
            assert!(Instant::now() < deadline, "the nodes do not become a cluster");
            sleep(PAUSE).await;
        }
    }

    async fn find_leader(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for (at, node) in self.nodes.iter().enumerate() {
                if node.leads(self.kind).await {
                    self.leader = at;
                    return;
                }
            }
            assert!(Instant::now() < deadline, "no node leads");
            sleep(PAUSE).await;
        }
    }

    pub(crate) fn leader(&self) -> &str {
        &self.nodes[self.leader].client
    }

    /// Which node of kvd a test may stop without an election.
    pub(crate) fn follower(&mut self) -> &mut Server {
        let at = (self.leader + 1) % self.nodes.len();
        &mut self.nodes[at]
    }

    /// Time of processors that all nodes have taken, in steps of 10 ms.
    pub(crate) fn busy(&self) -> Duration {
        let ticks = |node: &Server| -> u64 {
            let stat = node.proc("stat");
            let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
        };
        Duration::from_millis(10 * self.nodes.iter().map(ticks).sum::<u64>())
    }

    /// Megabytes of memory of each node.
    pub(crate) fn memory(&self) -> Vec<u64> {
        let resident = |node: &Server| -> u64 {
            let status = node.proc("status");
            let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
            line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) >> 10
        };
        self.nodes.iter().map(resident).collect()
    }

    pub(crate) async fn stop(mut self) {
        for node in &mut self.nodes {
            node.kill().await;
        }
    }
}
