//! Statistics of a store, as plain data.

pub(crate) mod counters;
pub(crate) mod held;
pub(crate) mod metrics;
mod notices;
pub(crate) mod page;
pub(crate) mod report;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use self::counters::{Count, OpeningStats, RetiredTables};
use super::follow::reader_stats::ReaderStats;
use super::read::tree_of;
use super::shape::view::{ReadView, Tree};
use super::stats::held::HeldStats;
use super::store::Store;
use super::write::logs::LogStats;
use super::write::stalls::WriteStalls;
use crate::environment::{EnvironmentStats, MemoryUsage};
use crate::error::{Error, Result};
use crate::filter::{FilterState, RangeFilterState};
use crate::format::key::SeqNo;
use crate::report::stats::{FilterLedger, ReadStats};
use crate::sorted::table::Table;
use crate::tree::version::Level;

/// Statistics of a store at one moment. Counts begin when it was opened.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Sequence number of the last write.
    pub last_seqno: SeqNo,
    /// Every write up to this number survives a power cut.
    pub synced_seqno: SeqNo,
    /// Every write up to this number is in a table.
    pub flushed_seqno: SeqNo,
    /// Live snapshots.
    pub snapshots: usize,
    /// Log files, and those kept for the change feed.
    pub log: LogStats,
    /// Memory, by purpose.
    pub memory: MemoryStats,
    /// Memtables and tables that were replaced but are still in use; neither `memory` nor level
    /// sizes include them.
    pub held: HeldStats,
    /// Flushes.
    pub flushes: u64,
    /// Bytes of tables written by flushes.
    pub flushed_bytes: u64,
    /// Compactions that rewrote tables.
    pub compactions: u64,
    /// Bytes of the tables that compactions read.
    pub compacted_bytes_in: u64,
    /// Bytes of the tables that compactions wrote.
    pub compacted_bytes_out: u64,
    /// Compactions that only moved tables to another level.
    pub moves: u64,
    /// Tables that went without being read, because all of their entries had expired.
    pub expired_tables: u64,
    /// How far the clock is behind the latest time that it has shown, by which deadlines are
    /// judged: not zero after the clock has gone back, until it is there again. Zero in a store
    /// without deadlines.
    pub clock_lag: Duration,
    /// Tables dropped unread because range deletes had deleted all that they held.
    pub covered_tables: u64,
    /// Tables that were [ingested](crate::Keyspace::ingest).
    pub ingested_tables: u64,
    /// Bytes of these.
    pub ingested_bytes: u64,
    /// Bytes to compact until every level is within its target, plus deleted data that compactions
    /// will drop. 0 when no compaction is due or running.
    pub compaction_debt: u64,
    /// How far compaction is behind, from 0 to 1. Above 0 writes are slowed down; at 1 they stop.
    pub write_pressure: f64,
    /// Writes that were slowed down or stopped.
    pub delayed_writes: u64,
    /// Total time that they waited.
    pub delayed_time: Duration,
    /// Of a store that is open read-only: how fresh it is.
    pub reader: Option<ReaderStats>,
    /// All waits of writes, by cause.
    pub write_stalls: WriteStalls,
    /// The last failure of background work that has not succeeded since.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub background_error: Option<Error>,
    /// Bytes a second that background work may read and write now, if there is a limit; see
    /// [`Options::rate_limit`](crate::Options::rate_limit).
    pub rate_limit: Option<f64>,
    /// How long compactions have waited because of it.
    pub rate_limited_time: Duration,
    /// Events that the listener was too slow to take; see
    /// [`Options::on_event`](crate::Options::on_event).
    pub lost_events: u64,
    /// What opening the store took.
    pub opening: OpeningStats,
    /// Values read from value files, by point reads, scans and compactions. They are not cached.
    pub value_reads: u64,
    /// Bytes of the records of these values.
    pub value_bytes_read: u64,
    /// Each keyspace, by id.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Reads of dropped keyspaces.
    pub dropped_keyspaces: FilterLedger,
}

/// Bytes of memory that the store has alone. What it shares with other stores is in
/// [`EnvironmentStats`](crate::EnvironmentStats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryStats {
    /// All of it against its limit, by use; zeros if the environment is shared, which then has it.
    pub usage: MemoryUsage,
    /// Memtables, including full ones that wait for their flush, with their range deletes as live
    /// snapshots see them, and what flushes take to order these.
    pub memtables: usize,
    /// Free memory kept for future memtables; 0 if the environment is shared.
    pub pool: usize,
    /// Cached blocks of this store.
    pub cache: usize,
    /// Limit of the cache; 0 if it is shared.
    pub cache_limit: usize,
    /// Filters and indexes of the tables in use, and free memory in their huge pages if that is not
    /// shared.
    pub filters_and_indexes: usize,
}

/// One keyspace.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name.
    pub name: String,
    /// Its levels, first to last.
    pub levels: Vec<LevelStats>,
    /// Its range deletes.
    pub range_deletes: RangeDeleteStats,
    /// Its value files.
    pub values: ValueStats,
    /// What scans met in memtables. Counts only `tombstones_passed`.
    pub memtables: ReadStats,
}

/// One level of a keyspace.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LevelStats {
    /// Its number. The tables of level 0 may overlap.
    pub level: usize,
    /// Its tables: newest first in level 0, in key order in the others.
    pub tables: Vec<TableStats>,
    /// Reads of former tables of this level.
    pub retired: FilterLedger,
    /// Bytes of this level's tables that compactions have rewritten or merged since the store was
    /// opened.
    pub compacted_bytes: u64,
    /// Bytes that flushes and compactions have written to this level since then, values that go to
    /// value files included. Tables that only moved here do not count.
    pub written_bytes: u64,
}

/// The range deletes of a keyspace that may still delete something, in disjoint parts.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RangeDeleteStats {
    /// Parts in memtables.
    pub in_memory: u64,
    /// Parts in range tables, all of which are in memory too.
    pub in_tables: u64,
    /// Range tables.
    pub tables: u64,
    /// Bytes of range tables.
    pub size: u64,
}

/// The value files of a keyspace.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ValueStats {
    /// Number of files.
    pub files: u64,
    /// Bytes of the files.
    pub size: u64,
    /// Values in the files, dead ones too.
    pub values: u64,
    /// Bytes of the values to which tables point. Until compactions meet them, older versions count
    /// as well.
    pub live: u64,
}

/// One table.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TableStats {
    /// Its file number.
    pub number: u64,
    /// Bytes of its file.
    pub size: u64,
    /// Entries, including tombstones.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Entries with a deadline.
    pub expiring: u64,
    /// Bytes of the records in value files to which its entries point.
    pub value_bytes: u64,
    /// The least and the greatest deadline, if there is one.
    pub deadlines: Option<(SystemTime, SystemTime)>,
    /// Smallest key.
    pub smallest: Vec<u8>,
    /// Largest key.
    pub largest: Vec<u8>,
    /// Smallest sequence number.
    pub smallest_seqno: SeqNo,
    /// Largest sequence number.
    pub largest_seqno: SeqNo,
    /// Its filter; `None` before the first read of the table.
    pub filter: Option<FilterState>,
    /// Its range filter; `None` before the first read of the table.
    pub range_filter: Option<RangeFilterState>,
    /// Reads of it since the store was opened, and what theory expects of its filters.
    pub ledger: FilterLedger,
}

impl TableStats {
    fn has_degraded_filter(&self) -> bool {
        matches!(self.filter, Some(FilterState::Degraded(_)))
            || matches!(self.range_filter, Some(RangeFilterState::Degraded(_)))
    }

    /// Reads of it since the store was opened.
    pub fn reads(&self) -> ReadStats {
        self.ledger.reads
    }
}

impl LevelStats {
    /// Bytes of all tables.
    pub fn size(&self) -> u64 {
        self.tables.iter().map(|table| table.size).sum()
    }

    /// Entries of all tables.
    pub fn entries(&self) -> u64 {
        self.tables.iter().map(|table| table.entries).sum()
    }

    /// Reads of the level, including its former tables. A table that moves to another level takes
    /// its counts along.
    pub fn reads(&self) -> ReadStats {
        self.ledger().reads
    }

    /// Like [`reads`](Self::reads), and what theory expects of the filters.
    pub fn ledger(&self) -> FilterLedger {
        self.tables.iter().map(|table| table.ledger).chain([self.retired]).sum()
    }
}

impl KeyspaceStats {
    /// Reads of all levels, and what scans met in memtables.
    pub fn reads(&self) -> ReadStats {
        self.ledger().reads
    }

    /// Like [`reads`](Self::reads), and what theory expects of the filters.
    pub fn ledger(&self) -> FilterLedger {
        let mut ledger: FilterLedger = self.levels.iter().map(LevelStats::ledger).sum();
        ledger.reads += self.memtables;
        ledger
    }

    /// Bytes of all tables and value files.
    pub fn size(&self) -> u64 {
        self.levels.iter().map(LevelStats::size).sum::<u64>() + self.values.size
    }
}

impl Stats {
    /// Reads of all keyspaces, including dropped ones.
    pub fn reads(&self) -> ReadStats {
        self.ledger().reads
    }

    /// Like [`reads`](Self::reads), and what theory expects of the filters.
    pub fn ledger(&self) -> FilterLedger {
        self.keyspaces.iter().map(KeyspaceStats::ledger).chain([self.dropped_keyspaces]).sum()
    }
}

impl Stats {
    /// Bytes of all tables, range tables, value files and logs.
    pub fn total_size(&self) -> u64 {
        let ranges = self.keyspaces.iter().map(|keyspace| keyspace.range_deletes.size).sum::<u64>();
        self.keyspaces.iter().map(KeyspaceStats::size).sum::<u64>() + ranges + self.log.bytes
    }

    /// Bytes that flushes and compactions have written for each byte that flushes have written; 1
    /// without compactions. `None` before the first flush. Logs do not count, nor what the same
    /// memtable has overwritten.
    pub fn write_amplification(&self) -> Option<f64> {
        let written = self.flushed_bytes + self.compacted_bytes_out;
        (self.flushed_bytes > 0).then(|| written as f64 / self.flushed_bytes as f64)
    }

    /// Tables with a filter that is known to be damaged, and to answer "maybe" to everything:
    /// keyspace, level, table.
    pub fn degraded_filters(&self) -> impl Iterator<Item = (&str, usize, &TableStats)> {
        let levels =
            self.keyspaces.iter().flat_map(|keyspace| keyspace.levels.iter().map(|level| (&*keyspace.name, level)));
        levels
            .flat_map(|(name, level)| level.tables.iter().map(move |table| (name, level.level, table)))
            .filter(|(_, _, table)| table.has_degraded_filter())
    }
}

impl Store {
    fn memory_stats(&self, view: &ReadView) -> MemoryStats {
        // What stores share is counted by their environment.
        let own = match self.options.environment {
            Some(_) => EnvironmentStats::default(),
            None => self.environment.stats(),
        };
        let tables = view.trees.iter().flat_map(|tree| tree.version.tables());
        MemoryStats {
            usage: own.usage,
            memtables: view.memtables().map(|memtable| memtable.allocated()).sum(),
            pool: own.idle_memtables,
            cache: self.tables.cache_usage(),
            cache_limit: own.cache_limit,
            filters_and_indexes: tables.map(|(_, table)| table.resident_bytes()).sum::<usize>() + own.idle_tables,
        }
    }

    pub(super) fn stats(&self) -> Stats {
        // Each of these locks is released before the next is taken.
        let (debt, background_error) = (self.debt(), self.background_error());
        let snapshots = self.shape.snapshots().count();
        let write_stalls = self.writer.stalls();
        let held = self.report.counters().held().stats(self.shape.kept_views());
        let (rate_limit, rate_limited_time) = self.workers.rate();
        let (value_reads, value_bytes_read) = self.tables.values().reads();
        let mut retired = self.report.counters().retired();
        let view = self.shape.view();
        let of_keyspace = |tree| keyspace_stats(tree, &view, &mut retired);
        let count = |count| self.report.counters().get(count);
        Stats {
            last_seqno: self.visible(),
            synced_seqno: self.sequence.durable(),
            flushed_seqno: self.sequence.flushed(),
            snapshots,
            log: self.writer.logs().stats(),
            memory: self.memory_stats(&view),
            held,
            flushes: count(Count::Flushes),
            flushed_bytes: count(Count::FlushedBytes),
            compactions: count(Count::Compactions),
            compacted_bytes_in: count(Count::CompactedBytesIn),
            compacted_bytes_out: count(Count::CompactedBytesOut),
            moves: count(Count::Moves),
            expired_tables: count(Count::ExpiredTables),
            clock_lag: if self.clock.has_deadlines() { self.clock.lag() } else { Duration::ZERO },
            covered_tables: count(Count::CoveredTables),
            ingested_tables: count(Count::IngestedTables),
            ingested_bytes: count(Count::IngestedBytes),
            compaction_debt: debt.data.saturating_add(debt.garbage),
            write_pressure: self.workers.pressure(),
            delayed_writes: write_stalls.ordered().map(|stall| stall.count).sum(),
            delayed_time: write_stalls.ordered().map(|stall| stall.total).sum(),
            reader: self.reader_stats(),
            write_stalls,
            background_error,
            rate_limit,
            rate_limited_time,
            lost_events: self.events().lost(),
            opening: self.report.opening(),
            value_reads,
            value_bytes_read,
            keyspaces: view.trees.iter().map(of_keyspace).collect(),
            dropped_keyspaces: retired.dropped.ledger(),
        }
    }

    pub(super) fn stats_of(&self, keyspace: u32, name: &str) -> Result<KeyspaceStats> {
        self.gate.check_open()?;
        let mut retired = self.report.counters().retired();
        let view = self.shape.view();
        let tree = tree_of(&view, keyspace, name)?;
        Ok(keyspace_stats(tree, &view, &mut retired))
    }
}

#[cfg(feature = "serde")]
pub(super) fn as_text<S: serde::Serializer>(
    error: &Option<Error>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&error.as_ref().map(Error::to_string), serializer)
}

fn table_stats(table: &Arc<Table>) -> TableStats {
    let meta = table.meta();
    TableStats {
        number: meta.number,
        size: meta.size,
        entries: meta.entries,
        tombstones: meta.tombstones,
        expiring: meta.deadlines.count,
        value_bytes: meta.references.bytes(),
        deadlines: meta.deadlines.range(),
        smallest: meta.smallest.to_vec(),
        largest: meta.largest.to_vec(),
        smallest_seqno: meta.smallest_seqno,
        largest_seqno: meta.largest_seqno,
        filter: table.known_filter_state(),
        range_filter: table.known_range_filter_state(),
        ledger: table.ledger(),
    }
}

fn keyspace_stats(tree: &Tree, view: &ReadView, retired: &mut RetiredTables) -> KeyspaceStats {
    let level_stats = |(number, level): (u8, &Level)| {
        let (compacted_bytes, written_bytes) = tree.traffic.of_level(number);
        LevelStats {
            level: number.into(),
            tables: level.tables().iter().map(table_stats).collect(),
            retired: retired.level(tree.id, number),
            compacted_bytes,
            written_bytes,
        }
    };
    let (ranges, files) = (tree.version.ranges(), tree.version.values());
    KeyspaceStats {
        name: tree.name.to_string(),
        levels: (0..).zip(tree.version.levels()).map(level_stats).collect(),
        range_deletes: RangeDeleteStats {
            in_memory: view.memtables().map(|memtable| memtable.range_count(tree.id) as u64).sum(),
            in_tables: ranges.len() as u64,
            tables: ranges.tables().len() as u64,
            size: ranges.tables().iter().map(|table| table.meta().size).sum(),
        },
        values: ValueStats {
            files: files.len() as u64,
            size: files.values().map(|file| file.size).sum(),
            values: files.values().map(|file| file.count).sum(),
            live: tree.version.tables().map(|(_, table)| table.meta().references.bytes()).sum(),
        },
        memtables: tree.gaps.counters.ledger().reads,
    }
}
