//! Every change of the set of tables is an edit that goes through [`Store::install`]:
//!
//! ```text
//! drop what is of gone keyspaces → durable in the manifest → a new view → files removed
//! ```
//!
//! When the last reader of a replaced table lets go, its number goes to the janitor
//! (`sorted::files`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::catalog::LockedManifest;
use super::view::{ReadView, Tree};
use crate::db::store::Store;
use crate::error::{Error, IoContext, Result};
use crate::format::deadline::Deadline;
use crate::format::filename::FileKind;
use crate::sorted::memtable::Memtable;
use crate::sorted::range_table::RangeTable;
use crate::sorted::table::{Table, TableMeta};
use crate::sorted::values::ValueFileMeta;
use crate::sync::atomic::Ordering;
use crate::tree::compaction::filters::hand_on;
use crate::tree::manifest::{ManifestState, RANGE_LEVEL, UnfinishedTask, VersionEdit};
use crate::vfs::is_out_of_descriptors;

/// Descriptors that beginning a manifest takes: its own, and that of the file that names it.
const OF_MANIFEST: usize = 2;

/// The tables that an edit removes from a keyspace, and those that it adds, with their levels.
#[derive(Default)]
struct ChangedTables {
    removed: Vec<(u8, u64)>,
    added: Vec<(u8, Arc<Table>)>,
}

/// What an edit leaves without an owner once it is durable.
struct Unowned {
    /// Tables of keyspaces that have been dropped while they were written, and files of compactions
    /// that do not go on.
    files: Vec<FileKind>,
    /// Value files of such keyspaces.
    values: Vec<u64>,
}

impl Unowned {
    /// Takes from an edit what is of keyspaces that are gone.
    fn take_from(edit: &mut VersionEdit, state: &ManifestState) -> Unowned {
        let gone = |id: &u32| !state.keyspaces.contains_key(id);
        let mut tables: Vec<u64> =
            edit.added.extract_if(.., |(id, ..)| gone(id)).map(|(_, _, meta)| meta.number).collect();
        // A moved table stays: its readers keep the file.
        tables.retain(|number| edit.removed.iter().all(|(_, _, removed)| removed != number));
        let values = edit.values.extract_if(.., |(id, _)| gone(id)).map(|(_, meta)| meta.number).collect();
        edit.removed.retain(|(id, ..)| !gone(id));
        let unnoted: Vec<UnfinishedTask> = edit.unfinished.extract_if(.., |note| gone(&note.keyspace)).collect();
        let mut files: Vec<FileKind> = tables.into_iter().map(FileKind::Table).collect();
        files.extend(state.files_left_by(edit));
        files.extend(unnoted.iter().flat_map(UnfinishedTask::files));
        Unowned { files, values }
    }
}

impl Store {
    /// Replaces the view with a copy that `change` has modified.
    pub(crate) fn change_view(&self, change: impl FnOnce(&mut ReadView)) {
        let _changing = self.shape.view_change.lock();
        let former = self.shape.view.load();
        let mut view = ReadView::clone(&former);
        change(&mut view);
        let touched = view.trees.take_touched();
        let is_flushed = |memtable: &&Arc<Memtable>| view.memtables().all(|other| !Arc::ptr_eq(memtable, other));
        former.memtables().filter(is_flushed).for_each(|memtable| self.report.counters().held().add_memtable(memtable));
        drop(former);
        self.shape.view.store(Arc::new(view));
        // After the view: the agenda loads the view after it has taken this, and never looks at a
        // view for the last time that lacks what it was told of.
        self.shape.touched.lock().extend(touched);
    }

    /// Makes `edit` durable, then visible, together with what `change` does to the view.
    ///
    /// Without disk space for the edit, or file descriptors, nothing changes, and the files of new
    /// tables are removed. Any failure to write it poisons the store: whether the manifest holds
    /// the edit is unknown until it is read again.
    pub(crate) fn install(&self, edit: VersionEdit, change: impl FnOnce(&mut ReadView)) -> Result<()> {
        self.install_locked(self.shape.catalog.lock()?, edit, change)
    }

    /// [`install`](Store::install) by a caller that has locked the manifest, to make the edit.
    pub(crate) fn install_locked(
        &self,
        mut manifest: LockedManifest<'_>,
        mut edit: VersionEdit,
        change: impl FnOnce(&mut ReadView),
    ) -> Result<()> {
        self.gate.check_poison()?;
        self.check_lock()?;
        self.complete(&mut edit, manifest.state.expired_by);
        let prepared = self.check_means(&mut manifest, Some(&edit)).and_then(|()| self.load_ranges(&edit));
        let mut ranges = prepared.inspect_err(|_| {
            // The log has recorded the tables of an ingest.
            if edit.ingested.is_none() {
                self.remove_new_files(&edit, &manifest.state);
            }
        })?;
        let unowned = Unowned::take_from(&mut edit, &manifest.state);
        ranges.retain(|(id, _)| manifest.state.keyspaces.contains_key(id));
        let written = self.shape.catalog.write(&mut manifest, self.fs(), self.dir(), &edit);
        let mut dead_values = written.map_err(|error| self.poison(error))?;
        if let Some(flushed) = edit.flushed_seqno {
            self.sequence.note_flushed(flushed);
        }
        let gone = self.show_edit(&edit, ranges, &dead_values, change);
        drop(manifest);
        // The file of a table that is still in use is removed when its last reader drops it.
        let is_of_tables = !edit.added.is_empty() || !gone.is_empty() || !unowned.files.is_empty();
        let free: Vec<u64> = gone.into_iter().filter_map(Table::retire).collect();
        // An edit made for a sync removes no files: syncs wait for no removal.
        if is_of_tables {
            self.tables.janitor().remove(free.into_iter().map(FileKind::Table).chain(unowned.files));
        }
        // After the tables that point to them.
        dead_values.extend(unowned.values);
        self.tables.values().retire(&dead_values);
        Ok(())
    }

    /// Gives a keyspace another name: durably, by a new manifest, then visibly.
    pub(crate) fn install_name(&self, keyspace: u32, name: &str) -> Result<()> {
        let mut manifest = self.shape.catalog.lock()?;
        self.gate.check_poison()?;
        self.check_lock()?;
        self.check_means(&mut manifest, None)?;
        manifest.state.rename_keyspace(keyspace, name).map_err(Error::invalid)?;
        let restated = self.shape.catalog.restate(&mut manifest, self.fs(), self.dir());
        restated.map_err(|error| self.poison(error))?;
        self.change_view(|view| view.trees.rename(keyspace, Arc::from(name)));
        Ok(())
    }

    /// Fails if there is not what it takes to write an edit, before what it would be awkward to
    /// take back.
    pub(crate) fn check_means_of(&self, edit: &VersionEdit) -> Result<()> {
        self.check_means(&mut self.shape.catalog.lock()?, Some(edit))
    }

    /// Fails if there may not be what it takes to write an edit that must not fail, or that can be
    /// left out, with `beyond` that many bytes of disk space. A log may be created before it.
    pub(crate) fn check_ample_means(&self, beyond: u64) -> Result<()> {
        self.check_free(self.shape.catalog().ample_space().saturating_add(beyond))?;
        self.check_descriptors::<{ 1 + OF_MANIFEST }>()
    }

    /// Fails if there is not what it takes to write an edit, or to begin a manifest: disk space and
    /// file descriptors.
    fn check_means(&self, manifest: &mut LockedManifest<'_>, edit: Option<&VersionEdit>) -> Result<()> {
        self.check_free(manifest.space_for(edit))?;
        if manifest.begins_anew(edit) { self.check_descriptors::<OF_MANIFEST>() } else { Ok(()) }
    }

    /// Fails if there are not so many descriptors.
    fn check_descriptors<const COUNT: usize>(&self) -> Result<()> {
        let current = FileKind::Current.path(self.dir());
        let opened = [(); COUNT].map(|()| self.fs().open(&current));
        let lacking = opened.into_iter().find_map(|file| file.err().filter(is_out_of_descriptors));
        lacking.map_or(Ok(()), Err).during("open", &current)
    }

    /// Fails if the disk is known to have less space than that.
    fn check_free(&self, needed: u64) -> Result<()> {
        match self.fs().free_space(self.dir()) {
            Ok(free) if free < needed => Err(Error::no_space(self.dir())),
            _ => Ok(()),
        }
    }

    /// Adds to an edit what is known at this moment only. `expired_by` is what the manifest says.
    fn complete(&self, edit: &mut VersionEdit, expired_by: Deadline) {
        edit.next_file_number = Some(self.shape.catalog.next_file_number());
        // What reads have seen expired must not come back with a clock that goes back.
        if edit.flushed_seqno.is_some() && self.clock.has_deadlines() {
            edit.expired_by = edit.expired_by.max(Some(self.clock.mark()));
        }
        // Of two compactions, the one that began later may end first.
        edit.expired_by = edit.expired_by.filter(|mark| *mark > expired_by);
    }

    /// Makes an edit visible that is durable. Returns the tables that the view has lost.
    fn show_edit(
        &self,
        edit: &VersionEdit,
        mut ranges: Vec<(u32, Arc<RangeTable>)>,
        dead_values: &[u64],
        change: impl FnOnce(&mut ReadView),
    ) -> Vec<Arc<Table>> {
        let view = self.shape.view.load();
        let dropped: Vec<Tree> = edit.dropped.iter().filter_map(|id| view.tree(*id).cloned()).collect();
        drop(view);
        let mut gone = Vec::new();
        // Under this lock the statistics find each table either in the view or among the retired
        // ones.
        let mut retired = self.report.counters().retired();
        self.change_view(|view| {
            for (keyspace, level, table) in self.edit_trees(view, edit, &mut ranges, dead_values) {
                retired.add(keyspace, level, &table);
                gone.push(table);
            }
            change(view);
        });
        let of_ranges = edit.added.iter().filter(|(_, level, _)| *level == RANGE_LEVEL);
        if let Some(last) = of_ranges.map(|(.., meta)| meta.largest_seqno).max() {
            self.shape.ranges_until.fetch_max(last, Ordering::AcqRel);
            self.shape.range_edits.fetch_add(1, Ordering::Release);
        }
        for tree in dropped {
            let tables: Vec<Arc<Table>> = tree.version.tables().map(|(_, table)| Arc::clone(table)).collect();
            retired.drop_keyspace(tree.id, &tables, &tree.gaps.counters);
            gone.extend(tables);
            gone.extend(tree.version.ranges().tables().iter().map(|table| Arc::clone(table.table())));
        }
        drop(retired);
        gone.iter().for_each(|table| self.report.counters().held().add_table(table));
        gone
    }

    /// Removes the new files of an edit that nothing else records: not those of a table that moves,
    /// nor those that the note of an unfinished task names, which go with that.
    fn remove_new_files(&self, edit: &VersionEdit, state: &ManifestState) {
        let moved = edit.removed.iter().map(|(_, _, number)| FileKind::Table(*number));
        let noted = state.unfinished.values().flat_map(UnfinishedTask::files);
        let recorded: HashSet<FileKind> = moved.chain(noted).collect();
        let tables = edit.added.iter().map(|(_, _, meta)| FileKind::Table(meta.number));
        let values = edit.values.iter().map(|(_, meta)| FileKind::Values(meta.number));
        let noted_anew = edit.unfinished.iter().flat_map(UnfinishedTask::files);
        let new = tables.chain(values).chain(noted_anew);
        self.tables.janitor().remove(new.filter(|file| !recorded.contains(file)));
    }

    /// Reads the range tables that `edit` adds.
    fn load_ranges(&self, edit: &VersionEdit) -> Result<Vec<(u32, Arc<RangeTable>)>> {
        let added = edit.added.iter().filter(|(_, level, _)| *level == RANGE_LEVEL);
        let load = |(id, _, meta): &(u32, u8, TableMeta)| {
            let table = Table::new(Arc::clone(&self.tables), meta.clone()).of_ranges(true);
            RangeTable::load(Arc::new(table)).map(|table| (*id, Arc::new(table)))
        };
        added.map(load).collect()
    }

    /// Applies the tables of `edit` to the view. Returns the tables that left it, with keyspace and
    /// level.
    fn edit_trees(
        &self,
        view: &mut ReadView,
        edit: &VersionEdit,
        new_ranges: &mut Vec<(u32, Arc<RangeTable>)>,
        dead_values: &[u64],
    ) -> Vec<(u32, u8, Arc<Table>)> {
        let mut replaced = Vec::new();
        let keyspaces: BTreeSet<u32> = edit.keyspaces().collect();
        for id in keyspaces {
            let Some(tree) = view.trees.get(id) else { continue };
            let new_values: Vec<ValueFileMeta> =
                edit.values.iter().filter(|(of, _)| *of == id).map(|(_, file)| *file).collect();
            let tables = self.edit_tables(tree, edit, &mut replaced);
            let ranges = edit_ranges(tree, edit, new_ranges, &mut replaced);
            if tables.is_none() && ranges.is_none() {
                continue;
            }
            let ChangedTables { removed, added } = tables.unwrap_or_default();
            let mut version = tree.version.edited(&removed, added).with_values(&new_values, dead_values);
            if let Some(ranges) = ranges {
                version = version.with_ranges(ranges);
            }
            view.trees.change(id, |tree| tree.version = Arc::new(version));
        }
        replaced
    }

    /// The tables that `edit` removes from a keyspace and adds to it, range tables aside; `None` if
    /// there are none. Those that leave it are added to `replaced`.
    fn edit_tables(
        &self,
        tree: &Tree,
        edit: &VersionEdit,
        replaced: &mut Vec<(u32, u8, Arc<Table>)>,
    ) -> Option<ChangedTables> {
        let is_meant = |id: u32, level: u8| id == tree.id && level != RANGE_LEVEL;
        let removed = edit.removed.iter().filter(|(id, level, _)| is_meant(*id, *level));
        let removed: Vec<(u8, u64)> = removed.map(|&(_, level, number)| (level, number)).collect();
        let named: HashSet<u64> = removed.iter().map(|(_, number)| *number).collect();
        let is_named = |(_, table): &(usize, &Arc<Table>)| named.contains(&table.meta().number);
        let known: HashMap<u64, &Arc<Table>> = match named.is_empty() {
            true => HashMap::new(),
            false => tree.version.tables().filter(is_named).map(|(_, table)| (table.meta().number, table)).collect(),
        };
        // A table that moves to another level is removed and added.
        let table_of = |meta: &TableMeta| match known.get(&meta.number) {
            Some(&table) => Arc::clone(table),
            None => Arc::new(Table::new(Arc::clone(&self.tables), meta.clone())),
        };
        let added = edit.added.iter().filter(|(id, level, _)| is_meant(*id, *level));
        let added: Vec<(u8, Arc<Table>)> = added.map(|(_, level, meta)| (*level, table_of(meta))).collect();
        let moved: HashSet<u64> = added.iter().map(|(_, table)| table.meta().number).collect();
        let gone = removed.iter().filter(|(_, number)| !moved.contains(number));
        let gone: Vec<(u8, &Arc<Table>)> =
            gone.filter_map(|(level, number)| Some((*level, *known.get(number)?))).collect();
        hand_on(&gone, added.iter().map(|(_, table)| table).filter(|table| !known.contains_key(&table.meta().number)));
        replaced.extend(gone.into_iter().map(|(level, table)| (tree.id, level, Arc::clone(table))));
        (!removed.is_empty() || !added.is_empty()).then_some(ChangedTables { removed, added })
    }
}

/// The range tables of a keyspace after `edit`; `None` if it changes none. Those that leave the
/// keyspace are added to `replaced`, those that come are taken from `new`.
fn edit_ranges(
    tree: &Tree,
    edit: &VersionEdit,
    new: &mut Vec<(u32, Arc<RangeTable>)>,
    replaced: &mut Vec<(u32, u8, Arc<Table>)>,
) -> Option<Vec<Arc<RangeTable>>> {
    let removed = edit.removed.iter().filter(|(id, level, _)| *id == tree.id && *level == RANGE_LEVEL);
    let removed: HashSet<u64> = removed.map(|(.., number)| *number).collect();
    let added: Vec<Arc<RangeTable>> = new.extract_if(.., |(id, _)| *id == tree.id).map(|(_, table)| table).collect();
    if removed.is_empty() && added.is_empty() {
        return None;
    }
    let is_gone = |table: &&Arc<RangeTable>| removed.contains(&table.meta().number);
    let (gone, kept): (Vec<_>, Vec<_>) = tree.version.ranges().tables().iter().partition(is_gone);
    replaced.extend(gone.iter().map(|table| (tree.id, RANGE_LEVEL, Arc::clone(table.table()))));
    Some(kept.into_iter().cloned().chain(added).collect())
}
