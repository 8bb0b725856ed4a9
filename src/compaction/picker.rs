//! Decides what to compact: a pure function of the tables' metadata.
//!
//! Leveled, with dynamic sizes (as RocksDB's `level_compaction_dynamic_level_bytes`): the last level's size sets the target of the
//! level above it to a tenth, and so on up to the *base level*, into which level 0 is compacted; the levels between stay empty. A
//! small store has its data in the last level alone.
//!
//! Tasks run in parallel when they cannot meet: two tasks conflict if the levels they span have one in common and their key ranges
//! overlap.

use crate::format::key::SeqNo;
use crate::table::TableMeta;
use crate::version::LEVELS;

/// Runs in level 0 that start a compaction. Every run costs a read a filter probe, and a seek a block.
pub(crate) const L0_TRIGGER: usize = 4;
/// Each level's target is this many times that of the level above it.
const FANOUT: u64 = 10;
/// Level 0 is compacted straight into a level of up to this many times the base size. Below that, a level in between would make
/// every byte be written once more and save less than that.
const BASE_FANOUT: u64 = 8;
/// A table of which this share is garbage is compacted although its level is not too large: one entry in …
const GARBAGE_SHARE: u64 = 4;
const LAST: usize = LEVELS - 1;

/// A closed range of user keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hull {
    pub(crate) smallest: Box<[u8]>,
    pub(crate) largest: Box<[u8]>,
}

impl Hull {
    fn of(tables: &[&TableMeta]) -> Option<Hull> {
        Some(Hull {
            smallest: tables.iter().map(|t| &t.smallest).min()?.clone(),
            largest: tables.iter().map(|t| &t.largest).max()?.clone(),
        })
    }

    pub(crate) fn overlaps(&self, table: &TableMeta) -> bool {
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
}

impl Task {
    pub(crate) fn takes(&self, level: usize, number: u64) -> bool {
        u8::try_from(level).is_ok_and(|level| self.inputs.binary_search(&(level, number)).is_ok())
    }

    fn conflicts(&self, other: &Task) -> bool {
        self.start_level <= other.output_level && other.start_level <= self.output_level && self.hull.meets(&other.hull)
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
    /// The oldest live snapshot; the newest sequence number there can be if there is none.
    pub(crate) oldest_snapshot: SeqNo,
    /// Whether a table may be moved to the last level as it is. It may not if that level is compressed, or if its filters are others,
    /// which matters there because nearly all keys are.
    pub(crate) moves_to_last: bool,
}

/// Target sizes of the levels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The level into which level 0 is compacted.
    pub(crate) base_level: usize,
    /// Bytes; 0 above the base level.
    pub(crate) targets: [u64; LEVELS],
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

impl Picker<'_> {
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

    /// Bytes that have to be compacted until every level is within its target.
    pub(crate) fn debt(&self) -> u64 {
        let shape = self.shape();
        let mut debt = 0;
        if self.levels[0].len() >= L0_TRIGGER {
            debt += size_of_level(&self.levels[0]);
        }
        for level in 1..LAST {
            debt += size_of_level(&self.levels[level]).saturating_sub(shape.targets[level]);
        }
        debt
    }

    /// The most useful compaction that can be started now, and how urgent it is: thousandths of the target of its level.
    pub(crate) fn pick(&self) -> Option<(u64, Task)> {
        let shape = self.shape();
        // Thousandths of the target.
        let mut scores = [0; LAST];
        scores[0] = self.idle(0).count() as u64 * 1000 / L0_TRIGGER as u64;
        for (level, score) in scores.iter_mut().enumerate().skip(1) {
            let size: u64 = self.idle(level).map(|table| table.size).sum();
            *score = match shape.targets[level] {
                // The base level was higher once: what was left behind moves down.
                0 if size > 0 => 1000,
                0 => 0,
                target => u64::try_from(u128::from(size) * 1000 / u128::from(target)).unwrap_or(u64::MAX),
            };
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
        by_size.or_else(|| Some((0, self.pick_garbage(&shape)?)))
    }

    /// Tables of a level that no running task takes.
    fn idle(&self, level: usize) -> impl Iterator<Item = &TableMeta> {
        self.levels[level]
            .iter()
            .copied()
            .filter(move |table| !self.running.iter().any(|task| task.takes(level, table.number)))
    }

    /// All of level 0 into the base level, or into a higher one that still holds something.
    fn pick_l0(&self, shape: &Shape) -> Option<Task> {
        let occupied = (1..shape.base_level).find(|&level| !self.levels[level].is_empty());
        let inputs: Vec<&TableMeta> = self.idle(0).collect();
        self.task(0, occupied.unwrap_or(shape.base_level), &inputs)
    }

    /// The table whose compaction into the next level rewrites least for what it moves.
    fn pick_level(&self, level: usize) -> Option<Task> {
        let overlap = |table: &TableMeta| -> u64 {
            let (smallest, largest) = (&table.smallest, &table.largest);
            let below = &self.levels[level + 1];
            let from = below.partition_point(|t| t.largest < *smallest);
            below[from..].iter().take_while(|t| t.smallest <= *largest).map(|t| t.size).sum()
        };
        let mut tables: Vec<(u64, &TableMeta)> =
            self.idle(level).map(|table| (overlap(table).saturating_mul(1000) / table.size.max(1), table)).collect();
        tables.sort_by_key(|&(cost, table)| (cost, table.number));
        tables.into_iter().find_map(|(_, table)| self.task(level, level + 1, &[table]))
    }

    /// A table with much garbage: down towards what its tombstones delete, or, in the last level, rewritten without it once no
    /// snapshot holds it.
    fn pick_garbage(&self, shape: &Shape) -> Option<Task> {
        let many = |table: &&TableMeta| garbage(table).saturating_mul(GARBAGE_SHARE) > table.entries;
        // Level 0 is merged with all that it overlaps; for a little of it that would be to rewrite much.
        let small = |task: &Task| task.bytes <= size_of_level(&self.levels[0]).saturating_mul(BASE_FANOUT);
        if let Some(task) = self.idle(0).find(many).and_then(|_| self.pick_l0(shape)).filter(small) {
            return Some(task);
        }
        (1..LEVELS).find_map(|level| {
            self.idle(level).filter(many).find_map(|table| {
                if level < LAST {
                    self.task(level, level + 1, &[table])
                } else if table.largest_seqno <= self.oldest_snapshot {
                    self.task(LAST, LAST, &[table])
                } else {
                    None
                }
            })
        })
    }

    /// The task that compacts `inputs` of `level` into `output`, unless it conflicts with a running one.
    fn task(&self, level: usize, output: usize, inputs: &[&TableMeta]) -> Option<Task> {
        let hull = Hull::of(inputs)?;
        let below: Vec<&TableMeta> = if output > level {
            self.levels[output].iter().copied().filter(|table| hull.overlaps(table)).collect()
        } else {
            Vec::new()
        };
        let is_move = below.is_empty() && output > level && (output < LAST || self.moves_to_last) && disjoint(inputs);
        let all: Vec<(usize, &TableMeta)> =
            inputs.iter().map(|&t| (level, t)).chain(below.iter().map(|&t| (output, t))).collect();
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

/// Entries that say nothing once everything older is in the same table: tombstones and older versions.
fn garbage(table: &TableMeta) -> u64 {
    table.tombstones + (table.entries - table.keys)
}

fn hull_of(tables: &[(usize, &TableMeta)]) -> Option<Hull> {
    let tables: Vec<&TableMeta> = tables.iter().map(|&(_, table)| table).collect();
    Hull::of(&tables)
}

fn size_of_level(tables: &[&TableMeta]) -> u64 {
    tables.iter().map(|table| table.size).sum()
}

fn disjoint(tables: &[&TableMeta]) -> bool {
    let mut sorted = tables.to_vec();
    sorted.sort_by(|a, b| a.smallest.cmp(&b.smallest));
    sorted.is_sorted_by(|a, b| a.largest < b.smallest)
}

#[expect(clippy::cast_possible_truncation, reason = "there are LEVELS levels")]
fn build_task(start: usize, output: usize, inputs: &[(usize, &TableMeta)], is_move: bool) -> Option<Task> {
    let bytes = inputs.iter().map(|(_, table)| table.size).sum();
    let mut numbers: Vec<(u8, u64)> = inputs.iter().map(|&(level, table)| (level as u8, table.number)).collect();
    numbers.sort_unstable();
    Some(Task {
        start_level: start as u8,
        output_level: output as u8,
        inputs: numbers,
        hull: hull_of(inputs)?,
        bytes,
        is_move,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A table "number smallest largest size-in-MiB tombstones" of 100 entries.
    fn table(line: &str) -> TableMeta {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number: u64 = words[0].parse().unwrap();
        TableMeta {
            number,
            size: words[3].parse::<u64>().unwrap() * MIB,
            checksum: 0,
            entries: 100,
            keys: 100,
            tombstones: words.get(4).map_or(0, |w| w.parse().unwrap()),
            smallest_seqno: number * 100,
            largest_seqno: number * 100 + 99,
            smallest: words[1].as_bytes().into(),
            largest: words[2].as_bytes().into(),
        }
    }

    /// The tree in `levels` ("level: number smallest largest size [tombstones]", newest first in level 0).
    fn with_picker<R>(
        levels: &[&str],
        oldest_snapshot: SeqNo,
        running: &[Task],
        check: impl FnOnce(Picker<'_>) -> R,
    ) -> R {
        let tables: Vec<(usize, TableMeta)> = levels
            .iter()
            .map(|line| {
                let (level, rest) = line.split_once(':').unwrap();
                (level.parse().unwrap(), table(rest))
            })
            .collect();
        let levels: [Vec<&TableMeta>; LEVELS] =
            std::array::from_fn(|level| tables.iter().filter(|(l, _)| *l == level).map(|(_, t)| t).collect());
        check(Picker { levels: &levels, running, base_size: 64 * MIB, oldest_snapshot, moves_to_last: true })
    }

    /// The task as "start->output [move]: inputs".
    fn picked(levels: &[&str], running: &[Task]) -> String {
        with_picker(levels, SeqNo::MAX, running, |picker| {
            picker.pick().map_or("nothing".into(), |(_, task)| words(&task))
        })
    }

    fn words(task: &Task) -> String {
        let inputs: Vec<String> = task.inputs.iter().map(|(level, number)| format!("{level}/{number}")).collect();
        let how = if task.is_move { " move" } else { "" };
        format!("{}->{}{how}: {}", task.start_level, task.output_level, inputs.join(" "))
    }

    #[test]
    fn a_small_store_compacts_level_0_into_the_last_level() {
        let l0 = ["0:4 a z 16", "0:3 a z 16", "0:2 a z 16"];
        assert_eq!(picked(&l0, &[]), "nothing");
        let l0 = ["0:4 a z 16", "0:3 a z 16", "0:2 a z 16", "0:1 a m 16", "6:9 b c 100", "6:8 zz zzz 100"];
        assert_eq!(picked(&l0, &[]), "0->6: 0/1 0/2 0/3 0/4 6/9");
    }

    #[test]
    fn disjoint_runs_are_moved() {
        let l0 = ["0:4 g h 16", "0:3 e f 16", "0:2 c d 16", "0:1 a b 16", "6:9 i j 100"];
        assert_eq!(picked(&l0, &[]), "0->6 move: 0/1 0/2 0/3 0/4");
    }

    #[test]
    fn a_large_last_level_gets_a_level_above_it() {
        let shape = |size: u64| with_picker(&[&format!("6:1 a z {size}")], 0, &[], |p| p.shape());
        assert_eq!(shape(500).base_level, 6);
        assert_eq!(shape(5_000).base_level, 5);
        assert_eq!(shape(5_000).targets[5], 500 * MIB);
        assert_eq!(shape(500_000).base_level, 3);
        assert_eq!(shape(10 << 20).base_level, 1, "10 TiB");
    }

    #[test]
    fn level_that_is_too_large_gives_up_the_table_with_the_least_overlap() {
        let tree = ["5:1 a c 400", "5:2 d f 400", "6:3 a b 3000", "6:4 c d 2000", "6:5 g z 1"];
        assert_eq!(picked(&tree, &[]), "5->6: 5/2 6/4");
    }

    #[test]
    fn a_task_that_would_meet_a_running_one_waits() {
        let tree = ["0:4 a c 16", "0:3 a c 16", "0:2 a c 16", "0:1 a c 16"];
        let running = Task {
            start_level: 5,
            output_level: 6,
            inputs: vec![(5, 77)],
            hull: Hull { smallest: (*b"b").into(), largest: (*b"x").into() },
            bytes: 1,
            is_move: false,
        };
        assert_eq!(picked(&tree, std::slice::from_ref(&running)), "nothing");
        let elsewhere = Task { hull: Hull { smallest: (*b"d").into(), largest: (*b"x").into() }, ..running };
        assert_eq!(picked(&tree, &[elsewhere]), "0->6: 0/1 0/2 0/3 0/4");
    }

    #[test]
    fn a_table_is_rewritten_in_its_place_and_nothing_passes_it_by() {
        let tree = ["0:9 m z 16", "0:4 a c 16", "0:3 a c 16", "0:2 a c 16", "0:1 b d 16", "5:7 a b 16", "6:8 a c 16"];
        let pick = |number: u64, running: &[Task]| {
            with_picker(&tree, SeqNo::MAX, running, |picker| match picker.pick_table(number) {
                Requested::Task(task) => words(&task),
                other => format!("{other:?}"),
            })
        };
        let task = |number: u64| {
            with_picker(&tree, SeqNo::MAX, &[], |picker| match picker.pick_table(number) {
                Requested::Task(task) => task,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(pick(1, &[]), "0->0: 0/1");
        assert_eq!(pick(7, &[]), "5->5: 5/7");
        assert_eq!(pick(77, &[]), "Done", "it is gone");
        // The newer runs would come below the oldest one, which they overlap.
        assert_eq!(picked(&tree, &[task(1)]), "nothing");
        assert_eq!(picked(&tree, &[task(7)]), "nothing");
        assert_eq!(picked(&tree, &[]), "0->5: 0/1 0/2 0/3 0/4 0/9 5/7");
        let compaction = with_picker(&tree, SeqNo::MAX, &[], |picker| picker.pick().unwrap().1);
        assert_eq!(pick(1, std::slice::from_ref(&compaction)), "Wait");
        assert_eq!(pick(8, &[compaction]), "6->6: 6/8");
        assert_eq!(pick(8, &[task(7)]), "6->6: 6/8", "they are on different levels");
        assert_eq!(pick(4, &[task(1)]), "Wait");
    }

    #[test]
    fn tombstones_move_down_and_vanish_in_the_last_level() {
        assert_eq!(picked(&["0:1 a c 16 60", "6:2 b d 16"], &[]), "0->6: 0/1 6/2");
        assert_eq!(picked(&["0:1 a c 16 60", "6:2 b d 160"], &[]), "nothing", "too much would be rewritten");
        assert_eq!(picked(&["5:1 a c 16 60", "6:2 d e 3000"], &[]), "5->6 move: 5/1");
        assert_eq!(picked(&["6:1 a c 16 60"], &[]), "6->6: 6/1");
        with_picker(&["6:1 a c 16 60"], 150, &[], |picker| {
            assert_eq!(picker.pick(), None, "a snapshot still sees what the tombstones hide");
        });
    }

    #[test]
    fn what_is_left_above_the_base_level_moves_down() {
        assert_eq!(picked(&["3:1 a c 1", "6:2 a c 10"], &[]), "3->4 move: 3/1");
        let l0 = ["0:5 a c 1", "0:4 a c 1", "0:3 a c 1", "0:2 a c 1", "3:1 b d 1", "6:9 a c 10"];
        let picked = picked(&l0, &[]);
        assert!(picked == "0->3: 0/2 0/3 0/4 0/5 3/1" || picked == "3->4 move: 3/1", "{picked}");
    }

    #[test]
    fn a_range_takes_everything_that_overlaps_it_and_what_that_overlaps() {
        let tree = ["0:4 a c 1", "0:3 c f 1", "5:2 e h 1", "6:1 a b 1", "6:9 x z 1"];
        let pick = |from: &[u8], to: &[u8]| {
            with_picker(&tree, SeqNo::MAX, &[], |picker| match picker.pick_range(Some(from), Some(to)) {
                Requested::Task(task) => words(&task),
                other => format!("{other:?}"),
            })
        };
        assert_eq!(pick(b"a", b"b"), "0->6: 0/3 0/4 5/2 6/1");
        assert_eq!(pick(b"g", b"h"), "5->6: 5/2", "newer runs stay above");
        assert_eq!(pick(b"x", b"y"), "Done");
        assert_eq!(pick(b"i", b"k"), "Done");
    }
}
