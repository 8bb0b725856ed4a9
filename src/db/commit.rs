//! The state that the commit lock guards, and the queue of writers that wait for it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::premise::{Premise, Refusal};
use super::view::EndedHorizons;
use crate::error::Result;
use crate::format::checksum;
use crate::format::header::{FileHeader, features};
use crate::format::key::SeqNo;
use crate::write::batch::{LoggedPart, WriteBatch};
use crate::write::log::{LogWriter, NewRecord};
use crate::write::memtable::Memtable;

/// Bytes of batches that are committed as one group. A larger batch is a group of its own.
const MAX_GROUP_LEN: usize = 1 << 20;

/// Guarded by the commit lock: the active memtable and its log.
pub(super) struct Commit {
    pub(super) memtable: Arc<Memtable>,
    /// File header of the memtable's log.
    pub(super) header: FileHeader,
    /// The memtable's log. `None` until the first write: an idle store has no log.
    pub(super) log: Option<LogWriter>,
    /// File length for which disk space is reserved.
    pub(super) reserved: u64,
    /// Operations since the last record, which the log does not store. The next record is preceded
    /// by one that counts them.
    pub(super) unlogged: u64,
    /// Those of views whose active memtable is this one.
    pub(super) horizons: EndedHorizons,
}

impl Commit {
    /// Starts with a memtable that is empty, or holds what opening recovered, and a log that
    /// follows the one numbered `header.previous`.
    pub(super) fn new(memtable: Arc<Memtable>, header: FileHeader) -> Commit {
        memtable.mark_visible();
        Commit { memtable, header, log: None, reserved: 0, unlogged: 0, horizons: EndedHorizons::default() }
    }

    /// First sequence number of the log's next record.
    pub(super) fn next(&self) -> SeqNo {
        self.log.as_ref().map_or(self.header.first, LogWriter::next)
    }

    /// Sequence number of the last write.
    pub(super) fn last_seqno(&self) -> SeqNo {
        self.next() - 1 + self.unlogged
    }

    /// Highest sequence number that the log declares durable.
    pub(super) fn stated(&self) -> SeqNo {
        self.log.as_ref().map_or(0, LogWriter::stated)
    }

    pub(super) fn log_len(&self) -> u64 {
        self.log.as_ref().map_or(0, LogWriter::len)
    }
}

/// A batch encoded as the log stores it, with its checksum, both computed outside of the commit
/// lock.
pub(super) struct Encoded<'a> {
    pub(super) payload: Cow<'a, [u8]>,
    pub(super) count: u32,
    /// What a reader of the log must understand to read the batch.
    pub(super) features: u32,
    /// What the log stores, if that is not `payload`.
    logged: Option<LoggedPart>,
    /// Of what the log stores.
    crc: u32,
    /// Whether the caller will sync.
    pub(super) sync: bool,
}

impl<'a> Encoded<'a> {
    /// A batch of which the log stores `logged`, or all.
    #[inline]
    pub(super) fn new(
        payload: Cow<'a, [u8]>,
        count: u32,
        features: u32,
        logged: Option<LoggedPart>,
        sync: bool,
    ) -> Encoded<'a> {
        let crc = checksum::crc(logged.as_ref().map_or(&payload, |part| &part.payload));
        let features = features | if logged.is_some() { features::UNLOGGED } else { 0 };
        Encoded { payload, count, features, logged, crc, sync }
    }

    pub(super) fn of(batch: WriteBatch, logged: Option<LoggedPart>, sync: bool) -> Encoded<'static> {
        let (count, features) = (batch.count(), batch.features());
        Encoded::new(Cow::Owned(batch.into_payload()), count, features, logged, sync)
    }

    /// Whether the log stores an operation of the batch.
    pub(super) fn is_logged(&self) -> bool {
        self.logged.as_ref().is_none_or(|part| part.has_operations)
    }

    pub(super) fn borrowed(&self) -> Encoded<'_> {
        Encoded { payload: Cow::Borrowed(&self.payload), logged: self.logged.clone(), ..*self }
    }

    /// What the log stores of the batch.
    pub(super) fn record(&self) -> NewRecord<'_> {
        let payload = self.logged.as_ref().map_or(&*self.payload, |part| &part.payload);
        NewRecord { payload, payload_crc: self.crc, count: self.count }
    }

    pub(super) fn into_owned(self) -> Encoded<'static> {
        Encoded { payload: Cow::Owned(self.payload.into_owned()), ..self }
    }
}

/// What became of a batch that was to be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is committed, and this is the number of its last operation.
    Committed(SeqNo),
    /// Its premise does not hold. Nothing of it is in the log.
    Refused(Refusal),
}

/// A queued write, and its result once another thread has committed it.
pub(super) struct QueuedWrite {
    pub(super) encoded: Encoded<'static>,
    /// What must hold for it to be committed.
    pub(super) premise: Option<Premise<'static>>,
    pub(super) result: Mutex<Option<Result<Outcome>>>,
}

/// Writers that wait for the commit lock.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Arc<QueuedWrite>>>,
    /// A hint that `waiting` is not empty. May be stale by one push, whose writer then commits for
    /// itself.
    has_waiting: AtomicBool,
}

impl Queue {
    pub(super) fn push(&self, write: Arc<QueuedWrite>) {
        let mut waiting = self.waiting.lock();
        waiting.push_back(write);
        self.has_waiting.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Takes writes from the queue until a group that already has `bytes` bytes reaches its limit.
    #[inline]
    pub(super) fn take(&self, bytes: usize) -> Vec<Arc<QueuedWrite>> {
        // A writer missed here has not got the commit lock yet, and will commit for itself.
        if self.has_waiting.load(Ordering::Relaxed) { self.take_waiting(bytes) } else { Vec::new() }
    }

    #[inline(never)]
    fn take_waiting(&self, mut bytes: usize) -> Vec<Arc<QueuedWrite>> {
        let mut waiting = self.waiting.lock();
        let mut taken = Vec::new();
        while let Some(next) = waiting.front() {
            bytes += next.encoded.payload.len();
            if bytes > MAX_GROUP_LEN && !taken.is_empty() {
                break;
            }
            taken.extend(waiting.pop_front());
        }
        self.has_waiting.store(!waiting.is_empty(), Ordering::Relaxed);
        taken
    }
}
