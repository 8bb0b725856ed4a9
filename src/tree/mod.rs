//! The tables of a keyspace, and which of them compaction merges next.
//!
//! - [`manifest`]: version edits on disk, and `CURRENT`.
//! - [`version`]: the tables of each level, and look-ups across levels.
//! - [`compaction`]: the picker chooses tasks, a job merges tables.

pub(crate) mod compaction;
pub(crate) mod manifest;
pub(crate) mod version;
