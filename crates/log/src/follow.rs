//! [`LogCursor`] and [`LogChain`]: a log, and the logs of a process that writes, read on as they
//! grow.
//!
//! [`replay`](super::replay::replay) has read what was there. The last log may grow, and then
//! others may begin. A record that does not verify is not there yet: its writer is in the middle of
//! it, or was killed there, and then another log begins with its ordinal. What else may happen, as
//! damage does, only a replay can judge: see [`Ahead::Unclear`].

use std::cmp::Ordering;
use std::path::PathBuf;

use super::reader::{End, LogReader, Record, Step};
use super::replay::{ApplyError, ReadLogs, find_ends};
use tamis_base::error::{Error, Result};
use tamis_base::format::header::Magic;
use tamis_vfs::FileSystem;

/// A log that grows, and the place where to read on.
pub struct LogCursor {
    reader: LogReader,
    /// Offset of bytes behind the last record that did not verify, and how often that was seen.
    ///
    /// They are a record that is being written, or the last one before a crash, or damage. Only a
    /// search behind them can tell. It takes long, and is made ever more rarely.
    unverified: Option<(u64, u32)>,
}

impl LogCursor {
    /// A cursor where a reader has ended.
    pub fn at_end_of(reader: LogReader) -> LogCursor {
        LogCursor { reader, unverified: None }
    }

    /// The log, up to where it has been read.
    pub fn reader(&self) -> &LogReader {
        &self.reader
    }

    /// Applies the records that were appended since. Returns how they end.
    pub fn read_on(&mut self, apply: &mut dyn FnMut(&Record<'_>) -> Result<(), ApplyError>) -> Result<End> {
        if !self.reader.look_again()? {
            return Ok(End::Clean);
        }
        while !self.reader.is_at_zeros()? {
            match self.reader.read()? {
                Step::Record(record) if record.count == 0 => {}
                Step::Record(record) => apply(&record).map_err(|error| record.failure(error))?,
                Step::End(end) => return Ok(end),
            }
        }
        Ok(End::Clean)
    }

    /// Whether the log cannot end like this: bytes that do not verify stay, and a later record
    /// states that they were durable once. Then they are damaged, or a writer has appended
    /// meanwhile.
    pub fn is_unclear(&mut self, end: &End) -> Result<bool> {
        let End::Bad { offset, .. } = *end else {
            self.unverified = None;
            return Ok(false);
        };
        let seen = self.unverified.filter(|(at, _)| *at == offset).map_or(1, |(_, seen)| seen.saturating_add(1));
        self.unverified = Some((offset, seen));
        if seen == 1 || !seen.is_power_of_two() {
            return Ok(false);
        }
        let mut rest = self.reader.at_tail();
        rest.look_again()?;
        Ok(rest.find_synced(self.reader.next())?.is_some())
    }
}

/// Logs that have been read, and the place where to read on.
pub struct LogChain {
    /// The logs before the last one, oldest first, each where it has ended.
    ended: Vec<LogReader>,
    last: LogCursor,
    /// The replay has judged the logs up to this number: those that do not follow the chain are
    /// void, or it was too early to tell.
    judged: u64,
}

/// Where reading on has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// At the end of what is written.
    Nothing,
    /// At something that is no end and no record. A replay of all logs tells what it is.
    Unclear,
    /// A log was begun with this ordinal, which has been read from an older log: whoever began it
    /// did not find what was read.
    Undone(u64),
}

impl LogChain {
    /// The chain of the logs that a replay has read; `None` if it has read none.
    pub fn of(logs: ReadLogs) -> Option<LogChain> {
        let ReadLogs { readers: mut ended, newest } = logs;
        ended.pop().map(|last| LogChain { ended, last: LogCursor::at_end_of(last), judged: newest })
    }

    /// The first ordinal that has not been read.
    pub fn next(&self) -> u64 {
        self.last.reader.next()
    }

    /// Number of the last log.
    pub fn last_number(&self) -> u64 {
        self.last.reader.number()
    }

    /// The logs, oldest first, each up to where it has been read.
    pub fn readers(&self) -> impl Iterator<Item = &LogReader> {
        self.ended.iter().chain([&self.last.reader])
    }

    /// Closes the logs before number `oldest`, but never the last one.
    pub fn forget_before(&mut self, oldest: u64) {
        self.ended.retain(|reader| reader.number() >= oldest);
    }

    /// Applies what was written since. `list` lists number and path of all logs, ascending.
    ///
    /// After an error the chain must be discarded: a record may have been applied in part.
    pub fn read_on(
        &mut self,
        fs: &dyn FileSystem,
        magic: Magic,
        list: &mut dyn FnMut() -> Result<Vec<(u64, PathBuf)>>,
        apply: &mut dyn FnMut(&Record<'_>) -> Result<(), ApplyError>,
    ) -> Result<Ahead> {
        loop {
            let end = self.last.read_on(apply)?;
            let newer = self.open_newer(fs, magic, list()?)?;
            let Some(newest) = newer.last().map(LogReader::number) else {
                return Ok(if self.last.is_unclear(&end)? { Ahead::Unclear } else { Ahead::Nothing });
            };
            // The writer that began them had ended the last one before.
            self.last.read_on(apply)?;
            let ends = find_ends(&newer);
            let valid = newer.into_iter().zip(ends).find(|(_, end)| end.is_some());
            let first = valid.as_ref().and_then(|(reader, _)| Some(reader.header().ok()?.first));
            match (valid, first.map(|first| (first, first.cmp(&self.next())))) {
                (Some((reader, _)), Some((_, Ordering::Equal))) => {
                    let ended = std::mem::replace(&mut self.last, LogCursor::at_end_of(reader.at_tail()));
                    self.ended.push(ended.reader);
                }
                (_, Some((first, Ordering::Less))) => return Ok(Ahead::Undone(first)),
                // After a power cut, until a writer opens the store.
                _ if newest <= self.judged => return Ok(Ahead::Nothing),
                _ => return Ok(Ahead::Unclear),
            }
        }
    }

    /// The logs after the last one whose headers are written, oldest first.
    fn open_newer(&self, fs: &dyn FileSystem, magic: Magic, logs: Vec<(u64, PathBuf)>) -> Result<Vec<LogReader>> {
        let last = self.last_number();
        let later = logs.into_iter().filter(|(number, _)| *number > last);
        let open = |(number, path): (u64, PathBuf)| match LogReader::open(fs, &path, magic, number) {
            Ok(reader) if reader.header().is_ok() => Some(Ok(reader)),
            Ok(_) => None,
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => Some(Err(error)),
        };
        later.filter_map(open).collect()
    }
}
