//! Compares the picker with other policies: bytes written against runs that reads meet, and both
//! against the least that is possible.

use super::simulation::{Policy, SimulatedTree, size_of};
use super::*;
use crate::format::span::KeySpan;

const MIB: u64 = 1 << 20;
/// What a memtable of 64 MiB holds in entries of 116 bytes, once in a table: 11 hold 5 M of them,
/// 220 hold 100 M, 2200 a billion.
const FLUSH: u64 = 58 * MIB;

/// What a policy costs.
struct Costs {
    /// Bytes written to tables per byte flushed, with those of the idle store at the end of a fill.
    amplification: f64,
    /// What compactions have written to each level, of that.
    levels: [f64; LEVELS],
    /// Mean number of runs, counted after each flush.
    runs: f64,
    /// Mean bytes above the last level, per byte in it.
    above: f64,
}

fn tree(policy: Policy) -> SimulatedTree {
    let mut tree = SimulatedTree::new(64 * MIB, 64 * MIB);
    (tree.policy, tree.flush_size) = (policy, FLUSH);
    tree
}

/// Fills an empty store; it is idle afterwards.
fn fill(policy: Policy, flushes: u64) -> Costs {
    let mut tree = tree(policy);
    (0..flushes).for_each(|_| tree.flush());
    let (runs, above) = (tree.samples.runs(), tree.samples.above());
    tree.idle();
    Costs { amplification: tree.amplification(), levels: tree.written(), runs, above }
}

/// Overwrites a store of this many memtables, at random, two and a half times. Only the last two
/// count. With a speed, compactions take time: see [`SimulatedTree::flush_while_compacting`].
fn overwrite(policy: Policy, flushes: u64, speed: Option<f64>) -> Costs {
    let mut tree = tree(policy);
    tree.existing = Some(flushes * FLUSH);
    tree.add_tables(LAST, flushes * FLUSH);
    let flush = |tree: &mut SimulatedTree| match speed {
        Some(speed) => tree.flush_while_compacting(speed),
        None => tree.flush(),
    };
    (0..flushes / 2).for_each(|_| flush(&mut tree));
    tree.forget();
    (0..flushes * 2).for_each(|_| flush(&mut tree));
    let (runs, above) = (tree.samples.runs(), tree.samples.above());
    Costs { amplification: tree.amplification(), levels: tree.written(), runs, above }
}

/// The least bytes that any schedule of merges writes per byte flushed, if it is known beforehand
/// how many flushes come and reads may meet `runs` runs on average. The last merges everything.
///
/// A schedule is a binary tree with a node for each flush, in order. At a node, the flushes in its
/// left subtree are merged with it into one run: each is written once more. Those in its right
/// subtree come while this run exists: reads meet one run more at each. Therefore the cheapest
/// schedule for a price of runs takes the nodes of least depth, of which C(w + r, w) have w more
/// writes and r more runs. The last flush is above the tree's root.
fn least(flushes: u32, runs: f64) -> f64 {
    let count = |w: u32, r: u32| (1..=w).fold(1.0, |count, i| count * f64::from(r + i) / f64::from(i));
    let total = f64::from(flushes);
    let costs = |price: f64| {
        let nodes = (0..20).flat_map(|w| (0..100).map(move |r| (f64::from(w) + price * f64::from(r), w, r)));
        let mut nodes: Vec<(f64, u32, u32)> = nodes.collect();
        nodes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut left, mut writes, mut met) = (total - 1.0, total, 1.0);
        for (_, w, r) in nodes {
            let taken = left.min(count(w, r));
            left -= taken;
            writes += taken * f64::from(w + 1);
            met += taken * f64::from(r + 1);
        }
        (writes / total, met / total)
    };
    let affordable = (1..400).map(|i| costs(0.01 * 1.02f64.powi(i))).filter(|(_, met)| *met <= runs);
    affordable.map(|(writes, _)| writes).fold(f64::MAX, f64::min)
}

fn overlapping<'t>(tree: &'t SimulatedTree, level: usize, keys: &KeySpan<Vec<u8>>) -> Vec<(usize, &'t TableMeta)> {
    tree.levels[level].iter().filter(|table| table.overlaps(keys)).map(|table| (level, table)).collect()
}

/// The merge of tables of one level, or all of level 0, into a lower one.
fn merge_into<'t>(tree: &'t SimulatedTree, output: usize, mut inputs: Vec<(usize, &'t TableMeta)>) -> Option<Task> {
    let (start, below) = (inputs.first()?.0, overlapping(tree, output, &span_of(&inputs)?));
    let is_move = below.is_empty() && disjoint(&inputs);
    inputs.extend(below);
    build_task(start, output, &inputs, is_move)
}

/// Leveled compaction as in RocksDB: dynamic level sizes, level 0 into the base level from four
/// runs on. `rotates`: tables move down in turn, as in LevelDB, instead of those with the least
/// overlap.
fn leveled(tree: &SimulatedTree, base: u64, rotates: bool) -> Option<Task> {
    let (mut target, mut level) = (size_of(&tree.levels[LAST]), LAST);
    let mut due = None;
    while target > base && level > 1 {
        (target, level) = (target / 10, level - 1);
        let score = size_of(&tree.levels[level]) as f64 / target as f64;
        due = due.into_iter().chain([(score, level)]).max_by(|a, b| a.0.total_cmp(&b.0));
    }
    let of_level_0 = tree.levels[0].len() as f64 / 4.0;
    match due {
        Some((score, from)) if score > 1.0 && score > of_level_0 => {
            let size = |table: &TableMeta| {
                let below = overlapping(tree, from + 1, &span_of_table(table));
                below.iter().map(|(_, table)| table.size).sum::<u64>() * 1000 / table.size.max(1)
            };
            let tables = &tree.levels[from];
            let next = || tables.iter().find(|table| table.smallest > tree.moved_until[from]).or(tables.first());
            let table = if rotates { next() } else { tables.iter().min_by_key(|table| size(table)) };
            merge_into(tree, from + 1, vec![(from, table?)])
        }
        _ if of_level_0 >= 1.0 => merge_into(tree, level, tree.levels[0].iter().map(|run| (0, run)).collect()),
        _ => None,
    }
}

const LEVELED: Policy = Policy::Other(|tree| leveled(tree, 256 * MIB, false));
const ROUND_ROBIN: Policy = Policy::Other(|tree| leveled(tree, 256 * MIB, true));
const SMALL_BASE: Policy = Policy::Other(|tree| leveled(tree, 10 * MIB, false));

/// `cargo test --release -p tamis-tree --lib rivals -- --ignored --nocapture`
#[test]
#[ignore = "prints a table; cargo test --release -p tamis-tree --lib rivals -- --ignored --nocapture"]
fn table_of_policies() {
    let with = |change: fn(&mut Shape)| {
        let mut shape = Shape::USUAL;
        change(&mut shape);
        Policy::Picker(shape)
    };
    let policies = [
        ("tamis", with(|_| {})),
        ("one table at a time", with(|shape| shape.neighbours = 1)),
        ("32 neighbours", with(|shape| shape.neighbours = 32)),
        ("level 0 of 6 runs", with(|shape| shape.l0_trigger = 6)),
        ("level 0 of 11 runs", with(|shape| shape.l0_trigger = 11)),
        ("level 0 of 16 runs", with(|shape| shape.l0_trigger = 16)),
        ("levels of a fourth", with(|shape| shape.fanout = 4)),
        ("levels of an eighth", with(|shape| shape.fanout = 8)),
        ("one level up to 16", with(|shape| shape.base_fanout = 16)),
        ("  and level 0 of 11", with(|shape| (shape.base_fanout, shape.l0_trigger) = (16, 11))),
        ("leveled", LEVELED),
        ("leveled, in turn", ROUND_ROBIN),
        ("leveled, base 10 MiB", SMALL_BASE),
    ];
    let fills = [11, 220, 2200];
    println!("written (least) / runs; overwrites: written / runs / above");
    for (name, policy) in policies {
        print!("{name:<20}");
        for flushes in fills {
            let costs = fill(policy, flushes);
            // The others leave several runs at the end.
            let least = match policy {
                Policy::Picker(_) => format!("{:.2}", least(u32::try_from(flushes).unwrap(), costs.runs)),
                Policy::Other(_) => String::new(),
            };
            print!(" | {:5.2} ({least:4}) / {:5.2}", costs.amplification, costs.runs);
        }
        for flushes in [100, 220, 1000] {
            let costs = overwrite(policy, flushes, None);
            print!(" | {:5.2} / {:5.2} / {:.2}", costs.amplification, costs.runs, costs.above);
        }
        println!();
    }
    for flushes in fills {
        println!("tamis, {flushes}: by level {:.2?}", fill(Policy::Picker(Shape::USUAL), flushes).levels);
    }
}

#[test]
fn neighbours_that_move_together_write_less_and_reads_meet_as_many_runs() {
    let apart = Policy::Picker(Shape { neighbours: 1, ..Shape::USUAL });
    let together = Policy::Picker(Shape::USUAL);
    for (what, costs) in [
        ("1000 memtables", [apart, together].map(|policy| fill(policy, 1000))),
        ("300 overwritten", [apart, together].map(|policy| overwrite(policy, 300, None))),
        ("300 while compactions take time", [apart, together].map(|policy| overwrite(policy, 300, Some(8.0)))),
    ] {
        let [(a, a_runs), (b, b_runs)] = costs.map(|costs| (costs.amplification, costs.runs));
        println!("{what}: written {a:.2} to {b:.2} times, {a_runs:.2} to {b_runs:.2} runs");
        assert!(b < 0.97 * a && b_runs < 1.01 * a_runs, "{what}");
    }
}

#[test]
fn a_store_of_one_level_writes_little_more_than_the_least_for_its_runs() {
    for flushes in [11, 24, 48, 100, 140] {
        let costs = fill(Policy::Picker(Shape::USUAL), flushes);
        let least = least(u32::try_from(flushes).unwrap(), costs.runs);
        println!("{flushes}: written {:.2} times, {least:.2} at least, {:.2} runs", costs.amplification, costs.runs);
        assert!((least - 0.01..1.3 * least).contains(&costs.amplification), "{flushes}");
    }
}
