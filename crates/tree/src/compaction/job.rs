//! Carries out a compaction: merges the input tables into new ones. A [stage](super::stages) of the
//! task is cut into parts, which several threads merge at once.

use std::sync::Arc;

use super::output::{LowerLevels, OutputContext, Written, write_run};
use super::task::Task;
use crate::error::Result;
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::sorted::merge::MergingCursor;
use crate::sorted::table::{Input, Table, TableMeta};
use crate::version::{Level, RunCursor, ScanSource, Version};

/// A table of the output level may overlap this many times its own size in the level below, so that
/// its own compaction stays small (LevelDB's limit, `MaxGrandParentOverlapBytes`).
const MAX_OVERLAP_BELOW: u64 = 10;

/// A part of a large task reads this much of a table's size, in eighths, so that it writes one
/// table. The parts do not depend on the number of threads.
const EIGHTHS_PER_PART: u64 = 7;
const MAX_PARTS: usize = 256;
/// Key samples per part.
const SAMPLES_PER_PART: usize = 16;

/// The keys that separate the parts of a stage of `task`, ascending. All versions of a key are in
/// one part.
pub fn bounds(task: &Task, version: &Version, stage: KeySpan<&[u8]>, table_size: u64) -> Result<Vec<Vec<u8>>> {
    let part_size = (table_size / 8 * EIGHTHS_PER_PART).max(1);
    // A run of level 0 is one table.
    if task.bytes <= part_size || task.output_level == 0 {
        return Ok(Vec::new());
    }
    let mut samples = Vec::new();
    let takes = |(level, table): &(usize, &Arc<Table>)| task.takes(*level, table.meta().number);
    for (_, table) in version.tables().filter(takes).filter(|(_, table)| table.meta().overlaps(&stage)) {
        table.sample_keys(part_size / SAMPLES_PER_PART as u64, &mut samples)?;
    }
    samples
        .retain(|key| stage.lower.is_none_or(|lower| **key > *lower) && stage.upper.is_none_or(|upper| **key < *upper));
    samples.sort_unstable();
    let parts = samples.len().div_ceil(SAMPLES_PER_PART).clamp(1, MAX_PARTS);
    let every = samples.len().div_ceil(parts).max(1);
    let mut bounds: Vec<Vec<u8>> = samples.into_iter().skip(every).step_by(every).collect();
    bounds.dedup();
    Ok(bounds)
}

/// Merges the entries in `part` of the inputs of `task`, taken from `version`. Returns what it has
/// written, or `None` if it was abandoned.
pub fn run(
    task: &Task,
    version: &Version,
    part: KeySpan<&[u8]>,
    context: &OutputContext<'_>,
) -> Result<Option<Written>> {
    let mut sources = Vec::new();
    for (number, level) in version.levels().iter().enumerate() {
        let tables: Vec<Arc<Table>> =
            level.tables().iter().filter(|table| task.takes(number, table.meta().number)).cloned().collect();
        if number == 0 {
            let runs = tables.into_iter().map(|table| RunCursor::for_compaction(vec![table]));
            sources.extend(runs.map(ScanSource::Run));
        } else if !tables.is_empty() {
            sources.push(ScanSource::Run(RunCursor::for_compaction(tables)));
        }
    }
    let mut cursor = MergingCursor::new(sources);
    let mut below = TablesBelow::new(task, version, context.table_size);
    if context.hook.is_set() {
        below.above = staying(task, version, &context.origin.inputs);
    }
    write_run(&mut cursor, part, context, &mut below)
}

/// The tables from level 0 to the output level that a task does not replace, level by level, and
/// run by run in level 0. Runs older than the inputs are below the output.
fn staying<'a>(task: &Task, version: &'a Version, inputs: &[Input]) -> Vec<LevelBelow<'a>> {
    let is_replaced = |number: u64| inputs.iter().any(|input| input.is_replaced && input.number == number);
    let runs = version.levels()[0].tables();
    let newer = match task.output_level {
        0 => runs.iter().rposition(|run| task.takes(0, run.meta().number)).unwrap_or(0),
        _ => runs.len(),
    };
    let sorted = &version.levels()[1..=usize::from(task.output_level)];
    let levels = runs[..newer].chunks(1).chain(sorted.iter().map(Level::tables));
    let overlapping = |table: &&TableMeta| !is_replaced(table.number) && table.overlaps(&task.keys);
    levels
        .map(|tables| LevelBelow {
            tables: tables.iter().map(|table| table.meta()).filter(overlapping).collect(),
            at: 0,
        })
        .collect()
}

/// The tables below the output that overlap the task's key range.
struct TablesBelow<'a> {
    /// Whether the output stays in level 0: it is one table and keeps every tombstone.
    is_run: bool,
    /// Older runs of level 0 count as a level each.
    levels: Vec<LevelBelow<'a>>,
    /// See [`staying`]; empty unless there is a compaction filter.
    above: Vec<LevelBelow<'a>>,
    /// The next level after the output, for the limit on overlap.
    next: LevelBelow<'a>,
    overlapped: u64,
    max_overlapped: u64,
}

struct LevelBelow<'a> {
    tables: Vec<&'a TableMeta>,
    /// The first table that does not end before the last key passed to `advance`.
    at: usize,
}

impl LevelBelow<'_> {
    /// Moves to the first table that does not end before `key`; returns the bytes of the tables
    /// passed.
    fn advance(&mut self, key: &[u8]) -> u64 {
        let mut passed = 0;
        while let Some(table) = self.tables.get(self.at)
            && *table.largest < *key
        {
            passed += table.size;
            self.at += 1;
        }
        passed
    }
}

impl<'a> TablesBelow<'a> {
    fn new(task: &Task, version: &'a Version, table_size: u64) -> TablesBelow<'a> {
        let overlapping = |tables: &'a [Arc<Table>]| LevelBelow {
            tables: tables.iter().map(|table| table.meta()).filter(|meta| meta.overlaps(&task.keys)).collect(),
            at: 0,
        };
        let level = |number: usize| overlapping(version.levels().get(number).map_or(&[], Level::tables));
        let output = usize::from(task.output_level);
        let is_run = output == 0;
        let runs = version.levels()[0].tables();
        let last_input = runs.iter().rposition(|run| task.takes(0, run.meta().number)).map_or(runs.len(), |at| at + 1);
        let older_runs = runs[last_input..].chunks(1).map(overlapping).filter(|_| is_run);
        TablesBelow {
            is_run,
            above: Vec::new(),
            levels: older_runs.chain((output + 1..version.levels().len()).map(level)).collect(),
            next: level(output + 1),
            overlapped: 0,
            max_overlapped: table_size.saturating_mul(MAX_OVERLAP_BELOW),
        }
    }
}

impl LowerLevels for TablesBelow<'_> {
    fn may_hold(&mut self, key: &[u8]) -> bool {
        self.is_run || self.may_hold_since(key, 0)
    }

    fn may_hold_since(&mut self, key: &[u8], seqno: SeqNo) -> bool {
        self.levels.iter_mut().any(|level| {
            level.advance(key);
            level.tables.get(level.at).is_some_and(|table| *table.smallest <= *key && table.largest_seqno >= seqno)
        })
    }

    fn may_stay_above(&mut self, key: &[u8], seqno: SeqNo) -> bool {
        self.above.iter_mut().any(|level| {
            level.advance(key);
            level.tables.get(level.at).is_some_and(|table| *table.smallest <= *key && table.smallest_seqno <= seqno)
        })
    }

    fn cut_before(&mut self, key: &[u8]) -> bool {
        if self.is_run {
            return false;
        }
        self.overlapped += self.next.advance(key);
        self.overlapped > self.max_overlapped
    }

    fn table_ended(&mut self) {
        self.overlapped = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::*;
    use crate::compaction::{Turn, ValuePolicy};
    use crate::format::key::{SeqNo, ValueKind};
    use crate::options::{Compression, KeyspaceOptions};
    use crate::report::stats::ReadStats;
    use crate::sorted::files::WRITE_LEN;
    use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
    use crate::sorted::operator::CompactionHook;
    use crate::sorted::table::{Origin, TableBuilder, TableContext, TableFilters, TableOptions};
    use crate::vfs::{FileSystem, SimFileSystem};

    /// A level of tables with these smallest and largest keys.
    fn level(ranges: &[(&str, &str)]) -> Vec<TableMeta> {
        let meta = |(number, (smallest, largest)): (u64, &(&str, &str))| TableMeta {
            number,
            size: 100,
            checksum: 0,
            entries: 2,
            keys: 2,
            tombstones: 0,
            deadlines: Default::default(),
            references: Default::default(),
            smallest_seqno: 1,
            largest_seqno: 2,
            cleared: 0,
            ingested: None,
            range_end: None,
            kept: 0,
            smallest: smallest.as_bytes().into(),
            largest: largest.as_bytes().into(),
        };
        (1..).zip(ranges).map(meta).collect()
    }

    fn below(levels: &[Vec<TableMeta>]) -> TablesBelow<'_> {
        TablesBelow {
            is_run: false,
            above: Vec::new(),
            levels: levels.iter().map(|metas| LevelBelow { tables: metas.iter().collect(), at: 0 }).collect(),
            next: LevelBelow { tables: Vec::new(), at: 0 },
            overlapped: 0,
            max_overlapped: u64::MAX,
        }
    }

    #[test]
    fn a_level_below_may_hold_the_keys_in_the_ranges_of_its_tables_and_no_others() {
        let levels =
            [level(&[("b", "b"), ("d", "dm"), ("dn", "e")]), level(&[]), level(&[("a", "aa"), ("e", "f"), ("x", "y")])];
        let letters = || ('a'..='z').map(String::from);
        let mut keys: Vec<String> =
            letters().chain(letters().flat_map(|a| letters().map(move |b| a.clone() + &b))).collect();
        keys.extend([String::new(), "dm\0".to_owned()]);
        keys.sort_unstable();
        // Every key, or only some: the cursor skips the keys in between.
        for step in [1, 2, 3, 7, 100, 300] {
            for first in 0..step.min(keys.len()) {
                let mut below = below(&levels);
                for key in keys.iter().skip(first).step_by(step) {
                    let key = key.as_bytes();
                    let held = |meta: &TableMeta| *meta.smallest <= *key && *key <= *meta.largest;
                    let expected = levels.iter().flatten().any(held);
                    assert_eq!(below.may_hold(key), expected, "{:?}", key.escape_ascii().to_string());
                    // Again, as for another version of the key.
                    assert_eq!(below.may_hold(key), expected);
                }
            }
        }
    }

    #[test]
    fn a_table_is_cut_when_it_overlaps_more_than_it_may_and_the_next_one_counts_anew() {
        // Tables of 100 bytes that end with b, d, f and so on.
        let level = level(&[("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"), ("i", "j"), ("k", "l"), ("m", "n")]);
        let next = LevelBelow { tables: level.iter().collect(), at: 0 };
        let mut below = TablesBelow {
            is_run: false,
            above: Vec::new(),
            levels: Vec::new(),
            next,
            overlapped: 0,
            max_overlapped: 200,
        };
        let mut cut = |key: &str| below.cut_before(key.as_bytes());
        // A table is passed when a key is behind its end.
        assert_eq!(["a", "b", "c", "d", "e", "f"].map(&mut cut), [false; 6]);
        assert!(cut("g") && cut("g"), "three tables");
        below.table_ended();
        let mut cut = |key: &str| below.cut_before(key.as_bytes());
        assert_eq!(
            ["g", "h", "i", "j", "k", "l", "m", "z"].map(&mut cut),
            [false, false, false, false, false, false, true, true]
        );
    }

    #[test]
    fn every_level_below_the_output_counts_where_it_overlaps_the_task() {
        let context = Arc::new(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8));
        let table = |key: &str| {
            let meta = level(&[(key, key)]).remove(0);
            Arc::new(Table::new(Arc::clone(&context), meta))
        };
        // One table in each level, of the key with its number; another one out of the task's range.
        let keys = ["l0", "l1", "l2", "l3", "l4", "l5", "l6"];
        let tables = (0..).zip(keys).map(|(number, key)| (number, table(key)));
        let version = Version::default().edited(&[], tables.chain([(6, table("z"))]).collect());
        for output in 1..7 {
            let task = Task {
                start_level: 0,
                output_level: output,
                inputs: vec![(0, 1)],
                keys: KeySpan::closed(b"a", b"m"),
                bytes: 100,
                is_move: false,
                is_drop: false,
                reason: Default::default(),
                resumes: None,
                runs: (1, 2),
            };
            let mut below = TablesBelow::new(&task, &version, 1);
            let held = keys.map(|key| below.may_hold(key.as_bytes()));
            assert_eq!(held, std::array::from_fn(|level| level > usize::from(output)), "{output}");
            assert!(!below.may_hold(b"z"));
            let next: Vec<&[u8]> = below.next.tables.iter().map(|meta| &*meta.smallest).collect();
            let expected: Vec<&[u8]> =
                keys.iter().skip(usize::from(output) + 1).take(1).map(|key| key.as_bytes()).collect();
            assert_eq!(next, expected);
        }
    }

    const OPTIONS: TableOptions = TableOptions {
        filters: TableFilters::NONE,
        compression: Compression::None,
        block_size: 256,
        seed: 0,
        keyspace: 0,
    };

    fn number_key(i: u64) -> Vec<u8> {
        format!("{i:06}").into_bytes()
    }

    /// Two levels of two tables each, of 8000 keys in all, and the task that merges them.
    fn two_levels() -> (Version, Task) {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/db")).unwrap();
        let context = Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), 0, 8));
        let options = OPTIONS;
        let tables: [(u8, u64, std::ops::Range<u64>); 4] =
            [(5, 1, 0..4000), (5, 2, 4000..8000), (6, 3, 0..4000), (6, 4, 4000..8000)];
        let tables = tables.map(|(level, number, keys)| {
            let mut builder = TableBuilder::new(context.fs(), context.dir(), number, options).unwrap();
            for key in keys.filter(|key| key % 2 == u64::from(level) % 2) {
                builder.add(&number_key(key), number, ValueKind::Put, &[7; 100]).unwrap();
            }
            (level, Arc::new(Table::new(Arc::clone(&context), builder.finish().unwrap())))
        });
        let task = Task {
            start_level: 5,
            output_level: 6,
            inputs: vec![(5, 1), (5, 2), (6, 3), (6, 4)],
            keys: KeySpan::closed(&number_key(0), &number_key(7999)),
            bytes: tables.iter().map(|(_, table)| table.meta().size).sum(),
            is_move: false,
            is_drop: false,
            reason: Default::default(),
            resumes: None,
            runs: (0, 0),
        };
        (Version::default().edited(&[], Vec::from(tables)), task)
    }

    /// Number of keys in each part.
    fn parts(task: &Task, version: &Version, stage: KeySpan<&[u8]>, table_size: u64) -> Vec<u64> {
        let bounds = bounds(task, version, stage, table_size).unwrap();
        let number = |key: &[u8]| std::str::from_utf8(key).unwrap().parse::<u64>().unwrap();
        let (first, last) = (stage.lower.map_or(0, number), stage.upper.map_or(8000, number));
        // A bound may be shorter than a key.
        let position = |bound: &Vec<u8>| (first..last).find(|&key| number_key(key) >= *bound).unwrap_or(last);
        let ends: Vec<u64> = [first].into_iter().chain(bounds.iter().map(position)).chain([last]).collect();
        ends.windows(2).map(|ends| ends[1] - ends[0]).collect()
    }

    #[test]
    fn a_stage_is_cut_into_parts_that_write_one_table_each() {
        let (version, task) = two_levels();
        let check = |stage: KeySpan<&[u8]>, bytes: u64, table_size: u64| {
            let parts = parts(&task, &version, stage, table_size);
            let expected = bytes * 8 / 7 / table_size;
            let count = parts.len() as u64;
            assert!(expected * 7 / 10 <= count && count <= expected + 2, "{count} parts instead of {expected}");
            let most = parts.iter().max().unwrap();
            assert!(parts[..parts.len() - 1].iter().all(|keys| keys * 10 >= most * 7), "{parts:?}");
        };
        for table_size in [task.bytes / 5, task.bytes / 20, task.bytes / 100] {
            check(KeySpan::default(), task.bytes, table_size);
            let (from, to) = (number_key(1000), number_key(5000));
            check(KeySpan { lower: Some(&from), upper: Some(&to) }, task.bytes / 2, table_size);
        }
        // Of half of the inputs, in one level.
        let half = Task { inputs: vec![(5, 1), (5, 2)], ..task.clone() };
        let count = parts(&half, &version, KeySpan::default(), task.bytes / 50).len();
        assert!((20..32).contains(&count), "{count}");
    }

    #[test]
    fn a_task_as_small_as_a_table_or_for_level_0_is_one_part() {
        let (version, task) = two_levels();
        let count = |task: &Task, table_size: u64| parts(task, &version, KeySpan::default(), table_size).len();
        assert_eq!((count(&task, task.bytes * 2), count(&task, 1 << 10) > 10), (1, true));
        assert_eq!(count(&Task { bytes: 7 << 10, ..task.clone() }, 8 << 10), 1);
        assert!(count(&Task { bytes: (7 << 10) + 1, ..task.clone() }, 8 << 10) > 10);
        let run = Task { start_level: 0, output_level: 0, ..task.clone() };
        assert_eq!(count(&run, 1 << 10), 1);
        assert!(count(&task, 0) > 100);
    }

    #[test]
    fn a_tombstone_stays_while_an_older_run_or_a_lower_level_may_hold_its_key_issue_13() {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/db")).unwrap();
        let context = Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), 0, 8));
        let table = |level: u8, number: u64, key: &str, seqno: SeqNo, kind| {
            let mut builder = TableBuilder::new(context.fs(), context.dir(), number, OPTIONS).unwrap();
            builder.add(key.as_bytes(), seqno, kind, b"").unwrap();
            (level, Arc::new(Table::new(Arc::clone(&context), builder.finish().unwrap())))
        };
        let (put, delete) = (ValueKind::Put, ValueKind::Delete);
        let tables = vec![
            table(0, 4, "k", 40, delete),
            table(0, 3, "x", 30, put),
            table(0, 2, "k", 20, put),
            table(0, 1, "l", 10, delete),
            table(6, 5, "l", 5, put),
        ];
        let version = Version::default().edited(&[], tables);
        let last_number = Cell::new(10);
        // What a merge of these runs writes, as "key number".
        let merged = |runs: &[u64], output_level: u8| -> Vec<String> {
            let task = Task {
                start_level: 0,
                output_level,
                inputs: runs.iter().map(|&run| (0, run)).collect(),
                keys: KeySpan::closed(b"k", b"x"),
                bytes: 100,
                is_move: false,
                is_drop: false,
                reason: Default::default(),
                resumes: None,
                runs: (10, 40),
            };
            let output = OutputContext {
                tables: &context,
                options: OPTIONS,
                table_size: 1 << 20,
                table_memory: usize::MAX,
                reserved: 0,
                write_len: WRITE_LEN,
                snapshots: Vec::new(),
                ranges: Vec::new(),
                cleared: 0,
                operator: None,
                hook: CompactionHook::default(),
                now: 0,
                values: ValuePolicy::of(&KeyspaceOptions::new()),
                keyspace: "ks",
                new_number: &|| last_number.replace(last_number.get() + 1) + 1,
                turn: &|_| Turn::GoOn,
                paranoid: false,
                origin: Origin::default(),
            };
            let tables = run(&task, &version, KeySpan::default(), &output).unwrap().unwrap().tables;
            let entries = tables.into_iter().flat_map(|meta| {
                let mut cursor = Arc::new(Table::new(Arc::clone(&context), meta)).cursor(false);
                cursor.seek_to_first().unwrap();
                let mut entries = Vec::new();
                while cursor.valid() {
                    entries.push(format!("{} {}", cursor.key().escape_ascii(), cursor.seqno()));
                    cursor.next().unwrap();
                }
                entries
            });
            entries.collect()
        };
        assert_eq!(merged(&[3, 4], 0), ["k 40", "x 30"], "run 2 is older");
        assert_eq!(merged(&[1, 2, 3, 4], 0), ["k 40", "l 10", "x 30"]);
        assert_eq!(merged(&[1, 2, 3, 4], 5), ["l 10", "x 30"], "level 6 holds `l`");
        assert_eq!(merged(&[1, 2, 3, 4], 6), ["x 30"]);
        let is_unread = |table: &Arc<Table>| table.ledger().reads == ReadStats::default();
        assert!(version.tables().all(|(_, table)| is_unread(table)), "merges count as no one's reads");
    }
}
