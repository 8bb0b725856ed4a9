//! The path of a write: batch, WAL.
//!
//! - [`batch`]: a write batch and its encoding.
//! - `log`: numbered files of checksummed records, the format of WAL and manifest.
//! - [`wal`]: the write-ahead log, one record per commit.

pub(crate) mod batch;

pub(crate) use tamis_log as log;
pub(crate) use tamis_log::wal;
