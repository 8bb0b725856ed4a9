//! [`MergingCursor`]: merges several cursors into one ordered sequence.
//!
//! Its *fast steps* decode nothing but key and value, and compare nothing, as long as one source
//! shows entries that the others do not reach. Gain: `readseq` 1.46, `readreverse` 1.96, `scan100`
//! 1.16 times as fast. To remove them, let `plan_fast_steps` do nothing.

use std::borrow::BorrowMut;
use std::cmp::Ordering;
use std::hint::select_unpredictable;

use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind, compare_entries};
use crate::iter::{InternalCursor, MergeCursor, SkippedRun, Stamped};
use crate::report::stats::ReadCounters;

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
    direction: MergeDirection,
}

/// Consecutive wins that make it worth finding the challenger. Entries in random order rarely get
/// there.
const WINS_FOR_CHALLENGER: u32 = 2;

/// A child in the tournament. The first in the direction of travel wins.
#[derive(Clone, Copy)]
struct Entrant {
    /// The head of the key, inverted when travelling backward; `u128::MAX` for an exhausted child.
    head: u128,
    child: usize,
}

impl Entrant {
    const NONE: Entrant = Entrant { head: u128::MAX, child: usize::MAX };

    fn is_none(&self) -> bool {
        self.child == Entrant::NONE.child
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MergeDirection {
    Forward,
    Backward,
}

impl MergeDirection {
    /// XOR mask that turns the order of heads into the direction of travel.
    fn mask(self) -> u128 {
        match self {
            MergeDirection::Forward => 0,
            MergeDirection::Backward => u128::MAX,
        }
    }
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
            losers: vec![Entrant::NONE; children.len()],
            children,
            winner: Entrant::NONE,
            challenger: None,
            wins: 0,
            fast_steps: 0,
            is_head_stale: false,
            direction: MergeDirection::Forward,
        }
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
    fn position(&mut self, direction: MergeDirection, position: impl FnMut(&mut C) -> Result<()>) -> Result<()> {
        self.invalidate();
        self.children.iter_mut().try_for_each(position)?;
        self.start(direction);
        Ok(())
    }

    /// Does all parts but the last of a seek in every child, part by part, so that the children's
    /// cache misses overlap.
    fn begin_all_seeks(&mut self, key: &[u8]) -> Result<()> {
        self.invalidate();
        self.children.iter_mut().try_for_each(|child| child.begin_seek(key))?;
        continue_seeks::<C>(&mut self.children, key)
    }

    /// Moves to the last entry before `(key, seqno)`.
    pub fn seek_before(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_all_seeks(key)?;
        self.position(MergeDirection::Backward, |child| {
            child.end_seek(key, seqno)?;
            if child.valid() { child.prev() } else { child.seek_to_last() }
        })
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
            left.iter_mut().try_for_each(|child| child.begin_seek(key))?;
            continue_seeks::<C>(&mut left, key)?;
        }
        for child in left {
            match (from, forward) {
                (None, true) => child.seek_to_first()?,
                (None, false) => child.seek_to_last()?,
                (Some(key), _) => child.end_seek(key, SeqNo::MAX)?,
            }
            match (from, forward) {
                (Some(_), false) if child.valid() => child.prev()?,
                (Some(_), false) => child.seek_to_last()?,
                _ => {}
            }
        }
        self.start(if forward { MergeDirection::Forward } else { MergeDirection::Backward });
        Ok(())
    }

    /// Reverses the direction of travel: every child but the current one moves to its last entry
    /// before the current entry, or to its first after it.
    #[cold]
    fn reverse(&mut self, direction: MergeDirection) -> Result<()> {
        let (key, seqno, current) = (self.key().to_vec(), self.seqno(), self.winner.child);
        self.invalidate();
        for (_, child) in self.children.iter_mut().enumerate().filter(|(i, _)| *i != current) {
            child.seek(&key, seqno)?;
            match direction {
                MergeDirection::Forward => {}
                MergeDirection::Backward if child.valid() => child.prev()?,
                MergeDirection::Backward => child.seek_to_last()?,
            }
        }
        // The other children are now past the current entry, or at an equal one, which may win
        // instead.
        self.start(direction);
        Ok(())
    }

    /// Asks the current child how many [fast steps](MergeCursor::fast_steps) it can take before the
    /// challenger's key, and before the head `limit` if there is one. The cursor must be valid.
    #[inline]
    pub fn plan_fast_steps(&mut self, snapshot: SeqNo, limit: Option<u128>) {
        if let Some(challenger) = self.challenger {
            let limit = limit.map_or(u128::MAX, |limit| limit ^ self.direction.mask());
            let bound = challenger.head.min(limit) ^ self.direction.mask();
            let forward = self.direction == MergeDirection::Forward;
            self.fast_steps = self.current().fast_steps(snapshot, bound, forward);
        }
    }

    /// Takes one of the planned fast steps, if any are left in this direction and the child can
    /// take it. Returns whether it did. Afterwards, only key and value may be read.
    #[inline]
    pub fn try_fast_step(&mut self, forward: bool) -> bool {
        if self.fast_steps == 0 || forward != (self.direction == MergeDirection::Forward) {
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
        let moved = self.entrant(current);
        match self.challenger {
            Some(challenger) if self.precedes(moved, challenger) => self.winner = moved,
            _ => self.replay(moved),
        }
        Ok(())
    }

    #[inline(always)]
    fn entrant(&self, child: usize) -> Entrant {
        let head = self.children[child].head_if_valid();
        Entrant { head: head.map_or(u128::MAX, |head| head ^ self.direction.mask()), child }
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
            MergeDirection::Forward => Ordering::Less,
            MergeDirection::Backward => Ordering::Greater,
        };
        match (self.entry(a), self.entry(b)) {
            (Some(a), Some(b)) => compare_entries(a, b) == first,
            (a, _) => a.is_some(),
        }
    }

    /// `None` for a child that is exhausted.
    #[inline(always)]
    fn entry(&self, entrant: Entrant) -> Option<(&[u8], SeqNo)> {
        let cursor = self.children.get(entrant.child).filter(|cursor| cursor.valid())?;
        Some((cursor.key(), cursor.seqno()))
    }

    /// Plays the whole tournament, after the children have been positioned.
    fn start(&mut self, direction: MergeDirection) {
        self.children.iter_mut().for_each(C::note_position);
        self.direction = direction;
        self.play_all();
    }

    /// Plays the whole tournament.
    fn play_all(&mut self) {
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
            self.set_winner(winner);
        }
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
    fn replay(&mut self, moved: Entrant) {
        let mut winner = moved;
        let mut node = self.parent_of_leaf(moved.child);
        while node > 0 {
            winner = self.play(node, winner);
            node /= 2;
        }
        self.challenger = None;
        self.wins = if winner.child == moved.child { self.wins + 1 } else { 0 };
        if self.wins >= WINS_FOR_CHALLENGER {
            self.challenger = Some(self.find_challenger(winner.child));
        }
        self.set_winner(winner);
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

    fn set_winner(&mut self, winner: Entrant) {
        let ended = winner.head == u128::MAX && !self.children[winner.child].valid();
        self.winner = if ended { Entrant::NONE } else { winner };
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
        self.position(MergeDirection::Backward, C::seek_to_last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_all_seeks(key)?;
        self.position(MergeDirection::Forward, |child| child.end_seek(key, seqno))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.direction == MergeDirection::Backward {
            self.reverse(MergeDirection::Forward)?;
        }
        self.step(C::next)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if self.direction == MergeDirection::Forward {
            self.reverse(MergeDirection::Backward)?;
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
        self.position(MergeDirection::Forward, C::seek_to_first)
    }

    /// Every child jumps by itself. Therefore another child may jump past entries that come after
    /// the new current entry: if the jump stops before `end`, the caller must seek before it moves
    /// on. `forward` must be the direction of travel.
    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        debug_assert!(!self.is_head_stale, "fast steps must be finished before another move");
        debug_assert_eq!(forward, self.direction == MergeDirection::Forward);
        self.invalidate();
        self.children.iter_mut().filter(|child| child.valid()).try_for_each(|child| child.jump(end, seen, forward))?;
        self.play_all();
        Ok(())
    }

    #[inline]
    fn counters(&self) -> Option<&ReadCounters> {
        self.current().counters()
    }

    /// Answers only when travelling backward: all other children are then before the current entry
    /// in key order, so the nearest of them decides.
    #[inline]
    fn is_first_of_key(&self) -> bool {
        self.direction == MergeDirection::Backward && self.current().is_first_of_key() && {
            let next = self.challenger.unwrap_or_else(|| self.find_challenger(self.winner.child));
            next.head != self.winner.head
        }
    }

    #[inline]
    fn head(&self) -> u128 {
        self.winner.head ^ self.direction.mask()
    }

    #[inline]
    fn shows(&self, snapshot: SeqNo) -> bool {
        self.current().shows(snapshot)
    }
}

#[cfg(test)]
mod tests;
