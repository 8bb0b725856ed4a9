//! Compactions, as the picker chooses them and as callers request them.
//!
//! ```text
//! compaction = task, stage+        its inputs are claimed from the choice to the end
//! stage      = part+, edit         the edit replaces inputs, whose space is then free
//! part       = block+              one thread merges it, into about one table
//! ```
//!
//! Idle threads take the parts of a stage one by one. Between blocks, a part waits for the rate
//! limit. New tables are written back as they grow, so that the final sync waits for little. A
//! snapshot that is taken while a compaction filter decides keeps its view (`live`).

use std::cell::Cell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use super::background::Request;
use super::progress::{TaskProgress, remaining};
use crate::db::locks::check_may_wait;
use crate::db::read::tree_of;
use crate::db::shape::view::Tree;
use crate::db::stats::counters::Count;
use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::format::deadline::Deadline;
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::options::Compression;
use crate::report::event::CompactionReason;
use crate::sorted::table::{Input, TableFilters, TableMeta};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::tree::compaction::covered::covered_tables;
use crate::tree::compaction::filters::{filters_of_output, planned};
use crate::tree::compaction::picker::Picker;
use crate::tree::compaction::task::Task;
use crate::tree::compaction::{Turn, Written, job, stages};
use crate::tree::manifest::VersionEdit;
use crate::tree::version::LEVELS;

/// A compaction stops if this part of its tables, as a divisor, could go unread instead.
const COVERED_SHARE: u64 = 4;
/// When the store is closed, a part of a compaction has at least this part of a table's size, as a
/// divisor.
const LEAST_PART_SHARE: u64 = 8;
/// A requested compaction begins again after range deletes at most so many times.
const MAX_ROUNDS: u32 = 3;

/// The value files from which a task moves the values that it meets.
fn leaving_files(tree: &Tree, task: &Task) -> Arc<HashSet<u64>> {
    let garbage = match task.reason {
        CompactionReason::ValueGarbage => tree.version.begin_emptying(),
        _ => tree.version.value_garbage(false),
    };
    Arc::clone(&garbage.leaving)
}

/// The tables that a task takes.
fn tables_of<'a>(tree: &'a Tree, task: &'a Task) -> impl Iterator<Item = &'a TableMeta> {
    let taken = tree.version.tables().filter(|(level, table)| task.takes(*level, table.meta().number));
    taken.map(|(_, table)| table.meta())
}

/// The filters of a task's output.
fn filters_of(tree: &Tree, task: &Task) -> TableFilters {
    let takes = |level: usize, number: u64| task.takes(level, number);
    let keys = tables_of(tree, task).map(|meta| meta.keys).sum();
    let held = || tree.filter_bytes(takes);
    filters_of_output(&tree.options, || planned(&tree.version), task.output_level.into(), keys, held, takes)
}

/// The tables that a stage reads, or replaces because an earlier stage has read them. `done` are
/// those that it replaces.
fn inputs_of(
    task: &Task,
    levels: &[Vec<&TableMeta>; LEVELS],
    stage: &KeySpan<Vec<u8>>,
    done: &[(u8, &TableMeta)],
) -> Vec<Input> {
    let done: HashSet<u64> = done.iter().map(|(_, table)| table.number).collect();
    let tables = levels.iter().enumerate().flat_map(|(level, tables)| tables.iter().map(move |table| (level, table)));
    let mut inputs: Vec<Input> = tables
        .filter(|(level, table)| task.takes(*level, table.number))
        .map(|(_, table)| (table, done.contains(&table.number)))
        .filter(|(table, is_replaced)| *is_replaced || table.overlaps(stage))
        .map(|(table, is_replaced)| Input { number: table.number, is_replaced })
        .collect();
    inputs.sort_unstable();
    inputs
}

/// The edit that replaces the tables `done` by the outputs of a task, which may have dropped what
/// had expired at `now`.
fn edit_of(keyspace: u32, task: &Task, done: Vec<(u8, u64)>, written: Written, now: Option<Deadline>) -> VersionEdit {
    VersionEdit {
        removed: done.into_iter().map(|(level, number)| (keyspace, level, number)).collect(),
        values: written.values.into_iter().map(|meta| (keyspace, meta)).collect(),
        added: written.tables.into_iter().map(|meta| (keyspace, task.output_level, meta)).collect(),
        expired_by: now,
        ..VersionEdit::default()
    }
}

/// The key ranges in which a stage is merged, without what is `done` already.
fn parts_of(
    task: &Task,
    tree: &Tree,
    stage: &KeySpan<Vec<u8>>,
    table_size: u64,
    done: &[KeySpan<Vec<u8>>],
) -> Result<Vec<KeySpan<Vec<u8>>>> {
    let bounds = job::bounds(task, &tree.version, stage.borrowed(), table_size)?;
    let inner = || bounds.iter().map(|bound| Some(&**bound));
    let lower = [stage.lower.as_deref()].into_iter().chain(inner());
    let upper = inner().chain([stage.upper.as_deref()]);
    let spans: Vec<KeySpan<&[u8]>> = lower.zip(upper).map(|(lower, upper)| KeySpan { lower, upper }).collect();
    Ok(remaining(&spans, done))
}

/// Bytes from which on the part of a task counts that closing the store has stopped. It becomes a
/// table: many small ones would cost reads. In level 0 each is a run, and half as many of them as
/// inputs must do.
fn least_part(task: &Task, table_size: u64) -> u64 {
    match task.output_level {
        0 => 2 * task.bytes / (task.inputs.len() as u64).max(1),
        _ => table_size / LEAST_PART_SHARE,
    }
}

/// A stage of a compaction, merged part by part by one or more threads. A free thread takes the
/// next part. The thread that began the stage takes all remaining parts: it never waits for a part
/// that no thread works on.
struct StageMerge {
    tree: Tree,
    task: Task,
    filters: TableFilters,
    compression: Compression,
    /// The tables that the stage reads or replaces.
    inputs: Vec<Input>,
    /// Live snapshots, the same for all parts.
    snapshots: Vec<SeqNo>,
    /// What has expired by then is dropped; 0 if nothing has.
    now: Deadline,
    parts: StageParts,
    /// Range deletes have made it pointless: see [`Store::is_pointless`].
    is_pointless: AtomicBool,
    /// `Shape::range_edits` when that was last checked.
    range_edits: AtomicU64,
}

/// The parts of a stage, of which each is merged by one thread.
struct StageParts {
    /// Their key ranges, ascending.
    spans: Vec<KeySpan<Vec<u8>>>,
    next: AtomicUsize,
    /// A part has failed: the others can stop.
    failed: AtomicBool,
    /// The result of each part that has ended.
    ended: Mutex<Vec<Option<PartResult>>>,
    /// Notified when a part has ended.
    part_ended: Condvar,
}

/// What a part has written, or `None` if it has not begun or was abandoned.
type PartResult = Result<Option<Written>>;

/// How a stage has ended.
struct StageEnd {
    /// What was merged, with its key ranges, ascending.
    finished: Vec<(KeySpan<Vec<u8>>, Written)>,
    /// The first failure in key order.
    failure: Option<Error>,
    /// Whether every part was merged to its end.
    is_whole: bool,
}

impl StageParts {
    fn new(spans: Vec<KeySpan<Vec<u8>>>) -> StageParts {
        StageParts {
            next: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            ended: Mutex::new(spans.iter().map(|_| None).collect()),
            part_ended: Condvar::new(),
            spans,
        }
    }

    /// Takes the next part that no thread has taken.
    fn take(&self) -> Option<usize> {
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < self.spans.len())
    }

    fn end(&self, i: usize, result: PartResult) {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.ended.lock()[i] = Some(result);
        self.part_ended.notify_all();
    }

    /// Waits until every part has ended.
    fn wait(&self) -> StageEnd {
        check_may_wait();
        let mut ended = self.ended.lock();
        while ended.iter().any(Option::is_none) {
            self.part_ended.wait(&mut ended);
        }
        let mut end = StageEnd { finished: Vec::new(), failure: None, is_whole: true };
        for (span, result) in self.spans.iter().zip(ended.iter_mut().filter_map(Option::take)) {
            match result {
                Ok(Some(mut part)) => {
                    let stopped_at = part.stopped_at.take();
                    end.is_whole &= stopped_at.is_none();
                    let upper = stopped_at.or_else(|| span.upper.clone());
                    end.finished.push((KeySpan { lower: span.lower.clone(), upper }, part));
                }
                Ok(None) => end.is_whole = false,
                Err(error) => end.failure = end.failure.or(Some(error)),
            }
        }
        end
    }
}

impl Store {
    /// What has expired by then, no reader sees: the time now, or that of the oldest snapshot.
    pub(super) fn expiry_time(&self) -> Deadline {
        // In this order: a snapshot that is taken in between has a later time.
        let now = self.clock.now();
        now.min(self.shape.snapshots().least_time())
    }

    /// Runs one task, stage by stage; returns the bytes of tables it wrote. After an error, the
    /// output of completed stages stays. If the store is closed meanwhile, the next opening goes
    /// on with what is left.
    pub(super) fn compact(self: &Arc<Self>, keyspace: u32, task: &Task) -> Result<u64> {
        // Only the tree, not the whole view: a long compaction would keep memtables and other
        // keyspaces' old tables alive.
        let Some(tree) = self.shape.view().tree(keyspace).cloned() else { return Ok(0) };
        if task.is_drop {
            let gone = tables_of(&tree, task).map(|meta| meta.size).sum();
            let edit = edit_of(keyspace, task, task.inputs.clone(), Written::default(), Some(self.expiry_time()));
            self.install_outputs(keyspace, edit)?;
            self.report.counters().add(Count::ExpiredTables, task.inputs.len() as u64);
            self.report.counters().add(Count::CompactedBytesIn, gone);
            return Ok(0);
        }
        if task.is_move {
            let moved = Written { tables: tables_of(&tree, task).cloned().collect(), ..Written::default() };
            self.install_outputs(keyspace, edit_of(keyspace, task, task.inputs.clone(), moved, None))?;
            self.report.counters().add(Count::Moves, 1);
            return Ok(0);
        }
        let note = self.note_of(task)?;
        if note.is_none() && task.resumes.is_some() {
            // Its keyspace was dropped, and another one has the name.
            return Ok(0);
        }
        let mut progress = TaskProgress::new(task, note);
        let result = self.run_stages(keyspace, task, tree, &mut progress);
        match result {
            Ok((written, true)) => {
                self.report.counters().add(Count::Compactions, 1);
                Ok(written)
            }
            // The upkeep of range deletes goes on from here.
            Ok((written, false)) => self.forget(&progress).map(|()| written),
            Err(error) => {
                if !self.workers.is_stopping() {
                    // What it waits for may never come: nothing must wait for it.
                    self.forget(&progress)?;
                }
                Err(error)
            }
        }
    }

    /// Runs the stages of a task; returns the bytes of tables they wrote, and whether all that the
    /// task was about is done or noted. It is not if range deletes have made it pointless.
    fn run_stages(
        self: &Arc<Self>,
        keyspace: u32,
        task: &Task,
        tree: Tree,
        progress: &mut TaskProgress,
    ) -> Result<(u64, bool)> {
        let filters = filters_of(&tree, task);
        let mut ends = stages::bounds(task, &tree.version.metas(), self.options.table_size);
        drop(tree);
        let first = progress.first_stage();
        let mut stage = match &first {
            Some(first) => first.clone(),
            None => KeySpan { lower: None, upper: ends.first().cloned() },
        };
        ends.retain(|end| stage.upper.as_ref().is_some_and(|upper| end > upper));
        let mut ends = ends.into_iter();
        let mut written = 0;
        loop {
            let next = stage.upper.clone().map(|from| KeySpan { lower: Some(from), upper: ends.next() });
            match self.run_stage(keyspace, task, filters, stage, next.clone(), progress)? {
                Some(len) => written += len,
                None => return Ok((written, false)),
            }
            let Some(next) = next else { return Ok((written, true)) };
            stage = next;
        }
    }

    /// Runs one stage of a task, before the stage `next`; returns the bytes of tables it wrote, or
    /// `None` if range deletes have made it pointless.
    fn run_stage(
        self: &Arc<Self>,
        keyspace: u32,
        task: &Task,
        filters: TableFilters,
        stage: KeySpan<Vec<u8>>,
        next: Option<KeySpan<Vec<u8>>>,
        progress: &mut TaskProgress,
    ) -> Result<Option<u64>> {
        // The current tree, so as not to keep tables that earlier stages have replaced.
        let Some(tree) = self.shape.view().tree(keyspace).cloned() else { return Ok(None) };
        let levels = tree.version.metas();
        let leaving = leaving_files(&tree, task);
        self.check_space(stages::space_needed(task, &levels, stage.borrowed(), &leaving))?;
        let done = stages::finished_inputs(task, &levels, stage.upper.as_deref());
        let replaced: u64 = done.iter().map(|(_, table)| table.size).sum();
        let inputs = inputs_of(task, &levels, &stage, &done);
        let read: Vec<(u8, u64)> = done.iter().map(|(level, table)| (*level, table.size)).collect();
        let done: Vec<(u8, u64)> = done.into_iter().map(|(level, table)| (level, table.number)).collect();
        drop(levels);
        let expiring = tables_of(&tree, task).filter(|meta| meta.deadlines.count > 0);
        let first = expiring.map(|meta| meta.deadlines.first).min();
        let now =
            first.map(|first| (first, self.expiry_time())).filter(|(first, now)| first <= now).map(|(_, now)| now);
        let has_filter = tree.options.compaction_filter.is_set();
        let traffic = Arc::clone(&tree.traffic);
        let _filtering = has_filter.then(|| self.shape.snapshots().begin_filtering());
        let Some(mut written) = self.rewrite(tree, task, filters, stage, inputs, now.unwrap_or(0), progress)? else {
            return Ok(None);
        };
        let bytes = written.size();
        if bytes > 0 {
            self.sync_dir()?;
        }
        progress.complete(&mut written);
        let mut edit = edit_of(keyspace, task, done, written, now);
        let note = progress.note_stage(&mut edit, keyspace, task, next, || self.shape.catalog().new_file_number());
        self.install_outputs(keyspace, edit)?;
        progress.go_on(note);
        read.into_iter().for_each(|(level, bytes)| traffic.add_read(level, bytes));
        traffic.add_written(task.output_level, bytes);
        self.report.counters().add(Count::CompactedBytesIn, replaced);
        self.report.counters().add(Count::CompactedBytesOut, bytes);
        Ok(Some(bytes))
    }

    fn install_outputs(&self, keyspace: u32, edit: VersionEdit) -> Result<()> {
        let has_expired = edit.expired_by.is_some();
        self.install(edit, |view| {
            let drops = |tree: &&Tree| tree.options.compaction_filter.is_set() || has_expired;
            if let Some(tree) = view.tree(keyspace).filter(drops) {
                // A key that was dropped without a tombstone is gone for new scans, but not for old
                // ones.
                let gaps = Arc::new(tree.gaps.emptied());
                view.trees.set(Tree { gaps, ..tree.clone() });
            }
        })
    }

    /// Merges the inputs of a task within a stage, in parts and with the help of free threads.
    /// Returns what it has written, or `None` if range deletes have made it pointless. If the store
    /// is being closed, notes what is finished.
    #[expect(clippy::too_many_arguments, reason = "a stage of a task, and the moment for which it is merged")]
    fn rewrite(
        self: &Arc<Self>,
        tree: Tree,
        task: &Task,
        filters: TableFilters,
        stage: KeySpan<Vec<u8>>,
        inputs: Vec<Input>,
        now: Deadline,
        progress: &TaskProgress,
    ) -> Result<Option<Written>> {
        let parts = parts_of(task, &tree, &stage, self.options.table_size, progress.done())?;
        let keyspace = tree.id;
        let compression = match usize::from(task.output_level) {
            level if level == LEVELS - 1 => tree.options.compression,
            _ => Compression::None,
        };
        let merge = Arc::new(StageMerge {
            filters,
            tree,
            task: task.clone(),
            compression,
            inputs,
            snapshots: self.shape.snapshots().all(),
            now,
            parts: StageParts::new(parts),
            is_pointless: AtomicBool::new(false),
            // Not the current number: ranges may have come since the tree was loaded.
            range_edits: AtomicU64::new(u64::MAX),
        });
        // This thread leads, and one only flushes.
        let helpers = merge.parts.spans.len().saturating_sub(1).min(self.executor().parallelism().saturating_sub(2));
        (0..helpers).for_each(|_| self.help_with(Arc::downgrade(&merge)));
        while self.run_part(&merge, true) {}
        let StageEnd { finished, failure, is_whole } = merge.parts.wait();
        let is_pointless = merge.is_pointless.load(Ordering::Relaxed);
        if failure.is_some() || is_pointless {
            finished.iter().for_each(|(_, part)| part.remove(&self.tables));
            return failure.map_or(Ok(None), Err);
        }
        if !is_whole {
            if !finished.is_empty() {
                self.note_parts(keyspace, task, &stage, progress, finished, now)?;
            }
            return Err(Error::Closed);
        }
        let mut written = Written::default();
        finished.into_iter().for_each(|(_, part)| written.append(part));
        Ok(Some(written))
    }

    /// Has another thread merge parts of a stage. Each part is a separate job, so that a compaction
    /// that begins waits for at most one. A job that starts too late finds no part, and keeps no
    /// table alive until then.
    fn help_with(self: &Arc<Self>, merge: Weak<StageMerge>) {
        self.spawn_help(move |store| {
            if let Some(running) = merge.upgrade()
                && store.run_part(&running, false)
            {
                drop(running);
                store.help_with(merge);
            }
        });
    }

    /// Merges the next part that no thread has taken; returns whether there was one. `leads` says
    /// that the stage is this thread's.
    fn run_part(self: &Arc<Self>, merge: &StageMerge, leads: bool) -> bool {
        let Some(i) = merge.parts.take() else { return false };
        let result = catch_unwind(AssertUnwindSafe(|| self.rewrite_part(merge, i, leads)));
        let panicked = || Err(self.poison(Error::invalid("a compaction panicked; this is a bug in tamis")));
        merge.parts.end(i, result.unwrap_or_else(|_| panicked()));
        true
    }

    /// Whether range deletes have covered a good part of what a stage rewrites. Those tables can go
    /// unread once the task has ended.
    fn is_pointless(&self, merge: &StageMerge) -> bool {
        let edits = self.shape.range_edits();
        if merge.range_edits.swap(edits, Ordering::Relaxed) == edits {
            return false;
        }
        let Some(tree) = self.shape.view().tree(merge.tree.id).cloned() else { return false };
        let levels = tree.version.metas();
        let covered = covered_tables(&levels, tree.version.ranges(), &self.shape.snapshots().all());
        let covered: HashSet<u64> = covered.into_iter().map(|(_, meta)| meta.number).collect();
        let is_covered = |meta: &TableMeta| covered.contains(&meta.number);
        let inputs = || tables_of(&tree, &merge.task);
        let bytes = |metas: &mut dyn Iterator<Item = &TableMeta>| metas.map(|meta| meta.size).sum::<u64>();
        let all = bytes(&mut inputs());
        let is_pointless = COVERED_SHARE * bytes(&mut inputs().filter(|meta| is_covered(meta))) >= all.max(1);
        if is_pointless {
            merge.is_pointless.store(true, Ordering::Relaxed);
        }
        is_pointless
    }

    /// Whether a part goes on that has read and written `bytes` bytes since it began. When the
    /// store is closed, a part counts from [`least_part`] on. The thread that leads the stage gets
    /// there first, so that every opening comes on; the others leave what is less.
    fn turn_of_part(self: &Arc<Self>, merge: &StageMerge, leads: bool, bytes: u64) -> Turn {
        if merge.parts.failed.load(Ordering::Relaxed) || self.is_pointless(merge) {
            return Turn::Abandon;
        }
        if !self.workers.is_stopping() {
            return Turn::GoOn;
        }
        match bytes >= least_part(&merge.task, self.options.table_size) {
            _ if self.gate.is_poisoned() || bytes == 0 => Turn::Abandon,
            true => Turn::Stop,
            false if leads => Turn::GoOn,
            false => Turn::Abandon,
        }
    }

    fn rewrite_part(self: &Arc<Self>, merge: &StageMerge, i: usize, leads: bool) -> PartResult {
        let StageMerge { tree, task, filters, compression, .. } = merge;
        let new_number = || self.shape.catalog().new_file_number();
        let total = Cell::new(0);
        let turn = |bytes: usize| {
            self.pace(bytes);
            total.set(total.get() + bytes as u64);
            self.turn_of_part(merge, leads, total.get())
        };
        if turn(0) != Turn::GoOn {
            return Ok(None);
        }
        let mut context = self.output_context(tree, *filters, *compression, &new_number, &turn);
        context.snapshots.clone_from(&merge.snapshots);
        context.origin.level = task.output_level;
        context.now = merge.now;
        context.hook = tree.options.compaction_filter.clone();
        context.values.leaving = leaving_files(tree, task);
        context.values.must_move = task.reason == CompactionReason::ValueGarbage;
        context.origin.inputs.clone_from(&merge.inputs);
        if task.output_level == 0 {
            let memory = context.options.memory_of(tables_of(tree, task));
            context.reserved = usize::try_from(memory).unwrap_or(usize::MAX).min(self.environment.run_memory());
            context.table_size = u64::MAX;
        }
        job::run(task, &tree.version, merge.parts.spans[i].borrowed(), &context)
    }

    /// Compacts a range to the last level, and drops versions and tombstones that no reader can see
    /// any more.
    pub(crate) fn compact_range(self: &Arc<Self>, keyspace: u32, name: &str, range: &KeySpan<Vec<u8>>) -> Result<()> {
        self.flush()?;
        let rewrites_all = || {
            self.shape.with_view(|view, _| {
                let tree = tree_of(view, keyspace, name)?;
                Ok(tree.options.compaction_filter.is_set() || !tree.version.ranges().is_empty())
            })
        };
        // Range deletes that come meanwhile may stop a compaction.
        for _ in 0..MAX_ROUNDS {
            let edits = self.shape.range_edits();
            self.compact_once(keyspace, range, &rewrites_all)?;
            if self.shape.range_edits() == edits {
                break;
            }
        }
        self.schedule();
        Ok(())
    }

    fn compact_once(
        self: &Arc<Self>,
        keyspace: u32,
        range: &KeySpan<Vec<u8>>,
        rewrites_all: &impl Fn() -> Result<bool>,
    ) -> Result<()> {
        if rewrites_all()? {
            // The filter is not asked about everything, and ranges may delete something, while
            // tables above the last level stay.
            self.run_requested(keyspace, Request::Compact, |picker| picker.pick_range(range, false))?;
            self.tidy_ranges()?;
        }
        let rewrites_all = rewrites_all()?;
        let pick = |picker: &Picker<'_>| picker.pick_range(range, rewrites_all);
        self.run_requested(keyspace, Request::Compact, pick)?;
        self.tidy_ranges()
    }
}
