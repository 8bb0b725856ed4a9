//! [`Gate`]: whether a store accepts operations, and why not.
//!
//! A store is poisoned when what the disk holds is unknown: by the first failed append or sync of
//! the log or the manifest, by a panic in the background, and when its directory is not the locked
//! one any more. A sync that failed must not be repeated and believed. Reads go on; writes fail
//! with the first cause until the store is opened again. They fail in a fork of the process, too,
//! where nothing is closed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::error::{Error, Result};
use crate::fork::Process;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, OnceLock};
use crate::vfs::FileLock;

/// A store is open, then closed. It may be read-only from the start, and poisoned at any time.
pub(super) struct Gate {
    /// Unique within the process: a batch made for another store is refused.
    id: u64,
    dir: PathBuf,
    /// The process that has opened the store.
    process: Process,
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
            process: Process::current(),
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

    #[inline]
    pub(super) fn check_poison(&self) -> Result<()> {
        if self.is_poisoned() { Err(self.refusal()) } else { Ok(()) }
    }

    #[cold]
    fn refusal(&self) -> Error {
        match self.poison.get() {
            Some(cause) => Error::Poisoned(Arc::clone(cause)),
            None => Error::Forked(self.dir.clone()),
        }
    }

    /// Whether the store takes no writes in this process.
    #[inline]
    pub(super) fn is_poisoned(&self) -> bool {
        self.poison.get().is_some() || self.is_forked()
    }

    /// Whether this process is a fork of the one that opened the store.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    pub(super) fn check_process(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked(self.dir.clone())) } else { Ok(()) }
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
