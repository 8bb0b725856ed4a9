//! Stopping: what was read is answered, and connections end.

use super::support::{command, limits, start, start_with};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_what_was_read_and_closes_connections() {
    let mut server = start().await;
    let (mut busy, mut idle, mut half) = (server.client().await, server.client().await, server.client().await);
    assert_eq!(idle.call("ping").await, "+PONG");
    half.send(b"*2\r\n$3\r\nGET\r\n").await;
    busy.send(&command("incr n").repeat(1000)).await;
    assert_eq!(busy.shown().await, "1");
    server.stop();
    // Every write that was read gets its reply.
    let mut last = 1;
    while let Ok(number) = busy.shown().await.parse::<u64>() {
        assert_eq!(number, last + 1);
        last = number;
    }
    assert_eq!(idle.call_or_closed("ping").await, "closed");
    assert_eq!(half.receive_bytes().await, b"");
    let (address, replica) = (server.address, std::sync::Arc::clone(&server.replica));
    server.stopped().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens");
    let query = kvd::machine::Query::Get("n".into());
    let machine = kvd::replica::Replica::machine(&*replica, 0).unwrap();
    assert_eq!(machine.read(&query, 0).unwrap().reply, kvd::machine::Reply::bulk(last.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_ever() {
    let server = start_with(limits(|limits| limits.stop = Duration::from_millis(100)), 1).await;
    let mut client = server.client().await;
    client.send(&super::support::encode(&[b"set", b"k", &vec![b'x'; 1 << 20]])).await;
    assert_eq!(client.shown().await, "+OK");
    // Replies that nobody takes.
    client.send(&command("get k").repeat(100)).await;
    server.stopped().await;
}
