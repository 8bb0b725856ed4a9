//! What the files of a store hold, as plain data: for tools, and for tests that compare files with what they should be.
//!
//! Everything here only reads, opens no store, and takes no lock. A file is asked for under the name that it has in a store: its
//! checksums are bound to the number in that name.
//!
//! ```
//! # fn main() -> tamis::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let path = dir.path().join("words.db");
//! # let db = tamis::Db::open(&path)?;
//! # db.put("apple", "1")?;
//! # db.close()?;
//! use tamis::inspect::{FileKind, Inspector};
//!
//! let inspector = Inspector::new();
//! for file in inspector.files(&path)? {
//!     if let FileKind::Table(_) = file.kind {
//!         let table = inspector.table(&file.path)?;
//!         println!("{}: {} entries", file.path.display(), table.properties().entries);
//!     }
//! }
//! let verified = inspector.verify(&path, &mut |fault| println!("{fault}"))?;
//! assert_eq!(verified.damaged, 0);
//! # Ok(()) }
//! ```

mod log;
mod order;
mod table;
mod verify;

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "lz4"))]
pub(crate) use tests::golden::golden_store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::log::{Change, Content, LogEnd, LogFile, LogRecord, Operation};
pub use self::table::{DataBlock, Entries, Entry, Handle, TableFile, TableProperties};
pub use self::verify::{Fault, FaultKind, Verified};
pub use crate::format::filename::FileKind;

use crate::error::{Error, IoContext, Result};
use crate::format::header::FileHeader;
use crate::sorted::table::TableContext;
use crate::tree::manifest;
use crate::vfs::{FileSystem, OsFileSystem, store_files};

/// Reads files of stores.
#[derive(Clone, Debug)]
pub struct Inspector {
    fs: Arc<dyn FileSystem>,
}

/// A file in a store's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFile {
    /// What it is, by its name.
    pub kind: FileKind,
    /// Where it is.
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
    /// Highest ordinal known to be on stable storage when the file was made.
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
    /// An inspector of files that the operating system has.
    pub fn new() -> Inspector {
        Inspector::on(Arc::new(OsFileSystem::new()))
    }

    /// An inspector of files that another file system has.
    pub fn on(file_system: Arc<dyn FileSystem>) -> Inspector {
        Inspector { fs: file_system }
    }

    /// The files in directory `dir` that have the name of a store's file, ordered by kind and number.
    pub fn files(&self, dir: &Path) -> Result<Vec<StoreFile>> {
        let kinds = store_files(&*self.fs, dir).during("list", dir)?;
        Ok(kinds.into_iter().map(|kind| StoreFile { kind, path: kind.path(dir) }).collect())
    }

    /// What the `CURRENT` file at `path` says: the number of the manifest in force.
    pub fn current(&self, path: &Path) -> Result<u64> {
        let (dir, kind) = parse(path)?;
        if kind != FileKind::Current {
            return Err(wrong_kind(path, "CURRENT"));
        }
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        manifest::read_current(&*self.fs, dir)?.ok_or_else(missing).during("open", path)
    }

    /// The WAL or manifest at `path`.
    pub fn log(&self, path: &Path) -> Result<LogFile> {
        LogFile::open(&*self.fs, path, parse(path)?.1)
    }

    /// The SSTable at `path`.
    pub fn table(&self, path: &Path) -> Result<TableFile> {
        match parse(path)? {
            (dir, FileKind::Table(number)) => TableFile::open(&self.table_context(dir), number),
            _ => Err(wrong_kind(path, "an SSTable")),
        }
    }

    /// The entries of the SSTable at `path`, every version of them, in order, and past all damage: also if properties, index or footer
    /// cannot be read. A part that is damaged is an error; the entries behind it follow.
    pub fn entries(&self, path: &Path) -> Result<Entries> {
        match parse(path)? {
            (dir, FileKind::Table(number)) => Entries::open(&self.table_context(dir), number),
            _ => Err(wrong_kind(path, "an SSTable")),
        }
    }

    /// Checks every file of the store in `dir`: `CURRENT`, the manifest, each log record, each table with its blocks, the order of
    /// entries, the filter (every key must pass) and all counts and ranges, and that the tables of a level, and the levels among
    /// each other, do not contradict each other. Each fault goes to `report` as it is found.
    ///
    /// Fails only if nothing can be checked at all. A process may write to the store meanwhile,
    /// which does no harm and is told by [`Verified::being_written`].
    pub fn verify(&self, dir: &Path, report: &mut dyn FnMut(&Fault)) -> Result<Verified> {
        verify::run(self, dir, report)
    }

    /// Tables are read once, in order: there is nothing to cache.
    fn table_context(&self, dir: &Path) -> Arc<TableContext> {
        Arc::new(TableContext::new(Arc::clone(&self.fs), dir, 0, OPEN_FILES))
    }
}

/// Files held open at once.
const OPEN_FILES: usize = 64;

/// The directory that a file is in, and what it is.
fn parse(path: &Path) -> Result<(&Path, FileKind)> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kind = FileKind::parse(name).ok_or_else(|| {
        Error::invalid(format_args!(
            "{} does not have the name of a store's file, which carries the number that its checksums are bound to",
            path.display()
        ))
    })?;
    Ok((path.parent().unwrap_or(Path::new("")), kind))
}

fn wrong_kind(path: &Path, expected: &str) -> Error {
    Error::invalid(format_args!("{} is not {expected}", path.display()))
}
