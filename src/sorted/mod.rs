//! Sorted entries: how they are stored, and how they are read.
//!
//! - [`iter`]: the cursor trait over internal keys.
//! - [`merge`]: a cursor over several others.
//! - [`block`]: a few kilobytes of entries, the unit of disk reads and of the cache.
//! - [`value`]: the bytes that a read returns.
//! - [`values`]: long values, in files of their own.
//! - [`cache`]: data blocks kept in memory.
//! - [`table`]: SSTables, written once and read from.
//! - `compress`: compression of blocks and values.
//! - [`files`]: which files are open, and when they are removed.
//! - [`ranges`]: range deletes, and [`range_table`]: the tables that hold them.

pub(crate) mod block;
pub(crate) mod cache;
mod compress;
pub(crate) mod files;
pub(crate) mod iter;
pub(crate) mod merge;
pub(crate) mod range_table;
pub(crate) mod ranges;
pub(crate) mod table;
pub(crate) mod value;
pub(crate) mod values;
