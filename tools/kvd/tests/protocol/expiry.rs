//! Deadlines, by a clock that the test sets.

use super::support::start;

#[tokio::test(flavor = "multi_thread")]
async fn keys_expire_by_the_replicas_clock() {
    let server = start().await;
    let mut client = server.client().await;
    server.replica.set_time(1_000_000);
    client
        .check(&[
            ("set k v ex 10", "+OK"),
            ("ttl k", "10"),
            ("pttl k", "10000"),
            ("set k v keepttl", "+OK"),
            ("ttl k", "10"),
            ("set k v", "+OK"),
            ("ttl k", "-1"),
            ("ttl nosuch", "-2"),
            ("pexpire k 1500", "1"),
            ("ttl k", "2"),
            ("persist k", "1"),
            ("persist k", "0"),
            ("pttl k", "-1"),
            ("expire k 100 xx", "0"),
            ("expire k 100 gt", "0"),
            ("expire k 100 nx", "1"),
            ("expire k 50 gt", "0"),
            ("expire k 50 lt", "1"),
            ("ttl k", "50"),
            ("expire nosuch 10", "0"),
            ("expireat k 1020", "1"),
            ("ttl k", "20"),
            ("incr n", "1"),
            ("pexpireat n 1000500", "1"),
            ("append n 0", "2"),
            ("pttl n", "500"),
            ("psetex p 200 v", "+OK"),
            ("setex s 1 v", "+OK"),
        ])
        .await;
    server.replica.set_time(1_000_500);
    client
        .check(&[
            ("get n", "nil"),
            ("get p", "nil"),
            ("get s", "\"v\""),
            ("incr n", "1"),
            ("ttl n", "-1"),
            ("set k v exat 1", "+OK"),
            ("get k", "nil"),
            ("set k v", "+OK"),
            ("expire k -1", "1"),
            ("exists k", "0"),
            ("set k v pxat 1000501", "+OK"),
            ("getset k w", "\"v\""),
            ("ttl k", "-1"),
            ("dbsize", "3"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_reader_saw_expire_stays_expired_for_a_clock_that_goes_back() {
    let server = start().await;
    let mut client = server.client().await;
    server.replica.set_time(1000);
    client.check(&[("set k v px 100", "+OK")]).await;
    server.replica.set_time(1100);
    client.check(&[("get k", "nil")]).await;
    // As if another node led now, whose clock is behind.
    server.replica.set_time(1050);
    client.check(&[("get k", "nil"), ("set k w xx", "nil"), ("setnx k w", "1")]).await;
}
