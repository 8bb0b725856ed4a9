//! Three nodes as processes on loopback, a Redis client, and the leader killed.
//!
//! ```sh
//! cargo run --release -p kvd --example demo
//! ```
#![allow(clippy::print_stdout, reason = "it is for people")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use comfy_table::{Table, presets};
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, FromRedisValue, Pipeline, RedisError};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command as Program};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use kvd::link::Trust;
use kvd::raft::{Command, GroupStatus, Member, NodeStatus, command};
use kvd::replica::NodeId;

/// Set for the processes that are nodes: this program is those, too.
const NODE: &str = "KVD_DEMO_NODE";
/// For each step.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// For one answer, after which a client tries another node.
const ANSWER: Duration = Duration::from_secs(2);
/// Clients that write while the leader is killed.
const WRITERS: usize = 8;
/// Commands of one pipeline.
const PIPELINE: usize = 100;

/// A node and its process.
struct Host {
    id: NodeId,
    dir: PathBuf,
    member: Member,
    child: Option<Child>,
}

impl Host {
    fn start(&mut self) -> Result<()> {
        let program = std::env::current_exe().context("find this program")?;
        let child = Program::new(program)
            .args(["--id", &self.id.to_string(), "--raft", &self.member.raft, "--resp", &self.member.resp, "--dir"])
            .arg(&self.dir)
            .env(NODE, "1")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        self.child = Some(child.context("start a node")?);
        Ok(())
    }

    /// As if by `kill -9`.
    async fn kill(&mut self) -> Result<()> {
        match &mut self.child {
            Some(child) => child.kill().await.context("kill a node"),
            None => Ok(()),
        }
    }

    async fn group(&self) -> Result<GroupStatus> {
        let status: Option<NodeStatus> = command(&Trust::default(), &self.member.raft, Command::Status).await?;
        let group = status.and_then(|status| status.groups.into_iter().next());
        group.with_context(|| format!("node {} reports nothing", self.id))
    }
}

/// A client that finds the leader: it follows redirections, and else tries the next node.
struct Follower {
    nodes: Arc<Vec<String>>,
    next: usize,
    connection: Option<MultiplexedConnection>,
}

impl Follower {
    fn new(nodes: Arc<Vec<String>>) -> Follower {
        Follower { nodes, next: 0, connection: None }
    }

    async fn connect(&mut self, node: &str) -> Result<(), RedisError> {
        let client = Client::open(format!("redis://{node}/"))?;
        let connected = timeout(ANSWER, client.get_multiplexed_async_connection()).await;
        self.connection = connected.ok().transpose()?;
        Ok(())
    }

    /// Asks until there is an answer. Only for what may be done twice.
    async fn ask<T: FromRedisValue>(&mut self, commands: &Pipeline) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut reason = "no node answers".to_owned();
        while Instant::now() < deadline {
            if let Some(connection) = &mut self.connection {
                match timeout(ANSWER, commands.query_async(connection)).await {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => {
                        let to = error.redirect_node().map(|(node, _)| node.to_owned());
                        reason = error.to_string();
                        self.connection = None;
                        if let Some(node) = to {
                            let _ = self.connect(&node).await;
                            continue;
                        }
                    }
                    Err(_) => self.connection = None,
                }
            }
            sleep(PAUSE).await;
            self.next = (self.next + 1) % self.nodes.len();
            let node = self.nodes[self.next].clone();
            if let Err(error) = self.connect(&node).await {
                reason = error.to_string();
            }
        }
        bail!("no answer to a command: {reason}")
    }

    async fn ask_one<T: FromRedisValue>(&mut self, command: Cmd) -> Result<T> {
        let mut commands = Pipeline::new();
        commands.add_command(command);
        let (answer,) = self.ask::<(T,)>(&commands).await?;
        Ok(answer)
    }
}

/// What a writer was promised.
#[derive(Default)]
struct Promises {
    /// Its number, and how many of its keys were acknowledged.
    writer: usize,
    count: u64,
    /// When.
    moments: Vec<Instant>,
}

fn key(writer: usize, number: u64) -> String {
    format!("writer {writer}, key {number}")
}

async fn write_until(writer: usize, mut client: Follower, ended: Arc<AtomicBool>) -> Result<Promises> {
    let mut promises = Promises { writer, ..Promises::default() };
    while !ended.load(Ordering::Relaxed) {
        let set = Cmd::set(key(writer, promises.count), promises.count);
        client.ask_one::<()>(set).await?;
        promises.count += 1;
        promises.moments.push(Instant::now());
    }
    Ok(promises)
}

/// Waits until a condition holds.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, holds: impl Fn() -> F) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = holds().await {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("the demonstration waits in vain: {what}");
        }
        sleep(PAUSE).await;
    }
}

async fn leader(hosts: &[Host]) -> Result<usize> {
    until("for a leader", || async {
        for (at, host) in hosts.iter().enumerate() {
            if host.group().await.is_ok_and(|group| group.role == "leader") {
                return Some(at);
            }
        }
        None
    })
    .await
}

/// What happened, for people.
struct Report(Table);

impl Report {
    fn add(&mut self, step: &str, outcome: String, time: Duration) {
        println!("{step}: {outcome}");
        self.0.add_row([step.to_owned(), outcome, format!("{:.2} s", time.as_secs_f64())]);
    }
}

async fn addresses(count: usize) -> Result<Vec<String>> {
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(TcpListener::bind("127.0.0.1:0").await.context("listen at 127.0.0.1")?);
    }
    let address = |listener: &TcpListener| listener.local_addr().map(|address| address.to_string());
    held.iter().map(|listener| address(listener).context("listen at 127.0.0.1")).collect()
}

#[derive(Parser)]
struct Arguments {
    /// Keys to write before the leader is killed
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    if std::env::var_os(NODE).is_some() {
        return Ok(kvd::cli::run(std::env::args_os().collect()).await?);
    }
    let Arguments { keys } = Arguments::parse();
    let dir = TempDir::with_prefix("kvd-demo-").context("make a directory for temporary files")?;
    let free = addresses(6).await?;
    let mut hosts = Vec::new();
    for (id, pair) in (1..).zip(free.chunks_exact(2)) {
        let member = Member { raft: pair[0].clone(), resp: pair[1].clone() };
        hosts.push(Host { id, dir: dir.path().join(format!("node-{id}")), member, child: None });
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["step", "outcome", "time"]);
    let mut report = Report(table);

    let began = Instant::now();
    for host in &mut hosts {
        host.start()?;
    }
    for host in &hosts {
        until("for a node to start", || async { host.group().await.ok() }).await?;
    }
    report.add("start three nodes", "three processes answer".to_owned(), began.elapsed());

    let began = Instant::now();
    let others = hosts[1..].iter().map(|host| (host.id, host.member.clone())).collect();
    command(&Trust::default(), &hosts[0].member.raft, Command::Init { others }).await?;
    let leads = leader(&hosts).await?;
    report.add("make them a cluster", format!("node {} leads", hosts[leads].id), began.elapsed());

    let nodes: Arc<Vec<String>> = Arc::new(hosts.iter().map(|host| host.member.resp.clone()).collect());
    let mut client = Follower::new(Arc::clone(&nodes));
    let began = Instant::now();
    for first in (0..keys).step_by(PIPELINE) {
        let mut commands = Pipeline::new();
        for number in (first..keys).take(PIPELINE) {
            commands.add_command(Cmd::set(format!("key {number}"), number)).ignore();
        }
        client.ask::<()>(&commands).await?;
    }
    let time = began.elapsed();
    let rate = keys as f64 / time.as_secs_f64();
    report.add("write", format!("{keys} SETs by pipelines of {PIPELINE}, {rate:.0}/s"), time);
    let began = Instant::now();
    let wrong = count_wrong(&mut client, (0..keys).map(|number| (format!("key {number}"), number))).await?;
    report.add("read", format!("{keys} GETs from the leader, {wrong} wrong"), began.elapsed());

    let began = Instant::now();
    let ended = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write_until(writer, Follower::new(Arc::clone(&nodes)), Arc::clone(&ended)));
    }
    sleep(Duration::from_secs(1)).await;
    let killed = Instant::now();
    hosts[leads].kill().await?;
    sleep(Duration::from_secs(5)).await;
    ended.store(true, Ordering::Relaxed);
    let mut promised = Vec::new();
    while let Some(writer) = writers.join_next().await {
        promised.push(writer??);
    }
    let moments = promised.iter().flat_map(|promises| promises.moments.iter().copied());
    let (before, after): (Vec<Instant>, Vec<Instant>) = moments.partition(|moment| *moment <= killed);
    let gap = match (before.iter().max(), after.iter().filter(|moment| **moment > killed + PAUSE).min()) {
        (Some(last), Some(first)) => *first - *last,
        _ => bail!("nobody could write before the leader was killed, or after"),
    };
    let acknowledged: u64 = promised.iter().map(|promises| promises.count).sum();
    let outcome =
        format!("node {} killed; {acknowledged} SETs of {WRITERS} clients acknowledged in all", hosts[leads].id);
    report.add("kill the leader under load", outcome, began.elapsed());
    report.add("gap without an answer", format!("{:.0} ms", gap.as_secs_f64() * 1e3), gap);

    let began = Instant::now();
    let written = (0..keys).map(|number| (format!("key {number}"), number));
    let promised = promised.iter();
    let promised = promised.flat_map(|of| (0..of.count).map(|number| (key(of.writer, number), number)));
    let lost = count_wrong(&mut client, written.chain(promised)).await?;
    let outcome = format!("{} acknowledged SETs looked for, {lost} lost", keys + acknowledged);
    report.add("read from the new leader", outcome, began.elapsed());

    let began = Instant::now();
    let target = hosts[leader(&hosts[..]).await?].group().await?.committed;
    hosts[leads].start()?;
    let back = &hosts[leads];
    let applied = until("for the node to catch up", || async {
        let applied = back.group().await.ok()?.applied;
        (applied >= target).then_some(applied)
    })
    .await?;
    report.add("restart the node", format!("it has applied entry {applied}, as the others"), began.elapsed());

    println!("\n{}", report.0);
    for host in &mut hosts {
        host.kill().await?;
    }
    ensure!(wrong + lost == 0, "the cluster has lost what it acknowledged");
    Ok(())
}

/// Reads keys from the leader; returns how many do not have their value.
async fn count_wrong(client: &mut Follower, expected: impl Iterator<Item = (String, u64)>) -> Result<u64> {
    let mut wrong = 0;
    let mut expected = expected.peekable();
    while expected.peek().is_some() {
        let some: BTreeMap<String, u64> = expected.by_ref().take(PIPELINE).collect();
        let mut commands = Pipeline::new();
        for key in some.keys() {
            commands.add_command(Cmd::get(key));
        }
        let found: Vec<Option<u64>> = client.ask(&commands).await?;
        wrong += some.values().zip(found).filter(|(value, found)| *found != Some(**value)).count() as u64;
    }
    Ok(wrong)
}
