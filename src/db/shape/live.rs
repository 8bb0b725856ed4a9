//! [`LiveSnapshots`]: the numbers and times of live snapshots.
//!
//! A snapshot keeps neither memtables nor tables: it is a number and a time that compactions and
//! flushes ask for. Of each key they keep the newest version at or below each number, and for them
//! nothing has expired that had not by the least time. A snapshot takes its number and registers it
//! under one lock. A compaction that asks later knows of it; one that has asked earlier keeps what
//! is visible.
//!
//! Most snapshots live for microseconds, in transactions. A thread registers one in a cache line of
//! its own, without the lock: it writes the number there, executes a full fence, and looks whether
//! that is still the visible one, or else writes the greater one. A compaction executes a full
//! fence before it reads the lines. If it misses one, its fence came before the snapshot's, which
//! has therefore found a number that sees all that the compaction knows of: it was registered
//! later.
//!
//! The scheduler notes up to which number and time snapshots hold garbage. Dropping the last of
//! these snapshots makes compactions due.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::fence;

use crate::db::locks::{LockRank, RankedMutex};
use crate::format::deadline::{Deadline, NEVER};
use crate::format::key::SeqNo;
use crate::memory::epoch::note_and_fence;
use crate::memory::thread::{self, NUMBERED};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A sequence number and the time at which its reads judge deadlines. That is [`NEVER`] if no entry
/// up to the number has had a deadline.
pub(crate) type NumberAndTime = (SeqNo, Deadline);

/// How often the number of a snapshot is looked at anew while others write, before it is taken
/// under the lock.
const LOOKS: usize = 4;

/// The numbers and times of all live snapshots. Compactions keep what each of them sees: they drop
/// no version that a number needs, and nothing that expired after the least time.
pub(crate) struct LiveSnapshots {
    points: RankedMutex<Points>,
    /// Running compactions with a compaction filter.
    filtering: AtomicUsize,
    /// One for each numbered thread. The thread fills it; any may empty it.
    lines: Box<[Line; NUMBERED]>,
    /// Lines from this one on have never been filled.
    used_lines: AtomicUsize,
    /// Compactions can drop more once no snapshot is older than this. The scheduler writes it
    /// before it reads the snapshots; dropping a snapshot reads it afterwards. Full fences stand in
    /// between. Therefore at least one of the two sees the other.
    held_until: AtomicU64,
    /// Garbage by time goes once no live time is less than this.
    held_by_time: AtomicU64,
}

/// One more than the number of a snapshot without a time; 0 if there is none.
// A cache line of its own, and the adjacent one, which the processor fetches along with it.
#[derive(Default)]
#[repr(align(128))]
struct Line(std::sync::atomic::AtomicU64);

/// Where a snapshot is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    /// In the list, under the lock.
    Listed,
    /// In the line of the thread with this number.
    InLine(usize),
}

#[derive(Default)]
struct Points {
    /// Number of handles of each snapshot. Of two numbers, the greater one has no lesser time.
    handles: BTreeMap<NumberAndTime, usize>,
}

/// While it lives, a compaction filter may take from the store what a snapshot that is taken
/// meanwhile sees: such a snapshot keeps its view.
pub(crate) struct Filtering<'a>(&'a LiveSnapshots);

impl Drop for Filtering<'_> {
    fn drop(&mut self) {
        self.0.filtering.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Default for LiveSnapshots {
    fn default() -> LiveSnapshots {
        LiveSnapshots {
            points: RankedMutex::new(LockRank::Snapshots, Points::default()),
            filtering: AtomicUsize::new(0),
            lines: Box::new(std::array::from_fn(|_| Line::default())),
            used_lines: AtomicUsize::new(0),
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
        let (point, taken) = take(self.filtering.load(Ordering::SeqCst) > 0);
        *points.handles.entry(point).or_default() += 1;
        (point, taken)
    }

    /// Adds a snapshot of the visible number in the line of the thread. `None` if that is taken, if
    /// others write all the time, beside a compaction filter, or unless `is_plain`, which is called
    /// once the number has been noted.
    #[inline]
    pub(crate) fn add_plain(
        &self,
        visible: impl Fn() -> SeqNo,
        is_plain: impl FnOnce() -> bool,
    ) -> Option<(SeqNo, Registered)> {
        let number = thread::number()?;
        let line = &self.lines.get(number)?.0;
        if line.load(Ordering::Relaxed) != 0 {
            return None;
        }
        if self.used_lines.load(Ordering::Relaxed) <= number {
            self.used_lines.fetch_max(number + 1, Ordering::SeqCst);
        }
        let mut seqno = visible();
        for _ in 0..LOOKS {
            note_and_fence(line, seqno + 1);
            let now = visible();
            if now == seqno {
                if self.filtering.load(Ordering::SeqCst) == 0 && is_plain() {
                    return Some((seqno, Registered::InLine(number)));
                }
                break;
            }
            seqno = now;
        }
        // A compaction that asked meanwhile has kept more than it needs to.
        line.store(0, Ordering::Release);
        None
    }

    /// Removes a snapshot. Returns whether compactions can drop more now.
    pub(crate) fn remove(&self, point: NumberAndTime, registered: Registered) -> bool {
        match registered {
            Registered::InLine(number) => {
                if let Some(line) = self.lines.get(number) {
                    note_and_fence(&line.0, 0);
                }
                self.holds_garbage() && self.releases_garbage(&self.points.lock())
            }
            Registered::Listed => {
                let mut points = self.points.lock();
                if let Some(count) = points.handles.get_mut(&point) {
                    *count -= 1;
                    if *count == 0 {
                        points.handles.remove(&point);
                    }
                }
                fence(Ordering::SeqCst);
                self.holds_garbage() && self.releases_garbage(&points)
            }
        }
    }

    /// The numbers in the lines of threads, in no order.
    fn in_lines(&self) -> impl Iterator<Item = SeqNo> {
        // Tests give other threads time between the list and the lines.
        #[cfg(test)]
        crate::sync::thread::yield_now();
        fence(Ordering::SeqCst);
        let used = self.used_lines.load(Ordering::SeqCst);
        self.lines.iter().take(used).filter_map(|line| line.0.load(Ordering::Acquire).checked_sub(1))
    }

    /// Notes that a compaction filter runs. Called before the compaction asks for live snapshots.
    pub(crate) fn begin_filtering(&self) -> Filtering<'_> {
        // Locked: no snapshot is taken in between that knows of no filter, and is listed later.
        let _points = self.points.lock();
        self.filtering.fetch_add(1, Ordering::SeqCst);
        Filtering(self)
    }

    /// Number of handles of all snapshots.
    pub(crate) fn count(&self) -> usize {
        self.points.lock().handles.values().sum::<usize>() + self.in_lines().count()
    }

    /// Whether there is a snapshot with one of these numbers.
    pub(crate) fn any_in(&self, numbers: Range<SeqNo>) -> bool {
        // Locked until the lines are read: a snapshot in a line may be listed, and its line
        // emptied.
        let points = self.points.lock();
        let is_listed = points.handles.range((numbers.start, 0)..(numbers.end, 0)).next().is_some();
        is_listed || self.in_lines().any(|seqno| numbers.contains(&seqno))
    }

    /// Sequence numbers, ascending.
    pub(crate) fn all(&self) -> Vec<SeqNo> {
        // Locked until the lines are read, as above.
        let points = self.points.lock();
        let mut numbers: Vec<SeqNo> = points.handles.keys().map(|(seqno, _)| *seqno).collect();
        numbers.extend(self.in_lines());
        drop(points);
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The oldest sequence number, or the greatest possible one if there is none.
    pub(crate) fn oldest(&self) -> SeqNo {
        self.oldest_of(&self.points.lock()).0
    }

    /// The newest sequence number; 0 if there is none.
    pub(crate) fn newest(&self) -> SeqNo {
        let points = self.points.lock();
        let listed = points.handles.keys().next_back().map_or(0, |(seqno, _)| *seqno);
        self.in_lines().fold(listed, SeqNo::max)
    }

    /// The least time, or [`NEVER`].
    pub(crate) fn least_time(&self) -> Deadline {
        self.oldest_of(&self.points.lock()).1
    }

    /// Notes that snapshots older than `until`, or of times less than `time`, hold garbage. Returns
    /// whether none of them is left.
    pub(crate) fn hold_garbage(&self, until: SeqNo, time: Deadline) -> bool {
        self.held_until.store(until, Ordering::Relaxed);
        self.held_by_time.store(time, Ordering::Relaxed);
        self.releases_garbage(&self.points.lock())
    }

    /// Whether compactions wait for snapshots.
    fn holds_garbage(&self) -> bool {
        self.held_until.load(Ordering::Relaxed) < SeqNo::MAX || self.held_by_time.load(Ordering::Relaxed) < NEVER
    }

    fn releases_garbage(&self, points: &Points) -> bool {
        // A fence stands before the lines are read.
        let (seqno, at) = self.oldest_of(points);
        let (until, time) = (self.held_until.load(Ordering::Relaxed), self.held_by_time.load(Ordering::Relaxed));
        until < SeqNo::MAX && seqno >= until || time < NEVER && at >= time
    }

    /// The oldest number and the least time.
    fn oldest_of(&self, points: &Points) -> NumberAndTime {
        let listed = points.handles.keys().next().map_or(SeqNo::MAX, |(seqno, _)| *seqno);
        // The first that is one: times ascend with the numbers.
        let time = points.handles.keys().map(|(_, at)| *at).find(|at| *at < NEVER);
        (self.in_lines().fold(listed, SeqNo::min), time.unwrap_or(NEVER))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// What a compaction may do at any time: it takes the numbers, and what it drops then is
    /// missed by no snapshot. A snapshot below a number that was visible then was in the list.
    #[test]
    fn whoever_asks_for_snapshots_finds_those_of_older_numbers() {
        let (live, visible) = (LiveSnapshots::default(), AtomicU64::new(1));
        // What was visible when a compaction that did not find it asked for snapshots.
        let (dropped_until, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let taken = live.add_plain(|| visible.load(Ordering::Acquire), || true);
                        let Some((seqno, registered)) = taken else { continue };
                        assert!(dropped_until.load(Ordering::SeqCst) <= seqno, "a version was dropped too early");
                        live.remove((seqno, NEVER), registered);
                    }
                });
            }
            for i in 0..100_000 {
                visible.store(i, Ordering::Release);
                if live.oldest() >= i {
                    // No snapshot needs what came before.
                    dropped_until.store(i, Ordering::SeqCst);
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!((live.count(), live.all(), live.newest()), (0, Vec::new(), 0));
    }

    /// A transaction's snapshot that is cloned: the list has it before its line is emptied.
    #[test]
    fn a_snapshot_that_moves_from_a_line_to_the_list_is_always_found() {
        /// Also if the test fails: the thread would be waited for.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (live, is_over) = (LiveSnapshots::default(), AtomicBool::new(false));
        let (held, ()) = live.add(|_| ((5, NEVER), ()));
        std::thread::scope(|scope| {
            let _over = Over(&is_over);
            scope.spawn(|| {
                let mut listed = held;
                while !is_over.load(Ordering::Relaxed) {
                    let (seqno, in_line) = live.add_plain(|| 5, || true).unwrap();
                    live.remove(listed, Registered::Listed);
                    (listed, ()) = live.add(|_| ((seqno, NEVER), ()));
                    live.remove((seqno, NEVER), in_line);
                }
            });
            for _ in 0..10_000 {
                assert_eq!((live.all(), live.newest(), live.oldest()), (vec![5], 5, 5));
                assert!(live.any_in(5..6) && live.count() > 0);
            }
        });
    }

    #[test]
    fn snapshots_in_lines_and_in_the_list_are_alike() {
        let live = LiveSnapshots::default();
        let (first, in_line) = live.add_plain(|| 5, || true).unwrap();
        assert_eq!((first, live.add_plain(|| 6, || true)), (5, None), "the line is taken");
        let (listed, ()) = live.add(|is_filtering| ((if is_filtering { 0 } else { 7 }, 70), ()));
        assert_eq!((live.count(), live.all()), (2, vec![5, 7]));
        assert_eq!((live.oldest(), live.newest(), live.least_time()), (5, 7, 70));
        let any = [0..5, 5..6, 6..7, 7..9].map(|numbers| live.any_in(numbers));
        assert_eq!(any, [false, true, false, true]);
        assert!(!live.hold_garbage(6, NEVER) && !live.remove(listed, Registered::Listed));
        assert!(live.remove((first, NEVER), in_line), "compactions wait for it");
        assert_eq!((live.oldest(), live.count()), (SeqNo::MAX, 0));
        let filtering = live.begin_filtering();
        assert_eq!(live.add_plain(|| 8, || true), None, "it must keep its view");
        drop(filtering);
        assert_eq!(live.add_plain(|| 8, || false), None);
        assert_eq!(live.add_plain(|| 8, || true).map(|(seqno, _)| seqno), Some(8));
    }
}
