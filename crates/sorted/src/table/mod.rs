//! SSTables: sorted entries in a file, with their filter and their index.
//!
//! A [`TableBuilder`] writes a file once; nothing changes it afterwards. A [`Table`] answers reads
//! from it: it asks the filter first, then the index, and then usually reads at most one data
//! block. All bytes of a table enter the process through `fetch`, which verifies and counts them.
//!
//! ```text
//! table = file header, data block*, [filter block], extra block*, properties block, index block,
//!         footer
//! ```
//!
//! They follow each other without gaps, except that zeros up to the next multiple of 4096 may
//! precede a data block. A trailer (see `footer`) follows every block. `format::header`,
//! `block`, `filter::header`, `properties`, `origin`, `index` and `footer` draw the parts.

mod builder;
mod cursor;
mod deadlines;
mod describe;
mod estimate;
mod extras;
mod fetch;
mod filters;
mod footer;
#[cfg(any(fuzzing, test, feature = "testing"))]
pub mod fuzz;
mod index;
mod mapped;
mod origin;
mod paged;
mod pages;
mod pending;
mod planned;
mod prefix;
mod properties;
mod range_filter;
mod range_seek;
mod reader;
mod references;
mod refilter;
mod resident;
mod salvage;
mod table_index;
#[cfg(test)]
mod tests;
mod verify;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use builder::TableBuilder;
pub use cursor::{TableCursor, VisitedEntry};
pub use deadlines::{DUE_SHARE, Deadlines};
pub use describe::stated_number;
pub use filters::TableFilters;
pub use footer::BlockHandle;
pub use origin::{Input, Origin};
pub use pending::PendingReads;
pub use prefix::PrefixProbe;
pub use reader::{FilterMode, PointRead, Probe, ReadFlags, Table, TableHit};
pub use references::References;
pub use salvage::{Hole, SalvageCursor, SalvageTable};

use crate::cache::{BlockCache, CacheOwner};
use crate::compress::Compression;
use crate::error::{self, IoContext};
use crate::files::{FilePool, Graveyard, Janitor, OpenFiles, ReadMode, ThriftyFileSystem};
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::memory::budget::MemoryBudget;
use crate::memory::epoch::Epoch;
use crate::memory::pool::TableMemory;
use crate::report::delivery::Events;
use crate::values::ValueFiles;
use crate::vfs::FileSystem;

/// What the manifest records about a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    pub number: u64,
    /// File length in bytes.
    pub size: u64,
    /// Checksum of the whole file; not a CRC.
    pub checksum: u32,
    pub entries: u64,
    /// Distinct user keys. The other entries are older versions of them.
    pub keys: u64,
    pub tombstones: u64,
    /// Of the entries with a deadline.
    pub deadlines: Deadlines,
    pub references: References,
    pub smallest_seqno: SeqNo,
    pub largest_seqno: SeqNo,
    /// No entry of the table is deleted by a range delete numbered up to this. The manifest alone
    /// says so; 0 if it is not known.
    pub cleared: SeqNo,
    /// Smallest and largest user key in the table.
    pub smallest: Box<[u8]>,
    pub largest: Box<[u8]>,
    /// `None` for a table that the store has written.
    pub ingested: Option<Ingested>,
    /// Of an ingested table of range deletes, the end of the last range, exclusive. `None` if that
    /// is the end of the key space, and for every other table.
    pub range_end: Option<Box<[u8]>>,
    /// Tombstones and older versions that were in the last level when no snapshot needed them, and
    /// that stayed all the same: operands on a value that expires, or that the operator refuses.
    /// The manifest alone says so.
    pub kept: u64,
}

/// What the manifest alone says of an ingested table: its file is the same wherever it is ingested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ingested {
    /// The number that the file states and that its checksums are bound to, in place of the one in
    /// its name.
    pub identity: u64,
    /// Sequence number of every entry. The file has 0 in its place.
    pub seqno: SeqNo,
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
    pub fn hidden_entries(&self) -> u64 {
        self.tombstones.saturating_add(self.entries.saturating_sub(self.keys))
    }

    /// Whether all keys of the table come before `upper`, of which `None` is the end of the key
    /// space.
    pub fn ends_before(&self, upper: Option<&[u8]>) -> bool {
        upper.is_none_or(|upper| *self.largest < *upper)
    }

    /// Bytes of the table and of the values that it points to.
    pub fn total_size(&self) -> u64 {
        self.size.saturating_add(self.references.bytes())
    }

    /// Whether the table's key range and `span` have a key in common.
    pub fn overlaps(&self, span: &KeySpan<impl AsRef<[u8]>>) -> bool {
        span.overlaps(&self.smallest, &self.largest)
    }
}

/// Settings for writing a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOptions {
    pub filters: TableFilters,
    pub compression: Compression,
    /// Bytes of a data block with its trailer, before compression. A larger entry gets a block of
    /// its own.
    pub block_size: u32,
    /// Seed of the hash used by filter and fingerprints.
    pub seed: u64,
    pub keyspace: u32,
}

impl TableOptions {
    /// For a table of range deletes, all of which a store reads when it opens.
    pub fn for_ranges(self) -> TableOptions {
        TableOptions { filters: TableFilters::NONE, compression: Compression::None, ..self }
    }

    /// Bytes of memory that one table of all entries of `inputs` takes while it is written, about,
    /// beside its buffer.
    pub fn memory_of<'m>(&self, inputs: impl Iterator<Item = &'m TableMeta>) -> u64 {
        let add = |(entries, bytes): (u64, u64), of: &TableMeta| {
            (entries.saturating_add(of.entries), bytes.saturating_add(of.size))
        };
        let (entries, bytes) = inputs.fold((0, 0), add);
        let index = (bytes / u64::from(self.block_size.max(1))).saturating_mul(INDEX_ENTRY);
        self.filters.memory_of(entries).saturating_add(index)
    }
}

/// Bytes of memory per block that the index of a table takes while it is written, about.
const INDEX_ENTRY: u64 = 32;

/// What the tables of several stores share.
pub struct TableResources {
    pub cache: Arc<BlockCache>,
    pub files: Arc<OpenFiles>,
    /// Memory of the resident parts of open tables.
    pub memory: Arc<TableMemory>,
    /// Charged for all that the tables take.
    pub budget: Arc<MemoryBudget>,
}

impl TableResources {
    /// Within `budget`; the cache takes `cache_size` bytes of it at most.
    pub fn new(budget: &Arc<MemoryBudget>, cache_size: usize, max_open_files: usize) -> TableResources {
        TableResources {
            cache: BlockCache::within(budget, cache_size),
            files: OpenFiles::new(max_open_files),
            memory: Arc::default(),
            budget: Arc::clone(budget),
        }
    }
}

/// What all tables of a store share.
pub struct TableContext {
    thrifty: Arc<ThriftyFileSystem>,
    cache: Arc<BlockCache>,
    cache_owner: Arc<CacheOwner>,
    /// Memory of the resident parts of open tables.
    memory: Arc<TableMemory>,
    files: Arc<FilePool>,
    values: Arc<ValueFiles>,
    janitor: Arc<Janitor>,
    graveyard: Arc<Graveyard>,
    budget: Arc<MemoryBudget>,
    events: Events,
}

impl TableContext {
    /// With a cache and open files of its own.
    pub fn new(fs: Arc<dyn FileSystem>, dir: &Path, cache_size: usize, max_open_files: usize) -> TableContext {
        let resources = TableResources::new(&MemoryBudget::unlimited(), cache_size, max_open_files);
        TableContext::sharing(fs, dir, &resources, ReadMode::Pread)
    }

    /// Shares `resources` with other stores.
    pub fn sharing(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        resources: &TableResources,
        read_mode: ReadMode,
    ) -> TableContext {
        let TableResources { cache, files, memory, budget } = resources;
        let thrifty = Arc::new(ThriftyFileSystem::new(fs, files, dir));
        let fs: Arc<dyn FileSystem> = thrifty.clone();
        let graveyard = Arc::<Graveyard>::default();
        let janitor = Arc::new(Janitor::new(Arc::clone(&fs), dir.to_owned(), Arc::clone(&graveyard)));
        let (cache, files) = (Arc::clone(cache), Arc::new(FilePool::new(fs, dir, read_mode, files)));
        TableContext {
            values: ValueFiles::new(&files, &janitor, budget),
            janitor,
            graveyard,
            thrifty,
            cache_owner: cache.new_owner(),
            cache,
            memory: Arc::clone(memory),
            files,
            budget: Arc::clone(budget),
            events: Events::default(),
        }
    }

    /// For tests: reads in this mode.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_read_mode(self, read_mode: ReadMode) -> TableContext {
        let files = OpenFiles::new(8);
        let resources = TableResources { cache: self.cache, files, memory: self.memory, budget: self.budget };
        TableContext::sharing(self.files.fs.clone(), &self.files.dir, &resources, read_mode)
    }

    /// Reports to `events`.
    pub fn with_events(self, events: Events) -> TableContext {
        TableContext { events, ..self }
    }

    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Keeps the directory open, so that a sync of it needs no file descriptor.
    pub fn hold_dir(&self) -> error::Result<()> {
        self.thrifty.hold().during("open", &self.files.dir)
    }

    pub fn fs(&self) -> &dyn FileSystem {
        &*self.files.fs
    }

    pub fn shared_fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.files.fs)
    }

    pub fn dir(&self) -> &Path {
        &self.files.dir
    }

    /// Removes the files of obsolete tables.
    pub fn janitor(&self) -> &Janitor {
        &self.janitor
    }

    /// Removes the file of a table that no version has ever named. For callers that hold the
    /// store's lock. If the removal fails, the next open of the store removes the file.
    pub fn remove_file(&self, number: u64) {
        // A check of the file may have left it open.
        self.files.remove(number);
        self.graveyard.bury(number);
        self.graveyard.remove_file(self.fs(), self.dir(), number);
    }

    /// Reads values that are not in the tables.
    pub fn values(&self) -> &Arc<ValueFiles> {
        &self.values
    }

    /// Tables that no version names, but whose files may reappear after a crash.
    pub fn graveyard(&self) -> &Graveyard {
        &self.graveyard
    }

    /// The epoch that readers of the tables pin.
    pub fn epoch(&self) -> &Arc<Epoch> {
        self.cache_owner.epoch()
    }

    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Charged for all that the tables take.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Bytes of the cache that blocks of these tables take.
    pub fn cache_usage(&self) -> usize {
        self.cache_owner.usage()
    }

    #[cfg(test)]
    pub fn files(&self) -> &FilePool {
        &self.files
    }
}

impl fmt::Debug for TableContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableContext").field("dir", &self.dir()).finish_non_exhaustive()
    }
}
