//! No false negatives, and false positives as often as theory says.

use super::alone::{LAYOUTS, absent, random};
use super::*;
use crate::BloomFilter;
use crate::sizing::{line_count, probe_count, spent_millibits};
use crate::split::Groups;
use crate::standard;

/// Share of absent keys to which `filter` says "maybe".
fn measured(filter: &Filter, absent: &[KeyHash]) -> f64 {
    let maybes = absent.iter().filter(|&&hash| filter.may_contain(hash));
    maybes.count() as f64 / absent.len() as f64
}

/// `sigmas` standard deviations of a rate measured on `count` keys, plus one key.
fn noise(rate: f64, count: usize, sigmas: f64) -> f64 {
    sigmas * (rate * (1.0 - rate) / count as f64).sqrt() + 1.0 / count as f64
}

#[test]
fn no_key_is_denied_at_any_size() {
    let keys: Vec<KeyHash> = hashes(0..20_000).collect();
    for policy in policies() {
        for count in [0, 1, 2, 3, 10, 100, 1000, 20_000] {
            let keys = &keys[..count];
            let block = build(policy, keys);
            let filter = open(&block);
            assert!(keys.iter().all(|&key| filter.may_contain(key)));
            let info = filter.info().unwrap();
            assert_eq!(info, &block.info);
            assert_eq!(info.keys, count as u64);
            assert_eq!(info.millibits, policy.millibits());
            assert_eq!(info.bytes, block.bytes.len() as u64);
            let most = count as f64 * f64::from(policy.millibits()) * 1.011 / 8000.0 + 128.0;
            assert!(block.bytes.len() as f64 <= most, "{policy:?}, {count} keys");
        }
    }
}

#[test]
fn measured_rates_are_those_of_the_bits_and_near_theory() {
    let keys: Vec<KeyHash> = hashes(0..20_000).collect();
    let absent: Vec<KeyHash> = hashes(1 << 40..(1 << 40) + 100_000).collect();
    for policy in policies() {
        let filter = open(&build(policy, &keys));
        let info = filter.info().unwrap();
        let rate = measured(&filter, &absent);
        let expected = info.expected_fpr;
        let off = (rate - expected).abs();
        assert!(off < noise(expected, absent.len(), 4.0), "{policy:?}: {rate} {info:?}");
        assert!((expected / info.model_fpr - 1.0).abs() < 0.05, "{info:?}");
        let millibits = policy.millibits();
        let textbook = standard::model_fpr(probe_count(millibits), 1000.0 / f64::from(millibits));
        assert!((0.90..1.03).contains(&(expected / textbook)), "{info:?}");
        assert!((info.estimated_keys / 20_000.0 - 1.0).abs() < 0.01, "{info:?}");
        assert!((0.45..0.55).contains(&info.fill_ratio), "{info:?}");
        let spent = info.bits_per_key() * 1000.0 / f64::from(millibits);
        assert!((1.0..1.015).contains(&spent), "{info:?}");
    }
}

#[test]
fn small_filters_are_as_good_as_large_ones() {
    let absent: Vec<KeyHash> = hashes(1 << 40..(1 << 40) + 2000).collect();
    for count in [1, 10, 50, 200] {
        let (mut rate, mut expected) = (0.0, 0.0);
        for set in 0..40u64 {
            let keys: Vec<KeyHash> = hashes(set * 1000..set * 1000 + count).collect();
            let filter = open(&build(split(10.0), &keys));
            rate += measured(&filter, &absent) / 40.0;
            expected += filter.info().unwrap().expected_fpr / 40.0;
        }
        let most = expected + noise(expected, absent.len() * 40, 4.0);
        assert!(rate <= most, "{count} keys: {rate} > {expected}");
        assert!(rate < 0.011, "{count} keys: {rate}");
    }
}

#[test]
fn the_rate_in_the_header_is_that_of_the_bits() {
    let keys: Vec<KeyHash> = hashes(0..1000).collect();
    for policy in policies() {
        let block = build(policy, &keys);
        let stored = u32::from_le_bytes(block.bytes[56..60].try_into().unwrap());
        assert!((f64::from(stored) / 1e9 - block.info.expected_fpr).abs() < 1e-9);
    }
}

#[test]
fn a_full_filter_reports_rate_one() {
    let keys: Vec<KeyHash> = hashes(0..10).collect();
    let mut block = build(split(10.0), &keys);
    block.bytes[64..].fill(0xff);
    crate::header::tests::seal(&mut block.bytes);
    let filter = open(&block);
    let info = filter.info().unwrap();
    assert_eq!((info.fill_ratio, info.expected_fpr), (1.0, 1.0));
    assert_eq!(info.estimated_keys, f64::INFINITY);
}

#[test]
fn options_outside_their_range_are_clamped() {
    for (bits, lines) in [(0.0, 2), (-1.0, 2), (f32::NAN, 2), (1e9, 48)] {
        let millibits = split(bits).millibits();
        assert!((1..=17).contains(&Groups::for_millibits(millibits).probes()));
        assert!(line_count(1000, spent_millibits(millibits)).abs_diff(lines) <= 1);
    }
}

#[test]
#[ignore = "a million keys and ten million absent ones for each of 30 filters; cargo test --release -p tamis-filter --lib -- --ignored"]
fn rates_of_a_million_keys_lie_within_the_published_bounds() {
    // Bits per key; bounds in per cent at four standard deviations, for one million keys and ten
    // million absent ones.
    let bounds = [
        (6, 5.27424, 5.69082),
        (7, 3.25267, 3.52358),
        (8, 2.01922, 2.19767),
        (9, 1.23851, 1.35496),
        (10, 0.76145, 0.83897),
        (11, 0.47032, 0.52273),
        (12, 0.28896, 0.32446),
        (13, 0.17689, 0.20134),
        (14, 0.10858, 0.12570),
        (15, 0.06650, 0.07859),
        (16, 0.04038, 0.04904),
        (17, 0.02451, 0.03081),
        (18, 0.01485, 0.01947),
        (19, 0.00886, 0.01228),
        (20, 0.00525, 0.00782),
    ];
    // The filter of a table has the bits of the split one.
    let keys: Vec<[u8; 16]> = (0..1_000_000).map(random).collect();
    let absent: Vec<[u8; 16]> = absent(10_000_000).collect();
    for (bits, least, most) in bounds {
        for layout in LAYOUTS {
            let builder = BloomFilter::builder().layout(layout).seed(3);
            let mut filter = builder.with_bits_per_key(1_000_000, bits.into()).unwrap();
            filter.extend(&keys);
            assert!(keys.iter().all(|key| filter.contains(key)));
            let maybes = absent.iter().filter(|key| filter.contains(key)).count();
            let rate = maybes as f64 / absent.len() as f64 * 100.0;
            assert!((least..=most).contains(&rate), "{layout}, {bits} bits: {rate}");
        }
    }
}

#[test]
#[ignore = "ten million keys; cargo test --release -p tamis-filter --lib -- --ignored"]
fn none_of_ten_million_keys_is_denied() {
    let keys: Vec<KeyHash> = hashes(0..10_000_000).collect();
    for policy in [split(10.0), FilterPolicy::BinaryFuse { fingerprint_bits: 8 }] {
        let filter = open(&build(policy, &keys));
        assert!(keys.iter().all(|&key| filter.may_contain(key)), "{policy:?}");
    }
}
