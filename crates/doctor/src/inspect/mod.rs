//! Reads a store's files as plain data: for tools, and for tests that check what files hold.
//!
//! The inspector only reads; it opens no store and takes no lock. A file must have its name from
//! the store, because its checksums are bound to the number in that name.

mod log;
mod order;
mod table;
mod values;
mod verify;
mod write_kind;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::log::{Content, LogEnd, LogFile, LogRecord, LoggedOperation, ManifestChange, StatedTable};
pub use self::table::{DataBlock, Entries, Entry, Handle, TableFile, TableProperties};
pub use self::values::{ValueRecord, ValueRecords};
pub use self::verify::{Finding, FindingKind, Verified};
pub use self::write_kind::WriteKind;
pub use crate::format::filename::FileKind;

use crate::error::{Error, IoContext, Result};
use crate::format::header::FileHeader;
use crate::report::progress::ProgressListener;
use crate::sorted::table::TableContext;
use crate::tree::manifest;
use crate::vfs::{FileSystem, OsFileSystem, store_files};

/// Reads files of stores.
#[derive(Clone, Debug)]
pub struct Inspector {
    fs: Arc<dyn FileSystem>,
    progress: ProgressListener,
}

/// A file in a store's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFile {
    /// Its kind, by its name.
    pub kind: FileKind,
    /// Its path.
    pub path: PathBuf,
}

/// The header of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogHeader {
    /// File number.
    pub number: u64,
    /// Ordinal of the first record: a sequence number in a WAL, the count of edits in a manifest.
    pub first: u64,
    /// Highest ordinal known to be on stable storage when the file was created.
    pub synced: u64,
    /// Number of the log before this one, 0 if none.
    pub previous: u64,
    /// Length of the log before this one when it was sealed.
    pub previous_len: u64,
}

impl From<&FileHeader> for LogHeader {
    fn from(header: &FileHeader) -> LogHeader {
        LogHeader {
            number: header.number,
            first: header.first,
            synced: header.synced,
            previous: header.previous,
            previous_len: header.previous_len,
        }
    }
}

impl Default for Inspector {
    fn default() -> Inspector {
        Inspector::new()
    }
}

impl Inspector {
    /// Inspects files of the operating system.
    pub fn new() -> Inspector {
        Inspector::on(Arc::new(OsFileSystem::new()))
    }

    /// Inspects files of `file_system`.
    pub fn on(file_system: Arc<dyn FileSystem>) -> Inspector {
        Inspector { fs: file_system, progress: ProgressListener::default() }
    }

    /// Has `listener` told how far [`verify`](Inspector::verify) and
    /// [`verify_file`](Inspector::verify_file) are.
    #[must_use]
    pub fn on_progress(self, listener: ProgressListener) -> Inspector {
        Inspector { progress: listener, ..self }
    }

    /// The files in directory `dir` that are named like a store's files, ordered by kind and
    /// number.
    pub fn files(&self, dir: &Path) -> Result<Vec<StoreFile>> {
        let kinds = store_files(&*self.fs, dir).during("list", dir)?;
        Ok(kinds.into_iter().map(|kind| StoreFile { kind, path: kind.path(dir) }).collect())
    }

    /// The number of the manifest in force, from the `CURRENT` file at `path`.
    pub fn current(&self, path: &Path) -> Result<u64> {
        let (dir, kind) = parse(path)?;
        if kind != FileKind::Current {
            return Err(wrong_kind(path, "CURRENT"));
        }
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        manifest::read_current(&*self.fs, dir)?.ok_or_else(missing).during("open", path)
    }

    /// Opens the WAL or manifest at `path`.
    pub fn log(&self, path: &Path) -> Result<LogFile> {
        LogFile::open(&*self.fs, path, parse(path)?.1)
    }

    /// Opens the SSTable at `path`.
    pub fn table(&self, path: &Path) -> Result<TableFile> {
        match parse(path)? {
            (dir, FileKind::Table(number)) => TableFile::open(&self.table_context(dir), number),
            _ => Err(wrong_kind(path, "an SSTable")),
        }
    }

    /// The entries of the SSTable at `path`: every version, in order, past all damage, even if
    /// properties, index or footer cannot be read. A damaged part yields an error; the entries
    /// behind it follow.
    pub fn entries(&self, path: &Path) -> Result<Entries> {
        match parse(path)? {
            (dir, FileKind::Table(number)) => Entries::open(&self.table_context(dir), number),
            _ => Err(wrong_kind(path, "an SSTable")),
        }
    }

    /// The records of the value file at `path`.
    pub fn values(&self, path: &Path) -> Result<ValueRecords> {
        match parse(path)? {
            (dir, FileKind::Values(number)) => ValueRecords::open(&self.table_context(dir), number),
            _ => Err(wrong_kind(path, "a value file")),
        }
    }

    /// Checks every file of the store in `dir`: `CURRENT`, the manifest, each log record, and each
    /// table with its blocks, the order of entries, the filter (every key must pass), and all
    /// counts and ranges. Also checks that the tables of a level do not contradict each other, nor
    /// do the levels. Each fault goes to `report` as it is found.
    ///
    /// Fails only if nothing can be checked at all. A process may write to the store meanwhile:
    /// that does no harm, and [`Verified::being_written`] tells.
    pub fn verify(&self, dir: &Path, report: &mut dyn FnMut(&Finding)) -> Result<Verified> {
        verify::run(self, dir, report)
    }

    /// Checks one file of a store alone: an SSTable with its blocks, entries, filter and counts;
    /// the records of a value file, a log or a manifest; or `CURRENT`. Each fault goes to `report`
    /// as it is found.
    ///
    /// What only its store tells is not checked: whether the file is the one that was written, and
    /// where the last synced record of a log is. Bytes that are not its next record are noted as a
    /// [torn tail](FindingKind::TornTail) unless the log itself states that they were synced.
    ///
    /// Fails if there is no such file, or with [`Error::InvalidArgument`] if its name is not that
    /// of such a file.
    pub fn verify_file(&self, path: &Path, report: &mut dyn FnMut(&Finding)) -> Result<Verified> {
        verify::run_alone(self, parse(path)?, report)
    }

    /// Without a cache: tables are read once, in order.
    fn table_context(&self, dir: &Path) -> Arc<TableContext> {
        Arc::new(TableContext::new(Arc::clone(&self.fs), dir, 0, OPEN_FILES))
    }
}

/// Maximum number of files held open at once.
const OPEN_FILES: usize = 64;

/// Splits a path into the file's directory and its kind.
fn parse(path: &Path) -> Result<(&Path, FileKind)> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kind = FileKind::parse(name).ok_or_else(|| {
        Error::invalid(format_args!(
            "{} is not named like a store's file; checksums are bound to the number in that name",
            path.display()
        ))
    })?;
    Ok((path.parent().unwrap_or(Path::new("")), kind))
}

fn wrong_kind(path: &Path, expected: &str) -> Error {
    Error::invalid(format_args!("{} is not {expected}", path.display()))
}
