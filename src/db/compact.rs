//! Compactions, as the picker orders them and as callers ask for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::background::Request;
use super::iter::HalfOpen;
use super::store::Store;
use super::view::Tree;
use crate::compaction::filters::policy_of_output;
use crate::compaction::job;
use crate::compaction::picker::{Picker, Task};
use crate::error::{Error, Result};
use crate::manifest::VersionEdit;
use crate::options::{Compression, FilterPolicy};
use crate::table::TableMeta;
use crate::version::LEVELS;

/// The filter of what a task writes.
fn filter_of_output(tree: &Tree, task: &Task) -> FilterPolicy {
    let takes = |level: usize, number: u64| task.takes(level, number);
    let inputs = tree.version.tables().map(|(level, table)| (level, table.meta()));
    let keys = inputs.filter(|(level, meta)| takes(*level, meta.number)).map(|(_, meta)| meta.keys).sum();
    let held = || tree.filter_bytes(takes);
    policy_of_output(&tree.options, &tree.version.metas(), task.output_level.into(), keys, held, takes)
}

impl Store {
    /// Carries out one task; returns how many bytes of new tables it wrote.
    pub(super) fn compact(&self, keyspace: u32, task: &Task) -> Result<u64> {
        // Not the whole view: this may take long, and would keep memtables and other keyspaces' old tables alive.
        let Some(tree) = self.view.load().tree(keyspace).cloned() else { return Ok(0) };
        let tree = &tree;
        let mut written = 0;
        let outputs: Vec<TableMeta> = if task.is_move {
            self.counters.moves.fetch_add(1, Ordering::Relaxed);
            let metas = tree.version.tables().map(|(level, table)| (level, table.meta()));
            metas.filter(|(level, meta)| task.takes(*level, meta.number)).map(|(_, meta)| meta.clone()).collect()
        } else {
            self.check_space(task.bytes)?;
            let compression = match usize::from(task.output_level) {
                level if level == LEVELS - 1 => tree.options.compression,
                _ => Compression::None,
            };
            let (new_number, cancelled) = (|| self.new_file_number(), || self.is_stopping());
            let context = self.output_context(tree, filter_of_output(tree, task), compression, &new_number, &cancelled);
            let Some(outputs) = job::run(task, &tree.version, &context)? else { return Err(Error::Closed) };
            if !outputs.is_empty() {
                self.sync_dir()?;
            }
            written = outputs.iter().map(|meta| meta.size).sum();
            self.counters.compactions.fetch_add(1, Ordering::Relaxed);
            self.counters.compacted_bytes_in.fetch_add(task.bytes, Ordering::Relaxed);
            self.counters.compacted_bytes_out.fetch_add(written, Ordering::Relaxed);
            outputs
        };
        let edit = VersionEdit {
            removed: task.inputs.iter().map(|&(level, number)| (keyspace, level, number)).collect(),
            added: outputs.into_iter().map(|meta| (keyspace, task.output_level, meta)).collect(),
            ..VersionEdit::default()
        };
        self.install(edit, |_| {})?;
        Ok(written)
    }

    /// Brings all entries of a range to the last level, without the versions and tombstones that nobody can see any more.
    pub(super) fn compact_range(self: &Arc<Self>, keyspace: u32, name: &str, range: &HalfOpen) -> Result<()> {
        self.flush()?;
        if self.view.load().tree(keyspace).is_none() {
            return Err(Error::KeyspaceDropped(name.to_owned()));
        }
        let pick = |picker: &Picker<'_>| picker.pick_range(range.lower.as_deref(), range.upper.as_deref());
        self.run_requested(keyspace, Request::Compact, pick).map(drop)
    }
}
