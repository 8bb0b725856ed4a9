//! Background work: flushes, compactions, and the upkeep of range deletes.
//!
//! `schedule` begins what the `agenda` finds due and `background` counts what runs; `flush`,
//! `compact`, `covered` and `refilter` do it; `throttle` slows writers down when it falls behind.
//!
//! Of writers, workers ask three things: to seal a memtable (`Store::rotate`), to make the log
//! durable (`Store::sync_through`), and to note in the log that it is (`Store::mark_synced`).

mod agenda;
pub(crate) mod background;
mod compact;
mod covered;
mod flush;
mod progress;
mod quiet;
pub(crate) mod refilter;
mod schedule;
pub(crate) mod throttle;
mod upkeep;

use std::collections::BTreeMap;
use std::time::Duration;

use self::background::{Background, WorkKind};
use self::throttle::Throttle;
use self::upkeep::RangeUpkeep;
use crate::error::{Error, Result};
use crate::rate::{RateLimit, RateLimiter};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::tree::compaction::task::Task;

/// What runs in the background of a store, what waits to run, and how far it is behind.
pub(crate) struct Workers {
    background: Background,
    throttle: Throttle,
    rate: RateLimiter,
    /// Held during the upkeep of range deletes: what it knows, by keyspace.
    tidying: Mutex<BTreeMap<u32, RangeUpkeep>>,
    /// Whether there may be something to do for it since it last began.
    tidy_wanted: AtomicBool,
}

impl Workers {
    pub(crate) fn new(rate: RateLimiter) -> Workers {
        Workers {
            background: Background::default(),
            throttle: Throttle::default(),
            rate,
            tidying: Mutex::default(),
            tidy_wanted: AtomicBool::new(false),
        }
    }

    /// How far compactions are behind, from 0 to 1. Writes stop at 1.
    pub(crate) fn pressure(&self) -> f64 {
        self.throttle.pressure()
    }

    /// How long a write of `bytes` bytes must wait now; see [`Throttle::charge`].
    #[inline]
    pub(crate) fn charge(&self, bytes: usize, filled: impl FnOnce() -> f64) -> Duration {
        self.throttle.charge(bytes, filled)
    }

    /// The limit in force, in bytes per second, and how long work has waited for it.
    pub(crate) fn rate(&self) -> (Option<f64>, Duration) {
        self.rate.stats()
    }

    pub(crate) fn set_rate(&self, limit: RateLimit) {
        self.rate.set(limit);
    }

    /// Whether the last flush has failed.
    pub(crate) fn fails_to_flush(&self) -> bool {
        self.background.lock().failed.contains_key(&WorkKind::Flush)
    }

    /// Whether background work is to end as soon as it can.
    pub(crate) fn is_stopping(&self) -> bool {
        self.background.stopping.load(Ordering::Acquire)
    }

    /// Wakes all that wait for background work: something that they look at has changed.
    pub(crate) fn wake(&self) {
        // They look under this lock: they either see it or are woken.
        drop(self.background.lock());
        self.background.done.notify_all();
    }

    /// Begins a job, for whose end closing waits. Fails if the store is closing.
    pub(crate) fn begin_job(&self) -> Result<JobGuard<'_>> {
        let mut jobs = self.background.lock();
        if self.is_stopping() {
            return Err(Error::Closed);
        }
        jobs.unfinished += 1;
        Ok(self.guard_job())
    }

    /// Ends a job, counted already, when it is dropped.
    fn guard_job(&self) -> JobGuard<'_> {
        JobGuard(self)
    }

    /// A store that compacts nothing any more does not hold an automatic rate at its maximum.
    pub(crate) fn calm(&self) {
        self.rate.set_urgent(false);
    }

    /// Claims tables of a keyspace, so that no compaction takes them: those that `choose` returns,
    /// given the tasks that are running. None begins meanwhile.
    pub(crate) fn claim(&self, keyspace: u32, choose: impl FnOnce(&[Task]) -> Vec<Task>) -> Claims<'_> {
        let mut jobs = self.background.lock();
        let tasks = choose(&jobs.running(keyspace));
        tasks.iter().for_each(|task| jobs.claim(keyspace, task.clone()));
        Claims { workers: self, keyspace, tasks }
    }
}

/// Counts a job as ended, even if it panics.
pub(crate) struct JobGuard<'a>(&'a Workers);

impl Drop for JobGuard<'_> {
    fn drop(&mut self) {
        self.0.background.lock().unfinished -= 1;
        self.0.background.done.notify_all();
    }
}

/// While they live, no compaction takes these tables.
pub(crate) struct Claims<'a> {
    workers: &'a Workers,
    keyspace: u32,
    tasks: Vec<Task>,
}

impl Claims<'_> {
    pub(crate) fn tasks(&self) -> &[Task] {
        &self.tasks
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        if !self.tasks.is_empty() {
            let mut jobs = self.workers.background.lock();
            jobs.release(self.keyspace, |task| self.tasks.contains(task));
            drop(jobs);
            self.workers.background.done.notify_all();
        }
    }
}
