//! tamis in crud-bench. This file belongs into its `src`; `register.patch` names it there.
#![cfg(feature = "tamis")]

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tamis::{Cursor, Db, KeyspaceOptions, Options, WriteBatch, WriteOptions};

use crate::benchmark::NOT_SUPPORTED_ERROR;
use crate::engine::{BenchmarkClient, BenchmarkEngine, ScanContext};
use crate::memory::Config;
use crate::value::BenchValue;
use crate::valueprovider::Columns;
use crate::{Benchmark, KeyType, Projection, Scan};

const DIR: &str = "tamis";

/// Opens the store.
pub(crate) struct TamisClientProvider {
    db: Db,
    sync: bool,
}

impl BenchmarkEngine<TamisClient> for TamisClientProvider {
    fn wait_timeout(&self) -> Option<Duration> {
        None
    }

    /// With the sizes that the harness gives to its other trees: cache, memtable, and values from
    /// 4 KiB on apart from their keys. All else is the default.
    async fn setup(_kt: KeyType, _columns: Columns, options: &Benchmark) -> Result<Self> {
        std::fs::remove_dir_all(DIR).ok();
        let cache = usize::try_from(Config::new().cache_gb << 30)?;
        let keyspace = KeyspaceOptions::new().separate_values(4096);
        let db = Options::new().cache_size(cache).memtable_size(256 << 20).default_keyspace(keyspace).open(DIR)?;
        Ok(TamisClientProvider { db, sync: options.sync })
    }

    async fn create_client(&self) -> Result<TamisClient> {
        Ok(TamisClient { db: self.db.clone(), write: WriteOptions::new().sync(self.sync) })
    }
}

/// A handle to the store, of one of the harness's tasks.
pub(crate) struct TamisClient {
    db: Db,
    write: WriteOptions,
}

impl BenchmarkClient for TamisClient {
    type ReadRow = BenchValue;

    async fn shutdown(&self) -> Result<()> {
        std::fs::remove_dir_all(DIR).ok();
        Ok(())
    }

    async fn create_u32(&self, key: u32, val: BenchValue) -> Result<()> {
        self.put([(key.to_ne_bytes(), val)])
    }

    async fn create_string(&self, key: String, val: BenchValue) -> Result<()> {
        self.put([(key, val)])
    }

    async fn read_u32(&self, key: u32) -> Result<BenchValue> {
        self.read(key.to_ne_bytes())
    }

    async fn read_string(&self, key: String) -> Result<BenchValue> {
        self.read(key)
    }

    async fn update_u32(&self, key: u32, val: BenchValue) -> Result<()> {
        self.put([(key.to_ne_bytes(), val)])
    }

    async fn update_string(&self, key: String, val: BenchValue) -> Result<()> {
        self.put([(key, val)])
    }

    async fn delete_u32(&self, key: u32) -> Result<()> {
        self.delete([key.to_ne_bytes()])
    }

    async fn delete_string(&self, key: String) -> Result<()> {
        self.delete([key])
    }

    async fn scan_u32(&self, scan: &Scan, _ctx: ScanContext) -> Result<usize> {
        self.scan(scan)
    }

    async fn scan_string(&self, scan: &Scan, _ctx: ScanContext) -> Result<usize> {
        self.scan(scan)
    }

    async fn batch_create_u32(&self, pairs: impl Iterator<Item = (u32, BenchValue)> + Send) -> Result<()> {
        self.put(pairs.map(|(key, val)| (key.to_ne_bytes(), val)))
    }

    async fn batch_create_string(&self, pairs: impl Iterator<Item = (String, BenchValue)> + Send) -> Result<()> {
        self.put(pairs)
    }

    async fn batch_read_u32(&self, keys: impl Iterator<Item = u32> + Send) -> Result<()> {
        self.read_all(keys.map(u32::to_ne_bytes))
    }

    async fn batch_read_string(&self, keys: impl Iterator<Item = String> + Send) -> Result<()> {
        self.read_all(keys)
    }

    async fn batch_update_u32(&self, pairs: impl Iterator<Item = (u32, BenchValue)> + Send) -> Result<()> {
        self.put(pairs.map(|(key, val)| (key.to_ne_bytes(), val)))
    }

    async fn batch_update_string(&self, pairs: impl Iterator<Item = (String, BenchValue)> + Send) -> Result<()> {
        self.put(pairs)
    }

    async fn batch_delete_u32(&self, keys: impl Iterator<Item = u32> + Send) -> Result<()> {
        self.delete(keys.map(u32::to_ne_bytes))
    }

    async fn batch_delete_string(&self, keys: impl Iterator<Item = String> + Send) -> Result<()> {
        self.delete(keys)
    }
}

impl TamisClient {
    /// Puts all pairs at once.
    fn put<K: AsRef<[u8]>>(&self, pairs: impl IntoIterator<Item = (K, BenchValue)>) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (key, val) in pairs {
            batch.put(key, val.encode()?);
        }
        self.db.write_with(batch, self.write)?;
        Ok(())
    }

    /// Deletes all keys at once.
    fn delete<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<()> {
        let mut batch = WriteBatch::new();
        keys.into_iter().for_each(|key| batch.delete(key));
        self.db.write_with(batch, self.write)?;
        Ok(())
    }

    fn read(&self, key: impl AsRef<[u8]>) -> Result<BenchValue> {
        let found = self.db.read(key, BenchValue::decode)?;
        Ok(black_box(found.context("the key is absent")??))
    }

    fn read_all<K: AsRef<[u8]>>(&self, keys: impl Iterator<Item = K>) -> Result<()> {
        let keys: Vec<K> = keys.collect();
        for found in self.db.multi_get(&keys)? {
            black_box(BenchValue::decode(&found.context("a key is absent")?)?);
        }
        Ok(())
    }

    /// Steps over the entries from the first one on, and returns how many it used.
    fn scan(&self, scan: &Scan) -> Result<usize> {
        if scan.condition.is_some() {
            bail!(NOT_SUPPORTED_ERROR);
        }
        let (start, limit) = (scan.start.unwrap_or(0), scan.limit.unwrap_or(usize::MAX));
        let part: fn(&Cursor) -> Option<&[u8]> = match scan.projection()? {
            Projection::Id | Projection::Count => Cursor::key,
            Projection::Full => Cursor::value,
        };
        let mut cursor = self.db.cursor()?;
        let (mut at, mut count) = (0, 0);
        let mut is_valid = cursor.seek_to_first()?;
        while is_valid && count < limit {
            if at >= start {
                black_box(part(&cursor));
                count += 1;
            }
            at += 1;
            is_valid = cursor.next()?;
        }
        Ok(count)
    }
}
