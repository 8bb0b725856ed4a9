//! Works on a store's files without opening the store. It has no stable interface: programs use the
//! crate `tamis`, which re-exports it.
//!
//! - [`inspect`]: reads any file and describes it.
//! - [`repair`]: makes a damaged store one that opens.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]

use tamis_base::{error, format, memory, report};
use tamis_filter as filter;
use tamis_log as log;
use tamis_sorted as sorted;
use tamis_tree as tree;
use tamis_vfs as vfs;

pub mod inspect;
pub mod repair;
