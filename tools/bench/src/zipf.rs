//! [`Zipfian`]: YCSB's skewed choice of keys, a few popular ones and many rare ones.

/// The exponent θ of YCSB.
pub(crate) const THETA: f64 = 0.99;

/// Ranks below a count; rank r has a probability proportional to 1 / (r + 1)^θ. After J. Gray et
/// al., "Quickly generating billion-record synthetic databases" (SIGMOD 1994), like YCSB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipfian {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    pub(crate) fn new(count: u64) -> Zipfian {
        let zeta: f64 = (1..=count).map(|i| (i as f64).powf(-THETA)).sum();
        let zeta_of_two = 1.0 + 0.5_f64.powf(THETA);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta_of_two / zeta);
        Zipfian { count, zeta, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// Draws a rank.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates, and is bounded below"
    )]
    pub(crate) fn rank(&self, rng: &mut fastrand::Rng) -> u64 {
        let u = rng.f64();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(THETA) {
            return 1.min(self.count - 1);
        }
        let rank = self.count as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }

    /// Draws `n` numbers below the count; the popular ones are scattered among the others.
    pub(crate) fn scattered(&self, n: usize, rng: &mut fastrand::Rng) -> Vec<u64> {
        (0..n).map(|_| fnv(self.rank(rng)) % self.count).collect()
    }
}

/// The 64-bit FNV-1a hash of a number's bytes, with which YCSB scatters ranks.
fn fnv(number: u64) -> u64 {
    number
        .to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_the_probabilities_of_the_law() {
        const N: u32 = 200_000;
        let zipfian = Zipfian::new(1000);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut counts = [0_u32; 1000];
        for _ in 0..N {
            counts[usize::try_from(zipfian.rank(&mut rng)).unwrap()] += 1;
        }
        let expected = |r: usize| f64::from(N) / ((r as f64 + 1.0).powf(THETA) * zipfian.zeta);
        // The first two ranks are exact; Gray's approximation is within some percent for the
        // others.
        for (rank, tolerance) in [(0, 0.03), (1, 0.03), (2, 0.2), (9, 0.2)] {
            let ratio = f64::from(counts[rank]) / expected(rank);
            assert!((ratio - 1.0).abs() < tolerance, "rank {rank}: {ratio}");
        }
        let upper: u32 = counts[..100].iter().sum();
        let expected: f64 = (0..100).map(expected).sum();
        assert!((f64::from(upper) / expected - 1.0).abs() < 0.03, "{upper} of {expected}");
    }

    #[test]
    fn draws_follow_from_the_seed_and_stay_below_the_count() {
        for count in [1, 2, 3, 1000] {
            let draw = |seed| Zipfian::new(count).scattered(500, &mut fastrand::Rng::with_seed(seed));
            assert!(draw(1).iter().all(|&number| number < count));
            assert_eq!(draw(1), draw(1));
        }
        let zipfian = Zipfian::new(1000);
        let [one, two] = [1, 2].map(|seed| zipfian.scattered(500, &mut fastrand::Rng::with_seed(seed)));
        assert_ne!(one, two);
    }
}
