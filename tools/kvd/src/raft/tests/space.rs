//! Nodes whose disks are nearly full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::RaftSnapshotBuilder;
use openraft::storage::RaftStateMachine;
use tamis::vfs::{FileSystem, SimFileSystem};
use tokio::time::{Instant, sleep};

use super::cluster::{Host, PATIENCE, hosts, leader, read, set, until, write};
use crate::machine::{Body, Operation, Reply, Request, Version};
use crate::raft::FreeSpace;
use crate::raft::library::Entry;
use crate::raft::state::StateStore;
use crate::raft::types::{LogId, Proposal};
use crate::replica::{Replica, WriteError};
use crate::store::Store;

const RESERVE: u64 = 4 << 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Three nodes, and how many bytes each has free.
async fn nodes() -> (Vec<Host>, Vec<Arc<AtomicU64>>) {
    let mut nodes = hosts(3, 1).await;
    let mut free = Vec::new();
    for node in &mut nodes {
        let bytes = Arc::new(AtomicU64::new(2 * RESERVE));
        let measure = Arc::clone(&bytes);
        node.node.take().unwrap().stop().await.unwrap();
        node.settings.reserve = RESERVE;
        node.settings.free_space = FreeSpace::new(move |_| Ok(measure.load(Ordering::Relaxed)));
        node.start().await;
        free.push(bytes);
    }
    (nodes, free)
}

fn delete(key: &str) -> Request {
    Request::new(Body::Run(Operation::Delete(vec![key.as_bytes().to_vec().into()])))
}

/// What the leader says to a write, once it is one of these.
async fn until_written(hosts: &[Host], request: &Request, is: impl Fn(&Result<Reply, WriteError>) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leads = leader(hosts, 0).await;
        let outcome = hosts[leads].node().write(0, request.clone()).await;
        if is(&outcome) {
            return;
        }
        assert!(Instant::now() < deadline, "{outcome:?}");
        sleep(PAUSE).await;
    }
}

fn is_full(outcome: &Result<Reply, WriteError>) -> bool {
    *outcome == Err(WriteError::NoSpace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_space_hands_over_and_follows_again_when_it_has_some() {
    let (hosts, free) = nodes().await;
    write(&hosts, 0, "a", "1").await;
    let full = leader(&hosts, 0).await;
    free[full].store(RESERVE / 8, Ordering::Relaxed);
    let deadline = Instant::now() + PATIENCE;
    while leader(&hosts, 0).await == full {
        assert!(Instant::now() < deadline, "it leads on");
        sleep(PAUSE).await;
    }
    for number in 0..50 {
        write(&hosts, 0, &format!("key {number}"), "1").await;
    }
    let node = hosts[full].node();
    let report = node.report();
    assert!(report.is_low && report.free_bytes == Some(RESERVE / 8), "{report:?}");
    // It has not taken them, and runs.
    let applied = |node: &crate::raft::Cluster| node.status(0).applied_index;
    let leads = leader(&hosts, 0).await;
    assert!(applied(node) + 50 <= applied(hosts[leads].node()));
    assert_ne!(node.report().groups[0].role, "stopped");
    free[full].store(2 * RESERVE, Ordering::Relaxed);
    let goal = applied(hosts[leads].node());
    until(node, "caught up", |node| applied(node) >= goal).await;
    until(node, "not low", |node| !node.report().is_low).await;
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_low_node_takes_no_snapshot_before_it_has_space() {
    let (mut hosts, free) = nodes().await;
    write(&hosts, 0, "a", "1").await;
    let away = (leader(&hosts, 0).await + 1) % 3;
    hosts[away].node.take().unwrap().stop().await.unwrap();
    // More than the log keeps.
    for number in 0..100 {
        write(&hosts, 0, &format!("key {number}"), "1").await;
    }
    free[away].store(RESERVE - 1, Ordering::Relaxed);
    let leads = leader(&hosts, 0).await;
    until(hosts[leads].node(), "a log that begins later", |node| node.report().groups[0].purged > 10).await;
    hosts[away].start().await;
    let node = hosts[away].node();
    until(node, "low", |node| node.report().is_low).await;
    sleep(20 * PAUSE).await;
    assert!(node.status(0).applied_index < 100, "{:?}", node.report());
    free[away].store(2 * RESERVE, Ordering::Relaxed);
    let goal = hosts[leads].node().status(0).applied_index;
    until(node, "caught up", |node| node.status(0).applied_index >= goal).await;
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_space_on_a_majority_reads_and_deletes_go_on_until_there_is_some() {
    let (hosts, free) = nodes().await;
    let leads = leader(&hosts, 0).await;
    // The followers are, and then all nodes.
    for full in [vec![(leads + 1) % 3, (leads + 2) % 3], vec![0, 1, 2]] {
        write(&hosts, 0, "a", "1").await;
        write(&hosts, 0, "b", "2").await;
        full.iter().for_each(|at| free[*at].store(RESERVE - 1, Ordering::Relaxed));
        until_written(&hosts, &set("c", "3"), is_full).await;
        // Also below the part of the reserve that is kept for entries under way.
        full.iter().for_each(|at| free[*at].store(1, Ordering::Relaxed));
        sleep(4 * PAUSE).await;
        until_written(&hosts, &delete("a"), |outcome| *outcome == Ok(Reply::Integer(1))).await;
        assert_eq!(read(&hosts, 0, "a").await, Reply::Nil);
        assert_eq!(read(&hosts, 0, "b").await, Reply::bulk("2"));
        until_written(&hosts, &set("c", "3"), is_full).await;
        free.iter().for_each(|free| free.store(2 * RESERVE, Ordering::Relaxed));
        until_written(&hosts, &set("c", "3"), |outcome| *outcome == Ok(Reply::OK)).await;
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_the_disk_has_no_space_for_waits_for_it() {
    let fs = SimFileSystem::new();
    let options = tamis::Options::new().file_system(Arc::new(fs.clone()));
    let store = Store::open(options, "/db".as_ref()).unwrap();
    let mut states = StateStore::open(&store, 0).unwrap();
    let requests = vec![set("a", &"v".repeat(1 << 10))];
    let (proposal, _) = Proposal::new(crate::machine::Entry { time_ms: 1, requests });
    let log_id = LogId::new(openraft::CommittedLeaderId::new(1, 1), 1);
    let entry = Entry { log_id, payload: openraft::EntryPayload::Normal(proposal) };
    states.apply([entry]).await.unwrap();
    let mut builder = states.get_snapshot_builder().await;
    fs.set_capacity(Some(0));
    let built = tokio::spawn(async move { builder.build_snapshot().await.map(|snapshot| snapshot.meta.last_log_id) });
    sleep(Duration::from_millis(600)).await;
    assert!(!built.is_finished());
    fs.set_capacity(None);
    assert_eq!(built.await.unwrap().unwrap(), Some(log_id));
    assert_eq!(states.state().progress().durable(), Some(log_id));
}

/// A disk that fills by what is written to it, and has room again by what is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_fills_its_disk_does_not_end_and_deletes_make_room() {
    let mut host = Host::of(1, 1, Version::LATEST).await;
    host.node.take().unwrap().stop().await.unwrap();
    host.settings.reserve = 4 * RESERVE;
    let fs = host.fs.clone();
    host.settings.free_space = FreeSpace::new(move |dir| fs.free_space(dir));
    host.start().await;
    host.command(crate::raft::Command::Init { others: Vec::new() }).await.unwrap();
    host.fs.set_capacity(Some(16 * RESERVE));
    let hosts = [host];
    let mut random = fastrand::Rng::with_seed(1);
    let mut value = || (0..64 << 10).map(|_| random.alphanumeric()).collect::<String>();
    let mut written = 0;
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "{written} values of 64 KiB and still space");
        match hosts[0].node().write(0, set(&format!("key {written}"), &value())).await {
            Ok(_) => written += 1,
            Err(WriteError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
        sleep(Duration::from_millis(2)).await;
    }
    assert!(written > 100, "{written}");
    for number in 0..written {
        until_written(&hosts, &delete(&format!("key {number}")), |outcome| *outcome == Ok(Reply::Integer(1))).await;
    }
    until_written(&hosts, &set("after", "all"), |outcome| *outcome == Ok(Reply::OK)).await;
    assert_eq!(read(&hosts, 0, "after").await, Reply::bulk("all"));
    hosts[0].node().stop().await.unwrap();
}
