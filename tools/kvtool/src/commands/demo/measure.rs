//! Asking, and counting what that takes.

use std::time::{Duration, Instant};

use tamis::{Db, FilterMode, ReadOptions, ReadStats};

use super::load::Keys;
use super::process::{Io, Moment};
use crate::failure::{Failure, Result};

/// Which keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Existing,
    Missing,
}

/// What it took to ask for some keys.
pub(super) struct Measured {
    pub(super) question: Question,
    pub(super) filters: FilterMode,
    pub(super) asked: u64,
    pub(super) found: u64,
    pub(super) time: Duration,
    pub(super) reads: ReadStats,
    /// What the operating system counted meanwhile, where it does.
    pub(super) process: Option<Io>,
}

/// Looks into every table once, so that its filter and index are in memory: what is measured are the reads of blocks.
pub(super) fn warm_up(db: &Db) -> Result<()> {
    let stats = db.stats();
    let tables = stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).flat_map(|level| &level.tables);
    for table in tables {
        // Behind the smallest key, so that no level ends the search before this table is asked, and hardly any other key is meant.
        let absent = [&table.smallest[..], b"\0"].concat();
        db.get_with(absent, ReadOptions::new().filters(FilterMode::Ignore))?;
    }
    Ok(())
}

pub(super) fn measure(db: &Db, keys: Keys, question: Question, filters: FilterMode, asked: u64) -> Result<Measured> {
    let options = ReadOptions::new().filters(filters);
    // Spread over all that was loaded, early and late.
    let step = (keys.count() / asked).max(1);
    let before = db.stats().reads();
    let process_before = Moment::now();
    let start = Instant::now();
    let mut found = 0;
    for i in 0..asked {
        let key = match question {
            Question::Existing => keys.existing(i * step),
            Question::Missing => keys.missing(i * step),
        };
        found += u64::from(db.get_with(key, options)?.is_some());
    }
    let time = start.elapsed();
    let process_after = Moment::now();
    let expected = if question == Question::Existing { asked } else { 0 };
    if found != expected {
        return Err(Failure::Wrong(format!(
            "{found} of {asked} keys were found, {expected} are there: this is a bug in tamis"
        )));
    }
    Ok(Measured {
        question,
        filters,
        asked,
        found,
        time,
        reads: db.stats().reads() - before,
        process: process_before.zip(process_after).and_then(|(before, after)| before.until(after)),
    })
}
