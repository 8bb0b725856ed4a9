//! Opening a store: lock, manifest, recovery of the logs (`recovery`).
//!
//! Recovery changes nothing that it still needs. Full memtables rebuilt from the logs become new
//! tables, which one new manifest names. The last memtable, which is not full, stays in memory with
//! its logs and is flushed in the background like any other. Only after that flush are those logs
//! removed, and only then are later writes declared durable. Therefore recovery may be interrupted
//! anywhere and start again.
//!
//! Opening writes only what it must. The manifest stays in force if it is known to be durable and
//! nothing has changed; the first write begins a log. Therefore an open does not wait for the disk
//! after a clean close, nor after a kill if the logs' writes fit into one memtable.

mod close;
pub(crate) mod recovery;
pub(crate) mod replay;

use std::io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::open::recovery::{Recovered, Recovery, Sources};
use super::sequence::Sequence;
use super::shape::Shape;
use super::shape::catalog::Manifest;
use super::shape::view::{ReadView, Tree};
use super::stats::counters::OpeningStats;
use super::stats::page::begins_as_page;
use super::store::{Opened, Store};
use super::write::Writer;
use super::write::commit::Commit;
use super::write::logs::{LiveLogs, survey};
use crate::environment::Environment;
use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::format::header::FileHeader;
use crate::format::key::SeqNo;
use crate::format::random_bits;
use crate::options::Options;
use crate::report::delivery::Events;
use crate::sorted::files::ThriftyFileSystem;
use crate::sorted::memtable::Memtable;
use crate::sorted::range_table::RangeTable;
use crate::sorted::table::{Table, TableContext, TableMeta};
use crate::sorted::values::ValueScan;
use crate::sync::time;
use crate::tree::manifest::{self, KeyspaceState, Loaded, ManifestState, RANGE_LEVEL};
use crate::vfs::{FileLock, FileSystem, store_files};

impl Store {
    /// Opens the store in `dir` for reading and writing.
    pub(super) fn open(dir: &Path, options: Options) -> Result<Arc<Store>> {
        options.validate()?;
        let mut phases = Phases::begin();
        let options = thrifty(options, dir);
        let (dir, lock) = create_and_lock(dir, &options)?;
        let mut start = StartState::load(&dir, &options)?;
        let files = list_files(&options, &dir)?;
        start.note_strays(&files);
        start.state.forget_stale(|kind| files.binary_search(&kind).is_ok());
        let environment = environment_of(&options, options.own.background_threads);
        let options = options.fitted(&environment);
        let seat = environment.enter(options.memtable_size);
        let events = environment.delivery().connect(&options.listener);
        let tables = new_tables(&options, &environment, &dir, &events);
        tables.hold_dir()?;
        let options = Options { file_system: tables.shared_fs(), ..options };
        let sources = Sources { dir: &dir, manifest: start.found, files: &files, tables: &tables };
        sources.check_tables(&start.state)?;
        let manifest_time = phases.next();
        let (oldest_log, known_numbers) = (start.state.min_log, start.state.next_file_number);
        let recovery = Recovery { sources, options: &options, environment: &environment };
        let recovered = recovery.recover(&mut start.state)?;
        let logs = found_logs(&dir, &options, &files, oldest_log, &recovered)?;
        let void = void_logs(&files, oldest_log, &logs);
        let logs_time = phases.next();
        start.may_stay &= void.iter().all(|kind| kind.number() < Some(known_numbers));
        start.may_stay &= !recovered.has_ingested;

        let (log_number, seed) = (start.state.take_number(), start.state.hash_seed);
        let first = recovered.last_seqno + 1;
        let (previous, previous_len) = logs.newest().unwrap_or_default();
        let header = FileHeader { number: log_number, first, previous, previous_len, ..FileHeader::default() };
        let first_size = environment.first_size(options.memtable_size);
        let clock = clock_of(&options, &start.state, &recovered);
        let new_memtable = || Arc::new(Memtable::new(log_number, first_size, seed, environment.memtables()));
        // Without recovered memtables, tables hold all entries.
        let min_log = if recovered.memtable.is_none() { log_number } else { start.state.min_log };
        // Entries that are not known to be durable have to go to tables: see `await_recovered`.
        let may_stay = recovered.durable == recovered.last_seqno && logs.are_short_from(min_log, options.memtable_size);
        let (memtable, sealed) = match recovered.memtable {
            Some(memtable) if may_stay => (memtable, None),
            sealed => (new_memtable(), sealed),
        };
        let view = view_of(&start.state, &clock, &tables, Arc::clone(&memtable), sealed)?;
        let tables_time = phases.next();
        let manifest = start.put_in_force(&*options.file_system, &dir, recovered.flushed, min_log)?;
        remove_void(&*options.file_system, &dir, &void)?;
        logs.take_before(manifest.state.min_log);
        remove_unneeded(&*options.file_system, &dir, &files, &manifest, &logs, &tables)?;
        let next_file = manifest.state.next_file_number;
        let opening = OpeningStats {
            manifest: manifest_time,
            logs: logs_time,
            tables: tables_time,
            files: phases.next(),
            operations: recovered.operations,
        };

        let store = Arc::new(Store::new(Opened {
            environment,
            clock,
            sequence: Sequence::new(recovered.last_seqno, recovered.flushed, recovered.durable),
            writer: Writer::new(Some(Commit::new(memtable, header)), logs, seat, &view),
            shape: Shape::new(view, tables.epoch(), next_file, Some(manifest)),
            lock: Some(Arc::clone(&lock)),
            follower: None,
            seed,
            tables,
            options,
            opening,
        }));
        store.tables.janitor().start(Arc::clone(store.executor()), lock);
        store.verify_if_paranoid()?;
        store.join_environment();
        store.adopt_unfinished()?;
        store.schedule();
        store.publish_stats();
        Ok(store)
    }

    pub(super) fn verify_if_paranoid(&self) -> Result<()> {
        if self.options.paranoid {
            for tree in self.shape.view().trees.iter() {
                tree.version.values().values().try_for_each(|file| ValueScan::verify(self.tables.values(), file))?;
                tree.version.tables().try_for_each(|(_, table)| table.verify())?;
                tree.version.ranges().tables().iter().try_for_each(|ranges| ranges.table().verify())?;
            }
        }
        Ok(())
    }
}

/// Measures the phases of an opening.
pub(super) struct Phases(Instant);

impl Phases {
    pub(super) fn begin() -> Phases {
        Phases(time::now())
    }

    /// The time since the last call.
    pub(super) fn next(&mut self) -> Duration {
        let now = time::now();
        now.duration_since(std::mem::replace(&mut self.0, now))
    }
}

/// Creates the store's directory if it is missing, and locks it. Returns its absolute path.
fn create_and_lock(given: &Path, options: &Options) -> Result<(PathBuf, Arc<dyn FileLock>)> {
    let fs = &*options.file_system;
    // Before anything is created, so that another program's directory is left alone.
    if manifest::find(fs, given)?.is_none() && !options.create_if_missing {
        return Err(Error::NotFound(given.to_owned()));
    }
    fs.create_dir(given).during("create", given)?;
    let dir = fs.absolute(given).during("resolve", given)?;
    let lock_path = FileKind::Lock.path(&dir);
    match fs.lock(&lock_path).during("lock", &lock_path)? {
        Some(lock) => Ok((dir, Arc::from(lock))),
        None => Err(Error::Locked { path: given.to_owned(), holder: lock_holder(options, &lock_path) }),
    }
}

/// What the manifest says when the store is opened.
struct StartState {
    state: ManifestState,
    /// Number of the manifest; 0 in a new store.
    found: u64,
    /// Whether that manifest may stay in force: it is known to be durable, and states what it
    /// should.
    may_stay: bool,
}

impl StartState {
    fn load(dir: &Path, options: &Options) -> Result<StartState> {
        let fs = &*options.file_system;
        let (mut state, found, mut may_stay) = match manifest::load(fs, dir)? {
            Some(Loaded { state, number, is_durable }) => (state, number, is_durable),
            None => {
                sync_names_above(fs, dir)?;
                (new_state(options), 0, false)
            }
        };
        state.find_operators(|name| options.operator_named(name));
        // What a copy of a store writes from now on is not its original's. It is told from others
        // by its branch, which must not be another one at each opening: a new manifest states it.
        may_stay &= !state.draw_branch(random_bits);
        if let Some(wanted) = &options.default_keyspace
            && let Some(default) = state.keyspaces.get_mut(&0)
        {
            let wanted = wanted.clone().succeeding(&default.options)?;
            may_stay &= wanted == default.options;
            default.options = wanted;
        }
        Ok(StartState { state, found, may_stay })
    }

    /// Looks for stray files: with numbers that the manifest does not know to be used. They are
    /// removed later, but a new manifest must record their numbers, as no later edit would. Logs
    /// stay until an edit, unless they are void.
    fn note_strays(&mut self, files: &[FileKind]) {
        let next = self.state.next_file_number;
        self.may_stay &= !files.iter().any(|kind| !matches!(kind, FileKind::Wal(_)) && kind.number() >= Some(next));
    }

    /// Keeps the manifest in force if it still says what is true. Otherwise begins a new one, by
    /// which tables hold the entries up to `flushed` and the logs from `min_log` are needed.
    fn put_in_force(mut self, fs: &dyn FileSystem, dir: &Path, flushed: SeqNo, min_log: u64) -> Result<Manifest> {
        if self.may_stay && flushed == self.state.flushed_seqno {
            return Ok(Manifest::found(self.found, self.state));
        }
        (self.state.flushed_seqno, self.state.min_log) = (flushed, min_log);
        let number = self.state.take_number();
        Manifest::create(fs, dir, number, self.state)
    }
}

fn log_number(kind: &FileKind) -> Option<u64> {
    if let FileKind::Wal(number) = kind { Some(*number) } else { None }
}

/// The logs among `files` from which the store was recovered, those from number `oldest` on, and
/// those that are kept.
fn found_logs(
    dir: &Path,
    options: &Options,
    files: &[FileKind],
    oldest: u64,
    recovered: &Recovered,
) -> Result<LiveLogs> {
    let numbers: Vec<u64> = files.iter().filter_map(log_number).collect();
    let Recovered { last_seqno, last_log, .. } = *recovered;
    let found = survey(&*options.file_system, dir, &numbers, oldest, last_seqno, last_log, options.keep_log)?;
    Ok(LiveLogs::found(found, options.keep_log))
}

/// Logs that recovery has read, those from number `oldest` on, and found to be void.
fn void_logs(files: &[FileKind], oldest: u64, logs: &LiveLogs) -> Vec<FileKind> {
    let counted = logs.numbers();
    let is_void = |number: u64| number >= oldest && !counted.contains(&number);
    files.iter().filter(|kind| log_number(kind).is_some_and(is_void)).copied().collect()
}

/// Removes void logs durably, before anything is removed that shows that they are void.
fn remove_void(fs: &dyn FileSystem, dir: &Path, void: &[FileKind]) -> Result<()> {
    if void.is_empty() {
        return Ok(());
    }
    for path in void.iter().map(|kind| kind.path(dir)) {
        fs.remove(&path).during("remove", &path)?;
    }
    fs.sync_dir(dir).during("sync", dir)
}

/// Finishes the moves of an interrupted repair, then removes the files that the store does not
/// need.
fn remove_unneeded(
    fs: &dyn FileSystem,
    dir: &Path,
    files: &[FileKind],
    manifest: &Manifest,
    logs: &LiveLogs,
    tables: &TableContext,
) -> Result<()> {
    let logs = logs.numbers();
    let needed = |kind: &FileKind| match *kind {
        FileKind::Manifest(number) => number == manifest.number,
        FileKind::Wal(number) => logs.contains(&number),
        FileKind::Table(number) => manifest.state.has_table(number),
        FileKind::Values(number) => manifest.state.has_values(number),
        FileKind::CurrentTemp => false,
        // A program of the user's may have such a file.
        FileKind::Stats | FileKind::StatsTemp => !begins_as_page(fs, &kind.path(dir)),
        FileKind::Current | FileKind::Lock | FileKind::Partial => true,
    };
    // Before anything is removed: the report of the repair promises to keep these files.
    let moves = manifest::moves::unfinished(fs, dir, files, |kind| needed(&kind))?;
    manifest::moves::finish(fs, dir, &moves)?;
    let is_moved = |kind: &FileKind| moves.iter().any(|(moved, _)| moved == kind);
    for kind in files.iter().filter(|kind| !needed(kind) && !is_moved(kind)) {
        // A file that cannot be removed is tried again at the next open.
        match *kind {
            FileKind::Table(number) => tables.remove_file(number),
            _ => _ = fs.remove(&kind.path(dir)),
        }
    }
    Ok(())
}

/// The store's environment: the given one, or one of its own with so many threads.
pub(super) fn environment_of(options: &Options, background_threads: usize) -> Environment {
    options.environment.clone().unwrap_or_else(|| {
        let own = options.own.clone().background_threads(background_threads);
        Environment::of_one_store(own, options.memtable_size)
    })
}

/// Also what opens a store has files closed that others of its environment do not use.
pub(super) fn thrifty(mut options: Options, dir: &Path) -> Options {
    if let Some(environment) = &options.environment {
        let fs = ThriftyFileSystem::new(options.file_system, &environment.tables().files, dir);
        options.file_system = Arc::new(fs);
    }
    options
}

pub(super) fn new_tables(
    options: &Options,
    environment: &Environment,
    dir: &Path,
    events: &Events,
) -> Arc<TableContext> {
    let fs = Arc::clone(&options.file_system);
    let context = TableContext::sharing(fs, dir, environment.tables(), options.read_mode);
    Arc::new(context.with_events(events.clone()))
}

/// Makes the names of a new store's directory and of all above it durable. This includes existing
/// names, as their creator may have been interrupted. A directory that cannot be synced at all got
/// no name from a program like this one.
pub(super) fn sync_names_above(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    for above in dir.ancestors().skip(1) {
        match fs.sync_dir(above) {
            Err(error)
                if matches!(error.kind(), PermissionDenied | InvalidInput | ReadOnlyFilesystem | Unsupported) => {}
            result => result.during("sync", above)?,
        }
    }
    Ok(())
}

fn new_state(options: &Options) -> ManifestState {
    // It keeps two stores' filters from sharing false positives.
    let seed = options.hash_seed.unwrap_or_else(random_bits);
    let mut state = ManifestState::new(seed);
    let options = options.default_keyspace.clone().unwrap_or_default();
    state.add_default_keyspace(options);
    state
}

fn clock_of(options: &Options, state: &ManifestState, recovered: &Recovered) -> Arc<Clock> {
    let clock = Clock::new(options.clock.clone(), state.expired_by);
    let with_ttl = state.keyspaces.iter().filter(|(_, keyspace)| keyspace.options.ttl.is_some());
    with_ttl.for_each(|(id, _)| clock.note_ttl(*id));
    let mut tables = state.keyspaces.values().flat_map(|keyspace| keyspace.tables());
    if recovered.has_deadlines || tables.any(|(_, table)| table.deadlines.count > 0) {
        clock.note_deadlines();
    }
    Arc::new(clock)
}

fn view_of(
    state: &ManifestState,
    clock: &Arc<Clock>,
    tables: &Arc<TableContext>,
    active: Arc<Memtable>,
    sealed: Option<Arc<Memtable>>,
) -> Result<ReadView> {
    let table = |meta: &TableMeta| Table::new(Arc::clone(tables), meta.clone());
    let tree = |(&id, keyspace): (&u32, &KeyspaceState)| -> Result<Tree> {
        let (ranges, entries): (Vec<_>, Vec<_>) = keyspace.tables().partition(|(level, _)| *level == RANGE_LEVEL);
        let entries = entries.iter().map(|(level, meta)| (*level, Arc::new(table(meta)))).collect();
        // Damage there fails the open: reads without the ranges would return what they delete.
        let ranges =
            ranges.iter().map(|(_, meta)| RangeTable::load(Arc::new(table(meta).of_ranges(true))).map(Arc::new));
        Ok(Tree::new(id, keyspace, entries, ranges.collect::<Result<_>>()?, clock, tables.values()))
    };
    let trees = state.keyspaces.iter().map(tree).collect::<Result<_>>()?;
    Ok(ReadView { active, sealed: sealed.into_iter().collect(), trees, horizon: Arc::default() })
}

fn list_files(options: &Options, dir: &Path) -> Result<Vec<FileKind>> {
    store_files(&*options.file_system, dir).during("list", dir)
}

fn lock_holder(options: &Options, path: &Path) -> String {
    let text = crate::vfs::read_small_file(&*options.file_system, path, 64).unwrap_or_default();
    match String::from_utf8_lossy(&text).trim() {
        "" => "another process".to_owned(),
        pid if pid == std::process::id().to_string() => "another handle in this process".to_owned(),
        pid => format!("process {pid}"),
    }
}
