//! Consensus: the adapters between openraft, the store and the network. No other module names
//! openraft's types.

mod campaign;
mod cluster;
mod group;
mod identity;
mod late;
mod library;
mod log;
mod low;
mod members;
mod network;
mod others;
mod place;
mod pulse;
mod recovery;
mod retention;
mod server;
mod snapshot;
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

/// Runs what may wait for the disk. Other tasks of a runtime with several threads go on meanwhile.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests;
