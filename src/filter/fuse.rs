//! A binary fuse filter with packed fingerprints, policy 4: fewer bits than a Bloom filter of the same rate, three places per key.
//!
//! ```text
//! slots of r bits, in segments of 2^s slots       slot i is bits  i·r .. (i+1)·r  of the lines, low bits first
//! g = remix(hash + attempt · STEP)
//! a = fastrange(g, (segments − 2) · 2^s)          the high bits of g
//! b = (a + 2^s) xor bits 18 .. 18+s of g          in the segment behind a's
//! c = (a + 2·2^s) xor bits 0 .. s of g            in the one behind b's
//! a key is there, maybe, if  slot a xor slot b xor slot c = the low r bits of its hash
//! ```
//!
//! After Graf and Lemire, "Binary Fuse Filters: Fast and Smaller Than Xor Filters" (arXiv 2201.01174), in three places. There the
//! fingerprint is taken from `g`; here it comes from the hash itself, which `remix` has nothing left in common with. So whatever the
//! slots hold, an absent key's fingerprint meets their xor with probability 2^−r: the rate of a filter is not measured but known.
//! What is left of the last line means nothing. All of it is part of the format; how many slots a writer takes is not.
//!
//! To build it, a key that has a slot for itself is taken out ("peeled"), which leaves other keys alone in theirs, until none is left;
//! in the opposite order each key's own slot is given what makes its xor right. That fails once in a while, and the next attempt places
//! all keys anew. It needs the hashes to be distinct, 8 bytes for each of them and 13 for each slot, which is
//! 23 to 25 bytes per key in all, and the filter itself.

use super::hash::{fastrange, remix};
use super::line::{LINE_BITS, Line};
use super::sizing::MAX_BUILT_LINES;
use crate::filter::FINGERPRINT_BITS;
use crate::format::{Decoded, Malformed};

/// Places of a key. Part of the format.
pub(super) const PLACES: u8 = 3;
/// Attempts that are made. Part of the format.
const ATTEMPTS: u8 = 100;
/// What an attempt adds to the hash. Part of the format.
const STEP: u64 = 0xBF58_476D_1CE4_E5B9;
/// Segments of 4 slots at least and of 2^18 at most: as many bits of `g` choose the place in one. Part of the format.
const SEGMENT_SHIFTS: std::ops::RangeInclusive<u8> = 2..=18;
/// With fewer keys a Bloom filter is built instead: a small fuse takes a quarter more slots than keys, and more.
pub(super) const MIN_KEYS: usize = 10_000;

/// What the header says of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    fingerprint_bits: u8,
    segment_shift: u8,
    attempt: u8,
    segments: u32,
}

impl Shape {
    /// The shape in which `keys` keys find their places almost always. `None` when they are too many.
    ///
    /// The rules are those of the paper's authors: segments of 2^⌊log(n) / log(3.33) + 2.25⌋ slots, and
    /// n · max(1.125, 0.875 + 0.25 · log(10^6) / log(n)) slots; in integers, so that every platform makes the same file.
    fn for_keys(keys: usize, fingerprint_bits: u8) -> Option<Shape> {
        /// log2(3.33), 2.25 · log2(3.33) and 0.25 · log2(10^6), in 1/2^16.
        const SHIFT_STEP: u64 = 113_739;
        const SHIFT_START: u64 = 255_913;
        const GROWTH: u64 = 326_559;
        let keys = keys as u64;
        let log = log2(keys.max(2));
        let shift = u8::try_from((log + SHIFT_START) / SHIFT_STEP).unwrap_or(u8::MAX);
        let segment_shift = shift.clamp(*SEGMENT_SHIFTS.start(), *SEGMENT_SHIFTS.end());
        let slots_per_key = ((7 << 13) + (GROWTH << 16) / log).max(9 << 13);
        let slots = (u128::from(keys) * u128::from(slots_per_key)) >> 16;
        let segments = u32::try_from(slots.div_ceil(1 << segment_shift)).ok()?.max(PLACES.into());
        let shape = Shape { fingerprint_bits, segment_shift, attempt: 0, segments };
        let fits = u32::try_from(shape.slots()).is_ok() && shape.line_count() <= MAX_BUILT_LINES;
        fits.then_some(shape)
    }

    /// From the eight bytes of the header; the last is the xor of the others, since any attempt and many sizes are as good as others
    /// to every other rule.
    pub(super) fn decode(bytes: [u8; 8]) -> Decoded<Shape> {
        let [fingerprint_bits, segment_shift, attempt, s0, s1, s2, s3, _] = bytes;
        let segments = u32::from_le_bytes([s0, s1, s2, s3]);
        let rules = [
            (parity(bytes) == 0, "the check byte of the filter's shape does not match"),
            (
                FINGERPRINT_BITS.contains(&fingerprint_bits),
                "the filter's fingerprints are not of 4 to 8, 10, 12 or 16 bits",
            ),
            (SEGMENT_SHIFTS.contains(&segment_shift), "the filter's segments are not of 2^2 to 2^18 slots"),
            (attempt < ATTEMPTS, "the filter was built in more than 100 attempts"),
            (segments >= PLACES.into(), "the filter has fewer than 3 segments"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Malformed(rule)),
            None => Ok(Shape { fingerprint_bits, segment_shift, attempt, segments }),
        }
    }

    pub(super) fn encode(self) -> [u8; 8] {
        let [s0, s1, s2, s3] = self.segments.to_le_bytes();
        let mut bytes = [self.fingerprint_bits, self.segment_shift, self.attempt, s0, s1, s2, s3, 0];
        bytes[7] = parity(bytes);
        bytes
    }

    pub(super) fn slots(self) -> u64 {
        u64::from(self.segments) << self.segment_shift
    }

    /// Lines that hold the slots.
    pub(super) fn line_count(self) -> u64 {
        (self.slots() * u64::from(self.fingerprint_bits)).div_ceil(LINE_BITS)
    }

    /// The false-positive rate: 2^−r.
    pub(super) fn fpr(self) -> f64 {
        1.0 / f64::from(1u32 << self.fingerprint_bits)
    }

    /// The slots of a key, each in another segment.
    fn places(self, hash: u64) -> [u64; PLACES as usize] {
        let g = remix(hash.wrapping_add(u64::from(self.attempt).wrapping_mul(STEP)));
        let len = 1 << self.segment_shift;
        let a = fastrange(g, self.slots() - 2 * len);
        [a, (a + len) ^ ((g >> 18) & (len - 1)), (a + 2 * len) ^ (g & (len - 1))]
    }

    fn fingerprint(self, value: u64) -> u64 {
        value & ((1 << self.fingerprint_bits) - 1)
    }

    /// The word in which a slot begins, and the bit there.
    fn word_of(self, slot: u64) -> (usize, u32) {
        let bit = slot * u64::from(self.fingerprint_bits);
        ((bit / 64) as usize, (bit % 64) as u32)
    }

    fn get(self, lines: &[Line], slot: u64) -> Option<u64> {
        let (at, bit) = self.word_of(slot);
        // The rest of the slot, if it goes on in the next word; in two shifts, because one may not be by 64.
        let rest = word(lines, at + 1).unwrap_or(0) << 1 << (63 - bit);
        Some(self.fingerprint((word(lines, at)? >> bit) | rest))
    }

    /// Sets a slot that is 0.
    fn set(self, lines: &mut [Line], slot: u64, value: u64) {
        let (at, bit) = self.word_of(slot);
        for (at, bits) in [(at, value << bit), (at + 1, value >> 1 >> (63 - bit))] {
            if let Some(line) = lines.get_mut(at / 8) {
                line.0[at % 8] |= bits;
            }
        }
    }

    /// The xor of a key's slots; `None` if there are fewer lines than the shape says.
    fn xor(self, lines: &[Line], hash: u64) -> Option<u64> {
        self.places(hash).into_iter().try_fold(0, |xor, slot| Some(xor ^ self.get(lines, slot)?))
    }
}

fn word(lines: &[Line], at: usize) -> Option<u64> {
    Some(lines.get(at / 8)?.0[at % 8])
}

fn parity(bytes: [u8; 8]) -> u8 {
    bytes.into_iter().fold(0, |parity, byte| parity ^ byte)
}

/// Log2 of `n`, at least 1, in 1/2^16, rounded down: a square has twice the logarithm, whose whole part is seen.
fn log2(n: u64) -> u64 {
    let whole = n.ilog2();
    let (mut log, mut x) = (u64::from(whole), u128::from(n) << (63 - whole));
    for _ in 0..16 {
        x = (x * x) >> 63;
        let carry = x >> 64;
        x >>= carry;
        log = log << 1 | u64::from(carry == 1);
    }
    log
}

/// Whether a key's slots make up its fingerprint.
pub(super) fn may_contain(shape: Shape, lines: &[Line], hash: u64) -> bool {
    shape.xor(lines, hash).is_none_or(|xor| xor == shape.fingerprint(hash))
}

/// Slots of the filter of so many distinct keys; `None` if a Bloom filter is built for them instead.
pub(super) fn slots(keys: u64, fingerprint_bits: u8) -> Option<u64> {
    let keys = usize::try_from(keys).ok().filter(|keys| *keys >= MIN_KEYS)?;
    Some(Shape::for_keys(keys, fingerprint_bits)?.slots())
}

/// The filter of `hashes`, which are distinct. `None` if no attempt found a place for each key, or they are too many.
pub(super) fn build(fingerprint_bits: u8, hashes: &[u64]) -> Option<(Shape, Vec<Line>)> {
    let mut shape = Shape::for_keys(hashes.len(), fingerprint_bits)?;
    let mut slots = Slots::new(shape);
    let order = (0..ATTEMPTS).find_map(|attempt| {
        shape.attempt = attempt;
        slots.peel(shape, hashes)
    })?;
    let mut lines: Vec<Line> = (0..shape.line_count()).map(|_| Line::default()).collect();
    for slot in order.into_iter().rev() {
        // The key's own slot is still 0, and those of its other two places are final.
        let hash = slots.sums[slot as usize];
        let value = shape.fingerprint(hash) ^ shape.xor(&lines, hash)?;
        shape.set(&mut lines, slot.into(), value);
    }
    Some((shape, lines))
}

/// Which keys have a place in each slot, as far as is needed: how many, and the xor of their hashes, which is the hash when there
/// is one.
struct Slots {
    sums: Vec<u64>,
    counts: Vec<u8>,
}

impl Slots {
    fn new(shape: Shape) -> Slots {
        let count = index(shape.slots());
        Slots { sums: vec![0; count], counts: vec![0; count] }
    }

    /// The slots that belong to one key each, in the order in which the keys were taken out; `sums` tells which key. `None` if some
    /// keys cannot be.
    fn peel(&mut self, shape: Shape, hashes: &[u64]) -> Option<Vec<u32>> {
        self.sums.fill(0);
        self.counts.fill(0);
        for &hash in hashes {
            for slot in shape.places(hash).map(index) {
                self.sums[slot] ^= hash;
                self.counts[slot] = self.counts[slot].checked_add(1)?;
            }
        }
        // A count only falls from here on: each slot comes into the queue once, when it is left with one key.
        let mut queue = Vec::with_capacity(self.counts.len());
        queue.extend((0u32..).zip(&self.counts).filter(|&(_, &count)| count == 1).map(|(slot, _)| slot));
        let (mut next, mut peeled) = (0, 0);
        while let Some(&slot) = queue.get(next) {
            next += 1;
            // Its key may have been taken out through another of its slots.
            if self.counts[slot as usize] == 0 {
                continue;
            }
            queue[peeled] = slot;
            peeled += 1;
            let hash = self.sums[slot as usize];
            for place in shape.places(hash) {
                let other = index(place);
                self.counts[other] -= 1;
                if place != u64::from(slot) {
                    self.sums[other] ^= hash;
                    if self.counts[other] == 1 {
                        queue.push(u32::try_from(place).ok()?);
                    }
                }
            }
        }
        queue.truncate(peeled);
        (peeled == hashes.len()).then_some(queue)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a shape that is built has fewer than 2^32 slots")]
fn index(slot: u64) -> usize {
    slot as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_those_of_floating_point() {
        for n in (1..2000).chain((10..64).map(|shift| (1 << shift) - 1)).chain([10_000, 1_000_000, u64::MAX]) {
            let exact = (n as f64).log2() * 65536.0;
            assert!((log2(n) as f64 - exact).abs() < 1.01, "{n}");
        }
    }

    #[test]
    fn shapes_are_those_of_the_paper() {
        for keys in [10, 100, 9999, 10_000, 20_000, 123_456, 1_000_000, 10_000_000, 300_000_000usize] {
            let n = keys as f64;
            let shape = Shape::for_keys(keys, 4).unwrap();
            let shift = (n.ln() / 3.33f64.ln() + 2.25).floor().min(18.0);
            assert_eq!(f64::from(shape.segment_shift), shift, "{keys} keys");
            let slots = n * (0.875 + 0.25 * 1e6f64.ln() / n.ln()).max(1.125);
            let segments = (slots / shift.exp2()).ceil().max(3.0);
            assert!((f64::from(shape.segments) - segments).abs() <= 1.0, "{keys} keys");
        }
    }

    #[test]
    fn too_many_keys_have_no_shape() {
        assert!(Shape::for_keys(3_000_000_000, 4).is_some());
        assert!(Shape::for_keys(3_000_000_000, 16).is_none());
        assert!(Shape::for_keys(4_000_000_000, 4).is_none());
        assert!(Shape::for_keys(usize::MAX, 4).is_none());
    }

    #[test]
    fn places_lie_in_neighbouring_segments() {
        let mut shape = Shape::for_keys(500, 8).unwrap();
        for attempt in 0..ATTEMPTS {
            shape.attempt = attempt;
            for hash in [0, 1, u64::MAX, 1 << 63].into_iter().chain((0..200).map(remix)) {
                let [a, b, c] = shape.places(hash).map(|slot| slot >> shape.segment_shift);
                assert_eq!((b, c), (a + 1, a + 2));
                assert!(c < shape.segments.into());
            }
        }
    }

    #[test]
    fn shapes_that_break_a_rule_are_refused() {
        let good = Shape::for_keys(500, 8).unwrap();
        assert_eq!(Shape::decode(good.encode()), Ok(good));
        for bad in [
            Shape { fingerprint_bits: 9, ..good },
            Shape { fingerprint_bits: 0, ..good },
            Shape { segment_shift: 1, ..good },
            Shape { segment_shift: 19, ..good },
            Shape { attempt: 100, ..good },
            Shape { segments: 2, ..good },
        ] {
            assert!(Shape::decode(bad.encode()).is_err(), "{bad:?}");
        }
        for bit in 0..64 {
            let flipped = u64::from_le_bytes(good.encode()) ^ 1 << bit;
            assert!(Shape::decode(flipped.to_le_bytes()).is_err(), "bit {bit}");
        }
    }
}
