//! Carries out one compaction: merges the input tables into new ones.

use std::sync::Arc;

use super::output::{Below, OutputContext, Part, write_run};
use super::picker::Task;
use crate::error::Result;
use crate::merge::MergingCursor;
use crate::table::{Table, TableMeta};
use crate::version::{RunCursor, Source, Version};

/// A table of the output level may overlap this many times its own size in the level below it, so that its own compaction stays
/// small (LevelDB's limit, `MaxGrandParentOverlapBytes`).
const MAX_OVERLAP_BELOW: u64 = 10;

/// Merges the inputs of `task`, as they stand in `version`, and returns the new tables, or `None` if it was cancelled.
pub(crate) fn run(task: &Task, version: &Version, context: &OutputContext<'_>) -> Result<Option<Vec<TableMeta>>> {
    let mut sources = Vec::new();
    for (number, level) in version.levels().iter().enumerate() {
        let tables: Vec<Arc<Table>> =
            level.tables().iter().filter(|table| task.takes(number, table.meta().number)).cloned().collect();
        if number == 0 {
            sources.extend(tables.iter().map(|table| Source::Table(table.cursor(false).for_compaction())));
        } else if !tables.is_empty() {
            sources.push(Source::Run(RunCursor::for_compaction(tables.into())));
        }
    }
    let mut below = TablesBelow::new(task, version, context.table_size);
    write_run(&mut MergingCursor::new(sources), Part::default(), context, &mut below)
}

/// The tables below the output level that overlap the task's key range.
struct TablesBelow<'a> {
    levels: Vec<LevelBelow<'a>>,
    /// The level right below the output, for the limit on overlap.
    next: LevelBelow<'a>,
    overlapped: u64,
    max_overlapped: u64,
}

struct LevelBelow<'a> {
    tables: Vec<&'a TableMeta>,
    /// The first table whose largest key is not behind the last key asked for.
    at: usize,
}

impl LevelBelow<'_> {
    /// Moves on to the first table that does not end before `key`; returns the bytes of the tables passed.
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
                    level.tables().iter().map(|table| table.meta()).filter(|meta| task.hull.overlaps(meta)).collect()
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

impl Below for TablesBelow<'_> {
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
