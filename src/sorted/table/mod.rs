//! SSTables: sorted entries in a file, with their filter and their index.
//!
//! A file is written once, by a [`TableBuilder`], and never changed. A [`Table`] answers from it: the filter is asked first, then
//! the index, and then at most one data block is read, as a rule. All bytes of a table enter through one function, in `fetch`,
//! which verifies and counts them. docs/FORMAT.md draws the file.

mod builder;
mod cache;
mod clock;
mod compress;
mod cursor;
mod describe;
mod fetch;
mod files;
mod footer;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzz;
mod graveyard;
mod index;
mod janitor;
mod mapped;
mod origin;
mod pending;
mod planned;
mod prefix;
mod properties;
mod reader;
mod refilter;
mod resident;
mod salvage;
mod slot;
#[cfg(test)]
mod tests;
mod verify;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use builder::TableBuilder;
pub(crate) use cache::BlockCache;
pub(crate) use cursor::TableCursor;
pub(crate) use files::FilePool;
pub(crate) use footer::Handle;
pub(crate) use graveyard::Graveyard;
pub(crate) use origin::{Input, Origin};
pub(crate) use pending::PendingReads;
pub(crate) use prefix::PrefixProbe;
pub(crate) use reader::{PointRead, Probe, ReadMode, Table, TableHit};
pub(crate) use salvage::{SalvageCursor, SalvageTable};

use self::janitor::Janitor;
use self::mapped::Permit;
use crate::error::{IoContext, Result};
use crate::filter::{FilterPolicy, PrefixExtractor};
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::memory::epoch::Epoch;
use crate::memory::pool::Lasting;
use crate::options::Compression;
use crate::report::event::Listener;
use crate::vfs::FileSystem;

/// What the manifest knows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableMeta {
    pub(crate) number: u64,
    /// Bytes of the file.
    pub(crate) size: u64,
    /// Checksum of the whole file, which is no CRC.
    pub(crate) checksum: u32,
    pub(crate) entries: u64,
    /// Distinct user keys; the other entries are older versions of them.
    pub(crate) keys: u64,
    pub(crate) tombstones: u64,
    pub(crate) smallest_seqno: SeqNo,
    pub(crate) largest_seqno: SeqNo,
    /// Smallest and largest user key in the table.
    pub(crate) smallest: Box<[u8]>,
    pub(crate) largest: Box<[u8]>,
}

/// How a table is to be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableOptions {
    pub(crate) filter: FilterPolicy,
    /// What of a key the filter holds beside the key.
    pub(crate) prefix: Option<PrefixExtractor>,
    pub(crate) compression: Compression,
    /// Bytes of a data block with its trailer, before compression. A larger entry gets a block of its own.
    pub(crate) block_size: u32,
    /// Seed of the hash behind filter and fingerprints.
    pub(crate) seed: u64,
    pub(crate) keyspace: u32,
}

/// What the tables of one store share.
pub(crate) struct TableContext {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    epoch: Arc<Epoch>,
    cache: BlockCache,
    /// For what stays in memory of open tables.
    lasting: Arc<Lasting>,
    files: FilePool,
    janitor: Arc<Janitor>,
    graveyard: Arc<Graveyard>,
    /// Whether tables without compression are mapped.
    map_tables: Permit,
    listener: Listener,
}

impl TableContext {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, dir: &Path, cache_bytes: usize, max_open_files: usize) -> TableContext {
        let epoch = Arc::<Epoch>::default();
        let graveyard = Arc::<Graveyard>::default();
        TableContext {
            janitor: Arc::new(Janitor::new(Arc::clone(&fs), dir.to_owned(), Arc::clone(&graveyard))),
            graveyard,
            fs,
            dir: dir.to_owned(),
            cache: BlockCache::new(Arc::clone(&epoch), cache_bytes),
            epoch,
            lasting: Arc::default(),
            files: FilePool::new(max_open_files),
            map_tables: Permit::default(),
            listener: Listener::default(),
        }
    }

    /// The same, with tables mapped that have no compression.
    pub(crate) fn with_mmap_reads(self, wanted: bool) -> TableContext {
        TableContext { map_tables: Permit::new(wanted), ..self }
    }

    /// The same, with somebody who is told of events.
    pub(crate) fn with_listener(self, listener: Listener) -> TableContext {
        TableContext { listener, ..self }
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

    /// Opens the file of a table, for reads to come.
    pub(crate) fn open_file(&self, number: u64) -> Result<()> {
        let path = FileKind::Table(number).path(&self.dir);
        self.files.get(number, || self.fs.open(&path)).during("open", &path).map(drop)
    }

    /// What removes the files of obsolete tables.
    pub(crate) fn janitor(&self) -> &Janitor {
        &self.janitor
    }

    /// Removes the file of a table that no version has ever named, for a caller that works under
    /// the store's lock. One that is left behind is removed when the store is opened next.
    pub(crate) fn remove_file(&self, number: u64) {
        self.graveyard.bury(number);
        self.graveyard.remove_file(&*self.fs, &self.dir, number);
    }

    /// The tables that no version names, but whose files may be found again.
    pub(crate) fn graveyard(&self) -> &Graveyard {
        &self.graveyard
    }

    /// What readers of the tables pin.
    pub(crate) fn epoch(&self) -> &Arc<Epoch> {
        &self.epoch
    }

    pub(crate) fn cache(&self) -> &BlockCache {
        &self.cache
    }

    pub(crate) fn lasting(&self) -> &Lasting {
        &self.lasting
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
