//! The state machine: what log entries do to a store.
//!
//! Everything it does follows from the entries alone: it asks no clock, draws no random number and
//! iterates in the order of keys. Two machines that have applied the same entries hold the same
//! bytes.

mod reply;
mod request;
mod slot;

pub use reply::Reply;
pub use request::{
    Body, Condition, Deadline, DecodeError, Entry, ExpireCondition, MAX_KEY_LEN, MAX_VALUE_LEN, NewDeadline, Operation,
    Query, Request, Serial, SetAnswer, Step,
};
pub use slot::{GroupId, SLOTS, group_of, slot_of, slots_of};

/// A group's state in a store.
///
/// All of it is in one keyspace, `group-N`, without a log of its own: the group's log is its log. A
/// flush writes data, sessions and the caller's meta pairs together, so that a crash takes the
/// state back to a moment between two entries, never into one.
///
/// One thread applies at a time; any number of threads read meanwhile.
pub struct Machine {
    keyspace: tamis::Keyspace,
}

/// What a read found.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The answer, without keys whose deadline is past.
    pub reply: Reply,
    /// Whether it lacks a key whose deadline is past by the reader's clock, but not by the log.
    /// For a linearizable read, propose [`Body::Tick`] and read again: other replicas, or a later
    /// leader whose clock is behind, would still show the key.
    pub ahead_of_log: bool,
}

impl Machine {
    /// Opens the state of a group, which is empty at first.
    pub fn open(_db: &tamis::Db, _group: GroupId) -> tamis::Result<Machine> {
        unreachable!("the interface only, for now")
    }

    /// Name of the keyspace that holds a group's state: what a snapshot of the group must copy.
    pub fn keyspace_name(group: GroupId) -> String {
        format!("group-{group}")
    }

    /// Applies an entry: one batch with all its effects and the caller's `meta` pairs, which may be
    /// the entry's index in the log or a membership. Returns one reply for each request.
    ///
    /// An error means that nothing of the entry was applied. An entry without requests stores
    /// `meta` only, and lets time pass.
    pub fn apply(&self, _entry: &Entry, _meta: &[(&[u8], &[u8])]) -> tamis::Result<Vec<Reply>> {
        unreachable!("the interface only, for now")
    }

    /// A meta pair's value, as the last entry that named it stored it.
    pub fn meta(&self, _name: &[u8]) -> tamis::Result<Option<Vec<u8>>> {
        unreachable!("the interface only, for now")
    }

    /// Reads, hiding what has expired by the log's time or by `now_ms`, whichever is later.
    pub fn read(&self, _query: &Query, _now_ms: u64) -> tamis::Result<Reading> {
        unreachable!("the interface only, for now")
    }

    /// The time of the last entry applied, in milliseconds since 1970.
    pub fn time_ms(&self) -> u64 {
        unreachable!("the interface only, for now")
    }

    /// The deadline of the key that expires first. Once it is past, a leader with no writes to
    /// propose proposes [`Body::Tick`], or expired keys would use space until the next write.
    pub fn next_deadline_ms(&self) -> tamis::Result<Option<u64>> {
        unreachable!("the interface only, for now")
    }

    /// The keyspace that holds the group's state. An entry of the log may be purged once a flush of
    /// it, or [`tamis::Db::flushed_seqno`], covers the batch that applied the entry.
    pub fn keyspace(&self) -> &tamis::Keyspace {
        &self.keyspace
    }
}
