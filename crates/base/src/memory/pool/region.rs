//! Memory mapped from the system, or from the allocator where mapping gains nothing or fails.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::{CHUNK_LEN, LEAST_MAPPED};

/// A cache line. Allocated regions are a multiple of it long.
const LINE: usize = 64;
/// Length of the system's smallest pages; some systems have longer ones.
pub(super) const LEAST_PAGE: usize = 4 << 10;

/// Memory with one owner, initially zero. A region at least as long as a huge page is aligned to
/// one.
pub(super) struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Whether it is mapped from the system.
    mapped: bool,
    /// Whether it is in small pages although it could be in huge ones.
    small: bool,
}

// SAFETY: a region is the only owner of its memory.
unsafe impl Send for Region {}
// SAFETY: a shared region gives out its address and length only.
unsafe impl Sync for Region {}

impl Region {
    /// At least `len` bytes; exactly `len` if that is mapped. A mapped region as long as a huge
    /// page is advised to take huge pages at the first touch.
    pub(super) fn new(len: usize) -> Region {
        let mut region = Region::in_small_pages(len);
        if region.mapped && region.len >= CHUNK_LEN {
            system::advise_huge(region.start, region.len);
            region.small = false;
        }
        region
    }

    /// Like [`new`](Region::new), but with small pages.
    pub(super) fn in_small_pages(len: usize) -> Region {
        Region::mapped(len).unwrap_or_else(|| Region::allocated(len))
    }

    /// Like [`in_small_pages`](Region::in_small_pages), but `None` if the system maps no memory.
    pub(super) fn mapped(len: usize) -> Option<Region> {
        let start = if len >= LEAST_MAPPED { system::map(len) } else { None };
        start.map(|start| Region { start, len, mapped: true, small: len >= CHUNK_LEN })
    }

    fn allocated(len: usize) -> Region {
        let layout = layout(len.max(1).next_multiple_of(LINE));
        // SAFETY: the layout's size is not 0.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Region { start, len: layout.size(), mapped: false, small: false }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether it is mapped from the system.
    pub(super) fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// Whether it is in small pages although it could be in huge ones.
    #[cfg(test)]
    pub(super) fn is_small(&self) -> bool {
        self.small
    }

    /// Lets the system join the small pages to huge ones, when it finds the time.
    pub(super) fn allow_huge(&mut self) {
        if self.small {
            system::advise_huge(self.start, self.len);
            self.small = false;
        }
    }

    /// Touches the chunk at `start`, which nothing may have used yet, as a huge page if the system
    /// has one. Later users then do not wait for its first touch.
    pub(super) fn populate_huge(&self, start: usize) {
        assert!(start.is_multiple_of(CHUNK_LEN) && start < self.len, "`start` is the offset of a chunk in the region");
        if self.mapped {
            // SAFETY: the chunk lies within the region.
            let chunk = unsafe { self.start.add(start) };
            system::advise_huge(chunk, CHUNK_LEN);
            // By a fault, which keeps no other thread from mapping memory: populating it would, for
            // the milliseconds that a huge page may take.
            // SAFETY: a byte of the chunk, which nothing else uses.
            unsafe { chunk.write_volatile(0) };
            if !system::populate(chunk, CHUNK_LEN) {
                // An older system, or one that is short of memory.
                for page in (0..CHUNK_LEN).step_by(LEAST_PAGE) {
                    // SAFETY: a byte of the chunk, which nothing else uses.
                    unsafe { chunk.add(page).write_volatile(0) };
                }
            }
        }
    }

    /// Moves the chunk at `start` into a huge page, if the system has one. Contents and addresses
    /// stay. Concurrent readers and writers may wait for the time of a copy. Returns whether the
    /// system supports this at all.
    pub(super) fn join_pages(&self, start: usize) -> bool {
        assert!(start.is_multiple_of(CHUNK_LEN) && start < self.len, "`start` is the offset of a chunk in the region");
        if !self.mapped {
            return true;
        }
        // Copying to a page that the host has yet to find takes ten times as long. So touch a huge
        // page here and give it back: the system takes that one next (0.7 ms instead of 7,
        // measured). If there is none, joining reports it.
        if let Some(page) = Region::mapped(CHUNK_LEN) {
            page.populate_huge(0);
        }
        // SAFETY: the chunk lies within the region.
        let chunk = unsafe { self.start.add(start) };
        // Where a part was given back, the chunk is left to small pages, which are not joined.
        system::advise_huge(chunk, CHUNK_LEN);
        system::join_pages(chunk, CHUNK_LEN) || Region::joins_pages()
    }

    /// Whether the system joins pages: those of a chunk may have been left to small ones meanwhile.
    fn joins_pages() -> bool {
        Region::mapped(CHUNK_LEN).is_none_or(|page| {
            page.populate_huge(0);
            system::join_pages(page.start, CHUNK_LEN)
        })
    }

    /// Gives the memory of the whole pages between `start` and `end` back to the system, if it was
    /// mapped, and returns whether it was. The addresses stay valid and read as zeros. The chunks
    /// are left to small pages: a first touch of huge ones takes long, and the system would join
    /// what is left of the others.
    ///
    /// # Safety
    ///
    /// Both lie within the region, and nothing else uses what is between them.
    pub(super) unsafe fn discard(&self, start: usize, end: usize) -> bool {
        let page = page_len();
        let (start, end) = (start.next_multiple_of(page), end - end % page);
        if !self.mapped || start >= end {
            return false;
        }
        let first = start - start % CHUNK_LEN;
        // SAFETY: the chunk lies within the region.
        system::advise_small(unsafe { self.start.add(first) }, end.next_multiple_of(CHUNK_LEN).min(self.len) - first);
        // SAFETY: by the contract above.
        unsafe { system::discard(self.start.add(start), end - start) };
        true
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: these bytes were mapped when the region was made, and it is their only owner.
            unsafe { system::unmap(self.start, self.len) };
        } else {
            // SAFETY: allocated with this layout when the region was made, and freed only here.
            unsafe { dealloc(self.start.as_ptr(), layout(self.len)) };
        }
    }
}

/// Length of the system's pages.
pub(super) fn page_len() -> usize {
    system::page_len()
}

fn layout(len: usize) -> Layout {
    // Mapped regions are aligned from the same length on.
    let align = if len >= CHUNK_LEN { LEAST_PAGE } else { LINE };
    match Layout::from_size_align(len, align) {
        Ok(layout) => layout,
        Err(_) => handle_alloc_error(Layout::new::<u8>()),
    }
}

/// Linux: anonymous memory in huge pages.
#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::ffi::{c_int, c_void};
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::super::CHUNK_LEN;

    /// From Linux. rustix lacks it, so it goes through the C library that the standard library
    /// links.
    const MADV_COLLAPSE: c_int = 25;

    unsafe extern "C" {
        #[link_name = "madvise"]
        fn madvise_by_number(start: *mut c_void, len: usize, advice: c_int) -> c_int;
    }

    /// Maps `len` bytes, a multiple of a page, aligned to `CHUNK_LEN` if they are as many; `None`
    /// if the system has no memory.
    pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
        let more = if len < CHUNK_LEN { len } else { len.checked_add(CHUNK_LEN)? };
        // SAFETY: new memory at an address of the system's choice.
        let start = unsafe { mmap_anonymous(null_mut(), more, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let start = start.ok()?.cast::<u8>();
        if len < CHUNK_LEN {
            return NonNull::new(start);
        }
        let before = start.addr().next_multiple_of(CHUNK_LEN) - start.addr();
        let after = CHUNK_LEN - before;
        // SAFETY: `before + len + after` bytes were mapped above, and nothing else knows of them
        // yet. An end that stays mapped does no harm.
        unsafe {
            let middle = start.add(before);
            if before > 0 {
                let _ = munmap(start.cast(), before);
            }
            if after > 0 {
                let _ = munmap(middle.add(len).cast(), after);
            }
            NonNull::new(middle)
        }
    }

    /// Asks for huge pages in memory from [`map`].
    pub(super) fn advise_huge(start: NonNull<u8>, len: usize) {
        // SAFETY: the advice changes the size of pages only; advice that the system ignores does no
        // harm.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
    }

    /// Asks for small pages in memory from [`map`].
    pub(super) fn advise_small(start: NonNull<u8>, len: usize) {
        // SAFETY: as in `advise_huge`.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
    }

    /// Touches all pages of `len` bytes from [`map`]; returns whether the system did (Linux 5.14
    /// and later).
    pub(super) fn populate(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: the content stays as it is.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) }.is_ok()
    }

    /// Joins the small pages of a chunk from [`map`] to a huge one, if there is memory for it;
    /// returns whether the system supports it (Linux 6.1 and later).
    pub(super) fn join_pages(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: the content stays as it is.
        let done = unsafe { madvise_by_number(start.as_ptr().cast(), len, MADV_COLLAPSE) } == 0;
        done || std::io::Error::last_os_error().kind() != std::io::ErrorKind::InvalidInput
    }

    /// Length of a page.
    pub(super) fn page_len() -> usize {
        rustix::param::page_size()
    }

    /// # Safety
    ///
    /// These are whole pages from [`map`], and nothing uses them.
    pub(super) unsafe fn discard(start: NonNull<u8>, len: usize) {
        // SAFETY: by the contract above.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) };
    }

    /// # Safety
    ///
    /// `map` returned the address for this length, and nothing uses the memory any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: by the contract above.
        let _ = unsafe { munmap(start.as_ptr().cast(), len) };
    }
}

/// On other systems all memory comes from the allocator.
#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    use std::ptr::NonNull;

    pub(super) fn map(_: usize) -> Option<NonNull<u8>> {
        None
    }

    pub(super) fn advise_huge(_: NonNull<u8>, _: usize) {}

    pub(super) fn advise_small(_: NonNull<u8>, _: usize) {}

    pub(super) fn populate(_: NonNull<u8>, _: usize) -> bool {
        true
    }

    pub(super) fn join_pages(_: NonNull<u8>, _: usize) -> bool {
        true
    }

    pub(super) fn page_len() -> usize {
        super::LEAST_PAGE
    }

    pub(super) unsafe fn discard(_: NonNull<u8>, _: usize) {}

    pub(super) unsafe fn unmap(_: NonNull<u8>, _: usize) {}
}
