//! Range codes over seven sets of keys: false positives on empty ranges, bits, build and query
//! costs, and how many blocks a lazy seek over fifteen runs reads.
//!
//! `cargo run --release -p tamis-filter --example range_codes -- [keys] [checks per set] [set ...]`
#![allow(clippy::disallowed_methods, reason = "times what it runs")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "makes its own keys")]

mod sets;

use std::time::Instant;

use fastrand::Rng;
use sets::{Key, KeySet, SETS, Words, kind_of_mix};
use tamis_filter::{BlockRange, RangeBuilder, RangeFilter, RangeInfo};

/// Keys of a data block.
const PER_BLOCK: usize = 35;
/// Bits per key, everything included.
const BITS: [f32; 3] = [10.0, 12.0, 14.0];
/// Empty ranges per cell of the table.
const QUERIES: usize = 20_000;
const TRIES: usize = 1_000_000;
const RUNS: usize = 15;

/// The separator of a table's index.
fn separator<'a>(last: &'a [u8], next: &'a [u8]) -> &'a [u8] {
    let len = last.iter().zip(next).take_while(|(a, b)| a == b).count() + 1;
    if len < last.len() && len < next.len() { &next[..len] } else { last }
}

fn sorted_keys(set: &KeySet, n: usize, words: &Words, rng: &mut Rng) -> Vec<Key> {
    let mut keys: Vec<Key> = (0..n).map(|_| (set.make)(words, rng)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// A run's keys, its separators, and its filter.
struct Table {
    keys: Vec<Key>,
    /// The first is not asked for: the filter has its own.
    separators: Vec<Key>,
    filter: RangeFilter,
    info: RangeInfo,
    build_ns: f64,
    builder_memory: usize,
}

impl Table {
    fn new(keys: Vec<Key>, bits: f32) -> Table {
        let separators: Vec<Key> = std::iter::once(Key::new())
            .chain((0..keys.len().div_ceil(PER_BLOCK)).map(|i| {
                let end = ((i + 1) * PER_BLOCK).min(keys.len());
                keys.get(end).map_or(keys[end - 1].clone(), |next| separator(&keys[end - 1], next).to_vec())
            }))
            .collect();
        // As in a merge, a key is in the processor's cache when it comes.
        let (flat, mut start) = (keys.concat(), 0);
        let (started, mut builder_memory) = (Instant::now(), 0);
        let mut builder = RangeBuilder::new(bits, 1);
        for (block, high) in keys.chunks(PER_BLOCK).zip(&separators[1..]) {
            for key in block {
                builder.add(&flat[start..start + key.len()]);
                start += key.len();
            }
            builder_memory = builder_memory.max(builder.memory());
            builder.end_block(high);
        }
        let block = builder.finish_regardless().unwrap();
        let build_ns = started.elapsed().as_nanos() as f64 / keys.len() as f64;
        let filter = RangeFilter::open(&block.bytes, 1);
        assert_eq!(filter.info(), Some(&block.info));
        Table { keys, separators, filter, info: block.info, build_ns, builder_memory }
    }

    fn blocks(&self) -> usize {
        self.separators.len() - 1
    }

    fn block(&self, index: usize) -> BlockRange<'_> {
        BlockRange { index, low: &self.separators[index], high: &self.separators[index + 1] }
    }

    /// The first block that may hold a key that is at least `from`.
    fn find(&self, from: &[u8]) -> usize {
        self.separators[1..].partition_point(|high| high.as_slice() < from)
    }

    fn may_hold(&self, from: &[u8], until: &[u8]) -> bool {
        let blocks = self.find(from)..self.blocks();
        let blocks = blocks.map(|i| self.block(i)).take_while(|block| block.low < until);
        blocks.into_iter().any(|block| self.filter.may_hold(block, from, Some(until)))
    }
}

#[derive(Clone, Copy)]
struct Length {
    name: &'static str,
    units: u64,
}

fn lengths(gap: f64) -> Vec<Length> {
    let of = |name, units: f64| Length { name, units: units as u64 };
    let all = vec![
        of("1", 1.0),
        of("32", 32.0),
        of("1Ki", 1024.0),
        of("1Mi", 1048576.0),
        of("g/100", gap / 100.0),
        of("g/4", gap / 4.0),
        of("1g", gap),
        of("4g", gap * 4.0),
        of("32g", gap * 32.0),
        of("1024g", gap * 1024.0),
        of("1Mg", gap * 1e6),
    ];
    all
}

type Ranges = Vec<(Key, Key)>;

/// Empty ranges of one length, at fresh keys or near existing ones.
fn ranges(set: &KeySet, keys: &[Key], near: bool, units: u64, gap: f64, words: &Words, rng: &mut Rng) -> Ranges {
    let mut out = Vec::new();
    for tried in 0..TRIES {
        if out.len() == QUERIES || tried > 100_000 && out.len() < tried / 1000 {
            break;
        }
        let from = if near {
            (set.add)(&keys[rng.usize(0..keys.len())], ((gap / 10.0) as u64).max(1))
        } else {
            (set.make)(words, rng)
        };
        let until = (set.add)(&from, units.max(1));
        let next = keys.partition_point(|key| *key < from);
        // Before and after all keys is not asked for.
        if until > from && next > 0 && keys.get(next).is_some_and(|next| *next >= until) {
            out.push((from, until));
        }
    }
    out
}

fn rate(ranges: &Ranges, mut may_hold: impl FnMut(&[u8], &[u8]) -> bool) -> f64 {
    ranges.iter().filter(|(from, until)| may_hold(from, until)).count() as f64 / ranges.len() as f64
}

fn print_row(name: &str, rates: &[f64], rest: &str) {
    print!("  {name:<22}");
    for rate in rates {
        if rate.is_nan() { print!("{:>7}", "-") } else { print!("{:>7.2}", rate * 100.0) }
    }
    println!("  {rest}");
}

/// Nanoseconds of `ask` for each range, with the block of its start.
fn nanoseconds(table: &Table, ranges: &Ranges, mut ask: impl FnMut(BlockRange<'_>, &[u8], &[u8])) -> f64 {
    let blocks: Vec<_> = ranges.iter().map(|(from, until)| (table.block(table.find(from)), from, until)).collect();
    let started = Instant::now();
    blocks.iter().for_each(|(block, from, until)| ask(*block, from, until));
    started.elapsed().as_nanos() as f64 / blocks.len() as f64
}

fn costs(table: &Table, ranges: &Ranges) -> String {
    let (mut maybes, mut bound) = (0, Vec::new());
    let filter = &table.filter;
    let ask = nanoseconds(table, ranges, |block, from, until| {
        maybes += u64::from(filter.may_hold(block, from, Some(until)));
    });
    let next = nanoseconds(table, ranges, |block, from, _| maybes += u64::from(filter.next(block, from, &mut bound)));
    std::hint::black_box(maybes);
    format!("ask {ask:.0} ns, next {next:.0} ns")
}

/// Blocks that a seek over [`RUNS`] runs reads, forwards and backwards.
fn seeks(set: &KeySet, n: usize, bits: f32, words: &Words, rng: &mut Rng) -> (f64, f64) {
    let runs: Vec<Table> = (0..RUNS).map(|_| Table::new(sorted_keys(set, n / RUNS, words, rng), bits)).collect();
    let (mut forwards, mut backwards, seeks) = (0u64, 0u64, 4000);
    let mut bound = Vec::new();
    for _ in 0..seeks {
        let from = (set.make)(words, rng);
        // For each run: its bound, whether the bound is a key, and the block.
        let mut heads = Vec::new();
        let mut open = |run: &Table, mut block: usize, heads: &mut Vec<(Key, bool, usize, usize)>, at: usize| {
            while block < run.blocks() {
                if run.filter.next(run.block(block), &from, &mut bound) {
                    heads.push((bound.clone(), false, at, block));
                    return;
                }
                block += 1;
            }
        };
        runs.iter().enumerate().for_each(|(at, run)| open(run, run.find(&from), &mut heads, at));
        while let Some(i) = (0..heads.len()).min_by(|&a, &b| heads[a].cmp(&heads[b])) {
            let (_, is_key, at, block) = heads.swap_remove(i);
            if is_key {
                break;
            }
            forwards += 1;
            let (run, end) = (&runs[at], ((block + 1) * PER_BLOCK).min(runs[at].keys.len()));
            match run.keys[block * PER_BLOCK..end].iter().find(|key| **key >= from) {
                Some(key) => heads.push((key.clone(), true, at, block)),
                None => open(run, block + 1, &mut heads, at),
            }
        }
        let until = from;
        let mut heads = Vec::new();
        let mut open = |run: &Table, block: Option<usize>, heads: &mut Vec<(Key, bool, usize, usize)>, at: usize| {
            for block in (0..=block.unwrap_or(0)).rev().filter(|_| block.is_some()) {
                if run.filter.before(run.block(block), Some(&until), &mut bound) {
                    // A bound exceeds its key: a key that equals another's bound comes first.
                    heads.push((bound.clone(), false, at, block));
                    return;
                }
            }
        };
        for (at, run) in runs.iter().enumerate() {
            open(run, Some(run.find(&until).min(run.blocks() - 1)), &mut heads, at);
        }
        while let Some(i) = (0..heads.len()).max_by(|&a, &b| heads[a].cmp(&heads[b])) {
            let (_, is_key, at, block) = heads.swap_remove(i);
            if is_key {
                break;
            }
            backwards += 1;
            let (run, end) = (&runs[at], ((block + 1) * PER_BLOCK).min(runs[at].keys.len()));
            match run.keys[block * PER_BLOCK..end].iter().rfind(|key| **key < until) {
                Some(key) => heads.push((key.clone(), true, at, block)),
                None => open(run, block.checked_sub(1), &mut heads, at),
            }
        }
    }
    (forwards as f64 / seeks as f64, backwards as f64 / seeks as f64)
}

/// Asks for ranges with a key, to which all must say "maybe", and whose bounds must hold. Returns
/// how many ranges held their key: some that are drawn do not.
fn check(set: &KeySet, table: &Table, checks: usize, gap: f64, rng: &mut Rng) -> usize {
    let (mut bound, mut checked) = (Vec::new(), 0);
    for i in 0..checks {
        let at = rng.usize(0..table.keys.len());
        let key = &table.keys[at];
        let block = table.block(at / PER_BLOCK);
        let step = (gap * rng.f64() * [1e-6, 1e-3, 0.1, 1.0, 30.0][i % 5]) as u64;
        let other = &table.keys[(at + rng.usize(0..40)).saturating_sub(20).min(table.keys.len() - 1)];
        let (from, until) = match i % 4 {
            0 => (key.clone(), [key, &[0][..]].concat()),
            1 => (key.clone(), (set.add)(key, step.max(1))),
            2 => (other.min(key).clone(), [key.max(other), &[0][..]].concat()),
            _ => (key[..rng.usize(0..=key.len())].to_vec(), (set.add)(key, step.max(1))),
        };
        if !(from <= *key && *key < until) {
            continue;
        }
        checked += 1;
        assert!(table.filter.may_hold(block, &from, Some(&until)), "{}: {from:?} {until:?}", set.name);
        assert!(
            table.filter.next(block, &from, &mut bound)
                && (bound <= *key || from > table.keys[at / PER_BLOCK * PER_BLOCK])
        );
        let start = at / PER_BLOCK * PER_BLOCK;
        let first = table.keys[start..].iter().find(|key| **key >= from).unwrap();
        assert!(bound <= *first, "{}: {from:?} {bound:?}", set.name);
        assert!(table.filter.before(block, Some(&until), &mut bound));
        let end = (start + PER_BLOCK).min(table.keys.len());
        let last = table.keys[start..end].iter().rfind(|key| **key < until).unwrap();
        assert!(bound > *last, "{}: {until:?} {bound:?}", set.name);
    }
    checked
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or| args.get(i).and_then(|arg| arg.parse().ok()).unwrap_or(or);
    let (n, checks) = (number(0, 200_000usize), number(1, 0usize));
    let mut rng = Rng::with_seed(7);
    let words = Words::new(&mut rng);
    for set in SETS.iter().filter(|set| args.len() < 3 || args[2..].iter().any(|name| name == set.name)) {
        let keys = sorted_keys(set, n, &words, &mut rng);
        let gap = (set.gap)(&keys);
        println!("{}: {} keys; empty ranges, percent of false positives", set.name, keys.len());
        let lengths = lengths(gap);
        for near in [false, true] {
            let queries: Vec<Ranges> =
                lengths.iter().map(|len| ranges(set, &keys, near, len.units, gap, &words, &mut rng)).collect();
            print!("  {:<22}", if near { "near, of length" } else { "fresh, of length" });
            lengths.iter().for_each(|len| print!("{:>7}", len.name));
            println!();
            let shown = |ranges: &Ranges, may_hold: &dyn Fn(&[u8], &[u8]) -> bool| {
                if ranges.len() < 200 { f64::NAN } else { rate(ranges, may_hold) }
            };
            for bits in BITS {
                let table = Table::new(keys.clone(), bits);
                let rates: Vec<f64> =
                    queries.iter().map(|q| shown(q, &|from, until| table.may_hold(from, until))).collect();
                let info = &table.info;
                let rest = format!(
                    "{:.2} bits, predicted {:.3} fresh, {:.3} near, folded {:.0} %, build {:.0} ns, {}, {} KiB",
                    info.bits_per_key(),
                    f64::from(info.rates.fresh) / 1e7,
                    f64::from(info.rates.near) / 1e7,
                    f64::from(info.folded) / f64::from(info.blocks) * 100.0,
                    table.build_ns,
                    costs(&table, &queries[0]),
                    table.builder_memory / 1024
                );
                print_row(&format!("{bits} bits"), &rates, &rest);
                if set.name == "mix" && bits == 12.0 {
                    for (kind, set) in SETS[..6].iter().enumerate() {
                        let of = |q: &Ranges| q.iter().filter(|(from, _)| kind_of_mix(from) == kind).cloned().collect();
                        let of: Vec<Ranges> = queries.iter().map(of).collect();
                        let rates: Vec<f64> =
                            of.iter().map(|q| shown(q, &|from, until| table.may_hold(from, until))).collect();
                        print_row(&format!("    of {}", set.name), &rates, "");
                    }
                }
            }
        }
        let (forwards, backwards) = seeks(set, n, 12.0, &words, &mut rng);
        println!("  lazy seeks over {RUNS} runs, 12 bits: {forwards:.3} blocks, back {backwards:.3}");
        let table = Table::new(keys, 12.0);
        let checked = check(set, &table, checks, gap, &mut rng);
        println!("  {checked} checks without a false negative\n");
    }
}
