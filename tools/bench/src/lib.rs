//! The usual workloads for ordered key-value stores, and their cost: throughput, latency, processor
//! time, memory, I/O.
//!
//! The workloads are written once, over the narrow trait [`engine::Engine`]. `tamis-bench` and
//! `kvtool bench run` run them over tamis, `tamis-peers` (tools/peers) over other stores too.
//! Compared runs differ only in the engine.
//!
//! What must hold for every measurement:
//! - Each group and engine has a process of its own: memory that one engine leaves behind affects
//!   no other.
//! - All engines get equal keys, values and order, from fixed seeds. Every answer is checked: a
//!   missing or wrong entry ends the run with an error.
//! - The harness costs little, and equally for all engines: keys are formatted in place, values are
//!   slices of a pool, the clock is the processor's counter, and expensive random draws are made
//!   beforehand.
//! - Each engine is used as its own users would use it, with the settings that its authors advise.
#![deny(missing_docs)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the stores' files are reached through the stores; what is measured about them is not"
)]

pub mod cli;
mod clock;
pub mod contest;
pub mod engine;
pub mod groups;
pub mod keys;
pub mod meter;
pub mod plot;
pub mod program;
pub mod record;
mod report;
mod scene;
pub mod tamis_engine;
mod targets;
mod values;
mod work;
mod zipf;

/// An error message. A measuring program cannot handle errors, it only reports them.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A result whose error ends the run.
pub type Result<T, E = Error> = std::result::Result<T, E>;
