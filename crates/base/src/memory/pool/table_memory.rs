//! [`TableMemory`]: memory for what an open table keeps, in huge pages once a chunk is mostly used.
//!
//! Such pieces are written once and read at random, so huge pages help, as in an
//! [`FrameArena`](super::FrameArena). But a store takes them all at once when it opens, while
//! readers wait for them. Therefore nothing is touched in advance. Pieces are cut from small pages,
//! which are touched when they are written, as the allocator's are. When a chunk is nearly full, a
//! thread has the system move it into a huge page. Addresses do not change, and readers need not
//! know.
//!
//! A store therefore takes little more memory than it uses: free pieces go back to the system page
//! by page, except in huge pages that are mostly used. Where the system cannot join pages (before
//! Linux 6.1), all stay small. Where the system backs every first touch with a huge page, a store
//! takes whole chunks.
//!
//! With the allocator's memory instead (5 M keys, compacted, three rounds in turn): `multiget100`
//! 0.86, `seekrandom` 0.89, `readmissing` 0.92 of the speed, `readrandom` 0.98.
//!
//! To remove it, let [`TableArray`](super::TableArray) take its memory from the allocator.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::CHUNK_LEN;
use super::extents::{Extents, SEGMENT};
use super::region::Region;
use crate::sync::{Mutex, thread};

/// Alignment of pieces; their length is a multiple of it. A page of the usual size, so that a freed
/// piece can go back to the system whole.
pub(super) const ALIGN: usize = super::region::LEAST_PAGE;
/// A chunk of which at least this much is used is moved into a huge page.
const CROWDED: usize = CHUNK_LEN / 8 * 7;
/// A huge page of which less is used is split again.
const SPARSE: usize = CHUNK_LEN / 4 * 3;

/// Memory for open tables; see the module.
#[derive(Default)]
pub struct TableMemory {
    state: Mutex<TableMemoryState>,
}

#[derive(Default)]
struct TableMemoryState {
    segments: Vec<Arc<Region>>,
    free: Extents,
    /// The chunks of all segments.
    chunks: Vec<ChunkUse>,
    /// Whether the thread that joins pages is running.
    joining: bool,
    /// Whether the system has reported that it cannot join pages.
    refused: bool,
}

/// How much of a chunk is used.
#[derive(Clone, Copy, Default)]
struct ChunkUse {
    bytes: usize,
    /// Whether the chunk is in a huge page, or one was requested. Its free parts are then not given
    /// back.
    joined: bool,
}

/// A piece of table memory, initialised with any content. It goes back when it is dropped.
pub(super) struct TablePiece {
    memory: Arc<TableMemory>,
    start: NonNull<u8>,
    places: Range<usize>,
}

// SAFETY: a piece is the only owner of its memory.
unsafe impl Send for TablePiece {}
// SAFETY: a shared piece gives out its address only.
unsafe impl Sync for TablePiece {}

impl TableMemory {
    /// At least `len` bytes, which must not be 0; `None` if the system maps no memory, or the piece
    /// does not fit a segment.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<TablePiece> {
        let len = len.checked_next_multiple_of(ALIGN)?;
        assert!(len > 0, "a piece is not empty");
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
        // SAFETY: free pieces lie within a segment.
        let start = unsafe { state.segments[at / SEGMENT].start().add(at % SEGMENT) };
        drop(state);
        Some(TablePiece { memory: Arc::clone(self), start, places })
    }

    /// Has crowded chunks moved into huge pages. To be called after writing to pieces.
    pub(super) fn join_pages(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.joining || state.crowded().is_none() {
            return;
        }
        state.joining = true;
        drop(state);
        let memory = Arc::downgrade(self);
        if thread::spawn("tamis-pages", move || join_pages(&memory)).is_err() {
            // The next piece will try again.
            self.state.lock().joining = false;
        }
    }

    /// Bytes that are free but not given back to the system.
    pub fn idle(&self) -> usize {
        let state = self.state.lock();
        state.chunks.iter().filter(|chunk| chunk.joined).map(|chunk| CHUNK_LEN - chunk.bytes).sum()
    }

    /// The next chunk to move into a huge page, and its segment.
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

/// Moves crowded chunks into huge pages until none is left.
fn join_pages(memory: &Weak<TableMemory>) {
    while let Some((chunk, segment)) = memory.upgrade().and_then(|memory| memory.next_crowded()) {
        let taken = segment.join_pages(chunk * CHUNK_LEN % SEGMENT);
        let Some(memory) = memory.upgrade() else { return };
        let mut state = memory.state.lock();
        state.refused |= !taken;
        if !state.chunks[chunk].joined {
            // Too much of the chunk was freed meanwhile.
            state.discard_free(chunk * CHUNK_LEN..(chunk + 1) * CHUNK_LEN);
        }
    }
}

/// The chunks that `places` lie in, each with the part of `places` in it.
fn chunks(places: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
    let Range { start, end } = *places;
    let part = move |chunk| (chunk, start.max(chunk * CHUNK_LEN)..end.min((chunk + 1) * CHUNK_LEN));
    (start / CHUNK_LEN..end.div_ceil(CHUNK_LEN)).map(part)
}

impl TableMemoryState {
    /// Adds a segment, all of it free.
    fn add(&mut self, region: Region) {
        self.free.put(self.segments.len() * SEGMENT, region.len());
        self.segments.push(Arc::new(region));
        self.chunks.resize(self.segments.len() * (SEGMENT / CHUNK_LEN), ChunkUse::default());
    }

    fn crowded(&self) -> Option<usize> {
        let is_crowded = |chunk: &ChunkUse| !chunk.joined && chunk.bytes >= CROWDED;
        if self.refused { None } else { self.chunks.iter().position(is_crowded) }
    }

    /// Frees `places`.
    fn put(&mut self, places: &Range<usize>) {
        self.free.put(places.start, places.len());
        for (chunk, part) in chunks(places) {
            let ChunkUse { bytes, joined } = &mut self.chunks[chunk];
            *bytes -= part.len();
            if !*joined {
                self.discard_free(part);
            } else if *bytes < SPARSE {
                *joined = false;
                self.discard_free(chunk * CHUNK_LEN..(chunk + 1) * CHUNK_LEN);
            }
        }
    }

    /// Gives the free parts of `places`, which lie in one chunk, back to the system.
    fn discard_free(&self, places: Range<usize>) {
        for free in self.free.within(places) {
            let start = free.start % SEGMENT;
            // SAFETY: the part is free as long as the lock is held, and lies within a segment.
            unsafe { self.segments[free.start / SEGMENT].discard(start, start + free.len()) };
        }
    }
}

impl TablePiece {
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for TablePiece {
    fn drop(&mut self) {
        // The system takes a tenth of a millisecond for a megabyte. Threads that wait for the lock
        // meanwhile open tables, which takes longer.
        self.memory.state.lock().put(&self.places);
    }
}

#[cfg(test)]
impl TableMemory {
    /// An instance with `count` chunks, possibly from the allocator, before it maps more.
    pub(super) fn with_chunks(count: usize) -> Arc<TableMemory> {
        let memory = Arc::<TableMemory>::default();
        memory.state.lock().add(Region::in_small_pages(count * CHUNK_LEN));
        memory
    }

    /// Waits until no pages are left to join; returns which chunks are in huge pages.
    pub(super) fn settled(self: &Arc<Self>) -> Vec<bool> {
        self.join_pages();
        while self.state.lock().joining {
            thread::yield_now();
        }
        let state = self.state.lock();
        assert_eq!(state.crowded(), None);
        state.chunks.iter().map(|chunk| chunk.joined).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(piece: &TablePiece, value: u8) {
        // SAFETY: a piece is this long, and the test has it alone.
        unsafe { piece.start().write_bytes(value, piece.places.len()) };
    }

    /// Whether the system has joined the pages of a chunk, of which `parts` eighths were given back
    /// and used again before, or has found no memory for that.
    fn joins_after(parts: usize) -> bool {
        let memory = Arc::<TableMemory>::default();
        let take = || memory.take(CHUNK_LEN / 8).inspect(|piece| fill(piece, 1));
        let mut pieces: Vec<Option<TablePiece>> = (0..8).map(|_| take()).collect();
        pieces.truncate(8 - parts);
        pieces.extend((0..parts).map(|_| take()));
        memory.settled();
        let refused = memory.state.lock().refused;
        drop(pieces);
        !refused
    }

    /// Two in five processes had filters in small pages, and took twice as long for absent keys.
    #[test]
    fn a_chunk_that_was_given_back_in_part_does_not_end_the_joining() {
        let is_supported = joins_after(0);
        assert_eq!([1, 3, 8].map(joins_after), [is_supported; 3]);
    }

    fn ends(piece: &TablePiece) -> [u8; 2] {
        // SAFETY: as above.
        unsafe { [piece.start().read(), piece.start().add(piece.places.len() - 1).read()] }
    }

    #[test]
    fn a_freed_piece_is_reused() {
        let memory = TableMemory::with_chunks(1);
        let pieces = [(); 4].map(|()| memory.take(CHUNK_LEN / 4).unwrap());
        assert!(pieces.iter().all(|piece| piece.start().addr().get().is_multiple_of(ALIGN)));
        (0..).zip(&pieces).for_each(|(value, piece)| fill(piece, value));
        let [one, two, three, four] = pieces;
        let place = two.start();
        drop(two);
        let two = memory.take(CHUNK_LEN / 4 - ALIGN - 1).unwrap();
        assert_eq!((two.start(), ends(&one), ends(&three), ends(&four)), (place, [0; 2], [2; 2], [3; 2]));
        assert!(memory.take(SEGMENT + ALIGN).is_none());
    }

    #[test]
    fn crowded_chunks_are_joined_and_sparse_ones_split() {
        let memory = TableMemory::with_chunks(3);
        let len = CHUNK_LEN / 8;
        // The piece in the middle crosses from one chunk into the next.
        let lens = [len; 7].into_iter().chain([2 * len]).chain([len; 5]);
        let mut pieces: Vec<TablePiece> = lens.map(|len| memory.take(len).unwrap()).collect();
        (0..).zip(&pieces).for_each(|(value, piece)| fill(piece, value));
        assert_eq!(memory.settled()[..3], [true, false, false]);
        if memory.state.lock().refused {
            // An older system joins nothing.
            return;
        }
        pieces.push(memory.take(len).unwrap());
        fill(&pieces[13], 13);
        assert_eq!(memory.settled()[..3], [true, true, false]);
        pieces.drain(..2);
        assert!(memory.state.lock().chunks[0].joined);
        // One eighth is of the second chunk.
        assert_eq!(memory.idle(), 3 * len);
        pieces.remove(0);
        assert_eq!(memory.idle(), len);
        assert!(!memory.state.lock().chunks[0].joined);
        assert_eq!(memory.settled()[..3], [false, true, false]);
        for (value, piece) in (3..).zip(&pieces) {
            assert_eq!(ends(piece), [value; 2]);
        }
        // What was freed went back to the system, if the system supports that.
        let piece = memory.take(3 * len).unwrap();
        let is_given_back = cfg!(all(target_os = "linux", not(miri)));
        assert_eq!(ends(&piece), if is_given_back { [0, 0] } else { [0, 2] });
        drop((piece, pieces));
        let state = memory.state.lock();
        assert_eq!(state.free.bytes(), state.free.longest());
        assert!(state.chunks.iter().all(|chunk| chunk.bytes == 0 && !chunk.joined));
    }

    #[test]
    fn a_freed_piece_in_small_pages_goes_back_to_the_system_at_once() {
        let memory = TableMemory::with_chunks(1);
        let len = CHUNK_LEN / 16;
        let mut pieces: Vec<TablePiece> = (0..13).map(|_| memory.take(len).unwrap()).collect();
        (0..).zip(&pieces).for_each(|(value, piece)| fill(piece, value));
        // Neither crowded nor sparse.
        assert_eq!(memory.settled(), [false; SEGMENT / CHUNK_LEN]);
        pieces.remove(7);
        assert_eq!(memory.idle(), 0);
        let piece = memory.take(len).unwrap();
        let is_given_back = cfg!(all(target_os = "linux", not(miri)));
        assert_eq!(ends(&piece), if is_given_back { [0, 0] } else { [7, 7] });
        assert_eq!((ends(&pieces[6]), ends(&pieces[7])), ([6, 6], [8, 8]));
    }

    #[test]
    fn pieces_outlive_their_store() {
        let memory = TableMemory::with_chunks(1);
        let piece = memory.take(CHUNK_LEN).unwrap();
        fill(&piece, 7);
        memory.join_pages();
        drop(memory);
        assert_eq!(ends(&piece), [7; 2]);
    }
}
