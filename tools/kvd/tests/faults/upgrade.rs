//! Nodes of an older version beside the present one, while they are upgraded one by one.

use std::time::{Duration, Instant};

use crate::client::{Answer, Connection};
use crate::hosts::Hosts;
use crate::runs::{Clients, Reading};

const OLD: [&str; 2] = ["--test-version", "1"];
/// For anything that nodes do by themselves. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the leader answers to a command that the first version does not have.
fn later(hosts: &Hosts) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leader = hosts.clients()[hosts.leader(0)];
        match Connection::open(leader).and_then(|mut open| open.ask(&["SETRANGE", "later", "1", "b"])) {
            Ok(Answer::Refused(reason)) if !reason.contains("version") => {}
            Ok(answer) => return answer,
            Err(_) => {}
        }
        assert!(Instant::now() < deadline, "nobody leads");
    }
}

#[test]
fn nodes_are_upgraded_one_by_one_under_load() {
    let mut hosts = Hosts::start_with(3, 1, &OLD);
    let clients = Clients::start(&hosts, Reading::Linearizable);
    clients.wait("nodes of the first version");
    // The leader last, and once more: it hands its lead over to an older and to a newer node.
    let leader = hosts.leader(0);
    for at in hosts.others(leader).into_iter().chain([leader]) {
        let refused = later(&hosts);
        assert!(matches!(&refused, Answer::Refused(reason) if reason.contains("needs version 2")), "{refused:?}");
        hosts.hand_over(0, at);
        clients.wait("an older node leads");
        hosts.terminate(at);
        clients.wait("a node away");
        hosts.run(at);
        hosts.hand_over(0, at);
        clients.wait("a newer node leads");
    }
    let deadline = Instant::now() + PATIENCE;
    while later(&hosts) != Answer::Text("2".to_owned()) {
        assert!(Instant::now() < deadline, "the cluster has the first version for ever");
    }
    clients.wait("all nodes newer");
    // Back again is no way.
    let follower = hosts.others(hosts.leader(0))[0];
    hosts.terminate(follower);
    let end = hosts.run_in_vain(follower, &OLD);
    assert!(end.contains("version 2, and this kvd knows versions up to 1: use a newer one"), "{end}");
    hosts.run(follower);
    clients.wait("the node newer again");
    assert_eq!(clients.end(), Vec::<usize>::new(), "histories that no single copy could have shown");
}
