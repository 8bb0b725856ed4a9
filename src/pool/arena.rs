//! [`Arena`]: one piece of memory, in huge pages where the system has them, that is cut into many.
//!
//! A processor finds the address of a page of 4 KiB in its own tables only for some 16 MiB of them. What is larger and read in no
//! order, as cached blocks are, waits for that at every access, unless it stands in huge pages.
//!
//! To get a huge page takes a hundred times as long as a small one, and some systems that are guests of others need milliseconds. Whoever
//! takes a piece must not wait for that. So pieces are cut from small pages, from the front of the arena on, and a thread makes huge ones
//! of those that have been cut, when they do not grow in number just then. Who uses a page waits while it becomes part of a huge one, so
//! the thread rests most of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::CHUNK_LEN;
use super::region::Region;

/// Pieces are aligned to this, and as long as a multiple of it: a cache line.
pub(crate) const ALIGN: usize = 64;
/// So long nothing may have been cut, or little, before pages are made huge: whoever touches a page for the first time waits for that.
const REST: Duration = Duration::from_millis(20);

/// After it has made a page huge, the thread rests so many times as long as that took.
const RESTS: u32 = 50;
const LONGEST_REST: Duration = Duration::from_millis(500);

/// A chunk may have nothing in it yet, and be no page to become huge. So many in a row, and the system does not do it.
const MOST_FAILURES: u32 = 4;
/// The memory is taken from the system so many bytes at a time, a multiple of [`CHUNK_LEN`]. Pieces do not reach from one into the next.
const SEGMENT: usize = 64 << 20;

/// Memory of a fixed length at most, which is taken from the system as it is used.
///
/// Places in it are counted through all segments.
pub(crate) struct Arena {
    len: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    segments: Vec<Arc<Region>>,
    /// Places of the segments by their addresses.
    places: BTreeMap<usize, usize>,
    /// Within the segments that there are.
    free: Extents,
    /// Where what has ever been cut ends.
    touched: usize,
    /// Where the huge pages end.
    huge: usize,
    collapser: Collapser,
}

/// The thread that makes pages huge.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Collapser {
    #[default]
    Idle,
    Running,
    /// The system does not do that.
    Useless,
}

impl Arena {
    /// An arena of `len` bytes, less what is no multiple of [`CHUNK_LEN`].
    pub(crate) fn new(len: usize) -> Arc<Arena> {
        Arc::new(Arena { len: len - len % CHUNK_LEN, state: Mutex::default() })
    }

    /// `len` bytes, a multiple of [`ALIGN`] and not 0, of any content; `None` if there are not as many in one piece.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Option<NonNull<u8>> {
        assert!(len > 0 && len.is_multiple_of(ALIGN), "pieces are cut at lines");
        let mut state = self.state.lock();
        let start = match state.free.take(len) {
            Some(start) => start,
            None => {
                state.grow(self.len, len)?;
                state.free.take(len)?
            }
        };
        // SAFETY: what is free lies within a segment.
        let piece = unsafe { state.segments[start / SEGMENT].start().add(start % SEGMENT) };
        state.touched = state.touched.max(start + len);
        if state.touched - state.huge >= CHUNK_LEN && state.collapser == Collapser::Idle {
            state.collapser = Collapser::Running;
            drop(state);
            self.start_collapser();
        }
        Some(piece)
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
        for (&start, &len) in &state.free.by_start {
            // SAFETY: it is free as long as the lock is held, and no free piece reaches beyond its segment.
            unsafe { state.segments[start / SEGMENT].discard(start % SEGMENT, start % SEGMENT + len) };
        }
    }

    #[cold]
    fn start_collapser(self: &Arc<Self>) {
        let arena = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("tamis-pages".into());
        if thread.spawn(move || collapse(&arena)).is_err() {
            self.state.lock().collapser = Collapser::Useless;
        }
    }
}

impl State {
    /// Takes one more segment from the system, of an arena of `limit` bytes, if a piece of `len` fits into it.
    fn grow(&mut self, limit: usize, len: usize) -> Option<()> {
        let place = self.segments.len() * SEGMENT;
        let segment_len = limit.checked_sub(place)?.min(SEGMENT);
        if segment_len < len {
            return None;
        }
        let region = Region::in_small_pages(segment_len);
        self.places.insert(region.start().addr().get(), place);
        self.segments.push(Arc::new(region));
        self.free.insert(place, segment_len);
        Some(())
    }
}

/// Makes huge pages of what has been cut, as long as there is an arena.
fn collapse(arena: &Weak<Arena>) {
    let (mut before, mut failures) = (0, 0);
    loop {
        let Some((region, start)) = arena.upgrade().and_then(|arena| {
            let mut state = arena.state.lock();
            if state.touched - state.huge < CHUNK_LEN {
                state.collapser = Collapser::Idle;
                return None;
            }
            let grown = state.touched - std::mem::replace(&mut before, state.touched);
            let region = Arc::clone(&state.segments[state.huge / SEGMENT]);
            Some((region, (grown < CHUNK_LEN).then_some(state.huge)))
        }) else {
            return;
        };
        match start {
            None => std::thread::sleep(REST),
            Some(start) => {
                let begin = Instant::now();
                let collapsed = region.collapse(start % SEGMENT);
                let took = begin.elapsed();
                drop(region);
                let Some(arena) = arena.upgrade() else { return };
                let mut state = arena.state.lock();
                state.huge = start + CHUNK_LEN;
                failures = if collapsed { 0 } else { failures + 1 };
                if failures == MOST_FAILURES {
                    state.collapser = Collapser::Useless;
                    return;
                }
                drop(state);
                drop(arena);
                std::thread::sleep((took * RESTS).min(LONGEST_REST));
            }
        }
    }
}

/// What is free: which pieces, by their places and by their lengths. A segment's first byte always begins a piece.
#[derive(Default)]
struct Extents {
    by_start: BTreeMap<usize, usize>,
    by_len: BTreeSet<(usize, usize)>,
}

impl Extents {
    fn insert(&mut self, start: usize, len: usize) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Cuts `len` bytes from the front of the shortest piece that has them, or of the first one of these.
    fn take(&mut self, len: usize) -> Option<usize> {
        let &(found, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, found);
        if found > len {
            self.insert(start + len, found - len);
        }
        Some(start)
    }

    /// Gives back what was taken, which becomes one piece with what is free around it.
    fn put(&mut self, mut start: usize, mut len: usize) {
        if !start.is_multiple_of(SEGMENT)
            && let Some((&before, &before_len)) = self.by_start.range(..start).next_back()
            && before + before_len == start
        {
            self.remove(before, before_len);
            (start, len) = (before, before_len + len);
        }
        let end = start + len;
        if !end.is_multiple_of(SEGMENT)
            && let Some(&behind_len) = self.by_start.get(&end)
        {
            self.remove(end, behind_len);
            len += behind_len;
        }
        self.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        Put(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![(1usize..20).prop_map(Step::Take), any::<prop::sample::Index>().prop_map(Step::Put)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 200 }))]

        #[test]
        fn pieces_do_not_overlap_and_become_one_again(steps in prop::collection::vec(step(), 0..100)) {
            const LEN: usize = 200;
            let (mut extents, mut taken, mut used) = (Extents::default(), Vec::new(), [false; LEN]);
            extents.insert(0, LEN);
            for step in steps {
                match step {
                    Step::Take(len) => match extents.take(len) {
                        Some(start) => {
                            prop_assert!(used[start..start + len].iter().all(|used| !used));
                            used[start..start + len].fill(true);
                            taken.push((start, len));
                        }
                        None => prop_assert!(used.split(|&used| used).all(|free| free.len() < len)),
                    },
                    Step::Put(at) if !taken.is_empty() => {
                        let (start, len) = taken.swap_remove(at.index(taken.len()));
                        used[start..start + len].fill(false);
                        extents.put(start, len);
                    }
                    Step::Put(_) => {}
                }
                let free: usize = extents.by_start.values().sum();
                prop_assert_eq!(free, used.iter().filter(|used| !**used).count());
                prop_assert_eq!(extents.by_start.len(), extents.by_len.len());
            }
            for (start, len) in taken {
                extents.put(start, len);
            }
            prop_assert_eq!(extents.take(LEN), Some(0));
        }
    }

    #[test]
    fn what_was_given_back_is_given_again() {
        let arena = Arena::new(CHUNK_LEN + 1);
        let whole = arena.take(CHUNK_LEN).unwrap();
        assert_eq!(arena.take(64), None);
        // SAFETY: the piece is this long, and nobody else has it.
        unsafe {
            whole.write_bytes(7, CHUNK_LEN);
            arena.put(whole, CHUNK_LEN);
        }
        let (one, two) = (arena.take(64).unwrap(), arena.take(128).unwrap());
        assert_eq!((one, two.addr().get() - one.addr().get()), (whole, 64));
        assert_eq!(one.addr().get() % ALIGN, 0);
        assert_eq!(Arena::new(CHUNK_LEN - 1).take(64), None);
    }

    /// Whatever its limit is, an arena takes what is used.
    #[test]
    #[cfg_attr(miri, ignore = "it takes hundreds of megabytes")]
    fn segments_are_taken_one_by_one_and_stay_apart() {
        let arena = Arena::new(usize::MAX);
        let take_three = || [(); 3].map(|()| arena.take(SEGMENT / 2).unwrap());
        let mut pieces = take_three();
        assert_eq!(arena.take(SEGMENT + ALIGN), None);
        for &start in &pieces {
            // SAFETY: the pieces are this long, and nobody uses them.
            unsafe { arena.put(start, SEGMENT / 2) };
        }
        let mut again = take_three();
        pieces.sort_unstable();
        again.sort_unstable();
        assert_eq!(again, pieces);
        assert_eq!(arena.state.lock().segments.len(), 2);
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

    #[test]
    fn what_stands_in_pages_that_become_huge_stays() {
        let chunks = if cfg!(miri) { 2 } else { 3 };
        let arena = Arena::new(chunks * CHUNK_LEN);
        let pieces: Vec<NonNull<u8>> = (0..chunks).map(|_| arena.take(CHUNK_LEN).unwrap()).collect();
        for (value, piece) in (1u8..).zip(&pieces) {
            // SAFETY: the piece is this long, and nobody else has it.
            unsafe { piece.write_bytes(value, 4096) };
        }
        while arena.state.lock().collapser == Collapser::Running {
            for (value, piece) in (1u8..).zip(&pieces) {
                // SAFETY: as above.
                unsafe {
                    assert_eq!(piece.add(4095).read(), value);
                    piece.write(value);
                }
            }
            std::thread::yield_now();
        }
        let state = arena.state.lock();
        assert!(state.collapser == Collapser::Useless || state.huge == chunks * CHUNK_LEN);
    }
}
