//! What becomes of deleted data: small in-memory trees of real entries, compacted as picked.
//!
//! Sizes are a thousandth of the defaults: a memtable holds 64 KiB.

use std::collections::BTreeMap;

use super::models::{plain_table, with_plain_picker};
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
        let (smallest, largest) = (keys().min().unwrap(), keys().max().unwrap());
        let meta = TableMeta {
            size: entries.values().map(|value| size_of(*value)).sum(),
            entries: entries.len() as u64,
            keys: distinct.len() as u64,
            tombstones: entries.values().filter(|value| value.is_none()).count() as u64,
            smallest_seqno: seqnos().min().unwrap(),
            largest_seqno: seqnos().max().unwrap(),
            ..plain_table(self.next_number, &smallest.to_be_bytes(), &largest.to_be_bytes())
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
        let oldest_snapshot = self.snapshot.unwrap_or(SeqNo::MAX);
        with_plain_picker(&metas, MEMTABLE * L0_TRIGGER as u64, running, |picker| {
            pick(&Picker { is_idle, oldest_snapshot, moves_to_last: false, ..picker })
        })
    }

    fn settle(&mut self, is_idle: bool) {
        let most = self.tasks + MOST_TASKS;
        while let Some((_, task)) = self.with_picker(&[], is_idle, |picker| picker.pick()) {
            assert!(self.tasks < most, "no end of {task:?}");
            let outputs = self.merge(&task);
            self.install(&task, outputs);
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
        assert!(self.is_small(), "{what}: {space} KiB for {live}");
    }

    fn is_small(&self) -> bool {
        self.space() * 5 <= self.live_bytes() * 6 + MEMTABLE * 5
    }

    /// Number of entries that are not alive for each that is.
    fn obsolete(&self) -> f64 {
        let entries: u64 = self.levels.iter().flatten().map(|run| run.meta.entries).sum();
        entries as f64 / self.live.len() as f64 - 1.0
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

/// What becomes of a key: its value is deleted, or overwritten by one of this size.
type Change = Option<u64>;

/// What idle stores of 500 to 7,500 keys keep when some keys change, in three orders, after a
/// snapshot or not. Returns in how many of them a few entries have most of the bytes and stay.
fn check_changes(what: &str, size: &dyn Fn(u32) -> u64, change: &dyn Fn(u32, u32) -> Option<Change>) -> u32 {
    let mut few = 0;
    for step in 1..16 {
        let count = step * 500;
        let mut store = filled(count, size);
        let (filled, compacted) = (store.space(), store.compacted);
        if step.is_multiple_of(4) {
            store.take_snapshot();
        }
        let mut keys: Vec<u32> = (0..count).collect();
        match step % 3 {
            0 => (),
            1 => keys.reverse(),
            _ => fastrand::Rng::with_seed(step.into()).shuffle(&mut keys),
        }
        for key in keys {
            match change(key, count) {
                Some(None) => store.delete(key),
                Some(Some(size)) => store.put(key, size),
                None => (),
            }
        }
        store.settle_idle();
        store.snapshot = None;
        store.settle_idle();
        let what = format!("{count} keys, {what}");
        few += u32::from(!store.is_small());
        let obsolete = store.obsolete();
        assert!(store.is_small() || obsolete < 1.0 / 15.0, "{what}: {} KiB, {obsolete}", store.space() / 1024);
        let rewritten = store.compacted - compacted;
        assert!(rewritten < 3 * filled + 4 * MEMTABLE, "{what}: {rewritten} rewritten of {filled}");
    }
    few
}

#[test]
fn mixed_sizes_mislead_the_picker_little_issue_13() {
    let (mut few, mut all) = (0, 0);
    // One entry in so many has nearly all of the bytes, side by side or not.
    for (every, width) in [(1, 1), (2, 1), (3, 1), (10, 1), (10, 30), (20, 1)] {
        for long in [1000, 16_000] {
            let is_long = |key: u32| (key / width).is_multiple_of(every);
            let size = |key| if is_long(key) { long } else { 20 };
            let mut check = |what: &str, change: &dyn Fn(u32, u32) -> Option<Change>| {
                let what = format!("one in {every} of {long} bytes, {width} side by side, {what}");
                few += check_changes(&what, &size, change);
                all += 15;
            };
            check("long ones deleted", &|key, _| is_long(key).then_some(None));
            check("short ones deleted", &|key, _| (!is_long(key)).then_some(None));
            check("a range deleted", &|key, count| (count / 4..count / 2).contains(&key).then_some(None));
            if every < 16 {
                check("long ones overwritten by short ones", &|key, _| is_long(key).then_some(Some(20)));
            }
            check("all overwritten by short ones", &|_, _| Some(Some(20)));
        }
    }
    println!("a few stay in {few} of {all}");
    assert!(few * 50 < all, "{few} of {all}");
}

#[test]
fn a_sliding_window_of_mixed_sizes_leaves_no_garbage() {
    for (every, window) in [(2, 100), (3, 500), (10, 1000), (10, 2500), (20, 2000), (20, 5000)] {
        let mut store = ModelStore::default();
        for key in 0..window * 8 {
            store.put(key, if key.is_multiple_of(every) { 16_000 } else { 20 });
            if let Some(oldest) = key.checked_sub(window) {
                store.delete(oldest);
            }
        }
        store.settle_idle();
        store.check(&format!("a window of {window}, one in {every} long"));
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
