//! [`LiveSnapshots`]: the numbers and times of live snapshots.
//!
//! A snapshot keeps neither memtables nor tables: it is a number and a time that compactions and
//! flushes ask for. Of each key they keep the newest version at or below each number, and for them
//! nothing has expired that had not by the least time. A snapshot takes its number and registers it
//! under one lock. A compaction that asks later knows of it; one that has asked earlier keeps what
//! is visible.
//!
//! The scheduler notes up to which number and time snapshots hold garbage. Dropping the last of
//! these snapshots makes compactions due.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::db::locks::{LockRank, RankedMutex};
use crate::format::deadline::{Deadline, NEVER};
use crate::format::key::SeqNo;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A sequence number and the time at which its reads judge deadlines. That is [`NEVER`] if no entry
/// up to the number has had a deadline.
pub(crate) type NumberAndTime = (SeqNo, Deadline);

/// The numbers and times of all live snapshots. Compactions keep what each of them sees: they drop
/// no version that a number needs, and nothing that expired after the least time.
pub(crate) struct LiveSnapshots {
    points: RankedMutex<Points>,
    /// Compactions can drop more once no snapshot is older than this. The scheduler writes it
    /// before it reads `points`; dropping a snapshot reads it under that lock. Therefore at least
    /// one of the two sees the other.
    held_until: AtomicU64,
    /// Garbage by time goes once no live time is less than this.
    held_by_time: AtomicU64,
}

#[derive(Default)]
struct Points {
    /// Number of handles of each snapshot. Of two numbers, the greater one has no lesser time.
    handles: BTreeMap<NumberAndTime, usize>,
    /// Running compactions with a compaction filter.
    filtering: usize,
}

/// While it lives, a compaction filter may take from the store what a snapshot that is taken
/// meanwhile sees: such a snapshot keeps its view.
pub(crate) struct Filtering<'a>(&'a LiveSnapshots);

impl Drop for Filtering<'_> {
    fn drop(&mut self) {
        self.0.points.lock().filtering -= 1;
    }
}

impl Default for LiveSnapshots {
    fn default() -> LiveSnapshots {
        LiveSnapshots {
            points: RankedMutex::new(LockRank::Snapshots, Points::default()),
            held_until: AtomicU64::new(SeqNo::MAX),
            held_by_time: AtomicU64::new(NEVER),
        }
    }
}

impl LiveSnapshots {
    /// Adds a snapshot of what `take` finds, given whether a compaction filter runs.
    pub(crate) fn add<R>(&self, take: impl FnOnce(bool) -> (NumberAndTime, R)) -> (NumberAndTime, R) {
        let mut points = self.points.lock();
        // Taken under the lock: a compaction that reads the list later sees this snapshot; one that
        // read it earlier keeps at least what is visible now.
        let (point, taken) = take(points.filtering > 0);
        *points.handles.entry(point).or_default() += 1;
        (point, taken)
    }

    /// Removes a snapshot. Returns whether compactions can drop more now.
    pub(crate) fn remove(&self, point: NumberAndTime) -> bool {
        let mut points = self.points.lock();
        if let Some(count) = points.handles.get_mut(&point) {
            *count -= 1;
            if *count == 0 {
                points.handles.remove(&point);
            }
        }
        self.releases_garbage(&points)
    }

    /// Notes that a compaction filter runs. Called before the compaction asks for live snapshots.
    pub(crate) fn begin_filtering(&self) -> Filtering<'_> {
        self.points.lock().filtering += 1;
        Filtering(self)
    }

    /// Number of handles of all snapshots.
    pub(crate) fn count(&self) -> usize {
        self.points.lock().handles.values().sum()
    }

    /// Whether there is a snapshot with one of these numbers.
    pub(crate) fn any_in(&self, numbers: Range<SeqNo>) -> bool {
        self.points.lock().handles.range((numbers.start, 0)..(numbers.end, 0)).next().is_some()
    }

    /// Sequence numbers, ascending.
    pub(crate) fn all(&self) -> Vec<SeqNo> {
        let mut numbers: Vec<SeqNo> = self.points.lock().handles.keys().map(|(seqno, _)| *seqno).collect();
        numbers.dedup();
        numbers
    }

    /// The oldest sequence number, or the greatest possible one if there is none.
    pub(crate) fn oldest(&self) -> SeqNo {
        oldest(&self.points.lock()).0
    }

    /// The newest sequence number; 0 if there is none.
    pub(crate) fn newest(&self) -> SeqNo {
        self.points.lock().handles.keys().next_back().map_or(0, |(seqno, _)| *seqno)
    }

    /// The least time, or [`NEVER`].
    pub(crate) fn least_time(&self) -> Deadline {
        oldest(&self.points.lock()).1
    }

    /// Notes that snapshots older than `until`, or of times less than `time`, hold garbage. Returns
    /// whether none of them is left.
    pub(crate) fn hold_garbage(&self, until: SeqNo, time: Deadline) -> bool {
        self.held_until.store(until, Ordering::Relaxed);
        self.held_by_time.store(time, Ordering::Relaxed);
        self.releases_garbage(&self.points.lock())
    }

    fn releases_garbage(&self, points: &Points) -> bool {
        let (until, time) = (self.held_until.load(Ordering::Relaxed), self.held_by_time.load(Ordering::Relaxed));
        let (seqno, at) = oldest(points);
        until < SeqNo::MAX && seqno >= until || time < NEVER && at >= time
    }
}

/// The oldest number and the least time.
fn oldest(points: &Points) -> NumberAndTime {
    let seqno = points.handles.keys().next().map_or(SeqNo::MAX, |(seqno, _)| *seqno);
    // The first that is one: times ascend with the numbers.
    let time = points.handles.keys().map(|(_, at)| *at).find(|at| *at < NEVER);
    (seqno, time.unwrap_or(NEVER))
}
