//! Looks up keys and ranges, and counts the cost.

use std::ops::Bound;
use std::time::{Duration, Instant};

use tamis::{Db, FilterMode, Keyspace, ReadOptions, ReadStats};

use super::super::store::stats_of_keyspace;
use super::process::{Io, Moment};
use crate::failure::{Failure, Result};

/// Which keys are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Existing,
    Missing,
}

/// The cost of looking something up.
pub(crate) struct Measured<Q = Question> {
    pub(crate) question: Q,
    pub(crate) filters: FilterMode,
    pub(crate) asked: u64,
    pub(crate) found: u64,
    pub(crate) time: Duration,
    pub(crate) reads: ReadStats,
    /// The operating system's counters for the same time, where available.
    pub(crate) process: Option<Io>,
}

impl<Q> Measured<Q> {
    /// This, as the answer to another question.
    pub(crate) fn of<P>(self, question: P) -> Measured<P> {
        let Measured { filters, asked, found, time, reads, process, .. } = self;
        Measured { question, filters, asked, found, time, reads, process }
    }
}

/// Reads from every table of a keyspace once, so that its filter and index are in memory: only
/// block reads are measured.
pub(crate) fn warm_up(db: &Db, keyspace: &Keyspace) -> Result<()> {
    for table in stats_of_keyspace(db, keyspace).levels.iter().flat_map(|level| &level.tables) {
        // An absent key just above the smallest one: no level above ends the search, and hardly any
        // other table is meant.
        let absent = [&table.smallest[..], b"\0"].concat();
        keyspace.get_with(absent, ReadOptions::new().filters(FilterMode::Ignore))?;
    }
    Ok(())
}

/// Looks up all `keys`, which must exist or be missing as `question` says.
pub(crate) fn measure(
    db: &Db,
    keyspace: &Keyspace,
    question: Question,
    filters: FilterMode,
    keys: impl Iterator<Item = impl AsRef<[u8]>>,
) -> Result<Measured> {
    let options = ReadOptions::new().filters(filters);
    let is_found = question == Question::Existing;
    ask(db, question, is_found, filters, keys, |key| Ok(keyspace.get_with(key, options)?.is_some()))
}

/// Scans each range, of which an end may be missing, for its first entry. All have one, or none.
pub(crate) fn measure_ranges<Q>(
    db: &Db,
    keyspace: &Keyspace,
    (question, is_found): (Q, bool),
    filters: FilterMode,
    ranges: impl Iterator<Item = (String, Option<String>)>,
) -> Result<Measured<Q>> {
    let options = ReadOptions::new().filters(filters);
    let first = |(from, until): (String, Option<String>)| {
        let until = until.map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = keyspace.range_with((Bound::Included(from), until), options);
        Ok(range.next().transpose()?.is_some())
    };
    ask(db, question, is_found, filters, ranges, first)
}

/// Looks for each of `items` with `find`, which finds all or none, and counts the cost.
fn ask<Q, T>(
    db: &Db,
    question: Q,
    is_found: bool,
    filters: FilterMode,
    items: impl Iterator<Item = T>,
    mut find: impl FnMut(T) -> Result<bool>,
) -> Result<Measured<Q>> {
    let before = db.stats().reads();
    let process_before = Moment::now();
    let start = Instant::now();
    let (mut asked, mut found) = (0, 0);
    for item in items {
        asked += 1;
        found += u64::from(find(item)?);
    }
    let time = start.elapsed();
    let process_after = Moment::now();
    let expected = if is_found { asked } else { 0 };
    if found != expected {
        return Err(Failure::Wrong(format!("found {found} of {asked}, expected {expected}: this is a bug in tamis")));
    }
    Ok(Measured {
        question,
        filters,
        asked,
        found,
        time,
        reads: db.stats().reads() - before,
        process: process_before.zip(process_after).map(|(before, after)| before.until(after)),
    })
}
