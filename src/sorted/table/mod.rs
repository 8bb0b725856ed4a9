//! SSTables: sorted entries in a file, with their filter and their index.
//!
//! A [`TableBuilder`] writes a file once; nothing changes it afterwards. A [`Table`] answers reads
//! from it: it asks the filter first, then the index, and then usually reads at most one data
//! block. All bytes of a table enter the process through `fetch`, which verifies and counts them.
//!
//! ```text
//! table = file header, data block*, [filter block], properties block, index block, footer
//! ```
//!
//! They follow each other without gaps, except that zeros up to the next multiple of 4096 may
//! precede a data block. A trailer (see `footer`) follows every block. `format::header`,
//! `sorted::block`, `filter::header`, `properties`, `origin`, `index` and `footer` draw the parts.

mod builder;
mod cursor;
mod deadlines;
mod describe;
mod estimate;
mod fetch;
mod footer;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzz;
mod index;
mod mapped;
mod origin;
mod pending;
mod planned;
mod prefix;
mod properties;
mod reader;
mod references;
mod refilter;
mod resident;
mod salvage;
#[cfg(test)]
mod tests;
mod verify;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use builder::TableBuilder;
pub(crate) use cursor::TableCursor;
pub(crate) use deadlines::Deadlines;
pub(crate) use describe::stated_number;
pub(crate) use footer::BlockHandle;
pub(crate) use origin::{Input, Origin};
pub(crate) use pending::PendingReads;
pub(crate) use prefix::PrefixProbe;
pub(crate) use reader::{PointRead, Probe, ReadMode, Table, TableHit};
pub(crate) use references::References;
pub(crate) use salvage::{Hole, SalvageCursor, SalvageTable};

use self::mapped::MapPermit;
use crate::environment::Environment;
use crate::filter::{FilterPolicy, PrefixExtractor};
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::memory::epoch::Epoch;
use crate::memory::pool::TableMemory;
use crate::options::Compression;
use crate::report::delivery::Events;
use crate::sorted::cache::{BlockCache, CacheOwner};
use crate::sorted::files::{FilePool, Graveyard, Janitor, OpenFiles};
use crate::sorted::values::ValueFiles;
use crate::vfs::FileSystem;

/// What the manifest records about a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableMeta {
    pub(crate) number: u64,
    /// File length in bytes.
    pub(crate) size: u64,
    /// Checksum of the whole file; not a CRC.
    pub(crate) checksum: u32,
    pub(crate) entries: u64,
    /// Distinct user keys. The other entries are older versions of them.
    pub(crate) keys: u64,
    pub(crate) tombstones: u64,
    /// Of the entries with a deadline.
    pub(crate) deadlines: Deadlines,
    pub(crate) references: References,
    pub(crate) smallest_seqno: SeqNo,
    pub(crate) largest_seqno: SeqNo,
    /// No entry of the table is deleted by a range delete numbered up to this. The manifest alone
    /// says so; 0 if it is not known.
    pub(crate) cleared: SeqNo,
    /// Smallest and largest user key in the table.
    pub(crate) smallest: Box<[u8]>,
    pub(crate) largest: Box<[u8]>,
    /// `None` for a table that the store has written.
    pub(crate) ingested: Option<Ingested>,
    /// Of an ingested table of range deletes, the end of the last range, exclusive. `None` if that
    /// is the end of the key space, and for every other table.
    pub(crate) range_end: Option<Box<[u8]>>,
    /// Tombstones and older versions that were in the last level when no snapshot needed them, and
    /// that stayed all the same: operands on a value that expires, or that the operator refuses.
    /// The manifest alone says so.
    pub(crate) kept: u64,
}

/// What the manifest alone says of an ingested table: its file is the same wherever it is ingested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ingested {
    /// The number that the file states and that its checksums are bound to, in place of the one in
    /// its name.
    pub(crate) identity: u64,
    /// Sequence number of every entry. The file has 0 in its place.
    pub(crate) seqno: SeqNo,
}

impl Ingested {
    /// What a table has whose number nothing tells.
    fn unknown(identity: u64) -> Ingested {
        Ingested { identity, seqno: 1 }
    }

    /// The number to which the checksums of table `number` are bound.
    fn identity_of(ingested: Option<Ingested>, number: u64) -> u64 {
        ingested.map_or(number, |ingested| ingested.identity)
    }
}

impl TableMeta {
    /// Number of tombstones and older versions.
    pub(crate) fn hidden_entries(&self) -> u64 {
        self.tombstones.saturating_add(self.entries.saturating_sub(self.keys))
    }

    /// Whether all keys of the table come before `upper`, of which `None` is the end of the key
    /// space.
    pub(crate) fn ends_before(&self, upper: Option<&[u8]>) -> bool {
        upper.is_none_or(|upper| *self.largest < *upper)
    }

    /// Bytes of the table and of the values that it points to.
    pub(crate) fn total_size(&self) -> u64 {
        self.size.saturating_add(self.references.bytes())
    }

    /// Whether the table's key range and `span` have a key in common.
    pub(crate) fn overlaps(&self, span: &KeySpan<impl AsRef<[u8]>>) -> bool {
        span.overlaps(&self.smallest, &self.largest)
    }
}

/// Settings for writing a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableOptions {
    pub(crate) filter: FilterPolicy,
    /// Also adds this prefix of each key to the filter.
    pub(crate) prefix: Option<PrefixExtractor>,
    pub(crate) compression: Compression,
    /// Bytes of a data block with its trailer, before compression. A larger entry gets a block of
    /// its own.
    pub(crate) block_size: u32,
    /// Seed of the hash used by filter and fingerprints.
    pub(crate) seed: u64,
    pub(crate) keyspace: u32,
}

impl TableOptions {
    /// For a table of range deletes, all of which a store reads when it opens.
    pub(crate) fn for_ranges(self) -> TableOptions {
        TableOptions { filter: FilterPolicy::None, prefix: None, compression: Compression::None, ..self }
    }
}

/// What all tables of a store share.
pub(crate) struct TableContext {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    cache: Arc<BlockCache>,
    cache_owner: Arc<CacheOwner>,
    /// Memory of the resident parts of open tables.
    memory: Arc<TableMemory>,
    files: Arc<FilePool>,
    values: Arc<ValueFiles>,
    janitor: Arc<Janitor>,
    graveyard: Arc<Graveyard>,
    /// Whether uncompressed tables are mapped, and how many are.
    map_tables: MapPermit,
    events: Events,
}

impl TableContext {
    /// With a cache and open files of its own.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, dir: &Path, cache_size: usize, max_open_files: usize) -> TableContext {
        TableContext::with(fs, dir, Arc::new(BlockCache::new(cache_size)), &OpenFiles::new(max_open_files))
    }

    /// Shares cache, open files and memory with the other stores of `environment`. Maps the files
    /// of uncompressed tables, if `mmap_reads`.
    pub(crate) fn in_environment(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        environment: &Environment,
        mmap_reads: bool,
    ) -> TableContext {
        TableContext {
            map_tables: MapPermit::new(mmap_reads, environment.mapped()),
            memory: Arc::clone(environment.table_memory()),
            ..TableContext::with(fs, dir, Arc::clone(environment.cache()), environment.files())
        }
    }

    fn with(fs: Arc<dyn FileSystem>, dir: &Path, cache: Arc<BlockCache>, files: &Arc<OpenFiles>) -> TableContext {
        let graveyard = Arc::<Graveyard>::default();
        let janitor = Arc::new(Janitor::new(Arc::clone(&fs), dir.to_owned(), Arc::clone(&graveyard)));
        let files = Arc::new(FilePool::new(files));
        TableContext {
            values: ValueFiles::new(Arc::clone(&fs), dir.to_owned(), Arc::clone(&files), Arc::clone(&janitor)),
            janitor,
            graveyard,
            fs,
            dir: dir.to_owned(),
            cache_owner: cache.new_owner(),
            cache,
            memory: Arc::default(),
            files,
            map_tables: MapPermit::default(),
            events: Events::default(),
        }
    }

    /// Maps the files of uncompressed tables, if `wanted`.
    #[cfg(test)]
    pub(crate) fn with_mmap_reads(self, wanted: bool) -> TableContext {
        TableContext { map_tables: MapPermit::new(wanted, &Arc::default()), ..self }
    }

    /// Reports to `events`.
    pub(crate) fn with_events(self, events: Events) -> TableContext {
        TableContext { events, ..self }
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &*self.fs
    }

    pub(crate) fn shared_fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes the files of obsolete tables.
    pub(crate) fn janitor(&self) -> &Janitor {
        &self.janitor
    }

    /// Removes the file of a table that no version has ever named. For callers that hold the
    /// store's lock. If the removal fails, the next open of the store removes the file.
    pub(crate) fn remove_file(&self, number: u64) {
        self.graveyard.bury(number);
        self.graveyard.remove_file(&*self.fs, &self.dir, number);
    }

    /// Reads values that are not in the tables.
    pub(crate) fn values(&self) -> &Arc<ValueFiles> {
        &self.values
    }

    /// Tables that no version names, but whose files may reappear after a crash.
    pub(crate) fn graveyard(&self) -> &Graveyard {
        &self.graveyard
    }

    /// The epoch that readers of the tables pin.
    pub(crate) fn epoch(&self) -> &Arc<Epoch> {
        self.cache_owner.epoch()
    }

    pub(crate) fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Bytes of the cache that blocks of these tables take.
    pub(crate) fn cache_usage(&self) -> usize {
        self.cache_owner.usage()
    }

    #[cfg(test)]
    pub(crate) fn files(&self) -> &FilePool {
        &self.files
    }
}

impl fmt::Debug for TableContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableContext").field("dir", &self.dir).finish_non_exhaustive()
    }
}
