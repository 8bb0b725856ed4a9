//! Making writes durable: one sync serves all writes before it (see `turns`).
//!
//! A sync covers every log that may hold writes which are not durable, oldest first, so that the
//! durable writes are always a prefix. Before the first sync of a log is acknowledged, an edit
//! names the log in the manifest. From then on a store without that log counts as damaged.

use std::sync::Arc;

use super::logs::LiveLog;
use super::stalls::Cause;
use super::turns::Lead;
use crate::db::store::Store;
use crate::db::work::background::Waiting;
use crate::error::{IoContext, Result};
use crate::format::key::SeqNo;
use crate::log::wal::SyncedLog;
use crate::sync::atomic::Ordering;
use crate::tree::manifest::VersionEdit;

impl Store {
    /// Makes every acknowledged write durable, but for those that the log does not store.
    pub(crate) fn sync(self: &Arc<Self>) -> Result<()> {
        self.gate.check_writable()?;
        self.timed("sync", None, || self.sync_through(self.sequence.logged()))
    }

    /// Makes every write up to `seqno` durable. A failed sync is never repeated: it poisons the
    /// store.
    pub(crate) fn sync_through(self: &Arc<Self>, seqno: SeqNo) -> Result<()> {
        let is_durable = || self.sequence.durable() >= seqno;
        if is_durable() {
            return Ok(());
        }
        match self.writer.syncing.wait(is_durable) {
            Some(lead) => self.lead_sync(lead),
            None => Ok(()),
        }
    }

    fn lead_sync(self: &Arc<Self>, mut lead: Lead<'_>) -> Result<()> {
        self.gate.check_poison()?;
        self.await_recovered()?;
        self.sync_in_turn(&mut lead)?;
        drop(lead);
        self.mark_synced()
    }

    /// Syncs what the logs hold. What opening recovered must be durable.
    pub(super) fn sync_in_turn(&self, lead: &mut Lead<'_>) -> Result<()> {
        self.gate.check_poison()?;
        lead.begin();
        // Every write up to here is in one of the logs below.
        let target = self.sequence.logged();
        let logs = self.sync_logs().map_err(|error| self.poison(error))?;
        self.name_synced_log(&logs, target)?;
        self.sequence.note_synced(target);
        Ok(())
    }

    /// Waits until tables hold the entries recovered on opening, unless the logs prove that these
    /// are durable. Syncing their old logs would not make them durable: a sync that failed in an
    /// earlier process may have left their pages in memory but marked clean by the system.
    pub(crate) fn await_recovered(self: &Arc<Self>) -> Result<()> {
        let is_durable = || self.sequence.is_recovery_durable();
        if is_durable() {
            return Ok(());
        }
        self.writer.stalls.measure(Cause::Flush, || self.wait_for_progress(Waiting::Flush, is_durable))
    }

    /// Syncs the logs that may need it, and returns them, oldest first.
    fn sync_logs(&self) -> Result<Vec<LiveLog>> {
        let logs = self.writer.logs.unsynced();
        if logs.iter().any(|log| !log.name_durable.load(Ordering::Acquire)) {
            self.fs().sync_dir(self.dir()).during("sync", self.dir())?;
            for log in &logs {
                log.name_durable.store(true, Ordering::Release);
            }
        }
        // Oldest first, so that the durable writes are always a prefix.
        for log in &logs {
            log.file.sync().during("sync", &log.path)?;
        }
        // If the lock file is gone, another process may have recovered without these writes.
        self.check_lock()?;
        // Sealed logs are synced for good; the last one goes on growing.
        if let Some(current) = logs.last() {
            self.writer.logs.note_durable_before(current.number);
        }
        Ok(logs)
    }

    /// Names the log that holds `target` in the manifest, before the sync is acknowledged: from
    /// then on, a store without that log is damaged. One edit serves all syncs of a log. It follows
    /// the first sync, so that a named log has at least its header.
    ///
    /// On a nearly full disk the edit is skipped, as its failure would stop all writes. The store
    /// then has less proof, but no less data.
    fn name_synced_log(&self, logs: &[LiveLog], target: SeqNo) -> Result<()> {
        let Some(log) = logs.iter().rfind(|log| log.first <= target) else { return Ok(()) };
        let is_needless = log.is_named.load(Ordering::Acquire) || self.sequence.flushed() >= target;
        if is_needless || self.check_ample_means(0).is_err() {
            return Ok(());
        }
        let synced_log = Some(SyncedLog { number: log.number, seqno: target });
        self.install(VersionEdit { synced_log, ..VersionEdit::default() }, |_| ())?;
        log.is_named.store(true, Ordering::Release);
        Ok(())
    }

    /// Appends proof to the log that all earlier writes are durable, unless it is there or a later
    /// record will carry it. After a power cut, it exposes damage to synced records and a manifest
    /// that has lost its last edits.
    pub(crate) fn mark_synced(&self) -> Result<()> {
        // The lock's holder is about to append a record that carries the proof, or waits for space,
        // which no synced writer should wait for.
        let Some(mut commit) = self.writer.commit.try_lock() else { return Ok(()) };
        let durable = self.sequence.durable();
        match commit.as_mut() {
            // An idle store begins no log for it: recovered entries have their proof, or are in
            // tables.
            Some(commit) if commit.log.is_none() && durable <= self.sequence.recovered() => Ok(()),
            Some(commit) if commit.next() == durable + 1 && commit.stated() < durable => self.append_marker(commit),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::error::Error;
    use crate::exec::SteppedExecutor;
    use crate::options::Options;
    use crate::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};

    #[test]
    fn a_synced_write_fails_if_the_lock_file_was_removed() {
        let fs = SimFileSystem::new();
        let open = || Options::new().file_system(Arc::new(fs.clone())).memtable_size(64 << 10).open("/db");
        let db = open().unwrap();
        db.put("a", "1").unwrap();
        db.sync().unwrap();
        fs.remove(Path::new("/db/LOCK")).unwrap();
        let other = open().unwrap();
        db.put("b", "2").unwrap();
        assert!(matches!(db.sync(), Err(Error::Io { .. })));
        assert!(matches!(db.put("c", "3"), Err(Error::Poisoned(_))));
        assert!(db.close().is_err() && other.get("a").unwrap().is_some() && other.close().is_ok());
    }

    #[test]
    fn a_failed_sync_fails_all_its_waiters_and_every_later_sync() {
        let fs = SimFileSystem::new();
        let options = Options::new().file_system(Arc::new(fs.clone())).memtable_size(64 << 10);
        let db = options.executor(Arc::new(SteppedExecutor::new())).open("/db").unwrap();
        let store = db.store();
        let seqno = db.put("k", "v").unwrap();
        let lead = store.writer.syncing.wait(|| false).unwrap();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| store.sync_through(seqno))).collect();
            while store.writer.syncing.lock().waiting < 5 {
                std::thread::yield_now();
            }
            // The disk fails once, then recovers.
            fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: false }));
            assert!(matches!(store.lead_sync(lead), Err(Error::Io { .. })));
            for waiting in waiting {
                assert!(matches!(waiting.join().unwrap(), Err(Error::Poisoned(_))));
            }
        });
        assert!(matches!(db.sync(), Err(Error::Poisoned(_))));
        assert!(matches!(db.put("k", "w"), Err(Error::Poisoned(_))));
        assert_eq!((db.synced_seqno(), store.writer.syncing.lock().waiting), (0, 0));
    }

    #[test]
    fn a_sync_waits_until_tables_hold_what_was_recovered_and_begins_no_log() {
        let open = |fs: &SimFileSystem| {
            let options = Options::new().file_system(Arc::new(fs.clone())).memtable_size(64 << 10);
            options.executor(Arc::new(SteppedExecutor::new())).open("/db").unwrap()
        };
        let fs = SimFileSystem::new();
        let db = open(&fs);
        db.put("k", "v").unwrap();
        let fs = fs.kill();
        let db = open(&fs);
        let logs = || fs.paths().into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "wal"));
        let found: Vec<_> = logs().collect();
        assert!(!db.store().sequence.is_recovery_durable());
        db.sync().unwrap();
        assert!(db.store().sequence.is_recovery_durable());
        assert!(logs().all(|log| found.contains(&log)), "the store is idle");
        for seed in 0..20 {
            assert_eq!(open(&fs.crash(seed)).get("k").unwrap().as_deref(), Some(&b"v"[..]), "{seed}");
        }
    }
}
