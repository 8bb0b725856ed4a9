//! [`Background`]: what runs, what waits to run, and what has failed.
//!
//! A compaction claims its tables from the moment in which it is chosen ([`Jobs::claim`]), and so
//! does one that goes on from an earlier process. Work that has failed backs off by kind; the
//! others go on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agenda::Agenda;
use crate::db::locks::{LockRank, RankedGuard, RankedMutex};
use crate::error::{Error, Result};
use crate::exec::Priority;
use crate::format::deadline::NEVER;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Condvar, Mutex, time};
use crate::tree::compaction::task::Task;

/// Back-off of a kind of work after a failure, unless a caller waits for it.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// A store that nobody writes to tries again after that time, doubled with each failure in a row up
/// to this one.
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Background work of a store, and the condition on which threads wait for it.
pub(super) struct Background {
    jobs: RankedMutex<Jobs>,
    /// Notified when a background job ends, and when the store is poisoned or closed.
    pub(super) done: Condvar,
    /// Set while some kind of background work has failed and not succeeded since.
    pub(super) retry_wanted: AtomicBool,
    /// Whether a retry is planned for a store to which nobody writes.
    pub(super) retry_planned: AtomicBool,
    /// Background work is to end as soon as it can. Set while `jobs` is locked: no job begins after
    /// that.
    pub(super) stopping: AtomicBool,
    /// When the next wake is planned, as a deadline; [`NEVER`] if none is.
    pub(super) wake_at: AtomicU64,
    /// The log number of the active memtable in which the store has become [quiet](super::quiet); 0
    /// if in none.
    pub(super) quiet_in: AtomicU64,
    /// Whether a look is planned, which may find the store quiet.
    pub(super) look_planned: AtomicBool,
}

impl Default for Background {
    fn default() -> Background {
        Background {
            jobs: RankedMutex::new(LockRank::Background, Jobs::default()),
            done: Condvar::default(),
            retry_wanted: AtomicBool::default(),
            retry_planned: AtomicBool::default(),
            stopping: AtomicBool::default(),
            wake_at: AtomicU64::new(NEVER),
            quiet_in: AtomicU64::default(),
            look_planned: AtomicBool::default(),
        }
    }
}

impl Background {
    pub(super) fn lock(&self) -> RankedGuard<'_, Jobs> {
        self.jobs.lock()
    }
}

/// The running, waiting and failed work of a store.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) flushing: bool,
    /// What is known of all keyspaces; see [`Store::agenda`](crate::db::store::Store::agenda).
    pub(super) agenda: Agenda,
    /// Running compactions, with their keyspaces.
    compactions: Vec<(u32, Task)>,
    /// Whether a survey of deleted bytes is running or waits to run.
    pub(super) surveying: bool,
    /// Whether one of them is relief.
    pub(super) relieving: bool,
    /// Compactions that go on where they were left, before others begin, with their keyspaces.
    /// They claim their tables as running ones do.
    unfinished_tasks: Vec<(u32, Task)>,
    /// Work that was begun and has not ended, including work that no thread has taken yet and
    /// helping threads. Idle jobs in the executor's queue do not count: they may stand behind
    /// another store's compaction.
    pub(super) unfinished: usize,
    /// Work that no thread has taken, by the number of its job.
    pub(super) queued: Vec<(u64, Work)>,
    pub(super) next_job: u64,
    /// Keyspaces that callers have reserved: only relief may begin there.
    pub(super) reserved: Vec<u32>,
    /// The last failure of each kind of work that has not succeeded since.
    pub(super) failed: BTreeMap<WorkKind, Failure>,
    /// Counts failures, so that a waiter can recognise new ones.
    pub(super) failures: u64,
}

/// A kind of work: it fails and backs off as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkKind {
    Flush,
    /// Of one keyspace.
    Compaction(u32),
    /// Never fails.
    Survey,
}

pub(super) struct Failure {
    pub(super) error: Error,
    at: Instant,
    /// Failures of this kind in a row before this one.
    before: u32,
    pub(super) number: u64,
    /// Whether the work does not back off: a caller waits for it.
    pub(super) forgiven: bool,
    /// Whether a caller had requested the work: it is not tried again by itself.
    pub(super) was_requested: bool,
}

/// One piece of background work.
pub(super) enum Work {
    Flush,
    /// Finds what range deletes have deleted.
    Survey,
    Compaction(u32, Task),
    /// Relief: a compaction of level 0 that writers may have to wait for.
    Relief(u32, Task),
    /// Requested by a caller that waits for the result.
    Requested(u32, Task, Request, RequestResult),
}

/// What to do with the tables of a requested task.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Compact,
    /// Gives a single table a new filter, by the options in force when the work begins.
    Refilter,
}

/// Where requested work leaves its result: the bytes of tables it wrote. `None` until it has ended.
pub(super) type RequestResult = Arc<Mutex<Option<Result<u64>>>>;

/// What a caller waits for. Failures of other work do not end its wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    Flush,
    /// Compactions of any keyspace. One that fails makes no writer wait any more.
    Compaction,
    CompactionOf(u32),
    /// The end of all flushes and compactions.
    All,
    /// Requested work, whose `RequestResult` says how it ended.
    Request,
}

impl Work {
    pub(super) fn kind(&self) -> WorkKind {
        match self {
            Work::Flush => WorkKind::Flush,
            Work::Survey => WorkKind::Survey,
            Work::Compaction(keyspace, _) | Work::Relief(keyspace, _) | Work::Requested(keyspace, ..) => {
                WorkKind::Compaction(*keyspace)
            }
        }
    }

    pub(super) fn priority(&self) -> Priority {
        match self {
            Work::Flush => Priority::High,
            Work::Relief(..) => Priority::Medium,
            Work::Survey | Work::Compaction(..) | Work::Requested(..) => Priority::Low,
        }
    }
}

impl Jobs {
    pub(super) fn is_backing_off(&self, kind: WorkKind) -> bool {
        self.failed.get(&kind).is_some_and(|failure| !failure.forgiven && time::since(failure.at) < RETRY_AFTER)
    }

    /// After which time failed work is tried again if no caller does so first.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let after = |failure: &Failure| LONGEST_RETRY.min(RETRY_AFTER * 2_u32.saturating_pow(failure.before.min(20)));
        self.failed.values().map(after).min()
    }

    /// The keyspaces whose compactions fail.
    pub(super) fn failing(&self) -> impl Iterator<Item = u32> {
        self.failed.keys().filter_map(|kind| match kind {
            WorkKind::Compaction(keyspace) => Some(*keyspace),
            WorkKind::Flush | WorkKind::Survey => None,
        })
    }

    /// Number of running compactions.
    pub(super) fn compaction_count(&self) -> usize {
        self.compactions.len()
    }

    /// Adds a running compaction, or a claim on tables that no compaction may take.
    pub(super) fn claim(&mut self, keyspace: u32, task: Task) {
        self.compactions.push((keyspace, task));
        self.agenda.touch([keyspace]);
    }

    /// Ends the claims of a keyspace for which `is_over`.
    pub(super) fn release(&mut self, keyspace: u32, is_over: impl Fn(&Task) -> bool) {
        self.compactions.retain(|(id, task)| *id != keyspace || !is_over(task));
        self.agenda.touch([keyspace]);
    }

    /// Has some kinds of failed work tried again at once. Until it succeeds, it goes on to fail.
    pub(super) fn forgive(&mut self, is_meant: impl Fn(&WorkKind) -> bool) {
        for (kind, failure) in self.failed.iter_mut().filter(|(kind, _)| is_meant(kind)) {
            failure.forgiven = true;
            if let WorkKind::Compaction(keyspace) = kind {
                self.agenda.touch([*keyspace]);
            }
        }
    }

    /// Whether work of a kind fails, and nobody has had it tried again since.
    pub(super) fn fails(&self, kind: WorkKind) -> bool {
        self.failed.get(&kind).is_some_and(|failure| !failure.forgiven)
    }

    /// Has the rest of a compaction begun as soon as one may begin.
    pub(super) fn claim_later(&mut self, keyspace: u32, task: Task) {
        self.unfinished_tasks.push((keyspace, task));
        self.agenda.touch([keyspace]);
    }

    /// Takes the rest of a compaction that may go on now.
    pub(super) fn take_unfinished(&mut self) -> Option<(u32, Task)> {
        let is_due = |(id, _): &(u32, Task)| !self.is_backing_off(WorkKind::Compaction(*id));
        let at = self.unfinished_tasks.iter().position(is_due)?;
        Some(self.unfinished_tasks.remove(at))
    }

    /// Running compactions of a keyspace, and those that go on before others begin.
    pub(super) fn running(&self, keyspace: u32) -> Vec<Task> {
        self.compactions
            .iter()
            .chain(&self.unfinished_tasks)
            .filter(|(id, _)| *id == keyspace)
            .map(|(_, task)| task.clone())
            .collect()
    }

    /// Removes work from the lists of running work.
    pub(super) fn remove(&mut self, work: &Work) {
        match work {
            Work::Flush => self.flushing = false,
            Work::Survey => self.surveying = false,
            Work::Compaction(keyspace, task) | Work::Relief(keyspace, task) | Work::Requested(keyspace, task, ..) => {
                self.release(*keyspace, |running| running == task);
            }
        }
        self.relieving &= !matches!(work, Work::Relief(..));
    }

    pub(super) fn ended(&mut self, work: &Work, result: &Result<u64>) {
        // Its keyspace is asked again, also for what a failure rules out.
        self.remove(work);
        match result {
            Ok(_) => drop(self.failed.remove(&work.kind())),
            Err(error) => {
                self.failures += 1;
                let before = self.failed.get(&work.kind()).map_or(0, |last| last.before.saturating_add(1));
                let (error, at, number) = (error.clone(), time::now(), self.failures);
                let was_requested = matches!(work, Work::Requested(..));
                let failure = Failure { error, at, before, number, forgiven: false, was_requested };
                self.failed.insert(work.kind(), failure);
            }
        }
    }
}
