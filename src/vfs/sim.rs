//! [`SimFileSystem`]: a file system in memory that loses power, fails on cue, and can be damaged.
//!
//! It promises no more than the worst of real ones: names last by a sync of their directory and contents by a sync of their file,
//! each without the other. One seed gives one outcome. It is no model of time, permissions or links.
//!
//! `state` is the disk, `crash` what a power cut makes of it, `fault` decides which calls fail.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{FileLock, FileSystem, Mapping, ReadableFile, Window, WritableFile};

mod crash;
mod fault;
mod state;
#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultMode};

use fault::{Call, Failure, Faults};
use state::{Inode, State};

/// A file system in memory for tests of what a power cut, a kill, a failing disk or damaged bytes do to a store.
///
/// Clones are the same file system. [`kill`](SimFileSystem::kill) and [`crash`](SimFileSystem::crash) make independent ones, which
/// have the same capacity, no locks, no faults and counters at zero; handles stay with the file system that they were opened in.
/// Paths start at the root, also relative ones.
///
/// ```
/// use std::path::Path;
/// use tamis::vfs::{FileSystem, SimFileSystem};
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
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    state: State,
    faults: Faults,
}

impl SimFileSystem {
    /// A file system with an empty root directory and no limit on its size.
    pub fn new() -> SimFileSystem {
        SimFileSystem::with(State::new())
    }

    fn with(state: State) -> SimFileSystem {
        let faults = Faults::default();
        let inner = Arc::new(Mutex::new(Inner { state, faults }));
        SimFileSystem { inner }
    }

    /// What a power cut at this moment leaves.
    ///
    /// Synced contents and synced names are there exactly. Of what was not synced, `seed` decides:
    /// - of the creations, renamings and removals in a directory none, all, the first few or any of them have happened. Each is
    ///   atomic; on the same name they happen in order, on different names in any;
    /// - of what was appended to a file nothing, all, the first few appends or the first few
    ///   sectors of 512 bytes are there, or the file has the length but zeros in place of a run of
    ///   sectors, or of some while later ones are there. Or each sector, or page of 4096 bytes, is
    ///   as it was at a moment of its own since the last sync, which may be in the middle of an
    ///   append. Prepared zeros behind are there if they were synced, and may be if they were not.
    ///
    /// Bytes whose sync has failed are zero, or missing at the end of the file.
    pub fn crash(&self, seed: u64) -> SimFileSystem {
        SimFileSystem::with(self.inner.lock().state.after_power_cut(seed))
    }

    /// What the next process finds after a kill of this one: everything. What was not synced still is not, so that a crash of
    /// the result may lose it.
    pub fn kill(&self) -> SimFileSystem {
        SimFileSystem::with(self.inner.lock().state.after_kill())
    }

    /// Cuts the power during the `k`-th mutating call from now (the next one is 1), or not after all.
    ///
    /// That call has no effect, except that the bytes of an append count as appended and not synced. It and all calls after it fail
    /// with `EIO`, but for an append to a window, which cannot fail.
    pub fn crash_at(&self, k: Option<u64>) {
        self.inner.lock().faults.cut_power_at(k);
    }

    /// The file system as it was when [`crash_at`](SimFileSystem::crash_at) cut the power, to be [crashed](SimFileSystem::crash)
    /// with as many seeds as needed; `None` while the power is on.
    pub fn crash_point(&self) -> Option<SimFileSystem> {
        let inner = self.inner.lock();
        inner.faults.power_is_off().then(|| SimFileSystem::with(inner.state.after_kill()))
    }

    /// Arms a fault in place of the one before, or none. A failed sync loses what it should have synced: it stays readable, but no
    /// later sync makes it durable.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.inner.lock().faults.arm(fault);
    }

    /// Whether the fault armed last has struck.
    pub fn fault_hit(&self) -> bool {
        self.inner.lock().faults.hit()
    }

    /// How many mutating calls there were: `create`, `rename`, `remove`, `create_dir`, `sync_dir`, `lock`, and `append`, `prepare` and
    /// `sync` of files, and appends to their windows, successful or not.
    pub fn mutations(&self) -> u64 {
        self.inner.lock().faults.mutations
    }

    /// How many reading calls there were: `open`, `list`, `is_locked`, `free_space`, and `read_at`
    /// and `len` of files, successful or not.
    pub fn reads(&self) -> u64 {
        self.inner.lock().faults.reads
    }

    /// Limits the sum of the lengths of all files. An append beyond it writes what fits and fails with `ENOSPC`. A removed file
    /// counts until its last handle is dropped.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.inner.lock().state.capacity = bytes;
    }

    /// All files, as absolute paths in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.inner.lock().state.paths()
    }

    /// The content of a file. This and the following functions are for the test, not for the program under test: they are not
    /// counted, never struck by a fault, and work without power.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let inner = self.inner.lock();
        let (inode, ..) = inner.state.find_file(path.as_ref())?;
        Ok(inner.state.file(inode)?.data.to_vec())
    }

    /// The length of a file.
    pub fn file_len(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        let inner = self.inner.lock();
        let (inode, ..) = inner.state.find_file(path.as_ref())?;
        Ok(inner.state.file(inode)?.len())
    }

    /// Puts a file there, or replaces its content. Content, name, and the directories above, which are created if need be, are
    /// durable at once.
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.state.write(path.as_ref(), bytes.into())
    }

    /// Flips the bits of `xor` in the byte at `offset`, as on the disk so in the page cache.
    pub fn corrupt(&self, path: impl AsRef<Path>, offset: u64, xor: u8) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let (inode, ..) = inner.state.find_file(path.as_ref())?;
        let data = Arc::make_mut(&mut inner.state.file_mut(inode)?.data);
        let byte = usize::try_from(offset).ok().and_then(|i| data.get_mut(i));
        *byte.ok_or(ErrorKind::InvalidInput)? ^= xor;
        Ok(())
    }

    /// Cuts a file to `len` bytes if it is longer, as on the disk so in the page cache.
    pub fn truncate(&self, path: impl AsRef<Path>, len: u64) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let (inode, ..) = inner.state.find_file(path.as_ref())?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        inner.state.file_mut(inode)?.truncate(len);
        Ok(())
    }

    /// Carries out a mutating call, unless it has to fail.
    fn mutate<T>(&self, call: Call, effect: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.inner.lock();
        inner.faults.mutation(call)?;
        effect(&mut inner.state)
    }

    /// Carries out a reading call, unless it has to fail.
    fn observe<T>(&self, effect: impl FnOnce(&State) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.inner.lock();
        inner.faults.read()?;
        effect(&inner.state)
    }

    /// `inode` is what a call under the same lock has just found or created, so that no one can have forgotten it.
    fn handle(&self, state: &mut State, inode: Inode) -> io::Result<Handle> {
        state.file_mut(inode)?.handles += 1;
        let fs = self.clone();
        Ok(Handle { fs, inode })
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
        self.mutate(Call::Create, |state| {
            let inode = state.create(path)?;
            Ok(Box::new(SimWritable(self.handle(state, inode)?)) as _)
        })
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        let mut inner = self.inner.lock();
        inner.faults.read()?;
        let (inode, ..) = inner.state.find_file(path)?;
        let handle = self.handle(&mut inner.state, inode)?;
        Ok(Arc::new(SimReadable(handle)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.mutate(Call::Rename, |state| state.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.mutate(Call::Remove, |state| state.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.observe(|state| state.list(dir))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.mutate(Call::CreateDir, |state| state.create_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.mutate(Call::SyncDir, |state| state.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.mutate(Call::Lock, |state| {
            let inode = match state.find_file(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => state.create(path)?,
                found => found?.0,
            };
            if !state.locked.insert(inode) {
                return Ok(None);
            }
            // A crash may take the name, but never tears the content: nobody syncs a lock file, nor relies on what it says.
            let holder = format!("{}\n", std::process::id());
            state.file_mut(inode)?.set_data(holder.into_bytes());
            Ok(Some(Box::new(SimLock { handle: self.handle(state, inode)?, path: path.to_owned() }) as _))
        })
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        self.observe(|state| match state.find_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            found => Ok(state.locked.contains(&found?.0)),
        })
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.observe(|state| {
            state.find_dir(dir)?;
            Ok(state.free_space())
        })
    }
}

/// An open file, which may have lost its name.
#[derive(Debug)]
struct Handle {
    fs: SimFileSystem,
    inode: Inode,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(file) = self.fs.inner.lock().state.files.get_mut(&self.inode) {
            file.handles -= 1;
        }
    }
}

struct SimWritable(Handle);

impl WritableFile for SimWritable {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let Handle { fs, inode } = &self.0;
        let Inner { state, faults } = &mut *fs.inner.lock();
        match faults.mutation(Call::Append) {
            Ok(()) => state.append(*inode, bytes, 0),
            Err(failure) => {
                let written = bytes.get(..failure.appended(bytes.len()));
                state.append(*inode, written.unwrap_or_default(), 0)?;
                Err(failure.into())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        let Handle { fs, inode } = &self.0;
        let Inner { state, faults } = &mut *fs.inner.lock();
        match faults.mutation(Call::Sync) {
            Ok(()) => state.file_mut(*inode)?.sync(),
            Err(failure) => {
                if let Failure::Fault(..) = failure {
                    state.file_mut(*inode)?.fail_sync();
                }
                return Err(failure.into());
            }
        }
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let Inner { state, faults } = &mut *self.0.fs.inner.lock();
        faults.check_power()?;
        state.reserve(self.0.inode, len)
    }

    fn prepare(&self, len: u64) -> io::Result<bool> {
        let Handle { fs, inode } = &self.0;
        let Inner { state, faults } = &mut *fs.inner.lock();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        match faults.mutation(Call::Prepare) {
            Ok(()) => state.prepare(*inode, len).map(|()| true),
            Err(failure) => {
                let old_len = state.file(*inode)?.data.len();
                let added = failure.appended(len.saturating_sub(old_len));
                state.prepare(*inode, old_len + added)?;
                Err(failure.into())
            }
        }
    }

    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        let Handle { fs, inode } = &self.0;
        let Inner { state, faults } = &mut *fs.inner.lock();
        faults.check_power()?;
        let file = state.file(*inode)?;
        if file.end == file.data.len() {
            return Ok(None);
        }
        let limit = file.data.len();
        // Some windows get old sooner than others, always the same.
        let lifetime = 1 + file.end % 64;
        Ok(Some(Box::new(SimWindow { handle: fs.handle(state, *inode)?, limit, lifetime })))
    }
}

/// A store to memory is not a call, and yet counted and ordered like one: the power may go during any.
struct SimWindow {
    handle: Handle,
    /// Where the window ends.
    limit: usize,
    /// Stores until it is too old.
    lifetime: usize,
}

impl Window for SimWindow {
    fn append(&mut self, head: &[u8], body: &[u8]) -> bool {
        let Handle { fs, inode } = &self.handle;
        let Inner { state, faults } = &mut *fs.inner.lock();
        let fits = |file: &state::File| file.end + head.len() + body.len() <= self.limit;
        if self.lifetime == 0 || !state.file(*inode).is_ok_and(fits) {
            return false;
        }
        self.lifetime -= 1;
        match faults.mutation(Call::Store) {
            // The bytes of a store that the power interrupts are in flight, as those of an append.
            Ok(()) | Err(Failure::PowerCut) => state.append(*inode, &[head, body].concat(), head.len()).is_ok(),
            Err(_) => false,
        }
    }
}

#[derive(Debug)]
struct SimReadable(Handle);

impl ReadableFile for SimReadable {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let Handle { fs, inode } = &self.0;
        fs.observe(|state| {
            let data = &state.file(*inode)?.data;
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let rest = data.get(start..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        })
    }

    /// Some things are at hand and others are not, always the same.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        if (offset / 64).is_multiple_of(3) {
            buf.fill(0xee);
            return false;
        }
        self.read_at(buf, offset).is_ok_and(|read| read == buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        let Handle { fs, inode } = &self.0;
        fs.observe(|state| Ok(state.file(*inode)?.len()))
    }

    unsafe fn map(&self) -> Option<Arc<dyn Mapping>> {
        let Handle { fs, inode } = &self.0;
        let inner = fs.inner.lock();
        inner.faults.check_power().ok()?;
        Some(Arc::new(SimMapping(Arc::clone(&inner.state.file(*inode).ok()?.data))))
    }
}

/// The content of a file when it was mapped. What becomes of the file later is not seen.
#[derive(Debug)]
struct SimMapping(Arc<Vec<u8>>);

impl Mapping for SimMapping {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Debug)]
struct SimLock {
    handle: Handle,
    path: PathBuf,
}

impl FileLock for SimLock {
    fn is_in_force(&self) -> bool {
        let Handle { fs, inode } = &self.handle;
        fs.inner.lock().state.find_file(&self.path).is_ok_and(|(found, ..)| found == *inode)
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let Handle { fs, inode } = &self.handle;
        fs.inner.lock().state.locked.remove(inode);
    }
}
