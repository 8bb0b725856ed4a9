//! Requests with serial numbers, sent again and again while leaders die: each is applied once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Answer, Connection};
use crate::hosts::Hosts;

const CLIENTS: u64 = 4;
/// Increments of each client around each kill.
const PHASE: u64 = 150;
const KILLS: u64 = 2;
/// For one request. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

/// Asks nodes in turn until one of them has an answer. Returns it, and how often the outcome was
/// unknown.
fn insist(nodes: &[SocketAddr], node: &mut usize, words: &[&str]) -> (Answer, u64) {
    let (mut unknown, deadline) = (0, Instant::now() + PATIENCE);
    loop {
        assert!(Instant::now() < deadline, "{words:?} gets no answer");
        if let Ok(mut connection) = Connection::open(nodes[*node]) {
            match connection.ask(words) {
                Ok(Answer::Refused(_)) => {}
                Ok(Answer::Unknown(_)) | Err(_) => unknown += 1,
                Ok(answer) => return (answer, unknown),
            }
        }
        *node = (*node + 1) % nodes.len();
        thread::sleep(PAUSE);
    }
}

/// What clients and the thread that kills a leader tell each other.
#[derive(Default)]
struct Phase {
    done: AtomicU64,
    has_killed: AtomicBool,
}

/// Counts from `first` on, in a session. Returns how often the outcome of a try was unknown.
fn count(nodes: &[SocketAddr], key: &str, session: &str, first: u64, phase: &Phase) -> u64 {
    let (mut node, mut unknown) = (0, 0);
    for serial in first..first + PHASE {
        // However late the kill comes on a busy machine, requests are left for after it.
        while serial == first + PHASE / 2 && !phase.has_killed.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        let number = serial.to_string();
        let (answer, times) = insist(nodes, &mut node, &["KVD.ONCE", session, number.as_str(), "INCR", key]);
        assert_eq!(answer, Answer::Text(number), "{key}: a request was applied twice, or not at all");
        unknown += times;
        phase.done.fetch_add(1, Ordering::Relaxed);
    }
    unknown
}

#[test]
fn a_request_with_a_serial_number_is_applied_once_whoever_leads() {
    let mut hosts = Hosts::start(3, 1);
    let nodes = hosts.clients();
    let open = |client: u64| {
        let key = format!("counter {client}");
        match insist(&nodes, &mut 0, &["KVD.SESSION", key.as_str()]).0 {
            Answer::Text(session) => (key, session),
            other => panic!("{other:?} is no session"),
        }
    };
    let sessions: Vec<(String, String)> = (0..CLIENTS).map(open).collect();
    let mut unknown = 0;
    for kill in 0..KILLS {
        let leader = hosts.leader(0);
        let phase = Arc::new(Phase::default());
        let mut clients = Vec::new();
        for (key, session) in sessions.clone() {
            let (nodes, phase) = (nodes.clone(), Arc::clone(&phase));
            clients.push(thread::spawn(move || count(&nodes, &key, &session, 1 + kill * PHASE, &phase)));
        }
        while phase.done.load(Ordering::Relaxed) < CLIENTS * PHASE / 4 && !clients.iter().all(|it| it.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
        hosts.kill(leader);
        phase.has_killed.store(true, Ordering::Relaxed);
        for client in clients {
            unknown += client.join().unwrap();
        }
        hosts.run(leader);
    }
    for (key, _) in &sessions {
        let (answer, _) = insist(&nodes, &mut 0, &["GET", key.as_str()]);
        assert_eq!(answer, Answer::Text((KILLS * PHASE).to_string()));
    }
    println!("{} requests, {unknown} tries of unknown outcome", CLIENTS * KILLS * PHASE);
}
