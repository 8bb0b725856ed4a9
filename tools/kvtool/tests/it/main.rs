//! Runs kvtool as its users do, and checks its output, its exit codes and the files it leaves.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "tests look at files and may fail"
)]

mod batch;
mod bench;
mod changes;
mod commands;
mod copies;
mod diff;
mod documents;
mod filter_lines;
mod filters;
mod formats;
mod import;
mod ingest;
mod keyspaces;
mod laws;
mod live;
mod range_filters;
mod refused;
mod repair;
mod report;
mod round_trip;
mod sandbox;
mod shell;
mod soak;
mod verify;
