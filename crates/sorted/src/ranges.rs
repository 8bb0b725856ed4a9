//! Range deletes: which numbers delete a key, whatever holds the key.
//!
//! A range delete numbered n deletes every version of its keys that is numbered below n. Ranges are
//! kept apart from entries: each memtable has its own, and those of flushed memtables are in *range
//! tables*, which a version holds in memory (module `range_table`). A reader asks all of them for
//! the newest number that covers a key, its *cover*. A version of the key counts only if it is
//! newer. This rule does not depend on where a version is; therefore moving entries between levels
//! can never bring a deleted one back. A range goes once no table can hold what it deletes (module
//! `tree::compaction::covered`).
//!
//! ```text
//! operation of a batch → fragments in a memtable's trees → range table, by a flush → gone
//! ```
//!
//! Without ranges in the keyspace, a reader pays for one branch. A scan moves sources that hold
//! nothing newer past a deleted range, without opening or sorting them (`MergeCursor::skip`).
//! Compactions leave out what durable ranges delete. A table's metadata notes up to which number
//! they did (`TableMeta::cleared`).

mod heads;
mod maxima;
mod sweep;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::{Deref, Range};
use std::sync::Arc;

use self::heads::Heads;
use self::maxima::Maxima;
pub use self::sweep::Sweep;
use super::iter::is_within;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, check_range, compare};
use crate::format::{Decoded, Malformed};

/// A range of keys deleted under a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment<K = Arc<[u8]>> {
    pub start: K,
    /// Exclusive; `None` is the end of the key space.
    pub end: Option<K>,
    pub seqno: SeqNo,
}

impl<K: Deref<Target = [u8]>> Fragment<K> {
    /// The end as a range table and a log store it.
    pub fn stored_end(&self) -> &[u8] {
        self.end.as_deref().unwrap_or_default()
    }
}

impl<'a> Fragment<&'a [u8]> {
    /// The range delete that an entry of a range table stores: a put of its end at its start.
    pub fn stored_in((seqno, kind): (SeqNo, ValueKind), key: &'a [u8], value: &'a [u8]) -> Decoded<Self> {
        if kind != ValueKind::Put {
            return Err(Malformed("a range table holds an entry that deletes no range"));
        }
        check_range(key, value)?;
        Ok(Fragment { start: key, end: (!value.is_empty()).then_some(value), seqno })
    }
}

/// The keys around a key for which a source says the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Inclusive.
    pub from: &'a [u8],
    /// Exclusive; `None` is the end of the key space.
    pub to: Option<&'a [u8]>,
    /// The number that deletes them; 0 if there is none.
    pub seqno: SeqNo,
}

impl Piece<'_> {
    /// Whether the last piece of a source is that of a key, or, with `before`, of the keys right
    /// before it. Reads of a log that is purged from its front are behind all ranges: it is worth
    /// asking first.
    #[inline]
    pub fn reaches(&self, key: &[u8], before: bool) -> bool {
        if before { self.from < key } else { self.from <= key }
    }
}

/// Disjoint fragments in key order.
pub trait RangeSource: Send + Sync {
    /// The piece that `key` lies in or, with `before`, the keys right before it.
    fn piece_at(&self, key: &[u8], before: bool) -> Piece<'_>;

    /// The piece at the end of the key space.
    fn last_piece(&self) -> Piece<'_>;

    /// The piece that `key` lies in.
    fn piece(&self, key: &[u8]) -> Piece<'_> {
        self.piece_at(key, false)
    }
}

const USUAL_KEY_LEN: usize = 16;

/// Byte strings in ascending order, in one buffer.
#[derive(Default)]
pub struct KeyList {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<u64>,
}

impl KeyList {
    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len() as u64);
    }

    /// The key at `at`, empty if there is none.
    pub fn get(&self, at: usize) -> &[u8] {
        let end = |at: usize| self.ends.get(at).map_or(0, |&end| usize::try_from(end).unwrap_or(usize::MAX));
        let start = at.checked_sub(1).map_or(0, end);
        self.bytes.get(start..end(at)).unwrap_or_default()
    }

    /// Of every `step`th key, the number of those that are less than `key` or, unless `before` is
    /// set, equal to it, if that is one of `counts`.
    #[inline]
    fn count_each(&self, step: usize, counts: Range<usize>, key: &[u8], before: bool) -> usize {
        let (mut low, mut high) = (counts.start, counts.end);
        while low < high {
            let middle = usize::midpoint(low, high);
            #[cfg(any(test, all(feature = "testing", debug_assertions)))]
            steps::count();
            match compare(self.get(step * middle), key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal if !before => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// Bytes taken from the heap.
    pub fn allocated(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u64>()
    }

    /// Number of keys less than `key` or, unless `before` is set, equal to it.
    pub fn count_until(&self, key: &[u8], before: bool) -> usize {
        self.count_each(1, 0..self.ends.len(), key, before)
    }
}

/// Disjoint fragments in flat arrays: 24 bytes and the keys for each, 32 if they are indexed.
#[derive(Default)]
pub struct RangeLayer {
    /// Start and end of each fragment, in order.
    keys: KeyList,
    seqnos: Vec<SeqNo>,
    /// Whether the last fragment has no end.
    is_open: bool,
    /// Of the starts and the numbers, once they are indexed.
    index: Option<(Heads, Maxima)>,
}

impl RangeLayer {
    pub fn with_capacity(len: usize) -> RangeLayer {
        let keys = KeyList { bytes: Vec::with_capacity(2 * len * USUAL_KEY_LEN), ends: Vec::with_capacity(2 * len) };
        RangeLayer { keys, seqnos: Vec::with_capacity(len), is_open: false, index: None }
    }

    /// This layer with an index, for one that is searched often and does not change.
    pub fn indexed(mut self) -> RangeLayer {
        self.index = Some((Heads::of(self.len(), |i| self.start(i)), Maxima::of(&self.seqnos)));
        self
    }

    /// Appends a fragment, of which an empty end is none.
    pub fn push(&mut self, start: &[u8], end: &[u8], seqno: SeqNo) {
        self.keys.push(start);
        self.keys.push(end);
        self.seqnos.push(seqno);
        self.is_open = end.is_empty();
        self.index = None;
    }

    /// Number of fragments.
    pub fn len(&self) -> usize {
        self.seqnos.len()
    }

    /// Bytes taken from the heap.
    pub fn allocated(&self) -> usize {
        let index = self.index.as_ref().map_or(0, |(heads, maxima)| heads.allocated() + maxima.allocated());
        self.keys.allocated() + self.seqnos.capacity() * size_of::<SeqNo>() + index
    }

    /// The newest number of all fragments.
    pub fn newest(&self) -> SeqNo {
        self.newest_of(0..self.len())
    }

    fn newest_of(&self, fragments: Range<usize>) -> SeqNo {
        match &self.index {
            Some((_, maxima)) => maxima.newest_of(&self.seqnos, fragments),
            None => self.seqnos.get(fragments).unwrap_or_default().iter().copied().max().unwrap_or(0),
        }
    }

    /// The newest number that deletes any of the keys from `from` up to `to`, which is greater; 0
    /// if there is none.
    pub fn newest_within(&self, from: &[u8], to: Option<&[u8]>) -> SeqNo {
        let begun = self.count_until(from, false);
        let reaches = |last: usize| self.end(last).is_none_or(|end| from < end);
        let first = begun.checked_sub(1).filter(|&last| reaches(last)).unwrap_or(begun);
        self.newest_of(first..to.map_or(self.len(), |to| self.count_until(to, true)).max(first))
    }

    pub fn start(&self, i: usize) -> &[u8] {
        self.keys.get(2 * i)
    }

    fn end(&self, i: usize) -> Option<&[u8]> {
        (!self.is_open || i + 1 < self.len()).then(|| self.keys.get(2 * i + 1))
    }

    /// A fragment as it was [pushed](RangeLayer::push).
    pub fn get(&self, i: usize) -> (&[u8], &[u8], SeqNo) {
        (self.start(i), self.keys.get(2 * i + 1), self.seqnos[i])
    }

    pub fn fragments(&self) -> impl Iterator<Item = Fragment> + Clone {
        #[cfg(any(test, all(feature = "testing", debug_assertions)))]
        (0..self.len()).for_each(|_| steps::count());
        (0..self.len()).map(|i| Fragment {
            start: self.start(i).into(),
            end: self.end(i).map(Arc::from),
            seqno: self.seqnos[i],
        })
    }

    /// Number of fragments that begin before `key` or, unless `before` is set, at it.
    pub fn count_until(&self, key: &[u8], before: bool) -> usize {
        let counts = self.index.as_ref().map_or(0..self.len(), |(heads, _)| heads.like(key));
        self.keys.count_each(2, counts, key, before)
    }

    /// Positions of the fragments that have keys between these two, the last one included.
    pub fn between(&self, first: &[u8], last: &[u8]) -> Range<usize> {
        let (from, to) = (self.count_until(first, true), self.count_until(last, false));
        let reaches = |former: usize| self.end(former).is_none_or(|end| first < end);
        let from = from.checked_sub(1).filter(|former| reaches(*former)).unwrap_or(from);
        from..to.max(from)
    }

    /// As [`RangeSource::piece_at`].
    pub fn piece_in(&self, key: &[u8], before: bool) -> Piece<'_> {
        let last = self.last_piece();
        if last.reaches(key, before) {
            return last;
        }
        let next = self.count_until(key, before);
        let former = next.checked_sub(1);
        let end = former.map(|former| self.end(former));
        if let (Some(former), Some(end)) = (former, end)
            && end.is_none_or(|end| key < end || before && key == end)
        {
            return Piece { from: self.start(former), to: end, seqno: self.seqnos[former] };
        }
        let from = end.flatten().unwrap_or_default();
        Piece { from, to: (next < self.len()).then(|| self.start(next)), seqno: 0 }
    }
}

impl RangeSource for RangeLayer {
    fn piece_at(&self, key: &[u8], before: bool) -> Piece<'_> {
        self.piece_in(key, before)
    }

    fn last_piece(&self) -> Piece<'_> {
        let Some(last) = self.len().checked_sub(1) else { return Piece::default() };
        match self.end(last) {
            Some(end) => Piece { from: end, to: None, seqno: 0 },
            None => Piece { from: self.start(last), to: None, seqno: self.seqnos[last] },
        }
    }
}

/// Fragments being distributed to layers: each goes to one that ends before it begins.
#[derive(Default)]
pub(super) struct Layers {
    pub(super) done: Vec<RangeLayer>,
    /// The layers by the end of their last fragment, least end first, without those that have none.
    ends: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
}

impl Layers {
    /// Fragments come in the order of their starts.
    pub(super) fn add(&mut self, start: &[u8], end: &[u8], seqno: SeqNo) {
        let is_free = self.ends.peek().is_some_and(|Reverse((last, _))| **last <= *start);
        let free = if is_free { self.ends.pop() } else { None };
        let layer = free.map_or(self.done.len(), |Reverse((_, layer))| layer);
        if layer == self.done.len() {
            self.done.push(RangeLayer::default());
        }
        self.done[layer].push(start, end, seqno);
        if !end.is_empty() {
            self.ends.push(Reverse((end.to_vec(), layer)));
        }
    }
}

/// Layers of [folded](fold) fragments.
pub fn layers_of<K: Deref<Target = [u8]>>(fragments: &[Fragment<K>]) -> Vec<RangeLayer> {
    let mut layers = Layers::default();
    fragments.iter().for_each(|range| layers.add(&range.start, range.stored_end(), range.seqno));
    layers.done
}

/// Keys for which all sources of [`Covers`] say the same.
#[derive(Clone, Debug, Default)]
pub struct Stretch {
    pub from: Vec<u8>,
    pub to: Option<Vec<u8>>,
    /// The numbers that delete the keys, newest first.
    pub numbers: Vec<SeqNo>,
}

impl Stretch {
    pub fn holds(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.to.as_deref().is_none_or(|to| key < to)
    }

    /// The newest number that deletes the keys; 0 if there is none.
    pub fn cover(&self) -> SeqNo {
        self.numbers.first().copied().unwrap_or(0)
    }
}

/// Deleted keys without a gap between them.
pub struct CoveredRun {
    /// The exclusive upper end going forward, the inclusive lower end going backward; `None` if the
    /// run goes on to the end of the scan.
    pub end: Option<Vec<u8>>,
    /// The greatest of the numbers that delete them.
    pub newest: SeqNo,
}

/// All ranges that a scan or a compaction sees.
pub struct Covers {
    sources: Vec<Arc<dyn RangeSource>>,
    snapshot: SeqNo,
}

impl Covers {
    /// Ranges numbered up to `snapshot` count.
    pub fn new(sources: Vec<Arc<dyn RangeSource>>, snapshot: SeqNo) -> Covers {
        Covers { sources, snapshot }
    }

    /// The greatest number that counts.
    pub fn snapshot(&self) -> SeqNo {
        self.snapshot
    }

    /// The newest number that deletes `key`; 0 if there is none.
    pub fn cover(&self, key: &[u8]) -> SeqNo {
        let covers = self.sources.iter().map(|source| source.piece(key).seqno);
        covers.filter(|&seqno| seqno <= self.snapshot).max().unwrap_or(0)
    }

    /// The stretch that holds `key`.
    pub fn stretch(&self, key: &[u8]) -> Stretch {
        self.stretch_at(key, false)
    }

    /// The keys from those of `stretch` on in one direction, up to `end`, that are deleted by its
    /// number or a greater one. Looks at most at `most` further stretches.
    pub fn covered_run(&self, stretch: &Stretch, end: Option<&[u8]>, forward: bool, mut most: usize) -> CoveredRun {
        let mut run = CoveredRun { end: None, newest: stretch.cover() };
        let mut next = stretch.clone();
        loop {
            let border = if forward { next.to } else { Some(next.from).filter(|from| !from.is_empty()) };
            let Some(border) = border.filter(|border| is_within(border, end, forward)) else { return run };
            next = self.stretch_at(&border, !forward);
            most = most.saturating_sub(1);
            if next.cover() < stretch.cover() || most == 0 {
                run.end = Some(border);
                return run;
            }
            run.newest = run.newest.max(next.cover());
        }
    }

    /// The stretch of the keys right before `key`.
    pub fn stretch_before(&self, key: &[u8]) -> Stretch {
        self.stretch_at(key, true)
    }

    /// The stretch at the end of the key space.
    pub fn last_stretch(&self) -> Stretch {
        self.stretch_of(|source| source.last_piece())
    }

    fn stretch_at(&self, key: &[u8], before: bool) -> Stretch {
        self.stretch_of(|source| source.piece_at(key, before))
    }

    /// Where the pieces of all sources overlap.
    fn stretch_of<'a>(&'a self, piece: impl Fn(&'a dyn RangeSource) -> Piece<'a>) -> Stretch {
        let (mut from, mut to): (&[u8], Option<&[u8]>) = (&[], None);
        let mut numbers = Vec::new();
        for source in &self.sources {
            let piece = piece(&**source);
            from = from.max(piece.from);
            to = match (to, piece.to) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if piece.seqno > 0 && piece.seqno <= self.snapshot {
                numbers.push(piece.seqno);
            }
        }
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        Stretch { from: from.to_vec(), to: to.map(<[u8]>::to_vec), numbers }
    }
}

/// What must be kept of `ranges`: in each stripe between the snapshots, the newest number of every
/// key. Ordered as a range table has them. Snapshots ascend.
///
/// There are less than twice as many as ranges, whatever the number of snapshots.
pub fn fold<K: Clone + Default + Ord>(mut ranges: Vec<Fragment<K>>, snapshots: &[SeqNo]) -> Vec<Fragment<K>> {
    let stripe = |range: &Fragment<K>| snapshots.partition_point(|&snapshot| snapshot < range.seqno);
    // Those of one stripe are together then.
    ranges.sort_unstable_by_key(|range| range.seqno);
    let mut folded = Vec::new();
    for of_stripe in ranges.chunk_by_mut(|a, b| stripe(a) == stripe(b)) {
        skyline(of_stripe, &mut folded);
    }
    drop(ranges);
    folded.sort_unstable_by(|a, b| a.start.cmp(&b.start).then(b.seqno.cmp(&a.seqno)));
    folded
}

/// Appends the newest number of every key, in disjoint fragments.
fn skyline<K: Clone + Default + Ord>(ranges: &mut [Fragment<K>], out: &mut Vec<Fragment<K>>) {
    ranges.sort_unstable_by(|a, b| a.start.cmp(&b.start));
    // Ranges that have begun, newest first; some may have ended.
    let mut open: BinaryHeap<(SeqNo, Reverse<usize>)> = BinaryHeap::new();
    let (mut next, mut at) = (0, K::default());
    loop {
        while open.peek().is_some_and(|(_, i)| ranges[i.0].end.as_ref().is_some_and(|end| *end <= at)) {
            open.pop();
        }
        if open.is_empty() {
            match ranges.get(next) {
                Some(range) if range.start > at => at = range.start.clone(),
                Some(_) => {}
                None => return,
            }
        }
        while let Some(range) = ranges.get(next).filter(|range| range.start <= at) {
            #[cfg(any(test, all(feature = "testing", debug_assertions)))]
            steps::count();
            open.push((range.seqno, Reverse(next)));
            next += 1;
        }
        let Some(&(seqno, Reverse(newest))) = open.peek() else { return };
        let upcoming = ranges.get(next).map(|range| &range.start);
        let end = match (ranges[newest].end.as_ref(), upcoming) {
            (Some(end), Some(start)) => Some(end.min(start)),
            (end, start) => end.or(start),
        };
        if end.is_some_and(|end| *end <= at) {
            // It ended before it became the newest.
            open.pop();
            continue;
        }
        match out.last_mut() {
            Some(last) if last.seqno == seqno && last.end.as_ref() == Some(&at) => last.end = end.cloned(),
            _ => out.push(Fragment { start: at.clone(), end: end.cloned(), seqno }),
        }
        match end {
            Some(end) => at = end.clone(),
            None => return,
        }
    }
}

/// The least of `numbers`, newest first, that deletes a version numbered `seqno`.
pub fn least_above(numbers: &[SeqNo], seqno: SeqNo) -> Option<SeqNo> {
    let above = numbers.partition_point(|&number| number > seqno);
    numbers.get(above.checked_sub(1)?).copied()
}

/// Whether a version numbered `seqno` can be dropped under these `numbers`, newest first: one of
/// them is greater, and no snapshot sees the version and not that number. Snapshots ascend.
pub fn drops(numbers: &[SeqNo], seqno: SeqNo, snapshots: &[SeqNo]) -> bool {
    let Some(least) = least_above(numbers, seqno) else { return false };
    let stripe = |seqno: SeqNo| snapshots.partition_point(|&snapshot| snapshot < seqno);
    stripe(least) == stripe(seqno)
}

/// Numbers are below this.
pub const NO_SNAPSHOT: SeqNo = MAX_SEQNO + 1;

/// Counts what look-ups among ranges and reads cost, in tests. Benchmarks of tamis have the feature
/// `testing`, too, and must not pay: there, without debug assertions, nothing is counted here.
#[cfg(any(test, feature = "testing"))]
pub mod steps {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    /// The steps of this thread since the last call.
    pub fn take() -> usize {
        STEPS.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn fragment(start: &[u8], end: Option<&[u8]>, seqno: SeqNo) -> Fragment {
        Fragment { start: start.into(), end: end.map(Arc::from), seqno }
    }

    fn holds(range: &Fragment, key: &[u8]) -> bool {
        *range.start <= *key && range.end.as_deref().is_none_or(|end| key < end)
    }

    /// The newest number up to `snapshot` that deletes `key`.
    fn newest(ranges: &[Fragment], key: &[u8], snapshot: SeqNo) -> SeqNo {
        let numbers = ranges.iter().filter(|range| range.seqno <= snapshot && holds(range, key));
        numbers.map(|range| range.seqno).max().unwrap_or(0)
    }

    fn layer(fragments: &[Fragment]) -> RangeLayer {
        let mut layer = RangeLayer::default();
        fragments.iter().for_each(|range| layer.push(&range.start, range.stored_end(), range.seqno));
        layer
    }

    proptest! {
        #[test]
        fn folding_changes_nothing_for_any_snapshot_and_no_later_read(
            bounds in vec((vec(0u8..4, 0..3), option::weighted(0.9, vec(0u8..4, 1..3))), 0..12),
            snapshots in vec(0u64..14, 0..3),
        ) {
            let mut snapshots = snapshots;
            snapshots.sort_unstable();
            snapshots.dedup();
            let ranges = (1..).zip(&bounds).filter(|(_, (start, end))| end.as_ref().is_none_or(|end| start < end));
            let ranges: Vec<Fragment> =
                ranges.map(|(seqno, (start, end))| fragment(start, end.as_deref(), seqno)).collect();
            let folded = fold(ranges.clone(), &snapshots);
            for a in 0..5u8 {
                for key in [vec![], vec![a], vec![a, 0], vec![a, 1], vec![a, 3], vec![a, 3, 0]] {
                    for &snapshot in snapshots.iter().chain([&100]) {
                        let expected = newest(&ranges, &key, snapshot);
                        prop_assert_eq!(newest(&folded, &key, snapshot), expected, "{:?} at {}", key, snapshot);
                    }
                }
            }
            // Of one stripe, no two fragments overlap or could be joined.
            let stripe = |seqno| snapshots.partition_point(|&snapshot| snapshot < seqno);
            for stripe_of in 0..=snapshots.len() {
                let of: Vec<&Fragment> = folded.iter().filter(|range| stripe(range.seqno) == stripe_of).collect();
                for pair in of.windows(2) {
                    let end = pair[0].end.as_ref().expect("only the last one is open");
                    prop_assert!(*end <= pair[1].start);
                    prop_assert!(*end < pair[1].start || pair[0].seqno != pair[1].seqno);
                }
            }
        }

        #[test]
        fn pieces_tell_the_cover_and_its_bounds(
            bounds in vec((vec(0u8..4, 0..3), option::weighted(0.9, vec(0u8..4, 1..3))), 0..12),
        ) {
            let ranges = (1..).zip(&bounds).filter(|(_, (start, end))| end.as_ref().is_none_or(|end| start < end));
            let ranges: Vec<Fragment> =
                ranges.map(|(seqno, (start, end))| fragment(start, end.as_deref(), seqno)).collect();
            let layer = Arc::new(layer(&fold(ranges.clone(), &[])).indexed());
            let covers = Covers::new(vec![Arc::clone(&layer) as Arc<dyn RangeSource>], NO_SNAPSHOT);
            let keys: Vec<Vec<u8>> =
                (0..5u8).flat_map(|a| [vec![a], vec![a, 0], vec![a, 1], vec![a, 3], vec![a, 3, 0]]).collect();
            for key in &keys {
                let (piece, stretch) = (layer.piece(key), covers.stretch(key));
                prop_assert_eq!(piece.seqno, newest(&ranges, key, NO_SNAPSHOT));
                prop_assert!(stretch.holds(key));
                prop_assert_eq!(stretch.cover(), piece.seqno);
                for other in keys.iter().filter(|other| stretch.holds(other)) {
                    prop_assert_eq!(layer.piece(other), piece);
                }
                // Between this key and each later one, and to the end.
                let later = keys.iter().filter(|to| key < *to).map(|to| Some(&**to)).chain([None]);
                for to in later {
                    let within = |range: &&Fragment| {
                        to.is_none_or(|to| *range.start < *to) && range.end.as_deref().is_none_or(|end| **key < *end)
                    };
                    let folded = fold(ranges.clone(), &[]);
                    let expected = folded.iter().filter(within).map(|range| range.seqno).max().unwrap_or(0);
                    prop_assert_eq!(layer.newest_within(key, to), expected, "{:?} to {:?}", key, to);
                }
            }
        }
    }

    #[test]
    fn nested_ranges_fold_to_two_fragments_each() {
        let key = |i: u32| i.to_be_bytes();
        let ranges = (0..1000u32).map(|i| fragment(&key(i), Some(&key(2000 - i)), u64::from(i) + 1));
        assert_eq!(fold(ranges.clone().collect(), &[]).len(), 1999);
        let outer_last = (0..1000u32).map(|i| fragment(&key(i), Some(&key(2000 - i)), 1000 - u64::from(i)));
        assert_eq!(fold(outer_last.collect(), &[]).len(), 1, "the newest covers all others");
        // Every snapshot between two of them needs its own.
        assert_eq!(fold(ranges.take(3).collect(), &[1, 2]).len(), 3);
    }

    #[test]
    fn a_version_goes_if_every_snapshot_that_sees_it_sees_its_cover() {
        assert!(drops(&[9], 8, &[]) && !drops(&[9], 9, &[]) && !drops(&[9], 10, &[]) && !drops(&[], 1, &[]));
        assert!(!drops(&[9], 5, &[5]) && !drops(&[9], 5, &[8]) && drops(&[9], 5, &[9]) && drops(&[9], 5, &[4]));
        assert!(drops(&[9, 6], 5, &[7]), "the older range covers it for the snapshot too");
        assert!(!drops(&[9, 6], 6, &[7]));
    }
}
