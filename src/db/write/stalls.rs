//! [`Stalls`]: how long writes have waited, by cause.
//!
//! A put takes less than a microsecond; a write that takes milliseconds was waiting. Every place
//! where a write can wait is measured, and nothing else: a put that does not wait reads no clock.
//! The rest is time in which the system did not run the thread, or fetched memory for it.
//!
//! Each writer's wait is counted separately: all that find no room wait for the same flush.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::time;

/// Shorter waits count as work, unless the store ordered them.
const SHORTEST: Duration = Duration::from_micros(500);

/// Cause of a wait; see [`WriteStalls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Cause {
    Slowed,
    Flush,
    Compaction,
    Commit,
    Log,
    Memtable,
    Sync,
}

const CAUSES: usize = 7;

impl Cause {
    fn is_ordered(self) -> bool {
        matches!(self, Cause::Slowed | Cause::Flush | Cause::Compaction)
    }
}

/// How long writes have waited, by cause. The store orders the first three, and all of them count.
/// Of the others, only waits of at least half a millisecond count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WriteStalls {
    /// Slowed down because flushes or compactions are behind.
    pub slowed: Stall,
    /// Stopped until a memtable is flushed: too many are full, or the first synced write came
    /// before recovered entries were flushed.
    pub flush: Stall,
    /// Stopped until compaction has caught up.
    pub compaction: Stall,
    /// Waiting for another thread to commit, for whatever reason.
    pub commit: Stall,
    /// Creating or extending the log, or handing records to the operating system.
    pub log: Stall,
    /// Sealing a full memtable, and allocating memory for entries.
    pub memtable: Stall,
    /// Synced writes only: waiting for the device, or for the thread that syncs for all.
    pub sync: Stall,
}

/// Waits of one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stall {
    /// Number of waits.
    pub count: u64,
    /// Total time.
    pub total: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl WriteStalls {
    /// The waits that the store has ordered.
    pub(crate) fn ordered(&self) -> impl Iterator<Item = Stall> {
        [self.slowed, self.flush, self.compaction].into_iter()
    }

    /// Every cause with its name, in the order of the fields.
    pub fn by_cause(&self) -> [(&'static str, Stall); CAUSES] {
        let WriteStalls { slowed, flush, compaction, commit, log, memtable, sync } = *self;
        [
            ("slowed", slowed),
            ("flush", flush),
            ("compaction", compaction),
            ("commit", commit),
            ("log", log),
            ("memtable", memtable),
            ("sync", sync),
        ]
    }
}

/// Counts the waits of a store's writers.
#[derive(Default)]
pub(super) struct Stalls([Tally; CAUSES]);

/// Durations in nanoseconds.
#[derive(Default)]
struct Tally {
    count: AtomicU64,
    total: AtomicU64,
    longest: AtomicU64,
}

impl Stalls {
    /// Counts a wait, unless it is too short.
    pub(super) fn count(&self, cause: Cause, waited: Duration) {
        if waited < SHORTEST && !cause.is_ordered() {
            return;
        }
        let Tally { count, total, longest } = &self.0[cause as usize];
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        count.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(nanos, Ordering::Relaxed);
        longest.fetch_max(nanos, Ordering::Relaxed);
    }

    /// Runs `wait` and counts the time it takes.
    pub(super) fn measure<R>(&self, cause: Cause, wait: impl FnOnce() -> R) -> R {
        let start = time::now();
        let result = wait();
        self.count(cause, time::since(start));
        result
    }

    pub(super) fn read(&self) -> WriteStalls {
        let stall = |cause: Cause| {
            let Tally { count, total, longest } = &self.0[cause as usize];
            let duration = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed));
            Stall { count: count.load(Ordering::Relaxed), total: duration(total), longest: duration(longest) }
        };
        WriteStalls {
            slowed: stall(Cause::Slowed),
            flush: stall(Cause::Flush),
            compaction: stall(Cause::Compaction),
            commit: stall(Cause::Commit),
            log: stall(Cause::Log),
            memtable: stall(Cause::Memtable),
            sync: stall(Cause::Sync),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_added_up_by_cause_and_short_ones_left_out() {
        let stalls = Stalls::default();
        let millis = Duration::from_millis;
        stalls.count(Cause::Log, millis(3));
        stalls.count(Cause::Log, millis(5));
        stalls.count(Cause::Log, SHORTEST - Duration::from_nanos(1));
        stalls.count(Cause::Sync, SHORTEST);
        stalls.count(Cause::Flush, Duration::ZERO);
        let read = stalls.read();
        assert_eq!(read.log, Stall { count: 2, total: millis(8), longest: millis(5) });
        assert_eq!(read.sync, Stall { count: 1, total: SHORTEST, longest: SHORTEST });
        let counted: Vec<&str> =
            read.by_cause().iter().filter(|(_, stall)| stall.count > 0).map(|(name, _)| *name).collect();
        assert_eq!(counted, ["flush", "log", "sync"]);
    }
}
