//! The write path: batch, log, memtable.
//!
//! Whoever holds `Store::commit` commits for everybody that queued meanwhile: one append to the log for the whole group, then the
//! memtable, then the last sequence number is published. There is no log thread, and no hand-over between threads per write. Syncs run outside, so that the next group forms meanwhile (see `sync`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::background::Waiting;
use super::store::{LogFile, Store};
use super::throttle::MAX_SEALED;
use crate::batch::{BatchReader, WriteBatch};
use crate::error::{Error, IoContext, Result};
use crate::format::checksum;
use crate::format::header::FileHeader;
use crate::format::key::{MAX_SEQNO, SeqNo};
use crate::log::{LogRecord, LogWriter};
use crate::memtable::Memtable;
use crate::wal;

/// Bytes of batches that are committed as one group. A larger batch is a group of its own.
const MAX_GROUP_LEN: usize = 1 << 20;

/// How a write is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Return only when this write and all before it would survive a power cut. Default: false; the write has been handed to the
    /// operating system then, and survives the end of the process for any reason.
    pub sync: bool,
}

/// What is held while committing.
pub(super) struct Commit {
    pub(super) log: LogWriter,
    pub(super) memtable: Arc<Memtable>,
}

/// A batch with the checksum of its payload, computed outside of the lock.
struct Encoded {
    batch: WriteBatch,
    crc: u32,
}

impl Encoded {
    fn record(&self) -> LogRecord<'_> {
        LogRecord { payload: self.batch.payload(), payload_crc: self.crc, count: self.batch.count() }
    }
}

/// A writer that waits for whoever commits.
pub(super) struct Pending {
    encoded: Encoded,
    result: Mutex<Option<Result<SeqNo>>>,
}

/// Poisons the store when it is dropped.
struct Unfinished<'a>(&'a Store);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.poison(Error::invalid("a write came to the log and not to the memtable; this is a bug in tamis"));
    }
}

impl Store {
    /// Writes a batch; returns the sequence number of its last operation.
    pub(super) fn write(self: &Arc<Self>, batch: WriteBatch, options: WriteOptions) -> Result<SeqNo> {
        self.check_writable()?;
        batch.validate(self.id)?;
        if batch.is_empty() {
            if options.sync {
                self.sync()?;
            }
            return Ok(self.visible.load(Ordering::Acquire));
        }
        self.check_keyspaces(&batch)?;
        self.retry_failed();
        self.delay(batch.payload().len());
        let crc = checksum::crc(batch.payload());
        let last = self.commit(Encoded { batch, crc })?;
        if options.sync {
            self.sync_through(last)?;
        }
        Ok(last)
    }

    /// Waits as the throttle says. A stepped executor works off what is behind instead.
    fn delay(&self, bytes: usize) {
        let wait = self.throttle.charge(bytes);
        if !wait.is_zero() && !self.executor.step() {
            std::thread::sleep(wait);
            self.throttle.count_delay(wait);
        }
    }

    fn check_keyspaces(&self, batch: &WriteBatch) -> Result<()> {
        if batch.keyspaces().is_empty() {
            return Ok(());
        }
        let view = self.view.load();
        match batch.keyspaces().iter().find(|id| view.tree(**id).is_none()) {
            Some(id) => Err(Error::KeyspaceDropped(format!("number {id}"))),
            None => Ok(()),
        }
    }

    fn commit(self: &Arc<Self>, encoded: Encoded) -> Result<SeqNo> {
        if let Some(mut commit) = self.commit.try_lock() {
            return self.commit_group(&mut commit, Some(&encoded));
        }
        let pending = Arc::new(Pending { encoded, result: Mutex::new(None) });
        self.queue.lock().push_back(Arc::clone(&pending));
        let mut commit = self.commit.lock();
        loop {
            if let Some(result) = pending.result.lock().take() {
                return result;
            }
            if self.queue.lock().is_empty() {
                // Somebody took the write from the queue and never came to an end with it.
                return Err(self.poison(Error::invalid("a group of writes was interrupted; this is a bug in tamis")));
            }
            // This thread commits, for itself and for others that wait.
            let _ = self.commit_group(&mut commit, None);
        }
    }

    /// Commits `own` and what is queued, up to a limit; returns the last sequence number of `own`, or of the group.
    fn commit_group(self: &Arc<Self>, commit: &mut Option<Commit>, own: Option<&Encoded>) -> Result<SeqNo> {
        let queued = self.take_queued(own.map_or(0, |own| own.batch.payload().len()));
        let group: Vec<&Encoded> = own.into_iter().chain(queued.iter().map(|pending| &pending.encoded)).collect();
        let result = self.append_and_apply(commit, &group);
        let mut last = result.as_ref().copied().unwrap_or_default();
        if let Some(own) = own {
            last += u64::from(own.batch.count());
        }
        let own_result = result.clone().map(|_| last);
        for pending in &queued {
            last += u64::from(pending.encoded.batch.count());
            *pending.result.lock() = Some(result.clone().map(|_| last));
        }
        own_result
    }

    /// The next writes of the queue, so many that the group stays within its limit.
    fn take_queued(&self, mut bytes: usize) -> Vec<Arc<Pending>> {
        let mut queue = self.queue.lock();
        let mut taken = Vec::new();
        while let Some(next) = queue.front() {
            bytes += next.encoded.batch.payload().len();
            if bytes > MAX_GROUP_LEN && !taken.is_empty() {
                break;
            }
            taken.extend(queue.pop_front());
        }
        taken
    }

    /// Returns the last sequence number before the group.
    fn append_and_apply(self: &Arc<Self>, commit: &mut Option<Commit>, group: &[&Encoded]) -> Result<SeqNo> {
        let Some(commit) = commit.as_mut() else { return Err(Error::Closed) };
        let bytes = group.iter().map(|encoded| encoded.batch.payload().len()).sum();
        self.make_room(commit, bytes)?;
        let before = commit.log.next() - 1;
        let count: u64 = group.iter().map(|encoded| u64::from(encoded.batch.count())).sum();
        if before + count > MAX_SEQNO {
            return Err(Error::invalid("the store has used up its sequence numbers"));
        }
        let records: Vec<LogRecord<'_>> = group.iter().map(|encoded| encoded.record()).collect();
        let durable = self.durable.load(Ordering::Acquire);
        commit.log.append(&records, durable).map_err(|error| self.poison(error))?;

        // What is in the log must come to the memtable, or nothing may be written behind it.
        let unfinished = Unfinished(self);
        let mut writer = commit.memtable.writer();
        let mut seqno = before;
        for encoded in group {
            for operation in BatchReader::new(encoded.batch.payload(), encoded.batch.count()) {
                let operation = operation.map_err(Error::invalid)?;
                seqno += 1;
                writer.insert(operation.keyspace, operation.key, seqno, operation.kind, operation.value);
            }
        }
        drop(writer);
        std::mem::forget(unfinished);
        self.visible.store(seqno, Ordering::Release);
        Ok(before)
    }

    /// Sees to it that the memtable can take `bytes` bytes: switches to a new one, and waits while too much is unflushed or
    /// uncompacted.
    fn make_room(self: &Arc<Self>, commit: &mut Commit, bytes: usize) -> Result<()> {
        loop {
            self.check_writable()?;
            let full = commit.memtable.used() + bytes > self.options.memtable_size && !commit.memtable.is_empty();
            if !full {
                return Ok(());
            }
            let start = Instant::now();
            let unflushed = || self.view.load().sealed.len() >= MAX_SEALED;
            let uncompacted = || self.throttle.pressure() >= 1.0;
            if unflushed() || uncompacted() {
                let flushed = self.wait_for_progress(Waiting::Flush, |_| !unflushed());
                let waited = flushed.and_then(|()| self.wait_for_progress(Waiting::Compaction, |_| !uncompacted()));
                self.throttle.count_delay(start.elapsed());
                waited?;
            }
            self.rotate(commit)?;
        }
    }

    /// Seals the memtable and its log, and goes on in new ones. If the new log cannot be made, or there is no space for it, nothing
    /// has changed.
    pub(super) fn rotate(self: &Arc<Self>, commit: &mut Commit) -> Result<()> {
        let number = self.new_file_number();
        let log = wal::create(
            &*self.fs,
            &self.dir,
            FileHeader {
                number,
                first: commit.log.next(),
                synced: self.durable.load(Ordering::Acquire),
                previous: commit.log.number(),
                previous_len: commit.log.len(),
            },
        )?;
        if let Err(error) = self.reserve(&log) {
            let _ = self.fs.remove(log.path());
            return Err(error);
        }
        self.logs.lock().push(LogFile::of(&log));
        let memtable = Arc::new(Memtable::new(number, self.options.memtable_size, self.seed, &self.memory));
        let sealed = std::mem::replace(&mut commit.memtable, Arc::clone(&memtable));
        commit.log = log;
        self.change_view(|view| {
            view.active = memtable;
            view.sealed.insert(0, sealed);
        });
        self.schedule();
        Ok(())
    }
}

impl Store {
    /// Reserves space for a log, so that a full disk shows when the log is begun, where it harms nobody, and not in the middle. It
    /// makes syncs faster, too: the file need not be extended for each.
    pub(super) fn reserve(&self, log: &LogWriter) -> Result<()> {
        log.file().reserve(self.options.memtable_size as u64).during("reserve space for", log.path())
    }
}

impl LogFile {
    pub(super) fn of(log: &LogWriter) -> LogFile {
        LogFile {
            number: log.number(),
            path: log.path().to_owned(),
            file: log.file(),
            name_durable: Arc::new(AtomicBool::new(false)),
        }
    }
}
