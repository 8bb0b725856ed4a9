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
//!
//! docs/RANGE_CODES.md has the rates, what was tried, and what is open.
//!
//! Invariants:
//! - Numbers and cells are integer arithmetic that never decreases with the key. A range that holds
//!   a key therefore has the key's cell between the cells of its ends.
//! - A bound of the next key is at most that key, and a bound of the key before exceeds it.
//! - A block that is unknown or does not verify answers "maybe", and says why. One that verifies
//!   and holds anything else answers anything, but nothing panics, and its memory is a small
//!   multiple of its length.

mod alphabet;
pub(crate) mod builder;
mod cells;
mod coder;
pub(crate) mod codes;
mod count;
mod header;
pub(crate) mod info;
pub(crate) mod reader;
mod scale;
#[cfg(test)]
mod tests;

use tamis_base::format::coding::get_u64;

/// The length of the longest common prefix, found by words.
#[inline]
fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    let ((words_a, _), (words_b, _)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut len = 0;
    for (a, b) in words_a.iter().zip(words_b) {
        let other = get_u64(a) ^ get_u64(b);
        if other != 0 {
            return len + other.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(a, b)| a == b).count()
}
