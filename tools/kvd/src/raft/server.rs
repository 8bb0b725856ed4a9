//! The answering side: what other nodes and operators ask of this one.

use std::sync::Arc;
use std::time::Duration;

use openraft::Snapshot;
use openraft::raft::AppendEntriesResponse;
use tamis_openraft::{Piece, SnapshotData};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::cluster::Cluster;
use super::library::version_of;
use super::types::{SnapshotMeta, Vote};
use super::wire::{Answer, Call};
use crate::error::{Error, Result};
use crate::link::{Link, in_time};
use crate::logging::Seldom;
use crate::machine::Version;
use crate::replica::Replica;

/// Connections at a time. Those beyond wait until others close.
const CONNECTIONS: usize = 1024;
/// Without a request, after which a connection is closed.
const IDLE: Duration = Duration::from_secs(300);
/// For an answer to be taken.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// For the next piece of a snapshot to arrive.
const PIECE_TIME: Duration = Duration::from_secs(30);
/// Before the next attempt to accept, when the system cannot.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until the future is dropped.
pub(super) async fn serve(cluster: Arc<Cluster>, listener: TcpListener) {
    let (places, refused) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Seldom::default()));
    // Dropped with the future: no connection outlives it.
    let mut connections = JoinSet::new();
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let (tcp, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections of other nodes");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (cluster, refused) = (Arc::clone(&cluster), Arc::clone(&refused));
        connections.spawn(async move {
            let _place = place;
            let served = async {
                let (trust, versions) = (cluster.trust(), &cluster.store.versions);
                let link = Link::accept(trust, tcp, peer, cluster.id(), cluster.number(), versions).await;
                let mut link = link.inspect_err(|error| {
                    if error.is_refusal()
                        && let Some(left_out) = refused.pass()
                    {
                        tracing::warn!(%peer, %error, left_out, "a connection of another node is refused");
                    }
                })?;
                while let Ok(call) = timeout(IDLE, link.receive_next()).await {
                    let Some(call) = call? else { break };
                    let answer = answer(&cluster, &mut link, call).await;
                    let answer = answer.unwrap_or_else(|error| match error {
                        Error::NoLeader(group) => Answer::Elsewhere(group),
                        error => Answer::Refused(error.to_string()),
                    });
                    in_time(ANSWER_TIME, "another node", link.send(&answer)).await?;
                }
                Ok::<(), Error>(())
            };
            if let Err(error) = served.await {
                tracing::debug!(%peer, %error, "a connection of another node has ended");
            }
        });
    }
}

async fn answer(cluster: &Arc<Cluster>, link: &mut Link, call: Call) -> Result<Answer> {
    let stopped = |group: u32| move |error: &dyn std::error::Error| Error::Stopped { group, reason: error.to_string() };
    match call {
        Call::Admit { cluster: number, groups, as_new, leads } => {
            cluster.admit(number, groups, as_new, &leads).await.map(|()| Answer::Done)
        }
        Call::Command(command) => cluster.execute(command).await,
        // With its disk, a node may have lost a vote that it has given. It gives no other.
        _ if cluster.number() == 0 => Err(Error::Config(
            "this node's store is new: it is in no cluster before `kvd init` or `kvd add`".to_owned(),
        )),
        Call::Canvass { from, groups } => Ok(cluster.canvassed(from, groups).await),
        Call::Greet { from } => Ok(Answer::Greeting(cluster.greeted(from))),
        Call::Append { group, request } => {
            let known = cluster.group(group)?;
            for entry in &request.entries {
                cluster.store.versions.check(version_of(entry), "an entry")?;
            }
            // Before the disk takes what comes with it, and after.
            let is_led = request.vote >= known.raft.metrics().borrow().vote;
            if is_led {
                known.watch.lock().note_heard();
            }
            cluster.space.check_entries(&request.entries)?;
            let response = known.raft.append_entries(request).await.map_err(|error| stopped(group)(&error))?;
            if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
                known.watch.lock().note_heard();
            }
            Ok(Answer::Append(response))
        }
        Call::Vote { group, request } => {
            let known = cluster.group(group)?;
            if !known.may_vote(cluster.id()) {
                let reason = format!("this node's log of group {group} does not say that it is a member");
                return Err(Error::Config(reason));
            }
            let response = known.raft.vote(request).await.map_err(|error| stopped(group)(&error))?;
            if response.vote_granted {
                known.watch.lock().note_heard();
            }
            Ok(Answer::Vote(response))
        }
        Call::Snapshot { group, version, vote, meta } => {
            cluster.store.versions.check(version, "a snapshot")?;
            receive(cluster, group, link, version, vote, meta).await.map(Answer::Snapshot)
        }
        Call::ReadIndexes { groups } => Ok(Answer::ReadIndexes(cluster.read_indexes(&groups).await)),
        Call::Heartbeat { from, leads } => Ok(cluster.beaten(from, &leads)),
        Call::Relay { group, change } => cluster.pass_directly(group, &change).await,
        Call::Change { group, change } => cluster.change(group, change).await,
        Call::Leave { group, lead } => cluster.leave(group, &lead).await.map(|()| Answer::Done),
        Call::Stand { group } => cluster.stand(group).await.map(|()| Answer::Done),
        Call::Begin { group, members } => cluster.begin(group, members).await.map(|()| Answer::Done),
    }
}

/// Receives a snapshot, and installs it once all of it is there.
async fn receive(
    cluster: &Cluster,
    number: u32,
    link: &mut Link,
    version: Version,
    vote: Vote,
    meta: SnapshotMeta,
) -> Result<Vote> {
    let stopped = |reason: String| Error::Stopped { group: number, reason };
    let group = cluster.group(number)?;
    cluster.space.check_snapshot()?;
    let Ok(_one) = group.receiving.try_lock() else {
        return Err(stopped("another snapshot is being received".to_owned()));
    };
    super::blocking(|| group.state.expect_version(version))?;
    let data = group.raft.begin_receiving_snapshot().await.map_err(|error| stopped(error.to_string()))?;
    let SnapshotData::Staging(mut staging) = *data else {
        return Err(stopped("there is no place for a snapshot".to_owned()));
    };
    tracing::info!(group = number, snapshot = meta.snapshot_id, "a snapshot is being received");
    let progress = group.state.receiving();
    let whole = loop {
        let piece: Piece = in_time(PIECE_TIME, "the sender of a snapshot", link.receive()).await?;
        // Dropped, the staging gives its space back.
        cluster.space.check_snapshot()?;
        super::blocking(|| staging.add(&piece))?;
        progress.set(staging.received());
        if matches!(piece, Piece::End(_)) {
            break staging;
        }
    };
    super::blocking(|| whole.check())?;
    let snapshot = Snapshot { meta, snapshot: Box::new(SnapshotData::Staging(whole)) };
    let installed = group.raft.install_full_snapshot(vote, snapshot).await;
    installed.map(|response| response.vote).map_err(|error| stopped(error.to_string()))
}
