//! [`ReadView`]: everything that a read consults, as of one moment.
//!
//! A view has the memtables, and the options and version of each keyspace. It never changes:
//! whatever changes one of these publishes a new view. Views share the map of keyspaces but for
//! what differs (`persistent`).
//!
//! An ingest changes tables and no memtable. A view from before it lacks it for ever, while its
//! active memtable goes on. Reads in it therefore stop at its *horizon*, and premises that were
//! noted in it are stale. A read may have loaded such a view and not its number yet. As long as the
//! view is in use, the memtable keeps the range deletes that a snapshot of its last number would
//! need ([`EndedHorizons`]).

use std::sync::{Arc, Weak};

use super::gaps::Gaps;
use super::persistent::PersistentMap;
use super::traffic::Traffic;
use crate::db::clock::Clock;
use crate::db::sequence::Sequence;
use crate::error::Result;
use crate::format::deadline::{Deadline, split_expiring};
use crate::format::effect::{Effect, Put, ValuePlace};
use crate::format::key::{SeqNo, ValueKind, Window};
use crate::memory::epoch::Pin;
use crate::operator::Answer;
use crate::options::KeyspaceOptions;
use crate::report::stats::ReadEvent;
use crate::sorted::memtable::{FOLD_FROM, FoldedChain, MemEntry, Memtable};
use crate::sorted::merge::MergingCursor;
use crate::sorted::range_table::RangeTable;
use crate::sorted::ranges::Covers;
use crate::sorted::table::{PointRead, PrefixProbe, ReadFlags, Table, TableHit};
use crate::sorted::trace::{Found, ReadSource, ReadTrace};
use crate::sorted::value::{FoundValue, Value};
use crate::sorted::values::{ValueFileMeta, ValueFiles};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tree::manifest::KeyspaceState;
use crate::tree::version::{Candidates, ScanSource, Version};

#[cfg(test)]
pub(crate) mod tests;

/// Memtables and versions of all keyspaces. A view never changes and keeps its memtables and tables
/// alive.
///
/// A read without a snapshot must load the view first and the visible sequence number second. Then
/// no entry that the number sees was compacted away before the view was made.
#[derive(Clone)]
pub(crate) struct ReadView {
    /// The memtable that writers fill.
    pub(crate) active: Arc<Memtable>,
    /// Full memtables waiting for their flush, newest first.
    pub(crate) sealed: Vec<Arc<Memtable>>,
    pub(crate) trees: Trees,
    /// Shared by all views until the next ingest.
    pub(crate) horizon: Arc<Horizon>,
}

/// Between which numbers views have all that was written. An ingest changes tables and no memtable:
/// views made before it lack it for ever, although their memtables get later writes. Views with it
/// are there before its number is visible.
pub(crate) struct Horizon {
    /// Number of the ingest that the views have; 0 if there was none.
    begins: SeqNo,
    /// The last number before the next ingest.
    ends: AtomicU64,
}

impl Default for Horizon {
    fn default() -> Horizon {
        Horizon::after(0)
    }
}

impl Horizon {
    /// That of views with the ingest numbered `seqno`, which is published later.
    pub(crate) fn after(seqno: SeqNo) -> Horizon {
        Horizon { begins: seqno, ends: AtomicU64::new(SeqNo::MAX) }
    }

    /// The horizon of a view that has what was written up to `seqno`, for ever.
    pub(crate) fn at(seqno: SeqNo) -> Horizon {
        Horizon { begins: seqno, ends: AtomicU64::new(seqno) }
    }

    /// Ends before the ingest numbered `seqno`, which is published after this call.
    pub(crate) fn end_before(&self, seqno: SeqNo) {
        self.ends.store(seqno - 1, Ordering::Release);
    }

    /// Whether memtables hold all that was written after `seqno`: no ingest was.
    pub(crate) fn has_all_after(&self, seqno: SeqNo) -> bool {
        self.begins <= seqno && self.ends.load(Ordering::Acquire) == SeqNo::MAX
    }
}

/// The horizons that have ended, while a view still has them. A thread may have loaded such a view
/// and not read in it yet: of the range deletes in memtables, those stay that the last number of
/// each of these views needs, as for a snapshot.
#[derive(Default)]
pub(crate) struct EndedHorizons(Vec<(SeqNo, Weak<Horizon>)>);

impl EndedHorizons {
    /// Adds a horizon that ends with `last`. Horizons end in the order of their numbers.
    pub(crate) fn add(&mut self, last: SeqNo, horizon: &Arc<Horizon>) {
        self.forget_unused();
        self.0.push((last, Arc::downgrade(horizon)));
    }

    /// The last numbers of the views in use, ascending.
    pub(crate) fn in_use(&mut self) -> Vec<SeqNo> {
        self.forget_unused();
        self.0.iter().map(|(last, _)| *last).collect()
    }

    fn forget_unused(&mut self) {
        self.0.retain(|(_, horizon)| horizon.strong_count() > 0);
    }
}

/// The keyspaces of a view. A copy shares what does not change: a view that replaces another costs
/// the same in a store of one keyspace and of thousands.
#[derive(Clone, Default)]
pub(crate) struct Trees {
    /// Keyspace 0, one step away for the reads that most stores do. It is in `by_id`, too.
    default: Option<Arc<Tree>>,
    by_id: PersistentMap<u32, Arc<Tree>>,
    ids: PersistentMap<Arc<str>, u32>,
    /// The keyspaces that were set or removed since the view was copied.
    touched: Vec<u32>,
}

impl Trees {
    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Tree> {
        match &self.default {
            Some(tree) if id == 0 => Some(tree),
            _ => self.by_id.get(&id).map(|tree| &**tree),
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<&Tree> {
        self.get(*self.ids.get(name)?)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All keyspaces, ordered by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tree> {
        self.by_id.values().map(|tree| &**tree)
    }

    /// Adds a keyspace, or replaces the one with its id and name.
    pub(crate) fn set(&mut self, tree: Tree) {
        let tree = Arc::new(tree);
        if tree.id == 0 {
            self.default = Some(Arc::clone(&tree));
        }
        self.touched.push(tree.id);
        if self.by_id.get(&tree.id).is_none() {
            self.ids.insert(Arc::clone(&tree.name), tree.id);
        }
        self.by_id.insert(tree.id, tree);
    }

    pub(crate) fn remove(&mut self, id: u32) {
        if let Some(tree) = self.by_id.remove(&id) {
            // Another keyspace may have the name by now.
            if self.ids.get(&*tree.name) == Some(&id) {
                self.ids.remove(&*tree.name);
            }
            self.touched.push(id);
        }
    }

    /// Gives a keyspace another name, if it is there.
    pub(super) fn rename(&mut self, id: u32, name: Arc<str>) {
        if let Some(tree) = self.get(id).cloned() {
            self.remove(id);
            self.set(Tree { name, ..tree });
        }
    }

    /// Changes a keyspace, if it is there.
    pub(crate) fn change(&mut self, id: u32, change: impl FnOnce(&mut Tree)) {
        if let Some(mut tree) = self.get(id).cloned() {
            change(&mut tree);
            self.set(tree);
        }
    }

    /// The keyspaces that were set or removed since the last call.
    pub(super) fn take_touched(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.touched)
    }
}

impl FromIterator<Tree> for Trees {
    fn from_iter<I: IntoIterator<Item = Tree>>(trees: I) -> Trees {
        let mut all = Trees::default();
        trees.into_iter().for_each(|tree| all.set(tree));
        all
    }
}

/// One keyspace in a view.
#[derive(Clone)]
pub(crate) struct Tree {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    pub(crate) options: KeyspaceOptions,
    pub(crate) version: Arc<Version>,
    /// Ranges where scans found nothing; shared by all views of the keyspace.
    pub(crate) gaps: Arc<Gaps>,
    pub(crate) traffic: Arc<Traffic>,
    /// Of the store.
    pub(crate) clock: Arc<Clock>,
    pub(crate) values: Arc<ValueFiles>,
}

/// A value in place, where a read found it.
pub(crate) enum Hit<'p> {
    Memtable {
        memtable: &'p Arc<Memtable>,
        seqno: SeqNo,
        value: &'p [u8],
    },
    Table(FoundValue<'p>),
    /// Operands and the value that they change, combined; or a version above a range delete.
    Owned(Vec<u8>),
}

impl<'p> Hit<'p> {
    #[inline]
    pub(crate) fn in_memtable(memtable: &'p Arc<Memtable>, entry: MemEntry<'p>) -> Hit<'p> {
        Hit::Memtable { memtable, seqno: entry.seqno, value: entry.value }
    }

    /// Without the deadline in front of it, which must be there.
    fn without_deadline(self) -> Hit<'p> {
        match self {
            Hit::Memtable { memtable, seqno, value } => {
                Hit::Memtable { memtable, seqno, value: split_expiring(value).1 }
            }
            Hit::Table(value) => Hit::Table(value.without_deadline()),
            Hit::Owned(stored) => Hit::Owned(split_expiring(&stored).1.to_vec()),
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Hit::Memtable { value, .. } => value,
            Hit::Table(value) => value.bytes(),
            Hit::Owned(value) => value,
        }
    }

    #[inline]
    pub(crate) fn into_value(self) -> Value {
        match self {
            Hit::Memtable { value, .. } => Value::copy_of(value),
            Hit::Table(value) => value.into_value(),
            Hit::Owned(value) => value.into(),
        }
    }
}

impl Tree {
    /// The keyspace that a manifest describes, with tables of entries by level, and range tables.
    pub(crate) fn new(
        id: u32,
        keyspace: &KeyspaceState,
        entries: Vec<(u8, Arc<Table>)>,
        ranges: Vec<Arc<RangeTable>>,
        clock: &Arc<Clock>,
        values: &Arc<ValueFiles>,
    ) -> Tree {
        let files: Vec<ValueFileMeta> = keyspace.values.values().map(|file| file.meta).collect();
        let version = Version::default().edited(&[], entries).with_values(&files, &[]).with_ranges(ranges);
        Tree {
            id,
            name: Arc::from(keyspace.name.as_str()),
            options: keyspace.options.clone(),
            version: Arc::new(version),
            gaps: Arc::new(Gaps::within(values.budget())),
            traffic: Arc::default(),
            clock: Arc::clone(clock),
            values: Arc::clone(values),
        }
    }

    /// Bytes of the filters of all tables, except those for which `replaced` holds, given level and
    /// number.
    pub(crate) fn filter_bytes(&self, replaced: impl Fn(usize, u64) -> bool) -> u64 {
        let staying = self.version.tables().filter(|(level, table)| !replaced(*level, table.meta().number));
        staying.map(|(_, table)| table.filter_bytes()).sum()
    }
}

impl ReadView {
    #[inline]
    pub(crate) fn tree(&self, keyspace: u32) -> Option<&Tree> {
        self.trees.get(keyspace)
    }

    pub(crate) fn tree_named(&self, name: &str) -> Option<&Tree> {
        self.trees.named(name)
    }

    /// Inserts `tree`, or gives its options to the one with its id: a flush or compaction may have
    /// changed the rest since `tree` was read.
    pub(crate) fn redefine(&mut self, tree: Tree) {
        let redefined = match self.tree(tree.id) {
            Some(current) => Tree { options: tree.options, ..current.clone() },
            None => tree,
        };
        self.trees.set(redefined);
    }

    /// The number up to which a read in this view sees what was written: all that is visible,
    /// unless it comes after an ingest that the view lacks.
    #[inline]
    pub(crate) fn visible(&self, sequence: &Sequence) -> SeqNo {
        #[cfg(test)]
        tests::between_view_and_number();
        // In this order: the horizon has ended before the ingest is published.
        let visible = sequence.visible();
        visible.min(self.horizon.ends.load(Ordering::Acquire))
    }

    /// Whether no memtable holds an entry.
    pub(crate) fn is_flushed(&self) -> bool {
        self.sealed.is_empty() && self.active.is_empty()
    }

    /// Memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> + Clone {
        // By position: the states of a chain cost a get 30 instructions.
        (0..1 + self.sealed.len()).filter_map(|i| if i == 0 { Some(&self.active) } else { self.sealed.get(i - 1) })
    }

    /// Whether a read must ask for range deletes. Tells of all that were visible before the call.
    #[inline]
    fn has_ranges(&self, tree: &Tree) -> bool {
        !tree.version.ranges().is_empty() || self.memtables().any(|memtable| memtable.has_ranges())
    }

    /// The window of a point read of `key`. Without a `snapshot` it reads what is `visible`, which
    /// is loaded after the view.
    #[inline]
    pub(crate) fn window(
        &self,
        tree: &Tree,
        key: &[u8],
        snapshot: Option<SeqNo>,
        visible: impl Fn() -> SeqNo,
    ) -> Window {
        let snapshot_now = || snapshot.unwrap_or_else(&visible);
        // The number first: every range that it sees has been published before.
        let seqno = snapshot_now();
        if self.has_ranges(tree) { self.find_cover(tree, key, snapshot_now) } else { Window::up_to(seqno) }
    }

    #[cold]
    fn find_cover(&self, tree: &Tree, key: &[u8], snapshot: impl Fn() -> SeqNo) -> Window {
        let (snapshot, cover) = self.active.cover(tree.id, key, snapshot);
        // Everything in the other memtables was visible before the view was made.
        let covers = self.sealed.iter().map(|memtable| memtable.cover(tree.id, key, || snapshot).1);
        let cover = covers.fold(cover, SeqNo::max);
        Window::above(cover.max(tree.version.ranges().cover(key, snapshot)), snapshot)
    }

    /// The number that a read of many keys reads at, and the ranges that are deleted for it.
    pub(crate) fn covers(
        &self,
        tree: &Tree,
        snapshot: Option<SeqNo>,
        visible: impl Fn() -> SeqNo,
    ) -> (SeqNo, Option<Arc<Covers>>) {
        let snapshot = || snapshot.unwrap_or_else(&visible);
        let seqno = snapshot();
        if !self.has_ranges(tree) {
            return (seqno, None);
        }
        let (snapshot, active) = self.active.ranges_as_of(tree.id, snapshot);
        let sealed = self.sealed.iter().filter_map(|memtable| memtable.ranges_as_of(tree.id, || snapshot).1);
        let sources = active.into_iter().chain(sealed).chain(tree.version.ranges().sources()).collect();
        (snapshot, Some(Arc::new(Covers::new(sources, snapshot))))
    }

    /// The value of a key as the read sees it. Deadlines are judged at `at`, or else by the clock.
    #[inline(always)]
    pub(crate) fn get<'p>(
        &'p self,
        tree: &'p Tree,
        read: &PointRead<'p>,
        at: Option<Deadline>,
        pin: &'p Pin<'_>,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<Hit<'p>>> {
        // Prefetch the first cache line of every source before searching any, so that the cache
        // misses overlap.
        let mut candidates = Candidates::default();
        if tree.version.run_count() > 0 {
            for memtable in self.memtables().filter(|memtable| !memtable.is_empty()) {
                memtable.prefetch(tree.id, read.hash);
            }
            tree.version.prefetch(read, &mut candidates);
        }
        for (i, memtable) in self.memtables().enumerate().filter(|(_, memtable)| !memtable.is_empty()) {
            trace.enter(ReadSource::Memtable(i));
            match memtable.get(tree.id, read.key, read.hash, read.window) {
                Some(entry) => return self.see(tree, read, at, trace, entry.kind, Hit::in_memtable(memtable, entry)),
                None => trace.leave(Found::Absent),
            }
        }
        match tree.version.get(read, pin, &candidates, trace)? {
            Some(TableHit { kind, value, .. }) => self.see(tree, read, at, trace, kind, Hit::Table(value)),
            None => {
                if read.window.is_covered() {
                    ReadView::count_covered(tree, trace);
                }
                Ok(None)
            }
        }
    }

    /// Ends a read of a key of which a range delete has left nothing.
    #[cold]
    pub(crate) fn count_covered(tree: &Tree, trace: &mut impl ReadTrace) {
        trace.enter(ReadSource::RangeDeletes);
        trace.leave(Found::DeletedByRange);
        tree.gaps.counters.count(ReadEvent::DeletedByRange);
    }

    /// The value that a read sees in the newest version of its key.
    #[inline]
    pub(crate) fn see<'p>(
        &self,
        tree: &Tree,
        read: &PointRead<'_>,
        at: Option<Deadline>,
        trace: &mut impl ReadTrace,
        kind: ValueKind,
        hit: Hit<'p>,
    ) -> Result<Option<Hit<'p>>> {
        if let Hit::Memtable { value, .. } = hit {
            trace.leave(Found::stored(kind, value.len()));
        }
        // A function apart, so that a put costs this comparison.
        if kind == ValueKind::Put { Ok(Some(hit)) } else { self.see_other(tree, read, at, trace, kind, hit) }
    }

    #[inline(never)]
    fn see_other<'p>(
        &self,
        tree: &Tree,
        read: &PointRead<'_>,
        at: Option<Deadline>,
        trace: &mut impl ReadTrace,
        kind: ValueKind,
        hit: Hit<'p>,
    ) -> Result<Option<Hit<'p>>> {
        match Effect::of(kind, hit.bytes()) {
            Effect::Put(Put { deadline: None, value: ValuePlace::Entry(_) }) => Ok(Some(hit)),
            Effect::Put(Put { deadline: Some(deadline), value: ValuePlace::Entry(_) }) => {
                let is_past = deadline <= at.unwrap_or_else(|| tree.clock.now());
                trace.deadline(deadline, is_past);
                Ok((!is_past).then(|| hit.without_deadline()))
            }
            Effect::Delete => Ok(None),
            Effect::Merge(_) => Ok(self.merged(tree, read, at, trace)?.map(Hit::Owned)),
            Effect::Put(Put { value: ValuePlace::ValueFile(_), .. }) => Err(kind.misplaced("a source of a read")),
        }
    }

    /// The value of a key whose newest version is an operand.
    #[cold]
    pub(crate) fn merged(
        &self,
        tree: &Tree,
        read: &PointRead<'_>,
        at: Option<Deadline>,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<Vec<u8>>> {
        let operator = tree.options.merge_operator.as_ref();
        let mut answer = Answer::new(read.key, at.unwrap_or_else(|| tree.clock.time_of_read()), Some(&*tree.values));
        for memtable in self.memtables() {
            let mut part = answer.empty();
            memtable.collect(tree.id, read.key, read.hash, read.window, &mut part)?;
            if part.count() >= FOLD_FROM
                && let Some((newest, oldest, stored, made_of)) = part.fold(operator)
            {
                memtable.keep_folded(tree.id, read.key, FoldedChain { newest, oldest, stored, made_of });
            }
            answer.append(part)?;
            if answer.is_complete() {
                break;
            }
        }
        if !answer.is_complete() {
            tree.version.collect(read, &mut answer)?;
        }
        if let Some(deadline) = answer.deadline() {
            trace.deadline(deadline, false);
        }
        answer.value(operator, &tree.name)
    }

    /// Returns a snapshot that is not newer than the view and sees the same of it as `snapshot`.
    /// `snapshot` was taken after the view: it may see entries of a later memtable that the view
    /// lacks.
    pub(crate) fn clamp(&self, tree: &Tree, snapshot: SeqNo) -> SeqNo {
        let mut memtables = self.memtables().map(|memtable| memtable.last_seqno());
        // What was ingested is in no memtable, and may be newer than all of them.
        let last = memtables.find(|&last| last > 0).unwrap_or(0).max(tree.version.largest_seqno());
        last.min(snapshot)
    }

    /// A cursor over every version of every entry of a keyspace. With a probe, it may leave out
    /// keys that lack the probe's prefix.
    pub(crate) fn cursor(
        &self,
        tree: &Tree,
        mode: ReadFlags,
        probe: Option<&Arc<PrefixProbe>>,
    ) -> MergingCursor<ScanSource> {
        let memtables = self.memtables().filter(|memtable| !memtable.is_empty());
        tree.version.cursor(tree.id, memtables, mode, probe)
    }
}
