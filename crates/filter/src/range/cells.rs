//! Sorted cell numbers by Elias–Fano: the low bits of each in an array, the others in unary.
//!
//! `n` cells below `n · per_key` take `low_bits(per_key)` bits each, then one bit per cell and one
//! per bucket of `2^low_bits` cells. For a `per_key` of `2^r`, these are r + 2 bits per cell.
//!
//! ```text
//! cells 3 5 5 14, of 4 · 4      low bits (2): 3 1 1 2      buckets: 1 0 110 0 10  (one per cell,
//!                                                                   then the bucket's zero)
//! ```

use tamis_base::format::coding::{get_u64, set_u32};

/// What a code's length and places follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    count: usize,
    low: u32,
    buckets: usize,
}

impl Shape {
    /// Of `count` cells below `universe`, with the low bits for one cell in `per_key`.
    pub(super) fn new(count: usize, universe: u32, per_key: u32) -> Shape {
        let low = per_key.max(1).ilog2();
        Shape { count, low, buckets: (universe as usize).div_ceil(1 << low) }
    }

    /// Bytes of the code.
    pub(super) fn len(self) -> usize {
        (self.count * (self.low as usize + 1) + self.buckets).div_ceil(8)
    }
}

/// Appends the code of `cells`, which are sorted and have this shape.
pub(super) fn encode(cells: &[u32], shape: Shape, out: &mut Vec<u8>) {
    let (start, low) = (out.len(), shape.low);
    // Whole words are written: some bytes more, and then cut off.
    out.resize(start + shape.len() + 4, 0);
    let code = &mut out[start..];
    let (mut bits, mut len, mut at) = (0u64, 0, 0);
    for cell in cells {
        bits |= u64::from(cell & ((1 << low) - 1)) << len;
        len += low;
        if len >= 32 {
            set_u32(code, at, low_word(bits));
            (bits, len, at) = (bits >> 32, len - 32, at + 4);
        }
    }
    set_u32(code, at, low_word(bits));
    let unary = cells.len() * low as usize;
    for (i, cell) in cells.iter().enumerate() {
        let bit = unary + i + (cell >> low) as usize;
        code[bit / 8] |= 1 << (bit % 8);
    }
    out.truncate(start + shape.len());
}

#[expect(clippy::cast_possible_truncation, reason = "meant")]
fn low_word(bits: u64) -> u32 {
    bits as u32
}

/// A code, to be asked. Any bytes are a code: those of other cells give other answers.
#[derive(Clone, Copy)]
pub(super) struct Cells<'a> {
    code: &'a [u8],
    shape: Shape,
}

impl<'a> Cells<'a> {
    pub(super) fn new(code: &'a [u8], shape: Shape) -> Cells<'a> {
        Cells { code, shape }
    }

    /// The 64 bits from `bit` on; zeros after the last byte.
    #[inline]
    fn word(&self, bit: usize) -> u64 {
        let (byte, shift) = (bit / 8, bit % 8);
        let rest = self.code.get(byte..).unwrap_or_default();
        match rest.first_chunk::<9>() {
            Some([first @ .., last]) if shift > 0 => get_u64(first) >> shift | u64::from(*last) << (64 - shift),
            _ => match rest.first_chunk::<8>() {
                Some(first) => get_u64(first) >> shift,
                None => rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)) >> shift,
            },
        }
    }

    #[inline]
    fn low_of(&self, i: usize) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "at most 24 bits")]
        let bits = self.word(i * self.shape.low as usize) as u32;
        bits & ((1 << self.shape.low) - 1)
    }

    /// Bit of the unary part, counted from its start, at which bucket `bucket` begins.
    fn bucket_start(&self, bucket: usize) -> usize {
        let (base, mut at, mut zeros) = (self.shape.count * self.shape.low as usize, 0, bucket);
        while zeros > 0 && at < self.shape.count + self.shape.buckets {
            let mut word = !self.word(base + at);
            let here = word.count_ones() as usize;
            if here < zeros {
                (zeros, at) = (zeros - here, at + 64);
                continue;
            }
            for _ in 1..zeros {
                word &= word - 1;
            }
            return at + word.trailing_zeros() as usize + 1;
        }
        at.min(self.shape.count + self.shape.buckets)
    }

    /// Whether there is a cell from `first` to `last`.
    pub(super) fn any(&self, first: u32, last: u32) -> bool {
        self.first_from(first).is_some_and(|found| found <= last)
    }

    /// The first cell that is at least `cell`.
    pub(super) fn first_from(&self, cell: u32) -> Option<u32> {
        let mut bucket = (cell >> self.shape.low) as usize;
        let base = self.shape.count * self.shape.low as usize;
        let mut at = self.bucket_start(bucket);
        let mut i = at.checked_sub(bucket)?;
        while i < self.shape.count {
            let word = self.word(base + at);
            if word & 1 == 0 {
                if bucket >= self.shape.buckets {
                    return None;
                }
                let zeros = word.trailing_zeros() as usize;
                (bucket, at) = (bucket + zeros, at + zeros);
                continue;
            }
            let found = u32::try_from(bucket).ok()? << self.shape.low | self.low_of(i);
            if found >= cell {
                return Some(found);
            }
            (i, at) = (i + 1, at + 1);
        }
        None
    }

    /// The last cell that is at most `cell`.
    pub(super) fn last_to(&self, cell: u32) -> Option<u32> {
        let mut bucket = ((cell >> self.shape.low) as usize).min(self.shape.buckets.checked_sub(1)?);
        let base = self.shape.count * self.shape.low as usize;
        // From the end of the bucket backwards: its zero, then its cells, the largest first.
        let mut at = self.bucket_start(bucket + 1).checked_sub(1)?;
        while at > 0 {
            at -= 1;
            if self.word(base + at) & 1 == 0 {
                bucket = bucket.checked_sub(1)?;
                continue;
            }
            let i = at.checked_sub(bucket)?;
            let found = u32::try_from(bucket).ok()? << self.shape.low | self.low_of(i);
            if found <= cell {
                return Some(found);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn neighbours_are_those_of_the_sorted_cells(
            per_key in prop_oneof![1u32..2000, Just(256), Just(1024)],
            shares in proptest::collection::vec(any::<u16>(), 0..300),
            asked in proptest::collection::vec(any::<u16>(), 0..60),
        ) {
            let universe = u32::try_from(shares.len()).unwrap() * per_key;
            prop_assume!(universe <= 65_535);
            let of_share = |share: u16| u32::from(share) * (universe - 1) / 65_535;
            let mut cells: Vec<u32> = shares.iter().map(|&share| of_share(share)).collect();
            cells.sort_unstable();
            let mut code = vec![7];
            let shape = Shape::new(cells.len(), universe, per_key);
            encode(&cells, shape, &mut code);
            prop_assert_eq!(code.len(), 1 + shape.len());
            let all = Cells::new(&code[1..], shape);
            let near = cells.iter().flat_map(|&cell| [cell.saturating_sub(1), cell, cell + 1]);
            let others = asked.iter().filter(|_| !cells.is_empty()).map(|&share| of_share(share));
            for cell in near.chain(others).chain([0, 1 << 20]) {
                prop_assert_eq!(all.first_from(cell), cells.iter().copied().find(|&c| c >= cell), "from {}", cell);
                prop_assert_eq!(all.last_to(cell), cells.iter().copied().rfind(|&c| c <= cell), "to {}", cell);
            }
        }

        #[test]
        fn other_bytes_do_not_panic(code: Vec<u8>, count in 0u32..3000, per_key in 1u32..70_000, cell: u32) {
            let universe = (count * per_key) >> 8;
            let cells = Cells::new(&code, Shape::new(count as usize, universe, per_key));
            cells.first_from(cell);
            cells.last_to(cell);
        }
    }
}
