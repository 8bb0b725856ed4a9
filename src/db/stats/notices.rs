//! [`Notices`]: tells the listener of troubles, once when they begin and once when they end.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::db::work::background::WorkKind;
use crate::error::{Error, Result};
use crate::report::delivery::Events;
use crate::report::event::{BackgroundWork, Event, StallCause};
use crate::sync::{Mutex, time};

/// Tells the listener of troubles.
pub(crate) struct Notices {
    events: Events,
    known: Mutex<Known>,
}

/// The troubles of which the listener knows that they have begun and not ended.
#[derive(Default)]
struct Known {
    /// Background work that fails, and since when.
    failing: BTreeMap<WorkKind, Instant>,
    /// What lacks disk space.
    without_space: Vec<SpaceUser>,
    full_since: Option<Instant>,
    slowed_since: Option<Instant>,
    /// Why writes are stopped: how many threads wait for that, and since when the first does.
    stopped: Vec<(StallCause, usize, Instant)>,
}

/// What needs disk space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpaceUser {
    Log,
    Background(WorkKind),
}

impl Known {
    /// Notes whether `user` lacks space; returns what to tell.
    fn note_space(&mut self, user: SpaceUser, failure: Option<&Error>) -> Option<Event> {
        self.without_space.retain(|other| *other != user);
        match failure {
            Some(error) => {
                self.without_space.push(user);
                let is_new = self.full_since.is_none();
                self.full_since.get_or_insert_with(time::now);
                is_new.then(|| Event::DiskFull { error: error.clone() })
            }
            None if self.without_space.is_empty() => {
                self.full_since.take().map(|since| Event::DiskRecovered { after: time::since(since) })
            }
            None => None,
        }
    }
}

impl Notices {
    pub(super) fn new(events: Events) -> Notices {
        Notices { events, known: Mutex::default() }
    }

    /// Whether there is anyone to tell.
    pub(crate) fn has_listener(&self) -> bool {
        self.events.has_listener()
    }

    /// Tells if background work begins to fail, or no longer fails. `work` describes it.
    pub(crate) fn note_outcome(
        &self,
        kind: WorkKind,
        work: impl FnOnce() -> BackgroundWork,
        outcome: Result<(), &Error>,
    ) {
        if !self.has_listener() || matches!(outcome, Err(Error::Closed)) {
            return;
        }
        let mut known = self.known.lock();
        let told = match outcome {
            Ok(()) => {
                let since = known.failing.remove(&kind);
                since.map(|since| Event::BackgroundRecovered { work: work(), after: time::since(since) })
            }
            Err(_) if known.failing.contains_key(&kind) => None,
            Err(error) => {
                known.failing.insert(kind, time::now());
                Some(Event::BackgroundFailed { work: work(), error: error.clone() })
            }
        };
        let space = known.note_space(SpaceUser::Background(kind), outcome.err().filter(|error| error.is_no_space()));
        told.into_iter().chain(space).for_each(|event| self.events.send(|| event));
    }

    /// Tells if the log begins to lack space, or has it again.
    pub(crate) fn note_log_space(&self, failure: Option<&Error>) {
        if self.has_listener() {
            let space = self.known.lock().note_space(SpaceUser::Log, failure);
            space.into_iter().for_each(|event| self.events.send(|| event));
        }
    }

    /// Tells if writes begin to be slowed down, or no longer are.
    pub(crate) fn note_slowed(&self, is_slowed: bool) {
        if !self.has_listener() {
            return;
        }
        let since = &mut self.known.lock().slowed_since;
        let cause = StallCause::Slowed;
        match (is_slowed, *since) {
            (true, None) => {
                *since = Some(time::now());
                self.events.send(|| Event::StallBegan { cause });
            }
            (false, Some(begun)) => {
                *since = None;
                self.events.send(|| Event::StallEnded { cause, duration: time::since(begun) });
            }
            _ => {}
        }
    }

    /// Runs `wait`, during which writes are stopped. Tells when the first thread begins to wait and
    /// when the last one has ended.
    pub(crate) fn stop_writes(&self, cause: StallCause, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.has_listener() {
            return wait();
        }
        {
            let stopped = &mut self.known.lock().stopped;
            match stopped.iter_mut().find(|(known, ..)| *known == cause) {
                Some((_, waiting, _)) => *waiting += 1,
                None => {
                    stopped.push((cause, 1, time::now()));
                    self.events.send(|| Event::StallBegan { cause });
                }
            }
        }
        let result = wait();
        let stopped = &mut self.known.lock().stopped;
        if let Some((_, waiting, _)) = stopped.iter_mut().find(|(known, ..)| *known == cause) {
            *waiting -= 1;
        }
        for (cause, _, since) in stopped.extract_if(.., |(_, waiting, _)| *waiting == 0) {
            self.events.send(|| Event::StallEnded { cause, duration: time::since(since) });
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_full_disk_is_told_once_until_all_that_lacked_space_has_it() {
        let full = Error::Io {
            operation: "write",
            path: "/db".into(),
            source: Arc::new(std::io::Error::from(std::io::ErrorKind::StorageFull)),
        };
        let mut known = Known::default();
        let flush = SpaceUser::Background(WorkKind::Flush);
        let mut note = |user, failure| match known.note_space(user, failure) {
            Some(Event::DiskFull { .. }) => "full",
            Some(Event::DiskRecovered { .. }) => "recovered",
            Some(event) => panic!("{event}"),
            None => "",
        };
        assert_eq!(note(flush, None), "");
        assert_eq!(
            [note(flush, Some(&full)), note(flush, Some(&full)), note(SpaceUser::Log, Some(&full))],
            ["full", "", ""]
        );
        assert_eq!([note(flush, None), note(flush, Some(&full)), note(SpaceUser::Log, None)], ["", "", ""]);
        assert_eq!([note(flush, None), note(flush, None), note(flush, Some(&full))], ["recovered", "", "full"]);
    }
}
