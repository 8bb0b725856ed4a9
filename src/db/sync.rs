//! Making writes durable: one sync serves all writes before it (see `turns`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::background::Waiting;
use super::logs::LogFile;
use super::stalls::Cause;
use super::store::Store;
use super::turns::Lead;
use crate::error::{IoContext, Result};
use crate::format::key::SeqNo;
use crate::tree::manifest::VersionEdit;
use crate::write::wal::SyncedLog;

impl Store {
    /// Makes everything acknowledged so far durable.
    pub(super) fn sync(self: &Arc<Self>) -> Result<()> {
        self.gate.check_writable()?;
        self.sync_through(self.sequence.visible())
    }

    /// Makes every write up to `seqno` durable. A sync that failed is never repeated: the store is poisoned.
    pub(super) fn sync_through(self: &Arc<Self>, seqno: SeqNo) -> Result<()> {
        let is_durable = || self.sequence.durable() >= seqno;
        if is_durable() {
            return Ok(());
        }
        match self.syncing.wait(is_durable) {
            Some(lead) => self.lead_sync(lead),
            None => Ok(()),
        }
    }

    fn lead_sync(self: &Arc<Self>, mut lead: Lead<'_>) -> Result<()> {
        self.gate.check_poison()?;
        self.await_recovered()?;
        lead.begin();
        // Every write up to here is in one of the logs below.
        let target = self.sequence.visible();
        let logs = self.sync_logs().map_err(|error| self.poison(error))?;
        self.name_synced_log(&logs, target)?;
        self.sequence.note_synced(target);
        drop(lead);
        self.mark_synced()
    }

    /// Waits until what was recovered on opening is in tables. No sync of the logs it came from would make it durable: a sync that
    /// failed before the last process ended may have left it in memory, and clean for all that the system knows.
    pub(super) fn await_recovered(self: &Arc<Self>) -> Result<()> {
        let is_flushed = || self.sequence.is_recovery_flushed();
        if is_flushed() {
            return Ok(());
        }
        self.stalls.measure(Cause::Flush, || self.wait_for_progress(Waiting::Flush, |_| is_flushed()))
    }

    /// Syncs the logs that may need it, and returns them, oldest first.
    fn sync_logs(&self) -> Result<Vec<LogFile>> {
        let logs = self.logs.unsynced();
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
            self.logs.note_synced(current.number);
        }
        Ok(logs)
    }

    /// Has the manifest name the log that holds `target`, which is durable, before anybody is told
    /// so: without that log the store is damaged from now on. One edit does for all syncs of a log.
    /// It comes after the first of them, so that a log that is named has at least its header.
    ///
    /// On a nearly full disk there is less proof, and no less data: an edit that failed would put
    /// an end to all writes.
    fn name_synced_log(&self, logs: &[LogFile], target: SeqNo) -> Result<()> {
        let Some(log) = logs.iter().rfind(|log| log.first <= target) else { return Ok(()) };
        let is_needless = log.is_named.load(Ordering::Acquire) || self.sequence.flushed() >= target;
        if is_needless || self.fs.free_space(&self.dir).is_ok_and(|free| free < self.catalog.room_for_edit()) {
            return Ok(());
        }
        let synced_log = Some(SyncedLog { number: log.number, seqno: target });
        self.install(VersionEdit { synced_log, ..VersionEdit::default() }, |_| ())?;
        log.is_named.store(true, Ordering::Release);
        Ok(())
    }

    /// Leaves proof in the log that everything before is durable, unless it is there or a later record will carry it: damage to
    /// synced records, and a manifest that has lost its last edits, are then told from what a power cut leaves.
    pub(super) fn mark_synced(&self) -> Result<()> {
        // Whoever holds the lock is about to append a record that carries the proof, or waits for room, for which nobody who
        // synced should wait.
        let Some(mut commit) = self.commit.try_lock() else { return Ok(()) };
        let durable = self.sequence.durable();
        match commit.as_mut() {
            // A store that only rests begins no log for it: what was recovered has its proof, or is in tables.
            Some(commit) if commit.log.is_none() && durable <= self.sequence.recovered() => Ok(()),
            Some(commit) if commit.next() == durable + 1 && commit.stated() < durable => self.append_marker(commit),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::exec::SteppedExecutor;
    use crate::options::Options;
    use crate::vfs::{Fault, FaultMode, SimFileSystem};

    #[test]
    fn a_failed_sync_refuses_all_who_wait_for_it_and_every_later_one() {
        let fs = SimFileSystem::new();
        let options = Options::new().file_system(Arc::new(fs.clone())).memtable_size(64 << 10);
        let db = options.executor(Arc::new(SteppedExecutor::new())).open("/db").unwrap();
        let store = db.store();
        let seqno = db.put("k", "v").unwrap();
        let lead = store.syncing.wait(|| false).unwrap();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| store.sync_through(seqno))).collect();
            while store.syncing.lock().waiting < 5 {
                std::thread::yield_now();
            }
            // The disk fails once, and is well again.
            fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: false }));
            assert!(matches!(store.lead_sync(lead), Err(Error::Io { .. })));
            for waiting in waiting {
                assert!(matches!(waiting.join().unwrap(), Err(Error::Poisoned(_))));
            }
        });
        assert!(matches!(db.sync(), Err(Error::Poisoned(_))));
        assert!(matches!(db.put("k", "w"), Err(Error::Poisoned(_))));
        assert_eq!((db.synced_seqno(), store.syncing.lock().waiting), (0, 0));
    }
}
