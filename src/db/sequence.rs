//! [`Sequence`]: up to which number writes are visible, in the log, durable and flushed.
//!
//! Each number only grows. A write is visible before it is durable, and durable at the latest when
//! it is in a table. At rest, `flushed <= durable <= logged <= visible`; a commit raises `logged`
//! just before `visible`. Writes to keyspaces without a log
//! count as logged once the log counts them, and as durable with the logged ones around them. An
//! ingest is the exception: it is logged and durable before it is visible.

use crate::format::key::SeqNo;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The sequence numbers up to which all writes are visible, in the log, durable and flushed.
// A cache line of its own: every write changes it.
#[repr(align(64))]
pub(crate) struct Sequence {
    visible: AtomicU64,
    logged: AtomicU64,
    durable: AtomicU64,
    flushed: AtomicU64,
    recovered: SeqNo,
}

impl Sequence {
    /// The numbers of a store just opened: `last` is the last write recovered, tables hold the
    /// writes up to `flushed`, and those up to `durable` are durable.
    pub(super) fn new(last: SeqNo, flushed: SeqNo, durable: SeqNo) -> Sequence {
        Sequence {
            visible: AtomicU64::new(last),
            logged: AtomicU64::new(last),
            durable: AtomicU64::new(durable),
            flushed: AtomicU64::new(flushed),
            recovered: last,
        }
    }

    /// Readers see every write up to this number.
    #[inline]
    pub(super) fn visible(&self) -> SeqNo {
        self.visible.load(Ordering::Acquire)
    }

    /// The logs hold or count every write up to this number: what a sync can cover, and what a
    /// reader of the logs finds.
    pub(super) fn logged(&self) -> SeqNo {
        self.logged.load(Ordering::Acquire)
    }

    /// The log has every write up to this number, and reads see it.
    pub(super) fn logged_and_visible(&self) -> SeqNo {
        self.logged().min(self.visible())
    }

    /// Every logged write up to this number is on stable storage.
    pub(super) fn durable(&self) -> SeqNo {
        self.durable.load(Ordering::Acquire)
    }

    /// Every write up to this number is in a table.
    pub(super) fn flushed(&self) -> SeqNo {
        self.flushed.load(Ordering::Acquire)
    }

    /// The last write that opening recovered from logs or found in tables.
    pub(super) fn recovered(&self) -> SeqNo {
        self.recovered
    }

    /// Whether everything that opening recovered is durable: the logs prove it, or tables hold it.
    pub(super) fn is_recovery_durable(&self) -> bool {
        self.durable() >= self.recovered
    }

    /// Notes that the log has all writes up to `seqno`. Only the thread that holds the commit lock
    /// calls this.
    pub(super) fn note_logged(&self, seqno: SeqNo) {
        self.logged.store(seqno, Ordering::Release);
    }

    /// Makes writes visible up to `seqno`. Only the thread that holds the commit lock calls this.
    pub(super) fn publish(&self, seqno: SeqNo) {
        self.visible.store(seqno, Ordering::Release);
    }

    /// Notes that a sync has made the writes up to `seqno` durable.
    pub(super) fn note_synced(&self, seqno: SeqNo) {
        self.durable.fetch_max(seqno, Ordering::AcqRel);
    }

    /// Notes that tables hold the writes up to `seqno`, and that the manifest says so.
    pub(super) fn note_flushed(&self, seqno: SeqNo) {
        self.note_synced(seqno);
        self.flushed.fetch_max(seqno, Ordering::AcqRel);
    }
}
