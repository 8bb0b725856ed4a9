//! [`Engine`]: the operations that workloads need from a store. Narrow on purpose: other operations
//! of an engine are not compared.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::Result;

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
    /// Threads for flushes and compactions.
    pub background_threads: u8,
    /// The store will get writes that are synced one by one. Engines that choose between speed and
    /// durability when opened choose durability.
    pub durable: bool,
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
    /// all other increments and transfers.
    ///
    /// By default what applications write for engines without such an operation: a get and a put
    /// under `lock`, which is the same in all calls.
    fn increment(&self, key: &[u8], lock: &Mutex<()>) -> Result<()> {
        let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counter(&mut self.reader()?, key)?;
        self.put(key, &(count + 1).to_le_bytes())
    }

    /// Moves 1 between two counters, if the first one has it. Atomic like
    /// [`increment`](Engine::increment), and by default made in the same way.
    fn transfer(&self, from: &[u8], to: &[u8], lock: &Mutex<()>) -> Result<()> {
        let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reader = self.reader()?;
        let (giver, taker) = (counter(&mut reader, from)?, counter(&mut reader, to)?);
        let Some(left) = giver.checked_sub(1) else { return Ok(()) };
        self.put_batch(&[(from, &left.to_le_bytes()), (to, &(taker + 1).to_le_bytes())])
    }

    /// A reader that sees all earlier writes.
    fn reader(&self) -> Result<Self::Reader<'_>>;

    /// Flushes memtables into tables, if the engine has them.
    fn flush(&self) -> Result<()>;

    /// Compacts the whole store; `false` if the engine has no compaction.
    fn compact(&self) -> Result<bool>;

    /// Closes the store, so that the next [`open`](Engine::open) has nothing to recover.
    fn close(self) -> Result<()>;
}

/// The counter at `key`.
pub(crate) fn counter(reader: &mut impl Reader, key: &[u8]) -> Result<u64> {
    let mut count = 0;
    reader.get(key, |value| count = count_in(value))?;
    Ok(count)
}

/// The counter in a value; 0 if it has less than 8 bytes.
pub(crate) fn count_in(value: &[u8]) -> u64 {
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
}
