//! Writes in memory: all keyspaces of a store, from one switch of the log to the next.
//!
//! Entries are appended to a [`Log`]; an [`Index`] finds the newest version of a key by its hash, and the older ones hang behind that;
//! [`Order`] is made when somebody asks for it. One writer at a time, readers without a lock but for those that make order. The `unsafe`
//! is in `log` and `index`; this module shows what the rest of the engine may rely on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::filter::KeyHash;
use crate::format::key::{SeqNo, ValueKind};
use crate::memory::pool::Pool;

mod cursor;
mod entries;
mod index;
mod order;
#[cfg(test)]
mod tests;

pub(crate) use cursor::MemtableCursor;
use entries::{EntryList, EntryWriter, NewEntry};
use index::HashIndex;
use order::LazyOrder;

/// What [`slot_hash`] differs by from keyspace to keyspace: 2^64 divided by the golden ratio, which spreads small numbers.
const KEYSPACE_MUL: u64 = 0x9E37_79B9_7F4A_7C15;

/// The newest visible version of a key in a memtable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemEntry<'a> {
    pub(crate) seqno: SeqNo,
    pub(crate) kind: ValueKind,
    pub(crate) value: &'a [u8],
}

/// The writes that stand in one log file.
pub(crate) struct Memtable {
    entries: EntryList,
    index: HashIndex,
    order: LazyOrder,
    pool: Arc<Pool>,
    /// Seed of the hash of keys.
    seed: u64,
    /// The log that holds the same writes.
    log_number: u64,
    entry_count: AtomicU64,
    last_seqno: AtomicU64,
}

impl Memtable {
    /// An empty memtable for the writes of log `log_number`; it is meant to be full at about `size` bytes, which may be exceeded. Keys are
    /// hashed under `seed`.
    pub(crate) fn new(log_number: u64, size: usize, seed: u64, pool: &Arc<Pool>) -> Memtable {
        Memtable {
            entries: EntryList::new(size, pool),
            index: HashIndex::new(size, pool),
            order: LazyOrder::default(),
            pool: Arc::clone(pool),
            seed,
            log_number,
            entry_count: AtomicU64::new(0),
            last_seqno: AtomicU64::new(0),
        }
    }

    pub(crate) fn log_number(&self) -> u64 {
        self.log_number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entry_count.load(Ordering::Relaxed)
    }

    /// Bytes that the entries take, and the index beyond what `size` entries of common length need: many small ones fill the memtable sooner.
    pub(crate) fn used(&self) -> usize {
        self.entries.used() + self.index.grown()
    }

    /// Bytes taken from the pool.
    pub(crate) fn allocated(&self) -> usize {
        self.entries.allocated() + self.index.allocated() + self.order.allocated()
    }

    /// Sequence number of the last write, 0 if there is none.
    pub(crate) fn last_seqno(&self) -> SeqNo {
        self.last_seqno.load(Ordering::Relaxed)
    }

    /// Takes the right to insert.
    pub(crate) fn writer(&self) -> MemtableWriter<'_> {
        MemtableWriter { memtable: self, writer: self.entries.writer(), entry_count: 0, last_seqno: 0 }
    }

    /// Brings nearer what [`Memtable::get`] looks at first.
    #[inline]
    pub(crate) fn prefetch(&self, keyspace: u32, hash: KeyHash) {
        self.index.prefetch(slot_hash(keyspace, hash));
    }

    /// The newest version of `key`, whose hash is `hash`, that `snapshot` can see.
    pub(crate) fn get(&self, keyspace: u32, key: &[u8], hash: KeyHash, snapshot: SeqNo) -> Option<MemEntry<'_>> {
        debug_assert_eq!(hash, KeyHash::new(self.seed, key));
        let newest =
            self.index.find(slot_hash(keyspace, hash), |position| self.entries.entry(position).is_of(keyspace, key))?;
        let entry = self.entries.version(self.entries.entry(newest), snapshot)?;
        Some(MemEntry { seqno: entry.seqno(), kind: entry.kind(), value: entry.value() })
    }

    /// The keyspaces that have entries, ascending, each with the number of its distinct keys.
    pub(crate) fn keyspaces(&self) -> Vec<(u32, u64)> {
        self.order.keyspaces(&self.entries)
    }

    /// A cursor over the entries of one keyspace.
    pub(crate) fn cursor(self: &Arc<Self>, keyspace: u32) -> MemtableCursor {
        MemtableCursor::new(Arc::clone(self), keyspace)
    }

    /// The same, to go through all of them when there are no more to come: what order is lacking is made at once and in whole.
    pub(crate) fn flush_cursor(self: &Arc<Self>, keyspace: u32) -> MemtableCursor {
        MemtableCursor::of_one_run(Arc::clone(self), keyspace)
    }
}

/// The part of the hash of a key and its keyspace that the index takes.
fn slot_hash(keyspace: u32, hash: KeyHash) -> u32 {
    let mixed = hash.value() ^ u64::from(keyspace).wrapping_mul(KEYSPACE_MUL);
    (mixed >> 32) as u32
}

/// The right to insert into a memtable. Counts are published when it is dropped.
pub(crate) struct MemtableWriter<'a> {
    memtable: &'a Memtable,
    writer: EntryWriter<'a>,
    entry_count: u64,
    last_seqno: SeqNo,
}

impl MemtableWriter<'_> {
    /// As [`Memtable::used`], with what was inserted by now.
    pub(crate) fn used(&self) -> usize {
        self.writer.used() + self.memtable.index.grown()
    }

    /// How long this writer has waited for memory from the system.
    pub(crate) fn waited(&self) -> Duration {
        self.writer.waited()
    }

    /// Adds an entry. Sequence numbers ascend from call to call.
    #[inline]
    pub(crate) fn insert(&mut self, keyspace: u32, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) {
        self.insert_hashed(keyspace, key, KeyHash::new(self.memtable.seed, key), seqno, kind, value);
    }

    /// The same for a key whose hash is `hash`.
    pub(crate) fn insert_hashed(
        &mut self,
        keyspace: u32,
        key: &[u8],
        hash: KeyHash,
        seqno: SeqNo,
        kind: ValueKind,
        value: &[u8],
    ) {
        let memtable = self.memtable;
        let hash = slot_hash(keyspace, hash);
        let is_key = |position| memtable.entries.entry(position).is_of(keyspace, key);
        let place = memtable.index.locate(hash, is_key);
        let position = self.writer.append(NewEntry { keyspace, key, seqno, kind, value }, place.newest);
        memtable.index.publish(place, position);
        self.entry_count += 1;
        self.last_seqno = seqno;
    }
}

impl Drop for MemtableWriter<'_> {
    fn drop(&mut self) {
        // Only the holder of the log's writer changes these: no need for atomic additions, which would wait for all stores before them.
        let memtable = self.memtable;
        memtable.entry_count.store(memtable.entries() + self.entry_count, Ordering::Relaxed);
        memtable.last_seqno.store(memtable.last_seqno().max(self.last_seqno), Ordering::Relaxed);
    }
}
