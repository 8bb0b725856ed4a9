//! [`repair`]: makes a store of what verifies, when opening it fails because its files are damaged.
//!
//! # What is trusted
//!
//! - A manifest that is good from the first edit to the last is believed. Then only damaged tables,
//!   blocks and logs are treated.
//! - Otherwise everything that manifests say where they verify is believed, and the rest is found
//!   out from the tables.
//! - A block, a record or a batch that verifies was written by the store: its checksum is bound to
//!   its file and place.
//!
//! # Deleted keys do not come back
//!
//! A compaction drops a tombstone when nothing older is left of the key. If the manifest is lost,
//! and a file that held the key is still there (it waits for its unlinking, or a power cut took
//! that back), then only other files can tell that it is dead. Three things in the properties of
//! each table do ([`Origin`](crate::sorted::table::Origin)):
//!
//! 1. **dead**: the tables that no version named any more, but whose unlinking was not durable,
//!    when this table was made. There are few, usually none. This is the truth whatever becomes of
//!    the table itself. It covers every table that died before the last table was made.
//! 2. **inputs** and **range**: the tables that this one was made from, which of them it replaces,
//!    and for which keys it says all that they say. If all of what was made of a table is there,
//!    the table is dead, also if the compaction did not come to its end: the content is the same.
//!    If all inputs are there, then what was made of them is not needed, unless one is damaged and
//!    all that was made of them is there. Otherwise it is not known: the input goes to
//!    `lost/uncertain`.
//! 3. **flushed**: the sequence number up to which everything was in tables. An entry of a log up
//!    to there is dead, or in a table. So is one that is not newer than the newest entry of a table
//!    of its keyspace: memtables are flushed in their order.
//!
//! Not written down are: *min_log*, because what is in those logs is up to *flushed*; the *live
//! tables*, of which there are thousands, because *dead* says the same of files that can come back;
//! the *file counter*, because nothing depends on the order of numbers; *branches*, because no two
//! stores share files. The *level* is a hint only, a byte: which table is newer is read from the
//! entries ([`levels`]). Name and options of the keyspace spare the user to guess them; they take
//! about 30 bytes. The previous manifest is not kept either: what it could add, keyspaces without
//! tables and deaths before the last table was made, is little beside the rule that a manifest is
//! the only one.
//!
//! What this cannot know, a report always says ([`LossKind::Unknowable`]) when the manifest was not
//! good: a table that is missing leaves no trace, nor does a compaction or a dropped keyspace that
//! left no table.
//!
//! # In which order it is done
//!
//! ```text
//! lock, read everything
//! new tables in lost/new, synced, then moved to their place     the next repair makes them anew
//! lost/repair-N.txt and lost/moves-N.txt, synced                losses, and files to be moved
//! manifest N, synced, then CURRENT                              the repair has happened
//! moves to lost/, synced                       the next repair, or opening the store, finishes them
//! lost/moves-N.txt removed
//! ```
//!
//! Nothing is deleted but unfinished tables of an interrupted repair. Numbers are new ones, above
//! all that were ever seen.

mod evidence;
mod levels;
mod logs;
mod lost;
mod manifests;
mod owner;
mod plan;
mod report;
mod tables;

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

pub use report::{Loss, LossKind, MovedFile, RepairBasis, RepairFault, RepairReport};

use crate::error::{Error, IoContext, Result};
use crate::format::Malformed;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::sorted::merge::MergingCursor;
use crate::sorted::table::{Input, Origin, SalvageCursor, TableContext};
use crate::tree::manifest::moves::{self, Move};
use crate::tree::manifest::{DEFAULT_KEYSPACE, KeyspaceState, ManifestState, ManifestWriter, VersionEdit};
use crate::vfs::{FileLock, FileSystem, OsFileSystem, store_files};
pub(crate) use lost::LOST;
use lost::{Place, Taken};
use plan::{Files, Plan};
use tables::{Target, Writer};

/// How a store is repaired.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairOptions {
    /// Where the store is. Default: the operating system's file system.
    pub file_system: Arc<dyn FileSystem>,
    /// Whether to find out only what would be done. Default: false.
    pub dry_run: bool,
}

impl Default for RepairOptions {
    fn default() -> RepairOptions {
        RepairOptions { file_system: Arc::new(OsFileSystem::new()), dry_run: false }
    }
}

impl RepairOptions {
    /// The defaults.
    pub fn new() -> RepairOptions {
        RepairOptions::default()
    }

    /// Sets where the store is.
    pub fn file_system(mut self, file_system: Arc<dyn FileSystem>) -> Self {
        self.file_system = file_system;
        self
    }

    /// Sets whether to find out only what would be done.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

/// Files held open at once.
const OPEN_FILES: usize = 64;
/// Numbers in names count up to here, as they do when a store is opened.
const GREATEST_COUNTED: u64 = 1 << 55;
/// Size of the tables that a merge makes.
const TABLE_SIZE: u64 = 64 << 20;

/// Makes the store in `dir` one that can be opened, from everything in it that verifies, and
/// reports what is lost.
///
/// It works without `CURRENT`, with or without a manifest, and with damaged or missing tables,
/// blocks and logs. A store that is in order is left as it is. What does not belong to the store
/// any more is moved to the directory `lost` in it; nothing is deleted. The repair may be
/// interrupted at any moment and begun anew. It takes the lock, so that no process may have the
/// store open; a dry run asks for the lock only, and writes nothing. A directory in which nothing
/// was written by tamis is refused, whatever its files are called.
///
/// A read that the operating system refuses ends the repair: copy the files to another disk first.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let path = dir.path().join("words.db");
/// # let db = tamis::Db::open(&path)?;
/// # db.put("apple", "1")?;
/// # db.close()?;
/// # let current = path.join("CURRENT");
/// # std::fs::remove_file(&current).expect("it is there");
/// use tamis::RepairOptions;
///
/// let report = tamis::repair(&path, RepairOptions::new())?;
/// for loss in &report.losses {
///     println!("{loss}");
/// }
/// let db = tamis::Db::open(&path)?;
/// assert_eq!(db.get("apple")?.as_deref(), Some(&b"1"[..]));
/// # Ok(()) }
/// ```
pub fn repair(dir: impl AsRef<Path>, options: RepairOptions) -> Result<RepairReport> {
    let (dir, fs) = (dir.as_ref(), options.file_system);
    let is_store = |kind: &FileKind| !matches!(kind, FileKind::Lock | FileKind::CurrentTemp);
    let files = list(&*fs, dir)?;
    if !files.iter().any(is_store) {
        return Err(Error::NotFound(dir.to_owned()));
    }
    let context = Arc::new(TableContext::new(Arc::clone(&fs), dir, 0, OPEN_FILES));
    owner::refuse_foreign(&context, &files)?;
    let _lock = lock(&*fs, dir, options.dry_run)?;
    // Again: it may have been written to until now.
    let files = Files::new(list(&*fs, dir)?);
    let mut report = RepairReport::default();
    let in_force = manifests::find_sound(&*fs, dir, &files.manifests(), &mut report.faults)?;
    let planned = match &in_force {
        Some(loaded) => {
            let planned = plan::by_manifest(&context, &files, &loaded.state, &mut report)?;
            if planned.is_none() {
                let file = FileKind::Manifest(loaded.number).path(dir);
                let what = "its last edits are missing: there are tables that know of them".into();
                report.faults.push(RepairFault { file: file.clone(), offset: 0, what });
                let why = "the last edits of the manifest are missing, or the last entries of the logs";
                report.losses.push(Loss { file: Some(file), ..Loss::anywhere(LossKind::Uncertain, why) });
            }
            planned
        }
        None => None,
    };
    let plan = match planned {
        Some(plan) => plan,
        None => {
            let knowledge = manifests::read_parts(&*fs, dir, &files.manifests(), &mut report.faults)?;
            plan::by_evidence(&context, &files, &knowledge, &mut report)?
        }
    };
    if report.faults.is_empty() {
        let manifest = in_force.map(|loaded| FileKind::Manifest(loaded.number));
        let is_needed = |kind| plan.needs(kind) || manifest == Some(kind);
        let unfinished = moves::unfinished(&*fs, dir, &files.all, is_needed)?;
        report.moved = lost::in_report(&unfinished);
        if !options.dry_run {
            moves::finish(&*fs, dir, &unfinished)?;
        }
        return Ok(report);
    }
    let next =
        files.greatest().max(lost::greatest_number(&*fs, dir)?).max(plan.state.next_file_number.saturating_sub(1));
    let carry_out = CarryOut { fs: &*fs, dir, files: &files, next: Cell::new(next + 1) };
    if options.dry_run {
        carry_out.dry_run(plan, &mut report)?
    } else {
        carry_out.run(plan, &mut report)?
    }
    Ok(report)
}

/// Takes the lock. A dry run only asks for it: it writes nothing, not even the lock's file.
fn lock(fs: &dyn FileSystem, dir: &Path, dry_run: bool) -> Result<Option<Box<dyn FileLock>>> {
    let path = FileKind::Lock.path(dir);
    if dry_run {
        if !fs.is_locked(&path).during("look at the lock", &path)? {
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

/// Carries out what was planned.
struct CarryOut<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    files: &'a Files,
    next: Cell<u64>,
}

impl CarryOut<'_> {
    fn new_number(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    /// Fills in the report.
    fn dry_run(&self, plan: Plan, report: &mut RepairReport) -> Result<()> {
        if let Some(wanted) = &plan.logs {
            let read = logs::read(self.fs, self.dir, wanted, &mut |_, _| Ok(()))?;
            plan::note_gaps(&read, report);
        }
        report.moved = lost::in_report(&self.moves(&plan)?);
        Ok(())
    }

    fn run(&self, plan: Plan, report: &mut RepairReport) -> Result<()> {
        let (fs, dir) = (self.fs, self.dir);
        lost::prepare(fs, dir)?;
        let moves = self.moves(&plan)?;
        report.moved = lost::in_report(&moves);
        let Plan { mut state, rewrites, merges, logs: wanted, min_log, fs: shared, .. } = plan;
        let context = Arc::new(TableContext::new(shared, &lost::dir_of_new(dir), 0, OPEN_FILES));
        // Until they are moved, and for as long as a power cut may take that back.
        for (kind, _) in &moves {
            if let FileKind::Table(number) = *kind {
                context.graveyard().bury(number);
            }
        }
        let new_number = || self.new_number();
        let writer = Writer { context: &context, seed: state.hash_seed, new_number: &new_number };
        // What was found to be so, not what comes of the repair.
        let flushed = wanted.as_ref().map_or(state.flushed_seqno, |wanted| wanted.flushed);
        let mut added = Vec::new();
        for rewrite in rewrites {
            let Some(keyspace) = state.keyspaces.get(&rewrite.keyspace) else { continue };
            let target = Target {
                id: rewrite.keyspace,
                name: &keyspace.name,
                options: &keyspace.options,
                level: rewrite.level,
                keys: rewrite.keys,
            };
            let inputs = rewrite.tables.iter().map(|table| Input { number: table.number(), is_replaced: true });
            let origin = Origin { flushed, inputs: inputs.collect(), ..Origin::default() };
            let before = rewrite.passed_holes();
            let mut cursor = SalvageCursor::new(rewrite.tables.clone());
            let metas = writer.write(&mut cursor, target, u64::MAX, origin)?;
            rewrite.check_holes(dir, before)?;
            added.extend(metas.into_iter().map(|meta| (rewrite.keyspace, rewrite.level, meta)));
        }
        for merge in merges {
            let Some(keyspace) = state.keyspaces.get(&merge.keyspace) else { continue };
            let (name, options) = (keyspace.name.as_str(), &keyspace.options);
            let target = Target { id: merge.keyspace, name, options, level: merge.level, keys: merge.keys };
            let mut inputs: Vec<Input> =
                merge.tables.iter().map(|table| Input { number: table.number(), is_replaced: true }).collect();
            inputs.sort_unstable();
            let origin = Origin { flushed, inputs, ..Origin::default() };
            let sources = levels::runs(&merge.tables).into_iter().map(SalvageCursor::new).collect();
            let before = merge.passed_holes();
            let metas = writer.write(&mut MergingCursor::new(sources), target, TABLE_SIZE, origin)?;
            merge.check_holes(dir, before)?;
            added.extend(metas.into_iter().map(|meta| (merge.keyspace, merge.level, meta)));
        }
        let mut last_seqno: SeqNo = state.flushed_seqno;
        if let Some(wanted) = &wanted {
            let define = |id: u32| {
                let keyspace = state.keyspaces.get(&id);
                keyspace.map(|keyspace| (keyspace.name.clone(), keyspace.options.clone()))
            };
            let (read, tables) = logs::write(fs, dir, wanted, &writer, &define)?;
            plan::note_gaps(&read, report);
            last_seqno = last_seqno.max(read.last_seqno);
            added.extend(tables.into_iter().map(|(keyspace, meta)| (keyspace, 0, meta)));
        }
        let new: Vec<u64> = added.iter().map(|(.., meta)| meta.number).collect();
        lost::place_new(fs, dir, &new)?;

        let number = self.new_number();
        state.next_file_number = self.next.get();
        state.flushed_seqno = last_seqno;
        state.min_log = min_log.unwrap_or(number);
        for (keyspace, level, meta) in added {
            state.add_table(keyspace, level, meta).map_err(Error::invalid)?;
        }
        let stated = VersionEdit::decode(&state.snapshot_edit().encode());
        if let Err(Malformed(rule)) = stated.and_then(|edit| ManifestState::from_snapshot(&edit)) {
            // Better none than one that nothing can read.
            return Err(Error::corruption(&FileKind::Manifest(number).path(dir), 0, rule));
        }
        report.manifest = number;
        let current = FileKind::Current.path(dir);
        let keep_current = report.faults.iter().any(|fault| fault.file == current);
        lost::keep_report(fs, dir, number, &report.to_string(), &moves, keep_current)?;
        ManifestWriter::create(fs, dir, number, &state)?;
        moves::finish(fs, dir, &moves)
    }

    /// What does not belong to the store afterwards.
    fn moves(&self, plan: &Plan) -> Result<Vec<Move>> {
        let mut taken = Taken::list(self.fs, self.dir)?;
        let mut moves = Vec::new();
        for &kind in self.files.all.iter().filter(|kind| !plan.needs(**kind)) {
            let place = match kind {
                FileKind::Table(number) if plan.uncertain.contains(&number) => Place::Uncertain,
                _ => Place::Lost,
            };
            moves.push(taken.take(place, kind));
        }
        moves.sort_by_key(|(kind, _)| kind.name());
        Ok(moves)
    }
}

/// Makes sure that there is a default keyspace.
fn with_default(state: &mut ManifestState) {
    let new = || KeyspaceState::new(DEFAULT_KEYSPACE, crate::options::KeyspaceOptions::new());
    state.keyspaces.entry(0).or_insert_with(new);
}
