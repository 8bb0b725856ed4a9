//! Sorted entries: how they are kept in memory and on disk, and how they are read. It has no stable
//! interface: programs use the crate `tamis`.
//!
//! - [`iter`]: the cursor trait over internal keys.
//! - [`merge`]: a cursor over several others.
//! - [`memtable`]: recent writes in memory.
//! - [`block`]: a few kilobytes of entries, the unit of disk reads and of the cache.
//! - [`value`]: the bytes that a read returns.
//! - [`values`]: long values, in files of their own.
//! - [`cache`]: data blocks kept in memory.
//! - [`table`]: SSTables, written once and read from.
//! - [`compress`]: compression of blocks and values.
//! - [`files`]: which files are open, and when they are removed.
//! - [`trace`]: the steps of one point read, and [`scan_trace`]: what a scan reads.
//! - [`ranges`]: range deletes, and [`range_table`]: the tables that hold them.
//! - [`operator`]: merge operators, and the fold of a key's versions into its answer.

#![allow(missing_docs, reason = "no stable interface: names alone where they say all")]
#![allow(clippy::len_without_is_empty, reason = "lengths of entries and of blocks, which are never empty")]
#![allow(clippy::should_implement_trait, reason = "cursors return errors")]
#![allow(clippy::new_without_default, reason = "a builder begins with options, even where it has none")]
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]

use tamis_base::{error, exec, format, memory, report, sync};
use tamis_filter as filter;
use tamis_vfs as vfs;

pub mod block;
pub mod cache;
pub mod compress;
pub mod files;
pub mod iter;
pub mod memtable;
pub mod merge;
pub mod operator;
pub mod range_table;
pub mod ranges;
pub mod scan_trace;
pub mod table;
pub mod trace;
pub mod value;
pub mod values;
