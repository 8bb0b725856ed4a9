//! [`StoreCopy::read_once`]: a copy that is read where it is, and is never a store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::StoreCopy;
use crate::db::Db;
use crate::error::Result;
use crate::format::filename::FileKind;
use crate::options::Options;
use crate::vfs::{FileLock, FileSystem, HeldDir, ReadableFile, WritableFile};

impl StoreCopy {
    /// Makes a copy in `dir` as [`make`](StoreCopy::make) does, has `read` read it, and removes it
    /// again. `read` gets what `fill` returns. For everybody else, opening it fails with
    /// [`Error::Incomplete`] as long as it is there; what a crash leaves of it, the next copy into
    /// the directory clears.
    ///
    /// [`Error::Incomplete`]: crate::Error::Incomplete
    pub fn read_once<F, T>(
        file_system: Arc<dyn FileSystem>,
        dir: impl AsRef<Path>,
        fill: impl FnOnce(&StoreCopy) -> Result<F>,
        read: impl FnOnce(&Db, F) -> Result<T>,
    ) -> Result<T> {
        let copy = StoreCopy::begin(file_system, dir.as_ref())?;
        let done = fill(&copy).and_then(|filled| {
            let unmarked = Unmarked(Arc::clone(&copy.fs));
            let db = Options::new().file_system(Arc::new(unmarked)).open_read_only(copy.dir())?;
            let read = read(&db, filled);
            db.close().and(read)
        });
        // What cannot be removed now stays marked.
        let _ = copy.clear().and_then(|()| copy.finish());
        done
    }
}

/// A file system without `PARTIAL`s.
#[derive(Debug)]
struct Unmarked(Arc<dyn FileSystem>);

impl FileSystem for Unmarked {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        match path.file_name().is_some_and(|name| *name == *FileKind::Partial.name()) {
            true => Err(io::ErrorKind::NotFound.into()),
            false => self.0.open(path),
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.0.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.0.create_dir(dir)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.0.absolute(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn hold_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn HeldDir>>> {
        self.0.hold_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.0.lock(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.0.free_space(dir)
    }
}
