//! [`LiveLogs`]: the log files of a store, from their creation until the manifest no longer needs
//! them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::locks::{LockRank, RankedMutex};
use crate::format::key::SeqNo;
use crate::vfs::WritableFile;
use crate::write::log::LogWriter;

/// A log file that may need a sync.
#[derive(Clone)]
pub(super) struct LiveLog {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn WritableFile>,
    /// The first sequence number in it.
    pub(super) first: SeqNo,
    /// Whether the directory has been synced since the file was created.
    pub(super) name_durable: Arc<AtomicBool>,
    /// Whether the manifest names it as holding synced entries.
    pub(super) is_named: Arc<AtomicBool>,
}

impl LiveLog {
    /// A log just created.
    fn of(log: &LogWriter) -> LiveLog {
        LiveLog {
            number: log.number(),
            path: log.path().to_owned(),
            file: log.file(),
            first: log.next(),
            name_durable: Arc::default(),
            is_named: Arc::default(),
        }
    }
}

/// The logs in the store's directory.
pub(super) struct LiveLogs {
    /// Logs that may hold writes that are not durable, oldest first.
    unsynced: RankedMutex<Vec<LiveLog>>,
    /// Numbers of all logs, ascending.
    files: RankedMutex<Vec<u64>>,
}

impl LiveLogs {
    /// The logs found in use on opening.
    pub(super) fn found(files: Vec<u64>) -> LiveLogs {
        LiveLogs {
            unsynced: RankedMutex::new(LockRank::UnsyncedLogs, Vec::new()),
            files: RankedMutex::new(LockRank::LogFiles, files),
        }
    }

    /// Adds a log just created.
    pub(super) fn add(&self, log: &LogWriter) {
        self.unsynced.lock().push(LiveLog::of(log));
        self.files.lock().push(log.number());
    }

    /// The logs that a sync must cover, oldest first.
    pub(super) fn unsynced(&self) -> Vec<LiveLog> {
        self.unsynced.lock().clone()
    }

    /// Notes that the logs before `number` are sealed and synced. Log `number` goes on growing.
    pub(super) fn note_synced(&self, number: u64) {
        self.unsynced.lock().retain(|log| log.number >= number);
    }

    /// Notes that the memtable of log `number` is in tables: the log needs no sync any more.
    pub(super) fn note_flushed(&self, number: u64) {
        self.unsynced.lock().retain(|log| log.number != number);
    }

    /// Forgets the logs before `number`, and returns their numbers, so that their files can be
    /// removed.
    pub(super) fn take_before(&self, number: u64) -> Vec<u64> {
        self.files.lock().extract_if(.., |log| *log < number).collect()
    }
}
