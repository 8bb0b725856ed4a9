//! The textbook layout (policy 2), for stand-alone filters only: k probes anywhere in one array of
//! m bits, 512 per line.
//!
//! ```text
//! x = fastrange(hash, m)                      y = fastrange(remix(hash), m)
//! probe i is bit x, which is bit x & 511 of line x >> 9
//! then  x = (x + y) mod m,  y = (y + i + 1) mod m
//! ```
//!
//! This is enhanced double hashing (Dillinger and Manolios, 2004): probe i is x + i·y + (i³ −
//! i)/6 mod m. The cubic term keeps a key's probes apart when y is small or divides m. Two
//! hashes give m² pairs: n keys add about n/m² to the textbook rate, 0.02 % in a single line
//! and nothing in larger filters. Probing stops at the first unset bit. All of this is part
//! of the format.
//!
//! For comparison only: it has the rate of `split`, at two lines and two mispredicted branches per
//! absent key.

use super::hash::{fastrange, remix};
use super::line::{Fill, LINE_BITS, ReadLine, SetBits};

/// The positions of a key's probes among `bits` bits.
fn positions(probes: u32, bits: u64, hash: u64) -> impl Iterator<Item = u64> {
    let (mut x, mut y) = (fastrange(hash, bits), fastrange(remix(hash), bits));
    (1..=u64::from(probes)).map(move |i| {
        let position = x;
        x = add_mod(x, y, bits);
        y = add_mod(y, i, bits);
        position
    })
}

/// `a + b` modulo `n`, for `a` and `b` less than `n`.
fn add_mod(a: u64, b: u64, n: u64) -> u64 {
    let sum = a + b;
    if sum < n { sum } else { sum - n }
}

fn bit_count(lines: usize) -> u64 {
    lines as u64 * LINE_BITS
}

fn line_index(position: u64) -> usize {
    (position / LINE_BITS) as usize
}

/// Sets the bits of a key and returns how many of them were unset.
#[inline]
pub(super) fn insert<S: SetBits + ?Sized>(probes: u32, lines: &mut S, hash: u64) -> u64 {
    let positions = positions(probes, bit_count(lines.count()), hash);
    positions.map(|position| lines.set_all::<1>(line_index(position), position)).sum()
}

/// Whether all bits of a key are set.
pub(super) fn may_contain<L: ReadLine>(probes: u32, lines: &[L], hash: u64) -> bool {
    positions(probes, bit_count(lines.len()), hash)
        .all(|position| lines.get(line_index(position)).is_none_or(|line| line.get(position) & 1 == 1))
}

/// The indexes of the first two lines that [`may_contain`] reads.
#[inline]
pub(super) fn first_lines(count: usize, hash: u64) -> impl Iterator<Item = usize> {
    positions(2, bit_count(count), hash).map(line_index)
}

/// The exact false-positive rate of these bits. Single operations in a fixed order make the rate in
/// the header the same on every platform.
pub(super) fn exact_fpr(probes: u32, fill: &Fill) -> f64 {
    let fill = fill.ratio();
    (0..probes).fold(1.0, |rate, _| rate * fill)
}

/// The rate expected of a filter with `keys_per_bit` keys per bit: (1 − e^(−k·n/m))^k.
pub(super) fn model_fpr(probes: u32, keys_per_bit: f64) -> f64 {
    model_fill(probes, keys_per_bit).powf(f64::from(probes))
}

/// The share of bits that `keys_per_bit` keys per bit set; [`estimated_keys`] inverts it.
pub(super) fn model_fill(probes: u32, keys_per_bit: f64) -> f64 {
    -(-f64::from(probes) * keys_per_bit).exp_m1()
}

/// The number of keys, estimated from the bits; infinite when all are set.
pub(super) fn estimated_keys(probes: u32, fill: &Fill) -> f64 {
    let bits = (fill.lines() * LINE_BITS) as f64;
    -(-fill.ratio()).ln_1p() * bits / f64::from(probes)
}

#[cfg(test)]
mod tests {
    use super::super::hash::KeyHash;
    use super::super::line::FilterLine;
    use super::*;

    #[test]
    fn golden_positions_of_six_keys() {
        let u64_be = 1u64.to_be_bytes();
        let vectors: [(&[u8], [u64; 7]); 6] = [
            (b"", [90050, 465044, 328039, 191036, 54036, 429040, 292049]),
            (b"a", [461548, 13696, 77845, 141996, 206150, 270308, 334471]),
            (b"key", [375828, 222159, 68491, 426825, 273162, 119503, 477849]),
            (&u64_be, [486838, 321171, 155505, 501841, 336180, 170523, 4871]),
            (&[0; 16], [417300, 107082, 308865, 510650, 200438, 402230, 92027]),
            (&[0xab; 300], [391466, 209541, 27617, 357695, 175776, 505861, 323951]),
        ];
        for (key, expected) in vectors {
            let hash = KeyHash::new(0, key).value();
            assert!(positions(7, 512_000, hash).eq(expected), "{key:?}");
        }
    }

    #[test]
    fn each_cleared_bit_of_a_key_makes_it_absent() {
        let hash = KeyHash::new(7, b"key").value();
        for probes in 1..=32 {
            let mut lines = vec![FilterLine::default(); 3];
            insert(probes, &mut lines[..], hash);
            for bit in 0..3 * 512 {
                let mut cleared = lines.clone();
                cleared[bit / 512].0[bit % 512 / 64] &= !(1 << (bit % 64));
                let absent = cleared != lines;
                assert_eq!(may_contain(probes, &cleared, hash), !absent, "k {probes}, {bit}");
            }
        }
    }

    #[test]
    fn positions_stay_below_the_number_of_bits() {
        for hash in [0, 1, u64::MAX, 0x8000_0000_0000_0000] {
            for bits in [512, 1024, 512 * 12_345] {
                assert!(positions(32, bits, hash).all(|position| position < bits));
            }
        }
    }

    #[test]
    fn model_gives_the_published_rates() {
        for (bits, probes, published) in [
            (6.0, 4, 5.60567),
            (8.0, 6, 2.15771),
            (10.0, 7, 0.81937),
            (10.0, 6, 0.84362),
            (12.0, 8, 0.31424),
            (16.0, 11, 0.04587),
            (20.0, 14, 0.00671),
        ] {
            let rate = model_fpr(probes, 1.0 / bits) * 100.0;
            assert!((rate - published).abs() < 0.000_02, "{bits}: {rate}");
        }
    }
}
