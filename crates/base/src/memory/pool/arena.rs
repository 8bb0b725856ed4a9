//! [`FrameArena`]: the memory of cached blocks, in huge pages where the system has them.
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
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::CHUNK_LEN;
use super::extents::{Extents, SEGMENT};
use super::region::Region;
use crate::sync::{Mutex, thread};

/// Alignment of pieces; their length is a multiple of it. A cache line.
pub const ALIGN: usize = 64;
/// Bytes available at once, in small pages: half of what the processor's tables cover. A cache that
/// needs only half of that starts no thread.
const FIRST: usize = 4 * CHUNK_LEN;
/// The thread starts when less than `LOW` is free, and goes on until `HIGH` is.
const LOW: usize = 2 * CHUNK_LEN;
const HIGH: usize = 8 * CHUNK_LEN;

/// Memory up to a fixed length, taken from the system as it is used.
///
/// A *place* is an offset counted through all segments.
pub struct FrameArena {
    len: usize,
    state: Mutex<ArenaState>,
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
    /// End of the places that are touched and may be taken.
    ready: usize,
    /// Longest piece that a caller waits for. There may be enough free bytes, but in shorter
    /// pieces.
    wanted: usize,
    /// Whether the thread that makes more ready is running.
    preparing: bool,
}

impl FrameArena {
    /// An arena of `len` bytes, rounded down to a multiple of [`CHUNK_LEN`].
    pub fn new(len: usize) -> Arc<FrameArena> {
        Arc::new(FrameArena { len: len - len % CHUNK_LEN, state: Mutex::default() })
    }

    /// `len` bytes of any content; `len` is a multiple of [`ALIGN`] and not 0.
    pub fn take(self: &Arc<Self>, len: usize) -> Result<NonNull<u8>, TakeError> {
        assert!(len > 0 && len.is_multiple_of(ALIGN), "the length of a piece is a positive multiple of ALIGN");
        let mut state = self.state.lock();
        if state.ready == 0 {
            state.make_ready(FIRST.min(self.len), self.len);
        }
        let place = state.free.take(len);
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
        }
    }

    /// Gives the memory of free pieces back to the system. They can still be taken.
    pub fn discard_free(&self) {
        let state = self.state.lock();
        for free in state.free.within(0..state.ready) {
            let start = free.start % SEGMENT;
            // SAFETY: the piece is free as long as the lock is held, and no free piece crosses a
            // segment's end.
            unsafe { state.segments[free.start / SEGMENT].discard(start, start + free.len()) };
        }
    }

    #[cold]
    fn start_preparing(self: &Arc<Self>) {
        let arena = Arc::downgrade(self);
        if thread::spawn("tamis-pages", move || prepare(&arena)).is_err() {
            // Without a thread, the caller that takes a piece touches it first.
            let mut state = self.state.lock();
            state.make_ready(CHUNK_LEN, self.len);
            state.preparing = false;
        }
    }

    /// The place of the chunk to make ready next, and its segment; `None` if enough is ready.
    fn next_chunk(&self) -> Option<(usize, Arc<Region>)> {
        let mut state = self.state.lock();
        if state.ready == self.len || state.has(HIGH) {
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
        arena.state.lock().make_ready(CHUNK_LEN, arena.len);
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
        let chunks = if cfg!(miri) { 5 } else { 15 };
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
}
