//! [`BloomFilter`]: a filter without a database, with the lines, layouts, hash and encoding of a
//! table's filter.

use std::fmt;

use super::file::{self, Refused, read_methods, read_methods_with_hasher, write_methods};
use super::store::{LineStore, Owned};
use crate::batch;
use crate::hasher::{FilterHash, HashFunction, HashedKey, HashedKeys, KeyHasher};
use crate::header::{self, FilterContent, FilterHeader};
use crate::layout::Layout;
use crate::line::{Fill, FilterLine, LINE_LEN, ReadLine};
use crate::probe::FilterProbe;
use crate::shape::{BloomLayout, BloomSize};
use crate::sizing::MAX_LINES;
use crate::split::Groups;
use tamis_base::error::{Error, Result};
use tamis_base::format::Malformed;

/// The number of keys in a stand-alone filter's header, which counts none. A table's filter with
/// lines always counts keys, so that neither is mistaken for the other. Part of the format.
const UNCOUNTED: u64 = 0;

/// The rate of a filter that is collected from keys.
const COLLECTED_RATE: f64 = 0.01;

/// A set of keys in a few bits per key. It answers for any key "certainly not in the set" or
/// "maybe".
///
/// ```
/// use tamis_filter::BloomFilter;
///
/// let mut words = BloomFilter::with_rate(1_000_000, 0.01)?;
/// assert!(words.insert("tamis"));
/// assert!(!words.insert("tamis"), "nothing has changed");
/// assert!(words.contains("tamis"));
/// assert!(!words.contains("sieve"));
/// assert_eq!((words.estimated_keys().round(), words.k()), (1.0, 7));
/// let copy = BloomFilter::from_bytes(&words.to_bytes())?;
/// assert_eq!(copy, words);
/// # Ok::<(), tamis_filter::Error>(())
/// ```
///
/// Its size is fixed when it is made; a [`ScalableBloomFilter`](crate::ScalableBloomFilter)
/// grows. A key is anything that is `AsRef<[u8]>`; only its bytes count.
///
/// Two filters are equal (`==`) if they answer alike: equal size, layout, hash, seed and bits. The
/// numbers of keys for which they were made may differ. Filters that also agree in these have equal
/// bytes; see [the module](crate).
///
/// `H` is the hash of the keys: [`FilterHash`] shows how to use one of your own. `L` is where the
/// bits are: here in the filter, in a [`SharedBloomFilter`](crate::SharedBloomFilter) in
/// memory that threads share, in a [`BloomFilterRef`](crate::BloomFilterRef) in bytes that
/// it borrows.
#[derive(Clone)]
pub struct BloomFilter<H = KeyHasher, L = Owned> {
    pub(super) store: L,
    pub(super) size: BloomSize,
    probe: FilterProbe,
    hasher: H,
    /// Number of set bits when the filter is full.
    full_ones: u64,
}

/// A builder of [`BloomFilter`]s: choose seed, hash and layout, then the size.
///
/// ```
/// use tamis_filter::{BloomFilter, HashFunction};
///
/// let builder = BloomFilter::builder().hash(HashFunction::SipHash13).seed(0x5eed);
/// let filter = builder.with_bits_per_key(1000, 10.0)?;
/// assert_eq!((filter.k(), filter.bits()), (7, 10_240));
/// # Ok::<(), tamis_filter::Error>(())
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
        BloomFilter::with_hasher(self.size(keys, rate)?, self.hasher()?)
    }

    pub(super) fn size(&self, keys: u64, rate: f64) -> Result<BloomSize> {
        BloomSize::for_rate(self.layout, keys, rate)
    }

    /// A filter for `keys` keys with `bits_per_key` bits each, 1 to 24, and the best number of
    /// probes. As in tables, the split layout takes up to 1 % more to reach the rate of the
    /// textbook.
    pub fn with_bits_per_key(&self, keys: u64, bits_per_key: f64) -> Result<BloomFilter> {
        BloomFilter::with_hasher(BloomSize::for_bits_per_key(self.layout, keys, bits_per_key)?, self.hasher()?)
    }

    /// A filter of at least `bits` bits, in whole lines of 512, with `k` probes per key: at most 25
    /// in the split layout, 32 in the standard one.
    pub fn with_bits(&self, bits: u64, k: u32) -> Result<BloomFilter> {
        BloomFilter::with_hasher(BloomSize::for_bits(self.layout, bits, k)?, self.hasher()?)
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

    /// Adds a key that was hashed before, like [`insert`](BloomFilter::insert). Fails, and changes
    /// nothing, if another function or seed than that of the filter's
    /// [`hasher`](BloomFilter::hasher) made the hash.
    pub fn insert_hashed(&mut self, key: HashedKey) -> Result<bool> {
        Ok(self.insert_value(self.hasher.expect_value_of(key)?))
    }

    /// Adds many keys that were hashed before, and returns how many changed a bit. Fails, and
    /// changes nothing, if another function or seed than the filter's made the hashes.
    pub fn insert_all(&mut self, keys: &HashedKeys) -> Result<u64> {
        let values = keys.values_for(&self.hasher)?;
        Ok(values.iter().map(|&value| u64::from(self.insert_value(value))).sum())
    }

    read_methods!(header::block_len, BloomFilter::decode);

    pub(super) fn decode(bytes: &[u8]) -> Result<BloomFilter, Refused> {
        BloomFilter::decode_with(bytes, file::hasher_of_crate)
    }
}

#[expect(private_bounds, reason = "the places of lines are those of this crate")]
impl<L: LineStore> BloomFilter<KeyHasher, L> {
    /// Whether a key that was hashed before may be in the set, like
    /// [`contains`](BloomFilter::contains). "Maybe" if another function or seed than the filter's
    /// made the hash.
    #[inline]
    pub fn contains_hashed(&self, key: HashedKey) -> bool {
        self.hasher.value_of(key).is_none_or(|value| self.contains_value(value))
    }
}

impl<H: FilterHash> BloomFilter<H> {
    /// An empty filter of this size, with any hash; see [`FilterHash`].
    pub fn with_hasher(size: BloomSize, hasher: H) -> Result<BloomFilter<H>> {
        header::check_name(hasher.name())?;
        Ok(BloomFilter::from_parts(size, Owned::empty(size.lines)?, hasher))
    }

    /// Adds a key. Returns whether any bit changed: `false` means that the key was there already,
    /// or that the filter already said "maybe" to it by chance.
    #[inline]
    pub fn insert(&mut self, key: impl AsRef<[u8]>) -> bool {
        self.insert_value(self.hasher.hash64(key.as_ref()))
    }

    pub(super) fn insert_value(&mut self, hash: u64) -> bool {
        let changed = self.size.layout.insert(&mut self.store.lines[..], hash);
        self.store.ones += changed;
        changed > 0
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.store.lines.fill(FilterLine::default());
        self.store.ones = 0;
    }

    pub(super) fn set_size(&mut self, size: BloomSize) {
        self.size = size;
        self.full_ones = ones_at_capacity(size);
    }

    read_methods_with_hasher!(header::block_len, BloomFilter::decode_with);

    fn decode_with(
        bytes: &[u8],
        hasher: impl FnOnce(&str, u64) -> Result<H, Refused>,
    ) -> Result<BloomFilter<H>, Refused> {
        let (size, lines, hasher) = parse(bytes, hasher)?;
        let lines = lines.iter().map(FilterLine::decode).collect();
        Ok(BloomFilter::from_parts(size, Owned::new(lines), hasher))
    }
}

/// Checks the bytes of a filter, and takes them apart.
pub(super) fn parse<H>(
    bytes: &[u8],
    hasher: impl FnOnce(&str, u64) -> Result<H, Refused>,
) -> Result<(BloomSize, &[[u8; LINE_LEN]], H), Refused> {
    let (header, lines) = header::decode(bytes)?;
    let FilterContent::Lines(layout) = header.content else {
        return Err(Malformed("the filter is no Bloom filter, or has no lines").into());
    };
    if header.prefixes.is_some() {
        return Err(Malformed("the filter is a table's: it has prefixes beside keys").into());
    }
    if header.millibits == 0 {
        return Err(Malformed("the filter's bits per key are 0").into());
    }
    if header.keys != UNCOUNTED {
        return Err(Malformed("the filter is a table's: it counts its keys").into());
    }
    // Ensures that a set of keys has one encoding.
    if header::stated_rate(bytes) != header::rate_of(&header, lines) {
        return Err(Malformed("the rate in the filter's header does not match its bits").into());
    }
    let size = BloomSize { layout, lines: lines.len() as u64, millibits: header.millibits };
    Ok((size, lines, hasher(header.hash, header.seed)?))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^37")]
fn ones_at_capacity(size: BloomSize) -> u64 {
    let fill = size.layout.model_fill(size.capacity(), size.lines);
    (fill * size.bits() as f64).ceil() as u64
}

#[expect(private_bounds, reason = "the places of lines are those of this crate")]
impl<H: FilterHash, L: LineStore> BloomFilter<H, L> {
    pub(super) fn from_parts(size: BloomSize, store: L, hasher: H) -> BloomFilter<H, L> {
        let (probe, full_ones) = (FilterProbe::new::<L::Line>(size.layout), ones_at_capacity(size));
        BloomFilter { store, size, probe, hasher, full_ones }
    }

    /// This filter with its lines elsewhere.
    pub(super) fn with_store<M: LineStore>(self, move_lines: impl FnOnce(L) -> M) -> BloomFilter<H, M> {
        BloomFilter::from_parts(self.size, move_lines(self.store), self.hasher)
    }

    /// Whether the key may be in the set. "No" is certain.
    #[inline]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        self.contains_value(self.hasher.hash64(key.as_ref()))
    }

    #[inline]
    pub(super) fn contains_value(&self, hash: u64) -> bool {
        self.probe.may_contain(self.store.lines(), hash)
    }

    /// For each key, whether it may be in the set: the answers of
    /// [`contains`](BloomFilter::contains). It takes half of the time or less where the filter
    /// exceeds the processor's caches, or about half of the keys are present.
    ///
    /// ```
    /// # let mut words = tamis_filter::BloomFilter::with_rate(1000, 0.01)?;
    /// words.insert("one");
    /// assert_eq!(words.contains_many(&["one", "two"]), [true, false]);
    /// # Ok::<(), tamis_filter::Error>(())
    /// ```
    pub fn contains_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<bool> {
        batch::answer_all(keys, |key| self.hasher.hash64(key), |hashes, answers| self.ask(hashes, answers))
    }

    /// Says yes for the keys that may be in the set, of those whose answer is not yes already.
    pub(super) fn ask(&self, hashes: &[u64], answers: &mut [bool]) {
        self.probe.ask(self.store.lines(), hashes, answers);
    }

    /// The hash function and its seed.
    pub fn hasher(&self) -> &H {
        &self.hasher
    }

    /// Its size and the rate to expect of it.
    pub fn size(&self) -> BloomSize {
        self.size
    }

    /// The layout.
    pub fn layout(&self) -> BloomLayout {
        self.size.layout()
    }

    /// The number of keys for which the filter was made: with this many it has the requested rate.
    /// At least the requested number; often a few more, because a filter has whole lines and stores
    /// bits per key in thousandths.
    ///
    /// A filter made from bits and probes is full when half of its bits are set. A union or an
    /// intersection has the lesser capacity of the two.
    pub fn capacity(&self) -> u64 {
        self.size.capacity()
    }

    /// Whether as many bits are set as [`capacity`](BloomFilter::capacity) keys set on average, at
    /// which the filter has the requested rate. It takes more keys, but the rate then exceeds the
    /// request.
    pub fn is_full(&self) -> bool {
        self.store.ones() >= self.full_ones
    }

    /// Whether no bit is set: the filter says "no" to every key.
    pub fn is_empty(&self) -> bool {
        self.store.ones() == 0
    }

    /// Probes per key.
    pub fn k(&self) -> u32 {
        self.size.k()
    }

    /// Probes in each of the lines in which a key has bits; empty in the standard layout, whose
    /// probes are anywhere.
    pub fn groups(&self) -> Vec<u8> {
        self.size.layout.groups().collect()
    }

    /// Bits in the filter, a multiple of 512.
    pub fn bits(&self) -> u64 {
        self.size.bits()
    }

    /// Share of the bits that are set.
    pub fn fill_ratio(&self) -> f64 {
        self.store.ones() as f64 / self.bits() as f64
    }

    /// The exact false-positive rate of the filter's bits: the share of keys not in the set to
    /// which it says "maybe".
    ///
    /// Standard layout: the share of set bits to the power of k. Split layout: the product, over
    /// the [groups](BloomFilter::groups), of the mean, over lines, of the line's share of set bits
    /// to the power of the group's probes.
    pub fn expected_fpr(&self) -> f64 {
        self.size.layout.exact_fpr(&self.fill())
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
        self.size.layout.estimated_keys(&self.fill())
    }

    /// One pass over all bits.
    fn fill(&self) -> Fill {
        Fill::of(self.store.lines())
    }

    /// The filter in the format of a table's filter block: a header of 64 bytes that describes and
    /// verifies itself and the bits, then the bits. docs/FORMAT.md describes it.
    ///
    /// Filters with equal parameters and equal sets have equal bytes: see [the
    /// module](crate).
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = FilterHeader {
            content: FilterContent::Lines(self.size.layout),
            hash: self.hasher.name(),
            seed: self.hasher.seed(),
            keys: UNCOUNTED,
            millibits: self.size.millibits,
            prefixes: None,
        };
        header::encode(&header, self.store.lines())
    }

    /// How many bytes [`to_bytes`](BloomFilter::to_bytes) returns.
    pub fn encoded_len(&self) -> u64 {
        header::encoded_len(self.size.lines, self.hasher.name())
    }

    write_methods!();
}

#[expect(private_bounds, reason = "the places of lines are those of this crate")]
impl<H: FilterHash + Clone, L: LineStore> BloomFilter<H, L> {
    /// A copy with bits of its own.
    pub fn to_filter(&self) -> BloomFilter<H> {
        let lines = self.store.lines().iter().map(|line| FilterLine(line.words())).collect();
        BloomFilter::from_parts(self.size, Owned::new(lines), self.hasher.clone())
    }
}

impl<H: FilterHash, K: AsRef<[u8]>> Extend<K> for BloomFilter<H> {
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
/// use tamis_filter::BloomFilter;
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
        let largest = BloomSize { layout: Layout::Split(Groups::for_probes(7)), lines: MAX_LINES, millibits: 10_000 };
        let size =
            BloomSize::for_rate(BloomLayout::Split, (hashes.len() as u64).max(1), COLLECTED_RATE).unwrap_or(largest);
        let lines = (0..size.lines).map(|_| FilterLine::default()).collect();
        let mut filter = BloomFilter::from_parts(size, Owned::new(lines), hasher);
        for hash in hashes {
            filter.insert_value(hash);
        }
        filter
    }
}

/// Parameters and fill, in one line.
impl<H: FilterHash, L: LineStore> fmt::Display for BloomFilter<H, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fill = self.fill();
        write!(
            f,
            "Bloom filter for {} keys, with about {:.0}: {} bits, k = {}, {:.2} % set, expected false positives {:.4} %, {} \
             layout, {} with seed {}",
            self.capacity(),
            self.size.layout.estimated_keys(&fill),
            self.bits(),
            self.k(),
            fill.ratio() * 100.0,
            self.size.layout.exact_fpr(&fill) * 100.0,
            self.layout(),
            self.hasher.name(),
            self.hasher.seed()
        )
    }
}

impl<H: FilterHash, L: LineStore> fmt::Debug for BloomFilter<H, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BloomFilter")
            .field("size", &self.size)
            .field("hash", &self.hasher.name())
            .field("seed", &self.hasher.seed())
            .finish_non_exhaustive()
    }
}
