//! [`Shared`]: what all connections share, and how they ask the replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::RwLock;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::clients::Clients;
use super::config::{Config, Gate, Limits};
use super::memory::Memory;
use super::metrics::Metrics;
use super::monitor::Monitors;
use super::settings;
use super::slow::SlowLog;
use super::transaction::Weave;
use crate::logging::Seldom;
use crate::machine::{
    Body, GroupId, MAX_REPLY_LEN, Operation, Query, Reply, Request, TOO_LONG, group_of, position_of_slot,
    slot_of_position, slots_of,
};
use crate::replica::{NodeId, ReadError, Replica, WriteError};

/// Most reads of many keys at a time: each uses a thread, and memory for a long reply.
const LONG_READS: usize = 4;

/// Reads of more keys than this run on a thread where they hold up nobody.
const SHORT_READ: usize = 64;

pub(super) struct Shared<R> {
    pub(super) replica: Arc<R>,
    pub(super) gate: Gate,
    /// Those that the server was told, and what was changed since.
    limits: RwLock<Limits>,
    /// Lines about failed logins.
    pub(super) refused_logins: Seldom,
    pub(super) metrics: Arc<Metrics>,
    pub(super) memory: Memory,
    pub(super) clients: Clients,
    pub(super) slow: SlowLog,
    pub(super) monitors: Monitors,
    pub(super) started: Instant,
    /// Turns for reads of many keys.
    long_reads: Semaphore,
}

impl<R: Replica> Shared<R> {
    pub(super) fn new(replica: Arc<R>, config: Config) -> Shared<R> {
        let (limits, gate) = (config.limits, Gate::of(&config));
        Shared {
            replica,
            gate,
            refused_logins: Seldom::default(),
            limits: RwLock::new(limits),
            metrics: Arc::new(Metrics::default()),
            memory: Memory::new(limits.shared_bytes, limits.client_bytes),
            clients: Clients::default(),
            slow: SlowLog::default(),
            monitors: Monitors::default(),
            started: Instant::now(),
            long_reads: Semaphore::new(LONG_READS),
        }
    }

    /// The bounds that hold now.
    pub(super) fn limits(&self) -> Limits {
        *self.limits.read()
    }

    /// CONFIG SET.
    pub(super) fn set_limits(&self, changes: &[(Bytes, Bytes)]) -> Reply {
        let mut limits = self.limits.write();
        match settings::set(changes, &limits) {
            Ok(new) => {
                *limits = new;
                self.memory.set_limits(new.shared_bytes, new.client_bytes);
                Reply::OK
            }
            Err(refusal) => refusal,
        }
    }

    /// Proposes a request. The call itself puts it into the replica's queue.
    pub(super) fn write<'a>(
        &'a self,
        slot: u16,
        request: Request,
        weave: Option<Weave>,
    ) -> impl Future<Output = Reply> + Send + use<'a, R> {
        let result = self.replica.write(group_of(slot, self.replica.groups()), request);
        async move {
            match (result.await, weave) {
                (Ok(reply), Some(weave)) => weave.weave(reply),
                (Ok(reply), None) => reply,
                (Err(error), _) => self.refused(slot, error),
            }
        }
    }

    fn refused(&self, slot: u16, error: WriteError) -> Reply {
        match error {
            WriteError::NotLeader { leader } => self.redirect(slot, leader),
            WriteError::Overloaded => Reply::error("TRYAGAIN too many writes are in flight; this one was not applied"),
            WriteError::NoSpace => Reply::error(
                "OOM command not allowed when this node's disk, or those of a majority, are nearly full; reads and \
                 deletes are",
            ),
            WriteError::Refused(reason) => Reply::error(format!("ERR not applied: {reason}")),
            WriteError::Unknown(reason) => {
                count(&self.metrics.unknown);
                Reply::error(format!("UNKNOWN the write may have been applied or not, or may be later: {reason}"))
            }
        }
    }

    fn unread(&self, slot: u16, error: ReadError) -> Reply {
        match error {
            ReadError::NotLeader { leader } => self.redirect(slot, leader),
            ReadError::NoQuorum(reason) => Reply::error(format!("CLUSTERDOWN no majority answers: {reason}")),
            ReadError::Failed(reason) => Reply::error(format!("ERR cannot read: {reason}")),
        }
    }

    /// Where to go with keys of a slot.
    fn redirect(&self, slot: u16, leader: Option<NodeId>) -> Reply {
        // A node that leads again by now is not told to its own clients, who would come in circles.
        let other = leader.filter(|leader| *leader != self.replica.id());
        let node = self.replica.nodes().into_iter().find(|node| Some(node.id) == other);
        match node {
            Some(node) => {
                count(&self.metrics.moved);
                // Clients split at the last colon: no brackets around IPv6 addresses.
                Reply::error(format!("MOVED {slot} {}:{}", node.host, node.port))
            }
            None => Reply::error("CLUSTERDOWN Hash slot not served: its group has no leader now"),
        }
    }

    /// Refuses commands for slots that this node does not lead.
    pub(super) fn check_leader(&self, slot: u16) -> Result<(), Reply> {
        let leader = self.replica.leader(group_of(slot, self.replica.groups()));
        if leader == Some(self.replica.id()) { Ok(()) } else { Err(self.redirect(slot, leader)) }
    }

    /// A linearizable read. Groups in `fresh` need no further barrier.
    pub(super) async fn read(&self, slot: u16, query: &Query, fresh: &mut Vec<GroupId>) -> Result<Reply, Reply> {
        let group = group_of(slot, self.replica.groups());
        if !fresh.contains(&group) {
            self.replica.barrier(group).await.map_err(|error| self.unread(slot, error))?;
            fresh.push(group);
        }
        let _turn = self.turn(query).await;
        let (reply, ahead_of_log) = self.query(group, slot, query, self.replica.now_ms(group)).await?;
        if !ahead_of_log {
            return Ok(reply);
        }
        // A key has expired by this node's clock alone. Let the log decide.
        let tick = self.replica.write(group, Request::new(Body::Tick));
        tick.await.map_err(|error| match error {
            WriteError::Unknown(reason) => Reply::error(format!("CLUSTERDOWN no majority answers: {reason}")),
            refused => self.refused(slot, refused),
        })?;
        Ok(self.query(group, slot, query, 0).await?.0)
    }

    /// Reads what this node has, if that lacks no writes older than `most_ms`. Answers how stale it
    /// may be, and the reply.
    pub(super) async fn read_stale(&self, slot: u16, query: &Query, most_ms: u64) -> Result<(i64, Reply), Reply> {
        let group = group_of(slot, self.replica.groups());
        // First: while it waits, what it could have read gets older.
        let _turn = self.turn(query).await;
        let Some(staleness) = self.replica.staleness(group) else {
            return Err(Reply::error("STALE this node has not heard of its group's leader since it started"));
        };
        let millis = staleness.as_millis();
        if millis > u128::from(most_ms) {
            return Err(Reply::error(format!("STALE this node may lack writes of the last {millis} ms")));
        }
        let (reply, _) = self.query(group, slot, query, self.replica.now_ms(group)).await?;
        if reply.is_error() { Err(reply) } else { Ok((i64::try_from(millis).unwrap_or(i64::MAX), reply)) }
    }

    /// A read of a client that has said READONLY: here, unless this node lacks too much.
    pub(super) async fn read_here(&self, slot: u16, query: &Query, fresh: &mut Vec<GroupId>) -> Result<Reply, Reply> {
        let leader = self.replica.leader(group_of(slot, self.replica.groups()));
        if leader == Some(self.replica.id()) {
            return self.read(slot, query, fresh).await;
        }
        let most_ms = u64::try_from(self.limits().stale.as_millis()).unwrap_or(u64::MAX);
        match self.read_stale(slot, query, most_ms).await {
            Ok((_, reply)) => Ok(reply),
            Err(Reply::Error(text)) if text.starts_with("STALE") => Err(self.redirect(slot, leader)),
            Err(error) => Err(error),
        }
    }

    /// A turn, if a query needs one: each may hold a long reply, which is counted only once it is
    /// there.
    async fn turn(&self, query: &Query) -> Option<SemaphorePermit<'_>> {
        if is_long(query) { self.long_reads.acquire().await.ok() } else { None }
    }

    /// Runs a query whose turn it is, and tells whether its answer is ahead of the log.
    async fn query(&self, group: GroupId, slot: u16, query: &Query, now_ms: u64) -> Result<(Reply, bool), Reply> {
        let machine = self.replica.machine(group).map_err(|error| self.unread(slot, error))?;
        let reading = if is_long(query) {
            let query = query.clone();
            match tokio::task::spawn_blocking(move || machine.read(&query, now_ms)).await {
                Ok(reading) => reading,
                Err(_) => return Err(Reply::error("ERR cannot read: the node stops")),
            }
        } else {
            machine.read(query, now_ms)
        };
        match reading {
            Ok(reading) => Ok((reading.reply, reading.ahead_of_log)),
            Err(error) => {
                tracing::error!(group, %error, "cannot read");
                Err(Reply::error(format!("ERR cannot read: {error}")))
            }
        }
    }

    /// The groups that this node leads, and the first slot of each.
    pub(super) fn led(&self) -> impl Iterator<Item = (GroupId, u16)> {
        let groups = self.replica.groups();
        let led = (0..groups).filter(|group| self.replica.leader(*group) == Some(self.replica.id()));
        led.map(move |group| (group, slots_of(group, groups).start))
    }

    /// What a node answers about all its keys if it leads no group.
    fn nothing_led(&self) -> Reply {
        self.redirect(0, self.replica.leader(0))
    }

    /// The groups that this node leads. If there are none, the error says who leads one.
    fn all_led(&self) -> Result<Vec<(GroupId, u16)>, Reply> {
        let led: Vec<_> = self.led().collect();
        if led.is_empty() { Err(self.nothing_led()) } else { Ok(led) }
    }

    /// DBSIZE.
    pub(super) async fn size(&self, fresh: &mut Vec<GroupId>) -> Result<Reply, Reply> {
        let mut sum = 0;
        for (_, slot) in self.all_led()? {
            if let Reply::Integer(keys) = self.read(slot, &Query::Size, fresh).await? {
                sum += keys;
            }
        }
        Ok(Reply::Integer(sum))
    }

    /// FLUSHALL: an entry in the log of each group.
    pub(super) async fn clear(&self) -> Result<Reply, Reply> {
        let led = self.all_led()?.into_iter();
        let replies = join_all(led.map(|(_, slot)| self.write(slot, Request::new(Body::Run(Operation::Clear)), None)));
        Ok(replies.await.into_iter().find(Reply::is_error).unwrap_or(Reply::OK))
    }

    /// KEYS.
    pub(super) async fn keys(&self, pattern: &Bytes, fresh: &mut Vec<GroupId>) -> Result<Reply, Reply> {
        let (mut all, mut len) = (Vec::new(), 0);
        for (group, first) in self.all_led()? {
            let end = slots_of(group, self.replica.groups()).end;
            let query = Query::Keys { first, end, pattern: Some(pattern.clone()), limit: u64::MAX };
            match self.read(first, &query, fresh).await? {
                Reply::Array(keys) => {
                    len += keys.iter().map(Reply::weight).sum::<usize>();
                    all.extend(keys);
                }
                error => return Err(error),
            }
            if len > MAX_REPLY_LEN {
                return Err(TOO_LONG);
            }
        }
        Ok(Reply::Array(all))
    }

    /// RANDOMKEY: near a position that is drawn here, of a group that is drawn here.
    pub(super) async fn random(&self, fresh: &mut Vec<GroupId>) -> Result<Reply, Reply> {
        let mut led = self.all_led()?;
        let start = rand::random_range(0..led.len());
        led.rotate_left(start);
        for (group, first) in led {
            let end = slots_of(group, self.replica.groups()).end;
            let position = rand::random_range(position_of_slot(first)..position_of_slot(end));
            match self.read(first, &Query::Near(position), fresh).await? {
                Reply::Nil => {}
                key => return Ok(key),
            }
        }
        Ok(Reply::Nil)
    }

    /// Scans the group of a position, and passes on to the next one that this node leads. Position
    /// 0 is that of the first one.
    pub(super) async fn scan(
        &self,
        from: u64,
        count: u32,
        pattern: Option<Bytes>,
        fresh: &mut Vec<GroupId>,
    ) -> Result<Reply, Reply> {
        let groups = self.replica.groups();
        let start = group_of(slot_of_position(from), groups);
        if start >= groups {
            return Ok(Reply::Array(vec![Reply::bulk("0"), Reply::Array(Vec::new())]));
        }
        let mut led = self.led().skip_while(|(group, _)| *group < start).peekable();
        let Some((group, first)) = led.next().filter(|(group, _)| from == 0 || *group == start) else {
            return Err(match self.led().next() {
                Some(_) => Reply::error("ERR the scan is in a group that has another leader now; begin it again"),
                None => self.nothing_led(),
            });
        };
        let from = if group == start { from } else { position_of_slot(first) };
        let slot = slot_of_position(from).min(slots_of(group, groups).end - 1);
        let reply = self.read(slot, &Query::Scan { from, count, pattern }, fresh).await?;
        match (reply, led.peek()) {
            (Reply::Array(mut parts), Some((_, next))) if parts.first() == Some(&Reply::bulk("0")) => {
                parts[0] = Reply::bulk(position_of_slot(*next).to_string());
                Ok(Reply::Array(parts))
            }
            (reply, _) => Ok(reply),
        }
    }
}

fn is_long(query: &Query) -> bool {
    match query {
        Query::GetMany(keys) | Query::Exists(keys) | Query::Versions(keys) => keys.len() > SHORT_READ,
        Query::Scan { .. } | Query::Range { .. } | Query::SlotSize(_) => true,
        Query::Keys { .. } | Query::Near(_) | Query::Lcs { .. } => true,
        _ => false,
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
