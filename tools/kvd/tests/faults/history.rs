//! What clients did and saw, and whether one copy of the data could have shown it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use todc_utils::{Action, History, Specification, WGLChecker};

/// An operation on one key. Values are unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read {
        saw: Option<u64>,
    },
    Write {
        value: u64,
    },
    /// Writes, and tells what was there.
    Swap {
        saw: Option<u64>,
        value: u64,
    },
    /// A write of which nobody knows whether it happened. It may as well have happened last.
    Maybe {
        value: u64,
    },
}

/// A key, as one copy of it behaves.
struct Register;

impl Specification for Register {
    type State = Option<u64>;
    type Operation = Operation;

    fn init() -> Option<u64> {
        None
    }

    fn apply(operation: &Operation, state: &Option<u64>) -> (bool, Option<u64>) {
        match *operation {
            Operation::Read { saw } => (saw == *state, *state),
            Operation::Write { value } | Operation::Maybe { value } => (true, Some(value)),
            Operation::Swap { saw, value } if saw == *state => (true, Some(value)),
            Operation::Swap { .. } => (false, *state),
        }
    }
}

enum Event {
    Call {
        key: usize,
        operation: usize,
    },
    /// `None`: it did not happen.
    Response {
        operation: usize,
        what: Option<Operation>,
    },
}

/// All operations in the order of their calls and responses.
#[derive(Default)]
pub(crate) struct Recorder {
    events: Mutex<Vec<Event>>,
    operations: AtomicUsize,
    written: AtomicUsize,
    gaps: Mutex<Gaps>,
}

/// Times between two writes that succeeded in one group.
#[derive(Default)]
struct Gaps {
    /// Groups that are written.
    watched: BTreeSet<u32>,
    last: BTreeMap<u32, Instant>,
    longest: Duration,
}

impl Gaps {
    /// Notes the time since the last write of a group.
    fn note(&mut self, group: u32) {
        let since = self.last.get(&group).map_or(Duration::ZERO, Instant::elapsed);
        self.longest = self.longest.max(since);
    }
}

impl Recorder {
    /// Notes that an operation begins; returns its number.
    pub(crate) fn call(&self, key: usize) -> usize {
        let operation = self.operations.fetch_add(1, Ordering::Relaxed);
        self.events.lock().unwrap().push(Event::Call { key, operation });
        operation
    }

    /// Notes what came of it. What is `Maybe` ends with the history.
    pub(crate) fn response(&self, operation: usize, what: Option<Operation>) {
        if matches!(what, Some(Operation::Write { .. } | Operation::Swap { .. })) {
            self.written.fetch_add(1, Ordering::Relaxed);
        }
        self.events.lock().unwrap().push(Event::Response { operation, what });
    }

    /// Notes that a write has succeeded in a group.
    pub(crate) fn note_write(&self, group: u32) {
        let mut gaps = self.gaps.lock().unwrap();
        if gaps.watched.contains(&group) {
            gaps.note(group);
            gaps.last.insert(group, Instant::now());
        }
    }

    /// Says which groups are written from now on.
    pub(crate) fn watch(&self, groups: BTreeSet<u32>) {
        let mut gaps = self.gaps.lock().unwrap();
        gaps.last.retain(|group, _| groups.contains(group));
        gaps.watched = groups;
    }

    /// Whether each group that is written has had a write since a moment.
    pub(crate) fn all_written_since(&self, moment: Instant) -> bool {
        let gaps = self.gaps.lock().unwrap();
        gaps.watched.iter().all(|group| gaps.last.get(group).is_some_and(|last| *last > moment))
    }

    /// The longest time in which no write succeeded in some group, since the call before. One that
    /// goes on counts in both calls.
    pub(crate) fn take_gap(&self) -> Duration {
        let mut gaps = self.gaps.lock().unwrap();
        let groups: Vec<u32> = gaps.last.keys().copied().collect();
        groups.into_iter().for_each(|group| gaps.note(group));
        std::mem::take(&mut gaps.longest)
    }

    /// How many writes have succeeded so far.
    pub(crate) fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// How many operations were begun.
    pub(crate) fn begun(&self) -> usize {
        self.operations.load(Ordering::Relaxed)
    }

    /// Keys whose history no single copy could have shown.
    pub(crate) fn broken_keys(&self) -> Vec<usize> {
        let events = self.events.lock().unwrap();
        let mut outcomes = BTreeMap::new();
        for event in &*events {
            if let Event::Response { operation, what } = event {
                outcomes.insert(*operation, *what);
            }
        }
        // Operations of different clients overlap, and a client whose write may yet happen goes on:
        // each operation counts as a process of its own.
        let mut keys: BTreeMap<usize, Vec<(usize, Action<Operation>)>> = BTreeMap::new();
        let mut of = BTreeMap::new();
        for event in &*events {
            match event {
                Event::Call { key, operation } => {
                    if let Some(Some(what)) = outcomes.get(operation) {
                        of.insert(*operation, *key);
                        keys.entry(*key).or_default().push((*operation, Action::Call(*what)));
                    }
                }
                Event::Response { operation, what: Some(what) } if !matches!(what, Operation::Maybe { .. }) => {
                    keys.entry(of[operation]).or_default().push((*operation, Action::Response(*what)));
                }
                Event::Response { .. } => {}
            }
        }
        for (operation, what) in outcomes {
            if let Some(what @ Operation::Maybe { .. }) = what {
                keys.entry(of[&operation]).or_default().push((operation, Action::Response(what)));
            }
        }
        let broken = |actions: Vec<_>| !WGLChecker::<Register>::is_linearizable(History::from_actions(actions));
        keys.into_iter().filter_map(|(key, actions)| broken(actions).then_some(key)).collect()
    }
}

#[test]
fn the_checker_tells_a_stale_read_from_a_fresh_one() {
    for (saw, broken) in [(Some(2), vec![]), (Some(1), vec![0]), (None, vec![0])] {
        let recorder = Recorder::default();
        for what in [Operation::Write { value: 1 }, Operation::Write { value: 2 }, Operation::Read { saw }] {
            let call = recorder.call(0);
            recorder.response(call, Some(what));
        }
        assert_eq!(recorder.broken_keys(), broken, "{saw:?}");
    }
    // What may have happened may be seen, and may be seen no more before it is seen first.
    for (reads, broken) in [([Some(1), Some(2)], vec![]), ([Some(2), Some(1)], vec![0])] {
        let recorder = Recorder::default();
        let write = recorder.call(0);
        recorder.response(write, Some(Operation::Write { value: 1 }));
        let maybe = recorder.call(0);
        recorder.response(maybe, Some(Operation::Maybe { value: 2 }));
        for saw in reads {
            let call = recorder.call(0);
            recorder.response(call, Some(Operation::Read { saw }));
        }
        assert_eq!(recorder.broken_keys(), broken, "{reads:?}");
    }
}
