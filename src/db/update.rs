//! Read, modify, write: operations on one key that are atomic against all other writers.
//!
//! Each reads the key, computes the new value without a lock, and writes it under the [`Premise`]
//! that the key has not been written since. If it has, the operation starts again: of several
//! writers, one always succeeds. The others then take turns (see `retry`). After a number of
//! attempts the conflict is the caller's.
//!
//! What needs no code of the caller, an addition or a swap, is first tried under the commit lock,
//! where it meets no conflict: see `write::in_place`.

use std::sync::Arc;

use super::clock::LeastDeadline;
use super::read::{ReadOptions, ReadTarget, tree_of};
use super::shape::view::Hit;
use super::store::Store;
use super::transaction::premise::{Moment, Premise, Refusal};
use super::transaction::retry::{ATTEMPTS, STALE_ROUNDS};
use super::write::commit::{Encoded, Outcome};
use super::write::in_place::{InPlace, Step};
use super::write::path::{Expiry, WriteOptions, with_encoded};
use crate::batch::Write;
use crate::error::{Error, Result};
use crate::filter::KeyHash;
use crate::format::key::{SeqNo, equal};
use crate::operator::ByteOrder;
use crate::sorted::table::PointRead;
use crate::sorted::value::Value;

/// What [`update`](crate::Db::update) does to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Leaves the key as it is.
    Keep,
    /// Sets the key to this value.
    Put(Vec<u8>),
    /// Deletes the key.
    Delete,
}

/// What an [`update`](crate::Db::update) did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// The value before; `None` if the key was absent.
    pub before: Option<Value>,
    /// The value after; `None` if the key is absent.
    pub after: Option<Value>,
    /// Sequence number of the write; `None` if the change was [`Change::Keep`].
    pub seqno: Option<SeqNo>,
}

/// A key does not have the value that a [`compare_and_swap`](crate::Db::compare_and_swap) expects.
/// Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key does not have the expected value")]
#[non_exhaustive]
pub struct Mismatch {
    /// The value that it has; `None` if it is absent.
    pub current: Option<Value>,
}

/// The integers that [`fetch_add`](crate::Db::fetch_add) adds to: `u8` to `u128` and `i8` to
/// `i128`.
pub trait Integer: sealed::Integer {}

mod sealed {
    use crate::operator::ByteOrder;

    pub trait Integer: Copy {
        const ZERO: Self;

        /// `None` if `bytes` is not as long as the integer.
        fn decode(bytes: &[u8], order: ByteOrder) -> Option<Self>;

        type Bytes: AsRef<[u8]>;

        fn encode(self, order: ByteOrder) -> Self::Bytes;

        fn checked_add(self, delta: Self) -> Option<Self>;
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Integer for $integer {}

        impl sealed::Integer for $integer {
            const ZERO: $integer = 0;

            fn decode(bytes: &[u8], order: ByteOrder) -> Option<$integer> {
                let bytes = bytes.try_into().ok()?;
                Some(match order {
                    ByteOrder::Little => <$integer>::from_le_bytes(bytes),
                    ByteOrder::Big => <$integer>::from_be_bytes(bytes),
                })
            }

            type Bytes = [u8; size_of::<$integer>()];

            fn encode(self, order: ByteOrder) -> Self::Bytes {
                match order {
                    ByteOrder::Little => self.to_le_bytes(),
                    ByteOrder::Big => self.to_be_bytes(),
                }
            }

            fn checked_add(self, delta: $integer) -> Option<$integer> {
                self.checked_add(delta)
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

/// Whether two values are equal, or both absent.
fn is_same(a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => equal(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

impl Store {
    /// Changes a key. `change` gets its current value and says what to do; it may be called again.
    pub(super) fn update(
        self: &Arc<Self>,
        target: ReadTarget<'_>,
        key: &[u8],
        options: WriteOptions,
        mut change: impl FnMut(Option<&[u8]>) -> Result<Change>,
    ) -> Result<Updated> {
        self.gate.check_writable()?;
        let hash = KeyHash::new(self.seed, key);
        let (mut turn, mut attempt) = (None, 1);
        loop {
            self.writer.retries().of_key(hash, attempt, &mut turn);
            let as_of = self.writer.keyspaces_as_of();
            let (before, premise) = self.read_for_update(target, key, hash)?;
            let after = match self.timed_closure("update", || change(before.as_deref()))? {
                Change::Keep => {
                    if options.sync {
                        // The caller may act on the value that it was told.
                        self.sync()?;
                    }
                    return Ok(Updated { after: before.clone(), before, seqno: None });
                }
                Change::Put(value) => Some(value),
                Change::Delete => None,
            };
            if let Some(seqno) =
                self.replace(target, key, (before.as_deref(), after.as_deref()), (premise, as_of), options)?
            {
                return Ok(Updated { before, after: after.map(Value::from), seqno: Some(seqno) });
            }
            if attempt == ATTEMPTS {
                return Err(Error::Conflict { keyspace: target.name.to_owned(), key: key.to_vec() });
            }
            attempt += 1;
        }
    }

    /// Reads a key now. The premise says that it has the same value when an update of it commits.
    fn read_for_update<'a>(
        &self,
        target: ReadTarget<'_>,
        key: &'a [u8],
        hash: KeyHash,
    ) -> Result<(Option<Value>, Premise<'a>)> {
        let mut deadline = LeastDeadline::default();
        // Before the view, which therefore has all that was written until then.
        let moment = Moment::at(self.sequence.visible());
        let value = self.shape.with_view(|view, pin| {
            let tree = tree_of(view, target.keyspace, target.name)?;
            // Not at the moment's number, which is no snapshot's: ranges that later ones cover are
            // forgotten for it. What is written in between makes the premise fail.
            let window = view.window(tree, key, None, || view.visible(&self.sequence));
            let read = PointRead { key, hash, window, mode: ReadOptions::default().mode() };
            let hit = view.get(tree, &read, target.at(), pin, &mut deadline)?;
            Ok::<_, Error>(hit.map(Hit::into_value))
        })?;
        Ok((value, Premise::on_key(moment, target.keyspace, key, hash).until(deadline.0)))
    }

    /// Replaces the value `before` of a key by `after`, under the premise that it still has that
    /// value. `as_of` was [noted](super::write::Writer::keyspaces_as_of) before it was read.
    /// Returns the number of the write, or `None` if it has not.
    ///
    /// A premise that has become stale says nothing of the key. The key is then read again, and has
    /// not changed if its value has not.
    fn replace<'a>(
        self: &Arc<Self>,
        target: ReadTarget<'_>,
        key: &'a [u8],
        (before, after): (Option<&[u8]>, Option<&[u8]>),
        (mut premise, mut as_of): (Premise<'a>, u64),
        options: WriteOptions,
    ) -> Result<Option<SeqNo>> {
        let hash = KeyHash::new(self.seed, key);
        let write = self.with_deadline(target.keyspace, after.map_or(Write::Delete, Write::Put), options);
        for _ in 0..=STALE_ROUNDS {
            let logged = self.logged_part_of_one(target.keyspace, options, as_of)?;
            let outcome = with_encoded(target.keyspace, key, write, |payload, single| {
                let encoded = Encoded::single(payload, single, write.kind().features(), logged, options.sync);
                self.write_encoded(encoded, Some(&premise))
            })?;
            match outcome {
                Outcome::Committed(seqno) => return Ok(Some(seqno)),
                Outcome::Refused(Refusal::Stale) => {}
                Outcome::Refused(Refusal::Expired | Refusal::Written(..)) => return Ok(None),
            }
            let value;
            as_of = self.writer.keyspaces_as_of();
            (value, premise) = self.read_for_update(target, key, hash)?;
            if !is_same(value.as_deref(), before) {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Writes the value of a key again, with another deadline. Returns whether it has one.
    pub(super) fn set_expiry(self: &Arc<Self>, target: ReadTarget<'_>, key: &[u8], expiry: Expiry) -> Result<bool> {
        let options = WriteOptions::new().expiry(expiry);
        let rewrite = |value: Option<&[u8]>| Ok(value.map_or(Change::Keep, |value| Change::Put(value.to_vec())));
        Ok(self.update(target, key, options, rewrite)?.seqno.is_some())
    }

    pub(super) fn compare_and_swap(
        self: &Arc<Self>,
        target: ReadTarget<'_>,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<Result<SeqNo, Mismatch>> {
        self.gate.check_writable()?;
        let (hash, mut mismatch) = (KeyHash::new(self.seed, key), None);
        let done =
            self.change_in_place((target.keyspace, key, hash), options, new.map_or(0, <[u8]>::len), |current| {
                Ok(match new {
                    _ if !is_same(current, expected) => {
                        mismatch = Some(Mismatch { current: current.map(Value::copy_of) });
                        Step::Keep
                    }
                    Some(new) => Step::Put(new),
                    None => Step::Delete,
                })
            })?;
        match (done, mismatch) {
            (InPlace::Written(seqno), _) => return Ok(Ok(seqno)),
            (InPlace::Kept, Some(mismatch)) => return Ok(Err(mismatch)),
            _ => {}
        }
        let updated = self.update(target, key, options, |current| {
            Ok(match new {
                _ if !is_same(current, expected) => Change::Keep,
                Some(new) => Change::Put(new.to_vec()),
                None => Change::Delete,
            })
        })?;
        Ok(updated.seqno.ok_or(Mismatch { current: updated.before }))
    }

    pub(super) fn fetch_add<I: Integer>(
        self: &Arc<Self>,
        target: ReadTarget<'_>,
        key: &[u8],
        delta: I,
        order: ByteOrder,
        options: WriteOptions,
    ) -> Result<I> {
        let add = |current: Option<&[u8]>| {
            let current = current.map(|bytes| {
                I::decode(bytes, order).ok_or_else(|| {
                    let (expected, found) = (size_of::<I>(), bytes.len());
                    Error::invalid(format_args!("an integer of {expected} bytes is to be added to {found} bytes"))
                })
            });
            let before = current.transpose()?.unwrap_or(I::ZERO);
            let sum = before.checked_add(delta);
            let sum = sum.ok_or_else(|| Error::invalid("the sum exceeds the range of the integer"))?;
            Ok((before, sum.encode(order)))
        };
        self.gate.check_writable()?;
        let mut before = I::ZERO;
        let hash = KeyHash::new(self.seed, key);
        let done = self.change_in_place((target.keyspace, key, hash), options, size_of::<I>(), |current| {
            let (found, sum) = add(current)?;
            before = found;
            Ok(Step::Put(sum))
        })?;
        if let InPlace::Written(_) = done {
            return Ok(before);
        }
        self.update(target, key, options, |current| {
            let (found, sum) = add(current)?;
            before = found;
            Ok(Change::Put(sum.as_ref().to_vec()))
        })?;
        Ok(before)
    }
}

/// Implements read, modify, write for a handle. It must have `store()` and `target()`, the keyspace
/// that it writes.
macro_rules! updates {
    ($handle:ident) => {
        const _: () = {
            use crate::db::update::{Change, Integer, Mismatch, Updated};
            use crate::db::write::path::{Expiry, WriteOptions};
            use crate::error::Result;
            use crate::format::key::SeqNo;
            use crate::operator::ByteOrder;

            impl $handle {
                /// Changes a key in a way that depends on its value, atomically against all other
                /// writers.
                ///
                /// `change` gets the current value, `None` if the key is absent. It is called
                /// again, with another value, if the key is written meanwhile. It runs without a
                /// lock and may use the store.
                ///
                /// Writers of one key take turns. Fails with
                /// [`Error::Conflict`](crate::Error::Conflict) if the key was written during each
                /// of 32 calls; nothing was written then. So do the operations below.
                ///
                /// ```
                /// # fn main() -> tamis::Result<()> {
                /// # let dir = tempfile::tempdir().expect("a temporary directory");
                /// # let db = tamis::Db::open(dir.path().join("db"))?;
                /// use tamis::Change;
                ///
                /// let updated = db.update("visits", |value| {
                ///     let mut visits = value.unwrap_or_default().to_vec();
                ///     visits.push(b'|');
                ///     Change::Put(visits)
                /// })?;
                /// assert_eq!(updated.before, None);
                /// assert_eq!(updated.after.as_deref(), Some(&b"|"[..]));
                /// # Ok(()) }
                /// ```
                pub fn update(
                    &self,
                    key: impl AsRef<[u8]>,
                    change: impl FnMut(Option<&[u8]>) -> Change,
                ) -> Result<Updated> {
                    self.update_with(key, WriteOptions::default(), change)
                }

                /// Changes a key under `options`; see [`update`](Self::update). With
                /// [`WriteOptions::sync`], the result survives a power cut even if the key was
                /// kept.
                pub fn update_with(
                    &self,
                    key: impl AsRef<[u8]>,
                    options: WriteOptions,
                    mut change: impl FnMut(Option<&[u8]>) -> Change,
                ) -> Result<Updated> {
                    self.store().update(self.target(), key.as_ref(), options, |value| Ok(change(value)))
                }

                /// Sets a key to `new` if its value is `expected`; `None` is an absent key.
                /// Atomic against all other writers.
                ///
                /// The outer error is a failure of the store. The inner one tells the value that
                /// the key has instead; nothing was written then.
                ///
                /// ```
                /// # fn main() -> tamis::Result<()> {
                /// # let dir = tempfile::tempdir().expect("a temporary directory");
                /// # let db = tamis::Db::open(dir.path().join("db"))?;
                /// db.put("seat 12", "free")?;
                /// assert!(db.compare_and_swap("seat 12", Some("free"), Some("Ann"))?.is_ok());
                /// let taken = db.compare_and_swap("seat 12", Some("free"), Some("Bob"))?;
                /// let taken = taken.unwrap_err();
                /// assert_eq!(taken.current.as_deref(), Some(&b"Ann"[..]));
                /// # Ok(()) }
                /// ```
                pub fn compare_and_swap(
                    &self,
                    key: impl AsRef<[u8]>,
                    expected: Option<impl AsRef<[u8]>>,
                    new: Option<impl AsRef<[u8]>>,
                ) -> Result<Result<SeqNo, Mismatch>> {
                    self.compare_and_swap_with(key, expected, new, WriteOptions::default())
                }

                /// Sets a key under `options` if it has the expected value; see
                /// [`compare_and_swap`](Self::compare_and_swap).
                pub fn compare_and_swap_with(
                    &self,
                    key: impl AsRef<[u8]>,
                    expected: Option<impl AsRef<[u8]>>,
                    new: Option<impl AsRef<[u8]>>,
                    options: WriteOptions,
                ) -> Result<Result<SeqNo, Mismatch>> {
                    let (expected, new) = (expected.as_ref().map(AsRef::as_ref), new.as_ref().map(AsRef::as_ref));
                    self.store().compare_and_swap(self.target(), key.as_ref(), expected, new, options)
                }

                /// Sets a key to a value if the key is absent. Otherwise the inner error tells the
                /// value that it has.
                pub fn put_if_absent(
                    &self,
                    key: impl AsRef<[u8]>,
                    value: impl AsRef<[u8]>,
                ) -> Result<Result<SeqNo, Mismatch>> {
                    self.put_if_absent_with(key, value, WriteOptions::default())
                }

                /// Sets a key under `options` if it is absent; see
                /// [`put_if_absent`](Self::put_if_absent).
                pub fn put_if_absent_with(
                    &self,
                    key: impl AsRef<[u8]>,
                    value: impl AsRef<[u8]>,
                    options: WriteOptions,
                ) -> Result<Result<SeqNo, Mismatch>> {
                    let value = Some(value.as_ref());
                    self.store().compare_and_swap(self.target(), key.as_ref(), None, value, options)
                }

                /// Sets when the value of a key expires, and keeps the value. Returns whether the
                /// key is there.
                ///
                /// [`Expiry::Default`] lets it live for the ttl of its keyspace from now on,
                /// [`Expiry::After`] for a time of its own; [`Expiry::Never`] takes its deadline
                /// away. One that is past deletes the key.
                ///
                /// The store reads the value and writes it again, atomically against all other
                /// writers: it costs a get and a put of the value's length.
                ///
                /// ```
                /// # fn main() -> tamis::Result<()> {
                /// # let dir = tempfile::tempdir().expect("a temporary directory");
                /// # let db = tamis::Db::open(dir.path().join("db"))?;
                /// use std::time::Duration;
                /// use tamis::{Expiry, KeyspaceOptions};
                ///
                /// let options = KeyspaceOptions::new().ttl(Duration::from_secs(1800));
                /// let sessions = db.keyspace_with("sessions", options)?;
                /// sessions.put("token 1", "Ann")?;
                /// assert!(sessions.set_expiry("token 1", Expiry::Default)?); // half an hour more
                /// assert!(!sessions.set_expiry("token 2", Expiry::Default)?); // there is none
                /// # Ok(()) }
                /// ```
                pub fn set_expiry(&self, key: impl AsRef<[u8]>, expiry: Expiry) -> Result<bool> {
                    self.store().set_expiry(self.target(), key.as_ref(), expiry)
                }

                /// Adds `delta` to the integer that a key holds, and returns the integer before.
                /// An absent key counts as 0. Atomic against all other writers.
                ///
                /// The value has as many bytes as the type of `delta`, in the given order; signed
                /// integers are stored as two's complement. Fails with
                /// [`Error::InvalidArgument`](crate::Error::InvalidArgument), and writes nothing,
                /// if the value has another length or the sum does not fit.
                ///
                /// ```
                /// # fn main() -> tamis::Result<()> {
                /// # let dir = tempfile::tempdir().expect("a temporary directory");
                /// # let db = tamis::Db::open(dir.path().join("db"))?;
                /// use tamis::ByteOrder;
                ///
                /// assert_eq!(db.fetch_add("stock", 10i64, ByteOrder::Big)?, 0);
                /// assert_eq!(db.fetch_add("stock", -3i64, ByteOrder::Big)?, 10);
                /// assert_eq!(db.get("stock")?.as_deref(), Some(&7i64.to_be_bytes()[..]));
                /// # Ok(()) }
                /// ```
                pub fn fetch_add<I: Integer>(&self, key: impl AsRef<[u8]>, delta: I, order: ByteOrder) -> Result<I> {
                    self.fetch_add_with(key, delta, order, WriteOptions::default())
                }

                /// Adds to an integer under `options`; see [`fetch_add`](Self::fetch_add).
                pub fn fetch_add_with<I: Integer>(
                    &self,
                    key: impl AsRef<[u8]>,
                    delta: I,
                    order: ByteOrder,
                    options: WriteOptions,
                ) -> Result<I> {
                    self.store().fetch_add(self.target(), key.as_ref(), delta, order, options)
                }
            }
        };
    };
}
pub(super) use updates;
