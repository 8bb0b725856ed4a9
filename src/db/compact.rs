//! Compactions, as the picker orders them and as callers ask for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::iter::HalfOpen;
use super::store::Store;
use crate::compaction::job;
use crate::compaction::picker::{RangePick, Task};
use crate::error::{Error, IoContext, Result};
use crate::manifest::VersionEdit;
use crate::options::Compression;
use crate::table::TableMeta;
use crate::version::LEVELS;

impl Store {
    /// Carries out one task.
    pub(super) fn compact(&self, keyspace: u32, task: &Task) -> Result<()> {
        let view = self.view.load_full();
        let Some(tree) = view.tree(keyspace) else { return Ok(()) };
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
            let context = self.output_context(tree, compression, &new_number, &cancelled);
            let Some(outputs) = job::run(task, &tree.version, &context)? else { return Ok(()) };
            if !outputs.is_empty() {
                self.fs.sync_dir(&self.dir).during("sync", &self.dir)?;
            }
            let written = outputs.iter().map(|meta| meta.size).sum();
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
        self.install(edit, |_| {})
    }

    /// Brings all entries of a range to the last level, without the versions and tombstones that nobody can see any more.
    pub(super) fn compact_range(self: &Arc<Self>, keyspace: u32, range: &HalfOpen) -> Result<()> {
        self.flush()?;
        self.background.lock().manual += 1;
        let result = self.compact_range_now(keyspace, range);
        self.background.lock().manual -= 1;
        self.remove_obsolete();
        self.schedule();
        result
    }

    fn compact_range_now(self: &Arc<Self>, keyspace: u32, range: &HalfOpen) -> Result<()> {
        loop {
            self.check_writable()?;
            let picked = {
                let mut background = self.background.lock();
                let view = self.view.load();
                let Some(tree) = view.tree(keyspace) else { return Ok(()) };
                let (lower, upper) = (range.lower.as_deref(), range.upper.as_deref());
                let picked = self.with_picker(tree, &background, |picker| picker.pick_range(lower, upper));
                if let RangePick::Task(task) = &picked {
                    background.compactions.push((keyspace, task.clone()));
                }
                picked
            };
            match picked {
                RangePick::Done => return Ok(()),
                RangePick::Wait => {
                    let running = self.background.lock().compactions.clone();
                    self.wait_for_progress(|background| background.compactions != running)?;
                }
                RangePick::Task(task) => {
                    let result = self.compact(keyspace, &task);
                    self.background.lock().release(keyspace, &task);
                    self.background_done.notify_all();
                    return match self.is_stopping() {
                        true => Err(Error::Closed),
                        false => result,
                    };
                }
            }
        }
    }
}
