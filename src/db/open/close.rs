//! Closing a store.
//!
//! ```text
//! no more operations → last flush → no more work → janitor and log end → lock released
//! ```
//!
//! Every caller waits for the end and gets its result. Nothing removes or writes a file after the
//! lock is released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::db::store::Store;
use crate::db::work::background::Waiting;
use crate::error::{Error, Result};
use crate::tree::manifest::VersionEdit;

impl Store {
    /// Closes the store once. Every caller waits for the end and gets its result.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        let shut_down = || {
            // After a panic the store keeps its lock until it is dropped: background work may still
            // be writing.
            let panicked = |_| Err(self.poison(Error::invalid("closing the store panicked; this is a bug in tamis")));
            catch_unwind(AssertUnwindSafe(|| self.shut_down())).unwrap_or_else(panicked)
        };
        let result = self.gate.close_once(shut_down);
        // Not within: a listener may close the store, too.
        self.events().finish();
        result
    }

    fn shut_down(self: &Arc<Self>) -> Result<()> {
        let sealed = self.end_writes();
        if self.gate.is_read_only() {
            self.following.end();
            return Ok(());
        }
        let flushed = sealed.and_then(|()| self.await_last_flush());
        self.stop_background();
        let flushed = flushed.and_then(|()| self.store_time());
        self.tables.janitor().stop();
        self.remove_stats_page();
        let log_ended = self.end_log(flushed.is_ok());
        self.shape.catalog().close();
        self.leave_environment();
        self.gate.release_lock();
        flushed.and(log_ended)
    }

    /// Refuses operations from now on, and seals the memtable, which holds every acknowledged write
    /// that is in no table. Fails if the store is poisoned.
    fn end_writes(self: &Arc<Self>) -> Result<()> {
        // The flag first: writers that wait for room leave, whatever keeps it from them.
        self.gate.shut();
        self.workers.wake();
        let mut commit = self.writer.lock();
        self.gate.check_poison()?;
        if let Some(commit) = commit.as_mut()
            && !commit.memtable.is_empty()
        {
            self.rotate(commit)?;
        }
        Ok(())
    }

    fn await_last_flush(self: &Arc<Self>) -> Result<()> {
        self.wait_for_progress(Waiting::Flush, || self.shape.view().sealed.is_empty())?;
        self.gate.check_poison()
    }

    /// Stores the latest time by which a read may have found something expired.
    fn store_time(&self) -> Result<()> {
        let mark = self.clock.mark();
        if !self.clock.has_deadlines() || mark <= self.shape.catalog().lock()?.state.expired_by {
            return Ok(());
        }
        self.install(VersionEdit { expired_by: Some(mark), ..VersionEdit::default() }, |_| ())
    }

    fn end_log(self: &Arc<Self>, is_flushed: bool) -> Result<()> {
        let Some(mut commit) = self.writer.lock().take() else { return Ok(()) };
        if is_flushed {
            // All entries are in tables. A final marker in the log says so, and exposes a manifest
            // that has lost its last edits.
            if self.shape.catalog().has_new_manifest() {
                let _ = self.append_marker(&mut commit);
            }
            return Ok(());
        }
        if self.gate.is_poisoned() {
            return Ok(());
        }
        // The flush failed: at least make the log durable. This fails while recovered entries wait
        // for their flush.
        self.sync_through(self.sequence.logged())?;
        self.append_marker(&mut commit)
    }
}
