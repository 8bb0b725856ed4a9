//! The tables of a keyspace: which there are, and which are merged next.
//!
//! - [`manifest`]: version edits on disk, and `CURRENT`.
//! - [`version`]: the tables of each level, and look-ups across levels.
//! - [`compaction`]: the picker decides, a job merges.

pub(crate) mod compaction;
pub(crate) mod manifest;
pub(crate) mod version;
