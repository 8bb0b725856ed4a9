//! [`Engine`]: what a workload asks of a store. Narrow on purpose: what an engine does beyond it is not compared.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;

/// What all engines are given alike; an engine leaves out what it has no notion of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Bytes of the block or page cache.
    pub cache: usize,
    /// Bytes of a memtable.
    pub memtable: usize,
    /// Bytes of a data block.
    pub block: usize,
    /// Bits per key of the Bloom filters, on all levels.
    pub bloom_bits: u8,
    /// LZ4, or what the engine has instead.
    pub compress: bool,
    /// Threads for flushes and compactions.
    pub background_threads: u8,
    /// The store is opened for writes that are synced one by one. Engines that choose between speed and durability when they are opened
    /// choose durability.
    pub durable: bool,
}

/// A store under measurement. Writes and readers may be used by several threads at the same time.
pub trait Engine: Sized + Sync {
    /// One thread's access for reading.
    type Reader<'a>: Reader
    where
        Self: 'a;

    /// Opens the store in `dir`, an existing directory; makes one when it is empty.
    fn open(dir: &Path, settings: &Settings) -> Result<Self>;

    /// Writes an entry, which need not survive a power cut.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Writes an entry, which survives a power cut when this returns.
    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Writes all entries or none.
    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()>;

    /// Deletes a key, in the manner of [`put`](Engine::put).
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// A reader that sees all that was written before.
    fn reader(&self) -> Result<Self::Reader<'_>>;

    /// Brings what is in memtables into tables, if there are such.
    fn flush(&self) -> Result<()>;

    /// Compacts the whole store; `false` if the engine knows nothing of the kind.
    fn compact(&self) -> Result<bool>;

    /// Closes the store; the next [`open`](Engine::open) need not recover anything.
    fn close(self) -> Result<()>;
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key on.
    Forward,
    /// From the greatest key back.
    Backward,
}

/// One thread's access for reading. Engines whose reads go through a snapshot may keep one until [`refresh`](Reader::refresh).
pub trait Reader {
    /// From now on, reads see all that was written before. Nothing to do where they always do.
    fn refresh(&mut self) -> Result<()> {
        Ok(())
    }

    /// Looks a key up, and shows its value if it is there.
    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool>;

    /// Looks several keys up in one call and returns how many are there, showing their values; `None` if the engine has no such call.
    fn multi_get(&mut self, keys: &[&[u8]], look: impl FnMut(&[u8])) -> Result<Option<u64>> {
        let _ = (keys, look);
        Ok(None)
    }

    /// Shows the entries from `from` (included, or the end that the direction begins at), until `visit` returns `false` or there are no
    /// more.
    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;
}
