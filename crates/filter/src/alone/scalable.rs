//! [`ScalableBloomFilter`]: a series of Bloom filters of growing size (Almeida, Baquero, Preguiça
//! and Hutchison, "Scalable Bloom Filters", 2007).
//!
//! Filter i is made for `c · g^i` keys at the rate `p · (1 − r) · r^i`. Here c is the first
//! capacity, g the growth, p the requested rate and r the tightening. The rates of any number of
//! filters add up to no more than p, which bounds the rate of asking all of them. A key is added to
//! the last filter, unless one of them already says "maybe" to it. All filters share hash, seed and
//! layout, so that a look-up hashes once.
//!
//! Encoded, it is this header and then the filters, first to last, each as
//! [`BloomFilter::to_bytes`] makes it.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `SBF1` |
//! | 4 | 1 | format version, 1 |
//! | 5 | 1 | growth, 2 or 4 |
//! | 6 | 2 | zero |
//! | 8 | 4 | number of filters, 1 to 64 |
//! | 12 | 4 | zero |
//! | 16 | 8 | keys for which the first filter was made, at least 1 |
//! | 24 | 8 | requested rate, IEEE 754, between 0 and 1 |
//! | 32 | 8 | tightening, IEEE 754, from 0.1 to below 1 |
//! | 40 | 8 | total length, header included |
//! | 48 | 8 | XXH3 with 64 bits, seed 0, of what follows the header |
//! | 56 | 4 | zero |
//! | 60 | 4 | CRC-32 of bytes 0..60, not bound to file and offset |

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use super::bloom::{BloomBuilder, BloomFilter};
use super::file::{Refused, read_methods, write_methods};
use crate::batch;
use crate::hasher::{HashFunction, HashedKey, HashedKeys, KeyHasher};
use crate::header::{self, HEADER_LEN};
use crate::line::LINE_BITS;
use crate::shape::{BloomLayout, check_rate};
use tamis_base::error::{Error, Result};
use tamis_base::format::checksum::crc;
use tamis_base::format::coding::{Decoder, low_byte, set_u32, set_u64};
use tamis_base::format::{Decoded, Malformed};

const VERSION: u8 = 1;
/// Most filters in a series. Part of the format; no machine can hold as many.
const MAX_FILTERS: u32 = 64;

/// A set of keys that answers "certainly not in the set" or "maybe", and keeps its rate while it
/// grows with its keys.
///
/// ```
/// use tamis_filter::ScalableBloomFilter;
///
/// let mut seen = ScalableBloomFilter::with_rate(1000, 0.01)?;
/// seen.extend((0..20_000u32).map(u32::to_be_bytes));
/// assert!((0..20_000u32).all(|key| seen.contains(key.to_be_bytes())));
/// assert!(seen.expected_fpr() < 0.01);
/// assert_eq!(seen.filters(), 5);
/// # Ok::<(), tamis_filter::Error>(())
/// ```
///
/// It takes more bits than a [`BloomFilter`] of the right size, and a look-up asks each of its
/// filters: use it when the number of keys is unknown. Two are equal if they answer alike and grow
/// alike.
///
/// Its bytes depend on the order of insertions, and two of them cannot be united: see [the
/// module](crate).
#[derive(Clone)]
pub struct ScalableBloomFilter {
    builder: ScalableBuilder,
    first_capacity: u64,
    rate: f64,
    hasher: KeyHasher,
    /// All filters but the last, oldest first.
    full: Vec<BloomFilter>,
    /// The filter that takes new keys.
    last: BloomFilter,
    /// No larger filter can be made.
    outgrown: bool,
}

/// A builder of [`ScalableBloomFilter`]s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalableBuilder {
    filters: BloomBuilder,
    growth: u32,
    tightening: f64,
}

fn is_tightening(ratio: f64) -> bool {
    (0.1..1.0).contains(&ratio)
}

impl Default for ScalableBuilder {
    fn default() -> ScalableBuilder {
        ScalableBuilder { filters: BloomBuilder::default(), growth: 2, tightening: 0.85 }
    }
}

impl ScalableBuilder {
    /// The seed of the hash. Default: 0.
    pub fn seed(mut self, seed: u64) -> ScalableBuilder {
        self.filters = self.filters.seed(seed);
        self
    }

    /// The hash function. Default: XXH3.
    pub fn hash(mut self, function: HashFunction) -> ScalableBuilder {
        self.filters = self.filters.hash(function);
        self
    }

    /// Where a key's bits are. Default: [`BloomLayout::Split`].
    pub fn layout(mut self, layout: BloomLayout) -> ScalableBuilder {
        self.filters = self.filters.layout(layout);
        self
    }

    /// Growth of the capacity from one filter to the next: 2 or 4. Default: 2. With 4, look-ups ask
    /// half as many filters, but more of the last one may lie unused.
    pub fn growth(mut self, growth: u32) -> ScalableBuilder {
        self.growth = growth;
        self
    }

    /// Ratio of a filter's rate to that of the one before, from 0.1 to below 1. Default: 0.85; the
    /// paper recommends 0.8 to 0.9. A lower ratio makes the first filter smaller and later ones
    /// larger.
    pub fn tightening(mut self, ratio: f64) -> ScalableBuilder {
        self.tightening = ratio;
        self
    }

    /// A filter that starts with room for `keys` keys. However many it comes to hold, it says
    /// "maybe" to at most a share of `rate` of the keys that are not in it.
    pub fn with_rate(&self, keys: u64, rate: f64) -> Result<ScalableBloomFilter> {
        check_rate(rate)?;
        if !matches!(self.growth, 2 | 4) {
            return Err(Error::invalid(format_args!("a filter's growth is 2 or 4, not {}", self.growth)));
        }
        if !is_tightening(self.tightening) {
            let ratio = self.tightening;
            return Err(Error::invalid(format_args!("the tightening must be from 0.1 to below 1, not {ratio}")));
        }
        Ok(ScalableBloomFilter {
            builder: *self,
            first_capacity: keys,
            rate,
            hasher: self.filters.hasher()?,
            full: Vec::new(),
            last: self.filter(keys, rate, 0)?,
            outgrown: false,
        })
    }

    /// The capacity and the rate of filter `i`.
    fn stage(&self, first_capacity: u64, rate: f64, i: u32) -> (u64, f64) {
        let keys = first_capacity.saturating_mul(u64::from(self.growth).saturating_pow(i));
        (keys, rate * (1.0 - self.tightening) * self.tightening.powi(i.cast_signed()))
    }

    fn filter(&self, first_capacity: u64, rate: f64, i: u32) -> Result<BloomFilter> {
        let (keys, rate) = self.stage(first_capacity, rate, i);
        self.filters.with_rate(keys, rate)
    }
}

impl ScalableBloomFilter {
    /// The first bytes of every encoded filter and of its file.
    pub const MAGIC: [u8; 4] = *b"SBF1";

    /// A filter that starts with room for `keys` keys. However many it comes to hold, it says
    /// "maybe" to at most a share of `rate` of the keys that are not in it. XXH3, seed 0, split
    /// layout, growth 2; see [`builder`](ScalableBloomFilter::builder) for others.
    pub fn with_rate(keys: u64, rate: f64) -> Result<ScalableBloomFilter> {
        ScalableBloomFilter::builder().with_rate(keys, rate)
    }

    /// Chooses seed, hash, layout, growth and tightening.
    pub fn builder() -> ScalableBuilder {
        ScalableBuilder::default()
    }

    /// Adds a key. Returns whether any bit changed: `false` means that the key was there already,
    /// or that the filter already said "maybe" to it by chance.
    pub fn insert(&mut self, key: impl AsRef<[u8]>) -> bool {
        self.insert_value(self.hasher.value(key.as_ref()))
    }

    /// Whether the key may be in the set. "No" is certain.
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        self.contains_value(self.hasher.value(key.as_ref()))
    }

    /// For each key, whether it may be in the set: the answers of
    /// [`contains`](ScalableBloomFilter::contains), in less time.
    pub fn contains_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<bool> {
        batch::answer_all(
            keys,
            |key| self.hasher.value(key),
            |hashes, answers| self.newest_first().for_each(|filter| filter.ask(hashes, answers)),
        )
    }

    /// Adds a key that was hashed before, like [`insert`](ScalableBloomFilter::insert). Fails, and
    /// changes nothing, if another function or seed than that of the filter's
    /// [`hasher`](ScalableBloomFilter::hasher) made the hash.
    pub fn insert_hashed(&mut self, key: HashedKey) -> Result<bool> {
        Ok(self.insert_value(self.hasher.expect_value_of(key)?))
    }

    /// Adds many keys that were hashed before, in their order, and returns how many changed a bit.
    /// Fails, and changes nothing, if another function or seed than the filter's made the hashes.
    pub fn insert_all(&mut self, keys: &HashedKeys) -> Result<u64> {
        let values = keys.values_for(&self.hasher)?;
        Ok(values.iter().map(|&value| u64::from(self.insert_value(value))).sum())
    }

    /// Whether a key that was hashed before may be in the set, like
    /// [`contains`](ScalableBloomFilter::contains). "Maybe" if another function or seed than the
    /// filter's made the hash.
    pub fn contains_hashed(&self, key: HashedKey) -> bool {
        self.hasher.value_of(key).is_none_or(|value| self.contains_value(value))
    }

    fn insert_value(&mut self, hash: u64) -> bool {
        if self.contains_value(hash) {
            return false;
        }
        if self.last.is_full() {
            self.grow();
        }
        self.last.insert_value(hash)
    }

    /// Starts the next filter, if one can be made.
    fn grow(&mut self) {
        if self.outgrown {
            return;
        }
        let stage = u32::try_from(self.full.len() + 1).unwrap_or(MAX_FILTERS);
        match self.builder.filter(self.first_capacity, self.rate, stage) {
            Ok(next) if stage < MAX_FILTERS => self.full.push(std::mem::replace(&mut self.last, next)),
            _ => self.outgrown = true,
        }
    }

    fn contains_value(&self, hash: u64) -> bool {
        // Largest first: it holds the most keys.
        self.newest_first().any(|filter| filter.contains_value(hash))
    }

    /// The filters, newest and largest first.
    fn newest_first(&self) -> impl Iterator<Item = &BloomFilter> {
        std::iter::once(&self.last).chain(self.full.iter().rev())
    }

    /// The hash function and its seed.
    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// The layout.
    pub fn layout(&self) -> BloomLayout {
        self.last.layout()
    }

    /// The number of keys for which its current filters were made.
    pub fn capacity(&self) -> u64 {
        self.newest_first().map(|filter| filter.capacity()).fold(0, u64::saturating_add)
    }

    /// Whether its filters hold the keys for which they were made and it cannot grow: another
    /// filter would exceed the largest size or the available memory. It takes more keys, but the
    /// rate then exceeds the request.
    pub fn is_full(&self) -> bool {
        self.outgrown && self.last.is_full()
    }

    /// Whether no bit is set.
    pub fn is_empty(&self) -> bool {
        self.newest_first().all(BloomFilter::is_empty)
    }

    /// The number of its filters.
    pub fn filters(&self) -> usize {
        self.full.len() + 1
    }

    /// Its filters, oldest first.
    pub fn parts(&self) -> impl Iterator<Item = &BloomFilter> {
        self.full.iter().chain([&self.last])
    }

    /// The requested rate.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Bits in all filters.
    pub fn bits(&self) -> u64 {
        self.newest_first().map(BloomFilter::bits).sum()
    }

    /// Share of the bits that are set.
    pub fn fill_ratio(&self) -> f64 {
        let set: f64 = self.newest_first().map(|filter| filter.fill_ratio() * filter.bits() as f64).sum();
        set / self.bits() as f64
    }

    /// The exact false-positive rate of all bits: the share of keys not in the set to which one of
    /// the filters says "maybe".
    pub fn expected_fpr(&self) -> f64 {
        1.0 - self.newest_first().map(|filter| 1.0 - filter.expected_fpr()).product::<f64>()
    }

    /// The number of distinct keys, estimated from the bits: the sum of
    /// [`BloomFilter::estimated_keys`] over all filters. It lacks keys to which a filter already
    /// said "maybe" by chance when they were inserted.
    pub fn estimated_keys(&self) -> f64 {
        self.newest_first().map(BloomFilter::estimated_keys).sum()
    }

    /// Removes all keys, and all filters but the first.
    pub fn clear(&mut self) {
        if !self.full.is_empty() {
            self.last = self.full.swap_remove(0);
            self.full.clear();
        }
        self.last.clear();
        self.outgrown = false;
    }

    /// The filter as bytes: a header of 64 bytes that describes and verifies itself and what
    /// follows, then the filters. docs/FORMAT.md describes it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        for filter in self.parts() {
            bytes.extend_from_slice(&filter.to_bytes());
        }
        let (len, hash) = (bytes.len() as u64, xxh3_64(&bytes[HEADER_LEN..]));
        bytes[..4].copy_from_slice(&ScalableBloomFilter::MAGIC);
        bytes[4] = VERSION;
        bytes[5] = low_byte(self.builder.growth.into());
        set_u64(&mut bytes, 8, self.filters() as u64);
        set_u64(&mut bytes, 16, self.first_capacity);
        set_u64(&mut bytes, 24, self.rate.to_bits());
        set_u64(&mut bytes, 32, self.builder.tightening.to_bits());
        set_u64(&mut bytes, 40, len);
        set_u64(&mut bytes, 48, hash);
        let checksum = crc(&bytes[..60]);
        set_u32(&mut bytes, 60, checksum);
        bytes
    }

    /// How many bytes [`to_bytes`](ScalableBloomFilter::to_bytes) returns.
    pub fn encoded_len(&self) -> u64 {
        HEADER_LEN as u64 + self.parts().map(BloomFilter::encoded_len).sum::<u64>()
    }

    write_methods!();
    read_methods!(len_of, ScalableBloomFilter::decode);

    fn decode(bytes: &[u8]) -> Result<ScalableBloomFilter, Refused> {
        let Some((header, blocks)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(Malformed("the scalable filter is shorter than its header").into());
        };
        let mut fields = verified(header)?;
        let (growth, zero) = (fields.u8()?, fields.u16()?);
        let (count, zeros) = (fields.u32()?, fields.u32()?);
        let (first_capacity, rate, tightening) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (len, hash, more_zeros) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let (rate, tightening) = (f64::from_bits(rate), f64::from_bits(tightening));
        if zero != 0 || zeros != 0 || more_zeros != 0 {
            return Err(Malformed("the reserved bytes of the scalable filter are not zero").into());
        }
        if !matches!(growth, 2 | 4) || check_rate(rate).is_err() || !is_tightening(tightening) || first_capacity == 0 {
            return Err(Malformed("the scalable filter's size, rate, growth or tightening is out of range").into());
        }
        if len != bytes.len() as u64 {
            return Err(Malformed("the scalable filter's length does not match its header").into());
        }
        if hash != xxh3_64(blocks) {
            return Err(Malformed("the hash of the scalable filter's parts does not match").into());
        }
        let mut full = decode_filters(blocks, count)?;
        let last = full.pop().ok_or(Malformed("the scalable filter has no filters"))?;
        let alike = |filter: &BloomFilter| filter.hasher() == last.hasher() && filter.layout() == last.layout();
        if !full.iter().all(alike) {
            return Err(Malformed("the parts of the scalable filter differ in hash or layout").into());
        }
        let hasher = last.hasher().clone();
        let filters = BloomBuilder::default().seed(hasher.seed()).hash(hasher.function()).layout(last.layout());
        let builder = ScalableBuilder { filters, growth: growth.into(), tightening };
        // Growth then takes memory in proportion to the keys added, whatever the header says. Sizes
        // may differ slightly, because of a logarithm on another platform.
        let as_stated = |(i, filter): (u32, &BloomFilter)| {
            let (keys, rate) = builder.stage(first_capacity, rate, i);
            let lines = filters.size(keys, rate).map_or(0, |size| size.bits() / LINE_BITS);
            (filter.bits() / LINE_BITS).abs_diff(lines) <= 1 + lines / 64
        };
        if !(0..).zip(full.iter().chain([&last])).all(as_stated) {
            return Err(Malformed("a part of the scalable filter has another size than the header states").into());
        }
        Ok(ScalableBloomFilter { builder, first_capacity, rate, hasher, full, last, outgrown: false })
    }
}

fn decode_filters(mut blocks: &[u8], count: u32) -> Result<Vec<BloomFilter>, Refused> {
    if !(1..=MAX_FILTERS).contains(&count) {
        return Err(Malformed("the scalable filter does not have 1 to 64 filters").into());
    }
    let mut filters = Vec::new();
    for _ in 0..count {
        let cut = Malformed("the scalable filter has fewer filters than its header states");
        let header = blocks.first_chunk().ok_or(cut)?;
        let len = usize::try_from(header::block_len(header)?).map_err(|_| cut)?;
        let (block, rest) = blocks.split_at_checked(len).ok_or(cut)?;
        filters.push(BloomFilter::decode(block)?);
        blocks = rest;
    }
    if blocks.is_empty() {
        Ok(filters)
    } else {
        Err(Malformed("the scalable filter has more filters than its header states").into())
    }
}

/// Checks a header's magic, version and checksum. The decoder it returns is at the next field.
fn verified(header: &[u8; HEADER_LEN]) -> Decoded<Decoder<'_>> {
    let mut fields = Decoder::new(header);
    if fields.take(4)? != ScalableBloomFilter::MAGIC {
        return Err(Malformed("the scalable filter lacks its magic bytes"));
    }
    if fields.u8()? != VERSION {
        return Err(Malformed("the scalable filter is of an unknown version"));
    }
    if Decoder::new(&header[60..]).u32()? != crc(&header[..60]) {
        return Err(Malformed("the checksum of the scalable filter's header does not match"));
    }
    Ok(fields)
}

/// The total length that a header states.
fn len_of(header: &[u8; HEADER_LEN]) -> Decoded<u64> {
    let mut fields = verified(header)?;
    fields.take(35)?;
    fields.u64()
}

impl PartialEq for ScalableBloomFilter {
    fn eq(&self, other: &ScalableBloomFilter) -> bool {
        (self.builder, self.first_capacity, self.rate) == (other.builder, other.first_capacity, other.rate)
            && self.full == other.full
            && self.last == other.last
    }
}

impl<K: AsRef<[u8]>> Extend<K> for ScalableBloomFilter {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        for key in keys {
            self.insert(key);
        }
    }
}

/// Parameters and fill, in one line.
impl fmt::Display for ScalableBloomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "scalable Bloom filter of {} filters for {} keys, with about {:.0}: {} bits, {:.2} % set, expected false positives \
             {:.4} % of at most {:.4} %, {} layout, {} with seed {}",
            self.filters(),
            self.capacity(),
            self.estimated_keys(),
            self.bits(),
            self.fill_ratio() * 100.0,
            self.expected_fpr() * 100.0,
            self.rate * 100.0,
            self.layout(),
            self.hasher.function(),
            self.hasher.seed()
        )
    }
}

impl fmt::Debug for ScalableBloomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalableBloomFilter")
            .field("builder", &self.builder)
            .field("first_capacity", &self.first_capacity)
            .field("rate", &self.rate)
            .field("full", &self.full)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
