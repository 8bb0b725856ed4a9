//! RocksDB: with its defaults, tuned, and with long values in blob files.

use std::path::Path;

use rocksdb::statistics::Ticker;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBAccess, DBCompressionType,
    DBRawIteratorWithThreadMode, DataBlockIndexType, IngestExternalFileOptions, MergeOperands, Options, ReadOptions,
    SliceTransform, SstFileWriter, WriteBatch, WriteOptions,
};
use tamis_bench::Result;
use tamis_bench::contest::{Contestant, Kind};
use tamis_bench::engine::{Direction, Engine, INGESTED_FILE, Reader, Settings, SortedEntries, Variant, count_in};
use tamis_bench::tamis_engine::SEPARATED_FROM;

/// RocksDB's own defaults, except for the settings that all engines share.
pub(crate) const ROCKSDB: Contestant =
    Contestant::new::<RocksDb>("rocksdb", Kind::Lsm, "RocksDB 11.8.1 (crate rocksdb), its own defaults");

/// Tuned as its tuning guide advises for point reads and two cores.
pub(crate) const ROCKSDB_TUNED: Contestant = Contestant::new::<RocksDb>(
    "rocksdb-tuned",
    Kind::Lsm,
    "RocksDB 11.8.1, tuned: HyperClockCache, hash index in blocks, memtable Bloom filter, subcompactions, recycled logs",
)
.with(Variant::Tuned);

/// Its BlobDB.
pub(crate) const ROCKSDB_SEPARATED: Contestant = Contestant::new::<RocksDb>(
    "rocksdb-blobdb",
    Kind::Lsm,
    "RocksDB 11.8.1, blob files from 4 KiB on with garbage collection, sizes as in its run_blob_bench.sh",
)
.with(Variant::Separated)
.only_in("blobs");

/// With prefixes in its filters, the nearest that it has to a filter of ranges.
pub(crate) const ROCKSDB_PREFIX: Contestant = Contestant::new::<RocksDb>(
    "rocksdb-prefix",
    Kind::Lsm,
    "RocksDB 11.8.1, filters with the first 15 of 16 bytes of each key, prefix_same_as_start",
)
.with(Variant::Ranges)
.only_in("ranges");

/// Length of the prefixes in its filters.
const PREFIX: usize = 15;

/// The only column family; batched multi-get needs it by name.
const COLUMN_FAMILY: &str = "default";
/// No limit on open files: none is closed.
const ALL_FILES: i32 = -1;

/// A database.
pub(crate) struct RocksDb {
    db: DB,
    /// For files to ingest, and for their statistics.
    options: Options,
    /// Whether they count anything.
    counts: bool,
    has_prefixes: bool,
    read: ReadOptions,
    write: WriteOptions,
    synced: WriteOptions,
}

/// Adds to a counter.
fn add(_: &[u8], count: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
    let sum = operands.iter().fold(count.map_or(0, count_in), |sum, operand| sum + count_in(operand));
    Some(sum.to_le_bytes().to_vec())
}

pub(crate) fn options(settings: &Settings) -> Options {
    let tuned = settings.variant == Variant::Tuned;
    let mut table = BlockBasedOptions::default();
    table.set_block_size(settings.block);
    table.set_bloom_filter(settings.bloom_bits.into(), false);
    let cache =
        if tuned { Cache::new_hyper_clock_cache(settings.cache, 0) } else { Cache::new_lru_cache(settings.cache) };
    table.set_block_cache(&cache);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_write_buffer_size(settings.memtable);
    // A quarter of the jobs, at least one, flush.
    options.set_max_background_jobs(i32::from(settings.compaction_threads) + 1);
    options.set_max_open_files(ALL_FILES);
    let compression = if settings.compress { DBCompressionType::Lz4 } else { DBCompressionType::None };
    options.set_compression_type(compression);
    if tuned {
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        table.set_data_block_hash_ratio(0.75);
        table.set_format_version(6);
        // The share of the memtable for a Bloom filter over its keys.
        options.set_memtable_prefix_bloom_ratio(0.05);
        options.set_memtable_whole_key_filtering(true);
        options.set_max_write_buffer_number(4);
        options.set_max_subcompactions(2);
        options.set_enable_pipelined_write(true);
        options.set_recycle_log_file_num(4);
        options.set_bytes_per_sync(1 << 20);
    }
    if settings.variant == Variant::Separated {
        options.set_enable_blob_files(true);
        options.set_min_blob_size(SEPARATED_FROM.into());
        options.set_blob_compression_type(compression);
        options.set_enable_blob_gc(true);
        // As in the script: blob files as large as memtables; tables, which hold keys and pointers,
        // as much smaller as entries are: 32 bytes instead of 16 KiB.
        options.set_blob_file_size(settings.memtable as u64);
        let table_size = (settings.memtable as u64 / (16 << 10) * 32).max(16 << 10);
        options.set_target_file_size_base(table_size);
        options.set_max_bytes_for_level_base(8 * table_size);
    }
    if settings.variant == Variant::Ranges {
        options.set_prefix_extractor(SliceTransform::create_fixed_prefix(PREFIX));
    }
    if settings.keeps_runs {
        options.set_disable_auto_compactions(true);
        options.set_level_zero_slowdown_writes_trigger(1 << 20);
        options.set_level_zero_stop_writes_trigger(1 << 20);
    }
    options.set_merge_operator_associative("add", add);
    options.set_block_based_table_factory(&table);
    options
}

impl Engine for RocksDb {
    type Reader<'a> = RocksDbReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let mut options = options(settings);
        if settings.count_table_bytes {
            options.enable_statistics();
        }
        let families = [ColumnFamilyDescriptor::new(COLUMN_FAMILY, options.clone())];
        let db = DB::open_cf_descriptors(&options, dir, families)?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        let (read, write, counts) = (ReadOptions::default(), WriteOptions::default(), settings.count_table_bytes);
        let has_prefixes = settings.variant == Variant::Ranges;
        Ok(RocksDb { db, options, counts, has_prefixes, read, write, synced })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key, value, &self.write)?)
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key, value, &self.synced)?)
    }

    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, &self.write)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.db.delete_opt(key, &self.write)?)
    }

    fn merge(&self, key: &[u8]) -> Result<bool> {
        self.db.merge_opt(key, 1u64.to_le_bytes(), &self.write)?;
        Ok(true)
    }

    fn ingest(&self, dir: &Path, entries: &mut impl SortedEntries) -> Result<bool> {
        let (mut files, mut writer) = (Vec::new(), None::<SstFileWriter<'_>>);
        while let Some((key, value)) = entries.next() {
            if let Some(mut full) = writer.take_if(|writer| writer.file_size() >= INGESTED_FILE) {
                full.finish()?;
            }
            let file = match &mut writer {
                Some(file) => file,
                None => {
                    let (path, file) = (dir.join(files.len().to_string()), SstFileWriter::create(&self.options));
                    file.open(&path)?;
                    files.push(path);
                    writer.insert(file)
                }
            };
            file.put(key, value)?;
        }
        if let Some(mut last) = writer {
            last.finish()?;
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        self.db.ingest_external_file_opts(&options, files)?;
        Ok(true)
    }

    fn table_bytes(&self) -> Option<u64> {
        let written = |ticker| self.options.get_ticker_count(ticker);
        self.counts.then(|| written(Ticker::FlushWriteBytes) + written(Ticker::CompactWriteBytes))
    }

    fn reader(&self) -> Result<RocksDbReader<'_>> {
        let family = self.db.cf_handle(COLUMN_FAMILY).ok_or("RocksDB has no default column family")?;
        Ok(RocksDbReader { db: &self.db, read: &self.read, family, has_prefixes: self.has_prefixes })
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
pub(crate) struct RocksDbReader<'a> {
    db: &'a DB,
    read: &'a ReadOptions,
    family: &'a ColumnFamily,
    has_prefixes: bool,
}

impl Reader for RocksDbReader<'_> {
    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool> {
        let value = self.db.get_pinned_opt(key, self.read)?;
        Ok(value.map(|value| look(&value)).is_some())
    }

    fn multi_get(&mut self, keys: &[&[u8]], mut look: impl FnMut(&[u8])) -> Result<Option<u64>> {
        let mut found = 0;
        for value in self.db.batched_multi_get_cf_opt(self.family, keys.iter().copied(), false, self.read) {
            if let Some(value) = value? {
                look(&value);
                found += 1;
            }
        }
        Ok(Some(found))
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let mut read = ReadOptions::default();
        // Scans that leave a prefix must not ask for it.
        read.set_total_order_seek(self.has_prefixes);
        scan(self.db.raw_iterator_opt(read), from, direction, visit)
    }

    fn is_empty(&mut self, from: &[u8], until: &[u8]) -> Result<bool> {
        let mut read = ReadOptions::default();
        read.set_iterate_upper_bound(until);
        let shares_prefix = self.has_prefixes && from.get(..PREFIX) == until.get(..PREFIX);
        read.set_prefix_same_as_start(shares_prefix);
        read.set_total_order_seek(!shares_prefix);
        let mut cursor = self.db.raw_iterator_opt(read);
        cursor.seek(from);
        cursor.status()?;
        Ok(!cursor.valid())
    }
}

/// What [`Reader::scan`] does, with an iterator of any kind of database.
pub(crate) fn scan(
    mut cursor: DBRawIteratorWithThreadMode<'_, impl DBAccess>,
    from: Option<&[u8]>,
    direction: Direction,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<()> {
    match (from, direction) {
        (None, Direction::Forward) => cursor.seek_to_first(),
        (None, Direction::Backward) => cursor.seek_to_last(),
        (Some(key), Direction::Forward) => cursor.seek(key),
        (Some(key), Direction::Backward) => cursor.seek_for_prev(key),
    }
    while let Some((key, value)) = cursor.item() {
        if !visit(key, value) {
            break;
        }
        match direction {
            Direction::Forward => cursor.next(),
            Direction::Backward => cursor.prev(),
        }
    }
    Ok(cursor.status()?)
}
