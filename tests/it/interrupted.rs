//! A file system for readers that lets others act between any two pieces that they read.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tamis::vfs::{FileLock, FileSystem, ReadableFile, SimFileSystem, WritableFile};

/// Bytes that a reader gets before the writer may act again.
const PIECE: usize = 256;

/// A file system for readers that calls `interrupt` before each piece that is read. An error of it
/// is that of the read.
#[derive(Clone)]
pub(crate) struct Interrupted {
    pub(crate) fs: SimFileSystem,
    pub(crate) interrupt: Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
}

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupted").finish_non_exhaustive()
    }
}

fn no_writes<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl FileSystem for Interrupted {
    fn create(&self, _: &Path) -> io::Result<Box<dyn WritableFile>> {
        no_writes()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        (self.interrupt)()?;
        let file = self.fs.open(path)?;
        (self.interrupt)()?;
        Ok(Arc::new(InPieces { file, fs: self.clone() }))
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        no_writes()
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        no_writes()
    }

    /// Listing a directory is not atomic either: a file created meanwhile may be listed or not.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let before = self.fs.list(dir)?;
        (self.interrupt)()?;
        let mut names = self.fs.list(dir)?;
        names.retain(|name| before.contains(name) || name.len() % 2 == 0 || name.as_bytes()[5] % 2 == 0);
        Ok(names)
    }

    fn create_dir(&self, _: &Path) -> io::Result<bool> {
        no_writes()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        no_writes()
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        no_writes()
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        (self.interrupt)()?;
        self.fs.is_locked(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}

#[derive(Debug)]
struct InPieces {
    file: Arc<dyn ReadableFile>,
    fs: Interrupted,
}

impl ReadableFile for InPieces {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        for piece in buf.chunks_mut(PIECE) {
            (self.fs.interrupt)()?;
            let read = self.file.read_at(piece, offset + done as u64)?;
            done += read;
            if read < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    fn len(&self) -> io::Result<u64> {
        (self.fs.interrupt)()?;
        self.file.len()
    }
}
