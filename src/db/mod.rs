//! [`Db`]: the open store, its keyspaces and snapshots, and the engine behind them.
//!
//! Handles for callers stand here: `keyspace` and `keyspaces`, `reads`, `update`, `snapshot`,
//! `iter`, `keys`, `range`, `parts`, `ingest`. Behind them are rooms, each a file and a folder of
//! its name. What other rooms may use of one is `pub(crate)` there; `pub(super)` is the room's
//! own.
//!
//! - [`read`]: point reads, `multi_get`, cursors, `explain`, estimates, scans past damage
//! - [`write`]: group commit, the log, syncs, and what writers wait for
//! - [`work`]: the schedule; flushes, compactions, and the upkeep of range deletes
//! - [`shape`]: which files the store has (`catalog`), the view of them, read points, gaps
//! - [`transaction`]: what a write assumes (`premise`), what a transaction has read
//! - [`open`]: recovery, and closing; [`follow`]: beside another process that writes
//! - [`copy`]: images, checkpoints; [`feed`]: the change feed; [`stats`]: figures and notices
//!
//! All of them share [`store`], whose locks have an order (`locks`); `gate` says whether it accepts
//! operations, `sequence` and `clock` hold its numbers and times.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

mod clock;
mod copy;
mod feed;
mod follow;
mod gate;
mod ingest;
mod iter;
mod keys;
mod keyspace;
mod keyspaces;
mod locks;
#[cfg(all(test, shuttle))]
mod model;
mod name;
mod open;
mod parts;
mod range;
mod read;
mod reads;
mod sequence;
mod shape;
mod signal;
mod snapshot;
mod stats;
mod store;
mod transaction;
mod update;
mod work;
mod write;

pub use copy::checkpoint::Checkpoint;
pub use copy::image::{ImageFile, StoreImage};
pub use copy::keyspace::KeyspaceCopy;
pub use copy::{CopiedLog, StoreCopy};
pub use feed::{BatchOperation, ChangeBatch, Changes, IngestedTable, IngestedTables, LogPin, Operation, OperationKind};
pub use follow::reader_stats::ReaderStats;
pub use ingest::{IngestInfo, IngestMode, IngestOptions};
pub use iter::Iter;
pub use keys::{Keys, Values};
pub use keyspace::Keyspace;
pub use parts::Parts;
pub use range::KeyRange;
pub use read::ReadOptions;
pub use read::cursor::Cursor;
pub use read::explain::{Explanation, ReadCost, ReadStep};
pub use read::explain_range::{RangeExplanation, ScanStep};
pub use read::salvage::{SalvageIter, SkippedRange};
pub use snapshot::Snapshot;
pub use stats::counters::OpeningStats;
pub use stats::held::HeldStats;
pub use stats::metrics::Metric;
pub use stats::{KeyspaceStats, LevelStats, MemoryStats, RangeDeleteStats, Stats, TableStats, ValueStats};
pub use transaction::{
    Savepoint, Transaction, TransactionIter, TransactionKeys, TransactionKeyspace, TransactionValues,
};
pub use update::{Change, Integer, Mismatch, Updated};
pub use work::refilter::FilterRebuild;
pub use write::logs::LogStats;
pub use write::path::{Expiry, WriteOptions};
pub use write::stalls::{Stall, WriteStalls};

use read::ReadTarget;
use reads::reads;
use store::Store;
use update::updates;

use crate::batch::WriteBatch;
use crate::error::{Error, Result};
use crate::filter::FilterPolicy;
use crate::format::key::SeqNo;
use crate::options::{KeyspaceOptions, Options};
use crate::rate::RateLimit;
use crate::report::progress::ProgressListener;
use crate::tree::manifest::DEFAULT_KEYSPACE;
use crate::vfs::MemoryFileSystem;

/// Shared by all handles, keyspaces and snapshots of a store. Dropping the last one closes the
/// store.
pub(crate) struct StoreHandle {
    store: Arc<Store>,
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        if self.store.gate.is_forked() {
            // Its destructors would wait for threads and locks of the process that opened it.
            return std::mem::forget(Arc::clone(&self.store));
        }
        // The error is lost; `Db::close` returns it.
        let _ = self.store.close();
    }
}

/// An open store.
///
/// A `Db` is a handle: cheap to clone, usable from any thread. Its methods read and write the
/// default keyspace. The store closes by [`Db::close`], or when the last handle, keyspace and
/// snapshot is dropped.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let path = dir.path().join("words.db");
/// use tamis::{Db, WriteBatch};
///
/// let db = Db::open(&path)?;
/// db.put("apple", "1")?;
/// assert_eq!(db.get("apple")?.as_deref(), Some(&b"1"[..]));
///
/// let users = db.keyspace("users")?;
/// let mut batch = WriteBatch::new();
/// batch.put("k", "v");
/// batch.put_in(&users, "id7", "Ann");
/// batch.delete("apple");
/// db.write(batch)?; // all of it or nothing, also after a crash
/// db.sync()?; // survives a power cut from here on
///
/// let snapshot = db.snapshot();
/// for entry in snapshot.range("a".."z") {
///     let (key, value) = entry?;
///     println!("{key:?} {value:?}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Db {
    default: Keyspace,
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").field("path", &self.path()).finish()
    }
}

impl Options {
    /// Opens the store in directory `path`.
    ///
    /// After a crash this recovers what docs/RELIABILITY.md promises, without any option. Fails
    /// with [`Error::Locked`](crate::Error::Locked) if another handle or process has the store open
    /// for writing.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Db> {
        Ok(Db::of(Store::open(path.as_ref(), self)?))
    }

    /// Opens the store in directory `path` read-only; nothing in it is changed.
    ///
    /// It takes no lock: another process may write to the store meanwhile, which takes no notice.
    /// Reads see the store as of the opening, until [`Db::refresh`] shows what was written since,
    /// or [`refresh_every`](Options::refresh_every) does so regularly.
    ///
    /// All tables and value files are kept open, so that reads never miss what that process has
    /// removed, whatever [`max_open_files`](Options::max_open_files) is. Fails with
    /// [`Error::TooManyFiles`](crate::Error::TooManyFiles) if this process may not open as many.
    /// The files must be in a file system of this machine: one of a network shows changes late and
    /// in another order.
    pub fn open_read_only(self, path: impl AsRef<Path>) -> Result<Db> {
        Ok(Db::of(Store::open_read_only(path.as_ref(), self)?))
    }

    /// Opens an existing store to copy it: for a [`checkpoint`](Db::checkpoint), an
    /// [`image`](Db::image), a backup. For writing if that is possible, so that a checkpoint can
    /// link its files. Otherwise [read-only](Options::open_read_only): if another handle or process
    /// has it open for writing, if its file system is mounted read-only, or if this user may only
    /// read it. [`Db::is_read_only`] says which.
    ///
    /// Fails with [`Error::NotFound`](crate::Error::NotFound) if there is no store.
    pub fn open_to_copy(mut self, path: impl AsRef<Path>) -> Result<Db> {
        self.create_if_missing = false;
        match self.clone().open(&path) {
            Err(error) if is_refused(&error) => self.open_read_only(path),
            opened => opened,
        }
    }

    /// Opens a new store in memory. It is gone once it is closed and its iterators are dropped.
    ///
    /// Everything works as on disk, at the speed of memory; syncs do nothing. To close and reopen a
    /// store, or to bound what it takes, see [`MemoryFileSystem`].
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// let db = tamis::Options::new().open_in_memory()?;
    /// db.put("apple", "1")?;
    /// assert_eq!(db.get("apple")?.as_deref(), Some(&b"1"[..]));
    /// # Ok(()) }
    /// ```
    pub fn open_in_memory(self) -> Result<Db> {
        self.file_system(Arc::new(MemoryFileSystem::new())).open("memory")
    }
}

/// Whether the store may be readable all the same: another one writes it, or this one may not.
fn is_refused(error: &Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error {
        Error::Locked { .. } => true,
        Error::Io { source, .. } => matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem),
        _ => false,
    }
}

impl Db {
    fn of(store: Arc<Store>) -> Db {
        Db { default: Keyspace { handle: Arc::new(StoreHandle { store }), id: 0, name: Arc::from(DEFAULT_KEYSPACE) } }
    }

    fn store(&self) -> &Arc<Store> {
        self.default.store()
    }

    fn target(&self) -> ReadTarget<'_> {
        self.default.target()
    }

    /// Opens the store in directory `path` with default options, and creates it if absent.
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Options::new().open(path)
    }

    /// Opens the store in directory `path` read-only; see [`Options::open_read_only`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Db> {
        Options::new().open_read_only(path)
    }

    /// Opens an existing store to copy it, read-only where it must be; see
    /// [`Options::open_to_copy`].
    pub fn open_to_copy(path: impl AsRef<Path>) -> Result<Db> {
        Options::new().open_to_copy(path)
    }

    /// Whether the store was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.store().gate.is_read_only()
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        self.store().dir()
    }

    /// Opens the keyspace called `name`, and creates it if absent.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let (id, name) = self.store().keyspace(name, None)?;
        Ok(self.keyspace_handle(id, name))
    }

    /// Opens the keyspace called `name` with `options`, and creates it if absent. If it exists,
    /// `options` replace the stored ones and apply to tables written from now on.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let (id, name) = self.store().keyspace(name, Some(options))?;
        Ok(self.keyspace_handle(id, name))
    }

    /// Opens the keyspace called `name` if it exists.
    pub fn existing_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        self.store().gate.check_open()?;
        let view = self.store().shape.view();
        Ok(view.tree_named(name).map(|tree| self.keyspace_handle(tree.id, Arc::clone(&tree.name))))
    }

    fn keyspace_handle(&self, id: u32, name: Arc<str>) -> Keyspace {
        Keyspace { handle: Arc::clone(&self.default.handle), id, name }
    }

    /// The default keyspace.
    pub fn default_keyspace(&self) -> &Keyspace {
        &self.default
    }

    /// Names of all keyspaces, in the order of their creation.
    pub fn keyspace_names(&self) -> Result<Vec<String>> {
        self.store().gate.check_open()?;
        Ok(self.store().shape.view().trees.iter().map(|tree| tree.name.to_string()).collect())
    }

    /// Opens several keyspaces, and creates those that are absent with one write to disk: after a
    /// crash all of them are there, or none that was created. Takes much less time than one
    /// [`keyspace`](Db::keyspace) after another.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let tables = db.keyspaces(&["users", "orders"])?;
    /// tables[1].put("7", "two apples")?;
    /// assert_eq!(db.drop_keyspaces(&["users", "orders", "never there"])?, 2);
    /// # Ok(()) }
    /// ```
    pub fn keyspaces(&self, names: &[&str]) -> Result<Vec<Keyspace>> {
        let wanted: Vec<(&str, Option<KeyspaceOptions>)> = names.iter().map(|name| (*name, None)).collect();
        self.keyspaces_of(&wanted)
    }

    /// Opens several keyspaces with their options, as [`keyspace_with`](Db::keyspace_with) does,
    /// and creates those that are absent: all with one write to disk. See
    /// [`keyspaces`](Db::keyspaces).
    pub fn keyspaces_with(&self, keyspaces: &[(&str, KeyspaceOptions)]) -> Result<Vec<Keyspace>> {
        let wanted: Vec<_> = keyspaces.iter().map(|(name, options)| (*name, Some(options.clone()))).collect();
        self.keyspaces_of(&wanted)
    }

    fn keyspaces_of(&self, wanted: &[(&str, Option<KeyspaceOptions>)]) -> Result<Vec<Keyspace>> {
        let found = self.store().keyspaces(wanted)?;
        Ok(found.into_iter().map(|(id, name)| self.keyspace_handle(id, name)).collect())
    }

    /// Drops a keyspace with all its entries; returns whether it existed. Its handles then fail
    /// with [`Error::KeyspaceDropped`](crate::Error::KeyspaceDropped); iterators already open
    /// continue.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        Ok(self.store().drop_keyspaces(&[name])? > 0)
    }

    /// Drops several keyspaces with one write to disk: after a crash all of them are there, or
    /// none. Returns how many existed. See [`drop_keyspace`](Db::drop_keyspace).
    pub fn drop_keyspaces(&self, names: &[&str]) -> Result<usize> {
        self.store().drop_keyspaces(names)
    }

    /// Gives a keyspace another name, which no other one has. It is one durable step: after a crash
    /// the keyspace has one name or the other. The default keyspace keeps its name.
    ///
    /// Handles stay valid, and go on to say the old name. Tables state it too, until they are
    /// rewritten: a repair without a manifest would call the keyspace by it.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// db.keyspace("new users")?.put("7", "Ann")?;
    /// db.rename_keyspace("new users", "users")?;
    /// assert!(db.existing_keyspace("new users")?.is_none());
    /// assert!(db.keyspace("users")?.contains_key("7")?);
    /// # Ok(()) }
    /// ```
    pub fn rename_keyspace(&self, name: &str, new: &str) -> Result<()> {
        self.store().rename_keyspace(name, new)
    }

    /// Sets a key to a value, replacing any earlier value. Returns the write's sequence number.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default.put(key, value)
    }

    /// Sets a key to a value until `deadline`; see [`Keyspace::put_with_expiry`].
    pub fn put_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) -> Result<SeqNo> {
        self.default.put_with_expiry(key, value, deadline)
    }

    /// Sets a key to a value for `ttl` from now on; see [`Keyspace::put_with_ttl`].
    pub fn put_with_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<SeqNo> {
        self.default.put_with_ttl(key, value, ttl)
    }

    /// Deletes a key; deleting an absent key is no error. Returns the write's sequence number.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default.delete(key)
    }

    /// Deletes a range of keys of the default keyspace; see [`Keyspace::delete_range`].
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// for day in ["2026-07-30", "2026-07-31", "2026-08-01"] {
    ///     db.put(day, "sunny")?;
    /// }
    /// db.delete_range(.."2026-08")?;
    /// assert_eq!(db.iter().count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn delete_range(&self, range: impl KeyRange) -> Result<SeqNo> {
        self.default.delete_range(range)
    }

    /// Deletes a range of keys of the default keyspace under `options`.
    pub fn delete_range_with(&self, range: impl KeyRange, options: WriteOptions) -> Result<SeqNo> {
        self.default.delete_range_with(range, options)
    }

    /// Deletes the keys of the default keyspace that begin with `prefix`; see
    /// [`Keyspace::delete_range`].
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default.delete_prefix(prefix)
    }

    /// Deletes all keys of the default keyspace; see [`Keyspace::delete_range`].
    pub fn clear(&self) -> Result<SeqNo> {
        self.default.clear()
    }

    /// Merges an operand into the value of a key; see [`operator`](crate::operator). Returns the
    /// write's sequence number.
    ///
    /// Fails with [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the keyspace has no
    /// merge operator.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default.merge(key, operand)
    }

    /// Merges an operand into the value of a key under `options`; see [`merge`](Db::merge).
    pub fn merge_with(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>, options: WriteOptions) -> Result<SeqNo> {
        self.default.merge_with(key, operand, options)
    }

    /// Sets a key to a value under `options`: with [`WriteOptions::sync`], durably. Returns the
    /// write's sequence number.
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: WriteOptions) -> Result<SeqNo> {
        self.default.put_with(key, value, options)
    }

    /// Deletes a key under `options`. Returns the write's sequence number.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: WriteOptions) -> Result<SeqNo> {
        self.default.delete_with(key, options)
    }

    /// Writes a batch atomically. Returns the sequence number of its last operation.
    pub fn write(&self, batch: WriteBatch) -> Result<SeqNo> {
        self.write_with(batch, WriteOptions::default())
    }

    /// Writes a batch atomically under `options`.
    ///
    /// After an error the batch may be present on reopening, but never in part. What it writes to
    /// keyspaces without a log is not part of that promise; see [`KeyspaceOptions::wal`].
    pub fn write_with(&self, batch: WriteBatch, options: WriteOptions) -> Result<SeqNo> {
        self.store().write(batch, options)
    }

    /// Makes every acknowledged write survive a power cut, except those to keyspaces without a log;
    /// see [`KeyspaceOptions::wal`].
    pub fn sync(&self) -> Result<()> {
        self.store().sync()
    }

    /// Takes a snapshot of all keyspaces as they are now.
    pub fn snapshot(&self) -> Snapshot {
        self.default.snapshot()
    }

    /// Writes all memtables to tables. They are durable when this returns.
    pub fn flush(&self) -> Result<()> {
        self.store().flush()
    }

    /// Compacts a range of the default keyspace to the last level; see [`Keyspace::compact_range`].
    pub fn compact_range(&self, range: impl KeyRange) -> Result<()> {
        self.default.compact_range(range)
    }

    /// Changes the filter policy of the default keyspace and rebuilds its filters; see
    /// [`Keyspace::rebuild_filters`].
    pub fn rebuild_filters(&self, policy: FilterPolicy, progress: impl FnMut(&FilterRebuild)) -> Result<FilterRebuild> {
        self.default.rebuild_filters(policy, progress)
    }

    /// Gives every table of the default keyspace the filter that its options ask for; see
    /// [`Keyspace::renew_filters`].
    pub fn renew_filters(&self, progress: impl FnMut(&FilterRebuild)) -> Result<FilterRebuild> {
        self.default.renew_filters(progress)
    }

    /// Rebuilds the filters of all tables of the default keyspace; see
    /// [`Keyspace::remake_filters`].
    pub fn remake_filters(&self, progress: impl FnMut(&FilterRebuild)) -> Result<FilterRebuild> {
        self.default.remake_filters(progress)
    }

    /// Statistics of the store at this moment.
    pub fn stats(&self) -> Stats {
        self.store().stats()
    }

    /// Sequence number of the last write that reads can see.
    pub fn last_seqno(&self) -> SeqNo {
        self.store().visible()
    }

    /// Every write up to this sequence number survives a power cut, except those to keyspaces
    /// without a log. Reopening may lower it: unless the logs prove that all writes in them were
    /// durable, these count as durable once they are in tables.
    pub fn synced_seqno(&self) -> SeqNo {
        self.store().sequence.durable()
    }

    /// Every write up to this sequence number is in a table.
    pub fn flushed_seqno(&self) -> SeqNo {
        self.store().sequence.flushed()
    }

    /// Makes a copy of the store in directory `dir`: a store of its own, as this one is now. When
    /// this returns, the copy survives a power cut.
    ///
    /// Tables and value files are shared by hard links, so that the copy takes no time and no space
    /// for them; where there are no links, as between two file systems, they are copied and their
    /// checksums compared. The logs that recovery needs are copied, up to the last write at the
    /// moment of the call; they are as long as what is in memtables. Writes go on meanwhile. As
    /// long as the copy exists, the space of its tables is not free, also when the original has
    /// replaced them.
    ///
    /// Of keyspaces without a log the copy has what is in tables, up to
    /// [`Checkpoint::flushed_seqno`]; call [`flush`](Db::flush) first to have all.
    ///
    /// The directory must be absent or empty, or hold a checkpoint that was interrupted, which is
    /// cleared. Until it is complete, opening it fails with
    /// [`Error::Incomplete`](crate::Error::Incomplete). It is made in the store's
    /// [file system](Options::file_system).
    ///
    /// Of a store that is open read-only it copies everything: the process that writes may remove
    /// the names of files at any time, but the reader has them open. It is
    /// [refreshed](Db::refresh) first.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (path, copy) = (dir.path().join("db"), dir.path().join("monday"));
    /// use tamis::Db;
    ///
    /// let db = Db::open(&path)?;
    /// let seqno = db.put("apple", "1")?;
    /// let checkpoint = db.checkpoint(&copy)?;
    /// assert_eq!(checkpoint.seqno, seqno);
    /// db.put("apple", "2")?;
    ///
    /// let copy = Db::open(&copy)?;
    /// assert_eq!(copy.get("apple")?.as_deref(), Some(&b"1"[..]));
    /// # Ok(()) }
    /// ```
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<Checkpoint> {
        self.checkpoint_with(dir, &ProgressListener::default())
    }

    /// A [`checkpoint`](Db::checkpoint) that tells `listener` how far it is. What is linked is done
    /// at once; copies take as long as their bytes.
    pub fn checkpoint_with(&self, dir: impl AsRef<Path>, listener: &ProgressListener) -> Result<Checkpoint> {
        self.image()?.put_into(dir.as_ref(), listener)
    }

    /// Takes an image of the store as it is now, to copy it elsewhere. Nothing is written for it. A
    /// store that is open read-only is [refreshed](Db::refresh) first.
    pub fn image(&self) -> Result<StoreImage> {
        StoreImage::new(&self.default.handle, None)
    }

    /// Waits until flushes and compactions have nothing left to do.
    ///
    /// The active memtable is not flushed; to bring the whole store to rest, call
    /// [`flush`](Db::flush) first. Other threads may write meanwhile. This then returns at some
    /// moment when no background work is running or due, which may not come until they stop. On an
    /// executor that leaves its jobs to callers, this runs them. A read-only store has no
    /// background work.
    ///
    /// Fails if a flush or compaction fails meanwhile, and with
    /// [`Error::Closed`](crate::Error::Closed) if the store is closed. Work that failed earlier is
    /// retried.
    pub fn wait_for_compactions(&self) -> Result<()> {
        self.store().wait_for_compactions()
    }

    /// Changes how many bytes a second background work may read and write; see
    /// [`Options::rate_limit`]. Running compactions follow at once. In an
    /// [`Environment`](crate::Environment) that stores share, this is the limit of all of them
    /// together.
    ///
    /// Fails with [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the limit is less
    /// than 64 KiB a second.
    pub fn set_rate_limit(&self, limit: RateLimit) -> Result<()> {
        limit.validate()?;
        self.store().workers.set_rate(limit);
        Ok(())
    }

    /// Closes the store: makes all writes durable, ends background work and releases the lock.
    /// Other handles then fail with [`Error::Closed`](crate::Error::Closed). Open iterators
    /// continue, as no file is removed until the store is opened again. That open removes replaced
    /// tables, and an older iterator that has not opened such a file yet then fails with
    /// [`Error::Io`](crate::Error::Io).
    ///
    /// Closing happens once: every call, during or after it, waits for the end and returns its
    /// result. It may be called from within [`read`](Db::read), and by a listener of
    /// [`on_event`](Options::on_event).
    ///
    /// What is in no table yet stays in the logs if they are short: up to 8 logs with up to 4 MiB
    /// together, or a quarter of [`memtable_size`](Options::memtable_size) if that is less. The
    /// next opening reads them. Longer logs, and writes to keyspaces without a log, are flushed.
    ///
    /// A running compaction ends soon, and the next opening goes on with it. Until then each of its
    /// threads ends its table, and one thread merges up to an eighth of a table more; in a merge of
    /// level 0 alone, up to twice the mean size of its inputs.
    ///
    /// Dropping the last handle also closes the store, and loses any error. What reads or keeps the
    /// store is a handle, too: a [`Snapshot`], an iterator, a cursor, a transaction, a
    /// [`StoreImage`](crate::StoreImage), [`Changes`](crate::Changes). Until all of them are gone,
    /// the store stays open and locked, and another opening fails with
    /// [`Error::Locked`](crate::Error::Locked). `close` releases the lock while they live.
    pub fn close(self) -> Result<()> {
        self.store().close()
    }
}

reads!(Db);
updates!(Db);
