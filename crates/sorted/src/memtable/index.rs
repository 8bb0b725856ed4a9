//! [`HashIndex`]: a lock-free hash table from keys to the positions of their newest versions. One
//! writer at a time; readers take no lock.
//!
//! ```text
//! slot = hash << 32 | position: u64, or 0
//! ```
//!
//! The top bits of the hash choose a part, and the next ones the slot where a search in the part's
//! table begins: open addressing with linear probing. A slot holds 32 bits of hash, so that an
//! entry with another key is hardly ever read, and a table can be rebuilt at twice the size from
//! its slots alone. The index does not read entries; only its callers do.
//!
//! Parts grow one by one, each in 0.4 ms. Gain: the longest put of a memtable that outgrows its
//! 2^20 slots took 5 to 40 ms, because a table of 16 MiB was made and filled at once. To remove
//! them, have one part.
//!
//! Invariants:
//! - A slot changes from 0 to a position, and then only to newer positions of the same key; a table
//!   never loses a slot. A reader thus finds all that was in the table when it loaded the table.
//!   `Release` and `Acquire` make the entry behind a position visible.
//! - Before a table is replaced, the new one holds everything. A reader that continues in the old
//!   table misses only entries written after it loaded the table. Old tables stay until the index
//!   is dropped; together they are smaller than the newest.

#[cfg(not(loom))]
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use super::entries::Position;
use crate::memory::pool::MemtablePool;
#[cfg(not(loom))]
use crate::memory::pool::{CHUNK_LEN, MemtableChunk};
use crate::memory::prefetch::prefetch;
#[cfg(not(loom))]
use crate::sync::Mutex;

/// Fewest slots of a table.
const MIN_SLOTS: usize = if cfg!(any(loom, miri)) { 4 } else { 64 };

/// Bytes of entries per slot of a new index. With keys of 16 and values of 100 bytes, a memtable of
/// 64 MiB fills 44 % of its 2^20 slots.
const BYTES_PER_SLOT: usize = 96;

/// An index has so many parts, fewer if each would have fewer slots than the least, more if each
/// would have more slots than others.
const PARTS: usize = 16;
const LEAST_PART_SLOTS: usize = 1 << 11;
const PART_SLOTS: usize = 1 << 16;
const MAX_PARTS: usize = 1 << 8;

pub(super) struct HashIndex {
    /// The table of each part. There are 2^n of them, and `part_shift` is 32 - n.
    parts: Box<[AtomicPtr<SlotTable>]>,
    /// A hash is shifted right by this to get its part.
    part_shift: u32,
    memory: SlotMemory,
    /// Bytes of all tables but the first of each part.
    grown: AtomicUsize,
}

struct SlotTable {
    slots: SlotArray,
    /// A hash is shifted right by this to get its first slot, which follows by cutting off the
    /// part's number.
    shift: u32,
    /// Slots in use. Only the writer uses this.
    used: AtomicUsize,
    /// With so many in use it is replaced: three quarters.
    full_at: usize,
    /// The table that this one replaced; null for the first.
    older: *mut SlotTable,
}

/// The slot that holds a key or would take it. Found by the writer, and valid until its next
/// change.
pub(super) struct KeySlot<'a> {
    table: &'a SlotTable,
    slot: &'a AtomicU64,
    hash: u32,
    /// Position of the key's newest version.
    pub(super) newest: Option<Position>,
}

impl HashIndex {
    /// An empty index sized for about `size` bytes of entries.
    pub(super) fn new(size: usize, pool: &Arc<MemtablePool>) -> HashIndex {
        let slots = (size / BYTES_PER_SLOT).next_power_of_two().max(MIN_SLOTS);
        let count = (slots / LEAST_PART_SLOTS).clamp(1, PARTS).max(slots / PART_SLOTS).min(MAX_PARTS);
        let memory = SlotMemory::new(slots, pool);
        let table = |_| SlotTable::new(memory.take(slots / count), count, std::ptr::null_mut());
        let parts = (0..count).map(table).map(|table| AtomicPtr::new(Box::into_raw(Box::new(table)))).collect();
        HashIndex { parts, part_shift: u32::BITS - count.ilog2(), memory, grown: AtomicUsize::new(0) }
    }

    /// The part of a hash.
    #[expect(clippy::cast_possible_truncation, reason = "a shifted u32")]
    #[inline]
    fn part(&self, hash: u32) -> &AtomicPtr<SlotTable> {
        // As 64 bits: the only part of a small index is found by shifting all 32 out.
        let part = (u64::from(hash) >> self.part_shift) as usize;
        debug_assert!(part < self.parts.len());
        // SAFETY: there are 2^(32 - part_shift) parts, and `hash` is less than 2^32.
        unsafe { self.parts.get_unchecked(part) }
    }

    /// The table of a hash.
    #[inline]
    fn table(&self, hash: u32) -> &SlotTable {
        // SAFETY: the pointer is to a table of this index, which lives until the index is dropped.
        unsafe { &*self.part(hash).load(Acquire) }
    }

    /// Bytes taken from the pool.
    pub(super) fn allocated(&self) -> usize {
        self.memory.allocated()
    }

    /// Bytes of tables made since the index was.
    pub(super) fn grown(&self) -> usize {
        self.grown.load(Relaxed)
    }

    /// Prefetches the first slot of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        let table = self.table(hash);
        prefetch(&raw const table.slots.as_slice()[table.first(hash)]);
    }

    /// The newest version of the key with this hash for whose versions `is_key` returns true.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_key: impl Fn(Position) -> bool) -> Option<Position> {
        self.table(hash).probe(hash, is_key).1
    }

    /// Finds the key's slot for the writer, which may then [`publish`](HashIndex::publish) a newer
    /// version in it. Grows the part first if it is full.
    #[inline]
    pub(super) fn locate(&self, hash: u32, is_key: impl Fn(Position) -> bool) -> KeySlot<'_> {
        let mut table = self.table(hash);
        if table.used.load(Relaxed) >= table.full_at {
            self.grow(hash);
            table = self.table(hash);
        }
        let (slot, newest) = table.probe(hash, is_key);
        KeySlot { table, slot, hash, newest }
    }

    /// Makes `position` visible to readers. Its entry must be complete and never change.
    #[inline]
    pub(super) fn publish(&self, key_slot: KeySlot<'_>, position: Position) {
        if key_slot.newest.is_none() {
            let used = &key_slot.table.used;
            used.store(used.load(Relaxed) + 1, Relaxed);
        }
        key_slot.slot.store(u64::from(key_slot.hash) << 32 | u64::from(position.get()), Release);
    }

    /// Grows the part of a hash.
    #[cold]
    fn grow(&self, hash: u32) {
        let old = self.table(hash);
        let slots = self.memory.take(old.slots.as_slice().len() * 2);
        self.grown.fetch_add(slots.bytes(), Relaxed);
        let new = SlotTable::new(slots, self.parts.len(), self.part(hash).load(Relaxed));
        new.used.store(old.used.load(Relaxed), Relaxed);
        for slot in old.slots.as_slice() {
            let slot = slot.load(Relaxed);
            if slot != 0 {
                // All keys differ, so each finds a free slot.
                new.probe(hash_of(slot), |_| false).0.store(slot, Relaxed);
            }
        }
        self.part(hash).store(Box::into_raw(Box::new(new)), Release);
    }
}

impl Drop for HashIndex {
    fn drop(&mut self) {
        for part in &self.parts {
            let mut table = part.load(Acquire);
            while !table.is_null() {
                // SAFETY: `new` or `grow` made the table from a box, and nothing refers to it any
                // more.
                let dropped = unsafe { Box::from_raw(table) };
                table = dropped.older;
            }
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
    /// The table of one of `parts` parts.
    fn new(slots: SlotArray, parts: usize, older: *mut SlotTable) -> SlotTable {
        let len = slots.as_slice().len();
        let shift = u32::BITS.saturating_sub(parts.ilog2() + len.ilog2());
        SlotTable { slots, shift, used: AtomicUsize::new(0), full_at: len / 4 * 3, older }
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

/// Slots in the memory of an index.
#[cfg(not(loom))]
struct SlotArray {
    start: NonNull<AtomicU64>,
    len: usize,
}

#[cfg(not(loom))]
impl SlotArray {
    #[inline]
    fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: `SlotMemory::take` returned these slots for this use alone, initialised, and they
        // live until the index is dropped, which has this array.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<AtomicU64>()
    }
}

/// The memory of an index. Only the writer takes from it.
#[cfg(not(loom))]
struct SlotMemory {
    pool: Arc<MemtablePool>,
    chunks: Mutex<SlotChunks>,
    /// Bytes taken from the pool. The pool may have somebody ask for them while `chunks` is locked.
    allocated: AtomicUsize,
}

#[cfg(not(loom))]
struct SlotChunks {
    all: Vec<MemtableChunk>,
    /// Bytes of each, unless a table needs more: tables share them.
    len: usize,
    /// Bytes of the last one that are taken.
    used: usize,
}

#[cfg(not(loom))]
impl SlotMemory {
    /// Memory of an index that begins with `slots` slots.
    fn new(slots: usize, pool: &Arc<MemtablePool>) -> SlotMemory {
        let len = (slots * size_of::<AtomicU64>()).min(CHUNK_LEN);
        let chunks = Mutex::new(SlotChunks { all: Vec::new(), len, used: 0 });
        SlotMemory { pool: Arc::clone(pool), chunks, allocated: AtomicUsize::new(0) }
    }

    /// An array of `slots` slots, initially 0.
    fn take(&self, slots: usize) -> SlotArray {
        let bytes = slots * size_of::<AtomicU64>();
        let mut chunks = self.chunks.lock();
        if chunks.all.last().is_none_or(|last| last.len() - chunks.used < bytes) {
            let chunk = self.pool.take_zeroed(bytes.max(chunks.len));
            self.allocated.fetch_add(chunk.len(), Relaxed);
            chunks.all.push(chunk);
            chunks.used = 0;
        }
        let at = chunks.used;
        chunks.used += bytes;
        let Some(last) = chunks.all.last() else { unreachable!("a chunk was added") };
        // SAFETY: the last chunk has room for `bytes` bytes from here on. Lengths are powers of two
        // of slots: they are aligned as the chunk is, to 8 bytes and more.
        SlotArray { start: unsafe { last.start().add(at) }.cast(), len: slots }
    }

    fn allocated(&self) -> usize {
        self.allocated.load(Relaxed)
    }
}

/// The model checker's atomics cannot be placed in the pool's memory.
#[cfg(loom)]
struct SlotArray(Box<[AtomicU64]>);

#[cfg(loom)]
impl SlotArray {
    fn as_slice(&self) -> &[AtomicU64] {
        &self.0
    }

    fn bytes(&self) -> usize {
        size_of_val(self.as_slice())
    }
}

#[cfg(loom)]
struct SlotMemory;

#[cfg(loom)]
impl SlotMemory {
    fn new(_: usize, _: &Arc<MemtablePool>) -> SlotMemory {
        SlotMemory
    }

    fn take(&self, slots: usize) -> SlotArray {
        SlotArray((0..slots).map(|_| AtomicU64::new(0)).collect())
    }

    fn allocated(&self) -> usize {
        0
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
