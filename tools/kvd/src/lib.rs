//! kvd: a replicated server over tamis that speaks the Redis protocol.
//!
//! A module uses only modules listed above it:
//!
//! ```text
//! machine   what a log entry does to a store: deterministic, no clock, no network
//! replica   what the server asks of consensus
//! command   from arguments to operations and queries: names, arity, keys, slots
//! resp      the server: connections, limits, users, replies
//! ```
#![deny(missing_docs)]

pub mod machine;
pub mod replica;
