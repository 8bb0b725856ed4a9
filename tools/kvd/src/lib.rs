//! kvd: a replicated server over tamis that speaks the Redis protocol.
//!
//! A module uses only modules listed above it:
//!
//! ```text
//! machine   what a log entry does to a store: deterministic, no clock, no network
//! replica   what the server asks of consensus
//! clock     time that no single clock on a wall decides
//! alone     a replica without others, for tests
//! logging   what a program writes to its log
//! command   from arguments to operations and queries: names, arity, keys, slots
//! resp      the server: connections, limits, users, replies
//! error     what can go wrong in a node
//! store     the keyspaces of a node
//! link      connections between nodes: TLS, handshake, frames
//! raft      consensus: alone in naming openraft's types
//! metrics   what Prometheus finds
//! web       metrics and probes by HTTP
//! node      consensus and the server together
//! export    a node's data in formats that other stores load
//! rebalance decides which nodes should lead which groups
//! report    what operators' commands print
//! digest    of many groups, those that are not as they should be
//! faults    flags that make a node fail, for tests
//! cli       the command line
//! ```
#![deny(missing_docs)]

pub mod alone;
mod backup;
pub mod cli;
mod clock;
pub mod command;
mod digest;
mod error;
mod export;
#[cfg(feature = "faults")]
mod faults;
pub mod link;
mod logging;
pub mod machine;
mod metrics;
pub mod node;
pub mod raft;
mod rebalance;
pub mod replica;
mod report;
pub mod resp;
mod store;
#[cfg(feature = "faults")]
mod volatile;
mod web;

#[cfg(all(feature = "faults", not(debug_assertions)))]
compile_error!("the feature `faults` is for tests: nodes with it can be told to lose data");

pub use error::{Error, Result};
