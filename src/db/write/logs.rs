//! [`LiveLogs`]: the log files of a store, from their creation until nobody needs them: neither
//! recovery nor a reader of the change feed.
//!
//! A flush first syncs a log that stays, so that the log never lacks what tables have. A log of an
//! earlier process cannot be synced any more: a power cut after a kill may take its end although
//! tables have the entries. A reader of the change feed then gets `LogGone`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::db::locks::{LockRank, RankedMutex};
use crate::error::{Error, Result};
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::key::SeqNo;
use crate::log::reader::LogReader;
use crate::log::{LogEnds, LogTail, LogWriter};
use crate::options::KeepLog;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::time;
use crate::vfs::{FileSystem, ReadableFile, WritableFile};

/// A limit on the bytes of logs that are kept after recovery has ceased to need them allows one
/// file for each so many of them, and [`LEAST_FILES`] in any case. A store that is flushed often
/// has short logs, each of which takes more space than its records: with the default limit for pins
/// it may be flushed every second for 18 hours before a reader that stands still loses them.
const BYTES_PER_FILE: u64 = 16 << 10;
const LEAST_FILES: usize = 1000;

/// Most bytes of logs whose entries are in no table when a store is closed.
const MOST_UNFLUSHED_BYTES: u64 = 4 << 20;
/// In stores with small memtables less, as a divisor of a memtable's size: an opening should not
/// have to write tables.
const UNFLUSHED_PART: u64 = 4;
/// Most such logs: a process that writes to the store begins one. To read one, and the zeros that
/// it was prepared with, takes an opening about 0.4 ms.
const MOST_UNFLUSHED_LOGS: usize = 8;

/// Files that a limit of `bytes` bytes allows.
fn most_files(bytes: u64) -> usize {
    usize::try_from(bytes / BYTES_PER_FILE).unwrap_or(usize::MAX).max(LEAST_FILES)
}

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
pub(crate) struct StoreLog {
    number: u64,
    /// Its first sequence number.
    first: SeqNo,
    /// The first sequence number that it does not have; `SeqNo::MAX` while it grows.
    end: SeqNo,
    tail: Arc<LogTail>,
    /// Whether an earlier process wrote it.
    is_found: bool,
    /// When recovery ceased to need it.
    flushed: Option<Instant>,
}

impl StoreLog {
    /// Bytes that this process has written to it.
    fn written(&self) -> u64 {
        if self.is_found { 0 } else { self.tail.len() }
    }
}

/// A log to read.
pub(crate) struct LogPart {
    pub(crate) number: u64,
    pub(crate) tail: Arc<LogTail>,
    pub(crate) is_found: bool,
    /// Records from this sequence number on are not valid.
    pub(crate) end: SeqNo,
}

/// A log that is open, so that it can be read when its file has been removed.
pub(crate) struct KeptLog {
    pub(crate) number: u64,
    /// Bytes of it that count.
    pub(crate) len: u64,
    pub(crate) file: Arc<dyn ReadableFile>,
}

/// A claim to the logs after a sequence number.
#[derive(Debug)]
pub(crate) struct PinnedFrom {
    /// Changes up to this number are no longer needed.
    pub(crate) seqno: AtomicU64,
    /// Its logs were removed, because they exceeded the limit.
    pub(crate) is_revoked: AtomicBool,
}

/// Logs kept for readers of the change feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LogStats {
    /// Log files.
    pub files: usize,
    /// Bytes of all log files.
    pub bytes: u64,
    /// Bytes of those that recovery does not need.
    pub kept_bytes: u64,
    /// Bytes written to logs since the store was opened.
    pub written_bytes: u64,
    /// Live pins, those of change feeds included.
    pub pins: usize,
    /// What the last of them still needs begins after this sequence number.
    pub oldest_pin: Option<SeqNo>,
}

/// The logs in the store's directory.
pub(crate) struct LiveLogs {
    /// Logs that may hold writes that are not durable, oldest first.
    unsynced: RankedMutex<Vec<LiveLog>>,
    files: RankedMutex<LogFiles>,
    keep: KeepLog,
}

/// All logs, ascending by number, and who needs them. Each begins where the one before it ends.
struct LogFiles {
    files: Vec<StoreLog>,
    pins: Vec<Arc<PinnedFrom>>,
    /// Bytes of the logs that this process has written and that are no longer in the list.
    removed_bytes: u64,
}

impl LogFiles {
    /// Bytes of the logs that recovery does not need.
    fn kept_bytes(&self) -> u64 {
        self.files.iter().filter(|file| file.flushed.is_some()).map(|file| file.tail.len()).sum()
    }
}

impl LiveLogs {
    /// The logs found on opening.
    pub(crate) fn found(files: Vec<StoreLog>, keep: KeepLog) -> LiveLogs {
        LiveLogs {
            unsynced: RankedMutex::new(LockRank::UnsyncedLogs, Vec::new()),
            files: RankedMutex::new(LockRank::LogFiles, LogFiles { files, pins: Vec::new(), removed_bytes: 0 }),
            keep,
        }
    }

    /// Takes `files` for all logs that there are, unless others are known that end later: those
    /// were looked for later.
    pub(crate) fn replace(&self, files: Vec<StoreLog>) {
        let end = |files: &[StoreLog]| files.last().map_or(0, |file| file.end);
        let mut logs = self.files.lock();
        if end(&files) >= end(&logs.files) {
            logs.files = files;
        }
    }

    /// Their numbers, ascending.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.files.lock().files.iter().map(|file| file.number).collect()
    }

    /// Number and length of the newest log that holds entries, which the next log follows.
    pub(crate) fn newest(&self) -> Option<(u64, u64)> {
        let logs = self.files.lock();
        let newest = logs.files.iter().rfind(|file| file.first < file.end);
        newest.map(|file| (file.number, file.tail.len()))
    }

    /// Number and length of the logs from number `oldest` on that have anything in them.
    pub(crate) fn lengths_from(&self, oldest: u64) -> Vec<(u64, u64)> {
        let logs = self.files.lock();
        let needed = logs.files.iter().filter(|file| file.number >= oldest);
        needed.map(|file| (file.number, file.tail.len())).filter(|(_, len)| *len > 0).collect()
    }

    /// Whether entries may stay in the logs from number `oldest` on when a store is closed or
    /// opened: the next opening reads all of these logs.
    pub(crate) fn are_short_from(&self, oldest: u64, memtable_size: usize) -> bool {
        let lengths = self.lengths_from(oldest);
        let most_bytes = MOST_UNFLUSHED_BYTES.min(memtable_size as u64 / UNFLUSHED_PART);
        lengths.len() <= MOST_UNFLUSHED_LOGS && lengths.iter().map(|(_, len)| len).sum::<u64>() <= most_bytes
    }

    /// Adds a log just created.
    pub(super) fn add(&self, log: &LogWriter) {
        self.unsynced.lock().push(LiveLog::of(log));
        let (number, first, tail) = (log.number(), log.next(), log.tail());
        let file = StoreLog { number, first, end: SeqNo::MAX, tail, is_found: false, flushed: None };
        self.files.lock().files.push(file);
    }

    /// Notes that the newest log ends before `end`.
    pub(super) fn seal(&self, end: SeqNo) {
        if let Some(newest) = self.files.lock().files.last_mut() {
            newest.end = newest.end.min(end);
        }
    }

    /// The logs that a sync must cover, oldest first.
    pub(super) fn unsynced(&self) -> Vec<LiveLog> {
        self.unsynced.lock().clone()
    }

    /// Notes that the logs before `number` need no sync any more: they are sealed and synced, or
    /// tables hold their entries.
    pub(crate) fn note_durable_before(&self, number: u64) {
        self.unsynced.lock().retain(|log| log.number >= number);
    }

    /// Notes that recovery needs no log before `number`. Returns the numbers of the logs that
    /// nobody else needs either, so that their files can be removed, oldest first.
    pub(crate) fn take_before(&self, number: u64) -> Vec<u64> {
        let now = time::now();
        let mut logs = self.files.lock();
        for file in logs.files.iter_mut().take_while(|file| file.number < number) {
            file.flushed.get_or_insert(now);
        }
        let (mut gone, mut kept) = (0, logs.kept_bytes());
        let mut count = logs.files.iter().filter(|file| file.flushed.is_some()).count();
        while let Some(&StoreLog { flushed: Some(flushed), end, ref tail, .. }) = logs.files.get(gone) {
            let age = now.duration_since(flushed);
            let is_within = |bytes: u64| kept <= bytes && count <= most_files(bytes);
            let is_needed = |pin: &&Arc<PinnedFrom>| pin.seqno.load(Ordering::Relaxed).saturating_add(1) < end;
            let is_kept = is_within(self.keep.bytes) && age <= self.keep.age
                || is_within(self.keep.pinned) && logs.pins.iter().any(|pin| is_needed(&pin));
            if is_kept {
                break;
            }
            logs.pins.iter().filter(is_needed).for_each(|pin| pin.is_revoked.store(true, Ordering::Relaxed));
            kept -= tail.len();
            count -= 1;
            gone += 1;
        }
        let gone: Vec<StoreLog> = logs.files.drain(..gone).collect();
        logs.removed_bytes += gone.iter().map(StoreLog::written).sum::<u64>();
        logs.pins.retain(|pin| !pin.is_revoked.load(Ordering::Relaxed));
        gone.into_iter().map(|file| file.number).collect()
    }

    /// Whether logs may be read after recovery has ceased to need them.
    pub(crate) fn are_kept(&self) -> bool {
        self.keep.bytes > 0 || !self.files.lock().pins.is_empty()
    }

    /// Claims the logs after `seqno`; `logged` is the last number in the logs, or an earlier one.
    /// If they are gone, returns the first number that is left.
    pub(crate) fn pin(&self, seqno: SeqNo, logged: SeqNo) -> std::result::Result<Arc<PinnedFrom>, SeqNo> {
        let mut logs = self.files.lock();
        let oldest = logs.files.first().map_or(logged + 1, |file| file.first);
        if seqno + 1 < oldest {
            return Err(oldest);
        }
        let pin = Arc::new(PinnedFrom { seqno: AtomicU64::new(seqno), is_revoked: AtomicBool::new(false) });
        logs.pins.push(Arc::clone(&pin));
        Ok(pin)
    }

    pub(crate) fn unpin(&self, pin: &Arc<PinnedFrom>) {
        self.files.lock().pins.retain(|other| !Arc::ptr_eq(pin, other));
    }

    /// The log that holds `seqno`.
    pub(crate) fn part(&self, seqno: SeqNo) -> Option<LogPart> {
        let logs = self.files.lock();
        let file = &logs.files[..logs.files.partition_point(|file| file.first <= seqno)].last()?;
        let StoreLog { number, end, ref tail, is_found, .. } = **file;
        (seqno < end).then(|| LogPart { number, tail: Arc::clone(tail), is_found, end })
    }

    /// The first sequence number after `seqno` with which a log begins.
    pub(crate) fn next_beginning(&self, seqno: SeqNo) -> Option<SeqNo> {
        let logs = self.files.lock();
        logs.files.iter().map(|file| file.first).find(|first| *first > seqno)
    }

    pub(crate) fn stats(&self) -> LogStats {
        let logs = self.files.lock();
        LogStats {
            files: logs.files.len(),
            bytes: logs.files.iter().map(|file| file.tail.len()).sum(),
            kept_bytes: logs.kept_bytes(),
            written_bytes: logs.removed_bytes + logs.files.iter().map(StoreLog::written).sum::<u64>(),
            pins: logs.pins.len(),
            oldest_pin: logs.pins.iter().map(|pin| pin.seqno.load(Ordering::Relaxed)).min(),
        }
    }
}

/// The logs among `numbers` (ascending, all that there are) of a store whose last write is `last`:
/// those that recovery needs, from `min_log` on, and those to be kept as `keep` says.
/// `last_log` is the number of the last one that recovery has read, and its length without a torn
/// record.
///
/// A log ends where the next valid one begins: see [`LogEnds`]. What a log holds beyond
/// that, or beyond `last`, was given up by a recovery. A log that holds nothing else is *void* and
/// is left out. Only the log after it shows that it is void, and a power cut may take the header of
/// that one, if a killed process wrote it and a flush wrote its entries to tables. Therefore:
///
/// - A log's header names the log before it, also across processes. Others are not kept.
/// - The newest logs, which none names, end the list if they have no header.
/// - Opening removes void logs, durably before it or a flush removes the log after them.
pub(crate) fn survey(
    fs: &dyn FileSystem,
    dir: &Path,
    numbers: &[u64],
    min_log: u64,
    last: SeqNo,
    last_log: Option<(u64, u64)>,
    keep: KeepLog,
) -> Result<Vec<StoreLog>> {
    let now = time::now();
    let (mut ends, mut kept) = (LogEnds::before(last + 1), 0);
    // Number and length of the log that the next newer one of the same process says it follows.
    let mut previous: Option<(u64, u64)> = None;
    let mut found: Vec<StoreLog> = Vec::new();
    for &number in numbers.iter().rev() {
        let is_needed = number >= min_log;
        if !is_needed && keep.bytes == 0 {
            break;
        }
        let reader = LogReader::open(fs, &FileKind::Wal(number).path(dir), Magic::Wal, number);
        let reader = match reader {
            Err(Error::Corruption { .. }) if !is_needed => None,
            reader => Some(reader?),
        };
        let Some((reader, header)) = reader.as_ref().and_then(|reader| Some((reader, reader.header().ok()?))) else {
            if !is_needed && previous.is_none() {
                break;
            }
            continue;
        };
        let is_named = previous.is_none_or(|(previous, _)| previous == number);
        if !is_needed && !is_named {
            continue;
        }
        let Some(end) = ends.of(header.first) else { continue };
        // Behind what was written there may be zeros, prepared for more.
        let stated = [previous, last_log].into_iter().flatten().filter(|(of, _)| *of == number);
        let len = stated.map(|(_, len)| len).fold(reader.len(), u64::min);
        if !is_needed {
            if found.len() >= most_files(keep.bytes) || kept + len > keep.bytes {
                break;
            }
            kept += len;
        }
        if is_named {
            previous = (header.previous > 0).then_some((header.previous, header.previous_len));
        }
        let (tail, flushed) = (Arc::new(LogTail::of_len(len)), (!is_needed).then_some(now));
        found.push(StoreLog { number, first: header.first, end, tail, is_found: true, flushed });
    }
    found.reverse();
    Ok(found)
}
