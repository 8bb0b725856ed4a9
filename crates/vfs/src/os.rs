//! The real file system.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "the one module that may name std::fs")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
#[cfg(target_os = "linux")]
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(unix)]
use super::Mapping;
#[cfg(target_os = "linux")]
use super::Window;
use super::{FileLock, FileSystem, HeldDir, ReadableFile, WritableFile};
use tamis_base::sync::thread;

#[cfg(target_os = "linux")]
mod ahead;
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri), not(shuttle)))]
mod copies;
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri), not(shuttle)))]
mod guard;
mod machine;
#[cfg(unix)]
mod mapped;
#[cfg(unix)]
#[path = "os/unix.rs"]
mod platform;
#[cfg(windows)]
#[path = "os/windows.rs"]
mod platform;
#[cfg(not(any(unix, windows)))]
#[path = "os/portable.rs"]
mod platform;
#[cfg(not(windows))]
mod standard;
#[cfg(target_os = "linux")]
mod write_back;

pub use machine::machine_memory;
pub use platform::is_out_of_descriptors;

/// Files of the operating system, with positional reads and writes, and `fdatasync`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsFileSystem;

impl OsFileSystem {
    /// The file system of this process.
    pub fn new() -> OsFileSystem {
        OsFileSystem
    }
}

/// A directory by a name that the system takes.
fn named(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

impl FileSystem for OsFileSystem {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        // Also open for reading; otherwise it could not be mapped.
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Box::new(OsWritable::new(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        Ok(Arc::new(OsReadable::new(platform::open_for_reads(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        platform::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        platform::hard_link(from, to)?;
        // Looked at under its new name: what is called `from` may be replaced at any time.
        if fs::symlink_metadata(to)?.is_file() {
            return Ok(());
        }
        platform::remove(to)?;
        Err(not_regular())
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        platform::open_for_sync(path)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        platform::remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(dir) {
            // Some versions of Windows say this of a file.
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir.is_file() => {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // No file of a store has a name that is not UTF-8.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        if dir.is_dir() {
            return Ok(false);
        }
        fs::create_dir_all(dir)?;
        Ok(true)
    }

    fn is_regular(&self, path: &Path) -> io::Result<bool> {
        Ok(fs::symlink_metadata(path)?.is_file())
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        let mut path = std::path::absolute(path)?;
        // A link to nothing is followed here: its target may be about to be created.
        for _ in 0..MAX_LINKS {
            if let Some(found) = platform::resolved(&path) {
                return Ok(found);
            }
            let Some(dir) = path.parent() else { return Ok(path) };
            path = match (fs::read_link(&path), path.file_name()) {
                (Ok(target), _) => dir.join(target),
                (Err(_), Some(name)) => {
                    return Ok(platform::resolved(dir).unwrap_or_else(|| dir.to_owned()).join(name));
                }
                (Err(_), None) => return Ok(path),
            };
        }
        Err(io::Error::other("there are too many symbolic links"))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        platform::sync_dir(named(dir))
    }

    fn hold_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn HeldDir>>> {
        platform::hold_dir(named(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        // Not truncated when opened: the content belongs to the lock's holder.
        let file = platform::open_lock(path)?;
        let mut attempts = 0;
        while !platform::try_lock(&file)? {
            // If a shared lock is granted, the exclusive one was blocked by `is_locked`, which
            // takes no longer than two system calls.
            if attempts == LOCK_ATTEMPTS || !platform::try_lock_shared(&file)? {
                return Ok(None);
            }
            platform::unlock(&file)?;
            attempts += 1;
            thread::sleep(Duration::from_micros(attempts));
        }
        // From here on, drop unlocks it.
        let mut lock = OsLock { file, path: path.to_owned(), owner: std::process::id() };
        lock.file.set_len(0)?;
        writeln!(lock.file, "{}", lock.owner)?;
        Ok(Some(Box::new(lock)))
    }

    /// Takes a shared lock for a moment; [`lock`](FileSystem::lock) retries until it is gone.
    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        match platform::open_for_reads(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            file => {
                let file = file?;
                let is_free = platform::try_lock_shared(&file)?;
                if is_free {
                    // Closing is not enough: see `OsLock`.
                    platform::unlock(&file)?;
                }
                Ok(!is_free)
            }
        }
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        platform::free_space(dir)
    }
}

/// As many links in a row are followed.
const MAX_LINKS: usize = 40;

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}

/// The open file, if it is a regular one.
fn regular(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => Ok(file),
        (false, true) => Err(io::ErrorKind::IsADirectory.into()),
        (false, false) => Err(not_regular()),
    }
}

/// Half a second in all, in case a process is stopped inside `is_locked`.
const LOCK_ATTEMPTS: u64 = 1000;

struct OsWritable {
    file: File,
    /// Offset of the next append. The appending thread advances it.
    end: Arc<AtomicU64>,
    #[cfg(target_os = "linux")]
    tail: ahead::PreparedTail,
}

impl OsWritable {
    fn new(file: File) -> OsWritable {
        OsWritable {
            file,
            end: Arc::default(),
            #[cfg(target_os = "linux")]
            tail: ahead::PreparedTail::default(),
        }
    }
}

impl WritableFile for OsWritable {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let end = self.end.load(Ordering::Relaxed);
        platform::write_all_at(&self.file, bytes, end)?;
        self.end.store(end + bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn begin_sync(&self) {
        write_back::begin(&self.file, self.end.load(Ordering::Relaxed));
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{FallocateFlags, fallocate};
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, len) {
                // Some file systems cannot reserve.
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {
                    self.tail.note_reserved(len);
                    Ok(())
                }
                Err(error) => {
                    // Otherwise, what was reserved before space ran out would stay, and the disk
                    // full: setting the length frees it.
                    let _ = self.file.metadata().and_then(|metadata| self.file.set_len(metadata.len()));
                    Err(error.into())
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = len;
            Ok(())
        }
    }

    #[cfg(target_os = "linux")]
    fn release(&self) {
        self.tail.release(&self.file, self.end.load(Ordering::Relaxed));
    }

    #[cfg(target_os = "linux")]
    fn prepare(&self, len: u64) -> io::Result<bool> {
        self.tail.prepare(&self.file, self.end.load(Ordering::Relaxed), len)
    }

    #[cfg(target_os = "linux")]
    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        self.tail.window(&self.file, &self.end)
    }
}

#[derive(Debug)]
struct OsReadable {
    file: File,
    /// Whether the system turned out not to support reads that never wait.
    #[cfg(target_os = "linux")]
    nowait_unsupported: AtomicBool,
}

impl OsReadable {
    fn new(file: File) -> OsReadable {
        OsReadable {
            file,
            #[cfg(target_os = "linux")]
            nowait_unsupported: AtomicBool::new(false),
        }
    }
}

impl ReadableFile for OsReadable {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match platform::read_at(&self.file, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    #[cfg(target_os = "linux")]
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        // Larger offsets have a special meaning, or none.
        if i64::try_from(offset).is_err() {
            return false;
        }
        if !self.nowait_unsupported.load(Ordering::Relaxed) {
            match preadv2(&self.file, &mut [io::IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) {
                // A short read says nothing: on Linux 5.9 and 5.10 even 0 does not mean the end of
                // the file.
                Ok(read) => return read == buf.len(),
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => return false,
                // The file system, the kernel or a sandbox does not support the flag.
                Err(_) => self.nowait_unsupported.store(true, Ordering::Relaxed),
            }
        }
        self.read_at(buf, offset).is_ok_and(|read| read == buf.len())
    }

    #[cfg(target_os = "linux")]
    fn will_need(&self, part: Range<u64>) {
        use std::num::NonZero;
        /// By default, Linux reads no more than this for one `fadvise`.
        const STEP: u64 = 128 << 10;
        /// Longer parts are cut to this.
        const MOST: u64 = 64 << 20;
        let end = part.end.min(part.start.saturating_add(MOST));
        let mut start = part.start;
        while let Some(len) = NonZero::new(end.saturating_sub(start).min(STEP)) {
            // Advice that fails is no error.
            let _ = rustix::fs::fadvise(&self.file, start, Some(len), rustix::fs::Advice::WillNeed);
            start += len.get();
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    #[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri), not(shuttle)))]
    fn page_reader(&self) -> Option<Box<dyn crate::PageReader>> {
        Some(Box::new(copies::MappedCopies::new(&self.file)?))
    }

    #[cfg(unix)]
    unsafe fn map(&self) -> Option<Arc<dyn Mapping>> {
        // A smaller address space has no room for a store.
        if cfg!(target_pointer_width = "64") {
            // SAFETY: the caller promises what `new` requires.
            let mapped = unsafe { mapped::MappedFile::new(&self.file) };
            Some(Arc::new(mapped.ok()?))
        } else {
            None
        }
    }
}

/// A lock on the open file description: a second handle in the same process is refused, too. The
/// file stays when the lock ends: removing it would let two processes lock two files of the same
/// name.
///
/// The lock ends by an explicit unlock. Closing the handle is not enough: a program that starts
/// another one has, between `fork` and `exec`, a child with a copy of every descriptor, and the
/// lock lasts until the last copy is closed. Closing on `exec` comes too late for that.
#[derive(Debug)]
struct OsLock {
    file: File,
    path: PathBuf,
    /// The process that took it. A fork that drops its copy of this value must not unlock.
    owner: u32,
}

impl Drop for OsLock {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // If this fails, closing the file has to do.
            let _ = platform::unlock(&self.file);
        }
    }
}

impl FileLock for OsLock {
    fn is_in_force(&self) -> bool {
        self.owner == std::process::id() && platform::is_file_of(&self.file, &self.path)
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn try_read_at_reads_what_is_cached_and_hints_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let file = OsFileSystem.create(&path).unwrap();
        file.append(&content).unwrap();
        let reader = OsFileSystem.open(&path).unwrap();
        let mut bytes = vec![0; 10_000];
        // What was just written is cached; reads beyond the end fail.
        for offset in [0, 5000, 390_000] {
            assert!(reader.try_read_at(&mut bytes, offset as u64));
            assert_eq!(bytes, content[offset..][..10_000]);
        }
        for offset in [390_001, 400_000, 500_000, u64::MAX] {
            assert!(!reader.try_read_at(&mut bytes, offset));
        }
        // Where the file is on a device, its cached pages are dropped.
        file.sync().unwrap();
        rustix::fs::fadvise(File::open(&path).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if reader.try_read_at(&mut bytes, 200_000) {
            assert_eq!(bytes, content[200_000..210_000]);
        }
        // Any part is allowed, even beyond the end.
        for part in [200_000..210_000, 399_999..500_000, 500_000..600_000, 7..7, 0..u64::MAX, u64::MAX - 1..u64::MAX] {
            reader.will_need(part);
        }
        assert_eq!(reader.read_at(&mut bytes, 200_000).unwrap(), bytes.len());
        assert_eq!(bytes, content[200_000..210_000]);
        assert!(reader.try_read_at(&mut bytes, 200_000));
    }

    #[test]
    fn is_locked_never_makes_lock_fail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        assert!(!OsFileSystem.is_locked(&path).unwrap() && !path.exists());
        let asks = AtomicU64::new(0);
        let locks = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while locks.load(Ordering::Relaxed) < 3000 {
                        OsFileSystem.is_locked(&path).unwrap();
                        asks.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while locks.fetch_add(1, Ordering::Relaxed) < 3000 {
                let held = OsFileSystem.lock(&path).unwrap();
                let is_refused = held.is_none();
                if is_refused {
                    locks.store(3000, Ordering::Relaxed);
                }
                assert!(!is_refused);
                assert!(OsFileSystem.is_locked(&path).unwrap());
                assert!(OsFileSystem.lock(&path).unwrap().is_none());
            }
        });
        assert!(asks.into_inner() > 0);
        assert!(!OsFileSystem.is_locked(&path).unwrap());
    }

    #[test]
    fn try_read_at_reads_and_waits_without_nowait_support() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "content").unwrap();
        let reader = OsReadable::new(File::open(&path).unwrap());
        reader.nowait_unsupported.store(true, Ordering::Relaxed);
        let mut bytes = [0; 7];
        assert!(reader.try_read_at(&mut bytes, 0));
        assert_eq!(&bytes, b"content");
        assert!(!reader.try_read_at(&mut bytes, 1));
    }
}
