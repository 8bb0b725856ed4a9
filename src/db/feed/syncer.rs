//! [`Syncer`]: syncs the store while a durable reader waits for unsynced writes.

use std::sync::Arc;
use std::time::Duration;

use crate::db::signal::Signal;
use crate::db::store::Store;
use crate::environment::SyncerPermit;
use crate::error::{Error, Result};
use crate::fork::Process;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{
    Mutex,
    thread::{self, JoinHandle},
    time,
};

/// The least time between the beginnings of two syncs. A reader lags by this and one or two syncs.
const SYNC_EVERY: Duration = Duration::from_millis(5);

/// A thread that syncs for one reader. It is a thread of its own so that the next sync runs while
/// the reader reads what the last one has made durable: at a million writes per second, reading
/// takes as long as syncing. An environment has only a few such threads.
pub(super) struct Syncer {
    shared: Arc<SyncerState>,
    _permit: SyncerPermit,
    /// Joined when this is dropped, in the process that has it.
    thread: Option<JoinHandle<()>>,
    process: Process,
}

#[derive(Default)]
struct SyncerState {
    /// The reader has looked for changes since the last sync began.
    is_wanted: AtomicBool,
    is_stopped: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Wakes the reader after a sync.
    synced: Signal,
}

impl SyncerState {
    fn run(&self, store: &Arc<Store>) {
        while !self.is_stopped.load(Ordering::Relaxed) {
            let logged = store.sequence.logged();
            let is_wanted = self.is_wanted.swap(false, Ordering::AcqRel);
            if !is_wanted || logged <= store.sequence.durable() {
                if is_wanted {
                    // Another sync was first.
                    self.synced.wake();
                }
                // The reader asks again if there is more to sync.
                thread::park();
                continue;
            }
            let begin = time::now();
            if let Err(error) = store.sync_through(logged) {
                *self.failure.lock() = Some(error);
            }
            self.synced.wake();
            thread::sleep(SYNC_EVERY.saturating_sub(time::since(begin)));
        }
    }
}

impl Syncer {
    /// Starts the thread; `None` if the environment or the system has none to give.
    pub(super) fn start(store: &Arc<Store>) -> Option<Syncer> {
        let permit = store.environment.syncer()?;
        let shared = Arc::<SyncerState>::default();
        let (of_thread, store) = (Arc::clone(&shared), Arc::clone(store));
        let thread = thread::spawn("tamis feed", move || of_thread.run(&store)).ok()?;
        Some(Syncer { shared, _permit: permit, thread: Some(thread), process: Process::current() })
    }

    /// Has the next sync made as soon as the last one is old enough.
    pub(super) fn keep_going(&self) {
        self.shared.is_wanted.store(true, Ordering::Release);
    }

    /// Waits for the next sync, for `timeout` at most, unless `is_durable`. Returns its failure.
    pub(super) fn wait(&self, timeout: Duration, is_durable: impl Fn() -> bool) -> Result<()> {
        self.keep_going();
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        self.shared.synced.wait(timeout, || is_durable() || self.shared.failure.lock().is_some());
        self.shared.failure.lock().take().map_or(Ok(()), Err)
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return std::mem::forget(self.thread.take());
        }
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there has poisoned the store or was its own; either way the thread is gone.
            let _ = thread.join();
        }
    }
}
