//! The log store and the state store, by openraft's own tests and by power cuts.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types, missing_docs, reason = "tests")]

mod pairs;
mod planted;
mod power;
mod suite;
