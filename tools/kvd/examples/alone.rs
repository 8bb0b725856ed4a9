//! A server for one process, without consensus: to try clients on.
//!
//! `cargo run -p kvd --example alone -- 127.0.0.1:7379 4` has four groups and keeps all in memory.
#![allow(clippy::unwrap_used, reason = "an example")]

use std::net::SocketAddr;
use std::sync::Arc;

use kvd::alone::Alone;
use kvd::resp::{Config, Server};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let address: SocketAddr = arguments.next().as_deref().unwrap_or("127.0.0.1:7379").parse().unwrap();
    let groups = arguments.next().as_deref().unwrap_or("1").parse().unwrap();
    let db = tamis::Options::new().open_in_memory().unwrap();
    let replica = Arc::new(Alone::open(&db, groups, &address.ip().to_string(), address.port()).unwrap());
    let server = Server::bind(address, Config::default(), replica).await.unwrap();
    println!("listening on {address}, until interrupted");
    server.run(async { tokio::signal::ctrl_c().await.unwrap() }).await;
}
