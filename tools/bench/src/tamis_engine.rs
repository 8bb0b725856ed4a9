//! tamis as an [`Engine`].

use std::path::Path;
use std::sync::Mutex;

use tamis::{
    ByteOrder, Compression, Db, Error, FilterPolicy, KeyspaceOptions, Options, ReadOptions, WriteBatch, WriteOptions,
};

use crate::Result;
use crate::contest::{Contestant, Kind};
use crate::engine::{Direction, Engine, Reader, Settings, count_in};

/// tamis with default options.
pub const TAMIS: Contestant = Contestant::new::<Tamis>("tamis", Kind::Tamis, "this version, with its default options");

/// tamis with the option `mmap_reads`.
pub const TAMIS_MAPPED: Contestant =
    Contestant::new::<TamisMapped>("tamis-mapped", Kind::Other, "this version, with the option mmap_reads");

/// A tamis store that reads through the block cache.
pub type Tamis = TamisStore<false>;
/// A tamis store with the option `mmap_reads`.
pub type TamisMapped = TamisStore<true>;

/// A tamis store with default options, except for [`Settings`] and `mmap_reads`.
pub struct TamisStore<const MAPPED: bool> {
    db: Db,
}

/// A reader that sees every write that precedes the read.
pub struct TamisReader<'a> {
    db: &'a Db,
}

impl<const MAPPED: bool> Engine for TamisStore<MAPPED> {
    type Reader<'a> = TamisReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let compression = if settings.compress { Compression::Lz4 } else { Compression::None };
        let keyspace = KeyspaceOptions::new()
            .filter(FilterPolicy::Bloom { bits_per_key: settings.bloom_bits.into() })
            .block_size(u32::try_from(settings.block)?)
            .compression(compression);
        let db = Options::new()
            .cache_size(settings.cache)
            .mmap_reads(MAPPED)
            .memtable_size(settings.memtable)
            .background_threads(settings.background_threads.into())
            .default_keyspace(keyspace)
            .open(dir)?;
        Ok(TamisStore { db })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put(key, value)?;
        Ok(())
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put(key, value);
        self.db.write_with(batch, WriteOptions::new().sync(true))?;
        Ok(())
    }

    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (key, value) in entries {
            batch.put(key, value);
        }
        self.db.write(batch)?;
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.db.delete(key)?;
        Ok(())
    }

    fn increment(&self, key: &[u8], _: &Mutex<()>) -> Result<()> {
        self.db.fetch_add(key, 1u64, ByteOrder::Little)?;
        Ok(())
    }

    fn transfer(&self, from: &[u8], to: &[u8], _: &Mutex<()>) -> Result<()> {
        self.db.transact(|tx| {
            let count = |value: Option<tamis::Value>| value.map_or(0, |value| count_in(&value));
            let (giver, taker) = (count(tx.get(from)?), count(tx.get(to)?));
            if let Some(left) = giver.checked_sub(1) {
                tx.put(from, left.to_le_bytes());
                tx.put(to, (taker + 1).to_le_bytes());
            }
            Ok::<_, Error>(())
        })?;
        Ok(())
    }

    fn reader(&self) -> Result<TamisReader<'_>> {
        Ok(TamisReader { db: &self.db })
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn compact(&self) -> Result<bool> {
        self.db.compact_range(..)?;
        Ok(true)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.close()?)
    }
}

impl Reader for TamisReader<'_> {
    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool> {
        Ok(self.db.read(key, look)?.is_some())
    }

    fn multi_get(&mut self, keys: &[&[u8]], mut look: impl FnMut(&[u8])) -> Result<Option<u64>> {
        let values = self.db.multi_get(keys)?;
        values.iter().flatten().for_each(|value| look(value));
        Ok(Some(values.iter().flatten().count() as u64))
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let mut cursor = self.db.cursor_with(ReadOptions::new())?;
        let mut valid = match (from, direction) {
            (None, Direction::Forward) => cursor.seek_to_first()?,
            (None, Direction::Backward) => cursor.seek_to_last()?,
            (Some(key), Direction::Forward) => cursor.seek(key)?,
            (Some(key), Direction::Backward) => cursor.seek_for_prev(key)?,
        };
        while valid && let (Some(key), Some(value)) = (cursor.key(), cursor.value()) {
            if !visit(key, value) {
                break;
            }
            valid = match direction {
                Direction::Forward => cursor.next()?,
                Direction::Backward => cursor.prev()?,
            };
        }
        Ok(())
    }
}
