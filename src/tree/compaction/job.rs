//! Carries out a compaction: merges the input tables into new ones. A [stage](super::stages) of the
//! task is cut into parts, which several threads merge at once.

use std::sync::Arc;

use super::output::{LowerLevels, OutputContext, Unknown, write_run};
use super::picker::Task;
use crate::error::Result;
use crate::format::span::KeySpan;
use crate::sorted::merge::MergingCursor;
use crate::sorted::table::{Table, TableMeta};
use crate::tree::version::{RunCursor, ScanSource, Version};

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
pub(crate) fn bounds(task: &Task, version: &Version, stage: KeySpan<&[u8]>, table_size: u64) -> Result<Vec<Vec<u8>>> {
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

/// Merges the entries in `part` of the inputs of `task`, taken from `version`. Returns the new
/// tables, or `None` if cancelled.
pub(crate) fn run(
    task: &Task,
    version: &Version,
    part: KeySpan<&[u8]>,
    context: &OutputContext<'_>,
) -> Result<Option<Vec<TableMeta>>> {
    let mut sources = Vec::new();
    for (number, level) in version.levels().iter().enumerate() {
        let tables: Vec<Arc<Table>> =
            level.tables().iter().filter(|table| task.takes(number, table.meta().number)).cloned().collect();
        if number == 0 {
            let runs = tables.into_iter().map(|table| RunCursor::for_compaction([table].into()));
            sources.extend(runs.map(ScanSource::Run));
        } else if !tables.is_empty() {
            sources.push(ScanSource::Run(RunCursor::for_compaction(tables.into())));
        }
    }
    let mut cursor = MergingCursor::new(sources);
    if task.output_level == 0 {
        // Level 0 may hold older runs.
        return write_run(&mut cursor, part, context, &mut Unknown);
    }
    write_run(&mut cursor, part, context, &mut TablesBelow::new(task, version, context.table_size))
}

/// The tables below the output level that overlap the task's key range.
struct TablesBelow<'a> {
    levels: Vec<LevelBelow<'a>>,
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
        let level = |number: usize| LevelBelow {
            tables: version
                .levels()
                .get(number)
                .map(|level| {
                    level.tables().iter().map(|table| table.meta()).filter(|meta| meta.overlaps(&task.keys)).collect()
                })
                .unwrap_or_default(),
            at: 0,
        };
        let output = usize::from(task.output_level);
        TablesBelow {
            levels: (output + 1..version.levels().len()).map(level).collect(),
            next: level(output + 1),
            overlapped: 0,
            max_overlapped: table_size.saturating_mul(MAX_OVERLAP_BELOW),
        }
    }
}

impl LowerLevels for TablesBelow<'_> {
    fn may_hold(&mut self, key: &[u8]) -> bool {
        self.levels.iter_mut().any(|level| {
            level.advance(key);
            level.tables.get(level.at).is_some_and(|table| *table.smallest <= *key)
        })
    }

    fn cut_before(&mut self, key: &[u8]) -> bool {
        self.overlapped += self.next.advance(key);
        self.overlapped > self.max_overlapped
    }

    fn table_ended(&mut self) {
        self.overlapped = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sorted::table::TableContext;
    use crate::vfs::SimFileSystem;

    /// A level of tables with these smallest and largest keys.
    fn level(ranges: &[(&str, &str)]) -> Vec<TableMeta> {
        let meta = |(number, (smallest, largest)): (u64, &(&str, &str))| TableMeta {
            number,
            size: 100,
            checksum: 0,
            entries: 2,
            keys: 2,
            tombstones: 0,
            smallest_seqno: 1,
            largest_seqno: 2,
            smallest: smallest.as_bytes().into(),
            largest: largest.as_bytes().into(),
        };
        (1..).zip(ranges).map(meta).collect()
    }

    fn below(levels: &[Vec<TableMeta>]) -> TablesBelow<'_> {
        TablesBelow {
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
        let mut below = TablesBelow { levels: Vec::new(), next, overlapped: 0, max_overlapped: 200 };
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
}
