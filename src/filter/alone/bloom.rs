//! [`BloomFilter`]: a filter without a database, with the lines, layouts, hash and encoding of a
//! table's filter.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;

use super::file;
use crate::error::{Error, Result};
use crate::filter::avx2::Avx2;
use crate::filter::hasher::{HashFunction, HashedKey, HashedKeys, KeyHasher};
use crate::filter::header::{self, FilterContent, FilterHeader};
use crate::filter::layout::Layout;
use crate::filter::line::{Fill, FilterLine, LINE_BITS};
use crate::filter::shape::{BloomLayout, BloomShape};
use crate::filter::sizing::MAX_LINES;
use crate::filter::split::Groups;
use crate::format::{Decoded, Malformed};
use crate::vfs::{FileSystem, OsFileSystem};

/// The number of keys in a stand-alone filter's header, which counts none. A table's filter with
/// lines always counts keys, so that neither is mistaken for the other. Part of the format.
const UNCOUNTED: u64 = 0;

/// The rate of a filter that is collected from keys.
const COLLECTED_RATE: f64 = 0.01;

/// A set of keys in a few bits per key. It answers for any key "certainly not in the set" or
/// "maybe".
///
/// ```
/// use tamis::filter::BloomFilter;
///
/// let mut words = BloomFilter::with_rate(1_000_000, 0.01)?;
/// assert!(words.insert("tamis"));
/// assert!(!words.insert("tamis"), "nothing has changed");
/// assert!(words.contains("tamis"));
/// assert!(!words.contains("sieve"));
/// assert_eq!((words.estimated_keys().round(), words.k()), (1.0, 7));
/// let copy = BloomFilter::from_bytes(&words.to_bytes())?;
/// assert_eq!(copy, words);
/// # Ok::<(), tamis::Error>(())
/// ```
///
/// Its size is fixed when it is made; a [`ScalableBloomFilter`](crate::filter::ScalableBloomFilter)
/// grows. A key is anything that is `AsRef<[u8]>`; only its bytes count.
///
/// Two filters are equal (`==`) if they answer alike: equal size, layout, hash, seed and bits. The
/// numbers of keys for which they were made may differ. Filters that also agree in these have equal
/// bytes; see [the module](crate::filter).
#[derive(Clone)]
pub struct BloomFilter {
    lines: Box<[FilterLine]>,
    layout: Layout,
    hasher: KeyHasher,
    /// The AVX2 probe, if the layout has one and the processor supports it.
    fast: Option<(Avx2, Groups)>,
    /// Number of set bits.
    ones: u64,
    /// Bits per key when the filter is full, in thousandths; not 0.
    millibits: u32,
    /// Number of set bits when the filter is full.
    full_ones: u64,
}

/// A builder of [`BloomFilter`]s: choose seed, hash and layout, then the size.
///
/// ```
/// use tamis::filter::{BloomFilter, HashFunction};
///
/// let builder = BloomFilter::builder().hash(HashFunction::SipHash13).seed(0x5eed);
/// let filter = builder.with_bits_per_key(1000, 10.0)?;
/// assert_eq!((filter.k(), filter.bits()), (7, 10_240));
/// # Ok::<(), tamis::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BloomBuilder {
    seed: u64,
    function: HashFunction,
    layout: BloomLayout,
}

impl BloomBuilder {
    /// The seed of the hash. Default: 0, so that filters of different machines can be united.
    pub fn seed(mut self, seed: u64) -> BloomBuilder {
        self.seed = seed;
        self
    }

    /// The hash function. Default: XXH3.
    pub fn hash(mut self, function: HashFunction) -> BloomBuilder {
        self.function = function;
        self
    }

    /// Where a key's bits are. Default: [`BloomLayout::Split`].
    pub fn layout(mut self, layout: BloomLayout) -> BloomBuilder {
        self.layout = layout;
        self
    }

    /// The hash function with its seed. It can hash keys before the filter is made, while their
    /// number is unknown: see [`HashedKeys`].
    pub fn hasher(&self) -> Result<KeyHasher> {
        KeyHasher::new(self.function, self.seed).map_err(|Malformed(rule)| Error::invalid(rule))
    }

    /// A filter for `keys` keys. When it holds them, it says "maybe" to a share of `rate` of the
    /// keys that are not in it.
    pub fn with_rate(&self, keys: u64, rate: f64) -> Result<BloomFilter> {
        BloomFilter::new(self.shape(keys, rate)?, self.hasher()?)
    }

    pub(super) fn shape(&self, keys: u64, rate: f64) -> Result<BloomShape> {
        BloomShape::for_rate(self.layout, keys, rate)
    }

    /// A filter for `keys` keys with `bits_per_key` bits each, 1 to 24, and the best number of
    /// probes. As in tables, the split layout takes up to 1 % more to reach the rate of the
    /// textbook.
    pub fn with_bits_per_key(&self, keys: u64, bits_per_key: f64) -> Result<BloomFilter> {
        BloomFilter::new(BloomShape::for_bits_per_key(self.layout, keys, bits_per_key)?, self.hasher()?)
    }

    /// A filter of at least `bits` bits, in whole lines of 512, with `k` probes per key: at most 25
    /// in the split layout, 32 in the standard one.
    pub fn with_bits(&self, bits: u64, k: u32) -> Result<BloomFilter> {
        BloomFilter::new(BloomShape::for_bits(self.layout, bits, k)?, self.hasher()?)
    }
}

impl BloomFilter {
    /// The first bytes of every encoded filter and of its file.
    pub const MAGIC: [u8; 4] = header::MAGIC;

    /// A filter for `keys` keys. When it holds them, it says "maybe" to a share of `rate` of the
    /// keys that are not in it. XXH3, seed 0, split layout; see [`builder`](BloomFilter::builder)
    /// for others.
    pub fn with_rate(keys: u64, rate: f64) -> Result<BloomFilter> {
        BloomFilter::builder().with_rate(keys, rate)
    }

    /// A filter of at least `bits` bits, in whole lines of 512, with `k` probes per key.
    pub fn with_bits(bits: u64, k: u32) -> Result<BloomFilter> {
        BloomFilter::builder().with_bits(bits, k)
    }

    /// Chooses seed, hash and layout.
    pub fn builder() -> BloomBuilder {
        BloomBuilder::default()
    }

    fn new(shape: BloomShape, hasher: KeyHasher) -> Result<BloomFilter> {
        Ok(BloomFilter::from_lines(empty_lines(shape.lines)?, shape.layout, shape.millibits, hasher))
    }

    fn from_lines(lines: Box<[FilterLine]>, layout: Layout, millibits: u32, hasher: KeyHasher) -> BloomFilter {
        let fast = match layout {
            Layout::Split(groups) => Avx2::detect().map(|avx2| (avx2, groups)),
            Layout::Standard { .. } => None,
        };
        let mut filter = BloomFilter { lines, layout, hasher, fast, ones: 0, millibits, full_ones: 0 };
        filter.ones = filter.count_ones();
        filter.full_ones = filter.ones_at_capacity();
        filter
    }

    fn count_ones(&self) -> u64 {
        self.lines.iter().map(|line| u64::from(line.ones())).sum()
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^37")]
    fn ones_at_capacity(&self) -> u64 {
        let fill = self.layout.model_fill(self.capacity(), self.lines.len() as u64);
        (fill * self.bits() as f64).ceil() as u64
    }

    /// Adds a key. Returns whether any bit changed: `false` means that the key was there already,
    /// or that the filter already said "maybe" to it by chance.
    #[inline]
    pub fn insert(&mut self, key: impl AsRef<[u8]>) -> bool {
        self.insert_value(self.hasher.value(key.as_ref()))
    }

    /// Whether the key may be in the set. "No" is certain.
    #[inline]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        self.contains_value(self.hasher.value(key.as_ref()))
    }

    /// Adds a key that was hashed before, like [`insert`](BloomFilter::insert). Fails, and changes
    /// nothing, if another function or seed than that of the filter's
    /// [`hasher`](BloomFilter::hasher) made the hash.
    pub fn insert_hashed(&mut self, key: HashedKey) -> Result<bool> {
        Ok(self.insert_value(self.hasher.expect_value_of(key)?))
    }

    /// Adds many keys that were hashed before, and returns how many changed a bit. Fails, and
    /// changes nothing, if another function or seed than the filter's made the hashes.
    pub fn insert_all(&mut self, keys: &HashedKeys) -> Result<u64> {
        let mut changed = 0;
        for &value in keys.values_for(&self.hasher)? {
            changed += u64::from(self.layout.insert(&mut self.lines, value) > 0);
        }
        self.ones = self.count_ones();
        Ok(changed)
    }

    /// Whether a key that was hashed before may be in the set, like
    /// [`contains`](BloomFilter::contains). "Maybe" if another function or seed than the filter's
    /// made the hash.
    #[inline]
    pub fn contains_hashed(&self, key: HashedKey) -> bool {
        self.hasher.value_of(key).is_none_or(|value| self.contains_value(value))
    }

    pub(super) fn insert_value(&mut self, hash: u64) -> bool {
        let changed = self.layout.insert(&mut self.lines, hash);
        self.ones += changed;
        changed > 0
    }

    #[inline]
    pub(super) fn contains_value(&self, hash: u64) -> bool {
        match self.fast {
            Some((avx2, groups)) => avx2.may_contain(groups, &self.lines, hash),
            None => self.layout.may_contain(&self.lines, hash),
        }
    }

    /// The hash function and its seed.
    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// The layout.
    pub fn layout(&self) -> BloomLayout {
        match self.layout {
            Layout::Split(_) => BloomLayout::Split,
            Layout::Standard { .. } => BloomLayout::Standard,
        }
    }

    /// The number of keys for which the filter was made: with this many it has the requested rate.
    /// At least the requested number; often a few more, because a filter has whole lines and stores
    /// bits per key in thousandths.
    ///
    /// A filter made from bits and probes is full when half of its bits are set. A union or an
    /// intersection has the lesser capacity of the two.
    pub fn capacity(&self) -> u64 {
        let keys = u128::from(self.bits()) * 1000 / u128::from(self.millibits);
        u64::try_from(keys).map_or(u64::MAX, |keys| keys.max(1))
    }

    /// Whether as many bits are set as [`capacity`](BloomFilter::capacity) keys set on average, at
    /// which the filter has the requested rate. It takes more keys, but the rate then exceeds the
    /// request.
    pub fn is_full(&self) -> bool {
        self.ones >= self.full_ones
    }

    /// Whether no bit is set: the filter says "no" to every key.
    pub fn is_empty(&self) -> bool {
        self.ones == 0
    }

    /// Probes per key.
    pub fn k(&self) -> u32 {
        self.layout.probes().into()
    }

    /// Probes in each of the lines in which a key has bits; empty in the standard layout, whose
    /// probes are anywhere.
    pub fn groups(&self) -> Vec<u8> {
        self.layout.groups().collect()
    }

    /// Bits in the filter, a multiple of 512.
    pub fn bits(&self) -> u64 {
        self.lines.len() as u64 * LINE_BITS
    }

    /// Share of the bits that are set.
    pub fn fill_ratio(&self) -> f64 {
        self.ones as f64 / self.bits() as f64
    }

    /// The exact false-positive rate of the filter's bits: the share of keys not in the set to
    /// which it says "maybe".
    ///
    /// Standard layout: the share of set bits to the power of k. Split layout: the product, over
    /// the [groups](BloomFilter::groups), of the mean, over lines, of the line's share of set bits
    /// to the power of the group's probes.
    pub fn expected_fpr(&self) -> f64 {
        self.layout.exact_fpr(&self.fill())
    }

    /// The number of distinct keys, estimated from the bits. Infinite when all bits are set.
    ///
    /// With m bits, of which a share f is set, it is −(m / d) · ln(1 − f). Here d is the
    /// number of bits that one key sets in an empty filter of many lines: k in the standard layout,
    /// 512 · Σ (1 − (1 − 1/512)^g) in the split one, over the probes g of each group.
    /// With d = 1 this is the linear counting of Whang, Vander-Zanden and Taylor ("A linear-time
    /// probabilistic counting algorithm", 1990), with d = k the estimate of Swamidass and Baldi
    /// (2007). Its relative standard error is √(eᵗ − t − 1) / (t · √m), where
    /// t = −ln(1 − f): 0.8 / √m for a half-full filter, 0.03 % for a million keys at 10 bits.
    pub fn estimated_keys(&self) -> f64 {
        self.layout.estimated_keys(&self.fill())
    }

    /// One pass over all bits.
    fn fill(&self) -> Fill {
        Fill::of(&self.lines)
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.lines.fill(FilterLine::default());
        self.ones = 0;
    }

    /// Whether the two can be united and intersected: equal size, layout, probes, hash and seed.
    pub fn is_compatible(&self, other: &BloomFilter) -> bool {
        self.check_compatible(other).is_ok()
    }

    fn check_compatible(&self, other: &BloomFilter) -> Result<()> {
        let difference = if self.lines.len() != other.lines.len() {
            "size"
        } else if self.layout() != other.layout() {
            "layout"
        } else if self.layout != other.layout {
            "number of probes per key"
        } else if self.hasher.function() != other.hasher.function() {
            "hash function"
        } else if self.hasher.seed() != other.hasher.seed() {
            "seed"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format_args!("the filters differ in their {difference}")))
    }

    /// Adds all keys of `other`, which must be [compatible](BloomFilter::is_compatible). The result
    /// has the bits of a filter to which the keys of both were added, and denies no key of either.
    pub fn union_with(&mut self, other: &BloomFilter) -> Result<()> {
        self.combine(other, |a, b| a | b)
    }

    /// Keeps the bits that are also set in `other`, which must be
    /// [compatible](BloomFilter::is_compatible). The result denies no key that is in both sets, and
    /// every key that one of the two denies. Its rate is higher than that of a filter of the common
    /// keys alone, because other keys leave bits in common. For the same reason the estimate of its
    /// keys is rather an upper bound.
    pub fn intersect_with(&mut self, other: &BloomFilter) -> Result<()> {
        self.combine(other, |a, b| a & b)
    }

    /// A new filter of the keys of both; see [`union_with`](BloomFilter::union_with).
    pub fn union(&self, other: &BloomFilter) -> Result<BloomFilter> {
        let mut union = self.clone();
        union.union_with(other)?;
        Ok(union)
    }

    /// A new filter of the common bits of both; see
    /// [`intersect_with`](BloomFilter::intersect_with).
    pub fn intersection(&self, other: &BloomFilter) -> Result<BloomFilter> {
        let mut intersection = self.clone();
        intersection.intersect_with(other)?;
        Ok(intersection)
    }

    fn combine(&mut self, other: &BloomFilter, combine: impl Fn(u64, u64) -> u64) -> Result<()> {
        self.check_compatible(other)?;
        for (line, other) in self.lines.iter_mut().zip(&other.lines) {
            for (word, other) in line.0.iter_mut().zip(other.0) {
                *word = combine(*word, other);
            }
        }
        self.ones = self.count_ones();
        // The lesser capacity, so that the order of the two does not matter.
        self.millibits = self.millibits.max(other.millibits);
        self.full_ones = self.ones_at_capacity();
        Ok(())
    }

    /// The filter in the format of a table's filter block: a header of 64 bytes that describes and
    /// verifies itself and the bits, then the bits. docs/FORMAT.md describes it.
    ///
    /// Filters with equal parameters and equal sets have equal bytes: see [the
    /// module](crate::filter).
    pub fn to_bytes(&self) -> Vec<u8> {
        header::encode(&self.header(), &self.lines)
    }

    fn header(&self) -> FilterHeader {
        FilterHeader {
            content: FilterContent::Lines(self.layout),
            hash: self.hasher.function(),
            seed: self.hasher.seed(),
            keys: UNCOUNTED,
            millibits: self.millibits,
            prefixes: None,
        }
    }

    /// How many bytes [`to_bytes`](BloomFilter::to_bytes) returns.
    pub fn encoded_len(&self) -> u64 {
        header::HEADER_LEN as u64 + self.bits() / 8
    }

    /// Decodes the bytes of [`to_bytes`](BloomFilter::to_bytes). Any other bytes are an
    /// [`Error::Filter`] that names the broken rule.
    pub fn from_bytes(bytes: &[u8]) -> Result<BloomFilter> {
        BloomFilter::decode(bytes).map_err(|Malformed(rule)| Error::Filter { file: None, rule })
    }

    pub(super) fn decode(bytes: &[u8]) -> Decoded<BloomFilter> {
        let (header, lines) = header::decode(bytes)?;
        let FilterContent::Lines(layout) = header.content else {
            return Err(Malformed("the filter has no lines"));
        };
        if header.prefixes.is_some() {
            return Err(Malformed("the filter is a table's: it has prefixes beside keys"));
        }
        if header.millibits == 0 {
            return Err(Malformed("the filter's bits per key are 0"));
        }
        if header.keys != UNCOUNTED {
            return Err(Malformed("the filter is a table's: it counts its keys"));
        }
        let lines = lines.iter().map(FilterLine::decode).collect();
        let hasher = KeyHasher::new(header.hash, header.seed)?;
        let filter = BloomFilter::from_lines(lines, layout, header.millibits, hasher);
        // Ensures that a set of keys has one encoding.
        if header::stated_rate(bytes) != header::rate_of(&header, &filter.lines) {
            return Err(Malformed("the rate in the filter's header does not match its bits"));
        }
        Ok(filter)
    }

    /// Writes what [`to_bytes`](BloomFilter::to_bytes) returns.
    pub fn write_to(&self, mut out: impl Write) -> io::Result<()> {
        out.write_all(&self.to_bytes())
    }

    /// Reads one filter from a stream, and nothing after it. Bytes that are no filter are an error
    /// of kind `InvalidData` that holds an [`Error::Filter`].
    pub fn read_from(mut input: impl Read) -> io::Result<BloomFilter> {
        file::read(&mut input, header::block_len, BloomFilter::decode)
    }

    /// Replaces the file at `path` with this filter, durably and atomically: after a crash it holds
    /// the old filter or the new one.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_to(&OsFileSystem::new(), path)
    }

    /// Reads the filter in the file at `path`.
    pub fn load(path: impl AsRef<Path>) -> Result<BloomFilter> {
        BloomFilter::load_from(&OsFileSystem::new(), path)
    }

    /// Like [`save`](BloomFilter::save), in another file system.
    pub fn save_to(&self, fs: &dyn FileSystem, path: impl AsRef<Path>) -> Result<()> {
        file::save(fs, path.as_ref(), &self.to_bytes())
    }

    /// Like [`load`](BloomFilter::load), from another file system.
    pub fn load_from(fs: &dyn FileSystem, path: impl AsRef<Path>) -> Result<BloomFilter> {
        file::load(fs, path.as_ref(), header::block_len, BloomFilter::decode)
    }
}

/// Allocates the lines of an empty filter; an error if this machine lacks the memory.
fn empty_lines(count: u64) -> Result<Box<[FilterLine]>> {
    let too_large =
        || Error::invalid(format_args!("there is not enough memory for a filter of {count} times 64 bytes"));
    let count = usize::try_from(count).map_err(|_| too_large())?;
    let mut lines = Vec::new();
    lines.try_reserve_exact(count).map_err(|_| too_large())?;
    lines.resize(count, FilterLine::default());
    Ok(lines.into_boxed_slice())
}

impl PartialEq for BloomFilter {
    fn eq(&self, other: &BloomFilter) -> bool {
        self.is_compatible(other) && self.lines == other.lines
    }
}

impl Eq for BloomFilter {}

impl<K: AsRef<[u8]>> Extend<K> for BloomFilter {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        for key in keys {
            self.insert(key);
        }
    }
}

/// Makes a filter of exactly the size that the keys take at a rate of 1 %: XXH3, seed 0, split
/// layout. It collects their hashes first, 8 bytes each, and drops duplicates.
///
/// ```
/// use tamis::filter::BloomFilter;
///
/// let planets: BloomFilter = ["Mercury", "Venus", "Earth", "Mars"].into_iter().collect();
/// assert!(planets.contains("Earth"));
/// assert!(!planets.contains("Pluto"));
/// ```
impl<K: AsRef<[u8]>> FromIterator<K> for BloomFilter {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> BloomFilter {
        let hasher = KeyHasher::unseeded();
        let mut hashes: Vec<u64> = keys.into_iter().map(|key| hasher.value(key.as_ref())).collect();
        hashes.sort_unstable();
        hashes.dedup();
        // It takes 100 GiB of hashes to exceed the largest filter.
        let largest = BloomShape { layout: Layout::Split(Groups::for_probes(7)), lines: MAX_LINES, millibits: 10_000 };
        let shape =
            BloomShape::for_rate(BloomLayout::Split, (hashes.len() as u64).max(1), COLLECTED_RATE).unwrap_or(largest);
        let lines = (0..shape.lines).map(|_| FilterLine::default()).collect();
        let mut filter = BloomFilter::from_lines(lines, shape.layout, shape.millibits, hasher);
        for hash in hashes {
            filter.insert_value(hash);
        }
        filter
    }
}

/// Parameters and fill, in one line.
impl fmt::Display for BloomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fill = self.fill();
        write!(
            f,
            "Bloom filter for {} keys, with about {:.0}: {} bits, k = {}, {:.2} % set, expected false positives {:.4} %, {} \
             layout, {} with seed {}",
            self.capacity(),
            self.layout.estimated_keys(&fill),
            self.bits(),
            self.k(),
            fill.ratio() * 100.0,
            self.layout.exact_fpr(&fill) * 100.0,
            self.layout(),
            self.hasher.function(),
            self.hasher.seed()
        )
    }
}

impl fmt::Debug for BloomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BloomFilter")
            .field("layout", &self.layout)
            .field("lines", &self.lines.len())
            .field("hasher", &self.hasher)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_filter_uses_avx2_where_the_processor_has_it() {
        for (layout, is_split) in [(BloomLayout::Split, true), (BloomLayout::Standard, false)] {
            let filter = BloomFilter::builder().layout(layout).with_rate(100, 0.01).unwrap();
            assert_eq!(filter.fast.is_some(), is_split && Avx2::detect().is_some());
        }
    }
}
