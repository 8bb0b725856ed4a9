//! Memory taken from the system in large pieces, reused, and given back late.
//!
//! Touching memory for the first time is expensive. A page fault of 4 KiB takes as long as a
//! hundred inserts into a memtable; a page of 2 MiB that the host never backed takes milliseconds.
//! Therefore memtables take their megabytes as [`MemtableChunk`]s from a [`MemtablePool`], and
//! dropped chunks go back there. The pool keeps up to its limit of idle chunks and gives the rest
//! to the system.
//!
//! While a pool grows, a thread touches chunks ahead of their use. A chunk of entries that is taken
//! before it is ready is in small pages, whose first touches are spread over many writes. Gain: on
//! a virtual machine whose host has yet to find the memory, thirty puts of each new memtable took 5
//! ms. To remove it, have `region` make all chunks in huge pages.
//!
//! Chunks below 128 KiB come from the allocator, which handles that size well, and go back
//! to it. Longer ones do not: an allocator may keep what was freed. glibc does so with pieces as
//! long as the longest that it ever mapped, which would be memtables here.
//!
//! Cached blocks are cut from a [`FrameArena`]. What an open table keeps in memory is a
//! [`TableArray`] in [`TableMemory`].
//!
//! Gain of the pool, inserts into a prototype of the memtable: 9.5 ns in memory that was touched
//! before, 29 ns in new memory. To remove it, let `MemtableChunk` take all memory from the
//! allocator.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use super::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::sync::{Mutex, OnceLock, thread};

mod arena;
mod extents;
mod region;
mod table_array;
mod table_memory;

pub use arena::{ALIGN, FrameArena, TakeError};
use region::Region;
pub use table_array::TableArray;
pub use table_memory::TableMemory;

/// Smallest length that the pool keeps: a huge page on x86-64, and on AArch64 with pages of 4 KiB.
/// Longer chunks are multiples of it.
pub const CHUNK_LEN: usize = 2 << 20;
/// Shorter chunks come from the allocator.
const LEAST_MAPPED: usize = 128 << 10;
/// Chunks between the two are multiples of this.
const SMALL_LEN: usize = 16 << 10;
/// So much of a pool's limit, as a divisor, is touched ahead of its use, and at most so much.
const AHEAD: usize = 8;
const MOST_AHEAD: usize = 8 * CHUNK_LEN;

/// Memory for memtables, kept for reuse. Stores may share a pool.
pub struct MemtablePool {
    /// Charged for all chunks, idle ones included.
    budget: Arc<MemoryBudget>,
    /// Most idle bytes to keep.
    limit: usize,
    free: Mutex<Free>,
    /// Bytes of all chunks.
    taken: AtomicUsize,
    /// Called when that has changed.
    watcher: OnceLock<Watcher>,
}

type Watcher = Box<dyn Fn(PoolChange) + Send + Sync>;

/// What a watcher is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolChange {
    Taken,
    GivenBack,
}

#[derive(Default)]
struct Free {
    /// Most recently used last. There are few, of few lengths: a linear search is cheap beside the
    /// use of what it finds.
    regions: Vec<Region>,
    bytes: usize,
    /// Whether a chunk had to be made since one was last given back: more will be needed.
    growing: bool,
    /// Whether the thread that makes chunks ready is running.
    preparing: bool,
}

impl Free {
    fn take(&mut self, len: usize) -> Option<Region> {
        let at = self.regions.iter().rposition(|region| region.len() == len)?;
        let region = self.regions.remove(at);
        self.bytes -= region.len();
        Some(region)
    }

    fn put(&mut self, region: Region) {
        self.bytes += region.len();
        self.regions.push(region);
    }

    /// Bytes of chunks that a writer may take without waiting.
    fn ready(&self) -> usize {
        self.regions.iter().filter(|region| region.len() == CHUNK_LEN).count() * CHUNK_LEN
    }
}

impl MemtablePool {
    /// A pool that keeps up to `limit` idle bytes.
    pub fn new(limit: usize) -> Arc<MemtablePool> {
        MemtablePool::charging(&MemoryBudget::unlimited(), limit)
    }

    /// A pool whose memory is charged to `budget`. It keeps idle bytes only as long as the budget
    /// has room for what can be done without.
    pub fn charging(budget: &Arc<MemoryBudget>, limit: usize) -> Arc<MemtablePool> {
        let (charged, free) = (Arc::clone(budget), Mutex::default());
        let (taken, watcher) = (AtomicUsize::new(0), OnceLock::new());
        let pool = Arc::new(MemtablePool { budget: charged, limit, free, taken, watcher });
        let weak = Arc::downgrade(&pool);
        budget.on_shortage(move |bytes| {
            if let Some(pool) = weak.upgrade() {
                pool.free_idle(bytes);
            }
        });
        pool
    }

    /// Gives so many bytes of idle chunks back to the system, or a little more, if there are.
    fn free_idle(&self, bytes: usize) {
        let mut freed = Vec::new();
        self.changed(|free| {
            let until = free.bytes.saturating_sub(bytes);
            while free.bytes > until
                && let Some(region) = free.regions.pop()
            {
                free.bytes -= region.len();
                freed.push(region);
            }
        });
        self.budget.sub(MemoryUse::Memtables, freed.iter().map(Region::len).sum());
    }

    /// Changes what is idle, and tells the budget.
    fn changed<T>(&self, change: impl FnOnce(&mut Free) -> T) -> T {
        let mut free = self.free.lock();
        let before = free.bytes;
        let result = change(&mut free);
        self.budget.note_idle(before, free.bytes);
        result
    }

    /// Has `watcher` called after each change. It must take no lock of a store unless memory was
    /// taken, and then none that comes before the commit lock. A pool has one watcher at most.
    pub fn watch(&self, watcher: impl Fn(PoolChange) + Send + Sync + 'static) {
        let _ = self.watcher.set(Box::new(watcher));
    }

    /// Charged for all chunks.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Bytes of all chunks.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    fn tell(&self, change: PoolChange) {
        if let Some(watcher) = self.watcher.get() {
            watcher(change);
        }
    }

    /// Bytes that the pool keeps idle.
    pub fn idle(&self) -> usize {
        self.free.lock().bytes
    }

    /// At least `len` bytes of any content.
    pub fn take(self: &Arc<Self>, len: usize) -> MemtableChunk {
        let (region, _) = self.region(len, true);
        self.chunk(region)
    }

    /// At least `len` bytes of zeros, for random access: in huge pages, where there are any.
    pub fn take_zeroed(self: &Arc<Self>, len: usize) -> MemtableChunk {
        let (region, used) = self.region(len, false);
        let mut chunk = self.chunk(region);
        if used {
            chunk.slice_mut::<u8>().fill(0);
        }
        chunk
    }

    fn chunk(self: &Arc<Self>, region: Region) -> MemtableChunk {
        self.taken.fetch_add(region.len(), Ordering::Relaxed);
        self.tell(PoolChange::Taken);
        MemtableChunk { region: Some(region), pool: Arc::clone(self) }
    }

    /// A region, and whether it was used before. It `may_be_small`: in small pages.
    fn region(self: &Arc<Self>, len: usize, may_be_small: bool) -> (Region, bool) {
        let new = |region: Region| {
            self.budget.add(MemoryUse::Memtables, region.len());
            (region, false)
        };
        if len < LEAST_MAPPED {
            return new(Region::new(len));
        }
        let len = len.next_multiple_of(if len < CHUNK_LEN { SMALL_LEN } else { CHUNK_LEN });
        let is_prepared = len == CHUNK_LEN && self.ahead() > 0;
        let (found, begins) = self.changed(|free| {
            let found = free.take(len);
            free.growing |= is_prepared && found.is_none();
            // No more is made ready than is in use.
            let is_short = is_prepared && free.ready() <= self.ahead() / 2 && self.taken() >= self.ahead();
            let begins = is_short && free.growing && !free.preparing;
            free.preparing |= begins;
            (found, begins)
        });
        let taken = match found {
            Some(region) => (region, true),
            None if is_prepared && may_be_small => new(Region::in_small_pages(len)),
            None => new(Region::new(len)),
        };
        if begins {
            self.start_preparing(&taken.0);
        }
        taken
    }

    /// Bytes of chunks that are made ready ahead of their use.
    fn ahead(&self) -> usize {
        MOST_AHEAD.min(self.limit / AHEAD / CHUNK_LEN * CHUNK_LEN)
    }

    /// Has a thread make chunks like `taken` ready.
    #[cold]
    fn start_preparing(self: &Arc<Self>, taken: &Region) {
        let pool = Arc::downgrade(self);
        // What comes from the allocator is not touched ahead.
        if !taken.is_mapped() || thread::spawn("tamis-pages", move || prepare(&pool)).is_err() {
            self.free.lock().preparing = false;
        }
    }

    /// A new chunk to make ready. `None` if enough are, or there is no room for more.
    fn next_unready(&self) -> Option<(Region, MemoryCharge)> {
        let mut free = self.free.lock();
        let is_full = free.bytes + CHUNK_LEN > self.limit || !self.budget.may_keep(CHUNK_LEN);
        free.preparing = free.growing && free.ready() < self.ahead() && !is_full;
        if !free.preparing {
            return None;
        }
        drop(free);
        let Some(region) = Region::mapped(CHUNK_LEN) else {
            self.free.lock().preparing = false;
            return None;
        };
        Some((region, MemoryCharge::new(&self.budget, MemoryUse::Memtables, CHUNK_LEN)))
    }

    fn put(&self, region: Region) {
        if region.len() >= CHUNK_LEN {
            self.free.lock().growing = false;
        }
        self.taken.fetch_sub(region.len(), Ordering::Relaxed);
        self.keep(region);
        self.tell(PoolChange::GivenBack);
    }

    fn keep(&self, mut region: Region) {
        if region.len() >= LEAST_MAPPED && self.budget.may_keep(0) {
            region.allow_huge();
            let refused = self.changed(|free| match free.bytes + region.len() <= self.limit {
                true => {
                    free.put(region);
                    None
                }
                false => Some(region),
            });
            let Some(refused) = refused else { return };
            region = refused;
        }
        // Unmapping is slow: not under the lock.
        self.budget.sub(MemoryUse::Memtables, region.len());
        drop(region);
    }
}

impl Drop for MemtablePool {
    fn drop(&mut self) {
        let idle = self.free.get_mut().bytes;
        self.budget.note_idle(idle, 0);
        self.budget.sub(MemoryUse::Memtables, idle);
    }
}

/// Makes chunks ready while they are needed and the pool lives.
fn prepare(pool: &Weak<MemtablePool>) {
    while let Some((region, charge)) = pool.upgrade().and_then(|pool| pool.next_unready()) {
        region.populate_huge(0);
        let Some(pool) = pool.upgrade() else { return };
        charge.leave();
        pool.keep(region);
    }
}

/// Types without padding for which every bit pattern is a value.
///
/// # Safety
///
/// This must hold, and the alignment must be at most 16.
pub unsafe trait Plain: Copy {}

// SAFETY: every bit pattern is an integer.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u128 {}

/// A piece of memory, 64-byte aligned, initialised with any content. It goes back to its pool when
/// it is dropped.
pub struct MemtableChunk {
    /// `Some` until the chunk is dropped.
    region: Option<Region>,
    pool: Arc<MemtablePool>,
}

impl MemtableChunk {
    fn region(&self) -> &Region {
        match &self.region {
            Some(region) => region,
            None => unreachable!("only `drop` takes the region"),
        }
    }

    /// Its first byte. A writer must have the bytes that it writes to itself.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.region().start()
    }

    /// Its length in bytes, which may exceed the length requested.
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.region().len()
    }

    /// The memory as a slice of as many values as fit.
    pub fn slice<T: Plain>(&self) -> &[T] {
        // SAFETY: the region is initialised and aligned to 64 bytes, and every bit pattern is a
        // `T`. The chunk owns the region and is borrowed. Writers through `start` answer for not
        // mixing that with slices.
        unsafe { std::slice::from_raw_parts(self.start().cast().as_ptr(), self.len() / size_of::<T>()) }
    }

    /// Like [`slice`](MemtableChunk::slice), mutable.
    pub fn slice_mut<T: Plain>(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`, and the chunk is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start().cast().as_ptr(), self.len() / size_of::<T>()) }
    }
}

impl Drop for MemtableChunk {
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
    fn a_dropped_chunk_is_reused() {
        let pool = MemtablePool::new(2 * CHUNK_LEN);
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

    /// Waits until no thread makes chunks ready.
    fn settle(pool: &MemtablePool) -> usize {
        while pool.free.lock().preparing {
            std::thread::yield_now();
        }
        pool.free.lock().ready()
    }

    #[test]
    fn chunks_are_ready_ahead_of_their_use() {
        let pool = MemtablePool::new(4 * AHEAD * CHUNK_LEN);
        let ahead = pool.ahead();
        let mut chunks: Vec<MemtableChunk> = (0..6).map(|_| pool.take(CHUNK_LEN)).collect();
        if !chunks[0].region().is_mapped() {
            return; // The system maps no memory here.
        }
        let is_small = |chunk: &MemtableChunk| chunk.region().is_small();
        assert!(chunks[..5].iter().all(is_small), "nobody waits for a huge page");
        let zeroed = pool.take_zeroed(CHUNK_LEN);
        assert!(!is_small(&zeroed));
        for _ in 0..10 {
            let ready = settle(&pool);
            assert!((ahead / 2 + 1..=ahead + CHUNK_LEN).contains(&ready), "{ready}");
            chunks.push(pool.take(CHUNK_LEN));
        }
        assert!(!chunks[6..].iter().any(is_small));
        // A pool that has what its users need makes no more.
        let idle = pool.idle() + CHUNK_LEN * (chunks.len() + 1);
        drop((chunks, zeroed));
        for _ in 0..3 {
            let chunks: Vec<MemtableChunk> = (0..17).map(|_| pool.take(CHUNK_LEN)).collect();
            assert!(!chunks.iter().any(is_small));
            drop(chunks);
            settle(&pool);
            assert_eq!(pool.idle(), idle);
        }
    }

    #[test]
    fn no_more_is_made_ready_than_is_in_use() {
        let pool = MemtablePool::new(usize::MAX);
        let chunks: Vec<MemtableChunk> = (0..MOST_AHEAD / CHUNK_LEN).map(|_| pool.take(CHUNK_LEN)).collect();
        assert_eq!(pool.idle(), 0);
        assert!(!pool.free.lock().preparing);
        let more = pool.take(CHUNK_LEN);
        assert_eq!(settle(&pool), if more.region().is_mapped() { MOST_AHEAD } else { 0 });
        drop(chunks);
    }

    #[test]
    fn a_pool_without_room_makes_nothing_ready() {
        let budget = MemoryBudget::new(4 * CHUNK_LEN);
        let pool = MemtablePool::charging(&budget, AHEAD * CHUNK_LEN);
        let chunks = [(); 3].map(|()| pool.take(CHUNK_LEN));
        settle(&pool);
        assert_eq!((budget.used(MemoryUse::Memtables), pool.idle()), (3 * CHUNK_LEN, 0));
        drop(chunks);
    }

    #[test]
    fn idle_chunks_go_when_others_need_their_memory() {
        let budget = MemoryBudget::new(8 * CHUNK_LEN);
        let pool = MemtablePool::charging(&budget, usize::MAX);
        drop([pool.take(CHUNK_LEN), pool.take(CHUNK_LEN), pool.take(1)]);
        assert_eq!((pool.idle(), budget.total()), (2 * CHUNK_LEN, 2 * CHUNK_LEN));
        let held = pool.take(CHUNK_LEN);
        let mut filter = MemoryCharge::new(&budget, MemoryUse::Filters, 6 * CHUNK_LEN);
        assert_eq!((pool.idle(), budget.total()), (CHUNK_LEN, 8 * CHUNK_LEN));
        filter.resize(7 * CHUNK_LEN);
        assert_eq!((pool.idle(), budget.total()), (0, 8 * CHUNK_LEN));
        drop(held);
    }

    #[test]
    fn reuse_matches_lengths_and_the_limit_holds() {
        let pool = MemtablePool::new(3 * CHUNK_LEN);
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
    fn all_chunks_are_counted_and_the_watcher_is_called() {
        let (pool, told) = (MemtablePool::new(CHUNK_LEN), Arc::new(Mutex::new(Vec::new())));
        let list = Arc::clone(&told);
        pool.watch(move |change| list.lock().push(change));
        let (short, long) = (pool.take(100), pool.take_zeroed(CHUNK_LEN));
        assert_eq!(pool.taken(), 128 + CHUNK_LEN);
        drop((short, long));
        assert_eq!((pool.taken(), pool.idle()), (0, CHUNK_LEN));
        drop(pool.take(CHUNK_LEN));
        assert_eq!((pool.taken(), pool.idle()), (0, CHUNK_LEN), "an idle one is counted while it is taken again");
        let [taken, given_back] = [PoolChange::Taken, PoolChange::GivenBack];
        assert_eq!(*told.lock(), [taken, taken, given_back, given_back, taken, given_back]);
    }

    #[test]
    fn chunks_are_zero_at_first_and_aligned() {
        let pool = MemtablePool::new(0);
        for len in [0, 1, 64, 4096, LEAST_MAPPED - 1, LEAST_MAPPED + 1, CHUNK_LEN - 1, CHUNK_LEN, CHUNK_LEN + 1] {
            let mut chunk = pool.take(len);
            assert!(chunk.len() >= len);
            assert_eq!(chunk.start().as_ptr() as usize % 64, 0);
            assert!(chunk.slice::<u128>().iter().all(|&word| word == 0), "{len}");
            chunk.slice_mut::<u8>().fill(1);
        }
        assert_eq!(pool.idle(), 0);
    }

    #[test]
    fn chunks_are_exclusive_between_threads() {
        let pool = MemtablePool::new(2 * CHUNK_LEN);
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
