//! Clients under faults.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvd::machine::{group_of, slot_of};

use crate::client::{Answer, Connection};
use crate::expiry::{self, Lives};
use crate::history::{Operation, Recorder};
use crate::hosts::Hosts;

/// Keys of a round. Each round has its own: to check a history takes time that grows faster than
/// its length.
const KEYS: usize = 8;
const CLIENTS: usize = 9;
/// Clients whose keys expire.
const EXPIRING: u64 = 3;
/// Writes that must succeed in each phase in which a majority can work.
const PHASE: usize = 100;
/// For a phase. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// How pinned readers read.
#[derive(Clone, Copy)]
pub(crate) enum Reading {
    /// As everybody does.
    Linearizable,
    /// What the node has, with any delay: a control, whose histories must be refused.
    Stale,
}

/// Clients that run until they are told to end.
pub(crate) struct Clients {
    nodes: Vec<SocketAddr>,
    recorder: Arc<Recorder>,
    round: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    lives: Arc<Lives>,
    groups: u32,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(crate) fn start(hosts: &Hosts, reading: Reading) -> Clients {
        let (nodes, groups) = (hosts.clients(), u32::try_from(hosts.groups()).unwrap());
        let (recorder, ended) = (Arc::new(Recorder::default()), Arc::new(AtomicBool::new(false)));
        let (values, round) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicUsize::new(0)));
        let mut threads = Vec::new();
        for seed in 0..CLIENTS {
            let (nodes, recorder, ended) = (nodes.clone(), Arc::clone(&recorder), Arc::clone(&ended));
            let (values, round) = (Arc::clone(&values), Arc::clone(&round));
            threads.push(thread::spawn(move || work(seed, groups, &nodes, &recorder, &values, &round, &ended)));
        }
        for node in nodes.clone() {
            let (recorder, ended, round) = (Arc::clone(&recorder), Arc::clone(&ended), Arc::clone(&round));
            threads.push(thread::spawn(move || read_pinned(node, reading, &recorder, &round, &ended)));
        }
        let lives: Arc<Lives> = Arc::default();
        for seed in 0..EXPIRING {
            let (nodes, lives, ended) = (nodes.clone(), Arc::clone(&lives), Arc::clone(&ended));
            threads.push(thread::spawn(move || expiry::work(seed, &nodes, &lives, &ended)));
        }
        let clients = Clients { nodes, recorder, round, ended, lives, groups, threads };
        clients.begin_round(0);
        clients
    }

    /// From now on, clients use the keys of a round.
    fn begin_round(&self, round: usize) {
        self.round.store(round, Ordering::Relaxed);
        let of = |key| group_of(slot_of(name(key).as_bytes()), self.groups);
        self.recorder.watch((KEYS * round..KEYS * (round + 1)).map(of).collect());
    }

    /// Waits until so many more writes have succeeded, and one in each group.
    pub(crate) fn wait(&self, what: &str) {
        let begun = Instant::now();
        let (goal, deadline) = (self.recorder.written() + PHASE, begun + PATIENCE);
        while self.recorder.written() < goal || !self.recorder.all_written_since(begun) {
            let left = goal.saturating_sub(self.recorder.written());
            assert!(Instant::now() < deadline, "{what}: {left} writes of {PHASE} are still missing");
            thread::sleep(PAUSE);
        }
    }

    /// Ends them, and reads the keys of all rounds. Returns those whose histories are broken.
    pub(crate) fn end(self) -> Vec<usize> {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        for key in 0..KEYS * (self.round.load(Ordering::Relaxed) + 1) {
            let saw = number(&read_last(&self.nodes, key));
            let call = self.recorder.call(key);
            self.recorder.response(call, Some(Operation::Read { saw }));
        }
        let broken = self.recorder.broken_keys();
        let (begun, written) = (self.recorder.begun(), self.recorder.written());
        println!("{begun} operations, {written} writes acknowledged; keys with broken histories: {broken:?}");
        broken
    }
}

fn name(key: usize) -> String {
    format!("register {key}")
}

fn number(answer: &Answer) -> Option<u64> {
    match answer {
        Answer::Nil => None,
        Answer::Text(text) => Some(text.parse().unwrap()),
        other => panic!("{other:?} is no value of a register"),
    }
}

/// Reads a key from the node that leads, after all else.
fn read_last(nodes: &[SocketAddr], key: usize) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    for node in nodes.iter().cycle() {
        match Connection::open(*node).and_then(|mut open| open.ask(&["GET", &name(key)])) {
            Ok(answer @ (Answer::Nil | Answer::Text(_))) => return answer,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        thread::sleep(PAUSE);
    }
    unreachable!("there are nodes")
}

/// A key of the round.
fn pick(random: &mut fastrand::Rng, round: &AtomicUsize) -> usize {
    KEYS * round.load(Ordering::Relaxed) + random.usize(..KEYS)
}

/// Writes, swaps and reads, wherever the leader is.
fn work(
    seed: usize,
    groups: u32,
    nodes: &[SocketAddr],
    recorder: &Recorder,
    values: &AtomicU64,
    round: &AtomicUsize,
    ended: &AtomicBool,
) {
    let mut random = fastrand::Rng::with_seed(seed as u64);
    let (mut node, mut connection) = (seed % nodes.len(), None);
    while !ended.load(Ordering::Relaxed) {
        let Some(open) = connection.as_mut() else {
            connection = Connection::open(nodes[node]).ok();
            if connection.is_none() {
                node = (node + 1) % nodes.len();
                thread::sleep(PAUSE);
            }
            continue;
        };
        let (key, value) = (pick(&mut random, round), values.fetch_add(1, Ordering::Relaxed));
        let (key_name, text) = (name(key), value.to_string());
        let kind = random.u8(..3);
        let call = recorder.call(key);
        let answer = match kind {
            0 => open.ask(&["GET", &key_name]),
            1 => open.ask(&["SET", &key_name, &text]),
            _ => open.ask(&["SET", &key_name, &text, "GET"]),
        };
        let maybe = (kind > 0).then_some(Operation::Maybe { value });
        let what = match &answer {
            Ok(Answer::Refused(_)) => None,
            Ok(Answer::Unknown(_)) | Err(_) => maybe,
            Ok(answer) => Some(match kind {
                0 => Operation::Read { saw: number(answer) },
                1 => Operation::Write { value },
                _ => Operation::Swap { saw: number(answer), value },
            }),
        };
        recorder.response(call, what);
        if matches!(what, Some(Operation::Write { .. } | Operation::Swap { .. })) {
            recorder.note_write(group_of(slot_of(key_name.as_bytes()), groups));
        }
        if !matches!(what, Some(Operation::Read { .. } | Operation::Write { .. } | Operation::Swap { .. })) {
            node = (node + 1) % nodes.len();
            connection = None;
            thread::sleep(PAUSE);
        }
    }
}

/// Reads from one node, whatever it is.
fn read_pinned(node: SocketAddr, reading: Reading, recorder: &Recorder, round: &AtomicUsize, ended: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(u64::from(node.port()));
    let mut connection = None;
    while !ended.load(Ordering::Relaxed) {
        thread::sleep(PAUSE);
        let Some(open) = connection.as_mut() else {
            connection = Connection::open(node).ok();
            continue;
        };
        let key = pick(&mut random, round);
        let call = recorder.call(key);
        let answer = match reading {
            Reading::Linearizable => open.ask(&["GET", &name(key)]),
            Reading::Stale => open.ask(&["KVD.STALE", "3600000", "GET", &name(key)]).map(|answer| match answer {
                Answer::Many(mut parts) if parts.len() == 2 => parts.remove(1),
                other => other,
            }),
        };
        let what = match &answer {
            Ok(Answer::Refused(_) | Answer::Unknown(_)) => None,
            Err(_) => {
                connection = None;
                None
            }
            Ok(answer) => Some(Operation::Read { saw: number(answer) }),
        };
        recorder.response(call, what);
    }
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Cuts a node off the others, and leaves it to its clients.
fn isolate(hosts: &Hosts, clients: &Clients, at: usize) -> String {
    hosts.links_of(at).for_each(|link| link.cut());
    let next = hosts.leader_among(0, &hosts.others(at));
    clients.wait("leader isolated");
    assert!(hosts.links_of(at).any(|link| link.has_swallowed()), "no link was cut");
    hosts.links_of(at).for_each(|link| link.mend());
    clients.wait("links mended");
    format!("node {} was cut off, node {} led", at + 1, next + 1)
}

/// A fault: applies it, waits for clients to succeed under it, takes it away, and says what showed
/// that it applied.
type Fault = fn(&mut Hosts, &Clients) -> String;

const FAULTS: [(&str, Fault); 14] = [
    ("leader killed", leader_killed),
    ("leader terminated", leader_terminated),
    ("follower killed", follower_killed),
    ("leader paused", leader_paused),
    ("leader isolated", leader_isolated),
    ("link cut", link_cut),
    ("all killed", all_killed),
    ("lead handed over", lead_handed_over),
    ("address changed", address_changed),
    ("member replaced", member_replaced),
    ("replicas moved", replicas_moved),
    ("disks slow", disks_slow),
    ("disk full", disk_full),
    ("clocks jump", clocks_jump),
];

fn leader_killed(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    hosts.kill(leader);
    clients.wait("leader killed");
    hosts.run(leader);
    format!("node {}", leader + 1)
}

/// It hands its lead over first.
fn leader_terminated(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    hosts.terminate(leader);
    clients.wait("leader terminated");
    hosts.run(leader);
    format!("node {}", leader + 1)
}

/// It is away for more entries than the log keeps, and comes back by a snapshot.
fn follower_killed(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    let follower = hosts.others(leader)[0];
    let before = hosts.snapshots_received(follower);
    hosts.kill(follower);
    let last = hosts.last_index(leader);
    let deadline = Instant::now() + PATIENCE;
    // What it lacks is then in no log any more.
    while hosts.others(follower).into_iter().any(|at| hosts.purged_index(at) <= last) {
        assert!(Instant::now() < deadline, "the log is not purged");
        clients.wait("follower killed");
    }
    hosts.run(follower);
    hosts.wait_caught_up(follower, leader);
    let received = hosts.snapshots_received(follower);
    assert!(received > before, "node {} came back without a snapshot", follower + 1);
    format!("node {}; it has received {received} snapshots", follower + 1)
}

fn leader_paused(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    hosts.pause(leader);
    let next = hosts.leader_among(0, &hosts.others(leader));
    clients.wait("leader paused");
    hosts.resume(leader);
    clients.wait("leader resumed");
    format!("node {}, then node {} led", leader + 1, next + 1)
}

/// Clients still reach it.
fn leader_isolated(hosts: &mut Hosts, clients: &Clients) -> String {
    isolate(hosts, clients, hosts.leader(0))
}

fn link_cut(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    let link = hosts.link(leader, hosts.others(leader)[0]);
    link.cut();
    clients.wait("one direction of a link cut");
    assert!(link.has_swallowed());
    link.mend();
    clients.wait("link mended");
    format!("from node {}", leader + 1)
}

fn all_killed(hosts: &mut Hosts, clients: &Clients) -> String {
    for at in 0..hosts.count() {
        hosts.kill(at);
    }
    for at in 0..hosts.count() {
        hosts.run(at);
    }
    clients.wait("all killed");
    format!("{} nodes", hosts.count())
}

fn lead_handed_over(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    let next = hosts.others(leader)[0];
    hosts.hand_over(0, next);
    clients.wait("lead handed over");
    format!("from node {} to node {}", leader + 1, next + 1)
}

/// The leader comes back at another address, and then leads again.
fn address_changed(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    hosts.kill(leader);
    hosts.relocate(leader);
    hosts.run(leader);
    hosts.others(leader).into_iter().for_each(|by| hosts.wait_located(by, leader));
    clients.wait("address changed");
    hosts.hand_over(0, leader);
    clients.wait("at another address");
    format!("of node {}", leader + 1)
}

/// A follower is removed, loses its disk, and is added anew: it needs a snapshot.
fn member_replaced(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    let follower = hosts.others(leader)[0];
    hosts.remove(follower, leader);
    clients.wait("member removed");
    hosts.kill(follower);
    hosts.wipe(follower);
    hosts.run(follower);
    clients.wait("member with a new disk");
    let before = hosts.snapshots_received(follower);
    hosts.add(follower, leader);
    clients.wait("member added");
    let received = hosts.snapshots_received(follower);
    assert!(received > before, "node {} was added without a snapshot", follower + 1);
    format!("node {}; it has received {received} snapshots", follower + 1)
}

/// A follower gives up its replicas, and gets them again.
fn replicas_moved(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    let follower = hosts.others(leader)[0];
    hosts.drain(follower, leader);
    assert_eq!(hosts.roles(follower), vec!["none"; hosts.groups()]);
    clients.wait("replicas given up");
    hosts.fill(follower, leader);
    assert!(hosts.roles(follower).iter().all(|role| role != "none"));
    clients.wait("replicas back");
    format!("from node {} and back", follower + 1)
}

/// All disks take long for each sync.
fn disks_slow(hosts: &mut Hosts, clients: &Clients) -> String {
    for delay in ["50", "0"] {
        (0..hosts.count()).for_each(|at| hosts.kill(at));
        (0..hosts.count()).for_each(|at| hosts.run_with(at, &["--test-sync-delay-ms", delay]));
        clients.wait(if delay == "0" { "the disks fast again" } else { "all disks slow" });
    }
    format!("{} nodes", hosts.count())
}

/// The leader's files can grow no more.
fn disk_full(hosts: &mut Hosts, clients: &Clients) -> String {
    let leader = hosts.leader(0);
    hosts.fill_disk(leader);
    let end = hosts.wait_ended(leader);
    clients.wait("the leader's disk full");
    hosts.run(leader);
    clients.wait("the disk free again");
    format!("node {} ended by itself: {end}", leader + 1)
}

/// Each node leads in turn, while its clock jumps.
fn clocks_jump(hosts: &mut Hosts, clients: &Clients) -> String {
    const SECOND: i64 = 1000;
    const DAY: i64 = 24 * 3600 * SECOND;
    let jumps = [SECOND, 3600 * SECOND, DAY, 70 * 365 * DAY];
    for at in 0..hosts.count() {
        hosts.hand_over(0, at);
        for jump in jumps.into_iter().flat_map(|jump| [jump, -jump]).chain([0]) {
            hosts.set_clock_error(at, jump);
            let deadline = Instant::now() + PATIENCE;
            // Before 1970 there is no time.
            let shows = |ahead: i64| {
                ahead.signum() == jump.signum() && ahead.abs() > jump.abs() / 2 || jump == 0 && ahead.abs() < SECOND
            };
            while !hosts.clock_ahead(at).is_some_and(shows) {
                assert!(Instant::now() < deadline, "node {} does not see that its clock is wrong", at + 1);
                clients.wait("a clock has jumped");
            }
        }
    }
    format!("by 1 s to 70 years, on each of {} nodes", hosts.count())
}

#[test]
fn histories_are_linearizable_under_faults() {
    let mut hosts = Hosts::start(setting("KVD_FAULT_NODES", 3), u32::try_from(setting("KVD_FAULT_GROUPS", 4)).unwrap());
    let clients = Clients::start(&hosts, Reading::Linearizable);
    clients.wait("no fault");
    let mut longest = Duration::ZERO;
    // Parts of names, between commas. All faults have the empty text in theirs.
    let only = std::env::var("KVD_FAULT_ONLY").unwrap_or_default();
    for round in 0..setting("KVD_FAULT_ROUNDS", 1) {
        clients.begin_round(round);
        for (name, fault) in FAULTS.into_iter().filter(|(name, _)| only.split(',').any(|part| name.contains(part))) {
            clients.recorder.take_gap();
            let shown = fault(&mut hosts, &clients);
            let gap = clients.recorder.take_gap();
            longest = longest.max(gap);
            println!("round {round}, {name}: {shown}; {} ms without a write in some group", gap.as_millis());
        }
    }
    println!("longest time without a write in some group: {} ms", longest.as_millis());
    println!("{} keys have expired", clients.lives.seen());
    assert!(clients.lives.seen() > 0);
    assert_eq!(clients.lives.wrong(), Vec::<String>::new(), "keys that lived too long or too short");
    assert_eq!(clients.end(), Vec::<usize>::new(), "histories that no single copy could have shown");
}

/// The checker must see what is lost by nodes that do not sync their logs.
#[test]
fn histories_of_nodes_that_do_not_sync_are_refused() {
    let mut hosts = Hosts::start(3, 1);
    let clients = Clients::start(&hosts, Reading::Linearizable);
    clients.wait("no fault");
    (0..hosts.count()).for_each(|at| hosts.kill(at));
    (0..hosts.count()).for_each(|at| hosts.run_with(at, &["--test-skip-sync"]));
    clients.wait("no sync");
    (0..hosts.count()).for_each(|at| hosts.kill(at));
    (0..hosts.count()).for_each(|at| hosts.run(at));
    clients.wait("all killed");
    assert_ne!(clients.end(), Vec::<usize>::new(), "lost writes went unseen");
}

/// The checker must see what a node without a barrier would show.
#[test]
fn histories_with_stale_reads_of_a_deposed_leader_are_refused() {
    let hosts = Hosts::start(3, 1);
    let clients = Clients::start(&hosts, Reading::Stale);
    clients.wait("no fault");
    isolate(&hosts, &clients, hosts.leader(0));
    assert_ne!(clients.end(), Vec::<usize>::new(), "stale reads went unseen");
}
