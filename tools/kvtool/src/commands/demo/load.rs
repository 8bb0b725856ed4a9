//! Making the store that is measured.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tamis::{Db, Options, WriteBatch};

use crate::failure::Result;
use crate::output::say;

/// Most keys are loaded with large memtables, which makes a full last level quickly. One in so many comes with small ones: the
/// levels' target sizes follow from the memtable's, so that these keys stay in the levels above, as the newest tenth or so of a store
/// that has long been in use does.
const LATE_SHARE: u64 = 18;
/// One in so many comes last, when compaction has come to rest, and stays in level 0.
const LAST_SHARE: u64 = 200;
const BATCH: u64 = 1000;
const VALUE_LEN: usize = 100;
/// Bytes of an entry, roughly.
const ENTRY_LEN: u64 = 120;
/// How long to wait for compactions to settle. What is not settled by then is measured as it is.
const PATIENCE: Duration = Duration::from_secs(60);

/// The keys of the demonstration: even numbers are there, the odd ones between them are not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    count: u64,
}

impl Keys {
    pub(super) fn new(count: u64) -> Keys {
        Keys { count }
    }

    pub(super) fn count(self) -> u64 {
        self.count
    }

    /// Bytes of all entries, roughly.
    pub(super) fn bytes(self) -> u64 {
        self.count * ENTRY_LEN
    }

    /// The `i`-th key to be loaded; all are different for `i` below the count, and their order is scrambled.
    pub(super) fn existing(self, i: u64) -> String {
        key(2 * self.scrambled(i))
    }

    /// A key that is not there, between two that are.
    pub(super) fn missing(self, i: u64) -> String {
        key(2 * self.scrambled(i) + 1)
    }

    /// A permutation of the numbers below the count. The factor is a prime above any count, so that it has no divisor in common
    /// with it.
    fn scrambled(self, i: u64) -> u64 {
        const PRIME: u128 = 2_654_435_761;
        let scrambled = u128::from(i) * PRIME % u128::from(self.count.max(1));
        u64::try_from(scrambled).unwrap_or_default()
    }
}

fn key(number: u64) -> String {
    format!("user{number:012}")
}

/// A value that does not compress well, from a key's number.
fn value(i: u64, out: &mut [u8; VALUE_LEN]) {
    let mut state = i;
    for chunk in out.chunks_mut(8) {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        chunk.copy_from_slice(&mixed.to_le_bytes()[..chunk.len()]);
    }
}

/// Loads all keys into a new store at `path`, lets compaction come to rest, and closes it.
pub(super) fn load(path: &Path, keys: Keys) -> Result<()> {
    let progress = progress_bar(keys.count);
    let last = keys.count - keys.count / LAST_SHARE;
    let late = last - keys.count / LATE_SHARE;
    let db = options(keys, (keys.bytes() / 16).clamp(64 << 10, 16 << 20)).open(path)?;
    put(&db, keys, 0..late, &progress)?;
    db.compact_range(..)?;
    db.close()?;
    let db = late_options(keys).open(path)?;
    put(&db, keys, late..last, &progress)?;
    db.flush()?;
    settle(&db);
    put(&db, keys, last..keys.count, &progress)?;
    progress.finish_and_clear();
    db.flush()?;
    settle(&db);
    Ok(db.close()?)
}

/// Options that keep the levels as they are when loading ends. With larger memtables a store of this size has fewer levels, and
/// compaction would bring it there.
pub(super) fn late_options(keys: Keys) -> Options {
    options(keys, (keys.bytes() / 512).clamp(16 << 10, 1 << 20))
}

fn options(keys: Keys, memtable: u64) -> Options {
    let memtable = usize::try_from(memtable).unwrap_or(usize::MAX);
    // Small enough that every level but the uppermost has several tables.
    let table = (keys.bytes() / 128).clamp(64 << 10, 64 << 20);
    Options::new().memtable_size(memtable).table_size(table)
}

fn put(db: &Db, keys: Keys, range: std::ops::Range<u64>, progress: &ProgressBar) -> Result<()> {
    let mut bytes = [0; VALUE_LEN];
    let mut next = range.start;
    while next < range.end {
        let end = (next + BATCH).min(range.end);
        let mut batch = WriteBatch::new();
        for i in next..end {
            value(i, &mut bytes);
            batch.put(keys.existing(i), bytes);
        }
        db.write(batch)?;
        next = end;
        progress.set_position(next);
    }
    Ok(())
}

/// Waits until every level is within its target.
fn settle(db: &Db) {
    let start = Instant::now();
    while db.stats().compaction_debt > 0 {
        if start.elapsed() > PATIENCE {
            say("compaction has not come to rest; measuring all the same");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Hidden when standard error is not a terminal.
fn progress_bar(keys: u64) -> ProgressBar {
    let bar = ProgressBar::new(keys);
    match ProgressStyle::with_template("loading {bar:40} {percent} %, {human_pos} keys, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_is_there_once_and_no_missing_one_is() {
        for count in [1000, 1024, 4999] {
            let keys = Keys::new(count);
            let existing: BTreeSet<String> = (0..count).map(|i| keys.existing(i)).collect();
            assert_eq!(existing.len() as u64, count);
            assert!((0..count).all(|i| !existing.contains(&keys.missing(i))));
        }
    }
}
