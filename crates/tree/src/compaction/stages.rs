//! Cuts a task into stages: pure functions of the tables' metadata.
//!
//! A large task runs in *stages*, consecutive ranges of keys. When a stage ends, its output
//! replaces the tables of the output level that it read, and their disk space is freed. Therefore a
//! task needs the space of one stage and of its inputs in level 0, not that of all its inputs.
//!
//! An input above the output level stays as long as a later stage reads it. Until then its
//! rewritten entries exist twice, and its older versions remain; if the task is interrupted, they
//! do so until it goes on. This changes no answer, because an entry that hides an older version
//! stays as long as that version does. The manifest notes where it goes on after a close or a kill
//! (`manifest::unfinished`); after a failure, a later compaction begins with the first key again.
//!
//! Tables have no bounds: the manifest never leaves a table less than its file holds. In a
//! prototype, a stage cut its inputs at its end, so that no entry was there twice. It saved 26
//! lines and cost a get 0.6 % and a seek 0.5 % of their instructions, for a pointer from a
//! table to the file that it shares. But only the manifest knows a bound. Without it, or when a
//! cut table was damaged, a repair brought back deleted keys (43 of 49 interrupted compactions;
//! none today), because the tombstone's table had gone while the file still held the value.

use std::collections::HashSet;

use super::task::Task;
use crate::format::span::KeySpan;
use crate::sorted::table::TableMeta;
use crate::version::LevelMetas;

/// A stage reads at least about this many times a table's size. Between stages the threads wait for
/// each other, for about as long as one of them takes for half a table.
const TABLES_PER_STAGE: u64 = 16;

/// The keys that separate the stages of `task`, ascending. Each is the first key of an output-level
/// table, so that one stage reads all of a table.
pub fn bounds(task: &Task, levels: &LevelMetas<'_>, table_size: u64) -> Vec<Vec<u8>> {
    // A run of level 0 is one table.
    if task.output_level == 0 {
        return Vec::new();
    }
    let output: Vec<&TableMeta> = inputs(task, levels, task.output_level).collect();
    let output_bytes: u64 = output.iter().map(|table| table.size).sum();
    // The share of the output level in a stage, if the other inputs are spread like it.
    let stage = u128::from(table_size) * u128::from(TABLES_PER_STAGE);
    let stage = stage * u128::from(output_bytes) / u128::from(task.bytes.max(1));
    let (mut ends, mut size) = (Vec::new(), 0);
    for pair in output.windows(2) {
        size += u128::from(pair[0].size);
        if size >= stage {
            ends.push(pair[1].smallest.to_vec());
            size = 0;
        }
    }
    ends
}

/// The inputs of `task`, with their levels, that may be removed once everything before `end` has
/// been rewritten. `None` stands for the end of the key space.
///
/// An input is removed if it ends before `end` and overlaps no older input that stays. Otherwise it
/// may hide a version in that older input, which the output, at a lower level, would not hide.
pub fn finished_inputs<'a>(task: &Task, levels: &LevelMetas<'a>, end: Option<&'a [u8]>) -> Vec<(u8, &'a TableMeta)> {
    let (mut end, mut removable) = (end, Vec::new());
    for level in (task.start_level..=task.output_level).rev() {
        // In level 0, the oldest first.
        for table in inputs(task, levels, level).rev() {
            if end.is_none_or(|end| *table.largest < *end) {
                removable.push((level, table));
            } else {
                end = end.map(|end| end.min(&table.smallest));
            }
        }
    }
    removable
}

/// Disk space needed before a stage of `task` begins: what the stage may write before it frees
/// anything, with the values of files that are `leaving`, and all of level 0, which is freed last.
pub fn space_needed(task: &Task, levels: &LevelMetas<'_>, stage: KeySpan<&[u8]>, leaving: &HashSet<u64>) -> u64 {
    let moved = |table: &TableMeta| {
        let leaving = table.references.iter().filter(|reference| leaving.contains(&reference.file));
        leaving.map(|reference| reference.bytes).sum::<u64>()
    };
    let read = |level: u8| inputs(task, levels, level).filter(move |table| level == 0 || table.overlaps(&stage));
    (task.start_level..=task.output_level).flat_map(read).map(|table| table.size + moved(table)).sum()
}

/// The inputs of `task` in a level, in the level's order.
fn inputs<'a, 'l>(
    task: &'l Task,
    levels: &'l LevelMetas<'a>,
    level: u8,
) -> impl DoubleEndedIterator<Item = &'a TableMeta> + 'l {
    let level = usize::from(level);
    levels[level].iter().copied().filter(move |table| task.takes(level, table.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables given as level, number, smallest and largest key of one byte each, with a size of 10.
    /// All are inputs.
    fn with_task<R>(tables: &[(u8, u64, char, char)], check: impl FnOnce(&Task, &LevelMetas<'_>) -> R) -> R {
        let key = |c: char| -> Box<[u8]> { c.to_string().into_bytes().into() };
        let meta = |&(_, number, smallest, largest): &(u8, u64, char, char)| TableMeta {
            number,
            size: 10,
            checksum: 0,
            entries: 1,
            keys: 1,
            tombstones: 0,
            deadlines: Default::default(),
            references: Default::default(),
            smallest_seqno: 1,
            largest_seqno: 1,
            cleared: 0,
            ingested: None,
            range_end: None,
            kept: 0,
            smallest: key(smallest),
            largest: key(largest),
        };
        let metas: Vec<(u8, TableMeta)> = tables.iter().map(|table| (table.0, meta(table))).collect();
        let mut inputs: Vec<(u8, u64)> = tables.iter().map(|&(level, number, ..)| (level, number)).collect();
        inputs.sort_unstable();
        let task = Task {
            start_level: inputs[0].0,
            output_level: 6,
            inputs,
            keys: KeySpan::closed(&key('a'), &key('z')),
            bytes: 10 * tables.len() as u64,
            is_move: false,
            is_drop: false,
            reason: Default::default(),
            resumes: None,
            runs: (1, 1),
        };
        let level =
            |level: usize| metas.iter().filter(|(l, _)| usize::from(*l) == level).map(|(_, meta)| meta).collect();
        check(&task, &std::array::from_fn(level))
    }

    #[test]
    fn stages_end_between_tables_of_the_output_level() {
        let tables: Vec<(u8, u64, char, char)> =
            ('a'..='t').zip(1..).map(|(key, number)| (6, number, key, key)).collect();
        let ends = |tables: &[(u8, u64, char, char)], table_size: u64| {
            with_task(tables, |task, levels| {
                let ends = bounds(task, levels, table_size);
                ends.into_iter().map(|end| String::from_utf8(end).unwrap()).collect::<String>()
            })
        };
        // Twenty tables of 10 bytes. A stage has 16 times the table size.
        assert_eq!(ends(&tables, 10), "q");
        assert_eq!(ends(&tables, 5), "iq");
        assert_eq!(ends(&tables, 20), "");
        // Twenty more tables above them.
        let above = ('a'..='t').zip(101..).map(|(key, number)| (5, number, key, key));
        assert_eq!(ends(&above.chain(tables).collect::<Vec<_>>(), 10), "iq");
        assert_eq!(ends(&[(0, 2, 'a', 'z'), (0, 1, 'a', 'z')], 1), "", "there is nothing to be replaced");
    }

    #[test]
    fn what_hides_an_older_input_stays_with_it() {
        let tables = [
            (0, 9, 'a', 'c'),
            (0, 8, 'e', 'f'),
            (0, 7, 'd', 'z'),
            (4, 6, 'a', 'b'),
            (4, 5, 'c', 'k'),
            (5, 4, 'a', 'c'),
            (5, 3, 'd', 'm'),
            (6, 2, 'a', 'f'),
            (6, 1, 'g', 'z'),
        ];
        with_task(&tables, |task, levels| {
            let removable = |end: Option<&'static str>| {
                let end = end.map(str::as_bytes);
                let mut removable: Vec<u64> =
                    finished_inputs(task, levels, end).iter().map(|(_, table)| table.number).collect();
                removable.sort_unstable();
                removable
            };
            // Table 3 stays, and with it table 5, which overlaps it, and tables 9 and 7, which
            // overlap table 5. Table 8 overlaps table 7.
            assert_eq!(removable(Some("g")), [2, 4, 6]);
            assert_eq!(removable(None), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
            assert!(removable(Some("a")).is_empty());
            let space = |from: Option<&str>, to: Option<&str>| {
                space_needed(
                    task,
                    levels,
                    KeySpan { lower: from.map(str::as_bytes), upper: to.map(str::as_bytes) },
                    &HashSet::new(),
                )
            };
            // Level 0 and tables 6, 5, 4, 3 and 2; level 0 and tables 5, 3 and 1.
            assert_eq!((space(None, Some("g")), space(Some("g"), None), space(None, None)), (80, 60, 90));
        });
        with_task(&[(0, 9, 'a', 'c'), (5, 3, 'd', 'm'), (6, 2, 'a', 'f')], |task, levels| {
            let removable: Vec<u64> =
                finished_inputs(task, levels, Some(b"g")).iter().map(|(_, table)| table.number).collect();
            assert_eq!(removable, [2, 9], "it hides nothing of table 3");
        });
    }
}
