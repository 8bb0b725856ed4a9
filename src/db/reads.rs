//! The reads that a store, a keyspace and a snapshot offer: all three have every one of them.

/// Gives a handle all reads. It has `store()` and `source()`, which says what it reads: a keyspace,
/// now or at the moment of a snapshot.
macro_rules! reads {
    ($handle:ident) => {
        const _: () = {
            use crate::db::iter::{Cursor, HalfOpen, Iter, KeyRange};
            use crate::db::read::ReadOptions;
            use crate::error::Result;
            use crate::report::explain::{Explanation, Untraced};
            use crate::sorted::value::Value;

            impl $handle {
                /// The value of a key, or `None` if the key is absent.
                pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
                    self.get_with(key, ReadOptions::default())
                }

                /// The value of a key, read as `options` say.
                pub fn get_with(&self, key: impl AsRef<[u8]>, options: ReadOptions) -> Result<Option<Value>> {
                    let value = self
                        .store()
                        .get(self.source(), key.as_ref(), options, &mut Untraced, |value| value.into_value());
                    value
                }

                /// Replaces the contents of `value` by the value of a key. Returns whether the key is
                /// present; if not, `value` is empty.
                ///
                /// A buffer that serves many reads saves each of them an allocation.
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

                /// Calls `read` with the value of a key; `None` if the key is absent. A long value is
                /// not copied.
                ///
                /// `read` may take its time and use the store; other threads do not notice. While it
                /// runs, a value of up to 512 bytes keeps nothing alive. A longer one keeps its block,
                /// mapped file or memtable; [`Stats::held`](crate::Stats::held) counts a flushed
                /// memtable that is kept.
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
                /// It returns what one `get` per key would, in less time: cache misses of different
                /// keys overlap, a block that holds several of the keys is read once, and blocks on
                /// disk are prefetched (on Linux).
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
                pub fn multi_get_with<K: AsRef<[u8]>>(
                    &self,
                    keys: &[K],
                    options: ReadOptions,
                ) -> Result<Vec<Option<Value>>> {
                    self.store().multi_get(self.source(), keys, options)
                }

                /// Reads a key and reports how: which memtables and tables were consulted, what their
                /// filters answered, and which blocks were read. The counters count this read.
                ///
                /// A damaged table is part of the explanation, and no error of this call.
                pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
                    self.explain_with(key, ReadOptions::default())
                }

                /// Reads a key as `options` say, and reports how; see [`explain`](Self::explain).
                pub fn explain_with(&self, key: impl AsRef<[u8]>, options: ReadOptions) -> Result<Explanation> {
                    self.store().explain(self.source(), key.as_ref(), options)
                }

                /// Whether a key is present.
                pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
                    self.store().contains_key(self.source(), key.as_ref())
                }

                /// All entries in key order, as they are at the moment of the call or of the snapshot.
                pub fn iter(&self) -> Iter {
                    self.range(..)
                }

                /// The entries of a range of keys.
                pub fn range(&self, range: impl KeyRange) -> Iter {
                    self.range_with(range, ReadOptions::default())
                }

                /// The entries of a range of keys, read as `options` say.
                ///
                /// If the keyspace has a [`PrefixExtractor`](crate::PrefixExtractor) and all keys of the
                /// range have one prefix, the scan skips tables whose filters deny that prefix.
                pub fn range_with(&self, range: impl KeyRange, options: ReadOptions) -> Iter {
                    self.store().iter(self.source(), HalfOpen::of(range), options)
                }

                /// The entries whose keys begin with `prefix`.
                pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
                    self.prefix_with(prefix, ReadOptions::default())
                }

                /// The entries whose keys begin with `prefix`, read as `options` say.
                ///
                /// If the keyspace has a [`PrefixExtractor`](crate::PrefixExtractor) that finds a prefix
                /// in `prefix`, the scan skips tables whose filters deny it.
                pub fn prefix_with(&self, prefix: impl AsRef<[u8]>, options: ReadOptions) -> Iter {
                    self.store().iter(self.source(), HalfOpen::of_prefix(prefix.as_ref()), options)
                }

                /// A cursor over the entries. It stands on none until it is moved.
                pub fn cursor(&self) -> Result<Cursor> {
                    self.cursor_with(ReadOptions::default())
                }

                /// A cursor that reads as `options` say. A cursor can go anywhere; it asks no filter,
                /// whatever [`ReadOptions::filters`] is.
                pub fn cursor_with(&self, options: ReadOptions) -> Result<Cursor> {
                    self.store().cursor(self.source(), options)
                }
            }
        };
    };
}
pub(super) use reads;
