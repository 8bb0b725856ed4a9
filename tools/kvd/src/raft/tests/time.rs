//! The time of groups while clocks on the wall are wrong.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::cluster::{Host, PATIENCE, get, hosts, leader, read, until, write};
use crate::clock::wall_ms;
use crate::machine::{Body, Condition, Deadline, Entry, NewDeadline, Operation, Reply, Request, SetAnswer};
use crate::raft::types::Proposal;
use crate::raft::{Cluster, Command, is_off};
use crate::replica::Replica;

const DAY: i64 = 24 * 3600 * 1000;
/// For clocks that are right.
const NEAR: u64 = 2_000;

fn set(key: &str, deadline: NewDeadline) -> Request {
    let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::from("v"));
    let (condition, deadline, answer) = (Condition::Always, Deadline::New(deadline), SetAnswer::Ok);
    Request::new(Body::Run(Operation::Set { key, value, condition, deadline, answer }))
}

async fn write_until(hosts: &[Host], request: Request) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for host in hosts {
            match host.node().write(0, request.clone()).await {
                Ok(reply) => return assert_eq!(reply, Reply::OK),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Has a node lead, whatever else is going on.
async fn lead(hosts: &[Host], at: usize) {
    let (to, deadline) = (hosts[at].settings.id, Instant::now() + PATIENCE);
    while let Err(error) = hosts[(at + 1) % hosts.len()].command(Command::Transfer { group: 0, to }).await {
        assert!(Instant::now() < deadline, "{error}");
    }
}

fn off(node: &Cluster) -> u64 {
    let log_ms = node.group(0).unwrap().state.machine().time_ms();
    log_ms.abs_diff(wall_ms())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_never_enters_the_log() {
    let hosts = hosts(3, 1).await;
    write(&hosts, 0, "first", "1").await;
    for (at, jump) in [(0, DAY), (1, -DAY), (2, 70 * 365 * DAY), (0, -70 * 365 * DAY), (1, 1000)] {
        let host = &hosts[at];
        host.settings.wall.set_error(jump);
        let told = |node: &Cluster| node.report().clock_ahead_ms.is_some_and(|ahead| is_off(ahead) == is_off(jump));
        until(host.node(), "knows its clock", told).await;
        lead(&hosts, at).await;
        write(&hosts, 0, "led by", &at.to_string()).await;
        assert!(off(host.node()) < NEAR, "{jump}: {} ms", off(host.node()));
        write_until(&hosts, set("short", NewDeadline::In(300))).await;
        until(host.node(), "gone", |node| get(node, 0, "short") == Reply::Nil).await;
        host.settings.wall.set_error(0);
    }
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn time_goes_on_after_all_have_been_away() {
    let mut hosts = hosts(3, 1).await;
    write_until(&hosts, set("short", NewDeadline::In(1500))).await;
    write_until(&hosts, set("long", NewDeadline::In(60_000))).await;
    for host in &mut hosts {
        host.node.take().unwrap().stop().await.unwrap();
    }
    sleep(Duration::from_secs(2)).await;
    // One of them comes back with a wrong clock.
    hosts[0].settings.wall.set_error(DAY);
    for host in &mut hosts {
        host.start().await;
    }
    lead(&hosts, 0).await;
    write(&hosts, 0, "after", "all").await;
    assert!(off(hosts[0].node()) < NEAR, "{} ms", off(hosts[0].node()));
    assert_eq!(read(&hosts, 0, "short").await, Reply::Nil);
    assert_eq!(read(&hosts, 0, "long").await, Reply::bulk("v"));
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_time_is_ahead_goes_on_and_is_repaired() {
    let mut hosts = hosts(3, 1).await;
    let leads = leader(&hosts, 0).await;
    write_until(&hosts, set("before", NewDeadline::In(60_000))).await;
    // As a leader did whose time was its clock's.
    let ahead = wall_ms().saturating_add_signed(DAY);
    let (proposal, _) = Proposal::new(Entry { time_ms: ahead, requests: Vec::new() });
    hosts[leads].node().group(0).unwrap().raft.client_write(proposal).await.unwrap();
    assert_eq!(read(&hosts, 0, "before").await, Reply::Nil, "lost: that is the fault");
    for round in 0..2 {
        // Keys expire again, though the time is wrong.
        write_until(&hosts, set("short", NewDeadline::In(300))).await;
        write_until(&hosts, set("long", NewDeadline::In(60_000))).await;
        for host in &hosts {
            until(host.node(), "gone", |node| get(node, 0, "short") == Reply::Nil).await;
        }
        let status = hosts[round].node().report();
        assert!(status.groups[0].ahead_ms.unwrap().abs_diff(DAY) < 10_000, "{status:?}");
        for host in &mut hosts {
            host.node.take().unwrap().stop().await.unwrap();
        }
        for host in &mut hosts {
            host.start().await;
        }
        leader(&hosts, 0).await;
    }
    hosts[0].command(Command::SetTime).await.unwrap();
    let repaired = |node: &Cluster| node.report().groups[0].ahead_ms.is_some_and(|ahead| !is_off(ahead));
    for host in &hosts {
        until(host.node(), "repaired", repaired).await;
    }
    // Remaining lives stay, and times since 1970 are right.
    assert_eq!(read(&hosts, 0, "long").await, Reply::bulk("v"));
    let at = i64::try_from(wall_ms()).unwrap() + 1500;
    write_until(&hosts, set("at", NewDeadline::At(at))).await;
    assert_eq!(read(&hosts, 0, "at").await, Reply::bulk("v"));
    until(hosts[0].node(), "gone", |node| get(node, 0, "at") == Reply::Nil).await;
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}
