//! The state that the commit lock guards, and the queue of writers that wait for it.
//!
//! One memtable and one log serve all keyspaces: each entry names its keyspace, the memtable's
//! index hashes that with the key, and order is made for each keyspace apart. A batch across
//! keyspaces is therefore one record, and the limits on memory and log hold for the store as a
//! whole.
//!
//! A thread that gets the lock commits its own batch and those that queued meanwhile, as one group.
//! A batch that must wait, for the lock or for room, stands in the queue; its writer waits without
//! the lock, so that the store can be copied or closed at any time. Room goes to the queue in its
//! order.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::batch::{BatchReader, LoggedPart, Op, WriteBatch};
use crate::db::shape::view::EndedHorizons;
use crate::db::transaction::premise::{Premise, Refusal};
use crate::error::Result;
use crate::format::checksum;
use crate::format::header::{FileHeader, features};
use crate::format::key::SeqNo;
use crate::format::record::MAX_RECORD_HEADER_LEN;
use crate::log::{LogWriter, NewRecord};
use crate::sorted::memtable::Memtable;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of batches that are committed as one group. A larger batch is a group of its own.
const MAX_GROUP_LEN: usize = 1 << 20;

/// Guarded by the commit lock: the active memtable and its log.
pub(crate) struct Commit {
    pub(crate) memtable: Arc<Memtable>,
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
    pub(crate) horizons: EndedHorizons,
    /// The number of the last ingest, which is in no memtable; 0 if there was none.
    pub(crate) ingested: SeqNo,
    /// Keyspaces that are being dropped, in order.
    pub(super) dropping: Vec<u32>,
    /// Threads that wait without the lock for what must come before their writes. Later writers
    /// queue behind them.
    pub(super) waiting: usize,
}

/// What must come before a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// A flush: too many memtables are full.
    Flush,
    /// Compactions, which are too far behind.
    Compaction,
    /// What has the [stillness](super::room::Stillness) of memtables.
    Stillness,
}

/// Bytes that batches take in the memtable, entries' overhead aside, and in the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupLen {
    bytes: usize,
    log_bytes: usize,
}

impl GroupLen {
    #[inline]
    pub(super) fn of(encoded: &Encoded<'_>) -> GroupLen {
        let log_bytes = MAX_RECORD_HEADER_LEN + encoded.record().payload.len();
        GroupLen { bytes: encoded.payload.len(), log_bytes }
    }

    pub(super) fn of_bytes(bytes: usize, log_bytes: usize) -> GroupLen {
        GroupLen { bytes, log_bytes }
    }

    fn and(self, other: GroupLen) -> GroupLen {
        GroupLen { bytes: self.bytes + other.bytes, log_bytes: self.log_bytes + other.log_bytes }
    }
}

/// What is to be known of a group of batches before it is committed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupTotals {
    pub(super) log_bytes: usize,
    pub(super) count: u64,
    pub(super) features: u32,
    /// Whether the log stores an operation.
    pub(super) is_logged: bool,
    /// Whether a caller will sync.
    pub(super) sync: bool,
}

impl GroupTotals {
    #[inline]
    pub(super) fn of(group: &[&Encoded<'_>]) -> GroupTotals {
        group.iter().fold(GroupTotals::default(), |totals, encoded| GroupTotals {
            log_bytes: totals.log_bytes + GroupLen::of(encoded).log_bytes,
            count: totals.count + u64::from(encoded.count),
            features: totals.features | encoded.features,
            is_logged: totals.is_logged || encoded.is_logged(),
            sync: totals.sync || encoded.sync,
        })
    }
}

impl Commit {
    /// Starts with a memtable that is empty, or holds what opening recovered, and a log that
    /// follows the one numbered `header.previous`.
    pub(crate) fn new(memtable: Arc<Memtable>, header: FileHeader) -> Commit {
        memtable.mark_visible();
        let horizons = EndedHorizons::default();
        let (dropping, waiting) = Default::default();
        Commit { memtable, header, log: None, reserved: 0, unlogged: 0, horizons, ingested: 0, dropping, waiting }
    }

    /// First sequence number of the log's next record.
    pub(super) fn next(&self) -> SeqNo {
        self.log.as_ref().map_or(self.header.first, LogWriter::next)
    }

    /// Sequence number of the last write.
    pub(crate) fn last_seqno(&self) -> SeqNo {
        self.next() - 1 + self.unlogged
    }

    /// The memtable has all that was written after this number.
    pub(super) fn active_since(&self) -> SeqNo {
        self.ingested.max(self.header.first.saturating_sub(1))
    }

    /// Highest sequence number that the log declares durable.
    pub(super) fn stated(&self) -> SeqNo {
        self.log.as_ref().map_or(0, LogWriter::stated)
    }

    /// Whether the log, if there is one, states that everything up to `durable` is.
    pub(crate) fn states(&self, durable: SeqNo) -> bool {
        self.log.is_none() || self.stated() >= durable
    }

    /// Gives back the space that the log does not use: nothing more is appended.
    pub(crate) fn release_space(&self) {
        if let Some(log) = &self.log {
            log.file().release();
        }
    }

    pub(crate) fn log_len(&self) -> u64 {
        self.log.as_ref().map_or(0, LogWriter::len)
    }

    /// Whether a group fits into a memtable and a log of these sizes, beside a sync marker. An
    /// empty memtable takes any group.
    #[inline]
    pub(super) fn has_room(&self, group: GroupLen, memtable_limit: usize, log_limit: u64) -> bool {
        let fits = self.memtable.used() + group.bytes <= memtable_limit
            && self.log_len() + (group.log_bytes + MAX_RECORD_HEADER_LEN) as u64 <= log_limit;
        fits || self.memtable.is_empty()
    }
}

/// What the log stores of a batch, by the options of its keyspaces.
#[derive(Default)]
pub(crate) struct Logging {
    /// `None` if that is all of it.
    pub(super) part: Option<LoggedPart>,
    /// [`Writer::keyspaces_as_of`](super::Writer::keyspaces_as_of), before the keyspaces were
    /// looked up.
    pub(super) as_of: u64,
}

/// A batch encoded as the log stores it, with its checksum, both computed outside of the commit
/// lock.
pub(crate) struct Encoded<'a> {
    pub(super) payload: Cow<'a, [u8]>,
    pub(super) count: u32,
    /// What a reader of the log must understand to read the batch.
    pub(super) features: u32,
    /// What the log stores, if that is not `payload`.
    logged: Option<LoggedPart>,
    /// See [`Logging`].
    as_of: u64,
    /// Of what the log stores.
    crc: u32,
    /// The batch's only operation, as `payload` encodes it. A batch that does not have it is
    /// decoded.
    pub(super) single: Option<Op<'a>>,
    /// Whether the caller will sync.
    pub(super) sync: bool,
}

impl<'a> Encoded<'a> {
    /// A batch of which the log stores what `logging` says.
    #[inline]
    pub(crate) fn new(payload: Cow<'a, [u8]>, count: u32, features: u32, logging: Logging, sync: bool) -> Encoded<'a> {
        let Logging { part: logged, as_of } = logging;
        let crc = checksum::crc(logged.as_ref().map_or(&payload, |part| &part.payload));
        let features = features | if logged.is_some() { features::UNLOGGED } else { 0 };
        Encoded { payload, count, features, logged, as_of, crc, single: None, sync }
    }

    /// A batch of one operation.
    #[inline]
    pub(crate) fn single(
        payload: &'a [u8],
        operation: Op<'a>,
        features: u32,
        logging: Logging,
        sync: bool,
    ) -> Encoded<'a> {
        let encoded = Encoded::new(Cow::Borrowed(payload), 1, features, logging, sync);
        Encoded { single: Some(operation), ..encoded }
    }

    pub(crate) fn of(batch: WriteBatch, logging: Logging, sync: bool) -> Encoded<'static> {
        let (count, features) = (batch.count(), batch.features());
        Encoded::new(Cow::Owned(batch.into_payload()), count, features, logging, sync)
    }

    /// A batch that stays with its owner. If it queues, it is copied.
    pub(crate) fn borrowing(batch: &'a WriteBatch, logging: Logging, sync: bool) -> Encoded<'a> {
        Encoded::new(Cow::Borrowed(batch.payload()), batch.count(), batch.features(), logging, sync)
    }

    /// Whether keyspaces may have changed since the batch was checked; see
    /// [`Writer`](super::Writer).
    #[inline]
    pub(super) fn is_older_than(&self, keyspaces: u64) -> bool {
        self.as_of != keyspaces
    }

    /// The batch as the log stores it by options that have changed.
    pub(super) fn logged_anew(&self, keyspaces: u64, is_logged: impl Fn(u32) -> bool) -> Encoded<'_> {
        let part = LoggedPart::of(&self.payload, self.count, is_logged);
        let features = self.features & !features::UNLOGGED;
        let logging = Logging { part, as_of: keyspaces };
        Encoded::new(Cow::Borrowed(&self.payload), self.count, features, logging, self.sync)
    }

    /// The keyspaces that the batch writes to, each perhaps several times.
    pub(super) fn keyspaces(&self) -> impl Iterator<Item = u32> {
        // A payload that does not decode fails when it is applied.
        BatchReader::new(&self.payload, self.count).map_while(|operation| Some(operation.ok()?.keyspace))
    }

    /// Whether the log stores an operation of the batch.
    pub(super) fn is_logged(&self) -> bool {
        self.logged.as_ref().is_none_or(|part| part.has_operations)
    }

    pub(crate) fn borrowed(&self) -> Encoded<'_> {
        Encoded { payload: Cow::Borrowed(&self.payload), logged: self.logged.clone(), ..*self }
    }

    /// What the log stores of the batch.
    pub(super) fn record(&self) -> NewRecord<'_> {
        let payload = self.logged.as_ref().map_or(&*self.payload, |part| &part.payload);
        NewRecord { payload, payload_crc: self.crc, count: self.count }
    }

    /// The batch, for the queue. Leaves an empty one.
    pub(super) fn take(&mut self) -> Encoded<'static> {
        let payload = Cow::Owned(std::mem::take(&mut self.payload).into_owned());
        Encoded { payload, logged: self.logged.take(), single: None, ..*self }
    }
}

/// What became of a batch that was to be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
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

impl QueuedWrite {
    pub(super) fn is_done(&self) -> bool {
        self.result.lock().is_some()
    }
}

/// Writers that wait for the commit lock.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Arc<QueuedWrite>>>,
    /// A hint that `waiting` is not empty. May be stale by one push, whose writer then commits for
    /// itself.
    has_waiting: AtomicBool,
    /// How many ask for the stillness of memtables. Raised under the commit lock: what a writer
    /// does under that lock is done before.
    pub(super) stillness: AtomicUsize,
}

impl Queue {
    pub(super) fn push(&self, write: Arc<QueuedWrite>) {
        let mut waiting = self.waiting.lock();
        waiting.push_back(write);
        self.has_waiting.store(true, Ordering::Relaxed);
    }

    /// The size of the first write in the queue.
    pub(super) fn first_len(&self) -> Option<GroupLen> {
        self.waiting.lock().front().map(|first| GroupLen::of(&first.encoded))
    }

    /// Takes a write out of the queue; returns whether it was still there.
    pub(super) fn remove(&self, write: &Arc<QueuedWrite>) -> bool {
        let mut waiting = self.waiting.lock();
        let at = waiting.iter().position(|queued| Arc::ptr_eq(queued, write));
        let removed = at.and_then(|at| waiting.remove(at)).is_some();
        self.has_waiting.store(!waiting.is_empty(), Ordering::Relaxed);
        removed
    }

    /// Takes writes from the queue to join a group of the size `own`, as long as it `fits`. A group
    /// without a size takes the first write in any case.
    #[inline]
    pub(super) fn take(&self, own: GroupLen, fits: impl Fn(GroupLen) -> bool) -> Vec<Arc<QueuedWrite>> {
        // A writer missed here has not got the commit lock yet, and will commit for itself.
        if self.has_waiting.load(Ordering::Relaxed) { self.take_waiting(own, fits) } else { Vec::new() }
    }

    #[inline(never)]
    fn take_waiting(&self, own: GroupLen, fits: impl Fn(GroupLen) -> bool) -> Vec<Arc<QueuedWrite>> {
        let mut waiting = self.waiting.lock();
        let (mut group, mut taken) = (own, Vec::new());
        while let Some(next) = waiting.front() {
            let with_next = group.and(GroupLen::of(&next.encoded));
            if group.bytes > 0 && (with_next.bytes > MAX_GROUP_LEN || !fits(with_next)) {
                break;
            }
            group = with_next;
            taken.extend(waiting.pop_front());
        }
        self.has_waiting.store(!waiting.is_empty(), Ordering::Relaxed);
        taken
    }
}
