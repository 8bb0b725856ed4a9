//! Range filters without a store.

use std::ops::Bound;

use super::alone::random;
use super::files::refused;
use crate::range::tests::{key, near, seal, sorted};
use crate::{Error, OrderedBuilder, OrderedFilter};
use proptest::prelude::*;

type Key = Vec<u8>;

/// The bounds as they are, and whether a key is inside.
fn is_inside((from, until): (Bound<&Key>, Bound<&Key>), key: &Key) -> bool {
    let from = match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    from && match until {
        Bound::Included(until) => key <= until,
        Bound::Excluded(until) => key < until,
        Bound::Unbounded => true,
    }
}

fn check(filter: &OrderedFilter, keys: &[Key], from: &Key, until: &Key) -> Result<(), TestCaseError> {
    let bounds = |key| [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded];
    for from in bounds(from) {
        for until in bounds(until) {
            let is_held = keys.iter().any(|key| is_inside((from, until), key));
            let maybe = filter.may_contain_range((from, until));
            prop_assert!(maybe || !is_held, "{:?} to {:?}", from, until);
        }
    }
    prop_assert!(from < until || !filter.may_contain_range(from..until));
    prop_assert!(from <= until || !filter.may_contain_range(from..=until));
    let (next, bound) = (keys.iter().find(|key| *key >= from), filter.next(from));
    prop_assert!(bound.as_ref().is_none_or(|bound| bound >= from));
    if let Some(next) = next {
        prop_assert!(bound.is_some_and(|bound| bound <= *next), "next from {:?}", from);
    }
    for until in [None, Some(until)] {
        let before = keys.iter().rfind(|key| until.is_none_or(|until| *key < until));
        let bound = filter.before(until.map(Vec::as_slice));
        prop_assert!(bound.as_ref().is_none_or(|bound| until.is_none_or(|until| bound <= until)));
        if let Some(before) = before {
            prop_assert!(bound.is_some_and(|bound| bound > *before), "before {:?}", until);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn no_range_with_a_key_is_denied_and_bounds_hold(
        keys in proptest::collection::vec(key(), 0..300),
        common in prop_oneof![Just(Vec::new()), Just(b"tenant/".to_vec()), Just(vec![255; 80])],
        bits in 3.0f64..18.0,
        others in proptest::collection::vec(key(), 1..8),
        picked in proptest::collection::vec(any::<proptest::sample::Index>(), 6),
    ) {
        let keys: Vec<Key> = keys.into_iter().map(|key| [&common, key.as_slice()].concat()).collect();
        let filter = OrderedFilter::from_keys(&keys, bits).unwrap();
        let keys = sorted(keys);
        prop_assert_eq!(filter.keys(), keys.len() as u64);
        prop_assert_eq!(&OrderedFilter::from_bytes(&filter.to_bytes()).unwrap(), &filter);
        for key in &keys {
            prop_assert!(filter.may_contain(key), "{:?}", key);
        }
        let mut ends = others;
        if !keys.is_empty() {
            ends.extend(picked.iter().flat_map(|i| near(i.get::<Key>(&keys))));
        }
        ends.push(Vec::new());
        for (i, from) in ends.iter().enumerate() {
            for until in ends.iter().skip(i % 3).step_by(3).chain(&near(from)) {
                check(&filter, &keys, from, until)?;
            }
        }
    }

    #[test]
    fn forged_bytes_do_not_panic(
        keys in proptest::collection::vec(key(), 1..200),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        header in proptest::option::of((16usize..40, any::<u8>())),
        len in proptest::option::of(any::<proptest::sample::Index>()),
        asked in proptest::collection::vec(key(), 2),
    ) {
        let mut bytes = OrderedFilter::from_keys(keys, 10.0).unwrap().to_bytes();
        for (at, value) in edits {
            let at = 64 + at.index(bytes.len() - 64);
            bytes[at] = value;
        }
        if let Some((at, value)) = header {
            bytes[at] = value;
        }
        if let Some(len) = len {
            bytes.truncate(64 + len.index(bytes.len() - 64));
        }
        seal(&mut bytes);
        match OrderedFilter::from_bytes(&bytes) {
            Err(Error::Filter { .. }) => {}
            Err(error) => panic!("{error}"),
            Ok(filter) => {
                prop_assert!(filter.memory() <= 40 * bytes.len());
                prop_assert_eq!(filter.to_bytes(), bytes);
                filter.may_contain_range(&asked[0]..&asked[1]);
                filter.next(&asked[0]);
                filter.before(Some(&asked[1]));
                filter.before(None);
            }
        }
    }
}

fn filter(keys: u64) -> OrderedFilter {
    OrderedFilter::from_keys((0..keys).map(random), 12.0).unwrap()
}

#[test]
fn rates_and_sizes_are_those_predicted() {
    const KEYS: u64 = 50_000;
    const ASKED: u32 = 200_000;
    let mut rng = fastrand::Rng::with_seed(5);
    let keys: Vec<[u8; 8]> = (0..KEYS).map(|_| rng.u64(..).to_be_bytes()).collect();
    for bits in [8.0, 10.0, 12.0] {
        let filter = OrderedFilter::from_keys(&keys, bits).unwrap();
        let info = filter.info();
        assert!((info.bits_per_key() - bits).abs() < 0.2, "{filter}");
        assert!(info.rates.are_useful() && info.folded == 0);
        // Of random ranges of a ten-thousandth of the mean gap, as many hold a key.
        let width = u64::MAX / KEYS / 10_000;
        let mut ask = || {
            let start = rng.u64(..u64::MAX - width);
            filter.may_contain_range(start.to_be_bytes()..(start + width).to_be_bytes())
        };
        let seen = f64::from((0..ASKED).map(|_| u32::from(ask())).sum::<u32>());
        for rate in [info.rates.fresh, info.rates.near] {
            let expected = f64::from(ASKED) * (f64::from(rate) / 1e9 + 0.0001);
            assert!(seen / expected > 0.7 && seen / expected < 1.4, "{filter}: {seen}, not {expected}");
        }
    }
}

#[test]
fn equal_sets_have_equal_bytes_however_they_come() {
    let mut builder = OrderedBuilder::new(12.0).unwrap();
    let keys = sorted((0..3000).map(|i| random(i).as_ref().to_vec()).collect());
    keys.iter().for_each(|key| [key, key].into_iter().for_each(|key| builder.add(key).unwrap()));
    assert!(builder.memory() > 3000);
    let built = builder.finish().unwrap();
    let again = OrderedFilter::from_keys((0..3000).rev().chain(0..100).map(random), 12.0).unwrap();
    assert_eq!((built.to_bytes(), &built, built.keys()), (again.to_bytes(), &again, 3000));
    assert_ne!(built, filter(2999));
}

#[test]
fn keys_out_of_order_and_bits_out_of_range_are_refused() {
    let mut builder = OrderedBuilder::new(10.0).unwrap();
    for (key, is_added) in
        [("b", true), ("a", false), ("", false), ("b", true), ("ba", true), ("b", false), ("c", true)]
    {
        match builder.add(key) {
            Ok(()) => assert!(is_added, "{key}"),
            Err(error) => assert!(!is_added && matches!(error, Error::InvalidArgument(_)), "{key}: {error}"),
        }
    }
    let filter = builder.finish().unwrap();
    assert_eq!(filter.keys(), 3);
    assert!(["b", "ba", "c"].iter().all(|key| filter.may_contain(key)));
    for bits in [2.9, 18.1, 0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(OrderedFilter::from_keys(["a"], bits), Err(Error::InvalidArgument(_))), "{bits}");
    }
}

#[test]
fn a_filter_without_keys_says_no() {
    let filter = filter(0);
    assert!(!filter.may_contain_range(..) && !filter.may_contain("") && filter.keys() == 0);
    assert_eq!((filter.next(""), filter.before(None)), (None, None));
    assert_eq!(OrderedFilter::from_bytes(&filter.to_bytes()).unwrap(), filter);
    assert!(filter.to_string().starts_with("range filter of 0 keys: "), "{filter}");
    assert!(OrderedFilter::from_keys(["a"], 12.0).unwrap().may_contain_range(..));
}

#[test]
fn bytes_streams_and_files_round_trip() {
    let filter = filter(400);
    let bytes = filter.to_bytes();
    assert_eq!(filter.encoded_len(), bytes.len() as u64);
    assert!(OrderedFilter::is_prefix(&bytes[..6]) && !OrderedFilter::is_prefix(&bytes[..5]));
    let mut stream = std::io::Cursor::new([bytes.clone(), bytes].concat());
    for _ in 0..2 {
        assert_eq!(OrderedFilter::read_from(&mut stream).unwrap(), filter);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("times.ranges");
    filter.save(&path).unwrap();
    assert_eq!(OrderedFilter::load(&path).unwrap(), filter);
    let error = crate::BloomFilter::load(&path).unwrap_err();
    assert!(error.is_corruption(), "{error}");
}

#[test]
fn every_flipped_bit_and_every_other_length_is_refused() {
    let bytes = filter(100).to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        refused(OrderedFilter::from_bytes(&bytes));
    }
    for len in 0..bytes.len() {
        refused(OrderedFilter::from_bytes(&bytes[..len]));
        if len >= 64 {
            let mut cut = bytes[..len].to_vec();
            seal(&mut cut);
            refused(OrderedFilter::from_bytes(&cut));
        }
    }
    refused(OrderedFilter::from_bytes(&[&bytes[..], &[0]].concat()));
    refused(OrderedFilter::from_bytes(&crate::BloomFilter::with_rate(40, 0.01).unwrap().to_bytes()));
    for (at, value, rule) in [
        (5, 1, "the range filter is of another kind"),
        (8, 1, "a range filter that is alone has the number of a table, or an extractor"),
        (16, 99, "the codes of a range filter are not those of its keys"),
        (28, 1, "the separators of a range filter"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        seal(&mut bytes);
        let found = refused(OrderedFilter::from_bytes(&bytes));
        assert!(at == 28 || found == rule, "{found}");
    }
}

#[test]
fn long_keys_have_short_separators() {
    let long = |byte: u8| vec![byte; 100_000];
    let filter = OrderedFilter::from_keys((0..255).map(long), 12.0).unwrap();
    assert!(filter.encoded_len() < 4000, "{filter}");
    assert!((0..255).all(|byte| filter.may_contain(long(byte))));
    assert!(filter.before(None).unwrap() > long(254) && !filter.may_contain_range(long(255)..));
}
