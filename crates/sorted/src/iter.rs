//! [`InternalCursor`]: the interface of every ordered source of entries: memtables, tables, levels,
//! and merges of them.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::Result;
use crate::format::key::{HEAD16_LEN, SeqNo, ValueKind, compare, head16, head16_bytes, strip};
use crate::report::stats::ReadCounters;
use crate::scan_trace::ScanTrace;

/// A position in a sequence of entries, ordered by user key, then newest first.
///
/// A cursor starts out invalid, and a failed step leaves it invalid. Accessors need a valid cursor;
/// they borrow from it until the next step.
///
/// ```text
/// cursor   = new (position step*)*
/// position = seek | seek_to_last
/// step     = next | prev             only while valid
/// ```
pub trait InternalCursor {
    fn valid(&self) -> bool;

    /// Moves to the first entry at or after `(key, seqno)`. With a snapshot's number, that is the
    /// newest version of `key` that the snapshot sees or, if there is none, a later key.
    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()>;

    fn seek_to_last(&mut self) -> Result<()>;

    fn next(&mut self) -> Result<()>;

    fn prev(&mut self) -> Result<()>;

    /// The user key.
    fn key(&self) -> &[u8];

    /// The sequence number and the kind of the entry.
    fn stamp(&self) -> (SeqNo, ValueKind);

    fn value(&self) -> &[u8];
}

/// A direction of travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

impl Direction {
    pub fn new(forward: bool) -> Direction {
        if forward { Direction::Forward } else { Direction::Backward }
    }

    pub fn is_forward(self) -> bool {
        self == Direction::Forward
    }

    /// The position after `at`.
    pub fn step_from(self, at: usize) -> Option<usize> {
        match self {
            Direction::Forward => at.checked_add(1),
            Direction::Backward => at.checked_sub(1),
        }
    }
}

/// The parts of [`InternalCursor::stamp`].
pub trait Stamped: InternalCursor {
    #[inline(always)]
    fn seqno(&self) -> SeqNo {
        self.stamp().0
    }

    #[inline(always)]
    fn kind(&self) -> ValueKind {
        self.stamp().1
    }
}

impl<C: InternalCursor + ?Sized> Stamped for C {}

/// What merges and scans ask of a source for speed: seeks in parts, fast steps, which decode only
/// key and value, and jumps over entries that a scan need not see.
///
/// ```text
/// seek  = begin_seek continue_seek* end_seek
/// fast  = fast_steps fast_step* end_fast_steps        a position may replace end_fast_steps
/// next  = valid | deferred resume+ | (neither: the end)
/// ```
///
/// A source may *defer* what would show its next entry, such as the read of a block: it is then not
/// valid, but knows a [bound](MergeCursor::deferred) of that entry's key. A merge
/// [resumes](MergeCursor::resume) it when no other source may come first.
pub trait MergeCursor: InternalCursor {
    /// Moves to the first entry.
    fn seek_to_first(&mut self) -> Result<()>;

    /// The first part of a seek. The cursor stays invalid until
    /// [`end_seek`](MergeCursor::end_seek) with the same target and direction. To seek several
    /// cursors, do each part on all of them before the next part, so that their cache misses
    /// overlap.
    fn begin_seek(&mut self, _key: &[u8], _seqno: SeqNo, _forward: bool) -> Result<()> {
        Ok(())
    }

    /// A middle part of a seek: takes one step of the search for `key` and prefetches what the next
    /// part reads. Returns false, and does nothing, if only the last part is left. Calling it is
    /// optional.
    fn continue_seek(&mut self, _key: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// The last part of a seek: to the first entry at or after `(key, seqno)`, or backward to the
    /// last one before it.
    fn end_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        self.seek(key, seqno)?;
        match forward {
            true => Ok(()),
            false if self.valid() => self.prev(),
            false => self.seek_to_last(),
        }
    }

    /// Lets steps from one block to the next defer as well, for a scan with limits. Without any,
    /// the next block is needed soon, and deferring costs more than it saves.
    fn let_steps_defer(&mut self) {}

    /// If the cursor has deferred its next entry: a bound of that entry's key, the first that the
    /// entry may have in the direction of travel. Forward, the key is not less; backward, it is not
    /// greater.
    fn deferred(&self) -> Option<KeyBound<'_>> {
        None
    }

    /// Ends a deferral, and notes the position that it comes to; does nothing without one.
    /// Afterwards the cursor is valid, or at its end, or
    /// deferred at a later bound or place; repeated calls come to one of the first two.
    fn resume(&mut self) -> Result<()> {
        Ok(())
    }

    /// Skips entries that a scan need not see: those numbered `seen` or less whose keys come before
    /// `end` in the direction of travel. Stops at the first other entry. Forward, `end` is an
    /// exclusive upper bound; backward, an inclusive lower bound; `None` is the end of the key
    /// space. Does nothing if there is no next entry.
    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        while self.valid() && self.seqno() <= seen && is_within(self.key(), end, forward) {
            if forward { self.next()? } else { self.prev()? }
        }
        Ok(())
    }

    /// If the first entries from `from` on are all in `skipped`, moves past those, without looking
    /// at them, and returns true. Best effort: returns false, and does nothing, if the cursor
    /// would have to read other entries to know. Going forward, `from` is an inclusive lower bound;
    /// backward, an exclusive upper bound; `None` is no bound.
    fn skip(&mut self, _from: Option<&[u8]>, _skipped: &SkippedRun<'_>, _forward: bool) -> Result<bool> {
        Ok(false)
    }

    /// Tells the cursor that it has been positioned: as long as it does not move on, no entry has
    /// been taken from it, but by [`note_taken`](MergeCursor::note_taken).
    fn note_position(&mut self) {}

    /// Tells the cursor that its current entry is taken.
    fn note_taken(&mut self) {}

    /// Makes the cursor write what it reads of tables into `trace`.
    fn set_trace(&mut self, _trace: &Arc<ScanTrace>) {}

    /// The counters for reads of the current entry, if the cursor has its own.
    fn counters(&self) -> Option<&ReadCounters> {
        None
    }

    /// Number of *fast steps* that the cursor can take next in a direction; a lower bound, found by
    /// reading few entries or none. Every fast step leads to another key. That key has a single
    /// version, `snapshot` sees it, and its head comes before `bound` in that direction.
    #[inline]
    fn fast_steps(&self, _snapshot: SeqNo, _bound: u128, _forward: bool) -> usize {
        0
    }

    /// Takes a fast step. Returns false and stays if it cannot: the next entry may be a tombstone.
    /// Afterwards only key and value may be read, until
    /// [`end_fast_steps`](MergeCursor::end_fast_steps) or a seek.
    #[inline]
    fn fast_step(&mut self, _forward: bool) -> bool {
        false
    }

    /// Decodes the rest of the current entry, which fast steps leave out.
    fn end_fast_steps(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether the previous entry certainly has another key. Best effort: false if the cursor would
    /// have to read another block to know.
    fn is_first_of_key(&self) -> bool {
        false
    }

    /// The key's [`head16`].
    #[inline]
    fn head(&self) -> u128 {
        head16(self.key())
    }

    /// The head of the current key; `None` if the cursor is invalid.
    #[inline]
    fn head_if_valid(&self) -> Option<u128> {
        self.valid().then(|| self.head())
    }

    /// Whether the entry is a value that `snapshot` sees, unless a newer version hides it.
    #[inline]
    fn shows(&self, snapshot: SeqNo) -> bool {
        self.seqno() <= snapshot && self.kind() == ValueKind::Put
    }
}

/// A bound of a key, in two parts, since a table's index keeps what all its keys begin with apart.
#[derive(Clone, Copy, Debug)]
pub struct KeyBound<'a> {
    pub prefix: &'a [u8],
    pub rest: &'a [u8],
}

impl<'a> KeyBound<'a> {
    /// A bound in one part.
    pub fn of(key: &'a [u8]) -> KeyBound<'a> {
        KeyBound { prefix: &[], rest: key }
    }

    pub fn to_vec(self) -> Vec<u8> {
        [self.prefix, self.rest].concat()
    }

    pub fn append_to(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix);
        out.extend_from_slice(self.rest);
    }

    /// Its order beside a key.
    pub fn compare(&self, key: &[u8]) -> Ordering {
        match strip(key, self.prefix) {
            Some(rest) => compare(self.rest, rest),
            None => compare(self.prefix, key),
        }
    }

    /// Its order beside another bound.
    pub fn compare_bound(&self, other: &KeyBound<'_>) -> Ordering {
        self.prefix.iter().chain(self.rest).cmp(other.prefix.iter().chain(other.rest))
    }

    /// Its [`head16`].
    pub fn head(&self) -> u128 {
        let head = head16(self.prefix);
        if self.prefix.len() < HEAD16_LEN { head | head16(self.rest) >> (8 * self.prefix.len()) } else { head }
    }

    /// [`is_within`] of the bound.
    pub fn is_within(&self, end: Option<&[u8]>, forward: bool) -> bool {
        end.is_none_or(|end| if forward { self.compare(end).is_lt() } else { self.compare(end).is_ge() })
    }
}

/// Whether `key` comes before `end` in the direction of travel, as defined by
/// [`MergeCursor::jump`].
pub fn is_within(key: &[u8], end: Option<&[u8]>, forward: bool) -> bool {
    end.is_none_or(|end| if forward { key < end } else { key >= end })
}

/// Entries that a scan need not see: those numbered `seen` or less whose keys come after `begin`
/// and before `end` in the direction of travel. Forward, `begin` is inclusive and `end` exclusive;
/// backward, the other way round. `None` is the end of the key space.
#[derive(Clone, Copy)]
pub struct SkippedRun<'a> {
    pub begin: Option<&'a [u8]>,
    pub end: Option<&'a [u8]>,
    pub seen: SeqNo,
}

impl SkippedRun<'_> {
    /// Whether the run has begun at a key.
    pub fn has_begun(&self, key: &[u8], forward: bool) -> bool {
        self.begin.is_none_or(|_| is_within(key, self.begin, !forward))
    }
}

/// A copy of a cursor's key, to compare later keys with. A key of up to 16 bytes compares in two
/// registers.
#[derive(Default)]
pub struct MarkedKey {
    head: u128,
    len: usize,
    /// The whole key if it is longer than a head.
    long: Vec<u8>,
}

impl MarkedKey {
    /// Copies the key of the cursor's current entry.
    #[inline]
    pub fn mark(&mut self, cursor: &impl MergeCursor) {
        let key = cursor.key();
        self.head = cursor.head();
        self.len = key.len();
        if self.len > HEAD16_LEN {
            self.long.clear();
            self.long.extend_from_slice(key);
        }
    }

    /// Whether the cursor's current entry has the marked key.
    #[inline(always)]
    pub fn is_at(&self, cursor: &impl MergeCursor) -> bool {
        self.head == cursor.head() && {
            let key = cursor.key();
            key.len() == self.len && (self.len <= HEAD16_LEN || *key == *self.long)
        }
    }

    /// The marked key; a short one is written to `buffer`.
    pub fn key<'a>(&'a self, buffer: &'a mut [u8; HEAD16_LEN]) -> &'a [u8] {
        *buffer = head16_bytes(self.head);
        buffer.get(..self.len).unwrap_or(&self.long)
    }
}
