//! The hash of a key, computed once per look-up for every filter and data block, and the arithmetic
//! on it.

use tamis_base::format::coding::low_byte;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Constants of [`remix`]. Part of the format.
const REMIX_XOR: u64 = 0xD6E8_FEB8_6659_FD93;
const REMIX_MUL: u64 = 0x9E37_79B9_7F4A_7C15;

/// Xored into the seed for prefixes. Part of the format.
const PREFIX_SEED_XOR: u64 = 0xA076_1D64_78BD_642F;

/// Hash of a user key: XXH3, 64 bits, under the store's seed. It carries the seed, so that a filter
/// never answers "no" to a hash that it cannot compare with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash {
    value: u64,
    seed: u64,
}

impl KeyHash {
    /// The hash of a whole key.
    pub fn new(seed: u64, key: &[u8]) -> KeyHash {
        KeyHash { value: xxh3_64_with_seed(key, seed), seed }
    }

    /// Hash of a key's prefix. It differs from the hash of the key with the same bytes: a filter
    /// that holds one denies the other as often as any absent key.
    pub fn of_prefix(seed: u64, prefix: &[u8]) -> KeyHash {
        KeyHash { value: xxh3_64_with_seed(prefix, seed ^ PREFIX_SEED_XOR), seed }
    }

    /// Restores a hash from its [`value`](KeyHash::value).
    pub(super) fn from_value(seed: u64, value: u64) -> KeyHash {
        KeyHash { value, seed }
    }

    /// Its 64 bits.
    pub fn value(self) -> u64 {
        self.value
    }

    /// Bits 56 to 63: the part of the hash that a data block stores.
    pub fn fingerprint(self) -> u8 {
        low_byte(self.value >> 56)
    }

    /// The seed with which it was made.
    pub fn seed(self) -> u64 {
        self.seed
    }
}

/// The next hash derived from `g`: the xor of both halves of a 128-bit product. Without the first
/// xor, 0 would map to itself, and a key of hash 0 would set a single bit.
pub(super) fn remix(g: u64) -> u64 {
    let product = u128::from(g ^ REMIX_XOR) * u128::from(REMIX_MUL);
    low(product) ^ low(product >> 64)
}

/// Maps a hash to `0..n` by its high bits ("fastrange"): one multiplication instead of a division.
pub(super) fn fastrange(hash: u64, n: u64) -> u64 {
    low((u128::from(hash) * u128::from(n)) >> 64)
}

#[expect(clippy::cast_possible_truncation, reason = "only the low 64 bits are wanted")]
fn low(product: u128) -> u64 {
    product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_xxh3_with_the_seed() {
        assert_eq!(KeyHash::new(0, b"").value(), 0x2d06_8005_38d3_94c2);
        assert_eq!(KeyHash::new(0, b"a").value(), 0xe6c6_32b6_1e96_4e1f);
        assert_ne!(KeyHash::new(1, b"a").value(), KeyHash::new(0, b"a").value());
    }

    #[test]
    fn a_prefix_is_hashed_under_a_seed_of_its_own() {
        let (key, prefix) = (KeyHash::new(0xA076_1D64_78BD_642F ^ 5, b"user:"), KeyHash::of_prefix(5, b"user:"));
        assert_eq!((prefix.value(), prefix.seed()), (key.value(), 5));
        assert_ne!(prefix.value(), KeyHash::new(5, b"user:").value());
    }

    #[test]
    fn fingerprint_is_the_top_byte() {
        assert_eq!(KeyHash::new(0, b"a").fingerprint(), 0xe6);
    }

    #[test]
    fn remix_of_zero_is_not_zero() {
        assert_ne!(remix(0), 0);
        assert_eq!(remix(0x2d06_8005_38d3_94c2), 0xbb7f_485e_0d49_ac97);
    }

    #[test]
    fn fastrange_stays_below_its_bound() {
        for n in [1, 2, 1000, 1 << 28] {
            assert_eq!(fastrange(0, n), 0);
            assert_eq!(fastrange(u64::MAX, n), n - 1);
        }
    }
}
