//! [`Agenda`]: what the schedule needs to know of all keyspaces, kept keyspace by keyspace.
//!
//! The schedule asks which keyspace needs a compaction most, how many bytes are to be compacted,
//! and how many runs the longest level 0 has, at every flush. Asking each keyspace would make them
//! cost each other: a store may have 65,535. The agenda therefore keeps the answers of each, and
//! asks those again in which something has changed: their version or options, their running tasks,
//! the time. Views note which keyspaces they replace (`Trees::take_touched`),
//! [`Jobs`](super::background::Jobs) whose tasks begin and end.
//!
//! Three [`Conditions`] concern all keyspaces at once: whether the store is idle, up to where it is
//! flushed, and the oldest snapshot. A keyspace that has work only in an idle store, only in a busy
//! one, only after a flush, or only without the snapshots, waits in a list of its own. The schedule
//! asks the keyspaces of the first two one by one until it has enough work, and those of the others
//! when more is flushed or the oldest snapshot has ended.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use crate::db::shape::view::ReadView;
use crate::format::deadline::Deadline;
use crate::format::key::SeqNo;
use crate::tree::compaction::picker::Debt;
use crate::tree::version::Version;

/// What of the whole store decides which compactions its keyspaces need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conditions {
    /// No memtable holds an entry, or the store is [quiet](super::quiet).
    pub(super) is_idle: bool,
    /// Tables hold everything up to this number.
    pub(super) flushed: SeqNo,
    pub(super) oldest_snapshot: SeqNo,
}

/// A view, and the conditions at that moment.
pub(super) struct Outlook {
    pub(super) view: Arc<ReadView>,
    pub(super) conditions: Conditions,
}

/// When a keyspace has work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Nobody has asked yet. That takes long to find out in a large tree, and is done when a
    /// compaction can begin.
    #[default]
    Undecided,
    /// Once the store is idle, or is not any more.
    Idle(bool),
    /// Once more is flushed.
    Unflushed,
    /// Once snapshots have ended.
    Held,
    /// Once something has changed.
    Never,
    /// Now, with this urgency.
    Now(u64),
}

/// What is known of a keyspace.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) due: Due,
    pub(super) debt: Debt,
    /// Runs in level 0.
    pub(super) runs: usize,
    /// The greatest number in each table with garbage.
    pub(super) garbage: BTreeSet<SeqNo>,
    /// Of which version all this is.
    pub(super) version: Weak<Version>,
    pub(super) has_ranges: bool,
    /// The number that the oldest snapshot must exceed for range deletes to delete more for all
    /// readers.
    pub(super) survey_waits_for: Option<SeqNo>,
    /// Whether it is not known how much range deletes have deleted.
    pub(super) is_unknown: bool,
    /// Whether it is not known how much tables hide, which an idle store finds out.
    pub(super) is_unsampled: bool,
    /// The times at which more of a table has expired.
    pub(super) expiry_steps: BTreeSet<Deadline>,
    /// When a table becomes due because of what has expired by then.
    pub(super) deadline: Option<Deadline>,
}

#[derive(Default)]
pub(super) struct Agenda {
    keyspaces: HashMap<u32, Findings>,
    /// Those to be asked again.
    stale: BTreeSet<u32>,
    /// By when they have work; of those with work now, by urgency.
    due: BTreeSet<(Due, u32)>,
    /// By runs in level 0.
    runs: BTreeSet<(usize, u32)>,
    debt: Debt,
    garbage: BTreeSet<(SeqNo, u32)>,
    ranges: BTreeSet<u32>,
    /// Those with range deletes that the upkeep has not looked at since they changed; and those
    /// that have lost theirs.
    untidied: BTreeSet<u32>,
    /// Those whose range deletes delete more for all readers once the oldest snapshot exceeds a
    /// number.
    unsurveyed: BTreeSet<(SeqNo, u32)>,
    /// Those of which it is not known how much range deletes have deleted.
    unknown: BTreeSet<u32>,
    /// Those of which it is not known how much their tables hide.
    unsampled: BTreeSet<u32>,
    expiry_steps: BTreeSet<(Deadline, u32)>,
    deadlines: BTreeSet<(Deadline, u32)>,
    /// When keyspaces were asked last.
    conditions: Conditions,
}

impl Agenda {
    /// Has keyspaces asked again.
    pub(super) fn touch(&mut self, keyspaces: impl IntoIterator<Item = u32>) {
        self.stale.extend(keyspaces);
    }

    /// Notes the time: tables that become due by then are looked at again.
    pub(super) fn note_time(&mut self, now: Deadline) {
        while let Some((_, keyspace)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.pop_first();
            self.stale.insert(keyspace);
        }
    }

    /// Notes what has changed for all. Keyspaces that waited for it are looked at again.
    pub(super) fn note_conditions(&mut self, conditions: Conditions) {
        if conditions.oldest_snapshot > self.conditions.oldest_snapshot {
            self.touch_all(Due::Held);
            self.stale.extend(self.unsurveyed.range(..(conditions.oldest_snapshot, 0)).map(|(_, id)| *id));
        }
        if conditions.flushed > self.conditions.flushed {
            self.touch_all(Due::Unflushed);
        }
        self.conditions = conditions;
    }

    /// Takes a keyspace with this due.
    fn next_with(&mut self, due: Due) -> Option<u32> {
        let id = self.due.range((due, 0)..=(due, u32::MAX)).next()?.1;
        self.due.remove(&(due, id));
        Some(id)
    }

    fn touch_all(&mut self, due: Due) {
        while let Some(id) = self.next_with(due) {
            self.stale.insert(id);
        }
    }

    /// Takes a keyspace that must be asked.
    pub(super) fn next_stale(&mut self) -> Option<u32> {
        self.stale.pop_first()
    }

    /// Takes a keyspace that may have work because the store is idle, or is not. It must be
    /// decided.
    pub(super) fn next_waiting(&mut self, is_idle: bool) -> Option<u32> {
        self.next_with(Due::Idle(is_idle))
    }

    /// Notes what a keyspace has answered; `None` if it was dropped.
    pub(super) fn note(&mut self, id: u32, found: Option<Findings>) {
        let former = self.keyspaces.remove(&id);
        let former_version = former.as_ref().map(|former| former.version.clone());
        if let Some(former) = former {
            self.due.remove(&(former.due, id));
            self.unknown.remove(&id);
            self.unsampled.remove(&id);
            self.runs.remove(&(former.runs, id));
            self.debt = Debt {
                data: self.debt.data.wrapping_sub(former.debt.data),
                garbage: self.debt.garbage.wrapping_sub(former.debt.garbage),
            };
            former.garbage.iter().for_each(|seqno| _ = self.garbage.remove(&(*seqno, id)));
            former.expiry_steps.iter().for_each(|at| _ = self.expiry_steps.remove(&(*at, id)));
            former.deadline.inspect(|at| _ = self.deadlines.remove(&(*at, id)));
            former.survey_waits_for.inspect(|from| _ = self.unsurveyed.remove(&(*from, id)));
            if self.ranges.remove(&id) && !found.as_ref().is_some_and(|found| found.has_ranges) {
                self.untidied.insert(id);
            }
        }
        let Some(found) = found else { return };
        self.due.insert((found.due, id));
        self.runs.insert((found.runs, id));
        self.debt = Debt {
            data: self.debt.data.wrapping_add(found.debt.data),
            garbage: self.debt.garbage.wrapping_add(found.debt.garbage),
        };
        self.garbage.extend(found.garbage.iter().map(|seqno| (*seqno, id)));
        self.unknown.extend(found.is_unknown.then_some(id));
        self.unsampled.extend(found.is_unsampled.then_some(id));
        self.expiry_steps.extend(found.expiry_steps.iter().map(|at| (*at, id)));
        self.deadlines.extend(found.deadline.map(|at| (at, id)));
        self.unsurveyed.extend(found.survey_waits_for.map(|from| (from, id)));
        if found.has_ranges {
            self.ranges.insert(id);
            if !former_version.is_some_and(|former| former.ptr_eq(&found.version)) {
                self.untidied.insert(id);
            }
        }
        self.keyspaces.insert(id, found);
    }

    /// Notes when a keyspace has work.
    pub(super) fn decide(&mut self, id: u32, due: Due) {
        if let Some(found) = self.keyspaces.get_mut(&id) {
            let former = std::mem::replace(&mut found.due, due);
            self.due.remove(&(former, id));
            self.due.insert((due, id));
        }
    }

    /// Takes a keyspace of which it is not known when it has work. It must be decided.
    pub(super) fn next_undecided(&mut self) -> Option<u32> {
        self.next_with(Due::Undecided)
    }

    /// The keyspaces with work, most urgent first.
    pub(super) fn due(&self) -> impl Iterator<Item = u32> {
        self.due.range((Due::Now(0), 0)..).rev().map(|(_, id)| *id)
    }

    /// The keyspaces with the most runs in level 0 first, with their numbers.
    pub(super) fn longest(&self) -> impl Iterator<Item = (usize, u32)> {
        self.runs.iter().rev().copied()
    }

    /// Runs in level 0 of a keyspace.
    pub(super) fn runs(&self, keyspace: u32) -> usize {
        self.keyspaces.get(&keyspace).map_or(0, |found| found.runs)
    }

    /// Whether a keyspace may have work now.
    pub(super) fn has_work(&self, keyspace: u32) -> bool {
        self.keyspaces.get(&keyspace).is_some_and(|found| matches!(found.due, Due::Now(_) | Due::Undecided))
    }

    /// Whether a keyspace has no work until something changes.
    pub(super) fn has_none(&self, keyspace: u32) -> bool {
        self.keyspaces.get(&keyspace).is_none_or(|found| found.due == Due::Never)
    }

    /// Bytes to be compacted.
    pub(super) fn debt(&self) -> Debt {
        self.debt
    }

    /// Bytes to be compacted in a keyspace.
    pub(super) fn debt_of(&self, keyspace: u32) -> Debt {
        self.keyspaces.get(&keyspace).map_or_else(Debt::default, |found| found.debt)
    }

    /// The least of the greatest numbers of tables with garbage that a snapshot numbered `oldest`
    /// holds.
    pub(super) fn held_garbage(&self, oldest: SeqNo) -> Option<SeqNo> {
        self.garbage.range((oldest.saturating_add(1), 0)..).next().map(|(seqno, _)| *seqno)
    }

    /// When the next table becomes due because of what has expired by then, after `now`.
    pub(super) fn next_deadline(&self, now: Deadline) -> Option<Deadline> {
        self.deadlines.range((now.saturating_add(1), 0)..).next().map(|(at, _)| *at)
    }

    /// Whether more of a table has expired at `now` than at `least`.
    pub(super) fn has_expired_between(&self, least: Deadline, now: Deadline) -> bool {
        least < now && self.expiry_steps.range((least.saturating_add(1), 0)..=(now, u32::MAX)).next().is_some()
    }

    /// Whether of a keyspace it is not known how much range deletes have deleted.
    pub(super) fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Whether of a keyspace it is not known how much its tables hide.
    pub(super) fn has_unsampled(&self) -> bool {
        !self.unsampled.is_empty()
    }

    /// Whether there is work for when the store is idle.
    pub(super) fn has_work_for_idle(&self) -> bool {
        let waiting = (Due::Idle(true), 0)..=(Due::Idle(true), u32::MAX);
        self.has_unsampled() || self.due.range(waiting).next().is_some()
    }

    /// Takes the keyspaces of which that is not known.
    pub(super) fn take_unsampled(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.unsampled)
    }

    /// Has the upkeep look at all keyspaces with range deletes.
    pub(super) fn untidy_all(&mut self) {
        self.untidied.extend(&self.ranges);
    }

    /// Has the upkeep look at a keyspace again.
    pub(super) fn untidy(&mut self, keyspace: u32) {
        self.untidied.insert(keyspace);
    }

    /// Takes the keyspaces that the upkeep of range deletes must look at.
    pub(super) fn take_untidied(&mut self) -> BTreeSet<u32> {
        let mut untidied = std::mem::take(&mut self.untidied);
        untidied.extend(&self.unknown);
        untidied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::format::deadline::NEVER;
    use crate::options::Options;
    use crate::vfs::SimFileSystem;

    /// Keyspaces that have range deletes, which they need, cost the others nothing.
    #[test]
    fn only_keyspaces_that_have_changed_are_looked_at() {
        let options = Options::new().file_system(Arc::new(SimFileSystem::new()));
        let db: Db = options.executor(Arc::new(crate::exec::SteppedExecutor::new())).open("/db").unwrap();
        let name = |n: usize| format!("k{n:02}");
        for n in 0..20 {
            let keyspace = db.keyspace(&name(n)).unwrap();
            (0..100u8).for_each(|key| _ = keyspace.put([key], [7; 100]).unwrap());
            keyspace.delete_range([3]..[9]).unwrap();
        }
        db.flush().unwrap();
        db.wait_for_compactions().unwrap();
        let store = &db.default_keyspace().handle.store;
        let looked_at = || {
            let mut jobs = store.workers.background.lock();
            store.agenda(&mut jobs);
            let untidied = jobs.agenda.take_untidied();
            jobs.agenda.untidied.extend(&untidied);
            untidied.len()
        };
        assert_eq!(looked_at(), 0, "after the upkeep");
        let changed = db.keyspace(&name(7)).unwrap();
        for _ in 0..3 {
            changed.put("key", "value").unwrap();
            // The oldest read point moves on.
            drop(db.begin());
            store.schedule();
            assert_eq!(looked_at(), 0, "nothing has changed in tables");
        }
        let view = store.shape.view();
        db.flush().unwrap();
        assert_eq!(looked_at(), 0, "after the upkeep");
        let is_same = |id: u32| {
            let now = store.shape.view();
            Arc::ptr_eq(&view.tree(id).unwrap().version, &now.tree(id).unwrap().version)
        };
        let ids: Vec<u32> = (0..20).map(|n| db.keyspace(&name(n)).unwrap().id()).collect();
        assert_eq!(ids.iter().filter(|id| !is_same(**id)).count(), 1, "one keyspace has a new table");
        db.close().unwrap();
    }

    #[test]
    fn a_snapshot_that_ends_concerns_those_whose_ranges_it_held() {
        let mut agenda = Agenda::default();
        for (id, survey_waits_for) in [(1, None), (2, Some(5)), (3, Some(9))] {
            agenda.note(id, Some(Findings { has_ranges: true, survey_waits_for, ..Findings::default() }));
            agenda.decide(id, Due::Never);
        }
        for (oldest_snapshot, concerned) in [(5, &[][..]), (6, &[2]), (7, &[2]), (20, &[2, 3])] {
            agenda.note_conditions(Conditions { oldest_snapshot, ..Conditions::default() });
            let stale: Vec<u32> = std::iter::from_fn(|| agenda.next_stale()).collect();
            assert_eq!(stale, concerned, "{oldest_snapshot}");
        }
    }

    #[test]
    fn what_expires_between_two_times_is_known_without_a_look_at_tables() {
        let mut agenda = Agenda::default();
        let steps =
            |steps: &[Deadline]| Findings { expiry_steps: steps.iter().copied().collect(), ..Findings::default() };
        agenda.note(1, Some(steps(&[10, 30])));
        agenda.note(2, Some(steps(&[20, 30])));
        let cases = [(9, 10), (10, 19), (10, 20), (29, 30), (30, 40), (30, 30), (NEVER, 50)];
        let held = |agenda: &Agenda| cases.map(|(least, now)| agenda.has_expired_between(least, now));
        assert_eq!(held(&agenda), [true, false, true, true, false, false, false]);
        agenda.note(2, None);
        assert_eq!(held(&agenda), [true, false, false, true, false, false, false]);
        agenda.note(1, Some(steps(&[40])));
        assert_eq!(held(&agenda), [false, false, false, false, true, false, false]);
    }
}
