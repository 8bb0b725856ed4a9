//! Checks of the filter decoders, called by the module `offline::fuzz`.

use xxhash_rust::xxh3::xxh3_64;

use super::header::{self, HEADER_LEN};
use super::{BlockRange, OrderedFilter, RangeFilter};
use super::{BloomFilter, BloomFilterRef, Filter, FilterHash, FuseFilter, KeyHash, KeyHasher, ScalableBloomFilter};
use tamis_base::error::{Error, Result};
use tamis_base::format::checksum::crc;
use tamis_base::format::coding::{Decoder, set_u32, set_u64};

/// Seed of the hashes that filters are asked for.
pub const SEED: u64 = 3;

/// Recomputes the hash of what follows a header, and the header's checksum. Both have the same
/// offsets in a filter block and in a scalable filter.
pub fn seal(block: &mut [u8]) {
    if block.len() >= HEADER_LEN {
        let hash = xxh3_64(&block[HEADER_LEN..]);
        set_u64(block, 48, hash);
        let checksum = crc(&block[..60]);
        set_u32(block, 60, checksum);
    }
}

/// Recomputes the rate in the header of a stand-alone filter from its bits.
fn seal_rate(block: &mut [u8]) {
    seal(block);
    if let Ok((header, lines)) = header::decode(block) {
        let rate = header::rate_of(&header, lines);
        set_u32(block, 56, rate);
        seal(block);
    }
}

/// Lengths of the parts of a scalable filter, up to the first that is cut off.
fn part_lens(mut blocks: &[u8]) -> Vec<usize> {
    let mut lens = Vec::new();
    while let Some(header) = blocks.first_chunk::<HEADER_LEN>() {
        let lines = Decoder::new(&header[40..]).u64().unwrap_or_default();
        let len = lines.checked_mul(64).and_then(|len| usize::try_from(len.checked_add(64)?).ok());
        match len.and_then(|len| Some((len, blocks.get(len..)?))) {
            Some((len, rest)) => {
                lens.push(len);
                blocks = rest;
            }
            None => break,
        }
    }
    lens
}

fn hashes() -> impl Iterator<Item = KeyHash> {
    let random = (0..64u64).map(|i| KeyHash::new(SEED, &i.to_be_bytes()));
    random.chain([0, 1, u64::MAX, 1 << 63].map(|value| KeyHash::from_value(SEED, value)))
}

/// Checks a table's filter block. Returns whether it is usable.
pub fn filter_block(sealed: bool, data: &[u8]) -> bool {
    let mut block = data.to_vec();
    if sealed {
        seal(&mut block);
    }
    let filter = Filter::open(&block, SEED);
    assert_eq!(filter.info().is_none(), filter.degraded().is_some());
    let answers: Vec<bool> = hashes().map(|hash| filter.may_contain(hash)).collect();
    assert!(filter.memory() <= size_of::<Filter>() + block.len());
    let Ok((header, lines)) = header::decode(&block) else {
        assert!(answers.iter().all(|&maybe| maybe), "a block that does not decode means maybe");
        return false;
    };
    let again = header::encode(&header, lines);
    let (decoded, same) = header::decode(&again).expect("an encoded block decodes");
    assert_eq!((decoded, same), (header, lines));
    let again = Filter::open(&again, SEED);
    assert_eq!(again.degraded(), filter.degraded());
    assert!(hashes().map(|hash| again.may_contain(hash)).eq(answers));
    filter.degraded().is_none()
}

/// The hash of a program, which the header of a filter names: that of the crate under another name.
#[derive(Clone)]
pub struct NamedHash(KeyHasher);

impl NamedHash {
    #[expect(clippy::new_without_default, reason = "for fuzz targets")]
    pub fn new() -> NamedHash {
        NamedHash(BloomFilter::builder().seed(5).hasher().expect("a seed of XXH3"))
    }
}

impl FilterHash for NamedHash {
    fn name(&self) -> &'static str {
        "of the fuzz targets"
    }

    fn seed(&self) -> u64 {
        self.0.seed()
    }

    fn hash64(&self, key: &[u8]) -> u64 {
        self.0.hash64(key)
    }
}

/// The filter in `bytes`: with the hash of the crate that it names, or with [`NamedHash`].
fn either<T, U>(
    bytes: &[u8],
    of_crate: impl Fn(&[u8]) -> Result<T>,
    named: impl Fn(&[u8], NamedHash) -> Result<U>,
) -> Option<std::result::Result<T, U>> {
    match of_crate(bytes) {
        Ok(filter) => Some(Ok(filter)),
        Err(Error::OtherHash { .. }) => named(bytes, NamedHash::new()).ok().map(Err),
        Err(Error::Filter { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Checks a stand-alone filter. Returns whether it decodes.
pub fn bloom_filter(sealed: bool, data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if sealed {
        seal_rate(&mut bytes);
    }
    let streamed = BloomFilter::read_from(&bytes[..]);
    let decoded = either(&bytes, BloomFilter::from_bytes, BloomFilter::from_bytes_with);
    match &decoded {
        Some(Ok(filter)) => {
            let view = BloomFilterRef::new(&bytes).expect("a view of what decodes");
            assert_eq!(view.to_bytes(), bytes);
            assert_eq!(&streamed.expect("read from a stream too"), filter);
            check_bloom(filter, &bytes);
        }
        Some(Err(filter)) => check_bloom(filter, &bytes),
        None => assert!(BloomFilterRef::new(&bytes).is_err()),
    }
    decoded.is_some()
}

fn check_bloom<H: FilterHash + Clone>(filter: &BloomFilter<H>, bytes: &[u8]) {
    assert_eq!(filter.to_bytes(), bytes, "one set has one encoding");
    assert_eq!(filter.encoded_len(), bytes.len() as u64);
    let keys: Vec<[u8; 8]> = (0..32u64).map(u64::to_be_bytes).collect();
    let absent: Vec<[u8; 8]> = keys.iter().filter(|key| !filter.contains(key)).copied().collect();
    let maybes = filter.contains_many(&keys).into_iter().filter(|&maybe| maybe).count();
    assert_eq!(maybes + absent.len(), keys.len());
    let (mut more, mut reverse, shared) = (filter.clone(), filter.clone(), filter.clone().into_shared());
    absent.iter().for_each(|key| _ = more.insert(key));
    absent.iter().rev().for_each(|key| _ = reverse.insert(key) == shared.insert(key));
    assert!(absent.iter().all(|key| more.contains(key) && !more.insert(key)));
    assert_eq!(more.to_bytes(), reverse.to_bytes());
    assert_eq!(more.to_bytes(), shared.into_filter().to_bytes());
    assert_eq!(more.union(filter).expect("compatible").to_bytes(), more.to_bytes());
    assert_eq!(more.intersection(filter).expect("compatible").to_bytes(), filter.to_bytes());
    assert!(filter.estimated_union(&more).expect("compatible") >= filter.estimated_keys());
    assert!(BloomFilter::from_bytes_with(&more.to_bytes(), filter.hasher().clone()).expect("sound") == more);
    let rates = [filter.fill_ratio(), filter.expected_fpr(), more.expected_fpr(), filter.size().rate(100)];
    assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)) && filter.estimated_keys() >= 0.0);
    assert!(filter.capacity() > 0 && !filter.to_string().is_empty());
}

/// Checks a stand-alone binary fuse. Returns whether it decodes.
pub fn fuse_filter(sealed: bool, data: &[u8]) -> bool {
    fn check<H: FilterHash>(filter: &FuseFilter<H>, bytes: &[u8]) {
        assert_eq!(filter.to_bytes(), bytes);
        assert_eq!(filter.encoded_len(), bytes.len() as u64);
        let keys: Vec<[u8; 8]> = (0..32u64).map(u64::to_be_bytes).collect();
        let one_by_one: Vec<bool> = keys.iter().map(|key| filter.contains(key)).collect();
        assert_eq!(filter.contains_many(&keys), one_by_one);
        assert!((0.0..=0.0625).contains(&filter.expected_fpr()) && !filter.to_string().is_empty());
    }
    let mut bytes = data.to_vec();
    if sealed {
        seal_rate(&mut bytes);
    }
    let streamed = FuseFilter::read_from(&bytes[..]);
    let decoded = either(&bytes, FuseFilter::from_bytes, FuseFilter::from_bytes_with);
    match &decoded {
        Some(Ok(filter)) => {
            assert_eq!(&streamed.expect("read from a stream too"), filter);
            check(filter, &bytes);
        }
        Some(Err(filter)) => check(filter, &bytes),
        None => {}
    }
    decoded.is_some()
}

/// Checks a scalable filter. Returns whether it decodes.
pub fn scalable_filter(sealed: bool, data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if sealed && bytes.len() >= HEADER_LEN {
        let mut start = HEADER_LEN;
        for len in part_lens(&bytes[HEADER_LEN..]) {
            seal_rate(&mut bytes[start..start + len]);
            start += len;
        }
        let len = bytes.len() as u64;
        set_u64(&mut bytes, 40, len);
        seal(&mut bytes);
    }
    let streamed = ScalableBloomFilter::read_from(&bytes[..]);
    let Ok(filter) = ScalableBloomFilter::from_bytes(&bytes) else { return false };
    assert_eq!(filter.to_bytes(), bytes, "one filter has one encoding");
    assert_eq!(streamed.expect("read from a stream too"), filter);
    let mut more = filter.clone();
    let keys = || (0..300u32).map(u32::to_be_bytes);
    more.extend(keys());
    assert!(keys().all(|key| more.contains(key)));
    let again = ScalableBloomFilter::from_bytes(&more.to_bytes()).expect("sound");
    assert_eq!(again.to_bytes(), more.to_bytes());
    assert!((0.0..=1.0).contains(&filter.expected_fpr()) && !filter.to_string().is_empty());
    true
}

/// Number of the table whose range filter is opened.
const TABLE: u64 = 7;

/// Corrects length, hash and checksum of a range filter.
fn seal_range(bytes: &mut [u8]) {
    if bytes.len() >= HEADER_LEN {
        let len = bytes.len() as u64;
        set_u64(bytes, 40, len);
        seal(bytes);
    }
}

/// Makes a range filter that of the table `number`, and corrects length, hash and checksum.
pub fn seal_range_of(bytes: &mut [u8], number: u64) {
    if bytes.len() >= HEADER_LEN {
        set_u64(bytes, 8, number);
        seal_range(bytes);
    }
}

/// Strings that range filters are asked for, in order: among the keys of the seeds, and elsewhere.
const ASKED: [&[u8]; 7] = [b"", b"\0", b"key", b"key0140", b"key0144:5", b"key1600\xff", &[255; 80]];

/// Checks a table's range filter. Returns whether it is usable.
pub fn range_filter(sealed: bool, data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if sealed {
        seal_range(&mut bytes);
    }
    let filter = RangeFilter::open(&bytes, TABLE);
    assert_eq!(filter.info().is_none(), filter.degraded().is_some());
    assert!(filter.memory() <= size_of::<RangeFilter>() + 40 * bytes.len());
    let (blocks, mut bound) = (filter.info().map_or(1, |info| info.blocks), Vec::new());
    for index in (0..4).chain(blocks.saturating_sub(2)..blocks.saturating_add(1)) {
        for low in ASKED {
            for high in ASKED {
                // Separators that are not in order too.
                let block = BlockRange { index: index as usize, low, high };
                for from in ASKED {
                    let is_some = filter.next(block, from, &mut bound);
                    assert!(!is_some || bound.as_slice() >= from, "a bound is at least what is asked for");
                    assert!(is_some || filter.degraded().is_none() || from > high, "a degraded filter denies nothing");
                    for until in ASKED.into_iter().map(Some).chain([None]) {
                        filter.may_hold(block, from, until);
                    }
                }
                for until in ASKED {
                    let is_some = filter.before(block, Some(until), &mut bound);
                    assert!(!is_some || bound.as_slice() <= until, "a bound is at most what is asked for");
                }
                filter.before(block, None, &mut bound);
            }
        }
    }
    filter.degraded().is_none()
}

/// Checks a stand-alone range filter. Returns whether it decodes.
pub fn ordered_filter(sealed: bool, data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if sealed {
        seal_range(&mut bytes);
    }
    let streamed = OrderedFilter::read_from(&bytes[..]);
    let filter = match OrderedFilter::from_bytes(&bytes) {
        Ok(filter) => filter,
        Err(Error::Filter { .. }) => return false,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(streamed.expect("read from a stream too"), filter);
    assert_eq!(filter.to_bytes(), bytes);
    assert!(filter.memory() <= 1024 + 40 * bytes.len());
    for from in ASKED {
        filter.may_contain(from);
        filter.may_contain_range(from..);
        for until in ASKED {
            assert!(from < until || !filter.may_contain_range(from..until), "an empty range holds nothing");
            filter.may_contain_range(from..=until);
        }
        let next = filter.next(from);
        assert!(next.is_none_or(|bound| bound.as_slice() >= from), "a bound is at least what is asked for");
        let before = filter.before(Some(from));
        assert!(before.is_none_or(|bound| bound.as_slice() <= from), "a bound is at most what is asked for");
    }
    filter.before(None);
    assert!(!filter.to_string().is_empty());
    true
}

/// Keys of range filters: some spread evenly, others in clusters.
#[cfg(any(test, feature = "fuzzing"))]
pub fn ordered_keys() -> Vec<String> {
    let even = (0..40u32).map(|i| format!("key{:04}", i * i));
    let close = (0..200u32).map(|i| format!("key{:04}:{:08}", i / 50 * 12, i / 50 * 70_000 + i * i % 997));
    let mut keys: Vec<String> = even.chain(close).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The range filter of a table with these keys, a few in each block.
#[cfg(any(test, feature = "fuzzing"))]
pub fn range_block(per_block: usize) -> Vec<u8> {
    let mut builder = crate::RangeBuilder::new(12.0, TABLE);
    for block in ordered_keys().chunks(per_block) {
        block.iter().for_each(|key| builder.add(key.as_bytes()));
        builder.end_block(block[block.len() - 1].as_bytes());
    }
    builder.finish_regardless().expect("there are keys").bytes
}

/// A filter block of `keys` keys.
#[cfg(any(test, feature = "fuzzing"))]
pub fn block_of(policy: crate::FilterPolicy, keys: u64) -> Vec<u8> {
    let mut builder = super::FilterBuilder::new(policy, SEED);
    (0..keys).for_each(|key| builder.add(KeyHash::new(SEED, &key.to_be_bytes())));
    builder.finish().expect("a policy that is not none").bytes
}

/// A binary fuse of few keys, for which a table would get a Bloom filter.
#[cfg(any(test, feature = "fuzzing"))]
pub fn small_fuse(fingerprint_bits: u8) -> Vec<u8> {
    let values: Vec<u64> = (0..60u64).map(|key| KeyHash::new(SEED, &key.to_be_bytes()).value()).collect();
    let (shape, lines) = super::fuse::build(fingerprint_bits, &values).expect("places for all keys");
    let (content, hash) = (header::FilterContent::Fuse(shape), "xxh3");
    let millibits = 1000 * u32::from(fingerprint_bits);
    let header = header::FilterHeader { content, hash, seed: SEED, keys: 60, millibits, prefixes: None };
    header::encode(&header, &lines)
}
