//! [`ThriftyFileSystem`]: the file system of a store, for which a lack of file descriptors is no
//! failure as long as the store has some to give back.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::OpenFiles;
use crate::sync::OnceLock;
use crate::vfs::{FileLock, FileSystem, HeldDir, ReadableFile, WritableFile, is_out_of_descriptors};

/// How often something is tried again when descriptors run out: by then all files are closed, even
/// of thousands, an eighth at a time.
const MOST_ATTEMPTS: u32 = 64;

/// Other parts of the program may have used up the descriptors. Whatever needs one here has open
/// files of the pool closed, a few at a time, and is tried again. And the store's directory is kept
/// open for its syncs ([`hold_dir`](FileSystem::hold_dir)): a sync that fails stops all writes.
pub struct ThriftyFileSystem {
    fs: Arc<dyn FileSystem>,
    files: Arc<OpenFiles>,
    dir: PathBuf,
    /// From the first [`hold`](ThriftyFileSystem::hold) on.
    held: OnceLock<Option<Box<dyn HeldDir>>>,
}

impl ThriftyFileSystem {
    /// For a store in `dir` whose pool has its files in `files`.
    pub fn new(fs: Arc<dyn FileSystem>, files: &Arc<OpenFiles>, dir: &Path) -> ThriftyFileSystem {
        ThriftyFileSystem { fs, files: Arc::clone(files), dir: dir.to_owned(), held: OnceLock::new() }
    }

    /// Keeps the directory of the store open, which there must be.
    pub fn hold(&self) -> io::Result<()> {
        if self.held.get().is_none() {
            let held = self.hold_dir(&self.dir)?;
            self.held.get_or_init(|| held);
        }
        Ok(())
    }

    fn thriftily<T>(&self, attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let mut result = attempt();
        for _ in 0..MOST_ATTEMPTS {
            if !(result.as_ref().is_err_and(is_out_of_descriptors) && self.files.close_some()) {
                break;
            }
            result = attempt();
        }
        result
    }
}

impl fmt::Debug for ThriftyFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fs.fmt(f)
    }
}

impl FileSystem for ThriftyFileSystem {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.thriftily(|| self.fs.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        self.thriftily(|| self.fs.open(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.thriftily(|| self.fs.hard_link(from, to))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.thriftily(|| self.fs.sync_file(path))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fs.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.thriftily(|| self.fs.list(dir))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.fs.create_dir(dir)
    }

    fn is_regular(&self, path: &Path) -> io::Result<bool> {
        self.thriftily(|| self.fs.is_regular(path))
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.fs.absolute(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        match self.held.get() {
            Some(Some(held)) if dir == self.dir => held.sync(),
            _ => self.thriftily(|| self.fs.sync_dir(dir)),
        }
    }

    fn hold_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn HeldDir>>> {
        self.thriftily(|| self.fs.hold_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.thriftily(|| self.fs.lock(path))
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        self.thriftily(|| self.fs.is_locked(path))
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::files::{FilePool, ReadMode};
    use crate::vfs::SimFileSystem;

    /// A pool of `count` files, and what opens files, once at most `most` are open.
    fn pool(count: u64, most: usize) -> (FilePool, Arc<OpenFiles>, impl Fn() -> io::Result<()>) {
        let (fs, path, shared) = (SimFileSystem::new(), Path::new("/file"), OpenFiles::new(20));
        fs.create(path).expect("created");
        let pool = FilePool::new(Arc::new(fs.clone()), Path::new("/db"), ReadMode::Pread, &shared);
        (0..count).for_each(|number| _ = pool.get(number, || fs.open(path)).expect("opened"));
        let files = Arc::clone(&shared);
        let open = move || if files.count() <= most { Ok(()) } else { Err(rustix::io::Errno::MFILE.into()) };
        (pool, shared, open)
    }

    #[test]
    fn files_are_closed_when_descriptors_run_out_until_one_is_free() {
        for (most, attempts, left) in [(0, 13, 0), (11, 4, 10), (15, 2, 14), (16, 1, 16)] {
            let (pool, files, open) = pool(16, most);
            let fs = ThriftyFileSystem::new(Arc::clone(&pool.fs), &files, Path::new("/db"));
            let made = std::cell::Cell::new(0);
            fs.thriftily(|| {
                made.set(made.get() + 1);
                open()
            })
            .unwrap();
            assert_eq!((made.get(), files.count()), (attempts, left));
            assert_eq!(pool.get_if_open(15).is_some(), left > 0, "the newest are closed last");
        }
    }

    #[test]
    fn without_files_to_close_a_lack_of_descriptors_is_an_error_and_so_is_any_other() {
        let (pool, files, _) = pool(0, 0);
        let fs = ThriftyFileSystem::new(Arc::clone(&pool.fs), &files, Path::new("/db"));
        for (error, held) in [(rustix::io::Errno::MFILE, 0), (rustix::io::Errno::ACCESS, 3)] {
            (0..held).for_each(|number| _ = pool.get(number, || pool.fs.open(Path::new("/file"))).unwrap());
            let attempts = std::cell::Cell::new(0);
            let failed = fs.thriftily(|| {
                attempts.set(attempts.get() + 1);
                Err::<(), _>(io::Error::from(error))
            });
            assert_eq!(failed.unwrap_err().raw_os_error(), Some(error.raw_os_error()));
            assert_eq!((attempts.get(), files.count()), (1, usize::try_from(held).unwrap()));
        }
    }
}
