//! What the standard library does everywhere but on Windows.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "part of the real file system")]

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use crate::HeldDir;

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

pub(super) fn hold_dir(dir: &Path) -> io::Result<Option<Box<dyn HeldDir>>> {
    Ok(Some(Box::new(File::open(dir)?)))
}

impl HeldDir for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Takes the exclusive lock on `file`, unless another handle holds any.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    holds(file.try_lock())
}

/// Takes a shared lock on `file`, unless another handle holds the exclusive one.
pub(super) fn try_lock_shared(file: &File) -> io::Result<bool> {
    holds(file.try_lock_shared())
}

pub(super) fn unlock(file: &File) -> io::Result<()> {
    file.unlock()
}

/// Whether the lock that was tried for is held now.
fn holds(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
