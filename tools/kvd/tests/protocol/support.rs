//! A server on loopback, and a client that shows replies as text.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use kvd::alone::Alone;
use kvd::resp::{Config, Limits, Metrics, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct Running {
    pub(crate) replica: Arc<Alone>,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Arc<Metrics>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

/// Starts a server with one group.
pub(crate) async fn start() -> Running {
    start_with(Config::default(), 1).await
}

pub(crate) fn limits(change: impl FnOnce(&mut Limits)) -> Config {
    let mut config = Config::default();
    change(&mut config.limits);
    config
}

pub(crate) async fn start_with(config: Config, groups: u32) -> Running {
    let db = tamis::Options::new().open_in_memory().unwrap();
    // The port is known only once the server listens, and the replica tells it to clients.
    let replica = Arc::new(Alone::open(&db, groups, "127.0.0.1", 0).unwrap());
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), config, Arc::clone(&replica)).await.unwrap();
    let address = server.local_addr().unwrap();
    let me = kvd::replica::Node { id: 1, host: "127.0.0.1".to_owned(), port: address.port() };
    replica.set_nodes(vec![me], Some(1));
    let metrics = server.metrics();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(server.run(async { drop(stopped.await) }));
    Running { replica, address, metrics, stop: Some(stop), served }
}

impl Running {
    pub(crate) async fn client(&self) -> Client<TcpStream> {
        Client::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Stops the server and waits until it has.
    pub(crate) async fn stopped(mut self) {
        self.stop();
        self.served.await.unwrap();
    }

    /// Runs what blocks, such as other clients.
    pub(crate) async fn blocking<T: Send + 'static>(&self, run: impl FnOnce(SocketAddr) -> T + Send + 'static) -> T {
        let address = self.address;
        tokio::task::spawn_blocking(move || run(address)).await.unwrap()
    }
}

pub(crate) struct Client<S> {
    pub(crate) stream: S,
    buffer: BytesMut,
}

/// A command as clients send it. Words stand between spaces; `_` is the empty one.
pub(crate) fn command(line: &str) -> Vec<u8> {
    let words: Vec<_> = line.split(' ').map(|word| if word == "_" { "" } else { word }).collect();
    encode(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
}

pub(crate) fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend(*word);
        out.extend(b"\r\n");
    }
    out
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub(crate) fn new(stream: S) -> Client<S> {
        Client { stream, buffer: BytesMut::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// The next reply; `None` if the server has closed the connection.
    pub(crate) async fn receive(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, rest)) = Frame::parse(&self.buffer) {
                let len = self.buffer.len() - rest.len();
                self.buffer.advance(len);
                return Some(frame);
            }
            let read = tokio::time::timeout(Duration::from_secs(60), self.stream.read_buf(&mut self.buffer));
            if read.await.expect("a reply in time").unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub(crate) async fn call(&mut self, line: &str) -> String {
        self.send(&command(line)).await;
        self.shown().await
    }

    /// Like `call`, for a server that may have closed the connection.
    pub(crate) async fn call_or_closed(&mut self, line: &str) -> String {
        self.send_or_fail(&command(line)).await;
        self.shown().await
    }

    /// Sends bytes to a server that may have closed the connection.
    pub(crate) async fn send_or_fail(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// All bytes until the server closes the connection.
    pub(crate) async fn receive_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset ends it, too.
        let _ = self.stream.read_to_end(&mut bytes).await;
        bytes
    }

    /// The next reply as text.
    pub(crate) async fn shown(&mut self) -> String {
        self.receive().await.map_or("closed".to_owned(), |frame| show(&frame))
    }

    /// Calls commands and compares replies.
    pub(crate) async fn check(&mut self, lines: &[(&str, &str)]) {
        for (line, expected) in lines {
            assert_eq!(self.call(line).await, *expected, "{line}");
        }
    }
}

/// A reply.
#[derive(Debug)]
pub(crate) enum Frame {
    Null,
    Status(String),
    Error(String),
    Number(i64),
    Bulk(Vec<u8>),
    Text(Vec<u8>),
    Array(Vec<Frame>),
    Map(Vec<(Frame, Frame)>),
}

impl Frame {
    /// The first reply in some bytes, and what is behind it.
    fn parse(bytes: &[u8]) -> Option<(Frame, &[u8])> {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let (kind, line) = (bytes[0], std::str::from_utf8(&bytes[1..end]).unwrap());
        let mut rest = &bytes[end + 2..];
        let text = || line.to_owned();
        let number = || line.parse::<i64>().unwrap();
        let mut frames = |count: i64| -> Option<Vec<Frame>> {
            let mut frames = Vec::new();
            for _ in 0..count {
                let (frame, after) = Frame::parse(rest)?;
                frames.push(frame);
                rest = after;
            }
            Some(frames)
        };
        let frame = match kind {
            b'_' => Frame::Null,
            b'$' | b'*' if number() == -1 => Frame::Null,
            b'+' => Frame::Status(text()),
            b'-' => Frame::Error(text()),
            b':' => Frame::Number(number()),
            b'*' => Frame::Array(frames(number())?),
            b'%' => {
                let mut frames = frames(2 * number())?.into_iter();
                let pairs = std::iter::from_fn(|| frames.next().zip(frames.next()));
                Frame::Map(pairs.collect())
            }
            b'$' | b'=' => {
                let len = usize::try_from(number()).unwrap();
                let bytes = rest.get(..len)?.to_vec();
                rest = rest.get(len + 2..)?;
                if kind == b'$' { Frame::Bulk(bytes) } else { Frame::Text(bytes) }
            }
            other => panic!("no reply begins with {other}"),
        };
        Some((frame, rest))
    }
}

/// A reply as text: numbers as they are, strings quoted, `+status`, `-ERROR`.
pub(crate) fn show(frame: &Frame) -> String {
    match frame {
        Frame::Null => "nil".to_owned(),
        Frame::Status(text) => format!("+{text}"),
        Frame::Error(text) => format!("-{text}"),
        Frame::Number(number) => number.to_string(),
        Frame::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Frame::Text(bytes) => format!("text {}", bytes.escape_ascii()),
        Frame::Array(frames) => format!("[{}]", frames.iter().map(show).collect::<Vec<_>>().join(" ")),
        Frame::Map(pairs) => {
            let mut pairs: Vec<_> =
                pairs.iter().map(|(key, value)| format!("{}: {}", show(key), show(value))).collect();
            pairs.sort();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

/// Waits until a condition holds, which another task brings about.
pub(crate) async fn eventually(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asserts that a reply is an error of a kind.
pub(crate) fn assert_kind(reply: &str, kind: &str) {
    assert!(reply.starts_with(&format!("-{kind} ")), "{kind}: {reply}");
}
