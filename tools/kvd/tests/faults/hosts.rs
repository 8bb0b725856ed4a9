//! Nodes as processes on loopback, with a relay for each direction of each link.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};
use tokio::net::TcpSocket;

use crate::relay::Relay;

/// For anything that a healthy cluster does by itself. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

struct Host {
    dir: PathBuf,
    raft: SocketAddr,
    resp: SocketAddr,
    child: Option<Child>,
    /// Snapshots that it has begun to receive, by what it has logged.
    received: Arc<AtomicUsize>,
    /// What else it has logged.
    said: Arc<Mutex<Vec<String>>>,
}

pub(crate) struct Hosts {
    hosts: Vec<Host>,
    /// By sender and receiver.
    links: BTreeMap<(usize, usize), Relay>,
    groups: u32,
    ports: Vec<TcpSocket>,
    _dir: TempDir,
}

/// A socket with an address of its own. It never listens: a node may, and while that is away, the
/// system gives the port to nobody else.
fn port() -> TcpSocket {
    let port = TcpSocket::new_v4().unwrap();
    port.set_reuseaddr(true).unwrap();
    port.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    port
}

impl Hosts {
    /// Starts nodes and makes them a cluster.
    pub(crate) fn start(count: usize, groups: u32) -> Hosts {
        Hosts::start_with(count, groups, &[])
    }

    /// Likewise, with further flags.
    pub(crate) fn start_with(count: usize, groups: u32, flags: &[&str]) -> Hosts {
        let dir = TempDir::with_prefix("kvd-faults-").unwrap();
        let ports: Vec<TcpSocket> = (0..2 * count).map(|_| port()).collect();
        let host = |at: usize| Host {
            dir: dir.path().join(format!("node-{at}")),
            raft: ports[2 * at].local_addr().unwrap(),
            resp: ports[2 * at + 1].local_addr().unwrap(),
            child: None,
            received: Arc::default(),
            said: Arc::default(),
        };
        let hosts: Vec<Host> = (0..count).map(host).collect();
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let links = pairs.map(|(from, to)| ((from, to), Relay::start(hosts[to].raft))).collect();
        let mut all = Hosts { hosts, links, groups, ports, _dir: dir };
        for at in 0..count {
            all.run_with(at, flags);
        }
        let mut init = Command::new(env!("CARGO_BIN_EXE_kvd"));
        init.args(["init", "--node", &all.hosts[0].raft.to_string()]);
        for (at, host) in all.hosts.iter().enumerate().skip(1) {
            init.args(["--member", &format!("{}={},{}", at + 1, host.raft, host.resp)]);
        }
        assert!(init.stdout(Stdio::null()).status().unwrap().success());
        all.leader(0);
        all
    }

    pub(crate) fn count(&self) -> usize {
        self.hosts.len()
    }

    pub(crate) fn clients(&self) -> Vec<SocketAddr> {
        self.hosts.iter().map(|host| host.resp).collect()
    }

    /// All nodes but one.
    pub(crate) fn others(&self, at: usize) -> Vec<usize> {
        (1..self.count()).map(|away| (at + away) % self.count()).collect()
    }

    /// Starts a node that does not run, and waits until it has ended by itself.
    pub(crate) fn run_in_vain(&mut self, at: usize, flags: &[&str]) -> String {
        self.spawn(at, flags);
        let end = self.wait_ended(at);
        let said = self.hosts[at].said.lock().unwrap();
        format!("{end}: {}", said.last().unwrap())
    }

    /// Starts a node that does not run, and waits until it answers.
    pub(crate) fn run(&mut self, at: usize) {
        self.run_with(at, &[]);
    }

    /// Likewise, with further flags.
    pub(crate) fn run_with(&mut self, at: usize, flags: &[&str]) {
        self.spawn(at, flags);
        self.until("a node answers", || self.status(at));
    }

    fn spawn(&mut self, at: usize, flags: &[&str]) {
        let routes = (0..self.count()).filter(|to| *to != at);
        let routes: Vec<String> = routes.map(|to| format!("{}={}", to + 1, self.links[&(at, to)].address)).collect();
        let (dir, groups) = (self.hosts[at].dir.clone(), self.groups.to_string());
        let host = &mut self.hosts[at];
        // A write beyond the limit that `fill_disk` sets then fails, and does not end the process.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_kvd")]).args(flags);
        command.args([
            "--id",
            &(at + 1).to_string(),
            "--raft",
            &host.raft.to_string(),
            "--resp",
            &host.resp.to_string(),
        ]);
        command.args([
            "--test-power-cuts",
            "--groups",
            &groups,
            "--snapshot-after",
            "300",
            "--keep-log",
            "200",
            "--cache-mb",
            "8",
        ]);
        command.arg("--test-clock-error").arg(dir.with_extension("clock"));
        command.arg("--dir").arg(dir).args(routes.iter().flat_map(|route| ["--route", route]));
        command
            .env(
                "KVD_LOG",
                std::env::var("KVD_FAULT_LOG").unwrap_or_else(|_| "kvd=error,kvd::raft::server=info".to_owned()),
            )
            .stdin(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (log, received, said) = (child.stderr.take().unwrap(), Arc::clone(&host.received), Arc::clone(&host.said));
        thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                if line.contains("a snapshot is being received") {
                    received.fetch_add(1, Ordering::Relaxed);
                } else {
                    println!("node {}: {line}", at + 1);
                    said.lock().unwrap().push(line);
                }
            }
        });
        host.child = Some(child);
    }

    /// Kills a node, and has its disk lose what it has not synced.
    pub(crate) fn kill(&mut self, at: usize) {
        let child = self.hosts[at].child.as_mut().unwrap();
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success(), "the node ended before it was killed");
        self.hosts[at].child = None;
    }

    /// Asks a node to end, and waits until it has.
    pub(crate) fn terminate(&mut self, at: usize) {
        self.signal(at, Signal::TERM);
        let status = self.hosts[at].child.as_mut().unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
        self.hosts[at].child = None;
    }

    /// Gives a node that does not run another address for the others.
    pub(crate) fn relocate(&mut self, at: usize) {
        let port = port();
        self.hosts[at].raft = port.local_addr().unwrap();
        self.ports[2 * at] = port;
        for from in self.others(at) {
            self.links[&(from, at)].lead_to(self.hosts[at].raft);
        }
    }

    /// Waits until a node knows by the membership of all groups where another one is.
    pub(crate) fn wait_located(&self, by: usize, at: usize) {
        let raft = self.hosts[at].raft.to_string();
        let is_there = |member: &Value| member[0] == at as u64 + 1 && member[1]["raft"] == raft.as_str();
        self.until("the membership has a new address", || {
            let status = self.status(by)?;
            let mut groups = status["groups"].as_array()?.iter();
            groups.all(|group| group["members"].as_array().is_some_and(|all| all.iter().any(is_there))).then_some(())
        });
    }

    /// Takes a node's disk away. It must not run.
    pub(crate) fn wipe(&self, at: usize) {
        assert!(self.hosts[at].child.is_none());
        std::fs::remove_dir_all(&self.hosts[at].dir).unwrap();
    }

    /// Makes a node's clock wrong by so many milliseconds.
    pub(crate) fn set_clock_error(&self, at: usize, millis: i64) {
        let file = self.hosts[at].dir.with_extension("clock");
        let mut new = NamedTempFile::new_in(self._dir.path()).unwrap();
        write!(new, "{millis}").unwrap();
        new.persist(file).unwrap();
    }

    /// How far a node believes its clock to be ahead.
    pub(crate) fn clock_ahead(&self, at: usize) -> Option<i64> {
        self.status(at)?["clock_ahead_ms"].as_i64()
    }

    /// From now on, no file of a node that runs can grow, as on a full disk.
    pub(crate) fn fill_disk(&self, at: usize) {
        let limit = Rlimit { current: Some(1), maximum: Some(1) };
        prlimit(Some(self.process(at)), Resource::Fsize, limit).unwrap();
    }

    /// Waits until a node's process has ended by itself, and says how.
    pub(crate) fn wait_ended(&mut self, at: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        let child = self.hosts[at].child.as_mut().unwrap();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "node {} goes on", at + 1);
            thread::sleep(PAUSE);
        };
        assert_eq!(status.code(), Some(1), "{status}");
        self.hosts[at].child = None;
        status.to_string()
    }

    /// Snapshots that a node has begun to receive.
    pub(crate) fn snapshots_received(&self, at: usize) -> usize {
        self.hosts[at].received.load(Ordering::Relaxed)
    }

    /// Gives an operator's command to a node, until it is carried out.
    fn operate(&self, at: usize, action: &str, arguments: &[&str]) {
        let node = self.hosts[at].raft.to_string();
        self.until(action, || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kvd"));
            let output = command.args([action, "--node", &node]).args(arguments).output().unwrap();
            // The answer to an attempt before may have been lost.
            let is_gone = action == "remove" && String::from_utf8_lossy(&output.stderr).contains("is no member");
            let done = output.status.success() || is_gone;
            if !done {
                println!("{action}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
            }
            done.then_some(())
        });
    }

    /// Makes node `to` the leader of a group.
    pub(crate) fn hand_over(&self, group: usize, to: usize) {
        self.operate(to, "transfer", &["--group", &group.to_string(), "--to", &(to + 1).to_string()]);
    }

    /// Removes a node from the cluster, by a command to node `by`.
    pub(crate) fn remove(&self, at: usize, by: usize) {
        self.operate(by, "remove", &[&(at + 1).to_string()]);
    }

    /// Adds a node to the cluster, by a command to node `by`.
    pub(crate) fn add(&self, at: usize, by: usize) {
        let Host { raft, resp, .. } = &self.hosts[at];
        self.operate(by, "add", &[&format!("{}={raft},{resp}", at + 1)]);
    }

    /// Takes all replicas from a node that stays in the cluster, by a command to node `by`.
    pub(crate) fn drain(&self, at: usize, by: usize) {
        self.operate(by, "rebalance", &["--without", &(at + 1).to_string()]);
    }

    /// Gives a node replicas of all groups, by a command to node `by`.
    pub(crate) fn fill(&self, at: usize, by: usize) {
        let Host { raft, resp, .. } = &self.hosts[at];
        let with = format!("{}={raft},{resp}", at + 1);
        self.operate(by, "rebalance", &["--replicas", &self.count().to_string(), "--with", &with]);
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups as usize
    }

    /// What a node is in each group.
    pub(crate) fn roles(&self, at: usize) -> Vec<String> {
        let report = self.until("a node answers", || self.status(at));
        let groups = report["groups"].as_array().unwrap().iter();
        groups.map(|group| group["role"].as_str().unwrap().to_owned()).collect()
    }

    fn process(&self, at: usize) -> Pid {
        let id = i32::try_from(self.hosts[at].child.as_ref().unwrap().id()).unwrap();
        Pid::from_raw(id).unwrap()
    }

    fn signal(&self, at: usize, signal: Signal) {
        kill_process(self.process(at), signal).unwrap();
    }

    /// Stops a process without its knowledge.
    pub(crate) fn pause(&self, at: usize) {
        self.signal(at, Signal::STOP);
    }

    pub(crate) fn resume(&self, at: usize) {
        self.signal(at, Signal::CONT);
    }

    pub(crate) fn link(&self, from: usize, to: usize) -> &Relay {
        &self.links[&(from, to)]
    }

    /// Links from and to a node.
    pub(crate) fn links_of(&self, at: usize) -> impl Iterator<Item = &Relay> {
        self.links.iter().filter(move |((from, to), _)| *from == at || *to == at).map(|(_, relay)| relay)
    }

    /// What a node reports, unless it does not answer.
    fn status(&self, at: usize) -> Option<Value> {
        let node = self.hosts[at].raft.to_string();
        let output = Command::new(env!("CARGO_BIN_EXE_kvd")).args(["status", "--json", "--node", &node]).output();
        let output = output.unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn leads(&self, at: usize, group: usize) -> Option<u64> {
        let report = self.status(at)?;
        let group = &report["groups"][group];
        (group["role"] == "leader").then(|| group["term"].as_u64().unwrap())
    }

    /// The node that leads a group in the greatest term.
    pub(crate) fn leader(&self, group: usize) -> usize {
        self.leader_among(group, &(0..self.count()).collect::<Vec<_>>())
    }

    /// Likewise, among some nodes only.
    pub(crate) fn leader_among(&self, group: usize, nodes: &[usize]) -> usize {
        self.until("a node leads", || {
            let of = |at: usize| self.hosts[at].child.as_ref().and_then(|_| Some((self.leads(at, group)?, at)));
            nodes.iter().filter_map(|at| of(*at)).max().map(|(_, at)| at)
        })
    }

    fn index(&self, at: usize, name: &str) -> u64 {
        self.until("a node answers", || self.status(at)?["groups"][0][name].as_u64())
    }

    /// Index of the last entry in a node's log of the first group.
    pub(crate) fn last_index(&self, at: usize) -> u64 {
        self.index(at, "last")
    }

    /// Index of the last entry that a node has removed from the front of that log.
    pub(crate) fn purged_index(&self, at: usize) -> u64 {
        self.index(at, "purged")
    }

    /// Waits until a node has applied what another one has committed.
    pub(crate) fn wait_caught_up(&self, at: usize, with: usize) {
        let number = |at: usize, name: &str| {
            let report = self.status(at)?;
            let groups = report["groups"].as_array().unwrap().iter();
            Some(groups.map(|group| group[name].as_u64().unwrap()).collect::<Vec<_>>())
        };
        let goal = self.until("a node answers", || number(with, "committed"));
        self.until("a node catches up", || {
            let applied = number(at, "applied")?;
            applied.iter().zip(&goal).all(|(applied, goal)| applied >= goal).then_some(())
        });
    }

    fn until<T>(&self, what: &str, check: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = check() {
                return value;
            }
            assert!(Instant::now() < deadline, "waits in vain: {what}");
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in self.hosts.iter_mut().filter_map(|host| host.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
