//! A client that measures the server: requests per second and how long they take, by the number of
//! connections. It speaks just enough HTTP for that.

use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Keys that are read and written.
pub(crate) const KEYS: u64 = 10_000;
const VALUE: [u8; 100] = [b'v'; 100];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Put,
}

/// What the requests of a run took.
#[derive(Default)]
pub(crate) struct Figures {
    /// Of those that were answered with success, ascending.
    times: Vec<Duration>,
    /// Requests that were answered 503.
    pub(crate) refused: usize,
    elapsed: Duration,
}

impl Figures {
    pub(crate) fn answered(&self) -> usize {
        self.times.len()
    }

    fn at(&self, share: f64) -> Duration {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position in the list")]
        let at = (self.times.len() as f64 * share) as usize;
        self.times.get(at.min(self.times.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = self.answered() as f64 / self.elapsed.as_secs_f64();
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let (p50, p99) = (millis(self.at(0.5)), millis(self.at(0.99)));
        write!(f, "{per_second:9.0}/s  p50 {p50:7.2} ms  p99 {p99:7.2} ms  {} refused", self.refused)
    }
}

struct Connection {
    stream: TcpStream,
    /// Received and not yet used.
    received: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, received: Vec::new() })
    }

    async fn receive(&mut self) -> Result<()> {
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Sends a request and reads the answer; returns its status.
    async fn ask(&mut self, method: Method, key: u64) -> Result<u16> {
        let request = match method {
            Method::Get => format!("GET /keys/key{key:08} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes(),
            Method::Put => {
                let head =
                    format!("PUT /keys/key{key:08} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", VALUE.len());
                [head.as_bytes(), &VALUE].concat()
            }
        };
        self.stream.write_all(&request).await?;
        let head = loop {
            let end = self.received.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                break self.received.drain(..end + 4).collect::<Vec<u8>>();
            }
            self.receive().await?;
        };
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let invalid = || Error::new(ErrorKind::InvalidData, format!("not an answer: {head:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(invalid)?;
        let len = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let len = len.map_or(Ok(0), |len| len.trim().parse::<usize>()).map_err(|_| invalid())?;
        while self.received.len() < len {
            self.receive().await?;
        }
        self.received.drain(..len);
        Ok(status)
    }
}

/// Sends so many requests over so many connections, each of which waits for an answer before the
/// next request. The keys are those of a random sequence.
pub(crate) async fn measure(address: SocketAddr, method: Method, connections: u64, requests: u64) -> Result<Figures> {
    let mut tasks = JoinSet::new();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Connection::open(address).await?);
    }
    let begin = Instant::now();
    for (n, mut connection) in (1..).zip(open) {
        let share = requests / connections + u64::from(n <= requests % connections);
        tasks.spawn(async move {
            let (mut state, mut figures) = (n, Figures::default());
            for _ in 0..share {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                let sent = Instant::now();
                match connection.ask(method, (state >> 32) % KEYS).await? {
                    200..300 => figures.times.push(sent.elapsed()),
                    503 => figures.refused += 1,
                    status => return Err(Error::other(format!("the server answered {status}"))),
                }
            }
            Ok(figures)
        });
    }
    let mut all = Figures::default();
    while let Some(figures) = tasks.join_next().await {
        let figures: Figures = figures.map_err(Error::other)??;
        all.times.extend(figures.times);
        all.refused += figures.refused;
    }
    all.elapsed = begin.elapsed();
    all.times.sort_unstable();
    Ok(all)
}

/// Puts every key, so that gets find it.
pub(crate) async fn fill(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    for key in 0..KEYS {
        match connection.ask(Method::Put, key).await? {
            204 => {}
            status => return Err(Error::other(format!("the server answered {status}"))),
        }
    }
    Ok(())
}

/// Measures gets and puts over 1 to 256 connections, and prints the figures.
pub(crate) async fn run(address: SocketAddr, requests: u64) -> Result<()> {
    fill(address).await?;
    for method in [Method::Get, Method::Put] {
        for connections in [1, 16, 64, 256] {
            let figures = measure(address, method, connections, requests).await?;
            println!("{method:?} over {connections:3} connections: {figures}");
        }
    }
    Ok(())
}
