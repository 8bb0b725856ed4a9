//! Stand-alone filters: answers, reported figures, and the laws of sets.

use super::*;
use crate::header::HEADER_LEN;
use crate::{BloomBuilder, BloomFilter, BloomLayout, HashFunction, HashedKeys, ScalableBloomFilter};
use proptest::prelude::*;
use tamis_base::error::Error;

pub(super) const LAYOUTS: [BloomLayout; 2] = [BloomLayout::Split, BloomLayout::Standard];
pub(super) const HASHES: [HashFunction; 3] = [HashFunction::Xxh3, HashFunction::SipHash13, HashFunction::Murmur3];

pub(super) fn builders() -> impl Iterator<Item = BloomBuilder> {
    let builder = |layout| move |hash| BloomFilter::builder().layout(layout).hash(hash).seed(7);
    LAYOUTS.into_iter().flat_map(move |layout| HASHES.into_iter().map(builder(layout)))
}

/// 16 bytes that look random, different for each `i`.
pub(super) fn random(i: u64) -> [u8; 16] {
    (u128::from(remix(i)) << 64 | u128::from(remix(!i))).to_be_bytes()
}

/// Keys that no test inserts.
pub(super) fn absent(count: u64) -> impl Iterator<Item = [u8; 16]> {
    (1 << 40..(1 << 40) + count).map(random)
}

/// How many of `count` absent keys get a "maybe".
fn false_positives(filter: &BloomFilter, count: u64) -> f64 {
    absent(count).filter(|key| filter.contains(key)).count() as f64
}

#[test]
fn rates_hold_at_capacity_for_every_layout_and_hash() {
    const ASKED: u64 = 200_000;
    for builder in builders() {
        for rate in [0.1, 0.01, 0.001] {
            let mut filter = builder.with_rate(20_000, rate).unwrap();
            let mut next = 0;
            while !filter.is_full() {
                filter.insert(random(next));
                next += 1;
            }
            assert!((0..next).all(|i| filter.contains(random(i))));
            let (expected, measured) = (filter.expected_fpr(), false_positives(&filter, ASKED) / ASKED as f64);
            // One filter's bits may be some standard deviations better or worse than the mean.
            assert!(expected < rate * 1.05, "{filter}");
            let noise = 4.0 * (expected / ASKED as f64).sqrt();
            assert!((measured - expected).abs() < noise, "{measured}: {filter}");
            let off = filter.estimated_keys() / next as f64 - 1.0;
            assert!(off.abs() < 0.03, "{off}: {filter}");
        }
    }
}

#[test]
fn rates_hold_for_few_keys() {
    for builder in builders() {
        for keys in [1, 2, 3, 10, 50, 100, 1000] {
            for rate in [0.1, 0.01] {
                let (sets, asked) = (20u64, 2000);
                let mut maybes = 0.0;
                for set in 0..sets {
                    let mut filter = builder.with_rate(keys, rate).unwrap();
                    filter.extend((0..keys).map(|i| random(set * 10_000 + i)));
                    assert!((0..keys).all(|i| filter.contains(random(set * 10_000 + i))));
                    maybes += false_positives(&filter, asked);
                }
                let asked = (sets * asked) as f64;
                // The sets differ among each other: allow a tenth beyond the sampling noise.
                let most = asked * rate * 1.1 + 4.0 * (asked * rate).sqrt();
                assert!(maybes < most, "{builder:?}, {keys} keys at {rate}: {maybes} of {asked}");
            }
        }
    }
}

#[test]
fn a_filter_has_the_bits_of_a_tables_filter() {
    let keys: Vec<[u8; 16]> = (0..1000).map(random).collect();
    let hashes: Vec<KeyHash> = keys.iter().map(|key| KeyHash::new(3, key)).collect();
    let block = build(split(10.0), &hashes).bytes;
    let mut filter = BloomFilter::builder().seed(3).with_bits_per_key(1000, 10.0).unwrap();
    filter.extend(&keys);
    assert_eq!(filter.to_bytes()[HEADER_LEN..], block[HEADER_LEN..]);
    // Neither is mistaken for the other: only a table's filter counts its keys.
    let rule = "the filter is a table's: it counts its keys";
    let refused = BloomFilter::from_bytes(&block);
    assert!(matches!(refused, Err(Error::Filter { rule: found, .. }) if found == rule), "{refused:?}");
    let reader = Filter::open(&filter.to_bytes(), 3);
    assert_eq!(reader.degraded(), Some("the filter has lines but no keys"));
    assert!(hashes.iter().all(|&hash| reader.may_contain(hash)));
}

#[test]
fn tables_say_maybe_to_the_textbook_layout() {
    let mut filter = BloomFilter::builder().layout(BloomLayout::Standard).seed(3).with_rate(100, 0.01).unwrap();
    filter.insert("key");
    let bytes = filter.to_bytes();
    let (header, lines) = header::decode(&bytes).unwrap();
    let block = header::encode(&FilterHeader { keys: 1, ..header }, lines);
    let reader = Filter::open(&block, 3);
    assert_eq!(reader.degraded(), Some("the filter has a layout that only stand-alone filters have"));
    assert!(reader.may_contain(KeyHash::new(3, b"other")));
}

#[test]
fn tables_say_maybe_to_a_filter_not_made_for_them() {
    for function in [HashFunction::SipHash13, HashFunction::Murmur3] {
        let mut filter = BloomFilter::builder().hash(function).seed(3).with_rate(100, 0.01).unwrap();
        filter.insert("key");
        let reader = Filter::open(&filter.to_bytes(), 3);
        assert_eq!(reader.degraded(), Some("the filter uses another hash function than tables"));
        assert!(reader.may_contain(KeyHash::new(3, b"other")));
    }
    let empty = BloomFilter::builder().seed(3).with_rate(100, 0.01).unwrap();
    let reader = Filter::open(&empty.to_bytes(), 3);
    assert_eq!(reader.degraded(), Some("the filter has lines but no keys"));
    assert!(reader.may_contain(KeyHash::new(3, b"other")));
}

#[test]
fn insert_says_whether_a_bit_changed() {
    for builder in builders() {
        let mut filter = builder.with_bits(2000, 5).unwrap();
        let mut changed = 0;
        for i in 0..2000 {
            let before = filter.to_bytes();
            let inserted = filter.insert(random(i));
            let after = filter.to_bytes();
            assert_eq!(inserted, before != after);
            changed += u64::from(inserted);
            assert!(!filter.insert(random(i)));
            assert_eq!(filter.to_bytes(), after, "an insertion that changes no bit leaves no trace");
            let ones: u32 = after[HEADER_LEN..].iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(filter.fill_ratio(), f64::from(ones) / filter.bits() as f64);
        }
        assert!(changed < 1000, "2000 keys fill this small filter");
    }
}

#[test]
fn reported_figures_are_consistent() {
    for builder in builders() {
        let mut filter = builder.with_rate(10_000, 0.01).unwrap();
        assert!((10_000..10_600).contains(&filter.capacity()), "{filter}");
        assert_eq!(filter.k(), 7);
        assert!(filter.is_empty() && !filter.is_full());
        let of_no_keys = (filter.fill_ratio(), filter.expected_fpr(), filter.estimated_keys());
        assert_eq!(of_no_keys, (0.0, 0.0, 0.0));
        for (keys, full) in [(5000, false), (12_000, true)] {
            filter.extend((0..keys).map(random));
            assert!(!filter.is_empty());
            assert_eq!(filter.is_full(), full);
            let off = filter.estimated_keys() / keys as f64 - 1.0;
            assert!(off.abs() < 0.02, "{filter}");
        }
        let text = filter.to_string();
        for part in ["for 10", "k = 7", &filter.bits().to_string(), &filter.hasher().function().to_string(), "seed 7"] {
            assert!(text.contains(part), "{text}: {part}");
        }
        filter.clear();
        assert!(filter.is_empty());
        assert_eq!(filter.to_bytes(), builder.with_rate(10_000, 0.01).unwrap().to_bytes());
    }
}

#[test]
fn a_full_filter_reports_rate_one() {
    let mut filter = BloomFilter::with_bits(512, 1).unwrap();
    filter.extend((0..20_000).map(random));
    assert_eq!((filter.fill_ratio(), filter.expected_fpr(), filter.estimated_keys()), (1.0, 1.0, f64::INFINITY));
    assert!(filter.is_full() && filter.to_string().contains("about inf"), "{filter}");
}

#[test]
fn a_filter_of_bits_is_full_when_half_of_them_are_set() {
    for k in [1, 4, 7, 14, 25] {
        let mut filter = BloomFilter::with_bits(1 << 20, k).unwrap();
        assert_eq!((filter.bits(), filter.k()), (1 << 20, k));
        let mut keys = (0..).map(random);
        while !filter.is_full() {
            filter.extend(keys.by_ref().take(1000));
        }
        assert!((filter.fill_ratio() - 0.5).abs() < 0.02, "{filter}");
    }
    assert_eq!(BloomFilter::with_bits(1, 1).unwrap().bits(), 512);
    assert_eq!(BloomFilter::with_bits(513, 1).unwrap().bits(), 1024);
}

#[test]
fn invalid_arguments_are_refused() {
    let refused = |filter: crate::Result<BloomFilter>| {
        assert!(matches!(filter, Err(Error::InvalidArgument(_))), "{filter:?}");
    };
    refused(BloomFilter::with_rate(0, 0.01));
    refused(BloomFilter::with_rate(10, 0.0));
    refused(BloomFilter::with_rate(10, f64::NAN));
    refused(BloomFilter::with_rate(u64::MAX, 0.5));
    refused(BloomFilter::with_bits(0, 7));
    refused(BloomFilter::with_bits(1 << 60, 7));
    refused(BloomFilter::with_bits(512, 0));
    refused(BloomFilter::builder().hash(HashFunction::Murmur3).seed(1 << 32).with_rate(10, 0.01));
    refused(BloomFilter::builder().with_bits_per_key(10, 0.5));
}

#[test]
fn only_compatible_filters_can_be_combined() {
    let builder = BloomFilter::builder();
    let filter = builder.with_bits(1024, 7).unwrap();
    for (other, difference) in [
        (builder.with_bits(1536, 7), "size"),
        (builder.layout(BloomLayout::Standard).with_bits(1024, 7), "layout"),
        (builder.with_bits(1024, 8), "number of probes per key"),
        (builder.hash(HashFunction::Murmur3).with_bits(1024, 7), "hash function"),
        (builder.seed(1).with_bits(1024, 7), "seed"),
    ] {
        let other = other.unwrap();
        assert!(!filter.is_compatible(&other));
        assert_ne!(filter, other);
        for result in [filter.union(&other), filter.intersection(&other)] {
            let message = result.unwrap_err().to_string();
            assert_eq!(message, format!("invalid argument: the filters differ in their {difference}"));
        }
    }
}

#[test]
fn union_and_intersection_estimate_their_keys() {
    for builder in builders() {
        let filter = |keys: std::ops::Range<u64>| {
            let mut filter = builder.with_rate(20_000, 0.01).unwrap();
            filter.extend(keys.map(random));
            filter
        };
        let (low, high) = (filter(0..10_000), filter(5000..15_000));
        let union = low.union(&high).unwrap();
        assert_eq!(union, filter(0..15_000));
        assert!((union.estimated_keys() / 15_000.0 - 1.0).abs() < 0.02, "{union}");
        let twice = low.union(&low).unwrap();
        assert_eq!(twice.to_bytes(), low.to_bytes());
        let common = low.intersection(&high).unwrap();
        assert!((5000..15_000u64).filter(|&i| i < 10_000).all(|i| common.contains(random(i))));
        assert!((4900.0..10_000.0).contains(&common.estimated_keys()), "{common}");
        let (few, most) = (filter(5000..10_000).expected_fpr(), low.expected_fpr().min(high.expected_fpr()));
        assert!((few..=most).contains(&common.expected_fpr()), "{common}");
    }
}

#[test]
fn collecting_counts_each_key_once_and_fits_the_size() {
    let twice: BloomFilter = (0..5000).chain(0..5000).map(random).collect();
    let mut twin = BloomFilter::with_rate(5000, 0.01).unwrap();
    twin.extend((0..5000).map(random));
    assert_eq!(twice.to_bytes(), twin.to_bytes());
    assert!((4950.0..5050.0).contains(&twice.estimated_keys()), "{twice}");
    let none: BloomFilter = std::iter::empty::<&str>().collect();
    assert!(none.is_empty() && !none.contains("key"));
}

#[test]
fn a_hash_of_another_function_or_seed_is_refused_and_means_maybe() {
    let hashers = || {
        let builders = HASHES.into_iter().map(|function| BloomFilter::builder().hash(function));
        builders.flat_map(|builder| [builder.hasher().unwrap(), builder.seed(1).hasher().unwrap()])
    };
    for own in hashers() {
        let builder = BloomFilter::builder().hash(own.function()).seed(own.seed());
        let mut filter = builder.with_rate(100, 0.01).unwrap();
        let scalable = ScalableBloomFilter::builder().hash(own.function()).seed(own.seed());
        let mut scalable = scalable.with_rate(100, 0.01).unwrap();
        for other in hashers() {
            let (before, scalable_before) = (filter.to_bytes(), scalable.to_bytes());
            let key = other.hash(b"key");
            let mut keys = HashedKeys::new(other.clone());
            keys.push("key");
            if other == own {
                assert_eq!(filter.insert_hashed(key).unwrap(), filter.to_bytes() != before);
                assert_eq!(filter.insert_all(&keys).unwrap(), 0);
                assert_eq!(scalable.insert_all(&keys).unwrap(), 1);
                assert!(!scalable.insert_hashed(key).unwrap());
                assert!(filter.contains("key") && scalable.contains("key"));
                assert!(!filter.contains_hashed(own.hash(b"other")) && !scalable.contains_hashed(own.hash(b"other")));
            } else {
                for refused in [filter.insert_hashed(key).map(u64::from), filter.insert_all(&keys)] {
                    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
                }
                for refused in [scalable.insert_hashed(key).map(u64::from), scalable.insert_all(&keys)] {
                    let message = refused.unwrap_err().to_string();
                    let made = format!("the key was hashed by {} with seed {}", other.function(), other.seed());
                    assert!(message.contains(&made), "{message}");
                }
                assert_eq!((filter.to_bytes(), scalable.to_bytes()), (before, scalable_before));
                assert!(
                    filter.contains_hashed(key) && scalable.contains_hashed(key),
                    "a hash of another hasher means maybe"
                );
            }
        }
    }
}

/// Issue 13, fault 21.
#[test]
fn sets_have_one_encoding_even_if_filters_differ_in_capacity() {
    let builder = BloomFilter::builder();
    // Both have 19 lines.
    let (mut few, mut many) = (builder.with_rate(990, 0.01).unwrap(), builder.with_rate(1000, 0.01).unwrap());
    few.extend((0..300).map(random));
    many.extend((200..600).map(random));
    assert!(few.is_compatible(&many) && few.capacity() < many.capacity());
    for combine in [BloomFilter::union, BloomFilter::intersection] {
        let (one, other) = (combine(&few, &many).unwrap(), combine(&many, &few).unwrap());
        assert_eq!(one.to_bytes(), other.to_bytes());
        assert_eq!(one.capacity(), few.capacity());
    }
}

proptest! {
    /// Issue 13, fault 21.
    #[test]
    fn a_set_has_one_encoding_whatever_the_order_of_insertions_and_unions(
        which in 0usize..6,
        bits in 1u64..5000,
        k in 1u32..=25,
        keys in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..120),
        order in proptest::collection::vec(any::<(prop::sample::Index, u8)>(), 0..240),
        parts in 1usize..6,
    ) {
        let empty = builders().nth(which).unwrap().with_bits(bits, k).unwrap();
        let mut expected = empty.clone();
        expected.extend(&keys);
        // Every key is inserted at least once and some more often, in another order, spread over
        // filters that are then united.
        let mut filters = vec![empty; parts];
        let again = order.iter().filter(|_| !keys.is_empty()).map(|(i, part)| (i.get(&keys), *part));
        for (key, part) in again.chain(keys.iter().rev().zip(0..)) {
            filters[usize::from(part) % parts].insert(key);
        }
        for (i, part) in &order {
            let other = filters[i.index(parts)].clone();
            filters[usize::from(*part) % parts].union_with(&other).unwrap();
        }
        let united = filters.into_iter().reduce(|one, other| other.union(&one).unwrap()).unwrap();
        prop_assert_eq!(united.to_bytes(), expected.to_bytes());
        let decoded = BloomFilter::from_bytes(&expected.to_bytes()).unwrap();
        prop_assert_eq!(decoded.to_bytes(), expected.to_bytes());
        prop_assert_eq!(decoded.to_string(), united.to_string());
    }

    #[test]
    fn a_filter_holds_what_a_set_holds(
        which in 0usize..6,
        bits in 1u64..5000,
        k in 1u32..=25,
        a in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..80),
        b in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..80),
    ) {
        let empty = builders().nth(which).unwrap().with_bits(bits, k).unwrap();
        let filled = |keys: &[Vec<u8>]| {
            let mut filter = empty.clone();
            filter.extend(keys);
            filter
        };
        let (left, right) = (filled(&a), filled(&b));
        for (filter, keys) in [(&left, &a), (&right, &b)] {
            prop_assert!(keys.iter().all(|key| filter.contains(key)));
            prop_assert_eq!(filter.is_empty(), keys.is_empty());
        }
        // Bytes keep everything.
        let copy = BloomFilter::from_bytes(&left.to_bytes()).unwrap();
        prop_assert_eq!(&copy, &left);
        prop_assert_eq!(copy.capacity(), left.capacity());
        prop_assert_eq!(copy.to_bytes(), left.to_bytes());
        // Union: one after the other, in any order, once or twice, with nothing.
        let union = left.union(&right).unwrap();
        prop_assert_eq!(&union, &filled(&[a.clone(), b.clone()].concat()));
        prop_assert_eq!(&union, &right.union(&left).unwrap());
        prop_assert_eq!(&union.union(&left).unwrap(), &union);
        prop_assert_eq!(&left.union(&empty).unwrap(), &left);
        // Intersection: within both, and absorbed by the union.
        let common = left.intersection(&right).unwrap();
        prop_assert_eq!(&common, &right.intersection(&left).unwrap());
        prop_assert_eq!(&common.union(&left).unwrap(), &left);
        prop_assert_eq!(&union.intersection(&left).unwrap(), &left);
        prop_assert_eq!(&left.intersection(&left).unwrap(), &left);
        prop_assert!(left.intersection(&empty).unwrap().is_empty());
        prop_assert!(a.iter().filter(|key| b.contains(key)).all(|key| common.contains(key)));
        prop_assert!(common.expected_fpr() <= left.expected_fpr().min(right.expected_fpr()));
    }
}

#[test]
#[ignore = "a million keys, ten million absent ones; cargo test --release -p tamis-filter --lib -- --ignored"]
fn rates_hold_for_a_million_keys() {
    const ASKED: u64 = 10_000_000;
    for builder in builders() {
        for rate in [0.01, 0.001] {
            let mut filter = builder.with_rate(1_000_000, rate).unwrap();
            filter.extend((0..1_000_000).map(random));
            assert!((0..1_000_000).all(|i| filter.contains(random(i))));
            let measured = false_positives(&filter, ASKED) / ASKED as f64;
            println!("{measured:.7}: {filter}");
            let noise = 4.0 * (rate / ASKED as f64).sqrt();
            assert!((measured - filter.expected_fpr()).abs() < noise, "{measured}: {filter}");
            // The standard deviation between filters is 0.15 %.
            assert!(measured < rate * 1.006 + noise, "{measured}: {filter}");
        }
    }
}
