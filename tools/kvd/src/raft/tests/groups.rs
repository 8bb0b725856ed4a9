//! Many groups: one stream of heartbeats for all of them.

use std::time::Duration;

use tokio::time::sleep;

use super::cluster::{get, hosts, leader, read, set, until, write};
use crate::machine::Reply;
use crate::raft::library::Raft;
use crate::raft::types::Vote;
use crate::raft::wire::{Answer, LedGroup};
use crate::replica::Replica;

const GROUPS: u32 = 24;

#[tokio::test(flavor = "multi_thread")]
async fn groups_without_writes_sleep_and_keep_their_leaders() {
    let hosts = hosts(3, GROUPS).await;
    for group in 0..GROUPS {
        write(&hosts, group, "a", "1").await;
    }
    for host in &hosts {
        for group in 0..GROUPS {
            until(host.node(), "applied", |node| get(node, group, "a") == Reply::bulk("1")).await;
        }
    }
    // Whatever was on its way has arrived by then.
    sleep(Duration::from_secs(1)).await;
    let cores = |at: usize| hosts[at].node().all().map(|(_, group)| group.raft.clone());
    let rafts: Vec<Raft> = (0..hosts.len()).flat_map(cores).collect();
    let mut seen: Vec<_> = rafts.iter().map(Raft::metrics).collect();
    seen.iter_mut().for_each(|metrics| drop(metrics.borrow_and_update()));
    let terms: Vec<u64> = seen.iter().map(|metrics| metrics.borrow().current_term).collect();
    // Ten times as long as a follower waits.
    sleep(Duration::from_secs(6)).await;
    // A core that wakes tells its metrics.
    let awake = seen.iter().filter(|metrics| metrics.has_changed().unwrap()).count();
    assert_eq!(awake, 0, "of {}", seen.len());
    assert_eq!(terms, seen.iter().map(|metrics| metrics.borrow().current_term).collect::<Vec<_>>());
    for host in &hosts {
        let ages = (0..GROUPS).map(|group| host.node().staleness(group).unwrap());
        assert!(ages.max().unwrap() < Duration::from_secs(3), "{:?}", host.node().report());
    }
    // Each serves at once.
    for group in 0..GROUPS {
        let mut refused = 0;
        for host in &hosts {
            refused += u32::from(host.node().write(group, set("a", "2")).await.is_err());
        }
        assert_eq!((refused, read(&hosts, group, "a").await), (2, Reply::bulk("2")));
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_gets_what_it_has_missed_though_nobody_writes() {
    let mut hosts = hosts(3, GROUPS).await;
    write(&hosts, 0, "a", "1").await;
    let away = (leader(&hosts, 0).await + 1) % 3;
    hosts[away].node.take().unwrap().stop().await.unwrap();
    for group in 0..GROUPS {
        write(&hosts, group, "a", "2").await;
    }
    // The library has given up what it has tried.
    sleep(Duration::from_secs(1)).await;
    hosts[away].start().await;
    for group in 0..GROUPS {
        until(hosts[away].node(), "caught up", |node| get(node, group, "a") == Reply::bulk("2")).await;
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_confirms_only_the_leader_to_which_it_has_promised_itself() {
    let hosts = hosts(3, 1).await;
    write(&hosts, 0, "a", "1").await;
    let leads = leader(&hosts, 0).await;
    let (node, follower) = (hosts[leads].node(), hosts[(leads + 1) % 3].node());
    until(follower, "applied", |node| get(node, 0, "a") == Reply::bulk("1")).await;
    let (id, status) = (hosts[leads].settings.id, node.report().groups[0].clone());
    let said = |term, last, from| match follower.beaten(from, &[LedGroup { group: 0, term, last }]) {
        Answer::Heartbeat { behind, apart } => (behind, apart),
        other => panic!("{other:?}"),
    };
    assert_eq!(said(status.term, status.last, id), (vec![], vec![]));
    assert_eq!(said(status.term, status.last + 1, id), (vec![0], vec![]));
    assert_eq!(said(status.term - 1, status.last, id), (vec![], vec![0]));
    assert_eq!(said(status.term, status.last, id % 3 + 1), (vec![], vec![0]));
    // As soon as it is about to promise itself to a candidate, and before that one knows.
    follower.group(0).unwrap().state.note_promised(Vote::new(status.term + 1, 3));
    assert_eq!(said(status.term, status.last, id), (vec![], vec![0]));
    // Nor does the leader itself, whatever others still say.
    assert_eq!(node.read_indexes(&[0]).await.len(), 1);
    node.group(0).unwrap().state.note_promised(Vote::new(status.term + 1, 3));
    assert!(node.read_indexes(&[0]).await.is_empty());
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_hangs_is_replaced() {
    let hosts = hosts(3, 2).await;
    write(&hosts, 0, "a", "1").await;
    let leads = leader(&hosts, 0).await;
    let (node, other) = (hosts[leads].node(), hosts[(leads + 1) % 3].node());
    let (id, term) = (hosts[leads].settings.id, node.status(0).term);
    let waiting = node.group(0).unwrap().state.progress().wait_for_disk();
    until(other, "another leader", |node| node.leader(0).is_some_and(|leader| leader != id)).await;
    assert!(other.status(0).term > term);
    drop(waiting);
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}
