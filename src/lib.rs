//! tamis: an embedded, LevelDB-like key-value store in which every table carries a filter that
//! reads ask first.
//!
//! A store is a directory. It holds named *keyspaces* (at first one, `default`), each an ordered
//! map from byte strings to byte strings. A [`WriteBatch`] spans keyspaces atomically, a
//! [`Snapshot`] sees all of them at one moment, and a [`Transaction`] writes what depends on what
//! it has read. Start with [`Db`].
//!
//! # What it promises
//!
//! Writes are ordered, and a batch is visible whole or not at all. A write that has returned
//! survives any end of the process. Once a write with [`WriteOptions::sync`], or [`Db::sync`], has
//! returned, it and all earlier writes survive a power cut. Damage is reported
//! ([`Error::Corruption`]), never returned as data. `docs/RELIABILITY.md` in the repository has the
//! full promise, and the tests that check it.
//!
//! # What reads cost
//!
//! Each table (a sorted file) carries a Bloom filter over its keys: 10 bits per key, 0.82 % false
//! positives. A look-up asks the filter before the table's index and blocks, so that absent keys
//! almost never cost a block read. [`Db::stats`] counts, for every table and level, how often
//! filters were asked, right and wrong, and how many blocks were read.
//!
//! The module [`filter`] offers the same filters for use without a store.
//!
//! docs/FORMAT.md describes the on-disk format, ARCHITECTURE.md the structure of the code.
#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]

use tamis_base::{error, exec, format, memory, rate, report, sync};
pub use tamis_filter as filter;
use tamis_log as log;
use tamis_sorted as sorted;
use tamis_tree as tree;
pub use tamis_vfs as vfs;

mod batch;
mod db;
mod environment;
pub mod guide;
mod offline;
pub mod operator;
mod options;
mod sst;

pub use batch::WriteBatch;
pub use db::{
    Change, ChangeBatch, Changes, Checkpoint, CopiedLog, Cursor, Db, Expiry, Explanation, FilterRebuild, HeldStats,
    ImageFile, IngestInfo, IngestMode, IngestOptions, IngestedTable, IngestedTables, Integer, Iter, KeyRange, Keys,
    Keyspace, KeyspaceStats, LevelStats, LogPin, LogStats, MemoryStats, Metric, Mismatch, OpeningStats, Operation,
    OperationKind, Parts, RangeDeleteStats, RangeExplanation, ReadCost, ReadOptions, ReadStep, ReaderStats,
    SalvageIter, Savepoint, ScanStep, SkippedRange, Snapshot, Stall, Stats, StoreCopy, StoreImage, TableStats,
    Transaction, TransactionIter, Updated, ValueStats, Values, WriteOptions, WriteStalls,
};
pub use environment::{Environment, EnvironmentOptions, EnvironmentStats, MemoryUsage};
pub use error::{Error, Result};
pub use exec::{Executor, Job, Priority, SteppedExecutor, ThreadPool};
pub use filter::{FilterPolicy, PrefixExtractor, RangeFilterPolicy};
pub use format::key::{MAX_KEY_LEN, MAX_VALUE_LEN, SeqNo};
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub use offline::fuzz;
pub use offline::inspect;
pub use offline::{Loss, LossKind, MovedFile, RepairBasis, RepairFault, RepairOptions, RepairReport, repair};
pub use operator::ByteOrder;
pub use options::{
    BudgetLimit, Compression, FilterBudget, FilterMode, KeyspaceOptions, LevelFilters, Options, ReadMode, WalMode,
};
pub use rate::RateLimit;
pub use report::event::{BackgroundWork, CompactionInfo, CompactionReason, Event, Severity, StallCause};
pub use report::stats::{FilterLedger, ReadStats};
pub use sorted::scan_trace::ScannedBlock;
pub use sorted::trace::{BlockVisit, FilterAnswer, Found, Opening, ReadSource};
pub use sorted::value::Value;
pub use sst::{SstFormat, SstInfo, SstWriter};
