//! [`LogChain`]: the logs of a process that writes, read on as they grow.
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

/// Logs that have been read, and the place where to read on.
pub struct LogChain {
    /// Oldest first; never empty. All but the last have been read to their end.
    readers: Vec<LogReader>,
    /// The replay has judged the logs up to this number: those that do not follow the chain are
    /// void, or it was too early to tell.
    judged: u64,
    unverified: Unverified,
}

/// Offset of bytes behind the last record that did not verify, and how often that was seen.
///
/// They are a record that is being written, or the last one before a crash, or damage. Only a
/// search behind them can tell. It takes long, and is made ever more rarely.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unverified(Option<(u64, u32)>);

impl Unverified {
    /// Notes how a log ends now. Returns whether it is time for the search.
    pub fn note(&mut self, end: &End) -> bool {
        let End::Bad { offset, .. } = *end else {
            *self = Unverified::default();
            return false;
        };
        let seen = self.0.filter(|(at, _)| *at == offset).map_or(1, |(_, seen)| seen.saturating_add(1));
        self.0 = Some((offset, seen));
        seen > 1 && seen.is_power_of_two()
    }
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
        let ReadLogs { readers, newest } = logs;
        (!readers.is_empty()).then_some(LogChain { readers, judged: newest, unverified: Unverified::default() })
    }

    /// The first ordinal that has not been read.
    pub fn next(&self) -> u64 {
        self.readers.last().map_or(0, LogReader::next)
    }

    /// Number of the last log.
    pub fn last_number(&self) -> u64 {
        self.readers.last().map_or(0, LogReader::number)
    }

    /// The logs, oldest first, each up to where it has been read.
    pub fn readers(&self) -> &[LogReader] {
        &self.readers
    }

    /// Closes the logs before number `oldest`, but never the last one.
    pub fn forget_before(&mut self, oldest: u64) {
        let last = self.last_number();
        self.readers.retain(|reader| reader.number() >= oldest.min(last));
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
            let end = self.read_last(apply)?;
            let newer = self.open_newer(fs, magic, list()?)?;
            let Some(newest) = newer.last().map(LogReader::number) else { return self.judge(end) };
            // The writer that began them had ended the last one before.
            self.read_last(apply)?;
            let ends = find_ends(&newer);
            let valid = newer.into_iter().zip(ends).find(|(_, end)| end.is_some());
            let first = valid.as_ref().and_then(|(reader, _)| Some(reader.header().ok()?.first));
            match (valid, first.map(|first| (first, first.cmp(&self.next())))) {
                (Some((reader, _)), Some((_, Ordering::Equal))) => {
                    self.unverified = Unverified::default();
                    self.readers.push(reader.at_tail());
                }
                (_, Some((first, Ordering::Less))) => return Ok(Ahead::Undone(first)),
                // After a power cut, until a writer opens the store.
                _ if newest <= self.judged => return Ok(Ahead::Nothing),
                _ => return Ok(Ahead::Unclear),
            }
        }
    }

    /// Applies what follows in the last log. Returns where it ends.
    fn read_last(&mut self, apply: &mut dyn FnMut(&Record<'_>) -> Result<(), ApplyError>) -> Result<End> {
        let Some(last) = self.readers.last_mut() else { return Ok(End::Clean) };
        if !last.look_again()? {
            return Ok(End::Clean);
        }
        while !last.is_at_zeros()? {
            match last.read()? {
                Step::Record(record) if record.count == 0 => {}
                Step::Record(record) => apply(&record).map_err(|error| match error {
                    ApplyError::Malformed(rule) => record.corruption(rule),
                    ApplyError::Failed(error) => error,
                })?,
                Step::End(end) => return Ok(end),
            }
        }
        Ok(End::Clean)
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

    /// Whether the last log may end like this. If bytes that do not verify stay, a later record may
    /// state that they were durable once: then they are damaged.
    fn judge(&mut self, end: End) -> Result<Ahead> {
        let is_due = self.unverified.note(&end);
        let Some(last) = self.readers.last().filter(|_| is_due) else { return Ok(Ahead::Nothing) };
        let mut rest = last.at_tail();
        rest.look_again()?;
        Ok(match rest.find_synced(last.next())? {
            Some(_) => Ahead::Unclear,
            None => Ahead::Nothing,
        })
    }
}
