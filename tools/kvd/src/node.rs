//! A node: its part in consensus, the server for clients, and metrics.

use std::net::SocketAddr;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::link::Trust;
use crate::metrics;
use crate::raft::{Cluster, Settings};
use crate::resp::{Config, Gate, Metrics, Server, Tls, Users, set_limits};
use crate::web::{self, Page};

/// Where a node listens.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// For other nodes and operators.
    pub raft: SocketAddr,
    /// For clients.
    pub resp: SocketAddr,
    /// For Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Whether anybody may connect from other machines.
    pub open_to_all: bool,
    /// Whether anybody may read metrics from other machines.
    pub open_metrics: bool,
}

/// Who clients are, and how they connect: texts of files.
#[derive(Clone, Default)]
pub struct Clients {
    /// The users.
    pub users: Option<String>,
    /// Certificate chain and key.
    pub tls: Option<(Vec<u8>, Vec<u8>)>,
    /// The authority that must have signed certificates of clients.
    pub authority: Option<Vec<u8>>,
    /// Changes of limits, as CONFIG SET takes them: `NAME=VALUE` each.
    pub limits: Vec<String>,
}

/// A running node.
pub struct Node {
    cluster: Arc<Cluster>,
    /// What nodes know of each other, and who clients are: to be replaced.
    trust: Trust,
    gate: Gate,
    open_to_all: bool,
    /// Ends the server for clients.
    stop: oneshot::Sender<()>,
    clients: JoinHandle<()>,
    metrics: Option<JoinHandle<()>>,
}

impl Node {
    /// Opens the store, and listens.
    pub async fn start(settings: Settings, listen: Listen, clients: Clients) -> Result<Node> {
        if !listen.raft.ip().is_loopback() && !settings.trust.is_guarded() && !listen.open_to_all {
            let raft = listen.raft;
            return Err(Error::Config(format!(
                "{raft} can be reached from other machines; give nodes a secret or certificates, or allow access to all"
            )));
        }
        let open = listen.open_metrics || listen.open_to_all;
        if let Some(metrics) = listen.metrics.filter(|metrics| !metrics.ip().is_loopback() && !open) {
            return Err(Error::Config(format!(
                "{metrics} can be reached from other machines, and metrics are for anybody; allow it by --open-metrics"
            )));
        }
        let files = raise_file_limit();
        let mut config = config(clients, listen.open_to_all)?;
        let wanted = config.limits.connections;
        config.limits.connections = wanted.min(files / 2);
        if config.limits.connections < wanted {
            let (connections, most) = (config.limits.connections, 2 * wanted);
            tracing::warn!(connections, "the limit of open files allows few clients; raise it to {most} (ulimit -n)");
        }
        let raft = bind(listen.raft).await?;
        let scraped = match listen.metrics {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let (id, trust) = (settings.id, settings.trust.clone());
        let cluster = Cluster::start(settings, raft).await?;
        let server = match Server::bind(listen.resp, config, Arc::clone(&cluster)).await {
            Ok(server) => server,
            Err(error) => {
                cluster.stop().await?;
                return Err(Error::Config(error.to_string()));
            }
        };
        let (counters, gate, open_to_all) = (server.metrics(), server.gate(), listen.open_to_all);
        let (stop, stopped) = oneshot::channel();
        // An end that was dropped is a stop, too.
        let clients = tokio::spawn(server.run(async { drop(stopped.await) }));
        let figures = Arc::clone(&cluster);
        let metrics =
            scraped.map(|listener| tokio::spawn(web::serve(listener, move |path| page(path, &figures, &counters))));
        tracing::info!(id, raft = %listen.raft, clients = %listen.resp, "node started");
        Ok(Node { cluster, trust, gate, open_to_all, stop, clients, metrics })
    }

    /// Waits until the node cannot go on, and says why.
    pub async fn failed(&self) -> Error {
        self.cluster.failed().await
    }

    /// Replaces what nodes know of each other and who clients are, for connections and logins from
    /// now on. Those that are there stay. After an error, nothing has changed.
    pub fn reload(&self, trust: &Trust, clients: Clients) -> Result<()> {
        let config = config(clients, self.open_to_all)?;
        self.trust.replace(trust);
        self.gate.replace(&config);
        Ok(())
    }

    /// Stops: leads are handed over, clients get the replies to what they have asked, then nobody
    /// gets any, and the store is closed.
    pub async fn stop(self) -> Result<()> {
        self.cluster.retire().await;
        let _ = self.stop.send(());
        if let Err(error) = self.clients.await {
            tracing::error!(%error, "the server for clients has failed");
        }
        if let Some(metrics) = self.metrics {
            metrics.abort();
        }
        self.cluster.stop().await?;
        tracing::info!("node stopped");
        Ok(())
    }
}

fn config(clients: Clients, open_to_all: bool) -> Result<Config> {
    let mut config = Config { open_to_all, ..Config::default() };
    config.limits = set_limits(&clients.limits, &config.limits)
        .map_err(|error| Error::Config(format!("limits for clients: {error}")))?;
    if let Some(text) = clients.users {
        let users = Users::parse(&text).map_err(|error| Error::Config(format!("the file of users: {error}")))?;
        config.users = Some(Arc::new(users));
    }
    if let Some((chain, key)) = clients.tls {
        let tls = Tls::from_pem(&chain, &key, clients.authority.as_deref());
        config.tls = Some(tls.map_err(|error| Error::Config(format!("TLS for clients: {error}")))?);
    }
    Ok(config)
}

/// Raises the number of files that the process may open as far as it may, and returns it.
pub(crate) fn raise_file_limit() -> usize {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // A system may have a lower limit yet, and refuse: what is allowed now stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let current = getrlimit(Resource::Nofile).current;
    current.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX)
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(Error::io("listen on", address))
}

fn page(path: &str, cluster: &Cluster, clients: &Metrics) -> Option<Page> {
    match path {
        "/metrics" => Some(Page { is_well: true, text: text(cluster, clients) }),
        "/health" => Some(Page { is_well: true, text: "ok\n".to_owned() }),
        "/ready" => Some(match cluster.why_not_ready() {
            None => Page { is_well: true, text: "ready\n".to_owned() },
            Some(reason) => Page { is_well: false, text: format!("{reason}\n") },
        }),
        _ => None,
    }
}

fn text(cluster: &Cluster, clients: &Metrics) -> String {
    let mut text = String::new();
    metrics::write_status(&cluster.report(), &mut text);
    clients.write_prometheus(&mut text);
    text.push_str(&cluster.db().stats().to_prometheus());
    text
}

/// Catches the signal that has a node read its files anew, from now on.
pub(crate) fn hangups() -> Result<Signal> {
    signal(SignalKind::hangup()).map_err(Error::io("catch", "signals"))
}

/// Signals that end a process.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// Catches the signals that end a process, from now on.
pub(crate) fn signals() -> Result<Signals> {
    let catch = |kind| signal(kind).map_err(Error::io("catch", "signals"));
    Ok(Signals { interrupt: catch(SignalKind::interrupt())?, terminate: catch(SignalKind::terminate())? })
}

impl Signals {
    /// Waits for one of them.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
