//! Asking, and counting what that takes.

use std::time::{Duration, Instant};

use tamis::{Db, FilterMode, Keyspace, ReadOptions, ReadStats};

use super::super::store::stats_of_keyspace;
use super::process::{Io, Moment};
use crate::failure::{Failure, Result};

/// Which keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Existing,
    Missing,
}

/// What it took to ask for some keys.
pub(crate) struct Measured {
    pub(crate) question: Question,
    pub(crate) filters: FilterMode,
    pub(crate) asked: u64,
    pub(crate) found: u64,
    pub(crate) time: Duration,
    pub(crate) reads: ReadStats,
    /// What the operating system counted meanwhile, where it does.
    pub(crate) process: Option<Io>,
}

/// Looks into every table of a keyspace once, so that its filter and index are in memory: what is measured are the reads of blocks.
pub(crate) fn warm_up(db: &Db, keyspace: &Keyspace) -> Result<()> {
    for table in stats_of_keyspace(db, keyspace).levels.iter().flat_map(|level| &level.tables) {
        // Behind the smallest key, so that no level ends the search before this table is asked, and hardly any other key is meant.
        let absent = [&table.smallest[..], b"\0"].concat();
        keyspace.get_with(absent, ReadOptions::new().filters(FilterMode::Ignore))?;
    }
    Ok(())
}

/// Asks for all `keys`, which must be there or not as `question` says.
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
        process: process_before.zip(process_after).map(|(before, after)| before.until(after)),
    })
}
