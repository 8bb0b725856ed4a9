//! [`StoreCopy`]: puts the files of a store into a directory so that they count all at once.
//!
//! ```text
//! LOCK, PARTIAL durable  →  files, each synced  →  names synced  →  PARTIAL removed, durable
//! ```
//!
//! While `PARTIAL` is there, the directory is no store: opening it fails with
//! [`Error::Incomplete`]. It is there as long as anything else is incomplete or not durable. Only a
//! directory with our `PARTIAL` is ever cleared.

pub(crate) mod checkpoint;
pub(crate) mod image;
pub(crate) mod keyspace;
mod part;
mod scratch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

mod log;

pub use log::CopiedLog;

use super::open::sync_names_above;
use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::tree::manifest::LOST_AND_FOUND;
use crate::vfs::{FileLock, FileSystem, HeldDir, read_small_file};

/// Content of `PARTIAL`. Part of the format.
const MARKER: &str = "tamis: an unfinished copy of a store\n";

/// A directory into which a copy of a store is being put, for programs that restore one; see
/// [`StoreCopy::make`].
pub struct StoreCopy {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    held: Option<Box<dyn HeldDir>>,
    /// Against others who copy to this directory, or open it.
    _lock: Box<dyn FileLock>,
}

impl StoreCopy {
    /// Makes a store in `dir` of the files that `fill` puts there with
    /// [`write`](StoreCopy::write). When this returns, the store survives a power cut.
    ///
    /// The directory must be absent or empty, or hold a copy that was interrupted, which is
    /// cleared. Until the copy is complete, opening it fails with [`Error::Incomplete`]. If `fill`
    /// fails, the files are removed.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use std::sync::Arc;
    /// use tamis::vfs::OsFileSystem;
    /// use tamis::{Db, StoreCopy};
    ///
    /// db.put("apple", "1")?;
    /// let (image, target) = (db.image()?, dir.path().join("copy"));
    /// StoreCopy::make(Arc::new(OsFileSystem), &target, |copy| {
    ///     image.files().try_for_each(|file| {
    ///         copy.write(file.kind, |put| image.read(file.kind, put).map(drop))
    ///     })
    /// })?;
    /// assert_eq!(Db::open(&target)?.get("apple")?.as_deref(), Some(&b"1"[..]));
    /// # Ok(()) }
    /// ```
    pub fn make<T>(
        file_system: Arc<dyn FileSystem>,
        dir: impl AsRef<Path>,
        fill: impl FnOnce(&StoreCopy) -> Result<T>,
    ) -> Result<T> {
        let copy = StoreCopy::begin(file_system, dir.as_ref())?;
        match fill(&copy).and_then(|filled| copy.sync_names().map(|()| filled)) {
            Ok(filled) => {
                copy.finish()?;
                Ok(filled)
            }
            Err(error) => {
                // What cannot be removed now stays marked, and is removed by the next attempt.
                let _ = copy.clear().and_then(|()| copy.finish());
                Err(error)
            }
        }
    }

    /// Writes the file called `kind`: `fill` gets a function that appends bytes to it.
    pub fn write<T>(
        &self,
        kind: FileKind,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        let path = kind.path(&self.dir);
        let file = self.fs.create(&path).during("create", &path)?;
        let written = fill(&mut |bytes| file.append(bytes).during("write", &path))?;
        file.sync().during("sync", &path)?;
        Ok(written)
    }

    /// Gives a file, whose content is durable, a name here; returns whether it could.
    pub(super) fn link(&self, kind: FileKind, from: &Path) -> bool {
        self.fs.hard_link(from, &kind.path(&self.dir)).is_ok()
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn begin(fs: Arc<dyn FileSystem>, given: &Path) -> Result<StoreCopy> {
        // Before anything is changed, so that others' directories are left alone.
        check_place(&*fs, given)?;
        fs.create_dir(given).during("create", given)?;
        let dir = fs.absolute(given).during("resolve", given)?;
        let path = FileKind::Lock.path(&dir);
        let holder = || "another process, or another handle in this one".to_owned();
        let lock = fs.lock(&path).during("lock", &path)?;
        let lock = lock.ok_or_else(|| Error::Locked { path: given.to_owned(), holder: holder() })?;
        let place = check_place(&*fs, &dir)?;
        // The last sync must not fail for want of a descriptor: the copy is whole by then.
        let held = fs.hold_dir(&dir).during("open", &dir)?;
        let copy = StoreCopy { fs, dir, held, _lock: lock };
        if place != Place::Marked {
            copy.mark()?;
        }
        copy.clear()?;
        Ok(copy)
    }

    fn sync_dir(&self) -> Result<()> {
        let synced = self.held.as_ref().map_or_else(|| self.fs.sync_dir(&self.dir), |held| held.sync());
        synced.during("sync", &self.dir)
    }

    /// Puts a durable `PARTIAL` in place.
    fn mark(&self) -> Result<()> {
        let path = FileKind::Partial.path(&self.dir);
        // One that is not whole: see `check_place`. If this fails, so does `create`.
        let _ = self.fs.remove(&path);
        let file = self.fs.create(&path).during("create", &path)?;
        file.append(MARKER.as_bytes()).during("write", &path)?;
        file.sync().during("sync", &path)?;
        self.sync_dir()
    }

    /// Removes what an interrupted copy left, durably.
    fn clear(&self) -> Result<()> {
        let names = self.fs.list(&self.dir).during("list", &self.dir)?;
        let kinds = names.iter().filter_map(|name| FileKind::parse(name));
        let mut left = kinds.filter(|kind| !matches!(kind, FileKind::Lock | FileKind::Partial)).peekable();
        if left.peek().is_none() {
            return Ok(());
        }
        for path in left.map(|kind| kind.path(&self.dir)) {
            self.fs.remove(&path).during("remove", &path)?;
        }
        self.sync_dir()
    }

    fn sync_names(&self) -> Result<()> {
        self.sync_dir()?;
        sync_names_above(&*self.fs, &self.dir)
    }

    /// Makes the directory what it is without `PARTIAL`.
    fn finish(&self) -> Result<()> {
        let path = FileKind::Partial.path(&self.dir);
        self.fs.remove(&path).during("remove", &path)?;
        self.sync_dir()
    }
}

/// What a directory for a copy holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing, or a `PARTIAL` that a power cut has torn: then nothing else can be there.
    Free,
    /// What an interrupted copy left.
    Marked,
}

/// Refuses a directory with anything in it but the leftovers of an interrupted copy.
fn check_place(fs: &dyn FileSystem, dir: &Path) -> Result<Place> {
    let names = match fs.list(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Place::Free),
        names => names.during("list", dir)?,
    };
    let (partial, lock) = (FileKind::Partial.name(), FileKind::Lock.name());
    let is_marked = || {
        let path = FileKind::Partial.path(dir);
        let read = read_small_file(fs, &path, MARKER.len()).or_else(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => Ok(Vec::new()),
            _ => Err(error),
        });
        read.during("read", &path).map(|bytes| bytes == MARKER.as_bytes())
    };
    let place = if names.contains(&partial) && is_marked()? { Place::Marked } else { Place::Free };
    let mut others = names.iter().filter(|name| **name != partial && **name != lock && *name != LOST_AND_FOUND);
    let is_left_over = |name: &String| place == Place::Marked && FileKind::parse(name).is_some();
    match others.find(|name| !is_left_over(name)) {
        None => Ok(place),
        Some(name) => Err(Error::invalid(format_args!(
            "{} holds {name}; a copy of a store is put into an absent or an empty directory",
            dir.display()
        ))),
    }
}
