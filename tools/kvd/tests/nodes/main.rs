//! Nodes as processes, and what operators do with them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod operations;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpSocket;

/// For anything that nodes do by themselves. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// A socket with an address of its own that never listens: the system gives its port to nobody.
fn port() -> (TcpSocket, SocketAddr) {
    let port = TcpSocket::new_v4().unwrap();
    port.set_reuseaddr(true).unwrap();
    port.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = port.local_addr().unwrap();
    (port, address)
}

struct Node {
    id: usize,
    dir: PathBuf,
    raft: SocketAddr,
    resp: SocketAddr,
    child: Option<Child>,
    _ports: [TcpSocket; 2],
}

impl Node {
    fn new(id: usize, dir: &TempDir) -> Node {
        let ((raft_port, raft), (resp_port, resp)) = (port(), port());
        let (dir, child) = (dir.path().join(id.to_string()), None);
        let mut node = Node { id, dir, raft, resp, child, _ports: [raft_port, resp_port] };
        node.start();
        node
    }

    fn spawn(&self) -> Child {
        let (id, raft, resp) = (self.id.to_string(), self.raft.to_string(), self.resp.to_string());
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvd"));
        command.args(["--id", &id, "--raft", &raft, "--resp", &resp, "--cache-mb", "8"]).arg("--dir").arg(&self.dir);
        command.env("KVD_LOG", "error").stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn start(&mut self) {
        self.child = Some(self.spawn());
        until("a node answers", || self.status());
    }

    /// Starts it at another address.
    fn start_elsewhere(&mut self) {
        let ((raft_port, raft), (resp_port, resp)) = (port(), port());
        (self.raft, self.resp, self._ports) = (raft, resp, [raft_port, resp_port]);
        self.start();
    }

    fn operate(&self, action: &str, arguments: &[&str]) -> Output {
        let node = self.raft.to_string();
        Command::new(env!("CARGO_BIN_EXE_kvd")).args([action, "--node", &node]).args(arguments).output().unwrap()
    }

    fn status(&self) -> Option<Value> {
        let output = self.operate("status", &["--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn leader(&self) -> Option<u64> {
        self.status()?["groups"][0]["leader"].as_u64()
    }

    /// What it has said when it ended by itself, and its exit status.
    fn ended(&mut self) -> (Option<i32>, String) {
        let mut child = self.child.take().unwrap();
        let status = until("a node ends", || child.try_wait().unwrap());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status.code(), said)
    }

    fn terminate(&mut self) {
        let id = i32::try_from(self.child.as_ref().unwrap().id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::TERM).unwrap();
        assert_eq!(self.ended(), (Some(0), String::new()));
    }

    fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(self.resp).unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut reply = vec![0; 256];
        let len = stream.read(&mut reply).unwrap();
        String::from_utf8_lossy(&reply[..len]).trim_end().to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "waits in vain: {what}");
        thread::sleep(PAUSE);
    }
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_operator_makes_a_cluster_moves_a_node_and_removes_it() {
    let dir = TempDir::with_prefix("kvd-nodes-").unwrap();
    let mut nodes: Vec<Node> = (1..=3).map(|id| Node::new(id, &dir)).collect();
    let member = |node: &Node| format!("{}={},{}", node.id, node.raft, node.resp);
    let made = nodes[0].operate("init", &["--member", &member(&nodes[1]), "--member", &member(&nodes[2])]);
    assert!(made.status.success(), "{made:?}");
    // It has a leader at once. A slow machine may elect another one.
    let first = nodes[0].leader().unwrap();
    let set = |leader: u64| (nodes[usize::try_from(leader).unwrap() - 1].ask("SET a 1") == "+OK").then_some(leader);
    let first = until("it serves", || set(nodes[0].leader().unwrap_or(first)));
    let unknown = error(&nodes[1].operate("remove", &["42"]));
    assert!(unknown.contains("node 42 is no member of the cluster"), "{unknown}");

    // The leader ends, and starts at another address. Its lead goes on before it is gone.
    let leads = usize::try_from(first).unwrap() - 1;
    let other = (leads + 1) % 3;
    nodes[leads].terminate();
    let silent = || {
        let output = nodes[other].operate("status", &[]);
        String::from_utf8_lossy(&output.stdout).contains(&format!("It does not reach node {first}.")).then_some(())
    };
    until("another leads", || nodes[other].leader().filter(|next| *next != first));
    until("the status says who is away", silent);
    nodes[leads].start_elsewhere();
    let (raft, resp) = (nodes[leads].raft.to_string(), nodes[leads].resp.to_string());
    until("the others know the address", || {
        let status = nodes[other].status()?;
        let members = status["groups"][0]["members"].as_array()?;
        let is_there = |it: &&Value| it[0] == first && it[1]["raft"] == raft.as_str() && it[1]["resp"] == resp.as_str();
        members.iter().find(is_there).map(drop)
    });
    let handed = nodes[leads].operate("transfer", &["--group", "0", "--to", &first.to_string()]);
    assert!(handed.status.success(), "{handed:?}");
    let port = nodes[leads].resp.port();
    until("clients are sent there", || nodes[other].ask("SET a 2").ends_with(&format!(":{port}")).then_some(()));

    // It is removed, ends, and does not come back.
    let gone = nodes[other].operate("remove", &[&first.to_string()]);
    assert!(gone.status.success(), "{gone:?}");
    for _ in 0..2 {
        let (status, said) = nodes[leads].ended();
        assert_eq!(status, Some(3), "{said}");
        assert!(said.contains(&format!("node {first} was removed from the cluster")), "{said}");
        nodes[leads].child = Some(nodes[leads].spawn());
    }
    let next = until("the others have a leader", || nodes[other].leader().filter(|next| *next != first));
    assert_eq!(nodes[usize::try_from(next).unwrap() - 1].ask("GET a"), "$1\r\n1");
}
