//! Compaction: keeps few runs and little garbage in the levels.
//!
//! - `picker` chooses tasks and is pure; `filters` chooses the filter of a new table.
//! - `stages` cuts a large task into ranges of keys, `job` merges one of them.
//! - `retention` says which versions of a key must be kept.
//! - `output` writes tables, also for flushes, which `flush` carries out.
//! - `covered` finds tables and range deletes that are superfluous.

pub mod covered;
pub mod filters;
mod flush;
pub mod job;
mod output;
pub mod picker;
mod retention;
pub mod stages;
pub mod task;

pub use flush::{write_memtable, write_ranges};
pub use output::{OutputContext, Turn, UnknownLevels, ValuePolicy, Written, write_run};
