//! The change feed: batches in the order of their numbers, read from the log files.
//!
//! A reader pulls. It reads log files by position, up to the length that the writer has published
//! (`write::log::LogTail`), and gives out what its bound covers: by default what is durable, so
//! that a follower never has what its source may lose. Writers do not know readers; they pay for
//! one load while nobody waits. A reader that falls behind costs disk space, up to a limit, and
//! nothing else.
//!
//! The bound is read before the length: everything up to it lies before the length. Both are read
//! again only when all up to the bound has been given out: their cache lines change with every
//! write, and a reader that took them for each batch cost the writers 6 % and itself a third of its
//! speed. A log ends where the next one begins. If it ends earlier, numbers are missing: an error,
//! never an end.
//!
//! While a reader of durable changes waits for unsynced ones, the store is synced every 5 ms
//! (`syncer`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

mod batch;
mod syncer;

pub use batch::{BatchOperation, ChangeBatch, IngestedTable, IngestedTables, Operation, OperationKind};

use self::syncer::Syncer;
use super::snapshot::Snapshot;
use super::store::Store;
use super::write::logs::{LogPart, PinnedFrom, survey};
use super::{Db, StoreHandle};
use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::key::SeqNo;
use crate::log::reader::{End, LogReader, Step};
use crate::options::KeepLog;
use crate::sync::atomic::Ordering;
use crate::sync::{thread, time};
use crate::tree::manifest;
use crate::vfs::store_files;

/// A reader that has just caught up looks again after this time, before it asks to be woken: waking
/// it for each write would cost the writers a system call each.
const PAUSE: Duration = Duration::from_millis(1);

/// How often a read-only store looks again for its logs after an error.
const FIND_RETRIES: usize = 10;

/// A claim to the log: what was written after [`seqno`](LogPin::seqno) can be read by
/// [`Db::changes_since`], also later.
///
/// It is owned, keeps the store open, and lasts until it is dropped. It does not outlive the
/// process; for that there is [`Options::keep_log`](crate::Options::keep_log). Once more
/// is kept than [`Options::max_pinned_log`](crate::Options::max_pinned_log) allows, in bytes or in
/// files, it is revoked, and the log files are removed.
pub struct LogPin {
    handle: Arc<StoreHandle>,
    pin: Arc<PinnedFrom>,
}

impl LogPin {
    fn new(handle: &Arc<StoreHandle>, seqno: SeqNo) -> Result<LogPin> {
        match handle.store.gate.is_read_only() {
            true => Err(Error::ReadOnly(handle.store.dir().to_owned())),
            false => LogPin::of_known_logs(handle, seqno),
        }
    }

    fn of_known_logs(handle: &Arc<StoreHandle>, seqno: SeqNo) -> Result<LogPin> {
        let store = &handle.store;
        store.gate.check_open()?;
        let visible = store.sequence.visible();
        if seqno > visible {
            return Err(Error::Diverged { since: seqno, last: visible });
        }
        match store.writer.logs().pin(seqno, store.sequence.logged()) {
            Ok(pin) => Ok(LogPin { handle: Arc::clone(handle), pin }),
            Err(oldest) => Err(Error::LogGone { wanted: seqno + 1, oldest }),
        }
    }

    /// Changes after this number are kept.
    pub fn seqno(&self) -> SeqNo {
        self.pin.seqno.load(Ordering::Relaxed)
    }

    /// Gives up the changes up to `seqno`. The next flush removes what nobody needs any more. A
    /// number that is not greater has no effect.
    pub fn advance(&self, seqno: SeqNo) {
        self.pin.seqno.fetch_max(seqno, Ordering::Relaxed);
    }

    /// Whether the pin has exceeded its limit and keeps nothing any more.
    pub fn is_revoked(&self) -> bool {
        self.pin.is_revoked.load(Ordering::Relaxed)
    }
}

impl Drop for LogPin {
    fn drop(&mut self) {
        let store = &self.handle.store;
        if !store.gate.is_forked() {
            store.writer.logs().unpin(&self.pin);
        }
    }
}

impl fmt::Debug for LogPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogPin").field("seqno", &self.seqno()).field("is_revoked", &self.is_revoked()).finish()
    }
}

/// The names of keyspaces by id, as far as they were needed; `None` for one that was dropped.
type Names = BTreeMap<u32, Option<Arc<str>>>;

/// The changes of a store, batch by batch, in the order in which they were written.
///
/// [`next_timeout`](Changes::next_timeout) waits for the next batch. As an iterator it does not
/// wait: it ends when it has caught up, and goes on when there is more.
///
/// It gives out what is durable, unless it is [`visible`](Changes::visible). A follower of durable
/// changes stays a prefix of its source whatever happens to either.
///
/// It holds a [`LogPin`]: the log files that it has not read are kept. If it falls too far behind,
/// it fails with [`Error::LogGone`].
///
/// When the store is closed, it fails with [`Error::Closed`], and what it has not read is read
/// after the next opening, if [`Options::keep_log`](crate::Options::keep_log) keeps it. A store
/// that takes no more writes after a failure gives out what it may, then fails with
/// [`Error::Poisoned`].
///
/// Creating, renaming and dropping keyspaces are no changes of this feed, and neither is what a
/// compaction filter drops or replaces. A batch has the names that its keyspaces have when the feed
/// gives it out. A follower therefore keeps the entries of a dropped keyspace. It must
/// learn of the drop by other means and drop its own keyspace, before it applies changes of a new
/// keyspace of that name. An application that drops no keyspaces, or gives no name twice, need not
/// care.
pub struct Changes {
    /// Started when the reader first waits for unsynced writes. Dropped before the store may close.
    syncer: Option<Syncer>,
    pin: LogPin,
    /// Number of the next operation.
    next: SeqNo,
    /// What may be given out, as it was when the reader last looked. It lies before the limit of
    /// the open log's reader, and all of it is in the known logs.
    bound: SeqNo,
    is_visible: bool,
    log: Option<OpenLog>,
    names: Arc<Names>,
    /// Whether there was a batch since the last wait.
    is_busy: bool,
    has_failed: bool,
}

struct OpenLog {
    part: LogPart,
    reader: LogReader,
}

impl OpenLog {
    /// The log with more in it, as `part` says; `None` if that is another log.
    fn renewed(mut self, part: LogPart) -> Result<Option<OpenLog>> {
        if part.number != self.part.number {
            return Ok(None);
        }
        self.reader.look_again()?;
        self.part = part;
        Ok(Some(self))
    }
}

impl Changes {
    fn new(handle: &Arc<StoreHandle>, since: SeqNo) -> Result<Changes> {
        let (syncer, log, names) = Default::default();
        let (store, mut bound) = (&handle.store, 0);
        let is_read_only = store.gate.is_read_only();
        if is_read_only {
            store.gate.check_open()?;
            // Before the logs: what a refresh adds meanwhile is looked for again.
            bound = store.sequence.logged_and_visible();
            find_logs(store)?;
        }
        let pin = LogPin::of_known_logs(handle, since)?;
        let next = since + 1;
        let is_visible = is_read_only;
        Ok(Changes { syncer, pin, next, bound, is_visible, log, names, is_busy: false, has_failed: false })
    }

    /// Also gives out what the store may lose in a power cut. The feed is then ahead of
    /// [`Db::synced_seqno`], and no sync is made for it.
    ///
    /// After a power cut the numbers of lost writes are given out again. A follower that has
    /// applied them differs from its source from then on, and nothing tells it so.
    pub fn visible(mut self) -> Changes {
        self.is_visible = true;
        self
    }

    /// Number of the last operation that was given out. After a restart,
    /// [`Db::changes_since`] with this number continues.
    pub fn seqno(&self) -> SeqNo {
        self.next - 1
    }

    fn store(&self) -> &Arc<Store> {
        &self.pin.handle.store
    }

    /// Returns the next batch, or waits for it, for about `timeout` at most. `None` after that
    /// time.
    ///
    /// A store that is written without syncs is synced every 5 ms while a durable reader waits, by
    /// a thread of this value, so that the reader lags by that and one or two syncs. A timeout of
    /// zero is no wait and has no sync made: the reader then sees what others sync.
    ///
    /// Fails with [`Error::Closed`] when the store is closed, and with [`Error::Poisoned`] when
    /// nothing more can come because the store takes no more writes.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<ChangeBatch>> {
        if let Some(batch) = self.poll()? {
            return Ok(Some(batch));
        }
        let deadline = time::now().checked_add(timeout);
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(time::now()));
            if left.is_zero() {
                return Ok(None);
            }
            self.wait(left)?;
            if let Some(batch) = self.poll()? {
                return Ok(Some(batch));
            }
        }
    }

    /// Waits some time for the next batch, or has it made durable.
    fn wait(&mut self, left: Duration) -> Result<()> {
        let store = Arc::clone(self.store());
        let is_written = || store.sequence.logged_and_visible() >= self.next;
        if !self.is_visible && is_written() {
            if self.syncer.is_none() {
                self.syncer = Syncer::start(&store);
            }
            return match &self.syncer {
                Some(syncer) => syncer.wait(left, || store.sequence.durable() >= self.next),
                None => store.sync_through(store.sequence.logged()),
            };
        }
        if std::mem::take(&mut self.is_busy) {
            thread::sleep(PAUSE.min(left));
        } else {
            store.writer.await_write(left, is_written);
        }
        Ok(())
    }

    /// Returns the next batch if the bound covers it.
    fn poll(&mut self) -> Result<Option<ChangeBatch>> {
        let store = &self.pin.handle.store;
        store.gate.check_open()?;
        if self.next > self.bound {
            // Before the bound: nothing is added to it after that.
            let unpoisoned = store.gate.check_poison();
            // What is given out is visible: for an ingest, a follower takes a snapshot that has it.
            let mut bound = store.sequence.logged_and_visible();
            if !self.is_visible {
                bound = bound.min(store.sequence.durable());
            }
            if store.gate.is_read_only() && self.bound < bound {
                // A refresh has found more in the logs. If this fails, it is done again.
                find_logs(store)?;
                self.log = self
                    .log
                    .take()
                    .and_then(|log| log.renewed(store.writer.logs().part(self.next)?).transpose())
                    .transpose()?;
            }
            self.bound = bound;
            if self.next > self.bound {
                return unpoisoned.map(|()| None);
            }
            if let Some(OpenLog { part, reader }) = &mut self.log {
                reader.limit(part.tail.len());
            }
        }
        if let Some(syncer) = &self.syncer {
            syncer.keep_going();
        }
        loop {
            if let Some(batch) = self.read()? {
                // Nobody else changes it.
                self.pin.pin.seqno.store(self.seqno(), Ordering::Relaxed);
                self.is_busy = true;
                return Ok(Some(batch));
            }
        }
    }

    /// Reads the next record. `None` if it is not a batch to give out, or if the log ends. After an
    /// error the next call begins with the same record.
    fn read(&mut self) -> Result<Option<ChangeBatch>> {
        let batch = self.read_record();
        if batch.is_err() {
            self.log = None;
        }
        batch
    }

    fn read_record(&mut self) -> Result<Option<ChangeBatch>> {
        let store = &*self.pin.handle.store;
        let OpenLog { part, reader } = match &mut self.log {
            Some(log) => log,
            none => none.insert(open_log(store, &self.pin, self.next)?),
        };
        if reader.next() >= part.end {
            self.log = None;
            return Ok(None);
        }
        let end = match reader.read()? {
            Step::Record(record) => {
                let after = record.first + u64::from(record.count);
                if after <= self.next {
                    return Ok(None);
                }
                if record.first < self.next && batch::has_operation_before(&record, self.next) {
                    return Err(Error::invalid(format_args!(
                        "number {} is within the batch from {} to {}: changes are asked for since the end of a batch",
                        self.next - 1,
                        record.first,
                        after - 1
                    )));
                }
                if record.first > self.next {
                    let rule =
                        format!("the record begins with entry {}, and entry {} is missing", record.first, self.next);
                    return Err(Error::corruption(record.file, record.offset, rule));
                }
                let batch = ChangeBatch::new(&record, &mut self.names, &store.shape.view())?;
                self.next = after;
                return Ok(Some(batch));
            }
            Step::End(end) => end,
        };
        match store.writer.logs().part(self.next) {
            // The log was sealed, and this one follows.
            Some(later) if later.number != part.number => self.log = None,
            Some(_) if !part.is_found => {
                let reason = match &end {
                    End::Clean => "the log ends here",
                    End::Bad { reason, .. } => reason,
                };
                let rule = format!("{reason}, and entry {} is missing", self.next);
                return Err(Error::corruption(reader.path(), reader.offset(), rule));
            }
            _ => return Err(log_gone(store, self.next)),
        }
        Ok(None)
    }
}

/// Opens the log that holds `next`, at or before it.
fn open_log(store: &Store, pin: &LogPin, next: SeqNo) -> Result<OpenLog> {
    let part = store.writer.logs().part(next).ok_or_else(|| log_gone(store, next))?;
    let path = FileKind::Wal(part.number).path(store.dir());
    let reader = LogReader::open(store.fs(), &path, Magic::Wal, part.number);
    // Without a pin in the process that writes, a flush may have removed the file meanwhile.
    let may_be_gone = pin.is_revoked() || store.gate.is_read_only();
    let mut reader = reader.map_err(|error| if may_be_gone { log_gone(store, next) } else { error })?;
    if let Err(rule) = reader.header() {
        return Err(Error::corruption(&path, 0, rule));
    }
    if let Some((first, offset)) = part.tail.mark_before(next) {
        reader.skip_to(first, offset);
    }
    reader.limit(part.tail.len());
    Ok(OpenLog { part, reader })
}

/// Finds the logs of a store that is open read-only. Another process may write and remove logs
/// meanwhile: only damage fails each time.
fn find_logs(store: &Store) -> Result<()> {
    let find = || {
        let (fs, dir) = (store.fs(), store.dir());
        let min_log = manifest::load(fs, dir)?.map_or(0, |loaded| loaded.state.min_log);
        let files = store_files(fs, dir).during("list", dir)?;
        let numbers =
            files.iter().filter_map(|kind| if let FileKind::Wal(number) = kind { Some(*number) } else { None });
        survey(fs, dir, &numbers.collect::<Vec<_>>(), min_log, store.sequence.logged(), None, KeepLog::ALL)
    };
    let mut found = find();
    for _ in 0..FIND_RETRIES {
        if found.is_err() {
            found = find();
        }
    }
    store.writer.logs().replace(found?);
    Ok(())
}

/// The error for a log that no longer has `wanted`.
fn log_gone(store: &Store, wanted: SeqNo) -> Error {
    let oldest = store.writer.logs().next_beginning(wanted).unwrap_or_else(|| store.sequence.logged() + 1);
    Error::LogGone { wanted, oldest }
}

impl Iterator for Changes {
    type Item = Result<ChangeBatch>;

    /// Returns the next batch. `None` if there is none yet, and for ever after an error.
    fn next(&mut self) -> Option<Result<ChangeBatch>> {
        if self.has_failed {
            return None;
        }
        let next = self.poll();
        self.has_failed = next.is_err();
        next.transpose()
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("seqno", &self.seqno()).field("is_visible", &self.is_visible).finish()
    }
}

impl Db {
    /// The changes after number `since`, in order: all writes to all keyspaces, batch by batch.
    ///
    /// They are read from the log. Ordinarily it has what is not in tables yet;
    /// [`Options::keep_log`](crate::Options::keep_log) keeps more, and so does a
    /// [`LogPin`]. Fails with [`Error::LogGone`] if changes after `since` are no longer there, and
    /// with [`Error::Diverged`] if `since` is beyond the last write: the reader then has another
    /// history than this store. `since` must be the end of a batch, as
    /// [`ChangeBatch::last_seqno`] or a write has returned it, or 0.
    ///
    /// A store that is open read-only gives out what it found in the logs when it was opened or
    /// [refreshed](Db::refresh) last. It keeps no log: the process that writes may remove one, and
    /// then reading fails with [`Error::LogGone`].
    ///
    /// [`Db::follow`] begins with a copy of the store.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use std::time::Duration;
    /// use tamis::{OperationKind, WriteBatch};
    ///
    /// let mut changes = db.changes_since(db.last_seqno())?;
    /// let users = db.keyspace("users")?;
    /// let mut batch = WriteBatch::new();
    /// batch.put_in(&users, "id7", "Ann");
    /// batch.delete("apple");
    /// let last = db.write(batch)?;
    ///
    /// let batch = changes.next_timeout(Duration::from_secs(10))?.expect("something was written");
    /// assert_eq!(batch.last_seqno(), last);
    /// for operation in batch.operations() {
    ///     match operation.kind {
    ///         OperationKind::Put { key, value } => println!("{key:?} is {value:?}"),
    ///         OperationKind::Merge { key, operand } => println!("{key:?} changes by {operand:?}"),
    ///         OperationKind::Delete { key } => println!("{key:?} is gone"),
    ///         _ => println!("an operation that this program does not know"),
    ///     }
    /// }
    /// assert!(changes.next().is_none(), "nothing else was written");
    /// # Ok(()) }
    /// ```
    pub fn changes_since(&self, since: SeqNo) -> Result<Changes> {
        Changes::new(&self.default_keyspace().handle, since)
    }

    /// A snapshot of the store, and the changes after it. Whoever copies the snapshot and then
    /// applies the changes, has a copy of the store that stays one. What the snapshot sees is made
    /// durable first.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// # let copy = tamis::Options::new().open_in_memory()?;
    /// # use std::time::Duration;
    /// db.put("apple", "1")?;
    /// let (snapshot, mut changes) = db.follow()?;
    /// for entry in snapshot.iter() {
    ///     let (key, value) = entry?;
    ///     copy.put(key, value)?;
    /// }
    /// db.put("pear", "2")?;
    /// while changes.seqno() < db.last_seqno() {
    ///     if let Some(batch) = changes.next_timeout(Duration::from_secs(1))? {
    ///         copy.write(batch.to_write_batch(&copy)?)?;
    ///     }
    /// }
    /// assert_eq!(copy.get("pear")?.as_deref(), Some(&b"2"[..]));
    /// # Ok(()) }
    /// ```
    pub fn follow(&self) -> Result<(Snapshot, Changes)> {
        let handle = &self.default_keyspace().handle;
        // Before the snapshot: the log that holds what follows it must stay.
        let pin = LogPin::new(handle, self.last_seqno())?;
        let snapshot = self.snapshot();
        handle.store.sync()?;
        let changes = Changes::new(handle, snapshot.seqno())?;
        drop(pin);
        Ok((snapshot, changes))
    }

    /// Keeps the log after number `since` until the result is dropped. Fails like
    /// [`Db::changes_since`].
    pub fn pin_log(&self, since: SeqNo) -> Result<LogPin> {
        LogPin::new(&self.default_keyspace().handle, since)
    }
}
