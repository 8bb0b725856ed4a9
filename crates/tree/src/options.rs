//! Options of one keyspace. The crate `tamis` re-exports them: their links lead to its pages.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::filter::{FilterPolicy, PrefixExtractor, RangeFilterPolicy};
use crate::format::deadline::deadline_after;
use crate::sorted::operator::{CompactionFilter, CompactionHook, MergeOperator, NamedOperator};
pub use tamis_sorted::compress::Compression;

/// How the filters of the levels differ.
///
/// A look-up of an absent key asks one table of each level. Levels grow by a factor of about ten,
/// so nearly all filter memory is in the last one. An additional bit per key in the levels above
/// costs next to nothing.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LevelFilters {
    /// Every table uses [`KeyspaceOptions::filter`].
    #[default]
    Uniform,
    /// A policy for each level, from level 0; the last one also applies to all further levels. One
    /// to seven policies.
    Each(Vec<FilterPolicy>),
    /// All filters together stay near a memory budget (see [`FilterBudget`]), divided among levels
    /// and tables so that the fewest reads are wasted (Monkey, SIGMOD 2017). A table gets a Bloom
    /// filter of 1 to 24 bits per key, or no filter, by the tree and by the look-ups at the time it
    /// is written, whatever [`KeyspaceOptions::filter`] says: binary fuse filters have too few
    /// sizes. That policy must not be [`FilterPolicy::None`].
    Budget(FilterBudget),
}

/// Memory for the filters of a keyspace.
///
/// Bits go where they save most reads: to tables that are often asked for keys that they do not
/// hold, and to small ones. The store counts such look-ups from its opening on, and tables that
/// replace others take over their counts. Until there are some, it assumes as many for every run,
/// or as [`absent`](FilterBudget::absent) says. All tables that one compaction writes get the same
/// bits per key; [`Keyspace::renew_filters`](struct.Keyspace.html#method.renew_filters) looks at
/// each table.
///
/// A table's filter is sized by this plan when the table is written, and stays until the table is
/// rewritten. All filters together may therefore exceed the budget: by a quarter at most in the
/// last level, and by half at most in total. A run that would exceed it gets a smaller filter or
/// none; in append-only stores this is the usual case.
/// [`Keyspace::renew_filters`](struct.Keyspace.html#method.renew_filters) brings all filters back
/// to the plan.
///
/// Range filters ([`KeyspaceOptions::range_filter`]) have the size that their policy says. If they
/// take up to three quarters of the budget, the other filters share the rest; otherwise no range
/// filters are written.
///
/// Not counted are headers, the last 64 bytes of each filter, tables that running compactions are
/// writing, and tables recovered on open. The plan counts keys. With [`KeyspaceOptions::prefix`],
/// written filters still keep to the bound, but renewed filters, which follow the plan, can take up
/// to twice as much.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FilterBudget {
    /// The amount of memory.
    pub limit: BudgetLimit,
    /// Share of look-ups that find nothing, 0 to 1, in steps of a thousandth: what is assumed until
    /// look-ups have been counted. The others are assumed to find their key in the last level,
    /// where filters are worth less the more look-ups succeed. Default: 1.
    #[cfg_attr(feature = "serde", serde(default = "all"))]
    pub absent: f32,
}

/// The share of all look-ups.
#[cfg(feature = "serde")]
fn all() -> f32 {
    1.0
}

/// How much memory filters may take.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum BudgetLimit {
    /// Memory that filters of this many bits per key take, 0.001 to 24. It grows with the store.
    BitsPerKey(f32),
    /// This many bytes, however large the store becomes.
    Bytes(u64),
}

impl FilterBudget {
    /// The memory that filters of `bits_per_key` take if all levels have the same.
    pub fn bits_per_key(bits_per_key: f32) -> FilterBudget {
        FilterBudget { limit: BudgetLimit::BitsPerKey(bits_per_key), absent: 1.0 }
    }

    /// A budget of `bytes` bytes.
    pub fn bytes(bytes: u64) -> FilterBudget {
        FilterBudget { limit: BudgetLimit::Bytes(bytes), absent: 1.0 }
    }

    /// Sets the share of look-ups that find nothing.
    pub fn absent(mut self, share: f32) -> FilterBudget {
        self.absent = share;
        self
    }
}

impl LevelFilters {
    /// Most policies in [`LevelFilters::Each`]: the number of levels.
    #[doc(hidden)]
    pub const MAX_EACH: usize = 7;

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
                Err(Error::invalid("a filter budget needs a filter policy other than none"))
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
            return Err(Error::invalid(format_args!("a filter budget is 0.001 to 24 bits per key, not {bits}")));
        }
        if !(0.0..=1.0).contains(&self.absent) {
            let absent = self.absent;
            return Err(Error::invalid(format_args!("the share of absent keys is between 0 and 1, not {absent}")));
        }
        Ok(())
    }
}

/// The least [`KeyspaceOptions::separate_values`].
const SHORTEST_SEPARATE: u32 = 16;

/// Options of one keyspace. They are stored with it, and apply again when it is opened without
/// options.
///
/// With the feature `serde` they are values of it: those that are missing have their defaults, an
/// unknown name is an error, and ranges are checked when a keyspace is opened with them. The merge
/// operator and the compaction filter are code, and are left out.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct KeyspaceOptions {
    /// Filter of each table. Default: [`FilterPolicy::DEFAULT`]. A table keeps the filter it was
    /// written with until
    /// [`Keyspace::rebuild_filters`](struct.Keyspace.html#method.rebuild_filters).
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
    /// Range filter of each table; see [`range_filter`](KeyspaceOptions::range_filter). Default:
    /// [`RangeFilterPolicy::None`].
    pub range_filter: RangeFilterPolicy,
    /// How long a put without a deadline of its own lives, in whole milliseconds; see
    /// [`ttl`](KeyspaceOptions::ttl). Default: `None`, for ever.
    pub ttl: Option<Duration>,
    /// Whether writes go to the write-ahead log. Default: true.
    ///
    /// Without a log, a write is lost with the process unless it is in a table:
    /// [`flushed_seqno`](struct.Db.html#method.flushed_seqno) says up to which number writes are,
    /// and [`flush`](struct.Db.html#method.flush) and closing the store bring all there. After a
    /// crash, all keyspaces without a log are as they were at one sequence number, and those with a
    /// log have their later writes too. The operations of a batch on keyspaces with a log survive
    /// it together; the others of that batch may be lost.
    ///
    /// [`sync`](struct.Db.html#method.sync) covers what is logged, and a synced write in which
    /// nothing is logged is refused. The change feed and read-only opens see only what is logged or
    /// in tables.
    pub wal: bool,
    /// Length in bytes from which values are stored apart from the tables; see
    /// [`separate_values`](KeyspaceOptions::separate_values). Default: `None`, none are.
    pub separate_values: Option<u32>,
    /// How [`merge`](struct.Db.html#method.merge) changes values. Stored by name.
    #[cfg_attr(feature = "serde", serde(skip))]
    #[doc(hidden)]
    pub merge_operator: Option<NamedOperator>,
    /// What the caller has compactions do. Not stored.
    #[cfg_attr(feature = "serde", serde(skip))]
    #[doc(hidden)]
    pub compaction_filter: CompactionHook,
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            filter: FilterPolicy::DEFAULT,
            level_filters: LevelFilters::Uniform,
            compression: if Compression::Lz4.is_available() { Compression::Lz4 } else { Compression::None },
            block_size: 4096,
            prefix: None,
            range_filter: RangeFilterPolicy::None,
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

    /// Sets the range filter of each table: seeks and scans then put off, or leave out, the reads
    /// of tables that hold nothing near the key that they seek. An empty range reads next to
    /// nothing, and a short one reads only the runs that have some of it.
    ///
    /// It is asked when the block that a read would enter is not in memory, and pays where data
    /// exceed the cache and scans are short. [`ReadStats::scan_reads_unused`] counts what it could
    /// save. Flushes and compactions take 50 to 100 ns more per key, and the filter takes memory
    /// and disk space: 12 bits per key as a rule, and up to 22 bits per data block more where a
    /// block holds few keys, as with values of 1 KiB and above. A [`FilterBudget`] counts these
    /// only once a filter is written. May be changed at any time; a table keeps the filter it was
    /// written with until [`Keyspace::renew_filters`](struct.Keyspace.html#method.renew_filters).
    ///
    /// [`ReadStats::scan_reads_unused`]: struct.ReadStats.html#structfield.scan_reads_unused
    pub fn range_filter(mut self, policy: RangeFilterPolicy) -> Self {
        self.range_filter = policy;
        self
    }

    /// Gives each put without a deadline of its own one: `ttl` after it is written, rounded up to
    /// whole milliseconds; 0 is refused. See
    /// [`put_with_expiry`](struct.Keyspace.html#method.put_with_expiry).
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
    /// that log in the batch that applies it, and after a crash goes on from there: see the example
    /// above.
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
    /// [`compact_range`](struct.Db.html#method.compact_range).
    ///
    /// Operands of merges stay in the tables. May be changed at any time; values already in tables
    /// follow when a compaction meets them.
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
    /// store is opened, by
    /// [`Options::default_keyspace`](struct.Options.html#method.default_keyspace) or
    /// [`Db::keyspace_with`](struct.Db.html#method.keyspace_with). Until then, and until the store
    /// is closed, options without a filter leave the one in force.
    pub fn compaction_filter(mut self, filter: impl CompactionFilter + 'static) -> Self {
        self.compaction_filter = CompactionHook::new(filter);
        self
    }

    /// The name of the merge operator, if there is one.
    pub fn merge_operator_name(&self) -> Option<&str> {
        self.merge_operator.as_ref().map(NamedOperator::name)
    }

    /// These options for a keyspace that has had `former` so far.
    #[doc(hidden)]
    pub fn succeeding(mut self, former: &KeyspaceOptions) -> Result<KeyspaceOptions> {
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

    #[doc(hidden)]
    pub fn validate(&self) -> Result<()> {
        self.filter.validate()?;
        self.merge_operator.as_ref().map_or(Ok(()), NamedOperator::validate)?;
        self.prefix.map_or(Ok(()), PrefixExtractor::validate)?;
        self.range_filter.validate()?;
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
