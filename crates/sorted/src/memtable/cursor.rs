//! [`MemtableCursor`]: merges the sorted runs of one keyspace of a memtable.

use std::iter;
use std::sync::Arc;

use super::Memtable;
use super::entries::EntryRef;
use super::order::{MAX_RUNS, SortedRun, SortedRuns, entry, prefetch, same_head, sort_key};
use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind, compare_entries, head16};
use crate::iter::{Direction, InternalCursor, MergeCursor, SkippedRun, Stamped, is_within};

/// A cursor over the entries of one keyspace in a memtable. It sees every entry inserted before it
/// was made, and none inserted after its first move.
pub struct MemtableCursor {
    memtable: Arc<Memtable>,
    keyspace: u32,
    /// Sorted at the first move: a cursor that never moves costs no sort.
    runs: Option<Arc<SortedRuns>>,
    /// Whether all runs have the same prefix, so that their heads compare directly.
    one_prefix: bool,
    /// For each run, how many of its entries come before the cursor's position. The cursor needs no
    /// direction: the next entry is the first one after these, the previous one the last of them.
    before: [usize; MAX_RUNS],
    /// Run and element of the current entry.
    current: Option<(usize, u128)>,
}

/// How many entries ahead steps prefetch.
const READ_AHEAD: usize = 8;
/// Most fast steps that are planned at once, if no other source is in the way.
const FAST_STEPS: usize = 32;

impl MemtableCursor {
    pub(super) fn new(memtable: Arc<Memtable>, keyspace: u32) -> MemtableCursor {
        MemtableCursor { memtable, keyspace, runs: None, one_prefix: false, before: [0; MAX_RUNS], current: None }
    }
}

impl MemtableCursor {
    /// A cursor over a single run, for reading all entries.
    pub(super) fn of_one_run(memtable: Arc<Memtable>, keyspace: u32) -> MemtableCursor {
        let mut cursor = MemtableCursor::new(memtable, keyspace);
        cursor.runs = Some(cursor.memtable.order.one_run(&cursor.memtable.entries, &cursor.memtable.pool, keyspace));
        cursor
    }

    /// Positions the cursor: `before` counts the entries of a run that come before the target.
    fn place_in_runs(&mut self, before: impl Fn(&Memtable, &SortedRun) -> usize) {
        let memtable = &*self.memtable;
        let runs =
            self.runs.get_or_insert_with(|| memtable.order.runs(&memtable.entries, &memtable.pool, self.keyspace));
        self.one_prefix = runs.windows(2).all(|pair| pair[0].prefix() == pair[1].prefix());
        for (count, run) in self.before.iter_mut().zip(runs.iter()) {
            *count = before(memtable, run);
        }
    }

    /// Whether element `a` comes before element `b`.
    fn precedes(&self, a: u128, b: u128) -> bool {
        if self.one_prefix && !same_head(a, b) {
            return a < b;
        }
        compare_entries(sort_key(self.entry(a)), sort_key(self.entry(b))).is_lt()
    }

    /// Moves to the first entry that is not before the cursor's position.
    fn take_first(&mut self) {
        let mut first = None;
        for (i, (run, &before)) in self.runs.iter().flat_map(|runs| runs.iter()).zip(&self.before).enumerate() {
            if let Some(element) = run.get(before)
                && first.is_none_or(|(_, first)| self.precedes(element, first))
            {
                first = Some((i, element));
            }
        }
        self.current = first;
    }

    /// The element that a run would show next, if the cursor stands at an entry of another run.
    fn next_of(&self, run: usize, direction: Direction) -> Option<u128> {
        let at = if direction.is_forward() { Some(self.before[run]) } else { self.before[run].checked_sub(1) };
        self.runs.as_ref()?.get(run)?.get(at?)
    }

    /// The first of the elements that the other runs than `run` would show next.
    fn challenger(&self, run: usize, direction: Direction) -> Option<u128> {
        let others = (0..self.runs.as_ref()?.len()).filter(|other| *other != run);
        let next = others.filter_map(|other| self.next_of(other, direction));
        if direction.is_forward() { next.min() } else { next.max() }
    }

    /// Number of elements after the current one whose keys have other heads than any other element
    /// of these runs, and come before those of other runs; at most `most`.
    fn count_single(&self, run: usize, current: u128, direction: Direction, most: usize) -> usize {
        let challenger = self.challenger(run, direction);
        let Some(elements) = self.runs.as_ref().and_then(|runs| runs.get(run)) else { return 0 };
        let mut at = self.before[run];
        let mut next_element = || {
            at = direction.step_from(at)?;
            elements.get(at)
        };
        let (mut last, mut next, mut count) = (current, next_element(), 0);
        while let (Some(element), true) = (next, count < most) {
            next = next_element();
            let is_beyond = |other: u128| same_head(element, other) || (element > other) == direction.is_forward();
            if same_head(element, last)
                || next.is_some_and(|next| same_head(element, next))
                || challenger.is_some_and(is_beyond)
            {
                break;
            }
            (last, count) = (element, count + 1);
        }
        count
    }

    /// Moves to the last entry before the cursor's position, and the position with it.
    fn take_last(&mut self) {
        let mut last = None;
        for (i, (run, &before)) in self.runs.iter().flat_map(|runs| runs.iter()).zip(&self.before).enumerate() {
            if let Some(element) = before.checked_sub(1).and_then(|at| run.get(at))
                && last.is_none_or(|(_, last)| self.precedes(last, element))
            {
                last = Some((i, element));
            }
        }
        if let Some((run, _)) = last {
            self.before[run] -= 1;
        }
        self.current = last;
    }

    /// Prefetches an entry of a run: neighbours in key order are far apart in memory.
    fn prefetch(&self, run: usize, at: Option<usize>) {
        if let (Some(at), Some(runs)) = (at, &self.runs)
            && let Some(element) = runs[run].get(at)
        {
            prefetch(&self.memtable.entries, element);
        }
    }

    fn entry(&self, element: u128) -> EntryRef<'_> {
        entry(&self.memtable.entries, element)
    }

    #[expect(clippy::expect_used, reason = "accessors may be called only while the cursor is valid")]
    fn current(&self) -> EntryRef<'_> {
        let (_, element) = self.current.expect("the cursor is valid");
        self.entry(element)
    }
}

impl InternalCursor for MemtableCursor {
    fn valid(&self) -> bool {
        self.current.is_some()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.place_in_runs(|_, run| run.len());
        self.take_last();
        Ok(())
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.place_in_runs(|memtable, run| run.seek(&memtable.entries, key, seqno));
        self.take_first();
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        if let Some((run, _)) = self.current {
            self.before[run] += 1;
            self.prefetch(run, Some(self.before[run] + READ_AHEAD));
            self.take_first();
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.take_last();
        if let Some((run, _)) = self.current {
            self.prefetch(run, self.before[run].checked_sub(READ_AHEAD));
        }
        Ok(())
    }

    fn key(&self) -> &[u8] {
        self.current().key()
    }

    #[inline(always)]
    fn stamp(&self) -> (SeqNo, ValueKind) {
        (self.current().seqno(), self.current().kind())
    }

    fn value(&self) -> &[u8] {
        self.current().value()
    }
}

impl MergeCursor for MemtableCursor {
    fn seek_to_first(&mut self) -> Result<()> {
        self.place_in_runs(|_, _| 0);
        self.take_first();
        Ok(())
    }

    fn fast_steps(&self, snapshot: SeqNo, bound: u128, forward: bool) -> usize {
        let (Some((run, current)), Some(runs)) = (self.current, &self.runs) else { return 0 };
        if !self.one_prefix || !runs.iter().all(|run| run.is_seen(&self.memtable.entries, snapshot)) {
            return 0;
        }
        let is_open = bound == if forward { u128::MAX } else { 0 };
        let most = if is_open { FAST_STEPS } else { READ_AHEAD };
        let single = self.count_single(run, current, Direction::new(forward), most);
        let is_within = |count: usize| {
            let at = if forward { self.before[run] + count } else { self.before[run].wrapping_sub(count) };
            let head = runs[run].get(at).map(|element| head16(self.entry(element).key()));
            head.is_some_and(|head| if forward { head < bound } else { head > bound })
        };
        if is_open && is_within(single) {
            return single;
        }
        // The near ones first: their entries have been prefetched.
        let counts = iter::successors(Some(1), |count| Some(2 * count)).take_while(|count| *count <= single);
        counts.take_while(|&count| is_within(count)).last().unwrap_or(0)
    }

    #[inline]
    fn fast_step(&mut self, forward: bool) -> bool {
        let (Some((run, _)), Some(runs)) = (self.current, &self.runs) else { return false };
        let direction = Direction::new(forward);
        let Some(at) = direction.step_from(self.before[run]) else { return false };
        let Some(element) = runs[run].get(at) else { return false };
        if self.entry(element).kind() != ValueKind::Put {
            return false;
        }
        (self.before[run], self.current) = (at, Some((run, element)));
        self.prefetch(run, if forward { Some(at + READ_AHEAD) } else { at.checked_sub(READ_AHEAD) });
        true
    }

    fn is_first_of_key(&self) -> bool {
        let (Some((_, current)), Some(runs)) = (self.current, &self.runs) else { return false };
        let mut before = runs.iter().zip(&self.before).map(|(run, before)| run.get(before.checked_sub(1)?));
        self.one_prefix && before.all(|element| element.is_none_or(|element| !same_head(element, current)))
    }

    /// Sorts nothing if all entries are skipped.
    fn skip(&mut self, _from: Option<&[u8]>, skipped: &SkippedRun<'_>, forward: bool) -> Result<bool> {
        let (memtable, keyspace) = (&self.memtable, self.keyspace);
        let all = memtable.last_seqno() <= skipped.seen
            && skipped.begin.is_none_or(|begin| memtable.entries.end_before(keyspace, Some(begin), !forward))
            && memtable.entries.end_before(keyspace, skipped.end, forward);
        if all {
            self.current = None;
        }
        Ok(all)
    }

    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        let (Some((current, _)), Some(runs)) = (self.current, self.runs.clone()) else { return Ok(()) };
        if self.seqno() > seen || !is_within(self.key(), end, forward) {
            return Ok(());
        }
        let memtable = Arc::clone(&self.memtable);
        let entries = &memtable.entries;
        for (i, (run, before)) in runs.iter().zip(&mut self.before).enumerate() {
            *before = match forward {
                true => run.jump(entries, *before, end, seen),
                false => run.jump_back(entries, *before + usize::from(i == current), end, seen),
            };
        }
        if forward {
            self.take_first()
        } else {
            self.take_last()
        }
        // If the jump stopped before `end`, some runs may be beyond the entry that stopped it.
        if self.valid() && is_within(self.key(), end, forward) {
            let (key, seqno) = sort_key(self.current());
            self.before = std::array::from_fn(|i| runs.get(i).map_or(0, |run| run.seek(entries, key, seqno)));
        }
        Ok(())
    }
}
