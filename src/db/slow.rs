//! Tells the listener of operations that take long.

use std::time::{Duration, Instant};

use super::store::Store;
use crate::report::event::Event;

impl Store {
    /// Runs an operation, on a keyspace if it is of one. Reads the clock only if slow operations
    /// are to be told of.
    #[inline]
    pub(super) fn timed<R>(&self, operation: &'static str, keyspace: Option<&str>, run: impl FnOnce() -> R) -> R {
        let Some(limit) = self.options.slow_operation else { return run() };
        let start = Instant::now();
        let result = run();
        self.check_time(start.elapsed(), limit, |duration| {
            let keyspace = keyspace.map(str::to_owned);
            Event::SlowOperation { operation, keyspace, duration }
        });
        result
    }

    /// Runs a closure of the caller that was passed to an operation.
    #[inline]
    pub(super) fn timed_closure<R>(&self, operation: &'static str, run: impl FnOnce() -> R) -> R {
        let Some(limit) = self.options.slow_operation else { return run() };
        let start = Instant::now();
        let result = run();
        self.check_time(start.elapsed(), limit, |duration| Event::LongClosure { operation, duration });
        result
    }

    fn check_time(&self, taken: Duration, limit: Duration, event: impl FnOnce(Duration) -> Event) {
        if taken >= limit {
            self.events.send(|| event(taken));
        }
    }
}
