//! [`BackgroundPause`]: keeps background work from running, and files from being removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::background::Urgent;
use super::store::Store;
use crate::error::Result;

/// Pauses the background work of a store until it is dropped; see
/// [`Db::pause_background`](super::Db::pause_background).
#[must_use = "background work goes on when this is dropped"]
pub struct BackgroundPause {
    store: Arc<Store>,
    thread: ThreadId,
}

impl Store {
    /// Pauses background work, once what runs has ended.
    pub(super) fn pause_background(self: &Arc<Self>) -> Result<BackgroundPause> {
        self.gate.check_writable()?;
        let thread = thread::current().id();
        self.tables.janitor().hold();
        self.background.lock().pausers.push(thread);
        self.background.pausing.store(true, Ordering::Release);
        // From here on, an early return ends the pause.
        let pause = BackgroundPause { store: Arc::clone(self), thread };
        loop {
            if self.help(Urgent::All) {
                continue;
            }
            let mut jobs = self.background.lock();
            if jobs.unfinished == 0 {
                drop(jobs);
                self.gate.check_writable()?;
                return Ok(pause);
            }
            jobs.wait_for(&self.background.done, Duration::from_millis(100));
        }
    }
}

impl Drop for BackgroundPause {
    fn drop(&mut self) {
        let mut jobs = self.store.background.lock();
        if let Some(at) = jobs.pausers.iter().position(|thread| *thread == self.thread) {
            jobs.pausers.swap_remove(at);
        }
        self.store.background.pausing.store(!jobs.pausers.is_empty(), Ordering::Release);
        drop(jobs);
        self.store.tables.janitor().release();
        self.store.schedule();
    }
}

impl std::fmt::Debug for BackgroundPause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackgroundPause").field("store", &self.store.path()).finish_non_exhaustive()
    }
}
