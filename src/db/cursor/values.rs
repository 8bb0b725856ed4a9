//! How a [`Cursor`] gets values that are not in one place: merged from operands, or in value files.

use super::{Cursor, CursorState, SEEK_AFTER};
use crate::db::parts::Parts;
use crate::error::Result;
use crate::format::deadline::{DEADLINE_LEN, split_expiring};
use crate::format::key::{HEAD16_LEN, SeqNo, ValueKind};
use crate::format::pointer::split_separate;
use crate::operator::{OperandChain, Resolved, oldest_of_operand};
use crate::sorted::iter::{InternalCursor, MarkedKey, Stamped};
use crate::sorted::merge::MergingCursor;
use crate::tree::version::ScanSource;

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
        Cursor { apart: Some(Box::default()), ..self }
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
        Some(match &self.apart {
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
        let mut chain = OperandChain::default();
        self.key.clear();
        self.key.extend_from_slice(self.marked.key(&mut [0; HEAD16_LEN]));
        let mut covered = 0;
        let cover = self.cover();
        let is_here = |inner: &MergingCursor<ScanSource>, marked: &MarkedKey| {
            inner.valid() && marked.is_at(inner) && inner.seqno() > cover
        };
        while !chain.is_complete() && is_here(&self.inner, &self.marked) {
            covered = if self.inner.seqno() < chain.oldest() { 0 } else { covered + 1 };
            match split_separate(self.inner.kind(), self.inner.value()) {
                Some((_, pointer)) => {
                    let files = self.files.as_ref();
                    let value = files.map(|files| files.read(&self.key, pointer)).transpose()?.unwrap_or_default();
                    chain.push(self.inner.seqno(), self.inner.kind().whole(), value.bytes())?;
                }
                None => chain.push(self.inner.seqno(), self.inner.kind(), self.inner.value())?,
            }
            // A memtable may hold many versions that the newest stands for.
            match covered {
                ..=SEEK_AFTER => self.inner.next()?,
                _ => self.inner.seek(&self.key, chain.oldest() - 1)?,
            }
        }
        self.deadline = chain.deadline();
        if let Some(deadline) = self.deadline
            && self.is_past(deadline)
        {
            self.deadline = None;
            chain.expire();
        }
        self.set_merged(&chain)
    }

    /// Reads the value to which the current entry points, if it is wanted.
    #[cold]
    pub(super) fn read_forward(&mut self) -> Result<()> {
        self.value.clear();
        let Some((prefix, pointer)) = split_separate(self.inner.kind(), self.inner.value()) else { return Ok(()) };
        self.deadline = (!prefix.is_empty()).then(|| split_expiring(prefix).0);
        if self.wants_values
            && let Some(files) = &self.files
        {
            files.read_into(self.inner.key(), pointer, &mut self.ahead, prefix.len(), &mut self.value)?;
        }
        Ok(())
    }

    /// Replaces the pointer in `value`, which belongs to the marked key, by the value, if that is
    /// wanted or needed. If the value has a deadline, it is `deadline`.
    #[cold]
    pub(super) fn read_backward(&mut self, is_needed: bool) -> Result<()> {
        let (pointer, mut buffer) = (std::mem::take(&mut self.value), [0; HEAD16_LEN]);
        if (self.wants_values || is_needed)
            && let Some(files) = &self.files
        {
            let prefix = if self.deadline.is_some() { DEADLINE_LEN } else { 0 };
            let key = self.marked.key(&mut buffer);
            files.read_into(key, &pointer, &mut self.ahead, prefix, &mut self.value)?;
        }
        Ok(())
    }

    /// Combines operands of the marked key, oldest first, and `value` if it was put under number
    /// `base`.
    #[cold]
    pub(super) fn merge_backward(&mut self, operands: &[OlderOperand], base: Option<SeqNo>) -> Result<()> {
        let mut chain = OperandChain::default();
        for OlderOperand { seqno, stored, .. } in operands.iter().rev() {
            chain.push(*seqno, ValueKind::Merge, stored)?;
        }
        if let Some(base) = base {
            chain.push(base, ValueKind::Put, &self.value)?;
        }
        self.key.clear();
        self.key.extend_from_slice(self.marked.key(&mut [0; HEAD16_LEN]));
        self.set_merged(&chain)
    }

    fn set_merged(&mut self, chain: &OperandChain) -> Result<()> {
        if let Some(apart) = &mut self.apart {
            apart.key.clone_from(&self.key);
            apart.parts = chain.parts();
            self.value.clear();
            return Ok(());
        }
        let (operator, keyspace) = self.operator.as_ref().map(|(operator, name)| (operator, &**name)).unzip();
        self.value = match chain.resolve(operator, keyspace.unwrap_or_default(), &self.key, true)? {
            Resolved::Value(value) | Resolved::Operand(value) => value,
        };
        Ok(())
    }
}
