//! [`repair`]: rebuilds a store from what verifies, when damaged files keep it from opening.
//!
//! # What is trusted
//!
//! - A manifest that is good from the first edit to the last is trusted. Then only damaged tables,
//!   blocks and logs need repair.
//! - Otherwise every edit that verifies is trusted, and the tables tell the rest.
//! - A block, a record or a batch that verifies was written by the store: its checksum is bound to
//!   its file and its offset.
//!
//! # Deleted keys do not come back
//!
//! A compaction drops a tombstone when no older version of the key is left. Suppose that the
//! manifest is lost, and a file that held the key still exists: it was not unlinked yet, or a power
//! cut undid the unlinking. Then only other files can tell that it is dead. Three facts in each
//! table's properties do so (`tamis_sorted::table::Origin`):
//!
//! 1. **dead**: the tables that no version named any more, but whose unlinking was not durable,
//!    when this table was made. They are few, usually none. The list is true whatever becomes of
//!    this table. It covers every table that died before the last table was made.
//! 2. **inputs** and **range**: the tables that this one was made from, which of them it replaces,
//!    and the keys for which it stands in for them. If everything made from a table exists, that
//!    table is dead. This holds even if the compaction did not finish: the content is equal. If all
//!    inputs exist, the outputs are not needed, unless an input is damaged and all outputs exist.
//!    Otherwise the input's fate is unknown: it goes to `lost/uncertain`.
//! 3. **flushed**: the sequence number up to which every entry was in tables. A log entry up to
//!    this number is dead or in a table. So is an entry no newer than the newest entry in a table
//!    of its keyspace, because memtables are flushed in their order.
//!
//! Tables do not store:
//!
//! - *min_log*: the entries of those logs are up to *flushed*;
//! - the *live tables*, of which there are thousands: *dead* says as much about files that can come
//!   back;
//! - the *file counter*: nothing depends on the order of numbers;
//! - *branches*: no two stores share files.
//!
//! The *level* is only a hint of one byte: the entries tell which table is newer (`levels`). The
//! keyspace's name and options take about 30 bytes, and spare users from guessing them. The
//! previous manifest is not kept. It could only add keyspaces without tables, and deaths before the
//! last table was made: little, compared with the rule that there is one manifest.
//!
//! Without a good manifest, some damage leaves no trace: a missing table, or a compaction or a
//! dropped keyspace that left no table. The report then always says so ([`LossKind::Unknowable`]).
//!
//! # Order of the steps
//!
//! ```text
//! lock, read everything
//! new tables in lost/new, synced, then moved into the store   the next repair makes them anew
//! lost/repair-N.txt and lost/moves-N.txt, synced              losses, and files to be moved
//! manifest N, synced, then CURRENT                            the repair is in force
//! moves to lost/, synced                     the next repair, or opening the store, finishes them
//! lost/moves-N.txt removed
//! ```
//!
//! A repair deletes only unfinished tables of an interrupted repair. New files get new numbers,
//! above every number ever seen.

mod by_evidence;
mod evidence;
mod files;
mod levels;
mod logs;
mod lost;
mod manifests;
mod owner;
mod plan;
mod report;
mod rewrite;
mod tables;
mod values;

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

pub use report::{Loss, LossKind, MovedFile, RepairBasis, RepairFault, RepairReport};

use self::values::FoundValues;
use crate::error::{Error, IoContext, Result};
use crate::format::Malformed;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::report::progress::ProgressListener;
use crate::sorted::iter::{InternalCursor, MergeCursor};
use crate::sorted::ranges::Fragment;
use crate::sorted::table::{Input, Origin, SalvageCursor, TableContext};
use crate::tree::manifest::moves::{self, Move};
use crate::tree::manifest::{
    self, Branch, DEFAULT_KEYSPACE, KeyspaceState, Loaded, ManifestState, ManifestWriter, RANGE_LEVEL, VersionEdit,
};
use crate::vfs::{FileLock, FileSystem, OsFileSystem, store_files};
use files::Files;
use logs::{AddedTable, LogSelection};
pub(crate) use lost::LOST;
use lost::{LostDir, TakenNames};
use plan::Plan;
use rewrite::Rewrite;
use tables::{TableWriter, TargetKeyspace};

/// Options of [`repair`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairOptions {
    /// The file system that holds the store. Default: the operating system's.
    pub file_system: Arc<dyn FileSystem>,
    /// Whether to report what a repair would do, and change nothing. Default: false.
    pub dry_run: bool,
    /// Is told how far the repair has checked the tables. Default: nobody.
    pub progress: ProgressListener,
}

impl Default for RepairOptions {
    fn default() -> RepairOptions {
        let file_system = Arc::new(OsFileSystem::new());
        RepairOptions { file_system, dry_run: false, progress: ProgressListener::default() }
    }
}

impl RepairOptions {
    /// The defaults.
    pub fn new() -> RepairOptions {
        RepairOptions::default()
    }

    /// Sets the file system that holds the store.
    pub fn file_system(mut self, file_system: Arc<dyn FileSystem>) -> Self {
        self.file_system = file_system;
        self
    }

    /// Sets whether to report what a repair would do, and change nothing.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Has `listener` told how far the repair has checked the tables. What is written afterwards is
    /// the smaller part, unless most tables are damaged.
    pub fn on_progress(mut self, listener: ProgressListener) -> Self {
        self.progress = listener;
        self
    }
}

/// Maximum number of files held open at once.
const OPEN_FILES: usize = 64;
/// Larger numbers in file names are not counted, here or when a store is opened.
const GREATEST_COUNTED: u64 = 1 << 55;

/// Makes the store in `dir` one that opens, from everything in it that verifies, and reports what
/// is lost.
///
/// It works without `CURRENT`, with or without a manifest, and with damaged or missing tables,
/// blocks and logs. A sound store stays as it is. Files that no longer belong to the store are
/// moved to its directory `lost`; nothing is deleted. The repair may be interrupted at any moment
/// and repeated. It takes the lock, so no process may have the store open. A dry run only checks
/// the lock, and writes nothing. A directory in which tamis wrote nothing is refused, whatever its
/// files are called.
///
/// If the operating system refuses a read, the repair ends: copy the files to another disk first.
pub fn repair(dir: impl AsRef<Path>, options: RepairOptions) -> Result<RepairReport> {
    let (dir, fs) = (dir.as_ref(), options.file_system);
    let is_store = |kind: &FileKind| kind.number().is_some() || *kind == FileKind::Current;
    let files = list(&*fs, dir)?;
    if !files.iter().any(is_store) {
        return Err(Error::NotFound(dir.to_owned()));
    }
    manifest::refuse_partial(&*fs, dir)?;
    let context = Arc::new(TableContext::new(Arc::clone(&fs), dir, 0, OPEN_FILES));
    owner::refuse_foreign(&context, &files)?;
    let _lock = lock(&*fs, dir, options.dry_run)?;
    // List again: a process may have written until now.
    let files = Files::new(list(&*fs, dir)?).measured(&*fs, dir, &options.progress);
    let mut report = RepairReport::default();
    let in_force = manifests::find_sound(&*fs, dir, &files.manifests(), &mut report.faults)?;
    let plan = plan(&context, &files, in_force.as_ref(), &mut report)?;
    files.meter.finish();
    if report.faults.is_empty() {
        let manifest = in_force.map(|loaded| FileKind::Manifest(loaded.number));
        let is_needed = |kind| plan.needs(kind) || manifest == Some(kind);
        let unfinished = moves::unfinished(&*fs, dir, &files.all, is_needed)?;
        report.moved = lost::moved_files(&unfinished);
        if !options.dry_run {
            moves::finish(&*fs, dir, &unfinished)?;
        }
        return Ok(report);
    }
    let next =
        files.greatest().max(lost::greatest_number(&*fs, dir)?).max(plan.state.next_file_number.saturating_sub(1));
    let execution = Execution { fs: &*fs, dir, files: &files, next: Cell::new(next + 1) };
    if options.dry_run {
        execution.dry_run(plan, &mut report)?
    } else {
        execution.run(plan, &mut report)?
    }
    Ok(report)
}

/// What to do, by the manifest in force if that knows all tables, else by what the files tell.
fn plan(
    context: &Arc<TableContext>,
    files: &Files,
    in_force: Option<&Loaded>,
    report: &mut RepairReport,
) -> Result<Plan> {
    let (fs, dir) = (context.fs(), context.dir());
    if let Some(loaded) = in_force {
        if let Some(plan) = plan::by_manifest(context, files, &loaded.state, report)? {
            return Ok(plan);
        }
        let file = FileKind::Manifest(loaded.number).path(dir);
        let what = "its last edits are missing: some tables are newer than it".into();
        report.faults.push(RepairFault { file: file.clone(), offset: 0, what });
        let why = "the last edits of the manifest, or the last entries of the logs, are missing";
        report.losses.push(Loss { file: Some(file), ..Loss::anywhere(LossKind::Uncertain, why) });
    }
    let mut knowledge = manifests::read_parts(fs, dir, &files.manifests(), &mut report.faults)?;
    let logged = logs::ingested(fs, dir, &LogSelection::after(0, &files.logs()))?;
    knowledge.learn_ingests(logged, |number| files.has_number(number));
    by_evidence::by_evidence(context, files, &knowledge, report)
}

/// Takes the lock. A dry run only checks it, and writes nothing, not even the lock file.
fn lock(fs: &dyn FileSystem, dir: &Path, dry_run: bool) -> Result<Option<Box<dyn FileLock>>> {
    let path = FileKind::Lock.path(dir);
    if dry_run {
        if !fs.is_locked(&path).during("check the lock", &path)? {
            return Ok(None);
        }
    } else if let Some(lock) = fs.lock(&path).during("lock", &path)? {
        return Ok(Some(lock));
    }
    let holder = "another process, or another handle in this one".into();
    Err(Error::Locked { path: dir.to_owned(), holder })
}

fn list(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<FileKind>> {
    match store_files(fs, dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::NotFound(dir.to_owned())),
        files => files.during("list", dir),
    }
}

/// Carries out a plan.
struct Execution<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    files: &'a Files,
    next: Cell<u64>,
}

/// What a repair has written.
struct NewTables {
    tables: Vec<AddedTable>,
    /// The last sequence number that tables hold, or that logs mention.
    last_seqno: SeqNo,
}

impl Execution<'_> {
    fn new_number(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    /// Completes the report without changing anything.
    fn dry_run(&self, plan: Plan, report: &mut RepairReport) -> Result<()> {
        if let Some(selection) = &plan.logs {
            let read = logs::read(self.fs, self.dir, selection, &mut |_, _| Ok(()))?;
            plan::note_gaps(&read, report);
        }
        report.moved = lost::moved_files(&self.moves(&plan)?);
        Ok(())
    }

    fn run(&self, plan: Plan, report: &mut RepairReport) -> Result<()> {
        let (fs, dir) = (self.fs, self.dir);
        lost::prepare(fs, dir)?;
        let moves = self.moves(&plan)?;
        report.moved = lost::moved_files(&moves);
        let written = self.write_tables(&plan, &moves, report)?;
        let number = self.new_number();
        let state = self.state_after(plan, written, number)?;
        check_readable(&state).map_err(|rule| Error::corruption(&FileKind::Manifest(number).path(dir), 0, rule))?;
        report.manifest = number;
        let current = FileKind::Current.path(dir);
        let copy_current = report.faults.iter().any(|fault| fault.file == current);
        lost::write_report(fs, dir, number, &report.to_string(), &moves, copy_current)?;
        ManifestWriter::create(fs, dir, number, &state)?;
        moves::finish(fs, dir, &moves)
    }

    /// Writes the new tables, from tables and from logs, and moves them into the store.
    fn write_tables(&self, plan: &Plan, moves: &[Move], report: &mut RepairReport) -> Result<NewTables> {
        let (fs, dir, state) = (self.fs, self.dir, &plan.state);
        let context = Arc::new(TableContext::new(Arc::clone(&plan.fs), &lost::new_tables_dir(dir), 0, OPEN_FILES));
        // These tables are dead, and a power cut may undo their move.
        for (kind, _) in moves {
            if let FileKind::Table(number) = *kind {
                context.graveyard().bury(number);
            }
        }
        let new_number = || self.new_number();
        let writer = TableWriter { context: &context, seed: state.hash_seed, new_number: &new_number };
        let mut new = NewTables { tables: Vec::new(), last_seqno: state.flushed_seqno };
        // The state that was found, not the state after the repair.
        let flushed = plan.logs.as_ref().map_or(state.flushed_seqno, |logs| logs.flushed);
        for rewrite in &plan.rewrites {
            self.rewrite(rewrite, &writer, state, flushed, &plan.values, &mut new.tables)?;
        }
        if let Some(logs) = &plan.logs {
            let define = |id: u32| {
                let keyspace = state.keyspaces.get(&id);
                keyspace.map(|keyspace| (keyspace.name.clone(), keyspace.options.clone()))
            };
            let (read, tables) = logs::write(fs, dir, logs, &writer, &define)?;
            plan::note_gaps(&read, report);
            new.last_seqno = new.last_seqno.max(read.last_seqno);
            new.tables.extend(tables);
        }
        let numbers: Vec<u64> = new.tables.iter().map(|(.., meta)| meta.number).collect();
        lost::install_new(fs, dir, &numbers)?;
        Ok(new)
    }

    /// The state that the new manifest, `manifest`, says.
    fn state_after(&self, plan: Plan, new: NewTables, manifest: u64) -> Result<ManifestState> {
        let mut state = plan.state;
        // Numbers of files that were lost may be given again.
        state.branches = vec![Branch::undrawn(1)];
        state.next_file_number = self.next.get();
        state.min_log = plan.min_log.unwrap_or(manifest);
        for (keyspace, level, meta) in new.tables {
            state.add_table(keyspace, level, meta).map_err(Error::invalid)?;
        }
        if plan.logs.is_some() {
            // What is written from now on is newer than all of it. A log that has lost its end may
            // be behind an ingest.
            let tables = state.keyspaces.values().flat_map(|keyspace| keyspace.tables());
            let newest = tables.map(|(_, meta)| meta.largest_seqno).fold(state.ingested, SeqNo::max);
            state.flushed_seqno = newest.max(new.last_seqno);
        }
        Ok(state)
    }

    /// Writes what can be read of some tables to new ones, and adds these to `added`.
    fn rewrite(
        &self,
        rewrite: &Rewrite,
        writer: &TableWriter<'_>,
        state: &ManifestState,
        flushed: SeqNo,
        values: &Arc<FoundValues>,
        added: &mut Vec<AddedTable>,
    ) -> Result<()> {
        let Some(keyspace) = state.keyspaces.get(&rewrite.keyspace) else { return Ok(()) };
        let (name, options) = (keyspace.name.as_str(), &keyspace.options);
        let target = TargetKeyspace { id: rewrite.keyspace, name, options, level: rewrite.level, keys: rewrite.keys };
        let inputs = rewrite.tables.iter().map(|table| Input { number: table.number(), is_replaced: true });
        let mut inputs: Vec<Input> = inputs.collect();
        inputs.sort_unstable();
        let origin = Origin { flushed, inputs, ..Origin::default() };
        let before = rewrite.passed_holes();
        let metas = match rewrite.level {
            RANGE_LEVEL => {
                let ranges = ranges_of(&mut SalvageCursor::new(rewrite.tables.clone()))?;
                writer.write_ranges(ranges, target, origin)?.into_iter().collect()
            }
            _ => writer.write(&mut rewrite.cursor(values), target, rewrite.table_size, origin)?,
        };
        rewrite.check_holes(self.dir, before)?;
        added.extend(metas.into_iter().map(|meta| (rewrite.keyspace, rewrite.level, meta)));
        Ok(())
    }

    /// The files that no longer belong to the store, and where they go.
    fn moves(&self, plan: &Plan) -> Result<Vec<Move>> {
        let mut taken = TakenNames::list(self.fs, self.dir)?;
        let mut moves = Vec::new();
        for &kind in self.files.all.iter().filter(|kind| !plan.needs(**kind)) {
            let lost_dir = match kind {
                FileKind::Table(number) if plan.uncertain.contains(&number) => LostDir::Uncertain,
                _ => LostDir::Lost,
            };
            moves.push(taken.take(lost_dir, kind));
        }
        moves.sort_by_key(|(kind, _)| kind.name());
        Ok(moves)
    }
}

/// Better no manifest than one that cannot be read.
fn check_readable(state: &ManifestState) -> std::result::Result<(), &'static str> {
    let stated = VersionEdit::decode(&state.snapshot_edit().encode());
    let read = stated.and_then(|edit| ManifestState::from_snapshot(&edit));
    read.map(drop).map_err(|Malformed(rule)| rule)
}

/// The range deletes that can be read from a table.
fn ranges_of(cursor: &mut SalvageCursor) -> Result<Vec<Fragment>> {
    let mut ranges = Vec::new();
    cursor.seek_to_first()?;
    while cursor.valid() {
        if let Ok(range) = Fragment::stored_in(cursor.stamp(), cursor.key(), cursor.value()) {
            ranges.push(Fragment { start: range.start.into(), end: range.end.map(Arc::from), seqno: range.seqno });
        }
        cursor.next()?;
    }
    Ok(ranges)
}

/// Adds the default keyspace if it is missing.
fn with_default(state: &mut ManifestState) {
    let new = || KeyspaceState::new(DEFAULT_KEYSPACE, crate::tree::options::KeyspaceOptions::new());
    state.keyspaces.entry(0).or_insert_with(new);
}
