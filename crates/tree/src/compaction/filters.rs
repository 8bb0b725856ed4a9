//! Which filter a table gets: a pure function of the keyspace's options and of the tables'
//! metadata.
//!
//! A budget is shared out over the tree that the new table will be part of, without the tables it
//! replaces and with as many keys as the new run can have. A table keeps its filter until it is
//! rewritten, so the bits follow the tree only where compaction rewrites it. Append-only data keeps
//! the filters it got when the tree was small and the bits were many. Therefore no new filter is
//! larger than what the budget, plus `OVERDRAFT`, leaves beside the existing filters.

use crate::filter::FilterPolicy;
use crate::filter::{Run, allocate, filter_bytes};
use crate::options::{BudgetLimit, FilterBudget, KeyspaceOptions, LevelFilters};
use crate::sorted::table::TableMeta;
use crate::version::{LEVELS, LevelMetas};

/// How far all filters together may exceed a budget: by a quarter when the last level is written,
/// by a half when a level above is. A tree with regular compactions lags behind its plan by a
/// tenth, which is tolerated. Small runs, whose filters save most for their memory, still get one
/// when the last level has used up the budget.
const OVERDRAFT: [u64; 2] = [4, 2];

/// The filter of a run of `keys` distinct keys written to `level`, where it replaces the tables
/// that `replaced` selects by level and number. `held` returns the bytes of all other tables'
/// filters.
pub fn policy_of_output(
    options: &KeyspaceOptions,
    levels: &LevelMetas<'_>,
    level: usize,
    keys: u64,
    held: impl FnOnce() -> u64,
    replaced: impl Fn(usize, u64) -> bool,
) -> FilterPolicy {
    let LevelFilters::Budget(budget) = &options.level_filters else { return fixed(options, level) };
    let mut runs = runs(levels, replaced);
    let at = match level {
        0 => {
            runs.push((0, keys));
            runs.len() - 1
        }
        _ => match runs.iter().position(|(other, _)| *other == level) {
            Some(at) => {
                runs[at].1 += keys;
                at
            }
            None => {
                runs.push((level, keys));
                runs.len() - 1
            }
        },
    };
    let planned = share_out(budget, &runs).get(at).copied().unwrap_or(options.filter);
    let bytes = budget_bytes(budget, &runs);
    let is_last = level > 0 && runs.iter().all(|(other, _)| *other <= level);
    let [in_last, above] = OVERDRAFT.map(|part| bytes.saturating_add(bytes / part));
    let left = if is_last { in_last } else { above }.saturating_sub(held());
    // A filter with prefixes may hold twice as many keys.
    let most_keys = if options.prefix.is_some() { keys.saturating_mul(2) } else { keys };
    at_most(planned, most_keys, left)
}

/// `policy` if it fits into `bytes`, else the largest smaller filter that does, in steps of a
/// quarter bit per key.
fn at_most(policy: FilterPolicy, keys: u64, bytes: u64) -> FilterPolicy {
    let fits = |policy: &FilterPolicy| filter_bytes(*policy, keys) <= bytes;
    let less = (4..policy.millibits().div_ceil(250)).rev().map(|quarters| FilterPolicy::of_millibits(250 * quarters));
    [policy].into_iter().chain(less).find(fits).unwrap_or(FilterPolicy::None)
}

/// The filter that each table should have, in the order of `levels`.
pub fn policies(options: &KeyspaceOptions, levels: &LevelMetas<'_>) -> Vec<FilterPolicy> {
    let by_run = match &options.level_filters {
        LevelFilters::Budget(budget) => share_out(budget, &runs(levels, |_, _| false)),
        _ => Vec::new(),
    };
    let mut by_run = by_run.into_iter();
    let mut policies = Vec::new();
    for (level, tables) in levels.iter().enumerate().filter(|(_, tables)| !tables.is_empty()) {
        let runs_here = if level == 0 { tables.len() } else { 1 };
        for _ in 0..runs_here {
            let policy = by_run.next().unwrap_or_else(|| fixed(options, level));
            policies.extend(std::iter::repeat_n(policy, tables.len() / runs_here));
        }
    }
    policies
}

/// The filter of a level, independent of the tree.
pub fn fixed(options: &KeyspaceOptions, level: usize) -> FilterPolicy {
    match &options.level_filters {
        LevelFilters::Each(policies) => policies.get(level).or(policies.last()).copied().unwrap_or(options.filter),
        LevelFilters::Uniform | LevelFilters::Budget(_) => options.filter,
    }
}

/// Level and keys of each non-empty run: one per table in level 0, one per level below.
fn runs(levels: &LevelMetas<'_>, replaced: impl Fn(usize, u64) -> bool) -> Vec<(usize, u64)> {
    let keys = |level: usize, table: &TableMeta| if replaced(level, table.number) { 0 } else { table.keys };
    let first = levels[0].iter().map(|table| (0, keys(0, table)));
    let others = (1..LEVELS).map(|level| (level, levels[level].iter().map(|table| keys(level, table)).sum()));
    first.chain(others).filter(|(_, keys)| *keys > 0).collect()
}

/// The budget in bytes, for `runs` given as level and keys.
fn budget_bytes(budget: &FilterBudget, runs: &[(usize, u64)]) -> u64 {
    let keys = runs.iter().fold(0u64, |sum, (_, keys)| sum.saturating_add(*keys));
    match budget.limit {
        BudgetLimit::BitsPerKey(bits_per_key) => filter_bytes(FilterPolicy::Bloom { bits_per_key }, keys),
        BudgetLimit::Bytes(bytes) => bytes,
    }
}

/// The filter of each of `runs`, given as level and keys.
fn share_out(budget: &FilterBudget, runs: &[(usize, u64)]) -> Vec<FilterPolicy> {
    let bytes = budget_bytes(budget, runs);
    let last = runs.iter().map(|(level, _)| *level).max().unwrap_or_default();
    // Hits are assumed to be in the last level, which holds most of the data. This does not apply
    // if all runs are in level 0, where each may hold the key.
    let weight = |level: usize| if level == last && level > 0 { f64::from(budget.absent) } else { 1.0 };
    let runs: Vec<Run> = runs.iter().map(|&(level, keys)| Run { keys, weight: weight(level) }).collect();
    allocate(&runs, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(number: u64, keys: u64) -> TableMeta {
        TableMeta {
            number,
            size: 20 * keys,
            checksum: 0,
            entries: 2 * keys,
            keys,
            tombstones: 0,
            deadlines: Default::default(),
            references: Default::default(),
            smallest_seqno: 0,
            largest_seqno: 0,
            cleared: 0,
            ingested: None,
            range_end: None,
            kept: 0,
            smallest: (*b"a").into(),
            largest: (*b"z").into(),
        }
    }

    /// A tree of tables, given as level, number and keys.
    fn with_tree<R>(tables: &[(usize, u64, u64)], check: impl FnOnce(&LevelMetas<'_>) -> R) -> R {
        let tables: Vec<(usize, TableMeta)> =
            tables.iter().map(|&(level, number, keys)| (level, table(number, keys))).collect();
        check(&std::array::from_fn(|level| tables.iter().filter(|(l, _)| *l == level).map(|(_, t)| t).collect()))
    }

    fn bits(policies: &[FilterPolicy]) -> Vec<f32> {
        policies.iter().map(|policy| policy.bits_per_key()).collect()
    }

    fn budget(budget: FilterBudget) -> KeyspaceOptions {
        KeyspaceOptions::new().level_filters(LevelFilters::Budget(budget))
    }

    const TREE: [(usize, u64, u64); 6] =
        [(0, 9, 100), (0, 8, 200), (4, 7, 10_000), (5, 6, 100_000), (6, 5, 600_000), (6, 4, 400_000)];

    #[test]
    fn uniform_and_listed_policies_do_not_depend_on_the_tree() {
        with_tree(&TREE, |levels| {
            let uniform = KeyspaceOptions::new();
            assert_eq!(policies(&uniform, levels), [FilterPolicy::DEFAULT; 6]);
            assert_eq!(policy_of_output(&uniform, levels, 5, 1000, || 0, |_, _| false), FilterPolicy::DEFAULT);
            let each = [16.0, 14.0, 9.0].map(|bits_per_key| FilterPolicy::Bloom { bits_per_key });
            let each = KeyspaceOptions::new().level_filters(LevelFilters::Each(each.to_vec()));
            assert_eq!(bits(&policies(&each, levels)), [16.0, 16.0, 9.0, 9.0, 9.0, 9.0]);
            let of_level = |level| policy_of_output(&each, levels, level, 1000, || 0, |_, _| true).bits_per_key();
            assert_eq!([0, 1, 2, 6].map(of_level), [16.0, 14.0, 9.0, 9.0]);
        });
    }

    #[test]
    fn a_budget_gives_each_run_its_share_and_all_tables_of_a_level_the_same() {
        with_tree(&TREE, |levels| {
            let all = bits(&policies(&budget(FilterBudget::bits_per_key(10.0)), levels));
            assert_eq!(all[4], all[5]);
            assert_eq!(all[..2], [24.0, 24.0]);
            assert!(all.is_sorted_by(|a, b| a >= b), "{all:?}");
            assert!((9.0..10.0).contains(&all[5]), "{all:?}");
            // Equal memory, given in bytes.
            let bytes = filter_bytes(FilterPolicy::DEFAULT, TREE.iter().map(|(.., keys)| keys).sum());
            assert_eq!(bits(&policies(&budget(FilterBudget::bytes(bytes)), levels)), all);
            assert_eq!(bits(&policies(&budget(FilterBudget::bytes(0)), levels)), [0.0; 6]);
            // No read asks the last level for an absent key.
            let hits = policies(&budget(FilterBudget::bytes(bytes).absent(0.0)), levels);
            assert_eq!(bits(&hits), [24.0, 24.0, 24.0, 24.0, 0.0, 0.0]);
        });
    }

    #[test]
    fn a_new_run_gets_the_filter_planned_for_the_resulting_tree() {
        let options = budget(FilterBudget::bits_per_key(8.0));
        let planned = |tables: &[(usize, u64, u64)]| with_tree(tables, |levels| policies(&options, levels));
        with_tree(&TREE, |levels| {
            // A flush.
            let after = [&[(0, 10, 50)], &TREE[..]].concat();
            assert_eq!(policy_of_output(&options, levels, 0, 50, || 0, |_, _| false), planned(&after)[0]);
            // Level 0 and a table of level 4 into level 5.
            let takes = |level: usize, _| matches!(level, 0 | 4);
            let after = [(5, 6, 100_000), (5, 11, 10_300), (6, 5, 600_000), (6, 4, 400_000)];
            assert_eq!(policy_of_output(&options, levels, 5, 10_300, || 0, takes), planned(&after)[0]);
            // Everything into the last level.
            let after = [(6, 12, 1_110_300)];
            assert_eq!(policy_of_output(&options, levels, 6, 1_110_300, || 0, |_, _| true), planned(&after)[0]);
            // Into an empty level.
            let after = [(3, 11, 300), (4, 7, 10_000), (5, 6, 100_000), (6, 5, 1_000_000)];
            assert_eq!(policy_of_output(&options, levels, 3, 300, || 0, |level, _| level == 0), planned(&after)[0]);
        });
        // A single run gets all bits of the budget.
        let alone = with_tree(&[], |levels| policy_of_output(&options, levels, 0, 1000, || 0, |_, _| false));
        assert_eq!(alone, FilterPolicy::Bloom { bits_per_key: 8.0 });
        let absent = budget(FilterBudget::bits_per_key(8.0).absent(0.0));
        let alone = with_tree(&[], |levels| policy_of_output(&absent, levels, 0, 1000, || 0, |_, _| false));
        assert_eq!(alone, FilterPolicy::Bloom { bits_per_key: 8.0 });
    }

    /// Append-only keys: the last level is never rewritten, and its planned filters shrink all the
    /// time.
    #[test]
    fn a_budget_in_bytes_holds_while_a_store_grows() {
        let bytes = filter_bytes(FilterPolicy::DEFAULT, 10_000);
        let options = budget(FilterBudget::bytes(bytes));
        let (mut tables, mut held, mut planned) = (Vec::new(), 0, 0);
        for number in 1..400u64 {
            let (policy, run, plan) = with_tree(&tables, |levels| {
                let of = |level, keys, held| policy_of_output(&options, levels, level, keys, || held, |_, _| false);
                (of(6, 1000, held), of(0, 50, held), of(6, 1000, 0))
            });
            assert!(run.bits_per_key() >= 4.0, "{number}: {run:?}");
            assert!(held + filter_bytes(run, 50) <= bytes * 3 / 2);
            held += filter_bytes(policy, 1000);
            planned += filter_bytes(plan, 1000);
            assert!(held <= bytes * 5 / 4, "{number}: {held} of {bytes}");
            tables.push((6, number, 1000));
        }
        assert!(held > bytes, "it is used");
        assert!(planned > bytes * 2, "{planned}: the plan alone would not hold it");
        // When everything is rewritten, it gets what the budget allows.
        let all = with_tree(&tables, |levels| policy_of_output(&options, levels, 6, 399_000, || 0, |_, _| true));
        assert!(filter_bytes(all, 399_000) <= bytes);
        let half = with_tree(&tables, |levels| policy_of_output(&options, levels, 0, 10, || bytes, |_, _| false));
        assert_eq!(half.bits_per_key(), 24.0);
    }

    #[test]
    fn a_flush_adds_a_run_to_level_0() {
        let options = budget(FilterBudget::bits_per_key(4.0));
        let runs = [(0, 9, 1000), (0, 8, 1000)];
        let of_third = with_tree(&runs, |levels| policy_of_output(&options, levels, 0, 1000, || 0, |_, _| false));
        assert_eq!(of_third, FilterPolicy::Bloom { bits_per_key: 4.0 }, "three equal runs");
    }

    #[test]
    fn above_the_last_level_and_in_level_0_the_overdraft_is_larger() {
        let bytes = filter_bytes(FilterPolicy::DEFAULT, TREE.iter().map(|(.., keys)| keys).sum());
        let has_filter = |tables: &[(usize, u64, u64)], level| {
            let options = budget(FilterBudget::bytes(bytes));
            let held = || bytes + bytes / 4;
            with_tree(tables, |levels| policy_of_output(&options, levels, level, 50, held, |_, _| false))
                != FilterPolicy::None
        };
        assert_eq!([0, 4, 5, 6].map(|level| has_filter(&TREE, level)), [true, true, true, false]);
        assert!(has_filter(&TREE[..2], 0), "level 0 alone");
    }

    #[test]
    fn a_filter_that_does_not_fit_shrinks_by_quarter_bits() {
        let bloom = |bits_per_key: f32| FilterPolicy::Bloom { bits_per_key };
        let keys = 1_000_000;
        for bits in [1.0, 1.25, 5.0, 9.75, 10.0] {
            let bytes = filter_bytes(bloom(bits), keys);
            assert_eq!(at_most(bloom(10.0), keys, bytes), bloom(bits));
            let less = if bits > 1.0 { bloom(bits - 0.25) } else { FilterPolicy::None };
            assert_eq!(at_most(bloom(10.0), keys, bytes - 1), less);
        }
    }
}
