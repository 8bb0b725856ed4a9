//! A transaction beside what it must read, and what a conflict needs.

use std::collections::BTreeMap;
use std::ops::Bound;

use tamis::{Error, Keyspace, Result, Savepoint, Transaction};

use super::model::{Bytes, Effect, Entries, Incarnation, Model, Moment};
use super::op::Move;
use super::reads::{Window, contains, half_open, successor};
use super::world::World;

/// A change of a key or a range, as its keyspace carries it out.
#[derive(Clone, Debug)]
pub(super) struct Act {
    pub(super) of: Incarnation,
    pub(super) key: Bytes,
    pub(super) effect: Effect,
    /// As the call gets it.
    pub(super) range: (Bound<Bytes>, Bound<Bytes>),
}

impl Act {
    fn covers(&self, of: Incarnation, key: &Bytes) -> bool {
        self.of == of
            && match &self.effect {
                Effect::DeleteRange(from, to) => contains(&(from.clone(), to.clone()), key),
                Effect::Merge(_) => false,
                Effect::Put(..) | Effect::Delete => self.key == *key,
            }
    }
}

fn is_covered(acts: &[Act], of: Incarnation, key: &Bytes) -> bool {
    acts.iter().any(|act| act.covers(of, key))
}

/// What was read of the store, and the transaction's own writes before.
struct Read {
    of: Incarnation,
    range: (Bytes, Option<Bytes>),
    found: Entries,
    own: Vec<Act>,
    /// Whether all of the range was read, for certain.
    is_whole: bool,
}

impl Read {
    /// What of the range the transaction's own writes did not decide.
    fn of_store(&self, entries: Entries) -> Entries {
        entries.into_iter().filter(|(key, _)| !is_covered(&self.own, self.of, key)).collect()
    }
}

pub(super) struct Tx {
    pub(super) tx: Transaction,
    pub(super) moment: Moment,
    pub(super) acts: Vec<Act>,
    reads: Vec<Read>,
    /// With the number of acts before each.
    savepoints: Vec<(Savepoint, usize)>,
    /// Those that were taken back.
    taken_back: Vec<Savepoint>,
}

fn bounds(range: &(Bytes, Option<Bytes>)) -> (Bound<Bytes>, Bound<Bytes>) {
    (Bound::Included(range.0.clone()), range.1.clone().map_or(Bound::Unbounded, Bound::Excluded))
}

impl Tx {
    pub(super) fn new(tx: Transaction, moment: Moment) -> Tx {
        Tx { tx, moment, acts: Vec::new(), reads: Vec::new(), savepoints: Vec::new(), taken_back: Vec::new() }
    }

    /// Its view of a range.
    fn view(&self, model: &Model, of: Incarnation, range: &(Bytes, Option<Bytes>)) -> BTreeMap<Bytes, Bytes> {
        let base = model.range(of, &bounds(range), self.moment);
        let mut view = BTreeMap::from_iter(base);
        for act in self.acts.iter().filter(|act| act.of == of) {
            match &act.effect {
                Effect::DeleteRange(from, to) => view.retain(|key, _| !contains(&(from.clone(), to.clone()), key)),
                _ if !contains(range, &act.key) => {}
                Effect::Put(value, deadline) if deadline.is_none_or(|deadline| self.moment.now < deadline) => {
                    view.insert(act.key.clone(), value.to_vec());
                }
                Effect::Put(..) | Effect::Delete => _ = view.remove(&act.key),
                Effect::Merge(operand) => {
                    let before = view.remove(&act.key);
                    let operands: Vec<&[u8]> = before.as_deref().into_iter().chain([&operand[..]]).collect();
                    view.insert(act.key.clone(), model.kinds[of].operator.combine(&operands));
                }
            }
        }
        view
    }

    fn note(&mut self, model: &Model, of: Incarnation, range: (Bytes, Option<Bytes>), is_whole: bool) {
        let found = model.range(of, &bounds(&range), self.moment);
        self.reads.push(Read { of, range, found, own: self.acts.clone(), is_whole });
    }

    pub(super) fn get(&mut self, model: &Model, of: Incarnation, keyspace: &Keyspace, key: &Bytes) -> Result<()> {
        let of_key = half_open(&(Bound::Included(key.clone()), Bound::Included(key.clone())));
        let expected = self.view(model, of, &of_key).remove(key);
        if !is_covered(&self.acts, of, key) {
            self.note(model, of, of_key, true);
        }
        let found = self.tx.keyspace(keyspace).get(key)?;
        assert_eq!(found.as_deref(), expected.as_deref(), "a transaction of {:?} reads {key:?}", self.moment);
        assert_eq!(self.tx.keyspace(keyspace).contains_key(key)?, expected.is_some());
        Ok(())
    }

    /// Scans a range by steps and seeks.
    pub(super) fn scan(
        &mut self,
        world: &World,
        of: Incarnation,
        keyspace: &Keyspace,
        range: (Bound<Bytes>, Bound<Bytes>),
        moves: &[Move],
    ) -> Result<()> {
        let (model, span) = (&world.model, half_open(&range));
        let mut window = Window::new(self.view(model, of, &span).into_iter().collect(), &range);
        let mut iter = self.tx.keyspace(keyspace).range(range);
        // From either end, up to where; after a seek, what exactly was read is the store's affair.
        let mut read = [(span.0.clone(), Some(span.0.clone())), (Bytes::new(), span.1.clone())];
        let (mut is_whole, mut has_sought, mut has_back) = (false, false, false);
        for step in moves {
            match step {
                Move::Seek(k) => {
                    iter.seek(world.key(*k));
                    window.seek(&world.key(*k), true);
                    has_sought = true;
                }
                Move::SeekBack(k) => {
                    iter.seek_back(world.key(*k));
                    window.seek(&world.key(*k), false);
                    has_sought = true;
                }
                _ => {
                    let front = *step == Move::Next;
                    let found = if front { iter.next() } else { iter.next_back() }.transpose()?;
                    let found = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
                    let wanted = window.step(front);
                    assert!(found == wanted, "a transaction of {:?}: {found:?} for {wanted:?}", self.moment);
                    match wanted {
                        None => is_whole = true,
                        Some((key, _)) if front => read[0].1 = Some(successor(&key)),
                        Some((key, _)) => (read[1].0, has_back) = (key, true),
                    }
                }
            }
        }
        drop(iter);
        match (has_sought, is_whole) {
            (true, _) => self.note(model, of, span, false),
            (false, true) => self.note(model, of, span, true),
            (false, false) => {
                let read = read.into_iter().take(if has_back { 2 } else { 1 });
                read.for_each(|read| self.note(model, of, read, true));
            }
        }
        Ok(())
    }

    pub(super) fn guard(
        &mut self,
        model: &Model,
        of: Incarnation,
        keyspace: &Keyspace,
        range: (Bound<Bytes>, Bound<Bytes>),
    ) {
        let acts = std::mem::take(&mut self.acts);
        self.note(model, of, half_open(&range), true);
        self.acts = acts;
        match &range {
            (Bound::Included(from), Bound::Included(to)) if from == to => self.tx.guard_in(keyspace, from),
            _ => self.tx.guard_range_in(keyspace, range),
        }
    }

    pub(super) fn savepoint(&mut self) {
        self.savepoints.push((self.tx.savepoint(), self.acts.len()));
    }

    pub(super) fn rollback(&mut self, n: u8) -> Result<()> {
        if self.savepoints.is_empty() {
            return Ok(());
        }
        for savepoint in &self.taken_back {
            assert!(self.tx.rollback_to(savepoint).is_err(), "it was taken back");
        }
        let left = 1 + usize::from(n) % self.savepoints.len();
        let (_, acts) = self.savepoints[left - 1];
        // One at the same point is the same.
        let gone = self.savepoints.drain(left..).filter(|(_, later)| *later > acts);
        self.taken_back.extend(gone.map(|(savepoint, _)| savepoint));
        let (savepoint, len) = self.savepoints.last().expect("at least one");
        self.acts.truncate(*len);
        self.tx.rollback_to(savepoint)
    }

    /// Commits; `Ok(None)` after a conflict. What it has read must be as it was if it commits, and
    /// have been changed if it does not.
    pub(super) fn commit(self, model: &Model) -> Result<Option<u64>> {
        let Tx { tx, moment, acts, reads, .. } = self;
        match tx.commit() {
            Ok(_) if acts.is_empty() => Ok(None),
            Ok(seqno) => {
                for read in reads.iter().filter(|read| read.is_whole) {
                    let now = model.range(read.of, &bounds(&read.range), model.moment());
                    let (now, then) = (read.of_store(now), read.of_store(read.found.clone()));
                    let report = || model.difference(read.of, &now, &then);
                    assert!(now == then, "it has committed over what it had read at {moment:?}:\n{}", report());
                }
                Ok(Some(seqno))
            }
            Err(Error::Conflict { .. }) => {
                let has_changed = |read: &Read| model.has_changed(read.of, &read.range, moment.seqno, moment.now);
                assert!(reads.iter().any(has_changed), "a conflict of {moment:?} over nothing");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
