//! tamis: an embedded LSM key-value store in which every table carries a filter that reads ask first.
#![allow(
    dead_code,
    unused_imports,
    reason = "modules are being stacked up; removed when the engine stands"
)]

mod batch;
mod error;
mod exec;
mod format;
mod iter;
mod log;
mod manifest;
mod options;
mod stats;
mod table;
mod value;
pub mod vfs;
mod wal;

pub use batch::WriteBatch;
pub use error::{Error, Result};
pub use exec::{Executor, Job, SteppedExecutor, ThreadPool};
pub use format::key::SeqNo;
pub use options::{Compression, FilterMode, FilterPolicy, KeyspaceOptions, Options};
pub use stats::ReadStats;
pub use value::Value;
