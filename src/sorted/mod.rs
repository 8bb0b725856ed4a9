//! Sorted entries: how they are stored, and how they are read.
//!
//! - [`iter`]: the cursor trait over internal keys.
//! - [`merge`]: a cursor over several others.
//! - [`block`]: a few kilobytes of entries, the unit of disk reads and of the cache.
//! - [`value`]: the bytes that a read returns.
//! - [`table`]: SSTables, and the block cache.

pub(crate) mod block;
pub(crate) mod iter;
pub(crate) mod merge;
pub(crate) mod table;
pub(crate) mod value;
