//! Looks up keys and ranges, and counts the cost.

use std::borrow::Borrow;
use std::time::{Duration, Instant};

use tamis::{Db, FilterMode, Keyspace, ReadOptions, ReadStats};

use super::super::range::KeyRange;
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
pub(crate) struct Measured<Q> {
    pub(crate) question: Q,
    pub(crate) filters: FilterMode,
    pub(crate) asked: u64,
    pub(crate) found: u64,
    pub(crate) time: Duration,
    pub(crate) reads: ReadStats,
    /// False positives of range filters, as their builders predicted them.
    pub(crate) predicted: f64,
    /// The operating system's counters for the same time, where available.
    pub(crate) process: Option<Io>,
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

/// Looks up all `keys`. All exist, or none.
pub(crate) fn measure<Q>(
    db: &Db,
    keyspace: &Keyspace,
    question: (Q, bool),
    filters: FilterMode,
    keys: impl Iterator<Item = impl AsRef<[u8]>>,
) -> Result<Measured<Q>> {
    let options = ReadOptions::new().filters(filters);
    ask(db, question, filters, keys, |key| Ok(keyspace.get_with(key, options)?.is_some()))
}

/// How ranges are scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Most entries that are read.
    pub(crate) entries: u64,
    pub(crate) backward: bool,
}

impl Scan {
    pub(crate) const FIRST: Scan = Scan { entries: 1, backward: false };
}

/// Scans each range. All have an entry, or none.
pub(crate) fn measure_ranges<Q>(
    db: &Db,
    keyspace: &Keyspace,
    question: (Q, bool),
    filters: FilterMode,
    scan: Scan,
    ranges: impl Iterator<Item = impl Borrow<KeyRange>>,
) -> Result<Measured<Q>> {
    let options = ReadOptions::new().filters(filters);
    ask(db, question, filters, ranges, |range| {
        let mut entries = keyspace.range_with(range.borrow().bounds(), options);
        let mut next = || if scan.backward { entries.next_back() } else { entries.next() }.transpose();
        let mut count = 0;
        while count < scan.entries && next()?.is_some() {
            count += 1;
        }
        Ok(count > 0)
    })
}

/// Looks for each of `items` with `find`, which finds all or none, and counts the cost.
fn ask<Q, T>(
    db: &Db,
    (question, is_found): (Q, bool),
    filters: FilterMode,
    items: impl Iterator<Item = T>,
    mut find: impl FnMut(T) -> Result<bool>,
) -> Result<Measured<Q>> {
    let before = db.stats().ledger();
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
    let after = db.stats().ledger();
    Ok(Measured {
        question,
        filters,
        asked,
        found,
        time,
        reads: after.reads - before.reads,
        predicted: after.expected_range_false_positives - before.expected_range_false_positives,
        process: process_before.zip(process_after).map(|(before, after)| before.until(after)),
    })
}
