//! Behaviour of the whole engine: one binary, one module per question.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, reason = "tests")]

mod beside_writer;
mod closing;
mod concurrency;
mod damage;
mod estimates;
mod explain;
mod faults;
mod foreign;
mod garbage;
mod held;
mod history;
mod in_memory;
mod kill;
mod layers;
mod ledger;
mod levels;
mod mapped_log;
mod model;
mod parts;
mod power_cut;
mod prefix;
mod queue;
mod reads;
mod recovery;
mod refilter;
mod repair;
mod scheduling;
mod seeks;
mod space;
mod support;
mod synced_log;
mod trace;
mod transactions;
mod update;
mod waits;
