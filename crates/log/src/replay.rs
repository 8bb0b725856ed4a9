//! [`replay`]: the records of several logs in order, and the decision whether they end in a torn
//! tail or in damage.
//!
//! A log's header states its first ordinal, and its writer had settled everything before that.
//! Therefore an ordinal is in the newest log that begins at or before it, and every older log ends
//! where the next valid one begins:
//!
//! ```text
//! log 5:  1 ......... 40 | 41 .. 60      void from 41 on: log 7 begins there
//! log 6:                      61 .. 90   void: it begins after log 7 does
//! log 7:                   41 .......    begun by a recovery that could read 5 only up to 40
//! ```
//!
//! Nothing that is skipped, be it void or after a record that does not verify, may state that a
//! missing ordinal was once durable.
//!
//! A writer may append meanwhile, because readers take no lock. A reader that has passed the end of
//! a log may then find a newer record, which truly states that an entry after that end is durable.
//! Such a statement is therefore doubted once: the logs are read again, and the entry is damaged
//! only if it is still missing. Every further doubt needs entries that the reading before did not
//! find, so the length of the logs bounds the number of readings.

use std::path::PathBuf;

use super::reader::{End, LogReader, Record, Step};
use tamis_base::error::{Error, Result};
use tamis_base::format::Malformed;
use tamis_base::format::filename::FileKind;
use tamis_base::format::header::Magic;
use tamis_vfs::FileSystem;

/// Why a record cannot be applied.
#[derive(Debug)]
pub enum ApplyError {
    /// Its payload breaks a rule of the format; replay adds the file and the record's offset.
    Malformed(Malformed),
    Failed(Error),
}

impl From<Malformed> for ApplyError {
    fn from(malformed: Malformed) -> ApplyError {
        ApplyError::Malformed(malformed)
    }
}

impl From<Error> for ApplyError {
    fn from(error: Error) -> ApplyError {
        ApplyError::Failed(error)
    }
}

impl Record<'_> {
    /// The error for a record that could not be applied.
    pub(super) fn failure(&self, error: ApplyError) -> Error {
        match error {
            ApplyError::Malformed(rule) => self.corruption(rule),
            ApplyError::Failed(error) => error,
        }
    }
}

/// Where replay ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The ordinal after the last one that was replayed or known already; a new log begins with it.
    pub next: u64,
    /// The highest ordinal that a replayed record or header states to be durable.
    pub synced: u64,
    /// File and offset of a torn tail, where replay stopped before the end of the logs.
    pub torn: Option<(PathBuf, u64)>,
    /// Number of the last log that was replayed, and the offset in it where its records end.
    pub end: Option<(u64, u64)>,
}

/// Applies the records of `logs` (numbers ascending, with their paths) that begin at or after
/// ordinal `expected`, in order. Earlier entries are known from elsewhere. So is the fact that
/// everything up to ordinal `durable` was on stable storage.
///
/// Damage to durable entries is `Error::Corruption`. Anything else that cannot be read is a torn
/// tail, and replay ends before it. Also returns the logs, to read on when they have grown.
pub fn replay(
    fs: &dyn FileSystem,
    magic: Magic,
    logs: &[(u64, PathBuf)],
    expected: u64,
    durable: u64,
    apply: &mut dyn FnMut(&Record<'_>) -> Result<(), ApplyError>,
) -> Result<(Replayed, ReadLogs)> {
    debug_assert!(logs.is_sorted_by(|a, b| a.0 < b.0));
    let mut doubted = None;
    loop {
        let mut replay = LogReplay {
            logs,
            expected,
            applied: doubted.unwrap_or(expected),
            apply: &mut *apply,
            next: expected,
            synced: 0,
            stop: None,
            end: None,
            broken: false,
            refused: false,
            read: ReadLogs::default(),
        };
        match replay.run(fs, magic) {
            Ok(()) => return replay.finish(durable),
            Err(_) if replay.refused && doubted.is_none_or(|next| next < replay.next) => doubted = Some(replay.next),
            Err(error) => return Err(error),
        }
    }
}

/// Where logs end, asked from the newest to the oldest.
pub struct LogEnds(u64);

impl LogEnds {
    /// The newest log ends before ordinal `end`.
    pub fn before(end: u64) -> LogEnds {
        LogEnds(end)
    }

    /// The ordinal before which the next older log ends, where the next valid log begins. `None` if
    /// it begins after that, with `first`, and so is void.
    pub fn of(&mut self, first: u64) -> Option<u64> {
        (first <= self.0).then(|| std::mem::replace(&mut self.0, first))
    }
}

/// For each log, the ordinal before which it ends; `None` for a void one. A log without a header
/// has no known beginning.
pub(super) fn find_ends(readers: &[LogReader]) -> Vec<Option<u64>> {
    let mut ends = LogEnds::before(u64::MAX);
    let end_of = |reader: &LogReader| reader.header().map_or(Some(ends.0), |header| ends.of(header.first));
    let mut found: Vec<_> = readers.iter().rev().map(end_of).collect();
    found.reverse();
    found
}

/// The logs that a replay has read.
#[derive(Default)]
pub struct ReadLogs {
    /// Readers of those with records to be replayed, oldest first, each where it has ended.
    pub readers: Vec<LogReader>,
    /// Greatest number of a log with a sound header, 0 if there is none.
    pub newest: u64,
}

struct LogReplay<'a> {
    /// Number and path of each log, ascending.
    logs: &'a [(u64, PathBuf)],
    expected: u64,
    /// An earlier reading applied everything before this ordinal.
    applied: u64,
    apply: &'a mut dyn FnMut(&Record<'_>) -> Result<(), ApplyError>,
    /// The first ordinal that is neither replayed nor known.
    next: u64,
    synced: u64,
    /// Where reading stopped last, and why.
    stop: Option<Stop>,
    end: Option<(u64, u64)>,
    /// Ordinal `next` was not where it should have been: no later log can be replayed.
    broken: bool,
    /// Ordinal `next` is missing although a statement says that it was durable.
    refused: bool,
    read: ReadLogs,
}

struct Stop {
    file: PathBuf,
    offset: u64,
    reason: String,
    /// Whether only the end of the file was found there.
    clean: bool,
}

impl Stop {
    fn corruption(&self, missing: u64, synced: u64, source: impl std::fmt::Display) -> Error {
        let rule = format!(
            "{}, and entry {missing} is missing, although everything up to entry {synced} was on stable storage according to \
             {source}",
            self.reason
        );
        Error::corruption(&self.file, self.offset, rule)
    }
}

impl LogReplay<'_> {
    fn run(&mut self, fs: &dyn FileSystem, magic: Magic) -> Result<()> {
        let readers = self.logs.iter().map(|(number, path)| LogReader::open(fs, path, magic, *number));
        let readers = readers.collect::<Result<Vec<_>>>()?;
        let ends = find_ends(&readers);
        let sound = readers.iter().filter(|reader| reader.header().is_ok());
        self.read.newest = sound.map(LogReader::number).max().unwrap_or(0);
        for (reader, end) in readers.into_iter().zip(ends) {
            // Entries before `expected` are in tables.
            let end = end.filter(|end| *end > self.expected && !self.broken);
            match (end, reader.header().map(|header| header.first)) {
                (Some(end), Ok(first)) => self.replay_log(reader, first, end)?,
                _ => self.skip(reader)?,
            }
        }
        Ok(())
    }

    /// Replays the valid ordinals of a log, `first..end`.
    fn replay_log(&mut self, mut reader: LogReader, first: u64, end: u64) -> Result<()> {
        if first > self.next {
            // Only the first valid log can begin too late: every other begins where the one before
            // ends.
            self.broken = true;
            return self.skip(reader);
        }
        self.synced = self.synced.max(reader.header().map_or(0, |header| header.synced));
        let mut stop =
            Stop { file: reader.path().to_owned(), offset: 0, reason: "the log ends here".into(), clean: true };
        while reader.next() < end {
            match reader.read()? {
                Step::Record(record) => self.replay_record(&record, end)?,
                Step::End(End::Clean) => break,
                Step::End(End::Bad { reason, .. }) => {
                    stop.reason = reason;
                    stop.clean = false;
                    break;
                }
            }
        }
        stop.offset = reader.offset();
        self.end = Some((reader.number(), stop.offset));
        self.stop = Some(stop);
        // Entries before `expected` are in tables, whether or not the log still has them.
        self.next = reader.next().max(self.expected);
        self.broken = self.next < end;
        self.read.readers.push(reader.at_tail());
        self.fail_if_durable(reader)
    }

    #[inline(always)]
    fn replay_record(&mut self, record: &Record<'_>, end: u64) -> Result<()> {
        self.synced = self.synced.max(record.synced);
        let next = record.first + u64::from(record.count);
        if next > end {
            return Err(record.corruption("the record extends into the next log"));
        }
        if next <= self.expected {
            return Ok(());
        }
        if record.first < self.expected {
            return Err(record.corruption("part of the record is in tables already"));
        }
        if record.count == 0 || record.first < self.applied {
            return Ok(());
        }
        (self.apply)(record).map_err(|error| record.failure(error))
    }

    /// Skips a log without replaying anything.
    fn skip(&mut self, reader: LogReader) -> Result<()> {
        let path = reader.path();
        let is_missing = |number: u64| number > 0 && self.logs.iter().all(|log| log.0 != number);
        let (file, reason, is_certain) = match reader.header() {
            Ok(header) if is_missing(header.previous) => {
                let previous = path.with_file_name(FileKind::Wal(header.previous).name());
                let reason = format!("there is no such file, and the log after it begins with entry {}", header.first);
                (previous, reason, true)
            }
            Ok(header) => (path.to_owned(), format!("the log begins with entry {}", header.first), false),
            Err(rule) => (path.to_owned(), rule.to_owned(), true),
        };
        let here = Stop { file, offset: 0, reason, clean: false };
        match &mut self.stop {
            // The log before this one is sound up to its end, so the fault is here.
            Some(stop) if stop.clean && is_certain => *stop = here,
            Some(stop) => stop.clean = false,
            none => *none = Some(here),
        }
        self.fail_if_durable(reader)
    }

    /// Fails if the unread rest of a log states that the first missing ordinal was once durable.
    fn fail_if_durable(&mut self, reader: LogReader) -> Result<()> {
        let path = reader.path().to_owned();
        let missing = self.next;
        let (Some((offset, synced)), Some(stop)) = (reader.find_synced(missing)?, &self.stop) else {
            return Ok(());
        };
        self.refused = true;
        Err(stop.corruption(missing, synced, format_args!("{} at offset {offset}", path.display())))
    }

    fn finish(self, durable: u64) -> Result<(Replayed, ReadLogs)> {
        match self.stop {
            Some(stop) if self.next <= durable => Err(stop.corruption(self.next, durable, "the manifest")),
            stop => {
                let torn = stop.filter(|stop| !stop.clean).map(|stop| (stop.file, stop.offset));
                Ok((Replayed { next: self.next, synced: self.synced, torn, end: self.end }, self.read))
            }
        }
    }
}
