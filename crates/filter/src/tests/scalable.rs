//! Scalable filters: the rate of all filters together, at every size.

use super::alone::{HASHES, LAYOUTS, absent, random};
use crate::{ScalableBloomFilter, ScalableBuilder};
use tamis_base::error::Error;

#[test]
fn the_compound_rate_holds_at_every_growth() {
    const FIRST: u64 = 500;
    const ASKED: u64 = 100_000;
    for (growth, tightening, rate) in [(2, 0.85, 0.01), (4, 0.85, 0.01), (2, 0.5, 0.05), (4, 0.9, 0.001)] {
        let builder = ScalableBloomFilter::builder().growth(growth).tightening(tightening).seed(9);
        for layout in LAYOUTS {
            let mut filter = builder.layout(layout).with_rate(FIRST, rate).unwrap();
            let mut next = 0;
            for times in [1, 2, 4, 8, 16, 32, 64] {
                filter.extend((next..FIRST * times).map(random));
                next = FIRST * times;
                assert!((0..next).all(|i| filter.contains(random(i))), "{filter}");
                let expected = filter.expected_fpr();
                assert!(expected < rate, "{times} times: {filter}");
                let measured = absent(ASKED).filter(|key| filter.contains(key)).count() as f64 / ASKED as f64;
                let noise = 4.0 * (expected / ASKED as f64).sqrt() + 1.0 / ASKED as f64;
                assert!((measured - expected).abs() < noise, "{times} times: {measured}, {filter}");
                // Keys to which an older filter said "maybe" left no trace.
                let (least, most) = (next as f64 * (1.0 - rate) * 0.97, next as f64 * 1.03);
                assert!((least..most).contains(&filter.estimated_keys()), "{filter}");
                assert!((0.0..0.55).contains(&filter.fill_ratio()), "{filter}");
                assert!(filter.estimated_keys() < filter.capacity() as f64 * 1.03 && !filter.is_full());
            }
            let most = if growth == 2 { 7 } else { 4 };
            assert!((most - 1..=most).contains(&filter.filters()), "{filter}");
        }
    }
}

#[test]
fn no_key_is_denied_under_any_hash() {
    for hash in HASHES {
        let mut filter = ScalableBloomFilter::builder().hash(hash).with_rate(10, 0.01).unwrap();
        filter.extend((0..2000).map(random));
        assert!((0..2000).all(|i| filter.contains(random(i))));
    }
}

#[test]
fn reported_figures_are_consistent() {
    let mut filter = ScalableBloomFilter::with_rate(100, 0.02).unwrap();
    assert!(filter.is_empty() && !filter.is_full());
    assert_eq!((filter.estimated_keys(), filter.filters(), filter.rate()), (0.0, 1, 0.02));
    let fresh = filter.clone();
    for i in 0..1000 {
        let was = filter.contains(random(i));
        let inserted = filter.insert(random(i));
        assert_eq!(inserted, !was);
        assert!(!filter.insert(random(i)));
    }
    assert!(!filter.is_empty());
    assert_ne!(filter, fresh);
    let text = filter.to_string();
    for part in ["of 4 filters", "of at most 2.0000 %", &filter.bits().to_string(), "xxh3 with seed 0"] {
        assert!(text.contains(part), "{text}: {part}");
    }
    filter.clear();
    assert_eq!(filter, fresh);
}

#[test]
fn a_decoded_filter_grows_like_the_original() {
    for growth in [2, 4] {
        let mut filter = ScalableBloomFilter::builder().growth(growth).seed(3).with_rate(20, 0.01).unwrap();
        for round in 0..6u64 {
            let mut copy = ScalableBloomFilter::from_bytes(&filter.to_bytes()).unwrap();
            assert_eq!((copy.to_bytes(), &copy), (filter.to_bytes(), &filter));
            let keys = |round: u64| (round * 100..round * 100 + 100).map(random);
            filter.extend(keys(round));
            copy.extend(keys(round));
            assert_eq!(copy, filter);
        }
    }
}

#[test]
fn a_filter_that_cannot_grow_takes_keys_and_reports_full() {
    // The third filter would need a rate that a hash of 64 bits cannot reach.
    let mut filter = ScalableBloomFilter::builder().tightening(0.5).with_rate(100, 1e-16).unwrap();
    filter.extend((0..290).map(random));
    assert_eq!((filter.filters(), filter.is_full()), (2, false));
    filter.extend((290..400).map(random));
    assert_eq!((filter.filters(), filter.is_full()), (2, true));
    assert!((0..400).all(|i| filter.contains(random(i))));
}

#[test]
fn invalid_arguments_are_refused() {
    let builder = ScalableBuilder::default();
    for filter in [
        builder.with_rate(0, 0.01),
        builder.with_rate(10, 1.0),
        builder.with_rate(10, f64::NAN),
        builder.with_rate(u64::MAX, 0.01),
        builder.growth(3).with_rate(10, 0.01),
        builder.growth(0).with_rate(10, 0.01),
        builder.tightening(0.09).with_rate(10, 0.01),
        builder.tightening(1.0).with_rate(10, 0.01),
        builder.tightening(f64::NAN).with_rate(10, 0.01),
        builder.hash(crate::HashFunction::Murmur3).seed(u64::MAX).with_rate(10, 0.01),
    ] {
        assert!(matches!(filter, Err(Error::InvalidArgument(_))), "{filter:?}");
    }
}
