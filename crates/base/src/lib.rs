//! What the crates of tamis share. It has no stable interface: programs use the crate `tamis`.
//!
//! - [`error`]: the error type of all of them.
//! - [`mod@format`]: encodings shared by several kinds of file.
//! - [`memory`]: pools, epochs, prefetch.
//! - [`exec`]: who runs background work.
//! - [`fork`]: whether this process is a child of the one that began something.
//! - [`rate`]: how fast it may read and write.
//! - [`report`]: what a store tells about itself.
//! - [`sync`]: threads, locks and clocks.
#![allow(missing_docs, reason = "no stable interface: names alone where they say all")]
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]

#[deny(missing_docs)]
pub mod error;
#[deny(missing_docs)]
pub mod exec;
pub mod fork;
pub mod format;
pub mod memory;
pub mod rate;
pub mod report;
pub mod sync;
