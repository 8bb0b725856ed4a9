//! Which filters a table gets: a pure function of the keyspace's options, of the tables' metadata,
//! and of how often each was asked in vain.
//!
//! A budget is shared out over the tree that the new table will be part of, without the tables it
//! replaces and with as many keys as the new run can have. A bit is worth most where look-ups of
//! absent keys are many and keys few: tables with about as many such look-ups per key get equal
//! bits, whatever their level. Before look-ups were counted, the plan assumes as many for every
//! run, or as the budget says; that counts as much as `ASSUMED` look-ups.
//!
//! A table keeps its filter until it is rewritten, so the bits follow the tree only where
//! compaction rewrites it. Append-only data keeps the filters it got when the tree was small and
//! the bits were many. Therefore no new filter is larger than what the budget, plus `OVERDRAFT`,
//! leaves beside the existing filters.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::filter::{FilterPolicy, RangeFilterPolicy};
use crate::filter::{Run, allocate, filter_bytes};
use crate::options::{BudgetLimit, FilterBudget, KeyspaceOptions, LevelFilters};
use crate::sorted::table::{Table, TableFilters, TableMeta};
use crate::version::{LEVELS, LevelMetas, Version};

/// How far all filters together may exceed a budget: by a quarter when the last level is written,
/// by a half when a level above is. A tree with regular compactions lags behind its plan by a
/// tenth, which is tolerated. Small runs, whose filters save most for their memory, still get one
/// when the last level has used up the budget.
const OVERDRAFT: [u64; 2] = [4, 2];
/// Most of a budget that range filters may take.
const MOST_FOR_RANGES: (u64, u64) = (3, 4);
/// Look-ups that each run is assumed to have had in vain.
const ASSUMED: f64 = 1000.0;
/// Tables whose look-ups per key are in the same part of an octave, of which there are this many,
/// get equal bits.
const PARTS_OF_OCTAVE: f64 = 4.0;

/// What a plan needs to know of a table.
#[derive(Clone, Copy, Debug)]
pub struct PlannedTable {
    pub level: usize,
    pub number: u64,
    pub keys: u64,
    /// Look-ups that came to it in vain.
    pub absent: u64,
}

/// The tables of entries, level by level.
pub fn planned(version: &Version) -> Vec<PlannedTable> {
    let planned = |(level, table): (usize, &Arc<Table>)| {
        let &TableMeta { number, keys, .. } = table.meta();
        PlannedTable { level, number, keys, absent: table.counters().absent() }
    };
    version.tables().map(planned).collect()
}

/// The tables of a keyspace whose reads nobody has counted, level by level.
pub fn unread(levels: &LevelMetas<'_>) -> Vec<PlannedTable> {
    let of_level = |(level, tables): (usize, &Vec<&TableMeta>)| {
        let planned =
            move |&TableMeta { number, keys, .. }: &TableMeta| PlannedTable { level, number, keys, absent: 0 };
        tables.iter().copied().map(planned).collect::<Vec<_>>()
    };
    levels.iter().enumerate().flat_map(of_level).collect()
}

/// The filters of a run of `keys` distinct keys written to `level`, where it replaces the `tables`
/// that `replaced` selects by level and number. `held` returns the bytes of all other tables'
/// filters. Only a budget asks for either.
pub fn filters_of_output(
    options: &KeyspaceOptions,
    tables: impl FnOnce() -> Vec<PlannedTable>,
    level: usize,
    keys: u64,
    held: impl FnOnce() -> u64,
    replaced: impl Fn(usize, u64) -> bool,
) -> TableFilters {
    let LevelFilters::Budget(budget) = &options.level_filters else { return fixed(options, level) };
    let (gone, mut tables): (Vec<_>, Vec<_>) =
        tables().into_iter().partition(|table| replaced(table.level, table.number));
    let gone: Vec<Asked> = gone.iter().map(|table| (table.level, table.absent)).collect();
    tables.push(PlannedTable { level, number: u64::MAX, keys, absent: in_vain(&gone) });
    let shares = Shares::new(options, budget, &tables);
    let planned = share_out(budget, &tables, shares.points).last().copied().unwrap_or(options.filter);
    let is_last = level > 0 && tables.iter().all(|table| table.level <= level);
    let [in_last, above] = OVERDRAFT.map(|part| shares.all.saturating_add(shares.all / part));
    let left = if is_last { in_last } else { above }.saturating_sub(held());
    // Scans need the range filter of every run, look-ups that of those where keys are absent.
    let ranges = range_bytes(shares.policy, keys);
    let (policy, left) = if ranges <= left { (shares.policy, left - ranges) } else { (RangeFilterPolicy::None, left) };
    // A filter with prefixes may hold twice as many keys.
    let most_keys = if options.prefix.is_some() { keys.saturating_mul(2) } else { keys };
    TableFilters { points: at_most(planned, most_keys, left), prefix: options.prefix, ranges: policy }
}

/// What range filters of `keys` keys take.
pub fn range_bytes(policy: RangeFilterPolicy, keys: u64) -> u64 {
    keys.saturating_mul(policy.millibits().into()) / 8000
}

/// How a budget is divided between the two kinds of filters, in bytes.
struct Shares {
    all: u64,
    points: u64,
    policy: RangeFilterPolicy,
}

impl Shares {
    /// Range filters have the size that the options say, and are in all tables, or, if they would
    /// take more than [`MOST_FOR_RANGES`] of the budget, in none.
    fn new(options: &KeyspaceOptions, budget: &FilterBudget, tables: &[PlannedTable]) -> Shares {
        let all = budget_bytes(budget, tables);
        let keys = tables.iter().fold(0u64, |sum, table| sum.saturating_add(table.keys));
        let ranges = range_bytes(options.range_filter, keys);
        let most = u128::from(all) * u128::from(MOST_FOR_RANGES.0) / u128::from(MOST_FOR_RANGES.1);
        match u128::from(ranges) <= most {
            true => Shares { all, points: all - ranges, policy: options.range_filter },
            false => Shares { all, points: all, policy: RangeFilterPolicy::None },
        }
    }
}

/// `policy` if it fits into `bytes`, else the largest smaller filter that does, in steps of a
/// quarter bit per key.
fn at_most(policy: FilterPolicy, keys: u64, bytes: u64) -> FilterPolicy {
    let fits = |policy: &FilterPolicy| filter_bytes(*policy, keys) <= bytes;
    let less = (4..policy.millibits().div_ceil(250)).rev().map(|quarters| FilterPolicy::of_millibits(250 * quarters));
    [policy].into_iter().chain(less).find(fits).unwrap_or(FilterPolicy::None)
}

/// The filters that each table should have, in the order of `tables`.
pub fn filters_of_all(options: &KeyspaceOptions, tables: &[PlannedTable]) -> Vec<TableFilters> {
    match &options.level_filters {
        LevelFilters::Budget(budget) => {
            let shares = Shares::new(options, budget, tables);
            let points = share_out(budget, tables, shares.points).into_iter();
            points.map(|points| TableFilters { points, prefix: options.prefix, ranges: shares.policy }).collect()
        }
        _ => tables.iter().map(|table| fixed(options, table.level)).collect(),
    }
}

/// The filters of a level, independent of the tree.
pub fn fixed(options: &KeyspaceOptions, level: usize) -> TableFilters {
    let points = match &options.level_filters {
        LevelFilters::Each(policies) => policies.get(level).or(policies.last()).copied().unwrap_or(options.filter),
        LevelFilters::Uniform | LevelFilters::Budget(_) => options.filter,
    };
    TableFilters { points, prefix: options.prefix, ranges: options.range_filter }
}

/// The budget in bytes.
fn budget_bytes(budget: &FilterBudget, tables: &[PlannedTable]) -> u64 {
    match budget.limit {
        BudgetLimit::BitsPerKey(bits_per_key) => {
            let keys = tables.iter().fold(0u64, |sum, table| sum.saturating_add(table.keys));
            filter_bytes(FilterPolicy::Bloom { bits_per_key }, keys)
        }
        BudgetLimit::Bytes(bytes) => bytes,
    }
}

/// The filter for look-ups of each of `tables`, of which all together take `bytes`.
fn share_out(budget: &FilterBudget, tables: &[PlannedTable], bytes: u64) -> Vec<FilterPolicy> {
    let last = tables.iter().map(|table| table.level).max().unwrap_or_default();
    let mut keys = [0; LEVELS];
    tables.iter().for_each(|table| keys[table.level] = table.keys.saturating_add(keys[table.level]));
    // What is assumed per key. Hits are assumed to be in the last level, which holds most of the
    // data. This does not apply if all runs are in level 0, where each may hold the key.
    let assumed: [f64; LEVELS] = std::array::from_fn(|level| {
        let share = if level == last && level > 0 { f64::from(budget.absent) } else { 1.0 };
        share * ASSUMED / keys[level].max(1) as f64
    });
    // Every look-up comes to every run of level 0 first, however new that is.
    let mut of_levels = [0.0; LEVELS];
    let mut most = ASSUMED;
    for table in tables {
        let in_vain = &mut of_levels[table.level];
        *in_vain = table.absent as f64 + if table.level > 0 { *in_vain } else { 0.0 };
        most = most.max(*in_vain);
    }
    let mut groups: BTreeMap<(usize, u64), (usize, Run)> = BTreeMap::new();
    let mut group_of = Vec::with_capacity(tables.len());
    for (at, table) in tables.iter().enumerate() {
        let count = groups.len();
        let (per_key, part) = match table.level {
            0 => (most / table.keys.max(1) as f64, at as u64),
            level => {
                let per_key = assumed[level] + table.absent as f64 / table.keys.max(1) as f64;
                (per_key, (per_key.log2() * PARTS_OF_OCTAVE).floor().to_bits())
            }
        };
        let (group, run) = groups.entry((table.level, part)).or_insert((count, Run { keys: 0, weight: 0.0 }));
        run.keys = run.keys.saturating_add(table.keys);
        run.weight += per_key * table.keys as f64;
        group_of.push(*group);
    }
    let mut runs = vec![Run { keys: 0, weight: 0.0 }; groups.len()];
    groups.into_values().for_each(|(at, run)| runs[at] = run);
    let policies = allocate(&runs, bytes);
    group_of.into_iter().map(|group| policies[group]).collect()
}

/// A level, and look-ups that came in vain to a table of it, or a part of one.
type Asked = (usize, u64);

/// Look-ups that will come in vain to the table that replaces `gone`: those of the lowest level.
/// Tables above it cover more keys.
fn in_vain(gone: &[Asked]) -> u64 {
    let lowest = gone.iter().map(|(level, _)| *level).max();
    let counts = gone.iter().filter(|(level, _)| Some(*level) == lowest).map(|(_, absent)| *absent);
    if lowest == Some(0) { counts.max().unwrap_or_default() } else { counts.sum() }
}

/// Has the tables that come in an edit, which do not overlap, take over the counts of those that
/// go: each those of its own part of the keys.
pub fn hand_on<'t>(gone: &[(u8, &'t Arc<Table>)], come: impl Iterator<Item = &'t Arc<Table>>) {
    let mut come: Vec<(&Arc<Table>, Vec<Asked>)> = come.map(|table| (table, Vec::new())).collect();
    come.sort_unstable_by_key(|(table, _)| &table.meta().smallest);
    for &(level, old) in gone {
        let (absent, TableMeta { smallest, largest, .. }) = (old.counters().absent(), old.meta());
        let start = come.partition_point(|(new, _)| new.meta().largest < *smallest);
        let end = come.partition_point(|(new, _)| new.meta().smallest <= *largest).max(start);
        let all = come[start..end].iter().fold(0u64, |sum, (new, _)| sum.saturating_add(new.meta().keys));
        for (new, parts) in &mut come[start..end] {
            let share = u128::from(absent) * u128::from(new.meta().keys) / u128::from(all.max(1));
            parts.push((level.into(), u64::try_from(share).unwrap_or(absent)));
        }
    }
    come.iter().for_each(|(table, parts)| table.counters().inherit(in_vain(parts)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of tables, given as level, number and keys.
    fn with_tree<R>(tables: &[(usize, u64, u64)], check: impl FnOnce(&[PlannedTable]) -> R) -> R {
        let table = |&(level, number, keys): &(usize, u64, u64)| PlannedTable { level, number, keys, absent: 0 };
        check(&tables.iter().map(table).collect::<Vec<_>>())
    }

    fn policy_of_output(
        options: &KeyspaceOptions,
        tables: impl FnOnce() -> Vec<PlannedTable>,
        level: usize,
        keys: u64,
        held: impl FnOnce() -> u64,
        replaced: impl Fn(usize, u64) -> bool,
    ) -> FilterPolicy {
        filters_of_output(options, tables, level, keys, held, replaced).points
    }

    fn policies(options: &KeyspaceOptions, tables: &[PlannedTable]) -> Vec<FilterPolicy> {
        filters_of_all(options, tables).iter().map(|filters| filters.points).collect()
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
            assert_eq!(
                policy_of_output(&uniform, || levels.to_vec(), 5, 1000, || 0, |_, _| false),
                FilterPolicy::DEFAULT
            );
            let each = [16.0, 14.0, 9.0].map(|bits_per_key| FilterPolicy::Bloom { bits_per_key });
            let each = KeyspaceOptions::new().level_filters(LevelFilters::Each(each.to_vec()));
            assert_eq!(bits(&policies(&each, levels)), [16.0, 16.0, 9.0, 9.0, 9.0, 9.0]);
            let of_level =
                |level| policy_of_output(&each, || levels.to_vec(), level, 1000, || 0, |_, _| true).bits_per_key();
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
            assert_eq!(policy_of_output(&options, || levels.to_vec(), 0, 50, || 0, |_, _| false), planned(&after)[0]);
            // Level 0 and a table of level 4 into level 5.
            let takes = |level: usize, _| matches!(level, 0 | 4);
            let after = [(5, 6, 100_000), (5, 11, 10_300), (6, 5, 600_000), (6, 4, 400_000)];
            assert_eq!(policy_of_output(&options, || levels.to_vec(), 5, 10_300, || 0, takes), planned(&after)[0]);
            // Everything into the last level.
            let after = [(6, 12, 1_110_300)];
            assert_eq!(
                policy_of_output(&options, || levels.to_vec(), 6, 1_110_300, || 0, |_, _| true),
                planned(&after)[0]
            );
            // Into an empty level.
            let after = [(3, 11, 300), (4, 7, 10_000), (5, 6, 100_000), (6, 5, 1_000_000)];
            assert_eq!(
                policy_of_output(&options, || levels.to_vec(), 3, 300, || 0, |level, _| level == 0),
                planned(&after)[0]
            );
        });
        // A single run gets all bits of the budget.
        let alone =
            with_tree(&[], |levels| policy_of_output(&options, || levels.to_vec(), 0, 1000, || 0, |_, _| false));
        assert_eq!(alone, FilterPolicy::Bloom { bits_per_key: 8.0 });
        let absent = budget(FilterBudget::bits_per_key(8.0).absent(0.0));
        let alone = with_tree(&[], |levels| policy_of_output(&absent, || levels.to_vec(), 0, 1000, || 0, |_, _| false));
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
                let of = |level, keys, held| {
                    policy_of_output(&options, || levels.to_vec(), level, keys, || held, |_, _| false)
                };
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
        let all =
            with_tree(&tables, |levels| policy_of_output(&options, || levels.to_vec(), 6, 399_000, || 0, |_, _| true));
        assert!(filter_bytes(all, 399_000) <= bytes);
        let half =
            with_tree(&tables, |levels| policy_of_output(&options, || levels.to_vec(), 0, 10, || bytes, |_, _| false));
        assert_eq!(half.bits_per_key(), 24.0);
    }

    #[test]
    fn a_flush_adds_a_run_to_level_0() {
        let options = budget(FilterBudget::bits_per_key(4.0));
        let runs = [(0, 9, 1000), (0, 8, 1000)];
        let of_third =
            with_tree(&runs, |levels| policy_of_output(&options, || levels.to_vec(), 0, 1000, || 0, |_, _| false));
        assert_eq!(of_third, FilterPolicy::Bloom { bits_per_key: 4.0 }, "three equal runs");
    }

    #[test]
    fn above_the_last_level_and_in_level_0_the_overdraft_is_larger() {
        let bytes = filter_bytes(FilterPolicy::DEFAULT, TREE.iter().map(|(.., keys)| keys).sum());
        let has_filter = |tables: &[(usize, u64, u64)], level| {
            let options = budget(FilterBudget::bytes(bytes));
            let held = || bytes + bytes / 4;
            with_tree(tables, |levels| policy_of_output(&options, || levels.to_vec(), level, 50, held, |_, _| false))
                != FilterPolicy::None
        };
        assert_eq!([0, 4, 5, 6].map(|level| has_filter(&TREE, level)), [true, true, true, false]);
        assert!(has_filter(&TREE[..2], 0), "level 0 alone");
    }

    #[test]
    fn range_filters_take_their_share_of_a_budget_or_none() {
        let ranges = RangeFilterPolicy::Ordered { bits_per_key: 12.0 };
        let with = |budget| KeyspaceOptions { range_filter: ranges, ..self::budget(budget) };
        with_tree(&TREE, |levels| {
            // 24 bits per key are 12 for each kind of filter.
            let both = filters_of_all(&with(FilterBudget::bits_per_key(24.0)), levels);
            let points = policies(&budget(FilterBudget::bits_per_key(12.0)), levels);
            assert!(both.iter().all(|filters| filters.ranges == ranges));
            let both = bits(&both.iter().map(|filters| filters.points).collect::<Vec<_>>());
            for (both, alone) in both.iter().zip(bits(&points)) {
                assert!((both - alone).abs() < 0.6, "{both} {alone}");
            }
            let none = filters_of_all(&with(FilterBudget::bits_per_key(15.0)), levels);
            assert!(none.iter().all(|filters| filters.ranges == RangeFilterPolicy::None));
            assert_eq!(policies(&with(FilterBudget::bits_per_key(15.0)), levels), {
                policies(&budget(FilterBudget::bits_per_key(15.0)), levels)
            });
            // A run whose range filter does not fit beside what the others hold gets none.
            let options = with(FilterBudget::bits_per_key(24.0));
            let all = budget_bytes(&FilterBudget::bits_per_key(24.0), levels);
            let of = |held| filters_of_output(&options, || levels.to_vec(), 6, 100_000, || held, |_, _| false);
            assert_eq!(of(0).ranges, ranges);
            assert_eq!(of(all + all / 2).ranges, RangeFilterPolicy::None);
        });
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

    /// Tables of a thousand keys each, given as level and look-ups in vain.
    fn asked(tables: &[(usize, u64)]) -> Vec<PlannedTable> {
        let table = |(&(level, absent), number)| PlannedTable { level, number, keys: 1000, absent };
        tables.iter().zip(1..).map(table).collect()
    }

    #[test]
    fn bits_go_where_look_ups_come_in_vain() {
        let options = budget(FilterBudget::bits_per_key(6.0));
        let of = |tables: &[(usize, u64)]| bits(&policies(&options, &asked(tables)));
        let by_use = of(&[(6, 100_000), (6, 1000), (6, 1100), (6, 0)]);
        assert!(by_use[0] > by_use[1] + 5.0 && by_use[1] > by_use[3], "{by_use:?}");
        assert_eq!(by_use[1], by_use[2], "about as many");
        assert_eq!(of(&[(6, 10), (6, 0)])[0], of(&[(6, 0), (6, 0)])[0], "too few to tell");
        // A run of level 0 that is new will be asked as often as the level that is asked most.
        let new_run = of(&[(0, 0), (5, 0), (6, 50_000), (6, 50_000)]);
        assert!(new_run[0] > new_run[2] && new_run[2] > new_run[1], "{new_run:?}");
    }

    #[test]
    fn an_output_inherits_the_look_ups_of_what_it_replaces() {
        let options = budget(FilterBudget::bits_per_key(6.0));
        let tables = asked(&[(5, 90_000), (6, 80_000), (6, 100), (6, 100)]);
        let of = |replaced: [u64; 2]| {
            let takes = |_, number| replaced.contains(&number);
            policy_of_output(&options, || tables.clone(), 6, 2000, || 0, takes).bits_per_key()
        };
        // The table above is asked for the keys of all three.
        assert!(of([1, 2]) > of([1, 3]) + 3.0, "{} {}", of([1, 2]), of([1, 3]));
        assert_eq!(of([1, 3]), of([1, 4]));
    }

    #[test]
    fn only_a_budget_looks_at_the_tables() {
        for options in [
            KeyspaceOptions::new(),
            KeyspaceOptions::new().level_filters(LevelFilters::Each(vec![FilterPolicy::DEFAULT])),
        ] {
            let policy =
                policy_of_output(&options, || panic!("not needed"), 5, 10, || panic!("not needed"), |_, _| false);
            assert_eq!(policy, FilterPolicy::DEFAULT);
        }
    }
}
