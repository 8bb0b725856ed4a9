//! fjall.

use std::path::Path;

use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use tamis_bench::Result;
use tamis_bench::contest::{Contestant, Kind};
use tamis_bench::engine::{Direction, Engine, Reader, Settings};

/// fjall's own defaults, except for the settings that all engines share.
pub(crate) const FJALL: Contestant = Contestant::new::<Fjall>("fjall", Kind::Lsm, "fjall 3.1, its own defaults");

/// A database with one keyspace.
pub(crate) struct Fjall {
    // Must be dropped before `db`.
    keyspace: Keyspace,
    db: Database,
}

fn keyspace_options(settings: &Settings) -> KeyspaceCreateOptions {
    let compression = if settings.compress { CompressionType::Lz4 } else { CompressionType::None };
    let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(settings.bloom_bits.into()));
    KeyspaceCreateOptions::default()
        .max_memtable_size(settings.memtable as u64)
        .data_block_size_policy(BlockSizePolicy::all(u32::try_from(settings.block).unwrap_or(4096)))
        .data_block_compression_policy(CompressionPolicy::all(compression))
        .filter_policy(FilterPolicy::all(filter))
}

impl Engine for Fjall {
    type Reader<'a> = FjallReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<Fjall> {
        let db = Database::builder(dir)
            .cache_size(settings.cache as u64)
            .worker_threads(settings.background_threads.into())
            .open()?;
        let keyspace = db.keyspace("default", || keyspace_options(settings))?;
        Ok(Fjall { keyspace, db })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.keyspace.insert(key, value)?)
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.insert(key, value)?;
        Ok(self.db.persist(PersistMode::SyncData)?)
    }

    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = self.db.batch();
        for (key, value) in entries {
            batch.insert(&self.keyspace, *key, *value);
        }
        Ok(batch.commit()?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.keyspace.remove(key)?)
    }

    fn reader(&self) -> Result<FjallReader<'_>> {
        Ok(FjallReader { keyspace: &self.keyspace })
    }

    fn flush(&self) -> Result<()> {
        Ok(self.keyspace.rotate_memtable_and_wait()?)
    }

    fn compact(&self) -> Result<bool> {
        self.keyspace.rotate_memtable_and_wait()?;
        self.keyspace.major_compact()?;
        Ok(true)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.persist(PersistMode::Buffer)?)
    }
}

/// A reader that sees every write that precedes the read.
pub(crate) struct FjallReader<'a> {
    keyspace: &'a Keyspace,
}

impl Reader for FjallReader<'_> {
    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool> {
        let value = self.keyspace.get(key)?;
        Ok(value.map(|value| look(&value)).is_some())
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let iter = match (from, direction) {
            (None, _) => self.keyspace.iter(),
            (Some(key), Direction::Forward) => self.keyspace.range(key..),
            (Some(key), Direction::Backward) => self.keyspace.range(..=key),
        };
        let mut show = |guard: fjall::Guard| -> Result<bool> {
            let (key, value) = guard.into_inner()?;
            Ok(visit(&key, &value))
        };
        match direction {
            Direction::Forward => iter.map(&mut show).find(|shown| !matches!(shown, Ok(true))),
            Direction::Backward => iter.rev().map(&mut show).find(|shown| !matches!(shown, Ok(true))),
        }
        .transpose()?;
        Ok(())
    }
}
