//! The write path, from a batch to durable entries.
//!
//! `path` commits batches in groups, under the lock of `commit`; `in_place` changes a key that the
//! memtable has, under the same lock; `dropping` fails batches whose keyspace is gone; `room` makes
//! room for them; `logs` keeps the log files; `sync` and `turns` make them durable; `stalls` counts
//! how long writers wait.
//!
//! Of workers, writers ask five things: to begin what is due (`Store::schedule`), also what has
//! failed (`Store::retry_failed`), to wait for it (`Store::wait_for_progress`), also in a keyspace
//! in which it fails (`Store::await_unclogged`), and to run a job of an executor that runs none by
//! itself (`Store::step`).

mod checks;
pub(crate) mod commit;
mod dropping;
pub(crate) mod in_place;
pub(crate) mod logs;
pub(crate) mod path;
pub(crate) mod room;
pub(crate) mod stalls;
mod sync;
mod tenant;
mod turns;
mod wide;

use std::time::Duration;

use self::commit::{Commit, Queue};
use self::dropping::Dropping;
use self::logs::LiveLogs;
use self::stalls::{Cause, Stalls, WriteStalls};
use self::turns::{Lead, Syncing};
use super::locks::{LockRank, RankedGuard, RankedMutex};
use super::shape::view::ReadView;
use super::signal::Signal;
use super::transaction::retry::Retries;
use crate::environment::Seat;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The active memtable with its log, and the threads that write to it.
pub(crate) struct Writer {
    /// Held by the committing thread. `None` if the store is closed or read-only.
    commit: RankedMutex<Option<Commit>>,
    queue: Queue,
    logs: LiveLogs,
    syncing: Syncing,
    /// Says when the active memtable is full.
    seat: Seat,
    /// Whether a keyspace may have been without a log since the store was opened.
    has_unlogged: AtomicBool,
    /// Raised by 2 when a keyspace has begun or ceased to have a log, and when keyspaces have been
    /// dropped; odd while they are dropped. Changed under the commit lock.
    keyspaces: AtomicU64,
    /// Turns of writes that have met conflicts.
    retries: Retries,
    stalls: Stalls,
    /// Wakes readers of the change feed.
    signal: Signal,
}

impl Writer {
    /// The writer of a store with this view.
    pub(crate) fn new(commit: Option<Commit>, logs: LiveLogs, seat: Seat, view: &ReadView) -> Writer {
        Writer {
            commit: RankedMutex::new(LockRank::Commit, commit),
            queue: Queue::default(),
            logs,
            syncing: Syncing::default(),
            seat,
            has_unlogged: AtomicBool::new(view.trees.iter().any(|tree| !tree.options.wal)),
            keyspaces: AtomicU64::new(0),
            retries: Retries::default(),
            stalls: Stalls::default(),
            signal: Signal::default(),
        }
    }

    /// Takes the commit lock: no batch is committed meanwhile.
    pub(crate) fn lock(&self) -> RankedGuard<'_, Option<Commit>> {
        self.commit.lock()
    }

    pub(crate) fn logs(&self) -> &LiveLogs {
        &self.logs
    }

    /// Takes the turn to sync; waits for the thread that has it.
    pub(crate) fn lead_syncs(&self) -> Lead<'_> {
        self.syncing.lead()
    }

    /// The turns of writes that have met conflicts.
    pub(crate) fn retries(&self) -> &Retries {
        &self.retries
    }

    /// Runs `wait` and counts the time that it takes.
    pub(crate) fn measure<R>(&self, cause: Cause, wait: impl FnOnce() -> R) -> R {
        self.stalls.measure(cause, wait)
    }

    /// How long writes have waited, by cause.
    pub(crate) fn stalls(&self) -> WriteStalls {
        self.stalls.read()
    }

    /// Whether a keyspace may have been without a log since the store was opened.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.has_unlogged.load(Ordering::Acquire)
    }

    /// Notes that a keyspace may be without a log from now on.
    pub(crate) fn note_unlogged(&self) {
        self.has_unlogged.store(true, Ordering::Release);
    }

    /// Notes that a keyspace has begun or ceased to have a log. No memtable holds an entry of it.
    pub(crate) fn note_other_logging(&self) {
        let _commit = self.commit.lock();
        self.keyspaces.fetch_add(2, Ordering::Release);
    }

    /// What a write notes before it checks its keyspaces: they are checked again when it commits,
    /// if they have changed by then.
    #[inline]
    pub(crate) fn keyspaces_as_of(&self) -> u64 {
        self.keyspaces.load(Ordering::Acquire) & !1
    }

    /// Has writes to these keyspaces fail until the guard is dropped. The caller drops the
    /// keyspaces, and has the lock for that.
    pub(crate) fn begin_dropping(&self, ids: Vec<u32>) -> Dropping<'_> {
        let dropping = Dropping(self);
        dropping.note(ids);
        dropping
    }

    /// Wakes readers of the change feed.
    pub(crate) fn wake_readers(&self) {
        self.signal.wake();
    }

    /// Waits until something was written, for `timeout` at most, unless `is_ready`.
    pub(crate) fn await_write(&self, timeout: Duration, is_ready: impl Fn() -> bool) {
        self.signal.wait(timeout, is_ready);
    }
}
