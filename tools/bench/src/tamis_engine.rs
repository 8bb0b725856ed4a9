//! tamis as an [`Engine`].

use std::path::Path;
use std::sync::Arc;

use tamis::operator::Add;
use tamis::{
    ByteOrder, Compression, Db, Error, FilterPolicy, IngestMode, IngestOptions, KeyspaceOptions, Options,
    RangeFilterPolicy, ReadMode, ReadOptions, SstWriter, SteppedExecutor, WriteBatch, WriteOptions,
};

use crate::Result;
use crate::contest::{Contestant, Kind};
use crate::engine::{Direction, Engine, INGESTED_FILE, Reader, Settings, SortedEntries, Variant, count_in};

/// tamis with default options.
pub const TAMIS: Contestant = Contestant::new::<Tamis>("tamis", Kind::Tamis, "this version, with its default options");

/// tamis that reads mapped files in place.
pub const TAMIS_MAPPED: Contestant =
    Contestant::new::<Tamis>("tamis-mapped", Kind::Other, "this version, with ReadMode::Mmap").with(Variant::Mapped);

/// tamis that maps nothing.
pub const TAMIS_PREAD: Contestant =
    Contestant::new::<Tamis>("tamis-pread", Kind::Other, "this version, with ReadMode::Pread").with(Variant::Pread);

/// tamis, used as if it had neither `fetch_add` nor transactions.
pub const TAMIS_MUTEX: Contestant =
    Contestant::new::<Tamis>("tamis-mutex", Kind::Other, "this version, with a mutex around gets and puts")
        .with(Variant::Mutex)
        .only_in("updates");

/// tamis with values of 4 KiB and more in value files.
pub const TAMIS_SEPARATED: Contestant =
    Contestant::new::<Tamis>("tamis-separated", Kind::Other, "this version, with separate_values(4096)")
        .with(Variant::Separated)
        .only_in("blobs");

/// tamis with range filters.
pub const TAMIS_RANGES: Contestant =
    Contestant::new::<Tamis>("tamis-ranges", Kind::Other, "this version, with range filters of 12 bits per key")
        .with(Variant::Ranges)
        .only_in("ranges");

/// All contestants that are tamis.
pub const CONTESTANTS: [Contestant; 6] = [TAMIS, TAMIS_MAPPED, TAMIS_PREAD, TAMIS_MUTEX, TAMIS_SEPARATED, TAMIS_RANGES];

/// Values of this length and above are separated from their keys, where any are.
pub const SEPARATED_FROM: u32 = 4096;

/// A tamis store with default options, except for [`Settings`].
pub struct Tamis {
    db: Db,
    variant: Variant,
}

/// A reader that sees every write that precedes the read.
pub struct TamisReader<'a> {
    db: &'a Db,
}

impl Engine for Tamis {
    type Reader<'a> = TamisReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let compression = if settings.compress { Compression::Lz4 } else { Compression::None };
        let keyspace = KeyspaceOptions::new()
            .filter(FilterPolicy::Bloom { bits_per_key: settings.bloom_bits.into() })
            .block_size(u32::try_from(settings.block)?)
            .compression(compression)
            .merge_operator(Add::LITTLE)
            .range_filter(match settings.variant {
                Variant::Ranges => RangeFilterPolicy::ORDERED,
                _ => RangeFilterPolicy::None,
            })
            .separate_values((settings.variant == Variant::Separated).then_some(SEPARATED_FROM));
        let options = match settings.keeps_runs {
            // It runs nothing in the background.
            true => Options::new().executor(Arc::new(SteppedExecutor::new())),
            false => Options::new(),
        };
        let db = options
            .cache_size(settings.cache)
            .read_mode(match settings.variant {
                Variant::Mapped => ReadMode::Mmap,
                Variant::Pread => ReadMode::Pread,
                _ => ReadMode::Auto,
            })
            .memtable_size(settings.memtable)
            .background_threads(settings.compaction_threads.into())
            .default_keyspace(keyspace)
            .open(dir)?;
        Ok(Tamis { db, variant: settings.variant })
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

    fn increment(&self, key: &[u8]) -> Result<Option<u64>> {
        if self.variant == Variant::Mutex {
            return Ok(None);
        }
        // It does not tell how often it started again.
        self.db.fetch_add(key, 1u64, ByteOrder::Little)?;
        Ok(Some(0))
    }

    fn transfer(&self, from: &[u8], to: &[u8]) -> Result<Option<u64>> {
        if self.variant == Variant::Mutex {
            return Ok(None);
        }
        let mut attempts = 0;
        self.db.transact(|tx| {
            attempts += 1;
            let count = |value: Option<tamis::Value>| value.map_or(0, |value| count_in(&value));
            let (giver, taker) = (count(tx.get(from)?), count(tx.get(to)?));
            if let Some(left) = giver.checked_sub(1) {
                tx.put(from, left.to_le_bytes());
                tx.put(to, (taker + 1).to_le_bytes());
            }
            Ok::<_, Error>(())
        })?;
        Ok(Some(attempts - 1))
    }

    fn merge(&self, key: &[u8]) -> Result<bool> {
        if self.variant == Variant::Mutex {
            return Ok(false);
        }
        self.db.merge(key, 1u64.to_le_bytes())?;
        Ok(true)
    }

    fn ingest(&self, dir: &Path, entries: &mut impl SortedEntries) -> Result<bool> {
        let format = self.db.sst_format()?;
        let (mut files, mut writer) = (Vec::new(), None::<SstWriter>);
        while let Some((key, value)) = entries.next() {
            if let Some(full) = writer.take_if(|writer| writer.estimated_size() >= INGESTED_FILE) {
                files.push(full.finish()?.path);
            }
            let file = match &mut writer {
                Some(file) => file,
                None => writer.insert(SstWriter::create(dir.join(files.len().to_string()), &format)?),
            };
            file.put(key, value)?;
        }
        if let Some(last) = writer {
            files.push(last.finish()?.path);
        }
        self.db.ingest(files, IngestOptions::new().mode(IngestMode::Move))?;
        Ok(true)
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

    fn table_bytes(&self) -> Option<u64> {
        let stats = self.db.stats();
        Some(stats.flushed_bytes + stats.compacted_bytes_out)
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

    fn is_empty(&mut self, from: &[u8], until: &[u8]) -> Result<bool> {
        Ok(self.db.keys(from..until).next().transpose()?.is_none())
    }

    fn scan_keys(&mut self, mut visit: impl FnMut(&[u8]) -> bool) -> Result<()> {
        for key in self.db.keys(..) {
            if !visit(&key?) {
                break;
            }
        }
        Ok(())
    }
}
