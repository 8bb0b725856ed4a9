//! [`Directory`]: where a repository keeps its files, and how they come to be there whole.
//!
//! A file appears under its name only when all of it is durable: it is written under a temporary
//! name, synced, and renamed. Nobody changes a file afterwards.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis::vfs::{FileLock, FileSystem};
use tamis::{Error, Result};

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// End of the names of files that are being written.
const TEMPORARY: &str = ".tmp";

/// The folders of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folder {
    /// The repository itself.
    Root,
    /// Files of stores.
    Data,
    /// One file for each generation.
    Generations,
}

/// A directory of a file system.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    fs: Arc<dyn FileSystem>,
    root: PathBuf,
}

impl Directory {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, root: &Path) -> Result<Directory> {
        let root = during("resolve", root, fs.absolute(root))?;
        Ok(Directory { fs, root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn folder(&self, folder: Folder) -> PathBuf {
        match folder {
            Folder::Root => self.root.clone(),
            Folder::Data => self.root.join("data"),
            Folder::Generations => self.root.join("gen"),
        }
    }

    pub(crate) fn path(&self, folder: Folder, name: &str) -> PathBuf {
        self.folder(folder).join(name)
    }

    /// Creates the folders, durably.
    pub(crate) fn create(&self) -> Result<()> {
        for folder in [Folder::Root, Folder::Data, Folder::Generations] {
            let path = self.folder(folder);
            during("create", &path, self.fs.create_dir(&path))?;
        }
        for above in self.root.ancestors() {
            match self.fs.sync_dir(above) {
                // A directory that cannot be synced at all got no name from this program.
                Err(error) if above != self.root && cannot_be_synced(&error) => {}
                synced => during("sync", above, synced)?,
            }
        }
        Ok(())
    }

    /// Keeps other writers out until the result is dropped.
    pub(crate) fn lock(&self) -> Result<Box<dyn FileLock>> {
        let path = self.path(Folder::Root, "LOCK");
        let holder = || "another backup, or one that removes generations".to_owned();
        let lock = during("lock", &path, self.fs.lock(&path))?;
        lock.ok_or_else(|| Error::Locked { path: self.root.clone(), holder: holder() })
    }

    /// The names in a folder, sorted; none if it is absent. Files that are being written are left
    /// out.
    pub(crate) fn list(&self, folder: Folder) -> Result<Vec<String>> {
        let mut names = self.list_all(folder)?;
        names.retain(|name| !name.ends_with(TEMPORARY));
        Ok(names)
    }

    /// All names in a folder, sorted.
    pub(crate) fn list_all(&self, folder: Folder) -> Result<Vec<String>> {
        let path = self.folder(folder);
        let mut names = match self.fs.list(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => during("list", &path, names)?,
        };
        names.sort_unstable();
        Ok(names)
    }

    /// Removes what an interrupted writer was writing. The caller holds the lock.
    pub(crate) fn remove_unfinished(&self) -> Result<()> {
        for folder in [Folder::Data, Folder::Generations] {
            for name in self.list_all(folder)?.iter().filter(|name| name.ends_with(TEMPORARY)) {
                self.remove(folder, name)?;
            }
        }
        Ok(())
    }

    /// Length of a file; `None` if it is absent.
    pub(crate) fn len(&self, folder: Folder, name: &str) -> Result<Option<u64>> {
        let path = self.path(folder, name);
        match self.fs.open(&path).and_then(|file| file.len()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            len => during("open", &path, len).map(Some),
        }
    }

    /// Gives a file to `take`, from its beginning to its end.
    pub(crate) fn read(&self, folder: Folder, name: &str, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let path = self.path(folder, name);
        let file = during("open", &path, self.fs.open(&path))?;
        let (mut piece, mut offset) = (vec![0; PIECE], 0);
        loop {
            let read = during("read", &path, file.read_at(&mut piece, offset))?;
            take(&piece[..read])?;
            if read < piece.len() {
                return Ok(());
            }
            offset += read as u64;
        }
    }

    /// Writes a file, in place of one of that name: `fill` gets a function that appends to it. Its
    /// content is durable; [`sync`](Directory::sync) makes its name durable. The caller holds the
    /// lock.
    pub(crate) fn write<T>(
        &self,
        folder: Folder,
        name: &str,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        let (path, temporary) = (self.path(folder, name), self.path(folder, &format!("{name}{TEMPORARY}")));
        // Left by an interrupted writer. If this fails, so does `create`.
        let _ = self.fs.remove(&temporary);
        let file = during("create", &temporary, self.fs.create(&temporary))?;
        let written = fill(&mut |bytes| during("write", &temporary, file.append(bytes)))
            .and_then(|value| during("sync", &temporary, file.sync()).map(|()| value))
            .and_then(|value| during("rename", &temporary, self.fs.rename(&temporary, &path)).map(|()| value));
        if written.is_err() {
            // Otherwise the next writer does.
            let _ = self.fs.remove(&temporary);
        }
        written
    }

    pub(crate) fn remove(&self, folder: Folder, name: &str) -> Result<()> {
        let path = self.path(folder, name);
        during("remove", &path, self.fs.remove(&path))
    }

    /// Makes the names in a folder durable.
    pub(crate) fn sync(&self, folder: Folder) -> Result<()> {
        let path = self.folder(folder);
        during("sync", &path, self.fs.sync_dir(&path))
    }
}

fn cannot_be_synced(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), PermissionDenied | InvalidInput | ReadOnlyFilesystem | Unsupported)
}

fn during<T>(operation: &'static str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Io { operation, path: path.to_owned(), source: Arc::new(source) })
}
