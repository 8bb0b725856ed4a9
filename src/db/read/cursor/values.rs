//! How a [`Cursor`] gets values that are not in one place: merged from operands, or in value files.

use std::sync::Arc;

use super::{Cursor, CursorState, SEEK_AFTER};
use crate::db::parts::{Apart, Parts};
use crate::db::shape::view::Tree;
use crate::error::Result;
use crate::format::deadline::{DEADLINE_LEN, split_expiring};
use crate::format::effect::{Effect, Put, ValuePlace};
use crate::format::key::{HEAD16_LEN, SeqNo, ValueKind, Window};
use crate::format::pointer::split_separate;
use crate::operator::{Answer, NamedOperator, ReadValue, oldest_of_operand};
use crate::sorted::iter::{InternalCursor, Stamped};
use crate::sorted::values::{ValueAhead, ValueFiles};

/// From where a cursor gets values that are not in one place, and which it wants.
#[derive(Default)]
pub(super) struct ValueSource {
    /// Combines operands; with the name of its keyspace.
    operator: Option<(NamedOperator, Arc<str>)>,
    /// The value files; `None` in an empty cursor.
    files: Option<Arc<ValueFiles>>,
    ahead: ValueAhead,
    /// Whether moves leave values in value files, except to merge operands into them.
    leaves_values: bool,
    /// If operands are not to be combined, those of the key that was merged last.
    apart: Option<Box<Apart>>,
}

impl ValueSource {
    pub(super) fn of(tree: &Tree) -> ValueSource {
        let operator = tree.options.merge_operator.as_ref();
        ValueSource {
            operator: operator.map(|operator| (operator.clone(), Arc::clone(&tree.name))),
            files: Some(Arc::clone(&tree.values)),
            ..ValueSource::default()
        }
    }

    pub(super) fn of_keys_alone(self) -> ValueSource {
        ValueSource { leaves_values: true, ..self }
    }

    /// Forgets what was read ahead: the cursor goes to another place.
    pub(super) fn leave(&mut self) {
        self.ahead.clear();
    }

    /// The value files, to merge operands into what they hold.
    fn reader(&self) -> Option<Arc<ValueFiles>> {
        self.files.clone()
    }

    /// Reads the value to which `pointer` points, if it is wanted, behind `skip` bytes of its
    /// entry.
    fn read(&mut self, key: &[u8], pointer: &[u8], skip: usize, value: &mut Vec<u8>) -> Result<()> {
        match &self.files {
            Some(files) if !self.leaves_values => files.read_into(key, pointer, &mut self.ahead, skip, value),
            _ => Ok(()),
        }
    }
}

/// An operand that a cursor has passed going backward.
pub(super) struct OlderOperand {
    seqno: SeqNo,
    oldest: SeqNo,
    stored: Vec<u8>,
}

/// Adds an operand to those that a cursor has passed going backward, and removes those that it
/// stands for.
#[cold]
pub(super) fn push_operand(operands: &mut Vec<OlderOperand>, seqno: SeqNo, stored: &[u8]) -> Result<()> {
    let oldest = oldest_of_operand(seqno, stored)?;
    while operands.pop_if(|last| last.seqno >= oldest && last.oldest >= oldest).is_some() {}
    operands.push(OlderOperand { seqno, oldest, stored: stored.to_vec() });
    Ok(())
}

impl Cursor {
    /// A cursor that combines no operands: [`parts`](Cursor::parts) has them, and
    /// [`value`](Cursor::value) is empty where there are any.
    #[must_use]
    pub fn unmerged(self) -> Cursor {
        Cursor { values: ValueSource { apart: Some(Box::default()), ..self.values }, ..self }
    }

    /// The entry and what its value is made of, or `None` if the cursor stands on none. Only an
    /// [`unmerged`](Cursor::unmerged) cursor gives operands; any other has combined them.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis::{KeyspaceOptions, operator::Append};
    ///
    /// let names = db.keyspace_with("names", KeyspaceOptions::new().merge_operator(Append))?;
    /// names.put("id1", "Ann")?;
    /// names.merge("id1", ", Bob")?;
    /// let mut cursor = names.cursor()?.unmerged();
    /// cursor.seek_to_first()?;
    /// let parts = cursor.parts().expect("an entry");
    /// assert_eq!((parts.value, parts.operands), (Some(&b"Ann"[..]), &[b", Bob".to_vec()][..]));
    /// # Ok(()) }
    /// ```
    pub fn parts(&self) -> Option<Parts<'_>> {
        let (key, deadline) = (self.key()?, self.deadline());
        let is_merged = matches!(self.state, CursorState::Merged | CursorState::Backward);
        Some(match &self.values.apart {
            Some(apart) if is_merged && apart.key == key => {
                let (value, operands) = &apart.parts;
                Parts { key, value: value.as_deref(), deadline, operands }
            }
            _ => Parts { key, value: self.value(), deadline, operands: &[] },
        })
    }

    /// Combines the operand on which `inner` stands with the older versions of its key, and passes
    /// them.
    #[cold]
    pub(super) fn merge_forward(&mut self) -> Result<()> {
        self.marked.mark(&self.inner);
        let key = self.take_marked_key();
        let window = Window::above(self.cover(), self.snapshot);
        let files = self.values.reader();
        let mut answer = Answer::new(&key, self.at, files.as_deref().map(|files| files as &dyn ReadValue));
        let mut covered = 0;
        while !answer.is_complete()
            && self.inner.valid()
            && self.marked.is_at(&self.inner)
            && window.sees(self.inner.seqno())
        {
            covered = if self.inner.seqno() < answer.oldest() { 0 } else { covered + 1 };
            answer.see(self.inner.seqno(), self.inner.kind(), self.inner.value())?;
            // A memtable may hold many versions that the newest stands for.
            match covered {
                ..=SEEK_AFTER => self.inner.next()?,
                _ => self.inner.seek(&key, answer.oldest() - 1)?,
            }
        }
        self.take_answer(&answer)?;
        self.key = key;
        Ok(())
    }

    /// The marked key, in the buffer of `key`.
    pub(super) fn take_marked_key(&mut self) -> Vec<u8> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        key.extend_from_slice(self.marked.key(&mut [0; HEAD16_LEN]));
        key
    }

    /// Reads the value to which the current entry points, if it is wanted.
    #[cold]
    pub(super) fn read_forward(&mut self) -> Result<()> {
        self.value.clear();
        let Some((prefix, pointer)) = split_separate(self.inner.kind(), self.inner.value()) else { return Ok(()) };
        self.deadline = (!prefix.is_empty()).then(|| split_expiring(prefix).0);
        self.values.read(self.inner.key(), pointer, prefix.len(), &mut self.value)
    }

    /// Takes what the marked key has: the put with this number and kind, whose entry is in `value`,
    /// changed by operands, which come oldest first.
    #[cold]
    pub(super) fn take_backward(&mut self, base: Option<(SeqNo, ValueKind)>, operands: &[OlderOperand]) -> Result<()> {
        let key = self.take_marked_key();
        let stored = std::mem::take(&mut self.value);
        match base {
            Some((_, kind)) if operands.is_empty() => self.take_put(&key, kind, stored)?,
            _ => {
                let files = self.values.reader();
                let mut answer = Answer::new(&key, self.at, files.as_deref().map(|files| files as &dyn ReadValue));
                for OlderOperand { seqno, stored, .. } in operands.iter().rev() {
                    answer.see(*seqno, ValueKind::Merge, stored)?;
                }
                if let Some((seqno, kind)) = base {
                    answer.see(seqno, kind, &stored)?;
                }
                self.take_answer(&answer)?;
            }
        }
        self.key = key;
        Ok(())
    }

    /// Takes the value of a put, or nothing if that is in a value file and not wanted.
    fn take_put(&mut self, key: &[u8], kind: ValueKind, mut stored: Vec<u8>) -> Result<()> {
        self.deadline = None;
        if let Effect::Put(Put { deadline, value }) = Effect::of(kind, &stored) {
            self.deadline = deadline;
            let prefix = if deadline.is_some() { DEADLINE_LEN } else { 0 };
            match value {
                ValuePlace::ValueFile(pointer) => self.values.read(key, pointer, prefix, &mut self.value)?,
                ValuePlace::Entry(_) => {
                    stored.drain(..prefix);
                    self.value = stored;
                }
            }
        }
        Ok(())
    }

    fn take_answer(&mut self, answer: &Answer<'_>) -> Result<()> {
        self.deadline = answer.deadline();
        if let Some(apart) = &mut self.values.apart {
            answer.key().clone_into(&mut apart.key);
            apart.parts = answer.parts();
            self.value.clear();
            return Ok(());
        }
        let (operator, keyspace) = self.values.operator.as_ref().map(|(operator, name)| (operator, &**name)).unzip();
        self.value = answer.value(operator, keyspace.unwrap_or_default())?.unwrap_or_default();
        Ok(())
    }
}
