//! Making writes durable: one sync serves all writes before it.
//!
//! Whoever finds nobody syncing leads; all others wait, and the next sync serves everybody who came meanwhile. Those that a sync has
//! served come back with their next writes only some time after it: to wake them takes tens of microseconds. So the next sync begins
//! when as many have come as the last one served and left waiting, or after a while without them. Otherwise half of the writers would
//! sync in turn with the other half. Whoever comes last leads, so that nobody is woken for that, and nobody spins. Writers that have
//! something else to do between their writes do not come back so soon: the more often they were waited for in vain, the longer nobody
//! waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::background::Waiting;
use super::stalls::Cause;
use super::store::{LogFile, Store};
use crate::error::{IoContext, Result};
use crate::format::key::SeqNo;
use crate::manifest::VersionEdit;
use crate::wal::SyncedLog;

/// A sync waits for others no longer than this, nor than the last one took: eight threads on two cores come back within 120 µs.
const GRACE: Duration = Duration::from_micros(200);

/// The turns of those who want to sync.
///
/// The lock and the condition are those of the standard library: there, one system call wakes all who wait, and they run side by side.
/// Handed on from one to the next, as fair locks do, eight writers on two cores came back in 104 µs, six of them in time.
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
    /// Threads that came since the last sync began, and have not left: [`Turn::enter`],
    /// [`Turn::leave`].
    waiting: usize,
    /// The next sync waits for so many.
    expected: usize,
    /// But not longer than this.
    until: Option<Instant>,
    /// Whether one of those who wait looks at the clock; never while somebody leads.
    watched: bool,
    /// Syncs that have begun.
    begun: u64,
    /// So many of the next syncs wait for nobody.
    hasty: u32,
    /// How many did so after the last one that waited in vain.
    doubts: u32,
}

/// Most syncs that wait for nobody before one tries again.
const MOST_HASTY: u32 = 63;

/// A thread's place among `Turn::waiting`: how many syncs had begun when it came. The next sync
/// takes the place away.
#[derive(Clone, Copy)]
struct Place(u64);

/// The leader's right, given up however the sync ends.
struct Lead<'a> {
    syncing: &'a Syncing,
    stage: Stage,
}

enum Stage {
    /// The leader has not begun its sync. A sync that began before, and failed, may have taken its
    /// place.
    Waiting(Place),
    Syncing {
        start: Instant,
        served: usize,
    },
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut turn = self.syncing.lock();
        turn.led = false;
        match self.stage {
            Stage::Waiting(place) => turn.leave(place),
            Stage::Syncing { start, served } => turn.ended(served, start.elapsed()),
        }
        drop(turn);
        self.syncing.ended.notify_all();
    }
}

impl Syncing {
    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done`, or until it is this thread's turn to lead.
    fn wait(&self, done: impl Fn() -> bool) -> Option<Lead<'_>> {
        let mut turn = self.lock();
        let place = turn.enter();
        // The deadline that this thread looks at the clock for.
        let mut watching = None;
        loop {
            if done() {
                turn.leave(place);
                if turn.watched && watching == turn.until {
                    // A flush has made the write durable, and no sync: somebody else has to look at the clock.
                    turn.watched = false;
                    self.ended.notify_all();
                }
                return None;
            }
            let patience = turn.patience();
            if turn.led {
                turn = self.ended.wait(turn).unwrap_or_else(PoisonError::into_inner);
            } else if patience.is_zero() {
                turn.led = true;
                turn.watched = false;
                return Some(Lead { syncing: self, stage: Stage::Waiting(place) });
            } else if watching == turn.until || !turn.watched {
                // One clock is enough: each would wake its thread, most of them in the middle of the next sync.
                watching = turn.until;
                turn.watched = true;
                turn = self.ended.wait_timeout(turn, patience).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                turn = self.ended.wait(turn).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Turn {
    /// Counts the calling thread as waiting.
    fn enter(&mut self) -> Place {
        self.waiting += 1;
        Place(self.begun)
    }

    /// Ends that, unless a sync has begun since and counts from zero.
    fn leave(&mut self, place: Place) {
        if place.0 == self.begun {
            self.waiting -= 1;
        }
    }

    /// How long to wait for others.
    fn patience(&self) -> Duration {
        match self.until {
            Some(until) if self.waiting < self.expected => until.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        }
    }

    /// A sync begins; returns how many it serves.
    fn begin(&mut self) -> usize {
        if self.until.take().is_some() {
            // Of two the one that waits is half.
            let in_vain = self.waiting * 2 <= self.expected;
            self.doubts = if in_vain { (self.doubts * 2 + 1).min(MOST_HASTY) } else { 0 };
            self.hasty = self.doubts;
        }
        self.begun += 1;
        std::mem::take(&mut self.waiting)
    }

    /// It has ended, and took so long.
    fn ended(&mut self, served: usize, took: Duration) {
        self.expected = self.waiting + served;
        match self.hasty.checked_sub(1) {
            Some(left) => self.hasty = left,
            // There is nobody to wait for if there was one only.
            None => self.until = (self.expected > 1).then(|| Instant::now() + took.min(GRACE)),
        }
    }
}

impl Lead<'_> {
    /// Everybody who has written by now is served by this sync.
    fn begin(&mut self) {
        let served = self.syncing.lock().begin();
        self.stage = Stage::Syncing { start: Instant::now(), served };
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
        match self.syncing.wait(is_durable) {
            Some(lead) => self.lead_sync(lead),
            None => Ok(()),
        }
    }

    fn lead_sync(self: &Arc<Self>, mut lead: Lead<'_>) -> Result<()> {
        self.check_poison()?;
        self.await_recovered()?;
        lead.begin();
        // Every write up to here is in one of the logs below.
        let target = self.visible.load(Ordering::Acquire);
        let logs = self.sync_logs().map_err(|error| self.poison(error))?;
        self.name_synced_log(&logs, target)?;
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
        self.stalls.measure(Cause::Flush, || self.wait_for_progress(Waiting::Flush, |_| is_flushed()))
    }

    /// Syncs the logs that may need it, and returns them, oldest first.
    fn sync_logs(&self) -> Result<Vec<LogFile>> {
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
        let is_needless = log.is_named.load(Ordering::Acquire) || self.flushed.load(Ordering::Acquire) >= target;
        if is_needless || self.fs.free_space(&self.dir).is_ok_and(|free| free < self.room_for_edit()) {
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
    use crate::error::Error;
    use crate::exec::SteppedExecutor;
    use crate::options::Options;
    use crate::vfs::{Fault, FaultMode, SimFileSystem};

    const WRITES: u64 = if cfg!(miri) { 20 } else { 1000 };

    #[test]
    fn every_write_is_served_by_one_sync_at_a_time_that_began_after_it() {
        let syncing = Syncing::default();
        let (written, durable, running) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let write = || {
            let mine = written.fetch_add(1, Ordering::AcqRel) + 1;
            if let Some(mut lead) = syncing.wait(|| durable.load(Ordering::Acquire) >= mine) {
                lead.begin();
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
        assert!(!syncing.lock().led);
    }

    #[test]
    fn lead_that_ends_without_a_sync_goes_to_the_next() {
        let syncing = Syncing::default();
        let lead = syncing.wait(|| false).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| syncing.wait(|| false).is_some());
            while syncing.lock().waiting < 2 {
                std::thread::yield_now();
            }
            drop(lead);
            assert!(next.join().unwrap());
        });
    }

    #[test]
    fn whoever_looks_at_the_clock_and_leaves_hands_that_on() {
        let syncing = Syncing::default();
        let until = Instant::now() + Duration::from_millis(100);
        *syncing.lock() = Turn { expected: 3, until: Some(until), ..Turn::default() };
        let is_durable = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| syncing.wait(|| is_durable.load(Ordering::Acquire)).is_none());
            while !syncing.lock().watched {
                if first.is_finished() {
                    // It came when the time was over, and leads: there is nothing to be seen.
                    return;
                }
                std::thread::yield_now();
            }
            // With nobody to look at the clock it would wait for ever.
            let second = scope.spawn(|| syncing.wait(|| false).is_some());
            while syncing.lock().waiting < 2 && !first.is_finished() {
                std::thread::yield_now();
            }
            is_durable.store(true, Ordering::Release);
            syncing.ended.notify_all();
            first.join().unwrap();
            assert!(second.join().unwrap());
        });
    }

    #[test]
    fn a_sync_waits_for_those_who_are_expected_however_often_it_is_woken() {
        let syncing = Syncing::default();
        let hour = Duration::from_secs(3600);
        *syncing.lock() = Turn { expected: 2, until: Some(Instant::now() + hour), ..Turn::default() };
        let is_durable = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| syncing.wait(|| is_durable.load(Ordering::Acquire)).is_none());
            while !syncing.lock().watched {
                assert!(!first.is_finished(), "it must wait for the second one");
                std::thread::yield_now();
            }
            // Woken without a reason, it waits on.
            for _ in 0..100 {
                syncing.ended.notify_all();
                std::thread::yield_now();
            }
            assert!(syncing.lock().watched && !first.is_finished());
            // The second one leads; its sync serves both.
            let mut lead = syncing.wait(|| false).unwrap();
            lead.begin();
            assert!(matches!(lead.stage, Stage::Syncing { served: 2, .. }));
            is_durable.store(true, Ordering::Release);
            drop(lead);
            assert!(first.join().unwrap());
        });
    }

    #[test]
    fn who_looks_at_the_clock_and_is_woken_looks_at_it_again() {
        let syncing = Syncing::default();
        let until = Instant::now() + Duration::from_millis(50);
        *syncing.lock() = Turn { expected: 2, until: Some(until), ..Turn::default() };
        std::thread::scope(|scope| {
            // Nobody else ever comes: without a clock it would wait for ever.
            let only = scope.spawn(|| syncing.wait(|| false).is_some());
            while !syncing.lock().watched && !only.is_finished() {
                std::thread::yield_now();
            }
            syncing.ended.notify_all();
            assert!(only.join().unwrap());
        });
        assert!(Instant::now() >= until);
    }

    #[test]
    fn writers_that_do_not_come_are_waited_for_more_and_more_rarely() {
        let mut turn = Turn::default();
        let mut waited = Vec::new();
        // Two who never meet: each comes while the other one's sync runs.
        turn.waiting = 1;
        for i in 0..200 {
            if turn.until.is_some() {
                waited.push(i);
            }
            let served = turn.begin();
            turn.waiting = 1;
            turn.ended(served, GRACE);
        }
        assert_eq!(waited, [1, 3, 7, 15, 31, 63, 127, 191]);
        // As long as the last sync took, but no longer than the grace.
        for (took, patience) in [(GRACE / 2, GRACE / 2), (GRACE * 2, GRACE)] {
            turn.hasty = 0;
            let before = Instant::now();
            turn.ended(1, took);
            let until = turn.until.unwrap();
            assert!(before + patience <= until && until <= Instant::now() + patience);
        }
        // And then they do.
        turn.hasty = 0;
        turn.ended(1, GRACE);
        turn.waiting = 2;
        assert_eq!((turn.begin(), turn.hasty, turn.doubts), (2, 0, 0));
    }

    #[test]
    fn who_is_served_and_leaves_late_is_not_counted_twice() {
        let syncing = Syncing::default();
        let durable = AtomicU64::new(0);
        let mut lead = syncing.wait(|| false).unwrap();
        lead.begin();
        std::thread::scope(|scope| {
            let late = scope.spawn(|| syncing.wait(|| durable.load(Ordering::Acquire) > 0).is_none());
            while syncing.lock().waiting < 1 {
                std::thread::yield_now();
            }
            durable.store(1, Ordering::Release);
            drop(lead);
            assert!(late.join().unwrap());
        });
        let turn = syncing.lock();
        assert_eq!((turn.waiting, turn.expected), (0, 2));
    }

    #[test]
    fn a_thread_that_an_earlier_sync_counted_may_lead_and_leave_without_one() {
        // Issue 13: the sync that counted it failed, and it finds the store poisoned. The count
        // fell below zero.
        let syncing = Syncing::default();
        let mut lead = syncing.wait(|| false).unwrap();
        std::thread::scope(|scope| {
            let next: Vec<_> = (0..3).map(|_| scope.spawn(|| drop(syncing.wait(|| false).unwrap()))).collect();
            while syncing.lock().waiting < 4 {
                std::thread::yield_now();
            }
            lead.begin();
            drop(lead);
            next.into_iter().for_each(|next| next.join().unwrap());
        });
        assert_eq!(syncing.lock().waiting, 0);
    }

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

    #[test]
    fn last_writer_that_is_expected_begins_at_once() {
        let syncing = Syncing::default();
        let hour = Duration::from_secs(3600);
        *syncing.lock() = Turn { waiting: 1, expected: 2, until: Some(Instant::now() + hour), ..Turn::default() };
        let mut lead = syncing.wait(|| false).unwrap();
        lead.begin();
        assert!(matches!(lead.stage, Stage::Syncing { served: 2, .. }));
        drop(lead);
        assert_eq!(syncing.lock().expected, 2);
    }
}
