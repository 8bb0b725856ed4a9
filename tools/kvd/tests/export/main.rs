//! Exports and backups of nodes that are processes: is everything there, and does it load
//! elsewhere?
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kvd::machine::{group_of, slot_of};
use redis::{Connection, cmd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpSocket;

mod backups;

/// For what a healthy node does by itself. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

fn kvd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvd"));
    command.env("KVD_LOG", "kvd=error").stdin(Stdio::null());
    command
}

/// A node and its process.
struct Node {
    id: u32,
    dir: PathBuf,
    raft: SocketAddr,
    resp: SocketAddr,
    groups: u32,
    child: Option<Child>,
    _ports: [TcpSocket; 2],
}

/// A socket with an address of its own. It never listens: the node does, and no other test gets the
/// port before that.
fn port() -> TcpSocket {
    let port = TcpSocket::new_v4().unwrap();
    port.set_reuseaddr(true).unwrap();
    port.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    port
}

impl Node {
    /// Starts a cluster of one node.
    fn start(dir: &Path, groups: u32) -> Node {
        Node::start_all(&[dir.to_owned()], groups).remove(0)
    }

    /// Starts a cluster.
    fn start_all(dirs: &[PathBuf], groups: u32) -> Vec<Node> {
        let nodes: Vec<Node> = (1..).zip(dirs).map(|(id, dir)| Node::spawn(id, dir, groups)).collect();
        let mut init = vec!["init".to_owned(), "--node".to_owned(), nodes[0].raft.to_string()];
        for Node { id, raft, resp, .. } in &nodes[1..] {
            init.extend(["--member".to_owned(), format!("{id}={raft},{resp}")]);
        }
        until(|| kvd().args(&init).output().unwrap().status.success());
        nodes
    }

    /// Starts a node that is in no cluster.
    fn spawn(id: u32, dir: &Path, groups: u32) -> Node {
        let mut node = Node::new(id, dir, groups);
        node.run();
        node
    }

    /// A node that does not run yet.
    fn new(id: u32, dir: &Path, groups: u32) -> Node {
        let ports = [(); 2].map(|()| port());
        let [raft, resp] = [0, 1].map(|at| ports[at].local_addr().unwrap());
        Node { id, dir: dir.to_owned(), raft, resp, groups, child: None, _ports: ports }
    }

    /// Starts the process.
    fn run(&mut self) {
        self.run_with(&[]);
    }

    /// Starts the process with more settings.
    fn run_with(&mut self, settings: &[&str]) {
        let mut command = kvd();
        command.args([
            "--id",
            &self.id.to_string(),
            "--raft",
            &self.raft.to_string(),
            "--resp",
            &self.resp.to_string(),
        ]);
        command.args(["--groups", &self.groups.to_string(), "--cache-mb", "8"]).arg("--dir").arg(&self.dir);
        self.child = Some(command.args(settings).spawn().unwrap());
    }

    /// A connection to the node, when it leads all groups.
    fn client(&self) -> Connection {
        let client = redis::Client::open(format!("redis://{}/", self.resp)).unwrap();
        let mut connected = None;
        until(|| {
            connected = client.get_connection().ok();
            let Some(connection) = &mut connected else { return false };
            // A key of each group.
            let key =
                |group| (0..).find(|key: &u32| group_of(slot_of(key.to_string().as_bytes()), self.groups) == group);
            (0..self.groups).all(|group| cmd("GET").arg(key(group)).exec(connection).is_ok())
        });
        connected.unwrap()
    }

    fn end(&mut self, signal: Signal) {
        let mut child = self.child.take().unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().success(), signal == Signal::TERM);
    }

    /// The records as JSON lines, of what has not expired at `now_ms`.
    fn lines(&self, now_ms: u64, flags: &[&str]) -> Vec<String> {
        let output = self.export("jsonl", &[&["--now", &now_ms.to_string()], flags].concat());
        assert!(output.status.success(), "{}", message(&output));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    fn export(&self, format: &str, flags: &[&str]) -> Output {
        kvd().args(["export", "--format", format, "--from"]).arg(&self.dir).args(flags).output().unwrap()
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

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waits in vain");
        thread::sleep(PAUSE);
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn set(connection: &mut Connection, key: &[u8], value: &[u8]) {
    cmd("SET").arg(key).arg(value).exec(connection).unwrap();
}

/// Sends commands to a node, each of which must be answered by OK.
fn load(resp: SocketAddr, commands: &[u8], count: usize) {
    let mut stream = TcpStream::connect(resp).unwrap();
    let mut replies = stream.try_clone().unwrap();
    let reader = thread::spawn(move || {
        let mut answers = vec![0; count * b"+OK\r\n".len()];
        replies.read_exact(&mut answers).unwrap();
        answers
    });
    stream.write_all(commands).unwrap();
    assert_eq!(reader.join().unwrap(), b"+OK\r\n".repeat(count));
}

#[test]
fn an_export_has_all_that_a_node_had_and_loads_into_another() {
    let dir = TempDir::new().unwrap();
    let mut node = Node::start(&dir.path().join("first"), 3);
    let mut client = node.client();
    let (binary, long): (Vec<u8>, Vec<u8>) = ((0..=255).collect(), b"long ".repeat(100_000));
    for (key, value) in [(&binary[..], &b"of a binary key"[..]), (b"", b"of the empty key"), (b"empty", b"")] {
        set(&mut client, key, value);
    }
    set(&mut client, b"binary", &binary);
    set(&mut client, b"long", &long);
    for at in 0..500 {
        set(&mut client, format!("key {at}").as_bytes(), at.to_string().as_bytes());
    }
    let deadline_ms = now_ms() + 3_600_000;
    cmd("SET").arg("expires").arg("later").arg("PXAT").arg(deadline_ms).exec(&mut client).unwrap();
    cmd("SET").arg("expired").arg("soon").arg("PX").arg(1).exec(&mut client).unwrap();
    thread::sleep(Duration::from_millis(5));
    let now = now_ms();

    let beside = node.lines(now, &[]);
    assert_eq!(beside.len(), 506);
    node.end(Signal::TERM);
    let stopped = node.lines(now, &[]);
    assert!(stopped == beside, "a node that stopped has what it had when it ran");
    node.run();
    drop(node.client());
    node.end(Signal::KILL);
    assert!(node.lines(now, &[]) == beside, "a node that was killed has it, too");

    let keys = stopped.iter().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        STANDARD.decode(line["key"].as_str().unwrap()).unwrap()
    });
    assert!(keys.collect::<Vec<_>>().is_sorted_by(|a, b| a < b), "sorted by key");
    let unsorted = node.lines(now, &["--unsorted"]);
    assert_ne!(unsorted, stopped);
    assert!(unsorted.iter().collect::<BTreeSet<_>>() == stopped.iter().collect());
    assert_eq!(node.lines(deadline_ms - 1, &[]).len(), 506);
    assert_eq!(node.lines(deadline_ms, &[]).len(), 505);

    let (file, work) = (dir.path().join("export.resp"), dir.path().join("work"));
    fs::create_dir(&work).unwrap();
    let flags = ["--now", &now.to_string(), "--to", file.to_str().unwrap(), "--work-dir", work.to_str().unwrap()];
    let output = node.export("resp", &flags);
    assert!(output.status.success(), "{}", message(&output));
    assert!(message(&output).contains("506"), "{}", message(&output));
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0, "temporary files are gone");

    let mut second = Node::start(&dir.path().join("second"), 1);
    let mut client = second.client();
    load(second.resp, &fs::read(&file).unwrap(), 506);
    let get = |client: &mut Connection, key: &[u8]| cmd("GET").arg(key).query::<Option<Vec<u8>>>(client).unwrap();
    for (key, value) in [
        (&binary[..], Some(&b"of a binary key"[..])),
        (b"", Some(b"of the empty key")),
        (b"empty", Some(b"")),
        (b"binary", Some(&binary)),
        (b"long", Some(&long)),
        (b"key 499", Some(b"499")),
        (b"expires", Some(b"later")),
        (b"expired", None),
    ] {
        assert!(get(&mut client, key).as_deref() == value, "{}", key.escape_ascii());
    }
    let left: u64 = cmd("PTTL").arg("expires").query(&mut client).unwrap();
    assert!((1..=3_600_000).contains(&left));
    second.end(Signal::TERM);
    assert!(second.lines(now, &[]) == stopped, "the export of the other node is the same");
}

#[test]
fn an_export_has_every_write_that_was_acknowledged_before_it_began() {
    let dir = TempDir::new().unwrap();
    let mut node = Node::start(&dir.path().join("store"), 1);
    let acknowledged = AtomicU64::new(0);
    let missing = |node: &Node, acknowledged: u64| {
        let output = node.export("tsv", &[]);
        assert!(output.status.success(), "{}", message(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let found: BTreeSet<&str> = text.lines().map(|line| line.split_once('\t').unwrap().0).collect();
        (0..acknowledged).find(|at| !found.contains(&*at.to_string()))
    };
    thread::scope(|scope| {
        let mut client = node.client();
        let acknowledged = &acknowledged;
        scope.spawn(move || {
            // Until the node is killed.
            while cmd("SET").arg(acknowledged.load(Ordering::SeqCst)).arg("v").exec(&mut client).is_ok() {
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        });
        for _ in 0..5 {
            let before = acknowledged.load(Ordering::SeqCst);
            assert_eq!(missing(&node, before), None, "beside a node that runs");
            until(|| acknowledged.load(Ordering::SeqCst) > before + 50);
        }
        node.end(Signal::KILL);
    });
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    assert!(acknowledged > 250);
    assert_eq!(missing(&node, acknowledged), None, "after a kill");
}

#[test]
fn an_export_of_a_majority_has_every_acknowledged_write() {
    let dir = TempDir::new().unwrap();
    let dirs = ["1", "2", "3"].map(|name| dir.path().join(name));
    let mut nodes = Node::start_all(&dirs, 4);
    let client = redis::cluster::ClusterClient::new(nodes.iter().map(|node| format!("redis://{}/", node.resp)));
    let client = client.unwrap();
    let (counts, killed) = ([(); 4].map(|()| AtomicU64::new(0)), AtomicBool::new(false));
    thread::scope(|scope| {
        for (writer, count) in counts.iter().enumerate() {
            let (client, killed) = (&client, &killed);
            scope.spawn(move || {
                let mut connection = None;
                until(|| {
                    connection = client.get_connection().ok();
                    connection.is_some()
                });
                let mut connection = connection.unwrap();
                while !killed.load(Ordering::SeqCst) {
                    let key = format!("{writer} {}", count.load(Ordering::SeqCst));
                    match cmd("SET").arg(key).arg("v").exec(&mut connection) {
                        Ok(()) => drop(count.fetch_add(1, Ordering::SeqCst)),
                        Err(_) => thread::sleep(PAUSE),
                    }
                }
            });
        }
        until(|| counts.iter().all(|count| count.load(Ordering::SeqCst) > 200));
        nodes.iter_mut().for_each(|node| node.end(Signal::KILL));
        killed.store(true, Ordering::SeqCst);
    });
    for from in [&dirs[..], &dirs[..2], &dirs[1..]] {
        let mut command = kvd();
        let output =
            command.args(["export", "--format", "tsv"]).args(from.iter().flat_map(|dir| [Path::new("--from"), dir]));
        let output = output.output().unwrap();
        assert!(output.status.success(), "{}", message(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let found: BTreeSet<&str> = text.lines().map(|line| line.split_once('\t').unwrap().0).collect();
        for (writer, count) in counts.iter().enumerate() {
            let count = count.load(Ordering::SeqCst);
            let missing: Vec<_> =
                (0..count).map(|at| format!("{writer} {at}")).filter(|key| !found.contains(&key[..])).collect();
            assert!(missing.is_empty(), "{missing:?} of {count} are not in {from:?}");
        }
    }
}

#[test]
fn an_export_to_what_is_no_file_is_refused() {
    let dir = TempDir::new().unwrap();
    let mut node = Node::start(&dir.path().join("store"), 1);
    node.end(Signal::TERM);
    let refused = node.export("resp", &["--to", dir.path().to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(message(&refused).contains("is no file"), "{}", message(&refused));
}

#[test]
fn damage_is_named_by_file_and_offset_and_no_file_appears() {
    let dir = TempDir::new().unwrap();
    let mut node = Node::start(&dir.path().join("store"), 1);
    let mut client = node.client();
    for at in 0..200 {
        set(&mut client, format!("key {at}").as_bytes(), &[at; 5000]);
    }
    node.end(Signal::TERM);
    let files = fs::read_dir(&node.dir).unwrap().map(|file| file.unwrap().path());
    let tables = files.filter(|file| file.extension().is_some_and(|extension| extension == "sst"));
    let table = tables.max_by_key(|file| fs::metadata(file).unwrap().len()).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&table, bytes).unwrap();
    let file = dir.path().join("export");
    let failed = node.export("resp", &["--to", file.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(1));
    let message = message(&failed);
    assert!(message.contains(&format!("{} is damaged at offset ", table.display())), "{message}");
    assert!(!file.exists());
}

#[test]
fn what_is_no_store_of_a_node_is_refused() {
    let dir = TempDir::new().unwrap();
    let other = dir.path().join("other");
    tamis::Db::open(&other).unwrap().close().unwrap();
    for (path, reason) in [(dir.path().join("absent"), "there is no store in"), (other, "is no store of kvd")] {
        let output = kvd().args(["export", "--format", "tsv", "--from"]).arg(path).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(message(&output).contains(reason), "{}", message(&output));
    }
}

#[test]
fn a_group_without_a_replica_is_named() {
    let dir = TempDir::new().unwrap();
    let mut node = Node::spawn(1, &dir.path().join("store"), 2);
    until(|| TcpStream::connect(node.resp).is_ok());
    node.end(Signal::TERM);
    let refused = node.export("resp", &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(message(&refused).contains("group 0 has no replica in the directories given"), "{}", message(&refused));
    let partial = node.export("resp", &["--partial"]);
    assert!(partial.status.success() && partial.stdout.is_empty());
    assert!(message(&partial).contains("Group 1: nothing"), "{}", message(&partial));
}
