//! Options of a store and of a keyspace: plain data, few, each with a default that suits most.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::exec::Executor;
use crate::filter::{FilterPolicy, PrefixExtractor};
use crate::report::event::{Event, Listener};
use crate::vfs::{FileSystem, OsFileSystem};

/// How the filters of the levels differ.
///
/// A look-up of an absent key asks one table of each level. The levels grow by a factor of ten or so, so that nearly all memory for
/// filters goes to the last one, and a bit per key more in the levels above costs next to nothing.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum LevelFilters {
    /// Every table has [`KeyspaceOptions::filter`].
    #[default]
    Uniform,
    /// A policy for each level, from level 0; the last one is that of all further levels. One to seven policies.
    Each(Vec<FilterPolicy>),
    /// All filters together take about so much memory (see [`FilterBudget`]), shared out so that as few reads as possible are wasted (Monkey,
    /// SIGMOD 2017). Runs are given 1 to 24 bits per key, or none, when they are written, by what the tree is then. What kind of filter
    /// they are, [`KeyspaceOptions::filter`] says; Bloom filters take the place of binary fuses, which have few sizes.
    Budget(FilterBudget),
}

/// Memory for the filters of a keyspace.
///
/// It is what is planned with when a table is written, and tables keep their filters until they are written again. So all filters
/// together may exceed it, but by a quarter at most in the last level, and by a half in all; runs that would exceed that have smaller
/// filters, or none, as those of a store do that is only ever appended to.
/// [`Keyspace::renew_filters`](crate::Keyspace::renew_filters) brings all of them back to the plan. Not counted are headers, the last
/// 64 bytes of each filter, what running compactions write at the same time and what is recovered at opening. The plan counts keys: with [`KeyspaceOptions::prefix`], what is written keeps to the bound all the
/// same, but renewed filters, which follow the plan, can take up to twice as much.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct FilterBudget {
    /// How much.
    pub limit: BudgetLimit,
    /// Which share of the look-ups finds nothing, 0 to 1, counted in thousandths. The others are taken to find their key in the last
    /// level: the fewer find nothing, the less a filter there is worth. Default: 1.
    pub absent: f32,
}

/// How much memory filters may take.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum BudgetLimit {
    /// As much as filters of so many bits per key take, 0.001 to 24: it grows with the store.
    BitsPerKey(f32),
    /// So many bytes, however large the store becomes.
    Bytes(u64),
}

impl FilterBudget {
    /// As much memory as filters of so many bits per key take everywhere.
    pub fn bits_per_key(bits_per_key: f32) -> FilterBudget {
        FilterBudget { limit: BudgetLimit::BitsPerKey(bits_per_key), absent: 1.0 }
    }

    /// So many bytes.
    pub fn bytes(bytes: u64) -> FilterBudget {
        FilterBudget { limit: BudgetLimit::Bytes(bytes), absent: 1.0 }
    }

    /// Sets the share of the look-ups that find nothing.
    pub fn absent(mut self, share: f32) -> FilterBudget {
        self.absent = share;
        self
    }
}

impl LevelFilters {
    /// Most policies of [`LevelFilters::Each`]: there are so many levels.
    pub(crate) const MAX_EACH: usize = 7;

    fn validate(&self, filter: FilterPolicy) -> Result<()> {
        match self {
            LevelFilters::Uniform => Ok(()),
            LevelFilters::Each(policies) if (1..=LevelFilters::MAX_EACH).contains(&policies.len()) => {
                policies.iter().try_for_each(|policy| policy.validate())
            }
            LevelFilters::Each(policies) => Err(Error::invalid(format_args!(
                "a keyspace takes filter policies for 1 to {} levels, not {}",
                LevelFilters::MAX_EACH,
                policies.len()
            ))),
            LevelFilters::Budget(_) if filter == FilterPolicy::None => {
                Err(Error::invalid("a budget for filters needs a filter policy that says of which kind they are"))
            }
            LevelFilters::Budget(budget) => budget.validate(),
        }
    }
}

impl FilterBudget {
    fn validate(&self) -> Result<()> {
        if let BudgetLimit::BitsPerKey(bits) = self.limit
            && !(0.001..=24.0).contains(&bits)
        {
            return Err(Error::invalid(format_args!("a budget for filters is 0.001 to 24 bits per key, not {bits}")));
        }
        if !(0.0..=1.0).contains(&self.absent) {
            let absent = self.absent;
            return Err(Error::invalid(format_args!("the share of absent keys is between 0 and 1, not {absent}")));
        }
        Ok(())
    }
}

/// How a read treats the filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterMode {
    /// Ask the filter first, and believe its "no".
    #[default]
    Use,
    /// Do not ask: look into every table whose key range holds the key. To measure what filters save.
    Ignore,
    /// Ask, count the answer, and look into the table all the same. A "no" for a key that is there is an error that names the
    /// table.
    Shadow,
}

/// How blocks are compressed. A block that does not shrink by an eighth is stored as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4 (feature `lz4`, on by default).
    Lz4,
    /// zstd (feature `zstd`).
    Zstd,
}

impl Compression {
    /// The number that stands for it, in blocks, properties and manifest. Part of the format.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd => 2,
        }
    }

    /// The compression that `code` stands for, built in or not.
    pub(crate) fn from_code(code: u64) -> Option<Compression> {
        let all = [Compression::None, Compression::Lz4, Compression::Zstd];
        all.into_iter().find(|compression| u64::from(compression.code()) == code)
    }

    /// Whether this build can compress and decompress with it.
    pub fn is_available(self) -> bool {
        match self {
            Compression::None => true,
            Compression::Lz4 => cfg!(feature = "lz4"),
            Compression::Zstd => cfg!(feature = "zstd"),
        }
    }
}

/// Options of one keyspace. They are stored with it: opening it again without options brings them back.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct KeyspaceOptions {
    /// Filter of each table. Default: [`FilterPolicy::DEFAULT`]. A table keeps the filter with which it was written, until
    /// [`Keyspace::rebuild_filters`](crate::Keyspace::rebuild_filters).
    pub filter: FilterPolicy,
    /// How the levels differ from that. Default: [`LevelFilters::Uniform`], not at all.
    pub level_filters: LevelFilters,
    /// Compression of the last level, where nine tenths of the data are; the levels above are rewritten too often for it to pay.
    /// Default: LZ4 if built in.
    pub compression: Compression,
    /// Size of a data block before compression, in bytes, 256 to 1 MiB. Default: 4096, a page: what one disk read brings.
    pub block_size: u32,
    /// What of a key is its prefix, so that scans of one prefix leave out tables. The filters grow by the distinct prefixes. It may be
    /// changed at any time: tables that were written before are read by such scans until compaction has rewritten them. Default: none.
    pub prefix: Option<PrefixExtractor>,
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            filter: FilterPolicy::DEFAULT,
            level_filters: LevelFilters::Uniform,
            compression: if cfg!(feature = "lz4") { Compression::Lz4 } else { Compression::None },
            block_size: 4096,
            prefix: None,
        }
    }
}

impl KeyspaceOptions {
    /// The defaults.
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// Sets the filter policy.
    pub fn filter(mut self, filter: FilterPolicy) -> Self {
        self.filter = filter;
        self
    }

    /// Sets how the filters of the levels differ.
    pub fn level_filters(mut self, level_filters: LevelFilters) -> Self {
        self.level_filters = level_filters;
        self
    }

    /// Sets the compression of the last level.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets the size of a data block, in bytes.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = bytes;
        self
    }

    /// Sets what of a key is its prefix.
    pub fn prefix(mut self, extractor: impl Into<Option<PrefixExtractor>>) -> Self {
        self.prefix = extractor.into();
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        self.filter.validate()?;
        self.prefix.map_or(Ok(()), PrefixExtractor::validate)?;
        self.level_filters.validate(self.filter)?;
        if !self.compression.is_available() {
            return Err(Error::invalid(format_args!("this build of tamis lacks {:?} compression", self.compression)));
        }
        if !(256..=1 << 20).contains(&self.block_size) {
            return Err(Error::invalid(format_args!("a block takes 256 bytes to 1 MiB, not {}", self.block_size)));
        }
        Ok(())
    }
}

/// How the write-ahead log is written. What a write promises, and what the files look like to a reader, is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WalMode {
    /// As is fastest where the store lives. On Linux, and on ext4 or XFS, writes without `sync` are stored to mapped memory of the log
    /// instead of being handed over by a system call, which is several times as fast; space for them is prepared before. Elsewhere as
    /// with [`WalMode::Write`].
    #[default]
    Auto,
    /// By system calls alone, to a file that grows with them.
    Write,
}

/// Options of a store.
///
/// ```no_run
/// # fn main() -> tamis::Result<()> {
/// let db = tamis::Options::new().cache_size(256 << 20).open("words.db")?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) create_if_missing: bool,
    pub(crate) memtable_size: usize,
    pub(crate) table_size: u64,
    pub(crate) cache_size: usize,
    pub(crate) max_open_files: usize,
    pub(crate) mmap_reads: bool,
    pub(crate) background_threads: usize,
    pub(crate) paranoid: bool,
    pub(crate) wal_mode: WalMode,
    pub(crate) hash_seed: Option<u64>,
    pub(crate) default_keyspace: Option<KeyspaceOptions>,
    pub(crate) file_system: Arc<dyn FileSystem>,
    pub(crate) executor: Option<Arc<dyn Executor>>,
    pub(crate) listener: Listener,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create_if_missing: true,
            memtable_size: 64 << 20,
            table_size: 64 << 20,
            cache_size: 64 << 20,
            max_open_files: 512,
            mmap_reads: false,
            background_threads: 2,
            paranoid: false,
            wal_mode: WalMode::Auto,
            hash_seed: None,
            default_keyspace: None,
            file_system: Arc::new(OsFileSystem::new()),
            executor: None,
            listener: Listener::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("create_if_missing", &self.create_if_missing)
            .field("memtable_size", &self.memtable_size)
            .field("table_size", &self.table_size)
            .field("cache_size", &self.cache_size)
            .field("max_open_files", &self.max_open_files)
            .field("mmap_reads", &self.mmap_reads)
            .field("background_threads", &self.background_threads)
            .field("paranoid", &self.paranoid)
            .field("wal_mode", &self.wal_mode)
            .field("default_keyspace", &self.default_keyspace)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Whether to create the store when its directory is absent or empty. Default: true.
    ///
    /// In a directory that holds anything else no store is ever created: see
    /// [`Error::NotAStore`](crate::Error::NotAStore).
    pub fn create_if_missing(mut self, create: bool) -> Self {
        self.create_if_missing = create;
        self
    }

    /// Bytes of writes held in memory before they are written to a table, for all keyspaces together. Default: 64 MiB. Up to three
    /// times as much can be in memory while flushes are behind; the log on disk is bounded alike.
    pub fn memtable_size(mut self, bytes: usize) -> Self {
        self.memtable_size = bytes;
        self
    }

    /// Size at which compaction ends a table and begins the next, in bytes. Default: 64 MiB.
    pub fn table_size(mut self, bytes: u64) -> Self {
        self.table_size = bytes;
        self
    }

    /// Bytes of data blocks kept in memory. Default: 64 MiB. Filters and indexes are held beside it: about 2 bytes per key.
    pub fn cache_size(mut self, bytes: usize) -> Self {
        self.cache_size = bytes;
        self
    }

    /// Table files held open at once. Default: 512, half of the usual limit of a process.
    pub fn max_open_files(mut self, count: usize) -> Self {
        self.max_open_files = count;
        self
    }

    /// Whether data blocks are read in place, from files that are mapped into memory. Default: false.
    ///
    /// Otherwise each block that the cache does not have costs a system call and a copy. For data that exceeds the cache but not memory: with
    /// 580 MB of it and a cache of 256 MiB, random reads and seeks are about twice as fast, scans of a hundred entries 1.5 to 2.1 times and
    /// `multi_get` 2.7 times (docs/PERFORMANCE.md). The cache is then of use to tables with compression only, whose blocks go through it
    /// as ever: [`KeyspaceOptions::compression`] says which.
    ///
    /// What it costs:
    /// - A disk that fails while a page is read again ends the process by SIGBUS, where it otherwise gives an error. The first read of each
    ///   block is an ordinary one, whose errors are returned.
    /// - Nobody but tamis may write to the store's files while it is open. Otherwise that shows as damage; here what happens is not defined.
    ///   Whoever cuts a file short ends the process.
    /// - A block is verified once, when it is first read, and not again until the store is opened anew. Damage to the disk after that is not
    ///   seen then if the system has dropped the page meanwhile; it may be returned as data.
    /// - The memory of mapped pages is the system's: `cache_size` does not bound it, and [`MemoryStats`](crate::MemoryStats) does not tell of
    ///   it. The system takes it back when others need memory, and makes little difference then between pages that are in use and others.
    /// - A page that the system has dropped is read again without being counted: [`ReadStats`](crate::ReadStats) has the first read of a block
    ///   under `block_reads` and every later look at it under `cache_hits`, as if it stood in a cache without bounds. To measure what
    ///   filters save in reads of the disk, leave this off.
    ///
    /// Tables that cannot be mapped are read in the ordinary way: where the file system or the system refuses it, with an address space of 32
    /// bits, and beyond 16,384 tables.
    pub fn mmap_reads(mut self, mmap_reads: bool) -> Self {
        self.mmap_reads = mmap_reads;
        self
    }

    /// Threads for flushes and compactions. Default: 2. One is kept for flushes, which so need not wait for compactions, and helps
    /// with large compactions meanwhile.
    pub fn background_threads(mut self, count: usize) -> Self {
        self.background_threads = count;
        self
    }

    /// Reads every new table back before the manifest names it, and verifies every table on open. Default: false; block checksums
    /// are verified on every read from disk in any case.
    pub fn paranoid(mut self, paranoid: bool) -> Self {
        self.paranoid = paranoid;
        self
    }

    /// How the write-ahead log is written. Default: [`WalMode::Auto`].
    pub fn wal_mode(mut self, mode: WalMode) -> Self {
        self.wal_mode = mode;
        self
    }

    /// Fixes the seed of the filters' hash, so that the same writes make the same files. It counts when a store is created.
    /// Default: random.
    pub fn hash_seed(mut self, seed: u64) -> Self {
        self.hash_seed = Some(seed);
        self
    }

    /// Options of the default keyspace; set, they replace the stored ones.
    pub fn default_keyspace(mut self, options: KeyspaceOptions) -> Self {
        self.default_keyspace = Some(options);
        self
    }

    /// Where files live. Default: [`OsFileSystem`].
    pub fn file_system(mut self, file_system: Arc<dyn FileSystem>) -> Self {
        self.file_system = file_system;
        self
    }

    /// Who runs background work, instead of threads of the store's own. Several stores may share one. Only memory is made ready by threads
    /// beside it, which come and go.
    pub fn executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.executor = Some(executor);
        self
    }

    /// Who is told of [`Event`]s, from whichever thread comes upon one; it should return soon, and must not wait for the store.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listener = Listener::new(listener);
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.memtable_size < 4096 || self.memtable_size > 1 << 31 {
            return Err(Error::invalid("memtable_size must be 4 KiB to 2 GiB"));
        }
        if self.table_size < 4096 || self.table_size > 1 << 40 {
            return Err(Error::invalid("table_size must be 4 KiB to 1 TiB"));
        }
        if self.max_open_files < 8 {
            return Err(Error::invalid("max_open_files must be at least 8"));
        }
        match &self.default_keyspace {
            Some(options) => options.validate(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_an_extractor_stands_for_one_that_is_allowed() {
        let known: Vec<PrefixExtractor> = (0..=u16::MAX).filter_map(PrefixExtractor::from_code).collect();
        assert_eq!(known.len(), 4095 + 256);
        for extractor in known {
            assert_eq!(PrefixExtractor::from_code(extractor.code()), Some(extractor));
            assert!(extractor.validate().is_ok());
        }
        assert_eq!(PrefixExtractor::Fixed(4).code(), 0x1004);
        assert_eq!(PrefixExtractor::UpTo(b':').code(), 0x203a);
    }

    #[test]
    fn a_prefix_is_that_of_every_longer_key() {
        for (extractor, key, prefix) in [
            (PrefixExtractor::Fixed(3), &b"abcd"[..], Some(&b"abc"[..])),
            (PrefixExtractor::Fixed(3), b"abc", Some(b"abc")),
            (PrefixExtractor::Fixed(3), b"ab", None),
            (PrefixExtractor::UpTo(0), b"ab\0c\0", Some(b"ab\0")),
            (PrefixExtractor::UpTo(0), b"\0", Some(b"\0")),
            (PrefixExtractor::UpTo(0), b"", None),
        ] {
            assert_eq!(extractor.extract(key), prefix);
            for longer in [&b"x"[..], b"\0", b"abc"].map(|rest| [key, rest].concat()) {
                assert!(prefix.is_none() || extractor.extract(&longer) == prefix);
            }
        }
    }
}
