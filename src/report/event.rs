//! [`Event`]: conditions that a store reports to a listener because no call returns them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::report::stats::FilterLedger;

/// A condition that the operator of a store should know of. `Display` is a sentence for a log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A table was opened whose filter is damaged or of an unknown kind. Look-ups read the table
    /// without it. A compaction that rewrites the table makes a new filter.
    FilterDegraded {
        /// File of the table.
        table: PathBuf,
        /// What is wrong with the filter.
        reason: Error,
    },
    /// A table's filter has significantly more false positives than by design; see
    /// [`FilterLedger::is_excessive`]. Reported once while the table is open.
    FilterExcessive {
        /// File of the table.
        table: PathBuf,
        /// What was counted and what was expected.
        ledger: Box<FilterLedger>,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::FilterDegraded { table, reason } => {
                write!(f, "the filter of {} means \"maybe\" for every key: {reason}", table.display())
            }
            Event::FilterExcessive { table, ledger } => write!(
                f,
                "the filter of {} was wrong for {} of {} absent keys, {:.0} expected: it is broken, or the same absent keys are \
                 looked up again and again",
                table.display(),
                ledger.reads.false_positives,
                ledger.reads.absent(),
                ledger.designed_false_positives,
            ),
        }
    }
}

/// The callback that receives events. The thread that finds a condition calls it, in the middle of
/// a read.
#[derive(Clone, Default)]
pub(crate) struct Listener(Option<Arc<Callback>>);

type Callback = dyn Fn(&Event) + Send + Sync;

impl Listener {
    pub(crate) fn new(listener: impl Fn(&Event) + Send + Sync + 'static) -> Listener {
        Listener(Some(Arc::new(listener)))
    }

    pub(crate) fn notify(&self, event: &Event) {
        if let Some(listener) = &self.0 {
            listener(event);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Some(..)" } else { "None" })
    }
}
