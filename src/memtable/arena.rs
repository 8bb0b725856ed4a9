//! Memory that is handed out piece by piece and given back all at once.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of every piece.
pub(super) const ALIGN: usize = 8;

/// Chunks of raw memory. Pieces stay where they are until the arena is dropped.
pub(super) struct Arena {
    chunks: Vec<(NonNull<u8>, Layout)>,
    /// The unused end of the newest chunk.
    next: *mut u8,
    left: usize,
    chunk_len: usize,
    allocated: usize,
}

// SAFETY: the arena owns its chunks and hands out pieces only through `&mut self`.
unsafe impl Send for Arena {}

impl Arena {
    /// An arena that takes memory from the system in chunks of `chunk_len` bytes.
    pub(super) fn new(chunk_len: usize) -> Arena {
        Arena { chunks: Vec::new(), next: std::ptr::null_mut(), left: 0, chunk_len, allocated: 0 }
    }

    /// Bytes taken from the system.
    pub(super) fn allocated(&self) -> usize {
        self.allocated
    }

    /// `len` bytes of uninitialised memory, aligned to [`ALIGN`], valid until the arena is dropped.
    pub(super) fn alloc(&mut self, len: usize) -> NonNull<u8> {
        let len = len.next_multiple_of(ALIGN);
        if len > self.chunk_len / 4 {
            return self.chunk(len);
        }
        if len > self.left {
            self.next = self.chunk(self.chunk_len).as_ptr();
            self.left = self.chunk_len;
        }
        let piece = self.next;
        // SAFETY: `len <= left`, the bytes between `next` and the end of its chunk.
        self.next = unsafe { piece.add(len) };
        self.left -= len;
        // SAFETY: `next` points into a chunk once `left` is not 0, and `len` is at least `ALIGN`.
        unsafe { NonNull::new_unchecked(piece) }
    }

    fn chunk(&mut self, len: usize) -> NonNull<u8> {
        let Ok(layout) = Layout::from_size_align(len.max(ALIGN), ALIGN) else {
            handle_alloc_error(Layout::new::<u8>())
        };
        // SAFETY: the layout's size is not 0.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        self.chunks.push((start, layout));
        self.allocated += layout.size();
        start
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (start, layout) in self.chunks.drain(..) {
            // SAFETY: allocated by `chunk` with this layout, and freed only here.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}
