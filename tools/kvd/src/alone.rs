//! [`Alone`]: a replica without others, without a log and without consensus.
//!
//! It is there for tests and for trying out the server: what a store has not flushed is lost when
//! the process ends. Tests tell it to refuse, to forget who leads, and what time it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::clock::{Clock, wall_ms};
use crate::machine::{Entry, GroupId, Machine, Reply, Request, Result};
use crate::replica::{Node, NodeId, ReadError, Replica, Status, WriteError};

/// Most requests of an entry.
const ENTRY_REQUESTS: usize = 512;

/// A node that is the only one. Each group has a thread that applies its requests.
pub struct Alone {
    groups: Vec<Group>,
    state: Mutex<State>,
    /// The time, for tests; zero: that of the groups' clocks.
    time_ms: Arc<AtomicU64>,
}

/// A group's clock, which a jump of the system's clock only pulls.
struct GroupClock {
    clock: Mutex<Clock>,
    machine: Arc<Machine>,
    /// See [`Alone::set_time`].
    set_ms: Arc<AtomicU64>,
}

impl GroupClock {
    fn new(machine: Arc<Machine>, set_ms: Arc<AtomicU64>) -> GroupClock {
        let mut clock = Clock::new(machine.time_ms(), Instant::now());
        clock.settle(Instant::now(), wall_ms());
        GroupClock { clock: Mutex::new(clock), machine, set_ms }
    }

    fn now_ms(&self) -> u64 {
        match self.set_ms.load(Ordering::SeqCst) {
            0 => {
                let (now, mut clock) = (Instant::now(), self.clock.lock());
                clock.pull_to(wall_ms(), now);
                clock.now_ms(now, self.machine.time_ms())
            }
            set => set,
        }
    }
}

struct Group {
    machine: Arc<Machine>,
    clock: Arc<GroupClock>,
    queue: mpsc::Sender<Queued>,
    applied: Arc<AtomicU64>,
}

struct Queued {
    request: Request,
    reply: oneshot::Sender<Result<Reply, WriteError>>,
}

struct State {
    nodes: Vec<Node>,
    /// Who leads all groups.
    leader: Option<NodeId>,
    /// But for these, which have no leader.
    lost: Vec<GroupId>,
    staleness: Option<Duration>,
    /// What becomes of the next writes: those refused are not applied, those of unknown outcome
    /// are.
    failures: Vec<WriteError>,
}

/// The number of the node.
const ID: NodeId = 1;

impl Alone {
    /// Opens the state of all groups in a store. Clients are told that the node is at `host` and
    /// `port`.
    pub fn open(db: &tamis::Db, groups: u32, host: &str, port: u16) -> Result<Alone> {
        let time_ms = Arc::new(AtomicU64::new(0));
        let group = |group| {
            let machine = Arc::new(Machine::open(db, group)?);
            let (queue, requests) = mpsc::channel();
            let applied = Arc::new(AtomicU64::new(0));
            let clock = Arc::new(GroupClock::new(Arc::clone(&machine), Arc::clone(&time_ms)));
            let parts = (Arc::clone(&clock), Arc::clone(&applied));
            std::thread::spawn(move || apply_all(&requests, &parts.0, &parts.1));
            Ok(Group { machine, clock, queue, applied })
        };
        let nodes = vec![Node { id: ID, host: host.to_owned(), port }];
        let (lost, failures) = (Vec::new(), Vec::new());
        let state = State { nodes, leader: Some(ID), lost, staleness: Some(Duration::ZERO), failures };
        Ok(Alone { groups: (0..groups).map(group).collect::<Result<_>>()?, state: Mutex::new(state), time_ms })
    }

    /// Sets the time, in milliseconds since 1970; zero: that of the groups' clocks.
    pub fn set_time(&self, time_ms: u64) {
        self.time_ms.store(time_ms, Ordering::SeqCst);
    }

    /// Sets which nodes there are, and which of them leads all groups.
    pub fn set_nodes(&self, nodes: Vec<Node>, leader: Option<NodeId>) {
        let mut state = self.state.lock();
        (state.nodes, state.leader) = (nodes, leader);
    }

    /// Takes the leader from a group.
    pub fn lose(&self, group: GroupId) {
        self.state.lock().lost.push(group);
    }

    /// Sets how stale reads are.
    pub fn set_staleness(&self, staleness: Option<Duration>) {
        self.state.lock().staleness = staleness;
    }

    /// Lets the next write fail. One of unknown outcome is applied.
    pub fn fail_next_write(&self, error: WriteError) {
        self.state.lock().failures.push(error);
    }

    fn group(&self, group: GroupId) -> Option<&Group> {
        self.groups.get(usize::try_from(group).ok()?)
    }
}

fn apply_all(requests: &mpsc::Receiver<Queued>, clock: &GroupClock, applied: &AtomicU64) {
    while let Ok(first) = requests.recv() {
        let queued = std::iter::once(first).chain(requests.try_iter().take(ENTRY_REQUESTS - 1));
        let (requests, replies): (Vec<_>, Vec<_>) = queued.map(|queued| (queued.request, queued.reply)).unzip();
        let index = applied.load(Ordering::SeqCst) + 1;
        let entry = Entry { time_ms: clock.now_ms(), requests };
        let result = clock.machine.apply(&entry, &[(b"applied", &index.to_be_bytes())]);
        applied.store(index, Ordering::SeqCst);
        match result {
            // Who asked may have gone.
            Ok(results) => replies.into_iter().zip(results).for_each(|(reply, result)| {
                let _ = reply.send(Ok(result));
            }),
            Err(error) => replies.into_iter().for_each(|reply| {
                let _ = reply.send(Err(WriteError::Unknown(error.to_string())));
            }),
        }
    }
}

impl Replica for Alone {
    fn groups(&self) -> u32 {
        u32::try_from(self.groups.len()).unwrap_or(u32::MAX)
    }

    fn id(&self) -> NodeId {
        ID
    }

    fn nodes(&self) -> Vec<Node> {
        self.state.lock().nodes.clone()
    }

    fn leader(&self, group: GroupId) -> Option<NodeId> {
        let state = self.state.lock();
        state.leader.filter(|_| !state.lost.contains(&group))
    }

    fn now_ms(&self, group: GroupId) -> u64 {
        self.group(group).map_or(0, |group| group.clock.now_ms())
    }

    fn status(&self, group: GroupId) -> Status {
        let index = self.group(group).map_or(0, |group| group.applied.load(Ordering::SeqCst));
        Status {
            leader: self.leader(group),
            term: 1,
            last_index: index,
            committed_index: index,
            applied_index: index,
            voters: self.state.lock().nodes.iter().map(|node| node.id).collect(),
            learners: Vec::new(),
        }
    }

    fn write(&self, group: GroupId, request: Request) -> impl Future<Output = Result<Reply, WriteError>> + Send {
        let (reply, result) = oneshot::channel();
        let (leader, failure) = {
            let mut state = self.state.lock();
            let failure = if state.failures.is_empty() { None } else { Some(state.failures.remove(0)) };
            (state.leader, failure)
        };
        let refusal = match &failure {
            _ if leader != Some(ID) => Some(WriteError::NotLeader { leader }),
            Some(WriteError::Unknown(_)) | None => None,
            Some(refused) => Some(refused.clone()),
        };
        if refusal.is_none()
            && let Some(group) = self.group(group)
        {
            // If the thread has ended, nobody answers, and the outcome is unknown.
            let _ = group.queue.send(Queued { request, reply });
        }
        async move {
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            let result = result.await.unwrap_or_else(|_| Err(WriteError::Unknown("the node stops".to_owned())));
            failure.map_or(result, Err)
        }
    }

    async fn barrier(&self, group: GroupId) -> Result<(), ReadError> {
        match self.leader(group) {
            Some(ID) => Ok(()),
            leader => Err(ReadError::NotLeader { leader }),
        }
    }

    fn machine(&self, group: GroupId) -> Result<Arc<Machine>, ReadError> {
        let group = self.group(group).ok_or_else(|| ReadError::Failed("there is no such group".to_owned()))?;
        Ok(Arc::clone(&group.machine))
    }

    fn staleness(&self, _group: GroupId) -> Option<Duration> {
        self.state.lock().staleness
    }
}
