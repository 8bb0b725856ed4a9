//! [`Volatile`]: a disk that forgets what is not synced when its process is killed, as a disk does
//! when its power is cut. For fault runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tamis::vfs::{FileLock, FileSystem, OsFileSystem, ReadableFile, WritableFile};

/// The file system of the operating system, without its cache for writes: bytes reach it when they
/// are synced. Until then no reader of the file sees them, and the store reads only what it has
/// synced. Names of files reach it at once.
#[derive(Debug)]
pub(crate) struct Volatile;

const SYSTEM: OsFileSystem = OsFileSystem;

impl FileSystem for Volatile {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        Ok(Box::new(VolatileFile { file: SYSTEM.create(path)?, held: Mutex::default() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        SYSTEM.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SYSTEM.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        SYSTEM.hard_link(from, to)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        SYSTEM.sync_file(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SYSTEM.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        SYSTEM.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        SYSTEM.create_dir(dir)
    }

    fn is_regular(&self, path: &Path) -> io::Result<bool> {
        SYSTEM.is_regular(path)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        SYSTEM.absolute(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        SYSTEM.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        SYSTEM.lock(path)
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        SYSTEM.is_locked(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        SYSTEM.free_space(dir)
    }
}

struct VolatileFile {
    file: Box<dyn WritableFile>,
    /// Appended, and not synced.
    held: Mutex<Vec<u8>>,
}

impl WritableFile for VolatileFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.held.lock().extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut held = self.held.lock();
        self.file.append(&held)?;
        held.clear();
        drop(held);
        self.file.sync()
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file.reserve(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_synced_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = Volatile.create(&path).unwrap();
        file.append(b"syn").unwrap();
        file.append(b"ced").unwrap();
        file.sync().unwrap();
        file.append(b"lost").unwrap();
        for file in [Some(file), None] {
            assert_eq!(Volatile.open(&path).unwrap().len().unwrap(), 6);
            drop(file);
        }
    }
}
