//! [`Store`]: what all handles of an open store share, and the few operations that every part of the engine needs.
//!
//! Locks, in the order in which they may be taken: `defining`, `commit`, the lead of `syncing`, `manifest`, `background`, `view_change`,
//! `logs`, `log_files`, `snapshots`. Readers take none of them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};

use super::background::Background;
use super::stalls::Stalls;
use super::stats::Counters;
use super::sync::Syncing;
use super::throttle::Throttle;
use super::view::{ReadView, Tree};
use super::write::{Commit, Queue};
use crate::error::{Error, IoContext, Result};
use crate::exec::Executor;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::memory::epoch::Published;
use crate::memory::pool::Pool;
use crate::options::Options;
use crate::sorted::table::{Table, TableContext};
use crate::tree::manifest::{ManifestState, ManifestWriter, VersionEdit};
use crate::vfs::{FileLock, FileSystem, WritableFile};
use crate::write::memtable::Memtable;

/// More than an edit takes, but for a manifest that is begun anew.
const EDIT_ROOM: u64 = 1 << 20;
/// A manifest is written anew when it has grown beyond this and beyond four times what it was at first.
const MANIFEST_ROTATION_LEN: u64 = 4 << 20;

pub(super) struct Store {
    /// Tells this store from others in the process, so that a batch meant for another one is refused.
    pub(super) id: u64,
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) tables: Arc<TableContext>,
    /// Where memtables have their memory from.
    pub(super) memory: Arc<Pool>,
    /// Seed of the filters' hash.
    pub(super) seed: u64,
    pub(super) read_only: bool,

    pub(super) view: Published<ReadView>,
    /// Held while the view is replaced.
    view_change: Mutex<()>,
    /// Every write up to this sequence number can be seen.
    pub(super) visible: AtomicU64,
    /// Every write up to this one is on stable storage.
    pub(super) durable: AtomicU64,
    /// Every write up to this one is in a table.
    pub(super) flushed: AtomicU64,
    /// Every write up to this one was recovered on opening, or was in tables then.
    pub(super) recovered: SeqNo,
    /// The next file number.
    pub(super) next_file: AtomicU64,
    /// Live snapshots and how many handles each has.
    pub(super) snapshots: Mutex<BTreeMap<SeqNo, usize>>,
    /// Compactions can drop more once no snapshot is older than this. The scheduler writes it
    /// before it looks at `snapshots`; a snapshot's end reads it under that lock. So one of them
    /// sees the other.
    held_until: AtomicU64,

    /// The log and what goes with it; held by whoever commits. `None` in a store that is closed or was
    /// opened read-only.
    pub(super) commit: Mutex<Option<Commit>>,
    pub(super) queue: Queue,
    /// Held while a keyspace is created, changed or dropped.
    pub(super) defining: Mutex<()>,
    pub(super) syncing: Syncing,
    /// Logs that may hold writes that are not durable, oldest first.
    pub(super) logs: Mutex<Vec<LogFile>>,
    /// Numbers of the logs in the directory, ascending; those go that the manifest lets go.
    pub(super) log_files: Mutex<Vec<u64>>,
    /// `None` in a store that is closed or was opened read-only.
    pub(super) manifest: Mutex<Option<Manifest>>,

    pub(super) background: Mutex<Background>,
    /// Notified when a background job ends, and when the store is poisoned or closed.
    pub(super) background_done: Condvar,
    /// Set while some background work has failed and not succeeded since.
    pub(super) retry_wanted: AtomicBool,
    /// Set while there is urgent work that no thread has taken. Changed with `background` locked.
    pub(super) urgent_waiting: AtomicBool,
    pub(super) throttle: Throttle,
    pub(super) stalls: Stalls,
    pub(super) counters: Counters,

    /// The first failure of the log or the manifest.
    poison: OnceLock<Arc<Error>>,
    /// No operation is taken any more.
    pub(super) closed: AtomicBool,
    /// How closing ended, for every caller of it.
    pub(super) close_result: OnceLock<Result<()>>,
    /// Background work ends as soon as it can. Set while `background` is locked: no job is begun
    /// from then on.
    pub(super) stopping: AtomicBool,
    pub(super) lock: Mutex<Option<Arc<dyn FileLock>>>,
}

/// A log file that may have to be synced.
#[derive(Clone)]
pub(super) struct LogFile {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn WritableFile>,
    /// The first sequence number in it.
    pub(super) first: SeqNo,
    /// Whether the directory has been synced since the file was created.
    pub(super) name_durable: Arc<AtomicBool>,
    /// Whether the manifest says that it holds synced entries.
    pub(super) is_named: Arc<AtomicBool>,
}

/// The manifest in force and what it says.
pub(super) struct Manifest {
    pub(super) number: u64,
    /// `None` for one that was there before the store was opened: the first edit begins a new one.
    pub(super) writer: Option<ManifestWriter>,
    pub(super) state: ManifestState,
    /// Length at which it is written anew.
    rotate_at: u64,
}

impl Manifest {
    /// The manifest that was found in force, which says `state`.
    pub(super) fn found(number: u64, state: ManifestState) -> Manifest {
        Manifest { number, writer: None, state, rotate_at: 0 }
    }

    /// A new manifest, which begins with `state`. It is in force.
    pub(super) fn create(fs: &dyn FileSystem, dir: &Path, number: u64, state: ManifestState) -> Result<Manifest> {
        let mut manifest = Manifest::found(number, state);
        manifest.begin(fs, dir, number)?;
        Ok(manifest)
    }

    /// Goes on in a new manifest. If that cannot be put in force, this is as it was.
    fn begin(&mut self, fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<()> {
        let writer = ManifestWriter::create(fs, dir, number, &self.state)?;
        self.rotate_at = (4 * writer.len()).max(MANIFEST_ROTATION_LEN);
        (self.number, self.writer) = (number, Some(writer));
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // If opening or closing has failed half-way: the lock goes with this value, and with it the
        // right to remove files.
        self.tables.janitor().stop();
    }
}

/// The parts of a [`Store`] that opening finds out.
pub(super) struct Opened {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) tables: Arc<TableContext>,
    pub(super) memory: Arc<Pool>,
    pub(super) seed: u64,
    pub(super) view: ReadView,
    pub(super) last_seqno: SeqNo,
    pub(super) flushed: SeqNo,
    pub(super) log_files: Vec<u64>,
    pub(super) next_file: u64,
    pub(super) commit: Option<Commit>,
    pub(super) manifest: Option<Manifest>,
    pub(super) lock: Option<Arc<dyn FileLock>>,
}

impl Store {
    pub(super) fn new(opened: Opened) -> Store {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Store {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            fs: Arc::clone(&opened.options.file_system),
            dir: opened.dir,
            options: opened.options,
            executor: opened.executor,
            memory: opened.memory,
            seed: opened.seed,
            read_only: opened.commit.is_none(),
            view: Published::new(Arc::clone(opened.tables.epoch()), Arc::new(opened.view)),
            tables: opened.tables,
            view_change: Mutex::new(()),
            visible: AtomicU64::new(opened.last_seqno),
            durable: AtomicU64::new(opened.flushed),
            flushed: AtomicU64::new(opened.flushed),
            recovered: opened.last_seqno,
            next_file: AtomicU64::new(opened.next_file),
            snapshots: Mutex::default(),
            held_until: AtomicU64::new(SeqNo::MAX),
            commit: Mutex::new(opened.commit),
            queue: Queue::default(),
            defining: Mutex::new(()),
            syncing: Syncing::default(),
            logs: Mutex::default(),
            log_files: Mutex::new(opened.log_files),
            manifest: Mutex::new(opened.manifest),
            background: Mutex::default(),
            background_done: Condvar::new(),
            retry_wanted: AtomicBool::new(false),
            urgent_waiting: AtomicBool::new(false),
            throttle: Throttle::default(),
            stalls: Stalls::default(),
            counters: Counters::default(),
            poison: OnceLock::new(),
            closed: AtomicBool::new(false),
            close_result: OnceLock::new(),
            stopping: AtomicBool::new(false),
            lock: Mutex::new(opened.lock),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Takes a file number that was never used before.
    pub(super) fn new_file_number(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.read_only {
            return Err(Error::ReadOnly(self.dir.clone()));
        }
        self.check_poison()
    }

    pub(super) fn check_poison(&self) -> Result<()> {
        match self.poison.get() {
            Some(cause) => Err(Error::Poisoned(Arc::clone(cause))),
            None => Ok(()),
        }
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.poison.get().is_some()
    }

    /// Refuses all writes from here on, because of `cause`. Returns `cause`.
    pub(super) fn poison(&self, cause: Error) -> Error {
        if !matches!(cause, Error::Poisoned(_)) {
            // Only the first cause counts.
            let _ = self.poison.set(Arc::new(cause.clone()));
        }
        // A waiter looks at the poison while it holds the lock, so it either sees it or is woken.
        drop(self.background.lock());
        self.background_done.notify_all();
        cause
    }

    /// Fails, for good, if the directory is not the store's any more: somebody has removed it and,
    /// maybe, opened another store in its place. Asked before files are created or removed.
    pub(super) fn check_lock(&self) -> Result<()> {
        if self.lock.lock().as_ref().is_some_and(|lock| !lock.is_in_force()) {
            let gone = io::Error::new(io::ErrorKind::NotFound, "removed while the store was open");
            let gone = Err(gone).during("keep the lock on", &FileKind::Lock.path(&self.dir));
            return gone.map_err(|error| self.poison(error));
        }
        Ok(())
    }

    /// Replaces the view by what `change` makes of it.
    pub(super) fn change_view(&self, change: impl FnOnce(&mut ReadView)) {
        let _changing = self.view_change.lock();
        let former = self.view.load();
        let mut view = ReadView::clone(&former);
        change(&mut view);
        let is_flushed = |memtable: &&Arc<Memtable>| view.memtables().all(|other| !Arc::ptr_eq(memtable, other));
        former.memtables().filter(is_flushed).for_each(|memtable| self.counters.held.add_memtable(memtable));
        drop(former);
        self.view.store(Arc::new(view));
    }

    /// Makes `edit` durable and then visible, together with whatever else `change` does to the view.
    ///
    /// A failure poisons the store: whether the edit is in the manifest is unknown until it is read again.
    pub(super) fn install(&self, mut edit: VersionEdit, change: impl FnOnce(&mut ReadView)) -> Result<()> {
        let mut locked = self.manifest.lock();
        let Some(manifest) = locked.as_mut() else { return Err(Error::Closed) };
        self.check_poison()?;
        self.check_lock()?;
        // A keyspace may have been dropped while its tables were written.
        let gone = |id: &u32| !manifest.state.keyspaces.contains_key(id);
        let mut orphans: Vec<u64> =
            edit.added.extract_if(.., |(id, ..)| gone(id)).map(|(_, _, meta)| meta.number).collect();
        // A table that was to be moved is not new: whoever reads it keeps its file.
        orphans.retain(|number| edit.removed.iter().all(|(_, _, removed)| removed != number));
        edit.removed.retain(|(id, ..)| !gone(id));
        edit.next_file_number = Some(self.next_file.load(Ordering::Relaxed));

        self.write_edit(manifest, &edit).map_err(|error| self.poison(error))?;

        if let Some(flushed) = edit.flushed_seqno {
            self.flushed.fetch_max(flushed, Ordering::AcqRel);
            self.durable.fetch_max(flushed, Ordering::AcqRel);
        }
        let view = self.view.load();
        let dropped: Vec<Tree> = edit.dropped.iter().filter_map(|id| view.tree(*id).cloned()).collect();
        drop(view);
        let mut gone = Vec::new();
        // Whoever reads the statistics meanwhile finds each table in the view or among the retired ones.
        let mut retired = self.counters.retired.lock();
        self.change_view(|view| {
            for (keyspace, level, table) in self.edit_trees(view, &edit) {
                retired.add(keyspace, level, &table);
                gone.push(table);
            }
            change(view);
        });
        for tree in dropped {
            let tables: Vec<Arc<Table>> = tree.version.tables().map(|(_, table)| Arc::clone(table)).collect();
            retired.drop_keyspace(tree.id, &tables, &tree.gaps.counters);
            gone.extend(tables);
        }
        drop(retired);
        gone.iter().for_each(|table| self.counters.held.add_table(table));
        drop(locked);
        // Files that readers still hold go when the last reader lets go.
        let is_of_tables = !edit.added.is_empty() || !gone.is_empty() || !orphans.is_empty();
        let free: Vec<u64> = gone.into_iter().filter_map(Table::retire).collect();
        // A sync, which may wait for any other edit, waits for no removal.
        if is_of_tables {
            self.tables.janitor().remove(free.into_iter().chain(orphans));
        }
        Ok(())
    }

    /// Whether anything has changed of what the manifest said on opening.
    pub(super) fn has_new_manifest(&self) -> bool {
        self.manifest.lock().as_ref().is_some_and(|manifest| manifest.writer.is_some())
    }

    /// More than the next edit takes on disk.
    pub(super) fn room_for_edit(&self) -> u64 {
        let manifest = self.manifest.lock();
        let begins_anew =
            |manifest: &&Manifest| manifest.writer.as_ref().is_none_or(|writer| writer.len() >= manifest.rotate_at);
        let whole = manifest.as_ref().filter(begins_anew).map(|manifest| manifest.state.snapshot_edit().encode().len());
        EDIT_ROOM + 2 * whole.unwrap_or(0) as u64
    }

    fn write_edit(&self, manifest: &mut Manifest, edit: &VersionEdit) -> Result<()> {
        let old = FileKind::Manifest(manifest.number).path(&self.dir);
        let len = manifest.writer.as_ref().map_or(0, ManifestWriter::len);
        manifest.state.apply(edit).map_err(|rule| Error::corruption(&old, len, rule))?;
        if let Some(writer) = &mut manifest.writer
            && len < manifest.rotate_at
        {
            return writer.append(edit);
        }
        let number = self.new_file_number();
        manifest.state.next_file_number = self.next_file.load(Ordering::Relaxed);
        manifest.begin(&*self.fs, &self.dir, number)?;
        // A manifest that is left behind is removed when the store is opened next.
        let _ = self.fs.remove(&old);
        Ok(())
    }

    /// Applies the tables of `edit` to the view; returns the tables that are in no version any more, with keyspace and level.
    fn edit_trees(&self, view: &mut ReadView, edit: &VersionEdit) -> Vec<(u32, u8, Arc<Table>)> {
        let mut replaced = Vec::new();
        for tree in &mut view.trees {
            let removed: Vec<(u8, u64)> = edit
                .removed
                .iter()
                .filter(|(id, ..)| *id == tree.id)
                .map(|&(_, level, number)| (level, number))
                .collect();
            let mut added = Vec::new();
            let mut moved = Vec::new();
            for (_, level, meta) in edit.added.iter().filter(|(id, ..)| *id == tree.id) {
                let existing = tree.version.tables().find(|(_, table)| table.meta().number == meta.number);
                let table = match existing {
                    Some((_, table)) => {
                        moved.push(meta.number);
                        Arc::clone(table)
                    }
                    None => Arc::new(Table::new(Arc::clone(&self.tables), meta.clone())),
                };
                added.push((*level, table));
            }
            if removed.is_empty() && added.is_empty() {
                continue;
            }
            for &(level, number) in removed.iter().filter(|(_, number)| !moved.contains(number)) {
                let table = tree.version.tables().find(|(_, table)| table.meta().number == number);
                replaced.extend(table.map(|(_, table)| (tree.id, level, Arc::clone(table))));
            }
            tree.version = Arc::new(tree.version.edited(&removed, added));
        }
        replaced
    }

    /// Makes the names of new tables durable. A failure is final: whether the names would survive is unknown from then on, and a
    /// later success would say nothing of them.
    pub(super) fn sync_dir(&self) -> Result<()> {
        let graveyard = self.tables.graveyard();
        let unlinked = graveyard.unlinked();
        self.fs.sync_dir(&self.dir).during("sync", &self.dir).map_err(|error| self.poison(error))?;
        graveyard.forget(&unlinked);
        Ok(())
    }

    /// Sequence numbers of the live snapshots, ascending.
    pub(super) fn live_snapshots(&self) -> Vec<SeqNo> {
        self.snapshots.lock().keys().copied().collect()
    }

    /// The oldest live snapshot, or the greatest number if there is none.
    pub(super) fn oldest_snapshot(&self) -> SeqNo {
        self.snapshots.lock().keys().next().copied().unwrap_or(SeqNo::MAX)
    }

    /// Notes that snapshots older than `until` hold garbage; returns whether none of them is left.
    pub(super) fn hold_garbage(&self, until: SeqNo) -> bool {
        self.held_until.store(until, Ordering::Relaxed);
        self.releases_garbage(&self.snapshots.lock())
    }

    /// Whether compactions can drop what snapshots have held, now that `snapshots` are left.
    pub(super) fn releases_garbage(&self, snapshots: &BTreeMap<SeqNo, usize>) -> bool {
        let until = self.held_until.load(Ordering::Relaxed);
        until < SeqNo::MAX && snapshots.keys().next().is_none_or(|oldest| *oldest >= until)
    }

    /// Bytes that level 0 holds when it is compacted.
    pub(super) fn base_size(&self) -> u64 {
        self.options.memtable_size as u64 * crate::tree::compaction::picker::L0_TRIGGER as u64
    }
}
