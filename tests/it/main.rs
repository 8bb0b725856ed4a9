//! Behaviour of the whole engine: one binary, one module per question.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod faults;
mod history;
mod layers;
mod ledger;
mod model;
mod power_cut;
mod support;
mod trace;
