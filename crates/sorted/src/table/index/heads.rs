//! [`IndexHeads`]: sorted numbers, laid out for searching.
//!
//! A binary search over an array misses the processor's caches at nearly every step. Here a node
//! holds [`WIDTH`] numbers. Each row of nodes has a row above it with the last number of each node,
//! up to a row of one node: a static B+-tree without pointers. A search misses once per row, and
//! the upper rows are small enough to stay in the processor's caches.

use std::ops::Range;
use std::sync::Arc;

use crate::memory::pool::{TableArray, TableMemory};
use crate::memory::prefetch::prefetch;

/// Numbers per node: two cache lines, which processors fetch in pairs.
pub(in crate::table) const WIDTH: usize = 4 * QUARTER;
/// Numbers that a search of a node compares at once.
const QUARTER: usize = 4;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(in crate::table) struct HeadsNode([u64; WIDTH]);

/// Numbers in ascending order.
#[derive(Debug)]
pub(super) struct IndexHeads {
    len: usize,
    /// The numbers, padded with `u64::MAX`.
    lowest: TableArray<HeadsNode>,
    rows: UpperRows,
}

/// The rows above the lowest, topmost first; the topmost has a single node.
#[derive(Debug)]
pub(in crate::table) struct UpperRows(Box<[TableArray<HeadsNode>]>);

impl IndexHeads {
    /// `number` reads the numbers.
    pub(super) fn new<T>(numbers: &[T], number: impl Fn(&T) -> u64, memory: Option<&Arc<TableMemory>>) -> IndexHeads {
        let lowest = nodes(memory, numbers, number);
        IndexHeads { len: numbers.len(), rows: UpperRows::over(&lowest, memory), lowest }
    }

    /// Number of elements less than `number`. Calls `prefetch_among` before the last step, with the
    /// positions among which the result is, unless it is past the end.
    #[inline]
    pub(super) fn count_less(&self, number: u64, prefetch_among: impl FnOnce(Range<usize>)) -> usize {
        let Some(at) = self.rows.descend(number) else { return self.len };
        let Some(node) = self.lowest.get(at) else { return self.len };
        prefetch_among(at * WIDTH..self.len.min(at * WIDTH + WIDTH));
        (at * WIDTH + node.count_less(number)).min(self.len)
    }

    /// Prefetches what [`IndexHeads::count_less`] will read.
    #[inline]
    pub(super) fn prefetch(&self, number: u64) {
        if let Some(node) = self.rows.descend(number).and_then(|at| self.lowest.get(at)) {
            node.prefetch();
        }
    }

    /// The number at position `i`.
    pub(super) fn get(&self, i: usize) -> Option<u64> {
        (i < self.len).then(|| self.lowest[i / WIDTH].0[i % WIDTH])
    }

    /// Bytes of memory that this points to.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.lowest) + self.rows.memory()
    }

    /// The rows above the lowest, without it.
    pub(super) fn into_upper(self) -> UpperRows {
        self.rows
    }
}

impl UpperRows {
    fn over(lowest: &TableArray<HeadsNode>, memory: Option<&Arc<TableMemory>>) -> UpperRows {
        let mut upper = Vec::new();
        let mut below = lowest;
        while below.len() > 1 {
            upper.push(nodes(memory, below, |node| node.0[WIDTH - 1]));
            below = &upper[upper.len() - 1];
        }
        upper.reverse();
        UpperRows(upper.into())
    }

    /// Position of the node in the lowest row that has the result; `None` if that is past the end.
    #[inline]
    pub(in crate::table) fn descend(&self, number: u64) -> Option<usize> {
        let mut position = 0;
        for row in &self.0 {
            // Padding of a row may lead past the end of the next one.
            position = position * WIDTH + row.get(position)?.count_less(number);
        }
        Some(position)
    }

    /// Bytes of memory that this points to.
    pub(in crate::table) fn memory(&self) -> usize {
        self.0.iter().map(|row| size_of_val(row) + size_of_val(&**row)).sum()
    }
}

impl HeadsNode {
    /// A node of at most [`WIDTH`] numbers.
    pub(in crate::table) fn of(numbers: impl Iterator<Item = u64>) -> HeadsNode {
        let mut node = HeadsNode([u64::MAX; WIDTH]);
        node.0.iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
        node
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(&self.0[0]);
        prefetch(&self.0[WIDTH - 1]);
    }

    /// Compares with the last number of the first three quarters, then with the four numbers of one
    /// quarter: 24 ns for four rows, where halving, whose four loads wait for each other, takes 44.
    /// Both lines of the node are fetched at once.
    #[inline]
    pub(in crate::table) fn count_less(&self, number: u64) -> usize {
        self.prefetch();
        let is_less = |other: u64| usize::from(other < number);
        let (quarters, _) = self.0.as_chunks::<QUARTER>();
        let at =
            is_less(quarters[0][QUARTER - 1]) + is_less(quarters[1][QUARTER - 1]) + is_less(quarters[2][QUARTER - 1]);
        let [a, b, c, d] = quarters[at];
        at * QUARTER + is_less(a) + is_less(b) + is_less(c) + is_less(d)
    }
}

/// The nodes of a row: `number` of each element of `below`.
fn nodes<T>(memory: Option<&Arc<TableMemory>>, below: &[T], number: impl Fn(&T) -> u64) -> TableArray<HeadsNode> {
    let nodes = below.chunks(WIDTH).map(|below| HeadsNode::of(below.iter().map(&number)));
    TableArray::new(memory, nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn count_less_counts_the_smaller_numbers(
            mut numbers in prop_oneof![
                prop::collection::vec(0u64..500, 0..600),
                prop::collection::vec(any::<u64>(), 0..40),
                prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), Just(u64::MAX - 1)], 0..300),
            ],
            number in prop_oneof![0u64..510, any::<u64>(), Just(u64::MAX)],
        ) {
            numbers.sort_unstable();
            let heads = IndexHeads::new(&numbers, |&number| number, None);
            for number in numbers.iter().copied().chain([number]) {
                let mut prefetch_among = 0..0;
                let count = heads.count_less(number, |range| prefetch_among = range);
                prop_assert_eq!(count, numbers.partition_point(|&other| other < number));
                prop_assert!(count == numbers.len() || prefetch_among.contains(&count) || count == prefetch_among.end);
            }
            for i in 0..numbers.len() + 2 {
                prop_assert_eq!(heads.get(i), numbers.get(i).copied());
            }
        }
    }
}
