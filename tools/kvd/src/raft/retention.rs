//! How much of its log a group keeps, and when its state is made durable so that it may keep less.
//!
//! The library's own rule counts entries, and purges while a snapshot is on its way to a node that
//! will need what comes after it: under writes, that node would get one snapshot after the other.
//! Here, what such a node needs is held until it has caught up, within [`MOST_HELD`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::replica::NodeId;

/// Bytes of new entries after which the state is made durable, however few they are.
const SNAPSHOT_BYTES: u64 = 128 << 20;
/// Bytes of entries that are kept for nodes that are away, however few they are.
const MOST_KEPT: u64 = 512 << 20;
/// Bytes of entries that are kept for nodes to which a snapshot is on its way.
const MOST_HELD: u64 = 4 << 30;

/// What is known of the length of a group's log.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// Bytes appended since the node started.
    appended: AtomicU64,
    /// Indexes of entries, with the bytes appended up to then; ascending.
    marks: Mutex<VecDeque<(u64, u64)>>,
    /// Nodes that were sent a snapshot, and the index of its last entry.
    held: Mutex<BTreeMap<NodeId, u64>>,
}

impl Retention {
    /// Notes bytes that were appended to the log.
    pub(super) fn note_appended(&self, bytes: usize) {
        self.appended.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes where the log ends now, and how much of its front is gone.
    pub(super) fn mark(&self, last: u64, purged: u64) {
        let mut marks = self.marks.lock();
        if marks.back().is_none_or(|(index, _)| *index < last) {
            marks.push_back((last, self.appended.load(Ordering::Relaxed)));
        }
        while marks.get(1).is_some_and(|(index, _)| *index <= purged) {
            marks.pop_front();
        }
    }

    /// Keeps the entries after `index` for a node that gets the state up to there.
    pub(super) fn hold(&self, node: NodeId, index: u64) {
        self.held.lock().insert(node, index);
    }

    /// Keeps nothing for a node any more.
    pub(super) fn release(&self, node: NodeId) {
        self.held.lock().remove(&node);
    }

    /// Bytes appended after entry `index`, at most; fewer if the node has started since.
    fn bytes_after(&self, index: u64) -> u64 {
        let marks = self.marks.lock();
        let before = marks.iter().rev().find(|(marked, _)| *marked <= index).map_or(0, |(_, bytes)| *bytes);
        self.appended.load(Ordering::Relaxed).saturating_sub(before)
    }

    /// Whether the state up to entry `applied` is to be made durable, `every` so many entries.
    pub(super) fn is_snapshot_due(&self, applied: u64, snapshot: u64, every: u64) -> bool {
        applied > snapshot && (applied - snapshot >= every || self.bytes_after(snapshot) >= SNAPSHOT_BYTES)
    }

    /// Up to which entry the log may be purged. `matched` has the nodes that this one leads, and
    /// how far their logs agree with its own.
    pub(super) fn purge_upto(&self, snapshot: u64, keep: u64, matched: &BTreeMap<NodeId, u64>) -> u64 {
        let by_count = snapshot.saturating_sub(keep);
        // The last mark that has that much behind it.
        let appended = self.appended.load(Ordering::Relaxed);
        let marks = self.marks.lock();
        let long = marks.iter().rev().find(|(_, bytes)| appended - bytes >= MOST_KEPT);
        let upto = long.map_or(by_count, |(index, _)| by_count.max((*index).min(snapshot)));
        drop(marks);
        let mut held = self.held.lock();
        held.retain(|node, index| {
            let catches_up = matched.get(node).is_some_and(|matched| *matched < upto.max(*index));
            catches_up && self.bytes_after(*index) <= MOST_HELD
        });
        held.values().min().map_or(upto, |index| upto.min(*index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of 100 entries, each of `len` bytes, with a mark after every tenth.
    fn log(len: usize) -> Retention {
        let log = Retention::default();
        for index in 1..=100 {
            log.note_appended(len);
            if index % 10 == 0 {
                log.mark(index, 0);
            }
        }
        log
    }

    #[test]
    fn short_entries_are_kept_by_number_and_long_ones_by_bytes() {
        let (short, long) = (log(1), log(16 << 20));
        assert!(!short.is_snapshot_due(100, 91, 10) && short.is_snapshot_due(100, 90, 10));
        assert!(long.is_snapshot_due(100, 90, 1000) && !long.is_snapshot_due(100, 100, 1000));
        let nobody = BTreeMap::new();
        assert_eq!((short.purge_upto(90, 50, &nobody), short.purge_upto(90, 95, &nobody)), (40, 0));
        // 32 entries are 512 MiB; the mark before them is that of entry 60.
        assert_eq!((long.purge_upto(90, 95, &nobody), long.purge_upto(50, 95, &nobody)), (60, 50));
    }

    #[test]
    fn what_a_node_needs_after_its_snapshot_is_held_until_it_has_caught_up() {
        let log = log(1);
        log.hold(4, 30);
        assert_eq!(log.purge_upto(90, 10, &BTreeMap::from([(4, 0)])), 30);
        assert_eq!(log.purge_upto(90, 10, &BTreeMap::from([(4, 79)])), 30);
        assert_eq!(log.purge_upto(90, 10, &BTreeMap::from([(4, 80)])), 80);
        // It is let go by then. So is a node that failed, and one that this node does not lead.
        assert_eq!(log.purge_upto(90, 10, &BTreeMap::from([(4, 0)])), 80);
        log.hold(4, 30);
        log.release(4);
        assert_eq!(log.purge_upto(90, 10, &BTreeMap::from([(4, 0)])), 80);
        log.hold(4, 30);
        assert_eq!(log.purge_upto(90, 10, &BTreeMap::new()), 80);
    }

    #[test]
    fn what_is_held_has_a_bound() {
        let log = log(64 << 20);
        // 64 entries are 4 GiB.
        log.hold(4, 40);
        assert_eq!(log.purge_upto(100, 10, &BTreeMap::from([(4, 0)])), 40);
        log.hold(4, 30);
        assert_eq!(log.purge_upto(100, 10, &BTreeMap::from([(4, 0)])), 90);
    }
}
