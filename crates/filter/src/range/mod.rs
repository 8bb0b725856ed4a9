//! Range codes: a few bits per key that answer for a range of keys "certainly empty" or "maybe",
//! and bound the next key of a block from below and above, without reading the block.
//!
//! | file | |
//! |---|---|
//! | `alphabet` | keys as numbers, by the bytes that occur at each position |
//! | `count`, `coder` | what the builder needs for it: counts of bytes, and tables |
//! | `scale` | numbers of a block as cells, in order or folded |
//! | `cells` | sorted cells, by Elias–Fano |
//! | `header`, `info` | the header of 64 bytes, and what it says |
//! | `codes` | the cells of all blocks: answers |
//! | `builder`, `reader` | a table's filter |
//! | `separators`, `bounds` | what a filter that is alone (`alone/ordered.rs`) has beside codes |
//!
//! docs/RANGE_CODES.md has the rates, what was tried, and what is open.
//!
//! Invariants:
//! - Numbers and cells are integer arithmetic that never decreases with the key. A range that holds
//!   a key therefore has the key's cell between the cells of its ends.
//! - A bound of the next key is at most that key, and a bound of the key before exceeds it.
//! - A table's block that is unknown or does not verify answers "maybe", and says why; bytes of a
//!   filter that is alone are an error. One that verifies and holds anything else answers anything,
//!   but nothing panics, and its memory is a small multiple of its length.

mod alphabet;
pub(crate) mod bounds;
pub(crate) mod builder;
mod cells;
mod coder;
pub(crate) mod codes;
mod count;
pub(crate) mod header;
pub(crate) mod info;
pub(crate) mod reader;
mod scale;
pub(crate) mod separators;
#[cfg(test)]
pub(crate) mod tests;
