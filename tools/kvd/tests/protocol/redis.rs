//! What Redis's own suite does not ask, or only of another server: `tests/redis_suite` runs it.

use std::time::Duration;

use super::support::{assert_kind, command, encode, eventually, limits, start, start_with};
use kvd::replica::Node;
use kvd::resp::{Config, DecodeLimits};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_taken_renewed_and_given_back_without_scripts() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("set lock a NX PX 60000", "+OK"),
            ("set lock b NX PX 60000", "nil"),
            ("set lock b IFEQ b", "nil"),
            ("set lock a IFEQ a PX 90000", "+OK"),
            ("set lock c IFEQ a GET KEEPTTL", "\"a\""),
            ("set lock c IFEQ a GET", "\"c\""),
            ("ttl lock", "90"),
            ("delifeq lock a", "0"),
            ("delifeq lock c", "1"),
            ("delifeq lock c", "0"),
            ("set lock c IFEQ c", "nil"),
            ("exists lock", "0"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bits_are_read_and_written() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("setbit k 7 1", "0"),
            ("setbit k 7 0", "1"),
            ("getbit k 7", "0"),
            ("getbit k 100", "0"),
            ("bitfield k set u8 0 255 get u4 4 incrby i8 #1 -1", "[0 15 -1]"),
            ("bitfield k overflow fail incrby u8 0 1 overflow sat incrby u8 0 1", "[nil 255]"),
            ("bitfield_ro k get u8 0", "[255]"),
            ("bitfield_ro k set u8 0 1", "-ERR BITFIELD_RO only supports the GET subcommand"),
            ("bitcount k", "16"),
            ("bitcount k 3 10 BIT", "8"),
            ("bitpos k 0", "16"),
            ("bitpos k 0 0 -1", "-1"),
            ("setbit k 16777216 1", "0"),
            ("strlen k", "2097153"),
            ("set {k}a foobar", "+OK"),
            ("set {k}b abcd", "+OK"),
            ("bitop and {k}c {k}a {k}b nosuch{k}", "6"),
            ("get {k}c", "\"\\x00\\x00\\x00\\x00\\x00\\x00\""),
            ("bitop or {k}c nosuch{k}", "0"),
            ("exists {k}c", "0"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_with_a_point_are_added_exactly() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("incrbyfloat n 0.1", "\"0.1\""),
            ("incrbyfloat n 0.2", "\"0.3\""),
            ("incrbyfloat n -0.3", "\"0\""),
            ("set n 5.0e3", "+OK"),
            ("incrbyfloat n 2.0e2", "\"5200\""),
            ("set n x", "+OK"),
            ("incrbyfloat n 1", "-ERR value is not a valid float"),
            ("incrbyfloat n inf", "-ERR increment would produce NaN or Infinity"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_groups_of_a_node_are_listed_counted_and_emptied() {
    let server = start_with(Config::default(), 3).await;
    let mut client = server.client().await;
    assert_eq!(client.call("randomkey").await, "nil");
    for i in 0..100 {
        assert_eq!(client.call(&format!("set k{i} v")).await, "+OK");
    }
    let session = client.call("kvd.session k1").await;
    assert_eq!(client.call("keys *").await.split(' ').count(), 100);
    assert_eq!(client.call("keys k7?").await.split(' ').count(), 10);
    let mut drawn = std::collections::BTreeSet::new();
    while drawn.len() < 60 {
        drawn.insert(client.call("randomkey").await);
    }
    assert_eq!(client.call("cluster keyslot k1").await, "12706");
    assert_eq!(client.call("cluster getkeysinslot 12706 10").await, "[\"k1\"]");
    assert_eq!(client.call("watch k1").await, "+OK");
    let mut other = server.client().await;
    assert_eq!(other.call("flushall").await, "+OK");
    client
        .check(&[
            ("multi", "+OK"),
            ("set k1 v", "+QUEUED"),
            ("exec", "nil"),
            ("dbsize", "0"),
            ("keys *", "[]"),
            ("set k1 v PX 100000", "+OK"),
            ("dbsize", "1"),
        ])
        .await;
    // What was there before is not sent again.
    assert_eq!(client.call(&format!("kvd.once {session} 1 incr n{{k1}}")).await, "1");
    assert_eq!(client.call(&format!("kvd.once {session} 1 incr n{{k1}}")).await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_renamed_and_copied_with_their_deadlines() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("rename {a}1 {a}2", "-ERR no such key"),
            ("set {a}1 v EX 1000", "+OK"),
            ("rename {a}1 {a}2", "+OK"),
            ("ttl {a}2", "1000"),
            ("set {a}3 w", "+OK"),
            ("renamenx {a}2 {a}3", "0"),
            ("copy {a}2 {a}3", "0"),
            ("copy {a}2 {a}3 REPLACE", "1"),
            ("ttl {a}3", "1000"),
            ("getex {a}3 PERSIST", "\"v\""),
            ("ttl {a}3", "-1"),
            ("exists {a}1 {a}2 {a}3", "2"),
            ("touch {a}1 {a}2 {a}3", "2"),
            ("pexpireat {a}3 99999999999999", "1"),
            ("expiretime {a}3", "100000000000"),
            ("pexpiretime {a}3", "99999999999999"),
            ("object encoding {a}3", "\"embstr\""),
            ("memory usage nosuch", "nil"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_readonly_reads_from_a_follower_within_the_bound() {
    let server = start().await;
    let mut client = server.client().await;
    assert_eq!(client.call("set k v").await, "+OK");
    let node = |id| Node { id, host: format!("10.0.0.{id}"), port: 7000 };
    server.replica.set_nodes(vec![node(1), node(2)], Some(2));
    assert_kind(&client.call("get k").await, "MOVED");
    server.replica.set_staleness(Some(Duration::from_millis(900)));
    client.check(&[("readonly", "+OK"), ("get k", "\"v\""), ("mget k", "[\"v\"]")]).await;
    assert_kind(&client.call("set k w").await, "MOVED");
    client.check(&[("config set kvd-readonly-staleness-ms 800", "+OK")]).await;
    assert_eq!(client.call("get k").await, "-MOVED 7629 10.0.0.2:7000");
    client.check(&[("config set kvd-readonly-staleness-ms 1000", "+OK"), ("get k", "\"v\"")]).await;
    server.replica.set_staleness(None);
    assert_kind(&client.call("get k").await, "MOVED");
    server.replica.set_staleness(Some(Duration::ZERO));
    client.check(&[("get k", "\"v\""), ("readwrite", "+OK")]).await;
    assert_kind(&client.call("get k").await, "MOVED");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_listed_named_and_ended() {
    let server = start().await;
    let mut one = server.client().await;
    let mut other = server.client().await;
    one.check(&[("client setname one", "+OK"), ("client setinfo lib-name test", "+OK")]).await;
    assert_eq!(other.call("ping").await, "+PONG");
    let list = one.call("client list").await;
    assert!(list.contains("name=one") && list.contains("lib-name=test") && list.contains("cmd=client|list"), "{list}");
    assert_eq!(list.matches("id=").count(), 2, "{list}");
    let id = other.call("client id").await;
    assert_eq!(one.call(&format!("client kill id {id}")).await, "1");
    assert_eq!(other.call_or_closed("ping").await, "closed");
    eventually(|| server.metrics.connections.load(std::sync::atomic::Ordering::Relaxed) == 1).await;
    one.check(&[("client kill 1.2.3.4:5", "-ERR No such client")]).await;
    let silent = ["client reply skip", "ping 1", "ping 2", "client reply off", "ping 3", "client reply on", "ping 4"];
    one.send(&silent.map(command).concat()).await;
    for expected in ["\"2\"", "+OK", "\"4\""] {
        assert_eq!(one.shown().await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_makes_a_connection_as_new() {
    let server = start().await;
    let mut client = server.client().await;
    client.send(&command("hello 3")).await;
    client.shown().await;
    client
        .check(&[
            ("client setname me", "+OK"),
            ("watch k", "+OK"),
            ("multi", "+OK"),
            ("set k v", "+QUEUED"),
            ("reset", "+RESET"),
            ("exec", "-ERR EXEC without MULTI"),
            ("client getname", "nil"),
            ("exists k", "0"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_commands_are_kept_without_passwords() {
    let server = start_with(limits(|limits| limits.slow = Some(Duration::ZERO)), 1).await;
    let mut client = server.client().await;
    client.check(&[("set k v", "+OK")]).await;
    assert_kind(&client.call("auth secret").await, "ERR");
    let log = client.call("slowlog get").await;
    assert!(log.contains("[\"set\" \"k\" \"v\"]") && !log.contains("secret"), "{log}");
    client
        .check(&[("config set slowlog-log-slower-than -1", "+OK"), ("slowlog reset", "+OK"), ("slowlog len", "0")])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_changed_while_clients_are_served() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[("config set maxclients 1 timeout 100", "+OK"), ("config get maxclients", "[\"maxclients\" \"1\"]")])
        .await;
    let mut refused = server.client().await;
    assert_eq!(refused.shown().await, "-ERR max number of clients reached");
    client.check(&[("config set proto-max-bulk-len 2kb", "+OK"), ("ping", "+PONG")]).await;
    client.send(&encode(&[b"set", b"k", &[b'x'; 2049]])).await;
    assert_eq!(client.shown().await, "-ERR Protocol error: invalid bulk length");
}

/// Commands that declare much and send little: they once held all shared memory for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn declared_lengths_hold_up_nobody() {
    let server = start().await;
    let mut idle = Vec::new();
    for _ in 0..60 {
        let mut client = server.client().await;
        client.send(b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$10000000\r\n0123456789").await;
        idle.push(client);
    }
    let mut client = server.client().await;
    client.send(&encode(&[b"set", b"k", &vec![b'x'; 1 << 20]])).await;
    assert_eq!(client.shown().await, "+OK");
    assert_eq!(client.call("strlen k").await, (1 << 20).to_string());
}

/// Commands of which half has come hold all there is. Each that moves on ends; one that stands
/// still makes room for others.
#[tokio::test(flavor = "multi_thread")]
async fn half_sent_commands_do_not_stop_those_that_move() {
    let change = |limits: &mut kvd::resp::Limits| {
        limits.shared_bytes = 1 << 20;
        limits.command = DecodeLimits { words: 100, bytes: 2 << 20 };
    };
    let server = start_with(limits(change), 1).await;
    let whole = encode(&[b"set", b"k", &vec![b'x'; 500_000]]);
    let mut halves = Vec::new();
    for _ in 0..8 {
        let mut client = server.client().await;
        client.send(&whole[..250_000]).await;
        halves.push(client);
    }
    let mut moving = Vec::new();
    for _ in 0..4 {
        let mut client = server.client().await;
        let whole = whole.clone();
        moving.push(tokio::spawn(async move {
            client.send(&whole).await;
            client.shown().await
        }));
    }
    for moving in moving {
        let reply = tokio::time::timeout(Duration::from_secs(20), moving).await.expect("long before the stall limit");
        assert_eq!(reply.unwrap(), "+OK");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_sees_commands_but_no_passwords() {
    let server = start().await;
    let (mut monitor, mut client) = (server.client().await, server.client().await);
    assert_eq!(monitor.call("monitor").await, "+OK");
    assert_kind(&client.call("auth secret").await, "ERR");
    client.check(&[("set k v", "+OK")]).await;
    let line = monitor.shown().await;
    assert!(line.ends_with("\"set\" \"k\" \"v\""), "{line}");
}
