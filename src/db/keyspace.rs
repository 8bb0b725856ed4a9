//! [`Keyspace`]: one named tree of a store.

use std::fmt;
use std::sync::Arc;

use super::Handle;
use super::iter::{Cursor, HalfOpen, Iter, KeyRange};
use super::read::{ReadOptions, Source};
use super::refilter::{FilterRebuild, Scope};
use super::snapshot::Snapshot;
use super::store::Store;
use super::view::Tree;
use super::write::WriteOptions;
use crate::error::{Error, Result};
use crate::filter::FilterPolicy;
use crate::format::key::SeqNo;
use crate::options::{KeyspaceOptions, LevelFilters};
use crate::report::explain::{Explanation, Untraced};
use crate::sorted::value::Value;
use crate::tree::manifest::{MAX_KEYSPACES, MAX_NAME_LEN, VersionEdit};
use crate::tree::version::Version;
use crate::write::batch::WriteBatch;

/// A handle to one keyspace of a store: a key-value map of its own, in one log and one order of writes with all others.
///
/// Handles are cheap to clone and may be used from any thread. A handle keeps the store open.
#[derive(Clone)]
pub struct Keyspace {
    pub(super) handle: Arc<Handle>,
    pub(super) id: u32,
    pub(super) name: Arc<str>,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("name", &self.name).field("path", &self.store().path()).finish()
    }
}

impl Keyspace {
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.handle.store
    }

    /// What reads of the keyspace as it is now read from.
    fn source(&self) -> Source<'_> {
        Source { keyspace: self.id, name: &self.name, snapshot: None }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The options in force.
    pub fn options(&self) -> Result<KeyspaceOptions> {
        let view = self.store().view.load();
        let tree = view.tree(self.id).ok_or_else(|| Error::KeyspaceDropped(self.name.to_string()))?;
        Ok(tree.options.clone())
    }

    /// Sets a key to a value, over whatever it had. Returns the write's sequence number.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.store().write_one(self.id, key.as_ref(), Some(value.as_ref()), WriteOptions::default())
    }

    /// Deletes a key; no error if it is not there. Returns the write's sequence number.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.store().write_one(self.id, key.as_ref(), None, WriteOptions::default())
    }

    /// The value of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_with(key, ReadOptions::default())
    }

    /// The value of a key, read as `options` say.
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: ReadOptions) -> Result<Option<Value>> {
        self.store().get(self.source(), key.as_ref(), options, &mut Untraced, |value| value.into_value())
    }

    /// Puts the value of a key into `value`, in place of what is there, and returns whether the key is there; if not, `value` is empty.
    ///
    /// A buffer that is used for many reads saves each of them an allocation.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// db.put("apple", "red")?;
    /// let mut value = Vec::new();
    /// assert!(db.get_into("apple", &mut value)?);
    /// assert_eq!(value, b"red");
    /// assert!(!db.get_into("pear", &mut value)?);
    /// # Ok(()) }
    /// ```
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        self.store().get_into(self.source(), key.as_ref(), value)
    }

    /// Calls `read` with the value of a key; `None` if the key is not there. A long value is not
    /// copied.
    ///
    /// `read` may take its time and use the store, and other threads do not notice. While it runs,
    /// a value of up to 512 bytes keeps nothing. A longer one keeps the block, the mapped file or
    /// the memtable in which it stands; a flushed memtable that is kept is counted in
    /// [`Stats::held`](crate::Stats::held).
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// db.put("apple", "red")?;
    /// assert_eq!(db.read("apple", |value| value.len())?, Some(3));
    /// assert_eq!(db.read("pear", |value| value.len())?, None);
    /// # Ok(()) }
    /// ```
    pub fn read<R>(&self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.store().read(self.source(), key.as_ref(), read)
    }

    /// The values of many keys, in the order of the keys, all of one moment.
    ///
    /// It is the same as one `get` after the other, but takes less time: the keys wait for memory together, a block that several of
    /// them are in is read once, and blocks that the disk must bring are asked for ahead (on Linux).
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// db.put("apple", "red")?;
    /// db.put("plum", "blue")?;
    /// let colours = db.multi_get(&["plum", "pear", "apple"])?;
    /// assert_eq!(colours[0].as_deref(), Some(&b"blue"[..]));
    /// assert_eq!(colours[1], None);
    /// assert_eq!(colours[2].as_deref(), Some(&b"red"[..]));
    /// # Ok(()) }
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        self.multi_get_with(keys, ReadOptions::default())
    }

    /// The values of many keys, read as `options` say.
    pub fn multi_get_with<K: AsRef<[u8]>>(&self, keys: &[K], options: ReadOptions) -> Result<Vec<Option<Value>>> {
        self.store().multi_get(self.source(), keys, options)
    }

    /// Reads a key and says how: which memtables and tables were consulted, what their filters said, and which blocks were looked at.
    /// The read is an ordinary one, and counted as such.
    ///
    /// That a table turns out to be damaged is part of the explanation, and no error of this call.
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        self.explain_with(key, ReadOptions::default())
    }

    /// The same for a read as `options` say.
    pub fn explain_with(&self, key: impl AsRef<[u8]>, options: ReadOptions) -> Result<Explanation> {
        self.store().explain(self.source(), key.as_ref(), options)
    }

    /// Whether a key is there.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.store().contains_key(self.source(), key.as_ref())
    }

    /// All entries, in key order, as they are now.
    pub fn iter(&self) -> Iter {
        self.range(..)
    }

    /// The entries of a range of keys, as they are now.
    pub fn range(&self, range: impl KeyRange) -> Iter {
        self.range_with(range, ReadOptions::default())
    }

    /// The entries of a range of keys, read as `options` say.
    ///
    /// If the keyspace has a [`PrefixExtractor`](crate::PrefixExtractor) and the range lies within the keys of one prefix, tables whose
    /// filters deny it are left out.
    pub fn range_with(&self, range: impl KeyRange, options: ReadOptions) -> Iter {
        self.store().iter(self.id, &self.name, HalfOpen::of(range), None, options)
    }

    /// The entries whose keys begin with `prefix`, as they are now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        self.prefix_with(prefix, ReadOptions::default())
    }

    /// The entries whose keys begin with `prefix`, read as `options` say.
    ///
    /// If the keyspace has a [`PrefixExtractor`](crate::PrefixExtractor) that finds a prefix in `prefix`, tables whose filters deny it are
    /// left out.
    pub fn prefix_with(&self, prefix: impl AsRef<[u8]>, options: ReadOptions) -> Iter {
        self.store().iter(self.id, &self.name, HalfOpen::of_prefix(prefix.as_ref()), None, options)
    }

    /// A cursor over the entries as they are now, to begin with on none.
    pub fn cursor(&self) -> Result<Cursor> {
        self.cursor_with(ReadOptions::default())
    }

    /// A cursor that reads as `options` say. It can go anywhere, so it leaves no table out and asks no filter, whatever
    /// [`ReadOptions::filters`] is.
    pub fn cursor_with(&self, options: ReadOptions) -> Result<Cursor> {
        self.store().cursor(self.id, &self.name, None, options)
    }

    /// All keyspaces as they are now; the snapshot's own methods read this one.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self)
    }

    /// Brings the entries of a range to the last level, and drops what deletes and overwrites have left there. Writes everything in
    /// memory to tables first. For a while it takes disk space of what is above the last level, and of some tables more.
    pub fn compact_range(&self, range: impl KeyRange) -> Result<()> {
        self.store().compact_range(self.id, &self.name, &HalfOpen::of(range))
    }

    /// Makes `policy` the keyspace's filter policy, the same for every level, and gives every table a filter by it.
    ///
    /// Each table whose filter is another one, or is damaged, is replaced by a copy with a new filter, one after the other. Data blocks
    /// are copied as they are, so this costs one sequential read and write of each table, and disk space of one table for a while.
    /// Reads go on, and so do writes and compactions of other tables; what is in memory is written to tables first. It may be
    /// interrupted anywhere, by a crash too: every table then has its old filter or its new one, and calling it again does the rest.
    ///
    /// Fails at the first table that is damaged elsewhere than in its filter.
    pub fn rebuild_filters(&self, policy: FilterPolicy) -> Result<FilterRebuild> {
        self.store().change_options(self.id, &self.name, |options| {
            options.filter = policy;
            options.level_filters = LevelFilters::Uniform;
        })?;
        self.renew_filters(|_| {})
    }

    /// Gives every table the filter that the keyspace's options ask for, as [`Keyspace::rebuild_filters`] does, which also repairs
    /// damaged filters, and those that their tables contradict. `progress` is called when the work is known and after each table.
    ///
    /// If the options change meanwhile, all filters are by the new ones in the end.
    pub fn renew_filters(&self, progress: impl FnMut(&FilterRebuild)) -> Result<FilterRebuild> {
        self.store().renew_filters(self.id, &self.name, Scope::Unfit, progress)
    }

    /// Makes the filters of all tables anew, whatever they have, and is otherwise as [`Keyspace::renew_filters`].
    ///
    /// A filter that denies a key of its table, and agrees with the table in all that it says of itself, looks like a right one. Only reads
    /// with [`FilterMode::Shadow`](crate::FilterMode::Shadow) and a verification of the whole table find it; this replaces it.
    pub fn remake_filters(&self, progress: impl FnMut(&FilterRebuild)) -> Result<FilterRebuild> {
        self.store().renew_filters(self.id, &self.name, Scope::All, progress)
    }
}

impl WriteBatch {
    /// Adds: set a key of `keyspace` to a value.
    pub fn put_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.set_origin(keyspace.store().id);
        self.put_raw(keyspace.id, key.as_ref(), value.as_ref());
    }

    /// Adds: delete a key of `keyspace`.
    pub fn delete_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.set_origin(keyspace.store().id);
        self.delete_raw(keyspace.id, key.as_ref());
    }
}

impl Store {
    /// The keyspace called `name`: id and name. It is created when absent; `options`, if given, replace the stored ones.
    pub(super) fn keyspace(self: &Arc<Self>, name: &str, options: Option<KeyspaceOptions>) -> Result<(u32, Arc<str>)> {
        self.gate.check_open()?;
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(Error::invalid(format_args!(
                "a keyspace's name takes 1 to {MAX_NAME_LEN} bytes, not {}",
                name.len()
            )));
        }
        if let Some(options) = &options {
            options.validate()?;
        }
        if let Some(tree) = self.view.load().tree_named(name)
            && options.as_ref().is_none_or(|options| *options == tree.options)
        {
            return Ok((tree.id, Arc::clone(&tree.name)));
        }
        self.gate.check_writable()?;
        self.define_keyspace(name, options)
    }

    fn define_keyspace(self: &Arc<Self>, name: &str, options: Option<KeyspaceOptions>) -> Result<(u32, Arc<str>)> {
        let _defining = self.defining.lock();
        let view = self.view.load();
        let (existing, count) = (view.tree_named(name).cloned(), view.trees.len());
        let tree = match (existing, options) {
            (Some(tree), None) => return Ok((tree.id, tree.name)),
            (Some(tree), Some(options)) => Tree { options, ..tree },
            (None, _) if count >= MAX_KEYSPACES => {
                return Err(Error::invalid(format_args!("a store takes up to {MAX_KEYSPACES} keyspaces")));
            }
            (None, options) => Tree {
                // File numbers are never reused, so neither is an id: entries of a dropped keyspace that are still in the log can
                // never turn up in another one.
                id: u32::try_from(self.catalog.new_file_number())
                    .map_err(|_| Error::invalid("the store has used up its keyspace ids"))?,
                name: Arc::from(name),
                options: options.unwrap_or_default(),
                version: Arc::new(Version::default()),
                gaps: Arc::default(),
            },
        };
        self.install_keyspace(tree.clone())?;
        Ok((tree.id, tree.name))
    }

    /// Creates a keyspace, or gives one other options; the caller holds `defining`.
    fn install_keyspace(self: &Arc<Self>, tree: Tree) -> Result<()> {
        let created = vec![(tree.id, tree.name.to_string(), tree.options.clone())];
        self.install(VersionEdit { created, ..VersionEdit::default() }, |view| {
            // A flush or compaction may have changed the version meanwhile.
            let version = view.tree(tree.id).map(|tree| Arc::clone(&tree.version));
            view.set_tree(Tree { version: version.unwrap_or_else(|| Arc::clone(&tree.version)), ..tree });
        })?;
        // What options decide of compactions may have changed.
        self.schedule();
        Ok(())
    }

    /// Changes the options of a keyspace that exists.
    pub(super) fn change_options(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        change: impl FnOnce(&mut KeyspaceOptions),
    ) -> Result<()> {
        self.gate.check_writable()?;
        let _defining = self.defining.lock();
        let tree = self.view.load().tree(keyspace).cloned();
        let mut tree = tree.ok_or_else(|| Error::KeyspaceDropped(name.to_owned()))?;
        let before = tree.options.clone();
        change(&mut tree.options);
        tree.options.validate()?;
        if tree.options == before {
            return Ok(());
        }
        self.install_keyspace(tree)
    }

    /// Drops a keyspace and all its tables; returns whether there was one of that name.
    pub(super) fn drop_keyspace(self: &Arc<Self>, name: &str) -> Result<bool> {
        self.gate.check_writable()?;
        let _defining = self.defining.lock();
        let Some(tree) = self.view.load().tree_named(name).cloned() else { return Ok(false) };
        if tree.id == 0 {
            return Err(Error::invalid("the default keyspace cannot be dropped"));
        }
        let edit = VersionEdit { dropped: vec![tree.id], ..VersionEdit::default() };
        self.install(edit, |view| view.trees.retain(|other| other.id != tree.id))?;
        // Writers are not slowed down any longer by what it had to compact.
        self.schedule();
        Ok(true)
    }
}
