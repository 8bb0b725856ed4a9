//! tamis: an embedded, LevelDB-like key-value store in which every table carries a filter that
//! reads ask first.
//!
//! ```
//! # fn main() -> tamis::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let path = dir.path().join("shop.db");
//! use tamis::{ByteOrder, Db, Error, WriteBatch, WriteOptions};
//!
//! let db = Db::open(&path)?; // a directory, created if it is absent
//! db.put("apple", "red")?;
//! assert!(db.get("apple")?.is_some_and(|colour| colour == "red"));
//!
//! let (stock, orders) = (db.keyspace("stock")?, db.keyspace("orders")?); // maps of their own
//! stock.fetch_add("apple", 10u64, ByteOrder::Big)?;
//! db.transact(|tx| {
//!     let Some(count) = tx.keyspace(&stock).get("apple")? else { return Ok(()) };
//!     let count = u64::from_be_bytes(count[..].try_into().expect("eight bytes"));
//!     tx.put_in(&stock, "apple", (count - 2).to_be_bytes());
//!     tx.put_in(&orders, "17", "two apples");
//!     Ok::<_, Error>(()) // commits, or runs again if what it read has changed
//! })?;
//!
//! let mut batch = WriteBatch::new(); // all or nothing
//! batch.put_in(&orders, "18", "a pear");
//! batch.delete("apple");
//! db.write_with(batch, WriteOptions::new().sync(true))?; // survives a power cut
//! for order in orders.range("17"..) {
//!     let (number, what) = order?;
//!     println!("{}: {}", number.escape_ascii(), what.escape_ascii());
//! }
//! db.close()
//! # }
//! ```
//!
//! Begin with the [guide]: short pages, each about one task, each with programs that run. It tells
//! how to make [keys that sort](guide::keys), how much [memory](guide::memory) N keys take,
//! [which option to change](guide::tuning) and when, what [sync](guide::durability) means, how to
//! use the store from [async code](guide::async_code), and [when to take something
//! else](guide::something_else).
//!
//! # What there is
//!
//! - **Keyspaces**: named maps with options of their own, and atomic batches across them.
//! - **Reads**: gets, many at once, ranges and prefixes in both directions, cursors, snapshots.
//! - **Changes by what is there**: serialisable transactions, compare and swap, updates, counters,
//!   merge operators.
//! - **Deletes**: of a key, a range, a prefix, a keyspace; values that expire.
//! - **Filters** that show their work: Bloom and binary fuse for gets, prefixes and ranges for
//!   scans; every answer counted, beside what theory expects. They can be used
//!   [without a store](filter).
//! - **Long values** apart from their keys, compression of the last level, bulk loading of sorted
//!   files, compaction filters.
//! - **Copies**: checkpoints, a change feed, readers in other processes, incremental backups (the
//!   crate `tamis-backup`).
//! - **One limit** for all memory; many stores that share it.
//! - **Checksums** on everything, salvage and repair, inspection of every file.
//! - **Events and figures**: a listener, `tracing`, `metrics`, Prometheus.
//!
//! # What it promises
//!
//! Writes are ordered, and a batch is visible whole or not at all. A write that has returned
//! survives any end of the process. Once a write with [`WriteOptions::sync`], or [`Db::sync`], has
//! returned, it and all earlier writes survive a power cut. Damage is reported
//! ([`Error::Corruption`]), never returned as data. [docs/RELIABILITY.md] has the full promise, and
//! the tests that check it.
//!
//! # What reads cost
//!
//! Each table (a sorted file) carries a Bloom filter over its keys: 10 bits per key, 0.82 % false
//! positives. A look-up asks the filter before the table's index and blocks, so that absent keys
//! almost never cost a block read. [`Db::stats`] counts, for every table and level, how often
//! filters were asked, right and wrong, and how many blocks were read. See [guide::filters].
//!
//! # The types, by what they are for
//!
//! - **open**: [`Db`], [`Options`], [`Environment`], [`EnvironmentOptions`], [`ReadMode`],
//!   [`WalMode`]
//! - **keyspaces**: [`Keyspace`], [`KeyspaceOptions`], [`Compression`]
//! - **read**: [`Value`], [`KeyRange`], [`Iter`], [`Keys`], [`Values`], [`Cursor`], [`Snapshot`],
//!   [`ReadOptions`]
//! - **write**: [`WriteBatch`], [`BatchOperation`], [`WriteOptions`], [`Expiry`], [`SeqNo`]
//! - **change**: [`Transaction`], [`TransactionKeyspace`], [`Savepoint`], [`Change`], [`Updated`],
//!   [`Mismatch`], [`ByteOrder`], [`operator`]
//! - **filters**: [`FilterPolicy`], [`LevelFilters`], [`FilterBudget`], [`RangeFilterPolicy`],
//!   [`PrefixExtractor`], [`filter`]
//! - **load**: [`SstWriter`], [`SstFormat`], [`IngestOptions`], [`IngestInfo`]
//! - **copy**: [`Checkpoint`], [`StoreImage`], [`StoreCopy`], [`KeyspaceCopy`],
//!   [`ProgressListener`]
//! - **follow**: [`Changes`], [`ChangeBatch`], [`Operation`], [`OperationKind`], [`LogPin`]
//! - **watch**: [`Stats`], [`KeyspaceStats`], [`MemoryUsage`], [`FilterLedger`], [`Event`],
//!   [`Severity`], [`Explanation`], [`RangeExplanation`]
//! - **background work**: [`RateLimit`], [`Executor`], [`ThreadPool`]
//! - **trouble**: [`Error`], [`repair()`], [`RepairReport`], [`SalvageIter`], [`inspect`]
//! - **test**: [`Options::open_in_memory`], [`Options::clock`], [`SteppedExecutor`], [`vfs`]
//!
//! # Recipes
//!
//! Whole programs, in `examples/` of the repository and of this package; there,
//! `cargo run --release --example queue` runs one.
//!
//! - [`counters`][counters.rs]: page views that many threads count, and the visitors of each page
//! - [`queue`][queue.rs]: a job queue that survives its workers
//! - [`inventory`][inventory.rs]: orders that take stock of several items, or nothing
//! - [`sessions`][sessions.rs]: sessions that expire by themselves, with a clock for tests
//! - [`timeseries`][timeseries.rs]: readings of many sensors, kept for a week
//! - [`images`][images.rs]: long values apart from the tables, and short ones in them
//! - [`follower`][follower.rs]: a second store that stays equal to the first, across restarts
//! - [`user_names`][user_names.rs]: "is this name taken?": a filter in front of a store
//! - [`cache_guard`][cache_guard.rs]: a filter that stops requests for keys that do not exist
//! - [`crawl`][crawl.rs]: the URLs that a crawl has seen, in a filter that grows
//! - [`spelling`][spelling.rs]: a spelling checker in two bytes per word
//! - [`load`][load.rs]: loads keys in random order, reads them back, and prints the cost
//! - [`memory`][memory.rs]: many small keys within a limit of memory
//! - [`footprint`][footprint.rs]: the memory that N keys take
//! - `web` (`cargo run --release -p tamis-web`, in the repository): a store behind HTTP, with tokio
//!   and axum
//!
//! # More
//!
//! [docs/OPERATIONS.md]: running a store. [docs/FILTERS.md]: what filters save, measured.
//! [docs/PERFORMANCE.md]: beside other stores. [docs/FORMAT.md]: every byte on disk.
//! [ARCHITECTURE.md]: the structure of the code. [CHANGELOG.md]: what changed.
//!
//! `kvtool` does most of this from the shell: `cargo install --path tools/kvtool`.
//!
//! [counters.rs]: https://docs.rs/crate/tamis/latest/source/examples/counters.rs
//! [queue.rs]: https://docs.rs/crate/tamis/latest/source/examples/queue.rs
//! [inventory.rs]: https://docs.rs/crate/tamis/latest/source/examples/inventory.rs
//! [sessions.rs]: https://docs.rs/crate/tamis/latest/source/examples/sessions.rs
//! [timeseries.rs]: https://docs.rs/crate/tamis/latest/source/examples/timeseries.rs
//! [images.rs]: https://docs.rs/crate/tamis/latest/source/examples/images.rs
//! [follower.rs]: https://docs.rs/crate/tamis/latest/source/examples/follower.rs
//! [user_names.rs]: https://docs.rs/crate/tamis/latest/source/examples/user_names.rs
//! [cache_guard.rs]: https://docs.rs/crate/tamis/latest/source/examples/cache_guard.rs
//! [crawl.rs]: https://docs.rs/crate/tamis/latest/source/examples/crawl.rs
//! [spelling.rs]: https://docs.rs/crate/tamis/latest/source/examples/spelling.rs
//! [load.rs]: https://docs.rs/crate/tamis/latest/source/examples/load.rs
//! [memory.rs]: https://docs.rs/crate/tamis/latest/source/examples/memory.rs
//! [footprint.rs]: https://docs.rs/crate/tamis/latest/source/examples/footprint.rs
//! [docs/RELIABILITY.md]: https://docs.rs/crate/tamis/latest/source/docs/RELIABILITY.md
//! [docs/OPERATIONS.md]: https://docs.rs/crate/tamis/latest/source/docs/OPERATIONS.md
//! [docs/FILTERS.md]: https://docs.rs/crate/tamis/latest/source/docs/FILTERS.md
//! [docs/PERFORMANCE.md]: https://docs.rs/crate/tamis/latest/source/docs/PERFORMANCE.md
//! [docs/FORMAT.md]: https://docs.rs/crate/tamis/latest/source/docs/FORMAT.md
//! [ARCHITECTURE.md]: https://docs.rs/crate/tamis/latest/source/ARCHITECTURE.md
//! [CHANGELOG.md]: https://docs.rs/crate/tamis/latest/source/CHANGELOG.md
#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]

use tamis_base::{error, exec, fork, format, memory, rate, report, sync};
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
    BatchOperation, Change, ChangeBatch, Changes, Checkpoint, CopiedLog, Cursor, Db, Expiry, Explanation,
    FilterRebuild, HeldStats, ImageFile, IngestInfo, IngestMode, IngestOptions, IngestedTable, IngestedTables, Integer,
    Iter, KeyRange, Keys, Keyspace, KeyspaceCopy, KeyspaceStats, LevelStats, LogPin, LogStats, MemoryStats, Metric,
    Mismatch, OpeningStats, Operation, OperationKind, Parts, RangeDeleteStats, RangeExplanation, ReadCost, ReadOptions,
    ReadStep, ReaderStats, SalvageIter, Savepoint, ScanStep, SkippedRange, Snapshot, Stall, Stats, StoreCopy,
    StoreImage, TableStats, Transaction, TransactionIter, TransactionKeys, TransactionKeyspace, TransactionValues,
    Updated, ValueStats, Values, WriteOptions, WriteStalls,
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
pub use report::progress::{Progress, ProgressListener, ProgressMeter};
pub use report::stats::{FilterLedger, ReadStats};
pub use sorted::scan_trace::ScannedBlock;
pub use sorted::trace::{BlockVisit, FilterAnswer, Found, Opening, ReadSource};
pub use sorted::value::Value;
pub use sst::{SstFormat, SstInfo, SstWriter};
