//! The system calls of the real file system on Unix.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "part of the real file system")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;

use super::regular;
pub(super) use super::standard::{hold_dir, remove, rename, sync_dir, try_lock, try_lock_shared, unlock};

/// Opens a regular file.
pub(super) fn open_for_reads(path: &Path) -> io::Result<File> {
    // Otherwise opening a pipe would wait for its writer.
    match open_with(OpenOptions::new().read(true), path, OFlags::NONBLOCK) {
        // A regular file on which another process has a lease: the lease is waited for.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => regular(File::open(path)?),
        opened => opened,
    }
}

/// Opens a regular file whose content is to be made durable.
pub(super) fn open_for_sync(path: &Path) -> io::Result<File> {
    open_for_reads(path)
}

/// Opens a lock file, and creates it if absent. Its content belongs to the lock's holder.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    open_with(options, path, OFlags::NONBLOCK | OFlags::NOFOLLOW).map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == Errno::LOOP.raw_os_error() => super::not_regular(),
        _ => error,
    })
}

fn open_with(options: &mut OpenOptions, path: &Path, flags: OFlags) -> io::Result<File> {
    regular(options.custom_flags(flags.bits().cast_signed()).open(path)?)
}

/// The path without symbolic links and `..`; `None` if there is no such file.
pub(super) fn resolved(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

/// Gives a file another name, and not a symbolic link to it.
pub(super) fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::fs::linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)?)
}

pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(buf, offset)
}

pub(super) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Bytes that this user can still write to the file system of `dir`.
pub(super) fn free_space(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether the process or the system has too many files open.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Whether `path` is a name of the open `file`.
pub(super) fn is_file_of(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let named = fs::metadata(path).map(identity);
    named.is_ok_and(|named| file.metadata().map(identity).is_ok_and(|own| own == named))
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn running_out_of_descriptors_is_recognised() {
        assert!(is_out_of_descriptors(&Errno::MFILE.into()) && is_out_of_descriptors(&Errno::NFILE.into()));
        assert!(!is_out_of_descriptors(&Errno::IO.into()) && !is_out_of_descriptors(&io::Error::other("other")));
    }
}
