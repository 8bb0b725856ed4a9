//! [`Connection`]: one client, from its first byte to its last: what it sends becomes commands, and
//! replies leave in their order.

use std::future::ready;
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

use super::clients::Client;
use super::decode::Decoder;
use super::dialogue::{Action, Dialogue, Prepared, Then, is_secret};
use super::encode::encode;
use super::memory::{FREE, Share};
use super::metrics::{Durations, Metrics};
use super::shared::{Shared, count};
use crate::command::{Command, Spec};
use crate::machine::{GroupId, Reply};
use crate::replica::Replica;

/// How much a read may take: little for connections that rarely send, up to the most for busy ones.
const LEAST_READ: usize = 1024;
const MOST_READ: usize = 16 * 1024;

/// From this many bytes on, replies are sent before further commands are carried out.
const FLUSH_LEN: usize = 16 * 1024;

/// How much of a long reply is sent at a time.
const PIECE: usize = 64 * 1024;

/// The least speed at which long commands and replies must move, in bytes per millisecond.
const LEAST_SPEED: usize = 64;

/// A command that waits for memory for so long ends a connection that holds some and has stood
/// still for as long.
const PATIENCE: Duration = Duration::from_secs(1);

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
    /// Another client said CLIENT KILL, or needs the memory that this one holds.
    Killed,
    /// The server stops.
    Stop,
}

/// A command that is being carried out.
struct Running {
    spec: Option<&'static Spec>,
    words: Vec<Bytes>,
    began: Instant,
    /// Whether the client gets no reply.
    muted: bool,
    /// Which durations its own belongs to.
    timed: Option<fn(&Metrics) -> &Durations>,
}

pub(super) struct Connection<R, S> {
    shared: Arc<Shared<R>>,
    client: Arc<Client>,
    dialogue: Dialogue<R>,
    stream: S,
    buffer: BytesMut,
    decoder: Decoder,
    read_len: usize,
    /// From this time on a command is slow, as the limits say that hold since the last read.
    slow: Duration,
    /// When the command in the buffer began.
    began: Instant,
    out: BytesMut,
    /// Shared memory for the command being read, and for the replies in `out`.
    input: Share,
    output: Share,
}

impl<R: Replica, S: AsyncRead + AsyncWrite + Unpin> Connection<R, S> {
    pub(super) fn new(shared: Arc<Shared<R>>, stream: S, client: Arc<Client>) -> Connection<R, S> {
        Connection {
            dialogue: Dialogue::new(Arc::clone(&shared), Arc::clone(&client)),
            decoder: Decoder::new(shared.limits().command),
            shared,
            client,
            stream,
            buffer: BytesMut::new(),
            read_len: LEAST_READ,
            slow: Duration::MAX,
            began: Instant::now(),
            out: BytesMut::new(),
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
                let _ = timeout(shared.limits().stall, self.stream.shutdown()).await;
                return close;
            }
        }
    }

    /// Reads more bytes.
    async fn fill(&mut self, stop: &mut watch::Receiver<bool>) -> Result<(), Close> {
        let limits = self.shared.limits();
        self.decoder.set_limits(limits.command, limits.value);
        self.slow = limits.slow.unwrap_or(Duration::MAX);
        self.decoder.set_stranger(self.dialogue.is_stranger());
        let inside = self.decoder.is_inside(&self.buffer);
        let needs = if inside { self.decoder.needs(&self.buffer) } else { 0 };
        let arrived = if inside { self.decoder.arrived(&self.buffer) } else { 0 };
        if !inside {
            self.began = Instant::now();
            if self.buffer.capacity() > LEAST_READ {
                self.buffer = BytesMut::new();
            }
        }
        let deadline = match limits.idle {
            _ if self.dialogue.is_stranger() => Some(self.client.opened() + limits.stall),
            _ if inside => Some(self.began + limits.stall + moving_time(arrived)),
            idle => idle.map(|idle| Instant::now() + idle),
        };
        if needs <= FREE {
            self.input.clear();
        } else if within(deadline, self.take_memory(arrived, needs)).await.is_none() {
            self.reply(&Reply::error("ERR there is no memory for a command of this length now; try again later"));
            return Err(Close::Done);
        }
        // At most doubles what is there: a declared length alone takes no memory.
        let room = needs.saturating_sub(self.buffer.len()).min(self.buffer.len()).max(self.read_len);
        self.buffer.reserve(room);
        self.client.account.begin_unless_waiting();
        let read = tokio::select! {
            read = within(deadline, self.stream.read_buf(&mut self.buffer)) => read,
            line = self.dialogue.monitor.next() => {
                self.out.extend_from_slice(&line);
                return Ok(());
            }
            () = self.client.killed() => return Err(self.killed(inside)),
            _ = stop.wait_for(|stop| *stop) => return Err(Close::Stop),
        };
        match read {
            None => Err(self.stalled(inside)),
            Some(Ok(len)) if len > 0 => {
                self.client.account.moved(len);
                self.shared.metrics.bytes_in.fetch_add(len as u64, Relaxed);
                let next = if len >= self.read_len { self.read_len * 4 } else { self.read_len / 2 };
                self.read_len = next.clamp(LEAST_READ, MOST_READ);
                Ok(())
            }
            Some(_) => Err(Close::Gone),
        }
    }

    /// Takes shared memory for the command being read. If there is none for long, a connection that
    /// stands still is ended.
    async fn take_memory(&mut self, arrived: usize, needs: usize) {
        let (shared, began) = (Arc::clone(&self.shared), Instant::now());
        self.client.account.end();
        let mut grown = std::pin::pin!(shared.memory.grow(&mut self.input, &self.client.account, arrived, needs));
        while timeout(PATIENCE, &mut grown).await.is_err() {
            shared.clients.end_idlest(PATIENCE);
        }
        self.client.account.resume(began.elapsed());
    }

    fn stalled(&mut self, inside: bool) -> Close {
        if inside {
            self.reply(&Reply::error("ERR the rest of the command did not come in time"));
        }
        Close::Stalled
    }

    fn killed(&mut self, inside: bool) -> Close {
        if self.client.stood_still() { self.stalled(inside) } else { Close::Killed }
    }

    /// Carries out all commands in the buffer.
    async fn serve(&mut self, shared: &Shared<R>) -> Result<(), Close> {
        // Replies in the order of the commands. Writes among them are in flight.
        let mut pending = FuturesOrdered::new();
        // Groups that were led from here after all these commands had come.
        let mut fresh: Vec<GroupId> = Vec::new();
        loop {
            if pending.len() >= shared.limits().in_flight {
                self.answer_all(&mut pending).await?;
            }
            self.decoder.set_stranger(self.dialogue.is_stranger());
            let words = match self.decoder.decode(&mut self.buffer) {
                Ok(Some(words)) => words,
                Ok(None) => break,
                Err(error) => {
                    self.answer_all(&mut pending).await?;
                    self.reply(&Reply::error(format!("ERR {error}")));
                    return Err(Close::Protocol);
                }
            };
            self.client.account.end();
            self.began = Instant::now();
            if is_http(&words) {
                return Err(Close::Protocol);
            }
            let Prepared { spec, action, muted } = self.dialogue.prepare(&words, self.began);
            let timed: Option<fn(&Metrics) -> &Durations> = match &action {
                Action::Write { .. } => Some(|metrics| &metrics.writes),
                Action::Alone(_, Command::Read(_)) => Some(|metrics| &metrics.reads),
                _ => None,
            };
            let running = Running { spec, words, began: self.began, muted, timed };
            match action {
                Action::Answer(reply) if pending.is_empty() => self.answer(&reply, &running),
                Action::Answer(reply) => pending.push_back(Either::Left(ready((reply, running)))),
                Action::Write { slot, request, weave } if request.body.answers_values() => {
                    self.answer_all(&mut pending).await?;
                    let reply = shared.write(slot, request, weave).await;
                    self.answer_if_it_fits(&reply, &Reply::NOT_KEPT, &running);
                }
                Action::Write { slot, request, weave } => {
                    let reply = shared.write(slot, request, weave);
                    pending.push_back(Either::Right(async move { (reply.await, running) }));
                }
                Action::Alone(slot, command) => {
                    self.answer_all(&mut pending).await?;
                    match self.dialogue.carry_out(slot, command, &mut fresh).await {
                        Then::GoOn(reply) => self.answer_if_it_fits(&reply, &NO_MEMORY, &running),
                        Then::Close(reply) => {
                            self.answer(&reply, &running);
                            return Err(Close::Done);
                        }
                    }
                }
            }
            if self.out.len() >= FLUSH_LEN {
                self.flush().await?;
            }
        }
        self.answer_all(&mut pending).await?;
        self.flush().await?;
        if self.client.is_killed() { Err(Close::Killed) } else { Ok(()) }
    }

    async fn answer_all(
        &mut self,
        pending: &mut FuturesOrdered<impl Future<Output = (Reply, Running)>>,
    ) -> Result<(), Close> {
        while let Some((reply, running)) = pending.next().await {
            self.answer(&reply, &running);
            if self.out.len() >= FLUSH_LEN {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Answers a command, and counts it.
    fn answer(&mut self, reply: &Reply, running: &Running) {
        let took = running.began.elapsed();
        if let Some(durations) = running.timed {
            durations(&self.shared.metrics).record(took);
        }
        if let Some(spec) = running.spec {
            self.shared.metrics.count_call(spec, took, reply.is_error());
            if took >= self.slow && !is_secret(spec) {
                let (name, kept) = (self.client.profile.lock().name.clone(), self.shared.limits().slow_kept);
                self.shared.slow.note(&running.words, took, self.client.peer, &name, kept);
            }
        }
        if running.muted {
            self.shared.metrics.count_error(reply);
        } else {
            self.reply(reply);
        }
    }

    fn reply(&mut self, reply: &Reply) {
        self.shared.metrics.count_error(reply);
        encode(reply, self.dialogue.version(), &mut self.out);
    }

    /// Answers a reply that may be long, or another one if there is no memory to hold it until the
    /// client takes it.
    fn answer_if_it_fits(&mut self, reply: &Reply, otherwise: &Reply, running: &Running) {
        if self.shared.memory.try_add(&mut self.output, &self.client.account, reply.weight()) {
            self.answer(reply, running);
        } else {
            count(&self.shared.metrics.out_of_memory);
            self.answer(otherwise, running);
            self.shared.clients.end_idlest(PATIENCE);
        }
    }

    async fn flush(&mut self) -> Result<(), Close> {
        let len = self.out.len();
        if len == 0 {
            return Ok(());
        }
        let deadline = Instant::now() + self.shared.limits().stall + moving_time(len);
        self.client.account.begin();
        let written = tokio::select! {
            written = within(Some(deadline), write(&mut self.stream, &self.out, &self.client)) => written,
            () = self.client.told_to_end() => None,
        };
        self.client.account.end();
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
}

/// Writes in pieces, so that others see whether the client takes them.
async fn write(stream: &mut (impl AsyncWrite + Unpin), out: &[u8], client: &Client) -> std::io::Result<()> {
    for piece in out.chunks(PIECE) {
        stream.write_all(piece).await?;
        client.account.moved(piece.len());
    }
    stream.flush().await
}

const NO_MEMORY: Reply = Reply::Error(std::borrow::Cow::Borrowed(
    "TRYAGAIN there is no memory for a reply of this length now; ask for less, or again later",
));

/// Whether a browser sends this, perhaps because of a page that wants to reach this server.
fn is_http(words: &[Bytes]) -> bool {
    words.first().is_some_and(|name| name.eq_ignore_ascii_case(b"host:") || name.eq_ignore_ascii_case(b"post"))
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
