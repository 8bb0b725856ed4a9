//! The split-line layout (policy 1): a key's probes fall in groups of at most four, each group in
//! one line.
//!
//! ```text
//! g[0] = hash of the key                      g[i+1] = remix(g[i])
//! group i lies in line  fastrange(g[i], number of lines)          the high bits of g[i]
//! its probe j is bit    (g[i] >> 9j) & 511                        the low 36 bits
//! k = 7: groups of 4 and 3
//! any k: 4, then as few groups of at most 3 as possible, larger ones first
//! ```
//!
//! A key may be present if all its bits are set. The first four bits refuse fifteen of sixteen
//! absent keys: for most, one memory access and one well-predicted branch suffice. The second line
//! evens out how full lines are: the rate is that of a textbook filter with 0.8 % fewer bits, where
//! all probes in one line cost 3.5 %. All of this is part of the format.

use super::hash::{fastrange, remix};
use super::line::{Fill, FilterLine, LINE_BITS, ReadLine, SetBits, word_of};
use super::sizing::{clamp_millibits, probe_count};
use tamis_base::format::coding::{get_u64, low_byte};
use tamis_base::format::{Decoded, Malformed};

/// Most probes in a group: each takes 9 bits, below the bits that choose the line. Part of the
/// format.
pub(super) const GROUP_MAX: u8 = 4;

/// Probes per group, as in the header: a zero or the array's end ends the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups([u8; 8]);

impl Groups {
    /// The groups of `k` probes, at most 25.
    pub(super) fn for_probes(k: u32) -> Groups {
        let mut groups = [0; 8];
        let k = u8::try_from(k).map_or(25, |k| k.clamp(1, 25));
        groups[0] = k.min(GROUP_MAX);
        let rest = k - groups[0];
        let count = rest.div_ceil(GROUP_MAX - 1);
        for (i, group) in (0..count).zip(&mut groups[1..]) {
            *group = rest / count + u8::from(i < rest % count);
        }
        Groups(groups)
    }

    /// The groups of a table's filter for `millibits` thousandths of bits per key.
    pub(super) fn for_millibits(millibits: u32) -> Groups {
        Groups::for_probes(probe_count(clamp_millibits(millibits)))
    }

    pub(super) fn decode(bytes: [u8; 8], count: u8, k: u8) -> Decoded<Groups> {
        let (used, unused) =
            bytes.split_at_checked(count.into()).ok_or(Malformed("the filter has more than 8 groups of probes"))?;
        if used.iter().any(|group| !(1..=GROUP_MAX).contains(group)) {
            return Err(Malformed("a group of the filter does not have 1 to 4 probes"));
        }
        if unused.iter().any(|&group| group != 0) {
            return Err(Malformed("the filter has groups beyond their count"));
        }
        if k == 0 || used.iter().sum::<u8>() != k {
            return Err(Malformed("the filter's groups do not add up to its probes"));
        }
        Ok(Groups(bytes))
    }

    pub(super) fn encode(self) -> [u8; 8] {
        self.0
    }

    #[inline]
    pub(super) fn iter(self) -> impl Iterator<Item = u8> {
        let mut rest = get_u64(&self.0);
        std::iter::from_fn(move || {
            let group = low_byte(rest);
            rest >>= 8;
            (group != 0).then_some(group)
        })
    }

    /// Probes of the first group; 0 if there is none.
    pub(super) fn first(self) -> u8 {
        self.0[0]
    }

    /// The groups after the first.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline]
    pub(super) fn after_first(self) -> Groups {
        let [_, rest @ ..] = self.0;
        let mut groups = [0; 8];
        groups[..7].copy_from_slice(&rest);
        Groups(groups)
    }

    pub(super) fn count(self) -> u8 {
        self.iter().map(|_| 1).sum()
    }

    pub(super) fn probes(self) -> u8 {
        self.iter().sum()
    }
}

/// The index of the line that `g` chooses among `count`, which is at least 1.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than `count`, which is a usize")]
pub(super) fn line_index(g: u64, count: usize) -> usize {
    fastrange(g, count as u64) as usize
}

/// Sets the bits of a key and returns how many of them were unset.
#[inline]
pub(super) fn insert<S: SetBits + ?Sized>(groups: Groups, lines: &mut S, hash: u64) -> u64 {
    let (mut g, mut changed) = (hash, 0);
    for probes in groups.iter() {
        let index = line_index(g, lines.count());
        changed += match probes {
            1 => lines.set_all::<1>(index, g),
            2 => lines.set_all::<2>(index, g),
            3 => lines.set_all::<3>(index, g),
            _ => lines.set_all::<4>(index, g),
        };
        g = remix(g);
    }
    changed
}

/// Whether all bits of a key are set. This defines what `avx2` must answer.
pub(super) fn may_contain<L: ReadLine>(groups: Groups, lines: &[L], hash: u64) -> bool {
    let mut g = hash;
    for probes in groups.iter() {
        if !group_is_in(probes, lines, g) {
            return false;
        }
        g = remix(g);
    }
    true
}

/// Whether all bits of a group are set; also true if its line is missing.
#[inline]
pub(super) fn group_is_in<L: ReadLine>(probes: u8, lines: &[L], g: u64) -> bool {
    lines.get(line_index(g, lines.len())).is_none_or(|line| match probes {
        1 => all_set::<1>(line, g),
        2 => all_set::<2>(line, g),
        3 => all_set::<3>(line, g),
        _ => all_set::<4>(line, g),
    })
}

/// The first four probes of a key, which fall on the same bits of a line in every filter.
#[derive(Clone, Copy)]
pub(super) struct FirstGroup {
    words: [usize; GROUP_MAX as usize],
    /// All bits of a word but the probe's.
    others: [u64; GROUP_MAX as usize],
}

impl FirstGroup {
    #[inline]
    pub(super) fn new(hash: u64) -> FirstGroup {
        let positions: [u64; GROUP_MAX as usize] = std::array::from_fn(|j| hash >> (9 * j));
        FirstGroup { words: positions.map(word_of), others: positions.map(|position| !(1 << (position % 64))) }
    }

    /// Whether all four bits are set. Branch-free, like [`all_set`].
    #[inline]
    pub(super) fn is_in(&self, line: &FilterLine) -> bool {
        let probes = self.words.iter().zip(self.others);
        probes.fold(u64::MAX, |all, (&word, others)| all & (line.0[word % 8] | others)) == u64::MAX
    }
}

/// Branch-free: the processor would mispredict half of the branches per bit.
#[inline]
fn all_set<const PROBES: u8>(line: &impl ReadLine, g: u64) -> bool {
    (0..PROBES).fold(1, |all, j| all & line.get(g >> (9 * j))) == 1
}

/// The exact false-positive rate of these bits. A group passes with the mean, over lines, of the
/// line's fill to the power of the group's probes.
pub(super) fn exact_fpr(groups: Groups, fill: &Fill) -> f64 {
    groups.iter().map(|probes| fill.mean_power(probes)).product()
}

/// The rate expected of a filter with `keys_per_line` keys per line. With q = 1 − 1/512, the mean
/// of q^(j · bits drawn in a line) is exp(keys per line · Σ (q^(j · group) − 1)). Inclusion
/// and exclusion over the probes of a group does the rest.
pub(super) fn model_fpr(groups: Groups, keys_per_line: f64) -> f64 {
    let q = 1.0 - 1.0 / LINE_BITS as f64;
    let all_miss = |j: u8| {
        let drawn: f64 = groups.iter().map(|group| q.powi((j * group).into()) - 1.0).sum();
        (keys_per_line * drawn).exp()
    };
    let passes = |group: u8| {
        let (mut sum, mut choose) = (0.0, 1.0);
        for j in 0..=group {
            let sign = if j % 2 == 0 { 1.0 } else { -1.0 };
            sum += sign * choose * all_miss(j);
            choose *= f64::from(group - j) / f64::from(j + 1);
        }
        sum.clamp(0.0, 1.0)
    };
    groups.iter().map(passes).product()
}

/// The number of keys, estimated from the bits; infinite when all are set.
pub(super) fn estimated_keys(groups: Groups, fill: &Fill) -> f64 {
    -(-fill.ratio()).ln_1p() * fill.lines() as f64 / drawn_per_key(groups)
}

/// The share of bits that `keys_per_line` keys per line set; [`estimated_keys`] inverts it.
pub(super) fn model_fill(groups: Groups, keys_per_line: f64) -> f64 {
    -(-keys_per_line * drawn_per_key(groups)).exp_m1()
}

/// Bits that a key sets, in units of a line: probes of a group that hit one bit count once.
fn drawn_per_key(groups: Groups) -> f64 {
    let q = 1.0 - 1.0 / LINE_BITS as f64;
    groups.iter().map(|group| 1.0 - q.powi(group.into())).sum()
}

#[cfg(test)]
mod tests {
    use super::super::hash::KeyHash;
    use super::super::sizing::compensated_millibits;
    use super::*;

    #[test]
    fn the_first_group_is_in_a_line_with_all_its_bits_and_in_no_other() {
        for hash in (0..300).map(remix) {
            let group = FirstGroup::new(hash);
            let mut line = FilterLine::default();
            (0..GROUP_MAX).for_each(|j| _ = line.set(hash >> (9 * j)));
            assert!(group.is_in(&line));
            for bit in 0..LINE_BITS {
                let mut all_but_one = FilterLine([u64::MAX; 8]);
                all_but_one.0[word_of(bit)] ^= 1 << (bit % 64);
                assert_eq!(group.is_in(&all_but_one), all_set::<GROUP_MAX>(&all_but_one, hash));
            }
        }
    }

    #[test]
    fn groups_are_four_and_then_at_most_three() {
        for (k, expected) in [
            (1, &[1][..]),
            (4, &[4]),
            (5, &[4, 1]),
            (6, &[4, 2]),
            (7, &[4, 3]),
            (8, &[4, 2, 2]),
            (9, &[4, 3, 2]),
            (11, &[4, 3, 2, 2]),
            (14, &[4, 3, 3, 2, 2]),
            (17, &[4, 3, 3, 3, 2, 2]),
            (25, &[4, 3, 3, 3, 3, 3, 3, 3]),
        ] {
            assert!(Groups::for_probes(k).iter().eq(expected.iter().copied()));
        }
        for k in 1..=25 {
            let groups = Groups::for_probes(k);
            assert_eq!(u32::from(groups.probes()), k);
            let (count, k) = (groups.count(), groups.probes());
            assert_eq!(Groups::decode(groups.encode(), count, k), Ok(groups));
        }
    }

    #[test]
    fn groups_that_break_a_rule_are_refused() {
        for (bytes, count, k) in [
            ([4, 3, 0, 0, 0, 0, 0, 0], 2, 6),
            ([4, 3, 0, 0, 0, 0, 0, 0], 1, 4),
            ([4, 3, 0, 0, 0, 0, 0, 0], 3, 7),
            ([5, 2, 0, 0, 0, 0, 0, 0], 2, 7),
            ([4, 0, 3, 0, 0, 0, 0, 0], 3, 7),
            ([4; 8], 9, 32),
            ([0; 8], 0, 0),
        ] {
            assert!(Groups::decode(bytes, count, k).is_err(), "{bytes:?}");
        }
        assert!(Groups::decode([4; 8], 8, 32).is_ok());
    }

    #[test]
    fn golden_lines_and_bits_of_six_keys() {
        let u64_be = 1u64.to_be_bytes();
        type Group<const PROBES: usize> = (usize, [u64; PROBES]);
        let vectors: [(&[u8], Group<4>, Group<3>); 6] = [
            (b"", (175, [194, 458, 52, 167]), (732, [151, 214, 338])),
            (b"a", (901, [31, 295, 421, 195]), (125, [352, 18, 231])),
            (b"key", (734, [483, 178, 20, 116]), (699, [52, 113, 248])),
            (&u64_be, (950, [499, 453, 317, 328]), (676, [279, 92, 389])),
            (&[0; 16], (815, [360, 324, 468, 184]), (394, [7, 511, 216])),
            (&[0xab; 300], (764, [146, 281, 219, 460]), (644, [100, 9, 30])),
        ];
        for (key, (line1, bits1), (line2, bits2)) in vectors {
            let mut expected = vec![FilterLine::default(); 1000];
            assert_eq!(bits1.map(|bit| expected[line1].set(bit)), [1; 4]);
            assert_eq!(bits2.map(|bit| expected[line2].set(bit)), [1; 3]);
            let mut lines = vec![FilterLine::default(); 1000];
            let hash = KeyHash::new(0, key).value();
            assert_eq!(insert(Groups::for_probes(7), &mut lines[..], hash), 7);
            assert_eq!(insert(Groups::for_probes(7), &mut lines[..], hash), 0);
            assert!(lines == expected, "{key:?}");
            assert!(may_contain(Groups::for_probes(7), &lines, hash));
        }
    }

    #[test]
    fn each_cleared_bit_of_a_key_makes_it_absent() {
        let hash = KeyHash::new(7, b"key").value();
        for k in 1..=25 {
            let groups = Groups::for_probes(k);
            let mut lines = vec![FilterLine::default(); 5];
            insert(groups, &mut lines[..], hash);
            for bit in 0..5 * 512 {
                let mut cleared = lines.clone();
                cleared[bit / 512].0[bit % 512 / 64] &= !(1 << (bit % 64));
                let absent = cleared != lines;
                assert_eq!(may_contain(groups, &cleared, hash), !absent, "k {k}, {bit}");
            }
        }
    }

    #[test]
    fn model_gives_the_published_rates() {
        // Bits per key; the rate in per cent at exactly these bits, and with the compensation,
        // which is rounded to thousandths here.
        let published = [
            (6, 5.75347, 5.58246),
            (7, 3.52817, 3.44822),
            (8, 2.19685, 2.14484),
            (9, 1.35924, 1.31893),
            (10, 0.84449, 0.81353),
            (11, 0.51838, 0.50454),
            (12, 0.32171, 0.31162),
            (13, 0.19970, 0.19205),
            (14, 0.12450, 0.11890),
            (15, 0.07760, 0.07363),
            (16, 0.04727, 0.04535),
            (17, 0.02943, 0.02804),
            (18, 0.01836, 0.01740),
            (19, 0.01139, 0.01071),
            (20, 0.00696, 0.00662),
        ];
        for (bits, exact, compensated) in published {
            let groups = Groups::for_probes(probe_count(bits * 1000));
            let at = |millibits: u32| model_fpr(groups, 512_000.0 / f64::from(millibits)) * 100.0;
            assert!((at(bits * 1000) - exact).abs() < 0.000_011, "{bits}");
            let rate = at(compensated_millibits(bits * 1000));
            assert!((rate / compensated - 1.0).abs() < 0.001, "{bits}: {rate}");
        }
    }

    #[test]
    fn compensation_reaches_the_textbook_rate_at_fractions_too() {
        for millibits in (1000..=24_000).step_by(50) {
            let probes = probe_count(millibits);
            let groups = Groups::for_probes(probes);
            let split = model_fpr(groups, 512_000.0 / f64::from(compensated_millibits(millibits)));
            let keys_per_bit = 1000.0 / f64::from(millibits);
            let textbook = super::super::standard::model_fpr(probes, keys_per_bit);
            assert!(split <= textbook * 1.01, "{millibits}: {split} > {textbook}");
        }
    }
}
