//! [`Keys`]: keys in the usual encodings, and permutations of them.
//!
//! Even numbers are existing keys, odd ones are missing keys between them.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Result;

/// How a number becomes a key. The order of keys is that of their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Encoding {
    /// Decimal digits with leading zeros, as in LevelDB's `db_bench` (`%016d`).
    #[default]
    Decimal,
    /// Eight big-endian bytes, then ASCII zeros, as in RocksDB's `db_bench`.
    BigEndian,
}

/// Allowed lengths of keys.
pub const KEY_LENS: std::ops::RangeInclusive<usize> = 8..=MAX_KEY_LEN;
const MAX_KEY_LEN: usize = 240;

/// A set of keys.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    encoding: Encoding,
    len: usize,
    count: u64,
}

/// A reusable buffer for a key.
#[derive(Clone)]
pub struct KeyBuffer([u8; MAX_KEY_LEN]);

impl Keys {
    /// `count` keys of `len` bytes each, which must be within [`KEY_LENS`].
    pub fn new(encoding: Encoding, len: usize, count: u64) -> Result<Keys> {
        // Workloads append fewer than `count` further keys.
        let digits = count.saturating_mul(4).checked_ilog10().unwrap_or(0) as usize + 1;
        if !KEY_LENS.contains(&len) || (encoding == Encoding::Decimal && len < digits) {
            return Err(format!("keys of {len} bytes are too short or too long for {count} of them").into());
        }
        Ok(Keys { encoding, len, count })
    }

    /// Number of existing keys.
    pub fn count(self) -> u64 {
        self.count
    }

    /// Length of each key in bytes.
    pub fn key_len(self) -> usize {
        self.len
    }

    /// A buffer for [`existing`](Keys::existing) and [`missing`](Keys::missing).
    pub fn buffer(self) -> KeyBuffer {
        KeyBuffer([b'0'; MAX_KEY_LEN])
    }

    /// The `i`-th smallest existing key; from the count on, a key not yet written.
    pub fn existing(self, i: u64, buffer: &mut KeyBuffer) -> &[u8] {
        self.write(2 * i, buffer)
    }

    /// The missing key right after the `i`-th existing one.
    pub fn missing(self, i: u64, buffer: &mut KeyBuffer) -> &[u8] {
        self.write(2 * i + 1, buffer)
    }

    fn write(self, number: u64, buffer: &mut KeyBuffer) -> &[u8] {
        let key = &mut buffer.0[..self.len];
        match self.encoding {
            Encoding::BigEndian => key[..8].copy_from_slice(&number.to_be_bytes()),
            Encoding::Decimal => {
                const HALF: u64 = 100_000_000;
                let (high, low) = (number / HALF, number % HALF);
                let at = self.len - 8;
                key[at..].copy_from_slice(&digits(low));
                // The first 8 of 16 digits are zeros in most stores; shorter keys have fewer.
                let first = if high == 0 { [b'0'; 8] } else { digits(high % HALF) };
                let first_len = at.min(8);
                key[at - first_len..at].copy_from_slice(&first[8 - first_len..]);
            }
        }
        key
    }
}

/// Eight decimal digits of a number below 100,000,000, two at a time.
fn digits(number: u64) -> [u8; 8] {
    const PAIRS: [[u8; 2]; 100] = {
        let mut pairs = [[0; 2]; 100];
        let mut i = 0_u8;
        while i < 100 {
            pairs[i as usize] = [b'0' + i / 10, b'0' + i % 10];
            i += 1;
        }
        pairs
    };
    let mut rest = number;
    let mut text = [0; 8];
    for pair in text.as_chunks_mut::<2>().0.iter_mut().rev() {
        *pair = PAIRS[(rest % 100) as usize];
        rest /= 100;
    }
    text
}

/// A pseudo-random permutation of the numbers below a count, determined by a seed. Invertible steps
/// permute the numbers below the next power of two, repeatedly until the result is below the count
/// (cycle walking; Black and Rogaway, 2002). It takes some nanoseconds and no memory; a shuffled
/// list would take much.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    mask: u64,
    shift: u32,
    odd: [u64; 3],
}

impl Permutation {
    /// The permutation of the numbers below `count` for `seed`.
    pub fn new(count: u64, seed: u64) -> Permutation {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).max(2);
        let odd = std::array::from_fn(|_| rng.u64(..) | 1);
        Permutation { count, mask: u64::MAX >> (u64::BITS - bits), shift: bits.div_ceil(2), odd }
    }

    /// The image of `i`, which must be below the count.
    pub fn at(&self, i: u64) -> u64 {
        let mut number = i;
        loop {
            for odd in self.odd {
                number = (number ^ odd >> 32).wrapping_mul(odd) & self.mask;
                number ^= number >> self.shift;
            }
            if number < self.count {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_equal_those_of_db_bench() {
        let text = |encoding, len, number| {
            let keys = Keys::new(encoding, len, 1000).unwrap();
            String::from_utf8(keys.existing(number, &mut keys.buffer()).to_vec()).unwrap()
        };
        assert_eq!(text(Encoding::Decimal, 16, 21), format!("{:016}", 42));
        assert_eq!(text(Encoding::Decimal, 16, 1_234_567_890), format!("{:016}", 2_469_135_780_u64));
        assert_eq!(text(Encoding::Decimal, 8, 21), "00000042");
        assert_eq!(text(Encoding::Decimal, 11, 7_777_777_777), "15555555554");
        assert_eq!(text(Encoding::Decimal, 40, 21), format!("{:040}", 42));
        assert_eq!(text(Encoding::BigEndian, 16, 0x3132_3334_3536_3738 / 2), "1234567800000000");
    }

    #[test]
    fn keys_too_short_for_their_number_are_refused() {
        assert!(Keys::new(Encoding::Decimal, 8, 24_999_999).is_ok());
        assert!(Keys::new(Encoding::Decimal, 8, 25_000_000).is_err());
        assert!(Keys::new(Encoding::BigEndian, 8, u64::MAX).is_ok());
        assert!(Keys::new(Encoding::BigEndian, 7, 1).is_err());
        assert!(Keys::new(Encoding::Decimal, 241, 1).is_err());
    }

    #[test]
    fn a_buffer_keeps_nothing_of_the_previous_key() {
        for len in [8, 12, 16, 100] {
            let keys = Keys::new(Encoding::Decimal, len, 1000).unwrap();
            let mut buffer = keys.buffer();
            for number in [9_999_999, 1, 123_456, 0] {
                assert_eq!(keys.missing(number, &mut buffer), keys.missing(number, &mut keys.buffer()));
            }
        }
    }

    #[test]
    fn keys_are_in_the_order_of_their_numbers_with_missing_ones_between() {
        for encoding in [Encoding::Decimal, Encoding::BigEndian] {
            let keys = Keys::new(encoding, 16, 300).unwrap();
            let all: Vec<Vec<u8>> = (0..300)
                .flat_map(|i| {
                    [keys.existing(i, &mut keys.buffer()).to_vec(), keys.missing(i, &mut keys.buffer()).to_vec()]
                })
                .collect();
            assert!(all.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn permutation_takes_every_number_once_and_follows_from_the_seed() {
        for count in [1, 2, 3, 5, 64, 1000, 4097] {
            let order = |seed| (0..count).map(|i| Permutation::new(count, seed).at(i)).collect::<Vec<_>>();
            assert_eq!(order(7).iter().copied().collect::<BTreeSet<_>>(), (0..count).collect());
            assert_eq!(order(7), order(7));
            if count > 64 {
                assert_ne!(order(7), order(8));
            }
        }
    }

    #[test]
    fn permutation_leaves_no_order() {
        let permutation = Permutation::new(100_000, 3);
        let order: Vec<u64> = (0..100_000).map(|i| permutation.at(i)).collect();
        let rising = order.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((49_000..51_000).contains(&rising), "{rising} of 99,999 steps go up");
        // The mean distance of neighbours is that of a random order: a third of the count.
        let distance: u64 = order.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
        assert!((31_500..35_000).contains(&(distance / 99_999)), "{}", distance / 99_999);
    }
}
