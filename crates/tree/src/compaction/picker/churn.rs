//! What becomes of deleted data: small in-memory trees of real entries, compacted as picked.
//!
//! Sizes are a thousandth of the defaults: a memtable holds 64 KiB.

use std::collections::BTreeMap;

use super::*;
use crate::format::span::KeySpan;

const MEMTABLE: u64 = 64 << 10;
/// Bytes of an entry in addition to its value.
const ENTRY: u64 = 20;
/// More tasks than this in a row count as an endless loop.
const MOST_TASKS: u64 = 200;

/// Sizes of values by key, newest version first; `None` is a tombstone.
type ModelEntries = BTreeMap<(u32, std::cmp::Reverse<SeqNo>), Option<u64>>;

#[derive(Clone)]
struct ModelRun {
    meta: TableMeta,
    entries: ModelEntries,
}

#[derive(Default)]
struct ModelStore {
    hidden: HiddenBytes,
    levels: [Vec<ModelRun>; LEVELS],
    memtable: ModelEntries,
    memtable_size: u64,
    /// Sizes of the live values.
    live: BTreeMap<u32, u64>,
    snapshot: Option<SeqNo>,
    /// Whether compactions run only on request.
    is_by_hand: bool,
    seqno: SeqNo,
    next_number: u64,
    flushed: u64,
    compacted: u64,
    tasks: u64,
}

fn size_of(value: Option<u64>) -> u64 {
    ENTRY + value.unwrap_or(0)
}

impl ModelStore {
    fn put(&mut self, key: u32, size: u64) {
        self.live.insert(key, size);
        self.write(key, Some(size));
    }

    fn delete(&mut self, key: u32) {
        self.live.remove(&key);
        self.write(key, None);
    }

    fn write(&mut self, key: u32, value: Option<u64>) {
        self.seqno += 1;
        self.memtable.insert((key, std::cmp::Reverse(self.seqno)), value);
        self.memtable_size += size_of(value);
        if self.memtable_size >= MEMTABLE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.memtable_size = 0;
        let memtable = std::mem::take(&mut self.memtable);
        let entries = self.kept(memtable, |_| true);
        if !entries.is_empty() {
            let run = self.run(entries);
            self.flushed += run.meta.size;
            self.levels[0].insert(0, run);
            if !self.is_by_hand {
                self.settle(false);
            }
        }
    }

    /// Flushes, then runs all tasks due when idle.
    fn settle_idle(&mut self) {
        self.flush();
        self.settle(true);
    }

    fn take_snapshot(&mut self) {
        self.snapshot = Some(self.seqno);
    }

    fn run(&mut self, entries: ModelEntries) -> ModelRun {
        self.next_number += 1;
        let keys = || entries.keys().map(|(key, _)| *key);
        let seqnos = || entries.keys().map(|(_, seqno)| seqno.0);
        let mut distinct: Vec<u32> = keys().collect();
        distinct.dedup();
        let meta = TableMeta {
            number: self.next_number,
            size: entries.values().map(|value| size_of(*value)).sum(),
            checksum: 0,
            entries: entries.len() as u64,
            keys: distinct.len() as u64,
            tombstones: entries.values().filter(|value| value.is_none()).count() as u64,
            deadlines: Default::default(),
            references: Default::default(),
            smallest_seqno: seqnos().min().unwrap(),
            largest_seqno: seqnos().max().unwrap(),
            cleared: 0,
            ingested: None,
            range_end: None,
            kept: 0,
            smallest: keys().min().unwrap().to_be_bytes().into(),
            largest: keys().max().unwrap().to_be_bytes().into(),
        };
        ModelRun { meta, entries }
    }

    /// The entries that a merge keeps. `may_hold` says whether an older version of a key may exist
    /// elsewhere.
    fn kept(&self, mut entries: ModelEntries, may_hold: impl Fn(u32) -> bool) -> ModelEntries {
        let mut last = None;
        entries.retain(|(key, seqno), _| {
            let stripe = self.snapshot.is_some_and(|snapshot| seqno.0 > snapshot);
            last.replace((*key, stripe)) != Some((*key, stripe))
        });
        // Tombstones that hide nothing older are dropped, too.
        let mut older = None;
        let is_kept = |(key, _): &(u32, _), value: &Option<u64>| {
            let keeps = value.is_some() || older == Some(*key) || may_hold(*key);
            older = if keeps { Some(*key) } else { older };
            keeps
        };
        let mut is_kept = is_kept;
        let oldest_first: Vec<_> = entries.into_iter().rev().filter(|(key, value)| is_kept(key, value)).collect();
        oldest_first.into_iter().collect()
    }

    fn with_picker<R>(&self, running: &[Task], is_idle: bool, pick: impl FnOnce(&Picker<'_>) -> R) -> R {
        let metas: [Vec<&TableMeta>; LEVELS] =
            std::array::from_fn(|level| self.levels[level].iter().map(|run| &run.meta).collect());
        pick(&Picker {
            levels: &metas,
            running,
            shape: Shape::USUAL,
            base_size: MEMTABLE * L0_TRIGGER as u64,
            fits_one_table: &|_| true,
            is_idle,
            oldest_snapshot: self.snapshot.unwrap_or(SeqNo::MAX),
            now: 0,
            moves_to_last: false,
            weights: &TombstoneWeights::new(),
            value_garbage: &ValueGarbage::default(),
            deleted: &DeletedBytes::new(),
            hidden: &self.hidden,
            flushed: SeqNo::MAX,
            combines: true,
        })
    }

    fn settle(&mut self, is_idle: bool) {
        let most = self.tasks + MOST_TASKS;
        loop {
            if is_idle {
                self.look_what_is_hidden();
            }
            let Some((_, task)) = self.with_picker(&[], is_idle, |picker| picker.pick()) else { break };
            assert!(self.tasks < most, "no end of {task:?}");
            let outputs = self.merge(&task);
            self.install(&task, outputs);
        }
    }

    /// What an idle store finds by samples.
    fn look_what_is_hidden(&mut self) {
        for level in 0..LEVELS - 1 {
            for (at, run) in self.levels[level].iter().enumerate() {
                let older_runs = if level == 0 { &self.levels[0][at + 1..] } else { &[] };
                let older = || older_runs.iter().chain(self.levels[level + 1..].iter().flatten());
                let versions = |key: u32| {
                    let of_key = (key, std::cmp::Reverse(SeqNo::MAX))..=(key, std::cmp::Reverse(0));
                    older().flat_map(move |run| run.entries.range(of_key.clone())).map(|(_, value)| size_of(*value))
                };
                let mut keys: Vec<u32> = run.entries.keys().map(|(key, _)| *key).collect();
                keys.dedup();
                let hidden = || keys.into_iter().flat_map(versions).sum::<u64>();
                self.hidden.entry(run.meta.number).or_insert_with(|| hidden().saturating_sub(run.meta.size));
            }
        }
    }

    /// The output of a task, from its inputs as they are now.
    fn merge(&mut self, task: &Task) -> Vec<ModelRun> {
        self.tasks += 1;
        let output = usize::from(task.output_level);
        let of_level = |level: usize| self.levels[level].iter().map(move |run| (level, run));
        let inputs = || (0..LEVELS).flat_map(of_level).filter(|(level, run)| task.takes(*level, run.meta.number));
        if task.is_move {
            return inputs().map(|(_, run)| run.clone()).collect();
        }
        let below = || self.levels[output + 1..].iter().flatten();
        let holds = |key: &[u8]| below().any(|run| *run.meta.smallest <= *key && *key <= *run.meta.largest);
        let merged = inputs().flat_map(|(_, run)| run.entries.clone()).collect();
        let kept = self.kept(merged, |key| output == 0 || holds(&key.to_be_bytes()));
        let (mut runs, mut entries, mut size) = (Vec::new(), ModelEntries::new(), 0);
        for ((key, seqno), value) in kept {
            let is_new_key = entries.last_key_value().is_none_or(|((last, _), _)| *last != key);
            if size >= MEMTABLE && is_new_key && output > 0 {
                runs.push(self.run(std::mem::take(&mut entries)));
                size = 0;
            }
            entries.insert((key, seqno), value);
            size += size_of(value);
        }
        if !entries.is_empty() {
            runs.push(self.run(entries));
        }
        self.compacted += runs.iter().map(|run| run.meta.size).sum::<u64>();
        runs
    }

    /// Replaces the inputs of a task by its outputs.
    fn install(&mut self, task: &Task, outputs: Vec<ModelRun>) {
        for (level, tables) in self.levels.iter_mut().enumerate() {
            tables.retain(|run| !task.takes(level, run.meta.number));
        }
        let output = usize::from(task.output_level);
        self.levels[output].extend(outputs);
        match output {
            0 => self.levels[0].sort_by_key(|run| std::cmp::Reverse(run.meta.largest_seqno)),
            _ => self.levels[output].sort_by(|a, b| a.meta.smallest.cmp(&b.meta.smallest)),
        }
    }

    /// The first version of a key that a read finds among those that a snapshot sees.
    fn get(&self, key: u32, snapshot: SeqNo) -> Option<u64> {
        let runs = || self.levels.iter().flatten().map(|run| &run.entries);
        let version = |entries: &ModelEntries| {
            let from = (key, std::cmp::Reverse(snapshot));
            entries.range(from..).next().filter(|((found, _), _)| *found == key).map(|(_, value)| *value)
        };
        std::iter::once(&self.memtable).chain(runs()).find_map(version).flatten()
    }

    fn space(&self) -> u64 {
        self.levels.iter().flatten().map(|run| run.meta.size).sum()
    }

    fn live_bytes(&self) -> u64 {
        self.live.values().map(|size| size_of(Some(*size))).sum()
    }

    fn amplification(&self) -> f64 {
        (self.flushed + self.compacted) as f64 / self.flushed as f64
    }

    /// Checks that an idle store takes little more space than its live data.
    fn check(&self, what: &str) {
        let (space, live) = (self.space() / 1024, self.live_bytes() / 1024);
        println!("{what}: {live} KiB alive, {space} stored, written {:.2} times", self.amplification());
        assert!(space * 5 <= live * 6 + MEMTABLE * 5 / 1024, "{what}: {space} KiB for {live}");
    }
}

/// Number of entries of a size that fill `memtables` memtables.
fn count(memtables: u64, size: u64) -> u32 {
    u32::try_from(memtables * MEMTABLE / size_of(Some(size))).unwrap()
}

/// An idle store with `count` keys, written in scattered order.
fn filled(count: u32, size: impl Fn(u32) -> u64) -> ModelStore {
    let mut store = ModelStore::default();
    // A step without a common divisor with the count.
    let divides = |a: u32, b: u32| a.is_multiple_of(b) && count.is_multiple_of(b);
    let step = (count * 5 / 8..).find(|step| (2..=*step).all(|divisor| !divides(*step, divisor)));
    for i in 0..u64::from(count) {
        let key = u32::try_from(i * u64::from(step.unwrap()) % u64::from(count)).unwrap();
        store.put(key, size(key));
    }
    store.settle_idle();
    assert_eq!(store.live.len() as u64, u64::from(count));
    store
}

const SIZES: [u64; 5] = [0, 20, 100, 1000, 16_000];

#[test]
fn deleted_data_leaves_an_idle_store_issue_13() {
    for size in SIZES {
        // Beyond 96 there are two levels.
        for memtables in if size == 1000 { [2, 20, 150] } else { [1, 2, 20] } {
            let count = count(memtables, size);
            let check = |what: &str, deleted: &dyn Fn(u32) -> bool| {
                let mut store = filled(count, |_| size);
                (0..count).filter(|key| deleted(*key)).for_each(|key| store.delete(key));
                store.settle_idle();
                store.check(&format!("{count} values of {size} bytes, deleted {what}"));
            };
            check("all but ten", &|key| key >= 10);
            check("every second", &|key| key.is_multiple_of(2));
            check("a range", &|key| (count / 3..count * 2 / 3).contains(&key));
            check("every fifth", &|key| key.is_multiple_of(5));
        }
    }
}

#[test]
fn a_sliding_window_leaves_no_garbage_issue_13() {
    for size in SIZES {
        let window = count(10, size);
        let mut store = ModelStore::default();
        for key in 0..window * 8 {
            store.put(key, size);
            if let Some(oldest) = key.checked_sub(window) {
                store.delete(oldest);
            }
        }
        let before = (store.space() / 1024, store.amplification());
        store.settle_idle();
        println!("before it is idle {before:?}");
        store.check(&format!("a window of {window} values of {size} bytes"));
        assert!(store.amplification() < 3.6);
    }
}

#[test]
fn garbage_held_by_a_snapshot_is_not_rewritten_in_vain_and_leaves_after_it_issue_13() {
    for size in [20, 1000] {
        for memtables in [5, 150] {
            let keys = count(memtables, size);
            let mut store = filled(keys, |_| size);
            // Some deletes are older than the snapshot, the others newer.
            (0..keys).step_by(4).for_each(|key| store.delete(key));
            store.take_snapshot();
            let held = store.live_bytes();
            (0..keys).step_by(2).for_each(|key| store.delete(key));
            store.settle_idle();
            let (tasks, compacted) = (store.tasks, store.compacted);
            assert!(store.space() >= held);
            (0..10).for_each(|_| store.settle_idle());
            assert_eq!(store.tasks, tasks, "nothing is left to do");
            // Writes continue.
            for key in 0..count(3, size) {
                store.put(key % 10, size);
            }
            store.settle_idle();
            assert!(store.compacted - compacted < 12 * store.space(), "{} of {}", store.compacted, store.space());
            store.snapshot = None;
            store.settle_idle();
            store.check(&format!("{keys} values of {size} bytes after a snapshot"));
        }
    }
}

#[test]
fn mixed_sizes_mislead_the_picker_little_issue_13() {
    // A tenth of the entries has nearly all of the bytes. Whichever are deleted, the bytes
    // rewritten are bounded.
    let sizes = |key: u32| if key.is_multiple_of(10) { 16_000 } else { 20 };
    let counts = [100, 250, 1000, 1500, 2000, 3000, 3500, 4000, 7000, 10_000];
    for ((what, large), keys) in
        [("small", false), ("large", true)].into_iter().flat_map(|of| counts.map(|keys| (of, keys)))
    {
        let mut store = filled(keys, sizes);
        let before = store.compacted;
        (0..keys).filter(|key| (sizes(*key) > 20) == large).for_each(|key| store.delete(key));
        store.settle_idle();
        let rewritten = store.compacted - before;
        println!("{what}: {} KiB rewritten", rewritten / 1024);
        store.check(&format!("{what} ones of {keys} deleted"));
        assert!(rewritten < 2 * store.live_bytes() + 2 * MEMTABLE, "{what}: {rewritten}");
    }
}

#[test]
fn deletes_of_absent_keys_cost_no_more_than_overwriting_them_issue_13() {
    let keys = count(40, 1000);
    let mut store = filled(keys, |_| 1000);
    // Every second key exists, which the picker cannot tell.
    for key in (0..keys).step_by(2) {
        store.delete(key);
    }
    store.settle_idle();
    let (compacted, rounds) = (store.compacted, 20);
    for _ in 0..rounds {
        (0..keys).step_by(2).for_each(|key| store.delete(key));
        store.settle_idle();
    }
    let (compacted, overwritten) = (store.compacted - compacted, rounds * u64::from(keys) / 2 * size_of(Some(1000)));
    println!("{} KiB compacted, {} would have been overwritten", compacted / 1024, overwritten / 1024);
    store.check("deleted again and again");
    assert!(compacted < 3 * overwritten, "{compacted} {overwritten}");
}

#[test]
fn random_writes_and_deletes_have_low_amplification_issue_13() {
    for (size, most) in [(20, 2.5), (100, 2.5), (1000, 2.5)] {
        let keys = count(20, size);
        let mut store = ModelStore::default();
        let mut dice = Dice(1);
        for _ in 0..20 * keys {
            let key = u32::try_from(dice.below(keys.into())).unwrap();
            if dice.below(4) == 0 { store.delete(key) } else { store.put(key, size) }
        }
        store.settle_idle();
        store.check(&format!("{keys} values of {size} bytes, a quarter deleted"));
        assert!(store.amplification() < most);
    }
}

#[test]
fn two_puts_for_each_delete_are_written_as_often_as_puts_alone_issue_13() {
    let mut amplification = [0.0; 2];
    for (deletes, amplification) in [false, true].into_iter().zip(&mut amplification) {
        let (mut store, mut dice) = (ModelStore::default(), Dice(1));
        let mut keys: Vec<u32> = Vec::new();
        while store.flushed < 500 * MEMTABLE {
            for _ in 0..2 {
                let key = u32::try_from(dice.below(1 << 32)).unwrap();
                keys.push(key);
                store.put(key, 100);
            }
            if deletes {
                let at = usize::try_from(dice.below(keys.len() as u64)).unwrap();
                let key = keys.swap_remove(at);
                store.delete(key);
            }
        }
        *amplification = store.amplification();
        store.settle_idle();
        store.check("two puts for each delete");
    }
    println!("{amplification:.1?}");
    assert!(amplification[1] < 1.25 * amplification[0], "{amplification:?}");
}

#[test]
fn keyspaces_that_are_smaller_than_a_memtable_keep_no_deleted_space() {
    let (mut space, mut live) = (0, 0);
    for keyspace in 1..=50 {
        let keys = count(1, 1000) * keyspace / 51;
        for is_idle in [false, true] {
            let mut store = filled(keys.max(2), |_| 1000);
            (0..keys).filter(|key| key % 16 > 0).for_each(|key| store.delete(key));
            store.flush();
            store.settle(is_idle);
            if is_idle {
                (space, live) = (space + store.space(), live + store.live_bytes());
            } else {
                // Other keyspaces are written to all the time.
                assert!(store.space() < 3 * store.live_bytes() + 4 * MEMTABLE / 64, "{}", store.space());
            }
        }
    }
    println!("{space} bytes for {live}");
    assert!(space < 2 * live, "{space} bytes for {live}");
}

/// Number of keys in the test of parallel tasks.
const KEYS: u32 = 700;

/// A generator of pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn key(&mut self) -> u32 {
        u32::try_from(self.below(KEYS.into())).unwrap()
    }
}

/// Tasks start whenever they can and end in any order, between flushes. Their output is fixed when
/// they start. A read never finds an older version before a newer one.
#[test]
fn tasks_that_run_at_the_same_time_do_not_disturb_each_other_issue_13() {
    let (mut most_running, mut above_running) = (0, 0);
    for seed in 0..10 {
        let mut dice = Dice(seed);
        let mut store = ModelStore { is_by_hand: true, ..ModelStore::default() };
        let mut running: Vec<(Task, Vec<ModelRun>)> = Vec::new();
        let mut seen = BTreeMap::new();
        let eager = dice.below(3);
        for step in 0..400 {
            match dice.below(12) {
                0..=4 => {
                    for _ in 0..dice.below(200) {
                        let (key, size) = (dice.key(), dice.below(200));
                        if dice.below(3) == 0 { store.delete(key) } else { store.put(key, size) }
                    }
                    store.flush();
                }
                5 if dice.below(4) == 0 => {
                    store.take_snapshot();
                    seen.clone_from(&store.live);
                }
                5 => store.snapshot = None,
                6..=8 if !running.is_empty() => {
                    let at = usize::try_from(dice.below(running.len() as u64)).unwrap();
                    // A long task ends late.
                    if running[at].0.inputs.len() < 10 || dice.below(8 << eager) == 0 {
                        let (task, outputs) = running.swap_remove(at);
                        store.install(&task, outputs);
                    }
                }
                choice => {
                    let tasks: Vec<Task> = running.iter().map(|(task, _)| task.clone()).collect();
                    let (from, number, is_idle) = (dice.key(), dice.below(store.next_number + 1), dice.below(4) == 0);
                    let task = store.with_picker(&tasks, is_idle, |picker| match choice {
                        9 if dice.below(4) == 0 => match picker
                            .pick_range(&KeySpan { lower: Some(from.to_be_bytes().to_vec()), upper: None }, false)
                        {
                            Requested::Task(task) => Some(task),
                            _ => None,
                        },
                        9 => match picker.pick_table(number) {
                            Requested::Task(task) => Some(task),
                            _ => None,
                        },
                        10 => picker.pick_relief(),
                        _ => picker.pick().map(|(_, task)| task),
                    });
                    if let Some(task) = task {
                        let is_above =
                            |other: &Task| task.output_level == 0 && other.runs.1 > 0 && task.runs.0 > other.runs.1;
                        above_running += u64::from(tasks.iter().any(is_above));
                        let outputs = store.merge(&task);
                        running.push((task, outputs));
                        most_running = most_running.max(running.len());
                    }
                }
            }
            if u32::is_multiple_of(step, 16) {
                for key in 0..KEYS {
                    assert_eq!(store.get(key, SeqNo::MAX), store.live.get(&key).copied(), "seed {seed}, step {step}");
                    if let Some(snapshot) = store.snapshot {
                        assert_eq!(store.get(key, snapshot), seen.get(&key).copied(), "seed {seed}, step {step}");
                    }
                }
            }
        }
    }
    println!("at most {most_running} at once, {above_running} above a running one");
    assert!(most_running > 2 && above_running > 20, "{most_running} {above_running}");
}
