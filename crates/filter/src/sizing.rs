//! How many probes and lines a filter takes. Only writers follow these rules; a reader takes what
//! the header says. Integer arithmetic makes the file the same on every platform.

use super::line::LINE_BITS;
use crate::FilterPolicy;

/// Most lines of a filter: 28 bits choose the line, the 36 others the bits within it. Part of the
/// format, and the limit of a stand-alone filter (16 GiB).
pub(super) const MAX_LINES: u64 = 1 << 28;
/// Most probes of a filter. Part of the format.
pub(super) const MAX_PROBES: u32 = 32;
/// Most lines of a table's filter: the length of its block has 32 bits. Keys beyond this make the
/// filter fuller and its stated rate higher.
pub(super) const MAX_BUILT_LINES: u64 = (1 << 26) - 2;

/// Bits per key, in thousandths, at which the split layout has the rate of the textbook formula at
/// 1, 2, and so on up to 24 bits per key. Solved from the closed form of `split::model_fpr`, with a
/// margin of 0.15 % for the spread between filters.
const COMPENSATED_MILLIBITS: [u32; 24] = [
    1002, 2003, 3008, 4019, 5033, 6066, 7048, 8048, 9065, 10079, 11055, 12069, 13082, 14095, 15114, 16088, 17101,
    18116, 19130, 20107, 21119, 22134, 23148, 24126,
];

/// Thousandths of bits per key of the Bloom filter that replaces a binary fuse, at the same rate by
/// the textbook: r / ln 2.
pub(super) fn stand_in_millibits(fingerprint_millibits: u32) -> u32 {
    fingerprint_millibits.saturating_mul(1443) / 1000
}

/// Thousandths of bits per key of the Bloom filter that a policy asks for, or that replaces its
/// binary fuse.
pub(super) fn bloom_millibits(policy: FilterPolicy) -> u32 {
    match policy {
        FilterPolicy::BinaryFuse { .. } => stand_in_millibits(policy.millibits()),
        _ => policy.millibits(),
    }
}

/// Clamps thousandths to the range that the options allow.
pub(super) fn clamp_millibits(millibits: u32) -> u32 {
    millibits.clamp(1000, 24_000)
}

/// The best number of probes at `millibits` (1000 to 24000): bits per key times ln 2, rounded.
pub(super) fn probe_count(millibits: u32) -> u32 {
    const LN_2: u64 = 693_147_181;
    const ONE: u64 = 1_000_000_000;
    let probes = (u64::from(millibits) * LN_2 + 500 * ONE) / (1000 * ONE);
    u32::try_from(probes).map_or(MAX_PROBES, |probes| probes.clamp(1, MAX_PROBES))
}

/// Thousandths of bits per key that the split layout spends where the textbook spends `millibits`
/// (1000 to 24000): the table, interpolated and rounded down.
pub(super) fn compensated_millibits(millibits: u32) -> u32 {
    let (whole, rest) = (millibits / 1000, millibits % 1000);
    let at = |bits: u32| COMPENSATED_MILLIBITS.get(bits as usize - 1).copied();
    match (at(whole), at(whole + 1)) {
        (Some(low), Some(high)) => low + (high - low) * rest / 1000,
        (Some(low), None) => low,
        _ => millibits,
    }
}

/// Thousandths of bits per key that a table's Bloom filter spends when its policy asks for
/// `millibits`, before rounding to whole lines.
pub(super) fn spent_millibits(millibits: u32) -> u32 {
    compensated_millibits(clamp_millibits(millibits))
}

/// Lines that hold `keys` keys at `millibits` thousandths of bits each.
pub(super) fn lines_for(keys: u64, millibits: u32) -> u128 {
    (u128::from(keys) * u128::from(millibits)).div_ceil(u128::from(LINE_BITS) * 1000)
}

/// [`lines_for`] a table's filter: at least one, and at most what its block can hold.
pub(super) fn line_count(keys: u64, millibits: u32) -> u64 {
    u64::try_from(lines_for(keys, millibits)).map_or(MAX_BUILT_LINES, |lines| lines.clamp(1, MAX_BUILT_LINES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_count_is_bits_times_ln_2_rounded() {
        let expected = [1, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 8, 9, 10, 10, 11, 12, 12, 13, 14, 15, 15, 16, 17];
        for (bits, probes) in (1..).zip(expected) {
            assert_eq!(probe_count(bits * 1000), probes, "{bits} bits per key");
        }
        for millibits in 1000..=24_000 {
            let exact = f64::from(millibits) / 1000.0 * std::f64::consts::LN_2;
            assert_eq!(f64::from(probe_count(millibits)), exact.round());
        }
    }

    #[test]
    fn compensation_interpolates_between_whole_bits() {
        assert_eq!(compensated_millibits(1000), 1002);
        assert_eq!(compensated_millibits(10_000), 10_079);
        assert_eq!(compensated_millibits(10_001), 10_079);
        assert_eq!(compensated_millibits(12_500), 12_575);
        assert_eq!(compensated_millibits(24_000), 24_126);
        for millibits in 1000..24_000 {
            let step = compensated_millibits(millibits + 1) - compensated_millibits(millibits);
            assert!(step <= 2, "{millibits}");
            assert!(compensated_millibits(millibits) * 100 <= millibits * 102);
        }
    }

    #[test]
    fn line_count_rounds_up_and_is_bounded() {
        assert_eq!(line_count(0, 10_079), 1);
        assert_eq!(line_count(50, 10_079), 1);
        assert_eq!(line_count(51, 10_079), 2);
        assert_eq!(line_count(100, 10_079), 2);
        assert_eq!(line_count(1_000_000, 10_079), 19_686);
        assert_eq!(line_count(u64::MAX, 24_126), MAX_BUILT_LINES);
        assert!(u32::try_from(64 + 64 * MAX_BUILT_LINES).is_ok());
        assert!(u32::try_from(64 + 64 * (MAX_BUILT_LINES + 1)).is_err());
    }
}
