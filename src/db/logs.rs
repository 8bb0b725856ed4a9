//! [`LiveLogs`]: the log files of a store, from their creation until nobody needs them: neither
//! recovery nor a reader of the change feed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::locks::{LockRank, RankedMutex};
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::key::SeqNo;
use crate::options::KeepLog;
use crate::vfs::{FileSystem, WritableFile};
use crate::write::log::reader::LogReader;
use crate::write::log::{LogTail, LogWriter};

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

/// A log file in the store's directory.
#[derive(Debug)]
pub(super) struct LogFile {
    number: u64,
    /// Its sequence numbers, as far as they are valid. `None` if it holds nothing valid. A log of
    /// this process has an open end; the next log's beginning ends it.
    span: Option<(SeqNo, SeqNo)>,
    tail: Arc<LogTail>,
    /// Whether an earlier process wrote it.
    is_found: bool,
    /// When recovery ceased to need it.
    flushed: Option<Instant>,
}

/// A log to read.
pub(super) struct LogPart {
    pub(super) number: u64,
    pub(super) tail: Arc<LogTail>,
    pub(super) is_found: bool,
    /// Records from this sequence number on are not valid.
    pub(super) end: SeqNo,
}

/// A claim to the logs after a sequence number.
#[derive(Debug)]
pub(super) struct Pin {
    /// Changes up to this number are no longer needed.
    pub(super) seqno: AtomicU64,
    /// Its logs were removed, because they exceeded the limit.
    pub(super) is_revoked: AtomicBool,
}

/// Logs kept for readers of the change feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Log files.
    pub files: usize,
    /// Bytes of all log files.
    pub bytes: u64,
    /// Bytes of those that recovery does not need.
    pub kept_bytes: u64,
    /// Live pins, those of change feeds included.
    pub pins: usize,
    /// What the last of them still needs begins after this sequence number.
    pub oldest_pin: Option<SeqNo>,
}

/// The logs in the store's directory.
pub(super) struct LiveLogs {
    /// Logs that may hold writes that are not durable, oldest first.
    unsynced: RankedMutex<Vec<LiveLog>>,
    files: RankedMutex<LogFiles>,
    keep: KeepLog,
}

/// All logs, ascending by number, and who needs them. The valid spans follow each other without a
/// gap.
struct LogFiles {
    files: Vec<LogFile>,
    pins: Vec<Arc<Pin>>,
}

impl LogFiles {
    /// The first number that the log at `at` does not have.
    fn end(&self, at: usize) -> SeqNo {
        let later = self.files[at + 1..].iter().find_map(|file| file.span);
        let own = self.files[at].span.map_or(0, |(_, end)| end);
        later.map_or(own, |(first, _)| first.min(own))
    }

    /// The first sequence number of all logs.
    fn oldest(&self) -> Option<SeqNo> {
        self.files.iter().find_map(|file| file.span).map(|(first, _)| first)
    }

    /// Bytes of the logs that recovery does not need.
    fn kept_bytes(&self) -> u64 {
        self.files.iter().filter(|file| file.flushed.is_some()).map(|file| file.tail.len()).sum()
    }
}

impl LiveLogs {
    /// The logs found on opening.
    pub(super) fn found(files: Vec<LogFile>, keep: KeepLog) -> LiveLogs {
        LiveLogs {
            unsynced: RankedMutex::new(LockRank::UnsyncedLogs, Vec::new()),
            files: RankedMutex::new(LockRank::LogFiles, LogFiles { files, pins: Vec::new() }),
            keep,
        }
    }

    /// Adds a log just created.
    pub(super) fn add(&self, log: &LogWriter) {
        self.unsynced.lock().push(LiveLog::of(log));
        let span = Some((log.next(), SeqNo::MAX));
        let file = LogFile { number: log.number(), span, tail: log.tail(), is_found: false, flushed: None };
        self.files.lock().files.push(file);
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

    /// Notes that recovery needs no log before `number`. Returns the numbers of the logs that
    /// nobody else needs either, so that their files can be removed, oldest first.
    pub(super) fn take_before(&self, number: u64) -> Vec<u64> {
        let now = Instant::now();
        let mut logs = self.files.lock();
        for file in logs.files.iter_mut().take_while(|file| file.number < number) {
            file.flushed.get_or_insert(now);
        }
        let mut taken = Vec::new();
        let mut kept = logs.kept_bytes();
        while let Some(LogFile { flushed: Some(flushed), .. }) = logs.files.first() {
            let age = now.duration_since(*flushed);
            let end = logs.end(0);
            let is_needed = |pin: &&Arc<Pin>| pin.seqno.load(Ordering::Relaxed).saturating_add(1) < end;
            if kept <= self.keep.bytes && age <= self.keep.age
                || kept <= self.keep.pinned && logs.pins.iter().any(|pin| is_needed(&pin))
            {
                break;
            }
            logs.pins.iter().filter(is_needed).for_each(|pin| pin.is_revoked.store(true, Ordering::Relaxed));
            let gone = logs.files.remove(0);
            kept -= gone.tail.len();
            taken.push(gone.number);
        }
        logs.pins.retain(|pin| !pin.is_revoked.load(Ordering::Relaxed));
        taken
    }

    /// Whether logs may be read after recovery has ceased to need them.
    pub(super) fn are_kept(&self) -> bool {
        self.keep.bytes > 0 || !self.files.lock().pins.is_empty()
    }

    /// Claims the logs after `seqno`; `visible` is the last number written, or an earlier one. If
    /// they are gone, returns the first number that is left.
    pub(super) fn pin(&self, seqno: SeqNo, visible: SeqNo) -> Result<Arc<Pin>, SeqNo> {
        let mut logs = self.files.lock();
        let oldest = logs.oldest().unwrap_or(visible + 1);
        if seqno + 1 < oldest {
            return Err(oldest);
        }
        let pin = Arc::new(Pin { seqno: AtomicU64::new(seqno), is_revoked: AtomicBool::new(false) });
        logs.pins.push(Arc::clone(&pin));
        Ok(pin)
    }

    pub(super) fn unpin(&self, pin: &Arc<Pin>) {
        self.files.lock().pins.retain(|other| !Arc::ptr_eq(pin, other));
    }

    /// The log that holds `seqno`.
    pub(super) fn part(&self, seqno: SeqNo) -> Option<LogPart> {
        let logs = self.files.lock();
        let at = logs.files.iter().rposition(|file| file.span.is_some_and(|(first, _)| first <= seqno))?;
        let end = logs.end(at);
        let LogFile { number, ref tail, is_found, .. } = logs.files[at];
        (seqno < end).then(|| LogPart { number, tail: Arc::clone(tail), is_found, end })
    }

    /// The first sequence number after `seqno` with which a log begins.
    pub(super) fn next_beginning(&self, seqno: SeqNo) -> Option<SeqNo> {
        let logs = self.files.lock();
        logs.files.iter().filter_map(|file| file.span).map(|(first, _)| first).find(|first| *first > seqno)
    }

    pub(super) fn stats(&self) -> LogStats {
        let logs = self.files.lock();
        LogStats {
            files: logs.files.len(),
            bytes: logs.files.iter().map(|file| file.tail.len()).sum(),
            kept_bytes: logs.kept_bytes(),
            pins: logs.pins.len(),
            oldest_pin: logs.pins.iter().map(|pin| pin.seqno.load(Ordering::Relaxed)).min(),
        }
    }
}

/// The logs `numbers` (ascending, all that there are) of a store whose last write is `last`, to be
/// kept as `keep` says. Recovery needs those from `min_log` on.
///
/// A log ends where the next valid one begins: see `write::log::replay`. What a log holds beyond
/// that, or beyond `last`, was given up by a recovery.
pub(super) fn survey(
    fs: &dyn FileSystem,
    dir: &Path,
    numbers: &[u64],
    min_log: u64,
    last: SeqNo,
    keep: KeepLog,
) -> Vec<LogFile> {
    let now = Instant::now();
    let (mut end, mut kept, mut is_chained) = (last + 1, 0, true);
    // Number and length of the log that the next newer one of the same process says it follows.
    let mut previous: Option<(u64, u64)> = None;
    let mut found = Vec::new();
    for &number in numbers.iter().rev() {
        let is_needed = number >= min_log;
        let reader = LogReader::open(fs, &FileKind::Wal(number).path(dir), Magic::Wal, number).ok();
        let mut len = reader.as_ref().map_or(0, LogReader::len);
        let header = reader.as_ref().and_then(|reader| reader.header().ok()).filter(|header| header.first <= end);
        let header = header.filter(|_| is_chained && previous.is_none_or(|(previous, _)| previous == number));
        let span = header.map(|header| {
            // Behind what was written there may be zeros, prepared for more.
            len = previous.map_or(len, |(_, previous_len)| len.min(previous_len));
            previous = (header.previous > 0).then_some((header.previous, header.previous_len));
            (header.first, std::mem::replace(&mut end, header.first))
        });
        // A log that a newer one follows is missing, or is too old to be kept.
        is_chained &= span.is_some() || previous.is_none();
        if !is_needed {
            is_chained &= kept + len <= keep.bytes;
            if span.is_none() || !is_chained {
                continue;
            }
            kept += len;
        }
        let (tail, flushed) = (Arc::new(LogTail::of_len(len)), (!is_needed).then_some(now));
        found.push(LogFile { number, span, tail, is_found: true, flushed });
    }
    found.reverse();
    found
}

impl LogFile {
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}
