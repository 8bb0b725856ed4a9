//! Tags of the fields of a version edit. Part of the format.

pub(super) const NEXT_FILE_NUMBER: u64 = 1;
pub(super) const MIN_LOG: u64 = 2;
pub(super) const FLUSHED_SEQNO: u64 = 3;
pub(super) const HASH_SEED: u64 = 4;
pub(super) const CREATED: u64 = 5;
pub(super) const DROPPED: u64 = 6;
pub(super) const ADDED: u64 = 7;
pub(super) const REMOVED: u64 = 8;
pub(super) const SYNCED_LOG: u64 = 9;
pub(super) const CLEARED: u64 = 10;
pub(super) const REFERENCES: u64 = 11;
pub(super) const DEADLINES: u64 = 12;
pub(super) const EXPIRED_BY: u64 = 13;
pub(super) const VALUES: u64 = 14;
pub(super) const INGESTED_TABLE: u64 = 15;
pub(super) const INGESTED: u64 = 16;
pub(super) const RANGE_END: u64 = 17;
/// Readers skip unknown tags from here on.
pub(super) const OPTIONAL: u64 = 64;
pub(super) const BRANCH: u64 = 64;
pub(super) const UNFINISHED: u64 = 65;
pub(super) const ENDED: u64 = 66;
pub(super) const KEPT: u64 = 67;
