//! The system calls of the real file system on Windows.
//!
//! Differences from Unix:
//!
//! - A directory cannot be synced. NTFS journals names; a rename is durable when the journal is. In
//!   practice, a later `FlushFileBuffers` of any file on the volume forces that, but no document
//!   promises it.
//! - A virus scanner or an indexer may hold a file for a moment. Renaming and removing are retried
//!   for up to [`RETRY_TIMEOUT`].
//! - Other handles can neither read nor write a locked range. Therefore the lock covers one byte
//!   far beyond the content, which names the holder.
//! - Files are not mapped: a mapped file can be neither removed nor shortened.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "part of the real file system")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::FileExt;
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_LOCK_VIOLATION, ERROR_SHARING_VIOLATION, ERROR_TOO_MANY_OPEN_FILES,
};
use windows_sys::Win32::Storage::FileSystem::{
    GetDiskFreeSpaceExW, LOCK_FILE_FLAGS, LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx, UnlockFileEx,
};
use windows_sys::Win32::System::IO::{OVERLAPPED, OVERLAPPED_0, OVERLAPPED_0_0};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

use super::{not_regular, regular};
use crate::HeldDir;
use tamis_base::sync::thread;

/// How long renaming and removing are retried while another process holds the file.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before the first retry; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The byte that is locked: no file is as long.
const LOCKED_OFFSET: u64 = 1 << 62;

/// Opens a regular file. Windows denies access to a directory; opening one on Unix says what it is.
pub(super) fn open_for_reads(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// Opens a regular file whose content is to be made durable. None is synced that is open for
/// reading only.
pub(super) fn open_for_sync(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true).write(true), path)
}

/// Opens a lock file, and creates it if absent. Its content belongs to the lock's holder.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(not_regular());
    }
    open_with(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    regular(options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if path.is_dir() => io::ErrorKind::IsADirectory.into(),
        _ => error,
    })?)
}

/// Nothing: what the system calls a path without links few programs understand.
pub(super) fn resolved(_: &Path) -> Option<PathBuf> {
    None
}

/// Gives a file another name, and not a symbolic link to it.
pub(super) fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(fs::canonicalize(from)?, to)
}

/// Reads at `offset`. This moves the file's own position, which nothing uses.
pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(buf, offset)
}

pub(super) fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    retry(|| fs::rename(from, to))
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    retry(|| fs::remove_file(path))
}

/// Only checks that the directory exists.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    match fs::metadata(dir)?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// A sync needs no handle.
pub(super) fn hold_dir(_: &Path) -> io::Result<Option<Box<dyn HeldDir>>> {
    Ok(None)
}

/// Takes the exclusive lock on `file`, unless another handle holds any.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    try_lock_with(file, LOCKFILE_EXCLUSIVE_LOCK)
}

/// Takes a shared lock on `file`, unless another handle holds the exclusive one.
pub(super) fn try_lock_shared(file: &File) -> io::Result<bool> {
    try_lock_with(file, 0)
}

fn try_lock_with(file: &File, flags: LOCK_FILE_FLAGS) -> io::Result<bool> {
    let mut range = locked_range();
    // SAFETY: the handle is open, and the call has ended with `range` when it returns: the handle
    // is a synchronous one.
    let done = unsafe { LockFileEx(file.as_raw_handle(), flags | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &raw mut range) };
    if done != 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if is_one_of(&error, &[ERROR_LOCK_VIOLATION]) { Ok(false) } else { Err(error) }
}

pub(super) fn unlock(file: &File) -> io::Result<()> {
    let mut range = locked_range();
    // SAFETY: as above.
    match unsafe { UnlockFileEx(file.as_raw_handle(), 0, 1, 0, &raw mut range) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Where the locked byte is, for the system calls.
#[allow(clippy::cast_possible_truncation, reason = "the two halves of the offset")]
fn locked_range() -> OVERLAPPED {
    let halves = OVERLAPPED_0_0 { Offset: LOCKED_OFFSET as u32, OffsetHigh: (LOCKED_OFFSET >> 32) as u32 };
    OVERLAPPED { Anonymous: OVERLAPPED_0 { Anonymous: halves }, ..OVERLAPPED::default() }
}

/// Bytes that this user can still write to the volume of `dir`.
pub(super) fn free_space(dir: &Path) -> io::Result<u64> {
    let name: Vec<u16> = dir.as_os_str().encode_wide().chain([0]).collect();
    let mut available = 0;
    // SAFETY: `name` ends with a zero; `name` and `available` live until the call returns. The call
    // accepts null for outputs that are not needed.
    let done =
        unsafe { GetDiskFreeSpaceExW(name.as_ptr(), &raw mut available, std::ptr::null_mut(), std::ptr::null_mut()) };
    match done {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(available),
    }
}

/// Whether the process has too many files open.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    is_one_of(error, &[ERROR_TOO_MANY_OPEN_FILES])
}

/// Retries `call` while another process holds the file, with a pause that doubles.
fn retry(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let (mut pause, mut waited) = (FIRST_PAUSE, Duration::ZERO);
    loop {
        match call() {
            Err(error)
                if waited < RETRY_TIMEOUT
                    && is_one_of(&error, &[ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_LOCK_VIOLATION]) =>
            {
                thread::sleep(pause);
                waited += pause;
                pause *= 2;
            }
            result => return result,
        }
    }
}

fn is_one_of(error: &io::Error, codes: &[u32]) -> bool {
    let code = error.raw_os_error().map(i32::cast_unsigned);
    code.is_some_and(|code| codes.contains(&code))
}

/// Whether `path` is a name of the open `file`. On Windows an open file keeps its name.
pub(super) fn is_file_of(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Bytes of memory of the machine.
pub(super) fn machine_memory() -> Option<u64> {
    let len = u32::try_from(size_of::<MEMORYSTATUSEX>()).ok()?;
    let mut status = MEMORYSTATUSEX { dwLength: len, ..MEMORYSTATUSEX::default() };
    // SAFETY: `status` states its length, and the system writes to it only.
    (unsafe { GlobalMemoryStatusEx(&raw mut status) } != 0).then_some(status.ullTotalPhys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_held_file_is_retried() {
        let mut calls = 0;
        let error = retry(|| {
            calls += 1;
            match calls {
                1..4 => Err(io::Error::from_raw_os_error(ERROR_SHARING_VIOLATION.cast_signed())),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        });
        assert_eq!((error.unwrap_err().kind(), calls), (io::ErrorKind::NotFound, 4));
    }

    #[test]
    fn a_locked_file_can_be_read_and_is_locked_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        fs::write(&path, "holder").unwrap();
        let open = || fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let holder = open();
        assert!(try_lock(&holder).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "holder");
        assert!(!try_lock(&open()).unwrap() && !try_lock_shared(&open()).unwrap());
        unlock(&holder).unwrap();
        assert!(unlock(&holder).is_err());
        let shared = [open(), open()];
        assert!(shared.iter().all(|file| try_lock_shared(file).unwrap()));
        assert!(!try_lock(&holder).unwrap());
        drop(shared);
        assert!(try_lock(&holder).unwrap());
    }

    #[test]
    fn a_volume_has_free_space() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_space(dir.path()).unwrap() > 0);
        assert!(free_space(&dir.path().join("none")).is_err());
        assert!(sync_dir(dir.path()).is_ok() && sync_dir(&dir.path().join("none")).is_err());
    }
}
