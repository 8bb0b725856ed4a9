//! [`Inspector::verify`]: every file of a store, and how they fit together.
//!
//! ```text
//! verify = CURRENT and manifest, logs, each table, the order among tables, what else is in the directory
//! ```
//!
//! Damage to one file does not keep the others from being checked; without a manifest, each table
//! is checked by itself.
//!
//! Another process may write to the store meanwhile. Nobody can read its files at one moment, so
//! that they seem to contradict each other: a file that has gone because the manifest no longer
//! names it is no fault, and a failure to read the manifest or the logs counts if a second attempt
//! fails in the same way. While that process holds the store's lock, the end of its log and files
//! that no version names are work in progress.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::log::LogEnd;
use super::order::find_contradiction;
use super::{FileKind, Inspector};
use crate::error::{Error, IoContext, Result};
use crate::offline::repair::LOST;
use crate::sorted::table::{Table, TableContext, TableMeta};
use crate::tree::manifest::{self, Loaded, ManifestState};
use crate::write::wal::{self, Known};

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// Position of the structure in the file, in bytes.
    pub offset: u64,
    /// What kind of fault it is.
    pub kind: FaultKind,
    /// The rule that is broken, or what else there is to say.
    pub what: String,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// Bytes are not what was written, or break a rule of the format.
    Damaged,
    /// The manifest names the file, but it is not there.
    Missing,
    /// Tables contradict each other.
    Contradiction,
    /// The file is of a later version of the format. It cannot be checked.
    Unsupported,
    /// The operating system did not let it be read.
    Unreadable,
    /// A log ends in what was not synced when the power failed. Opening the store leaves it out. No damage.
    TornTail,
    /// The file belongs to no version: left by an interruption, it is removed when the store is
    /// opened. No damage.
    Leftover,
    /// The file is not one of a store's. It is left alone. No damage.
    Foreign,
}

impl FaultKind {
    /// Whether something is lost or wrong.
    pub fn is_damage(self) -> bool {
        matches!(self, FaultKind::Damaged | FaultKind::Missing | FaultKind::Contradiction)
    }

    /// Whether the file could not be checked.
    pub fn is_unchecked(self) -> bool {
        matches!(self, FaultKind::Unsupported | FaultKind::Unreadable)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FaultKind::Damaged => "damaged",
            FaultKind::Missing => "missing",
            FaultKind::Contradiction => "contradiction",
            FaultKind::Unsupported => "unsupported",
            FaultKind::Unreadable => "unreadable",
            FaultKind::TornTail => "torn tail",
            FaultKind::Leftover => "leftover",
            FaultKind::Foreign => "foreign",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}: {}", self.file.display(), self.offset, self.kind, self.what)
    }
}

/// What was checked, and how much of it is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Version edits in the manifest.
    pub edits: u64,
    /// Batches in the logs.
    pub batches: u64,
    /// Tables that belong to the store.
    pub tables: u64,
    /// Entries in tables that were found to be in order.
    pub entries: u64,
    /// Bytes of those tables.
    pub bytes: u64,
    /// Faults that are damage.
    pub damaged: u64,
    /// Files that could not be checked.
    pub unchecked: u64,
    /// What is worth a note and no damage.
    pub notes: u64,
    /// Whether a process had the store open for writing. The end of its log, and files that no
    /// version names yet or any more, are its own then, and were left out.
    pub being_written: bool,
}

pub(super) fn run(inspector: &Inspector, dir: &Path, report: &mut dyn FnMut(&Fault)) -> Result<Verified> {
    let mut verify = Verify { inspector, dir, report, done: Verified::default() };
    verify.is_being_written();
    match verify.manifest()? {
        Some(Loaded { state, .. }) => {
            verify.logs()?;
            verify.tables(&state);
            verify.leftovers()?;
        }
        None => verify.lone_tables()?,
    }
    Ok(verify.done)
}

/// How often something is read again that another process keeps changing.
const ATTEMPTS: usize = 100;

/// File and offset at which a log ends in a torn record.
type TornTail = (PathBuf, u64);

struct Verify<'a> {
    inspector: &'a Inspector,
    dir: &'a Path,
    report: &'a mut dyn FnMut(&Fault),
    done: Verified,
}

impl Verify<'_> {
    fn fault(&mut self, file: &Path, offset: u64, kind: FaultKind, what: impl fmt::Display) {
        let count = match kind {
            kind if kind.is_damage() => &mut self.done.damaged,
            kind if kind.is_unchecked() => &mut self.done.unchecked,
            _ => &mut self.done.notes,
        };
        *count += 1;
        (self.report)(&Fault { file: file.to_owned(), offset, kind, what: what.to_string() });
    }

    /// Reports an error that came up while `file` was checked.
    fn error(&mut self, file: &Path, error: &Error) {
        match error {
            Error::Corruption { file, offset, rule } => self.fault(file, *offset, FaultKind::Damaged, rule),
            Error::Unsupported { file, .. } => self.fault(file, 0, FaultKind::Unsupported, error),
            Error::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                self.fault(path, 0, FaultKind::Missing, "the store needs this file, but it is not there");
            }
            Error::Io { path, .. } => self.fault(path, 0, FaultKind::Unreadable, error),
            _ => self.fault(file, 0, FaultKind::Unreadable, error),
        }
    }

    /// Whether a process has had the store open for writing, now or when this was asked before.
    fn is_being_written(&mut self) -> bool {
        // Where the lock cannot be looked at, the store is checked as one that rests.
        let is_locked = || self.inspector.fs.is_locked(&FileKind::Lock.path(self.dir)).unwrap_or(false);
        self.done.being_written = self.done.being_written || is_locked();
        self.done.being_written
    }

    /// Does `read` until it succeeds, or fails as it did before: then returns that error. `None`
    /// from `read` means that another process has changed what was read.
    fn settled<T>(&self, read: impl Fn() -> Result<Option<T>>) -> Result<T> {
        let mut last_failure = String::new();
        for _ in 0..ATTEMPTS {
            match read() {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => last_failure.clear(),
                Err(error) if error.to_string() == last_failure => return Err(error),
                Err(error) => last_failure = error.to_string(),
            }
        }
        Err(io::Error::from(io::ErrorKind::ResourceBusy)).during("find a moment at rest to read", self.dir)
    }

    fn load(&self) -> Result<Loaded> {
        manifest::load(&*self.inspector.fs, self.dir)?.ok_or_else(|| Error::NotFound(self.dir.to_owned()))
    }

    /// The manifest in force; `None` if it cannot be known.
    fn manifest(&mut self) -> Result<Option<Loaded>> {
        let current = FileKind::Current.path(self.dir);
        let loaded = match self.settled(|| {
            let loaded = self.load()?;
            Ok(Some((self.count_edits(loaded.number)?, loaded)))
        }) {
            Ok(((edits, end), loaded)) => {
                self.done.edits = edits;
                let path = FileKind::Manifest(loaded.number).path(self.dir);
                self.note_torn_tail(&path, end);
                loaded
            }
            Err(error @ (Error::NotFound(_) | Error::NotAStore { .. })) => return Err(error),
            Err(error) => {
                self.error(&current, &error);
                return Ok(None);
            }
        };
        Ok(Some(loaded))
    }

    /// The edits of a manifest, and how it ends.
    fn count_edits(&self, number: u64) -> Result<(u64, Option<LogEnd>)> {
        let mut log = self.inspector.log(&FileKind::Manifest(number).path(self.dir))?;
        let mut edits = 0;
        while let Some(record) = log.next_record()? {
            edits += u64::from(record.count);
        }
        Ok((edits, log.end().cloned()))
    }

    /// Notes how a log ends that loads all the same.
    fn note_torn_tail(&mut self, path: &Path, end: Option<LogEnd>) {
        if let Some(LogEnd::Bad { offset, rule }) = end
            && !self.is_being_written()
        {
            self.fault(path, offset, FaultKind::TornTail, format_args!("what was not synced is lost: {rule}"));
        }
    }

    fn logs(&mut self) -> Result<()> {
        match self.settled(|| self.replay_logs()) {
            Ok((batches, torn)) => {
                self.done.batches = batches;
                if let Some((path, offset)) = torn
                    && !self.is_being_written()
                {
                    self.fault(&path, offset, FaultKind::TornTail, "what was not synced is lost from here on");
                }
            }
            Err(error) => self.error(self.dir, &error),
        }
        Ok(())
    }

    /// The batches in the logs that the manifest needs, and where they end in a torn tail. `None`
    /// if entries have gone from a log to a table meanwhile that were found in neither.
    fn replay_logs(&self) -> Result<Option<(u64, Option<TornTail>)>> {
        let state = self.load()?.state;
        let needed = |kind| match kind {
            FileKind::Wal(number) if number >= state.min_log => Some(number),
            _ => None,
        };
        let numbers: Vec<u64> = self.files()?.into_iter().filter_map(needed).collect();
        let mut batches = 0;
        let known = Known { flushed: state.flushed_seqno, synced_log: state.synced_log };
        let end = wal::recover(&*self.inspector.fs, self.dir, &numbers, known, false, &mut |stretch| {
            stretch.batches().try_for_each(|batch| {
                batches += 1;
                let mut operations = batch.operations();
                operations
                    .try_for_each(|operation| operation.map(|_| ()))
                    .map_err(|rule| batch.corruption(self.dir, rule))
            })
        })?;
        let is_whole = self.load()?.state.flushed_seqno <= end.last_seqno;
        Ok(is_whole.then_some((batches, end.torn)))
    }

    fn tables(&mut self, state: &ManifestState) {
        let context = self.inspector.table_context(self.dir);
        for (name, keyspace) in state.keyspaces.values().map(|keyspace| (&keyspace.name, keyspace)) {
            let mut sound = Vec::new();
            for (level, tables) in (0..).zip(&keyspace.levels) {
                for meta in tables.iter() {
                    self.done.tables += 1;
                    let table = Arc::new(Table::new(Arc::clone(&context), meta.clone()));
                    if self.table(&table, state) {
                        sound.push((level, table));
                    }
                }
            }
            self.order(name, sound);
        }
    }

    /// Checks a table; returns whether it is sound.
    fn table(&mut self, table: &Arc<Table>, state: &ManifestState) -> bool {
        let path = FileKind::Table(table.meta().number).path(self.dir);
        let error = match table.verify() {
            Ok(()) => {
                self.done.entries += table.meta().entries;
                self.done.bytes += table.meta().size;
                return true;
            }
            Err(error) => error,
        };
        if is_missing(&error) && self.is_outdated(state) {
            return false;
        }
        let mut found = BTreeSet::new();
        if error.is_corruption() {
            // The first fault ends the check of a table. Say which other blocks cannot be read.
            for i in 0..table.block_count().unwrap_or_default() {
                if let Err(Error::Corruption { file, offset, rule }) = table.describe_block(i) {
                    self.fault(&file, offset, FaultKind::Damaged, rule);
                    found.insert(offset);
                }
            }
        }
        match &error {
            Error::Corruption { offset, .. } if found.contains(offset) => {}
            Error::Unsupported { .. } if table.is_as_written().is_ok_and(|as_written| !as_written) => {
                self.fault(&path, 0, FaultKind::Damaged, format_args!("it is not what was written: {error}"));
            }
            _ => self.error(&path, &error),
        }
        false
    }

    /// Checks that the tables of a keyspace do not contradict each other.
    fn order(&mut self, keyspace: &str, tables: Vec<(u8, Arc<Table>)>) {
        match find_contradiction(tables) {
            Ok(None) => {}
            Ok(Some(found)) => {
                let what = format!(
                    "in keyspace {keyspace:?}, key \"{}\" is at {} in a table that is read before one that has it at {}",
                    found.key.escape_ascii(),
                    found.first,
                    found.second
                );
                self.fault(self.dir, 0, FaultKind::Contradiction, what);
            }
            // A table that was sound a moment ago was removed, or cannot be read any more.
            Err(error) if is_missing(&error) => {}
            Err(error) => self.error(self.dir, &error),
        }
    }

    /// Checks each table by itself: there is no manifest to say which of them belong to the store.
    fn lone_tables(&mut self) -> Result<()> {
        let context = self.inspector.table_context(self.dir);
        for kind in self.files()? {
            let FileKind::Table(number) = kind else { continue };
            self.done.tables += 1;
            match lone_table(&context, number) {
                Ok(meta) => {
                    self.done.entries += meta.entries;
                    self.done.bytes += meta.size;
                }
                Err(error) => self.error(&kind.path(self.dir), &error),
            }
        }
        Ok(())
    }

    fn leftovers(&mut self) -> Result<()> {
        let names = self.names()?;
        // After the names: a file that a process has finished by now is in the manifest, or gone.
        let Ok(Loaded { state, number: manifest, .. }) = self.settled(|| self.load().map(Some)) else { return Ok(()) };
        for name in names {
            let path = self.dir.join(&name);
            let belongs = match FileKind::parse(&name) {
                // What a repair has taken out of the store.
                None if name == LOST => continue,
                None => {
                    self.fault(&path, 0, FaultKind::Foreign, "not a file of the store; it is left alone");
                    continue;
                }
                Some(FileKind::Current | FileKind::Lock) => true,
                Some(FileKind::CurrentTemp) => false,
                Some(FileKind::Manifest(number)) => number == manifest,
                Some(FileKind::Wal(number)) => number >= state.min_log,
                Some(FileKind::Table(number)) => state.has_table(number),
            };
            if !belongs && !self.is_being_written() {
                self.fault(
                    &path,
                    0,
                    FaultKind::Leftover,
                    "no version names it; it is removed when the store is opened",
                );
            }
        }
        Ok(())
    }

    /// Whether the manifest says something else by now.
    fn is_outdated(&self, state: &ManifestState) -> bool {
        self.settled(|| self.load().map(Some)).is_ok_and(|now| now.state != *state)
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

fn lone_table(context: &Arc<TableContext>, number: u64) -> Result<TableMeta> {
    let table = Table::alone(Arc::clone(context), number, true)?;
    table.verify()?;
    Ok(table.meta().clone())
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
