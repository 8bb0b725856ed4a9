//! [`HashIndex`]: a lock-free hash table from keys to the positions of their newest versions. One
//! writer at a time; readers take no lock.
//!
//! ```text
//! slot = hash << 32 | position: u64, or 0
//! ```
//!
//! Open addressing with linear probing, starting at the top bits of the hash. A slot holds 32 bits
//! of hash, so that an entry with another key is hardly ever read, and a table can be rebuilt at
//! twice the size from its slots alone. The index does not read entries; only its callers do.
//!
//! Invariants:
//! - A slot changes from 0 to a position, and then only to newer positions of the same key; a table
//!   never loses a slot. A reader thus finds all that was in the table when it loaded the table.
//!   `Release` and `Acquire` make the entry behind a position visible.
//! - Before a table is replaced, the new one holds everything. A reader that continues in the old
//!   table misses only entries written after it loaded the table. Old tables stay until the index
//!   is dropped; together they are smaller than the newest.

use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use super::entries::Position;
#[cfg(not(loom))]
use crate::memory::pool::MemtableChunk;
use crate::memory::pool::MemtablePool;
use crate::memory::prefetch::prefetch;

/// Fewest slots of a table.
const MIN_SLOTS: usize = if cfg!(any(loom, miri)) { 4 } else { 64 };

/// Bytes of entries per slot of a new index. With keys of 16 and values of 100 bytes, a memtable of
/// 64 MiB fills 44 % of its 2^20 slots.
const BYTES_PER_SLOT: usize = 96;

pub(super) struct HashIndex {
    pool: Arc<MemtablePool>,
    table: AtomicPtr<SlotTable>,
    /// Slots in use. Only the writer uses this.
    len: AtomicUsize,
    /// Bytes of all tables (`allocated`), and of all but the first (`grown`).
    allocated: AtomicUsize,
    grown: AtomicUsize,
}

struct SlotTable {
    slots: SlotArray,
    /// A hash is shifted right by this to get its first slot.
    shift: u32,
    /// The table that this one replaced; null for the first.
    older: *mut SlotTable,
}

/// The slot that holds a key or would take it. Found by the writer, and valid until its next
/// change.
pub(super) struct KeySlot<'a> {
    slot: &'a AtomicU64,
    hash: u32,
    /// Position of the key's newest version.
    pub(super) newest: Option<Position>,
}

impl HashIndex {
    /// An empty index sized for about `size` bytes of entries.
    pub(super) fn new(size: usize, pool: &Arc<MemtablePool>) -> HashIndex {
        let slots = (size / BYTES_PER_SLOT).next_power_of_two().max(MIN_SLOTS);
        let table = SlotTable::new(slots, pool, std::ptr::null_mut());
        HashIndex {
            pool: Arc::clone(pool),
            len: AtomicUsize::new(0),
            allocated: AtomicUsize::new(table.slots.bytes()),
            grown: AtomicUsize::new(0),
            table: AtomicPtr::new(Box::into_raw(Box::new(table))),
        }
    }

    #[inline]
    fn table(&self) -> &SlotTable {
        // SAFETY: the pointer is to a table of this index, which lives until the index is dropped.
        unsafe { &*self.table.load(Acquire) }
    }

    /// Bytes taken from the pool.
    pub(super) fn allocated(&self) -> usize {
        self.allocated.load(Relaxed)
    }

    /// Bytes allocated since the index was made.
    pub(super) fn grown(&self) -> usize {
        self.grown.load(Relaxed)
    }

    /// Prefetches the first slot of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        let table = self.table();
        prefetch(&raw const table.slots.as_slice()[table.first(hash)]);
    }

    /// The newest version of the key with this hash for whose versions `is_key` returns true.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_key: impl Fn(Position) -> bool) -> Option<Position> {
        self.table().probe(hash, is_key).1
    }

    /// Finds the key's slot for the writer, which may then [`publish`](HashIndex::publish) a newer
    /// version in it. Grows the table first if it is full.
    #[inline]
    pub(super) fn locate(&self, hash: u32, is_key: impl Fn(Position) -> bool) -> KeySlot<'_> {
        let mut table = self.table();
        // At most three quarters of the slots may be in use.
        if self.len.load(Relaxed) >= table.slots.as_slice().len() / 4 * 3 {
            self.grow();
            table = self.table();
        }
        let (slot, newest) = table.probe(hash, is_key);
        KeySlot { slot, hash, newest }
    }

    /// Makes `position` visible to readers. Its entry must be complete and never change.
    #[inline]
    pub(super) fn publish(&self, key_slot: KeySlot<'_>, position: Position) {
        if key_slot.newest.is_none() {
            self.len.store(self.len.load(Relaxed) + 1, Relaxed);
        }
        key_slot.slot.store(u64::from(key_slot.hash) << 32 | u64::from(position.get()), Release);
    }

    #[cold]
    fn grow(&self) {
        let old = self.table();
        let new = SlotTable::new(old.slots.as_slice().len() * 2, &self.pool, self.table.load(Relaxed));
        for slot in old.slots.as_slice() {
            let slot = slot.load(Relaxed);
            if slot != 0 {
                // All keys differ, so each finds a free slot.
                new.probe(hash_of(slot), |_| false).0.store(slot, Relaxed);
            }
        }
        self.allocated.fetch_add(new.slots.bytes(), Relaxed);
        self.grown.fetch_add(new.slots.bytes(), Relaxed);
        self.table.store(Box::into_raw(Box::new(new)), Release);
    }
}

impl Drop for HashIndex {
    fn drop(&mut self) {
        let mut table = self.table.load(Acquire);
        while !table.is_null() {
            // SAFETY: `new` or `grow` made the table from a box, and nothing refers to it any more.
            let dropped = unsafe { Box::from_raw(table) };
            table = dropped.older;
        }
    }
}

fn hash_of(slot: u64) -> u32 {
    (slot >> 32) as u32
}

fn position_of(slot: u64) -> Option<Position> {
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    let position = slot as u32;
    Position::new(position)
}

impl SlotTable {
    fn new(slots: usize, pool: &Arc<MemtablePool>, older: *mut SlotTable) -> SlotTable {
        SlotTable { slots: SlotArray::new(slots, pool), shift: u32::BITS - slots.ilog2(), older }
    }

    /// The key's slot and the position in it, or the free slot that the key would take. There is
    /// always a free slot.
    #[inline]
    fn probe(&self, hash: u32, is_key: impl Fn(Position) -> bool) -> (&AtomicU64, Option<Position>) {
        let slots = self.slots.as_slice();
        let mut at = self.first(hash);
        loop {
            let cell = &slots[at];
            let slot = cell.load(Acquire);
            let Some(position) = position_of(slot) else { return (cell, None) };
            if hash_of(slot) == hash && is_key(position) {
                return (cell, Some(position));
            }
            at = (at + 1) & (slots.len() - 1);
        }
    }

    /// Index of the slot where the search for a hash begins.
    #[inline]
    fn first(&self, hash: u32) -> usize {
        // The number of slots is a power of two.
        (hash >> self.shift) as usize & (self.slots.as_slice().len() - 1)
    }
}

/// Slots, initially 0.
#[cfg(not(loom))]
struct SlotArray {
    chunk: MemtableChunk,
    len: usize,
}

#[cfg(not(loom))]
impl SlotArray {
    fn new(len: usize, pool: &Arc<MemtablePool>) -> SlotArray {
        SlotArray { chunk: pool.take_zeroed(len * size_of::<AtomicU64>()), len }
    }

    #[inline]
    fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: the chunk holds `len` zeroed slots, is aligned to 64 bytes, is used for nothing
        // else, and belongs to `self`.
        unsafe { std::slice::from_raw_parts(self.chunk.start().cast().as_ptr(), self.len) }
    }

    fn bytes(&self) -> usize {
        self.chunk.len()
    }
}

/// The model checker's atomics cannot be placed in the pool's memory.
#[cfg(loom)]
struct SlotArray(Box<[AtomicU64]>);

#[cfg(loom)]
impl SlotArray {
    fn new(len: usize, _: &Arc<MemtablePool>) -> SlotArray {
        SlotArray((0..len).map(|_| AtomicU64::new(0)).collect())
    }

    fn as_slice(&self) -> &[AtomicU64] {
        &self.0
    }

    fn bytes(&self) -> usize {
        size_of_val(self.as_slice())
    }
}

/// Checks every order in which the threads' steps can become visible to each other, with tables of
/// four slots.
#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Stands for the memtable's entries: entry `i` is at position `i + 1` and holds (key,
    /// version). The model checker reports a read of an entry that may not be written yet.
    struct ModelMemtable {
        index: HashIndex,
        entries: [UnsafeCell<(u32, usize)>; 5],
        visible: AtomicUsize,
    }

    /// All keys hash to one slot, and two of them have the same hash.
    const HASHES: [u32; 4] = [5, 5, 6, 7];

    impl ModelMemtable {
        fn new() -> ModelMemtable {
            let entries = std::array::from_fn(|_| UnsafeCell::new((u32::MAX, 0)));
            ModelMemtable { index: HashIndex::new(0, &MemtablePool::new(0)), entries, visible: AtomicUsize::new(0) }
        }

        fn entry(&self, position: Position) -> (u32, usize) {
            // SAFETY: checked by the model checker.
            self.entries[position.get() as usize - 1].with(|entry| unsafe { *entry })
        }

        /// Writes entry number `version`, of `key`.
        fn write(&self, key: u32, version: usize) {
            let key_slot = self.index.locate(HASHES[key as usize], |position| self.entry(position).0 == key);
            // SAFETY: the entry is not published yet.
            self.entries[version - 1].with_mut(|entry| unsafe { *entry = (key, version) });
            let position = Position::new(u32::try_from(version).expect("small")).expect("not 0");
            self.index.publish(key_slot, position);
            self.visible.store(version, Release);
        }

        /// Looks up keys 0, 1 and 3. `keys[i]` is the key of write `i`.
        fn check(&self, keys: &[u32]) {
            let visible = self.visible.load(Acquire);
            for key in [0, 1, 3] {
                let found = self.index.find(HASHES[key as usize], |position| self.entry(position).0 == key);
                let found = found.map_or(0, |position| self.entry(position).1);
                let needed = keys[..visible].iter().rposition(|&of| of == key).map_or(0, |i| i + 1);
                assert!(found >= needed, "key {key}: version {found} instead of {needed}");
                assert!(found == 0 || keys[found - 1] == key);
            }
        }
    }

    fn check(before: usize, keys: &'static [u32]) {
        loom::model(move || {
            let written = Arc::new(ModelMemtable::new());
            let write = |written: &ModelMemtable, i: usize| written.write(keys[i], i + 1);
            (0..before).for_each(|i| write(&written, i));
            let readers = [(); 2].map(|()| {
                let written = Arc::clone(&written);
                thread::spawn(move || written.check(keys))
            });
            (before..keys.len()).for_each(|i| write(&written, i));
            readers.into_iter().for_each(|reader| reader.join().expect("it found what it must"));
        });
    }

    #[test]
    fn readers_find_what_is_visible_while_keys_come_and_are_overwritten() {
        check(1, &[0, 1, 0]);
    }

    #[test]
    fn readers_find_what_is_visible_while_the_table_grows() {
        check(3, &[0, 1, 2, 3, 0]);
    }
}
