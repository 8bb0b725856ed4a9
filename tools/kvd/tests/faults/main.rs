//! Whole clusters of processes under faults, and histories of clients checked for linearizability.
//!
//! Processes are killed and paused; links between nodes go through relays that stop relaying;
//! members are replaced, disks are slow or full.
//! Clients write and read a few keys, and readers are pinned to one node each: without those, a
//! deposed leader's reads would stay unseen. Keys expire meanwhile, and clocks jump. Each fault is
//! shown to have taken effect. But for the lives of keys, nothing is decided by how long something
//! takes.
//!
//! `KVD_FAULT_ROUNDS` (default 1) repeats the faults, `KVD_FAULT_NODES` (default 3) sets the number
//! of nodes, `KVD_FAULT_GROUPS` (default 4) that of groups.
#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod expiry;
mod history;
mod hosts;
mod once;
mod relay;
mod runs;
mod upgrade;
