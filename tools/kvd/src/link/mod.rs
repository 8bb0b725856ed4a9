//! Connections between nodes: TCP or TLS, a handshake, then frames.
//!
//! ```text
//! frame      = length: u32, checksum: u32 (CRC-32 of the payload), payload
//! connection = Hello, Welcome, Proof, then frames of requests and answers in turn
//! ```
//!
//! Integers are little-endian. Each side proves that it knows the secret by an HMAC over both
//! sides' nonces; without a secret, the key is empty, and so a node with a secret and one without
//! refuse each other. The handshake authenticates and does not encrypt: TLS does (`tls`).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::machine::Version;
use crate::store::{Versions, decode, encode};

mod tls;

pub use tls::Tls;

/// Longest payload of a frame.
pub(crate) const MAX_FRAME: usize = 64 << 20;
/// Longest payload before the other side has proved that it belongs here.
const MAX_GREETING: usize = 1 << 10;
/// Time for connecting, and for the handshake.
const GREETING_TIME: Duration = Duration::from_secs(3);
/// Of silence, after which the system asks the other side whether it is there. Calls may last for
/// long without a word, and their own limits are longer.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// First field of the first frame: the protocol of the handshake. What follows it has versions.
const PROTOCOL: [u8; 4] = *b"kvd2";
const HEADER: usize = 8;

trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

/// What nodes of one cluster know of each other before they talk.
///
/// Clones are one: what replaces it counts for all connections that begin from then on.
#[derive(Clone, Default)]
pub struct Trust(Arc<RwLock<Arc<Known>>>);

#[derive(Default)]
struct Known {
    secret: Vec<u8>,
    tls: Option<Tls>,
}

impl Trust {
    /// Nodes prove to each other that they know `secret`, if one is given, and talk by TLS, if it
    /// is configured.
    pub fn new(secret: Option<Vec<u8>>, tls: Option<Tls>) -> Trust {
        let known = Known { secret: secret.unwrap_or_default(), tls };
        Trust(Arc::new(RwLock::new(Arc::new(known))))
    }

    /// Replaces it by what another one is.
    pub(crate) fn replace(&self, other: &Trust) {
        let other = other.known();
        *self.0.write() = other;
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.0.read())
    }

    /// Whether strangers are refused.
    pub fn is_guarded(&self) -> bool {
        let known = self.known();
        !known.secret.is_empty() || known.tls.is_some()
    }
}

impl Known {
    fn mac(&self, side: &[u8], greeting: &Greeting) -> Result<Hmac<Sha256>> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.secret);
        let mut mac = mac.map_err(|error| Error::Config(format!("the secret cannot be used: {error}")))?;
        mac.update(side);
        mac.update(&encode(greeting)?);
        Ok(mac)
    }

    fn prove(&self, side: &[u8], greeting: &Greeting) -> Result<Vec<u8>> {
        Ok(self.mac(side, greeting)?.finalize().into_bytes().to_vec())
    }

    fn check(&self, side: &[u8], greeting: &Greeting, proof: &[u8]) -> Result<()> {
        let wrong = |_| Error::Config("the other node does not know this cluster's secret".to_owned());
        self.mac(side, greeting)?.verify_slice(proof).map_err(wrong)
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known();
        f.debug_struct("Trust").field("secret", &!known.secret.is_empty()).field("tls", &known.tls.is_some()).finish()
    }
}

/// The latest version that a side knows, and the one that its cluster has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Spoken {
    known: Version,
    needed: Version,
}

impl Spoken {
    fn of(versions: &Versions) -> Spoken {
        Spoken { known: versions.known(), needed: versions.needed() }
    }

    /// Fails if one side is too old for the other.
    fn check(&self, theirs: &Spoken, peer: &str) -> Result<()> {
        let (known, needed) = (self.known, self.needed);
        if theirs.needed > known {
            return Err(Error::Outdated { needed: theirs.needed, known });
        }
        match theirs.known {
            known if known < needed => Err(Error::Old { node: peer.to_owned(), known, needed }),
            _ => Ok(()),
        }
    }
}

/// Sent by the side that connects.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hello {
    protocol: [u8; 4],
    versions: Spoken,
    /// The cluster of the side that connects, or 0: none.
    cluster: u64,
    /// The node that is meant, or 0: whichever listens at the address.
    to: u64,
    nonce: [u8; 32],
}

/// What both sides prove to have seen.
#[derive(Serialize)]
struct Greeting {
    hello: Hello,
    versions: Spoken,
    nonce: [u8; 32],
}

/// The answer to [`Hello`].
#[derive(Debug, Serialize, Deserialize)]
enum Welcome {
    Proof { versions: Spoken, nonce: [u8; 32], proof: Vec<u8> },
    Refused(String),
}

fn nonce() -> [u8; 32] {
    // Of the thread's cryptographic generator, which the system has seeded.
    rand::random()
}

/// Has small frames sent at once, and a connection closed whose other end is gone.
fn configure(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(3);
    SockRef::from(tcp).set_tcp_keepalive(&keepalive)
}

/// A connection to another node, past the handshake.
pub(crate) struct Link {
    stream: BufWriter<Box<dyn Stream>>,
    peer: String,
    /// The latest version that the other side knows.
    known: Version,
}

impl Link {
    /// Connects to the node `to` at `address`, as a node of `cluster`. 0 stands for whichever node
    /// is there, and for no cluster.
    pub(crate) async fn connect(
        trust: &Trust,
        address: &str,
        to: u64,
        cluster: u64,
        versions: &Versions,
    ) -> Result<Link> {
        let (ours, trust) = (Spoken::of(versions), trust.known());
        let greet = async {
            let tcp = TcpStream::connect(address).await.map_err(Error::io("connect to", address))?;
            configure(&tcp).map_err(Error::io("configure", address))?;
            let stream: Box<dyn Stream> = match &trust.tls {
                Some(tls) => Box::new(tls.connect(tcp, address).await?),
                None => Box::new(tcp),
            };
            let mut link = Link::over(stream, address.to_owned());
            let hello = Hello { protocol: PROTOCOL, versions: ours, cluster, to, nonce: nonce() };
            link.send(&hello).await?;
            let (versions, nonce, proof) = match link.receive_up_to(MAX_GREETING).await? {
                Welcome::Proof { versions, nonce, proof } => (versions, nonce, proof),
                Welcome::Refused(reason) => return Err(Error::Refused { node: address.to_owned(), reason }),
            };
            let greeting = Greeting { hello, versions, nonce };
            trust.check(b"accepts", &greeting, &proof)?;
            ours.check(&versions, address)?;
            link.known = versions.known;
            link.send(&trust.prove(b"connects", &greeting)?).await?;
            Ok(link)
        };
        in_time(GREETING_TIME, address, greet).await
    }

    /// Greets who has connected to `node` of `cluster`, 0 if it is in none.
    pub(crate) async fn accept(
        trust: &Trust,
        tcp: TcpStream,
        peer: SocketAddr,
        node: u64,
        cluster: u64,
        versions: &Versions,
    ) -> Result<Link> {
        let (ours, trust) = (Spoken::of(versions), trust.known());
        let peer = peer.to_string();
        let greet = async {
            configure(&tcp).map_err(Error::io("configure", &peer))?;
            let stream: Box<dyn Stream> = match &trust.tls {
                Some(tls) => Box::new(tls.accept(tcp, &peer).await?),
                None => Box::new(tcp),
            };
            let mut link = Link::over(stream, peer.clone());
            let ended = Error::io("receive from", &peer)(io::ErrorKind::UnexpectedEof.into());
            let first = link.payload(MAX_GREETING).await?.ok_or(ended)?;
            if !first.starts_with(&PROTOCOL) {
                let reason = "this node speaks another protocol; use the same kvd, or a newer one".to_owned();
                link.send(&Welcome::Refused(reason.clone())).await?;
                return Err(Error::Refused { node: "this one".to_owned(), reason });
            }
            let hello: Hello = decode(&first, "a message of another node")?;
            let refusal = match &hello {
                Hello { to, .. } if *to != 0 && *to != node => Some(format!("this is node {node}, not node {to}")),
                Hello { cluster: theirs, .. } if *theirs != 0 && cluster != 0 && *theirs != cluster => {
                    Some("this node is in another cluster".to_owned())
                }
                _ => None,
            };
            if let Some(reason) = refusal {
                link.send(&Welcome::Refused(reason.clone())).await?;
                return Err(Error::Refused { node: "this one".to_owned(), reason });
            }
            let nonce = nonce();
            let greeting = Greeting { hello, versions: ours, nonce };
            let welcome = Welcome::Proof { versions: ours, nonce, proof: trust.prove(b"accepts", &greeting)? };
            link.send(&welcome).await?;
            let proof: Vec<u8> = link.receive_up_to(MAX_GREETING).await?;
            trust.check(b"connects", &greeting, &proof)?;
            ours.check(&greeting.hello.versions, &peer)?;
            link.known = greeting.hello.versions.known;
            Ok(link)
        };
        in_time(GREETING_TIME, &peer, greet).await
    }

    fn over(stream: Box<dyn Stream>, peer: String) -> Link {
        Link { stream: BufWriter::new(stream), peer, known: Version::FIRST }
    }

    /// Fails unless the other side knows a version.
    pub(crate) fn check(&self, needed: Version) -> Result<()> {
        let known = self.known;
        if needed <= known { Ok(()) } else { Err(Error::Old { node: self.peer.clone(), known, needed }) }
    }

    /// Sends one frame.
    pub(crate) async fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        self.write(message).await?;
        self.stream.flush().await.map_err(Error::io("send to", &self.peer))
    }

    /// Adds a frame to what is sent with the next [`send`](Link::send), or earlier.
    pub(crate) async fn write<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let payload = encode(message)?;
        let len = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= MAX_FRAME);
        let len = len.ok_or_else(|| Error::Encode(format!("a message of {} bytes is too long", payload.len())))?;
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4..].copy_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        let written = async {
            self.stream.write_all(&header).await?;
            self.stream.write_all(&payload).await
        };
        written.await.map_err(Error::io("send to", &self.peer))
    }

    /// Receives one frame.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.receive_up_to(MAX_FRAME).await
    }

    /// Receives one frame, or `None` if the other side has closed the connection after the last.
    pub(crate) async fn receive_next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let payload = self.payload(MAX_FRAME).await?;
        payload.map(|payload| decode(&payload, "a message of another node")).transpose()
    }

    async fn receive_up_to<T: DeserializeOwned>(&mut self, limit: usize) -> Result<T> {
        let ended = || Error::io("receive from", &self.peer)(io::ErrorKind::UnexpectedEof.into());
        let ended = ended();
        let payload = self.payload(limit).await?.ok_or(ended)?;
        decode(&payload, "a message of another node")
    }

    async fn payload(&mut self, limit: usize) -> Result<Option<Vec<u8>>> {
        let mut header = [0; HEADER];
        let failed = |source| Error::Io { operation: "receive from", target: self.peer.clone(), source };
        if self.stream.read(&mut header[..1]).await.map_err(failed)? == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut header[1..]).await.map_err(failed)?;
        let [a, b, c, d, checksum @ ..] = header;
        let len = u32::from_le_bytes([a, b, c, d]);
        let broken = |rule: String| Error::Decode { place: "a frame of another node", rule };
        if len as usize > limit {
            return Err(broken(format!("{len} bytes, where {limit} are allowed")));
        }
        // Grows with what arrives, whatever the header says.
        let mut payload = Vec::new();
        (&mut self.stream).take(u64::from(len)).read_to_end(&mut payload).await.map_err(failed)?;
        if payload.len() != len as usize {
            return Err(broken(format!("{len} bytes announced, {} received", payload.len())));
        }
        if crc32fast::hash(&payload) != u32::from_le_bytes(checksum) {
            return Err(broken("the checksum does not match".to_owned()));
        }
        Ok(Some(payload))
    }
}

/// Waits for `work`, and fails when `limit` has passed.
pub(crate) async fn in_time<T>(limit: Duration, peer: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::io("get an answer in time from", peer)(io::ErrorKind::TimedOut.into());
    timeout(limit, work).await.map_err(late)?
}

#[cfg(test)]
mod tests;
