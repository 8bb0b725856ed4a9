//! Which runs of level 0 to merge with each other ([`cheapest_first`]), and which tables of a lower
//! level to move down ([`Neighbours`]).
//!
//! What decides about a window of runs is known of its runs before the windows are: a level 0 that
//! nothing compacts may have thousands of runs, and millions of windows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::format::key::SeqNo;
use crate::sorted::table::TableMeta;

/// The windows of at least `fewest` runs that may be merged, those first that have the fewest bytes
/// divided by the square of the number of runs removed. `runs` are newest first.
pub(super) fn cheapest_first(
    runs: &[&TableMeta],
    fewest: usize,
    may_merge: impl Fn(&TableMeta) -> bool,
) -> impl Iterator<Item = Range<usize>> {
    let bytes_before = sums(runs.iter().map(|run| run.size));
    let (mut free_until, mut end) = (vec![0; runs.len()], runs.len());
    for (at, run) in runs.iter().enumerate().rev() {
        end = if may_merge(run) { end } else { at };
        free_until[at] = end;
    }
    // A merged run has the place of its newest input. What a memtable holds between that one and
    // the others would be placed beneath its older versions.
    let mut least = SeqNo::MAX;
    let is_apart = runs.iter().map(|run| {
        let is_apart = least > run.largest_seqno;
        least = least.min(run.smallest_seqno);
        is_apart
    });
    let starts = is_apart.enumerate().filter(|(_, is_apart)| *is_apart).map(|(start, _)| start);
    let windows = starts.flat_map(|start| (start + fewest..=free_until[start]).map(move |end| (start, end)));
    let cost = |start: usize, end: usize| {
        let removed = (end - start) as u64 - 1;
        (bytes_before[end] - bytes_before[start]) / (removed * removed)
    };
    let mut windows: BinaryHeap<_> = windows.map(|(start, end)| Reverse((cost(start, end), start, end))).collect();
    std::iter::from_fn(move || windows.pop()).map(|Reverse((_, start, end))| start..end)
}

/// The tables of a level, to find which of them should move down together.
pub(super) struct Neighbours<'a> {
    /// What moving each of them is worth, in bytes.
    pub(super) gains: Vec<u64>,
    /// The positions of the tables of the next level that each of them overlaps.
    pub(super) overlapped: Vec<Range<usize>>,
    /// The next level.
    pub(super) below: &'a [&'a TableMeta],
}

impl Neighbours<'_> {
    /// The windows of at most `most` tables that may move, those first that rewrite the fewest
    /// bytes of the next level for each byte gained.
    pub(super) fn cheapest_first(&self, most: usize, may_move: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
        let gain_before = sums(self.gains.iter().copied());
        let size_before = sums(self.below.iter().map(|table| table.size));
        let cost = |start: usize, end: usize| {
            let (from, to) = (self.overlapped[start].start, self.overlapped[end - 1].end);
            let rewritten = size_before[to].saturating_sub(size_before[from]);
            rewritten.saturating_mul(1000) / (gain_before[end] - gain_before[start]).max(1)
        };
        let (count, may_move) = (self.gains.len(), &may_move);
        let windows = (0..count).flat_map(move |start| {
            let ends = start + 1..=count.min(start + most);
            ends.take_while(move |end| may_move(end - 1)).map(move |end| (start, end))
        });
        let mut windows: Vec<_> = windows.map(|(start, end)| (cost(start, end), start, end)).collect();
        windows.sort_unstable();
        windows.into_iter().map(|(_, start, end)| start..end).collect()
    }
}

/// The sum of the first 0, 1, 2, and up to all of some numbers.
fn sums(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sums = vec![0_u64];
    sums.extend(numbers.scan(0_u64, |sum, number| {
        *sum = sum.saturating_add(number);
        Some(*sum)
    }));
    sums
}
