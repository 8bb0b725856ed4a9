//! A binary fuse filter with packed fingerprints (policy 4): fewer bits than a Bloom filter of the
//! same rate, and three slots per key.
//!
//! ```text
//! slots of r bits, in segments of 2^s slots
//! slot i = bits i·r .. (i+1)·r of the lines, low bits first
//! g = remix(hash + attempt · STEP)
//! a = fastrange(g, (segments − 2) · 2^s)          the high bits of g
//! b = (a + 2^s) xor bits 18 .. 18+s of g          in the segment after a's
//! c = (a + 2·2^s) xor bits 0 .. s of g            in the segment after b's
//! a key may be present if  slot a xor slot b xor slot c = the low r bits of its hash
//! ```
//!
//! After Graf and Lemire, "Binary Fuse Filters: Fast and Smaller Than Xor Filters" (arXiv
//! 2201.01174), the variant with three slots per key. The paper takes the fingerprint from `g`.
//! Here it comes from the hash itself, which has nothing in common with `g` after `remix`. Whatever
//! the slots hold, an absent key's fingerprint equals their xor with probability 2^−r: the rate
//! is known, not measured. Bits after the last slot are ignored. All of this is part of the format,
//! except the number of slots that a writer chooses.
//!
//! The builder removes ("peels") keys that are alone in one of their slots, which leaves other keys
//! alone in theirs, until none is left. In reverse order, it sets each key's own slot so that the
//! key's xor is right. Peeling fails now and then; the next attempt maps all keys anew. After
//! [`ATTEMPTS_PER_SIZE`] failures the filter grows by a segment: where the rules for the size step
//! to longer segments, few of them are left, and peeling often fails (measured for 11,522 keys in
//! 14 segments of 2^10 slots: 43 attempts on average). The hashes must be distinct. Building takes
//! 8 bytes per hash and 13 per slot, 23 to 25 bytes per key in all, plus the filter.

use super::hash::{fastrange, remix};
use super::line::{FilterLine, LINE_BITS};
use super::sizing::MAX_BUILT_LINES;
use crate::FINGERPRINT_BITS;
use tamis_base::format::coding::{get_u32, set_u32};
use tamis_base::format::{Decoded, Malformed};

/// Memory that building takes, beside the filter.
pub(super) const BYTES_PER_KEY: usize = 25;
/// Slots per key. Part of the format.
pub(super) const ARITY: u8 = 3;
/// Most attempts to build a filter. Part of the format.
const ATTEMPTS: u8 = 100;
/// Failed attempts after which the filter grows by a segment. Almost every size needs fewer.
const ATTEMPTS_PER_SIZE: u8 = 4;
/// Added to the hash once per attempt. Part of the format.
const STEP: u64 = 0xBF58_476D_1CE4_E5B9;
/// Log2 of a segment's slots, 4 to 2^18: the number of bits of `g` that choose a slot in the
/// segment. Part of the format.
const SEGMENT_SHIFTS: std::ops::RangeInclusive<u8> = 2..=18;
/// With fewer keys the builder makes a Bloom filter: a small fuse takes at least a quarter more
/// slots than keys.
pub(super) const MIN_KEYS: usize = 10_000;

/// The header's fields about the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FuseShape {
    fingerprint_bits: u8,
    segment_shift: u8,
    attempt: u8,
    segments: u32,
}

impl FuseShape {
    /// The shape in which `keys` keys almost always find slots. `None` if there are too many keys.
    ///
    /// The rules of the paper's authors: segments of 2^⌊log(n) / log(3.33) + 2.25⌋ slots, and
    /// max(1.125, 0.875 + 0.25 · log(10^6) / log(n)) slots per key. Integer arithmetic makes
    /// the file the same on every platform.
    pub(super) fn for_keys(keys: usize, fingerprint_bits: u8) -> Option<FuseShape> {
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
        let segments = u32::try_from(slots.div_ceil(1 << segment_shift)).ok()?.max(ARITY.into());
        FuseShape { fingerprint_bits, segment_shift, attempt: 0, segments }.if_buildable()
    }

    fn if_buildable(self) -> Option<FuseShape> {
        let fits = u32::try_from(self.slots()).is_ok() && self.line_count() <= MAX_BUILT_LINES;
        fits.then_some(self)
    }

    /// The shape to try when this one has failed: the next attempt, in one segment more if this
    /// size has failed often enough. `None` after the last attempt, or if it would be too large.
    fn after_failure(self) -> Option<FuseShape> {
        let attempt = self.attempt + 1;
        let segments = self.segments.checked_add(attempt.is_multiple_of(ATTEMPTS_PER_SIZE).into())?;
        let next = FuseShape { attempt, segments, ..self };
        next.if_buildable().filter(|next| next.attempt < ATTEMPTS)
    }

    /// Decodes eight bytes of the header. The last is the xor of the others: no other rule notices
    /// a wrong attempt, or a wrong size in most cases.
    pub(super) fn decode(bytes: [u8; 8]) -> Decoded<FuseShape> {
        let [fingerprint_bits, segment_shift, attempt, s0, s1, s2, s3, _] = bytes;
        let segments = get_u32(&[s0, s1, s2, s3]);
        let rules = [
            (parity(bytes) == 0, "the check byte of the filter's shape does not match"),
            (
                FINGERPRINT_BITS.contains(&fingerprint_bits),
                "the filter's fingerprints do not have 4 to 8, 10, 12 or 16 bits",
            ),
            (SEGMENT_SHIFTS.contains(&segment_shift), "the filter's segments do not have 2^2 to 2^18 slots"),
            (attempt < ATTEMPTS, "the filter took more than 100 attempts to build"),
            (segments >= ARITY.into(), "the filter has fewer than 3 segments"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Malformed(rule)),
            None => Ok(FuseShape { fingerprint_bits, segment_shift, attempt, segments }),
        }
    }

    pub(super) fn encode(self) -> [u8; 8] {
        let mut bytes = [self.fingerprint_bits, self.segment_shift, self.attempt, 0, 0, 0, 0, 0];
        set_u32(&mut bytes, 3, self.segments);
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

    /// A key's slots, in three adjacent segments.
    fn slots_of(self, hash: u64) -> [u64; ARITY as usize] {
        let g = remix(hash.wrapping_add(u64::from(self.attempt).wrapping_mul(STEP)));
        let len = 1 << self.segment_shift;
        let a = fastrange(g, self.slots() - 2 * len);
        [a, (a + len) ^ ((g >> 18) & (len - 1)), (a + 2 * len) ^ (g & (len - 1))]
    }

    /// The indexes of the lines in which a key's slots begin.
    pub(super) fn lines_of(self, hash: u64) -> [usize; ARITY as usize] {
        self.slots_of(hash).map(|slot| self.word_of(slot).0 / 8)
    }

    pub(super) fn fingerprint_bits(self) -> u8 {
        self.fingerprint_bits
    }

    fn fingerprint(self, value: u64) -> u64 {
        value & ((1 << self.fingerprint_bits) - 1)
    }

    /// The word in which a slot begins, and its first bit there.
    fn word_of(self, slot: u64) -> (usize, u32) {
        let bit = slot * u64::from(self.fingerprint_bits);
        ((bit / 64) as usize, (bit % 64) as u32)
    }

    fn get(self, lines: &[FilterLine], slot: u64) -> Option<u64> {
        let (at, bit) = self.word_of(slot);
        // The slot may end in the next word. Two shifts, because one shift by 64 would overflow.
        let rest = word(lines, at + 1).unwrap_or(0) << 1 << (63 - bit);
        Some(self.fingerprint((word(lines, at)? >> bit) | rest))
    }

    /// Sets a slot that is 0.
    fn set(self, lines: &mut [FilterLine], slot: u64, value: u64) {
        let (at, bit) = self.word_of(slot);
        for (at, bits) in [(at, value << bit), (at + 1, value >> 1 >> (63 - bit))] {
            if let Some(line) = lines.get_mut(at / 8) {
                line.0[at % 8] |= bits;
            }
        }
    }

    /// The xor of a key's slots; `None` if there are fewer lines than the shape says.
    fn xor(self, lines: &[FilterLine], hash: u64) -> Option<u64> {
        self.slots_of(hash).into_iter().try_fold(0, |xor, slot| Some(xor ^ self.get(lines, slot)?))
    }
}

fn word(lines: &[FilterLine], at: usize) -> Option<u64> {
    Some(lines.get(at / 8)?.0[at % 8])
}

fn parity(bytes: [u8; 8]) -> u8 {
    bytes.into_iter().fold(0, |parity, byte| parity ^ byte)
}

/// Log2 of `n` (at least 1) in 1/2^16, rounded down. Each squaring doubles the logarithm and yields
/// its next bit.
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

/// Whether the xor of a key's slots is its fingerprint; also true if lines are missing.
pub(super) fn may_contain(shape: FuseShape, lines: &[FilterLine], hash: u64) -> bool {
    shape.xor(lines, hash).is_none_or(|xor| xor == shape.fingerprint(hash))
}

/// Slots of a filter of `keys` distinct keys, at its first attempts; `None` if the builder makes a
/// Bloom filter instead.
pub(super) fn slots(keys: u64, fingerprint_bits: u8) -> Option<u64> {
    let keys = usize::try_from(keys).ok().filter(|keys| *keys >= MIN_KEYS)?;
    Some(FuseShape::for_keys(keys, fingerprint_bits)?.slots())
}

/// The filter of `hashes`, which must be distinct. `None` if every attempt fails, or there are too
/// many hashes.
pub(super) fn build(fingerprint_bits: u8, hashes: &[u64]) -> Option<(FuseShape, Vec<FilterLine>)> {
    let mut table = PeelTable::default();
    let first = FuseShape::for_keys(hashes.len(), fingerprint_bits)?;
    let mut shapes = std::iter::successors(Some(first), |shape| shape.after_failure());
    let (shape, order) = shapes.find_map(|shape| Some((shape, table.peel(shape, hashes)?)))?;
    let mut lines: Vec<FilterLine> = (0..shape.line_count()).map(|_| FilterLine::default()).collect();
    for slot in order.into_iter().rev() {
        // The key's own slot is still 0, and its other two are final.
        let hash = table.sums[slot as usize];
        let value = shape.fingerprint(hash) ^ shape.xor(&lines, hash)?;
        shape.set(&mut lines, slot.into(), value);
    }
    Some((shape, lines))
}

/// For each slot, how many keys map to it and the xor of their hashes: the hash itself when one key
/// is left.
#[derive(Default)]
struct PeelTable {
    sums: Vec<u64>,
    counts: Vec<u8>,
}

impl PeelTable {
    /// The slots that belong to one key each, in the order in which the keys were peeled; `sums`
    /// has each key's hash. `None` if some keys cannot be peeled.
    fn peel(&mut self, shape: FuseShape, hashes: &[u64]) -> Option<Vec<u32>> {
        let count = index(shape.slots());
        self.sums.clear();
        self.sums.resize(count, 0);
        self.counts.clear();
        self.counts.resize(count, 0);
        for &hash in hashes {
            for slot in shape.slots_of(hash).map(index) {
                self.sums[slot] ^= hash;
                self.counts[slot] = self.counts[slot].checked_add(1)?;
            }
        }
        // Counts only fall from here on: a slot enters the queue once, when one key is left in it.
        let mut queue = Vec::with_capacity(self.counts.len());
        queue.extend((0u32..).zip(&self.counts).filter(|&(_, &count)| count == 1).map(|(slot, _)| slot));
        let (mut next, mut peeled) = (0, 0);
        while let Some(&slot) = queue.get(next) {
            next += 1;
            // Its key may have been peeled through another of its slots.
            if self.counts[slot as usize] == 0 {
                continue;
            }
            queue[peeled] = slot;
            peeled += 1;
            let hash = self.sums[slot as usize];
            for key_slot in shape.slots_of(hash) {
                let other = index(key_slot);
                self.counts[other] -= 1;
                if key_slot != u64::from(slot) {
                    self.sums[other] ^= hash;
                    if self.counts[other] == 1 {
                        queue.push(u32::try_from(key_slot).ok()?);
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
            let shape = FuseShape::for_keys(keys, 4).unwrap();
            let shift = (n.ln() / 3.33f64.ln() + 2.25).floor().min(18.0);
            assert_eq!(f64::from(shape.segment_shift), shift, "{keys} keys");
            let slots = n * (0.875 + 0.25 * 1e6f64.ln() / n.ln()).max(1.125);
            let segments = (slots / shift.exp2()).ceil().max(3.0);
            assert!((f64::from(shape.segments) - segments).abs() <= 1.0, "{keys} keys");
        }
    }

    /// Every number of keys below 60,000 after which a filter gets another segment: there, slots
    /// are scarcest. Beyond, segments are many, and peeling succeeds at once.
    #[test]
    fn the_fullest_filters_of_each_size_are_built_in_few_attempts() {
        let size = |keys| FuseShape::for_keys(keys, 8).map(|shape| (shape.segment_shift, shape.segments));
        let mut hashes = (0..).map(|i: u64| remix(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        for keys in (0..60_000).filter(|&keys| size(keys) != size(keys + 1)) {
            for keys in [keys, keys + 1] {
                let hashes: Vec<u64> = hashes.by_ref().take(keys).collect();
                let (shape, lines) = build(8, &hashes).expect("a filter");
                assert!(shape.attempt < 4 * ATTEMPTS_PER_SIZE, "{keys} keys: {} attempts", shape.attempt);
                let grown = u32::from(shape.attempt / ATTEMPTS_PER_SIZE);
                assert_eq!(Some(shape.segments - grown), size(keys).map(|(_, segments)| segments));
                assert!(hashes.iter().all(|&hash| may_contain(shape, &lines, hash)));
            }
        }
    }

    /// 4 of 12 random sets found no slots in 100 attempts, and the others took 43 on average.
    #[test]
    fn the_size_that_failed_most_is_built() {
        for keys in [11_480, 11_500, 11_522] {
            for set in 0..5 {
                let hashes: Vec<u64> = (0..keys as u64).map(|i| remix(i << 8 | set)).collect();
                let (shape, _) = build(8, &hashes).expect("a filter");
                assert!(shape.attempt <= 2 * ATTEMPTS_PER_SIZE, "{keys} keys: {} attempts", shape.attempt);
            }
        }
    }

    #[test]
    fn attempts_and_sizes_end() {
        let shapes: Vec<FuseShape> =
            std::iter::successors(FuseShape::for_keys(500, 8), |shape| shape.after_failure()).collect();
        assert_eq!(shapes.len(), usize::from(ATTEMPTS));
        assert!(shapes.iter().all(|shape| FuseShape::decode(shape.encode()) == Ok(*shape)));
        let largest = FuseShape { fingerprint_bits: 4, segment_shift: 18, attempt: 3, segments: (1 << 14) - 1 };
        assert!(largest.if_buildable().is_some() && largest.after_failure().is_none());
    }

    #[test]
    fn too_many_keys_have_no_shape() {
        assert!(FuseShape::for_keys(3_000_000_000, 4).is_some());
        assert!(FuseShape::for_keys(3_000_000_000, 16).is_none());
        assert!(FuseShape::for_keys(4_000_000_000, 4).is_none());
        assert!(FuseShape::for_keys(usize::MAX, 4).is_none());
    }

    #[test]
    fn slots_of_a_key_lie_in_neighbouring_segments() {
        let mut shape = FuseShape::for_keys(500, 8).unwrap();
        for attempt in 0..ATTEMPTS {
            shape.attempt = attempt;
            for hash in [0, 1, u64::MAX, 1 << 63].into_iter().chain((0..200).map(remix)) {
                let [a, b, c] = shape.slots_of(hash).map(|slot| slot >> shape.segment_shift);
                assert_eq!((b, c), (a + 1, a + 2));
                assert!(c < shape.segments.into());
            }
        }
    }

    #[test]
    fn shapes_that_break_a_rule_are_refused() {
        let good = FuseShape::for_keys(500, 8).unwrap();
        assert_eq!(FuseShape::decode(good.encode()), Ok(good));
        for bad in [
            FuseShape { fingerprint_bits: 9, ..good },
            FuseShape { fingerprint_bits: 0, ..good },
            FuseShape { segment_shift: 1, ..good },
            FuseShape { segment_shift: 19, ..good },
            FuseShape { attempt: 100, ..good },
            FuseShape { segments: 2, ..good },
        ] {
            assert!(FuseShape::decode(bad.encode()).is_err(), "{bad:?}");
        }
        for bit in 0..64 {
            let flipped = u64::from_le_bytes(good.encode()) ^ 1 << bit;
            assert!(FuseShape::decode(flipped.to_le_bytes()).is_err(), "bit {bit}");
        }
    }
}
