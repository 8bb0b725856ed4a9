//! New filters for tables that are there: one table after the other is replaced by a copy, each by an edit of its own.
//!
//! A copy takes the place of its original in every respect that decides what reads see and what compaction does: level, keys and
//! sequence numbers are the same. While one is made, whatever compacts its neighbourhood waits (see `Picker::pick_table`), and readers
//! that hold the original keep it.

use std::sync::Arc;

use super::background::{Request, Urgent};
use super::store::Store;
use super::view::Tree;
use crate::error::{Error, Result};
use crate::filter::filter_bytes;
use crate::options::LevelFilters;
use crate::sorted::table::{Input, Origin, Table};
use crate::tree::compaction::filters::policies;
use crate::tree::compaction::picker::{Picker, Requested, Task};
use crate::tree::manifest::VersionEdit;

/// How far the renewal of a keyspace's filters has come; see [`Keyspace::rebuild_filters`](crate::Keyspace::rebuild_filters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterRebuild {
    /// Tables that needed another filter when it began. If the options change meanwhile, and another round is made for that, those of
    /// that round come on top.
    pub wanted: u64,
    /// Tables that had the right filter when it began, or when the last round did, and were left alone.
    pub unchanged: u64,
    /// Tables replaced. In the end less than `wanted` only if compaction came first, which gives the right filter, too.
    pub replaced: u64,
    /// Bytes of the tables replaced.
    pub bytes_before: u64,
    /// Bytes of those that took their places.
    pub bytes_after: u64,
}

/// Which tables get new filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those whose filter is not the one that the options ask for, or cannot be used.
    Unfit,
    /// All.
    All,
}

impl Store {
    /// Gives every table of a keyspace the filter that its options ask for.
    pub(super) fn renew_filters(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        mut scope: Scope,
        mut progress: impl FnMut(&FilterRebuild),
    ) -> Result<FilterRebuild> {
        self.flush()?;
        let mut rebuild = FilterRebuild::default();
        loop {
            // Flushes and compactions that began under other options end here; all that begin now know these.
            self.run_requested(keyspace, Request::Compact, |picker| match picker.running {
                [] => Requested::Done,
                _ => Requested::Wait,
            })?;
            let tree = self.tree(keyspace, name)?;
            let (wanted, unchanged) = tables_to_refilter(&tree, scope)?;
            let options = tree.options.clone();
            // It would keep the file of every table that is replaced until the end.
            drop(tree);
            rebuild.wanted += wanted.len() as u64;
            rebuild.unchanged = unchanged;
            progress(&rebuild);
            for (number, size) in wanted {
                let pick = |picker: &Picker<'_>| picker.pick_table(number);
                // No bytes: the keyspace was dropped.
                let written = self.run_requested(keyspace, Request::Refilter, pick)?;
                if let Some(written @ 1..) = written {
                    rebuild.replaced += 1;
                    rebuild.bytes_before += size;
                    rebuild.bytes_after += written;
                }
                progress(&rebuild);
            }
            // Each table was made by the options of its moment. Whoever changed them meanwhile had better find all filters by the last
            // ones when this returns, too.
            if self.tree(keyspace, name)?.options == options {
                return Ok(rebuild);
            }
            scope = Scope::Unfit;
        }
    }

    fn tree(&self, keyspace: u32, name: &str) -> Result<Tree> {
        self.view.load().tree(keyspace).cloned().ok_or_else(|| Error::KeyspaceDropped(name.to_owned()))
    }

    /// Replaces the one table of `task` by a copy with the filter that it should have; returns the bytes of the copy.
    pub(super) fn refilter(self: &Arc<Self>, keyspace: u32, task: &Task) -> Result<u64> {
        // The keyspace may have been dropped.
        let Some(tree) = self.view.load().tree(keyspace).cloned() else { return Ok(0) };
        let tables = tree.version.tables().zip(policies(&tree.options, &tree.version.metas()));
        let taken = tables.map(|((level, table), policy)| (level, table, policy));
        let found = taken.into_iter().find(|(level, table, _)| task.takes(*level, table.meta().number));
        let Some((_, table, policy)) = found else { return Ok(0) };
        let (table, prefix) = (Arc::clone(table), tree.options.prefix);
        let inputs = vec![Input { number: table.meta().number, is_replaced: true }];
        let origin = Origin { level: task.output_level, inputs, ..self.origin(&tree) };
        drop(tree);
        // With prefixes there may be twice as many keys in a filter.
        let keys = table.meta().keys.saturating_mul(if prefix.is_some() { 2 } else { 1 });
        let filter_bytes = filter_bytes(policy, keys);
        self.check_space(task.bytes.saturating_add(filter_bytes))?;
        let cancelled = || {
            self.do_urgent(Urgent::All);
            self.is_stopping()
        };
        let copy = table.refilter(self.catalog.new_file_number(), policy, prefix, &origin, &cancelled)?;
        let copy = copy.ok_or(Error::Closed)?;
        // Its file goes with the edit, unless a reader holds it.
        drop(table);
        if self.options.paranoid {
            let written = Table::new(Arc::clone(&self.tables), copy.clone()).verify();
            written.inspect_err(|_| self.tables.remove_file(copy.number))?;
        }
        self.sync_dir()?;
        let size = copy.size;
        let edit = VersionEdit {
            removed: task.inputs.iter().map(|&(level, number)| (keyspace, level, number)).collect(),
            added: vec![(keyspace, task.output_level, copy)],
            ..VersionEdit::default()
        };
        self.install(edit, |_| {})?;
        Ok(size)
    }
}

/// Number and size of the tables that get another filter, and how many do not.
fn tables_to_refilter(tree: &Tree, scope: Scope) -> Result<(Vec<(u64, u64)>, u64)> {
    let (mut wanted, mut unchanged) = (Vec::new(), 0);
    let policies = policies(&tree.options, &tree.version.metas());
    for ((_, table), policy) in tree.version.tables().zip(policies) {
        // What a budget comes to changes with every write: a table is not copied for a few hundredths of a bit.
        let tolerance = match tree.options.level_filters {
            LevelFilters::Budget(_) => (policy.millibits() / 20).max(250),
            _ => 0,
        };
        if scope == Scope::Unfit && table.has_filter(policy, tree.options.prefix, tolerance)? {
            unchanged += 1;
        } else {
            wanted.push((table.meta().number, table.meta().size));
        }
    }
    Ok((wanted, unchanged))
}
