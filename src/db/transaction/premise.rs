//! [`Premise`]: what a write assumes about the store, checked when it commits.
//!
//! A write that depends on a read carries a premise: what it read has not been written since. The
//! check is exact, reads no block, and needs no list of commits. It runs under the commit lock, and
//! only over what came after a [`Moment`] that the writer noted without the lock:
//!
//! - For a single key, the moment is that of the read itself.
//! - A transaction reads at a snapshot. At its end it notes a moment, checks everything between the
//!   snapshot and the moment, for which it may read blocks (`transaction/check.rs`), and leaves the
//!   rest to the premise.
//!
//! The active memtable holds all writes that came after the last one of the sealed ones, but for
//! ingests. A moment before that, or before the last ingest, makes the premise
//! [stale](Refusal::Stale), and the writer notes a new moment. A moment holds nothing: it is a few
//! numbers, and threads that note moments share no count of references.

use std::borrow::Cow;
use std::sync::Arc;

use super::read_set::{ReadKey, ReadSet};
use crate::db::clock::Clock;
use crate::db::sequence::Sequence;
use crate::db::shape::view::ReadView;
use crate::filter::KeyHash;
use crate::format::deadline::{Deadline, NEVER};
use crate::format::key::SeqNo;
use crate::sorted::memtable::Memtable;

/// A moment in the order of writes.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    /// The last write before it.
    pub(super) seqno: SeqNo,
    /// Where the writes after it begin in the memtable of a view.
    place: Option<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    /// The log of the memtable.
    log: u64,
    /// Entries before this position are not newer than the moment.
    mark: u32,
}

impl Moment {
    /// The moment of a read that has seen all writes up to `seqno`: a number that was visible
    /// before the view of the read was loaded. It has no place: only single keys can be looked up.
    pub(crate) fn at(seqno: SeqNo) -> Moment {
        Moment { seqno, place: None }
    }

    /// Notes the moment of a read in `view`, which must have been loaded before this call. The view
    /// may lack writes to a later memtable.
    pub(crate) fn of(view: &ReadView, sequence: &Sequence) -> Moment {
        // The position first: what is before it was visible before it was noted.
        let place = Place { log: view.active.log_number(), mark: view.active.visible_mark() };
        Moment { seqno: view.visible(sequence), place: Some(place) }
    }

    /// The moment without the writes after `seqno`, which was visible before the view was loaded:
    /// the view has all up to there, also if the memtable has been replaced in between.
    pub(super) fn no_later_than(self, seqno: SeqNo) -> Moment {
        Moment { seqno: self.seqno.min(seqno), ..self }
    }

    /// Whether `memtable` is the one of the moment's place, or there is none.
    fn is_in(&self, memtable: &Memtable) -> bool {
        self.place.is_none_or(|place| place.log == memtable.log_number())
    }

    /// Where to look for writes since this moment in `memtable`, which has others after it.
    fn position_in(&self, memtable: &Memtable) -> u32 {
        self.place.filter(|place| place.log == memtable.log_number()).map_or(0, |place| place.mark)
    }

    /// The memtables of a later view that have what was written since; `None` if some of it may be
    /// in tables.
    pub(super) fn memtables_since<'a>(
        &self,
        view: &'a ReadView,
    ) -> Option<impl Iterator<Item = &'a Arc<Memtable>> + use<'a>> {
        let place = self.place?;
        let is_own = |memtable: &Arc<Memtable>| memtable.log_number() == place.log;
        let at = view.memtables().position(is_own).filter(|_| view.horizon.has_all_after(self.seqno))?;
        Some(view.memtables().take(at + 1))
    }

    /// Looks in `memtable` for a write since this moment, and up to `until`, to something that
    /// `reads` covers; stale if more than about `most_entries` entries have to be checked.
    pub(super) fn find_written(
        &self,
        memtable: &Memtable,
        reads: &ReadSet,
        until: SeqNo,
        most_entries: usize,
    ) -> Option<Refusal> {
        let since = self.seqno;
        if reads.has_few_keys() {
            let is_written = |read: &ReadKey<'_>| (since + 1..=until).contains(&read.newest_in(memtable));
            return reads.keys().find(is_written).map(Refusal::of);
        }
        let entries =
            memtable.entries_newer(self.position_in(memtable), since).take_while(|entry| entry.seqno <= until);
        for (i, entry) in entries.enumerate() {
            if i == most_entries {
                return Some(Refusal::Stale);
            }
            let written = match entry.range_end {
                None => reads.covers(entry.keyspace, entry.key, entry.hash).then_some(entry.key),
                // The next attempt sorts them before it takes the commit lock.
                Some(_) if !reads.is_sorted_by_key() => return Some(Refusal::Stale),
                Some(end) => reads.find_within(entry.keyspace, entry.key, end),
            };
            if let Some(key) = written {
                return Some(Refusal::Written(entry.keyspace, key.to_vec()));
            }
        }
        None
    }
}

/// Nothing that `reads` names was written since `moment`.
pub(crate) struct Premise<'a> {
    moment: Moment,
    reads: Reads<'a>,
    /// The least deadline of a value that was read.
    deadline: Deadline,
}

enum Reads<'a> {
    Key {
        keyspace: u32,
        key: Cow<'a, [u8]>,
        hash: KeyHash,
    },
    /// Few keys.
    Keys(&'a ReadSet),
    Set {
        reads: Arc<ReadSet>,
        most_entries: usize,
    },
}

/// Why a premise does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It cannot be checked: its memtable has been sealed, tables were ingested, or too much was
    /// written since.
    Stale,
    /// A value that was read has expired.
    Expired,
    /// This key of this keyspace was written.
    Written(u32, Vec<u8>),
}

impl Refusal {
    pub(super) fn of(read: ReadKey<'_>) -> Refusal {
        Refusal::Written(read.keyspace, read.key.to_vec())
    }

    /// A conflict with something that was read: nobody knows with what.
    pub(super) fn of_any(reads: &ReadSet) -> Refusal {
        let range = reads.ranges().first();
        let range = || range.map(|(of, range)| (of.keyspace, range.lower.clone().unwrap_or_default()));
        let key = reads.keys().next().map(|read| (read.keyspace, read.key.to_vec()));
        let (keyspace, key) = key.or_else(range).unwrap_or_default();
        Refusal::Written(keyspace, key)
    }
}

impl<'a> Premise<'a> {
    /// The premise that `key` has not been written since `moment`.
    pub(crate) fn on_key(moment: Moment, keyspace: u32, key: &'a [u8], hash: KeyHash) -> Premise<'a> {
        Premise { moment, reads: Reads::Key { keyspace, key: Cow::Borrowed(key), hash }, deadline: NEVER }
    }

    /// The premise that none of the few keys of `reads` has been written since `moment`.
    pub(super) fn on_keys(moment: Moment, reads: &'a ReadSet) -> Premise<'a> {
        Premise { moment, reads: Reads::Keys(reads), deadline: NEVER }
    }

    /// Adds that `deadline` is not past.
    pub(crate) fn until(self, deadline: Deadline) -> Premise<'a> {
        Premise { deadline, ..self }
    }

    /// The premise that nothing `reads` covers has been written since `moment`. It is stale if more
    /// than about `most_entries` entries have to be checked.
    pub(super) fn on_set(moment: Moment, reads: Arc<ReadSet>, most_entries: usize) -> Premise<'a> {
        Premise { moment, reads: Reads::Set { reads, most_entries }, deadline: NEVER }
    }

    pub(crate) fn to_owned(&self) -> Premise<'static> {
        let reads = match self.reads {
            Reads::Key { keyspace, ref key, hash } => Reads::Key { keyspace, key: Cow::Owned(key.to_vec()), hash },
            Reads::Keys(reads) => Reads::Set { reads: Arc::new(reads.keys_only()), most_entries: usize::MAX },
            Reads::Set { ref reads, most_entries } => Reads::Set { reads: Arc::clone(reads), most_entries },
        };
        Premise { reads, ..*self }
    }

    /// The keyspaces of what was read, each perhaps several times.
    pub(crate) fn keyspaces(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        let reads = match &self.reads {
            Reads::Key { keyspace, .. } => return Box::new(std::iter::once(*keyspace)),
            Reads::Keys(reads) => reads,
            Reads::Set { reads, .. } => &**reads,
        };
        let of_ranges = reads.ranges().iter().map(|(of, _)| of);
        Box::new(reads.keyspaces().iter().chain(of_ranges).map(|of| of.keyspace))
    }

    /// Whether a value that was read has expired. Reads the clock only if one has a deadline.
    pub(crate) fn is_expired(&self, clock: &Clock) -> bool {
        self.deadline != NEVER && self.deadline <= clock.now()
    }

    /// Why the premise does not hold, deadlines aside; `None` if it holds. The caller holds the
    /// commit lock, and `active` is the memtable that it will write to, which has all that was
    /// written after the number `active_since`. The last write of all is numbered `last`.
    pub(crate) fn refusal(&self, active: &Memtable, active_since: SeqNo, last: SeqNo) -> Option<Refusal> {
        let since = self.moment.seqno;
        if last <= since && self.moment.place.is_none() {
            return None;
        }
        if since < active_since || !self.moment.is_in(active) {
            return Some(Refusal::Stale);
        }
        match &self.reads {
            Reads::Key { keyspace, key, hash } => {
                let newest = active.newest_write(*keyspace, key, *hash);
                (newest > since).then(|| Refusal::Written(*keyspace, key.to_vec()))
            }
            Reads::Keys(reads) => self.moment.find_written(active, reads, SeqNo::MAX, usize::MAX),
            Reads::Set { reads, most_entries } => self.moment.find_written(active, reads, SeqNo::MAX, *most_entries),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_set::ReadIn;
    use super::*;
    use crate::format::key::ValueKind;
    use crate::format::span::KeySpan;
    use crate::memory::pool::MemtablePool;

    fn put(memtable: &Memtable, seqno: SeqNo, key: &[u8]) {
        memtable.writer().insert(0, key, seqno, ValueKind::Put, b"");
    }

    /// A memtable with entries 1 to 3, which were visible at the moment, and entries 4 to 6, of
    /// which 4 was: it had not been noted yet.
    fn scene() -> (Arc<Memtable>, Moment) {
        let memtable = Arc::new(Memtable::new(1, 4096, 0, &MemtablePool::new(0)));
        [(1, "a"), (2, "b"), (3, "c")].iter().for_each(|(seqno, key)| put(&memtable, *seqno, key.as_bytes()));
        memtable.mark_visible();
        let mark = memtable.visible_mark();
        [(4, "d"), (5, "e"), (6, "b")].iter().for_each(|(seqno, key)| put(&memtable, *seqno, key.as_bytes()));
        (memtable, Moment { seqno: 4, place: Some(Place { log: 1, mark }) })
    }

    fn reads(keys: &[&str], ranges: &[(&str, &str)], absent: usize) -> Arc<ReadSet> {
        let of = || ReadIn::DEFAULT;
        let mut reads = ReadSet::default();
        let absent: Vec<String> = (0..absent).map(|i| format!("absent {i}")).collect();
        for key in keys.iter().copied().chain(absent.iter().map(String::as_str)) {
            reads.add_key(&of(), key.as_bytes(), KeyHash::new(0, key.as_bytes()));
        }
        for (lower, upper) in ranges {
            reads.add_range(
                of(),
                KeySpan { lower: Some(lower.as_bytes().to_vec()), upper: Some(upper.as_bytes().to_vec()) },
            );
        }
        reads.sort();
        Arc::new(reads)
    }

    #[test]
    fn a_premise_holds_unless_what_it_names_was_written_since() {
        let (memtable, moment) = scene();
        let written = |key: &str| Some(Refusal::Written(0, key.as_bytes().to_vec()));
        for (key, refusal) in [("a", None), ("b", written("b")), ("d", None), ("e", written("e")), ("z", None)] {
            let hash = KeyHash::new(0, key.as_bytes());
            let premise = Premise::on_key(moment, 0, key.as_bytes(), hash);
            assert_eq!(premise.refusal(&memtable, 0, 6), refusal, "{key}");
            assert_eq!(premise.to_owned().refusal(&memtable, 0, 6), refusal, "{key}, queued");
            let in_other = Premise::on_key(moment, 1, key.as_bytes(), hash);
            assert_eq!(in_other.refusal(&memtable, 0, 6), None, "{key}");
            // Few keys are looked up; for many, the entries are.
            for absent in [0, 100] {
                let premise = Premise::on_set(moment, reads(&[key], &[], absent), 10);
                assert_eq!(premise.refusal(&memtable, 0, 6), refusal, "{key} and {absent} others");
            }
        }
        for (range, refusal) in
            [(("a", "b"), None), (("c", "e"), None), (("c", "f"), written("e")), (("", "z"), written("e"))]
        {
            let premise = Premise::on_set(moment, reads(&[], &[range], 0), 10);
            assert_eq!(premise.refusal(&memtable, 0, 6), refusal, "{range:?}");
        }
    }

    #[test]
    fn a_premise_that_cannot_be_checked_is_stale() {
        let (memtable, moment) = scene();
        let other = Arc::new(Memtable::new(2, 4096, 0, &MemtablePool::new(0)));
        let on_key = |moment| Premise::on_key(moment, 0, b"a", KeyHash::new(0, b"a"));
        let on_keys = |moment| Premise::on_set(moment, reads(&["a"], &[], 0), 10);
        let on_range = |most| Premise::on_set(moment, reads(&[], &[("x", "z")], 0), most);
        // Sealed memtables, or an ingest, have something newer, or nothing.
        for (active_since, is_stale) in [(4, false), (5, true)] {
            for premise in [on_key(moment), on_keys(moment), on_range(10), on_key(Moment::at(4))] {
                assert_eq!(premise.refusal(&memtable, active_since, 6), is_stale.then_some(Refusal::Stale));
            }
        }
        for premise in [on_key(moment), on_keys(moment), on_range(10)] {
            assert_eq!(
                premise.refusal(&other, 0, 6),
                Some(Refusal::Stale),
                "the view of the moment lacks the memtable"
            );
        }
        for premise in [on_key(Moment::at(4)), on_keys(Moment::at(4))] {
            assert_eq!(premise.refusal(&other, 0, 6), None, "the read has seen all up to the moment");
        }
        for (premise, refusal) in [(on_key(Moment::at(4)), None), (on_key(moment), Some(Refusal::Stale))] {
            assert_eq!(premise.refusal(&other, 7, 4), refusal, "nothing was written since, or is not in the view");
        }
        let on_range = |most| on_range(most).refusal(&memtable, 0, 6);
        assert_eq!((on_range(1), on_range(2)), (Some(Refusal::Stale), None), "two entries are newer");
    }
}
