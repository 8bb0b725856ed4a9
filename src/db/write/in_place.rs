//! Read, modify, write of a key under the commit lock, if the memtable has what is to be read.
//!
//! A counter that is incremented often is in the memtable. Reading it there, under the lock under
//! which its new value is written, takes one look-up, no premise, and meets no conflict. Nothing
//! else is read under the lock: what is not in the memtable may be on disk. The caller's code does
//! not run under it either.

use std::sync::Arc;

use super::commit::{Commit, Encoded, GroupLen, Logging, Outcome};
use super::path::{Expiry, WriteOptions, with_encoded};
use super::stalls::Cause;
use crate::batch::Write;
use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::filter::KeyHash;
use crate::format::key::{SeqNo, ValueKind, Window};
use crate::format::record::MAX_RECORD_HEADER_LEN;
use crate::sorted::memtable::MemEntry;
use crate::sync::atomic::Ordering;

/// What is to be done to a key whose value is known.
pub(crate) enum Step<V> {
    Keep,
    Put(V),
    Delete,
}

/// What became of a change in place.
pub(crate) enum InPlace {
    /// The memtable does not have the key's value, or there is no room: nothing was done.
    NotHere,
    Kept,
    Written(SeqNo),
}

/// Bytes around a key and a value of a batch of one operation, at most.
const OP_OVERHEAD: usize = 32;

/// Longest operation, and longest value to be read, under the lock. What takes longer delays other
/// writers.
const LONGEST: usize = 4 << 10;

impl Store {
    /// Changes a key as `change` says, which gets its value and runs under the commit lock. Does
    /// nothing if the value, of `longest` bytes at most after the change, is not in the memtable.
    pub(crate) fn change_in_place<V: AsRef<[u8]>>(
        self: &Arc<Self>,
        (keyspace, key, hash): (u32, &[u8], KeyHash),
        options: WriteOptions,
        longest: usize,
        change: impl FnOnce(Option<&[u8]>) -> Result<Step<V>>,
    ) -> Result<InPlace> {
        let len = OP_OVERHEAD + key.len() + longest;
        let is_plain = len <= LONGEST
            && !options.sync
            && options.expiry == Expiry::Default
            && !self.clock.may_have_ttl(keyspace)
            && !self.writer.has_unlogged.load(Ordering::Acquire);
        if !is_plain {
            return Ok(InPlace::NotHere);
        }
        let as_of = self.writer.keyspaces_as_of();
        if keyspace != 0 {
            self.check_keyspaces(&[keyspace])?;
        }
        // The write, if there is one, is refused.
        if self.retry_failed(|| std::iter::once(keyspace)).is_some() {
            return Ok(InPlace::NotHere);
        }
        // Updates of the key that have met conflicts go first.
        let mut turn = None;
        self.writer.retries.of_key(hash, 1, &mut turn);
        self.delay(len);
        let mut commit = match self.try_commit() {
            Some(commit) => commit,
            None => self.writer.stalls.measure(Cause::Commit, || self.writer.commit.lock()),
        };
        let Some(open) = commit.as_mut() else { return Err(Error::Closed) };
        let len = GroupLen::of_bytes(len, MAX_RECORD_HEADER_LEN + len);
        // Writers that wait for room go first.
        if open.waiting > 0 || self.find_room(open, len)?.is_some() {
            return Ok(InPlace::NotHere);
        }
        let Some(entry) = newest(open, keyspace, key, hash) else { return Ok(InPlace::NotHere) };
        let value = match entry.kind {
            ValueKind::Put if entry.value.len() <= LONGEST => Some(entry.value),
            ValueKind::Delete => None,
            _ => return Ok(InPlace::NotHere),
        };
        let new = match change(value)? {
            Step::Keep => return Ok(InPlace::Kept),
            Step::Put(value) => Some(value),
            Step::Delete => None,
        };
        let write = new.as_ref().map_or(Write::Delete, |value| Write::Put(value.as_ref()));
        let outcome = with_encoded(keyspace, key, write, |payload, single| {
            let encoded =
                Encoded::single(payload, single, write.kind().features(), Logging { part: None, as_of }, false);
            let queued = self.writer.queue.take(len, |group| self.has_room(open, group));
            self.commit_own(open, &encoded, None, &queued)
        })?;
        match outcome {
            Outcome::Committed(seqno) => Ok(InPlace::Written(seqno)),
            Outcome::Refused(_) => Ok(InPlace::NotHere),
        }
    }
}

/// The newest version of a key, if the memtable has it and nothing deletes it.
fn newest<'a>(commit: &'a Commit, keyspace: u32, key: &[u8], hash: KeyHash) -> Option<MemEntry<'a>> {
    if commit.memtable.has_ranges() {
        return None;
    }
    let entry = commit.memtable.get(keyspace, key, hash, Window::up_to(SeqNo::MAX))?;
    (entry.seqno > commit.ingested).then_some(entry)
}
