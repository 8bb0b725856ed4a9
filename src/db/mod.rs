//! The store: [`Db`] and everything behind it.
//!
//! - write: `write` (group commit) → log → memtable; `sync` makes it durable; `throttle` slows it
//!   down, and
//!   `stalls` counts what it waits for.
//! - read: `read` → `view` → memtables → versions.
//! - background: `background` schedules `flush`, `compact` and `refilter`; each ends in `Store::install`.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

mod background;
mod catalog;
mod commit;
mod compact;
mod counters;
mod explain;
mod flush;
mod gaps;
mod gate;
mod held;
mod iter;
mod keyspace;
mod live;
mod logs;
mod multi_get;
mod open;
mod read;
mod reads;
mod refilter;
mod salvage;
mod schedule;
mod sequence;
mod snapshot;
mod stalls;
mod stats;
mod store;
mod sync;
mod throttle;
mod turns;
mod view;
mod write;

pub use held::HeldStats;
pub use iter::{Cursor, Iter, KeyRange};
pub use keyspace::Keyspace;
pub use read::ReadOptions;
pub use refilter::FilterRebuild;
pub use salvage::{SalvageIter, SkippedRange};
pub use snapshot::Snapshot;
pub use stalls::{Stall, WriteStalls};
pub use stats::{KeyspaceStats, LevelStats, MemoryStats, Stats, TableStats};
pub use write::WriteOptions;

use background::Waiting;
use read::Source;
use reads::reads;
use store::Store;

use crate::error::{Error, Result};
use crate::filter::FilterPolicy;
use crate::format::key::SeqNo;
use crate::options::{KeyspaceOptions, Options};
use crate::tree::manifest::DEFAULT_KEYSPACE;
use crate::write::batch::WriteBatch;

/// What handles, keyspaces and snapshots hold. When the last one goes, the store is closed.
struct Handle {
    store: Arc<Store>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // To learn of a failure, a caller uses `Db::close`.
        let _ = self.store.close();
    }
}

/// An open store.
///
/// Handles are cheap to clone and may be used from any thread; the store is closed when the last handle, keyspace and snapshot is
/// dropped, or by [`Db::close`]. The methods that read and write are those of the default keyspace.
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
    /// After a crash this recovers what docs/RELIABILITY.md promises; it needs no option for that.
    /// Fails with [`Error::Locked`](crate::Error::Locked) when the store is open for writing
    /// elsewhere.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Db> {
        Ok(Db::of(Store::open(path.as_ref(), self)?))
    }

    /// Opens the store in directory `path` for reading alone, without changing anything in it.
    ///
    /// It takes no lock: another process may have the store open and write to it. What is read is the store at the moment of opening;
    /// if that process removes a table meanwhile, reads that need it fail with [`Error::Io`](crate::Error::Io).
    pub fn open_read_only(self, path: impl AsRef<Path>) -> Result<Db> {
        Ok(Db::of(Store::open_read_only(path.as_ref(), self)?))
    }
}

impl Db {
    fn of(store: Arc<Store>) -> Db {
        Db { default: Keyspace { handle: Arc::new(Handle { store }), id: 0, name: Arc::from(DEFAULT_KEYSPACE) } }
    }

    fn store(&self) -> &Arc<Store> {
        self.default.store()
    }

    fn source(&self) -> Source<'_> {
        self.default.source()
    }

    /// Opens the store in directory `path` with default options, and creates it when there is none.
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Options::new().open(path)
    }

    /// Opens the store in directory `path` for reading alone; see [`Options::open_read_only`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Db> {
        Options::new().open_read_only(path)
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        self.store().path()
    }

    /// The keyspace called `name`; created when absent.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let (id, name) = self.store().keyspace(name, None)?;
        Ok(self.handle_of(id, name))
    }

    /// The keyspace called `name`; created with `options` when absent, otherwise given them for the tables written from here on.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let (id, name) = self.store().keyspace(name, Some(options))?;
        Ok(self.handle_of(id, name))
    }

    /// The keyspace called `name`, if there is one.
    pub fn existing_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        self.store().gate.check_open()?;
        let view = self.store().view.load();
        Ok(view.tree_named(name).map(|tree| self.handle_of(tree.id, Arc::clone(&tree.name))))
    }

    fn handle_of(&self, id: u32, name: Arc<str>) -> Keyspace {
        Keyspace { handle: Arc::clone(&self.default.handle), id, name }
    }

    /// The default keyspace.
    pub fn default_keyspace(&self) -> &Keyspace {
        &self.default
    }

    /// Names of all keyspaces, in the order of their creation.
    pub fn keyspace_names(&self) -> Result<Vec<String>> {
        self.store().gate.check_open()?;
        Ok(self.store().view.load().trees.iter().map(|tree| tree.name.to_string()).collect())
    }

    /// Drops a keyspace with all its entries; returns whether there was one of that name. Handles to it fail from then on with
    /// [`Error::KeyspaceDropped`](crate::Error::KeyspaceDropped); iterators that are under way go on.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.store().drop_keyspace(name)
    }

    /// Sets a key to a value, over whatever it had. Returns the write's sequence number.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default.put(key, value)
    }

    /// Deletes a key; no error if it is not there. Returns the write's sequence number.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default.delete(key)
    }

    /// Sets a key to a value as `options` say: with [`WriteOptions::sync`], durably. Returns the
    /// write's sequence number.
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: WriteOptions) -> Result<SeqNo> {
        self.default.put_with(key, value, options)
    }

    /// Deletes a key as `options` say. Returns the write's sequence number.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: WriteOptions) -> Result<SeqNo> {
        self.default.delete_with(key, options)
    }

    /// Writes a batch: all of it or nothing. Returns the sequence number of its last operation.
    pub fn write(&self, batch: WriteBatch) -> Result<SeqNo> {
        self.write_with(batch, WriteOptions::default())
    }

    /// Writes a batch as `options` say.
    ///
    /// A write that failed may be there or not after reopening, but never in part.
    pub fn write_with(&self, batch: WriteBatch, options: WriteOptions) -> Result<SeqNo> {
        self.store().write(batch, options)
    }

    /// Makes everything acknowledged so far survive a power cut.
    pub fn sync(&self) -> Result<()> {
        self.store().sync()
    }

    /// All keyspaces as they are now.
    pub fn snapshot(&self) -> Snapshot {
        self.default.snapshot()
    }

    /// Writes everything in memory to tables. What it wrote is durable when it returns.
    pub fn flush(&self) -> Result<()> {
        self.store().flush()
    }

    /// Brings the entries of a range of the default keyspace to the last level; see [`Keyspace::compact_range`].
    pub fn compact_range(&self, range: impl KeyRange) -> Result<()> {
        self.default.compact_range(range)
    }

    /// Gives the default keyspace another filter policy, and its tables new filters; see [`Keyspace::rebuild_filters`].
    pub fn rebuild_filters(&self, policy: FilterPolicy) -> Result<FilterRebuild> {
        self.default.rebuild_filters(policy)
    }

    /// The store at this moment.
    pub fn stats(&self) -> Stats {
        self.store().stats()
    }

    /// Sequence number of the last write that reads can see.
    pub fn last_seqno(&self) -> SeqNo {
        self.store().sequence.visible()
    }

    /// Every write up to this sequence number survives a power cut. After opening it may be less than it was before: what was recovered
    /// from logs counts again when it is in tables.
    pub fn synced_seqno(&self) -> SeqNo {
        self.store().sequence.durable()
    }

    /// Every write up to this sequence number is in a table.
    pub fn flushed_seqno(&self) -> SeqNo {
        self.store().sequence.flushed()
    }

    /// Waits until flushes and compactions have nothing left to do.
    ///
    /// The active memtable is not written: call [`flush`](Db::flush) before, to have the whole
    /// store at rest. Writes go on meanwhile; while others write, this returns at a moment at which
    /// no background work was running or due, and that may take as long as they write. On an
    /// executor that leaves its jobs to callers, this runs them. A store opened read-only has no
    /// background work.
    ///
    /// Fails with the error of a flush or compaction that fails meanwhile, and with
    /// [`Error::Closed`] in a store that is closed. Work that had failed before is tried again.
    pub fn wait_for_compactions(&self) -> Result<()> {
        self.store().wait_for_compactions()
    }

    /// Closes the store: writes everything in memory to tables, ends background work and releases the lock. Other handles fail with
    /// [`Error::Closed`] from then on; iterators go on, and no file is removed any more.
    ///
    /// A store is closed once. Whichever handles call this, before or after the end: each call
    /// waits until the store is closed, and returns the one result. It may be called from within
    /// [`read`](Db::read), but not from a listener of
    /// [`on_event`](Options::on_event), which must not wait for the store.
    ///
    /// Dropping the last handle closes the store too, and hides a failure.
    pub fn close(self) -> Result<()> {
        self.store().close()
    }
}

reads!(Db);

impl Store {
    /// Ends the store once. Every caller waits for the end, and gets the one result.
    fn close(self: &Arc<Self>) -> Result<()> {
        let shut_down = || {
            // After a panic the store keeps its lock until it is dropped: background work may still
            // be writing.
            let panicked = |_| Err(self.poison(Error::invalid("closing the store panicked; this is a bug in tamis")));
            catch_unwind(AssertUnwindSafe(|| self.shut_down())).unwrap_or_else(panicked)
        };
        self.gate.close_once(shut_down)
    }

    fn shut_down(self: &Arc<Self>) -> Result<()> {
        let last = {
            // Under the lock: every write that was acknowledged is in a memtable that is flushed below.
            let mut commit = self.commit.lock();
            self.gate.shut();
            let Some(commit) = commit.as_mut() else { return Ok(()) };
            let poison = self.gate.check_poison();
            if poison.is_ok() && !commit.memtable.is_empty() {
                self.rotate(commit);
            }
            poison
        };
        let flushed = last.and_then(|()| {
            self.wait_for_progress(Waiting::Flush, |_| self.view.load().sealed.is_empty())?;
            self.gate.check_poison()
        });
        self.stop_background();
        self.tables.janitor().stop();
        let commit = self.commit.lock().take();
        let ended = match (&flushed, commit) {
            // All is in tables. The log says no more than that, which gives away a manifest that loses its last edits.
            (Ok(()), Some(mut commit)) => {
                if self.catalog.has_new_manifest() {
                    let _ = self.append_marker(&mut commit);
                }
                Ok(())
            }
            // What could not be flushed is at least durable in the log, unless it was recovered from one.
            (Err(_), Some(mut commit)) if !self.gate.is_poisoned() => {
                self.sync_through(self.sequence.visible()).and_then(|()| self.append_marker(&mut commit))
            }
            _ => Ok(()),
        };
        self.catalog.close();
        self.gate.release_lock();
        flushed.and(ended)
    }
}
