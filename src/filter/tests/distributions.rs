//! The rate does not depend on what keys look like.

use std::fmt::Debug;

use super::alone::builders;
use super::*;

/// Builds filters of `present`, those of tables and those that are used alone, under every layout and hash, and checks that they say
/// "maybe" to `present`, and to `absent` as often as their bits say.
fn check(name: &str, present: &[Vec<u8>], absent: &[Vec<u8>]) {
    let check = |make: &dyn Debug, expected: f64, may_contain: &dyn Fn(&Vec<u8>) -> bool| {
        assert!(present.iter().all(may_contain), "{name}, {make:?}");
        let (maybes, asked) = (absent.iter().filter(|key| may_contain(key)).count() as f64, absent.len() as f64);
        let noise = 4.0 * (asked * expected).sqrt() + 2.0;
        let off = (maybes - asked * expected).abs();
        assert!(off < noise, "{name}, {make:?}: {maybes} of {asked}, expected {expected}");
    };
    let hash = |key: &Vec<u8>| KeyHash::new(3, key);
    let hashes: Vec<KeyHash> = present.iter().map(hash).collect();
    for policy in [split(10.0), standard(10.0)] {
        let filter = open(&build(policy, &hashes));
        check(&policy, filter.info().unwrap().expected_fpr, &|key| filter.may_contain(hash(key)));
    }
    for builder in builders() {
        let mut filter = builder.with_bits_per_key(present.len() as u64, 10.0).unwrap();
        filter.extend(present);
        check(&builder, filter.expected_fpr(), &|key| filter.contains(key));
    }
}

fn check_pairs(name: &str, present: impl Fn(u64) -> Vec<u8>, absent: impl Fn(u64) -> Vec<u8>) {
    let present: Vec<Vec<u8>> = (0..2000).map(present).collect();
    let absent: Vec<Vec<u8>> = (0..10_000).map(absent).collect();
    check(name, &present, &absent);
}

/// 16 bytes that look random, another 16 for each `i`.
fn random(i: u64) -> Vec<u8> {
    [remix(i), remix(!i)].map(u64::to_be_bytes).concat()
}

#[test]
fn counters_and_numbers() {
    check_pairs("sequential", |i| i.to_be_bytes().to_vec(), |i| (i + 5000).to_be_bytes().to_vec());
    check_pairs("even and odd", |i| (2 * i).to_be_bytes().to_vec(), |i| (2 * i + 1).to_be_bytes().to_vec());
    check_pairs("little-endian", |i| i.to_le_bytes().to_vec(), |i| (i + 5000).to_le_bytes().to_vec());
    check_pairs("padded decimal", |i| format!("user{i:010}").into(), |i| format!("user{:010}", i + 5000).into());
    check_pairs("decimal", |i| i.to_string().into(), |i| (i + 5000).to_string().into());
}

#[test]
fn text_and_random_bytes() {
    check_pairs("random", random, |i| random(i + (1 << 40)));
    let url = |i: u64, last: char| format!("https://www.example.com/catalogue/section/items/{i:08}/page-{last}").into();
    check_pairs("URLs that end otherwise", |i| url(i, 'a'), |i| url(i, 'b'));
    let uuid = |i: u64| {
        let (high, low) = (remix(i), remix(!i));
        let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff).into()
    };
    check_pairs("UUIDs", uuid, |i| uuid(i + (1 << 40)));
}

#[test]
fn neighbours_of_present_keys() {
    let long = |i: u64| [random(i), random(i + 5000)].concat();
    check_pairs("one bit away", long, |i| {
        let mut near = long(i % 2000);
        near[31 - (i / 2000) as usize] ^= 1 << (i % 8);
        near
    });
    check_pairs("prefixes", long, |i| {
        let mut prefix = long(i % 2000);
        prefix.truncate(31 - (i / 2000) as usize);
        prefix
    });
    let zeros = |i: u64| [random(i % 2000), vec![0; (i / 2000) as usize + 1]].concat();
    check_pairs("a zero byte more", random, zeros);
}

#[test]
fn all_keys_of_one_and_two_bytes() {
    let one = (0..=u8::MAX).map(|byte| vec![byte]);
    let two = (0..=u16::MAX).map(|pair| pair.to_be_bytes().to_vec());
    let (present, absent): (Vec<_>, Vec<_>) =
        one.chain(two).partition(|key| key.iter().fold(0, |sum, byte| sum ^ byte.count_ones()) % 2 == 0);
    check("one and two bytes", &present, &absent);
}

#[test]
fn keys_that_differ_in_one_byte_of_many() {
    let key = |len: usize, i: usize| {
        let mut key = vec![b'x'; len];
        key[i * 7 % len] = [b'a', b'b', b'c'][i % 3];
        key
    };
    let keys = |range: std::ops::Range<usize>| range.map(|i| key(1024, i)).collect::<Vec<_>>();
    check("1 KiB", &keys(0..110), &keys(110..1100));
    let keys = |range: std::ops::Range<usize>| range.map(|i| key(1 << 20, i)).collect::<Vec<_>>();
    check("1 MiB", &keys(0..2), &keys(2..6));
}
