//! [`Sorter`]: sorts records by key, on disk.

use std::path::Path;

use tamis::{Db, Keyspace, KeyspaceOptions, Options, ReadOptions, WriteBatch};

use crate::error::{Error, Result};
use crate::machine::Record;

/// Bytes for blocks of tables: those that are read again.
pub(super) const CACHE: usize = 8 << 20;

/// Bytes of records that are sorted in memory at a time.
const MEMTABLE: usize = 16 << 20;

/// Bytes of records that are written at a time, unless one is longer.
const BATCH: usize = 1 << 20;

/// Compactions move no value that is longer.
const SEPARATE: u32 = 1024;

/// Before a value: its deadline, big-endian, or zero.
const DEADLINE_LEN: usize = 8;

/// A store without a log, which is gone with its directory.
pub(super) struct Sorter {
    db: Db,
    sorted: Keyspace,
    batch: WriteBatch,
    batched: usize,
}

impl Sorter {
    /// Makes a sorter in the directory `dir`, which does not exist.
    pub(super) fn new(dir: &Path) -> Result<Sorter> {
        let db = Options::new().cache_size(CACHE).memtable_size(MEMTABLE).open(dir)?;
        let options = KeyspaceOptions::new().wal(false).filter(tamis::FilterPolicy::None).separate_values(SEPARATE);
        let sorted = db.keyspace_with("sorted", options)?;
        Ok(Sorter { db, sorted, batch: WriteBatch::new(), batched: 0 })
    }

    /// Adds a record. Each key comes once.
    pub(super) fn add(&mut self, record: Record) -> Result<()> {
        let mut value = Vec::with_capacity(DEADLINE_LEN + record.value.len());
        value.extend(record.deadline_ms.unwrap_or(0).to_be_bytes());
        value.extend_from_slice(record.value);
        self.batched += record.key.len() + value.len();
        self.batch.put_in(&self.sorted, record.key, value);
        if self.batched >= BATCH { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        self.batched = 0;
        self.db.write(std::mem::take(&mut self.batch))?;
        Ok(())
    }

    /// Visits all records in the order of keys.
    pub(super) fn visit(mut self, visit: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        self.write()?;
        let mut cursor = self.sorted.cursor_with(ReadOptions::new().fill_cache(false))?;
        cursor.seek_to_first()?;
        while let (Some(key), Some(stored)) = (cursor.key(), cursor.value()) {
            let short = || Error::Decode { place: "a sorted record", rule: "it begins with a deadline".to_owned() };
            let (deadline, value) = stored.split_first_chunk::<DEADLINE_LEN>().ok_or_else(short)?;
            let deadline = u64::from_be_bytes(*deadline);
            visit(Record { key, value, deadline_ms: (deadline != 0).then_some(deadline) })?;
            cursor.next()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn records_come_back_in_the_order_of_keys(
            records in btree_map(vec(any::<u8>(), 0..5), (vec(any::<u8>(), 0..2000), proptest::option::of(1u64..)), 0..100),
            seed: u64,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut sorter = Sorter::new(&dir.path().join("sorted")).unwrap();
            let mut shuffled: Vec<_> = records.iter().collect();
            fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
            for (key, (value, deadline_ms)) in shuffled {
                sorter.add(Record { key, value, deadline_ms: *deadline_ms }).unwrap();
            }
            let (mut found, mut last) = (BTreeMap::new(), None);
            sorter.visit(&mut |record| {
                assert!(last.as_deref() < Some(record.key));
                last = Some(record.key.to_vec());
                found.insert(record.key.to_vec(), (record.value.to_vec(), record.deadline_ms));
                Ok(())
            }).unwrap();
            prop_assert_eq!(found, records);
        }
    }
}
