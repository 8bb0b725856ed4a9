//! [`BlockSlots`]: for each data block of a table, a pointer by which readers find it in memory.
//!
//! A hit costs one load of a pointer. Therefore the block behind a slot must stay in place while
//! any reader is pinned that may have seen it. The types enforce that: a [`Linked`] holds the block
//! in a slot and gives it back only as an [`Unlinked`]. That is freed only as part of
//! [`RetiredBlocks`](super::reclaim::RetiredBlocks), which wait for the epoch to pass.
//!
//! ```text
//! block = counted (BlockSlots::link Linked::unlink RetiredBlocks::new RetiredBlocks::free)*
//! ```

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::CacheOwner;
use super::reclaim::Unlinked;
use crate::block::{BlockRef, BorrowedFrame, FramedBlock};
use crate::memory::epoch::{Epoch, Pin};
use crate::memory::pool::{TableArray, TableMemory};

/// One slot per data block of a table, by position in the index.
pub(crate) struct BlockSlots {
    /// The owner's, within reach of a hit.
    epoch: Arc<Epoch>,
    owner: Arc<CacheOwner>,
    /// The shard of the first block, modulo the number of shards.
    first_shard: usize,
    /// A pointer from `BlockRef::into_raw`, without a count of its own; or a mark, which is odd, as
    /// no pointer to a block is; or null.
    slots: TableArray<AtomicPtr<()>>,
}

/// The block that a slot points to, if any.
#[inline]
fn block_in(slot: *mut ()) -> Option<NonNull<()>> {
    NonNull::new(slot).filter(|slot| slot.addr().get() % 2 == 0)
}

impl BlockSlots {
    /// Slots for the `len` blocks of table `number` of a store.
    #[expect(clippy::cast_possible_truncation, reason = "any bits of the number will do")]
    pub(crate) fn new(owner: &Arc<CacheOwner>, number: u64, len: usize, memory: &Arc<TableMemory>) -> BlockSlots {
        BlockSlots {
            epoch: Arc::clone(&owner.epoch),
            owner: Arc::clone(owner),
            first_shard: owner.offset.wrapping_add(number as usize),
            slots: TableArray::new(Some(memory), (0..len).map(|_| AtomicPtr::default())),
        }
    }

    /// The store of the table.
    pub(super) fn owner(&self) -> &Arc<CacheOwner> {
        &self.owner
    }

    pub(super) fn first_shard(&self) -> usize {
        self.first_shard
    }

    /// Bytes that the slots take in memory.
    pub(crate) fn memory(&self) -> usize {
        size_of::<BlockSlots>() + size_of_val(&*self.slots)
    }

    /// The block at position `i`, if it is in memory.
    #[inline]
    pub(crate) fn get<'p>(&'p self, i: usize, pin: &'p Pin<'_>) -> Option<BorrowedFrame<'p>> {
        assert!(pin.is_of(&self.epoch), "a pin of another store");
        let raw = block_in(self.slots.get(i)?.load(Ordering::Acquire))?;
        // SAFETY: a `Linked`, an `Unlinked` or a `RetiredBlocks` owns the reference that the
        // pointer was made of. The last one gives it up only when no reader is pinned that came
        // before the block was unlinked. This reader is pinned, and stays so through `'p`.
        Some(unsafe { BorrowedFrame::from_raw(raw) })
    }

    /// Prefetches the slots at these positions.
    #[inline]
    pub(crate) fn prefetch(&self, positions: Range<usize>) {
        const PER_LINE: usize = 64 / size_of::<AtomicPtr<()>>();
        for slots in self.slots.get(positions).into_iter().flat_map(|slots| slots.chunks(PER_LINE)) {
            crate::memory::prefetch::prefetch(slots.as_ptr());
        }
    }

    /// The blocks that are in memory, by position. Blocks may leave meanwhile; without readers of
    /// the table, none come.
    pub(super) fn linked<'p>(&'p self, pin: &'p Pin<'_>) -> impl Iterator<Item = (usize, BorrowedFrame<'p>)> {
        (0..self.slots.len()).filter_map(|i| Some((i, self.get(i, pin)?)))
    }

    /// Marks the block at position `i`, unless it is in memory, and returns its former mark. A mark
    /// loses its highest bit.
    pub(super) fn mark(&self, i: usize, mark: usize) -> Option<usize> {
        let slot = self.slots.get(i)?;
        let former = slot.load(Ordering::Relaxed);
        if block_in(former).is_none() {
            let mark = ptr::without_provenance_mut(mark << 1 | 1);
            // If a racing thread stores first, its block or mark is good too.
            let _ = slot.compare_exchange(former, mark, Ordering::Relaxed, Ordering::Relaxed);
        }
        (former.addr() % 2 == 1).then_some(former.addr() >> 1)
    }

    /// Puts the block at position `i` into its slot, unless another thread has done so.
    pub(super) fn link(self: &Arc<Self>, i: usize, block: BlockRef) -> Option<Linked> {
        let position = u32::try_from(i).ok()?;
        let raw = block.into_raw();
        let linked = self.slots.get(i).is_some_and(|slot| {
            let empty = slot.load(Ordering::Relaxed);
            block_in(empty).is_none() && slot.compare_exchange(empty, raw, Ordering::Release, Ordering::Relaxed).is_ok()
        });
        // SAFETY: the pointer is from `into_raw` just above; the slot has no count of it.
        let block = unsafe { BlockRef::from_raw(NonNull::new(raw)?) };
        linked.then(|| Linked { slots: Arc::clone(self), position, block: ManuallyDrop::new(block) })
    }
}

/// A block that readers can find. It must end by [`Linked::unlink`]: dropping it leaks the block.
pub(super) struct Linked {
    slots: Arc<BlockSlots>,
    position: u32,
    block: ManuallyDrop<BlockRef>,
}

impl Linked {
    pub(super) fn block(&self) -> &FramedBlock {
        &self.block
    }

    /// The store of the block.
    pub(super) fn owner(&self) -> &Arc<CacheOwner> {
        &self.slots.owner
    }

    /// Where the block is in memory.
    pub(super) fn address(&self) -> usize {
        self.block.address()
    }

    pub(super) fn is_in(&self, slots: &BlockSlots) -> bool {
        ptr::eq(&*self.slots, slots)
    }

    /// Empties the slot.
    pub(super) fn unlink(self) -> Unlinked {
        if let Some(slot) = self.slots.slots.get(self.position as usize) {
            slot.store(ptr::null_mut(), Ordering::Relaxed);
        }
        Unlinked::new(self.block)
    }
}
