//! New filters for existing tables: each table in turn is replaced by a copy, by an edit of its
//! own.
//!
//! A copy equals its original in all that decides what reads see and what compaction does: level,
//! keys and sequence numbers. While a copy is made, compactions of its neighbourhood wait (see
//! `Picker::pick_table`), and readers that hold the original keep it.

use std::sync::Arc;

use super::background::Request;
use crate::db::shape::view::Tree;
use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::filter::filter_bytes;
use crate::memory::budget::{MemoryCharge, MemoryUse};
use crate::options::{Compression, LevelFilters};
use crate::sorted::table::{Input, Origin, Table, TableMeta};
use crate::tree::compaction::filters::{filters_of_all, planned, range_bytes};
use crate::tree::compaction::picker::{Picker, Requested};
use crate::tree::compaction::task::Task;
use crate::tree::manifest::VersionEdit;

/// Filters are renewed anew after a concurrent change of options at most so many times.
const MAX_ROUNDS: u32 = 32;

/// Progress of renewing a keyspace's filters; see
/// [`Keyspace::rebuild_filters`](crate::Keyspace::rebuild_filters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterRebuild {
    /// Tables that needed a new filter at the start. If the options change meanwhile, the tables of
    /// each further round are added.
    pub wanted: u64,
    /// Tables that had the right filter at the start of the last round, and were left alone.
    pub unchanged: u64,
    /// Tables replaced. Ends up less than `wanted` only if compactions came first, which give the
    /// right filter too.
    pub replaced: u64,
    /// Bytes of the replaced tables.
    pub bytes_before: u64,
    /// Bytes of the copies.
    pub bytes_after: u64,
}

/// Which tables get new filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those whose filter differs from the one that the options ask for, or cannot be used.
    Unfit,
    /// All.
    All,
}

impl Store {
    /// Gives every table of a keyspace the filter that its options ask for.
    pub(crate) fn renew_filters(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        mut scope: Scope,
        mut progress: impl FnMut(&FilterRebuild),
    ) -> Result<FilterRebuild> {
        self.flush()?;
        let mut rebuild = FilterRebuild::default();
        for _ in 0..MAX_ROUNDS {
            // Wait for flushes and compactions that began under other options; all that begin now
            // use these.
            self.run_requested(keyspace, Request::Compact, |picker| match picker.running {
                [] => Requested::Done,
                _ => Requested::Wait,
            })?;
            let tree = self.tree(keyspace, name)?;
            let (wanted, unchanged) = tables_to_refilter(&tree, scope)?;
            let options = tree.options.clone();
            // Holding it would keep the file of every replaced table until the end.
            drop(tree);
            rebuild.wanted += wanted.len() as u64;
            rebuild.unchanged = unchanged;
            progress(&rebuild);
            for (number, size) in wanted {
                let pick = |picker: &Picker<'_>| picker.pick_table(number);
                // Zero bytes: the keyspace was dropped.
                let written = self.run_requested(keyspace, Request::Refilter, pick)?;
                if let Some(written @ 1..) = written {
                    rebuild.replaced += 1;
                    rebuild.bytes_before += size;
                    rebuild.bytes_after += written;
                }
                progress(&rebuild);
            }
            // Each table followed the options of its moment. After a concurrent change, go round
            // again, so that all filters follow the latest options.
            if self.tree(keyspace, name)?.options == options {
                return Ok(rebuild);
            }
            scope = Scope::Unfit;
        }
        Err(Error::invalid("the options of the keyspace change all the time; renew its filters later"))
    }

    fn tree(&self, keyspace: u32, name: &str) -> Result<Tree> {
        self.shape.view().tree(keyspace).cloned().ok_or_else(|| Error::KeyspaceDropped(name.to_owned()))
    }

    /// Replaces the one table of `task` by a copy with the right filter; returns the bytes of the
    /// copy.
    pub(super) fn refilter(self: &Arc<Self>, keyspace: u32, task: &Task) -> Result<u64> {
        // The keyspace may have been dropped.
        let Some(tree) = self.shape.view().tree(keyspace).cloned() else { return Ok(0) };
        let tables = tree.version.tables().zip(filters_of_all(&tree.options, &planned(&tree.version)));
        let taken = tables.map(|((level, table), filters)| (level, table, filters));
        let found = taken.into_iter().find(|(level, table, _)| task.takes(*level, table.meta().number));
        let Some((_, table, filters)) = found else { return Ok(0) };
        let table = Arc::clone(table);
        let inputs = vec![Input { number: table.meta().number, is_replaced: true }];
        let origin = Origin { level: task.output_level, inputs, ..self.origin(&tree) };
        let memory = self.table_options(&tree, filters, Compression::None).memory_of(std::iter::once(table.meta()));
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        drop(tree);
        // With prefixes a filter may hold twice as many keys.
        let keys = table.meta().keys.saturating_mul(if filters.prefix.is_some() { 2 } else { 1 });
        let filter_bytes = filter_bytes(filters.points, keys).saturating_add(range_bytes(filters.ranges, keys));
        self.check_space(task.bytes.saturating_add(filter_bytes))?;
        let _charge = MemoryCharge::new(self.tables.budget(), MemoryUse::Jobs, memory);
        let cancelled = |bytes| {
            self.pace(bytes);
            self.workers.is_stopping()
        };
        let copy =
            table.refilter(self.shape.catalog().new_file_number(), filters, &origin, self.write_len(), &cancelled)?;
        // It has the same entries.
        let copy = TableMeta { cleared: table.meta().cleared, kept: table.meta().kept, ..copy.ok_or(Error::Closed)? };
        // The edit removes its file, unless a reader holds it.
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

/// Number and size of the tables to refilter, and the count of the others.
fn tables_to_refilter(tree: &Tree, scope: Scope) -> Result<(Vec<(u64, u64)>, u64)> {
    let (mut wanted, mut unchanged) = (Vec::new(), 0);
    let filters = filters_of_all(&tree.options, &planned(&tree.version));
    for ((_, table), filters) in tree.version.tables().zip(filters) {
        // A budget's share changes with every write: a few hundredths of a bit are not worth
        // copying a table.
        let tolerance = match tree.options.level_filters {
            LevelFilters::Budget(_) => (filters.points.millibits() / 20).max(250),
            _ => 0,
        };
        if scope == Scope::Unfit && table.has_filters(filters, tolerance)? {
            unchanged += 1;
        } else {
            wanted.push((table.meta().number, table.meta().size));
        }
    }
    Ok((wanted, unchanged))
}
