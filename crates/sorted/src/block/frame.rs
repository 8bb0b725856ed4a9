//! Memory of data blocks: a [`Frame`] while it is filled, a [`BlockRef`] once it holds a block.
//!
//! One allocation holds the decoded block header, the reference count and the bytes: a reader with
//! the pointer reaches the directory in one step. The first cache line holds the frame header and
//! the block's own header; the fingerprints begin in the second.
//!
//! A frame comes from a [`FrameArena`], which it keeps alive, or from the allocator. Reused frames
//! are not cleared: the next read overwrites the old bytes.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::view::{Block, BlockHeader, PREFETCH_LINES, prefetch_lines};
use crate::format::Decoded;
use crate::memory::pool::{ALIGN, FrameArena, TakeError};

/// Alignment of frames, and the unit of their length.
const LINE: usize = ALIGN;
/// Frame sizes differ by multiples of this, so that a frame fits the next block of similar size. A
/// 4 KiB block takes 4160 bytes: an odd number of cache lines spreads the first lines of all blocks
/// over all sets of the processor's caches.
const STEP: usize = 256;
/// Largest frame that a thread keeps as its spare.
const MAX_SPARE: usize = 64 << 10;

/// A data block in a frame. It exists only behind a [`BlockRef`].
#[repr(C, align(8))]
pub struct FramedBlock {
    header: FrameHeader,
    /// The rest of the frame; the block is at its front.
    frame: [u8],
}

#[repr(C, align(8))]
struct FrameHeader {
    count: AtomicUsize,
    /// From `Arc::into_raw`; null if the frame is from the allocator.
    arena: *const FrameArena,
    block: BlockHeader,
    /// Length of the frame in cache lines, this header included.
    lines: u32,
    /// The reference bit, which readers set and eviction clears, and above it the block's position
    /// in the cache.
    place: AtomicU32,
    /// Explicit padding, so that every byte of the header is initialised: an arena may later cut
    /// the same memory into other frames, whose bytes then include it.
    _filled: [u8; FILLED_LEN],
}

/// Pads the header to 48 bytes, also where `count` and `arena` take 4 bytes each.
const FILLED_LEN: usize = 2 * (8 - size_of::<usize>());

/// The reference bit of a block's place.
const REFERENCED: u32 = 1;

impl FramedBlock {
    #[inline]
    pub fn block(&self) -> Block<'_> {
        Block::new(self.header.block, &self.frame)
    }

    /// The bytes of a frame that holds no block, with what follows them in the frame.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.frame
    }

    /// Bytes of memory that the frame takes.
    pub fn memory(&self) -> usize {
        size_of_val(self)
    }

    /// Sets the reference bit.
    #[inline]
    pub fn set_referenced(&self) {
        // Store only if clear, so that readers of one block keep sharing its cache line.
        if self.header.place.load(Ordering::Relaxed) & REFERENCED == 0 {
            self.header.place.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Clears the reference bit and returns its former value.
    pub fn take_referenced(&self) -> bool {
        let referenced = self.header.place.load(Ordering::Relaxed) & REFERENCED != 0;
        if referenced {
            self.header.place.fetch_and(!REFERENCED, Ordering::Relaxed);
        }
        referenced
    }

    /// Notes the block's position in the cache, and clears the reference bit. Returns whether a
    /// position so great can be noted.
    pub fn set_position(&self, position: usize) -> bool {
        let place = u32::try_from(position).ok().filter(|place| place.leading_zeros() > 0).map(|place| place << 1);
        place.inspect(|place| self.header.place.store(*place, Ordering::Relaxed)).is_some()
    }

    /// The position noted last.
    pub fn position(&self) -> usize {
        (self.header.place.load(Ordering::Relaxed) >> 1) as usize
    }
}

/// A raw pointer to a frame. It owns nothing.
///
/// The pointer has the provenance of the whole frame, which begins with a `FrameHeader` that holds
/// its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FramePtr(NonNull<FrameHeader>);

impl FramePtr {
    fn layout(lines: u32) -> Layout {
        match Layout::from_size_align(lines as usize * LINE, LINE) {
            Ok(layout) => layout,
            // Unreachable in practice: a block's length is checked against its file before it is
            // read.
            Err(_) => alloc::handle_alloc_error(Layout::new::<FrameHeader>()),
        }
    }

    /// Allocates a frame whose bytes after the header are zero.
    fn allocate(lines: u32) -> FramePtr {
        let layout = FramePtr::layout(lines);
        // SAFETY: `lines` is at least 1, so the layout has at least the size of a header.
        let Some(start) = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }) else {
            alloc::handle_alloc_error(layout)
        };
        // SAFETY: the memory has `lines` lines, is zeroed, and is not shared yet.
        unsafe { FramePtr::init(start, lines, ptr::null()) }
    }

    /// Writes a header with a count of 1.
    ///
    /// SAFETY: `start` must point to `lines` lines, at least one, which are initialised and which
    /// nothing else uses.
    unsafe fn init(start: NonNull<u8>, lines: u32, arena: *const FrameArena) -> FramePtr {
        let start = start.cast::<FrameHeader>();
        let block = BlockHeader::default();
        let (count, place) = (AtomicUsize::new(1), AtomicU32::new(0));
        let header = FrameHeader { count, arena, block, lines, place, _filled: [0; FILLED_LEN] };
        // SAFETY: a header fits into a line and needs no more than its alignment.
        unsafe { start.write(header) };
        FramePtr(start)
    }

    /// SAFETY: the frame must not have been freed.
    unsafe fn lines(self) -> u32 {
        // SAFETY: the header was written when the frame was made; its `lines` never change.
        unsafe { (*self.0.as_ptr()).lines }
    }

    /// SAFETY: the frame must not have been freed.
    unsafe fn block(self) -> *mut FramedBlock {
        // SAFETY: as above.
        let capacity = unsafe { self.lines() } as usize * LINE - size_of::<FrameHeader>();
        ptr::slice_from_raw_parts_mut(self.0.as_ptr().cast::<u8>(), capacity) as *mut FramedBlock
    }

    /// SAFETY: the caller must hold the only reference and not use it again.
    unsafe fn free(self) {
        // SAFETY: as above. A frame from an arena holds a count of the arena and returns to it. Any
        // other frame was allocated with this layout.
        unsafe {
            let (lines, arena) = (self.lines(), (*self.0.as_ptr()).arena);
            if arena.is_null() {
                alloc::dealloc(self.0.as_ptr().cast(), FramePtr::layout(lines));
            } else {
                Arc::from_raw(arena).put(self.0.cast(), lines as usize * LINE);
            }
        }
    }
}

/// An exclusively owned buffer for a block that is still to be read or decoded.
pub struct Frame(FramePtr);

// SAFETY: a frame exclusively owns plain memory.
unsafe impl Send for Frame {}
// SAFETY: as above; a shared reference does not write.
unsafe impl Sync for Frame {}

thread_local! {
    /// The frame that this thread used last. Blocks that are read but not cached reuse it one after
    /// another, so it stays in the processor's caches.
    static SPARE: Cell<Option<Frame>> = const { Cell::new(None) };
}

/// Length in lines of a frame for `len` bytes.
fn lines_for(len: usize) -> u32 {
    let lines = len.next_multiple_of(STEP) / LINE + 1;
    // Blocks above 256 GiB do not exist: a block's length is checked against its file before it is
    // read.
    u32::try_from(lines).unwrap_or(u32::MAX)
}

impl Frame {
    /// A frame for a short-lived block of `len` bytes, trailer included: the thread's spare one if
    /// it suits, else from the allocator.
    pub fn new(len: usize) -> Frame {
        let spare = SPARE.try_with(Cell::take).ok().flatten().filter(|spare| spare.suits(len));
        spare.unwrap_or_else(|| Frame(FramePtr::allocate(lines_for(len))))
    }

    /// A frame for a block that stays in the cache: from the arena, or from the allocator if the
    /// arena has no room. `None` if the arena must grow first.
    pub fn new_in(arena: &Arc<FrameArena>, len: usize) -> Option<Frame> {
        let lines = lines_for(len);
        let frame = match arena.take(lines as usize * LINE) {
            // SAFETY: the arena's memory is initialised, and this piece belongs to nobody else.
            Ok(start) => unsafe { FramePtr::init(start, lines, Arc::into_raw(Arc::clone(arena))) },
            Err(TakeError::Full) => FramePtr::allocate(lines),
            Err(TakeError::NotYet) => return None,
        };
        Some(Frame(frame))
    }

    /// Bytes of memory that a new frame for `len` bytes takes.
    pub fn memory_for(len: usize) -> usize {
        lines_for(len) as usize * LINE
    }

    /// Keeps the frame as this thread's spare, if it is small and not from an arena.
    pub fn spare(self) {
        if self.memory() <= MAX_SPARE && !self.is_from_arena() {
            // Fails if the thread is ending; the frame is freed then.
            let _ = SPARE.try_with(|spare| spare.set(Some(self)));
        }
    }

    fn is_from_arena(&self) -> bool {
        // SAFETY: the frame has not been freed.
        unsafe { !(*self.0.0.as_ptr()).arena.is_null() }
    }

    /// Whether the frame fits a block of `len` bytes, trailer included, without much waste.
    pub fn suits(&self, len: usize) -> bool {
        let capacity = self.memory() - size_of::<FrameHeader>();
        len <= capacity && capacity <= len + len / 8 + STEP + LINE
    }

    /// Bytes of memory that the frame takes.
    pub fn memory(&self) -> usize {
        // SAFETY: the frame has not been freed.
        unsafe { self.0.lines() as usize * LINE }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes after the header are initialised, and nothing else refers to them.
        unsafe {
            let block = self.0.block();
            &mut (*block).frame
        }
    }

    /// Turns the frame into the block that its first `len` bytes encode.
    pub fn into_block(self, len: usize) -> Decoded<BlockRef> {
        // SAFETY: nothing else refers to the frame.
        let block = unsafe { &mut *self.0.block() };
        block.header.block = BlockHeader::decode(&block.frame[..len.min(block.frame.len())])?;
        *block.header.place.get_mut() = 0;
        Ok(BlockRef(ManuallyDrop::new(self).0))
    }
}

impl Frame {
    /// The frame as it is, to be shared. As a block, it is empty.
    pub fn into_bytes(self) -> BlockRef {
        // SAFETY: nothing else refers to the frame.
        let block = unsafe { &mut *self.0.block() };
        block.header.block = BlockHeader::default();
        *block.header.place.get_mut() = 0;
        BlockRef(ManuallyDrop::new(self).0)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: nothing else refers to the frame.
        unsafe { self.0.free() }
    }
}

/// A counted reference to a block, in one thin pointer.
pub struct BlockRef(FramePtr);

// SAFETY: a shared block changes only through atomics, and its count is atomic.
unsafe impl Send for BlockRef {}
// SAFETY: as above.
unsafe impl Sync for BlockRef {}

impl BlockRef {
    /// Copies the block in `bytes` into a frame.
    #[cfg(test)]
    pub fn copy_of(bytes: &[u8]) -> Decoded<BlockRef> {
        let mut frame = Frame::new(bytes.len());
        frame.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        frame.into_block(bytes.len())
    }

    /// Drops the reference; returns the frame if it was the last one.
    pub fn into_frame(self) -> Option<Frame> {
        let frame = ManuallyDrop::new(self).0;
        // Release, then acquire, as in `Arc`: the last owner sees what the others did before they
        // dropped theirs. A load and no fence: ThreadSanitizer does not model fences.
        // SAFETY: this reference counts until here.
        if unsafe { (*frame.0.as_ptr()).count.fetch_sub(1, Ordering::Release) } != 1 {
            return None;
        }
        // SAFETY: nothing else refers to the frame any more.
        unsafe {
            (*frame.0.as_ptr()).count.load(Ordering::Acquire);
            (*frame.0.as_ptr()).count = AtomicUsize::new(1);
        }
        Some(Frame(frame))
    }

    /// Where the frame is in memory. Does not read it.
    pub fn address(&self) -> usize {
        self.0.0.addr().get()
    }

    /// The pointer, which takes over this reference's count.
    pub fn into_raw(self) -> *mut () {
        ManuallyDrop::new(self).0.0.as_ptr().cast()
    }

    /// # Safety
    ///
    /// `raw` must come from [`BlockRef::into_raw`] and become a reference only once.
    pub unsafe fn from_raw(raw: NonNull<()>) -> BlockRef {
        BlockRef(FramePtr(raw.cast()))
    }

    /// An uncounted reference.
    pub fn borrow(&self) -> BorrowedFrame<'_> {
        BorrowedFrame(self.0, PhantomData)
    }
}

impl Deref for BlockRef {
    type Target = FramedBlock;

    #[inline]
    fn deref(&self) -> &FramedBlock {
        // SAFETY: this reference is counted, and a shared block is not changed.
        unsafe { &*self.0.block() }
    }
}

impl Clone for BlockRef {
    fn clone(&self) -> BlockRef {
        self.borrow().counted()
    }
}

impl Drop for BlockRef {
    fn drop(&mut self) {
        // SAFETY: `self` is not used again.
        let frame = unsafe { ptr::read(self) }.into_frame();
        if let Some(frame) = frame {
            frame.spare();
        }
    }
}

/// An uncounted reference. A count held elsewhere, or the epoch, keeps the block alive for `'a`.
#[derive(Clone, Copy)]
pub struct BorrowedFrame<'a>(FramePtr, PhantomData<&'a FramedBlock>);

impl<'a> BorrowedFrame<'a> {
    /// # Safety
    ///
    /// `raw` must come from [`BlockRef::into_raw`], and its count must be held throughout
    /// `'a`.
    pub unsafe fn from_raw(raw: NonNull<()>) -> BorrowedFrame<'a> {
        BorrowedFrame(FramePtr(raw.cast()), PhantomData)
    }

    #[inline]
    pub fn framed(self) -> &'a FramedBlock {
        // SAFETY: a counted reference outlives `'a`.
        unsafe { &*self.0.block() }
    }

    /// Prefetches the frame header and the lines of the block that a search reads first.
    #[inline]
    pub fn prefetch(self) {
        prefetch_lines(self.0.0.as_ptr().cast(), PREFETCH_LINES);
    }

    /// Takes a counted reference.
    pub fn counted(self) -> BlockRef {
        // SAFETY: a counted reference outlives `'a`, so the count is not 0.
        let before = unsafe { (*self.0.0.as_ptr()).count.fetch_add(1, Ordering::Relaxed) };
        // As in `Arc`: leaked references must not overflow the count.
        if before > isize::MAX.cast_unsigned() {
            std::process::abort();
        }
        BlockRef(self.0)
    }
}

const _: () = {
    // After 16 bytes of the block's own header, the fingerprints begin on a cache line.
    assert!(size_of::<FrameHeader>() + super::HEADER_LEN == LINE);
    // No padding but `_filled`.
    assert!(size_of::<BlockHeader>() == 24);
    assert!(size_of::<FrameHeader>() == 2 * size_of::<usize>() + 24 + 4 + 4 + FILLED_LEN);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockBuilder;
    use crate::format::key::ValueKind;

    fn bytes(value: &[u8]) -> Vec<u8> {
        let mut builder = BlockBuilder::new();
        builder.add(b"key", 7, ValueKind::Put, value, 3, usize::MAX);
        let mut bytes = Vec::new();
        builder.finish(&mut bytes);
        bytes
    }

    #[test]
    fn a_page_sized_block_takes_an_odd_number_of_cache_lines() {
        for len in [3841, 4000, 4091, 4096] {
            assert_eq!(Frame::new(len).memory(), 4160);
        }
        assert_eq!(Frame::new(4097).memory(), 4352 + 64);
        assert!(Frame::new(4096).suits(3900) && !Frame::new(4096).suits(4200) && !Frame::new(4096).suits(3000));
    }

    #[test]
    fn a_frame_is_reused_after_the_last_reference_is_dropped() {
        let block = BlockRef::copy_of(&bytes(b"value")).unwrap();
        assert!(block.block().bytes().ends_with(b"value"));
        let (other, borrowed) = (block.clone(), block.borrow());
        assert_eq!(borrowed.framed().block().bytes(), other.block().bytes());
        assert!(other.into_frame().is_none());
        let mut frame = block.into_frame().unwrap();
        let bytes = bytes(b"other");
        frame.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        let block = frame.into_block(bytes.len()).unwrap();
        assert!(block.block().bytes().ends_with(b"other"));
        assert_eq!(block.block().len(), 1);
    }

    #[test]
    fn a_raw_reference_counts() {
        let block = BlockRef::copy_of(&bytes(b"value")).unwrap();
        let raw = NonNull::new(block.clone().into_raw()).unwrap();
        // SAFETY: the count of `raw` is still held.
        let counted = unsafe { BorrowedFrame::from_raw(raw) }.counted();
        assert!(counted.into_frame().is_none() && block.into_frame().is_none());
        // SAFETY: `raw` becomes a reference only here.
        let last = unsafe { BlockRef::from_raw(raw) };
        assert!(last.block().bytes().ends_with(b"value"));
        assert!(last.into_frame().is_some());
    }

    #[test]
    fn bytes_that_are_no_block_free_their_frame() {
        assert!(BlockRef::copy_of(b"no block").is_err());
        assert!(BlockRef::copy_of(b"").is_err());
    }

    #[test]
    fn threads_share_a_block_and_the_last_frees_it() {
        let block = BlockRef::copy_of(&bytes(b"value")).unwrap();
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        let frames: usize = std::thread::scope(|scope| {
            let share = |block: BlockRef| {
                move || {
                    for _ in 0..rounds {
                        assert!(block.clone().block().bytes().ends_with(b"value"));
                    }
                    usize::from(block.into_frame().is_some())
                }
            };
            let threads = [scope.spawn(share(block.clone())), scope.spawn(share(block.clone()))];
            let last = share(block)();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>() + last
        });
        assert_eq!(frames, 1);
    }
}
