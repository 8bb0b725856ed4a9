//! [`Error`] and [`Result`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// An absent key is not an error: look-ups return `Ok(None)`. Errors are cheap to clone, because
/// every later writer gets the first failure of the write-ahead log (see [`Error::Poisoned`]).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file or directory.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was attempted: "open", "read", "sync", …
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// Bytes in the store's directory differ from what was written. None of them were returned as
    /// data.
    #[error("{} is damaged at offset {offset}: {rule}; run `kvtool verify` or restore the file from a copy", file.display())]
    Corruption {
        /// The damaged file.
        file: PathBuf,
        /// Position of the damaged structure in the file, in bytes.
        offset: u64,
        /// The rule of docs/FORMAT.md that does not hold.
        rule: String,
    },
    /// The file has a format that this version of the crate does not know.
    #[error("{} has {what} {found:#x}, this version of tamis knows {known:#x}; use a newer version", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// "format version" or "required features".
        what: &'static str,
        /// What the file requires.
        found: u64,
        /// What this version of the crate understands.
        known: u64,
    },
    /// Bytes that should be a stand-alone filter are damaged, or something else.
    #[error("{} is not a sound filter: {rule}; rebuild it or restore it from a copy", filter_name(file.as_deref()))]
    Filter {
        /// The file that they came from, if any.
        file: Option<PathBuf>,
        /// The rule of docs/FORMAT.md that does not hold.
        rule: &'static str,
    },
    /// A stand-alone filter was made with another hash, under which it would deny its own keys.
    #[error("{} was made with the hash {found}, not {wanted}; read it with the hash that made it", filter_name(file.as_deref()))]
    OtherHash {
        /// The file that it came from, if any.
        file: Option<PathBuf>,
        /// Name and seed of the hash that made it.
        found: String,
        /// Name and seed of the hash with which it was read.
        wanted: String,
    },
    /// An argument or option is outside its allowed range.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// A key was added to a table out of order. Nothing of it was written, and the writer can go on
    /// with a greater key.
    #[error(
        "entry {position} of {} is not sorted: key {} does not come after {}; sort the input, with each key once",
        file.display(), key.escape_ascii(), last.escape_ascii()
    )]
    Unsorted {
        /// The table that was being written.
        file: PathBuf,
        /// Number of entries before the one that was refused.
        position: u64,
        /// Its key.
        key: Vec<u8>,
        /// The key before it.
        last: Vec<u8>,
    },
    /// A file cannot be ingested into a keyspace. The store is as it was.
    #[error("{} cannot be ingested: {rule}", file.display())]
    Unfit {
        /// The file.
        file: PathBuf,
        /// The rule that does not hold, and what to do.
        rule: String,
    },
    /// There is no store in the directory, and the options say not to create one.
    #[error("there is no store in {}; create it with `create_if_missing`", .0.display())]
    NotFound(PathBuf),
    /// The directory is not empty, but holds no store. Nothing in it was changed.
    #[error("{} is not a tamis store: {found}; a store is created only in an absent or an empty directory", dir.display())]
    NotAStore {
        /// The directory.
        dir: PathBuf,
        /// What was seen there.
        found: String,
    },
    /// A copy of a store was being put into the directory, by a checkpoint or a restore, and was
    /// not finished.
    #[error("{} holds an unfinished copy of a store; make the copy again, or remove the directory", .0.display())]
    Incomplete(PathBuf),
    /// Another process, or another handle in this process, has the store open for writing.
    #[error("{} is locked by {holder}; close it there, or open it read-only", path.display())]
    Locked {
        /// The store's directory.
        path: PathBuf,
        /// Who holds the lock, as far as the lock file says.
        holder: String,
    },
    /// The store takes no writes, because an earlier write or sync of the log or the manifest
    /// failed. Reads still work. Reopen the store to find out what reached the disk.
    #[error("the store takes no more writes until it is opened again, because of an earlier failure: {0}")]
    Poisoned(Arc<Error>),
    /// A reader keeps all files of the store open, and the process may open no more.
    #[error(
        "a reader of {} keeps its {files} files open, and the process may open no more of them: {source}; raise the \
         limit of open files (`ulimit -n`)",
        dir.display()
    )]
    TooManyFiles {
        /// The store's directory.
        dir: PathBuf,
        /// Tables and value files of the store.
        files: usize,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The store no longer has all that a reader has read from it: it was replaced by another one
    /// or an older copy, or has lost writes that were not synced. The reader stays as it was; open
    /// the store again to read what is there now.
    #[error("{} no longer has what was read from it up to number {seqno}: {rule}; open it again", dir.display())]
    HistoryChanged {
        /// The store's directory.
        dir: PathBuf,
        /// The last sequence number that the reader has.
        seqno: u64,
        /// What shows it.
        rule: String,
    },
    /// This process is a fork of the one that opened the store, and that one alone writes to it and
    /// closes it. A fork has none of the threads on which stores rely: begin a program of its own
    /// (`exec`) to open one.
    #[error("{} was opened by the process that this one was forked from, and only that one writes to it", .0.display())]
    Forked(PathBuf),
    /// The store was opened read-only.
    #[error("{} was opened read-only", .0.display())]
    ReadOnly(PathBuf),
    /// The store was closed through another handle.
    #[error("the store is closed")]
    Closed,
    /// A transaction has read what was written before it could commit. Nothing of it was written;
    /// run it again.
    #[error("a key of keyspace {keyspace:?} that the transaction has read was written meanwhile: {}", key.escape_ascii())]
    Conflict {
        /// The keyspace of the key.
        keyspace: String,
        /// The key, or one of them.
        key: Vec<u8>,
    },
    /// The merge operator of a keyspace cannot combine the operands of a key. Other keys can be
    /// read; putting or deleting this one mends it. A scan ends here; a seek of the iterator to a
    /// key behind this one goes on.
    #[error("the operands of key {} of keyspace {keyspace:?} cannot be merged: {reason}", key.escape_ascii())]
    Merge {
        /// The keyspace of the key.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
        /// What the operator said.
        reason: String,
    },
    /// The compaction filter of a keyspace panicked, or gave a value that is too long, and its
    /// compaction ended. It is tried again later; while none succeeds, writers wait for it in the
    /// end.
    #[error(
        "the compaction filter of keyspace {keyspace:?} panicked, or gave a value that is too long, at key {}",
        key.escape_ascii()
    )]
    CompactionFilter {
        /// The keyspace.
        keyspace: String,
        /// The key that the filter was asked about.
        key: Vec<u8>,
    },
    /// A keyspace has operands to be merged, and its merge operator is not known.
    #[error("keyspace {keyspace:?} needs its merge operator {operator:?}; pass it to `Options::merge_operator`")]
    MergeOperatorMissing {
        /// The keyspace.
        keyspace: String,
        /// The operator's name; empty if the keyspace never had one.
        operator: String,
    },
    /// The log no longer has the changes that a reader asked for. Begin again with
    /// `Db::follow`.
    #[error(
        "the log has no changes before number {oldest}, and {wanted} was asked for; copy the store and follow it from there"
    )]
    LogGone {
        /// The first sequence number asked for.
        wanted: u64,
        /// The first sequence number that can still be read.
        oldest: u64,
    },
    /// The changes after a number were asked for that the store has not reached: the reader has
    /// applied writes that this store does not have. It followed another store, or this one was
    /// restored from an older copy, or has lost unsynced writes in a crash. A copy made from such
    /// writes does not become equal again; begin anew with `Db::follow`.
    ///
    /// A store that has since been written beyond that number is not found out: numbers are given
    /// out again. Nothing of the kind happens to a reader of durable changes unless files of the
    /// store were replaced.
    #[error(
        "changes after number {since} were asked for, but the last write of the store is number {last}: the reader has another history; copy the store and follow it from there"
    )]
    Diverged {
        /// The number that the reader says it has reached.
        since: u64,
        /// The store's last sequence number.
        last: u64,
    },
    /// A follower of the change feed cannot apply a batch: it ingested tables, whose entries are
    /// not in the log. Copy the ranges that the tables change from the source, as
    /// `OperationKind::Ingest` says, or begin again with
    /// `Db::follow`.
    #[error(
        "change {seqno} ingested tables into keyspace {keyspace:?}, whose entries are not in the log; copy the ranges that they change from the source"
    )]
    Ingested {
        /// The keyspace of the source.
        keyspace: String,
        /// Sequence number of the ingest.
        seqno: u64,
    },
    /// The keyspace was dropped; or it is one of another store than the snapshot or transaction
    /// that is to read it.
    #[error("the keyspace {0:?} was dropped, or is of another store")]
    KeyspaceDropped(String),
}

impl Error {
    /// Whether the cause is damaged data, including the original cause of [`Error::Poisoned`].
    pub fn is_corruption(&self) -> bool {
        match self {
            Error::Corruption { .. } | Error::Filter { .. } => true,
            Error::Poisoned(cause) => cause.is_corruption(),
            _ => false,
        }
    }

    /// Whether the cause is a full disk or an exhausted quota, which freeing space resolves.
    pub fn is_no_space(&self) -> bool {
        match self {
            Error::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Error::Poisoned(cause) => cause.is_no_space(),
            _ => false,
        }
    }

    /// Whether another process, or another handle of this one, has the store open: it can be opened
    /// later, or read-only now.
    pub fn is_locked(&self) -> bool {
        matches!(self, Error::Locked { .. })
    }

    /// Whether others wrote what this write had read: it wrote nothing, and can be run again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Conflict { .. })
    }

    /// Whether the store takes no writes until it is opened again. What the cause was,
    /// [`is_corruption`](Error::is_corruption) and [`is_no_space`](Error::is_no_space) tell.
    pub fn is_poisoned(&self) -> bool {
        matches!(self, Error::Poisoned(_))
    }

    /// Too little space is left on the disk of `dir`.
    #[doc(hidden)]
    pub fn no_space(dir: &Path) -> Error {
        let source = Arc::new(io::ErrorKind::StorageFull.into());
        Error::Io { operation: "reserve space in", path: dir.to_owned(), source }
    }

    /// Bytes that break a rule of the format.
    #[doc(hidden)]
    pub fn corruption(file: &Path, offset: u64, rule: impl fmt::Display) -> Error {
        Error::Corruption { file: file.to_owned(), offset, rule: rule.to_string() }
    }

    /// A call that cannot be meant.
    #[doc(hidden)]
    pub fn invalid(what: impl fmt::Display) -> Error {
        Error::InvalidArgument(what.to_string())
    }
}

fn filter_name(file: Option<&Path>) -> impl fmt::Display {
    file.map_or_else(|| "this".to_owned(), |file| file.display().to_string())
}

/// Turns an [`io::Error`] into an [`Error::Io`] with the operation and the path.
pub trait IoContext<T> {
    /// What was done to which file.
    fn during(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn during(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { operation, path: path.to_owned(), source: Arc::new(source) })
    }
}

/// For fuzz targets: what came out, if it is no error; an error must be one that damage explains.
#[doc(hidden)]
pub fn expect_typed<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Unsupported { .. } | Error::NotFound(_) | Error::NotAStore { .. }) => None,
        Err(error) if error.is_corruption() => None,
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each predicate says of an error: corruption, no space, locked, conflict, poisoned.
    fn said(error: &Error) -> [bool; 5] {
        [error.is_corruption(), error.is_no_space(), error.is_locked(), error.is_conflict(), error.is_poisoned()]
    }

    #[test]
    fn each_predicate_says_what_its_name_says() {
        let full =
            Error::Io { operation: "write", path: "db".into(), source: Arc::new(io::ErrorKind::StorageFull.into()) };
        let damage = Error::corruption(Path::new("000007.sst"), 0, "a rule");
        let locked = Error::Locked { path: "db".into(), holder: "process 7".into() };
        let conflict = Error::Conflict { keyspace: "default".into(), key: b"k".to_vec() };
        let poisoned = |cause: &Error| Error::Poisoned(Arc::new(cause.clone()));
        let (yes, no) = (true, false);
        for (error, expected) in [
            (&damage, [yes, no, no, no, no]),
            (&full, [no, yes, no, no, no]),
            (&locked, [no, no, yes, no, no]),
            (&conflict, [no, no, no, yes, no]),
            (&poisoned(&damage), [yes, no, no, no, yes]),
            (&poisoned(&full), [no, yes, no, no, yes]),
            (&Error::Closed, [no; 5]),
        ] {
            assert_eq!(said(error), expected, "{error}");
        }
    }
}
