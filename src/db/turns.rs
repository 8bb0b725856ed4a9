//! [`Syncing`]: threads that want to sync take turns; one sync serves all writes before it.
//!
//! Whoever finds nobody syncing leads; all others wait, and the next sync serves everybody who came meanwhile. Those that a sync has
//! served come back with their next writes only some time after it: to wake them takes tens of microseconds. So the next sync begins
//! when as many have come as the last one served and left waiting, or after a while without them. Otherwise half of the writers would
//! sync in turn with the other half. Whoever comes last leads, so that nobody is woken for that, and nobody spins. Writers that have
//! something else to do between their writes do not come back so soon: the more often they were waited for in vain, the longer nobody
//! waits.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
pub(super) struct Turn {
    /// Whether somebody syncs, or is about to.
    led: bool,
    /// Threads that came since the last sync began, and have not left: [`Turn::enter`],
    /// [`Turn::leave`].
    pub(super) waiting: usize,
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
pub(super) struct Lead<'a> {
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
    pub(super) fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done`, or until it is this thread's turn to lead.
    pub(super) fn wait(&self, done: impl Fn() -> bool) -> Option<Lead<'_>> {
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
    pub(super) fn begin(&mut self) {
        let served = self.syncing.lock().begin();
        self.stage = Stage::Syncing { start: Instant::now(), served };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

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
