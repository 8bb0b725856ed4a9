//! The real file system where the standard library is all there is, such as WASI.
//!
//! Opening a store for writing fails there if the system has no file locks: the error says that
//! they are unsupported. [`MemoryFileSystem`](crate::MemoryFileSystem) works everywhere.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "part of the real file system")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::regular;
pub(super) use super::standard::{hold_dir, remove, rename, sync_dir, try_lock, try_lock_shared, unlock};
use tamis_base::sync::Mutex;

/// Held while a file's position is in use: threads may share the file.
static POSITION: Mutex<()> = Mutex::new(());

/// Opens a regular file.
pub(super) fn open_for_reads(path: &Path) -> io::Result<File> {
    regular(File::open(path)?)
}

/// Opens a regular file whose content is to be made durable.
pub(super) fn open_for_sync(path: &Path) -> io::Result<File> {
    open_for_reads(path)
}

/// Opens a lock file, and creates it if absent. Its content belongs to the lock's holder.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(super::not_regular());
    }
    regular(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?)
}

/// The path without symbolic links and `..`; `None` if there is no such file.
pub(super) fn resolved(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

/// Gives a file another name, and not a symbolic link to it.
pub(super) fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(resolved(from).as_deref().unwrap_or(from), to)
}

pub(super) fn read_at(mut file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let _position = POSITION.lock();
    file.seek(SeekFrom::Start(offset))?;
    file.read(buf)
}

pub(super) fn write_all_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let _position = POSITION.lock();
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

/// Nothing tells: a full disk shows when a file is written.
pub(super) fn free_space(_: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

/// The standard library names no such error.
pub fn is_out_of_descriptors(_: &io::Error) -> bool {
    false
}

/// Whether `path` is a name of the open `file`. Nothing identifies files here: it is a name of one.
pub(super) fn is_file_of(_: &File, path: &Path) -> bool {
    path.exists()
}
