//! [`Engine`]: the operations that workloads need from a store. Narrow on purpose: other operations
//! of an engine are not compared.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;

/// How a contestant's settings deviate from those that its engine usually has here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Variant {
    /// They do not.
    Usual,
    /// Reads mapped files in place.
    Mapped,
    /// Maps no files.
    Pread,
    /// Tuned for the workloads.
    Tuned,
    /// Updates under a mutex, although the engine has operations for them.
    Mutex,
    /// Updates in optimistic transactions.
    Optimistic,
    /// Long values are separated from their keys.
    Separated,
    /// Filters for ranges, or the engine's nearest.
    Ranges,
}

/// The settings shared by all engines. An engine ignores settings that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Size of the block or page cache in bytes.
    pub cache: usize,
    /// Size of a memtable in bytes.
    pub memtable: usize,
    /// Size of a data block in bytes.
    pub block: usize,
    /// Bits per key of the Bloom filters, on all levels.
    pub bloom_bits: u8,
    /// Whether to compress with LZ4, or with the engine's substitute.
    pub compress: bool,
    /// Threads that compact, beside one that flushes.
    pub compaction_threads: u8,
    /// The store will get writes that are synced one by one. Engines that choose between speed and
    /// durability when opened choose durability.
    pub durable: bool,
    /// What is flushed stays in runs of its own: nothing compacts them.
    pub keeps_runs: bool,
    /// [`Engine::table_bytes`] will be asked. Engines count them only then if counting takes time.
    pub count_table_bytes: bool,
    /// The contestant's deviation from the engine's usual settings.
    pub variant: Variant,
}

/// Length of the files that an engine writes for [`Engine::ingest`].
pub const INGESTED_FILE: u64 = 64 << 20;

/// Entries in the order of their keys.
pub trait SortedEntries {
    /// The next key and its value.
    fn next(&mut self) -> Option<(&[u8], &[u8])>;
}

/// A store under measurement. Several threads may write and read at the same time.
pub trait Engine: Sized + Sync {
    /// A reader for one thread.
    type Reader<'a>: Reader
    where
        Self: 'a;

    /// Opens the store in `dir`, an existing directory; creates one if it is empty.
    fn open(dir: &Path, settings: &Settings) -> Result<Self>;

    /// Writes an entry that need not survive a power cut.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Writes an entry that survives a power cut once this returns.
    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Writes all entries or none.
    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()>;

    /// Deletes a key, as durably as [`put`](Engine::put) writes.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Adds 1 to the counter at `key`, 8 bytes, little-endian, 0 while it is absent. Atomic against
    /// all other increments and transfers. Returns how often a conflict made it start again.
    ///
    /// `None` if the engine has no such operation. The workload then does what applications do: a
    /// get and a put under a mutex.
    fn increment(&self, key: &[u8]) -> Result<Option<u64>> {
        let _ = key;
        Ok(None)
    }

    /// Moves 1 between two counters, if the first one has it. Atomic like
    /// [`increment`](Engine::increment), and returns the same.
    fn transfer(&self, from: &[u8], to: &[u8]) -> Result<Option<u64>> {
        let _ = (from, to);
        Ok(None)
    }

    /// Adds 1 to the counter at `key` without reading it; `false` if the engine has no merges.
    fn merge(&self, key: &[u8]) -> Result<bool> {
        let _ = key;
        Ok(false)
    }

    /// Writes sorted entries to files in `dir`, an empty directory on the store's file system, and
    /// moves these into the store, all at once and durably; `false` if the engine cannot.
    fn ingest(&self, dir: &Path, entries: &mut impl SortedEntries) -> Result<bool> {
        let _ = (dir, entries);
        Ok(false)
    }

    /// A reader that sees all earlier writes.
    fn reader(&self) -> Result<Self::Reader<'_>>;

    /// Flushes memtables into tables, if the engine has them.
    fn flush(&self) -> Result<()>;

    /// Compacts the whole store; `false` if the engine has no compaction.
    fn compact(&self) -> Result<bool>;

    /// Bytes that flushes and compactions have written since the store was opened, thus without the
    /// log; `None` if the engine does not tell.
    fn table_bytes(&self) -> Option<u64> {
        None
    }

    /// Closes the store, so that the next [`open`](Engine::open) has nothing to recover.
    fn close(self) -> Result<()>;
}

/// A transaction that conflicts more often than this is a fault of the engine or its adapter.
const MOST_CONFLICTS: u64 = 1_000_000;

/// Repeats `attempt` until it returns `true`: its transaction was committed. Returns the number of
/// conflicts before that. Gives way to other threads after each, which is fair to them.
pub fn until_committed(mut attempt: impl FnMut() -> Result<bool>) -> Result<u64> {
    for conflicts in 0..MOST_CONFLICTS {
        if attempt()? {
            return Ok(conflicts);
        }
        std::thread::yield_now();
    }
    Err(format!("a transaction had {MOST_CONFLICTS} conflicts").into())
}

/// The counter at `key`.
pub(crate) fn counter(reader: &mut impl Reader, key: &[u8]) -> Result<u64> {
    let mut count = 0;
    reader.get(key, |value| count = count_in(value))?;
    Ok(count)
}

/// The counter in a value; 0 if it has less than 8 bytes.
pub fn count_in(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key upwards.
    Forward,
    /// From the greatest key downwards.
    Backward,
}

/// A reader for one thread. Engines that read through a snapshot may keep one until
/// [`refresh`](Reader::refresh).
pub trait Reader {
    /// Makes later reads see all earlier writes. A no-op for engines whose reads always do.
    fn refresh(&mut self) -> Result<()> {
        Ok(())
    }

    /// Looks up a key and passes its value, if any, to `look`. Returns whether the key exists.
    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool>;

    /// Looks up several keys in one call, passes their values to `look`, and returns how many
    /// exist; `None` if the engine has no such call.
    fn multi_get(&mut self, keys: &[&[u8]], look: impl FnMut(&[u8])) -> Result<Option<u64>> {
        let _ = (keys, look);
        Ok(None)
    }

    /// Passes the entries from `from` on (inclusive; without it, from the end where the direction
    /// begins) to `visit`, until `visit` returns `false` or there are no more.
    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;

    /// Whether there is no key from `from` on and before `until`. Engines that take the end of a
    /// range beforehand are told it.
    fn is_empty(&mut self, from: &[u8], until: &[u8]) -> Result<bool> {
        let mut is_empty = true;
        self.scan(Some(from), Direction::Forward, |key, _| {
            is_empty = key >= until;
            false
        })?;
        Ok(is_empty)
    }

    /// Passes all keys, in order, to `visit`, until it returns `false`. Engines that can scan
    /// without reading values do.
    fn scan_keys(&mut self, mut visit: impl FnMut(&[u8]) -> bool) -> Result<()> {
        self.scan(None, Direction::Forward, |key, _| visit(key))
    }
}
