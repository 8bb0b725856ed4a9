//! How a [`Cursor`] passes what range deletes delete: in *runs* of deleted ranges that abut.
//!
//! A source that holds nothing newer than a run is moved past it without being opened or sorted.
//! The others are sought, and the cursor asks for the cover of each entry that they show.

use std::sync::Arc;

use super::{Cursor, HiddenKeys, Passing, SEEK_AFTER};
use crate::error::Result;
use crate::format::key::{SeqNo, head16};
use crate::sorted::iter::{InternalCursor, MergeCursor, SkippedRun, Stamped, is_within};
use crate::sorted::ranges::{Covers, Stretch};

/// A jump passes this many range deletes that abut, and twice as many each time it got past all of
/// them, up to a limit.
const MIN_REACH: usize = 8;
const MAX_REACH: usize = 1024;

/// What a cursor knows of range deletes.
pub(super) struct Deleted {
    /// Those for the snapshot, if there are any in the keyspace.
    covers: Option<Arc<Covers>>,
    /// What they say of the keys around the last one asked.
    stretch: Option<Stretch>,
    /// How many of them that abut the next jump may pass.
    reach: usize,
}

impl Deleted {
    pub(super) fn new(covers: Option<Arc<Covers>>) -> Deleted {
        Deleted { covers, stretch: None, reach: MIN_REACH }
    }
}

impl Cursor {
    /// The number of the range delete that deletes older versions of the current key; 0 if there is
    /// none.
    #[inline]
    pub(super) fn cover(&mut self) -> SeqNo {
        if self.deleted.covers.is_some() { self.find_cover() } else { 0 }
    }

    fn find_cover(&mut self) -> SeqNo {
        let (Some(covers), key) = (&self.deleted.covers, self.inner.key()) else { return 0 };
        match &self.deleted.stretch {
            Some(stretch) if stretch.holds(key) => stretch.cover(),
            _ => self.deleted.stretch.insert(covers.stretch(key)).cover(),
        }
    }

    /// Whether a range delete deletes the current entry.
    #[inline]
    pub(super) fn is_deleted(&mut self) -> bool {
        self.deleted.covers.is_some() && self.inner.seqno() < self.find_cover()
    }

    /// Moves to the first entry from `from` on, if a range delete deletes the keys there or further
    /// on: sources with nothing else to show first are moved past it unread. Going backward, `from`
    /// is exclusive. Returns false if it has not moved.
    #[inline]
    pub(super) fn skip_deleted(&mut self, from: Option<&[u8]>, end: Option<&[u8]>, forward: bool) -> Result<bool> {
        if self.deleted.covers.is_some() { self.skip_run(from, end, forward) } else { Ok(false) }
    }

    #[cold]
    fn skip_run(&mut self, from: Option<&[u8]>, end: Option<&[u8]>, forward: bool) -> Result<bool> {
        let Some(covers) = &self.deleted.covers else { return Ok(false) };
        let stretch = match (from, forward) {
            (None, false) => covers.last_stretch(),
            (from, true) => covers.stretch(from.unwrap_or_default()),
            (Some(from), false) => covers.stretch_before(from),
        };
        // Sources without an entry in front of a deleted run need not be read for it either.
        let (begin, first) = match stretch.cover() {
            0 => {
                match if forward { stretch.to.as_deref() } else { Some(&*stretch.from).filter(|from| !from.is_empty()) }
                {
                    Some(begin) if is_within(begin, end, forward) => {
                        (Some(begin), if forward { covers.stretch(begin) } else { covers.stretch_before(begin) })
                    }
                    _ => {
                        self.deleted.stretch = Some(stretch);
                        return Ok(false);
                    }
                }
            }
            _ => (None, stretch.clone()),
        };
        if first.cover() == 0 {
            return Ok(false);
        }
        let run = covers.covered_run(&first, end, forward, MIN_REACH);
        self.settled = self.settled.max(run.newest);
        let skipped = SkippedRun { begin, end: run.end.as_deref(), seen: first.cover() - 1 };
        self.inner.seek_over(from, &skipped, forward)?;
        self.deleted.stretch = Some(stretch);
        Ok(true)
    }

    /// Plans fast steps after an entry that is visible: up to the next range delete.
    #[inline]
    pub(super) fn plan_fast_steps(&mut self, forward: bool) {
        let limit = match &self.deleted.stretch {
            None => None,
            Some(stretch) if stretch.cover() > 0 => return,
            Some(stretch) if forward => stretch.to.as_deref(),
            Some(stretch) => Some(&*stretch.from),
        };
        self.inner.plan_fast_steps(self.snapshot, limit.map(head16));
    }

    /// Passes the current entry, which a range delete deletes. After a few of them, jumps over the
    /// gap that an earlier scan has noted, or else to the end of the ranges that follow each other
    /// without a gap.
    #[cold]
    pub(super) fn pass_deleted(
        &mut self,
        hidden: &mut HiddenKeys,
        passed: &mut u32,
        forward: bool,
        end: Option<&[u8]>,
    ) -> Result<Passing> {
        hidden.newest = hidden.newest.max(self.deleted.stretch.as_ref().map_or(0, Stretch::cover));
        if !is_within(self.inner.key(), end, forward) {
            return Ok(Passing::Ended);
        }
        *passed += 1;
        if *passed <= SEEK_AFTER {
            return Ok(Passing::Step);
        }
        *passed = 0;
        // Going backward, each key that is passed is counted for this.
        if forward {
            self.marked.mark(&self.inner);
            let passing = self.jump(hidden, forward, end)?;
            if passing != Passing::Step {
                return Ok(passing);
            }
        }
        let (Some(covers), Some(stretch)) = (&self.deleted.covers, &self.deleted.stretch) else {
            return Ok(Passing::Step);
        };
        let run = covers.covered_run(stretch, end, forward, self.deleted.reach);
        self.settled = self.settled.max(run.newest);
        // Newer entries may be visible: they are looked at one by one. What the sources skip is
        // older than those.
        self.inner.jump(run.end.as_deref(), stretch.cover() - 1, forward)?;
        let is_over = !self.inner.valid() || !is_within(self.inner.key(), run.end.as_deref(), forward);
        self.deleted.reach = if is_over { (2 * self.deleted.reach).min(MAX_REACH) } else { MIN_REACH };
        Ok(Passing::Jumped)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::db::clock::Clock;
    use crate::db::shape::view::{ReadView, Tree};
    use crate::format::key::ValueKind;
    use crate::memory::pool::MemtablePool;
    use crate::sorted::memtable::Memtable;
    use crate::sorted::table::TableContext;
    use crate::vfs::SimFileSystem;

    #[test]
    fn a_scan_over_many_ranges_leaves_a_note_that_the_next_one_follows() {
        let memtable = Arc::new(Memtable::new(1, 1 << 20, 0, &MemtablePool::new(0)));
        let (options, version, gaps, traffic) = Default::default();
        let clock = Arc::new(Clock::new(None, 0));
        let fs = Arc::new(SimFileSystem::new());
        let values = Arc::clone(TableContext::new(fs, Path::new("/db"), 0, 8).values());
        let tree = Tree { id: 0, name: Arc::from("default"), options, version, gaps, traffic, clock, values };
        let (active, horizon) = (Arc::clone(&memtable), Arc::default());
        let view = ReadView { active, sealed: Vec::new(), trees: crate::db::shape::view::Trees::default(), horizon };
        let key = |i: u16| i.to_be_bytes();
        // A log of keys, purged from its front in ranges of ten.
        let (mut last, mut purged) = (0, 0);
        let mut purge = |to: u16, kept: Option<SeqNo>| {
            while purged < to {
                let is_needed = |numbers: Range<SeqNo>| kept.is_some_and(|kept| numbers.contains(&kept));
                let mut writer = memtable.writer();
                writer.keep_ranges_if(&is_needed);
                for i in purged..purged + 20 {
                    last += 1;
                    writer.insert(0, &key(i), last, ValueKind::Put, b"");
                }
                last += 1;
                writer.delete_range(0, &key(purged), &key(purged + 10), last);
                purged += 10;
            }
            last
        };
        let scan = |last: SeqNo| {
            let (snapshot, covers) = view.covers(&tree, Some(last), || last);
            let mut cursor =
                Cursor::new(view.cursor(&tree, crate::ReadOptions::default().mode(), None), snapshot, &tree, covers, 0);
            assert!(cursor.seek_to_first().unwrap());
            cursor.key().unwrap().to_vec()
        };
        let mut before = None;
        for to in [1000, 1040, 2000] {
            let last = purge(to, before.map(|(last, _)| last));
            assert_eq!(scan(last), key(to));
            let gap = tree.gaps.find(&key(500), (last, 0), true).expect("what the scan has passed");
            assert_eq!((gap.end.as_deref(), gap.claim.to), (Some(&key(to)[..]), last));
            if let Some((last, first)) = before {
                assert_eq!(scan(last), first, "an older snapshot jumps no further than it may");
            }
            before = Some((last, key(to)));
        }
    }
}
