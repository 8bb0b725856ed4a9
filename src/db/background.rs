//! Scheduling of flushes and compactions, and waiting for them.
//!
//! One flush at a time, oldest memtable first; compactions beside it as far as the executor's threads go and key ranges allow. A job
//! that fails leaves its inputs as they were; it is tried again when the next write or flush asks for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::store::Store;
use super::throttle;
use super::view::Tree;
use crate::compaction::picker::{Picker, Task};
use crate::error::{Error, Result};
use crate::format::key::SeqNo;
use crate::options::Compression;

/// How long background work rests after a failure before writes start it again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What runs in the background.
#[derive(Default)]
pub(super) struct Background {
    pub(super) flushing: bool,
    /// Running compactions, with their keyspaces.
    pub(super) compactions: Vec<(u32, Task)>,
    /// Jobs given to the executor and not ended yet.
    jobs: usize,
    /// Callers that want to compact a range themselves; nothing else is compacted meanwhile.
    pub(super) manual: usize,
    /// The last failure, while nothing has succeeded since.
    failure: Option<Failure>,
    /// Counts failures, so that a waiter can tell a new one.
    failures: u64,
}

struct Failure {
    error: Error,
    at: Instant,
}

/// One piece of background work.
enum Work {
    Flush,
    Compaction(u32, Task),
}

impl Store {
    /// Starts whatever background work is due and can run.
    pub(super) fn schedule(self: &Arc<Self>) {
        self.update_pressure();
        while let Some(work) = self.begin_work() {
            let store = Arc::clone(self);
            self.executor.spawn(Box::new(move || store.run(work)));
        }
    }

    fn begin_work(&self) -> Option<Work> {
        if self.is_stopping() || self.read_only || self.is_poisoned() {
            return None;
        }
        let mut background = self.background.lock();
        let work = self.next_work(&mut background)?;
        background.jobs += 1;
        Some(work)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(std::sync::atomic::Ordering::Acquire)
    }

    fn next_work(&self, background: &mut Background) -> Option<Work> {
        let resting = background.failure.as_ref().is_some_and(|failure| failure.at.elapsed() < RETRY_AFTER);
        if resting {
            return None;
        }
        let view = self.view.load();
        if !background.flushing && !view.sealed.is_empty() {
            background.flushing = true;
            return Some(Work::Flush);
        }
        // A flush must never wait for a compaction to end, unless there is one thread alone.
        let limit = self.executor.parallelism().saturating_sub(1).max(1);
        if background.compactions.len() >= limit || background.manual > 0 {
            return None;
        }
        view.trees.iter().find_map(|tree| {
            let task = self.with_picker(tree, background, |picker| picker.pick())?;
            background.compactions.push((tree.id, task.clone()));
            Some(Work::Compaction(tree.id, task))
        })
    }

    pub(super) fn with_picker<R>(
        &self,
        tree: &Tree,
        background: &Background,
        pick: impl FnOnce(&Picker<'_>) -> R,
    ) -> R {
        let running: Vec<Task> =
            background.compactions.iter().filter(|(id, _)| *id == tree.id).map(|(_, task)| task.clone()).collect();
        pick(&Picker {
            levels: &tree.version.metas(),
            running: &running,
            base_size: self.base_size(),
            oldest_snapshot: self.snapshots.lock().keys().next().copied().unwrap_or(SeqNo::MAX),
            moves_to_last: tree.options.compression == Compression::None,
        })
    }

    /// Does one piece of work on an executor's thread, and whatever is due after it.
    fn run(self: Arc<Self>, work: Work) {
        let result = catch_unwind(AssertUnwindSafe(|| match &work {
            Work::Flush => self.flush_oldest(),
            Work::Compaction(keyspace, task) => self.compact(*keyspace, task),
        }));
        let result = result.unwrap_or_else(|_| {
            // Its state is unknown: nothing more is written.
            Err(self.poison(Error::invalid("background work panicked; this is a bug in tamis")))
        });
        {
            let mut background = self.background.lock();
            match &work {
                Work::Flush => background.flushing = false,
                Work::Compaction(keyspace, task) => background.release(*keyspace, task),
            }
            background.note(&result);
        }
        self.remove_obsolete();
        self.schedule();
        self.background.lock().jobs -= 1;
        self.background_done.notify_all();
    }

    /// Waits until `done`, or until background work fails and leaves it undone: then returns that error.
    pub(super) fn wait_for_progress(self: &Arc<Self>, done: impl Fn(&Background) -> bool) -> Result<()> {
        let failures = {
            let mut background = self.background.lock();
            // Whoever waits wants a new attempt now.
            background.failure = None;
            background.failures
        };
        loop {
            self.schedule();
            let mut background = self.background.lock();
            if done(&background) {
                return Ok(());
            }
            self.check_poison()?;
            match &background.failure {
                Some(failure) if background.failures != failures => return Err(failure.error.clone()),
                _ if background.jobs == 0 => return Err(Error::Closed),
                _ => {}
            }
            if MutexGuard::unlocked(&mut background, || self.executor.step()) || done(&background) {
                continue;
            }
            // Another store's job may be what we wait for on a shared executor; the bound only keeps that from being for ever.
            self.background_done.wait_for(&mut background, Duration::from_millis(100));
        }
    }

    /// Waits until no background job is left. Used when closing, when none is started any more.
    pub(super) fn wait_until_idle(&self) {
        loop {
            if self.executor.step() {
                continue;
            }
            let mut background = self.background.lock();
            if background.jobs == 0 {
                return;
            }
            self.background_done.wait_for(&mut background, Duration::from_millis(100));
        }
    }

    /// Whether background work failed and nothing has succeeded since.
    pub(super) fn background_error(&self) -> Option<Error> {
        self.background.lock().failure.as_ref().map(|failure| failure.error.clone())
    }

    fn update_pressure(&self) {
        let background = self.background.lock();
        let view = self.view.load();
        let runs = view.trees.iter().map(|tree| tree.version.levels()[0].tables().len()).max().unwrap_or(0);
        let debt = view.trees.iter().map(|tree| self.with_picker(tree, &background, |picker| picker.debt())).sum();
        self.throttle.set_pressure(throttle::pressure(runs, debt, self.base_size()));
    }
}

impl Background {
    pub(super) fn release(&mut self, keyspace: u32, task: &Task) {
        self.compactions.retain(|(id, running)| *id != keyspace || running != task);
    }

    fn note(&mut self, result: &Result<()>) {
        match result {
            Ok(()) => self.failure = None,
            Err(error) => {
                self.failures += 1;
                self.failure = Some(Failure { error: error.clone(), at: Instant::now() });
            }
        }
    }
}
