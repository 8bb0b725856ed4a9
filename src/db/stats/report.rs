//! [`Report`]: what a store counts and tells of itself.

use super::counters::{Counters, OpeningStats};
use super::notices::Notices;
use crate::report::delivery::Events;

/// What a store counts, and of which troubles its listener knows.
pub(crate) struct Report {
    counters: Counters,
    notices: Notices,
    opening: OpeningStats,
}

impl Report {
    pub(crate) fn new(events: Events, opening: OpeningStats) -> Report {
        Report { counters: Counters::default(), notices: Notices::new(events), opening }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// What opening took.
    pub(super) fn opening(&self) -> OpeningStats {
        self.opening
    }
}
