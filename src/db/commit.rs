//! What the commit lock guards, and the queue of writers that wait for it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::error::Result;
use crate::format::checksum;
use crate::format::header::FileHeader;
use crate::format::key::SeqNo;
use crate::write::log::{LogRecord, LogWriter};
use crate::write::memtable::Memtable;

/// Bytes of batches that are committed as one group. A larger batch is a group of its own.
const MAX_GROUP_LEN: usize = 1 << 20;

/// What is held while committing.
pub(super) struct Commit {
    pub(super) memtable: Arc<Memtable>,
    /// How the memtable's log begins.
    pub(super) header: FileHeader,
    /// The memtable's log, once something is to be written to it: a store that rests has none.
    pub(super) log: Option<LogWriter>,
    /// Length of the log for which space is reserved.
    pub(super) reserved: u64,
}

impl Commit {
    /// Goes on in an empty memtable, with a log that follows the one of `header.previous`.
    pub(super) fn new(memtable: Arc<Memtable>, header: FileHeader) -> Commit {
        Commit { memtable, header, log: None, reserved: 0 }
    }

    /// The sequence number that the next write begins with.
    pub(super) fn next(&self) -> SeqNo {
        self.log.as_ref().map_or(self.header.first, LogWriter::next)
    }

    /// The highest sequence number that the log states to be durable.
    pub(super) fn stated(&self) -> SeqNo {
        self.log.as_ref().map_or(0, LogWriter::stated)
    }

    pub(super) fn log_len(&self) -> u64 {
        self.log.as_ref().map_or(0, LogWriter::len)
    }
}

/// The operations of a batch as the log stores them, and their checksum, computed outside of the lock.
pub(super) struct Encoded<'a> {
    pub(super) payload: Cow<'a, [u8]>,
    pub(super) count: u32,
    crc: u32,
    /// Whether the caller is going to sync.
    pub(super) sync: bool,
}

impl<'a> Encoded<'a> {
    pub(super) fn new(payload: Cow<'a, [u8]>, count: u32, sync: bool) -> Encoded<'a> {
        let crc = checksum::crc(&payload);
        Encoded { payload, count, crc, sync }
    }

    pub(super) fn record(&self) -> LogRecord<'_> {
        LogRecord { payload: &self.payload, payload_crc: self.crc, count: self.count }
    }

    pub(super) fn into_owned(self) -> Encoded<'static> {
        Encoded { payload: Cow::Owned(self.payload.into_owned()), ..self }
    }
}

/// A writer that waits for whoever commits.
pub(super) struct Pending {
    pub(super) encoded: Encoded<'static>,
    pub(super) result: Mutex<Option<Result<SeqNo>>>,
}

/// Writers that wait for whoever commits.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Arc<Pending>>>,
    /// Whether there may be any: looked at by whoever commits, who need not find the last one.
    any: AtomicBool,
}

impl Queue {
    pub(super) fn push(&self, pending: Arc<Pending>) {
        let mut waiting = self.waiting.lock();
        waiting.push_back(pending);
        self.any.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// The next writes of the queue, so many that a group of `bytes` bytes stays within its limit with them.
    pub(super) fn take(&self, mut bytes: usize) -> Vec<Arc<Pending>> {
        // Whoever is overlooked here has not yet got the right to commit, and will commit for itself.
        if !self.any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock();
        let mut taken = Vec::new();
        while let Some(next) = waiting.front() {
            bytes += next.encoded.payload.len();
            if bytes > MAX_GROUP_LEN && !taken.is_empty() {
                break;
            }
            taken.extend(waiting.pop_front());
        }
        self.any.store(!waiting.is_empty(), Ordering::Relaxed);
        taken
    }
}
