//! A line: the 64 bytes of a filter that one memory access loads.

use crate::format::coding::{get_u64, u64_bytes};

/// Bits in a line. Part of the format.
pub(super) const LINE_BITS: u64 = 512;
/// Bytes in a line. Part of the format.
pub(super) const LINE_LEN: usize = 64;

/// 512 bits, aligned like a cache line. Bit `b` is bit `b % 8` of byte `b / 8` on disk, and bit
/// `b % 64` of word `b / 64` in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct FilterLine(pub(super) [u64; 8]);

impl FilterLine {
    pub(super) fn decode(bytes: &[u8; LINE_LEN]) -> FilterLine {
        let mut line = FilterLine::default();
        let (words, _) = bytes.as_chunks::<8>();
        for (word, bytes) in line.0.iter_mut().zip(words) {
            *word = get_u64(bytes);
        }
        line
    }

    pub(super) fn encode(&self) -> [u8; LINE_LEN] {
        let mut bytes = [0; LINE_LEN];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = u64_bytes(word);
        }
        bytes
    }

    /// Sets the bit named by the low nine bits of `position`. Returns 1 if it was unset, otherwise
    /// 0.
    #[inline]
    pub(super) fn set(&mut self, position: u64) -> u64 {
        let word = &mut self.0[word_of(position)];
        let before = *word >> (position % 64) & 1;
        *word |= 1 << (position % 64);
        1 - before
    }

    /// Returns the bit named by the low nine bits of `position` as its lowest bit; its other bits
    /// are arbitrary.
    pub(super) fn get(&self, position: u64) -> u64 {
        self.0[word_of(position)] >> (position % 64)
    }

    /// How many bits are set.
    pub(super) fn ones(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// Index of the word with the bit named by the low nine bits of `position`.
#[inline]
pub(super) fn word_of(position: u64) -> usize {
    (position % LINE_BITS / 64) as usize
}

/// How full some lines are: the counts from which rates are computed. Taken in one pass.
pub(super) struct Fill {
    /// At `i`, the number of lines with `i` set bits.
    lines_with: [u64; 8 * LINE_LEN + 1],
    lines: u64,
}

impl Fill {
    pub(super) fn of(lines: &[FilterLine]) -> Fill {
        let mut lines_with = [0; 8 * LINE_LEN + 1];
        for line in lines {
            lines_with[line.ones() as usize] += 1;
        }
        Fill { lines_with, lines: lines.len() as u64 }
    }

    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// Share of all bits that are set.
    pub(super) fn ratio(&self) -> f64 {
        self.mean_power(1)
    }

    /// The mean, over lines, of the share of set bits to the power of `exponent`, at most 4.
    /// Integer sums make the stored rate the same on every platform.
    pub(super) fn mean_power(&self, exponent: u8) -> f64 {
        let sum: u128 =
            (0u128..).zip(self.lines_with).map(|(ones, lines)| u128::from(lines) * ones.pow(exponent.into())).sum();
        let full = u128::from(self.lines) * u128::from(LINE_BITS).pow(exponent.into());
        sum as f64 / full as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_order_is_little_endian_by_byte() {
        for bit in 0..LINE_LEN * 8 {
            let mut line = FilterLine::default();
            line.set(bit as u64);
            let bytes = line.encode();
            assert_eq!(bytes[bit / 8], 1 << (bit % 8), "bit {bit}");
            assert_eq!(line.ones(), 1);
            assert_eq!(FilterLine::decode(&bytes), line);
            assert_eq!(line.get(bit as u64) & 1, 1);
            assert_eq!(line.get(bit as u64 + 1) & 1, 0);
        }
    }

    #[test]
    fn a_line_is_a_cache_line() {
        assert_eq!(size_of::<FilterLine>(), LINE_LEN);
        assert_eq!(align_of::<FilterLine>(), LINE_LEN);
    }
}
