//! [`Clock`]: the time by which deadlines are judged.
//!
//! A read is of one moment: a number and a time. A point read takes its time from the clock when it
//! meets the first deadline. Snapshots, transactions, iterators and cursors have one time from
//! beginning to end. A write whose premise includes a value that has expired meanwhile is refused.
//!
//! Compactions turn what had expired before the least time of all snapshots (`live`) into deletes.
//! Their edits, and those of flushes, carry the time, so that a later process whose clock is behind
//! revives nothing. Tables that have expired as a whole go unread if they hide nothing
//! (`Picker::pick_wholly_expired`). An idle store has the executor wake it when the next table is
//! due (`Store::plan_wake`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::format::deadline::{Deadline, NEVER, deadline_at, time_of};
use crate::options::ClockSource;
use crate::sorted::trace::ReadTrace;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::time;

/// The clock of an open store. It never goes back: what has expired once stays expired. Compactions
/// drop by it, and scans note for later scans where they found nothing.
///
/// Its mark outlives the process through the edits of flushes, of compactions that drop, and of a
/// clean close.
pub(crate) struct Clock {
    source: Option<Arc<ClockSource>>,
    /// One bit for each keyspace that has had a ttl since the store was opened: its id modulo 64.
    ttl_keyspaces: AtomicU64,
    /// Whether an entry may have a deadline.
    has_deadlines: AtomicBool,
    mark: Mark,
}

/// The latest time shown. On a cache line of its own: reads of expiring data write it, and every
/// put reads what stands beside it.
#[repr(align(64))]
struct Mark(AtomicU64);

impl Clock {
    /// A clock that shows nothing before `mark`.
    pub(super) fn new(source: Option<Arc<ClockSource>>, mark: Deadline) -> Clock {
        let (ttl_keyspaces, has_deadlines) = Default::default();
        Clock { source, ttl_keyspaces, has_deadlines, mark: Mark(AtomicU64::new(mark.min(NEVER - 1))) }
    }

    /// What the source shows. If it panics: the latest time shown before, or that of the system. It
    /// is asked under locks, and in threads that write for others.
    fn shown(&self) -> Deadline {
        let time = match &self.source {
            None => time::system_time(),
            Some(source) => match catch_unwind(AssertUnwindSafe(|| source())) {
                Ok(time) => time,
                Err(_) if self.mark() > 0 => return self.mark(),
                Err(_) => time::system_time(),
            },
        };
        deadline_at(time).min(NEVER - 1)
    }

    /// The time now, or the latest time shown before.
    #[inline(never)]
    pub(super) fn now(&self) -> Deadline {
        let (now, mark) = (self.shown(), self.mark());
        if now <= mark { mark } else { self.mark.0.fetch_max(now, Ordering::AcqRel).max(now) }
    }

    /// The latest time shown.
    pub(super) fn mark(&self) -> Deadline {
        self.mark.0.load(Ordering::Acquire)
    }

    /// Shows nothing before `mark` from now on.
    pub(super) fn raise(&self, mark: Deadline) {
        self.mark.0.fetch_max(mark.min(NEVER - 1), Ordering::AcqRel);
    }

    /// How far the source is behind the latest time shown.
    pub(super) fn lag(&self) -> Duration {
        Duration::from_millis(self.mark().saturating_sub(self.shown()))
    }

    /// Notes that an entry may have a deadline; before readers see it.
    pub(super) fn note_deadlines(&self) {
        self.has_deadlines.store(true, Ordering::Release);
    }

    /// Whether an entry may have a deadline.
    pub(super) fn has_deadlines(&self) -> bool {
        self.has_deadlines.load(Ordering::Acquire)
    }

    /// The time of a read that has taken its number; [`NEVER`] if no entry that it sees has had a
    /// deadline.
    pub(super) fn time_of_read(&self) -> Deadline {
        if self.has_deadlines() { self.now() } else { NEVER }
    }

    /// Notes that a keyspace has a ttl.
    pub(super) fn note_ttl(&self, keyspace: u32) {
        self.ttl_keyspaces.fetch_or(1 << (keyspace % 64), Ordering::AcqRel);
    }

    /// Whether a put in a keyspace may need a deadline; rarely true of one without a ttl.
    #[inline]
    pub(super) fn may_have_ttl(&self, keyspace: u32) -> bool {
        self.ttl_keyspaces.load(Ordering::Acquire) & (1 << (keyspace % 64)) != 0
    }
}

/// The least deadline of the values that reads have returned.
pub(super) struct LeastDeadline(pub(super) Deadline);

impl Default for LeastDeadline {
    fn default() -> LeastDeadline {
        LeastDeadline(NEVER)
    }
}

impl LeastDeadline {
    /// The time of the deadline, if there is one.
    pub(super) fn time(&self) -> Option<SystemTime> {
        (self.0 != NEVER).then(|| time_of(self.0))
    }
}

impl ReadTrace for LeastDeadline {
    fn deadline(&mut self, deadline: Deadline, is_past: bool) {
        if !is_past {
            self.0 = self.0.min(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_no_time_before_one_that_it_has_shown() {
        let time = Arc::new(AtomicU64::new(50));
        let source = Arc::clone(&time);
        let show = move || SystemTime::UNIX_EPOCH + Duration::from_millis(source.load(Ordering::Relaxed));
        let clock = Clock::new(Some(Arc::new(show)), 40);
        assert_eq!(clock.now(), 50);
        for (set, shown) in [(30, 50), (60, 60), (20, 60)] {
            time.store(set, Ordering::Relaxed);
            assert_eq!(clock.now(), shown);
            assert_eq!(clock.lag(), Duration::from_millis(shown - set));
        }
        assert_eq!(Clock::new(None, NEVER).now(), NEVER - 1, "what never expires has not expired");
    }

    #[test]
    fn a_source_that_panics_stops_the_clock() {
        let panics = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&panics);
        let source = move || {
            assert!(!fails.load(Ordering::Relaxed), "as requested");
            SystemTime::UNIX_EPOCH + Duration::from_millis(50)
        };
        let clock = Clock::new(Some(Arc::new(source)), 40);
        for is_broken in [true, false, true] {
            let before = clock.mark();
            panics.store(is_broken, Ordering::Relaxed);
            assert_eq!(clock.now(), if is_broken { before } else { 50 });
            assert_eq!(clock.lag(), Duration::ZERO);
        }
        panics.store(true, Ordering::Relaxed);
        let fails = Arc::clone(&panics);
        let source = move || {
            assert!(!fails.load(Ordering::Relaxed), "as requested");
            SystemTime::UNIX_EPOCH
        };
        // What expires an hour from now has not expired when the source works again.
        assert!(Clock::new(Some(Arc::new(source)), 0).now() >= deadline_at(time::system_time()) - 60_000);
    }

    #[test]
    fn a_ttl_of_one_keyspace_does_not_concern_another() {
        let clock = Clock::new(None, 0);
        clock.note_ttl(70);
        assert_eq!([0, 5, 6, 7, 70].map(|keyspace| clock.may_have_ttl(keyspace)), [false, false, true, false, true]);
    }
}
