//! [`FrameArena`]: the memory of cached blocks, in huge pages where the system has them.
//!
//! What is free takes memory all the same, unless it was given back, which takes whole pages. The
//! arena counts it, so that a cache that must shrink knows what it still has ([`FrameArena::idle`])
//! and what of that it cannot give back ([`FrameArena::stuck`]).
//!
//! A processor's translation tables cover only some 16 MiB in pages of 4 KiB. Random access to
//! more, as to cached blocks, misses them at every access, unless the memory is in huge pages.
//!
//! The first touch of a huge page takes a hundred times as long as that of a small one, and on some
//! virtual machines milliseconds. Neither admitting nor reading a block may wait for that.
//! Therefore a thread touches pages a little ahead of use; until it has, [`take`](FrameArena::take)
//! returns nothing.
//!
//! Gain, everything cached, 2 M keys: `readrandom` 1.21 times as fast, with two threads 1.33, seeks
//! 1.45; with a cache of half the data 1.10. To remove it, let `Frame` take all memory from the
//! allocator.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use super::CHUNK_LEN;
use super::extents::{Extents, SEGMENT};
use super::region::{Region, page_len};
use crate::sync::{Mutex, thread};

/// Alignment of pieces; their length is a multiple of it. A cache line.
pub const ALIGN: usize = 64;
/// Bytes available at once, in small pages: half of what the processor's tables cover. A cache that
/// needs only half of that starts no thread.
const FIRST: usize = 4 * CHUNK_LEN;
/// In an arena of this length all is available at once: what is made ready ahead of use would be
/// much beside it.
const SMALL: usize = 16 * CHUNK_LEN;
/// The thread starts when less than `LOW` is free, and goes on until `HIGH` is, or a sixteenth of
/// the arena.
const LOW: usize = 2 * CHUNK_LEN;
const HIGH: usize = 8 * CHUNK_LEN;

/// Memory up to a fixed length, taken from the system as it is used.
///
/// A *place* is an offset counted through all segments.
pub struct FrameArena {
    len: usize,
    state: Mutex<ArenaState>,
    idle: AtomicUsize,
    stuck: AtomicUsize,
}

/// Why [`FrameArena::take`] returned no piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// A piece of this length will be available later.
    NotYet,
    /// Everything is taken, or what is free is too fragmented.
    Full,
}

#[derive(Default)]
struct ArenaState {
    segments: Vec<Arc<Region>>,
    /// Start address of each segment, to its first place.
    places: BTreeMap<usize, usize>,
    /// Free pieces before `ready`.
    free: Extents,
    /// End of the places that may be taken.
    ready: usize,
    /// Pages of these places that take no memory: never touched, or given back.
    absent: PageSet,
    /// Longest piece that a caller waits for. There may be enough free bytes, but in shorter
    /// pieces.
    wanted: usize,
    /// Whether the thread that makes more ready is running.
    preparing: bool,
}

impl FrameArena {
    /// An arena of `len` bytes, rounded down to a multiple of [`CHUNK_LEN`].
    pub fn new(len: usize) -> Arc<FrameArena> {
        let (state, idle, stuck) = Default::default();
        Arc::new(FrameArena { len: len - len % CHUNK_LEN, state, idle, stuck })
    }

    /// Bytes of mapped memory that no piece has.
    pub fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed)
    }

    /// Of the idle bytes, those that [`discard_free`](FrameArena::discard_free) could not give back
    /// because pieces have parts of their pages.
    pub fn stuck(&self) -> usize {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Bytes that may be made ready ahead of their use.
    pub fn ahead(&self) -> usize {
        if self.len <= SMALL { 0 } else { HIGH.min(self.len / 16).max(LOW) + CHUNK_LEN }
    }

    /// Counts what is idle, after a change of `state`. Where nothing can be given back, nothing
    /// counts.
    fn count_idle(&self, state: &ArenaState) -> usize {
        let idle = match state.segments.iter().all(|segment| segment.is_mapped()) {
            true => state.free.bytes().saturating_sub(state.absent.count * page_len()),
            false => 0,
        };
        self.idle.store(idle, Ordering::Relaxed);
        idle
    }

    /// `len` bytes of any content; `len` is a multiple of [`ALIGN`] and not 0.
    pub fn take(self: &Arc<Self>, len: usize) -> Result<NonNull<u8>, TakeError> {
        assert!(len > 0 && len.is_multiple_of(ALIGN), "the length of a piece is a positive multiple of ALIGN");
        let mut state = self.state.lock();
        if state.ready == 0 {
            let first = if self.len <= SMALL { self.len } else { FIRST };
            state.make_ready(first, self.len);
            state.absent.insert(0..first / page_len());
        }
        let place = state.free.take(len);
        if let Some(at) = place {
            state.absent.remove(at / page_len()..(at + len).div_ceil(page_len()));
            let idle = self.count_idle(&state);
            self.stuck.fetch_min(idle, Ordering::Relaxed);
        }
        // SAFETY: free pieces lie within a segment.
        let piece = place.map(|at| unsafe { state.segments[at / SEGMENT].start().add(at % SEGMENT) });
        if state.ready == self.len || len > SEGMENT {
            return piece.ok_or(TakeError::Full);
        }
        match piece {
            None => state.wanted = state.wanted.max(len),
            Some(_) if state.wanted <= len => state.wanted = 0,
            Some(_) => {}
        }
        if !state.preparing && !state.has(LOW) {
            state.preparing = true;
            drop(state);
            self.start_preparing();
        }
        piece.ok_or(TakeError::NotYet)
    }

    /// Gives a piece back.
    ///
    /// # Safety
    ///
    /// [`take`](FrameArena::take) of this arena returned `piece` for `len` bytes, and nothing uses
    /// it any more.
    pub unsafe fn put(&self, piece: NonNull<u8>, len: usize) {
        let mut state = self.state.lock();
        if let Some((&address, &place)) = state.places.range(..=piece.addr().get()).next_back() {
            state.free.put(place + (piece.addr().get() - address), len);
            self.count_idle(&state);
        }
    }

    /// Gives the memory of free pieces back to the system. They can still be taken.
    pub fn discard_free(&self) {
        let (mut state, page) = (self.state.lock(), page_len());
        let ArenaState { segments, free, ready, absent, .. } = &mut *state;
        for free in free.within(0..*ready) {
            let pages = free.start.div_ceil(page)..free.end / page;
            if pages.is_empty() || absent.has_all(pages.clone()) {
                continue;
            }
            let start = free.start % SEGMENT;
            // SAFETY: the piece is free as long as the lock is held, and no free piece crosses a
            // segment's end.
            if unsafe { segments[free.start / SEGMENT].discard(start, start + free.len()) } {
                absent.insert(pages);
            }
        }
        let idle = self.count_idle(&state);
        self.stuck.store(idle, Ordering::Relaxed);
    }

    #[cold]
    fn start_preparing(self: &Arc<Self>) {
        let arena = Arc::downgrade(self);
        if thread::spawn("tamis-pages", move || prepare(&arena)).is_err() {
            // Without a thread, the caller that takes a piece touches it first.
            let mut state = self.state.lock();
            state.make_ready(CHUNK_LEN, self.len);
            state.preparing = false;
            self.count_idle(&state);
        }
    }

    /// The place of the chunk to make ready next, and its segment; `None` if enough is ready.
    fn next_chunk(&self) -> Option<(usize, Arc<Region>)> {
        let mut state = self.state.lock();
        if state.ready == self.len || state.has(HIGH.min(self.len / 16).max(LOW)) {
            state.preparing = false;
            return None;
        }
        Some((state.ready, state.last_segment(self.len)))
    }
}

impl ArenaState {
    /// Whether `bytes` are free, and a piece as long as `wanted`.
    fn has(&self, bytes: usize) -> bool {
        self.free.bytes() >= bytes && self.free.longest() >= self.wanted
    }

    /// The segment of the first place that is not ready, in an arena of `limit` bytes. Less than
    /// `limit` must be ready.
    fn last_segment(&mut self, limit: usize) -> Arc<Region> {
        let place = self.ready - self.ready % SEGMENT;
        if self.segments.len() == place / SEGMENT {
            let region = Region::in_small_pages(SEGMENT.min(limit - place));
            self.places.insert(region.start().addr().get(), place);
            self.segments.push(Arc::new(region));
        }
        Arc::clone(&self.segments[place / SEGMENT])
    }

    /// Makes the next `len` bytes available: whole chunks of one segment.
    fn make_ready(&mut self, len: usize, limit: usize) {
        if len > 0 {
            self.last_segment(limit);
            self.free.put(self.ready, len);
            self.ready += len;
        }
    }
}

/// Makes chunks ready while they are needed and the arena lives.
fn prepare(arena: &Weak<FrameArena>) {
    while let Some((at, segment)) = arena.upgrade().and_then(|arena| arena.next_chunk()) {
        segment.populate_huge(at % SEGMENT);
        let Some(arena) = arena.upgrade() else { return };
        let mut state = arena.state.lock();
        state.make_ready(CHUNK_LEN, arena.len);
        arena.count_idle(&state);
    }
}

/// Numbers of pages.
#[derive(Default)]
struct PageSet {
    words: Vec<u64>,
    count: usize,
}

impl PageSet {
    const BITS: usize = u64::BITS as usize;

    /// The words of these pages, with the bits of each.
    fn masks(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        let words = pages.start / Self::BITS..pages.end.div_ceil(Self::BITS);
        words.map(move |word| {
            let first = word * Self::BITS;
            let (from, to) = (pages.start.max(first) - first, pages.end.min(first + Self::BITS) - first);
            (word, (u64::MAX >> (Self::BITS - (to - from))) << from)
        })
    }

    fn insert(&mut self, pages: Range<usize>) {
        self.words.resize(self.words.len().max(pages.end.div_ceil(Self::BITS)), 0);
        for (word, mask) in Self::masks(pages) {
            self.count += (mask & !self.words[word]).count_ones() as usize;
            self.words[word] |= mask;
        }
    }

    fn remove(&mut self, pages: Range<usize>) {
        if self.count == 0 {
            return;
        }
        for (word, mask) in Self::masks(pages) {
            if let Some(bits) = self.words.get_mut(word) {
                self.count -= (mask & *bits).count_ones() as usize;
                *bits &= !mask;
            }
        }
    }

    fn has_all(&self, pages: Range<usize>) -> bool {
        Self::masks(pages).all(|(word, mask)| self.words.get(word).is_some_and(|bits| mask & !bits == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a piece, retrying until one is ready.
    fn take_with_retry(arena: &Arc<FrameArena>, len: usize) -> NonNull<u8> {
        loop {
            match arena.take(len) {
                Ok(piece) => return piece,
                Err(short) => assert_eq!(short, TakeError::NotYet),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_freed_piece_is_reused() {
        let arena = FrameArena::new(CHUNK_LEN + 1);
        let whole = arena.take(CHUNK_LEN).unwrap();
        assert_eq!(arena.take(64), Err(TakeError::Full));
        // SAFETY: the piece is this long, and nothing else has it.
        unsafe {
            whole.write_bytes(7, CHUNK_LEN);
            arena.put(whole, CHUNK_LEN);
        }
        let (one, two) = (arena.take(64).unwrap(), arena.take(128).unwrap());
        assert_eq!((one, two.addr().get() - one.addr().get()), (whole, 64));
        assert_eq!(one.addr().get() % ALIGN, 0);
        assert_eq!(FrameArena::new(CHUNK_LEN - 1).take(64), Err(TakeError::Full));
    }

    #[test]
    fn ready_memory_stays_a_little_ahead_of_use() {
        let chunks = if cfg!(miri) { 17 } else { 24 };
        let arena = FrameArena::new(chunks * CHUNK_LEN);
        let mut pieces = vec![arena.take(CHUNK_LEN / 2).unwrap()];
        for (value, _) in (1u8..).zip(1..2 * chunks) {
            pieces.push(take_with_retry(&arena, CHUNK_LEN / 2));
            // SAFETY: the piece is this long, and nothing else has it.
            unsafe { pieces[usize::from(value)].write_bytes(value, CHUNK_LEN / 2) };
            let state = arena.state.lock();
            assert!(state.ready <= FIRST || state.free.bytes() < HIGH + CHUNK_LEN);
            assert_eq!(state.ready, state.free.bytes() + pieces.len() * CHUNK_LEN / 2);
        }
        assert_eq!(arena.take(ALIGN), Err(TakeError::Full));
        for (value, piece) in (0u8..).zip(&pieces) {
            // SAFETY: as above. The first piece has not been written to.
            assert_eq!(unsafe { piece.add(CHUNK_LEN / 2 - 1).read() }, value);
        }
        assert!(!arena.state.lock().preparing || arena.next_chunk().is_none());
    }

    /// Much may be free, but in pieces that are too short. Then the arena makes more ready, up to
    /// its length.
    #[test]
    fn a_fragmented_arena_makes_more_ready_up_to_its_length() {
        let arena = FrameArena::new(if cfg!(miri) { 12 } else { 90 } * CHUNK_LEN);
        let len = CHUNK_LEN + CHUNK_LEN / 2;
        let mut pieces = 0;
        loop {
            match arena.take(len) {
                Ok(_) => pieces += 1,
                Err(TakeError::NotYet) => std::thread::yield_now(),
                Err(TakeError::Full) => break,
            }
        }
        // From segments of 32, 32 and 26 chunks.
        assert_eq!(pieces, if cfg!(miri) { 8 } else { 21 + 21 + 17 });
        assert_eq!(arena.take(SEGMENT + ALIGN), Err(TakeError::Full));
    }

    /// Whatever its limit, an arena takes only what is used.
    #[test]
    #[cfg_attr(miri, ignore = "it takes hundreds of megabytes")]
    fn segments_are_mapped_on_demand_and_no_piece_crosses_them() {
        for limit in [usize::MAX, 65 * CHUNK_LEN] {
            let arena = FrameArena::new(limit);
            let mut pieces = [(); 65].map(|()| take_with_retry(&arena, CHUNK_LEN));
            assert_eq!(arena.take(SEGMENT + ALIGN), Err(TakeError::Full));
            assert_eq!(arena.state.lock().segments.len(), 3);
            for &start in &pieces {
                // SAFETY: the pieces are this long, and nothing uses them.
                unsafe { arena.put(start, CHUNK_LEN) };
            }
            // Without such a limit the arena may return other pieces by now.
            if limit < usize::MAX {
                let mut again = [(); 65].map(|()| arena.take(CHUNK_LEN).unwrap());
                pieces.sort_unstable();
                again.sort_unstable();
                assert_eq!(again, pieces);
            }
        }
    }

    #[test]
    fn discard_gives_back_free_pieces_and_keeps_the_others() {
        let arena = FrameArena::new(CHUNK_LEN);
        let pieces = [(); 3].map(|()| arena.take(CHUNK_LEN / 4).unwrap());
        // SAFETY: the pieces are this long, and nothing else has them.
        unsafe {
            pieces.iter().for_each(|piece| piece.write_bytes(7, CHUNK_LEN / 4));
            arena.put(pieces[1], CHUNK_LEN / 4);
            arena.discard_free();
            assert_eq!([pieces[0], pieces[2]].map(|piece| piece.add(CHUNK_LEN / 4 - 1).read()), [7, 7]);
            let again = arena.take(CHUNK_LEN / 4).unwrap();
            assert_eq!(again, pieces[1]);
            let is_given_back = cfg!(all(target_os = "linux", not(miri)));
            assert_eq!(again.read(), if is_given_back { 0 } else { 7 });
        }
    }

    /// What no piece has is idle, and what a discard leaves of that is stuck: only whole pages go
    /// back.
    #[test]
    #[cfg_attr(not(all(target_os = "linux", not(miri))), ignore = "memory comes from the allocator")]
    fn idle_memory_is_counted_and_goes_back_by_whole_pages() {
        let arena = FrameArena::new(4 * CHUNK_LEN);
        let (len, page) = (4096 + 64, page_len());
        let pieces: Vec<_> = (0..1000).map(|_| arena.take(len).unwrap()).collect();
        assert!(arena.idle() < page, "nothing is touched ahead: {}", arena.idle());
        let put = |parity: usize| {
            for piece in pieces.iter().skip(parity).step_by(2) {
                // SAFETY: the piece is this long, and nothing else has it.
                unsafe { arena.put(*piece, len) };
            }
        };
        put(0);
        assert_eq!((arena.idle() / len, arena.stuck()), (500, 0));
        arena.discard_free();
        // A page that begins within a free piece ends behind it, but for one in 65.
        assert_eq!(arena.idle(), arena.stuck());
        assert!(arena.stuck() > 450 * len && arena.stuck() < 500 * len, "{}", arena.stuck());
        let again = arena.take(len).unwrap();
        assert!(arena.stuck() <= 500 * len - len && arena.idle() >= arena.stuck());
        // SAFETY: as above.
        unsafe { arena.put(again, len) };
        put(1);
        arena.discard_free();
        assert_eq!((arena.idle(), arena.stuck()), (0, 0));
        let whole = arena.take(4 * CHUNK_LEN).unwrap();
        // SAFETY: the piece is this long.
        assert_eq!(unsafe { whole.add(1000 * len).read() }, 0);
        assert_eq!(arena.idle(), 0);
    }
}
