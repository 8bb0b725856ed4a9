//! The hash functions of stand-alone filters: those of this crate, and those of a program. Tables
//! use XXH3 only.
//!
//! | number | hash of the bytes of a key |
//! |---|---|
//! | 1 | XXH3, 64 bits, with the seed |
//! | 2 | SipHash-1-3, with the seed as the first half of its key and 0 as the second |
//! | 3 | MurmurHash3 x64 128, its first 64 bits (`h1`, the lower half), with a seed of 32 bits |
//! | 255 | a function of the program, which the header names |
//!
//! All of this is part of the format.

use std::fmt;

use siphasher::sip::SipHasher13;
use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

use tamis_base::error::{Error, Result};
use tamis_base::format::{Decoded, Malformed};

/// XXH3 hashes keys up to this length with the seed itself, longer ones with a secret derived from
/// it.
const XXH3_MID_SIZE: usize = 240;
const XXH3_SECRET_LEN: usize = 192;

/// A hash function of a stand-alone filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HashFunction {
    /// XXH3, 64 bits: the fastest, and the one that tables use. Not for keys that an attacker may
    /// choose so that they collide.
    #[default]
    Xxh3,
    /// SipHash-1-3, keyed by the seed: for keys that an attacker may choose, under a seed that the
    /// attacker does not know.
    SipHash13,
    /// The first 64 bits of MurmurHash3 x64 128, the hash of Cassandra and Guava. Takes a seed of
    /// 32 bits.
    Murmur3,
}

impl HashFunction {
    /// The function's number in a filter's header. Part of the format.
    pub(super) fn id(self) -> u8 {
        match self {
            HashFunction::Xxh3 => 1,
            HashFunction::SipHash13 => 2,
            HashFunction::Murmur3 => 3,
        }
    }

    /// The function's name, as `Display` and errors have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            HashFunction::Xxh3 => "xxh3",
            HashFunction::SipHash13 => "siphash13",
            HashFunction::Murmur3 => "murmur3",
        }
    }

    pub(super) fn from_id(id: u8) -> Option<HashFunction> {
        HashFunction::ALL.into_iter().find(|function| function.id() == id)
    }

    pub(super) fn from_name(name: &str) -> Option<HashFunction> {
        HashFunction::ALL.into_iter().find(|function| function.name() == name)
    }

    const ALL: [HashFunction; 3] = [HashFunction::Xxh3, HashFunction::SipHash13, HashFunction::Murmur3];
}

impl fmt::Display for HashFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A hash function that a filter uses, with its seed, as a type parameter:
/// [`BloomFilter<H>`](crate::BloomFilter) and [`FuseFilter<H>`](crate::FuseFilter).
/// The default is [`KeyHasher`], one of the functions of [`HashFunction`].
///
/// All bits of the hash should look random: the high ones choose lines, the low ones bits.
///
/// The file of a filter states name and seed. To read it with another hash is an
/// [`Error::OtherHash`], so that no filter answers for hashes that it does not hold. The name
/// stands for the function wherever such files meet: change it when you change the function.
///
/// ```
/// use tamis_filter::{BloomFilter, BloomLayout, BloomSize, FilterHash};
///
/// #[derive(Clone)]
/// struct Fnv1a;
///
/// impl FilterHash for Fnv1a {
///     fn name(&self) -> &'static str {
///         "example.com/fnv1a-mixed"
///     }
///
///     fn hash64(&self, key: &[u8]) -> u64 {
///         let step = |h: u64, byte: &u8| (h ^ u64::from(*byte)).wrapping_mul(1 << 40 | 0x1b3);
///         let hash = key.iter().fold(0xcbf2_9ce4_8422_2325, step);
///         (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
///     }
/// }
///
/// let size = BloomSize::for_rate(BloomLayout::Split, 1000, 0.01)?;
/// let mut words = BloomFilter::with_hasher(size, Fnv1a)?;
/// words.insert("tamis");
/// let bytes = words.to_bytes();
/// assert!(BloomFilter::from_bytes_with(&bytes, Fnv1a)?.contains("tamis"));
/// let refused = BloomFilter::from_bytes(&bytes);           // with the hashes of this crate
/// assert!(matches!(refused, Err(tamis_filter::Error::OtherHash { .. })));
/// # Ok::<(), tamis_filter::Error>(())
/// ```
///
/// [`Error::OtherHash`]: crate::Error::OtherHash
pub trait FilterHash {
    /// What files call the function: 1 to 64 bytes, none of them 0. A [`HashFunction`] has the name
    /// that it displays.
    fn name(&self) -> &'static str;

    /// The seed that files state, if the function has one.
    fn seed(&self) -> u64 {
        0
    }

    /// The hash of a key.
    fn hash64(&self, key: &[u8]) -> u64;
}

impl FilterHash for KeyHasher {
    fn name(&self) -> &'static str {
        self.function().name()
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    #[inline(always)]
    fn hash64(&self, key: &[u8]) -> u64 {
        self.value(key)
    }
}

/// A hash function with its seed. Its hashes can be used with every filter that has an equal
/// hasher.
#[derive(Clone)]
pub struct KeyHasher {
    seed: u64,
    seeded: SeededHash,
}

#[derive(Clone)]
enum SeededHash {
    /// The secret that XXH3 would derive from the seed for every long key: 192 bytes, and 12 of the
    /// 21 ns for a key of 300 bytes.
    Xxh3(Box<[u8; XXH3_SECRET_LEN]>),
    SipHash13(SipHasher13),
    Murmur3(u32),
}

impl KeyHasher {
    pub(super) fn new(function: HashFunction, seed: u64) -> Decoded<KeyHasher> {
        let seeded = match function {
            HashFunction::Xxh3 => SeededHash::Xxh3(Box::new(const_custom_default_secret(seed))),
            HashFunction::SipHash13 => SeededHash::SipHash13(SipHasher13::new_with_keys(seed, 0)),
            HashFunction::Murmur3 => {
                SeededHash::Murmur3(u32::try_from(seed).map_err(|_| Malformed("a seed of murmur3 has 32 bits"))?)
            }
        };
        Ok(KeyHasher { seed, seeded })
    }

    /// XXH3 with seed 0.
    pub(super) fn unseeded() -> KeyHasher {
        KeyHasher { seed: 0, seeded: SeededHash::Xxh3(Box::new(const_custom_default_secret(0))) }
    }

    /// Hashes a key, for `insert_hashed` and `contains_hashed`.
    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> HashedKey {
        HashedKey { value: self.value(key), seed: self.seed, function: self.function() }
    }

    /// A key's hash as a number.
    // Inlined: where the length is known, XXH3 of a short key is a dozen instructions. A call that
    // has to find out takes as long as the look-up after it.
    #[inline(always)]
    pub(super) fn value(&self, key: &[u8]) -> u64 {
        match &self.seeded {
            SeededHash::Xxh3(_) if key.len() <= XXH3_MID_SIZE => xxh3_64_with_seed(key, self.seed),
            _ => self.value_out_of_line(key),
        }
    }

    #[inline(never)]
    fn value_out_of_line(&self, key: &[u8]) -> u64 {
        match &self.seeded {
            SeededHash::Xxh3(secret) => xxh3_64_with_secret(key, &**secret),
            SeededHash::SipHash13(hasher) => hasher.hash(key),
            SeededHash::Murmur3(seed) => mur3::murmurhash3_x64_128(key, *seed).0,
        }
    }

    /// The number in a key's hash, if a hasher equal to this one made it.
    #[inline]
    pub(super) fn value_of(&self, key: HashedKey) -> Option<u64> {
        (key.seed == self.seed && key.function == self.function()).then_some(key.value)
    }

    /// [`value_of`](KeyHasher::value_of), or an error that names the difference.
    pub(super) fn expect_value_of(&self, key: HashedKey) -> Result<u64> {
        self.value_of(key).ok_or_else(|| {
            let (function, seed) = (self.function(), self.seed);
            Error::invalid(format_args!(
                "the filter hashes keys by {function} with seed {seed}, but the key was hashed by {} with seed {}",
                key.function, key.seed
            ))
        })
    }

    /// The function.
    pub fn function(&self) -> HashFunction {
        match self.seeded {
            SeededHash::Xxh3(_) => HashFunction::Xxh3,
            SeededHash::SipHash13(_) => HashFunction::SipHash13,
            SeededHash::Murmur3(_) => HashFunction::Murmur3,
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// The hash of a key, with the function and the seed that made it.
///
/// Only a [`KeyHasher`] makes one. No filter therefore holds, or is asked for, hashes of another
/// function than its header names. The compiler refuses a number that the program hashed itself:
///
/// ```compile_fail
/// # let mut filter = tamis_filter::BloomFilter::with_rate(100, 0.01)?;
/// filter.insert_hashed(0x9e37_79b9_7f4a_7c15_u64)?;
/// # Ok::<(), tamis_filter::Error>(())
/// ```
///
/// The bytes of such a number are a key of eight bytes, which the filter hashes again. That takes a
/// nanosecond or two, and suits numbers whose bits are not random:
///
/// ```
/// # let mut filter = tamis_filter::BloomFilter::with_rate(100, 0.01)?;
/// filter.insert(0x9e37_79b9_7f4a_7c15_u64.to_le_bytes());
/// # Ok::<(), tamis_filter::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashedKey {
    value: u64,
    seed: u64,
    function: HashFunction,
}

impl HashedKey {
    /// The hash as a number.
    pub fn value(self) -> u64 {
        self.value
    }
}

/// Hashes of keys, collected while the number of keys is unknown: eight bytes per key.
///
/// ```
/// use tamis_filter::{BloomFilter, HashedKeys};
///
/// let builder = BloomFilter::builder();
/// let mut keys = HashedKeys::new(builder.hasher()?);
/// for line in "one\ntwo\none\n".lines() {
///     keys.push(line);
/// }
/// let mut filter = builder.with_rate(keys.distinct(), 0.001)?;
/// filter.insert_all(&keys)?;
/// assert!(filter.contains("one") && filter.contains("two"));
/// # Ok::<(), tamis_filter::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashedKeys {
    hasher: KeyHasher,
    values: Vec<u64>,
}

impl HashedKeys {
    /// No hashes yet; `hasher` will make them.
    pub fn new(hasher: KeyHasher) -> HashedKeys {
        HashedKeys { hasher, values: Vec::new() }
    }

    /// Adds the hash of a key.
    pub fn push(&mut self, key: impl AsRef<[u8]>) {
        self.values.push(self.hasher.value(key.as_ref()));
    }

    /// Sorts the hashes, drops duplicates, and returns how many remain.
    pub fn distinct(&mut self) -> u64 {
        self.values.sort_unstable();
        self.values.dedup();
        self.values.len() as u64
    }

    pub(super) fn into_parts(self) -> (KeyHasher, Vec<u64>) {
        (self.hasher, self.values)
    }

    /// The hashes as numbers, or an error if `hasher` differs from the one that made them.
    pub(super) fn values_for(&self, hasher: &KeyHasher) -> Result<&[u64]> {
        hasher.expect_value_of(HashedKey { value: 0, seed: self.hasher.seed, function: self.hasher.function() })?;
        Ok(&self.values)
    }
}

/// Hashers are equal if they give equal hashes.
impl PartialEq for KeyHasher {
    fn eq(&self, other: &KeyHasher) -> bool {
        (self.function(), self.seed) == (other.function(), other.seed)
    }
}

impl Eq for KeyHasher {}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHasher")
            .field("function", &self.function())
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::KeyHash;
    use super::*;

    fn hash(function: HashFunction, seed: u64, key: &[u8]) -> u64 {
        KeyHasher::new(function, seed).unwrap().hash(key).value()
    }

    #[test]
    fn xxh3_is_that_of_tables_at_every_length() {
        let bytes: Vec<u8> = (0..3000u32).map(|i| (i * i % 251) as u8).collect();
        for seed in [0, 1, 77, u64::MAX] {
            let hasher = KeyHasher::new(HashFunction::Xxh3, seed).unwrap();
            for len in (0..520).chain([1023, 1024, 1025, 3000]) {
                assert_eq!(hasher.hash(&bytes[..len]).value(), KeyHash::new(seed, &bytes[..len]).value(), "{len}");
            }
        }
        assert_eq!(KeyHasher::unseeded(), KeyHasher::new(HashFunction::Xxh3, 0).unwrap());
    }

    #[test]
    fn murmur3_gives_the_published_first_halves() {
        let quick = b"The quick brown fox jumps over the lazy dog";
        assert_eq!(hash(HashFunction::Murmur3, 0, quick), 0xe34b_bc7b_bc07_1b6c);
        assert_eq!(hash(HashFunction::Murmur3, 0, b"hello"), 0xcbd8_a7b3_41bd_9b02);
        assert_eq!(hash(HashFunction::Murmur3, 0, b""), 0);
        assert_ne!(hash(HashFunction::Murmur3, 1, b""), 0);
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "a hash")]
    fn siphash13_is_that_of_the_standard_library() {
        use std::hash::Hasher;
        for len in [0, 1, 7, 8, 9, 63, 300] {
            let key = vec![len as u8; len];
            let mut twin = std::hash::DefaultHasher::new();
            twin.write(&key);
            assert_eq!(hash(HashFunction::SipHash13, 0, &key), twin.finish(), "{len}");
        }
        assert_ne!(hash(HashFunction::SipHash13, 1, b"key"), hash(HashFunction::SipHash13, 0, b"key"));
    }

    #[test]
    fn functions_keep_their_numbers_and_names() {
        for (function, id, name) in [
            (HashFunction::Xxh3, 1, "xxh3"),
            (HashFunction::SipHash13, 2, "siphash13"),
            (HashFunction::Murmur3, 3, "murmur3"),
        ] {
            assert_eq!((function.id(), HashFunction::from_id(id)), (id, Some(function)));
            assert_eq!((function.to_string(), HashFunction::from_name(name)), (name.to_owned(), Some(function)));
            let hasher = KeyHasher::new(function, 5).unwrap();
            assert_eq!((hasher.function(), hasher.seed()), (function, 5));
        }
        assert_eq!(HashFunction::from_id(0).or(HashFunction::from_id(4)), None);
        assert_eq!(HashFunction::from_name("xxh"), None);
        assert!(KeyHasher::new(HashFunction::Murmur3, 1 << 32).is_err());
    }
}
