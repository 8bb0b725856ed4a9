//! [`Lasting`]: memory for what stays as long as a table is open, in huge pages when there is enough of it.
//!
//! Such pieces are written once and read in no order, and [`Arena`](super::Arena) tells why they should stand in huge pages. But they come
//! at once when a store is opened, and it is a reader who needs them. So nothing is made ready: pieces are cut from small pages, which
//! are touched when they are written to, as the allocator's are. When a chunk is nearly full a thread has the system move it into a
//! huge page. No address changes, and nobody has to know whether that has happened.
//!
//! So a store takes little more than it uses: whole pages of what is free are given back, but in huge pages of which half is used.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::CHUNK_LEN;
use super::extents::{Extents, SEGMENT};
use super::region::Region;

/// Pieces are aligned to this, and as long as a multiple of it.
pub(super) const ALIGN: usize = super::region::ALIGN;
/// The pages of a chunk of which so much is used are joined.
const CROWDED: usize = CHUNK_LEN / 8 * 7;
/// A huge page of which less is used is split again.
const SPARSE: usize = CHUNK_LEN / 2;

/// See the module.
#[derive(Default)]
pub(crate) struct Lasting {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    segments: Vec<Arc<Region>>,
    free: Extents,
    /// Of all segments.
    chunks: Vec<Use>,
    /// Whether there is a thread that joins pages.
    joining: bool,
}

/// How a chunk is used.
#[derive(Clone, Copy, Default)]
struct Use {
    bytes: usize,
    /// Whether it stands in a huge page, or the system has been asked for one.
    joined: bool,
}

/// A piece of lasting memory, initialised with whatever was there. It goes back when it is dropped.
pub(super) struct Piece {
    lasting: Arc<Lasting>,
    start: NonNull<u8>,
    places: Range<usize>,
}

// SAFETY: a piece is the only owner of its memory.
unsafe impl Send for Piece {}
// SAFETY: a shared piece tells its address, and no more.
unsafe impl Sync for Piece {}

impl Lasting {
    /// `len` bytes, a multiple of [`ALIGN`] and not 0, if the system has huge pages and such a piece fits a segment.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<Piece> {
        assert!(len > 0 && len.is_multiple_of(ALIGN), "pieces are cut at pairs of lines");
        let mut state = self.state.lock();
        let at = match state.free.take(len) {
            None if len <= SEGMENT => {
                state.add(Region::mapped(SEGMENT)?);
                state.free.take(len)?
            }
            at => at?,
        };
        let places = at..at + len;
        for (chunk, part) in chunks(&places) {
            state.chunks[chunk].bytes += part;
        }
        // SAFETY: what is free lies within a segment.
        let start = unsafe { state.segments[at / SEGMENT].start().add(at % SEGMENT) };
        drop(state);
        Some(Piece { lasting: Arc::clone(self), start, places })
    }

    /// To be called when pieces have been written to: sees to it that crowded chunks come into huge pages.
    pub(super) fn join_pages(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.joining || state.crowded().is_none() {
            return;
        }
        state.joining = true;
        drop(state);
        let lasting = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("tamis-pages".into());
        if thread.spawn(move || join_pages(&lasting)).is_err() {
            // Then the next piece is an occasion.
            self.state.lock().joining = false;
        }
    }

    /// The chunk whose pages are to be joined next, and its segment.
    fn next_crowded(&self) -> Option<(usize, Arc<Region>)> {
        let mut state = self.state.lock();
        let crowded = state.crowded();
        state.joining = crowded.is_some();
        crowded.map(|chunk| (chunk, Arc::clone(&state.segments[chunk * CHUNK_LEN / SEGMENT])))
    }
}

/// Joins the pages of chunks, as long as there are crowded ones.
fn join_pages(lasting: &Weak<Lasting>) {
    while let Some((chunk, segment)) = lasting.upgrade().and_then(|lasting| lasting.next_crowded()) {
        segment.join_pages(chunk * CHUNK_LEN % SEGMENT);
        let Some(lasting) = lasting.upgrade() else { return };
        let mut state = lasting.state.lock();
        state.chunks[chunk].joined = true;
        // Much of it may have gone back meanwhile.
        state.settle(chunk);
    }
}

/// The chunks in which these places are, and how many of these are in each.
fn chunks(places: &Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let Range { start, end } = *places;
    let part = move |chunk| (chunk, end.min((chunk + 1) * CHUNK_LEN) - start.max(chunk * CHUNK_LEN));
    (start / CHUNK_LEN..end.div_ceil(CHUNK_LEN)).map(part)
}

impl State {
    /// Adds a segment, of which nothing is used.
    fn add(&mut self, region: Region) {
        self.free.put(self.segments.len() * SEGMENT, region.len());
        self.segments.push(Arc::new(region));
        self.chunks.resize(self.segments.len() * (SEGMENT / CHUNK_LEN), Use::default());
    }

    fn crowded(&self) -> Option<usize> {
        self.chunks.iter().position(|chunk| !chunk.joined && chunk.bytes >= CROWDED)
    }

    /// Gives back what is free in a chunk, unless it stands in a huge page and is used well.
    fn settle(&mut self, chunk: usize) {
        let Use { bytes, joined } = &mut self.chunks[chunk];
        *joined &= *bytes >= SPARSE;
        if *joined {
            return;
        }
        let start = chunk * CHUNK_LEN;
        for free in self.free.within(start..start + CHUNK_LEN) {
            let start = free.start % SEGMENT;
            // SAFETY: it is free as long as the lock is held, and lies within a segment.
            unsafe { self.segments[free.start / SEGMENT].discard(start, start + free.len()) };
        }
    }
}

impl Piece {
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut state = self.lasting.state.lock();
        state.free.put(self.places.start, self.places.len());
        for (chunk, part) in chunks(&self.places) {
            state.chunks[chunk].bytes -= part;
            state.settle(chunk);
        }
    }
}

#[cfg(test)]
impl Lasting {
    /// One that has so many chunks, which may be the allocator's, before it asks the system for more.
    pub(super) fn with_chunks(count: usize) -> Arc<Lasting> {
        let lasting = Arc::<Lasting>::default();
        lasting.state.lock().add(Region::in_small_pages(count * CHUNK_LEN));
        lasting
    }

    /// Waits until there are no pages to be joined; returns which chunks stand in huge ones.
    pub(super) fn settled(self: &Arc<Self>) -> Vec<bool> {
        self.join_pages();
        while self.state.lock().joining {
            std::thread::yield_now();
        }
        let state = self.state.lock();
        assert_eq!(state.crowded(), None);
        state.chunks.iter().map(|chunk| chunk.joined).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(piece: &Piece, value: u8) {
        // SAFETY: a piece is as long, and the test has it alone.
        unsafe { piece.start().write_bytes(value, piece.places.len()) };
    }

    fn ends(piece: &Piece) -> [u8; 2] {
        // SAFETY: as above.
        unsafe { [piece.start().read(), piece.start().add(piece.places.len() - 1).read()] }
    }

    #[test]
    fn what_was_given_back_is_given_again() {
        let lasting = Lasting::with_chunks(1);
        let pieces = [(); 4].map(|()| lasting.take(CHUNK_LEN / 4).unwrap());
        assert!(pieces.iter().all(|piece| piece.start().addr().get().is_multiple_of(ALIGN)));
        (0..).zip(&pieces).for_each(|(value, piece)| fill(piece, value));
        let [one, two, three, four] = pieces;
        let place = two.start();
        drop(two);
        let two = lasting.take(CHUNK_LEN / 4 - ALIGN).unwrap();
        assert_eq!((two.start(), ends(&one), ends(&three), ends(&four)), (place, [0; 2], [2; 2], [3; 2]));
        assert!(lasting.take(SEGMENT + ALIGN).is_none());
    }

    #[test]
    fn pages_are_joined_when_they_are_used_and_split_when_they_are_not() {
        let lasting = Lasting::with_chunks(3);
        let len = CHUNK_LEN / 8;
        // The one in the middle reaches from one chunk into the next.
        let lens = [len; 7].into_iter().chain([2 * len]).chain([len; 5]);
        let mut pieces: Vec<Piece> = lens.map(|len| lasting.take(len).unwrap()).collect();
        (0..).zip(&pieces).for_each(|(value, piece)| fill(piece, value));
        assert_eq!(lasting.settled()[..3], [true, false, false]);
        pieces.push(lasting.take(len).unwrap());
        fill(&pieces[13], 13);
        assert_eq!(lasting.settled()[..3], [true, true, false]);
        pieces.drain(..4);
        assert!(lasting.state.lock().chunks[0].joined);
        pieces.remove(0);
        assert!(!lasting.state.lock().chunks[0].joined);
        assert_eq!(lasting.settled()[..3], [false, true, false]);
        for (value, piece) in (5..).zip(&pieces) {
            assert_eq!(ends(piece), [value; 2]);
        }
        // What was split off was given back, if the system takes it.
        let piece = lasting.take(5 * len).unwrap();
        let is_given_back = cfg!(all(target_os = "linux", not(miri)));
        assert_eq!(ends(&piece), if is_given_back { [0, 0] } else { [0, 4] });
        drop((piece, pieces));
        let state = lasting.state.lock();
        assert_eq!(state.free.bytes(), state.free.longest());
        assert!(state.chunks.iter().all(|chunk| chunk.bytes == 0 && !chunk.joined));
    }

    #[test]
    fn a_store_that_is_gone_leaves_its_pieces() {
        let lasting = Lasting::with_chunks(1);
        let piece = lasting.take(CHUNK_LEN).unwrap();
        fill(&piece, 7);
        lasting.join_pages();
        drop(lasting);
        assert_eq!(ends(&piece), [7; 2]);
    }
}
