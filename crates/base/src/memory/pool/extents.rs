//! [`Extents`]: which parts of segmented memory are free.
//!
//! Places are counted through all segments, which need not be adjacent in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes taken from the system at a time, a multiple of [`CHUNK_LEN`](super::CHUNK_LEN). No piece
/// crosses a segment's end.
pub(super) const SEGMENT: usize = 64 << 20;

/// The free pieces, by place and by length. A segment's first byte always begins a piece.
#[derive(Default)]
pub(super) struct Extents {
    by_start: BTreeMap<usize, usize>,
    by_len: BTreeSet<(usize, usize)>,
    bytes: usize,
}

impl Extents {
    fn insert(&mut self, start: usize, len: usize) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
        self.bytes += len;
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
        self.bytes -= len;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn longest(&self) -> usize {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    /// Takes `len` bytes from the front of the shortest free piece that fits; of equal ones, the
    /// first.
    pub(super) fn take(&mut self, len: usize) -> Option<usize> {
        let &(found, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, found);
        if found > len {
            self.insert(start + len, found - len);
        }
        Some(start)
    }

    /// Frees a range, taken before or new, and merges it with adjacent free pieces.
    pub(super) fn put(&mut self, mut start: usize, mut len: usize) {
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

    /// The free parts of `places`.
    pub(super) fn within(&self, places: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let before = self.by_start.range(..places.start).next_back();
        let pieces = before.into_iter().chain(self.by_start.range(places.clone()));
        let cut = move |(&start, &len): (&usize, &usize)| start.max(places.start)..(start + len).min(places.end);
        pieces.map(cut).filter(|piece| !piece.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum ExtentOp {
        Take(usize),
        Put(prop::sample::Index),
    }

    fn extent_op() -> impl Strategy<Value = ExtentOp> {
        prop_oneof![(1usize..20).prop_map(ExtentOp::Take), any::<prop::sample::Index>().prop_map(ExtentOp::Put)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 200 }))]

        #[test]
        fn taken_pieces_do_not_overlap_and_freed_ones_merge(ops in prop::collection::vec(extent_op(), 0..100)) {
            const LEN: usize = 200;
            let (mut extents, mut taken, mut used) = (Extents::default(), Vec::new(), [false; LEN]);
            extents.insert(0, LEN);
            for op in ops {
                match op {
                    ExtentOp::Take(len) => match extents.take(len) {
                        Some(start) => {
                            prop_assert!(used[start..start + len].iter().all(|used| !used));
                            used[start..start + len].fill(true);
                            taken.push((start, len));
                        }
                        None => prop_assert!(used.split(|&used| used).all(|free| free.len() < len)),
                    },
                    ExtentOp::Put(at) if !taken.is_empty() => {
                        let (start, len) = taken.swap_remove(at.index(taken.len()));
                        used[start..start + len].fill(false);
                        extents.put(start, len);
                    }
                    ExtentOp::Put(_) => {}
                }
                let free: usize = extents.by_start.values().sum();
                prop_assert_eq!(free, used.iter().filter(|used| !**used).count());
                prop_assert_eq!(free, extents.bytes);
                prop_assert_eq!(extents.by_start.len(), extents.by_len.len());
                let window = LEN / 4..LEN / 2;
                let within: Vec<usize> = extents.within(window.clone()).flatten().collect();
                prop_assert_eq!(within, window.filter(|&place| !used[place]).collect::<Vec<_>>());
            }
            for (start, len) in taken {
                extents.put(start, len);
            }
            prop_assert_eq!(extents.take(LEN), Some(0));
        }
    }
}
