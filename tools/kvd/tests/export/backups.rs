//! Backups of nodes that run, and clusters made of them.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use redis::{Connection, cmd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Node, kvd, message, set, until};

fn backup(node: &Node, repository: &Path) -> String {
    let output = kvd().args(["backup", "--from"]).arg(&node.dir).arg("--to").arg(repository).output().unwrap();
    assert!(output.status.success(), "{}", message(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Makes the store of `node` of a backup.
fn restore(repository: &Path, node: &Node, flags: &[&str]) -> Output {
    let member = format!("{}={},{}", node.id, node.raft, node.resp);
    let mut command = kvd();
    command.args(["restore", "--from"]).arg(repository).arg("--to").arg(&node.dir);
    let output = command.args(flags).arg(member).output().unwrap();
    assert!(!scratch(node).exists(), "it is left");
    output
}

fn scratch(node: &Node) -> PathBuf {
    let mut path = node.dir.clone().into_os_string();
    path.push(".restoring");
    path.into()
}

/// Sets each key to its number.
fn fill(client: &mut Connection, keys: Range<u32>) {
    keys.for_each(|key| set(client, key.to_string().as_bytes(), key.to_string().as_bytes()));
}

/// The time when what is written is surely followed: segments are of one second.
fn after_a_segment() -> String {
    thread::sleep(Duration::from_millis(2500));
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// Starts a node on the store that a restore has made, and returns which keys `0..` it has.
fn keys_of(mut node: Node, keys: u32) -> Vec<u32> {
    node.run();
    let mut client = node.client();
    let has = |key: &u32| cmd("GET").arg(key).query::<Option<u32>>(&mut client).unwrap() == Some(*key);
    let found = (0..keys).filter(has).collect();
    node.end(Signal::TERM);
    found
}

/// A backup that follows a node, until it is dropped.
struct Following(Child);

impl Following {
    fn start(node: &Node, repository: &Path, every: u32) -> Following {
        let mut command = kvd();
        command.args(["backup", "--follow", "--every", &every.to_string(), "--from"]).arg(&node.dir);
        Following(command.arg("--to").arg(repository).stdout(Stdio::null()).spawn().unwrap())
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_backup_of_a_node_that_runs_becomes_a_cluster_as_of_then() {
    let dir = TempDir::new().unwrap();
    let (node, repository) = (Node::start(&dir.path().join("node"), 3), dir.path().join("backups"));
    let mut client = node.client();
    for end in [200, 400] {
        fill(&mut client, end - 200..end);
        let said = backup(&node, &repository);
        assert!(said.starts_with(&format!("Generation {}", end / 200)), "{said}");
    }
    cmd("DEL").arg(7).exec(&mut client).unwrap();
    for (generation, keys) in [(1, 200), (2, 400)] {
        let restored = Node::new(7, &dir.path().join(format!("restored {generation}")), 3);
        let output = restore(&repository, &restored, &["--generation", &generation.to_string()]);
        assert!(output.status.success(), "{}", message(&output));
        assert_eq!(keys_of(restored, 500), (0..keys).collect::<Vec<_>>());
    }
    // The store of the new node is there, and nothing else.
    let again = Node::new(7, &dir.path().join("restored 2"), 3);
    let output = restore(&repository, &again, &[]);
    assert!(!output.status.success() && message(&output).contains("not empty"), "{}", message(&output));
}

#[test]
fn a_backup_that_follows_a_node_reaches_any_second() {
    let dir = TempDir::new().unwrap();
    let (node, repository) = (Node::start(&dir.path().join("node"), 1), dir.path().join("backups"));
    let mut client = node.client();
    let following = Following::start(&node, &repository, 3600);
    let mut times = Vec::new();
    for end in [100, 200, 300] {
        fill(&mut client, end - 100..end);
        times.push((end, after_a_segment()));
    }
    following.stop();
    for (keys, time) in times {
        let restored = Node::new(7, &dir.path().join(format!("as of {keys}")), 1);
        let output = restore(&repository, &restored, &["--at", &time]);
        assert!(output.status.success(), "{}", message(&output));
        assert_eq!(keys_of(restored, 400), (0..keys).collect::<Vec<_>>());
    }
}

#[test]
fn a_restore_has_all_or_tells_that_the_log_is_too_short() {
    let dir = TempDir::new().unwrap();
    let (mut node, repository) = (Node::start(&dir.path().join("node"), 1), dir.path().join("backups"));
    drop(node.client());
    node.end(Signal::TERM);
    // A log that is much shorter than the time between two generations.
    node.run_with(&["--snapshot-after", "50", "--keep-log", "50"]);
    let mut client = node.client();
    set(&mut client, b"0", b"0");
    let following = Following::start(&node, &repository, 3600);
    until(|| repository.exists());
    thread::sleep(Duration::from_secs(2));
    let mut times = Vec::new();
    for end in [500, 1000] {
        fill(&mut client, end - 500..end);
        times.push((end, after_a_segment()));
    }
    following.stop();
    for (keys, time) in times {
        let restored = Node::new(7, &dir.path().join(format!("as of {keys}")), 1);
        let output = restore(&repository, &restored, &["--at", &time]);
        match output.status.success() {
            true => assert_eq!(keys_of(restored, 1000), (0..keys).collect::<Vec<_>>()),
            false => {
                assert!(message(&output).contains("--keep-log"), "{}", message(&output));
                // Nothing is in the way of a restore as of an earlier time.
                assert!(!restored.dir.exists());
            }
        }
    }
}

#[test]
fn a_backup_that_follows_a_node_tells_why_it_fails() {
    let dir = TempDir::new().unwrap();
    let (node, repository) = (Node::start(&dir.path().join("node"), 1), dir.path().join("backups"));
    let (mut client, mut command) = (node.client(), kvd());
    command.args(["backup", "--follow", "--from"]).arg(&node.dir).arg("--to").arg(&repository);
    let [out, err] = ["out", "err"].map(|name| dir.path().join(name));
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
    let _following = Following(command.spawn().unwrap());
    until(|| fs::read_to_string(&out).unwrap() == "Generation 1.\n");
    fs::rename(&repository, dir.path().join("away")).unwrap();
    fs::write(&repository, "").unwrap();
    set(&mut client, b"0", b"0");
    until(|| fs::read_to_string(&err).unwrap().contains("tried again"));
}
