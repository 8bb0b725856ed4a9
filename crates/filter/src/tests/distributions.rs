//! The rate does not depend on what keys look like.

use super::alone::{builders, random};
use super::*;

/// Rate of a textbook filter of 10 bits per key, which no layout should exceed:
/// (1 − e^(−7/10))^7.
const TEXTBOOK: f64 = 0.008_194;
/// Rate at 10 bits per key if all probes of a key lie in one line of 512 bits. A check that asks
/// for enough keys tells it from [`TEXTBOOK`].
const ONE_LINE: f64 = 0.009_57;
/// Absent keys from which on a check compares the rate with [`TEXTBOOK`].
const ENOUGH: f64 = 200_000.0;
/// Spread between the rates of filters over different keys: standard deviation over mean, times the
/// square root of the number of keys.
const SPREAD: f64 = 1.2;

/// How many keys to check.
#[derive(Clone, Copy)]
struct Size {
    /// Sets of keys, each with its own filters.
    sets: u64,
    /// Keys per set.
    keys: u64,
    /// Absent keys per present key.
    absent: usize,
}

/// 50,000 keys and 400,000 absent ones. 10,000 keys nearly fill whole lines, so that rounding does
/// not improve the rate.
const SMALL: Size = Size { sets: 5, keys: 10_000, absent: 8 };
const LARGE: Size = Size { sets: 1, keys: 1_000_000, absent: 10 };

/// Asks a filter.
type MayContain = dyn Fn(&[u8]) -> bool;

/// The counts of one kind of filter, over all sets of keys.
struct FilterCounts {
    kind: String,
    may_contain: Box<MayContain>,
    /// The exact rate of the bits of the current set.
    rate: f64,
    maybes: u64,
    expected: f64,
}

/// Filters of `present`, of tables and stand-alone, under every layout and hash.
fn filters(seed: u64, present: &[Vec<u8>]) -> Vec<FilterCounts> {
    let filter_counts = |kind, may_contain, rate| FilterCounts { kind, may_contain, rate, maybes: 0, expected: 0.0 };
    let hashes: Vec<KeyHash> = present.iter().map(|key| KeyHash::new(seed, key)).collect();
    let filter = Filter::open(&build(FilterPolicy::DEFAULT, &hashes).bytes, seed);
    let rate = filter.info().unwrap().expected_fpr;
    let may_contain = Box::new(move |key: &[u8]| filter.may_contain(KeyHash::new(seed, key))) as _;
    let of_a_table = filter_counts(format!("{:?}", FilterPolicy::DEFAULT), may_contain, rate);
    let alone = builders().map(|builder| {
        let mut filter = builder.seed(seed).with_bits_per_key(present.len() as u64, 10.0).unwrap();
        filter.extend(present);
        let rate = filter.expected_fpr();
        filter_counts(format!("{builder:?}"), Box::new(move |key: &[u8]| filter.contains(key)) as _, rate)
    });
    [of_a_table].into_iter().chain(alone).collect()
}

/// Checks filters of each of `sets`, which are pairs of present and absent keys. They must say
/// "maybe" to all present keys, and to absent ones as often as their bits predict. If a check asks
/// for enough absent keys, this must not be more often than in a textbook filter.
fn check<A: Iterator<Item = Vec<u8>>>(name: &str, sets: impl Iterator<Item = (Vec<Vec<u8>>, A)>) {
    let (mut sums, mut keys, mut asked) = (Vec::<FilterCounts>::new(), 0.0, 0.0);
    for (seed, (present, absent)) in (3..).zip(sets) {
        let mut filters = filters(seed, &present);
        for filter_counts in &filters {
            assert!(present.iter().all(|key| (filter_counts.may_contain)(key)), "{name}, {}", filter_counts.kind);
        }
        for key in absent {
            asked += 1.0;
            for filter_counts in &mut filters {
                filter_counts.maybes += u64::from((filter_counts.may_contain)(&key));
                filter_counts.expected += filter_counts.rate;
            }
        }
        keys += present.len() as f64;
        if sums.is_empty() {
            sums = filters;
            continue;
        }
        for (sum, filter_counts) in sums.iter_mut().zip(filters) {
            sum.maybes += filter_counts.maybes;
            sum.expected += filter_counts.expected;
        }
    }
    let textbook = asked * TEXTBOOK;
    let most = textbook + 4.0 * (textbook + (textbook * SPREAD).powi(2) / keys).sqrt();
    assert!(asked < ENOUGH || most < asked * ONE_LINE, "the bound can tell the layouts apart");
    for FilterCounts { kind, maybes, expected, .. } in sums {
        let off = (maybes as f64 - expected).abs();
        assert!(off < 4.0 * expected.sqrt() + 0.5, "{name}, {kind}: {maybes} of {asked}, by the bits {expected}");
        assert!(asked < ENOUGH || maybes as f64 <= most, "{name}, {kind}: {maybes} of {asked}, at most {most}");
    }
}

/// Checks keys that `present` makes of numbers. `absent` makes absent keys of a number and a second
/// one below [`Size::absent`].
fn check_pairs(name: &str, size: Size, present: impl Fn(u64) -> Vec<u8>, absent: impl Fn(u64, usize) -> Vec<u8>) {
    let sets = (0..size.sets).map(|set| {
        let first = set * size.keys * (size.absent as u64 + 1);
        let numbers = first..first + size.keys;
        let absent = &absent;
        let others = numbers.clone().flat_map(move |i| (0..size.absent).map(move |other| absent(i, other)));
        (numbers.map(&present).collect(), others)
    });
    check(name, sets);
}

/// [`check_pairs`] with absent keys that are made of the numbers that follow.
fn check_numbers(name: &str, size: Size, key: impl Fn(u64) -> Vec<u8>) {
    check_pairs(name, size, &key, |i, other| key(i + (other as u64 + 1) * size.keys));
}

fn check_counters(size: Size) {
    check_numbers("sequential", size, |i| i.to_be_bytes().to_vec());
    let odd = |i: u64, other: usize| (2 * (i + other as u64 * size.keys) + 1).to_be_bytes().to_vec();
    check_pairs("even and odd", size, |i| (2 * i).to_be_bytes().to_vec(), odd);
    check_numbers("little-endian", size, |i| i.to_le_bytes().to_vec());
    check_numbers("padded decimal", size, |i| format!("user{i:010}").into());
    check_numbers("decimal", size, |i| i.to_string().into());
}

fn check_text(size: Size) {
    check_numbers("random", size, |i| random(i).to_vec());
    let url = |i: u64, last: char| format!("https://www.example.com/catalogue/section/items/{i:08}/page-{last}").into();
    let ends = ['b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k'];
    check_pairs("URLs that end otherwise", size, |i| url(i, 'a'), |i, other| url(i, ends[other]));
    check_numbers("UUIDs", size, |i| {
        let (high, low) = (remix(i), remix(!i));
        let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff).into()
    });
}

fn check_neighbours(size: Size) {
    let long = |i: u64| [random(i), random(i + (1 << 40))].concat();
    check_pairs("one bit away", size, long, |i, other| {
        let mut near = long(i);
        near[31 - other] ^= 1 << (i % 8);
        near
    });
    check_pairs("prefixes", size, long, |i, other| {
        let mut prefix = long(i);
        prefix.truncate(31 - other);
        prefix
    });
    let zeros = |i: u64, other: usize| [random(i).to_vec(), vec![0; other + 1]].concat();
    check_pairs("zero bytes more", size, |i| random(i).to_vec(), zeros);
}

#[test]
fn counters_and_numbers() {
    check_counters(SMALL);
}

#[test]
fn text_and_random_bytes() {
    check_text(SMALL);
}

#[test]
fn neighbours_of_present_keys() {
    check_neighbours(SMALL);
}

#[test]
#[ignore = "a million keys and ten million absent ones of each kind; cargo test --release -p tamis-filter --lib -- --ignored"]
fn a_million_keys_of_every_kind() {
    check_counters(LARGE);
    check_text(LARGE);
    check_neighbours(LARGE);
}

#[test]
fn all_keys_of_one_and_two_bytes() {
    let one = (0..=u8::MAX).map(|byte| vec![byte]);
    let two = (0..=u16::MAX).map(|pair| pair.to_be_bytes().to_vec());
    let (present, absent): (Vec<_>, Vec<_>) =
        one.chain(two).partition(|key| key.iter().fold(0, |sum, byte| sum ^ byte.count_ones()) % 2 == 0);
    // There are no other keys, but there are other seeds.
    check("one and two bytes", (0..13).map(|_| (present.clone(), absent.iter().cloned())));
}

#[test]
fn keys_that_differ_in_one_byte_of_many() {
    let key = |len: usize, i: usize| {
        let mut key = vec![b'x'; len];
        // Each key differs at another position, in up to 255 ways at each position.
        key[i * 7 % len] ^= u8::try_from(i / len).unwrap() + 1;
        key
    };
    let size = Size { sets: 5, keys: 10_000, absent: 4 };
    let in_set = |i: u64| usize::try_from(i % 50_000).unwrap();
    let absent = |i, other| key(1024, in_set(i) + (other + 1) * 10_000);
    check_pairs("1 KiB", size, |i| key(1024, in_set(i)), absent);
    // With so few keys, no absent one may pass.
    let keys = |range: std::ops::Range<usize>| range.map(|i| key(1 << 20, i));
    check("1 MiB", std::iter::once((keys(0..2).collect(), keys(2..16))));
}
