//! One group on one node: queues in front of the consensus core.
//!
//! The core proposes each request as an entry of its own and confirms its leadership anew for each
//! read. Here, requests that arrive while entries are in flight become one entry, and one
//! confirmation serves all readers that wait for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use openraft::ServerState;
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::lead::Leadership;
use super::library::Raft;
use super::state::State;
use super::types::{LogId, Logged, Member, Proposal, StoredMembership};
use super::watch::Watch;
use super::wire::GroupStatus;
use crate::machine::{self, Body, Reply, Request, Version};
use crate::replica::{NodeId, ReadError, WriteError};

/// Requests in one entry.
const BATCH: usize = 512;
/// Bytes of requests at which an entry takes no more.
const BATCH_BYTES: usize = 1 << 20;
/// Entries of this queue that wait for their replies.
const IN_FLIGHT: usize = 4;
/// Requests that may wait.
const QUEUE: usize = 1 << 14;
/// Kilobytes of requests that may wait or be in flight.
const QUEUE_KB: u32 = 128 << 10;
/// Longest request. Entries must fit into a frame between nodes.
const LONGEST: usize = 48 << 20;
/// After which a proposal's outcome is given as unknown.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// After which a read is given up.
const READ_TIME: Duration = Duration::from_secs(5);
/// Between two rounds that confirm leadership, when the first has failed.
const READ_RETRY: Duration = Duration::from_millis(20);

/// Between two looks whether the group's time is settled.
const SETTLE_LOOK: Duration = Duration::from_millis(5);

type WriteResult = Result<Reply, WriteError>;
/// The index up to which a read has to have everything.
type ReadResult = Result<u64, ReadError>;

/// A request that waits to be proposed.
struct Queued {
    request: Request,
    reply: oneshot::Sender<WriteResult>,
    /// Its share of what may be queued.
    _share: OwnedSemaphorePermit,
}

/// Waits for a confirmation that this node leads.
struct Reader {
    answer: oneshot::Sender<ReadResult>,
    until: Instant,
}

/// A group refuses requests and stands for no election as long as this lives.
pub(super) struct Held<'a>(&'a Group);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::SeqCst);
    }
}

/// A group.
pub(super) struct Group {
    pub(super) raft: Raft,
    pub(super) state: Arc<State>,
    pub(super) lead: Arc<Leadership>,
    writes: mpsc::Sender<Queued>,
    shares: Arc<Semaphore>,
    reads: mpsc::UnboundedSender<Reader>,
    /// This node has everything that was acknowledged before this moment.
    fresh: Mutex<Option<Instant>>,
    /// Without an answer of a majority for so long, the others may have elected another leader.
    pub(super) lost_after: Duration,
    /// Whether requests are refused: see [`Group::hold`].
    held: AtomicBool,
    /// Whether writes that grow are taken.
    pub(super) has_space: Arc<AtomicBool>,
    /// What this node has seen of leaders.
    pub(super) watch: Mutex<Watch>,
    /// Held while a snapshot is received: one at a time.
    pub(super) receiving: tokio::sync::Mutex<()>,
    /// If this replica began without what the group had by then: the members at that time.
    late: Option<StoredMembership>,
}

impl Group {
    /// `lost_after`: the shortest time after which followers that miss their leader elect another.
    pub(super) fn new(
        raft: Raft,
        state: Arc<State>,
        lead: Arc<Leadership>,
        lost_after: Duration,
        watch: Watch,
        late: Option<StoredMembership>,
    ) -> Group {
        let watch = Mutex::new(watch);
        let (writes, queue) = mpsc::channel(QUEUE);
        let (reads, waiting) = mpsc::unbounded_channel();
        tokio::spawn(confirm(raft.clone(), waiting));
        let (fresh, held, receiving) = Default::default();
        let shares = Arc::new(Semaphore::new(QUEUE_KB as usize));
        let has_space = Arc::new(AtomicBool::new(true));
        let proposer = Proposer {
            raft: raft.clone(),
            state: Arc::clone(&state),
            lead: Arc::clone(&lead),
            has_space: Arc::clone(&has_space),
        };
        tokio::spawn(propose(proposer, queue));
        Group { raft, state, lead, writes, shares, reads, fresh, lost_after, held, has_space, watch, receiving, late }
    }

    /// The leader, as far as this node knows.
    pub(super) fn leader(&self) -> Option<NodeId> {
        self.raft.metrics().borrow().current_leader
    }

    /// Whether a node is a member, as far as this one knows.
    pub(super) fn is_member(&self, id: NodeId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.nodes().any(|(member, _)| *member == id)
    }

    /// Where a member is, as far as this node knows.
    pub(super) fn member(&self, id: NodeId) -> Option<Member> {
        self.raft.metrics().borrow().membership_config.membership().get_node(&id).cloned()
    }

    /// The nodes that vote, as far as this one knows.
    pub(super) fn voters(&self) -> BTreeSet<NodeId> {
        self.raft.metrics().borrow().membership_config.voter_ids().collect()
    }

    /// Whether a node votes, as far as this one knows.
    pub(super) fn votes(&self, id: NodeId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().get_joint_config().iter().any(|voters| voters.contains(&id))
    }

    /// The members when this replica began, if it began late.
    pub(super) fn late(&self) -> Option<&StoredMembership> {
        self.late.as_ref()
    }

    /// Whether this node, `id`, may vote and stand for election. A voter need not know that it is
    /// one; but a replica that began late may count as one for a candidate that has missed its
    /// removal. Its log must first be ahead of that candidate's: it must have the entry that made
    /// it a member after that, and not only one of its earlier membership.
    pub(super) fn may_vote(&self, id: NodeId) -> bool {
        let Some(late) = &self.late else { return true };
        let is_later = self.raft.metrics().borrow().membership_config.log_id() > late.log_id();
        is_later && self.is_member(id)
    }

    /// Whether this node, `id`, may stand for election.
    pub(super) fn may_stand(&self, id: NodeId) -> bool {
        self.votes(id) && !self.held.load(Ordering::SeqCst) && self.may_vote(id)
    }

    /// Whether this node leads, or has not heard yet that it does not.
    pub(super) fn leads(&self) -> bool {
        self.raft.metrics().borrow().state == ServerState::Leader
    }

    /// The term in which this node leads, if a majority has confirmed that lately.
    pub(super) fn leads_in(&self) -> Option<u64> {
        self.check_lead().ok().map(|()| self.raft.metrics().borrow().current_term)
    }

    /// Fails unless this node leads and has heard from a majority lately.
    pub(super) fn check_lead(&self) -> Result<(), WriteError> {
        self.lead.check()
    }

    /// On the leader: the other voters, those whose logs are longest first.
    pub(super) fn followers(&self) -> Vec<NodeId> {
        let voters = self.voters();
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let others = metrics.replication.iter().flatten().filter(|(id, _)| **id != metrics.id && voters.contains(id));
        let mut others: Vec<_> = others.map(|(id, matched)| (*matched, *id)).collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        others.into_iter().map(|(_, id)| id).collect()
    }

    /// What this node knows of the group.
    pub(super) fn status(&self, number: u32) -> GroupStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let membership = &metrics.membership_config;
        let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, member)| (*id, member.clone(), voters.contains(id))).collect();
        let role = match (&metrics.running_state, metrics.state) {
            (Err(error), _) => format!("stopped: {error}"),
            (_, ServerState::Leader) => "leader".to_owned(),
            (_, ServerState::Follower) => "follower".to_owned(),
            (_, ServerState::Candidate) => "candidate".to_owned(),
            (_, ServerState::Learner) => "learner".to_owned(),
            (_, ServerState::Shutdown) => "stopped".to_owned(),
        };
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        let matched = metrics.replication.iter().flatten().map(|(id, at)| (*id, index(*at)));
        GroupStatus {
            group: number,
            role,
            leader: metrics.current_leader,
            term: metrics.current_term,
            last: metrics.last_log_index.unwrap_or(0),
            committed: self.state.committed(),
            applied: index(metrics.last_applied),
            flushed: index(self.state.durable()),
            purged: index(metrics.purged),
            snapshot: index(metrics.snapshot),
            version: Some(self.state.version()),
            receiving: self.state.received(),
            ahead_ms: None,
            members,
            matched: matched.collect(),
        }
    }

    /// Queues a request; the future waits for its reply.
    pub(super) fn write(&self, request: Request) -> impl Future<Output = WriteResult> + Send + use<> {
        let queued = self.enqueue(request);
        async move {
            let lost = |_| WriteError::Unknown("the node stops".to_owned());
            queued?.await.map_err(lost)?
        }
    }

    /// Refuses requests and stands for no election, as long as the guard lives. `None` if another
    /// guard does.
    pub(super) fn hold(&self) -> Option<Held<'_>> {
        let was_held = self.held.swap(true, Ordering::SeqCst);
        (!was_held).then(|| Held(self))
    }

    /// Whether no request waits or is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.shares.available_permits() == QUEUE_KB as usize
    }

    fn enqueue(&self, request: Request) -> Result<oneshot::Receiver<WriteResult>, WriteError> {
        let weight = request.weight();
        if weight > LONGEST {
            return Err(WriteError::Refused(format!("a request of {weight} bytes is too long")));
        }
        self.lead.check()?;
        self.check_version(&request)?;
        if !self.has_space.load(Ordering::Relaxed) && request.grows() {
            return Err(WriteError::NoSpace);
        }
        let kilobytes = u32::try_from(weight / 1024 + 1).unwrap_or(QUEUE_KB);
        let share = Arc::clone(&self.shares).try_acquire_many_owned(kilobytes).map_err(|_| WriteError::Overloaded)?;
        // After the share was taken: a group that is held and idle takes nothing.
        if self.held.load(Ordering::SeqCst) {
            return Err(WriteError::NotLeader { leader: None });
        }
        let (reply, receiver) = oneshot::channel();
        self.writes.try_send(Queued { request, reply, _share: share }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => WriteError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => WriteError::Refused("the node stops".to_owned()),
        })?;
        Ok(receiver)
    }

    /// Fails if some member may not be able to read a request.
    fn check_version(&self, request: &Request) -> Result<(), WriteError> {
        let needed = request.version();
        if needed == Version::FIRST || needed <= self.state.version() || matches!(request.body, Body::Upgrade(_)) {
            return Ok(());
        }
        let version = self.state.version();
        Err(WriteError::Refused(format!(
            "this needs version {needed} of the cluster, which has version {version} until all its nodes are upgraded"
        )))
    }

    /// Confirms that this node leads, and waits until it has applied what was committed by now.
    pub(super) async fn barrier(&self) -> ReadResult {
        let stopped = || ReadError::Failed("the node stops".to_owned());
        let asked = Instant::now();
        let (answer, receiver) = oneshot::channel();
        self.reads.send(Reader { answer, until: asked + READ_TIME }).map_err(|_| stopped())?;
        let index = receiver.await.map_err(|_| stopped())??;
        self.note_fresh(asked);
        Ok(index)
    }

    /// Notes that this node has everything acknowledged before `moment`.
    pub(super) fn note_fresh(&self, moment: Instant) {
        let mut fresh = self.fresh.lock();
        *fresh = (*fresh).max(Some(moment));
    }

    /// For how long this node may have missed writes.
    pub(super) fn staleness(&self) -> Option<Duration> {
        self.fresh.lock().map(|moment| moment.elapsed())
    }

    /// Waits until entry `index` is applied.
    pub(super) async fn wait_applied(&self, index: u64, limit: Duration) -> bool {
        self.raft.wait(Some(limit)).applied_index_at_least(Some(index), "a read").await.is_ok()
    }
}

/// What it takes to make entries.
struct Proposer {
    raft: Raft,
    state: Arc<State>,
    lead: Arc<Leadership>,
    has_space: Arc<AtomicBool>,
}

/// Refuses what was queued before it was known that there is no space for it.
fn refuse_growing(batch: &mut Vec<Queued>) {
    for refused in batch.extract_if(.., |queued| queued.request.grows()) {
        // A client that has gone takes no reply.
        let _ = refused.reply.send(Err(WriteError::NoSpace));
    }
}

/// Makes entries of what is queued.
async fn propose(of: Proposer, mut queue: mpsc::Receiver<Queued>) {
    let Proposer { raft, state, .. } = &of;
    let slots = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut before: Option<Arc<Logged>> = None;
    // Taken first: what arrives while all are taken is in the next entry.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let Some(first) = queue.recv().await else { return };
        // So is what arrives while this node's disk takes the entry before: the core takes up no
        // other until then.
        if let Some(before) = before.take() {
            before.passed().await;
        }
        let mut bytes = first.request.weight();
        let mut batch = vec![first];
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Ok(next) = queue.try_recv() else { break };
            bytes += next.request.weight();
            batch.push(next);
        }
        if !of.has_space.load(Ordering::Relaxed) {
            refuse_growing(&mut batch);
            if batch.is_empty() {
                continue;
            }
        }
        let (requests, replies): (Vec<Request>, Vec<_>) =
            batch.into_iter().map(|queued| (queued.request, (queued.reply, queued._share))).unzip();
        let mut lead = of.lead.check();
        // A majority has elected this node, and settles its time as well.
        let deadline = Instant::now() + WRITE_TIME;
        while lead.is_ok() && !state.is_settled() {
            sleep(SETTLE_LOOK).await;
            lead = of.lead.check();
            if Instant::now() > deadline {
                lead = Err(WriteError::Refused("the clocks of a majority of the voters are not known".to_owned()));
            }
        }
        if let Err(refusal) = lead {
            answer(Err(refusal), replies);
            continue;
        }
        let (proposal, logged) = Proposal::new(machine::Entry { time_ms: state.now_ms(), requests });
        before = Some(Arc::clone(&logged));
        let proposed = raft.client_write_ff(proposal).await;
        tokio::spawn(async move {
            let outcome = match proposed {
                Ok(receiver) => match timeout(WRITE_TIME, receiver).await {
                    Ok(Ok(Ok(response))) => Ok(response.data),
                    Ok(Ok(Err(ClientWriteError::ForwardToLeader(to)))) => {
                        Err(unless_logged(&logged, WriteError::NotLeader { leader: to.leader_id }))
                    }
                    Ok(Ok(Err(error))) => Err(unless_logged(&logged, WriteError::Refused(error.to_string()))),
                    Ok(Err(_)) => Err(unless_logged(&logged, WriteError::Refused("the node stops".to_owned()))),
                    // The core may still be about to take it.
                    Err(_) => Err(WriteError::Unknown("no majority has answered in time".to_owned())),
                },
                Err(fatal) => Err(unless_logged(&logged, WriteError::Refused(fatal.to_string()))),
            };
            // For one that has not come into the log.
            logged.note_passed();
            drop(slot);
            answer(outcome, replies);
        });
    }
}

/// What has been in a log may be committed by another leader, whatever this node says of it.
fn unless_logged(logged: &Logged, refusal: WriteError) -> WriteError {
    if logged.is_possible() { WriteError::Unknown(refusal.to_string()) } else { refusal }
}

fn answer(outcome: Result<Vec<Reply>, WriteError>, waiting: Vec<(oneshot::Sender<WriteResult>, OwnedSemaphorePermit)>) {
    // A client that has gone takes no reply.
    match outcome {
        Ok(replies) if replies.len() == waiting.len() => {
            for ((client, _share), reply) in waiting.into_iter().zip(replies) {
                let _ = client.send(Ok(reply));
            }
        }
        outcome => {
            let unknown = || WriteError::Unknown("the state machine gave another number of replies".to_owned());
            let error = outcome.err().unwrap_or_else(unknown);
            for (client, _share) in waiting {
                let _ = client.send(Err(error.clone()));
            }
        }
    }
}

/// Confirms leadership for all readers that wait. One round of the library is over after one
/// heartbeat; those whom it fails wait for further rounds, until their time is over.
async fn confirm(raft: Raft, mut waiting: mpsc::UnboundedReceiver<Reader>) {
    let mut readers: Vec<Reader> = Vec::new();
    loop {
        if readers.is_empty() {
            let Some(first) = waiting.recv().await else { return };
            readers.push(first);
        }
        while let Ok(next) = waiting.try_recv() {
            readers.push(next);
        }
        let result = match timeout(READ_TIME, raft.ensure_linearizable()).await {
            Ok(Ok(last)) => Ok(last.map_or(0, |last| last.index)),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to)))) => {
                Err(ReadError::NotLeader { leader: to.leader_id })
            }
            Ok(Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(error)))) => {
                Err(ReadError::NoQuorum(error.to_string()))
            }
            Ok(Err(RaftError::Fatal(fatal))) => Err(ReadError::Failed(fatal.to_string())),
            Err(_) => Err(ReadError::NoQuorum("no majority has answered in time".to_owned())),
        };
        let goes_on = |reader: &Reader| {
            let waits = !reader.answer.is_closed() && Instant::now() < reader.until;
            matches!(result, Err(ReadError::NoQuorum(_))) && waits
        };
        for reader in readers.extract_if(.., |reader| !goes_on(reader)) {
            let _ = reader.answer.send(result.clone());
        }
        if !readers.is_empty() {
            sleep(READ_RETRY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Operation;

    #[test]
    fn what_grows_is_refused_though_it_is_queued() {
        let shares = Arc::new(Semaphore::new(2));
        let set = Operation::Add { key: "a".into(), delta: 1 };
        let bodies = [Body::Run(set), Body::Run(Operation::Delete(vec!["a".into()]))];
        let (mut batch, mut replies) = (Vec::new(), Vec::new());
        for body in bodies {
            let (reply, receiver) = oneshot::channel();
            let share = Arc::clone(&shares).try_acquire_owned().unwrap();
            batch.push(Queued { request: Request::new(body), reply, _share: share });
            replies.push(receiver);
        }
        refuse_growing(&mut batch);
        assert_eq!(replies[0].try_recv().unwrap(), Err(WriteError::NoSpace));
        assert_eq!((batch.len(), shares.available_permits()), (1, 1));
        assert!(replies[1].try_recv().is_err(), "it goes on");
    }
}
