//! redb: a copy-on-write B-tree.

use std::path::Path;

use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition, TableError,
    WriteTransaction,
};
use tamis_bench::Result;
use tamis_bench::contest::{Contestant, Kind};
use tamis_bench::engine::{Direction, Engine, Reader, Settings, count_in};

/// redb's own defaults; unsynced commits have `Durability::None`.
pub(crate) const REDB: Contestant = Contestant::new::<Redb>(
    "redb",
    Kind::Other,
    "redb 4.5, its own defaults; Durability::None for unsynced writes, which a killed process loses",
);

type Bytes = &'static [u8];
const TABLE: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("default");

/// A database with one table.
pub(crate) struct Redb {
    db: Database,
}

impl Redb {
    /// Runs `write` in a transaction and commits it.
    fn commit(&self, durability: Durability, write: impl FnOnce(&WriteTransaction) -> Result<()>) -> Result<()> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_durability(durability)?;
        write(&transaction)?;
        Ok(transaction.commit()?)
    }

    fn put_with(&self, durability: Durability, key: &[u8], value: &[u8]) -> Result<()> {
        self.commit(durability, |transaction| {
            transaction.open_table(TABLE)?.insert(key, value)?;
            Ok(())
        })
    }

    fn table(&self) -> Result<ReadOnlyTable<Bytes, Bytes>> {
        Ok(self.db.begin_read()?.open_table(TABLE)?)
    }
}

fn counter(table: &Table<'_, Bytes, Bytes>, key: &[u8]) -> Result<u64> {
    Ok(table.get(key)?.map_or(0, |value| count_in(value.value())))
}

impl Engine for Redb {
    type Reader<'a> = RedbReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<Redb> {
        let db = Database::builder().set_cache_size(settings.cache).create(dir.join("redb"))?;
        let redb = Redb { db };
        if let Err(TableError::TableDoesNotExist(_)) = redb.db.begin_read()?.open_table(TABLE) {
            redb.commit(Durability::Immediate, |transaction| {
                transaction.open_table(TABLE)?;
                Ok(())
            })?;
        }
        Ok(redb)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(Durability::None, key, value)
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(Durability::Immediate, key, value)
    }

    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.commit(Durability::None, |transaction| {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in entries {
                table.insert(key, value)?;
            }
            Ok(())
        })
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.commit(Durability::None, |transaction| {
            transaction.open_table(TABLE)?.remove(key)?;
            Ok(())
        })
    }

    fn increment(&self, key: &[u8]) -> Result<Option<u64>> {
        // There is one write transaction at a time: the others wait.
        self.commit(Durability::None, |transaction| {
            let mut table = transaction.open_table(TABLE)?;
            let count = counter(&table, key)?;
            table.insert(key, &(count + 1).to_le_bytes()[..])?;
            Ok(())
        })?;
        Ok(Some(0))
    }

    fn transfer(&self, from: &[u8], to: &[u8]) -> Result<Option<u64>> {
        self.commit(Durability::None, |transaction| {
            let mut table = transaction.open_table(TABLE)?;
            let (giver, taker) = (counter(&table, from)?, counter(&table, to)?);
            if let Some(left) = giver.checked_sub(1) {
                table.insert(from, &left.to_le_bytes()[..])?;
                table.insert(to, &(taker + 1).to_le_bytes()[..])?;
            }
            Ok(())
        })?;
        Ok(Some(0))
    }

    fn reader(&self) -> Result<RedbReader<'_>> {
        Ok(RedbReader { db: self, table: self.table()? })
    }

    fn flush(&self) -> Result<()> {
        // A durable commit frees the pages that non-durable commits have held back.
        self.commit(Durability::Immediate, |_| Ok(()))
    }

    fn compact(&self) -> Result<bool> {
        Ok(false)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.close()?)
    }
}

/// One transaction for all reads until it is renewed.
pub(crate) struct RedbReader<'a> {
    db: &'a Redb,
    table: ReadOnlyTable<Bytes, Bytes>,
}

impl Reader for RedbReader<'_> {
    fn refresh(&mut self) -> Result<()> {
        self.table = self.db.table()?;
        Ok(())
    }

    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool> {
        let value = self.table.get(key)?;
        Ok(value.map(|value| look(value.value())).is_some())
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let range = match (from, direction) {
            (None, _) => self.table.range::<&[u8]>(..)?,
            (Some(key), Direction::Forward) => self.table.range(key..)?,
            (Some(key), Direction::Backward) => self.table.range(..=key)?,
        };
        let mut iter = range;
        loop {
            let entry = match direction {
                Direction::Forward => iter.next(),
                Direction::Backward => iter.next_back(),
            };
            let Some(entry) = entry else { return Ok(()) };
            let (key, value) = entry?;
            if !visit(key.value(), value.value()) {
                return Ok(());
            }
        }
    }
}
