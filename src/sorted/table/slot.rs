//! [`Slots`]: for each data block of a table, the place where a reader finds it in memory.
//!
//! A reader loads a pointer, and that is all that a hit costs. So what a slot points to stays where it is while any reader is pinned that
//! may have seen it. The types see to that: what is put in is held by a [`Linked`], which gives the block back only as an [`Unlinked`],
//! and that only as part of [`Retired`] ones, which wait for the epoch to pass.
//!
//! ```text
//! block = counted (Slots::link Linked::unlink Retired::new Retired::free)*
//! ```

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::memory::epoch::{Epoch, Pin};
use crate::memory::pool::{Array, Lasting};
use crate::sorted::block::{BlockRef, Borrowed, FramedBlock};

/// One slot for each data block of a table, by its position in the index.
pub(crate) struct Slots {
    epoch: Arc<Epoch>,
    number: u64,
    /// From `BlockRef::into_raw` without a count of its own; or a mark, which is odd as no pointer to a block is; or null.
    slots: Array<AtomicPtr<()>>,
}

/// The block that a slot points to, if it does.
#[inline]
fn block_in(slot: *mut ()) -> Option<NonNull<()>> {
    NonNull::new(slot).filter(|slot| slot.addr().get() % 2 == 0)
}

impl Slots {
    pub(super) fn new(epoch: Arc<Epoch>, number: u64, len: usize, lasting: &Arc<Lasting>) -> Slots {
        Slots { epoch, number, slots: Array::new(Some(lasting), (0..len).map(|_| AtomicPtr::default())) }
    }

    /// The table's number, as far as it tells tables apart.
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
    pub(super) fn number(&self) -> usize {
        self.number as usize
    }

    /// Bytes that the slots take in memory.
    pub(super) fn memory(&self) -> usize {
        size_of::<Slots>() + size_of_val(&*self.slots)
    }

    /// The block at position `i`, if it is in memory.
    #[inline]
    pub(super) fn get<'p>(&'p self, i: usize, pin: &'p Pin<'_>) -> Option<Borrowed<'p>> {
        assert!(pin.is_of(&self.epoch), "a pin of another store");
        let raw = block_in(self.slots.get(i)?.load(Ordering::Acquire))?;
        // SAFETY: the reference that the pointer was made of is in a `Linked`, an `Unlinked` or a `Retired`. The last one gives it up only
        // when no reader is pinned that came before it was unlinked; this one is, and lives through `'p`.
        Some(unsafe { Borrowed::from_raw(raw) })
    }

    /// Brings the slots at these positions nearer.
    #[inline]
    pub(super) fn prefetch(&self, positions: Range<usize>) {
        const PER_LINE: usize = 64 / size_of::<AtomicPtr<()>>();
        for slots in self.slots.get(positions).into_iter().flat_map(|slots| slots.chunks(PER_LINE)) {
            crate::memory::prefetch::prefetch(slots.as_ptr());
        }
    }

    /// Marks the block at position `i`, unless it is in memory, and returns its former mark. Of a mark, all bits but the highest are kept.
    pub(super) fn mark(&self, i: usize, mark: usize) -> Option<usize> {
        let slot = self.slots.get(i)?;
        let former = slot.load(Ordering::Relaxed);
        if block_in(former).is_none() {
            let mark = ptr::without_provenance_mut(mark << 1 | 1);
            // Should another thread come first, its block or its mark will do.
            let _ = slot.compare_exchange(former, mark, Ordering::Relaxed, Ordering::Relaxed);
        }
        (former.addr() % 2 == 1).then_some(former.addr() >> 1)
    }

    /// Puts the block at position `i` in its slot, unless another thread has already done so.
    pub(super) fn link(self: &Arc<Self>, i: usize, block: BlockRef) -> Option<Linked> {
        let at = u32::try_from(i).ok()?;
        let raw = block.into_raw();
        let linked = self.slots.get(i).is_some_and(|slot| {
            let empty = slot.load(Ordering::Relaxed);
            block_in(empty).is_none() && slot.compare_exchange(empty, raw, Ordering::Release, Ordering::Relaxed).is_ok()
        });
        // SAFETY: the pointer is from `into_raw` just above; the slot has no count of it.
        let block = unsafe { BlockRef::from_raw(NonNull::new(raw)?) };
        linked.then(|| Linked { slots: Arc::clone(self), at, block: ManuallyDrop::new(block) })
    }
}

/// A block that readers can find. When this is dropped the block is leaked: it ends by [`Linked::unlink`].
pub(super) struct Linked {
    slots: Arc<Slots>,
    at: u32,
    block: ManuallyDrop<BlockRef>,
}

impl Linked {
    pub(super) fn block(&self) -> &FramedBlock {
        &self.block
    }

    pub(super) fn is_in(&self, slots: &Slots) -> bool {
        ptr::eq(&*self.slots, slots)
    }

    /// Empties the slot.
    pub(super) fn unlink(self) -> Unlinked {
        if let Some(slot) = self.slots.slots.get(self.at as usize) {
            slot.store(ptr::null_mut(), Ordering::Relaxed);
        }
        Unlinked(self.block)
    }
}

/// A block that no reader can find any more, but some may have found. When this is dropped the block is leaked.
pub(super) struct Unlinked(ManuallyDrop<BlockRef>);

impl Unlinked {
    pub(super) fn block(&self) -> &FramedBlock {
        &self.0
    }
}

/// Blocks that were unlinked, and the epoch from which on nobody can have found them.
pub(super) struct Retired {
    since: u64,
    blocks: Vec<Unlinked>,
}

impl Retired {
    pub(super) fn new(epoch: &Epoch, blocks: Vec<Unlinked>) -> Retired {
        Retired { since: epoch.advance(), blocks }
    }

    /// The blocks, if no reader sees them any more.
    pub(super) fn free(self, epoch: &Epoch) -> Result<impl Iterator<Item = BlockRef>, Retired> {
        // The epoch must be the one in which they were retired: all of one cache are.
        if epoch.oldest() < self.since {
            return Err(self);
        }
        Ok(self.blocks.into_iter().map(|Unlinked(block)| ManuallyDrop::into_inner(block)))
    }
}
