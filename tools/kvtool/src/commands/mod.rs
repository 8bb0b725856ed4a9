//! The commands, one module each.

pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod changes;
pub(crate) mod checkpoint;
pub(crate) mod compact;
pub(crate) mod demo;
pub(crate) mod dump;
pub(crate) mod explain;
pub(crate) mod filter;
mod filters;
pub(crate) mod get;
pub(crate) mod import;
pub(crate) mod keyspaces;
pub(crate) mod levels;
mod lines;
mod look_up;
pub(crate) mod put;
pub(crate) mod repair;
mod salvage;
pub(crate) mod scan;
pub(crate) mod soak;
pub(crate) mod sst;
pub(crate) mod stats;
mod store;
pub(crate) mod verify;
mod workload;
