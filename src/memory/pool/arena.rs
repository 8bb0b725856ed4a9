//! [`Arena`]: one piece of memory, in huge pages where the system has them, that is cut into many.
//!
//! A processor finds the address of a page of 4 KiB in its own tables only for some 16 MiB of them. What is larger and read in no
//! order, as cached blocks are, waits for that at every access, unless it stands in huge pages.
//!
//! The first touch of a huge page takes a hundred times as long as that of a small one, and on some systems that are guests of others
//! milliseconds. Whoever takes a piece must not wait for that, and whoever reads one even less. So a thread touches the pages before
//! pieces are cut from them, always a little ahead of what is taken. As long as it has not come so far there is nothing to be taken.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::CHUNK_LEN;
use super::extents::{Extents, SEGMENT};
use super::region::Region;

/// Pieces are aligned to this, and as long as a multiple of it: a cache line.
pub(crate) const ALIGN: usize = 64;
/// So many bytes can be taken at once, in small pages: half of what the processor knows the addresses of. Who needs half of that needs no
/// thread.
const FIRST: usize = 4 * CHUNK_LEN;
/// The thread begins when less than `LOW` is free, and goes on until it is `HIGH`.
const LOW: usize = 2 * CHUNK_LEN;
const HIGH: usize = 8 * CHUNK_LEN;

/// Memory of a fixed length at most, which is taken from the system as it is used.
///
/// Places in it are counted through all segments.
pub(crate) struct Arena {
    len: usize,
    state: Mutex<State>,
}

/// What [`Arena::take`] may say instead of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// There will be a piece as long.
    ForNow,
    /// What there is belongs to others, or is in too small pieces.
    OfRoom,
}

#[derive(Default)]
struct State {
    segments: Vec<Arc<Region>>,
    /// Places of the segments by their addresses.
    places: BTreeMap<usize, usize>,
    /// Before `ready`.
    free: Extents,
    /// Where what can be taken, or was, ends.
    ready: usize,
    /// The longest piece that somebody waits for: what is free may be enough of it and too short.
    wanted: usize,
    /// Whether there is a thread that makes more ready.
    preparing: bool,
}

impl Arena {
    /// An arena of `len` bytes, less what is no multiple of [`CHUNK_LEN`].
    pub(crate) fn new(len: usize) -> Arc<Arena> {
        Arc::new(Arena { len: len - len % CHUNK_LEN, state: Mutex::default() })
    }

    /// `len` bytes, a multiple of [`ALIGN`] and not 0, of any content.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Result<NonNull<u8>, Short> {
        assert!(len > 0 && len.is_multiple_of(ALIGN), "pieces are cut at lines");
        let mut state = self.state.lock();
        if state.ready == 0 {
            state.make_ready(FIRST.min(self.len), self.len);
        }
        let place = state.free.take(len);
        // SAFETY: what is free lies within a segment.
        let piece = place.map(|at| unsafe { state.segments[at / SEGMENT].start().add(at % SEGMENT) });
        if state.ready == self.len || len > SEGMENT {
            return piece.ok_or(Short::OfRoom);
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
        piece.ok_or(Short::ForNow)
    }

    /// # Safety
    ///
    /// [`take`](Arena::take) of this arena returned `piece` for `len` bytes, which nobody uses any more.
    pub(crate) unsafe fn put(&self, piece: NonNull<u8>, len: usize) {
        let mut state = self.state.lock();
        if let Some((&address, &place)) = state.places.range(..=piece.addr().get()).next_back() {
            state.free.put(place + (piece.addr().get() - address), len);
        }
    }

    /// Gives what is free back to the system. It can be taken as before.
    pub(crate) fn discard_free(&self) {
        let state = self.state.lock();
        for free in state.free.within(0..state.ready) {
            let start = free.start % SEGMENT;
            // SAFETY: it is free as long as the lock is held, and no free piece reaches beyond its segment.
            unsafe { state.segments[free.start / SEGMENT].discard(start, start + free.len()) };
        }
    }

    #[cold]
    fn start_preparing(self: &Arc<Self>) {
        let arena = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("tamis-pages".into());
        if thread.spawn(move || prepare(&arena)).is_err() {
            // Then it is whoever takes a piece who touches it first.
            let mut state = self.state.lock();
            state.make_ready(CHUNK_LEN, self.len);
            state.preparing = false;
        }
    }

    /// The chunk that is to be made ready next, if there is to be more: its place, and the segment that it is in.
    fn next_chunk(&self) -> Option<(usize, Arc<Region>)> {
        let mut state = self.state.lock();
        if state.ready == self.len || state.has(HIGH) {
            state.preparing = false;
            return None;
        }
        Some((state.ready, state.last_segment(self.len)))
    }
}

impl State {
    /// Whether `bytes` are free, and the piece that somebody waits for.
    fn has(&self, bytes: usize) -> bool {
        self.free.bytes() >= bytes && self.free.longest() >= self.wanted
    }

    /// The segment in which the first place that is not ready lies, of an arena of `limit` bytes, which must have more than are ready.
    fn last_segment(&mut self, limit: usize) -> Arc<Region> {
        let place = self.ready - self.ready % SEGMENT;
        if self.segments.len() == place / SEGMENT {
            let region = Region::in_small_pages(SEGMENT.min(limit - place));
            self.places.insert(region.start().addr().get(), place);
            self.segments.push(Arc::new(region));
        }
        Arc::clone(&self.segments[place / SEGMENT])
    }

    /// Lets the next `len` bytes, chunks of one segment, be taken.
    fn make_ready(&mut self, len: usize, limit: usize) {
        if len > 0 {
            self.last_segment(limit);
            self.free.put(self.ready, len);
            self.ready += len;
        }
    }
}

/// Makes chunks ready, as long as they are needed and there is an arena.
fn prepare(arena: &Weak<Arena>) {
    while let Some((at, segment)) = arena.upgrade().and_then(|arena| arena.next_chunk()) {
        segment.populate_huge(at % SEGMENT);
        let Some(arena) = arena.upgrade() else { return };
        arena.state.lock().make_ready(CHUNK_LEN, arena.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece, as soon as there is one.
    fn take_in_time(arena: &Arc<Arena>, len: usize) -> NonNull<u8> {
        loop {
            match arena.take(len) {
                Ok(piece) => return piece,
                Err(short) => assert_eq!(short, Short::ForNow),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_was_given_back_is_given_again() {
        let arena = Arena::new(CHUNK_LEN + 1);
        let whole = arena.take(CHUNK_LEN).unwrap();
        assert_eq!(arena.take(64), Err(Short::OfRoom));
        // SAFETY: the piece is this long, and nobody else has it.
        unsafe {
            whole.write_bytes(7, CHUNK_LEN);
            arena.put(whole, CHUNK_LEN);
        }
        let (one, two) = (arena.take(64).unwrap(), arena.take(128).unwrap());
        assert_eq!((one, two.addr().get() - one.addr().get()), (whole, 64));
        assert_eq!(one.addr().get() % ALIGN, 0);
        assert_eq!(Arena::new(CHUNK_LEN - 1).take(64), Err(Short::OfRoom));
    }

    #[test]
    fn what_is_ready_grows_ahead_of_what_is_taken_and_no_further() {
        let chunks = if cfg!(miri) { 5 } else { 15 };
        let arena = Arena::new(chunks * CHUNK_LEN);
        let mut pieces = vec![arena.take(CHUNK_LEN / 2).unwrap()];
        for (value, _) in (1u8..).zip(1..2 * chunks) {
            pieces.push(take_in_time(&arena, CHUNK_LEN / 2));
            // SAFETY: the piece is this long, and nobody else has it.
            unsafe { pieces[usize::from(value)].write_bytes(value, CHUNK_LEN / 2) };
            let state = arena.state.lock();
            assert!(state.ready <= FIRST || state.free.bytes() < HIGH + CHUNK_LEN);
            assert_eq!(state.ready, state.free.bytes() + pieces.len() * CHUNK_LEN / 2);
        }
        assert_eq!(arena.take(ALIGN), Err(Short::OfRoom));
        for (value, piece) in (0u8..).zip(&pieces) {
            // SAFETY: as above. The first piece has not been written to.
            assert_eq!(unsafe { piece.add(CHUNK_LEN / 2 - 1).read() }, value);
        }
        assert!(!arena.state.lock().preparing || arena.next_chunk().is_none());
    }

    /// What is free may be much, and in too short pieces. Then there will be more of it, up to the last of the arena.
    #[test]
    fn pieces_that_leave_much_over_come_in_the_end() {
        let arena = Arena::new(if cfg!(miri) { 12 } else { 90 } * CHUNK_LEN);
        let len = CHUNK_LEN + CHUNK_LEN / 2;
        let mut pieces = 0;
        loop {
            match arena.take(len) {
                Ok(_) => pieces += 1,
                Err(Short::ForNow) => std::thread::yield_now(),
                Err(Short::OfRoom) => break,
            }
        }
        // Of segments of 32, 32 and 26 chunks.
        assert_eq!(pieces, if cfg!(miri) { 8 } else { 21 + 21 + 17 });
        assert_eq!(arena.take(SEGMENT + ALIGN), Err(Short::OfRoom));
    }

    /// Whatever its limit is, an arena takes what is used.
    #[test]
    #[cfg_attr(miri, ignore = "it takes hundreds of megabytes")]
    fn segments_are_taken_one_by_one_and_stay_apart() {
        for limit in [usize::MAX, 65 * CHUNK_LEN] {
            let arena = Arena::new(limit);
            let mut pieces = [(); 65].map(|()| take_in_time(&arena, CHUNK_LEN));
            assert_eq!(arena.take(SEGMENT + ALIGN), Err(Short::OfRoom));
            assert_eq!(arena.state.lock().segments.len(), 3);
            for &start in &pieces {
                // SAFETY: the pieces are this long, and nobody uses them.
                unsafe { arena.put(start, CHUNK_LEN) };
            }
            // Without such a limit there may be others by now.
            if limit < usize::MAX {
                let mut again = [(); 65].map(|()| arena.take(CHUNK_LEN).unwrap());
                pieces.sort_unstable();
                again.sort_unstable();
                assert_eq!(again, pieces);
            }
        }
    }

    #[test]
    fn what_is_free_is_given_back_and_what_is_not_stays() {
        let arena = Arena::new(CHUNK_LEN);
        let pieces = [(); 3].map(|()| arena.take(CHUNK_LEN / 4).unwrap());
        // SAFETY: the pieces are this long, and nobody else has them.
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
