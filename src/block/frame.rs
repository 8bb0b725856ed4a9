//! Where the cache and readers keep a data block: [`Frame`] while it is filled, [`BlockRef`] from then on.
//!
//! One allocation holds what is known of the block, the count of its references, and its bytes, so that a reader who has the pointer
//! comes to the directory without another step. The first line is the head and the block's own header, the fingerprints begin with the
//! second.
//!
//! A frame is from an [`Arena`], which it keeps, or from the allocator. One that has been used before is used again as it is: what it held
//! stays in it, and is overwritten by a read.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::kept::LentBlock;
use super::view::{Block, PREFETCHED, Parts, prefetch_lines};
use crate::format::Decoded;
use crate::pool::{ALIGN, Arena, Short};

/// Frames are aligned like cache lines, and a multiple of them long.
const LINE: usize = ALIGN;
/// Frames come in sizes a multiple of this apart, so that one fits the next block of its kind too. A block of a page takes 4160 bytes: an
/// odd number of lines, which spreads the first lines of all blocks over all sets of the processor's caches.
const STEP: usize = 256;
/// No thread keeps a larger frame for itself.
const MAX_SPARE: usize = 64 << 10;

/// A data block in a frame, with what is known of it. It exists only behind a [`BlockRef`].
#[repr(C, align(8))]
pub(crate) struct FramedBlock {
    head: Head,
    /// All of the frame; the block is at its front.
    frame: [u8],
}

#[repr(C, align(8))]
struct Head {
    count: AtomicUsize,
    /// From `Arc::into_raw`; null if the frame is from the allocator.
    arena: *const Arena,
    parts: Parts,
    /// Of the frame, this head included.
    lines: u32,
    /// Set by readers, cleared by the cache.
    referenced: AtomicBool,
    /// No byte of a head is without a value: in an arena, a frame that is cut otherwise may have it among its bytes later.
    _filled: [u8; 3],
}

impl FramedBlock {
    #[inline]
    pub(crate) fn block(&self) -> Block<'_> {
        Block::new(self.head.parts, &self.frame)
    }

    /// Bytes that the block takes in memory.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(self)
    }

    /// Notes that the block was asked for.
    #[inline]
    pub(crate) fn set_referenced(&self) {
        // Stored only once, so that readers of one block share its line.
        if !self.head.referenced.load(Ordering::Relaxed) {
            self.head.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the block was asked for since this was asked last.
    pub(crate) fn take_referenced(&self) -> bool {
        let referenced = self.head.referenced.load(Ordering::Relaxed);
        if referenced {
            self.head.referenced.store(false, Ordering::Relaxed);
        }
        referenced
    }
}

/// The place of a frame. It owns nothing.
///
/// The pointer has the provenance of the whole frame, which begins with a `Head` and is as many lines long as that says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(NonNull<Head>);

impl Place {
    fn layout(lines: u32) -> Layout {
        match Layout::from_size_align(lines as usize * LINE, LINE) {
            Ok(layout) => layout,
            // Nothing that long is read: a block is compared with its file first.
            Err(_) => alloc::handle_alloc_error(Layout::new::<Head>()),
        }
    }

    /// Zeroed bytes behind a head.
    fn allocate(lines: u32) -> Place {
        let layout = Place::layout(lines);
        // SAFETY: the layout has the size of a head at least.
        let Some(start) = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }) else {
            alloc::handle_alloc_error(layout)
        };
        // SAFETY: they are as many lines, and nobody else knows of them.
        unsafe { Place::begin(start, lines, ptr::null()) }
    }

    /// Writes a head with a count of 1.
    ///
    /// SAFETY: `start` must be that of `lines` lines, at least one, which are initialised and which nobody else uses.
    unsafe fn begin(start: NonNull<u8>, lines: u32, arena: *const Arena) -> Place {
        let start = start.cast::<Head>();
        let parts = Parts::default();
        let (count, referenced) = (AtomicUsize::new(1), AtomicBool::new(false));
        let head = Head { count, arena, parts, lines, referenced, _filled: [0; 3] };
        // SAFETY: a head fits into a line, and is aligned like one.
        unsafe { start.write(head) };
        Place(start)
    }

    /// SAFETY: the frame must not have been freed.
    unsafe fn lines(self) -> u32 {
        // SAFETY: the head was written when the frame was made, and this never changes.
        unsafe { (*self.0.as_ptr()).lines }
    }

    /// SAFETY: the frame must not have been freed.
    unsafe fn block(self) -> *mut FramedBlock {
        // SAFETY: as above.
        let capacity = unsafe { self.lines() } as usize * LINE - size_of::<Head>();
        ptr::slice_from_raw_parts_mut(self.0.as_ptr().cast::<u8>(), capacity) as *mut FramedBlock
    }

    /// SAFETY: the caller must have the only reference, and use it no more.
    unsafe fn free(self) {
        // SAFETY: as above. A frame from an arena has a count of that, and goes back to it; otherwise the layout is that of the allocation.
        unsafe {
            let (lines, arena) = (self.lines(), (*self.0.as_ptr()).arena);
            if arena.is_null() {
                alloc::dealloc(self.0.as_ptr().cast(), Place::layout(lines));
            } else {
                Arc::from_raw(arena).put(self.0.cast(), lines as usize * LINE);
            }
        }
    }
}

/// Room for a block, before it is one. Nobody else sees it.
pub(crate) struct Frame(Place);

// SAFETY: a frame is plain memory, which it alone refers to.
unsafe impl Send for Frame {}
// SAFETY: as above; through a shared reference nothing is written.
unsafe impl Sync for Frame {}

thread_local! {
    /// A frame that the thread has used last and nobody else has use for: blocks that are read and not kept follow each other in it, and
    /// it stays in the processor's caches.
    static SPARE: Cell<Option<Frame>> = const { Cell::new(None) };
}

/// Lines of a frame for `len` bytes.
fn lines_for(len: usize) -> u32 {
    let lines = len.next_multiple_of(STEP) / LINE + 1;
    // What is longer than 256 GiB is none, and no file holds it: a block is compared with its file before it is read.
    u32::try_from(lines).unwrap_or(u32::MAX)
}

impl Frame {
    /// A frame for a block of at least `len` bytes, trailer included, for a while.
    pub(crate) fn new(len: usize) -> Frame {
        let spare = SPARE.try_with(Cell::take).ok().flatten().filter(|spare| spare.suits(len));
        spare.unwrap_or_else(|| Frame(Place::allocate(lines_for(len))))
    }

    /// The same for long, if possible in the arena; `None` if that has to grow first.
    pub(crate) fn new_in(arena: &Arc<Arena>, len: usize) -> Option<Frame> {
        let lines = lines_for(len);
        let place = match arena.take(lines as usize * LINE) {
            // SAFETY: nobody else has what the arena gives, which is always initialised.
            Ok(start) => unsafe { Place::begin(start, lines, Arc::into_raw(Arc::clone(arena))) },
            Err(Short::OfRoom) => Place::allocate(lines),
            Err(Short::ForNow) => return None,
        };
        Some(Frame(place))
    }

    /// Bytes that a new frame for `len` bytes takes.
    pub(crate) fn memory_for(len: usize) -> usize {
        lines_for(len) as usize * LINE
    }

    /// Keeps the frame for the next block that this thread reads.
    pub(crate) fn spare(self) {
        if self.memory() <= MAX_SPARE && !self.is_from_arena() {
            // A thread that is ending has use for none.
            let _ = SPARE.try_with(|spare| spare.set(Some(self)));
        }
    }

    fn is_from_arena(&self) -> bool {
        // SAFETY: the frame has not been freed.
        unsafe { !(*self.0.0.as_ptr()).arena.is_null() }
    }

    /// Whether a block of `len` bytes, trailer included, fits without wasting much.
    pub(crate) fn suits(&self, len: usize) -> bool {
        let capacity = self.memory() - size_of::<Head>();
        len <= capacity && capacity <= len + len / 8 + STEP + LINE
    }

    /// Bytes that the frame takes.
    pub(crate) fn memory(&self) -> usize {
        // SAFETY: the frame has not been freed.
        unsafe { self.0.lines() as usize * LINE }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes behind the head were initialised when they were taken, and nobody else refers to them.
        unsafe {
            let block = self.0.block();
            &mut (*block).frame
        }
    }

    /// What the first `len` bytes hold, as a block.
    pub(crate) fn into_block(self, len: usize) -> Decoded<BlockRef> {
        // SAFETY: nobody else refers to the frame.
        let block = unsafe { &mut *self.0.block() };
        block.head.parts = Parts::decode(&block.frame[..len.min(block.frame.len())])?;
        *block.head.referenced.get_mut() = false;
        Ok(BlockRef(ManuallyDrop::new(self).0))
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: nobody else refers to the frame.
        unsafe { self.0.free() }
    }
}

/// A counted reference to a block, as thin as a pointer.
pub(crate) struct BlockRef(Place);

// SAFETY: what a block holds is not changed but by atomics, and its count is one.
unsafe impl Send for BlockRef {}
// SAFETY: as above.
unsafe impl Sync for BlockRef {}

impl BlockRef {
    /// The block that stands in `bytes`.
    #[cfg(test)]
    pub(crate) fn copy_of(bytes: &[u8]) -> Decoded<BlockRef> {
        let mut frame = Frame::new(bytes.len());
        frame.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        frame.into_block(bytes.len())
    }

    /// The frame, if this was the last reference.
    pub(crate) fn into_frame(self) -> Option<Frame> {
        let place = ManuallyDrop::new(self).0;
        // As in `Arc`: the last reference sees what the others did before they let go. A load, and
        // no fence: ThreadSanitizer does not model fences.
        // SAFETY: this reference counts until here.
        if unsafe { (*place.0.as_ptr()).count.fetch_sub(1, Ordering::Release) } != 1 {
            return None;
        }
        // SAFETY: nobody else refers to the frame any more.
        unsafe {
            (*place.0.as_ptr()).count.load(Ordering::Acquire);
            (*place.0.as_ptr()).count = AtomicUsize::new(1);
        }
        Some(Frame(place))
    }

    /// The pointer, with the reference that it counts for.
    pub(crate) fn into_raw(self) -> *mut () {
        ManuallyDrop::new(self).0.0.as_ptr().cast()
    }

    /// SAFETY: `raw` must be from [`BlockRef::into_raw`], and become a reference once.
    pub(crate) unsafe fn from_raw(raw: NonNull<()>) -> BlockRef {
        BlockRef(Place(raw.cast()))
    }

    /// A reference that is not counted.
    pub(crate) fn borrow(&self) -> Borrowed<'_> {
        Borrowed(self.0, PhantomData)
    }
}

impl Deref for BlockRef {
    type Target = FramedBlock;

    #[inline]
    fn deref(&self) -> &FramedBlock {
        // SAFETY: this reference counts, and while there is one the block is not changed.
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
        // SAFETY: the reference is not used any more.
        let frame = unsafe { ptr::read(self) }.into_frame();
        if let Some(frame) = frame {
            frame.spare();
        }
    }
}

/// A reference to a block that somebody else counts, or keeps until the epoch has passed.
#[derive(Clone, Copy)]
pub(crate) struct Borrowed<'a>(Place, PhantomData<&'a FramedBlock>);

impl<'a> Borrowed<'a> {
    /// SAFETY: `raw` must be from [`BlockRef::into_raw`], and that reference not be given up during `'a`.
    pub(crate) unsafe fn from_raw(raw: NonNull<()>) -> Borrowed<'a> {
        Borrowed(Place(raw.cast()), PhantomData)
    }

    #[inline]
    pub(crate) fn framed(self) -> &'a FramedBlock {
        // SAFETY: a counted reference outlives `'a`.
        unsafe { &*self.0.block() }
    }

    /// Brings nearer the head, and what of the block is looked at first.
    #[inline]
    pub(crate) fn prefetch(self) {
        prefetch_lines(self.0.0.as_ptr().cast(), PREFETCHED);
    }

    /// The same reference, counted.
    pub(crate) fn counted(self) -> BlockRef {
        // SAFETY: a counted reference outlives `'a`, so the count is not 0.
        let before = unsafe { (*self.0.0.as_ptr()).count.fetch_add(1, Ordering::Relaxed) };
        // As in `Arc`: references that are forgotten again and again must not wrap the count.
        if before > isize::MAX.cast_unsigned() {
            std::process::abort();
        }
        BlockRef(self.0)
    }
}

/// A block for as long as a read takes.
pub(crate) enum HeldBlock<'a> {
    /// The cache has it, and the reader is pinned.
    Borrowed(Borrowed<'a>),
    /// It was read, whether the cache has taken it or not.
    Counted(BlockRef),
    /// It stands in the file that a table has mapped; the table is borrowed, and keeps that.
    Mapped(LentBlock<'a>),
}

impl HeldBlock<'_> {
    #[inline]
    pub(crate) fn block(&self) -> Block<'_> {
        match self {
            HeldBlock::Borrowed(block) => block.framed().block(),
            HeldBlock::Counted(block) => block.block(),
            HeldBlock::Mapped(block) => block.block(),
        }
    }
}

const _: () = {
    // The fingerprints, behind 16 bytes of the block's own header, begin with a line.
    assert!(size_of::<Head>() + super::HEADER_LEN == LINE);
    assert!(size_of::<Parts>() == 24 && (cfg!(target_pointer_width = "32") || size_of::<Head>() == 8 + 8 + 24 + 8));
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
    fn a_block_of_a_page_takes_an_odd_number_of_lines_more() {
        for len in [3841, 4000, 4091, 4096] {
            assert_eq!(Frame::new(len).memory(), 4160);
        }
        assert_eq!(Frame::new(4097).memory(), 4352 + 64);
        assert!(Frame::new(4096).suits(3900) && !Frame::new(4096).suits(4200) && !Frame::new(4096).suits(3000));
    }

    #[test]
    fn a_frame_is_used_again_when_the_last_reference_goes() {
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
        // SAFETY: the reference behind `raw` has not been given up.
        let counted = unsafe { Borrowed::from_raw(raw) }.counted();
        assert!(counted.into_frame().is_none() && block.into_frame().is_none());
        // SAFETY: it becomes a reference here and nowhere else.
        let last = unsafe { BlockRef::from_raw(raw) };
        assert!(last.block().bytes().ends_with(b"value"));
        assert!(last.into_frame().is_some());
    }

    #[test]
    fn what_is_no_block_frees_its_frame() {
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
