//! Closing a store.
//!
//! ```text
//! no more operations → last flush → no more work → last sync
//! → janitor and log end → lock released
//! ```
//!
//! A memtable whose logs are short is not flushed: the next opening reads them, and goes on filling
//! the memtable. Otherwise every process that writes one entry would make a table of it. The logs
//! are synced instead, and the manifest names the last entry.
//!
//! Every caller waits for the end and gets its result. Nothing removes or writes a file after the
//! lock is released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::db::store::Store;
use crate::db::work::background::Waiting;
use crate::db::write::commit::Commit;
use crate::error::{Error, Result};
use crate::log::wal::SyncedLog;
use crate::tree::manifest::VersionEdit;

impl Store {
    /// Closes the store once. Every caller waits for the end and gets its result.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        self.gate.check_process()?;
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
        let flushed = flushed.and_then(|()| self.end_manifest());
        self.tables.janitor().stop();
        self.remove_stats_page();
        let log_ended = self.end_log(flushed.is_ok());
        self.shape.catalog().close();
        self.leave_environment();
        self.gate.release_lock();
        flushed.and(log_ended)
    }

    /// Refuses operations from now on, and seals the memtable, which holds every acknowledged write
    /// that is in no table, unless it may stay in the logs. Fails if the store is poisoned.
    fn end_writes(self: &Arc<Self>) -> Result<()> {
        // The flag first: writers that wait for room leave, whatever keeps it from them.
        self.gate.shut();
        self.workers.wake();
        let mut commit = self.writer.lock();
        self.gate.check_poison()?;
        if let Some(commit) = commit.as_mut()
            && !commit.memtable.is_empty()
        {
            // The numbers of what the log does not store count as used, too.
            self.append_unlogged(commit)?;
            if !self.may_stay_in_logs(commit)? {
                self.rotate(commit)?;
            }
        }
        Ok(())
    }

    /// Whether the active memtable need not be flushed when the store is closed.
    fn may_stay_in_logs(&self, commit: &Commit) -> Result<bool> {
        let oldest_log = self.shape.catalog().lock()?.state.min_log;
        let view = self.shape.view();
        let is_unlogged = |(id, _): &(u32, u64)| view.tree(*id).is_some_and(|tree| !tree.options.wal);
        Ok(view.sealed.is_empty()
            && self.writer.logs().are_short_from(oldest_log, self.options.memtable_size)
            && !(self.writer.has_unlogged() && commit.memtable.keyspaces().iter().any(is_unlogged)))
    }

    fn await_last_flush(self: &Arc<Self>) -> Result<()> {
        self.wait_for_progress(Waiting::Flush, || self.shape.view().sealed.is_empty())?;
        self.gate.check_poison()
    }

    /// Makes all entries durable. Stores the last one that is in a log only, so that its loss is
    /// damage, and the latest time by which a read may have found something expired.
    fn end_manifest(self: &Arc<Self>) -> Result<()> {
        self.sync_through(self.sequence.logged())?;
        let (last, mark) = (self.sequence.logged(), self.clock.mark());
        let (synced, expired_by) = {
            let state = &self.shape.catalog().lock()?.state;
            (state.durable_seqno(), state.expired_by)
        };
        let unnamed = self.writer.logs().part(last).filter(|_| last > synced && self.check_ample_means(0).is_ok());
        let edit = VersionEdit {
            synced_log: unnamed.map(|part| SyncedLog { number: part.number, seqno: last }),
            expired_by: Some(mark).filter(|mark| self.clock.has_deadlines() && *mark > expired_by),
            ..VersionEdit::default()
        };
        if edit.synced_log.is_none() && edit.expired_by.is_none() {
            return Ok(());
        }
        self.install(edit, |_| ())
    }

    fn end_log(self: &Arc<Self>, is_flushed: bool) -> Result<()> {
        let Some(mut commit) = self.writer.lock().take() else { return Ok(()) };
        if is_flushed {
            // All entries are durable. A final marker in the log says so, and exposes a manifest
            // that has lost its last edits. No log is begun for entries that stay in older ones.
            let is_log_ended = if commit.memtable.is_empty() {
                !self.shape.catalog().has_new_manifest()
            } else {
                commit.states(self.sequence.durable())
            };
            if !is_log_ended {
                let _ = self.append_marker(&mut commit);
            }
            commit.release_space();
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
