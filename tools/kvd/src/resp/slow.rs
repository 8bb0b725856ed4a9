//! [`SlowLog`]: the last commands that took long.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::machine::Reply;

/// Most words of an entry, and most bytes of each.
const MOST_WORDS: usize = 32;
const MOST_BYTES: usize = 128;

/// The last slow commands.
#[derive(Default)]
pub(super) struct SlowLog {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: i64,
    /// The newest first.
    entries: VecDeque<Reply>,
}

impl SlowLog {
    /// Notes a command; keeps the last `most`.
    pub(super) fn note(&self, words: &[Bytes], took: Duration, peer: SocketAddr, name: &Bytes, most: usize) {
        let mut shown: Vec<_> = words.iter().take(MOST_WORDS).map(show).collect();
        if words.len() > MOST_WORDS {
            shown.pop();
            shown.push(Reply::bulk(format!("... ({} more arguments)", words.len() - MOST_WORDS + 1)));
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = |number: u64| Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mut state = self.state.lock();
        let entry = vec![
            Reply::Integer(state.next),
            number(since.as_secs()),
            number(micros),
            Reply::Array(shown),
            Reply::bulk(peer.to_string()),
            Reply::Bulk(name.clone()),
        ];
        state.next += 1;
        state.entries.push_front(Reply::Array(entry));
        state.entries.truncate(most);
    }

    /// SLOWLOG GET.
    pub(super) fn get(&self, count: i64) -> Reply {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Reply::Array(self.state.lock().entries.iter().take(count).cloned().collect())
    }

    /// SLOWLOG LEN.
    pub(super) fn len(&self) -> Reply {
        Reply::count(self.state.lock().entries.len())
    }

    /// SLOWLOG RESET.
    pub(super) fn reset(&self) -> Reply {
        self.state.lock().entries.clear();
        Reply::OK
    }
}

fn show(word: &Bytes) -> Reply {
    match word.len().checked_sub(MOST_BYTES) {
        None | Some(0) => Reply::bulk(word),
        Some(more) => Reply::bulk([&word[..MOST_BYTES], format!("... ({more} more bytes)").as_bytes()].concat()),
    }
}
