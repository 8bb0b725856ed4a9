//! [`FilePool`]: open files of tables and values, up to a limit. The file read least recently is
//! closed first.
//!
//! Stores may share the limit: each has a [`FilePool`] of its own over one [`OpenFiles`].

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::LruCache;

use super::ReadMode;
use crate::sync::Mutex;
use crate::vfs::{FileSystem, ReadableFile};

/// A store, by the order in which pools were made, and the number of a file, which no two files of
/// a store share.
type FileKey = (u64, u64);

/// The open files of all stores that share a limit. Only reads from disk come here, so one lock is
/// enough.
pub struct OpenFiles {
    files: Mutex<LruCache<FileKey, Arc<dyn ReadableFile>>>,
    pools: AtomicU64,
}

impl OpenFiles {
    /// At most `limit` files, and one at least.
    pub fn new(limit: usize) -> Arc<OpenFiles> {
        let limit = NonZeroUsize::new(limit).unwrap_or(NonZeroUsize::MIN);
        // `LruCache::new` would allocate for the limit at once, and the limit may be any number.
        let mut files = LruCache::unbounded();
        files.resize(limit);
        Arc::new(OpenFiles { files: Mutex::new(files), pools: AtomicU64::new(0) })
    }

    /// Closes an eighth of the files, those read least recently. Returns whether there was one.
    pub(super) fn close_some(&self) -> bool {
        let mut files = self.files.lock();
        let count = files.len().div_ceil(8);
        let closed: Vec<_> = (0..count).filter_map(|_| files.pop_lru()).collect();
        // Closing a file takes a system call: not under the lock.
        drop(files);
        !closed.is_empty()
    }

    /// Number of files that are held open.
    pub fn count(&self) -> usize {
        self.files.lock().len()
    }

    /// The most files that are held open.
    pub fn limit(&self) -> usize {
        self.files.lock().cap().get()
    }
}

/// The files of a store: where they are, how they are read, and which are open, by number. A reader
/// keeps its file open while it reads, even if the pool closes it meanwhile. Dropping the pool
/// closes the files.
pub struct FilePool {
    pub fs: Arc<dyn FileSystem>,
    pub dir: PathBuf,
    pub read_mode: ReadMode,
    shared: Arc<OpenFiles>,
    id: u64,
}

impl FilePool {
    /// A pool for another store.
    pub fn new(fs: Arc<dyn FileSystem>, dir: &Path, read_mode: ReadMode, shared: &Arc<OpenFiles>) -> FilePool {
        let id = shared.pools.fetch_add(1, Ordering::Relaxed);
        FilePool { fs, dir: dir.to_owned(), read_mode, shared: Arc::clone(shared), id }
    }

    /// Number of files that the store, and those with which it shares the limit, hold open.
    #[cfg(test)]
    pub fn open_files(&self) -> usize {
        self.shared.count()
    }

    /// The file of this number; calls `open` if the pool does not hold it.
    pub fn get(
        &self,
        number: u64,
        open: impl FnOnce() -> io::Result<Arc<dyn ReadableFile>>,
    ) -> io::Result<Arc<dyn ReadableFile>> {
        if let Some(file) = self.get_if_open(number) {
            return Ok(file);
        }
        // Opened without the lock: of two racing readers, the later file stays in the pool.
        let file = open()?;
        let evicted = self.shared.files.lock().push((self.id, number), Arc::clone(&file));
        // Closed without the lock.
        drop(evicted);
        Ok(file)
    }

    /// The file of this number, if the pool holds it open.
    pub fn get_if_open(&self, number: u64) -> Option<Arc<dyn ReadableFile>> {
        self.shared.files.lock().get(&(self.id, number)).cloned()
    }

    /// Closes the file of this number, once no reader uses it.
    pub fn remove(&self, number: u64) {
        let removed = self.shared.files.lock().pop(&(self.id, number));
        // Closed without the lock.
        drop(removed);
    }
}

impl Drop for FilePool {
    fn drop(&mut self) {
        let mut files = self.shared.files.lock();
        let own: Vec<FileKey> = files.iter().map(|(key, _)| *key).filter(|(pool, _)| *pool == self.id).collect();
        let closed: Vec<_> = own.iter().filter_map(|key| files.pop(key)).collect();
        drop(files);
        drop(closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::SimFileSystem;

    fn pool(shared: &Arc<OpenFiles>) -> FilePool {
        FilePool::new(Arc::new(SimFileSystem::new()), Path::new("/db"), ReadMode::Pread, shared)
    }

    fn file() -> Arc<dyn ReadableFile> {
        let (fs, path) = (SimFileSystem::new(), Path::new("/file"));
        fs.create(path).unwrap();
        fs.open(path).unwrap()
    }

    #[test]
    fn the_file_read_least_recently_is_closed_first() {
        let pool = pool(&OpenFiles::new(3));
        for number in [1, 2, 3, 1, 4] {
            pool.get(number, || Ok(file())).unwrap();
        }
        let held: Vec<bool> = (1..=4).map(|number| pool.get_if_open(number).is_some()).collect();
        assert_eq!(held, [true, false, true, true]);
        pool.remove(3);
        assert_eq!((pool.open_files(), pool.get_if_open(3).is_none()), (2, true));
    }

    #[test]
    fn stores_share_the_limit_and_not_the_files() {
        let shared = OpenFiles::new(3);
        let (one, two) = (pool(&shared), pool(&shared));
        let (first, other) = (file(), file());
        assert!(Arc::ptr_eq(&one.get(1, || Ok(Arc::clone(&first))).unwrap(), &first));
        assert!(two.get_if_open(1).is_none());
        assert!(Arc::ptr_eq(&two.get(1, || Ok(Arc::clone(&other))).unwrap(), &other));
        assert!(one.get_if_open(1).is_some_and(|file| Arc::ptr_eq(&file, &first)));
        for number in 2..5 {
            two.get(number, || Ok(file())).unwrap();
        }
        assert_eq!((shared.count(), shared.limit(), one.get_if_open(1).is_none()), (3, 3, true));
        one.get(7, || Ok(file())).unwrap();
        drop(two);
        assert_eq!((shared.count(), one.get_if_open(7).is_some()), (1, true), "a store closes its own files");
    }
}
