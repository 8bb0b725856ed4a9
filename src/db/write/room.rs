//! Room for a write in the memtable and the log, and the wait for it, without the commit lock.
//!
//! A memtable is full at the store's quota, which its environment may lower (`tenant`). The writer
//! that finds it full seals it. If too many memtables wait for their flush, or compactions are too
//! far behind, it waits first: for its own store, never for another.
//!
//! A [`Stillness`] keeps writes from memtables. An ingest needs that, since no memtable may hold
//! keys of its files, and so does a change of a keyspace's option `wal`, since none may hold any
//! entry.

use std::sync::Arc;

use super::commit::{Before, Commit, GroupLen, QueuedWrite};
use super::stalls::Cause;
use crate::db::store::Store;
use crate::db::work::background::Waiting;
use crate::db::work::throttle::MAX_SEALED;
use crate::error::Result;
use crate::log::wal;
use crate::report::event::StallCause;
use crate::sync::atomic::Ordering;

/// While it lives, no write goes to a memtable, and no thread holds the commit lock for it: writers
/// wait. What has it can wait for a flush, after which no memtable holds what it has sealed.
pub(crate) struct Stillness<'a>(&'a Arc<Store>);

impl<'a> Stillness<'a> {
    pub(crate) fn begin(store: &'a Arc<Store>) -> Stillness<'a> {
        let commit = store.writer.commit.lock();
        store.writer.queue.stillness.fetch_add(1, Ordering::Relaxed);
        drop(commit);
        Stillness(store)
    }
}

impl Drop for Stillness<'_> {
    fn drop(&mut self) {
        self.0.writer.queue.stillness.fetch_sub(1, Ordering::Relaxed);
        self.0.workers.wake();
    }
}

impl Store {
    #[inline]
    pub(super) fn has_room(&self, commit: &Commit, group: GroupLen) -> bool {
        commit.has_room(group, self.writer.seat.quota.limit(), wal::log_size(self.options.memtable_size))
    }

    /// Whether as many memtables wait for their flush as may. Over the budget of the environment, a
    /// store has no second full memtable.
    fn is_unflushed(&self) -> bool {
        let most = if self.writer.seat.quota.is_reduced() { 1 } else { MAX_SEALED };
        self.shape.view().sealed.len() >= most
    }

    fn is_uncompacted(&self) -> bool {
        self.workers.pressure() >= 1.0
    }

    /// Ensures that the memtable and the log have room for a group. Full ones are sealed, unless
    /// something must come before: then says what.
    #[inline]
    pub(super) fn find_room(self: &Arc<Self>, commit: &mut Commit, group: GroupLen) -> Result<Option<Before>> {
        self.gate.check_writable()?;
        if self.writer.queue.stillness.load(Ordering::Relaxed) == 0 && self.has_room(commit, group) {
            return Ok(None);
        }
        self.make_room(commit)
    }

    #[cold]
    fn make_room(self: &Arc<Self>, commit: &mut Commit) -> Result<Option<Before>> {
        if self.writer.queue.stillness.load(Ordering::Relaxed) > 0 {
            return Ok(Some(Before::Stillness));
        }
        if self.is_unflushed() {
            return Ok(Some(Before::Flush));
        }
        if self.is_uncompacted() {
            return Ok(Some(Before::Compaction));
        }
        self.writer.stalls.measure(Cause::Memtable, || self.rotate(commit))?;
        Ok(None)
    }

    /// Has failed work retried. A write to a keyspace that it has clogged is stopped for one more
    /// attempt, and fails with it; while that backs off, it fails at once.
    pub(crate) fn admit<I: Iterator<Item = u32>>(self: &Arc<Self>, keyspaces: impl FnOnce() -> I) -> Result<()> {
        match self.retry_failed(keyspaces) {
            None => Ok(()),
            Some((_, Some(failure))) => Err(failure),
            Some((keyspace, None)) => self.stop_for_clogged(keyspace),
        }
    }

    #[cold]
    fn stop_for_clogged(self: &Arc<Self>, keyspace: u32) -> Result<()> {
        let wait = || self.await_unclogged(keyspace);
        let stop = || self.report.notices().stop_writes(StallCause::Compaction, wait);
        self.writer.stalls.measure(Cause::Compaction, stop)
    }

    /// Waits, without the commit lock, until there may be room for a queued write, or another
    /// thread has committed it.
    pub(super) fn await_room(self: &Arc<Self>, before: Before, queued: &QueuedWrite) -> Result<()> {
        let wait = |waiting: Waiting, may_go_on: &dyn Fn() -> bool| {
            self.wait_for_progress(waiting, || may_go_on() || queued.is_done() || self.gate.check_open().is_err())
        };
        let stop = |cause: Cause, stall: StallCause, waiting: Waiting, may_go_on: &dyn Fn() -> bool| {
            self.writer.stalls.measure(cause, || self.report.notices().stop_writes(stall, || wait(waiting, may_go_on)))
        };
        match before {
            Before::Flush => stop(Cause::Flush, StallCause::Flush, Waiting::Flush, &|| !self.is_unflushed()),
            Before::Compaction => {
                stop(Cause::Compaction, StallCause::Compaction, Waiting::Compaction, &|| !self.is_uncompacted())
            }
            Before::Stillness => {
                let is_over = || self.writer.queue.stillness.load(Ordering::Relaxed) == 0;
                // What fails there is no failure of this write.
                self.writer.stalls.measure(Cause::Commit, || wait(Waiting::Request, &is_over))
            }
        }
    }
}
