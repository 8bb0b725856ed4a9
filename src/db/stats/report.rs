//! [`Report`]: what a store counts and tells of itself.

use super::counters::{Counters, OpeningStats};
use super::notices::Notices;
use crate::report::delivery::Events;
use crate::sync::{Mutex, MutexGuard};

/// What a store counts, and of which troubles its listener knows.
pub(crate) struct Report {
    counters: Counters,
    notices: Notices,
    opening: OpeningStats,
    /// Who holds it writes the statistics page, or removes it.
    page: Mutex<()>,
}

impl Report {
    pub(crate) fn new(events: Events, opening: OpeningStats) -> Report {
        Report { counters: Counters::default(), notices: Notices::new(events), opening, page: Mutex::default() }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// The turn to write the statistics page, or to remove it.
    pub(super) fn page_turn(&self) -> MutexGuard<'_, ()> {
        self.page.lock()
    }

    /// What opening took.
    pub(super) fn opening(&self) -> OpeningStats {
        self.opening
    }
}
