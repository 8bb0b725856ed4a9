//! Compaction: keeps few runs and little garbage in the levels.
//!
//! - `picker` chooses tasks and is pure; `filters` chooses the filter of a new table.
//! - `stages` cuts a large task into ranges of keys, `job` merges one of them.
//! - `retention` says which versions of a key must be kept.
//! - `output` writes tables, also for flushes, which `flush` carries out.
//! - `covered` finds tables and range deletes that are superfluous.

pub(crate) mod covered;
pub(crate) mod filters;
mod flush;
pub(crate) mod job;
mod output;
pub(crate) mod picker;
mod retention;
pub(crate) mod stages;
pub(crate) mod task;

pub(crate) use flush::{write_memtable, write_ranges};
pub(crate) use output::{OutputContext, Turn, UnknownLevels, ValuePolicy, Written, write_run};
