//! Nodes in one process, on loopback.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tamis::Options;
use tamis::vfs::SimFileSystem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::error::Error;
use crate::link::Trust;
use crate::machine::{Body, Condition, Deadline, Operation, Query, Reply, Request, SetAnswer, Version};
use crate::raft::{Cluster, Command, FreeSpace, Member, Settings, Wall, command, recover};
use crate::replica::{NodeId, ReadError, Replica, WriteError};

/// For anything that a healthy cluster does by itself. Nothing is measured by it.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A node that can be stopped and started again.
pub(super) struct Host {
    /// Bound to the node's address and never listening: while the node is stopped, the system gives
    /// its port to nobody.
    _port: TcpSocket,
    pub(super) settings: Settings,
    pub(super) fs: SimFileSystem,
    pub(super) node: Option<Arc<Cluster>>,
}

impl Host {
    pub(super) async fn new(id: NodeId, groups: u32) -> Host {
        Host::of(id, groups, Version::LATEST).await
    }

    /// A node of an older version.
    pub(super) async fn of(id: NodeId, groups: u32, version: Version) -> Host {
        let (port, raft) = port();
        let fs = SimFileSystem::new();
        let settings = Settings {
            id,
            dir: "/db".into(),
            member: Member { raft, resp: format!("127.0.0.1:{}", 7000 + id) },
            trust: Trust::new(Some(b"for tests".to_vec()), None),
            routes: HashMap::new(),
            groups,
            heartbeat: Duration::from_millis(100),
            snapshot_after: 40,
            keep_log: 20,
            sync_delay: Duration::ZERO,
            skip_sync: false,
            version,
            reserve: 0,
            free_space: FreeSpace::default(),
            wall: Wall::default(),
            store: Options::new().memtable_size(1 << 20),
        };
        let mut host = Host { _port: port, settings, fs, node: None };
        host.start().await;
        host
    }

    /// Stops the node, and starts it at another address.
    pub(super) async fn move_away(&mut self) {
        self.node.take().unwrap().stop().await.unwrap();
        let (port, raft) = port();
        let resp = raft.clone();
        (self._port, self.settings.member) = (port, Member { raft, resp });
        self.start().await;
    }

    pub(super) async fn start(&mut self) {
        self.try_start().await.unwrap();
    }

    pub(super) async fn try_start(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        let listener = loop {
            match TcpListener::bind(&self.settings.member.raft).await {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            sleep(Duration::from_millis(50)).await;
        };
        let mut settings = self.settings.clone();
        settings.store = settings.store.file_system(Arc::new(self.fs.clone()));
        self.node = Some(Cluster::start(settings, listener).await?);
        Ok(())
    }

    /// Stops the node, and takes from its disk what a power cut takes.
    pub(super) async fn cut_power(&mut self, seed: u64) {
        self.fs = self.fs.crash(seed);
        if let Some(node) = self.node.take() {
            // What it still writes goes to the disk that it had. A store that has failed says so.
            let _ = node.stop().await;
        }
    }

    pub(super) fn node(&self) -> &Arc<Cluster> {
        self.node.as_ref().unwrap()
    }

    pub(super) async fn command(&self, it: Command) -> Result<(), Error> {
        command(&self.settings.trust, &self.settings.member.raft, it).await.map(drop)
    }
}

/// A socket with an address of its own that never listens, and the address.
fn port() -> (TcpSocket, String) {
    let port = TcpSocket::new_v4().unwrap();
    port.set_reuseaddr(true).unwrap();
    port.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = port.local_addr().unwrap().to_string();
    (port, address)
}

pub(super) async fn hosts(count: u64, groups: u32) -> Vec<Host> {
    hosts_as(count, groups, Version::LATEST).await
}

/// A cluster of nodes of an older version.
pub(super) async fn hosts_as(count: u64, groups: u32, version: Version) -> Vec<Host> {
    let mut hosts = Vec::new();
    for id in 1..=count {
        hosts.push(Host::of(id, groups, version).await);
    }
    let others = hosts[1..].iter().map(|host| (host.settings.id, host.settings.member.clone())).collect();
    hosts[0].command(Command::Init { others }).await.unwrap();
    hosts
}

pub(super) fn set(key: &str, value: &str) -> Request {
    let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
    let (condition, deadline, answer) = (Condition::Always, Deadline::None, SetAnswer::Ok);
    Request::new(Body::Run(Operation::Set { key, value, condition, deadline, answer }))
}

/// Has any node that leads write, until it is acknowledged. Setting a key again does no harm.
pub(super) async fn write(hosts: &[Host], group: u32, key: &str, value: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for host in hosts.iter().filter_map(|host| host.node.as_ref()) {
            match host.write(group, set(key, value)).await {
                Ok(reply) => return assert_eq!(reply, Reply::OK),
                Err(error) => assert!(Instant::now() < deadline, "{key}: {error}"),
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Reads from whichever node leads.
pub(super) async fn read(hosts: &[Host], group: u32, key: &str) -> Reply {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for host in hosts.iter().filter_map(|host| host.node.as_ref()) {
            match host.barrier(group).await {
                Ok(()) => return get(host, group, key),
                Err(error) => assert!(Instant::now() < deadline, "{key}: {error}"),
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

pub(super) fn get(node: &Cluster, group: u32, key: &str) -> Reply {
    node.group(group)
        .unwrap()
        .state
        .machine()
        .read(&Query::Get(Bytes::copy_from_slice(key.as_bytes())), 0)
        .unwrap()
        .reply
}

/// Waits until something holds of a node.
pub(super) async fn until(node: &Cluster, what: &str, holds: impl Fn(&Cluster) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds(node) {
        assert!(Instant::now() < deadline, "{what}: {:?}", node.report());
        sleep(Duration::from_millis(20)).await;
    }
}

pub(super) async fn leader(hosts: &[Host], group: u32) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for (at, host) in hosts.iter().enumerate() {
            if let Some(node) = &host.node
                && node.barrier(group).await.is_ok()
            {
                return at;
            }
        }
        assert!(Instant::now() < deadline, "no leader");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_the_leader_and_a_power_cut_of_all() {
    let mut hosts = hosts(3, 2).await;
    for group in 0..2 {
        write(&hosts, group, "a", "1").await;
        let leads = leader(&hosts, group).await;
        // A follower refuses, and says who leads.
        let follows = hosts[(leads + 1) % 3].node();
        let leader = Some(hosts[leads].settings.id);
        until(follows, "knows the leader", |node| node.leader(group) == leader).await;
        let refused = WriteError::NotLeader { leader };
        assert_eq!(follows.write(group, set("a", "2")).await, Err(refused));
        assert!(matches!(follows.barrier(group).await, Err(ReadError::NotLeader { .. })));
        until(follows, "fresh", |node| node.staleness(group).is_some_and(|age| age < PATIENCE)).await;
        until(follows, "applied", |node| get(node, group, "a") == Reply::bulk("1")).await;
        hosts[leads].cut_power(u64::from(group)).await;
        write(&hosts, group, "b", "2").await;
        assert_eq!(read(&hosts, group, "a").await, Reply::bulk("1"));
        hosts[leads].start().await;
        until(hosts[leads].node(), "caught up", |node| get(node, group, "b") == Reply::bulk("2")).await;
    }
    for host in &mut hosts {
        host.cut_power(7).await;
    }
    for host in &mut hosts {
        host.start().await;
    }
    for group in 0..2 {
        for (key, value) in [("a", "1"), ("b", "2")] {
            assert_eq!(read(&hosts, group, key).await, Reply::bulk(value));
        }
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_starts_again_reads_all_that_was_acknowledged() {
    let mut hosts = hosts(3, 1).await;
    // Between the start and the first entry that is committed, there is time for reads.
    for host in &mut hosts {
        host.settings.sync_delay = Duration::from_millis(50);
    }
    for round in 0..4_u64 {
        write(&hosts, 0, "a", &round.to_string()).await;
        for host in &mut hosts {
            host.cut_power(round).await;
        }
        for host in &mut hosts {
            host.start().await;
        }
        let nodes: Vec<_> = hosts.iter().map(|host| Arc::clone(host.node())).collect();
        let writer = tokio::spawn(async move {
            for node in nodes.iter().cycle() {
                let _ = timeout(Duration::from_millis(1), node.write(0, set("b", "1"))).await;
            }
        });
        assert_eq!(read(&hosts, 0, "a").await, Reply::bulk(round.to_string()), "round {round}");
        writer.abort();
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_grows_and_shrinks_while_it_serves() {
    let mut hosts = hosts(3, 2).await;
    // More than the log keeps: the new nodes need snapshots.
    for number in 0..100 {
        write(&hosts, number % 2, &format!("key {number}"), &number.to_string()).await;
    }
    for host in &hosts {
        until(host.node(), "purged", |node| node.report().groups.iter().all(|group| group.purged > 0)).await;
    }
    for (at, id) in [(3, 4), (4, 5)] {
        hosts.push(Host::new(id, 2).await);
        let member = hosts[at].settings.member.clone();
        hosts[at % 3].command(Command::Add { id, member, learner: false }).await.unwrap();
        write(&hosts, 0, "added", &id.to_string()).await;
    }
    for number in 0..100 {
        let reply = Reply::bulk(number.to_string());
        until(hosts[4].node(), "a snapshot", |node| get(node, number % 2, &format!("key {number}")) == reply).await;
    }
    let voters = |node: &Cluster, group| node.status(group).voters.len();
    until(hosts[4].node(), "five voters", |node| voters(node, 0) == 5 && voters(node, 1) == 5).await;
    // Two fail at once, one of them for ever.
    hosts[0].cut_power(1).await;
    hosts[1].cut_power(2).await;
    write(&hosts, 0, "with two of five away", "yes").await;
    hosts[1].start().await;
    hosts[2].command(Command::Remove { id: 1 }).await.unwrap();
    hosts[2].command(Command::Remove { id: 2 }).await.unwrap();
    until(hosts[4].node(), "three voters", |node| voters(node, 0) == 3 && voters(node, 1) == 3).await;
    write(&hosts[2..], 1, "with three", "yes").await;
    assert_eq!(read(&hosts[2..], 0, "with two of five away").await, Reply::bulk("yes"));
    for host in &hosts[1..] {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_majority_promises_nothing() {
    let mut hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let leads = leader(&hosts, 0).await;
    for away in [1, 2] {
        hosts[(leads + away) % 3].cut_power(away as u64).await;
    }
    let alone = Arc::clone(hosts[leads].node());
    assert!(matches!(alone.barrier(0).await, Err(ReadError::NoQuorum(_) | ReadError::NotLeader { .. })));
    // The read has waited for longer than the others would for a leader.
    let last = alone.status(0).last_index;
    let outcome = alone.write(0, set("a", "2")).await;
    assert!(matches!(outcome, Err(WriteError::NotLeader { .. })), "{outcome:?}");
    assert_eq!(alone.status(0).last_index, last);
    for away in [1, 2] {
        hosts[(leads + away) % 3].start().await;
    }
    assert_eq!(read(&hosts, 0, "a").await, Reply::bulk("1"));
    write(&hosts, 0, "a", "3").await;
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_outlasts_rounds_that_no_majority_answers() {
    let mut hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let deadline = Instant::now() + PATIENCE;
    for seed in 0.. {
        let leads = leader(&hosts, 0).await;
        for away in [1, 2] {
            hosts[(leads + away) % 3].cut_power(seed).await;
        }
        let alone = Arc::clone(hosts[leads].node());
        let read = tokio::spawn(async move { alone.barrier(0).await });
        // For the first round to fail, which begins at once and takes one heartbeat.
        sleep(Duration::from_millis(300)).await;
        for away in [1, 2] {
            hosts[(leads + away) % 3].start().await;
        }
        match read.await.unwrap() {
            Ok(()) | Err(ReadError::NotLeader { .. }) => break,
            // A slow machine may need more than the read's time.
            error => assert!(Instant::now() < deadline, "{error:?}"),
        }
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_has_lost_its_disk_votes_for_nobody_before_it_is_added_anew() {
    let mut hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let leads = leader(&hosts, 0).await;
    let (wiped, other) = ((leads + 1) % 3, (leads + 2) % 3);
    hosts[wiped].cut_power(1).await;
    hosts[wiped].fs = SimFileSystem::new();
    hosts[wiped].start().await;
    // With the wiped node's vote, the third could lead, and with its log, the wiped one could hold
    // a majority without what was acknowledged.
    hosts[leads].cut_power(2).await;
    let alone = Arc::clone(hosts[other].node());
    assert!(matches!(alone.barrier(0).await, Err(ReadError::NotLeader { .. })));
    assert_eq!(hosts[wiped].node().status(0).last_index, 0);
    hosts[leads].start().await;
    write(&hosts, 0, "b", "2").await;
    let (id, member) = (hosts[wiped].settings.id, hosts[wiped].settings.member.clone());
    let add = Command::Add { id, member, learner: false };
    let error = hosts[other].command(add.clone()).await.unwrap_err().to_string();
    assert!(error.contains("its store is new; remove it"), "{error}");
    hosts[other].command(Command::Remove { id }).await.unwrap();
    hosts[other].command(add).await.unwrap();
    until(hosts[wiped].node(), "caught up", |node| get(node, 0, "b") == Reply::bulk("2")).await;
    // A learner has acknowledged what it had, too.
    hosts.push(Host::new(5, 1).await);
    let (id, member) = (5, hosts[3].settings.member.clone());
    hosts[other].command(Command::Add { id, member: member.clone(), learner: true }).await.unwrap();
    hosts[3].cut_power(3).await;
    hosts[3].fs = SimFileSystem::new();
    hosts[3].start().await;
    let error = hosts[other].command(Command::Add { id, member, learner: false }).await.unwrap_err().to_string();
    assert!(error.contains("its store is new; remove it"), "{error}");
    hosts[other].command(Command::Remove { id }).await.unwrap();
    // A node of another cluster is not taken over.
    let mut strangers = vec![Host::new(9, 1).await];
    strangers[0].command(Command::Init { others: Vec::new() }).await.unwrap();
    let (id, member) = (9, strangers[0].settings.member.clone());
    let error = hosts[other].command(Command::Add { id, member, learner: true }).await.unwrap_err().to_string();
    assert!(error.contains("in another cluster"), "{error}");
    hosts.append(&mut strangers);
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_survivor_becomes_a_cluster() {
    let mut hosts = hosts(3, 2).await;
    for number in 0..100 {
        write(&hosts, number % 2, &format!("key {number}"), &number.to_string()).await;
    }
    // What a majority has acknowledged is on one of any two; this one has it all.
    let survivor = leader(&hosts, 0).await;
    let goal = hosts[leader(&hosts, 1).await].node().status(1).committed_index;
    until(hosts[survivor].node(), "caught up", |node| node.status(1).applied_index >= goal).await;
    for host in &mut hosts {
        host.cut_power(5).await;
    }
    let mut lone = hosts.swap_remove(survivor);
    drop(hosts);
    (lone.settings.id, lone.settings.dir) = (7, "/recovered".into());
    let (options, from) = (Options::new().file_system(Arc::new(lone.fs.clone())), std::path::Path::new("/db"));
    let recovered = recover(&options, from, &lone.settings.dir, 7, &lone.settings.member).unwrap();
    assert!(recovered.iter().all(|group| group.applied + group.from_log >= 50), "{recovered:?}");
    let again = recover(&options, from, &lone.settings.dir, 7, &lone.settings.member).unwrap_err().to_string();
    assert!(again.contains("is not empty"), "{again}");
    // Another program's store stays as it is.
    options.clone().open("/foreign").unwrap().put("key", "value").unwrap();
    let foreign = recover(&options, from, "/foreign".as_ref(), 7, &lone.settings.member).unwrap_err().to_string();
    assert!(foreign.contains("is not empty"), "{foreign}");
    assert_eq!(options.clone().open("/foreign").unwrap().keyspace_names().unwrap().len(), 1);
    let nothing = recover(&options, std::path::Path::new("/nothing"), "/other".as_ref(), 7, &lone.settings.member);
    assert!(nothing.is_err());
    lone.start().await;
    let mut hosts = vec![lone, Host::new(8, 2).await];
    let (id, member) = (8, hosts[1].settings.member.clone());
    hosts[0].command(Command::Add { id, member, learner: false }).await.unwrap();
    write(&hosts, 1, "after", "all").await;
    hosts[1].cut_power(9).await;
    hosts[1].start().await;
    for number in 0..100 {
        assert_eq!(read(&hosts, number % 2, &format!("key {number}")).await, Reply::bulk(number.to_string()));
        let reply = Reply::bulk(number.to_string());
        until(hosts[1].node(), "caught up", |node| get(node, number % 2, &format!("key {number}")) == reply).await;
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_ends_a_node_and_no_promise() {
    let mut hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let leads = leader(&hosts, 0).await;
    hosts[leads].fs.set_capacity(Some(0));
    let failing = Arc::clone(hosts[leads].node());
    for number in 0..20 {
        write(&hosts, 0, &format!("key {number}"), &"long ".repeat(100_000)).await;
    }
    let error = failing.failed().await.to_string();
    assert!(error.contains("group 0"), "{error}");
    hosts[leads].fs.set_capacity(None);
    hosts[leads].cut_power(3).await;
    hosts[leads].start().await;
    let back = hosts[leads].node();
    until(back, "caught up", |node| get(node, 0, "key 19") != Reply::Nil).await;
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

/// Relays connections to `to`, with a pause after every 16 KiB. Returns its address.
async fn slow_link(to: String, pause: Duration) -> String {
    async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, pause: Duration) {
        let mut bytes = [0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut bytes).await
            && to.write_all(&bytes[..len]).await.is_ok()
        {
            sleep(pause).await;
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&to).await else { continue };
            let ((from, back_to), (back_from, to)) = (client.into_split(), server.into_split());
            tokio::spawn(pass(from, to, pause));
            tokio::spawn(pass(back_from, back_to, pause));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_takes_longer_than_a_heartbeat_arrives() {
    let mut hosts = hosts(3, 1).await;
    let members: Vec<_> = hosts.iter().map(|host| (host.settings.id, host.settings.member.raft.clone())).collect();
    for host in &mut hosts {
        host.node.take().unwrap().stop().await.unwrap();
        for (id, raft) in &members {
            host.settings.routes.insert(*id, slow_link(raft.clone(), Duration::from_millis(4)).await);
        }
    }
    for host in &mut hosts {
        host.start().await;
    }
    // 153 pauses, which are at least six heartbeats.
    let long = "long ".repeat(500_000);
    for key in ["a", "b"] {
        write(&hosts, 0, key, &long).await;
    }
    for host in &hosts {
        until(host.node(), "the entries", |node| get(node, 0, "b") == Reply::bulk(long.clone())).await;
    }
    // Not before: the last node to have the entries gets them from another one.
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_while_more_is_written_than_the_log_keeps() {
    let mut hosts = hosts(1, 1).await;
    for number in 0..12 {
        write(&hosts, 0, &format!("long {number}"), &"long ".repeat(100_000)).await;
    }
    hosts.push(Host::new(2, 1).await);
    hosts[0].node.take().unwrap().stop().await.unwrap();
    let member = hosts[1].settings.member.clone();
    // 366 pauses for the snapshot, in which hundreds of entries are written. The log keeps 20.
    hosts[0].settings.routes.insert(2, slow_link(member.raft.clone(), Duration::from_millis(20)).await);
    hosts[0].start().await;
    leader(&hosts[..1], 0).await;
    let writing = Arc::clone(hosts[0].node());
    let writer = tokio::spawn(async move {
        for number in 0u64.. {
            let _ = writing.write(0, set("short", &number.to_string())).await;
            sleep(Duration::from_millis(2)).await;
        }
    });
    until(hosts[0].node(), "purged", |node| node.report().groups[0].purged > 20).await;
    let add = hosts[0].command(Command::Add { id: 2, member, learner: false });
    timeout(PATIENCE, add).await.expect("the node gets one snapshot after the other").unwrap();
    writer.abort();
    write(&hosts, 0, "after", "all").await;
    until(hosts[1].node(), "caught up", |node| get(node, 0, "after") == Reply::bulk("all")).await;
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_belongs_to_one_node_and_a_cluster_begins_once() {
    let mut hosts = hosts(1, 3).await;
    let error = hosts[0].command(Command::Init { others: Vec::new() }).await.unwrap_err();
    assert!(error.to_string().contains("in a cluster already"), "{error}");
    write(&hosts, 2, "a", "1").await;
    hosts[0].node.take().unwrap().stop().await.unwrap();
    let mut settings = hosts[0].settings.clone();
    settings.id = 2;
    settings.store = settings.store.file_system(Arc::new(hosts[0].fs.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = Cluster::start(settings, listener).await.err().unwrap().to_string();
    assert!(error.contains("belongs to node 1, not to node 2"), "{error}");
    // The number of groups is that of the first start.
    hosts[0].settings.groups = 1;
    hosts[0].start().await;
    assert_eq!(hosts[0].node().groups(), 3);
    assert_eq!(read(&hosts, 2, "a").await, Reply::bulk("1"));
    hosts[0].node().stop().await.unwrap();
}
