//! [`Transaction`]: reads and writes that commit together, or not at all.
//!
//! Optimistic: a transaction holds no lock. It reads at a snapshot, through its own writes, and
//! remembers what it has read. When it commits, the store checks that none of that has been written
//! since the snapshot (see `premise`). A repeated read at the moment of the commit would therefore
//! return the same. Transactions are serialisable in the order of their sequence numbers, and
//! strictly so, because a commit returns after its writes are visible.

pub(crate) mod premise;
mod read_set;
pub(crate) mod retry;

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

mod check;
mod iter;
mod overlay;
mod reads;

pub use iter::{TransactionIter, TransactionKeys, TransactionValues};
use overlay::{Overlay, OwnKeyspace, OwnWrite};
use reads::transaction_reads;

use super::Db;
use super::clock::LeastDeadline;
use super::keyspace::Keyspace;
use super::name::KeyspaceName;
use super::range::KeyRange;
use super::read::cursor::Cursor;
use super::read::{FOREIGN, ReadOptions, ReadTarget};
use super::shape::view::Hit;
use super::snapshot::{Pinned, Snapshot};
use super::store::Store;
use super::transaction::read_set::ReadIn;
use super::transaction::retry::ATTEMPTS;
use super::update::{Change, Updated};
use super::write::path::WriteOptions;
use crate::batch::{BatchMark, WriteBatch};
use crate::error::{Error, Result};
use crate::filter::KeyHash;
use crate::format::deadline::{Deadline, NEVER, deadline_after};
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::sorted::value::Value;

/// Reads and writes that take effect together and at one moment, or not at all.
///
/// A transaction sees the store as of [`begin`](Db::begin), and its own writes. It holds no lock
/// and delays no other thread. [`commit`](Transaction::commit) fails with [`Error::Conflict`] if a
/// key that it read, absent ones included, or any key in a range that it read has been written
/// meanwhile. Transactions that commit are serialisable: the store is as if each had run alone at
/// the moment of its commit.
///
/// - Keys that are only written cause no conflict; of two such writes, the later commit counts.
///   [`guard`](Transaction::guard) makes a key or a range conflict without reading it.
/// - A range counts as read up to where its iterator got, or wholly, once it has ended.
/// - Keys read back after the transaction has put or deleted them are not read from the store.
/// - Reads of another keyspace go through a view of it, `transaction.keyspace(&users).get(key)`, as
///   those of a snapshot do; writes name it, `transaction.put_in(&users, key, value)`, as those of
///   a batch do.
/// - [`snapshot`](Transaction::snapshot) reads without consequence, and without own writes.
/// - Deadlines are judged by the time at which the transaction began. One that writes conflicts if
///   a value that it has read expires before the commit: read again, the key is absent. Run again
///   and again, a transaction that takes longer than the values that it reads live never commits.
/// - A transaction that only reads always commits. What it read may not survive a power cut yet;
///   sync before acting on it elsewhere. A [synced](WriteOptions::sync) commit makes durable all
///   that the transaction read.
///
/// Dropping a transaction discards its writes. While it lives, compactions keep what its snapshot
/// sees. It takes memory for its writes and for the keys that it has read.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// db.put("Ann", "5")?;
/// let mut transaction = db.begin();
/// let balance = transaction.get("Ann")?;
/// transaction.put("Bob", balance.as_deref().unwrap_or(b"0"));
/// transaction.delete("Ann");
/// transaction.commit()?;
/// assert_eq!(db.get("Bob")?.as_deref(), Some(&b"5"[..]));
/// # Ok(()) }
/// ```
pub struct Transaction {
    pinned: Pinned,
    /// Made when it is asked for.
    snapshot: OnceCell<Snapshot>,
    overlay: Box<Overlay>,
    /// What was guarded, which the commit asks for its deadlines. Empty where the snapshot sees
    /// none.
    guarded: Vec<(ReadIn, Guarded)>,
    /// The savepoints that were not taken back, with their numbers, in their order. No two of them
    /// at the same point.
    savepoints: RefCell<Vec<(u64, BatchMark)>>,
}

/// A transaction's view of one keyspace: it reads what the transaction reads there. See
/// [`Transaction::keyspace`].
#[derive(Clone)]
pub struct TransactionKeyspace<'t> {
    transaction: &'t Transaction,
    of: ReadIn,
}

enum Guarded {
    Key(Vec<u8>),
    Range(KeySpan<Vec<u8>>),
}

/// A point in a transaction to which its writes can be taken back; see
/// [`Transaction::savepoint`].
#[derive(Clone, Debug)]
pub struct Savepoint {
    /// Unique within the process.
    number: u64,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("snapshot", &self.pinned.seqno())
            .field("batch", &self.overlay.batch)
            .finish_non_exhaustive()
    }
}

impl Db {
    /// Begins a transaction.
    pub fn begin(&self) -> Transaction {
        Transaction::new(self.default_keyspace())
    }

    /// Runs `work` in a transaction and commits it. After a conflict, runs it again in a new one.
    ///
    /// `work` may thus run several times, and should change nothing but the transaction. An error
    /// that it returns ends the transaction without a commit, and is returned.
    ///
    /// Transactions that conflict repeatedly run one after the other. After 32 attempts the
    /// conflict is returned.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let items = db.keyspace("items")?;
    /// let count = db.transact(|tx| {
    ///     tx.put_in(&items, "apple", "red");
    ///     let mut count = 0;
    ///     for item in tx.keyspace(&items).iter() {
    ///         item?;
    ///         count += 1;
    ///     }
    ///     tx.put("item count", [count]);
    ///     Ok::<u8, tamis::Error>(count)
    /// })?;
    /// assert_eq!(count, 1);
    /// # Ok(()) }
    /// ```
    pub fn transact<R, E: From<Error>>(&self, work: impl FnMut(&mut Transaction) -> Result<R, E>) -> Result<R, E> {
        self.transact_with(WriteOptions::default(), work)
    }

    /// Runs `work` in a transaction and commits it under `options`; see [`transact`](Db::transact).
    pub fn transact_with<R, E: From<Error>>(
        &self,
        options: WriteOptions,
        mut work: impl FnMut(&mut Transaction) -> Result<R, E>,
    ) -> Result<R, E> {
        let store = self.store();
        run(self.default_keyspace(), options, |transaction| store.timed_closure("transact", || work(transaction)))
    }
}

/// Runs `work` in transactions until one commits. Returns the result of `work` in it.
fn run<R, E: From<Error>>(
    keyspace: &Keyspace,
    options: WriteOptions,
    mut work: impl FnMut(&mut Transaction) -> Result<R, E>,
) -> Result<R, E> {
    let (mut turn, mut attempt) = (None, 1);
    loop {
        keyspace.store().writer.retries().of_transaction(attempt, &mut turn);
        let mut transaction = Transaction::new(keyspace);
        let result = work(&mut transaction)?;
        match transaction.commit_with(options) {
            Err(Error::Conflict { .. }) if attempt < ATTEMPTS => attempt += 1,
            committed => return committed.map(|_| result).map_err(E::from),
        }
    }
}

impl Keyspace {
    /// Removes the entry with the least key, and returns it; `None` if there is none. Atomic: of
    /// several callers, each gets another entry. Fails with [`Error::Conflict`] after 32 attempts
    /// that met conflicts, like [`transact`](Db::transact).
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let queue = db.keyspace("queue")?;
    /// queue.put("1", "first")?;
    /// queue.put("2", "second")?;
    /// let (_, job) = queue.pop_first()?.expect("two jobs");
    /// assert_eq!(&job[..], b"first");
    /// # Ok(()) }
    /// ```
    pub fn pop_first(&self) -> Result<Option<(Value, Value)>> {
        self.pop_with(true, WriteOptions::default())
    }

    /// Removes the entry with the greatest key, and returns it; see
    /// [`pop_first`](Keyspace::pop_first).
    pub fn pop_last(&self) -> Result<Option<(Value, Value)>> {
        self.pop_with(false, WriteOptions::default())
    }

    /// Removes the first or the last entry under `options`.
    fn pop_with(&self, first: bool, options: WriteOptions) -> Result<Option<(Value, Value)>> {
        run(self, options, |transaction| transaction.pop_of(&read_in(self), first))
    }
}

impl Db {
    /// Removes the entry of the default keyspace with the least key, and returns it; see
    /// [`Keyspace::pop_first`].
    pub fn pop_first(&self) -> Result<Option<(Value, Value)>> {
        self.default_keyspace().pop_first()
    }

    /// Removes the entry of the default keyspace with the greatest key, and returns it; see
    /// [`Keyspace::pop_first`].
    pub fn pop_last(&self) -> Result<Option<(Value, Value)>> {
        self.default_keyspace().pop_last()
    }
}

impl Transaction {
    fn new(keyspace: &Keyspace) -> Transaction {
        let pinned = Pinned::new(&keyspace.handle);
        let overlay = Overlay::take(pinned.point().at);
        let savepoints = RefCell::default();
        Transaction { pinned, snapshot: OnceCell::new(), overlay, guarded: Vec::new(), savepoints }
    }

    fn store(&self) -> &Arc<Store> {
        self.pinned.store()
    }

    /// What the transaction sees without its own writes. Reads through it are not checked at the
    /// commit.
    pub fn snapshot(&self) -> &Snapshot {
        self.snapshot.get_or_init(|| Snapshot::of(&self.pinned))
    }

    /// The transaction's view of `keyspace`, to read there. Reads in a keyspace of another store
    /// fail, and so does the commit after them.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let stock = db.keyspace("stock")?;
    /// db.transact(|tx| {
    ///     if tx.keyspace(&stock).contains_key("apple")? {
    ///         tx.put_in(&stock, "apple", "two");
    ///     }
    ///     Ok::<_, tamis::Error>(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn keyspace(&self, keyspace: &Keyspace) -> TransactionKeyspace<'_> {
        TransactionKeyspace { transaction: self, of: self.of(keyspace) }
    }

    /// The keyspace of a read; no keyspace, if it is of another store.
    fn of(&self, keyspace: &Keyspace) -> ReadIn {
        let of = read_in(keyspace);
        if Arc::ptr_eq(keyspace.store(), self.store()) { of } else { ReadIn { keyspace: FOREIGN, ..of } }
    }

    /// The transaction and the keyspace that its own methods read.
    fn reads(&self) -> (&Transaction, &ReadIn) {
        static DEFAULT: ReadIn = ReadIn::DEFAULT;
        (self, &DEFAULT)
    }

    fn target<'a>(&'a self, of: &'a ReadIn) -> ReadTarget<'a> {
        ReadTarget { keyspace: of.keyspace, name: &of.name, snapshot: Some(self.pinned.point()) }
    }

    /// Returns the writes of the transaction to a key, if there are any. Notes that the key is
    /// read, unless they replace its value.
    fn own_or_note(&self, of: &ReadIn, key: &[u8], hash: KeyHash) -> Option<OwnWrite> {
        let own = self.overlay.get(of.keyspace, key);
        if own.as_ref().is_none_or(OwnWrite::needs_stored) {
            self.overlay.reads.borrow_mut().add_key(of, key, hash);
        }
        own
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::new(self.store().seed, key)
    }

    fn own_keyspace(&self, of: ReadIn) -> OwnKeyspace {
        let view = self.store().shape.view();
        let operator = view.tree(of.keyspace).and_then(|tree| tree.options.merge_operator.clone());
        OwnKeyspace { of, operator }
    }

    fn iter_of(&self, of: &ReadIn, range: KeySpan<Vec<u8>>) -> TransactionIter<'_> {
        let iter = self.store().iter(self.target(of), range.clone(), ReadOptions::default().mode());
        TransactionIter::new(&self.overlay, self.own_keyspace(of.clone()), range, iter)
    }

    /// The value of a key; its deadline goes to `deadline`.
    fn get_of(&self, of: &ReadIn, key: &[u8], deadline: &mut LeastDeadline) -> Result<Option<Value>> {
        let hash = self.hash(key);
        match self.own_or_note(of, key, hash) {
            None => self.get_stored(of, key, hash, deadline, |hit| hit.into_value()),
            Some(own) => self.get_own(of, key, hash, &own, deadline),
        }
    }

    /// [`Transaction::get_of`] of a key to which the transaction has written.
    #[cold]
    fn get_own(
        &self,
        of: &ReadIn,
        key: &[u8],
        hash: KeyHash,
        own: &OwnWrite,
        deadline: &mut LeastDeadline,
    ) -> Result<Option<Value>> {
        let stored = match own.needs_stored() {
            true => self.get_stored(of, key, hash, deadline, |hit| hit.into_value())?,
            false => None,
        };
        if stored.is_none() {
            *deadline = self.overlay.deadline(own);
        }
        self.overlay.value(own, &self.own_keyspace(of.clone()), key, stored.as_deref())
    }

    /// Reads a key in the snapshot, and notes the deadline of its value.
    fn get_stored<R>(
        &self,
        of: &ReadIn,
        key: &[u8],
        hash: KeyHash,
        deadline: &mut LeastDeadline,
        take: impl FnOnce(Hit<'_>) -> R,
    ) -> Result<Option<R>> {
        let mode = ReadOptions::default().mode();
        let found = self.store().get_hashed(self.target(of), key, || hash, mode, deadline, take);
        if deadline.0 != NEVER && found.is_ok() {
            self.overlay.reads.borrow_mut().add_deadline(of.keyspace, key, deadline.0);
        }
        found
    }

    fn contains_key_of(&self, of: &ReadIn, key: &[u8]) -> Result<bool> {
        let hash = self.hash(key);
        match self.own_or_note(of, key, hash) {
            Some(own) => Ok(self.overlay.is_value(&own)),
            None => Ok(self.get_stored(of, key, hash, &mut LeastDeadline::default(), |_| ())?.is_some()),
        }
    }

    /// Sets a key of the default keyspace to a value.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.overlay.batch.put(key, value);
    }

    /// Sets a key of `keyspace` to a value.
    pub fn put_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.overlay.batch.put_in(keyspace, key, value);
    }

    /// Sets a key of the default keyspace to a value until `deadline`; see
    /// [`Keyspace::put_with_expiry`].
    pub fn put_with_expiry(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, deadline: SystemTime) {
        self.need_time();
        self.overlay.batch.put_with_expiry(key, value, deadline);
    }

    /// Sets a key of `keyspace` to a value until `deadline`; see [`Keyspace::put_with_expiry`].
    pub fn put_with_expiry_in(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) {
        self.need_time();
        self.overlay.batch.put_with_expiry_in(keyspace, key, value, deadline);
    }

    /// Sets a key of the default keyspace to a value for `ttl` from this call on; see
    /// [`Keyspace::put_with_ttl`].
    pub fn put_with_ttl(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) {
        let deadline = self.deadline_after(ttl);
        self.overlay.batch.put_expiring_raw(0, key.as_ref(), value.as_ref(), deadline);
    }

    /// Sets a key of `keyspace` to a value for `ttl` from this call on; see
    /// [`Keyspace::put_with_ttl`].
    pub fn put_with_ttl_in(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) {
        let deadline = self.deadline_after(ttl);
        self.overlay.batch.set_origin(keyspace.store().gate.id());
        self.overlay.batch.put_expiring_raw(keyspace.id, key.as_ref(), value.as_ref(), deadline);
    }

    fn deadline_after(&mut self, ttl: Duration) -> Deadline {
        self.need_time();
        deadline_after(self.store().clock.now(), ttl)
    }

    /// Reads the clock for the transaction's own deadlines, if nothing had one when it began.
    fn need_time(&mut self) {
        if self.overlay.at == NEVER {
            self.overlay.at = self.store().clock.now();
        }
    }

    /// Deletes a range of keys of the default keyspace. What the transaction puts there later
    /// stays. The range does not count as read.
    pub fn delete_range(&mut self, range: impl KeyRange) {
        self.overlay.batch.delete_range(range);
    }

    /// Deletes a range of keys of `keyspace`; see [`delete_range`](Transaction::delete_range).
    pub fn delete_range_in(&mut self, keyspace: &Keyspace, range: impl KeyRange) {
        self.overlay.batch.delete_range_in(keyspace, range);
    }

    /// Deletes the keys of the default keyspace that begin with `prefix`.
    pub fn delete_prefix(&mut self, prefix: impl AsRef<[u8]>) {
        self.overlay.batch.delete_prefix(prefix);
    }

    /// Deletes the keys of `keyspace` that begin with `prefix`.
    pub fn delete_prefix_in(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) {
        self.overlay.batch.delete_prefix_in(keyspace, prefix);
    }

    /// Merges an operand into a key of the default keyspace; see [`operator`](crate::operator). The
    /// key counts as read only if the transaction reads it.
    pub fn merge(&mut self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        self.overlay.batch.merge(key, operand);
    }

    /// Merges an operand into a key of `keyspace`; see [`merge`](Transaction::merge).
    pub fn merge_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        self.overlay.batch.merge_in(keyspace, key, operand);
    }

    /// Changes a key of the default keyspace in a way that depends on its value; see
    /// [`Db::update`]. `change` is called once, and [`Updated::seqno`] is `None`: the commit has
    /// one.
    pub fn update(&mut self, key: impl AsRef<[u8]>, change: impl FnOnce(Option<&[u8]>) -> Change) -> Result<Updated> {
        self.update_of(&ReadIn::DEFAULT, key.as_ref(), change)
    }

    /// Changes a key of `keyspace` in a way that depends on its value; see
    /// [`update`](Transaction::update).
    pub fn update_in(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Change,
    ) -> Result<Updated> {
        self.update_of(&self.of(keyspace), key.as_ref(), change)
    }

    fn update_of(&mut self, of: &ReadIn, key: &[u8], change: impl FnOnce(Option<&[u8]>) -> Change) -> Result<Updated> {
        let before = self.get_of(of, key, &mut LeastDeadline::default())?;
        let after = match change(before.as_deref()) {
            Change::Keep => before.clone(),
            Change::Put(value) => {
                self.own_batch(of).put_raw(of.keyspace, key, &value);
                Some(value.into())
            }
            Change::Delete => {
                self.own_batch(of).delete_raw(of.keyspace, key);
                None
            }
        };
        Ok(Updated { before, after, seqno: None })
    }

    /// Removes the entry of the default keyspace with the least key, and returns it; `None` if
    /// there is none.
    pub fn pop_first(&mut self) -> Result<Option<(Value, Value)>> {
        self.pop_of(&ReadIn::DEFAULT, true)
    }

    /// Removes the entry of `keyspace` with the least key, and returns it.
    pub fn pop_first_in(&mut self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        self.pop_of(&self.of(keyspace), true)
    }

    /// Removes the entry of the default keyspace with the greatest key, and returns it; `None` if
    /// there is none.
    pub fn pop_last(&mut self) -> Result<Option<(Value, Value)>> {
        self.pop_of(&ReadIn::DEFAULT, false)
    }

    /// Removes the entry of `keyspace` with the greatest key, and returns it.
    pub fn pop_last_in(&mut self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        self.pop_of(&self.of(keyspace), false)
    }

    fn pop_of(&mut self, of: &ReadIn, first: bool) -> Result<Option<(Value, Value)>> {
        let entry = {
            let mut entries = self.iter_of(of, KeySpan::of((..).into_bounds()));
            if first { entries.next() } else { entries.next_back() }
        };
        let entry = entry.transpose()?;
        if let Some((key, _)) = &entry {
            self.own_batch(of).delete_raw(of.keyspace, key);
            self.overlay.note_emptied(of.keyspace, key, first);
        }
        Ok(entry)
    }

    /// The batch, for a write to a keyspace of this store.
    fn own_batch(&mut self, of: &ReadIn) -> &mut WriteBatch {
        if of.keyspace != ReadIn::DEFAULT.keyspace {
            let origin = self.store().gate.id();
            self.overlay.batch.set_origin(origin);
        }
        &mut self.overlay.batch
    }

    /// Deletes a key of the default keyspace.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.overlay.batch.delete(key);
    }

    /// Deletes a key of `keyspace`.
    pub fn delete_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.overlay.batch.delete_in(keyspace, key);
    }

    /// Makes a key of the default keyspace conflict as if it had been read. If the store has values
    /// that expire, the commit reads it, to learn whether it has expired meanwhile.
    pub fn guard(&mut self, key: impl AsRef<[u8]>) {
        self.guard_key(ReadIn::DEFAULT, key.as_ref());
    }

    /// Makes a key of `keyspace` conflict as if it had been read; see
    /// [`guard`](Transaction::guard).
    pub fn guard_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.overlay.batch.set_origin(keyspace.store().gate.id());
        self.guard_key(read_in(keyspace), key.as_ref());
    }

    /// Makes a range of keys of the default keyspace conflict as if it had been read. If the store
    /// has values that expire, the commit reads the range.
    pub fn guard_range(&mut self, range: impl KeyRange) {
        self.guard_span(ReadIn::DEFAULT, KeySpan::of(range.into_bounds()));
    }

    /// Makes a range of keys of `keyspace` conflict as if it had been read; see
    /// [`guard_range`](Transaction::guard_range).
    pub fn guard_range_in(&mut self, keyspace: &Keyspace, range: impl KeyRange) {
        self.overlay.batch.set_origin(keyspace.store().gate.id());
        self.guard_span(read_in(keyspace), KeySpan::of(range.into_bounds()));
    }

    fn guard_key(&mut self, of: ReadIn, key: &[u8]) {
        let hash = self.hash(key);
        self.overlay.reads.get_mut().add_key(&of, key, hash);
        if self.pinned.point().at != NEVER {
            self.guarded.push((of, Guarded::Key(key.to_vec())));
        }
    }

    fn guard_span(&mut self, of: ReadIn, span: KeySpan<Vec<u8>>) {
        self.overlay.reads.get_mut().add_range(of.clone(), span.clone());
        if self.pinned.point().at != NEVER {
            self.guarded.push((of, Guarded::Range(span)));
        }
    }

    /// Notes the deadlines of what is guarded, in the snapshot.
    fn note_guarded(&self) -> Result<()> {
        for (of, guarded) in &self.guarded {
            let target = self.target(of);
            let span = match guarded {
                Guarded::Key(key) => {
                    self.get_stored(of, key, self.hash(key), &mut LeastDeadline::default(), |_| ())?;
                    continue;
                }
                Guarded::Range(span) => span,
            };
            let mut keys = self.store().iter(target, span.clone(), ReadOptions::default().keys_only());
            let note = |cursor: &Cursor| {
                let (key, deadline) = (cursor.key()?, cursor.expiry());
                if let Some(deadline) = deadline {
                    self.overlay.reads.borrow_mut().add_deadline(of.keyspace, key, deadline);
                }
                Some(())
            };
            while let Some(step) = keys.step(true, note) {
                step?;
            }
        }
        Ok(())
    }

    /// Marks a point to which [`rollback_to`](Transaction::rollback_to) takes back later writes.
    pub fn savepoint(&self) -> Savepoint {
        static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
        let (mut savepoints, mark) = (self.savepoints.borrow_mut(), self.overlay.batch.mark());
        if let Some(&(number, _)) = savepoints.last().filter(|(_, last)| *last == mark) {
            return Savepoint { number };
        }
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        savepoints.push((number, mark));
        Savepoint { number }
    }

    /// Takes back all writes since `savepoint`, and the savepoints made after them. What was read
    /// since still counts as read: it may have decided what happens next.
    ///
    /// Fails if the savepoint is of another transaction, or was itself taken back.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        let savepoints = self.savepoints.get_mut();
        let Ok(at) = savepoints.binary_search_by_key(&savepoint.number, |(number, _)| *number) else {
            return Err(Error::invalid("the savepoint is not one of this transaction, or was rolled back"));
        };
        savepoints.truncate(at + 1);
        self.overlay.rewind(&savepoints[at].1);
        Ok(())
    }

    /// Commits the transaction. Returns the sequence number of its last write; if it wrote nothing,
    /// the one it read at.
    ///
    /// Fails with [`Error::Conflict`] if it wrote, and what it read was written meanwhile or has
    /// expired; nothing is written then. It also does if memtables are sealed, or tables ingested,
    /// during each of 64 attempts to check that. After any other error the writes may be present on
    /// reopening, but never in part.
    pub fn commit(self) -> Result<SeqNo> {
        self.commit_with(WriteOptions::default())
    }

    /// Commits the transaction under `options`; see [`commit`](Transaction::commit).
    pub fn commit_with(self, options: WriteOptions) -> Result<SeqNo> {
        let (store, since) = (self.pinned.store(), self.pinned.seqno());
        if self.overlay.unnoted.get() > 0 {
            return Err(Error::invalid("an iterator of the transaction was leaked: what it read is not known"));
        }
        if !self.overlay.batch.is_empty() && !self.guarded.is_empty() {
            self.overlay.batch.validate(store.gate.id())?;
            self.note_guarded()?;
        }
        let mut overlay = self.overlay;
        let Overlay { batch, reads, .. } = &mut *overlay;
        let reads = reads.get_mut();
        if batch.is_empty() {
            // Also in a store that takes no writes.
            store.gate.check_open()?;
            batch.validate(store.gate.id())?;
            if options.sync {
                store.sync()?;
            }
            return Ok(since);
        }
        if reads.is_empty() {
            return store.write(std::mem::take(batch), options);
        }
        if !reads.has_few_keys() {
            reads.sort();
        }
        let committed = store.write_if_unchanged(batch, options, reads, since);
        overlay.give_back();
        committed
    }
}

impl<'t> TransactionKeyspace<'t> {
    /// The transaction and the keyspace that is read.
    fn reads(&self) -> (&'t Transaction, &ReadIn) {
        (self.transaction, &self.of)
    }
}

transaction_reads!(self, Transaction [], ['t]);
transaction_reads!(self, TransactionKeyspace ['t], []);

fn read_in(keyspace: &Keyspace) -> ReadIn {
    ReadIn { keyspace: keyspace.id, name: KeyspaceName::new(keyspace.id, &keyspace.name) }
}
