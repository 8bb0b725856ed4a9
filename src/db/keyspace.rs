//! [`Keyspace`]: one named tree of a store.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::StoreHandle;
use super::range::KeyRange;
use super::read::ReadTarget;
use super::reads::reads;
use super::stats::KeyspaceStats;
use super::store::Store;
use super::update::updates;
use super::work::refilter::{FilterRebuild, Scope};
use super::write::path::WriteOptions;
use crate::batch::{Write, WriteBatch};
use crate::error::{Error, Result};
use crate::filter::FilterPolicy;
use crate::format::deadline::deadline_at;
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::options::{KeyspaceOptions, LevelFilters};

/// A handle to one keyspace of a store: a key-value map of its own, sharing the log and the order
/// of writes with all others.
///
/// Handles are cheap to clone and usable from any thread. A handle keeps the store open.
#[derive(Clone)]
pub struct Keyspace {
    pub(super) handle: Arc<StoreHandle>,
    pub(super) id: u32,
    pub(super) name: Arc<str>,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("name", &self.name).field("path", &self.store().dir()).finish()
    }
}

impl Keyspace {
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.handle.store
    }

    /// The target of reads of the keyspace as it is now.
    pub(super) fn target(&self) -> ReadTarget<'_> {
        ReadTarget { keyspace: self.id, name: &self.name, snapshot: None }
    }

    /// The keyspace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the store: tells it from a keyspace of the same name that was created after it
    /// was dropped.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Statistics of this keyspace alone. Those of a store are a list of all of them:
    /// [`Db::stats`](crate::Db::stats) takes longer the more keyspaces there are.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let users = db.keyspace("users")?;
    /// users.put("id7", "Ann")?;
    /// users.flush()?;
    /// assert_eq!(users.stats()?.levels[0].entries(), 1);
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> Result<KeyspaceStats> {
        self.store().stats_of(self.id, &self.name)
    }

    /// The options in force.
    pub fn options(&self) -> Result<KeyspaceOptions> {
        let view = self.store().shape.view();
        let tree = view.tree(self.id).ok_or_else(|| Error::KeyspaceDropped(self.name.to_string()))?;
        Ok(tree.options.clone())
    }

    /// Sets a key to a value, replacing any earlier value. Returns the write's sequence number.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.put_with(key, value, WriteOptions::default())
    }

    /// Deletes a key; deleting an absent key is no error. Returns the write's sequence number.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.delete_with(key, WriteOptions::default())
    }

    /// Sets a key to a value under `options`: with [`WriteOptions::sync`], durably. Returns the
    /// write's sequence number.
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: WriteOptions) -> Result<SeqNo> {
        self.store().write_one(self.id, key.as_ref(), Write::Put(value.as_ref()), options)
    }

    /// Sets a key to a value until `deadline`. From then on no read returns the value, and the key
    /// counts as deleted. Returns the write's sequence number.
    ///
    /// Deadlines count whole milliseconds, rounded down. One that is past makes the put a delete.
    /// Every put sets the deadline anew, and [`set_expiry`](Keyspace::set_expiry) keeps the value;
    /// a put without a deadline has that of [`WriteOptions::expiry`] or of
    /// [`KeyspaceOptions::ttl`](crate::KeyspaceOptions::ttl), or none. A merge has no deadline:
    /// when the value that it changes has expired, what was merged into it is left.
    ///
    /// An operation judges all deadlines by one time, which it takes when it meets the first one.
    /// Snapshots, transactions, iterators and cursors take that at which they are made. Compactions
    /// drop what had expired when the oldest snapshot was taken, or now, without reading it if all
    /// of a table has and nothing older is below. A table is rewritten when a quarter of its
    /// entries has expired, a second or two later if the store is idle.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let sessions = db.keyspace("sessions")?;
    /// let now = SystemTime::now();
    /// sessions.put_with_expiry("token 1", "Ann", now + Duration::from_secs(1800))?;
    /// sessions.put_with_expiry("token 2", "Bob", now)?;
    /// assert!(sessions.contains_key("token 1")?);
    /// assert!(!sessions.contains_key("token 2")?);
    /// # Ok(()) }
    /// ```
    pub fn put_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) -> Result<SeqNo> {
        self.put_with(key, value, WriteOptions::new().expires_at(deadline))
    }

    /// Sets a key to a value for `ttl` from now on, rounded up to whole milliseconds; 0 makes the
    /// put a delete. Returns the write's sequence number. See
    /// [`put_with_expiry`](Keyspace::put_with_expiry).
    ///
    /// Now is what the store's clock shows. For all puts of a batch, there is
    /// [`WriteOptions::expires_after`].
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let sessions = db.keyspace("sessions")?;
    /// sessions.put_with_ttl("token 1", "Ann", Duration::from_secs(1800))?;
    /// let (user, deadline) = sessions.get_with_expiry("token 1")?.expect("a session");
    /// assert_eq!(user, "Ann");
    /// assert!(deadline.expect("it expires") > SystemTime::now());
    /// # Ok(()) }
    /// ```
    pub fn put_with_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<SeqNo> {
        self.put_with(key, value, WriteOptions::new().expires_after(ttl))
    }

    /// Deletes a key under `options`. Returns the write's sequence number.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: WriteOptions) -> Result<SeqNo> {
        self.store().write_one(self.id, key.as_ref(), Write::Delete, options)
    }

    /// Deletes all keys of a range, atomically. Returns the write's sequence number.
    ///
    /// It takes the same short time whatever the range holds: it writes one record and reads
    /// nothing. Snapshots, iterators and cursors made before it see the range as it was. Reads of
    /// deleted keys read no block, and scans jump over them. Tables that hold nothing else are
    /// removed without being read.
    ///
    /// An empty range deletes nothing and writes nothing.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let log = db.keyspace("log")?;
    /// for i in 0..100u32 {
    ///     log.put(i.to_be_bytes(), "an entry")?;
    /// }
    /// log.delete_range(..90u32.to_be_bytes())?;
    /// assert_eq!(log.iter().count(), 10);
    /// # Ok(()) }
    /// ```
    pub fn delete_range(&self, range: impl KeyRange) -> Result<SeqNo> {
        self.delete_range_with(range, WriteOptions::default())
    }

    /// Deletes all keys of a range under `options`; see [`delete_range`](Keyspace::delete_range).
    pub fn delete_range_with(&self, range: impl KeyRange, options: WriteOptions) -> Result<SeqNo> {
        self.store().delete_range(self.id, &KeySpan::of(range.into_bounds()), options)
    }

    /// Deletes the keys that begin with `prefix`; see [`delete_range`](Keyspace::delete_range).
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<SeqNo> {
        let range = KeySpan::of_prefix(prefix.as_ref());
        self.store().delete_range(self.id, &range, WriteOptions::default())
    }

    /// Deletes all keys; see [`delete_range`](Keyspace::delete_range).
    pub fn clear(&self) -> Result<SeqNo> {
        self.delete_range(..)
    }

    /// Merges an operand into the value of a key; see [`operator`](crate::operator). Returns the
    /// write's sequence number.
    ///
    /// Fails with [`Error::InvalidArgument`] if the keyspace has no merge operator.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.merge_with(key, operand, WriteOptions::default())
    }

    /// Merges an operand into the value of a key under `options`; see [`merge`](Keyspace::merge).
    pub fn merge_with(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>, options: WriteOptions) -> Result<SeqNo> {
        self.store().write_one(self.id, key.as_ref(), Write::Merge(operand.as_ref()), options)
    }

    /// Writes every entry of the keyspace to tables. They are durable when this returns.
    ///
    /// One memtable and one log serve all keyspaces, so this also flushes what others have written
    /// beside it: it saves nothing over [`Db::flush`](crate::Db::flush) while other keyspaces are
    /// busy. It does nothing, and makes no small tables, if no memtable holds an entry of this
    /// keyspace.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let users = db.keyspace("users")?;
    /// let seqno = users.put("id7", "Ann")?;
    /// users.flush()?;
    /// assert!(db.flushed_seqno() >= seqno);
    /// db.put("other", "1")?;
    /// users.flush()?; // nothing to do
    /// assert_eq!(db.flushed_seqno(), seqno);
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.store().flush_keyspace(self.id, &self.name)
    }

    /// Flushes all memtables, then compacts a range to the last level and drops what deletes and
    /// overwrites have left there. Temporarily takes disk space for the data above the last level
    /// and for some tables more.
    pub fn compact_range(&self, range: impl KeyRange) -> Result<()> {
        self.store().compact_range(self.id, &self.name, &KeySpan::of(range.into_bounds()))
    }

    /// Makes `policy` the filter policy of every level of the keyspace, and gives every table a
    /// filter by it.
    ///
    /// Each table whose filter differs or is damaged is replaced by a copy with a new filter, one
    /// after the other. Data blocks are copied as they are: the cost is one sequential read and
    /// write of each table, and temporary disk space of one table. Memtables are flushed first.
    /// Reads continue, and so do writes and compactions of other tables. An interruption, even by a
    /// crash, leaves every table with its old filter or its new one; calling this again does the
    /// rest.
    ///
    /// `progress` is called when the work is known and after each table. Fails at the first table
    /// that is damaged outside of its filter.
    pub fn rebuild_filters(&self, policy: FilterPolicy, progress: impl FnMut(&FilterRebuild)) -> Result<FilterRebuild> {
        self.store().change_options(self.id, &self.name, |options| {
            options.filter = policy;
            options.level_filters = LevelFilters::Uniform;
        })?;
        self.renew_filters(progress)
    }

    /// Gives every table the filter that the keyspace's options ask for, like
    /// [`Keyspace::rebuild_filters`]. Repairs filters that are damaged or that their tables
    /// contradict.
    ///
    /// If the options change meanwhile, all filters follow the new ones in the end. Fails with
    /// [`Error::InvalidArgument`] if they do so 32 times.
    pub fn renew_filters(&self, progress: impl FnMut(&FilterRebuild)) -> Result<FilterRebuild> {
        self.store().renew_filters(self.id, &self.name, Scope::Unfit, progress)
    }

    /// Like [`Keyspace::renew_filters`], but rebuilds the filters of all tables, whatever they
    /// have.
    ///
    /// A filter that denies a key of its table, but agrees with the table in all that it says of
    /// itself, looks correct. Only reads with [`FilterMode::Shadow`](crate::FilterMode::Shadow) and
    /// a verification of the whole table find it; this replaces it.
    pub fn remake_filters(&self, progress: impl FnMut(&FilterRebuild)) -> Result<FilterRebuild> {
        self.store().renew_filters(self.id, &self.name, Scope::All, progress)
    }
}

reads!(Keyspace);
updates!(Keyspace);

impl WriteBatch {
    /// Adds a put of a key of `keyspace`.
    pub fn put_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.set_origin(keyspace.store().gate.id());
        self.put_raw(keyspace.id, key.as_ref(), value.as_ref());
    }

    /// Adds a put of a key of `keyspace` that expires at `deadline`; see
    /// [`Keyspace::put_with_expiry`].
    pub fn put_with_expiry_in(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) {
        self.set_origin(keyspace.store().gate.id());
        self.put_expiring_raw(keyspace.id, key.as_ref(), value.as_ref(), deadline_at(deadline));
    }

    /// Adds an operand to be merged into a key of `keyspace`; see [`operator`](crate::operator).
    pub fn merge_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        self.set_origin(keyspace.store().gate.id());
        self.merge_raw(keyspace.id, key.as_ref(), operand.as_ref());
    }

    /// Adds a delete of a key of `keyspace`.
    pub fn delete_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.set_origin(keyspace.store().gate.id());
        self.delete_raw(keyspace.id, key.as_ref());
    }

    /// Deletes a range of keys of the default keyspace, as of this place in the batch: what the
    /// batch puts there later stays. Takes the same time whatever the range holds.
    pub fn delete_range(&mut self, range: impl KeyRange) {
        self.delete_range_raw(0, &KeySpan::of(range.into_bounds()));
    }

    /// Deletes a range of keys of `keyspace`; see [`delete_range`](WriteBatch::delete_range).
    pub fn delete_range_in(&mut self, keyspace: &Keyspace, range: impl KeyRange) {
        self.set_origin(keyspace.store().gate.id());
        self.delete_range_raw(keyspace.id, &KeySpan::of(range.into_bounds()));
    }

    /// Deletes the keys of the default keyspace that begin with `prefix`; see
    /// [`delete_range`](WriteBatch::delete_range).
    pub fn delete_prefix(&mut self, prefix: impl AsRef<[u8]>) {
        self.delete_range_raw(0, &KeySpan::of_prefix(prefix.as_ref()));
    }

    /// Deletes the keys of `keyspace` that begin with `prefix`; see
    /// [`delete_range`](WriteBatch::delete_range).
    pub fn delete_prefix_in(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) {
        self.set_origin(keyspace.store().gate.id());
        self.delete_range_raw(keyspace.id, &KeySpan::of_prefix(prefix.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::vfs::SimFileSystem;

    #[test]
    fn a_write_to_a_dropped_keyspace_names_it_issue_13() {
        let db = Options::new().file_system(Arc::new(SimFileSystem::new())).open("/db").unwrap();
        let [kept, gone] = ["kept", "gone"].map(|name| db.keyspace(name).unwrap());
        assert!(db.drop_keyspace("gone").unwrap());
        let names = |result: Result<SeqNo>| match result {
            Err(Error::KeyspaceDropped(name)) => name,
            other => format!("{other:?}"),
        };
        let mut batch = WriteBatch::new();
        batch.put_in(&kept, "k", "v");
        batch.delete_in(&gone, "k");
        assert_eq!(
            [gone.put("k", "v"), gone.delete("k"), db.write(batch.clone())].map(names),
            ["gone"; 3].map(str::to_owned)
        );
        // Names are kept as long as a handle exists.
        let id = gone.id;
        drop(gone);
        assert!(kept.put("k", "v").is_ok() && db.drop_keyspace("kept").unwrap());
        assert_eq!(names(db.write(batch)), "kept");
        assert_ne!(id, kept.id);

        // A handle keeps the name by which it was asked for.
        let handles = ["one", "two", "three"].map(|name| {
            let keyspace = db.keyspace("zero").unwrap();
            db.rename_keyspace("zero", name).unwrap();
            db.rename_keyspace(name, "zero").unwrap();
            keyspace
        });
        db.rename_keyspace("zero", "last").unwrap();
        assert!(db.drop_keyspace("last").unwrap());
        assert_eq!(handles.map(|handle| names(handle.put("k", "v"))), ["zero"; 3].map(str::to_owned));
    }
}
