//! Decides what to compact: a pure function of the tables' metadata.
//!
//! The tree is leveled, with dynamic sizes (as RocksDB's `level_compaction_dynamic_level_bytes`).
//! Each level's target is a tenth of the next one's, starting from the size of the last level and
//! going up to the *base level*, into which level 0 is compacted. A small store has its data in the
//! last level alone.
//!
//! The levels between level 0 and the base level are *free*. A full level 0 that is small beside
//! the base level becomes one sorted run in the lowest free level. These runs are merged into the
//! base level together, once they are as large as it is. This is tiering above the base level (as
//! RocksDB's universal compaction, which also places its runs in levels) and leveling below.
//! Therefore a growing store is rewritten each time it doubles, not for each level 0. When the
//! store is idle, the runs are merged.
//!
//! Tasks run in parallel if they cannot meet. Reads visit the runs of level 0, newest first, and
//! then the other levels; each of these is one *read position*. Two tasks conflict if they span a
//! common read position and their key ranges overlap. While a task takes the oldest runs of level 0
//! to the last level, newer runs may be merged among themselves, but may not pass it.
//!
//! A tombstone weighs what it deletes (module `garbage`): bytes that a task frees count like bytes
//! that it moves down. Garbage in a table with entries newer than the oldest snapshot counts as
//! freeing nothing, although some of it may. Otherwise a task would be picked again and again for
//! entries that it cannot drop.

mod garbage;
mod shape;
mod windows;

use std::ops::Range;

use crate::format::deadline::Deadline;
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::report::event::CompactionReason;
use crate::sorted::table::TableMeta;
use crate::version::{DeletedBytes, HiddenBytes, LEVELS, LevelMetas, TombstoneWeights, ValueGarbage};

use super::task::Task;
pub use garbage::has_garbage;
use garbage::{Judge, expired, garbage};
pub use shape::{L0_TRIGGER, LevelTargets, Shape};
use windows::{Neighbours, cheapest_first};

/// Number of level-0 runs at which writes begin to slow down. From here on, reducing the runs is
/// worth more writing.
pub const L0_SLOWDOWN: usize = 2 * L0_TRIGGER;
/// Fewest runs in a merge whose only purpose is to reduce the runs.
const MIN_RELIEF: usize = L0_TRIGGER / 2;
/// For each further step of this many runs in level 0, removing a run may cost twice as much
/// writing.
const RELIEF_STEP: usize = L0_TRIGGER / 3;
/// Data above the base level is merged into it if that reads at most this many times the data
/// above. Therefore at most the size of the base level, plus a full level 0, accumulates above it.
const MAX_COST: u64 = 2;
/// [`MAX_COST`] if no free level can take level 0: a little more than what a full level 0 costs
/// with the largest base level. Smaller runs in level 0 are first merged among themselves.
const MAX_COST_IF_FULL: u64 = shape::BASE_FANOUT + 4;
/// [`MAX_COST`] when the store is idle and nothing else is due. Less than a seventh of the store
/// may then remain above the base level, even if it overwrites data below.
const MAX_COST_IDLE: u64 = 8;
/// When the store is idle, the remaining runs above the base level are merged into one, if the
/// largest is at most this many times the others together. Therefore few runs remain, and a store
/// that idles again and again rewrites them seldom.
const MAX_LARGEST_IDLE: u64 = 4;
/// A full level 0 divided by this is the least that becomes a run of a free level, because there
/// are few free levels.
const MIN_RUN: u64 = 4;
/// A task or table is compacted, although its level is not too large, if one byte or entry in this
/// many is garbage.
const GARBAGE_SHARE: u64 = 4;
/// [`GARBAGE_SHARE`] when the store is idle.
const GARBAGE_SHARE_IDLE: u64 = 10;
/// When the store is idle, less than a memtable is merged if one byte in this many is freed.
/// Otherwise small entries would keep their tombstones: 500,000 of those that delete 36 bytes each
/// are not half of what a merge reads.
const GARBAGE_SHARE_SMALL: u64 = 6;
/// A memtable divided by this is the least that a task must free in a keyspace smaller than a
/// memtable: 1 MiB by default.
const MIN_GARBAGE: u64 = 64;
/// Pointers above the base level are merged into it when they point to one byte in this many of all
/// values, and when that reads at most one byte for this many of values.
const POINTERS_SHARE: u64 = 8;
const LAST: usize = LEVELS - 1;

/// The state that the picker decides on.
pub struct Picker<'a> {
    /// Level 0 newest first, the others in key order.
    pub levels: &'a LevelMetas<'a>,
    /// Tasks in progress.
    pub running: &'a [Task],
    pub shape: Shape,
    /// Size of a full level 0, in bytes.
    pub base_size: u64,
    /// Whether there is memory to write all entries of these tables as one.
    pub fits_one_table: &'a dyn Fn(&[&TableMeta]) -> bool,
    /// Whether the store is idle: no data is in memory that a flush will soon bring to level 0.
    pub is_idle: bool,
    /// Whether operands can be combined: the keyspace has no merge operator, or one that is known.
    /// Otherwise a rewrite of the last level would leave them as they are.
    pub combines: bool,
    /// The oldest live snapshot, or the highest possible sequence number if there is none.
    pub oldest_snapshot: SeqNo,
    /// The time by which deadlines are judged. Snapshots make no difference: they do not see what
    /// has expired either.
    pub now: Deadline,
    /// Whether a table may move to the last level unchanged. It may not if that level is compressed
    /// or has other filters: nearly all keys are there.
    pub moves_to_last: bool,
    /// Weights of these tables for this snapshot; empty until a picker computes them.
    pub weights: &'a TombstoneWeights,
    pub value_garbage: &'a ValueGarbage,
    pub deleted: &'a DeletedBytes,
    pub hidden: &'a HiddenBytes,
    /// Tables hold everything up to this number. An ingested run above it may get older runs
    /// beneath it: those of memtables that are not flushed yet.
    pub flushed: SeqNo,
}

/// A task that merges data above the base level into it, with its costs and gains.
struct Descent {
    task: Task,
    /// Bytes that it moves down.
    above: u64,
    /// Bytes that it drops.
    freed_now: u64,
    /// Bytes that the tombstones among its inputs delete in the inputs and in lower levels.
    freed: u64,
}

impl Descent {
    /// Whether it is a move, or writes at most `factor` times the bytes that it moves down and
    /// frees.
    fn pays_off(&self, factor: u64) -> bool {
        let written = self.task.bytes.saturating_sub(self.freed_now);
        self.task.is_move || written <= self.above.saturating_add(self.freed).saturating_mul(factor)
    }
}

/// Compaction backlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes that must move down until every level is within its target.
    pub data: u64,
    /// Bytes that due or running compactions will drop.
    pub garbage: u64,
}

/// What a caller's request requires.
#[derive(Debug, PartialEq, Eq)]
pub enum Requested {
    /// Nothing: the requested state is reached.
    Done,
    /// A running task conflicts.
    Wait,
    Task(Task),
}

impl<'a> Picker<'a> {
    pub fn level_targets(&self) -> LevelTargets {
        self.shape.targets(size_of_level(&self.levels[LAST]), self.base_size)
    }

    /// The backlog: not zero as long as a task is due or running.
    pub fn debt(&self) -> Debt {
        let targets = self.level_targets();
        let due = self.pick_wholly_expired().or_else(|| self.pick_by_content(&targets));
        let tasks = || self.running.iter().chain(&due);
        let mut data = 0;
        for (level, tables) in self.levels[..targets.base_level].iter().enumerate() {
            let is_full = level == 0 && tables.len() >= self.shape.l0_trigger;
            let is_taken = |number: u64| tasks().any(|task| task.takes(level, number));
            data += tables.iter().filter(|t| is_full || is_taken(t.number)).map(|t| t.size).sum::<u64>();
        }
        let mut garbage = tasks().map(|task| self.freed_by(task).max(1)).sum::<u64>();
        for level in targets.base_level..LAST {
            let weight = self.levels[level].iter().map(|table| self.weight(table)).sum::<u64>();
            let (size, target) = (size_of_level(&self.levels[level]), targets.sizes[level]);
            data += size.saturating_sub(target);
            garbage += size.saturating_add(weight).saturating_sub(target.max(size));
        }
        Debt { data, garbage }
    }

    /// The most useful compaction that can start now, and its urgency in thousandths of its level's
    /// target.
    pub fn pick(&self) -> Option<(u64, Task)> {
        if let Some(drop) = self.pick_wholly_expired() {
            return Some((u64::MAX, drop.because(CompactionReason::Expired)));
        }
        if self.value_garbage.is_urgent
            && let Some(task) = self.pick_value_garbage()
        {
            return Some((u64::MAX, task.because(CompactionReason::ValueGarbage)));
        }
        let targets = self.level_targets();
        // In thousandths of the target.
        let mut scores = [0; LAST];
        scores[0] = self.unclaimed(0).count() as u64 * 1000 / self.shape.l0_trigger as u64;
        for (level, score) in scores.iter_mut().enumerate().skip(targets.base_level) {
            let size: u64 = self.unclaimed(level).map(|table| table.size.saturating_add(self.weight(table))).sum();
            let target = targets.sizes[level].max(1);
            *score = u64::try_from(u128::from(size) * 1000 / u128::from(target)).unwrap_or(u64::MAX);
        }
        let mut order: Vec<usize> = (0..LAST).filter(|&level| scores[level] >= 1000).collect();
        order.sort_by_key(|&level| std::cmp::Reverse(scores[level]));
        let by_size = order.into_iter().find_map(|level| {
            let task = match level {
                0 => self.pick_l0(&targets),
                _ => self.pick_level(level).map(|task| task.because(CompactionReason::LevelSize)),
            };
            Some((scores[level], task?))
        });
        by_size.or_else(|| Some((0, self.pick_by_content(&targets)?)))
    }

    /// A task that is due although no level is too large.
    fn pick_by_content(&self, targets: &LevelTargets) -> Option<Task> {
        let because = |task: Option<Task>, reason| task.map(|task| task.because(reason));
        because(self.pick_partly_expired(), CompactionReason::Expired)
            .or_else(|| because(self.pick_value_garbage(), CompactionReason::ValueGarbage))
            .or_else(|| because(self.pick_pointers(targets), CompactionReason::Pointers))
            .or_else(|| because(self.pick_garbage(targets), CompactionReason::Garbage))
            .or_else(|| because(self.pick_idle(targets), CompactionReason::Idle))
            .or_else(|| because(self.pick_deleted(), CompactionReason::Garbage))
    }

    /// A task that merges only runs of level 0 when there are too many. It may start beyond the
    /// limit on compactions, and while a caller claims the keyspace.
    pub fn pick_relief(&self) -> Option<Task> {
        let excess = self.levels[0].len().checked_sub(L0_SLOWDOWN)?;
        self.pick_run_of_free_level(&self.level_targets()).or_else(|| {
            let task = self.pick_runs(MIN_RELIEF)?;
            // The running task needs the disk, too. Removing a run is worth two memtables of
            // writing, and more when there are more runs.
            let worth = (self.memtable_size() * 2) << (excess / RELIEF_STEP).min(16);
            (task.bytes / (task.inputs.len() as u64 - 1) <= worth).then_some(task)
        })
    }

    /// Tables of a level that no running task takes.
    fn unclaimed(&self, level: usize) -> impl Iterator<Item = &'a TableMeta> {
        self.levels[level].iter().copied().filter(move |table| !self.is_busy(level, table))
    }

    fn is_busy(&self, level: usize, table: &TableMeta) -> bool {
        self.running.iter().any(|task| task.takes(level, table.number))
    }

    /// Tables of a level that may move to a lower level. In level 0: the runs older than all that
    /// running tasks take.
    fn movable(&self, level: usize) -> Vec<&'a TableMeta> {
        match level {
            0 => self.levels[0].iter().rev().copied().take_while(|run| !self.is_busy(0, run)).collect(),
            _ => self.unclaimed(level).collect(),
        }
    }

    /// Merges everything above the base level into it, if that is cheap. Otherwise, in this order:
    /// level 0 into a free level; some runs of level 0 into one, if level 0 is too small;
    /// everything into the base level after all.
    fn pick_l0(&self, targets: &LevelTargets) -> Option<Task> {
        let is_whole = self.movable(0).len() == self.levels[0].len();
        let down = self.all_above(targets, 0).and_then(|down| self.descent_unless_conflicting(down));
        if let Some(down) = &down
            && down.pays_off(MAX_COST)
        {
            return Some(down.task.clone());
        }
        if let Some(task) = self.pick_run_of_free_level(targets) {
            return Some(task);
        }
        match down {
            Some(down) if is_whole => {
                let runs = if down.pays_off(MAX_COST_IF_FULL) { None } else { self.pick_runs(2) };
                runs.or(Some(down.task))
            }
            // A running task conflicts: all runs wait for its end, unless there are too many.
            _ => self.pick_relief(),
        }
    }

    fn descent_unless_conflicting(&self, down: Descent) -> Option<Descent> {
        Some(Descent { task: self.unless_conflicting(down.task)?, ..down })
    }

    /// A task that takes the movable tables of level 0 or of a free level, with everything they
    /// overlap in lower free levels, to the base level.
    fn all_above(&self, targets: &LevelTargets, start: usize) -> Option<Descent> {
        let mut chosen: Vec<(usize, &'a TableMeta)> =
            self.movable(start).into_iter().map(|table| (start, table)).collect();
        let are_apart = disjoint(&chosen);
        let below = (start + 1..=targets.base_level).filter(|&level| !self.levels[level].is_empty());
        for level in below {
            let keys = span_of(&chosen)?;
            chosen
                .extend(self.levels[level].iter().filter(|table| overlaps(&keys, table)).map(|&table| (level, table)));
        }
        let above = chosen.iter().filter(|(level, _)| *level < targets.base_level);
        let above = above.fold(0, |sum: u64, (_, table)| sum.saturating_add(table.total_size()));
        let is_alone = chosen.iter().all(|(level, _)| *level == start);
        let is_move = is_alone && are_apart && (targets.base_level < LAST || self.moves_to_last);
        let task = build_task(start, targets.base_level, &chosen, is_move)?;
        Some(self.descent(task, above, chosen))
    }

    /// Costs and gains of `task`, which reads `chosen`.
    fn descent(&self, task: Task, above: u64, mut chosen: Vec<(usize, &'a TableMeta)>) -> Descent {
        let freed_now = self.judge(self.now).freed(&chosen);
        // Also counts garbage below the output: what moves down comes closer to what it hides. What
        // stays in its level does not.
        let output = usize::from(task.output_level);
        for level in output + 1..LEVELS {
            chosen.extend(self.overlapping(level, &task.keys).iter().map(|&table| (level, table)));
        }
        let staying: Vec<_> = chosen.iter().filter(|(level, _)| *level >= output).copied().collect();
        let judge = self.judge(self.now);
        Descent { freed: judge.freed(&chosen).saturating_sub(judge.freed(&staying)), task, above, freed_now }
    }

    /// All of level 0 into the lowest free level above everything it overlaps, if there is such a
    /// level and level 0 is large enough.
    fn pick_run_of_free_level(&self, targets: &LevelTargets) -> Option<Task> {
        let inputs = self.movable(0);
        if inputs.iter().map(|table| table.size).sum::<u64>() < self.base_size / MIN_RUN {
            return None;
        }
        let keys = span_of_tables(inputs.iter().copied())?;
        let overlaps = |level: &usize| self.levels[*level].iter().any(|table| overlaps(&keys, table));
        let lowest = (1..LEVELS).find(overlaps)?.min(targets.base_level);
        // Lower levels may be part of a running task.
        (1..lowest).rev().find_map(|level| self.task(0, level, &inputs))
    }

    /// Merges at least `fewest` runs of level 0, adjacent in age, into one; fewer where so many
    /// take more memory than there is. Picks those with the fewest bytes, divided by the square of
    /// the number of runs removed. Therefore small runs are merged with others of their size, and a
    /// large one when there are others as large. (Tiny runs flushed for ever into a level 0 of
    /// eight are written 7 times by this rule, and 21 times when divided by the number itself.)
    fn pick_runs(&self, fewest: usize) -> Option<Task> {
        let runs = &self.levels[0];
        let may_merge = |run: &TableMeta| !self.is_busy(0, run) && run.largest_seqno <= self.flushed;
        // The cheapest merge may conflict with a running task that others do not meet.
        let windows = |fewest| cheapest_first(runs, fewest, may_merge);
        let fits = |window: &Range<usize>| (self.fits_one_table)(&runs[window.clone()]);
        let is_short = windows(fewest).next().is_some() && !windows(fewest).any(|window| fits(&window));
        windows(if is_short { 2 } else { fewest }).filter(fits).find_map(|window| {
            let inputs: Vec<(usize, &TableMeta)> = runs[window].iter().map(|&run| (0, run)).collect();
            self.unless_conflicting(build_task(0, 0, &inputs, false)?)
        })
    }

    /// When the store is idle, merges what is above the base level into it, so that reads find few
    /// runs. If level 0 has too little for that, only the free levels. If these have too little as
    /// well, the runs above are merged among themselves.
    fn pick_idle(&self, targets: &LevelTargets) -> Option<Task> {
        if !self.is_idle {
            return None;
        }
        let highest = (1..targets.base_level).find(|&level| !self.levels[level].is_empty());
        let is_much = |bytes: u64| bytes >= self.memtable_size();
        // A single run in level 0 stays, unless its tombstones free much.
        let is_alone = highest.is_none() && self.unclaimed(0).nth(1).is_none();
        let into_base = [Some(0), highest].into_iter().flatten().filter_map(|start| {
            let down = self.all_above(targets, start)?;
            let is_due = !is_alone || down.freed.saturating_mul(GARBAGE_SHARE_IDLE) > down.task.bytes;
            let gain = down.above.saturating_add(down.freed);
            let is_much = is_much(gain) || self.frees_much(&down, GARBAGE_SHARE_SMALL);
            (is_due && is_much && down.pays_off(MAX_COST_IDLE)).then_some(down.task)
        });
        // A worthwhile task that conflicts with a running one waits. Merging its inputs meanwhile
        // would write them twice.
        let mut into_base = into_base.peekable();
        match into_base.peek() {
            Some(_) => into_base.find_map(|task| self.unless_conflicting(task)),
            None if is_alone => None,
            None => self.unless_conflicting(self.runs_above(targets, is_much)?),
        }
    }

    /// Whether a task frees more than one byte in `share` of what it reads, and not next to
    /// nothing. This pays off even in a keyspace smaller than a memtable, of which there may be
    /// many.
    fn frees_much(&self, down: &Descent, share: u64) -> bool {
        down.freed.saturating_mul(share) > down.task.bytes && down.freed >= self.memtable_size() / MIN_GARBAGE
    }

    fn memtable_size(&self) -> u64 {
        self.base_size / self.shape.l0_trigger as u64
    }

    /// Merges the runs above the base level, or the newest of them, into one: the most that are
    /// together worth rewriting the largest.
    fn runs_above(&self, targets: &LevelTargets, is_much: impl Fn(u64) -> bool) -> Option<Task> {
        let is_occupied = |level: &usize| !self.levels[*level].is_empty();
        let lowest_free = (1..targets.base_level).take_while(|level| !is_occupied(level)).last().unwrap_or(0);
        (0..targets.base_level).rev().filter(is_occupied).find_map(|last| {
            let of_level_0 = self.levels[0].iter().map(|run| run.size);
            let runs = of_level_0.chain((1..=last).filter(is_occupied).map(|level| size_of_level(&self.levels[level])));
            let (total, largest) = runs.fold((0, 0), |(total, largest), run| (total + run, run.max(largest)));
            if !is_much(total) || largest > (total - largest).saturating_mul(MAX_LARGEST_IDLE) {
                return None;
            }
            let newest: Vec<(usize, &TableMeta)> =
                (0..=last).flat_map(|level| self.levels[level].iter().map(move |&table| (level, table))).collect();
            let (start, output) = (newest.first()?.0, if last == 0 { lowest_free } else { last });
            let is_move = start < output && last == 0 && disjoint(&newest);
            let fits = output > 0 || (self.fits_one_table)(&self.levels[0]);
            build_task(start, output, &newest, is_move).filter(|_| fits)
        })
    }

    /// Compacts the neighbours that rewrite least of the next level for what they move down and
    /// free.
    fn pick_level(&self, level: usize) -> Option<Task> {
        let tables = &self.levels[level];
        let neighbours = Neighbours {
            gains: tables.iter().map(|table| table.size.saturating_add(self.weight(table))).collect(),
            overlapped: tables.iter().map(|table| self.positions(level + 1, &span_of_table(table))).collect(),
            below: &self.levels[level + 1],
        };
        let may_move = |at: usize| !self.is_busy(level, tables[at]);
        let windows = neighbours.cheapest_first(self.shape.neighbours, may_move);
        windows.into_iter().find_map(|window| self.task(level, level + 1, &tables[window]))
    }

    /// The tables of a level below level 0 that overlap `keys`.
    fn overlapping(&self, level: usize, keys: &KeySpan<Vec<u8>>) -> &'a [&'a TableMeta] {
        &self.levels[level][self.positions(level, keys)]
    }

    /// Where these tables are in their level.
    fn positions(&self, level: usize, keys: &KeySpan<Vec<u8>>) -> Range<usize> {
        let tables = &self.levels[level];
        let is_before = |table: &&TableMeta| {
            count_comparison();
            keys.lower.as_ref().is_some_and(|lower| *table.largest < **lower)
        };
        let from = tables.partition_point(is_before);
        from..from + tables[from..].partition_point(|table| overlaps(keys, table))
    }

    /// Bytes that the tombstones of a table below level 0 and above the last level delete in lower
    /// levels.
    fn weight(&self, table: &TableMeta) -> u64 {
        if !self.may_hide(table) {
            return 0;
        }
        let weights = self.weights.get_or_init(|| {
            let of_level = |level: usize| self.levels[level].iter().map(move |table| (level, table));
            let weights =
                (1..LAST).flat_map(of_level).map(|(level, table)| (table.number, self.estimate(level, table)));
            weights.filter(|(_, weight)| *weight > 0).collect()
        });
        weights.get(&table.number).copied().unwrap_or(0)
    }

    /// Whether a table below level 0 may hide more in lower levels than values that replace others
    /// of their length.
    fn may_hide(&self, table: &TableMeta) -> bool {
        has_garbage(table) || self.hidden.get(&table.number).is_some_and(|bytes| *bytes > 0)
    }

    fn judge(&self, now: Deadline) -> Judge<'a> {
        Judge { oldest_snapshot: self.oldest_snapshot, now, deleted: self.deleted, hidden: self.hidden }
    }

    /// Bytes of a table that range deletes have deleted.
    fn deleted(&self, table: &TableMeta) -> u64 {
        self.deleted.get(&table.number).copied().unwrap_or(0)
    }

    /// Estimates [`Self::weight`].
    fn estimate(&self, level: usize, table: &TableMeta) -> u64 {
        if !self.may_hide(table) || table.largest_seqno > self.oldest_snapshot {
            return 0;
        }
        count_estimate();
        let (keys, mut chosen) = (span_of_table(table), vec![(level, table)]);
        for below in level + 1..LEVELS {
            chosen.extend(self.overlapping(below, &keys).iter().map(|&table| (below, table)));
        }
        // Weights are kept while time goes on: what expires is not in them.
        let judge = self.judge(0);
        judge.freed(&chosen).saturating_sub(judge.freed(&chosen[1..])).saturating_sub(self.deleted(table))
    }

    /// Bytes that a task drops.
    fn freed_by(&self, task: &Task) -> u64 {
        let of_level =
            |level: u8| self.levels[usize::from(level)].iter().map(move |&table| (usize::from(level), table));
        let inputs = (task.start_level..=task.output_level).flat_map(of_level);
        let chosen: Vec<_> = inputs.filter(|(level, table)| task.takes(*level, table.number)).collect();
        self.judge(self.now).freed(&chosen)
    }

    /// Compacts tables with much garbage: down towards what their tombstones delete or, in the last
    /// level, rewritten without garbage once no snapshot holds it.
    fn pick_garbage(&self, targets: &LevelTargets) -> Option<Task> {
        let share = if self.is_idle { GARBAGE_SHARE_IDLE } else { GARBAGE_SHARE };
        let is_much = |freed: u64, task: &Task| freed.saturating_mul(share) > task.bytes;
        // A merge from above the base level takes everything it overlaps, which may be much more.
        // In an idle store, `pick_idle` decides on it. In a busy one it must free much at once: it
        // was due ever sooner when it counted what its tombstones will free further down, and two
        // puts for each delete were written 13.8 times instead of 6.8.
        let above = (0..targets.base_level).filter(|_| !self.is_idle).find_map(|level| {
            let may_free =
                |table: &&TableMeta| table.tombstones > 0 || expired(table, self.now) > 0 || self.deleted(table) > 0;
            self.unclaimed(level).find(may_free)?;
            let down = self.all_above(targets, level)?;
            let is_due = is_much(down.freed_now, &down.task)
                && down.pays_off(MAX_COST)
                && (down.freed_now >= self.memtable_size() || self.frees_much(&down, 2));
            self.unless_conflicting(is_due.then_some(down.task)?)
        });
        if above.is_some() {
            return above;
        }
        let many = |garbage: u64, table: &TableMeta, share: u64| garbage.saturating_mul(share) > table.entries;
        let is_due = |level: usize, table: &TableMeta| {
            let free = if table.largest_seqno <= self.oldest_snapshot { garbage(table) } else { 0 };
            if level == LAST {
                let free = if self.combines { free } else { 0 };
                many(free.saturating_add(expired(table, self.now)), table, share)
            } else {
                let is_worth = free > 0 || self.weight(table) > 0;
                is_worth && self.garbage_pays_off(level, table, many(free, table, GARBAGE_SHARE))
            }
        };
        (targets.base_level..LEVELS).find_map(|level| {
            let due = self.unclaimed(level).filter(|table| is_due(level, table));
            due.map(|table| self.task(level, LAST.min(level + 1), &[table])).find_map(|task| task)
        })
    }

    /// A table of which much has expired or is deleted by ranges. Rewriting it turns what has
    /// expired into deletes, so that the table is not due again, or drops it if nothing is below.
    fn pick_partly_expired(&self) -> Option<Task> {
        if self.now == 0 && self.deleted.is_empty() {
            return None;
        }
        self.pick_rewrite(1..LEVELS, |table| table.deadlines.are_due(self.now) || self.is_deleted(table, GARBAGE_SHARE))
    }

    /// A table of which range deletes have deleted a tenth, in an idle store that has nothing else
    /// to do. In a busy store, a run of level 0 of which most is deleted: its next merge is near,
    /// or the rest will be deleted too.
    fn pick_deleted(&self) -> Option<Task> {
        let (levels, share) = if self.is_idle { (0..LEVELS, GARBAGE_SHARE_IDLE) } else { (0..1, 2) };
        self.pick_rewrite(levels, |table| self.is_deleted(table, share))
    }

    /// Whether range deletes have deleted more than one byte in `share` of a table.
    fn is_deleted(&self, table: &TableMeta, share: u64) -> bool {
        self.deleted(table).saturating_mul(share) > table.total_size()
    }

    /// A table that points to value files which are emptied.
    fn pick_value_garbage(&self) -> Option<Task> {
        let tables = &self.value_garbage.tables;
        let points = |table: &TableMeta| tables.contains(&table.number);
        // Those of level 0 last: they may be merged by then.
        let pick = || self.pick_rewrite(1..LEVELS, points).or_else(|| self.pick_rewrite(0..1, points));
        if tables.is_empty() { None } else { pick() }
    }

    /// Takes pointers to values down to the base level: there it shows which values are dead.
    /// Merging a few bytes of pointers then does away with many bytes of values.
    fn pick_pointers(&self, targets: &LevelTargets) -> Option<Task> {
        let values = |level: usize| {
            self.levels[level].iter().fold(0, |sum: u64, table| sum.saturating_add(table.references.bytes()))
        };
        let above = (0..targets.base_level).map(values).fold(0, u64::saturating_add);
        // A busy store soon has more of them.
        let least = if self.is_idle { 1 } else { self.memtable_size() };
        if above < least {
            return None;
        }
        let all = (targets.base_level..LEVELS).map(values).fold(above, u64::saturating_add);
        if above < all / POINTERS_SHARE {
            return None;
        }
        let start = (0..targets.base_level).find(|&level| !self.levels[level].is_empty())?;
        let Descent { task, above, .. } = self.all_above(targets, start)?;
        let is_cheap = task.bytes.saturating_mul(POINTERS_SHARE) <= above;
        self.unless_conflicting(is_cheap.then_some(task)?)
    }

    /// The task that rewrites one table in its level, the first that is due.
    fn pick_rewrite(&self, mut levels: Range<usize>, is_due: impl Fn(&TableMeta) -> bool) -> Option<Task> {
        levels.find_map(|level| {
            let due = self.unclaimed(level).filter(|table| is_due(table));
            due.map(|table| self.task(level, level, &[table])).find_map(|task| task)
        })
    }

    /// Tables of one level that go without being read, as many as possible at once: they have
    /// expired as a whole, and hide nothing.
    fn pick_wholly_expired(&self) -> Option<Task> {
        if self.now == 0 {
            return None;
        }
        (0..LEVELS).rev().find_map(|level| {
            let is_gone = |(position, table): &(usize, &&'a TableMeta)| {
                table.deadlines.all_expired(table.entries, self.now)
                    && !self.is_busy(level, table)
                    && !self.hides(level, *position)
            };
            let gone: Vec<(usize, &TableMeta)> =
                self.levels[level].iter().enumerate().filter(is_gone).map(|(_, table)| (level, *table)).collect();
            let drop = |tables: &[(usize, &TableMeta)]| {
                let task = Task { is_drop: true, ..build_task(level, level, tables, false)? };
                self.unless_conflicting(task)
            };
            drop(&gone).or_else(|| gone.iter().find_map(|&table| drop(&[table])))
        })
    }

    /// Whether something older than the table at this position of a level has keys in its range.
    fn hides(&self, level: usize, position: usize) -> bool {
        let (table, newer_than) = (self.levels[level][position], position + 1);
        let keys = span_of_table(table);
        let older_runs = if level == 0 { &self.levels[0][newer_than..] } else { &[] };
        older_runs.iter().any(|run| overlaps(&keys, run))
            || (level + 1..LEVELS).any(|below| !self.overlapping(below, &keys).is_empty())
    }

    /// Whether moving a table with garbage to the next level moves down and frees enough for what
    /// it writes. `has_much` says that much of the table is garbage.
    fn garbage_pays_off(&self, level: usize, table: &TableMeta, has_much: bool) -> bool {
        let (share, factor) = match self.is_idle {
            // With mixed sizes, the large entries may have been deleted: a table that is mostly
            // garbage must not stay.
            true if garbage(table).saturating_mul(2) > table.entries => (GARBAGE_SHARE_IDLE, 2 * MAX_COST_IDLE),
            true => (GARBAGE_SHARE_IDLE, MAX_COST_IDLE),
            false => (GARBAGE_SHARE, MAX_COST),
        };
        let overlapping = size_of_level(self.overlapping(level + 1, &span_of_table(table)));
        let (read, weight) = (table.size.saturating_add(overlapping), self.weight(table));
        let written = if level + 1 == LAST { read.saturating_sub(weight) } else { read };
        (has_much || weight.saturating_mul(share) > read)
            && written <= table.size.saturating_add(weight).saturating_mul(factor)
    }

    /// The task that compacts `inputs` of `level` into `output`, unless it conflicts with a running
    /// one.
    fn task(&self, level: usize, output: usize, inputs: &[&TableMeta]) -> Option<Task> {
        let keys = span_of_tables(inputs.iter().copied())?;
        let below = if output > level { self.overlapping(output, &keys) } else { &[] };
        let mut all: Vec<(usize, &TableMeta)> = inputs.iter().map(|&t| (level, t)).collect();
        let is_move = below.is_empty() && output > level && (output < LAST || self.moves_to_last) && disjoint(&all);
        all.extend(below.iter().map(|&table| (output, table)));
        self.unless_conflicting(build_task(level, output, &all, is_move)?)
    }

    fn unless_conflicting(&self, task: Task) -> Option<Task> {
        (!self.running.iter().any(|other| other.conflicts(&task))).then_some(task)
    }

    /// The task that rewrites table `number` in its level, alone; `Done` if the table is gone.
    /// Overlapping tasks that compact this level or pass it wait meanwhile, so the table keeps its
    /// position among the others.
    pub fn pick_table(&self, number: u64) -> Requested {
        let with_level = |level: usize| self.levels[level].iter().map(move |&table| (level, table));
        let Some(input) = (0..LEVELS).flat_map(with_level).find(|(_, table)| table.number == number) else {
            return Requested::Done;
        };
        match build_task(input.0, input.0, &[input], false).and_then(|task| self.unless_conflicting(task)) {
            Some(task) => Requested::Task(task.because(CompactionReason::Requested)),
            None => Requested::Wait,
        }
    }

    /// The task that merges everything overlapping a range into the last level at once; `Done` if
    /// all of it is there, without droppable garbage.
    /// With `rewrites_all`, the task also rewrites what is there already.
    pub fn pick_range(&self, range: &KeySpan<Vec<u8>>, rewrites_all: bool) -> Requested {
        let mut chosen: Vec<(usize, &TableMeta)> = Vec::new();
        // Data that moves down must not pass anything older. In level 0 that is any overlapping
        // run, which may overlap further runs; in lower levels, whatever the tables taken so far
        // overlap. Newer data may stay above.
        for level in 0..LEVELS {
            loop {
                let keys = span_of(&chosen);
                let taken = |table: &TableMeta| {
                    table.overlaps(range) || keys.as_ref().is_some_and(|keys| overlaps(keys, table))
                };
                let known = chosen.len();
                chosen.retain(|&(l, _)| l < level);
                chosen.extend(self.levels[level].iter().filter(|table| taken(table)).map(|&table| (level, table)));
                if level > 0 || chosen.len() == known {
                    break;
                }
            }
        }
        let is_in_place = |&(level, table): &(usize, &TableMeta)| {
            let is_clean = garbage(table) == 0 || !self.combines || table.largest_seqno > self.oldest_snapshot;
            level == LAST && is_clean && !table.deadlines.any_expired(self.now)
        };
        if chosen.is_empty() || !rewrites_all && chosen.iter().all(is_in_place) {
            return match self.running.is_empty() {
                true => Requested::Done,
                false => Requested::Wait,
            };
        }
        let start = chosen.iter().map(|&(level, _)| level).min().unwrap_or(LAST);
        match build_task(start, LAST, &chosen, false).and_then(|task| self.unless_conflicting(task)) {
            Some(task) => Requested::Task(task.because(CompactionReason::Requested)),
            None => Requested::Wait,
        }
    }
}

/// All keys between the smallest and the largest of some tables, or of one.
fn span_of(tables: &[(usize, &TableMeta)]) -> Option<KeySpan<Vec<u8>>> {
    span_of_tables(tables.iter().map(|&(_, table)| table))
}

fn span_of_tables<'t>(tables: impl Iterator<Item = &'t TableMeta> + Clone) -> Option<KeySpan<Vec<u8>>> {
    let smallest = tables.clone().map(|table| &table.smallest).min()?;
    Some(KeySpan::closed(smallest, tables.map(|table| &table.largest).max()?))
}

fn span_of_table(table: &TableMeta) -> KeySpan<Vec<u8>> {
    KeySpan::closed(&table.smallest, &table.largest)
}

fn overlaps(keys: &KeySpan<Vec<u8>>, table: &TableMeta) -> bool {
    count_comparison();
    table.overlaps(keys)
}

/// Counts estimates of what a table's tombstones delete, for a test.
fn count_estimate() {
    #[cfg(test)]
    tests::ESTIMATES.with(|count| count.set(count.get() + 1));
}

/// Counts comparisons for a test.
fn count_comparison() {
    #[cfg(test)]
    tests::COMPARISONS.with(|count| count.set(count.get() + 1));
}

fn size_of_level(tables: &[&TableMeta]) -> u64 {
    tables.iter().map(|table| table.size).sum()
}

fn disjoint(tables: &[(usize, &TableMeta)]) -> bool {
    let mut sorted: Vec<&TableMeta> = tables.iter().map(|&(_, table)| table).collect();
    sorted.sort_by(|a, b| a.smallest.cmp(&b.smallest));
    sorted.is_sorted_by(|a, b| a.largest < b.smallest)
}

#[expect(clippy::cast_possible_truncation, reason = "there are LEVELS levels")]
fn build_task(start: usize, output: usize, inputs: &[(usize, &TableMeta)], is_move: bool) -> Option<Task> {
    let bytes = inputs.iter().map(|(_, table)| table.size).sum();
    let mut numbers: Vec<(u8, u64)> = inputs.iter().map(|&(level, table)| (level as u8, table.number)).collect();
    numbers.sort_unstable();
    let runs = || inputs.iter().filter(|(level, _)| *level == 0).map(|(_, table)| table.largest_seqno);
    Some(Task {
        runs: (runs().min().unwrap_or(0), runs().max().unwrap_or(0)),
        start_level: start as u8,
        output_level: output as u8,
        inputs: numbers,
        keys: span_of(inputs)?,
        bytes,
        is_move,
        is_drop: false,
        reason: CompactionReason::default(),
        resumes: None,
    })
}

#[cfg(test)]
mod churn;
#[cfg(test)]
mod rivals;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
