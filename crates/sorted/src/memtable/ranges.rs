//! [`RangeHistory`]: the range deletes of a memtable, as every live reader needs them.
//!
//! The ranges of a keyspace form a [tree](RangeTree) of disjoint fragments, each with the newest
//! number that deletes its keys. A new range cuts out whatever it covers: a log purged again and
//! again from one start is one fragment. A reader that holds a root sees no later range.
//!
//! Commits publish one root for each group of writes, before the group is visible. Of earlier roots
//! those stay that live snapshots need, and the last one, for reads that began before the group.
//!
//! Roots share what has not changed between them; `MemoryStats` counts them. A flush takes the
//! ranges from their entries, as they were written, and not from the roots.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::entries::Position;
use super::range_tree::RangeTree;
use crate::format::key::SeqNo;
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::ranges::{Fragment, Piece, RangeSource};
use crate::sync::{Mutex, RwLock};

/// All roots are looked at for ones that no reader needs any more after this many writes, and after
/// as many as there are roots.
const MIN_SWEPT: usize = 16;

/// Whether a reader may be at one of these numbers.
pub(super) type IsNeeded<'a> = &'a dyn Fn(Range<SeqNo>) -> bool;

/// The fragments of all keyspaces at one moment.
#[derive(Clone)]
pub(super) struct Fragments {
    /// Ordered by keyspace.
    keyspaces: Arc<Vec<KeyspaceRanges>>,
    /// Bytes of the trees' nodes.
    memory: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct KeyspaceRanges {
    id: u32,
    tree: RangeTree,
    /// The entry of the newest range, which leads to the older ones.
    newest: Position,
}

impl Fragments {
    fn position(&self, keyspace: u32) -> Result<usize, usize> {
        self.keyspaces.binary_search_by_key(&keyspace, |ranges| ranges.id)
    }

    fn of(&self, keyspace: u32) -> Option<&KeyspaceRanges> {
        Some(&self.keyspaces[self.position(keyspace).ok()?])
    }

    /// Adds a range that is newer than all others, and has its entry at `position`.
    pub(super) fn insert(&mut self, keyspace: u32, range: &Fragment, position: Position) {
        let at = self.position(keyspace);
        let keyspaces = Arc::make_mut(&mut self.keyspaces);
        let at = at.unwrap_or_else(|at| {
            let tree = RangeTree::new(&self.memory);
            keyspaces.insert(at, KeyspaceRanges { id: keyspace, tree, newest: position });
            at
        });
        keyspaces[at].tree.insert(range);
        keyspaces[at].newest = position;
    }

    fn tree(&self, keyspace: u32) -> Option<&RangeTree> {
        self.of(keyspace).map(|ranges| &ranges.tree)
    }

    /// The entry of the newest range of a keyspace.
    pub(super) fn newest_entry(&self, keyspace: u32) -> Option<Position> {
        self.of(keyspace).map(|ranges| ranges.newest)
    }

    /// The newest number that deletes any of the keys from `from` up to `to`; 0 if there is none.
    pub(super) fn newest_within(&self, keyspace: u32, from: &[u8], to: Option<&[u8]>) -> SeqNo {
        self.tree(keyspace).map_or(0, |tree| tree.newest_within(from, to))
    }

    /// The piece of a keyspace that `key` lies in.
    pub(super) fn piece(&self, keyspace: u32, key: &[u8]) -> Piece<'_> {
        self.tree(keyspace).map_or(Piece::default(), |tree| tree.piece_at(key, false))
    }

    pub(super) fn count(&self, keyspace: u32) -> usize {
        self.tree(keyspace).map_or(0, RangeTree::len)
    }

    pub(super) fn keyspaces(&self) -> Vec<u32> {
        self.keyspaces.iter().map(|ranges| ranges.id).collect()
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
pub(super) struct RangeHistory {
    /// Whether there are any. Readers look at nothing else if not.
    any: AtomicBool,
    /// Bytes of all roots, as long as a reader has them.
    memory: Arc<AtomicUsize>,
    /// Bytes that a flush takes to order the ranges.
    sorting: AtomicUsize,
    /// For both, as of the last write or the last flush that began or ended.
    charge: Mutex<MemoryCharge>,
    versions: RwLock<Versions>,
}

#[derive(Default)]
struct Versions {
    /// Oldest first.
    list: Vec<FragmentVersion>,
    /// How many writes there will be before all are looked at.
    unswept: usize,
}

impl RangeHistory {
    /// No ranges; charged to `budget`.
    pub(super) fn new(budget: &Arc<MemoryBudget>) -> RangeHistory {
        let charge = Mutex::new(MemoryCharge::new(budget, MemoryUse::Memtables, 0));
        let (any, memory, sorting, versions) = Default::default();
        RangeHistory { any, memory, sorting, charge, versions }
    }

    fn charge(&self) {
        self.charge.lock().resize(self.allocated());
    }

    /// Readers that have loaded the visible number before this call see all ranges up to it.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Bytes of the ranges beside their entries.
    #[inline]
    pub(super) fn used(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    /// Bytes of the ranges beside their entries, and of their flush.
    pub(super) fn allocated(&self) -> usize {
        self.used() + self.sorting.load(Ordering::Relaxed)
    }

    /// Counts `bytes` of a flush until the result is dropped.
    pub(super) fn count_sorting(&self, bytes: usize) -> SortingBytes<'_> {
        self.sorting.fetch_add(bytes, Ordering::Relaxed);
        self.charge();
        SortingBytes { history: self, bytes }
    }

    /// The fragments as of the last write.
    pub(super) fn newest(&self) -> Fragments {
        let newest = self.versions.read().list.last().map(|version| version.fragments.clone());
        newest.unwrap_or_else(|| Fragments { keyspaces: Arc::default(), memory: Arc::clone(&self.memory) })
    }

    /// Publishes the fragments after a group of writes that ends with `last`. Of the earlier ones
    /// the last stays, and those that are needed.
    ///
    /// Readers between two roots can only become fewer once there is a third. What is needed is
    /// decided for one root then, and for all of them at times: the cost of a write does not grow
    /// with the number of snapshots.
    pub(super) fn publish(&self, fragments: Fragments, last: SeqNo, is_needed: IsNeeded<'_>) {
        let mut versions = self.versions.write();
        let Versions { list, unswept } = &mut *versions;
        let looked_at = if *unswept > 0 { list.len().saturating_sub(2) } else { 0 };
        let next: Vec<SeqNo> = list[looked_at..].iter().skip(1).map(|version| version.since).collect();
        let mut next = next.into_iter();
        // The last one has no successor yet.
        let is_over = |version: &mut FragmentVersion| next.next().is_some_and(|next| !is_needed(version.since..next));
        let over: Vec<FragmentVersion> = list.extract_if(looked_at.., is_over).collect();
        *unswept = unswept.checked_sub(1).unwrap_or(MIN_SWEPT.max(list.len()));
        list.push(FragmentVersion { since: last, fragments });
        self.any.store(true, Ordering::Release);
        // Freeing them takes time, and readers wait for the lock.
        drop(versions);
        drop(over);
        self.charge();
    }

    /// Calls `read` with the visible number and the number that deletes `key` for a reader of it;
    /// both are of one moment.
    pub(super) fn cover(&self, keyspace: u32, key: &[u8], snapshot: impl FnOnce() -> SeqNo) -> (SeqNo, SeqNo) {
        let versions = self.versions.read();
        let snapshot = snapshot();
        let newest = versions.list.last().map_or(0, |version| version.fragments.piece(keyspace, key).seqno);
        // A fragment of the newest root that the snapshot sees is the newest one for it as well.
        if newest <= snapshot {
            return (snapshot, newest);
        }
        let cover = at(&versions.list, snapshot).map_or(0, |version| version.fragments.piece(keyspace, key).seqno);
        (snapshot, cover)
    }

    /// The fragments of a keyspace as of `snapshot`, which is called while no ranges can be
    /// published.
    pub(super) fn as_of(&self, keyspace: u32, snapshot: impl FnOnce() -> SeqNo) -> (SeqNo, Option<RangeTree>) {
        let versions = self.versions.read();
        let snapshot = snapshot();
        (snapshot, at(&versions.list, snapshot).and_then(|version| version.fragments.tree(keyspace)).cloned())
    }

    /// The newest number that deletes any of the keys from `from` up to `to`, of all ranges
    /// published; 0 if there is none.
    pub(super) fn newest_within(&self, keyspace: u32, from: &[u8], to: Option<&[u8]>) -> SeqNo {
        let versions = self.versions.read();
        versions.list.last().map_or(0, |version| version.fragments.newest_within(keyspace, from, to))
    }
}

/// Bytes of a flush; see [`RangeHistory::count_sorting`].
pub struct SortingBytes<'a> {
    history: &'a RangeHistory,
    bytes: usize,
}

impl Drop for SortingBytes<'_> {
    fn drop(&mut self) {
        self.history.sorting.fetch_sub(self.bytes, Ordering::Relaxed);
        self.history.charge();
    }
}

/// The newest version that `snapshot` sees whole.
fn at(versions: &[FragmentVersion], snapshot: SeqNo) -> Option<&FragmentVersion> {
    let count = versions.partition_point(|version| version.since <= snapshot);
    versions.get(count.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
            let history = RangeHistory::new(&MemoryBudget::unlimited());
            let mut kept = kept;
            kept.sort_unstable();
            let mut known: Vec<(u32, Fragment)> = Vec::new();
            for (seqno, (keyspace, start, end)) in (1..).zip(&ranges) {
                if end.as_ref().is_some_and(|end| end <= start) {
                    continue;
                }
                let mut fragments = history.newest();
                fragments.insert(*keyspace, &fragment(start, end.as_deref(), seqno), Position::new(1).unwrap());
                known.push((*keyspace, fragment(start, end.as_deref(), seqno)));
                history.publish(fragments, seqno, &|numbers| kept.iter().any(|kept| numbers.contains(kept)));
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
        let history = RangeHistory::new(&MemoryBudget::unlimited());
        for i in 1..=1000u64 {
            let mut fragments = history.newest();
            fragments.insert(7, &fragment(b"", Some(&i.to_be_bytes()), i), Position::new(1).unwrap());
            history.publish(fragments, i, &|_| false);
        }
        let lens = |history: &RangeHistory| -> Vec<usize> {
            history.versions.read().list.iter().map(|version| version.fragments.count(7)).collect()
        };
        assert_eq!(lens(&history), [1, 1], "the newest one, and the one before it");
    }

    /// The number of looks at a root while each of 4,000 writes has a snapshot, and while they go.
    #[test]
    fn what_a_write_looks_at_does_not_grow_with_the_number_of_snapshots() {
        let (history, looks, least) = (RangeHistory::new(&MemoryBudget::unlimited()), Cell::new(0), Cell::new(0));
        let is_needed = |numbers: Range<SeqNo>| {
            looks.set(looks.get() + 1);
            least.get() <= numbers.start
        };
        let publish = |seqno: u64| {
            let mut fragments = history.newest();
            fragments.insert(0, &fragment(b"", Some(&seqno.to_be_bytes()), seqno), Position::new(1).unwrap());
            history.publish(fragments, seqno, &is_needed);
        };
        (1..=4000).for_each(publish);
        assert_eq!(history.versions.read().list.len(), 4000);
        assert!(looks.get() < 4 * 4000, "{}", looks.get());
        // What nobody needs any more goes with the writes that follow.
        least.set(SeqNo::MAX);
        (4001..=12_000).for_each(publish);
        assert!(looks.get() < 4 * 12_000, "{}", looks.get());
        assert_eq!(history.versions.read().list.len(), 2);
    }
}
