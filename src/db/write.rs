//! The write path, from a batch to durable entries.
//!
//! `path` commits batches in groups, under the lock of `commit`; `room` makes room for them, `logs`
//! keeps the log files, `sync` and `turns` make them durable; `stalls` counts how long writers
//! wait.

pub(crate) mod commit;
pub(crate) mod insert;
pub(crate) mod logs;
pub(crate) mod path;
pub(crate) mod room;
pub(crate) mod stalls;
mod sync;
mod tenant;
pub(crate) mod turns;
