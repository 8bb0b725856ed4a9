//! Tells the listener of operations that take long.
//!
//! Without `Options::slow_operation`, no operation reads the clock.

use std::time::{Duration, Instant};

use crate::db::store::Store;
use crate::report::event::Event;
use crate::sync::time;

impl Store {
    /// When an operation begins, if slow operations are to be told of; otherwise no clock is read.
    #[inline]
    pub(super) fn begin_timing(&self) -> Option<Instant> {
        if self.options.slow_operation.is_some() { now() } else { None }
    }

    /// Tells of the operation that began at `start` if it was slow, with its keyspace if it is of
    /// one.
    #[inline]
    pub(super) fn end_timing(&self, start: Option<Instant>, operation: &'static str, keyspace: Option<&str>) {
        if let Some(start) = start {
            self.check_time(start, |duration| {
                let keyspace = keyspace.map(str::to_owned);
                Event::SlowOperation { operation, keyspace, duration }
            });
        }
    }

    /// Runs an operation, and tells of it if it was slow.
    #[inline]
    pub(crate) fn timed<R>(&self, operation: &'static str, keyspace: Option<&str>, run: impl FnOnce() -> R) -> R {
        let start = self.begin_timing();
        let result = run();
        self.end_timing(start, operation, keyspace);
        result
    }

    /// Runs a closure of the caller that was passed to an operation.
    #[inline]
    pub(crate) fn timed_closure<R>(&self, operation: &'static str, run: impl FnOnce() -> R) -> R {
        let start = self.begin_timing();
        let result = run();
        if let Some(start) = start {
            self.check_time(start, |duration| Event::LongClosure { operation, duration });
        }
        result
    }

    #[cold]
    fn check_time(&self, start: Instant, event: impl FnOnce(Duration) -> Event) {
        let taken = time::since(start);
        if self.options.slow_operation.is_some_and(|limit| taken >= limit) {
            self.events().send(|| event(taken));
        }
    }
}

#[cold]
fn now() -> Option<Instant> {
    Some(time::now())
}
