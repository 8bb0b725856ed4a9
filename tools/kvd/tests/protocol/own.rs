//! Commands that Redis does not have.

use std::time::Duration;

use super::support::{assert_kind, start};

#[tokio::test(flavor = "multi_thread")]
async fn compare_and_swap_writes_if_the_value_is_the_expected_one() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("kvd.cas k if _ set 1", "0"),
            ("kvd.cas k ifabsent set 1", "1"),
            ("kvd.cas k ifabsent set 2", "0"),
            ("kvd.cas k if 1 set 2", "1"),
            ("kvd.cas k if 1 del", "0"),
            ("get k", "\"2\""),
            ("kvd.cas k if 2 del", "1"),
            ("exists k", "0"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_read_in_order() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("mset {t}b 2 {t}a 1 {t}c 3 {t}d 4", "+OK"),
            ("kvd.range {t}b {t}d", "[\"{t}b\" \"{t}c\"]"),
            ("kvd.range {t} {t}~ values count 2", "[\"{t}a\" \"1\" \"{t}b\" \"2\"]"),
            ("kvd.range {t}d {t}b", "[]"),
            ("kvd.range {t}a {u}a", "-CROSSSLOT Keys in request don't hash to the same slot"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_reads_say_how_stale_they_may_be_and_need_no_leader() {
    let server = start().await;
    let mut client = server.client().await;
    client.check(&[("set k v", "+OK"), ("kvd.stale 0 get k", "[0 \"v\"]")]).await;
    server.replica.set_staleness(Some(Duration::from_millis(250)));
    client
        .check(&[
            ("kvd.stale 1000 mget k k", "[250 [\"v\" \"v\"]]"),
            ("kvd.stale 249 get k", "-STALE this node may lack writes of the last 250 ms"),
        ])
        .await;
    server.replica.set_nodes(Vec::new(), None);
    assert_kind(&client.call("get k").await, "CLUSTERDOWN");
    client.check(&[("kvd.stale 300 exists k", "[250 1]")]).await;
    server.replica.set_staleness(None);
    assert_kind(&client.call("kvd.stale 300 get k").await, "STALE");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_with_its_number_is_applied_once() {
    let server = start().await;
    let mut client = server.client().await;
    let session = client.call("kvd.session n").await;
    let once = |serial: u32| format!("kvd.once {session} {serial} incr n");
    client.check(&[(&once(1), "1"), (&once(1), "1"), (&once(2), "2"), ("get n", "\"2\"")]).await;
    assert_kind(&client.call(&once(1)).await, "OLDSERIAL");
    assert_kind(&client.call("kvd.once 999 1 incr n").await, "NOSESSION");
    // The session is that of a group, whoever asks.
    let mut other = server.client().await;
    other.check(&[(&once(2), "2"), (&once(3), "3")]).await;
}
