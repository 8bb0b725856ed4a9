//! [`Event`]: what happens in a store, for a listener.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::key::SeqNo;
use crate::report::stats::FilterLedger;

/// Something that has happened in a store; see `Options::on_event`.
/// `Display` is a sentence for a log.
///
/// What an event reports as done is durable when it is delivered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A flush has begun to write a memtable to tables.
    FlushBegan {
        /// Bytes of memory that the memtable takes.
        bytes: u64,
    },
    /// A flush has ended.
    FlushEnded {
        /// Bytes of tables and value files that it wrote.
        outcome: Result<u64>,
        /// From its beginning.
        duration: Duration,
    },
    /// A compaction has begun.
    CompactionBegan(CompactionInfo),
    /// A compaction has ended.
    CompactionEnded {
        /// The compaction.
        compaction: CompactionInfo,
        /// Bytes of tables and value files that it wrote; 0 if it only moved or dropped tables.
        /// [`Error::Closed`] is no failure: the next opening goes on with it.
        outcome: Result<u64>,
        /// From its beginning.
        duration: Duration,
    },
    /// Tables written elsewhere were added to a keyspace (`Db::ingest`).
    Ingested {
        /// The keyspace.
        keyspace: String,
        /// Sequence number of their entries.
        seqno: SeqNo,
        /// Number of tables.
        tables: usize,
        /// Bytes of the tables.
        bytes: u64,
    },
    /// Flushes, or the compactions of one keyspace, fail. They are tried again; further failures
    /// are not reported until one succeeds.
    BackgroundFailed {
        /// What fails.
        work: BackgroundWork,
        /// The first failure.
        error: Error,
    },
    /// Work of which [`BackgroundFailed`](Event::BackgroundFailed) told has succeeded.
    BackgroundRecovered {
        /// What has succeeded.
        work: BackgroundWork,
        /// From the first failure.
        after: Duration,
    },
    /// A failure after which the store accepts no more writes until it is opened again.
    Poisoned {
        /// The failure.
        error: Error,
    },
    /// Writes are slowed down or stopped from now on. Waits of the other causes that
    /// `WriteStalls` counts are not reported.
    StallBegan {
        /// Why.
        cause: StallCause,
    },
    /// Writes no longer wait for a cause.
    StallEnded {
        /// The cause.
        cause: StallCause,
        /// From its beginning.
        duration: Duration,
    },
    /// There is too little space for writes, flushes or compactions.
    DiskFull {
        /// The first failure.
        error: Error,
    },
    /// There is space again for what failed.
    DiskRecovered {
        /// From the first failure.
        after: Duration,
    },
    /// Recovery replays a log.
    RecoveryProgress {
        /// File of the log.
        log: PathBuf,
        /// Which log this is, from 1.
        position: usize,
        /// Number of logs to replay.
        logs: usize,
        /// Operations of the logs before it.
        operations: u64,
    },
    /// An operation took longer than `Options::slow_operation`
    /// allows. Writes that wait for others are told of too: `Stats` has the causes.
    SlowOperation {
        /// "get", "multi_get", "write" or "sync".
        operation: &'static str,
        /// The keyspace of a read.
        keyspace: Option<String>,
        /// How long it took.
        duration: Duration,
    },
    /// A closure of the caller ran longer than
    /// `Options::slow_operation` allows. It holds up no other
    /// thread, but keeps what it reads from being freed, and makes conflicts of an update or a
    /// transaction likely.
    LongClosure {
        /// "read", "update" or "transact".
        operation: &'static str,
        /// How long it ran.
        duration: Duration,
    },
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

/// A compaction, in an [`Event`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompactionInfo {
    /// The keyspace.
    pub keyspace: Arc<str>,
    /// Why it was begun.
    pub reason: CompactionReason,
    /// The highest level from which it takes tables.
    pub from_level: usize,
    /// The level to which its output goes.
    pub to_level: usize,
    /// Number of tables that it takes.
    pub tables: usize,
    /// Bytes of these tables.
    pub bytes: u64,
    /// Whether it changes only the tables' level, or drops them, without reading them.
    pub is_trivial: bool,
}

impl CompactionInfo {
    /// From its highest level to its output's; for the store.
    #[doc(hidden)]
    pub fn new(
        keyspace: Arc<str>,
        reason: CompactionReason,
        [from_level, to_level]: [usize; 2],
        tables: usize,
        bytes: u64,
        is_trivial: bool,
    ) -> CompactionInfo {
        CompactionInfo { keyspace, reason, from_level, to_level, tables, bytes, is_trivial }
    }
}

/// Why a compaction was begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompactionReason {
    /// Level 0 has many runs.
    #[default]
    Level0,
    /// A level is larger than its target.
    LevelSize,
    /// Level 0 has so many runs that writes are slowed down.
    Relief,
    /// Tables hold much that newer versions and tombstones hide.
    Garbage,
    /// Tables hold much that has expired or that range deletes delete.
    Expired,
    /// Value files with many dead values are emptied.
    ValueGarbage,
    /// Merging pointers shows which values are dead.
    Pointers,
    /// The store has nothing else to do.
    Idle,
    /// A caller asked for it.
    Requested,
    /// It was not finished when the store was closed or killed.
    Resumed,
}

/// A kind of background work that fails and recovers as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackgroundWork {
    /// Flushes.
    Flush,
    /// The compactions of a keyspace.
    Compaction {
        /// The keyspace's name; empty if it has been dropped.
        keyspace: Arc<str>,
    },
}

/// Why the store makes writes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallCause {
    /// Flushes or compactions are behind: writes are slowed down.
    Slowed,
    /// Too many memtables wait for their flush: writes are stopped.
    Flush,
    /// Compactions are far behind: writes are stopped.
    Compaction,
}

/// How much an event matters to an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Ordinary work has begun.
    Debug,
    /// Ordinary work has ended, or trouble has.
    Info,
    /// Something is slow or worse than it should be.
    Warning,
    /// Work fails.
    Error,
}

impl Event {
    /// How much it matters.
    pub fn severity(&self) -> Severity {
        match self {
            Event::FlushBegan { .. } | Event::CompactionBegan(_) => Severity::Debug,
            // No failure: the store is closed, and the next opening goes on.
            Event::FlushEnded { outcome: Err(Error::Closed), .. }
            | Event::CompactionEnded { outcome: Err(Error::Closed), .. } => Severity::Info,
            Event::FlushEnded { outcome: Err(_), .. }
            | Event::CompactionEnded { outcome: Err(_), .. }
            | Event::BackgroundFailed { .. }
            | Event::Poisoned { .. }
            | Event::DiskFull { .. } => Severity::Error,
            Event::StallBegan { .. }
            | Event::SlowOperation { .. }
            | Event::LongClosure { .. }
            | Event::FilterDegraded { .. }
            | Event::FilterExcessive { .. } => Severity::Warning,
            Event::FlushEnded { .. }
            | Event::CompactionEnded { .. }
            | Event::Ingested { .. }
            | Event::BackgroundRecovered { .. }
            | Event::StallEnded { .. }
            | Event::DiskRecovered { .. }
            | Event::RecoveryProgress { .. } => Severity::Info,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::FlushBegan { bytes } => write!(f, "flush of a memtable of {bytes} bytes began"),
            Event::FlushEnded { outcome, duration } => write!(f, "flush {}", Ended(outcome, *duration)),
            Event::CompactionBegan(compaction) => write!(f, "compaction of {compaction} began"),
            Event::CompactionEnded { compaction, outcome, duration } => {
                write!(f, "compaction of {compaction} {}", Ended(outcome, *duration))
            }
            Event::Ingested { keyspace, seqno, tables, bytes } => {
                write!(f, "ingested {tables} tables ({bytes} bytes) into keyspace {keyspace} as write {seqno}")
            }
            Event::BackgroundFailed { work, error } => write!(f, "{work} fail and are retried: {error}"),
            Event::BackgroundRecovered { work, after } => write!(f, "{work} succeed again after {after:.1?}"),
            Event::Poisoned { error } => write!(f, "the store accepts no more writes: {error}"),
            Event::StallBegan { cause } => write!(f, "writes are {cause}"),
            Event::StallEnded { cause, duration } => {
                write!(f, "after {duration:.1?}, writes are no longer {cause}")
            }
            Event::DiskFull { error } => write!(f, "the disk is full: {error}"),
            Event::DiskRecovered { after } => write!(f, "there is space again after {after:.1?}"),
            Event::RecoveryProgress { log, position, logs, operations } => {
                write!(f, "replaying {}, log {position} of {logs}, after {operations} operations", log.display())
            }
            Event::SlowOperation { operation, keyspace: Some(keyspace), duration } => {
                write!(f, "{operation} in keyspace {keyspace} took {duration:.1?}")
            }
            Event::SlowOperation { operation, keyspace: None, duration } => {
                write!(f, "{operation} took {duration:.1?}")
            }
            Event::LongClosure { operation, duration } => {
                write!(f, "a closure passed to {operation} ran for {duration:.1?}")
            }
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

/// How a flush or a compaction ended: the bytes that it wrote or the error, and how long it took.
struct Ended<'e>(&'e Result<u64>, Duration);

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ended(outcome, duration) = self;
        match outcome {
            Ok(bytes) => write!(f, "wrote {bytes} bytes in {duration:.1?}"),
            Err(Error::Closed) => write!(f, "ended after {duration:.1?} with the store, and goes on when it opens"),
            Err(error) => write!(f, "failed after {duration:.1?}: {error}"),
        }
    }
}

impl fmt::Display for CompactionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompactionInfo { keyspace, reason, from_level, to_level, tables, bytes, .. } = self;
        let tables_word = if *tables == 1 { "table" } else { "tables" };
        write!(f, "{tables} {tables_word} ({bytes} bytes) of keyspace {keyspace}")?;
        write!(f, " from level {from_level} to {to_level} ({reason})")
    }
}

impl fmt::Display for CompactionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CompactionReason::Level0 => "level 0 is full",
            CompactionReason::LevelSize => "the level is too large",
            CompactionReason::Relief => "too many runs",
            CompactionReason::Garbage => "garbage",
            CompactionReason::Expired => "expired or deleted by ranges",
            CompactionReason::ValueGarbage => "dead values",
            CompactionReason::Pointers => "pointers to values",
            CompactionReason::Idle => "idle",
            CompactionReason::Resumed => "resumed",
            CompactionReason::Requested => "requested",
        })
    }
}

impl fmt::Display for BackgroundWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackgroundWork::Flush => f.write_str("flushes"),
            BackgroundWork::Compaction { keyspace } => write!(f, "compactions of keyspace {keyspace}"),
        }
    }
}

impl fmt::Display for StallCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StallCause::Slowed => "slowed down, because flushes or compactions are behind",
            StallCause::Flush => "stopped until a flush ends",
            StallCause::Compaction => "stopped until compactions catch up",
        })
    }
}
