//! Connections whose other end is silent.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::link::{Link, Trust};
use crate::raft::network::Pool;
use crate::raft::wire::Call;
use crate::store::Versions;

#[tokio::test]
async fn a_call_to_a_node_that_says_nothing_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((tcp, peer)) = listener.accept().await {
            silent.push(Link::accept(&Trust::default(), tcp, peer, 2, 0, &Versions::default()).await);
        }
    });
    let pool = Pool::new(Trust::default(), Arc::default(), HashMap::new(), Versions::default());
    let error = pool.call(2, &address, &Call::ReadIndexes { groups: vec![0] }).await.unwrap_err().to_string();
    assert!(error.contains("in time"), "{error}");
}
