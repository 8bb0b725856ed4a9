//! [`Directory`]: a repository's objects as files.
//!
//! A file appears under its name only when all of it is durable: it is written under a temporary
//! name, synced, and renamed. `LOCK` keeps writers apart, except that a follower writes segments of
//! the log without it: nobody else has their names. Who takes the lock removes temporary files; a
//! follower that loses one by that writes it again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis::vfs::{FileLock, FileSystem};
use tamis::{Error, Result};

use crate::storage::{Fill, Listed, Storage, Take};
use crate::{DATA, GENERATIONS, LOG, MARKER_NAME};

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// End of the names of files that are being written.
const TEMPORARY: &str = ".tmp";
const LOCK: &str = "LOCK";
const FOLDERS: [&str; 3] = [DATA, GENERATIONS, LOG];

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

    /// All names in a folder, sorted; none if it is absent.
    fn names(&self, folder: &str) -> Result<Vec<String>> {
        let path = self.root.join(folder);
        let mut names = match self.fs.list(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => during("list", &path, names)?,
        };
        names.sort_unstable();
        Ok(names)
    }

    /// Refuses a directory with anything in it but what an interrupted creation left.
    fn check_empty(&self) -> Result<()> {
        let temporary = format!("{MARKER_NAME}{TEMPORARY}");
        let ours = [LOCK, &temporary, DATA, GENERATIONS, LOG, "lost+found"];
        let mut others = self.names("")?;
        others.retain(|name| !ours.contains(&name.as_str()));
        for folder in FOLDERS {
            others.extend(self.names(folder)?);
        }
        match others.first() {
            None => Ok(()),
            Some(name) => Err(Error::InvalidArgument(format!(
                "{} holds {name}; a backup repository is created in an absent or an empty directory",
                self.root.display()
            ))),
        }
    }

    /// Removes what interrupted writers were writing. The caller holds the lock.
    fn remove_unfinished(&self) -> Result<()> {
        for folder in FOLDERS {
            for name in self.names(folder)?.iter().filter(|name| name.ends_with(TEMPORARY)) {
                self.remove_file(&self.root.join(folder).join(name))?;
            }
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        match self.fs.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => during("remove", path, removed),
        }
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        match self.fs.open(path).and_then(|file| file.len()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            len => during("open", path, len).map(Some),
        }
    }

    /// Makes the names beside `path` durable.
    fn sync_names(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(&self.root);
        during("sync", folder, self.fs.sync_dir(folder))
    }
}

impl Storage for Directory {
    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }

    fn prepare(&self) -> Result<()> {
        self.check_empty()?;
        for folder in FOLDERS {
            let path = self.root.join(folder);
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

    fn begin(&self) -> Result<Option<Box<dyn FileLock>>> {
        let path = self.root.join(LOCK);
        let holder = || "another backup, or one that removes generations".to_owned();
        let lock = during("lock", &path, self.fs.lock(&path))?;
        let lock = lock.ok_or_else(|| Error::Locked { path: self.root.clone(), holder: holder() })?;
        self.remove_unfinished()?;
        Ok(Some(lock))
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for name in self.names(folder)?.into_iter().filter(|name| !name.ends_with(TEMPORARY)) {
            let name = format!("{folder}/{name}");
            match self.len(&self.root.join(&name)) {
                Ok(Some(size)) => listed.push(Listed { name, size, modified: None }),
                Ok(None) => {}
                Err(error) if is_no_file(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(listed)
    }

    fn read(&self, name: &str, take: &mut Take<'_>) -> Result<()> {
        let path = self.root.join(name);
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

    fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.len(&self.root.join(name))?.is_some())
    }

    fn put(&self, name: &str, fill: &mut Fill<'_>) -> Result<()> {
        let (path, temporary) = (self.root.join(name), self.root.join(format!("{name}{TEMPORARY}")));
        // Left by an interrupted writer. If this fails, so does `create`.
        let _ = self.fs.remove(&temporary);
        let file = during("create", &temporary, self.fs.create(&temporary))?;
        let written = fill(&mut |bytes| during("write", &temporary, file.append(bytes)))
            .and_then(|()| during("sync", &temporary, file.sync()))
            .and_then(|()| during("rename", &temporary, self.fs.rename(&temporary, &path)));
        if written.is_err() {
            // Otherwise the next writer does.
            let _ = self.fs.remove(&temporary);
        }
        written.and_then(|()| self.sync_names(&path))
    }

    fn put_new(&self, name: &str, content: &[u8]) -> Result<bool> {
        // No other writer has the name, or the lock keeps it out.
        if self.len(&self.root.join(name))?.is_some() {
            return Ok(false);
        }
        self.put(name, &mut |put| put(content))?;
        Ok(true)
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        for name in names {
            self.remove_file(&self.root.join(name))?;
        }
        for folder in FOLDERS {
            if names.iter().any(|name| name.split_once('/').is_some_and(|(of, _)| of == folder)) {
                let path = self.root.join(folder);
                during("sync", &path, self.fs.sync_dir(&path))?;
            }
        }
        Ok(())
    }
}

/// Whether what was opened is a directory, a pipe or a device, which no object of a repository is.
fn is_no_file(error: &Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory};
    matches!(error, Error::Io { source, .. } if matches!(source.kind(), InvalidInput | IsADirectory))
}

fn cannot_be_synced(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), PermissionDenied | InvalidInput | ReadOnlyFilesystem | Unsupported)
}

fn during<T>(operation: &'static str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Io { operation, path: path.to_owned(), source: Arc::new(source) })
}
