//! Decides what to compact: a pure function of the tables' metadata.
//!
//! Leveled, with dynamic sizes (as RocksDB's `level_compaction_dynamic_level_bytes`): the last level's size sets the target of the
//! level above it to a tenth, and so on up to the *base level*, into which level 0 is compacted. A small store has its data in the
//! last level alone.
//!
//! The levels between level 0 and the base level are *free*. When a full level 0 is little beside what is in the base level, it becomes
//! one sorted run in the lowest of them, and the runs there are merged into the base level together, when they are as large as that
//! is: tiering above the base level (as RocksDB's universal compaction, which places its runs in levels too), leveling from there on.
//! So a store that grows is written as often as it doubles, and not once more for each level 0; at rest, the runs are merged.
//!
//! Tasks run in parallel when they cannot meet. Reads go through *places*: the runs of level 0,
//! newest first, and then the other levels. Two tasks conflict if they span a common place and
//! their key ranges overlap. While a task takes the oldest runs of level 0 to the last level, newer
//! runs may be merged among themselves, but they may not pass it.
//!
//! A tombstone weighs what it deletes (module `garbage`): bytes that a task frees count for it like
//! bytes that it brings down. Tombstones and older versions in a table with entries newer than the
//! oldest snapshot count as freeing nothing, although some may: otherwise a task would be picked
//! again and again for what it cannot drop.

mod garbage;

use std::ops::Range;

use crate::format::key::SeqNo;
use crate::sorted::table::TableMeta;
use crate::tree::version::LEVELS;

pub(crate) use garbage::has_garbage;
use garbage::{freed, garbage};

/// Runs in level 0 that start a compaction. Every run costs a read a filter probe, and a seek a block; the more are merged at once,
/// the less often the level below is written again. `simulation` measures what it comes to: 3.3 times for 100 memtables, 8.6 for 1000.
pub(crate) const L0_TRIGGER: usize = 12;
/// Runs in level 0 at which writes begin to be slowed down. From here on, fewer runs are worth more
/// writing.
pub(crate) const L0_SLOWDOWN: usize = 2 * L0_TRIGGER;
/// A merge that is done only to have fewer runs takes at least this many.
const MIN_RELIEF: usize = L0_TRIGGER / 2;
/// For each further step of this many runs in level 0, twice as much is written to have one run
/// less.
const RELIEF_STEP: usize = L0_TRIGGER / 3;
/// Each level's target is this many times that of the level above it.
const FANOUT: u64 = 10;
/// Level 0 is compacted straight into a level of up to this many times the base size. Below that, a level in between would make
/// every byte be written once more and save less than that.
const BASE_FANOUT: u64 = 8;
/// What is above the base level is merged into it if that reads at most this many times what is above. So before it is merged, there is
/// at most as much above as there is in it, and a full level 0.
const MAX_COST: u64 = 2;
/// The same if no free level can take level 0: a little more than a full level 0 comes to in the largest base level. If the runs of
/// level 0 are smaller than that, they are merged among themselves first.
const MAX_COST_IF_FULL: u64 = BASE_FANOUT + 4;
/// The same when nothing is in memory and nothing else to do. What may be left above is then less than a seventh of the store, also if
/// it overwrites what is below.
const MAX_COST_AT_REST: u64 = 8;
/// What is left above then is merged into one run, if the largest of its runs is at most this many times as large as the others together.
/// So few runs are left, and who lets the store rest again and again writes them seldom.
const MAX_LARGEST_AT_REST: u64 = 4;
/// What becomes a run of a free level is at least this part of a full level 0: there are few such levels.
const MIN_RUN: u64 = 4;
/// A task or table of which this share is garbage is compacted although its level is not too large:
/// one byte or entry in …
const GARBAGE_SHARE: u64 = 4;
/// The share of garbage that is enough when the store is idle.
const GARBAGE_SHARE_AT_REST: u64 = 10;
/// What a keyspace smaller than a memtable frees at once is at least this part of one: 1 MiB by
/// default.
const LEAST_GARBAGE: u64 = 64;
const LAST: usize = LEVELS - 1;

/// A closed range of user keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hull {
    pub(crate) smallest: Box<[u8]>,
    pub(crate) largest: Box<[u8]>,
}

impl Hull {
    fn of_one(table: &TableMeta) -> Hull {
        Hull { smallest: table.smallest.clone(), largest: table.largest.clone() }
    }

    fn of(tables: &[&TableMeta]) -> Option<Hull> {
        Some(Hull {
            smallest: tables.iter().map(|t| &t.smallest).min()?.clone(),
            largest: tables.iter().map(|t| &t.largest).max()?.clone(),
        })
    }

    pub(crate) fn overlaps(&self, table: &TableMeta) -> bool {
        count_comparison();
        self.smallest <= table.largest && table.smallest <= self.largest
    }

    fn meets(&self, other: &Hull) -> bool {
        self.smallest <= other.largest && other.smallest <= self.largest
    }
}

/// One compaction to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) start_level: u8,
    pub(crate) output_level: u8,
    /// Levels and numbers of the input tables, ascending.
    pub(crate) inputs: Vec<(u8, u64)>,
    /// The key range of the inputs.
    pub(crate) hull: Hull,
    /// Bytes of the inputs.
    pub(crate) bytes: u64,
    /// The tables change their level and are not rewritten.
    pub(crate) is_move: bool,
    /// The oldest and the newest of the inputs in level 0, by their largest sequence numbers; 0 if
    /// there are none.
    pub(crate) runs: (SeqNo, SeqNo),
}

/// A run of level 0, or a whole level below it, in the order in which reads visit them.
type Place = (u8, std::cmp::Reverse<SeqNo>);

impl Task {
    pub(crate) fn takes(&self, level: usize, number: u64) -> bool {
        u8::try_from(level).is_ok_and(|level| self.inputs.binary_search(&(level, number)).is_ok())
    }

    /// The first place of the inputs, and the last one, where the output goes.
    fn places(&self) -> (Place, Place) {
        let place = |level: u8, run: SeqNo| (level, std::cmp::Reverse(if level == 0 { run } else { 0 }));
        (place(self.start_level, self.runs.1), place(self.output_level, self.runs.0))
    }

    fn conflicts(&self, other: &Task) -> bool {
        let ((first, last), (other_first, other_last)) = (self.places(), other.places());
        first <= other_last && other_first <= last && self.hull.meets(&other.hull)
    }
}

/// What the picker decides on.
pub(crate) struct Picker<'a> {
    /// Level 0 newest first, the others in key order.
    pub(crate) levels: &'a [Vec<&'a TableMeta>; LEVELS],
    /// Tasks that are being carried out.
    pub(crate) running: &'a [Task],
    /// Bytes that level 0 holds when it is compacted.
    pub(crate) base_size: u64,
    /// Whether nothing is in memory that will come to level 0: the store rests.
    pub(crate) is_idle: bool,
    /// The oldest live snapshot; the newest sequence number there can be if there is none.
    pub(crate) oldest_snapshot: SeqNo,
    /// Whether a table may be moved to the last level as it is. It may not if that level is compressed, or if its filters are others,
    /// which matters there because nearly all keys are.
    pub(crate) moves_to_last: bool,
}

/// A task that takes what is above the base level into it, and what that comes to.
struct Descent {
    task: Task,
    /// Bytes that it brings down.
    above: u64,
    /// Bytes that it drops.
    freed_now: u64,
    /// Bytes that the tombstones among its inputs delete there and further below.
    freed: u64,
}

impl Descent {
    /// Whether what it brings down and frees is worth what it writes.
    fn is_worth(&self, factor: u64) -> bool {
        let written = self.task.bytes.saturating_sub(self.freed_now);
        self.task.is_move || written <= self.above.saturating_add(self.freed).saturating_mul(factor)
    }
}

/// Target sizes of the levels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The level into which level 0 is compacted.
    pub(crate) base_level: usize,
    /// Bytes; 0 above the base level.
    pub(crate) targets: [u64; LEVELS],
}

/// Bytes to be compacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt {
    /// Bytes that have to move down until every level is within its target.
    pub(crate) data: u64,
    /// Bytes that compactions that are due or running will drop.
    pub(crate) garbage: u64,
}

/// What is to be done for a caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Requested {
    /// Nothing: what he asked for is so.
    Done,
    /// A running task is in the way.
    Wait,
    Task(Task),
}

impl<'a> Picker<'a> {
    pub(crate) fn shape(&self) -> Shape {
        let limit = self.base_size.saturating_mul(BASE_FANOUT);
        let mut targets = [0; LEVELS];
        let mut level = LAST;
        let mut target = size_of_level(&self.levels[LAST]).max(limit);
        targets[level] = target;
        while target > limit && level > 1 {
            target /= FANOUT;
            level -= 1;
            targets[level] = target.max(self.base_size);
        }
        Shape { base_level: level, targets }
    }

    /// What is owed: more than nothing as long as a task is due or running.
    pub(crate) fn debt(&self) -> Debt {
        let shape = self.shape();
        let due = self.pick_garbage(&shape).or_else(|| self.pick_idle(&shape));
        let tasks = || self.running.iter().chain(&due);
        let mut data = 0;
        for (level, tables) in self.levels[..shape.base_level].iter().enumerate() {
            let is_full = level == 0 && tables.len() >= L0_TRIGGER;
            let is_taken = |number: u64| tasks().any(|task| task.takes(level, number));
            data += tables.iter().filter(|t| is_full || is_taken(t.number)).map(|t| t.size).sum::<u64>();
        }
        let mut garbage = tasks().map(|task| self.freed_by(task).max(1)).sum::<u64>();
        for level in shape.base_level..LAST {
            let weight = self.levels[level].iter().map(|table| self.weight(level, table)).sum::<u64>();
            let (size, target) = (size_of_level(&self.levels[level]), shape.targets[level]);
            data += size.saturating_sub(target);
            garbage += size.saturating_add(weight).saturating_sub(target.max(size));
        }
        Debt { data, garbage }
    }

    /// The most useful compaction that can be started now, and how urgent it is: thousandths of the target of its level.
    pub(crate) fn pick(&self) -> Option<(u64, Task)> {
        let shape = self.shape();
        // Thousandths of the target.
        let mut scores = [0; LAST];
        scores[0] = self.idle(0).count() as u64 * 1000 / L0_TRIGGER as u64;
        for (level, score) in scores.iter_mut().enumerate().skip(shape.base_level) {
            let size: u64 = self.idle(level).map(|table| table.size.saturating_add(self.weight(level, table))).sum();
            let target = shape.targets[level].max(1);
            *score = u64::try_from(u128::from(size) * 1000 / u128::from(target)).unwrap_or(u64::MAX);
        }
        let mut order: Vec<usize> = (0..LAST).filter(|&level| scores[level] >= 1000).collect();
        order.sort_by_key(|&level| std::cmp::Reverse(scores[level]));
        let by_size = order.into_iter().find_map(|level| {
            let task = match level {
                0 => self.pick_l0(&shape),
                _ => self.pick_level(level),
            };
            Some((scores[level], task?))
        });
        by_size.or_else(|| Some((0, self.pick_garbage(&shape).or_else(|| self.pick_idle(&shape))?)))
    }

    /// A task that takes runs of level 0 alone and leaves fewer of them, when there are too many.
    /// It may start beyond the limit on compactions, and while a caller claims the keyspace.
    pub(crate) fn pick_relief(&self) -> Option<Task> {
        let excess = self.levels[0].len().checked_sub(L0_SLOWDOWN)?;
        self.pick_run_of_free_level(&self.shape()).or_else(|| {
            let task = self.pick_runs(MIN_RELIEF)?;
            // The running task needs the disk, too. One run less is worth two memtables of writing,
            // and more when there are more runs.
            let worth = (self.memtable_size() * 2) << (excess / RELIEF_STEP).min(16);
            (task.bytes / (task.inputs.len() as u64 - 1) <= worth).then_some(task)
        })
    }

    /// Tables of a level that no running task takes.
    fn idle(&self, level: usize) -> impl Iterator<Item = &'a TableMeta> {
        self.levels[level].iter().copied().filter(move |table| !self.is_busy(level, table))
    }

    fn is_busy(&self, level: usize, table: &TableMeta) -> bool {
        self.running.iter().any(|task| task.takes(level, table.number))
    }

    /// Tables of a level that may be taken to a lower one. In level 0: the runs that are older than
    /// all that running tasks take.
    fn movable(&self, level: usize) -> Vec<&'a TableMeta> {
        match level {
            0 => self.levels[0].iter().rev().copied().take_while(|run| !self.is_busy(0, run)).collect(),
            _ => self.idle(level).collect(),
        }
    }

    /// All that is above the base level into it, if that is cheap; else level 0 into a free level, if one is left; else, if there is
    /// too little of level 0, some of its runs into one.
    fn pick_l0(&self, shape: &Shape) -> Option<Task> {
        let is_whole = self.movable(0).len() == self.levels[0].len();
        let down = self.all_above(shape, 0).and_then(|down| self.unless_blocked(down));
        if let Some(down) = &down
            && down.is_worth(MAX_COST)
        {
            return Some(down.task.clone());
        }
        if let Some(task) = self.pick_run_of_free_level(shape) {
            return Some(task);
        }
        match down {
            Some(down) if is_whole => {
                let runs = if down.is_worth(MAX_COST_IF_FULL) { None } else { self.pick_runs(2) };
                runs.or(Some(down.task))
            }
            // A running task is in the way: all runs wait for its end, unless there are too many.
            _ => self.pick_relief(),
        }
    }

    fn unless_blocked(&self, down: Descent) -> Option<Descent> {
        Some(Descent { task: self.unless_conflicting(down.task)?, ..down })
    }

    /// All of level 0 or of a free level that may be taken lower, and what it overlaps in the free
    /// levels below and in the base level.
    fn all_above(&self, shape: &Shape, start: usize) -> Option<Descent> {
        let mut chosen: Vec<(usize, &'a TableMeta)> =
            self.movable(start).into_iter().map(|table| (start, table)).collect();
        let are_apart = disjoint(&chosen);
        let below = (start + 1..=shape.base_level).filter(|&level| !self.levels[level].is_empty());
        for level in below {
            let hull = hull_of(&chosen)?;
            chosen.extend(self.levels[level].iter().filter(|table| hull.overlaps(table)).map(|&table| (level, table)));
        }
        let above = chosen.iter().filter(|(level, _)| *level < shape.base_level).map(|(_, table)| table.size).sum();
        let is_alone = chosen.iter().all(|(level, _)| *level == start);
        let is_move = is_alone && are_apart && (shape.base_level < LAST || self.moves_to_last);
        let task = build_task(start, shape.base_level, &chosen, is_move)?;
        Some(self.descent(task, above, chosen))
    }

    /// What `task`, which reads `chosen`, brings down and frees.
    fn descent(&self, task: Task, above: u64, mut chosen: Vec<(usize, &'a TableMeta)>) -> Descent {
        let freed_now = freed(&chosen, self.oldest_snapshot);
        // A tombstone comes closer to what it deletes, too.
        for level in usize::from(task.output_level) + 1..LEVELS {
            chosen.extend(self.overlapping(level, &task.hull).iter().map(|&table| (level, table)));
        }
        Descent { freed: freed(&chosen, self.oldest_snapshot), task, above, freed_now }
    }

    /// All of level 0 into the lowest free level above all that it overlaps; as long as there is one, and enough in level 0.
    fn pick_run_of_free_level(&self, shape: &Shape) -> Option<Task> {
        let inputs = self.movable(0);
        if inputs.iter().map(|table| table.size).sum::<u64>() < self.base_size / MIN_RUN {
            return None;
        }
        let hull = Hull::of(&inputs)?;
        let overlaps = |level: &usize| self.levels[*level].iter().any(|table| hull.overlaps(table));
        let lowest = (1..LEVELS).find(overlaps)?.min(shape.base_level);
        // What is below may be being compacted.
        (1..lowest).rev().find_map(|level| self.task(0, level, &inputs))
    }

    /// Runs of level 0 that lie side by side in age, at least `fewest`, to be merged into one:
    /// those of which each that goes costs least, where the cost counts less the more go at once.
    /// So small ones are merged with their like, and a large one when there are as large ones.
    /// (Tiny runs flushed for ever into a level 0 of eight are written 7 times by this rule, and 21
    /// times if only the cost of each counts.)
    fn pick_runs(&self, fewest: usize) -> Option<Task> {
        let runs = &self.levels[0];
        let windows = (0..runs.len()).flat_map(|start| (start + fewest..=runs.len()).map(move |end| start..end));
        let cost = |window: &Range<usize>| {
            let bytes = runs[window.clone()].iter().fold(0, |sum: u64, run| sum.saturating_add(run.size));
            let gone = window.len() as u64 - 1;
            bytes / (gone * gone)
        };
        let busy: Vec<bool> = runs.iter().map(|run| self.is_busy(0, run)).collect();
        let is_idle = |window: &Range<usize>| !busy[window.clone()].contains(&true);
        // The cheapest one may be in the way of a running task that others do not meet.
        let mut windows: Vec<Range<usize>> = windows.filter(is_idle).collect();
        windows.sort_by_key(cost);
        windows.into_iter().find_map(|window| {
            let inputs: Vec<(usize, &TableMeta)> = runs[window].iter().map(|&run| (0, run)).collect();
            self.unless_conflicting(build_task(0, 0, &inputs, false)?)
        })
    }

    /// What is above the base level, when the store has come to rest, so that reads find few runs. If level 0 is too little for that, what is
    /// below it. If that is too little too, the runs above are merged among themselves.
    fn pick_idle(&self, shape: &Shape) -> Option<Task> {
        if !self.is_idle {
            return None;
        }
        let highest = (1..shape.base_level).find(|&level| !self.levels[level].is_empty());
        let is_much = |bytes: u64| bytes >= self.memtable_size();
        // A single run in level 0 stays there, unless its tombstones free much.
        let is_alone = highest.is_none() && self.idle(0).nth(1).is_none();
        let into_base = [Some(0), highest].into_iter().flatten().filter_map(|start| {
            let down = self.all_above(shape, start)?;
            let is_due = !is_alone || down.freed.saturating_mul(GARBAGE_SHARE_AT_REST) > down.task.bytes;
            let gain = down.above.saturating_add(down.freed);
            (is_due && (is_much(gain) || self.is_mostly_garbage(&down)) && down.is_worth(MAX_COST_AT_REST))
                .then_some(down.task)
        });
        // Should a running task be in the way of what is worth it, that waits: what is merged meanwhile would be written twice.
        let mut into_base = into_base.peekable();
        match into_base.peek() {
            Some(_) => into_base.find_map(|task| self.unless_conflicting(task)),
            None if is_alone => None,
            None => self.unless_conflicting(self.runs_above(shape, is_much)?),
        }
    }

    /// Whether a task frees more than half of what it reads, and not next to nothing. That is worth
    /// it in a keyspace that is smaller than a memtable, too: there may be many of those.
    fn is_mostly_garbage(&self, down: &Descent) -> bool {
        down.freed.saturating_mul(2) > down.task.bytes && down.freed >= self.memtable_size() / LEAST_GARBAGE
    }

    fn memtable_size(&self) -> u64 {
        self.base_size / L0_TRIGGER as u64
    }

    /// The runs above the base level, or the newest of them, to be merged into one: as many as are together worth writing the largest again.
    fn runs_above(&self, shape: &Shape, is_much: impl Fn(u64) -> bool) -> Option<Task> {
        let occupied = |level: &usize| !self.levels[*level].is_empty();
        let lowest_free = (1..shape.base_level).take_while(|level| !occupied(level)).last().unwrap_or(0);
        (0..shape.base_level).rev().filter(occupied).find_map(|last| {
            let of_level_0 = self.levels[0].iter().map(|run| run.size);
            let runs = of_level_0.chain((1..=last).filter(occupied).map(|level| size_of_level(&self.levels[level])));
            let (total, largest) = runs.fold((0, 0), |(total, largest), run| (total + run, run.max(largest)));
            if !is_much(total) || largest > (total - largest).saturating_mul(MAX_LARGEST_AT_REST) {
                return None;
            }
            let newest: Vec<(usize, &TableMeta)> =
                (0..=last).flat_map(|level| self.levels[level].iter().map(move |&table| (level, table))).collect();
            let (start, output) = (newest.first()?.0, if last == 0 { lowest_free } else { last });
            let is_move = start < output && last == 0 && disjoint(&newest);
            build_task(start, output, &newest, is_move)
        })
    }

    /// The table whose compaction into the next level rewrites least for what it moves.
    fn pick_level(&self, level: usize) -> Option<Task> {
        let overlap = |table: &TableMeta| size_of_level(self.overlapping(level + 1, &Hull::of_one(table)));
        let gain = |table: &TableMeta| table.size.saturating_add(self.weight(level, table)).max(1);
        let mut tables: Vec<(u64, &TableMeta)> =
            self.idle(level).map(|table| (overlap(table).saturating_mul(1000) / gain(table), table)).collect();
        tables.sort_by_key(|&(cost, table)| (cost, table.number));
        tables.into_iter().find_map(|(_, table)| self.task(level, level + 1, &[table]))
    }

    /// The tables of a level below level 0 that overlap `hull`.
    fn overlapping(&self, level: usize, hull: &Hull) -> &'a [&'a TableMeta] {
        let tables = &self.levels[level];
        let is_before = |table: &&TableMeta| {
            count_comparison();
            table.largest < hull.smallest
        };
        let from = tables.partition_point(is_before);
        let len = tables[from..].partition_point(|table| hull.overlaps(table));
        &tables[from..from + len]
    }

    /// Bytes that the tombstones of a table of a level below level 0 delete in the levels below
    /// that.
    fn weight(&self, level: usize, table: &TableMeta) -> u64 {
        if !has_garbage(table) || table.largest_seqno > self.oldest_snapshot {
            return 0;
        }
        let (hull, mut chosen) = (Hull::of_one(table), vec![(level, table)]);
        for below in level + 1..LEVELS {
            chosen.extend(self.overlapping(below, &hull).iter().map(|&table| (below, table)));
        }
        let beneath = freed(&chosen[1..], self.oldest_snapshot);
        freed(&chosen, self.oldest_snapshot).saturating_sub(beneath)
    }

    /// Bytes that a task drops.
    fn freed_by(&self, task: &Task) -> u64 {
        let of_level =
            |level: u8| self.levels[usize::from(level)].iter().map(move |&table| (usize::from(level), table));
        let inputs = (task.start_level..=task.output_level).flat_map(of_level);
        let chosen: Vec<_> = inputs.filter(|(level, table)| task.takes(*level, table.number)).collect();
        freed(&chosen, self.oldest_snapshot)
    }

    /// Tables with much garbage: down towards what their tombstones delete or, in the last level,
    /// rewritten without it once no snapshot holds it.
    fn pick_garbage(&self, shape: &Shape) -> Option<Task> {
        let share = if self.is_idle { GARBAGE_SHARE_AT_REST } else { GARBAGE_SHARE };
        let is_much = |freed: u64, task: &Task| freed.saturating_mul(share) > task.bytes;
        // What is above the base level is merged with all that it overlaps, which may be much more.
        // In an idle store, `pick_idle` decides that.
        let above = (0..shape.base_level).filter(|_| !self.is_idle).find_map(|level| {
            self.idle(level).find(|table| table.tombstones > 0)?;
            let down = self.all_above(shape, level)?;
            let is_due = is_much(down.freed, &down.task)
                && down.is_worth(MAX_COST)
                && (down.freed >= self.memtable_size() || self.is_mostly_garbage(&down));
            self.unless_conflicting(is_due.then_some(down.task)?)
        });
        if above.is_some() {
            return above;
        }
        let many = |table: &TableMeta, share: u64| garbage(table).saturating_mul(share) > table.entries;
        let is_due = |level: usize, table: &TableMeta| {
            if level == LAST {
                many(table, share)
            } else {
                self.is_garbage_worth(level, table, many(table, GARBAGE_SHARE))
            }
        };
        let has_free_garbage = |table: &&TableMeta| has_garbage(table) && table.largest_seqno <= self.oldest_snapshot;
        (shape.base_level..LEVELS).find_map(|level| {
            let due = self.idle(level).filter(has_free_garbage).filter(|table| is_due(level, table));
            due.map(|table| self.task(level, LAST.min(level + 1), &[table])).find_map(|task| task)
        })
    }

    /// Whether to take a table with garbage, perhaps with much of it, to the next level: whether
    /// what it brings down and frees is worth what is written.
    fn is_garbage_worth(&self, level: usize, table: &TableMeta, has_much: bool) -> bool {
        let (share, factor) = match self.is_idle {
            // Of mixed sizes, the large ones may have been deleted: a table of hardly anything but
            // tombstones does not stay.
            true if garbage(table).saturating_mul(2) > table.entries => (GARBAGE_SHARE_AT_REST, 2 * MAX_COST_AT_REST),
            true => (GARBAGE_SHARE_AT_REST, MAX_COST_AT_REST),
            false => (GARBAGE_SHARE, MAX_COST),
        };
        let overlapping = size_of_level(self.overlapping(level + 1, &Hull::of_one(table)));
        let (read, weight) = (table.size.saturating_add(overlapping), self.weight(level, table));
        let written = if level + 1 == LAST { read.saturating_sub(weight) } else { read };
        (has_much || weight.saturating_mul(share) > read)
            && written <= table.size.saturating_add(weight).saturating_mul(factor)
    }

    /// The task that compacts `inputs` of `level` into `output`, unless it conflicts with a running one.
    fn task(&self, level: usize, output: usize, inputs: &[&TableMeta]) -> Option<Task> {
        let hull = Hull::of(inputs)?;
        let below = if output > level { self.overlapping(output, &hull) } else { &[] };
        let mut all: Vec<(usize, &TableMeta)> = inputs.iter().map(|&t| (level, t)).collect();
        let is_move = below.is_empty() && output > level && (output < LAST || self.moves_to_last) && disjoint(&all);
        all.extend(below.iter().map(|&table| (output, table)));
        self.unless_conflicting(build_task(level, output, &all, is_move)?)
    }

    fn unless_conflicting(&self, task: Task) -> Option<Task> {
        (!self.running.iter().any(|other| other.conflicts(&task))).then_some(task)
    }

    /// The task that rewrites table `number` in its level and all by itself; nothing is left to do when the table is gone. Whatever
    /// compacts that level or passes it by waits meanwhile if it overlaps, so the table keeps its place among the others.
    pub(crate) fn pick_table(&self, number: u64) -> Requested {
        let with_level = |level: usize| self.levels[level].iter().map(move |&table| (level, table));
        let Some(input) = (0..LEVELS).flat_map(with_level).find(|(_, table)| table.number == number) else {
            return Requested::Done;
        };
        match build_task(input.0, input.0, &[input], false).and_then(|task| self.unless_conflicting(task)) {
            Some(task) => Requested::Task(task),
            None => Requested::Wait,
        }
    }

    /// The task that brings everything that overlaps a range to the last level at once, unless all is there already, without garbage
    /// that could go. An open end is `None`.
    pub(crate) fn pick_range(&self, from: Option<&[u8]>, to: Option<&[u8]>) -> Requested {
        let in_range = |table: &TableMeta| {
            from.is_none_or(|from| *table.largest >= *from) && to.is_none_or(|to| *table.smallest < *to)
        };
        let mut chosen: Vec<(usize, &TableMeta)> = Vec::new();
        // What is brought down must meet nothing older on its way. In level 0 that may be any run it overlaps, which may overlap
        // further ones; below it is whatever lies under what was taken so far. What is newer may stay above.
        for level in 0..LEVELS {
            loop {
                let hull = hull_of(&chosen);
                let taken =
                    |table: &TableMeta| in_range(table) || hull.as_ref().is_some_and(|hull| hull.overlaps(table));
                let known = chosen.len();
                chosen.retain(|&(l, _)| l < level);
                chosen.extend(self.levels[level].iter().filter(|table| taken(table)).map(|&table| (level, table)));
                if level > 0 || chosen.len() == known {
                    break;
                }
            }
        }
        let settled = |&(level, table): &(usize, &TableMeta)| {
            level == LAST && (garbage(table) == 0 || table.largest_seqno > self.oldest_snapshot)
        };
        if chosen.iter().all(settled) {
            return match self.running.is_empty() {
                true => Requested::Done,
                false => Requested::Wait,
            };
        }
        let start = chosen.iter().map(|&(level, _)| level).min().unwrap_or(LAST);
        match build_task(start, LAST, &chosen, false).and_then(|task| self.unless_conflicting(task)) {
            Some(task) => Requested::Task(task),
            None => Requested::Wait,
        }
    }
}

fn hull_of(tables: &[(usize, &TableMeta)]) -> Option<Hull> {
    let tables: Vec<&TableMeta> = tables.iter().map(|&(_, table)| table).collect();
    Hull::of(&tables)
}

/// What a test counts.
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
        hull: hull_of(inputs)?,
        bytes,
        is_move,
    })
}

#[cfg(test)]
mod churn;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
