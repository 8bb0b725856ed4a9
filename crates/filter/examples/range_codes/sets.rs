//! Eight sets of keys as programs have them, and what a distance is in each.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "makes its own keys")]

use fastrand::Rng;

pub(crate) type Key = Vec<u8>;

/// A set of keys: how they are made, and what a distance is.
pub(crate) struct KeySet {
    pub(crate) name: &'static str,
    /// A key of the set.
    pub(crate) make: fn(&Words, &mut Rng) -> Key,
    /// The key a number of units after another.
    pub(crate) add: fn(&[u8], u64) -> Key,
    /// Units between neighbours, on average: within a prefix, where keys have one.
    pub(crate) gap: fn(&[Key]) -> f64,
}

/// Words of URLs.
pub(crate) struct Words(Vec<String>);

impl Words {
    pub(crate) fn new(rng: &mut Rng) -> Words {
        let mut word = || (0..rng.usize(3..10)).map(|_| rng.lowercase()).collect();
        Words((0..3000).map(|_| word()).collect())
    }
}

fn log_uniform(rng: &mut Rng, n: usize) -> usize {
    ((n as f64).powf(rng.f64()) as usize - 1).min(n - 1)
}

fn u64_key(_: &Words, rng: &mut Rng) -> Key {
    rng.u64(..).to_be_bytes().to_vec()
}
fn hex_key(_: &Words, rng: &mut Rng) -> Key {
    format!("{:016x}", rng.u64(..)).into()
}
fn user_key(_: &Words, rng: &mut Rng) -> Key {
    format!("user{:012}", rng.u64(0..10_000_000_000)).into()
}
fn uuid_key(_: &Words, rng: &mut Rng) -> Key {
    let mut key = (1_790_000_000_000 + rng.u64(0..100_000_000)).to_be_bytes()[2..].to_vec();
    let rest = rng.u128(..).to_be_bytes();
    key.extend([0x70 | rest[0] & 15, rest[1], 0x80 | rest[2] & 63]);
    key.extend(&rest[3..10]);
    key
}
fn event_key(_: &Words, rng: &mut Rng) -> Key {
    let (user, object) = (log_uniform(rng, 3000) * 37, rng.u32(0..20));
    format!("u{user:08}:o{object:04}:{:013}", 1_790_000_000_000 + rng.u64(0..1_000_000_000)).into()
}
fn url_key(words: &Words, rng: &mut Rng) -> Key {
    let word = |rng: &mut Rng, n| &words.0[log_uniform(rng, n)];
    let (host, tld) = (word(rng, 600), ["com", "org", "net"][rng.usize(0..3)]);
    let (a, b) = (word(rng, 3000), word(rng, 3000));
    format!("https://{host}.{tld}/{a}/{b}/{}", rng.u32(0..10_000)).into()
}
/// Numbers ten apart, of which some are not there.
fn serial_key(_: &Words, rng: &mut Rng) -> Key {
    (rng.u64(..3_000_000) * 10).to_be_bytes().to_vec()
}
fn mix_key(words: &Words, rng: &mut Rng) -> Key {
    [u64_key, hex_key, user_key, uuid_key, event_key, url_key][rng.usize(0..6)](words, rng)
}

fn add_u64(key: &[u8], units: u64) -> Key {
    let number = u64::from_be_bytes(key.try_into().unwrap());
    number.saturating_add(units).to_be_bytes().to_vec()
}
fn add_hex(key: &[u8], units: u64) -> Key {
    let number = u64::from_str_radix(std::str::from_utf8(key).unwrap(), 16).unwrap();
    format!("{:016x}", number.saturating_add(units)).into()
}
/// Adds to the decimal number at the end.
fn add_decimal(key: &[u8], units: u64) -> Key {
    let digits = key.iter().rev().take_while(|byte| byte.is_ascii_digit()).count().min(19);
    let (head, tail) = key.split_at(key.len() - digits);
    let number: u64 = std::str::from_utf8(tail).unwrap().parse().unwrap_or(0);
    let sum = number.saturating_add(units).min(10u64.pow(digits as u32) - 1);
    [head, format!("{sum:0digits$}").as_bytes()].concat()
}
/// Adds to the milliseconds at the front.
fn add_uuid(key: &[u8], units: u64) -> Key {
    let mut time = [0; 8];
    time[2..].copy_from_slice(&key[..6]);
    let sum = u64::from_be_bytes(time).saturating_add(units).min((1 << 48) - 1);
    [&sum.to_be_bytes()[2..], &key[6..]].concat()
}
/// Distinct users' objects, or paths.
fn prefixes(keys: &[Key]) -> usize {
    let prefix = |key: &Key| key.iter().rposition(|byte| b"/:".contains(byte)).unwrap_or(0);
    1 + keys.windows(2).filter(|pair| pair[0][..prefix(&pair[0])] != pair[1][..prefix(&pair[1])]).count()
}
/// Which of the first six sets a key of the mix is of.
pub(crate) fn kind_of_mix(key: &[u8]) -> usize {
    let has = |prefix: &[u8]| key.starts_with(prefix);
    match key.len() {
        8 => 0,
        16 if has(b"user") => 2,
        16 if key.iter().all(u8::is_ascii_hexdigit) => 1,
        16 => 3,
        _ if has(b"https:") => 5,
        _ => 4,
    }
}
fn add_mix(key: &[u8], units: u64) -> Key {
    // Units of a mix are millionths of the gap in the key's own set.
    let kind = kind_of_mix(key);
    let set = &SETS[kind];
    // The gaps of some 33,000 keys.
    let gap = [5.5e14, 5.5e14, 3e5, 3e3, 4e8, 50.0][kind];
    (set.add)(key, ((units as f64 / 1e6 * gap) as u64).max(1))
}

pub(crate) const SETS: [KeySet; 8] = [
    KeySet { name: "u64", make: u64_key, add: add_u64, gap: |keys| 2f64.powi(64) / keys.len() as f64 },
    KeySet { name: "hex", make: hex_key, add: add_hex, gap: |keys| 2f64.powi(64) / keys.len() as f64 },
    KeySet { name: "user", make: user_key, add: add_decimal, gap: |keys| 1e10 / keys.len() as f64 },
    KeySet { name: "uuid7", make: uuid_key, add: add_uuid, gap: |keys| 1e8 / keys.len() as f64 },
    KeySet {
        name: "event",
        make: event_key,
        add: add_decimal,
        gap: |keys| 1e9 * prefixes(keys) as f64 / keys.len() as f64,
    },
    KeySet {
        name: "url",
        make: url_key,
        add: add_decimal,
        gap: |keys| 1e4 * prefixes(keys) as f64 / keys.len() as f64,
    },
    KeySet { name: "mix", make: mix_key, add: add_mix, gap: |_| 1e6 },
    KeySet { name: "serial", make: serial_key, add: add_u64, gap: |keys| 3e7 / keys.len() as f64 },
];
