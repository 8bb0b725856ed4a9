//! Compares a key's fingerprint with those of a block's entries, 64 at a time.
//!
//! Gain, blocks of 4 KiB in memory: an absent key that a filter lets through is refused in 33 ns,
//! where a search by heads takes 125; keys that are there take as long. To remove it, search for
//! the heads as `seek` does.

use crate::format::coding::get_u64;

/// Fingerprints per comparison: one cache line.
pub(super) const GROUP_LEN: usize = 64;

/// A bit mask of those of the first `count` fingerprints from `start` on that equal `fingerprint`.
/// At most [`GROUP_LEN`] fingerprints are compared.
///
/// If fewer than [`GROUP_LEN`] bytes follow `start`, they are copied to a padded line first. A
/// block in a frame does not get there, because frames are longer than their blocks.
#[inline]
pub(super) fn matches(bytes: &[u8], start: usize, count: usize, fingerprint: u8) -> u64 {
    let line = bytes.get(start..).and_then(<[u8]>::first_chunk);
    let equal = match line {
        Some(line) => equal_in(line, fingerprint),
        None => equal_in(&padded(bytes.get(start..).unwrap_or_default()), fingerprint),
    };
    if count < GROUP_LEN { equal & ((1 << count) - 1) } else { equal }
}

#[cold]
fn padded(bytes: &[u8]) -> [u8; GROUP_LEN] {
    let mut line = [0; GROUP_LEN];
    line[..bytes.len()].copy_from_slice(bytes);
    line
}

/// A bit for each byte of `line` that equals `fingerprint`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn equal_in(line: &[u8; GROUP_LEN], fingerprint: u8) -> u64 {
    // SAFETY: every processor of this architecture has SSE2.
    unsafe { equal_in_sse2(line, fingerprint) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "sse2")]
#[inline]
fn equal_in_sse2(line: &[u8; GROUP_LEN], fingerprint: u8) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};

    let wanted = _mm_set1_epi8(fingerprint.cast_signed());
    let (quarters, _) = line.as_chunks::<16>();
    quarters.iter().rev().fold(0, |equal, quarter| {
        let [low, high] = [&quarter[..8], &quarter[8..]].map(|half| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(half);
            get_u64(&bytes).cast_signed()
        });
        let mask = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_set_epi64x(high, low), wanted));
        equal << 16 | u64::from(mask.cast_unsigned())
    })
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use portable::equal_in;

/// Portable twin of the SSE2 code: compares eight bytes at a time.
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
mod portable {
    use super::{GROUP_LEN, get_u64};

    pub(super) fn equal_in(line: &[u8; GROUP_LEN], fingerprint: u8) -> u64 {
        let (words, _) = line.as_chunks::<8>();
        words.iter().rev().fold(0, |equal, word| equal << 8 | equal_bits(get_u64(word), fingerprint))
    }

    /// A bit for each byte of `word` that equals `byte`.
    fn equal_bits(word: u64, byte: u8) -> u64 {
        const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        /// Multiplication gathers the top bits of eight bytes in the top byte of the product: bit
        /// `8 * i + 7` meets the factor's bit `49 - 7 * i` at bit `56 + i`, and no two meet
        /// elsewhere.
        const GATHER: u64 = 0x0002_0408_1020_4081;
        let difference = word ^ get_u64(&[byte; 8]);
        // Unlike the shorter subtraction, this addition cannot carry into the next byte, so it
        // yields no false match.
        let high = !(((difference & LOW_BITS) + LOW_BITS) | difference | LOW_BITS);
        high.wrapping_mul(GATHER) >> 56
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 1000 }))]
        #[test]
        fn exactly_the_equal_fingerprints_are_marked(
            bytes in prop::collection::vec(prop_oneof![0u8..3, 0x7e..0x82u8, any::<u8>()], 0..200),
            start in 0usize..140, count in 1usize..200, pick: prop::sample::Index
        ) {
            let fingerprint = bytes.get(pick.index(bytes.len().max(1))).copied().unwrap_or(1);
            let count = count.min(bytes.len().saturating_sub(start));
            let expected = (0..count.min(GROUP_LEN)).filter(|i| bytes[start + i] == fingerprint).fold(0, |all, i| all | 1 << i);
            prop_assert_eq!(matches(&bytes, start, count, fingerprint), expected);
            if let Some(line) = bytes.first_chunk() {
                prop_assert_eq!(equal_in(line, fingerprint), portable::equal_in(line, fingerprint));
            }
        }
    }
}
