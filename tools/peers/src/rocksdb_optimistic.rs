//! RocksDB's optimistic transactions. Their database is a type of its own in the crate.

use std::path::Path;

use rocksdb::{
    ErrorKind, OptimisticTransactionDB, OptimisticTransactionOptions, ReadOptions, SingleThreaded, Transaction,
    WriteBatchWithTransaction, WriteOptions,
};
use tamis_bench::Result;
use tamis_bench::contest::{Contestant, Kind};
use tamis_bench::engine::{Direction, Engine, Reader, Settings, Variant, count_in, until_committed};

use crate::rocksdb::{options, scan};

/// RocksDB's own defaults; updates in optimistic transactions, which are repeated after conflicts.
pub(crate) const ROCKSDB_OPTIMISTIC: Contestant = Contestant::new::<RocksDbOptimistic>(
    "rocksdb-optimistic",
    Kind::Lsm,
    "RocksDB 11.8.1, OptimisticTransactionDB with get_for_update and retries",
)
.with(Variant::Optimistic)
.only_in("updates");

type Db = OptimisticTransactionDB<SingleThreaded>;

/// A database.
pub(crate) struct RocksDbOptimistic {
    db: Db,
    read: ReadOptions,
    write: WriteOptions,
    synced: WriteOptions,
}

impl RocksDbOptimistic {
    /// Repeats `work` in transactions until one is committed. Returns the number of conflicts.
    fn transact(&self, work: impl Fn(&Transaction<'_, Db>) -> Result<()>) -> Result<Option<u64>> {
        let conflicts = until_committed(|| {
            let transaction = self.db.transaction_opt(&self.write, &OptimisticTransactionOptions::default());
            work(&transaction)?;
            match transaction.commit() {
                Ok(()) => Ok(true),
                // Busy: a key was written; TryAgain: the memtables that would tell are gone.
                Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TryAgain) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })?;
        Ok(Some(conflicts))
    }

    /// The counter at `key`. The transaction will fail if the counter is written before its commit.
    fn counter(&self, transaction: &Transaction<'_, Db>, key: &[u8]) -> Result<u64> {
        let value = transaction.get_pinned_for_update_opt(key, true, &self.read)?;
        Ok(value.map_or(0, |value| count_in(&value)))
    }
}

impl Engine for RocksDbOptimistic {
    type Reader<'a> = OptimisticReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let db = Db::open(&options(settings), dir)?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(RocksDbOptimistic { db, read: ReadOptions::default(), write: WriteOptions::default(), synced })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key, value, &self.write)?)
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key, value, &self.synced)?)
    }

    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = WriteBatchWithTransaction::<true>::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, &self.write)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.db.delete_opt(key, &self.write)?)
    }

    fn increment(&self, key: &[u8]) -> Result<Option<u64>> {
        self.transact(|transaction| {
            let count = self.counter(transaction, key)?;
            Ok(transaction.put(key, (count + 1).to_le_bytes())?)
        })
    }

    fn transfer(&self, from: &[u8], to: &[u8]) -> Result<Option<u64>> {
        self.transact(|transaction| {
            let (giver, taker) = (self.counter(transaction, from)?, self.counter(transaction, to)?);
            if let Some(left) = giver.checked_sub(1) {
                transaction.put(from, left.to_le_bytes())?;
                transaction.put(to, (taker + 1).to_le_bytes())?;
            }
            Ok(())
        })
    }

    fn reader(&self) -> Result<OptimisticReader<'_>> {
        Ok(OptimisticReader { engine: self })
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn compact(&self) -> Result<bool> {
        self.db.flush()?;
        self.db.compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(true)
    }

    fn close(self) -> Result<()> {
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}

/// A reader that sees every write that precedes the read.
pub(crate) struct OptimisticReader<'a> {
    engine: &'a RocksDbOptimistic,
}

impl Reader for OptimisticReader<'_> {
    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool> {
        let value = self.engine.db.get_pinned_opt(key, &self.engine.read)?;
        Ok(value.map(|value| look(&value)).is_some())
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        scan(self.engine.db.raw_iterator(), from, direction, visit)
    }
}
