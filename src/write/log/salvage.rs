//! [`salvage`]: the records of several logs past all damage, for `repair`.
//!
//! Behind a gap it is not written down with which ordinal a record begins. Known are a lower bound
//! (the ordinal behind the gap's beginning, and what later records state to be durable before them)
//! and, if the next log says where this one ended, the last run's exact place. Records get the
//! exact ordinal, or else the lower bound: so they keep their order, and none gets an ordinal that
//! belongs to a later log.
//!
//! A log without a header says no more than its number. If all its records follow each other from
//! its beginning on, and the next log says where they end, then each has its exact ordinal. Without
//! that, its records cannot be told from such as have been replayed long ago, and the log is lost.
//! The newest one is an exception: what it holds comes last, whatever its ordinals were, so that
//! its records go behind everything else, in their order.

use std::path::{Path, PathBuf};

use super::reader::{LogReader, Record, Run};
use super::replay::find_ends;
use crate::error::{Error, Result};
use crate::format::header::{FILE_HEADER_LEN, Magic};
use crate::format::key::MAX_SEQNO;
use crate::vfs::FileSystem;

/// A place where records were, or should have been, and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogGap {
    pub(crate) file: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Ordinals that are missing, at least, if that is known.
    pub(crate) ordinals: Option<u64>,
    /// What is wrong there.
    pub(crate) rule: String,
}

/// What came of reading damaged logs.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    pub(crate) gaps: Vec<LogGap>,
    /// Greater than every ordinal that was read, or that a log mentions.
    pub(crate) next: u64,
}

/// Opens a log of which the header need not be right, and returns the header if it is.
pub(crate) fn open_damaged(fs: &dyn FileSystem, path: &Path, magic: Magic, number: u64) -> Result<LogReader> {
    match LogReader::open(fs, path, magic, number) {
        Err(Error::Corruption { rule, .. }) => LogReader::open_headless(fs, path, number, &rule),
        opened => opened,
    }
}

/// Which ordinals the logs should have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needed {
    /// The first ordinal that is wanted: all before it is elsewhere.
    pub(crate) expected: u64,
    /// The logs need not have what is up to here.
    pub(crate) elsewhere: u64,
}

/// Hands the records of `logs` (numbers ascending, with their paths) that are wanted to `apply`, in
/// order.
pub(crate) fn salvage(
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

/// The ordinal that a log without a header begins with, if `runs` are all that it holds and `end`
/// is the first one of the next log.
fn first_before(end: u64, runs: &[Run]) -> Option<u64> {
    let [run] = runs else { return None };
    let first = end.checked_sub(run.count).filter(|first| *first >= run.least_first.max(1))?;
    (run.offset == FILE_HEADER_LEN as u64).then_some(first)
}

/// Reads one log, from ordinal `at` on as far as is known; returns the ordinal behind it. It ends
/// before `end`, and there exactly if the log behind it says so.
fn salvage_log(
    mut reader: LogReader,
    at: u64,
    (end, is_followed): (u64, bool),
    needed: Needed,
    apply: &mut dyn FnMut(&Record<'_>) -> Result<()>,
    salvaged: &mut Salvaged,
) -> Result<u64> {
    let (path, len) = (reader.path().to_owned(), reader.len());
    let gap = |offset: u64, bytes: u64, ordinals: Option<u64>, rule: &str| LogGap {
        file: path.clone(),
        offset,
        bytes,
        ordinals,
        rule: rule.to_owned(),
    };
    // Ordinals from one to the other that are nowhere.
    let missing = |from: u64, to: u64| to.checked_sub(from.max(needed.elsewhere + 1)).filter(|missing| *missing > 0);
    let is_newest = end == u64::MAX;
    let runs = reader.runs()?;
    let header = reader.header().ok().copied();
    let stated = header.map(|header| header.first).or_else(|| first_before(end, &runs).filter(|_| is_followed));
    let mut gaps = Vec::new();
    let mut next = at;
    if let Some(first) = stated {
        if let Some(missing) = missing(at, first) {
            gaps.push(gap(0, 0, Some(missing), "the log before this one is missing, or its end is"));
        }
        next = first;
    } else if !is_newest {
        let missing = missing(at, end);
        if missing.is_some() {
            let rule = "the log has lost its header: which of its records are new is not known";
            salvaged.gaps.push(gap(0, len, missing, rule));
        }
        return Ok(end.max(at));
    }
    let mut behind = FILE_HEADER_LEN as u64;
    for (i, run) in runs.iter().enumerate() {
        // A run that states more than comes before it says that something is missing there, too.
        let is_behind_gap = run.offset > behind || run.least_first > next;
        let mut first = next;
        if is_behind_gap || (header.is_none() && is_newest && i == 0) {
            if is_newest && runs[i..].iter().all(|run| run.synced < next) {
                // A torn tail: the system had written later parts of it, and not this one.
                break;
            }
            if header.is_none() && i == 0 {
                first = first.max(needed.elsewhere + 1);
            }
            first = first.max(run.least_first);
            let exact = end.checked_sub(run.count).filter(|exact| !is_newest && *exact >= first);
            if let (true, Some(exact)) = (i + 1 == runs.len(), exact) {
                first = exact;
            }
        }
        if first >= end || first.saturating_add(run.count) > MAX_SEQNO + 1 {
            // Void: an earlier recovery has dropped what stands here, because it was not whole.
            break;
        }
        if is_behind_gap {
            let missing = Some(first - next).filter(|missing| *missing > 0);
            gaps.push(gap(behind, run.offset - behind, missing, "no record verifies here"));
        }
        reader.read_run(run, first, &mut |record| {
            let behind = record.first + u64::from(record.count);
            if record.count == 0 || record.first < needed.expected || behind > end {
                return Ok(());
            }
            apply(record)
        })?;
        next = first.saturating_add(run.count);
        behind = run.end;
    }
    // Behind the last record of the newest log there may be a torn tail: that is no loss, unless
    // something says that it was durable.
    if is_newest {
        if behind < len && reader.states_behind(behind, next)? {
            gaps.push(gap(behind, len - behind, None, "no record verifies from here on"));
        }
    } else if let Some(missing) = missing(next, end).filter(|_| is_followed) {
        gaps.push(gap(behind, len.saturating_sub(behind), Some(missing), "no record verifies from here on"));
    }
    salvaged.gaps.extend(gaps);
    salvaged.next = salvaged.next.max(next);
    // What is missing up to the next log has been told; one without a header may have it.
    Ok(match is_followed {
        true => end,
        false if is_newest => next,
        false => next.max(at).min(end),
    })
}
