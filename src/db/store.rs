//! [`Store`]: the state that all handles of an open store share, and the few operations that every
//! part of the engine needs. Module [`super::locks`] says in which order its locks are taken.
//!
//! Every change of the set of tables is an edit that goes through [`Store::install`]:
//!
//! ```text
//! drop what is of gone keyspaces → durable in the manifest → a new view → files removed
//! ```
//!
//! When the last reader of a replaced table lets go, its number goes to the janitor
//! (`sorted::files`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::clock::Clock;
use super::follow::Follower;
use super::follow::reader_stats::Refreshes;
use super::gate::Gate;
use super::locks::{LockRank, RankedMutex};
use super::sequence::Sequence;
use super::shape::catalog::{Catalog, LockedManifest, Manifest};
use super::shape::dropped::DroppedNames;
use super::shape::live::LiveSnapshots;
use super::shape::view::{ReadView, Tree};
use super::signal::Signal;
use super::stats::counters::{Counters, OpeningStats};
use super::stats::notices::Notices;
use super::transaction::retry::Retries;
use super::work::background::Background;
use super::work::throttle::Throttle;
use super::work::upkeep::RangeUpkeep;
use super::write::commit::{Commit, Queue};
use super::write::logs::LiveLogs;
use super::write::stalls::Stalls;
use super::write::turns::Syncing;
use crate::environment::{Environment, Seat};
use crate::error::{Error, IoContext, Result};
use crate::exec::Executor;
use crate::format::deadline::Deadline;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::memory::epoch::Published;
use crate::memory::pool::MemtablePool;
use crate::options::Options;
use crate::rate::RateLimiter;
use crate::report::delivery::Events;
use crate::report::event::Event;
use crate::sorted::memtable::Memtable;
use crate::sorted::range_table::RangeTable;
use crate::sorted::table::{Table, TableContext, TableMeta};
use crate::sorted::values::ValueFileMeta;
use crate::tree::manifest::{ManifestState, RANGE_LEVEL, UnfinishedTask, VersionEdit};
use crate::vfs::{FileLock, FileSystem};

pub(crate) struct Store {
    /// Unique within the process: a batch made for another store is refused.
    pub(super) id: u64,
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) environment: Environment,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) tables: Arc<TableContext>,
    /// Allocates memtable memory.
    pub(super) memory: Arc<MemtablePool>,
    /// Says when the active memtable is full.
    pub(super) seat: Seat,
    /// Hash seed of the filters.
    pub(super) seed: u64,

    pub(super) gate: Gate,
    pub(super) clock: Arc<Clock>,
    pub(super) sequence: Sequence,
    pub(super) snapshots: LiveSnapshots,
    pub(super) logs: LiveLogs,
    pub(super) catalog: Catalog,
    pub(super) view: Published<ReadView>,
    /// Held while the view is replaced.
    view_change: RankedMutex<()>,
    /// Keyspaces that have changed since the agenda was brought up to date.
    pub(super) touched: Mutex<BTreeSet<u32>>,
    /// No range table has a range delete with a greater number.
    ranges_until: AtomicU64,

    /// What follows the process that writes. `None` if the store is closed, or writes itself.
    pub(super) follower: RankedMutex<Option<Follower>>,
    pub(super) refreshes: Mutex<Refreshes>,
    /// Whether point reads see what is visible and are not timed.
    pub(super) reads_plainly: bool,

    /// The active memtable and its log, held by the committing thread. `None` if the store is
    /// closed or read-only.
    pub(super) commit: RankedMutex<Option<Commit>>,
    pub(super) queue: Queue,
    /// Whether a keyspace may have been without a log since the store was opened.
    pub(super) has_unlogged: AtomicBool,
    /// How often a keyspace has begun or ceased to have a log. Raised under the commit lock, while
    /// no memtable holds an entry of the keyspace.
    pub(super) logging: AtomicU64,
    pub(super) retries: Retries,
    /// Held while a keyspace is created, changed or dropped.
    pub(super) defining: RankedMutex<()>,
    /// Ids of dropped keyspaces, with their names as long as handles keep them.
    pub(super) dropped: Mutex<DroppedNames>,
    /// Held during the upkeep of range deletes: what it knows, by keyspace.
    pub(super) tidying: Mutex<BTreeMap<u32, RangeUpkeep>>,
    /// Whether there may be something to do for it since it last began.
    pub(super) tidy_wanted: AtomicBool,
    /// Number of edits that have added range tables.
    pub(super) range_edits: AtomicU64,
    pub(super) syncing: Syncing,
    /// Wakes readers of the change feed.
    pub(super) signal: Signal,

    pub(super) background: Background,
    pub(super) throttle: Throttle,
    pub(super) rate: RateLimiter,
    pub(super) stalls: Stalls,
    pub(super) events: Events,
    pub(super) notices: Notices,
    pub(super) counters: Counters,
    pub(super) opening: OpeningStats,
}

impl Drop for Store {
    fn drop(&mut self) {
        // If opening or closing failed half-way, the lock file is released with this value; after
        // that nothing may remove files.
        self.tables.janitor().stop();
    }
}

/// The parts of a [`Store`] that opening determines.
pub(super) struct Opened {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) environment: Environment,
    pub(super) seat: Seat,
    pub(super) tables: Arc<TableContext>,
    pub(super) seed: u64,
    pub(super) clock: Arc<Clock>,
    pub(super) view: ReadView,
    pub(super) last_seqno: SeqNo,
    pub(super) flushed: SeqNo,
    pub(super) logs: LiveLogs,
    pub(super) next_file: u64,
    pub(super) commit: Option<Commit>,
    pub(super) manifest: Option<Manifest>,
    pub(super) lock: Option<Arc<dyn FileLock>>,
    /// Of a store that is opened read-only, in place of commit, manifest and lock.
    pub(super) follower: Option<Follower>,
    pub(super) opening: OpeningStats,
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
    pub(super) fn new(opened: Opened) -> Store {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let mut opened = opened;
        let touched = Mutex::new(opened.view.trees.take_touched().into_iter().collect());
        let has_unlogged = opened.view.trees.iter().any(|tree| !tree.options.wal);
        let range_numbers = opened.view.trees.iter().map(|tree| tree.version.ranges().largest_seqno());
        let ranges_until = AtomicU64::new(range_numbers.max().unwrap_or(0));
        Store {
            reads_plainly: opened.follower.is_none() && opened.options.slow_operation.is_none(),
            follower: RankedMutex::new(LockRank::Following, opened.follower),
            refreshes: Mutex::default(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            fs: Arc::clone(&opened.options.file_system),
            logs: opened.logs,
            gate: Gate::new(opened.dir.clone(), opened.lock),
            dir: opened.dir,
            clock: opened.clock,
            seat: opened.seat,
            options: opened.options,
            executor: Arc::clone(opened.environment.executor()),
            memory: Arc::clone(opened.environment.memtables()),
            seed: opened.seed,
            has_unlogged: AtomicBool::new(has_unlogged),
            view: Published::new(Arc::clone(opened.tables.epoch()), Arc::new(opened.view)),
            logging: AtomicU64::new(0),
            notices: Notices::new(opened.tables.events().clone()),
            events: opened.tables.events().clone(),
            tables: opened.tables,
            view_change: RankedMutex::new(LockRank::ViewChange, ()),
            touched,
            ranges_until,
            sequence: Sequence::new(opened.last_seqno, opened.flushed),
            snapshots: LiveSnapshots::default(),
            catalog: Catalog::new(opened.manifest, opened.next_file),
            commit: RankedMutex::new(LockRank::Commit, opened.commit),
            queue: Queue::default(),
            retries: Retries::default(),
            defining: RankedMutex::new(LockRank::Defining, ()),
            dropped: Mutex::default(),
            tidying: Mutex::default(),
            tidy_wanted: AtomicBool::new(false),
            range_edits: AtomicU64::new(0),
            syncing: Syncing::default(),
            signal: Signal::default(),
            background: Background::default(),
            throttle: Throttle::default(),
            rate: RateLimiter::new(opened.environment.rate()),
            stalls: Stalls::default(),
            counters: Counters::default(),
            opening: opened.opening,
            environment: opened.environment,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Refuses all writes from now on because of `cause`; returns `cause`.
    pub(super) fn poison(&self, cause: Error) -> Error {
        if self.gate.poison(&cause) {
            self.events.send(|| Event::Poisoned { error: cause.clone() });
        }
        self.end_urgency();
        // Waiters check for poison under this lock: they either see it or are woken.
        drop(self.background.lock());
        self.background.done.notify_all();
        // A reader of the change feed that has caught up looks for poison, too.
        self.signal.wake();
        cause
    }

    /// Fails and poisons the store if its directory is no longer the locked one: it was removed,
    /// and another store may have been opened in its place. Called before files are created or
    /// removed.
    pub(super) fn check_lock(&self) -> Result<()> {
        if !self.gate.is_lock_in_force() {
            let gone = io::Error::new(io::ErrorKind::NotFound, "removed while the store was open");
            let gone = Err(gone).during("keep the lock on", &FileKind::Lock.path(&self.dir));
            return gone.map_err(|error| self.poison(error));
        }
        Ok(())
    }

    /// Replaces the view with a copy that `change` has modified.
    pub(super) fn change_view(&self, change: impl FnOnce(&mut ReadView)) {
        let _changing = self.view_change.lock();
        let former = self.view.load();
        let mut view = ReadView::clone(&former);
        change(&mut view);
        let touched = view.trees.take_touched();
        let is_flushed = |memtable: &&Arc<Memtable>| view.memtables().all(|other| !Arc::ptr_eq(memtable, other));
        former.memtables().filter(is_flushed).for_each(|memtable| self.counters.held.add_memtable(memtable));
        drop(former);
        self.view.store(Arc::new(view));
        // After the view: the agenda loads the view after it has taken this, and never looks at a
        // view for the last time that lacks what it was told of.
        self.touched.lock().extend(touched);
    }

    /// Makes `edit` durable, then visible, together with what `change` does to the view.
    ///
    /// A failure poisons the store: whether the manifest holds the edit is unknown until it is read
    /// again.
    pub(super) fn install(&self, edit: VersionEdit, change: impl FnOnce(&mut ReadView)) -> Result<()> {
        self.install_locked(self.catalog.lock()?, edit, change)
    }

    /// [`install`](Store::install) by a caller that has locked the manifest, to make the edit.
    pub(super) fn install_locked(
        &self,
        mut manifest: LockedManifest<'_>,
        mut edit: VersionEdit,
        change: impl FnOnce(&mut ReadView),
    ) -> Result<()> {
        self.gate.check_poison()?;
        self.check_lock()?;
        let unowned = Unowned::take_from(&mut edit, &manifest.state);
        self.complete(&mut edit, manifest.state.expired_by);
        // The log has recorded the tables of an ingest.
        let ranges = self.load_ranges(&edit).inspect_err(|_| {
            if edit.ingested.is_none() {
                self.remove_new_tables(&edit);
            }
        })?;
        let written = self.catalog.write(&mut manifest, &*self.fs, &self.dir, &edit);
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

    /// Adds to an edit what is known at this moment only. `expired_by` is what the manifest says.
    fn complete(&self, edit: &mut VersionEdit, expired_by: Deadline) {
        edit.next_file_number = Some(self.catalog.next_file_number());
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
        let view = self.view.load();
        let dropped: Vec<Tree> = edit.dropped.iter().filter_map(|id| view.tree(*id).cloned()).collect();
        drop(view);
        let mut gone = Vec::new();
        // Under this lock the statistics find each table either in the view or among the retired
        // ones.
        let mut retired = self.counters.retired.lock();
        self.change_view(|view| {
            for (keyspace, level, table) in self.edit_trees(view, edit, &mut ranges, dead_values) {
                retired.add(keyspace, level, &table);
                gone.push(table);
            }
            change(view);
        });
        let of_ranges = edit.added.iter().filter(|(_, level, _)| *level == RANGE_LEVEL);
        if let Some(last) = of_ranges.map(|(.., meta)| meta.largest_seqno).max() {
            self.ranges_until.fetch_max(last, Ordering::AcqRel);
            self.range_edits.fetch_add(1, Ordering::Release);
        }
        for tree in dropped {
            let tables: Vec<Arc<Table>> = tree.version.tables().map(|(_, table)| Arc::clone(table)).collect();
            retired.drop_keyspace(tree.id, &tables, &tree.gaps.counters);
            gone.extend(tables);
            gone.extend(tree.version.ranges().tables().iter().map(|table| Arc::clone(table.table())));
        }
        drop(retired);
        gone.iter().for_each(|table| self.counters.held.add_table(table));
        gone
    }

    /// Removes the files of the tables of an edit that nothing has recorded.
    fn remove_new_tables(&self, edit: &VersionEdit) {
        let moved: HashSet<u64> = edit.removed.iter().map(|(_, _, number)| *number).collect();
        let added = edit.added.iter().map(|(_, _, meta)| meta.number);
        let added = added.filter(|number| !moved.contains(number)).map(FileKind::Table);
        let values = edit.values.iter().map(|(_, meta)| FileKind::Values(meta.number));
        self.tables.janitor().remove(added.chain(values));
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
            let of_tree = edit.removed.iter().filter(|(id, ..)| *id == tree.id);
            let (gone_ranges, removed): (Vec<_>, Vec<_>) =
                of_tree.map(|&(_, level, number)| (level, number)).partition(|(level, _)| *level == RANGE_LEVEL);
            let added_ranges: Vec<Arc<RangeTable>> =
                new_ranges.extract_if(.., |(id, _)| *id == tree.id).map(|(_, table)| table).collect();
            let new_of_tree = |(id, level, _): &&(u32, u8, TableMeta)| *id == tree.id && *level != RANGE_LEVEL;
            let new = || edit.added.iter().filter(new_of_tree).map(|(_, level, meta)| (*level, meta));
            let named: HashSet<u64> = removed.iter().map(|(_, number)| *number).collect();
            let is_named = |(_, table): &(usize, &Arc<Table>)| named.contains(&table.meta().number);
            let known: HashMap<u64, &Arc<Table>> = match named.is_empty() {
                true => HashMap::new(),
                false => {
                    tree.version.tables().filter(is_named).map(|(_, table)| (table.meta().number, table)).collect()
                }
            };
            // A table that moves to another level is removed and added.
            let table_of = |meta: &TableMeta| match known.get(&meta.number) {
                Some(&table) => Arc::clone(table),
                None => Arc::new(Table::new(Arc::clone(&self.tables), meta.clone())),
            };
            let added: Vec<(u8, Arc<Table>)> = new().map(|(level, meta)| (level, table_of(meta))).collect();
            let moved: HashSet<u64> = new().map(|(_, meta)| meta.number).collect();
            let new_values: Vec<ValueFileMeta> =
                edit.values.iter().filter(|(id, _)| *id == tree.id).map(|(_, file)| *file).collect();
            if removed.is_empty() && added.is_empty() && gone_ranges.is_empty() && added_ranges.is_empty() {
                continue;
            }
            let gone = removed.iter().filter(|(_, number)| !moved.contains(number));
            let gone = gone.filter_map(|(level, number)| Some((tree.id, *level, Arc::clone(known.get(number)?))));
            replaced.extend(gone);
            let mut version = tree.version.edited(&removed, added).with_values(&new_values, dead_values);
            if !gone_ranges.is_empty() || !added_ranges.is_empty() {
                let is_gone = |table: &&Arc<RangeTable>| gone_ranges.contains(&(RANGE_LEVEL, table.meta().number));
                let (gone, kept): (Vec<_>, Vec<_>) = tree.version.ranges().tables().iter().partition(is_gone);
                replaced.extend(gone.iter().map(|table| (tree.id, RANGE_LEVEL, Arc::clone(table.table()))));
                version = version.with_ranges(kept.into_iter().cloned().chain(added_ranges).collect());
            }
            view.trees.change(id, |tree| tree.version = Arc::new(version));
        }
        replaced
    }

    /// Whether a table may have held a range delete after `seqno`: a snapshot of that number may
    /// have kept what it deletes.
    pub(super) fn has_ranges_after(&self, seqno: SeqNo) -> bool {
        self.ranges_until.load(Ordering::Acquire) > seqno
    }

    /// Makes the names of new tables durable. A failure poisons the store: a later success would
    /// not prove that these names survive.
    pub(super) fn sync_dir(&self) -> Result<()> {
        let graveyard = self.tables.graveyard();
        let unlinked = graveyard.unlinked();
        self.fs.sync_dir(&self.dir).during("sync", &self.dir).map_err(|error| self.poison(error))?;
        graveyard.forget(&unlinked);
        Ok(())
    }

    /// Size of level 0 at which it is compacted.
    pub(super) fn base_size(&self) -> u64 {
        self.options.memtable_size as u64 * crate::tree::compaction::picker::L0_TRIGGER as u64
    }
}
