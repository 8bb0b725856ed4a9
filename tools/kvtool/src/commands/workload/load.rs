//! Creates the store to measure.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tamis::{Db, FilterPolicy, KeyspaceOptions, Options, RangeFilterPolicy, ReadMode, WriteBatch};

use super::super::progress::{Unit, bar};
use super::keys::{KEY_LEN, Keys, mix};
use crate::failure::Result;
use crate::output::say;

/// One key in `LATE_SHARE` is loaded late, with small memtables; the others with large ones, which
/// quickly fill the last level. The levels' target sizes follow from the memtable size, so late
/// keys stay in the upper levels, like the newest tenth or so of a store in long use.
const LATE_SHARE: u64 = 18;
/// One key in `LAST_SHARE` is loaded last, after compaction has become idle, and stays in level 0.
const LAST_SHARE: u64 = 200;
const BATCH: u64 = 1000;
/// Approximate bytes of an entry beside key and value.
const ENTRY_OVERHEAD: u64 = 4;
/// How long to wait until compaction is idle; then the store is measured as it is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store to create.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) keys: Keys,
    pub(crate) value_len: usize,
    pub(crate) filter: FilterPolicy,
    pub(crate) ranges: RangeFilterPolicy,
}

impl Load {
    /// Approximate bytes of all entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.count() * (KEY_LEN as u64 + self.value_len as u64 + ENTRY_OVERHEAD)
    }

    /// Loads all keys into a new store at `path`, waits until compaction is idle, and closes it.
    pub(crate) fn run(&self, path: &Path) -> Result<()> {
        let Load { keys, filter, ranges, .. } = *self;
        let progress = bar(Unit::Keys, Some(keys.count()));
        let last = keys.count() - keys.count() / LAST_SHARE;
        let late = last - keys.count() / LATE_SHARE;
        let db = self
            .options((self.bytes() / 16).clamp(64 << 10, 16 << 20))
            .hash_seed(keys.seed())
            .default_keyspace(KeyspaceOptions::new().filter(filter).range_filter(ranges))
            .open(path)?;
        self.put(&db, 0..late, &progress)?;
        db.compact_range(..)?;
        db.close()?;
        let db = self.late_options().open(path)?;
        self.put(&db, late..last, &progress)?;
        db.flush()?;
        settle(&db);
        self.put(&db, last..keys.count(), &progress)?;
        progress.finish_and_clear();
        db.flush()?;
        settle(&db);
        Ok(db.close()?)
    }

    /// Options that keep the levels as loading leaves them. With larger memtables, a store of this
    /// size has fewer levels, and compaction would change it to that shape.
    pub(crate) fn late_options(&self) -> Options {
        self.options((self.bytes() / 512).clamp(16 << 10, 1 << 20))
    }

    fn options(&self, memtable: u64) -> Options {
        let memtable = usize::try_from(memtable).unwrap_or(usize::MAX);
        // Small enough that every level but the first has several tables.
        let table = (self.bytes() / 128).clamp(64 << 10, 64 << 20);
        // The system counts every read.
        Options::new().memtable_size(memtable).table_size(table).read_mode(ReadMode::Pread)
    }

    fn put(&self, db: &Db, range: Range<u64>, progress: &ProgressBar) -> Result<()> {
        let mut value = vec![0; self.value_len];
        let mut next = range.start;
        while next < range.end {
            let end = (next + BATCH).min(range.end);
            let mut batch = WriteBatch::new();
            for i in next..end {
                fill(&mut value, i);
                batch.put(self.keys.existing(i), &value);
            }
            db.write(batch)?;
            next = end;
            progress.set_position(next);
        }
        Ok(())
    }
}

/// An incompressible value derived from a key's number.
fn fill(value: &mut [u8], i: u64) {
    let mut state = mix(i);
    for chunk in value.chunks_mut(8) {
        state = mix(state);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

/// Waits until every level is within its target.
pub(crate) fn settle(db: &Db) {
    let start = Instant::now();
    while db.stats().compaction_debt > 0 {
        if start.elapsed() > PATIENCE {
            say("compaction is still running; measuring anyway");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
