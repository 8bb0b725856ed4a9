//! [`LazyOrder`]: sorts a memtable's entries when a cursor or a flush needs them.
//!
//! Writers append without order. A cursor first catches up: it sorts the entries written since the
//! last time into a [`SortedRun`] and merges runs of similar size, which leaves at most one run per
//! [`class`]. A memtable that is never scanned is sorted once, for its flush. If a scan follows
//! every write, each write pays a share of a few merges.
//!
//! Runs are immutable. A cursor keeps the runs it started with.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::entries::{EntryList, EntryRef, Position};
use crate::format::key::{HEAD12_LEN, MAX_SEQNO, SeqNo, common_prefix_len, compare, compare_entries, head12};
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::memory::pool::{MemtableChunk, MemtablePool};
use crate::sync::Mutex;

/// Most runs of a keyspace.
pub(super) const MAX_RUNS: usize = 8;

/// Most entries in a run of class 0, and log2 of the factor between classes.
const SMALLEST_CLASS: usize = 256;
const CLASS_FACTOR_BITS: u32 = 4;

/// Bits of the position in an element.
const POSITION_BITS: u32 = 32;

/// A group of equal heads smaller than this is sorted by whole keys. A larger one is sorted by
/// further key bytes, up to `MAX_SORTS` times.
const SMALL_GROUP: usize = 16;
const MAX_SORTS: u32 = 16;

/// The size class of a run. Runs of one class are merged, so that each run in a list is of a higher
/// class than the next.
fn class(len: usize) -> u32 {
    let above = (len.max(1) - 1) / SMALLEST_CLASS;
    above.checked_ilog2().map_or(0, |log| log / CLASS_FACTOR_BITS + 1)
}

/// The sorted runs of all keyspaces, as far as they were needed.
pub(super) struct LazyOrder {
    known: Mutex<OrderState>,
}

struct OrderState {
    /// Entries before this position are in `keyspaces`.
    end: u32,
    keyspaces: BTreeMap<u32, KeyspaceRuns>,
    /// For the lists of entries that are not in a run yet.
    charge: MemoryCharge,
}

#[derive(Default)]
struct KeyspaceRuns {
    /// Number of distinct keys.
    keys: u64,
    runs: Arc<SortedRuns>,
    /// Entries that are not in a run yet.
    unsorted: Vec<Position>,
}

/// All entries of a keyspace at some moment, each in one of the runs.
pub(super) type SortedRuns = Vec<Arc<SortedRun>>;

impl LazyOrder {
    pub(super) fn new(budget: &Arc<MemoryBudget>) -> LazyOrder {
        let charge = MemoryCharge::new(budget, MemoryUse::Memtables, 0);
        LazyOrder { known: Mutex::new(OrderState { end: 0, keyspaces: BTreeMap::new(), charge }) }
    }

    /// Ids of the keyspaces that have entries, ascending, each with its number of distinct keys.
    pub(super) fn keyspaces(&self, entries: &EntryList) -> Vec<(u32, u64)> {
        let mut known = self.known.lock();
        known.catch_up(entries);
        known.keyspaces.iter().map(|(&id, keyspace)| (id, keyspace.keys)).collect()
    }

    /// All complete entries of a keyspace, in at most [`MAX_RUNS`] runs.
    pub(super) fn runs(&self, entries: &EntryList, pool: &Arc<MemtablePool>, keyspace: u32) -> Arc<SortedRuns> {
        self.sorted(entries, pool, keyspace, |a, b| class(a.len()) <= class(b.len()))
    }

    /// All complete entries of a keyspace in one run, for reading all of them.
    pub(super) fn one_run(&self, entries: &EntryList, pool: &Arc<MemtablePool>, keyspace: u32) -> Arc<SortedRuns> {
        self.sorted(entries, pool, keyspace, |_, _| true)
    }

    /// Catches up, then merges the last two runs while `merge` returns true.
    fn sorted(
        &self,
        entries: &EntryList,
        pool: &Arc<MemtablePool>,
        keyspace: u32,
        merge: impl Fn(&SortedRun, &SortedRun) -> bool,
    ) -> Arc<SortedRuns> {
        let mut known = self.known.lock();
        known.catch_up(entries);
        let OrderState { keyspaces, charge, .. } = &mut *known;
        let Some(keyspace) = keyspaces.get_mut(&keyspace) else { return Arc::default() };
        if !keyspace.unsorted.is_empty() {
            let unsorted = std::mem::take(&mut keyspace.unsorted);
            let run = SortedRun::sorted(entries, pool, &unsorted);
            charge.resize(charge.bytes() - memory_of(&unsorted));
            Arc::make_mut(&mut keyspace.runs).push(Arc::new(run));
        }
        while let [.., a, b] = &keyspace.runs[..]
            && merge(a, b)
        {
            let merged = Arc::new(SortedRun::merged(entries, pool, a, b));
            let runs = Arc::make_mut(&mut keyspace.runs);
            runs.truncate(runs.len() - 2);
            runs.push(merged);
        }
        Arc::clone(&keyspace.runs)
    }

    /// Bytes of the current runs, without replaced ones that cursors still hold, and of what is not
    /// in one yet.
    pub(super) fn allocated(&self) -> usize {
        let known = self.known.lock();
        let runs = known.keyspaces.values().flat_map(|keyspace| keyspace.runs.iter());
        runs.map(|run| run.memory.len()).sum::<usize>() + known.charge.bytes()
    }
}

impl OrderState {
    /// Collects the entries written since the last time.
    fn catch_up(&mut self, entries: &EntryList) {
        let mut walk = entries.walk(self.end);
        self.end = walk.end();
        let mut next = walk.next();
        let mut bytes = self.charge.bytes();
        while let Some((_, first)) = next {
            // Consecutive entries are mostly of one keyspace.
            let id = first.keyspace();
            let keyspace = self.keyspaces.entry(id).or_default();
            bytes -= memory_of(&keyspace.unsorted);
            while let Some((position, entry)) = next
                && entry.keyspace() == id
            {
                // Range deletes are not among the entries of a scan; see `ranges`.
                if entry.range_end().is_none() {
                    keyspace.keys += u64::from(entry.older().is_none());
                    keyspace.unsorted.push(position);
                }
                next = walk.next();
            }
            bytes += memory_of(&keyspace.unsorted);
        }
        self.charge.resize(bytes);
    }
}

/// Bytes that a list takes.
fn memory_of(positions: &Vec<Position>) -> usize {
    positions.capacity() * size_of::<Position>()
}

/// The entries of a keyspace, sorted.
///
/// ```text
/// element = head << 32 | !position    head = 12 key bytes after `prefix`, as a big-endian number
/// ```
///
/// Unequal heads decide the order; for equal heads, compare the entries. Versions of a key sort
/// newest first: the later write has the greater position, and positions are inverted.
pub(super) struct SortedRun {
    memory: MemtableChunk,
    len: usize,
    /// A common prefix of all keys, not necessarily the longest.
    prefix: Arc<[u8]>,
    /// The length of all keys, if it is the same and heads cover the keys to their ends: then equal
    /// heads mean equal keys.
    exact: Option<usize>,
    /// The entry written last; `None` for an empty run.
    newest: Option<Position>,
}

impl SortedRun {
    fn new(
        pool: &Arc<MemtablePool>,
        len: usize,
        prefix: Arc<[u8]>,
        key_len: Option<usize>,
        newest: Option<Position>,
    ) -> SortedRun {
        let exact = key_len.filter(|len| len - prefix.len() <= HEAD12_LEN);
        SortedRun { memory: pool.take(len * size_of::<u128>()), len, prefix, exact, newest }
    }

    /// Sorts entries of one keyspace, given in write order.
    fn sorted(entries: &EntryList, pool: &Arc<MemtablePool>, positions: &[Position]) -> SortedRun {
        let Some(first) = positions.first().map(|&position| entries.entry(position).key()) else {
            return SortedRun::new(pool, 0, Arc::default(), None, None);
        };
        let keys = KeyStats::of(positions.iter().map(|&position| entries.entry(position).key()), first);
        // Shorten the prefix so that heads are whole wherever keys are long enough: whole heads are
        // built faster.
        let prefix = &first[..keys.common.min(keys.shortest.saturating_sub(HEAD12_LEN))];
        let key_len = (keys.shortest == keys.longest).then_some(keys.longest);
        let mut run = SortedRun::new(pool, positions.len(), prefix.into(), key_len, positions.last().copied());
        let exact = run.exact.is_some();
        let elements = &mut run.memory.slice_mut::<u128>()[..positions.len()];
        for (element, position) in elements.iter_mut().zip(positions) {
            *element = u128::from(!position.get());
        }
        sort(entries, elements, prefix.len(), exact, MAX_SORTS);
        run
    }

    /// Merges two runs.
    fn merged(entries: &EntryList, pool: &Arc<MemtablePool>, a: &SortedRun, b: &SortedRun) -> SortedRun {
        let prefix = match a.prefix == b.prefix {
            true => Arc::clone(&a.prefix),
            false => a.prefix[..common_prefix_len(&a.prefix, &b.prefix)].into(),
        };
        let exact = a.exact.filter(|_| a.exact == b.exact);
        let newest = a.newest.max(b.newest);
        let mut run = SortedRun::new(pool, a.len + b.len, prefix, exact, newest);
        let (exact, prefix_len) = (run.exact.is_some(), run.prefix.len());
        let precedes = |a: u128, b: u128| match exact || !same_head(a, b) {
            true => a < b,
            false => compare_entries(sort_key(entry(entries, a)), sort_key(entry(entries, b))).is_lt(),
        };
        let out = &mut run.memory.slice_mut::<u128>()[..a.len + b.len];
        let [wide_a, wide_b] = [a, b].map(|run| run.widened(pool, prefix_len));
        merge(a.elements_in(wide_a.as_ref()), b.elements_in(wide_b.as_ref()), out, precedes);
        run
    }

    /// The elements for a prefix of only `len` bytes, if the run's is longer.
    fn widened(&self, pool: &Arc<MemtablePool>, len: usize) -> Option<MemtableChunk> {
        let taken = &self.prefix[len..];
        if taken.is_empty() {
            return None;
        }
        let taken_head = head12(taken);
        let widen = |&element: &u128| {
            let rest_head = if taken.len() < HEAD12_LEN { (element >> POSITION_BITS) >> (8 * taken.len()) } else { 0 };
            taken_head | rest_head << POSITION_BITS | u128::from(low_half(element))
        };
        let mut memory = pool.take(self.len * size_of::<u128>());
        let pairs = memory.slice_mut::<u128>().iter_mut().zip(self.elements());
        pairs.for_each(|(wide, element)| *wide = widen(element));
        Some(memory)
    }

    fn elements(&self) -> &[u128] {
        self.elements_in(None)
    }

    /// The elements, or what [`widened`](SortedRun::widened) has made of them.
    fn elements_in<'a>(&'a self, widened: Option<&'a MemtableChunk>) -> &'a [u128] {
        &widened.unwrap_or(&self.memory).slice()[..self.len]
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A common prefix of all keys. Heads of runs with the same prefix compare directly.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Whether `snapshot` sees all entries.
    pub(super) fn is_seen(&self, entries: &EntryList, snapshot: SeqNo) -> bool {
        self.newest.is_none_or(|newest| entries.entry(newest).seqno() <= snapshot)
    }

    /// The element at index `at`.
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<u128> {
        self.elements().get(at).copied()
    }

    /// Number of entries before `(key, seqno)`.
    pub(super) fn seek(&self, entries: &EntryList, key: &[u8], seqno: SeqNo) -> usize {
        let common = key.len().min(self.prefix.len());
        match compare(&key[..common], &self.prefix[..common]) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.len,
            Ordering::Equal if common < self.prefix.len() => return 0,
            Ordering::Equal => {}
        }
        let wanted = head12(&key[common..]);
        self.elements().partition_point(|&element| match same_head(element, wanted) {
            true => compare_entries(sort_key(entry(entries, element)), (key, seqno)).is_lt(),
            false => element < wanted,
        })
    }
}

impl SortedRun {
    /// Where a forward cursor continues that has `before` entries before it: see
    /// `MergeCursor::jump`.
    pub(super) fn jump(&self, entries: &EntryList, before: usize, end: Option<&[u8]>, seen: SeqNo) -> usize {
        let to = end.map_or(self.len, |end| self.seek(entries, end, MAX_SEQNO)).max(before);
        before + gallop(to - before, |part| self.are_seen(entries, before + part.start..before + part.end, seen))
    }

    /// Like [`jump`](SortedRun::jump), for a backward cursor: how many entries remain before it.
    pub(super) fn jump_back(&self, entries: &EntryList, before: usize, end: Option<&[u8]>, seen: SeqNo) -> usize {
        let from = end.map_or(0, |end| self.seek(entries, end, MAX_SEQNO)).min(before);
        before - gallop(before - from, |part| self.are_seen(entries, before - part.end..before - part.start, seen))
    }

    /// Whether all entries of a range are numbered `seen` or less. The entry with the greatest
    /// position is the newest and decides; usually the newest of the whole run already does.
    fn are_seen(&self, entries: &EntryList, range: Range<usize>, seen: SeqNo) -> bool {
        #[cfg(test)]
        tests::EXAMINED.with(|count| count.set(count.get() + range.len()));
        let is_seen = |position: Position| entries.entry(position).seqno() <= seen;
        let newest = || self.elements()[range].iter().map(|&element| !low_half(element)).max().and_then(Position::new);
        self.newest.is_none_or(is_seen) || newest().is_none_or(is_seen)
    }
}

/// Number of leading elements that are seen, of `len`. The ranges it queries add up to a few times
/// the answer: a jump costs what it passes, not what lies ahead.
fn gallop(len: usize, are_seen: impl Fn(Range<usize>) -> bool) -> usize {
    let (mut start, mut step) = (0, 1);
    while start < len {
        let mut end = len.min(start + step);
        if are_seen(start..end) {
            (start, step) = (end, step * 2);
            continue;
        }
        while end - start > 1 {
            let middle = start.midpoint(end);
            if are_seen(start..middle) { start = middle } else { end = middle }
        }
        break;
    }
    start
}

/// Facts about a set of keys that decide how to sort them by heads.
struct KeyStats {
    /// Length of the common prefix.
    common: usize,
    shortest: usize,
    longest: usize,
}

impl KeyStats {
    fn of<'a>(keys: impl Iterator<Item = &'a [u8]>, first: &[u8]) -> KeyStats {
        let mut found = KeyStats { common: first.len(), shortest: first.len(), longest: first.len() };
        for key in keys {
            if !key.starts_with(&first[..found.common]) {
                found.common = common_prefix_len(&first[..found.common], key);
            }
            found.shortest = found.shortest.min(key.len());
            found.longest = found.longest.max(key.len());
        }
        found
    }
}

/// Computes the elements' heads after the first `prefix_len` bytes, which all keys share, and
/// sorts.
///
/// If `exact`, equal heads mean equal keys, and this is all. Otherwise elements of equal heads are
/// sorted again, by heads after their own common prefix, because comparing whole keys costs a cache
/// miss each time. After `sorts` levels (keys that differ only in trailing zeros, which heads do
/// not show), it falls back to whole keys.
fn sort(entries: &EntryList, elements: &mut [u128], prefix_len: usize, exact: bool, sorts: u32) {
    for element in &mut *elements {
        *element = head12(&entry(entries, *element).key()[prefix_len..]) | u128::from(low_half(*element));
    }
    elements.sort_unstable();
    if exact {
        return;
    }
    for same in elements.chunk_by_mut(|a, b| same_head(*a, *b)).filter(|same| same.len() > 1) {
        if same.len() < SMALL_GROUP || sorts == 0 {
            same.sort_by(|a, b| compare_entries(sort_key(entry(entries, *a)), sort_key(entry(entries, *b))));
            continue;
        }
        let head = same[0] >> POSITION_BITS << POSITION_BITS;
        let key = |element| entry(entries, element).key();
        let keys = KeyStats::of(same.iter().map(|&element| key(element)), key(same[0]));
        let exact = keys.shortest == keys.longest && keys.longest - keys.common <= HEAD12_LEN;
        sort(entries, same, keys.common, exact, sorts - 1);
        same.iter_mut().for_each(|element| *element = head | u128::from(low_half(*element)));
    }
}

#[inline]
pub(super) fn same_head(a: u128, b: u128) -> bool {
    a >> POSITION_BITS == b >> POSITION_BITS
}

#[expect(clippy::cast_possible_truncation, reason = "the low half of the low half")]
fn low_half(element: u128) -> u32 {
    element as u32
}

fn position(element: u128) -> Position {
    match Position::new(!low_half(element)) {
        Some(position) => position,
        None => unreachable!("elements are made of positions"),
    }
}

/// The entry of an element.
pub(super) fn entry(entries: &EntryList, element: u128) -> EntryRef<'_> {
    entries.entry(position(element))
}

/// Prefetches the entry of an element.
pub(super) fn prefetch(entries: &EntryList, element: u128) {
    entries.prefetch(position(element));
}

pub(super) fn sort_key(entry: EntryRef<'_>) -> (&[u8], SeqNo) {
    (entry.key(), entry.seqno())
}

/// Merges two sorted slices into `out`. Gallops in `a`, so that a short `b` goes quickly into a
/// long `a`.
fn merge<'a>(mut a: &'a [u128], mut b: &'a [u128], mut out: &mut [u128], precedes: impl Fn(u128, u128) -> bool) {
    while let Some((&next, later)) = b.split_first() {
        // Probe `a[0]`, `a[1]`, `a[3]`, `a[7]` and so on, then search between the last two probes.
        let mut bound = 1;
        while bound <= a.len() && precedes(a[bound - 1], next) {
            bound *= 2;
        }
        let known = bound / 2;
        let count = known + a[known..a.len().min(bound)].partition_point(|&element| precedes(element, next));
        let (filled, rest) = out.split_at_mut(count + 1);
        filled[..count].copy_from_slice(&a[..count]);
        filled[count] = next;
        (a, b, out) = (later, &a[count..], rest);
    }
    out.copy_from_slice(a);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::ValueKind;
    use crate::memtable::Memtable;

    thread_local! {
        /// Elements that jumps have examined.
        pub(super) static EXAMINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    /// The cursor stops at every hundredth entry, which is newer than `seen`. All jumps together
    /// must examine only a few times the entries that they pass.
    #[test]
    #[cfg_attr(miri, ignore = "counts the steps of long jumps")]
    fn jumps_cost_what_they_pass() {
        let (len, step) = if cfg!(miri) { (200, 40) } else { (20_000, 100) };
        let (pool, memtable) = (MemtablePool::new(0), Arc::new(Memtable::new(1, 4 << 20, 0, &MemtablePool::new(0))));
        let mut writer = memtable.writer();
        let numbers = (0..len).filter(|i| i % step != 0).chain((0..len).step_by(step));
        for (key, seqno) in numbers.zip(1..) {
            writer.insert(0, &(key as u64).to_be_bytes(), seqno, ValueKind::Delete, b"");
        }
        drop(writer);
        let runs = memtable.order.one_run(&memtable.entries, &pool, 0);
        let (run, seen) = (&runs[0], (len - len / step) as SeqNo);
        let (mut before, mut stops) = (0, 0);
        EXAMINED.set(0);
        while before < len {
            before = run.jump(&memtable.entries, before, None, seen) + 1;
            stops += 1;
        }
        let forward = EXAMINED.replace(0);
        assert_eq!(stops, len / step + 1);
        let mut remaining = len;
        while remaining > 0 {
            remaining = run.jump_back(&memtable.entries, remaining, None, seen).saturating_sub(1);
        }
        let backward = EXAMINED.get();
        println!("{forward} looked at forward, {backward} backward, of {len}");
        assert!(forward < 4 * len && backward < 4 * len);
    }

    #[test]
    fn classes_grow_by_sixteens() {
        for (len, expected) in [(1, 0), (256, 0), (257, 1), (4096, 1), (4097, 2), (65536, 2), (65537, 3), (1 << 32, 6)]
        {
            assert_eq!(class(len), expected, "{len}");
        }
        assert!((class(u32::MAX as usize) as usize) < MAX_RUNS);
    }

    #[test]
    fn merge_equals_sorting_both_lists() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
            let mut list = |most| -> Vec<u128> {
                let mut list: Vec<_> = (0..rng.usize(0..most)).map(|_| rng.u128(0..1000)).collect();
                list.sort_unstable();
                list
            };
            let (a, b) = (list(4), list(100));
            let mut expected = [&a[..], &b].concat();
            expected.sort_unstable();
            let mut merged = vec![0; expected.len()];
            merge(&a, &b, &mut merged, |a, b| a < b);
            assert_eq!(merged, expected);
            merge(&b, &a, &mut merged, |a, b| a < b);
            assert_eq!(merged, expected);
        }
    }

    #[test]
    fn heads_order_like_keys_or_are_equal() {
        let keys: [&[u8]; 9] =
            [b"", b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefghijkl", b"abcdefghijklm", b"b", b"\xff"];
        for (a, b) in keys.iter().zip(&keys[1..]) {
            assert!(head12(a) <= head12(b));
        }
        assert_eq!(head12(b"abcdefghijklm"), head12(b"abcdefghijkl"));
        assert_ne!(head12(b"abcdefghijkl"), head12(b"abcdefghijk"));
    }
}
