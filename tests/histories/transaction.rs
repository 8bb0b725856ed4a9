//! A transaction beside what it must read, and what a conflict needs.

use std::collections::BTreeMap;
use std::ops::Bound;

use tamis::{Error, Keyspace, Result, Savepoint, Transaction};

use super::model::{Bytes, Effect, Entries, Incarnation, Model, Moment};
use super::reads::{contains, half_open};

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
    savepoints: Vec<(Savepoint, usize)>,
}

fn bounds(range: &(Bytes, Option<Bytes>)) -> (Bound<Bytes>, Bound<Bytes>) {
    (Bound::Included(range.0.clone()), range.1.clone().map_or(Bound::Unbounded, Bound::Excluded))
}

impl Tx {
    pub(super) fn new(tx: Transaction, moment: Moment) -> Tx {
        Tx { tx, moment, acts: Vec::new(), reads: Vec::new(), savepoints: Vec::new() }
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

    fn note(&mut self, model: &Model, of: Incarnation, range: (Bytes, Option<Bytes>)) {
        let found = model.range(of, &bounds(&range), self.moment);
        self.reads.push(Read { of, range, found, own: self.acts.clone() });
    }

    pub(super) fn get(&mut self, model: &Model, of: Incarnation, keyspace: &Keyspace, key: &Bytes) -> Result<()> {
        let of_key = half_open(&(Bound::Included(key.clone()), Bound::Included(key.clone())));
        let expected = self.view(model, of, &of_key).remove(key);
        if !is_covered(&self.acts, of, key) {
            self.note(model, of, of_key);
        }
        let found = self.tx.get_in(keyspace, key)?;
        assert_eq!(found.as_deref(), expected.as_deref(), "a transaction of {:?} reads {key:?}", self.moment);
        assert_eq!(self.tx.contains_key_in(keyspace, key)?, expected.is_some());
        Ok(())
    }

    /// Scans a range from the ends that `ends` says: true is the front.
    pub(super) fn scan(
        &mut self,
        model: &Model,
        of: Incarnation,
        keyspace: &Keyspace,
        range: (Bound<Bytes>, Bound<Bytes>),
        ends: &[bool],
    ) -> Result<()> {
        let span = half_open(&range);
        let view = self.view(model, of, &span);
        let mut expected = view.iter();
        let (mut iter, mut read) =
            (self.tx.range_in(keyspace, range), [(span.0.clone(), None), (Bytes::new(), span.1.clone())]);
        let (mut is_whole, mut last) = (false, [false; 2]);
        for &front in ends {
            let found = if front { iter.next() } else { iter.next_back() }.transpose()?;
            let wanted = if front { expected.next() } else { expected.next_back() };
            let pair = found.as_ref().map(|(key, value)| (&key[..], &value[..]));
            let wanted_pair = wanted.map(|(key, value)| (&key[..], &value[..]));
            assert!(pair == wanted_pair, "a transaction of {:?}: {pair:?} for {wanted_pair:?}", self.moment);
            let Some((key, _)) = wanted else {
                is_whole = true;
                break;
            };
            last[usize::from(!front)] = true;
            match front {
                true => read[0].1 = Some(super::reads::successor(key)),
                false => read[1].0 = key.clone(),
            }
        }
        drop(iter);
        match is_whole {
            true => self.note(model, of, span),
            false => {
                let read = read.into_iter().zip(last).filter_map(|(read, is_read)| is_read.then_some(read));
                read.for_each(|read| self.note(model, of, read));
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
        self.note(model, of, half_open(&range));
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
        self.savepoints.truncate(1 + usize::from(n) % self.savepoints.len());
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
                for read in &reads {
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
