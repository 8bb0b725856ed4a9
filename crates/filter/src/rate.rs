//! A filter policy from a false-positive rate.

use std::ops::Range;

use super::line::LINE_BITS;
use super::shape::{SPLIT_EXCESS, check_rate};
use super::sizing::{probe_count, spent_millibits};
use super::split::{self, Groups};
use crate::FilterPolicy;
use tamis_base::error::{Error, Result};

/// Bits per key that a policy may ask for, in thousandths.
pub(super) const MILLIBITS: Range<u32> = 1000..24_001;

impl FilterPolicy {
    /// The Bloom filter with the fewest bits per key, in thousandths, whose expected false-positive
    /// rate is at most `rate`: 9.59 bits for 1 %. The most, 24 bits, give 0.001 %.
    ///
    /// ```
    /// use tamis_filter::FilterPolicy;
    ///
    /// let policy = FilterPolicy::bloom_with_rate(0.01)?;
    /// assert_eq!(policy, FilterPolicy::bloom(9.587));
    /// assert!(FilterPolicy::bloom_with_rate(1.5).is_err());
    /// # Ok::<(), tamis_filter::Error>(())
    /// ```
    pub fn bloom_with_rate(rate: f64) -> Result<FilterPolicy> {
        check_rate(rate)?;
        // One more probe may be slightly worse where it begins: the rate falls steadily only
        // between such steps.
        let Range { start: mut from, end } = MILLIBITS;
        while from < end {
            let probes = probe_count(from);
            let until = first_where(from, end, |millibits| probe_count(millibits) != probes);
            let found = first_where(from, until, |millibits| expected_rate(millibits) <= rate);
            if found < until {
                // The 24 bits of an `f32`'s precision hold 24,000: thousandths survive.
                #[expect(clippy::cast_possible_truncation, reason = "the nearest number is wanted")]
                let bits_per_key = (f64::from(found) / 1000.0) as f32;
                return Ok(FilterPolicy::Bloom { bits_per_key });
            }
            from = until;
        }
        let least = expected_rate(end - 1);
        Err(Error::invalid(format_args!(
            "a table's filter reaches a false-positive rate of {least:.1e} at best, not {rate:e}"
        )))
    }
}

/// The first number in `from..until` for which `holds`, or `until`. It must also hold for all
/// numbers after that.
pub(super) fn first_where(mut from: u32, mut until: u32, holds: impl Fn(u32) -> bool) -> u32 {
    while from < until {
        let middle = from.midpoint(until);
        if holds(middle) {
            until = middle;
        } else {
            from = middle + 1;
        }
    }
    from
}

/// The average rate of a table's filter when a policy asks for `millibits` thousandths of bits per
/// key.
fn expected_rate(millibits: u32) -> f64 {
    let keys_per_line = (1000 * LINE_BITS) as f64 / f64::from(spent_millibits(millibits));
    split::model_fpr(Groups::for_millibits(millibits), keys_per_line) * SPLIT_EXCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millibits(rate: f64) -> u32 {
        match FilterPolicy::bloom_with_rate(rate) {
            Ok(policy @ FilterPolicy::Bloom { .. }) => policy.millibits(),
            other => panic!("{rate}: {other:?}"),
        }
    }

    #[test]
    fn the_fewest_thousandths_that_reach_the_rate_are_taken() {
        let rates: Vec<f64> = MILLIBITS.map(expected_rate).collect();
        let fewest = |rate: f64| 1000 + u32::try_from(rates.iter().position(|&r| r <= rate).unwrap()).unwrap();
        for rate in [0.999, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.008_194, 0.005, 0.001, 1e-4, 2e-5] {
            assert_eq!(millibits(rate), fewest(rate), "{rate}");
        }
        for &rate in rates.iter().step_by(97) {
            assert_eq!(millibits(rate), fewest(rate), "{rate}");
        }
        assert_eq!(millibits(0.999), 1000);
        assert_eq!(millibits(expected_rate(24_000)), 24_000);
    }

    #[test]
    fn ten_bits_are_enough_for_the_textbook_rate_of_ten_bits() {
        assert!((9_900..=10_000).contains(&millibits(0.008_194)));
    }

    #[test]
    fn rates_that_cannot_be_reached_are_refused() {
        for rate in [0.0, 1.0, -0.5, f64::NAN, f64::INFINITY, 1e-6, expected_rate(24_000) * 0.999] {
            let policy = FilterPolicy::bloom_with_rate(rate);
            assert!(matches!(policy, Err(Error::InvalidArgument(_))), "{rate}: {policy:?}");
        }
    }
}
