//! What clients are told when consensus does not answer as they wish.

use kvd::replica::{Node, WriteError};

use super::support::{assert_kind, start};

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_differs_from_a_refusal() {
    let server = start().await;
    let mut client = server.client().await;
    server.replica.fail_next_write(WriteError::Overloaded);
    assert_kind(&client.call("incr n").await, "TRYAGAIN");
    assert_eq!(client.call("get n").await, "nil", "refused means not applied");
    server.replica.fail_next_write(WriteError::Refused("the disk is full".to_owned()));
    assert_eq!(client.call("incr n").await, "-ERR not applied: the disk is full");
    assert_eq!(client.call("get n").await, "nil");

    let session = client.call("kvd.session n").await;
    let once = format!("kvd.once {session} 1 incr n");
    server.replica.fail_next_write(WriteError::Unknown("the leader has changed".to_owned()));
    assert_kind(&client.call(&once).await, "UNKNOWN");
    assert_eq!(client.call(&once).await, "1", "the retry");
    assert_eq!(client.call("get n").await, "\"1\"");
    assert_eq!(server.metrics.unknown.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failure_in_a_pipeline_is_answered_in_its_place() {
    let server = start().await;
    let mut client = server.client().await;
    server.replica.fail_next_write(WriteError::Overloaded);
    let bytes: Vec<u8> = ["incr a", "incr b", "get b"].iter().flat_map(|line| super::support::command(line)).collect();
    client.send(&bytes).await;
    assert_kind(&client.shown().await, "TRYAGAIN");
    assert_eq!(client.shown().await, "1");
    assert_eq!(client.shown().await, "\"1\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_lead_says_who_does() {
    let server = start().await;
    let mut client = server.client().await;
    let node = |id, host: &str| Node { id, host: host.to_owned(), port: 7000 };
    server.replica.set_nodes(vec![node(1, "10.0.0.1"), node(2, "10.0.0.2"), node(3, "fd00::3")], Some(2));
    client
        .check(&[
            ("set foo 1", "-MOVED 12182 10.0.0.2:7000"),
            ("get foo", "-MOVED 12182 10.0.0.2:7000"),
            ("watch foo", "-MOVED 12182 10.0.0.2:7000"),
            ("multi", "+OK"),
            ("set foo 1", "-MOVED 12182 10.0.0.2:7000"),
            ("exec", "-EXECABORT Transaction discarded because of previous errors."),
            ("dbsize", "-MOVED 0 10.0.0.2:7000"),
            ("scan 0", "-MOVED 0 10.0.0.2:7000"),
        ])
        .await;
    server.replica.set_nodes(vec![node(3, "fd00::3")], Some(3));
    client.check(&[("get foo", "-MOVED 12182 fd00::3:7000")]).await;
    // A leader whose address is not known is none that a client could ask.
    server.replica.set_nodes(Vec::new(), Some(2));
    assert_kind(&client.call("get foo").await, "CLUSTERDOWN");
    assert_eq!(server.metrics.moved.load(std::sync::atomic::Ordering::Relaxed), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_unknown_outcome_says_so() {
    let server = start().await;
    let mut client = server.client().await;
    client.check(&[("multi", "+OK"), ("incr n", "+QUEUED")]).await;
    server.replica.fail_next_write(WriteError::Unknown("no answer in time".to_owned()));
    assert_kind(&client.call("exec").await, "UNKNOWN");
    client.check(&[("get n", "\"1\"")]).await;
}
