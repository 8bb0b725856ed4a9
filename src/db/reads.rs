//! The read methods of `Db`, `Keyspace` and `Snapshot`, defined once so that all three have all of
//! them.

/// Implements all read methods for a handle. It must have `store()` and `target()`, the keyspace
/// and snapshot that it reads.
macro_rules! reads {
    ($handle:ident) => {
        const _: () = {
            use std::time::SystemTime;

            use crate::db::iter::Iter;
            use crate::db::keys::{Keys, Values};
            use crate::db::range::KeyRange;
            use crate::db::read::ReadOptions;
            use crate::db::read::cursor::Cursor;
            use crate::db::read::explain::Explanation;
            use crate::db::read::explain_range::RangeExplanation;
            use crate::error::Result;
            use crate::format::span::KeySpan;
            use crate::sorted::trace::Untraced;
            use crate::sorted::value::Value;

            impl $handle {
                /// Returns the value of a key, or `None` if the key is absent.
                pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
                    self.get_with(key, ReadOptions::default())
                }

                /// Returns the value of a key, read under `options`.
                pub fn get_with(&self, key: impl AsRef<[u8]>, options: ReadOptions) -> Result<Option<Value>> {
                    let key = key.as_ref();
                    self.store().get(self.target(), key, options.mode(), &mut Untraced, |value| value.into_value())
                }

                /// Returns the value of a key and the time at which it expires, if it does; `None`
                /// if the key is absent. See [`put_with_expiry`](crate::Keyspace::put_with_expiry).
                ///
                /// Of a value into which operands were merged, it is the deadline of the put below
                /// them.
                ///
                /// ```
                /// # fn main() -> tamis::Result<()> {
                /// # let dir = tempfile::tempdir().expect("a temporary directory");
                /// # let db = tamis::Db::open(dir.path().join("db"))?;
                /// use std::time::{Duration, SystemTime};
                ///
                /// db.put("apple", "red")?;
                /// db.put_with_ttl("token 1", "Ann", Duration::from_secs(60))?;
                /// let (_, deadline) = db.get_with_expiry("apple")?.expect("an apple");
                /// assert_eq!(deadline, None);
                /// let (_, deadline) = db.get_with_expiry("token 1")?.expect("a token");
                /// let left = deadline.expect("a deadline").duration_since(SystemTime::now());
                /// assert!(left.expect("time is left") <= Duration::from_secs(60));
                /// # Ok(()) }
                /// ```
                pub fn get_with_expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<(Value, Option<SystemTime>)>> {
                    self.store().get_with_expiry(self.target(), key.as_ref())
                }

                /// Reads the value of a key into `value`. Returns whether the key is present; if
                /// not, `value` is left empty.
                ///
                /// Reusing a buffer saves an allocation per read.
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
                    self.store().get_into(self.target(), key.as_ref(), value)
                }

                /// Calls `read` with the value of a key and returns its result; `None` if the key
                /// is absent. A long value is not copied.
                ///
                /// `read` may run long and use the store; it holds up no other thread. While it
                /// runs, a value of up to 512 bytes keeps nothing alive. A longer one keeps its
                /// block, mapped file or memtable; [`Stats::held`](crate::Stats::held) counts a
                /// flushed memtable that is kept.
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
                    self.store().read(self.target(), key.as_ref(), read)
                }

                /// Returns the values of many keys, in the order of the keys, all as of one moment.
                ///
                /// Equivalent to one `get` per key, but faster: cache misses of different keys
                /// overlap, a block that holds several of the keys is read once, and blocks on disk
                /// are prefetched (on Linux).
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

                /// Returns the values of many keys, read under `options`.
                pub fn multi_get_with<K: AsRef<[u8]>>(
                    &self,
                    keys: &[K],
                    options: ReadOptions,
                ) -> Result<Vec<Option<Value>>> {
                    let (store, target) = (self.store(), self.target());
                    store.timed("multi_get", Some(target.name), || store.multi_get(target, keys, options))
                }

                /// Reads a key and reports how: the memtables and tables consulted, the answers of
                /// their filters, and the blocks read. The read is counted in the statistics.
                ///
                /// A damaged table is part of the explanation, not an error of this call. It can be
                /// displayed.
                ///
                /// ```
                /// # fn main() -> tamis::Result<()> {
                /// # let dir = tempfile::tempdir().expect("a temporary directory");
                /// # let db = tamis::Db::open(dir.path().join("db"))?;
                /// db.put("apple", "red")?;
                /// let text = db.explain("apple")?.to_string();
                /// assert!(text.starts_with("memtable: value of 3 bytes\nvalue of 3 bytes: "));
                /// # Ok(()) }
                /// ```
                pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
                    self.explain_with(key, ReadOptions::default())
                }

                /// Reads a key under `options` and reports how; see [`explain`](Self::explain).
                pub fn explain_with(&self, key: impl AsRef<[u8]>, options: ReadOptions) -> Result<Explanation> {
                    self.store().explain(self.target(), key.as_ref(), options)
                }

                /// Scans the first `most` entries of a range and reports how: the tables whose keys
                /// overlap it, and the data blocks that were entered and read, also those from
                /// which nothing came. With one entry, it is a seek. The scan is counted in the
                /// statistics. The explanation takes about 50 bytes for each block entered.
                ///
                /// A damaged table is part of the explanation, not an error of this call.
                pub fn explain_range(&self, range: impl KeyRange, most: u64) -> Result<RangeExplanation> {
                    self.explain_range_with(range, most, ReadOptions::default())
                }

                /// Scans under `options` and reports how; see
                /// [`explain_range`](Self::explain_range).
                pub fn explain_range_with(
                    &self,
                    range: impl KeyRange,
                    most: u64,
                    options: ReadOptions,
                ) -> Result<RangeExplanation> {
                    self.store().explain_range(self.target(), KeySpan::of(range.into_bounds()), most, options)
                }

                /// Returns whether a key is present.
                pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
                    self.store().contains_key(self.target(), key.as_ref())
                }

                /// Iterates over all entries in key order, as of the call or the snapshot.
                pub fn iter(&self) -> Iter {
                    self.range(..)
                }

                /// Iterates over the entries of a range of keys.
                pub fn range(&self, range: impl KeyRange) -> Iter {
                    self.range_with(range, ReadOptions::default())
                }

                /// Iterates over the entries of a range of keys, read under `options`.
                ///
                /// If the keyspace has a [`PrefixExtractor`](crate::PrefixExtractor) and all keys
                /// of the range have one prefix, the scan skips tables whose filters deny that
                /// prefix.
                pub fn range_with(&self, range: impl KeyRange, options: ReadOptions) -> Iter {
                    self.store().iter(self.target(), KeySpan::of(range.into_bounds()), options.mode())
                }

                /// Iterates over the entries whose keys begin with `prefix`.
                pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
                    self.prefix_with(prefix, ReadOptions::default())
                }

                /// Iterates over the entries whose keys begin with `prefix`, read under `options`.
                ///
                /// If the keyspace has a [`PrefixExtractor`](crate::PrefixExtractor) that finds a
                /// prefix in `prefix`, the scan skips tables whose filters deny it.
                pub fn prefix_with(&self, prefix: impl AsRef<[u8]>, options: ReadOptions) -> Iter {
                    self.store().iter(self.target(), KeySpan::of_prefix(prefix.as_ref()), options.mode())
                }

                /// Returns the entry with the least key, or `None` if there is none.
                ///
                /// ```
                /// # fn main() -> tamis::Result<()> {
                /// # let dir = tempfile::tempdir().expect("a temporary directory");
                /// # let db = tamis::Db::open(dir.path().join("db"))?;
                /// assert!(db.is_empty()? && db.first()?.is_none());
                /// db.put("apple", "red")?;
                /// db.put("plum", "blue")?;
                /// let (key, value) = db.last()?.expect("two entries");
                /// assert_eq!((&key[..], &value[..]), (&b"plum"[..], &b"blue"[..]));
                /// assert_eq!(db.keys(..).count(), 2);
                /// # Ok(()) }
                /// ```
                pub fn first(&self) -> Result<Option<(Value, Value)>> {
                    self.iter().next().transpose()
                }

                /// Returns the entry with the greatest key, or `None` if there is none.
                pub fn last(&self) -> Result<Option<(Value, Value)>> {
                    self.iter().next_back().transpose()
                }

                /// Returns whether there is no entry. Takes as long as finding the first one.
                pub fn is_empty(&self) -> Result<bool> {
                    Ok(self.keys(..).next().transpose()?.is_none())
                }

                /// Iterates over the keys of a range, and copies no values.
                pub fn keys(&self, range: impl KeyRange) -> Keys {
                    Keys(self.store().iter(
                        self.target(),
                        KeySpan::of(range.into_bounds()),
                        ReadOptions::default().keys_only(),
                    ))
                }

                /// Iterates over the values of a range, in the order of their keys, and copies no
                /// keys.
                pub fn values(&self, range: impl KeyRange) -> Values {
                    Values(self.range(range))
                }

                /// Opens a cursor over the entries. It is invalid until it is moved.
                pub fn cursor(&self) -> Result<Cursor> {
                    self.cursor_with(ReadOptions::default())
                }

                /// Opens a cursor that reads under `options`. A cursor can go anywhere, so it uses
                /// no filter, whatever [`ReadOptions::filters`] is.
                pub fn cursor_with(&self, options: ReadOptions) -> Result<Cursor> {
                    self.store().cursor(self.target(), options)
                }
            }
        };
    };
}
pub(super) use reads;
