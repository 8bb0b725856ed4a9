//! The field's workloads for ordered key-value stores, and what they cost: time, latency, processor, memory, bytes.
//!
//! The workloads are written once, over the narrow trait [`engine::Engine`]; `tamis-bench` and `kvtool bench run` run them over tamis,
//! `tamis-peers` (tools/peers) over other stores too. So what is compared differs in nothing but the engine.
//!
//! What must stay true of a measurement:
//! - One process for each group of workloads and engine: nothing that an engine leaves in memory meets another one.
//! - The same keys, values and order for all, from fixed seeds. Every answer is checked: a key that must be there and is not ends the
//!   run with an error.
//! - The harness costs the same for all engines, and little: keys are formatted in place, values are slices of a pool, the clock is the
//!   processor's counter, what is costly to draw is drawn beforehand.
//! - An engine does its work in the way that its own users would write it, with the settings that its own authors advise.
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
pub mod record;
mod report;
mod scene;
pub mod tamis_engine;
mod targets;
pub mod text;
mod values;
mod work;
mod zipf;

/// What went wrong, in words; a program that measures has nobody to handle it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A result whose error ends the run.
pub type Result<T, E = Error> = std::result::Result<T, E>;
