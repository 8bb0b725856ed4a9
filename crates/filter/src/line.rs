//! A line: the 64 bytes of a filter that one memory access loads.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use tamis_base::format::coding::{get_u64, u64_bytes};

/// Bits in a line. Part of the format.
pub(super) const LINE_BITS: u64 = 512;
/// Bytes in a line. Part of the format.
pub(super) const LINE_LEN: usize = 64;

/// The bits of a line, wherever they are kept.
pub(super) trait ReadLine {
    /// Word `i`, below 8: bits `64 · i` and on.
    fn word(&self, i: usize) -> u64;

    /// Returns the bit named by the low nine bits of `position` as its lowest bit; its other bits
    /// are arbitrary.
    #[inline(always)]
    fn get(&self, position: u64) -> u64 {
        self.word(word_of(position)) >> (position % 64)
    }

    /// All words.
    fn words(&self) -> [u64; 8] {
        std::array::from_fn(|i| self.word(i))
    }

    /// How many bits are set.
    fn ones(&self) -> u32 {
        self.words().iter().map(|word| word.count_ones()).sum()
    }

    /// The line as it is on disk.
    fn encode(&self) -> [u8; LINE_LEN] {
        let mut bytes = [0; LINE_LEN];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.words()) {
            *bytes = u64_bytes(word);
        }
        bytes
    }
}

/// 512 bits, aligned like a cache line. Bit `b` is bit `b % 8` of byte `b / 8` on disk, and bit
/// `b % 64` of word `b / 64` in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct FilterLine(pub(super) [u64; 8]);

impl FilterLine {
    pub(super) fn decode(bytes: &[u8; LINE_LEN]) -> FilterLine {
        FilterLine(bytes.words())
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
}

impl ReadLine for FilterLine {
    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        self.0[i]
    }
}

/// A line as it is on disk, at any address.
impl ReadLine for [u8; LINE_LEN] {
    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        get_u64(&self.as_chunks::<8>().0[i])
    }
}

/// A line whose bits threads set together.
///
/// Every access is relaxed. A bit only ever goes from 0 to 1, says nothing about other memory, and
/// is set by one atomic instruction, so that no two threads undo each other's bits. A thread that
/// has learned of an insertion in any way that orders memory (a join, a lock, a channel, an atomic)
/// then also reads its bits, since no later value of the word lacks them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct AtomicLine([AtomicU64; 8]);

impl AtomicLine {
    pub(super) fn new(line: FilterLine) -> AtomicLine {
        AtomicLine(line.0.map(AtomicU64::new))
    }

    pub(super) fn into_plain(self) -> FilterLine {
        FilterLine(self.0.map(AtomicU64::into_inner))
    }

    /// [`FilterLine::set`], in a shared line. Of threads that set one bit, one gets 1.
    #[inline]
    fn set(&self, position: u64) -> u64 {
        let (word, shift) = (&self.0[word_of(position)], position % 64);
        // A set bit is not written again: the cache line stays shared among the readers.
        if word.load(Relaxed) >> shift & 1 == 1 {
            return 0;
        }
        1 - (word.fetch_or(1 << shift, Relaxed) >> shift & 1)
    }
}

impl ReadLine for AtomicLine {
    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        self.0[i].load(Relaxed)
    }
}

/// Lines that take new bits.
pub(super) trait SetBits {
    fn count(&self) -> usize;

    /// Sets the first `PROBES` bits that `g` names, nine bits each, in the line at `index`. Returns
    /// how many of them were unset.
    fn set_all<const PROBES: u8>(&mut self, index: usize, g: u64) -> u64;
}

impl SetBits for [FilterLine] {
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn set_all<const PROBES: u8>(&mut self, index: usize, g: u64) -> u64 {
        self.get_mut(index).map_or(0, |line| (0..PROBES).map(|j| line.set(g >> (9 * j))).sum())
    }
}

impl SetBits for &[AtomicLine] {
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn set_all<const PROBES: u8>(&mut self, index: usize, g: u64) -> u64 {
        self.get(index).map_or(0, |line| (0..PROBES).map(|j| line.set(g >> (9 * j))).sum())
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
    pub(super) fn of<L: ReadLine>(lines: &[L]) -> Fill {
        Fill::of_counts(lines.iter().map(L::ones))
    }

    /// The fill of the lines that have all bits of a line of `one` and of the line of `other` at
    /// its index.
    pub(super) fn of_union<L: ReadLine, M: ReadLine>(one: &[L], other: &[M]) -> Fill {
        let united = |(one, other): (&L, &M)| (0..8).map(|i| (one.word(i) | other.word(i)).count_ones()).sum();
        Fill::of_counts(one.iter().zip(other).map(united))
    }

    /// From the number of set bits in each line.
    fn of_counts(counts: impl Iterator<Item = u32>) -> Fill {
        let (mut lines_with, mut lines) = ([0; 8 * LINE_LEN + 1], 0);
        for ones in counts {
            lines_with[ones as usize] += 1;
            lines += 1;
        }
        Fill { lines_with, lines }
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
        let counts = (0u128..).zip(self.lines_with).filter(|(_, lines)| *lines > 0);
        let sum: u128 = counts.map(|(ones, lines)| u128::from(lines) * ones.pow(exponent.into())).sum();
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
