//! Hashes of the program's own, and views of bytes: no filter answers for another hash.

use super::alone::{builders, random};
use crate::header::{HEADER_LEN, tests::seal};
use crate::{BloomFilter, BloomFilterRef, BloomLayout, BloomSize, FilterHash, FuseFilter, KeyHasher};
use tamis_base::error::Error;

/// SipHash-1-3 by another name.
#[derive(Clone, Debug)]
pub(super) struct Own {
    name: &'static str,
    seed: u64,
}

impl FilterHash for Own {
    fn name(&self) -> &'static str {
        self.name
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn hash64(&self, key: &[u8]) -> u64 {
        siphasher::sip::SipHasher13::new_with_keys(self.seed, 0).hash(key)
    }
}

pub(super) const OWN: Own = Own { name: "own", seed: 5 };

fn bloom(hasher: Own) -> BloomFilter<Own> {
    let size = BloomSize::for_rate(BloomLayout::Split, 100, 0.01).unwrap();
    let mut filter = BloomFilter::with_hasher(size, hasher).unwrap();
    filter.extend((0..100).map(random));
    filter
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: crate::Result<T>, found: &str, wanted: &str) {
    match result {
        Err(Error::OtherHash { file: None, found: is, wanted: was }) => assert_eq!((&*is, &*was), (found, wanted)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_filter_is_read_only_with_the_hash_that_made_it() {
    let filter = bloom(OWN);
    let bytes = filter.to_bytes();
    assert_eq!(bytes.len() as u64, filter.encoded_len());
    assert_eq!(BloomFilter::from_bytes_with(&bytes, OWN).unwrap(), filter);
    assert!((0..100).all(|i| BloomFilterRef::new_with(&bytes, OWN).unwrap().contains(random(i))));
    let (name, seed) = (Own { name: "owm", ..OWN }, Own { seed: 6, ..OWN });
    refused(BloomFilter::from_bytes_with(&bytes, name.clone()), "own with seed 5", "owm with seed 5");
    refused(BloomFilter::from_bytes_with(&bytes, seed), "own with seed 5", "own with seed 6");
    refused(BloomFilterRef::new_with(&bytes, name), "own with seed 5", "owm with seed 5");
    refused(BloomFilter::from_bytes(&bytes), "own with seed 5", "one of xxh3, siphash13 and murmur3");
    refused(BloomFilterRef::new(&bytes), "own with seed 5", "one of xxh3, siphash13 and murmur3");
    let of_crate = BloomFilter::with_rate(100, 0.01).unwrap().to_bytes();
    refused(BloomFilter::from_bytes_with(&of_crate, OWN), "xxh3 with seed 0", "own with seed 5");
    // Hashes of one function and seed answer alike, whatever their name.
    let siphash = BloomFilter::builder().hash(crate::HashFunction::SipHash13).seed(5);
    let mut siphash = siphash.with_rate(100, 0.01).unwrap();
    siphash.extend((0..100).map(random));
    assert_eq!(bytes[HEADER_LEN + 64..], siphash.to_bytes()[HEADER_LEN..]);
    let hasher: KeyHasher = siphash.hasher().clone();
    assert_eq!(BloomFilter::from_bytes_with(&siphash.to_bytes(), hasher).unwrap(), siphash);
}

#[test]
fn a_fuse_is_read_only_with_the_hash_that_made_it() {
    let filter = FuseFilter::with_hasher((0..100).map(random), 8, OWN).unwrap();
    let bytes = filter.to_bytes();
    assert_eq!(bytes.len() as u64, filter.encoded_len());
    let read = FuseFilter::from_bytes_with(&bytes, OWN).unwrap();
    assert!(read == filter && (0..100).all(|i| read.contains(random(i))));
    refused(FuseFilter::from_bytes(&bytes), "own with seed 5", "one of xxh3, siphash13 and murmur3");
    let other = FuseFilter::from_bytes_with(&bytes, Own { seed: 1, ..OWN });
    refused(other, "own with seed 5", "own with seed 1");
}

#[test]
fn files_and_streams_of_another_hash_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.bloom");
    bloom(OWN).save(&path).unwrap();
    assert_eq!(BloomFilter::load_with(&path, OWN).unwrap(), bloom(OWN));
    let error = BloomFilter::load(&path).unwrap_err();
    assert!(matches!(&error, Error::OtherHash { file: Some(file), .. } if *file == path), "{error}");
    assert!(!error.is_corruption() && error.to_string().contains("was made with the hash own with seed 5"), "{error}");
    let stream = BloomFilter::read_from(&bloom(OWN).to_bytes()[..]).unwrap_err();
    let inner = stream.get_ref().and_then(|inner| inner.downcast_ref());
    assert!(matches!(inner, Some(Error::OtherHash { .. })), "{stream}");
}

#[test]
fn names_that_a_header_cannot_hold_are_refused() {
    let size = BloomSize::for_bits(BloomLayout::Split, 512, 7).unwrap();
    for name in ["", "a\0b", "a name of more than sixty-four bytes, for which a header has no room"] {
        let own = Own { name, seed: 0 };
        assert!(matches!(BloomFilter::with_hasher(size, own.clone()), Err(Error::InvalidArgument(_))));
        assert!(matches!(FuseFilter::with_hasher(["key"], 8, own), Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn filters_of_different_hashes_are_not_combined() {
    let other = Own { name: "other", ..OWN };
    let error = bloom(OWN).union(&bloom(other)).unwrap_err().to_string();
    assert!(error.contains("hash function"), "{error}");
    let error = bloom(OWN).estimated_union(&bloom(Own { seed: 1, ..OWN })).unwrap_err().to_string();
    assert!(error.contains("seed"), "{error}");
}

#[test]
fn tables_say_maybe_to_a_filter_of_the_programs_hash() {
    let reader = super::Filter::open(&bloom(OWN).to_bytes(), 5);
    assert_eq!(reader.degraded(), Some("the filter uses another hash function than tables"));
}

#[test]
fn a_view_answers_from_the_bytes_themselves() {
    for builder in builders() {
        let mut filter = builder.with_rate(500, 0.01).unwrap();
        filter.extend((0..500).map(random));
        for offset in [0, 1, 8, 63] {
            let buffer = [vec![0xff; offset], filter.to_bytes()].concat();
            let view = BloomFilterRef::new(&buffer[offset..]).unwrap();
            assert!((0..1000).all(|i| view.contains(random(i)) == filter.contains(random(i))));
            assert_eq!((view.to_filter().to_bytes(), view.to_bytes()), (filter.to_bytes(), filter.to_bytes()));
            assert_eq!((view.to_string(), view.is_full()), (filter.to_string(), filter.is_full()));
            assert!(view.is_compatible(&filter));
            let hashed = filter.hasher().hash(&random(3));
            assert!(view.contains_hashed(hashed));
        }
    }
}

#[test]
fn a_view_refuses_what_a_filter_refuses() {
    let mut filter = BloomFilter::builder().seed(5).with_rate(50, 0.01).unwrap();
    filter.extend((0..40).map(random));
    let bytes = filter.to_bytes();
    let rule = |result: crate::Result<BloomFilterRef>| match result {
        Err(Error::Filter { file: None, rule }) => rule,
        other => panic!("{other:?}"),
    };
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        rule(BloomFilterRef::new(&bytes));
    }
    for len in 0..bytes.len() {
        rule(BloomFilterRef::new(&bytes[..len]));
    }
    let mut empty = bytes.clone();
    empty[HEADER_LEN..].fill(0);
    seal(&mut empty);
    assert_eq!(rule(BloomFilterRef::new(&empty)), "the rate in the filter's header does not match its bits");
    let fuse = FuseFilter::from_keys(["a"], 8).unwrap().to_bytes();
    assert_eq!(rule(BloomFilterRef::new(&fuse)), "the filter is no Bloom filter, or has no lines");
}
