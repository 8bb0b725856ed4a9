//! Measures the picker's choices in bytes: a tree of made-up tables with evenly spread keys is
//! flushed into and compacted as picked, at sizes that no test could write.

use super::*;
use crate::format::span::KeySpan;

const MIB: u64 = 1 << 20;

struct SimulatedTree {
    levels: [Vec<TableMeta>; LEVELS],
    memtable: u64,
    table_size: u64,
    /// Whether all writes overwrite existing keys, so that the last level does not grow.
    overwrites: bool,
    next_number: u64,
    flushed: u64,
    compacted: u64,
}

fn key(number: u64) -> Box<[u8]> {
    number.to_be_bytes().into()
}

fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().unwrap())
}

impl SimulatedTree {
    fn new(memtable: u64, table_size: u64) -> SimulatedTree {
        let levels = Default::default();
        SimulatedTree { levels, memtable, table_size, overwrites: false, next_number: 1, flushed: 0, compacted: 0 }
    }

    fn add(&mut self, level: usize, size: u64, from: u64, to: u64) {
        let (number, entries) = (self.next_number, size / 128);
        self.next_number += 1;
        self.levels[level].push(TableMeta {
            number,
            size,
            checksum: 0,
            entries,
            keys: entries,
            tombstones: 0,
            deadlines: Default::default(),
            references: Default::default(),
            smallest_seqno: number,
            largest_seqno: number,
            cleared: 0,
            ingested: None,
            range_end: None,
            kept: 0,
            smallest: key(from),
            largest: key(to),
        });
        match level {
            0 => self.levels[0].sort_by_key(|table| std::cmp::Reverse(table.largest_seqno)),
            _ => self.levels[level].sort_by(|a, b| a.smallest.cmp(&b.smallest)),
        }
    }

    /// Tables of `size` bytes in total that divide the range between two keys evenly.
    fn add_tables(&mut self, level: usize, size: u64, from: u64, to: u64) {
        let count = if level == 0 { 1 } else { size.div_ceil(self.table_size) };
        let at = |i: u64| u64::try_from(u128::from(from) + u128::from(to - from) * u128::from(i) / u128::from(count));
        for i in 0..count {
            let last = if i + 1 == count { to } else { at(i + 1).unwrap() - 1 };
            self.add(level, size / count, at(i).unwrap(), last);
        }
    }

    fn flush(&mut self) {
        self.add(0, self.memtable, 0, u64::MAX);
        self.flushed += self.memtable;
        self.settle(false);
    }

    /// Runs all tasks that are picked.
    fn settle(&mut self, is_idle: bool) {
        loop {
            let metas: [Vec<&TableMeta>; LEVELS] = std::array::from_fn(|level| self.levels[level].iter().collect());
            let base_size = self.memtable * L0_TRIGGER as u64;
            let (oldest_snapshot, moves_to_last, weights) = (SeqNo::MAX, true, &TombstoneWeights::new());
            let picker = Picker {
                levels: &metas,
                running: &[],
                base_size,
                is_idle,
                oldest_snapshot,
                now: 0,
                moves_to_last,
                weights,
                value_garbage: &ValueGarbage::default(),
                deleted: &DeletedBytes::new(),
                flushed: SeqNo::MAX,
                combines: true,
            };
            let Some((_, task)) = picker.pick() else { return };
            self.carry_out(&task);
        }
    }

    fn carry_out(&mut self, task: &Task) {
        let (mut bytes, mut bytes_of_output, mut moved) = (0, 0, Vec::new());
        let output = usize::from(task.output_level);
        for (level, tables) in self.levels.iter_mut().enumerate() {
            for table in tables.extract_if(.., |table| task.takes(level, table.number)) {
                bytes += table.size;
                bytes_of_output += if level == output { table.size } else { 0 };
                moved.push(table);
            }
        }
        if task.is_move {
            self.levels[output].extend(moved);
            return self.levels[output].sort_by(|a, b| a.smallest.cmp(&b.smallest));
        }
        if self.overwrites && output == LAST && bytes_of_output > 0 {
            bytes = bytes_of_output;
        }
        self.compacted += bytes;
        let (lower, upper) = (task.keys.lower.as_ref().unwrap(), task.keys.upper.as_ref().unwrap());
        self.add_tables(output, bytes, number(lower), number(&upper[..upper.len() - 1]));
        if output == 0 {
            // It is as old as its inputs.
            self.levels[0][0].largest_seqno = task.runs.1;
            self.levels[0].sort_by_key(|table| std::cmp::Reverse(table.largest_seqno));
        }
    }

    /// Memtables arrive all the time while a caller has everything compacted at once. For each that
    /// arrives at full speed, compactions process `speed` percent of one: a relief task if there is
    /// one, and otherwise the large task. Writes are slowed down as by the throttle, 50 times where
    /// they would be stopped. Returns the most runs that level 0 had.
    fn compact_under_load(&mut self, speed: u64) -> usize {
        let pick_with = |tree: &SimulatedTree, running: &[Task], pick: &dyn Fn(&Picker<'_>) -> Option<Task>| {
            let metas: [Vec<&TableMeta>; LEVELS] = std::array::from_fn(|level| tree.levels[level].iter().collect());
            let base_size = tree.memtable * L0_TRIGGER as u64;
            let (is_idle, oldest_snapshot, moves_to_last) = (false, SeqNo::MAX, true);
            let weights = &TombstoneWeights::new();
            pick(&Picker {
                levels: &metas,
                running,
                base_size,
                is_idle,
                oldest_snapshot,
                now: 0,
                moves_to_last,
                weights,
                value_garbage: &ValueGarbage::default(),
                deleted: &DeletedBytes::new(),
                flushed: SeqNo::MAX,
                combines: true,
            })
        };
        let all = pick_with(self, &[], &|picker| match picker.pick_range(&KeySpan::default(), false) {
            Requested::Task(task) => Some(task),
            _ => None,
        });
        let all = all.unwrap();
        let (mut left, mut relief, mut most) = (all.bytes, None, 0);
        for _ in 0..10_000 {
            self.add(0, self.memtable, 0, u64::MAX);
            self.flushed += self.memtable;
            let runs = self.levels[0].len();
            most = most.max(runs);
            let pressure = runs.saturating_sub(L0_SLOWDOWN) as f64 / L0_SLOWDOWN as f64;
            #[expect(clippy::cast_possible_truncation, reason = "a few memtables")]
            let mut time = (self.memtable as f64 * speed as f64 / 100.0 * 50f64.powf(pressure)) as u64;
            while time > 0 {
                if relief.is_none() {
                    let task = pick_with(self, std::slice::from_ref(&all), &|picker| picker.pick_relief());
                    relief = task.map(|task| (task.bytes, task));
                }
                let work = relief.as_mut().map_or(&mut left, |(left, _)| left);
                let spent = time.min(*work);
                *work -= spent;
                time -= spent;
                if let Some((_, task)) = relief.take_if(|(left, _)| *left == 0) {
                    self.carry_out(&task);
                } else if left == 0 {
                    self.carry_out(&all);
                    return most;
                }
            }
        }
        panic!("{} MiB are left", left / MIB);
    }

    /// Bytes written to tables per byte flushed.
    fn amplification(&self) -> f64 {
        (self.flushed + self.compacted) as f64 / self.flushed as f64
    }

    fn runs(&self) -> usize {
        self.levels[0].len() + self.levels[1..].iter().filter(|tables| !tables.is_empty()).count()
    }
}

/// A tree after `flushes` flushes into an empty store, then idle.
fn filled(flushes: u64) -> SimulatedTree {
    let mut tree = SimulatedTree::new(64 * MIB, 64 * MIB);
    (0..flushes).for_each(|_| tree.flush());
    tree.settle(true);
    tree
}

#[test]
fn a_store_of_ten_memtables_is_written_less_than_twice_more() {
    let tree = filled(10);
    println!("{:.2} times, {} runs", tree.amplification(), tree.runs());
    assert!(tree.amplification() < 2.9);
    assert_eq!(tree.runs(), 1);
}

#[test]
fn few_runs_are_left_when_a_store_is_idle() {
    for flushes in 1..200_u64 {
        let tree = filled(flushes);
        // From there on, two levels are full.
        let levels = 1 + usize::from(flushes > L0_TRIGGER as u64 * BASE_FANOUT);
        assert!(tree.runs() <= levels + 1, "{flushes} flushes: {} runs", tree.runs());
    }
}

#[test]
fn a_store_that_idles_after_each_memtable_is_not_rewritten_all_the_time() {
    let mut tree = SimulatedTree::new(64 * MIB, 64 * MIB);
    let mut most = 0;
    for _ in 0..500 {
        tree.flush();
        tree.settle(true);
        most = most.max(tree.runs());
    }
    println!("{:.1} times, at most {most} runs", tree.amplification());
    assert!(tree.amplification() < 20.0 && most <= 4);
}

#[test]
fn amplification_grows_slowly_with_the_store() {
    // 640 MiB, 6.4 GiB, 64 GiB.
    let all = [10, 100, 1000].map(|flushes| filled(flushes).amplification());
    println!("{all:.2?}");
    assert!(all[1] < 4.0 && all[2] < 10.0, "{all:?}");
}

#[test]
fn overwriting_a_small_store_at_most_doubles_it_plus_a_full_level_0() {
    let mut tree = SimulatedTree::new(64 * MIB, 64 * MIB);
    tree.overwrites = true;
    let last = 4096 * MIB;
    tree.add_tables(LAST, last, 0, u64::MAX);
    let mut most = 0;
    for _ in 0..500 {
        tree.flush();
        most = most.max(tree.levels[..LAST].iter().flatten().map(|table| table.size).sum());
    }
    println!("{:.1} times, at most {} MiB above", tree.amplification(), most / MIB);
    assert!(most <= last + tree.memtable * L0_TRIGGER as u64);
    assert!(tree.amplification() < 4.0);
}

#[test]
fn a_store_of_10_tib_does_not_degenerate() {
    const GIB: u64 = 1 << 30;
    // All sizes but the store's are 16 times the defaults, to keep the number of tables small
    // enough for a test.
    let mut tree = SimulatedTree::new(GIB, GIB);
    tree.overwrites = true;
    for (level, size) in [(6, 10240), (5, 1024), (4, 102), (3, 10)] {
        tree.add_tables(level, size * GIB, 0, u64::MAX);
    }
    (0..300).for_each(|_| tree.flush());
    let sizes = tree.levels.each_ref().map(|level| level.iter().map(|table| table.size / GIB).sum::<u64>());
    println!("{:.1} times, {sizes:?} GiB", tree.amplification());
    assert!(tree.amplification() < 30.0);
    assert!(sizes[..6].iter().sum::<u64>() * 100 < sizes[6] * 15, "{sizes:?}");
    assert!(tree.levels[0].len() < L0_TRIGGER);
}

#[test]
fn a_store_that_is_flushed_all_the_time_is_not_rewritten_all_the_time() {
    let mut tree = SimulatedTree::new(64 * MIB, 64 * MIB);
    tree.add_tables(LAST, 2048 * MIB, 0, u64::MAX);
    let base = tree.memtable * L0_TRIGGER as u64;
    for _ in 0..2000 {
        tree.add(0, MIB / 8, 0, u64::MAX);
        tree.flushed += MIB / 8;
        tree.settle(true);
    }
    println!("{:.1} times, {} runs", tree.amplification(), tree.runs());
    assert!(tree.flushed < base);
    assert!(tree.amplification() < 20.0);
    assert!(tree.runs() <= L0_TRIGGER);
}

#[test]
fn level_0_stays_short_while_a_large_task_runs_issue_13() {
    for speed in [100, 300, 1000] {
        let mut tree = SimulatedTree::new(64 * MIB, 64 * MIB);
        tree.add_tables(LAST, 20_000 * MIB, 0, u64::MAX);
        (0..9).for_each(|_| tree.flush());
        let (flushed, compacted) = (tree.flushed, tree.compacted);
        let most = tree.compact_under_load(speed);
        let (flushed, compacted) = ((tree.flushed - flushed) / MIB, (tree.compacted - compacted) / MIB);
        println!("speed {speed} %: at most {most} runs, {flushed} MiB arrived, {compacted} were compacted");
        assert!(most < 2 * L0_SLOWDOWN, "writers are stopped");
        assert!(compacted < 21_000 + 3 * flushed);
    }
}
