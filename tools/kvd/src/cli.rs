//! The command line.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, FromArgMatches, Subcommand};
use tokio::net::lookup_host;
use tokio::time::sleep;

use crate::backup;
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::export;
use crate::link::{Tls, Trust};
use crate::logging;
use crate::machine::Version;
use crate::node::{self, Clients, Node};
use crate::raft::{
    Command, FreeSpace, GroupStatus, Member, NodeStatus, Recovered, Settings, Wall, command, default_reserve, recover,
};
use crate::rebalance::{Led, Move, Nodes, Placed, Transfer, plan, spread};
use crate::replica::NodeId;
use crate::report::{clock, groups, leads, members, replicas, versions};
use crate::resp::hash_password;

/// Bytes that the nodes' secret must have.
const SHORTEST_SECRET: usize = 16;

/// For a node to hear of moves of groups of which it is no member.
const SETTLE_TIME: Duration = Duration::from_secs(10);
const SETTLE_PAUSE: Duration = Duration::from_millis(200);

/// What to do: run a node, or an action.
enum Arguments {
    Run(Box<Run>),
    Action(Action),
}

fn grammar() -> clap::Command {
    let command = clap::Command::new("kvd")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A replicated server over tamis that speaks the Redis protocol.")
        .after_help(
            "Without a command, it runs a node until it gets SIGINT or SIGTERM. SIGHUP has it read the files of \
             users, certificates and the secret again.\n\nKVD_LOG says what is logged to standard error, by levels \
             and modules: error, warn, info, debug or trace, as in KVD_LOG=warn,kvd=info,kvd::raft=debug. Without \
             it, warn,kvd=info,tamis_openraft=info,openraft=off.",
        )
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true);
    Action::augment_subcommands(Run::augment_args(command))
}

/// Settings of a node. Each is a flag, an environment variable, or a line `name = value` of the
/// file; the first of them that is there counts.
#[derive(Debug, Args)]
struct Run {
    /// Number of this node, unique among all that were ever in the cluster, from 1
    #[arg(long, env = "KVD_ID", value_parser = clap::value_parser!(u64).range(1..))]
    id: NodeId,
    /// Directory of the store
    #[arg(long, env = "KVD_DIR")]
    dir: PathBuf,
    /// Address at which other nodes connect
    #[arg(long, env = "KVD_RAFT", value_name = "HOST:PORT")]
    raft: String,
    /// Address at which clients connect
    #[arg(long, env = "KVD_RESP", value_name = "HOST:PORT")]
    resp: String,
    /// Address at which other nodes reach this one, if it is another than --raft
    #[arg(long, env = "KVD_ADVERTISE_RAFT", value_name = "HOST:PORT")]
    advertise_raft: Option<String>,
    /// Address at which clients reach this node, if it is another than --resp
    #[arg(long, env = "KVD_ADVERTISE_RESP", value_name = "HOST:PORT")]
    advertise_resp: Option<String>,
    /// Address at which Prometheus finds metrics, and anybody else who reaches it
    #[arg(long, env = "KVD_METRICS", value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// File with further settings
    #[arg(long, env = "KVD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArguments,
    /// File with users, who must then authenticate: see `kvd hash-password`
    #[arg(long, env = "KVD_USERS", value_name = "FILE")]
    users: Option<PathBuf>,
    /// Certificate chain (PEM) for clients, who then connect by TLS
    #[arg(long, env = "KVD_CLIENT_CERT", value_name = "FILE")]
    client_cert: Option<PathBuf>,
    /// Key of --client-cert (PEM)
    #[arg(long, env = "KVD_CLIENT_KEY", value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// Authority (PEM) that must have signed the certificates of clients
    #[arg(long, env = "KVD_CLIENT_CA", value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// A setting of CONFIG SET, such as maxclients=2000 or timeout=300; may be repeated
    #[arg(long, env = "KVD_SET", value_name = "NAME=VALUE", value_delimiter = ',')]
    set: Vec<String>,
    /// Listen beyond loopback though anybody who connects may read and write
    #[arg(long, env = "KVD_OPEN_TO_ALL")]
    open_to_all: bool,
    /// Serve --metrics beyond loopback, to anybody who connects
    #[arg(long, env = "KVD_OPEN_METRICS")]
    open_metrics: bool,
    /// Reach a node at another address than the membership has; may be repeated
    #[arg(long, env = "KVD_ROUTE", value_name = "ID=HOST:PORT", value_parser = route, value_delimiter = ',')]
    route: Vec<(NodeId, String)>,
    /// Number of groups that share the slots. The first start of the first node decides for ever;
    /// it must be the same for all
    #[arg(long, env = "KVD_GROUPS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    groups: u32,
    /// Milliseconds between heartbeats; elections begin after 5 to 6 of them are missing
    #[arg(long, env = "KVD_HEARTBEAT_MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    heartbeat_ms: u64,
    /// Entries between two snapshots of a group
    #[arg(long, env = "KVD_SNAPSHOT_AFTER", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    snapshot_after: u64,
    /// Entries that the log keeps for nodes that are away
    #[arg(long, env = "KVD_KEEP_LOG", default_value_t = 20_000)]
    keep_log: u64,
    /// Megabytes of the disk that stay free: below, only reads and deletes are taken. Without it,
    /// 256, or a tenth of the disk if that is less
    #[arg(long, env = "KVD_RESERVE_MB")]
    reserve_mb: Option<u64>,
    /// Megabytes of memory for the store: writes that are not in tables yet, the block cache, and
    /// all else
    #[arg(long, env = "KVD_MEMORY_MB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..))]
    memory_mb: u64,
    /// Megabytes of them for the block cache; without it, what the other uses leave
    #[arg(long, env = "KVD_CACHE_MB")]
    cache_mb: Option<u64>,
    /// The form of lines of the log, which goes to standard error
    #[arg(long, env = "KVD_LOG_FORMAT", value_enum, default_value_t)]
    log_format: logging::Format,
    #[cfg(feature = "faults")]
    #[command(flatten)]
    faults: crate::faults::Faults,
}

#[derive(Debug, Args)]
struct TrustArguments {
    /// File with the secret that all nodes share, of at least 16 bytes; white space around it does
    /// not count
    #[arg(long, env = "KVD_SECRET_FILE", value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Authority (PEM) of the nodes' certificates; nodes then talk by mutual TLS
    #[arg(long, env = "KVD_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// This node's certificate chain (PEM)
    #[arg(long, env = "KVD_CERT", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Key of --cert (PEM)
    #[arg(long, env = "KVD_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
}

/// To which node an operator's command goes.
#[derive(Debug, Args)]
struct Operator {
    /// A node of the cluster: its address for other nodes
    #[arg(long, env = "KVD_NODE", value_name = "HOST:PORT")]
    node: String,
    #[command(flatten)]
    trust: TrustArguments,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Makes a cluster of nodes that run and have never been in one
    Init {
        #[command(flatten)]
        to: Operator,
        /// Another node of the new cluster; may be repeated
        #[arg(long, value_name = "ID=RAFT,RESP", value_parser = member)]
        member: Vec<(NodeId, Member)>,
    },
    /// Adds a node that runs and is in no cluster: it catches up, and then votes
    Add {
        #[command(flatten)]
        to: Operator,
        /// The new node
        #[arg(value_name = "ID=RAFT,RESP", value_parser = member)]
        member: (NodeId, Member),
        /// It never votes
        #[arg(long)]
        learner: bool,
    },
    /// Removes a node, whether it runs or not
    Remove {
        #[command(flatten)]
        to: Operator,
        /// Number of the node
        id: NodeId,
    },
    /// Notes where a node of the cluster is reached now. A node that starts at another address has
    /// that noted by itself, if the leaders reach it there
    SetAddress {
        #[command(flatten)]
        to: Operator,
        /// The node
        #[arg(value_name = "ID=RAFT,RESP", value_parser = member)]
        member: (NodeId, Member),
    },
    /// Has another voter of a group lead it
    Transfer {
        #[command(flatten)]
        to: Operator,
        /// The group
        #[arg(long)]
        group: u32,
        /// Number of the next leader
        #[arg(long = "to", value_name = "ID")]
        leader: NodeId,
    },
    /// Sets the time of all groups to that of the members' clocks. Times since 1970 that clients
    /// give or get change by as much as it was wrong; how long each key still lives does not
    SetTime {
        #[command(flatten)]
        to: Operator,
    },
    /// Spreads the replicas of groups, and then their leaders, evenly over the nodes that answer
    Rebalance {
        #[command(flatten)]
        to: Operator,
        /// Replicas that each group should have; without it, as many as it has
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=9))]
        replicas: Option<u8>,
        /// A node that runs, has no replica yet, and gets its share; may be repeated
        #[arg(long, value_name = "ID=RAFT,RESP", value_parser = member)]
        with: Vec<(NodeId, Member)>,
        /// A node that gives all its replicas away; may be repeated
        #[arg(long, value_name = "ID")]
        without: Vec<NodeId>,
        /// Only print what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Lists the nodes of the cluster
    Members {
        #[command(flatten)]
        to: Operator,
    },
    /// Reports on a node: leaders, indexes of its logs, how far followers are
    Status {
        #[command(flatten)]
        to: Operator,
        /// As JSON
        #[arg(long)]
        json: bool,
        /// With a line for each group, however many there are
        #[arg(long)]
        all: bool,
    },
    /// Makes a cluster of one node of the store of a node whose cluster is lost, or of a copy of it
    Recover {
        /// Directory of that store; it is not changed, and may be in use
        #[arg(long, value_name = "DIR")]
        from: PathBuf,
        /// Directory of the new node's store
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// The new node, with which to start it
        #[arg(value_name = "ID=RAFT,RESP", value_parser = member)]
        member: (NodeId, Member),
    },
    /// Copies the store of a node, which may run, to a repository of backups
    Backup(backup::BackupArguments),
    /// Makes a cluster of one node of a backup
    Restore(backup::RestoreArguments),
    /// Writes all keys that have not expired, in a format that other stores load
    Export(export::Arguments),
    /// Reads a password, a line of standard input, and prints what the file of users has for it
    HashPassword,
}

fn route(text: &str) -> Result<(NodeId, String), String> {
    let (id, address) = text.split_once('=').ok_or("expected ID=HOST:PORT")?;
    Ok((id.parse().map_err(|error| format!("{id}: {error}"))?, address.to_owned()))
}

pub(crate) fn member(text: &str) -> Result<(NodeId, Member), String> {
    let (id, addresses) = route(text).map_err(|_| "expected ID=RAFT,RESP")?;
    let (raft, resp) = addresses.split_once(',').ok_or("expected ID=RAFT,RESP")?;
    Ok((id, Member { raft: raft.to_owned(), resp: resp.to_owned() }))
}

/// Parses the arguments; settings of the file named there, or by the environment, are defaults.
async fn parse(arguments: Vec<OsString>) -> Result<Arguments> {
    let mut command = grammar();
    // A first look, for the file alone: what it holds may be required.
    let lenient = grammar().ignore_errors(true).try_get_matches_from(&arguments);
    let file = lenient.ok().and_then(|matches| matches.try_get_one::<PathBuf>("config").ok().flatten().cloned());
    if let Some(path) = file {
        for (name, value) in settings(&path).await? {
            if !command.get_arguments().any(|argument| argument.get_id().as_str() == name) || name == "config" {
                return Err(Error::Config(format!("{}: there is no setting called {name}", path.display())));
            }
            command = command.mut_arg(name, |argument| argument.default_value(value).required(false));
        }
    }
    let matches = command.try_get_matches_from(&arguments).unwrap_or_else(|error| error.exit());
    let parsed = match matches.subcommand_name() {
        Some(_) => Action::from_arg_matches(&matches).map(Arguments::Action),
        None => Run::from_arg_matches(&matches).map(|run| Arguments::Run(Box::new(run))),
    };
    Ok(parsed.unwrap_or_else(|error| error.exit()))
}

/// Lines `name = value` of a file; what follows `#` at the start of a line is a comment.
async fn settings(path: &Path) -> Result<Vec<(String, String)>> {
    let text = read_text(path).await?;
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let setting = |(at, line): (usize, &str)| {
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| Error::Config(format!("{}: line {at} is not of the form `name = value`", path.display())))?;
        Ok((name.trim().replace('-', "_"), value.trim().to_owned()))
    };
    lines.map(setting).collect()
}

async fn read(path: &Path) -> Result<Vec<u8>> {
    tokio::fs::read(path).await.map_err(Error::io("read", path.display()))
}

async fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path).await?).map_err(|_| Error::Config(format!("{}: this is not UTF-8", path.display())))
}

impl TrustArguments {
    async fn read(&self) -> Result<Trust> {
        let secret = match &self.secret_file {
            Some(path) => {
                let secret = read(path).await?.trim_ascii().to_vec();
                // A listener that records one handshake can try secrets against it.
                if secret.len() < SHORTEST_SECRET {
                    let path = path.display();
                    return Err(Error::Config(format!("{path}: the secret has less than {SHORTEST_SECRET} bytes")));
                }
                Some(secret)
            }
            None => None,
        };
        let tls = match (&self.ca, &self.cert, &self.key) {
            (Some(ca), Some(cert), Some(key)) => Some(Tls::from_files(ca, cert, key)?),
            (None, None, None) => None,
            _ => return Err(Error::Config("ca, cert and key go together".to_owned())),
        };
        Ok(Trust::new(secret, tls))
    }
}

async fn resolve(address: &str) -> Result<SocketAddr> {
    let mut addresses = lookup_host(address).await.map_err(Error::io("find the address", address))?;
    addresses.next().ok_or_else(|| Error::Config(format!("{address} has no address")))
}

impl Run {
    /// Runs the node until a signal ends it, or it cannot go on.
    async fn until_end(&self) -> Result<()> {
        logging::start(self.log_format);
        let (mut stop, mut reload) = (node::signals()?, node::hangups()?);
        let node = self.start().await?;
        let failure = loop {
            tokio::select! {
                () = stop.recv() => break None,
                failure = node.failed() => break Some(failure),
                _ = reload.recv() => match self.reload(&node).await {
                    Ok(()) => tracing::info!("the files of users, certificates and the secret are read again"),
                    Err(error) => tracing::error!(%error, "what was read before stays in force"),
                },
            }
        };
        let stopped = node.stop().await;
        failure.map_or(stopped, Err)
    }

    /// Reads the files anew that say who may connect. All of them count from then on, or none.
    async fn reload(&self, node: &Node) -> Result<()> {
        node.reload(&self.trust.read().await?, self.clients().await?)
    }

    async fn clients(&self) -> Result<Clients> {
        Ok(Clients {
            users: match &self.users {
                Some(path) => Some(read_text(path).await?),
                None => None,
            },
            tls: match (&self.client_cert, &self.client_key) {
                (Some(cert), Some(key)) => Some((read(cert).await?, read(key).await?)),
                (None, None) if self.client_ca.is_none() => None,
                _ => {
                    return Err(Error::Config(
                        "client-cert and client-key go together, and client-ca with them".to_owned(),
                    ));
                }
            },
            authority: match &self.client_ca {
                Some(path) => Some(read(path).await?),
                None => None,
            },
            limits: self.set.clone(),
        })
    }

    async fn start(&self) -> Result<Node> {
        let (trust, clients) = (self.trust.read().await?, self.clients().await?);
        let member = Member {
            raft: self.advertise_raft.clone().unwrap_or_else(|| self.raft.clone()),
            resp: self.advertise_resp.clone().unwrap_or_else(|| self.resp.clone()),
        };
        let bytes = |megabytes: u64| usize::try_from(megabytes.saturating_mul(1 << 20)).unwrap_or(usize::MAX);
        let store = tamis::Options::new().memory(bytes(self.memory_mb));
        let store = match self.cache_mb {
            Some(cache) => store.cache_size(bytes(cache)),
            None => store,
        };
        let settings = Settings {
            id: self.id,
            dir: self.dir.clone(),
            member,
            trust,
            routes: self.route.iter().cloned().collect::<HashMap<_, _>>(),
            groups: self.groups,
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            snapshot_after: self.snapshot_after,
            keep_log: self.keep_log,
            sync_delay: Duration::ZERO,
            skip_sync: false,
            version: Version::LATEST,
            reserve: self
                .reserve_mb
                .map_or_else(|| default_reserve(&self.dir), |megabytes| megabytes.saturating_mul(1 << 20)),
            free_space: FreeSpace::default(),
            wall: Wall::default(),
            store,
        };
        #[cfg(feature = "faults")]
        let settings = self.faults.apply(settings);
        let listen = node::Listen {
            raft: resolve(&self.raft).await?,
            resp: resolve(&self.resp).await?,
            metrics: match &self.metrics {
                Some(address) => Some(resolve(address).await?),
                None => None,
            },
            open_to_all: self.open_to_all,
            open_metrics: self.open_metrics,
        };
        Node::start(settings, listen, clients).await
    }
}

impl Operator {
    async fn send(&self, it: Command) -> Result<Option<NodeStatus>> {
        command(&self.trust.read().await?, &self.node, it).await
    }

    async fn status(&self) -> Result<NodeStatus> {
        let nothing = || Error::Config(format!("{} reports nothing", self.node));
        self.send(Command::Status).await?.ok_or_else(nothing)
    }

    /// The nodes of `members` that answer.
    async fn answering(&self, members: &BTreeMap<NodeId, Member>) -> Result<BTreeSet<NodeId>> {
        let trust = self.trust.read().await?;
        let mut answering = BTreeSet::new();
        for (id, member) in members {
            match command(&trust, &member.raft, Command::Status).await {
                Ok(_) => drop(answering.insert(*id)),
                Err(error) => eprintln!("Node {id} gets nothing: {error}"),
            }
        }
        Ok(answering)
    }

    /// The status of the node once it knows a leader of each group, and the voters that `moves`
    /// leave.
    async fn settled(&self, moves: &[Move]) -> Result<NodeStatus> {
        let deadline = Instant::now() + SETTLE_TIME;
        loop {
            let status = self.status().await?;
            let is_behind = |group: &&GroupStatus| {
                let (voters, of) = (voters(group), moves.iter().find(|it| it.group == group.group));
                let has_moved = of.is_none_or(|it| it.join.is_subset(&voters) && it.leave.is_disjoint(&voters));
                group.leader.is_none() || !has_moved
            };
            match status.groups.iter().find(is_behind) {
                None => return Ok(status),
                Some(_) if Instant::now() < deadline => sleep(SETTLE_PAUSE).await,
                Some(group) => {
                    return Err(Error::Config(format!("{} knows no leader of group {}", self.node, group.group)));
                }
            }
        }
    }

    /// Moves replicas, and then leads.
    async fn rebalance(&self, of: Rebalance) -> Result<()> {
        let status = self.settled(&[]).await?;
        let mut members: BTreeMap<NodeId, Member> = of.with.into_iter().collect();
        let in_groups = status.groups.iter().flat_map(|group| &group.members).filter(|(.., votes)| *votes);
        members.extend(in_groups.map(|(id, member, _)| (*id, member.clone())));
        let leaving: BTreeSet<NodeId> = of.without.into_iter().collect();
        members.retain(|id, _| !leaving.contains(id));
        let answering = self.answering(&members).await?;
        let placed = |group: &GroupStatus| Placed { group: group.group, voters: voters(group) };
        let placed: Vec<Placed> = status.groups.iter().map(placed).collect();
        let moves = spread(&placed, &Nodes { usable: answering.clone(), leaving }, of.replicas.map(usize::from));
        if !moves.is_empty() {
            println!("{}", replicas(&moves));
        }
        if of.dry_run && !moves.is_empty() {
            println!("Leads are spread once the replicas have moved.");
            return Ok(());
        }
        for Move { group, join, leave } in moves.iter().cloned() {
            let join = join.into_iter().filter_map(|id| Some((id, members.get(&id)?.clone()))).collect();
            self.send(Command::Move { group, join, leave: leave.into_iter().collect() }).await?;
            println!("The replicas of group {group} have moved.");
        }
        let led = |group: &GroupStatus| {
            let leader = group.leader?;
            let voters = voters(group).intersection(&answering).copied().collect();
            Some(Led { group: group.group, leader, voters })
        };
        let led: Vec<Led> = self.settled(&moves).await?.groups.iter().filter_map(led).collect();
        let transfers = plan(&led);
        println!("{}", leads(&led, &transfers));
        for Transfer { group, to: leader, .. } in transfers.into_iter().filter(|_| !of.dry_run) {
            self.send(Command::Transfer { group, to: leader }).await?;
            println!("Node {leader} leads group {group}.");
        }
        Ok(())
    }
}

/// What a rebalance is told.
struct Rebalance {
    replicas: Option<u8>,
    with: Vec<(NodeId, Member)>,
    without: Vec<NodeId>,
    dry_run: bool,
}

fn voters(group: &GroupStatus) -> BTreeSet<NodeId> {
    group.members.iter().filter(|(.., votes)| *votes).map(|(id, ..)| *id).collect()
}

/// Runs what the arguments say.
pub async fn run(arguments: Vec<OsString>) -> Result<()> {
    let action = match parse(arguments).await? {
        Arguments::Action(action) => action,
        Arguments::Run(run) => return run.until_end().await,
    };
    logging::start(logging::Format::Text);
    match action {
        Action::Init { to, member } => {
            to.send(Command::Init { others: member }).await.map(|_| println!("The cluster is made."))
        }
        Action::Add { to, member: (id, member), learner } => {
            to.send(Command::Add { id, member, learner }).await.map(|_| println!("Node {id} is a member."))
        }
        Action::Remove { to, id } => {
            to.send(Command::Remove { id }).await.map(|_| println!("Node {id} is no member any more."))
        }
        Action::SetAddress { to, member: (id, member) } => {
            let sent = to.send(Command::SetAddress { id, member }).await;
            sent.map(|_| println!("The membership says where node {id} is."))
        }
        Action::Transfer { to, group, leader } => {
            let sent = to.send(Command::Transfer { group, to: leader }).await;
            sent.map(|_| println!("Node {leader} leads group {group}."))
        }
        Action::SetTime { to } => {
            to.send(Command::SetTime).await.map(|_| println!("The time of all groups is that of the members' clocks."))
        }
        Action::Rebalance { to, replicas, with, without, dry_run } => {
            to.rebalance(Rebalance { replicas, with, without, dry_run }).await
        }
        Action::Members { to } => {
            println!("{}", members(&to.status().await?));
            Ok(())
        }
        Action::Status { to, json, all } => {
            let status = to.status().await?;
            if json {
                let text = serde_json::to_string_pretty(&status);
                println!("{}", text.map_err(|error| Error::Encode(error.to_string()))?);
            } else {
                println!("Node {}, {}", status.id, clock(status.clock_ahead_ms));
                for (id, reaches, is_reached) in &status.others {
                    if !reaches {
                        println!("It does not reach node {id}.");
                    }
                    if !is_reached {
                        println!("Node {id} does not reach it.");
                    }
                }
                if status.is_low {
                    let free = status.free_bytes.unwrap_or(0) >> 20;
                    println!("ITS DISK IS NEARLY FULL: {free} MiB are free, and it takes no writes that grow.");
                }
                if let Some(line) = versions(&status) {
                    println!("{line}");
                }
                let (line, shown) = digest(&status.groups, all);
                line.iter().for_each(|line| println!("{line}"));
                if !shown.is_empty() {
                    println!("{}", groups(&shown));
                }
            }
            Ok(())
        }
        Action::Recover { from, to, member: (id, member) } => {
            made(&recover(&tamis::Options::new(), &from, &to, id, &member)?, id, &to);
            Ok(())
        }
        Action::Backup(arguments) => backup::backup(arguments).await,
        Action::Restore(arguments) => {
            let recovered = backup::restore(&arguments)?;
            made(&recovered, arguments.member.0, &arguments.to);
            Ok(())
        }
        Action::Export(arguments) => export::run(arguments).await,
        Action::HashPassword => {
            let mut line = String::new();
            let read = std::io::stdin().read_line(&mut line);
            read.map_err(Error::io("read", "the password from standard input"))?;
            match line.trim_end_matches(['\r', '\n']) {
                "" => Err(Error::Config("the password is empty".to_owned())),
                password => {
                    println!("{}", hash_password(password.as_bytes()));
                    Ok(())
                }
            }
        }
    }
}

/// Prints of what the store of a new cluster was made, and what to do with it.
fn made(recovered: &[Recovered], id: NodeId, dir: &Path) {
    for Recovered { group, applied, from_log } in recovered {
        if *applied == 0 && *from_log == 0 {
            println!("Group {group}: nothing; the node had no replica of it.");
        } else {
            println!("Group {group}: the state after entry {applied}, and {from_log} entries of the log.");
        }
    }
    println!("Start node {id} with --dir {}, and add others.", dir.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn parsed(file: &str, arguments: &[&str]) -> Result<Run> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kvd.conf");
        tokio::fs::write(&path, file).await.unwrap();
        let mut all: Vec<OsString> = vec!["kvd".into(), "--config".into(), path.into()];
        all.extend(arguments.iter().map(OsString::from));
        match parse(all).await? {
            Arguments::Run(run) => Ok(*run),
            Arguments::Action(action) => panic!("{action:?}"),
        }
    }

    #[tokio::test]
    async fn the_file_has_what_flags_leave_out() {
        let file =
            "# a node\n id = 3\ndir=/data\nraft = 127.0.0.1:1\n\nopen-to-all = true\nresp = a:2\nroute = 1=b:3,2=c:4\n";
        let run = parsed(file, &["--resp", "d:5", "--keep-log", "7"]).await.unwrap();
        assert_eq!((run.id, run.dir.to_str(), run.keep_log, run.open_to_all), (3, Some("/data"), 7, true));
        assert_eq!((run.raft.as_str(), run.resp.as_str()), ("127.0.0.1:1", "d:5"));
        assert_eq!(run.route, [(1, "b:3".to_owned()), (2, "c:4".to_owned())]);
    }

    #[tokio::test]
    async fn a_file_with_unknown_names_is_refused() {
        for (file, reason) in [
            ("colour = red", "no setting called colour"),
            ("id", "line 1 is not of the form"),
            ("config = other", "no setting called config"),
        ] {
            let error = parsed(file, &[]).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[tokio::test]
    async fn half_of_what_encrypts_is_refused() {
        let base = "id = 1\ndir = d\nraft = 127.0.0.1:0\nresp = 127.0.0.1:0\n";
        for half in ["client-cert = /c", "client-ca = /c", "cert = /c", "ca = /c"] {
            let run = parsed(&format!("{base}{half}\n"), &[]).await.unwrap();
            let error = run.start().await.err().unwrap().to_string();
            assert!(error.contains("go together"), "{half}: {error}");
        }
    }

    #[tokio::test]
    async fn secrets_that_can_be_guessed_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let (secret_file, ca, cert, key) = (Some(path.clone()), None, None, None);
        let trust = TrustArguments { secret_file, ca, cert, key };
        for (secret, accepted) in [(" \n", false), ("  fifteen bytes..\n", false), ("sixteen bytes...", true)] {
            tokio::fs::write(&path, secret).await.unwrap();
            let read = trust.read().await;
            assert_eq!(read.is_ok(), accepted, "{secret}: {read:?}");
        }
    }

    #[tokio::test]
    async fn metrics_are_for_loopback_unless_told_otherwise() {
        let file = "id = 1\ndir = d\nraft = 127.0.0.1:0\nresp = 127.0.0.1:0\nmetrics = 0.0.0.0:0\n";
        let error = parsed(file, &[]).await.unwrap().start().await.err().unwrap().to_string();
        assert!(error.contains("--open-metrics"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("store");
        let node = parsed(file, &["--open-metrics", "--dir", dir.to_str().unwrap()]).await.unwrap().start().await;
        node.unwrap().stop().await.unwrap();
    }

    #[test]
    fn members_and_routes_are_parsed() {
        let member = member("4=h:1,h:2").unwrap();
        assert_eq!(member, (4, Member { raft: "h:1".to_owned(), resp: "h:2".to_owned() }));
        assert!(["4", "4=h:1", "x=h:1,h:2"].iter().all(|text| super::member(text).is_err()));
        assert!(route("4").is_err());
        grammar().debug_assert();
    }
}
