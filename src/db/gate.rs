//! [`Gate`]: whether a store accepts operations, and why not.
//!
//! A store is poisoned when what the disk holds is unknown: by the first failed append or sync of
//! the log or the manifest, by a panic in the background, and when its directory is not the locked
//! one any more. A sync that failed must not be repeated and believed. Reads go on; writes fail
//! with the first cause until the store is opened again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, OnceLock};
use crate::vfs::FileLock;

/// A store is open, then closed. It may be read-only from the start, and poisoned at any time.
pub(super) struct Gate {
    /// Unique within the process: a batch made for another store is refused.
    id: u64,
    dir: PathBuf,
    is_read_only: bool,
    /// The first failure of the log or the manifest.
    poison: OnceLock<Arc<Error>>,
    /// No more operations are accepted.
    closed: AtomicBool,
    /// Result of closing, for every caller.
    close_result: OnceLock<Result<()>>,
    lock: Mutex<Option<Arc<dyn FileLock>>>,
}

impl Gate {
    /// The gate of a store being opened. A store without a lock is read-only.
    pub(super) fn new(dir: PathBuf, lock: Option<Arc<dyn FileLock>>) -> Gate {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Gate {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            dir,
            is_read_only: lock.is_none(),
            poison: OnceLock::new(),
            closed: AtomicBool::new(false),
            close_result: OnceLock::new(),
            lock: Mutex::new(lock),
        }
    }

    /// Tells the open stores of the process apart.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.is_read_only {
            return Err(Error::ReadOnly(self.dir.clone()));
        }
        self.check_poison()
    }

    pub(super) fn check_poison(&self) -> Result<()> {
        match self.poison.get() {
            Some(cause) => Err(Error::Poisoned(Arc::clone(cause))),
            None => Ok(()),
        }
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.poison.get().is_some()
    }

    /// Refuses all writes from now on. Only the first cause is kept; returns whether this is it.
    pub(super) fn poison(&self, cause: &Error) -> bool {
        !matches!(cause, Error::Poisoned(_)) && self.poison.set(Arc::new(cause.clone())).is_ok()
    }

    /// Whether the directory is still the locked one. True after the lock was released.
    pub(super) fn is_lock_in_force(&self) -> bool {
        self.lock.lock().as_ref().is_none_or(|lock| lock.is_in_force())
    }

    /// Refuses all further operations.
    pub(super) fn shut(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Runs `close` once. Every caller waits for its end and gets its result.
    pub(super) fn close_once(&self, close: impl FnOnce() -> Result<()>) -> Result<()> {
        self.close_result.get_or_init(close).clone()
    }

    pub(super) fn release_lock(&self) {
        *self.lock.lock() = None;
    }
}
