//! Flushes: the oldest full memtable becomes one level-0 run in each keyspace of which it has
//! entries.
//!
//! ```text
//! files synced → names synced → edit (tables, min_log) → new view → logs removed
//! ```
//!
//! Until the edit is durable, memtable and log are as they were. A flush that fails to write its
//! files removes them, and is tried again; a failed sync of names poisons the store. The edit and
//! the new view have the tables of all keyspaces at once. A log that stays for the change feed is
//! synced before the edit.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use super::background::Waiting;
use crate::db::read::tree_of;
use crate::db::shape::view::{ReadView, Tree};
use crate::db::stats::counters::Count;
use crate::db::store::Store;
use crate::db::work::throttle::MAX_SEALED;
use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::operator::CompactionHook;
use crate::options::Compression;
use crate::sorted::memtable::Memtable;
use crate::sorted::table::{Origin, TableContext, TableFilters, TableMeta, TableOptions};
use crate::sorted::values::ValueFileMeta;
use crate::tree::compaction::covered::is_needed;
use crate::tree::compaction::filters::{filters_of_output, planned};
use crate::tree::compaction::{OutputContext, Turn, ValuePolicy, write_memtable};
use crate::tree::manifest::{VersionEdit, encode_definition};

/// Disk space that flushes and compactions leave free, so that log and manifest can still be
/// written. It equals the bytes they write themselves, clamped to this range.
const FREE_SPACE_FLOOR: RangeInclusive<u64> = 256 << 10..=16 << 20;

/// The files of a flush, which no edit names yet.
#[derive(Default)]
struct FlushedFiles {
    /// Tables, with their keyspaces and levels.
    tables: Vec<(u32, u8, TableMeta)>,
    /// Value files, with their keyspaces.
    values: Vec<(u32, ValueFileMeta)>,
}

impl FlushedFiles {
    /// The size of each, with its keyspace.
    fn sizes(&self) -> impl Iterator<Item = (u32, u64)> {
        let tables = self.tables.iter().map(|(keyspace, _, meta)| (*keyspace, meta.size));
        tables.chain(self.values.iter().map(|(keyspace, meta)| (*keyspace, meta.size)))
    }

    fn remove(&self, tables: &TableContext) {
        self.tables.iter().for_each(|(.., meta)| tables.remove_file(meta.number));
        self.values.iter().for_each(|(_, meta)| tables.values().remove_new(meta.number));
    }
}

impl Store {
    /// Writes all memtables to tables, and waits for that.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<()> {
        self.gate.check_writable()?;
        // An ingest leaves no entry, but a number.
        let is_needed = |memtable: &Memtable| !memtable.is_empty() || memtable.last_seqno() > self.sequence.flushed();
        let last = self.seal_if(is_needed)?;
        self.await_flush_before(last)
    }

    /// Writes the memtables that hold entries of a keyspace to tables, and waits for that.
    pub(crate) fn flush_keyspace(self: &Arc<Self>, keyspace: u32, name: &str) -> Result<()> {
        self.gate.check_writable()?;
        let holds = |memtable: &Memtable| memtable.keyspaces().iter().any(|(id, _)| *id == keyspace);
        let view = self.shape.view();
        tree_of(&view, keyspace, name)?;
        // Lists most of its entries before the lock is taken.
        holds(&view.active);
        drop(view);
        let active = self.seal_if(holds)?;
        let last = match self.shape.view().sealed.iter().find(|memtable| holds(memtable)) {
            Some(memtable) => (memtable.log_number() + 1).min(active),
            None => return Ok(()),
        };
        self.await_flush_before(last)
    }

    /// Seals the active memtable if that `is_needed`; returns the log number of the one that is
    /// active then. While flushes fail, callers would seal ever more: then no more wait for their
    /// flush than writers may seal, and one.
    fn seal_if(self: &Arc<Self>, is_needed: impl Fn(&Memtable) -> bool) -> Result<u64> {
        let are_few = || self.shape.view().sealed.len() <= MAX_SEALED;
        loop {
            let mut commit = self.writer.lock();
            let Some(open) = commit.as_mut() else { return Err(Error::Closed) };
            if !is_needed(&open.memtable) {
                return Ok(open.memtable.log_number());
            }
            if are_few() || !self.workers.fails_to_flush() {
                self.rotate(open)?;
                return Ok(open.memtable.log_number());
            }
            drop(commit);
            self.wait_for_progress(Waiting::Flush, are_few)?;
        }
    }

    /// Waits until the memtables of logs before `log` are in tables.
    fn await_flush_before(self: &Arc<Self>, log: u64) -> Result<()> {
        self.wait_for_progress(Waiting::Flush, || {
            self.shape.view().sealed.iter().all(|memtable| memtable.log_number() >= log)
        })?;
        self.mark_synced()
    }

    /// Flushes the oldest full memtable, if there is one; returns the bytes that it wrote.
    pub(super) fn flush_oldest(self: &Arc<Self>) -> Result<u64> {
        let view = self.shape.view();
        let Some(memtable) = view.sealed.last() else { return Ok(0) };
        self.check_space(memtable.used() as u64)?;
        let mut files = FlushedFiles::default();
        self.write_memtable(memtable, &view, &mut files).inspect_err(|_| files.remove(&self.tables))?;
        // Even without new tables: the void logs that opening removed must not come back.
        self.sync_dir()?;
        // A log that stays must not lose what the tables have. Logs found on opening cannot be
        // synced any more: see `await_recovered`.
        if memtable.last_seqno() > self.sequence.recovered() && self.writer.logs().are_kept() {
            self.sync_through(memtable.last_seqno())?;
        }
        // The log of the next newer memtable is the oldest still needed.
        let newer = view.sealed.len().checked_sub(2).and_then(|at| view.sealed.get(at)).unwrap_or(&view.active);
        // A log that only lacked a feature may leave an empty memtable.
        let flushed = memtable.last_seqno().max(self.sequence.flushed());
        let sizes: Vec<(u32, u64)> = files.sizes().collect();
        let bytes = sizes.iter().map(|(_, bytes)| bytes).sum();
        let edit = VersionEdit {
            min_log: Some(newer.log_number()),
            flushed_seqno: Some(flushed),
            added: files.tables,
            values: files.values,
            ..VersionEdit::default()
        };
        let number = memtable.log_number();
        self.install(edit, |view| {
            // Before a thread that waits for the flush sees that it is done.
            self.report.counters().add(Count::Flushes, 1);
            self.report.counters().add(Count::FlushedBytes, bytes);
            for (keyspace, bytes) in sizes {
                view.tree(keyspace).iter().for_each(|tree| tree.traffic.add_written(0, bytes));
            }
            view.sealed.retain(|memtable| memtable.log_number() != number);
            // Entries that ranges deleted are in no table, and the ranges perhaps neither. What new
            // scans note of their keys does not hold for older iterators.
            for keyspace in memtable.keyspaces_with_ranges() {
                view.trees.change(keyspace, |tree| tree.gaps = Arc::new(tree.gaps.emptied()));
            }
        })?;
        self.workers.rate.note_flush(bytes, self.report.counters().amplification());
        // A recovered memtable may come from several logs.
        self.writer.logs().note_durable_before(newer.log_number());
        let gone: Vec<u64> = self.writer.logs().take_before(newer.log_number());
        for log in gone {
            // If this fails, the next open removes the log.
            let _ = self.fs().remove(&FileKind::Wal(log).path(self.dir()));
        }
        // What fails here is tried again after the next flush or compaction.
        let _ = self.tidy_ranges();
        Ok(bytes)
    }

    /// Writes the tables and value files of each keyspace that still exists.
    fn write_memtable(&self, memtable: &Arc<Memtable>, view: &ReadView, written: &mut FlushedFiles) -> Result<()> {
        let new_number = || self.shape.catalog().new_file_number();
        let turn = |bytes| {
            self.workers.rate.borrow(bytes);
            Turn::GoOn
        };
        for (keyspace, keys) in memtable.keyspaces() {
            let Some(tree) = view.tree(keyspace) else { continue };
            let held = || tree.filter_bytes(|_, _| false);
            let filters = filters_of_output(&tree.options, || planned(&tree.version), 0, keys, held, |_, _| false);
            let context = self.output_context(tree, filters, Compression::None, &new_number, &turn);
            let levels = tree.version.metas();
            let (tables, files) =
                write_memtable(memtable, keyspace, context, |range, own| is_needed(range, &levels, own))?;
            written.tables.extend(tables.into_iter().map(|(level, meta)| (keyspace, level, meta)));
            written.values.extend(files.into_iter().map(|meta| (keyspace, meta)));
        }
        Ok(())
    }

    pub(super) fn table_options(&self, tree: &Tree, filters: TableFilters, compression: Compression) -> TableOptions {
        let block_size = tree.options.block_size;
        TableOptions { filters, compression, block_size, seed: self.seed, keyspace: tree.id }
    }

    /// Returns how to write tables of `tree`.
    pub(super) fn output_context<'a>(
        &'a self,
        tree: &'a Tree,
        filters: TableFilters,
        compression: Compression,
        new_number: &'a dyn Fn() -> u64,
        turn: &'a dyn Fn(usize) -> Turn,
    ) -> OutputContext<'a> {
        OutputContext {
            tables: &self.tables,
            options: self.table_options(tree, filters, compression),
            table_size: self.options.table_size,
            table_memory: self.environment.table_memory(),
            reserved: 0,
            write_len: self.write_len(),
            snapshots: self.shape.snapshots().all(),
            ranges: tree.version.ranges().sources().collect(),
            cleared: tree.version.ranges().largest_seqno(),
            operator: tree.options.merge_operator.clone(),
            hook: CompactionHook::default(),
            now: 0,
            values: ValuePolicy::of(&tree.options),
            keyspace: &tree.name,
            new_number,
            turn,
            paranoid: self.options.paranoid,
            origin: self.origin(tree),
        }
    }

    /// How many bytes of a table or value file are written at a time.
    pub(super) fn write_len(&self) -> usize {
        let most = self.environment.write_len();
        self.workers.rate.request_len().map_or(most, |len| len.min(most))
    }

    /// Origin of a table of `tree` made from no other table, for level 0.
    pub(super) fn origin(&self, tree: &Tree) -> Origin {
        let keyspace = encode_definition(&tree.name, &tree.options);
        Origin { keyspace, flushed: self.sequence.flushed(), ..Origin::default() }
    }

    /// Fails if space for `bytes` bytes of tables may not suffice, or if the directory is no longer
    /// the store's.
    pub(crate) fn check_space(&self, bytes: u64) -> Result<()> {
        self.check_lock()?;
        self.check_space_in(self.dir(), bytes)
    }

    /// Fails if a file of `bytes` bytes in `dir` would use up what background work leaves free.
    pub(crate) fn check_space_in(&self, dir: &Path, bytes: u64) -> Result<()> {
        let free = self.fs().free_space(dir).during("measure", dir)?;
        let floor = bytes.clamp(*FREE_SPACE_FLOOR.start(), *FREE_SPACE_FLOOR.end()).min(self.base_size());
        if free < bytes.saturating_add(floor) {
            return Err(Error::no_space(dir));
        }
        Ok(())
    }
}
