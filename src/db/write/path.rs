//! The write path: batch, WAL, memtable.
//!
//! Group commit: the thread that holds the commit lock also commits the writers that queued
//! meanwhile. The whole group is one append to the log (large values have their own), then goes
//! into the memtable; then the last sequence number is published. There is no log thread and no
//! hand-over per write, and a write that does not queue allocates nothing. Syncs run outside of the
//! lock, so that the next group forms meanwhile (see `sync`).
//!
//! No thread waits while it holds the lock (see `locks`). A writer that finds no room leaves its
//! write in the queue, releases the lock, waits, and looks again.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::commit::{Commit, Encoded, GroupLen, GroupTotals, Logging, Outcome, QueuedWrite};
use super::stalls::Cause;
use super::turns::Lead;
use crate::batch::{BatchReader, LoggedPart, Op, Write, WriteBatch, encode_op};
use crate::db::locks::{RankedGuard, check_may_wait};
use crate::db::store::Store;
use crate::db::transaction::premise::{Premise, Refusal};
use crate::error::{Error, IoContext, Result};
use crate::filter::KeyHash;
use crate::format::deadline::{Deadline, deadline_after, deadline_at};
use crate::format::header::{FileHeader, features};
use crate::format::key::{MAX_SEQNO, SeqNo};
use crate::format::record::MAX_RECORD_HEADER_LEN;
use crate::format::span::KeySpan;
use crate::log::LogWriter;
use crate::log::wal;
use crate::operator::Fold;
use crate::sorted::memtable::{Memtable, MemtableWriter, any_in};
use crate::sync::atomic::Ordering;
use crate::sync::{self, Mutex, thread};
use crate::tree::insert::apply;

/// Upper bound of the size of a file header and a sync marker.
const MARKER_SPACE: u64 = 4 << 10;

/// Bytes reserved for a new log if the disk has the space.
const FIRST_RESERVATION: u64 = 256 << 10;

/// A thread keeps its encoding buffer up to this capacity.
const KEPT_LEN: usize = 64 << 10;

/// Attempts to take the commit lock, once it was taken, before a writer queues. In a model, each is
/// a choice of the scheduler.
const LOOKS: u32 = if cfg!(shuttle) { 1 } else { 11 };

/// The longest pause between two of them, in steps of a waiting loop: some microseconds, and all
/// pauses together at most 50.
const LONGEST_PAUSE: u32 = 128;

/// How a write is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Return only when this write and all earlier ones would survive a power cut. Default: false.
    /// An unsynced write has been handed to the operating system: it survives the end of the
    /// process for any reason.
    pub sync: bool,
    /// When puts without a deadline of their own expire, including those of batches, transactions,
    /// updates and swaps. Merges never expire. Default: [`Expiry::Default`].
    pub expiry: Expiry,
}

/// When a put expires; see [`put_with_expiry`](crate::Keyspace::put_with_expiry).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// As [`KeyspaceOptions::ttl`](crate::KeyspaceOptions::ttl) says; never if the keyspace has no
    /// ttl.
    #[default]
    Default,
    /// Never, even if the keyspace has a ttl.
    Never,
    /// At this time.
    At(SystemTime),
    /// This long after the write, rounded up to whole milliseconds; 0 makes the put a delete.
    After(Duration),
}

impl WriteOptions {
    /// The defaults.
    pub const fn new() -> WriteOptions {
        WriteOptions { sync: false, expiry: Expiry::Default }
    }

    /// Sets when puts without a deadline of their own expire. A single merge with [`Expiry::At`] is
    /// refused, and so is one with [`Expiry::After`]; the merges of a batch ignore both.
    pub const fn expiry(mut self, expiry: Expiry) -> Self {
        self.expiry = expiry;
        self
    }

    /// Sets the time at which puts without a deadline of their own expire; see
    /// [`expiry`](WriteOptions::expiry).
    pub const fn expires_at(self, deadline: SystemTime) -> Self {
        self.expiry(Expiry::At(deadline))
    }

    /// Sets how long puts without a deadline of their own live, from the write on; see
    /// [`expiry`](WriteOptions::expiry).
    pub const fn expires_after(self, ttl: Duration) -> Self {
        self.expiry(Expiry::After(ttl))
    }

    /// Sets whether the write returns only when it would survive a power cut.
    pub const fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }
}

/// Poisons the store when it is dropped.
struct Unfinished<'a>(&'a Store);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.poison(Error::invalid("a write came to the log and not to the memtable; this is a bug in tamis"));
    }
}

thread_local! {
    /// Buffer in which a thread encodes single operations.
    static ENCODED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `write` with the operation and its encoding, in the thread's buffer.
#[inline(always)]
pub(crate) fn with_encoded<R>(
    keyspace: u32,
    key: &[u8],
    operation: Write<'_>,
    write: impl FnOnce(&[u8], Op<'_>) -> Result<R>,
) -> Result<R> {
    // Taken, not borrowed: a nested write, as by a listener, finds an empty one. In an ending
    // thread there is none.
    let mut payload = ENCODED.try_with(Cell::take).unwrap_or_default();
    payload.clear();
    let result = encode_op(&mut payload, keyspace, key, operation).and_then(|value_start| {
        let value = payload.get(value_start..).unwrap_or_default();
        write(&payload, Op { index: 0, keyspace, kind: operation.kind(), key, value })
    });
    if payload.capacity() <= KEPT_LEN {
        let _ = ENCODED.try_with(|encoded| encoded.set(payload));
    }
    result
}

fn unlogged_sync() -> Error {
    Error::invalid("a write to a keyspace without a log cannot be synced; Db::flush makes it durable")
}

impl Store {
    /// Writes a batch; returns the sequence number of its last operation.
    pub(crate) fn write(self: &Arc<Self>, batch: WriteBatch, options: WriteOptions) -> Result<SeqNo> {
        let batch = self.with_deadlines(&batch, options).unwrap_or(batch);
        let as_of = self.writer.keyspaces_as_of();
        self.check_batch(&batch)?;
        if batch.is_empty() {
            if options.sync {
                self.sync()?;
            }
            return Ok(self.sequence.visible());
        }
        let logged = self.logged_part(&batch, options, as_of)?;
        self.write_unconditionally(Encoded::of(batch, logged, options.sync))
    }

    /// What the log stores of a batch, if not all. Fails if that is nothing and the batch is to be
    /// synced. `as_of` was [noted](super::Writer::keyspaces_as_of) before its keyspaces were
    /// checked.
    pub(crate) fn logged_part(&self, batch: &WriteBatch, options: WriteOptions, as_of: u64) -> Result<Logging> {
        if !self.writer.has_unlogged.load(Ordering::Acquire) {
            return Ok(Logging { part: None, as_of });
        }
        let view = self.shape.view();
        let logged = batch.logged_part(|keyspace| view.tree(keyspace).is_none_or(|tree| tree.options.wal));
        match &logged {
            Some(part) if options.sync && !part.has_operations => Err(unlogged_sync()),
            _ => Ok(Logging { part: logged, as_of }),
        }
    }

    /// What the log stores of an operation, if that is not the operation.
    #[inline]
    pub(crate) fn logged_part_of_one(&self, keyspace: u32, options: WriteOptions, as_of: u64) -> Result<Logging> {
        if !self.writer.has_unlogged.load(Ordering::Acquire) {
            return Ok(Logging { part: None, as_of });
        }
        let is_logged = self.shape.with_view(|view, _| view.tree(keyspace).is_none_or(|tree| tree.options.wal));
        match is_logged {
            true => Ok(Logging { part: None, as_of }),
            false if options.sync => Err(unlogged_sync()),
            false => Ok(Logging { part: Some(LoggedPart::none_of(1)), as_of }),
        }
    }

    /// Writes a single operation.
    pub(crate) fn write_one(
        self: &Arc<Self>,
        keyspace: u32,
        key: &[u8],
        operation: Write<'_>,
        options: WriteOptions,
    ) -> Result<SeqNo> {
        self.gate.check_writable()?;
        let as_of = self.writer.keyspaces_as_of();
        if keyspace != 0 {
            self.check_keyspaces(&[keyspace])?;
        }
        if let Write::Merge(operand) = operation {
            if let Expiry::At(_) | Expiry::After(_) = options.expiry {
                return Err(Error::invalid("a merge cannot expire: only puts have deadlines"));
            }
            self.check_operand(keyspace, key, operand)?;
        }
        let operation = self.with_deadline(keyspace, operation, options);
        let logged = self.logged_part_of_one(keyspace, options, as_of)?;
        with_encoded(keyspace, key, operation, |payload, single| {
            self.write_unconditionally(Encoded::single(
                payload,
                single,
                operation.kind().features(),
                logged,
                options.sync,
            ))
        })
    }

    /// The operation with the deadline that a put has by `options` or by its keyspace.
    #[inline]
    pub(crate) fn with_deadline<'a>(&self, keyspace: u32, operation: Write<'a>, options: WriteOptions) -> Write<'a> {
        match operation {
            Write::Put(value) if options.expiry != Expiry::Default || self.clock.may_have_ttl(keyspace) => {
                let deadline = self.default_deadline(keyspace, options, || self.clock.now());
                deadline.map_or(operation, |deadline| Write::ExpiringPut(value, deadline))
            }
            operation => operation,
        }
    }

    /// The batch with the deadlines that its puts have by `options` or by their keyspaces; `None`
    /// if they have none. All ttls count from one time.
    pub(crate) fn with_deadlines(&self, batch: &WriteBatch, options: WriteOptions) -> Option<WriteBatch> {
        let may_have_one = |keyspace: u32| options.expiry != Expiry::Default || self.clock.may_have_ttl(keyspace);
        let keyspaces = || std::iter::once(0).chain(batch.keyspaces().iter().copied());
        if !keyspaces().any(may_have_one) {
            return None;
        }
        let now = OnceCell::new();
        let now = || *now.get_or_init(|| self.clock.now());
        let of = |id| Some((id, self.default_deadline(id, options, now)?));
        let mut deadlines: Vec<(u32, Deadline)> = keyspaces().filter(|id| may_have_one(*id)).filter_map(of).collect();
        deadlines.sort_unstable();
        if deadlines.is_empty() { None } else { batch.with_deadlines(&deadlines) }
    }

    #[cold]
    fn default_deadline(&self, keyspace: u32, options: WriteOptions, now: impl Fn() -> Deadline) -> Option<Deadline> {
        match options.expiry {
            Expiry::Never => None,
            Expiry::At(time) => Some(deadline_at(time)),
            Expiry::After(ttl) => Some(deadline_after(now(), ttl)),
            Expiry::Default => {
                let ttl = self.shape.with_view(|view, _| view.tree(keyspace)?.options.ttl)?;
                Some(deadline_after(now(), ttl))
            }
        }
    }

    /// Deletes the keys of a range.
    pub(crate) fn delete_range(
        self: &Arc<Self>,
        keyspace: u32,
        range: &KeySpan<Vec<u8>>,
        options: WriteOptions,
    ) -> Result<SeqNo> {
        if range.is_empty() {
            // Nothing to write, and nothing that fails.
            let mut batch = WriteBatch::new();
            batch.delete_range_raw(keyspace, range);
            return self.write(batch, options);
        }
        let end = range.upper.as_deref().unwrap_or_default();
        self.write_one(keyspace, range.lower.as_deref().unwrap_or_default(), Write::DeleteRange(end), options)
    }

    /// Commits a batch without a premise.
    #[inline(always)]
    pub(crate) fn write_unconditionally(self: &Arc<Self>, encoded: Encoded<'_>) -> Result<SeqNo> {
        let outcome = match self.options.slow_operation {
            None => self.write_encoded(encoded, None),
            Some(_) => self.write_timed(encoded),
        };
        match outcome? {
            Outcome::Committed(last) => Ok(last),
            Outcome::Refused(_) => Err(Error::invalid("a write without a premise was refused; this is a bug in tamis")),
        }
    }

    #[cold]
    fn write_timed(self: &Arc<Self>, encoded: Encoded<'_>) -> Result<Outcome> {
        self.timed("write", None, || self.write_encoded(encoded, None))
    }

    /// Commits a batch if `premise` holds, and syncs it if it asks for that.
    pub(crate) fn write_encoded(
        self: &Arc<Self>,
        mut encoded: Encoded<'_>,
        premise: Option<&Premise<'_>>,
    ) -> Result<Outcome> {
        self.admit(|| encoded.keyspaces())?;
        self.delay(encoded.payload.len());
        let sync = encoded.sync;
        if sync {
            // Before anything is appended, so that a failure leaves no trace.
            self.await_recovered()?;
        }
        let is_wide =
            encoded.features & features::RANGE_DELETE != 0 && self.deletes_tables(&encoded.payload, encoded.count);
        let outcome = self.commit(&mut encoded, premise)?;
        if is_wide && let Outcome::Committed(_) = outcome {
            self.flush_wide_ranges();
        }
        if sync && let Outcome::Committed(last) = outcome {
            self.writer.stalls.measure(Cause::Sync, || self.sync_through(last))?;
        }
        Ok(outcome)
    }

    /// Waits as long as the throttle says. With a stepped executor the writer runs pending work
    /// instead.
    #[inline(always)]
    pub(super) fn delay(&self, bytes: usize) {
        let filled = || self.shape.view().active.used() as f64 / self.options.memtable_size as f64;
        let wait = self.workers.charge(bytes, filled);
        if !wait.is_zero() && !self.step() {
            check_may_wait();
            self.writer.stalls.measure(Cause::Slowed, || thread::sleep(wait));
        }
    }

    /// Inserts an operation of a batch into the memtable.
    #[inline(always)]
    fn insert(&self, writer: &mut MemtableWriter<'_>, operation: &Op<'_>, seqno: SeqNo) {
        let hash = KeyHash::new(self.seed, operation.key);
        apply(writer, operation, hash, seqno, || self.fold_of(operation.keyspace));
    }

    #[cold]
    fn fold_of(&self, keyspace: u32) -> Option<Fold> {
        self.shape.with_view(|view, _| view.tree(keyspace)?.options.merge_operator.as_ref()?.fold())
    }

    /// Commits a batch, which it may take.
    fn commit(self: &Arc<Self>, encoded: &mut Encoded<'_>, premise: Option<&Premise<'_>>) -> Result<Outcome> {
        if let Some(mut commit) = self.try_commit() {
            let Some(open) = commit.as_mut() else { return Err(Error::Closed) };
            let len = GroupLen::of(encoded);
            // Writers that wait for room go first.
            if open.waiting == 0 && self.find_room(open, len)?.is_none() {
                let queued = self.writer.queue.take(len, |group| self.has_room(open, group));
                return self.commit_own(open, encoded, premise, &queued);
            }
        }
        self.commit_in_turn(encoded.take(), premise)
    }

    /// Commits a batch that must wait, for the lock or for room. It goes to the queue: any thread
    /// that has the lock and finds room commits the queue, in its order.
    #[inline(never)]
    fn commit_in_turn(self: &Arc<Self>, encoded: Encoded<'static>, premise: Option<&Premise<'_>>) -> Result<Outcome> {
        let queued =
            Arc::new(QueuedWrite { encoded, premise: premise.map(Premise::to_owned), result: Mutex::new(None) });
        self.writer.queue.push(Arc::clone(&queued));
        let mut commit = self.writer.stalls.measure(Cause::Commit, || self.writer.commit.lock());
        loop {
            if let Some(result) = queued.result.lock().take() {
                return result;
            }
            let Some(first) = self.writer.queue.first_len() else {
                // A committing thread took the write from the queue and never finished it.
                return Err(self.poison(Error::invalid("a group of writes was interrupted; this is a bug in tamis")));
            };
            let failure = match commit.as_mut().map(|open| (self.find_room(open, first), open)) {
                Some((Ok(None), open)) => {
                    // This thread commits for itself and for the queue.
                    let taken = self.writer.queue.take(GroupLen::default(), |group| self.has_room(open, group));
                    self.commit_queued(open, &taken);
                    if open.waiting > 0 {
                        self.workers.wake();
                    }
                    None
                }
                Some((Ok(Some(before)), open)) => {
                    open.waiting += 1;
                    let waited = commit.unlocked(|| self.await_room(before, &queued));
                    if let Some(open) = commit.as_mut() {
                        open.waiting -= 1;
                    }
                    waited.err()
                }
                Some((Err(error), _)) => Some(error),
                None => Some(Error::Closed),
            };
            // Each writer finds out for itself. One that was committed meanwhile has not failed.
            if let Some(error) = failure
                && self.writer.queue.remove(&queued)
            {
                return Err(error);
            }
        }
    }

    /// Takes the commit lock if it is free, or soon is.
    #[inline(always)]
    pub(super) fn try_commit(&self) -> Option<RankedGuard<'_, Option<Commit>>> {
        self.writer.commit.try_lock().or_else(|| self.look_for_commit())
    }

    /// Tries to take the commit lock after a pause, each twice as long as the one before, up to a
    /// limit.
    ///
    /// What a write changes is in the caches of the thread that wrote last. If the lock went back
    /// and forth, between threads that look for it all the time, each would have to fetch it all
    /// from the other: two threads then do half of what one does. A thread that looks rarely leaves
    /// the lock to the other for some tens of writes.
    #[cold]
    fn look_for_commit(&self) -> Option<RankedGuard<'_, Option<Commit>>> {
        let mut pause = 1;
        for _ in 0..LOOKS {
            (0..pause).for_each(|_| sync::spin_loop());
            if let Some(commit) = self.writer.commit.try_lock() {
                return Some(commit);
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        None
    }

    /// Commits `own` with the queued writes that may join its group, then those that remain of
    /// `queued`.
    ///
    /// A premise is checked in the memtable. A write that has one is therefore a group of its own:
    /// what went before it is in the memtable then.
    #[inline(always)]
    pub(super) fn commit_own(
        self: &Arc<Self>,
        commit: &mut Commit,
        own: &Encoded<'_>,
        premise: Option<&Premise<'_>>,
        queued: &[Arc<QueuedWrite>],
    ) -> Result<Outcome> {
        if queued.is_empty() {
            return self.append_and_apply(commit, premise, &[own]);
        }
        if let Err(error) = self.check_again(commit, own, premise) {
            self.commit_queued(commit, queued);
            return Err(error);
        }
        let queued = self.without_dropped(commit, queued);
        let joining = match premise {
            Some(_) => 0,
            None => queued.iter().take_while(|write| write.premise.is_none()).count(),
        };
        let (joining, rest) = queued.split_at(joining);
        let outcome = self.commit_group(commit, Some(own), premise, joining);
        self.commit_queued(commit, rest);
        outcome
    }

    /// Commits `queued`, in groups.
    fn commit_queued(self: &Arc<Self>, commit: &mut Commit, queued: &[Arc<QueuedWrite>]) {
        let queued = self.without_dropped(commit, queued);
        for group in queued.chunk_by(|a, b| a.premise.is_none() && b.premise.is_none()) {
            let _ = self.commit_group(commit, None, group[0].premise.as_ref(), group);
        }
    }

    /// Commits `own` and `queued` as one group, if `premise` holds. Returns the outcome of `own`,
    /// if there is one.
    fn commit_group(
        self: &Arc<Self>,
        commit: &mut Commit,
        own: Option<&Encoded<'_>>,
        premise: Option<&Premise<'_>>,
        queued: &[Arc<QueuedWrite>],
    ) -> Result<Outcome> {
        let group: Vec<&Encoded<'_>> = own.into_iter().chain(queued.iter().map(|write| &write.encoded)).collect();
        let group_outcome = self.append_and_apply(commit, premise, &group);
        // The group took as many sequence numbers as it has operations, the last one last.
        let mut after = queued.iter().map(|write| u64::from(write.encoded.count)).sum::<u64>();
        let outcome = |after: u64| match &group_outcome {
            Ok(Outcome::Committed(last)) => Ok(Outcome::Committed(last - after)),
            failed => failed.clone(),
        };
        let own_outcome = outcome(after);
        for write in queued {
            after -= u64::from(write.encoded.count);
            *write.result.lock() = Some(outcome(after));
        }
        own_outcome
    }

    /// Why a premise does not hold. Checked last, right before the append: a value that expires
    /// while the writer waits is not there any more.
    fn refusal(&self, premise: &Premise<'_>, commit: &Commit) -> Option<Refusal> {
        let refusal = premise.refusal(&commit.memtable, commit.active_since(), commit.last_seqno());
        refusal.or_else(|| premise.is_expired(&self.clock).then_some(Refusal::Expired))
    }

    /// Appends a group to the log and inserts it into the memtable, if `premise` holds. There must
    /// be room.
    pub(super) fn append_and_apply(
        self: &Arc<Self>,
        commit: &mut Commit,
        premise: Option<&Premise<'_>>,
        group: &[&Encoded<'_>],
    ) -> Result<Outcome> {
        let keyspaces = self.writer.keyspaces.load(Ordering::Relaxed);
        if group.iter().any(|encoded| encoded.is_older_than(keyspaces)) {
            return self.append_checked(commit, premise, group, keyspaces);
        }
        let GroupTotals { log_bytes, count, features, is_logged, sync } = GroupTotals::of(group);
        self.ensure_features(commit, features)?;
        let before = commit.last_seqno();
        if before + count > MAX_SEQNO {
            return Err(Error::invalid("the store has used up its sequence numbers"));
        }
        if is_logged {
            if commit.unlogged > 0 {
                self.append_unlogged(commit)?;
            }
            if let Some(premise) = premise {
                // What takes time comes before the premise is checked.
                self.reserved_log(commit, log_bytes as u64)?;
                if let Some(refusal) = self.refusal(premise, commit) {
                    return Ok(Outcome::Refused(refusal));
                }
            }
            let log = self.reserved_log(commit, log_bytes as u64)?;
            let records = group.iter().map(|encoded| encoded.record());
            let durable = self.sequence.durable();
            let appended = if sync { log.append(records, durable) } else { log.append_lazily(records, durable) };
            appended.map_err(|error| self.poison(error))?;
            self.writer.stalls.count(Cause::Log, log.take_waited());
        } else {
            if let Some(refusal) = premise.and_then(|premise| self.refusal(premise, commit)) {
                return Ok(Outcome::Refused(refusal));
            }
            commit.unlogged += count;
        }

        // A group that is in the log but not in the memtable must stop all later writes.
        let unfinished = Unfinished(self);
        let (seqno, waited) = self.apply(commit, group, before, features)?;
        std::mem::forget(unfinished);
        self.writer.stalls.count(Cause::Memtable, waited);
        if commit.unlogged == 0 {
            self.sequence.note_logged(seqno);
        }
        self.sequence.publish(seqno);
        self.writer.signal.wake();
        commit.memtable.mark_visible();
        Ok(Outcome::Committed(seqno))
    }

    /// Inserts a group, numbered from `before` on, into the memtable. Returns its last number, and
    /// how long that waited for memory.
    #[inline]
    fn apply(
        &self,
        commit: &mut Commit,
        group: &[&Encoded<'_>],
        before: SeqNo,
        features: u32,
    ) -> Result<(SeqNo, Duration)> {
        let ended = if features & features::RANGE_DELETE != 0 { commit.horizons.in_use() } else { Vec::new() };
        let is_needed =
            |numbers: Range<SeqNo>| self.shape.snapshots().any_in(numbers.clone()) || any_in(&ended, numbers);
        let mut writer = commit.memtable.writer();
        writer.keep_ranges_if(&is_needed);
        let mut seqno = before;
        for encoded in group {
            if let Some(operation) = &encoded.single {
                seqno += 1;
                self.insert(&mut writer, operation, seqno);
                continue;
            }
            for operation in BatchReader::new(&encoded.payload, encoded.count) {
                seqno += 1;
                self.insert(&mut writer, &operation.map_err(Error::invalid)?, seqno);
            }
        }
        Ok((seqno, writer.waited()))
    }

    /// Ensures that the log's header says that its readers need `features`. Later logs say so too:
    /// what was used once is likely used again.
    fn ensure_features(self: &Arc<Self>, commit: &mut Commit, features: u32) -> Result<()> {
        if features & !commit.header.features == 0 {
            return Ok(());
        }
        if commit.log_len() > 0 {
            self.rotate(commit)?;
        }
        commit.header.features |= features;
        // A log without its header: the write for which it was created found no space.
        if let Some(log) = &mut commit.log {
            log.require(commit.header.features);
        }
        if features & features::EXPIRY != 0 {
            self.clock.note_deadlines();
        }
        Ok(())
    }

    /// Appends the record of one operation that does not go to the memtable, and syncs the log
    /// through it: it is the caller's turn to sync. Returns its number, which is not visible yet.
    ///
    /// Fails before it appends anything, or else poisons the store.
    pub(crate) fn append_alone(
        self: &Arc<Self>,
        commit: &mut Commit,
        encoded: &Encoded<'_>,
        mut lead: Lead<'_>,
    ) -> Result<SeqNo> {
        self.ensure_features(commit, encoded.features)?;
        self.append_unlogged(commit)?;
        let log = self.reserved_log(commit, (MAX_RECORD_HEADER_LEN + encoded.payload.len()) as u64)?;
        log.append([encoded.record()], self.sequence.durable()).map_err(|error| self.poison(error))?;
        let seqno = log.next() - 1;
        self.sequence.note_logged(seqno);
        self.sync_in_turn(&mut lead).map_err(|error| self.poison(error))?;
        Ok(seqno)
    }

    /// Appends a record that counts the operations that the log does not store, if there are any
    /// since the last record.
    pub(crate) fn append_unlogged(&self, commit: &mut Commit) -> Result<()> {
        let Ok(count) = u32::try_from(commit.unlogged) else {
            return Err(Error::invalid("a memtable holds more than 2^32 operations; this is a bug in tamis"));
        };
        if count == 0 {
            return Ok(());
        }
        let logging = Logging { part: Some(LoggedPart::none_of(count)), as_of: 0 };
        let encoded = Encoded::new(Cow::Borrowed(&[]), count, 0, logging, false);
        let record = encoded.record();
        let log = self.reserved_log(commit, (MAX_RECORD_HEADER_LEN + record.payload.len()) as u64)?;
        log.append_lazily([record], self.sequence.durable()).map_err(|error| self.poison(error))?;
        let last = log.next() - 1;
        commit.unlogged = 0;
        self.sequence.note_logged(last);
        Ok(())
    }

    /// Seals the memtable and its log, and starts new ones. Fails, and does nothing, if the log
    /// cannot count what it does not store.
    pub(crate) fn rotate(self: &Arc<Self>, commit: &mut Commit) -> Result<()> {
        self.append_unlogged(commit)?;
        let number = self.shape.catalog().new_file_number();
        // A recovered memtable may have got no write, and so no log of its own.
        let (previous, previous_len) = match &commit.log {
            Some(log) => (log.number(), log.len()),
            None => (commit.header.previous, commit.header.previous_len),
        };
        let (first, features) = (commit.next(), commit.header.features);
        let header = FileHeader { number, first, previous, previous_len, features, ..FileHeader::default() };
        self.writer.seat.renew();
        let size = self.environment.first_size(self.options.memtable_size);
        let memtable = Arc::new(Memtable::new(number, size, self.seed, self.environment.memtables()));
        self.writer.logs.seal(header.first);
        let (waiting, ingested, dropping) = (commit.waiting, commit.ingested, std::mem::take(&mut commit.dropping));
        let next = Commit { waiting, ingested, dropping, ..Commit::new(Arc::clone(&memtable), header) };
        let sealed = std::mem::replace(commit, next).memtable;
        self.change_view(|view| {
            view.active = memtable;
            view.sealed.insert(0, sealed);
        });
        self.schedule();
        Ok(())
    }

    /// Returns the log with space reserved for `bytes` and a sync marker. A full disk therefore
    /// fails here, where it does no harm, and not in the middle of an append. Reserves twice that
    /// length if the disk has the space: syncs are faster when the file need not be extended for
    /// each.
    #[inline]
    fn reserved_log<'a>(&self, commit: &'a mut Commit, bytes: u64) -> Result<&'a mut LogWriter> {
        // Without a log, nothing is reserved.
        if commit.log_len() + bytes + MARKER_SPACE > commit.reserved {
            self.reserve(commit, bytes)?;
        }
        self.open_log(&mut commit.log, commit.header)
    }

    #[cold]
    fn reserve(&self, commit: &mut Commit, bytes: u64) -> Result<()> {
        let log = self.open_log(&mut commit.log, commit.header)?;
        let need = log.len() + bytes + MARKER_SPACE;
        let ample = (2 * need).max(FIRST_RESERVATION).min(wal::log_size(self.options.memtable_size)).max(need);
        let reserve = |len| log.file().reserve(len).map(|()| len);
        // A failed reservation releases the previous one.
        commit.reserved = 0;
        let reserved = self.writer.stalls.measure(Cause::Log, || reserve(ample).or_else(|_| reserve(need)));
        let reserved = reserved.during("reserve space for", log.path());
        self.report.notices().note_log_space(reserved.as_ref().err().filter(|error| error.is_no_space()));
        commit.reserved = reserved?;
        Ok(())
    }

    #[inline]
    fn open_log<'a>(&self, log: &'a mut Option<LogWriter>, header: FileHeader) -> Result<&'a mut LogWriter> {
        match log {
            Some(log) => Ok(log),
            empty => Ok(empty.insert(self.create_log(header)?)),
        }
    }

    #[cold]
    fn create_log(&self, header: FileHeader) -> Result<LogWriter> {
        self.check_lock()?;
        let header = FileHeader { synced: self.sequence.durable(), ..header };
        let create = || wal::create(self.fs(), self.dir(), header, self.options.wal_mode, self.options.memtable_size);
        let log = self.writer.stalls.measure(Cause::Log, create)?;
        self.writer.logs.add(&log);
        Ok(log)
    }

    /// Appends a sync marker to the log. A full disk, or a log that cannot be created, is no
    /// failure: the store then has less proof, but no less data.
    pub(crate) fn append_marker(&self, commit: &mut Commit) -> Result<()> {
        let durable = self.sequence.durable();
        if durable == 0 {
            return Ok(());
        }
        let Ok(log) = self.open_log(&mut commit.log, commit.header) else { return Ok(()) };
        let need = log.len() + MARKER_SPACE;
        if commit.reserved < need && log.file().reserve(need).is_err() {
            commit.reserved = 0;
            return Ok(());
        }
        commit.reserved = commit.reserved.max(need);
        log.append_marker(durable).map_err(|error| self.poison(error))
    }
}
