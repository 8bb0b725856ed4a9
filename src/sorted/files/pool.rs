//! [`FilePool`]: open files of tables and values, up to a limit. The file read least recently is
//! closed first.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use crate::vfs::{ReadableFile, is_out_of_descriptors};

/// Open files by number, which no two files share. Only reads from disk come here, so one lock is
/// enough. A reader keeps its file open while it reads, even if the pool closes it meanwhile.
pub(crate) struct FilePool {
    files: Mutex<LruCache<u64, Arc<dyn ReadableFile>>>,
}

impl FilePool {
    /// A pool of at most `max_open_files` files, and of one at least.
    pub(crate) fn new(max_open_files: usize) -> FilePool {
        let limit = NonZeroUsize::new(max_open_files).unwrap_or(NonZeroUsize::MIN);
        // `LruCache::new` would allocate for the limit at once, and the limit may be any number.
        let mut files = LruCache::unbounded();
        files.resize(limit);
        FilePool { files: Mutex::new(files) }
    }

    /// Number of files that the pool holds open.
    #[cfg(test)]
    pub(crate) fn open_files(&self) -> usize {
        self.files.lock().len()
    }

    /// The file of this number; calls `open` if the pool does not hold it.
    pub(crate) fn get(
        &self,
        number: u64,
        open: impl Fn() -> io::Result<Arc<dyn ReadableFile>>,
    ) -> io::Result<Arc<dyn ReadableFile>> {
        if let Some(file) = self.files.lock().get(&number) {
            return Ok(Arc::clone(file));
        }
        // Opened without the lock: of two racing readers, the later file stays in the pool.
        let mut opened = open();
        // Other parts of the program may have used up the descriptors. The pool closes all of its
        // own and retries.
        if opened.as_ref().is_err_and(is_out_of_descriptors) {
            self.files.lock().clear();
            opened = open();
        }
        let file = opened?;
        self.files.lock().put(number, Arc::clone(&file));
        Ok(file)
    }

    /// The file of this number, if the pool holds it open.
    pub(crate) fn get_if_open(&self, number: u64) -> Option<Arc<dyn ReadableFile>> {
        self.files.lock().get(&number).cloned()
    }

    /// Closes the file of this number, once no reader uses it.
    pub(crate) fn remove(&self, number: u64) {
        self.files.lock().pop(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{FileSystem, SimFileSystem};
    use std::path::Path;

    fn file() -> Arc<dyn ReadableFile> {
        let (fs, path) = (SimFileSystem::new(), Path::new("/file"));
        fs.create(path).unwrap();
        fs.open(path).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn the_pool_gives_its_files_back_when_descriptors_run_out() {
        let pool = FilePool::new(8);
        for number in 0..5 {
            pool.get(number, || Ok(file())).unwrap();
        }
        let attempts = std::cell::Cell::new(0);
        let out_of_descriptors = || {
            attempts.set(attempts.get() + 1);
            match pool.open_files() {
                0 => Ok(file()),
                _ => Err(rustix::io::Errno::MFILE.into()),
            }
        };
        pool.get(9, out_of_descriptors).unwrap();
        assert_eq!((attempts.get(), pool.open_files()), (2, 1));
    }

    #[test]
    fn the_file_read_least_recently_is_closed_first() {
        let pool = FilePool::new(3);
        for number in [1, 2, 3, 1, 4] {
            pool.get(number, || Ok(file())).unwrap();
        }
        let held: Vec<bool> = (1..=4).map(|number| pool.get_if_open(number).is_some()).collect();
        assert_eq!(held, [true, false, true, true]);
        pool.remove(3);
        assert_eq!((pool.open_files(), pool.get_if_open(3).is_none()), (2, true));
    }

    #[test]
    fn other_errors_are_not_retried() {
        let pool = FilePool::new(8);
        pool.get(1, || Ok(file())).unwrap();
        let error = pool.get(2, || Err(io::ErrorKind::PermissionDenied.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(pool.open_files(), 1);
    }
}
