//! Looks keys up and counts the cost.

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

/// The cost of looking up some keys.
pub(crate) struct Measured {
    pub(crate) question: Question,
    pub(crate) filters: FilterMode,
    pub(crate) asked: u64,
    pub(crate) found: u64,
    pub(crate) time: Duration,
    pub(crate) reads: ReadStats,
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

/// Looks up all `keys`, which must exist or be missing as `question` says.
pub(crate) fn measure(
    db: &Db,
    keyspace: &Keyspace,
    question: Question,
    filters: FilterMode,
    keys: impl Iterator<Item = impl AsRef<[u8]>>,
) -> Result<Measured> {
    let options = ReadOptions::new().filters(filters);
    let before = db.stats().reads();
    let process_before = Moment::now();
    let start = Instant::now();
    let (mut asked, mut found) = (0, 0);
    for key in keys {
        asked += 1;
        found += u64::from(keyspace.get_with(key, options)?.is_some());
    }
    let time = start.elapsed();
    let process_after = Moment::now();
    let expected = if question == Question::Existing { asked } else { 0 };
    if found != expected {
        return Err(Failure::Wrong(format!(
            "found {found} of {asked} keys, expected {expected}: this is a bug in tamis"
        )));
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
