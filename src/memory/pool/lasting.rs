//! [`Lasting`]: memory for what stays as long as a table is open, in huge pages when there is enough of it.
//!
//! Such pieces are written once and read in no order, and [`Arena`](super::Arena) tells why they should stand in huge pages. But they come
//! at once when a store is opened, and it is a reader who needs them. So nothing is made ready: pieces are cut from small pages, which
//! are touched when they are written to, as the allocator's are. When a chunk is nearly full a thread has the system move it into a
//! huge page. No address changes, and nobody has to know whether that has happened.
//!
//! So a store takes little more than it uses: what is free is given back page by page, but in huge pages of which most is used. Where the
//! system cannot join pages (before Linux 6.1), all stay small. Where it makes every first touch one of a huge page, there are no small
//! ones, and a store takes whole chunks.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::CHUNK_LEN;
use super::extents::{Extents, SEGMENT};
use super::region::Region;

/// Pieces are aligned to this, and as long as a multiple of it: pages of the usual size, so that a piece that goes can be given back whole.
pub(super) const ALIGN: usize = super::region::LEAST_PAGE;
/// The pages of a chunk of which so much is used are joined.
const CROWDED: usize = CHUNK_LEN / 8 * 7;
/// A huge page of which less is used is split again.
const SPARSE: usize = CHUNK_LEN / 4 * 3;

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
    /// Whether the system has said that it does not do that.
    refused: bool,
}

/// How a chunk is used.
#[derive(Clone, Copy, Default)]
struct Use {
    bytes: usize,
    /// Whether it stands in a huge page, or the system is or was asked for one, and nothing of it is given back.
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
    /// At least `len` bytes, which must not be 0, if the system has memory of its own to give and such a piece fits a segment.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<Piece> {
        let len = len.checked_next_multiple_of(ALIGN)?;
        assert!(len > 0, "there are no pieces of nothing");
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
            state.chunks[chunk].bytes += part.len();
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

    /// Bytes that nobody uses and that are not given back.
    pub(crate) fn idle(&self) -> usize {
        let state = self.state.lock();
        state.chunks.iter().filter(|chunk| chunk.joined).map(|chunk| CHUNK_LEN - chunk.bytes).sum()
    }

    /// The chunk whose pages are to be joined next, and its segment.
    fn next_crowded(&self) -> Option<(usize, Arc<Region>)> {
        let mut state = self.state.lock();
        let crowded = state.crowded();
        state.joining = crowded.is_some();
        crowded.map(|chunk| {
            state.chunks[chunk].joined = true;
            (chunk, Arc::clone(&state.segments[chunk * CHUNK_LEN / SEGMENT]))
        })
    }
}

/// Joins the pages of chunks, as long as there are crowded ones.
fn join_pages(lasting: &Weak<Lasting>) {
    while let Some((chunk, segment)) = lasting.upgrade().and_then(|lasting| lasting.next_crowded()) {
        let taken = segment.join_pages(chunk * CHUNK_LEN % SEGMENT);
        let Some(lasting) = lasting.upgrade() else { return };
        let mut state = lasting.state.lock();
        state.refused |= !taken;
        if !state.chunks[chunk].joined {
            // Too much of it has gone back meanwhile.
            state.discard_free(chunk * CHUNK_LEN..(chunk + 1) * CHUNK_LEN);
        }
    }
}

/// The chunks in which these places are, and which of these are in each.
fn chunks(places: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
    let Range { start, end } = *places;
    let part = move |chunk| (chunk, start.max(chunk * CHUNK_LEN)..end.min((chunk + 1) * CHUNK_LEN));
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
        let is_crowded = |chunk: &Use| !chunk.joined && chunk.bytes >= CROWDED;
        if self.refused { None } else { self.chunks.iter().position(is_crowded) }
    }

    /// Takes back what stood at `places`.
    fn put(&mut self, places: &Range<usize>) {
        self.free.put(places.start, places.len());
        for (chunk, part) in chunks(places) {
            let Use { bytes, joined } = &mut self.chunks[chunk];
            *bytes -= part.len();
            if !*joined {
                self.discard_free(part);
            } else if *bytes < SPARSE {
                *joined = false;
                self.discard_free(chunk * CHUNK_LEN..(chunk + 1) * CHUNK_LEN);
            }
        }
    }

    /// Gives back to the system what is free of these places, which lie in one chunk.
    fn discard_free(&self, places: Range<usize>) {
        for free in self.free.within(places) {
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
        // The system takes a tenth of a millisecond for a megabyte. Those who wait for the lock meanwhile open tables, which takes longer.
        self.lasting.state.lock().put(&self.places);
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
        let two = lasting.take(CHUNK_LEN / 4 - ALIGN - 1).unwrap();
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
        if lasting.state.lock().refused {
            // An older system: nothing is joined from now on.
            return;
        }
        pieces.push(lasting.take(len).unwrap());
        fill(&pieces[13], 13);
        assert_eq!(lasting.settled()[..3], [true, true, false]);
        pieces.drain(..2);
        assert!(lasting.state.lock().chunks[0].joined);
        // And an eighth of the second chunk.
        assert_eq!(lasting.idle(), 3 * len);
        pieces.remove(0);
        assert_eq!(lasting.idle(), len);
        assert!(!lasting.state.lock().chunks[0].joined);
        assert_eq!(lasting.settled()[..3], [false, true, false]);
        for (value, piece) in (3..).zip(&pieces) {
            assert_eq!(ends(piece), [value; 2]);
        }
        // What was split off was given back, if the system takes it.
        let piece = lasting.take(3 * len).unwrap();
        let is_given_back = cfg!(all(target_os = "linux", not(miri)));
        assert_eq!(ends(&piece), if is_given_back { [0, 0] } else { [0, 2] });
        drop((piece, pieces));
        let state = lasting.state.lock();
        assert_eq!(state.free.bytes(), state.free.longest());
        assert!(state.chunks.iter().all(|chunk| chunk.bytes == 0 && !chunk.joined));
    }

    #[test]
    fn what_goes_of_small_pages_is_given_back_at_once() {
        let lasting = Lasting::with_chunks(1);
        let len = CHUNK_LEN / 16;
        let mut pieces: Vec<Piece> = (0..13).map(|_| lasting.take(len).unwrap()).collect();
        (0..).zip(&pieces).for_each(|(value, piece)| fill(piece, value));
        // Neither crowded nor sparse.
        assert_eq!(lasting.settled(), [false; SEGMENT / CHUNK_LEN]);
        pieces.remove(7);
        assert_eq!(lasting.idle(), 0);
        let piece = lasting.take(len).unwrap();
        let is_given_back = cfg!(all(target_os = "linux", not(miri)));
        assert_eq!(ends(&piece), if is_given_back { [0, 0] } else { [7, 7] });
        assert_eq!((ends(&pieces[6]), ends(&pieces[7])), ([6, 6], [8, 8]));
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
