//! Behaviour of the whole engine: one binary, one module per question.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod layers;
mod model;
mod support;
