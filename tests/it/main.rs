//! Behaviour of the whole engine: one binary, one module per question.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod concurrency;
mod damage;
mod kill;
mod layers;
mod model;
mod reads;
mod support;
