//! [`Progress`]: how far a long operation is, and [`ProgressMeter`]: who counts it and tells.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// How far a long operation is.
///
/// The numbers never fall, and both are the same at the end of an operation that succeeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes that are done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Is told the progress of operations, in the thread that calls them. By default it does nothing.
#[derive(Clone, Default)]
pub struct ProgressListener(Option<Arc<dyn Fn(Progress) + Send + Sync>>);

impl ProgressListener {
    /// A listener that calls `told`.
    pub fn new(told: impl Fn(Progress) + Send + Sync + 'static) -> ProgressListener {
        ProgressListener(Some(Arc::new(told)))
    }

    /// Whether it does anything.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// A listener for a part of an operation, which tells this one that it goes on from `from`
    /// bytes to `to` bytes, of `total`.
    #[must_use]
    pub fn part(&self, from: u64, to: u64, total: u64) -> ProgressListener {
        let Some(told) = self.0.clone() else { return ProgressListener::default() };
        let scaled = move |progress: Progress| {
            let len = u128::from(to.saturating_sub(from)) * u128::from(progress.done);
            let len = len / u128::from(progress.total.max(1));
            told(Progress { done: from + u64::try_from(len).unwrap_or(0), total });
        };
        ProgressListener::new(scaled)
    }

    /// Begins an operation on this many bytes.
    pub fn meter(&self, total: u64) -> ProgressMeter {
        let meter = ProgressMeter { listener: self.clone(), done: Cell::new(0), total };
        meter.tell();
        meter
    }
}

impl fmt::Debug for ProgressListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProgressListener").field(&self.0.is_some()).finish()
    }
}

/// Counts the progress of one operation, and tells a listener.
#[derive(Debug, Default)]
pub struct ProgressMeter {
    listener: ProgressListener,
    done: Cell<u64>,
    total: u64,
}

impl ProgressMeter {
    /// Adds what is done, of which more may have been found than was expected.
    pub fn add(&self, bytes: u64) {
        let done = self.done.get().saturating_add(bytes).min(self.total);
        if done > self.done.replace(done) {
            self.tell();
        }
    }

    /// Everything is done.
    pub fn finish(&self) {
        self.add(self.total);
    }

    fn tell(&self) {
        if let Some(told) = &self.listener.0 {
            told(Progress { done: self.done.get(), total: self.total });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn numbers_never_fall_and_end_with_the_whole() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = {
            let told = Arc::clone(&told);
            ProgressListener::new(move |progress| told.lock().unwrap().push((progress.done, progress.total)))
        };
        let meter = listener.meter(10);
        [4, 0, 5, u64::MAX].into_iter().for_each(|bytes| meter.add(bytes));
        meter.finish();
        assert_eq!(*told.lock().unwrap(), [(0, 10), (4, 10), (9, 10), (10, 10)]);

        told.lock().unwrap().clear();
        let part = listener.part(50, 60, 60).meter(1000);
        part.add(500);
        part.finish();
        assert_eq!(*told.lock().unwrap(), [(50, 60), (55, 60), (60, 60)]);
    }
}
