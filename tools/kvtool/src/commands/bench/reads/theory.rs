//! The rate of the textbook Bloom filter, and how far a count may be from its mean.

/// False-positive rate at `bits` per key: (1 − e^(−k/b))^k with k = b·ln 2, rounded, at least
/// 1 (Bloom, 1970; Mitzenmacher and Upfal, *Probability and Computing*, 5.5.3). Without bits the
/// rate is 1.
pub(super) fn textbook_rate(bits: f64) -> f64 {
    if bits <= 0.0 {
        return 1.0;
    }
    let probes = (bits * std::f64::consts::LN_2).round().max(1.0);
    (1.0 - (-probes / bits).exp()).powf(probes)
}

/// How far a sum of independent events may be from its mean. `variance` is that of the sum,
/// `largest` the most that one event can add.
///
/// By Bernstein's inequality (1924), a sum exceeds its mean by t or more with a probability of at
/// most exp(−t² / (2·(variance + largest·t/3))), and likewise below. The result is the t at
/// which that bound is exp(−5²/2): five standard deviations for many events, more for few.
/// Certain events have no variance and must be met exactly.
pub(super) fn tolerance(variance: f64, largest: f64) -> f64 {
    const SIGMAS: f64 = 5.0;
    let half = SIGMAS * SIGMAS * largest / 6.0;
    half + (half * half + SIGMAS * SIGMAS * variance).sqrt()
}

/// The 95 % confidence interval of a rate of `wrong` of `all` answers, by Wilson's score (E. B.
/// Wilson, 1927), as the store's own for its filters.
pub(super) fn interval(wrong: u64, all: u64) -> Option<[f64; 2]> {
    const Z: f64 = 1.959_964;
    if all == 0 {
        return None;
    }
    let n = all as f64;
    let (rate, spread) = (wrong as f64 / n, Z * Z / n);
    let centre = rate + spread / 2.0;
    let half = Z * (rate * (1.0 - rate) / n + spread / (4.0 * n)).sqrt();
    Some([centre - half, centre + half].map(|sum| (sum / (1.0 + spread)).clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_wilsons() {
        assert_eq!(interval(0, 0), None);
        for ((wrong, all), expected) in [((8, 1000), [0.004_06, 0.015_71]), ((0, 100), [0.0, 0.036_99])] {
            let found = interval(wrong, all).unwrap();
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}");
        }
    }

    #[test]
    fn textbook_rates_are_the_published_ones() {
        for (bits, rate) in [(0.0, 1.0), (6.0, 0.056_057), (10.0, 0.008_193_7), (20.0, 0.000_067_1)] {
            assert!((textbook_rate(bits) / rate - 1.0).abs() < 1e-3, "{bits}: {}", textbook_rate(bits));
        }
    }

    #[test]
    fn tolerance_is_five_deviations_of_many_and_wider_for_few() {
        assert_eq!(tolerance(0.0, 0.0), 0.0);
        assert!((tolerance(1e6, 1.0) / 5e3 - 1.0).abs() < 1e-3);
        // With a mean of two events, thirteen or more occur less than once in a million runs. None
        // at all is not unusual.
        assert!((8.0..12.5).contains(&tolerance(2.0, 1.0)), "{}", tolerance(2.0, 1.0));
    }
}
