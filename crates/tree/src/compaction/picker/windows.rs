//! [`cheapest_first`]: which runs of level 0 to merge with each other.
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
    let mut bytes_before = vec![0_u64];
    for run in runs {
        bytes_before.push(bytes_before[bytes_before.len() - 1].saturating_add(run.size));
    }
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
