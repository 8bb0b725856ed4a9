//! What a write passes through: batch, WAL, memtable.
//!
//! - [`batch`]: a write batch and its encoding.
//! - [`log`]: numbered files of checksummed records. The WAL and the manifest are such files.
//! - [`wal`]: the write-ahead log, one record per commit.
//! - [`memtable`]: recent writes in memory.

pub(crate) mod batch;
pub(crate) mod log;
pub(crate) mod memtable;
pub(crate) mod wal;
