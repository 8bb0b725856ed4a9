//! [`KeyspaceOptions`]: options of one keyspace.

use std::sync::Arc;
use std::time::Duration;

use super::{Compression, LevelFilters};
use crate::error::{Error, Result};
use crate::filter::{FilterPolicy, PrefixExtractor};
use crate::format::deadline::deadline_after;
use crate::operator::{CompactionFilter, CompactionHook, MergeOperator, NamedOperator};

/// The least [`KeyspaceOptions::separate_values`].
const SHORTEST_SEPARATE: u32 = 16;

/// Options of one keyspace. They are stored with it, and apply again when it is opened without
/// options.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct KeyspaceOptions {
    /// Filter of each table. Default: [`FilterPolicy::DEFAULT`]. A table keeps the filter it was
    /// written with until [`Keyspace::rebuild_filters`](crate::Keyspace::rebuild_filters).
    pub filter: FilterPolicy,
    /// How filters differ between levels. Default: [`LevelFilters::Uniform`].
    pub level_filters: LevelFilters,
    /// Compression of the last level, which holds nine tenths of the data. The levels above are
    /// rewritten too often for it to pay. Default: LZ4 if built in.
    pub compression: Compression,
    /// Size of a data block before compression, in bytes, 256 to 1 MiB. Default: 4096, a page: what
    /// one disk read brings.
    pub block_size: u32,
    /// How to take the prefix of a key, so that scans of one prefix can leave out tables. Filters
    /// grow by the distinct prefixes. May be changed at any time: such scans read older tables
    /// until compaction rewrites them. Default: none.
    pub prefix: Option<PrefixExtractor>,
    /// How long a put without a deadline of its own lives, in whole milliseconds; see
    /// [`ttl`](KeyspaceOptions::ttl). Default: `None`, for ever.
    pub ttl: Option<Duration>,
    /// Whether writes go to the write-ahead log. Default: true.
    ///
    /// Without a log, a write is lost with the process unless it is in a table:
    /// [`flushed_seqno`](crate::Db::flushed_seqno) says up to which number writes are, and
    /// [`flush`](crate::Db::flush) and closing the store bring all there. After a crash, all
    /// keyspaces without a log are as they were at one sequence number, and those with a log have
    /// their later writes too. The operations of a batch on keyspaces with a log survive it
    /// together; the others of that batch may be lost.
    ///
    /// [`sync`](crate::Db::sync) covers what is logged, and a synced write in which nothing is
    /// logged is refused. The change feed and read-only opens see only what is logged or in tables.
    pub wal: bool,
    /// Length in bytes from which values are stored apart from the tables; see
    /// [`separate_values`](KeyspaceOptions::separate_values). Default: `None`, none are.
    pub separate_values: Option<u32>,
    /// How [`merge`](crate::Db::merge) changes values. Stored by name.
    pub(crate) merge_operator: Option<NamedOperator>,
    /// What the caller has compactions do. Not stored.
    pub(crate) compaction_filter: CompactionHook,
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            filter: FilterPolicy::DEFAULT,
            level_filters: LevelFilters::Uniform,
            compression: if Compression::Lz4.is_available() { Compression::Lz4 } else { Compression::None },
            block_size: 4096,
            prefix: None,
            ttl: None,
            wal: true,
            separate_values: None,
            merge_operator: None,
            compaction_filter: CompactionHook::default(),
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

    /// Sets how filters differ between levels.
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

    /// Sets how to take the prefix of a key.
    pub fn prefix(mut self, extractor: impl Into<Option<PrefixExtractor>>) -> Self {
        self.prefix = extractor.into();
        self
    }

    /// Gives each put without a deadline of its own one: `ttl` after it is written, rounded up to
    /// whole milliseconds; 0 is refused. See
    /// [`put_with_expiry`](crate::Keyspace::put_with_expiry).
    ///
    /// What was put before keeps its deadline, or has none. All puts of a batch or transaction have
    /// the same one. Merges have no deadline, and what was merged into a value stays when the value
    /// expires: a keyspace that is written by merges alone, such as one of counters, keeps all of
    /// its keys, whatever its ttl.
    pub fn ttl(mut self, ttl: impl Into<Option<Duration>>) -> Self {
        self.ttl = ttl.into().map(|ttl| Duration::from_millis(deadline_after(0, ttl)));
        self
    }

    /// Sets whether writes go to the write-ahead log; see [`wal`](KeyspaceOptions::wal). May be
    /// changed at any time, for the writes that follow. The change first flushes all memtables, for
    /// which writers wait: what was written before it is durable, and no crash takes it while it
    /// leaves later writes.
    ///
    /// A state machine that is replicated has its log elsewhere. It notes how far it has applied
    /// that log in the batch that applies it, and after a crash goes on from there:
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis::{KeyspaceOptions, WriteBatch};
    ///
    /// let state = db.keyspace_with("state", KeyspaceOptions::new().wal(false))?;
    /// let mut batch = WriteBatch::new();
    /// batch.put_in(&state, "x", "5");
    /// batch.put_in(&state, "applied", 17u64.to_be_bytes());
    /// let seqno = db.write(batch)?;
    /// assert!(db.flushed_seqno() < seqno, "a crash would take the state back to before entry 17");
    /// db.flush()?;
    /// assert!(db.flushed_seqno() >= seqno, "entries up to 17 may be removed from that log");
    /// # Ok(()) }
    /// ```
    pub fn wal(mut self, wal: bool) -> Self {
        self.wal = wal;
        self
    }

    /// Stores values of `bytes` bytes or more in value files, and in the tables only where they
    /// are.
    ///
    /// They are compressed as the last level is. Compactions move keys and short values, and each
    /// long value is written once, and once more when more than a quarter of what the value files
    /// hold is garbage. A read of such a value takes one disk read more, and no block of it is
    /// cached; scans of keys read none of them. With values of 4 KiB and more, that is usually
    /// worth it.
    ///
    /// Each iterator or cursor over such values reads ahead in up to eight value files, and has a
    /// buffer of at most 256 KiB for each. No limit of the store counts these 2 MiB: bound the
    /// number of scans that are open at once.
    ///
    /// Up to a quarter of the value files may be garbage, also after
    /// [`compact_range`](crate::Db::compact_range).
    ///
    /// Operands of merges stay in the tables. May be changed at any time; values already in tables
    /// follow when a compaction meets them.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let options = tamis::KeyspaceOptions::new().separate_values(4096);
    /// let images = db.keyspace_with("images", options)?;
    /// images.put("cat.jpg", vec![7; 100_000])?;
    /// db.flush()?;
    /// assert_eq!(images.get("cat.jpg")?.map(|image| image.len()), Some(100_000));
    /// # Ok(()) }
    /// ```
    pub fn separate_values(mut self, bytes: impl Into<Option<u32>>) -> Self {
        self.separate_values = bytes.into();
        self
    }

    /// Sets the merge operator. Once a keyspace has one, it keeps it: options without an operator
    /// leave it as it is, and an operator of another name is refused.
    pub fn merge_operator(mut self, operator: impl MergeOperator + 'static) -> Self {
        self.merge_operator = Some(NamedOperator::new(Arc::new(operator)));
        self
    }

    /// Has compactions ask `filter` what to keep. It is not stored: it must be set again when the
    /// store is opened, by [`Options::default_keyspace`](crate::Options::default_keyspace) or
    /// [`Db::keyspace_with`](crate::Db::keyspace_with). Until then, and until the store is closed,
    /// options without a filter leave the one in force.
    pub fn compaction_filter(mut self, filter: impl CompactionFilter + 'static) -> Self {
        self.compaction_filter = CompactionHook::new(filter);
        self
    }

    /// The name of the merge operator, if there is one.
    pub fn merge_operator_name(&self) -> Option<&str> {
        self.merge_operator.as_ref().map(NamedOperator::name)
    }

    /// These options for a keyspace that has had `former` so far.
    pub(crate) fn succeeding(mut self, former: &KeyspaceOptions) -> Result<KeyspaceOptions> {
        match (&self.merge_operator, &former.merge_operator) {
            (Some(new), Some(old)) if new.name() != old.name() => {
                let (new, old) = (new.name(), old.name());
                return Err(Error::invalid(format_args!("the keyspace's merge operator is {old:?}, not {new:?}")));
            }
            (Some(new), _) if new.is_known() => {}
            (_, old) => self.merge_operator = old.clone(),
        }
        if !self.compaction_filter.is_set() {
            self.compaction_filter = former.compaction_filter.clone();
        }
        Ok(self)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        self.filter.validate()?;
        self.merge_operator.as_ref().map_or(Ok(()), NamedOperator::validate)?;
        self.prefix.map_or(Ok(()), PrefixExtractor::validate)?;
        self.level_filters.validate(self.filter)?;
        if !self.compression.is_available() {
            return Err(Error::invalid(format_args!("this build of tamis lacks {:?} compression", self.compression)));
        }
        if !(256..=1 << 20).contains(&self.block_size) {
            return Err(Error::invalid(format_args!("block_size must be 256 bytes to 1 MiB, not {}", self.block_size)));
        }
        if self.ttl.is_some_and(|ttl| ttl.is_zero()) {
            return Err(Error::invalid("a ttl of 0 lets no value live: use None for values that do not expire"));
        }
        if self.separate_values.is_some_and(|bytes| bytes < SHORTEST_SEPARATE) {
            return Err(Error::invalid(format_args!(
                "separate_values must be at least {SHORTEST_SEPARATE} bytes: a pointer to a value takes 10 to 20"
            )));
        }
        Ok(())
    }
}
