//! Nodes of two versions, and the bytes that no version may change.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::{CommittedLeaderId, EntryPayload, Membership};
use tamis_openraft::Piece;
use tokio::time::{Instant, sleep};

use super::cluster::{Host, PATIENCE, hosts_as, set, write};
use crate::error::Error;
use crate::machine::{self, Body, Condition, Deadline, Operation, Request, SetAnswer, Version};
use crate::raft::library::{Entry, version_of};
use crate::raft::types::{LogId, Member, Proposal};
use crate::raft::wire::{Answer, Call, Change, Greeting, Lead, LedGroup};
use crate::raft::{Cluster, Command, GroupStatus, NodeStatus};
use crate::replica::{Replica, WriteError};
use crate::store::{decode, encode};

/// A request that the first version does not know.
fn later() -> Request {
    let (condition, deadline, answer) = (Condition::IfEqual("b".into()), Deadline::None, SetAnswer::Ok);
    let set = Operation::Set { key: "a".into(), value: "b".into(), condition, deadline, answer };
    Request::new(Body::Run(set))
}

async fn leader(hosts: &[Host]) -> &Cluster {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut nodes = hosts.iter().filter_map(|host| host.node.as_ref());
        if let Some(node) = nodes.find(|node| node.group(0).is_ok_and(|group| group.check_lead().is_ok())) {
            return node;
        }
        assert!(Instant::now() < deadline, "nobody leads");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn restart(host: &mut Host, version: Version) -> Result<(), Error> {
    host.node.take().unwrap().stop().await.unwrap();
    host.settings.version = version;
    host.try_start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_gets_a_version_when_all_nodes_have_it_and_keeps_older_ones_out() {
    let mut hosts = hosts_as(3, 1, Version::FIRST).await;
    for at in 0..3 {
        let refused = leader(&hosts).await.write(0, later()).await;
        assert!(
            matches!(&refused, Err(WriteError::Refused(reason)) if reason.contains("needs version 2")),
            "{at} nodes are newer: {refused:?}"
        );
        restart(&mut hosts[at], Version::LATEST).await.unwrap();
        write(&hosts, 0, "a", "b").await;
    }
    let deadline = Instant::now() + PATIENCE;
    while leader(&hosts).await.write(0, later()).await.is_err() {
        assert!(Instant::now() < deadline, "the cluster has the first version for ever");
        sleep(Duration::from_millis(20)).await;
    }
    let is_raised = |host: &Host| host.node().report().groups[0].version == Some(Version::LATEST);
    while !hosts.iter().all(is_raised) {
        assert!(Instant::now() < deadline, "a follower has the first version for ever");
        sleep(Duration::from_millis(20)).await;
    }
    // A member that goes back, and a new node.
    let error = restart(&mut hosts[2], Version::FIRST).await.unwrap_err();
    assert!(matches!(error, Error::Version { found: Version::LATEST, .. }), "{error}");
    let old = Host::of(4, 1, Version::FIRST).await;
    let add = Command::Add { id: 4, member: old.settings.member.clone(), learner: false };
    let error = hosts[0].command(add).await.unwrap_err().to_string();
    assert!(error.contains("knows versions up to 1, and version 2 is needed"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_turns_out_to_be_too_old_ends() {
    let hosts = hosts_as(1, 1, Version::LATEST).await;
    let old = Host::of(2, 1, Version::FIRST).await;
    let call = Call::Greet { from: 2 };
    let member = &hosts[0].settings.member;
    let error = old.node().pool.call(1, &member.raft, &call).await.unwrap_err();
    assert!(matches!(error, Error::Outdated { needed: Version::LATEST, .. }), "{error}");
    old.node().note_outdated(&error);
    let error = tokio::time::timeout(PATIENCE, old.node().failed()).await.unwrap();
    assert!(matches!(error, Error::Outdated { known: Version::FIRST, .. }), "{error}");
}

fn entry(payload: EntryPayload<crate::raft::library::Types>) -> Entry {
    Entry { log_id: LogId::new(CommittedLeaderId::new(3, 2), 300), payload }
}

fn of_requests(requests: Vec<Request>) -> Entry {
    let (proposal, _) = Proposal::new(machine::Entry { time_ms: 1000, requests });
    entry(EntryPayload::Normal(proposal))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Logs and other nodes have these. What is refused here breaks both.
#[test]
fn bytes_of_the_first_version_stay_as_they_are() {
    let member = Member { raft: "r:1".to_owned(), resp: "c:2".to_owned() };
    let members = Membership::new(vec![[2].into()], BTreeMap::from([(2, member)]));
    let snapshot = openraft::SnapshotMeta {
        last_log_id: Some(LogId::new(CommittedLeaderId::new(3, 2), 300)),
        last_membership: openraft::StoredMembership::new(None, members.clone()),
        snapshot_id: "s".to_owned(),
    };
    let vote = openraft::Vote::new_committed(3, 2);
    let append = openraft::raft::AppendEntriesRequest {
        vote,
        prev_log_id: None,
        entries: vec![entry(EntryPayload::Blank)],
        leader_commit: None,
    };
    let greeting = Greeting {
        version: Version::FIRST,
        is_low: false,
        wall_ms: 1000,
        times: [(0, 999)].into(),
        knows: true,
        leads: [(0, 3)].into(),
    };
    let last = Some(LogId::new(CommittedLeaderId::new(3, 2), 300));
    let lead = Lead { vote, members: openraft::StoredMembership::new(last, members.clone()) };
    let group =
        GroupStatus { group: 1, role: "leader".to_owned(), version: Some(Version::FIRST), ..Default::default() };
    let status = NodeStatus {
        id: 2,
        version: Version::FIRST,
        versions: [(1, Version::FIRST)].into(),
        free_bytes: Some(300),
        is_low: false,
        clock_ahead_ms: Some(-1),
        others: vec![(1, true, false)],
        groups: vec![group],
    };
    let vote_request = openraft::raft::VoteRequest { vote, last_log_id: last };
    let vote_response = openraft::raft::VoteResponse { vote, vote_granted: true, last_log_id: last };
    let relocate =
        Change::Relocate { id: 2, member: Member { raft: "r:1".into(), resp: "c:2".into() }, is_checked: true };
    let bytes = [
        ("vote", encode(&Call::Vote { group: 1, request: vote_request })),
        ("heartbeat", encode(&Call::Heartbeat { from: 2, leads: vec![LedGroup { group: 1, term: 3, last: 300 }] })),
        ("canvass", encode(&Call::Canvass { from: 2, groups: vec![(1, last)] })),
        ("read-indexes", encode(&Call::ReadIndexes { groups: vec![1] })),
        ("admit", encode(&Call::Admit { cluster: 7, groups: 2, as_new: true, leads: vec![lead.clone()] })),
        ("change", encode(&Call::Change { group: 1, change: relocate.clone() })),
        ("relay", encode(&Call::Relay { group: 1, change: relocate })),
        ("begin", encode(&Call::Begin { group: 1, members: BTreeMap::new() })),
        ("stand", encode(&Call::Stand { group: 1 })),
        ("leave", encode(&Call::Leave { group: 1, lead: lead.clone() })),
        ("command", encode(&Call::Command(Command::Status))),
        ("appended", encode(&Answer::Append(openraft::raft::AppendEntriesResponse::PartialSuccess(last)))),
        ("voted", encode(&Answer::Vote(vote_response))),
        ("received", encode(&Answer::Snapshot(vote))),
        ("indexes", encode(&Answer::ReadIndexes([(1, 300)].into()))),
        ("done", encode(&Answer::Done)),
        ("lead", encode(&Answer::Lead(lead))),
        ("status", encode(&Answer::Status(status))),
        ("refused", encode(&Answer::Refused("no".to_owned()))),
        ("elsewhere", encode(&Answer::Elsewhere(1))),
        ("beaten", encode(&Answer::Heartbeat { behind: vec![1], apart: vec![2] })),
        ("granted", encode(&Answer::Granted(vec![1]))),
        ("blank", encode(&entry(EntryPayload::Blank))),
        ("set", encode(&of_requests(vec![set("k", "v")]))),
        ("tick", encode(&of_requests(vec![Request::new(Body::Tick)]))),
        ("membership", encode(&entry(EntryPayload::Membership(members)))),
        ("append", encode(&Call::Append { group: 1, request: append })),
        ("snapshot", encode(&Call::Snapshot { group: 1, version: Version::FIRST, vote, meta: snapshot })),
        ("pairs", encode(&Piece::Pairs("ab".into()))),
        ("end", encode(&Piece::End(300))),
        ("greet", encode(&Call::Greet { from: 2 })),
        ("greeting", encode(&Answer::Greeting(greeting))),
    ];
    let bytes: Vec<String> = bytes.into_iter().map(|(name, of)| format!("{name} {}", hex(&of.unwrap()))).collect();
    assert_eq!(bytes.join("\n"), include_str!("versions.golden").trim_end());
}

#[test]
fn entries_of_unknown_versions_are_known_as_such_and_damaged_ones_refused() {
    let later = of_requests(vec![later()]);
    assert_eq!(version_of(&later), Version::REDIS_7_2);
    let bytes = encode(&later).unwrap();
    assert_eq!(version_of(&decode::<Entry>(&bytes, "raft-log").unwrap()), Version::REDIS_7_2);
    // Behind the log id and the kind: the length, then the version.
    let at = encode(&entry(EntryPayload::Blank)).unwrap().len() + 1;
    assert_eq!(bytes[at], 2);
    for (version, known) in [(3, true), (255, true), (1, false), (0, false)] {
        let mut changed = bytes.clone();
        changed[at] = version;
        // With what no program of today can read behind it.
        changed[at + 1..].iter_mut().for_each(|byte| *byte = if known { 0xff } else { *byte });
        let read = decode::<Entry>(&changed, "raft-log");
        assert_eq!(read.as_ref().ok().map(version_of), known.then_some(Version::new(version)));
        if let Ok(Entry { payload: EntryPayload::Normal(proposal), .. }) = read {
            let error = proposal.entry().unwrap_err();
            assert!(matches!(error, Error::Version { found, .. } if found.number() == version), "{error}");
            assert!(encode(&entry(EntryPayload::Normal(proposal))).is_err(), "it is not written anew");
        }
    }
}
