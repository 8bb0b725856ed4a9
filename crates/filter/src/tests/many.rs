//! `contains_many` answers as `contains` does, for every kind of filter.

use super::alone::{builders, random};
use crate::batch::CHUNK;
use crate::{BloomFilterRef, FuseFilter, ScalableBloomFilter};

/// Keys of which about half are in a filter of `random(0..n)`, in no order.
fn keys(n: u64, count: usize) -> Vec<[u8; 16]> {
    (0..count as u64).map(|i| random(i * 7919 % (2 * n))).collect()
}

#[test]
fn many_answers_are_those_of_one_at_a_time() {
    const N: u64 = 3000;
    for count in [0, 1, 2, 31, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 77] {
        let keys = keys(N, count);
        let one_by_one = |contains: &dyn Fn(&[u8; 16]) -> bool| keys.iter().map(contains).collect::<Vec<bool>>();
        for k in [1, 4, 5, 7, 9, 25] {
            for builder in builders() {
                // Both answers, and false positives among them.
                let mut filter = builder.with_bits(N * u64::from(k), k).unwrap();
                filter.extend((0..N).map(random));
                let expected = one_by_one(&|key| filter.contains(key));
                assert_eq!(filter.contains_many(&keys), expected, "{filter}");
                let bytes = [vec![0], filter.to_bytes()].concat();
                let view = BloomFilterRef::new(&bytes[1..]).unwrap();
                assert_eq!(view.contains_many(&keys), expected, "{filter}");
                assert_eq!(filter.into_shared().contains_many(&keys), expected);
            }
        }
        let mut scalable = ScalableBloomFilter::with_rate(100, 0.05).unwrap();
        scalable.extend((0..N).map(random));
        assert_eq!(scalable.contains_many(&keys), one_by_one(&|key| scalable.contains(key)));
        let fuse = FuseFilter::from_keys((0..N).map(random), 5).unwrap();
        assert_eq!(fuse.contains_many(&keys), one_by_one(&|key| fuse.contains(key)));
    }
}

#[test]
fn a_batch_finds_all_keys_and_few_others() {
    let mut filter = crate::BloomFilter::with_rate(10_000, 0.01).unwrap();
    filter.extend((0..10_000).map(random));
    let present: Vec<[u8; 16]> = (0..10_000).map(random).collect();
    assert!(filter.contains_many(&present).into_iter().all(|maybe| maybe));
    let absent: Vec<[u8; 16]> = (1 << 40..(1 << 40) + 20_000).map(random).collect();
    let passed = filter.contains_many(&absent).into_iter().filter(|&maybe| maybe).count();
    assert!((100..300).contains(&passed), "{passed} of 20,000");
}
