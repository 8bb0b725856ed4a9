//! The calling side: connections to other nodes, shared by all groups.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{OptionalSend, StorageError};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::library::{Snapshot, Types};
use super::snapshot::SnapshotData;
use super::state::State;
use super::types::{LogId, Member, StorageIoError, Vote};
use super::wire::{Answer, Call};
use crate::error::{Error, Result};
use crate::link::{Link, Trust, in_time};
use crate::logging::Seldom;
use crate::replica::NodeId;
use crate::store::Versions;

/// Idle connections to one node that are kept.
const KEPT: usize = 8;
/// Between two attempts to reach a node that is not there.
const BACKOFF: Duration = Duration::from_millis(100);
/// For one piece of a snapshot to be taken.
const PIECE_TIME: Duration = Duration::from_secs(30);

/// Connections to other nodes.
#[derive(Clone)]
pub(super) struct Pool {
    trust: Trust,
    /// The cluster of this node, 0 as long as it is in none.
    cluster: Arc<AtomicU64>,
    /// Where nodes are reached that are not reached where the membership says.
    routes: Arc<HashMap<NodeId, String>>,
    idle: Arc<Mutex<HashMap<NodeId, Vec<Link>>>>,
    versions: Versions,
    /// Lines about nodes that do not talk to this one.
    refused: Arc<Seldom>,
}

impl Pool {
    pub(super) fn new(
        trust: Trust,
        cluster: Arc<AtomicU64>,
        routes: HashMap<NodeId, String>,
        versions: Versions,
    ) -> Pool {
        Pool { trust, cluster, routes: Arc::new(routes), idle: Arc::default(), versions, refused: Arc::default() }
    }

    async fn connect(&self, to: NodeId, address: &str) -> Result<Link> {
        let address = self.routes.get(&to).map_or(address, String::as_str);
        let cluster = self.cluster.load(Ordering::Acquire);
        let link = Link::connect(&self.trust, address, to, cluster, &self.versions).await;
        if let Err(error) = &link
            && error.is_refusal()
            && let Some(left_out) = self.refused.pass()
        {
            tracing::warn!(node = to, address, %error, left_out, "another node does not talk to this one");
        }
        link
    }

    /// Calls a node by a connection of its own, which says whether the node is at that address.
    pub(super) async fn call_at(&self, to: NodeId, address: &str, call: &Call) -> Result<Answer> {
        let connected = async { self.exchange(to, self.connect(to, address).await?, call).await };
        in_time(call.limit(), address, connected).await
    }

    /// Calls a node, and gives up when the call's time is over. A caller that stops waiting leaves
    /// no half-used connection behind.
    pub(super) async fn call(&self, to: NodeId, address: &str, call: &Call) -> Result<Answer> {
        let outcome = in_time(call.limit(), address, self.call_for_ever(to, address, call)).await;
        if matches!(outcome, Err(Error::Io { .. })) {
            // The other connections to a node that is gone are of no use either.
            self.idle.lock().remove(&to);
        }
        outcome
    }

    async fn call_for_ever(&self, to: NodeId, address: &str, call: &Call) -> Result<Answer> {
        let idle = self.idle.lock().get_mut(&to).and_then(Vec::pop);
        if let Some(link) = idle {
            match self.exchange(to, link, call).await {
                // The node may have been restarted since the connection was used.
                Err(Error::Io { .. }) => drop(self.idle.lock().remove(&to)),
                outcome => return outcome,
            }
        }
        let link = self.connect(to, address).await?;
        self.exchange(to, link, call).await
    }

    async fn exchange(&self, to: NodeId, mut link: Link, call: &Call) -> Result<Answer> {
        link.check(call.version())?;
        link.send(call).await?;
        let answer = link.receive().await?;
        self.give_back(to, link);
        match answer {
            Answer::Refused(reason) => Err(Error::Refused { node: to.to_string(), reason }),
            Answer::Elsewhere(group) => Err(Error::NoLeader(group)),
            answer => Ok(answer),
        }
    }

    fn give_back(&self, to: NodeId, link: Link) {
        let mut idle = self.idle.lock();
        let idle = idle.entry(to).or_default();
        if idle.len() < KEPT {
            idle.push(link);
        }
    }
}

/// An answer of another kind than the call.
pub(super) fn unexpected() -> Error {
    Error::Decode { place: "a message of another node", rule: "the answer is to another question".to_owned() }
}

/// Makes the connections of one group.
pub(super) struct Network {
    pub(super) pool: Pool,
    pub(super) group: u32,
    pub(super) state: Arc<State>,
}

/// One node, for one group.
pub(super) struct Peer {
    pool: Pool,
    group: u32,
    state: Arc<State>,
    id: NodeId,
    address: String,
    /// The entries that were sent last, if their answer is still to come.
    sending: Option<Sending>,
}

/// Entries on their way to a node.
///
/// The library drops a call that takes longer than a heartbeat, and then calls again. A long entry
/// would never arrive if each call began anew: the exchange therefore is a task of its own.
struct Sending {
    vote: Vote,
    prev: Option<LogId>,
    last: LogId,
    answer: JoinHandle<Result<AppendEntriesResponse<NodeId>>>,
}

impl Sending {
    /// Whether these entries are the first of those in `request`, or all of them.
    fn begins(&self, request: &AppendEntriesRequest<Types>) -> bool {
        let last = request.entries.last().map(|entry| entry.log_id);
        (self.vote, self.prev) == (request.vote, request.prev_log_id) && Some(self.last) <= last
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.answer.abort();
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, id: NodeId, node: &Member) -> Peer {
        let (pool, group, state) = (self.pool.clone(), self.group, Arc::clone(&self.state));
        Peer { pool, group, state, id, address: node.raft.clone(), sending: None }
    }
}

impl Peer {
    /// A call that appends, and may outlive the borrow.
    fn append(
        &self,
        request: AppendEntriesRequest<Types>,
    ) -> impl Future<Output = Result<AppendEntriesResponse<NodeId>>> + Send + use<> {
        let (pool, group, id, address) = (self.pool.clone(), self.group, self.id, self.address.clone());
        async move {
            match pool.call(id, &address, &Call::Append { group, request }).await? {
                Answer::Append(response) => Ok(response),
                _ => Err(unexpected()),
            }
        }
    }

    /// Sends entries, the last of which is `last`, or goes on waiting for the answer to those that
    /// are on their way. While it takes long, heartbeats keep the node from an election, and tell
    /// the library that it still follows.
    async fn append_long(
        &mut self,
        request: AppendEntriesRequest<Types>,
        last: LogId,
        ttl: &RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>> {
        let (vote, prev, leader_commit) = (request.vote, request.prev_log_id, request.leader_commit);
        let heartbeat = self.append(AppendEntriesRequest { vote, prev_log_id: prev, leader_commit, entries: vec![] });
        let heartbeat = async {
            sleep(ttl.hard_ttl() / 4).await;
            let answer = heartbeat.await;
            sleep(ttl.hard_ttl() / 4).await;
            match answer {
                // It has what comes before the entries, and none of them yet.
                Ok(AppendEntriesResponse::Success) if prev.is_some() => AppendEntriesResponse::PartialSuccess(prev),
                Ok(refused @ (AppendEntriesResponse::HigherVote(_) | AppendEntriesResponse::Conflict)) => refused,
                // The library takes no answer that says nothing.
                _ => std::future::pending().await,
            }
        };
        let sending = match self.sending.take().filter(|sending| sending.begins(&request)) {
            Some(sending) => sending,
            None => Sending { vote, prev, last, answer: tokio::spawn(self.append(request)) },
        };
        let sending = self.sending.insert(sending);
        let answer = tokio::select! {
            biased;
            answer = &mut sending.answer => answer,
            response = heartbeat => return Ok(response),
        };
        let sent = sending.last;
        self.sending = None;
        let answer = answer.map_err(|error| Error::Stopped { group: self.group, reason: error.to_string() })?;
        Ok(match answer? {
            AppendEntriesResponse::Success if sent < last => AppendEntriesResponse::PartialSuccess(Some(sent)),
            response => response,
        })
    }

    async fn send_snapshot(&self, vote: Vote, snapshot: Snapshot) -> Result<Vote, SendError> {
        let SnapshotData::View(view) = *snapshot.snapshot else {
            let error = Error::Encode("a snapshot that is being received cannot be sent".to_owned());
            return Err(SendError::Local(error));
        };
        let mut link = self.pool.connect(self.id, &self.address).await?;
        // What the view has is of this version or an earlier one.
        let version = self.state.version();
        let call = Call::Snapshot { group: self.group, version, vote, meta: snapshot.meta };
        link.check(version)?;
        in_time(PIECE_TIME, &self.address, link.send(&call)).await?;
        tracing::info!(group = self.group, node = self.id, "a snapshot is being sent");
        let mut pieces = view.pieces();
        while let Some(piece) = super::blocking(|| pieces.next()) {
            let piece = piece.map_err(SendError::Local)?;
            in_time(PIECE_TIME, &self.address, link.send(&piece)).await?;
        }
        match in_time(call.limit(), &self.address, link.receive()).await? {
            Answer::Snapshot(vote) => {
                tracing::info!(group = self.group, node = self.id, "a snapshot has arrived");
                Ok(vote)
            }
            Answer::Refused(reason) => Err(Error::Refused { node: self.id.to_string(), reason }.into()),
            _ => Err(unexpected().into()),
        }
    }
}

/// Why a snapshot could not be sent.
enum SendError {
    /// It could not be read.
    Local(Error),
    /// It did not arrive.
    Remote(Error),
}

impl From<Error> for SendError {
    fn from(error: Error) -> SendError {
        SendError::Remote(error)
    }
}

type CallError = RPCError<NodeId, Member, RaftError<NodeId>>;

fn unreachable(error: &Error) -> CallError {
    RPCError::Unreachable(Unreachable::new(error))
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        ttl: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, CallError> {
        if self.state.is_muted(self.id) {
            let reason = "the lead is about to be handed over".to_owned();
            return Err(unreachable(&Error::Stopped { group: self.group, reason }));
        }
        let response = match request.entries.last().map(|entry| entry.log_id) {
            Some(last) => self.append_long(request, last, &ttl).await,
            None => self.append(request).await,
        };
        response.map_err(|error| unreachable(&error))
    }

    async fn vote(&mut self, request: VoteRequest<NodeId>, _: RPCOption) -> Result<VoteResponse<NodeId>, CallError> {
        match self.pool.call(self.id, &self.address, &Call::Vote { group: self.group, request }).await {
            Ok(Answer::Vote(response)) => Ok(response),
            Ok(_) => Err(unreachable(&unexpected())),
            Err(error) => Err(unreachable(&error)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<NodeId>, StreamingError<Types, Fatal<NodeId>>> {
        // Also when it has arrived: until the node has caught up with what was written meanwhile.
        self.state.retention.hold(self.id, snapshot.meta.last_log_id.map_or(0, |last| last.index));
        let sent = tokio::select! {
            closed = cancel => Err(closed),
            sent = self.send_snapshot(vote, snapshot) => Ok(sent),
        };
        if !matches!(sent, Ok(Ok(_))) {
            self.state.retention.release(self.id);
        }
        match sent? {
            Ok(vote) => Ok(SnapshotResponse::new(vote)),
            Err(SendError::Local(error)) => Err(StorageError::from(StorageIoError::read_snapshot(None, &error)).into()),
            Err(SendError::Remote(error)) => Err(Unreachable::new(&error).into()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
