//! [`ReaderStats`]: how fresh a store is that is open read-only, and what it keeps.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::sync::time;

/// A store that is open read-only, beside the process that writes.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReaderStats {
    /// Tables and value files that are kept open for the newest view. Older iterators and snapshots
    /// keep more; see [`HeldStats`](crate::HeldStats).
    pub files: usize,
    /// Their bytes. The space of those that the writer has removed is free once the reader has been
    /// refreshed or closed.
    pub bytes: u64,
    /// Refreshes that have succeeded.
    pub refreshes: u64,
    /// How long ago the last of them ended, or the opening.
    pub age: Duration,
    /// Why the last refresh has failed, if it has.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::db::stats::as_text"))]
    pub error: Option<Error>,
}

/// What a store notes of its refreshes.
pub(super) struct Refreshes {
    pub(super) count: u64,
    pub(super) last: Instant,
    pub(super) error: Option<Error>,
}

impl Default for Refreshes {
    fn default() -> Refreshes {
        Refreshes { count: 0, last: time::now(), error: None }
    }
}

impl Refreshes {
    /// Notes how a refresh has ended.
    pub(super) fn note<T>(&mut self, result: &Result<T, Error>) {
        if result.is_ok() {
            (self.count, self.last) = (self.count + 1, time::now());
        }
        self.error = result.as_ref().err().cloned();
    }
}
