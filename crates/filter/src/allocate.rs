//! How many bits per key the filter of each run of a tree should have, under one memory budget.
//!
//! A look-up that finds nothing asks every run, and each false positive on the way is a wasted
//! read. A bit per key saves as much in a run of a thousand keys as in one of a billion, and costs
//! a millionth: equal bits everywhere are the wrong answer. The allocation minimises
//! Σ weight · rate(bits) over the runs, under Σ keys · bits ≤ budget (Dayan, Athanassoulis,
//! Idreos: Monkey, SIGMOD 2017).
//!
//! That paper's closed form takes rate = e^(−bits · ln² 2) and bits without bounds. Real
//! filters have whole numbers of probes, and 1 to 24 bits or none. This module therefore uses the
//! lower convex hull of the real curve, tabulated at quarters of a bit. Along the hull, each step
//! is worth less than the one before, in every run. Always taking the step that saves most per bit
//! of memory, until the memory is used up, is therefore optimal but for the last step. Where the
//! memory left is too little for a step, the run gets as many hundredths of a bit as it pays for.
//!
//! A pure function of integers and single IEEE operations: the same tree and budget give the same
//! filters on every platform.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::fuse::slots as fuse_slots;
use super::rate::{MILLIBITS, first_where};
use super::sizing::{bloom_millibits, line_count, spent_millibits};
use super::split::{self, Groups};
use crate::FilterPolicy;

/// A sorted run of a tree: one table of level 0, or all tables of a level below. A look-up asks at
/// most one filter of each run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Distinct keys.
    pub keys: u64,
    /// How often a look-up comes to this run and does not find its key, relative to the other runs.
    /// 1 for all runs when look-ups find nothing.
    pub weight: f64,
}

/// Step between the bits per key that a run may have, in thousandths.
const STEP: u32 = 250;
/// False-positive rates of a large Bloom filter of 1, 1.25, … 24 bits per key, in 10^-12: the
/// closed form of the split layout at the bits that it spends (`sizing`).
const RATES: [u64; 93] = [
    631_385_535_214,
    550_096_446_493,
    486_126_915_528,
    434_913_383_309,
    393_014_953_499,
    346_193_488_800,
    302_694_705_136,
    266_576_130_884,
    236_240_173_445,
    210_669_724_084,
    188_870_334_699,
    166_523_015_049,
    146_469_162_910,
    129_434_598_348,
    114_837_336_803,
    102_364_660_907,
    91_570_357_840,
    80_745_343_568,
    71_157_014_631,
    62_931_202_280,
    55_821_480_411,
    49_988_669_483,
    43_888_375_010,
    38_856_415_412,
    34_474_554_642,
    30_607_166_613,
    27_242_951_355,
    24_308_365_817,
    21_450_633_036,
    18_933_116_595,
    16_749_546_038,
    14_851_029_054,
    13_190_344_438,
    11_751_033_128,
    10_383_353_711,
    9_183_238_945,
    8_133_702_538,
    7_251_620_113,
    6_476_314_988,
    5_793_619_309,
    5_046_115_989,
    4_463_066_224,
    3_952_130_820,
    3_507_133_388,
    3_115_813_434,
    2_773_823_679,
    2_448_509_777,
    2_167_660_041,
    1_920_960_400,
    1_705_631_172,
    1_516_603_060,
    1_344_799_415,
    1_189_283_843,
    1_053_182_127,
    933_463_834,
    828_451_165,
    736_210_745,
    643_424_483,
    571_852_291,
    509_059_143,
    453_448_572,
    402_660_236,
    357_976_906,
    316_863_511,
    280_415_760,
    248_556_368,
    220_454_537,
    195_743_013,
    173_988_294,
    153_751_918,
    136_146_800,
    120_738_732,
    107_132_222,
    95_597_912,
    83_710_072,
    74_409_308,
    66_169_126,
    58_670_910,
    52_070_973,
    46_256_126,
    41_008_557,
    36_311_323,
    32_165_407,
    28_518_114,
    25_306_559,
    22_486_602,
    19_898_006,
    17_627_152,
    15_621_023,
    13_920_071,
    12_407_920,
    11_073_538,
    9_668_175,
];

/// A filter that a run may have: a corner of the hull, or a point between two corners.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    /// Requested bits per key, in thousandths; 0 for no filter.
    millibits: u32,
    /// Memory per key, in thousandths of bits.
    cost: u32,
    rate: f64,
}

const NO_FILTER: Choice = Choice { millibits: 0, cost: 0, rate: 1.0 };

/// The Bloom filter of each run, or none, in the order of `runs`. Together they take at most
/// `budget_bytes` and minimise the expected number of wasted reads.
///
/// ```
/// use tamis_filter::{Run, allocate};
///
/// // Levels of a thousand, a million and a billion keys, with the memory of 10 bits per key.
/// let runs = [1e3, 1e6, 1e9].map(|keys| Run { keys: keys as u64, weight: 1.0 });
/// let policies = allocate(&runs, 1_261_000_000);
/// let bits = policies.iter().map(|policy| policy.bits_per_key()).collect::<Vec<_>>();
/// assert_eq!(bits[..2], [24.0, 24.0]);
/// assert!((9.9..10.0).contains(&bits[2]), "{bits:?}");
/// ```
pub fn allocate(runs: &[Run], budget_bytes: u64) -> Vec<FilterPolicy> {
    let budget = u128::from(budget_bytes) * 8000;
    let choices = choices();
    let chosen = distribute(&choices, runs, budget, |from, to, most| largest_affordable(&choices, from, to, most));
    chosen.into_iter().map(|choice| FilterPolicy::of_millibits(choice.millibits)).collect()
}

/// The false-positive rate of a large filter by `policy`; 1 for none.
pub fn expected_rate(policy: FilterPolicy) -> f64 {
    /// Enough keys to hide the rounding to whole lines.
    const MANY: u64 = 1 << 30;
    match policy {
        FilterPolicy::None => 1.0,
        FilterPolicy::Bloom { .. } => {
            let millibits = policy.millibits();
            let lines = line_count(MANY, spent_millibits(millibits));
            split::model_fpr(Groups::for_millibits(millibits), MANY as f64 / lines as f64)
        }
        FilterPolicy::BinaryFuse { fingerprint_bits } => 1.0 / f64::from(1u32 << fingerprint_bits.min(31)),
    }
}

/// Memory that a large Bloom filter of `millibits` takes per key, in thousandths of bits: slightly
/// more than was asked for (see `sizing`). Less than 1000 is no filter's share, but can be the
/// average over many.
fn cost(millibits: u32) -> u32 {
    match millibits {
        less @ 0..1000 => less,
        asked => spent_millibits(asked),
    }
}

/// Bytes that the filter of `keys` keys takes by `policy`, without header and rounding. For a
/// binary fuse, they are those of a single filter, or of the Bloom filter that replaces it when
/// there are too few or too many keys.
pub fn filter_bytes(policy: FilterPolicy, keys: u64) -> u64 {
    let millibits = match policy {
        FilterPolicy::BinaryFuse { fingerprint_bits } => match fuse_slots(keys, fingerprint_bits) {
            Some(slots) => return slots.saturating_mul(fingerprint_bits.into()) / 8,
            None => cost(bloom_millibits(policy)),
        },
        _ => cost(policy.millibits()),
    };
    // Rounded up, so that a budget of this many bytes is enough for this filter.
    let bytes = (u128::from(keys) * u128::from(millibits)).div_ceil(8000);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// All filters that a run may have, from none to the largest.
fn choices() -> Vec<Choice> {
    let filter = |(millibits, rate)| Choice { millibits, cost: cost(millibits), rate: rate as f64 / 1e12 };
    let filters = (1000..).step_by(STEP as usize).zip(RATES).map(filter);
    [NO_FILTER].into_iter().chain(filters).collect()
}

/// The largest filter between two choices, in whole hundredths of a bit, that costs at most `most`.
/// Its rate is given as that of the tabulated choice below it.
fn largest_affordable(choices: &[Choice], from: &Choice, to: &Choice, most: u32) -> Option<Choice> {
    let cost_of = |hundredths: u32| cost(hundredths * 10);
    let start = (from.millibits / 10 + 1).max(MILLIBITS.start / 10);
    let hundredths = first_where(start, to.millibits.div_ceil(10), |hundredths| cost_of(hundredths) > most) - 1;
    let below = choices.iter().rfind(|choice| choice.millibits <= hundredths * 10)?;
    let choice = Choice { millibits: hundredths * 10, cost: cost_of(hundredths), rate: below.rate };
    (hundredths >= start).then_some(choice)
}

/// A step of one run to its next filter on the hull, ordered by what it saves per bit of memory.
struct Upgrade {
    gain: f64,
    run: usize,
    /// Index on the hull of the filter to which it leads.
    to: usize,
}

impl Ord for Upgrade {
    fn cmp(&self, other: &Upgrade) -> Ordering {
        self.gain.total_cmp(&other.gain).then_with(|| other.run.cmp(&self.run))
    }
}

impl PartialOrd for Upgrade {
    fn partial_cmp(&self, other: &Upgrade) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Upgrade {
    fn eq(&self, other: &Upgrade) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Upgrade {}

/// The best choice for each run within `budget`, in thousandths of bits. `choices` ascend in cost
/// and begin with no filter. `between` returns the largest choice between two others that costs at
/// most a given amount per key, if there is one.
fn distribute(
    choices: &[Choice],
    runs: &[Run],
    mut budget: u128,
    between: impl Fn(&Choice, &Choice, u32) -> Option<Choice>,
) -> Vec<Choice> {
    let hull = lower_hull(choices);
    let mut chosen = vec![NO_FILTER; runs.len()];
    let next_upgrade = |run: usize, to: usize| {
        let (from, next) = (hull.get(to - 1)?, hull.get(to)?);
        let Run { keys, weight } = runs[run];
        let gain = weight * (from.rate - next.rate) / (keys as f64 * f64::from(next.cost - from.cost));
        (keys > 0 && gain > 0.0).then_some(Upgrade { gain, run, to })
    };
    let mut upgrades: BinaryHeap<Upgrade> = (0..runs.len()).filter_map(|run| next_upgrade(run, 1)).collect();
    while let Some(Upgrade { run, to, .. }) = upgrades.pop() {
        let keys = u128::from(runs[run].keys);
        let price = |choice: &Choice| keys * u128::from(choice.cost - chosen[run].cost);
        if price(&hull[to]) <= budget {
            budget -= price(&hull[to]);
            chosen[run] = hull[to];
            upgrades.extend(next_upgrade(run, to + 1));
            continue;
        }
        // Go as far towards it as the memory allows. Smaller runs may still gain from the rest.
        let affordable = u32::try_from(budget / keys).unwrap_or(u32::MAX).saturating_add(chosen[run].cost);
        if let Some(choice) = between(&chosen[run], &hull[to], affordable) {
            budget -= price(&choice);
            chosen[run] = choice;
        }
    }
    chosen
}

/// The corners of the lower convex hull of rate over cost.
fn lower_hull(choices: &[Choice]) -> Vec<Choice> {
    let mut hull: Vec<Choice> = Vec::new();
    for &choice in choices {
        while let [.., before, last] = hull[..]
            && slope(before, last) >= slope(last, choice)
        {
            hull.pop();
        }
        hull.push(choice);
    }
    hull
}

fn slope(from: Choice, to: Choice) -> f64 {
    (to.rate - from.rate) / f64::from(to.cost - from.cost)
}

#[cfg(test)]
mod tests {
    use super::super::split::{self, Groups};
    use super::*;
    use crate::sizing::probe_count;
    use proptest::prelude::*;

    /// Picks between two choices, where there are only `choices`.
    fn between_in(choices: &[Choice]) -> impl Fn(&Choice, &Choice, u32) -> Option<Choice> {
        move |from, to, most| {
            let between = choices.iter().filter(|choice| choice.cost > from.cost && choice.cost < to.cost);
            between.take_while(|choice| choice.cost <= most).last().copied()
        }
    }

    const LN_2_SQUARED: f64 = std::f64::consts::LN_2 * std::f64::consts::LN_2;

    /// A tree of a billion keys whose levels grow by `factor`; the last one has weight `absent`.
    fn tree(factor: u64, levels: u32, absent: f64) -> Vec<Run> {
        let share = |level: u32| factor.pow(level);
        let sum: u64 = (0..levels).map(share).sum();
        let weight = |level: u32| if level + 1 == levels { absent } else { 1.0 };
        (0..levels).map(|level| Run { keys: 1_000_000_000 * share(level) / sum, weight: weight(level) }).collect()
    }

    fn wasted(runs: &[Run], rates: impl IntoIterator<Item = f64>) -> f64 {
        runs.iter().zip(rates).map(|(run, rate)| run.weight * rate).sum()
    }

    /// The least possible Σ weight · e^(−bits · ln² 2) for `budget` bits, by Lagrange
    /// multipliers, without the runs that should have no filter.
    fn closed_form(runs: &[Run], budget: f64) -> f64 {
        let mut kept: Vec<Run> = runs.iter().filter(|run| run.weight > 0.0).copied().collect();
        kept.sort_by(|a, b| (a.keys as f64 / a.weight).total_cmp(&(b.keys as f64 / b.weight)));
        let mut dropped = 0.0;
        loop {
            let keys: f64 = kept.iter().map(|run| run.keys as f64).sum();
            let logs: f64 = kept.iter().map(|run| run.keys as f64 * (run.keys as f64 / run.weight).ln()).sum();
            let lambda = ((-LN_2_SQUARED * budget - logs) / keys).exp();
            let last = kept[kept.len() - 1];
            if lambda * last.keys as f64 / last.weight < 1.0 || kept.len() == 1 {
                return dropped + kept.iter().map(|run| lambda * run.keys as f64).sum::<f64>();
            }
            dropped += last.weight;
            kept.pop();
        }
    }

    #[test]
    fn the_memory_of_a_filter_is_enough_for_it() {
        for keys in [1_000, 48_651, 1_000_003] {
            let bytes = filter_bytes(FilterPolicy::DEFAULT, keys);
            assert_eq!(allocate(&[Run { keys, weight: 1.0 }], bytes), [FilterPolicy::DEFAULT]);
        }
    }

    #[test]
    fn rates_are_those_of_the_split_layout() {
        for choice in choices() {
            let policy = FilterPolicy::of_millibits(choice.millibits);
            let rate = expected_rate(policy);
            assert!((choice.rate / rate - 1.0).abs() < 1e-5, "{policy:?}: {} and {rate}", choice.rate);
        }
    }

    #[test]
    fn rate_and_bytes_of_a_binary_fuse_match_the_built_filter() {
        use crate::{FilterBuilder, KeyHash};
        for (keys, fingerprint_bits) in [(20_000u64, 8), (200_000, 5), (50_000, 16), (9000, 8), (9000, 16)] {
            let policy = FilterPolicy::BinaryFuse { fingerprint_bits };
            let mut builder = FilterBuilder::new(policy, 3);
            (0..keys).for_each(|key| builder.add(KeyHash::new(3, &key.to_be_bytes())));
            let info = builder.finish().unwrap().info;
            assert_eq!(info.policy_id, if keys < 10_000 { 1 } else { 4 });
            let bytes = info.bytes as f64;
            let expected = filter_bytes(policy, keys) as f64;
            assert!((expected..expected + 193.0).contains(&bytes), "{policy:?}, {keys} keys: {bytes} {expected}");
            if info.policy_id == 4 {
                assert_eq!(expected_rate(policy), info.expected_fpr);
                assert!(expected > 1.12 * keys as f64 * f64::from(fingerprint_bits) / 8.0);
            }
        }
        assert_eq!(filter_bytes(FilterPolicy::BinaryFuse { fingerprint_bits: 8 }, u64::MAX), u64::MAX);
    }

    #[test]
    fn all_quarters_of_a_bit_are_near_the_hull() {
        let choices = choices();
        let hull = lower_hull(&choices);
        assert!(hull.len() > 40, "{}", hull.len());
        assert_eq!((hull[0], hull.last()), (choices[0], choices.last()));
        for pair in hull.windows(2) {
            let between = choices.iter().filter(|choice| pair[0].cost < choice.cost && choice.cost < pair[1].cost);
            for choice in between {
                let on_hull = pair[0].rate + slope(pair[0], pair[1]) * f64::from(choice.cost - pair[0].cost);
                assert!(on_hull <= choice.rate && choice.rate < on_hull * 1.15, "{choice:?}");
            }
        }
    }

    /// Rows that were computed independently, for the split layout without its compensation. Sums
    /// agree to 1.5 %, bits to a quarter, and to one bit in levels of less than a twentieth of the
    /// keys, where the last of the memory goes. Filters as built are compared at
    /// the memory of uniform ones, where the compensation spends up to 0.8 % more: their sums are
    /// lower by up to 8 %.
    #[test]
    fn known_trees_get_the_known_filters() {
        let exact = |millibits: u32| {
            let rate = split::model_fpr(Groups::for_probes(probe_count(millibits)), 512_000.0 / f64::from(millibits));
            Choice { millibits, cost: millibits, rate }
        };
        let exact: Vec<Choice> = [NO_FILTER].into_iter().chain((1000..=24_000).step_by(250).map(exact)).collect();
        // Growth, levels, bits per key, share of absent keys; bits per level; sums in percent:
        // these bits, closed form, uniform.
        type Row<'a> = ((u64, u32, u64, f64), &'a [f64], [f64; 3]);
        let rows: [Row<'_>; 5] = [
            ((10, 5, 10, 1.0), &[24.0, 24.0, 23.25, 16.0, 9.25], [1.263, 1.176, 4.222]),
            ((10, 5, 10, 0.5), &[24.0, 24.0, 23.25, 16.0, 9.25], [0.657, 0.630, 3.800]),
            ((10, 5, 10, 0.02), &[24.0, 24.0, 24.0, 23.25, 8.5], [0.039, 0.035, 3.395]),
            ((10, 4, 5, 1.0), &[24.0, 18.0, 11.0, 4.25], [13.62, 12.98, 37.15]),
            ((4, 6, 10, 1.0), &[24.0, 22.5, 19.0, 14.75, 12.0, 9.0], [1.783, 1.730, 5.067]),
        ];
        for ((factor, levels, bits, absent), expected, [sum, ideal, uniform]) in rows {
            let runs = tree(factor, levels, absent);
            let keys: u64 = runs.iter().map(|run| run.keys).sum();
            let chosen = distribute(&exact, &runs, u128::from(keys * bits) * 1000, between_in(&exact));
            for ((choice, expected), run) in chosen.iter().zip(expected).zip(&runs) {
                let tolerance = if run.keys < keys / 20 { 1.0 } else { 0.25 };
                assert!((f64::from(choice.millibits) / 1000.0 - expected).abs() <= tolerance, "{chosen:?}");
            }
            let percent = 100.0 * wasted(&runs, chosen.iter().map(|choice| choice.rate));
            assert!((percent / sum - 1.0).abs() < 0.015, "{percent} {sum}");
            let closed = 100.0 * closed_form(&runs, (keys * bits) as f64);
            assert!((closed / ideal - 1.0).abs() < 0.015, "{closed} {ideal}");

            let same = FilterPolicy::Bloom { bits_per_key: bits as f32 };
            let policies = allocate(&runs, filter_bytes(same, keys));
            let built = 100.0 * wasted(&runs, policies.into_iter().map(expected_rate));
            let flat = 100.0 * wasted(&runs, runs.iter().map(|_| expected_rate(same)));
            assert!((0.92..1.0).contains(&(built / sum)), "{built} {sum}");
            assert!((0.94..1.001).contains(&(flat / uniform)), "{flat} {uniform}");
        }
    }

    #[test]
    fn edges_of_budget_and_tree() {
        let run = |keys, weight| Run { keys, weight };
        assert!(allocate(&[], 1 << 20).is_empty());
        assert_eq!(allocate(&[run(1000, 1.0)], 0), [FilterPolicy::None]);
        assert_eq!(allocate(&[run(1000, 1.0)], u64::MAX), [FilterPolicy::Bloom { bits_per_key: 24.0 }]);
        let useless = [run(0, 1.0), run(10, 0.0), run(10, f64::NAN), run(10, -1.0)];
        assert_eq!(allocate(&useless, 1 << 20), [FilterPolicy::None; 4]);
        let huge = allocate(&[run(u64::MAX, 1.0), run(1, f64::MAX)], u64::MAX);
        assert_eq!(huge[1].bits_per_key(), 24.0);
        assert!(huge[0].bits_per_key() > 7.0);
        // A single run gets the policy from which its budget was computed.
        for bits_per_key in [1.0, 4.5, 10.0, 12.25, 23.0] {
            let uniform = FilterPolicy::Bloom { bits_per_key };
            let alone = allocate(&[run(100_000, 1.0)], filter_bytes(uniform, 100_000));
            assert_eq!(alone, [uniform]);
        }
    }

    #[test]
    fn memory_short_of_a_step_of_the_largest_run_still_goes_to_it() {
        let runs = [Run { keys: 1000, weight: 0.01 }, Run { keys: 107_130, weight: 0.13 }];
        let uniform = FilterPolicy::Bloom { bits_per_key: 4.0 };
        let policies = allocate(&runs, filter_bytes(uniform, 108_130));
        assert!((3.9..4.1).contains(&policies[1].bits_per_key()), "{policies:?}");
    }

    /// The best of all combinations of choices.
    fn brute_force(choices: &[Choice], runs: &[Run], budget: u128) -> f64 {
        let Some((run, others)) = runs.split_first() else { return 0.0 };
        let price = |choice: &Choice| u128::from(run.keys) * u128::from(choice.cost);
        let affordable = choices.iter().take_while(|choice| price(choice) <= budget);
        let sums =
            affordable.map(|choice| run.weight * choice.rate + brute_force(choices, others, budget - price(choice)));
        sums.fold(f64::INFINITY, f64::min)
    }

    fn runs(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Run>> {
        let run = (1000u64..2_000_000, 1u32..=100);
        proptest::collection::vec(run.prop_map(|(keys, weight)| Run { keys, weight: f64::from(weight) / 100.0 }), count)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Worse than the best of all by no more than the one step that the memory did not pay for.
        #[test]
        fn agrees_with_trying_everything(runs in runs(1..4), bits in 0u32..26) {
            let all = choices();
            // Every bit and a half.
            let coarse: Vec<Choice> = all[..1].iter().chain(all[1..].iter().step_by(6)).copied().collect();
            let keys: u64 = runs.iter().map(|run| run.keys).sum();
            let budget = u128::from(keys) * u128::from(bits) * 1000;
            let chosen = distribute(&coarse, &runs, budget, between_in(&coarse));
            let spent: u128 = runs.iter().zip(&chosen).map(|(run, choice)| u128::from(run.keys) * u128::from(choice.cost)).sum();
            prop_assert!(spent <= budget);
            let found = wasted(&runs, chosen.iter().map(|choice| choice.rate));
            let best = brute_force(&coarse, &runs, budget);
            // The most that a run could still save by one more step.
            let missed = runs.iter().zip(&chosen).map(|(run, choice)| {
                let next = coarse.iter().find(|next| next.cost > choice.cost);
                next.map_or(0.0, |next| run.weight * (choice.rate - next.rate))
            });
            let bound = best + missed.fold(0.0, f64::max);
            prop_assert!(best <= found * 1.000_000_1 && found <= bound * 1.000_000_1, "{found} {best} {bound} {chosen:?}");
        }

        /// Never below the closed form, which no filter reaches. While its bits are ones that
        /// filters can have, it is above by less than a fifth: a quarter of a bit that is left
        /// over, and whole probes.
        #[test]
        fn agrees_with_the_closed_form(runs in runs(1..12), bits in 2u32..14) {
            let keys: u64 = runs.iter().map(|run| run.keys).sum();
            let budget = keys * u64::from(bits);
            let policies = allocate(&runs, budget / 8);
            let found = wasted(&runs, policies.iter().copied().map(expected_rate));
            let ideal = closed_form(&runs, budget as f64);
            prop_assert!(found >= ideal * 0.999, "{found} {ideal}");
            let free = policies.iter().all(|policy| (1.5..24.0).contains(&policy.bits_per_key()));
            prop_assert!(!free || found <= ideal * 1.2, "{found} {ideal} {policies:?}");
            // Not worse than uniform bits either, except for the loss where one more probe begins.
            let uniform = FilterPolicy::Bloom { bits_per_key: bits as f32 };
            let policies = allocate(&runs, filter_bytes(uniform, keys) + 1);
            let found = wasted(&runs, policies.into_iter().map(expected_rate));
            let flat = wasted(&runs, runs.iter().map(|_| expected_rate(uniform)));
            prop_assert!(found <= flat * 1.01, "{found} {flat}");
        }

        #[test]
        fn more_memory_is_never_worse(runs in runs(1..8), budget in 0u64..20_000_000, more in 0u64..1_000_000) {
            let of = |budget| wasted(&runs, allocate(&runs, budget).into_iter().map(expected_rate));
            prop_assert!(of(budget + more) <= of(budget) * 1.05);
        }
    }
}
