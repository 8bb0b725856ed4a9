//! [`OrderedFilter`]: a range filter without a database.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use super::file::{Refused, read_methods, write_methods};
use crate::header::HEADER_LEN;
use crate::range::bounds::KeyBounds;
use crate::range::builder::RangeBuilder;
use crate::range::codes::{BlockRange, Codes};
use crate::range::header::{self, Kind};
use crate::range::info::RangeInfo;
use crate::range::separators::{Between, Separators, SeparatorsBuilder};
use tamis_base::error::{Error, Result};
use tamis_base::format::Malformed;
use tamis_base::format::coding::{Decoder, put_bytes};
use tamis_base::format::key::common_prefix_len;
use tamis_base::memory::pool::TableArray;

/// Keys of a block: the builder cuts where two neighbours share the fewest bytes.
const BLOCK_KEYS: std::ops::RangeInclusive<usize> = 32..=64;
/// Bits per key that a filter may have.
const BITS_PER_KEY: std::ops::RangeInclusive<f64> = 3.0..=18.0;
/// A longer last key is replaced by a string that exceeds all that begin as it does.
const MAX_LAST: usize = 64;

/// A set of keys that answers for any range of keys "certainly empty" or "maybe", and bounds the
/// next key. Keys are strings of bytes of any length, in the order of their bytes.
///
/// ```
/// use tamis_filter::OrderedFilter;
///
/// let times = (0..10_000u64).map(|i| (i * i * 1000).to_be_bytes());
/// let filter = OrderedFilter::from_keys(times, 12.0)?;
/// let at = |time: u64| time.to_be_bytes();
/// assert!(filter.may_contain(at(25_000)));
/// assert!(filter.may_contain_range(at(24_000)..at(26_000)));
/// assert!(!filter.may_contain_range(at(50_001_000)..=at(50_020_000))); // certain: no key there
///
/// // No key from 50,001,000 on is less than the bound: the next one is 50,176,000.
/// let bound = filter.next(at(50_001_000)).unwrap();
/// assert!(bound.as_slice() > &at(50_100_000)[..] && bound.as_slice() <= &at(50_176_000)[..]);
/// assert_eq!(OrderedFilter::from_bytes(&filter.to_bytes())?, filter);
/// println!("{filter}");                                   // size, and the rates that it predicts
/// # Ok::<(), tamis_filter::Error>(())
/// ```
///
/// # How it works
///
/// The keys stand in blocks of 32 to 64. Between two blocks is a separator: the shortest string
/// that tells them apart, without what it shares with the one before it. A key becomes a number by
/// an arithmetic code over the bytes that occur at each position (Witten, Neal and Cleary, 1987),
/// which keeps order. The number is scaled to one of n · c cells of a block of n keys:
///
/// - in order, if the keys are spread evenly within the block;
/// - otherwise by a hash that keeps neighbours together, the one of Grafite (Costa, Ferragina and
///   Vinciguerra, SIGMOD 2024), in units that fit the distances within clusters.
///
/// The cells of a block are stored sorted, by the code of Elias and Fano (1974, 1971): for
/// c = 2^r · (1 + f), r + 2 + f bits per key.
///
/// # Size and rate
///
/// `bits_per_key` is for everything; 3 to 18. Of it, with 12 bits per key:
///
/// | bits per key | random u64 | `user:object:time` |
/// |---|--:|--:|
/// | separators | 0.3 | 0.7 |
/// | places of the blocks' codes, alphabets, rounding | 0.4 | 0.5 |
/// | cells | 11.3 | 10.8 |
///
/// If the first two exceed two bits per key, as those of few keys do, the filter takes more than it
/// should.
///
/// An empty range that is short, beside the distance of keys, is "maybe" with a rate of about 1/c
/// if the keys are spread evenly: 0.15 % at 12 bits, half as much with each bit more. Longer empty
/// ranges have that rate too while blocks are in order; in folded blocks it grows with the length.
/// [`info`](OrderedFilter::info) has the rates that the builder predicts from the keys: of ranges
/// anywhere, and of ranges that begin near keys.
///
/// It promises nothing for arbitrary keys. A filter with rate ε for any ranges of L integers takes
/// log2(L/ε) − O(1) bits per key (Goswami, Grønlund, Larsen and Pagh, SODA 2015), and Grafite
/// reaches that bound up to two bits. This one gains what the regularity of keys allows. Free text,
/// as URLs, has too little: rates of 15 % and more, near keys 90 %. Tries (SuRF, SIGMOD 2018) and
/// Bloom filters of prefixes (Rosetta, SIGMOD 2020) are other designs. docs/RANGE_CODES.md in the
/// repository of tamis has measurements.
///
/// # Bytes
///
/// Keys in any order and any repetition make equal bytes on every platform. No key can be added
/// later. A clone shares the memory.
#[derive(Clone)]
pub struct OrderedFilter(Arc<Inner>);

struct Inner {
    bytes: TableArray<u8>,
    separators: Separators,
    codes: Codes,
    info: RangeInfo,
}

/// Builds an [`OrderedFilter`] of keys that come in order. Beside the filter's own memory, it takes
/// that of 32,768 keys, or of fewer that have 2 MiB.
///
/// ```
/// use tamis_filter::OrderedBuilder;
///
/// let mut builder = OrderedBuilder::new(12.0)?;
/// for name in ["Earth", "Mars", "Mercury", "Venus"] {
///     builder.add(name)?;
/// }
/// let planets = builder.finish()?;
/// assert!(planets.may_contain_range("Ma".."Mb"));
/// assert_eq!(planets.next("Vesta"), None);
/// # Ok::<(), tamis_filter::Error>(())
/// ```
pub struct OrderedBuilder {
    codes: RangeBuilder,
    separators: SeparatorsBuilder,
    /// Keys that are in no block yet, concatenated.
    keys: Vec<u8>,
    /// For each, its end, and how many bytes it has in common with the key before it.
    ends: Vec<(usize, usize)>,
}

impl OrderedBuilder {
    /// A builder of a filter that takes `bits_per_key`, everything included: 3 to 18.
    pub fn new(bits_per_key: f64) -> Result<OrderedBuilder> {
        if !BITS_PER_KEY.contains(&bits_per_key) {
            return Err(Error::invalid(format_args!("a range filter has 3 to 18 bits per key, not {bits_per_key}")));
        }
        #[expect(clippy::cast_possible_truncation, reason = "counted in thousandths")]
        let codes = RangeBuilder::new(bits_per_key as f32, 0);
        Ok(OrderedBuilder { codes, separators: SeparatorsBuilder::default(), keys: Vec::new(), ends: Vec::new() })
    }

    /// Adds a key. It is not less than the key before; one that equals it counts once. A lesser one
    /// is an [`Error::InvalidArgument`], and is not added.
    pub fn add(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        let mut shared = 0;
        if let Some(last) = self.ends.len().checked_sub(1) {
            let before = self.key(last);
            shared = common_prefix_len(before, key);
            if key.get(shared) <= before.get(shared) {
                return if shared == before.len() {
                    Ok(())
                } else {
                    Err(Error::invalid("a key of a range filter is less than the key before it"))
                };
            }
        }
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len(), shared));
        if self.ends.len() > *BLOCK_KEYS.end() { self.cut() } else { Ok(()) }
    }

    fn key(&self, i: usize) -> &[u8] {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before].0);
        &self.keys[start..self.ends[i].0]
    }

    /// Ends a block before the key that shares the fewest bytes with its predecessor.
    fn cut(&mut self) -> Result<()> {
        let at = BLOCK_KEYS.rev().min_by_key(|&i| self.ends[i].1).unwrap_or(*BLOCK_KEYS.end());
        let (last, next, len) = (self.key(at - 1), self.key(at), self.ends[at].1 + 1);
        let separator = if len < next.len() { &next[..len] } else { last }.to_vec();
        self.end_block(at, &separator)
    }

    /// Ends a block after `count` keys.
    fn end_block(&mut self, count: usize, separator: &[u8]) -> Result<()> {
        for i in 0..count {
            let start = i.checked_sub(1).map_or(0, |before| self.ends[before].0);
            self.codes.add(&self.keys[start..self.ends[i].0]);
        }
        let stored = self.separators.add(separator);
        let stored = stored.ok_or_else(|| Error::invalid("the separators of a range filter exceed 4 GiB"))?;
        self.codes.end_stored_block(separator, stored);
        let end = self.ends[count - 1].0;
        self.keys.drain(..end);
        self.ends.drain(..count);
        self.ends.iter_mut().for_each(|(at, _)| *at -= end);
        Ok(())
    }

    /// Bytes of memory that the builder takes, with those of the filter that it will make.
    pub fn memory(&self) -> usize {
        let open = self.keys.capacity() + self.ends.capacity() * size_of::<(usize, usize)>();
        size_of::<OrderedBuilder>() + self.codes.memory() + 2 * self.separators.memory() + open
    }

    /// The filter. Its [rates](OrderedFilter::info) say whether it is useful.
    pub fn finish(mut self) -> Result<OrderedFilter> {
        if let Some(last) = self.ends.len().checked_sub(1) {
            let separator = above(self.key(last));
            self.end_block(last + 1, &separator)?;
        }
        let (header, codes, _) = self.codes.finish_codes(Kind::Alone).map_err(Error::invalid)?;
        let (mut separators, mut payload) = (Vec::new(), Vec::new());
        self.separators.finish(&mut separators);
        put_bytes(&mut payload, &separators);
        payload.extend(codes);
        OrderedFilter::decode(&header::encode(&header, &payload)).map_err(|refused| refused.into_error(None))
    }
}

/// A string that is not less than `key`, and not long if there is a short one.
fn above(key: &[u8]) -> Vec<u8> {
    let Some(head) = key.get(..MAX_LAST).filter(|_| key.len() > MAX_LAST) else { return key.to_vec() };
    match head.iter().rposition(|&byte| byte < 255) {
        Some(at) => [&head[..at], &[head[at] + 1]].concat(),
        None => key.to_vec(),
    }
}

impl OrderedFilter {
    /// Whether `bytes` begin as the file of such a filter does.
    pub fn is_prefix(bytes: &[u8]) -> bool {
        bytes.starts_with(&header::MAGIC) && bytes.get(5) == Some(&(Kind::Alone as u8))
    }

    /// A filter of `keys`, in any order, some of which may be equal: it takes `bits_per_key`,
    /// everything included, 3 to 18. [`OrderedBuilder`] takes sorted keys without collecting them.
    pub fn from_keys<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>, bits_per_key: f64) -> Result<OrderedFilter> {
        let mut builder = OrderedBuilder::new(bits_per_key)?;
        let mut keys: Vec<K> = keys.into_iter().collect();
        keys.sort_unstable_by(|a, b| a.as_ref().cmp(b.as_ref()));
        keys.iter().try_for_each(|key| builder.add(key))?;
        builder.finish()
    }

    /// Whether the range may hold a key. "No" is certain. A range that ends before it begins holds
    /// none.
    pub fn may_contain_range(&self, range: impl KeyBounds) -> bool {
        let (from, until) = range.key_bounds();
        let after = |key: &[u8]| [key, &[0]].concat();
        let (from_after, until_after);
        let from = match from {
            Bound::Included(key) => key,
            Bound::Excluded(key) => {
                from_after = after(key);
                &from_after
            }
            Bound::Unbounded => &[],
        };
        let until = match until {
            Bound::Included(key) => {
                until_after = after(key);
                Some(&until_after[..])
            }
            Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        self.may_hold(from, until)
    }

    /// Whether the key may be in the set. "No" is certain.
    pub fn may_contain(&self, key: impl AsRef<[u8]>) -> bool {
        let key = key.as_ref();
        self.may_hold(key, Some(&[key, &[0]].concat()))
    }

    fn may_hold(&self, from: &[u8], until: Option<&[u8]>) -> bool {
        if until.is_some_and(|until| until <= from) {
            return false;
        }
        let Inner { separators, codes, .. } = &*self.0;
        let Some(mut at) = separators.find(from) else { return false };
        loop {
            if codes.may_hold(block(&at), from, until) {
                return true;
            }
            // The next block's keys exceed this one's separator.
            if until.is_some_and(|until| until <= at.high.as_slice()) || !separators.advance(&mut at) {
                return false;
            }
        }
    }

    /// A lower bound of the first key that is at least `from`: the bound is at most that key, and
    /// at least `from`. `None` if there is certainly no such key.
    pub fn next(&self, from: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let from = from.as_ref();
        let Inner { separators, codes, .. } = &*self.0;
        let mut at = separators.find(from)?;
        let mut bound = Vec::new();
        loop {
            if codes.next(block(&at), from, &mut bound) {
                return Some(bound);
            }
            if !separators.advance(&mut at) {
                return None;
            }
        }
    }

    /// An upper bound of the last key that is less than `until`, or of the last key of all: the
    /// bound exceeds that key, and is at most `until`. `None` if there is certainly no such key.
    pub fn before(&self, until: Option<&[u8]>) -> Option<Vec<u8>> {
        let Inner { separators, codes, .. } = &*self.0;
        let mut at = until.and_then(|until| separators.find(until)).or_else(|| {
            let mut last = Between::default();
            separators.load(&mut last, separators.len().checked_sub(1)?).then_some(last)
        })?;
        let mut bound = Vec::new();
        loop {
            if codes.before(block(&at), until, &mut bound) {
                return Some(bound);
            }
            let before = at.index.checked_sub(1)?;
            separators.load(&mut at, before);
        }
    }

    /// The number of distinct keys.
    pub fn keys(&self) -> u64 {
        self.0.info.keys
    }

    /// The filter's parameters, its size, and the rates that its builder predicted.
    pub fn info(&self) -> &RangeInfo {
        &self.0.info
    }

    /// Bytes of memory that the filter takes.
    pub fn memory(&self) -> usize {
        size_of::<Inner>() + self.0.codes.memory()
    }

    /// The filter as bytes: a header of 64 bytes that describes and verifies itself and what
    /// follows, the separators, and the codes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.bytes.to_vec()
    }

    /// How many bytes [`to_bytes`](OrderedFilter::to_bytes) returns.
    pub fn encoded_len(&self) -> u64 {
        self.0.bytes.len() as u64
    }

    write_methods!();
    read_methods!(header::len_of, OrderedFilter::decode);

    fn decode(bytes: &[u8]) -> Result<OrderedFilter, Refused> {
        let header = header::decode(bytes, Kind::Alone)?;
        if header.number != 0 || header.extractor != 0 {
            return Err(Malformed("a range filter that is alone has the number of a table, or an extractor").into());
        }
        let bytes = TableArray::new(None, bytes.iter().copied());
        let mut from = Decoder::new(bytes.get(HEADER_LEN..).unwrap_or_default());
        let len = from.bytes()?.len();
        let start = bytes.len() - from.remaining();
        let separators = Separators::decode(bytes.clone(), start - len..start, header.blocks)?;
        let codes = Codes::decode(bytes.clone(), start, header.blocks)?;
        if !codes.are_whole(header.keys) {
            return Err(Malformed("the codes of a range filter are not those of its keys").into());
        }
        let info = header.info(bytes.len(), codes.folded());
        Ok(OrderedFilter(Arc::new(Inner { bytes, separators, codes, info })))
    }
}

fn block(at: &Between) -> BlockRange<'_> {
    BlockRange { index: at.index, low: &at.low, high: &at.high }
}

/// Equal bytes.
impl PartialEq for OrderedFilter {
    fn eq(&self, other: &OrderedFilter) -> bool {
        *self.0.bytes == *other.0.bytes
    }
}

impl Eq for OrderedFilter {}

/// Parameters, size and predicted rates, in one line.
impl fmt::Display for OrderedFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info();
        let percent = |rate: u32| f64::from(rate) / 1e7;
        write!(
            f,
            "range filter of {} keys: {} bytes, {:.2} bits per key, {} of {} blocks folded, predicted false positives {:.4} % \
             for short ranges, {:.4} % near keys",
            info.keys,
            info.bytes,
            info.bits_per_key(),
            info.folded,
            info.blocks,
            percent(info.rates.fresh),
            percent(info.rates.near)
        )
    }
}

impl fmt::Debug for OrderedFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OrderedFilter").field(self.info()).finish()
    }
}

impl fmt::Debug for OrderedBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedBuilder").field("keys", &self.codes.key_count()).finish_non_exhaustive()
    }
}
