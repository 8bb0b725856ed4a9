//! Behaviour of the whole engine: one binary, one module per question.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "threads and clocks of tests are their own")]

mod beside_writer;
mod checkpoint;
mod closing;
mod compaction_filter;
mod concurrency;
mod damage;
#[cfg(unix)]
mod descriptors;
mod documents;
mod environment;
mod estimates;
mod events;
mod expiry;
mod explain;
mod faults;
mod feed;
mod foreign;
#[cfg(unix)]
mod fork;
mod garbage;
mod held;
mod in_memory;
mod ingest;
mod interrupted;
mod kill;
mod laws;
mod layers;
mod levels;
mod mapped_log;
mod merge;
mod metrics;
mod operations;
mod parts;
mod power_cut;
mod prefix;
mod progress;
mod queue;
mod range_delete;
mod range_filters;
mod rate;
mod read_modes;
mod reads;
mod recovery;
mod refilter;
mod refresh;
mod rename;
mod repair;
mod scheduling;
mod seeks;
mod short_logs;
mod space;
mod stats_page;
mod support;
mod synced_log;
mod trace;
mod transactions;
mod unlogged;
mod unused_blocks;
mod update;
mod values;
mod versions;
mod waits;
