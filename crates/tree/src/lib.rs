//! The tables of a keyspace, and which of them compaction merges next. It has no stable interface:
//! programs use the crate `tamis`.
//!
//! - [`options`]: the options of a keyspace.
//! - [`manifest`]: version edits on disk, and `CURRENT`.
//! - [`version`]: the tables of each level, and look-ups across levels.
//! - [`insert`]: an operation of the log, applied to a memtable.
//! - [`compaction`]: the picker chooses tasks, a job merges tables.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "no stable interface: names alone where they say all")]
#![allow(clippy::len_without_is_empty, reason = "lengths of files, which have headers")]
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]

use tamis_base::{error, format, memory, report, sync};
use tamis_filter as filter;
use tamis_log as log;
use tamis_sorted as sorted;
use tamis_vfs as vfs;

pub mod compaction;
pub mod insert;
pub mod manifest;
pub mod options;
pub mod version;
