//! Handles that read at one moment, as long as they live.

use std::ops::Bound;

use tamis::{Db, Error, Iter, Keys, Result, Snapshot, Value};

use super::model::{Bytes, Effect, Incarnation, Moment};
use super::op::{Move, Take};
use super::reads::{Source, Walk, Window};
use super::transaction::Tx;
use super::world::{World, name, time};

pub(super) enum Handle {
    /// With the store that it is of: the writer, or the reader beside it.
    Snapshot(Snapshot, Db, Moment),
    Iter(Iter, Incarnation, Window),
    Keys(Keys, Incarnation, Window),
    Cursor(Box<Walk>, Incarnation),
    Transaction(Box<Tx>),
}

impl Handle {
    /// Whether it reads, or may read, what is of a keyspace.
    pub(super) fn is_of(&self, keyspace: Option<Incarnation>) -> bool {
        match self {
            Handle::Snapshot(..) => false,
            Handle::Iter(_, of, _) | Handle::Keys(_, of, _) | Handle::Cursor(_, of) => Some(*of) == keyspace,
            Handle::Transaction(_) => true,
        }
    }
}

/// Moves an iterator beside what it must still return.
macro_rules! step_iter {
    ($world:expr, $iter:expr, $window:expr, $step:expr, $pair:expr) => {{
        match $step {
            Move::Seek(k) => {
                let key = $world.key(*k);
                $iter.seek(&key);
                $window.seek(&key, true);
            }
            Move::SeekBack(k) => {
                let key = $world.key(*k);
                $iter.seek_back(&key);
                $window.seek(&key, false);
            }
            Move::Next | Move::Back => {
                let forward = *$step == Move::Next;
                let expected = $window.step(forward);
                let found = if forward { $iter.next() } else { $iter.next_back() };
                assert_eq!(found.transpose()?.map($pair), expected);
            }
            _ => {}
        }
        Ok(())
    }};
}

impl World {
    /// Takes a handle; of so many, the oldest is dropped.
    pub(super) fn take(&mut self, n: u8, take: Take) -> Result<()> {
        let (of, keyspace) = self.pick(n);
        let moment = self.model.moment();
        let handle = match take {
            Take::Snapshot => Handle::Snapshot(self.db().snapshot(), self.db(), moment),
            Take::SnapshotBeside => {
                let Some(reader) = self.reader.clone() else { return Ok(()) };
                let snapshot = reader.snapshot();
                let moment = Moment { seqno: snapshot.seqno(), unlogged: reader.flushed_seqno(), ..moment };
                Handle::Snapshot(snapshot, reader, moment)
            }
            Take::Iter(span) | Take::Keys(span) => {
                let range = self.span(&span);
                let window = Window::new(self.model.entries(of, moment), &range);
                match take {
                    Take::Keys(_) => Handle::Keys(keyspace.keys(range), of, window),
                    _ => Handle::Iter(keyspace.range(range), of, window),
                }
            }
            Take::Cursor => {
                let entries = self.model.entries(of, moment);
                Handle::Cursor(Box::new(Walk { cursor: keyspace.cursor()?, entries, at: None }), of)
            }
            Take::Transaction => Handle::Transaction(Box::new(Tx::new(self.db().begin(), moment))),
        };
        self.handles.push(handle);
        if self.handles.len() > 8 {
            self.handles.remove(0);
        }
        Ok(())
    }

    /// Uses a handle. One that fails is dropped.
    pub(super) fn use_handle(&mut self, n: u8, moves: &[Move]) -> Result<()> {
        if self.handles.is_empty() {
            return Ok(());
        }
        let at = usize::from(n) % self.handles.len();
        let mut handle = self.handles.swap_remove(at);
        moves.iter().try_for_each(|step| self.step(&mut handle, n, step))?;
        self.handles.push(handle);
        Ok(())
    }

    fn step(&mut self, handle: &mut Handle, n: u8, step: &Move) -> Result<()> {
        match handle {
            Handle::Snapshot(snapshot, db, moment) => self.step_snapshot(snapshot, db, *moment, n, step),
            Handle::Iter(iter, _, window) => step_iter!(self, iter, window, step, |found| {
                let (key, value): (Value, Value) = found;
                (key.to_vec(), value.to_vec())
            }),
            // With the value that it must have.
            Handle::Keys(keys, _, window) => step_iter!(self, keys, window, step, |found| {
                let key: Value = found;
                (key.to_vec(), window.value(&key))
            }),
            Handle::Cursor(walk, _) => self.step_cursor(walk, step),
            Handle::Transaction(tx) => self.step_transaction(tx, n, step),
        }
    }

    fn step_snapshot(&mut self, snapshot: &Snapshot, db: &Db, moment: Moment, n: u8, step: &Move) -> Result<()> {
        let names = if db.is_read_only() { &self.told } else { &self.model.names };
        let known: Vec<(u8, Incarnation)> = names.iter().map(|(n, of)| (*n, *of)).collect();
        for (at, (name_of, of)) in (0..).zip(known) {
            // A reader beside the writer may not know yet.
            let Some(keyspace) = db.existing_keyspace(&name(name_of))? else { continue };
            let source = Source::At(snapshot.keyspace(&keyspace));
            let checked = match step {
                Move::All(ways) => self.check_source(&source, "a snapshot", of, moment, *ways),
                Move::Get(k) if at == n % 2 => {
                    let key = self.key(*k);
                    source.get(&key).map(|found| {
                        let expected = self.model.get(of, &key, moment);
                        assert_eq!(found.as_deref(), expected.as_deref(), "{key:?} in a snapshot of {moment:?}");
                    })
                }
                _ => Ok(()),
            };
            match checked {
                Err(Error::KeyspaceDropped(_)) if db.is_read_only() => {}
                checked => checked?,
            }
        }
        Ok(())
    }

    fn step_cursor(&mut self, walk: &mut Walk, step: &Move) -> Result<()> {
        let (at, entries) = (walk.at, &walk.entries);
        let (valid, to) = match step {
            Move::First => (walk.cursor.seek_to_first(), (!entries.is_empty()).then_some(0)),
            Move::Last => (walk.cursor.seek_to_last(), entries.len().checked_sub(1)),
            Move::Seek(k) | Move::Get(k) => {
                let key = self.key(*k);
                (walk.cursor.seek(&key), entries.iter().position(|(of, _)| *of >= key))
            }
            Move::SeekBack(k) => {
                let key = self.key(*k);
                (walk.cursor.seek_for_prev(&key), entries.iter().rposition(|(of, _)| *of <= key))
            }
            Move::Next => (walk.cursor.next(), at.map(|at| at + 1).filter(|at| *at < entries.len())),
            Move::Back => (walk.cursor.prev(), at.and_then(|at| at.checked_sub(1))),
            _ => return Ok(()),
        };
        walk.arrive(valid, to)
    }

    fn step_transaction(&mut self, tx: &mut Tx, n: u8, step: &Move) -> Result<()> {
        let (of, keyspace) = self.pick(n / 8);
        match step {
            Move::Get(k) | Move::Seek(k) => tx.get(&self.model, of, &keyspace, &self.key(*k)),
            Move::Scan(span, moves) => tx.scan(self, of, &keyspace, self.span(span), moves),
            Move::Write(change) => {
                let Some(act) = self.act(of, change) else { return Ok(()) };
                match &act.effect {
                    // A transaction in a store without deadlines has no time before it needs one.
                    Effect::Put(_, Some(deadline)) if (tx.moment.now..=self.model.now).contains(deadline) => {
                        return Ok(());
                    }
                    Effect::Put(value, None) => tx.tx.put_in(&keyspace, &act.key, &value[..]),
                    Effect::Put(value, Some(deadline)) => {
                        tx.tx.put_with_expiry_in(&keyspace, &act.key, &value[..], time(*deadline));
                    }
                    Effect::Merge(operand) => tx.tx.merge_in(&keyspace, &act.key, &operand[..]),
                    Effect::Delete => tx.tx.delete_in(&keyspace, &act.key),
                    Effect::DeleteRange(..) => tx.tx.delete_range_in(&keyspace, act.range.clone()),
                }
                tx.acts.push(act);
                Ok(())
            }
            Move::Guard(k) => {
                let key: Bound<Bytes> = Bound::Included(self.key(*k));
                tx.guard(&self.model, of, &keyspace, (key.clone(), key));
                Ok(())
            }
            Move::GuardRange(span) => {
                tx.guard(&self.model, of, &keyspace, self.span(span));
                Ok(())
            }
            Move::Savepoint => {
                tx.savepoint();
                Ok(())
            }
            Move::Rollback(to) => tx.rollback(*to),
            _ => Ok(()),
        }
    }

    /// Drops a handle; a transaction may commit.
    pub(super) fn release(&mut self, n: u8, commit: bool) -> Result<()> {
        if self.handles.is_empty() {
            return Ok(());
        }
        let at = usize::from(n) % self.handles.len();
        let Handle::Transaction(tx) = self.handles.swap_remove(at) else { return Ok(()) };
        if !commit {
            return Ok(());
        }
        let ops: Vec<_> = (0..).zip(&tx.acts).map(|(at, act)| self.written(act, at, false)).collect();
        let count = ops.len() as u64;
        match tx.commit(&self.model) {
            Ok(None) => Ok(()),
            Ok(Some(seqno)) => self.commit(ops, count, false, || Ok(seqno)),
            Err(error) => self.commit(ops, count, false, || Err(error)),
        }
    }
}
