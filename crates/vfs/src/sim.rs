//! [`SimFileSystem`]: a file system in memory that loses power, fails on cue, and can be damaged.
//!
//! It promises no more than the worst real file system. A name is durable after a sync of its
//! directory, contents after a sync of their file; neither implies the other. One seed gives one
//! outcome. It does not model time, permissions or symbolic links.
//!
//! `disk` holds directories and files; `crash` is what a power cut leaves of it; `fault` decides
//! which calls fail.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FileLock, FileSystem, Mapping, ReadableFile, Window, WritableFile};
use tamis_base::sync::Mutex;

mod crash;
mod disk;
mod fault;
#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultMode};

use disk::{Disk, Inode};
use fault::{Call, CallFailure, Faults};

/// A file system in memory, for tests of what a power cut, a kill, a failing disk or damaged bytes
/// do to a store.
///
/// Clones share one file system. [`kill`](SimFileSystem::kill) and [`crash`](SimFileSystem::crash)
/// make independent ones with the same capacity, no locks, no faults and counters at zero. Handles
/// stay with the file system in which they were opened. Relative paths, too, start at the root.
///
/// ```
/// use std::path::Path;
/// use tamis_vfs::{FileSystem, SimFileSystem};
///
/// # fn main() -> std::io::Result<()> {
/// let fs = SimFileSystem::new();
/// let file = fs.create(Path::new("/log"))?;
/// file.append(b"synced, ")?;
/// file.sync()?;
/// fs.sync_dir(Path::new("/"))?;
/// file.append(b"not synced")?;
/// for seed in 0..100 {
///     assert!(fs.crash(seed).read("/log")?.starts_with(b"synced, "));
/// }
/// assert_eq!(fs.kill().read("/log")?, b"synced, not synced");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SimFileSystem {
    inner: Arc<Mutex<SimState>>,
}

struct SimState {
    disk: Disk,
    faults: Faults,
}

impl SimState {
    fn sync(&mut self, inode: Inode) -> io::Result<()> {
        match self.faults.mutation(Call::Sync) {
            Ok(()) => self.disk.file_mut(inode)?.sync(),
            Err(failure) => {
                if let CallFailure::Fault(..) = failure {
                    self.disk.file_mut(inode)?.fail_sync();
                }
                return Err(failure.into());
            }
        }
        Ok(())
    }
}

impl SimFileSystem {
    /// A file system with an empty root directory and no limit on its size.
    pub fn new() -> SimFileSystem {
        SimFileSystem::with(Disk::new())
    }

    fn with(disk: Disk) -> SimFileSystem {
        let faults = Faults::default();
        let inner = Arc::new(Mutex::new(SimState { disk, faults }));
        SimFileSystem { inner }
    }

    /// The state that a power cut at this moment leaves.
    ///
    /// Synced contents and synced names survive exactly. For the rest, `seed` decides:
    /// - Of the creations, renamings and removals in a directory, none, all, the first few or any
    ///   subset have happened. Each is atomic. On one name they happen in order, on different names
    ///   in any.
    /// - Of what was appended to a file, nothing, all, the first few appends or the first few
    ///   sectors of 512 bytes survive. Or the file has its length, but with zeros in place of a run
    ///   of sectors, or of some sectors before later ones that survived. Or each sector, or page of
    ///   4096 bytes, is as it was at a moment of its own since the last sync, possibly within an
    ///   append. Prepared zeros after the content survive if they were synced, and may if they were
    ///   not.
    ///
    /// Bytes whose sync has failed are zero, or missing at the end of the file.
    pub fn crash(&self, seed: u64) -> SimFileSystem {
        SimFileSystem::with(self.inner.lock().disk.after_power_cut(seed))
    }

    /// The state that the next process finds after a kill of this one: everything. What was not
    /// synced still is not: a crash of the result may lose it.
    pub fn kill(&self) -> SimFileSystem {
        SimFileSystem::with(self.inner.lock().disk.after_kill())
    }

    /// Cuts the power during the `k`-th mutating call from now (1 is the next), or cancels that.
    ///
    /// That call has no effect, except that the bytes of an append count as appended but not
    /// synced. It and all later calls fail with `EIO`, except an append to a window, which cannot
    /// fail.
    pub fn crash_at(&self, k: Option<u64>) {
        self.inner.lock().faults.cut_power_at(k);
    }

    /// The file system as it was when [`crash_at`](SimFileSystem::crash_at) cut the power, to be
    /// [crashed](SimFileSystem::crash) with any number of seeds; `None` while the power is on.
    pub fn crash_point(&self) -> Option<SimFileSystem> {
        let inner = self.inner.lock();
        inner.faults.power_is_off().then(|| SimFileSystem::with(inner.disk.after_kill()))
    }

    /// Arms a fault in place of the previous one, or disarms it. A failed sync loses what it should
    /// have synced: it stays readable, but no later sync makes it durable.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.inner.lock().faults.arm(fault);
    }

    /// Whether the last armed fault has struck.
    pub fn fault_hit(&self) -> bool {
        self.inner.lock().faults.hit()
    }

    /// Number of mutating calls, successful or not: `create`, `rename`, `hard_link`, `remove`,
    /// `create_dir`, `sync_dir`, `lock`; `append`, `prepare` and `sync` of files; and appends to
    /// windows.
    pub fn mutations(&self) -> u64 {
        self.inner.lock().faults.mutations
    }

    /// Number of reading calls, successful or not: `open`, `list`, `is_locked`, `free_space`;
    /// `read_at` and `len` of files.
    pub fn reads(&self) -> u64 {
        self.inner.lock().faults.reads
    }

    /// Limits the total length of all files. An append beyond it writes what fits and fails with
    /// `ENOSPC`. A removed file counts until its last handle is dropped.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.inner.lock().disk.capacity = bytes;
    }

    /// All files, as sorted absolute paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.inner.lock().disk.paths()
    }

    /// The content of a file. This and the following functions are for the test, not for the
    /// program under test: they are not counted, never fail by a fault, and work without power.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let inner = self.inner.lock();
        let (inode, ..) = inner.disk.find_file(path.as_ref())?;
        Ok(inner.disk.file(inode)?.data.to_vec())
    }

    /// The length of a file.
    pub fn file_len(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        let inner = self.inner.lock();
        let (inode, ..) = inner.disk.find_file(path.as_ref())?;
        Ok(inner.disk.file(inode)?.len())
    }

    /// Creates a file, or replaces its content. Content, name, and its parent directories, created
    /// if missing, are durable at once.
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.disk.write(path.as_ref(), bytes.into())
    }

    /// Flips the bits of `xor` in the byte at `offset`, on the disk and in the page cache.
    pub fn corrupt(&self, path: impl AsRef<Path>, offset: u64, xor: u8) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let (inode, ..) = inner.disk.find_file(path.as_ref())?;
        let data = Arc::make_mut(&mut inner.disk.file_mut(inode)?.data);
        let byte = usize::try_from(offset).ok().and_then(|i| data.get_mut(i));
        *byte.ok_or(ErrorKind::InvalidInput)? ^= xor;
        Ok(())
    }

    /// Cuts a longer file to `len` bytes, on the disk and in the page cache.
    pub fn truncate(&self, path: impl AsRef<Path>, len: u64) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let (inode, ..) = inner.disk.find_file(path.as_ref())?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        inner.disk.file_mut(inode)?.truncate(len);
        Ok(())
    }

    /// Runs a mutating call, unless it has to fail.
    fn mutate<T>(&self, call: Call, effect: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.inner.lock();
        inner.faults.mutation(call)?;
        effect(&mut inner.disk)
    }

    /// Runs a reading call, unless it has to fail.
    fn observe<T>(&self, effect: impl FnOnce(&Disk) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.inner.lock();
        inner.faults.read()?;
        effect(&inner.disk)
    }

    /// `inode` was found or created under the same lock, so it still exists.
    fn handle(&self, disk: &mut Disk, inode: Inode) -> io::Result<SimHandle> {
        disk.file_mut(inode)?.handles += 1;
        let fs = self.clone();
        Ok(SimHandle { fs, inode })
    }
}

impl Default for SimFileSystem {
    fn default() -> SimFileSystem {
        SimFileSystem::new()
    }
}

impl fmt::Debug for SimFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFileSystem").finish_non_exhaustive()
    }
}

impl FileSystem for SimFileSystem {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.mutate(Call::Create, |disk| {
            let inode = disk.create(path)?;
            Ok(Box::new(SimWritable(self.handle(disk, inode)?)) as _)
        })
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        let mut inner = self.inner.lock();
        inner.faults.read()?;
        let (inode, ..) = inner.disk.find_file(path)?;
        let handle = self.handle(&mut inner.disk, inode)?;
        Ok(Arc::new(SimReadable(handle)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.mutate(Call::Rename, |disk| disk.rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.mutate(Call::Link, |disk| disk.link(from, to))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let inner = &mut *self.inner.lock();
        let (inode, ..) = inner.disk.find_file(path)?;
        inner.sync(inode)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.mutate(Call::Remove, |disk| disk.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.observe(|disk| disk.list(dir))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.mutate(Call::CreateDir, |disk| disk.create_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.mutate(Call::SyncDir, |disk| disk.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.mutate(Call::Lock, |disk| {
            let inode = match disk.find_file(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => disk.create(path)?,
                found => found?.0,
            };
            if !disk.locked.insert(inode) {
                return Ok(None);
            }
            // A crash may take the name, but never tears the content: no one syncs a lock file or
            // relies on its content.
            let holder = format!("{}\n", std::process::id());
            disk.file_mut(inode)?.set_data(holder.into_bytes());
            Ok(Some(Box::new(SimLock { handle: self.handle(disk, inode)?, path: path.to_owned() }) as _))
        })
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        self.observe(|disk| match disk.find_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            found => Ok(disk.locked.contains(&found?.0)),
        })
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.observe(|disk| {
            disk.find_dir(dir)?;
            Ok(disk.free_space())
        })
    }
}

/// An open file, which may have lost its name.
#[derive(Debug)]
struct SimHandle {
    fs: SimFileSystem,
    inode: Inode,
}

impl Drop for SimHandle {
    fn drop(&mut self) {
        if let Some(file) = self.fs.inner.lock().disk.files.get_mut(&self.inode) {
            file.handles -= 1;
        }
    }
}

struct SimWritable(SimHandle);

impl WritableFile for SimWritable {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let SimHandle { fs, inode } = &self.0;
        let SimState { disk, faults } = &mut *fs.inner.lock();
        match faults.mutation(Call::Append) {
            Ok(()) => disk.append(*inode, bytes, 0),
            Err(failure) => {
                let written = bytes.get(..failure.appended(bytes.len()));
                disk.append(*inode, written.unwrap_or_default(), 0)?;
                Err(failure.into())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.fs.inner.lock().sync(self.0.inode)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let SimState { disk, faults } = &mut *self.0.fs.inner.lock();
        faults.check_power()?;
        disk.reserve(self.0.inode, len)
    }

    fn prepare(&self, len: u64) -> io::Result<bool> {
        let SimHandle { fs, inode } = &self.0;
        let SimState { disk, faults } = &mut *fs.inner.lock();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        match faults.mutation(Call::Prepare) {
            Ok(()) => disk.prepare(*inode, len).map(|()| true),
            Err(failure) => {
                let old_len = disk.file(*inode)?.data.len();
                let added = failure.appended(len.saturating_sub(old_len));
                disk.prepare(*inode, old_len + added)?;
                Err(failure.into())
            }
        }
    }

    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        let SimHandle { fs, inode } = &self.0;
        let SimState { disk, faults } = &mut *fs.inner.lock();
        faults.check_power()?;
        let file = disk.file(*inode)?;
        if file.end == file.data.len() {
            return Ok(None);
        }
        let limit = file.data.len();
        // Windows get too old after a varying but deterministic number of stores.
        let lifetime = 1 + file.end % 64;
        Ok(Some(Box::new(SimWindow { handle: fs.handle(disk, *inode)?, limit, lifetime })))
    }
}

/// A store to memory is not a call, but is counted and ordered like one: the power may be cut
/// during any.
struct SimWindow {
    handle: SimHandle,
    /// End of the window.
    limit: usize,
    /// Stores left until the window is too old.
    lifetime: usize,
}

impl Window for SimWindow {
    fn append(&mut self, head: &[u8], body: &[u8]) -> bool {
        let SimHandle { fs, inode } = &self.handle;
        let SimState { disk, faults } = &mut *fs.inner.lock();
        let fits = |file: &disk::SimFile| file.end + head.len() + body.len() <= self.limit;
        if self.lifetime == 0 || !disk.file(*inode).is_ok_and(fits) {
            return false;
        }
        self.lifetime -= 1;
        match faults.mutation(Call::Store) {
            // The bytes of a store that the power cut interrupts are in flight, like those of an
            // append.
            Ok(()) | Err(CallFailure::PowerCut) => disk.append(*inode, &[head, body].concat(), head.len()).is_ok(),
            Err(_) => false,
        }
    }
}

#[derive(Debug)]
struct SimReadable(SimHandle);

impl ReadableFile for SimReadable {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let SimHandle { fs, inode } = &self.0;
        fs.observe(|disk| {
            let data = &disk.file(*inode)?.data;
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let rest = data.get(start..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        })
    }

    /// Would wait at some offsets, always the same ones.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        if (offset / 64).is_multiple_of(3) {
            buf.fill(0xee);
            return false;
        }
        self.read_at(buf, offset).is_ok_and(|read| read == buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        let SimHandle { fs, inode } = &self.0;
        fs.observe(|disk| Ok(disk.file(*inode)?.len()))
    }

    unsafe fn map(&self) -> Option<Arc<dyn Mapping>> {
        let SimHandle { fs, inode } = &self.0;
        let inner = fs.inner.lock();
        inner.faults.check_power().ok()?;
        Some(Arc::new(SimMapping(Arc::clone(&inner.disk.file(*inode).ok()?.data))))
    }
}

/// The content of a file when it was mapped. Later changes to the file are not visible.
#[derive(Debug)]
struct SimMapping(Arc<Vec<u8>>);

impl Mapping for SimMapping {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Debug)]
struct SimLock {
    handle: SimHandle,
    path: PathBuf,
}

impl FileLock for SimLock {
    fn is_in_force(&self) -> bool {
        let SimHandle { fs, inode } = &self.handle;
        fs.inner.lock().disk.find_file(&self.path).is_ok_and(|(found, ..)| found == *inode)
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let SimHandle { fs, inode } = &self.handle;
        fs.inner.lock().disk.locked.remove(inode);
    }
}
