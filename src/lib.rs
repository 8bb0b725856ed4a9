//! tamis: an embedded LSM key-value store in which every table carries a filter that reads ask first.
#![allow(
    dead_code,
    reason = "modules are being stacked up; removed when the engine stands"
)]

mod error;
mod exec;
mod filter;
mod format;
mod iter;
mod memtable;
mod merge;
mod options;
mod stats;
mod table;
mod value;
pub mod vfs;

pub use error::{Error, Result};
pub use exec::{Executor, Job, SteppedExecutor, ThreadPool};
pub use format::key::SeqNo;
pub use options::{Compression, FilterMode, FilterPolicy, KeyspaceOptions, Options};
pub use stats::ReadStats;
pub use value::Value;
