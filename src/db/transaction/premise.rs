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
//! While the memtable of the moment is the active one, it holds all writes since, except ingests.
//! Once it is sealed, or if there was an ingest since, the premise is refused as
//! [stale](Refusal::Stale), and the writer notes a new moment.

use std::borrow::Cow;
use std::sync::Arc;

use super::read_set::{ReadKey, ReadSet};
use crate::db::clock::Clock;
use crate::db::sequence::Sequence;
use crate::db::shape::view::{Horizon, ReadView};
use crate::filter::KeyHash;
use crate::format::deadline::{Deadline, NEVER};
use crate::format::key::SeqNo;
use crate::sorted::memtable::Memtable;

/// A moment in the order of writes. Writes after it are in `memtable`, as long as that is active.
#[derive(Clone)]
pub(crate) struct Moment {
    memtable: Arc<Memtable>,
    /// Entries of `memtable` before this position are not newer than `seqno`.
    mark: u32,
    /// The last visible write.
    pub(super) seqno: SeqNo,
    /// Of the view. An ingest is in no memtable.
    horizon: Arc<Horizon>,
}

impl Moment {
    /// Notes the moment of a read in `view`, which must have been loaded before this call.
    pub(crate) fn of(view: &ReadView, sequence: &Sequence) -> Moment {
        let memtable = Arc::clone(&view.active);
        // The position first: what is before it was visible before it was noted.
        let mark = memtable.visible_mark();
        Moment { memtable, mark, seqno: view.visible(sequence), horizon: Arc::clone(&view.horizon) }
    }

    /// The moment before all writes of a memtable.
    #[cfg(test)]
    pub(super) fn in_memtable(memtable: &Arc<Memtable>) -> Moment {
        Moment { memtable: Arc::clone(memtable), mark: 0, seqno: 0, horizon: Arc::default() }
    }

    /// This moment in each memtable of a later view that has anything written since; `None` if some
    /// of it may be in tables.
    pub(super) fn in_memtables(&self, view: &ReadView) -> Option<Vec<Moment>> {
        let is_own = |memtable: &Arc<Memtable>| Arc::ptr_eq(memtable, &self.memtable);
        let at = view.memtables().position(is_own).filter(|_| self.horizon.has_all_after(self.seqno))?;
        let of = |memtable: &Arc<Memtable>| {
            let mark = if is_own(memtable) { self.mark } else { 0 };
            Moment { memtable: Arc::clone(memtable), mark, ..self.clone() }
        };
        Some(view.memtables().take(at + 1).map(of).collect())
    }

    /// Looks for a write since this moment, and up to `until`, to something that `reads` covers;
    /// stale if more than about `most_entries` entries have to be checked.
    pub(super) fn find_written(&self, reads: &ReadSet, until: SeqNo, most_entries: usize) -> Option<Refusal> {
        let Moment { memtable, mark, seqno: since, .. } = self;
        if let Some(keys) = reads.few_keys() {
            let is_written = |read: &&ReadKey| (since + 1..=until).contains(&read.newest_in(memtable));
            return keys.iter().find(is_written).map(Refusal::of);
        }
        let entries = memtable.entries_newer(*mark, *since).take_while(|entry| entry.seqno <= until);
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
    Key { keyspace: u32, key: Cow<'a, [u8]>, hash: KeyHash },
    Set { reads: Arc<ReadSet>, most_entries: usize },
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
    pub(super) fn of(read: &ReadKey) -> Refusal {
        Refusal::Written(read.keyspace, read.key.to_vec())
    }

    /// A conflict with something that was read: nobody knows with what.
    pub(super) fn of_any(reads: &ReadSet) -> Refusal {
        let range = reads.ranges().first();
        let range = || range.map(|(of, range)| (of.keyspace, range.lower.clone().unwrap_or_default()));
        let key = reads.keys().first().map(|read| (read.keyspace, read.key.to_vec()));
        let (keyspace, key) = key.or_else(range).unwrap_or_default();
        Refusal::Written(keyspace, key)
    }
}

impl<'a> Premise<'a> {
    /// The premise that `key` has not been written since `moment`.
    pub(crate) fn on_key(moment: Moment, keyspace: u32, key: &'a [u8], hash: KeyHash) -> Premise<'a> {
        Premise { moment, reads: Reads::Key { keyspace, key: Cow::Borrowed(key), hash }, deadline: NEVER }
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
            Reads::Set { ref reads, most_entries } => Reads::Set { reads: Arc::clone(reads), most_entries },
        };
        Premise { moment: self.moment.clone(), reads, deadline: self.deadline }
    }

    /// Whether a value that was read has expired. Reads the clock only if one has a deadline.
    pub(crate) fn is_expired(&self, clock: &Clock) -> bool {
        self.deadline != NEVER && self.deadline <= clock.now()
    }

    /// Why the premise does not hold, deadlines aside; `None` if it holds. The caller holds the
    /// commit lock, and `active` is the memtable that it will write to.
    pub(crate) fn refusal(&self, active: &Arc<Memtable>) -> Option<Refusal> {
        let Moment { memtable, seqno: since, horizon, .. } = &self.moment;
        if !Arc::ptr_eq(memtable, active) || !horizon.has_all_after(*since) {
            return Some(Refusal::Stale);
        }
        match &self.reads {
            Reads::Key { keyspace, key, hash } => {
                let newest = memtable.newest_write(*keyspace, key, *hash);
                (newest > *since).then(|| Refusal::Written(*keyspace, key.to_vec()))
            }
            Reads::Set { reads, most_entries } => self.moment.find_written(reads, SeqNo::MAX, *most_entries),
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
        (Arc::clone(&memtable), Moment { memtable, mark, seqno: 4, horizon: Arc::default() })
    }

    fn reads(keys: &[&str], ranges: &[(&str, &str)], absent: usize) -> Arc<ReadSet> {
        let of = || ReadIn { keyspace: 0, name: Arc::from("default") };
        let mut reads = ReadSet::default();
        let absent: Vec<String> = (0..absent).map(|i| format!("absent {i}")).collect();
        for key in keys.iter().copied().chain(absent.iter().map(String::as_str)) {
            reads.add_key(of(), key.as_bytes(), KeyHash::new(0, key.as_bytes()));
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
            let premise = Premise::on_key(moment.clone(), 0, key.as_bytes(), hash);
            assert_eq!(premise.refusal(&memtable), refusal, "{key}");
            assert_eq!(premise.to_owned().refusal(&memtable), refusal, "{key}, queued");
            assert_eq!(Premise::on_key(moment.clone(), 1, key.as_bytes(), hash).refusal(&memtable), None, "{key}");
            // Few keys are looked up; for many, the entries are.
            for absent in [0, 100] {
                let premise = Premise::on_set(moment.clone(), reads(&[key], &[], absent), 10);
                assert_eq!(premise.refusal(&memtable), refusal, "{key} and {absent} others");
            }
        }
        for (range, refusal) in
            [(("a", "b"), None), (("c", "e"), None), (("c", "f"), written("e")), (("", "z"), written("e"))]
        {
            let premise = Premise::on_set(moment.clone(), reads(&[], &[range], 0), 10);
            assert_eq!(premise.refusal(&memtable), refusal, "{range:?}");
        }
    }

    #[test]
    fn a_premise_that_cannot_be_checked_is_stale() {
        let (memtable, moment) = scene();
        let other = Arc::new(Memtable::new(2, 4096, 0, &MemtablePool::new(0)));
        let on_key = Premise::on_key(moment.clone(), 0, b"a", KeyHash::new(0, b"a"));
        assert_eq!(on_key.refusal(&other), Some(Refusal::Stale));
        moment.horizon.end_before(7);
        assert_eq!(
            Premise::on_key(moment.clone(), 0, b"a", KeyHash::new(0, b"a")).refusal(&memtable),
            Some(Refusal::Stale)
        );
        // A view may have an ingest that was not visible yet.
        let horizon = |begins| Moment { horizon: Arc::new(Horizon::after(begins)), ..scene().1 };
        for (begins, is_stale) in [(4, false), (5, true)] {
            let moment = horizon(begins);
            let memtable = Arc::clone(&moment.memtable);
            let premise = Premise::on_key(moment, 0, b"a", KeyHash::new(0, b"a"));
            assert_eq!(premise.refusal(&memtable), is_stale.then_some(Refusal::Stale), "{begins}");
        }
        let (memtable, moment) = scene();
        let on_range = |most| Premise::on_set(moment.clone(), reads(&[], &[("x", "z")], 0), most).refusal(&memtable);
        assert_eq!((on_range(1), on_range(2)), (Some(Refusal::Stale), None), "two entries are newer");
    }
}
