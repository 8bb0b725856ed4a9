//! Upkeep of range deletes: drops tables that hold only deleted entries, without reading them,
//! forgets ranges that delete nothing any more, and finds how much they delete of other tables, for
//! the picker.
//!
//! All follow a flush or a compaction, in its thread, and the end of a snapshot. Tables that a
//! running compaction takes, or that it might meet, are left for the upkeep at its end.
//!
//! Ranges are looked at again once half of them may have become needless (`upkeep`); small range
//! tables are merged. How much ranges delete of other tables is found by a *survey*
//! (`tree::version::deleted`), and the picker counts it as freed.
//!
//! A range delete that covers much is flushed at once (`write::wide`), and stops a compaction of
//! which it covers a quarter (`Store::is_pointless`).

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::agenda::Outlook;
use super::upkeep::RangeUpkeep;
use crate::db::shape::view::Tree;
use crate::db::stats::counters::Count;
use crate::db::store::Store;
use crate::error::Result;
use crate::options::Compression;
use crate::sorted::range_table::RangeTable;
use crate::sorted::ranges::{Fragment, fold};
use crate::sorted::table::{TableFilters, TableMeta};
use crate::sync::atomic::Ordering;
use crate::tree::compaction::covered::{covered_tables, is_needed};
use crate::tree::compaction::task::Task;
use crate::tree::compaction::{Turn, write_ranges};
use crate::tree::manifest::{RANGE_LEVEL, VersionEdit};

/// Of more range tables than this, the small ones are merged: each costs a read a search.
const MAX_RANGE_TABLES: usize = 8;
/// The tables to merge so that few are left: the smallest, and all that are not larger than those
/// together. A range is then merged once while the number of ranges doubles, about.
fn small_tables(tables: &[Arc<RangeTable>]) -> Vec<Arc<RangeTable>> {
    let Some(too_many) = tables.len().checked_sub(MAX_RANGE_TABLES).filter(|count| *count > 0) else {
        return Vec::new();
    };
    let mut tables = tables.to_vec();
    tables.sort_by_key(|table| table.len());
    let (mut count, mut sum) = (0, 0);
    while let Some(next) = tables.get(count).filter(|next| count <= too_many || next.len() <= sum) {
        (count, sum) = (count + 1, sum + next.len());
    }
    tables.truncate(count);
    tables
}

impl Store {
    /// Upkeep of the range deletes of the keyspaces that have changed since the last time. A
    /// failure leaves everything as it was, unless it poisons the store; the next flush or
    /// compaction tries again.
    pub(crate) fn tidy_ranges(&self) -> Result<()> {
        if self.gate.is_read_only() {
            return Ok(());
        }
        let Ok(_job) = self.workers.begin_job() else { return Ok(()) };
        let mut result = Ok(());
        self.workers.tidy_wanted.store(true, Ordering::SeqCst);
        while self.workers.tidy_wanted.load(Ordering::SeqCst) {
            // The thread that has the lock looks at `tidy_wanted` after it has released it.
            let Some(mut tidying) = self.workers.tidying.try_lock() else { break };
            self.workers.tidy_wanted.store(false, Ordering::SeqCst);
            let mut jobs = self.workers.background.lock();
            let view = self.agenda(&mut jobs).view;
            let changed = jobs.agenda.take_untidied();
            drop(jobs);
            for keyspace in changed {
                if view.tree(keyspace).is_none_or(|tree| tree.version.ranges().is_empty()) {
                    tidying.remove(&keyspace);
                    continue;
                }
                let upkeep = tidying.entry(keyspace).or_default();
                let dropped = self.drop_covered(keyspace);
                let is_tidy = matches!(dropped, Ok(true));
                let tidied = dropped.and_then(|_| self.forget_ranges(keyspace, upkeep));
                let is_tidy = is_tidy && tidied.is_ok();
                // What fails in one keyspace need not fail in the others.
                result = result.and(tidied);
                let has_found = self.survey(keyspace, upkeep);
                let mut jobs = self.workers.background.lock();
                jobs.agenda.touch(has_found.then_some(keyspace));
                if !is_tidy {
                    jobs.agenda.untidy(keyspace);
                }
            }
        }
        result
    }

    /// Has the upkeep look at all range deletes again: a read point that held some back has ended.
    pub(crate) fn tidy_all_ranges(self: &Arc<Self>) {
        self.spawn_help(|store| {
            store.workers.background.lock().agenda.untidy_all();
            let _ = store.tidy_ranges();
            store.schedule();
        });
    }

    /// Removes the tables all of whose entries are deleted. Returns whether that is all of them:
    /// some may be part of a running compaction.
    fn drop_covered(&self, keyspace: u32) -> Result<bool> {
        let Some(tree) = self.shape.view().tree(keyspace).cloned() else { return Ok(true) };
        let levels = tree.version.metas();
        // What is covered once stays so.
        let covered = covered_tables(&levels, tree.version.ranges(), &self.shape.snapshots().all());
        if covered.is_empty() {
            return Ok(true);
        }
        let claims = self.workers.claim(keyspace, |running| {
            // A task that ended before has left its outputs in this view.
            let Some(tree) = self.shape.view().tree(keyspace).cloned() else { return Vec::new() };
            let tables: HashSet<(usize, u64)> =
                tree.version.tables().map(|(level, table)| (level, table.meta().number)).collect();
            let is_there = |(level, meta): &(u8, &TableMeta)| tables.contains(&(usize::from(*level), meta.number));
            let is_free = |claim: &Task| running.iter().all(|task| !task.conflicts(claim));
            let there = covered.iter().copied().filter(is_there);
            there.map(|(level, meta)| Task::of_table(level, meta)).filter(is_free).collect()
        });
        let is_all = claims.tasks().len() == covered.len();
        if claims.tasks().is_empty() {
            return Ok(is_all);
        }
        let inputs = claims.tasks().iter().flat_map(|claim| &claim.inputs);
        let removed = inputs.map(|&(level, number)| (keyspace, level, number));
        let result = self.install(VersionEdit { removed: removed.collect(), ..VersionEdit::default() }, |_| {});
        if result.is_ok() {
            self.report.counters().add(Count::CoveredTables, claims.tasks().len() as u64);
        }
        result.map(|()| is_all)
    }

    /// Finds how much range deletes have deleted of the tables that are left. Returns whether that
    /// was not known.
    fn survey(&self, keyspace: u32, upkeep: &mut RangeUpkeep) -> bool {
        let Some(tree) = self.shape.view().tree(keyspace).cloned() else { return false };
        let oldest = self.shape.snapshots().oldest();
        if !tree.version.is_survey_due(oldest) {
            return false;
        }
        let limit = tree.version.survey_limit(oldest);
        let deleted = upkeep.survey(&tree.version, limit, || self.workers.is_stopping());
        deleted.map(|deleted| tree.version.set_deleted(limit, deleted)).is_some()
    }

    /// If the store is idle, finds out how much tables hide of older ones.
    pub(super) fn sample(&self) {
        let mut jobs = self.workers.background.lock();
        let Outlook { view, conditions } = self.agenda(&mut jobs);
        let unsampled = if conditions.is_idle { jobs.agenda.take_unsampled() } else { BTreeSet::new() };
        drop(jobs);
        for &keyspace in &unsampled {
            let go_on = |read: u64| {
                self.pace(usize::try_from(read).unwrap_or(usize::MAX));
                !self.workers.is_stopping() && self.is_idle(&self.shape.view())
            };
            view.tree(keyspace).inspect(|tree| tree.version.sample(go_on));
        }
        self.workers.background.lock().agenda.touch(unsampled);
    }

    /// Writes the range tables anew, without what is not needed, if that is half of all ranges.
    /// Otherwise merges the small ones if there are many.
    fn forget_ranges(&self, keyspace: u32, upkeep: &mut RangeUpkeep) -> Result<()> {
        let Some(tree) = self.shape.view().tree(keyspace).cloned() else { return Ok(()) };
        let (ranges, levels) = (tree.version.ranges(), tree.version.metas());
        upkeep.note(&levels, ranges);
        // There may be millions: they are listed only to be written.
        let needed = |table: &Arc<RangeTable>| {
            table.fragments().filter(|range| is_needed(range, &levels, &[])).collect::<Vec<_>>()
        };
        if upkeep.is_due(ranges.len()) {
            let all = ranges.tables().iter().flat_map(|table| table.fragments());
            let needless = all.filter(|range| !is_needed(range, &levels, &[])).count();
            upkeep.looked(&levels, ranges, needless);
            if 2 * needless >= ranges.len() {
                return self.replace_ranges(&tree, ranges.tables(), ranges.tables().iter().flat_map(needed).collect());
            }
        }
        let small = small_tables(ranges.tables());
        if small.is_empty() {
            Ok(())
        } else {
            self.replace_ranges(&tree, &small, small.iter().flat_map(needed).collect())
        }
    }

    fn replace_ranges(&self, tree: &Tree, former: &[Arc<RangeTable>], needed: Vec<Fragment>) -> Result<()> {
        self.check_space(former.iter().map(|table| table.meta().size).sum())?;
        let (new_number, turn) = (|| self.shape.catalog().new_file_number(), |_| Turn::GoOn);
        let mut context = self.output_context(tree, TableFilters::NONE, Compression::None, &new_number, &turn);
        context.origin.level = RANGE_LEVEL;
        let written = write_ranges(&fold(needed, &context.snapshots), &context)?;
        if written.is_some() {
            self.sync_dir()?;
        }
        let removed = former.iter().map(|table| (tree.id, RANGE_LEVEL, table.meta().number));
        let edit = VersionEdit {
            removed: removed.collect(),
            added: written.into_iter().map(|meta| (tree.id, RANGE_LEVEL, meta)).collect(),
            ..VersionEdit::default()
        };
        self.install(edit, |_| {})
    }
}
