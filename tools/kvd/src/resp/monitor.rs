//! [`Monitors`]: connections that have said MONITOR and see the commands of all clients.

use std::fmt::Write;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::broadcast::{self, error::RecvError};

/// Most lines that wait for a monitor. It misses those beyond.
const MOST_LINES: usize = 1024;

/// Most words of a command, and most bytes of a word, that are shown.
const MOST_WORDS: usize = 32;
const MOST_BYTES: usize = 128;

/// All monitors.
pub(super) struct Monitors {
    lines: broadcast::Sender<Bytes>,
    /// How many there are: every command asks.
    count: Arc<AtomicUsize>,
}

impl Default for Monitors {
    fn default() -> Monitors {
        Monitors { lines: broadcast::Sender::new(MOST_LINES), count: Arc::default() }
    }
}

/// A connection's view of what others do; none before it has said MONITOR.
#[derive(Default)]
pub(super) struct Monitor {
    lines: Option<(broadcast::Receiver<Bytes>, Counted)>,
}

/// A monitor that is counted until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Monitors {
    /// Whether there is one.
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Lets a connection see commands from now on.
    pub(super) fn join(&self) -> Monitor {
        self.count.fetch_add(1, Relaxed);
        Monitor { lines: Some((self.lines.subscribe(), Counted(Arc::clone(&self.count)))) }
    }

    /// Shows a command.
    pub(super) fn show(&self, peer: SocketAddr, words: &[Bytes]) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = format!("+{}.{:06} [0 {peer}]", since.as_secs(), since.subsec_micros());
        for word in words.iter().take(MOST_WORDS) {
            // Writing to a string does not fail.
            let _ = write!(line, " \"{}\"", word[..word.len().min(MOST_BYTES)].escape_ascii());
        }
        line.push_str("\r\n");
        // The last monitor may have gone.
        let _ = self.lines.send(line.into());
    }
}

impl Monitor {
    /// Waits for the next command, as it is written to a connection.
    pub(super) async fn next(&mut self) -> Bytes {
        if let Some((lines, _)) = &mut self.lines {
            loop {
                match lines.recv().await {
                    Ok(line) => return line,
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => break,
                }
            }
        }
        pending().await
    }
}
