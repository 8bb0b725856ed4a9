//! What do different filters per level save?
//!
//! `TAMIS_KEYS` sets the number of keys in the tree.

use std::path::Path;
use std::sync::Arc;

use tamis::filter::{FilterState, Run, allocate, expected_rate, filter_bytes};
use tamis::inspect::{FileKind, Inspector};
use tamis::vfs::SimFileSystem;
use tamis::{
    Compression, Db, Executor, FilterBudget, FilterPolicy, KeyspaceOptions, LevelFilters, Options, ReadOptions,
    SteppedExecutor,
};

use tamis_figures::Table;

use crate::support::{count_from_env, stepped_options};

const DIR: &str = "/db";
const UNIFORM: FilterPolicy = FilterPolicy::Bloom { bits_per_key: 10.0 };

fn options(fs: &SimFileSystem, keyspace: KeyspaceOptions, memtable_size: usize) -> (Options, Arc<SteppedExecutor>) {
    let (options, executor) = stepped_options(fs);
    let options = options.memtable_size(memtable_size).table_size(memtable_size as u64 * 16).default_keyspace(keyspace);
    (options, executor)
}

/// Even, so that absent keys lie between: no table's key range rules them out.
fn present(n: u64) -> [u8; 8] {
    (2 * n).to_be_bytes()
}

/// A store of `keys` keys with five levels, each with about a tenth of the keys of the next. The
/// last level is loaded at once; later keys, from small memtables, reach the levels above by
/// flushes and compactions.
fn five_levels(keyspace: &KeyspaceOptions, keys: u64) -> (SimFileSystem, Db) {
    let fs = SimFileSystem::new();
    let (opened, _) = options(&fs, keyspace.clone(), 16 << 20);
    let db = opened.open(DIR).unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut order: Vec<u64> = (0..keys).collect();
    rng.shuffle(&mut order);
    let (first, later) = order.split_at(usize::try_from(keys * 8 / 9).unwrap());
    for &n in first {
        db.put(present(n), [n.to_be_bytes(); 2].concat()).unwrap();
    }
    db.compact_range(..).unwrap();
    let size = db.stats().keyspaces[0].size();
    db.close().unwrap();
    // At twelve runs, level 0 is compacted into a level at most eight times its size; the last
    // level has 900 times its size.
    let memtable_size = usize::try_from(size / 12 / 900).unwrap();
    let (opened, executor) = options(&fs, keyspace.clone(), memtable_size);
    let db = opened.open(DIR).unwrap();
    let (mut later, enough) = (later.iter(), later.len() / 10);
    while let Some(&n) = later.next() {
        db.put(present(n), [n.to_be_bytes(); 2].concat()).unwrap();
        while executor.step() {}
        // Levels are merged into the next ones, which empties them: stop when only level 0 is
        // empty.
        let runs = || db.stats().keyspaces[0].levels[0].tables.len();
        if later.len() < enough && occupied(&db) == 4 && runs() == 0 {
            break;
        }
    }
    // Three runs of a few keys, too small to be merged when the store is idle.
    for run in 0..3 {
        for &n in later.by_ref().take(10 << run) {
            db.put(present(n), [n.to_be_bytes(); 2].concat()).unwrap();
        }
        db.flush().unwrap();
        while executor.step() {}
    }
    assert_eq!(occupied(&db), 5);
    (fs, db)
}

/// Number of levels that hold tables.
fn occupied(db: &Db) -> usize {
    db.stats().keyspaces[0].levels.iter().filter(|level| !level.tables.is_empty()).count()
}

/// Keys of each run, as reads meet them: level 0 table by table, the others as wholes.
fn runs(fs: &SimFileSystem, db: &Db) -> Vec<Run> {
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let keys = |number| inspector.table(&FileKind::Table(number).path(Path::new(DIR))).unwrap().properties().keys;
    let levels = &db.stats().keyspaces[0].levels;
    let first = levels[0].tables.iter().map(|table| keys(table.number));
    let others = levels[1..].iter().map(|level| level.tables.iter().map(|table| keys(table.number)).sum());
    first.chain(others).filter(|keys| *keys > 0).map(|keys| Run { keys, weight: 1.0 }).collect()
}

/// Bytes of all filters, with headers and unused space in their last lines. And the false positives
/// to expect per look-up of an absent key, by the filters' own bits, with each table of a level
/// weighted by its share of the keys.
fn filters(fs: &SimFileSystem, db: &Db) -> (u64, f64) {
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let (mut bytes, mut expected) = (0, 0.0);
    for level in &db.stats().keyspaces[0].levels {
        let (mut keys, mut weighted) = (0.0, 0.0);
        for table in &level.tables {
            let table = inspector.table(&FileKind::Table(table.number).path(Path::new(DIR))).unwrap();
            let rate = match table.filter() {
                FilterState::Usable(info) => {
                    bytes += info.bytes;
                    info.expected_fpr
                }
                FilterState::None => 1.0,
                other => panic!("{other:?}"),
            };
            // Each run of level 0 spans all keys.
            let share = if level.level == 0 { 1.0 } else { table.properties().keys as f64 };
            keys += share;
            weighted += share * rate;
        }
        expected += match level.level {
            0 => weighted,
            _ if keys > 0.0 => weighted / keys,
            _ => 0.0,
        };
    }
    (bytes, expected)
}

/// Wasted reads per look-up of an absent key, as the store counts them.
fn measured(db: &Db, keys: u64, look_ups: u64) -> f64 {
    let before = db.stats().reads();
    let mut rng = fastrand::Rng::with_seed(9);
    for _ in 0..look_ups {
        let absent = (2 * rng.u64(0..keys) + 1).to_be_bytes();
        assert!(db.get_with(absent, ReadOptions::new()).unwrap().is_none());
    }
    let after = db.stats().reads();
    assert_eq!(after.true_positives, before.true_positives);
    let wasted = after.false_positives - before.false_positives + (after.skipped - before.skipped);
    wasted as f64 / look_ups as f64
}

#[test]
fn a_budget_wastes_less_than_half_the_reads_of_uniform_filters_of_the_same_memory() {
    let keys = count_from_env("TAMIS_KEYS", 2_100_000);
    let look_ups = 500_000;
    let budget = LevelFilters::Budget(FilterBudget::bits_per_key(10.0));
    let keyspace = KeyspaceOptions::new().filter(UNIFORM).compression(Compression::None).level_filters(budget);
    let (fs, db) = five_levels(&keyspace, keys);
    let runs = runs(&fs, &db);
    let total: u64 = runs.iter().map(|run| run.keys).sum();
    let memory_limit = filter_bytes(UNIFORM, total);
    let planned: f64 = allocate(&runs, memory_limit).into_iter().map(expected_rate).sum();
    let uniform_planned = runs.len() as f64 * expected_rate(UNIFORM);
    assert!(planned * 2.0 < uniform_planned);

    // First as flushes and compactions have written it, then with the filters that the tree would
    // get now, then with uniform ones.
    let check = || {
        let (memory, expected) = filters(&fs, &db);
        let wasted = measured(&db, keys, look_ups);
        // Four standard deviations.
        let deviation = (expected / look_ups as f64).sqrt();
        assert!((wasted - expected).abs() < 4.0 * deviation + 0.05 * expected, "{wasted} {expected}");
        (memory, expected, wasted)
    };
    let written = check();
    db.rebuild_filters(UNIFORM, |_| {}).unwrap();
    let uniform = check();
    // The plan omits headers and last lines, and tables are small here: find the largest budget
    // whose filters really take no more memory.
    let renewed = (0..20u8).map(|step| 10.0 - 0.25 * f32::from(step)).find_map(|bits| {
        let budget = LevelFilters::Budget(FilterBudget::bits_per_key(bits));
        db.keyspace_with("default", keyspace.clone().level_filters(budget)).unwrap();
        db.default_keyspace().remake_filters(|_| {}).unwrap();
        let renewed = check();
        (renewed.0 <= uniform.0).then_some(renewed)
    });
    let renewed = renewed.unwrap();
    let name = format!("levels/{keys} keys");
    let command = format!("TAMIS_KEYS={keys} cargo test -p tamis-tests --test it levels:: -- --nocapture");
    let per_run = runs.iter().map(|run| run.keys.to_string()).collect::<Vec<_>>().join(", ");
    let head = format!("runs of {per_run} keys");
    let mut table = Table::new(&name, &command, &[&head, "planned", "expected", "measured", "bytes"]);
    let ways = [
        ("uniform", format!("{uniform_planned:.4}"), uniform),
        ("shared out", format!("{planned:.4}"), renewed),
        ("shared out, as flushes and compactions wrote it", String::new(), written),
    ];
    for (name, planned, (memory, expected, wasted)) in ways {
        table.row([name, &planned, &format!("{expected:.4}"), &format!("{wasted:.4}"), &memory.to_string()]);
    }
    table.show();
    for (_, expected, wasted) in [written, renewed] {
        assert!(expected * 2.0 < uniform.1, "{expected} {uniform:?}");
        assert!(wasted * 2.0 < uniform.2, "{wasted} {uniform:?}");
    }
    // The tree has changed since some of it was written.
    assert!(written.0 < uniform.0 + uniform.0 / 20, "{} {uniform:?}", written.0);
}

/// Keys that no table holds, as in the first of `regions` regions of `keys` keys nine times out of
/// ten, and anywhere else.
fn trace(keys: u64, regions: u64, look_ups: usize) -> Vec<[u8; 8]> {
    let mut rng = fastrand::Rng::with_seed(11);
    let absent = |n: u64| (2 * n + 1).to_be_bytes();
    (0..look_ups)
        .map(|_| absent(if rng.u8(0..10) > 0 { rng.u64(0..keys / regions) } else { rng.u64(0..keys) }))
        .collect()
}

/// Least false positives of all ways to give `tables`, as keys and look-ups, filters of whole
/// quarters of a bit within `bytes`.
fn least(rates: &[(FilterPolicy, f64)], tables: &[(u64, u64)], bytes: u64) -> f64 {
    let Some((&(keys, look_ups), others)) = tables.split_first() else { return 0.0 };
    let affordable =
        rates.iter().map(|&(policy, rate)| (filter_bytes(policy, keys), rate)).take_while(|(cost, _)| *cost <= bytes);
    let wasted = |rate: f64| look_ups as f64 * rate;
    match others {
        [] => affordable.last().map_or(f64::INFINITY, |(_, rate)| wasted(rate)),
        _ => affordable
            .map(|(cost, rate)| wasted(rate) + least(rates, others, bytes - cost))
            .fold(f64::INFINITY, f64::min),
    }
}

/// Given the memory, no assignment of bits to tables wastes 5 % fewer reads on the recorded trace.
#[test]
fn bits_follow_the_look_ups_that_find_nothing() {
    const KEYS: u64 = 90_000;
    const BITS: f32 = 6.0;
    let fs = SimFileSystem::new();
    let budget = LevelFilters::Budget(FilterBudget::bits_per_key(BITS));
    let keyspace = KeyspaceOptions::new().filter(UNIFORM).compression(Compression::None).level_filters(budget);
    let (options, _) = stepped_options(&fs);
    let db = options.table_size(1 << 20).default_keyspace(keyspace).open(DIR).unwrap();
    let write = |step: usize| {
        for n in (0..KEYS).step_by(step) {
            db.put(present(n), [n.to_be_bytes(); 2].concat()).unwrap();
        }
    };
    write(1);
    db.compact_range(..).unwrap();
    write(29);
    db.flush().unwrap();
    let trace = trace(KEYS, 8, 400_000);
    let replay = || trace.iter().for_each(|key| assert!(db.get(key).unwrap().is_none()));
    let rates: Vec<(FilterPolicy, f64)> = [FilterPolicy::None]
        .into_iter()
        .chain((4..=96u8).map(|quarters| FilterPolicy::Bloom { bits_per_key: f32::from(quarters) / 4.0 }))
        .map(|policy| (policy, expected_rate(policy)))
        .collect();
    // False positives on the trace: of the filters as they are, by their own bits; of the best.
    let expected_and_best = || {
        let inspector = Inspector::on(Arc::new(fs.clone()));
        let (mut expected, mut tables) = (0.0, Vec::new());
        for stats in db.stats().keyspaces[0].levels.iter().flat_map(|level| &level.tables) {
            let table = inspector.table(&FileKind::Table(stats.number).path(Path::new(DIR))).unwrap();
            let range = &*stats.smallest..=&*stats.largest;
            let look_ups = trace.iter().filter(|key| range.contains(&key.as_slice())).count() as u64;
            let FilterState::Usable(filter) = table.filter() else { panic!("{:?}", table.filter()) };
            expected += look_ups as f64 * filter.expected_fpr;
            tables.push((table.properties().keys, look_ups));
        }
        assert!((3..6).contains(&tables.len()), "{tables:?}");
        tables.sort_unstable();
        let keys = tables.iter().map(|(keys, _)| keys).sum();
        (expected, least(&rates, &tables, filter_bytes(FilterPolicy::Bloom { bits_per_key: BITS }, keys)))
    };
    let (unread, best) = expected_and_best();
    assert!(unread > 1.3 * best, "{unread} {best}: nothing to gain");
    replay();
    db.default_keyspace().renew_filters(|_| {}).unwrap();
    let (expected, best) = expected_and_best();
    assert!(expected <= 1.05 * best, "{expected} {best}");
    let command = "cargo test -p tamis-tests --test it levels::bits -- --nocapture";
    let mut table = Table::new("levels/by use", command, &["filters of 6 bits per key", "wasted reads per absent key"]);
    for (way, wasted) in [("all look-ups alike", unread), ("by use", expected), ("best assignment", best)] {
        table.row([way, &format!("{:.4}", wasted / trace.len() as f64)]);
    }
    table.show();
    let before = db.stats().reads().false_positives;
    replay();
    let measured = (db.stats().reads().false_positives - before) as f64;
    assert!((measured - expected).abs() < 5.0 * expected.sqrt() + 0.02 * expected, "{measured} {expected}");

    // Tables that take the place of others know how often those were asked.
    write(31);
    db.compact_range(..).unwrap();
    db.default_keyspace().renew_filters(|_| {}).unwrap();
    let (expected, best) = expected_and_best();
    assert!(expected <= 1.05 * best, "{expected} {best}");
}
