//! Keys that expire while clocks jump and leaders change: none is gone early, none stays.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Answer, Connection};

/// By how much a key may live longer or shorter, beside one part in 100: what one node's clock
/// differs from another's, and what a leader that has just been elected has not heard of.
const TOLERANCE: Duration = Duration::from_millis(400);
const PAUSE: Duration = Duration::from_millis(10);
/// For a read that finds the key gone. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// What keys have shown.
#[derive(Default)]
pub(crate) struct Lives {
    seen: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Lives {
    /// Keys of which a read has shown that they were there or gone, when either was certain.
    pub(crate) fn seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }

    /// What must not have been.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }

    /// Notes what a read that began and ended then has found of a key that was set between `sent`
    /// and `set`.
    fn note(&self, ttl: Duration, sent: Instant, set: Instant, read: (Instant, Instant), is_there: bool) {
        let (began, ended) = read;
        let part = ttl / 100;
        let is_wrong = match is_there {
            true => began > set + ttl + part + TOLERANCE,
            false => ended + part + TOLERANCE < sent + ttl,
        };
        self.seen.fetch_add(usize::from(!is_there), Ordering::Relaxed);
        if is_wrong {
            let state = if is_there { "there" } else { "gone" };
            let text = format!("a key of {} ms is {state} after {} ms", ttl.as_millis(), (ended - sent).as_millis());
            println!("{text}");
            self.wrong.lock().unwrap().push(text);
        }
    }
}

/// Sets keys that expire, one after the other, and looks when they are gone.
pub(crate) fn work(seed: u64, nodes: &[SocketAddr], lives: &Lives, ended: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut node, mut number) = (0, 0);
    let mut connection = None;
    let mut ask = |words: &[&str]| {
        if connection.is_none() {
            connection = Connection::open(nodes[node]).ok();
        }
        let answer = connection.as_mut().and_then(|open| open.ask(words).ok());
        if !matches!(answer, Some(Answer::Nil | Answer::Text(_))) {
            (node, connection) = ((node + 1) % nodes.len(), None);
            thread::sleep(PAUSE);
            return None;
        }
        answer
    };
    while !ended.load(Ordering::Relaxed) {
        number += 1;
        let (key, ttl) = (format!("expires {seed} {number}"), Duration::from_millis(random.u64(100..2500)));
        let sent = Instant::now();
        if ask(&["SET", &key, "v", "PX", &ttl.as_millis().to_string()]).is_none() {
            continue;
        }
        let set = Instant::now();
        while set.elapsed() < PATIENCE && !ended.load(Ordering::Relaxed) {
            let began = Instant::now();
            let Some(answer) = ask(&["GET", &key]) else { continue };
            lives.note(ttl, sent, set, (began, Instant::now()), answer != Answer::Nil);
            if answer == Answer::Nil {
                break;
            }
            thread::sleep(PAUSE);
        }
    }
}

#[test]
fn the_oracle_refuses_lives_that_are_too_short_or_too_long() {
    let (sent, ttl) = (Instant::now(), Duration::from_secs(10));
    let set = sent + Duration::from_millis(100);
    for (after, is_there, is_wrong) in [
        (9_000, false, true),
        (9_600, false, false),
        (9_000, true, false),
        (10_500, true, false),
        (10_700, true, true),
        (10_700, false, false),
    ] {
        let (lives, read) = (Lives::default(), sent + Duration::from_millis(after));
        lives.note(ttl, sent, set, (read, read), is_there);
        assert_eq!(!lives.wrong().is_empty(), is_wrong, "{after} ms, there: {is_there}");
    }
}
