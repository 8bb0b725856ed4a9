//! Binary fuse filters: no false negatives, the rate of the fingerprints' length, and the size of
//! the paper.

use xorf::{BinaryFuse8, BinaryFuse16, Filter as _};

use super::*;
use crate::FINGERPRINT_BITS;
use crate::FilterInfo;
use crate::header::HEADER_LEN;
use crate::line::FilterLine;

fn fuse(fingerprint_bits: u8) -> FilterPolicy {
    FilterPolicy::BinaryFuse { fingerprint_bits }
}

/// How many of `asked` absent keys get a "maybe".
fn maybes(filter: &Filter, asked: u64) -> f64 {
    hashes(1 << 40..(1 << 40) + asked).filter(|&hash| filter.may_contain(hash)).count() as f64
}

/// Builds a filter, asks for every key, and compares the rate with 2^-r and with `info`, at five
/// standard deviations.
fn check(fingerprint_bits: u8, keys: &[KeyHash], asked: u64) -> FilterInfo {
    let block = build(fuse(fingerprint_bits), keys);
    let filter = open(&block);
    assert!(keys.iter().all(|&key| filter.may_contain(key)));
    let info = filter.info().unwrap();
    assert_eq!(info, &block.info);
    assert_eq!((info.policy_id, info.millibits), (4, 1000 * u32::from(fingerprint_bits)));
    assert_eq!((info.keys, info.probes), (keys.len() as u64, 3));
    assert_eq!(info.bytes, block.bytes.len() as u64);
    assert_eq!(info.expected_fpr, 0.5f64.powi(fingerprint_bits.into()));
    let (expected, seen) = (info.expected_fpr * asked as f64, maybes(&filter, asked));
    assert!((seen - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{fingerprint_bits} bits: {seen}, not {expected}");
    info.clone()
}

#[test]
fn a_fuse_of_few_keys_denies_none() {
    let keys: Vec<KeyHash> = hashes(0..1000).collect();
    for bits in FINGERPRINT_BITS {
        for count in (1..=10).chain([100, 1000]) {
            let block = forced_fuse(bits, &keys[..count]);
            let filter = Filter::open(&block, 3);
            assert_eq!(filter.degraded(), None);
            assert_eq!(filter.info().map(|info| info.policy_id), Some(4));
            assert!(keys[..count].iter().all(|&key| filter.may_contain(key)), "{bits} bits, {count} keys");
        }
    }
}

#[test]
fn rate_and_size_of_ten_and_a_hundred_thousand_keys_are_those_of_theory() {
    let keys: Vec<KeyHash> = hashes(0..100_000).collect();
    for bits in FINGERPRINT_BITS {
        // Slots per key by the paper's rule, segments rounded up: 1.25 and 1.175.
        for (count, slots, asked) in [(10_000, 1.25, 50_000), (100_000, 1.175, 200_000)] {
            let info = check(bits, &keys[..count], asked);
            let spent = info.bits_per_key() / (f64::from(bits) * slots);
            assert!((0.999..1.05).contains(&spent), "{bits} bits, {count} keys: {spent}");
        }
    }
}

#[test]
#[ignore = "a million keys; cargo test --release -p tamis-filter --lib -- --ignored"]
fn rate_and_size_of_a_million_keys_are_those_of_theory() {
    let keys: Vec<KeyHash> = hashes(0..1_000_000).collect();
    for bits in FINGERPRINT_BITS {
        let info = check(bits, &keys, 10_000_000);
        let spent = info.bits_per_key() / (f64::from(bits) * 1.125);
        assert!((0.999..1.01).contains(&spent), "{bits} bits: {spent}");
    }
}

#[test]
fn slots_and_rate_are_those_of_the_reference_implementation() {
    for count in [10_000, 12_345, 50_000, 100_000, 300_000] {
        let keys: Vec<KeyHash> = hashes(0..count).collect();
        let values: Vec<u64> = keys.iter().map(|key| key.value()).collect();
        let reference = BinaryFuse8::try_from(&values[..]).unwrap();
        let filter = open(&build(fuse(8), &keys));
        // With fingerprints of 8 bits, a slot is a byte of a line.
        let slots = filter.info().unwrap().lines as f64 * 64.0;
        assert!((slots / reference.len() as f64 - 1.0).abs() < 0.01, "{count} keys: {slots}, {}", reference.len());
        let asked = 100_000;
        let expected =
            hashes(1 << 40..(1 << 40) + asked).filter(|hash| reference.contains(&hash.value())).count() as f64;
        let seen = maybes(&filter, asked);
        assert!((seen - expected).abs() < 5.0 * (seen + expected).sqrt(), "{count} keys: {seen}, {expected}");
    }
    let values: Vec<u64> = hashes(0..50_000).map(|key| key.value()).collect();
    let reference = BinaryFuse16::try_from(&values[..]).unwrap();
    let block = build(fuse(16), &hashes(0..50_000).collect::<Vec<_>>());
    assert!((block.info.lines as f64 * 32.0 / reference.len() as f64 - 1.0).abs() < 0.01);
}

#[test]
fn a_bloom_filter_of_the_same_rate_stands_in_for_a_small_fuse() {
    let keys: Vec<KeyHash> = hashes(0..9999).collect();
    for bits in FINGERPRINT_BITS {
        for count in [1, 10, 100, 9999] {
            let block = build(fuse(bits), &keys[..count]);
            let filter = open(&block);
            assert!(keys[..count].iter().all(|&key| filter.may_contain(key)));
            let info = filter.info().unwrap();
            let textbook = f64::from(bits) * 1000.0 / std::f64::consts::LN_2;
            assert_eq!((info.policy_id, info.probes), (1, bits));
            assert!((f64::from(info.millibits) / textbook - 1.0).abs() < 0.0005, "{info:?}");
        }
        let rate = build(fuse(bits), &keys).info.expected_fpr * f64::from(1u32 << bits);
        assert!((0.9..1.05).contains(&rate), "{bits} bits: {rate}");
    }
    assert_eq!(build(fuse(8), &[]).info.policy_id, 255);
}

#[test]
fn hashes_that_are_added_twice_count_once() {
    let keys: Vec<KeyHash> = hashes(0..12_000).chain(hashes(0..12_000)).collect();
    let info = build(fuse(8), &keys).info;
    assert_eq!((info.policy_id, info.keys), (4, 12_000));
}

#[test]
fn duplicate_hashes_make_no_fuse() {
    // A duplicate hash is never alone in a slot, in any attempt.
    let mut values: Vec<u64> = hashes(0..20_000).map(|hash| hash.value()).collect();
    values.push(values[0]);
    assert!(crate::fuse::build(8, &values).is_none());
}

#[test]
fn the_same_keys_in_any_order_make_the_same_block() {
    let mut keys: Vec<KeyHash> = hashes(0..15_000).collect();
    let block = build(fuse(7), &keys).bytes;
    keys.reverse();
    assert_eq!(build(fuse(7), &keys).bytes, block);
}

#[test]
fn each_changed_slot_of_a_key_makes_it_absent() {
    let keys: Vec<KeyHash> = hashes(0..50).collect();
    for bits in FINGERPRINT_BITS {
        let block = forced_fuse(bits, &keys);
        let mut denials = 0;
        for bit in HEADER_LEN * 8..block.len() * 8 {
            let mut block = block.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            header::tests::seal(&mut block);
            let filter = Filter::open(&block, 3);
            denials += keys.iter().filter(|&&key| !filter.may_contain(key)).count();
        }
        // Each key reads three slots, and every bit of them counts.
        assert_eq!(denials, keys.len() * 3 * usize::from(bits));
    }
}

#[test]
fn a_fuse_without_its_lines_means_maybe() {
    let (shape, lines) = crate::fuse::build(8, &[1, 2, 3]).unwrap();
    assert!(!crate::fuse::may_contain(shape, &lines, 9));
    assert!(crate::fuse::may_contain(shape, &[] as &[FilterLine], 9));
}

#[test]
fn golden_block_of_twenty_keys() {
    let keys: Vec<KeyHash> = (0..20u64).map(|key| KeyHash::new(3, &key.to_be_bytes())).collect();
    let block = forced_fuse(5, &keys);
    let hex: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
    let fields = [
        "464c543101040101",     // magic, version, policy, hash, flags
        "0300000000000000",     // seed
        "1400000000000000",     // keys
        "88130000",             // thousandths of bits per fingerprint
        "03000000",             // places, groups, extractor
        "0504000300000002",     // fingerprint bits, segment shift, attempt, segments, check byte
        "0100000000000000",     // lines
        "1dfd846894c24d69",     // hash of the lines
        "50d6dc01",             // rate, 1/32
        "d8048333",             // CRC
        "0070102d00b9fa00408f", // 16 slots of the first segment
        "a0030000c800190f2400", // of the second
        "0054000e006002a001c8", // of the third
    ];
    assert_eq!(hex, format!("{}{}", fields.concat(), "00".repeat(34)));
}
