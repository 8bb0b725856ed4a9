//! A hash index from keys to the positions of their newest versions: one writer, readers without a lock.
//!
//! ```text
//! slot = hash << 32 | position: u64, or 0
//! ```
//!
//! Open addressing with linear probing: a key's slot is the first free one from where the top bits of its hash say. 32 bits of hash
//! stand in the slot, so that hardly ever an entry is looked at in vain, and a table can be made anew, twice as large, from the slots
//! alone. What the entries are, only the callers know.
//!
//! Invariants:
//! - SlotArray go from 0 to a position, and to newer positions of the same key; a table never loses one. So a reader finds in a table whatever
//!   was in it when it came, and `Release` and `Acquire` let it see the entry behind the position.
//! - Before a table is replaced, everything is in the new one. Whoever goes on reading the old one misses only what was written after
//!   it came. Old tables stay until the index is dropped; together they are smaller than the newest.

use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use super::entries::Position;
#[cfg(not(loom))]
use crate::memory::pool::Chunk;
use crate::memory::pool::Pool;
use crate::memory::prefetch::prefetch;

/// A new table has at least so many slots.
const MIN_SLOTS: usize = if cfg!(any(loom, miri)) { 4 } else { 64 };

/// One slot for so many bytes of entries: with keys of 16 and values of 100 bytes, a memtable of 64 MiB fills 44 % of its 2^20.
const BYTES_PER_SLOT: usize = 96;

pub(super) struct HashIndex {
    pool: Arc<Pool>,
    table: AtomicPtr<SlotTable>,
    /// SlotArray in use. Only the writer's business.
    len: AtomicUsize,
    /// Bytes of all tables, and of all but the first.
    allocated: AtomicUsize,
    grown: AtomicUsize,
}

struct SlotTable {
    slots: SlotArray,
    /// The slot of a hash is the hash shifted right by this.
    shift: u32,
    /// The table that this one replaced, or null.
    older: *mut SlotTable,
}

/// Where a key is or belongs, found by the writer and valid until it does something else.
pub(super) struct KeySlot<'a> {
    slot: &'a AtomicU64,
    hash: u32,
    /// The key's newest version.
    pub(super) newest: Option<Position>,
}

impl HashIndex {
    /// An empty index for about `size` bytes of entries.
    pub(super) fn new(size: usize, pool: &Arc<Pool>) -> HashIndex {
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

    fn table(&self) -> &SlotTable {
        // SAFETY: the pointer is to a table of this index, which stays until the index is dropped.
        unsafe { &*self.table.load(Acquire) }
    }

    /// Bytes taken from the pool.
    pub(super) fn allocated(&self) -> usize {
        self.allocated.load(Relaxed)
    }

    /// Bytes beyond those that it was made with.
    pub(super) fn grown(&self) -> usize {
        self.grown.load(Relaxed)
    }

    /// Brings the first slot of a hash nearer.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        let table = self.table();
        prefetch(&raw const table.slots.as_slice()[table.first(hash)]);
    }

    /// The newest version of the key that has this hash and of whose versions `is_key` says yes.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_key: impl Fn(Position) -> bool) -> Option<Position> {
        self.table().probe(hash, is_key).1
    }

    /// As [`find`](HashIndex::find), by the writer, who may [`publish`](HashIndex::publish) a newer version there.
    #[inline]
    pub(super) fn locate(&self, hash: u32, is_key: impl Fn(Position) -> bool) -> KeySlot<'_> {
        let mut table = self.table();
        // The three quarters of the slots that may be in use.
        if self.len.load(Relaxed) >= table.slots.as_slice().len() / 4 * 3 {
            self.grow();
            table = self.table();
        }
        let (slot, newest) = table.probe(hash, is_key);
        KeySlot { slot, hash, newest }
    }

    /// From here on readers find `position`, of which nothing changes any more.
    #[inline]
    pub(super) fn publish(&self, place: KeySlot<'_>, position: Position) {
        if place.newest.is_none() {
            self.len.store(self.len.load(Relaxed) + 1, Relaxed);
        }
        place.slot.store(u64::from(place.hash) << 32 | u64::from(position.get()), Release);
    }

    #[cold]
    fn grow(&self) {
        let old = self.table();
        let new = SlotTable::new(old.slots.as_slice().len() * 2, &self.pool, self.table.load(Relaxed));
        for slot in old.slots.as_slice() {
            let slot = slot.load(Relaxed);
            if slot != 0 {
                // All keys are different, so that it goes to a free slot.
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
            // SAFETY: made from a box by `new` or `grow`, and nobody refers to it any more.
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
    fn new(slots: usize, pool: &Arc<Pool>, older: *mut SlotTable) -> SlotTable {
        SlotTable { slots: SlotArray::new(slots, pool), shift: u32::BITS - slots.ilog2(), older }
    }

    /// The slot of a key and the position in it, or the free slot that it would take. There is always a free one.
    #[inline]
    fn probe(&self, hash: u32, is_key: impl Fn(Position) -> bool) -> (&AtomicU64, Option<Position>) {
        let slots = self.slots.as_slice();
        let mut at = self.first(hash);
        loop {
            let place = &slots[at];
            let slot = place.load(Acquire);
            let Some(position) = position_of(slot) else { return (place, None) };
            if hash_of(slot) == hash && is_key(position) {
                return (place, Some(position));
            }
            at = (at + 1) & (slots.len() - 1);
        }
    }

    /// Where the search for a hash begins.
    #[inline]
    fn first(&self, hash: u32) -> usize {
        // The number of slots is a power of two.
        (hash >> self.shift) as usize & (self.slots.as_slice().len() - 1)
    }
}

/// SlotArray that are 0 at first.
#[cfg(not(loom))]
struct SlotArray {
    chunk: Chunk,
    len: usize,
}

#[cfg(not(loom))]
impl SlotArray {
    fn new(len: usize, pool: &Arc<Pool>) -> SlotArray {
        SlotArray { chunk: pool.take_zeroed(len * size_of::<AtomicU64>()), len }
    }

    #[inline]
    fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: the chunk has room for `len` slots, is aligned to 64 bytes, zeroed, used for nothing else, and `self` keeps it.
        unsafe { std::slice::from_raw_parts(self.chunk.start().cast().as_ptr(), self.len) }
    }

    fn bytes(&self) -> usize {
        self.chunk.len()
    }
}

/// The model checker's atomics cannot stand in memory of our choice.
#[cfg(loom)]
struct SlotArray(Box<[AtomicU64]>);

#[cfg(loom)]
impl SlotArray {
    fn new(len: usize, _: &Arc<Pool>) -> SlotArray {
        SlotArray((0..len).map(|_| AtomicU64::new(0)).collect())
    }

    fn as_slice(&self) -> &[AtomicU64] {
        &self.0
    }

    fn bytes(&self) -> usize {
        size_of_val(self.as_slice())
    }
}

/// Every order in which the threads' steps can become visible to each other, with tables of four slots.
#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Stands for the log: entry `i` is at position `i + 1`, and is (key, version). The model checker notices if somebody reads one that
    /// may not be written yet.
    struct ModelMemtable {
        index: HashIndex,
        entries: [UnsafeCell<(u32, usize)>; 5],
        visible: AtomicUsize,
    }

    /// All keys belong to one slot, and two of them have the same hash.
    const HASHES: [u32; 4] = [5, 5, 6, 7];

    impl ModelMemtable {
        fn new() -> ModelMemtable {
            let entries = std::array::from_fn(|_| UnsafeCell::new((u32::MAX, 0)));
            ModelMemtable { index: HashIndex::new(0, &Pool::new(0)), entries, visible: AtomicUsize::new(0) }
        }

        fn entry(&self, position: Position) -> (u32, usize) {
            // SAFETY: what the model is to show.
            self.entries[position.get() as usize - 1].with(|entry| unsafe { *entry })
        }

        /// Writes the `version`th entry, which is of `key`.
        fn write(&self, key: u32, version: usize) {
            let place = self.index.locate(HASHES[key as usize], |position| self.entry(position).0 == key);
            // SAFETY: nobody knows of it yet.
            self.entries[version - 1].with_mut(|entry| unsafe { *entry = (key, version) });
            let position = Position::new(u32::try_from(version).expect("small")).expect("not 0");
            self.index.publish(place, position);
            self.visible.store(version, Release);
        }

        /// Looks for each key that `keys` names, which is that of the `i`th write.
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
