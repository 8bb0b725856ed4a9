//! [`LogTail`]: how far a log has been written, for threads that read it meanwhile.
//!
//! The writer publishes the length of the log before its numbers become visible: a reader that
//! loads a number first and the length second finds all records up to the number.

use tamis_base::sync::Mutex;
use tamis_base::sync::atomic::{AtomicU64, Ordering};

/// Bytes between two entries of the list of offsets: a reader that starts anywhere passes over
/// less than this, a fraction of a millisecond.
const MARK_INTERVAL: u64 = 256 << 10;

/// The published length of a log. Everything before it is whole and will not change.
#[derive(Debug, Default)]
pub struct LogTail {
    len: AtomicU64,
    /// First ordinal and offset of some records, ascending.
    marks: Mutex<Vec<(u64, u64)>>,
    marked: AtomicU64,
}

impl LogTail {
    /// The tail of a log that nobody writes any more.
    pub fn of_len(len: u64) -> LogTail {
        LogTail { len: AtomicU64::new(len), ..LogTail::default() }
    }

    /// Publishes the log up to `len`; the next record begins there, with ordinal `next`. Only the
    /// log's writer calls this.
    #[inline]
    pub(super) fn publish(&self, len: u64, next: u64) {
        self.len.store(len, Ordering::Release);
        if len >= self.marked.load(Ordering::Relaxed) + MARK_INTERVAL {
            self.marked.store(len, Ordering::Relaxed);
            self.marks.lock().push((next, len));
        }
    }

    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// First ordinal and offset of a record that begins at `ordinal` or before, as far on as known.
    pub fn mark_before(&self, ordinal: u64) -> Option<(u64, u64)> {
        let marks = self.marks.lock();
        let after = marks.partition_point(|(first, _)| *first <= ordinal);
        after.checked_sub(1).and_then(|at| marks.get(at)).copied()
    }
}
