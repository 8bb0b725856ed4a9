//! [`Connection`]: one client, from its first byte to its last.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::Either;
use futures_util::stream::FuturesOrdered;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::decode::Decoder;
use super::describe;
use super::encode::{Version, encode};
use super::memory::{FREE, Share};
use super::shared::{Shared, count};
use super::transaction::{Exec, Transaction, Weave};
use super::users::{Access, User};
use crate::command::{Client, Cluster, Command, Kind, Parsed, parse};
use crate::machine::{Body, GroupId, Query, Reply, Request, Serial};
use crate::replica::Replica;

/// How much a read may take: little for connections that rarely send, up to the most for busy ones.
const LEAST_READ: usize = 1024;
const MOST_READ: usize = 16 * 1024;

/// From this many bytes on, replies are sent before further commands are carried out.
const FLUSH_LEN: usize = 16 * 1024;

/// The least speed at which long commands and replies must move, in bytes per millisecond.
const LEAST_SPEED: usize = 64;

/// After so many refused passwords, a connection is closed.
const MOST_FAILURES: u32 = 10;

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// The client has gone.
    Gone,
    /// The client said QUIT, or its last reply says why.
    Done,
    /// It sent or took nothing for too long.
    Stalled,
    /// It sent no command.
    Protocol,
    /// The server stops.
    Stop,
}

/// What is to be done with a command.
enum Action {
    /// Answer this.
    Answer(Reply),
    /// Propose this.
    Write { slot: u16, request: Request, weave: Option<Weave> },
    /// Carry this out once all commands before it are answered.
    Alone(Option<u16>, Command),
}

pub(super) struct Connection<R, S> {
    shared: Arc<Shared<R>>,
    stream: S,
    peer: SocketAddr,
    id: u64,
    opened: Instant,
    buffer: BytesMut,
    decoder: Decoder,
    read_len: usize,
    /// When the command in the buffer began.
    began: Instant,
    out: BytesMut,
    version: Version,
    user: Option<Arc<User>>,
    failures: u32,
    name: Bytes,
    transaction: Transaction,
    /// Shared memory for the command being read, and for the replies in `out`.
    input: Share,
    output: Share,
}

impl<R: Replica, S: AsyncRead + AsyncWrite + Unpin> Connection<R, S> {
    pub(super) fn new(shared: Arc<Shared<R>>, stream: S, peer: SocketAddr, id: u64) -> Connection<R, S> {
        let mut decoder = Decoder::new(shared.config.limits.command);
        decoder.set_stranger(shared.config.users.is_some());
        Connection {
            shared,
            stream,
            peer,
            id,
            opened: Instant::now(),
            buffer: BytesMut::new(),
            decoder,
            read_len: LEAST_READ,
            began: Instant::now(),
            out: BytesMut::new(),
            version: Version::default(),
            user: None,
            failures: 0,
            name: Bytes::new(),
            transaction: Transaction::default(),
            input: Share::default(),
            output: Share::default(),
        }
    }

    /// Serves the client until one side ends it.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Close {
        let shared = Arc::clone(&self.shared);
        loop {
            let served = match self.fill(&mut stop).await {
                Ok(()) => self.serve(&shared).await,
                Err(close) => Err(close),
            };
            if let Err(close) = served {
                // The last reply, if the client still takes it.
                let _ = self.flush().await;
                let _ = timeout(shared.config.limits.stall, self.stream.shutdown()).await;
                return close;
            }
        }
    }

    /// Reads more bytes.
    async fn fill(&mut self, stop: &mut watch::Receiver<bool>) -> Result<(), Close> {
        let limits = &self.shared.config.limits;
        let inside = self.decoder.is_inside(&self.buffer);
        let needs = if inside { self.decoder.needs(&self.buffer) } else { 0 };
        if !inside {
            self.began = Instant::now();
            if self.buffer.capacity() > LEAST_READ {
                self.buffer = BytesMut::new();
            }
        }
        let deadline = match limits.idle {
            _ if self.is_stranger() => Some(self.opened + limits.stall),
            _ if inside => Some(self.began + limits.stall + moving_time(needs)),
            idle => idle.map(|idle| Instant::now() + idle),
        };
        if needs <= FREE {
            self.input.clear();
        } else if within(deadline, self.shared.memory.enlarge(&mut self.input, needs)).await.is_none() {
            self.reply(&Reply::error("ERR there is no memory for a command of this length now; try again later"));
            return Err(Close::Done);
        }
        // At most doubles what is there: a declared length alone takes no memory.
        let room = needs.saturating_sub(self.buffer.len()).min(self.buffer.len()).max(self.read_len);
        self.buffer.reserve(room);
        let read = tokio::select! {
            read = within(deadline, self.stream.read_buf(&mut self.buffer)) => read,
            _ = stop.wait_for(|stop| *stop) => return Err(Close::Stop),
        };
        match read {
            None => {
                if inside {
                    self.reply(&Reply::error("ERR the rest of the command did not come in time"));
                }
                Err(Close::Stalled)
            }
            Some(Ok(len)) if len > 0 => {
                self.shared.metrics.bytes_in.fetch_add(len as u64, Relaxed);
                let next = if len >= self.read_len { self.read_len * 4 } else { self.read_len / 2 };
                self.read_len = next.clamp(LEAST_READ, MOST_READ);
                Ok(())
            }
            Some(_) => Err(Close::Gone),
        }
    }

    /// Carries out all commands in the buffer.
    async fn serve(&mut self, shared: &Shared<R>) -> Result<(), Close> {
        // Replies in the order of the commands. Writes among them are in flight.
        let mut pending = FuturesOrdered::new();
        // Groups that were led from here after all these commands had come.
        let mut fresh = Vec::new();
        loop {
            if pending.len() >= shared.config.limits.in_flight {
                self.answer_all(&mut pending).await?;
            }
            let words = match self.decoder.decode(&mut self.buffer) {
                Ok(Some(words)) => words,
                Ok(None) => break,
                Err(error) => {
                    self.answer_all(&mut pending).await?;
                    self.reply(&Reply::error(format!("ERR {error}")));
                    return Err(Close::Protocol);
                }
            };
            self.began = Instant::now();
            if is_http(&words) {
                return Err(Close::Protocol);
            }
            match self.prepare(&words) {
                Action::Answer(reply) if pending.is_empty() => self.reply(&reply),
                Action::Answer(reply) => pending.push_back(Either::Left(ready(reply))),
                Action::Write { slot, request, weave } if request.body.answers_values() => {
                    self.answer_all(&mut pending).await?;
                    let reply = shared.write(slot, request, weave).await;
                    self.reply_if_it_fits(reply, Reply::NOT_KEPT);
                }
                Action::Write { slot, request, weave } => {
                    pending.push_back(Either::Right(shared.write(slot, request, weave)));
                }
                Action::Alone(slot, command) => {
                    self.answer_all(&mut pending).await?;
                    self.carry_out(shared, slot, command, &mut fresh).await?;
                }
            }
            if self.out.len() >= FLUSH_LEN {
                self.flush().await?;
            }
        }
        self.answer_all(&mut pending).await?;
        self.flush().await
    }

    async fn answer_all(&mut self, pending: &mut FuturesOrdered<impl Future<Output = Reply>>) -> Result<(), Close> {
        while let Some(reply) = pending.next().await {
            self.reply(&reply);
            if self.out.len() >= FLUSH_LEN {
                self.flush().await?;
            }
        }
        Ok(())
    }

    fn reply(&mut self, reply: &Reply) {
        if reply.is_error() {
            self.shared.metrics.errors.fetch_add(1, Relaxed);
        }
        encode(reply, self.version, &mut self.out);
    }

    /// Answers a reply that may be long, or another one if there is no memory to hold it until the
    /// client takes it.
    fn reply_if_it_fits(&mut self, reply: Reply, otherwise: Reply) {
        if self.shared.memory.try_add(&mut self.output, reply.weight()) {
            self.reply(&reply);
        } else {
            count(&self.shared.metrics.out_of_memory);
            self.reply(&otherwise);
        }
    }

    async fn flush(&mut self) -> Result<(), Close> {
        let len = self.out.len();
        if len == 0 {
            return Ok(());
        }
        let deadline = Instant::now() + self.shared.config.limits.stall + moving_time(len);
        let written = within(Some(deadline), async {
            self.stream.write_all(&self.out).await?;
            self.stream.flush().await
        })
        .await;
        self.output.clear();
        if self.out.capacity() > FLUSH_LEN {
            self.out = BytesMut::new();
        } else {
            self.out.clear();
        }
        match written {
            None => Err(Close::Stalled),
            Some(Err(_)) => Err(Close::Gone),
            Some(Ok(())) => {
                self.shared.metrics.bytes_out.fetch_add(len as u64, Relaxed);
                Ok(())
            }
        }
    }

    /// Whether the client must authenticate first.
    fn is_stranger(&self) -> bool {
        self.shared.config.users.is_some() && self.user.is_none()
    }

    /// Parses a command and decides what is to be done. Changes the transaction.
    fn prepare(&mut self, words: &[Bytes]) -> Action {
        match self.check(words) {
            Ok(parsed) => self.decide(parsed),
            Err(reply) => {
                self.transaction.spoil();
                Action::Answer(reply)
            }
        }
    }

    /// Parses a command that the client may give.
    fn check(&self, words: &[Bytes]) -> Result<Parsed, Reply> {
        if self.is_stranger() {
            let spec = words.first().and_then(|name| crate::command::find(name));
            if !spec.is_some_and(|spec| ["auth", "hello", "quit"].contains(&spec.name)) {
                return Err(Reply::error("NOAUTH Authentication required."));
            }
        }
        let parsed = parse(words)?;
        self.shared.metrics.count_call(parsed.spec);
        if let Some(user) = &self.user
            && user.access == Access::ReadOnly
            && parsed.spec.kind == Kind::Write
        {
            let (user, name) = (&user.name, parsed.spec.name);
            return Err(Reply::error(format!("NOPERM User {user} has no permissions to run the '{name}' command")));
        }
        Ok(parsed)
    }

    fn decide(&mut self, parsed: Parsed) -> Action {
        let Parsed { slot, command, .. } = parsed;
        match (command, slot) {
            (Command::Multi, _) => Action::Answer(self.transaction.begin()),
            (Command::Discard, _) => Action::Answer(self.transaction.discard()),
            (Command::Exec, _) => match self.transaction.exec() {
                Exec::Answer(reply) => Action::Answer(reply),
                Exec::Propose(slot, body, weave) => {
                    Action::Write { slot, request: Request::new(body), weave: Some(weave) }
                }
            },
            (Command::Watch(_), _) if self.transaction.is_open() => {
                Action::Answer(Reply::error("ERR WATCH inside MULTI is not allowed"))
            }
            (Command::Quit, _) => Action::Alone(None, Command::Quit),
            (command, slot) if self.transaction.is_open() => Action::Answer(self.queue(slot, command)),
            (Command::Write(operation), Some(slot)) => write(slot, None, Body::Run(operation)),
            (Command::Once(serial, operation), Some(slot)) => write(slot, Some(serial), Body::Run(operation)),
            (Command::OpenSession, Some(slot)) => write(slot, None, Body::OpenSession),
            (Command::Unwatch, _) => {
                self.transaction.unwatch();
                Action::Answer(Reply::OK)
            }
            (command, slot) => self.describe(command).unwrap_or_else(|command| Action::Alone(slot, command)),
        }
    }

    /// Queues a command of a transaction.
    fn queue(&mut self, slot: Option<u16>, command: Command) -> Reply {
        let command = if command == Command::Unwatch { Command::Answer(Reply::OK) } else { command };
        let queued = slot
            .map_or(Ok(()), |slot| self.shared.check_leader(slot))
            .and_then(|()| self.transaction.queue(slot, command, &self.shared.memory));
        queued.unwrap_or_else(|error| {
            self.transaction.spoil();
            error
        })
    }

    /// Answers commands that need nobody.
    fn describe(&mut self, command: Command) -> Result<Action, Command> {
        let shared = &*self.shared;
        Ok(Action::Answer(match command {
            Command::Answer(reply) => reply,
            Command::Client(client) => self.client(client),
            Command::Cluster(Cluster::Info) => describe::cluster_info(&*shared.replica),
            Command::Cluster(Cluster::MyId) => Reply::bulk(describe::node_name(shared.replica.id())),
            Command::Cluster(Cluster::Nodes) => describe::cluster_nodes(&*shared.replica),
            Command::Cluster(Cluster::Shards) => describe::cluster_shards(&*shared.replica),
            Command::Cluster(Cluster::Slots) => describe::cluster_slots(&*shared.replica),
            Command::Commands(commands) => describe::commands(&commands),
            Command::ConfigGet(patterns) => describe::config(&patterns, &shared.config.limits),
            Command::Info(sections) => {
                let uptime = shared.started.elapsed();
                describe::info(&sections, &*shared.replica, &shared.metrics, &shared.config.limits, uptime)
            }
            other => return Err(other),
        }))
    }

    fn client(&mut self, client: Client) -> Reply {
        match client {
            Client::Id => Reply::Integer(i64::try_from(self.id).unwrap_or(i64::MAX)),
            Client::GetName if self.name.is_empty() => Reply::Nil,
            Client::GetName => Reply::Bulk(self.name.clone()),
            Client::SetName(name) => {
                self.name = name;
                Reply::OK
            }
            Client::Info => {
                let (id, peer, name) = (self.id, self.peer, String::from_utf8_lossy(&self.name));
                let user = self.user.as_ref().map_or("default", |user| &user.name);
                let (age, resp) = (self.opened.elapsed().as_secs(), self.protocol());
                Reply::Text(format!("id={id} addr={peer} name={name} age={age} db=0 user={user} resp={resp}\n"))
            }
            Client::Ignore => Reply::OK,
        }
    }

    fn protocol(&self) -> i64 {
        match self.version {
            Version::Resp2 => 2,
            Version::Resp3 => 3,
        }
    }

    /// Carries out a command that others must not overtake.
    async fn carry_out(
        &mut self,
        shared: &Shared<R>,
        slot: Option<u16>,
        command: Command,
        fresh: &mut Vec<GroupId>,
    ) -> Result<(), Close> {
        let reply = match (command, slot) {
            (Command::Quit, _) => {
                self.reply(&Reply::OK);
                return Err(Close::Done);
            }
            (Command::Auth(name, password), _) => match self.authenticate(&name, &password).await? {
                Ok(()) => Reply::OK,
                Err(error) => error,
            },
            (Command::Hello { version, auth, name }, _) => self.hello(version, auth, name).await?,
            (Command::Read(query), Some(slot)) => {
                let began = Instant::now();
                let reply = shared.read(slot, &query, fresh).await.unwrap_or_else(|error| error);
                shared.metrics.reads.record(began.elapsed());
                if let Query::Get(_) = query {
                    let counter = if reply == Reply::Nil { &shared.metrics.misses } else { &shared.metrics.hits };
                    counter.fetch_add(1, Relaxed);
                }
                reply
            }
            (Command::Stale(most, query), Some(slot)) => {
                shared.read_stale(slot, &query, most).await.unwrap_or_else(|error| error)
            }
            (Command::Watch(keys), Some(slot)) => self.watch(shared, slot, keys, fresh).await,
            (Command::Size, _) => shared.size(fresh).await.unwrap_or_else(|error| error),
            (Command::Scan { from, count, pattern, any }, _) => {
                let scanned = shared.scan(from, count, pattern, fresh).await;
                match scanned.unwrap_or_else(|error| error) {
                    Reply::Array(parts) if !any => {
                        let next = parts.into_iter().next().unwrap_or(Reply::Nil);
                        Reply::Array(vec![next, Reply::Array(Vec::new())])
                    }
                    reply => reply,
                }
            }
            (Command::Cluster(Cluster::CountKeysInSlot(slot)), _) => {
                shared.read(slot, &Query::SlotSize(slot), fresh).await.unwrap_or_else(|error| error)
            }
            (other, _) => Reply::error(format!("ERR kvd does not know what to do with {other:?}")),
        };
        self.reply_if_it_fits(reply, NO_MEMORY);
        Ok(())
    }

    async fn watch(&mut self, shared: &Shared<R>, slot: u16, keys: Vec<Bytes>, fresh: &mut Vec<GroupId>) -> Reply {
        let versions = match shared.read(slot, &Query::Versions(keys.clone()), fresh).await {
            Ok(Reply::Array(versions)) => versions,
            Ok(other) | Err(other) => return other,
        };
        let versions = versions.iter().map(|version| match version {
            Reply::Integer(version) => u64::try_from(*version).unwrap_or(0),
            _ => 0,
        });
        let watched = self
            .transaction
            .join(Some(slot))
            .and_then(|()| self.transaction.watch(keys.into_iter().zip(versions), &shared.memory));
        watched.map_or_else(|error| error, |()| Reply::OK)
    }

    async fn authenticate(&mut self, name: &[u8], password: &[u8]) -> Result<Result<(), Reply>, Close> {
        let Some(users) = self.shared.config.users.clone() else {
            return Ok(Err(Reply::error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            )));
        };
        if let Some(user) = users.authenticate(name, password).await {
            self.user = Some(user);
            self.decoder.set_stranger(false);
            return Ok(Ok(()));
        }
        self.shared.metrics.auth_failures.fetch_add(1, Relaxed);
        self.failures += 1;
        let refusal = Reply::error("WRONGPASS invalid username-password pair or user is disabled.");
        if self.failures >= MOST_FAILURES {
            self.reply(&refusal);
            return Err(Close::Done);
        }
        Ok(Err(refusal))
    }

    async fn hello(
        &mut self,
        version: Option<u8>,
        auth: Option<(Bytes, Bytes)>,
        name: Option<Bytes>,
    ) -> Result<Reply, Close> {
        if let Some((name, password)) = auth
            && let Err(refusal) = self.authenticate(&name, &password).await?
        {
            return Ok(refusal);
        }
        if self.is_stranger() {
            return Ok(Reply::error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                 AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                 version at the same time",
            ));
        }
        match version {
            Some(2) => self.version = Version::Resp2,
            Some(3) => self.version = Version::Resp3,
            _ => {}
        }
        self.name = name.unwrap_or(std::mem::take(&mut self.name));
        let bulk = |text: &str| Reply::bulk(text);
        Ok(Reply::Map(vec![
            (bulk("server"), bulk("redis")),
            (bulk("version"), bulk(describe::REDIS_VERSION)),
            (bulk("proto"), Reply::Integer(self.protocol())),
            (bulk("id"), self.client(Client::Id)),
            (bulk("mode"), bulk("cluster")),
            (bulk("role"), bulk("master")),
            (bulk("modules"), Reply::Array(Vec::new())),
        ]))
    }
}

const NO_MEMORY: Reply = Reply::Error(std::borrow::Cow::Borrowed(
    "TRYAGAIN there is no memory for a reply of this length now; ask for less, or again later",
));

/// Whether a browser sends this, perhaps because of a page that wants to reach this server.
fn is_http(words: &[Bytes]) -> bool {
    words.first().is_some_and(|name| name.eq_ignore_ascii_case(b"host:") || name.eq_ignore_ascii_case(b"post"))
}

fn write(slot: u16, session: Option<Serial>, body: Body) -> Action {
    Action::Write { slot, request: Request { session, body }, weave: None }
}

/// How long so many bytes may take at the least speed.
fn moving_time(bytes: usize) -> Duration {
    Duration::from_millis((bytes / LEAST_SPEED) as u64)
}

/// The output of a future, unless it takes longer than to a deadline.
async fn within<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}
