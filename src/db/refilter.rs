//! New filters for tables that are there: one table after the other is replaced by a copy, each by an edit of its own.
//!
//! A copy takes the place of its original in every respect that decides what reads see and what compaction does: level, keys and
//! sequence numbers are the same. While one is made, whatever compacts its neighbourhood waits (see `Picker::pick_table`), and readers
//! that hold the original keep it.

use std::sync::Arc;

use super::background::Request;
use super::store::Store;
use crate::compaction::filters::policies;
use crate::compaction::picker::{Picker, Requested, Task};
use crate::error::{Error, Result};
use crate::manifest::VersionEdit;
use crate::options::FilterPolicy;
use crate::table::Table;

/// How far the renewal of a keyspace's filters has come; see [`Keyspace::rebuild_filters`](crate::Keyspace::rebuild_filters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterRebuild {
    /// Tables that needed another filter when it began.
    pub wanted: u64,
    /// Tables that had the right filter then, and were left alone.
    pub unchanged: u64,
    /// Tables replaced. In the end less than `wanted` only if compaction came first, which gives the right filter, too.
    pub replaced: u64,
    /// Bytes of the tables replaced.
    pub bytes_before: u64,
    /// Bytes of those that took their places.
    pub bytes_after: u64,
}

/// A table that needs another filter.
struct Unfit {
    number: u64,
    size: u64,
    policy: FilterPolicy,
}

impl Store {
    /// Gives every table of a keyspace the filter that its options ask for.
    pub(super) fn renew_filters(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        mut progress: impl FnMut(&FilterRebuild),
    ) -> Result<FilterRebuild> {
        // Flushes and compactions that began under other options end here; all that begin now know these.
        self.flush()?;
        self.run_requested(keyspace, Request::Compact, |picker| match picker.running {
            [] => Requested::Done,
            _ => Requested::Wait,
        })?;
        let (wanted, unchanged) = self.tables_to_refilter(keyspace, name)?;
        let mut rebuild = FilterRebuild { wanted: wanted.len() as u64, unchanged, ..FilterRebuild::default() };
        progress(&rebuild);
        for Unfit { number, size, policy } in wanted {
            let pick = |picker: &Picker<'_>| picker.pick_table(number);
            if let Some(written) = self.run_requested(keyspace, Request::Refilter(policy), pick)? {
                rebuild.replaced += 1;
                rebuild.bytes_before += size;
                rebuild.bytes_after += written;
            }
            progress(&rebuild);
        }
        Ok(rebuild)
    }

    /// The tables of a keyspace that need another filter, and how many do not.
    fn tables_to_refilter(&self, keyspace: u32, name: &str) -> Result<(Vec<Unfit>, u64)> {
        let tree = self.view.load().tree(keyspace).cloned();
        let tree = tree.ok_or_else(|| Error::KeyspaceDropped(name.to_owned()))?;
        let (mut wanted, mut unchanged) = (Vec::new(), 0);
        let policies = policies(&tree.options, &tree.version.metas());
        for ((_, table), policy) in tree.version.tables().zip(policies) {
            if table.has_filter(policy, tree.options.prefix)? {
                unchanged += 1;
            } else {
                wanted.push(Unfit { number: table.meta().number, size: table.meta().size, policy });
            }
        }
        Ok((wanted, unchanged))
    }

    /// Replaces the one table of `task` by a copy with a filter by `policy`; returns the bytes of the copy.
    pub(super) fn refilter(&self, keyspace: u32, task: &Task, policy: FilterPolicy) -> Result<u64> {
        let view = self.view.load();
        let table = view.tree(keyspace).and_then(|tree| {
            let (_, table) = tree.version.tables().find(|(level, table)| task.takes(*level, table.meta().number))?;
            Some((Arc::clone(table), tree.options.prefix))
        });
        drop(view);
        // The keyspace may have been dropped.
        let Some((table, prefix)) = table else { return Ok(0) };
        let filter_bytes = table.meta().keys.saturating_mul(policy.millibits().into()) / 8000;
        self.check_space(task.bytes.saturating_add(filter_bytes))?;
        let copy = table.refilter(self.new_file_number(), policy, prefix, &|| self.is_stopping())?;
        let copy = copy.ok_or(Error::Closed)?;
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
