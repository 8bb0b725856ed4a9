//! Memory that is taken in large pieces, used again, and given back to the system late.
//!
//! A first touch of memory is expensive: a page fault of 4 KiB takes as long as a hundred inserts into a memtable, and a page of 2 MiB
//! that the host never backed takes milliseconds. So whatever comes and goes in megabytes (memtables above all) takes [`Chunk`]s from
//! a [`Pool`], and they go back when they are dropped. The pool keeps up to its limit of them, and gives the rest to the system.
//!
//! Chunks below [`CHUNK_LEN`] come from the allocator, which is good at them, and go back to it.
//!
//! What is cut into many small pieces for good, the cache's blocks, is an [`Arena`]. What stays of an open table is cut from [`Lasting`]
//! memory, as an [`Array`].

use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

mod arena;
mod array;
mod extents;
mod lasting;
mod region;

pub(crate) use arena::{ALIGN, Arena, Short};
pub(crate) use array::Array;
pub(crate) use lasting::Lasting;
use region::Region;

/// The size from which on pieces are kept: that of a huge page on x86-64, and on AArch64 with pages of 4 KiB. Larger ones are multiples.
pub(crate) const CHUNK_LEN: usize = 2 << 20;

/// Memory that may be used again.
pub(crate) struct Pool {
    /// Bytes that are kept at most.
    limit: usize,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// The one that was used last is the last. Few, and of few lengths: a look at each is cheap beside what its use costs.
    regions: Vec<Region>,
    bytes: usize,
}

impl Pool {
    /// A pool that keeps up to `limit` bytes that nobody uses.
    pub(crate) fn new(limit: usize) -> Arc<Pool> {
        Arc::new(Pool { limit, free: Mutex::default() })
    }

    /// Bytes that nobody uses and that are kept.
    pub(crate) fn idle(&self) -> usize {
        self.free.lock().bytes
    }

    /// At least `len` bytes of any content.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Chunk {
        let (region, _) = self.region(len);
        Chunk { region: Some(region), pool: Arc::clone(self) }
    }

    /// At least `len` bytes of zeros.
    pub(crate) fn take_zeroed(self: &Arc<Self>, len: usize) -> Chunk {
        let (region, used) = self.region(len);
        let mut chunk = Chunk { region: Some(region), pool: Arc::clone(self) };
        if used {
            chunk.slice_mut::<u8>().fill(0);
        }
        chunk
    }

    /// Memory, and whether somebody has used it before.
    fn region(&self, len: usize) -> (Region, bool) {
        if len < CHUNK_LEN {
            return (Region::new(len), false);
        }
        let len = len.next_multiple_of(CHUNK_LEN);
        let mut free = self.free.lock();
        if let Some(at) = free.regions.iter().rposition(|region| region.len() == len) {
            free.bytes -= len;
            return (free.regions.remove(at), true);
        }
        drop(free);
        (Region::new(len), false)
    }

    fn put(&self, region: Region) {
        if region.len() < CHUNK_LEN {
            return;
        }
        let mut free = self.free.lock();
        if free.bytes + region.len() <= self.limit {
            free.bytes += region.len();
            free.regions.push(region);
            return;
        }
        // The system takes its time: not under the lock.
        drop(free);
        drop(region);
    }
}

/// Types of which every pattern of bits is a value, without padding.
///
/// # Safety
///
/// That must be so, and their alignment may be 16 at most.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers are so.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u128 {}

/// A piece of memory, 64-byte aligned, initialised with whatever was there. It goes back to its pool when it is dropped.
pub(crate) struct Chunk {
    /// There until the chunk is dropped.
    region: Option<Region>,
    pool: Arc<Pool>,
}

impl Chunk {
    fn region(&self) -> &Region {
        match &self.region {
            Some(region) => region,
            None => unreachable!("only drop takes it"),
        }
    }

    /// Where it begins. Whoever writes through it must be the only one to use what is written.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.region().start()
    }

    /// Its length in bytes, which may be more than was asked for.
    pub(crate) fn len(&self) -> usize {
        self.region().len()
    }

    /// The memory as a slice of as many values as there is room for.
    pub(crate) fn slice<T: Plain>(&self) -> &[T] {
        // SAFETY: the region is initialised and aligned to 64 bytes, every pattern of bits is a `T`, and the chunk, which owns it, is
        // borrowed. Whoever writes through `start` answers for not mixing that with slices.
        unsafe { std::slice::from_raw_parts(self.start().cast().as_ptr(), self.len() / size_of::<T>()) }
    }

    /// As [`slice`](Chunk::slice), to be written to.
    pub(crate) fn slice_mut<T: Plain>(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`, and the chunk is borrowed for this alone.
        unsafe { std::slice::from_raw_parts_mut(self.start().cast().as_ptr(), self.len() / size_of::<T>()) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.put(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_taken_again() {
        let pool = Pool::new(2 * CHUNK_LEN);
        let mut chunk = pool.take(CHUNK_LEN - 1 + 1);
        assert_eq!((chunk.len(), pool.idle()), (CHUNK_LEN, 0));
        chunk.slice_mut::<u8>()[5] = 7;
        let start = chunk.start();
        drop(chunk);
        assert_eq!(pool.idle(), CHUNK_LEN);
        let chunk = pool.take(CHUNK_LEN);
        assert_eq!((chunk.start(), chunk.slice::<u8>()[5], pool.idle()), (start, 7, 0));
        drop(chunk);
        assert_eq!(pool.take_zeroed(CHUNK_LEN).slice::<u8>()[5], 0);
    }

    #[test]
    fn lengths_are_not_mixed_and_the_limit_holds() {
        let pool = Pool::new(3 * CHUNK_LEN);
        let (one, two, three) = (pool.take(CHUNK_LEN), pool.take(CHUNK_LEN + 1), pool.take(1));
        assert_eq!((two.len(), three.len()), (2 * CHUNK_LEN, 64));
        let more = pool.take(CHUNK_LEN);
        drop((one, two, three));
        assert_eq!(pool.idle(), 3 * CHUNK_LEN);
        drop(more);
        assert_eq!(pool.idle(), 3 * CHUNK_LEN);
        assert_eq!(pool.take(2 * CHUNK_LEN).len(), 2 * CHUNK_LEN);
    }

    #[test]
    fn chunks_are_zero_at_first_and_aligned() {
        let pool = Pool::new(0);
        for len in [0, 1, 64, 4096, CHUNK_LEN, CHUNK_LEN + 1] {
            let mut chunk = pool.take(len);
            assert!(chunk.len() >= len);
            assert_eq!(chunk.start().as_ptr() as usize % 64, 0);
            assert!(chunk.slice::<u128>().iter().all(|&word| word == 0), "{len}");
            chunk.slice_mut::<u8>().fill(1);
        }
        assert_eq!(pool.idle(), 0);
    }

    #[test]
    fn threads_take_and_give_back() {
        let pool = Pool::new(2 * CHUNK_LEN);
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..if cfg!(miri) { 3 } else { 200 } {
                        let mut chunk = pool.take(CHUNK_LEN);
                        chunk.slice_mut::<u8>()[..4096].fill(thread);
                        std::thread::yield_now();
                        assert!(chunk.slice::<u8>()[..4096].iter().all(|&byte| byte == thread));
                    }
                });
            }
        });
        assert!(pool.idle() <= 2 * CHUNK_LEN);
    }
}
