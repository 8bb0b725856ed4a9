//! [`LiveSnapshots`]: the sequence numbers of live snapshots.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::locks::{LockRank, RankedMutex};
use crate::format::key::SeqNo;

/// The sequence numbers of all live snapshots. Compactions keep what each of them sees.
pub(super) struct LiveSnapshots {
    /// Number of handles of each snapshot.
    handles: RankedMutex<BTreeMap<SeqNo, usize>>,
    /// Compactions can drop more once no snapshot is older than this. The scheduler writes it
    /// before it reads `handles`; dropping a snapshot reads it under that lock. Therefore at least
    /// one of the two sees the other.
    held_until: AtomicU64,
}

impl Default for LiveSnapshots {
    fn default() -> LiveSnapshots {
        LiveSnapshots {
            handles: RankedMutex::new(LockRank::Snapshots, BTreeMap::new()),
            held_until: AtomicU64::new(SeqNo::MAX),
        }
    }
}

impl LiveSnapshots {
    /// Adds a snapshot of what is `visible`, and returns its number.
    pub(super) fn add(&self, visible: impl FnOnce() -> SeqNo) -> SeqNo {
        let mut handles = self.handles.lock();
        // Read under the lock: a compaction that reads the list later sees this snapshot; one that
        // read it earlier keeps at least what is visible now.
        let seqno = visible();
        *handles.entry(seqno).or_default() += 1;
        seqno
    }

    /// Removes a snapshot. Returns whether compactions can drop more now.
    pub(super) fn remove(&self, seqno: SeqNo) -> bool {
        let mut handles = self.handles.lock();
        if let Some(count) = handles.get_mut(&seqno) {
            *count -= 1;
            if *count == 0 {
                handles.remove(&seqno);
            }
        }
        self.releases_garbage(&handles)
    }

    /// Number of handles of all snapshots.
    pub(super) fn count(&self) -> usize {
        self.handles.lock().values().sum()
    }

    /// Whether there is a snapshot with one of these numbers.
    pub(super) fn any_in(&self, numbers: Range<SeqNo>) -> bool {
        self.handles.lock().range(numbers).next().is_some()
    }

    /// Sequence numbers, ascending.
    pub(super) fn all(&self) -> Vec<SeqNo> {
        self.handles.lock().keys().copied().collect()
    }

    /// The oldest sequence number, or the greatest possible one if there is none.
    pub(super) fn oldest(&self) -> SeqNo {
        self.handles.lock().keys().next().copied().unwrap_or(SeqNo::MAX)
    }

    /// The newest sequence number; 0 if there is none.
    pub(super) fn newest(&self) -> SeqNo {
        self.handles.lock().keys().next_back().copied().unwrap_or(0)
    }

    /// Notes that snapshots older than `until` hold garbage. Returns whether none of them is left.
    pub(super) fn hold_garbage(&self, until: SeqNo) -> bool {
        self.held_until.store(until, Ordering::Relaxed);
        self.releases_garbage(&self.handles.lock())
    }

    fn releases_garbage(&self, handles: &BTreeMap<SeqNo, usize>) -> bool {
        let until = self.held_until.load(Ordering::Relaxed);
        until < SeqNo::MAX && handles.keys().next().is_none_or(|oldest| *oldest >= until)
    }
}
