//! Opening a store: lock, manifest, recovery of the logs.
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

use std::io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, ResourceBusy, Unsupported};
use std::path::Path;
use std::sync::Arc;

use super::catalog::Manifest;
use super::commit::Commit;
use super::store::{Opened, Store};
use super::view::{ReadView, Tree};
use crate::error::{Error, IoContext, Result};
use crate::exec::ThreadPool;
use crate::filter::KeyHash;
use crate::format::filename::FileKind;
use crate::format::header::{FileHeader, Magic};
use crate::format::key::{SeqNo, ValueKind};
use crate::format::span::KeySpan;
use crate::memory::pool::{CHUNK_LEN, MemtablePool};
use crate::operator::FilterHook;
use crate::options::{Compression, Options};
use crate::sorted::table::{Origin, SalvageTable, Table, TableContext, TableMeta, TableOptions};
use crate::tree::compaction::filters::policy_of_output;
use crate::tree::compaction::{OutputContext, Unknown, write_run};
use crate::tree::manifest::{self, DEFAULT_KEYSPACE, KeyspaceState, Loaded, ManifestState, encode_definition};
use crate::tree::version::Version;
use crate::vfs::{FileLock, FileSystem, store_files};
use crate::write::batch::Op;
use crate::write::log::reader::LogReader;
use crate::write::memtable::Memtable;
use crate::write::wal::{self, BatchGroup, ManifestLogs};

impl Store {
    /// Opens the store in `dir` for reading and writing.
    pub(super) fn open(dir: &Path, options: Options) -> Result<Arc<Store>> {
        options.validate()?;
        let fs = Arc::clone(&options.file_system);
        // Before anything is created, so that another program's directory is left alone.
        if manifest::find(&*fs, dir)?.is_none() && !options.create_if_missing {
            return Err(Error::NotFound(dir.to_owned()));
        }
        fs.create_dir(dir).during("create", dir)?;
        let (given, dir) = (dir, &*fs.absolute(dir).during("resolve", dir)?);
        let lock_path = FileKind::Lock.path(dir);
        let Some(lock) = fs.lock(&lock_path).during("lock", &lock_path)?.map(Arc::<dyn FileLock>::from) else {
            return Err(Error::Locked { path: given.to_owned(), holder: lock_holder(&options, &lock_path) });
        };

        // `in_force` is the number of the existing manifest while it may stay in force.
        let (mut state, found, mut in_force) = match manifest::load(&*fs, dir)? {
            Some(loaded) => (loaded.state, loaded.number, loaded.is_durable.then_some(loaded.number)),
            None => {
                sync_names_above(&*fs, dir)?;
                (new_state(&options), 0, None)
            }
        };
        find_operators(&mut state, &options);
        if let Some(wanted) = &options.default_keyspace
            && let Some(default) = state.keyspaces.get_mut(&0)
        {
            let wanted = wanted.clone().succeeding(&default.options)?;
            if wanted != default.options {
                in_force = None;
            }
            default.options = wanted;
        }
        let files = list_files(&options, dir)?;
        // A stray file is removed below. A new manifest must record that its number was used, as no
        // later edit would.
        let strays =
            |kind: &FileKind| !matches!(kind, FileKind::Wal(_)) && kind.number() >= Some(state.next_file_number);
        if files.iter().any(strays) {
            in_force = None;
        }
        let tables = new_tables(&options, dir);
        let memory = new_pool(&options);
        let sources = Sources { dir, manifest: found, files: &files, tables: &tables };
        sources.check_tables(&state)?;
        let recovery = Recovery { sources, options: &options, memory: &memory, keep: KeepIn::Tables };
        let recovered = recovery.recover(&mut state)?;
        let log_number = state.take_number();
        let header = FileHeader { number: log_number, first: recovered.last_seqno + 1, ..FileHeader::default() };
        let seed = state.hash_seed;
        let memtable = Arc::new(Memtable::new(log_number, options.memtable_size, seed, &memory));
        let view = view_of(&state, &tables, Arc::clone(&memtable), recovered.memtables);
        let manifest = match in_force {
            Some(number) if recovered.flushed == state.flushed_seqno => Manifest::found(number, state),
            _ => {
                state.flushed_seqno = recovered.flushed;
                if view.sealed.is_empty() {
                    state.min_log = log_number;
                }
                let number = state.take_number();
                Manifest::create(&*fs, dir, number, state)?
            }
        };
        let needed = |kind: &FileKind| match *kind {
            FileKind::Manifest(number) => number == manifest.number,
            FileKind::Wal(number) => number >= manifest.state.min_log,
            FileKind::Table(number) => manifest.state.has_table(number),
            FileKind::CurrentTemp => false,
            FileKind::Current | FileKind::Lock => true,
        };
        // Before anything is removed: the report of a repair promises to keep these files.
        let moves = manifest::moves::unfinished(&*fs, dir, &files, |kind| needed(&kind))?;
        manifest::moves::finish(&*fs, dir, &moves)?;
        let is_moved = |kind: &FileKind| moves.iter().any(|(moved, _)| moved == kind);
        for kind in files.iter().filter(|kind| !needed(kind) && !is_moved(kind)) {
            // A file that cannot be removed is tried again at the next open.
            match *kind {
                FileKind::Table(number) => tables.remove_file(number),
                _ => _ = fs.remove(&kind.path(dir)),
            }
        }
        let mut log_files = recovered.logs;
        log_files.retain(|number| *number >= manifest.state.min_log);

        let store = Store::new(Opened {
            dir: dir.to_owned(),
            executor: options.executor.clone().unwrap_or_else(|| Arc::new(ThreadPool::new(options.background_threads))),
            view,
            last_seqno: recovered.last_seqno,
            flushed: recovered.flushed,
            log_files,
            next_file: manifest.state.next_file_number,
            commit: Some(Commit::new(memtable, header)),
            manifest: Some(manifest),
            lock: Some(Arc::clone(&lock)),
            seed,
            memory,
            tables,
            options,
        });
        let store = Arc::new(store);
        store.tables.janitor().start(Arc::clone(&store.executor), lock);
        store.verify_if_paranoid()?;
        store.schedule();
        Ok(store)
    }

    /// Opens the store in `dir` read-only. It takes no lock: another process may write meanwhile,
    /// and reads see the store as of some moment of the opening.
    ///
    /// That process may remove logs, tables and the manifest while they are read. Only damage fails
    /// two attempts in the same way: an error counts when the next attempt repeats it.
    pub(super) fn open_read_only(dir: &Path, options: Options) -> Result<Arc<Store>> {
        options.validate()?;
        let memory = new_pool(&options);
        let mut last_failure = String::new();
        for _ in 0..READ_ONLY_ATTEMPTS {
            match read_beside_writer(dir, &options, &memory) {
                Ok(Some(found)) => return found.into_store(options, memory),
                Ok(None) => last_failure.clear(),
                Err(error) => {
                    let failure = error.to_string();
                    if last_failure == failure {
                        return Err(error);
                    }
                    last_failure = failure;
                }
            }
        }
        Err(std::io::Error::from(ResourceBusy)).during("read a consistent state of", dir)
    }

    fn verify_if_paranoid(&self) -> Result<()> {
        if self.options.paranoid {
            for tree in &self.view.load().trees {
                tree.version.tables().try_for_each(|(_, table)| table.verify())?;
            }
        }
        Ok(())
    }
}

/// What a read-only open has read beside a process that may write.
struct ReadOnlyImage {
    state: ManifestState,
    tables: Arc<TableContext>,
    recovered: Recovered,
}

/// Reads manifest and logs. `None` if entries moved from a log to a table meanwhile and were found
/// in neither.
fn read_beside_writer(dir: &Path, options: &Options, memory: &Arc<MemtablePool>) -> Result<Option<ReadOnlyImage>> {
    let fs = &*options.file_system;
    let Loaded { mut state, number, .. } = manifest::load(fs, dir)?.ok_or_else(|| Error::NotFound(dir.to_owned()))?;
    find_operators(&mut state, options);
    let files = list_files(options, dir)?;
    let tables = new_tables(options, &fs.absolute(dir).during("resolve", dir)?);
    let sources = Sources { dir, manifest: number, files: &files, tables: &tables };
    sources.check_tables(&state)?;
    // Before replaying, which takes long: compactions may remove tables meanwhile.
    open_table_files(&state, &tables, options.max_open_files)?;
    let recovery = Recovery { sources, options, memory, keep: KeepIn::Memory };
    let recovered = recovery.recover(&mut state)?;
    // A log is removed only after an edit has declared its entries flushed.
    let flushed = manifest::load(fs, dir)?.map_or(0, |now| now.state.flushed_seqno);
    Ok((flushed <= recovered.last_seqno).then_some(ReadOnlyImage { state, tables, recovered }))
}

/// Finds the merge operators that keyspaces name.
fn find_operators(state: &mut ManifestState, options: &Options) {
    for keyspace in state.keyspaces.values_mut() {
        if let Some(operator) = &mut keyspace.options.merge_operator {
            *operator = options.operator_named(operator.name());
        }
    }
}

/// Opens up to `most` table files before a writing process removes them.
fn open_table_files(state: &ManifestState, tables: &TableContext, most: usize) -> Result<()> {
    let all = state.keyspaces.values().flat_map(|keyspace| keyspace.tables());
    all.take(most).try_for_each(|(_, meta)| tables.open_file(meta.number))
}

impl ReadOnlyImage {
    fn into_store(self, options: Options, memory: Arc<MemtablePool>) -> Result<Arc<Store>> {
        let ReadOnlyImage { state, tables, recovered } = self;
        let mut memtables = recovered.memtables.into_iter().rev();
        let new_memtable = || Arc::new(Memtable::new(0, options.memtable_size, state.hash_seed, &memory));
        let active = memtables.next().unwrap_or_else(new_memtable);
        let store = Store::new(Opened {
            dir: tables.dir().to_owned(),
            executor: options.executor.clone().unwrap_or_else(|| Arc::new(ThreadPool::new(1))),
            view: view_of(&state, &tables, active, memtables.collect()),
            last_seqno: recovered.last_seqno,
            flushed: state.flushed_seqno,
            log_files: Vec::new(),
            next_file: state.next_file_number,
            commit: None,
            manifest: None,
            lock: None,
            seed: state.hash_seed,
            memory,
            tables,
            options,
        });
        let store = Arc::new(store);
        store.verify_if_paranoid()?;
        Ok(store)
    }
}

/// New file numbers follow the greatest number in the directory, but only up to half of what the
/// format allows: a stray file must not use up the numbers.
const MAX_COUNTED_NUMBER: u64 = 1 << 55;

/// Attempts of a read-only open while the store changes.
const READ_ONLY_ATTEMPTS: u32 = 100;

/// Where recovery puts the entries of the logs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeepIn {
    /// Full memtables go to new tables of level 0, added to the state; the last one stays in
    /// memory.
    Tables,
    /// All stay in memtables; nothing is written.
    Memory,
}

struct Recovered {
    last_seqno: SeqNo,
    /// Tables hold every entry up to this one.
    flushed: SeqNo,
    /// The entries after `flushed`, oldest memtable first.
    memtables: Vec<Arc<Memtable>>,
    /// The logs that were replayed, ascending.
    logs: Vec<u64>,
}

/// The files that a store is opened from.
///
/// A manifest that has lost its last edits looks like one that never had them. It shows in the
/// files: a table or log that the manifest names is missing, and a newer table that it does not
/// name holds the entries. The error then blames the manifest, and otherwise the missing file.
#[derive(Clone, Copy)]
struct Sources<'a> {
    dir: &'a Path,
    /// Number of the manifest.
    manifest: u64,
    /// Files in the directory, sorted.
    files: &'a [FileKind],
    tables: &'a Arc<TableContext>,
}

impl Sources<'_> {
    /// Refuses a store that lacks a table, before anything in its directory is changed.
    fn check_tables(&self, state: &ManifestState) -> Result<()> {
        let mut named = state.keyspaces.values().flat_map(|keyspace| keyspace.tables());
        let is_missing = |meta: &TableMeta| self.files.binary_search(&FileKind::Table(meta.number)).is_err();
        let Some((_, meta)) = named.find(|(_, meta)| is_missing(meta)) else { return Ok(()) };
        let missing = FileKind::Table(meta.number);
        // Other unnamed tables may be left over from work that a crash cut off.
        let is_later = |number: &u64| {
            let Ok(table) = SalvageTable::open(self.tables, *number, None) else { return false };
            let origin = table.origin();
            let took_place = origin.inputs.iter().any(|input| input.is_replaced && input.number == meta.number);
            !origin.by_repair && (took_place || origin.flushed > state.flushed_seqno)
        };
        match self.unnamed_tables(state).find(is_later) {
            Some(newer) => {
                let newer = FileKind::Table(newer).name();
                Err(self.outdated(format_args!(
                    "it names {}, which is gone, and not {newer}, which is newer",
                    missing.name()
                )))
            }
            None => {
                let rule = "the manifest names this table, but there is no such file";
                Err(Error::corruption(&missing.path(self.dir), 0, rule))
            }
        }
    }

    /// Tables in the directory that the manifest does not name.
    fn unnamed_tables(&self, state: &ManifestState) -> impl Iterator<Item = u64> {
        self.files.iter().filter_map(|kind| match *kind {
            FileKind::Table(number) if !state.has_table(number) => Some(number),
            _ => None,
        })
    }

    /// Returns the error to report when replaying `logs` failed with `error`. That is the
    /// manifest's if all logs begin after the missing entry and an unnamed table holds it.
    fn explain(&self, error: Error, state: &ManifestState, logs: &[u64]) -> Error {
        if !error.is_corruption() {
            return error;
        }
        let missing = state.flushed_seqno + 1;
        let begins_after = |&log: &u64| {
            let reader = LogReader::open(self.tables.fs(), &FileKind::Wal(log).path(self.dir), Magic::Wal, log);
            reader.is_ok_and(|reader| reader.header().is_ok_and(|header| header.first > missing))
        };
        let holds_missing = |number: &u64| {
            let table = Table::alone(Arc::clone(self.tables), *number, false);
            table.is_ok_and(|table| table.meta().largest_seqno >= missing)
        };
        match self.unnamed_tables(state).find(holds_missing) {
            Some(table) if logs.iter().all(begins_after) => {
                let table = FileKind::Table(table).name();
                self.outdated(format_args!(
                    "entry {missing} is in no log, and {table}, which it does not name, has later ones"
                ))
            }
            _ => error,
        }
    }

    fn outdated(&self, proof: impl std::fmt::Display) -> Error {
        let rule = format!("the manifest has lost its last edits, or an older one is in force: {proof}");
        Error::corruption(&FileKind::Manifest(self.manifest).path(self.dir), 0, rule)
    }
}

/// The inputs of recovery.
struct Recovery<'a> {
    sources: Sources<'a>,
    options: &'a Options,
    memory: &'a Arc<MemtablePool>,
    keep: KeepIn,
}

impl Recovery<'_> {
    /// Replays the logs that `state` still needs. File numbers seen in the directory count as used:
    /// they may belong to files that no edit has named yet.
    fn recover(&self, state: &mut ManifestState) -> Result<Recovered> {
        for kind in self.sources.files {
            if let FileKind::Table(number) = *kind
                && !state.has_table(number)
            {
                self.sources.tables.graveyard().bury(number);
            }
        }
        let known_ids = state.next_file_number;
        let numbers = self.sources.files.iter().filter_map(|kind| kind.number());
        let seen = numbers.filter(|&number| number <= MAX_COUNTED_NUMBER).max().unwrap_or(0);
        state.next_file_number = known_ids.max(seen + 1);
        let unused = state.next_file_number;
        self.replay_logs(state, known_ids).inspect_err(|_| {
            // A failed open leaves no new tables behind, however often it is tried.
            (unused..state.next_file_number).for_each(|number| self.sources.tables.remove_file(number));
        })
    }

    fn replay_logs(&self, state: &mut ManifestState, known_ids: u64) -> Result<Recovered> {
        let Recovery { sources: Sources { dir, .. }, options, keep, .. } = *self;
        let mut logs: Vec<u64> = self
            .sources
            .files
            .iter()
            .filter_map(|kind| match *kind {
                FileKind::Wal(number) if number >= state.min_log => Some(number),
                _ => None,
            })
            .collect();
        logs.sort_unstable();

        // The recovered memtables carry this number for all logs. It is less than that of any log
        // to be begun.
        let newest = logs.last().map_or(0, |&log| log.min(state.next_file_number - 1));
        let known = ManifestLogs { flushed: state.flushed_seqno, synced_log: state.synced_log };
        let mut rebuilt = Rebuilt {
            recovery: self,
            state,
            known_ids,
            newest,
            current: None,
            full: Vec::new(),
            flushed: known.flushed,
        };
        // An executor that runs one job at a time is for callers that need a deterministic order.
        let threaded = options.executor.as_ref().is_none_or(|executor| executor.parallelism() > 1);
        let apply = &mut |group: BatchGroup<'_>| rebuilt.add(group);
        let end = wal::recover(&*options.file_system, dir, &logs, known, threaded, apply);
        let Rebuilt { state, current, mut full, mut flushed, .. } = rebuilt;
        let end = end.map_err(|error| self.sources.explain(error, state, &logs))?;
        match current {
            Some(memtable) => full.push(memtable),
            None => flushed = end.last_seqno,
        }
        if keep == KeepIn::Tables && flushed > known.flushed {
            options.file_system.sync_dir(dir).during("sync", dir)?;
        }
        Ok(Recovered { last_seqno: end.last_seqno, flushed, memtables: full, logs })
    }

    /// Writes a recovered memtable to tables of level 0.
    fn write_recovered(&self, memtable: &Arc<Memtable>, state: &mut ManifestState) -> Result<()> {
        for (id, keys) in memtable.keyspaces() {
            // Entries of a keyspace that was dropped later are dropped with it.
            let Some(keyspace) = state.keyspaces.get(&id) else { continue };
            let options_of = keyspace.options.clone();
            let (name, definition) = (keyspace.name.clone(), encode_definition(&keyspace.name, &options_of));
            // A filter budget would need the filter sizes of all tables, and no open waits to read
            // those. This run is small, so they count as 0.
            let filter = policy_of_output(&options_of, &keyspace.metas(), 0, keys, || 0, |_, _| false);
            let number = state.take_number();
            let context = OutputContext {
                tables: self.sources.tables,
                options: TableOptions {
                    filter,
                    prefix: options_of.prefix,
                    compression: Compression::None,
                    block_size: options_of.block_size,
                    seed: state.hash_seed,
                    keyspace: id,
                },
                table_size: u64::MAX,
                snapshots: Vec::new(),
                operator: options_of.merge_operator.clone(),
                filter: FilterHook::default(),
                keyspace: &name,
                new_number: &|| number,
                cancelled: &|| false,
                paranoid: self.options.paranoid,
                origin: Origin { keyspace: definition, flushed: state.flushed_seqno, ..Origin::default() },
            };
            let written = write_run(&mut memtable.flush_cursor(id), KeySpan::default(), &context, &mut Unknown)?;
            for meta in written.into_iter().flatten() {
                state.add_table(id, 0, meta).map_err(Error::invalid)?;
            }
        }
        Ok(())
    }
}

/// The memtables rebuilt from the logs read so far.
struct Rebuilt<'a> {
    recovery: &'a Recovery<'a>,
    state: &'a mut ManifestState,
    /// Every keyspace id is below this.
    known_ids: u64,
    /// The log number that the memtables carry.
    newest: u64,
    /// The memtable being filled. Created with the first batch: returning an unused one to the pool
    /// costs more than the rest of an open.
    current: Option<Arc<Memtable>>,
    full: Vec<Arc<Memtable>>,
    /// Tables hold every entry up to this one.
    flushed: SeqNo,
}

/// An operation read from a log.
struct Insertion<'a> {
    operation: Op<'a>,
    hash: KeyHash,
    seqno: SeqNo,
    /// The number of the log if this is the first operation of its batch.
    begins_in: Option<u64>,
}

/// Operations inserted at a time. Their index slots are prefetched first, so that the cache misses
/// overlap.
const GROUP: usize = 32;

impl Rebuilt<'_> {
    fn add(&mut self, batches: BatchGroup<'_>) -> Result<()> {
        let Sources { dir, .. } = self.recovery.sources;
        let mut group = Vec::with_capacity(GROUP);
        for batch in batches.batches() {
            for (seqno, operation) in (batch.first..).zip(batch.operations()) {
                let operation = operation.map_err(|rule| batch.corruption(dir, rule))?;
                // Dropped keyspaces have lower ids too: the manifest names a keyspace before the
                // first write to it.
                if u64::from(operation.keyspace) >= self.known_ids {
                    let (id, log) = (operation.keyspace, FileKind::Wal(batch.log).name());
                    let proof = format_args!("{log} names keyspace {id} at offset {}", batch.offset);
                    return Err(self.recovery.sources.outdated(proof));
                }
                if group.len() == GROUP {
                    self.insert(&group)?;
                    group.clear();
                }
                let hash = KeyHash::new(self.state.hash_seed, operation.key);
                self.memtable().prefetch(operation.keyspace, hash);
                let begins_in = (seqno == batch.first).then_some(batch.log);
                group.push(Insertion { operation, hash, seqno, begins_in });
            }
        }
        self.insert(&group)
    }

    fn insert(&mut self, mut group: &[Insertion<'_>]) -> Result<()> {
        let size = self.recovery.options.memtable_size;
        while !group.is_empty() {
            let mut inserted = 0;
            let memtable = Arc::clone(self.memtable());
            let mut writer = memtable.writer();
            for Insertion { operation, hash, seqno, begins_in } in group {
                // A batch is never split across memtables.
                if begins_in.is_some() && writer.used() >= size {
                    break;
                }
                let Op { keyspace, kind, key, value } = *operation;
                if kind == ValueKind::Merge {
                    let fold = || self.state.keyspaces.get(&keyspace)?.options.merge_operator.as_ref()?.fold();
                    writer.insert_operand(keyspace, key, *hash, *seqno, value, fold());
                } else {
                    writer.insert_hashed(keyspace, key, *hash, *seqno, kind, value);
                }
                inserted += 1;
            }
            drop(writer);
            group = &group[inserted..];
            if let Some(log) = group.first().and_then(|next| next.begins_in) {
                self.finish_memtable(log)?;
            }
        }
        Ok(())
    }

    fn memtable(&mut self) -> &Arc<Memtable> {
        let Recovery { options, memory, .. } = self.recovery;
        let new = || Arc::new(Memtable::new(self.newest, options.memtable_size, self.state.hash_seed, memory));
        self.current.get_or_insert_with(new)
    }

    /// Finishes the current memtable, which is full. The next entries are in `log`.
    fn finish_memtable(&mut self, log: u64) -> Result<()> {
        let Some(memtable) = self.current.take() else { return Ok(()) };
        match self.recovery.keep {
            KeepIn::Tables => {
                self.recovery.write_recovered(&memtable, self.state)?;
                self.flushed = memtable.last_seqno();
                // Earlier logs are in tables, or void. Void ones must never be read again, beside
                // logs that another crash has cut short.
                self.state.min_log = log;
            }
            KeepIn::Memory => self.full.push(memtable),
        }
        Ok(())
    }
}

/// A pool that keeps the memory of one memtable with its index and sort order. While one memtable
/// is flushed, the active one reuses the memory of the one before.
fn new_pool(options: &Options) -> Arc<MemtablePool> {
    MemtablePool::new(options.memtable_size + options.memtable_size / 4 + 2 * CHUNK_LEN)
}

fn new_tables(options: &Options, dir: &Path) -> Arc<TableContext> {
    let fs = Arc::clone(&options.file_system);
    let context = TableContext::new(fs, dir, options.cache_size, options.max_open_files);
    Arc::new(context.with_listener(options.listener.clone()).with_mmap_reads(options.mmap_reads))
}

/// Makes the names of a new store's directory and of all above it durable. This includes existing
/// names, as their creator may have been interrupted. A directory that cannot be synced at all got
/// no name from a program like this one.
fn sync_names_above(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
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
    let seed = options.hash_seed.unwrap_or_else(random_seed);
    let mut state = ManifestState::new(seed);
    let options = options.default_keyspace.clone().unwrap_or_default();
    state.keyspaces.insert(0, KeyspaceState::new(DEFAULT_KEYSPACE, options));
    state
}

/// Not a secret: it keeps two stores' filters from sharing false positives.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn view_of(
    state: &ManifestState,
    tables: &Arc<TableContext>,
    active: Arc<Memtable>,
    sealed: Vec<Arc<Memtable>>,
) -> ReadView {
    let table = |meta: &TableMeta| Arc::new(Table::new(Arc::clone(tables), meta.clone()));
    let trees = state.keyspaces.iter().map(|(&id, keyspace)| Tree {
        id,
        name: Arc::from(keyspace.name.as_str()),
        options: keyspace.options.clone(),
        version: Arc::new(
            Version::default().edited(&[], keyspace.tables().map(|(level, meta)| (level, table(meta))).collect()),
        ),
        gaps: Arc::default(),
    });
    let trees = trees.collect();
    ReadView { active, sealed, trees }
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
