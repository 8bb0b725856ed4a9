//! [`Server`]: listens, accepts, and stops.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::clients::Client;
use super::config::{Config, Gate};
use super::connection::{Close, Connection};
use super::metrics::Metrics;
use super::shared::Shared;
use crate::replica::Replica;

/// How long the server waits after it could not accept a connection, as for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// After this long without a byte, the system asks whether the client is still there.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// Why a server does not listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The system refused the address.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Anybody who reaches the address could write.
    #[error("{0} can be reached from other machines; require users or certificates of clients, or allow access to all")]
    Open(SocketAddr),
}

/// A server for clients.
pub struct Server<R> {
    listener: TcpListener,
    shared: Arc<Shared<R>>,
}

impl<R: Replica> Server<R> {
    /// Listens on an address. Refuses one beyond loopback unless clients must prove who they are or
    /// [`Config::open_to_all`] is set.
    pub async fn bind(address: SocketAddr, config: Config, replica: Arc<R>) -> Result<Server<R>, BindError> {
        let proven = config.users.is_some() || config.tls.as_ref().is_some_and(|tls| tls.verifies_clients);
        if !address.ip().is_loopback() && !proven && !config.open_to_all {
            return Err(BindError::Open(address));
        }
        let listener = TcpListener::bind(address).await.map_err(|source| BindError::Io { address, source })?;
        Ok(Server { listener, shared: Arc::new(Shared::new(replica, config)) })
    }

    /// The address on which the server listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Who may connect, to be replaced.
    pub fn gate(&self) -> Gate {
        self.shared.gate.clone()
    }

    /// What the server counts.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.shared.metrics)
    }

    /// Serves clients until `stop` is ready. Then accepts nobody, lets each connection answer the
    /// commands that it has read, closes it, and ends those that take longer than
    /// [`Limits::stop`](super::Limits::stop).
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Server { listener, shared } = self;
        let (stopping, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        let mut id = 0;
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
                Some(ended) = connections.join_next() => {
                    note_end(ended);
                    continue;
                }
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            shared.metrics.accepted.fetch_add(1, Relaxed);
            if connections.len() >= shared.limits().connections {
                shared.metrics.rejected.fetch_add(1, Relaxed);
                // To a client that expects TLS, the text would be noise.
                if shared.gate.tls().is_none() {
                    refuse(&stream);
                }
                continue;
            }
            id += 1;
            connections.spawn(serve(Arc::clone(&shared), stream, peer, id, stopped.clone()));
        }
        drop(listener);
        let _ = stopping.send(true);
        let all = async { while connections.join_next().await.map(note_end).is_some() {} };
        if timeout(shared.limits().stop, all).await.is_err() {
            tracing::warn!(connections = connections.len(), "connections did not end in time");
            connections.shutdown().await;
        }
    }
}

fn note_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task failed");
    }
}

/// Tells a client that there are too many, if that can be done without waiting.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
}

/// A connection that is counted as open.
struct Counted(Arc<Metrics>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

async fn serve<R: Replica>(
    shared: Arc<Shared<R>>,
    stream: TcpStream,
    peer: SocketAddr,
    id: u64,
    stop: watch::Receiver<bool>,
) {
    shared.metrics.connections.fetch_add(1, Relaxed);
    let _counted = Counted(Arc::clone(&shared.metrics));
    // Without these, replies are late and clients that are gone stay for ever; they are no reason
    // to refuse a client.
    let _ = stream.set_nodelay(true);
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE);
    let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    let client = Arc::new(Client::new(id, peer, stream.local_addr().ok()));
    let Some(tls) = shared.gate.tls() else { return talk(shared, stream, client, stop).await };
    let accepting = TlsAcceptor::from(tls.config).accept(stream);
    match timeout(shared.limits().stall, accepting).await {
        Ok(Ok(stream)) => talk(shared, stream, client, stop).await,
        Ok(Err(error)) => {
            shared.metrics.protocol_errors.fetch_add(1, Relaxed);
            tracing::debug!(%peer, %error, "no TLS");
        }
        Err(_) => {
            shared.metrics.stalled.fetch_add(1, Relaxed);
        }
    }
}

async fn talk<R: Replica, S: AsyncRead + AsyncWrite + Unpin + Send>(
    shared: Arc<Shared<R>>,
    stream: S,
    client: Arc<Client>,
    stop: watch::Receiver<bool>,
) {
    let (metrics, peer) = (Arc::clone(&shared.metrics), client.peer);
    let listing = Arc::clone(&shared);
    let _listed = listing.clients.list(&client);
    let close = Connection::new(shared, stream, client).run(stop).await;
    match close {
        Close::Stalled => drop(metrics.stalled.fetch_add(1, Relaxed)),
        Close::Protocol => drop(metrics.protocol_errors.fetch_add(1, Relaxed)),
        Close::Gone | Close::Done | Close::Killed | Close::Stop => {}
    }
    tracing::debug!(%peer, ?close, "connection closed");
}
