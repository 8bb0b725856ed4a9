//! [`FuseFilter`]: a binary fuse filter without a database.

use std::fmt;

use super::file::{self, Refused, read_methods, read_methods_with_hasher, write_methods};
use crate::batch;
use crate::fuse::{self, FuseShape};
use crate::hasher::{FilterHash, HashedKey, HashedKeys, KeyHasher};
use crate::header::{self, FilterContent, FilterHeader};
use crate::line::{FilterLine, LINE_BITS, LINE_LEN};
use crate::policy::check_fingerprint_bits;
use crate::probe;
use tamis_base::error::{Error, Result};
use tamis_base::format::Malformed;

/// A set of keys that is made once and takes fewer bits than a [`BloomFilter`] of its rate: a
/// binary fuse (Graf and Lemire, 2022). It answers for any key "certainly not in the set" or
/// "maybe".
///
/// ```
/// use tamis_filter::FuseFilter;
///
/// let words = FuseFilter::from_keys((0..100_000u32).map(u32::to_be_bytes), 8)?;
/// assert!((0..100_000u32).all(|word| words.contains(word.to_be_bytes())));
/// assert_eq!(words.expected_fpr(), 1.0 / 256.0);
/// assert!(words.bits_per_key() < 9.6);                     // a Bloom filter takes 11.6
/// let copy = FuseFilter::from_bytes(&words.to_bytes())?;
/// assert_eq!(copy, words);
/// # Ok::<(), tamis_filter::Error>(())
/// ```
///
/// # Size and rate
///
/// A fingerprint has r bits: 4, 5, 6, 7, 8, 10, 12 or 16. The rate is 2^-r, whatever the keys. The
/// filter takes r times these slots per key, rounded up to whole segments (a few percent more
/// below 100,000 keys):
///
/// | keys | slots per key | against a Bloom filter of its rate |
/// |---|---|---|
/// | 1,000 | 1.38 | − 4 % |
/// | 10,000 | 1.25 | − 13 % |
/// | 100,000 | 1.175 | − 19 % |
/// | 1,000,000 and more | 1.125 | − 22 % |
///
/// [`bytes_for`](FuseFilter::bytes_for) says it. Building takes about 25 bytes of memory
/// per key beside the filter, and several times as long as a Bloom filter. A look-up reads three
/// cache lines, where a Bloom filter reads one for most absent keys. No key can be added later, and
/// two filters cannot be united.
///
/// Equal sets have equal bytes, whatever the order of their keys. The file is a table's filter
/// block: docs/FORMAT.md. `H` is the hash of the keys; see [`FilterHash`].
///
/// [`BloomFilter`]: crate::BloomFilter
#[derive(Clone)]
pub struct FuseFilter<H = KeyHasher> {
    shape: FuseShape,
    lines: Box<[FilterLine]>,
    hasher: H,
    keys: u64,
}

impl FuseFilter {
    /// Whether `bytes` begin as the file of a binary fuse does. A file with
    /// [`BloomFilter::MAGIC`](crate::BloomFilter::MAGIC) that does not is a Bloom filter or
    /// damaged.
    pub fn is_prefix(bytes: &[u8]) -> bool {
        bytes.starts_with(&header::MAGIC) && bytes.get(5) == Some(&header::FUSE)
    }

    /// A filter of `keys`, some of which may be equal, with fingerprints of `fingerprint_bits`.
    /// XXH3, seed 0.
    pub fn from_keys<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>, fingerprint_bits: u8) -> Result<FuseFilter> {
        FuseFilter::with_hasher(keys, fingerprint_bits, KeyHasher::unseeded())
    }

    /// A filter of keys that were hashed before, with the function and seed that hashed them.
    pub fn from_hashed(keys: HashedKeys, fingerprint_bits: u8) -> Result<FuseFilter> {
        let (hasher, hashes) = keys.into_parts();
        FuseFilter::build(hashes, fingerprint_bits, hasher)
    }

    /// Bytes of the lines of a filter of `keys` distinct keys. A file has 64 bytes more, and 128 if
    /// its hash is not one of [`HashFunction`](crate::HashFunction). Some sets of keys,
    /// most of them below 50,000, need a few percent more: those that find no slots at the first
    /// attempts.
    pub fn bytes_for(keys: u64, fingerprint_bits: u8) -> Result<u64> {
        check_fingerprint_bits(fingerprint_bits)?;
        let count = usize::try_from(keys).map_err(|_| too_many(keys))?;
        let shape = FuseShape::for_keys(count, fingerprint_bits).ok_or_else(|| too_many(keys))?;
        Ok(shape.line_count() * LINE_LEN as u64)
    }

    /// Whether a key that was hashed before may be in the set, like
    /// [`contains`](FuseFilter::contains). "Maybe" if another function or seed than the filter's
    /// made the hash.
    pub fn contains_hashed(&self, key: HashedKey) -> bool {
        self.hasher.value_of(key).is_none_or(|value| self.contains_value(value))
    }

    read_methods!(header::block_len, FuseFilter::decode);

    fn decode(bytes: &[u8]) -> Result<FuseFilter, Refused> {
        FuseFilter::decode_with(bytes, file::hasher_of_crate)
    }
}

fn too_many(keys: u64) -> Error {
    Error::invalid(format_args!("{keys} keys do not fit into the 4 GiB of a binary fuse filter"))
}

impl<H: FilterHash> FuseFilter<H> {
    /// Like [`from_keys`](FuseFilter::from_keys), with any hash; see [`FilterHash`].
    pub fn with_hasher<K: AsRef<[u8]>>(
        keys: impl IntoIterator<Item = K>,
        fingerprint_bits: u8,
        hasher: H,
    ) -> Result<FuseFilter<H>> {
        header::check_name(hasher.name())?;
        check_fingerprint_bits(fingerprint_bits)?;
        let hashes = keys.into_iter().map(|key| hasher.hash64(key.as_ref())).collect();
        FuseFilter::build(hashes, fingerprint_bits, hasher)
    }

    fn build(mut hashes: Vec<u64>, fingerprint_bits: u8, hasher: H) -> Result<FuseFilter<H>> {
        check_fingerprint_bits(fingerprint_bits)?;
        hashes.sort_unstable();
        hashes.dedup();
        let keys = hashes.len() as u64;
        if FuseShape::for_keys(hashes.len(), fingerprint_bits).is_none() {
            return Err(too_many(keys));
        }
        let (shape, lines) = fuse::build(fingerprint_bits, &hashes).ok_or_else(|| {
            Error::invalid(format_args!(
                "{keys} hashes found no slots in 100 attempts and 24 sizes: they do not look random"
            ))
        })?;
        let filter = FuseFilter { shape, lines: lines.into_boxed_slice(), hasher, keys };
        debug_assert!(hashes.iter().all(|&hash| filter.contains_value(hash)));
        Ok(filter)
    }

    /// Whether the key may be in the set. "No" is certain.
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        self.contains_value(self.hasher.hash64(key.as_ref()))
    }

    fn contains_value(&self, hash: u64) -> bool {
        fuse::may_contain(self.shape, &self.lines, hash)
    }

    /// For each key, whether it may be in the set: the answers of
    /// [`contains`](FuseFilter::contains), in less time where the filter exceeds the processor's
    /// caches.
    pub fn contains_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<bool> {
        let ask = |hashes: &[u64], answers: &mut [bool]| probe::ask_fuse(self.shape, &self.lines, hashes, answers);
        batch::answer_all(keys, |key| self.hasher.hash64(key), ask)
    }

    /// The hash function and its seed.
    pub fn hasher(&self) -> &H {
        &self.hasher
    }

    /// The number of distinct keys. Two keys whose hashes are equal count once.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Bits of a fingerprint.
    pub fn fingerprint_bits(&self) -> u8 {
        self.shape.fingerprint_bits()
    }

    /// Bits in the filter, a multiple of 512.
    pub fn bits(&self) -> u64 {
        self.lines.len() as u64 * LINE_BITS
    }

    /// Bits per key; infinite without keys.
    pub fn bits_per_key(&self) -> f64 {
        self.bits() as f64 / self.keys as f64
    }

    /// The false-positive rate: 2^-r for fingerprints of r bits.
    pub fn expected_fpr(&self) -> f64 {
        self.shape.fpr()
    }

    /// The filter in the format of a table's filter block: a header of 64 bytes that describes and
    /// verifies itself and the slots, then the slots. docs/FORMAT.md describes it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = FilterHeader {
            content: FilterContent::Fuse(self.shape),
            hash: self.hasher.name(),
            seed: self.hasher.seed(),
            keys: self.keys,
            millibits: millibits(self.shape),
            prefixes: None,
        };
        header::encode(&header, &self.lines)
    }

    /// How many bytes [`to_bytes`](FuseFilter::to_bytes) returns.
    pub fn encoded_len(&self) -> u64 {
        header::encoded_len(self.lines.len() as u64, self.hasher.name())
    }

    write_methods!();
    read_methods_with_hasher!(header::block_len, FuseFilter::decode_with);

    fn decode_with(
        bytes: &[u8],
        hasher: impl FnOnce(&str, u64) -> Result<H, Refused>,
    ) -> Result<FuseFilter<H>, Refused> {
        let (header, lines) = header::decode(bytes)?;
        let FilterContent::Fuse(shape) = header.content else {
            return Err(Malformed("the filter is no binary fuse").into());
        };
        if header.prefixes.is_some() {
            return Err(Malformed("the filter is a table's: it has prefixes beside keys").into());
        }
        if (header.millibits, header::stated_rate(bytes)) != (millibits(shape), header::rate_of(&header, lines)) {
            return Err(
                Malformed("the bits or the rate in the filter's header are not those of its fingerprints").into()
            );
        }
        let hasher = hasher(header.hash, header.seed)?;
        let lines = lines.iter().map(FilterLine::decode).collect();
        Ok(FuseFilter { shape, lines, hasher, keys: header.keys })
    }
}

/// The header's bits per key, which are those of a fingerprint.
fn millibits(shape: FuseShape) -> u32 {
    1000 * u32::from(shape.fingerprint_bits())
}

/// Equal size, hash, seed and slots.
impl<H: FilterHash> PartialEq for FuseFilter<H> {
    fn eq(&self, other: &FuseFilter<H>) -> bool {
        let hash = |filter: &FuseFilter<H>| (filter.hasher.name(), filter.hasher.seed());
        (self.shape, self.keys, hash(self)) == (other.shape, other.keys, hash(other)) && self.lines == other.lines
    }
}

impl<H: FilterHash> Eq for FuseFilter<H> {}

/// Parameters and size, in one line.
impl<H: FilterHash> fmt::Display for FuseFilter<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "binary fuse filter of {} keys: {} bits, fingerprints of {}, expected false positives {:.4} %, {} with seed {}",
            self.keys,
            self.bits(),
            self.fingerprint_bits(),
            self.expected_fpr() * 100.0,
            self.hasher.name(),
            self.hasher.seed()
        )
    }
}

impl<H: FilterHash> fmt::Debug for FuseFilter<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuseFilter")
            .field("shape", &self.shape)
            .field("keys", &self.keys)
            .field("hash", &self.hasher.name())
            .field("seed", &self.hasher.seed())
            .finish_non_exhaustive()
    }
}
