//! [`Inspector::verify`]: checks every file of a store, and how the files fit together.
//!
//! ```text
//! verify      = CURRENT and manifest, logs, value files, each table, order among tables, others
//! verify_file = one of these files alone
//! ```
//!
//! Damage to one file does not keep the others from being checked. Without a manifest, each file is
//! checked alone, as `verify_file` does.
//!
//! Another process may write to the store meanwhile. The files cannot all be read at one instant,
//! so they may seem to contradict each other:
//!
//! - A file that is gone because the manifest no longer names it is no fault.
//! - A failure to read the manifest or the logs counts only if a second attempt fails in the same
//!   way.
//! - While that process holds the store's lock, the end of its log and files that no version names
//!   are work in progress.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::log::LogEnd;
use super::order::find_contradiction;
use super::{FileKind, Inspector};
use crate::error::{Error, IoContext, Result};
use crate::format::Malformed;
use crate::format::pointer::{ValuePointer, split_separate};
use crate::log::op::LogOp;
use crate::log::wal::{self, ManifestLogs};
use crate::repair::LOST;
use crate::report::progress::ProgressMeter;
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::range_table::RangeTable;
use crate::sorted::table::{Table, TableContext, TableMeta};
use crate::sorted::values::ValueScan;
use crate::tree::manifest::{self, KeyspaceState, Loaded, ManifestState, RANGE_LEVEL, missing_tables};

/// A fault in a store's files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// Position of the faulty structure in the file, in bytes.
    pub offset: u64,
    /// The kind of fault.
    pub kind: FindingKind,
    /// The broken rule, or a description.
    pub what: String,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// Bytes differ from what was written, or break a rule of the format.
    Damaged,
    /// The manifest names the file, but the file does not exist.
    Missing,
    /// Tables contradict each other.
    Contradiction,
    /// The file has a later version of the format. It cannot be checked.
    Unsupported,
    /// The operating system failed to read the file.
    Unreadable,
    /// A log ends in a record that was not synced before a power failure. Opening the store drops
    /// it. No damage.
    TornTail,
    /// No version names the file: an interruption left it. Opening the store removes it. No damage.
    Leftover,
    /// The file is not a store's file. The store leaves it alone. No damage.
    Foreign,
    /// The file is a symbolic link, a directory, a pipe or a device: its content, if it has any, is
    /// elsewhere, and can go away without the store. No damage by itself.
    NotRegular,
}

impl FindingKind {
    /// Whether data is lost or wrong.
    pub fn is_damage(self) -> bool {
        matches!(self, FindingKind::Damaged | FindingKind::Missing | FindingKind::Contradiction)
    }

    /// Whether the file could not be checked.
    pub fn is_unchecked(self) -> bool {
        matches!(self, FindingKind::Unsupported | FindingKind::Unreadable)
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FindingKind::Damaged => "damaged",
            FindingKind::Missing => "missing",
            FindingKind::Contradiction => "contradiction",
            FindingKind::Unsupported => "unsupported",
            FindingKind::Unreadable => "unreadable",
            FindingKind::TornTail => "torn tail",
            FindingKind::Leftover => "leftover",
            FindingKind::Foreign => "foreign",
            FindingKind::NotRegular => "not regular",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}: {}", self.file.display(), self.offset, self.kind, self.what)
    }
}

/// What was checked, and how many faults were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Version edits in the manifest.
    pub edits: u64,
    /// Batches in the logs.
    pub batches: u64,
    /// Tables that belong to the store.
    pub tables: u64,
    /// Entries in the tables that are sound.
    pub entries: u64,
    /// Value files that belong to the store.
    pub value_files: u64,
    /// Values in the value files that are sound.
    pub values: u64,
    /// Bytes of the sound tables and value files.
    pub bytes: u64,
    /// Faults that are damage.
    pub damaged: u64,
    /// Files that could not be checked.
    pub unchecked: u64,
    /// Faults that are no damage but worth a note.
    pub notes: u64,
    /// Whether a process had the store open for writing. The end of its log, and files that no
    /// version names, are its work in progress and were left out.
    pub being_written: bool,
}

pub(super) fn run_alone(
    inspector: &Inspector,
    (dir, kind): (&Path, FileKind),
    report: &mut dyn FnMut(&Finding),
) -> Result<Verified> {
    let path = kind.path(dir);
    // A file that the caller names is there.
    let size = inspector.fs.open(&path).and_then(|file| file.len()).during("open", &path)?;
    let mut verify = Verifier::new(inspector, dir, report);
    verify.meter = inspector.progress.meter(size);
    if !verify.check_alone(&inspector.table_context(dir), kind) {
        return Err(Error::invalid(format_args!("{} has nothing that could be checked", path.display())));
    }
    verify.note_irregular([kind]);
    verify.meter.finish();
    Ok(verify.counts)
}

pub(super) fn run(inspector: &Inspector, dir: &Path, report: &mut dyn FnMut(&Finding)) -> Result<Verified> {
    let mut verify = Verifier::new(inspector, dir, report);
    match verify.load_manifest()? {
        Some(Loaded { state, .. }) => {
            verify.check_logs()?;
            verify.check_tables(&state);
            verify.note_leftovers()?;
        }
        None => verify.check_files_alone()?,
    }
    verify.note_irregular(verify.files()?);
    verify.meter.finish();
    Ok(verify.counts)
}

/// How often a read is retried while another process keeps changing the files.
const ATTEMPTS: usize = 100;

/// The log file and offset at which a torn record begins.
type TornTail = (PathBuf, u64);

/// What the logs hold.
struct VerifiedLogs {
    batches: u64,
    torn: Option<TornTail>,
    /// Tables of ingests that the manifest does not have: keyspace id, level, table.
    tables: Vec<(u32, u8, TableMeta)>,
}

struct Verifier<'a> {
    inspector: &'a Inspector,
    dir: &'a Path,
    report: &'a mut dyn FnMut(&Finding),
    counts: Verified,
    /// As in [`VerifiedLogs`].
    logged: Vec<(u32, u8, TableMeta)>,
    meter: ProgressMeter,
}

impl<'a> Verifier<'a> {
    fn new(inspector: &'a Inspector, dir: &'a Path, report: &'a mut dyn FnMut(&Finding)) -> Verifier<'a> {
        let (counts, logged, meter) = Default::default();
        let mut verify = Verifier { inspector, dir, report, counts, logged, meter };
        verify.is_being_written();
        verify
    }
}

impl Verifier<'_> {
    fn report_fault(&mut self, file: &Path, offset: u64, kind: FindingKind, what: impl fmt::Display) {
        let count = match kind {
            kind if kind.is_damage() => &mut self.counts.damaged,
            kind if kind.is_unchecked() => &mut self.counts.unchecked,
            _ => &mut self.counts.notes,
        };
        *count += 1;
        (self.report)(&Finding { file: file.to_owned(), offset, kind, what: what.to_string() });
    }

    /// Reports an error met while checking `file`.
    fn report_error(&mut self, file: &Path, error: &Error) {
        match error {
            Error::Corruption { file, offset, rule } => self.report_fault(file, *offset, FindingKind::Damaged, rule),
            Error::Unsupported { file, .. } => self.report_fault(file, 0, FindingKind::Unsupported, error),
            Error::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                self.report_fault(path, 0, FindingKind::Missing, "the store needs this file, but it does not exist");
            }
            Error::Io { path, .. } => self.report_fault(path, 0, FindingKind::Unreadable, error),
            _ => self.report_fault(file, 0, FindingKind::Unreadable, error),
        }
    }

    /// Notes files that are no regular files.
    fn note_irregular(&mut self, files: impl IntoIterator<Item = FileKind>) {
        for path in files.into_iter().map(|kind| kind.path(self.dir)) {
            // What is gone meanwhile is no fault.
            if let Ok(false) = self.inspector.fs.is_regular(&path) {
                let what = "it is a link or something else that is no file; if it is a link, put the file in its place";
                self.report_fault(&path, 0, FindingKind::NotRegular, what);
            }
        }
    }

    /// Whether a process has the store open for writing, or had at an earlier call.
    fn is_being_written(&mut self) -> bool {
        // If the lock cannot be checked, assume that nobody writes.
        let is_locked = || self.inspector.fs.is_locked(&FileKind::Lock.path(self.dir)).unwrap_or(false);
        self.counts.being_written = self.counts.being_written || is_locked();
        self.counts.being_written
    }

    /// Retries `read` until it succeeds, or fails twice in a row with one error, which is returned.
    /// `read` returns `None` if another process changed the files under it.
    fn retry_until_stable<T>(&self, read: impl Fn() -> Result<Option<T>>) -> Result<T> {
        let mut last_failure = String::new();
        for _ in 0..ATTEMPTS {
            match read() {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => last_failure.clear(),
                Err(error) if error.to_string() == last_failure => return Err(error),
                Err(error) => last_failure = error.to_string(),
            }
        }
        Err(io::Error::from(io::ErrorKind::ResourceBusy)).during("read a stable state of", self.dir)
    }

    fn load(&self) -> Result<Loaded> {
        manifest::load(&*self.inspector.fs, self.dir)?.ok_or_else(|| Error::NotFound(self.dir.to_owned()))
    }

    /// The manifest in force; `None` if it cannot be determined.
    fn load_manifest(&mut self) -> Result<Option<Loaded>> {
        let current = FileKind::Current.path(self.dir);
        let loaded = match self.retry_until_stable(|| {
            let loaded = self.load()?;
            Ok(Some((self.count_edits(loaded.number)?, loaded)))
        }) {
            Ok(((edits, end), loaded)) => {
                self.counts.edits = edits;
                let path = FileKind::Manifest(loaded.number).path(self.dir);
                self.note_torn_tail(&path, end);
                loaded
            }
            Err(error @ (Error::NotFound(_) | Error::NotAStore { .. } | Error::Incomplete(_))) => return Err(error),
            Err(error) => {
                self.report_error(&current, &error);
                return Ok(None);
            }
        };
        Ok(Some(loaded))
    }

    /// Number of edits in a manifest, and how it ends.
    fn count_edits(&self, number: u64) -> Result<(u64, Option<LogEnd>)> {
        let mut log = self.inspector.log(&FileKind::Manifest(number).path(self.dir))?;
        let mut edits = 0;
        while let Some(record) = log.next_record()? {
            edits += u64::from(record.count);
        }
        Ok((edits, log.end().cloned()))
    }

    /// Notes a torn end of a log that loads nevertheless.
    fn note_torn_tail(&mut self, path: &Path, end: Option<LogEnd>) {
        if let Some(LogEnd::Bad { offset, rule }) = end
            && !self.is_being_written()
        {
            self.report_fault(path, offset, FindingKind::TornTail, format_args!("unsynced records are lost: {rule}"));
        }
    }

    fn check_logs(&mut self) -> Result<()> {
        match self.retry_until_stable(|| self.replay_logs()) {
            Ok(VerifiedLogs { batches, torn, tables }) => {
                self.counts.batches = batches;
                self.logged = tables;
                self.note_torn_log(torn);
            }
            Err(error) => self.report_error(self.dir, &error),
        }
        Ok(())
    }

    fn note_torn_log(&mut self, torn: Option<TornTail>) {
        if let Some((path, offset)) = torn
            && !self.is_being_written()
        {
            self.report_fault(&path, offset, FindingKind::TornTail, "unsynced records are lost from here on");
        }
    }

    /// Reads the logs that the manifest needs. `None` if a flush meanwhile moved entries to a
    /// table, so that they were found in neither.
    fn replay_logs(&self) -> Result<Option<VerifiedLogs>> {
        let state = self.load()?.state;
        let needed = |kind| match kind {
            FileKind::Wal(number) if number >= state.min_log => Some(number),
            _ => None,
        };
        let numbers: Vec<u64> = self.files()?.into_iter().filter_map(needed).collect();
        let (mut batches, mut tables) = (0, Vec::new());
        let known = ManifestLogs { flushed: state.flushed_seqno, synced_log: state.synced_log };
        let (end, _) = wal::recover(&*self.inspector.fs, self.dir, &numbers, known, false, &mut |group| {
            group.batches().try_for_each(|batch| {
                batches += 1;
                let mut operations = batch.operations();
                let read = operations.try_for_each(|operation| {
                    if let LogOp::Ingest(ingest) = operation? {
                        let seqno = batch.first + u64::from(ingest.index);
                        let missing = missing_tables(&ingest, seqno, &state)?.into_iter();
                        tables.extend(missing.map(|(level, meta)| (ingest.keyspace, level, meta)));
                    }
                    Ok(())
                });
                read.map_err(|rule: Malformed| batch.corruption(self.dir, rule))
            })
        })?;
        let is_whole = self.load()?.state.flushed_seqno <= end.last_seqno;
        Ok(is_whole.then_some(VerifiedLogs { batches, torn: end.torn, tables }))
    }

    fn check_tables(&mut self, state: &ManifestState) {
        self.meter = self.inspector.progress.meter(bytes_to_check(state));
        let context = self.inspector.table_context(self.dir);
        let broken = self.check_values(&context, state);
        let logged = std::mem::take(&mut self.logged);
        for (id, keyspace) in &state.keyspaces {
            let mut sound = Vec::new();
            let logged_in = |at: u8| logged.iter().filter(move |(of, level, _)| of == id && *level == at);
            for (level, tables) in (0..).zip(&keyspace.levels) {
                for meta in tables.iter().chain(logged_in(level).map(|(.., meta)| meta)) {
                    self.counts.tables += 1;
                    let table = Arc::new(Table::new(Arc::clone(&context), meta.clone()));
                    self.meter.add(meta.size);
                    if self.check_table(&table, Some(state)) && self.check_pointers(&table, &broken) {
                        sound.push((level, table));
                    }
                }
            }
            for meta in keyspace.ranges.iter().chain(logged_in(RANGE_LEVEL).map(|(.., meta)| meta)) {
                self.counts.tables += 1;
                let table = Arc::new(Table::new(Arc::clone(&context), meta.clone()).of_ranges(true));
                self.meter.add(meta.size);
                if self.check_table(&table, Some(state))
                    && let Err(error) = RangeTable::load(Arc::clone(&table))
                {
                    self.report_error(table.path(), &error);
                }
            }
            self.check_order(&keyspace.name, sound);
        }
        self.logged = logged;
    }

    /// Checks the value files; returns those that are not sound.
    fn check_values(&mut self, context: &Arc<TableContext>, state: &ManifestState) -> HashSet<u64> {
        let mut broken = HashSet::new();
        for file in state.keyspaces.values().flat_map(|keyspace| keyspace.values.values()) {
            self.counts.value_files += 1;
            self.meter.add(file.meta.size);
            match ValueScan::verify(context.values(), &file.meta) {
                Ok(()) => {
                    self.counts.values += file.meta.count;
                    self.counts.bytes += file.meta.size;
                }
                Err(error) if is_missing(&error) && self.has_manifest_changed(state) => {}
                Err(error) => {
                    self.report_error(&FileKind::Values(file.meta.number).path(self.dir), &error);
                    broken.insert(file.meta.number);
                }
            }
        }
        broken
    }

    /// Checks that the entries of a sound table point to values of their keys, except in files that
    /// are `broken`; returns whether they do.
    fn check_pointers(&mut self, table: &Arc<Table>, broken: &HashSet<u64>) -> bool {
        if table.meta().references.is_empty() {
            return true;
        }
        let mut cursor = table.cursor(false).for_compaction();
        let mut check = || -> Result<()> {
            cursor.seek_to_first()?;
            while cursor.valid() {
                if let Some((_, pointer)) = split_separate(cursor.kind(), cursor.value())
                    && ValuePointer::decode(pointer).is_ok_and(|pointer| !broken.contains(&pointer.file))
                {
                    table.separate_value(cursor.key(), pointer)?;
                }
                cursor.next()?;
            }
            Ok(())
        };
        match check() {
            Ok(()) => true,
            // Another process has removed it meanwhile, with the table.
            Err(error) if is_missing(&error) => true,
            Err(error) => {
                self.report_error(table.path(), &error);
                false
            }
        }
    }

    /// Checks a table; returns whether it is sound. `state` is the manifest's that names it.
    fn check_table(&mut self, table: &Arc<Table>, state: Option<&ManifestState>) -> bool {
        let path = FileKind::Table(table.meta().number).path(self.dir);
        let error = match table.verify() {
            Ok(()) => {
                self.counts.entries += table.meta().entries;
                self.counts.bytes += table.meta().size;
                return true;
            }
            Err(error) => error,
        };
        if is_missing(&error) && state.is_some_and(|state| self.has_manifest_changed(state)) {
            return false;
        }
        let mut found = BTreeSet::new();
        if error.is_corruption() {
            // `Table::verify` stops at the first fault. Report all other unreadable blocks too.
            for i in 0..table.block_count().unwrap_or_default() {
                if let Err(Error::Corruption { file, offset, rule }) = table.describe_block(i) {
                    self.report_fault(&file, offset, FindingKind::Damaged, rule);
                    found.insert(offset);
                }
            }
        }
        match &error {
            Error::Corruption { offset, .. } if found.contains(offset) => {}
            Error::Unsupported { .. } if table.is_as_written().is_ok_and(|as_written| !as_written) => {
                self.report_fault(
                    &path,
                    0,
                    FindingKind::Damaged,
                    format_args!("its bytes are not what was written: {error}"),
                );
            }
            _ => self.report_error(&path, &error),
        }
        false
    }

    /// Checks that the tables of a keyspace do not contradict each other.
    fn check_order(&mut self, keyspace: &str, tables: Vec<(u8, Arc<Table>)>) {
        let (size, entries) = tables
            .iter()
            .fold((0, 0), |(size, entries), (_, table)| (size + table.meta().size, entries + table.meta().entries));
        let passed = |count: u64| self.meter.add(scaled(size, count, entries));
        match find_contradiction(tables, &passed) {
            Ok(None) => {}
            Ok(Some(found)) => {
                let what = format!(
                    "in keyspace {keyspace:?}, key \"{}\" has sequence number {} in one table and {} in a table that is read later",
                    found.key.escape_ascii(),
                    found.first,
                    found.second
                );
                self.report_fault(self.dir, 0, FindingKind::Contradiction, what);
            }
            // A table that was sound a moment ago was removed, or cannot be read any more.
            Err(error) if is_missing(&error) => {}
            Err(error) => self.report_error(self.dir, &error),
        }
    }

    /// Checks tables and value files alone: no manifest says which belong to the store.
    fn check_files_alone(&mut self) -> Result<()> {
        let context = self.inspector.table_context(self.dir);
        for kind in self.files()? {
            if matches!(kind, FileKind::Table(_) | FileKind::Values(_)) {
                self.check_alone(&context, kind);
            }
        }
        Ok(())
    }

    /// Checks one file against itself; returns whether files of this kind have checksums.
    fn check_alone(&mut self, context: &Arc<TableContext>, kind: FileKind) -> bool {
        let checked = match kind {
            FileKind::Table(number) => self.check_table_alone(context, number),
            FileKind::Values(number) => self.check_values_alone(context, number),
            FileKind::Wal(number) => self.check_log_alone(number),
            FileKind::Manifest(number) => self.check_manifest_alone(number),
            FileKind::Current => manifest::read_current(&*self.inspector.fs, self.dir).map(drop),
            FileKind::CurrentTemp | FileKind::Lock | FileKind::Partial | FileKind::Stats | FileKind::StatsTemp => {
                return false;
            }
        };
        if let Err(error) = checked {
            self.report_error(&kind.path(self.dir), &error);
        }
        true
    }

    fn check_table_alone(&mut self, context: &Arc<TableContext>, number: u64) -> Result<()> {
        self.counts.tables += 1;
        let table = Arc::new(Table::alone(Arc::clone(context), number, true)?);
        self.check_table(&table, None);
        Ok(())
    }

    fn check_values_alone(&mut self, context: &Arc<TableContext>, number: u64) -> Result<()> {
        self.counts.value_files += 1;
        let mut scan = ValueScan::new(context.values(), number)?;
        while scan.next_record()?.is_some() {}
        let meta = scan.finish()?;
        self.counts.values += meta.count;
        self.counts.bytes += meta.size;
        Ok(())
    }

    fn check_manifest_alone(&mut self, number: u64) -> Result<()> {
        manifest::load_number(&*self.inspector.fs, self.dir, number)?;
        let (edits, end) = self.count_edits(number)?;
        self.counts.edits = edits;
        self.note_torn_tail(&FileKind::Manifest(number).path(self.dir), end);
        Ok(())
    }

    /// Checks a log as if it were the newest one: damage before what it states to be synced is
    /// damage, and the rest may be a torn write.
    fn check_log_alone(&mut self, number: u64) -> Result<()> {
        let fs = &*self.inspector.fs;
        let header = self.inspector.log(&FileKind::Wal(number).path(self.dir))?.header();
        let flushed = header.map_or(0, |header| header.first.saturating_sub(1));
        let known = ManifestLogs { flushed, synced_log: None };
        let mut batches = 0;
        let (end, _) = wal::recover(fs, self.dir, &[number], known, false, &mut |group| {
            group.batches().try_for_each(|batch| {
                batches += 1;
                let mut operations = batch.operations();
                let read = operations.try_for_each(|operation| operation.map(drop));
                read.map_err(|rule: Malformed| batch.corruption(self.dir, rule))
            })
        })?;
        self.counts.batches = batches;
        self.note_torn_log(end.torn);
        Ok(())
    }

    fn note_leftovers(&mut self) -> Result<()> {
        let names = self.names()?;
        // Load the manifest after the names: a file that was finished meanwhile is in it, or gone.
        let Ok(Loaded { state, number: manifest, .. }) = self.retry_until_stable(|| self.load().map(Some)) else {
            return Ok(());
        };
        for name in names {
            let path = self.dir.join(&name);
            let kind = FileKind::parse(&name);
            let belongs = match kind {
                // The directory into which a repair moves files.
                None if name == LOST => continue,
                None => {
                    self.report_fault(&path, 0, FindingKind::Foreign, "not a file of the store; it is left alone");
                    continue;
                }
                Some(FileKind::Current | FileKind::Lock | FileKind::Partial) => true,
                Some(FileKind::CurrentTemp | FileKind::Stats | FileKind::StatsTemp) => false,
                Some(FileKind::Manifest(number)) => number == manifest,
                Some(FileKind::Wal(number)) => number >= state.min_log,
                Some(FileKind::Table(number)) => {
                    state.has_table(number) || self.logged.iter().any(|(.., meta)| meta.number == number)
                }
                Some(FileKind::Values(number)) => state.has_values(number),
            };
            if !belongs && !self.is_being_written() {
                let what = match kind {
                    Some(FileKind::Wal(_)) => {
                        "recovery does not need it; opening the store removes or keeps it by option"
                    }
                    _ => "no version names it; opening the store removes it",
                };
                self.report_fault(&path, 0, FindingKind::Leftover, what);
            }
        }
        Ok(())
    }

    /// Whether the manifest has changed since `state` was loaded.
    fn has_manifest_changed(&self, state: &ManifestState) -> bool {
        self.retry_until_stable(|| self.load().map(Some)).is_ok_and(|now| now.state != *state)
    }

    /// Names in the directory, sorted.
    fn names(&self) -> Result<Vec<String>> {
        let mut names = self.inspector.fs.list(self.dir).during("list", self.dir)?;
        names.sort_unstable();
        Ok(names)
    }

    /// The store's files, ordered by kind and number.
    fn files(&self) -> Result<Vec<FileKind>> {
        Ok(self.inspector.files(self.dir)?.into_iter().map(|file| file.kind).collect())
    }
}

/// The bytes of value files, and those of tables twice: each alone, and all in order.
fn bytes_to_check(state: &ManifestState) -> u64 {
    let of_keyspace = |keyspace: &KeyspaceState| {
        let values: u64 = keyspace.values.values().map(|file| file.meta.size).sum();
        values + 2 * keyspace.tables().map(|(_, meta)| meta.size).sum::<u64>()
    };
    state.keyspaces.values().map(of_keyspace).sum()
}

/// The part of `whole` that `part` of `all` is.
fn scaled(whole: u64, part: u64, all: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(part) / u128::from(all.max(1))).unwrap_or(whole)
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
