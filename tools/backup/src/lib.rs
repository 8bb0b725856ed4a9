//! Backups of [tamis] stores: a repository of many generations, in a directory or an object store.
//!
//! Each table and value file is in the repository once, however many generations have it. A backup
//! reads an open store, whose writes go on, and copies only what the repository lacks; checksums
//! are compared while copying. Any generation can be restored, and all can be verified without
//! restoring. What is interrupted at any moment, by a power cut too, leaves all generations as they
//! were.
//!
//! ```
//! # fn main() -> tamis::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let (store, copy) = (dir.path().join("db"), dir.path().join("copy"));
//! # let backups = dir.path().join("backups");
//! use tamis::Db;
//! use tamis_backup::Repository;
//!
//! let db = Db::open(&store)?;
//! db.put("apple", "1")?;
//! let repository = Repository::create(&backups)?;
//! let monday = repository.backup(&db)?;
//! db.put("apple", "2")?;
//! repository.backup(&db)?;
//! repository.restore(monday.generation, &copy)?;
//! assert_eq!(Db::open(&copy)?.get("apple")?.as_deref(), Some(&b"1"[..]));
//! repository.prune(1)?; // keep the last one
//! # Ok(()) }
//! ```
//!
//! # What is in a repository
//!
//! | name | content |
//! |---|---|
//! | `REPOSITORY` | a line of text, which says that this is one; made last |
//! | `LOCK` | in a directory: held by a process that backs up or prunes |
//! | `data/9c..-000012.sst-4096-89..-6` | a table or value file; see below |
//! | `data/5be0..-CURRENT` | a file that one generation alone has: `CURRENT`, manifest, logs |
//! | `log/1f0e..-0..1235-0..1240-1764..` | a segment of the log; see `segment` |
//! | `gen/00000007` | record 7: a generation with its store and files, or a prune; see `record` |
//!
//! [`Repository::backup_keyspace`] makes a generation of one keyspace, and
//! [`Repository::restore_keyspace`] brings one keyspace of any generation into a store that goes
//! on.
//!
//! A generation exists once its record does, which is written after all else is durable. Objects
//! are immutable. A table is known by the branch and the number that wrote it (see
//! [`ImageFile::branch`](tamis::ImageFile::branch)), so that it is found again without being read.
//! Its name has these, length and checksum, and the last record that its writer had read.
//!
//! Several stores may share a repository. Each generation names its store ([`StoreId`]), and
//! stores are kept, pruned and restored apart: no operation on one takes a generation, or a file or
//! segment that it needs, from another. [`Repository::prune`] alone is about all of them.
//!
//! Any number of processes may back up, prune, restore and verify at the same time. In a directory,
//! a lock keeps those that write apart, and the second one fails with [`Error::Locked`]. In an
//! object store they go on side by side, and the numbers of the records decide (see `journal`). A
//! restore that a prune overtakes fails, and leaves nothing.

mod backup;
#[cfg(feature = "object-store")]
mod bucket;
mod directory;
mod follow;
mod journal;
mod prune;
mod record;
mod restore;
mod segment;
mod storage;
mod store;
mod verify;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis::vfs::{FileSystem, OsFileSystem};
use tamis::{Error, ProgressListener, Result};

pub use backup::Backup;
pub use follow::{Follow, FollowOptions, FollowStatus, Follower};
pub use prune::Pruned;
pub use record::{Generation, StoreId, StoredFile};
pub use restore::{KeyspaceAt, Point, Reach, Restored};
pub use storage::{Fill, Listed, Storage, Take};
pub use store::{Base, StoredStore};
pub use verify::{Fault, Verified};

use directory::Directory;
use journal::{Journal, put_own, read_small};

/// Content of `REPOSITORY`.
const MARKER: &[u8] = b"tamis backup repository 1\n";
const MARKER_NAME: &str = "REPOSITORY";
/// The folder of the stores' files.
const DATA: &str = "data";
/// The folder of the records.
const GENERATIONS: &str = "gen";
/// The folder of the segments of the log.
const LOG: &str = "log";

/// The address of a repository in an object store, if it is one and no path.
fn address(place: &Path) -> Option<&str> {
    place.to_str().filter(|place| place.contains("://"))
}

#[cfg(not(feature = "object-store"))]
fn no_object_stores(address: &str) -> Result<Repository> {
    Err(invalid(format_args!("{address}: this program is built without object stores (the feature object-store)")))
}

/// A repository of backups.
#[derive(Clone)]
pub struct Repository {
    /// Where stores are restored to.
    fs: Arc<dyn FileSystem>,
    storage: Arc<dyn Storage>,
    progress: ProgressListener,
}

impl Repository {
    /// Opens the repository in `dir`, and creates it if the directory is absent or empty.
    pub fn create(dir: impl AsRef<Path>) -> Result<Repository> {
        Repository::create_on(Arc::new(OsFileSystem::new()), dir)
    }

    /// Opens the repository in `dir`.
    pub fn open(dir: impl AsRef<Path>) -> Result<Repository> {
        Repository::open_on(Arc::new(OsFileSystem::new()), dir)
    }

    /// [`create`](Repository::create) in another file system than the operating system's. Stores
    /// are restored to that one, too.
    pub fn create_on(file_system: Arc<dyn FileSystem>, dir: impl AsRef<Path>) -> Result<Repository> {
        let directory = Directory::new(Arc::clone(&file_system), dir.as_ref())?;
        Repository::create_in(file_system, Arc::new(directory))
    }

    /// [`open`](Repository::open) in another file system than the operating system's.
    pub fn open_on(file_system: Arc<dyn FileSystem>, dir: impl AsRef<Path>) -> Result<Repository> {
        let directory = Directory::new(Arc::clone(&file_system), dir.as_ref())?;
        Repository::open_in(file_system, Arc::new(directory))
    }

    /// Opens the repository at an address like `s3://bucket/prefix`, and creates it if there is
    /// nothing under that prefix. Stores are restored to the operating system's file system.
    ///
    /// Endpoint and credentials come from the environment: `AWS_ENDPOINT`, `AWS_REGION`,
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and others; `AWS_ALLOW_HTTP=true` for one that
    /// is not encrypted. Before it writes for the first time, it has two writes race for one name.
    /// A bucket that lets both win is refused: the error is [`Error::Io`] of kind `Unsupported`.
    ///
    /// Calls block. They may be made from within an async runtime, and hold up its thread.
    #[cfg(feature = "object-store")]
    pub fn create_in_bucket(address: &str) -> Result<Repository> {
        Repository::create_in(Arc::new(OsFileSystem::new()), Arc::new(bucket::Bucket::open(address)?))
    }

    /// Opens the repository at an address like `s3://bucket/prefix`; see
    /// [`create_in_bucket`](Repository::create_in_bucket). To read it needs no right to write.
    #[cfg(feature = "object-store")]
    pub fn open_in_bucket(address: &str) -> Result<Repository> {
        Repository::open_in(Arc::new(OsFileSystem::new()), Arc::new(bucket::Bucket::open(address)?))
    }

    /// Opens the repository at `place`, and creates it if there is none: at an address, which has
    /// `://`, in an object store, and else in a directory. An address is an error without the
    /// feature `object-store`.
    pub fn create_at(place: impl AsRef<Path>) -> Result<Repository> {
        match address(place.as_ref()) {
            #[cfg(feature = "object-store")]
            Some(address) => Repository::create_in_bucket(address),
            #[cfg(not(feature = "object-store"))]
            Some(address) => no_object_stores(address),
            None => Repository::create(place),
        }
    }

    /// Opens the repository at a place that [`create_at`](Repository::create_at) takes.
    pub fn open_at(place: impl AsRef<Path>) -> Result<Repository> {
        match address(place.as_ref()) {
            #[cfg(feature = "object-store")]
            Some(address) => Repository::open_in_bucket(address),
            #[cfg(not(feature = "object-store"))]
            Some(address) => no_object_stores(address),
            None => Repository::open(place),
        }
    }

    /// Opens the repository in a storage, and creates it if there is none. Stores are restored to
    /// `file_system`.
    pub fn create_in(file_system: Arc<dyn FileSystem>, storage: Arc<dyn Storage>) -> Result<Repository> {
        let repository = Repository { fs: file_system, storage, progress: ProgressListener::default() };
        if repository.is_marked()? {
            return Ok(repository);
        }
        if let Err(error) = repository.storage.prepare() {
            // Unless another process has created it meanwhile.
            return if repository.is_marked()? { Ok(repository) } else { Err(error) };
        }
        let _lock = repository.storage.begin()?;
        // Another process may create it meanwhile.
        if !put_own(&*repository.storage, MARKER_NAME, MARKER)? {
            repository.is_marked()?;
        }
        Ok(repository)
    }

    /// Opens the repository in a storage.
    pub fn open_in(file_system: Arc<dyn FileSystem>, storage: Arc<dyn Storage>) -> Result<Repository> {
        let repository = Repository { fs: file_system, storage, progress: ProgressListener::default() };
        match repository.is_marked()? {
            true => Ok(repository),
            false => Err(invalid(format_args!("there is no backup repository in {}", repository.path().display()))),
        }
    }

    /// Has `listener` told how far backups, restores and [`verify`](Repository::verify) are, by the
    /// bytes of files. What a backup need not copy is done, too.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis::ProgressListener;
    /// use tamis_backup::Repository;
    ///
    /// let listener = ProgressListener::new(|at| println!("{} of {} bytes", at.done, at.total));
    /// let repository = Repository::create(dir.path().join("backups"))?.on_progress(listener);
    /// repository.backup(&db)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_progress(self, listener: ProgressListener) -> Repository {
        Repository { progress: listener, ..self }
    }

    /// Its directory, or its address.
    pub fn path(&self) -> PathBuf {
        self.storage.path("")
    }

    fn is_marked(&self) -> Result<bool> {
        match read_small(&*self.storage, MARKER_NAME, MARKER.len()) {
            Ok(found) if found == MARKER => Ok(true),
            Err(error) if storage::is_absent(&error) => Ok(false),
            Err(error) if !error.is_corruption() => Err(error),
            _ => Err(damaged(&*self.storage, MARKER_NAME, "it is no repository of a known version")),
        }
    }

    fn journal(&self) -> Result<Journal> {
        Journal::read(&*self.storage)
    }

    /// All generations, oldest first. One that cannot be read is an error;
    /// [`verify`](Repository::verify) finds all of those.
    pub fn generations(&self) -> Result<Vec<Generation>> {
        let journal = self.journal()?;
        journal.generations().map(|(_, generation)| generation.cloned().map_err(Error::clone)).collect()
    }

    /// The generation of this number.
    pub fn generation(&self, number: u64) -> Result<Generation> {
        let journal = self.journal()?;
        match journal.generations().find(|(of, _)| *of == number) {
            Some((_, generation)) => generation.cloned().map_err(Error::clone),
            None => Err(invalid(format_args!("{} has no generation {number}", self.path().display()))),
        }
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("path", &self.path()).finish()
    }
}

fn damaged(storage: &dyn Storage, name: &str, rule: impl fmt::Display) -> Error {
    Error::Corruption { file: storage.path(name), offset: 0, rule: rule.to_string() }
}

fn invalid(what: impl fmt::Display) -> Error {
    Error::InvalidArgument(what.to_string())
}
