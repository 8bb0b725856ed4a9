//! [`Dialogue`]: what a client has said so far (version of the protocol, user, transaction), and
//! what its commands do. Knows no sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use tokio::time::Instant;

use super::catalogue;
use super::clients::{Client, Profile};
use super::cluster::{self, node_name};
use super::encode::Version;
use super::info::{self, REDIS_VERSION};
use super::monitor::Monitor;
use super::settings;
use super::shared::Shared;
use super::transaction::{Exec, Transaction, Weave};
use super::users::{Access, User};
use crate::command::{Command, ConnectionCommand, Kind, Led, LibraryField, Parsed, Replies, ServerCommand, Spec};
use crate::command::{find, parse};
use crate::machine::{Body, GroupId, Query, Reply, Request, Serial};
use crate::replica::Replica;

/// Bytes of a name that a line of the log shows.
const SHOWN_NAME: usize = 64;

/// After so many refused passwords, a connection is closed.
const MOST_FAILURES: u32 = 10;

/// What is to be done with a command.
pub(super) enum Action {
    /// Answer this.
    Answer(Reply),
    /// Propose this.
    Write { slot: u16, request: Request, weave: Option<Weave> },
    /// Carry this out once all commands before it are answered.
    Alone(Option<u16>, Command),
}

/// A command that was checked.
pub(super) struct Prepared {
    /// Its entry in the table, if it has one.
    pub(super) spec: Option<&'static Spec>,
    pub(super) action: Action,
    /// Whether the client gets no reply.
    pub(super) muted: bool,
}

/// What becomes of the connection after a command.
pub(super) enum Then {
    GoOn(Reply),
    /// Its last reply.
    Close(Reply),
}

pub(super) struct Dialogue<R> {
    shared: Arc<Shared<R>>,
    client: Arc<Client>,
    version: Version,
    user: Option<Arc<User>>,
    failures: u32,
    read_only: bool,
    replies: Replies,
    transaction: Transaction,
    /// What it sees of other clients.
    pub(super) monitor: Monitor,
}

impl<R: Replica> Dialogue<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, client: Arc<Client>) -> Dialogue<R> {
        let transaction = Transaction::new(client.account.clone());
        Dialogue {
            shared,
            client,
            version: Version::default(),
            user: None,
            failures: 0,
            read_only: false,
            replies: Replies::On,
            transaction,
            monitor: Monitor::default(),
        }
    }

    /// The version of the protocol in which the client wants replies.
    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Whether the client must authenticate first.
    pub(super) fn is_stranger(&self) -> bool {
        self.shared.gate.users().is_some() && self.user.is_none()
    }

    /// Parses a command and decides what is to be done. Changes the transaction.
    pub(super) fn prepare(&mut self, words: &[Bytes], now: Instant) -> Prepared {
        let before = self.replies;
        let (spec, action) = match self.check(words) {
            Ok(parsed) => {
                self.client.note(parsed.spec, words.iter().map(encoded_len).sum::<usize>() + 4, now);
                if self.shared.monitors.any() && !is_secret(parsed.spec) {
                    self.shared.monitors.show(self.client.peer, words);
                }
                (Some(parsed.spec), self.decide(parsed))
            }
            Err(reply) => {
                self.transaction.spoil();
                (None, Action::Answer(reply))
            }
        };
        self.client.note_queue(self.transaction.queued());
        let muted = match (before, self.replies) {
            (_, Replies::Off) | (Replies::On | Replies::Off, Replies::Skip) => true,
            (Replies::Skip, Replies::Skip) => {
                self.replies = Replies::On;
                true
            }
            (_, Replies::On) => false,
        };
        Prepared { spec, action, muted }
    }

    /// Parses a command that the client may give.
    fn check(&self, words: &[Bytes]) -> Result<Parsed, Reply> {
        let spec = || words.first().and_then(|name| find(name));
        if self.is_stranger() && !spec().is_some_and(|spec| ["auth", "hello", "quit", "reset"].contains(&spec.name)) {
            return Err(Reply::error("NOAUTH Authentication required."));
        }
        let parsed = parse(words).inspect_err(|_| {
            if let Some(spec) = spec() {
                self.shared.metrics.count_rejected(spec);
            }
        })?;
        if let Some(user) = &self.user
            && user.access == Access::ReadOnly
            && matches!(parsed.spec.kind, Kind::Write | Kind::Admin)
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
            (command @ Command::Connection(ConnectionCommand::Quit | ConnectionCommand::Reset), _) => {
                Action::Alone(None, command)
            }
            (command, slot) if self.transaction.is_open() => Action::Answer(self.queue(slot, command)),
            (Command::Write(operation), Some(slot)) => write(slot, None, Body::Run(operation)),
            (Command::Once(serial, operation), Some(slot)) => write(slot, Some(serial), Body::Run(operation)),
            (Command::OpenSession, Some(slot)) => write(slot, None, Body::OpenSession),
            (Command::Unwatch, _) => {
                self.transaction.unwatch();
                Action::Answer(Reply::OK)
            }
            (Command::Answer(reply), _) => Action::Answer(reply),
            (Command::Server(command), _) => Action::Answer(self.ask_server(command)),
            (Command::Connection(command), slot) => match self.change(command) {
                Ok(reply) => Action::Answer(reply),
                Err(command) => Action::Alone(slot, Command::Connection(command)),
            },
            (command, slot) => Action::Alone(slot, command),
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

    /// Carries out a command about the connection that needs no waiting; gives others back.
    fn change(&mut self, command: ConnectionCommand) -> Result<Reply, ConnectionCommand> {
        let mut profile = self.client.profile.lock();
        Ok(match command {
            ConnectionCommand::Id => Reply::Integer(i64::try_from(self.client.id).unwrap_or(i64::MAX)),
            ConnectionCommand::GetName if profile.name.is_empty() => Reply::Nil,
            ConnectionCommand::GetName => Reply::Bulk(profile.name.clone()),
            ConnectionCommand::SetName(name) => {
                profile.name = name;
                Reply::OK
            }
            ConnectionCommand::SetInfo(field, text) => {
                match field {
                    LibraryField::Name => profile.library = text,
                    LibraryField::Version => profile.library_version = text,
                }
                Reply::OK
            }
            ConnectionCommand::Info => {
                drop(profile);
                Reply::Text(self.client.line() + "\n")
            }
            ConnectionCommand::ReadOnly(read_only) => {
                profile.read_only = read_only;
                self.read_only = read_only;
                Reply::OK
            }
            ConnectionCommand::Reply(replies) => {
                self.replies = replies;
                Reply::OK
            }
            ConnectionCommand::Monitor => {
                self.monitor = self.shared.monitors.join();
                Reply::OK
            }
            ConnectionCommand::WhoAmI => Reply::bulk(profile.user.as_deref().unwrap_or("default")),
            other => return Err(other),
        })
    }

    /// Carries out a command about the server.
    fn ask_server(&self, command: ServerCommand) -> Reply {
        let shared = &*self.shared;
        let replica = &*shared.replica;
        match command {
            ServerCommand::Info(sections) => info::info(&sections, shared),
            ServerCommand::Time => info::time(),
            ServerCommand::Role => cluster::role(replica),
            ServerCommand::Wait { local } => info::replicas(replica, local),
            ServerCommand::ConfigGet(patterns) => settings::get(&patterns, &shared.limits()),
            ServerCommand::ConfigSet(changes) => shared.set_limits(&changes),
            ServerCommand::ResetStatistics => {
                shared.metrics.reset();
                Reply::OK
            }
            ServerCommand::ClientList(ids) => shared.clients.lines(ids.as_deref()),
            ServerCommand::ClientKill(filter) => match &filter.user {
                Some(name) if !shared.gate.knows_user(name) => {
                    Reply::error(format!("ERR No such user '{}'", String::from_utf8_lossy(name)))
                }
                _ => shared.clients.kill(&filter, self.client.id),
            },
            ServerCommand::SlowLog(count) => shared.slow.get(count),
            ServerCommand::SlowLogLen => shared.slow.len(),
            ServerCommand::SlowLogReset => shared.slow.reset(),
            ServerCommand::CommandInfo(names) => catalogue::info(names.as_deref()),
            ServerCommand::CommandCount => catalogue::count(),
            ServerCommand::CommandList(filter) => catalogue::list(filter.as_ref()),
            ServerCommand::CommandDocs(names) => catalogue::docs(&names),
            ServerCommand::CommandKeys { words, flags } => catalogue::keys(&words, flags),
            ServerCommand::Help(name) => catalogue::help(name),
            ServerCommand::ClusterInfo => cluster::cluster_info(replica),
            ServerCommand::ClusterMyId => Reply::bulk(node_name(replica.id())),
            ServerCommand::ClusterMyShardId => cluster::cluster_shard_id(replica),
            ServerCommand::ClusterNodes => cluster::cluster_nodes(replica),
            ServerCommand::ClusterShards => cluster::cluster_shards(replica),
            ServerCommand::ClusterSlots => cluster::cluster_slots(replica),
            ServerCommand::ClusterLinks => cluster::cluster_links(replica),
            ServerCommand::ClusterReplicas(name) => cluster::cluster_replicas(replica, &name),
        }
    }

    /// Carries out a command that others must not overtake. Groups in `fresh` were led from here
    /// after it had come.
    pub(super) async fn carry_out(&mut self, slot: Option<u16>, command: Command, fresh: &mut Vec<GroupId>) -> Then {
        let shared = Arc::clone(&self.shared);
        let reply = match (command, slot) {
            (Command::Connection(ConnectionCommand::Quit), _) => return Then::Close(Reply::OK),
            (Command::Connection(ConnectionCommand::Reset), _) => {
                self.reset();
                Ok(Reply::Status("RESET".into()))
            }
            (Command::Connection(ConnectionCommand::Auth(name, password)), _) => {
                self.authenticate(&name, &password).await.map(|()| Reply::OK)
            }
            (Command::Connection(ConnectionCommand::Hello { version, auth, name }), _) => {
                self.hello(version, auth, name).await
            }
            (Command::Read(query), Some(slot)) => self.read(&shared, slot, &query, fresh).await,
            (Command::Stale(most, query), Some(slot)) => {
                let read = shared.read_stale(slot, &query, most).await;
                read.map(|(millis, reply)| Reply::Array(vec![Reply::Integer(millis), reply]))
            }
            (Command::Watch(keys), Some(slot)) => self.watch(&shared, slot, keys, fresh).await,
            (Command::Led(Led::Size), _) => shared.size(fresh).await,
            (Command::Led(Led::Clear), _) => shared.clear().await,
            (Command::Led(Led::Random), _) => shared.random(fresh).await,
            (Command::Led(Led::Keys(pattern)), _) => shared.keys(&pattern, fresh).await,
            (Command::Led(Led::Scan { from, count, pattern, any }), _) => {
                let scanned = shared.scan(from, count, pattern, fresh).await;
                scanned.map(|reply| match reply {
                    Reply::Array(parts) if !any => {
                        let next = parts.into_iter().next().unwrap_or(Reply::Nil);
                        Reply::Array(vec![next, Reply::Array(Vec::new())])
                    }
                    reply => reply,
                })
            }
            (other, _) => Err(Reply::error(format!("ERR kvd does not know what to do with {other:?}"))),
        };
        let reply = reply.unwrap_or_else(|error| error);
        if self.failures >= MOST_FAILURES { Then::Close(reply) } else { Then::GoOn(reply) }
    }

    async fn read(
        &self,
        shared: &Shared<R>,
        slot: u16,
        query: &Query,
        fresh: &mut Vec<GroupId>,
    ) -> Result<Reply, Reply> {
        let read = if self.read_only {
            shared.read_here(slot, query, fresh).await
        } else {
            shared.read(slot, query, fresh).await
        };
        if let (Query::Get(_), Ok(reply)) = (query, &read) {
            let counter = if *reply == Reply::Nil { &shared.metrics.misses } else { &shared.metrics.hits };
            counter.fetch_add(1, Relaxed);
        }
        read
    }

    async fn watch(
        &mut self,
        shared: &Shared<R>,
        slot: u16,
        keys: Vec<Bytes>,
        fresh: &mut Vec<GroupId>,
    ) -> Result<Reply, Reply> {
        let versions = match shared.read(slot, &Query::Versions(keys.clone()), fresh).await? {
            Reply::Array(versions) => versions,
            other => return Ok(other),
        };
        let versions = versions.iter().map(|version| match version {
            Reply::Integer(version) => u64::try_from(*version).unwrap_or(0),
            _ => 0,
        });
        self.transaction.join(Some(slot))?;
        self.transaction.watch(keys.into_iter().zip(versions), &shared.memory)?;
        Ok(Reply::OK)
    }

    /// Makes the connection as new.
    fn reset(&mut self) {
        self.transaction = Transaction::new(self.client.account.clone());
        (self.version, self.user, self.read_only, self.replies) = Default::default();
        self.monitor = Monitor::default();
        let mut profile = self.client.profile.lock();
        let (library, library_version) = (profile.library.clone(), profile.library_version.clone());
        *profile = Profile { resp: 2, library, library_version, ..Profile::default() };
    }

    async fn authenticate(&mut self, name: &[u8], password: &[u8]) -> Result<(), Reply> {
        let Some(users) = self.shared.gate.users() else {
            return Err(Reply::error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ));
        };
        if let Some(user) = users.authenticate(name, password).await {
            self.client.profile.lock().user = Some(user.name.clone());
            self.user = Some(user);
            return Ok(());
        }
        self.shared.metrics.auth_failures.fetch_add(1, Relaxed);
        self.failures += 1;
        if let Some(left_out) = self.shared.refused_logins.pass() {
            let user = name.get(..SHOWN_NAME).unwrap_or(name).escape_ascii();
            tracing::warn!(peer = %self.client.peer, %user, left_out, "a login was refused");
        }
        Err(Reply::error("WRONGPASS invalid username-password pair or user is disabled."))
    }

    async fn hello(
        &mut self,
        version: Option<u8>,
        auth: Option<(Bytes, Bytes)>,
        name: Option<Bytes>,
    ) -> Result<Reply, Reply> {
        if let Some((name, password)) = auth {
            self.authenticate(&name, &password).await?;
        }
        if self.is_stranger() {
            return Err(Reply::error(
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
        let mut profile = self.client.profile.lock();
        profile.name = name.unwrap_or(std::mem::take(&mut profile.name));
        profile.resp = match self.version {
            Version::Resp2 => 2,
            Version::Resp3 => 3,
        };
        let bulk = |text: &str| Reply::bulk(text);
        Ok(Reply::Map(vec![
            (bulk("server"), bulk("redis")),
            (bulk("version"), bulk(REDIS_VERSION)),
            (bulk("proto"), Reply::Integer(profile.resp)),
            (bulk("id"), Reply::Integer(i64::try_from(self.client.id).unwrap_or(i64::MAX))),
            (bulk("mode"), bulk("cluster")),
            (bulk("role"), bulk("master")),
            (bulk("modules"), Reply::Array(Vec::new())),
        ]))
    }
}

fn write(slot: u16, session: Option<Serial>, body: Body) -> Action {
    Action::Write { slot, request: Request { session, body }, weave: None }
}

/// Whether a command holds passwords.
pub(super) fn is_secret(spec: &Spec) -> bool {
    ["auth", "hello"].contains(&spec.name)
}

/// How many bytes a word has as a bulk string.
fn encoded_len(word: &Bytes) -> usize {
    const FRAME: usize = 5;
    let digits = word.len().checked_ilog10().unwrap_or(0) as usize + 1;
    word.len() + digits + FRAME
}
