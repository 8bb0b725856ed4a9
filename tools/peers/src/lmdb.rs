//! LMDB, through the crate heed: a B+-tree in a mapped file.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, WithTls};
use tamis_bench::Result;
use tamis_bench::contest::{Contestant, Kind};
use tamis_bench::engine::{Direction, Engine, Reader, Settings, count_in};

/// Set up like the `db_bench` of LMDB's authors: a writable map and no syncs. A power cut may
/// destroy the file.
pub(crate) const LMDB: Contestant = Contestant::new::<Lmdb>(
    "lmdb",
    Kind::Other,
    "LMDB (crate heed 0.22), NOSYNC | WRITEMAP, neither for synced writes; no log, no checksums, no cache of its own",
);

/// Address space reserved; the file only takes what is used.
const MAP: usize = 64 << 30;

/// An environment with one database.
pub(crate) struct Lmdb {
    env: Env<WithTls>,
    db: Database<Bytes, Bytes>,
}

impl Lmdb {
    fn counter(&self, txn: &RoTxn<'_>, key: &[u8]) -> heed::Result<u64> {
        Ok(self.db.get(txn, key)?.map_or(0, count_in))
    }
}

impl Engine for Lmdb {
    type Reader<'a> = LmdbReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<Lmdb> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP);
        let flags = if settings.durable { EnvFlags::empty() } else { EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP };
        // SAFETY: no other process changes or maps the file while it is open, and a file left by a
        // power cut is not opened again.
        let env = unsafe { options.flags(flags).open(dir)? };
        let mut txn = env.write_txn()?;
        let db = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Lmdb { env, db })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        self.db.put(&mut txn, key, value)?;
        Ok(txn.commit()?)
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        // The environment was opened so that each commit is synced.
        self.put(key, value)
    }

    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (key, value) in entries {
            self.db.put(&mut txn, key, value)?;
        }
        Ok(txn.commit()?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        self.db.delete(&mut txn, key)?;
        Ok(txn.commit()?)
    }

    fn increment(&self, key: &[u8]) -> Result<Option<u64>> {
        // There is one write transaction at a time: the others wait.
        let mut txn = self.env.write_txn()?;
        let count = self.counter(&txn, key)?;
        self.db.put(&mut txn, key, &(count + 1).to_le_bytes())?;
        txn.commit()?;
        Ok(Some(0))
    }

    fn transfer(&self, from: &[u8], to: &[u8]) -> Result<Option<u64>> {
        let mut txn = self.env.write_txn()?;
        let (giver, taker) = (self.counter(&txn, from)?, self.counter(&txn, to)?);
        if let Some(left) = giver.checked_sub(1) {
            self.db.put(&mut txn, from, &left.to_le_bytes())?;
            self.db.put(&mut txn, to, &(taker + 1).to_le_bytes())?;
        }
        txn.commit()?;
        Ok(Some(0))
    }

    fn reader(&self) -> Result<LmdbReader<'_>> {
        let txn = Some(self.env.read_txn()?);
        Ok(LmdbReader { engine: self, txn })
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&self) -> Result<bool> {
        Ok(false)
    }

    fn close(self) -> Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

/// One transaction for all reads until it is renewed, as in LMDB's own benchmarks.
pub(crate) struct LmdbReader<'a> {
    engine: &'a Lmdb,
    txn: Option<RoTxn<'a, WithTls>>,
}

impl LmdbReader<'_> {
    fn txn(&self) -> Result<&RoTxn<'_, WithTls>> {
        Ok(self.txn.as_ref().ok_or("there is no transaction")?)
    }
}

impl Reader for LmdbReader<'_> {
    fn refresh(&mut self) -> Result<()> {
        // A thread may have only one read transaction at a time.
        self.txn = None;
        self.txn = Some(self.engine.env.read_txn()?);
        Ok(())
    }

    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool> {
        let value = self.engine.db.get(self.txn()?, key)?;
        Ok(value.map(look).is_some())
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let (db, txn) = (self.engine.db, self.txn()?);
        let mut show = |entry: heed::Result<(&[u8], &[u8])>| entry.map(|(key, value)| visit(key, value));
        let last = |shown: &heed::Result<bool>| !matches!(shown, Ok(true));
        match (from, direction) {
            (None, Direction::Forward) => db.iter(txn)?.map(&mut show).find(last),
            (None, Direction::Backward) => db.rev_iter(txn)?.map(&mut show).find(last),
            (Some(key), Direction::Forward) => {
                db.range(txn, &(Bound::Included(key), Bound::Unbounded))?.map(&mut show).find(last)
            }
            (Some(key), Direction::Backward) => {
                db.rev_range(txn, &(Bound::Unbounded, Bound::Included(key)))?.map(&mut show).find(last)
            }
        }
        .transpose()?;
        Ok(())
    }
}
