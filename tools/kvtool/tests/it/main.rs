//! kvtool as its users see it: the program is run, and what it prints, its exit code and what it leaves on disk are looked at.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "tests look at files and may fail"
)]

mod bench;
mod commands;
mod filter_lines;
mod filters;
mod import;
mod refused;
mod repair;
mod round_trip;
mod sandbox;
mod soak;
