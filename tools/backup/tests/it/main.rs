//! Are backups what they were made of, whatever happens while they are made, restored and removed?
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

#[cfg(feature = "object-store")]
mod bucket;
mod follow;
mod interleaved;
mod keyspace;
mod kill;
mod law5_shared;
mod memory;
mod progress;
mod repository;
#[cfg(feature = "object-store")]
mod server;
