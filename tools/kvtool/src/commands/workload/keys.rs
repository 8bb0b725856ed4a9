//! [`Keys`]: existing keys, and missing keys between them.

/// Keys in the form of LevelDB's `db_bench`, `%016d`: even numbers exist, the odd ones between them
/// are missing. Both come in a pseudo-random order that follows from the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    count: u64,
    /// Half the numbers from which the keys are taken: the count, if all even ones below exist.
    space: u64,
    seed: u64,
}

/// Bytes of a key.
pub(crate) const KEY_LEN: usize = 16;
/// Half the numbers of [`KEY_LEN`] digits.
const SPREAD: u64 = 10_u64.pow(16) / 2;
/// Four rounds make a Feistel network hard to tell from a random permutation (Luby and Rackoff,
/// 1988).
const ROUNDS: u64 = 4;

impl Keys {
    /// Dense keys: the even numbers from 0 on.
    pub(crate) fn dense(count: u64, seed: u64) -> Keys {
        Keys { count, space: count, seed }
    }

    /// Random even numbers of [`KEY_LEN`] digits. Where keys are dense, a range filter of any size
    /// knows each gap.
    pub(crate) fn spread(count: u64, seed: u64) -> Keys {
        Keys { count, space: SPREAD, seed }
    }

    pub(crate) fn count(self) -> u64 {
        self.count
    }

    pub(crate) fn seed(self) -> u64 {
        self.seed
    }

    /// The `i`-th key to load; distinct for each `i` below the count.
    pub(crate) fn existing(self, i: u64) -> String {
        key(2 * self.scrambled(i))
    }

    /// A missing key between two existing ones.
    pub(crate) fn missing(self, i: u64) -> String {
        key(2 * self.scrambled(i) + 1)
    }

    /// A missing key, and the next existing one: the range between them is empty.
    pub(crate) fn empty_range(self, i: u64) -> (String, String) {
        let number = 2 * self.scrambled(i) + 1;
        (key(number), key(number + 1))
    }

    /// A permutation of the numbers below `space`: permutes numbers of 2·h bits, repeatedly until
    /// the result is below it.
    fn scrambled(self, i: u64) -> u64 {
        let bits = u64::BITS - self.space.saturating_sub(1).leading_zeros();
        let half = bits.div_ceil(2).max(1);
        let mut number = i;
        loop {
            number = self.feistel(number, half);
            if number < self.space {
                return number;
            }
        }
    }

    fn feistel(self, number: u64, half: u32) -> u64 {
        let mask = (1 << half) - 1;
        let (mut left, mut right) = (number >> half, number & mask);
        for round in 0..ROUNDS {
            let mixed = mix(right ^ mix(self.seed.wrapping_mul(ROUNDS).wrapping_add(round)));
            (left, right) = (right, left ^ (mixed & mask));
        }
        left << half | right
    }
}

fn key(number: u64) -> String {
    format!("{number:0KEY_LEN$}")
}

/// Mixes the bits of a number: SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_is_there_once_and_no_missing_one_is() {
        for count in [1, 2, 3, 1000, 1024, 4999] {
            let keys = Keys::dense(count, 7);
            let existing: BTreeSet<String> = (0..count).map(|i| keys.existing(i)).collect();
            assert_eq!(existing.len() as u64, count);
            assert!(existing.iter().all(|key| key.len() == KEY_LEN));
            assert!((0..count).all(|i| !existing.contains(&keys.missing(i))));
        }
    }

    #[test]
    fn order_follows_from_the_seed() {
        let order = |seed| (0..1000).map(|i| Keys::dense(1000, seed).existing(i)).collect::<Vec<_>>();
        assert_eq!(order(1), order(1));
        let same = order(1).iter().zip(order(2)).filter(|(a, b)| **a == *b).count();
        assert!(same < 20, "{same}");
    }
}
