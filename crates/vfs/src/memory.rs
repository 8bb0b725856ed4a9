//! [`MemoryFileSystem`]: files in memory, for stores that need not outlive the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{FileLock, FileSystem, Mapping, ReadableFile, WritableFile};
use tamis_base::sync::{Mutex, RwLock};

/// Files in memory. They go when the last clone of this value and the last open file are dropped.
///
/// For caches, tests and stores of data that comes from elsewhere. A store works in it as on disk:
/// it can be closed and opened again, several can live side by side, and a second open of one is
/// refused with `Error::Locked`. Syncs do nothing. The content of a removed file is freed once
/// nobody has it open. `Options::open_in_memory` is the short form for one store.
///
/// What it takes is the size of the store's files: the data, compressed as on disk, its filters and
/// indexes, the log of the memtables, and during a compaction the inputs beside the output. Blocks
/// that are read are cached as well. `ReadMode::Mmap` avoids that copy for uncompressed
/// tables, without the risks that it has on disk.
///
/// ```
/// use std::path::Path;
/// use tamis_vfs::{FileSystem, MemoryFileSystem};
///
/// // A store takes it as `Options::file_system`.
/// let memory = MemoryFileSystem::limited_to(1 << 30);
/// let mut file = memory.create(Path::new("greeting"))?;
/// file.append(b"hello")?;
/// drop(file);
/// assert_eq!(memory.clone().open(Path::new("greeting"))?.len()?, 5);
/// assert!(memory.used() >= 5);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct MemoryFileSystem {
    names: Arc<Mutex<Names>>,
    space: Arc<Space>,
}

struct Names {
    dirs: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, Arc<MemoryFile>>,
}

/// Bytes of all files, removed ones included as long as they are open.
struct Space {
    used: AtomicU64,
    limit: u64,
}

struct MemoryFile {
    /// A mapping shares it: an append to a mapped file copies it first.
    content: RwLock<Arc<Vec<u8>>>,
    is_locked: AtomicBool,
    space: Arc<Space>,
}

impl Default for MemoryFileSystem {
    fn default() -> MemoryFileSystem {
        MemoryFileSystem::new()
    }
}

impl fmt::Debug for MemoryFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryFileSystem").field("used", &self.used()).field("limit", &self.space.limit).finish()
    }
}

impl MemoryFileSystem {
    /// An empty file system, bounded by the memory of the process alone.
    pub fn new() -> MemoryFileSystem {
        MemoryFileSystem::limited_to(u64::MAX)
    }

    /// An empty file system whose files take up to `bytes` bytes together. What exceeds them fails
    /// like a write to a full disk, from which a store recovers when space is freed.
    pub fn limited_to(bytes: u64) -> MemoryFileSystem {
        let names = Names { dirs: BTreeSet::new(), files: BTreeMap::new() };
        let space = Space { used: AtomicU64::new(0), limit: bytes };
        MemoryFileSystem { names: Arc::new(Mutex::new(names)), space: Arc::new(space) }
    }

    /// Bytes of all files.
    pub fn used(&self) -> u64 {
        self.space.used.load(Ordering::Relaxed)
    }
}

impl Space {
    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let add = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.map(drop).map_err(|_| ErrorKind::StorageFull.into())
    }
}

impl Names {
    fn is_dir(&self, path: &Path) -> bool {
        // A root or the current directory is always there.
        path.parent().is_none() || path.as_os_str() == "." || self.dirs.contains(path)
    }

    fn check_dir(&self, path: &Path) -> io::Result<()> {
        match self.is_dir(path) {
            true => Ok(()),
            false if self.files.contains_key(path) => Err(ErrorKind::NotADirectory.into()),
            false => Err(ErrorKind::NotFound.into()),
        }
    }

    fn file(&self, path: &Path) -> io::Result<&Arc<MemoryFile>> {
        match self.files.get(path) {
            Some(file) => Ok(file),
            None if self.is_dir(path) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    /// Fails unless a file may be created at `path`.
    fn check_place(&self, path: &Path) -> io::Result<()> {
        if self.is_dir(path) {
            return Err(ErrorKind::IsADirectory.into());
        }
        self.check_dir(path.parent().unwrap_or(Path::new("")))
    }

    /// Fails if the name is taken, or unless a file may be created there.
    fn check_free(&self, path: &Path) -> io::Result<()> {
        if self.files.contains_key(path) || self.is_dir(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.check_place(path)
    }

    fn create(&mut self, path: &Path, space: &Arc<Space>) -> io::Result<Arc<MemoryFile>> {
        self.check_free(path)?;
        let (content, is_locked) = Default::default();
        let file = Arc::new(MemoryFile { content, is_locked, space: Arc::clone(space) });
        self.files.insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }
}

impl FileSystem for MemoryFileSystem {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        Ok(Box::new(MemoryWritable(self.names.lock().create(path, &self.space)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        Ok(Arc::new(MemoryReadable(Arc::clone(self.names.lock().file(path)?))))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let file = Arc::clone(names.file(from)?);
        names.check_place(to)?;
        names.files.remove(from);
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let file = Arc::clone(names.file(from)?);
        names.check_free(to)?;
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.names.lock().file(path).map(drop)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        names.file(path)?;
        names.files.remove(path);
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = self.names.lock();
        names.check_dir(dir)?;
        // Paths compare by components: what is in a directory follows it directly.
        let within = names.files.range::<Path, _>((Bound::Excluded(dir), Bound::Unbounded));
        let within = within.map(|(path, _)| path).take_while(|path| path.starts_with(dir));
        let direct = within.filter(|path| path.parent() == Some(dir)).filter_map(|path| path.file_name()?.to_str());
        Ok(direct.map(str::to_owned).collect())
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        let mut names = self.names.lock();
        if names.is_dir(dir) {
            return Ok(false);
        }
        if dir.ancestors().any(|above| names.files.contains_key(above)) {
            return Err(ErrorKind::NotADirectory.into());
        }
        names.dirs.extend(dir.ancestors().map(Path::to_owned));
        Ok(true)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.names.lock().check_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let mut names = self.names.lock();
        let file = match names.file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => names.create(path, &self.space)?,
            found => Arc::clone(found?),
        };
        if file.is_locked.swap(true, Ordering::Relaxed) {
            return Ok(None);
        }
        let lock = MemoryLock { file, path: path.to_owned(), names: Arc::clone(&self.names) };
        drop(names);
        lock.file.clear();
        lock.file.append(format!("{}\n", std::process::id()).as_bytes())?;
        Ok(Some(Box::new(lock)))
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        Ok(self.names.lock().files.get(path).is_some_and(|file| file.is_locked.load(Ordering::Relaxed)))
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.names.lock().check_dir(dir)?;
        Ok(self.space.free())
    }
}

impl MemoryFile {
    /// Makes room for `bytes` more; a system without the memory is a full disk.
    fn grow(content: &mut Arc<Vec<u8>>, bytes: usize) -> io::Result<&mut Vec<u8>> {
        let content = Arc::make_mut(content);
        content.try_reserve(bytes).map_err(|_| io::Error::from(ErrorKind::StorageFull))?;
        Ok(content)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut content = self.content.write();
        let content = MemoryFile::grow(&mut content, bytes.len())?;
        self.space.take(bytes.len() as u64)?;
        content.extend_from_slice(bytes);
        Ok(())
    }

    fn clear(&self) {
        let content = std::mem::take(&mut *self.content.write());
        self.space.used.fetch_sub(content.len() as u64, Ordering::Relaxed);
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.clear();
    }
}

struct MemoryWritable(Arc<MemoryFile>);

impl WritableFile for MemoryWritable {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let mut content = self.0.content.write();
        let more = len.saturating_sub(content.len() as u64);
        if more > self.0.space.free() {
            return Err(ErrorKind::StorageFull.into());
        }
        let more = usize::try_from(more).map_err(|_| io::Error::from(ErrorKind::StorageFull))?;
        MemoryFile::grow(&mut content, more).map(drop)
    }
}

impl Drop for MemoryWritable {
    /// Nothing is appended any more: gives back what was reserved.
    fn drop(&mut self) {
        if let Some(content) = Arc::get_mut(&mut self.0.content.write()) {
            content.shrink_to_fit();
        }
    }
}

struct MemoryReadable(Arc<MemoryFile>);

impl fmt::Debug for MemoryReadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryReadable").finish_non_exhaustive()
    }
}

impl ReadableFile for MemoryReadable {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.0.content.read();
        let rest = usize::try_from(offset).ok().and_then(|offset| content.get(offset..)).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.content.read().len() as u64)
    }

    unsafe fn map(&self) -> Option<Arc<dyn Mapping>> {
        Some(Arc::new(MemoryMapping(Arc::clone(&self.0.content.read()))))
    }
}

/// The content of a file when it was mapped.
#[derive(Debug)]
struct MemoryMapping(Arc<Vec<u8>>);

impl Mapping for MemoryMapping {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

struct MemoryLock {
    file: Arc<MemoryFile>,
    path: PathBuf,
    names: Arc<Mutex<Names>>,
}

impl fmt::Debug for MemoryLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLock").field("path", &self.path).finish_non_exhaustive()
    }
}

impl FileLock for MemoryLock {
    fn is_in_force(&self) -> bool {
        self.names.lock().files.get(&self.path).is_some_and(|file| Arc::ptr_eq(file, &self.file))
    }
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.file.is_locked.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind<T>(result: io::Result<T>) -> ErrorKind {
        result.err().expect("an error").kind()
    }

    #[test]
    fn names_follow_the_rules_of_a_file_system() {
        let fs = MemoryFileSystem::new();
        let path = Path::new;
        assert_eq!(kind(fs.create(path("/a/b/file"))), ErrorKind::NotFound);
        assert!(fs.create_dir(path("/a/b")).unwrap() && !fs.create_dir(path("/a")).unwrap());
        fs.create(path("/a/b/file")).unwrap().append(b"old").unwrap();
        fs.create(path("/a/b/other")).unwrap().append(b"new").unwrap();
        fs.create(path("/a/bfile")).unwrap();
        assert_eq!(kind(fs.create(path("/a/b/file"))), ErrorKind::AlreadyExists);
        assert_eq!(kind(fs.create_dir(path("/a/b/file/c"))), ErrorKind::NotADirectory);
        assert_eq!(kind(fs.list(path("/a/b/file"))), ErrorKind::NotADirectory);
        assert_eq!(kind(fs.open(path("/a/b"))), ErrorKind::IsADirectory);
        assert_eq!(kind(fs.rename(path("/a/b/file"), path("/c/file"))), ErrorKind::NotFound);
        assert_eq!(kind(fs.remove(path("/a/none"))), ErrorKind::NotFound);
        assert_eq!(kind(fs.sync_dir(path("/c"))), ErrorKind::NotFound);
        assert_eq!(fs.list(path("/a/b/")).unwrap(), ["file", "other"]);
        assert_eq!(fs.list(path("/a")).unwrap(), ["bfile"]);
        let old = fs.open(path("/a/b/file")).unwrap();
        fs.rename(path("/a/b/other"), path("/a/b/file")).unwrap();
        let mut bytes = [0; 9];
        assert_eq!((old.read_at(&mut bytes, 1).unwrap(), &bytes[..2]), (2, &b"ld"[..]));
        let new = fs.open(path("/a/b/file")).unwrap();
        assert_eq!((new.read_at(&mut bytes, 0).unwrap(), &bytes[..3]), (3, &b"new"[..]));
        assert_eq!((new.read_at(&mut bytes, 4).unwrap(), new.len().unwrap()), (0, 3));
        // A second name keeps the content.
        assert_eq!(kind(fs.hard_link(path("/a/b/file"), path("/a/b"))), ErrorKind::AlreadyExists);
        assert_eq!(kind(fs.hard_link(path("/a/b/none"), path("/a/c"))), ErrorKind::NotFound);
        fs.hard_link(path("/a/b/file"), path("/a/c")).unwrap();
        fs.remove(path("/a/b/file")).unwrap();
        assert_eq!(fs.open(path("/a/c")).unwrap().len().unwrap(), 3);
        // A relative path without a directory is one in the current directory.
        fs.create(path("file")).unwrap();
        assert_eq!(fs.list(path("")).unwrap(), ["file"]);
    }

    #[test]
    fn removed_files_are_freed_when_they_are_closed() {
        let fs = MemoryFileSystem::limited_to(100);
        let path = Path::new("file");
        let file = fs.create(path).unwrap();
        file.append(&[1; 60]).unwrap();
        assert_eq!((fs.used(), fs.free_space(Path::new("")).unwrap()), (60, 40));
        assert_eq!(kind(file.append(&[2; 41])), ErrorKind::StorageFull);
        assert_eq!(kind(file.reserve(101)), ErrorKind::StorageFull);
        file.reserve(100).unwrap();
        let reader = fs.open(path).unwrap();
        fs.remove(path).unwrap();
        drop(file);
        assert_eq!((fs.used(), reader.len().unwrap()), (60, 60));
        drop(reader);
        assert_eq!(fs.used(), 0);
    }

    #[test]
    fn a_lock_belongs_to_the_file_and_not_to_its_name() {
        let fs = MemoryFileSystem::new();
        let path = Path::new("LOCK");
        assert!(!fs.is_locked(path).unwrap());
        let lock = fs.lock(path).unwrap().expect("the lock is free");
        assert!(fs.lock(path).unwrap().is_none() && fs.is_locked(path).unwrap() && lock.is_in_force());
        fs.remove(path).unwrap();
        assert!(!lock.is_in_force());
        let other = fs.lock(path).unwrap().expect("another file");
        drop(lock);
        assert!(fs.is_locked(path).unwrap());
        drop(other);
        assert!(fs.lock(path).unwrap().is_some());
    }

    #[test]
    #[allow(unsafe_code, reason = "mapping is unsafe where files are shared")]
    fn a_mapping_keeps_what_it_shows() {
        let fs = MemoryFileSystem::new();
        let file = fs.create(Path::new("file")).unwrap();
        file.append(b"one").unwrap();
        let reader = fs.open(Path::new("file")).unwrap();
        // SAFETY: this implementation copies on change.
        let mapping = unsafe { reader.map() }.expect("files in memory can be mapped");
        file.append(b"two").unwrap();
        assert_eq!((mapping.bytes(), reader.len().unwrap()), (&b"one"[..], 6));
    }
}
