//! Nodes that the others do not reach, or not where they were.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::cluster::{Host, PATIENCE, get, hosts, leader, read, until, write};
use crate::error::Error;
use crate::machine::Reply;
use crate::raft::{Cluster, Command, Member};
use crate::replica::{NodeId, Replica};

/// An address at which nobody listens.
const NOWHERE: &str = "127.0.0.1:1";

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_the_others_do_not_reach_gives_up_its_lead() {
    let mut hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let leads = leader(&hosts, 0).await;
    let id = hosts[leads].settings.id;
    for away in [1, 2] {
        let other = (leads + away) % 3;
        hosts[other].node.take().unwrap().stop().await.unwrap();
        hosts[other].settings.routes.insert(id, NOWHERE.to_owned());
        hosts[other].start().await;
    }
    // It reaches them.
    let other = hosts[(leads + 1) % 3].node();
    let is_another = |node: &Cluster| node.leader(0).is_some_and(|leader| leader != id);
    until(other, "another leader", is_another).await;
    until(hosts[leads].node(), "knows it", is_another).await;
    let term = other.status(0).term;
    for number in 0..30 {
        write(&hosts, 0, "a", &number.to_string()).await;
        sleep(Duration::from_millis(100)).await;
    }
    assert!(is_another(other) && other.status(0).term == term, "{:?}", other.report());
    // It has not even stood for election.
    assert_eq!(hosts[leads].node().status(0).term, term);
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_hands_its_leads_over_and_takes_none_back() {
    let hosts = hosts(3, 3).await;
    for group in 0..3 {
        leader(&hosts, group).await;
    }
    for host in &hosts[..2] {
        host.node().retire().await;
        let id = host.settings.id;
        for group in 0..3 {
            until(hosts[2].node(), "another leader", |node| node.leader(group).is_some_and(|leader| leader != id))
                .await;
        }
    }
    sleep(Duration::from_secs(2)).await;
    for group in 0..3 {
        assert_eq!(hosts[2].node().leader(group), Some(3));
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

/// Whether a node knows by the membership of all groups where another one is.
fn knows(node: &Cluster, id: NodeId, member: &Member) -> bool {
    node.report().groups.iter().all(|group| group.members.iter().any(|(of, at, _)| *of == id && at == member))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_at_another_address_is_found_there() {
    let mut hosts = hosts(3, 2).await;
    for group in 0..2 {
        write(&hosts, group, "a", "1").await;
    }
    // The leader, the next leader, and so on.
    for round in 0..3_u64 {
        let moved = leader(&hosts, 0).await;
        hosts[moved].move_away().await;
        let (id, member) = (hosts[moved].settings.id, hosts[moved].settings.member.clone());
        for host in &hosts {
            until(host.node(), "the address", |node| knows(node, id, &member)).await;
        }
        for group in 0..2 {
            let key = format!("key {round}");
            write(&hosts, group, &key, "1").await;
            until(hosts[moved].node(), "caught up", |node| get(node, group, &key) == Reply::bulk("1")).await;
        }
        let clients = hosts[(moved + 1) % 3].node().nodes();
        assert!(clients.iter().any(|node| node.id == id && member.resp.ends_with(&format!(":{}", node.port))));
        // Commands to it, and about it.
        hosts[moved].command(Command::Transfer { group: 0, to: id }).await.unwrap();
        hosts[(moved + 1) % 3].command(Command::Transfer { group: 1, to: id }).await.unwrap();
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_the_leader_does_not_reach_is_not_taken_from_a_node_but_from_an_operator() {
    let mut hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let leads = leader(&hosts, 0).await;
    let moved = (leads + 1) % 3;
    let before = hosts[moved].settings.member.clone();
    hosts[moved].node.take().unwrap().stop().await.unwrap();
    let id = hosts[moved].settings.id;
    // It says that it is nowhere, and listens where it was.
    let listener = loop {
        match TcpListener::bind(&before.raft).await {
            Ok(listener) => break listener,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    };
    let mut settings = hosts[moved].settings.clone();
    settings.member.raft = NOWHERE.to_owned();
    settings.store = settings.store.file_system(std::sync::Arc::new(hosts[moved].fs.clone()));
    let node = Cluster::start(settings, listener).await.unwrap();
    write(&hosts, 0, "a", "2").await;
    until(&node, "caught up", |node| get(node, 0, "a") == Reply::bulk("2")).await;
    sleep(Duration::from_secs(2)).await;
    assert!(knows(hosts[leads].node(), id, &before));
    let said = Member { raft: "nowhere:1".to_owned(), resp: "nowhere:2".to_owned() };
    // Any node passes the command on.
    hosts[(leads + 2) % 3].command(Command::SetAddress { id, member: said.clone() }).await.unwrap();
    until(hosts[leads].node(), "the address", |node| knows(node, id, &said)).await;
    let unknown = hosts[leads].command(Command::SetAddress { id: 42, member: said }).await.unwrap_err().to_string();
    assert!(unknown.contains("node 42 is no member of the cluster"), "{unknown}");
    node.stop().await.unwrap();
    for host in hosts.iter().filter(|host| host.node.is_some()) {
        host.node().stop().await.unwrap();
    }
}

/// Waits until a node says that it was removed.
async fn removed(host: &Host) {
    let failure = timeout(PATIENCE, host.node().failed()).await.expect("it learns that it was removed");
    assert!(matches!(failure, Error::Removed(id) if id == host.settings.id), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_node_learns_that_and_no_other_does() {
    let mut hosts = hosts(4, 2).await;
    write(&hosts, 0, "a", "1").await;
    let error = hosts[0].command(Command::Remove { id: 42 }).await.unwrap_err().to_string();
    assert!(error.contains("node 42 is no member of the cluster"), "{error}");
    // A leader is removed.
    let leads = leader(&hosts, 0).await;
    let gone = hosts.swap_remove(leads);
    hosts[0].command(Command::Remove { id: gone.settings.id }).await.unwrap();
    removed(&gone).await;
    let again = hosts[0].command(Command::Remove { id: gone.settings.id }).await.unwrap_err().to_string();
    assert!(again.contains("is no member"), "{again}");
    gone.node().stop().await.unwrap();
    // A node is removed while it is away, and comes back at another address.
    let leads = leader(&hosts, 0).await;
    let mut gone = hosts.swap_remove((leads + 1) % 3);
    gone.node.take().unwrap().stop().await.unwrap();
    hosts[0].command(Command::Remove { id: gone.settings.id }).await.unwrap();
    gone.start().await;
    removed(&gone).await;
    gone.node().stop().await.unwrap();
    // One that gives up its replicas stays in the cluster, and so do those that are left.
    for group in 0..2 {
        let leads = hosts[0].node().leader(group);
        let leave = vec![hosts[1].settings.id];
        hosts[0].command(Command::Move { group, join: Vec::new(), leave }).await.unwrap_or_else(|error| {
            panic!("group {group}, led by {leads:?}: {error}");
        });
    }
    for host in &hosts {
        assert!(timeout(Duration::from_secs(5), host.node().failed()).await.is_err());
    }
    assert_eq!(read(&hosts, 0, "a").await, Reply::bulk("1"));
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_made_has_leaders() {
    let hosts = hosts(3, 5).await;
    for group in 0..5 {
        assert!(hosts[0].node().leader(group).is_some(), "{:?}", hosts[0].node().report());
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

/// Passes connections on to `to`, until it is aborted. Returns its address.
async fn relay(to: String) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let pass = async move {
        // Ends with the task.
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let to = to.clone();
            connections.spawn(async move {
                if let Ok(mut node) = TcpStream::connect(to).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut node).await;
                }
            });
        }
    };
    (address, tokio::spawn(pass))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_the_others_do_not_reach_does_not_stand_for_election() {
    let mut hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let (id, raft) = (hosts[0].settings.id, hosts[0].settings.member.raft.clone());
    let (address, relay) = relay(raft).await;
    for host in &mut hosts[1..] {
        host.node.take().unwrap().stop().await.unwrap();
        host.settings.routes.insert(id, address.clone());
        host.start().await;
    }
    leader(&hosts, 0).await;
    let to = hosts[1].settings.id;
    hosts[2].command(Command::Transfer { group: 0, to }).await.unwrap();
    write(&hosts, 0, "a", "2").await;
    until(hosts[0].node(), "caught up", |node| get(node, 0, "a") == Reply::bulk("2")).await;
    // Its log is not behind, and its messages arrive.
    relay.abort();
    let term = hosts[1].node().status(0).term;
    sleep(Duration::from_secs(3)).await;
    for host in &hosts {
        assert_eq!(host.node().status(0).term, term);
    }
    assert_eq!(hosts[1].node().leader(0), Some(to));
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_no_leader_reaches_is_not_ready() {
    let mut hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let follows = (leader(&hosts, 0).await + 1) % 3;
    let node = Arc::clone(hosts[follows].node());
    until(&node, "ready", |node| node.why_not_ready().is_none()).await;
    for away in [1, 2] {
        hosts[(follows + away) % 3].node.take().unwrap().stop().await.unwrap();
    }
    until(&node, "not ready", |node| node.why_not_ready().is_some()).await;
    for away in [1, 2] {
        hosts[(follows + away) % 3].start().await;
    }
    until(&node, "ready", |node| node.why_not_ready().is_none()).await;
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}
