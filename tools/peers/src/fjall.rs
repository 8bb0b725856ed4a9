//! fjall.

use std::path::Path;

use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, OptimisticTxDatabase,
    OptimisticTxKeyspace, PersistMode, Readable,
};
use tamis_bench::Result;
use tamis_bench::contest::{Contestant, Kind};
use tamis_bench::engine::{Direction, Engine, Reader, Settings, Variant, count_in, until_committed};
use tamis_bench::tamis_engine::SEPARATED_FROM;

/// fjall's own defaults, except for the settings that all engines share.
pub(crate) const FJALL: Contestant = Contestant::new::<Fjall>("fjall", Kind::Lsm, "fjall 3.1, its own defaults");

/// Updates by `fetch_update` and transactions of an `OptimisticTxDatabase`.
pub(crate) const FJALL_OPTIMISTIC: Contestant =
    Contestant::new::<Fjall>("fjall-optimistic", Kind::Lsm, "fjall 3.1, its optimistic transactions")
        .with(Variant::Optimistic)
        .only_in("updates");

/// Long values in blob files.
pub(crate) const FJALL_SEPARATED: Contestant =
    Contestant::new::<Fjall>("fjall-separated", Kind::Lsm, "fjall 3.1, key-value separation from 4 KiB on")
        .with(Variant::Separated)
        .only_in("blobs");

/// A database with one keyspace.
pub(crate) struct Fjall {
    // Must be dropped before `db`.
    keyspace: Keyspace,
    transactions: Option<(OptimisticTxKeyspace, OptimisticTxDatabase)>,
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
        .with_kv_separation(
            (settings.variant == Variant::Separated)
                .then(|| KvSeparationOptions::default().separation_threshold(SEPARATED_FROM).compression(compression)),
        )
}

/// The counter at `key`, as a transaction sees it.
fn counter(transaction: &impl Readable, keyspace: &Keyspace, key: &[u8]) -> fjall::Result<u64> {
    Ok(transaction.get(keyspace, key)?.map_or(0, |value| count_in(&value)))
}

impl Engine for Fjall {
    type Reader<'a> = FjallReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<Fjall> {
        let (cache, threads) = (settings.cache as u64, usize::from(settings.compaction_threads) + 1);
        let options = || keyspace_options(settings);
        if settings.variant == Variant::Optimistic {
            let db = OptimisticTxDatabase::builder(dir).cache_size(cache).worker_threads(threads).open()?;
            let keyspace = db.keyspace("default", options)?;
            let plain = (keyspace.inner().clone(), db.inner().clone());
            return Ok(Fjall { keyspace: plain.0, transactions: Some((keyspace, db)), db: plain.1 });
        }
        let db = Database::builder(dir).cache_size(cache).worker_threads(threads).open()?;
        Ok(Fjall { keyspace: db.keyspace("default", options)?, transactions: None, db })
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

    fn increment(&self, key: &[u8]) -> Result<Option<u64>> {
        let Some((keyspace, _)) = &self.transactions else { return Ok(None) };
        let mut attempts = 0;
        keyspace.fetch_update(key, |value| {
            attempts += 1;
            Some((value.map_or(0, |value| count_in(value)) + 1).to_le_bytes().into())
        })?;
        Ok(Some(attempts - 1))
    }

    fn transfer(&self, from: &[u8], to: &[u8]) -> Result<Option<u64>> {
        let Some((_, db)) = &self.transactions else { return Ok(None) };
        let keyspace = &self.keyspace;
        let conflicts = until_committed(|| {
            let mut transaction = db.write_tx()?;
            let (giver, taker) = (counter(&transaction, keyspace, from)?, counter(&transaction, keyspace, to)?);
            if let Some(left) = giver.checked_sub(1) {
                transaction.insert(keyspace, from, left.to_le_bytes());
                transaction.insert(keyspace, to, (taker + 1).to_le_bytes());
            }
            Ok(transaction.commit()?.is_ok())
        })?;
        Ok(Some(conflicts))
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

    fn scan_keys(&mut self, mut visit: impl FnMut(&[u8]) -> bool) -> Result<()> {
        for guard in self.keyspace.iter() {
            if !visit(&guard.key()?) {
                break;
            }
        }
        Ok(())
    }
}
