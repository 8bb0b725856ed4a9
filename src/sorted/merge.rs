//! A cursor over the union of several cursors.

use std::cmp::Ordering;
use std::hint::select_unpredictable;

use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind, compare_entries};
use crate::report::stats::ReadCounters;
use crate::sorted::iter::InternalCursor;

/// Yields the entries of all its children in order. If several children hold the same one, with key and sequence number (as levels do
/// amid a compaction), it comes as often, except after turning around at it.
///
/// A tree of losers: the children are the leaves of a tournament, each inner node keeps the entry that lost there, and the winner is the
/// current entry. After a step the moved child plays its way up to the root again, against one loser per node. What is compared is the
/// head of the key, which stands in the node; keys themselves only when heads are equal.
///
/// A child that wins again and again need not replay: it stays the winner while it comes before the *challenger*, the first of all
/// others, who does not change meanwhile. With a single child that is nobody, and there is no merge to pay for. If the child knows more
/// of what comes before the challenger, it takes [plain steps](InternalCursor::plain_steps), and the tree does not hear of them.
///
/// All children stand at or behind the current entry in the direction of travel; turning around moves every other child to the other
/// side of it.
pub(crate) struct MergingCursor<C> {
    children: Vec<C>,
    /// Of the inner nodes, from 1 on; those below `i` are `2 * i` and `2 * i + 1`, the leaves follow them in the order of the children.
    losers: Vec<Entrant>,
    /// [`Entrant::NONE`] if the cursor is invalid.
    winner: Entrant,
    /// The first of all entrants but the winner, if that is known.
    challenger: Option<Entrant>,
    /// Climbs in a row that ended with the same winner.
    wins: u32,
    /// Plain steps that the current child may still take.
    plain: usize,
    /// Whether it has taken some: `winner` has the head of where it took the first, until it [catches up](MergingCursor::catch_up).
    is_ahead: bool,
    direction: MergeDirection,
}

/// After so many climbs in a row with the same winner it is worth knowing the challenger: entries in random order rarely come to that.
const WINS_FOR_CHALLENGER: u32 = 2;

/// A child in the tournament. Who comes first in the direction of travel wins.
#[derive(Clone, Copy)]
struct Entrant {
    /// The head of the key, inverted when travelling backward; the largest there is if the child has come to its end.
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
    /// What to invert in a head.
    fn mask(self) -> u128 {
        match self {
            MergeDirection::Forward => 0,
            MergeDirection::Backward => u128::MAX,
        }
    }
}

impl<C: InternalCursor> MergingCursor<C> {
    pub(crate) fn new(children: Vec<C>) -> MergingCursor<C> {
        MergingCursor {
            losers: vec![Entrant::NONE; children.len()],
            children,
            winner: Entrant::NONE,
            challenger: None,
            wins: 0,
            plain: 0,
            is_ahead: false,
            direction: MergeDirection::Forward,
        }
    }

    /// Forgets where the current child stands, and the way there: children are about to be positioned anew.
    fn invalidate(&mut self) {
        self.winner = Entrant::NONE;
        (self.plain, self.is_ahead) = (0, false);
    }

    /// Positions every child with `position` and starts to travel in `direction`.
    fn position(&mut self, direction: MergeDirection, position: impl FnMut(&mut C) -> Result<()>) -> Result<()> {
        self.invalidate();
        self.children.iter_mut().try_for_each(position)?;
        self.direction = direction;
        self.play_all();
        Ok(())
    }

    fn begin_all_seeks(&mut self, key: &[u8]) -> Result<()> {
        self.invalidate();
        self.children.iter_mut().try_for_each(|child| child.begin_seek(key))?;
        let mut unfinished = true;
        while unfinished {
            unfinished = false;
            for child in &mut self.children {
                unfinished |= child.continue_seek(key)?;
            }
        }
        Ok(())
    }

    /// To the last entry before `(key, seqno)`.
    pub(crate) fn seek_before(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.begin_all_seeks(key)?;
        self.position(MergeDirection::Backward, |child| {
            child.end_seek(key, seqno)?;
            if child.valid() { child.prev() } else { child.seek_to_last() }
        })
    }

    /// Travels in the other direction from here on: every child but the current one goes to its last entry before the current
    /// entry, or to its first behind it.
    #[cold]
    fn turn(&mut self, direction: MergeDirection) -> Result<()> {
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
        self.direction = direction;
        // All others stand behind the current entry now, or at the same: it wins again, or that does.
        self.play_all();
        Ok(())
    }

    /// Finds out whether what comes next in the direction of travel can be reached by plain steps. The cursor must be valid.
    #[inline]
    pub(crate) fn expect_plain_steps(&mut self, snapshot: SeqNo) {
        if let Some(challenger) = self.challenger {
            let (bound, forward) = (challenger.head ^ self.direction.mask(), self.direction == MergeDirection::Forward);
            self.plain = self.current().plain_steps(snapshot, bound, forward);
        }
    }

    /// Takes a plain step, if one was expected in this direction and nothing stands in the way; returns whether it did.
    #[inline]
    pub(crate) fn step_plainly(&mut self, forward: bool) -> bool {
        if self.plain == 0 || forward != (self.direction == MergeDirection::Forward) {
            return false;
        }
        let stepped = self.children[self.winner.child].plain_step(forward);
        self.is_ahead |= stepped;
        self.plain = if stepped { self.plain - 1 } else { 0 };
        stepped
    }

    /// Ends plain steps, as it must be done before all other moves but seeks. An error leaves the cursor invalid.
    #[inline]
    pub(crate) fn catch_up(&mut self) -> Result<()> {
        self.plain = 0;
        if self.is_ahead {
            let current = self.winner.child;
            self.invalidate();
            self.children[current].end_plain_steps()?;
            self.winner = self.entrant(current);
        }
        Ok(())
    }

    /// Moves the current child with `step` and finds the next winner. An error leaves the cursor invalid.
    #[inline]
    fn step(&mut self, step: impl FnOnce(&mut C) -> Result<()>) -> Result<()> {
        debug_assert!(!self.is_ahead, "plain steps end before others");
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

    /// The same for equal heads, which say nothing: neither about longer keys, nor about versions, nor about trailing zeros, nor whether
    /// there is an entry.
    #[inline(never)]
    fn precedes_by_key(&self, a: Entrant, b: Entrant) -> bool {
        let entry = |entrant: Entrant| {
            let cursor = self.children.get(entrant.child).filter(|cursor| cursor.valid())?;
            Some((cursor.key(), cursor.seqno()))
        };
        let ahead = match self.direction {
            MergeDirection::Forward => Ordering::Less,
            MergeDirection::Backward => Ordering::Greater,
        };
        match (entry(a), entry(b)) {
            (Some(a), Some(b)) => compare_entries(a, b) == ahead,
            (a, _) => a.is_some(),
        }
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
                // The first who comes to a node waits there for the other.
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

    fn parent_of_leaf(&self, child: usize) -> usize {
        usize::midpoint(self.children.len(), child)
    }

    /// Lets `entrant` play against the loser at `node`; the new loser stays there, the winner is returned.
    #[inline]
    fn play(&mut self, node: usize, entrant: Entrant) -> Entrant {
        let waiting = self.losers[node];
        let lost = self.precedes(waiting, entrant);
        // Who wins cannot be foreseen: no branches.
        let select = |a: Entrant, b: Entrant| Entrant {
            head: select_unpredictable(lost, a.head, b.head),
            child: select_unpredictable(lost, a.child, b.child),
        };
        self.losers[node] = select(entrant, waiting);
        select(waiting, entrant)
    }

    /// Lets the child that was the winner, and has moved, play its way up again.
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

    /// Who would win without `winner`: it lost to nobody else, so it waits on the winner's way.
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

impl<C: InternalCursor> InternalCursor for MergingCursor<C> {
    #[inline]
    fn valid(&self) -> bool {
        !self.winner.is_none()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.position(MergeDirection::Forward, C::seek_to_first)
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
            self.turn(MergeDirection::Forward)?;
        }
        self.step(C::next)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if self.direction == MergeDirection::Forward {
            self.turn(MergeDirection::Backward)?;
        }
        self.step(C::prev)
    }

    /// In the direction of travel only. Other children may be left further on than the new current
    /// entry: a caller that has stopped short of `end` must seek before it goes on.
    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        debug_assert!(!self.is_ahead, "plain steps end before others");
        debug_assert_eq!(forward, self.direction == MergeDirection::Forward);
        self.position(self.direction, |child| if child.valid() { child.jump(end, seen, forward) } else { Ok(()) })
    }

    #[inline]
    fn counters(&self) -> Option<&ReadCounters> {
        self.current().counters()
    }

    /// Going backward. All other children stand before the current entry; the first of them in this direction tells of all.
    #[inline]
    fn is_first_of_key(&self) -> bool {
        self.direction == MergeDirection::Backward && self.current().is_first_of_key() && {
            let next = self.challenger.unwrap_or_else(|| self.find_challenger(self.winner.child));
            next.head != self.winner.head
        }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.current().key()
    }

    #[inline]
    fn head(&self) -> u128 {
        self.winner.head ^ self.direction.mask()
    }

    #[inline]
    fn seqno(&self) -> SeqNo {
        self.current().seqno()
    }

    #[inline]
    fn shows(&self, snapshot: SeqNo) -> bool {
        self.current().shows(snapshot)
    }

    #[inline]
    fn kind(&self) -> ValueKind {
        self.current().kind()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current().value()
    }
}

#[cfg(test)]
mod tests;
