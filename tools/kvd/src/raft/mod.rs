//! Consensus: the adapters between openraft, the store and the network. No other module names
//! openraft's types.

mod campaign;
mod cluster;
mod election;
mod fresh;
mod group;
mod heartbeat;
mod identity;
mod late;
mod lead;
mod library;
mod log;
mod low;
mod members;
mod network;
mod others;
mod pulse;
mod recovery;
mod retention;
mod server;
mod space;
mod start;
mod starter;
mod state;
mod transfer;
mod types;
mod upgrade;
mod watch;
mod wire;

pub use crate::clock::Wall;
pub use cluster::{Cluster, Settings, command};
pub(crate) use others::is_off;
pub(crate) use recovery::{Found, FoundState, find_states};
pub use recovery::{Recovered, recover};
pub use space::{FreeSpace, default_reserve};
pub use types::Member;
pub use wire::{Command, GroupStatus, NodeStatus};

use tamis_openraft::blocking;

#[cfg(test)]
mod tests;
