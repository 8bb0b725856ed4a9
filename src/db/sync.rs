//! Making writes durable: one sync serves all writes before it.
//!
//! Whoever finds nobody syncing leads; all others wait, and the next sync serves everybody who came meanwhile. Those that a sync has
//! served come back with their next writes only some microseconds after it. So a leader waits that long for as many as the last sync
//! served, before it begins: otherwise half of the writers would sync in turn with the other half.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::background::Waiting;
use super::store::Store;
use crate::error::{IoContext, Result};
use crate::format::key::SeqNo;

/// How long a leader waits for others: a small part of what a sync takes.
const GRACE: Duration = Duration::from_micros(40);

/// The turns of those who want to sync.
#[derive(Default)]
pub(super) struct Syncing {
    turn: Mutex<Turn>,
    /// Notified when a sync ends.
    ended: Condvar,
}

#[derive(Default)]
struct Turn {
    /// Whether somebody syncs, or is about to.
    led: bool,
    /// How many came since the last sync began, the leader included.
    waiting: usize,
    /// How many the last sync served.
    served: usize,
}

/// The leader's right, given up however the sync ends.
struct Lead<'a>(&'a Syncing);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.turn.lock().led = false;
        self.0.ended.notify_all();
    }
}

impl Syncing {
    /// Waits until `done`, or until it is this thread's turn to lead.
    fn wait(&self, done: impl Fn() -> bool) -> Option<Lead<'_>> {
        let mut turn = self.turn.lock();
        turn.waiting += 1;
        loop {
            if done() {
                return None;
            }
            if !turn.led {
                turn.led = true;
                return Some(Lead(self));
            }
            self.ended.wait(&mut turn);
        }
    }
}

impl Lead<'_> {
    /// Lets others come, who most likely will. Everybody who has written by then is served by this sync.
    fn gather(&self) {
        let mut start = None;
        loop {
            let mut turn = self.0.turn.lock();
            let late = || start.is_some_and(|start: Instant| start.elapsed() >= GRACE);
            if turn.waiting >= turn.served || late() {
                turn.served = std::mem::take(&mut turn.waiting);
                return;
            }
            drop(turn);
            start.get_or_insert_with(Instant::now);
            std::thread::yield_now();
        }
    }
}

impl Store {
    /// Makes everything acknowledged so far durable.
    pub(super) fn sync(self: &Arc<Self>) -> Result<()> {
        self.check_writable()?;
        self.sync_through(self.visible.load(Ordering::Acquire))
    }

    /// Makes every write up to `seqno` durable. A sync that failed is never repeated: the store is poisoned.
    pub(super) fn sync_through(self: &Arc<Self>, seqno: SeqNo) -> Result<()> {
        let is_durable = || self.durable.load(Ordering::Acquire) >= seqno;
        if is_durable() {
            return Ok(());
        }
        let Some(lead) = self.syncing.wait(is_durable) else { return Ok(()) };
        self.check_poison()?;
        self.await_recovered()?;
        lead.gather();
        // Every write up to here is in one of the logs below.
        let target = self.visible.load(Ordering::Acquire);
        self.sync_logs().map_err(|error| self.poison(error))?;
        self.durable.fetch_max(target, Ordering::AcqRel);
        drop(lead);
        self.mark_synced()
    }

    /// Waits until what was recovered on opening is in tables. No sync of the logs it came from would make it durable: a sync that
    /// failed before the last process ended may have left it in memory, and clean for all that the system knows.
    pub(super) fn await_recovered(self: &Arc<Self>) -> Result<()> {
        let is_flushed = || self.flushed.load(Ordering::Acquire) >= self.recovered;
        if is_flushed() {
            return Ok(());
        }
        self.wait_for_progress(Waiting::Flush, |_| is_flushed())
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
            // A store that only rests begins no log for it: what was recovered has its proof, or is in tables.
            Some(commit) if commit.log.is_none() && durable <= self.recovered => Ok(()),
            Some(commit) if commit.next() == durable + 1 && commit.stated() < durable => self.append_marker(commit),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use super::*;

    const WRITES: u64 = if cfg!(miri) { 20 } else { 1000 };

    #[test]
    fn every_write_is_served_by_one_sync_at_a_time_that_began_after_it() {
        let syncing = Syncing::default();
        let (written, durable, running) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let write = || {
            let mine = written.fetch_add(1, Ordering::AcqRel) + 1;
            if let Some(lead) = syncing.wait(|| durable.load(Ordering::Acquire) >= mine) {
                lead.gather();
                assert!(!running.swap(true, Ordering::AcqRel));
                let target = written.load(Ordering::Acquire);
                std::thread::yield_now();
                assert!(running.swap(false, Ordering::AcqRel));
                durable.fetch_max(target, Ordering::AcqRel);
            }
            assert!(durable.load(Ordering::Acquire) >= mine);
        };
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| (0..WRITES).for_each(|_| write()));
            }
        });
        assert!(!syncing.turn.lock().led);
    }

    #[test]
    fn lead_that_ends_without_a_sync_goes_to_the_next() {
        let syncing = Syncing::default();
        let lead = syncing.wait(|| false).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| syncing.wait(|| false).is_some());
            while syncing.turn.lock().waiting < 2 {
                std::thread::yield_now();
            }
            drop(lead);
            assert!(next.join().unwrap());
        });
    }
}
