//! The file-system interface: every byte that tamis reads or writes goes through [`FileSystem`].
//!
//! [`OsFileSystem`] is the real one. [`MemoryFileSystem`] holds stores that need not outlive the
//! process. [`SimFileSystem`] is for tests: it can forget, tear and reorder what was not synced,
//! and fail on cue. tamis tests itself on it, and programs that embed tamis may, too.
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_base::format::filename::FileKind;

mod memory;
mod os;
mod sim;

pub use memory::MemoryFileSystem;
pub use os::{OsFileSystem, is_out_of_descriptors, machine_memory};
pub use sim::{Fault, FaultMode, SimFileSystem};

/// What tamis needs of a file system.
///
/// [`WritableFile::sync`] makes contents durable. [`FileSystem::sync_dir`] makes the names in a
/// directory durable: creations, renamings and removals. Implementations retry interrupted system
/// calls and continue short transfers.
pub trait FileSystem: Send + Sync + Debug {
    /// Creates a file for appending. Fails with `AlreadyExists` if the name is taken: no file is
    /// ever truncated.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>>;

    /// Opens an existing file for reading, also through a symbolic link. Fails, without waiting,
    /// unless it is a regular file: a directory, a pipe or a device has no content of its own.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>>;

    /// Renames a file, replacing `to` atomically if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives the file `from` a second name, `to`: each name keeps the content. If `from` is a
    /// symbolic link, the file to which it points gets the name; only a regular file does. Fails
    /// with `AlreadyExists` if `to` is taken. Fails where there are no such links, and so by
    /// default; the caller then copies the file.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _ = (from, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the content of a file durable, whoever wrote it. Fails where that is impossible, and
    /// so by default; the caller then copies the file.
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Names of the files in a directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates a directory and its parents. Returns whether it was missing; an existing one is no
    /// error.
    fn create_dir(&self, dir: &Path) -> io::Result<bool>;

    /// Whether `path` is the name of a regular file, and not of a symbolic link, a directory, a
    /// pipe or a device. By default, and where there are no such things, a file that can be opened
    /// is.
    fn is_regular(&self, path: &Path) -> io::Result<bool> {
        self.open(path).map(|_| true)
    }

    /// A path to the same file that stays right if the process changes its working directory, or
    /// if somebody changes a symbolic link on the way to it. The path itself, by default.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Opens a directory for [`sync_dir`](FileSystem::sync_dir)s to come: these then cannot fail
    /// for want of a file descriptor. `None` where they need none, and by default.
    fn hold_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn HeldDir>>> {
        let _ = dir;
        Ok(None)
    }

    /// Takes the exclusive lock on the file at `path`, creating it if absent, and writes this
    /// process's id into it. Fails if that is a symbolic link, or no regular file. Returns `None`
    /// if another process, or another handle in this process, holds the lock. It ends at once when
    /// the result is dropped, also while a program that this process has just started still has
    /// copies of its handles.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Whether the lock on the file at `path` is held. Asking is harmless: a concurrent
    /// [`lock`](FileSystem::lock) succeeds. `false` where the system cannot tell; so by default.
    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        let _ = path;
        Ok(false)
    }

    /// Bytes that can still be written to the file system of `dir`.
    fn free_space(&self, dir: &Path) -> io::Result<u64>;
}

/// An open directory; see [`FileSystem::hold_dir`].
pub trait HeldDir: Send + Sync {
    /// Makes the names in it durable.
    fn sync(&self) -> io::Result<()>;
}

/// A file being written, only at its end. One thread appends; any thread may sync meanwhile.
///
/// The *end* follows the last appended byte. The file may be longer, by zeros that were
/// [prepared](WritableFile::prepare).
pub trait WritableFile: Send + Sync {
    /// Appends all of `bytes`. After an error, the length and the content after the last successful
    /// append are unknown.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything appended before the call durable (`fdatasync`). After an error, assume
    /// nothing of the data: a later success does not make it durable.
    fn sync(&self) -> io::Result<()>;

    /// Starts write-back of what was appended, without waiting, so that a later
    /// [`sync`](WritableFile::sync) has less to do. It makes nothing durable and loses no error:
    /// `sync` reports them all. Does nothing by default.
    fn begin_sync(&self) {}

    /// Reserves space for a file of `len` bytes, where the file system can. The length does not
    /// change. A full disk is an error.
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// Gives back space that was reserved or prepared and is not used, as far as the file system
    /// can. Neither the length nor what reads return changes. Does nothing by default.
    fn release(&self) {}

    /// Lengthens the file to `len` bytes with allocated zeros, so that an append within them
    /// changes only data, and its sync writes nothing else. Returns whether it did: where this
    /// gains nothing, and by default, the file stays as it is.
    ///
    /// After an error the file may be longer by some zeros, which does no harm.
    fn prepare(&self, len: u64) -> io::Result<bool> {
        let _ = len;
        Ok(false)
    }

    /// Maps the prepared zeros after the end, for appends without a system call. `None` where a
    /// store to that memory could fail; so by default.
    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        Ok(None)
    }
}

/// The prepared part of a file in memory. A file has at most one window, used by the thread that
/// appends, in order with its other appends.
pub trait Window: Send {
    /// Appends `head` and `body` by storing them, `body` first: if the process is killed between
    /// the two, no record seems to have begun. Afterwards the operating system has them, as after
    /// [`WritableFile::append`].
    ///
    /// Returns `false`, without effect, if they do not fit or the window is too old to be safe.
    fn append(&mut self, head: &[u8], body: &[u8]) -> bool;
}

/// A file open for positional reads.
pub trait ReadableFile: Send + Sync + Debug {
    /// Reads at `offset` until `buf` is full or the file ends; returns how many bytes were read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Fills `buf` from `offset` if that needs no wait for a device; returns whether it did.
    /// `false` means only that: [`read_at`](ReadableFile::read_at) reports errors and the end of
    /// the file, and `buf` may hold anything.
    ///
    /// By default, and where the system cannot tell, it reads and waits. A file that wraps another
    /// one should forward this call and [`will_need`](ReadableFile::will_need). Otherwise reads of
    /// many keys wait for the device once for each block.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        self.read_at(buf, offset).is_ok_and(|read| read == buf.len())
    }

    /// Prefetch hint: `part` of the file will be read soon. It should not wait for the read, and
    /// reports no errors. The part may be empty or lie beyond the end.
    fn will_need(&self, part: Range<u64>) {
        let _ = part;
    }

    /// Length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads of what the system has in memory, without a system call for each. `None` where there
    /// are none that bear every failure of the device; so by default. They serve the part of the
    /// file that there is now.
    fn page_reader(&self) -> Option<Box<dyn PageReader>> {
        None
    }

    /// Maps the whole file, with the content that [`read_at`](ReadableFile::read_at) would return
    /// now. `None` where that is impossible; so by default.
    ///
    /// An access to a byte that cannot be read has no way to report it: where the system maps
    /// files, it ends the process.
    ///
    /// # Safety
    ///
    /// While the result lives, no process may change the file's content or shorten the file. Its
    /// name may be removed.
    unsafe fn map(&self) -> Option<Arc<dyn Mapping>> {
        None
    }
}

/// Reads a file from the system's memory; see [`ReadableFile::page_reader`]. The file may be closed
/// and its name removed meanwhile.
pub trait PageReader: Send + Sync + Debug {
    /// Fills `buf` from `offset` if that seems quick; returns whether it did. As for
    /// [`ReadableFile::try_read_at`], `false` means only that.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool;
}

/// A file in memory, for reading.
pub trait Mapping: Send + Sync + Debug {
    /// The file's bytes.
    fn bytes(&self) -> &[u8];

    /// Prefetch hint: `part` will be read soon. It need not lie within the file.
    fn will_need(&self, part: Range<usize>) {
        let _ = part;
    }
}

/// Holds a lock until it is dropped.
pub trait FileLock: Send + Sync + Debug {
    /// Whether the locked file still has its name. If its directory was removed and created again,
    /// another process may hold a lock on a new file of the same name. `true` where the system
    /// cannot tell; so by default.
    fn is_in_force(&self) -> bool {
        true
    }
}

/// The files in `dir` that have names of a store's files, ordered by kind and number.
pub fn store_files(fs: &dyn FileSystem, dir: &Path) -> io::Result<Vec<FileKind>> {
    let mut files: Vec<FileKind> = fs.list(dir)?.iter().filter_map(|name| FileKind::parse(name)).collect();
    files.sort_unstable();
    Ok(files)
}

/// Reads a whole file of at most `limit` bytes; a longer one is an error of kind `InvalidData`.
pub fn read_small_file(fs: &dyn FileSystem, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let file = fs.open(path)?;
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if len > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too long"));
    }
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
