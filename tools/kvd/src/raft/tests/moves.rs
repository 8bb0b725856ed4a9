//! Leads and replicas that go from node to node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest};
use openraft::{CommittedLeaderId, EntryPayload, Membership};
use tokio::time::sleep;

use super::cluster::{Host, get, hosts, leader, read, set, until, write};
use crate::machine::Reply;
use crate::raft::library::Entry;
use crate::raft::network::Pool;
use crate::raft::types::{LogId, StoredMembership, Vote};
use crate::raft::wire::{Answer, Call, Lead};
use crate::raft::{Cluster, Command, GroupStatus};
use crate::rebalance::{Led, Move, Nodes, Placed, Transfer, plan, spread};
use crate::replica::{ReadError, Replica, WriteError};
use crate::store::Versions;

/// How many groups each node leads, by the report of one that knows a leader of each.
async fn leads(node: &Cluster, nodes: u64) -> Vec<usize> {
    let known = |node: &Cluster| node.report().groups.iter().all(|group| group.leader.is_some());
    until(node, "a leader of each group", known).await;
    let report = node.report();
    let count = |id| report.groups.iter().filter(|group| group.leader == Some(id)).count();
    (1..=nodes).map(count).collect()
}

/// Hands the lead to each node in turn while clients write, and compares what was acknowledged.
async fn hand_over_under_load(count: u64) {
    let hosts = Arc::new(hosts(count, 2).await);
    let ended = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (hosts, ended) = (Arc::clone(&hosts), Arc::clone(&ended));
            tokio::spawn(async move {
                let mut last = 0;
                while !ended.load(Ordering::Relaxed) {
                    last += 1;
                    write(&hosts, 1, &format!("writer {writer}"), &last.to_string()).await;
                }
                last
            })
        })
        .collect();
    for host in hosts.iter().chain(&hosts[..1]) {
        let to = host.settings.id;
        // Any node passes the command on.
        hosts[usize::from(to == 1)].command(Command::Transfer { group: 1, to }).await.unwrap();
        until(host.node(), "leads", |node| node.leader(1) == Some(to)).await;
        write(&hosts, 1, "led by", &to.to_string()).await;
    }
    ended.store(true, Ordering::Relaxed);
    for (writer, last) in writers.into_iter().enumerate() {
        let last = last.await.unwrap();
        assert_eq!(read(&hosts, 1, &format!("writer {writer}")).await, Reply::bulk(last.to_string()));
    }
    for host in &*hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_is_handed_over_among_three_nodes_under_load() {
    hand_over_under_load(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_is_handed_over_among_five_nodes_under_load() {
    hand_over_under_load(5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_is_not_handed_to_a_node_that_cannot_take_it() {
    let mut hosts = hosts(3, 1).await;
    hosts.push(Host::new(4, 1).await);
    let member = hosts[3].settings.member.clone();
    hosts[0].command(Command::Add { id: 4, member, learner: true }).await.unwrap();
    for to in [4, 7] {
        let error = hosts[0].command(Command::Transfer { group: 0, to }).await.unwrap_err().to_string();
        assert!(error.contains("is no voter of group 0"), "{error}");
    }
    let error = hosts[0].command(Command::Transfer { group: 5, to: 1 }).await.unwrap_err().to_string();
    assert!(error.contains("none is 5"), "{error}");
    let leads = leader(&hosts, 0).await;
    let (away, term) = ((leads + 1) % 3, hosts[leads].node().status(0).term);
    hosts[away].cut_power(1).await;
    let to = hosts[away].settings.id;
    hosts[leads].node().hand_over(0, to).await.unwrap_err();
    // It leads on, in the term that it had, and takes requests.
    write(&hosts, 0, "a", "1").await;
    assert_eq!(hosts[leads].node().status(0).term, term);
    for host in hosts.iter().filter_map(|host| host.node.as_ref()) {
        host.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leads_are_spread_evenly() {
    let hosts = hosts(3, 7).await;
    for group in 0..7 {
        hosts[0].command(Command::Transfer { group, to: 2 }).await.unwrap();
    }
    assert_eq!(leads(hosts[1].node(), 3).await, [0, 7, 0]);
    let voters = BTreeSet::from([1, 2, 3]);
    let groups: Vec<Led> = (0..7).map(|group| Led { group, leader: 2, voters: voters.clone() }).collect();
    for Transfer { group, to, .. } in plan(&groups) {
        hosts[0].command(Command::Transfer { group, to }).await.unwrap();
        until(hosts[0].node(), "leads", |node| node.leader(group) == Some(to)).await;
    }
    let mut spread = leads(hosts[0].node(), 3).await;
    spread.sort_unstable();
    assert_eq!(spread, [2, 2, 3]);
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

/// Moves replicas as `kvd rebalance` does, by commands to each node in turn.
async fn move_all(hosts: &[Host], nodes: &Nodes, replicas: Option<usize>) {
    let known = |node: &Cluster| node.report().groups.iter().all(|group| group.leader.is_some());
    until(hosts[0].node(), "a leader of each group", known).await;
    let report = hosts[0].node().report();
    let voters = |group: &GroupStatus| group.members.iter().filter(|(.., votes)| *votes).map(|(id, ..)| *id).collect();
    let placed: Vec<_> = report.groups.iter().map(|of| Placed { group: of.group, voters: voters(of) }).collect();
    let moves = spread(&placed, nodes, replicas);
    assert!(!moves.is_empty());
    for (Move { group, join, leave }, by) in moves.into_iter().zip((0..hosts.len()).cycle()) {
        let member = |id: u64| (id, hosts[usize::try_from(id).unwrap() - 1].settings.member.clone());
        let (join, leave) = (join.into_iter().map(member).collect(), leave.into_iter().collect());
        // A node that is in no cluster yet knows no leader.
        let by = if hosts[by].node().report().groups[0].leader.is_some() { by } else { 0 };
        hosts[by].command(Command::Move { group, join, leave }).await.unwrap();
    }
}

/// Of how many groups each node has a replica, as its own report says.
fn replicas(hosts: &[Host]) -> Vec<usize> {
    let count = |host: &Host| host.node().report().groups.iter().filter(|group| group.role != "none").count();
    hosts.iter().map(count).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_move_to_new_nodes_and_back_while_clients_write() {
    const GROUPS: u32 = 5;
    let mut all = hosts(3, GROUPS).await;
    for id in 4..=5 {
        all.push(Host::new(id, GROUPS).await);
    }
    // More than the log keeps: the new nodes need snapshots.
    for number in 0..60 * GROUPS {
        write(&all[..3], number % GROUPS, &format!("key {number}"), &number.to_string()).await;
    }
    let all = Arc::new(all);
    let ended = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..GROUPS)
        .map(|group| {
            let (all, ended) = (Arc::clone(&all), Arc::clone(&ended));
            tokio::spawn(async move {
                let mut last = 0;
                while !ended.load(Ordering::Relaxed) {
                    last += 1;
                    write(&all, group, "last", &last.to_string()).await;
                }
                last
            })
        })
        .collect();
    let check = async |all: &[Host]| {
        for number in 0..60 * GROUPS {
            assert_eq!(read(all, number % GROUPS, &format!("key {number}")).await, Reply::bulk(number.to_string()));
        }
    };
    move_all(&all, &Nodes { usable: (1..=5).collect(), leaving: BTreeSet::new() }, None).await;
    assert_eq!(replicas(&all), [3; 5]);
    check(&all).await;
    for host in &*all {
        for group in 0..GROUPS {
            // Every node finds the leader of every group,
            until(host.node(), "a leader", |node| node.leader(group).is_some()).await;
            if host.node().report().groups[group as usize].role == "none" {
                // says so to clients, has nothing of a group that it has left,
                let refused = host.node().write(group, set("a", "1")).await;
                assert!(matches!(refused, Err(WriteError::NotLeader { leader: Some(_) })), "{refused:?}");
                let refused = host.node().barrier(group).await;
                assert!(matches!(refused, Err(ReadError::NotLeader { leader: Some(_) })), "{refused:?}");
                assert_eq!(get(host.node(), group, "last"), Reply::Nil);
                assert_eq!(host.node().staleness(group), None);
            }
        }
        // and knows all others.
        assert_eq!(host.node().nodes().len(), 5);
    }
    // Node 1 goes.
    move_all(&all, &Nodes { usable: (2..=5).collect(), leaving: [1].into() }, None).await;
    assert_eq!(replicas(&all)[0], 0);
    assert!(replicas(&all)[1..].iter().all(|count| (3..=4).contains(count)), "{:?}", replicas(&all));
    // And comes back: everybody has everything.
    move_all(&all, &Nodes { usable: (1..=5).collect(), leaving: BTreeSet::new() }, Some(5)).await;
    ended.store(true, Ordering::Relaxed);
    let mut last = Vec::new();
    for writer in writers {
        last.push(writer.await.unwrap());
    }
    let mut all = Arc::into_inner(all).unwrap();
    assert_eq!(replicas(&all), [5; 5]);
    for host in &mut all {
        host.cut_power(11).await;
    }
    for host in &mut all {
        host.start().await;
    }
    check(&all).await;
    for (group, last) in (0..GROUPS).zip(last) {
        assert_eq!(read(&all, group, "last").await, Reply::bulk(last.to_string()));
        for host in &all {
            until(host.node(), "caught up", |node| get(node, group, "last") == Reply::bulk(last.to_string())).await;
        }
    }
    for host in &all {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_begins_late_vouches_for_nobody_who_has_missed_its_removal() {
    let mut hosts = hosts(3, 2).await;
    hosts.push(Host::new(4, 2).await);
    for group in 0..2 {
        write(&hosts, group, "a", "1").await;
    }
    hosts[0].command(Command::Transfer { group: 0, to: 1 }).await.unwrap();
    // Node 2 misses all that follows, and would take nodes 1 and 3 for the other voters.
    hosts[1].cut_power(1).await;
    let stale_term = hosts[0].node().status(0).term;
    let join = vec![(4, hosts[3].settings.member.clone())];
    hosts[0].command(Command::Move { group: 0, join, leave: vec![3] }).await.unwrap();
    assert_eq!(hosts[2].node().report().groups[0].role, "none");
    write(&hosts, 0, "b", "2").await;
    for restarted in [false, true] {
        if restarted {
            hosts[2].cut_power(2).await;
            hosts[2].start().await;
        }
        // The replica keeps the term of the leader that let it go,
        let late = hosts[2].node();
        let stale = LogId::new(CommittedLeaderId::new(stale_term, 1), 1_000);
        let before = AppendEntriesRequest {
            vote: Vote::new_committed(stale_term - 1, 2),
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: None,
        };
        let group = late.group(0).unwrap();
        let refused = group.raft.append_entries(before).await.unwrap();
        assert!(matches!(refused, AppendEntriesResponse::HigherVote(_)), "{refused:?}");
        // and votes for no candidate, though all logs are as long as its own.
        let candidate = VoteRequest { vote: Vote::new(stale_term + 10, 2), last_log_id: Some(stale) };
        let member = &hosts[2].settings.member;
        let pool = Pool::new(
            hosts[0].settings.trust.clone(),
            Arc::new(late.number().into()),
            HashMap::new(),
            Versions::default(),
        );
        let refused = pool.call(3, &member.raft, &Call::Vote { group: 0, request: candidate.clone() }).await;
        assert!(refused.unwrap_err().to_string().contains("does not say that it is a member"));
        // In the group that it has not left it answers candidates as ever.
        let answer = pool.call(3, &member.raft, &Call::Vote { group: 1, request: candidate }).await;
        assert!(matches!(answer, Ok(Answer::Vote(_))), "{answer:?}");
    }
    // The first entry of the log names it, and is older than its removal.
    let group = hosts[2].node().group(0).unwrap();
    let nodes: BTreeMap<_, _> =
        hosts[..3].iter().map(|host| (host.settings.id, host.settings.member.clone())).collect();
    let first = Entry {
        log_id: LogId::new(CommittedLeaderId::new(0, 0), 0),
        payload: EntryPayload::Membership(Membership::new(vec![[1, 2, 3].into()], nodes)),
    };
    let vote = Vote::new_committed(stale_term, 1);
    let append = AppendEntriesRequest { vote, prev_log_id: None, entries: vec![first], leader_commit: None };
    let appended = group.raft.append_entries(append).await.unwrap();
    assert!(matches!(appended, AppendEntriesResponse::Success), "{appended:?}");
    until(hosts[2].node(), "a member by an old entry", |_| group.is_member(3)).await;
    assert!(!group.may_vote(3));
    // Longer than a voter waits for its leader.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(group.status(0).term, stale_term);
    // A node that has been away when it was let go learns so from what it is told later.
    hosts[1].start().await;
    let join = vec![(3, hosts[2].settings.member.clone())];
    hosts[2].command(Command::Move { group: 0, join, leave: vec![2] }).await.unwrap();
    assert!(hosts[2].node().group(0).unwrap().may_vote(3));
    until(hosts[2].node(), "caught up", |node| get(node, 0, "b") == Reply::bulk("2")).await;
    // An old word of its removal does not remove it.
    let members = StoredMembership::new(None, Membership::new(vec![[1].into()], BTreeMap::new()));
    let lead = Lead { vote: Vote::new_committed(stale_term, 1), members };
    let error = hosts[2].node().leave(0, &lead).await.unwrap_err().to_string();
    assert!(error.contains("node 3 is a member of group 0"), "{error}");
    // The last voter stays.
    let leave = vec![1, 3, 4];
    let error = hosts[0].command(Command::Move { group: 0, join: Vec::new(), leave }).await.unwrap_err().to_string();
    assert!(error.contains("no voter of group 0 would be left"), "{error}");
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_given_up_stays_so_after_power_cuts() {
    let mut hosts = hosts(3, 1).await;
    for number in 0..100 {
        write(&hosts, 0, &format!("key {number}"), "1").await;
    }
    let leads = leader(&hosts, 0).await;
    let leaves = (leads + 1) % 3;
    let id = hosts[leaves].settings.id;
    hosts[leads].command(Command::Move { group: 0, join: Vec::new(), leave: vec![id] }).await.unwrap();
    let last = get(hosts[leads].node(), 0, "key 99");
    for seed in 0..5 {
        hosts[leaves].cut_power(seed).await;
        hosts[leaves].start().await;
        assert_eq!(get(hosts[leaves].node(), 0, "key 99"), Reply::Nil);
        assert_eq!(hosts[leaves].node().status(0).last_index, 0);
        until(hosts[leaves].node(), "a leader", |node| node.leader(0).is_some()).await;
    }
    // It comes back with everything.
    let join = vec![(id, hosts[leaves].settings.member.clone())];
    hosts[leads].command(Command::Move { group: 0, join, leave: Vec::new() }).await.unwrap();
    until(hosts[leaves].node(), "caught up", |node| get(node, 0, "key 99") == last).await;
    for host in &hosts {
        host.node().stop().await.unwrap();
    }
}
