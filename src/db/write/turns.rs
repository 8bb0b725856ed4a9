//! [`Syncing`]: threads that sync take turns; one sync serves all writes before it.
//!
//! A thread that finds no leader becomes the leader and syncs; the others wait. The next sync
//! serves all that arrived meanwhile.
//!
//! Writers that a sync has served return with their next writes only after a while: waking them
//! takes tens of microseconds. Therefore the next sync waits for a grace period. It ends early when
//! as many threads have arrived as the last sync served and left waiting. The last of them leads,
//! so that no thread is woken to lead and none spins.
//!
//! Without the grace period, the writers split into halves that sync in turn. Eight threads on two
//! cores then write 0.95 times as much if a sync takes 0.1 ms, 0.62 to 0.81 times if it takes 2 ms,
//! and 0.53 to 0.64 times if it takes 10 ms.
//!
//! Writers that do other work between their writes do not return within the grace period. Each time
//! it passes in vain, about twice as many syncs skip it as the time before.
//!
//! To remove the grace period, let `SyncTurn::grace_left` return zero.

use std::time::{Duration, Instant};

use crate::db::locks::{HeldRank, LockRank, check_may_wait};
use crate::sync::barging::{Condvar, Mutex, MutexGuard};
use crate::sync::time;

/// Longest grace period; it is also no longer than the last sync took. Measured: eight threads on
/// two cores return within 120 µs.
const GRACE: Duration = Duration::from_micros(200);

/// The turns of threads that sync.
///
/// Lock and condition wake all waiters at once, which then run in parallel. Fair locks hand on from
/// one to the next: eight writers on two cores then returned in 104 µs, six of them in time.
#[derive(Default)]
pub(super) struct Syncing {
    turn: Mutex<SyncTurn>,
    /// Notified when a sync ends.
    ended: Condvar,
}

/// Who leads, who waits, and how long the next leader waits for others.
#[derive(Default)]
pub(super) struct SyncTurn {
    /// Whether a leader syncs, or is about to.
    has_leader: bool,
    /// Threads that arrived since the last sync began, and have not left: [`SyncTurn::enter`],
    /// [`SyncTurn::leave`].
    pub(super) waiting: usize,
    /// The next sync waits until this many threads have arrived.
    expected: usize,
    /// End of the grace period, if there is one.
    grace_end: Option<Instant>,
    /// Whether one waiting thread has set a timer; never while there is a leader.
    has_timer: bool,
    /// Number of syncs begun.
    syncs_begun: u64,
    /// Number of upcoming syncs that skip the grace period.
    skips_left: u32,
    /// Value of `skips_left` set by the last grace period that passed in vain.
    back_off: u32,
}

/// Most syncs in a row that skip the grace period.
const MAX_BACK_OFF: u32 = 63;

/// Counts a thread in `SyncTurn::waiting`: the number of syncs begun when it arrived. The next sync
/// to begin voids it.
#[derive(Clone, Copy)]
struct Ticket(u64);

/// The right of one thread, the leader, to sync; released on drop.
pub(crate) struct Lead<'a> {
    syncing: &'a Syncing,
    stage: LeadStage,
    _rank: HeldRank,
}

enum LeadStage {
    /// The leader has not begun its sync. An earlier sync that failed may have voided its ticket.
    Waiting(Ticket),
    Syncing {
        start: Instant,
        served: usize,
    },
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut turn = self.syncing.lock();
        turn.has_leader = false;
        match self.stage {
            LeadStage::Waiting(ticket) => turn.leave(ticket),
            LeadStage::Syncing { start, served } => turn.ended(served, time::since(start)),
        }
        drop(turn);
        self.syncing.ended.notify_all();
    }
}

impl Syncing {
    pub(super) fn lock(&self) -> MutexGuard<'_, SyncTurn> {
        self.turn.lock()
    }

    /// Waits until the calling thread leads.
    pub(super) fn lead(&self) -> Lead<'_> {
        loop {
            if let Some(lead) = self.wait(|| false) {
                return lead;
            }
        }
    }

    /// Waits until `done` (`None`), or until the calling thread leads.
    pub(super) fn wait(&self, done: impl Fn() -> bool) -> Option<Lead<'_>> {
        check_may_wait();
        let mut turn = self.lock();
        let ticket = turn.enter();
        // The end of the grace period for which this thread has set its timer.
        let mut timer = None;
        loop {
            if done() {
                turn.leave(ticket);
                if turn.has_timer && timer == turn.grace_end {
                    // A flush, not a sync, has made the write durable: another thread must set the
                    // timer.
                    turn.has_timer = false;
                    self.ended.notify_all();
                }
                return None;
            }
            let grace_left = turn.grace_left();
            if turn.has_leader {
                turn = self.ended.wait(turn);
            } else if grace_left.is_zero() {
                turn.has_leader = true;
                turn.has_timer = false;
                return Some(Lead {
                    syncing: self,
                    stage: LeadStage::Waiting(ticket),
                    _rank: HeldRank::take(LockRank::SyncLead),
                });
            } else if timer == turn.grace_end || !turn.has_timer {
                // One timer is enough: each would wake its thread, mostly in the middle of the next
                // sync.
                timer = turn.grace_end;
                turn.has_timer = true;
                turn = self.ended.wait_for(turn, grace_left);
            } else {
                turn = self.ended.wait(turn);
            }
        }
    }
}

impl SyncTurn {
    /// Counts the calling thread as waiting.
    fn enter(&mut self) -> Ticket {
        self.waiting += 1;
        Ticket(self.syncs_begun)
    }

    /// Stops counting the thread, unless a sync has begun since and reset the count.
    fn leave(&mut self, ticket: Ticket) {
        if ticket.0 == self.syncs_begun {
            self.waiting -= 1;
        }
    }

    /// Time left of the grace period; zero once enough threads have arrived.
    fn grace_left(&self) -> Duration {
        match self.grace_end {
            Some(grace_end) if self.waiting < self.expected => grace_end.saturating_duration_since(time::now()),
            _ => Duration::ZERO,
        }
    }

    /// Notes that a sync begins; returns how many threads it serves.
    fn begin(&mut self) -> usize {
        if self.grace_end.take().is_some() {
            // Not more than half have come. Of two threads, the one that waits is already half.
            let in_vain = self.waiting * 2 <= self.expected;
            self.back_off = if in_vain { (self.back_off * 2 + 1).min(MAX_BACK_OFF) } else { 0 };
            self.skips_left = self.back_off;
        }
        self.syncs_begun += 1;
        std::mem::take(&mut self.waiting)
    }

    /// Notes that a sync has ended, which served `served` threads and took `took`.
    fn ended(&mut self, served: usize, took: Duration) {
        self.expected = self.waiting + served;
        match self.skips_left.checked_sub(1) {
            Some(left) => self.skips_left = left,
            // A single thread has no other to wait for.
            None => self.grace_end = (self.expected > 1).then(|| time::now() + took.min(GRACE)),
        }
    }
}

impl Lead<'_> {
    /// Begins the sync, which serves every write made before this call.
    pub(super) fn begin(&mut self) {
        let served = self.syncing.lock().begin();
        self.stage = LeadStage::Syncing { start: time::now(), served };
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
        assert!(!syncing.lock().has_leader);
    }

    #[test]
    fn a_lead_that_ends_without_a_sync_passes_to_the_next_thread() {
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
    fn a_thread_with_the_timer_that_leaves_hands_it_on() {
        let syncing = Syncing::default();
        let grace_end = Instant::now() + Duration::from_millis(100);
        *syncing.lock() = SyncTurn { expected: 3, grace_end: Some(grace_end), ..SyncTurn::default() };
        let is_durable = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| syncing.wait(|| is_durable.load(Ordering::Acquire)).is_none());
            while !syncing.lock().has_timer {
                if first.is_finished() {
                    // It arrived after the grace period and leads: nothing to test.
                    return;
                }
                std::thread::yield_now();
            }
            // Without a timer it would wait for ever.
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
    fn a_spurious_wakeup_ends_no_grace_period() {
        let syncing = Syncing::default();
        let hour = Duration::from_secs(3600);
        *syncing.lock() = SyncTurn { expected: 2, grace_end: Some(Instant::now() + hour), ..SyncTurn::default() };
        let is_durable = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| syncing.wait(|| is_durable.load(Ordering::Acquire)).is_none());
            while !syncing.lock().has_timer {
                assert!(!first.is_finished(), "it must wait for the second thread");
                std::thread::yield_now();
            }
            for _ in 0..100 {
                syncing.ended.notify_all();
                std::thread::yield_now();
            }
            assert!(syncing.lock().has_timer && !first.is_finished());
            // The second thread leads; its sync serves both.
            let mut lead = syncing.wait(|| false).unwrap();
            lead.begin();
            assert!(matches!(lead.stage, LeadStage::Syncing { served: 2, .. }));
            is_durable.store(true, Ordering::Release);
            drop(lead);
            assert!(first.join().unwrap());
        });
    }

    #[test]
    fn a_thread_that_is_woken_keeps_its_timer() {
        let syncing = Syncing::default();
        let grace_end = Instant::now() + Duration::from_millis(50);
        *syncing.lock() = SyncTurn { expected: 2, grace_end: Some(grace_end), ..SyncTurn::default() };
        std::thread::scope(|scope| {
            // No other thread comes: without a timer it would wait for ever.
            let only = scope.spawn(|| syncing.wait(|| false).is_some());
            while !syncing.lock().has_timer && !only.is_finished() {
                std::thread::yield_now();
            }
            syncing.ended.notify_all();
            assert!(only.join().unwrap());
        });
        assert!(Instant::now() >= grace_end);
    }

    #[test]
    fn the_grace_period_backs_off_while_writers_do_not_return() {
        let mut turn = SyncTurn::default();
        let mut waited = Vec::new();
        // Two writers that never meet: each arrives while the other's sync runs.
        turn.waiting = 1;
        for i in 0..200 {
            if turn.grace_end.is_some() {
                waited.push(i);
            }
            let served = turn.begin();
            turn.waiting = 1;
            turn.ended(served, GRACE);
        }
        assert_eq!(waited, [1, 3, 7, 15, 31, 63, 127, 191]);
        // It lasts as long as the last sync, up to `GRACE`.
        for (took, grace) in [(GRACE / 2, GRACE / 2), (GRACE * 2, GRACE)] {
            turn.skips_left = 0;
            let before = Instant::now();
            turn.ended(1, took);
            let grace_end = turn.grace_end.unwrap();
            assert!(before + grace <= grace_end && grace_end <= Instant::now() + grace);
        }
        // Then they meet.
        turn.skips_left = 0;
        turn.ended(1, GRACE);
        turn.waiting = 2;
        assert_eq!((turn.begin(), turn.skips_left, turn.back_off), (2, 0, 0));
    }

    #[test]
    fn a_served_thread_that_leaves_late_is_not_counted_twice() {
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
        // Issue 13: the sync that counted the thread failed, and it finds the store poisoned. The
        // count fell below zero.
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
    fn the_last_expected_writer_leads_at_once() {
        let syncing = Syncing::default();
        let hour = Duration::from_secs(3600);
        *syncing.lock() =
            SyncTurn { waiting: 1, expected: 2, grace_end: Some(Instant::now() + hour), ..SyncTurn::default() };
        let mut lead = syncing.wait(|| false).unwrap();
        lead.begin();
        assert!(matches!(lead.stage, LeadStage::Syncing { served: 2, .. }));
        drop(lead);
        assert_eq!(syncing.lock().expected, 2);
    }
}

/// Turns alone, without a store: under many more schedules than `db::model` can afford.
#[cfg(all(test, shuttle))]
mod model {
    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};
    use crate::sync::{Explore, thread};

    #[derive(Default)]
    struct Log {
        syncing: Syncing,
        written: AtomicU64,
        durable: AtomicU64,
    }

    impl Log {
        fn sync(&self) {
            let own = self.written.fetch_add(1, Ordering::AcqRel) + 1;
            if let Some(mut lead) = self.syncing.wait(|| self.durable.load(Ordering::Acquire) >= own) {
                lead.begin();
                let target = self.written.load(Ordering::Acquire);
                thread::sleep(GRACE);
                self.durable.fetch_max(target, Ordering::AcqRel);
            }
            assert!(self.durable.load(Ordering::Acquire) >= own);
        }

        /// A flush makes all writes durable, and wakes nobody who waits for a sync.
        fn flush(&self) {
            self.durable.fetch_max(self.written.load(Ordering::Acquire), Ordering::AcqRel);
        }
    }

    #[test]
    fn every_thread_leads_or_is_served() {
        for hasty in [false, true] {
            Explore { seed: 1, schedules: 2000, hasty }.run(|| {
                let log = Log::default();
                thread::scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(|| (0..2).for_each(|_| log.sync()));
                    }
                    // Amid syncs and grace periods.
                    for _ in 0..6 {
                        thread::sleep(GRACE * 3 / 4);
                        log.flush();
                    }
                });
                let turn = log.syncing.lock();
                assert!(!turn.has_leader && !turn.has_timer);
                assert_eq!(turn.waiting, 0);
            });
        }
    }
}
