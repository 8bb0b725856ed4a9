//! Range codes: a few bits per key that answer for a range of keys "certainly empty" or "maybe",
//! and bound the next key of a block from below and above, without reading the block.
//!
//! | code | of | answers |
//! |---|---|---|
//! | [`OrderedFilter`] | the keys of each data block | any range, and bounds of next keys |
//! | [`PrefixRangeFilter`] | prefixes and suffixes, in any order | ranges within one prefix |
//!
//! A prototype beside the library, by which its codes are chosen. docs/RANGE_CODES.md has the
//! rates, what was tried, and what is open.
//!
//! Both turn keys into numbers with the `alphabet` of bytes that occur at each position, numbers
//! into cells, and store the sorted cells by Elias–Fano (`cells`).
//!
//! Invariants:
//! - Numbers and cells are integer arithmetic that never decreases with the key. A range that holds
//!   a key therefore has the key's cell between the cells of its ends.
//! - A bound of the next key is at most that key, and a bound of the key before exceeds it.
//! - Bytes that are no filter are refused, and a filter of other keys answers anything, but nothing
//!   panics.

mod alphabet;
mod builder;
mod cells;
mod ordered;
mod scale;
#[cfg(test)]
mod tests;
mod within;

pub(crate) use builder::OrderedBuilder;
pub(crate) use ordered::{BlockRange, OrderedFilter};
pub(crate) use within::{PrefixRangeBuilder, PrefixRangeFilter};
