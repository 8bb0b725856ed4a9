//! Time that no single clock on a wall decides. Nothing here asks a clock: callers say what theirs
//! show.
//!
//! A group's [`Clock`] goes on by the node's monotonic clock, and is pulled towards the median of
//! the members' clocks on the wall ([`Clocks`]) by one part in [`PULL`] at most. It never goes
//! back. A wall clock that jumps therefore moves the median no further than to the next clock that
//! is right, and a wrong median changes the length of a key's life by no more than that part.
//!
//! After a start, a node does not know how long it was away. Its clock is settled by that of a
//! member that is settled, or, if a majority says that none of it is, by the median.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::replica::NodeId;

/// A clock is pulled by a millisecond in so many at most. An error of a second is gone after 100 s.
const PULL: u128 = 100;

/// Two clocks part by less than a millisecond in so many.
const DRIFT: u64 = 1000;

const NANOS: u128 = 1_000_000;

/// The time of one group, as one node goes on with it.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// Nanoseconds since 1970.
    time: u128,
    /// When that was, by the monotonic clock.
    at: Instant,
    /// What it should show, and when.
    goal: Option<(u128, Instant)>,
    is_settled: bool,
}

impl Clock {
    /// One that is at `last_ms`, and not settled.
    pub(crate) fn new(last_ms: u64, at: Instant) -> Clock {
        Clock { time: u128::from(last_ms) * NANOS, at, goal: None, is_settled: false }
    }

    /// The time in milliseconds. `last_ms` is that of the last entry, before which it is never.
    pub(crate) fn now_ms(&mut self, now: Instant, last_ms: u64) -> u64 {
        let elapsed = now.saturating_duration_since(self.at).as_nanos();
        let (free, pull) = (self.time + elapsed, elapsed / PULL);
        let goal = self.goal.map(|(goal, at)| goal + now.saturating_duration_since(at).as_nanos());
        let pulled = goal.unwrap_or(free).clamp(free - pull, free + pull);
        self.time = pulled.max(u128::from(last_ms) * NANOS);
        self.at = self.at.max(now);
        u64::try_from(self.time / NANOS).unwrap_or(u64::MAX)
    }

    /// Sets what it is pulled to: `goal_ms` at the moment `at`, and on from there.
    pub(crate) fn pull_to(&mut self, goal_ms: u64, at: Instant) {
        self.goal = Some((u128::from(goal_ms) * NANOS, at));
    }

    /// Whether it shows the group's time, and not only one before which the group's is not.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Settles it: the group's time is at least `time_ms` now.
    pub(crate) fn settle(&mut self, now: Instant, time_ms: u64) {
        self.now_ms(now, time_ms);
        self.is_settled = true;
    }
}

/// The clocks on the walls of some nodes, as last seen, carried on by this node's monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    seen: BTreeMap<NodeId, Seen>,
}

/// What a clock showed at a moment, more or less.
#[derive(Clone, Copy, Debug)]
struct Seen {
    wall_ms: u64,
    at: Instant,
    error_ms: u64,
}

impl Seen {
    fn carried_to(&self, now: Instant) -> u64 {
        self.wall_ms.saturating_add(millis(now.saturating_duration_since(self.at)))
    }

    fn error_at(&self, now: Instant) -> u64 {
        self.error_ms + millis(now.saturating_duration_since(self.at)) / DRIFT
    }
}

impl Clocks {
    /// Notes what a node's clock showed at the moment `at`, give or take `error_ms`. What was seen
    /// with a smaller error, and agrees, stays.
    pub(crate) fn note(&mut self, node: NodeId, wall_ms: u64, at: Instant, error_ms: u64) {
        let seen = Seen { wall_ms, at, error_ms };
        let is_known = |old: &Seen| {
            let error = old.error_at(at);
            error < error_ms && old.carried_to(at).abs_diff(wall_ms) <= error + error_ms
        };
        if !self.seen.get(&node).is_some_and(is_known) {
            self.seen.insert(node, seen);
        }
    }

    /// What a node's clock shows, as far as is known.
    pub(crate) fn of(&self, node: NodeId, now: Instant) -> Option<u64> {
        Some(self.seen.get(&node)?.carried_to(now))
    }

    /// The median of some nodes' clocks, if those of a majority of them are known. Of two in the
    /// middle it is the earlier one: keys that live too long do less harm than keys that are lost.
    pub(crate) fn median(&self, nodes: &BTreeSet<NodeId>, now: Instant) -> Option<u64> {
        let mut shown: Vec<u64> = nodes.iter().filter_map(|node| self.of(*node, now)).collect();
        shown.sort_unstable();
        let middle = shown.len().checked_sub(1)? / 2;
        (2 * shown.len() > nodes.len()).then(|| shown[middle])
    }
}

/// This machine's clock on the wall.
#[derive(Clone, Debug, Default)]
pub struct Wall {
    /// How far it is wrong, in tests.
    error_ms: Arc<AtomicI64>,
}

impl Wall {
    /// What it shows, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        wall_ms().saturating_add_signed(self.error_ms.load(Ordering::Relaxed))
    }

    /// Makes it wrong, for tests.
    #[cfg(any(test, feature = "faults"))]
    pub fn set_error(&self, millis: i64) {
        self.error_ms.store(millis, Ordering::Relaxed);
    }
}

/// A duration in whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What this machine's clock on the wall shows, in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YEARS_70: i64 = 70 * 365 * 24 * 3600 * 1000;
    const NOW: u64 = 1_800_000_000_000;

    fn jump() -> impl Strategy<Value = i64> {
        prop_oneof![Just(0), -5i64..5, Just(-1000), Just(1000), -YEARS_70..YEARS_70, Just(YEARS_70), Just(-YEARS_70)]
    }

    proptest! {
        /// Whatever it is pulled to, it goes on, and neither faster nor slower than is stated.
        #[test]
        fn a_clock_keeps_its_rate(steps in prop::collection::vec((0u64..5000, jump(), any::<bool>()), 1..60)) {
            let start = Instant::now();
            let (mut clock, mut now, mut last) = (Clock::new(NOW, start), start, NOW);
            for (elapsed, jump, is_pulled) in steps {
                if is_pulled {
                    clock.pull_to(NOW.saturating_add_signed(jump), now);
                }
                now += Duration::from_millis(elapsed);
                let time = clock.now_ms(now, 0);
                let (least, most) = (elapsed - elapsed.div_ceil(100), elapsed + elapsed.div_ceil(100));
                prop_assert!(time >= last + least.saturating_sub(1), "{time} after {last} and {elapsed}");
                prop_assert!(time <= last + most + 1, "{time} after {last} and {elapsed}");
                last = time;
            }
        }

        /// It comes to what it is pulled to, as soon as the rate allows, however often it is asked.
        #[test]
        fn a_clock_comes_to_the_median(off in -100_000i64..100_000, asked in 1u32..50) {
            let start = Instant::now();
            let mut clock = Clock::new(NOW, start);
            clock.pull_to(NOW.saturating_add_signed(off), start);
            let whole = Duration::from_millis(off.unsigned_abs() * 100);
            for step in 1..=asked {
                clock.now_ms(start + whole * step / asked, 0);
            }
            let goal = NOW.saturating_add_signed(off) + millis(whole);
            prop_assert!(clock.now_ms(start + whole, 0).abs_diff(goal) <= 1);
        }

        /// One clock of three or more moves the median nowhere but between the others.
        #[test]
        fn one_clock_does_not_move_the_median(
            others in prop::collection::vec(-300i64..300, 2..8),
            jump in jump(),
            unknown in any::<bool>(),
        ) {
            let at = Instant::now();
            let mut clocks = Clocks::default();
            let (nodes, wrong): (BTreeSet<u64>, u64) = ((0..=others.len() as u64).collect(), others.len() as u64);
            let shown: Vec<u64> = others.iter().map(|off| NOW.saturating_add_signed(*off)).collect();
            (0..).zip(&shown).for_each(|(node, wall)| clocks.note(node, *wall, at, 0));
            if !unknown {
                clocks.note(wrong, NOW.saturating_add_signed(jump), at, 0);
            }
            let median = clocks.median(&nodes, at).unwrap();
            prop_assert!(shown.iter().min() <= Some(&median) && Some(&median) <= shown.iter().max());
        }

        /// With a clock that jumps again and again, a group's time stays where right clocks are.
        #[test]
        fn jumps_of_one_clock_never_enter_the_time(
            nodes in 3u64..6,
            jumps in prop::collection::vec((jump(), 1u64..2000), 1..40),
        ) {
            let start = Instant::now();
            let (mut clock, mut clocks, mut now) = (Clock::new(0, start), Clocks::default(), start);
            let all: BTreeSet<u64> = (0..nodes).collect();
            for (jump, pause) in jumps {
                let right = NOW + millis(now - start);
                for node in 0..nodes {
                    let wall = if node == 0 { right.saturating_add_signed(jump) } else { right + node };
                    clocks.note(node, wall, now, 0);
                }
                let median = clocks.median(&all, now).unwrap();
                clock.pull_to(median, now);
                clock.settle(now, if clock.is_settled() { 0 } else { median });
                now += Duration::from_millis(pause);
                let right = NOW + millis(now - start);
                let time = clock.now_ms(now, 0);
                prop_assert!((right..=right + nodes).contains(&time), "{time} instead of {right}");
            }
        }
    }

    #[test]
    fn a_median_needs_a_majority_and_is_the_earlier_of_two() {
        let at = Instant::now();
        let (mut clocks, nodes) = (Clocks::default(), BTreeSet::from([1, 2, 3, 4]));
        assert_eq!(clocks.median(&nodes, at), None);
        for (node, wall, median) in [(9, 1, None), (1, 50, None), (2, 70, None), (3, 60, Some(60)), (4, 1000, Some(60))]
        {
            clocks.note(node, wall, at, 0);
            assert_eq!(clocks.median(&nodes, at), median, "with node {node}");
        }
        assert_eq!(clocks.median(&nodes, at + Duration::from_secs(1)), Some(1060), "it goes on");
        assert_eq!(clocks.median(&BTreeSet::new(), at), None);
    }

    #[test]
    fn what_was_seen_well_stays_until_it_is_contradicted() {
        let (mut clocks, at) = (Clocks::default(), Instant::now());
        let second = Duration::from_secs(1);
        for (after, wall, error, shown) in [
            (0, 10_000, 200, 10_000),
            (1, 11_100, 5, 11_100),
            (2, 12_300, 200, 12_100),
            (3, 13_310, 200, 13_310),
            (400, 410_400, 300, 410_400),
        ] {
            clocks.note(1, wall, at + after * second, error);
            assert_eq!(clocks.of(1, at + after * second), Some(shown), "after {after} s");
        }
    }

    #[test]
    fn a_clock_is_never_before_the_last_entry_nor_beyond_all_numbers() {
        let start = Instant::now();
        let mut clock = Clock::new(NOW, start);
        assert_eq!(clock.now_ms(start, NOW + 5), NOW + 5);
        assert_eq!(clock.now_ms(start, 0), NOW + 5);
        clock.settle(start, 3);
        assert_eq!((clock.now_ms(start, 0), clock.is_settled()), (NOW + 5, true));
        let later = start + Duration::from_secs(60);
        clock.settle(later, NOW + 100_000);
        assert_eq!(clock.now_ms(later, 0), NOW + 100_000, "what was before the settling does not count again");
        clock.settle(later, u64::MAX);
        clock.pull_to(u64::MAX, later);
        assert_eq!(clock.now_ms(later + Duration::from_secs(9), u64::MAX), u64::MAX);
    }
}
