//! Bounds: each is met with a clear error, and others go on.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::support::{Client, assert_kind, command, encode, eventually, limits, start, start_with};
use kvd::resp::DecodeLimits;

/// What a client is told that does not go on with a command.
const LATE: &str = "-ERR the rest of the command did not come in time";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_command_is_answered_and_ends_the_connection() {
    let server = start().await;
    for (bytes, expected) in [
        (&b"*1\r\n:1\r\n"[..], "-ERR Protocol error: expected '$', got ':'"),
        (b"*100000000\r\n", "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$100000000000\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"get \"x\r\n", "-ERR Protocol error: unbalanced quotes in request"),
    ] {
        let mut client = server.client().await;
        // What was sent before is carried out.
        client.send(&[&command("incr n"), bytes].concat()).await;
        assert!(client.shown().await.parse::<u64>().is_ok());
        assert_eq!(client.shown().await, expected);
        assert_eq!(client.shown().await, "closed");
    }
    eventually(|| server.metrics.protocol_errors.load(Relaxed) == 4).await;
    assert_eq!(server.client().await.call("get n").await, "\"4\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_the_greatest_length_pass_and_longer_ones_do_not() {
    let server = start().await;
    let mut client = server.client().await;
    let value = vec![b'x'; kvd::machine::MAX_VALUE_LEN];
    client.send(&encode(&[b"set", b"k", &value])).await;
    assert_eq!(client.shown().await, "+OK");
    assert_eq!(client.call("strlen k").await, value.len().to_string());
    client.send(&command("get k")).await;
    assert_eq!(client.shown().await.len(), value.len() + 2);
    assert_kind(&client.call("append k y").await, "ERR");
    let mut client = server.client().await;
    client.send(format!("*3\r\n$3\r\nset\r\n$1\r\nk\r\n${}\r\n", value.len() + 1).as_bytes()).await;
    assert_eq!(client.shown().await, "-ERR Protocol error: invalid bulk length");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_most_words_and_most_bytes() {
    let command_limits = DecodeLimits { words: 10, bytes: 10_000 };
    let server = start_with(limits(|limits| limits.command = command_limits), 1).await;
    let mut client = server.client().await;
    client.send(b"*11\r\n").await;
    assert_eq!(client.shown().await, "-ERR Protocol error: invalid multibulk length");
    let mut client = server.client().await;
    client.send(&encode(&[b"mset", b"{t}a", &[b'x'; 6000], b"{t}b", &[b'x'; 6000]])).await;
    assert_eq!(client.shown().await, "-ERR Protocol error: the command is longer than 10000 bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_sent_command_ends_after_a_while_and_a_slow_one_passes() {
    let server = start_with(limits(|limits| limits.stall = Duration::from_millis(200)), 1).await;
    let mut half = server.client().await;
    half.send(b"*2\r\n$3\r\nGET\r\n$1\r\n").await;
    let mut typed = server.client().await;
    typed.send(b"pi").await;
    for mut client in [half, typed] {
        assert_eq!(client.shown().await, LATE);
        assert_eq!(client.shown().await, "closed");
    }
    eventually(|| server.metrics.stalled.load(Relaxed) == 2).await;
    // A client that sends nothing at all is left alone.
    let mut quiet = server.client().await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(quiet.call("ping").await, "+PONG");
    let server = start().await;
    let mut slow = server.client().await;
    for byte in command("ping") {
        slow.send(&[byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(slow.shown().await, "+PONG");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_ends_if_there_is_a_limit() {
    let server = start_with(limits(|limits| limits.idle = Some(Duration::from_millis(100))), 1).await;
    assert_eq!(server.client().await.shown().await, "closed");
    eventually(|| server.metrics.stalled.load(Relaxed) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_no_replies_is_cut_off_and_others_are_served() {
    let server = start_with(limits(|limits| limits.stall = Duration::from_millis(300)), 1).await;
    let mut client = server.client().await;
    // In pieces that arrive whole: on a busy machine a part of a long command may be late.
    for piece in 1..=64 {
        client.send(&encode(&[b"append", b"k", &[b'x'; 1 << 10]])).await;
        assert_eq!(client.shown().await, (piece << 10).to_string());
    }
    let mut slow = server.client().await;
    // 400 MiB of replies, which nobody reads.
    slow.send(&command("get k").repeat(6400)).await;
    while server.metrics.stalled.load(Relaxed) == 0 {
        assert_eq!(client.call("ping").await, "+PONG");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let sent = server.metrics.bytes_out.load(Relaxed);
    assert!(sent < 100 << 20, "{sent} bytes: the server did not go on reading for a client that stands still");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_connections_are_refused_and_room_is_given_back() {
    let server = start_with(limits(|limits| limits.connections = 3), 1).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = server.client().await;
        assert_eq!(client.call("ping").await, "+PONG");
        clients.push(client);
    }
    let mut refused = server.client().await;
    assert_eq!(refused.shown().await, "-ERR max number of clients reached");
    assert_eq!(refused.shown().await, "closed");
    assert_eq!(server.metrics.rejected.load(Relaxed), 1);
    drop(clients.pop());
    loop {
        let mut client = server.client().await;
        if client.call_or_closed("ping").await == "+PONG" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_commands_share_memory_and_wait_for_it() {
    let server = start_with(
        limits(|limits| {
            limits.shared_bytes = 128 << 10;
            limits.command = DecodeLimits { words: 100, bytes: 64 << 10 };
            limits.stall = Duration::from_millis(300);
        }),
        1,
    )
    .await;
    let value = vec![b'x'; 60_000];
    let whole = encode(&[b"set", b"k", &value]);
    // Two hold almost all of the memory and do not go on.
    let mut halves = [server.client().await, server.client().await];
    for half in &mut halves {
        half.send(&whole[..30_000]).await;
    }
    eventually(|| server.metrics.bytes_in.load(Relaxed) >= 60_000).await;
    let mut waiting = server.client().await;
    waiting.send(&whole).await;
    // It gets the memory once they are cut off, or an error; either way the server goes on.
    let reply = waiting.shown().await;
    assert!(reply == "+OK" || reply.contains("no memory") || reply == LATE, "{reply}");
    for mut half in halves {
        assert_eq!(half.shown().await, LATE);
    }
    // On a busy machine a part of a command may be late.
    loop {
        let mut later = server.client().await;
        later.send(&whole).await;
        match later.shown().await {
            reply if reply == "+OK" => break,
            reply => assert_eq!(reply, LATE),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_and_replies_share_memory_and_say_when_there_is_none() {
    let server = start_with(
        limits(|limits| {
            limits.shared_bytes = 256 << 10;
            limits.command = DecodeLimits { words: 100, bytes: 128 << 10 };
        }),
        1,
    )
    .await;
    let mut client = server.client().await;
    let set = |value: &[u8]| encode(&[b"set", b"{t}k", value]);
    client.send(&set(&[b'x'; 90_000])).await;
    assert_eq!(client.shown().await, "+OK");
    // What is queued counts, and so does the command that is to join it.
    assert_eq!(client.call("multi").await, "+OK");
    let mut replies = Vec::new();
    for _ in 0..4 {
        client.send(&set(&[b'x'; 60_000])).await;
        replies.push(client.shown().await);
    }
    assert_eq!(replies[..3], ["+QUEUED"; 3]);
    assert_kind(&replies[3], "TRYAGAIN");
    // A reply does not fit beside it, of a read or of a write that is applied nonetheless.
    let mut other = server.client().await;
    assert_kind(&other.call("get {t}k").await, "TRYAGAIN");
    assert_kind(&other.call("set {t}k new get").await, "NOREPLY");
    assert_eq!(other.call("get {t}k").await, "\"new\"");
    assert_kind(&client.call("exec").await, "EXECABORT");
    other.send(&set(&[b'x'; 90_000])).await;
    assert_eq!(other.shown().await, "+OK");
    assert_eq!(other.call("get {t}k").await.len(), 90_002, "given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_get_no_answer() {
    let server = start().await;
    let mut client = server.client().await;
    client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET k v\r\n").await;
    assert_eq!(client.shown().await, "closed");
    assert_eq!(server.client().await.call("get k").await, "nil");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_at_once_are_served() {
    let server = start_with(limits(|_| {}), 1).await;
    let mut clients = Vec::new();
    for _ in 0..400 {
        clients.push(server.client().await);
    }
    for (i, client) in clients.iter_mut().enumerate() {
        client.send(&command(&format!("set k{i} v"))).await;
    }
    for client in &mut clients {
        assert_eq!(client.shown().await, "+OK");
    }
    assert_eq!(server.client().await.call("dbsize").await, "400");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_node_raises_its_limit_of_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", "ulimit -Sn 64 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_kvd"), "--id", "1"]);
    shell.args(["--raft", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--dir"]).arg(dir.path().join("node"));
    let node = shell.env("KVD_LOG", "off").kill_on_drop(true).spawn().unwrap();
    let limits = format!("/proc/{}/limits", node.id().unwrap());
    let is_raised = || {
        let limits = std::fs::read_to_string(&limits).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let [soft, hard, _unit] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        soft == hard && soft != "64"
    };
    eventually(is_raised).await;
}

/// A node of the program, alone in its cluster, and its first client. Ends when dropped.
#[cfg(target_os = "linux")]
async fn node(dir: &std::path::Path) -> (tokio::process::Child, std::net::SocketAddr) {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (raft, resp) = (free(), free());
    let kvd = || tokio::process::Command::new(env!("CARGO_BIN_EXE_kvd"));
    let mut node = kvd();
    node.args(["--id", "1", "--memory-mb", "32", "--raft", &raft.to_string(), "--resp", &resp.to_string(), "--dir"]);
    let node = node.arg(dir.join("node")).env("KVD_LOG", "off").kill_on_drop(true).spawn().unwrap();
    let init = async || {
        let mut init = kvd();
        init.args(["init", "--node", &raft.to_string()]).stdout(std::process::Stdio::null());
        init.stderr(std::process::Stdio::null()).status().await.unwrap().success()
    };
    while !init().await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (node, resp)
}

/// The allocator once kept up to 64 MiB in each thread after long values.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn memory_goes_back_when_load_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (node, address) = node(dir.path()).await;
    let status = format!("/proc/{}/status", node.id().unwrap());
    let megabytes = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    };
    let connect = async || Client::new(tokio::net::TcpStream::connect(address).await.unwrap());
    let mut client = connect().await;
    loop {
        client.send(&encode(&[b"set", b"k", &vec![b'x'; 8 << 20]])).await;
        if client.shown().await == "+OK" {
            break;
        }
    }
    for _ in 0..3 {
        let mut clients = Vec::new();
        for _ in 0..24 {
            let mut client = connect().await;
            clients.push(tokio::spawn(async move {
                client.send(&command("get k")).await;
                client.receive().await;
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
    }
    // It was 262 MB.
    let back = tokio::time::timeout(Duration::from_secs(30), eventually(|| megabytes() < 100)).await;
    back.unwrap_or_else(|_| panic!("{} MB stay", megabytes()));
}
