//! Binary fuse filters without a store.

use super::alone::{absent, random};
use super::files::refused;
use super::*;
use crate::header::tests::seal;
use crate::{BloomFilter, BloomLayout, BloomSize, FINGERPRINT_BITS, FuseFilter, HashedKeys};
use tamis_base::error::Error;

fn fuse(keys: u64) -> FuseFilter {
    FuseFilter::from_keys((0..keys).map(random), 8).unwrap()
}

#[test]
fn no_key_is_denied_and_the_rate_is_that_of_the_fingerprints() {
    const ASKED: u64 = 100_000;
    for bits in FINGERPRINT_BITS {
        for keys in [0, 1, 2, 3, 10, 100, 5000] {
            let filter = FuseFilter::from_keys((0..keys).map(random), bits).unwrap();
            assert!((0..keys).all(|i| filter.contains(random(i))), "{filter}");
            assert_eq!((filter.keys(), filter.fingerprint_bits()), (keys, bits));
            assert_eq!(filter.expected_fpr(), 0.5f64.powi(bits.into()));
            assert_eq!(filter.bits() / 8, FuseFilter::bytes_for(keys, bits).unwrap());
        }
        let filter = FuseFilter::from_keys((0..5000).map(random), bits).unwrap();
        let (expected, seen) =
            (filter.expected_fpr() * ASKED as f64, absent(ASKED).filter(|key| filter.contains(key)).count() as f64);
        assert!((seen - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{filter}: {seen}, not {expected}");
    }
}

/// The table in the type's docs.
#[test]
fn sizes_are_those_of_the_documentation() {
    for (keys, slots, saved) in [(1000, 1.38, 4), (10_000, 1.25, 13), (100_000, 1.175, 19), (1_000_000, 1.125, 22)] {
        let bytes = FuseFilter::bytes_for(keys, 8).unwrap() as f64;
        assert!((bytes / keys as f64 / slots - 1.0).abs() < 0.06, "{keys} keys: {bytes}");
        let bloom = BloomSize::for_rate(BloomLayout::Split, keys, 1.0 / 256.0).unwrap().bytes() as f64;
        let off = (1.0 - bytes / bloom) * 100.0 - f64::from(saved);
        assert!(off.abs() < 3.0, "{keys} keys: {bytes}, Bloom {bloom}");
    }
}

#[test]
fn a_set_has_one_encoding() {
    let filter = fuse(3000);
    let twice = (0..3000).rev().chain(0..100).map(random);
    let again = FuseFilter::from_keys(twice, 8).unwrap();
    assert_eq!((again.to_bytes(), &again), (filter.to_bytes(), &filter));
    let mut keys = HashedKeys::new(BloomFilter::builder().seed(9).hasher().unwrap());
    (0..3000).map(random).for_each(|key| keys.push(key));
    let hashed = FuseFilter::from_hashed(keys, 8).unwrap();
    assert_eq!((hashed.hasher().seed(), hashed.keys()), (9, 3000));
    assert!((0..3000).all(|i| hashed.contains_hashed(hashed.hasher().hash(&random(i)))));
    assert!(hashed.contains_hashed(filter.hasher().hash(b"any")), "a hash of another seed means maybe");
    assert_ne!(hashed, filter);
}

#[test]
fn a_file_is_a_tables_filter_block() {
    let keys: Vec<KeyHash> = (0..12_000).map(|i| KeyHash::new(3, &random(i))).collect();
    let block = build(FilterPolicy::BinaryFuse { fingerprint_bits: 7 }, &keys).bytes;
    let filter = FuseFilter::from_bytes(&block).unwrap();
    assert!((0..12_000).all(|i| filter.contains(random(i))));
    assert_eq!((filter.to_bytes(), filter.keys()), (block, 12_000));
}

#[test]
fn bytes_streams_and_files_round_trip() {
    let filter = fuse(40);
    let bytes = filter.to_bytes();
    assert_eq!(filter.encoded_len(), bytes.len() as u64);
    assert_eq!(FuseFilter::from_bytes(&bytes).unwrap(), filter);
    assert!(FuseFilter::is_prefix(&bytes) && FuseFilter::is_prefix(&bytes[..6]) && !FuseFilter::is_prefix(&bytes[..5]));
    assert!(!FuseFilter::is_prefix(&BloomFilter::with_rate(40, 0.01).unwrap().to_bytes()));
    let mut stream = std::io::Cursor::new([bytes.clone(), bytes.clone()].concat());
    for _ in 0..2 {
        assert_eq!(FuseFilter::read_from(&mut stream).unwrap(), filter);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("words.fuse");
    filter.save(&path).unwrap();
    assert_eq!(FuseFilter::load(&path).unwrap(), filter);
    let error = BloomFilter::load(&path).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("no Bloom filter"), "{error}");
}

#[test]
fn every_damaged_byte_and_every_other_length_is_refused() {
    let bytes = fuse(40).to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        refused(FuseFilter::from_bytes(&bytes));
    }
    for len in 0..bytes.len() {
        refused(FuseFilter::from_bytes(&bytes[..len]));
    }
    refused(FuseFilter::from_bytes(&[bytes.clone(), vec![0; 64]].concat()));
    refused(FuseFilter::from_bytes(&BloomFilter::with_rate(40, 0.01).unwrap().to_bytes()));
    const NOT_ITS: &str = "the bits or the rate in the filter's header are not those of its fingerprints";
    for (offset, value, rule) in [
        (5, 1, "the filter has groups beyond their count"),
        (7, 3, "the filter's prefix extractor is unknown"),
        (17, 1, "the filter has more keys than slots"),
        (24, 1, NOT_ITS),
        (56, 1, NOT_ITS),
        (40, 200, "the filter's number of lines does not fit its slots"),
    ] {
        let mut bytes = bytes.clone();
        bytes[offset] = value;
        seal(&mut bytes);
        assert_eq!(refused(FuseFilter::from_bytes(&bytes)), rule, "{offset}");
    }
    let mut builder = FilterBuilder::new(FilterPolicy::BinaryFuse { fingerprint_bits: 8 }, 3)
        .with_prefixes(Some(crate::PrefixExtractor::UpTo(b':')));
    (0..12_000u32).for_each(|i| builder.add_key(&i.to_be_bytes(), KeyHash::new(3, &i.to_be_bytes())));
    let of_table = FuseFilter::from_bytes(&builder.finish().unwrap().bytes);
    assert_eq!(refused(of_table), "the filter is a table's: it has prefixes beside keys");
}

#[test]
fn invalid_arguments_are_refused() {
    for bits in [0, 1, 3, 9, 11, 17, 255] {
        for result in [FuseFilter::from_keys(["a"], bits).map(|_| 0), FuseFilter::bytes_for(10, bits)] {
            assert!(matches!(result, Err(Error::InvalidArgument(_))), "{bits}: {result:?}");
        }
    }
    for (keys, bits) in [(u64::MAX, 4), (3_000_000_000, 16)] {
        assert!(matches!(FuseFilter::bytes_for(keys, bits), Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn keys_of_one_hash_count_once() {
    #[derive(Clone, Debug)]
    struct Length;
    impl crate::FilterHash for Length {
        fn name(&self) -> &'static str {
            "length"
        }
        fn hash64(&self, key: &[u8]) -> u64 {
            key.len() as u64
        }
    }
    // A useless filter, but one that denies nothing.
    let filter = FuseFilter::with_hasher((0..100).map(random), 8, Length).unwrap();
    assert_eq!(filter.keys(), 1);
    assert!((0..200).all(|i| filter.contains(random(i))));
}
