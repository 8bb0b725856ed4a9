//! [`RangeHistory`]: the range deletes of a memtable, as every live reader needs them.
//!
//! The ranges of a keyspace form a [tree](RangeTree) of disjoint fragments, each with the newest
//! number that deletes its keys. A new range cuts out whatever it covers: a log purged again and
//! again from one start is one fragment. A reader that holds a root sees no later range.
//!
//! Commits publish one root for each group of writes, before the group is visible. Of earlier roots
//! those stay that live snapshots need, and the last one, for reads that began before the group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::range_tree::RangeTree;
use crate::format::key::SeqNo;
use crate::sorted::ranges::{Fragment, Piece, RangeSource};

/// Memory that a fragment takes besides its keys in the memtable's log, about: two keys, and what
/// older roots keep.
const FRAGMENT_LEN: usize = 128;

/// The fragments of all keyspaces at one moment.
#[derive(Clone, Default)]
pub(super) struct Fragments {
    /// Ordered by keyspace.
    trees: Arc<Vec<(u32, RangeTree)>>,
}

impl Fragments {
    /// Adds a range that is newer than all others.
    pub(super) fn insert(&mut self, keyspace: u32, range: &Fragment) {
        let trees = Arc::make_mut(&mut self.trees);
        let at = trees.binary_search_by_key(&keyspace, |(id, _)| *id).unwrap_or_else(|at| {
            trees.insert(at, (keyspace, RangeTree::default()));
            at
        });
        trees[at].1.insert(range);
    }

    fn tree(&self, keyspace: u32) -> Option<&RangeTree> {
        let at = self.trees.binary_search_by_key(&keyspace, |(id, _)| *id).ok()?;
        Some(&self.trees[at].1)
    }

    /// The piece of a keyspace that `key` lies in.
    pub(super) fn piece(&self, keyspace: u32, key: &[u8]) -> Piece<'_> {
        self.tree(keyspace).map_or(Piece::default(), |tree| tree.piece_at(key, false))
    }

    pub(super) fn count(&self, keyspace: u32) -> usize {
        self.tree(keyspace).map_or(0, RangeTree::len)
    }

    fn len(&self) -> usize {
        self.trees.iter().map(|(_, tree)| tree.len()).sum()
    }

    fn list(&self, keyspace: u32) -> Vec<Fragment> {
        self.tree(keyspace).map(RangeTree::fragments).unwrap_or_default()
    }
}

impl RangeSource for RangeTree {
    fn piece_at(&self, key: &[u8], before: bool) -> Piece<'_> {
        self.piece_at(key, before)
    }

    fn last_piece(&self) -> Piece<'_> {
        self.last_piece()
    }
}

/// The fragments from write `since` on.
struct FragmentVersion {
    since: SeqNo,
    fragments: Fragments,
}

/// The range deletes of a memtable.
#[derive(Default)]
pub(super) struct RangeHistory {
    /// Whether there are any. Readers look at nothing else if not.
    any: AtomicBool,
    /// Estimated memory.
    used: AtomicUsize,
    /// Oldest first.
    versions: RwLock<Vec<FragmentVersion>>,
}

impl RangeHistory {
    /// Readers that have loaded the visible number before this call see all ranges up to it.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The fragments as of the last write.
    pub(super) fn newest(&self) -> Fragments {
        self.versions.read().last().map(|version| version.fragments.clone()).unwrap_or_default()
    }

    /// Publishes the fragments after a group of writes that ends with `last`. Of the earlier ones
    /// those stay that `snapshots`, ascending, need.
    pub(super) fn publish(&self, fragments: Fragments, last: SeqNo, snapshots: &[SeqNo]) {
        self.used.store(fragments.len() * FRAGMENT_LEN, Ordering::Relaxed);
        let mut versions = self.versions.write();
        let is_needed = |since: SeqNo, until: SeqNo| {
            let first = snapshots.partition_point(|&snapshot| snapshot < since);
            snapshots.get(first).is_some_and(|&snapshot| snapshot < until)
        };
        let next: Vec<SeqNo> = versions.iter().skip(1).map(|version| version.since).collect();
        let mut next = next.into_iter();
        // The last one has no successor yet.
        let is_over = |version: &mut FragmentVersion| next.next().is_some_and(|until| !is_needed(version.since, until));
        let over: Vec<FragmentVersion> = versions.extract_if(.., is_over).collect();
        versions.push(FragmentVersion { since: last, fragments });
        self.any.store(true, Ordering::Release);
        // Freeing them takes time, and readers wait for the lock.
        drop(versions);
        drop(over);
    }

    /// Calls `read` with the visible number and the number that deletes `key` for a reader of it;
    /// both are of one moment.
    pub(super) fn cover(&self, keyspace: u32, key: &[u8], snapshot: impl FnOnce() -> SeqNo) -> (SeqNo, SeqNo) {
        let versions = self.versions.read();
        let snapshot = snapshot();
        let newest = versions.last().map_or(0, |version| version.fragments.piece(keyspace, key).seqno);
        // A fragment of the newest root that the snapshot sees is the newest one for it as well.
        if newest <= snapshot {
            return (snapshot, newest);
        }
        let cover = at(&versions, snapshot).map_or(0, |version| version.fragments.piece(keyspace, key).seqno);
        (snapshot, cover)
    }

    /// The fragments of a keyspace as of `snapshot`, which is called while no ranges can be
    /// published.
    pub(super) fn as_of(&self, keyspace: u32, snapshot: impl FnOnce() -> SeqNo) -> (SeqNo, Option<RangeTree>) {
        let versions = self.versions.read();
        let snapshot = snapshot();
        (snapshot, at(&versions, snapshot).and_then(|version| version.fragments.tree(keyspace)).cloned())
    }

    /// The fragments of a keyspace that any reader still needs, with those of live snapshots.
    pub(super) fn all(&self, keyspace: u32) -> Vec<Fragment> {
        let versions = self.versions.read();
        let mut all: Vec<Fragment> = versions.iter().flat_map(|version| version.fragments.list(keyspace)).collect();
        all.sort_unstable_by(|a, b| (a.seqno, &a.start).cmp(&(b.seqno, &b.start)));
        all.dedup();
        all
    }
}

/// The newest version that `snapshot` sees whole.
fn at(versions: &[FragmentVersion], snapshot: SeqNo) -> Option<&FragmentVersion> {
    let count = versions.partition_point(|version| version.since <= snapshot);
    versions.get(count.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn fragment(start: &[u8], end: Option<&[u8]>, seqno: SeqNo) -> Fragment {
        Fragment { start: start.into(), end: end.map(Arc::from), seqno }
    }

    proptest! {
        #[test]
        fn every_moment_tells_the_newest_range_of_each_key(
            ranges in vec((0u32..3, vec(0u8..4, 0..3), option::weighted(0.9, vec(0u8..4, 1..3))), 0..30),
            kept in vec(0u64..30, 0..4),
        ) {
            let history = RangeHistory::default();
            let mut kept = kept;
            kept.sort_unstable();
            let mut known: Vec<(u32, Fragment)> = Vec::new();
            for (seqno, (keyspace, start, end)) in (1..).zip(&ranges) {
                if end.as_ref().is_some_and(|end| end <= start) {
                    continue;
                }
                let mut fragments = history.newest();
                fragments.insert(*keyspace, &fragment(start, end.as_deref(), seqno));
                known.push((*keyspace, fragment(start, end.as_deref(), seqno)));
                history.publish(fragments, seqno, &kept);
                let before = seqno - 1;
                for snapshot in kept.iter().copied().filter(|&kept| kept <= seqno).chain([before, seqno]) {
                    for keyspace in 0..3 {
                        for a in 0..5u8 {
                            for key in [vec![], vec![a], vec![a, 1], vec![a, 3, 0]] {
                                let holds = |(of, range): &&(u32, Fragment)| {
                                    *of == keyspace
                                        && range.seqno <= snapshot
                                        && *range.start <= *key
                                        && range.end.as_deref().is_none_or(|end| *key < *end)
                                };
                                let expected = known.iter().filter(holds).map(|(_, range)| range.seqno).max();
                                let (_, cover) = history.cover(keyspace, &key, || snapshot);
                                prop_assert_eq!(cover, expected.unwrap_or(0), "{} {:?} at {}", keyspace, key, snapshot);
                                let (_, tree) = history.as_of(keyspace, || snapshot);
                                prop_assert_eq!(tree.map_or(0, |tree| tree.piece(&key).seqno), cover);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_log_purged_from_one_start_is_one_fragment() {
        let history = RangeHistory::default();
        for i in 1..=1000u64 {
            let mut fragments = history.newest();
            fragments.insert(7, &fragment(b"", Some(&i.to_be_bytes()), i));
            history.publish(fragments, i, &[]);
        }
        assert_eq!(history.all(7).len(), 2, "the newest one, and the one before it");
        assert_eq!(history.newest().len(), 1);
    }
}
