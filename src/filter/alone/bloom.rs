//! [`BloomFilter`]: a filter without a database. Its lines, layouts, hash and bytes are those of a table's filter.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;

use super::file;
use crate::error::{Error, Result};
use crate::filter::avx2::Avx2;
use crate::filter::hasher::{HashFunction, HashedKey, HashedKeys, KeyHasher};
use crate::filter::header::{self, Content, Header};
use crate::filter::layout::Layout;
use crate::filter::line::{Fill, LINE_BITS, Line};
use crate::filter::shape::{BloomLayout, Shape};
use crate::filter::sizing::MAX_LINES;
use crate::filter::split::Groups;
use crate::format::{Decoded, Malformed};
use crate::vfs::{FileSystem, OsFileSystem};

/// The number of keys in the header of a stand-alone filter: it counts none. A table's filter has
/// lines only with keys, so that none is taken for the other. Part of the format.
const UNCOUNTED: u64 = 0;

/// The rate for which a filter that is collected from keys is made.
const COLLECTED_RATE: f64 = 0.01;

/// A set of keys in a few bits per key: it says of any key "certainly not in the set" or "maybe".
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
/// Its size is fixed when it is made; a [`ScalableBloomFilter`](super::ScalableBloomFilter) grows. Keys are whatever is
/// `AsRef<[u8]>`: only the bytes count.
///
/// Two filters are equal (`==`) when they answer alike: same size, layout, hash and seed, same
/// bits. For how many keys they were made does not matter. Filters that also agree in that have the
/// same bytes; see [the module](super).
#[derive(Clone)]
pub struct BloomFilter {
    lines: Box<[Line]>,
    layout: Layout,
    hasher: KeyHasher,
    /// The fast way to ask, if the layout and the processor have one.
    fast: Option<(Avx2, Groups)>,
    /// Bits that are set.
    ones: u64,
    /// Bits per key when it is full, in thousandths; not 0.
    millibits: u32,
    /// Bits that are set when it is full.
    full_ones: u64,
}

/// How a filter is to be made: seed, hash and layout; then how large.
///
/// ```
/// use tamis::filter::{BloomFilter, HashFunction};
///
/// let filter = BloomFilter::builder().hash(HashFunction::SipHash13).seed(0x5eed).with_bits_per_key(1000, 10.0)?;
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

    /// The hash with its seed. With it keys can be hashed before the filter is made, when their
    /// number is not known yet: see [`HashedKeys`].
    pub fn hasher(&self) -> Result<KeyHasher> {
        KeyHasher::new(self.function, self.seed).map_err(|Malformed(rule)| Error::invalid(rule))
    }

    /// A filter for `keys` keys that then says "maybe" to a share of `rate` of the keys that are not in it.
    pub fn with_rate(&self, keys: u64, rate: f64) -> Result<BloomFilter> {
        BloomFilter::new(self.shape(keys, rate)?, self.hasher()?)
    }

    pub(super) fn shape(&self, keys: u64, rate: f64) -> Result<Shape> {
        Shape::for_rate(self.layout, keys, rate)
    }

    /// A filter for `keys` keys with so many bits for each, 1 to 24, and the best number of probes. The split layout takes up to 1 %
    /// more, as in tables, and has the rate of the textbook for it.
    pub fn with_bits_per_key(&self, keys: u64, bits_per_key: f64) -> Result<BloomFilter> {
        BloomFilter::new(Shape::for_bits_per_key(self.layout, keys, bits_per_key)?, self.hasher()?)
    }

    /// A filter of at least `bits` bits, in whole lines of 512, with `k` probes per key: at most 25 in the split layout, 32 in the
    /// standard one.
    pub fn with_bits(&self, bits: u64, k: u32) -> Result<BloomFilter> {
        BloomFilter::new(Shape::for_bits(self.layout, bits, k)?, self.hasher()?)
    }
}

impl BloomFilter {
    /// The first bytes of every encoded filter, and so of its file.
    pub const MAGIC: [u8; 4] = header::MAGIC;

    /// A filter for `keys` keys that then says "maybe" to a share of `rate` of the keys that are not in it. XXH3, seed 0, split
    /// layout; see [`builder`](BloomFilter::builder) for others.
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

    fn new(shape: Shape, hasher: KeyHasher) -> Result<BloomFilter> {
        Ok(BloomFilter::of_lines(empty_lines(shape.lines)?, shape.layout, shape.millibits, hasher))
    }

    fn of_lines(lines: Box<[Line]>, layout: Layout, millibits: u32, hasher: KeyHasher) -> BloomFilter {
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

    /// Adds a key. Returns whether any bit changed: `false` means that the key was there already, or that the filter already said
    /// "maybe" to it by chance.
    #[inline]
    pub fn insert(&mut self, key: impl AsRef<[u8]>) -> bool {
        self.insert_value(self.hasher.value(key.as_ref()))
    }

    /// Whether the key may be in the set. "No" is certain.
    #[inline]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        self.contains_value(self.hasher.value(key.as_ref()))
    }

    /// [`insert`](BloomFilter::insert) of a key that was hashed before. Fails, and changes nothing,
    /// if its hash is of another function or seed than the filter's
    /// [`hasher`](BloomFilter::hasher).
    pub fn insert_hashed(&mut self, key: HashedKey) -> Result<bool> {
        Ok(self.insert_value(self.hasher.expect_value_of(key)?))
    }

    /// Adds many keys that were hashed before, and returns how many insertions changed a bit.
    /// Fails, and changes nothing, if they were hashed by another function or seed than the
    /// filter's.
    pub fn insert_all(&mut self, keys: &HashedKeys) -> Result<u64> {
        let mut changed = 0;
        for &value in keys.values_for(&self.hasher)? {
            changed += u64::from(self.layout.insert(&mut self.lines, value) > 0);
        }
        self.ones = self.count_ones();
        Ok(changed)
    }

    /// [`contains`](BloomFilter::contains) for a key that was hashed before. "Maybe" if its hash is
    /// of another function or seed than the filter's: nothing can be said of it.
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

    /// The number of keys for which the filter was made: with so many it has the rate that was asked for. Never fewer than were
    /// asked for; some more, because there are only whole lines and bits per key are noted in thousandths.
    ///
    /// A filter that was made from bits and probes is full when half of its bits are set. A union
    /// or an intersection has the lesser capacity of the two.
    pub fn capacity(&self) -> u64 {
        let keys = u128::from(self.bits()) * 1000 / u128::from(self.millibits);
        u64::try_from(keys).map_or(u64::MAX, |keys| keys.max(1))
    }

    /// Whether as many bits are set as [`capacity`](BloomFilter::capacity) keys set on average, so that the rate is what was asked
    /// for. More keys can be added; the rate then exceeds it.
    pub fn is_full(&self) -> bool {
        self.ones >= self.full_ones
    }

    /// Whether no bit is set: it says "no" to every key.
    pub fn is_empty(&self) -> bool {
        self.ones == 0
    }

    /// Probes per key.
    pub fn k(&self) -> u32 {
        self.layout.probes().into()
    }

    /// Probes in each of the lines in which a key has bits; empty in the standard layout, where they are anywhere.
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

    /// The false-positive rate of these very bits: the share of keys not in the set to which it says "maybe".
    ///
    /// Standard layout: the share of set bits to the power of k. Split layout: the product, over
    /// the [groups](BloomFilter::groups), of the mean, over lines, of the line's share of set bits
    /// to the power of the group's probes.
    pub fn expected_fpr(&self) -> f64 {
        self.layout.exact_fpr(&self.fill())
    }

    /// The number of distinct keys that the bits speak for. Infinite when all bits are set.
    ///
    /// With m bits, of which a share f is set, it is −(m / d) · ln(1 − f), where d is the number of
    /// bits that one key sets in an empty filter of many lines: k in the standard layout, 512 · Σ
    /// (1 − (1 − 1/512)^g) in the split one, over the probes g of each group. For d = 1 this is the
    /// linear counting of Whang, Vander-Zanden and Taylor ("A linear-time probabilistic counting
    /// algorithm", 1990), for d = k the estimate of Swamidass and Baldi (2007). Its standard error,
    /// in relation to the number, is √(eᵗ − t − 1) / (t · √m) with t = −ln(1 − f): 0.8 / √m for a
    /// filter that is half full, 0.03 % for a million keys at 10 bits.
    pub fn estimated_keys(&self) -> f64 {
        self.layout.estimated_keys(&self.fill())
    }

    /// One pass over all bits.
    fn fill(&self) -> Fill {
        Fill::of(&self.lines)
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.lines.fill(Line::default());
        self.ones = 0;
    }

    /// Whether the two can be united and intersected: same size, layout, probes, hash and seed.
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

    /// Adds all keys of `other`, which must be [compatible](BloomFilter::is_compatible). The bits are those of a filter to which the
    /// keys of both were added one by one: no key of either is denied.
    pub fn union_with(&mut self, other: &BloomFilter) -> Result<()> {
        self.combine(other, |a, b| a | b)
    }

    /// Keeps the bits that are also set in `other`, which must be
    /// [compatible](BloomFilter::is_compatible). No key that is in both sets is denied, and none to
    /// which one of the two says "no" is let pass; but the rate is higher than that of a filter to
    /// which only the common keys were added, because other keys leave bits in common. For the same
    /// reason the estimate of its keys is rather an upper bound.
    pub fn intersect_with(&mut self, other: &BloomFilter) -> Result<()> {
        self.combine(other, |a, b| a & b)
    }

    /// A new filter of the keys of both; see [`union_with`](BloomFilter::union_with).
    pub fn union(&self, other: &BloomFilter) -> Result<BloomFilter> {
        let mut union = self.clone();
        union.union_with(other)?;
        Ok(union)
    }

    /// A new filter of the bits that both have; see [`intersect_with`](BloomFilter::intersect_with).
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
        // Of the lesser capacity, so that it does not matter which of the two comes first.
        self.millibits = self.millibits.max(other.millibits);
        self.full_ones = self.ones_at_capacity();
        Ok(())
    }

    /// The filter in the form of a table's filter block: a header of 64 bytes that describes and verifies itself and the bits, then
    /// the bits. docs/FORMAT.md describes it.
    ///
    /// Equal sets have equal bytes in filters of one make: see [the module](super).
    pub fn to_bytes(&self) -> Vec<u8> {
        header::encode(&self.header(), &self.lines)
    }

    fn header(&self) -> Header {
        Header {
            content: Content::Lines(self.layout),
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

    /// The filter that [`to_bytes`](BloomFilter::to_bytes) encoded. Bytes that are not exactly that are an [`Error::Filter`] which
    /// says what is wrong with them.
    pub fn from_bytes(bytes: &[u8]) -> Result<BloomFilter> {
        BloomFilter::decode(bytes).map_err(|Malformed(rule)| Error::Filter { file: None, rule })
    }

    pub(super) fn decode(bytes: &[u8]) -> Decoded<BloomFilter> {
        let (header, lines) = header::decode(bytes)?;
        let Content::Lines(layout) = header.content else {
            return Err(Malformed("the filter has no lines"));
        };
        if header.prefixes.is_some() {
            return Err(Malformed("the filter is one of a table, and has prefixes beside keys"));
        }
        if header.millibits == 0 {
            return Err(Malformed("the filter has no bits per key"));
        }
        if header.keys != UNCOUNTED {
            return Err(Malformed("the filter is one of a table, which counts its keys"));
        }
        let lines = lines.iter().map(Line::decode).collect();
        let hasher = KeyHasher::new(header.hash, header.seed)?;
        let filter = BloomFilter::of_lines(lines, layout, header.millibits, hasher);
        // One set of keys has one encoding.
        if header::stated_rate(bytes) != header::rate_of(&header, &filter.lines) {
            return Err(Malformed("the rate in the filter's header is not that of its bits"));
        }
        Ok(filter)
    }

    /// Writes what [`to_bytes`](BloomFilter::to_bytes) returns.
    pub fn write_to(&self, mut out: impl Write) -> io::Result<()> {
        out.write_all(&self.to_bytes())
    }

    /// Reads one filter from a stream, and nothing behind it. What is no filter is an error of kind `InvalidData` that holds an
    /// [`Error::Filter`].
    pub fn read_from(mut input: impl Read) -> io::Result<BloomFilter> {
        file::read(&mut input, header::block_len, BloomFilter::decode)
    }

    /// Replaces the file at `path` with this filter, durably and in one step: after a crash it holds the old one or the new one.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_to(&OsFileSystem::new(), path)
    }

    /// Reads the filter in the file at `path`.
    pub fn load(path: impl AsRef<Path>) -> Result<BloomFilter> {
        BloomFilter::load_from(&OsFileSystem::new(), path)
    }

    /// [`save`](BloomFilter::save) in another file system.
    pub fn save_to(&self, fs: &dyn FileSystem, path: impl AsRef<Path>) -> Result<()> {
        file::save(fs, path.as_ref(), &self.to_bytes())
    }

    /// [`load`](BloomFilter::load) from another file system.
    pub fn load_from(fs: &dyn FileSystem, path: impl AsRef<Path>) -> Result<BloomFilter> {
        file::load(fs, path.as_ref(), header::block_len, BloomFilter::decode)
    }
}

/// Memory for a filter, which may be too large for this machine.
fn empty_lines(count: u64) -> Result<Box<[Line]>> {
    let too_large = || Error::invalid(format_args!("there is no memory for a filter of {count} times 64 bytes"));
    let count = usize::try_from(count).map_err(|_| too_large())?;
    let mut lines = Vec::new();
    lines.try_reserve_exact(count).map_err(|_| too_large())?;
    lines.resize(count, Line::default());
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

/// A filter of exactly the size that the keys take at a rate of 1 %: XXH3, seed 0, split layout. Their hashes, 8 bytes each, are
/// collected first, so that it does not matter how many there are and whether some come twice.
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
        // So many hashes that the largest filter is too small for them take 100 GiB.
        let largest = Shape { layout: Layout::Split(Groups::for_probes(7)), lines: MAX_LINES, millibits: 10_000 };
        let shape =
            Shape::for_rate(BloomLayout::Split, (hashes.len() as u64).max(1), COLLECTED_RATE).unwrap_or(largest);
        let lines = (0..shape.lines).map(|_| Line::default()).collect();
        let mut filter = BloomFilter::of_lines(lines, shape.layout, shape.millibits, hasher);
        for hash in hashes {
            filter.insert_value(hash);
        }
        filter
    }
}

/// What it is and how it is doing, in a line.
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
    fn a_split_filter_is_asked_with_avx2_where_there_is_any() {
        for (layout, is_split) in [(BloomLayout::Split, true), (BloomLayout::Standard, false)] {
            let filter = BloomFilter::builder().layout(layout).with_rate(100, 0.01).unwrap();
            assert_eq!(filter.fast.is_some(), is_split && Avx2::detect().is_some());
        }
    }
}
