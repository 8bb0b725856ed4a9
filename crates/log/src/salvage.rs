//! [`salvage`]: the records of several logs, read past all damage, for `repair`.
//!
//! After a gap, the ordinals of records are not stored anywhere. A lower bound is known: the
//! ordinal after the last record before the gap, and what later records state to be durable before
//! them. If the next log states where this one ended, the ordinals of the last span are known
//! exactly. Records get the exact ordinal, or else the lower bound. Therefore they keep their
//! order, and none gets an ordinal of a later log.
//!
//! A log without a header tells only its number. If its records follow each other from its
//! beginning on and the next log states where they end, their ordinals are known exactly. Otherwise
//! its records may have been replayed long ago, and the log is lost. The newest log is an
//! exception: its records come after everything else, in their order, whatever their ordinals were.

use std::path::{Path, PathBuf};

use super::reader::{LogReader, Record, RecordSpan};
use super::replay::find_ends;
use tamis_base::error::{Error, Result};
use tamis_base::format::header::{FILE_HEADER_LEN, Magic};
use tamis_base::format::key::MAX_SEQNO;
use tamis_vfs::FileSystem;

/// A part of a log that had or should have had records, and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogGap {
    pub file: PathBuf,
    pub offset: u64,
    pub bytes: u64,
    /// The least number of missing ordinals, if known.
    pub ordinals: Option<u64>,
    /// The rule that is broken there.
    pub rule: String,
    /// Whether all that is missing may be elsewhere: see [`Needed::elsewhere`].
    pub may_be_elsewhere: bool,
}

/// The result of reading damaged logs.
#[derive(Debug, Default)]
pub struct Salvaged {
    pub gaps: Vec<LogGap>,
    /// Greater than every ordinal that was read or that a log mentions.
    pub next: u64,
}

/// Opens a log whose header may be damaged.
pub fn open_damaged(fs: &dyn FileSystem, path: &Path, magic: Magic, number: u64) -> Result<LogReader> {
    match LogReader::open(fs, path, magic, number) {
        Err(Error::Corruption { rule, .. }) => LogReader::open_headless(fs, path, number, &rule),
        opened => opened,
    }
}

/// Which ordinals the logs should have.
#[derive(Clone, Copy, Debug)]
pub struct Needed {
    /// The first ordinal to salvage: all earlier ones are elsewhere.
    pub expected: u64,
    /// Ordinals up to here may be missing from the logs.
    pub elsewhere: u64,
    /// Ordinals up to here certainly may. If a log that exists lacks ordinals between the two, they
    /// may be nowhere else.
    pub certainly_elsewhere: u64,
}

impl Needed {
    /// Number of ordinals in `from..to` that are nowhere else, if any.
    fn missing(&self, from: u64, to: u64) -> Option<u64> {
        count(from.max(self.elsewhere + 1), to)
    }

    /// Number of ordinals in `from..to` that may be nowhere else, if any.
    fn in_doubt(&self, from: u64, to: u64) -> Option<u64> {
        count(from.max(self.certainly_elsewhere + 1), to)
    }
}

/// Number of ordinals in `from..to`, if any.
fn count(from: u64, to: u64) -> Option<u64> {
    to.checked_sub(from).filter(|count| *count > 0)
}

/// Collects the gaps of one log.
struct LogGaps<'a> {
    file: PathBuf,
    /// File length.
    len: u64,
    needed: Needed,
    gaps: &'a mut Vec<LogGap>,
}

impl LogGaps<'_> {
    /// Adds a gap of `bytes` at `offset`, in which that many ordinals are missing.
    fn add(&mut self, offset: u64, bytes: u64, ordinals: Option<u64>, rule: &str) {
        let (file, rule) = (self.file.clone(), rule.to_owned());
        self.gaps.push(LogGap { file, offset, bytes, ordinals, rule, may_be_elsewhere: false });
    }

    /// Adds a gap from `offset` to the end of the file, where ordinals `from..to` should be, unless
    /// all of them are elsewhere.
    fn add_rest(&mut self, offset: u64, from: u64, to: u64, rule: &str) {
        let missing = self.needed.missing(from, to);
        let ordinals = missing.or_else(|| self.needed.in_doubt(from, to));
        if ordinals.is_some() {
            let (file, rule) = (self.file.clone(), rule.to_owned());
            let (bytes, may_be_elsewhere) = (self.len.saturating_sub(offset), missing.is_none());
            self.gaps.push(LogGap { file, offset, bytes, ordinals, rule, may_be_elsewhere });
        }
    }
}

/// Passes the records of `logs` (numbers ascending, with their paths) that are not known from
/// elsewhere to `apply`, in order.
pub fn salvage(
    fs: &dyn FileSystem,
    magic: Magic,
    logs: &[(u64, PathBuf)],
    needed: Needed,
    apply: &mut dyn FnMut(&Record<'_>) -> Result<()>,
) -> Result<Salvaged> {
    let mut readers = Vec::new();
    for (number, path) in logs {
        readers.push(open_damaged(fs, path, magic, *number)?);
    }
    let is_followed: Vec<bool> = readers.iter().skip(1).map(|next| next.header().is_ok()).chain([false]).collect();
    let ends = find_ends(&readers);
    let mut salvaged = Salvaged { gaps: Vec::new(), next: needed.expected };
    let mut at = needed.expected;
    for ((reader, end), is_followed) in readers.into_iter().zip(ends).zip(is_followed) {
        let Some(end) = end.filter(|end| *end > needed.expected) else { continue };
        at = salvage_log(reader, at, (end, is_followed), needed, apply, &mut salvaged)?;
    }
    salvaged.next = salvaged.next.max(at);
    Ok(salvaged)
}

/// The first ordinal of a log without a header, if `spans` is all that it holds and the next log
/// begins with `end`.
fn first_before(end: u64, spans: &[RecordSpan]) -> Option<u64> {
    let [span] = spans else { return None };
    let first = end.checked_sub(span.count).filter(|first| *first >= span.least_first.max(1))?;
    (span.offset == FILE_HEADER_LEN as u64).then_some(first)
}

/// Reads one log, which begins with ordinal `at` unless more is known; returns the ordinal after
/// it. The log ends before `end`, and exactly there if the next log says so.
fn salvage_log(
    mut reader: LogReader,
    at: u64,
    (end, is_followed): (u64, bool),
    needed: Needed,
    apply: &mut dyn FnMut(&Record<'_>) -> Result<()>,
    salvaged: &mut Salvaged,
) -> Result<u64> {
    let len = reader.len();
    let mut gaps = LogGaps { file: reader.path().to_owned(), len, needed, gaps: &mut salvaged.gaps };
    let is_newest = end == u64::MAX;
    let spans = reader.spans()?;
    let header = reader.header().ok().copied();
    let stated = header.map(|header| header.first).or_else(|| first_before(end, &spans).filter(|_| is_followed));
    let mut next = at;
    if let Some(first) = stated {
        if let Some(missing) = needed.missing(at, first) {
            gaps.add(0, 0, Some(missing), "the log before this one is missing, or its end is");
        }
        next = first;
    } else if !is_newest {
        gaps.add_rest(0, at, end, "the log has lost its header: which of its records are new is not known");
        return Ok(end.max(at));
    }
    let mut next_offset = FILE_HEADER_LEN as u64;
    for (i, span) in spans.iter().enumerate() {
        // A span that states more than comes before it proves a gap too.
        let is_after_gap = span.offset > next_offset || span.least_first > next;
        let mut first = next;
        if is_after_gap || (header.is_none() && is_newest && i == 0) {
            if is_newest && spans[i..].iter().all(|span| span.synced < next) {
                // A torn tail: the system had written its later parts, but not this one.
                break;
            }
            if header.is_none() && i == 0 {
                first = first.max(needed.elsewhere + 1);
            }
            first = first.max(span.least_first);
            let exact = end.checked_sub(span.count).filter(|exact| !is_newest && *exact >= first);
            if let (true, Some(exact)) = (i + 1 == spans.len(), exact) {
                first = exact;
            }
        }
        if first >= end || first.saturating_add(span.count) > MAX_SEQNO + 1 {
            // Void: an earlier recovery dropped these records, because the log was not whole.
            break;
        }
        if is_after_gap {
            gaps.add(next_offset, span.offset - next_offset, count(next, first), "no record verifies here");
        }
        reader.read_span(span, first, &mut |record| {
            let after = record.first + u64::from(record.count);
            if record.count == 0 || record.first < needed.expected || after > end {
                return Ok(());
            }
            apply(record)
        })?;
        next = first.saturating_add(span.count);
        next_offset = span.end;
    }
    // After its last record, the newest log may have a torn tail. That is no loss, unless a
    // statement says that it was durable.
    if is_newest {
        if next_offset < len && reader.states_durable_after(next_offset, next)? {
            gaps.add(next_offset, len - next_offset, None, "no record verifies from here on");
        } else {
            let rule = "the log ends here, but a table has later entries";
            gaps.add_rest(next_offset, next, needed.elsewhere + 1, rule);
        }
    } else if is_followed {
        gaps.add_rest(next_offset, next, end, "no record verifies from here on");
    }
    salvaged.next = salvaged.next.max(next);
    // What is missing up to the next log is in `gaps`; a next log without a header may have it.
    Ok(match is_followed {
        true => end,
        false if is_newest => next,
        false => next.max(at).min(end),
    })
}
