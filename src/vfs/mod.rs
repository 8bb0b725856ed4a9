//! The file-system seam: every byte that tamis reads or writes goes through [`FileSystem`].
//!
//! [`OsFileSystem`] is the real one. [`SimFileSystem`] lives in memory and can forget, tear and reorder what was not synced, and
//! fail on cue; tamis tests itself on it, and programs that embed tamis may test themselves on it too.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::format::filename::FileKind;

mod os;
mod sim;

pub use os::OsFileSystem;
pub(crate) use os::is_out_of_descriptors;
pub use sim::{Fault, FaultMode, SimFileSystem};

/// What tamis needs of a file system.
///
/// Contents are durable after [`WritableFile::sync`], names (creation, renaming, removal) after [`FileSystem::sync_dir`] of their
/// directory. Interrupted system calls are retried and short transfers continued by the implementation.
pub trait FileSystem: Send + Sync + Debug {
    /// Creates a file for appending. Fails with `AlreadyExists` when the name is taken; nothing is ever truncated.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>>;

    /// Opens an existing file for reading.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>>;

    /// Renames a file, replacing `to` atomically if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Names of the files in a directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates a directory and those above it; no error if it exists. Returns whether it had to be created.
    fn create_dir(&self, dir: &Path) -> io::Result<bool>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the exclusive lock on the file at `path`, creating it when absent, and writes this process's id into it. Returns
    /// `None` when another process or another handle in this one holds it. The lock ends when the result is dropped.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Whether somebody holds the lock on the file at `path`. To ask is harmless: a
    /// [`lock`](FileSystem::lock) at the same time succeeds. `false`, as by default, where the
    /// answer cannot be had.
    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        let _ = path;
        Ok(false)
    }

    /// Bytes that can still be written to the file system of `dir`.
    fn free_space(&self, dir: &Path) -> io::Result<u64>;
}

/// A file being written, only ever at its end. One thread appends; any may sync meanwhile.
///
/// The *end* is behind what was appended. The file may be longer, by zeros that were [prepared](WritableFile::prepare).
pub trait WritableFile: Send + Sync {
    /// Appends all of `bytes`. After an error the length and the content behind the last good append are unknown.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything appended before the call durable (`fdatasync`). After an error nothing may be assumed of the data, and a
    /// later success means nothing.
    fn sync(&self) -> io::Result<()>;

    /// Has what was appended go to the device from now on, without a wait until it is there, so that a later [`sync`](WritableFile::sync)
    /// finds less to do. Nothing is durable by that, and no error is lost: `sync` has them all. Does nothing by default.
    fn begin_sync(&self) {}

    /// Reserves space for a file of `len` bytes, where the file system can. The length does not change. A full disk is an error.
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// Lengthens the file to `len` bytes by zeros that have their place on the device, so that appends up to there change nothing
    /// but data, and a sync of them has nothing else to write. Returns whether it did; a file system where this gains nothing, as by
    /// default, leaves the file as it is.
    ///
    /// After an error the file may be longer by zeros, and that does no harm.
    fn prepare(&self, len: u64) -> io::Result<bool> {
        let _ = len;
        Ok(false)
    }

    /// Brings what is prepared behind the end into memory, to be appended there without a system call. `None`, as by default, where
    /// storing to that memory could fail.
    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        Ok(None)
    }
}

/// The part of a file behind its end, in memory. There is at most one of a file, and it takes part in the turns of who appends.
pub trait Window: Send {
    /// Appends `head` and `body` to the file by storing them, `body` first: a process that is killed in between has appended
    /// nothing that looks begun. They are with the operating system then, as after [`WritableFile::append`].
    ///
    /// `false` if they do not fit, or if the window is too old to be relied on; then nothing has happened.
    fn append(&mut self, head: &[u8], body: &[u8]) -> bool;
}

/// A file open for positional reads.
pub trait ReadableFile: Send + Sync + Debug {
    /// Reads at `offset` until `buf` is full or the file ends; returns how many bytes were read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Fills `buf` with what is at `offset`, if that takes no wait for a device, and returns whether it did. `false` says no more than that:
    /// errors, and where the file ends, are for [`read_at`](ReadableFile::read_at) to tell, and `buf` holds anything.
    ///
    /// By default, and where it cannot be told beforehand, it reads and waits. A file that wraps another one should pass on this and
    /// [`will_need`](ReadableFile::will_need), without which reads of many keys wait for the device once for each block.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        self.read_at(buf, offset).is_ok_and(|read| read == buf.len())
    }

    /// Says that a part of the file will be read soon. It is no read: it should not wait for one, and has no errors. The part may be empty,
    /// or lie beyond the end.
    fn will_need(&self, part: Range<u64>) {
        let _ = part;
    }

    /// Length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The whole file in memory, as [`read_at`](ReadableFile::read_at) would read it now. `None`, as by default, where that cannot be had.
    ///
    /// An access to a byte that cannot be read has no way to say so: where the system maps files, it ends the process.
    ///
    /// # Safety
    ///
    /// While the result lives, nobody, in this process or another one, may change the file's content or shorten the file. It may lose its name.
    unsafe fn map(&self) -> Option<Arc<dyn Mapping>> {
        None
    }
}

/// A file in memory, to be read.
pub trait Mapping: Send + Sync + Debug {
    /// Its bytes.
    fn bytes(&self) -> &[u8];

    /// Says that a part of it will be read soon. It need not lie within the file.
    fn will_need(&self, part: Range<usize>) {
        let _ = part;
    }
}

/// Holds a lock until dropped.
pub trait FileLock: Send + Sync + Debug {
    /// Whether the locked file still has its name. A directory that was removed may have been
    /// created again since, by somebody who holds the lock on a file of the same name. `true`, as by
    /// default, where that cannot be found out.
    fn is_in_force(&self) -> bool {
        true
    }
}

/// The files in `dir` that have names of a store's files, ordered by kind and number.
pub(crate) fn store_files(fs: &dyn FileSystem, dir: &Path) -> io::Result<Vec<FileKind>> {
    let mut files: Vec<FileKind> = fs.list(dir)?.iter().filter_map(|name| FileKind::parse(name)).collect();
    files.sort_unstable();
    Ok(files)
}

/// Reads a whole file that may be at most `limit` bytes long; a longer one is an error of kind `InvalidData`.
pub(crate) fn read_small_file(fs: &dyn FileSystem, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
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
