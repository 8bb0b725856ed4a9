//! Tests of merges against one sorted list.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::error::Error;
use crate::format::key::{HEAD16_LEN, head16};
use crate::iter::{MarkedKey, is_within};

type ListEntry = (Vec<u8>, SeqNo);

/// A cursor over a sorted list. Fails once, and defers entries, if told to.
struct ListCursor {
    entries: Vec<ListEntry>,
    /// Index of the current entry; `entries.len()` when invalid.
    at: usize,
    /// For some entries, how many bounds come before them.
    deferrals: Vec<usize>,
    /// The bounds, latest first, and the index of the deferred entry.
    deferred: (Vec<Vec<u8>>, usize),
    /// Number of moves before the one that fails.
    fails_in: Option<u32>,
    /// Parts of the current seek that are left before its last one.
    parts: usize,
}

impl ListCursor {
    fn move_to(&mut self, at: Option<usize>) -> Result<()> {
        self.at = at.unwrap_or(self.entries.len());
        self.deferred.0.clear();
        if let Some(left) = self.fails_in {
            self.fails_in = left.checked_sub(1);
            if left == 0 {
                self.at = self.entries.len();
                return Err(Error::Closed);
            }
        }
        Ok(())
    }

    /// Moves to an entry, or defers it.
    fn come_to(&mut self, at: Option<usize>, forward: bool) -> Result<()> {
        self.move_to(at)?;
        let count = self.deferrals.get(self.at % self.deferrals.len().max(1)).filter(|_| self.valid());
        if let Some(&count) = count {
            let key = self.key();
            let bound = |distance: usize| match forward {
                true => key[..key.len().saturating_sub(distance)].to_vec(),
                false => [key, &vec![0xff; distance]].concat(),
            };
            self.deferred = ((0..count).map(bound).collect(), self.at);
            if count > 0 {
                self.at = self.entries.len();
            }
        }
        Ok(())
    }
}

impl InternalCursor for ListCursor {
    fn valid(&self) -> bool {
        self.at < self.entries.len()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.come_to(self.entries.len().checked_sub(1), false)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.end_seek(key, seqno, true)
    }

    fn next(&mut self) -> Result<()> {
        assert!(self.valid());
        self.come_to(Some(self.at + 1), true)
    }

    fn prev(&mut self) -> Result<()> {
        assert!(self.valid());
        self.come_to(self.at.checked_sub(1), false)
    }

    fn key(&self) -> &[u8] {
        &self.entries[self.at].0
    }

    #[inline(always)]
    fn stamp(&self) -> (SeqNo, ValueKind) {
        (self.entries[self.at].1, ValueKind::Put)
    }

    fn value(&self) -> &[u8] {
        b""
    }
}

impl MergeCursor for ListCursor {
    fn seek_to_first(&mut self) -> Result<()> {
        self.come_to(Some(0), true)
    }

    fn begin_seek(&mut self, _key: &[u8], _seqno: SeqNo, _forward: bool) -> Result<()> {
        self.parts = self.entries.len() % 4;
        self.move_to(None)
    }

    fn continue_seek(&mut self, _key: &[u8]) -> Result<bool> {
        let has_more = self.parts > 0;
        self.parts = self.parts.saturating_sub(1);
        if has_more { self.move_to(None).map(|()| true) } else { Ok(false) }
    }

    fn end_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        assert_eq!(self.parts, 0, "a part of the seek was left out");
        let before = |(k, s): &ListEntry| compare_entries((k, *s), (key, seqno)).is_lt();
        let at = self.entries.partition_point(before);
        self.come_to(if forward { Some(at) } else { at.checked_sub(1) }, forward)
    }

    fn deferred(&self) -> Option<KeyBound<'_>> {
        let bound = self.deferred.0.last()?;
        // In two parts of any lengths.
        let (prefix, rest) = bound.split_at(self.deferred.1 % (bound.len() + 1));
        Some(KeyBound { prefix, rest })
    }

    fn resume(&mut self) -> Result<()> {
        let (mut bounds, at) = std::mem::take(&mut self.deferred);
        assert!(bounds.pop().is_some() && !self.valid());
        self.move_to(if bounds.is_empty() { Some(at) } else { None })?;
        self.deferred = (bounds, at);
        Ok(())
    }

    fn fast_steps(&self, snapshot: SeqNo, bound: u128, forward: bool) -> usize {
        let is_only = |entry: &ListEntry| self.entries.iter().filter(|other| other.0 == entry.0).count() == 1;
        let is_fast = |entry: &&ListEntry| {
            let is_before = if forward { head16(&entry.0) < bound } else { head16(&entry.0) > bound };
            is_before && is_only(entry) && entry.1 <= snapshot
        };
        let (before, after) = (&self.entries[..self.at], &self.entries[self.at + 1..]);
        if forward { after.iter().take_while(is_fast).count() } else { before.iter().rev().take_while(is_fast).count() }
    }

    /// Refuses to step onto some entries.
    fn fast_step(&mut self, forward: bool) -> bool {
        let at = if forward { self.at + 1 } else { self.at - 1 };
        let is_free = !self.entries[at].1.is_multiple_of(8);
        if is_free {
            self.at = at;
        }
        is_free
    }

    fn end_fast_steps(&mut self) -> Result<()> {
        self.move_to(Some(self.at))
    }

    fn is_first_of_key(&self) -> bool {
        self.at > 0 && self.entries[self.at - 1].0 != self.entries[self.at].0
    }
}

/// Few distinct keys, so that children share them: short keys of low and of high bytes, runs of
/// zeros of every length, keys of about head length, and long keys with a common head.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(0u8..3, 0..3),
        vec(0xf0u8..0xf3, 1..3),
        (0usize..19).prop_map(|len| vec![0; len]),
        (15usize..18).prop_map(|len| vec![0xff; len]),
        (0u8..4).prop_map(|last| [&b"0123456789abcde"[..], &[last]].concat()),
        (0u8..4, 0usize..3).prop_map(|(last, len)| [&b"a/long/common/prefix/"[..], &vec![last; len]].concat()),
    ]
}

#[derive(Clone, Debug)]
enum CursorStep {
    First,
    Last,
    Seek(Vec<u8>, SeqNo),
    SeekBefore(Vec<u8>, SeqNo),
    Next,
    Prev,
    /// Up to this many fast steps in the direction of travel.
    Fast(usize),
}

/// The snapshot for fast steps.
const SNAPSHOT: SeqNo = 30;

fn step() -> impl Strategy<Value = CursorStep> {
    let seqno = || prop_oneof![Just(0), Just(u64::MAX), 1u64..40];
    prop_oneof![
        1 => Just(CursorStep::First),
        1 => Just(CursorStep::Last),
        2 => (key(), seqno()).prop_map(|(key, seqno)| CursorStep::Seek(key, seqno)),
        2 => (key(), seqno()).prop_map(|(key, seqno)| CursorStep::SeekBefore(key, seqno)),
        10 => Just(CursorStep::Next),
        10 => Just(CursorStep::Prev),
        4 => (1usize..6).prop_map(CursorStep::Fast),
    ]
}

/// A merge of `runs` children, and all their entries in order. Sequence numbers are positions in
/// `entries`, from 1 on.
fn merged(runs: usize, entries: &[(usize, Vec<u8>)]) -> (MergingCursor<ListCursor>, Vec<ListEntry>) {
    let numbered = || entries.iter().zip(1u64..).map(|((run, key), seqno)| (run % runs, (key.clone(), seqno)));
    let sorted = |mut list: Vec<ListEntry>| {
        list.sort_by(|a, b| compare_entries((&a.0, a.1), (&b.0, b.1)));
        list
    };
    let child = |i: usize| {
        let entries = sorted(numbered().filter(|(run, _)| *run == i).map(|(_, entry)| entry).collect());
        ListCursor {
            at: entries.len(),
            entries,
            deferrals: Vec::new(),
            deferred: Default::default(),
            fails_in: None,
            parts: 0,
        }
    };
    let cursor = MergingCursor::new((0..runs).map(child).collect());
    (cursor, sorted(numbered().map(|(_, entry)| entry).collect()))
}

/// Takes the same steps on the merge and the list; both must reach the same entry. A failed step
/// must leave the merge invalid.
fn walk(cursor: &mut MergingCursor<ListCursor>, model: &[ListEntry], steps: &[CursorStep]) {
    let mut at: Option<usize> = None;
    let mut marked = MarkedKey::default();
    let before = |key: &[u8], seqno| model.partition_point(|(k, s)| compare_entries((k, *s), (key, seqno)).is_lt());
    for step in steps {
        // A seek may come amid fast steps; any other move requires `finish_fast_steps` first.
        if !matches!(step, CursorStep::First | CursorStep::Last | CursorStep::Seek(..) | CursorStep::SeekBefore(..))
            && cursor.finish_fast_steps().is_err()
        {
            at = None;
        }
        let left = at.filter(|_| !cursor.is_head_stale);
        if left.is_some() {
            marked.mark(cursor);
        }
        let result = match (step, at) {
            (CursorStep::First, _) => {
                at = Some(0);
                cursor.seek_to_first()
            }
            (CursorStep::Last, _) => {
                at = model.len().checked_sub(1);
                cursor.seek_to_last()
            }
            (CursorStep::Seek(key, seqno), _) => {
                at = Some(before(key, *seqno));
                cursor.seek(key, *seqno)
            }
            (CursorStep::SeekBefore(key, seqno), _) => {
                at = before(key, *seqno).checked_sub(1);
                cursor.seek_before(key, *seqno)
            }
            (CursorStep::Next, Some(i)) => {
                at = Some(i + 1);
                cursor.next()
            }
            (CursorStep::Prev, Some(i)) => {
                at = i.checked_sub(1);
                cursor.prev()
            }
            (CursorStep::Fast(most), Some(mut i)) => {
                let forward = cursor.direction.is_forward();
                cursor.plan_fast_steps(SNAPSHOT, None);
                assert!(!cursor.try_fast_step(!forward));
                for _ in 0..*most {
                    if !cursor.try_fast_step(forward) {
                        break;
                    }
                    i = if forward { i + 1 } else { i - 1 };
                    let (key, seqno) = &model[i];
                    assert_eq!(cursor.key(), key);
                    assert!(*seqno <= SNAPSHOT && model.iter().filter(|entry| entry.0 == *key).count() == 1);
                }
                at = Some(i);
                Ok(())
            }
            (CursorStep::Next | CursorStep::Prev | CursorStep::Fast(_), None) => Ok(()),
        };
        at = at.filter(|&i| i < model.len() && result.is_ok());
        // Outside of its limits, the merge may have ended.
        let forward = cursor.direction.is_forward();
        let limits = cursor.limits.as_deref();
        let limit = limits.and_then(|limits| if forward { limits.upper.as_deref() } else { limits.lower.as_deref() });
        at = at.filter(|&i| cursor.valid() || is_within(&model[i].0, limit, forward));
        assert_eq!(cursor.valid(), at.is_some(), "{step:?}");
        if let Some(i) = at
            && cursor.is_head_stale
        {
            assert_eq!(cursor.key(), model[i].0);
        } else if let Some(i) = at {
            let (key, seqno) = &model[i];
            assert_eq!((cursor.key(), cursor.seqno()), (&key[..], *seqno), "{step:?}");
            assert_eq!(cursor.head(), head16(key));
            if cursor.is_first_of_key() {
                assert!(i == 0 || model[i - 1].0 != *key);
            }
            if let Some(left) = left {
                assert_eq!(marked.key(&mut [0; HEAD16_LEN]), model[left].0);
                assert_eq!(marked.is_at(cursor), model[left].0 == *key);
            }
        }
    }
}

proptest! {
    #[test]
    fn walks_like_one_sorted_run(
        runs in 1usize..10,
        entries in vec((0usize..10, key()), 0..40),
        steps in vec(step(), 1..80),
    ) {
        let (mut cursor, model) = merged(runs, &entries);
        walk(&mut cursor, &model, &steps);
    }

    /// Runs that hardly overlap let one child win many times in a row.
    #[test]
    fn walks_over_runs_that_hardly_overlap(
        runs in 1usize..6,
        mut keys in vec(key(), 0..60),
        strays in vec((any::<prop::sample::Index>(), 0usize..6), 0..6),
        steps in vec(step(), 1..150),
    ) {
        keys.sort();
        let len = keys.len().max(1);
        let mut entries: Vec<_> = keys.into_iter().enumerate().map(|(i, key)| (i * runs / len, key)).collect();
        for (at, run) in strays {
            if !entries.is_empty() {
                at.get_mut(&mut entries).0 = run;
            }
        }
        let (mut cursor, model) = merged(runs, &entries);
        walk(&mut cursor, &model, &steps);
    }

    #[test]
    fn walks_alike_where_children_defer_entries(
        runs in 1usize..10,
        entries in vec((0usize..10, key()), 0..40),
        deferrals in vec(vec(0usize..4, 0..7), 10),
        limits in (prop::option::of(key()), prop::option::of(key())),
        failures in prop_oneof![Just(vec![None; 10]), vec(prop::option::of(0u32..60), 10)],
        steps in vec(step(), 1..80),
    ) {
        let (mut cursor, model) = merged(runs, &entries);
        for ((child, deferrals), fails_in) in cursor.children.iter_mut().zip(deferrals).zip(failures) {
            (child.deferrals, child.fails_in) = (deferrals, fails_in);
        }
        let mut cursor = cursor.with_limits(KeySpan { lower: limits.0.as_deref(), upper: limits.1.as_deref() });
        walk(&mut cursor, &model, &steps);
    }

    /// What another child's entry, or a limit, comes before.
    #[test]
    fn a_deferred_entry_is_resumed_only_if_it_may_come_next(
        entries in vec((0usize..4, key()), 1..30),
        at in key(),
        limit in key(),
        forward: bool,
    ) {
        let (mut cursor, model) = merged(4, &entries);
        cursor.children.iter_mut().for_each(|child| child.deferrals = vec![1]);
        let limits = KeySpan { lower: Some(&limit[..]), upper: Some(&limit[..]) };
        let mut cursor = cursor.with_limits(limits);
        let found = match forward {
            true => {
                cursor.seek(&at, SeqNo::MAX).unwrap();
                model.iter().find(|entry| entry.0 >= at)
            }
            false => {
                cursor.seek_before(&at, SeqNo::MAX).unwrap();
                model.iter().rfind(|entry| entry.0 < at)
            }
        };
        let wanted = found.filter(|entry| is_within(&entry.0, Some(&limit), forward));
        prop_assert_eq!(cursor.valid().then(|| cursor.key()), wanted.map(|entry| &*entry.0));
        for child in &cursor.children {
            let may_be_next = child.valid() && wanted.is_some_and(|entry| entry.0 == child.key());
            prop_assert!(!child.valid() || may_be_next);
        }
    }

    #[test]
    fn a_child_that_fails_leaves_the_merge_invalid_until_it_is_positioned_again(
        runs in 1usize..6,
        entries in vec((0usize..10, key()), 0..40),
        failures in vec(prop::option::of(0u32..40), 6),
        steps in vec(step(), 1..80),
    ) {
        let (mut cursor, model) = merged(runs, &entries);
        for (child, fails_in) in cursor.children.iter_mut().zip(failures) {
            child.fails_in = fails_in;
        }
        walk(&mut cursor, &model, &steps);
    }
}

#[test]
fn a_merge_of_nothing_is_never_valid() {
    let mut cursor = MergingCursor::new(Vec::new());
    for step in [CursorStep::First, CursorStep::Last, CursorStep::Seek(vec![1], 1), CursorStep::SeekBefore(vec![1], 1)]
    {
        walk(&mut cursor, &[], &[step]);
    }
}
