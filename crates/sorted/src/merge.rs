//! [`MergingCursor`]: merges several cursors into one ordered sequence.
//!
//! Its *fast steps* decode nothing but key and value, and compare nothing, as long as one source
//! shows entries that the others do not reach. Gain: `readseq` 1.46, `readreverse` 1.96, `scan100`
//! 1.16 times as fast. To remove them, let `plan_fast_steps` do nothing.

use std::borrow::BorrowMut;
use std::cmp::Ordering;
use std::hint::select_unpredictable;
use std::sync::Arc;

use crate::error::Result;
use crate::format::key::{HEAD16_LEN, SeqNo, ValueKind, compare_entries};
use crate::format::span::KeySpan;
use crate::iter::{Direction, InternalCursor, KeyBound, MergeCursor, SkippedRun, Stamped};
use crate::report::stats::ReadCounters;
use crate::scan_trace::ScanTrace;

/// Yields the entries of all children in order. If several children hold the same entry, the cursor
/// yields it once for each of them, or fewer times if it reverses there.
///
/// The cursor is a loser tree: the children are the leaves of a tournament, each inner node keeps
/// the loser of its match, and the winner is the current entry. After a step, the moved child
/// replays its matches up to the root, one per level. Matches compare heads, the first 16 bytes of
/// the keys ([`head16`](crate::format::key::head16)), which the nodes store. Only if two heads are
/// equal do they compare whole keys.
///
/// While one child wins repeatedly, only it moves. It is then compared with the *challenger* alone,
/// the first of all other children. A single child has no challenger and costs nothing to merge. A
/// child that knows how many of its next entries come before the challenger takes [fast
/// steps](MergeCursor::fast_steps) over them, without any comparison.
///
/// A child that has [deferred](MergeCursor::deferred) its next entry takes part with the bound of
/// that entry's key, before all entries of that key. Only when it wins, and only if the bound is
/// within the [limits](MergingCursor::with_limits), does it resume.
///
/// Invariant: no child is before the current entry in the direction of travel. Reversing the
/// direction moves every other child to the other side of that entry.
pub struct MergingCursor<C: MergeCursor> {
    children: Vec<C>,
    /// Inner nodes from 1 on; the children of node `i` are `2 * i` and `2 * i + 1`. The leaves
    /// follow the inner nodes, in the order of `children`.
    losers: Vec<Entrant>,
    /// [`Entrant::NONE`] if the cursor is invalid.
    winner: Entrant,
    /// The best of all other entrants, if known.
    challenger: Option<Entrant>,
    /// Consecutive replays with the same winner.
    wins: u32,
    /// Fast steps that the current child may still take.
    fast_steps: usize,
    /// Whether fast steps were taken. Until
    /// [`finish_fast_steps`](MergingCursor::finish_fast_steps), `winner.head` is that of the entry
    /// before them.
    is_head_stale: bool,
    direction: Direction,
    limits: Option<Box<KeySpan<Vec<u8>>>>,
}

/// Consecutive wins that make it worth finding the challenger. Entries in random order rarely get
/// there.
const WINS_FOR_CHALLENGER: u32 = 2;

/// A child in the tournament. The first in the direction of travel wins.
///
/// It remembers whether the child is valid, so that [`settle`](MergingCursor::settle) need not ask
/// the child.
#[derive(Clone, Copy)]
struct Entrant {
    /// The head of the key, or of a deferred entry's bound; inverted when travelling backward.
    /// `u128::MAX` for an exhausted child.
    head: u128,
    /// The position of a valid child; that of another one with the bit [`Entrant::INVALID`].
    child: usize,
}

impl Entrant {
    const INVALID: usize = 1 << (usize::BITS - 1);
    const NONE: Entrant = Entrant { head: u128::MAX, child: usize::MAX };

    fn is_none(&self) -> bool {
        self.child == Entrant::NONE.child
    }

    fn is_valid(&self) -> bool {
        self.child < Entrant::INVALID
    }

    /// The position of the child.
    fn position(&self) -> usize {
        self.child & !Entrant::INVALID
    }
}

/// What is known of a child's next entry.
enum Next<'c> {
    Entry((&'c [u8], SeqNo)),
    Bound(KeyBound<'c>),
    /// There is none.
    None,
}

/// XOR mask that turns the order of heads into the direction of travel.
fn mask(direction: Direction) -> u128 {
    if direction.is_forward() { 0 } else { u128::MAX }
}

/// [`compare_entries`] of keys whose heads are equal.
#[inline(always)]
fn compare_with_equal_heads(a: (&[u8], SeqNo), b: (&[u8], SeqNo)) -> Ordering {
    // The heads are the whole keys, but for zeros at their ends: the shorter one comes first.
    if a.0.len().max(b.0.len()) <= HEAD16_LEN {
        return a.0.len().cmp(&b.0.len()).then_with(|| b.1.cmp(&a.1));
    }
    compare_entries(a, b)
}

/// Does the middle parts of a seek in all cursors, part by part.
fn continue_seeks<C: MergeCursor>(children: &mut [impl BorrowMut<C>], key: &[u8]) -> Result<()> {
    let mut unfinished = true;
    while unfinished {
        unfinished = false;
        for child in &mut *children {
            unfinished |= child.borrow_mut().continue_seek(key)?;
        }
    }
    Ok(())
}

impl<C: MergeCursor> MergingCursor<C> {
    pub fn new(children: Vec<C>) -> MergingCursor<C> {
        MergingCursor {
            // A single child has no match.
            losers: if children.len() > 1 { vec![Entrant::NONE; children.len()] } else { Vec::new() },
            children,
            winner: Entrant::NONE,
            challenger: None,
            wins: 0,
            fast_steps: 0,
            is_head_stale: false,
            direction: Direction::Forward,
            limits: None,
        }
    }

    /// Makes it the cursor of a scan that wants no entry outside of `limits`. It may end where the
    /// next entry is outside.
    pub fn with_limits(mut self, limits: KeySpan<&[u8]>) -> MergingCursor<C> {
        if limits != KeySpan::default() {
            self.children.iter_mut().for_each(C::let_steps_defer);
            let [lower, upper] = [limits.lower, limits.upper].map(|limit| limit.map(<[u8]>::to_vec));
            self.limits = Some(Box::new(KeySpan { lower, upper }));
        }
        self
    }

    /// Makes all children write what they read of tables into `trace`.
    pub fn set_trace(&mut self, trace: &Arc<ScanTrace>) {
        self.children.iter_mut().for_each(|child| child.set_trace(trace));
    }

    /// Which child has the current entry. The cursor must be valid.
    pub fn source(&self) -> usize {
        self.winner.child
    }

    /// Invalidates the cursor and forgets any fast steps. Precedes a new position of the children.
    fn invalidate(&mut self) {
        if let Some(current) = self.children.get_mut(self.winner.child) {
            current.note_taken();
        }
        self.winner = Entrant::NONE;
        (self.fast_steps, self.is_head_stale) = (0, false);
    }

    /// Ends a scan that does not take the current entry: it is outside of the scan's range.
    pub fn end(&mut self) {
        self.winner = Entrant::NONE;
        self.invalidate();
    }

    /// Moves every child with `position`, sets the direction of travel and plays the tournament.
    fn position(&mut self, direction: Direction, position: impl FnMut(&mut C) -> Result<()>) -> Result<()> {
        self.invalidate();
        self.children.iter_mut().try_for_each(position)?;
        self.start(direction)
    }

    /// Seeks in every child, part by part, so that the children's cache misses overlap.
    fn seek_all(&mut self, key: &[u8], seqno: SeqNo, direction: Direction) -> Result<()> {
        let forward = direction.is_forward();
        self.invalidate();
        self.children.iter_mut().try_for_each(|child| child.begin_seek(key, seqno, forward))?;
        continue_seeks::<C>(&mut self.children, key)?;
        self.position(direction, |child| child.end_seek(key, seqno, forward))
    }

    /// Moves to the last entry before `(key, seqno)`.
    pub fn seek_before(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.seek_all(key, seqno, Direction::Backward)
    }

    /// Moves to the first entry at or after `from`, or backward to the last one before it, where
    /// entries of `skipped` may be left out. `None` is the end of the key space.
    pub fn seek_over(&mut self, from: Option<&[u8]>, skipped: &SkippedRun<'_>, forward: bool) -> Result<()> {
        self.invalidate();
        let mut left = Vec::new();
        for child in &mut self.children {
            if !child.skip(from, skipped, forward)? {
                left.push(child);
            }
        }
        if let Some(key) = from {
            left.iter_mut().try_for_each(|child| child.begin_seek(key, SeqNo::MAX, forward))?;
            continue_seeks::<C>(&mut left, key)?;
        }
        for child in left {
            match (from, forward) {
                (None, true) => child.seek_to_first()?,
                (None, false) => child.seek_to_last()?,
                (Some(key), _) => child.end_seek(key, SeqNo::MAX, forward)?,
            }
        }
        self.start(Direction::new(forward))
    }

    /// Reverses the direction of travel: every child but the current one moves to its last entry
    /// before the current entry, or to its first after it.
    #[cold]
    fn reverse(&mut self, direction: Direction) -> Result<()> {
        let (key, seqno, current) = (self.key().to_vec(), self.seqno(), self.winner.child);
        let forward = direction.is_forward();
        self.invalidate();
        for (_, child) in self.children.iter_mut().enumerate().filter(|(i, _)| *i != current) {
            child.begin_seek(&key, seqno, forward)?;
            while child.continue_seek(&key)? {}
            child.end_seek(&key, seqno, forward)?;
        }
        // The other children are now past the current entry, or at an equal one, which may win
        // instead.
        self.start(direction)
    }

    /// Asks the current child how many [fast steps](MergeCursor::fast_steps) it can take before the
    /// challenger's key, and before the head `limit` if there is one. The cursor must be valid.
    #[inline]
    pub fn plan_fast_steps(&mut self, snapshot: SeqNo, limit: Option<u128>) {
        if let Some(challenger) = self.challenger {
            let limit = limit.map_or(u128::MAX, |limit| limit ^ mask(self.direction));
            let bound = challenger.head.min(limit) ^ mask(self.direction);
            let forward = self.direction == Direction::Forward;
            self.fast_steps = self.current().fast_steps(snapshot, bound, forward);
        }
    }

    /// Takes one of the planned fast steps, if any are left in this direction and the child can
    /// take it. Returns whether it did. Afterwards, only key and value may be read.
    #[inline]
    pub fn try_fast_step(&mut self, forward: bool) -> bool {
        if self.fast_steps == 0 || forward != (self.direction == Direction::Forward) {
            return false;
        }
        let stepped = self.children[self.winner.child].fast_step(forward);
        self.is_head_stale |= stepped;
        self.fast_steps = if stepped { self.fast_steps - 1 } else { 0 };
        stepped
    }

    /// Ends fast steps: required before any other move but a seek, and before reading more than key
    /// and value. An error leaves the cursor invalid.
    #[inline]
    pub fn finish_fast_steps(&mut self) -> Result<()> {
        self.fast_steps = 0;
        if self.is_head_stale {
            let current = self.winner.child;
            self.invalidate();
            self.children[current].end_fast_steps()?;
            self.winner = self.entrant(current);
        }
        Ok(())
    }

    /// Moves the current child with `step` and finds the new winner. An error leaves the cursor
    /// invalid.
    #[inline]
    fn step(&mut self, step: impl FnOnce(&mut C) -> Result<()>) -> Result<()> {
        debug_assert!(!self.is_head_stale, "fast steps must be finished before another move");
        let current = self.winner.child;
        if let Err(error) = step(&mut self.children[current]) {
            self.winner = Entrant::NONE;
            return Err(error);
        }
        let Some(head) = self.children[current].head_if_valid() else {
            return self.leave(current);
        };
        let moved = Entrant { head: head ^ mask(self.direction), child: current };
        match self.challenger {
            Some(challenger) if self.precedes(moved, challenger) => {
                self.winner = moved;
                Ok(())
            }
            _ => self.replay(moved),
        }
    }

    /// The rare part of a step: the current child has deferred its next entry, or has none. It
    /// stays the current child while it comes before the challenger.
    #[cold]
    fn leave(&mut self, current: usize) -> Result<()> {
        self.winner = Entrant::NONE;
        let mut moved = self.entrant(current);
        if let Some(challenger) = self.challenger {
            while self.precedes(moved, challenger) {
                if moved.is_valid() {
                    self.winner = moved;
                    return Ok(());
                }
                if !self.resume(current)? {
                    return Ok(());
                }
                moved = self.entrant(current);
            }
        }
        self.replay(moved)
    }

    /// Resumes a child that may come next, unless its next entry is outside of the limits: then it
    /// returns false, and the merge has ended. So it does if the child has no entry.
    fn resume(&mut self, child: usize) -> Result<bool> {
        let Some(bound) = self.children[child].deferred() else { return Ok(false) };
        let is_within = self.limits.as_ref().is_none_or(|limits| {
            let forward = self.direction.is_forward();
            let limit = if forward { &limits.upper } else { &limits.lower };
            bound.is_within(limit.as_deref(), forward)
        });
        if is_within {
            self.children[child].resume()?;
        }
        Ok(is_within)
    }

    #[inline(always)]
    fn entrant(&self, child: usize) -> Entrant {
        match self.children[child].head_if_valid() {
            Some(head) => Entrant { head: head ^ mask(self.direction), child },
            None => self.entrant_that_is_invalid(child),
        }
    }

    #[cold]
    fn entrant_that_is_invalid(&self, child: usize) -> Entrant {
        let bound = self.children[child].deferred();
        let head = bound.map_or(u128::MAX, |bound| bound.head() ^ mask(self.direction));
        Entrant { head, child: child | Entrant::INVALID }
    }

    #[inline]
    fn precedes(&self, a: Entrant, b: Entrant) -> bool {
        if a.head == b.head { self.precedes_by_key(a, b) } else { a.head < b.head }
    }

    /// Decides between equal heads: of keys that differ after 16 bytes or in trailing zeros, of
    /// versions of one key, or of an exhausted child and a key that begins with 16 bytes 0xff.
    #[inline(never)]
    fn precedes_by_key(&self, a: Entrant, b: Entrant) -> bool {
        let first = match self.direction {
            Direction::Forward => Ordering::Less,
            Direction::Backward => Ordering::Greater,
        };
        match (self.next_of(a), self.next_of(b)) {
            (Next::Entry(a), Next::Entry(b)) => compare_with_equal_heads(a, b) == first,
            // A bound comes before all entries of its key.
            (Next::Bound(a), Next::Entry((b, _))) => a.compare(b) != first.reverse(),
            (Next::Entry((a, _)), Next::Bound(b)) => b.compare(a) == first.reverse(),
            (Next::Bound(a), Next::Bound(b)) => a.compare_bound(&b) == first,
            (a, Next::None) => !matches!(a, Next::None),
            (Next::None, _) => false,
        }
    }

    #[inline(always)]
    fn next_of(&self, entrant: Entrant) -> Next<'_> {
        match self.children.get(entrant.position()) {
            Some(child) if entrant.is_valid() => Next::Entry((child.key(), child.seqno())),
            Some(child) => child.deferred().map_or(Next::None, Next::Bound),
            None => Next::None,
        }
    }

    /// Plays the whole tournament, after the children have been positioned.
    fn start(&mut self, direction: Direction) -> Result<()> {
        self.children.iter_mut().for_each(C::note_position);
        self.direction = direction;
        self.play_all()
    }

    /// Plays the whole tournament.
    fn play_all(&mut self) -> Result<()> {
        self.losers.fill(Entrant::NONE);
        self.wins = 0;
        self.challenger = (self.children.len() == 1).then_some(Entrant::NONE);
        'children: for child in 0..self.children.len() {
            let mut winner = self.entrant(child);
            let mut node = self.parent_of_leaf(child);
            while node > 0 {
                // The first entrant at a node waits there for the second.
                if self.losers[node].is_none() {
                    self.losers[node] = winner;
                    continue 'children;
                }
                winner = self.play(node, winner);
                node /= 2;
            }
            // Only the last child gets here.
            return self.settle(winner);
        }
        Ok(())
    }

    /// The leaf of child `i` is node `children.len() + i`.
    fn parent_of_leaf(&self, child: usize) -> usize {
        usize::midpoint(self.children.len(), child)
    }

    /// Plays `entrant` against the loser at `node`. The new loser stays there; the winner is
    /// returned.
    #[inline]
    fn play(&mut self, node: usize, entrant: Entrant) -> Entrant {
        let waiting = self.losers[node];
        let lost = self.precedes(waiting, entrant);
        // The outcome is unpredictable: select without branches.
        let select = |a: Entrant, b: Entrant| Entrant {
            head: select_unpredictable(lost, a.head, b.head),
            child: select_unpredictable(lost, a.child, b.child),
        };
        self.losers[node] = select(entrant, waiting);
        select(waiting, entrant)
    }

    /// Replays the matches of the last winner, which has moved to `moved`, up to the root.
    fn replay(&mut self, moved: Entrant) -> Result<()> {
        let winner = self.play_up(moved);
        self.challenger = None;
        self.wins = if winner.child == moved.child { self.wins + 1 } else { 0 };
        if self.wins >= WINS_FOR_CHALLENGER {
            self.challenger = Some(self.find_challenger(winner.position()));
        }
        self.settle(winner)
    }

    /// Plays the matches of `moved` up to the root, and returns the winner.
    #[inline(always)]
    fn play_up(&mut self, moved: Entrant) -> Entrant {
        let mut winner = moved;
        let mut node = self.parent_of_leaf(moved.position());
        while node > 0 {
            winner = self.play(node, winner);
            node /= 2;
        }
        winner
    }

    /// The entrant that would win without `winner`. It can have lost only to `winner`, so it is on
    /// that leaf's path.
    fn find_challenger(&self, winner: usize) -> Entrant {
        let mut first = Entrant::NONE;
        let mut node = self.parent_of_leaf(winner);
        while node > 0 {
            if self.precedes(self.losers[node], first) {
                first = self.losers[node];
            }
            node /= 2;
        }
        first
    }

    /// Makes the winner of the tournament the current child, if it is valid. Otherwise resumes what
    /// is deferred until a valid child wins, or no child has an entry within the limits.
    #[inline]
    fn settle(&mut self, winner: Entrant) -> Result<()> {
        if winner.is_valid() {
            self.winner = winner;
            return Ok(());
        }
        self.resume_winners(winner)
    }

    #[cold]
    fn resume_winners(&mut self, mut winner: Entrant) -> Result<()> {
        (self.winner, self.wins) = (Entrant::NONE, 0);
        self.challenger = (self.children.len() == 1).then_some(Entrant::NONE);
        while !winner.is_valid() {
            let child = winner.position();
            if !self.resume(child)? {
                return Ok(());
            }
            winner = self.play_up(self.entrant(child));
        }
        self.winner = winner;
        Ok(())
    }

    #[inline]
    fn current(&self) -> &C {
        &self.children[self.winner.child]
    }
}

impl<C: MergeCursor> Drop for MergingCursor<C> {
    fn drop(&mut self) {
        self.invalidate();
    }
}

impl<C: MergeCursor> InternalCursor for MergingCursor<C> {
    #[inline]
    fn valid(&self) -> bool {
        !self.winner.is_none()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.position(Direction::Backward, C::seek_to_last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.seek_all(key, seqno, Direction::Forward)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.direction == Direction::Backward {
            self.reverse(Direction::Forward)?;
            if !self.valid() {
                // The current entry was outside of the limits.
                return Ok(());
            }
        }
        self.step(C::next)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if self.direction == Direction::Forward {
            self.reverse(Direction::Backward)?;
            if !self.valid() {
                // The current entry was outside of the limits.
                return Ok(());
            }
        }
        self.step(C::prev)
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.current().key()
    }

    #[inline(always)]
    fn stamp(&self) -> (SeqNo, ValueKind) {
        (self.current().seqno(), self.current().kind())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current().value()
    }
}

impl<C: MergeCursor> MergeCursor for MergingCursor<C> {
    fn seek_to_first(&mut self) -> Result<()> {
        self.position(Direction::Forward, C::seek_to_first)
    }

    /// Every child jumps by itself. Therefore another child may jump past entries that come after
    /// the new current entry: if the jump stops before `end`, the caller must seek before it moves
    /// on. `forward` must be the direction of travel.
    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        debug_assert!(!self.is_head_stale, "fast steps must be finished before another move");
        debug_assert_eq!(forward, self.direction == Direction::Forward);
        self.invalidate();
        self.children.iter_mut().try_for_each(|child| child.jump(end, seen, forward))?;
        self.play_all()
    }

    #[inline]
    fn counters(&self) -> Option<&ReadCounters> {
        self.current().counters()
    }

    /// Answers only when travelling backward: all other children are then before the current entry
    /// in key order, so the nearest of them decides.
    #[inline]
    fn is_first_of_key(&self) -> bool {
        self.direction == Direction::Backward && self.current().is_first_of_key() && {
            let next = self.challenger.unwrap_or_else(|| self.find_challenger(self.winner.child));
            next.head != self.winner.head
        }
    }

    #[inline]
    fn head(&self) -> u128 {
        self.winner.head ^ mask(self.direction)
    }

    #[inline]
    fn shows(&self, snapshot: SeqNo) -> bool {
        self.current().shows(snapshot)
    }
}

#[cfg(test)]
mod tests;
