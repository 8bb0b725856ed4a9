//! Making writes durable: one sync serves all writes before it.

use std::sync::atomic::Ordering;

use super::store::Store;
use crate::error::{IoContext, Result};
use crate::format::key::SeqNo;

impl Store {
    /// Makes everything acknowledged so far durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.check_writable()?;
        self.sync_through(self.visible.load(Ordering::Acquire))
    }

    /// Makes every write up to `seqno` durable.
    ///
    /// Whoever comes while a sync runs waits for its end, and then one sync serves all of those. A sync that failed is never
    /// repeated: the store is poisoned.
    pub(super) fn sync_through(&self, seqno: SeqNo) -> Result<()> {
        let is_durable = || self.durable.load(Ordering::Acquire) >= seqno;
        if is_durable() {
            return Ok(());
        }
        let syncing = self.syncing.lock();
        if is_durable() {
            return Ok(());
        }
        self.check_poison()?;
        // Every write up to here is in one of the logs below.
        let target = self.visible.load(Ordering::Acquire);
        self.sync_logs().map_err(|error| self.poison(error))?;
        self.durable.fetch_max(target, Ordering::AcqRel);
        drop(syncing);
        self.mark_synced()
    }

    fn sync_logs(&self) -> Result<()> {
        let logs = self.logs.lock().clone();
        if logs.iter().any(|log| !log.name_durable.load(Ordering::Acquire)) {
            self.fs.sync_dir(&self.dir).during("sync", &self.dir)?;
            for log in &logs {
                log.name_durable.store(true, Ordering::Release);
            }
        }
        // Oldest first, so that what is durable is a prefix at every moment.
        for log in &logs {
            log.file.sync().during("sync", &log.path)?;
        }
        // Sealed logs are done with; the last one goes on growing.
        if let Some(current) = logs.last() {
            self.logs.lock().retain(|log| log.number >= current.number);
        }
        Ok(())
    }

    /// Leaves proof in the log that everything before is durable, unless it is there or a later record will carry it: damage to
    /// synced records, and a manifest that has lost its last edits, are then told from what a power cut leaves.
    pub(super) fn mark_synced(&self) -> Result<()> {
        // Whoever holds the lock is about to append a record that carries the proof, or waits for room, for which nobody who
        // synced should wait.
        let Some(mut commit) = self.commit.try_lock() else { return Ok(()) };
        let durable = self.durable.load(Ordering::Acquire);
        match commit.as_mut() {
            Some(commit) if commit.log.next() == durable + 1 && commit.log.stated() < durable => {
                commit.log.append_marker(durable).map_err(|error| self.poison(error))
            }
            _ => Ok(()),
        }
    }
}
