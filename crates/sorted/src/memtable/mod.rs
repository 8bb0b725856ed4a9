//! [`Memtable`]: recent writes in memory, of all keyspaces, between two switches of the WAL.
//!
//! Entries are appended to an `EntryList`. A `HashIndex` finds the newest version of a key by
//! its hash; older versions are linked behind it. A `LazyOrder` sorts entries only when a cursor
//! or a flush needs them.
//!
//! There is one writer at a time. Point reads take no lock; making order takes one. The `unsafe`
//! code is in `entries` and `index`; this module is the interface for the rest of the engine.
//!
//! Its memory comes from a pool and returns there: a store under writes takes no new memory from
//! the system.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::key::{SeqNo, ValueKind, Window};
use crate::memory::pool::MemtablePool;
use crate::operator::{Answer, Fold, decode_operand, put_operand};
use crate::ranges::{Fragment, RangeSource};

mod bounds;
mod cursor;
mod entries;
mod estimate;
mod folded;
mod index;
mod order;
mod range_tree;
mod ranges;
#[cfg(test)]
mod tests;

pub use cursor::MemtableCursor;
use entries::{EntryList, EntryRef, EntryWriter, NewEntry};
use folded::FoldedChains;
pub use folded::{FOLD_FROM, FoldedChain};
use index::HashIndex;
use order::LazyOrder;
use ranges::{Fragments, IsNeeded, RangeHistory, SortingBytes};

/// Multiplier that makes [`slot_hash`] differ between keyspaces: 2^64 divided by the golden ratio,
/// which spreads small numbers.
const KEYSPACE_MUL: u64 = 0x9E37_79B9_7F4A_7C15;

/// Bytes by which a value may exceed an operand that is combined with it at once.
const LONGER_VALUE: usize = 64;

/// The newest visible version of a key in a memtable.
#[derive(Debug, PartialEq, Eq)]
pub struct MemEntry<'a> {
    pub seqno: SeqNo,
    pub kind: ValueKind,
    pub value: &'a [u8],
}

/// The writes of one log file.
pub struct Memtable {
    entries: EntryList,
    index: HashIndex,
    order: LazyOrder,
    ranges: RangeHistory,
    folded: FoldedChains,
    pool: Arc<MemtablePool>,
    /// Seed of the key hashes.
    seed: u64,
    /// The log file that holds the same writes.
    log_number: u64,
    entry_count: AtomicU64,
    last_seqno: AtomicU64,
    /// Entries before this position were visible to readers when it was marked.
    visible_mark: AtomicU32,
}

/// An entry of a memtable, without its value.
pub struct WrittenEntry<'a> {
    pub keyspace: u32,
    pub key: &'a [u8],
    pub hash: KeyHash,
    pub seqno: SeqNo,
    /// For a range delete from `key` on: its end, empty if it has none.
    pub range_end: Option<&'a [u8]>,
}

impl Memtable {
    /// An empty memtable for the writes of log `log_number`. It should be sealed at about `size`
    /// bytes, but may exceed them. Keys are hashed with `seed`.
    pub fn new(log_number: u64, size: usize, seed: u64, pool: &Arc<MemtablePool>) -> Memtable {
        Memtable {
            entries: EntryList::new(size, pool),
            index: HashIndex::new(size, pool),
            order: LazyOrder::new(pool.budget()),
            ranges: RangeHistory::new(pool.budget()),
            folded: FoldedChains::new(pool.budget()),
            pool: Arc::clone(pool),
            seed,
            log_number,
            entry_count: AtomicU64::new(0),
            last_seqno: AtomicU64::new(0),
            visible_mark: AtomicU32::new(0),
        }
    }

    /// An empty memtable in the place of this one.
    pub fn empty_successor(&self) -> Memtable {
        Memtable::new(self.log_number, 0, self.seed, &self.pool)
    }

    pub fn log_number(&self) -> u64 {
        self.log_number
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    #[inline]
    pub fn entries(&self) -> u64 {
        self.entry_count.load(Ordering::Relaxed)
    }

    /// Bytes of the entries and of the trees of range deletes, plus index growth beyond what `size`
    /// bytes of entries of usual length need. The latter makes a memtable of many small entries
    /// full sooner.
    #[inline]
    pub fn used(&self) -> usize {
        self.entries.used() + self.index.grown() + self.ranges.used()
    }

    /// Bytes taken from the pool, those of folded chains, and of range deletes: their trees, older
    /// ones that readers need, and what a flush takes to order them.
    pub fn allocated(&self) -> usize {
        let beside = self.order.allocated() + self.ranges.allocated() + self.folded.allocated();
        self.entries.allocated() + self.index.allocated() + beside
    }

    /// Sequence number of the last write; 0 if there is none.
    #[inline]
    pub fn last_seqno(&self) -> SeqNo {
        self.last_seqno.load(Ordering::Relaxed)
    }

    /// Marks everything inserted so far as visible to readers.
    #[inline]
    pub fn mark_visible(&self) {
        self.visible_mark.store(self.entries.end(), Ordering::Release);
    }

    /// The position marked last by [`mark_visible`](Memtable::mark_visible). A thread that reads
    /// the visible sequence number after this call finds no greater number before the position.
    pub fn visible_mark(&self) -> u32 {
        self.visible_mark.load(Ordering::Acquire)
    }

    /// Where the entries end that are complete now.
    pub fn end(&self) -> u32 {
        self.entries.end()
    }

    /// The entries newer than `since` after a [`visible_mark`](Memtable::visible_mark) or an
    /// earlier [end](Memtable::end), in the order of their numbers.
    pub fn entries_newer(&self, position: u32, since: SeqNo) -> impl Iterator<Item = WrittenEntry<'_>> {
        let newer = self.entries.walk(position).map(|(_, entry)| entry).filter(move |entry| entry.seqno() > since);
        newer.map(|entry| WrittenEntry {
            keyspace: entry.keyspace(),
            key: entry.key(),
            hash: KeyHash::new(self.seed, entry.key()),
            seqno: entry.seqno(),
            range_end: entry.range_end(),
        })
    }

    /// Locks the memtable for inserts.
    #[inline]
    pub fn writer(&self) -> MemtableWriter<'_> {
        let (stored, ranges) = (Vec::new(), None);
        let writer = self.entries.writer();
        MemtableWriter { memtable: self, writer, entry_count: 0, last_seqno: 0, stored, is_needed: &|_| false, ranges }
    }

    /// Prefetches the index slot that [`Memtable::get`] reads first.
    #[inline]
    pub fn prefetch(&self, keyspace: u32, hash: KeyHash) {
        self.index.prefetch(slot_hash(keyspace, hash));
    }

    /// The newest version of `key` in the window; `hash` is the key's hash.
    pub fn get(&self, keyspace: u32, key: &[u8], hash: KeyHash, window: Window) -> Option<MemEntry<'_>> {
        debug_assert_eq!(hash, KeyHash::new(self.seed, key));
        let newest =
            self.index.find(slot_hash(keyspace, hash), |position| self.entries.entry(position).is_of(keyspace, key))?;
        let entry = self.entries.version(self.entries.entry(newest), window.newest)?;
        if entry.seqno() < window.oldest {
            return None;
        }
        Some(MemEntry { seqno: entry.seqno(), kind: entry.kind(), value: entry.value() })
    }

    /// Shows `answer` the versions of `key` in the window, newest first, until it is complete.
    pub fn collect(
        &self,
        keyspace: u32,
        key: &[u8],
        hash: KeyHash,
        window: Window,
        answer: &mut Answer<'_>,
    ) -> Result<()> {
        let is_key = |position| self.entries.entry(position).is_of(keyspace, key);
        let Some(newest) = self.index.find(slot_hash(keyspace, hash), is_key) else { return Ok(()) };
        let mut next = self.entries.version(self.entries.entry(newest), window.newest);
        let folded = self.folded.find(keyspace, key, window);
        while let Some(entry) = next.filter(|entry| window.sees(entry.seqno())) {
            match folded.as_ref().filter(|folded| folded.newest == entry.seqno()) {
                Some(folded) => answer.see(folded.newest, ValueKind::Merge, &folded.stored)?,
                None => answer.see(entry.seqno(), entry.kind(), entry.value())?,
            }
            if answer.is_complete() {
                break;
            }
            next = self.entries.version(entry, answer.oldest() - 1);
        }
        Ok(())
    }

    /// Keeps what operands of `key` that are here come to, for later calls of
    /// [`collect`](Memtable::collect).
    pub fn keep_folded(&self, keyspace: u32, key: &[u8], folded: FoldedChain) {
        self.folded.keep(keyspace, key, folded);
    }

    /// The number of the newest write to a key, 0 if there is none: to the key alone or to a range.
    pub fn newest_write(&self, keyspace: u32, key: &[u8], hash: KeyHash) -> SeqNo {
        let cover = self.cover(keyspace, key, || SeqNo::MAX).1;
        self.get(keyspace, key, hash, Window::up_to(SeqNo::MAX)).map_or(cover, |entry| entry.seqno.max(cover))
    }

    /// Whether there are range deletes. Tells of all that were visible before the call.
    #[inline]
    pub fn has_ranges(&self) -> bool {
        self.ranges.any()
    }

    /// The number that deletes `key` for a reader at `snapshot`, 0 if there is none, and that
    /// snapshot. No range is published while `snapshot` is called, so that it may tell the visible
    /// number.
    ///
    /// For a number that is neither visible now nor that of a live snapshot, the cover is exact
    /// unless a later range deletes the key.
    pub fn cover(&self, keyspace: u32, key: &[u8], snapshot: impl Fn() -> SeqNo) -> (SeqNo, SeqNo) {
        // The number first: the ranges that it sees have been published before.
        let seqno = snapshot();
        if self.has_ranges() { self.ranges.cover(keyspace, key, snapshot) } else { (seqno, 0) }
    }

    /// The ranges of a keyspace for scans at `snapshot`, which is called as in
    /// [`cover`](Memtable::cover).
    pub fn ranges_as_of(&self, keyspace: u32, snapshot: impl Fn() -> SeqNo) -> (SeqNo, Option<Arc<dyn RangeSource>>) {
        // The number first, as in `cover`.
        let seqno = snapshot();
        if !self.has_ranges() {
            return (seqno, None);
        }
        let (snapshot, tree) = self.ranges.as_of(keyspace, snapshot);
        (snapshot, tree.map(|tree| Arc::new(tree) as Arc<dyn RangeSource>))
    }

    /// Number of disjoint parts that the range deletes of a keyspace have now.
    pub fn range_count(&self, keyspace: u32) -> usize {
        if self.has_ranges() { self.ranges.newest().count(keyspace) } else { 0 }
    }

    /// The newest number of a range delete that deletes any of the keys from `from` up to `to`; 0
    /// if there is none.
    pub fn newest_range(&self, keyspace: u32, from: &[u8], to: Option<&[u8]>) -> SeqNo {
        if self.has_ranges() { self.ranges.newest_within(keyspace, from, to) } else { 0 }
    }

    /// The range deletes of a keyspace as they were written, newest first.
    pub fn range_deletes(&self, keyspace: u32) -> impl Iterator<Item = Fragment<&[u8]>> {
        let newest = if self.has_ranges() { self.ranges.newest().newest_entry(keyspace) } else { None };
        let older = |entry: &EntryRef<'_>| Some(self.entries.entry(entry.older()?));
        std::iter::successors(newest.map(|newest| self.entries.entry(newest)), older).map(|entry| Fragment {
            start: entry.key(),
            end: Some(entry.value()).filter(|end| !end.is_empty()),
            seqno: entry.seqno(),
        })
    }

    /// Counts `bytes` that a flush takes to order range deletes until the result is dropped.
    pub fn count_sorting(&self, bytes: usize) -> SortingBytes<'_> {
        self.ranges.count_sorting(bytes)
    }

    /// Ids of the keyspaces that have range deletes now.
    pub fn keyspaces_with_ranges(&self) -> Vec<u32> {
        if self.has_ranges() { self.ranges.newest().keyspaces() } else { Vec::new() }
    }

    /// Ids of the keyspaces that have entries, ascending, each with its number of distinct keys.
    pub fn keyspaces(&self) -> Vec<(u32, u64)> {
        self.order.keyspaces(&self.entries)
    }

    /// A cursor over the entries of one keyspace.
    pub fn cursor(self: &Arc<Self>, keyspace: u32) -> MemtableCursor {
        MemtableCursor::new(Arc::clone(self), keyspace)
    }

    /// A cursor for flushing a sealed memtable: sorts all entries of the keyspace into one run
    /// first.
    pub fn flush_cursor(self: &Arc<Self>, keyspace: u32) -> MemtableCursor {
        MemtableCursor::of_one_run(Arc::clone(self), keyspace)
    }
}

/// Whether one of `numbers`, ascending, is in a range.
pub fn any_in(numbers: &[SeqNo], range: Range<SeqNo>) -> bool {
    let first = numbers.partition_point(|number| *number < range.start);
    numbers.get(first).is_some_and(|number| range.contains(number))
}

/// The 32 bits of hash that the index uses for a key and its keyspace.
fn slot_hash(keyspace: u32, hash: KeyHash) -> u32 {
    let mixed = hash.value() ^ u64::from(keyspace).wrapping_mul(KEYSPACE_MUL);
    (mixed >> 32) as u32
}

/// The exclusive right to insert into a memtable. Counts are published when it is dropped.
pub struct MemtableWriter<'a> {
    memtable: &'a Memtable,
    writer: EntryWriter<'a>,
    entry_count: u64,
    last_seqno: SeqNo,
    /// Buffer for an operand as it is stored.
    stored: Vec<u8>,
    /// Whether earlier range deletes are needed at one of these numbers.
    is_needed: IsNeeded<'a>,
    /// The range deletes, once this writer has added one. Published when it is dropped.
    ranges: Option<Fragments>,
}

impl<'a> MemtableWriter<'a> {
    /// As [`Memtable::used`], including this writer's inserts.
    #[inline]
    pub fn used(&self) -> usize {
        self.writer.used() + self.memtable.index.grown() + self.memtable.ranges.used()
    }

    /// Time that this writer has waited for memory from the system.
    pub fn waited(&self) -> Duration {
        self.writer.waited()
    }

    /// Notes that there are no more entries up to `seqno`.
    pub fn extend_to(&mut self, seqno: SeqNo) {
        self.last_seqno = self.last_seqno.max(seqno);
    }

    /// Keeps what readers see of the range deletes that are there, if `is_needed` says that there
    /// are some between two numbers. Without this call, a writer that inserts range deletes forgets
    /// it. Every reader that is registered later must see at least what is visible now.
    pub fn keep_ranges_if(&mut self, is_needed: IsNeeded<'a>) {
        self.is_needed = is_needed;
    }

    /// Deletes the keys from `start` up to `end`, of which an empty one is no bound.
    pub fn delete_range(&mut self, keyspace: u32, start: &[u8], end: &[u8], seqno: SeqNo) {
        // Among the entries it tells checks of premises what was written, and takes its share of
        // the memtable.
        // It links to the range before it, for the flush.
        let entry = NewEntry { keyspace, key: start, seqno, kind: None, value: end };
        let ranges = self.ranges.get_or_insert_with(|| self.memtable.ranges.newest());
        let position = self.writer.append(entry, ranges.newest_entry(keyspace));
        let end = (!end.is_empty()).then(|| Arc::from(end));
        ranges.insert(keyspace, &Fragment { start: start.into(), end, seqno }, position);
        self.entry_count += 1;
        self.last_seqno = seqno;
    }

    /// The newest range delete of a key, 0 if there is none.
    fn newest_cover(&self, keyspace: u32, key: &[u8]) -> SeqNo {
        match &self.ranges {
            Some(ranges) => ranges.piece(keyspace, key).seqno,
            None => self.memtable.cover(keyspace, key, || SeqNo::MAX).1,
        }
    }

    /// Inserts a put or a delete. Sequence numbers must ascend from call to call.
    #[cfg(any(test, feature = "testing"))]
    pub fn insert(&mut self, keyspace: u32, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) {
        self.insert_hashed(keyspace, key, KeyHash::new(self.memtable.seed, key), seqno, kind, value);
    }

    /// Inserts an operand of a merge. If possible, `fold` combines it with the key's newest version
    /// here. Readers of older versions still find them.
    #[inline(never)]
    pub fn insert_operand(
        &mut self,
        keyspace: u32,
        key: &[u8],
        hash: KeyHash,
        seqno: SeqNo,
        operand: &[u8],
        fold: Option<Fold>,
    ) {
        let memtable = self.memtable;
        let is_key = |position| memtable.entries.entry(position).is_of(keyspace, key);
        let newest = memtable.index.find(slot_hash(keyspace, hash), is_key).map(|at| memtable.entries.entry(at));
        let is_deleted = |newest: SeqNo| self.newest_cover(keyspace, key) > newest;
        let folded = fold.zip(newest).filter(|(_, newest)| !is_deleted(newest.seqno())).and_then(|(fold, newest)| {
            let (oldest, older) = match newest.kind() {
                // The base and what is merged into it stay apart: only the base expires.
                ValueKind::Put => (0, newest.value()),
                ValueKind::Merge => decode_operand(newest.seqno(), newest.value()).ok()?,
                _ => return None,
            };
            // A long value would be written again for each short operand.
            if older.len() > operand.len() + LONGER_VALUE {
                return None;
            }
            Some((oldest, fold.apply(older, operand).ok()?))
        });
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        match &folded {
            Some((0, value)) => self.insert_hashed(keyspace, key, hash, seqno, ValueKind::Put, value.bytes()),
            folded => {
                let (oldest, operand) = folded.as_ref().map_or((seqno, operand), |(at, folded)| (*at, folded.bytes()));
                put_operand(&mut stored, seqno, oldest, operand);
                self.insert_hashed(keyspace, key, hash, seqno, ValueKind::Merge, &stored);
            }
        }
        self.stored = stored;
    }

    /// Inserts a put or a delete of a key with this hash. Sequence numbers must ascend from call to
    /// call.
    #[inline]
    pub fn insert_hashed(
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
        let key_slot = memtable.index.locate(hash, is_key);
        let position = self.writer.append(NewEntry { keyspace, key, seqno, kind: Some(kind), value }, key_slot.newest);
        memtable.index.publish(key_slot, position);
        self.entry_count += 1;
        self.last_seqno = seqno;
    }
}

impl Drop for MemtableWriter<'_> {
    #[inline]
    fn drop(&mut self) {
        // Only the holder of the entry writer changes these, so they need no atomic additions,
        // which would wait for all earlier stores.
        let memtable = self.memtable;
        memtable.entry_count.store(memtable.entries() + self.entry_count, Ordering::Relaxed);
        memtable.last_seqno.store(memtable.last_seqno().max(self.last_seqno), Ordering::Relaxed);
        if let Some(ranges) = self.ranges.take() {
            memtable.ranges.publish(ranges, self.last_seqno, self.is_needed);
        }
    }
}
