//! Measures the picker's choices in bytes: a tree of made-up tables with evenly spread keys is
//! flushed into and compacted as picked, at sizes that no test could write.
//!
//! Between two bounds of tables entries are spread evenly, and tables keep how dense they are: what
//! has just moved down leaves few entries behind.

use super::*;
use crate::format::span::KeySpan;

const MIB: u64 = 1 << 20;
/// Compactions that run at once.
const THREADS: usize = 2;
/// Runs in level 0 at which writers stop.
const L0_STOP: usize = 4 * L0_TRIGGER;
/// Tables of the next level that a table may overlap.
const MAX_OVERLAPPED: usize = 10;

/// What decides on the tasks of a tree.
#[derive(Clone, Copy)]
pub(super) enum Policy {
    /// The picker, with one shape or another.
    Picker(Shape),
    /// Another one, which has no idle time.
    Other(fn(&SimulatedTree) -> Option<Task>),
}

#[derive(Clone)]
pub(super) struct SimulatedTree {
    pub(super) levels: [Vec<TableMeta>; LEVELS],
    pub(super) policy: Policy,
    memtable: u64,
    /// Bytes of a flushed memtable.
    pub(super) flush_size: u64,
    pub(super) table_size: u64,
    /// Bytes of all keys, each of which exists, if writes overwrite them at random. Otherwise all
    /// writes are of new keys.
    pub(super) existing: Option<u64>,
    next_number: u64,
    flushed: u64,
    /// Bytes written to each level by compactions.
    compacted: [u64; LEVELS],
    /// Tasks in progress, with the bytes that are left to do.
    running: Vec<(f64, Task)>,
    pub(super) samples: Samples,
    /// The last key that moved down from each level.
    pub(super) moved_until: [Box<[u8]>; LEVELS],
}

/// Sums over all flushes.
#[derive(Clone, Copy, Default)]
pub(super) struct Samples {
    count: f64,
    /// Runs that a seek, or a get of an absent key, meets.
    runs: f64,
    /// Bytes above the last level for each byte in it.
    above: f64,
}

impl Samples {
    /// The mean number of runs.
    pub(super) fn runs(&self) -> f64 {
        self.runs / self.count
    }

    /// The mean share above the last level.
    pub(super) fn above(&self) -> f64 {
        self.above / self.count
    }
}

fn key(number: u64) -> Box<[u8]> {
    number.to_be_bytes().into()
}

fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().unwrap())
}

/// Bytes of a table between two keys, if its entries are spread evenly.
fn bytes_between(table: &TableMeta, from: f64, to: f64) -> f64 {
    let (smallest, largest) = bounds(table);
    let common = (to.min(largest) - from.max(smallest)).max(0.0);
    table.size as f64 * common / (largest - smallest)
}

fn bounds(table: &TableMeta) -> (f64, f64) {
    (number(&table.smallest) as f64, number(&table.largest) as f64 + 1.0)
}

impl SimulatedTree {
    pub(super) fn new(memtable: u64, table_size: u64) -> SimulatedTree {
        SimulatedTree {
            levels: Default::default(),
            policy: Policy::Picker(Shape::USUAL),
            memtable,
            flush_size: memtable,
            table_size,
            existing: None,
            next_number: 1,
            flushed: 0,
            compacted: [0; LEVELS],
            running: Vec::new(),
            samples: Samples::default(),
            moved_until: Default::default(),
        }
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
        self.sort(level);
    }

    fn sort(&mut self, level: usize) {
        match level {
            0 => self.levels[0].sort_by_key(|table| std::cmp::Reverse(table.largest_seqno)),
            _ => self.levels[level].sort_by(|a, b| a.smallest.cmp(&b.smallest)),
        }
    }

    /// Tables of `size` bytes in total that divide the key space evenly.
    pub(super) fn add_tables(&mut self, level: usize, size: u64) {
        let count = size.div_ceil(self.table_size);
        let step = u64::MAX / count;
        for i in 0..count {
            let last = if i + 1 == count { u64::MAX } else { (i + 1) * step - 1 };
            self.add(level, size / count, i * step, last);
        }
    }

    fn with_picker<R>(&self, running: &[Task], is_idle: bool, pick: impl FnOnce(&Picker<'_>) -> R) -> R {
        let metas: [Vec<&TableMeta>; LEVELS] = std::array::from_fn(|level| self.levels[level].iter().collect());
        let shape = self.shape();
        pick(&Picker {
            levels: &metas,
            running,
            shape,
            base_size: self.memtable * shape.l0_trigger as u64,
            fits_one_table: &|_| true,
            is_idle,
            oldest_snapshot: SeqNo::MAX,
            now: 0,
            moves_to_last: true,
            weights: &TombstoneWeights::new(),
            value_garbage: &ValueGarbage::default(),
            deleted: &DeletedBytes::new(),
            hidden: &HiddenBytes::new(),
            flushed: SeqNo::MAX,
            combines: true,
        })
    }

    fn shape(&self) -> Shape {
        match self.policy {
            Policy::Picker(shape) => shape,
            Policy::Other(_) => Shape::USUAL,
        }
    }

    fn pick(&self, running: &[Task], is_idle: bool) -> Option<Task> {
        match self.policy {
            Policy::Picker(_) => self.with_picker(running, is_idle, |picker| Some(picker.pick()?.1)),
            Policy::Other(pick) => pick(self),
        }
    }

    pub(super) fn flush(&mut self) {
        self.add(0, self.flush_size, 0, u64::MAX);
        self.flushed += self.flush_size;
        self.settle(false);
        self.sample();
    }

    /// Runs all tasks that are picked, at once.
    pub(super) fn settle(&mut self, is_idle: bool) {
        while let Some(task) = self.pick(&[], is_idle) {
            self.carry_out(&task);
        }
    }

    /// A memtable arrives; compactions process `speed` bytes for each of its bytes meanwhile.
    pub(super) fn flush_while_compacting(&mut self, speed: f64) {
        self.add(0, self.flush_size, 0, u64::MAX);
        self.flushed += self.flush_size;
        self.work(speed);
        // Writers wait.
        while self.levels[0].len() >= L0_STOP {
            self.work(speed / 4.0);
        }
        self.sample();
    }

    fn work(&mut self, speed: f64) {
        let mut time = speed * self.flush_size as f64;
        while time > 0.0 {
            while let Some(task) = self.next_task() {
                match task.is_move {
                    true => self.carry_out(&task),
                    false => self.running.push((task.bytes as f64, task)),
                }
            }
            let Some(least) = self.running.iter().map(|(left, _)| *left).min_by(f64::total_cmp) else { return };
            let count = self.running.len() as f64;
            let spent = least.min(time / count);
            time -= spent * count;
            self.running.iter_mut().for_each(|(left, _)| *left -= spent);
            while let Some(at) = self.running.iter().position(|(left, _)| *left < 1.0) {
                let (_, task) = self.running.swap_remove(at);
                self.carry_out(&task);
            }
        }
    }

    /// What begins beside the tasks in progress. Beyond [`THREADS`] only relief does.
    fn next_task(&self) -> Option<Task> {
        let running: Vec<Task> = self.running.iter().map(|(_, task)| task.clone()).collect();
        match running.len() {
            ..THREADS => self.pick(&running, false),
            THREADS => self.with_picker(&running, false, |picker| picker.pick_relief()),
            _ => None,
        }
    }

    /// Ends what runs, and does all that is due in an idle store.
    pub(super) fn idle(&mut self) {
        for (_, task) in std::mem::take(&mut self.running) {
            self.carry_out(&task);
        }
        self.settle(true);
    }

    fn carry_out(&mut self, task: &Task) {
        let (mut inputs, output) = (Vec::new(), usize::from(task.output_level));
        for (level, tables) in self.levels.iter_mut().enumerate() {
            inputs.extend(tables.extract_if(.., |table| task.takes(level, table.number)));
        }
        if task.is_move {
            self.levels[output].extend(inputs);
            return self.sort(output);
        }
        let upper = task.keys.upper.as_ref().unwrap();
        self.moved_until[usize::from(task.start_level)] = upper[..upper.len() - 1].into();
        let before = size_of(&self.levels[output]);
        self.merge(output, &inputs);
        self.compacted[output] += size_of(&self.levels[output]) - before;
        if output == 0 {
            // It is as old as its inputs.
            self.levels[0][0].largest_seqno = task.runs.1;
            self.sort(0);
        }
    }

    /// Adds what a merge of tables writes to a level: tables of one size, as the parts of a task
    /// are, each of which ends where it overlaps too much of the next level.
    fn merge(&mut self, level: usize, inputs: &[TableMeta]) {
        let below: Vec<f64> = match self.levels.get(level + 1) {
            Some(tables) if level > 0 => tables.iter().map(|table| bounds(table).1).collect(),
            _ => Vec::new(),
        };
        let pieces = self.pieces(inputs, &below);
        let total: f64 = pieces.iter().map(|piece| piece.2).sum();
        let count = if level == 0 { 1.0 } else { (total / (self.table_size as f64 * 7.0 / 8.0)).ceil() };
        // Rounding must not leave a table without entries.
        let most = total / count + 1.0;
        let (mut start, end) = (pieces[0].0, pieces[pieces.len() - 1].1);
        let (mut size, mut overlapped) = (0.0, 0);
        for (mut from, to, mut bytes) in pieces {
            while size + bytes > most {
                let cut = from + (to - from) * (most - size) / bytes;
                self.add_between(level, most, start, cut);
                bytes -= most - size;
                (start, from, size, overlapped) = (cut, cut, 0.0, 0);
            }
            size += bytes;
            overlapped += usize::from(below.binary_search_by(|end| end.total_cmp(&to)).is_ok());
            if overlapped > MAX_OVERLAPPED && to < end {
                self.add_between(level, size, start, to);
                (start, size, overlapped) = (to, 0.0, 0);
            }
        }
        self.add_between(level, size, start, end);
    }

    /// The key space of a merge, cut at the ends of its inputs and of the tables below: the bytes
    /// that it writes from one key to another.
    fn pieces(&self, inputs: &[TableMeta], below: &[f64]) -> Vec<(f64, f64, f64)> {
        let mut ends: Vec<f64> = inputs.iter().flat_map(|table| <[f64; 2]>::from(bounds(table))).collect();
        ends.sort_by(f64::total_cmp);
        let within = ends[0]..ends[ends.len() - 1];
        ends.extend(below.iter().filter(|end| within.contains(end)));
        ends.sort_by(f64::total_cmp);
        ends.dedup();
        let mut inputs: Vec<&TableMeta> = inputs.iter().collect();
        inputs.sort_by(|a, b| a.smallest.cmp(&b.smallest));
        let (mut inputs, mut open) = (inputs.into_iter().peekable(), Vec::<&TableMeta>::new());
        let pieces = ends.windows(2).map(|pair| {
            let (from, to) = (pair[0], pair[1]);
            open.extend(std::iter::from_fn(|| inputs.next_if(|table| bounds(table).0 <= from)));
            open.retain(|table| bounds(table).1 > from);
            let parts = open.iter().map(|table| bytes_between(table, from, to));
            let Some(existing) = self.existing else { return (from, to, parts.sum()) };
            // Each input has some of all keys, at random.
            let all = existing as f64 * (to - from) / 2f64.powi(64);
            let missing: f64 = parts.map(|bytes| (1.0 - bytes / all).max(0.0)).product();
            (from, to, all * (1.0 - missing))
        });
        pieces.collect()
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "keys are rounded")]
    fn add_between(&mut self, level: usize, size: f64, from: f64, to: f64) {
        // The casts saturate.
        let last = if to >= 2f64.powi(64) { u64::MAX } else { (to as u64) - 1 };
        self.add(level, size as u64, from as u64, last);
    }

    fn sample(&mut self) {
        let (last, total) = (size_of(&self.levels[LAST]), self.levels.iter().map(|level| size_of(level)).sum::<u64>());
        self.samples.count += 1.0;
        self.samples.runs += self.runs() as f64;
        self.samples.above += (total - last) as f64 / last.max(self.memtable * L0_TRIGGER as u64) as f64;
    }

    fn runs(&self) -> usize {
        self.levels[0].len() + self.levels[1..].iter().filter(|tables| !tables.is_empty()).count()
    }

    /// Memtables arrive all the time while a caller has everything compacted at once. For each that
    /// arrives at full speed, compactions process `speed` percent of one: a relief task if there is
    /// one, and otherwise the large task. Writes are slowed down as by the throttle, 50 times where
    /// they would be stopped. Returns the most runs that level 0 had.
    fn compact_under_load(&mut self, speed: u64) -> usize {
        let all = self.with_picker(&[], false, |picker| match picker.pick_range(&KeySpan::default(), false) {
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
                    let task = self.with_picker(std::slice::from_ref(&all), false, |picker| picker.pick_relief());
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

    /// What was written so far does not count.
    pub(super) fn forget(&mut self) {
        (self.flushed, self.compacted, self.samples) = (0, [0; LEVELS], Samples::default());
    }

    /// Bytes that compactions have written to each level per byte flushed.
    pub(super) fn written(&self) -> [f64; LEVELS] {
        self.compacted.map(|bytes| bytes as f64 / self.flushed as f64)
    }

    /// Bytes written to tables per byte flushed.
    pub(super) fn amplification(&self) -> f64 {
        (self.flushed + self.compacted.iter().sum::<u64>()) as f64 / self.flushed as f64
    }
}

pub(super) fn size_of(tables: &[TableMeta]) -> u64 {
    tables.iter().map(|table| table.size).sum()
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
        let levels = 1 + usize::from(flushes > L0_TRIGGER as u64 * shape::BASE_FANOUT);
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
    let last = 4096 * MIB;
    tree.existing = Some(last);
    tree.add_tables(LAST, last);
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
    tree.existing = Some(10240 * GIB);
    for (level, size) in [(6, 10240), (5, 1024), (4, 102), (3, 10)] {
        tree.add_tables(level, size * GIB);
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
    tree.add_tables(LAST, 2048 * MIB);
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
        tree.add_tables(LAST, 20_000 * MIB);
        (0..9).for_each(|_| tree.flush());
        let (flushed, compacted) = (tree.flushed, tree.compacted.iter().sum::<u64>());
        let most = tree.compact_under_load(speed);
        let (flushed, compacted) =
            ((tree.flushed - flushed) / MIB, (tree.compacted.iter().sum::<u64>() - compacted) / MIB);
        println!("speed {speed} %: at most {most} runs, {flushed} MiB arrived, {compacted} were compacted");
        assert!(most < 2 * L0_SLOWDOWN, "writers are stopped");
        assert!(compacted < 21_000 + 3 * flushed);
    }
}
