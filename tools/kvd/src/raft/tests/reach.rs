//! Nodes that the others do not reach, or not where they were.

use std::time::Duration;

use tokio::time::sleep;

use super::cluster::{hosts, leader, until, write};
use crate::raft::Cluster;
use crate::replica::Replica;

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
