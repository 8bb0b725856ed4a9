//! [`Event`]: what a store has to tell that no call returns.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::report::stats::FilterLedger;

/// Something that whoever runs the store should know of. `Display` is a sentence for a log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A table was opened whose filter is damaged or not understood. Look-ups in it go on without; a compaction that rewrites the table
    /// makes a new filter.
    FilterDegraded {
        /// File of the table.
        table: PathBuf,
        /// What is wrong with the filter.
        reason: Error,
    },
    /// A table's filter has significantly more false positives than by design; see [`FilterLedger::is_excessive`]. Told once while the
    /// table is open.
    FilterExcessive {
        /// File of the table.
        table: PathBuf,
        /// What was counted and what was to be expected.
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
                "the filter of {} was wrong for {} of {} absent keys, where {:.0} were to be expected: it is broken, or the same \
                 absent keys are asked for again and again",
                table.display(),
                ledger.reads.false_positives,
                ledger.reads.absent(),
                ledger.designed_false_positives,
            ),
        }
    }
}

/// Who is told of events. It is called by the thread that comes upon them, in the middle of a read.
#[derive(Clone, Default)]
pub(crate) struct Listener(Option<Arc<Callback>>);

type Callback = dyn Fn(&Event) + Send + Sync;

impl Listener {
    pub(crate) fn new(listener: impl Fn(&Event) + Send + Sync + 'static) -> Listener {
        Listener(Some(Arc::new(listener)))
    }

    pub(crate) fn tell(&self, event: &Event) {
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
