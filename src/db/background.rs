//! What runs in the background, what waits to run, and what has failed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::exec::Priority;
use crate::tree::compaction::picker::Task;

/// How long a kind of work rests after a failure, unless somebody waits for it.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Background work of a store, and how threads wait for it.
#[derive(Default)]
pub(super) struct Background {
    jobs: Mutex<Jobs>,
    /// Notified when a background job ends, and when the store is poisoned or closed.
    pub(super) done: Condvar,
    /// Set while some background work has failed and not succeeded since.
    pub(super) retry_wanted: AtomicBool,
    /// Set while there is urgent work that no thread has taken. Changed with `jobs` locked.
    pub(super) urgent_waiting: AtomicBool,
    /// Background work ends as soon as it can. Set while `jobs` is locked: no job is begun from
    /// then on.
    pub(super) stopping: AtomicBool,
}

impl Background {
    pub(super) fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock()
    }
}

/// What runs in the background, what waits to run, and what has failed.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) flushing: bool,
    /// Running compactions, with their keyspaces.
    pub(super) compactions: Vec<(u32, Task)>,
    /// Whether one of them is relief.
    pub(super) relieving: bool,
    /// Work that was begun and has not ended, also where no thread has taken it yet, and threads
    /// that help. Jobs in the executor's queue that find nothing to do do not count: they may stand
    /// behind another store's compaction.
    pub(super) unfinished: usize,
    /// Urgent work that no thread has taken.
    pub(super) urgent: Vec<Work>,
    /// Other work that no thread has taken, by the number of its job.
    pub(super) queued: Vec<(u64, Work)>,
    pub(super) next_job: u64,
    /// Keyspaces of which something is about to be done for a caller: only relief may start there.
    pub(super) claimed: Vec<u32>,
    /// Failures since which the same kind of work has not succeeded.
    pub(super) failed: BTreeMap<Kind, Failure>,
    /// Counts failures, so that a waiter can tell new ones.
    pub(super) failures: u64,
}

/// What fails and rests together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Flush,
    /// Of one keyspace.
    Compaction(u32),
}

pub(super) struct Failure {
    pub(super) error: Error,
    at: Instant,
    pub(super) number: u64,
}

/// One piece of background work.
pub(super) enum Work {
    Flush,
    Compaction(u32, Task),
    /// A compaction for which writers may have to wait.
    Relief(u32, Task),
    /// For a caller who waits for the result.
    Requested(u32, Task, Request, Outcome),
}

/// What a caller wants done with the tables of a task.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Compact,
    /// A new filter for a single table, by the options that are in force when it begins.
    Refilter,
}

/// How requested work ended: with how many bytes of new tables.
pub(super) type Outcome = Arc<Mutex<Option<Result<u64>>>>;

/// What a waiter waits for: failures of other work are not his.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    Flush,
    Compaction,
    /// For the end of all flushes and compactions.
    All,
    /// For a task whose own outcome says how it ended.
    Outcome,
}

/// Which urgent work a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgent {
    Flush,
    All,
}

impl Work {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Work::Flush => Kind::Flush,
            Work::Compaction(keyspace, _) | Work::Relief(keyspace, _) | Work::Requested(keyspace, ..) => {
                Kind::Compaction(*keyspace)
            }
        }
    }

    pub(super) fn is_urgent(&self) -> bool {
        matches!(self, Work::Flush | Work::Relief(..))
    }

    pub(super) fn priority(&self) -> Priority {
        match self {
            Work::Flush => Priority::High,
            Work::Compaction(..) | Work::Relief(..) | Work::Requested(..) => Priority::Low,
        }
    }
}

impl Jobs {
    pub(super) fn is_resting(&self, kind: Kind) -> bool {
        self.failed.get(&kind).is_some_and(|failure| failure.at.elapsed() < RETRY_AFTER)
    }

    /// Running compactions of a keyspace.
    pub(super) fn running(&self, keyspace: u32) -> Vec<Task> {
        self.compactions.iter().filter(|(id, _)| *id == keyspace).map(|(_, task)| task.clone()).collect()
    }

    /// Takes work off the list of what is running.
    pub(super) fn remove(&mut self, work: &Work) {
        match work {
            Work::Flush => self.flushing = false,
            Work::Compaction(keyspace, task) | Work::Relief(keyspace, task) | Work::Requested(keyspace, task, ..) => {
                self.compactions.retain(|(id, running)| id != keyspace || running != task);
            }
        }
        self.relieving &= !matches!(work, Work::Relief(..));
    }

    pub(super) fn ended(&mut self, work: &Work, result: &Result<u64>) {
        self.remove(work);
        match result {
            Ok(_) => drop(self.failed.remove(&work.kind())),
            Err(error) => {
                self.failures += 1;
                let failure = Failure { error: error.clone(), at: Instant::now(), number: self.failures };
                self.failed.insert(work.kind(), failure);
            }
        }
    }
}
